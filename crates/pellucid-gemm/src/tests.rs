//! Compares products with a direct definition, and all code paths bitwise with each other.

use super::*;
use pellucid_runtime::testing::Guarded;
use pellucid_runtime::threads::with_threads;

/// Returns reproducible values in (-1, 1), from a linear congruential generator.
fn random_values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// The memory layout of a test matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MatrixLayout {
    RowMajor,
    ColumnMajor,
    /// Unused elements between columns and between rows.
    Gaps,
    /// Row-major with negative strides.
    Reversed,
}

pub(crate) const MATRIX_LAYOUTS: [MatrixLayout; 4] =
    [MatrixLayout::RowMajor, MatrixLayout::ColumnMajor, MatrixLayout::Gaps, MatrixLayout::Reversed];

/// A matrix that owns its memory.
pub(crate) struct TestMatrix<T> {
    pub(crate) data: Guarded<T>,
    strides: (isize, isize),
    start: usize,
    cols: usize,
}

impl<T: Element + bytemuck::Pod> TestMatrix<T> {
    pub(crate) fn new(rows: usize, cols: usize, layout: MatrixLayout, value: impl Fn(usize) -> T) -> Self {
        let (r, c) = (rows as isize, cols as isize);
        let (strides, start, len) = match layout {
            MatrixLayout::RowMajor => ((c, 1), 0, r * c),
            MatrixLayout::ColumnMajor => ((1, r), 0, r * c),
            MatrixLayout::Gaps => ((2 * c + 1, 2), 0, r * (2 * c + 1)),
            MatrixLayout::Reversed => ((-c, -1), (r * c - 1).max(0) as usize, r * c),
        };
        let mut matrix = Self { data: Guarded::from_slice(&vec![T::ZERO; len as usize]), strides, start, cols };
        for i in 0..rows * cols {
            let index = matrix.index(i / cols, i % cols);
            matrix.data[index] = value(i);
        }
        matrix
    }

    pub(crate) fn index(&self, i: usize, j: usize) -> usize {
        (self.start as isize + i as isize * self.strides.0 + j as isize * self.strides.1) as usize
    }

    fn values(&self, rows: usize) -> Vec<T> {
        (0..rows * self.cols).map(|i| self.data[self.index(i / self.cols, i % self.cols)]).collect()
    }
}

/// Computes C, which initially is `start`, and returns it in row-major order. Checks that the product with packed
/// panels of B has the same bits.
pub(crate) fn multiply_in_layouts<T: Element + bytemuck::Pod>(
    isa: Isa,
    (m, n, k): (usize, usize, usize),
    layouts: [MatrixLayout; 3],
    [a, b]: [&[T]; 2],
    start: &[T],
    accumulate: bool,
    threads: Threads,
) -> Vec<T> {
    let a = TestMatrix::new(m, k, layouts[0], |i| a[i]);
    let b = TestMatrix::new(k, n, layouts[1], |i| b[i]);
    let (a_start, b_start) = (a.data.as_ptr().wrapping_add(a.start), b.data.as_ptr().wrapping_add(b.start));
    let from = Strided { data: b_start, lane: b.strides.1, depth: b.strides.0 };
    // SAFETY: *Range*: `TestMatrix` holds every element that its strides address. *Isa*: the callers pass an available
    // instruction set.
    let panels = unsafe { OwnedPanels::new(isa, from, (n, k)) }.unwrap();
    let [values, from_panels] = [None, Some(*panels)].map(|packed_b| {
        let mut c = TestMatrix::new(m, n, layouts[2], |i| start[i]);
        let shape = Gemm { m, n, k, a_strides: a.strides, b_strides: b.strides, c_strides: c.strides, accumulate };
        let c_start = c.data.as_mut_ptr().wrapping_add(c.start);
        let operands = GemmOperands { a: a_start, b: b_start, packed_b, c: Some(c_start), epilogue: None };
        let before = c.data.to_vec();
        // SAFETY: the contract of `gemm_batched_for_isa`. *Bounds*: `TestMatrix` holds every element that its strides
        // address. *Aliasing*: the matrices own their memory, which only this test accesses. *Panels*: these are the
        // panels of B. *Isa*: the callers pass an available instruction set.
        unsafe { gemm_batched_for_isa(isa, &shape, &ProductBatch::default(), &operands, threads) }
        let values = c.values(m);
        // The memory between the elements of C must be unchanged.
        (0..m * n).for_each(|i| {
            let index = c.index(i / n, i % n);
            c.data[index] = before[index];
        });
        assert_eq!(bytemuck::cast_slice::<T, u8>(&c.data), bytemuck::cast_slice::<T, u8>(&before), "{shape:?}");
        values
    });
    let differ = |x: &T, y: &T| x != y;
    let is_nan = |x: &T| differ(x, x);
    let same = |(x, y): (&T, &T)| bytemuck::bytes_of(x) == bytemuck::bytes_of(y) || is_nan(x) && is_nan(y);
    assert!(values.iter().zip(&from_panels).all(same), "{m} × {n} × {k} from packed panels, {layouts:?}, {isa:?}");
    values
}

/// Computes a product of row-major matrices on one thread.
fn multiply_row_major<T: Element + bytemuck::Pod>(isa: Isa, shape: (usize, usize, usize), a: &[T], b: &[T]) -> Vec<T> {
    let zero = vec![T::ZERO; shape.0 * shape.1];
    multiply_in_layouts(isa, shape, [MatrixLayout::RowMajor; 3], [a, b], &zero, false, Threads::One)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Shapes around the sizes of register tiles, shapes with several blocks in every dimension, and products with vectors.
pub(crate) const SHAPES: [(usize, usize, usize); 23] = [
    (1, 1, 1),
    (2, 2, 1),
    (3, 5, 7),
    (4, 4, 4),
    (13, 10, 20),
    (14, 32, 272),
    (15, 33, 273),
    (28, 65, 17),
    (29, 16, 9),
    (31, 17, 545),
    (43, 70, 100),
    (64, 10, 128),
    (10, 128, 64),
    (3, 530, 30),
    (90, 7, 300),
    (1, 300, 70),
    (300, 1, 70),
    (7, 1, 1100),
    (1, 9, 15),
    (600, 1, 5),
    (300, 1, 1),
    (1, 530, 1),
    (730, 40, 280),
];

/// Computes C element by element in the documented order: by blocks of k for matrices, and by 16 partial sums and a
/// tree for vectors.
pub(crate) fn reference_product((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32]) -> Vec<f32> {
    let element = |i: usize, j: usize| -> f32 {
        let term = |p: usize, s: f32| a[i * k + p].mul_add(b[p * n + j], s);
        if m == 1 || n == 1 {
            let mut lanes = [0.0; 16];
            for p in 0..k {
                lanes[p % 16] = term(p, lanes[p % 16]);
            }
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
            }
            lanes[0]
        } else {
            block_sizes::depth_blocks::<f32>(k)
                .map(|block| block.fold(0.0, |s, p| term(p, s)))
                .reduce(|x, y| x + y)
                .unwrap_or(0.0)
        }
    };
    (0..m * n).map(|i| element(i / n, i % n)).collect()
}

/// Products whose C is transposed: more rows than are transposed at a time, one and several blocks of the depth, and
/// panels of B that are packed entirely or, if they are too large, once per block.
const TRANSPOSED_SHAPES: [(usize, usize, usize); 6] =
    [(112, 40, 60), (113, 33, 300), (250, 97, 273), (33, 229, 545), (400, 130, 300), (128, 1030, 1025)];

#[test]
fn transposed_products_match_the_documented_order() {
    use MatrixLayout::{ColumnMajor, RowMajor};
    for shape @ (m, n, k) in TRANSPOSED_SHAPES {
        let (a, b) = (random_values(m * k, 1), random_values(k * n, 2));
        let want = bits(&reference_product(shape, &a, &b));
        let zero = vec![f32::NAN; m * n];
        for &isa in Isa::available() {
            for layouts in [
                [RowMajor, ColumnMajor, RowMajor],
                [RowMajor, ColumnMajor, ColumnMajor],
                [ColumnMajor, RowMajor, ColumnMajor],
                [RowMajor, RowMajor, ColumnMajor],
            ] {
                let got = multiply_in_layouts(isa, shape, layouts, [&a, &b], &zero, false, Threads::One);
                assert_eq!(bits(&got), want, "{shape:?} {isa:?} {layouts:?}");
            }
        }
    }
}

/// The sizes of the blocks of k determine the bits of every product, so they must not change.
#[test]
fn blocks_of_the_depth_are_a_fixed_function_of_k() {
    let ends = |k: usize| block_sizes::depth_blocks::<f32>(k).map(|block| block.end).collect::<Vec<_>>();
    for k in 1..=272 {
        assert_eq!(ends(k), [k]);
    }
    assert_eq!(ends(273), [144, 273]);
    assert_eq!(ends(544), [272, 544]);
    assert_eq!(ends(545), [184, 368, 545]);
    assert_eq!(ends(1100), [224, 448, 672, 896, 1100]);
}

#[test]
fn all_instruction_sets_and_layouts_match_the_documented_order() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b) = (random_values(m * k, 1), random_values(k * n, 2));
        let want = bits(&reference_product(shape, &a, &b));
        let zero = vec![f32::NAN; m * n];
        for &isa in Isa::available() {
            for layout in 0..64 {
                let layouts = [MATRIX_LAYOUTS[layout % 4], MATRIX_LAYOUTS[layout / 4 % 4], MATRIX_LAYOUTS[layout / 16]];
                let got = multiply_in_layouts(isa, shape, layouts, [&a, &b], &zero, false, Threads::One);
                assert_eq!(bits(&got), want, "{shape:?} {isa:?} {layouts:?}");
            }
        }
    }
}

/// The result is not −0, because the zeros of the other partial sums are added to the product −0.
#[test]
fn a_single_negative_zero_gives_zero() {
    let (a, b) = ([-0.0; 70], [1.0]);
    for &isa in Isa::available() {
        for layout in MATRIX_LAYOUTS {
            let layouts = [layout, MatrixLayout::RowMajor, MatrixLayout::RowMajor];
            let got = multiply_in_layouts(isa, (70, 1, 1), layouts, [&a, &b], &[f32::NAN; 70], false, Threads::One);
            assert_eq!(bits(&got), [0; 70], "{isa:?} {layout:?}");
        }
    }
}

#[test]
fn accumulation_adds_block_by_block() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b, c) = (random_values(m * k, 1), random_values(k * n, 2), random_values(m * n, 3));
        let accumulated =
            |isa, layouts| bits(&multiply_in_layouts(isa, shape, layouts, [&a, &b], &c, true, Threads::One));
        let want = accumulated(Isa::best(), [MatrixLayout::RowMajor; 3]);
        let once = reference_product(shape, &a, &b);
        for (i, (&w, (&c, &s))) in want.iter().zip(c.iter().zip(&once)).enumerate() {
            assert!((f32::from_bits(w) - (c + s)).abs() < 1e-4, "{shape:?} element {i}");
        }
        for &isa in Isa::available() {
            for layout in 0..64 {
                let layouts = [MATRIX_LAYOUTS[layout % 4], MATRIX_LAYOUTS[layout / 4 % 4], MATRIX_LAYOUTS[layout / 16]];
                assert_eq!(accumulated(isa, layouts), want, "{shape:?} {isa:?} {layouts:?}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for shape @ (m, n, k) in
        [(160, 150, 140), (14, 900, 200), (900, 9, 300), (300, 500, 280), (2000, 1, 1100), (1, 2100, 1050)]
    {
        let (a, b) = (random_values(m * k, 4), random_values(k * n, 5));
        let want = bits(&reference_product(shape, &a, &b));
        for threads in [1, 2, 8] {
            // In the last two layouts, products are computed as transposes, for which a part of B is packed entirely.
            use MatrixLayout::{ColumnMajor, RowMajor};
            for layouts in [
                [RowMajor; 3],
                [ColumnMajor; 3],
                [RowMajor, ColumnMajor, RowMajor],
                [RowMajor, ColumnMajor, ColumnMajor],
            ] {
                let got = with_threads(threads, || {
                    multiply_in_layouts(Isa::best(), shape, layouts, [&a, &b], &vec![0.0; m * n], false, Threads::Pool)
                });
                assert_eq!(bits(&got), want, "{shape:?} with {threads} threads");
            }
        }
    }
}

#[test]
fn a_batch_matches_single_products() {
    for (count, (m, n, k)) in
        [(3, (5, 6, 7)), (40, (30, 40, 50)), (2, (120, 130, 90)), (5, (1, 80, 90)), (70, (200, 1, 100))]
    {
        let (a, b) = (random_values(count * m * k, 6), random_values(k * n, 7));
        let each: Vec<f32> = a.chunks(m * k).flat_map(|a| multiply_row_major(Isa::best(), (m, n, k), a, &b)).collect();
        // All products share B, whose offset is always 0.
        let step = |i: usize| Offsets { a: (i * m * k) as isize, b: 0, c: (i * m * n) as isize };
        let axes =
            if count.is_multiple_of(2) { vec![(count / 2, step(2)), (2, step(1))] } else { vec![(count, step(1))] };
        let batch = ProductBatch { axes: &axes };
        let shape = Gemm {
            m,
            n,
            k,
            a_strides: (k as isize, 1),
            b_strides: (n as isize, 1),
            c_strides: (n as isize, 1),
            accumulate: false,
        };
        for threads in [1, 2, 8] {
            let mut c = vec![0.0; count * m * n];
            let (a, b, c_start) = (SendPtr(a.as_ptr()), SendPtr(b.as_ptr()), SendPtr(c.as_mut_ptr()));
            // SAFETY: the contract of `gemm_batched`. *Bounds* and *Disjoint results*: the vectors hold the batch
            // without overlap. *Aliasing*: only this test accesses them.
            with_threads(threads, || unsafe {
                let operands =
                    GemmOperands { a: a.get(), b: b.get(), packed_b: None, c: Some(c_start.get()), epilogue: None };
                gemm_batched(&shape, &batch, &operands, Threads::Pool)
            });
            assert_eq!(
                bits(&c),
                bits(&each),
                "a batch of {count} products of {m} × {n} × {k} with {threads} threads differs from single products"
            );
        }
    }
}

/// A pointer that can be sent to another thread.
#[derive(Clone, Copy)]
struct SendPtr<P>(P);

impl<P: Copy> SendPtr<P> {
    fn get(&self) -> P {
        self.0
    }
}

// SAFETY: the tests keep the memory of the pointer alive and wait until the other thread has finished.
unsafe impl<P> Send for SendPtr<P> {}
// SAFETY: the tests keep the memory of the pointer alive and wait until the other threads have finished.
unsafe impl<P> Sync for SendPtr<P> {}

#[test]
fn products_of_depth_zero_store_zero_or_keep_c() {
    for &isa in Isa::available() {
        for (m, n, k) in [(3, 4, 0), (1, 4, 0), (4, 1, 0), (0, 4, 5), (4, 0, 5), (0, 0, 0), (1, 0, 3), (0, 1, 3)] {
            let (a, b, c) = (random_values(m * k, 1), random_values(k * n, 2), vec![7.0; m * n]);
            let multiplied = |accumulate| {
                multiply_in_layouts(
                    isa,
                    (m, n, k),
                    [MatrixLayout::RowMajor; 3],
                    [&a, &b],
                    &c,
                    accumulate,
                    Threads::Pool,
                )
            };
            assert_eq!(multiplied(false), vec![0.0; m * n]);
            assert_eq!(multiplied(true), c);
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    for &isa in Isa::available() {
        for shape @ (m, n, k) in [(3, 3, 3), (20, 40, 300), (1, 20, 40), (20, 1, 40), (1, 1, 5)] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut a = vec![0.0; m * k];
                let mut b = vec![0.0; k * n];
                b[(k - 1) * n] = bad;
                let c = multiply_row_major(isa, shape, &a, &b);
                assert!((0..m).all(|i| c[i * n].is_nan()), "0 · {bad} must be NaN: {shape:?} {isa:?}");
                assert!((0..m * n).all(|i| i % n == 0 || c[i] == 0.0));
                b[(k - 1) * n] = 0.0;
                a[0] = bad;
                let c = multiply_row_major(isa, shape, &a, &b);
                assert!((0..m * n).all(|i| if i < n { c[i].is_nan() } else { c[i] == 0.0 }));
            }
        }
    }
}

#[test]
fn f64_and_integer_products_are_exact() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b) = (random_values(m * k, 8), random_values(k * n, 9));
        let int = |v: &[f32]| v.iter().map(|x| (x * 1e6) as i32).collect::<Vec<_>>();
        let (ia, ib) = (int(&a), int(&b));
        let sum =
            |i: usize| (0..k).fold(0i32, |s, p| s.wrapping_add(ia[i / n * k + p].wrapping_mul(ib[p * n + i % n])));
        let want: Vec<i32> = (0..m * n).map(sum).collect();
        let wide = |v: &[i32]| v.iter().map(|&x| i64::from(x)).collect::<Vec<_>>();
        let double = |v: &[i32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        for &isa in Isa::available() {
            assert_eq!(multiply_row_major(isa, shape, &ia, &ib), want, "i32 {shape:?} {isa:?}");
            let wide = multiply_row_major(isa, shape, &wide(&ia), &wide(&ib));
            assert!(wide.iter().zip(&want).all(|(&w, &n)| w as i32 == n), "i64 {shape:?} {isa:?}");
            // Every partial sum is an integer below 2⁵³, so `f64` is exact.
            let double = multiply_row_major(isa, shape, &double(&ia), &double(&ib));
            assert!(double.iter().zip(&wide).all(|(&d, &w)| d == w as f64), "f64 {shape:?} {isa:?}");
        }
    }
}

#[test]
fn an_epilogue_processes_each_finished_element_once() {
    for (m, n, k) in [(50, 600, 300), (450, 70, 290), (5, 3, 0), (1, 30, 40), (30, 1, 40)] {
        for layout in [MatrixLayout::RowMajor, MatrixLayout::ColumnMajor, MatrixLayout::Gaps] {
            let (a, b) = (random_values(m * k, 1), random_values(k * n, 2));
            let mut c = TestMatrix::new(m, n, layout, |_| f32::NAN);
            let shape = Gemm {
                m,
                n,
                k,
                a_strides: (k as isize, 1),
                b_strides: (n as isize, 1),
                c_strides: c.strides,
                accumulate: false,
            };
            let epilogue = |part: OutputBlock<f32>| {
                for (r, i) in part.rows.clone().enumerate() {
                    for (s, j) in part.cols.clone().enumerate() {
                        // SAFETY: the element is in the part, which only this call accesses.
                        unsafe {
                            *part.data.offset(r as isize * part.row_stride + s as isize * part.col_stride) +=
                                (i * n + j) as f32
                        }
                    }
                }
            };
            let from = Strided { data: b.as_ptr(), lane: 1, depth: n as isize };
            // SAFETY: *Range*: B has these elements. *Isa*: the processor has `Isa::best()`.
            let panels = unsafe { OwnedPanels::new(Isa::best(), from, (n, k)) }.unwrap();
            for packed_b in [None, Some(*panels)] {
                let c_start = Some(c.data.as_mut_ptr());
                let operands =
                    GemmOperands { a: a.as_ptr(), b: b.as_ptr(), packed_b, c: c_start, epilogue: Some(&epilogue) };
                // SAFETY: the contract of `gemm`. *Bounds*: the matrices have all elements of the shape. *Aliasing*:
                // only this test accesses them. *Epilogue*: the epilogue accesses only the elements of its part.
                // *Panels*: these are the panels of B.
                unsafe { gemm(&shape, &operands, Threads::Pool) }
                let plain = reference_product((m, n, k), &a, &b);
                let want: Vec<f32> = plain.iter().enumerate().map(|(i, x)| x + i as f32).collect();
                let is_packed = packed_b.is_some();
                assert_eq!(bits(&c.values(m)), bits(&want), "{m} × {n} × {k} {layout:?}, packed: {is_packed}");
            }
        }
    }
}

#[test]
fn operands_may_be_broadcast_with_stride_zero() {
    let (m, n, k) = (40, 50, 60);
    let (a, b) = (random_values(k, 1), random_values(n, 2));
    let mut c = vec![0.0; m * n];
    let shape = Gemm { m, n, k, a_strides: (0, 1), b_strides: (0, 1), c_strides: (n as isize, 1), accumulate: false };
    let operands =
        GemmOperands { a: a.as_ptr(), b: b.as_ptr(), packed_b: None, c: Some(c.as_mut_ptr()), epilogue: None };
    // SAFETY: the contract of `gemm`. *Bounds*: all rows of A and B are the same row, by stride 0. *Aliasing*: only
    // this test accesses C.
    unsafe { gemm(&shape, &operands, Threads::One) }
    let (a, b): (Vec<_>, Vec<_>) = (a.repeat(m), b.repeat(k));
    assert_eq!(bits(&c), bits(&reference_product((m, n, k), &a, &b)));
}
