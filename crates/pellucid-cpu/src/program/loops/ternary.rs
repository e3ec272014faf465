//! Primitives of three operands: select and fused multiply-add.

use super::element::{At, LoopElement, Mask, one, source, target};
use super::stride::{Kernel, VECTOR, stride};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::per_isa;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// `dst[i] = f(a[i], b[i], c[i])` for `i < n`, where a uniform operand is one value; see the rules of
/// [`crate::program::loops`].
///
/// # Safety
/// A tile operand holds `n` values and a uniform one holds one, `dst` has room for `n` and overlaps none
/// (it may equal a tile operand whose element size it shares), and the processor has the isa the loop
/// was asked for.
pub(crate) type TernaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);

/// A function of three values.
trait Zip3<A, T> {
    fn at(a: A, b: T, c: T) -> T;
}

per_isa! {
    /// TA, TB, TC: whether the operand is a tile.
    fn zip[A: LoopElement, T: LoopElement, F: Zip3<A, T>, const TA: bool, const TB: bool, const TC: bool][A, T, F, TA, TB, TC]
    (dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        let size = size_of::<T>();
        // A uniform operand passes through `stride` as a tile of empty elements.
        let sources =
            [(a, if TA { size_of::<A>() } else { 0 }), (b, if TB { size } else { 0 }), (c, if TC { size } else { 0 })];
        // SAFETY: the caller's promise; `stride` hands on only what lies within it. Uniform values are
        // read up front, if there is an element at all.
        unsafe {
            if n == 0 {
                return;
            }
            let uniform = (one::<A>(a), one::<T>(b), one::<T>(c));
            stride(VECTOR, (dst, size), sources, n, Whole::<A, T, F, TA, TB, TC>(uniform, PhantomData));
        }
    }
}

/// The loop over whole vectors, with the first value of each operand, all there is of a uniform one.
struct Whole<A, T, F, const TA: bool, const TB: bool, const TC: bool>((A, T, T), PhantomData<F>);
impl<A: Copy, T: Copy, F, const TA: bool, const TB: bool, const TC: bool> Clone for Whole<A, T, F, TA, TB, TC> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: Copy, T: Copy, F, const TA: bool, const TB: bool, const TC: bool> Copy for Whole<A, T, F, TA, TB, TC> {}
impl<A: LoopElement, T: LoopElement, F: Zip3<A, T>, const TA: bool, const TB: bool, const TC: bool> Kernel<3>
    for Whole<A, T, F, TA, TB, TC>
{
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, [a, b, c]: [*const u8; 3], n: usize) {
        // SAFETY: the caller's promise; of a uniform operand nothing is read here.
        unsafe {
            let (a, b, c) = (
                source::<A>(a, if TA { n } else { 0 }),
                source::<T>(b, if TB { n } else { 0 }),
                source::<T>(c, if TC { n } else { 0 }),
            );
            zip_whole::<A, T, F, TA, TB, TC>(target(to, n), a, b, c, self.0);
        }
    }
}

#[inline(always)]
fn zip_whole<A: LoopElement, T: LoopElement, F: Zip3<A, T>, const TA: bool, const TB: bool, const TC: bool>(
    dst: &mut [MaybeUninit<At<T>>],
    a: &[At<A>],
    b: &[At<T>],
    c: &[At<T>],
    (ua, ub, uc): (A, T, T),
) {
    let n = dst.len();
    assert!((!TA || a.len() == n) && (!TB || b.len() == n) && (!TC || c.len() == n));
    for i in 0..n {
        let a = if TA { a[i].0 } else { ua };
        let b = if TB { b[i].0 } else { ub };
        let c = if TC { c[i].0 } else { uc };
        dst[i].write(At(F::at(a, b, c)));
    }
}

struct Select;
impl<T: LoopElement> Zip3<Mask, T> for Select {
    #[inline(always)]
    fn at(mask: Mask, a: T, b: T) -> T {
        if mask.0 != 0 { a } else { b }
    }
}

struct MulAdd;
impl<T: LoopElement + Real> Zip3<T, T> for MulAdd {
    #[inline(always)]
    fn at(a: T, b: T, c: T) -> T {
        a.mul_add(b, c)
    }
}

/// The loop of `mask[i] ? a[i] : b[i]` on values of type `ty`; `tiles` says of mask, a and b whether each
/// is a tile or one value. All combinations with at least one tile exist.
pub(crate) fn select(ty: Compute, tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    // Only the size matters: bits are moved, not numbers.
    match ty.size() {
        1 => select_bits::<u8>(tiles, isa),
        4 => select_bits::<u32>(tiles, isa),
        _ => select_bits::<u64>(tiles, isa),
    }
}

fn select_bits<T: LoopElement>(tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    Some(match tiles {
        [true, true, true] => zip::<Mask, T, Select, true, true, true>(isa),
        [true, true, false] => zip::<Mask, T, Select, true, true, false>(isa),
        [true, false, true] => zip::<Mask, T, Select, true, false, true>(isa),
        [true, false, false] => zip::<Mask, T, Select, true, false, false>(isa),
        [false, true, true] => zip::<Mask, T, Select, false, true, true>(isa),
        [false, true, false] => zip::<Mask, T, Select, false, true, false>(isa),
        [false, false, true] => zip::<Mask, T, Select, false, false, true>(isa),
        [false, false, false] => return None,
    })
}

/// The loop of a·b + c, rounded once, for floats; `tiles` says of a, b and c whether each is a tile or
/// one value.
///
/// There are `[true, true, true]`, `[true, true, false]`, `[true, false, true]` and
/// `[true, false, false]`. The first two operands commute, so a uniform a is passed as b; for two
/// uniform factors, spread one with [`splat`](super::splat).
pub(crate) fn mul_add(ty: Compute, tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    match ty {
        Compute::F32 => fused::<f32>(tiles, isa),
        Compute::F64 => fused::<f64>(tiles, isa),
        _ => None,
    }
}

fn fused<T: LoopElement + Real>(tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    Some(match tiles {
        [true, true, true] => zip::<T, T, MulAdd, true, true, true>(isa),
        [true, true, false] => zip::<T, T, MulAdd, true, true, false>(isa),
        [true, false, true] => zip::<T, T, MulAdd, true, false, true>(isa),
        [true, false, false] => zip::<T, T, MulAdd, true, false, false>(isa),
        _ => return None,
    })
}
