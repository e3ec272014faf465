//! Primitives of three operands: select and fused multiply-add.

use super::element::{LoopElement, MaskByte, Unaligned, output_slice, read_element, source_slice};
use super::remainder::{VECTOR_LEN, VectorKernel, run_padded};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::per_isa;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// `ternary_loop(dst, a, b, c, n)` computes `dst[i] = f(a[i], b[i], c[i])` for `i < n`, where a uniform operand is one
/// value; see the rules of [`crate::program::loops`].
///
/// # Safety
/// * Sources: a tile operand is valid for reads of `n` elements, a uniform operand for reads of one element.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Aliasing: `dst` overlaps no operand, except that it may equal a tile operand of the same element size.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type TernaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);

/// A function of three values.
trait TernaryFunction<A, T> {
    /// Computes the function.
    fn apply(a: A, b: T, c: T) -> T;
}

per_isa! {
    /// Returns the loop of F for an instruction set. TA, TB and TC state whether the operand is a tile.
    fn ternary_loop
    [A: LoopElement, T: LoopElement, F: TernaryFunction<A, T>, const TA: bool, const TB: bool, const TC: bool]
    [A, T, F, TA, TB, TC]
    (dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        let size = size_of::<T>();
        // `run_padded` receives a uniform operand as a tile of elements of size 0.
        let sources =
            [(a, if TA { size_of::<A>() } else { 0 }), (b, if TB { size } else { 0 }), (c, if TC { size } else { 0 })];
        // SAFETY: *Sources*, *Destination*, *Aliasing* and *ISA* of `TernaryLoop` are those of `run_padded` for the
        // tile operands. If n > 0, every operand has at least one element (*Sources*), which is read before any result
        // is written.
        unsafe {
            if n == 0 {
                return;
            }
            let uniform = (read_element::<A>(a), read_element::<T>(b), read_element::<T>(c));
            run_padded(VECTOR_LEN, (dst, size), sources, n, TernaryKernel::<A, T, F, TA, TB, TC>(uniform, PhantomData));
        }
    }
}

/// The loop of F over whole vectors, with element 0 of each operand, which is the value of a uniform operand.
struct TernaryKernel<A, T, F, const TA: bool, const TB: bool, const TC: bool>((A, T, T), PhantomData<F>);
impl<A: Copy, T: Copy, F, const TA: bool, const TB: bool, const TC: bool> Clone for TernaryKernel<A, T, F, TA, TB, TC> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: Copy, T: Copy, F, const TA: bool, const TB: bool, const TC: bool> Copy for TernaryKernel<A, T, F, TA, TB, TC> {}
impl<A: LoopElement, T: LoopElement, F: TernaryFunction<A, T>, const TA: bool, const TB: bool, const TC: bool>
    VectorKernel<3> for TernaryKernel<A, T, F, TA, TB, TC>
{
    #[inline(always)]
    unsafe fn run_vectors(self, to: *mut u8, [a, b, c]: [*const u8; 3], n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `run_vectors`). *Unchanged* and
        // *Exclusive* of the slices follow from *Disjoint*. The slice of a uniform operand is empty.
        unsafe {
            let (a, b, c) = (
                source_slice::<A>(a, if TA { n } else { 0 }),
                source_slice::<T>(b, if TB { n } else { 0 }),
                source_slice::<T>(c, if TC { n } else { 0 }),
            );
            combine_operands::<A, T, F, TA, TB, TC>(output_slice(to, n), a, b, c, self.0);
        }
    }
}

/// Writes `F(a[i], b[i], c[i])` to `dst[i]`, with the values of the last argument for uniform operands.
#[inline(always)]
fn combine_operands<
    A: LoopElement,
    T: LoopElement,
    F: TernaryFunction<A, T>,
    const TA: bool,
    const TB: bool,
    const TC: bool,
>(
    dst: &mut [MaybeUninit<Unaligned<T>>],
    a: &[Unaligned<A>],
    b: &[Unaligned<T>],
    c: &[Unaligned<T>],
    (ua, ub, uc): (A, T, T),
) {
    let n = dst.len();
    assert!((!TA || a.len() == n) && (!TB || b.len() == n) && (!TC || c.len() == n));
    for i in 0..n {
        let a = if TA { a[i].0 } else { ua };
        let b = if TB { b[i].0 } else { ub };
        let c = if TC { c[i].0 } else { uc };
        dst[i].write(Unaligned(F::apply(a, b, c)));
    }
}

/// `mask ? a : b`.
struct Select;
impl<T: LoopElement> TernaryFunction<MaskByte, T> for Select {
    #[inline(always)]
    fn apply(mask: MaskByte, a: T, b: T) -> T {
        if mask.0 != 0 { a } else { b }
    }
}

/// a·b + c, rounded once.
struct MulAdd;
impl<T: LoopElement + Real> TernaryFunction<T, T> for MulAdd {
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        a.mul_add(b, c)
    }
}

/// Returns the loop of `mask[i] ? a[i] : b[i]` for values of type `ty`, or `None` if no operand is a tile.
///
/// `tiles` states for mask, a and b whether each is a tile or uniform.
pub(crate) fn select(ty: Compute, tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    // Selection copies bits, so only the element size matters.
    match ty.size() {
        1 => select_loop::<u8>(tiles, isa),
        4 => select_loop::<u32>(tiles, isa),
        _ => select_loop::<u64>(tiles, isa),
    }
}

/// Returns the selection loop for elements with the size of T.
fn select_loop<T: LoopElement>(tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    Some(match tiles {
        [true, true, true] => ternary_loop::<MaskByte, T, Select, true, true, true>(isa),
        [true, true, false] => ternary_loop::<MaskByte, T, Select, true, true, false>(isa),
        [true, false, true] => ternary_loop::<MaskByte, T, Select, true, false, true>(isa),
        [true, false, false] => ternary_loop::<MaskByte, T, Select, true, false, false>(isa),
        [false, true, true] => ternary_loop::<MaskByte, T, Select, false, true, true>(isa),
        [false, true, false] => ternary_loop::<MaskByte, T, Select, false, true, false>(isa),
        [false, false, true] => ternary_loop::<MaskByte, T, Select, false, false, true>(isa),
        [false, false, false] => return None,
    })
}

/// Returns the loop of a·b + c, rounded once, for floats; `tiles` states for a, b and c whether each is a tile or
/// uniform.
///
/// The forms are `[true, true, true]`, `[true, true, false]`, `[true, false, true]` and `[true, false, false]`. The
/// factors commute, so a caller passes a uniform a as b. For two uniform factors, the caller broadcasts one with
/// [`splat`](super::splat). All other forms and types return `None`.
pub(crate) fn mul_add(ty: Compute, tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    match ty {
        Compute::F32 => mul_add_loop::<f32>(tiles, isa),
        Compute::F64 => mul_add_loop::<f64>(tiles, isa),
        _ => None,
    }
}

/// Returns the multiply-add loop for one float type.
fn mul_add_loop<T: LoopElement + Real>(tiles: [bool; 3], isa: Isa) -> Option<TernaryLoop> {
    Some(match tiles {
        [true, true, true] => ternary_loop::<T, T, MulAdd, true, true, true>(isa),
        [true, true, false] => ternary_loop::<T, T, MulAdd, true, true, false>(isa),
        [true, false, true] => ternary_loop::<T, T, MulAdd, true, false, true>(isa),
        [true, false, false] => ternary_loop::<T, T, MulAdd, true, false, false>(isa),
        _ => return None,
    })
}
