//! Kernels and plans whose operands the rules of the families accept.
//!
//! Backends receive nothing else. The rules are thus checked once, outside of the backends, which check only their
//! memory and their limits.

use crate::backend::View;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::shape::Layout;
use std::ops::Deref;

/// A kernel with operands that its family accepts. No output is broadcast.
#[derive(Clone, Copy, Debug)]
pub struct CheckedKernel<'a> {
    kernel: &'a Kernel,
    inputs: &'a [View<'a>],
    outputs: &'a [View<'a>],
}

impl<'a> CheckedKernel<'a> {
    /// Checks the operands of a kernel.
    ///
    /// # Errors
    /// Those of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view.
    #[inline]
    pub fn new(kernel: &'a Kernel, inputs: &'a [View<'a>], outputs: &'a [View<'a>]) -> Result<CheckedKernel<'a>> {
        kernel.check(inputs, outputs)?;
        outputs.iter().try_for_each(|output| check_writable(kernel, output.layout))?;
        Ok(CheckedKernel { kernel, inputs, outputs })
    }

    /// Returns the kernel.
    #[inline]
    pub fn kernel(&self) -> &'a Kernel {
        self.kernel
    }

    /// Returns the inputs.
    #[inline]
    pub fn inputs(&self) -> &'a [View<'a>] {
        self.inputs
    }

    /// Returns the outputs.
    #[inline]
    pub fn outputs(&self) -> &'a [View<'a>] {
        self.outputs
    }
}

/// A plan whose launches all have operands that their families accept. No output is broadcast, and outputs overlap only
/// inputs that the kernel [allows](crate::kernel::ReadOrder::allows).
#[derive(Clone, Copy, Debug)]
pub struct CheckedPlan<'a>(&'a Plan);

impl<'a> CheckedPlan<'a> {
    /// Checks the launches of a plan, without those of its setup.
    ///
    /// # Errors
    /// Those of [`Kernel::check`]; [`Error::InvalidArgument`] for an output that is a broadcast view, or that overlaps
    /// another operand.
    pub fn new(plan: &'a Plan) -> Result<CheckedPlan<'a>> {
        for launch in &plan.launches {
            launch.kernel.check(&launch.inputs, &launch.outputs)?;
            launch.outputs.iter().try_for_each(|output| check_writable(&launch.kernel, &output.layout))?;
            if !launch.is_sound() {
                let op = launch.kernel.name();
                let reason = format!("an output of `{op}` overlaps another operand that it must not overwrite");
                return Err(Error::invalid("prepare", reason));
            }
        }
        Ok(CheckedPlan(plan))
    }
}

impl Deref for CheckedPlan<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        self.0
    }
}

/// Returns an error if several indices of an output refer to one element.
#[inline]
fn check_writable(kernel: &Kernel, layout: &Layout) -> Result<()> {
    match !layout.is_contiguous() && layout.is_broadcast() {
        true => Err(broadcast_output(kernel, layout)),
        false => Ok(()),
    }
}

#[cold]
fn broadcast_output(kernel: &Kernel, layout: &Layout) -> Error {
    let reason = format!("cannot write to a broadcast view of shape {}; copy it first", layout.shape());
    Error::invalid(kernel.name(), reason)
}
