//! The kernel family [`Map`]: elementwise programs.

use super::family::{broadcast, flops_per_element};
use super::operand::{check_broadcast, check_dtypes};
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas, Params, ReadOrder};
use crate::error::Result;
use crate::formula::Program;
use std::hash::Hash;
use std::sync::Arc;

/// `outputs = program(inputs; params)`, element by element.
///
/// Inputs broadcast to the shape of the outputs by NumPy's rule; all outputs have the same shape. The program must not
/// be a row program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// The program.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
}

impl Map {
    /// Returns everything except the values of the run-time parameters.
    pub(super) fn structure(&self) -> impl PartialEq + Hash + '_ {
        let Map { program, params } = self;
        (program, params.len())
    }
}

impl Family for Map {
    const FAMILY: &'static str = "map";

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
        Ok(self.program.outputs.iter().map(|o| Meta { shape: shape.clone(), dtype: o.storage }).collect())
    }

    /// All outputs must have the same shape, to which the inputs must broadcast.
    #[inline]
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        check_dtypes(&self.program, inputs, outputs)?;
        check_broadcast(self.program.name, inputs, outputs)
    }

    fn flops(&self, _: &[Meta], outputs: &[Meta]) -> u64 {
        outputs.first().map_or(0, Meta::elements) * flops_per_element(&self.program)
    }

    fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        Some((&self.program, &self.params))
    }
}
