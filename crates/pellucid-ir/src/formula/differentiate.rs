//! The derivative of every primitive, and the reverse sweep of the chain rule.
//!
//! Reverse mode: every node v has an *adjoint*, the derivative of Σⱼ gⱼ·yⱼ with respect to v, where gⱼ is the incoming
//! gradient of output yⱼ. The nodes are visited from the last to the first; each adds to the adjoints of its operands
//! by its rule. The adjoint of a requested input is its gradient. The rules build expressions, so the gradient is also
//! a formula.
//!
//! A per-row value that is combined with per-element values is broadcast along the row; its adjoint is the sum of the
//! contributions along the row. Apart from this and the rules of the row reductions, rows need no rule.

use super::builder::Builder;
use super::expr::Expr;
use super::gradient::{Gradient, GradientRequest};
use super::graph::{FormulaNode, MAX_OPERANDS, NodeId, ValueKind};
use super::primitive::{Binary, RowOp, Unary};
use super::remainders::{SERIES_BEGIN, log_ratio_minus, remainder};
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
        // y + 1 would cancel for x < 0.
        Expm1 => g * x.exp(),
        Ln => g / x,
        Log2 => g / (LN_2 * x),
        Log10 => g / (LN_10 * x),
        Ln1p => g / (1 + x),
        Sin => g * x.cos(),
        Cos => -(g * x.sin()),
        Tan => g * (1 + y * y),
        SinPi => PI * (g * x.cos_pi()),
        CosPi => -PI * (g * x.sin_pi()),
        Asin => g / ((1 - x) * (1 + x)).sqrt(),
        Acos => -(g / ((1 - x) * (1 + x)).sqrt()),
        Atan => g / (1 + x * x),
        Sinh => g * x.cosh(),
        Cosh => g * x.sinh(),
        Tanh if is_refined() => {
            // 1 − y² cancels where y is near ±1.
            let u = 2 * x;
            4 * (g * (u.sigmoid() * (-u).sigmoid()))
        }
        Tanh => g * (1 - y * y),
        // For large |x|, √(x² + 1) is |x| in `f64`, and x² could overflow.
        Asinh => g / x.abs().gt(NEGLIGIBLE_ONE).select(x.abs(), (1 + x * x).sqrt()),
        // The product of the roots could overflow, and its derivatives at 1 would be ∞ − ∞.
        Acosh => g / (x - 1).sqrt() / (x + 1).sqrt(),
        Atanh => g / ((1 - x) * (1 + x)),
        Sigmoid if is_refined() => g * (y * (-x).sigmoid()),
        Sigmoid => g * y * (1 - y),
        Erf => FRAC_2_SQRT_PI * (g * (-(x * x)).exp()),
        Erfc => -FRAC_2_SQRT_PI * (g * (-(x * x)).exp()),
        Erfcx if is_refined() => g * refined_erfcx_slope(x, y),
        Erfcx => g * erfcx_slope(x, y),
        Erfinv => FRAC_2_SQRT_PI.recip() * (g * (y * y).exp()),
        Ndtr => (2.0 * PI).sqrt().recip() * (g * (-0.5 * x * x).exp()),
        Ndtri => (2.0 * PI).sqrt() * (g * (0.5 * y * y).exp()),
        Lgamma => g * x.digamma(),
        Digamma => g * x.polygamma(1),
        Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsFinite => return None,
    })
}

/// The bound of |x| above which 1 is negligible compared with x²: √(x² + 1) is |x| in `f64`.
const NEGLIGIBLE_ONE: f64 = 1073741824.0;

/// Returns 2x·y − 2/√π, the derivative of y = erfcx(x). For large x, where the two terms cancel, the asymptotic series
/// is used.
fn erfcx_slope(x: Expr, y: Expr) -> Expr {
    let is_large = x.gt(8.0);
    let large = is_large.select(x, 8.0);
    let u = 0.5 / (large * large);
    // The sum of −(−u)ᵏ·1·3·..·(2k − 1); the first omitted term is below the rounding error of `f64`.
    let factor = |k: u32| (1..=k).map(|i| f64::from(2 * i - 1)).product::<f64>();
    let series = u * (1..14).rev().fold(factor(14) - u * factor(15), |series, k| factor(k) - u * series);
    is_large.select(-FRAC_2_SQRT_PI * series, 2 * x * y - FRAC_2_SQRT_PI)
}

/// Returns 2x·y − 2/√π, the derivative of y = erfcx(x), for x > 2 by Laplace's continued fraction √π·y = 1/f₁ with fₖ =
/// x + k/2/fₖ₊₁.
///
/// In this range the result is −2/√π / (1 + 2x·f₂), whose terms are positive: none of its derivatives cancels.
fn refined_erfcx_slope(x: Expr, y: Expr) -> Expr {
    const LEVELS: u32 = 42;
    let is_large = x.gt(2.0);
    let large = is_large.select(x, 2.0);
    // The omitted part f satisfies f ≈ x + LEVELS/2/f.
    let tail = 0.5 * (large + (large * large + f64::from(2 * LEVELS)).sqrt());
    let fraction = (2..LEVELS).rev().fold(tail, |f, k| large + 0.5 * f64::from(k) / f);
    is_large.select(-FRAC_2_SQRT_PI / (1 + 2 * large * fraction), 2 * x * y - FRAC_2_SQRT_PI)
}

/// Returns true while a derivative is built that is differentiated again.
fn is_refined() -> bool {
    Builder::with(|b| b.refined)
}

/// Returns u and the derivative with respect to u of a product of the form (c − u)·(c + u) or s(u)·s(−u), where c is
/// constant and s is the sigmoid; `None` for other nodes. The product rule would cancel near u = 0.
///
/// The derivative of (c − u)·(c + u) is −2u. The derivative of s(u)·s(−u) is −s(u)·s(−u)·tanh(u/2).
pub(super) fn symmetric_product(node: FormulaNode, y: Expr) -> Option<(NodeId, Expr)> {
    let FormulaNode::Binary(Binary::Mul, a, b) = node else { return None };
    let (first, second) = Builder::with(|builder| (builder.graph.node(a), builder.graph.node(b)));
    let expr = |id: NodeId| Builder::with(|b| b.expr(id));
    let negated = |id: NodeId| Builder::with(|b| b.node(FormulaNode::Unary(Unary::Neg, id)).ok());
    let conjugates = |difference: FormulaNode, sum: FormulaNode| match (difference, sum) {
        (FormulaNode::Binary(Binary::Sub, c, u), FormulaNode::Binary(Binary::Add, p, q)) => {
            let is_constant = Builder::with(|b| b.constant(c).is_some());
            (is_constant && [[c, u], [u, c]].contains(&[p, q])).then_some(u)
        }
        _ => None,
    };
    if let Some(u) = conjugates(first, second).or_else(|| conjugates(second, first)) {
        return Some((u, -2 * expr(u)));
    }
    match (first, second) {
        (FormulaNode::Unary(Unary::Sigmoid, u), FormulaNode::Unary(Unary::Sigmoid, v)) if negated(u) == Some(v) => {
            Some((u, -(y * (0.5 * expr(u)).tanh())))
        }
        _ => None,
    }
}

/// Returns the adjoints of a and b from the adjoint g of y = op(a, b).
fn binary(op: Binary, [a, b]: [Expr; 2], y: Expr, g: Expr) -> [Option<Expr>; 2] {
    use Binary::*;
    let both = |da: Expr, db: Expr| [Some(da), Some(db)];
    // The selected operand receives the full gradient. If the operands are equal, each receives half.
    let wins = |loses: Expr, ties: Expr| Some(loses.select(0, ties.select(0.5 * g, g)));
    // The same function at the neighbouring orders: the derivative of a Bessel function is a combination of these.
    let (below, above) = (|| Expr::binary(op, a - 1, b), || Expr::binary(op, a + 1, b));
    match op {
        Add => both(g, g),
        Sub => both(g, -g),
        Mul => both(g * b, g * a),
        Div => both(g / b, -(g / b * y)),
        Rem => both(g, -(g * a.floor_div(b))),
        Pow => [pow_base(a, b, g), pow_exponent(a, b, y, g)],
        Atan2 => atan2(a, b, g),
        Max => [wins(a.lt(b), a.eq(b)), wins(a.gt(b), a.eq(b))],
        Min => [wins(a.gt(b), a.eq(b)), wins(a.lt(b), a.eq(b))],
        Copysign => [Some(g * (a.signum() * y.signum())), None],
        Ldexp => [Some(g.ldexp(b)), Some(LN_2 * (g * y))],
        Polygamma => [None, Some(g * b.polygamma(a + 1))],
        Zeta => [None, Some(-(g * a * Expr::binary(Zeta, a + 1, b)))],
        Igamma => [None, Some(g * gamma_density(a, b))],
        Igammac => [None, Some(-(g * gamma_density(a, b)))],
        // The derivative combines the functions of the neighbouring orders and, for a scaled function, the derivative
        // of the scale.
        BesselJ => [None, Some(g * (0.5 * (below() - above())))],
        BesselY => {
            // At 0 both functions are infinite. The function of higher order dominates, so the other one counts as 0.
            let below = b.eq(0).select(0, Expr::binary(op, a - 1, b.eq(0).select(1, b)));
            [None, Some(g * (0.5 * (below - above())))]
        }
        BesselI => [None, Some(g * (0.5 * (below() + above())))],
        BesselIe => [None, Some(g * (0.5 * (below() + above()) - b.signum() * y))],
        BesselK => [None, Some(g * (-0.5 * (below() + above())))],
        // At 0 all three functions are infinite. The function of the highest order dominates, so y counts as 0.
        BesselKe => [None, Some(g * (b.eq(0).select(0, y) - 0.5 * (below() + above())))],
        FloorDiv | And | Or | Xor | Shl | Shr | Lt | Le | Gt | Ge | Eq | Ne => [None, None],
    }
}

/// Returns the adjoints g·b/(a² + b²) and −g·a/(a² + b²); at the origin they and all their derivatives are 0. The
/// squares could overflow or underflow, so they are not computed: if t = small/large is the ratio of the operands,
/// large/(a² + b²) is 1/(large + small·t).
fn atan2(a: Expr, b: Expr, g: Expr) -> [Option<Expr>; 2] {
    let b_is_larger = b.abs().ge(a.abs());
    let (large, small) = (b_is_larger.select(b, a), b_is_larger.select(a, b));
    let large = large.eq(0).select(f64::INFINITY, large);
    let ratio = small / large;
    let larger_adjoint = g / (large + small * ratio);
    let smaller_adjoint = larger_adjoint * ratio;
    [
        Some(b_is_larger.select(larger_adjoint, smaller_adjoint)),
        Some(-b_is_larger.select(smaller_adjoint, larger_adjoint)),
    ]
}

/// Returns the density of the gamma distribution, bᵃ⁻¹·e⁻ᵇ / Γ(a). For b < 1 it is computed with the power bᵃ⁻¹, since
/// ln b has no finite derivatives at b = 0; otherwise as the exponential of its logarithm, which does not overflow. For
/// a ≥ 10 and b ≥ 1, the logarithm is computed from terms that do not cancel.
fn gamma_density(a: Expr, b: Expr) -> Expr {
    let is_small = b.lt(1);
    let is_large = a.ge(SERIES_BEGIN) & b.ge(1);
    let (small, middle) = (is_small.select(b, 1), (is_small | is_large).select(1, b));
    let power = small.pow(a - 1) * (-small - a.lgamma()).exp();
    let direct = ((a - 1) * middle.ln() - middle - a.lgamma()).exp();
    let (n, x) = (is_large.select(a, SERIES_BEGIN), is_large.select(b, SERIES_BEGIN));
    let exponent = n * log_ratio_minus((x - n) / n, x / n) - remainder(n);
    let large = (n / (2.0 * PI)).sqrt() * exponent.exp() / x;
    is_large.select(large, is_small.select(power, direct))
}

/// Returns g·b·aᵇ⁻¹, and 0 for b = 0 if a is 0 or NaN.
fn pow_base(a: Expr, b: Expr, g: Expr) -> Option<Expr> {
    if let Some(n) = constant(b) {
        return Some(g * (n * a.pow(n - 1.0)));
    }
    // If b is differentiable, the constant 0 must not replace b·aᵇ⁻¹ at b = 0 and a ≠ 0, where its derivative with
    // respect to b is 1/a. Where 0 is selected, n is 1, since 0·0⁻² would be NaN in the next derivative.
    let is_regular = if reads_input(b) { b.ne(0) | a.abs().gt(0) } else { b.ne(0) };
    let n = is_regular.select(b, 1);
    Some(is_regular.select(g * (n * a.pow(n - 1)), 0))
}

/// Returns g·aᵇ·ln a, and 0 for a = 0 and b ≥ 0.
fn pow_exponent(a: Expr, b: Expr, y: Expr, g: Expr) -> Option<Expr> {
    match constant(a) {
        Some(a) if a > 0.0 => Some(a.ln() * (g * y)),
        _ => Some(g * (y * (a.eq(0) & b.ge(0)).select(1, a).ln())),
    }
}

/// Returns true if the expression depends on an input, and not only on parameters.
fn reads_input(e: Expr) -> bool {
    Builder::with(|b| {
        let mut stack: Vec<NodeId> = b.id(e).into_iter().collect();
        let mut seen = vec![false; b.graph.len()];
        while let Some(id) = stack.pop() {
            match b.graph.node(id) {
                FormulaNode::Input(_) => return true,
                node if !std::mem::replace(&mut seen[id.index()], true) => stack.extend(node.operands()),
                _ => {}
            }
        }
        false
    })
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
        self.differentiate_as(request, present, false)
    }

    /// Derives the gradient from which derivatives of order 2 and higher are derived; `None` if the ordinary gradient
    /// serves for this too.
    pub(super) fn refined_gradient(&self, request: GradientRequest) -> Option<Gradient> {
        let refined = |(_, node): (NodeId, FormulaNode)| {
            matches!(node, FormulaNode::Unary(Unary::Sigmoid | Unary::Tanh | Unary::Erfcx, _))
        };
        let mask = self.inputs().len() + 2 * self.outputs().len();
        let reads_mask = |(_, node): (NodeId, FormulaNode)| matches!(node, FormulaNode::Input(i) if i as usize == mask);
        let inner = &*self.inner;
        let has_refined_form = inner.graph.iter().any(refined)
            || inner.declared.iter().flatten().any(|declared| declared.graph.iter().any(reads_mask));
        has_refined_form.then(|| self.differentiate_as(request, u64::MAX, true))
    }

    #[track_caller]
    fn differentiate_as(&self, request: GradientRequest, present: u64, refined: bool) -> Gradient {
        let (name, n) = (self.name(), self.inputs().len());
        let exceeds_inputs = (n..=MAX_OPERANDS).any(|i| request.output_of(i).is_some());
        assert!(
            !exceeds_inputs,
            "formula `{name}`: a requested gradient must be with respect to one of its {n} inputs"
        );
        let (builder, (forward, roots)) =
            Builder::run(self.derivative_inputs(), || self.sweep(request, present, refined));
        save::gradient(self, request, &builder, &forward, &roots)
    }

    /// Builds the nodes of the formula and of the requested gradients in the current builder, and returns both lists.
    fn sweep(&self, request: GradientRequest, present: u64, refined: bool) -> (Vec<NodeId>, Vec<NodeId>) {
        let inner = &*self.inner;
        let (n, m) = (inner.inputs.len(), inner.outputs.len());
        let leaf = |node| Builder::emit(&mut |b| b.node(node));
        let inputs: Vec<Expr> = (0..n + m).map(|i| leaf(FormulaNode::Input(i as u8))).collect();
        let params: Vec<Expr> = (0..self.params()).map(|k| leaf(FormulaNode::Param(k as u8))).collect();
        let forward = import_graph(&inner.graph, &inputs[..n], &params);

        Builder::with(|b| (b.derivative, b.refined) = (true, refined));
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

    /// Returns the symbolic adjoint of every input; `None` for an adjoint that is zero.
    fn adjoints(&self, request: GradientRequest, forward: &[Expr], incoming: &[Option<Expr>]) -> Vec<Option<Expr>> {
        let inner = &*self.inner;
        let per_row = |id: NodeId| inner.graph.node_info(id).per_row;
        let reaches_input = self.active(request);
        let mut adjoint: Vec<Option<Expr>> = vec![None; inner.graph.len()];
        // If a per-row value is used by a per-element node, the contributions of all elements are summed over the row.
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

    /// Returns, for each node, whether it is a number that depends on a requested input whose derivative is not
    /// declared.
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
        let refined = Expr::literal(is_refined(), ValueKind::Mask);
        let all: Vec<Expr> = inputs.iter().copied().chain(incoming).chain([refined]).collect();
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
