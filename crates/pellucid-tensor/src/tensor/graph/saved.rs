//! The values that a forward computation saves for the backward computation.

use super::gradients::NeedsInputGrad;
use super::{Edge, GraphNode};
use crate::array::Array;
use crate::device::Device;
use crate::engine;
use crate::grad_mode::is_grad_enabled;
use crate::tensor::Tensor;
use crate::tensor::gradient_slot::GradientSlot;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// The values that `forward` saves for `backward`.
pub struct SaveForBackward<'a> {
    pub(crate) edges: &'a [Edge],
    pub(crate) reuse: Option<usize>,
    pub(crate) requests: SmallVec<[SaveRequest; 4]>,
}

/// A value that `forward` has requested to save.
pub(crate) enum SaveRequest {
    Input(usize),
    Output(usize),
    Array(Box<Array>),
}

impl SaveRequest {
    /// Returns true if the requested input or output exists.
    #[inline]
    pub(crate) fn exists(&self, inputs: &[&Array], outputs: &[Array]) -> bool {
        match *self {
            SaveRequest::Input(i) => i < inputs.len(),
            SaveRequest::Output(j) => j < outputs.len(),
            SaveRequest::Array(_) => true,
        }
    }
}

impl SaveForBackward<'_> {
    /// Returns true if the operation is recorded, so that a backward pass is possible. Otherwise saving has no effect.
    pub fn any(&self) -> bool {
        !self.edges.is_empty()
    }

    /// Returns true if input `index` requires a gradient.
    pub fn needs(&self, index: usize) -> bool {
        self.edges.get(index).is_some_and(Edge::is_tracked)
    }

    /// Returns true if two inputs are the same tracked tensor.
    pub fn are_same_input(&self, i: usize, j: usize) -> bool {
        self.any() && self.edges[i].is_same(&self.edges[j])
    }

    /// Saves input `index`.
    pub fn input(&mut self, index: usize) {
        if !self.requests.iter().any(|w| matches!(w, SaveRequest::Input(i) if *i == index)) {
            self.save(SaveRequest::Input(index));
        }
    }

    /// Saves output `index`.
    pub fn output(&mut self, index: usize) {
        if !self.requests.iter().any(|w| matches!(w, SaveRequest::Output(j) if *j == index)) {
            self.save(SaveRequest::Output(index));
        }
    }

    /// Saves an intermediate value, which is a constant in `backward`.
    pub fn array(&mut self, array: Array) {
        self.save(SaveRequest::Array(Box::new(array)));
    }

    /// Returns the index of the input whose storage an output may reuse, because it is uniquely owned and not saved.
    pub(crate) fn reusable(&self) -> Option<usize> {
        self.reuse.filter(|&r| !self.requests.iter().any(|w| matches!(w, SaveRequest::Input(i) if *i == r)))
    }

    fn save(&mut self, request: SaveRequest) {
        if self.any() {
            self.requests.push(request);
        }
    }
}

/// A value that is saved for `backward`: the array, its origin, and its version when it was saved.
pub(crate) struct SavedValue {
    array: Array,
    origin: SavedOrigin,
    version: u64,
}

impl SavedValue {
    /// Saves input `index` of a node. When it is read, it has the history of the node's edge.
    pub(crate) fn input(array: &Array, index: usize) -> SavedValue {
        SavedValue { array: array.clone(), origin: SavedOrigin::Input(index), version: array.storage().version() }
    }

    #[inline]
    pub(crate) fn new(request: &SaveRequest, inputs: &[&Array], outputs: &[Array]) -> SavedValue {
        let (array, origin) = match request {
            SaveRequest::Input(i) => (inputs[*i], SavedOrigin::Input(*i)),
            SaveRequest::Output(j) => (&outputs[*j], SavedOrigin::Output(*j)),
            SaveRequest::Array(array) => (&**array, SavedOrigin::Constant),
        };
        SavedValue { array: array.clone(), origin, version: array.storage().version() }
    }

    /// Returns true if the tensor has the storage of this value.
    pub(crate) fn shares_storage(&self, tensor: &Tensor) -> bool {
        self.array.shares_storage(tensor.array())
    }

    /// Saves an intermediate value, without history.
    pub(crate) fn constant(array: Array) -> SavedValue {
        let version = array.storage().version();
        SavedValue { array, origin: SavedOrigin::Constant, version }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum SavedOrigin {
    Input(usize),
    Output(usize),
    Constant,
}

/// The values that `forward` saved, as tensors with their history.
pub struct SavedTensors<'a> {
    pub(crate) node: &'a Arc<GraphNode>,
    pub(crate) values: &'a [SavedValue],
    pub(crate) slots: &'a [Option<Arc<GradientSlot>>],
}

impl SavedTensors<'_> {
    /// Returns input `index`, which `forward` saved.
    ///
    /// # Errors
    /// [`Error::SavedValueModified`] if it was written since.
    pub fn input(&self, index: usize) -> Result<Tensor> {
        self.find(SavedOrigin::Input(index))
    }

    /// Returns the saved inputs `first..`.
    pub(crate) fn inputs_from(&self, first: usize) -> Result<SmallVec<[Tensor; 4]>> {
        let mut inputs = SmallVec::new();
        for index in first..self.inputs() {
            inputs.push(self.input(index)?);
        }
        Ok(inputs)
    }

    /// Returns output `index`, which `forward` saved.
    ///
    /// # Errors
    /// [`Error::SavedValueModified`] if it was written since.
    pub fn output(&self, index: usize) -> Result<Tensor> {
        self.find(SavedOrigin::Output(index))
    }

    /// Returns the `k`-th intermediate value that `forward` saved.
    pub fn array(&self, k: usize) -> Result<Tensor> {
        let value = self.values.iter().filter(|v| v.origin == SavedOrigin::Constant).nth(k);
        self.unpack(value)
    }

    /// Returns the elements of the `k`-th intermediate value that `forward` saved.
    pub(crate) fn constant(&self, k: usize) -> Result<&Array> {
        self.checked(self.values.iter().filter(|v| v.origin == SavedOrigin::Constant).nth(k)).map(|v| &v.array)
    }

    /// Returns true if the gradient of input `index` is needed: its tensor is tracked and still exists.
    pub(crate) fn needs_gradient(&self, needs: NeedsInputGrad, index: usize) -> bool {
        let is_live = match &self.node.edges[index] {
            Edge::None => false,
            Edge::Leaf(_) => self.slots[index].is_some(),
            Edge::Node(..) => true,
        };
        is_live && needs.contains(index)
    }

    /// Returns the edge to the producer of input `index`.
    pub(crate) fn edge(&self, index: usize) -> &Edge {
        &self.node.edges[index]
    }

    /// Returns the shape of input `index`, whose gradient must be needed.
    pub fn input_shape(&self, index: usize) -> Shape {
        self.meta(index).shape.clone()
    }

    /// Returns the dtype of input `index`, whose gradient must be needed.
    #[inline]
    pub fn input_dtype(&self, index: usize) -> DType {
        self.meta(index).dtype
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.node.edges.len()
    }

    /// Returns true if two inputs are the same tracked tensor.
    pub fn are_same_input(&self, i: usize, j: usize) -> bool {
        self.node.edges[i].is_same(&self.node.edges[j])
    }

    #[inline]
    pub(crate) fn meta(&self, index: usize) -> &Meta {
        match &self.node.edges[index] {
            Edge::Node(node, output) => &node.outputs_meta[*output as usize].meta,
            _ => self.slots[index].as_ref().expect("a leaf whose gradient is needed must have a gradient slot").meta(),
        }
    }

    /// Returns the device of input `index` and of its gradient, which must be needed.
    pub(crate) fn input_device(&self, index: usize) -> Device {
        match &self.node.edges[index] {
            Edge::Node(node, output) => node.outputs_meta[*output as usize].device,
            _ => {
                self.slots[index].as_ref().expect("a leaf whose gradient is needed must have a gradient slot").device()
            }
        }
    }

    /// Returns the elements of input `index`, without its history.
    pub(crate) fn input_array(&self, index: usize) -> Result<&Array> {
        self.checked(self.values.iter().find(|v| v.origin == SavedOrigin::Input(index))).map(|v| &v.array)
    }

    /// Returns the elements of output `index`, without its history.
    pub(crate) fn output_array(&self, index: usize) -> Result<&Array> {
        self.checked(self.values.iter().find(|v| v.origin == SavedOrigin::Output(index))).map(|v| &v.array)
    }

    fn find(&self, origin: SavedOrigin) -> Result<Tensor> {
        self.unpack(self.values.iter().find(|v| v.origin == origin))
    }

    /// Returns the saved value, or an error if it was not saved or was overwritten later.
    fn checked<'v>(&self, value: Option<&'v SavedValue>) -> Result<&'v SavedValue> {
        let node = self.node.derivative().name();
        let Some(value) = value else {
            return Err(Error::invalid(node, "backward() reads a value that forward() did not save"));
        };
        let now = value.array.storage().version();
        // A recording saves no elements, so a write by another thread has the effect of a write before the launch.
        if now != value.version && engine::may_be_written_since(self.node.recording, &value.array, value.version) {
            let shape = value.array.shape().clone();
            return Err(Error::SavedValueModified { node, shape, saved: value.version, now });
        }
        Ok(value)
    }

    fn unpack(&self, value: Option<&SavedValue>) -> Result<Tensor> {
        let value = self.checked(value)?;
        let array = value.array.clone();
        if !is_grad_enabled() || !array.dtype().is_float() {
            return Ok(Tensor::from(array));
        }
        Ok(match value.origin {
            SavedOrigin::Constant => Tensor::from(array),
            SavedOrigin::Output(index) => Tensor::recorded(array, self.node.clone(), index),
            SavedOrigin::Input(index) => match &self.node.edges[index] {
                Edge::Node(producer, output) => Tensor::recorded(array, producer.clone(), *output as usize),
                _ => Tensor::leaf(array, self.slots[index].clone()),
            },
        })
    }
}
