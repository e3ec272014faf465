//! Construction of graphs: a thread-local stack with one builder for each formula under construction.

use super::expr::{Expr, NameRole};
use super::graph::{FormulaNode, Graph, Input, Literal, NodeId};
use crate::dtype::Scalar;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// A graph under construction. Nodes are hash-consed: an equal node is built only once.
pub(super) struct Builder {
    serial: u32,
    pub(super) inputs: Vec<Input>,
    pub(super) graph: Graph,
    known: HashMap<FormulaNode, NodeId>,
    /// True while a derivative is built. The value of a derivative is defined by the differentiator and not by the text
    /// of a formula, so structural zeros may be dropped and factors reordered.
    pub(super) derivative: bool,
    /// The expressions that the names of a derivative line stand for, by role.
    pub(super) named: [Vec<Expr>; 5],
    /// True while a derivative is built that is differentiated again. The rules for it avoid cancellation in
    /// derivatives of every order. The rules for a first derivative are faster, but cause cancellation in higher
    /// derivatives.
    pub(super) refined: bool,
}

thread_local! {
    static BUILDERS: RefCell<Vec<Builder>> = const { RefCell::new(Vec::new()) };
    static SERIAL: Cell<u32> = const { Cell::new(0) };
}

/// A guard that removes the current builder when it is dropped, even if the body of the formula panics.
struct BuilderGuard;

impl Drop for BuilderGuard {
    fn drop(&mut self) {
        BUILDERS.with_borrow_mut(|builders| builders.pop());
    }
}

impl Builder {
    /// Runs `body` with a new builder for expressions over `inputs`. Returns the builder and the result.
    pub(super) fn run<R>(inputs: Vec<Input>, body: impl FnOnce() -> R) -> (Builder, R) {
        let serial = SERIAL.get() % NameRole::FIRST + 1;
        SERIAL.set(serial);
        Builder { serial, inputs, ..Builder::empty() }.resume(body)
    }

    /// Creates a builder that has no inputs and no nodes.
    pub(super) fn empty() -> Builder {
        Builder {
            serial: 0,
            inputs: Vec::new(),
            graph: Graph::default(),
            known: HashMap::new(),
            derivative: false,
            named: Default::default(),
            refined: false,
        }
    }

    /// Runs `body` with this builder. Returns the builder and the result.
    pub(super) fn resume<R>(self, body: impl FnOnce() -> R) -> (Builder, R) {
        BUILDERS.with_borrow_mut(|builders| builders.push(self));
        let guard = BuilderGuard;
        let result = body();
        let built = BUILDERS.with_borrow_mut(|builders| builders.last_mut().map(Builder::take));
        drop(guard);
        (built.expect("the stack must contain the builder that was pushed"), result)
    }

    fn take(&mut self) -> Builder {
        std::mem::replace(self, Builder::empty())
    }

    /// Calls `f` with the builder of the formula under construction on this thread.
    ///
    /// # Panics
    /// Panics if no formula is under construction on this thread.
    #[track_caller]
    pub(super) fn with<R>(f: impl FnOnce(&mut Builder) -> R) -> R {
        let result = BUILDERS.with_borrow_mut(|builders| builders.last_mut().map(f));
        result.expect("an Expr can be used only while its formula is built, inside formula! or Formula::new")
    }

    /// Builds a node from expressions of this builder. The function is not generic, so that it is compiled only once.
    #[track_caller]
    pub(super) fn emit(make: &mut dyn FnMut(&mut Builder) -> Result<NodeId, String>) -> Expr {
        match Builder::with(|b| make(b).map(|id| b.expr(id))) {
            Ok(expr) => expr,
            Err(reason) => panic!("formula: {reason}"),
        }
    }

    /// Returns the expression for a node.
    pub(super) fn expr(&self, id: NodeId) -> Expr {
        Expr::at(self.serial, id)
    }

    /// Returns the node of an expression, or an error message if the expression does not belong to this builder.
    pub(super) fn id(&self, expr: Expr) -> Result<NodeId, String> {
        let expr = match expr.role() {
            None => expr,
            Some((role, number)) => *self.named[role as usize].get(number).ok_or_else(|| {
                let name = ["input", "parameter", "output", "incoming gradient", "mask of refinement"][role as usize];
                format!("{name} {number} does not exist here; `y`, `g` and `refined` exist only in derivative lines")
            })?,
        };
        expr.id_in(self.serial).ok_or_else(|| "an Expr was used in a formula other than the one that created it".into())
    }

    /// Simplifies `node`, adds it to the graph unless the graph contains an equal node, and returns its index.
    pub(super) fn node(&mut self, node: FormulaNode) -> Result<NodeId, String> {
        let node_info = self.graph.infer(node, &self.inputs)?;
        if self.derivative
            && let Some(id) = self.rewrite_derivative(node)?
        {
            return Ok(id);
        }
        if let Some(id) = self.rewrite_value(node)? {
            return Ok(id);
        }
        // Operands of a commutative primitive are looked up in a fixed order, but the node keeps the order in which
        // they were written.
        let key = match node {
            FormulaNode::Binary(op, a, b) if op.is_commutative() && b < a => FormulaNode::Binary(op, b, a),
            other => other,
        };
        Ok(*self.known.entry(key).or_insert_with(|| self.graph.push(node, node_info)))
    }

    /// Returns the node of a constant.
    pub(super) fn literal(&mut self, literal: Literal) -> NodeId {
        self.node(FormulaNode::Literal(literal)).expect("a literal must always be well formed")
    }

    /// Returns the value of a node that is a literal number which `f64` represents exactly; `None` for other nodes.
    pub(super) fn constant(&self, id: NodeId) -> Option<f64> {
        match self.graph.node(id) {
            FormulaNode::Literal(Literal { value: Scalar::Float(x), .. }) => Some(x),
            _ => None,
        }
    }

    /// Copies a graph into this builder, with `inputs` and `params` in place of its inputs and parameters. Returns the
    /// new index of every node.
    pub(super) fn import_graph(
        &mut self,
        graph: &Graph,
        inputs: &[NodeId],
        params: &[NodeId],
    ) -> Result<Vec<NodeId>, String> {
        let mut place: Vec<NodeId> = Vec::with_capacity(graph.len());
        for (_, node) in graph.iter() {
            place.push(match node {
                FormulaNode::Input(i) => inputs[i as usize],
                FormulaNode::Param(k) => params[k as usize],
                other => self.node(other.map(|a| place[a.index()]))?,
            });
        }
        Ok(place)
    }
}
