//! `Reduce`: reductions over axes, with a program for the inputs and one for the result.
//!
//! The reduced elements of one output form a sequence of N elements in row-major order. It is divided into P parts:
//! part p has the elements p, p + P, p + 2P, ... P depends only on N and on the loops of the program, not on the number
//! of outputs. One invocation reduces one part in order. A second dispatch reduces the P partial results of each
//! output: by one invocation in order if P is less than the size of a workgroup, otherwise by a
//! [workgroup](crate::shader::workgroup). Sums of `f32` are compensated (Neumaier 1974).

use super::GpuFamily;
use super::shared::axes::axes_space;
use super::shared::parts::PartSizes;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts, is_countable};
use crate::shader::{
    Accumulator, AccumulatorOp, BindingUse, BufferRef, CollectLines, CombinedLanes, MergedAxes, ProgramValues,
    ShaderBuilder, TieRule, WORKGROUP, compute_program, convert_expr, is_elementwise_supported, max_items,
    program_iterations, store_finished, values,
};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::{Binary, Program};
use pellucid_ir::kernel::{Reduce, ReduceOp, common_shape};
use pellucid_ir::{Compute, Error, Result, Shape};

/// Returns the sizes of the parts of a sequence whose elements each need `iterations` loop iterations. One invocation
/// reduces up to 128 elements without a second dispatch.
fn part_sizes(iterations: usize) -> PartSizes {
    PartSizes { undivided: 128, small: 64, few_parts: 256, large: 1024, limit: max_items(iterations) }
}

/// Returns the operation of a reduction.
fn reduction(op: ReduceOp) -> AccumulatorOp {
    let arg = |largest| AccumulatorOp::Arg { largest, ties: TieRule::LowestIndex };
    match op {
        ReduceOp::Sum => AccumulatorOp::Fold(Binary::Add),
        ReduceOp::Prod => AccumulatorOp::Fold(Binary::Mul),
        ReduceOp::Max => AccumulatorOp::Fold(Binary::Max),
        ReduceOp::Min => AccumulatorOp::Fold(Binary::Min),
        ReduceOp::Any => AccumulatorOp::Fold(Binary::Or),
        ReduceOp::All => AccumulatorOp::Fold(Binary::And),
        ReduceOp::ArgMax => arg(true),
        ReduceOp::ArgMin => arg(false),
    }
}

/// Returns the type of the accumulator, or `None` if the reduction is not defined for the dtypes.
fn accumulator_compute(kernel: &Reduce) -> Option<Compute> {
    let value = kernel.program.outputs.first()?.compute;
    let consumer = match &kernel.finish {
        Some(finish) => finish.inputs.first()?.compute,
        None => kernel.output.compute(),
    };
    kernel.op.accumulator(value, consumer)
}

impl GpuFamily for Reduce {
    fn is_supported(&self) -> bool {
        let programs = [Some(&self.program), self.finish.as_ref()];
        // The finishing program reads the result of the reduction.
        let is_finished = |compute: Compute| {
            let result = self.op.result(compute).storage();
            self.finish.as_ref().is_none_or(|finish| finish.inputs[0].storage == result)
        };
        programs.into_iter().flatten().all(|program| is_elementwise_supported(program))
            && accumulator_compute(self).is_some_and(is_finished)
    }

    fn supports_operands(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> bool {
        // The inputs broadcast, so they may have fewer elements than the kernel visits.
        common_shape(&inputs[..self.program.inputs.len()]).is_some_and(|shape| is_countable(&shape))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let compute = accumulator_compute(self).ok_or_else(|| {
            Error::invalid(self.program.name, "shaders cannot compute this reduction for these dtypes")
        })?;
        let reduction = reduction(self.op);
        let (reduced, finishing) = operands.inputs.split_at(self.program.inputs.len());
        let shape = common_shape(reduced).unwrap_or(Shape::scalar());
        let (count, length) = (self.axes.keepdims(&shape).size(), self.axes.count(&shape));
        if count == 0 {
            return Ok(());
        }
        let iterations = program_iterations(&self.program) + reduction.iterations(compute);
        let parts = part_sizes(iterations).part_count(length);
        let launch =
            ReductionLaunch { kernel: self, reduction, compute, reduced, finishing, outputs: &operands.outputs };
        if parts == 1 {
            launch.reduce_inputs(list, &shape, None);
        } else {
            let partial = list.scratch(count * parts * reduction.partial_words(compute) * 4);
            launch.reduce_inputs(list, &shape, Some((partial, parts)));
            launch.reduce_partials(list, partial, count, parts);
        }
        Ok(())
    }
}

/// Reduces a part of a row in every invocation.
const REDUCE_PART: &str = "
    let part = $part;
    let row = $row;
    $compute_bases
    $declare_variables
    for (var index = part; index < $length; index = index + $parts) {
        $reduce_element
    }
    $store
";

/// Reduces the partial results of an output, in order or in a workgroup.
const REDUCE_PARTIALS: &str = "
    $compute_offsets
    $declare_variables
    for (var part = $first; part < $parts; part = part + $step) {
        let slot = ($output * $parts + part) * $words;
        $reduce_partial
    }
    $combine
    let reduced = $combined;
    $return_others
    $store
";

/// A kernel with its reduction and its operands.
struct ReductionLaunch<'a> {
    kernel: &'a Reduce,
    reduction: AccumulatorOp,
    /// The type of the accumulator.
    compute: Compute,
    /// The inputs of the program.
    reduced: &'a [DeviceArray<'a>],
    /// The other inputs of the finishing program.
    finishing: &'a [DeviceArray<'a>],
    outputs: &'a [DeviceArray<'a>],
}

/// Returns the expressions of the part and the row of an invocation. Neighbouring invocations read neighbouring
/// elements. `parts` and `rows` are the part and row counts.
fn assign_parts(kept: &MergedAxes, reduced: &MergedAxes, parts: &str, rows: &str) -> (String, String) {
    let step = |space: &MergedAxes| {
        space.strides.first().and_then(|s| s.iter().filter(|&&s| s != 0).map(|s| s.unsigned_abs()).min())
    };
    let parts_first = step(reduced).unwrap_or(usize::MAX) <= step(kept).unwrap_or(usize::MAX);
    match parts_first {
        true => (format!("thread % {parts}"), format!("thread / {parts}")),
        false => (format!("thread / {rows}"), format!("thread % {rows}")),
    }
}

impl ReductionLaunch<'_> {
    /// Adds the dispatch that reduces the inputs, to partial results in a buffer if they have several parts.
    fn reduce_inputs(&self, list: &mut DispatchList<'_>, shape: &Shape, partial: Option<(BufferRef, usize)>) {
        let (program, inputs, axes) = (&self.kernel.program, self.reduced.len(), self.kernel.axes);
        // Without partial results, this dispatch also applies the finishing program.
        let (finishing, outputs) = if partial.is_some() { (&[][..], &[][..]) } else { (self.finishing, self.outputs) };
        let arrays = [self.reduced, finishing, outputs].concat();
        let kept = axes_space(&arrays, shape, |axis| !axes.contains(axis));
        let reduced = axes_space(self.reduced, shape, |axis| axes.contains(axis));
        let (count, length) = (axes.keepdims(shape).size(), axes.count(shape));
        let parts = partial.map_or(1, |(_, parts)| parts);

        let mut shader = ShaderBuilder::for_threads(count * parts);
        let bindings = Bindings::new(&mut shader, &arrays[..inputs + finishing.len()], outputs);
        let partial_binding = partial.map(|(buffer, _)| shader.binding(buffer, BindingUse::Write));
        let [parts, length, rows] = shader.declare_words([parts, length, count]);
        let starts = declare_starts(&mut shader, &arrays);
        let (part, row) = assign_parts(&kept, &reduced, &parts, &rows);
        let [kept, reduced] = [kept, reduced].map(|space| space.declare(&mut shader));
        let mut values = ProgramValues::declare(&mut shader, program, 0, 0);
        let (finishing_values, result_compute) =
            (self.declare_finish(&mut shader), self.kernel.op.result(self.compute));

        let (compute_bases, bases) = shader.collect_result(|shader| kept.offsets(shader, "row", &starts));
        let (declare_variables, accumulator) = shader.collect_result(|shader| self.declare_accumulator(shader));
        let reduce_element = shader.collect_lines(|shader| {
            let elements = bindings.elements(reduced.offsets(shader, "index", &bases[..inputs]));
            compute_program(shader, program, &mut values, 0, &elements);
            let stored = program.outputs[0];
            let value = shader.define(convert_expr(stored.compute, self.compute, values.value(stored.value)));
            accumulator.accumulate(shader, &value, "index");
        });
        let store = shader.collect_lines(|shader| match partial_binding {
            None => {
                let result = shader.define(accumulator.result());
                store_finished(shader, finishing_values, &result, result_compute, &bindings.elements(bases)[inputs..]);
            }
            Some(binding) => {
                let words = self.reduction.partial_words(self.compute);
                shader.line(format!("let slot = (row * {parts} + part) * {words}u;"));
                accumulator.store_partial(shader, binding, "slot");
            }
        });
        let space = values![part, row, length, parts];
        let lines = values![compute_bases, declare_variables, reduce_element, store];
        shader.template(REDUCE_PART, &[&space[..], lines].concat());
        list.dispatch(program.name, shader);
    }

    /// Adds the dispatch that reduces the partial results of `count` outputs.
    fn reduce_partials(&self, list: &mut DispatchList<'_>, partial: BufferRef, count: usize, parts: usize) {
        // With at least as many parts as invocations, a workgroup reduces the parts of an output.
        let in_workgroup = parts >= WORKGROUP as usize;
        let (mut shader, output, first, step) = match in_workgroup {
            true => (ShaderBuilder::for_groups(count), "group", "local", WORKGROUP as usize),
            false => (ShaderBuilder::for_threads(count), "thread", "0u", 1),
        };
        let bindings = Bindings::new(&mut shader, self.finishing, self.outputs);
        let binding = shader.binding(partial, BindingUse::Read);
        let arrays = [self.finishing, self.outputs].concat();
        let space = axes_space(&arrays, self.outputs[0].shape(), |_| true);
        let parts = shader.declare_word(parts);
        let starts = declare_starts(&mut shader, &arrays);
        let space = space.declare(&mut shader);
        let (finishing_values, result_compute) =
            (self.declare_finish(&mut shader), self.kernel.op.result(self.compute));
        let (compute_offsets, offsets) = shader.collect_result(|shader| space.offsets(shader, output, &starts));
        let (declare_variables, accumulator) = shader.collect_result(|shader| self.declare_accumulator(shader));
        let reduce_partial = shader.collect_lines(|shader| accumulator.accumulate_partial(shader, binding, "slot"));
        let (combine, combined) = shader.collect_result(|shader| match in_workgroup {
            true => {
                let lanes = CombinedLanes { count: &format!("{WORKGROUP}u"), subgroups: list.features.subgroups };
                accumulator.combine_in_workgroup(shader, "shared", lanes)
            }
            false => accumulator.result(),
        });
        let return_others = if in_workgroup { "if (local > 0u) { return; }" } else { "" };
        let elements = bindings.elements(offsets);
        let store = shader
            .collect_lines(|shader| store_finished(shader, finishing_values, "reduced", result_compute, &elements));
        let [step, words] = [step, self.reduction.partial_words(self.compute)].map(|v| format!("{v}u"));
        let space = values![output, parts, first, step, words];
        let lines =
            values![compute_offsets, declare_variables, reduce_partial, combine, combined, return_others, store];
        shader.template(REDUCE_PARTIALS, &[&space[..], lines].concat());
        list.dispatch(self.kernel.program.name, shader);
    }

    fn declare_accumulator(&self, shader: &mut ShaderBuilder) -> Accumulator {
        Accumulator::declare(shader, self.reduction, self.compute, "result")
    }

    /// Declares the uniforms of the finishing program, if any. Returns the program and the names of its values.
    fn declare_finish(&self, shader: &mut ShaderBuilder) -> Option<(&Program, ProgramValues)> {
        let finish = self.kernel.finish.as_deref()?;
        Some((finish, ProgramValues::declare(shader, finish, self.kernel.params.len(), 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_long_sequences_and_are_never_empty() {
        for length in (1..600).chain([10_000, 1 << 14, (1 << 14) + 1, 300_000, 1 << 20, 25_000_000, u32::MAX as usize])
        {
            for iterations in [0, 100, 3000] {
                let parts = part_sizes(iterations).part_count(length);
                assert!(parts >= 1 && parts <= length);
                assert!(length.div_ceil(parts) <= max_items(iterations));
            }
            assert!(part_sizes(0).part_count(length).div_ceil(WORKGROUP as usize) <= 1 << 15);
        }
        let lengths = [0, 128, 129, 1 << 14, 1 << 18, 1 << 20];
        assert_eq!(lengths.map(|length| part_sizes(0).part_count(length)), [1, 1, 3, 256, 256, 1024]);
        assert_eq!(part_sizes(3000).part_count(100), 6);
    }
}
