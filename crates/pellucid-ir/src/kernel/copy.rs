//! The kernel family [`CopyValues`]: copies into another layout or dtype.

use super::operand::check_broadcast;
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::error::Result;
use smallvec::smallvec;

/// A copy of the values into another layout or dtype. The input broadcasts to the shape of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CopyValues;

impl Family for CopyValues {
    const FAMILY: &'static str = "copy";

    fn info(&self) -> FamilyInfo {
        FamilyInfo::new(1, 1)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        Ok(smallvec![inputs[0].clone()])
    }

    /// The input must broadcast to the shape of the output.
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        check_broadcast("copy", inputs, outputs)
    }

    fn flops(&self, _: &[Meta], _: &[Meta]) -> u64 {
        0
    }
}
