//! Reductions, compared with the definition of the canonical order, and indices of extrema.

use super::*;
use crate::program::fold::FoldKernel;
use crate::program::loops::loop_element::{MaskByte, Unaligned, source_slice};
use pellucid_ir::formula::Binary;
use pellucid_simd::math::Real;

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
fn check_fold<T: LoopElement>(op: FoldOp, ty: Compute, identity: T, combine: impl Fn(T, T) -> T + Copy) {
    let size = size_of::<T>();
    let dtype = ty.storage();
    let bytes = |x: T| {
        let mut b = vec![0u8; size];
        // SAFETY: `b` has the size of one value.
        unsafe { b.as_mut_ptr().cast::<T>().write_unaligned(x) };
        b
    };
    for_each_isa(|isa| {
        let kernel = FoldKernel::for_isa(op, ty, isa).unwrap();
        let f = kernel.loops;
        assert_eq!(f.identity[..size], bytes(identity));
        for n in [0, 1, 2, 15, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128, 129, 300, 1000] {
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
            check_rows(&f, dtype, &x, n, &want, &format!("{op:?} {ty:?} {isa:?}, rows of {n} elements"));
            // Column c of the matrix is the same row, rotated by c.
            for cols in [1usize, 3, 15, 16, 17, 70, 600] {
                if n == 0 || n * cols > 100_000 {
                    continue;
                }
                let at = |r: usize, c: usize| ((r + c) % n) * size;
                let matrix: Vec<u8> =
                    (0..n).flat_map(|r| (0..cols).flat_map(move |c| at(r, c)..at(r, c) + size)).map(|i| x[i]).collect();
                let mut lanes = f.identity[..size].repeat(LANES * cols);
                let (mut half, mut got) = (vec![0; 8 * size * cols], vec![0; size * cols]);
                let stride = (cols * size) as isize;
                for start in (0..n).step_by(ROWS) {
                    let rows = ROWS.min(n - start);
                    // SAFETY: the matrix has `rows` rows starting at `start`, and `lanes` holds 16 values per column.
                    unsafe {
                        let src = matrix.as_ptr().offset(start as isize * stride);
                        (f.accumulate_rows)(lanes.as_mut_ptr(), src, stride, cols, rows);
                    }
                }
                // SAFETY: `lanes` holds 16 values per column, `half` 8 values, and `got` one value.
                unsafe { kernel.combine_lanes(got.as_mut_ptr(), lanes.as_mut_ptr(), half.as_mut_ptr(), cols) };
                let mut at_once = GuardedBytes::new(&vec![0; size * cols], 3);
                if n <= ROWS {
                    // SAFETY: the matrix has n rows of `cols` values, and the destination holds `cols` values.
                    unsafe { (f.reduce_columns)(at_once.ptr(), matrix.as_ptr(), stride, cols, n) };
                }
                let at_once = at_once.into_contents();
                for c in (0..cols).step_by(1 + cols / 5).chain([cols - 1]) {
                    let column: Vec<T> = (0..n).map(|r| row[(r + c) % n]).collect();
                    let want = bytes(canonical_fold(&column, identity, combine));
                    let context = format!("{op:?} {ty:?} {isa:?}, column {c} of {cols}, {n} rows");
                    let result = c * size..(c + 1) * size;
                    assert_same(dtype, &got[result.clone()], &want, &context);
                    if n <= ROWS {
                        assert_same(dtype, &at_once[result], &want, &format!("{context}, at once"));
                    }
                }
            }
        }
    });
}

/// Compares the loop for rows with the result `want` of one row, for several copies of the row.
fn check_rows(f: &FoldLoops, dtype: DType, row: &[u8], n: usize, want: &[u8], context: &str) {
    for rows in [0, 1, 2, 9] {
        let (matrix, mut got) = (row.repeat(rows), GuardedBytes::new(&vec![0; rows * dtype.size()], 1));
        // SAFETY: the matrix has `rows` rows of n values, and the destination holds `rows` values.
        unsafe { (f.reduce_rows)(got.ptr(), matrix.as_ptr(), rows, n) };
        assert_same(dtype, &got.into_contents(), &want.repeat(rows), context);
    }
}

#[test]
fn reductions_follow_the_canonical_order() {
    macro_rules! numbers {
        ($($t:ident $ty:ident: $least:expr, $greatest:expr, $add:expr, $mul:expr, $max:expr, $min:expr;)*) => {$(
            check_fold::<$t>(FoldOp::Sum, Compute::$ty, 0 as $t, $add);
            check_fold::<$t>(FoldOp::Prod, Compute::$ty, 1 as $t, $mul);
            check_fold::<$t>(FoldOp::Max, Compute::$ty, $least, $max);
            check_fold::<$t>(FoldOp::Min, Compute::$ty, $greatest, $min);
        )*};
    }
    numbers! {
        f32 F32: f32::NEG_INFINITY, f32::INFINITY, |a, b| a + b, |a, b| a * b, Real::max, Real::min;
        f64 F64: f64::NEG_INFINITY, f64::INFINITY, |a, b| a + b, |a, b| a * b, Real::max, Real::min;
        i32 I32: i32::MIN, i32::MAX, i32::wrapping_add, i32::wrapping_mul, Ord::max, Ord::min;
        i64 I64: i64::MIN, i64::MAX, i64::wrapping_add, i64::wrapping_mul, Ord::max, Ord::min;
    }
    check_fold::<MaskByte>(FoldOp::And, Compute::Mask, MaskByte(1), |a, b| MaskByte(a.0 & b.0));
    check_fold::<MaskByte>(FoldOp::Or, Compute::Mask, MaskByte(0), |a, b| MaskByte(a.0 | b.0));
}

/// Compares the sum of products, in two calls, with the sum of stored products.
fn check_products<T: LoopElement>(ty: Compute) {
    let (size, dtype) = (size_of::<T>(), ty.storage());
    for_each_isa(|isa| {
        let f = fold(FoldOp::Sum, ty, isa).unwrap();
        let products = f.accumulate_products.expect("a sum must have a loop for products");
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
                let mul = binary(Binary::Mul, ty, OperandForm::TileTile, isa).unwrap();
                mul.run(stored.as_mut_ptr(), a.as_ptr(), b.as_ptr(), n);
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
