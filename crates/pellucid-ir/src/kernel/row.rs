//! The kernel family [`Row`]: programs with row reductions.

use super::family::{broadcast, flops_per_element};
use super::{AxisSet, Family, FamilyInfo, Meta, Metas, Params, ReadOrder};
use crate::error::Result;
use crate::formula::Program;
use std::sync::Arc;

/// A program with row reductions; the rows run over `axes`.
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

impl Family for Row {
    const FAMILY: &'static str = "row";

    #[inline]
    fn name(&self) -> &'static str {
        self.program.name
    }

    fn info(&self) -> FamilyInfo {
        FamilyInfo {
            inputs: self.program.inputs.len(),
            outputs: self.program.outputs.len(),
            state_outputs: 0,
            reads: ReadOrder::Elementwise { from: 0 },
            is_compute_bound: false,
            refuses_values: false,
        }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = broadcast(self.name(), inputs)?;
        let of = |per_row| if per_row { self.axes.keepdims(&shape) } else { shape.clone() };
        Ok(self.program.outputs.iter().map(|o| Meta { shape: of(o.per_row), dtype: o.storage }).collect())
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        broadcast(self.name(), inputs).map_or(0, |shape| shape.size() as u64) * flops_per_element(&self.program)
    }

    fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        Some((&self.program, &self.params))
    }
}
