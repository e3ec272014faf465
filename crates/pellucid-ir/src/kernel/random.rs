//! The kernel family [`Random`]: random numbers from a counter-based generator.

use super::{Family, FamilyInfo, KernelOperand, Meta};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The distribution of a [`Random`] kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// Uniform on [0, 1): the upper [`unit_bits`](Distribution::unit_bits) bits of the random words of an element,
    /// scaled. The dtype represents all of these values exactly.
    Uniform,
    /// Standard normal, by the Box–Muller transform (1958).
    Normal,
    /// Uniform over all values of an integer dtype, or over both booleans.
    Bits,
    /// The numbers 0..n in random order, for n values of dtype `i64`. It is determined by the random words r of n
    /// values of [`Distribution::Bits`], with [`bucket_bits`](Distribution::bucket_bits) b:
    ///
    /// 1. The numbers are sorted stably by the upper b bits of their words.
    /// 2. In each bucket of equal upper bits, for the k-th position in ascending order, k ≥ 1, the number there is
    ///    exchanged with the number at position ⌊(k + 1)·f⌋ of the bucket. The fraction f consists of the other bits of
    ///    the word with the index of the position in the array.
    ///
    /// All permutations are equally likely, except for the rounding of the products.
    Permutation,
}

impl Distribution {
    /// Returns the number of random bits of a uniform value of a float dtype. It is the precision of the dtype, so that
    /// no value is rounded up to 1.
    pub const fn unit_bits(dtype: DType) -> u32 {
        match dtype {
            DType::F16 => 11,
            DType::BF16 => 8,
            DType::F64 => 53,
            _ => 24,
        }
    }

    /// Returns the number of bits that select the bucket of a number of a permutation of n numbers. The buckets have
    /// about 2048 to 4096 numbers, but there are at most 2¹¹ buckets.
    pub const fn bucket_bits(n: usize) -> u32 {
        let buckets = n >> 11;
        if buckets < 2 {
            0
        } else if buckets >> 11 > 0 {
            11
        } else {
            buckets.ilog2()
        }
    }

    /// Returns the number of random 32-bit words for one element; a draw of the generator has four words.
    pub const fn words_per_element(dtype: DType) -> usize {
        if dtype.size() == 8 { 2 } else { 1 }
    }
}

/// Random numbers from the generator Philox 4×32-10 (Salmon et al. 2011). They are the same on every device and for
/// every number of threads.
///
/// There are no inputs. The first output is the state of the generator, `i64 [2]` = (key, counter). The kernel reads it
/// and advances it by ⌈n/4⌉ draws for n numbers (⌈n/2⌉ for `f64` and `i64`), even if the numbers are unused. The second
/// output receives the numbers in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Random {
    /// The distribution.
    pub distribution: Distribution,
}

impl Family for Random {
    const FAMILY: &'static str = "random";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { state_outputs: 1, ..FamilyInfo::new(0, 2) }
    }

    fn check<O: KernelOperand>(&self, _: &[O], outputs: &[O]) -> Result<()> {
        let (state, values) = (&outputs[0], &outputs[1]);
        if *state.shape() != [2] || state.dtype() != DType::I64 {
            let reason =
                format!("the state must have dtype i64 and shape [2], got {} {}", state.dtype(), state.shape());
            return Err(Error::invalid("random", reason));
        }
        match (self.distribution, values.dtype().is_float()) {
            (Distribution::Uniform | Distribution::Normal, false) => {
                Err(Error::dtypes("random", [values.dtype()], "uniform and normal values must have a float dtype"))
            }
            (Distribution::Permutation, _) if values.dtype() != DType::I64 => {
                Err(Error::dtypes("random", [values.dtype()], "permutations must be i64"))
            }
            (Distribution::Bits, true) => {
                Err(Error::dtypes("random", [values.dtype()], "random bits must have an integer dtype or bool"))
            }
            _ => Ok(()),
        }
    }

    fn flops(&self, _: &[Meta], _: &[Meta]) -> u64 {
        0
    }
}
