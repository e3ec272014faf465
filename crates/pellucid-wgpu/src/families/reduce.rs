//! `Reduce`: reductions over axes, with a program for the inputs and one for the result.
//!
//! The reduced elements of one output form a sequence of N elements in row-major order. It is divided into P parts,
//! where P depends on N alone: part p has the elements p, p + P, p + 2P, ... One invocation reduces one part in order.
//! A second dispatch reduces the P partial results of each output: by one invocation in order if P is less than the
//! size of a workgroup, otherwise by a [workgroup](crate::shader::workgroup). Sums of `f32` accumulate rounding errors.

use super::GpuFamily;
use super::shared::axes::axes_space;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, BufferRef, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::iterations::{MAX_ITERATIONS, iterations};
use crate::shader::parameters::{Parameters, words};
use crate::shader::program::{
    Accumulator, ProgramValues, binary_text, convert_text, is_supported, precedes_text, program_iterations,
};
use crate::shader::types::type_text;
use crate::shader::workgroup::{InvocationValue, combine_in_workgroup, combine_values};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Reduce, ReduceOp, common_shape};
use pellucid_ir::{Compute, Error, Result, Shape};

/// The maximum number of elements that one invocation reduces without a second dispatch.
const MAX_SERIAL: usize = 128;

/// The maximum number of parts of a reduced sequence, if an element is computed without loops.
const MAX_PARTS: usize = 1 << 17;

/// Returns the number of parts of a sequence of `length` elements: up to 256 parts of 64 elements or more, then parts
/// of 1024 elements, then [`MAX_PARTS`]. There are more parts if the loops of an element have `iterations`, so that no
/// invocation has more than [`MAX_ITERATIONS`].
fn part_count(length: usize, iterations: usize) -> usize {
    let min_parts = length.saturating_mul(1 + iterations).div_ceil(MAX_ITERATIONS);
    let parts = match length {
        0..=MAX_SERIAL => 1,
        _ => length.div_ceil(64).min(length.div_ceil(1024).clamp(256, MAX_PARTS)),
    };
    parts.max(min_parts).clamp(1, length.max(1))
}

/// The operation of a reduction and the type of its accumulator.
#[derive(Clone, Copy, Debug)]
struct GpuReduction {
    /// The operation that combines values, or `None` for arg max and arg min.
    combine: Option<Binary>,
    /// Whether arg max or arg min is computed.
    finds_largest: bool,
    /// The type of the accumulator.
    compute: Compute,
}

impl GpuReduction {
    /// Returns the action of a kernel, or `None` if it is not defined for the dtypes.
    fn new(kernel: &Reduce) -> Option<GpuReduction> {
        let value = kernel.program.outputs.first()?.compute;
        let wanted = match &kernel.finish {
            Some(finish) => finish.inputs.first()?.compute,
            None => kernel.output.compute(),
        };
        let adds = matches!(kernel.op, ReduceOp::Sum | ReduceOp::Prod);
        let is_arg = matches!(kernel.op, ReduceOp::ArgMax | ReduceOp::ArgMin);
        // Sums and products of integers with a wider result type accumulate in the wider type.
        let compute = match (value, wanted) {
            (Compute::Mask, _) if is_arg => Compute::I32,
            (Compute::Mask, Compute::Mask) if adds => Compute::I32,
            (Compute::Mask, wider) if adds => wider,
            (Compute::I32, Compute::I64) if adds => Compute::I64,
            _ => value,
        };
        let combine = match kernel.op {
            ReduceOp::Sum => Some(Binary::Add),
            ReduceOp::Prod => Some(Binary::Mul),
            ReduceOp::Max => Some(Binary::Max),
            ReduceOp::Min => Some(Binary::Min),
            ReduceOp::Any => Some(Binary::Or),
            ReduceOp::All => Some(Binary::And),
            ReduceOp::ArgMax | ReduceOp::ArgMin => None,
        };
        let of_masks = matches!(kernel.op, ReduceOp::Any | ReduceOp::All);
        let defined = of_masks <= (compute == Compute::Mask);
        defined.then_some(GpuReduction { combine, finds_largest: kernel.op == ReduceOp::ArgMax, compute })
    }

    /// Returns an estimate of the iterations of the loops that combine two values.
    fn iterations(&self) -> usize {
        iterations(&match self.combine {
            Some(op) => binary_text(op, self.compute, "x", "y").unwrap_or_default(),
            None => self.is_preferred(("x", "i"), ("y", "j")),
        })
    }

    /// Returns the type of the result.
    fn result(&self) -> Compute {
        if self.combine.is_some() { self.compute } else { Compute::I64 }
    }

    /// Returns the words of a partial result.
    fn partial_words(&self) -> usize {
        words(self.compute) + usize::from(self.combine.is_none())
    }
}

impl GpuFamily for Reduce {
    fn is_supported(&self) -> bool {
        let programs = [Some(&self.program), self.finish.as_ref()];
        // The finishing program reads the result of the reduction.
        let is_finished = |action: GpuReduction| {
            self.finish.as_ref().is_none_or(|finish| finish.inputs[0].storage == action.result().storage())
        };
        programs.into_iter().flatten().all(|p| is_supported(p) && !p.is_row())
            && GpuReduction::new(self).is_some_and(is_finished)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let Some(action) = GpuReduction::new(self) else { return Ok(()) };
        let (reduced, finishing) = operands.inputs.split_at(self.program.inputs.len());
        let shape = common_shape(reduced).unwrap_or(Shape::scalar());
        let (count, length) = (self.axes.keepdims(&shape).size(), self.axes.count(&shape));
        if count == 0 {
            return Ok(());
        }
        let launch = ReductionLaunch { kernel: self, action };
        let parts = part_count(length, program_iterations(&self.program) + action.iterations());
        if count.checked_mul(parts.max(length)).is_none_or(|total| total > u32::MAX as usize) {
            return Err(Error::invalid(self.program.name, "the reduction has more than 2^32 elements"));
        }
        if parts == 1 {
            return launch.reduce_inputs(list, operands, &shape, None);
        }
        let partial = list.scratch(count * parts * action.partial_words() * 4);
        launch.reduce_inputs(list, operands, &shape, Some((partial, parts)))?;
        launch.reduce_partials(list, (finishing, &operands.outputs), partial, (count, parts))
    }
}

/// The variables of a reduction in the text of a shader.
enum ReductionLines {
    Fold(Accumulator),
    /// The extremum and its index.
    Arg(GpuReduction),
}

impl ReductionLines {
    fn declare(shader: &mut ShaderBuilder, action: GpuReduction) -> ReductionLines {
        match action.combine {
            Some(op) => ReductionLines::Fold(Accumulator::declare(shader, op, action.compute, "result")),
            None => {
                shader.line(format!("var best: {};", type_text(action.compute)));
                shader.line("var best_index = 0xffffffffu;");
                ReductionLines::Arg(action)
            }
        }
    }

    /// Adds the lines that reduce `value`, which has the index `index` in the sequence.
    fn reduce(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        match self {
            ReductionLines::Fold(accumulator) => accumulator.accumulate(shader, value),
            ReductionLines::Arg(action) => {
                let preferred = action.is_preferred((value, index), ("best", "best_index"));
                shader.line(format!("if (best_index == 0xffffffffu || {preferred}) {{"));
                shader.line(format!("    best = {value};"));
                shader.line(format!("    best_index = {index};"));
                shader.line("}");
            }
        }
    }

    /// Adds the lines that combine the results of the invocations of a workgroup, each of which has reduced a value,
    /// and returns the text of the result.
    fn combine(&self, shader: &mut ShaderBuilder, subgroups: bool) -> String {
        match self {
            ReductionLines::Fold(accumulator) => combine_in_workgroup(shader, accumulator, "shared", subgroups),
            ReductionLines::Arg(action) => {
                let value = |type_name, text: &str| InvocationValue { type_name, text: text.into() };
                let values = [value(type_text(action.compute), "best"), value("u32", "best_index")];
                let combined = combine_values(shader, &values, "shared", subgroups, |shader, own, other| {
                    let preferred = action.is_preferred((&other[0], &other[1]), (&own[0], &own[1]));
                    shader.line(format!("if ({preferred}) {{"));
                    own.iter().zip(other).for_each(|(own, other)| shader.line(format!("    {own} = {other};")));
                    shader.line("}");
                });
                format!("vec2<u32>({}, 0u)", combined[1])
            }
        }
    }

    fn result(&self) -> String {
        match self {
            ReductionLines::Fold(accumulator) => accumulator.result(),
            ReductionLines::Arg(_) => "vec2<u32>(best_index, 0u)".into(),
        }
    }
}

impl GpuReduction {
    /// Returns the condition that the value x with its index is preferred to y. Of equal values, the first is
    /// preferred.
    fn is_preferred(&self, (x, x_index): (&str, &str), (y, y_index): (&str, &str)) -> String {
        let precedes = |x, y| precedes_text(self.compute, self.finds_largest, x, y);
        format!("({} || (!{} && {x_index} < {y_index}))", precedes(x, y), precedes(y, x))
    }
}

/// A reduction with its operation.
struct ReductionLaunch<'a> {
    kernel: &'a Reduce,
    action: GpuReduction,
}

/// Adds the lines that assign a row, and a part of it, to each invocation. Neighbouring invocations read neighbouring
/// elements. `parts` and `rows` are the numbers of parts of a row, and of rows.
fn assign_parts(shader: &mut ShaderBuilder, kept: &MergedAxes, reduced: &MergedAxes, parts: &str, rows: &str) {
    let step = |space: &MergedAxes| {
        space.strides.first().and_then(|s| s.iter().filter(|&&s| s != 0).map(|s| s.unsigned_abs()).min())
    };
    let parts_first = step(reduced).unwrap_or(usize::MAX) <= step(kept).unwrap_or(usize::MAX);
    let (part, row) = match parts_first {
        true => (format!("thread % {parts}"), format!("thread / {parts}")),
        false => (format!("thread / {rows}"), format!("thread % {rows}")),
    };
    shader.line(format!("let part = {part};"));
    shader.line(format!("let row = {row};"));
}

impl ReductionLaunch<'_> {
    fn reduce_inputs(
        &self,
        list: &mut DispatchList<'_>,
        operands: &DeviceOperands<'_>,
        shape: &Shape,
        partial: Option<(BufferRef, usize)>,
    ) -> Result<()> {
        let program = &self.kernel.program;
        let (inputs, finishing) = operands.inputs.split_at(program.inputs.len());
        // The results are finished here if there are no partial ones.
        let finished = if partial.is_some() { (&[][..], &[][..]) } else { (finishing, &operands.outputs[..]) };
        let arrays: Vec<DeviceArray<'_>> = inputs.iter().chain(finished.0).chain(finished.1).copied().collect();
        let kept = axes_space(&arrays, shape, |axis| !self.kernel.axes.contains(axis));
        let reduced = axes_space(inputs, shape, |axis| self.kernel.axes.contains(axis));
        let (count, length) = (self.kernel.axes.keepdims(shape).size(), self.kernel.axes.count(shape));
        let parts = partial.map_or(1, |(_, parts)| parts);

        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, &arrays[..inputs.len() + finished.0.len()], finished.1);
        let mut buffers = bindings.buffers.clone();
        let partial_binding = partial.map(|(buffer, _)| {
            buffers.push(buffer);
            shader.binding(BindingUse::Write)
        });
        let groups = (count * parts).div_ceil(WORKGROUP as usize);
        let mut parameters = Parameters::for_items(count * parts);
        let [parts, length, rows] = [parts, length, count].map(|v| parameters.declare_len(v));
        let starts = declare_starts(&mut parameters, &arrays);
        let [kept_text, reduced_text] = [&kept, &reduced].map(|space| space.declare(&mut parameters));
        let mut values = ProgramValues::declare(&mut parameters, program, 0, 0);
        let finish = self.declare_finish(&mut parameters);

        shader.line("if (thread >= params[0]) { return; }");
        assign_parts(&mut shader, &kept, &reduced, &parts, &rows);
        let bases = kept_text.positions(&mut shader, "row", &starts);
        let lines = ReductionLines::declare(&mut shader, self.action);
        shader.line(format!("for (var index = part; index < {length}; index = index + {parts}) {{"));
        let positions = reduced_text.positions(&mut shader, "index", &bases[..inputs.len()]);
        for (k, load) in program.inputs.iter().enumerate() {
            let text = access::load(&shader, bindings.input(k), load.storage, load.compute, &positions[k]);
            values.inputs[k] = shader.define(text);
        }
        values.compute_steps(&mut shader, program);
        let stored = program.outputs[0];
        let value = shader.define(convert_text(stored.compute, self.action.compute, values.value(stored.value)));
        lines.reduce(&mut shader, &value, "index");
        shader.line("}");
        match partial_binding {
            None => {
                let result = shader.define(lines.result());
                self.store_results(&mut shader, &result, finish, &bindings, inputs.len(), &bases[inputs.len()..]);
            }
            Some(binding) => {
                shader.line(format!("let slot = (row * {parts} + part) * {}u;", self.action.partial_words()));
                self.store_partial(&mut shader, binding, &lines);
            }
        }
        list.dispatch(program.name, shader, parameters, &buffers, groups)
    }

    /// Declares the uniforms of the finishing program.
    fn declare_finish(&self, parameters: &mut Parameters) -> Option<ProgramValues> {
        let finish = self.kernel.finish.as_ref()?;
        Some(ProgramValues::declare(parameters, finish, self.kernel.params.len(), 0))
    }

    /// Adds the lines that store the partial result of an invocation from the word `slot` on.
    fn store_partial(&self, shader: &mut ShaderBuilder, binding: usize, lines: &ReductionLines) {
        let value = match lines {
            ReductionLines::Fold(accumulator) => shader.define(accumulator.result()),
            ReductionLines::Arg(_) => "best".into(),
        };
        access::store_words(shader, binding, self.action.compute, &value, "slot");
        if matches!(lines, ReductionLines::Arg(_)) {
            shader.store_word(binding, &format!("slot + {}u", self.action.partial_words() - 1), "best_index");
        }
    }

    fn reduce_partials(
        &self,
        list: &mut DispatchList<'_>,
        (finishing, outputs): (&[DeviceArray<'_>], &[DeviceArray<'_>]),
        partial: BufferRef,
        (count, parts): (usize, usize),
    ) -> Result<()> {
        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, finishing, outputs);
        let mut buffers = bindings.buffers.clone();
        buffers.push(partial);
        let binding = shader.binding(BindingUse::Read);
        let subgroups = list.features().subgroups;
        let arrays: Vec<DeviceArray<'_>> = finishing.iter().chain(outputs).copied().collect();
        let space = axes_space(&arrays, outputs[0].shape(), |_| true);
        let mut parameters = Parameters::for_items(count);
        let part_count = parameters.declare_len(parts);
        let starts = declare_starts(&mut parameters, &arrays);
        let space = space.declare(&mut parameters);
        let finish = self.declare_finish(&mut parameters);
        // Each invocation of a workgroup has a partial result.
        let in_workgroup = parts >= WORKGROUP as usize;
        let (output, first, step, groups) = match in_workgroup {
            true => ("group", "local", WORKGROUP, count),
            false => ("thread", "0u", 1, count.div_ceil(WORKGROUP as usize)),
        };
        shader.line(format!("if ({output} >= params[0]) {{ return; }}"));
        let positions = space.positions(&mut shader, output, &starts);
        let lines = ReductionLines::declare(&mut shader, self.action);
        shader.line(format!("for (var part = {first}; part < {part_count}; part = part + {step}u) {{"));
        shader.line(format!("let slot = ({output} * {part_count} + part) * {}u;", self.action.partial_words()));
        let value = shader.define(access::load_words(&shader, binding, self.action.compute, "slot"));
        let index = shader.define(shader.word(binding, &format!("slot + {}u", self.action.partial_words() - 1)));
        lines.reduce(&mut shader, &value, &index);
        shader.line("}");
        let result = if in_workgroup { lines.combine(&mut shader, subgroups) } else { lines.result() };
        let result = shader.define(result);
        if in_workgroup {
            shader.line("if (local > 0u) { return; }");
        }
        self.store_results(&mut shader, &result, finish, &bindings, 0, &positions);
        list.dispatch(self.kernel.program.name, shader, parameters, &buffers, groups)
    }

    /// Adds the lines that finish a result and store it. `positions` are the positions of the other inputs of the
    /// finishing program (the kernel's inputs starting at `first`) and of the outputs.
    fn store_results(
        &self,
        shader: &mut ShaderBuilder,
        result: &str,
        values: Option<ProgramValues>,
        bindings: &Bindings,
        first: usize,
        positions: &[String],
    ) {
        let (Some(finish), Some(mut values)) = (&self.kernel.finish, values) else {
            let (binding, at) = (bindings.output(0), &positions[0]);
            return access::store(shader, binding, self.action.result(), self.kernel.output, result, at);
        };
        values.inputs[0] = shader.define(convert_text(self.action.result(), finish.inputs[0].compute, result));
        let others = finish.inputs.len() - 1;
        for (k, load) in finish.inputs[1..].iter().enumerate() {
            let text = access::load(shader, bindings.input(first + k), load.storage, load.compute, &positions[k]);
            values.inputs[k + 1] = shader.define(text);
        }
        values.compute_steps(shader, finish);
        for (k, (stored, dtype)) in finish.outputs.iter().zip(self.kernel.output_dtypes()).enumerate() {
            let value = values.value(stored.value).to_string();
            access::store(shader, bindings.output(k), stored.compute, dtype, &value, &positions[others + k]);
        }
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
                let parts = part_count(length, iterations);
                assert!(parts >= 1 && parts <= length && (iterations > 0 || parts <= MAX_PARTS));
                // One element can exceed the limit by the rounding of the number of parts.
                assert!((length / parts) * (1 + iterations) <= MAX_ITERATIONS);
            }
            assert!(part_count(length, 0).div_ceil(WORKGROUP as usize) <= 1 << 15);
        }
        let lengths = [0, 128, 129, 1 << 14, 1 << 18, 1 << 20];
        assert_eq!(lengths.map(|length| part_count(length, 0)), [1, 1, 3, 256, 256, 1024]);
        assert_eq!(part_count(100, 3000), 6);
    }
}
