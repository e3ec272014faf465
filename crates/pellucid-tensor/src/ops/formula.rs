//! Every operation that is a formula: elementwise, reduced over axes, or with row reductions.
//!
//! One operation serves all three. Its gradients are formulas again, so it is also the operation of
//! every gradient of every order.

use crate::array::Array;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_reusing};
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::formula::{Formula, Gradient, Kind, Program, Read, Signature, Wanted};
use pellucid_ir::kernel::{AxisSet, Kernel, Map, Params, Reduce, ReduceOp, Row};
use pellucid_ir::{DType, Error, Result, Scalar, Shape};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// An application of a formula.
pub(crate) struct FormulaOp {
    formula: Formula,
    params: Params,
    /// The common shape of all inputs.
    shape: Shape,
    /// The axes of a row, for a formula with row reductions.
    rows: AxisSet,
    /// Sum the result over these axes, keeping them with length 1.
    sum: Option<AxisSet>,
    /// The dtype of numbers, if it is not the inputs' join.
    number: Option<DType>,
}

/// Applies a formula to inputs that broadcast; returns all its outputs.
pub(crate) fn map_all(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<SmallVec<[Tensor; 1]>> {
    let op = FormulaOp::new(formula, inputs, params, AxisSet::default(), None, None)?;
    apply_reusing(op, inputs, None)
}

/// Applies a formula of one output to inputs that broadcast.
pub(crate) fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    map_all(formula, inputs, params).map(only)
}

/// [`map`], writing into input `reuse` if nobody else can see it.
pub(crate) fn map_reusing(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    reuse: Option<usize>,
) -> Result<Tensor> {
    let op = FormulaOp::new(formula, inputs, params, AxisSet::default(), None, None)?;
    apply_reusing(op, inputs, reuse).map(only)
}

/// Applies a formula of one output and sums it over axes, which stay with length 1. The numbers are
/// of dtype `number`, or the inputs' join.
pub(crate) fn map_sum(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: AxisSet,
    number: Option<DType>,
) -> Result<Tensor> {
    let op = FormulaOp::new(formula, inputs, params, AxisSet::default(), Some(axes), number)?;
    apply_reusing(op, inputs, None).map(only)
}

/// Applies a formula with row reductions; rows run over `axes` of the inputs' common shape.
pub(crate) fn rows(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], axes: AxisSet) -> Result<Tensor> {
    let op = FormulaOp::new(formula, inputs, params, axes, None, None)?;
    apply_reusing(op, inputs, None).map(only)
}

/// All outputs of a formula with row reductions.
pub(crate) fn rows_all(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: super::Axes,
) -> Result<Vec<Tensor>> {
    let mut op = FormulaOp::new(formula, inputs, params, AxisSet::default(), None, None)?;
    op.rows = axes.resolve(formula.name(), &op.shape)?.set;
    Ok(apply_reusing(op, inputs, None)?.into_vec())
}

/// Whether a user's formula fits what it is applied to.
pub(crate) fn check(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], rows: bool) -> Result<()> {
    let (m, n) = (formula.inputs().len(), formula.params());
    if (inputs.len(), params.len()) != (m, n) {
        let got = format!("takes {m} tensors and {n} parameters, got {} and {}", inputs.len(), params.len());
        return Err(Error::invalid(formula.name(), got));
    }
    if m > Wanted::MOST_INPUTS {
        let most = Wanted::MOST_INPUTS;
        return Err(Error::invalid(formula.name(), format!("takes {m} tensors; a formula can be applied to {most}")));
    }
    if formula.is_row() && !rows {
        return Err(Error::invalid(formula.name(), "has row reductions; apply it with map_rows()"));
    }
    Ok(())
}

/// Overwrites `targets` with the outputs of a formula, whose first inputs they may be: an in-place
/// update of several tensors by one kernel. The formula's inputs are `targets` then `inputs`.
///
/// # Errors
/// [`Error::InPlaceOnTracked`] if a target is part of a recorded computation, or requires a gradient
/// outside [`no_grad`](crate::no_grad); shapes other than the targets'.
pub fn update(formula: &Formula, targets: &[&Tensor], inputs: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let op = formula.name();
    for target in targets {
        super::writable(op, target)?;
    }
    let all: SmallVec<[&Tensor; 6]> = targets.iter().chain(inputs).copied().collect();
    let node = FormulaOp::new(formula, &all, params, AxisSet::default(), None, None)?;
    if let Some(other) = targets.iter().find(|t| *t.shape() != node.shape) {
        let mend = "an in-place update cannot change its target's shape";
        return Err(Error::shapes(op, [other.shape(), &node.shape], mend));
    }
    let arrays: SmallVec<[&Array; 6]> = all.iter().map(|t| t.array()).collect();
    let program = node.program(&arrays)?;
    let written: SmallVec<[&Array; 4]> = targets.iter().map(|t| t.array()).collect();
    let fits = program.outputs.len() == targets.len()
        && program.outputs.iter().zip(&written).all(|(o, t)| o.storage == t.dtype());
    if !fits {
        let mend = "every output overwrites one target, of its dtype";
        return Err(Error::dtypes(op, written.iter().map(|a| a.dtype()), mend));
    }
    engine::submit(&Kernel::Map(Map { program, params: node.params }), &arrays, &written)
}

fn only(mut outputs: SmallVec<[Tensor; 1]>) -> Tensor {
    debug_assert_eq!(outputs.len(), 1);
    outputs.pop().expect("a formula has an output")
}

/// A part of the backward computation: one gradient formula, which makes the gradients of `inputs`.
struct Part {
    gradient: Arc<Gradient>,
    /// Output k is the gradient of input `inputs[k]`.
    inputs: SmallVec<[usize; 4]>,
    /// The one input was broadcast: its gradient is summed to its shape.
    broadcast: bool,
}

impl FormulaOp {
    fn new(
        formula: &Formula,
        inputs: &[&Tensor],
        params: &[Scalar],
        rows: AxisSet,
        sum: Option<AxisSet>,
        number: Option<DType>,
    ) -> Result<FormulaOp> {
        let name = formula.name();
        let mut shape = inputs.first().map_or(Shape::scalar(), |t| t.shape().clone());
        for input in inputs.iter().skip(1) {
            if *input.shape() != shape {
                shape = shape.broadcast(input.shape()).ok_or_else(|| {
                    let mend = "aligned at the last axis, lengths must be equal or 1; reshape or unsqueeze one of them";
                    Error::shapes(name, inputs.iter().map(|t| t.shape()), mend)
                })?;
            }
        }
        Ok(FormulaOp { formula: formula.clone(), params: SmallVec::from_slice(params), shape, rows, sum, number })
    }

    /// The program for these dtypes. Integers and truth values are taken to the first of `i64` and
    /// `f32` for which the formula is defined, where it is not defined for themselves.
    fn program(&self, inputs: &[&Array]) -> Result<Arc<Program>> {
        let formula = &self.formula;
        // Floats of one dtype and no index or mask: the common case, decided without more ado.
        if let [first, rest @ ..] = inputs
            && first.dtype().is_float()
            && self.number.is_none_or(|n| n == first.dtype())
            && rest.iter().all(|a| a.dtype() == first.dtype())
            && formula.inputs().iter().all(|i| i.kind == Kind::Number)
        {
            return formula.uniform_program(first.dtype()).cloned();
        }
        let numbers =
            || formula.inputs().iter().zip(inputs).filter(|(i, _)| i.kind == Kind::Number).map(|(_, a)| a.dtype());
        let joined = || {
            let join = numbers().reduce(DType::promote);
            self.params.iter().fold(join.unwrap_or(DType::F32), |d, p| p.promote_into(d))
        };
        let number = self.number.unwrap_or_else(joined);
        let compile = |number: DType| {
            let plain = formula.inputs().iter().zip(inputs).all(|(i, a)| match i.kind {
                Kind::Number => a.dtype() == number,
                Kind::Mask => a.dtype() == DType::Bool,
                Kind::Index => a.dtype() == DType::I64,
            });
            if plain {
                return formula.uniform_program(number).cloned();
            }
            formula.program(&Signature::new(inputs.iter().map(|a| a.dtype()), number))
        };
        match compile(number) {
            Err(Error::DTypeMismatch { .. }) if number == DType::Bool => {
                compile(DType::I64).or_else(|_| compile(DType::F32))
            }
            Err(Error::DTypeMismatch { .. }) if number.is_int() => compile(DType::F32),
            other => other,
        }
    }

    /// What backward has to compute, given which inputs are tracked, which are the same tensor, and
    /// their shapes. Forward asks too, to know what to save.
    fn parts<'s>(
        &self,
        count: usize,
        tracked: impl Fn(usize) -> bool,
        same: impl Fn(usize, usize) -> bool,
        shape: impl Fn(usize) -> &'s Shape,
    ) -> SmallVec<[Part; 2]> {
        let formula = &self.formula;
        let mut wanted = Wanted::default();
        let mut together: SmallVec<[usize; 4]> = SmallVec::new();
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for i in (0..count).filter(|&i| tracked(i) && formula.inputs()[i].kind == Kind::Number) {
            let full = if formula.inputs()[i].per_row {
                *shape(i) == self.rows.keepdims(&self.shape)
            } else {
                *shape(i) == self.shape
            };
            if full {
                // One tensor used twice gets one fused gradient.
                let k = together.iter().position(|&j| same(i, j)).unwrap_or_else(|| {
                    together.push(i);
                    together.len() - 1
                });
                wanted = wanted.with(i, k);
            } else {
                let gradient = formula.gradient(Wanted::default().with(i, 0));
                parts.push(Part { gradient, inputs: smallvec![i], broadcast: true });
            }
        }
        if !together.is_empty() {
            parts.push(Part { gradient: formula.gradient(wanted), inputs: together, broadcast: false });
        }
        parts
    }

    fn run(&self, program: Arc<Program>, inputs: &[&Array], reuse: Option<usize>) -> Result<Arrays> {
        let params = self.params.clone();
        let device = device_of(self.name(), inputs)?;
        if let Some(axes) = self.sum {
            let dtype = program.outputs[0].storage;
            let out = Array::new(device, dtype, axes.keepdims(&self.shape))?;
            let kernel = Reduce {
                op: ReduceOp::Sum,
                axes,
                program,
                params,
                finish: None,
                finish_params: Params::new(),
                output: dtype,
            };
            engine::submit(&Kernel::Reduce(kernel), inputs, &[&out])?;
            return Ok(smallvec![out]);
        }
        let mut outputs = Arrays::new();
        for store in &program.outputs {
            let taken = reuse.map(|r| inputs[r]).filter(|a| {
                outputs.is_empty()
                    && program.outputs.len() == 1
                    && !program.is_row()
                    && a.dtype() == store.storage
                    && a.layout().is_contiguous()
                    && *a.shape() == self.shape
                    && engine::mode() == engine::Mode::Eager
            });
            outputs.push(match taken {
                Some(array) => array.clone(),
                None if store.per_row => Array::new(device, store.storage, self.rows.keepdims(&self.shape))?,
                None => Array::new(device, store.storage, self.shape.clone())?,
            });
        }
        let kernel = if program.is_row() {
            Kernel::Row(Row { axes: self.rows, program, params })
        } else {
            Kernel::Map(Map { program, params })
        };
        match outputs.as_slice() {
            [one] => engine::submit(&kernel, inputs, &[one])?,
            several => engine::submit(&kernel, inputs, &several.iter().collect::<SmallVec<[&Array; 4]>>())?,
        }
        Ok(outputs)
    }

    /// Output `j` of the formula before it was summed.
    fn summands(&self, saved: &Saved, j: usize) -> Result<Tensor> {
        let inputs: SmallVec<[Tensor; 4]> = (0..saved.inputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let (formula, params, shape) = (self.formula.clone(), self.params.clone(), self.shape.clone());
        let op = FormulaOp { formula, params, shape, rows: self.rows, sum: None, number: self.number };
        Ok(apply_reusing(op, &inputs.iter().collect::<SmallVec<[&Tensor; 4]>>(), None)?.swap_remove(j))
    }

    /// One part of backward: its gradient formula, applied to what it reads.
    fn differentiate(&self, part: &Part, saved: &Saved, grads: &Gradients, into: &mut InputGradients) -> Result<()> {
        let gradient = &part.gradient;
        // The gradient of a sum is the same for every summand.
        let incoming = |j: usize| -> Result<Tensor> {
            let g = grads.get(j)?;
            if self.sum.is_some() { ops::broadcast_to(&g, &self.shape) } else { Ok(g) }
        };
        let mut results: SmallVec<[Option<Tensor>; 2]> = SmallVec::from_elem(None, part.inputs.len());
        let mut computed = false;
        for (k, result) in results.iter_mut().enumerate() {
            if gradient.is_zero(k) {
                *result = Some(ops::zeros(saved.input_shape(part.inputs[k]), saved.input_dtype(part.inputs[k]))?);
            } else if let Some(j) = gradient.passes(k) {
                let g = incoming(j)?;
                *result = Some(if part.broadcast { ops::sum_to(&g, &saved.input_shape(part.inputs[k]))? } else { g });
            } else {
                computed = true;
            }
        }
        if computed {
            let read = |r: &Read| match *r {
                Read::Input(i) => saved.input(i),
                Read::Output(j) if self.sum.is_some() => self.summands(saved, j),
                Read::Output(j) => saved.output(j),
                Read::Gradient(j) => incoming(j),
            };
            let inputs: SmallVec<[Tensor; 4]> = gradient.reads.iter().map(read).collect::<Result<_>>()?;
            let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
            let mut op = FormulaOp::new(&gradient.formula, &inputs, &self.params, self.rows, None, None)?;
            // What it reads may all be per row; the gradient still has one value an element.
            op.shape = self.shape.clone();
            if part.broadcast && !gradient.formula.is_row() {
                let target = &saved.meta(part.inputs[0]).shape;
                op.sum = Some(ops::stretched(target, &op.shape));
            }
            let outputs = apply_reusing(op, &inputs, None)?;
            for (result, output) in results.iter_mut().zip(outputs) {
                if result.is_none() {
                    *result = Some(output);
                }
            }
        }
        for (&i, result) in part.inputs.iter().zip(results) {
            let result = result.expect("every output was made");
            let target = saved.meta(i);
            let fitted = if *result.shape() == target.shape { result } else { ops::sum_to(&result, &target.shape)? };
            into[i] = Some(ops::to_dtype(&fitted, target.dtype)?);
        }
        Ok(())
    }
}

fn device_of(op: &'static str, inputs: &[&Array]) -> Result<Device> {
    match inputs {
        [] => Ok(Device::cpu()),
        [one] => Ok(one.device()),
        [a, b] if a.device() == b.device() => Ok(a.device()),
        more => Device::common(op, more.iter().map(|a| a.device())),
    }
}

impl Operation for FormulaOp {
    fn name(&self) -> &'static str {
        self.formula.name()
    }

    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        let program = self.program(inputs)?;
        if saves.any() {
            let parts = self.parts(inputs.len(), |i| saves.needs(i), |i, j| saves.same(i, j), |i| inputs[i].shape());
            let mut reads: SmallVec<[Read; 4]> = SmallVec::new();
            for part in &parts {
                for read in &part.gradient.reads {
                    if !reads.contains(read) {
                        reads.push(*read);
                    }
                }
            }
            // A sum does not keep its summands: backward computes them again, from all inputs.
            let again = self.sum.is_some() && reads.iter().any(|r| matches!(r, Read::Output(_)));
            if again {
                (0..inputs.len()).for_each(|i| saves.input(i));
            }
            for read in reads.into_iter().filter(|_| !again) {
                match read {
                    Read::Input(i) => saves.input(i),
                    Read::Output(j) => saves.output(j),
                    Read::Gradient(_) => {}
                }
            }
        }
        self.run(program, inputs, saves.reusable())
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients> {
        let count = self.formula.inputs().len();
        // The same parts as in forward, so that they read what was saved.
        let none = Shape::scalar();
        let shape = |i: usize| if saved.tracked(i) { &saved.meta(i).shape } else { &none };
        let parts = self.parts(count, |i| saved.tracked(i), |i, j| saved.same(i, j), shape);
        let mut gradients: InputGradients = SmallVec::from_elem(None, count);
        for part in &parts {
            if part.inputs.iter().any(|&i| needed.contains(i)) {
                self.differentiate(part, saved, grads, &mut gradients)?;
            }
        }
        Ok(gradients)
    }
}
