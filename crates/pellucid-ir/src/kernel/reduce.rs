//! The kernel family [`Reduce`]: reductions over axes, with a program for the inputs and one for the result.

use super::family::{broadcast, flops_per_element};
use super::operand::{common_shape, dtype_error, shape_error};
use super::{AxisSet, Family, FamilyInfo, KernelOperand, Meta, Metas, Params, ReadOrder};
use crate::dtype::{Compute, DType};
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::shape::Shape;
use std::hash::Hash;
use std::sync::Arc;

/// The reduction operator of a [`Reduce`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// The sum; 0 for an empty set.
    Sum,
    /// The product; 1 for an empty set.
    Prod,
    /// The largest element; NaN if an element is NaN.
    Max,
    /// The smallest element; NaN if an element is NaN.
    Min,
    /// The flat index (row-major over the reduced axes) of the first maximum, or of the first NaN.
    ArgMax,
    /// The flat index (row-major over the reduced axes) of the first minimum, or of the first NaN.
    ArgMin,
    /// True if any value is true; false for an empty set. The values are masks.
    Any,
    /// True if all values are true; true for an empty set. The values are masks.
    All,
}

impl ReduceOp {
    /// Returns the name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::ArgMax => "argmax",
            ReduceOp::ArgMin => "argmin",
            ReduceOp::Any => "any",
            ReduceOp::All => "all",
        }
    }

    /// Returns the compute type of the accumulator for values of type `value` if the result is read as type `result`;
    /// `None` if the operator is not defined for these values.
    pub fn accumulator(self, value: Compute, result: Compute) -> Option<Compute> {
        use ReduceOp::*;
        match (self, value, result) {
            (ArgMax | ArgMin, Compute::Mask, _) => Some(Compute::I32),
            // Sums and products of booleans and integers accumulate in the type of the result if it is wider.
            (Sum | Prod, Compute::Mask, Compute::Mask) => Some(Compute::I32),
            (Sum | Prod, Compute::Mask, wider) => Some(wider),
            (Sum | Prod, Compute::I32, Compute::I64) => Some(Compute::I64),
            (Any | All, Compute::Mask, _) => Some(Compute::Mask),
            (Any | All, ..) => None,
            _ => Some(value),
        }
    }

    /// Returns the compute type of the result for an accumulator of type `accumulator`.
    pub fn result(self, accumulator: Compute) -> Compute {
        if matches!(self, ReduceOp::ArgMax | ReduceOp::ArgMin) { Compute::I64 } else { accumulator }
    }
}

/// `outputs = finish(op over axes of program(inputs; params), finish inputs; finish_params)`.
///
/// The inputs of `program` broadcast to a common shape; the outputs have that shape with the reduced axes of length 1.
/// The first input of `finish` is the result of the reduction. Its other inputs follow the inputs of `program`, and
/// broadcast to the shape of the outputs. The order of accumulation depends only on the common shape and the axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// The reduction operator.
    pub op: ReduceOp,
    /// The axes of the common shape that are reduced.
    pub axes: AxisSet,
    /// The program for one element. It has one output, whose compute type determines the type of the accumulator
    /// ([`ReduceOp::accumulator`]); the storage dtype of this output is ignored.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
    /// A program that is applied to each result. Its first input is the result, in the accumulator's type or, for
    /// indices, in `i64`. Its other inputs are further inputs of the kernel, and its outputs are the outputs of the
    /// kernel.
    pub finish: Option<Arc<Program>>,
    /// The run-time parameters of `finish`.
    pub finish_params: Params,
    /// The dtype of the first output.
    pub output: DType,
}

impl Reduce {
    /// Returns everything except the values of the run-time parameters.
    pub(super) fn structure(&self) -> impl PartialEq + Hash + '_ {
        let Reduce { op, axes, program, params, finish, finish_params, output } = self;
        (op, axes, program, params.len(), finish, finish_params.len(), output)
    }

    /// Returns the finishing program if it has inputs other than the result of the reduction, or several outputs.
    pub fn wide_finish(&self) -> Option<&Arc<Program>> {
        self.finish.as_ref().filter(|program| program.inputs.len() > 1 || program.outputs.len() > 1)
    }

    /// Returns the dtypes of the inputs; the inputs of `finish` are last.
    pub fn input_dtypes(&self) -> impl Iterator<Item = DType> {
        let others = self.finish.iter().flat_map(|program| program.inputs.iter().skip(1));
        self.program.inputs.iter().chain(others).map(|load| load.storage)
    }

    /// Returns the dtypes of the outputs.
    pub fn output_dtypes(&self) -> impl Iterator<Item = DType> {
        let others = self.finish.iter().flat_map(|program| program.outputs.iter().skip(1));
        [self.output].into_iter().chain(others.map(|store| store.storage))
    }
}

impl Family for Reduce {
    const FAMILY: &'static str = "reduce";

    #[inline]
    fn name(&self) -> &'static str {
        self.program.name
    }

    fn info(&self) -> FamilyInfo {
        let reads = ReadOrder::Elementwise { from: self.program.inputs.len() };
        FamilyInfo { reads, ..FamilyInfo::new(self.input_dtypes().count(), self.output_dtypes().count()) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = broadcast(self.name(), &inputs[..self.program.inputs.len()])?;
        let needs_one = matches!(self.op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin);
        if needs_one && self.axes.count(&shape) == 0 && self.axes.keepdims(&shape).size() != 0 {
            return Err(Error::invalid(
                self.name(),
                format!("shape {shape} has an empty reduced axis, and zero elements have no maximum or minimum"),
            ));
        }
        Ok(self.output_dtypes().map(|dtype| Meta { shape: self.axes.keepdims(&shape), dtype }).collect())
    }

    /// The outputs must have the common shape of the inputs of the program with length 1 along the axes. The other
    /// inputs of the finishing program must broadcast to the shape of the outputs.
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let program = &*self.program;
        let is_compiled_for = self.input_dtypes().eq(inputs.iter().map(|o| o.dtype()))
            && self.output_dtypes().eq(outputs.iter().map(|o| o.dtype()));
        if !is_compiled_for {
            return Err(dtype_error(program, inputs, outputs));
        }
        let (reduced, finishing) = inputs.split_at(program.inputs.len());
        let fits = |shape: &Shape| {
            let result = self.axes.keepdims(shape);
            self.axes.are_within(shape.rank())
                && outputs.iter().all(|o| *o.shape() == result)
                && finishing.iter().all(|i| i.shape().broadcasts_to(&result))
        };
        if common_shape(reduced).is_some_and(|shape| fits(&shape)) {
            return Ok(());
        }
        let rule = "the outputs must have the common shape of the reduced inputs with length 1 along the reduced axes, \
                    and the other inputs must broadcast to this shape";
        Err(shape_error(program.name, inputs, outputs, rule))
    }

    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        let read = broadcast(self.name(), &inputs[..self.program.inputs.len()]).map_or(0, |shape| shape.size() as u64);
        let finish = self.finish.as_ref().map_or(0, |program| flops_per_element(program));
        read * (flops_per_element(&self.program) + 1) + outputs.first().map_or(0, Meta::elements) * finish
    }

    fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        Some((&self.program, &self.params))
    }
}
