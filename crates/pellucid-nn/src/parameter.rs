//! What a module owns: parameters, which are learnt; buffers, which are kept; the training mode; and ways to choose from.

use pellucid_tensor::ops::Operand;
use pellucid_tensor::{HostFlag, Tensor};
use std::ops::Deref;

/// A tensor that training changes: a leaf that requires a gradient.
///
/// It dereferences to its [`Tensor`]. Clones are handles of the same parameter, so two layers that
/// hold one share it (tied weights); a module then counts it once, under the name that comes first.
/// `parameter.set_requires_grad(false)` freezes it.
#[derive(Clone, Debug)]
pub struct Parameter(Tensor);

impl Parameter {
    /// A parameter with these values, whatever they were computed from.
    ///
    /// # Panics
    /// If the dtype is not a float.
    #[track_caller]
    pub fn new(values: Tensor) -> Parameter {
        Parameter(values.detach().requires_grad_(true))
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }
}

impl Deref for Parameter {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl<'a> From<&'a Parameter> for Operand<'a> {
    fn from(parameter: &'a Parameter) -> Operand<'a> {
        Operand::Borrowed(&parameter.0)
    }
}

/// A tensor that belongs to a module's state but is not learnt: running statistics, a position
/// table, an optimizer's momentum. It requires no gradient and is written in place.
///
/// It dereferences to its [`Tensor`]; clones are handles of the same buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

impl Buffer {
    /// A buffer with these values, of any dtype.
    pub fn new(values: Tensor) -> Buffer {
        Buffer { tensor: values.detach(), persistent: true }
    }

    /// A buffer that can be computed anew, such as a mask: it is no part of state dicts, but of everything else.
    ///
    /// ```
    /// # extern crate pellucid_nn as pellucid;
    /// use pellucid_nn::{Buffer, Linear, Module, causal_mask};
    ///
    /// #[derive(Module)]
    /// struct Head {
    ///     output: Linear,
    ///     mask: Buffer,
    /// }
    ///
    /// let head = Head { output: Linear::new(2, 3), mask: Buffer::non_persistent(causal_mask(4)) };
    /// assert_eq!(head.named_buffers()[0].0, "mask");
    /// assert_eq!(head.state_dict().keys().collect::<Vec<_>>(), ["output.bias", "output.weight"]);
    /// ```
    pub fn non_persistent(values: Tensor) -> Buffer {
        Buffer { persistent: false, ..Buffer::new(values) }
    }

    /// Whether it is part of state dicts.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Deref for Buffer {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl<'a> From<&'a Buffer> for Operand<'a> {
    fn from(buffer: &'a Buffer) -> Operand<'a> {
        Operand::Borrowed(&buffer.tensor)
    }
}

/// Whether a module is being trained (as it is when it is made) or evaluated. A layer that behaves
/// differently in the two holds one, and [`Module::train`](crate::Module::train) and
/// [`Module::eval`](crate::Module::eval) set it.
///
/// A captured step has a recording for either mode that it meets. Clones are set on their own.
#[derive(Clone, Debug)]
pub struct Training(HostFlag);

impl Training {
    /// In training.
    pub fn new() -> Training {
        Training(HostFlag::new(1))
    }

    /// True in training, false in evaluation.
    pub fn get(&self) -> bool {
        self.0.get() == 1
    }

    /// Sets the mode.
    pub fn set(&self, training: bool) {
        self.replace(training);
    }

    /// Sets the mode and returns the one before, which is there to be put back.
    pub fn replace(&self, training: bool) -> bool {
        self.0.replace(usize::from(training)) == 1
    }
}

impl Default for Training {
    fn default() -> Training {
        Training::new()
    }
}

/// Which way a module with several goes: a number of the host's, set between calls, never computed from values.
///
/// A captured step has a recording for each way that it meets; a walk finds all choices of a model
/// ([`graph::path_of`](crate::graph::path_of)). Clones are chosen on their own.
#[derive(Clone, Debug)]
pub struct Choice(HostFlag);

impl Choice {
    /// This way, to begin with.
    pub fn new(way: usize) -> Choice {
        Choice(HostFlag::new(way))
    }

    /// The way.
    pub fn get(&self) -> usize {
        self.0.get()
    }

    /// Chooses another one.
    pub fn set(&self, way: usize) {
        self.0.set(way);
    }
}
