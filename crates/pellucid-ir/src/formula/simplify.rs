//! Rewrites of nodes during construction.
//!
//! There are two sets. The *value* of a formula is defined by its text, operation by operation, each rounded once in a
//! compute type that is not known yet: a rewrite must not change any bit in any type. A *derivative* is defined by the
//! differentiator, which may drop `0·u` and `u + 0`, fold literals and collect constant factors.

use super::builder::Builder;
use super::graph::{FormulaNode, Literal, NodeId, ValueKind};
use super::primitive::{Binary, RowOp, Unary};
use crate::dtype::Scalar;

type Rewrite = Result<Option<NodeId>, String>;

impl Builder {
    /// Applies the rewrites that keep every bit of the value. A row sum of equal values is by definition their value
    /// times the row length.
    pub(super) fn rewrite_value(&mut self, node: FormulaNode) -> Rewrite {
        use Binary::*;
        let one = |b: &Builder, id| b.constant(id) == Some(1.0);
        Ok(Some(match node {
            FormulaNode::Unary(Unary::Neg, a) => match (self.graph.node(a), self.constant(a)) {
                (FormulaNode::Unary(Unary::Neg, u), _) => u,
                (_, Some(x)) => self.number(-x),
                _ => return Ok(None),
            },
            FormulaNode::Unary(Unary::Not, a) => match self.graph.node(a) {
                FormulaNode::Unary(Unary::Not, u) => u,
                _ => return Ok(None),
            },
            FormulaNode::Binary(Mul | Div, a, b) if one(self, b) => a,
            FormulaNode::Binary(Mul, a, b) if one(self, a) => b,
            // x² is x·x, rounded once.
            FormulaNode::Binary(Pow, a, b) if self.constant(b) == Some(2.0) => {
                self.node(FormulaNode::Binary(Mul, a, a))?
            }
            FormulaNode::Binary(op, a, b) => match (self.constant(a), self.constant(b)) {
                (Some(x), Some(y)) => match fold_exactly(op, x, y) {
                    Some(value) => self.number(value),
                    None => return Ok(None),
                },
                _ => return Ok(None),
            },
            FormulaNode::Select(_, a, b) if a == b => a,
            FormulaNode::Select(c, a, b) => match self.graph.node(c) {
                FormulaNode::Literal(Literal { value: Scalar::Bool(true), .. }) => a,
                FormulaNode::Literal(Literal { value: Scalar::Bool(false), .. }) => b,
                _ => return Ok(None),
            },
            FormulaNode::Cast(kind, a) if self.graph.node_info(a).kind == kind => a,
            // The maximum or minimum of equal values is the value.
            FormulaNode::RowReduce(RowOp::Max | RowOp::Min, a) if self.graph.node_info(a).per_row => a,
            FormulaNode::RowReduce(RowOp::Sum, a) if self.graph.node_info(a).per_row => {
                let length = self.node(FormulaNode::RowLength)?;
                let length = self.node(FormulaNode::Cast(self.graph.node_info(a).kind, length))?;
                self.node(FormulaNode::Binary(Mul, a, length))?
            }
            _ => return Ok(None),
        }))
    }

    /// Applies the rewrites of derivatives, by the algebra of real numbers: removes terms 0 and factors ±1, moves signs
    /// outwards so that they cancel, and collects constant factors.
    pub(super) fn rewrite_derivative(&mut self, node: FormulaNode) -> Rewrite {
        use Binary::{Add, Div, Mul, Pow, Sub};
        if !matches!(
            node,
            FormulaNode::Unary(Unary::Neg, _)
                | FormulaNode::Binary(..)
                | FormulaNode::Select(..)
                | FormulaNode::RowReduce(..)
        ) {
            return Ok(None);
        }
        if node.operands().iter().any(|&a| self.graph.node_info(a).kind == ValueKind::Index) {
            return Ok(None);
        }
        let constant = |b: &Builder, id| b.constant(id);
        Ok(match node {
            FormulaNode::Unary(Unary::Neg, a) => match self.graph.node(a) {
                FormulaNode::Binary(Sub, u, v) => Some(self.node(FormulaNode::Binary(Sub, v, u))?),
                _ => match self.factor(a) {
                    Some((u, c)) => Some(self.scaled(u, -c)?),
                    None => None,
                },
            },
            FormulaNode::Binary(op @ (Add | Sub | Mul | Div | Pow), a, b) => {
                let (x, y) = (constant(self, a), constant(self, b));
                if let (Some(x), Some(y)) = (x, y) {
                    return Ok(Some(self.number(fold(op, x, y))));
                }
                match (op, self.negated(a), self.negated(b)) {
                    (Add, ..) if is_zero(x) => Some(b),
                    (Add | Sub, ..) if is_zero(y) => Some(a),
                    (Sub, ..) if is_zero(x) => Some(self.node(FormulaNode::Unary(Unary::Neg, b))?),
                    (Add, _, Some(v)) => Some(self.node(FormulaNode::Binary(Sub, a, v))?),
                    (Add, Some(u), _) => Some(self.node(FormulaNode::Binary(Sub, b, u))?),
                    (Sub, _, Some(v)) => Some(self.node(FormulaNode::Binary(Add, a, v))?),
                    (Add, ..) if a == b => Some(self.scaled(a, 2.0)?),
                    (Mul, ..) if is_zero(x) || is_zero(y) => Some(self.number(0.0)),
                    (Div, ..) if is_zero(x) => Some(self.number(0.0)),
                    (Mul, ..) if x.is_some() => Some(self.scaled(b, x.unwrap_or(1.0))?),
                    (Mul, ..) if y.is_some() => Some(self.scaled(a, y.unwrap_or(1.0))?),
                    (Mul | Div, Some(u), Some(v)) => Some(self.node(FormulaNode::Binary(op, u, v))?),
                    (Mul | Div, Some(u), None) => {
                        let product = self.node(FormulaNode::Binary(op, u, b))?;
                        Some(self.node(FormulaNode::Unary(Unary::Neg, product))?)
                    }
                    (Mul | Div, None, Some(v)) => {
                        let product = self.node(FormulaNode::Binary(op, a, v))?;
                        Some(self.node(FormulaNode::Unary(Unary::Neg, product))?)
                    }
                    (Pow, ..) if y == Some(1.0) => Some(a),
                    (Pow, ..) if is_zero(y) => Some(self.number(1.0)),
                    (Pow, ..) if y == Some(2.0) => Some(self.node(FormulaNode::Binary(Mul, a, a))?),
                    _ => None,
                }
            }
            FormulaNode::Select(c, a, b) => match (self.graph.node(c), self.graph.node(a), self.graph.node(b)) {
                (FormulaNode::Unary(Unary::Not, c), ..) => Some(self.node(FormulaNode::Select(c, b, a))?),
                (_, FormulaNode::Select(d, u, _), _) if d == c => Some(self.node(FormulaNode::Select(c, u, b))?),
                (_, _, FormulaNode::Select(d, _, v)) if d == c => Some(self.node(FormulaNode::Select(c, a, v))?),
                _ => None,
            },
            FormulaNode::RowReduce(RowOp::Sum, a) => self.sum_of_products(a)?,
            _ => None,
        })
    }

    /// Moves factors that are constant along the row out of a row sum: Σ s·u = s·Σ u.
    fn sum_of_products(&mut self, a: NodeId) -> Rewrite {
        let per_row = |b: &Builder, id| b.graph.node_info(id).per_row;
        let sum = |b: &mut Builder, u| b.node(FormulaNode::RowReduce(RowOp::Sum, u));
        Ok(match self.graph.node(a) {
            _ if is_zero(self.constant(a)) => Some(a),
            _ if per_row(self, a) => None,
            FormulaNode::Unary(Unary::Neg, u) => {
                let total = sum(self, u)?;
                Some(self.node(FormulaNode::Unary(Unary::Neg, total))?)
            }
            FormulaNode::Binary(Binary::Mul, s, u) if per_row(self, s) => {
                let total = sum(self, u)?;
                Some(self.node(FormulaNode::Binary(Binary::Mul, s, total))?)
            }
            FormulaNode::Binary(op @ (Binary::Mul | Binary::Div), u, s) if per_row(self, s) => {
                let total = sum(self, u)?;
                Some(self.node(FormulaNode::Binary(op, total, s))?)
            }
            _ => None,
        })
    }

    /// Returns the literal number `value`.
    pub(super) fn number(&mut self, value: f64) -> NodeId {
        self.literal(Literal::new(Scalar::Float(value), ValueKind::Number))
    }

    /// Returns u if the node is −u; `None` for other nodes and for literals.
    fn negated(&self, id: NodeId) -> Option<NodeId> {
        match self.graph.node(id) {
            FormulaNode::Unary(Unary::Neg, u) => Some(u),
            _ => None,
        }
    }

    /// Returns (u, c) if the node is u·c with a literal number c; `None` for other nodes.
    fn factor(&self, id: NodeId) -> Option<(NodeId, f64)> {
        match self.graph.node(id) {
            FormulaNode::Binary(Binary::Mul, u, c) if self.constant(c).is_some() => self.constant(c).map(|c| (u, c)),
            FormulaNode::Binary(Binary::Mul, c, u) => self.constant(c).map(|c| (u, c)),
            _ => None,
        }
    }

    /// Returns c·u. A sign and literal factors of u are multiplied into c.
    fn scaled(&mut self, u: NodeId, c: f64) -> Result<NodeId, String> {
        if let Some(x) = self.constant(u) {
            return Ok(self.number(c * x));
        }
        if let Some(v) = self.negated(u) {
            return self.scaled(v, -c);
        }
        if let Some((v, d)) = self.factor(u) {
            return self.scaled(v, c * d);
        }
        match c {
            0.0 => Ok(self.number(0.0)),
            1.0 => Ok(u),
            -1.0 => self.node(FormulaNode::Unary(Unary::Neg, u)),
            _ => {
                // Interned directly, because `node` would call this function again.
                let c = self.number(c);
                self.plain(FormulaNode::Binary(Binary::Mul, c, u))
            }
        }
    }

    /// Builds the node with only the rewrites that keep every bit.
    fn plain(&mut self, node: FormulaNode) -> Result<NodeId, String> {
        let derivative = std::mem::replace(&mut self.derivative, false);
        let id = self.node(node);
        self.derivative = derivative;
        id
    }
}

fn is_zero(x: Option<f64>) -> bool {
    x == Some(0.0)
}

fn fold(op: Binary, x: f64, y: f64) -> f64 {
    match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        _ => x.powf(y),
    }
}

/// Returns the result of `op` for two literals if it is the same in every compute type.
///
/// Both operands must be exact in `f32`. Rounding the `f64` result to `f32` then equals the `f32` result (53 ≥ 2·24 + 2
/// bits; Figueroa 1995) if it is a normal number. Below 2²⁴ no integer compute type wraps.
fn fold_exactly(op: Binary, x: f64, y: f64) -> Option<f64> {
    let single = |v: f64| (v as f32) as f64 == v;
    if !matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div) || !single(x) || !single(y) {
        return None;
    }
    let value = fold(op, x, y);
    let size = value.abs();
    (value == 0.0 || (f32::MIN_POSITIVE as f64..=16_777_216.0).contains(&size)).then_some(value)
}
