//! `MatMul`: from views to matrix products, and the epilogue.
//!
//! The matrices themselves are multiplied by [`crate::matmul`], for the types that it has: half types
//! go through `f32` and small integers through `i32`, and are rounded or wrapped once, at the end.

use crate::buffer::CpuBuffer;
use crate::list::List;
use crate::matmul::{Element, Epilogue, Finished, Gemm, Offsets, Threads, gemm_batched};
use crate::operand::{Array, Operand, Operands};
use crate::tile::{self, Parts};
use crate::walk::Space;
use pellucid_ir::kernel::{Map, MatMul};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use std::ops::Range;

/// Runs a matrix product: `inputs` are A, B and what the epilogue takes besides.
pub(crate) fn matmul(kernel: &MatMul, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
    check(a, b, out)?;
    let Some(program) = &kernel.epilogue else {
        if out.dtype != a.dtype {
            return Err(mixed(a, b, out));
        }
        return product(a, b, Ok(out), None);
    };
    // The product is finished, and rounded to its dtype, before the epilogue reads it. It lies where an output will, if
    // no input of the epilogue does.
    let map = Map { program: program.clone(), params: kernel.params.clone() };
    let dense = Layout::contiguous(out.shape().clone());
    let others = &inputs[2..];
    let kept = outputs.iter().find(|o| o.dtype == a.dtype && others.iter().all(|i| reach(i).start != reach(o).start));
    let mut c = kept.copied().unwrap_or(Operand { base: std::ptr::null_mut(), layout: &dense, dtype: a.dtype });
    let operands = |c| -> Operands<'_> { [c].into_iter().chain(others.iter().copied()).collect() };
    crate::check::map(&map, &operands(c), outputs)?;
    let apart =
        |o: &Operand<'_>| [a, b].iter().all(|x| reach(x).start >= reach(o).end || reach(o).start >= reach(x).end);
    if outputs.iter().all(apart) && matches!(a.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
        // Each part of the product meets the epilogue while it is in the cache.
        let parts = Parts::new(&map, others, outputs)?;
        return product(a, b, kept.ok_or(out.shape()), Some(parts));
    }
    let scratch;
    if kept.is_none_or(|o| !apart(o)) {
        scratch = scratch_of(&dense, a.dtype)?;
        c = Operand { base: scratch.ensure()?.as_ptr(), layout: &dense, dtype: a.dtype };
    }
    product(a, b, Ok(&c), None)?;
    tile::map(&map, &operands(c), outputs)
}

/// The addresses from the first byte of an operand to the last.
fn reach(o: &Operand<'_>) -> Range<usize> {
    let (mut low, mut high) = (0, 0);
    for (&dim, &stride) in o.shape().iter().zip(&*o.layout.strides()) {
        let far = (dim as isize - 1) * stride;
        if far < 0 { low += far } else { high += far }
    }
    let (first, size) = (o.first::<u8>(), o.dtype.size() as isize);
    first.at(low * size).addr()..first.at((high + 1) * size).addr()
}

fn check(a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let (x, y) = (a.shape(), b.shape());
    let shape = (x.rank() >= 2 && y.rank() >= 2 && x[x.rank() - 1] == y[y.rank() - 2]).then(|| {
        let batch = Shape::from(&x[..x.rank() - 2]).broadcast(&Shape::from(&y[..y.rank() - 2]))?;
        Some(batch.iter().copied().chain([x[x.rank() - 2], y[y.rank() - 1]]).collect::<Shape>())
    });
    if shape.flatten().as_ref() != Some(out.shape()) {
        return Err(Error::shapes("matmul", [x, y, out.shape()], "[.., m, k] times [.., k, n] gives [.., m, n]"));
    }
    if a.dtype != b.dtype { Err(mixed(a, b, out)) } else { Ok(()) }
}

fn mixed(a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Error {
    Error::dtypes("matmul", [a.dtype, b.dtype, out.dtype], "both factors and the product have one dtype")
}

/// Where a product goes; where it is not kept, its shape.
type Place<'a> = std::result::Result<&'a Operand<'a>, &'a Shape>;

/// C = A·B, all of one dtype, and what follows.
fn product(a: &Operand<'_>, b: &Operand<'_>, c: Place<'_>, epilogue: Option<Parts<'_>>) -> Result<()> {
    match (a.dtype, c) {
        (DType::F32, _) => multiply::<f32>(a, b, c, epilogue),
        (DType::F64, _) => multiply::<f64>(a, b, c, epilogue),
        (DType::I32, _) => multiply::<i32>(a, b, c, epilogue),
        (DType::I64, _) => multiply::<i64>(a, b, c, epilogue),
        (DType::F16 | DType::BF16, Ok(c)) => return through(DType::F32, a, b, c),
        (DType::U8 | DType::I8 | DType::I16, Ok(c)) => return through(DType::I32, a, b, c),
        _ => return Err(Error::dtypes("matmul", [a.dtype], "convert masks to a number type first")),
    }
    Ok(())
}

/// The product of the factors converted to `wide`, converted back.
fn through(wide: DType, a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) -> Result<()> {
    let layouts = [a, b, c].map(|o| Layout::contiguous(o.shape().clone()));
    let mut scratch: List<CpuBuffer, 3> = List::new();
    for layout in &layouts {
        scratch.push(scratch_of(layout, wide)?);
    }
    let operand = |i: usize| -> Result<Operand<'_>> {
        Ok(Operand { base: scratch[i].ensure()?.as_ptr(), layout: &layouts[i], dtype: wide })
    };
    let (wide_a, wide_b, wide_c) = (operand(0)?, operand(1)?, operand(2)?);
    tile::copy(a, &wide_a)?;
    tile::copy(b, &wide_b)?;
    product(&wide_a, &wide_b, Ok(&wide_c), None)?;
    tile::copy(&wide_c, c)
}

fn scratch_of(layout: &Layout, dtype: DType) -> Result<CpuBuffer> {
    CpuBuffer::scratch(layout.shape().size().saturating_mul(dtype.size()))
}

fn multiply<T: Element>(a: &Operand<'_>, b: &Operand<'_>, c: Place<'_>, mut epilogue: Option<Parts<'_>>) {
    let shape = c.map_or_else(|shape| shape, |c| c.shape());
    if shape.contains(&0) {
        return;
    }
    let batch_rank = shape.rank() - 2;
    let matrix = |o: &Operand<'_>| {
        let (rank, strides) = (o.shape().rank(), o.layout.strides());
        (o.shape()[rank - 2], o.shape()[rank - 1], (strides[rank - 2], strides[rank - 1]))
    };
    let ((m, k, a_strides), (_, n, b_strides)) = (matrix(a), matrix(b));
    let c_strides = c.map_or((n as isize, 1), |c| matrix(c).2);
    let mut gemm = Gemm { m, n, k, a_strides, b_strides, c_strides, accumulate: false };
    let stride = |o: &Operand<'_>, axis: usize| match (axis + o.shape().rank()).checked_sub(batch_rank + 2) {
        Some(own) if o.shape()[own] != 1 => o.layout.strides()[own],
        _ => 0,
    };
    let steps = |axis: usize| [stride(a, axis), stride(b, axis), c.map_or(0, |c| stride(c, axis))];
    let mut batch: List<(usize, [isize; 3]), 6> = (0..batch_rank).map(|axis| (shape[axis], steps(axis))).collect();
    // Many rows times one matrix are one product of more rows. With m, n > 1 the order of summation
    // depends on k alone, so that no bit tells the difference.
    while let Some(&(len, [x, y, z])) = batch.last() {
        let more_rows =
            y == 0 && x == a_strides.0 * gemm.m as isize && (c.is_err() || z == c_strides.0 * gemm.m as isize);
        if len == 1 || m > 1 && n > 1 && more_rows && epilogue.as_mut().is_none_or(Parts::fold) {
            gemm.m *= len;
            batch.pop();
        } else {
            break;
        }
    }
    let space = Space::new(batch.iter().copied());
    let mut offsets: List<Offsets, 8> = List::with_capacity(space.len());
    let step = space.step();
    space.runs(0..space.len(), |at, count| {
        let offset = |i: isize, operand: usize| at[operand] + i * step[operand];
        offsets.extend((0..count as isize).map(|i| Offsets { a: offset(i, 0), b: offset(i, 1), c: offset(i, 2) }));
    });
    let (a, b, c) = (a.first::<T>(), b.first::<T>(), c.ok().map(|c| c.first::<T>().get()));
    let epilogue = epilogue.as_ref().map(|parts| -> &dyn Epilogue<T> { parts });
    // SAFETY: the operands hold all elements of their shapes, which fit one another (`check`); the
    // outputs are no broadcast views and overlap no factor.
    unsafe { gemm_batched(&gemm, &offsets, a.get(), b.get(), c, epilogue, Threads::Pool) }
}

impl<T: Element> Epilogue<T> for Parts<'_> {
    fn finish(&self, part: Finished<T>) {
        let size = size_of::<T>() as isize;
        let steps = [part.row_stride * size, part.col_stride * size];
        // SAFETY: parts of the product lie in it, and are finished by one thread each; others than their own outputs are
        // not written.
        unsafe { self.run(part.batch, part.rows, part.cols, part.data.cast(), steps) }
    }

    fn expect(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        self.prefetch(batch, rows, cols);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Lie, numbers};
    use crate::with_threads;
    use pellucid_ir::formula;
    use pellucid_ir::kernel::Kernel;

    fn naive(a: (&Shape, &[f64]), b: (&Shape, &[f64]), out: &Shape) -> Vec<f64> {
        let (m, n, k) = (out[out.rank() - 2], out[out.rank() - 1], a.0[a.0.rank() - 1]);
        let matrix = |s: &Shape, batch: usize| {
            let (mut flat, mut at, mut step) = (batch, 0, s[s.rank() - 2] * s[s.rank() - 1]);
            for axis in (0..out.rank() - 2).rev() {
                let i = flat % out[axis];
                flat /= out[axis];
                if let Some(own) = (axis + s.rank()).checked_sub(out.rank()) {
                    at += if s[own] == 1 { 0 } else { i * step };
                    step *= s[own];
                }
            }
            at
        };
        let mut c = vec![];
        for batch in 0..out[..out.rank() - 2].iter().product() {
            let (x, y) = (matrix(a.0, batch), matrix(b.0, batch));
            for i in 0..m * n {
                c.push((0..k).map(|l| a.1[x + i / n * k + l] * b.1[y + l * n + i % n]).sum());
            }
        }
        c
    }

    #[test]
    fn batches_broadcast_in_every_layout_and_dtype() {
        for (x, y, z) in [
            (Shape::from([3, 4]), Shape::from([4, 5]), Shape::from([3, 5])),
            ([2, 3, 4].into(), [4, 5].into(), [2, 3, 5].into()),
            ([2, 1, 4].into(), [4, 5].into(), [2, 1, 5].into()),
            ([2, 3, 4].into(), [2, 4, 1].into(), [2, 3, 1].into()),
            ([6, 1, 3, 4].into(), [2, 4, 5].into(), [6, 2, 3, 5].into()),
            ([1, 3, 0].into(), [7, 0, 5].into(), [7, 3, 5].into()),
            ([0, 3, 4].into(), [4, 5].into(), [0, 3, 5].into()),
            ([40, 70].into(), [70, 90].into(), [40, 90].into()),
        ] {
            let (a, b) = (numbers(x.size(), 2, 1), numbers(y.size(), 2, 2));
            let expected = naive((&x, &a), (&y, &b), &z);
            for (lie, dtype) in Lie::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
                let (a, b) =
                    (testing::Array::cast(x.clone(), lie, dtype, &a), testing::Array::cast(y.clone(), lie, dtype, &b));
                let c = testing::Array::new(z.clone(), dtype, lie);
                testing::run(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
                let wrap = |v: f64| if dtype == DType::I8 { v as i64 as i8 as f64 } else { v };
                let expected: Vec<f64> = expected.iter().map(|&v| wrap(v)).collect();
                assert_eq!(c.reals(), expected, "{x} {y} {lie:?} {dtype}");
            }
        }
    }

    #[test]
    fn folding_a_batch_into_rows_and_threads_change_no_bit() {
        let (x, y) = (Shape::from([6, 50, 300]), Shape::from([300, 40]));
        let real = |n, seed| numbers(n, 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
        let (a, b) = (real(x.size(), 1), real(y.size(), 2));
        let of = |lie, threads| {
            with_threads(threads, || {
                let a = testing::Array::cast(x.clone(), lie, DType::F32, &a);
                let b = testing::Array::cast(y.clone(), Lie::Plain, DType::F32, &b);
                let c = testing::Array::new([6, 50, 40], DType::F32, lie);
                testing::run(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
                c.values::<f32>()
            })
        };
        let folded = of(Lie::Plain, 1);
        // Column-major batches cannot be folded.
        Lie::ALL.into_iter().for_each(|lie| assert_eq!(of(lie, 3), folded, "{lie:?}"));
    }

    #[test]
    fn the_epilogue_reads_the_product_rounded_to_its_dtype() {
        let (x, y) = (Shape::from([2, 5, 8]), Shape::from([8, 6]));
        let (a, b, bias) = (numbers(x.size(), 60, 1), numbers(y.size(), 60, 2), numbers(6, 9, 3));
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let program = formula!(|c, bias| (c + bias).relu()).uniform_program(dtype).unwrap().clone();
            let kernel = MatMul { epilogue: Some(program), params: Default::default() };
            for lie in Lie::ALL {
                let factors =
                    [testing::Array::cast(x.clone(), lie, dtype, &a), testing::Array::cast(y.clone(), lie, dtype, &b)];
                let bias = testing::Array::cast([6], lie, dtype, &bias);
                let [plain, fused] = [(); 2].map(|()| testing::Array::new([2, 5, 6], dtype, lie));
                testing::run(Kernel::MatMul(MatMul::default()), &[&factors[0], &factors[1]], &[&plain]).unwrap();
                testing::run(Kernel::MatMul(kernel.clone()), &[&factors[0], &factors[1], &bias], &[&fused]).unwrap();
                let map = Map { program: kernel.epilogue.clone().unwrap(), params: Default::default() };
                testing::run(Kernel::Map(map), &[&plain, &bias], &[&plain]).unwrap();
                assert_eq!(fused.reals(), plain.reals(), "{dtype} {lie:?}");
            }
        }
    }

    /// What a kernel with an epilogue gives, beside the product and the map one after the other.
    fn beside(
        program: &std::sync::Arc<pellucid_ir::formula::Program>,
        (x, y): (&testing::Array, &testing::Array),
        others: &[&testing::Array],
        (fused, apart): (&[&testing::Array], &[&testing::Array]),
        product: &testing::Array,
    ) {
        let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
        let inputs: Vec<&testing::Array> = [x, y].into_iter().chain(others.iter().copied()).collect();
        testing::run(Kernel::MatMul(kernel), &inputs, fused).unwrap();
        testing::run(Kernel::MatMul(MatMul::default()), &[x, y], &[product]).unwrap();
        let map = Map { program: program.clone(), params: Default::default() };
        let inputs: Vec<&testing::Array> = [product].into_iter().chain(others.iter().copied()).collect();
        testing::run(Kernel::Map(map), &inputs, apart).unwrap();
    }

    #[test]
    fn an_epilogue_of_several_outputs_meets_the_product_part_by_part() {
        // Several blocks of the columns, of the depth and of the rows; a batch that folds and one that does not; vectors.
        for (x, y, z) in [
            (Shape::from([40, 300]), Shape::from([300, 1100]), Shape::from([40, 1100])),
            ([700, 20].into(), [20, 530].into(), [700, 530].into()),
            ([3, 30, 20].into(), [20, 70].into(), [3, 30, 70].into()),
            ([2, 3, 30, 20].into(), [3, 20, 7].into(), [2, 3, 30, 7].into()),
            ([1, 90].into(), [90, 50].into(), [1, 50].into()),
            ([50, 90].into(), [90, 1].into(), [50, 1].into()),
            ([5, 0].into(), [0, 6].into(), [5, 6].into()),
        ] {
            let real =
                |s: &Shape, seed| numbers(s.size(), 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
            let (m, n) = (z[z.rank() - 2], z[z.rank() - 1]);
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let program = formula!(|c, row, column, one, whole| {
                    let sum = c + row * column + one;
                    (sum, sum.tanh() * whole, c)
                });
                let program = program.uniform_program(dtype).unwrap();
                for (lie, threads) in Lie::ALL.into_iter().zip([1, 3].into_iter().cycle()) {
                    let of = |s: Shape, seed| testing::Array::cast(s.clone(), lie, dtype, &real(&s, seed));
                    let (a, b) = (of(x.clone(), 1), of(y.clone(), 2));
                    let others = [of([n].into(), 3), of([m, 1].into(), 4), of(Shape::scalar(), 5), of(z.clone(), 6)];
                    let others = others.each_ref();
                    let new = || [(); 3].map(|()| testing::Array::new(z.clone(), dtype, lie));
                    let (fused, apart, product) = (new(), new(), testing::Array::new(z.clone(), dtype, lie));
                    with_threads(threads, || {
                        let outputs = (&fused.each_ref()[..], &apart.each_ref()[..]);
                        beside(program, (&a, &b), &others, outputs, &product);
                    });
                    for (fused, apart) in fused.iter().zip(&apart) {
                        assert_eq!(fused.reals(), apart.reals(), "{x} {y} {lie:?} {dtype}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_epilogue_writes_where_it_reads_and_over_a_factor() {
        let shape = Shape::from([600, 520]);
        let real = |s: &Shape, seed| numbers(s.size(), 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
        let of = |s: &Shape, seed| testing::Array::cast(s.clone(), Lie::Plain, DType::F32, &real(s, seed));
        let program = formula!(|g, p, m| {
            let m = m * 0.9 + g;
            (p - m * 0.1, m)
        });
        let program = program.uniform_program(DType::F32).unwrap();
        let (x, y) = (of(&[600, 30].into(), 1), of(&[30, 520].into(), 2));
        let [[p, m], [q, n]] = [(); 2].map(|()| [of(&shape, 3), of(&shape, 4)]);
        let product = testing::Array::new(shape.clone(), DType::F32, Lie::Plain);
        let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
        testing::run(Kernel::MatMul(kernel), &[&x, &y, &p, &m], &[&p, &m]).unwrap();
        testing::run(Kernel::MatMul(MatMul::default()), &[&x, &y], &[&product]).unwrap();
        let map = Map { program: program.clone(), params: Default::default() };
        testing::run(Kernel::Map(map), &[&product, &q, &n], &[&q, &n]).unwrap();
        assert_eq!((p.reals(), m.reals()), (q.reals(), n.reals()));

        // x ← x·w + x: the factor is whole until the product is.
        let square = Shape::from([300, 300]);
        let (x, w, once) = (of(&square, 5), of(&square, 6), of(&square, 5));
        let program = formula!(|c, x| c + x).uniform_program(DType::F32).unwrap().clone();
        let new = testing::Array::new(square, DType::F32, Lie::Plain);
        let kernel = Kernel::MatMul(MatMul { epilogue: Some(program), params: Default::default() });
        testing::run(kernel.clone(), &[&once, &w, &once], &[&new]).unwrap();
        testing::run(kernel, &[&x, &w, &x], &[&x]).unwrap();
        assert_eq!(x.reals(), new.reals());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of =
            |shape: &[usize], dtype| testing::Array::cast(shape, Lie::Plain, dtype, &vec![1.0; shape.iter().product()]);
        let go = |a: &testing::Array, b: &testing::Array, c: &testing::Array| {
            testing::run(Kernel::MatMul(MatMul::default()), &[a, b], &[c])
        };
        let (a, b, c) = (of(&[2, 3], DType::F32), of(&[3, 2], DType::F32), of(&[2, 2], DType::F32));
        assert!(matches!(go(&a, &a, &c), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(go(&a, &b, &b), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(go(&a, &of(&[3], DType::F32), &c), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(go(&a, &of(&[3, 2], DType::F64), &c), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(go(&a, &b, &of(&[2, 2], DType::F64)), Err(Error::DTypeMismatch { .. })));
        let (a, b, c) = (of(&[2, 3], DType::Bool), of(&[3, 2], DType::Bool), of(&[2, 2], DType::Bool));
        assert!(matches!(go(&a, &b, &c), Err(Error::DTypeMismatch { .. })));
    }
}
