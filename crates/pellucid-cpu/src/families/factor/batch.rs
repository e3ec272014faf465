//! A batch of matrices, one after the other.

use crate::operand::{Array, Operand};
use pellucid_ir::kernel::{Factor, Kernel, Meta, Vectors};
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_linalg::{Basis, Matrix, Pivot, Triangle};
use pellucid_runtime::threads::{SharedPtr, split};

/// Operations on numbers that are worth a task of their own.
const GRAIN: usize = 1 << 18;

/// Runs a factorisation of `x` into `y`.
pub(super) fn factor<'a>(kernel: &Factor, x: &[Operand<'a>], y: &[Operand<'a>]) -> Result<()> {
    // How many axes make up one matrix, or one list of pivots.
    let inner = if matches!(kernel, Factor::RowOrder { .. }) { 1 } else { 2 };
    let shape = x[0].shape();
    let (batch, last) = shape.split_at(shape.rank() - inner);
    let count: usize = batch.iter().product();
    let blocks = |operands: &[Operand<'a>]| operands.iter().map(|o| Blocks::new(o, batch)).collect::<Vec<_>>();
    let (x, y) = (blocks(x), blocks(y));
    if let Factor::RowOrder { rows } = *kernel {
        let pivots = (0..count).flat_map(|b| x[0].block(b).load().data().to_vec());
        in_range(kernel.name(), pivots, rows)?;
    }
    if *kernel == Factor::LdlSolve {
        (0..count).try_for_each(|b| ldl_pivots(kernel.name(), x[1].block(b).load().data()).map(|_| ()))?;
    }
    let side = last.iter().copied().max().unwrap_or(0);
    affordable(x.iter().chain(&y).map(|blocks| blocks.elements()), side)?;
    let work = last.iter().product::<usize>().saturating_mul(side).max(1);
    split(count, GRAIN / work, |range| {
        for b in range {
            let factors = run(*kernel, x.iter().map(|blocks| blocks.block(b).load()).collect());
            y.iter().zip(&factors).for_each(|(blocks, factor)| blocks.block(b).store(factor));
        }
    });
    Ok(())
}

/// Refuses matrices for which there is no memory to work in: copies of the operands in `f64`, and a few lists as long as a
/// side. Small ones are not asked about.
fn affordable(elements: impl Iterator<Item = usize>, side: usize) -> Result<()> {
    const COPIES: usize = 3;
    const SMALL: usize = 1 << 20;
    let count = elements.fold(side, usize::saturating_add);
    let bytes = count.saturating_mul(COPIES * size_of::<f64>());
    match bytes <= SMALL || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        true => Ok(()),
        false => Err(Error::out_of_memory(bytes)),
    }
}

/// The outputs are those of the family's rule.
pub(super) fn check_factors(kernel: &Factor, x: &[Operand<'_>], y: &[Operand<'_>]) -> Result<()> {
    let meta = |o: &Operand<'_>| Meta { shape: o.shape().clone(), dtype: o.dtype };
    let expected = Kernel::Factor(*kernel).infer(&x.iter().map(meta).collect::<Vec<_>>())?;
    let (op, shapes) = (kernel.name(), x.iter().chain(y).map(|o| o.shape()));
    if expected.len() != y.len() || !expected.iter().zip(y).all(|(m, o)| m.shape == *o.shape()) {
        return Err(Error::shapes(op, shapes, "inputs, then outputs: these are not the shapes of its factors"));
    }
    if !expected.iter().zip(y).all(|(m, o)| m.dtype == o.dtype) {
        let dtypes = x.iter().chain(y).map(|o| o.dtype);
        return Err(Error::dtypes(op, dtypes, "inputs, then outputs: these are not the dtypes of its factors"));
    }
    Ok(())
}

fn in_range(op: &'static str, pivots: impl Iterator<Item = f64>, rows: usize) -> Result<()> {
    match pivots.map(|p| p as i64).find(|p| !(1..=rows as i64).contains(p)) {
        Some(pivot) => Err(Error::invalid(op, format!("pivots count rows from 1 to {rows}, got {pivot}"))),
        None => Ok(()),
    }
}

/// Pivots as LAPACK's `sytrf` writes them: those of a block of two are negative, and there twice.
fn ldl_pivots(op: &'static str, written: &[f64]) -> Result<Vec<Pivot>> {
    let n = written.len();
    let mut pivots = Vec::with_capacity(n);
    while let Some(&pivot) = written.get(pivots.len()) {
        let (k, at) = (pivots.len(), pivot.abs() as usize);
        let pair = pivot < 0.0 && written.get(k + 1) == Some(&pivot);
        if at == 0 || at > n || (pivot < 0.0 && !pair) {
            let reason = format!("pivots count rows from 1 to {n}, those of a pair negative and equal, got {pivot}");
            return Err(Error::invalid(op, reason));
        }
        match pair {
            true => pivots.extend([Pivot::Two(at - 1); 2]),
            false => pivots.push(Pivot::One(at - 1)),
        }
    }
    Ok(pivots)
}

/// The factors of one matrix; numbers and lists are matrices of one column.
fn run(kernel: Factor, mut inputs: Vec<Matrix>) -> Vec<Matrix> {
    let mut a = inputs.swap_remove(0);
    let column = |values: &[f64]| Matrix::from_fn(values.len(), 1, |i, _| values[i]);
    let number = |value: usize| column(&[value as f64]);
    match kernel {
        Factor::Cholesky => {
            let minor = pellucid_linalg::cholesky(&mut a);
            vec![a, number(minor)]
        }
        Factor::Lu => {
            let pivots = pellucid_linalg::lu(&mut a);
            let zero = (0..pivots.len()).find(|&i| a[(i, i)] == 0.0).map_or(0, |i| i + 1);
            let pivots: Vec<f64> = pivots.into_iter().map(|p| (p + 1) as f64).collect();
            vec![a, column(&pivots), number(zero)]
        }
        Factor::RowOrder { rows } => {
            let order = pellucid_linalg::row_order(a.data().iter().map(|&p| p as usize - 1), rows);
            vec![Matrix::from_fn(rows, 1, |i, _| order[i] as f64)]
        }
        Factor::Ldl => {
            let (pivots, zero) = pellucid_linalg::ldl(&mut a);
            let written = |pivot: &Pivot| match *pivot {
                Pivot::One(at) => (at + 1) as f64,
                Pivot::Two(at) => -((at + 1) as f64),
            };
            vec![a, column(&pivots.iter().map(written).collect::<Vec<_>>()), number(zero)]
        }
        Factor::LdlSolve => {
            // `swap_remove` has put B where A was.
            let [ref mut x, ref pivots] = inputs[..] else { unreachable!("it has three inputs") };
            let pivots = ldl_pivots(kernel.name(), pivots.data()).expect("they were looked at before");
            pellucid_linalg::solve_ldl(&a, &pivots, x);
            vec![inputs.swap_remove(0)]
        }
        Factor::Qr => {
            let factors = pellucid_linalg::qr(&mut a);
            vec![a, column(&factors)]
        }
        Factor::Svd(vectors) => {
            let basis = match vectors {
                Vectors::Without => Basis::Without,
                Vectors::Thin => Basis::Thin,
                Vectors::Full => Basis::Full,
            };
            let pellucid_linalg::Svd { u, s, v } = pellucid_linalg::svd(&a, basis);
            let s = column(&s);
            match vectors {
                Vectors::Without => vec![s],
                _ => vec![u, s, Matrix::from_fn(v.columns(), v.rows(), |i, j| v[(j, i)])],
            }
        }
        Factor::Eigh { vectors } => {
            let (w, v) = pellucid_linalg::eigh(&a, vectors);
            if vectors { vec![column(&w), v] } else { vec![column(&w)] }
        }
        Factor::TriangularSolve { upper, unit } => {
            let mut x = inputs.remove(0);
            pellucid_linalg::solve_triangular(&a, &mut x, Triangle { upper, unit });
            vec![x]
        }
        Factor::Exp => vec![pellucid_linalg::exp(&a)],
    }
}

/// The matrices of an operand.
struct Blocks<'a> {
    first: SharedPtr<u8>,
    layout: &'a Layout,
    dtype: DType,
    /// The lengths of the batch axes.
    batch: &'a [usize],
}

impl<'a> Blocks<'a> {
    fn new(operand: &Operand<'a>, batch: &'a [usize]) -> Blocks<'a> {
        Blocks { first: operand.first(), layout: operand.layout, dtype: operand.dtype, batch }
    }

    /// The number of elements of one matrix.
    fn elements(&self) -> usize {
        self.layout.shape()[self.batch.len().min(self.layout.shape().rank())..].iter().product()
    }

    /// What lies behind the `b`-th index of the batch axes, counted in row-major order.
    fn block(&self, b: usize) -> Block {
        let (shape, strides) = (self.layout.shape(), self.layout.strides());
        let (mut at, mut left) = (0, b);
        for (axis, len) in self.batch.iter().enumerate().rev() {
            at += (left % len) as isize * strides[axis];
            left /= len;
        }
        let axis = |k: usize| {
            let axis = self.batch.len() + k;
            if axis < shape.rank() { (shape[axis], strides[axis]) } else { (1, 0) }
        };
        let first = self.first.at(at * self.dtype.size() as isize);
        Block { first, dtype: self.dtype, shape: [axis(0).0, axis(1).0], strides: [axis(0).1, axis(1).1] }
    }
}

/// One matrix of an operand; a list is a column, a number one of length 1.
struct Block {
    first: *mut u8,
    dtype: DType,
    shape: [usize; 2],
    strides: [isize; 2],
}

impl Block {
    /// The address of an element, which lies in the operand's buffer.
    fn at<T>(&self, i: usize, j: usize) -> *mut T {
        let position = i as isize * self.strides[0] + j as isize * self.strides[1];
        self.first.cast::<T>().wrapping_offset(position)
    }

    fn load(&self) -> Matrix {
        fn elements<T: Copy>(block: &Block, wide: impl Fn(T) -> f64) -> Matrix {
            let [rows, columns] = block.shape;
            // SAFETY: the operand holds every element of its shape, as its dtype, and nobody writes them meanwhile:
            // only this block's own outputs are written, after it was loaded.
            Matrix::from_fn(rows, columns, |i, j| wide(unsafe { *block.at::<T>(i, j) }))
        }
        match self.dtype {
            DType::F32 => elements(self, |x: f32| f64::from(x)),
            DType::F64 => elements(self, |x: f64| x),
            DType::I32 => elements(self, |x: i32| f64::from(x)),
            other => unreachable!("{other} was refused"),
        }
    }

    fn store(&self, values: &Matrix) {
        fn elements<T>(block: &Block, values: &Matrix, narrow: impl Fn(f64) -> T) {
            let [rows, columns] = block.shape;
            for i in 0..rows {
                for j in 0..columns {
                    // SAFETY: the operand has room for every element of its shape, as its dtype, and no other block
                    // has this one.
                    unsafe { *block.at::<T>(i, j) = narrow(values[(i, j)]) };
                }
            }
        }
        match self.dtype {
            DType::F32 => elements(self, values, |x| x as f32),
            DType::F64 => elements(self, values, |x| x),
            DType::I32 => elements(self, values, |x| x as i32),
            DType::I64 => elements(self, values, |x| x as i64),
            other => unreachable!("{other} was refused"),
        }
    }
}

#[cfg(test)]
mod tests;
