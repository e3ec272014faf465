//! Chooses the values that a gradient reads, which the forward pass must save.
//!
//! A subexpression of the gradient that equals an output may be read (the output is saved) or recomputed from the
//! inputs. All subsets of the first [`MAX_CHOICES`] outputs are tried. The best subset recomputes the fewest expensive
//! primitives, then saves the fewest bytes, then has the fewest instructions. For example, the gradients of exp, tanh
//! and sigmoid read the output, and the gradient of x² reads the input.

use super::builder::Builder;
use super::gradient::{Gradient, GradientInput, GradientRequest, GradientStructure};
use super::graph::{FormulaNode, Input, NodeId, Output, ValueKind};
use super::{Formula, FormulaData};
use crate::lock;
use std::collections::{BTreeSet, HashSet};
use std::sync::{LazyLock, Mutex};

/// The number of outputs whose subsets are all tried; further outputs are always read.
const MAX_CHOICES: usize = 4;

/// Builds the gradient formula with outputs `roots`, from a builder that also contains the nodes of the formula.
pub(super) fn gradient(
    f: &Formula,
    request: GradientRequest,
    b: &Builder,
    forward: &[NodeId],
    roots: &[NodeId],
) -> Gradient {
    let inner = &*f.inner;
    let (n, m) = (inner.inputs.len(), inner.outputs.len());
    // The outputs that the gradient may read, as (node, input that represents the saved output).
    let reached = ReachableNodes::new(b, roots, &[]).nodes;
    let readable_outputs = inner.outputs.iter().enumerate().filter_map(|(j, output)| {
        let node = forward[output.node.index()];
        let is_saved_unchanged = b.graph.node_info(node).per_row == output.per_row || !inner.is_row;
        let useful = reached.contains(&node) && !b.graph.node(node).is_leaf() && is_saved_unchanged;
        useful.then_some((node, n + j))
    });
    let readable_outputs: Vec<(NodeId, usize)> = readable_outputs.collect();
    let (optional_outputs, required_outputs) = readable_outputs.split_at(readable_outputs.len().min(MAX_CHOICES));
    let choices = (0..1usize << optional_outputs.len()).map(|set| {
        let chosen = optional_outputs.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, &c)| c);
        chosen.chain(required_outputs.iter().copied()).collect::<Vec<_>>()
    });
    let saved = choices.min_by_key(|saved| ReachableNodes::new(b, roots, saved).cost(b)).unwrap_or_default();

    let reads: Vec<usize> = ReachableNodes::new(b, roots, &saved).reads.into_iter().collect();
    let number = |input: usize| {
        FormulaNode::Input(
            reads.iter().position(|&r| r == input).expect("the walk must collect all inputs that are read") as u8,
        )
    };
    let (graph, extracted) = b.graph.extract(roots, &|id| match b.graph.node(id) {
        FormulaNode::Input(i) => Some(number(i as usize)),
        _ => saved.iter().find(|s| s.0 == id).map(|s| number(s.1)),
    });

    let per_row = |k: usize| (0..n).find(|&i| request.output_of(i) == Some(k)).is_some_and(|i| inner.inputs[i].per_row);
    let outputs = extracted.iter().enumerate();
    let outputs = outputs.map(|(k, &node)| Output { node, kind: ValueKind::Number, per_row: per_row(k) }).collect();
    let outcome = |(k, &root): (usize, &NodeId)| match b.graph.node(root) {
        _ if b.constant(root) == Some(0.0) => GradientStructure::Zero,
        FormulaNode::Input(i) if i as usize >= n + m && inner.outputs[i as usize - n - m].per_row == per_row(k) => {
            GradientStructure::Passes(i as usize - n - m)
        }
        _ => GradientStructure::Computed,
    };
    let results = roots.iter().enumerate().map(outcome).collect();
    let inputs: Vec<Input> = reads.iter().map(|&r| b.inputs[r]).collect();
    let formula = Formula::assemble(derivative_name(inner.name), inputs, f.params(), graph, outputs);
    let names = names(inner);
    let formula = formula.changed(|new| {
        new.order = inner.order + 1;
        new.input_names = reads.iter().map(|&r| names[r].clone()).collect();
        new.param_names = inner.param_names.clone();
    });
    let reads = reads.into_iter().map(|r| match r {
        r if r < n => GradientInput::Input(r),
        r if r < n + m => GradientInput::Output(r - n),
        r => GradientInput::Gradient(r - n - m),
    });
    Gradient { formula, reads: reads.collect(), first_inputs: request.first_inputs(), results }
}

/// The nodes that are computed for the roots, and the inputs that are read, if the nodes in `saved` are read instead of
/// computed.
struct ReachableNodes {
    nodes: HashSet<NodeId>,
    reads: BTreeSet<usize>,
}

impl ReachableNodes {
    fn new(b: &Builder, roots: &[NodeId], saved: &[(NodeId, usize)]) -> ReachableNodes {
        let (mut nodes, mut reads) = (HashSet::new(), BTreeSet::new());
        let mut stack = roots.to_vec();
        while let Some(id) = stack.pop() {
            if let Some(&(_, input)) = saved.iter().find(|s| s.0 == id) {
                reads.insert(input);
            } else if nodes.insert(id) {
                match b.graph.node(id) {
                    FormulaNode::Input(i) => drop(reads.insert(i as usize)),
                    node => stack.extend(node.operands()),
                }
            }
        }
        ReachableNodes { nodes, reads }
    }

    /// Returns (expensive primitives, weight of the values read, instructions). Per-row values have almost no weight.
    fn cost(&self, b: &Builder) -> (usize, usize, usize) {
        let bytes = |&r: &usize| match b.inputs[r] {
            Input { per_row: true, .. } => 1,
            Input { kind: ValueKind::Number, .. } => 400,
            Input { kind: ValueKind::Index, .. } => 800,
            Input { kind: ValueKind::Mask, .. } => 100,
        };
        let expensive = self.nodes.iter().filter(|&&id| b.graph.node(id).is_expensive()).count();
        (expensive, self.reads.iter().map(bytes).sum(), self.nodes.len())
    }
}

/// Returns distinct names for inputs, outputs and incoming gradients.
fn names(inner: &FormulaData) -> Vec<String> {
    let mut names = inner.input_names.clone();
    let m = inner.outputs.len();
    for letter in ["y", "g"] {
        for j in 0..m {
            let mut name = if m == 1 { letter.to_string() } else { format!("{letter}{j}") };
            while names.contains(&name) || inner.param_names.contains(&name) {
                name.push('\'');
            }
            names.push(name);
        }
    }
    names
}

/// Returns the name of a derivative: `name` with one more prime.
pub(super) fn derivative_name(name: &'static str) -> &'static str {
    static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let primed = format!("{name}'");
    let mut names = lock(&NAMES);
    match names.get(primed.as_str()) {
        Some(known) => known,
        None => {
            // Programs store names as `&'static str`; the number of leaked names is bounded by the number of formulas.
            let name: &'static str = primed.leak();
            names.insert(name);
            name
        }
    }
}
