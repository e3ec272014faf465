//! Primitives of two operands.

use super::element::{At, LoopElement, Mask, may_overwrite, one, source, target};
use super::stride::{Kernel, VECTOR, stride};
use pellucid_ir::Compute;
use pellucid_ir::formula::Binary;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;
use pellucid_simd::per_isa;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// `dst[i] = f(a[i], b[i])` for `i < n`, where a uniform operand is one value; see the rules of
/// [`crate::program::loops`].
///
/// # Safety
/// A tile operand holds `n` values and a uniform one holds one, `dst` has room for `n` and overlaps
/// neither (it may equal a tile operand whose element size it shares), and the processor has the isa
/// the loop was asked for.
pub(crate) type BinaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, n: usize);

/// Which operands are tiles, which are one value for all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    /// a[i] ∘ b[i]
    TileTile,
    /// a[i] ∘ b
    TileUniform,
    /// a ∘ b[i]
    UniformTile,
}

/// A function of two values.
trait Zip<T> {
    /// What it gives.
    type Out: LoopElement;
    /// The result.
    fn at(a: T, b: T) -> Self::Out;
}

/// The loop over whole vectors; a uniform operand is held here.
struct Whole<T, F, U>(U, PhantomData<(T, F)>);
impl<T, F, U: Copy> Clone for Whole<T, F, U> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, F, U: Copy> Copy for Whole<T, F, U> {}

impl<T: LoopElement, F: Zip<T>> Kernel<2> for Whole<T, F, ()> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, [a, b]: [*const u8; 2], n: usize) {
        // SAFETY: the caller's promise.
        let (dst, a, b) = unsafe { (target(to, n), source(a, n), source(b, n)) };
        zip::<T, F>(dst, a, b);
    }
}

impl<T: LoopElement, F: Zip<T>> Kernel<1> for Whole<T, F, Left<T>> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, [b]: [*const u8; 1], n: usize) {
        // SAFETY: the caller's promise.
        let (dst, b) = unsafe { (target(to, n), source(b, n)) };
        zip_left::<T, F>(dst, self.0.0, b);
    }
}

impl<T: LoopElement, F: Zip<T>> Kernel<1> for Whole<T, F, Right<T>> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, [a]: [*const u8; 1], n: usize) {
        // SAFETY: the caller's promise.
        let (dst, a) = unsafe { (target(to, n), source(a, n)) };
        zip_right::<T, F>(dst, a, self.0.0);
    }
}

/// A uniform first operand.
#[derive(Clone, Copy)]
struct Left<T>(T);
/// A uniform second operand.
#[derive(Clone, Copy)]
struct Right<T>(T);

#[inline(always)]
fn zip<T: LoopElement, F: Zip<T>>(dst: &mut [MaybeUninit<At<F::Out>>], a: &[At<T>], b: &[At<T>]) {
    for ((d, a), b) in dst.iter_mut().zip(a).zip(b) {
        d.write(At(F::at(a.0, b.0)));
    }
}

#[inline(always)]
fn zip_left<T: LoopElement, F: Zip<T>>(dst: &mut [MaybeUninit<At<F::Out>>], a: T, b: &[At<T>]) {
    for (d, b) in dst.iter_mut().zip(b) {
        d.write(At(F::at(a, b.0)));
    }
}

#[inline(always)]
fn zip_right<T: LoopElement, F: Zip<T>>(dst: &mut [MaybeUninit<At<F::Out>>], a: &[At<T>], b: T) {
    for (d, a) in dst.iter_mut().zip(a) {
        d.write(At(F::at(a.0, b)));
    }
}

per_isa! {
    fn tile_tile[T: LoopElement, F: Zip<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        let kernel = Whole::<T, F, ()>((), PhantomData);
        // SAFETY: the caller's promise; `stride` hands on only what lies within it.
        unsafe { stride(VECTOR, (dst, out), [(a, size), (b, size)], n, kernel) };
    }
}

per_isa! {
    fn tile_uniform[T: LoopElement, F: Zip<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        // SAFETY: the caller's promise.
        let kernel = Whole::<T, F, _>(Right(unsafe { one::<T>(b) }), PhantomData);
        // SAFETY: the caller's promise; `stride` hands on only what lies within it.
        unsafe { stride(VECTOR, (dst, out), [(a, size)], n, kernel) };
    }
}

per_isa! {
    fn uniform_tile[T: LoopElement, F: Zip<T>][T, F](dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        // SAFETY: the caller's promise.
        let kernel = Whole::<T, F, _>(Left(unsafe { one::<T>(a) }), PhantomData);
        // SAFETY: the caller's promise; `stride` hands on only what lies within it.
        unsafe { stride(VECTOR, (dst, out), [(b, size)], n, kernel) };
    }
}

/// The loop over F on vectors.
fn vector<T: LoopElement, F: Zip<T>>(form: Form, isa: Isa) -> BinaryLoop {
    match form {
        Form::TileTile => tile_tile::<T, F>(isa),
        Form::TileUniform => tile_uniform::<T, F>(isa),
        Form::UniformTile => uniform_tile::<T, F>(isa),
    }
}

/// The loop over F lane by lane: for scalar code, which no isa makes faster.
fn each<T: LoopElement, F: Zip<T>>(form: Form) -> BinaryLoop {
    unsafe fn each<T: LoopElement, F: Zip<T>, const A: usize, const B: usize>(
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        n: usize,
    ) {
        let (out, size) = (size_of::<F::Out>(), size_of::<T>());
        debug_assert!(may_overwrite((dst, out), (a, A * size), n) && may_overwrite((dst, out), (b, B * size), n));
        // A step of 0 stays on the uniform value.
        let (a, b) = (a.cast::<T>(), b.cast::<T>());
        for i in 0..n {
            // SAFETY: the caller's promise, and i < n.
            unsafe {
                let y = F::at(a.add(i * A).read_unaligned(), b.add(i * B).read_unaligned());
                dst.cast::<F::Out>().add(i).write_unaligned(y);
            }
        }
    }
    match form {
        Form::TileTile => each::<T, F, 1, 1>,
        Form::TileUniform => each::<T, F, 1, 0>,
        Form::UniformTile => each::<T, F, 0, 1>,
    }
}

/// One line per primitive: how its loop runs, its name, its value.
macro_rules! table {
    ($T:ident: $bound:ident => $($how:ident $Op:ident |$a:ident, $b:ident| $e:expr;)*) => {
        $(
            struct $Op;
            impl<$T: LoopElement + $bound> Zip<$T> for $Op {
                type Out = table!(@out $Op $T);
                #[inline(always)]
                fn at($a: $T, $b: $T) -> Self::Out {
                    $e
                }
            }
        )*
        /// The loop of a primitive on this kind of type.
        pub(super) fn get<$T: LoopElement + $bound>(op: Binary, form: Form, isa: Isa) -> Option<BinaryLoop> {
            Some(match op {
                $(Binary::$Op => table!(@how $how $T $Op form isa),)*
                _ => return None,
            })
        }
    };
    (@out Lt $T:ident) => { Mask };
    (@out Le $T:ident) => { Mask };
    (@out Gt $T:ident) => { Mask };
    (@out Ge $T:ident) => { Mask };
    (@out Eq $T:ident) => { Mask };
    (@out Ne $T:ident) => { Mask };
    (@out $Op:ident $T:ident) => { $T };
    (@how vector $T:ident $Op:ident $form:ident $isa:ident) => { vector::<$T, $Op>($form, $isa) };
    (@how each $T:ident $Op:ident $form:ident $isa:ident) => { each::<$T, $Op>($form) };
    // On vectors in f32, lane by lane in f64.
    (@how single $T:ident $Op:ident $form:ident $isa:ident) => {
        if size_of::<$T>() == 4 { vector::<$T, $Op>($form, $isa) } else { each::<$T, $Op>($form) }
    };
}

mod float {
    use super::*;
    table! { T: Real =>
        vector Add |a, b| a + b;
        vector Sub |a, b| a - b;
        vector Mul |a, b| a * b;
        vector Div |a, b| a / b;
        each FloorDiv |a, b| a.floor_div(b);
        each Rem |a, b| a.rem(b);
        single Pow |a, b| a.pow(b);
        each Atan2 |a, b| a.atan2(b);
        vector Max |a, b| a.max(b);
        vector Min |a, b| a.min(b);
        vector Copysign |a, b| a.copysign(b);
        each Polygamma |a, b| a.polygamma(b);
        each Zeta |a, b| a.zeta(b);
        each Igamma |a, b| a.igamma(b);
        each Igammac |a, b| a.igammac(b);
        each BesselJ |a, b| a.bessel_j(b);
        each BesselY |a, b| a.bessel_y(b);
        each BesselI |a, b| a.bessel_i(b);
        each BesselIe |a, b| a.bessel_ie(b);
        each BesselK |a, b| a.bessel_k(b);
        each BesselKe |a, b| a.bessel_ke(b);
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
    table! { T: Int =>
        vector Add |a, b| a.add(b);
        vector Sub |a, b| a.sub(b);
        vector Mul |a, b| a.mul(b);
        each FloorDiv |a, b| a.floor_div(b);
        each Rem |a, b| a.rem(b);
        each Pow |a, b| a.pow(b);
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
    /// The one type of truth values.
    pub(super) trait Truth: Copy {
        fn bits(self) -> u8;
        fn of(bits: u8) -> Self;
    }
    impl Truth for Mask {
        #[inline(always)]
        fn bits(self) -> u8 {
            self.0
        }
        #[inline(always)]
        fn of(bits: u8) -> Mask {
            Mask(bits)
        }
    }
    table! { T: Truth =>
        vector And |a, b| T::of(a.bits() & b.bits());
        vector Or |a, b| T::of(a.bits() | b.bits());
        vector Xor |a, b| T::of(a.bits() ^ b.bits());
        vector Max |a, b| T::of(a.bits() | b.bits());
        vector Min |a, b| T::of(a.bits() & b.bits());
        vector Lt |a, b| Mask((a.bits() ^ 1) & b.bits());
        vector Le |a, b| Mask((a.bits() ^ 1) | b.bits());
        vector Gt |a, b| Mask(a.bits() & (b.bits() ^ 1));
        vector Ge |a, b| Mask(a.bits() | (b.bits() ^ 1));
        vector Eq |a, b| Mask(a.bits() ^ b.bits() ^ 1);
        vector Ne |a, b| Mask(a.bits() ^ b.bits());
    }
}

/// The loop of `op` on operands of type `ty`; None where the primitive is not defined there.
///
/// Comparisons write masks, all others the operands' type. Floats lack the bitwise primitives and
/// shifts; integers lack Div, Atan2, Copysign and the special functions; masks have And, Or, Xor, Max, Min and the
/// comparisons, with false < true.
pub(crate) fn binary(op: Binary, ty: Compute, form: Form, isa: Isa) -> Option<BinaryLoop> {
    match ty {
        Compute::Mask => mask::get::<Mask>(op, form, isa),
        Compute::I32 => integer::get::<i32>(op, form, isa),
        Compute::I64 => integer::get::<i64>(op, form, isa),
        Compute::F32 => float::get::<f32>(op, form, isa),
        Compute::F64 => float::get::<f64>(op, form, isa),
    }
}
