//! Random numbers by Philox 4×32-10, a counter-based generator: a function from a counter and a key to 128 bits.
//!
//! Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). Draw c of key k is
//! `philox([c, c >> 32, 0, 0], k)`, independently of the thread that computes it. Element i uses word i mod 4 of draw i
//! / 4. A 64-bit element uses two words, so a draw yields two elements.

mod permutation;
#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Distribution, Random};
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{SharedPtr, parallel_ranges};
use pellucid_simd::math::Real;
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::vector::FloatVector;
use pellucid_simd::{Float, InstructionSet, Isa, per_isa};

/// The number of draws of a group. They are computed together, from a vector of counters.
const LANES: usize = 16;
/// The number of words of a group.
const WORDS: usize = 4 * LANES;
/// The minimum number of groups per task.
const GRAIN: usize = 256;

impl CpuFamily for Random {
    /// Advances the state and writes the random values.
    fn run(&self, _: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (state, values) = (&outputs[0], &outputs[1]);
        let isa = Isa::best();
        use Distribution::{Bits, Normal, Permutation, Uniform};
        match (self.distribution, values.dtype) {
            (Uniform, DType::F16) => fill(&generate::<F16, UnitUniform>(isa), state, values),
            (Uniform, DType::BF16) => fill(&generate::<BF16, UnitUniform>(isa), state, values),
            (Uniform, DType::F32) => fill(&generate::<f32, UnitUniform>(isa), state, values),
            (Uniform, DType::F64) => fill(&generate::<f64, UnitUniform>(isa), state, values),
            (Normal, DType::F16) => fill(&generate::<F16, StandardNormal>(isa), state, values),
            (Normal, DType::BF16) => fill(&generate::<BF16, StandardNormal>(isa), state, values),
            (Normal, DType::F32) => fill(&generate::<f32, StandardNormal>(isa), state, values),
            (Normal, DType::F64) => fill(&generate::<f64, StandardNormal>(isa), state, values),
            (Bits, DType::Bool) => fill(&generate::<u8, RandomBool>(isa), state, values),
            (Bits, DType::U8 | DType::I8) => fill(&generate::<u8, RawBits>(isa), state, values),
            (Bits, DType::I16) => fill(&generate::<u16, RawBits>(isa), state, values),
            (Bits, DType::I32) => fill(&generate::<u32, RawBits>(isa), state, values),
            (Bits, DType::I64) => fill(&generate::<u64, RawBits>(isa), state, values),
            (Permutation, DType::I64) => return permutation::permute(state, values),
            (distribution, dtype) => unreachable!("the check must reject {distribution:?} values of {dtype}"),
        }
        Ok(())
    }
}

/// The words of a group: element `[w][i]` is word w of draw i.
type GroupWords = [[u32; LANES]; 4];

/// The functions that compute the elements of a group, compiled for one instruction set.
struct GroupGenerator<T> {
    /// See [`draw_group`].
    draw: unsafe fn([u32; 2], u64, &mut GroupWords),
    /// See [`from_words`].
    convert: unsafe fn(&GroupWords, &mut [T; WORDS]),
}

/// Returns the functions for elements of type T with the distribution D.
fn generate<T, D: FromWords<T>>(isa: Isa) -> GroupGenerator<T> {
    GroupGenerator { draw: draw_group(isa), convert: from_words::<T, D>(isa) }
}

impl<T> GroupGenerator<T> {
    /// Computes the elements of the draws `counter..counter + LANES`.
    ///
    /// # Safety
    /// The processor has the instruction set. There is no other requirement.
    unsafe fn run(&self, key: [u32; 2], counter: u64, out: &mut [T; WORDS]) {
        let mut words = [[0; LANES]; 4];
        // SAFETY: both functions require only the instruction set (this function's contract).
        unsafe {
            (self.draw)(key, counter, &mut words);
            (self.convert)(&words, out);
        }
    }
}

/// Advances the state and fills the output with the elements that `generator` computes.
fn fill<T: Copy>(generator: &GroupGenerator<T>, state: &Operand<'_>, output: &Operand<'_>) {
    let elements = WORDS / Distribution::words_per_element(output.dtype);
    let total = output.shape().size();
    let (key, counter) = advance(state, total.div_ceil(elements / LANES));
    let space = IndexSpace::new(axes(output.shape(), [output.layout]));
    let (first, [step], is_one_run) = (output.first::<T>(), space.step(), space.run_len() == total);
    parallel_ranges(total.div_ceil(elements), GRAIN, |groups| {
        for g in groups {
            let (from, to) = (g * elements, total.min((g + 1) * elements));
            let counter = counter.wrapping_add((g * LANES) as u64);
            let mut buffer = [0u64; WORDS];
            let mut values = buffer.as_mut_ptr().cast::<T>();
            // SAFETY: `buffer` has at least the size and alignment of `[T; WORDS]`, because `T` is a number of at most
            // eight bytes, and every bit pattern is a valid `T`. The generator is compiled for an instruction set of
            // this processor.
            unsafe { generator.run(key, counter, &mut *values.cast()) };
            let mut store = |offset: isize, n: usize| {
                // SAFETY: these `n` elements are within the output, and no other task writes them. The calls for a
                // group store at most `elements` elements, so `values` stays within the buffer.
                unsafe {
                    if step == 1 {
                        first.offset(offset).copy_from_nonoverlapping(values, n);
                    } else {
                        (0..n).for_each(|i| *first.offset(offset + i as isize * step) = *values.add(i));
                    }
                    values = values.add(n);
                }
            };
            if is_one_run {
                store(from as isize * step, to - from);
            } else {
                space.runs(from..to, |[offset], n| store(offset, n));
            }
        }
    });
}

/// Returns the key and the counter of the state, and advances the stored counter by `draws`.
fn advance(state: &Operand<'_>, draws: usize) -> ([u32; 2], u64) {
    let key = state.first::<i64>().get();
    let counter: SharedPtr<i64> = SharedPtr(key.wrapping_offset(state.layout.strides()[0]));
    // SAFETY: the state has two elements, which `key` and `counter` point to. No other thread uses it, because the
    // caller of the kernel holds its borrow word.
    let (key, current) = unsafe { (*key as u64, *counter.get() as u64) };
    // SAFETY: `counter` points to the second element of the state, which no other thread uses.
    unsafe { *counter.get() = current.wrapping_add(draws as u64) as i64 };
    ([key as u32, (key >> 32) as u32], current)
}

/// Computes one round: two 64-bit products, whose high words are combined with the other words and the key.
#[inline(always)]
fn round(c: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    let (a, b) = (c[0] as u64 * M[0], c[2] as u64 * M[1]);
    [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32]
}

/// Returns the key of the next round: a Weyl sequence with the increments of the golden ratio and √3.
#[inline(always)]
fn next_key(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)]
}

per_isa! {
    /// Computes the draws `counter..counter + LANES`.
    ///
    /// # Safety
    /// The processor has the instruction set. There is no other requirement.
    fn draw_group[][](key: [u32; 2], counter: u64, words: &mut GroupWords) {
        let (mut key, mut c) = (key, [[0; LANES]; 4]);
        for i in 0..LANES {
            let counter = counter.wrapping_add(i as u64);
            (c[0][i], c[1][i]) = (counter as u32, (counter >> 32) as u32);
        }
        for _ in 0..10 {
            for i in 0..LANES {
                [c[0][i], c[1][i], c[2][i], c[3][i]] = round([c[0][i], c[1][i], c[2][i], c[3][i]], key);
            }
            key = next_key(key);
        }
        *words = c;
    }
}

/// A conversion from random words to elements of type `T`.
trait FromWords<T> {
    /// Converts the words of a group to its elements, with the instruction set S.
    fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [T; WORDS]);
}

per_isa! {
    /// Converts the words of a group to its elements.
    ///
    /// # Safety
    /// The processor has the instruction set. There is no other requirement.
    fn from_words[T, D: FromWords<T>][T, D]<S>(words: &GroupWords, out: &mut [T; WORDS]) {
        D::convert::<S>(words, out);
    }
}

/// The uniform distribution on [0, 1).
struct UnitUniform;
/// The standard normal distribution.
struct StandardNormal;
/// Uniformly distributed bit patterns.
struct RawBits;
/// True or false, with probability 1/2 each.
struct RandomBool;

/// The number of random bits of a uniform `f32`.
const SINGLE_BITS: u32 = Distribution::unit_bits(DType::F32);
/// The number of random bits of a uniform `f64`.
const DOUBLE_BITS: u32 = Distribution::unit_bits(DType::F64);

/// Converts the upper `bits` bits of a word to a number in [0, 1), exactly.
#[inline(always)]
fn unit(word: u32, bits: u32) -> f32 {
    (word >> (32 - bits)) as i32 as f32 * (1.0 / (1u32 << bits) as f32)
}

/// Joins two words to a 64-bit word.
#[inline(always)]
fn join_words(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Converts the upper [`DOUBLE_BITS`] of two words to a number in [0, 1), exactly.
#[inline(always)]
fn unit_wide(low: u32, high: u32) -> f64 {
    (join_words(low, high) >> (64 - DOUBLE_BITS)) as i64 as f64 * (1.0 / (1u64 << DOUBLE_BITS) as f64)
}

/// Computes two independent normal values from two uniform values in [0, 1) (Box & Muller 1958).
///
/// The logarithm of 1 − u is used, because u may be 0 and ln 0 is infinite. All results are finite, below 5.8 (`f64`:
/// 8.6) in magnitude.
#[inline(always)]
fn box_muller<S: InstructionSet, R: Float>(u: R, v: R) -> (R, R) {
    #[inline(always)]
    fn inlined<R: Float>(u: R, v: R) -> (R, R) {
        let radius = (R::from_f64(-2.0) * (<R as Real>::ONE - u).ln()).sqrt();
        let angle = R::from_f64(std::f64::consts::TAU) * v;
        (radius * angle.cos_fast(), radius * angle.sin_fast())
    }
    /// Computes the same pair in a separate function, for processors without a fused multiply-add, on which inlining
    /// the polynomials gains nothing.
    #[inline(never)]
    fn out_of_line<R: Float>(u: R, v: R) -> (R, R) {
        inlined(u, v)
    }
    if const { <S::FloatVector<R> as FloatVector>::HAS_FMA } { inlined(u, v) } else { out_of_line(u, v) }
}

/// Computes two independent normal values from two words.
#[inline(always)]
fn normal<S: InstructionSet>(a: u32, b: u32) -> (f32, f32) {
    box_muller::<S, f32>(unit(a, SINGLE_BITS), unit(b, SINGLE_BITS))
}

/// Implements [`FromWords`] for types whose elements each use one random word.
macro_rules! one_element_per_word {
    ($($name:ident: $t:ty, |$w:ident| $value:expr;)*) => {$(
        impl FromWords<$t> for $name {
            #[inline(always)]
            fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [$t; WORDS]) {
                for i in 0..LANES {
                    for k in 0..4 {
                        let $w = words[k][i];
                        out[4 * i + k] = $value;
                    }
                }
            }
        }
    )*};
}

one_element_per_word! {
    UnitUniform: f32, |w| unit(w, SINGLE_BITS);
    UnitUniform: F16, |w| F16::from_f32(unit(w, const { Distribution::unit_bits(DType::F16) }));
    UnitUniform: BF16, |w| BF16::from_f32(unit(w, const { Distribution::unit_bits(DType::BF16) }));
    RawBits: u32, |w| w;
    RawBits: u16, |w| (w >> 16) as u16;
    RawBits: u8, |w| (w >> 24) as u8;
    RandomBool: u8, |w| (w >> 31) as u8;
}

impl FromWords<u64> for RawBits {
    #[inline(always)]
    fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [u64; WORDS]) {
        for i in 0..LANES {
            out[2 * i] = join_words(words[0][i], words[1][i]);
            out[2 * i + 1] = join_words(words[2][i], words[3][i]);
        }
    }
}

impl FromWords<f64> for UnitUniform {
    #[inline(always)]
    fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [f64; WORDS]) {
        for i in 0..LANES {
            out[2 * i] = unit_wide(words[0][i], words[1][i]);
            out[2 * i + 1] = unit_wide(words[2][i], words[3][i]);
        }
    }
}

impl FromWords<f64> for StandardNormal {
    #[inline(always)]
    fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [f64; WORDS]) {
        for i in 0..LANES {
            let (u, v) = (unit_wide(words[0][i], words[1][i]), unit_wide(words[2][i], words[3][i]));
            (out[2 * i], out[2 * i + 1]) = box_muller::<S, f64>(u, v);
        }
    }
}

impl FromWords<f32> for StandardNormal {
    #[inline(always)]
    fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [f32; WORDS]) {
        for i in 0..LANES {
            (out[4 * i], out[4 * i + 1]) = normal::<S>(words[0][i], words[1][i]);
            (out[4 * i + 2], out[4 * i + 3]) = normal::<S>(words[2][i], words[3][i]);
        }
    }
}

/// Implements half-precision normal values by rounding `f32` values.
macro_rules! rounded_normal {
    ($($t:ty),*) => {$(
        impl FromWords<$t> for StandardNormal {
            #[inline(always)]
            fn convert<S: InstructionSet>(words: &GroupWords, out: &mut [$t; WORDS]) {
                let mut wide = [0.0; WORDS];
                StandardNormal::convert::<S>(words, &mut wide);
                out.iter_mut().zip(wide).for_each(|(out, x)| *out = <$t>::from_f32(x));
            }
        }
    )*};
}
rounded_normal!(F16, BF16);
