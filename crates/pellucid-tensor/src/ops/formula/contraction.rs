//! Recorded gradients of formulas: sums of products of cotangents with partial derivatives.
//!
//! For an incoming gradient g, the gradient of an elementwise function y(x) is Σⱼ gⱼ·∂yⱼ/∂xᵢ. A recorded gradient keeps
//! this form: it is a node whose inputs are its cotangents and the *variables*, the tensors to which the formula was
//! applied. The gradient of this node has the same form. Differentiation with respect to a cotangent keeps the partial
//! derivative. Differentiation with respect to a variable raises the order of the partial derivative by one, and adds
//! the incoming gradient m as a factor:
//!
//! ```text
//! z = c·∂ᵅy     ∂z/∂c: m·∂ᵅy     ∂z/∂xᵢ: m·c·∂ᵅ⁺ⁱy
//! ```
//!
//! Before the next differentiation, the factors of each term are multiplied, so a term has at most two factors, and the
//! number of inputs of a formula does not grow with the order. Derivatives are functions of the *point*: the inputs and
//! outputs that the forward pass saved. [`Partials`] differentiates an output with respect to the variables, without
//! visiting the output's node.

use super::{FormulaCall, map};
use crate::array::Array;
use crate::autograd::{
    Arrays, InputGradients, NeedsInputGrad, OutputGradients, SavedTensors, record_outputs, untracked,
};
use crate::grad_mode::is_grad_enabled;
use crate::ops::formula::broadcast;
use crate::ops::primitive::copy;
use crate::tensor::{Derivative, Edge, SavedValue, Tensor};
use pellucid_ir::formula::{GradientInput, Partial, Partials, Term};
use pellucid_ir::kernel::{AxisSet, Meta, Params};
use pellucid_ir::{Error, Result, Shape, formula};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The maximum number of cotangents of one node. Their number may grow with the number of derivatives: there are (n + k
/// − 1 choose k) derivatives of order k in n variables.
const MAX_COTANGENTS: usize = 32;

/// The node of a recorded contraction. Cotangents broadcast to the shape of the formula. The edges of the node are the
/// edges of the cotangents, followed by the edges of the variables. The node saves the cotangents, and the values of
/// `partials.reads()` as constants.
struct ContractionDerivative {
    partials: Arc<Partials>,
    params: Params,
    /// The broadcast shape of the inputs of the formula.
    shape: Shape,
    cotangents: usize,
    /// Every term has one factor, or two that are different cotangents.
    terms: Vec<Term>,
}

/// The point at which the derivatives of a formula are evaluated.
pub(super) struct EvaluationPoint<'a> {
    pub(super) partials: &'a Arc<Partials>,
    pub(super) params: &'a Params,
    pub(super) shape: &'a Shape,
    /// The values of `partials.reads()`.
    pub(super) values: SmallVec<[&'a Array; 4]>,
    /// The graph edges of the variables.
    pub(super) variables: SmallVec<[Edge; 2]>,
}

/// A product of cotangents, by their indices, and a partial derivative.
type TermProduct = (SmallVec<[u16; 3]>, Partial);

/// A gradient to compute: the index of the input, its shape and dtype, and the products to sum.
#[derive(Clone)]
struct GradientTarget<'a> {
    input: usize,
    meta: &'a Meta,
    products: Vec<TermProduct>,
}

/// Sums and converts a gradient to the shape and dtype of its input.
#[inline]
pub(super) fn reduce_gradient_to(gradient: Tensor, target: &Meta) -> Result<Tensor> {
    if gradient.dtype() == target.dtype && *gradient.shape() == target.shape {
        return Ok(gradient);
    }
    copy::to_dtype(&broadcast::sum_to(&gradient, &target.shape)?, target.dtype)
}

impl EvaluationPoint<'_> {
    /// Computes the gradients of all targets; `factor(f)` is cotangent f. One kernel computes the gradients of full
    /// shape, as the outputs of one node; the gradients of broadcast inputs are summed to the shapes of the inputs. An
    /// [`Error::InvalidArgument`] means that a formula would have too many inputs or registers.
    fn contract(
        &self,
        targets: Vec<GradientTarget>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let mut full = Vec::new();
        for target in targets {
            let passed_cotangent = match &target.products[..] {
                [] => continue,
                [(factors, partial)] if factors.len() == 1 && self.partials.constant(partial)? == Some(1.0) => {
                    Some(factors[0])
                }
                _ => None,
            };
            if let Some(f) = passed_cotangent {
                let gradient = broadcast::broadcast_to(&factor(f)?, self.shape)?;
                add(&mut gradients[target.input], reduce_gradient_to(gradient, target.meta)?)?;
            } else if target.meta.shape != *self.shape {
                let sum = broadcast::broadcast_axes(&target.meta.shape, self.shape);
                self.record_node(&[target], Some(sum), factor, gradients)?;
            } else {
                full.push(target);
            }
        }
        if full.is_empty() { Ok(()) } else { self.record_node(&full, None, factor, gradients) }
    }

    /// Computes the targets by one kernel, and records them as the outputs of one node.
    fn record_node(
        &self,
        targets: &[GradientTarget],
        sum: Option<AxisSet>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let products = || targets.iter().enumerate().flat_map(|(k, t)| t.products.iter().map(move |p| (k, p)));
        let mut used: SmallVec<[u16; 3]> = products().flat_map(|(_, (factors, _))| factors.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        if used.len() > MAX_COTANGENTS {
            return Err(Error::invalid(self.partials.name(), "too many cotangents for one formula"));
        }
        let cotangent_index =
            |f: &u16| used.binary_search(f).expect("`used` must contain every cotangent of the products") as u8;
        let term = |(k, (factors, partial)): (usize, &TermProduct)| Term {
            output: k as u8,
            factors: factors.iter().map(cotangent_index).collect(),
            partial: partial.clone(),
        };
        let terms: Vec<Term> = products().map(term).collect();
        let contraction = self.partials.contraction(&terms, used.len())?;
        let cotangents: SmallVec<[Tensor; 4]> = used.iter().map(|&f| factor(f)).collect::<Result<_>>()?;
        let value = |read: &GradientInput| {
            let known = self.partials.reads().binary_search(read);
            self.values[known
                .expect("a derivative of higher order must not read a tensor that the first derivative does not read")]
        };
        let mut arrays: SmallVec<[&Array; 4]> = contraction.reads.iter().map(value).collect();
        arrays.extend(cotangents.iter().map(|c| c.array()));
        let formula = &contraction.formula;
        let outputs = FormulaCall {
            formula,
            params: self.params,
            shape: self.shape,
            rows: AxisSet::default(),
            sum,
            compute_dtype: None,
        }
        .run_gradient(&arrays, None)?;
        let outputs = self.record(outputs, &cotangents.iter().collect::<SmallVec<[&Tensor; 4]>>(), terms);
        for (target, output) in targets.iter().zip(outputs) {
            add(&mut gradients[target.input], reduce_gradient_to(output, target.meta)?)?;
        }
        Ok(())
    }

    /// Attaches the autograd history to the outputs of a contraction.
    pub(super) fn record(&self, outputs: Arrays, cotangents: &[&Tensor], terms: Vec<Term>) -> SmallVec<[Tensor; 1]> {
        if !is_grad_enabled() {
            return untracked(outputs);
        }
        let depends = |v: usize| {
            // If a derivative does not exist, the error is deferred until a backward pass needs the derivative.
            terms.iter().any(|t| !matches!(self.partials.constant(&t.partial.with_variable(v)), Ok(Some(0.0))))
        };
        let mut edges: SmallVec<[Edge; 2]> = cotangents.iter().map(|c| c.edge()).collect();
        let mut varies = false;
        for (v, edge) in self.variables.iter().enumerate() {
            let depends = edge.is_tracked() && depends(v);
            varies |= depends;
            edges.push(if depends { edge.clone() } else { Edge::None });
        }
        if !edges.iter().any(Edge::is_tracked) {
            return untracked(outputs);
        }
        let mut saved: Vec<SavedValue> = self.values.iter().map(|v| SavedValue::constant((*v).clone())).collect();
        // Cotangents that no derivative reads are not saved.
        if varies || terms.iter().any(|t| t.factors.len() > 1) {
            saved.extend(cotangents.iter().enumerate().map(|(c, t)| SavedValue::input(t.array(), c)));
        }
        let derivative = ContractionDerivative {
            partials: self.partials.clone(),
            params: self.params.clone(),
            shape: self.shape.clone(),
            cotangents: cotangents.len(),
            terms,
        };
        record_outputs(edges, outputs, saved, derivative)
    }
}

impl ContractionDerivative {
    fn point<'a>(&'a self, saved: &'a SavedTensors) -> Result<EvaluationPoint<'a>> {
        let values = (0..self.partials.reads().len()).map(|k| saved.constant(k)).collect::<Result<_>>()?;
        let variables = (self.cotangents..saved.inputs()).map(|i| saved.edge(i).clone()).collect();
        Ok(EvaluationPoint { partials: &self.partials, params: &self.params, shape: &self.shape, values, variables })
    }

    /// Returns the products to sum for each needed gradient. Factor indices count the cotangents first, then the
    /// incoming gradients.
    fn targets<'a>(
        &self,
        saved: &'a SavedTensors,
        has_gradient: &[bool],
        needs: NeedsInputGrad,
    ) -> Result<Vec<GradientTarget<'a>>> {
        let mut targets = Vec::new();
        for input in (0..saved.inputs()).filter(|&i| saved.needs_gradient(needs, i)) {
            let mut products = Vec::new();
            for term in self.terms.iter().filter(|t| has_gradient[t.output as usize]) {
                let factors = term.factors.iter().map(|&f| u16::from(f));
                let m = self.cotangents as u16 + u16::from(term.output);
                if input < self.cotangents {
                    if factors.clone().any(|f| f as usize == input) {
                        let other_factors = factors.filter(|&f| f as usize != input);
                        products.push(([m].into_iter().chain(other_factors).collect(), term.partial.clone()));
                    }
                    continue;
                }
                let partial = term.partial.with_variable(input - self.cotangents);
                if self.partials.constant(&partial)? != Some(0.0) {
                    products.push(([m].into_iter().chain(factors).collect(), partial));
                }
            }
            targets.push(GradientTarget { input, meta: saved.meta(input), products });
        }
        Ok(targets)
    }

    /// Multiplies the factors of each product first, and adds products with the same derivative, so that every term has
    /// one factor. Then computes the gradients. A formula that is too large is split.
    fn multiplied(
        &self,
        point: &EvaluationPoint,
        targets: Vec<GradientTarget>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let mut cached_products: Vec<(SmallVec<[u16; 3]>, Tensor)> = Vec::new();
        let mut product = |factors: &SmallVec<[u16; 3]>| -> Result<Tensor> {
            if let Some((_, product)) = cached_products.iter().find(|(f, _)| f == factors) {
                return Ok(product.clone());
            }
            let mut product = factor(factors[0])?;
            for &f in &factors[1..] {
                product = map(formula! { static mul(a, b) = a * b; }, &[&product, &factor(f)?], &[])?;
            }
            cached_products.push((factors.clone(), product.clone()));
            Ok(product)
        };
        // A coefficient is a sum of products of factors. It is computed once for all targets that contain it.
        let mut coefficients: Vec<(Vec<SmallVec<[u16; 3]>>, Tensor)> = Vec::new();
        let mut single = Vec::new();
        for target in &targets {
            let mut groups: Vec<(&Partial, Vec<SmallVec<[u16; 3]>>)> = Vec::new();
            for (factors, partial) in &target.products {
                match groups.iter_mut().find(|(p, _)| *p == partial) {
                    Some((_, sum)) => sum.push(factors.clone()),
                    None => groups.push((partial, vec![factors.clone()])),
                }
            }
            let mut products = Vec::new();
            for (partial, sum) in groups {
                let index = match coefficients.iter().position(|(s, _)| *s == sum) {
                    Some(index) => index,
                    None => {
                        let mut total = None;
                        for factors in &sum {
                            add(&mut total, product(factors)?)?;
                        }
                        coefficients.push((sum, total.expect("every group must have at least one product")));
                        coefficients.len() - 1
                    }
                };
                products.push((smallvec![index as u16], partial.clone()));
            }
            single.push(GradientTarget { input: target.input, meta: target.meta, products });
        }
        let coefficient = |c: u16| Ok(coefficients[c as usize].1.clone());
        let mut pieces = vec![single];
        while let Some(piece) = pieces.pop() {
            let mut computed: InputGradients = SmallVec::from_elem(None, gradients.len());
            match (point.contract(piece.clone(), &coefficient, &mut computed), split_targets(&piece)) {
                (Err(Error::InvalidArgument { .. }), Some((left, right))) => {
                    // Some targets may have been computed before the error: the halves compute them again.
                    pieces.extend([right, left]);
                    continue;
                }
                (result, _) => result?,
            }
            for (input, gradient) in computed.into_iter().enumerate() {
                gradient.map_or(Ok(()), |g| add(&mut gradients[input], g))?;
            }
        }
        Ok(())
    }
}

/// Splits the targets, or the products of a single target, into two halves.
fn split_targets<'a>(piece: &[GradientTarget<'a>]) -> Option<(Vec<GradientTarget<'a>>, Vec<GradientTarget<'a>>)> {
    match piece {
        [single] if single.products.len() > 1 => {
            let (left, right) = single.products.split_at(single.products.len() / 2);
            let with =
                |products: &[TermProduct]| vec![GradientTarget { products: products.to_vec(), ..single.clone() }];
            Some((with(left), with(right)))
        }
        [] | [_] => None,
        several => {
            let (left, right) = several.split_at(several.len() / 2);
            Some((left.to_vec(), right.to_vec()))
        }
    }
}

impl Derivative for ContractionDerivative {
    fn name(&self) -> &'static str {
        self.partials.name()
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        // The gradient of a sum keeps the shape of the sum. If it were broadcast to the shape of the summands, the next
        // gradient would have that shape too.
        let incoming: SmallVec<[Option<Tensor>; 2]> = (0..grads.len()).map(|o| grads.try_get(o).cloned()).collect();
        let has_gradient: SmallVec<[bool; 2]> = incoming.iter().map(Option::is_some).collect();
        let factor = |f: u16| match (f as usize).checked_sub(self.cotangents) {
            None => saved.input(f as usize),
            Some(o) => Ok(incoming[o].clone().expect("every factor must be a cotangent or an incoming gradient")),
        };
        let point = self.point(saved)?;
        let mut gradients: InputGradients = SmallVec::from_elem(None, saved.inputs());
        if !is_grad_enabled() || self.terms.iter().all(|t| t.factors.len() == 1) {
            match point.contract(self.targets(saved, &has_gradient, needs)?, &factor, &mut gradients) {
                Err(Error::InvalidArgument { .. }) => gradients.fill(None),
                other => return other.map(|()| gradients),
            }
        }
        let targets = self.targets(saved, &has_gradient, needs)?;
        self.multiplied(&point, targets, &factor, &mut gradients)?;
        Ok(gradients)
    }
}

fn add(sum: &mut Option<Tensor>, term: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        Some(sum) => map(formula! { static add(a, b) = a + b; }, &[&sum, &term], &[])?,
        None => term,
    });
    Ok(())
}
