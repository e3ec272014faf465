//! Formulas: the mathematics of an operation as a graph.
//!
//! A formula is an immutable graph of scalar (and row) primitives. The program that a backend runs, the derivatives of
//! every order, and the list of values to save for backward are derived from it.
//!
//! ```
//! # extern crate pellucid_ir as pellucid;
//! use pellucid::DType;
//! use pellucid::formula;
//! use pellucid::formula::{GradientInput, GradientRequest};
//!
//! let tanh = formula! { tanh(x) = x.tanh() };
//! let gradient = tanh.gradient(GradientRequest::for_input(0));
//! assert_eq!(gradient.to_string(), "tanh'(y, g) = g * (1 - y * y)");
//! assert_eq!(gradient.reads, [GradientInput::Output(0), GradientInput::Gradient(0)]);
//! assert_eq!(gradient.formula.uniform_program(DType::F32).unwrap().steps.len(), 3);
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | this file | [`Formula`]: a graph with its inputs, outputs and declared derivatives, and caches of derived data |
//! | `primitive` | the primitives |
//! | `graph`, `builder`, `expr`, `macros`, `real` | building a formula |
//! | `simplify` | rewrites during construction |
//! | `differentiate`, `save`, `gradient` | gradients, the values that they read, their cache |
//! | `partials` | partial derivatives of every order |
//! | `unroll` | splitting a row formula into elementwise formulas and reductions |
//! | `program`, `compile`, `registers` | compilation to programs |
//! | `splice` | joining several programs into one |
//! | `evaluate`, `special` | evaluation in `f64`, the reference for tests |
//! | `remainders` | expressions that avoid cancellation |
//! | `print` | formulas as text |

#[macro_use]
mod macros;
mod memo;

mod builder;
mod compile;
mod differentiate;
mod evaluate;
mod expr;
mod gradient;
mod graph;
mod partials;
mod primitive;
mod print;
mod program;
mod real;
mod registers;
pub mod remainders;
mod save;
mod simplify;
mod special;
mod splice;
mod unroll;

pub use compile::Signature;
pub use expr::{Expr, IntoExpr, IntoFormulaOutputs, row_index, row_len};
pub use gradient::{Gradient, GradientInput, GradientRequest};
pub use graph::{FormulaNode, Graph, Input, Literal, NodeId, NodeInfo, Output, ValueKind};
#[doc(hidden)]
pub use macros::names;
pub use partials::{Contraction, Partial, Partials, Term, Variables};
pub use primitive::{Binary, RowOp, Unary};
pub use program::{InstructionOperand, Load, Op, Program, Step, Store, Uniform, UniformSource};
pub use real::{Argument, Literals, Real, RealMask, SingleFloat};
pub use special::{binary as evaluate_binary, unary as evaluate_unary};
pub use splice::{Splice, SpliceOperand, Spliced, SplicedValue};
pub use unroll::{Leaf, Unrolled, UnrolledReduction, UnrolledValue};

#[cfg(test)]
mod tests;

use builder::Builder;
use compile::Programs;
use expr::NameRole;
use gradient::{Gradients, Sums};
use graph::MAX_OPERANDS;
use memo::Memo;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use unroll::TooWide;

/// A mathematical function as data: outputs as functions of inputs and run-time parameters.
///
/// A formula is an immutable handle that is cheap to clone. Gradients and compiled programs are derived once and cached
/// in the formula.
#[derive(Clone)]
pub struct Formula {
    inner: FormulaOwner,
}

/// The owner of the data of a formula.
#[derive(Clone)]
enum FormulaOwner {
    Counted(Arc<FormulaData>),
    /// The data is never freed, so it needs no reference count.
    Leaked(&'static FormulaData),
}

impl Deref for FormulaOwner {
    type Target = FormulaData;
    #[inline]
    fn deref(&self) -> &FormulaData {
        match self {
            FormulaOwner::Counted(inner) => inner,
            FormulaOwner::Leaked(inner) => inner,
        }
    }
}

struct FormulaData {
    name: &'static str,
    inputs: Vec<Input>,
    input_names: Vec<String>,
    param_names: Vec<String>,
    graph: Graph,
    outputs: Vec<Output>,
    /// The declared derivative with respect to each input, if there is one.
    declared: Vec<Option<Declared>>,
    is_row: bool,
    /// The order of the derivative; 0 for the formula itself.
    order: usize,
    /// Whether every input is a number.
    is_plain: bool,
    /// A mask of those of the first 64 outputs that are numbers. Only these outputs have an incoming gradient.
    numbers: u64,
    gradients: Gradients,
    sums: Sums,
    partials: Memo<(Variables, bool), Arc<Partials>>,
    unrolled: OnceLock<std::result::Result<Unrolled, TooWide>>,
    programs: Programs,
}

/// A declared derivative: a graph over inputs, outputs, incoming gradients and [`Expr::refined`], in this order.
#[derive(Clone)]
struct Declared {
    graph: Graph,
    root: NodeId,
}

/// A function that writes the outputs of a formula. It must be called only once.
///
/// Its vtable is smaller than the vtable of `dyn FnMut`, and an executable contains one vtable for each formula.
trait FormulaBody {
    fn write(&mut self, inputs: &[Expr], params: &[Expr]) -> Vec<Expr>;
}

impl<F: FnOnce(&[Expr], &[Expr]) -> Vec<Expr>> FormulaBody for Option<F> {
    fn write(&mut self, inputs: &[Expr], params: &[Expr]) -> Vec<Expr> {
        let Some(body) = self.take() else { written_twice() };
        body(inputs, params)
    }
}

/// A function that writes a derivative. It must be called only once.
trait DerivativeBody {
    fn write(&mut self, inputs: &[Expr], params: &[Expr], outputs: &[Expr], gradients: &[Expr]) -> Expr;
}

impl<F: FnOnce(&[Expr], &[Expr], &[Expr], &[Expr]) -> Expr> DerivativeBody for Option<F> {
    fn write(&mut self, inputs: &[Expr], params: &[Expr], outputs: &[Expr], gradients: &[Expr]) -> Expr {
        let Some(body) = self.take() else { written_twice() };
        body(inputs, params, outputs, gradients)
    }
}

#[cold]
fn written_twice() -> ! {
    unreachable!("the body of a formula must be called only once")
}

impl Formula {
    /// Creates a formula. `body` writes the outputs in terms of the inputs and `params` parameters.
    ///
    /// # Panics
    /// Panics if an expression is invalid (see [`Expr`]), or with more than 255 inputs, parameters or outputs.
    #[track_caller]
    pub fn new(
        name: &'static str,
        inputs: &[Input],
        params: usize,
        body: impl FnOnce(&[Expr], &[Expr]) -> Vec<Expr>,
    ) -> Formula {
        Formula::written(name, inputs, params, &mut Some(body))
    }

    /// Implements [`Formula::new`] without generics, so that it is compiled only once.
    #[track_caller]
    fn written(name: &'static str, inputs: &[Input], params: usize, body: &mut dyn FormulaBody) -> Formula {
        assert!(
            inputs.len() <= MAX_OPERANDS && params <= MAX_OPERANDS,
            "formula `{name}`: a formula must have at most {MAX_OPERANDS} inputs and at most {MAX_OPERANDS} parameters"
        );
        let (builder, roots) = Builder::run(inputs.to_vec(), || {
            let (inputs, params) = leaf_expressions(inputs.len(), params);
            Builder::with(|b| b.named = [inputs.clone(), params.clone(), vec![], vec![], vec![]]);
            let outputs = body.write(&inputs, &params);
            let roots = Builder::with(|b| outputs.iter().map(|&e| b.id(e)).collect::<Result<Vec<NodeId>, String>>());
            roots.unwrap_or_else(|reason| panic!("formula `{name}`: {reason}"))
        });
        let count = roots.len();
        assert!(count <= MAX_OPERANDS, "formula `{name}`: at most {MAX_OPERANDS} outputs are possible, got {count}");
        let (graph, roots) = builder.graph.extract(&roots, &|_| None);
        let is_row = inputs.iter().any(|i| i.per_row) || graph.iter().any(|(_, node)| node.is_row());
        let output = |&node| {
            let node_info = graph.node_info(node);
            Output { node, kind: node_info.kind, per_row: is_row && node_info.per_row }
        };
        let outputs = roots.iter().map(output).collect();
        Formula::assemble(name, inputs.to_vec(), params, graph, outputs)
    }

    fn assemble(name: &'static str, inputs: Vec<Input>, params: usize, graph: Graph, outputs: Vec<Output>) -> Formula {
        let is_row = inputs.iter().any(|i| i.per_row)
            || outputs.iter().any(|o| o.per_row)
            || graph.iter().any(|(_, node)| node.is_row());
        let names = |letter: &str, n: usize| match n {
            1 => vec![letter.to_string()],
            _ => (0..n).map(|i| format!("{letter}{i}")).collect(),
        };
        let inner = FormulaData {
            name,
            input_names: names("x", inputs.len()),
            param_names: names("k", params),
            declared: vec![None; inputs.len()],
            numbers: number_output_mask(&outputs),
            order: 0,
            is_plain: inputs.iter().all(|i| i.kind == ValueKind::Number),
            inputs,
            graph,
            outputs,
            is_row,
            gradients: Gradients::default(),
            sums: Sums::default(),
            partials: Memo::default(),
            unrolled: OnceLock::new(),
            programs: Programs::default(),
        };
        Formula { inner: FormulaOwner::Counted(Arc::new(inner)) }
    }

    /// Leaks the formula, so that its handles and the handles of its gradients need no reference count. This is for
    /// formulas in a `static`.
    #[must_use]
    pub fn leak(self) -> Formula {
        match self.inner {
            // Other handles of the formula stay reference counted.
            FormulaOwner::Counted(_) => Formula { inner: FormulaOwner::Leaked(Box::leak(Box::new(self.into_inner()))) },
            FormulaOwner::Leaked(_) => self,
        }
    }

    fn is_leaked(&self) -> bool {
        matches!(self.inner, FormulaOwner::Leaked(_))
    }

    /// Returns the formula with these names of its inputs and parameters, which only printing uses.
    #[must_use]
    pub fn with_names(self, inputs: &[&str], params: &[&str]) -> Formula {
        let to_strings = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        let (input_names, param_names) = (to_strings(inputs), to_strings(params));
        self.changed(|inner| (inner.input_names, inner.param_names) = (input_names, param_names))
    }

    /// Returns the formula with a declared derivative for one input, which replaces the symbolic derivative. `body`
    /// writes the derivative in terms of inputs, parameters, outputs and incoming gradients.
    ///
    /// # Panics
    /// Panics if the input is not a number, or an expression of the derivative is invalid.
    #[track_caller]
    #[must_use]
    pub fn with_derivative(
        self,
        input: usize,
        body: impl FnOnce(&[Expr], &[Expr], &[Expr], &[Expr]) -> Expr,
    ) -> Formula {
        self.declared(input, &mut Some(body))
    }

    /// Implements [`Formula::with_derivative`] without generics, so that it is compiled only once.
    #[track_caller]
    fn declared(self, input: usize, body: &mut dyn DerivativeBody) -> Formula {
        let inner = &self.inner;
        let name = inner.name;
        assert!(
            inner.inputs[input].kind == ValueKind::Number,
            "formula `{name}`: the derivative line must be for an input that is a number"
        );
        let (n, m) = (inner.inputs.len(), inner.outputs.len());
        let refined = (n + 2 * m < MAX_OPERANDS).then_some(Input::MASK);
        let leaves: Vec<Input> = self.derivative_inputs().into_iter().chain(refined).collect();
        let (builder, root) = Builder::run(leaves.clone(), || {
            let (all, params) = leaf_expressions(leaves.len(), inner.param_names.len());
            let (inputs, rest) = all.split_at(n);
            let (outputs, rest) = rest.split_at(m);
            let (gradients, refined) = rest.split_at(m);
            let named = [inputs.to_vec(), params.clone(), outputs.to_vec(), gradients.to_vec(), refined.to_vec()];
            Builder::with(|b| b.named = named);
            let derivative = body.write(inputs, &params, outputs, gradients);
            let root = Builder::with(|b| b.id(derivative));
            root.unwrap_or_else(|reason| panic!("formula `{name}`: {reason}"))
        });
        let (graph, roots) = builder.graph.extract(&[root], &|_| None);
        assert!(graph.node_info(roots[0]).kind == ValueKind::Number, "formula `{name}`: a derivative must be a number");
        self.changed(|inner| inner.declared[input] = Some(Declared { graph, root: roots[0] }))
    }

    /// Returns the inputs of a derivative: the inputs, then the outputs, then their incoming gradients.
    fn derivative_inputs(&self) -> Vec<Input> {
        let outputs = self.inner.outputs.iter().map(|o| Input { kind: o.kind, per_row: o.per_row });
        let gradients = self.inner.outputs.iter().map(|o| Input { kind: ValueKind::Number, per_row: o.per_row });
        let all: Vec<Input> = self.inner.inputs.iter().copied().chain(outputs).chain(gradients).collect();
        assert!(
            all.len() <= MAX_OPERANDS,
            "formula `{}`: a formula with a derivative must have at most {MAX_OPERANDS} inputs, outputs and incoming \
             gradients in total; split it into several operations",
            self.name()
        );
        all
    }

    /// Returns the formula after `change`, with empty caches.
    fn changed(self, change: impl FnOnce(&mut FormulaData)) -> Formula {
        let mut inner = self.into_inner();
        change(&mut inner);
        (inner.gradients, inner.sums, inner.partials) = Default::default();
        (inner.unrolled, inner.programs) = Default::default();
        Formula { inner: FormulaOwner::Counted(Arc::new(inner)) }
    }

    /// Returns the data of the handle, or a copy of it with empty caches if it is shared.
    fn into_inner(self) -> FormulaData {
        let copy = |shared: &FormulaData| FormulaData {
            name: shared.name,
            inputs: shared.inputs.clone(),
            input_names: shared.input_names.clone(),
            param_names: shared.param_names.clone(),
            graph: shared.graph.clone(),
            outputs: shared.outputs.clone(),
            declared: shared.declared.clone(),
            is_row: shared.is_row,
            order: shared.order,
            is_plain: shared.is_plain,
            numbers: shared.numbers,
            gradients: Gradients::default(),
            sums: Sums::default(),
            partials: Memo::default(),
            unrolled: OnceLock::new(),
            programs: Programs::default(),
        };
        match self.inner {
            FormulaOwner::Counted(inner) => Arc::try_unwrap(inner).unwrap_or_else(|shared| copy(&shared)),
            FormulaOwner::Leaked(inner) => copy(inner),
        }
    }

    /// Inlines the formula into the formula under construction and returns its outputs. Declared derivatives are not
    /// used: the inlined expressions are differentiated symbolically.
    #[track_caller]
    pub fn call(&self, inputs: &[Expr], params: &[Expr]) -> Vec<Expr> {
        let inner = &self.inner;
        self.check_counts(inputs.len(), params.len());
        let result = Builder::with(|b| {
            let ids =
                |b: &Builder, list: &[Expr]| list.iter().map(|&e| b.id(e)).collect::<Result<Vec<NodeId>, String>>();
            let (inputs, params) = (ids(b, inputs)?, ids(b, params)?);
            let place = b.import_graph(&inner.graph, &inputs, &params)?;
            Ok(inner.outputs.iter().map(|o| b.expr(place[o.node.index()])).collect())
        });
        result.unwrap_or_else(|reason: String| panic!("formula `{}`: {reason}", inner.name))
    }

    /// Panics unless there is one value for each input and for each parameter.
    #[track_caller]
    fn check_counts(&self, inputs: usize, params: usize) {
        let counts =
            [("inputs", inputs, self.inner.inputs.len()), ("parameters", params, self.inner.param_names.len())];
        for (what, given, needed) in counts {
            assert!(given == needed, "formula `{}`: expected {needed} {what}, got {given}", self.inner.name);
        }
    }

    /// Returns the name, for messages and profiles.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// Returns the inputs.
    #[inline]
    pub fn inputs(&self) -> &[Input] {
        &self.inner.inputs
    }

    /// Returns the number of run-time parameters.
    #[inline]
    pub fn params(&self) -> usize {
        self.inner.param_names.len()
    }

    /// Returns the outputs.
    #[inline]
    pub fn outputs(&self) -> &[Output] {
        &self.inner.outputs
    }

    /// Returns the graph of primitives, operands first.
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    /// Returns true if the formula contains row reductions, per-row values, positions within a row or the length of a
    /// row. It then runs as a row kernel.
    #[inline]
    pub fn is_row(&self) -> bool {
        self.inner.is_row
    }

    /// Returns true if every input is a number, and none an index or a mask.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.inner.is_plain
    }

    /// Returns the order of the derivative: 0 for a formula as written, one more for its gradient.
    #[inline]
    pub fn order(&self) -> usize {
        self.inner.order
    }

    /// The maximum total number of inputs, outputs and incoming gradients of a formula that can be differentiated.
    pub const MAX_DIFFERENTIABLE: usize = MAX_OPERANDS;

    /// Returns true if `other` is a handle of the same formula. Formulas that were built separately are different, even
    /// if their graphs are equal.
    pub fn same(&self, other: &Formula) -> bool {
        std::ptr::eq(&*self.inner, &*other.inner)
    }
}

/// A formula in a `static`. It is built on first use.
pub struct LazyFormula {
    formula: OnceLock<Formula>,
    build: fn() -> Formula,
}

impl LazyFormula {
    /// Creates the formula that `build` returns. `build` is a function pointer, which cannot capture variables: their
    /// values at the first use would become constants.
    pub const fn new(build: fn() -> Formula) -> LazyFormula {
        LazyFormula { formula: OnceLock::new(), build }
    }

    /// Returns the formula.
    #[inline]
    pub fn get(&'static self) -> &'static Formula {
        match self.formula.get() {
            Some(formula) => formula,
            None => self.built(),
        }
    }

    #[cold]
    fn built(&'static self) -> &'static Formula {
        self.formula.get_or_init(|| (self.build)().leak())
    }
}

fn number_output_mask(outputs: &[Output]) -> u64 {
    let numbers = outputs.iter().take(64).enumerate().filter(|(_, o)| o.kind == ValueKind::Number);
    numbers.fold(0, |all, (j, _)| all | 1 << j)
}

/// Creates expressions for the inputs and parameters of the formula under construction.
fn leaf_expressions(inputs: usize, params: usize) -> (Vec<Expr>, Vec<Expr>) {
    use graph::FormulaNode;
    let leaf = |node| Builder::emit(&mut |b| b.node(node));
    let inputs = (0..inputs).map(|i| leaf(FormulaNode::Input(i as u8))).collect();
    (inputs, (0..params).map(|k| leaf(FormulaNode::Param(k as u8))).collect())
}

// The five tables of `Builder::named` are indexed by role.
const _: () = assert!(NameRole::Refined as usize == 4);
