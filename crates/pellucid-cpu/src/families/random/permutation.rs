//! Random permutations.
//!
//! Element i uses the random bits of element i of an `i64` array. The upper bits select a bucket for each number, and
//! the numbers of each bucket are shuffled by the other bits (Rao 1961, Sandelius 1962). Buckets fit the first-level
//! cache, so that the exchanges of the shuffle, which access random positions, are fast.

use super::{RawBits, fill, generate};
use crate::operand::Operand;
use crate::program::copy;
use pellucid_ir::kernel::Distribution;
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_runtime::workspace::with_workspace;
use pellucid_simd::Isa;

/// Advances the state, and writes a random permutation of 0..n to an output of n elements, in row-major order.
///
/// # Errors
/// Returns an error if the memory for the random bits cannot be allocated.
pub(super) fn permute(state: &Operand<'_>, output: &Operand<'_>) -> Result<()> {
    let total = output.shape().size();
    let layout = Layout::contiguous([total].into());
    let bytes = total.checked_mul(size_of::<u64>()).ok_or_else(Error::size_overflow)?;
    let is_dense = output.layout.is_contiguous();
    let copied = if is_dense { 0 } else { bytes };
    with_workspace(bytes.checked_add(copied).ok_or_else(Error::size_overflow)?, |base| {
        let words = Operand { base, layout: &layout, dtype: DType::I64 };
        fill(&generate::<u64, RawBits>(Isa::best()), state, &words);
        let numbers = match is_dense {
            true => *output,
            // The workspace holds both arrays.
            false => Operand { base: base.wrapping_add(bytes), ..words },
        };
        // SAFETY: `words` has `total` initialized elements, which no code writes any more. The elements of `numbers`
        // are contiguous and valid for writes, and belong to the workspace after `words` or to the output, which this
        // task alone accesses.
        unsafe {
            let words = std::slice::from_raw_parts(base.cast::<u64>(), total);
            let first = numbers.first::<i64>().get();
            let bits = Distribution::bucket_bits(total);
            let ends = scatter_numbers(words, bits, first);
            let numbers = std::slice::from_raw_parts_mut(first, total);
            let mut start = 0;
            for end in ends {
                shuffle(&mut numbers[start..end], &words[start..end], bits);
                start = end;
            }
        }
        if is_dense {
            return Ok(());
        }
        copy(&Operand { layout: &Layout::contiguous(output.shape().clone()), ..numbers }, output)
    })
}

/// Writes the numbers of each bucket in ascending order, one bucket after the other. Returns the end of each bucket.
///
/// # Safety
/// `to` is valid for `words.len()` writes, and no other code accesses this memory.
unsafe fn scatter_numbers(words: &[u64], bits: u32, to: *mut i64) -> Vec<usize> {
    let bucket = |word: u64| word.unbounded_shr(u64::BITS - bits) as usize;
    let mut positions = vec![0; 1 << bits];
    words.iter().for_each(|&word| positions[bucket(word)] += 1);
    let mut start = 0;
    for position in &mut positions {
        (*position, start) = (start, start + *position);
    }
    for (number, &word) in words.iter().enumerate() {
        let position = &mut positions[bucket(word)];
        // SAFETY: the positions of each bucket begin at the number of elements of the buckets before, and are
        // incremented once for each element of the bucket, so all positions are distinct and below `words.len()`.
        unsafe { to.add(*position).write(number as i64) };
        *position += 1;
    }
    positions
}

/// Shuffles numbers by the bits of `words` after the upper `bits` (Fisher & Yates 1938, Durstenfeld 1964).
fn shuffle(numbers: &mut [i64], words: &[u64], bits: u32) {
    for (k, &word) in words.iter().enumerate().skip(1) {
        // The product of k + 1 and a fraction is uniform on 0..=k.
        let other = (u128::from(word << bits) * (k as u128 + 1)) >> u64::BITS;
        numbers.swap(k, other as usize);
    }
}
