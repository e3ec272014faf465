//! Runs a loop over full vectors on any count of elements, and in place.

use super::loop_element::can_overwrite;
use std::mem::MaybeUninit;

/// The number of elements that fills an unrolled group of vectors on every instruction set. For polynomials, padding a
/// remainder to this number is cheaper than a remainder loop.
pub(crate) const UNROLLED_LEN: usize = 64;

/// The number of elements that fills one vector on every instruction set. Loops with little arithmetic pad a remainder
/// only to this number, because padding is most of their cost.
pub(crate) const VECTOR_LEN: usize = 16;

/// The number of elements that are copied to a buffer together when an operand is overwritten in place.
const COPY_LEN: usize = 256;

/// Scratch memory for [`COPY_LEN`] elements of any type.
#[repr(C, align(64))]
struct CopyBuffer(MaybeUninit<[u8; COPY_LEN * 8]>);

impl CopyBuffer {
    #[inline(always)]
    const fn new() -> CopyBuffer {
        CopyBuffer(MaybeUninit::uninit())
    }
}

/// Calls `kernel(to, from, n)` for pieces of `n` elements. Each piece has a multiple of `grain` elements, or one
/// element. `grain` is a power of two of at most [`COPY_LEN`].
///
/// `from` is valid for reads and `to` for writes of the `n` elements of a piece, and `to` overlaps no pointer of
/// `from`.
///
/// The same vector code computes all elements: a remainder is computed together with elements before it, or, if there
/// are too few or an operand is overwritten, on padded copies. The padding is zeros, and its results are dropped. A
/// single element (as with one value per row) runs without padding: scalar code gives the same bits, and copies would
/// cost more than the computation. An operand at `dst` itself is copied to a buffer piece by piece.
///
/// `dst` and `sources` are addresses with the size of an element in bytes. Size 0 marks a uniform operand.
///
/// # Safety
/// * Sources: each source is valid for reads of `n` elements of its size.
/// * Destination: `dst` is valid for writes of `n` elements of its size.
/// * Aliasing: `dst` overlaps no source, except that it may equal a source of the same element size.
#[inline]
pub(crate) unsafe fn run_padded<const S: usize>(
    grain: usize,
    dst: (*mut u8, usize),
    sources: [(*const u8, usize); S],
    n: usize,
    kernel: impl Fn(*mut u8, [*const u8; S], usize),
) {
    debug_assert!(
        grain.is_power_of_two() && grain <= COPY_LEN,
        "the grain {grain} must be a power of two, at most {COPY_LEN}"
    );
    debug_assert!(
        sources.iter().all(|&s| can_overwrite(dst, s, n)),
        "the destination {dst:?} partly overlaps one of the sources {sources:?} ({n} elements)"
    );
    let in_place = sources.iter().any(|&(source, _)| source == dst.0.cast_const());
    // Full vectors need no padding. A single element, such as one value per row, needs none either.
    if !in_place && (n == 1 || n & (grain - 1) == 0) {
        return kernel(dst.0, sources.map(|(source, _)| source), n);
    }
    if !in_place && n > grain {
        // The last elements are computed again, in a full vector that ends with the last element.
        kernel(dst.0, sources.map(|(source, _)| source), n & !(grain - 1));
        let first = n - grain;
        let from = sources.map(|(source, size)| source.wrapping_add(first * size));
        return kernel(dst.0.wrapping_add(first * dst.1), from, grain);
    }
    let mut result = CopyBuffer::new();
    let mut copies = [const { CopyBuffer::new() }; S];
    let mut done = 0;
    while done < n {
        let left = n - done;
        let full = left & !(grain - 1);
        let count = match full {
            0 => left,
            _ if in_place => full.min(COPY_LEN),
            _ => full,
        };
        let padded_count = if n == 1 { 1 } else { (count + grain - 1) & !(grain - 1) };
        let padded = padded_count != count;
        let mut from = [std::ptr::null(); S];
        for s in 0..S {
            let (base, size) = sources[s];
            // SAFETY: by this function's contract, `base` is valid for reads of `done + count` ≤ n elements
            // (*Sources*). `padded_count` ≤ COPY_LEN elements fit the buffer: a padded count is at most `grain`, a
            // count in place at most COPY_LEN.
            unsafe {
                from[s] = base.add(done * size);
                if padded || base == dst.0 {
                    let copy = copies[s].0.as_mut_ptr().cast::<u8>();
                    copy.copy_from_nonoverlapping(from[s], count * size);
                    copy.add(count * size).write_bytes(0, (padded_count - count) * size);
                    from[s] = copy;
                }
            }
        }
        // SAFETY: by this function's contract, `done` < n, so the address is within the `n` elements of `dst`
        // (*Destination*).
        let to = unsafe { dst.0.add(done * dst.1) };
        let out = if padded { result.0.as_mut_ptr().cast() } else { to };
        // Every piece holds `padded_count` elements: either `count` = `padded_count` elements of the caller's memory
        // (*Sources*, *Destination*) or a buffer. A source that equals `dst` was copied, and by *Aliasing* no other
        // source overlaps it.
        kernel(out, from, padded_count);
        if padded {
            // SAFETY: by this function's contract, the kernel has written `padded_count` ≥ `count` elements to the
            // buffer, and `to` is valid for writes of the `count` elements starting at `done` (*Destination*).
            unsafe { to.copy_from_nonoverlapping(out, count * dst.1) };
        }
        done += count;
    }
}
