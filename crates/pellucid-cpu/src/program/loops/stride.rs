//! How a kernel that wants whole vectors runs over any count, and in place.

use super::element::may_overwrite;
use std::mem::MaybeUninit;

/// Counts of elements that fill vectors at every isa, however the loop was unrolled: for polynomials, a remainder
/// of which takes longer than to pad it.
pub(crate) const GRAIN: usize = 64;

/// Counts of elements that fill a vector at every isa: for loops of little work, where padding is most of it.
pub(crate) const VECTOR: usize = 16;

/// Elements that are copied aside at once when an operand is overwritten in place.
const PIECE: usize = 256;

/// Room for [`PIECE`] elements of any type.
#[repr(C, align(64))]
struct Aside(MaybeUninit<[u8; PIECE * 8]>);

impl Aside {
    #[inline(always)]
    const fn new() -> Aside {
        Aside(MaybeUninit::uninit())
    }
}

/// A loop over whole vectors, from S sources that do not overlap the destination.
///
/// A trait and not a closure: only a method can be `#[inline(always)]`, and a kernel that is not inlined
/// into the function with the isa's features is compiled without them.
pub(crate) trait Kernel<const S: usize>: Copy {
    /// Writes `n` results at `to`.
    ///
    /// # Safety
    /// The sources hold `n` elements, `to` has room for as many and overlaps none of them.
    unsafe fn run(self, to: *mut u8, from: [*const u8; S], n: usize);
}

/// Runs `kernel` on pieces until `n` elements are done, such that each count is a multiple of
/// `grain` (a power of two, at most [`PIECE`]), or one, and the destination overlaps no source.
///
/// A remainder runs on padded copies, so that it gets the same vector code as the rest; the padding is
/// zeros, whose results are dropped. One element alone (one value a row) runs as it is: scalar code gives
/// the same bits, and copies would cost more than it does. An operand at `dst` itself is copied aside piece by piece.
///
/// `dst_size` and the sizes with the sources are those of an element in bytes.
///
/// # Safety
/// The sources hold `n` elements, `dst` has room for as many, and it overlaps no source unless it is
/// that source and the element sizes agree.
#[inline(always)]
pub(crate) unsafe fn stride<const S: usize>(
    grain: usize,
    dst: (*mut u8, usize),
    sources: [(*const u8, usize); S],
    n: usize,
    kernel: impl Kernel<S>,
) {
    debug_assert!(grain.is_power_of_two() && grain <= PIECE, "a grain of {grain}");
    debug_assert!(
        sources.iter().all(|&s| may_overwrite(dst, s, n)),
        "{n} elements of {sources:?} overlap those of {dst:?}"
    );
    // One value, as there is one a row: nothing to pad.
    if n == 1 && sources.iter().all(|s| s.0 != dst.0) {
        // SAFETY: the caller's promise.
        return unsafe { kernel.run(dst.0, sources.map(|s| s.0), 1) };
    }
    let mut result = Aside::new();
    let mut copies = [const { Aside::new() }; S];
    let in_place = sources.iter().any(|s| s.0 == dst.0);
    let mut done = 0;
    while done < n {
        let left = n - done;
        let whole = left & !(grain - 1);
        let count = match whole {
            0 => left,
            _ if in_place => whole.min(PIECE),
            _ => whole,
        };
        let run = if n == 1 { 1 } else { (count + grain - 1) & !(grain - 1) };
        let padded = run != count;
        let mut from = [std::ptr::null(); S];
        for s in 0..S {
            let (base, size) = sources[s];
            // SAFETY: `done + count` ≤ n elements lie behind `base`, and `run` ≤ PIECE fit the copy: a
            // padded count is below the grain, one in place at most PIECE.
            unsafe {
                from[s] = base.add(done * size);
                if padded || base == dst.0 {
                    let copy = copies[s].0.as_mut_ptr().cast::<u8>();
                    copy.copy_from_nonoverlapping(from[s], count * size);
                    copy.add(count * size).write_bytes(0, (run - count) * size);
                    from[s] = copy;
                }
            }
        }
        // SAFETY: within the `n` elements of `dst`.
        let to = unsafe { dst.0.add(done * dst.1) };
        let out = if padded { result.0.as_mut_ptr().cast() } else { to };
        // SAFETY: the pieces hold `run` elements each, as arranged above; what may overlap was copied.
        unsafe { kernel.run(out, from, run) };
        if padded {
            // SAFETY: the kernel has filled `run` ≥ `count` elements of the result.
            unsafe { to.copy_from_nonoverlapping(out, count * dst.1) };
        }
        done += count;
    }
}
