//! Every operation that is a formula: elementwise, reduced over axes, or with row reductions.
//!
//! One operation serves all three. Its gradients are formulas again, so it is also the operation of
//! every gradient of every order.

use crate::array::{Array, checked_size};
use crate::autocast::{self, autocast_dtype};
use crate::autograd::{
    Arrays, Derivative, Gradients, InputGradients, Needed, Saved, Saves, is_grad_enabled, is_recorded, record,
    untracked,
};
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::backend::Dense;
use pellucid_ir::formula::{Formula, Gradient, Input, Kind, Program, Read, Signature, Wanted};
use pellucid_ir::kernel::{AxisSet, Kernel, Map, Meta, Params, Reduce, ReduceOp, Row};
use pellucid_ir::{DType, Error, Result, Scalar, Shape};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// What a node keeps of an application: the [`Call`], without the operands.
struct FormulaDerivative {
    formula: Formula,
    params: Params,
    /// The common shape of all inputs, where it is not that of the first result (which the node knows).
    shape: Option<Box<Shape>>,
    /// The axes of a row, for a formula with row reductions.
    rows: AxisSet,
    /// Sum the result over these axes, keeping them with length 1.
    sum: Option<AxisSet>,
    /// The dtype of numbers, if it is not the inputs' join.
    number: Option<DType>,
    tracked: Tracked,
}

/// The inputs whose gradients backward will be asked for.
#[derive(Clone, Copy, Default)]
struct Tracked {
    /// Those of full shape: one formula gives their gradients, and one tensor used twice gets one.
    full: Wanted,
    /// Those that were stretched, as bits: each has a formula of its own, whose result is summed.
    stretched: u64,
}

/// An application of a formula, without its history: what a backend has to know.
#[derive(Clone, Copy)]
struct Call<'a> {
    formula: &'a Formula,
    params: &'a Params,
    /// The common shape of all inputs.
    shape: &'a Shape,
    rows: AxisSet,
    sum: Option<AxisSet>,
    number: Option<DType>,
}

/// What an application may say beside its operands.
#[derive(Clone, Copy, Default)]
struct How {
    rows: AxisSet,
    sum: Option<AxisSet>,
    number: Option<DType>,
    reuse: Option<usize>,
}

/// Applies a formula to inputs that broadcast.
#[inline(always)]
fn apply(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], how: How) -> Result<SmallVec<[Tensor; 1]>> {
    let (params, mut made) = (params.into(), None);
    let shape = common(formula.name(), inputs, &mut made)?;
    let How { rows, sum, number, reuse } = how;
    let number = match autocast_dtype() {
        None => number,
        Some(_) => autocast::wanted(formula.name(), inputs).or(number),
    };
    Call { formula, params: &params, shape, rows, sum, number }.apply(inputs, reuse)
}

/// The shape to which all inputs broadcast: that of the first, as a rule, or one that is put into `made`.
#[inline]
fn common<'a>(op: &'static str, inputs: &[&'a Tensor], made: &'a mut Option<Shape>) -> Result<&'a Shape> {
    match inputs {
        [first, rest @ ..] if rest.iter().all(|t| t.shape() == first.shape()) => Ok(first.shape()),
        _ => Ok(made.insert(broadcast(op, inputs)?)),
    }
}

pub(super) fn broadcast(op: &'static str, inputs: &[&Tensor]) -> Result<Shape> {
    let shape = inputs.iter().try_fold(Shape::scalar(), |shape, input| shape.broadcast(input.shape()));
    shape.ok_or_else(|| {
        let mend = "aligned at the last axis, lengths must be equal or 1; reshape or unsqueeze one of them";
        Error::shapes(op, inputs.iter().map(|t| t.shape()), mend)
    })
}

/// Applies a formula to inputs that broadcast; returns all its outputs.
pub(crate) fn map_all(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<SmallVec<[Tensor; 1]>> {
    apply(formula, inputs, params, How::default())
}

/// Applies a formula of one output to inputs that broadcast.
pub(crate) fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    map_reusing(formula, inputs, params, None)
}

/// [`map`], writing into input `reuse` if nobody else can see it.
pub(crate) fn map_reusing(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    reuse: Option<usize>,
) -> Result<Tensor> {
    apply(formula, inputs, params, How { reuse, ..How::default() }).map(only)
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
    apply(formula, inputs, params, How { sum: Some(axes), number, ..How::default() }).map(only)
}

/// Applies a formula with row reductions; rows run over `axes` of the inputs' common shape.
pub(crate) fn rows(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], axes: AxisSet) -> Result<Tensor> {
    apply(formula, inputs, params, How { rows: axes, ..How::default() }).map(only)
}

/// All outputs of a formula with row reductions.
pub(crate) fn rows_all(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: super::Axes,
) -> Result<Vec<Tensor>> {
    let rows = axes.resolve(formula.name(), common(formula.name(), inputs, &mut None)?)?.set;
    Ok(apply(formula, inputs, params, How { rows, ..How::default() })?.into_vec())
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

/// The program that overwrites `targets`, which come first among the inputs: its outputs are stored in their dtypes.
pub(super) fn overwriting(
    formula: &Formula,
    targets: usize,
    inputs: &[&Tensor],
    params: &Params,
) -> Result<Arc<Program>> {
    let arrays: SmallVec<[&Array; 8]> = inputs.iter().map(|t| t.array()).collect();
    // Dtypes alone decide; the shape is anyone's.
    let shape = arrays.first().map_or(&Shape::scalar(), |a| a.shape()).clone();
    let call = Call { formula, params, shape: &shape, rows: AxisSet::default(), sum: None, number: None };
    let mut program = call.program(&arrays)?;
    let written = &arrays[..targets];
    let fits = |program: &Program| program.outputs.iter().zip(written).all(|(o, t)| o.storage == t.dtype());
    let narrows = |program: &Program| {
        let half = |t: &&Array| matches!(t.dtype(), DType::F16 | DType::BF16);
        program.outputs.iter().zip(written).all(|(o, t)| o.storage == t.dtype() || (o.storage.is_float() && half(t)))
    };
    if program.outputs.len() == targets && !fits(program) && narrows(program) {
        let full = formula.outputs().iter().position(|o| o.kind == Kind::Number).map(|k| program.outputs[k].storage);
        let signature = Signature::new(arrays.iter().map(|a| a.dtype()), full.unwrap_or(DType::F32));
        program = formula.program(&signature.storing(written.iter().map(|t| t.dtype())))?;
    }
    if program.outputs.len() != targets || !fits(program) {
        let mend = "every output overwrites one target, of its dtype";
        return Err(Error::dtypes(formula.name(), written.iter().map(|a| a.dtype()), mend));
    }
    Ok(program.clone())
}

fn only(mut outputs: SmallVec<[Tensor; 1]>) -> Tensor {
    debug_assert_eq!(outputs.len(), 1);
    outputs.pop().expect("a formula has an output")
}

/// A part of the backward computation: one gradient formula, which makes the gradients of `inputs`.
struct Part<'a> {
    gradient: &'a Gradient,
    /// Output k is the gradient of input `inputs[k]`.
    inputs: &'a [u8],
    /// The one input was broadcast: its gradient is summed to its shape.
    broadcast: bool,
}

impl Part<'_> {
    /// A gradient with the shape and dtype of its input.
    #[inline]
    fn fitted(&self, gradient: Tensor, target: &Meta) -> Result<Tensor> {
        if gradient.dtype() == target.dtype && (!self.broadcast || *gradient.shape() == target.shape) {
            return Ok(gradient);
        }
        ops::to_dtype(&ops::sum_to(&gradient, &target.shape)?, target.dtype)
    }
}

impl Tracked {
    /// Calls `each` with everything that backward has to compute; forward asks too, to know what to
    /// save. Inputs of full shape come last.
    fn parts(self, formula: &Formula, mut each: impl FnMut(Part<'_>) -> Result<()>) -> Result<()> {
        let Tracked { full, mut stretched } = self;
        while stretched != 0 {
            let i = stretched.trailing_zeros() as usize;
            stretched &= stretched - 1;
            let gradient = formula.gradient(Wanted::only(i));
            each(Part { gradient, inputs: &[i as u8], broadcast: true })?;
        }
        if full == Wanted::default() {
            return Ok(());
        }
        // The first input of every output; outputs are numbered as their first inputs come.
        let (mut firsts, mut outputs) = ([0u8; Wanted::MOST_INPUTS], 0);
        for i in 0..formula.inputs().len() {
            if full.output_of(i) == Some(outputs) {
                firsts[outputs] = i as u8;
                outputs += 1;
            }
        }
        each(Part { gradient: formula.gradient(full), inputs: &firsts[..outputs], broadcast: false })
    }
}

impl FormulaDerivative {
    /// The application again; `result` is the shape of its first result.
    #[inline]
    fn call<'a>(&'a self, result: &'a Shape) -> Call<'a> {
        let FormulaDerivative { formula, params, rows, sum, number, .. } = self;
        let shape = self.shape.as_deref().unwrap_or(result);
        Call { formula, params, shape, rows: *rows, sum: *sum, number: *number }
    }
}

/// The way back.
impl Call<'_> {
    /// Output `j` of the formula before it was summed.
    fn summands(&self, saved: &Saved, j: usize) -> Result<Tensor> {
        let inputs: SmallVec<[Tensor; 4]> = (0..saved.inputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        Ok(Call { sum: None, ..*self }.apply(&inputs, None)?.swap_remove(j))
    }

    /// One part of backward: its gradient formula, applied to what it reads.
    fn differentiate(
        &self,
        part: &Part,
        saved: &Saved,
        grads: &Gradients,
        needed: Needed,
        into: &mut InputGradients,
    ) -> Result<()> {
        let gradient = part.gradient;
        let mut computed = 0u64;
        for (k, &i) in part.inputs.iter().enumerate() {
            let i = i as usize;
            if !needed.contains(i) {
                continue;
            }
            if gradient.is_zero(k) {
                into[i] = Some(ops::zeros(saved.input_shape(i), saved.input_dtype(i))?);
            } else if let Some(j) = gradient.passes(k) {
                into[i] = Some(part.fitted(self.incoming(grads, j)?, saved.meta(i))?);
            } else {
                computed |= 1 << k;
            }
        }
        if computed != 0 {
            for (k, output) in self.apply_gradient(part, saved, grads, computed)?.into_iter().enumerate() {
                if computed >> k & 1 == 1 {
                    let i = part.inputs[k] as usize;
                    into[i] = Some(part.fitted(output, saved.meta(i))?);
                }
            }
        }
        Ok(())
    }

    /// The gradient of output `j` before it was summed: that of a sum is the same for every summand.
    fn incoming(&self, grads: &Gradients, j: usize) -> Result<Tensor> {
        let g = grads.get(j)?;
        if self.sum.is_some() { ops::broadcast_to(&g, self.shape) } else { Ok(g) }
    }

    /// The outputs of a part's gradient formula, of which those with a bit in `wanted` are used.
    fn apply_gradient(
        &self,
        part: &Part,
        saved: &Saved,
        grads: &Gradients,
        wanted: u64,
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let Part { gradient, inputs, broadcast } = part;
        let reads = &gradient.reads;
        let summed = *broadcast && !gradient.formula.is_row();
        let sum = summed.then(|| ops::stretched(&saved.meta(inputs[0] as usize).shape, self.shape));
        // What the formula reads may all be per row; the gradient still has one value an element.
        let mut call = Call { formula: &gradient.formula, sum, number: None, ..*self };
        if is_grad_enabled() || self.sum.is_some() {
            let read = |r: &Read| match *r {
                Read::Input(i) => saved.input(i),
                Read::Output(j) if self.sum.is_some() => self.summands(saved, j),
                Read::Output(j) => saved.output(j),
                Read::Gradient(j) => self.incoming(grads, j),
            };
            let operands: SmallVec<[Tensor; 4]> = reads.iter().map(read).collect::<Result<_>>()?;
            return call.apply(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>(), None);
        }
        // Nothing is recorded: arrays do, and an incoming gradient that nobody else can see lends its
        // memory to the result. (The part that is not a broadcast is the last that reads it.)
        let mut zeros: SmallVec<[Tensor; 2]> = SmallVec::new();
        for read in reads {
            if let Read::Gradient(j) = *read
                && grads.try_get(j).is_none()
            {
                zeros.push(grads.get(j)?);
            }
        }
        let mut sums: SmallVec<[Tensor; 2]> = SmallVec::new();
        let (mut zeros, mut lent) = (zeros.iter(), None);
        let mut arrays: SmallVec<[&Array; 4]> = SmallVec::new();
        for (k, read) in reads.iter().enumerate() {
            arrays.push(match *read {
                Read::Input(i) => saved.input_array(i)?,
                Read::Output(j) => saved.output_array(j)?,
                Read::Gradient(j) => match grads.try_get(j) {
                    Some(g) => {
                        if !broadcast && g.is_unique() {
                            lent = Some(k);
                        }
                        g.array()
                    }
                    None => zeros.next().expect("made above").array(),
                },
            });
        }
        // What has arrived for an input so far is read by the same kernel, which makes the sum.
        let mut added = 0;
        for (k, &i) in inputs.iter().enumerate().filter(|(k, _)| !broadcast && wanted >> k & 1 == 1) {
            if call.adds_exactly(saved.meta(i as usize), &arrays)
                && let Some(sum) = grads.take_sum(i as usize)
            {
                added |= 1 << k;
                sums.push(sum);
            }
        }
        if let [first, ..] = &sums[..] {
            call.formula = gradient.formula.adding(added);
            if first.is_unique() {
                lent = Some(arrays.len());
            }
            arrays.extend(sums.iter().map(|sum| sum.array()));
        }
        Ok(untracked(call.run(&arrays, lent)?))
    }
}

impl<'a> Call<'a> {
    /// The results, with their history if there is one.
    #[inline]
    fn apply(&self, inputs: &[&Tensor], reuse: Option<usize>) -> Result<SmallVec<[Tensor; 1]>> {
        let mut arrays: SmallVec<[&Array; 4]> = SmallVec::new();
        for input in inputs {
            arrays.push(input.array());
        }
        if is_recorded(inputs) {
            let tracked = self.tracked(inputs);
            let forward = |call: &&Call, saves: &mut Saves| call.saving(tracked, &arrays, saves);
            return record(self, inputs, &arrays, reuse, forward, |call, results| call.derivative(tracked, results));
        }
        Ok(untracked(self.run(&arrays, reuse)?))
    }

    /// True if the formula of these inputs makes elements of this shape and dtype and can add to them what an
    /// addition afterwards would: nothing is rounded in between.
    fn adds_exactly(&self, target: &Meta, inputs: &[&Array]) -> bool {
        let same = |(i, a): (&Input, &&Array)| i.kind != Kind::Number || a.dtype() == target.dtype;
        matches!(target.dtype, DType::F32 | DType::F64)
            && !self.formula.is_row()
            && target.shape == *self.shape
            && self.formula.inputs().iter().zip(inputs).all(same)
    }

    /// Which gradients backward will be asked for.
    fn tracked(&self, inputs: &[&Tensor]) -> Tracked {
        let described = self.formula.inputs();
        let (mut full, mut stretched, mut outputs) = (Wanted::default(), 0, 0);
        for (i, input) in inputs.iter().enumerate() {
            if !input.requires_grad() || described[i].kind != Kind::Number {
                continue;
            }
            let whole = if described[i].per_row {
                *input.shape() == self.rows.keepdims(self.shape)
            } else {
                input.shape() == self.shape
            };
            if !whole {
                stretched |= 1 << i;
                continue;
            }
            let twin = (0..i).filter(|&j| inputs[j].is_same(input)).find_map(|j| full.output_of(j));
            full = full.with(i, twin.unwrap_or(outputs));
            outputs += twin.is_none() as usize;
        }
        Tracked { full, stretched }
    }

    /// Runs it, and says what the gradients of these inputs read.
    fn saving(&self, tracked: Tracked, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        tracked.parts(self.formula, |part| {
            for read in &part.gradient.reads {
                match *read {
                    // A sum does not keep its summands: backward computes them again, from all inputs.
                    Read::Output(_) if self.sum.is_some() => (0..inputs.len()).for_each(|i| saves.input(i)),
                    Read::Input(i) => saves.input(i),
                    Read::Output(j) => saves.output(j),
                    Read::Gradient(_) => {}
                }
            }
            Ok(())
        })?;
        self.run(inputs, saves.reusable())
    }

    /// What its node keeps.
    #[inline]
    fn derivative(&self, tracked: Tracked, results: &[Array]) -> FormulaDerivative {
        let Call { formula, params, shape, rows, sum, number } = *self;
        let shape = (results[0].shape() != shape).then(|| Box::new(shape.clone()));
        FormulaDerivative { formula: formula.clone(), params: params.clone(), shape, rows, sum, number, tracked }
    }

    /// The program for these dtypes. Integers and truth values are taken to the first of `i64` and
    /// `f32` for which the formula is defined, where it is not defined for themselves.
    fn program(&self, inputs: &[&Array]) -> Result<&'a Arc<Program>> {
        let formula = self.formula;
        // Floats of one dtype and no index or mask: the common case, decided without more ado.
        if let [first, rest @ ..] = inputs
            && first.dtype().is_float()
            && self.number.is_none_or(|n| n == first.dtype())
            && rest.iter().all(|a| a.dtype() == first.dtype())
            && formula.is_plain()
        {
            return formula.uniform_program(first.dtype());
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
                return formula.uniform_program(number);
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

    fn run(&self, inputs: &[&Array], reuse: Option<usize>) -> Result<Arrays> {
        let program = self.program(inputs)?;
        let device = device_of(self.formula.name(), inputs)?;
        let plain = self.sum.is_none() && !program.is_row();
        if let (true, [store]) = (plain, &program.outputs[..]) {
            let eager = engine::mode() == engine::Mode::Eager;
            let fits = |a: &&Array| {
                eager && a.dtype() == store.storage && a.layout().is_contiguous() && a.shape() == self.shape
            };
            let reused = reuse.map(|r| inputs[r]).filter(fits);
            // The common case runs without a look at strides: inputs broadcast, so that equal sizes mean
            // equal elements.
            let (size, mut dense) = (checked_size(self.shape)?, SmallVec::<[Dense<'_>; 4]>::new());
            for array in inputs {
                let Some(one) = array.as_dense(size) else { break };
                dense.push(one);
            }
            if eager && dense.len() == inputs.len() {
                let storage = engine::map_dense(device, program, self.params, size, &dense, reused)?;
                let offset = reused.map_or(0, |a| a.layout().offset());
                return Ok(Arrays::from_buf([Array::dense(
                    storage,
                    offset,
                    store.storage,
                    self.shape.clone(),
                    device,
                )]));
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

fn device_of(op: &'static str, inputs: &[&Array]) -> Result<Device> {
    match inputs {
        [] => Ok(Device::cpu()),
        [one] => Ok(one.device()),
        [a, b] if a.device() == b.device() => Ok(a.device()),
        more => Device::common(op, more.iter().map(|a| a.device())),
    }
}

impl Derivative for FormulaDerivative {
    fn name(&self) -> &'static str {
        self.formula.name()
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients> {
        let call = self.call(grads.shape(0));
        let mut gradients: InputGradients = SmallVec::from_elem(None, self.formula.inputs().len());
        self.tracked.parts(&self.formula, |part| {
            if part.inputs.iter().any(|&i| needed.contains(i as usize)) {
                call.differentiate(&part, saved, grads, needed, &mut gradients)?;
            }
            Ok(())
        })?;
        Ok(gradients)
    }
}
