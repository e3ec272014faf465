//! In-place updates by a formula: of several tensors by one kernel, and of many such sets at once.

use super::formula::{broadcast, map_all, overwriting};
use super::in_place::{is_recorded_write, put_view};
use crate::autograd::{InPlaceWrite, is_grad_enabled};
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::formula::{Formula, Program};
use pellucid_ir::kernel::Params;
use pellucid_ir::{Error, Layout, Result, Scalar};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;

/// Overwrites `targets` with the outputs of a formula, whose first inputs they may be: an in-place
/// update of several tensors by one kernel. The formula's inputs are `targets` then `inputs`.
/// A number that was computed at full width may be stored in a half-width target: a copy for reading.
///
/// Outside of [`no_grad`](crate::no_grad), where a target or an input is tracked, the update is recorded: the formula is applied
/// to copies of the targets, and what it returns is written as by [`copy_`](crate::ops::copy_).
///
/// # Errors
/// [`Error::InPlaceOnTracked`] if a target is a leaf that requires a gradient, or a view of one, outside of `no_grad`;
/// [`Error::ShapeMismatch`] for shapes other than the targets', and for two targets that have an element in
/// common.
pub fn update(formula: &Formula, targets: &[&Tensor], inputs: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let all: SmallVec<[&Tensor; 8]> = targets.iter().chain(inputs).copied().collect();
    update_many(formula, targets.len(), &all, params)
}

/// [`update`] of many sets of tensors: `operands` has the targets and inputs of one set after those of the other, each with
/// so many targets. Where kernels run at once the sets are handed to the backend together, and share its threads: it is
/// how an optimizer updates all its parameters. No set reads or writes what another one writes, except by views that do not
/// overlap. Nothing is written unless all sets can be.
///
/// ```
/// use pellucid_tensor::{formula, ops, Tensor};
/// let (p, g) = (Tensor::from([1.0f32, 2.0]), Tensor::from([0.5f32, 0.5]));
/// let (q, h) = (Tensor::from([[3.0f32]]), Tensor::from([[1.0f32]]));
/// ops::update_many(formula!(|p, g; lr| p - lr * g), 1, &[&p, &g, &q, &h], &[2.0.into()])?;
/// assert_eq!((p.to_vec::<f32>(), q.to_vec::<f32>()), (vec![0.0, 1.0], vec![1.0]));
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`update`], for any of the sets; [`Error::InvalidArgument`] for a number of operands that is no multiple of a
/// set's.
pub fn update_many(formula: &Formula, targets: usize, operands: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let (op, count) = (formula.name(), formula.inputs().len());
    if targets > count || count == 0 || !operands.len().is_multiple_of(count) || params.len() != formula.params() {
        let takes = format!("takes {targets} targets of {count} tensors, and {} parameters", formula.params());
        let got = format!("{takes} a set; got {} and {}", operands.len(), params.len());
        return Err(Error::invalid(op, got));
    }
    let numbers = params;
    let params = Params::from(params);
    // Sets of the same dtypes, one after the other, have one program.
    let mut runs: SmallVec<[(Arc<Program>, usize); 1]> = SmallVec::new();
    let mut before: Option<&[&Tensor]> = None;
    for set in operands.chunks_exact(count) {
        for target in &set[..targets] {
            super::writable(op, target)?;
        }
        fits(op, &set[..targets], set)?;
        apart(op, &set[..targets])?;
        let alike = |other: &[&Tensor]| other.iter().zip(set).all(|(a, b)| a.dtype() == b.dtype());
        match runs.last_mut().filter(|_| before.is_some_and(alike)) {
            Some((_, sets)) => *sets += 1,
            None => runs.push((overwriting(formula, targets, set, &params)?, 1)),
        }
        before = Some(set);
    }
    if is_grad_enabled() && operands.iter().any(|t| t.requires_grad()) {
        return recorded(formula, targets, operands, numbers);
    }
    let arrays: SmallVec<[_; 8]> = operands.iter().map(|t| t.array()).collect();
    let mut rest = &arrays[..];
    for (program, sets) in runs {
        let (these, others) = rest.split_at(sets * count);
        engine::submit_map_batch(&program, &params, targets, these)?;
        rest = others;
    }
    Ok(())
}

/// [`update_many`] with a history. Everything is computed before the first write.
fn recorded(formula: &Formula, targets: usize, operands: &[&Tensor], params: &[Scalar]) -> Result<()> {
    let op = formula.name();
    let mut written: Vec<(&Tensor, Tensor)> = Vec::new();
    for set in operands.chunks_exact(formula.inputs().len()) {
        // What the formula's gradient reads of a target is its value before the write.
        let copies: SmallVec<[Tensor; 4]> = set[..targets].iter().map(|t| ops::copy(t)).collect::<Result<_>>()?;
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

/// Refuses two targets of one set that have an element in common.
fn apart(op: &'static str, targets: &[&Tensor]) -> Result<()> {
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

/// True if two layouts in one storage have an element in common.
fn share_elements(a: &Layout, b: &Layout) -> bool {
    let (first, second) = (a.extent(), b.extent());
    let ranges_meet = first.start < second.end && second.start < first.end;
    if !ranges_meet || a == b || a.is_contiguous() && b.is_contiguous() {
        return ranges_meet;
    }
    let (few, many) = if a.shape().size() <= b.shape().size() { (a, b) } else { (b, a) };
    let elements: HashSet<isize> = positions(few).collect();
    positions(many).any(|position| elements.contains(&position))
}

/// The positions of a layout's elements in its storage.
fn positions(layout: &Layout) -> impl Iterator<Item = isize> + '_ {
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    (0..layout.shape().size()).map(move |flat| {
        let step = |(rest, sum): (usize, isize), axis: usize| {
            (rest / dims[axis], sum + (rest % dims[axis]) as isize * strides[axis])
        };
        (0..dims.len()).rev().fold((flat, layout.offset() as isize), step).1
    })
}

/// Whether all of a set broadcast to the shape that every target has.
fn fits(op: &'static str, targets: &[&Tensor], set: &[&Tensor]) -> Result<()> {
    let Some(first) = targets.first() else { return Ok(()) };
    let shape = first.shape();
    let into = |t: &&Tensor| t.shape() == shape || t.rank() == 0;
    if set.iter().all(into) && targets.iter().all(|t| t.shape() == shape) {
        return Ok(());
    }
    let common = broadcast(op, set)?;
    match targets.iter().find(|t| *t.shape() != common) {
        Some(other) => {
            let help = "an in-place update cannot change its target's shape";
            Err(Error::shapes(op, [other.shape(), &common], help))
        }
        None => Ok(()),
    }
}
