//! Primitives of one operand.

use super::element::{At, LoopElement, Mask, are_apart, one, source, target};
use super::stride::{GRAIN, Kernel, stride};
use pellucid_ir::Compute;
use pellucid_ir::formula::Unary;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::per_isa;
use pellucid_simd::vector::Function;

/// Values after which is looked back at the rare ones among them: a multiple of [`GRAIN`].
const PIECE: usize = 256;

/// A primitive of one operand over a run of values.
#[derive(Clone, Copy)]
pub(crate) struct UnaryLoop {
    /// The loop over vectors.
    whole: WholeLoop,
    /// Bytes of a result and of an operand.
    sizes: (u8, u8),
}

/// `whole(dst, a, n)`: `dst[i] = f(a[i])` for `i < n`, quick where `n` is a multiple of [`GRAIN`].
///
/// # Safety
/// `a` holds `n` values, `dst` has room for `n`, they do not overlap, and the processor has the isa the loop was
/// asked for.
pub(crate) type WholeLoop = unsafe fn(dst: *mut u8, a: *const u8, n: usize);

impl UnaryLoop {
    fn new<T: LoopElement, Out: LoopElement>(whole: WholeLoop) -> UnaryLoop {
        UnaryLoop { whole, sizes: (size_of::<Out>() as u8, size_of::<T>() as u8) }
    }

    /// The loop for operands that do not lie where the results go, and any count.
    pub(crate) fn whole(self) -> WholeLoop {
        self.whole
    }

    /// `dst[i] = f(a[i])` for `i < n`; see the rules of [`crate::program::loops`].
    ///
    /// # Safety
    /// `a` holds `n` values, `dst` has room for `n`, they do not overlap unless they are equal and the
    /// element sizes too, and the processor has the isa the loop was asked for.
    pub(crate) unsafe fn run(self, dst: *mut u8, a: *const u8, n: usize) {
        // SAFETY: the caller's promise; `stride` hands on only what lies within it.
        unsafe { stride(GRAIN, (dst, self.sizes.0.into()), [(a, self.sizes.1.into())], n, self) };
    }
}

impl Kernel<1> for UnaryLoop {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, [a]: [*const u8; 1], n: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.whole)(to, a, n) };
    }
}

/// The loop over F on vectors.
pub(super) fn map<T: LoopElement, F: Function<T, Out: LoopElement>>(isa: Isa) -> UnaryLoop {
    UnaryLoop::new::<T, F::Out>(whole::<T, F>(isa))
}

per_isa! {
    fn whole[T: LoopElement, F: Function<T, Out: LoopElement>][T, F](dst: *mut u8, a: *const u8, n: usize) {
        debug_assert!(are_apart((dst, n * size_of::<F::Out>()), (a, n * size_of::<T>())), "{n} elements overlap");
        // SAFETY: the caller's promise.
        let (dst, a) = unsafe { (target::<F::Out>(dst, n), source::<T>(a, n)) };
        for (dst, a) in dst.chunks_mut(PIECE).zip(a.chunks(PIECE)) {
            let mut any = false;
            for (d, x) in dst.iter_mut().zip(a) {
                d.write(At(F::at(x.0)));
                any |= F::is_rare(x.0);
            }
            if any {
                for (d, x) in dst.iter_mut().zip(a) {
                    if F::is_rare(x.0) {
                        d.write(At(F::rare(x.0)));
                    }
                }
            }
        }
    }
}

/// The loop over F lane by lane: for scalar code, which no isa makes faster.
fn each<T: LoopElement, F: Function<T, Out: LoopElement>>() -> UnaryLoop {
    unsafe fn each<T: LoopElement, F: Function<T, Out: LoopElement>>(dst: *mut u8, a: *const u8, n: usize) {
        for i in 0..n {
            // SAFETY: the caller's promise, and i < n.
            unsafe { dst.cast::<F::Out>().add(i).write_unaligned(F::at(one(a.add(i * size_of::<T>())))) };
        }
    }
    UnaryLoop::new::<T, F::Out>(each::<T, F>)
}

/// A type on which primitives of one operand are defined.
trait Table: LoopElement + Sized {
    fn get(op: Unary, isa: Isa) -> Option<UnaryLoop>;
}

/// One line per primitive: how its loop runs, its name, its value.
macro_rules! table {
    ($T:ident: $bound:ident => $($how:ident $Op:ident |$x:ident| $e:expr $(, rare |$r:ident| $is:expr => $f:expr)?;)*) => {
        $(table!(@op $T $bound $Op |$x| $e $(, rare |$r| $is => $f)?);)*
        /// The loop of a primitive on this kind of type.
        fn get<$T: LoopElement + $bound>(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            Some(match op {
                $(Unary::$Op => table!(@how $how $T $Op isa),)*
                _ => return None,
            })
        }
    };
    (@op $T:ident $bound:ident $Op:ident |$x:ident| $e:expr $(, rare |$r:ident| $is:expr => $f:expr)?) => {
        pub(in crate::program::loops) struct $Op;
        impl<$T: $bound> Function<$T> for $Op {
            type Out = table!(@out $Op $T);
            #[inline(always)]
            fn at($x: $T) -> Self::Out {
                $e
            }
            $(
                #[inline(always)]
                fn is_rare($r: $T) -> bool {
                    $is
                }
                #[inline(always)]
                fn rare($r: $T) -> $T {
                    $f
                }
            )?
        }
    };
    (@out IsNan $T:ident) => { Mask };
    (@out IsFinite $T:ident) => { Mask };
    (@out $Op:ident $T:ident) => { $T };
    (@how vector $T:ident $Op:ident $isa:ident) => { map::<$T, $Op>($isa) };
    (@how each $T:ident $Op:ident $isa:ident) => { each::<$T, $Op>() };
    // On vectors in f32, lane by lane in f64.
    (@how single $T:ident $Op:ident $isa:ident) => {
        if size_of::<$T>() == 4 { map::<$T, $Op>($isa) } else { each::<$T, $Op>() }
    };
}

pub(super) mod float {
    use super::*;
    table! { T: Real =>
        vector Neg |x| -x;
        vector Abs |x| x.abs();
        vector Sign |x| x.sign();
        vector Floor |x| x.floor();
        vector Ceil |x| x.ceil();
        vector Round |x| x.round();
        vector Trunc |x| x.trunc();
        vector Sqrt |x| x.sqrt();
        vector Recip |x| T::ONE / x;
        vector Exp |x| x.exp_fast(), rare |x| x.abs() > T::EXP_LIMIT || x.is_nan() => x.exp();
        single Exp2 |x| x.exp2();
        vector Expm1 |x| x.expm1();
        vector Ln |x| x.ln();
        single Log2 |x| x.log2();
        single Log10 |x| x.log10();
        vector Ln1p |x| x.ln_1p();
        vector Sin |x| x.sin_fast(), rare |x| x.abs() > T::TRIG_LIMIT => x.sin();
        vector Cos |x| x.cos_fast(), rare |x| x.abs() > T::TRIG_LIMIT => x.cos();
        single Tan |x| x.tan_fast(), rare |x| x.abs() > T::TRIG_LIMIT => x.tan();
        single Asin |x| x.asin();
        single Acos |x| x.acos();
        single Atan |x| x.atan();
        single Sinh |x| x.sinh();
        single Cosh |x| x.cosh();
        vector Tanh |x| x.tanh();
        single Asinh |x| x.asinh();
        single Acosh |x| x.acosh();
        single Atanh |x| x.atanh();
        vector Sigmoid |x| x.sigmoid();
        vector Erf |x| x.erf();
        vector Erfc |x| x.erfc();
        vector Erfcx |x| x.erfcx();
        vector Erfinv |x| x.erfinv();
        vector Ndtri |x| x.ndtri();
        each Lgamma |x| x.lgamma();
        each Digamma |x| x.digamma();
        vector IsNan |x| x.is_nan().into();
        vector IsFinite |x| x.is_finite().into();
    }
    impl Table for f32 {
        fn get(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            get::<f32>(op, isa)
        }
    }
    impl Table for f64 {
        fn get(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            get::<f64>(op, isa)
        }
    }
}

mod integer {
    use super::*;
    // Integers are their own floor, and never NaN.
    table! { T: Int =>
        vector Neg |x| x.neg();
        vector Abs |x| x.abs();
        vector Sign |x| x.sign();
        vector Floor |x| x;
        vector Ceil |x| x;
        vector Round |x| x;
        vector Trunc |x| x;
        vector Not |x| x.not();
        vector IsNan |_x| false.into();
        vector IsFinite |_x| true.into();
    }
    impl Table for i32 {
        fn get(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            get::<i32>(op, isa)
        }
    }
    impl Table for i64 {
        fn get(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            get::<i64>(op, isa)
        }
    }
}

mod mask {
    use super::*;
    struct Not;
    impl Function<Mask> for Not {
        type Out = Mask;
        #[inline(always)]
        fn at(x: Mask) -> Mask {
            Mask(x.0 ^ 1)
        }
    }
    impl Table for Mask {
        fn get(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            (op == Unary::Not).then(|| map::<Mask, Not>(isa))
        }
    }
}

/// The loop of `op` on operands of type `ty`; None where the primitive is not defined there.
///
/// [`Unary::IsNan`] and [`Unary::IsFinite`] write masks, all others the operand's type. Integers have
/// Neg, Abs, Sign, Not, the roundings (which are the identity) and the two predicates; masks have Not.
pub(crate) fn unary(op: Unary, ty: Compute, isa: Isa) -> Option<UnaryLoop> {
    match ty {
        Compute::Mask => Mask::get(op, isa),
        Compute::I32 => i32::get(op, isa),
        Compute::I64 => i64::get(op, isa),
        Compute::F32 => f32::get(op, isa),
        Compute::F64 => f64::get(op, isa),
    }
}

per_isa! {
    fn fill[T: LoopElement][T](dst: *mut u8, a: *const u8, n: usize) {
        // SAFETY: the caller's promise: one value at `a`, room for n at `dst`.
        let (x, dst) = unsafe { (one::<T>(a), target::<T>(dst, n)) };
        for d in dst {
            d.write(At(x));
        }
    }
}

/// `fill(dst, a, n)`: `dst[i] = a[0]` for `i < n`, the one value at `a` spread over a tile.
///
/// # Safety
/// There is one value at `a` and room for `n` at `dst`, elsewhere, and the processor has the isa the loop was
/// asked for.
pub(crate) type FillLoop = unsafe fn(dst: *mut u8, a: *const u8, n: usize);

/// The loop that spreads a value of type `ty`.
pub(crate) fn splat(ty: Compute, isa: Isa) -> FillLoop {
    match ty.size() {
        1 => fill::<u8>(isa),
        4 => fill::<u32>(isa),
        _ => fill::<u64>(isa),
    }
}
