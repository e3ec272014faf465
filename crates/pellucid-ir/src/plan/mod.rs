//! A plan: kernels over numbered buffer slots, in the order in which they run.
//!
//! A recording gives a plan in its plainest form: every value that a kernel makes has a slot of its own. The
//! [passes](PASSES) turn it into one that does the same, bit for bit, with fewer kernels and less memory. All of
//! it is pure: a plan knows no device and no values.
//!
//! | file | what it does |
//! | --- | --- |
//! | `passes` | the list of passes, and which of them are wanted |
//! | `order` | which launches must keep their order, and where one may go |
//! | `dead`, `constants`, `copies`, `fuse`, `early` | one pass each |
//! | `arena` | lifetimes, and places in one piece of memory |
//! | `print`, `svg` | a plan as text, and as a picture |

mod arena;
mod constants;
mod copies;
mod dead;
mod early;
mod fuse;
mod order;
mod passes;
mod print;
mod svg;
#[cfg(test)]
mod tests;

pub use arena::{Arena, Place};
pub use passes::{PASSES, Pass, Passes};

use crate::dtype::DType;
use crate::kernel::{Kernel, Meta};
use crate::shape::Layout;
use std::collections::BTreeMap;
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
    /// The names of the recorded kernels that it does the work of, if they were several.
    pub parts: Vec<&'static str>,
}

/// What a slot stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Made by the plan, and seen by nobody else.
    #[default]
    Own,
    /// Filled anew before every run; the plan may overwrite it.
    Input,
    /// Memory that comes with every run, which only reads it.
    Given,
    /// Never written.
    Constant,
    /// It exists outside of the plan, which reads it, or changes it for everybody to see.
    State,
}

/// Kernels over slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Bytes of every slot.
    pub slots: Vec<usize>,
    /// What every slot stands for; those beyond the list are [`Role::Own`].
    pub roles: Vec<Role>,
    /// What runs once, before the first run: all that depends on constants alone.
    pub setup: Vec<Launch>,
    /// What runs, in order.
    pub launches: Vec<Launch>,
    /// What must be there at the end.
    pub outputs: Vec<Operand>,
    /// Names of slots, for those who read the plan.
    pub names: BTreeMap<Slot, String>,
    /// Where the plan's own buffers lie, if they have been laid out.
    pub arena: Option<Arena>,
    /// What the passes did and did not do.
    pub notes: Notes,
}

/// What became of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// Kernels of the recording.
    pub recorded: usize,
    /// Slots that need no memory any more, each with what made them needless.
    pub elided: Vec<(Slot, Elision)>,
    /// Neighbours that were not made one kernel: what makes a value, what reads it, and the reason.
    pub apart: Vec<(&'static str, &'static str, &'static str)>,
}

/// Why a slot needs no memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Elision {
    /// Nobody reads it.
    Dead,
    /// Another slot is read or written in its stead.
    Same(Slot),
    /// It never leaves the registers of a kernel with these parts.
    Fused(Vec<&'static str>),
}

impl fmt::Display for Elision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elision::Dead => write!(f, "nobody reads it"),
            Elision::Same(slot) => write!(f, "buffer {slot} is used in its stead"),
            Elision::Fused(parts) => write!(f, "{}", parts.join(" + ")),
        }
    }
}

impl Operand {
    /// Shape and dtype.
    pub fn meta(&self) -> Meta {
        Meta { shape: self.layout.shape().clone(), dtype: self.dtype }
    }

    /// Bytes of its elements, each counted once an index.
    pub fn bytes(&self) -> usize {
        self.layout.shape().size() * self.dtype.size()
    }

    /// True if both may mean the same bytes.
    fn overlaps(&self, other: &Operand) -> bool {
        let range = |o: &Operand| {
            let extent = o.layout.extent();
            let bytes = |at: isize| at.saturating_mul(o.dtype.size() as isize);
            bytes(extent.start)..bytes(extent.end)
        };
        let (a, b) = (range(self), range(other));
        self.slot == other.slot && a.start < b.end && b.start < a.end
    }
}

impl Launch {
    /// A kernel as it was recorded.
    pub fn new(kernel: Kernel, inputs: Vec<Operand>, outputs: Vec<Operand>) -> Launch {
        Launch { kernel, inputs, outputs, parts: Vec::new() }
    }

    /// The names of the recorded kernels that it does the work of.
    pub fn parts(&self) -> Vec<&'static str> {
        if self.parts.is_empty() { vec![self.kernel.name()] } else { self.parts.clone() }
    }

    /// The number of arithmetic operations on values (see [`Kernel::flops`]).
    pub fn flops(&self) -> u64 {
        let metas = |operands: &[Operand]| operands.iter().map(Operand::meta).collect::<Vec<_>>();
        self.kernel.flops(&metas(&self.inputs), &metas(&self.outputs))
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> usize {
        let touched =
            |o: &Operand| if o.layout.is_broadcast() { o.layout.extent().len() * o.dtype.size() } else { o.bytes() };
        self.inputs.iter().chain(&self.outputs).map(touched).sum()
    }

    /// Every operand.
    fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.inputs.iter().chain(&self.outputs)
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Operand> {
        self.inputs.iter_mut().chain(&mut self.outputs)
    }

    fn writes(&self, slot: Slot) -> bool {
        self.outputs.iter().any(|o| o.slot == slot)
    }

    fn touches(&self, slot: Slot) -> bool {
        self.operands().any(|o| o.slot == slot)
    }

    /// True if it also reads what it writes.
    fn updates(&self) -> bool {
        matches!(self.kernel, Kernel::Scatter(_) | Kernel::Random(_))
    }

    /// True if input `index` is read element by element, at the place that is then written: an output may be the same view.
    fn is_elementwise(&self, index: usize) -> bool {
        match self.kernel {
            Kernel::Map(_) | Kernel::Row(_) => true,
            Kernel::MatMul(_) => index >= 2,
            _ => false,
        }
    }

    /// True if no output lies over an input or another output, unless it is the very view of an input that is
    /// read element by element.
    fn is_sound(&self) -> bool {
        let apart = |i: usize, out: &Operand| self.outputs[i + 1..].iter().all(|o| !o.overlaps(out));
        let same = |a: &Operand, b: &Operand| a.layout == b.layout && a.dtype == b.dtype;
        let clear = |out: &Operand| {
            let beside = |(k, x): (usize, &Operand)| !x.overlaps(out) || self.is_elementwise(k) && same(x, out);
            self.inputs.iter().enumerate().all(beside)
        };
        self.outputs.iter().enumerate().all(|(i, out)| apart(i, out) && clear(out))
    }
}

impl Plan {
    /// What `slot` stands for.
    pub fn role(&self, slot: Slot) -> Role {
        self.roles.get(slot).copied().unwrap_or_default()
    }

    /// Lets every launch and output work on slot `to` instead of `from`, whose `bytes` are copied there first.
    pub fn copy_first(&mut self, from: Slot, to: Slot, bytes: usize) {
        let operands = self.launches.iter_mut().flat_map(Launch::operands_mut).chain(&mut self.outputs);
        operands.filter(|o| o.slot == from).for_each(|o| o.slot = to);
        let whole = |slot| Operand { slot, layout: Layout::contiguous([bytes].into()), dtype: DType::U8 };
        self.launches.insert(0, Launch::new(Kernel::Copy, vec![whole(from)], vec![whole(to)]));
    }

    /// The number of arithmetic operations of one run.
    pub fn flops(&self) -> u64 {
        self.launches.iter().map(Launch::flops).sum()
    }

    /// Bytes that the kernels of one run read and write.
    pub fn traffic(&self) -> usize {
        self.launches.iter().map(Launch::bytes).sum()
    }

    /// True if `slot`'s value must be there at the end: it is an output, or seen from outside.
    fn is_wanted(&self, slot: Slot) -> bool {
        self.role(slot) == Role::State || self.outputs.iter().any(|o| o.slot == slot)
    }

    /// The launches that touch `slot`.
    fn users(&self, slot: Slot) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.launches.len()).filter(move |&k| self.launches[k].touches(slot))
    }

    /// Takes note of slots that were touched by `before` and are touched no more.
    fn elide(&mut self, before: impl IntoIterator<Item = Slot>, why: &Elision) {
        for slot in before {
            let known = self.notes.elided.iter().any(|(s, _)| *s == slot);
            if self.role(slot) == Role::Own && !known && self.users(slot).next().is_none() && !self.is_wanted(slot) {
                self.notes.elided.push((slot, why.clone()));
            }
        }
    }

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
