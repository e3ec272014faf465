//! The families that run programs (`Map`, `Row`, `Reduce`) and `Copy`, and the rules for their operands.
//!
//! The engine has checked the operands. They are checked again here, because the interface of the backend is safe and
//! memory safety depends on these checks.

use super::copy::copy;
use super::map::run_map;
use super::reduce::run_reduce;
use super::row::run_row;
use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{AxisSet, CopyValues, Map, Reduce, Row};
use pellucid_ir::{DType, Error, Result, Shape};

impl CpuFamily for Map {
    /// All outputs must have one shape, to which the inputs must broadcast.
    #[inline]
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let program = &*self.program;
        check_dtypes(program, inputs, outputs)?;
        let Some(first) = outputs.first() else { return Ok(()) };
        let shape = first.shape();
        if outputs.iter().all(|o| o.shape() == shape) && inputs.iter().all(|i| broadcasts_to(i.shape(), shape)) {
            return Ok(());
        }
        let rule = "the inputs must broadcast to the shape of the outputs";
        Err(shape_error(program, inputs, outputs, rule))
    }

    #[inline]
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_map(self, inputs, outputs)
    }
}

impl CpuFamily for Row {
    /// Inputs with one value per element broadcast to the common shape of all operands, and outputs with one value per
    /// element have this shape. For operands with one value per row, the shape has length 1 along the axes of the row.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let program = &*self.program;
        check_dtypes(program, inputs, outputs)?;
        let rule = "the operands must broadcast to one shape, which outputs with one value per element have; operands \
                    with one value per row have length 1 along the axes of the row";
        let error = || shape_error(program, inputs, outputs, rule);
        let shape = common_bounded_shape(inputs.iter().chain(outputs)).ok_or_else(error)?;
        let per_row = program.inputs.iter().map(|l| l.per_row).chain(program.outputs.iter().map(|s| s.per_row));
        let per_row_shape = self.axes.keepdims(&shape);
        let fits = inputs.iter().chain(outputs).zip(per_row).enumerate().all(|(i, (operand, per_row))| {
            let expected = if per_row { &per_row_shape } else { &shape };
            if i < inputs.len() { broadcasts_to(operand.shape(), expected) } else { operand.shape() == expected }
        });
        if fits && axes_in_range(self.axes, &shape) { Ok(()) } else { Err(error()) }
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_row(self, inputs, outputs)
    }
}

impl CpuFamily for Reduce {
    /// The outputs must have the common shape of the inputs of the program with length 1 along the axes. The other
    /// inputs of the finishing program must broadcast to the shape of the outputs.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let program = &*self.program;
        let is_compiled_for = self.input_dtypes().eq(inputs.iter().map(|o| o.dtype))
            && self.output_dtypes().eq(outputs.iter().map(|o| o.dtype));
        if !is_compiled_for {
            return Err(dtype_error(program, inputs, outputs));
        }
        let (reduced, finishing) = inputs.split_at(program.inputs.len());
        let fits = |shape: &Shape| {
            let result = self.axes.keepdims(shape);
            axes_in_range(self.axes, shape)
                && outputs.iter().all(|o| *o.shape() == result)
                && finishing.iter().all(|i| broadcasts_to(i.shape(), &result))
        };
        if common_bounded_shape(reduced.iter()).is_some_and(|shape| fits(&shape)) {
            return Ok(());
        }
        let rule = "the outputs must have the common shape of the reduced inputs with length 1 along the reduced axes, \
                    and the other inputs must broadcast to that";
        Err(shape_error(program, inputs, outputs, rule))
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_reduce(self, inputs, outputs)
    }
}

impl CpuFamily for CopyValues {
    /// The input must broadcast to the shape of the output.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (input, output) = (&inputs[0], &outputs[0]);
        if broadcasts_to(input.shape(), output.shape()) {
            return Ok(());
        }
        Err(Error::shapes(
            "copy",
            [input.shape(), output.shape()],
            "the source must broadcast to the shape of the destination",
        ))
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        copy(&inputs[0], &outputs[0])
    }
}

/// Returns true if `from` broadcasts to `to` by NumPy's rule.
#[inline]
fn broadcasts_to(from: &Shape, to: &Shape) -> bool {
    from == to
        || to
            .len()
            .checked_sub(from.len())
            .is_some_and(|lead| from.iter().zip(&to[lead..]).all(|(&f, &t)| f == t || f == 1))
}

/// Returns the shape to which all operands broadcast, or `None` if there is none or its size overflows. A size can
/// overflow because broadcast views need little memory.
fn common_bounded_shape<'a>(mut operands: impl Iterator<Item = &'a Operand<'a>>) -> Option<Shape> {
    let first = operands.next().map_or(Shape::scalar(), |o| o.shape().clone());
    let shape = operands.try_fold(first, |shape, o| shape.broadcast(o.shape()))?;
    shape.checked_size().map(|_| shape)
}

/// Returns true if every axis of the set is an axis of `shape`.
fn axes_in_range(axes: AxisSet, shape: &Shape) -> bool {
    shape.rank() >= AxisSet::MAX_RANK || axes.0 >> shape.rank() == 0
}

/// Returns an error unless the operands have the dtypes for which the program was compiled.
#[inline]
fn check_dtypes(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    check_input_dtypes(program, inputs, outputs)?;
    let fits = outputs.len() == program.outputs.len()
        && outputs.iter().zip(&program.outputs).all(|(o, s)| o.dtype == s.storage);
    if fits { Ok(()) } else { Err(dtype_error(program, inputs, outputs)) }
}

/// Returns an error unless the inputs have the dtypes for which the program was compiled.
#[inline]
fn check_input_dtypes(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let fits =
        inputs.len() == program.inputs.len() && inputs.iter().zip(&program.inputs).all(|(i, l)| i.dtype == l.storage);
    if fits { Ok(()) } else { Err(dtype_error(program, inputs, outputs)) }
}

/// Returns the error for operands whose dtypes differ from those of the program.
#[cold]
fn dtype_error(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Error {
    let expected: Vec<DType> =
        program.inputs.iter().map(|l| l.storage).chain(program.outputs.iter().map(|s| s.storage)).collect();
    let actual = inputs.iter().chain(outputs).map(|o| o.dtype);
    Error::dtypes(program.name, actual, format!("the program was compiled for {expected:?}"))
}

/// Returns the error for operands whose shapes do not obey `rule`.
#[cold]
fn shape_error(program: &Program, inputs: &[Operand<'_>], outputs: &[Operand<'_>], rule: &str) -> Error {
    let shapes = inputs.iter().chain(outputs).map(|o| o.shape());
    Error::shapes(program.name, shapes, format!("{rule} (the inputs are listed before the outputs)"))
}
