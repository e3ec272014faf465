//! `MatMul`: from views to matrix products, and the epilogue.
//!
//! The matrices themselves are multiplied by [`crate::matmul`], for the types that it has: half types
//! go through `f32` and small integers through `i32`, and are rounded or wrapped once, at the end.

use crate::buffer::CpuBuffer;
use crate::list::List;
use crate::matmul::{Element, Gemm, Offsets, Threads, gemm_batched};
use crate::operand::{Array, Operand, Operands};
use crate::tile;
use crate::walk::Space;
use pellucid_ir::kernel::{Map, MatMul};
use pellucid_ir::{DType, Error, Layout, Result, Shape};

/// Runs a matrix product: `inputs` are A, B and what the epilogue takes besides.
pub(crate) fn matmul(kernel: &MatMul, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
    check(a, b, out)?;
    let Some(program) = &kernel.epilogue else {
        if out.dtype != a.dtype {
            return Err(mixed(a, b, out));
        }
        return product(a, b, out);
    };
    // The product is finished, and rounded to its dtype, before the epilogue reads it.
    let map = Map { program: program.clone(), params: kernel.params.clone() };
    let dense = Layout::contiguous(out.shape().clone());
    let scratch;
    let c = if out.dtype == a.dtype && outputs.len() == 1 {
        *out
    } else {
        scratch = scratch_of(&dense, a.dtype)?;
        Operand { base: scratch.ensure()?.as_ptr(), layout: &dense, dtype: a.dtype }
    };
    let operands: Operands<'_> = [c].into_iter().chain(inputs[2..].iter().copied()).collect();
    crate::check::map(&map, &operands, outputs)?;
    product(a, b, &c)?;
    tile::map(&map, &operands, outputs)
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

/// C = A·B, all of one dtype.
fn product(a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) -> Result<()> {
    match c.dtype {
        DType::F32 => multiply::<f32>(a, b, c),
        DType::F64 => multiply::<f64>(a, b, c),
        DType::I32 => multiply::<i32>(a, b, c),
        DType::I64 => multiply::<i64>(a, b, c),
        DType::Bool => return Err(Error::dtypes("matmul", [DType::Bool], "convert masks to a number type first")),
        DType::F16 | DType::BF16 => return through(DType::F32, a, b, c),
        DType::U8 | DType::I8 | DType::I16 => return through(DType::I32, a, b, c),
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
    product(&wide_a, &wide_b, &wide_c)?;
    tile::copy(&wide_c, c)
}

fn scratch_of(layout: &Layout, dtype: DType) -> Result<CpuBuffer> {
    CpuBuffer::scratch(layout.shape().size().saturating_mul(dtype.size()))
}

fn multiply<T: Element>(a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) {
    if c.shape().contains(&0) {
        return;
    }
    let batch_rank = c.shape().rank() - 2;
    let matrix = |o: &Operand<'_>| {
        let (rank, strides) = (o.shape().rank(), o.layout.strides());
        (o.shape()[rank - 2], o.shape()[rank - 1], (strides[rank - 2], strides[rank - 1]))
    };
    let ((m, k, a_strides), (_, n, b_strides), (.., c_strides)) = (matrix(a), matrix(b), matrix(c));
    let mut gemm = Gemm { m, n, k, a_strides, b_strides, c_strides, accumulate: false };
    let stride = |o: &Operand<'_>, axis: usize| match (axis + o.shape().rank()).checked_sub(batch_rank + 2) {
        Some(own) if o.shape()[own] != 1 => o.layout.strides()[own],
        _ => 0,
    };
    let mut batch: List<(usize, [isize; 3]), 6> =
        (0..batch_rank).map(|axis| (c.shape()[axis], [a, b, c].map(|o| stride(o, axis)))).collect();
    // Many rows times one matrix are one product of more rows. With m, n > 1 the order of summation
    // depends on k alone, so that no bit tells the difference.
    while let Some(&(len, [x, y, z])) = batch.last() {
        let more_rows = y == 0 && x == a_strides.0 * gemm.m as isize && z == c_strides.0 * gemm.m as isize;
        if len == 1 || (m > 1 && n > 1 && more_rows) {
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
    let (a, b, c) = (a.first::<T>(), b.first::<T>(), c.first::<T>());
    // SAFETY: the operands hold all elements of their shapes, which fit one another (`check`); the
    // output is no broadcast view and overlaps no input, by the contract of `Backend`.
    unsafe { gemm_batched(&gemm, &offsets, a.get(), b.get(), c.get(), None, Threads::Pool) }
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
