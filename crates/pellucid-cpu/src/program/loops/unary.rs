//! Unary primitives.

use super::loop_element::{LoopElement, MaskByte, Unaligned, are_apart, output_slice, read_element, source_slice};
use super::remainder::{UNROLLED_LEN, run_padded};
use pellucid_ir::Compute;
use pellucid_ir::formula::Unary;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::vector::Function;
use pellucid_simd::{per_isa, up_to};
use std::mem::MaybeUninit;

/// The number of elements between two checks for rare operands, for which a fast formula is invalid. It is a multiple
/// of [`UNROLLED_LEN`].
pub(super) const RARE_CHECK_LEN: usize = 256;

/// The loop of a unary primitive.
#[derive(Clone, Copy)]
pub(crate) struct UnaryLoop {
    /// The loop over full vectors, out of place.
    vector_loop: VectorUnaryLoop,
    /// The sizes of a result element and of an operand element, in bytes.
    sizes: (u8, u8),
}

/// `vector_loop(dst, a, n)` computes `dst[i] = f(a[i])` for `i < n`. It is fastest if `n` is a multiple of
/// [`UNROLLED_LEN`].
///
/// # Safety
/// * Source: `a` is valid for reads of `n` elements.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Disjoint: the two ranges do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type VectorUnaryLoop = unsafe fn(dst: *mut u8, a: *const u8, n: usize);

impl UnaryLoop {
    /// Returns the loop with operands of type T and results of type Out.
    fn new<T: LoopElement, Out: LoopElement>(vector_loop: VectorUnaryLoop) -> UnaryLoop {
        UnaryLoop { vector_loop, sizes: (size_of::<Out>() as u8, size_of::<T>() as u8) }
    }

    /// Returns the out-of-place loop, for any count.
    pub(crate) fn vector_loop(self) -> VectorUnaryLoop {
        self.vector_loop
    }

    /// Computes `dst[i] = f(a[i])` for `i < n`; see the rules of [`crate::program::loops`].
    ///
    /// # Safety
    /// * Source: `a` is valid for reads of `n` elements.
    /// * Destination: `dst` is valid for writes of `n` elements.
    /// * Aliasing: the two ranges do not overlap, or they are equal and so are the element sizes.
    /// * ISA: the processor has the instruction set for which the loop was requested.
    pub(crate) unsafe fn run(self, dst: *mut u8, a: *const u8, n: usize) {
        let (dst, source) = ((dst, self.sizes.0.into()), (a, self.sizes.1.into()));
        // SAFETY: `run_padded` passes pieces that satisfy *Source*, *Destination* and *Disjoint* of `VectorUnaryLoop`;
        // *ISA* is a clause of this method's contract.
        let run_piece = |to, [a]: [*const u8; 1], n| unsafe { (self.vector_loop)(to, a, n) };
        // SAFETY: *Source*, *Destination* and *Aliasing* of this method's contract imply the clauses of `run_padded`,
        // for one source and with the element sizes of this loop.
        unsafe { run_padded(UNROLLED_LEN, dst, [source], n, run_piece) };
    }
}

/// Returns the vectorized loop of the function F.
pub(super) fn vector_loop<T: LoopElement, F: Function<T, Out: LoopElement>>(isa: Isa) -> UnaryLoop {
    UnaryLoop::new::<T, F::Out>(function_loop::<T, F>(isa))
}

/// Returns the vectorized loop of the function F, without a variant for AVX-512.
pub(super) fn narrow_loop<T: LoopElement, F: Function<T, Out: LoopElement>>(isa: Isa) -> UnaryLoop {
    UnaryLoop::new::<T, F::Out>(up_to!(Isa::Avx2, isa, function_loop::<T, F>))
}

per_isa! {
    /// Returns the loop of F for an instruction set. It recomputes the results of rare operands, in blocks of
    /// [`RARE_CHECK_LEN`] elements.
    fn function_loop[T: LoopElement, F: Function<T, Out: LoopElement>][T, F](dst: *mut u8, a: *const u8, n: usize) {
        debug_assert!(
            are_apart((dst, n * size_of::<F::Out>()), (a, n * size_of::<T>())),
            "the source and the destination of {n} elements overlap"
        );
        // SAFETY: the caller guarantees *Source* and *Destination* (the contract of `VectorUnaryLoop`). *Unchanged* and
        // *Exclusive* of the slices follow from *Disjoint*.
        let (dst, a) = unsafe { (output_slice::<F::Out>(dst, n), source_slice::<T>(a, n)) };
        if const { F::HAS_RARE } {
            for (dst, a) in dst.chunks_mut(RARE_CHECK_LEN).zip(a.chunks(RARE_CHECK_LEN)) {
                apply_with_rare::<T, F>(dst, a);
            }
        } else {
            apply::<T, F>(dst, a);
        }
    }
}

/// Writes `F(a[i])` to `dst[i]`.
#[inline(always)]
fn apply<T: LoopElement, F: Function<T, Out: LoopElement>>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
) {
    let a = &a[..dst.len()];
    for i in 0..dst.len() {
        dst[i].write(Unaligned(F::at(a[i].0)));
    }
}

/// Writes `F::at(a[i])` to `dst[i]`, and then overwrites the results of rare operands with `F::rare(a[i])`.
#[inline(always)]
fn apply_with_rare<T: LoopElement, F: Function<T, Out: LoopElement>>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
) {
    let (a, mut any) = (&a[..dst.len()], false);
    for i in 0..dst.len() {
        dst[i].write(Unaligned(F::at(a[i].0)));
        any |= F::is_rare(a[i].0);
    }
    if any {
        for i in 0..dst.len() {
            if F::is_rare(a[i].0) {
                dst[i].write(Unaligned(F::rare(a[i].0)));
            }
        }
    }
}

/// Returns the scalar loop of F, for code that does not vectorize. It is compiled once, not for each instruction set.
fn scalar_loop<T: LoopElement, F: Function<T, Out: LoopElement>>() -> UnaryLoop {
    UnaryLoop::new::<T, F::Out>(const { function_loop::<T, F>(Isa::Portable) })
}

/// A type for which unary primitives are defined.
trait UnaryPrimitives: LoopElement + Sized {
    /// Returns the loop of `op`, or `None` if the primitive is not defined for this type.
    fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop>;
}

/// Defines primitives, one per line: the kind of loop, the name, the result, and optionally the condition for rare
/// operands and the result for these.
///
/// `vector` loops are vectorized, `scalar` loops are not, and `single` loops are vectorized for `f32` alone. `narrow`
/// loops are vectorized without a variant for AVX-512, because they are bound by memory or rarely run.
macro_rules! primitives {
    ($T:ident: $bound:ident, same [$($Same:ident as $As:ident)*] => $(
        $kind:ident $Op:ident |$x:ident| $e:expr $(, rare |$r:ident| $is:expr => $f:expr)?;
    )*) => {
        $(primitives!(@op $T $bound $Op |$x| $e $(, rare |$r| $is => $f)?);)*
        /// Returns the loop of a primitive for this kind of type.
        fn primitive_loop<$T: LoopElement + $bound>(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            Some(match op {
                $(Unary::$Op => primitives!(@loop $kind $T $Op isa),)*
                $(Unary::$Same => return primitive_loop::<$T>(Unary::$As, isa),)*
                _ => return None,
            })
        }
    };
    (@op $T:ident $bound:ident $Op:ident |$x:ident| $e:expr $(, rare |$r:ident| $is:expr => $f:expr)?) => {
        pub(in crate::program::loops) struct $Op;
        impl<$T: $bound> Function<$T> for $Op {
            type Out = primitives!(@out $Op $T);
            #[inline(always)]
            fn at($x: $T) -> Self::Out {
                $e
            }
            $(
                const HAS_RARE: bool = true;
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
    (@out IsNan $T:ident) => { MaskByte };
    (@out IsFinite $T:ident) => { MaskByte };
    (@out $Op:ident $T:ident) => { $T };
    (@loop vector $T:ident $Op:ident $isa:ident) => { vector_loop::<$T, $Op>($isa) };
    (@loop narrow $T:ident $Op:ident $isa:ident) => { narrow_loop::<$T, $Op>($isa) };
    (@loop scalar $T:ident $Op:ident $isa:ident) => { scalar_loop::<$T, $Op>() };
    // Vectorized for f32, scalar for f64.
    (@loop single $T:ident $Op:ident $isa:ident) => {
        if const { size_of::<$T>() == 4 } { vector_loop::<$T, $Op>($isa) } else { scalar_loop::<$T, $Op>() }
    };
}

pub(super) mod float {
    use super::*;
    primitives! { T: Real, same [] =>
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
        vector SinPi |x| x.sin_pi();
        vector CosPi |x| x.cos_pi();
        single Asin |x| x.asin();
        single Acos |x| x.acos();
        vector Atan |x| x.atan();
        single Sinh |x| x.sinh();
        single Cosh |x| x.cosh();
        vector Tanh |x| x.tanh();
        single Asinh |x| x.asinh();
        single Acosh |x| x.acosh();
        single Atanh |x| x.atanh();
        vector Sigmoid |x| x.sigmoid_fast(), rare |x| x.abs() > T::EXP_LIMIT || x.is_nan() => x.sigmoid();
        vector Erf |x| x.erf();
        vector Erfc |x| x.erfc();
        narrow Erfcx |x| x.erfcx();
        vector Erfinv |x| x.erfinv();
        vector Ndtr |x| x.ndtr();
        narrow Ndtri |x| x.ndtri();
        single Lgamma |x| x.lgamma_fast(), rare |x| x.is_rare_gamma() => x.lgamma();
        single Digamma |x| x.digamma_fast(), rare |x| x.is_rare_gamma() => x.digamma();
        vector IsNan |x| x.is_nan().into();
        vector IsFinite |x| x.is_finite().into();
    }
    impl UnaryPrimitives for f32 {
        fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            primitive_loop::<f32>(op, isa)
        }
    }
    impl UnaryPrimitives for f64 {
        fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            primitive_loop::<f64>(op, isa)
        }
    }
}

mod integer {
    use super::*;
    // Rounding an integer is the identity, and an integer is never NaN.
    primitives! { T: Int, same [Ceil as Floor  Round as Floor  Trunc as Floor] =>
        vector Neg |x| x.neg();
        vector Abs |x| x.abs();
        narrow Sign |x| x.sign();
        narrow Floor |x| x;
        narrow Not |x| x.not();
        narrow IsNan |_x| false.into();
        narrow IsFinite |_x| true.into();
    }
    impl UnaryPrimitives for i32 {
        fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            primitive_loop::<i32>(op, isa)
        }
    }
    impl UnaryPrimitives for i64 {
        fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            primitive_loop::<i64>(op, isa)
        }
    }
}

mod mask {
    use super::*;
    struct Not;
    impl Function<MaskByte> for Not {
        type Out = MaskByte;
        #[inline(always)]
        fn at(x: MaskByte) -> MaskByte {
            MaskByte(x.0 ^ 1)
        }
    }
    impl UnaryPrimitives for MaskByte {
        fn unary_loop(op: Unary, isa: Isa) -> Option<UnaryLoop> {
            (op == Unary::Not).then(|| vector_loop::<MaskByte, Not>(isa))
        }
    }
}

/// Returns the loop of `op` for operands of type `ty`, or `None` if the primitive is not defined for it.
///
/// [`Unary::IsNan`] and [`Unary::IsFinite`] write masks. All other primitives write the type of the operand. Floats
/// have all primitives except Not. Integers have Neg, Abs, Sign, Not, the roundings (which are the identity) and the
/// two predicates. Masks have Not.
pub(crate) fn unary(op: Unary, ty: Compute, isa: Isa) -> Option<UnaryLoop> {
    match ty {
        Compute::Mask => MaskByte::unary_loop(op, isa),
        Compute::I32 => i32::unary_loop(op, isa),
        Compute::I64 => i64::unary_loop(op, isa),
        Compute::F32 => f32::unary_loop(op, isa),
        Compute::F64 => f64::unary_loop(op, isa),
    }
}

per_isa! {
    /// Returns the fill loop for an instruction set.
    fn fill_loop[T: LoopElement][T](dst: *mut u8, a: *const u8, n: usize) {
        // SAFETY: the caller guarantees *Source* and *Destination* (the contract of `FillLoop`). The value is copied
        // before the output is written, and by *Disjoint* nothing else accesses the output.
        let (x, dst) = unsafe { (read_element::<T>(a), output_slice::<T>(dst, n)) };
        for d in dst {
            d.write(Unaligned(x));
        }
    }
}

/// `fill(dst, a, n)` computes `dst[i] = a[0]` for `i < n`: it broadcasts one value to a tile.
///
/// # Safety
/// * Source: `a` is valid for reads of one element.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Disjoint: the two ranges do not overlap.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type FillLoop = unsafe fn(dst: *mut u8, a: *const u8, n: usize);

/// Returns the loop that broadcasts one value of type `ty` to a tile.
pub(crate) fn splat(ty: Compute, isa: Isa) -> FillLoop {
    match ty.size() {
        1 => fill_loop::<u8>(isa),
        4 => fill_loop::<u32>(isa),
        _ => fill_loop::<u64>(isa),
    }
}
