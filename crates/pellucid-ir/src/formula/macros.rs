//! `formula!`: a formula from its text.

/// Builds a [`Formula`](crate::formula::Formula) from its text.
///
/// **Named**, with what its inputs are and with declared derivatives, at the place where it stands:
///
/// ```
/// use pellucid_ir::formula;
///
/// let softplus = formula! {
///     softplus(x) = x.relu() + (-x.abs()).exp().ln_1p();
///     d x = g * x.sigmoid();
/// };
/// assert_eq!(softplus.to_string(), "softplus(x) = select(x <= 0, 0, x) + ln_1p(exp(-abs(x)))");
/// ```
///
/// Inputs are numbers, unless they say otherwise: `c: mask`, `t: index`, `m: per_row`,
/// `t: per_row index`. Run-time parameters follow a semicolon: `elu(x; alpha) = ..`. The text is an
/// expression or a block; a tuple of expressions gives several outputs. In a `d` line stand the
/// inputs and parameters, `y` for the output (`y0`, `y1`, .. of several), which is then saved, and
/// `g` for its incoming gradient (`g0`, `g1`, ..). These names are constants there, so a `let` in a
/// `d` line must not reuse one.
///
/// **Anonymous**, built once per place in the source; gives a `&'static Formula`. A name may stand before it, for what
/// is printed: `formula!(swish |x; beta| ..)`.
///
/// ```
/// use pellucid_ir::formula;
///
/// let swish = formula!(|x; beta| x * (beta * x).sigmoid());
/// assert_eq!(swish.evaluate(&[&[0.0]], &[1.0]), [[0.0]]);
/// ```
///
/// It takes nothing from its surroundings, since it is built but once: what changes is an input or a
/// parameter.
#[macro_export]
macro_rules! formula {
    (| $($rest:tt)*) => {
        $crate::formula!(formula | $($rest)*)
    };

    ($name:ident | $($x:ident $(: $($kind:ident)+)?),* $(; $($k:ident),*)? $(,)? | $body:expr) => {{
        static FORMULA: ::std::sync::OnceLock<$crate::formula::Formula> = ::std::sync::OnceLock::new();
        // A function pointer, not a closure: what the text captured would be baked in.
        let build: fn() -> $crate::formula::Formula = || {
            $crate::formula!($name($($x $(: $($kind)+)?),* $(; $($k),*)?) = $body).eternal()
        };
        FORMULA.get_or_init(build)
    }};

    ($name:ident ( $($x:ident $(: $($kind:ident)+)?),* $(; $($k:ident),*)? $(,)? ) = $body:expr
        $(; $(d $wrt:ident = $derivative:expr ;)*)?) => {{
        let formula = $crate::formula::Formula::new(
            stringify!($name),
            &[$($crate::formula!(@input $($($kind)+)?)),*],
            <[&str]>::len(&[$($(stringify!($k)),*)?]),
            |inputs: &[$crate::formula::Expr], params: &[$crate::formula::Expr]| {
                let &[$($x),*] = inputs else { unreachable!() };
                let &[$($($k),*)?] = params else { unreachable!() };
                $crate::formula::IntoOutputs::into_outputs($body)
            },
        );
        let formula = formula.with_names(&[$(stringify!($x)),*], &[$($(stringify!($k)),*)?]);
        $crate::formula!(@derivatives formula, [$($x)*] [$($($k)*)?] $($(, $wrt = $derivative)*)?)
    }};

    (@derivatives $formula:ident, $inputs:tt $params:tt $(, $wrt:ident = $derivative:expr)*) => {{
        $(let $formula = $crate::formula!(@derivative $formula, $wrt, $derivative, $inputs $params);)*
        $formula
    }};

    // `g`, `y` and the inputs are constants here, because constants, unlike variables, can be seen
    // by a text that comes from the macro's caller.
    (@derivative $formula:ident, $wrt:ident, $derivative:expr, [$($x:ident)*] [$($k:ident)*]) => {{
        #[allow(non_camel_case_types, dead_code, clippy::upper_case_acronyms)]
        enum Inputs { $($x),* }
        #[allow(non_camel_case_types, dead_code, clippy::upper_case_acronyms)]
        enum Params { $($k),* }
        $formula.with_derivative(Inputs::$wrt as usize, |_, _, _, _| {
            #[allow(unused_imports)]
            use $crate::formula::names::*;
            $(
                #[allow(non_upper_case_globals, dead_code)]
                const $x: $crate::formula::Expr = $crate::formula::Expr::input(Inputs::$x as usize);
            )*
            $(
                #[allow(non_upper_case_globals, dead_code)]
                const $k: $crate::formula::Expr = $crate::formula::Expr::param(Params::$k as usize);
            )*
            $derivative
        })
    }};

    (@input) => { $crate::formula::Input::NUMBER };
    (@input mask) => { $crate::formula::Input::MASK };
    (@input index) => { $crate::formula::Input::INDEX };
    (@input per_row) => { $crate::formula::Input::NUMBER.per_row() };
    (@input per_row $kind:ident) => { $crate::formula!(@input $kind).per_row() };
}

/// The names of a derivative line.
#[doc(hidden)]
#[allow(non_upper_case_globals)]
pub mod names {
    use super::super::Expr;

    pub const y: Expr = Expr::output(0);
    pub const y0: Expr = Expr::output(0);
    pub const y1: Expr = Expr::output(1);
    pub const y2: Expr = Expr::output(2);
    pub const y3: Expr = Expr::output(3);
    pub const g: Expr = Expr::gradient(0);
    pub const g0: Expr = Expr::gradient(0);
    pub const g1: Expr = Expr::gradient(1);
    pub const g2: Expr = Expr::gradient(2);
    pub const g3: Expr = Expr::gradient(3);
}
