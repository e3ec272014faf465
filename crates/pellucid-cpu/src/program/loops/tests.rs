//! Compares every loop on every instruction set with the scalar functions, bit for bit, and the canonical reduction
//! order with its definition.

#![allow(clippy::type_complexity)]

use super::element::{LoopElement, MaskByte, Unaligned, source_slice};
use super::*;
use pellucid_ir::formula::{Binary, Unary};
use pellucid_ir::{Compute, DType};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
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

/// Asserts that all elements have equal bits, where all NaNs count as equal.
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
    /// Returns the contents after it checks that the guard bytes are unchanged.
    fn into_contents(self) -> Vec<u8> {
        let shift = self.0.len() - self.1 - 16;
        let (before, rest) = self.0.split_at(shift);
        let (inside, after) = rest.split_at(self.1);
        assert!(before.iter().chain(after).all(|&b| b == 0xa5), "a guard byte was overwritten");
        inside.to_vec()
    }
}

const COUNTS: [usize; 16] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 70, 200, 643];

/// Runs a loop of up to three operands for all counts, at shifted addresses and in place, and compares it with the
/// portable loop on one element at a time.
fn check<const S: usize>(
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

#[test]
fn unary_loops_agree_on_every_isa() {
    for ty in ALL {
        for op in Unary::ALL {
            for_each_isa(|isa| {
                let Some(run) = unary(op, ty, isa) else { return };
                let one = unary(op, ty, Isa::Portable).unwrap();
                let out = if op.gives_mask() { DType::Bool } else { ty.storage() };
                // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the isa is available.
                let run = |d, [a]: [*const u8; 1], n| unsafe { run.run(d, a, n) };
                // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every isa includes the portable
                // one.
                let one = |d, [a]: [*const u8; 1], n| unsafe { one.run(d, a, n) };
                check(&format!("{op:?} {ty:?} {isa:?}"), [(ty.storage(), true)], out, &one, &run);
            });
        }
    }
}

/// The loops compute the functions of `math`.
#[test]
fn unary_loops_match_the_scalar_functions() {
    let functions: [(Unary, fn(f32) -> f32); 30] = [
        (Unary::Sign, f32::sign),
        (Unary::Floor, f32::floor),
        (Unary::Ceil, f32::ceil),
        (Unary::Round, Real::round),
        (Unary::Trunc, f32::trunc),
        (Unary::Sqrt, f32::sqrt),
        (Unary::Exp, Real::exp),
        (Unary::Exp2, Real::exp2),
        (Unary::Expm1, Real::expm1),
        (Unary::Ln, Real::ln),
        (Unary::Log2, Real::log2),
        (Unary::Log10, Real::log10),
        (Unary::Ln1p, Real::ln_1p),
        (Unary::Sin, Real::sin),
        (Unary::Cos, Real::cos),
        (Unary::Tan, Real::tan),
        (Unary::Asin, Real::asin),
        (Unary::Acos, Real::acos),
        (Unary::Atan, Real::atan),
        (Unary::Sinh, Real::sinh),
        (Unary::Cosh, Real::cosh),
        (Unary::Tanh, Real::tanh),
        (Unary::Sigmoid, Real::sigmoid),
        (Unary::Erf, Real::erf),
        (Unary::Erfc, Real::erfc),
        (Unary::Erfcx, Real::erfcx),
        (Unary::Erfinv, Real::erfinv),
        (Unary::Ndtri, Real::ndtri),
        (Unary::Lgamma, Real::lgamma),
        (Unary::Digamma, Real::digamma),
    ];
    for (op, f) in functions {
        for_each_isa(|isa| {
            let a = values(DType::F32, 999, 7);
            let mut got = vec![0; a.len()];
            // SAFETY: both buffers hold 999 values and are disjoint; the isa is available.
            unsafe { unary(op, Compute::F32, isa).unwrap().run(got.as_mut_ptr(), a.as_ptr(), 999) };
            let want: Vec<u8> =
                a.chunks(4).flat_map(|b| f(f32::from_ne_bytes(b.try_into().unwrap())).to_ne_bytes()).collect();
            assert_same(DType::F32, &got, &want, &format!("{op:?} {isa:?}"));
        });
    }
}

#[test]
fn binary_loops_agree_on_every_isa() {
    for ty in ALL {
        for op in Binary::ALL {
            for (form, tiles) in
                [(Form::TileTile, [true, true]), (Form::TileUniform, [true, false]), (Form::UniformTile, [false, true])]
            {
                for_each_isa(|isa| {
                    let Some(run) = binary(op, ty, form, isa) else { return };
                    let one = binary(op, ty, Form::TileTile, Isa::Portable).unwrap();
                    let out = if op.gives_mask() { DType::Bool } else { ty.storage() };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the isa is available.
                    let run = |d, [a, b]: [*const u8; 2], n| unsafe { run(d, a, b, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every isa includes the
                    // portable one.
                    let one = |d, [a, b]: [*const u8; 2], n| unsafe { one(d, a, b, n) };
                    let types = tiles.map(|tile| (ty.storage(), tile));
                    check(&format!("{op:?} {ty:?} {form:?} {isa:?}"), types, out, &one, &run);
                });
            }
        }
    }
}

#[test]
fn ternary_loops_agree_on_every_isa() {
    for ty in ALL {
        for bits in 0..8 {
            let tiles = [bits & 1 == 1, bits & 2 == 2, bits & 4 == 4];
            for_each_isa(|isa| {
                let storage = ty.storage();
                let all = |name: &str, run: Option<TernaryLoop>, one: Option<TernaryLoop>, first: DType| {
                    let (Some(run), Some(one)) = (run, one) else { return };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the isa is available.
                    let run = |d, [a, b, c]: [*const u8; 3], n| unsafe { run(d, a, b, c, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every isa includes the
                    // portable one.
                    let one = |d, [a, b, c]: [*const u8; 3], n| unsafe { one(d, a, b, c, n) };
                    let types = [(first, tiles[0]), (storage, tiles[1]), (storage, tiles[2])];
                    check(&format!("{name} {ty:?} {tiles:?} {isa:?}"), types, storage, &one, &run);
                };
                let full = [true; 3];
                all("select", select(ty, tiles, isa), select(ty, full, Isa::Portable), DType::Bool);
                all("mul_add", mul_add(ty, tiles, isa), mul_add(ty, full, Isa::Portable), storage);
            });
        }
    }
}

#[test]
fn conversions_agree_on_every_isa() {
    for ty in ALL {
        for dtype in DType::ALL {
            for_each_isa(|isa| {
                let pairs = [
                    (Some(convert(dtype, ty, isa)), Some(convert(dtype, ty, Isa::Portable)), dtype, ty.storage()),
                    (Some(store(ty, dtype, isa)), Some(store(ty, dtype, Isa::Portable)), ty.storage(), dtype),
                    (round(ty, dtype, isa), round(ty, dtype, Isa::Portable), ty.storage(), ty.storage()),
                ];
                for (run, one, from, to) in pairs {
                    let (Some(run), Some(one)) = (run, one) else { continue };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the isa is available.
                    let run = |d, [a]: [*const u8; 1], n| unsafe { run.run(d, a, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every isa includes the
                    // portable one.
                    let one = |d, [a]: [*const u8; 1], n| unsafe { one.run(d, a, n) };
                    check(&format!("{from} to {to} {isa:?}"), [(from, true)], to, &one, &run);
                }
            });
        }
    }
}

#[test]
fn conversions_saturate_wrap_and_round() {
    fn run<A: Copy, B: Copy + Default>(f: UnaryLoop, x: A) -> B {
        let mut y = B::default();
        // SAFETY: both pointers refer to one value; the isa is available.
        unsafe { f.run((&raw mut y).cast(), (&raw const x).cast(), 1) };
        y
    }
    for_each_isa(|isa| {
        for x in [
            0.5,
            -0.5,
            127.9,
            128.0,
            -128.9,
            -129.0,
            255.5,
            256.0,
            -1.5,
            32767.5,
            2147483520.0,
            2147483648.0,
            1e20,
            -2147483648.0,
            -2147483904.0,
            9.2233715e18,
            9.223372e18,
            -9.223372e18,
            -1e30,
            f32::INFINITY,
            f32::NAN,
        ] {
            assert_eq!(run::<f32, u8>(store(Compute::F32, DType::U8, isa), x), x as u8);
            assert_eq!(run::<f32, i8>(store(Compute::F32, DType::I8, isa), x), x as i8);
            assert_eq!(run::<f32, i16>(store(Compute::F32, DType::I16, isa), x), x as i16);
            assert_eq!(run::<f32, i32>(store(Compute::F32, DType::I32, isa), x), x as i32);
            assert_eq!(run::<f32, i64>(store(Compute::F32, DType::I64, isa), x), x as i64);
            for x in [x as f64, x as f64 * (1.0 + f64::EPSILON), x as f64 * (1.0 - f64::EPSILON)] {
                assert_eq!(run::<f64, i32>(store(Compute::F64, DType::I32, isa), x), x as i32);
                assert_eq!(run::<f64, i64>(store(Compute::F64, DType::I64, isa), x), x as i64);
            }
        }
        assert_eq!(run::<f32, u8>(store(Compute::F32, DType::U8, isa), -1.5), 0);
        assert_eq!(run::<f32, i64>(store(Compute::F32, DType::I64, isa), f32::NAN), 0);
        assert_eq!(run::<f64, i64>(store(Compute::F64, DType::I64, isa), -1e300), i64::MIN);
        assert_eq!(run::<i32, i8>(store(Compute::I32, DType::I8, isa), 200), -56);
        assert_eq!(run::<i32, u8>(store(Compute::I32, DType::Bool, isa), 256), 1);
        assert_eq!(run::<f32, u8>(convert(DType::F32, Compute::Mask, isa), f32::NAN), 1);
        assert_eq!(run::<u8, f32>(convert(DType::Bool, Compute::F32, isa), 1), 1.0);
        assert_eq!(run::<i64, f32>(convert(DType::I64, Compute::F32, isa), (1 << 24) + 1), 16_777_216.0);
        assert_eq!(run::<f64, u16>(store(Compute::F64, DType::F16, isa), 1.0 + 2f64.powi(-11) + 1e-12), 0x3c01);
        assert_eq!(run::<i32, i32>(round(Compute::I32, DType::I16, isa).unwrap(), 70_000), 4464);
    });
}

#[test]
fn splat_fills_the_tile() {
    for ty in ALL {
        for_each_isa(|isa| {
            let x = values(ty.storage(), 1, 3);
            let mut got = GuardedBytes::new(&vec![0; 77 * ty.size()], 1);
            // SAFETY: `x` holds one value and `got` 77 values, disjoint; the isa is available.
            unsafe { splat(ty, isa)(got.ptr(), x.as_ptr(), 77) };
            assert_eq!(got.into_contents(), x.repeat(77));
        });
    }
}

/// Reduces `x` in the canonical order by its definition, one value at a time.
fn canonical_fold<T: Copy>(x: &[T], identity: T, combine: impl Fn(T, T) -> T) -> T {
    let c = &combine;
    let mut lanes = [identity; LANES];
    for block in x.chunks(ROWS) {
        let at = |i: usize| block.get(i).copied().unwrap_or(identity);
        for (l, lane) in lanes.iter_mut().enumerate() {
            let v = |j: usize| at(j * LANES + l);
            let t = c(c(c(v(0), v(1)), c(v(2), v(3))), c(c(v(4), v(5)), c(v(6), v(7))));
            *lane = c(*lane, t);
        }
    }
    let halve = |x: &[T]| -> Vec<T> { (0..x.len() / 2).map(|l| c(x[l], x[l + x.len() / 2])).collect() };
    halve(&halve(&halve(&halve(&lanes))))[0]
}

/// Compares the loops of a reduction with the definition of the canonical order, on rows and on columns.
fn check_fold<T: LoopElement>(op: Fold, ty: Compute, identity: T, combine: impl Fn(T, T) -> T + Copy) {
    let size = size_of::<T>();
    let dtype = ty.storage();
    let bytes = |x: T| {
        let mut b = vec![0u8; size];
        // SAFETY: `b` has the size of one value.
        unsafe { b.as_mut_ptr().cast::<T>().write_unaligned(x) };
        b
    };
    for_each_isa(|isa| {
        let f = fold(op, ty, isa).unwrap();
        assert_eq!(f.identity[..size], bytes(identity));
        for n in [0, 1, 15, 16, 17, 100, 127, 128, 129, 300, 1000] {
            let x = values(dtype, n, n as u64);
            // Even counts have no NaNs, because a single NaN would hide all other values.
            let x = if n % 2 == 1 { x } else { without_huge_values(dtype, x) };
            // SAFETY: `x` holds n values.
            let row: Vec<T> = unsafe { source_slice::<T>(x.as_ptr(), n) }.iter().map(|v: &Unaligned<T>| v.0).collect();
            let want = bytes(canonical_fold(&row, identity, combine));
            let mut lanes = vec![0; LANES * size];
            let mut got = vec![0; size];
            // SAFETY: `lanes` holds 16 values and `x` holds n. The first of the two calls reads full blocks only.
            unsafe {
                let first = n / 2 / ROWS * ROWS;
                (f.accumulate)(lanes.as_mut_ptr(), x.as_ptr(), first, true);
                (f.accumulate)(lanes.as_mut_ptr(), x.as_ptr().add(first * size), n - first, false);
                (f.finish)(got.as_mut_ptr(), lanes.as_ptr());
            }
            assert_same(dtype, &got, &want, &format!("{op:?} {ty:?} {isa:?}, {n} elements"));
            // Column c of the matrix is the same row, rotated by c.
            for cols in [1usize, 3, 70, 600] {
                if n == 0 || n * cols > 100_000 {
                    continue;
                }
                let at = |r: usize, c: usize| ((r + c) % n) * size;
                let matrix: Vec<u8> =
                    (0..n).flat_map(|r| (0..cols).flat_map(move |c| at(r, c)..at(r, c) + size)).map(|i| x[i]).collect();
                let mut lanes = f.identity[..size].repeat(LANES * cols);
                let mut got = vec![0; size * cols];
                let stride = (cols * size) as isize;
                for start in (0..n).step_by(ROWS) {
                    let rows = ROWS.min(n - start);
                    // SAFETY: the matrix has `rows` rows from `start` on, and `lanes` holds 16 values per column.
                    unsafe {
                        let src = matrix.as_ptr().offset(start as isize * stride);
                        (f.accumulate_rows)(lanes.as_mut_ptr(), src, stride, cols, rows);
                    }
                }
                // SAFETY: `lanes` holds 16 values per column, and `got` one value per column.
                unsafe { (f.finish_rows)(got.as_mut_ptr(), lanes.as_ptr(), cols) };
                for c in (0..cols).step_by(1 + cols / 5) {
                    let column: Vec<T> = (0..n).map(|r| row[(r + c) % n]).collect();
                    let want = bytes(canonical_fold(&column, identity, combine));
                    let context = format!("{op:?} {ty:?} {isa:?}, column {c} of {cols}, {n} rows");
                    assert_same(dtype, &got[c * size..(c + 1) * size], &want, &context);
                }
            }
        }
    });
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

#[test]
fn reductions_follow_the_canonical_order() {
    macro_rules! numbers {
        ($($t:ident $ty:ident: $least:expr, $greatest:expr, $add:expr, $mul:expr, $max:expr, $min:expr;)*) => {$(
            check_fold::<$t>(Fold::Sum, Compute::$ty, 0 as $t, $add);
            check_fold::<$t>(Fold::Prod, Compute::$ty, 1 as $t, $mul);
            check_fold::<$t>(Fold::Max, Compute::$ty, $least, $max);
            check_fold::<$t>(Fold::Min, Compute::$ty, $greatest, $min);
        )*};
    }
    numbers! {
        f32 F32: f32::NEG_INFINITY, f32::INFINITY, |a, b| a + b, |a, b| a * b, Real::max, Real::min;
        f64 F64: f64::NEG_INFINITY, f64::INFINITY, |a, b| a + b, |a, b| a * b, Real::max, Real::min;
        i32 I32: i32::MIN, i32::MAX, i32::wrapping_add, i32::wrapping_mul, Ord::max, Ord::min;
        i64 I64: i64::MIN, i64::MAX, i64::wrapping_add, i64::wrapping_mul, Ord::max, Ord::min;
    }
    check_fold::<MaskByte>(Fold::And, Compute::Mask, MaskByte(1), |a, b| MaskByte(a.0 & b.0));
    check_fold::<MaskByte>(Fold::Or, Compute::Mask, MaskByte(0), |a, b| MaskByte(a.0 | b.0));
}

/// Compares the sum of products, in two calls, with the sum of stored products.
fn check_products<T: LoopElement>(ty: Compute) {
    let (size, dtype) = (size_of::<T>(), ty.storage());
    for_each_isa(|isa| {
        let f = fold(Fold::Sum, ty, isa).unwrap();
        let products = f.accumulate_products.expect("sums have a loop for products");
        for n in [0, 1, 17, 127, 128, 129, 300, 1000] {
            let (a, b) = (values(dtype, n, n as u64), values(dtype, n, n as u64 + 1));
            let (a, b) =
                if n % 2 == 1 { (a, b) } else { (without_huge_values(dtype, a), without_huge_values(dtype, b)) };
            let mut stored = vec![0; n * size];
            let (mut want, mut got) = (vec![0; size], vec![0; size]);
            let (mut plain, mut lanes) = (vec![0; LANES * size], vec![0; LANES * size]);
            // SAFETY: all buffers hold n values, and both lane buffers hold 16. The first call for products reads full
            // blocks only.
            unsafe {
                let mul = binary(Binary::Mul, ty, Form::TileTile, isa).unwrap();
                mul(stored.as_mut_ptr(), a.as_ptr(), b.as_ptr(), n);
                (f.accumulate)(plain.as_mut_ptr(), stored.as_ptr(), n, true);
                (f.finish)(want.as_mut_ptr(), plain.as_ptr());
                let first = n / 2 / ROWS * ROWS;
                products(lanes.as_mut_ptr(), a.as_ptr(), b.as_ptr(), first, true);
                let (a, b) = (a.as_ptr().add(first * size), b.as_ptr().add(first * size));
                products(lanes.as_mut_ptr(), a, b, n - first, false);
                (f.finish)(got.as_mut_ptr(), lanes.as_ptr());
            }
            assert_same(dtype, &got, &want, &format!("{ty:?} {isa:?}, {n} elements"));
        }
    });
}

#[test]
fn sums_of_products_match_sums_of_stored_products() {
    check_products::<f32>(Compute::F32);
    check_products::<f64>(Compute::F64);
    check_products::<i32>(Compute::I32);
    check_products::<i64>(Compute::I64);
}

#[test]
fn non_temporal_copies_write_exactly_the_destination() {
    let from: Vec<u8> = (0..2000u32).map(|i| (i * 7) as u8).collect();
    for_each_isa(|isa| {
        for (start, n) in [(0, 0), (0, 64), (1, 63), (3, 64), (5, 200), (64, 1024), (60, 1500), (17, 1900)] {
            let mut to = vec![0xEE; 2000];
            // SAFETY: both buffers hold `n` bytes from `start` on; the isa is available.
            unsafe { non_temporal_copy(isa)(to.as_mut_ptr().add(start), from.as_ptr().add(start), n) };
            store_fence();
            assert_eq!(to[start..start + n], from[start..start + n], "{isa:?} {start} {n}");
            assert!(to[..start].iter().chain(&to[start + n..]).all(|&b| b == 0xEE), "{isa:?} {start} {n}");
        }
    });
}

#[test]
fn arg_loops_return_the_first_nan_or_else_the_first_extremum() {
    fn check<T: LoopElement + PartialOrd + std::fmt::Debug>(ty: Compute) {
        for n in [1, 2, 63, 64, 65, 700, 1024, 1025, 3000] {
            for nans in [false, true] {
                let x = values(ty.storage(), n, n as u64 + 5);
                let x = if nans { x } else { without_huge_values(ty.storage(), x) };
                // SAFETY: `x` holds n values.
                let row: Vec<T> = unsafe { source_slice::<T>(x.as_ptr(), n) }.iter().map(|v| v.0).collect();
                let nan = row.iter().position(|v| v.partial_cmp(v).is_none());
                let first = |better: fn(&T, &T) -> bool| {
                    nan.unwrap_or_else(|| (0..n).reduce(|b, i| if better(&row[i], &row[b]) { i } else { b }).unwrap())
                };
                for_each_isa(|isa| {
                    // SAFETY: `x` holds n values.
                    let got =
                        unsafe { (argmax(ty, isa).unwrap()(x.as_ptr(), n), argmin(ty, isa).unwrap()(x.as_ptr(), n)) };
                    assert_eq!(got, (first(|a, b| a > b), first(|a, b| a < b)), "{ty:?} {isa:?} {n}");
                });
            }
        }
    }
    check::<f32>(Compute::F32);
    check::<f64>(Compute::F64);
    check::<i32>(Compute::I32);
    check::<i64>(Compute::I64);
}

/// Every pair of fused instructions gives the bits of the separate instructions: on full blocks and remainders, with
/// stored, non-temporal and unstored results.
#[test]
fn chains_match_their_separate_instructions() {
    fn check<T: Real + LoopElement>(ty: Compute, isa: Isa) {
        use FusedInstr::*;
        let function = |op| unary(op, ty, isa).expect("floats have functions").vector_loop();
        let acts = [
            AddTile,
            AddOne,
            Double,
            SubTile,
            SubOne,
            TileSub,
            OneSub,
            MulTile,
            MulOne,
            Square,
            DivTile,
            DivOne,
            TileDiv,
            OneDiv,
            Neg,
            Sqrt,
            MulTileAddTile,
            MulTileAddOne,
            MulOneAddTile,
            MulOneAddOne,
            AddTileTile,
            AddTileOne,
            Exp(function(Unary::Exp)),
            Sigmoid(function(Unary::Sigmoid)),
            Tanh(function(Unary::Tanh)),
            Sin(function(Unary::Sin)),
            Cos(function(Unary::Cos)),
            Apply(function(Unary::Log2)),
        ];
        let pairs = acts.into_iter().flat_map(|a| acts.map(|b| (a, b)));
        let run = chain(ty, isa).expect("floats have chains");
        for (k, (first, second)) in pairs.enumerate() {
            let n = COUNTS[k % COUNTS.len()];
            // Every second pair has no rare operands.
            let operand = |x| if k % 2 == 0 { x } else { without_huge_values(ty.storage(), x) };
            let [from, tile, more] = [1, 2, 3].map(|seed| operand(values(ty.storage(), n + 1, seed + 3 * k as u64)));
            let shift = if k % 3 == 0 { k % 7 } else { k % 7 * size_of::<T>() };
            let mut kept = [(); 3].map(|()| GuardedBytes::new(&vec![0; n * size_of::<T>()], shift));
            let to = kept[1].ptr();
            let far = k % 3 != 0 && to.addr().is_multiple_of(size_of::<T>());
            let nowhere = std::ptr::null_mut();
            let with = [tile.as_ptr(), more.as_ptr()];
            let aligned = far && (kept[2].ptr().addr() ^ to.addr()).is_multiple_of(64);
            let keep = if k % 2 == 0 { kept[0].ptr() } else { nowhere };
            let links = [
                FusedOperands { begin: from.as_ptr(), act: first, with, into: keep, far: false },
                FusedOperands { begin: std::ptr::null(), act: second, with, into: to, far },
                FusedOperands { begin: more.as_ptr(), act: AddTile, with, into: kept[2].ptr(), far: aligned },
            ];
            // SAFETY: all sources hold `n + 1` values and all destinations `n`. Non-temporal destinations are aligned
            // to the element size and congruent modulo 64. The isa is available.
            unsafe { run(&links, nowhere, n) };
            store_fence();
            // SAFETY: the buffers hold `n + 1` values.
            let [v, t, s] = unsafe { [&from, &tile, &more].map(|x| source_slice::<T>(x.as_ptr(), n + 1)) };
            let (u, w) = (t[0].0, s[0].0);
            let apply = |act, v: T, t: T, s: T| match act {
                AddTile => v + t,
                AddOne => v + u,
                Double => v + v,
                SubTile => v - t,
                SubOne => v - u,
                TileSub => t - v,
                OneSub => u - v,
                MulTile => v * t,
                MulOne => v * u,
                Square => v * v,
                DivTile => v / t,
                DivOne => v / u,
                TileDiv => t / v,
                OneDiv => u / v,
                Neg => -v,
                Sqrt => v.sqrt(),
                MulTileAddTile => v.mul_add(t, s),
                MulTileAddOne => v.mul_add(t, w),
                MulOneAddTile => v.mul_add(u, s),
                MulOneAddOne => v.mul_add(u, w),
                AddTileTile => t.mul_add(s, v),
                AddTileOne => t.mul_add(w, v),
                Exp(_) => v.exp(),
                Sigmoid(_) => v.sigmoid(),
                Tanh(_) => v.tanh(),
                Sin(_) => v.sin(),
                Cos(_) => v.cos(),
                Apply(_) => v.log2(),
            };
            let [mut once, mut twice, mut sums] = [(); 3].map(|()| vec![0; n * size_of::<T>()]);
            for i in 0..n {
                let one = apply(first, v[i].0, t[i].0, s[i].0);
                let two = apply(second, one, t[i].0, s[i].0);
                // SAFETY: the vectors hold `n` values, and i < n.
                unsafe {
                    once.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(one));
                    twice.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(two));
                    sums.as_mut_ptr().cast::<Unaligned<T>>().add(i).write(Unaligned(s[i].0 + t[i].0));
                }
            }
            let context = format!("{first:?}, {second:?} {ty:?} {isa:?}");
            let [a, b, c] = kept.map(GuardedBytes::into_contents);
            if k % 2 == 0 {
                assert_same(ty.storage(), &a, &once, &context);
            }
            assert_same(ty.storage(), &b, &twice, &context);
            assert_same(ty.storage(), &c, &sums, &context);
        }
    }
    for_each_isa(|isa| {
        check::<f32>(Compute::F32, isa);
        check::<f64>(Compute::F64, isa);
    });
}

/// A sum at the end of a chain has the bits of a sum over the stored results of the chain.
#[test]
fn sums_in_chains_match_sums_of_stored_results() {
    fn check<T: LoopElement>(ty: Compute, isa: Isa) {
        let run = chain(ty, isa).expect("floats have chains");
        let sum = fold(Fold::Sum, ty, isa).expect("floats have sums");
        for n in COUNTS {
            let [from, tile] = [1, 2].map(|seed| values(ty.storage(), n, seed + n as u64));
            let mut kept = GuardedBytes::new(&vec![0; n * size_of::<T>()], 3);
            let [mut got, mut want] = [[0u64; LANES]; 2];
            let links = [FusedOperands {
                begin: from.as_ptr(),
                act: FusedInstr::MulTile,
                with: [tile.as_ptr(); 2],
                into: kept.ptr(),
                far: false,
            }];
            // SAFETY: all buffers hold `n` values, and the lanes hold 16; the isa is available.
            unsafe {
                run(&links, got.as_mut_ptr().cast(), n);
                (sum.accumulate)(want.as_mut_ptr().cast(), kept.ptr(), n / ROWS * ROWS, true);
            }
            let bytes = |lanes: [u64; LANES]| lanes.map(u64::to_ne_bytes).concat()[..LANES * size_of::<T>()].to_vec();
            assert_same(ty.storage(), &bytes(got), &bytes(want), &format!("sum of {n} values, {ty:?} {isa:?}"));
            let product = binary(Binary::Mul, ty, Form::TileTile, Isa::Portable).expect("floats have products");
            let mut products = vec![0; n * size_of::<T>()];
            // SAFETY: all buffers hold `n` values and are disjoint; every processor runs portable code.
            unsafe { product(products.as_mut_ptr(), from.as_ptr(), tile.as_ptr(), n) };
            assert_same(ty.storage(), &kept.into_contents(), &products, &format!("{n} products, {ty:?} {isa:?}"));
        }
    }
    for_each_isa(|isa| {
        check::<f32>(Compute::F32, isa);
        check::<f64>(Compute::F64, isa);
    });
}
