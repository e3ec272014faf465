//! `MatMul`: from views to matrix products, and the epilogue.
//!
//! The matrices themselves are multiplied by [`crate::matmul`], for the types that it has: half types
//! go through `f32` and small integers through `i32`, and are rounded or wrapped once, at the end.

#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::operand::{Array, Operand, Operands};
use crate::program::{self, MapEpilogue};
use crate::strided::IndexSpace;
use pellucid_gemm::{Epilogue, Finished, Gemm, Offsets, Threads, gemm_batched};
use pellucid_ir::kernel::{Map, MatMul};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_simd::Element;
use std::ops::Range;

impl CpuFamily for MatMul {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
        check_factors(a, b, out)?;
        let Some(program) = &self.epilogue else {
            return if out.dtype == a.dtype { Ok(()) } else { Err(mixed(a, b, out)) };
        };
        // The first input of the epilogue is the product.
        let map = Map { program: program.clone(), params: self.params.clone() };
        let dense = Layout::contiguous(out.shape().clone());
        let product = Operand { base: std::ptr::null_mut(), layout: &dense, dtype: a.dtype };
        let operands: Operands<'_> = [product].into_iter().chain(inputs[2..].iter().copied()).collect();
        map.check(&operands, outputs)
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_matmul(self, inputs, outputs)
    }
}

/// Runs a matrix product: `inputs` are A, B and the other inputs of the epilogue.
fn run_matmul(kernel: &MatMul, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
    let Some(program) = &kernel.epilogue else {
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
    let apart =
        |o: &Operand<'_>| [a, b].iter().all(|x| reach(x).start >= reach(o).end || reach(o).start >= reach(x).end);
    if outputs.iter().all(apart) && matches!(a.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
        // Each part of the product meets the epilogue while it is in the cache.
        let parts = MapEpilogue::new(&map, others, outputs)?;
        return product(a, b, kept.ok_or(out.shape()), Some(parts));
    }
    let scratch;
    if kept.is_none_or(|o| !apart(o)) {
        scratch = scratch_of(&dense, a.dtype)?;
        c = Operand { base: scratch.ensure()?.as_ptr(), layout: &dense, dtype: a.dtype };
    }
    product(a, b, Ok(&c), None)?;
    map.run(&operands(c), outputs)
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

fn check_factors(a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    let (x, y) = (a.shape(), b.shape());
    let shape = (x.rank() >= 2 && y.rank() >= 2 && x[x.rank() - 1] == y[y.rank() - 2]).then(|| {
        let batch = Shape::from(&x[..x.rank() - 2]).broadcast(&Shape::from(&y[..y.rank() - 2]))?;
        Some(batch.iter().copied().chain([x[x.rank() - 2], y[y.rank() - 1]]).collect::<Shape>())
    });
    if shape.flatten().as_ref() != Some(out.shape()) {
        return Err(Error::shapes("matmul", [x, y, out.shape()], "[.., m, k] times [.., k, n] gives [.., m, n]"));
    }
    if a.dtype == DType::Bool {
        return Err(Error::dtypes("matmul", [a.dtype], "convert masks to a number type first"));
    }
    if a.dtype != b.dtype { Err(mixed(a, b, out)) } else { Ok(()) }
}

fn mixed(a: &Operand<'_>, b: &Operand<'_>, out: &Operand<'_>) -> Error {
    Error::dtypes("matmul", [a.dtype, b.dtype, out.dtype], "both factors and the product have one dtype")
}

/// Where a product goes; where it is not kept, its shape.
type Place<'a> = std::result::Result<&'a Operand<'a>, &'a Shape>;

/// C = A·B, all of one dtype, and what follows.
fn product(a: &Operand<'_>, b: &Operand<'_>, c: Place<'_>, epilogue: Option<MapEpilogue<'_>>) -> Result<()> {
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
    program::copy(a, &wide_a)?;
    program::copy(b, &wide_b)?;
    product(&wide_a, &wide_b, Ok(&wide_c), None)?;
    program::copy(&wide_c, c)
}

fn scratch_of(layout: &Layout, dtype: DType) -> Result<CpuBuffer> {
    CpuBuffer::scratch(layout.shape().size().saturating_mul(dtype.size()))
}

fn multiply<T: Element>(a: &Operand<'_>, b: &Operand<'_>, c: Place<'_>, mut epilogue: Option<MapEpilogue<'_>>) {
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
        if len == 1 || m > 1 && n > 1 && more_rows && epilogue.as_mut().is_none_or(MapEpilogue::fold) {
            gemm.m *= len;
            batch.pop();
        } else {
            break;
        }
    }
    let space = IndexSpace::new(batch.iter().copied());
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

impl<T: Element> Epilogue<T> for MapEpilogue<'_> {
    fn finish(&self, part: Finished<T>) {
        let size = size_of::<T>() as isize;
        let steps = [part.row_stride * size, part.col_stride * size];
        // SAFETY: parts of the product lie in it, and are finished by one thread each; others than their own outputs are
        // not written.
        unsafe { self.run(part.batch, part.rows, part.cols, part.data.cast(), steps) }
    }

    fn prefetch_epilogue(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        self.prefetch(batch, rows, cols);
    }
}
