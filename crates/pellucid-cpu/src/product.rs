//! The `MatMul` family: from views to the packed product, for every dtype.

use crate::buffer::CpuBuffer;
use crate::matmul::{Element, Gemm, Offsets, Threads, gemm_batched};
use crate::operand::{Array, Operand};
use crate::tile;
use pellucid_ir::kernel::{Map, MatMul};
use pellucid_ir::{Compute, DType, Error, Layout, Result, Shape};
use smallvec::SmallVec;

/// C = A·B over the last two axes, then the epilogue on the finished product.
pub(crate) fn product(kernel: &MatMul, inputs: &[Operand<'_>], c: &Operand<'_>) -> Result<()> {
    let (a, b) = (&inputs[0], &inputs[1]);
    check(a, b, c)?;
    match c.dtype {
        DType::F32 => multiply::<f32>(a, b, c),
        DType::F64 => multiply::<f64>(a, b, c),
        DType::I32 => multiply::<i32>(a, b, c),
        DType::I64 => multiply::<i64>(a, b, c),
        // Halves and small integers are multiplied in their compute type, and rounded once.
        other => widened(other.compute(), a, b, c)?,
    }
    let Some(program) = &kernel.epilogue else { return Ok(()) };
    let mut operands: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
    operands.push(*c);
    operands.extend_from_slice(&inputs[2..]);
    tile::map(&Map { program: program.clone(), params: kernel.params.clone() }, &operands, &[*c])
}

fn check(a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) -> Result<()> {
    let shapes = || [a.shape(), b.shape(), c.shape()];
    if a.dtype != c.dtype || b.dtype != c.dtype || c.dtype == DType::Bool {
        return Err(Error::dtypes("matmul", [a.dtype, b.dtype, c.dtype], "operands and result are of one number type"));
    }
    let matrix = |s: &Shape| s.rank().checked_sub(2).map(|r| (s[r], s[r + 1]));
    let (Some((m, k)), Some((k2, n)), Some((m2, n2))) = (matrix(a.shape()), matrix(b.shape()), matrix(c.shape())) else {
        return Err(Error::shapes("matmul", shapes(), "operands and result have at least two axes"));
    };
    let batch = |s: &Shape| Shape::from(&s[..s.rank() - 2]);
    let stretches = |s: &Shape| batch(s).broadcast(&batch(c.shape())).is_some_and(|all| all == batch(c.shape()));
    if (m, k, n) != (m2, k2, n2) || !stretches(a.shape()) || !stretches(b.shape()) {
        return Err(Error::shapes("matmul", shapes(), "[.., m, k] times [.., k, n] is [.., m, n]"));
    }
    Ok(())
}

/// The product in another dtype, through dense copies.
fn widened(compute: Compute, a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) -> Result<()> {
    let dtype = compute.storage();
    let layouts = [a, b, c].map(|x| Layout::contiguous(x.shape().clone()));
    let buffers = [&layouts[0], &layouts[1], &layouts[2]].map(|l| CpuBuffer::scratch(l.shape().size() * dtype.size()));
    let mut wide: SmallVec<[Operand<'_>; 3]> = SmallVec::new();
    for (layout, buffer) in layouts.iter().zip(&buffers) {
        let buffer = buffer.as_ref().map_err(Clone::clone)?;
        wide.push(Operand { base: buffer.ensure()?.as_ptr(), layout, dtype });
    }
    tile::copy(a, &wide[0])?;
    tile::copy(b, &wide[1])?;
    match dtype {
        DType::F32 => multiply::<f32>(&wide[0], &wide[1], &wide[2]),
        _ => multiply::<i32>(&wide[0], &wide[1], &wide[2]),
    }
    tile::copy(&wide[2], c)
}

/// The batched product of operands whose dtype is `T`'s.
fn multiply<T: Element>(a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) {
    let rank = c.shape().rank() - 2;
    let (m, n) = (c.shape()[rank], c.shape()[rank + 1]);
    let k = a.shape()[a.shape().rank() - 1];
    let last_two = |x: &Operand<'_>| {
        let s = x.layout.strides();
        (s[s.len() - 2], s[s.len() - 1])
    };
    let shape = Gemm {
        m,
        n,
        k,
        a_strides: last_two(a),
        b_strides: last_two(b),
        c_strides: last_two(c),
        accumulate: false,
    };
    let batch = offsets(&c.shape()[..rank], a, b, c);
    let (a, b, c) = (a.first::<T>().get(), b.first::<T>().get(), c.first::<T>().get());
    // SAFETY: every element of the views lies in its buffer (`operand`), and `check` has matched the
    // shapes; the engine borrows C alone for this run, its elements are distinct, and no operand
    // overlaps it.
    unsafe { gemm_batched(&shape, &batch, a, b, c, None, Threads::Pool) }
}

/// Where every product of the batch begins, in elements from the operands' first.
fn offsets(batch: &[usize], a: &Operand<'_>, b: &Operand<'_>, c: &Operand<'_>) -> SmallVec<[Offsets; 1]> {
    let count: usize = batch.iter().product();
    let mut all: SmallVec<[Offsets; 1]> = SmallVec::with_capacity(count);
    if count > 0 {
        all.push(Offsets::default());
    }
    if count <= 1 {
        return all;
    }
    for (axis, &len) in batch.iter().enumerate() {
        let from_end = batch.len() - axis + 2;
        // A missing axis, or one of length 1, repeats.
        let step = |x: &Operand<'_>| match x.layout.shape().rank().checked_sub(from_end) {
            Some(k) if x.layout.shape()[k] != 1 => x.layout.strides()[k],
            _ => 0,
        };
        let (da, db, dc) = (step(a), step(b), step(c));
        let outer = std::mem::take(&mut all);
        all.reserve(outer.len() * len);
        for o in outer {
            let at = |i: usize, by: isize| i as isize * by;
            all.extend((0..len).map(|i| Offsets { a: o.a + at(i, da), b: o.b + at(i, db), c: o.c + at(i, dc) }));
        }
    }
    all
}
