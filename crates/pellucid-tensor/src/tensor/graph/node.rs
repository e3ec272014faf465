//! The public view of the graph: a node with its inputs and outputs.

use super::{Edge, GraphNode, SavedTensors, is_same_node};
use crate::grad_mode::enable_grad;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A node of the autograd graph: an operation that was applied to tracked tensors.
///
/// It is printed as the list of the operations and leaves on which its outputs depend; see [`Node::graph_text`].
#[derive(Clone)]
pub struct Node(pub(crate) Arc<GraphNode>);

/// The producer of an input of a [`Node`].
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// A tensor that requires no gradient.
    Constant,
    /// A leaf that requires a gradient; `None` if it was dropped.
    Leaf(Option<Tensor>),
    /// An output of another node, with its index.
    Output(Node, usize),
}

impl NodeInput {
    /// Returns the node that produced the input, if any.
    pub fn node(&self) -> Option<&Node> {
        match self {
            NodeInput::Output(node, _) => Some(node),
            _ => None,
        }
    }

    /// Returns the leaf, if the input is a leaf that was not dropped.
    pub fn leaf(&self) -> Option<&Tensor> {
        match self {
            NodeInput::Leaf(leaf) => leaf.as_ref(),
            _ => None,
        }
    }
}

impl Node {
    /// Returns the operation's name.
    pub fn name(&self) -> &'static str {
        self.0.derivative().name()
    }

    /// Returns the producer of each input, in the operation's order.
    pub fn inputs(&self) -> Vec<NodeInput> {
        let source = |edge: &Edge| match edge {
            Edge::None => NodeInput::Constant,
            Edge::Leaf(_) => NodeInput::Leaf(edge.live_tensor()),
            Edge::Node(node, index) => NodeInput::Output(Node(node.clone()), *index as usize),
        };
        self.0.edges.iter().map(source).collect()
    }

    /// Returns the input tensors, in the operation's order. If a tensor no longer exists, returns a tensor with the
    /// value that the operation saved, and its history, or `None` if the operation saved no value. A result that was
    /// written in place since is `None`. A constant is returned only if the operation has saved it.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([2.0f64]).requires_grad_(true);
    /// let y = x.sin() * &x;
    /// let inputs = y.creator().expect("y is a result").input_tensors();
    /// assert_eq!(inputs[0].as_ref().map(|sine| sine.item::<f64>()), Some(2f64.sin()));
    /// assert_eq!(inputs[1].as_ref().map(|leaf| leaf.id()), Some(x.id()));
    /// ```
    pub fn input_tensors(&self) -> Vec<Option<Tensor>> {
        let node = &self.0;
        let mut tensors: Vec<Option<Tensor>> = node.edges.iter().map(Edge::live_tensor).collect();
        let slots: SmallVec<[_; 2]> = node.edges.iter().map(Edge::live_slot).collect();
        // Without grad mode, saved values have no history.
        let _on = enable_grad();
        node.saved_derivative.saved().with_values(true, &mut |values| {
            let saved = SavedTensors { node, values, slots: &slots };
            for (i, tensor) in tensors.iter_mut().enumerate().filter(|(_, tensor)| tensor.is_none()) {
                *tensor = saved.input(i).ok();
            }
        });
        tensors
    }

    /// Returns the output tensors; `None` for an output whose last handle was dropped.
    pub fn outputs(&self) -> Vec<Option<Tensor>> {
        let outputs = self.0.outputs();
        (0..self.0.outputs_meta.len()).map(|i| outputs.get(i)?.upgrade().map(Tensor::from_inner)).collect()
    }

    /// Returns the generation of this node: the largest generation of its inputs. A leaf has generation 0; the
    /// generation of an output is the generation of its node plus one.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        is_same_node(&self.0, &other.0)
    }
}

impl Eq for Node {}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, generation {})", self.name(), self.generation())
    }
}
