//! Partial derivatives of every order, of a formula without row reductions.
//!
//! Repeated reverse sweeps would make the formula of order k exponentially large in k, with one more input for every
//! incoming gradient. An elementwise formula y(x) avoids both: its derivatives of order k are plain functions of the
//! *point* (x, y(x)), and every gradient is a sum of products
//!
//! ```text
//! Σ c · ∂ᵅyⱼ/∂xᵅ (x, y)
//! ```
//!
//! of a cotangent c with a partial derivative. Such a sum is a [`Contraction`]. The derivative of a contraction is a
//! contraction again: with respect to c the partial derivative is unchanged, with respect to xᵢ its multi-index α gains
//! an i.
//!
//! Partial derivatives are found by forward mode, on one hash-consed graph that all orders share:
//! a node has at most one tangent for each variable, so the terms of Leibniz' and Faà di Bruno's
//! rules are shared too, and the graph grows polynomially with the order (Griewank and Walther 2008,
//! chapter 13). A saved output is a leaf whose tangent is known: ∂yⱼ/∂xᵢ is written in terms of the
//! point as well.
//!
//! A declared derivative may differ from the symbolic one, for example at a bound. A mixed derivative with respect to
//! variables with and without a declared derivative is therefore derived from the declared derivative.

use super::Formula;
use super::builder::Builder;
use super::differentiate::{operand_adjoints, symmetric_product};
use super::expr::Expr;
use super::gradient::{Gradient, GradientInput, GradientRequest};
use super::graph::{FormulaNode, Graph, Input, MAX_OPERANDS, NodeId, Output, ValueKind};
use super::save::derivative_name;
use crate::error::{Error, Result};
use crate::lock;
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// The maximum total number of nodes of all partial derivatives of one formula.
const MAX_NODES: usize = 400_000;

/// The variables with respect to which a formula is differentiated. Each is one input, or several inputs that are the
/// same tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Variables {
    /// Inputs whose gradients one gradient formula computes; its output k is the gradient with respect to variable k.
    pub together: GradientRequest,
    /// A mask of further inputs. Each is a variable with a separate gradient formula.
    pub separate: u64,
}

impl Variables {
    /// Returns the number of variables.
    pub fn len(self) -> usize {
        self.together.outputs() + self.separate.count_ones() as usize
    }

    /// Returns true if there are no variables.
    pub fn is_empty(self) -> bool {
        self == Variables::default()
    }

    /// Returns the variable to which an input belongs; `None` if the formula is not differentiated with respect to the
    /// input.
    pub fn variable_of(self, input: usize) -> Option<usize> {
        let separate = || {
            let below = self.separate & ((1u64 << input) - 1);
            (self.separate >> input & 1 == 1).then(|| self.together.outputs() + below.count_ones() as usize)
        };
        self.together.output_of(input).or_else(|| if input < 64 { separate() } else { None })
    }

    /// Returns, for each variable, the index of its first input.
    pub fn first_inputs(self) -> SmallVec<[u8; 4]> {
        let together = self.together.first_inputs().into_iter();
        together.chain((0..64).filter(|i| self.separate >> i & 1 == 1)).collect()
    }
}

/// ∂ᵅyⱼ/∂xᵅ: a partial derivative of one output.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Partial {
    /// The output, j.
    pub output: u8,
    /// The multi-index α, as an ascending list of variables.
    pub variables: SmallVec<[u8; 14]>,
}

impl Partial {
    /// Creates the first derivative of `output` with respect to `variable`.
    pub fn first(output: usize, variable: usize) -> Partial {
        Partial { output: output as u8, variables: smallvec![variable as u8] }
    }

    /// Returns the derivative of this derivative with respect to `variable`.
    #[must_use]
    pub fn with_variable(&self, variable: usize) -> Partial {
        let mut variables = self.variables.clone();
        variables.insert(variables.partition_point(|&v| v <= variable as u8), variable as u8);
        Partial { output: self.output, variables }
    }
}

/// One product of a [`Contraction`]: cotangents times a partial derivative.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Term {
    /// The output of the contraction to which the product is added.
    pub output: u8,
    /// The cotangents that are multiplied.
    pub factors: SmallVec<[u8; 3]>,
    /// The partial derivative.
    pub partial: Partial,
}

/// Sums of products of cotangents with partial derivatives, as a formula.
pub struct Contraction {
    /// The formula; its inputs are the values of `reads`, then all cotangents.
    pub formula: Formula,
    /// The inputs and outputs of the differentiated formula that `formula` reads, ascending.
    pub reads: Vec<GradientInput>,
}

/// The partial derivatives of a formula with respect to given variables, derived on demand.
pub struct Partials {
    name: &'static str,
    /// The inputs of the formula, then the outputs that a derivative may read.
    leaves: Vec<Input>,
    inputs: usize,
    params: usize,
    param_names: Vec<String>,
    /// The leaves that first derivatives read; derivatives of higher order read no others.
    reads: Vec<GradientInput>,
    table: Mutex<PartialTable>,
}

struct PartialTable {
    builder: Builder,
    /// The variable to which each input belongs; `None` for an input without a variable.
    variable_of: Vec<Option<usize>>,
    /// Whether the derivative with respect to each variable is declared.
    is_declared: Vec<bool>,
    /// The number of inputs of the formula; leaves beyond it are outputs.
    inputs: usize,
    tangents: HashMap<(NodeId, u8), Option<NodeId>>,
    partials: HashMap<Partial, Option<NodeId>>,
    /// First derivatives in the form from which higher derivatives are derived, if that form differs.
    refined: HashMap<Partial, Option<NodeId>>,
    contractions: HashMap<(Vec<Term>, usize), Arc<Contraction>>,
}

impl Formula {
    /// Returns the partial derivatives with respect to `variables`, for a formula without row reductions.
    ///
    /// Derivatives read the same values as [`Formula::gradient`] for the same variables. With `recompute` they
    /// read inputs only, and outputs are recomputed.
    pub fn partials(&self, variables: Variables, recompute: bool) -> &Arc<Partials> {
        let known = &self.inner.partials;
        let key = (variables, recompute);
        known.get(&key).unwrap_or_else(|| known.insert(key, Arc::new(Partials::new(self, variables, recompute))))
    }
}

/// Returns, for each variable, the request of a gradient formula, and the output of this formula that is the derivative
/// with respect to the variable.
fn gradient_outputs(variables: Variables) -> Vec<(GradientRequest, usize)> {
    let together = (0..variables.together.outputs()).map(|k| (variables.together, k));
    let separate = (0..64).filter(|i| variables.separate >> i & 1 == 1).map(|i| (GradientRequest::for_input(i), 0));
    together.chain(separate).collect()
}

/// Returns the inputs and outputs of the formula that a gradient reads.
fn values_read_by(gradient: &Gradient) -> impl Iterator<Item = GradientInput> + '_ {
    gradient.reads.iter().copied().filter(|read| !matches!(read, GradientInput::Gradient(_)))
}

impl Partials {
    fn new(formula: &Formula, variables: Variables, recompute: bool) -> Partials {
        assert!(!formula.is_row(), "formula `{}`: a row formula has no elementwise derivative", formula.name());
        let inner = &*formula.inner;
        let (n, m) = (inner.inputs.len(), inner.outputs.len());
        let leaves = formula.derivative_inputs()[..n + m].to_vec();
        let sources = gradient_outputs(variables);
        let mut reads = BTreeSet::new();
        let (builder, (first, refined)) = Builder::run(leaves.clone(), || {
            let leaf = |i: usize| Builder::emit(&mut |b| b.node(FormulaNode::Input(i as u8)));
            let params: Vec<Expr> =
                (0..formula.params()).map(|k| Builder::emit(&mut |b| b.node(FormulaNode::Param(k as u8)))).collect();
            let mut points: Vec<Expr> = (0..n + m).map(leaf).collect();
            if recompute {
                let outputs = formula.call(&points[..n], &params);
                points.splice(n.., outputs);
            }
            Builder::with(|b| b.derivative = true);
            let (zero, one) = (Expr::literal(0, ValueKind::Number), Expr::literal(1, ValueKind::Number));
            let derive = |v: usize, gradient: &Gradient, output: usize, list: &mut Vec<(Partial, NodeId)>| {
                for (j, _) in inner.outputs.iter().enumerate().filter(|(_, o)| o.kind == ValueKind::Number) {
                    let operand = |read: &GradientInput| match *read {
                        GradientInput::Input(i) => points[i],
                        GradientInput::Output(k) => points[n + k],
                        GradientInput::Gradient(k) if k == j => one,
                        GradientInput::Gradient(_) => zero,
                    };
                    let operands: Vec<Expr> = gradient.reads.iter().map(operand).collect();
                    let values = gradient.formula.call(&operands, &params);
                    let id = Builder::with(|b| b.id(values[output]));
                    list.push((Partial::first(j, v), id.expect("the expression must belong to the current builder")));
                }
            };
            let (mut first, mut refined) = (Vec::new(), Vec::new());
            for (v, &(request, output)) in sources.iter().enumerate() {
                let gradient = formula.gradient(request);
                derive(v, gradient, output, &mut first);
                reads.extend(values_read_by(gradient));
            }
            if recompute && reads.iter().any(|r| matches!(r, GradientInput::Output(_))) {
                reads = (0..n).map(GradientInput::Input).collect();
            }
            // Higher derivatives read only values that were saved for the first derivatives.
            let is_saved = |r: &GradientInput| match r {
                GradientInput::Output(_) if recompute => reads.len() == n,
                r => reads.contains(r),
            };
            for (v, &(request, output)) in sources.iter().enumerate() {
                if let Some(gradient) =
                    formula.refined_gradient(request).filter(|g| values_read_by(g).all(|read| is_saved(&read)))
                {
                    derive(v, &gradient, output, &mut refined);
                }
            }
            Builder::with(|b| b.refined = true);
            (first, refined)
        });
        let nonzero = |list: Vec<(Partial, NodeId)>| -> HashMap<Partial, Option<NodeId>> {
            list.into_iter().map(|(p, id)| (p, (builder.constant(id) != Some(0.0)).then_some(id))).collect()
        };
        let is_declared = |v: usize| (0..n).any(|i| inner.declared[i].is_some() && variables.variable_of(i) == Some(v));
        let table = PartialTable {
            partials: nonzero(first),
            refined: nonzero(refined),
            builder,
            is_declared: (0..variables.len()).map(is_declared).collect(),
            variable_of: (0..n).map(|i| variables.variable_of(i)).collect(),
            inputs: n,
            tangents: HashMap::new(),
            contractions: HashMap::new(),
        };
        Partials {
            name: inner.name,
            leaves,
            inputs: n,
            params: formula.params(),
            param_names: inner.param_names.clone(),
            reads: reads.into_iter().collect(),
            table: Mutex::new(table),
        }
    }

    /// Returns the inputs and outputs of the formula that derivatives of any order may read, ascending.
    pub fn reads(&self) -> &[GradientInput] {
        &self.reads
    }

    /// Returns the number of nodes of all partial derivatives that were derived so far.
    pub fn nodes(&self) -> usize {
        self.table().builder.graph.len()
    }

    /// Returns the name of the first derivative, for messages.
    pub fn name(&self) -> &'static str {
        derivative_name(self.name)
    }

    /// Returns the value of the derivative if it is constant; `None` otherwise.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if all derivatives of the formula together have too many nodes.
    pub fn constant(&self, partial: &Partial) -> Result<Option<f64>> {
        let mut table = self.table();
        match table.partial(self.name, partial)? {
            None => Ok(Some(0.0)),
            Some(id) => Ok(table.builder.constant(id)),
        }
    }

    /// Returns the formula of the sums of products in `terms`, whose partial derivatives must be nonzero. `cotangents`
    /// is the number of cotangents.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the formula has too many nodes or inputs.
    pub fn contraction(&self, terms: &[Term], cotangents: usize) -> Result<Arc<Contraction>> {
        let mut table = self.table();
        let key = (terms.to_vec(), cotangents);
        if let Some(known) = table.contractions.get(&key) {
            return Ok(known.clone());
        }
        let mut roots = Vec::with_capacity(terms.len());
        for term in terms {
            let root = table.partial(self.name, &term.partial)?;
            roots.push(root.expect("the caller must omit terms whose derivative is zero"));
        }
        let contraction = Arc::new(self.write(&table.builder.graph, terms, &roots, cotangents)?);
        table.contractions.insert(key, contraction.clone());
        Ok(contraction)
    }

    fn write(&self, graph: &Graph, terms: &[Term], roots: &[NodeId], cotangents: usize) -> Result<Contraction> {
        let leaves = leaves_of(graph, roots);
        let order = terms.iter().map(|t| t.partial.variables.len()).max().unwrap_or(0);
        if leaves.len() + cotangents > MAX_OPERANDS {
            let reason = format!(
                "a derivative of order {order} reads {} tensors and {cotangents} gradients, more than {MAX_OPERANDS} \
                 in total; split the formula into several operations",
                leaves.len()
            );
            return Err(Error::invalid(self.name, reason));
        }
        let renumbered = |i: u8| leaves.binary_search(&i).expect("the list must contain every leaf that is read") as u8;
        let (part, roots) = graph.extract(roots, &|id| match graph.node(id) {
            FormulaNode::Input(i) => Some(FormulaNode::Input(renumbered(i))),
            _ => None,
        });
        let point = leaves.iter().map(|&i| self.leaves[i as usize]);
        let inputs: Vec<Input> = point.chain(std::iter::repeat_n(Input::NUMBER, cotangents)).collect();
        let outputs = terms.iter().map(|t| t.output as usize + 1).max().unwrap_or(0);
        let (builder, sums) = Builder::run(inputs.clone(), || {
            let leaf = |i: usize| Builder::emit(&mut |b| b.node(FormulaNode::Input(i as u8)));
            let operands: Vec<Expr> = (0..inputs.len()).map(leaf).collect();
            let params: Vec<Expr> =
                (0..self.params).map(|k| Builder::emit(&mut |b| b.node(FormulaNode::Param(k as u8)))).collect();
            let (point, cotangents) = operands.split_at(leaves.len());
            let values = super::differentiate::import_graph(&part, point, &params);
            Builder::with(|b| b.derivative = true);
            let plus = |sum: &mut Option<Expr>, term: Expr| *sum = Some(sum.map_or(term, |s| s + term));
            // Products that multiply the same derivative are added first.
            let mut groups: Vec<(u8, NodeId, Option<Expr>)> = Vec::new();
            for (term, &root) in terms.iter().zip(&roots) {
                let factors = term.factors.iter().map(|&c| cotangents[c as usize]);
                let product = factors.reduce(|a, b| a * b).expect("a term must have at least one cotangent");
                match groups.iter_mut().find(|(output, r, _)| *output == term.output && *r == root) {
                    Some((.., sum)) => plus(sum, product),
                    None => groups.push((term.output, root, Some(product))),
                }
            }
            let mut sums: Vec<Option<Expr>> = vec![None; outputs];
            for (output, root, sum) in groups {
                let sum = sum.expect("a group must have at least one product");
                plus(&mut sums[output as usize], scaled(sum, values[root.index()]));
            }
            let id = |e: Expr| Builder::with(|b| b.id(e)).expect("the expression must belong to the current builder");
            sums.into_iter().map(|s| id(s.expect("outputs must be numbered without gaps"))).collect::<Vec<NodeId>>()
        });
        let (graph, extracted) = builder.graph.extract(&sums, &|_| None);
        let outputs =
            extracted.into_iter().map(|node| Output { node, kind: ValueKind::Number, per_row: false }).collect();
        let name = (0..order).fold(self.name, |name, _| derivative_name(name));
        let formula = Formula::assemble(name, inputs, self.params, graph, outputs);
        let reads: Vec<GradientInput> = leaves.iter().map(|&i| self.read(i as usize)).collect();
        let names = |r: &GradientInput| match *r {
            GradientInput::Input(i) => format!("x{i}"),
            GradientInput::Output(j) => format!("y{j}"),
            GradientInput::Gradient(j) => format!("g{j}"),
        };
        let formula = formula.changed(|new| {
            new.order = order;
            new.input_names = reads.iter().map(names).chain((0..cotangents).map(|c| format!("c{c}"))).collect();
            new.param_names = self.param_names.clone();
        });
        Ok(Contraction { formula, reads })
    }

    fn read(&self, leaf: usize) -> GradientInput {
        if leaf < self.inputs { GradientInput::Input(leaf) } else { GradientInput::Output(leaf - self.inputs) }
    }

    fn table(&self) -> MutexGuard<'_, PartialTable> {
        // The lock is poisoned only if a panic occurred while it was held, which would be a bug in this crate.
        lock(&self.table)
    }
}

/// Returns c·d. If d is a `select` with a zero operand, c multiplies only the other operand, so that an infinite c does
/// not produce NaN where the derivative is zero.
fn scaled(c: Expr, d: Expr) -> Expr {
    let node = |e: Expr| Builder::with(|b| b.id(e).map(|id| (b.graph.node(id), b.constant(id))));
    match node(d) {
        Ok((FormulaNode::Select(m, u, v), _)) => {
            let (m, u, v) = Builder::with(|b| (b.expr(m), b.expr(u), b.expr(v)));
            let is_zero = |e: Expr| matches!(node(e), Ok((_, Some(0.0))));
            match (is_zero(u), is_zero(v)) {
                (true, _) => m.select(0, scaled(c, v)),
                (_, true) => m.select(scaled(c, u), 0),
                _ => c * d,
            }
        }
        _ => c * d,
    }
}

/// Returns the indices of the inputs that the roots depend on, in ascending order.
fn leaves_of(graph: &Graph, roots: &[NodeId]) -> Vec<u8> {
    let mut seen = vec![false; graph.len()];
    let mut stack = roots.to_vec();
    let mut leaves = BTreeSet::new();
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        match graph.node(id) {
            FormulaNode::Input(i) => drop(leaves.insert(i)),
            node => stack.extend(node.operands()),
        }
    }
    leaves.into_iter().collect()
}

impl PartialTable {
    /// Returns the node of a partial derivative; `None` if it is zero.
    fn partial(&mut self, name: &'static str, requested: &Partial) -> Result<Option<NodeId>> {
        if let Some(known) = self.partials.get(requested) {
            return Ok(*known);
        }
        // Derivatives of lower orders are derived first; all first derivatives exist from the start.
        let mut sequence = requested.variables.clone();
        sequence.sort_by_key(|&variable| !self.is_declared[variable as usize]);
        let mut lower = Partial::first(requested.output as usize, sequence[0] as usize);
        for (&variable, order) in sequence[1..].iter().zip(2..) {
            let partial = lower.with_variable(variable as usize);
            if self.partials.contains_key(&partial) {
                lower = partial;
                continue;
            }
            let derivative = match self.differentiated(&lower) {
                Some(root) => self.tangent(root, variable),
                None => None,
            };
            let nodes = self.builder.graph.len();
            if nodes > MAX_NODES {
                let reason = format!(
                    "the derivatives up to order {order} have {nodes} nodes, more than {MAX_NODES}; \
                     split the formula into several operations"
                );
                return Err(Error::invalid(name, reason));
            }
            self.partials.insert(partial.clone(), derivative);
            lower = partial;
        }
        Ok(self.partials[requested])
    }

    /// Returns the node that is differentiated to obtain the derivatives of a known partial derivative.
    fn differentiated(&self, partial: &Partial) -> Option<NodeId> {
        self.refined.get(partial).or_else(|| self.partials.get(partial)).copied().flatten()
    }

    /// Returns the tangent of a node with respect to one variable; `None` if it is zero.
    fn tangent(&mut self, root: NodeId, variable: u8) -> Option<NodeId> {
        // Collects the nodes whose tangent is not yet derived, in ascending order of their ids: the id of an operand is
        // lower than the id of a node that uses it.
        let mut waiting = BTreeSet::new();
        let mut stack = vec![root];
        while let Some(id) = stack.pop() {
            if !self.tangents.contains_key(&(id, variable)) && waiting.insert(id) {
                stack.extend(self.builder.graph.node(id).operands());
            }
        }
        let builder = std::mem::replace(&mut self.builder, Builder::empty());
        let (builder, ()) = builder.resume(|| {
            for id in waiting {
                let tangent = self.tangent_of(id, variable);
                self.tangents.insert((id, variable), tangent);
            }
        });
        self.builder = builder;
        self.tangents[&(root, variable)]
    }

    /// Builds the tangent of a node whose operands have tangents, in the current builder.
    fn tangent_of(&self, id: NodeId, variable: u8) -> Option<NodeId> {
        let (node, kind) = Builder::with(|b| (b.graph.node(id), b.graph.node_info(id).kind));
        if kind != ValueKind::Number {
            return None;
        }
        let expr = |id: NodeId| Builder::with(|b| b.expr(id));
        if let FormulaNode::Input(i) = node {
            let i = i as usize;
            if i < self.inputs {
                let is_it = self.variable_of[i] == Some(variable as usize);
                return is_it.then(|| Builder::with(|b| b.number(1.0)));
            }
            return self.differentiated(&Partial::first(i - self.inputs, variable as usize));
        }
        let operands = node.operands();
        let tangents: SmallVec<[Option<Expr>; 3]> =
            operands.iter().map(|a| self.tangents[&(*a, variable)].map(expr)).collect();
        if tangents.iter().all(Option::is_none) {
            return None;
        }
        let zero = || Expr::literal(0, ValueKind::Number);
        let sum = if let (FormulaNode::Select(mask, ..), &[_, u, v]) = (node, &tangents[..]) {
            Some(expr(mask).select(u.unwrap_or_else(zero), v.unwrap_or_else(zero)))
        } else if let Some((u, slope)) = symmetric_product(node, expr(id)) {
            self.tangents[&(u, variable)].map(|t| slope * expr(t))
        } else {
            let args: SmallVec<[Expr; 3]> = operands.iter().map(|&a| expr(a)).collect();
            let mut sum: Option<Expr> = None;
            for (k, tangent) in tangents.into_iter().enumerate() {
                // The adjoint rule is elementwise and linear in the gradient, so it is also the tangent rule.
                let term = tangent.and_then(|t| operand_adjoints(node, &args, expr(id), t)[k]);
                sum = match (sum, term) {
                    (Some(a), Some(b)) => Some(a + b),
                    (a, b) => a.or(b),
                };
            }
            sum
        };
        let id = Builder::with(|b| b.id(sum?).ok())?;
        Builder::with(|b| b.constant(id) != Some(0.0)).then_some(id)
    }
}
