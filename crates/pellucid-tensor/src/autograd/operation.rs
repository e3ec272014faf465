//! The trait `Operation`, and `apply`, which runs and records operations.

use super::anomaly::note_forward_location;
use super::graph::{Edge, GradientSlot, GraphNode, NodeHeader};
use super::mode::{is_grad_enabled, set_grad_enabled};
use crate::array::Array;
use crate::autocast::autocast_off;
use crate::tensor::{Tensor, TensorInner};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The outputs of a forward computation, usually one.
pub type Arrays = SmallVec<[Array; 1]>;
/// The gradient of every input; `None` if it is not needed or zero.
pub type InputGradients = SmallVec<[Option<Tensor>; 2]>;

/// A differentiable operation. A value is created for each application, and holds its arguments (axes, parameters).
///
/// Built-in operations use the same interface as a user's own:
///
/// ```
/// use pellucid_tensor::{apply, Array, Arrays, Gradients, InputGradients, Needed, Operation, Result, Saved, Saves, Tensor};
///
/// /// (x·y, x + y), with two inputs, two outputs and both inputs saved.
/// struct ProductAndSum;
///
/// impl Operation for ProductAndSum {
///     fn name(&self) -> &'static str {
///         "product_and_sum"
///     }
///     fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
///         saves.input(0);
///         saves.input(1);
///         let (x, y) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
///         Ok([&x * &y, &x + &y].iter().map(|t| t.array().clone()).collect())
///     }
///     fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
///         let (x, y) = (saved.input(0)?, saved.input(1)?);
///         let (g, h) = (grads.get(0)?, grads.get(1)?);
///         Ok([Some(&g * &y + &h), Some(&g * &x + &h)].into_iter().collect())
///     }
/// }
///
/// let x = Tensor::from([3.0f32]).requires_grad_(true);
/// let y = Tensor::from([5.0f32]).requires_grad_(true);
/// let out = apply(ProductAndSum, &[&x, &y])?;
/// (&out[0] + &out[1]).backward();
/// assert_eq!(x.grad().unwrap().item::<f32>(), 6.0);
/// assert_eq!(y.grad().unwrap().item::<f32>(), 4.0);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub trait Operation: Send + Sync + 'static {
    /// Returns the name that errors and the graph show.
    fn name(&self) -> &'static str;

    /// Computes the outputs and saves the values that `backward` needs. Nothing is recorded during the call. All checks
    /// precede the first kernel, so that an error changes nothing.
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays>;

    /// Computes the gradient of every needed input from the gradients of the outputs, in differentiable tensor
    /// operations only. Each has its input's shape and dtype.
    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients>;

    /// Returns false if the derivative of a float output exists but is not implemented. The operation then refuses
    /// tracked inputs.
    fn has_gradient(&self) -> bool {
        true
    }

    /// Returns true if every output consists of elements of the first input in another layout (a slice, transpose or
    /// broadcast), shares its storage where possible, and `backward` is the transpose of this map. A write in place to
    /// one of them is then recorded for the other. If any other operation returns memory of an input, recorded writes
    /// to either are errors.
    fn is_view(&self) -> bool {
        false
    }
}

/// The part of an operation that a node keeps: its backward computation.
pub(crate) trait Derivative: Send + Sync + 'static {
    /// Returns the operation's name.
    fn name(&self) -> &'static str;

    /// See [`Operation::backward`].
    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients>;
}

impl<O: Operation> Derivative for O {
    fn name(&self) -> &'static str {
        Operation::name(self)
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients> {
        Operation::backward(self, saved, grads, needed)
    }
}

/// The set of inputs that need a gradient. Inputs beyond the 64th always do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needed(pub(crate) u64);

impl Needed {
    /// Returns true if input `index` needs a gradient.
    pub fn contains(self, index: usize) -> bool {
        index >= 64 || self.0 >> index & 1 == 1
    }

    pub(crate) fn insert(&mut self, index: usize) {
        if index < 64 {
            self.0 |= 1 << index;
        }
    }
}

/// The values that `forward` saves for `backward`.
pub struct Saves<'a> {
    edges: &'a [Edge],
    reuse: Option<usize>,
    wanted: SmallVec<[SaveRequest; 4]>,
}

enum SaveRequest {
    Input(usize),
    Output(usize),
    Array(Box<Array>),
}

impl Saves<'_> {
    /// Returns true if a backward pass is possible. Otherwise saving does nothing.
    pub fn any(&self) -> bool {
        !self.edges.is_empty()
    }

    /// Returns true if input `index` requires a gradient.
    pub fn needs(&self, index: usize) -> bool {
        self.edges.get(index).is_some_and(Edge::is_tracked)
    }

    /// Returns true if two inputs are the same tracked tensor.
    pub fn same(&self, i: usize, j: usize) -> bool {
        self.any() && self.edges[i].same(&self.edges[j])
    }

    /// Saves input `index`.
    pub fn input(&mut self, index: usize) {
        if !self.wanted.iter().any(|w| matches!(w, SaveRequest::Input(i) if *i == index)) {
            self.save(SaveRequest::Input(index));
        }
    }

    /// Saves output `index`.
    pub fn output(&mut self, index: usize) {
        if !self.wanted.iter().any(|w| matches!(w, SaveRequest::Output(j) if *j == index)) {
            self.save(SaveRequest::Output(index));
        }
    }

    /// Saves an intermediate value, which is a constant in `backward`.
    pub fn array(&mut self, array: Array) {
        self.save(SaveRequest::Array(Box::new(array)));
    }

    /// Returns the input whose storage an output may reuse: it is uniquely owned and not saved.
    pub(crate) fn reusable(&self) -> Option<usize> {
        self.reuse.filter(|&r| !self.wanted.iter().any(|w| matches!(w, SaveRequest::Input(i) if *i == r)))
    }

    fn save(&mut self, wanted: SaveRequest) {
        if self.any() {
            self.wanted.push(wanted);
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
    fn new(wanted: &SaveRequest, inputs: &[&Array], outputs: &[Array]) -> SavedValue {
        let (array, origin) = match wanted {
            SaveRequest::Input(i) => (inputs[*i], SavedOrigin::Input(*i)),
            SaveRequest::Output(j) => (&outputs[*j], SavedOrigin::Output(*j)),
            SaveRequest::Array(array) => (&**array, SavedOrigin::Constant),
        };
        SavedValue { array: array.clone(), origin, version: array.storage().version() }
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
pub struct Saved<'a> {
    pub(crate) node: &'a Arc<GraphNode>,
    pub(crate) values: &'a [SavedValue],
    pub(crate) slots: &'a [Option<Arc<GradientSlot>>],
}

impl Saved<'_> {
    /// Returns input `index`, which `forward` saved.
    ///
    /// # Errors
    /// [`Error::SavedValueModified`] if it was written to since.
    pub fn input(&self, index: usize) -> Result<Tensor> {
        self.find(SavedOrigin::Input(index))
    }

    /// Returns the inputs from `first` on, which `forward` saved.
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
    /// [`Error::SavedValueModified`] if it was written to since.
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
    pub(crate) fn wants(&self, needed: Needed, index: usize) -> bool {
        let is_live = match &self.node.edges[index] {
            Edge::None => false,
            Edge::Leaf(_) => self.slots[index].is_some(),
            Edge::Node(..) => true,
        };
        is_live && needed.contains(index)
    }

    /// Returns the edge to the producer of input `index`.
    pub(crate) fn edge(&self, index: usize) -> &Edge {
        &self.node.edges[index]
    }

    /// Returns the shape of input `index`, which must be needed.
    pub fn input_shape(&self, index: usize) -> Shape {
        self.meta(index).shape.clone()
    }

    /// Returns the dtype of input `index`, which must be needed.
    #[inline]
    pub fn input_dtype(&self, index: usize) -> DType {
        self.meta(index).dtype
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.node.edges.len()
    }

    /// Returns true if two inputs are the same tracked tensor.
    pub fn same(&self, i: usize, j: usize) -> bool {
        self.node.edges[i].same(&self.node.edges[j])
    }

    #[inline]
    pub(crate) fn meta(&self, index: usize) -> &Meta {
        match &self.node.edges[index] {
            Edge::Node(node, output) => &node.metas[*output as usize],
            _ => &self.slots[index].as_ref().expect("a needed input has a slot").meta,
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

    /// Returns the saved value, or an error if it was not saved or was overwritten since.
    fn checked<'v>(&self, value: Option<&'v SavedValue>) -> Result<&'v SavedValue> {
        let node = self.node.derivative().name();
        let Some(value) = value else {
            return Err(Error::invalid(node, "backward() reads a value that forward() did not save"));
        };
        let now = value.array.storage().version();
        if now != value.version {
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

/// The incoming gradients of an operation's outputs.
pub struct Gradients<'a> {
    pub(crate) node: &'a Arc<GraphNode>,
    pub(crate) values: &'a [Option<Tensor>],
    /// Takes the sum of the gradients that an input has received so far.
    pub(crate) sums: &'a dyn Fn(usize) -> Option<Tensor>,
}

impl Gradients<'_> {
    /// Returns the gradient of output `index`, or zeros if the output has no gradient in this pass.
    #[inline]
    pub fn get(&self, index: usize) -> Result<Tensor> {
        match &self.values[index] {
            Some(gradient) => Ok(gradient.clone()),
            None => {
                let Meta { shape, dtype } = &self.node.metas[index];
                crate::ops::zeros(shape, *dtype)
            }
        }
    }

    /// Returns the gradient of output `index`, or `None` if the output has no gradient in this pass.
    pub fn try_get(&self, index: usize) -> Option<&Tensor> {
        self.values[index].as_ref()
    }

    /// Takes the sum of the gradients that input `index` has received from other operations, so that a kernel can add
    /// to it. The caller must return the complete sum. It is not recorded, and has the input's shape and dtype.
    pub(crate) fn take_sum(&self, index: usize) -> Option<Tensor> {
        (self.sums)(index)
    }

    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true for an operation without outputs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the shape of output `index`.
    pub fn shape(&self, index: usize) -> &Shape {
        &self.node.metas[index].shape
    }
}

/// Applies an operation: runs its forward computation and returns the results with their node.
///
/// A result is tracked if its dtype is a float, any input requires a gradient, and grad mode is on.
///
/// # Errors
/// Those of `forward`; [`Error::NoGradient`] for a tracked input of an operation without gradient.
pub fn apply<O: Operation>(op: O, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
    apply_object(&mut Some(op), inputs)
}

/// Applies an operation that has one output.
pub fn apply_one<O: Operation>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    apply_one_object(&mut Some(op), inputs)
}

/// An operation that is being applied, until a node owns it. Only the creation of the node is generic; the rest of
/// [`apply`] is compiled once for all operations.
trait AppliedOperation {
    fn operation(&self) -> &dyn Operation;

    /// Moves the operation into a new node.
    fn move_to_node(&mut self, parts: NodeParts<'_>) -> Arc<GraphNode>;
}

impl<O: Operation> AppliedOperation for Option<O> {
    fn operation(&self) -> &dyn Operation {
        self.as_ref().expect(OWNED_BY_NODE)
    }

    fn move_to_node(&mut self, parts: NodeParts<'_>) -> Arc<GraphNode> {
        parts.node(self.take().expect(OWNED_BY_NODE))
    }
}

const OWNED_BY_NODE: &str = "an operation is applied before its node owns it";

fn apply_object(op: &mut dyn AppliedOperation, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
    // The operands are cast already, and `autocast` must not change the computation inside of the operation.
    let _as_they_are = autocast_off();
    let arrays = arrays_of(inputs);
    let is_view = op.operation().is_view();
    let outputs = if is_recorded(inputs) {
        if !op.operation().has_gradient() {
            return Err(Error::NoGradient { op: op.operation().name() });
        }
        let forward = |op: &&mut dyn AppliedOperation, saves: &mut Saves| op.operation().forward(&arrays, saves);
        record(op, inputs, &arrays, None, forward, |op, parts| op.move_to_node(parts))?
    } else {
        let mut saves = Saves { edges: &[], reuse: None, wanted: SmallVec::new() };
        let _recording_off = set_grad_enabled(false);
        untracked(op.operation().forward(&arrays, &mut saves)?)
    };
    if is_grad_enabled() {
        share_history(is_view, inputs, &outputs);
    } else if is_view {
        outputs.iter().for_each(|output| output.mark_untracked_view(inputs[0]));
    }
    Ok(outputs)
}

fn apply_one_object(op: &mut dyn AppliedOperation, inputs: &[&Tensor]) -> Result<Tensor> {
    let mut outputs = apply_object(op, inputs)?;
    Ok(outputs.pop().expect("apply_one needs an operation with one output"))
}

/// Returns the arrays of tensors.
#[inline]
pub(crate) fn arrays_of<'a>(tensors: &[&'a Tensor]) -> SmallVec<[&'a Array; 4]> {
    let mut arrays = SmallVec::new();
    for tensor in tensors {
        arrays.push(tensor.array());
    }
    arrays
}

/// Lets outputs that share memory with an input share its history, as views do.
#[inline]
fn share_history(is_view: bool, inputs: &[&Tensor], outputs: &[Tensor]) {
    for output in outputs {
        for input in inputs {
            if output.array().shares_storage(input.array()) && output.dtype().is_float() {
                output.share_view_base(input);
                if !is_view {
                    input.view_base().set_opaque();
                }
                break;
            }
        }
    }
}

/// Returns true if an operation on these inputs must be recorded.
#[inline]
pub(crate) fn is_recorded(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// Returns results without history.
#[inline]
pub(crate) fn untracked(mut outputs: Arrays) -> SmallVec<[Tensor; 1]> {
    match outputs.len() {
        1 => SmallVec::from_buf([Tensor::from(outputs.pop().expect("there is one output"))]),
        _ => outputs.into_iter().map(Tensor::from).collect(),
    }
}

/// The parts of a node besides its derivative. A saved value is created where the node stores it, without a copy.
pub(crate) struct NodeParts<'a> {
    header: NodeHeader,
    requests: &'a [SaveRequest],
    inputs: &'a [&'a Array],
    pub(crate) outputs: &'a [Array],
}

impl NodeParts<'_> {
    /// Creates the node, in one allocation. It stores a list of the exact length, so that it is as small as possible.
    #[inline]
    pub(crate) fn node<D: Derivative>(self, derivative: D) -> Arc<GraphNode> {
        let NodeParts { header, requests, inputs, outputs } = self;
        let value = |request: &SaveRequest| SavedValue::new(request, inputs, outputs);
        match requests {
            [] => GraphNode::new(header, [], derivative),
            [one] => GraphNode::new(header, [value(one)], derivative),
            [a, b] => GraphNode::new(header, [value(a), value(b)], derivative),
            more => GraphNode::new(header, more.iter().map(value).collect::<Vec<_>>(), derivative),
        }
    }
}

/// Runs `forward` on inputs of which at least one is tracked, with recording off, and gives the results a node.
/// `arrays` are the elements of the inputs. An output may reuse the storage of input `reuse`, which must be a uniquely
/// owned temporary. `node` creates the node of the results.
#[inline]
pub(crate) fn record<W>(
    what: W,
    inputs: &[&Tensor],
    arrays: &[&Array],
    reuse: Option<usize>,
    forward: impl FnOnce(&W, &mut Saves) -> Result<Arrays>,
    node: impl FnOnce(W, NodeParts<'_>) -> Arc<GraphNode>,
) -> Result<SmallVec<[Tensor; 1]>> {
    let edges = match inputs {
        [a, b] => SmallVec::from_buf([a.edge(), b.edge()]),
        _ => inputs.iter().map(|input| input.edge()).collect(),
    };
    let mut saves = Saves { edges: &edges, reuse, wanted: SmallVec::new() };
    let outputs = {
        let _recording_off = set_grad_enabled(false);
        forward(&what, &mut saves)?
    };
    let requests = saves.wanted;
    if !outputs.iter().any(|a| a.dtype().is_float()) {
        return Ok(untracked(outputs));
    }
    let results = build_results(edges, outputs, |outputs, header| {
        node(what, NodeParts { header, requests: &requests, inputs: arrays, outputs })
    });
    note_forward_location(|| results.iter().find_map(|t| t.creator()).map(|node| node.0));
    Ok(results)
}

/// Gives computed outputs a node with these edges, of which at least one is tracked. The saved values need not belong
/// to the tensors of the edges.
pub(crate) fn record_outputs<D: Derivative>(
    edges: SmallVec<[Edge; 2]>,
    outputs: Arrays,
    saved: Vec<SavedValue>,
    derivative: D,
) -> SmallVec<[Tensor; 1]> {
    build_results(edges, outputs, |_, header| GraphNode::new(header, saved, derivative))
}

/// Creates the results and their node. A result owns the node, and the node has weak references to its results.
#[inline]
fn build_results(
    edges: SmallVec<[Edge; 2]>,
    mut outputs: Arrays,
    node: impl FnOnce(&[Array], NodeHeader) -> Arc<GraphNode>,
) -> SmallVec<[Tensor; 1]> {
    if outputs.len() == 1 {
        let node = |one: &Array, output| {
            let header = NodeHeader::new(edges, SmallVec::from_buf([one.meta()]), output);
            node(std::slice::from_ref(one), header)
        };
        return SmallVec::from_buf([Tensor::only_output(outputs.pop().expect("there is one output"), node)]);
    }
    let metas = outputs.iter().map(Array::meta).collect();
    let node = node(&outputs, NodeHeader::new(edges, metas, Weak::new()));
    let mut results = SmallVec::new();
    for (index, array) in outputs.into_iter().enumerate() {
        let float = array.dtype().is_float();
        results.push(if float { Tensor::recorded(array, node.clone(), index) } else { Tensor::from(array) });
    }
    node.set_outputs(&results);
    results
}

/// A compile-time check that tensors can cross threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Tensor>();
    shared::<TensorInner>();
};
