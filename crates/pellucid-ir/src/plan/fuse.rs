//! Fusion: a producer kernel and a consumer of its result become one kernel, and the value between them stays in
//! registers.
//!
//! | producer | consumer | fused kernel |
//! | --- | --- | --- |
//! | map, copy | map, copy | map |
//! | map, copy | row | row |
//! | row | map, copy | row |
//! | row | row over the same rows | row |
//! | map, copy | reduction | reduction with the map applied to its inputs |
//! | reduction | map, copy | reduction with the map applied to its result |
//! | matrix product | map, copy | matrix product, with the map as its epilogue |
//!
//! Two fusions are for [launch-bound](Plan::is_launch_bound) plans only: a map with other operands on the result of a
//! reduction, and a map with a result of one element, which the fused kernel recomputes for each element of the
//! consumer.
//!
//! The value is rounded to the dtype in which it would have been stored ([`Splice`]), so no bit changes. If other
//! launches or the caller read the value too, the fused kernel stores it as an additional output, unless it is a fill,
//! which each reader recomputes. If the fused kernel cannot store the value, the launches stay separate.

mod result;

use super::order::{Interleaving, replace_pair};
use super::{Elision, Launch, Plan, SlotRole, SlotView};
use crate::formula::{Op, Program, Splice, SpliceOperand, Spliced, SplicedValue, Step};
use crate::kernel::{Kernel, Map, Params, Reduce, Row};
use crate::shape::{Layout, Shape};
use std::sync::Arc;

/// The maximum number of inputs of a fused kernel.
const MAX_INPUTS: usize = 16;
/// The maximum number of outputs of a fused kernel.
const MAX_OUTPUTS: usize = 8;
/// The maximum number of instructions of a fused program.
const MAX_STEPS: usize = 192;
/// The number of instructions that a function such as tanh counts as in a launch-bound plan. The device compiles the
/// source of each function into the kernel, so functions dominate the compile time. A `Row` kernel contains a function
/// once for each later pass over the row: one pass for each later reduction, and one for the outputs.
const FUNCTION_STEPS: usize = 12;
/// The size in bytes below which a product is assumed to be still in a cache when the next kernel reads it.
const MAX_CACHED_BYTES: usize = 4 << 20;
/// The maximum distance, in launches, of two launches that are fused even if the fusion extends the lifetime of more
/// memory than it frees.
const MAX_FUSION_DISTANCE: usize = 4;

/// Fuses all launches that can be fused, in the order of the plan.
pub(super) fn fuse(mut plan: Plan) -> Plan {
    let mut remaining = plan.launches.len();
    while remaining > 0 {
        let mut at = plan.launches.len() - remaining;
        remaining -= 1;
        // The fused launch may be fused again, with the producers of its other inputs.
        while let Some(fused) = fuse_with_producer(&mut plan, at) {
            at = fused;
        }
    }
    plan
}

/// Fuses launch `j` with a producer of one of its inputs. Returns the index of the fused launch; `None` if there is
/// no such producer.
fn fuse_with_producer(plan: &mut Plan, j: usize) -> Option<usize> {
    let mut tried_producers: Vec<usize> = Vec::new();
    for k in 0..plan.launches[j].inputs.len() {
        let slot = plan.launches[j].inputs[k].slot;
        let Some(i) = (0..j).rev().find(|&i| plan.launches[i].writes(slot)) else { continue };
        if tried_producers.contains(&i) {
            continue;
        }
        tried_producers.push(i);
        match fuse_pair(plan, i, j) {
            Ok(pair) => return Some(apply_fusion(plan, i, j, pair)),
            Err(Some(why)) => {
                let note = (last_part(&plan.launches[i]), first_part(&plan.launches[j]), why);
                if !plan.report.unfused.contains(&note) {
                    plan.report.unfused.push(note);
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

/// Two launches fused into one, and how the fused launch replaces them in the plan.
struct FusedPair {
    launch: Launch,
    interleaving: Interleaving,
    /// Whether the fused launch takes the position of the producer instead of the consumer.
    at_producer: bool,
    /// Whether the producer is also kept as a separate launch, for other readers.
    keeps_producer: bool,
}

/// The reason why two launches are not fused; `None` if the report omits the pair, because its fusion is not to be
/// expected.
type FusionRejection = Option<&'static str>;

/// Replaces launches `i` and `j` by the fused launch. Returns the index of the fused launch.
fn apply_fusion(plan: &mut Plan, i: usize, j: usize, pair: FusedPair) -> usize {
    let FusedPair { launch, interleaving, at_producer, keeps_producer } = pair;
    let touched: Vec<_> = plan.launches[i].outputs.iter().map(|o| o.slot).collect();
    let parts = launch.parts.clone();
    let first = keeps_producer.then(|| plan.launches[i].clone());
    let mut position = replace_pair(&mut plan.launches, i, j, launch, &interleaving, at_producer);
    if let Some(first) = first {
        plan.launches.insert(i, first);
        position += 1;
    }
    plan.elide(touched, &Elision::Fused(parts));
    position
}

/// Fuses launches `i` and `j`, or returns why they stay unfused.
fn fuse_pair(plan: &Plan, i: usize, j: usize) -> Result<FusedPair, FusionRejection> {
    let (a, b) = (&plan.launches[i], &plan.launches[j]);
    let (producer, mut consumer) = (FusionSide::from_launch(a).ok_or(None)?, FusionSide::from_launch(b).ok_or(None)?);
    let finish = finish_reading(b, a);
    if finish.is_some() {
        consumer.space = consumer.result.clone();
    }
    // An update of a state reads and writes several times as many bytes as the product contains. As an epilogue, which
    // runs tile by tile, it is not faster than as a separate kernel.
    let updates = b.outputs.iter().any(|o| plan.role(o.slot) == SlotRole::State);
    if updates
        && !plan.is_launch_bound
        && matches!(a.kernel, Kernel::MatMul(_))
        && a.outputs.iter().all(|o| o.bytes() < MAX_CACHED_BYTES)
    {
        return Err(Some("the product is still in a cache when the update reads it"));
    }
    // Outputs of the producer that other launches or the caller read must be stored.
    let is_read_elsewhere = |o: &SlotView| {
        let overwritten = b.outputs.iter().any(|x| x == o);
        let others = plan.users(o.slot).any(|k| k != i && k != j);
        !overwritten && (plan.is_wanted(o.slot) || others)
    };
    // A fill is fused into each of its readers, which recompute it.
    let is_recomputed = a.inputs.is_empty() && matches!(a.kernel, Kernel::Map(_));
    let stored: Vec<bool> = a.outputs.iter().map(|o| !is_recomputed && is_read_elsewhere(o)).collect();
    let keeps_producer = is_recomputed && a.outputs.iter().any(is_read_elsewhere);
    let repeats = plan.is_launch_bound && !stored.contains(&true);
    let (producer, consumer) = align_spaces(producer, consumer, repeats)?;
    let interleaving = Interleaving::between(plan, i, j)
        .ok_or(Some("a launch between them depends on the first and feeds the second"))?;
    let pair = LaunchPair { producer, consumer, stored };
    let launch = match (&a.kernel, &b.kernel) {
        (_, Kernel::Reduce(reduce)) if let Some(finish) = finish => pair.fuse_into_finish(reduce, finish)?,
        (Kernel::Reduce(reduce), _) => pair.fuse_finish(reduce, plan.is_launch_bound)?,
        (_, Kernel::Reduce(reduce)) => pair.fuse_into_reduction(reduce)?,
        (Kernel::MatMul(product), _) => pair.fuse_epilogue(product)?,
        _ => pair.fuse_elementwise()?,
    };
    if launch.inputs.len() > MAX_INPUTS
        || launch.outputs.len() > MAX_OUTPUTS
        || instruction_count(&launch.kernel, plan.is_launch_bound) > MAX_STEPS
    {
        return Err(Some("the fused kernel would have too many operands or instructions"));
    }
    if !launch.is_sound() {
        return Err(Some("an output of the fused kernel would overlap another operand that it must not overwrite"));
    }
    let costs = LifetimeCosts::compute(plan, i, j, &pair.stored);
    if j - i > MAX_FUSION_DISTANCE && costs.at_producer.min(costs.at_consumer) > costs.freed {
        return Err(Some("fusing would keep more memory alive than it frees"));
    }
    Ok(FusedPair { launch, interleaving, at_producer: costs.at_producer < costs.at_consumer, keeps_producer })
}

/// The effect of a fusion on memory, in bytes.
struct LifetimeCosts {
    /// Bytes that are live for longer if the fused launch takes the position of the producer.
    at_producer: usize,
    /// Bytes that are live for longer if the fused launch takes the position of the consumer.
    at_consumer: usize,
    /// Bytes of results that are no longer stored.
    freed: usize,
}

impl LifetimeCosts {
    fn compute(plan: &Plan, i: usize, j: usize, stored: &[bool]) -> LifetimeCosts {
        let (a, b) = (&plan.launches[i], &plan.launches[j]);
        let mut seen = Vec::new();
        let mut ends = |o: &&SlotView| {
            let new = !seen.contains(&o.slot);
            seen.push(o.slot);
            let in_arena = matches!(plan.role(o.slot), SlotRole::Scratch | SlotRole::Input) && !plan.is_wanted(o.slot);
            new && in_arena && plan.users(o.slot).next_back().is_some_and(|last| last < j)
        };
        let at_consumer = a.inputs.iter().filter(&mut ends).map(|o| plan.slots[o.slot]).sum();
        let is_new = |o: &&SlotView| plan.role(o.slot) == SlotRole::Scratch && plan.users(o.slot).next() == Some(j);
        let at_producer = b.outputs.iter().filter(is_new).map(|o| plan.slots[o.slot]).sum();
        let freed = a.outputs.iter().zip(stored).filter(|(_, s)| !**s).map(|(o, _)| plan.slots[o.slot]).sum();
        LifetimeCosts { at_producer, at_consumer, freed }
    }
}

/// Returns the number of instructions of the programs of a kernel. If `functions` is set, a function such as tanh
/// counts as [`FUNCTION_STEPS`] instructions in each pass over a row that computes it.
fn instruction_count(kernel: &Kernel, functions: bool) -> usize {
    let count = |program: &Program| {
        let mut passes = 1;
        let step_cost = |step: &Step| {
            passes += usize::from(matches!(step.op, Op::Reduce(_)));
            if functions && step.op.is_transcendental() { FUNCTION_STEPS * passes } else { 1 }
        };
        program.steps.iter().rev().map(step_cost).sum::<usize>()
    };
    match kernel {
        Kernel::MatMul(k) => k.epilogue.as_ref().map_or(0, |p| count(p)),
        Kernel::Reduce(k) => count(&k.program).max(k.finish.as_ref().map_or(0, |p| count(p))),
        other => other.program().map_or(0, |(program, _)| count(program)),
    }
}

/// The producer or the consumer of a fusion, with its index space and its operands as views over this space.
struct FusionSide<'a> {
    launch: &'a Launch,
    space: Shape,
    /// The shape of the result.
    result: Shape,
    inputs: Vec<SlotView>,
    outputs: Vec<SlotView>,
    /// Whether all operands are elementwise, so that the index space may be reshaped.
    is_elementwise: bool,
    /// Whether the result of the launch is one element, which the fused kernel recomputes for each element of the other
    /// launch.
    is_repeated: bool,
}

impl<'a> FusionSide<'a> {
    fn from_launch(launch: &'a Launch) -> Option<FusionSide<'a>> {
        let (inputs, outputs) = (launch.inputs.clone(), launch.outputs.clone());
        let first = outputs.first()?.layout.shape().clone();
        let (space, result) = match &launch.kernel {
            Kernel::Map(_) | Kernel::Copy | Kernel::MatMul(_) => (first.clone(), first),
            Kernel::Row(_) => {
                (broadcast_shape(inputs.iter().chain(&outputs))?, broadcast_shape(inputs.iter().chain(&outputs))?)
            }
            Kernel::Reduce(reduce) => (broadcast_shape(&inputs[..reduce.program.inputs.len()])?, first),
            _ => return None,
        };
        let is_elementwise = matches!(launch.kernel, Kernel::Map(_) | Kernel::Copy);
        Some(FusionSide { launch, space, result, inputs, outputs, is_elementwise, is_repeated: false })
    }

    /// Returns the same launch over the index space `space`; `None` if an operand cannot be viewed in this shape.
    fn broadcast_to_space(&self, space: &Shape) -> Option<FusionSide<'a>> {
        let reshape_view = |o: &SlotView| {
            let layout = o.layout.broadcast_to(&self.space)?.reshape(space)?;
            Some(SlotView { layout, ..o.clone() })
        };
        let map_views = |list: &[SlotView]| list.iter().map(reshape_view).collect::<Option<Vec<_>>>();
        let (inputs, outputs) = (map_views(&self.inputs)?, map_views(&self.outputs)?);
        Some(FusionSide { space: space.clone(), result: space.clone(), inputs, outputs, ..*self })
    }

    /// Returns the launch, whose result must be one element, as a launch that computes this element for each element of
    /// `space`.
    fn repeated_over(&self, space: &Shape) -> Option<FusionSide<'a>> {
        let scalar_view = |o: &SlotView| Some(SlotView { layout: o.layout.reshape(&Shape::scalar())?, ..o.clone() });
        let broadcast_view =
            |o: &SlotView| Some(SlotView { layout: scalar_view(o)?.layout.broadcast_to(space)?, ..o.clone() });
        Some(FusionSide {
            launch: self.launch,
            space: space.clone(),
            result: space.clone(),
            inputs: self.inputs.iter().map(scalar_view).collect::<Option<_>>()?,
            outputs: self.outputs.iter().map(broadcast_view).collect::<Option<_>>()?,
            is_elementwise: self.is_elementwise,
            is_repeated: true,
        })
    }
}

/// Returns the shape to which all operands broadcast.
fn broadcast_shape<'a>(operands: impl IntoIterator<Item = &'a SlotView>) -> Option<Shape> {
    Shape::broadcast_all(operands.into_iter().map(|o| o.layout.shape()))
}

/// Reshapes one of the launches so that both have the same index space. With `repeats`, a producer whose result has one
/// element may compute it for each element of the consumer.
fn align_spaces<'a>(
    producer: FusionSide<'a>,
    consumer: FusionSide<'a>,
    repeats: bool,
) -> Result<(FusionSide<'a>, FusionSide<'a>), FusionRejection> {
    if producer.result == consumer.space {
        return Ok((producer, consumer));
    }
    if producer.result.size() != consumer.space.size() {
        let repeated = (repeats && producer.is_elementwise && producer.result.size() == 1)
            .then(|| producer.repeated_over(&consumer.space));
        return Ok((repeated.flatten().ok_or(None)?, consumer));
    }
    if consumer.is_elementwise
        && let Some(reshaped) = consumer.broadcast_to_space(&producer.result)
    {
        return Ok((producer, reshaped));
    }
    match producer.broadcast_to_space(&consumer.space) {
        Some(reshaped) if producer.is_elementwise => Ok((reshaped, consumer)),
        _ => Err(Some("the shapes of the two launches have no common index space")),
    }
}

/// Returns the program that a kernel applies to its inputs, and the parameters of the program; `None` if there is none.
fn program_of(launch: &Launch) -> Option<(Arc<Program>, Params)> {
    if launch.kernel == Kernel::Copy {
        let cast = Program::cast(launch.inputs[0].dtype, launch.outputs[0].dtype);
        return Some((Arc::new(cast), Params::new()));
    }
    launch.kernel.program().map(|(program, params)| (program.clone(), params.clone()))
}

/// Returns the program of a map or copy, and its parameters.
fn map_of(launch: &Launch) -> Result<(Arc<Program>, Params), FusionRejection> {
    let is_map = matches!(launch.kernel, Kernel::Map(_) | Kernel::Copy);
    program_of(launch).filter(|_| is_map).ok_or(None)
}

/// Returns true if both operands have the same slot, dtype and, after broadcasting to `space`, the same layout.
fn same_view(a: &SlotView, b: &SlotView, space: &Shape) -> bool {
    let full = |o: &SlotView| o.layout.broadcast_to(space);
    a.slot == b.slot && a.dtype == b.dtype && (a.layout == b.layout || full(a).is_some_and(|x| full(b) == Some(x)))
}

/// The distinct arrays that a fused kernel reads.
#[derive(Default)]
struct FusedArrays(Vec<SlotView>);

impl FusedArrays {
    fn number(&mut self, operand: &SlotView) -> usize {
        self.0.iter().position(|o| o == operand).unwrap_or_else(|| {
            self.0.push(operand.clone());
            self.0.len() - 1
        })
    }

    fn select(&self, spliced: &Spliced) -> Vec<SlotView> {
        spliced.arrays.iter().map(|&k| self.0[k].clone()).collect()
    }
}

/// Returns true if the innermost stride is neither 0 nor 1.
fn is_scattered(layout: &Layout) -> bool {
    let inner = layout.shape().iter().zip(&*layout.strides()).rev().find(|(d, _)| **d > 1).map_or(1, |(_, s)| *s);
    !(0..=1).contains(&inner)
}

/// Two launches over the same index space that are to be fused.
struct LaunchPair<'a> {
    producer: FusionSide<'a>,
    consumer: FusionSide<'a>,
    /// Whether each output of the producer is stored.
    stored: Vec<bool>,
}

impl LaunchPair<'_> {
    /// Returns the source of each of the `inputs` of the consumer: a result of the producer, or an array in memory.
    fn sources(
        &self,
        inputs: &[SlotView],
        produced: &[SplicedValue],
        arrays: &mut FusedArrays,
    ) -> Result<Vec<SpliceOperand>, FusionRejection> {
        let results = &self.producer.outputs;
        let source = |x: &SlotView| {
            if let Some(k) = results.iter().position(|o| same_view(o, x, &self.consumer.space)) {
                return Ok(SpliceOperand::Value(produced[k]));
            }
            if results.iter().any(|o| o.slot == x.slot) {
                return Err(Some("the consumer reads the result in another layout"));
            }
            if is_scattered(&x.layout) {
                return Err(Some("a transposed copy is faster as a separate kernel"));
            }
            Ok(SpliceOperand::Array(arrays.number(x)))
        };
        inputs.iter().map(source).collect()
    }

    /// Adds the producer to `splice` as the first part of the fused program.
    fn splice_producer(
        &self,
        splice: &mut Splice,
        arrays: &mut FusedArrays,
    ) -> Result<Vec<SplicedValue>, FusionRejection> {
        let FusionSide { launch, inputs, outputs, is_repeated, .. } = &self.producer;
        let (mut program, params) = program_of(launch).ok_or(None)?;
        if *is_repeated && splice.has_rows() {
            program = Arc::new(program.with_per_row_operands());
        }
        if inputs.iter().chain(outputs).any(|o| is_scattered(&o.layout)) {
            return Err(Some("a transposed copy is faster as a separate kernel"));
        }
        let inputs: Vec<SpliceOperand> = inputs.iter().map(|o| SpliceOperand::Array(arrays.number(o))).collect();
        splice.append(&program, &params, &inputs).map_err(Some)
    }

    /// Returns the outputs of the fused kernel with their values: all outputs of the consumer, with the values `read`,
    /// then the stored outputs of the producer.
    fn outputs(&self, produced: &[SplicedValue], read: Vec<SplicedValue>) -> (Vec<SlotView>, Vec<SplicedValue>) {
        let (mut operands, mut values) = (self.consumer.outputs.clone(), read);
        for ((o, m), _) in self.producer.outputs.iter().zip(produced).zip(&self.stored).filter(|(_, s)| **s) {
            operands.push(o.clone());
            values.push(*m);
        }
        (operands, values)
    }

    /// Returns the fused launch.
    fn launch(&self, kernel: Kernel, inputs: Vec<SlotView>, outputs: Vec<SlotView>) -> Launch {
        Launch::fused(kernel, inputs, outputs, (self.producer.launch, self.consumer.launch))
    }

    /// Fuses maps and row kernels into one map or row kernel.
    fn fuse_elementwise(&self) -> Result<Launch, FusionRejection> {
        let LaunchPair { producer, consumer, .. } = self;
        let axes = |side: &FusionSide<'_>| match &side.launch.kernel {
            Kernel::Row(k) => Some(k.axes),
            _ => None,
        };
        if producer.space != consumer.space || matches!((axes(producer), axes(consumer)), (Some(x), Some(y)) if x != y)
        {
            return Err(Some("the rows of the two launches differ"));
        }
        let rows = axes(producer).or(axes(consumer));
        let (mut splice, mut arrays) = (Splice::new(rows.is_some()), FusedArrays::default());
        let produced = self.splice_producer(&mut splice, &mut arrays)?;
        let inputs = self.sources(&consumer.inputs, &produced, &mut arrays)?;
        let (program, params) = program_of(consumer.launch).ok_or(None)?;
        let read = splice.append(&program, &params, &inputs).map_err(Some)?;
        let (outputs, values) = self.outputs(&produced, read);
        let spliced = splice.finish("fused", &values).map_err(Some)?;
        let inputs = arrays.select(&spliced);
        let (program, params) = (Arc::new(spliced.program), spliced.params);
        if rows.is_some() && broadcast_shape(inputs.iter().chain(&outputs)).as_ref() != Some(&consumer.space) {
            return Err(Some("no operand of the fused kernel would have the full length of a row"));
        }
        let kernel = match rows {
            Some(axes) => Kernel::Row(Row { axes, program, params }),
            None => Kernel::Map(Map { program, params }),
        };
        Ok(self.launch(kernel, inputs, outputs))
    }

    /// Fuses a map into the inputs of a reduction.
    fn fuse_into_reduction(&self, reduce: &Reduce) -> Result<Launch, FusionRejection> {
        let LaunchPair { producer, consumer, stored } = self;
        if matches!(producer.launch.kernel, Kernel::Row(_) | Kernel::MatMul(_)) {
            return Err(None);
        }
        if stored.contains(&true) {
            return Err(Some("the value is also read elsewhere, and a reduction stores only its result"));
        }
        let (reduced, finishing) = consumer.inputs.split_at(reduce.program.inputs.len());
        // If the reduced axes have length 1, the finishing program may read the value too. It is a separate program, so
        // it cannot read registers of the program of the reduction.
        if finishing.iter().any(|x| producer.launch.writes(x.slot)) {
            return Err(Some("the finishing program also reads the value, and a reduction stores only its result"));
        }
        let (mut splice, mut arrays) = (Splice::new(false), FusedArrays::default());
        let produced = self.splice_producer(&mut splice, &mut arrays)?;
        let inputs = self.sources(reduced, &produced, &mut arrays)?;
        let read = splice.append(&reduce.program, &reduce.params, &inputs).map_err(Some)?;
        let spliced = splice.finish("fused", &read).map_err(Some)?;
        let mut inputs = arrays.select(&spliced);
        // The index space of a reduction is the shape to which its inputs broadcast.
        if broadcast_shape(&inputs).as_ref() != Some(&consumer.space) {
            return Err(Some("the inputs of the fused kernel would not have the shape that is reduced"));
        }
        inputs.extend_from_slice(finishing);
        let kernel =
            Kernel::Reduce(Reduce { program: Arc::new(spliced.program), params: spliced.params, ..reduce.clone() });
        Ok(self.launch(kernel, inputs, consumer.launch.outputs.clone()))
    }
}

/// Returns the finishing program of reduction `b` if the finishing program reads results of `a` and the reduction
/// itself does not.
fn finish_reading<'a>(b: &'a Launch, a: &Launch) -> Option<&'a Arc<Program>> {
    let Kernel::Reduce(reduce) = &b.kernel else { return None };
    let (reduced, finishing) = b.inputs.split_at(reduce.program.inputs.len());
    let reads = |operands: &[SlotView]| operands.iter().any(|x| a.writes(x.slot));
    reduce.finish.as_ref().filter(|_| reads(finishing) && !reads(reduced))
}
