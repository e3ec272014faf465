//! Where nodes come from: one builder per formula under construction, on this thread only.

use super::expr::{Expr, Role};
use super::graph::{Graph, Id, Input, Literal, Node};
use crate::dtype::Scalar;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// A graph that grows. A node that was built before is found again, not built twice.
pub(super) struct Builder {
    serial: u32,
    pub(super) inputs: Vec<Input>,
    pub(super) graph: Graph,
    known: HashMap<Node, Id>,
    /// True while a derivative is written: it may drop what is structurally zero and reorder its own
    /// factors, for it defines a value where a formula's text already has.
    pub(super) derivative: bool,
    /// What the names of a derivative line stand for: see [`Role`].
    pub(super) named: [Vec<Expr>; 4],
}

thread_local! {
    static BUILDERS: RefCell<Vec<Builder>> = const { RefCell::new(Vec::new()) };
    static SERIAL: Cell<u32> = const { Cell::new(0) };
}

/// Ends the construction even where the formula's text panics.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        BUILDERS.with_borrow_mut(|builders| builders.pop());
    }
}

impl Builder {
    /// Runs `body` with a fresh builder for expressions over `inputs`, and returns that builder.
    pub(super) fn run<R>(inputs: Vec<Input>, body: impl FnOnce() -> R) -> (Builder, R) {
        let serial = SERIAL.get() % Role::FIRST + 1;
        SERIAL.set(serial);
        Builder { serial, inputs, ..Builder::empty() }.resume(body)
    }

    /// A builder of nothing.
    pub(super) fn empty() -> Builder {
        Builder {
            serial: 0,
            inputs: Vec::new(),
            graph: Graph::default(),
            known: HashMap::new(),
            derivative: false,
            named: Default::default(),
        }
    }

    /// Goes on with this builder: runs `body` with it, and returns it.
    pub(super) fn resume<R>(self, body: impl FnOnce() -> R) -> (Builder, R) {
        BUILDERS.with_borrow_mut(|builders| builders.push(self));
        let guard = Guard;
        let result = body();
        let built = BUILDERS.with_borrow_mut(|builders| builders.last_mut().map(Builder::take));
        drop(guard);
        (built.expect("the builder that was pushed"), result)
    }

    fn take(&mut self) -> Builder {
        std::mem::replace(self, Builder::empty())
    }

    /// The builder of the formula that is under construction on this thread.
    ///
    /// # Panics
    /// Where there is none.
    #[track_caller]
    pub(super) fn with<R>(act: impl FnOnce(&mut Builder) -> R) -> R {
        let result = BUILDERS.with_borrow_mut(|builders| builders.last_mut().map(act));
        result.expect("an Expr has a meaning only while its formula is built, inside formula! or Formula::new")
    }

    /// Builds a node from expressions of this builder.
    #[track_caller]
    pub(super) fn emit(make: impl FnOnce(&mut Builder) -> Result<Id, String>) -> Expr {
        match Builder::with(|b| make(b).map(|id| b.expr(id))) {
            Ok(expr) => expr,
            Err(reason) => panic!("formula: {reason}"),
        }
    }

    /// The expression for a node.
    pub(super) fn expr(&self, id: Id) -> Expr {
        Expr::at(self.serial, id)
    }

    /// The node of an expression, or why it has none here.
    pub(super) fn id(&self, expr: Expr) -> Result<Id, String> {
        let expr = match expr.role() {
            None => expr,
            Some((role, number)) => *self.named[role as usize].get(number).ok_or_else(|| {
                let name = ["input", "parameter", "output", "incoming gradient"][role as usize];
                format!("{name} {number} does not exist here; `g`, `y` and their like belong in derivative lines")
            })?,
        };
        expr.id_in(self.serial).ok_or_else(|| "an Expr was used outside the formula that it was built for".into())
    }

    /// The node, simplified and found again if it was built before.
    pub(super) fn node(&mut self, node: Node) -> Result<Id, String> {
        let fact = self.graph.infer(node, &self.inputs)?;
        if self.derivative
            && let Some(id) = self.rewrite_derivative(node)?
        {
            return Ok(id);
        }
        if let Some(id) = self.rewrite_value(node)? {
            return Ok(id);
        }
        // Operands of a commutative primitive are looked up in one order but kept as written.
        let key = match node {
            Node::Binary(op, a, b) if op.is_commutative() && b < a => Node::Binary(op, b, a),
            other => other,
        };
        Ok(*self.known.entry(key).or_insert_with(|| self.graph.push(node, fact)))
    }

    /// The node of a constant.
    pub(super) fn literal(&mut self, literal: Literal) -> Id {
        self.node(Node::Literal(literal)).expect("a literal is always well formed")
    }

    /// The value of a literal number that an `f64` holds exactly.
    pub(super) fn constant(&self, id: Id) -> Option<f64> {
        match self.graph.node(id) {
            Node::Literal(Literal { value: Scalar::Float(x), .. }) => Some(x),
            _ => None,
        }
    }

    /// Copies a graph into this one; its inputs become `inputs`, its parameters `params`.
    /// Returns where every node went.
    pub(super) fn import(&mut self, graph: &Graph, inputs: &[Id], params: &[Id]) -> Result<Vec<Id>, String> {
        let mut place: Vec<Id> = Vec::with_capacity(graph.len());
        for (_, node) in graph.iter() {
            place.push(match node {
                Node::Input(i) => inputs[i as usize],
                Node::Param(k) => params[k as usize],
                other => self.node(other.map(|a| place[a.index()]))?,
            });
        }
        Ok(place)
    }
}
