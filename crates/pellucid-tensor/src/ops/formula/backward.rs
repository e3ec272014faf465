//! Gradients of a formula in the backward pass.
//!
//! One fused formula computes the first-order gradients of all inputs that have the full broadcast shape. If these
//! gradients are recorded, they are differentiated by partial derivatives (`contraction`), and the gradients of row
//! formulas by composite operations (`unroll`), so that the size of the formulas does not grow with the order.

use super::contraction::{EvaluationPoint, reduce_gradient_to};
use super::derivative::{FormulaDerivative, GradientPart, for_each_part};
use super::{FormulaCall, is_unrolled, unroll};
use crate::array::Array;
use crate::autograd::{InputGradients, NeedsInputGrad, OutputGradients, SavedTensors, arrays_of, untracked};
use crate::grad_mode::is_grad_enabled;
use crate::ops::formula::broadcast;
use crate::ops::primitive::copy;
use crate::ops::primitive::precision::single_for;
use crate::tensor::{Derivative, Tensor};
use pellucid_ir::formula::{GradientInput, Partial, Term, Variables};
use pellucid_ir::kernel::{AxisSet, Meta};
use pellucid_ir::{Result, Shape};
use smallvec::{SmallVec, smallvec};

impl FormulaDerivative {
    /// Returns the application of the formula; `result` is the shape of its first result.
    #[inline]
    fn call<'a>(&'a self, result: &'a Shape) -> FormulaCall<'a> {
        let FormulaDerivative { formula, params, rows, sum, compute_dtype, .. } = self;
        let shape = self.shape.as_deref().unwrap_or(result);
        FormulaCall { formula, params, shape, rows: *rows, sum: *sum, compute_dtype: *compute_dtype }
    }
}

/// The backward pass of a formula.
impl<'a> FormulaCall<'a> {
    /// Recomputes output `j` of the formula without the sum over axes.
    fn summands(&self, saved: &SavedTensors, j: usize) -> Result<Tensor> {
        let inputs = saved.inputs_from(0)?;
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        Ok(FormulaCall { sum: None, ..*self }.apply(&inputs, None)?.swap_remove(j))
    }

    /// Computes the gradients of the inputs of one part of the backward pass.
    fn differentiate(
        &self,
        part: &GradientPart,
        tracked: Variables,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needs: NeedsInputGrad,
        into: &mut InputGradients,
    ) -> Result<()> {
        let gradient = part.gradient;
        // A gradient with the full broadcast shape needs no sum.
        let fit = |g: Tensor, meta: &Meta| {
            if !part.broadcast && g.dtype() == meta.dtype { Ok(g) } else { reduce_gradient_to(g, meta) }
        };
        let mut computed = 0u64;
        for (k, &i) in part.gradient.first_inputs.iter().enumerate() {
            let i = i as usize;
            if !needs.contains(i) {
                continue;
            }
            if gradient.is_zero(k) {
                into[i] = Some(grads.zeros(saved.meta(i).clone(), saved.input_device(i))?);
            } else if let Some(j) = gradient.passes(k) {
                // The gradient is rounded before it is broadcast, so each element is rounded once instead of once per
                // summand.
                let (g, meta) = (grads.get(j)?, saved.meta(i));
                let g = if part.broadcast || g.dtype() == meta.dtype { g } else { copy::to_dtype(&g, meta.dtype)? };
                into[i] = Some(fit(self.unsummed(g)?, meta)?);
            } else {
                computed |= 1 << k;
            }
        }
        if computed != 0 {
            for (k, output) in self.apply_gradient(part, tracked, saved, grads, computed)?.into_iter().enumerate() {
                if computed >> k & 1 == 1 {
                    let i = part.gradient.first_inputs[k] as usize;
                    into[i] = Some(fit(output, saved.meta(i))?);
                }
            }
        }
        Ok(())
    }

    /// Returns the gradient of an output before its sum: the incoming gradient, broadcast to the summands.
    fn unsummed(&self, g: Tensor) -> Result<Tensor> {
        if self.sum.is_some() { broadcast::broadcast_to(&g, self.shape) } else { Ok(g) }
    }

    /// Runs the gradient formula of a part as `call` on `operands`, and records it as a contraction.
    fn record_gradient(
        &self,
        part: &GradientPart,
        tracked: Variables,
        saved: &SavedTensors,
        call: &FormulaCall,
        operands: &[&Tensor],
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let arrays = arrays_of(operands);
        let outputs = call.run_gradient(&arrays, None)?;
        let partials = self.formula.partials(tracked, self.sum.is_some());
        let value = |read: &GradientInput| match *read {
            GradientInput::Input(i) => saved.input_array(i),
            GradientInput::Output(j) => saved.output_array(j),
            GradientInput::Gradient(_) => unreachable!("partial derivatives never read incoming gradients"),
        };
        let values = partials.reads().iter().map(value).collect::<Result<_>>()?;
        let variables = tracked.first_inputs().iter().map(|&i| saved.edge(i as usize).clone()).collect();
        let point = EvaluationPoint { partials, params: self.params, shape: self.shape, values, variables };
        let (mut cotangents, mut terms) = (SmallVec::<[&Tensor; 4]>::new(), Vec::new());
        for (read, &operand) in part.gradient.reads.iter().zip(operands) {
            let GradientInput::Gradient(j) = *read else { continue };
            for (k, &i) in part.gradient.first_inputs.iter().enumerate() {
                let variable =
                    tracked.variable_of(i as usize).expect("every input of a gradient part must be a variable");
                let partial = Partial::first(j, variable);
                if partials.constant(&partial)? != Some(0.0) {
                    let factors = smallvec![cotangents.len() as u8];
                    terms.push(Term { output: k as u8, factors, partial });
                }
            }
            cotangents.push(operand);
        }
        Ok(point.record(outputs, &cotangents, terms))
    }

    /// Computes the outputs of a part's gradient formula. The caller uses the outputs with a bit in `needed_outputs`.
    fn apply_gradient(
        &self,
        part: &GradientPart,
        tracked: Variables,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needed_outputs: u64,
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let GradientPart { gradient, broadcast } = part;
        let inputs = &gradient.first_inputs;
        let reads = &gradient.reads;
        let summed = *broadcast && !gradient.formula.is_row();
        let sum = summed.then(|| broadcast::broadcast_axes(&saved.meta(inputs[0] as usize).shape, self.shape));
        // If a formula has too many inputs to compute all gradients together, even inputs of full shape have separate
        // parts. Their gradients need no sum.
        let sum = sum.filter(|axes| *axes != AxisSet::default());
        // The gradient of a broadcast input of half precision is summed after this kernel, and rounded after the sum.
        let compute_dtype = if *broadcast && !summed { single_for(reads, saved, grads)? } else { None };
        // The result must have one value per element, even if every tensor that the formula reads has only one value
        // per row.
        let call = FormulaCall { formula: &gradient.formula, sum, compute_dtype, ..*self };
        let is_recorded = is_grad_enabled();
        if !is_recorded && self.sum.is_none() {
            return call.apply_to_arrays(part, saved, grads, needed_outputs);
        }
        let is_recorded = is_recorded && !self.formula.is_row();
        let read = |r: &GradientInput| match *r {
            GradientInput::Input(i) => saved.input(i),
            GradientInput::Output(j) if self.sum.is_some() => self.summands(saved, j),
            GradientInput::Output(j) => saved.output(j),
            // The incoming gradient of a sum is recorded without broadcasting: `ContractionDerivative` broadcasts it to
            // the summands.
            GradientInput::Gradient(j) if is_recorded => grads.get(j),
            GradientInput::Gradient(j) => self.unsummed(grads.get(j)?),
        };
        let operands: SmallVec<[Tensor; 4]> = reads.iter().map(read).collect::<Result<_>>()?;
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        match is_recorded {
            true => self.record_gradient(part, tracked, saved, &call, &operands),
            false => call.apply(&operands, None),
        }
    }

    /// Runs this call of a part's gradient formula without recording, on arrays. The result reuses the memory of an
    /// incoming gradient without other owners. Only the part for inputs of full shape may do so, because it runs last.
    #[inline]
    fn apply_to_arrays(
        mut self,
        part: &GradientPart<'a>,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needed_outputs: u64,
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let GradientPart { gradient, broadcast } = part;
        let inputs = &gradient.first_inputs;
        let mut zeros: SmallVec<[Tensor; 4]> = SmallVec::new();
        for read in &gradient.reads {
            if let GradientInput::Gradient(j) = *read
                && grads.try_get(j).is_none()
            {
                zeros.push(grads.get(j)?);
            }
        }
        let mut sums: SmallVec<[Tensor; 4]> = SmallVec::new();
        let (mut zeros, mut lent) = (zeros.iter(), None);
        let mut arrays: SmallVec<[&Array; 4]> = SmallVec::new();
        for (k, read) in gradient.reads.iter().enumerate() {
            arrays.push(match *read {
                GradientInput::Input(i) => saved.input_array(i)?,
                GradientInput::Output(j) => saved.output_array(j)?,
                GradientInput::Gradient(j) => match grads.try_get(j) {
                    Some(g) => {
                        if !broadcast && g.is_unique() {
                            lent = Some(k);
                        }
                        g.array()
                    }
                    None => zeros
                        .next()
                        .expect("`zeros` must contain one tensor for each output without a gradient")
                        .array(),
                },
            });
        }
        // The kernel also reads the accumulated gradient of an input, and adds to it.
        let mut added = 0;
        for (k, &i) in inputs.iter().enumerate().filter(|(k, _)| !broadcast && needed_outputs >> k & 1 == 1) {
            if self.adds_exactly(saved.meta(i as usize), &arrays)
                && let Some(sum) = grads.take_sum(i as usize)
            {
                added |= 1 << k;
                sums.push(sum);
            }
        }
        if let [first, ..] = &sums[..] {
            self.formula = gradient.formula.with_accumulators(added);
            if first.is_unique() {
                lent = Some(arrays.len());
            }
            for sum in &sums {
                arrays.push(sum.array());
            }
        }
        Ok(untracked(self.run_gradient(&arrays, lent)?))
    }
}

impl Derivative for FormulaDerivative {
    fn name(&self) -> &'static str {
        self.formula.name()
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let call = self.call(grads.shape(0));
        if is_unrolled(&self.formula) {
            return unroll::backward(&call, saved, grads, needs);
        }
        let mut gradients: InputGradients = SmallVec::from_elem(None, self.formula.inputs().len());
        for_each_part(self.tracked, &self.formula, |part| {
            if part.gradient.first_inputs.iter().any(|&i| needs.contains(i as usize)) {
                call.differentiate(&part, self.tracked, saved, grads, needs, &mut gradients)?;
            }
            Ok(())
        })?;
        Ok(gradients)
    }
}
