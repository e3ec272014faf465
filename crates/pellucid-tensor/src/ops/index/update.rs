//! In-place updates by a formula: several tensors by one kernel, and many sets of tensors together.

use crate::autograd::{InPlaceWrite, on_device_of};
use crate::engine;
use crate::grad_mode::is_grad_enabled;
use crate::ops::formula::{broadcast, map_all, overwriting};
use crate::ops::index::in_place;
use crate::ops::index::in_place::{is_recorded_write, put_view};
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::backend::share_elements;
use pellucid_ir::formula::{Formula, Program};
use pellucid_ir::kernel::Params;
use pellucid_ir::{Error, Result, Scalar};
use smallvec::SmallVec;
use std::sync::Arc;

/// Overwrites `targets` with the outputs of a formula, by one kernel. The formula's inputs are `targets`, then
/// `inputs`.
///
/// A target may have a narrower float dtype than the computation; the written value is then rounded.
///
/// Outside [`no_grad`](crate::no_grad), an update with a tracked target or input is recorded: the formula is applied
/// to copies of the targets, and its outputs are written as by [`copy_`](crate::ops::copy_).
///
/// # Errors
/// [`Error::InPlaceOnTracked`] if a target is a leaf that requires a gradient, or a view of one, outside `no_grad`;
/// [`Error::ShapeMismatch`] for shapes that do not broadcast to the shapes of the targets, and for two targets with a
/// common element.
#[operation(transparent)]
pub fn update(formula: &Formula, targets: &[&Tensor], inputs: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let operands: SmallVec<[&Tensor; 8]> = targets.iter().chain(inputs).copied().collect();
    update_many(formula, targets.len(), &operands, params)
}

/// Applies [`update`] to many sets of tensors, for example to all parameters of an optimizer.
///
/// `operands` contains the sets one after another, each with its targets first. `targets` is the number of targets of a
/// set. In eager mode, all sets are submitted to the backend together, and may run in parallel. A set must not read or
/// write the elements that another set writes. If a set is invalid, nothing is written.
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let (p, g) = (Tensor::from([1.0f32, 2.0]), Tensor::from([0.5f32, 0.5]));
/// let (q, h) = (Tensor::from([[3.0f32]]), Tensor::from([[1.0f32]]));
/// ops::update_many(formula!(|p, g; lr| p - lr * g), 1, &[&p, &g, &q, &h], &[2.0.into()])?;
/// assert_eq!((p.to_vec::<f32>(), q.to_vec::<f32>()), (vec![0.0, 1.0], vec![1.0]));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`update`] for any set; [`Error::InvalidArgument`] unless the number of operands is a multiple of the
/// size of a set.
#[operation(transparent)]
pub fn update_many(formula: &Formula, targets: usize, operands: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let (op, count) = (formula.name(), formula.inputs().len());
    if targets > count || count == 0 || !operands.len().is_multiple_of(count) || params.len() != formula.params() {
        let takes = format!(
            "the operands must be sets of {count} tensors, {targets} of them targets, and the formula has {} \
             parameters",
            formula.params()
        );
        let got = format!("{takes}; got {} tensors and {} parameters", operands.len(), params.len());
        return Err(Error::invalid(op, got));
    }
    let (scalars, params) = (params, Params::from(params));
    let placed = on_target_devices(op, targets, count, operands)?;
    let refs: Vec<&Tensor>;
    let operands = match &placed {
        None => operands,
        Some(placed) => {
            refs = placed.iter().collect();
            &refs
        }
    };
    // Consecutive sets with the same dtypes share a program.
    let mut runs: SmallVec<[(Arc<Program>, usize); 1]> = SmallVec::new();
    let mut before: Option<&[&Tensor]> = None;
    for set in operands.chunks_exact(count) {
        for target in &set[..targets] {
            in_place::check_writable(op, target)?;
        }
        check_shapes(op, &set[..targets], set)?;
        check_targets_disjoint(op, &set[..targets])?;
        let alike = |other: &[&Tensor]| other.iter().zip(set).all(|(a, b)| a.dtype() == b.dtype());
        match runs.last_mut().filter(|_| before.is_some_and(alike)) {
            Some((_, sets)) => *sets += 1,
            None => runs.push((overwriting(formula, targets, set, &params)?, 1)),
        }
        before = Some(set);
    }
    if is_grad_enabled() && operands.iter().any(|t| t.requires_grad()) {
        return update_recorded(formula, targets, operands, scalars);
    }
    let arrays: SmallVec<[_; 8]> = operands.iter().map(|t| t.array()).collect();
    let mut rest = &arrays[..];
    for (program, sets) in runs {
        let (run_operands, following) = rest.split_at(sets * count);
        engine::submit_map_batch(&program, &params, targets, run_operands)?;
        rest = following;
    }
    Ok(())
}

/// Returns all operands on the device of the first target of their set, or `None` if no operand must be copied.
fn on_target_devices(
    op: &'static str,
    targets: usize,
    count: usize,
    operands: &[&Tensor],
) -> Result<Option<Vec<Tensor>>> {
    let [first, rest @ ..] = operands else { return Ok(None) };
    if targets == 0 || rest.iter().all(|t| t.device() == first.device()) {
        return Ok(None);
    }
    let placed =
        |set: &[&Tensor]| set.iter().map(|operand| on_device_of(op, set[0], operand)).collect::<Result<Vec<Tensor>>>();
    Ok(Some(operands.chunks_exact(count).map(placed).collect::<Result<Vec<_>>>()?.concat()))
}

/// Runs [`update_many`] with autograd recording. Everything is computed before the first write.
fn update_recorded(formula: &Formula, targets: usize, operands: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let op = formula.name();
    let mut written: Vec<(&Tensor, Tensor)> = Vec::new();
    for set in operands.chunks_exact(formula.inputs().len()) {
        // The formula is applied to copies, because its gradient reads the values of the targets before the write.
        let copies: SmallVec<[Tensor; 4]> = set[..targets].iter().map(|t| copy::copy(t)).collect::<Result<_>>()?;
        let inputs: SmallVec<[&Tensor; 8]> = copies.iter().chain(set[targets..].iter().copied()).collect();
        let values = map_all(formula, &inputs, params)?;
        written.extend(set[..targets].iter().copied().zip(values));
    }
    for (target, value) in &written {
        if is_recorded_write(target, value) {
            InPlaceWrite::new(op, target, target.array())?;
        }
    }
    written.iter().try_for_each(|(target, value)| put_view(op, target, target.array(), value))
}

/// Returns an error if two targets of one set have a common element.
fn check_targets_disjoint(op: &'static str, targets: &[&Tensor]) -> Result<()> {
    let overlap = |a: &Tensor, b: &Tensor| {
        let (a, b) = (a.array(), b.array());
        a.shares_storage(b) && share_elements(a.layout(), b.layout())
    };
    for (i, target) in targets.iter().enumerate() {
        if let Some(other) = targets[..i].iter().find(|other| overlap(other, target)) {
            let help = "two targets of one update share elements; write into a copy() of one of them";
            return Err(Error::shapes(op, [other.shape(), target.shape()], help));
        }
    }
    Ok(())
}

/// Returns an error unless all operands of a set broadcast to the shape of its targets.
fn check_shapes(op: &'static str, targets: &[&Tensor], set: &[&Tensor]) -> Result<()> {
    let Some(first) = targets.first() else { return Ok(()) };
    let shape = first.shape();
    let into = |t: &&Tensor| t.shape() == shape || t.rank() == 0;
    if set.iter().all(into) && targets.iter().all(|t| t.shape() == shape) {
        return Ok(());
    }
    let common = broadcast(op, set)?;
    match targets.iter().find(|t| *t.shape() != common) {
        Some(other) => {
            let help = "an in-place update cannot change the shape of its target; the operands must broadcast to it";
            Err(Error::shapes(op, [other.shape(), &common], help))
        }
        None => Ok(()),
    }
}
