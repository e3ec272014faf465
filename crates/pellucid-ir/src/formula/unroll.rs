//! Unrolling of row formulas into elementwise formulas and reductions.
//!
//! Each derivative of a row formula is again a row formula, and its incoming gradients are additional inputs. An
//! unrolled formula is a composition of operations whose derivatives do not gain inputs: elementwise formulas (see
//! [`Partials`](super::Partials)) and sums over the axes of a row. Derivatives of the third and higher orders are
//! derived from it.

use super::Formula;
use super::differentiate::import_graph;
use super::graph::{FormulaNode, Input, NodeId, ValueKind};
use super::primitive::RowOp;
use crate::error::{Error, Result};
use std::cell::RefCell;

/// An input of an elementwise part of a row formula.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// An input of the row formula.
    Input(usize),
    /// The result of a reduction, one value for each row.
    Reduced(usize),
    /// The index of the element within the row, as `i64`.
    RowIndex,
}

/// An elementwise formula with one output, and its inputs.
pub struct UnrolledValue {
    /// The formula. Its parameters are the parameters of the row formula, then the number of elements of a row.
    pub formula: Formula,
    /// The source of each input.
    pub leaves: Vec<Leaf>,
    /// Whether the output has one value for each row.
    pub per_row: bool,
}

/// A reduction over the row.
pub struct UnrolledReduction {
    /// The reduction operator.
    pub op: RowOp,
    /// The reduced value.
    pub operand: UnrolledValue,
}

/// A row formula as elementwise formulas and reductions.
pub struct Unrolled {
    /// The reductions; each reads only earlier ones.
    pub reductions: Vec<UnrolledReduction>,
    /// The outputs of the row formula.
    pub outputs: Vec<UnrolledValue>,
}

impl Formula {
    /// Returns the formula as elementwise formulas and reductions over the row.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a part reads more than 64 inputs and reductions.
    pub fn unrolled(&self) -> Result<&Unrolled> {
        let unrolled = self.inner.unrolled.get_or_init(|| unroll(self));
        unrolled.as_ref().map_err(|wide| {
            let (order, wide) = (self.order() + 1, wide.0);
            let reason = format!(
                "its derivative of order {order} combines {wide} inputs and reductions in one expression; \
                 at most {MAX_LEAVES} are possible; split the formula into several operations"
            );
            Error::invalid(self.name(), reason)
        })
    }
}

/// The maximum number of values that one part may read.
const MAX_LEAVES: usize = 64;

/// The error for a part that would read too many values. It contains the number of values.
#[derive(Clone, Copy)]
pub(super) struct TooWide(usize);

fn unroll(formula: &Formula) -> std::result::Result<Unrolled, TooWide> {
    let graph = formula.graph();
    let reduced: Vec<(NodeId, RowOp, NodeId)> = graph
        .iter()
        .filter_map(|(id, node)| match node {
            FormulaNode::RowReduce(op, a) => Some((id, op, a)),
            _ => None,
        })
        .collect();
    let value = |root: NodeId, per_row: bool| {
        let read = RefCell::new((Vec::new(), Vec::new()));
        let number = |leaf: Leaf, kind: ValueKind| {
            let (leaves, inputs) = &mut *read.borrow_mut();
            leaves.iter().position(|l| *l == leaf).unwrap_or_else(|| {
                leaves.push(leaf);
                inputs.push(Input { kind, per_row: false });
                leaves.len() - 1
            })
        };
        let (part, roots) = graph.extract(&[root], &|id| {
            let leaf = match graph.node(id) {
                FormulaNode::RowLength => return Some(FormulaNode::Param(formula.params() as u8)),
                FormulaNode::Input(i) => Leaf::Input(i as usize),
                FormulaNode::RowIndex => Leaf::RowIndex,
                FormulaNode::RowReduce(..) => Leaf::Reduced(reduced.iter().position(|r| r.0 == id)?),
                _ => return None,
            };
            Some(FormulaNode::Input(number(leaf, graph.node_info(id).kind) as u8))
        });
        let (leaves, inputs) = read.into_inner();
        if leaves.len() > MAX_LEAVES {
            return Err(TooWide(leaves.len()));
        }
        let formula = Formula::new(formula.name(), &inputs, formula.params() + 1, |inputs, params| {
            vec![import_graph(&part, inputs, params)[roots[0].index()]]
        });
        Ok(UnrolledValue { formula, leaves, per_row })
    };
    let reduction =
        |&(_, op, operand): &(NodeId, RowOp, NodeId)| Ok(UnrolledReduction { op, operand: value(operand, false)? });
    let reductions = reduced.iter().map(reduction).collect::<std::result::Result<_, _>>()?;
    let outputs = formula.outputs().iter().map(|o| value(o.node, o.per_row));
    Ok(Unrolled { reductions, outputs: outputs.collect::<std::result::Result<_, _>>()? })
}
