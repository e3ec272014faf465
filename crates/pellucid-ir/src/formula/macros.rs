//! The macro `formula!`.

/// Builds a [`Formula`](crate::formula::Formula).
///
/// **Named**, with kinds of inputs and declared derivatives. The formula is built each time the macro expression is
/// evaluated:
///
/// ```
/// # extern crate pellucid_ir as pellucid;
/// use pellucid::formula;
///
/// let softplus = formula! {
///     softplus(x) = x.relu() + (-x.abs()).exp().ln_1p();
///     d x = g * x.sigmoid();
/// };
/// assert_eq!(softplus.to_string(), "softplus(x) = select(x <= 0, 0, x) + ln_1p(exp(-abs(x)))");
/// ```
///
/// Inputs are numbers by default; other kinds are `c: mask`, `t: index`, `m: per_row` and `t: per_row index`. Run-time
/// parameters follow a semicolon: `elu(x; alpha) = ..`. The body is an expression or a block; a tuple of expressions
/// declares several outputs. A `d` line declares a derivative in terms of the inputs, the parameters, the output `y`,
/// which is then saved, and its incoming gradient `g`. Several outputs are `y0`, `y1`, .., and their gradients `g0`,
/// `g1`, .. The mask `refined` is true in the form from which derivatives of order 2 and higher are derived. In a `d`
/// line these names are constants, so a `let` must not reuse one of them.
///
/// **Anonymous**, built once for each occurrence in the source; the result is a `&'static Formula`. An optional name is
/// used for printing: `formula!(swish |x; beta| ..)`.
///
/// ```
/// # extern crate pellucid_ir as pellucid;
/// use pellucid::formula;
///
/// let swish = formula!(|x; beta| x * (beta * x).sigmoid());
/// assert_eq!(swish.evaluate(&[&[0.0]], &[1.0]), [[0.0]]);
/// ```
///
/// **Static**, named and built once for each occurrence in the source; the result is a `&'static Formula`:
///
/// ```
/// # extern crate pellucid_ir as pellucid;
/// use pellucid::formula;
///
/// let relu = formula! { static relu(x) = x.relu(); d x = y.le(0.0).select(0.0, g); };
/// assert_eq!(relu.evaluate(&[&[-1.0, 2.0]], &[]), [[0.0, 2.0]]);
/// ```
///
/// An anonymous or static formula is built only once, so it cannot capture variables: pass varying values as inputs or
/// parameters.
#[macro_export]
macro_rules! formula {
    (| $($rest:tt)*) => {
        $crate::formula!(formula | $($rest)*)
    };

    ($name:ident | $($x:ident $(: $($kind:ident)+)?),* $(; $($k:ident),*)? $(,)? | $body:expr) => {
        $crate::formula!(static $name($($x $(: $($kind)+)?),* $(; $($k),*)?) = $body)
    };

    (static $($definition:tt)+) => {{
        // A function pointer cannot capture variables, whose values at the first use would become constants.
        static FORMULA: $crate::formula::LazyFormula =
            $crate::formula::LazyFormula::new(|| $crate::formula!($($definition)+));
        FORMULA.get()
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
                $crate::formula::IntoFormulaOutputs::into_outputs($body)
            },
        );
        let formula = formula.with_names(&[$(stringify!($x)),*], &[$($(stringify!($k)),*)?]);
        $crate::formula!(@derivatives formula, [$($x)*] [$($($k)*)?] $($(, $wrt = $derivative)*)?)
    }};

    (@derivatives $formula:ident, $inputs:tt $params:tt $(, $wrt:ident = $derivative:expr)*) => {{
        $(let $formula = $crate::formula!(@derivative $formula, $wrt, $derivative, $inputs $params);)*
        $formula
    }};

    // `g`, `y` and the inputs are constants, because macro hygiene hides variables, but not constants, from the code of
    // the macro's caller.
    (@derivative $formula:ident, $wrt:ident, $derivative:expr, [$($x:ident)*] [$($k:ident)*]) => {{
        #[allow(non_camel_case_types, dead_code, clippy::upper_case_acronyms)]
        enum Inputs { $($x),* }
        #[allow(non_camel_case_types, dead_code, clippy::upper_case_acronyms)]
        enum ParamIndex { $($k),* }
        $formula.with_derivative(Inputs::$wrt as usize, |_, _, _, _| {
            #[allow(unused_imports)]
            use $crate::formula::names::*;
            $(
                #[allow(non_upper_case_globals, dead_code)]
                const $x: $crate::formula::Expr = $crate::formula::Expr::input(Inputs::$x as usize);
            )*
            $(
                #[allow(non_upper_case_globals, dead_code)]
                const $k: $crate::formula::Expr = $crate::formula::Expr::param(ParamIndex::$k as usize);
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
    pub const refined: Expr = Expr::refined();
    pub const g: Expr = Expr::gradient(0);
    pub const g0: Expr = Expr::gradient(0);
    pub const g1: Expr = Expr::gradient(1);
    pub const g2: Expr = Expr::gradient(2);
    pub const g3: Expr = Expr::gradient(3);
}
