//! Fusion: a kernel and one that reads what it makes become one, so that the value between them stays in registers.
//!
//! | what makes the value | what reads it | together |
//! | --- | --- | --- |
//! | map, copy | map, copy | map |
//! | map, copy | row | row |
//! | row | map, copy | row |
//! | row | row over the same rows | row |
//! | map, copy | reduction | reduction, with the map on the way in |
//! | reduction | map, copy of its result alone | reduction, with the map on the way out |
//! | matrix product | map, copy | matrix product, with the map as its epilogue |
//!
//! The value is rounded to the dtype in which it would have lain in memory ([`Splice`]), so no bit changes. If others
//! read it too, the one kernel stores it beside its own results.

use super::order::{Interleaving, replace};
use super::{Elision, Launch, Operand, Plan, Role};
use crate::dtype::Compute;
use crate::formula::{Load, Made, Program, Source, Splice, Spliced};
use crate::kernel::{Kernel, Map, MatMul, Params, Reduce, ReduceOp, Row};
use crate::shape::{Layout, Shape};
use std::sync::Arc;

/// Operands of a fused kernel at most.
const MOST_INPUTS: usize = 16;
const MOST_OUTPUTS: usize = 8;
/// Steps of its program at most.
const MOST_STEPS: usize = 192;
/// Bytes of a product that stays in a cache until its reader takes it as a whole.
const CACHED: usize = 4 << 20;
/// Launches that may lie between two that are fused although that keeps more memory than it frees.
const NEAR: usize = 4;

/// Fuses what can be, from the first launch to the last.
pub(super) fn fuse(mut plan: Plan) -> Plan {
    let mut rest = plan.launches.len();
    while rest > 0 {
        let mut at = plan.launches.len() - rest;
        rest -= 1;
        // What has been fused may be fused again, with what makes its other inputs.
        while let Some(place) = fuse_one(&mut plan, at) {
            at = place;
        }
    }
    plan
}

/// Fuses launch `j` with one that makes what it reads; the place of the two, if there is such.
fn fuse_one(plan: &mut Plan, j: usize) -> Option<usize> {
    let mut tried: Vec<usize> = Vec::new();
    for k in 0..plan.launches[j].inputs.len() {
        let slot = plan.launches[j].inputs[k].slot;
        let Some(i) = (0..j).rev().find(|&i| plan.launches[i].writes(slot)) else { continue };
        if tried.contains(&i) {
            continue;
        }
        tried.push(i);
        match pair(plan, i, j) {
            Ok(pair) => return Some(join(plan, i, j, pair)),
            Err(Some(why)) => {
                let note = (last_part(&plan.launches[i]), first_part(&plan.launches[j]), why);
                if !plan.notes.apart.contains(&note) {
                    plan.notes.apart.push(note);
                }
            }
            Err(None) => {}
        }
    }
    None
}

fn last_part(launch: &Launch) -> &'static str {
    launch.parts.last().copied().unwrap_or_else(|| launch.kernel.name())
}

fn first_part(launch: &Launch) -> &'static str {
    launch.parts.first().copied().unwrap_or_else(|| launch.kernel.name())
}

/// Two launches as one, and where it stands.
struct Pair {
    launch: Launch,
    meeting: Interleaving,
    up: bool,
    /// The first of the two stays as well, for others.
    keep: bool,
}

/// Why two launches stay apart: `None` where nobody would expect anything else.
type Apart = Option<&'static str>;

fn join(plan: &mut Plan, i: usize, j: usize, pair: Pair) -> usize {
    let Pair { launch, meeting, up, keep } = pair;
    let touched: Vec<_> = plan.launches[i].outputs.iter().map(|o| o.slot).collect();
    let parts = launch.parts.clone();
    let first = keep.then(|| plan.launches[i].clone());
    let mut at = replace(&mut plan.launches, i, j, launch, &meeting, up);
    if let Some(first) = first {
        plan.launches.insert(i, first);
        at += 1;
    }
    plan.elide(touched, &Elision::Fused(parts));
    at
}

/// The two launches as one, or why not.
fn pair(plan: &Plan, i: usize, j: usize) -> Result<Pair, Apart> {
    let (a, b) = (&plan.launches[i], &plan.launches[j]);
    let (maker, reader) = (Side::of(a).ok_or(None)?, Side::of(b).ok_or(None)?);
    // An update reads and writes several times as much as the product is; part by part that is no quicker than at once.
    let updates = b.outputs.iter().any(|o| plan.role(o.slot) == Role::State);
    if updates && matches!(a.kernel, Kernel::MatMul(_)) && a.outputs.iter().all(|o| o.bytes() < CACHED) {
        return Err(Some("the product is in a cache until the update reads it"));
    }
    let (maker, reader) = align(maker, reader)?;
    // Which outputs of the first must be stored: those that others see.
    let seen = |o: &Operand| {
        let overwritten = b.outputs.iter().any(|x| x == o);
        let others = plan.users(o.slot).any(|k| k != i && k != j);
        !overwritten && (plan.is_wanted(o.slot) || others)
    };
    // What reads nothing is made again by everybody who needs it.
    let again = a.inputs.is_empty() && matches!(a.kernel, Kernel::Map(_));
    let stored: Vec<bool> = a.outputs.iter().map(|o| !again && seen(o)).collect();
    let keep = again && a.outputs.iter().any(seen);
    let meeting = Interleaving::of(&plan.launches, i, j)
        .ok_or(Some("something between them needs the one and is needed by the other"))?;
    let launch = match (&a.kernel, &b.kernel) {
        (Kernel::Reduce(reduce), _) => finish(reduce, a, &maker, b, &reader, &stored)?,
        (_, Kernel::Reduce(reduce)) => reduced(reduce, a, &maker, b, &reader, &stored)?,
        (Kernel::MatMul(product), _) => epilogue(product, a, &maker, b, &reader, &stored)?,
        _ => elementwise(a, &maker, b, &reader, &stored)?,
    };
    if launch.inputs.len() > MOST_INPUTS || launch.outputs.len() > MOST_OUTPUTS || steps(&launch.kernel) > MOST_STEPS {
        return Err(Some("together they are too large"));
    }
    if !launch.is_sound() {
        return Err(Some("the one writes what the other reads in another layout"));
    }
    let costs = Costs::of(plan, i, j, &stored);
    if j - i > NEAR && costs.up.min(costs.down) > costs.saved {
        return Err(Some("what the first reads would be kept for longer than what it makes"));
    }
    Ok(Pair { launch, meeting, up: costs.up < costs.down, keep })
}

/// Bytes that are kept for longer if the two stand where the first stood (`up`) or the second (`down`), and those
/// that are kept no more.
struct Costs {
    up: usize,
    down: usize,
    saved: usize,
}

impl Costs {
    fn of(plan: &Plan, i: usize, j: usize, stored: &[bool]) -> Costs {
        let (a, b) = (&plan.launches[i], &plan.launches[j]);
        let mut seen = Vec::new();
        let mut ends = |o: &&Operand| {
            let new = !seen.contains(&o.slot);
            seen.push(o.slot);
            let own = matches!(plan.role(o.slot), Role::Own | Role::Input) && !plan.is_wanted(o.slot);
            new && own && plan.users(o.slot).next_back().is_some_and(|last| last < j)
        };
        let down = a.inputs.iter().filter(&mut ends).map(|o| plan.slots[o.slot]).sum();
        let made = |o: &&Operand| plan.role(o.slot) == Role::Own && plan.users(o.slot).next() == Some(j);
        let up = b.outputs.iter().filter(made).map(|o| plan.slots[o.slot]).sum();
        let saved = a.outputs.iter().zip(stored).filter(|(_, s)| !**s).map(|(o, _)| plan.slots[o.slot]).sum();
        Costs { up, down, saved }
    }
}

fn steps(kernel: &Kernel) -> usize {
    match kernel {
        Kernel::Map(k) => k.program.steps.len(),
        Kernel::Row(k) => k.program.steps.len(),
        Kernel::Reduce(k) => k.program.steps.len(),
        Kernel::MatMul(k) => k.epilogue.as_ref().map_or(0, |p| p.steps.len()),
        _ => 0,
    }
}

/// A launch with its index space, and its operands over that.
struct Side {
    space: Shape,
    /// The shape of what it makes.
    made: Shape,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    /// All operands are elementwise: the space may be cut otherwise.
    free: bool,
}

impl Side {
    fn of(launch: &Launch) -> Option<Side> {
        let (inputs, outputs) = (launch.inputs.clone(), launch.outputs.clone());
        let first = outputs.first()?.layout.shape().clone();
        let (space, made) = match &launch.kernel {
            Kernel::Map(_) | Kernel::Copy | Kernel::MatMul(_) => (first.clone(), first),
            Kernel::Row(_) => (common(inputs.iter().chain(&outputs))?, common(inputs.iter().chain(&outputs))?),
            Kernel::Reduce(_) => (common(&inputs)?, first),
            _ => return None,
        };
        let free = matches!(launch.kernel, Kernel::Map(_) | Kernel::Copy);
        Some(Side { space, made, inputs, outputs, free })
    }

    /// The same launch over a space of another shape.
    fn over(&self, space: &Shape) -> Option<Side> {
        let cut = |o: &Operand| {
            let layout = o.layout.broadcast_to(&self.space)?.reshape(space)?;
            Some(Operand { layout, ..o.clone() })
        };
        let all = |list: &[Operand]| list.iter().map(cut).collect::<Option<Vec<_>>>();
        let (inputs, outputs) = (all(&self.inputs)?, all(&self.outputs)?);
        Some(Side { space: space.clone(), made: space.clone(), inputs, outputs, free: self.free })
    }
}

/// The shape to which all operands broadcast.
fn common<'a>(operands: impl IntoIterator<Item = &'a Operand>) -> Option<Shape> {
    operands.into_iter().try_fold(Shape::scalar(), |shape, o| shape.broadcast(o.layout.shape()))
}

/// Both launches over one space.
fn align(maker: Side, reader: Side) -> Result<(Side, Side), Apart> {
    if maker.made == reader.space {
        return Ok((maker, reader));
    }
    if maker.made.size() != reader.space.size() {
        return Err(None);
    }
    if reader.free
        && let Some(cut) = reader.over(&maker.made)
    {
        return Ok((maker, cut));
    }
    match maker.over(&reader.space) {
        Some(cut) if maker.free => Ok((cut, reader)),
        _ => Err(Some("their shapes do not fit")),
    }
}

/// An elementwise kernel as its program.
fn program_of(launch: &Launch) -> Option<(Arc<Program>, Params)> {
    Some(match &launch.kernel {
        Kernel::Map(k) => (k.program.clone(), k.params.clone()),
        Kernel::Row(k) => (k.program.clone(), k.params.clone()),
        Kernel::Reduce(k) => (k.program.clone(), k.params.clone()),
        Kernel::Copy => (Arc::new(Program::cast(launch.inputs[0].dtype, launch.outputs[0].dtype)), Params::new()),
        _ => return None,
    })
}

/// A map or a copy as its program.
fn map_of(launch: &Launch) -> Result<(Arc<Program>, Params), Apart> {
    let is_map = matches!(launch.kernel, Kernel::Map(_) | Kernel::Copy);
    program_of(launch).filter(|_| is_map).ok_or(None)
}

/// True if the same elements lie at the same places, however the one is stretched.
fn same_view(a: &Operand, b: &Operand, space: &Shape) -> bool {
    let full = |o: &Operand| o.layout.broadcast_to(space);
    a.slot == b.slot && a.dtype == b.dtype && (a.layout == b.layout || full(a).is_some_and(|x| full(b) == Some(x)))
}

/// Arrays of a fused kernel, each once.
#[derive(Default)]
struct Arrays(Vec<Operand>);

impl Arrays {
    fn number(&mut self, operand: &Operand) -> usize {
        self.0.iter().position(|o| o == operand).unwrap_or_else(|| {
            self.0.push(operand.clone());
            self.0.len() - 1
        })
    }

    fn of(&self, spliced: &Spliced) -> Vec<Operand> {
        spliced.arrays.iter().map(|&k| self.0[k].clone()).collect()
    }
}

/// The sources of the reader's inputs: what the maker has made, or arrays.
fn sources(reader: &Side, maker: &Side, made: &[Made], arrays: &mut Arrays) -> Result<Vec<Source>, Apart> {
    let source = |x: &Operand| {
        if let Some(k) = maker.outputs.iter().position(|o| same_view(o, x, &reader.space)) {
            return Ok(Source::Made(made[k]));
        }
        if maker.outputs.iter().any(|o| o.slot == x.slot) {
            return Err(Some("it is read in another layout"));
        }
        if is_scattered(&x.layout) {
            return Err(Some("a transposition is quicker by itself"));
        }
        Ok(Source::Array(arrays.number(x)))
    };
    reader.inputs.iter().map(source).collect()
}

/// True for a layout whose neighbours along the last axis lie apart.
fn is_scattered(layout: &Layout) -> bool {
    let inner = layout.shape().iter().zip(&*layout.strides()).rev().find(|(d, _)| **d > 1).map_or(1, |(_, s)| *s);
    !(0..=1).contains(&inner)
}

/// The maker as the first part of a program.
fn first_part_of(splice: &mut Splice, a: &Launch, maker: &Side, arrays: &mut Arrays) -> Result<Vec<Made>, Apart> {
    let (program, params) = program_of(a).ok_or(None)?;
    if maker.inputs.iter().chain(&maker.outputs).any(|o| is_scattered(&o.layout)) {
        return Err(Some("a transposition is quicker by itself"));
    }
    let inputs: Vec<Source> = maker.inputs.iter().map(|o| Source::Array(arrays.number(o))).collect();
    splice.part(&program, &params, &inputs).map_err(Some)
}

fn fused_parts(a: &Launch, b: &Launch) -> Vec<&'static str> {
    a.parts().into_iter().chain(b.parts()).collect()
}

/// The outputs of both: those of the second, then those of the first that are stored.
fn outputs(maker: &Side, made: &[Made], stored: &[bool], reader: &Side, read: Vec<Made>) -> (Vec<Operand>, Vec<Made>) {
    let mut operands = reader.outputs.clone();
    let mut values = read;
    for ((o, m), _) in maker.outputs.iter().zip(made).zip(stored).filter(|(_, s)| **s) {
        operands.push(o.clone());
        values.push(*m);
    }
    (operands, values)
}

/// Maps and rows as one map or row.
fn elementwise(a: &Launch, maker: &Side, b: &Launch, reader: &Side, stored: &[bool]) -> Result<Launch, Apart> {
    let axes = |l: &Launch| match &l.kernel {
        Kernel::Row(k) => Some(k.axes),
        _ => None,
    };
    if maker.space != reader.space || matches!((axes(a), axes(b)), (Some(x), Some(y)) if x != y) {
        return Err(Some("their rows are not the same"));
    }
    let rows = axes(a).or(axes(b));
    let (mut splice, mut arrays) = (Splice::new(rows.is_some()), Arrays::default());
    let made = first_part_of(&mut splice, a, maker, &mut arrays)?;
    let inputs = sources(reader, maker, &made, &mut arrays)?;
    let (program, params) = program_of(b).ok_or(None)?;
    let read = splice.part(&program, &params, &inputs).map_err(Some)?;
    let (outputs, values) = outputs(maker, &made, stored, reader, read);
    let spliced = splice.finish("fused", &values).map_err(Some)?;
    let inputs = arrays.of(&spliced);
    let (program, params) = (Arc::new(spliced.program), spliced.params);
    if rows.is_some() && common(inputs.iter().chain(&outputs)).as_ref() != Some(&reader.space) {
        return Err(Some("their rows would have no length"));
    }
    let kernel = match rows {
        Some(axes) => Kernel::Row(Row { axes, program, params }),
        None => Kernel::Map(Map { program, params }),
    };
    Ok(Launch { kernel, inputs, outputs, parts: fused_parts(a, b) })
}

/// A map on the way into a reduction.
fn reduced(
    reduce: &Reduce,
    a: &Launch,
    maker: &Side,
    b: &Launch,
    reader: &Side,
    stored: &[bool],
) -> Result<Launch, Apart> {
    if matches!(a.kernel, Kernel::Row(_) | Kernel::MatMul(_)) {
        return Err(None);
    }
    if stored.contains(&true) {
        return Err(Some("others read it too, and a reduction stores nothing but its result"));
    }
    let (mut splice, mut arrays) = (Splice::new(false), Arrays::default());
    let made = first_part_of(&mut splice, a, maker, &mut arrays)?;
    let inputs = sources(reader, maker, &made, &mut arrays)?;
    let read = splice.part(&reduce.program, &reduce.params, &inputs).map_err(Some)?;
    let spliced = splice.finish("fused", &read).map_err(Some)?;
    let inputs = arrays.of(&spliced);
    // The shape that is reduced is that of the inputs.
    if common(&inputs).as_ref() != Some(&reader.space) {
        return Err(Some("what is reduced would have no shape"));
    }
    let kernel =
        Kernel::Reduce(Reduce { program: Arc::new(spliced.program), params: spliced.params, ..reduce.clone() });
    Ok(Launch { kernel, inputs, outputs: b.outputs.clone(), parts: fused_parts(a, b) })
}

/// A map on the way out of a reduction.
fn finish(
    reduce: &Reduce,
    a: &Launch,
    maker: &Side,
    b: &Launch,
    reader: &Side,
    stored: &[bool],
) -> Result<Launch, Apart> {
    let (program, params) = map_of(b)?;
    if stored.contains(&true) || reader.outputs.len() != 1 {
        return Err(None);
    }
    let accumulator = match reduce.op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => Compute::I64,
        _ => reduce.program.outputs[0].compute,
    };
    let mut splice = Splice::new(false);
    let load = Load { storage: accumulator.storage(), compute: accumulator, per_row: false };
    let made = match &reduce.finish {
        Some(finish) => splice.part(finish, &reduce.finish_params, &[Source::Array(0)]).map_err(Some)?,
        None => vec![splice.load_as(0, load, reduce.output)],
    };
    let space = maker.outputs[0].layout.shape();
    let alone = |x: &Operand| same_view(&maker.outputs[0], x, space).then_some(Source::Made(made[0]));
    let inputs: Vec<Source> = reader.inputs.iter().map(alone).collect::<Option<_>>().ok_or(None)?;
    let read = splice.part(&program, &params, &inputs).map_err(Some)?;
    let spliced = splice.finish("fused", &read).map_err(Some)?;
    if spliced.arrays != [0] || spliced.program.inputs[0] != load {
        return Err(None);
    }
    let kernel = Kernel::Reduce(Reduce {
        finish: Some(Arc::new(spliced.program)),
        finish_params: spliced.params,
        output: reader.outputs[0].dtype,
        ..reduce.clone()
    });
    Ok(Launch { kernel, inputs: a.inputs.clone(), outputs: reader.outputs.clone(), parts: fused_parts(a, b) })
}

/// A map as a matrix product's epilogue.
fn epilogue(
    product: &MatMul,
    a: &Launch,
    maker: &Side,
    b: &Launch,
    reader: &Side,
    stored: &[bool],
) -> Result<Launch, Apart> {
    let (program, params) = map_of(b)?;
    // Array 0 is the product; the others follow.
    let (mut splice, mut arrays) = (Splice::new(false), Arrays::default());
    let (dtype, space) = (a.inputs[0].dtype, &maker.space);
    let own = Operand { slot: usize::MAX, layout: Layout::contiguous(space.clone()), dtype };
    arrays.number(&own);
    let whole = splice.load(0, dtype);
    let made = match &product.epilogue {
        Some(epilogue) => {
            let extra = maker.inputs[2..].iter().map(|o| Source::Array(arrays.number(o)));
            let inputs: Vec<Source> = [Source::Array(0)].into_iter().chain(extra).collect();
            splice.part(epilogue, &product.params, &inputs).map_err(Some)?
        }
        None => vec![whole],
    };
    let inputs = sources(reader, maker, &made, &mut arrays)?;
    let read = splice.part(&program, &params, &inputs).map_err(Some)?;
    let (outputs, values) = outputs(maker, &made, stored, reader, read);
    let spliced = splice.finish("fused", &values).map_err(Some)?;
    if spliced.arrays[1..].contains(&0) {
        return Err(Some("the product is read in two types"));
    }
    let inputs = a.inputs[..2].iter().cloned().chain(arrays.of(&spliced).into_iter().skip(1)).collect();
    let kernel = Kernel::MatMul(MatMul { epilogue: Some(Arc::new(spliced.program)), params: spliced.params });
    Ok(Launch { kernel, inputs, outputs, parts: fused_parts(a, b) })
}
