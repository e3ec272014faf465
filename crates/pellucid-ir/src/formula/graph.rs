//! The graph of a formula: a list of primitives, each applied to earlier ones.
//!
//! Nodes are hash-consed while a formula is built, so that equal subexpressions are one node, and
//! the list is in topological order: an operand always precedes its uses. The graph is pure data.

use super::primitive::{Binary, RowOp, Unary};
use crate::dtype::{DType, Scalar};
use smallvec::{SmallVec, smallvec};
use std::hash::{Hash, Hasher};

/// The maximal number of inputs, parameters or outputs of a formula.
pub(super) const MOST: usize = 255;

/// The kind of a value of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A number of the compute type that is chosen when the formula is compiled.
    Number,
    /// A 64-bit integer for any compute type: a class, a position.
    Index,
    /// A boolean.
    Mask,
}

impl Kind {
    /// Returns the name of the kind with its article, for messages.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            Kind::Number => "a number",
            Kind::Index => "an index",
            Kind::Mask => "a mask",
        }
    }
}

/// An input of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Input {
    /// The kind of its values.
    pub kind: Kind,
    /// The input has one value for each row instead of one for each element.
    pub per_row: bool,
}

impl Input {
    /// One number for each element.
    pub const NUMBER: Input = Input { kind: Kind::Number, per_row: false };
    /// One index for each element.
    pub const INDEX: Input = Input { kind: Kind::Index, per_row: false };
    /// One boolean for each element.
    pub const MASK: Input = Input { kind: Kind::Mask, per_row: false };

    /// Returns an input of the same kind with one value for each row.
    pub const fn per_row(self) -> Input {
        Input { per_row: true, ..self }
    }
}

/// An output of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Output {
    /// The node that computes the output.
    pub node: Id,
    /// The kind of its values.
    pub kind: Kind,
    /// The output has one value for each row instead of one for each element.
    pub per_row: bool,
}

/// The position of a node in its graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(u32);

impl Id {
    pub(super) fn new(position: usize) -> Id {
        Id(u32::try_from(position).expect("a formula has fewer than 2³² nodes"))
    }

    /// Returns the position as a number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A constant of a formula, stored at full width and rounded once, to the compute type.
///
/// Numbers are normalised to `Float` where an `f64` holds them exactly, so that `2` and `2.0` are
/// one literal; two literals are equal if their bits are.
#[derive(Clone, Copy, Debug)]
pub struct Literal {
    /// The value.
    pub value: Scalar,
    /// The kind of the value.
    pub kind: Kind,
}

impl Literal {
    pub(super) fn new(value: Scalar, kind: Kind) -> Literal {
        let value = match (kind, value) {
            (Kind::Mask, v) => Scalar::Bool(v.to_f64() != 0.0),
            (Kind::Index, v) => Scalar::Int(v.to_i64()),
            (Kind::Number, Scalar::Bool(b)) => Scalar::Float(b as u8 as f64),
            (Kind::Number, Scalar::Int(i)) if i.unsigned_abs() <= 1 << 53 => Scalar::Float(i as f64),
            (Kind::Number, v) => v,
        };
        Literal { value, kind }
    }

    fn key(&self) -> (Kind, u8, u64) {
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
pub enum Node {
    /// The input with this index.
    Input(u8),
    /// The run-time parameter with this index; a number.
    Param(u8),
    /// A constant.
    Literal(Literal),
    /// A function of one value.
    Unary(Unary, Id),
    /// A function of two values of one kind.
    Binary(Binary, Id, Id),
    /// `mask ? a : b`
    Select(Id, Id, Id),
    /// a·b + c, rounded once.
    MulAdd(Id, Id, Id),
    /// Conversion to a kind.
    Cast(Kind, Id),
    /// Rounding of a number through a storage dtype and back.
    Round(DType, Id),
    /// A reduction over the row.
    RowReduce(RowOp, Id),
    /// The position within the row; an index.
    RowIndex,
    /// The number of elements of the row; a number.
    RowLength,
}

impl Node {
    /// Returns the nodes that the primitive is applied to.
    pub fn operands(&self) -> SmallVec<[Id; 3]> {
        match *self {
            Node::Input(_) | Node::Param(_) | Node::Literal(_) | Node::RowIndex | Node::RowLength => smallvec![],
            Node::Unary(_, a) | Node::Cast(_, a) | Node::Round(_, a) | Node::RowReduce(_, a) => smallvec![a],
            Node::Binary(_, a, b) => smallvec![a, b],
            Node::Select(a, b, c) | Node::MulAdd(a, b, c) => smallvec![a, b, c],
        }
    }

    /// Returns the same primitive, applied to other nodes.
    pub(super) fn map(self, mut to: impl FnMut(Id) -> Id) -> Node {
        match self {
            Node::Unary(op, a) => Node::Unary(op, to(a)),
            Node::Binary(op, a, b) => Node::Binary(op, to(a), to(b)),
            Node::Select(a, b, c) => Node::Select(to(a), to(b), to(c)),
            Node::MulAdd(a, b, c) => Node::MulAdd(to(a), to(b), to(c)),
            Node::Cast(kind, a) => Node::Cast(kind, to(a)),
            Node::Round(dtype, a) => Node::Round(dtype, to(a)),
            Node::RowReduce(op, a) => Node::RowReduce(op, to(a)),
            leaf => leaf,
        }
    }

    /// Returns true if a program reads the node but does not compute it.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Node::Input(_) | Node::Param(_) | Node::Literal(_) | Node::RowLength)
    }

    /// Returns true if the node depends on the extent of a row, so that the formula needs a row kernel.
    pub(super) fn is_row(&self) -> bool {
        matches!(self, Node::RowReduce(..) | Node::RowIndex | Node::RowLength)
    }

    /// Returns true if evaluation costs far more than reading a saved value.
    pub(super) fn is_expensive(&self) -> bool {
        match self {
            Node::Unary(op, _) => op.is_transcendental(),
            Node::Binary(op, ..) => op.is_special() || matches!(op, Binary::Pow | Binary::Atan2),
            Node::RowReduce(..) => true,
            _ => false,
        }
    }
}

/// The inferred properties of a node.
///
/// A node has one value for each row if it depends only on per-row inputs, parameters, literals and row reductions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fact {
    /// The kind of its values.
    pub kind: Kind,
    /// The node has one value for each row.
    pub per_row: bool,
}

/// A topologically ordered list of nodes with their inferred properties.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    facts: Vec<Fact>,
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

    /// Returns the primitive at a position.
    pub fn node(&self, id: Id) -> Node {
        self.nodes[id.index()]
    }

    /// Returns the inferred properties of the node at a position.
    pub fn fact(&self, id: Id) -> Fact {
        self.facts[id.index()]
    }

    /// Iterates over the nodes with their positions, operands first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Id, Node)> {
        self.nodes.iter().enumerate().map(|(i, &node)| (Id::new(i), node))
    }

    /// Infers the properties of a node whose operands are in the graph; an error text if their kinds do not fit.
    pub(super) fn infer(&self, node: Node, inputs: &[Input]) -> Result<Fact, String> {
        let kind = self.infer_kind(node, inputs)?;
        let per_row = match node {
            Node::Input(i) => inputs[i as usize].per_row,
            Node::RowIndex => false,
            Node::RowReduce(..) => true,
            _ => node.operands().iter().all(|&a| self.fact(a).per_row),
        };
        Ok(Fact { kind, per_row })
    }

    fn infer_kind(&self, node: Node, inputs: &[Input]) -> Result<Kind, String> {
        use Kind::*;
        let kind = |id: Id| self.fact(id).kind;
        let takes = |name: &str, found: Kind, allowed: &[Kind]| match allowed.contains(&found) {
            true => Ok(found),
            false => {
                let wanted = allowed.iter().map(|k| k.noun()).collect::<Vec<_>>().join(" or ");
                let help = "convert it with to_number(), to_index() or to_mask()";
                Err(format!("`{name}` takes {wanted}, but it is given {}; {help}", found.noun()))
            }
        };
        let agree = |name: &str, a: Id, b: Id| match kind(a) == kind(b) {
            true => Ok(kind(a)),
            false => Err(format!(
                "`{name}` takes two values of one kind, but it is given {} and {}; convert one with to_number(), to_index() or to_mask()",
                kind(a).noun(),
                kind(b).noun()
            )),
        };
        Ok(match node {
            Node::Input(i) => inputs[i as usize].kind,
            Node::Param(_) | Node::RowLength => Number,
            Node::Literal(literal) => literal.kind,
            Node::Unary(op, a) => match op {
                Unary::Not => kind(a),
                Unary::Neg | Unary::Abs | Unary::Sign => takes(op.name(), kind(a), &[Number, Index])?,
                Unary::IsNan | Unary::IsFinite => takes(op.name(), kind(a), &[Number, Index]).map(|_| Mask)?,
                _ => takes(op.name(), kind(a), &[Number])?,
            },
            Node::Binary(op, a, b) => {
                let both = agree(op.name(), a, b)?;
                match op {
                    Binary::And | Binary::Or | Binary::Xor => both,
                    Binary::Eq | Binary::Ne => Mask,
                    _ if op.is_real() => takes(op.name(), both, &[Number])?,
                    _ if op.gives_mask() => takes(op.name(), both, &[Number, Index]).map(|_| Mask)?,
                    _ => takes(op.name(), both, &[Number, Index])?,
                }
            }
            Node::Select(c, a, b) => {
                takes("select", kind(c), &[Mask])?;
                agree("select", a, b)?
            }
            Node::MulAdd(a, b, c) => {
                takes("mul_add", kind(a), &[Number])?;
                agree("mul_add", a, b)?;
                agree("mul_add", a, c)?
            }
            Node::Cast(to, _) => to,
            Node::Round(_, a) => takes("round_to", kind(a), &[Number])?,
            Node::RowReduce(op, a) => takes(op.name(), kind(a), &[Number, Index])?,
            Node::RowIndex => Index,
        })
    }

    pub(super) fn push(&mut self, node: Node, fact: Fact) -> Id {
        self.nodes.push(node);
        self.facts.push(fact);
        Id::new(self.nodes.len() - 1)
    }

    /// Returns the part of the graph that `roots` depend on, and the new positions of the roots. Nodes are renumbered
    /// so that every value directly precedes its first use.
    ///
    /// A node for which `leaf` returns a replacement is replaced, and its operands are dropped if nothing else needs
    /// them.
    pub(super) fn extract(&self, roots: &[Id], leaf: &dyn Fn(Id) -> Option<Node>) -> (Graph, Vec<Id>) {
        let mut graph = Graph::default();
        let mut place: Vec<Option<Id>> = vec![None; self.len()];
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
                        let node = node.map(|a| place[a.index()].expect("operands precede their users"));
                        place[id.index()] = Some(graph.push(node, self.fact(id)));
                    }
                }
            }
        }
        let roots = roots.iter().map(|r| place[r.index()].expect("every root was visited")).collect();
        (graph, roots)
    }
}
