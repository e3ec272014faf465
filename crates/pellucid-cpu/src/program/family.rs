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
use pellucid_ir::Result;
use pellucid_ir::kernel::{CopyValues, Map, Reduce, Row};

impl CpuFamily for Map {
    #[inline]
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_map(self, inputs, outputs)
    }
}

impl CpuFamily for Row {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_row(self, inputs, outputs)
    }
}

impl CpuFamily for Reduce {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_reduce(self, inputs, outputs)
    }
}

impl CpuFamily for CopyValues {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        copy(&inputs[0], &outputs[0])
    }
}
