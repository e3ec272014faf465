//! Formulas as mathematical expressions.
//!
//! A subexpression that is used more than once gets a name, so the length of the text grows in proportion to the graph.

use super::Formula;
use super::gradient::{Gradient, GradientInput};
use super::graph::{FormulaNode, Graph, NodeId};
use super::primitive::{Binary, Unary};
use std::fmt;

/// The precedence of the outermost operator of an expression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Or,
    Xor,
    And,
    Compare,
    Shift,
    Sum,
    Product,
    Sign,
    Atom,
}

struct Printer<'a> {
    formula: &'a Formula,
    /// For each node, the text that refers to it (an expression or a name), and the precedence of this text.
    expressions: Vec<(String, Precedence)>,
}

impl Printer<'_> {
    fn text(&self, id: NodeId) -> &str {
        &self.expressions[id.index()].0
    }

    /// Returns the text of an operand, in parentheses if its precedence is lower than `min_precedence`.
    fn operand(&self, id: NodeId, min_precedence: Precedence) -> String {
        let (text, binds) = &self.expressions[id.index()];
        if *binds < min_precedence { format!("({text})") } else { text.clone() }
    }

    fn infix(&self, a: NodeId, sign: &str, b: NodeId, binds: Precedence, tighter: Precedence) -> (String, Precedence) {
        // A left-associative operator needs parentheses on the right only.
        let left = if binds == Precedence::Compare { tighter } else { binds };
        (format!("{} {sign} {}", self.operand(a, left), self.operand(b, tighter)), binds)
    }

    fn call(&self, name: &str, args: &[NodeId]) -> (String, Precedence) {
        let args: Vec<&str> = args.iter().map(|&a| self.text(a)).collect();
        (format!("{name}({})", args.join(", ")), Precedence::Atom)
    }

    fn node(&self, node: FormulaNode) -> (String, Precedence) {
        use Binary::*;
        let inner = &self.formula.inner;
        match node {
            FormulaNode::Input(i) => (inner.input_names[i as usize].clone(), Precedence::Atom),
            FormulaNode::Param(k) => (inner.param_names[k as usize].clone(), Precedence::Atom),
            FormulaNode::Literal(literal) => {
                let text = literal.value.to_string();
                let binds = if text.starts_with('-') { Precedence::Sign } else { Precedence::Atom };
                (text, binds)
            }
            FormulaNode::Unary(Unary::Neg, a) => (format!("-{}", self.operand(a, Precedence::Sign)), Precedence::Sign),
            FormulaNode::Unary(Unary::Not, a) => (format!("!{}", self.operand(a, Precedence::Sign)), Precedence::Sign),
            FormulaNode::Unary(op, a) => self.call(op.name(), &[a]),
            FormulaNode::Binary(op, a, b) => match op {
                Or => self.infix(a, "|", b, Precedence::Or, Precedence::Xor),
                Xor => self.infix(a, "^", b, Precedence::Xor, Precedence::And),
                And => self.infix(a, "&", b, Precedence::And, Precedence::Compare),
                Lt => self.infix(a, "<", b, Precedence::Compare, Precedence::Shift),
                Le => self.infix(a, "<=", b, Precedence::Compare, Precedence::Shift),
                Gt => self.infix(a, ">", b, Precedence::Compare, Precedence::Shift),
                Ge => self.infix(a, ">=", b, Precedence::Compare, Precedence::Shift),
                Eq => self.infix(a, "==", b, Precedence::Compare, Precedence::Shift),
                Ne => self.infix(a, "!=", b, Precedence::Compare, Precedence::Shift),
                Shl => self.infix(a, "<<", b, Precedence::Shift, Precedence::Sum),
                Shr => self.infix(a, ">>", b, Precedence::Shift, Precedence::Sum),
                Add => self.infix(a, "+", b, Precedence::Sum, Precedence::Product),
                Sub => self.infix(a, "-", b, Precedence::Sum, Precedence::Product),
                Mul => self.infix(a, "*", b, Precedence::Product, Precedence::Sign),
                Div => self.infix(a, "/", b, Precedence::Product, Precedence::Sign),
                Rem => self.infix(a, "%", b, Precedence::Product, Precedence::Sign),
                FloorDiv | Pow | Atan2 | Max | Min | Copysign | Ldexp => self.call(op.name(), &[a, b]),
                _ => self.call(op.name(), &[a, b]),
            },
            FormulaNode::Select(c, a, b) => self.call("select", &[c, a, b]),
            FormulaNode::MulAdd(a, b, c) => self.call("mul_add", &[a, b, c]),
            FormulaNode::Cast(kind, a) => self.call(&format!("{kind:?}").to_lowercase(), &[a]),
            FormulaNode::Round(dtype, a) => self.call(dtype.name(), &[a]),
            FormulaNode::RowReduce(op, a) => self.call(op.name(), &[a]),
            FormulaNode::RowIndex => ("row_index".into(), Precedence::Atom),
            FormulaNode::RowLength => ("row_len".into(), Precedence::Atom),
        }
    }
}

/// Returns the number of uses of every node.
fn uses(graph: &Graph, roots: impl Iterator<Item = NodeId>) -> Vec<usize> {
    let mut uses = vec![0; graph.len()];
    graph.iter().flat_map(|(_, node)| node.operands()).chain(roots).for_each(|a| uses[a.index()] += 1);
    uses
}

/// Iterates over unused names for shared subexpressions: a, b, c, .., a1, b1, ..
fn fresh_names(taken: Vec<&String>) -> impl Iterator<Item = String> {
    let letters =
        |round: usize| ('a'..='z').map(move |c| if round == 0 { c.to_string() } else { format!("{c}{round}") });
    let free: Vec<String> = (0..40).flat_map(letters).filter(|name| !taken.contains(&name)).collect();
    free.into_iter().chain((0..).map(|i| format!("v{i}_")))
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.inner;
        write!(f, "{}({}", inner.name, inner.input_names.join(", "))?;
        if !inner.param_names.is_empty() {
            write!(f, "; {}", inner.param_names.join(", "))?;
        }
        write!(f, ") = ")?;
        let uses = uses(&inner.graph, inner.outputs.iter().map(|o| o.node));
        let mut names = fresh_names(inner.input_names.iter().chain(&inner.param_names).collect());
        let mut printer = Printer { formula: self, expressions: Vec::with_capacity(inner.graph.len()) };
        let mut shared = Vec::new();
        for (id, node) in inner.graph.iter() {
            let mut text = printer.node(node);
            if uses[id.index()] > 1 && !node.is_leaf() && node != FormulaNode::RowIndex {
                let name = names.next().expect("the iterator of names must never end");
                shared.push(format!("let {name} = {}; ", text.0));
                text = (name, Precedence::Atom);
            }
            printer.expressions.push(text);
        }
        let outputs: Vec<&str> = inner.outputs.iter().map(|o| printer.text(o.node)).collect();
        let body = match outputs[..] {
            [one] => one.to_string(),
            _ => format!("({})", outputs.join(", ")),
        };
        if shared.is_empty() { f.write_str(&body) } else { write!(f, "{{ {}{body} }}", shared.concat()) }
    }
}

impl fmt::Debug for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for GradientInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GradientInput::Input(i) => write!(f, "input {i}"),
            GradientInput::Output(j) => write!(f, "output {j}"),
            GradientInput::Gradient(j) => write!(f, "gradient {j}"),
        }
    }
}

impl fmt::Display for Gradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.formula, f)
    }
}

impl fmt::Debug for Gradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads: Vec<String> = self.reads.iter().map(GradientInput::to_string).collect();
        write!(f, "{} reading {}", self.formula, reads.join(", "))
    }
}
