//! Ternary primitives: select and fused multiply-add.

use super::loop_element::{LoopElement, MaskByte, Unaligned, output_slice, source_slice};
use super::remainder::{VECTOR_LEN, run_padded};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::{per_isa, up_to};
use std::mem::MaybeUninit;

/// The loop of a ternary primitive, for given tile and uniform operands.
#[derive(Clone, Copy)]
pub(crate) struct TernaryLoop {
    /// The loop, out of place.
    vector_loop: VectorTernaryLoop,
    /// The size of an element of each tile operand in bytes; 0 for a uniform operand.
    source_sizes: [u8; 3],
    /// The size of a result element in bytes.
    size: u8,
}

/// `vector_loop(dst, a, b, c, n)` computes `dst[i] = f(a[i], b[i], c[i])` for `i < n`, where a uniform operand is one
/// value.
///
/// # Safety
/// * Sources: a tile operand is valid for reads of `n` elements, a uniform operand for reads of one element.
/// * Destination: `dst` is valid for writes of `n` elements.
/// * Disjoint: the destination overlaps no operand.
/// * ISA: the processor has the instruction set for which the loop was requested.
type VectorTernaryLoop = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);

impl TernaryLoop {
    /// Computes `dst[i] = f(a[i], b[i], c[i])` for `i < n`, where a uniform operand is one value; see the rules of
    /// [`crate::program::loops`].
    ///
    /// # Safety
    /// * Sources: a tile operand is valid for reads of `n` elements, a uniform operand for reads of one element.
    /// * Destination: `dst` is valid for writes of `n` elements.
    /// * Aliasing: `dst` overlaps no operand, except that it may equal a tile operand of the same element size.
    /// * ISA: the processor has the instruction set for which the loop was requested.
    pub(crate) unsafe fn run(self, dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        let operands = [a, b, c];
        // `run_padded` receives a uniform operand as a tile of elements of size 0.
        let sources = std::array::from_fn(|k| (operands[k], usize::from(self.source_sizes[k])));
        let run_piece = |to: *mut u8, from: [*const u8; 3], n: usize| {
            let operand = |k: usize| if self.source_sizes[k] > 0 { from[k] } else { operands[k] };
            // SAFETY: `run_padded` passes pieces that satisfy *Sources*, *Destination* and *Disjoint* of
            // `VectorTernaryLoop`. A uniform operand is valid for reads of one element and not part of the destination,
            // and *ISA* is a clause of this method's contract.
            unsafe { (self.vector_loop)(to, operand(0), operand(1), operand(2), n) }
        };
        // SAFETY: *Sources*, *Destination* and *Aliasing* of this method's contract imply the clauses of `run_padded`
        // for the tile operands.
        unsafe { run_padded(VECTOR_LEN, (dst, self.size.into()), sources, n, run_piece) };
    }
}

/// A function of three values.
trait TernaryFunction<A, T> {
    /// Computes the function.
    fn apply(a: A, b: T, c: T) -> T;
}

per_isa! {
    /// Returns the [`VectorTernaryLoop`] of F for an instruction set. TA, TB and TC state whether the operand is a
    /// tile.
    fn combine_elements
    [A: LoopElement, T: LoopElement, F: TernaryFunction<A, T>, const TA: bool, const TB: bool, const TC: bool]
    [A, T, F, TA, TB, TC]
    (dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: the caller guarantees *Sources* and *Destination* (the contract of `VectorTernaryLoop`). *Unchanged*
        // and *Exclusive* of the slices follow from *Disjoint*.
        unsafe {
            let (a, b, c) = (
                source_slice(a, if TA { n } else { 1 }),
                source_slice(b, if TB { n } else { 1 }),
                source_slice(c, if TC { n } else { 1 }),
            );
            combine::<A, T, F, TA, TB, TC>(output_slice(dst, n), a, b, c);
        }
    }
}

/// Writes `F(a[i], b[i], c[i])` to `dst[i]`, with element 0 of a uniform operand.
#[inline(always)]
fn combine<A: LoopElement, T: LoopElement, F: TernaryFunction<A, T>, const TA: bool, const TB: bool, const TC: bool>(
    dst: &mut [MaybeUninit<Unaligned<T>>],
    a: &[Unaligned<A>],
    b: &[Unaligned<T>],
    c: &[Unaligned<T>],
) {
    let n = dst.len();
    let (a, b, c) = (&a[..if TA { n } else { 1 }], &b[..if TB { n } else { 1 }], &c[..if TC { n } else { 1 }]);
    for i in 0..n {
        let (a, b, c) = (a[if TA { i } else { 0 }], b[if TB { i } else { 0 }], c[if TC { i } else { 0 }]);
        dst[i].write(Unaligned(F::apply(a.0, b.0, c.0)));
    }
}

/// Returns the loop of F for an instruction set. TA, TB and TC state whether the operand is a tile.
fn ternary_loop<
    A: LoopElement,
    T: LoopElement,
    F: TernaryFunction<A, T>,
    const TA: bool,
    const TB: bool,
    const TC: bool,
>(
    isa: Isa,
) -> TernaryLoop {
    let vector_loop = up_to!(T::WIDEST_ISA, isa, combine_elements::<A, T, F, TA, TB, TC>);
    let (first, other) = (size_of::<A>() as u8, size_of::<T>() as u8);
    TernaryLoop { vector_loop, source_sizes: [first * TA as u8, other * TB as u8, other * TC as u8], size: other }
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
/// The factors commute, so the caller passes a single uniform factor as b. The result is `None` if a is the only
/// uniform factor, if all operands are uniform, or for other types.
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
        [false, false, true] => ternary_loop::<T, T, MulAdd, false, false, true>(isa),
        _ => return None,
    })
}
