//! The graph of a formula: a list of primitives, each applied to earlier ones.
//!
//! Nodes are hash-consed while a formula is built, so equal subexpressions are one node. The list is in topological
//! order: an operand always precedes its uses. The graph is pure data.

use super::primitive::{Binary, RowOp, Unary};
use crate::dtype::{DType, Scalar};
use smallvec::{SmallVec, smallvec};
use std::hash::{Hash, Hasher};

/// The maximum number of inputs, parameters or outputs of a formula.
pub(super) const MAX_OPERANDS: usize = 255;

/// The kind of a value of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ValueKind {
    /// A number of the compute type that is chosen when the formula is compiled.
    Number,
    /// A 64-bit integer for any compute type, such as a class index or an index within a row.
    Index,
    /// A boolean.
    Mask,
}

impl ValueKind {
    /// Returns the name of the kind with its article, for messages.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            ValueKind::Number => "a number",
            ValueKind::Index => "an index",
            ValueKind::Mask => "a mask",
        }
    }
}

/// An input of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Input {
    /// The kind of its values.
    pub kind: ValueKind,
    /// Whether the input has one value for each row instead of one for each element.
    pub per_row: bool,
}

impl Input {
    /// One number for each element.
    pub const NUMBER: Input = Input { kind: ValueKind::Number, per_row: false };
    /// One index for each element.
    pub const INDEX: Input = Input { kind: ValueKind::Index, per_row: false };
    /// One boolean for each element.
    pub const MASK: Input = Input { kind: ValueKind::Mask, per_row: false };

    /// Returns an input of the same kind with one value for each row.
    pub const fn per_row(self) -> Input {
        Input { per_row: true, ..self }
    }
}

/// An output of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Output {
    /// The node that computes the output.
    pub node: NodeId,
    /// The kind of its values.
    pub kind: ValueKind,
    /// Whether the output has one value for each row instead of one for each element.
    pub per_row: bool,
}

/// The index of a node in its graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(u32);

impl NodeId {
    pub(super) fn new(position: usize) -> NodeId {
        NodeId(u32::try_from(position).expect("a formula must have fewer than 2³² nodes"))
    }

    /// Returns the index as a number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A constant of a formula, stored at full width and rounded once, to the compute type.
///
/// A number is normalized to `Float` if an `f64` represents it exactly, so that `2` and `2.0` are one literal. Two
/// literals are equal if their bits are equal.
#[derive(Clone, Copy, Debug)]
pub struct Literal {
    /// The value.
    pub value: Scalar,
    /// The kind of the value.
    pub kind: ValueKind,
}

impl Literal {
    pub(super) fn new(value: Scalar, kind: ValueKind) -> Literal {
        let value = match (kind, value) {
            (ValueKind::Mask, v) => Scalar::Bool(v.to_f64() != 0.0),
            (ValueKind::Index, v) => Scalar::Int(v.to_i64()),
            (ValueKind::Number, Scalar::Bool(b)) => Scalar::Float(b as u8 as f64),
            (ValueKind::Number, Scalar::Int(i)) if i.unsigned_abs() <= 1 << 53 => Scalar::Float(i as f64),
            (ValueKind::Number, v) => v,
        };
        Literal { value, kind }
    }

    fn key(&self) -> (ValueKind, u8, u64) {
        match self.value {
            Scalar::Bool(b) => (self.kind, 0, b as u64),
            Scalar::Int(i) => (self.kind, 1, i as u64),
            Scalar::Float(x) => (self.kind, 2, x.to_bits()),
        }
    }
}

impl PartialEq for Literal {
    fn eq(&self, other: &Literal) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// One primitive of a formula, applied to earlier nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FormulaNode {
    /// The input with this index.
    Input(u8),
    /// The run-time parameter with this index; a number.
    Param(u8),
    /// A constant.
    Literal(Literal),
    /// A function of one value.
    Unary(Unary, NodeId),
    /// A function of two values of the same kind.
    Binary(Binary, NodeId, NodeId),
    /// `mask ? a : b`
    Select(NodeId, NodeId, NodeId),
    /// a·b + c, rounded once.
    MulAdd(NodeId, NodeId, NodeId),
    /// Conversion to a kind.
    Cast(ValueKind, NodeId),
    /// Rounding of a number through a storage dtype and back.
    Round(DType, NodeId),
    /// A reduction over the row.
    RowReduce(RowOp, NodeId),
    /// The index of the element within the row.
    RowIndex,
    /// The number of elements of the row; a number.
    RowLength,
}

impl FormulaNode {
    /// Returns the nodes that the primitive is applied to.
    pub fn operands(&self) -> SmallVec<[NodeId; 3]> {
        match *self {
            FormulaNode::Input(_)
            | FormulaNode::Param(_)
            | FormulaNode::Literal(_)
            | FormulaNode::RowIndex
            | FormulaNode::RowLength => smallvec![],
            FormulaNode::Unary(_, a)
            | FormulaNode::Cast(_, a)
            | FormulaNode::Round(_, a)
            | FormulaNode::RowReduce(_, a) => smallvec![a],
            FormulaNode::Binary(_, a, b) => smallvec![a, b],
            FormulaNode::Select(a, b, c) | FormulaNode::MulAdd(a, b, c) => smallvec![a, b, c],
        }
    }

    /// Returns the same primitive, applied to other nodes.
    pub(super) fn map(self, mut to: impl FnMut(NodeId) -> NodeId) -> FormulaNode {
        match self {
            FormulaNode::Unary(op, a) => FormulaNode::Unary(op, to(a)),
            FormulaNode::Binary(op, a, b) => FormulaNode::Binary(op, to(a), to(b)),
            FormulaNode::Select(a, b, c) => FormulaNode::Select(to(a), to(b), to(c)),
            FormulaNode::MulAdd(a, b, c) => FormulaNode::MulAdd(to(a), to(b), to(c)),
            FormulaNode::Cast(kind, a) => FormulaNode::Cast(kind, to(a)),
            FormulaNode::Round(dtype, a) => FormulaNode::Round(dtype, to(a)),
            FormulaNode::RowReduce(op, a) => FormulaNode::RowReduce(op, to(a)),
            leaf => leaf,
        }
    }

    /// Returns true if a program reads the value instead of computing it: an input, a parameter, a literal or the row
    /// length.
    pub fn is_leaf(&self) -> bool {
        matches!(self, FormulaNode::Input(_) | FormulaNode::Param(_) | FormulaNode::Literal(_) | FormulaNode::RowLength)
    }

    /// Returns true if the node depends on the extent of a row; the formula then needs a row kernel.
    pub(super) fn is_row(&self) -> bool {
        matches!(self, FormulaNode::RowReduce(..) | FormulaNode::RowIndex | FormulaNode::RowLength)
    }

    /// Returns true if evaluation costs far more than reading a saved value.
    pub(super) fn is_expensive(&self) -> bool {
        match self {
            FormulaNode::Unary(op, _) => op.is_transcendental(),
            FormulaNode::Binary(op, ..) => op.is_transcendental(),
            FormulaNode::RowReduce(..) => true,
            _ => false,
        }
    }
}

/// The inferred properties of a node.
///
/// A node has one value for each row if it depends only on per-row inputs, parameters, literals, the row length and row
/// reductions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeInfo {
    /// The kind of its values.
    pub kind: ValueKind,
    /// Whether the node has one value for each row.
    pub per_row: bool,
}

/// A topologically ordered list of nodes with their inferred properties.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<FormulaNode>,
    node_infos: Vec<NodeInfo>,
}

impl Graph {
    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the primitive of the node with this index.
    pub fn node(&self, id: NodeId) -> FormulaNode {
        self.nodes[id.index()]
    }

    /// Returns the inferred properties of the node with this index.
    pub fn node_info(&self, id: NodeId) -> NodeInfo {
        self.node_infos[id.index()]
    }

    /// Iterates over the nodes with their indices, operands first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, FormulaNode)> {
        self.nodes.iter().enumerate().map(|(i, &node)| (NodeId::new(i), node))
    }

    /// Returns the properties of a node whose operands are in the graph, or an error message if their kinds do not fit.
    pub(super) fn infer(&self, node: FormulaNode, inputs: &[Input]) -> Result<NodeInfo, String> {
        let kind = self.infer_kind(node, inputs)?;
        let per_row = match node {
            FormulaNode::Input(i) => inputs[i as usize].per_row,
            FormulaNode::RowIndex => false,
            FormulaNode::RowReduce(..) => true,
            _ => node.operands().iter().all(|&a| self.node_info(a).per_row),
        };
        Ok(NodeInfo { kind, per_row })
    }

    fn infer_kind(&self, node: FormulaNode, inputs: &[Input]) -> Result<ValueKind, String> {
        use ValueKind::*;
        let kind = |id: NodeId| self.node_info(id).kind;
        let takes = |name: &str, found: ValueKind, allowed: &[ValueKind]| match allowed.contains(&found) {
            true => Ok(found),
            false => {
                let expected_kinds = allowed.iter().map(|k| k.noun()).collect::<Vec<_>>().join(" or ");
                let help = "convert it with to_number(), to_index() or to_mask()";
                Err(format!("the operand of `{name}` must be {expected_kinds}, got {}; {help}", found.noun()))
            }
        };
        let agree = |name: &str, a: NodeId, b: NodeId| match kind(a) == kind(b) {
            true => Ok(kind(a)),
            false => Err(format!(
                "the operands of `{name}` must have the same kind, got {} and {}; convert one with to_number(), to_index() or to_mask()",
                kind(a).noun(),
                kind(b).noun()
            )),
        };
        Ok(match node {
            FormulaNode::Input(i) => inputs[i as usize].kind,
            FormulaNode::Param(_) | FormulaNode::RowLength => Number,
            FormulaNode::Literal(literal) => literal.kind,
            FormulaNode::Unary(op, a) => match op {
                Unary::Not => kind(a),
                Unary::Neg | Unary::Abs | Unary::Sign => takes(op.name(), kind(a), &[Number, Index])?,
                Unary::IsNan | Unary::IsFinite => takes(op.name(), kind(a), &[Number, Index]).map(|_| Mask)?,
                _ => takes(op.name(), kind(a), &[Number])?,
            },
            FormulaNode::Binary(op, a, b) => {
                let both = agree(op.name(), a, b)?;
                match op {
                    Binary::And | Binary::Or | Binary::Xor => both,
                    Binary::Eq | Binary::Ne => Mask,
                    _ if op.is_real() => takes(op.name(), both, &[Number])?,
                    _ if op.gives_mask() => takes(op.name(), both, &[Number, Index]).map(|_| Mask)?,
                    _ => takes(op.name(), both, &[Number, Index])?,
                }
            }
            FormulaNode::Select(c, a, b) => {
                takes("select", kind(c), &[Mask])?;
                agree("select", a, b)?
            }
            FormulaNode::MulAdd(a, b, c) => {
                takes("mul_add", kind(a), &[Number])?;
                agree("mul_add", a, b)?;
                agree("mul_add", a, c)?
            }
            FormulaNode::Cast(to, _) => to,
            FormulaNode::Round(_, a) => takes("round_to", kind(a), &[Number])?,
            FormulaNode::RowReduce(op, a) => takes(op.name(), kind(a), &[Number, Index])?,
            FormulaNode::RowIndex => Index,
        })
    }

    pub(super) fn push(&mut self, node: FormulaNode, node_info: NodeInfo) -> NodeId {
        self.nodes.push(node);
        self.node_infos.push(node_info);
        NodeId::new(self.nodes.len() - 1)
    }

    /// Returns the part of the graph that `roots` depend on, and the new indices of the roots. Nodes are renumbered in
    /// depth-first order, so that a value is computed shortly before its first use.
    ///
    /// A node for which `leaf` returns a replacement is replaced, and its operands are dropped if nothing else needs
    /// them.
    pub(super) fn extract(
        &self,
        roots: &[NodeId],
        leaf: &dyn Fn(NodeId) -> Option<FormulaNode>,
    ) -> (Graph, Vec<NodeId>) {
        let mut graph = Graph::default();
        let mut place: Vec<Option<NodeId>> = vec![None; self.len()];
        for &root in roots {
            let mut stack = vec![root];
            while let Some(&id) = stack.last() {
                let (node, operands) = match leaf(id) {
                    Some(node) => (node, smallvec![]),
                    None => (self.node(id), self.node(id).operands()),
                };
                let waiting = stack.len();
                if place[id.index()].is_none() {
                    stack.extend(operands.iter().rev().filter(|a| place[a.index()].is_none()));
                }
                if stack.len() == waiting {
                    stack.pop();
                    if place[id.index()].is_none() {
                        let node = node.map(|a| place[a.index()].expect("operands must precede their users"));
                        place[id.index()] = Some(graph.push(node, self.node_info(id)));
                    }
                }
            }
        }
        let roots = roots.iter().map(|r| place[r.index()].expect("every root must have been visited")).collect();
        (graph, roots)
    }
}
