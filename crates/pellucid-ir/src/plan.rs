//! A plan: kernels over numbered buffer slots, in the order in which they run.
//!
//! In its plainest form there are no passes: every value that a recorded kernel makes has a slot,
//! and a slot of its own.

use crate::dtype::DType;
use crate::kernel::Kernel;
use crate::shape::Layout;
use std::fmt;

/// The number of a buffer slot.
pub type Slot = usize;

/// One operand of a launch: a view into a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Which buffer.
    pub slot: Slot,
    /// How the elements lie in it.
    pub layout: Layout,
    /// What they are.
    pub dtype: DType,
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it writes (and, for in-place families, reads).
    pub outputs: Vec<Operand>,
}

/// Kernels over slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Bytes of every slot.
    pub slots: Vec<usize>,
    /// What runs, in order.
    pub launches: Vec<Launch>,
}

impl Plan {
    /// The first place where two plans differ, in words; `None` if they do the same.
    pub fn difference(&self, other: &Plan) -> Option<String> {
        for (i, (a, b)) in self.launches.iter().zip(&other.launches).enumerate() {
            if a != b {
                let what = if a.kernel != b.kernel {
                    format!("{:?} instead of {:?}", b.kernel, a.kernel)
                } else {
                    format!("operands {:?} instead of {:?}", (&b.inputs, &b.outputs), (&a.inputs, &a.outputs))
                };
                return Some(format!("kernel {i} ({}): {what}", a.kernel.name()));
            }
        }
        let (a, b) = (self.launches.len(), other.launches.len());
        if a != b {
            return Some(format!("{b} kernels instead of {a}"));
        }
        (self.slots != other.slots).then(|| "buffers of other sizes".to_string())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.slots.iter().sum();
        writeln!(f, "plan: {} kernels, {} buffers, {bytes} bytes", self.launches.len(), self.slots.len())?;
        let operands = |list: &[Operand]| {
            list.iter().map(|o| format!("%{} {}{}", o.slot, o.dtype, o.layout.shape())).collect::<Vec<_>>().join(", ")
        };
        for (i, launch) in self.launches.iter().enumerate() {
            let (outputs, inputs) = (operands(&launch.outputs), operands(&launch.inputs));
            writeln!(f, "{i:4}  {outputs} = {}({inputs})", launch.kernel.name())?;
        }
        Ok(())
    }
}
