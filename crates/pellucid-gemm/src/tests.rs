//! The product against a plain definition, and its bits against themselves.

use super::*;
use pellucid_runtime::testing::Guarded;
use pellucid_runtime::threads::with_threads;

/// Small reproducible numbers in (-1, 1) (a multiplicative congruential generator).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// A matrix stored by rows, by columns, or with gaps on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Storage {
    RowMatVec,
    ColumnMatVec,
    Gaps,
    Backwards,
}

pub(crate) const STORAGES: [Storage; 4] =
    [Storage::RowMatVec, Storage::ColumnMatVec, Storage::Gaps, Storage::Backwards];

/// A matrix with storage of its own.
pub(crate) struct Matrix<T> {
    pub(crate) data: Guarded<T>,
    strides: (isize, isize),
    start: usize,
    cols: usize,
}

impl<T: Element + bytemuck::Pod> Matrix<T> {
    pub(crate) fn new(rows: usize, cols: usize, storage: Storage, value: impl Fn(usize) -> T) -> Self {
        let (r, c) = (rows as isize, cols as isize);
        let (strides, start, len) = match storage {
            Storage::RowMatVec => ((c, 1), 0, r * c),
            Storage::ColumnMatVec => ((1, r), 0, r * c),
            Storage::Gaps => ((2 * c + 1, 2), 0, r * (2 * c + 1)),
            Storage::Backwards => ((-c, -1), (r * c - 1).max(0) as usize, r * c),
        };
        let mut matrix = Self { data: Guarded::of(&vec![T::ZERO; len as usize]), strides, start, cols };
        for i in 0..rows * cols {
            let at = matrix.at(i / cols, i % cols);
            matrix.data[at] = value(i);
        }
        matrix
    }

    pub(crate) fn at(&self, i: usize, j: usize) -> usize {
        (self.start as isize + i as isize * self.strides.0 + j as isize * self.strides.1) as usize
    }

    fn values(&self, rows: usize) -> Vec<T> {
        (0..rows * self.cols).map(|i| self.data[self.at(i / self.cols, i % self.cols)]).collect()
    }
}

/// C in row-major order, from C = start.
#[allow(clippy::too_many_arguments)]
pub(crate) fn product<T: Element + bytemuck::Pod>(
    isa: Isa,
    (m, n, k): (usize, usize, usize),
    storage: [Storage; 3],
    a: &[T],
    b: &[T],
    start: &[T],
    accumulate: bool,
    threads: Threads,
) -> Vec<T> {
    let a = Matrix::new(m, k, storage[0], |i| a[i]);
    let b = Matrix::new(k, n, storage[1], |i| b[i]);
    let mut c = Matrix::new(m, n, storage[2], |i| start[i]);
    let shape = Gemm { m, n, k, a_strides: a.strides, b_strides: b.strides, c_strides: c.strides, accumulate };
    let c_start = c.data.as_mut_ptr().wrapping_add(c.start);
    let (a_start, b_start) = (a.data.as_ptr().wrapping_add(a.start), b.data.as_ptr().wrapping_add(b.start));
    let before = c.data.to_vec();
    // SAFETY: `Matrix` holds every element that its strides reach.
    unsafe { gemm_at(isa, &shape, &[Offsets::default()], a_start, b_start, Some(c_start), None, threads) }
    let values = c.values(m);
    // What lies between the elements of C stays as it is.
    (0..m * n).for_each(|i| {
        let at = c.at(i / n, i % n);
        c.data[at] = before[at];
    });
    assert_eq!(bytemuck::cast_slice::<T, u8>(&c.data), bytemuck::cast_slice::<T, u8>(&before), "{shape:?}");
    values
}

fn rows<T: Element + bytemuck::Pod>(isa: Isa, shape: (usize, usize, usize), a: &[T], b: &[T]) -> Vec<T> {
    let zero = vec![T::ZERO; shape.0 * shape.1];
    product(isa, shape, [Storage::RowMatVec; 3], a, b, &zero, false, Threads::One)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every height and width of a register tile, several blocks of every dimension, and vectors.
const SHAPES: [(usize, usize, usize); 20] = [
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
];

/// The stated order, number by number: blocks of k for matrices, lanes and a tree for vectors.
fn in_stated_order((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32]) -> Vec<f32> {
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
            block::depth_blocks(k).map(|block| block.fold(0.0, |s, p| term(p, s))).reduce(|x, y| x + y).unwrap_or(0.0)
        }
    };
    (0..m * n).map(|i| element(i / n, i % n)).collect()
}

#[test]
fn every_level_and_layout_gives_the_stated_bits() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let want = bits(&in_stated_order(shape, &a, &b));
        let zero = vec![f32::NAN; m * n];
        for &isa in Isa::available() {
            for layout in 0..64 {
                let storage = [STORAGES[layout % 4], STORAGES[layout / 4 % 4], STORAGES[layout / 16]];
                let got = product(isa, shape, storage, &a, &b, &zero, false, Threads::One);
                assert_eq!(bits(&got), want, "{shape:?} {isa:?} {storage:?}");
            }
        }
    }
}

#[test]
fn accumulating_adds_block_by_block() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
        let run = |isa, storage| bits(&product(isa, shape, storage, &a, &b, &c, true, Threads::One));
        let want = run(Isa::best(), [Storage::RowMatVec; 3]);
        let once = in_stated_order(shape, &a, &b);
        for (i, (&w, (&c, &s))) in want.iter().zip(c.iter().zip(&once)).enumerate() {
            assert!((f32::from_bits(w) - (c + s)).abs() < 1e-4, "{shape:?} element {i}");
        }
        for &isa in Isa::available() {
            for layout in 0..64 {
                let storage = [STORAGES[layout % 4], STORAGES[layout / 4 % 4], STORAGES[layout / 16]];
                assert_eq!(run(isa, storage), want, "{shape:?} {isa:?} {storage:?}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for shape @ (m, n, k) in [(160, 150, 140), (14, 900, 200), (900, 9, 300), (2000, 1, 1100), (1, 2100, 1050)] {
        let (a, b) = (numbers(m * k, 4), numbers(k * n, 5));
        let want = bits(&in_stated_order(shape, &a, &b));
        for threads in [1, 2, 8] {
            for storage in [[Storage::RowMatVec; 3], [Storage::ColumnMatVec; 3]] {
                let got = with_threads(threads, || {
                    product(Isa::best(), shape, storage, &a, &b, &vec![0.0; m * n], false, Threads::Pool)
                });
                assert_eq!(bits(&got), want, "{shape:?} on {threads}");
            }
        }
    }
}

#[test]
fn a_batch_is_its_products() {
    for (count, (m, n, k)) in
        [(3, (5, 6, 7)), (40, (30, 40, 50)), (2, (120, 130, 90)), (5, (1, 80, 90)), (70, (200, 1, 100))]
    {
        let (a, b) = (numbers(count * m * k, 6), numbers(k * n, 7));
        let each: Vec<f32> = a.chunks(m * k).flat_map(|a| rows(Isa::best(), (m, n, k), a, &b)).collect();
        // B is shared by all products: its offset never moves.
        let batch: Vec<_> =
            (0..count).map(|i| Offsets { a: (i * m * k) as isize, b: 0, c: (i * m * n) as isize }).collect();
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
            let (a, b, c_start) = (Shared(a.as_ptr()), Shared(b.as_ptr()), Shared(c.as_mut_ptr()));
            // SAFETY: the vectors hold the batch.
            with_threads(threads, || unsafe {
                gemm_batched(&shape, &batch, a.get(), b.get(), Some(c_start.get()), None, Threads::Pool)
            });
            assert_eq!(bits(&c), bits(&each), "{count} of {m}x{n}x{k} on {threads}");
        }
    }
}

/// A pointer that goes to another thread.
#[derive(Clone, Copy)]
struct Shared<P>(P);

impl<P: Copy> Shared<P> {
    fn get(&self) -> P {
        self.0
    }
}

// SAFETY: the tests that share a pointer keep what it points to, and wait for the other thread.
unsafe impl<P> Send for Shared<P> {}
// SAFETY: as above.
unsafe impl<P> Sync for Shared<P> {}

#[test]
fn empty_products_are_zero_or_leave_c() {
    for &isa in Isa::available() {
        for (m, n, k) in [(3, 4, 0), (1, 4, 0), (4, 1, 0), (0, 4, 5), (4, 0, 5), (0, 0, 0), (1, 0, 3), (0, 1, 3)] {
            let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), vec![7.0; m * n]);
            let run =
                |accumulate| product(isa, (m, n, k), [Storage::RowMatVec; 3], &a, &b, &c, accumulate, Threads::Pool);
            assert_eq!(run(false), vec![0.0; m * n]);
            assert_eq!(run(true), c);
        }
    }
}

#[test]
fn nan_and_infinity_arrive() {
    for &isa in Isa::available() {
        for shape @ (m, n, k) in [(3, 3, 3), (20, 40, 300), (1, 20, 40), (20, 1, 40), (1, 1, 5)] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut a = vec![0.0; m * k];
                let mut b = vec![0.0; k * n];
                b[(k - 1) * n] = bad;
                let c = rows(isa, shape, &a, &b);
                assert!((0..m).all(|i| c[i * n].is_nan()), "0 · {bad} {shape:?} {isa:?}");
                assert!((0..m * n).all(|i| i % n == 0 || c[i] == 0.0));
                b[(k - 1) * n] = 0.0;
                a[0] = bad;
                let c = rows(isa, shape, &a, &b);
                assert!((0..m * n).all(|i| if i < n { c[i].is_nan() } else { c[i] == 0.0 }));
            }
        }
    }
}

#[test]
fn doubles_and_integers() {
    for shape @ (m, n, k) in SHAPES {
        let (a, b) = (numbers(m * k, 8), numbers(k * n, 9));
        let int = |v: &[f32]| v.iter().map(|x| (x * 1e6) as i32).collect::<Vec<_>>();
        let (ia, ib) = (int(&a), int(&b));
        let sum =
            |i: usize| (0..k).fold(0i32, |s, p| s.wrapping_add(ia[i / n * k + p].wrapping_mul(ib[p * n + i % n])));
        let want: Vec<i32> = (0..m * n).map(sum).collect();
        let wide = |v: &[i32]| v.iter().map(|&x| i64::from(x)).collect::<Vec<_>>();
        let double = |v: &[i32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        for &isa in Isa::available() {
            assert_eq!(rows(isa, shape, &ia, &ib), want, "i32 {shape:?} {isa:?}");
            let wide = rows(isa, shape, &wide(&ia), &wide(&ib));
            assert!(wide.iter().zip(&want).all(|(&w, &n)| w as i32 == n), "i64 {shape:?} {isa:?}");
            // Every partial sum is an integer below 2⁵³, so doubles are exact.
            let double = rows(isa, shape, &double(&ia), &double(&ib));
            assert!(double.iter().zip(&wide).all(|(&d, &w)| d == w as f64), "f64 {shape:?} {isa:?}");
        }
    }
}

#[test]
fn an_epilogue_sees_each_element_once_finished() {
    for (m, n, k) in [(50, 600, 300), (5, 3, 0), (1, 30, 40), (30, 1, 40)] {
        for storage in [Storage::RowMatVec, Storage::ColumnMatVec, Storage::Gaps] {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let mut c = Matrix::new(m, n, storage, |_| f32::NAN);
            let shape = Gemm {
                m,
                n,
                k,
                a_strides: (k as isize, 1),
                b_strides: (n as isize, 1),
                c_strides: c.strides,
                accumulate: false,
            };
            let epilogue = |part: Finished<f32>| {
                for (r, i) in part.rows.clone().enumerate() {
                    for (s, j) in part.cols.clone().enumerate() {
                        // SAFETY: the element belongs to the part.
                        unsafe {
                            *part.data.offset(r as isize * part.row_stride + s as isize * part.col_stride) +=
                                (i * n + j) as f32
                        }
                    }
                }
            };
            // SAFETY: the matrices hold the shape.
            unsafe { gemm(&shape, a.as_ptr(), b.as_ptr(), Some(c.data.as_mut_ptr()), Some(&epilogue), Threads::Pool) }
            let plain = in_stated_order((m, n, k), &a, &b);
            let want: Vec<f32> = plain.iter().enumerate().map(|(i, x)| x + i as f32).collect();
            assert_eq!(bits(&c.values(m)), bits(&want), "{m}x{n}x{k} {storage:?}");
        }
    }
}

#[test]
fn broadcast_operands_have_stride_zero() {
    let (m, n, k) = (40, 50, 60);
    let (a, b) = (numbers(k, 1), numbers(n, 2));
    let mut c = vec![0.0; m * n];
    let shape = Gemm { m, n, k, a_strides: (0, 1), b_strides: (0, 1), c_strides: (n as isize, 1), accumulate: false };
    // SAFETY: rows of A and B repeat one row.
    unsafe { gemm(&shape, a.as_ptr(), b.as_ptr(), Some(c.as_mut_ptr()), None, Threads::One) }
    let (a, b): (Vec<_>, Vec<_>) = (a.repeat(m), b.repeat(k));
    assert_eq!(bits(&c), bits(&in_stated_order((m, n, k), &a, &b)));
}
