//! Sorting along one axis: stable, NaN above every number, with positions; and top-k.
//!
//! Every element becomes an unsigned *key* whose order is the wanted one: descending order is the
//! complement, NaN the largest key, and −0 and 0 are one. Key and position packed into one number
//! are all different, so that any sorting algorithm gives the stable order. Long lines are sorted
//! by radix; where only the first k are wanted, the others never enter the sort.

#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::Sort;
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, split};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::per_isa;

/// Below this many elements, comparisons beat counting digits.
const SHORT: usize = 192;

/// Lines of so many bytes, whose elements are not neighbours, no longer stay in the cache while one
/// after the other is sorted.
const FAR: usize = 256;

impl CpuFamily for Sort {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, y, positions) = (self, &inputs[0], &outputs[0], &outputs[1]);
        let (shape, axis) = (x.shape(), kernel.axis);
        let fits = axis < shape.rank()
            && kernel.k <= shape[axis]
            && *y.shape() == shape.with_axis(axis, kernel.k)
            && positions.shape() == y.shape();
        if !fits {
            let help =
                format!("values and positions have length k = {} along axis {axis}, at most the input's", kernel.k);
            return Err(Error::shapes("sort", [shape, y.shape(), positions.shape()], help));
        }
        if y.dtype != x.dtype || positions.dtype != DType::I64 {
            let dtypes = [x.dtype, y.dtype, positions.dtype];
            return Err(Error::dtypes("sort", dtypes, "values have the input's dtype, and positions are i64"));
        }
        Ok(())
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, y, positions) = (self, &inputs[0], &outputs[0], &outputs[1]);
        let (shape, axis) = (x.shape(), kernel.axis);
        if y.shape().contains(&0) {
            return Ok(());
        }
        let across = x.layout.strides()[axis].unsigned_abs() != 1;
        if across && shape[axis] * x.dtype.size() >= FAR {
            return turned(kernel, x, y, positions);
        }
        dispatch(kernel, x, y, positions)
    }
}

/// Sorts with the axis innermost: lines whose elements lie far apart are copied together first.
fn turned(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
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
    program::copy_turned([x, &x_lines], axis, 1);
    dispatch(&Sort { axis: last, ..*kernel }, &x_lines, &y_lines, &p_lines)?;
    program::copy_turned([y, &y_lines], axis, 0);
    program::copy_turned([positions, &p_lines], axis, 0);
    Ok(())
}

fn dispatch(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    match x.dtype {
        DType::F16 => run::<F16>(kernel, x, y, positions),
        DType::BF16 => run::<BF16>(kernel, x, y, positions),
        DType::F32 => run::<f32>(kernel, x, y, positions),
        DType::F64 => run::<f64>(kernel, x, y, positions),
        DType::Bool | DType::U8 => run::<u8>(kernel, x, y, positions),
        DType::I8 => run::<i8>(kernel, x, y, positions),
        DType::I16 => run::<i16>(kernel, x, y, positions),
        DType::I32 => run::<i32>(kernel, x, y, positions),
        DType::I64 => run::<i64>(kernel, x, y, positions),
    }
}

/// An element that can be sorted by an unsigned key of [`Sortable::BITS`] bits.
trait Sortable: Copy + Send + Sync {
    /// Key and position in one number.
    type Packed: Packed;
    const BITS: u32;
    /// The place in ascending order, `None` for NaN.
    fn key(self) -> Option<u64>;
}

/// A key above a position; the number of bits depends on the key's type.
trait Packed: Copy + Ord + Send + Sync + Default {
    /// The longest line whose positions fit.
    const MOST: usize;
    fn pack(key: u64, position: usize) -> Self;
    fn position(self) -> usize;
    /// Eight bits of the key.
    fn digit(self, shift: u32) -> usize;
}

macro_rules! packed {
    ($($t:ty, $bits:literal;)*) => {$(
        impl Packed for $t {
            const MOST: usize = ((1u128 << $bits) - 1) as usize;
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
packed! { u64, 32; u128, 64; }

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

/// Floats as integers of the same order: negative ones have all their bits turned, others the sign.
/// Adding 0 makes −0 positive.
macro_rules! float_key {
    ($x:expr, $signed:ty, $unsigned:ty) => {{
        let x = $x + 0.0;
        let bits = x.to_bits() as $signed;
        let mask = (bits >> (<$signed>::BITS - 1)) | <$signed>::MIN;
        (x == x).then_some((bits ^ mask) as $unsigned as u64)
    }};
}

/// As [`float_key`], from the bits; beyond those of infinity are NaNs.
macro_rules! half_key {
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
    F16: u64, 16, |x| half_key!(x.0, 0x7c00);
    BF16: u64, 16, |x| half_key!(x.0, 0x7f80);
}

/// The key in the wanted direction. NaN is the largest, so it comes first in descending order.
#[inline(always)]
fn directed<T: Sortable>(x: T, descending: bool) -> u64 {
    let largest = u64::MAX >> (64 - T::BITS);
    // No float has the largest key.
    let key = x.key().unwrap_or(largest);
    if descending { largest - key } else { key }
}

fn run<T: Sortable>(kernel: &Sort, x: &Operand<'_>, y: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    // Lines of more than 2³² elements pack like 64-bit keys.
    if x.shape()[kernel.axis] <= T::Packed::MOST {
        lines::<T, T::Packed>(kernel, x, y, positions)
    } else {
        lines::<T, u128>(kernel, x, y, positions)
    }
}

fn lines<T: Sortable, P: Packed>(
    kernel: &Sort,
    x: &Operand<'_>,
    y: &Operand<'_>,
    positions: &Operand<'_>,
) -> Result<()> {
    let (shape, axis, k) = (x.shape(), kernel.axis, kernel.k);
    let len = shape[axis];
    let layouts = [x.layout, y.layout, positions.layout];
    let [x_along, y_along, p_along] = layouts.map(|l| l.strides()[axis]);
    let space = IndexSpace::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
    let step = space.step();
    let (x, y, positions) = (x.first::<T>(), y.first::<T>(), positions.first::<i64>());
    // Scratch for all parts of the work, so that its failure comes before any write.
    let parts = if len * space.len() * size_of::<P>() < 2 * GRAIN { 1 } else { threads::count().min(space.len()) };
    let few = k < len / 4;
    let room = if few { len } else { 2 * len };
    let scratch = CpuBuffer::scratch(parts.saturating_mul(room).saturating_mul(size_of::<P>()))?;
    let scratch = SharedPtr(scratch_start::<P>(&scratch)?);
    let each_keys = if few { len + 2 * len.div_ceil(TOGETHER) } else { 0 };
    let all_keys = CpuBuffer::scratch(parts.saturating_mul(each_keys).saturating_mul(size_of::<u64>()))?;
    let all_keys = SharedPtr(scratch_start::<u64>(&all_keys)?);
    let find = keys::<T>(Isa::best());
    split(parts, 1, |part| {
        for part in part {
            // SAFETY: every part has `room` elements of its own, which are initialised here.
            let room = unsafe {
                let start = scratch.at((part * room) as isize);
                (0..room).for_each(|i| start.add(i).write(P::default()));
                std::slice::from_raw_parts_mut(start, room)
            };
            let keys = all_keys.at((part * each_keys) as isize);
            let range = space.len() * part / parts..space.len() * (part + 1) / parts;
            space.runs(range, |at, n| {
                for line in 0..n as isize {
                    let at: [isize; 3] = std::array::from_fn(|o| at[o] + line * step[o]);
                    // SAFETY: line and position are within the operand's shape.
                    let value = |i: usize| unsafe { *x.at(at[0] + i as isize * x_along) };
                    let sorted = if few {
                        // SAFETY: the line is within the operand's shape, the isa is this machine's, and there is
                        // room for all keys and twice their chunks.
                        unsafe { find(x.at(at[0]), x_along, len, kernel.descending, keys, keys.add(len)) }
                        // SAFETY: as above; they are initialised, the second half of the chunks' by zeros.
                        let (keys, least) = unsafe {
                            let chunks = len.div_ceil(TOGETHER);
                            keys.add(len + chunks).write_bytes(0, chunks);
                            let least = std::slice::from_raw_parts_mut(keys.add(len), 2 * chunks);
                            (std::slice::from_raw_parts(keys, len), least)
                        };
                        first(k, keys, least, room)
                    } else {
                        all(len, |i| P::pack(directed(value(i), kernel.descending), i), room, T::BITS)
                    };
                    for (i, position) in sorted[..k].iter().map(|p| p.position()).enumerate() {
                        let i = i as isize;
                        // SAFETY: as above; no other part has this line.
                        unsafe {
                            *y.at(at[1] + i * y_along) = value(position);
                            *positions.at(at[2] + i * p_along) = position as i64;
                        }
                    }
                }
            });
        }
    });
    Ok(())
}

fn scratch_start<P>(scratch: &CpuBuffer) -> Result<*mut P> {
    const { assert!(align_of::<P>() <= pellucid_runtime::allocator::ALIGN) };
    Ok(scratch.ensure()?.as_ptr().cast())
}

/// All elements in order.
fn all<P: Packed>(len: usize, packed: impl Fn(usize) -> P, room: &mut [P], bits: u32) -> &[P] {
    let (a, b) = room.split_at_mut(len);
    let b = &mut b[..len];
    a.iter_mut().enumerate().for_each(|(i, p)| *p = packed(i));
    if len < SHORT {
        a.sort_unstable();
        return a;
    }
    radix(a, b, bits)
}

/// Least significant digit first: one stable pass for each byte of the keys, but for bytes that all
/// keys share. Gives the slice that holds the result.
fn radix<'a, P: Packed>(mut from: &'a mut [P], mut to: &'a mut [P], bits: u32) -> &'a [P] {
    let mut counts = [[0usize; 256]; 8];
    let digits = bits as usize / 8;
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
            let place = &mut counts[p.digit(shift)];
            to[*place] = p;
            *place += 1;
        }
        (from, to) = (to, from);
    }
    from
}

/// Elements that are compared with the bound together.
const TOGETHER: usize = 16;

per_isa! {
    /// The keys of `len` elements, and the least of each [`TOGETHER`] of them.
    fn keys[T: Sortable][T](line: *const T, step: isize, len: usize, descending: bool, keys: *mut u64, least: *mut u64) {
        // SAFETY: there are so many elements, and room for their keys, the caller says.
        unsafe {
            for (chunk, start) in (0..len).step_by(TOGETHER).enumerate() {
                let mut smallest = u64::MAX;
                for i in start..len.min(start + TOGETHER) {
                    let key = directed(*line.wrapping_offset(i as isize * step), descending);
                    *keys.add(i) = key;
                    smallest = smallest.min(key);
                }
                *least.add(chunk) = smallest;
            }
        }
    }
}

/// The first `k` in order. Of the chunks' least keys, k are not above the k-th of them: nor are the first k of all. What
/// is above is passed chunk by chunk.
fn first<'a, P: Packed>(k: usize, keys: &[u64], least: &mut [u64], room: &'a mut [P]) -> &'a [P] {
    let chunks = least.len() / 2;
    let (least, ordered) = least.split_at_mut(chunks);
    ordered.copy_from_slice(least);
    let bound = if k <= chunks { *ordered.select_nth_unstable(k - 1).1 } else { u64::MAX };
    let mut kept = 0;
    for (chunk, _) in least.iter().enumerate().filter(|(_, least)| **least <= bound) {
        let start = chunk * TOGETHER;
        for (i, &key) in keys[start..keys.len().min(start + TOGETHER)].iter().enumerate() {
            room[kept] = P::pack(key, start + i);
            kept += usize::from(key <= bound);
        }
    }
    let room = &mut room[..kept];
    room.select_nth_unstable(k - 1);
    room[..k].sort_unstable();
    &room[..k]
}
