//! Compares every loop on every instruction set with the scalar functions, bit for bit, and the canonical reduction
//! order with its definition.

#![allow(clippy::type_complexity)]

mod conversions;
mod elementwise;
mod fused;
mod reductions;

use super::loop_element::LoopElement;
use super::*;
use pellucid_ir::{Compute, DType};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};

const ALL: [Compute; 5] = [Compute::Mask, Compute::I32, Compute::I64, Compute::F32, Compute::F64];

/// Pseudorandom numbers, the same in every run (SplitMix64; Steele, Lea & Flood 2014).
struct TestRng(u64);
impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns `n` values of a dtype: special values, moderate values and arbitrary bit patterns.
fn values(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    let mut random = TestRng(seed);
    let mut bytes = vec![];
    for _ in 0..n {
        let r = random.next();
        let moderate = (r >> 32) as i32 as f64 / 2f64.powi(28);
        let special = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 1e5, -3e38, 1e-40];
        let float = match r % 4 {
            0 => special[(r >> 8) as usize % special.len()],
            _ => moderate,
        };
        let any = r % 4 == 1;
        let int = if any { (r >> 2) as i64 } else { (r >> 40) as i64 % 40 - 20 };
        match dtype {
            DType::Bool => bytes.push((r >> 9) as u8 & 1),
            DType::U8 | DType::I8 => bytes.push(int as u8),
            DType::I16 | DType::F16 | DType::BF16 => bytes.extend(((r >> 11) as u16).to_ne_bytes()),
            DType::I32 => bytes.extend((int as i32).to_ne_bytes()),
            DType::I64 => bytes.extend(int.to_ne_bytes()),
            DType::F32 if any => bytes.extend(((r >> 3) as u32).to_ne_bytes()),
            DType::F32 => bytes.extend((float as f32).to_ne_bytes()),
            DType::F64 if any => bytes.extend(r.rotate_left(7).to_ne_bytes()),
            DType::F64 => bytes.extend(float.to_ne_bytes()),
        }
    }
    bytes
}

/// Asserts that all elements are bitwise equal; all NaNs are considered equal.
fn assert_same(dtype: DType, got: &[u8], want: &[u8], context: &str) {
    let size = dtype.size();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        let nan = |b: &[u8]| match dtype {
            DType::F16 => F16(u16::from_ne_bytes([b[0], b[1]])).to_f32().is_nan(),
            DType::BF16 => BF16(u16::from_ne_bytes([b[0], b[1]])).to_f32().is_nan(),
            DType::F32 => f32::from_ne_bytes(b.try_into().unwrap()).is_nan(),
            DType::F64 => f64::from_ne_bytes(b.try_into().unwrap()).is_nan(),
            _ => false,
        };
        assert!(g == w || (nan(g) && nan(w)), "{context}, element {i} of {}: got {g:?}, want {w:?}", got.len() / size);
    }
}

/// A copy of `bytes` at an unaligned address, with guard bytes before and after it.
struct GuardedBytes(Vec<u8>, usize);
impl GuardedBytes {
    fn new(bytes: &[u8], shift: usize) -> GuardedBytes {
        let mut v = vec![0xa5; shift];
        v.extend(bytes);
        v.extend([0xa5; 16]);
        GuardedBytes(v, bytes.len())
    }
    fn ptr(&mut self) -> *mut u8 {
        let shift = self.0.len() - self.1 - 16;
        self.0[shift..].as_mut_ptr()
    }
    /// Checks that the guard bytes are unchanged, and returns the contents.
    fn into_contents(self) -> Vec<u8> {
        let shift = self.0.len() - self.1 - 16;
        let (before, rest) = self.0.split_at(shift);
        let (inside, after) = rest.split_at(self.1);
        assert!(before.iter().chain(after).all(|&b| b == 0xa5), "a guard byte was overwritten");
        inside.to_vec()
    }
}

const COUNTS: [usize; 17] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 70, 200, 643, 2115];

/// Runs a loop of up to three operands for all counts, at shifted addresses and in place, and compares it with the
/// portable loop on one element at a time.
fn check_loop<const S: usize>(
    context: &str,
    types: [(DType, bool); S],
    out: DType,
    scalar: &dyn Fn(*mut u8, [*const u8; S], usize),
    run: &dyn Fn(*mut u8, [*const u8; S], usize),
) {
    for (k, &n) in COUNTS.iter().enumerate() {
        let data: Vec<Vec<u8>> = types
            .iter()
            .enumerate()
            .map(|(s, t)| values(t.0, if t.1 { n } else { 1 }, 1 + (k * 3 + s) as u64))
            .collect();
        let mut want = vec![0; n * out.size()];
        for i in 0..n {
            let at = std::array::from_fn(|s| data[s][if types[s].1 { i * types[s].0.size() } else { 0 }..].as_ptr());
            scalar(want[i * out.size()..].as_mut_ptr(), at, 1);
        }
        for shift in [0, 1, 5] {
            let mut sources: Vec<GuardedBytes> = data.iter().map(|d| GuardedBytes::new(d, shift)).collect();
            let mut dst = GuardedBytes::new(&vec![0; n * out.size()], shift + 2);
            let at = std::array::from_fn(|s| sources[s].ptr() as *const u8);
            run(dst.ptr(), at, n);
            assert_same(out, &dst.into_contents(), &want, context);
        }
        for operand in 0..S {
            if types[operand].0.size() == out.size() && types[operand].1 {
                let mut sources: Vec<GuardedBytes> = data.iter().map(|d| GuardedBytes::new(d, 3)).collect();
                let at: [*mut u8; S] = std::array::from_fn(|s| sources[s].ptr());
                run(at[operand], at.map(|p| p as *const u8), n);
                assert_same(out, &sources.swap_remove(operand).into_contents(), &want, &format!("{context} in place"));
            }
        }
    }
}

/// Calls `f` with every instruction set of the processor.
fn for_each_isa(mut f: impl FnMut(Isa)) {
    for &isa in Isa::available() {
        f(isa);
    }
}

/// Returns the values with NaN, infinite and huge values replaced.
fn without_huge_values(dtype: DType, mut x: Vec<u8>) -> Vec<u8> {
    match dtype {
        DType::F32 => {
            for b in x.chunks_mut(4) {
                let v = f32::from_ne_bytes((&*b).try_into().unwrap());
                if v.is_nan() || v.abs() > 1e6 {
                    b.copy_from_slice(&1.25f32.to_ne_bytes());
                }
            }
        }
        DType::F64 => {
            for b in x.chunks_mut(8) {
                let v = f64::from_ne_bytes((&*b).try_into().unwrap());
                if v.is_nan() || v.abs() > 1e6 {
                    b.copy_from_slice(&1.25f64.to_ne_bytes());
                }
            }
        }
        _ => {}
    }
    x
}
