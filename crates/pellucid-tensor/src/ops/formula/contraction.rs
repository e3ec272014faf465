//! Recorded gradients of formulas: sums of products of cotangents with partial derivatives.
//!
//! The gradient of y(x), elementwise, for an incoming gradient g is Σⱼ gⱼ·∂yⱼ/∂xᵢ. A recorded gradient keeps
//! this form: it is a node whose inputs are its cotangents and the *variables*, the tensors that the formula
//! was applied to. Its own gradient has the same form again. With respect to a cotangent the partial derivative
//! stays; with respect to a variable its order grows by one, and an incoming gradient m is one more factor:
//!
//! ```text
//! z = c·∂ᵅy     ∂z/∂c: m·∂ᵅy     ∂z/∂xᵢ: m·c·∂ᵅ⁺ⁱy
//! ```
//!
//! A term has at most two factors: those of the next order are multiplied first. So no formula has an input for
//! every order. Derivatives are functions of the *point*, the inputs and outputs that forward saved; how an
//! output depends on the variables is known to [`Partials`], and its node is not visited for it.

use super::Call;
use crate::array::Array;
use crate::autograd::{
    Arrays, Derivative, Edge, Gradients, InputGradients, Needed, Saved, SavedValue, is_grad_enabled, record_outputs,
    untracked,
};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::formula::{Partial, Partials, Read, Term};
use pellucid_ir::kernel::{AxisSet, Meta, Params};
use pellucid_ir::{Error, Result, Shape};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The most cotangents of one node. The number of derivatives of order k in n variables is (n + k − 1 over k).
const MOST_COTANGENTS: usize = 32;

/// What a recorded contraction keeps. Its edges are those of the cotangents, then of the variables; it saves the
/// cotangents, and the values of `partials.reads()` as constants.
struct ContractionDerivative {
    partials: Arc<Partials>,
    params: Params,
    /// The common shape of the inputs of the formula.
    shape: Shape,
    /// The results were summed over these axes.
    sum: Option<AxisSet>,
    cotangents: usize,
    /// Every term has one factor or two, which are different cotangents.
    terms: Vec<Term>,
}

/// Where the derivatives of a formula are evaluated.
pub(super) struct Point<'a> {
    pub(super) partials: &'a Arc<Partials>,
    pub(super) params: &'a Params,
    pub(super) shape: &'a Shape,
    /// The values of `partials.reads()`.
    pub(super) values: SmallVec<[&'a Array; 4]>,
    /// The edges of the variables.
    pub(super) variables: SmallVec<[Edge; 2]>,
}

/// Cotangents (their numbers) times a partial derivative.
type Product = (SmallVec<[u16; 3]>, Partial);

/// A gradient that is asked for: the number of the input, its shape and dtype, and the products of which it is the sum.
#[derive(Clone)]
struct Target<'a> {
    input: usize,
    meta: &'a Meta,
    products: Vec<Product>,
}

/// A gradient with the shape and dtype of its input.
#[inline]
pub(super) fn fitted(gradient: Tensor, target: &Meta) -> Result<Tensor> {
    if gradient.dtype() == target.dtype && *gradient.shape() == target.shape {
        return Ok(gradient);
    }
    ops::to_dtype(&ops::sum_to(&gradient, &target.shape)?, target.dtype)
}

impl Point<'_> {
    /// The gradients of all targets; `factor(f)` is cotangent f. Those of full shape are computed by one kernel,
    /// and are the outputs of one node; the others are summed to their shapes. An error of
    /// [`Error::InvalidArgument`] says that a formula has too many inputs or registers.
    fn contract(
        &self,
        targets: Vec<Target>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let mut full = Vec::new();
        for target in targets {
            let passes = match &target.products[..] {
                [] => continue,
                [(factors, partial)] if factors.len() == 1 && self.partials.constant(partial)? == Some(1.0) => {
                    Some(factors[0])
                }
                _ => None,
            };
            if let Some(f) = passes {
                add(&mut gradients[target.input], fitted(factor(f)?, target.meta)?)?;
            } else if target.meta.shape != *self.shape {
                let sum = ops::stretched(&target.meta.shape, self.shape);
                self.node(&[target], Some(sum), factor, gradients)?;
            } else {
                full.push(target);
            }
        }
        if full.is_empty() { Ok(()) } else { self.node(&full, None, factor, gradients) }
    }

    /// One kernel and one node.
    fn node(
        &self,
        targets: &[Target],
        sum: Option<AxisSet>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let products = || targets.iter().enumerate().flat_map(|(k, t)| t.products.iter().map(move |p| (k, p)));
        let mut used: SmallVec<[u16; 4]> = products().flat_map(|(_, (factors, _))| factors.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        if used.len() > MOST_COTANGENTS {
            return Err(Error::invalid(self.partials.name(), "too many cotangents for one formula"));
        }
        let number = |f: &u16| used.binary_search(f).expect("it is used") as u8;
        let term = |(k, (factors, partial)): (usize, &Product)| Term {
            output: k as u8,
            factors: factors.iter().map(number).collect(),
            partial: partial.clone(),
        };
        let terms: Vec<Term> = products().map(term).collect();
        let contraction = self.partials.contraction(&terms, used.len())?;
        let cotangents: SmallVec<[Tensor; 2]> = used.iter().map(|&f| factor(f)).collect::<Result<_>>()?;
        let value = |read: &Read| {
            let known = self.partials.reads().binary_search(read);
            self.values[known.expect("higher orders read what the first one reads")]
        };
        let mut arrays: SmallVec<[&Array; 4]> = contraction.reads.iter().map(value).collect();
        arrays.extend(cotangents.iter().map(|c| c.array()));
        let formula = &contraction.formula;
        let outputs =
            Call { formula, params: self.params, shape: self.shape, rows: AxisSet::default(), sum, number: None }
                .run(&arrays, None)?;
        let outputs = self.record(outputs, &cotangents.iter().collect::<SmallVec<[&Tensor; 2]>>(), terms, sum);
        for (target, output) in targets.iter().zip(outputs) {
            add(&mut gradients[target.input], fitted(output, target.meta)?)?;
        }
        Ok(())
    }

    /// Gives the values of a contraction their history.
    pub(super) fn record(
        &self,
        outputs: Arrays,
        cotangents: &[&Tensor],
        terms: Vec<Term>,
        sum: Option<AxisSet>,
    ) -> SmallVec<[Tensor; 1]> {
        if !is_grad_enabled() {
            return untracked(outputs);
        }
        let depends = |v: usize| {
            // Where the derivative cannot be derived, the error comes when it is asked for.
            terms.iter().any(|t| !matches!(self.partials.constant(&t.partial.then(v)), Ok(Some(0.0))))
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
        // What no derivative reads is not kept.
        if varies || terms.iter().any(|t| t.factors.len() > 1) {
            saved.extend(cotangents.iter().enumerate().map(|(c, t)| SavedValue::input(t.array(), c)));
        }
        let derivative = ContractionDerivative {
            partials: self.partials.clone(),
            params: self.params.clone(),
            shape: self.shape.clone(),
            sum,
            cotangents: cotangents.len(),
            terms,
        };
        record_outputs(edges, outputs, saved, derivative)
    }
}

impl ContractionDerivative {
    fn point<'a>(&'a self, saved: &'a Saved) -> Result<Point<'a>> {
        let values = (0..self.partials.reads().len()).map(|k| saved.constant(k)).collect::<Result<_>>()?;
        let variables = (self.cotangents..saved.inputs()).map(|i| saved.edge(i).clone()).collect();
        Ok(Point { partials: &self.partials, params: &self.params, shape: &self.shape, values, variables })
    }

    /// What every needed gradient is the sum of. Factors are numbered: the cotangents, then the incoming gradients.
    fn targets<'a>(&self, saved: &'a Saved, arrived: &[bool], needed: Needed) -> Result<Vec<Target<'a>>> {
        let mut targets = Vec::new();
        for input in (0..saved.inputs()).filter(|&i| saved.wants(needed, i)) {
            let mut products = Vec::new();
            for term in self.terms.iter().filter(|t| arrived[t.output as usize]) {
                let own = term.factors.iter().map(|&f| u16::from(f));
                let m = self.cotangents as u16 + u16::from(term.output);
                if input < self.cotangents {
                    if own.clone().any(|f| f as usize == input) {
                        let others = own.filter(|&f| f as usize != input);
                        products.push(([m].into_iter().chain(others).collect(), term.partial.clone()));
                    }
                    continue;
                }
                let partial = term.partial.then(input - self.cotangents);
                if self.partials.constant(&partial)? != Some(0.0) {
                    products.push(([m].into_iter().chain(own).collect(), partial));
                }
            }
            targets.push(Target { input, meta: saved.meta(input), products });
        }
        Ok(targets)
    }

    /// The products of the factors first, those that multiply the same derivative added: every term has one factor.
    /// Where a formula is too large, it is split.
    fn multiplied(
        &self,
        point: &Point,
        targets: Vec<Target>,
        factor: &dyn Fn(u16) -> Result<Tensor>,
        gradients: &mut InputGradients,
    ) -> Result<()> {
        let mut known: Vec<(SmallVec<[u16; 3]>, Tensor)> = Vec::new();
        let mut product = |factors: &SmallVec<[u16; 3]>| -> Result<Tensor> {
            if let Some((_, product)) = known.iter().find(|(f, _)| f == factors) {
                return Ok(product.clone());
            }
            let mut product = factor(factors[0])?;
            for &f in &factors[1..] {
                product = ops::mul(&product, &factor(f)?)?;
            }
            known.push((factors.clone(), product.clone()));
            Ok(product)
        };
        // A coefficient is a sum of products; targets share those that are the same sums.
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
                let at = match coefficients.iter().position(|(s, _)| *s == sum) {
                    Some(at) => at,
                    None => {
                        let mut total = None;
                        for factors in &sum {
                            add(&mut total, product(factors)?)?;
                        }
                        coefficients.push((sum, total.expect("a group has a product")));
                        coefficients.len() - 1
                    }
                };
                products.push((smallvec![at as u16], partial.clone()));
            }
            single.push(Target { input: target.input, meta: target.meta, products });
        }
        let coefficient = |c: u16| Ok(coefficients[c as usize].1.clone());
        let mut pieces = vec![single];
        while let Some(piece) = pieces.pop() {
            let mut computed: InputGradients = SmallVec::from_elem(None, gradients.len());
            match (point.contract(piece.clone(), &coefficient, &mut computed), halves(&piece)) {
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

/// Half of the targets, or of the products of a single one.
fn halves<'a>(piece: &[Target<'a>]) -> Option<(Vec<Target<'a>>, Vec<Target<'a>>)> {
    match piece {
        [one] if one.products.len() > 1 => {
            let (left, right) = one.products.split_at(one.products.len() / 2);
            let with = |products: &[Product]| vec![Target { products: products.to_vec(), ..one.clone() }];
            Some((with(left), with(right)))
        }
        [] | [_] => None,
        more => {
            let (left, right) = more.split_at(more.len() / 2);
            Some((left.to_vec(), right.to_vec()))
        }
    }
}

impl Derivative for ContractionDerivative {
    fn name(&self) -> &'static str {
        self.partials.name()
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients> {
        // The gradient of a result before it was summed.
        let incoming = |o: usize| {
            let broadcast =
                |g: &Tensor| if self.sum.is_some() { ops::broadcast_to(g, &self.shape) } else { Ok(g.clone()) };
            grads.try_get(o).map(broadcast).transpose()
        };
        let incoming: SmallVec<[Option<Tensor>; 2]> = (0..grads.len()).map(incoming).collect::<Result<_>>()?;
        let arrived: SmallVec<[bool; 2]> = incoming.iter().map(Option::is_some).collect();
        let factor = |f: u16| match (f as usize).checked_sub(self.cotangents) {
            None => saved.input(f as usize),
            Some(o) => Ok(incoming[o].clone().expect("only gradients that arrived are factors")),
        };
        let point = self.point(saved)?;
        let mut gradients: InputGradients = SmallVec::from_elem(None, saved.inputs());
        if !is_grad_enabled() || self.terms.iter().all(|t| t.factors.len() == 1) {
            match point.contract(self.targets(saved, &arrived, needed)?, &factor, &mut gradients) {
                Err(Error::InvalidArgument { .. }) => gradients.fill(None),
                other => return other.map(|()| gradients),
            }
        }
        let targets = self.targets(saved, &arrived, needed)?;
        self.multiplied(&point, targets, &factor, &mut gradients)?;
        Ok(gradients)
    }
}

fn add(sum: &mut Option<Tensor>, term: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        Some(sum) => ops::add(&sum, &term)?,
        None => term,
    });
    Ok(())
}
