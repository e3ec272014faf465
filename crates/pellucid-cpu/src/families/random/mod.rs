//! Random numbers: Philox 4×32-10, a function from a counter and a key to 128 bits.
//!
//! Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). Draw number c
//! of key k is `philox([c, c >> 32, 0, 0], k)`, whoever computes it: element i of the numbers takes
//! word i mod 4 of draw i / 4 (64-bit elements a pair of words, two elements a draw).

#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::{Array, Operand};
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Distribution, Random};
use pellucid_ir::{DType, Error, Result};
use pellucid_runtime::threads::{SharedPtr, split};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::per_isa;

/// Draws that are computed together: a vector of counters.
const LANES: usize = 16;
/// Words of such a group.
const WORDS: usize = 4 * LANES;
/// Groups that are worth a task.
const GRAIN: usize = 256;

impl CpuFamily for Random {
    fn check(&self, _: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (state, numbers) = (&outputs[0], &outputs[1]);
        if *state.shape() != [2] || state.dtype != DType::I64 {
            return Err(Error::invalid(
                "random",
                format!("the state is i64 [2], not {} {}", state.dtype, state.shape()),
            ));
        }
        match (self.distribution, numbers.dtype.is_float()) {
            (Distribution::Uniform | Distribution::Normal, false) => {
                Err(Error::dtypes("random", [numbers.dtype], "uniform and normal numbers are floats"))
            }
            (Distribution::Bits, true) => {
                Err(Error::dtypes("random", [numbers.dtype], "random bits are for integers and masks"))
            }
            _ => Ok(()),
        }
    }

    /// Advances the state and fills the numbers.
    fn run(&self, _: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (state, numbers) = (&outputs[0], &outputs[1]);
        let isa = Isa::best();
        use Distribution::{Bits, Normal, Uniform};
        match (self.distribution, numbers.dtype) {
            (Uniform, DType::F16) => fill(generate::<F16, OnUnit>(isa), state, numbers),
            (Uniform, DType::BF16) => fill(generate::<BF16, OnUnit>(isa), state, numbers),
            (Uniform, DType::F32) => fill(generate::<f32, OnUnit>(isa), state, numbers),
            (Uniform, DType::F64) => fill(generate::<f64, OnUnit>(isa), state, numbers),
            (Normal, DType::F16) => fill(generate::<F16, Gauss>(isa), state, numbers),
            (Normal, DType::BF16) => fill(generate::<BF16, Gauss>(isa), state, numbers),
            (Normal, DType::F32) => fill(generate::<f32, Gauss>(isa), state, numbers),
            (Normal, DType::F64) => fill(generate::<f64, Gauss>(isa), state, numbers),
            (Bits, DType::Bool) => fill(generate::<u8, Coin>(isa), state, numbers),
            (Bits, DType::U8 | DType::I8) => fill(generate::<u8, Words>(isa), state, numbers),
            (Bits, DType::I16) => fill(generate::<u16, Words>(isa), state, numbers),
            (Bits, DType::I32) => fill(generate::<u32, Words>(isa), state, numbers),
            (Bits, DType::I64) => fill(generate::<u64, Words>(isa), state, numbers),
            (distribution, dtype) => unreachable!("{distribution:?} numbers of {dtype} have been refused"),
        }
        Ok(())
    }
}

/// The elements of the group of draws that begins at a counter: `(key, counter, out)`.
type Group<T> = unsafe fn([u32; 2], u64, &mut [T; WORDS]);

fn fill<T: Copy>(group: Group<T>, state: &Operand<'_>, numbers: &Operand<'_>) {
    // Elements of a group: one a word, or one every two words.
    let elements = if size_of::<T>() == 8 { WORDS / 2 } else { WORDS };
    let total = numbers.shape().size();
    let (key, counter) = advance(state, total.div_ceil(elements / LANES));
    let space = IndexSpace::new(axes(numbers.shape(), [numbers.layout]));
    let (first, [step], dense) = (numbers.first::<T>(), space.step(), space.run() == total);
    split(total.div_ceil(elements), GRAIN, |groups| {
        for g in groups {
            let (from, to) = (g * elements, total.min((g + 1) * elements));
            let counter = counter.wrapping_add((g * LANES) as u64);
            let mut buffer = [0u64; WORDS];
            let mut values = buffer.as_mut_ptr().cast::<T>();
            // SAFETY: T is a number of at most eight bytes, for which any bits will do; the isa is
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
    let counter: SharedPtr<i64> = SharedPtr(key.wrapping_offset(state.layout.strides()[0]));
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

per_isa! {
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
