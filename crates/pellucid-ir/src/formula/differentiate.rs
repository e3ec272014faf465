//! The derivative of every primitive, and the reverse sweep of the chain rule.
//!
//! Reverse mode: every node v has an *adjoint*, the derivative of Σⱼ gⱼ·yⱼ with respect to v, where
//! gⱼ is the incoming gradient of output yⱼ. The nodes are visited from the last to the first; each
//! adds to the adjoints of its operands by its rule. The adjoint of a requested input is its gradient. The rules build
//! expressions, so the gradient is a formula too.
//!
//! A per-row value that is combined with per-element values is broadcast along the row; its adjoint is the sum over the
//! row. No other rule is needed for rows.

use super::builder::Builder;
use super::expr::Expr;
use super::gradient::{Gradient, GradientRequest};
use super::graph::{FormulaNode, MOST, NodeId, ValueKind};
use super::primitive::{Binary, RowOp, Unary};
use super::save;
use super::{Declared, Formula};
use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10, PI};

/// Returns the adjoint of x from the adjoint g of y = op(x); `None` if the derivative of op is zero.
fn unary(op: Unary, x: Expr, y: Expr, g: Expr) -> Option<Expr> {
    use Unary::*;
    Some(match op {
        Neg => -g,
        Abs => g * x.signum(),
        Sqrt => g / (2 * y),
        Recip => -(g * y * y),
        Exp => g * y,
        Exp2 => LN_2 * (g * y),
        Expm1 => g * (y + 1),
        Ln => g / x,
        Log2 => g / (LN_2 * x),
        Log10 => g / (LN_10 * x),
        Ln1p => g / (1 + x),
        Sin => g * x.cos(),
        Cos => -(g * x.sin()),
        Tan => g * (1 + y * y),
        Asin => g / ((1 - x) * (1 + x)).sqrt(),
        Acos => -(g / ((1 - x) * (1 + x)).sqrt()),
        Atan => g / (1 + x * x),
        Sinh => g * x.cosh(),
        Cosh => g * x.sinh(),
        Tanh => g * (1 - y * y),
        Asinh => g / (1 + x * x).sqrt(),
        Acosh => g / ((x - 1) * (x + 1)).sqrt(),
        Atanh => g / ((1 - x) * (1 + x)),
        Sigmoid => g * y * (1 - y),
        Erf => FRAC_2_SQRT_PI * (g * (-(x * x)).exp()),
        Erfc => -FRAC_2_SQRT_PI * (g * (-(x * x)).exp()),
        Erfcx => g * erfcx_slope(x, y),
        Erfinv => FRAC_2_SQRT_PI.recip() * (g * (y * y).exp()),
        Ndtri => (2.0 * PI).sqrt() * (g * (0.5 * y * y).exp()),
        Lgamma => g * x.digamma(),
        Digamma => g * x.polygamma(1),
        Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsFinite => return None,
    })
}

/// Returns 2x·y − 2/√π, for large x by its asymptotic series, since the terms cancel.
fn erfcx_slope(x: Expr, y: Expr) -> Expr {
    let far = x.gt(50.0).select(x, 50.0);
    let u = 0.5 / (far * far);
    let series = u * (1.0 - u * (3.0 - u * (15.0 - u * (105.0 - u * 945.0))));
    x.gt(50.0).select(-FRAC_2_SQRT_PI * series, 2 * x * y - FRAC_2_SQRT_PI)
}

/// Returns the adjoints of a and b from the adjoint g of y = op(a, b).
fn binary(op: Binary, [a, b]: [Expr; 2], y: Expr, g: Expr) -> [Option<Expr>; 2] {
    use Binary::*;
    let both = |da: Expr, db: Expr| [Some(da), Some(db)];
    // The selected operand gets the whole gradient; at ties each gets half.
    let wins = |loses: Expr, ties: Expr| Some(loses.select(0, ties.select(0.5 * g, g)));
    // The same function of the neighbouring orders.
    let (below, above) = (|| Expr::binary(op, a - 1, b), || Expr::binary(op, a + 1, b));
    match op {
        Add => both(g, g),
        Sub => both(g, -g),
        Mul => both(g * b, g * a),
        Div => both(g / b, -(g / b * y)),
        Rem => both(g, -(g * a.floor_div(b))),
        Pow => [pow_base(a, b, g), pow_exponent(a, b, y, g)],
        Atan2 => both(g * b / (a * a + b * b), -(g * a / (a * a + b * b))),
        Max => [wins(a.lt(b), a.eq(b)), wins(a.gt(b), a.eq(b))],
        Min => [wins(a.gt(b), a.eq(b)), wins(a.lt(b), a.eq(b))],
        Copysign => [Some(g * (a.signum() * y.signum())), None],
        Polygamma => [None, Some(g * b.polygamma(a + 1))],
        Zeta => [None, Some(-(g * a * Expr::binary(Zeta, a + 1, b)))],
        // The density of the gamma distribution.
        Igamma | Igammac => {
            let density = ((a - 1) * b.ln() - b - a.lgamma()).exp();
            [None, Some(if op == Igamma { g * density } else { -(g * density) })]
        }
        // The derivative combines the functions of the neighbouring orders; for a scaled function it also contains the
        // derivative of the scale.
        BesselJ | BesselY => [None, Some(g * (0.5 * (below() - above())))],
        BesselI => [None, Some(g * (0.5 * (below() + above())))],
        BesselIe => [None, Some(g * (0.5 * (below() + above()) - b.signum() * y))],
        BesselK => [None, Some(g * (-0.5 * (below() + above())))],
        BesselKe => [None, Some(g * (y - 0.5 * (below() + above())))],
        FloorDiv | And | Or | Xor | Shl | Shr | Lt | Le | Gt | Ge | Eq | Ne => [None, None],
    }
}

/// Returns g·b·aᵇ⁻¹, and 0 for b = 0 even if a = 0.
fn pow_base(a: Expr, b: Expr, g: Expr) -> Option<Expr> {
    match constant(b) {
        Some(n) => Some(g * (n * a.pow(n - 1.0))),
        None => {
            // The unselected operand has a harmless exponent: 0·0⁻² would be NaN in the next derivative.
            let n = b.eq(0).select(1, b);
            Some(b.eq(0).select(0, g * (n * a.pow(n - 1))))
        }
    }
}

/// Returns g·aᵇ·ln a, and 0 for a = 0 and b ≥ 0.
fn pow_exponent(a: Expr, b: Expr, y: Expr, g: Expr) -> Option<Expr> {
    match constant(a) {
        Some(a) if a > 0.0 => Some(a.ln() * (g * y)),
        _ => Some((a.eq(0) & b.ge(0)).select(0, g * (y * a.ln()))),
    }
}

/// Returns the adjoint of u from the adjoint g of its reduction y, for every element of the row.
fn row(op: RowOp, u: Expr, y: Expr, g: Expr) -> Expr {
    match op {
        RowOp::Sum => g,
        RowOp::Max | RowOp::Min => {
            let ties = u.eq(y);
            ties.select(g / ties.to_number().row_sum(), 0)
        }
    }
}

/// Returns the adjoints of the operands of a node, in order.
pub(super) fn operand_adjoints(node: FormulaNode, args: &[Expr], y: Expr, g: Expr) -> [Option<Expr>; 3] {
    match (node, args) {
        (FormulaNode::Unary(op, _), &[x]) => [unary(op, x, y, g), None, None],
        (FormulaNode::Binary(op, ..), &[a, b]) => {
            let [da, db] = binary(op, [a, b], y, g);
            [da, db, None]
        }
        (FormulaNode::Select(..), &[c, ..]) => [None, Some(c.select(g, 0)), Some(c.select(0, g))],
        (FormulaNode::MulAdd(..), &[a, b, _]) => [Some(g * b), Some(g * a), Some(g)],
        (FormulaNode::Round(dtype, _), _) => [Some(g.round_to(dtype)), None, None],
        (FormulaNode::RowReduce(op, _), &[u]) => [Some(row(op, u, y, g)), None, None],
        _ => [None, None, None],
    }
}

fn constant(e: Expr) -> Option<f64> {
    Builder::with(|b| b.id(e).ok().and_then(|id| b.constant(id)))
}

impl Formula {
    /// Derives the gradient with respect to the requested inputs. Incoming gradients that are not in `present` are
    /// zero.
    #[track_caller]
    pub(super) fn differentiate(&self, request: GradientRequest, present: u64) -> Gradient {
        let (name, n) = (self.name(), self.inputs().len());
        let beyond = (n..=MOST).any(|i| request.output_of(i).is_some());
        assert!(!beyond, "formula `{name}`: a requested gradient must be that of one of its {n} inputs");
        let (builder, (forward, roots)) = Builder::run(self.derivative_inputs(), || self.sweep(request, present));
        save::gradient(self, request, &builder, &forward, &roots)
    }

    /// Builds the nodes of the formula and of the requested gradients in the current builder.
    fn sweep(&self, request: GradientRequest, present: u64) -> (Vec<NodeId>, Vec<NodeId>) {
        let inner = &*self.inner;
        let (n, m) = (inner.inputs.len(), inner.outputs.len());
        let leaf = |node| Builder::emit(&mut |b| b.node(node));
        let inputs: Vec<Expr> = (0..n + m).map(|i| leaf(FormulaNode::Input(i as u8))).collect();
        let params: Vec<Expr> = (0..self.params()).map(|k| leaf(FormulaNode::Param(k as u8))).collect();
        let forward = import_graph(&inner.graph, &inputs[..n], &params);

        Builder::with(|b| b.derivative = true);
        let incoming = |j: usize| {
            let exists = inner.outputs[j].kind == ValueKind::Number && (j >= 64 || present >> j & 1 == 1);
            exists.then(|| leaf(FormulaNode::Input((n + m + j) as u8)))
        };
        let incoming: Vec<Option<Expr>> = (0..m).map(incoming).collect();
        let mut gradients = self.adjoints(request, &forward, &incoming);
        for (i, declared) in inner.declared.iter().enumerate() {
            if let (Some(declared), Some(_)) = (declared, request.output_of(i)) {
                gradients[i] = Some(declared.expand(&inputs, &incoming, &params, inner.inputs[i].per_row));
            }
        }

        let mut sums: Vec<Option<Expr>> = vec![None; request.outputs()];
        for (i, gradient) in gradients.into_iter().enumerate() {
            if let Some(k) = request.output_of(i) {
                add(&mut sums[k], gradient);
            }
        }
        let sums: Vec<Expr> = sums.into_iter().map(|s| s.unwrap_or_else(zero)).collect();
        let ids =
            |b: &mut Builder, list: &[Expr]| list.iter().map(|&e| b.id(e)).collect::<Result<Vec<NodeId>, String>>();
        let ids = |list: &[Expr]| {
            Builder::with(|b| ids(b, list)).expect("the expressions must belong to the current builder")
        };
        (ids(&forward), ids(&sums))
    }

    /// Returns the symbolic adjoint of every input; `None` if it is zero.
    fn adjoints(&self, request: GradientRequest, forward: &[Expr], incoming: &[Option<Expr>]) -> Vec<Option<Expr>> {
        let inner = &*self.inner;
        let per_row = |id: NodeId| inner.graph.node_info(id).per_row;
        let reaches_input = self.active(request);
        let mut adjoint: Vec<Option<Expr>> = vec![None; inner.graph.len()];
        // The contribution of a per-element use to a per-row value is summed over the row.
        let give = |adjoint: &mut Vec<Option<Expr>>, to: NodeId, g: Option<Expr>, used_per_row: bool| {
            let g = g.map(|g| if per_row(to) && !used_per_row { g.row_sum() } else { g });
            add(&mut adjoint[to.index()], g);
        };
        for (output, &g) in inner.outputs.iter().zip(incoming) {
            if reaches_input[output.node.index()] {
                give(&mut adjoint, output.node, g, output.per_row);
            }
        }
        let mut gradients = vec![None; inner.inputs.len()];
        for (id, node) in inner.graph.iter().rev().filter(|(id, _)| reaches_input[id.index()]) {
            let Some(g) = adjoint[id.index()] else { continue };
            if let FormulaNode::Input(i) = node {
                gradients[i as usize] = Some(g);
            }
            let used_per_row = per_row(id) && !matches!(node, FormulaNode::RowReduce(..));
            let ids = node.operands();
            let args: Vec<Expr> = ids.iter().map(|a| forward[a.index()]).collect();
            for (&operand, g) in ids.iter().zip(operand_adjoints(node, &args, forward[id.index()], g)) {
                if reaches_input[operand.index()] {
                    give(&mut adjoint, operand, g, used_per_row);
                }
            }
        }
        gradients
    }

    /// Returns true for every number node that depends on a requested input without a declared derivative.
    fn active(&self, request: GradientRequest) -> Vec<bool> {
        let inner = &*self.inner;
        let mut active = vec![false; inner.graph.len()];
        for (id, node) in inner.graph.iter() {
            let reaches = match node {
                FormulaNode::Input(i) => {
                    request.output_of(i as usize).is_some() && inner.declared[i as usize].is_none()
                }
                _ => node.operands().iter().any(|a| active[a.index()]),
            };
            active[id.index()] = reaches && inner.graph.node_info(id).kind == ValueKind::Number;
        }
        active
    }
}

impl Declared {
    /// Builds the declared gradient in the current builder.
    fn expand(&self, inputs: &[Expr], incoming: &[Option<Expr>], params: &[Expr], per_row: bool) -> Expr {
        let incoming = incoming.iter().map(|g| g.unwrap_or_else(zero));
        let all: Vec<Expr> = inputs.iter().copied().chain(incoming).collect();
        let gradient = import_graph(&self.graph, &all, params)[self.root.index()];
        if per_row && !gradient.is_per_row() { gradient.row_sum() } else { gradient }
    }
}

fn zero() -> Expr {
    Expr::literal(0, ValueKind::Number)
}

fn add(sum: &mut Option<Expr>, term: Option<Expr>) {
    *sum = match (*sum, term) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
}

pub(super) fn import_graph(graph: &super::graph::Graph, inputs: &[Expr], params: &[Expr]) -> Vec<Expr> {
    let place = Builder::with(|b| {
        let ids = |b: &Builder, list: &[Expr]| list.iter().map(|&e| b.id(e)).collect::<Result<Vec<NodeId>, String>>();
        let (inputs, params) = (ids(b, inputs)?, ids(b, params)?);
        let place = b.import_graph(graph, &inputs, &params)?;
        Ok::<_, String>(place.into_iter().map(|id| b.expr(id)).collect())
    });
    place.expect("rebuilding a graph that was built once must succeed")
}
