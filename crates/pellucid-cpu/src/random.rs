//! Random numbers: Philox 4×32-10, a function from a counter and a key to 128 bits.
//!
//! Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). Draw number c
//! of key k is `philox([c, c >> 32, 0, 0], k)`, whoever computes it: element i of the numbers takes
//! word i mod 4 of draw i / 4 (64-bit elements a pair of words, two elements a draw).

use crate::math::Real;
use crate::math::half::{BF16, F16};
use crate::operand::{Array, Operand};
use crate::simd::Level;
use crate::threads::{Ptr, split};
use crate::walk::{Space, axes};
use pellucid_ir::kernel::{Distribution, Random};
use pellucid_ir::{DType, Error, Result};

/// Draws that are computed together: a vector of counters.
const LANES: usize = 16;
/// Words of such a group.
const WORDS: usize = 4 * LANES;
/// Groups that are worth a task.
const GRAIN: usize = 256;

/// Runs a random kernel: advances `state`, fills `numbers`.
pub(crate) fn random(kernel: &Random, state: &Operand<'_>, numbers: &Operand<'_>) -> Result<()> {
    if *state.shape() != [2] || state.dtype != DType::I64 {
        return Err(Error::invalid("random", format!("the state is i64 [2], not {} {}", state.dtype, state.shape())));
    }
    let level = Level::detect();
    use Distribution::{Bits, Normal, Uniform};
    match (kernel.distribution, numbers.dtype) {
        (Uniform, DType::F16) => fill(generate::<F16, OnUnit>(level), state, numbers),
        (Uniform, DType::BF16) => fill(generate::<BF16, OnUnit>(level), state, numbers),
        (Uniform, DType::F32) => fill(generate::<f32, OnUnit>(level), state, numbers),
        (Uniform, DType::F64) => fill(generate::<f64, OnUnit>(level), state, numbers),
        (Normal, DType::F16) => fill(generate::<F16, Gauss>(level), state, numbers),
        (Normal, DType::BF16) => fill(generate::<BF16, Gauss>(level), state, numbers),
        (Normal, DType::F32) => fill(generate::<f32, Gauss>(level), state, numbers),
        (Normal, DType::F64) => fill(generate::<f64, Gauss>(level), state, numbers),
        (Bits, DType::Bool) => fill(generate::<u8, Coin>(level), state, numbers),
        (Bits, DType::U8 | DType::I8) => fill(generate::<u8, Words>(level), state, numbers),
        (Bits, DType::I16) => fill(generate::<u16, Words>(level), state, numbers),
        (Bits, DType::I32) => fill(generate::<u32, Words>(level), state, numbers),
        (Bits, DType::I64) => fill(generate::<u64, Words>(level), state, numbers),
        (Uniform | Normal, dtype) => {
            return Err(Error::dtypes("random", [dtype], "uniform and normal numbers are floats"));
        }
        (Bits, dtype) => return Err(Error::dtypes("random", [dtype], "random bits are for integers and masks")),
    }
    Ok(())
}

/// The elements of the group of draws that begins at a counter: `(key, counter, out)`.
type Group<T> = unsafe fn([u32; 2], u64, &mut [T; WORDS]);

fn fill<T: Copy>(group: Group<T>, state: &Operand<'_>, numbers: &Operand<'_>) {
    // Elements of a group: one a word, or one every two words.
    let elements = if size_of::<T>() == 8 { WORDS / 2 } else { WORDS };
    let total = numbers.shape().size();
    let (key, counter) = advance(state, total.div_ceil(elements / LANES));
    let space = Space::new(axes(numbers.shape(), [numbers.layout]));
    let (first, [step], dense) = (numbers.first::<T>(), space.step(), space.run() == total);
    split(total.div_ceil(elements), GRAIN, |groups| {
        for g in groups {
            let (from, to) = (g * elements, total.min((g + 1) * elements));
            let counter = counter.wrapping_add((g * LANES) as u64);
            let mut buffer = [0u64; WORDS];
            let mut values = buffer.as_mut_ptr().cast::<T>();
            // SAFETY: T is a number of at most eight bytes, for which any bits will do; the level is
            // this machine's.
            unsafe { group(key, counter, &mut *values.cast()) };
            let mut put = |at: isize, n: usize| {
                // SAFETY: these elements of the operand are nobody else's; the group has as many.
                unsafe {
                    if step == 1 {
                        first.at(at).copy_from_nonoverlapping(values, n);
                    } else {
                        (0..n).for_each(|i| *first.at(at + i as isize * step) = *values.add(i));
                    }
                    values = values.add(n);
                }
            };
            if dense {
                put(from as isize * step, to - from);
            } else {
                space.runs(from..to, |[at], n| put(at, n));
            }
        }
    });
}

/// Reads (key, counter) and moves the counter on.
fn advance(state: &Operand<'_>, draws: usize) -> ([u32; 2], u64) {
    let key = state.first::<i64>().get();
    let counter: Ptr<i64> = Ptr(key.wrapping_offset(state.layout.strides()[0]));
    // SAFETY: the state has two elements, and this kernel alone uses it.
    let (key, now) = unsafe { (*key as u64, *counter.get() as u64) };
    // SAFETY: as above.
    unsafe { *counter.get() = now.wrapping_add(draws as u64) as i64 };
    ([key as u32, (key >> 32) as u32], now)
}

/// One round on the words of a counter: two products, their halves crossed over and keyed.
#[inline(always)]
fn round(c: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    let (a, b) = (c[0] as u64 * M[0], c[2] as u64 * M[1]);
    [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32]
}

/// The key of the next round: a Weyl sequence of the golden ratio and √3.
#[inline(always)]
fn next_key(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)]
}

/// The draws `counter..counter + LANES`, word by word: `words[w][i]` is word w of draw i.
#[inline(always)]
fn draws(mut key: [u32; 2], counter: u64) -> [[u32; LANES]; 4] {
    let mut c = [[0; LANES]; 4];
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
    c
}

/// Words to numbers of type `T`.
trait Numbers<T> {
    fn from_words(words: &[[u32; LANES]; 4], out: &mut [T; WORDS]);
}

per_level! {
    fn generate[T, N: Numbers<T>][T, N](key: [u32; 2], counter: u64, out: &mut [T; WORDS]) {
        N::from_words(&draws(key, counter), out);
    }
}

/// Uniform on [0, 1).
struct OnUnit;
/// Standard normal.
struct Gauss;
/// All bit patterns.
struct Words;
/// True or false.
struct Coin;

/// The upper `bits` bits of a word as a real number of [0, 1), exactly.
#[inline(always)]
fn unit(word: u32, bits: u32) -> f32 {
    (word >> (32 - bits)) as i32 as f32 * (1.0 / (1u32 << bits) as f32)
}

/// Two words as one, the second above the first.
#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The upper 53 bits of two words as a real number of [0, 1), exactly.
#[inline(always)]
fn unit_wide(low: u32, high: u32) -> f64 {
    (join(low, high) >> 11) as i64 as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Two independent normal numbers of two uniform ones (Box & Muller 1958). `u` is taken from the
/// other end, since ln 0 is infinite: the numbers are finite, below 5.8 (`f64`: 8.6).
#[inline(always)]
fn box_muller<R: Real>(u: R, v: R, minus_two: R, two_pi: R) -> (R, R) {
    let radius = (minus_two * (R::ONE - u).ln()).sqrt();
    let angle = two_pi * v;
    (radius * angle.cos_fast(), radius * angle.sin_fast())
}

#[inline(always)]
fn normal(a: u32, b: u32) -> (f32, f32) {
    box_muller(unit(a, 24), unit(b, 24), -2.0, std::f32::consts::TAU)
}

/// One number of each word.
macro_rules! of_words {
    ($($name:ident: $t:ty, |$w:ident| $value:expr;)*) => {$(
        impl Numbers<$t> for $name {
            #[inline(always)]
            fn from_words(words: &[[u32; LANES]; 4], out: &mut [$t; WORDS]) {
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

of_words! {
    OnUnit: f32, |w| unit(w, 24);
    // As many bits as the significand has: none of these is rounded up to 1.
    OnUnit: F16, |w| F16::from_f32(unit(w, 11));
    OnUnit: BF16, |w| BF16::from_f32(unit(w, 8));
    Words: u32, |w| w;
    Words: u16, |w| (w >> 16) as u16;
    Words: u8, |w| (w >> 24) as u8;
    Coin: u8, |w| (w >> 31) as u8;
}

impl Numbers<u64> for Words {
    #[inline(always)]
    fn from_words(words: &[[u32; LANES]; 4], out: &mut [u64; WORDS]) {
        for i in 0..LANES {
            out[2 * i] = join(words[0][i], words[1][i]);
            out[2 * i + 1] = join(words[2][i], words[3][i]);
        }
    }
}

impl Numbers<f64> for OnUnit {
    #[inline(always)]
    fn from_words(words: &[[u32; LANES]; 4], out: &mut [f64; WORDS]) {
        for i in 0..LANES {
            out[2 * i] = unit_wide(words[0][i], words[1][i]);
            out[2 * i + 1] = unit_wide(words[2][i], words[3][i]);
        }
    }
}

impl Numbers<f64> for Gauss {
    #[inline(always)]
    fn from_words(words: &[[u32; LANES]; 4], out: &mut [f64; WORDS]) {
        for i in 0..LANES {
            let (u, v) = (unit_wide(words[0][i], words[1][i]), unit_wide(words[2][i], words[3][i]));
            (out[2 * i], out[2 * i + 1]) = box_muller(u, v, -2.0, std::f64::consts::TAU);
        }
    }
}

impl Numbers<f32> for Gauss {
    #[inline(always)]
    fn from_words(words: &[[u32; LANES]; 4], out: &mut [f32; WORDS]) {
        for i in 0..LANES {
            (out[4 * i], out[4 * i + 1]) = normal(words[0][i], words[1][i]);
            (out[4 * i + 2], out[4 * i + 3]) = normal(words[2][i], words[3][i]);
        }
    }
}

/// Half types round the normal numbers of `f32`.
macro_rules! rounded {
    ($($t:ty),*) => {$(
        impl Numbers<$t> for Gauss {
            #[inline(always)]
            fn from_words(words: &[[u32; LANES]; 4], out: &mut [$t; WORDS]) {
                let mut wide = [0.0; WORDS];
                Gauss::from_words(words, &mut wide);
                out.iter_mut().zip(wide).for_each(|(out, x)| *out = <$t>::from_f32(x));
            }
        }
    )*};
}
rounded!(F16, BF16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Choices, Lie};
    use crate::with_threads;
    use pellucid_ir::kernel::Kernel;
    use pellucid_ir::{Element, Shape};

    fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
        for _ in 0..10 {
            counter = round(counter, key);
            key = next_key(key);
        }
        counter
    }

    fn go(
        distribution: Distribution,
        shape: &Shape,
        dtype: DType,
        lie: Lie,
        at: [i64; 2],
    ) -> (testing::Array, Vec<i64>) {
        let state = testing::Array::of([2], Lie::Plain, &at);
        let numbers = testing::Array::new(shape.clone(), dtype, lie);
        testing::run(Kernel::Random(Random { distribution }), &[], &[&state, &numbers]).unwrap();
        let state = state.values();
        (numbers, state)
    }

    fn draw<T: Element>(distribution: Distribution, n: usize, at: [i64; 2]) -> Vec<T> {
        go(distribution, &[n].into(), T::DTYPE, Lie::Plain, at).0.values()
    }

    #[test]
    fn philox_gives_the_published_vectors() {
        // Random123, tests/kat_vectors.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let (counter, key) = ([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]);
        assert_eq!(philox(counter, key), [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn element_i_is_word_i_of_the_counters_stream() {
        let (key, counter) = (0x0123_4567_89ab_cdef_i64, (1i64 << 32) - 3);
        let word = |i: u64| {
            let c = counter as u64 + i / 4;
            philox([c as u32, (c >> 32) as u32, 0, 0], [key as u32, (key >> 32) as u32])[i as usize % 4]
        };
        for level in Level::available() {
            let mut out = [0; WORDS];
            // SAFETY: the level is available.
            unsafe { generate::<u32, Words>(*level)([key as u32, (key >> 32) as u32], counter as u64, &mut out) };
            assert!(out.iter().enumerate().all(|(i, &w)| w == word(i as u64)), "{level:?}");
        }
        let bits: Vec<i32> = draw(Distribution::Bits, 1001, [key, counter]);
        assert!(bits.iter().enumerate().all(|(i, &b)| b as u32 == word(i as u64)));
        let wide: Vec<i64> = draw(Distribution::Bits, 101, [key, counter]);
        assert!(wide.iter().enumerate().all(|(i, &b)| b as u64 == join(word(2 * i as u64), word(2 * i as u64 + 1))));
        let unit: Vec<f32> = draw(Distribution::Uniform, 1001, [key, counter]);
        assert!(unit.iter().enumerate().all(|(i, &u)| u == (word(i as u64) >> 8) as f32 / 16_777_216.0));
        let bytes: Vec<u8> = draw(Distribution::Bits, 9, [key, counter]);
        assert!(bytes.iter().enumerate().all(|(i, &b)| b == (word(i as u64) >> 24) as u8));
    }

    #[test]
    fn the_state_advances_by_the_draws_and_continues_the_stream() {
        for (n, dtype, draws) in
            [(0, DType::F32, 0), (1, DType::F32, 1), (9, DType::F16, 3), (9, DType::F64, 5), (8, DType::F64, 4)]
        {
            let (_, state) = go(Distribution::Uniform, &[n].into(), dtype, Lie::Plain, [7, -1]);
            assert_eq!(state, [7, -1 + draws], "{n} {dtype}");
        }
        let all: Vec<f64> = draw(Distribution::Normal, 200, [5, 0]);
        assert_eq!(all[64..], draw::<f64>(Distribution::Normal, 136, [5, 32]));
    }

    #[test]
    fn layouts_and_threads_change_no_number() {
        let shape = Shape::from([37, 11, 100]);
        for distribution in [Distribution::Uniform, Distribution::Normal] {
            for dtype in [DType::F16, DType::F32, DType::F64] {
                let plain = go(distribution, &shape, dtype, Lie::Plain, [1, 2]).0.reals();
                for lie in Lie::ALL {
                    let other = with_threads(3, || go(distribution, &shape, dtype, lie, [1, 2]).0.reals());
                    assert_eq!(plain, other, "{dtype} {lie:?}");
                }
            }
        }
        assert_eq!(go(Distribution::Uniform, &().into(), DType::F32, Lie::Plain, [0, 0]).0.reals().len(), 1);
    }

    #[test]
    fn sweep_of_lengths_is_the_beginning_of_one_stream() {
        use Distribution::{Bits, Normal, Uniform};
        let choices = &Choices::new(81);
        for dtype in DType::ALL {
            for distribution in if dtype.is_float() { &[Uniform, Normal][..] } else { &[Bits] } {
                let of = |shape: &Shape, lie| go(*distribution, shape, dtype, lie, [3, 4]).0.reals();
                let whole = of(&[40_000].into(), Lie::Plain);
                for n in (1..=70).chain([127, 128, 129, 1000, 40_000]) {
                    let (lie, threads) = (choices.of(&Lie::ALL), choices.threads());
                    let rows = if n % 5 == 0 { 5 } else { 1 };
                    let found = with_threads(threads, || of(&[rows, n / rows].into(), lie));
                    assert!(found == whole[..n], "{n} {dtype} {distribution:?} {lie:?} {threads} threads");
                }
            }
        }
    }

    #[test]
    fn levels_change_no_bit_of_normal_numbers() {
        for counter in (0..100_000).step_by(LANES) {
            let of = |level: &Level| {
                let (mut single, mut double) = ([0f32; WORDS], [0f64; WORDS]);
                // SAFETY: the level is available.
                unsafe {
                    generate::<f32, Gauss>(*level)([3, 4], counter, &mut single);
                    generate::<f64, Gauss>(*level)([3, 4], counter, &mut double);
                }
                (single.map(f32::to_bits), double.map(f64::to_bits))
            };
            let first = of(&Level::Portable);
            assert!(Level::available().iter().all(|level| of(level) == first));
        }
    }

    #[test]
    fn moments_and_range_are_those_of_the_distribution() {
        let n = 1_000_000;
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let moments = |distribution| {
                let x = go(distribution, &[n].into(), dtype, Lie::Plain, [11, 0]).0.reals();
                let mean = x.iter().sum::<f64>() / n as f64;
                let power = |p| x.iter().map(|x| (x - mean).powi(p)).sum::<f64>() / n as f64;
                (mean, power(2), power(3), power(4), x)
            };
            let (mean, variance, _, _, x) = moments(Distribution::Uniform);
            assert!(x.iter().all(|x| (0.0..1.0).contains(x)), "{dtype}");
            // The grid of bf16 has 256 points, and its mean is half a step below ½.
            assert!((mean - 0.5).abs() < 3e-3 && (variance - 1.0 / 12.0).abs() < 1e-3, "{dtype} {mean} {variance}");
            let (mean, variance, third, fourth, x) = moments(Distribution::Normal);
            assert!(x.iter().all(|x| x.is_finite()));
            assert!(mean.abs() < 4e-3 && (variance - 1.0).abs() < 6e-3, "{dtype} {mean} {variance}");
            assert!(third.abs() < 0.02 && (fourth - 3.0).abs() < 0.05, "{dtype} {third} {fourth}");
        }
        let heads = draw::<bool>(Distribution::Bits, n, [0, 0]).into_iter().filter(|&b| b).count();
        assert!((heads as f64 / n as f64 - 0.5).abs() < 2e-3);
    }

    #[test]
    fn what_a_distribution_is_not_for_is_refused_and_leaves_the_state() {
        for (distribution, dtype) in
            [(Distribution::Uniform, DType::I32), (Distribution::Normal, DType::Bool), (Distribution::Bits, DType::F32)]
        {
            let state = testing::Array::of([2], Lie::Plain, &[1i64, 2]);
            let numbers = testing::Array::new([4], dtype, Lie::Plain);
            let result = testing::run(Kernel::Random(Random { distribution }), &[], &[&state, &numbers]);
            assert!(matches!(result, Err(Error::DTypeMismatch { .. })));
            assert_eq!(state.values::<i64>(), [1, 2]);
        }
    }
}
