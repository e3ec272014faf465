//! Binary primitives.

use super::loop_element::{LoopElement, MaskByte, Unaligned, output_slice, read_element, source_slice};
use super::remainder::{VECTOR_LEN, run_padded};
use super::unary::RARE_CHECK_LEN;
use pellucid_ir::Compute;
use pellucid_ir::formula::Binary;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::math::single::{BesselI, BesselJ, BesselK, BesselY, FunctionOfOrder, Polygamma};
use pellucid_simd::{per_isa, up_to};
use std::mem::MaybeUninit;

/// States which operands are tiles and which are uniform (one value for all elements).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum OperandForm {
    /// `a[i] ∘ b[i]`
    TileTile,
    /// `a[i] ∘ b`
    TileUniform,
    /// `a ∘ b[i]`
    UniformTile,
}

/// The loop of a binary primitive, for one [`OperandForm`].
#[derive(Clone, Copy)]
pub(crate) struct BinaryLoop {
    /// The loop, out of place.
    vector_loop: VectorBinaryLoop,
    /// Whether the second operand of `vector_loop` is uniform.
    is_uniform: bool,
    /// Whether `vector_loop` takes the operands of the primitive in reverse order.
    is_swapped: bool,
    /// A remainder is padded to a multiple of this number of elements.
    grain: u8,
    /// The sizes of a result element and of an operand element, in bytes.
    sizes: (u8, u8),
}

/// `vector_loop(dst, a, b, n)` computes `dst[i] = f(a[i], b[i])` for `i < n`, or `dst[i] = f(a[i], b[0])` if the loop
/// is for a uniform second operand.
///
/// # Safety
/// * Sources: `a` is valid for reads of `n` elements, and `b` of `n` elements or of one.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Disjoint: the destination overlaps no operand.
/// * ISA: the processor has the instruction set for which the loop was requested.
type VectorBinaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, n: usize);

impl BinaryLoop {
    /// Computes `dst[i] = f(a[i], b[i])` for `i < n`, where a uniform operand is one value; see the rules of
    /// [`crate::program::loops`].
    ///
    /// # Safety
    /// * Sources: a tile operand is valid for reads of `n` elements, a uniform operand for reads of one element.
    /// * Destination: `dst` is valid for writes of `n` elements.
    /// * Aliasing: `dst` overlaps no operand, except that it may equal a tile operand of the same element size.
    /// * ISA: the processor has the instruction set for which the loop was requested.
    pub(crate) unsafe fn run(self, dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let [a, b] = if self.is_swapped { [b, a] } else { [a, b] };
        let (dst, size) = ((dst, self.sizes.0.into()), self.sizes.1.into());
        let run_piece = |to: *mut u8, a: *const u8, b: *const u8, n: usize| {
            // SAFETY: `run_padded` passes pieces that satisfy *Sources*, *Destination* and *Disjoint* of
            // `VectorBinaryLoop`. A uniform operand is valid for reads of one element and not part of the destination,
            // and *ISA* is a clause of this method's contract.
            unsafe { (self.vector_loop)(to, a, b, n) }
        };
        // SAFETY: *Sources*, *Destination* and *Aliasing* of this method's contract imply the clauses of `run_padded`
        // for the tile operands.
        unsafe {
            if self.is_uniform {
                run_padded(self.grain.into(), dst, [(a, size)], n, |to, [a], n| run_piece(to, a, b, n));
            } else {
                run_padded(self.grain.into(), dst, [(a, size), (b, size)], n, |to, [a, b], n| run_piece(to, a, b, n));
            }
        }
    }
}

/// A function of two values.
trait BinaryFunction<T> {
    /// The type of the result.
    type Out: LoopElement;
    /// Computes the function.
    fn apply(a: T, b: T) -> Self::Out;
    /// Whether [`apply`](BinaryFunction::apply) is wrong for some operands.
    const HAS_RARE: bool = false;
    /// Returns true for operands for which [`apply`](BinaryFunction::apply) is wrong.
    #[inline(always)]
    fn is_rare(_a: T, _b: T) -> bool {
        false
    }
    /// Computes the function for rare operands.
    #[inline(always)]
    fn rare(a: T, b: T) -> Self::Out {
        Self::apply(a, b)
    }
}

/// The function F with its operands in reverse order.
struct Swapped<F>(F);
impl<T, F: BinaryFunction<T>> BinaryFunction<T> for Swapped<F> {
    type Out = F::Out;
    #[inline(always)]
    fn apply(a: T, b: T) -> F::Out {
        F::apply(b, a)
    }
    const HAS_RARE: bool = F::HAS_RARE;
    #[inline(always)]
    fn is_rare(a: T, b: T) -> bool {
        F::is_rare(b, a)
    }
    #[inline(always)]
    fn rare(a: T, b: T) -> F::Out {
        F::rare(b, a)
    }
}

/// Writes `F(a[i], b[i])` to `dst[i]`, or `F(a[i], b[0])` if UNIFORM.
#[inline(always)]
fn combine<T: LoopElement, F: BinaryFunction<T>, const UNIFORM: bool>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
    b: &[Unaligned<T>],
) {
    let n = dst.len();
    let (a, b) = (&a[..n], if UNIFORM { &b[..1] } else { &b[..n] });
    let first = b[0].0;
    for i in 0..n {
        dst[i].write(Unaligned(F::apply(a[i].0, if UNIFORM { first } else { b[i].0 })));
    }
}

/// Writes the results of [`combine`], and then overwrites the results of rare operands.
#[inline(always)]
fn combine_with_rare<T: LoopElement, F: BinaryFunction<T>, const UNIFORM: bool>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
    b: &[Unaligned<T>],
) {
    let n = dst.len();
    let (a, b) = (&a[..n], if UNIFORM { &b[..1] } else { &b[..n] });
    let (first, mut any) = (b[0].0, false);
    for i in 0..n {
        let other = if UNIFORM { first } else { b[i].0 };
        dst[i].write(Unaligned(F::apply(a[i].0, other)));
        any |= F::is_rare(a[i].0, other);
    }
    if any {
        for i in 0..n {
            let other = if UNIFORM { first } else { b[i].0 };
            if F::is_rare(a[i].0, other) {
                dst[i].write(Unaligned(F::rare(a[i].0, other)));
            }
        }
    }
}

per_isa! {
    /// Returns the [`VectorBinaryLoop`] of F for an instruction set. UNIFORM states that the second operand is uniform.
    fn combine_elements[T: LoopElement, F: BinaryFunction<T>, const UNIFORM: bool][T, F, UNIFORM]
    (dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `VectorBinaryLoop`). *Unchanged*
        // and *Exclusive* of the slices follow from *Disjoint*.
        let (dst, a, b) =
            unsafe { (output_slice(dst, n), source_slice(a, n), source_slice(b, if UNIFORM { 1 } else { n })) };
        if const { F::HAS_RARE } {
            for (k, dst) in dst.chunks_mut(RARE_CHECK_LEN).enumerate() {
                let first = k * RARE_CHECK_LEN;
                combine_with_rare::<T, F, UNIFORM>(dst, &a[first..], if UNIFORM { b } else { &b[first..] });
            }
        } else if n > 0 {
            combine::<T, F, UNIFORM>(dst, a, b);
        }
    }
}

impl BinaryLoop {
    /// Returns the loop of F for operands of type T, with the given `vector_loop`.
    fn new<T: LoopElement, F: BinaryFunction<T>>(
        vector_loop: VectorBinaryLoop,
        form: OperandForm,
        grain: usize,
    ) -> BinaryLoop {
        BinaryLoop {
            vector_loop,
            is_uniform: form != OperandForm::TileTile,
            is_swapped: form == OperandForm::UniformTile,
            grain: grain as u8,
            sizes: (size_of::<F::Out>() as u8, size_of::<T>() as u8),
        }
    }
}

/// Returns the [`VectorBinaryLoop`] of F for operands of type T.
fn combine_loop<T: LoopElement, F: BinaryFunction<T>, const UNIFORM: bool>(isa: Isa) -> VectorBinaryLoop {
    up_to!(T::WIDEST_ISA, isa, combine_elements::<T, F, UNIFORM>)
}

/// Returns the vectorized loop of F.
fn vector_loop<T: LoopElement, F: BinaryFunction<T>>(form: OperandForm, isa: Isa) -> BinaryLoop {
    let vector_loop = match form {
        OperandForm::TileTile => combine_loop::<T, F, false>(isa),
        OperandForm::TileUniform => combine_loop::<T, F, true>(isa),
        OperandForm::UniformTile => combine_loop::<T, Swapped<F>, true>(isa),
    };
    BinaryLoop::new::<T, F>(vector_loop, form, VECTOR_LEN)
}

/// Returns the vectorized loop of F, which is commutative.
fn commutative_loop<T: LoopElement, F: BinaryFunction<T>>(form: OperandForm, isa: Isa) -> BinaryLoop {
    let vector_loop = match form {
        OperandForm::TileTile => combine_loop::<T, F, false>(isa),
        OperandForm::TileUniform | OperandForm::UniformTile => combine_loop::<T, F, true>(isa),
    };
    BinaryLoop::new::<T, F>(vector_loop, form, VECTOR_LEN)
}

/// Returns the vectorized loop of F with its operands in reverse order.
fn reverse_loop<T: LoopElement, F: BinaryFunction<T>>(form: OperandForm, isa: Isa) -> BinaryLoop {
    let form = match form {
        OperandForm::TileTile => OperandForm::TileTile,
        OperandForm::TileUniform => OperandForm::UniformTile,
        OperandForm::UniformTile => OperandForm::TileUniform,
    };
    let loop_of_f = vector_loop::<T, F>(form, isa);
    BinaryLoop { is_swapped: !loop_of_f.is_swapped, ..loop_of_f }
}

/// Returns the scalar loop of F, for code that does not vectorize. It is compiled once and needs no padding.
fn scalar_loop<T: LoopElement, F: BinaryFunction<T>>(form: OperandForm) -> BinaryLoop {
    let scalar_loop = match form {
        OperandForm::TileTile => const { combine_elements::<T, F, false>(Isa::Portable) },
        OperandForm::TileUniform => const { combine_elements::<T, F, true>(Isa::Portable) },
        OperandForm::UniformTile => const { combine_elements::<T, Swapped<F>, true>(Isa::Portable) },
    };
    BinaryLoop::new::<T, F>(scalar_loop, form, 1)
}

per_isa! {
    /// Returns the [`VectorBinaryLoop`], for an instruction set, of a function with an order, such as a Bessel
    /// function. The operands are x and the uniform order.
    fn compute_of_order[F: FunctionOfOrder][F](dst: *mut u8, x: *const u8, order: *const u8, n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `VectorBinaryLoop`). *Unchanged*
        // and *Exclusive* of the slices follow from *Disjoint*.
        let (dst, x, order) = unsafe { (output_slice(dst, n), source_slice::<f32>(x, n), read_element::<f32>(order)) };
        let function = F::of_order(order);
        for (dst, x) in dst.chunks_mut(RARE_CHECK_LEN).zip(x.chunks(RARE_CHECK_LEN)) {
            let mut any = true;
            if let Some(f) = function {
                any = false;
                for i in 0..dst.len() {
                    dst[i].write(Unaligned(f.at(x[i].0)));
                    any |= F::is_rare(x[i].0);
                }
            }
            if any {
                for i in 0..dst.len() {
                    if function.is_none() || F::is_rare(x[i].0) {
                        dst[i].write(Unaligned(F::exact(order, x[i].0)));
                    }
                }
            }
        }
    }
}

/// Returns the loop of a function of `f32` whose first operand is its order, if the order is uniform.
fn loop_of_order(op: Binary, form: OperandForm, isa: Isa) -> Option<BinaryLoop> {
    let vector_loop: VectorBinaryLoop = match (op, form) {
        (Binary::Polygamma, OperandForm::UniformTile) => compute_of_order::<Polygamma>(isa),
        (Binary::BesselJ, OperandForm::UniformTile) => compute_of_order::<BesselJ>(isa),
        (Binary::BesselY, OperandForm::UniformTile) => compute_of_order::<BesselY>(isa),
        (Binary::BesselI, OperandForm::UniformTile) => compute_of_order::<BesselI<false>>(isa),
        (Binary::BesselIe, OperandForm::UniformTile) => compute_of_order::<BesselI<true>>(isa),
        (Binary::BesselK, OperandForm::UniformTile) => compute_of_order::<BesselK<false>>(isa),
        (Binary::BesselKe, OperandForm::UniformTile) => compute_of_order::<BesselK<true>>(isa),
        _ => return None,
    };
    Some(BinaryLoop { vector_loop, is_uniform: true, is_swapped: true, grain: VECTOR_LEN as u8, sizes: (4, 4) })
}

/// Defines primitives, one per line, each by the kind of its loop, its name and its result.
///
/// `rare` consists of a condition, and of the computation for operands for which the condition is true. `vector` loops
/// are vectorized, and so are `commutative` loops, in which the order of the operands does not change the result.
/// `scalar` loops are not vectorized, and `single` loops are vectorized for `f32` alone. A primitive that equals
/// another primitive, possibly with the operands in reverse order, has no separate loop.
macro_rules! primitives {
    (
        $T:ident: $bound:ident, reverse [$($Reverse:ident of $Of:ident)*], same [$($Same:ident as $As:ident)*] =>
        $(
            $kind:ident $Op:ident |$a:ident, $b:ident| $e:expr
                $(, rare |$c:ident, $d:ident| $is:expr => $f:expr)?;
        )*
    ) => {
        $(
            struct $Op;
            impl<$T: LoopElement + $bound> BinaryFunction<$T> for $Op {
                type Out = primitives!(@out $Op $T);
                #[inline(always)]
                fn apply($a: $T, $b: $T) -> Self::Out {
                    $e
                }
                $(
                    const HAS_RARE: bool = true;
                    #[inline(always)]
                    #[allow(unused_variables)]
                    fn is_rare($c: $T, $d: $T) -> bool {
                        $is
                    }
                    #[inline(always)]
                    fn rare($c: $T, $d: $T) -> Self::Out {
                        $f
                    }
                )?
            }
        )*
        /// Returns the loop of a primitive for this kind of type.
        pub(super) fn primitive_loop<$T: LoopElement + $bound>(
            op: Binary,
            form: OperandForm,
            isa: Isa,
        ) -> Option<BinaryLoop> {
            Some(match op {
                $(Binary::$Op => primitives!(@loop $kind $T $Op form isa),)*
                $(Binary::$Reverse => reverse_loop::<$T, $Of>(form, isa),)*
                $(Binary::$Same => return primitive_loop::<$T>(Binary::$As, form, isa),)*
                _ => return None,
            })
        }
    };
    (@out Lt $T:ident) => { MaskByte };
    (@out Le $T:ident) => { MaskByte };
    (@out Eq $T:ident) => { MaskByte };
    (@out Ne $T:ident) => { MaskByte };
    (@out $Op:ident $T:ident) => { $T };
    (@loop vector $T:ident $Op:ident $form:ident $isa:ident) => { vector_loop::<$T, $Op>($form, $isa) };
    (@loop commutative $T:ident $Op:ident $form:ident $isa:ident) => { commutative_loop::<$T, $Op>($form, $isa) };
    (@loop scalar $T:ident $Op:ident $form:ident $isa:ident) => { scalar_loop::<$T, $Op>($form) };
    // Vectorized for f32, scalar for f64.
    (@loop single $T:ident $Op:ident $form:ident $isa:ident) => {
        match const { size_of::<$T>() == 4 } {
            true => vector_loop::<$T, $Op>($form, $isa),
            false => scalar_loop::<$T, $Op>($form),
        }
    };
}

mod float {
    use super::*;
    primitives! { T: Real, reverse [Gt of Lt  Ge of Le], same [] =>
        commutative Add |a, b| a + b;
        vector Sub |a, b| a - b;
        commutative Mul |a, b| a * b;
        vector Div |a, b| a / b;
        vector FloorDiv |a, b| a.floor_div_fast(b), rare |a, b| a.is_rare_quotient(b) => a.floor_div(b);
        vector Rem |a, b| a.rem_fast(b), rare |a, b| a.is_rare_quotient(b) => a.rem(b);
        vector Pow |a, b| a.pow(b);
        vector Atan2 |a, b| a.atan2(b);
        vector Max |a, b| a.max(b);
        vector Min |a, b| a.min(b);
        vector Copysign |a, b| a.copysign(b);
        vector Ldexp |a, b| a.ldexp_fast(b), rare |a, b| b.abs() > T::LDEXP_LIMIT || b.is_nan() => a.ldexp(b);
        scalar Polygamma |a, b| a.polygamma(b);
        single Zeta |a, b| a.zeta_fast(b), rare |a, b| a.is_rare_zeta(b) => a.zeta(b);
        single Igamma |a, b| a.igamma_fast(b), rare |a, b| a.is_rare_incomplete_gamma(b) => a.igamma(b);
        single Igammac |a, b| a.igammac_fast(b), rare |a, b| a.is_rare_incomplete_gamma(b) => a.igammac(b);
        scalar BesselJ |a, b| a.bessel_j(b);
        scalar BesselY |a, b| a.bessel_y(b);
        scalar BesselI |a, b| a.bessel_i(b);
        scalar BesselIe |a, b| a.bessel_ie(b);
        scalar BesselK |a, b| a.bessel_k(b);
        scalar BesselKe |a, b| a.bessel_ke(b);
        vector Lt |a, b| (a < b).into();
        vector Le |a, b| (a <= b).into();
        commutative Eq |a, b| (a == b).into();
        commutative Ne |a, b| (a != b).into();
    }
}

mod integer {
    use super::*;
    primitives! { T: Int, reverse [Gt of Lt  Ge of Le], same [] =>
        commutative Add |a, b| a.add(b);
        vector Sub |a, b| a.sub(b);
        commutative Mul |a, b| a.mul(b);
        scalar FloorDiv |a, b| a.floor_div(b);
        scalar Rem |a, b| a.rem(b);
        scalar Pow |a, b| a.pow(b);
        commutative Max |a, b| if a > b { a } else { b };
        commutative Min |a, b| if a < b { a } else { b };
        commutative And |a, b| a.and(b);
        commutative Or |a, b| a.or(b);
        commutative Xor |a, b| a.xor(b);
        vector Shl |a, b| a.shl(b);
        vector Shr |a, b| a.shr(b);
        vector Lt |a, b| (a < b).into();
        vector Le |a, b| (a <= b).into();
        commutative Eq |a, b| (a == b).into();
        commutative Ne |a, b| (a != b).into();
    }
}

mod mask {
    use super::*;
    /// The trait of the boolean type, which the macro needs as a bound. Only [`MaskByte`] implements it.
    pub(super) trait MaskBits: Copy {
        /// Returns the byte, 0 or 1.
        fn to_bits(self) -> u8;
        /// Returns the mask with the byte `bits`, which is 0 or 1.
        fn from_bits(bits: u8) -> Self;
    }
    impl MaskBits for MaskByte {
        #[inline(always)]
        fn to_bits(self) -> u8 {
            self.0
        }
        #[inline(always)]
        fn from_bits(bits: u8) -> MaskByte {
            MaskByte(bits)
        }
    }
    primitives! { T: MaskBits, reverse [Gt of Lt  Ge of Le], same [Max as Or  Min as And  Ne as Xor] =>
        commutative And |a, b| T::from_bits(a.to_bits() & b.to_bits());
        commutative Or |a, b| T::from_bits(a.to_bits() | b.to_bits());
        commutative Xor |a, b| T::from_bits(a.to_bits() ^ b.to_bits());
        vector Lt |a, b| MaskByte((a.to_bits() ^ 1) & b.to_bits());
        vector Le |a, b| MaskByte((a.to_bits() ^ 1) | b.to_bits());
        commutative Eq |a, b| MaskByte(a.to_bits() ^ b.to_bits() ^ 1);
    }
}

/// Returns the loop of `op` for operands of type `ty`, or `None` if the primitive is not defined for it.
///
/// Comparisons write masks. All other primitives write the type of the operands. Floats lack the bitwise primitives and
/// shifts. Integers lack Div, Atan2, Copysign, Ldexp and the special functions. Masks have And, Or, Xor, Max, Min and
/// the comparisons, with false < true.
pub(crate) fn binary(op: Binary, ty: Compute, form: OperandForm, isa: Isa) -> Option<BinaryLoop> {
    match ty {
        Compute::Mask => mask::primitive_loop::<MaskByte>(op, form, isa),
        Compute::I32 => integer::primitive_loop::<i32>(op, form, isa),
        Compute::I64 => integer::primitive_loop::<i64>(op, form, isa),
        Compute::F32 => loop_of_order(op, form, isa).or_else(|| float::primitive_loop::<f32>(op, form, isa)),
        Compute::F64 => float::primitive_loop::<f64>(op, form, isa),
    }
}
