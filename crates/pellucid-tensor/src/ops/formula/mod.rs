//! Application of formulas: elementwise, summed over axes, or with row reductions.
//!
//! One operation implements all three applications. The gradients of a formula are formulas, so the same operation
//! computes the gradients of every order.

mod backward;
pub(super) mod broadcast;
mod contraction;
mod derivative;
pub(super) mod full_range;
pub(super) mod kernel_reduction;
pub(super) mod over_axes;
pub(super) mod power;
mod unroll;
pub(super) mod user;

use self::derivative::{FormulaDerivative, for_each_part};
use crate::array::{Array, checked_size, inverse_order, storage_order};
use crate::autocast::autocast_dtype;
use crate::autograd::{Arrays, SaveForBackward, arrays_of, is_recorded, on_one_device, record, untracked_results};
use crate::engine;
use crate::ops::call::axes::Axes;
use crate::ops::call::check;
use crate::ops::primitive::precision;
use crate::tensor::{NodeParts, Tensor};
use pellucid_ir::backend::DenseView;
use pellucid_ir::formula::{
    Formula, GradientInput, GradientRequest, Input, Program, Signature, Uniform, UniformSource, ValueKind, Variables,
};
use pellucid_ir::kernel::{AxisSet, Kernel, Map, Meta, Params, Reduce, ReduceOp, Row};
use pellucid_ir::{Compute, DType, Error, Result, Scalar, Shape};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The application of a formula, without its operands and autograd history.
#[derive(Clone, Copy)]
struct FormulaCall<'a> {
    formula: &'a Formula,
    params: &'a Params,
    /// The broadcast shape of all inputs.
    shape: &'a Shape,
    rows: AxisSet,
    sum: Option<AxisSet>,
    compute_dtype: Option<DType>,
}

/// Options of a formula application.
#[derive(Clone, Copy, Default)]
struct ApplyOptions {
    rows: AxisSet,
    sum: Option<AxisSet>,
    compute_dtype: Option<DType>,
    reuse: Option<usize>,
}

/// Applies a formula to inputs that broadcast.
#[inline(always)]
fn apply(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    options: ApplyOptions,
) -> Result<SmallVec<[Tensor; 1]>> {
    let (params, mut computed) = (params.into(), None);
    let shape = broadcast_shape(formula.name(), inputs, &mut computed)?;
    let ApplyOptions { rows, sum, compute_dtype, reuse } = options;
    let compute_dtype = match autocast_dtype() {
        None => compute_dtype,
        Some(_) => precision::autocast_operand_dtype(formula.name(), inputs).or(compute_dtype),
    };
    FormulaCall { formula, params: &params, shape, rows, sum, compute_dtype }.apply(inputs, reuse)
}

/// Returns the broadcast shape of all inputs. It is usually the shape of the first input; otherwise it is stored in
/// `computed`.
#[inline(always)]
fn broadcast_shape<'a>(op: &'static str, inputs: &[&'a Tensor], computed: &'a mut Option<Shape>) -> Result<&'a Shape> {
    match inputs {
        [first, rest @ ..] if rest.iter().all(|t| t.shape() == first.shape()) => Ok(first.shape()),
        _ => Ok(computed.insert(broadcast(op, inputs)?)),
    }
}

pub(super) fn broadcast(op: &'static str, inputs: &[&Tensor]) -> Result<Shape> {
    check::common_shape(
        op,
        inputs,
        "aligned at the last axis, lengths must be equal or 1; use reshape() or unsqueeze()",
    )
}

/// Applies a formula to inputs that broadcast, and returns all its outputs.
pub(crate) fn map_all(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<SmallVec<[Tensor; 1]>> {
    apply(formula, inputs, params, ApplyOptions::default())
}

/// Applies a formula with one output to inputs that broadcast.
pub(crate) fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    map_reusing(formula, inputs, params, None)
}

/// Like [`map`]; overwrites input `reuse` if no other tensor shares the storage of this input.
pub(crate) fn map_reusing(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    reuse: Option<usize>,
) -> Result<Tensor> {
    apply(formula, inputs, params, ApplyOptions { reuse, ..ApplyOptions::default() }).map(single_output)
}

/// Like [`map`]; computes in dtype `compute_dtype`, by default the promoted dtype of the inputs.
pub(crate) fn map_in(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    compute_dtype: Option<DType>,
) -> Result<Tensor> {
    apply(formula, inputs, params, ApplyOptions { compute_dtype, ..ApplyOptions::default() }).map(single_output)
}

/// Applies a formula with one output and sums it over axes, which keep length 1. Numbers are computed in dtype
/// `compute_dtype`, by default the promoted dtype of the inputs.
pub(crate) fn map_sum(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: AxisSet,
    compute_dtype: Option<DType>,
) -> Result<Tensor> {
    apply(formula, inputs, params, ApplyOptions { sum: Some(axes), compute_dtype, ..ApplyOptions::default() })
        .map(single_output)
}

/// Applies a formula with row reductions. A row extends over `axes` of the broadcast shape.
pub(crate) fn apply_rows(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], axes: AxisSet) -> Result<Tensor> {
    apply(formula, inputs, params, ApplyOptions { rows: axes, ..ApplyOptions::default() }).map(single_output)
}

/// Records `result`, which the caller has computed, as the output of a formula that is summed over `sum` or has rows
/// over `rows`. No kernel runs. A declared derivative reads `result` as the output of the formula.
pub(crate) fn record_result(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    [sum, rows]: [Option<AxisSet>; 2],
    result: &Tensor,
) -> Result<Tensor> {
    if !is_recorded(inputs) {
        return Ok(result.clone());
    }
    let (params, mut computed) = (params.into(), None);
    let shape = broadcast_shape(formula.name(), inputs, &mut computed)?;
    let compute_dtype = precision::widened_dtype(inputs);
    let call = FormulaCall { formula, params: &params, shape, rows: rows.unwrap_or_default(), sum, compute_dtype };
    let outputs = |_: &mut SaveForBackward| Ok(smallvec![result.array().clone()]);
    call.recorded(inputs, &arrays_of(inputs), None, outputs).map(single_output)
}

/// Like [`apply_rows`]; computes in dtype `compute_dtype`, by default the promoted dtype of the inputs.
pub(crate) fn apply_rows_in(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: AxisSet,
    compute_dtype: Option<DType>,
) -> Result<Tensor> {
    apply(formula, inputs, params, ApplyOptions { rows: axes, compute_dtype, ..ApplyOptions::default() })
        .map(single_output)
}

/// Like [`apply_rows`], for formulas with several outputs.
pub(crate) fn apply_rows_all(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: Axes,
) -> Result<Vec<Tensor>> {
    let rows = axes.resolve(formula.name(), broadcast_shape(formula.name(), inputs, &mut None)?)?.set;
    Ok(apply(formula, inputs, params, ApplyOptions { rows, ..ApplyOptions::default() })?.into_vec())
}

/// The maximum number of tensors to which a formula can be applied.
const MAX_INPUTS: usize = 64;

#[cold]
fn too_wide(formula: &Formula, inputs: usize) -> Error {
    let (order, max_inputs) = (formula.order() + 1, MAX_INPUTS);
    let reason = format!(
        "the derivative of order {order} of this formula reads {inputs} tensors; the maximum is {max_inputs}: \
         split the formula"
    );
    Error::invalid(formula.name(), reason)
}

/// Returns an error unless a user-defined formula fits the tensors and parameters to which it is applied.
pub(crate) fn check_application(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], rows: bool) -> Result<()> {
    let (m, n) = (formula.inputs().len(), formula.params());
    if (inputs.len(), params.len()) != (m, n) {
        let got = format!(
            "the formula has {m} inputs and {n} parameters, got {} and {}; in formula!(|x, y; a| ..), x and y are \
             tensors, and a is a parameter",
            inputs.len(),
            params.len()
        );
        return Err(Error::invalid(formula.name(), got));
    }
    if m > MAX_INPUTS {
        let reason = format!("the formula has {m} inputs; the maximum is {MAX_INPUTS}: split the formula");
        return Err(Error::invalid(formula.name(), reason));
    }
    let all = m + 2 * formula.outputs().len();
    if all > Formula::MAX_DIFFERENTIABLE && is_recorded(inputs) {
        let max_inputs = Formula::MAX_DIFFERENTIABLE;
        let reason = format!(
            "the formula has {all} inputs, outputs and output gradients; the maximum for a derivative is \
             {max_inputs}: split the formula"
        );
        return Err(Error::invalid(formula.name(), reason));
    }
    if formula.is_row() && !rows {
        return Err(Error::invalid(
            formula.name(),
            "the formula has row reductions; apply it with map_rows() or map_rows_all()",
        ));
    }
    Ok(())
}

/// Returns the program whose outputs overwrite the first `targets` inputs, in the dtypes of these inputs.
pub(super) fn overwriting(
    formula: &Formula,
    targets: usize,
    inputs: &[&Tensor],
    params: &Params,
) -> Result<Arc<Program>> {
    let arrays: SmallVec<[&Array; 8]> = inputs.iter().map(|t| t.array()).collect();
    // The program depends on dtypes only, not on the shape.
    let shape = arrays.first().map_or(&Shape::scalar(), |a| a.shape()).clone();
    let call = FormulaCall { formula, params, shape: &shape, rows: AxisSet::default(), sum: None, compute_dtype: None };
    let mut program = call.program(&arrays)?;
    let written = &arrays[..targets];
    let fits = |program: &Program| program.outputs.iter().zip(written).all(|(o, t)| o.storage == t.dtype());
    let narrows = |program: &Program| {
        let half = |t: &&Array| matches!(t.dtype(), DType::F16 | DType::BF16);
        program.outputs.iter().zip(written).all(|(o, t)| o.storage == t.dtype() || (o.storage.is_float() && half(t)))
    };
    if program.outputs.len() == targets && !fits(program) && narrows(program) {
        let full =
            formula.outputs().iter().position(|o| o.kind == ValueKind::Number).map(|k| program.outputs[k].storage);
        let signature = Signature::new(arrays.iter().map(|a| a.dtype()), full.unwrap_or(DType::F32));
        program = formula.program(&signature.with_output_dtypes(written.iter().map(|t| t.dtype())))?;
    }
    if program.outputs.len() != targets || !fits(program) {
        if program.outputs.len() != targets {
            let reason = format!(
                "the formula must have one output for each written tensor: it has {}, and {targets} tensors are written",
                program.outputs.len()
            );
            return Err(Error::invalid(formula.name(), reason));
        }
        let help = "each output of the formula must have the dtype of the tensor that it writes; use to_dtype()";
        return Err(Error::dtypes(formula.name(), written.iter().map(|a| a.dtype()), help));
    }
    Ok(program.clone())
}

fn single_output(mut outputs: SmallVec<[Tensor; 1]>) -> Tensor {
    debug_assert_eq!(outputs.len(), 1);
    outputs.pop().expect("a formula must have at least one output")
}

/// Returns true for a formula that is differentiated by composite operations at its saved inputs: the gradient of the
/// gradient of a row formula, or a row formula whose gradient would read too many tensors.
fn is_unrolled(formula: &Formula) -> bool {
    let is_wide = || formula.inputs().len() + 2 * formula.outputs().len() > MAX_INPUTS;
    formula.is_row() && (formula.order() >= 2 || is_wide())
}

impl<'a> FormulaCall<'a> {
    /// Computes the results on the device of the pinned inputs.
    #[inline]
    fn apply(&self, inputs: &[&Tensor], reuse: Option<usize>) -> Result<SmallVec<[Tensor; 1]>> {
        match on_one_device(self.formula.name(), inputs)? {
            None => self.apply_on_device(inputs, reuse),
            Some(placed) => self.apply_on_device(&placed.iter().collect::<SmallVec<[&Tensor; 4]>>(), None),
        }
    }

    /// Computes the results of inputs on one device, with autograd history if an input is tracked.
    fn apply_on_device(&self, inputs: &[&Tensor], reuse: Option<usize>) -> Result<SmallVec<[Tensor; 1]>> {
        let arrays = arrays_of(inputs);
        if is_recorded(inputs) {
            if inputs.len() > MAX_INPUTS {
                return Err(too_wide(self.formula, inputs.len()));
            }
            return self.recorded(inputs, &arrays, reuse, |saves| self.run_kernel(&arrays, saves.reusable()));
        }
        Ok(untracked_results(inputs, self.run_kernel(&arrays, reuse)?))
    }

    /// Saves the values for the backward pass, computes the results by calling `outputs`, and records their node.
    #[inline]
    fn recorded(
        &self,
        inputs: &[&Tensor],
        arrays: &[&Array],
        reuse: Option<usize>,
        outputs: impl FnOnce(&mut SaveForBackward) -> Result<Arrays>,
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let tracked = self.tracked(inputs);
        let forward = |call: &&FormulaCall, saves: &mut SaveForBackward| {
            call.save(tracked, arrays, saves)?;
            outputs(saves)
        };
        let node = |call: &FormulaCall, parts: NodeParts<'_>| {
            let derivative = call.derivative(tracked, parts.outputs);
            parts.node(derivative)
        };
        record(self, inputs, arrays, reuse, forward, node)
    }

    /// Returns true if the kernel can add its result to a tensor like `target` with the same rounding as a separate
    /// addition: no value is rounded in between.
    fn adds_exactly(&self, target: &Meta, inputs: &[&Array]) -> bool {
        let same = |(i, a): (&Input, &&Array)| i.kind != ValueKind::Number || a.dtype() == target.dtype;
        matches!(target.dtype, DType::F32 | DType::F64)
            && !self.formula.is_row()
            && target.shape == *self.shape
            && self.formula.inputs().iter().zip(inputs).all(same)
    }

    /// Returns the inputs for which backward may compute gradients.
    #[inline]
    fn tracked(&self, inputs: &[&Tensor]) -> Variables {
        let described = self.formula.inputs();
        let (mut together, mut separate, mut outputs) = (GradientRequest::default(), 0, 0);
        for (i, input) in inputs.iter().enumerate() {
            if !input.requires_grad() || described[i].kind != ValueKind::Number {
                continue;
            }
            let has_full_shape = if described[i].per_row {
                *input.shape() == self.rows.keepdims(self.shape)
            } else {
                // Usually the broadcast shape is a reference to the shape of the first input.
                std::ptr::eq(input.shape(), self.shape) || input.shape() == self.shape
            };
            if !has_full_shape || i >= GradientRequest::MAX_INPUTS {
                separate |= 1 << i;
                continue;
            }
            let output_of_same_tensor =
                (0..i).filter(|&j| inputs[j].is_same_tensor(input)).find_map(|j| together.output_of(j));
            if output_of_same_tensor.is_none() && outputs == GradientRequest::MAX_OUTPUTS {
                separate |= 1 << i;
                continue;
            }
            together = together.with(i, output_of_same_tensor.unwrap_or(outputs));
            outputs += output_of_same_tensor.is_none() as usize;
        }
        Variables { together, separate }
    }

    /// Saves the values that the gradients of the tracked inputs read.
    #[inline(always)]
    fn save(&self, tracked: Variables, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<()> {
        if is_unrolled(self.formula) {
            (0..inputs.len()).for_each(|i| saves.input(i));
            return Ok(());
        }
        for_each_part(tracked, self.formula, |part| {
            for read in &part.gradient.reads {
                match *read {
                    // The summands of a sum are not stored: the backward pass recomputes them from all inputs.
                    GradientInput::Output(_) if self.sum.is_some() => (0..inputs.len()).for_each(|i| saves.input(i)),
                    GradientInput::Input(i) => saves.input(i),
                    GradientInput::Output(j) => saves.output(j),
                    GradientInput::Gradient(_) => {}
                }
            }
            Ok(())
        })
    }

    /// Returns the derivative that the graph node stores.
    #[inline(always)]
    fn derivative(&self, tracked: Variables, results: &[Array]) -> FormulaDerivative {
        let FormulaCall { formula, params, shape, rows, sum, compute_dtype } = *self;
        let shape = (results[0].shape() != shape).then(|| Box::new(shape.clone()));
        FormulaDerivative { formula: formula.clone(), params: params.clone(), shape, rows, sum, compute_dtype, tracked }
    }

    /// Returns the program for the dtypes of the inputs. If the formula is not defined for booleans, they are converted
    /// to `i64`. If it is not defined for integers, they are converted to `f32`.
    fn program(&self, inputs: &[&Array]) -> Result<&'a Arc<Program>> {
        let formula = self.formula;
        // This is the fast path for the common case: floats of one dtype, no index and no mask.
        if let [first, rest @ ..] = inputs
            && first.dtype().is_float()
            && self.compute_dtype.is_none_or(|n| n == first.dtype())
            && rest.iter().all(|a| a.dtype() == first.dtype())
            && formula.is_plain()
        {
            return formula.uniform_program(first.dtype());
        }
        let numbers =
            || formula.inputs().iter().zip(inputs).filter(|(i, _)| i.kind == ValueKind::Number).map(|(_, a)| a.dtype());
        let joined = || {
            let join = numbers().reduce(DType::promote);
            self.params.iter().fold(join.unwrap_or(DType::F32), |d, p| p.promote_into(d))
        };
        let compute_dtype = self.compute_dtype.unwrap_or_else(joined);
        let compile = |compute_dtype: DType| {
            let plain = formula.inputs().iter().zip(inputs).all(|(i, a)| match i.kind {
                ValueKind::Number => a.dtype() == compute_dtype,
                ValueKind::Mask => a.dtype() == DType::Bool,
                ValueKind::Index => a.dtype() == DType::I64,
            });
            if plain {
                return formula.uniform_program(compute_dtype);
            }
            formula.program(&Signature::new(inputs.iter().map(|a| a.dtype()), compute_dtype))
        };
        match compile(compute_dtype) {
            Err(Error::DTypeMismatch { .. }) if compute_dtype == DType::Bool => {
                compile(DType::I64).or_else(|_| compile(DType::F32))
            }
            Err(Error::DTypeMismatch { .. }) if compute_dtype.is_int() => compile(DType::F32),
            other => other,
        }
    }

    /// Returns an error for an integer parameter that an integer output cannot store or the program cannot read.
    ///
    /// In comparisons of narrow integers, every `i32` is allowed, because the comparison is computed in `i32`.
    fn check_params(&self, program: &Program) -> Result<()> {
        for (k, param) in self.params.iter().enumerate() {
            let Scalar::Int(value) = *param else { continue };
            let mut dtypes = program.outputs.iter().map(|store| store.storage).filter(|dtype| dtype.is_int());
            let too_narrow = dtypes.find(|dtype| !dtype.represents(*param)).or_else(|| {
                let reads = |u: &Uniform| u.source == UniformSource::Param(k as u8) && u.compute == Compute::I32;
                (i32::try_from(value).is_err() && program.uniforms.iter().any(reads)).then_some(DType::I32)
            });
            if let Some(dtype) = too_narrow {
                let reason = format!("{value} is outside the range of {dtype}; convert the tensor with to_dtype()");
                return Err(Error::invalid(self.formula.name(), reason));
            }
        }
        Ok(())
    }

    /// Runs the kernel of a gradient. A result is pinned to its device if an input is.
    fn run_gradient(&self, inputs: &[&Array], reuse: Option<usize>) -> Result<Arrays> {
        let outputs = match self.sum {
            Some(_) if !self.is_spanned(inputs) => self.run_broadcast_kernel(inputs)?,
            _ => self.run_kernel(inputs, reuse)?,
        };
        let pinned = inputs.iter().any(|input| input.is_pinned());
        outputs.iter().for_each(|output| output.set_pinned(pinned));
        Ok(outputs)
    }

    /// Returns true if, for each axis of the call's shape, an input has the full length.
    fn is_spanned(&self, inputs: &[&Array]) -> bool {
        let is_full = |a: usize, x: &Array| {
            (a + x.shape().rank()).checked_sub(self.shape.rank()).is_some_and(|at| x.shape()[at] == self.shape[a])
        };
        (0..self.shape.rank()).all(|a| self.shape[a] == 1 || inputs.iter().any(|x| is_full(a, x)))
    }

    /// Broadcasts the first input to the call's shape, and runs the kernel.
    #[cold]
    fn run_broadcast_kernel(&self, inputs: &[&Array]) -> Result<Arrays> {
        let first = inputs[0].broadcast_to(self.formula.name(), self.shape)?;
        let all: SmallVec<[&Array; 8]> = [&first].into_iter().chain(inputs[1..].iter().copied()).collect();
        self.run_kernel(&all, None)
    }

    /// Runs the kernel of a map with its axes permuted to `order`, and returns the results in the order of the call's
    /// shape.
    #[cold]
    fn run_in_order(&self, order: &[usize], inputs: &[&Array], reuse: Option<usize>) -> Result<Arrays> {
        let reordered = |array: &Array| -> Result<Array> {
            let layout = array.broadcast_to(self.formula.name(), self.shape)?.layout().permute(order);
            Ok(array.view(layout))
        };
        let is_single = |array: &Array| array.shape().size() == 1;
        let views = inputs.iter().map(|a| if is_single(a) { Ok((*a).clone()) } else { reordered(a) });
        let views = views.collect::<Result<SmallVec<[Array; 4]>>>()?;
        let shape = order.iter().map(|&axis| self.shape[axis]).collect();
        let call = FormulaCall { shape: &shape, ..*self };
        let outputs = call.run_kernel(&views.iter().collect::<SmallVec<[&Array; 4]>>(), reuse)?;
        let inverse = inverse_order(order);
        Ok(outputs.iter().map(|output| output.view(output.layout().permute(&inverse))).collect())
    }

    fn run_kernel(&self, inputs: &[&Array], reuse: Option<usize>) -> Result<Arrays> {
        let program = self.program(inputs)?;
        if !self.params.is_empty() {
            self.check_params(program)?;
        }
        let device = Array::common_device(self.formula.name(), inputs)?;
        let plain = self.sum.is_none() && !program.is_row();
        if let (true, [store]) = (plain, &program.outputs[..]) {
            let eager = engine::mode() == engine::ExecutionMode::Eager && device.is_cpu();
            let fits = |a: &&Array| {
                eager && a.dtype() == store.storage && a.layout().is_contiguous() && a.shape() == self.shape
            };
            let reused = reuse.map(|r| inputs[r]).filter(fits);
            // Fast path without strides: inputs broadcast, so a dense input of the same size has the same elements in
            // the same order.
            let (size, mut dense) = (checked_size(self.shape)?, SmallVec::<[DenseView<'_>; 4]>::new());
            for array in inputs {
                let Some(one) = array.as_dense(size) else { break };
                dense.push(one);
            }
            if eager && dense.len() == inputs.len() {
                let storage = engine::map_dense(device, program, self.params, size, &dense, reused);
                let storage = storage.map_err(|error| error.with_shape(self.shape))?;
                let offset = reused.map_or(0, |a| a.layout().offset());
                return Ok(Arrays::from_buf([Array::dense(
                    storage,
                    offset,
                    store.storage,
                    self.shape.clone(),
                    device,
                )]));
            }
            if let Some(order) = storage_order(self.shape, inputs) {
                return self.run_in_order(&order, inputs, reuse);
            }
            let out = match reused {
                Some(array) => array.clone(),
                None => Array::new(device, store.storage, self.shape.clone())?,
            };
            let map = Map { program: program.clone(), params: self.params.clone() };
            engine::submit(&Kernel::Map(map), inputs, &[&out])?;
            return Ok(Arrays::from_buf([out]));
        }
        let (program, params) = (program.clone(), self.params.clone());
        if let Some(axes) = self.sum {
            let dtype = program.outputs[0].storage;
            let out = Array::new(device, dtype, axes.keepdims(self.shape))?;
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
        if plain && let Some(order) = storage_order(self.shape, inputs) {
            return self.run_in_order(&order, inputs, reuse);
        }
        let mut outputs = Arrays::new();
        for store in &program.outputs {
            let shape = if store.per_row { self.rows.keepdims(self.shape) } else { self.shape.clone() };
            outputs.push(Array::new(device, store.storage, shape)?);
        }
        let kernel = if program.is_row() {
            Kernel::Row(Row { axes: self.rows, program, params })
        } else {
            Kernel::Map(Map { program, params })
        };
        engine::submit(&kernel, inputs, &outputs.iter().collect::<SmallVec<[&Array; 4]>>())?;
        Ok(outputs)
    }
}
