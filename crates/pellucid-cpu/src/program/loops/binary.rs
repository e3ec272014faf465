//! Primitives of two operands.

use super::element::{LoopElement, MaskByte, Unaligned, can_overwrite, output_slice, read_element, source_slice};
use super::remainder::{VECTOR_LEN, VectorKernel, run_padded};
use pellucid_ir::Compute;
use pellucid_ir::formula::Binary;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::per_isa;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// `binary_loop(dst, a, b, n)` computes `dst[i] = f(a[i], b[i])` for `i < n`, where a uniform operand is one value; see
/// the rules of [`crate::program::loops`].
///
/// # Safety
/// * Sources: a tile operand is valid for reads of `n` elements, a uniform operand for reads of one element.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Aliasing: `dst` overlaps no operand, except that it may equal a tile operand of the same element size.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type BinaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, n: usize);

/// States which operands are tiles and which are uniform (one value for all elements).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    /// `a[i] ∘ b[i]`
    TileTile,
    /// `a[i] ∘ b`
    TileUniform,
    /// `a ∘ b[i]`
    UniformTile,
}

/// A function of two values.
trait BinaryFunction<T> {
    /// The type of the result.
    type Out: LoopElement;
    /// Computes the function.
    fn apply(a: T, b: T) -> Self::Out;
}

/// The loop of F over whole vectors, with its uniform operand U, or `()` if both operands are tiles.
struct BinaryKernel<T, F, U>(U, PhantomData<(T, F)>);
impl<T, F, U: Copy> Clone for BinaryKernel<T, F, U> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, F, U: Copy> Copy for BinaryKernel<T, F, U> {}

impl<T: LoopElement, F: BinaryFunction<T>> VectorKernel<2> for BinaryKernel<T, F, ()> {
    #[inline(always)]
    unsafe fn run_vectors(self, to: *mut u8, [a, b]: [*const u8; 2], n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `run_vectors`). *Unchanged* and
        // *Exclusive* of the slices follow from *Disjoint*.
        let (dst, a, b) = unsafe { (output_slice(to, n), source_slice(a, n), source_slice(b, n)) };
        combine_tiles::<T, F>(dst, a, b);
    }
}

impl<T: LoopElement, F: BinaryFunction<T>> VectorKernel<1> for BinaryKernel<T, F, UniformLeft<T>> {
    #[inline(always)]
    unsafe fn run_vectors(self, to: *mut u8, [b]: [*const u8; 1], n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `run_vectors`). *Unchanged* and
        // *Exclusive* of the slices follow from *Disjoint*.
        let (dst, b) = unsafe { (output_slice(to, n), source_slice(b, n)) };
        combine_uniform_left::<T, F>(dst, self.0.0, b);
    }
}

impl<T: LoopElement, F: BinaryFunction<T>> VectorKernel<1> for BinaryKernel<T, F, UniformRight<T>> {
    #[inline(always)]
    unsafe fn run_vectors(self, to: *mut u8, [a]: [*const u8; 1], n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `run_vectors`). *Unchanged* and
        // *Exclusive* of the slices follow from *Disjoint*.
        let (dst, a) = unsafe { (output_slice(to, n), source_slice(a, n)) };
        combine_uniform_right::<T, F>(dst, a, self.0.0);
    }
}

/// A uniform first operand.
#[derive(Clone, Copy)]
struct UniformLeft<T>(T);
/// A uniform second operand.
#[derive(Clone, Copy)]
struct UniformRight<T>(T);

/// Writes `F(a[i], b[i])` to `dst[i]`.
#[inline(always)]
fn combine_tiles<T: LoopElement, F: BinaryFunction<T>>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
    b: &[Unaligned<T>],
) {
    for ((d, a), b) in dst.iter_mut().zip(a).zip(b) {
        d.write(Unaligned(F::apply(a.0, b.0)));
    }
}

/// Writes `F(a, b[i])` to `dst[i]`.
#[inline(always)]
fn combine_uniform_left<T: LoopElement, F: BinaryFunction<T>>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: T,
    b: &[Unaligned<T>],
) {
    for (d, b) in dst.iter_mut().zip(b) {
        d.write(Unaligned(F::apply(a, b.0)));
    }
}

/// Writes `F(a[i], b)` to `dst[i]`.
#[inline(always)]
fn combine_uniform_right<T: LoopElement, F: BinaryFunction<T>>(
    dst: &mut [MaybeUninit<Unaligned<F::Out>>],
    a: &[Unaligned<T>],
    b: T,
) {
    for (d, a) in dst.iter_mut().zip(a) {
        d.write(Unaligned(F::apply(a.0, b)));
    }
}

per_isa! {
    /// Returns the loop of two tiles for an instruction set.
    fn tile_tile[T: LoopElement, F: BinaryFunction<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        let kernel = BinaryKernel::<T, F, ()>((), PhantomData);
        // SAFETY: *Sources*, *Destination*, *Aliasing* and *ISA* of `BinaryLoop` are those of `run_padded` for the tile
        // operands.
        unsafe { run_padded(VECTOR_LEN, (dst, out), [(a, size), (b, size)], n, kernel) };
    }
}

per_isa! {
    /// Returns the loop of a tile and a uniform operand for an instruction set.
    fn tile_uniform[T: LoopElement, F: BinaryFunction<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        // SAFETY: `b` is uniform, so it is valid for reads of one element (*Sources* of `BinaryLoop`).
        let kernel = BinaryKernel::<T, F, _>(UniformRight(unsafe { read_element::<T>(b) }), PhantomData);
        // SAFETY: *Sources*, *Destination*, *Aliasing* and *ISA* of `BinaryLoop` are those of `run_padded` for the tile
        // operands.
        unsafe { run_padded(VECTOR_LEN, (dst, out), [(a, size)], n, kernel) };
    }
}

per_isa! {
    /// Returns the loop of a uniform operand and a tile for an instruction set.
    fn uniform_tile[T: LoopElement, F: BinaryFunction<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        // SAFETY: `a` is uniform, so it is valid for reads of one element (*Sources* of `BinaryLoop`).
        let kernel = BinaryKernel::<T, F, _>(UniformLeft(unsafe { read_element::<T>(a) }), PhantomData);
        // SAFETY: *Sources*, *Destination*, *Aliasing* and *ISA* of `BinaryLoop` are those of `run_padded` for the tile
        // operands.
        unsafe { run_padded(VECTOR_LEN, (dst, out), [(b, size)], n, kernel) };
    }
}

/// Returns the vectorised loop of F.
fn vector_loop<T: LoopElement, F: BinaryFunction<T>>(form: Form, isa: Isa) -> BinaryLoop {
    match form {
        Form::TileTile => tile_tile::<T, F>(isa),
        Form::TileUniform => tile_uniform::<T, F>(isa),
        Form::UniformTile => uniform_tile::<T, F>(isa),
    }
}

/// Returns the scalar loop of F, for code that does not vectorise.
fn scalar_loop<T: LoopElement, F: BinaryFunction<T>>(form: Form) -> BinaryLoop {
    /// Computes `dst[i] = F(a[i * A], b[i * B])` for `i < n`. A step of 0 reads the uniform value each time.
    ///
    /// # Safety
    /// The contract of [`BinaryLoop`], where step 1 marks a tile and step 0 a uniform operand.
    unsafe fn scalar_loop<T: LoopElement, F: BinaryFunction<T>, const A: usize, const B: usize>(
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        n: usize,
    ) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        debug_assert!(can_overwrite((dst, out), (a, A * size), n) && can_overwrite((dst, out), (b, B * size), n));
        let (a, b) = (a.cast::<T>(), b.cast::<T>());
        for i in 0..n {
            // SAFETY: i < n, so *Sources* and *Destination* of `BinaryLoop` cover the accesses; A and B are 0 or 1.
            unsafe {
                let y = F::apply(a.add(i * A).read_unaligned(), b.add(i * B).read_unaligned());
                dst.cast::<F::Out>().add(i).write_unaligned(y);
            }
        }
    }
    match form {
        Form::TileTile => scalar_loop::<T, F, 1, 1>,
        Form::TileUniform => scalar_loop::<T, F, 1, 0>,
        Form::UniformTile => scalar_loop::<T, F, 0, 1>,
    }
}

/// Defines primitives, one per line: the kind of its loop, its name and its result.
///
/// `vector` loops are vectorised, `scalar` loops are not, and `single` loops are vectorised for `f32` alone.
macro_rules! primitives {
    ($T:ident: $bound:ident => $($kind:ident $Op:ident |$a:ident, $b:ident| $e:expr;)*) => {
        $(
            struct $Op;
            impl<$T: LoopElement + $bound> BinaryFunction<$T> for $Op {
                type Out = primitives!(@out $Op $T);
                #[inline(always)]
                fn apply($a: $T, $b: $T) -> Self::Out {
                    $e
                }
            }
        )*
        /// Returns the loop of a primitive for this kind of type.
        pub(super) fn primitive_loop<$T: LoopElement + $bound>(op: Binary, form: Form, isa: Isa) -> Option<BinaryLoop> {
            Some(match op {
                $(Binary::$Op => primitives!(@loop $kind $T $Op form isa),)*
                _ => return None,
            })
        }
    };
    (@out Lt $T:ident) => { MaskByte };
    (@out Le $T:ident) => { MaskByte };
    (@out Gt $T:ident) => { MaskByte };
    (@out Ge $T:ident) => { MaskByte };
    (@out Eq $T:ident) => { MaskByte };
    (@out Ne $T:ident) => { MaskByte };
    (@out $Op:ident $T:ident) => { $T };
    (@loop vector $T:ident $Op:ident $form:ident $isa:ident) => { vector_loop::<$T, $Op>($form, $isa) };
    (@loop scalar $T:ident $Op:ident $form:ident $isa:ident) => { scalar_loop::<$T, $Op>($form) };
    // Vectorised for f32, scalar for f64.
    (@loop single $T:ident $Op:ident $form:ident $isa:ident) => {
        if size_of::<$T>() == 4 { vector_loop::<$T, $Op>($form, $isa) } else { scalar_loop::<$T, $Op>($form) }
    };
}

mod float {
    use super::*;
    primitives! { T: Real =>
        vector Add |a, b| a + b;
        vector Sub |a, b| a - b;
        vector Mul |a, b| a * b;
        vector Div |a, b| a / b;
        scalar FloorDiv |a, b| a.floor_div(b);
        scalar Rem |a, b| a.rem(b);
        single Pow |a, b| a.pow(b);
        scalar Atan2 |a, b| a.atan2(b);
        vector Max |a, b| a.max(b);
        vector Min |a, b| a.min(b);
        vector Copysign |a, b| a.copysign(b);
        scalar Polygamma |a, b| a.polygamma(b);
        scalar Zeta |a, b| a.zeta(b);
        scalar Igamma |a, b| a.igamma(b);
        scalar Igammac |a, b| a.igammac(b);
        scalar BesselJ |a, b| a.bessel_j(b);
        scalar BesselY |a, b| a.bessel_y(b);
        scalar BesselI |a, b| a.bessel_i(b);
        scalar BesselIe |a, b| a.bessel_ie(b);
        scalar BesselK |a, b| a.bessel_k(b);
        scalar BesselKe |a, b| a.bessel_ke(b);
        vector Lt |a, b| (a < b).into();
        vector Le |a, b| (a <= b).into();
        vector Gt |a, b| (a > b).into();
        vector Ge |a, b| (a >= b).into();
        vector Eq |a, b| (a == b).into();
        vector Ne |a, b| (a != b).into();
    }
}

mod integer {
    use super::*;
    primitives! { T: Int =>
        vector Add |a, b| a.add(b);
        vector Sub |a, b| a.sub(b);
        vector Mul |a, b| a.mul(b);
        scalar FloorDiv |a, b| a.floor_div(b);
        scalar Rem |a, b| a.rem(b);
        scalar Pow |a, b| a.pow(b);
        vector Max |a, b| if a > b { a } else { b };
        vector Min |a, b| if a < b { a } else { b };
        vector And |a, b| a.and(b);
        vector Or |a, b| a.or(b);
        vector Xor |a, b| a.xor(b);
        vector Shl |a, b| a.shl(b);
        vector Shr |a, b| a.shr(b);
        vector Lt |a, b| (a < b).into();
        vector Le |a, b| (a <= b).into();
        vector Gt |a, b| (a > b).into();
        vector Ge |a, b| (a >= b).into();
        vector Eq |a, b| (a == b).into();
        vector Ne |a, b| (a != b).into();
    }
}

mod mask {
    use super::*;
    /// The boolean type, as the bound that the macro needs. [`MaskByte`] is its only implementation.
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
    primitives! { T: MaskBits =>
        vector And |a, b| T::from_bits(a.to_bits() & b.to_bits());
        vector Or |a, b| T::from_bits(a.to_bits() | b.to_bits());
        vector Xor |a, b| T::from_bits(a.to_bits() ^ b.to_bits());
        vector Max |a, b| T::from_bits(a.to_bits() | b.to_bits());
        vector Min |a, b| T::from_bits(a.to_bits() & b.to_bits());
        vector Lt |a, b| MaskByte((a.to_bits() ^ 1) & b.to_bits());
        vector Le |a, b| MaskByte((a.to_bits() ^ 1) | b.to_bits());
        vector Gt |a, b| MaskByte(a.to_bits() & (b.to_bits() ^ 1));
        vector Ge |a, b| MaskByte(a.to_bits() | (b.to_bits() ^ 1));
        vector Eq |a, b| MaskByte(a.to_bits() ^ b.to_bits() ^ 1);
        vector Ne |a, b| MaskByte(a.to_bits() ^ b.to_bits());
    }
}

/// Returns the loop of `op` for operands of type `ty`, or `None` if the primitive is not defined for it.
///
/// Comparisons write masks. All other primitives write the type of the operands. Floats lack the bitwise primitives and
/// shifts. Integers lack Div, Atan2, Copysign and the special functions. Masks have And, Or, Xor, Max, Min and the
/// comparisons, with false < true.
pub(crate) fn binary(op: Binary, ty: Compute, form: Form, isa: Isa) -> Option<BinaryLoop> {
    match ty {
        Compute::Mask => mask::primitive_loop::<MaskByte>(op, form, isa),
        Compute::I32 => integer::primitive_loop::<i32>(op, form, isa),
        Compute::I64 => integer::primitive_loop::<i64>(op, form, isa),
        Compute::F32 => float::primitive_loop::<f32>(op, form, isa),
        Compute::F64 => float::primitive_loop::<f64>(op, form, isa),
    }
}
