//! Stable sorting along one axis, with positions, and top-k. NaN is larger than every number.
//!
//! Every element is mapped to an unsigned *key* with the required order: NaN has the largest ascending key, −0 and 0
//! have the same key, and a descending key is the complement of the ascending key. The key and the position are packed
//! into one integer. These integers are distinct, so every sorting algorithm yields the stable order. Long lines are
//! sorted by radix. For top-k with a small k, elements that cannot be among the first k are excluded before the sort.

#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::Sort;
use pellucid_ir::{Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::per_isa;

/// The minimum length for radix sort. Shorter lines are sorted faster by comparisons.
const RADIX_MIN_LEN: usize = 192;

/// The minimum size of a strided line, in bytes, for which the lines are first copied to contiguous memory. The cache
/// lines of strided lines of this size would be evicted between the sorts of adjacent lines.
const COPY_MIN_BYTES: usize = 256;

impl CpuFamily for Sort {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, y, positions) = (self, &inputs[0], &outputs[0], &outputs[1]);
        let (shape, axis) = (x.shape(), kernel.axis);
        if y.shape().contains(&0) {
            return Ok(());
        }
        let is_strided = x.layout.strides()[axis].unsigned_abs() != 1;
        if is_strided && shape[axis] * x.dtype.size() >= COPY_MIN_BYTES {
            return sort_transposed(kernel, x, y, positions);
        }
        sort_lines(kernel, x, y, positions)
    }
}

/// Sorts copies of the operands in which the axis is innermost, so that every line is contiguous.
fn sort_transposed(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    let axis = kernel.axis;
    let last = x.shape().rank() - 1;
    let dense = [x, y, positions].map(|o| {
        let others = (0..=last).filter(|&a| a != axis);
        Layout::contiguous(others.chain([axis]).map(|a| o.shape()[a]).collect())
    });
    let dtypes = [x.dtype, y.dtype, positions.dtype];
    let bytes: [usize; 3] = std::array::from_fn(|i| dense[i].shape().size() * dtypes[i].size());
    let scratch = [CpuBuffer::scratch(bytes[0])?, CpuBuffer::scratch(bytes[1])?, CpuBuffer::scratch(bytes[2])?];
    let lines = |i: usize| -> Result<Operand<'_>> {
        Ok(Operand { base: scratch[i].ensure()?.as_ptr(), layout: &dense[i], dtype: dtypes[i] })
    };
    let (x_lines, y_lines, p_lines) = (lines(0)?, lines(1)?, lines(2)?);
    program::copy_axis_last([x, &x_lines], axis, 1);
    sort_lines(&Sort { axis: last, ..*kernel }, &x_lines, &y_lines, &p_lines)?;
    program::copy_axis_last([y, &y_lines], axis, 0);
    program::copy_axis_last([positions, &p_lines], axis, 0);
    Ok(())
}

/// Sorts all lines.
fn sort_lines(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    with_storage_element!(x.dtype, T => sort_lines_as::<T>(kernel, x, y, positions))
}

/// An element with an unsigned sort key.
trait Sortable: Copy + Send + Sync {
    /// An integer that holds the key and a position.
    type Packed: PackedKey;
    /// The number of bits of the key.
    const BITS: u32;
    /// Returns the key in ascending order, or `None` for NaN.
    fn key(self) -> Option<u64>;
}

/// An integer with a key in the upper bits and a position in the lower bits.
trait PackedKey: Copy + Ord + Send + Sync + Default {
    /// The maximum length of a line whose positions can be packed.
    const MAX_LEN: usize;
    /// Packs a key and a position.
    fn pack(key: u64, position: usize) -> Self;
    /// Returns the position.
    fn position(self) -> usize;
    /// Returns eight bits of the key, from bit `shift`.
    fn digit(self, shift: u32) -> usize;
}

macro_rules! packed_keys {
    ($($t:ty, $bits:literal;)*) => {$(
        impl PackedKey for $t {
            const MAX_LEN: usize = ((1u128 << $bits) - 1) as usize;
            #[inline(always)]
            fn pack(key: u64, position: usize) -> $t {
                (key as $t) << $bits | position as $t
            }
            #[inline(always)]
            fn position(self) -> usize {
                (self & ((1 << $bits) - 1)) as usize
            }
            #[inline(always)]
            fn digit(self, shift: u32) -> usize {
                (self >> ($bits + shift)) as usize & 0xff
            }
        }
    )*};
}
packed_keys! { u64, 32; u128, 64; }

macro_rules! sortable {
    ($($t:ty: $packed:ty, $bits:literal, |$x:ident| $key:expr;)*) => {$(
        impl Sortable for $t {
            type Packed = $packed;
            const BITS: u32 = $bits;
            #[inline(always)]
            fn key(self) -> Option<u64> {
                let $x = self;
                $key
            }
        }
    )*};
}

/// Computes the key of a float: an integer with the same order. For negative numbers, all bits are inverted; for other
/// numbers, only the sign bit. Adding 0 converts −0 to 0.
macro_rules! float_key {
    ($x:expr, $signed:ty, $unsigned:ty) => {{
        let x = $x + 0.0;
        let bits = x.to_bits() as $signed;
        let mask = (bits >> (<$signed>::BITS - 1)) | <$signed>::MIN;
        (x == x).then_some((bits ^ mask) as $unsigned as u64)
    }};
}

/// Computes the key of a half-precision float, as [`float_key`] does, from its bits. Bit patterns above infinity are
/// NaN.
macro_rules! half_precision_key {
    ($bits:expr, $infinity:literal) => {{
        let bits = if $bits == 0x8000 { 0 } else { $bits };
        let mask = (bits as i16 >> 15) as u16 | 0x8000;
        (bits & 0x7fff <= $infinity).then_some((bits ^ mask) as u64)
    }};
}

sortable! {
    u8: u64, 8, |x| Some(x as u64);
    i8: u64, 8, |x| Some((x as u8 ^ 0x80) as u64);
    i16: u64, 16, |x| Some((x as u16 ^ 0x8000) as u64);
    i32: u64, 32, |x| Some((x as u32 ^ 0x8000_0000) as u64);
    i64: u128, 64, |x| Some(x as u64 ^ 1 << 63);
    f32: u64, 32, |x| float_key!(x, i32, u32);
    f64: u128, 64, |x| float_key!(x, i64, u64);
    F16: u64, 16, |x| half_precision_key!(x.0, 0x7c00);
    BF16: u64, 16, |x| half_precision_key!(x.0, 0x7f80);
}

/// Returns the key for ascending or descending order. NaN is the largest element, so it is first in descending order.
#[inline(always)]
fn directed_key<T: Sortable>(x: T, descending: bool) -> u64 {
    let largest = u64::MAX >> (64 - T::BITS);
    // NaN has the largest key, which no other float has. Integers are never NaN.
    let key = x.key().unwrap_or(largest);
    if descending { largest - key } else { key }
}

/// Sorts all lines of elements of type `T`.
fn sort_lines_as<T: Sortable>(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    // Positions of lines with more than 2³² elements need 64 bits.
    if x.shape()[kernel.axis] <= T::Packed::MAX_LEN {
        sort_lines_packed(kernel, &SortKernels::<T::Packed>::new::<T>(), x, y, positions)
    } else {
        sort_lines_packed(kernel, &SortKernels::<u128>::new::<T>(), x, y, positions)
    }
}

/// The functions of a sort that depend on the element type. The other functions are compiled once for each
/// [`PackedKey`].
struct SortKernels<P> {
    /// The size of an element in bytes.
    size: usize,
    /// See [`pack_line`].
    pack_line: unsafe fn(*const u8, isize, bool, &mut [P]),
    /// See [`compute_keys`].
    compute_keys: unsafe fn(*const u8, isize, usize, bool, *mut u64, *mut u64),
    /// See [`sort_packed`].
    sort_packed: for<'a> fn(&'a mut [P], &'a mut [P]) -> &'a [P],
    /// See [`store_line`].
    store_line: unsafe fn(*const u8, isize, OutputLine, &[P]),
}

impl<P: PackedKey> SortKernels<P> {
    /// Returns the functions for elements of type `T`.
    fn new<T: Sortable>() -> SortKernels<P> {
        SortKernels {
            size: size_of::<T>(),
            pack_line: pack_line::<T, P>,
            compute_keys: compute_keys::<T>(Isa::best()),
            sort_packed: with_width!(T::BITS as usize / 8, K => sort_packed::<K, P>),
            store_line: with_width!(size_of::<T>(), W => store_line::<W, P>),
        }
    }
}

/// Packs the keys and positions of a line of `packed.len()` elements of type `T`, `step` elements apart.
///
/// # Safety
/// `line` and the pointers that follow it at distance `step`, one for each element, are valid for reads.
unsafe fn pack_line<T: Sortable, P: PackedKey>(line: *const u8, step: isize, descending: bool, packed: &mut [P]) {
    let line = line.cast::<T>();
    for (i, packed) in packed.iter_mut().enumerate() {
        // SAFETY: the caller guarantees that every element of the line is valid for reads (this function's contract).
        let x = unsafe { *line.wrapping_offset(i as isize * step) };
        *packed = P::pack(directed_key(x, descending), i);
    }
}

/// The outputs of a line: the addresses of its first element and position, and the strides along the line.
#[derive(Clone, Copy)]
struct OutputLine {
    elements: *mut u8,
    step: isize,
    positions: *mut i64,
    positions_step: isize,
}

/// Writes the elements of a line in the order of `sorted`, and their indices in the line. `W` has the size of an
/// element.
///
/// # Safety
/// Each index p in `sorted` refers to the element at `line + p·step`, which is valid for reads. Each output is valid
/// for writes of `sorted.len()` elements. No other thread accesses the outputs.
unsafe fn store_line<W: Copy, P: PackedKey>(line: *const u8, step: isize, to: OutputLine, sorted: &[P]) {
    let (line, elements) = (line.cast::<W>(), to.elements.cast::<W>());
    for (i, packed) in sorted.iter().enumerate() {
        let (i, position) = (i as isize, packed.position() as isize);
        // SAFETY: the caller guarantees that the element at the position is valid for reads, and element i of the
        // outputs for writes (this function's contract).
        unsafe {
            *elements.wrapping_offset(i * to.step) = *line.wrapping_offset(position * step);
            *to.positions.wrapping_offset(i * to.positions_step) = position as i64;
        }
    }
}

/// Sorts all lines by packed keys of type `P`.
fn sort_lines_packed<P: PackedKey>(
    kernel: &Sort,
    kernels: &SortKernels<P>,
    x: &Operand<'_>,
    y: &Operand<'_>,
    positions: &Operand<'_>,
) -> Result<()> {
    let (shape, axis, k, descending) = (x.shape(), kernel.axis, kernel.k, kernel.descending);
    let (len, size) = (shape[axis], kernels.size as isize);
    let layouts = [x.layout, y.layout, positions.layout];
    let [x_along, y_along, p_along] = layouts.map(|l| l.strides()[axis]);
    let space = IndexSpace::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
    let step = space.step();
    let (x, y, positions) = (x.first::<u8>(), y.first::<u8>(), positions.first::<i64>());
    // The scratch memory of all tasks is allocated here, so that a failure precedes the first write.
    let parts = if len * space.len() * size_of::<P>() < 2 * GRAIN { 1 } else { threads::count().min(space.len()) };
    let is_top_k = k < len / 4;
    let packed_len = if is_top_k { len } else { 2 * len };
    let scratch = CpuBuffer::scratch(parts.saturating_mul(packed_len).saturating_mul(size_of::<P>()))?;
    let scratch = SharedPtr(scratch_start::<P>(&scratch)?);
    let keys_len = if is_top_k { len + 2 * len.div_ceil(CHUNK) } else { 0 };
    let key_scratch = CpuBuffer::scratch(parts.saturating_mul(keys_len).saturating_mul(size_of::<u64>()))?;
    let key_scratch = SharedPtr(scratch_start::<u64>(&key_scratch)?);
    parallel_ranges(parts, 1, |part| {
        for part in part {
            // SAFETY: the scratch memory has `parts · packed_len` elements of type `P`, aligned by `scratch_start`. The
            // range of this part is used by this task alone, and is initialized here.
            let packed = unsafe {
                let start = scratch.offset((part * packed_len) as isize);
                (0..packed_len).for_each(|i| start.add(i).write(P::default()));
                std::slice::from_raw_parts_mut(start, packed_len)
            };
            let keys = key_scratch.offset((part * keys_len) as isize);
            let range = space.len() * part / parts..space.len() * (part + 1) / parts;
            space.runs(range, |offsets, n| {
                for line in 0..n as isize {
                    let offsets: [isize; 3] = std::array::from_fn(|o| offsets[o] + line * step[o]);
                    let from = x.offset(offsets[0] * size).cast_const();
                    let sorted = if is_top_k {
                        // SAFETY: the line is within the shape, so its `len` elements are in the buffer. This part has
                        // key scratch for `len` keys and two values per chunk, which no other task uses.
                        unsafe { smallest_in_line(kernels, (from, x_along, len), (descending, k), keys, packed) }
                    } else {
                        let (line, other) = packed.split_at_mut(len);
                        // SAFETY: the line is within the shape, so its `len` elements are in the buffer.
                        unsafe { (kernels.pack_line)(from, x_along, descending, line) };
                        (kernels.sort_packed)(line, other)
                    };
                    let to = OutputLine {
                        elements: y.offset(offsets[1] * size),
                        step: y_along,
                        positions: positions.offset(offsets[2]),
                        positions_step: p_along,
                    };
                    // SAFETY: the positions are below `len`, and k elements of the line are within the shapes of the
                    // outputs, which are in their buffers. No other task writes this line.
                    unsafe { (kernels.store_line)(from, x_along, to, &sorted[..k]) };
                }
            });
        }
    });
    Ok(())
}

/// Returns the k smallest keys of a line with their positions, in ascending order. If `descending`, they are the keys
/// of the largest elements.
///
/// The line is given by its first element, the stride and the length.
///
/// # Safety
/// The elements of the line are valid for reads. `keys` is valid for `len` keys and two more values per chunk, which no
/// other thread accesses.
unsafe fn smallest_in_line<'a, P: PackedKey>(
    kernels: &SortKernels<P>,
    (line, step, len): (*const u8, isize, usize),
    (descending, k): (bool, usize),
    keys: *mut u64,
    packed: &'a mut [P],
) -> &'a [P] {
    let chunks = len.div_ceil(CHUNK);
    // SAFETY: the line is valid for reads (clause 1) and the keys and minima for writes (clause 2), by this function's
    // contract. `Isa::best` returns an instruction set of this processor (clause 3). The `len` keys and the minimum of
    // every chunk are then initialized, and the second value per chunk is initialized here; the two slices are
    // disjoint.
    let (keys, minima) = unsafe {
        (kernels.compute_keys)(line, step, len, descending, keys, keys.add(len));
        keys.add(len + chunks).write_bytes(0, chunks);
        let minima = std::slice::from_raw_parts_mut(keys.add(len), 2 * chunks);
        (std::slice::from_raw_parts(keys, len), minima)
    };
    smallest_keys(k, keys, minima, packed)
}

/// Returns the start of scratch memory as a pointer to `P`, which is sufficiently aligned.
fn scratch_start<P>(scratch: &CpuBuffer) -> Result<*mut P> {
    const { assert!(align_of::<P>() <= pellucid_runtime::allocator::ALIGN) };
    Ok(scratch.ensure()?.as_ptr().cast())
}

/// Sorts packed keys that have the size of `K`. Returns the slice that holds the result: `line` or a part of `other`,
/// which has at least as many elements.
fn sort_packed<'a, K, P: PackedKey>(line: &'a mut [P], other: &'a mut [P]) -> &'a [P] {
    let len = line.len();
    if len < RADIX_MIN_LEN {
        line.sort_unstable();
        return line;
    }
    radix_sort::<K, P>(line, &mut other[..len])
}

/// Sorts by radix, least significant digit first: one stable pass for each byte of the keys, which have the size of
/// `K`, except bytes that are equal in all keys. Returns the slice that holds the result.
fn radix_sort<'a, K, P: PackedKey>(mut from: &'a mut [P], mut to: &'a mut [P]) -> &'a [P] {
    let mut counts = [[0usize; 256]; 8];
    let digits = size_of::<K>();
    for p in from.iter() {
        for (d, counts) in counts[..digits].iter_mut().enumerate() {
            counts[p.digit(d as u32 * 8)] += 1;
        }
    }
    for (d, counts) in counts[..digits].iter_mut().enumerate() {
        let shift = d as u32 * 8;
        if counts[from[0].digit(shift)] == from.len() {
            continue;
        }
        let mut start = 0;
        for count in counts.iter_mut() {
            (*count, start) = (start, start + *count);
        }
        for &p in from.iter() {
            let position = &mut counts[p.digit(shift)];
            to[*position] = p;
            *position += 1;
        }
        (from, to) = (to, from);
    }
    from
}

/// The number of elements of a chunk, which is compared with the bound of top-k in one comparison.
const CHUNK: usize = 16;

per_isa! {
    /// Writes the keys of `len` elements of type `T`, `step` apart, and the minimum key of every [`CHUNK`] of them.
    ///
    /// # Safety
    /// 1. `line` and the `len − 1` pointers that follow it at distance `step` are valid for reads.
    /// 2. `keys` is valid for `len` writes, and `minima` for one write per chunk. No other thread uses this memory.
    /// 3. The processor has the instruction set.
    fn compute_keys[T: Sortable][T](
        line: *const u8, step: isize, len: usize, descending: bool, keys: *mut u64, minima: *mut u64
    ) {
        let line = line.cast::<T>();
        // SAFETY: i < len, so the element is valid for reads (clause 1 of this function's contract) and its key for a
        // write (clause 2). `chunk` is less than the number of chunks, so its minimum is valid for a write (clause 2).
        unsafe {
            for (chunk, start) in (0..len).step_by(CHUNK).enumerate() {
                let mut smallest = u64::MAX;
                for i in start..len.min(start + CHUNK) {
                    let key = directed_key(*line.wrapping_offset(i as isize * step), descending);
                    *keys.add(i) = key;
                    smallest = smallest.min(key);
                }
                *minima.add(chunk) = smallest;
            }
        }
    }
}

/// Returns the `k` smallest keys with their positions, in ascending order.
///
/// The first half of `minima` holds the minimum of every chunk of `keys`; the second half is scratch. If there are at
/// least k chunks, the k-th smallest minimum is a bound: at least k keys are not above it, so the k smallest keys are
/// not above it either. Chunks whose minimum is above the bound are skipped. `packed` has at least as many elements as
/// `keys`.
fn smallest_keys<'a, P: PackedKey>(k: usize, keys: &[u64], minima: &mut [u64], packed: &'a mut [P]) -> &'a [P] {
    let chunks = minima.len() / 2;
    let (minima, ordered) = minima.split_at_mut(chunks);
    ordered.copy_from_slice(minima);
    let bound = if k <= chunks { *ordered.select_nth_unstable(k - 1).1 } else { u64::MAX };
    let mut kept = 0;
    for (chunk, _) in minima.iter().enumerate().filter(|(_, minimum)| **minimum <= bound) {
        let start = chunk * CHUNK;
        for (i, &key) in keys[start..keys.len().min(start + CHUNK)].iter().enumerate() {
            packed[kept] = P::pack(key, start + i);
            kept += usize::from(key <= bound);
        }
    }
    let packed = &mut packed[..kept];
    packed.select_nth_unstable(k - 1);
    packed[..k].sort_unstable();
    &packed[..k]
}
