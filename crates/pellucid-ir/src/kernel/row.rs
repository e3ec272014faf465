//! The kernel family [`Row`]: programs with row reductions.

use super::family::{broadcast, flops_per_element};
use super::operand::{check_dtypes, common_shape, shape_error};
use super::{AxisSet, Family, FamilyInfo, KernelOperand, Meta, Metas, Params, ReadOrder};
use crate::error::Result;
use crate::formula::Program;
use std::hash::Hash;
use std::sync::Arc;

/// A program with row reductions. A row contains all elements along `axes`.
///
/// Inputs broadcast to the common shape; inputs and outputs that are *per row* have length 1 along `axes`. The
/// elements of a row are in row-major order over `axes`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The axes that make up a row.
    pub axes: AxisSet,
    /// The program.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
}

impl Row {
    /// Returns everything except the values of the run-time parameters.
    pub(super) fn structure(&self) -> impl PartialEq + Hash + '_ {
        let Row { axes, program, params } = self;
        (axes, program, params.len())
    }
}

impl Family for Row {
    const FAMILY: &'static str = "row";

    #[inline]
    fn name(&self) -> &'static str {
        self.program.name
    }

    fn info(&self) -> FamilyInfo {
        let (inputs, outputs) = (self.program.inputs.len(), self.program.outputs.len());
        FamilyInfo { reads: ReadOrder::Elementwise { from: 0 }, ..FamilyInfo::new(inputs, outputs) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = broadcast(self.name(), inputs)?;
        let output_shape = |per_row| if per_row { self.axes.keepdims(&shape) } else { shape.clone() };
        Ok(self.program.outputs.iter().map(|o| Meta { shape: output_shape(o.per_row), dtype: o.storage }).collect())
    }

    /// Inputs must broadcast to the common shape of all operands, and outputs must have this shape. For operands with
    /// one value per row, the shape has length 1 along the axes of the row.
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let program = &*self.program;
        check_dtypes(program, inputs, outputs)?;
        let rule = "operands must broadcast to the shape of the per-element outputs; per-row operands must have \
                    length 1 along the row axes";
        let error = || shape_error(program.name, inputs, outputs, rule);
        let shape = common_shape(inputs.iter().chain(outputs)).ok_or_else(error)?;
        let per_row = program.inputs.iter().map(|l| l.per_row).chain(program.outputs.iter().map(|s| s.per_row));
        let per_row_shape = self.axes.keepdims(&shape);
        let fits = inputs.iter().chain(outputs).zip(per_row).enumerate().all(|(i, (operand, per_row))| {
            let expected = if per_row { &per_row_shape } else { &shape };
            if i < inputs.len() { operand.shape().broadcasts_to(expected) } else { operand.shape() == expected }
        });
        if fits && self.axes.are_within(shape.rank()) { Ok(()) } else { Err(error()) }
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        broadcast(self.name(), inputs).map_or(0, |shape| shape.size() as u64) * flops_per_element(&self.program)
    }

    fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        Some((&self.program, &self.params))
    }
}
