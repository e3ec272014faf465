//! The families that run programs, and their operand rules.
//!
//! The engine has checked the operands. They are checked again because memory safety depends on it, and the API of the
//! backend is safe.

use super::copy::copy;
use super::map::run_map;
use super::reduce::run_reduce;
use super::row::run_row;
use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{AxisSet, Map, Reduce, Row};
use pellucid_ir::{DType, Error, Result, Shape};

impl CpuFamily for Map {
    /// Inputs must broadcast to the shape of all outputs.
    #[inline]
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let program = &*self.program;
        dtypes(program, inputs, outputs)?;
        let Some(first) = outputs.first() else { return Ok(()) };
        let shape = first.shape();
        if outputs.iter().all(|o| o.shape() == shape) && inputs.iter().all(|i| broadcasts(i.shape(), shape)) {
            return Ok(());
        }
        Err(misshaped(program, inputs, outputs))
    }

    #[inline]
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_map(self, inputs, outputs)
    }
}

impl CpuFamily for Row {
    /// Outputs must have the common shape, or length 1 along the row.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let kernel = self;
        let program = &*kernel.program;
        dtypes(program, inputs, outputs)?;
        let refuse = || misshaped(program, inputs, outputs);
        let shape = common(inputs.iter().chain(outputs)).ok_or_else(refuse)?;
        let per_row = program.inputs.iter().map(|l| l.per_row).chain(program.outputs.iter().map(|s| s.per_row));
        let per_row_shape = kernel.axes.keepdims(&shape);
        let fits = inputs.iter().chain(outputs).zip(per_row).enumerate().all(|(i, (operand, per_row))| {
            let expected = if per_row { &per_row_shape } else { &shape };
            if i < inputs.len() { broadcasts(operand.shape(), expected) } else { operand.shape() == expected }
        });
        if fits && in_range(kernel.axes, &shape) { Ok(()) } else { Err(refuse()) }
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_row(self, inputs, outputs)
    }
}

impl CpuFamily for Reduce {
    /// The output must have the common shape of the inputs with length 1 along the axes.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, output, outputs) = (self, &outputs[0], &outputs[..1]);
        let program = &*kernel.program;
        inputs_are(program, inputs, outputs)?;
        let shape = common(inputs.iter());
        let fits = |shape: &Shape| kernel.axes.keepdims(shape) == *output.shape() && in_range(kernel.axes, shape);
        if !shape.is_some_and(|shape| fits(&shape)) {
            return Err(misshaped(program, inputs, outputs));
        }
        if output.dtype == kernel.output { Ok(()) } else { Err(mistyped(program, inputs, outputs)) }
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_reduce(self, inputs, &outputs[0])
    }
}

/// The family of `Kernel::Copy`, which has no arguments.
pub(crate) struct CopyFamily;

impl CpuFamily for CopyFamily {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (input, output) = (&inputs[0], &outputs[0]);
        if broadcasts(input.shape(), output.shape()) {
            return Ok(());
        }
        Err(Error::shapes("copy", [input.shape(), output.shape()], "the source must broadcast to the destination"))
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        copy(&inputs[0], &outputs[0])
    }
}

/// True if `from` broadcasts to `to` by NumPy's rule.
#[inline]
fn broadcasts(from: &Shape, to: &Shape) -> bool {
    from == to
        || to
            .len()
            .checked_sub(from.len())
            .is_some_and(|lead| from.iter().zip(&to[lead..]).all(|(&f, &t)| f == t || f == 1))
}

/// The shape to which all broadcast, unless it is absurdly large: stretched views need little memory.
fn common<'a>(mut operands: impl Iterator<Item = &'a Operand<'a>>) -> Option<Shape> {
    let first = operands.next().map_or(Shape::scalar(), |o| o.shape().clone());
    let shape = operands.try_fold(first, |shape, o| shape.broadcast(o.shape()))?;
    shape.checked_size().map(|_| shape)
}

fn in_range(axes: AxisSet, shape: &Shape) -> bool {
    shape.rank() >= AxisSet::MAX_RANK || axes.0 >> shape.rank() == 0
}

#[inline]
fn dtypes(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    inputs_are(program, inputs, outputs)?;
    let fits = outputs.len() == program.outputs.len()
        && outputs.iter().zip(&program.outputs).all(|(o, s)| o.dtype == s.storage);
    if fits { Ok(()) } else { Err(mistyped(program, inputs, outputs)) }
}

#[inline]
fn inputs_are(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let fits =
        inputs.len() == program.inputs.len() && inputs.iter().zip(&program.inputs).all(|(i, l)| i.dtype == l.storage);
    if fits { Ok(()) } else { Err(mistyped(program, inputs, outputs)) }
}

#[cold]
fn mistyped(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Error {
    let wanted: Vec<DType> =
        program.inputs.iter().map(|l| l.storage).chain(program.outputs.iter().map(|s| s.storage)).collect();
    let got = inputs.iter().chain(outputs).map(|o| o.dtype);
    Error::dtypes(program.name, got, format!("the program was compiled for {wanted:?}"))
}

#[cold]
fn misshaped(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Error {
    let shapes = inputs.iter().chain(outputs).map(|o| o.shape());
    Error::shapes(program.name, shapes, "inputs, then outputs: inputs must broadcast to the outputs' shape")
}
