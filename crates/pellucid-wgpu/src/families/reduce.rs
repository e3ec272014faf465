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
    Accumulator, ProgramValues, binary_expr, convert_expr, is_supported, precedes_expr, program_iterations,
};
use crate::shader::template::{CollectLines, values};
use crate::shader::types::wgsl_type;
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
    /// Returns the reduction of a kernel, or `None` if it is not defined for the dtypes.
    fn new(kernel: &Reduce) -> Option<GpuReduction> {
        let value = kernel.program.outputs.first()?.compute;
        let consumer = match &kernel.finish {
            Some(finish) => finish.inputs.first()?.compute,
            None => kernel.output.compute(),
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
        let compute = kernel.op.accumulator(value, consumer)?;
        Some(GpuReduction { combine, finds_largest: kernel.op == ReduceOp::ArgMax, compute })
    }

    /// Returns an estimate of the iterations of the loops that combine two values.
    fn iterations(&self) -> usize {
        iterations(&match self.combine {
            Some(op) => binary_expr(op, self.compute, "x", "y"),
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
        let is_finished = |reduction: GpuReduction| {
            self.finish.as_ref().is_none_or(|finish| finish.inputs[0].storage == reduction.result().storage())
        };
        programs.into_iter().flatten().all(|p| is_supported(p) && !p.is_row())
            && GpuReduction::new(self).is_some_and(is_finished)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let reduction = GpuReduction::new(self)
            .ok_or_else(|| Error::invalid(self.program.name, "shaders do not have this reduction of these dtypes"))?;
        let (reduced, finishing) = operands.inputs.split_at(self.program.inputs.len());
        let shape = common_shape(reduced).unwrap_or(Shape::scalar());
        let (count, length) = (self.axes.keepdims(&shape).size(), self.axes.count(&shape));
        if count == 0 {
            return Ok(());
        }
        let launch = ReductionLaunch { kernel: self, reduction };
        let parts = part_count(length, program_iterations(&self.program) + reduction.iterations());
        if count.checked_mul(parts.max(length)).is_none_or(|total| total > u32::MAX as usize) {
            return Err(Error::invalid(self.program.name, "the reduction has 2^32 elements or more"));
        }
        if parts == 1 {
            return launch.reduce_inputs(list, operands, &shape, None);
        }
        let partial = list.scratch(count * parts * reduction.partial_words() * 4);
        launch.reduce_inputs(list, operands, &shape, Some((partial, parts)))?;
        launch.reduce_partials(list, (finishing, &operands.outputs), partial, (count, parts))
    }
}

/// The variables of a reduction in a shader.
enum ReductionVariables {
    Fold(Accumulator),
    /// The extremum and its index.
    Arg(GpuReduction),
}

impl ReductionVariables {
    fn declare(shader: &mut ShaderBuilder, reduction: GpuReduction) -> ReductionVariables {
        match reduction.combine {
            Some(op) => ReductionVariables::Fold(Accumulator::declare(shader, op, reduction.compute, "result")),
            None => {
                shader.line(format!("var best: {};", wgsl_type(reduction.compute)));
                shader.line("var best_index = 0xffffffffu;");
                ReductionVariables::Arg(reduction)
            }
        }
    }

    /// Adds the lines that reduce `value`, which has the index `index` in the sequence.
    fn reduce(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        match self {
            ReductionVariables::Fold(accumulator) => accumulator.accumulate(shader, value),
            ReductionVariables::Arg(reduction) => {
                let is_preferred = reduction.is_preferred((value, index), ("best", "best_index"));
                shader.template(SELECT_BEST, values![is_preferred, value, index]);
            }
        }
    }

    /// Adds the lines that combine the results of the invocations of a workgroup, each of which has reduced a value,
    /// and returns the expression of the result.
    fn combine(&self, shader: &mut ShaderBuilder, subgroups: bool) -> String {
        match self {
            ReductionVariables::Fold(accumulator) => combine_in_workgroup(shader, accumulator, "shared", subgroups),
            ReductionVariables::Arg(reduction) => {
                let value = |type_name, expr: &str| InvocationValue { type_name, expr: expr.into() };
                let values = [value(wgsl_type(reduction.compute), "best"), value("u32", "best_index")];
                let combined = combine_values(shader, &values, "shared", subgroups, |shader, current, other| {
                    let is_preferred = reduction.is_preferred((&other[0], &other[1]), (&current[0], &current[1]));
                    let ([best, best_index], [value, index]) = ([0, 1].map(|k| &current[k]), [0, 1].map(|k| &other[k]));
                    shader.template(REPLACE_BEST, values![is_preferred, best, value, best_index, index]);
                });
                format!("vec2<u32>({}, 0u)", combined[1])
            }
        }
    }

    fn result(&self) -> String {
        match self {
            ReductionVariables::Fold(accumulator) => accumulator.result(),
            ReductionVariables::Arg(_) => "vec2<u32>(best_index, 0u)".into(),
        }
    }
}

impl GpuReduction {
    /// Returns the condition that the value x with its index is preferred to y. Of equal values, the first is
    /// preferred.
    fn is_preferred(&self, (x, x_index): (&str, &str), (y, y_index): (&str, &str)) -> String {
        let precedes = |x, y| precedes_expr(self.compute, self.finds_largest, x, y);
        format!("({} || (!{} && {x_index} < {y_index}))", precedes(x, y), precedes(y, x))
    }
}

/// Selects a value if it is preferred to the best value so far.
const SELECT_BEST: &str = "
    if (best_index == 0xffffffffu || $is_preferred) {
        best = $value;
        best_index = $index;
    }
";

/// Replaces the best value of an invocation by that of another one.
const REPLACE_BEST: &str = "
    if ($is_preferred) {
        $best = $value;
        $best_index = $index;
    }
";

/// Reduces a part of a row in every invocation.
const REDUCE_PART: &str = "
    if (thread >= $item_count) { return; }
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
    if ($output >= $item_count) { return; }
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

/// A kernel with its reduction.
struct ReductionLaunch<'a> {
    kernel: &'a Reduce,
    reduction: GpuReduction,
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
        let (part, row) = assign_parts(&kept, &reduced, &parts, &rows);
        let [kept, reduced] = [kept, reduced].map(|space| space.declare(&mut parameters));
        let mut values = ProgramValues::declare(&mut parameters, program, 0, 0);
        let finish = self.declare_finish(&mut parameters);

        let (compute_bases, bases) = shader.collect_result(|shader| kept.offsets(shader, "row", &starts));
        let (declare_variables, variables) =
            shader.collect_result(|shader| ReductionVariables::declare(shader, self.reduction));
        let reduce_element = shader.collect_lines(|shader| {
            let offsets = reduced.offsets(shader, "index", &bases[..inputs.len()]);
            access::load_inputs(shader, &mut values, program, 0, |k| (bindings.input(k), &offsets[k]));
            values.compute_steps(shader, program);
            let stored = program.outputs[0];
            let value = convert_expr(stored.compute, self.reduction.compute, values.value(stored.value));
            let value = shader.define(value);
            variables.reduce(shader, &value, "index");
        });
        let store = shader.collect_lines(|shader| match partial_binding {
            None => {
                let result = shader.define(variables.result());
                self.store_results(shader, &result, finish, (&bindings, inputs.len()), &bases[inputs.len()..]);
            }
            Some(binding) => {
                shader.line(format!("let slot = (row * {parts} + part) * {}u;", self.reduction.partial_words()));
                self.store_partial(shader, binding, &variables);
            }
        });
        let space = values![part, row, length, parts];
        let lines = values![compute_bases, declare_variables, reduce_element, store];
        shader.template(REDUCE_PART, &[&space[..], lines].concat());
        list.dispatch(program.name, shader, parameters, &buffers, groups)
    }

    /// Declares the uniforms of the finishing program.
    fn declare_finish(&self, parameters: &mut Parameters) -> Option<ProgramValues> {
        let finish = self.kernel.finish.as_ref()?;
        Some(ProgramValues::declare(parameters, finish, self.kernel.params.len(), 0))
    }

    /// Adds the lines that store the partial result of an invocation from the word `slot` on.
    fn store_partial(&self, shader: &mut ShaderBuilder, binding: usize, variables: &ReductionVariables) {
        let value = match variables {
            ReductionVariables::Fold(accumulator) => shader.define(accumulator.result()),
            ReductionVariables::Arg(_) => "best".into(),
        };
        access::store_words(shader, binding, self.reduction.compute, &value, "slot");
        if matches!(variables, ReductionVariables::Arg(_)) {
            shader.store_word(binding, &self.index_word(), "best_index");
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
        // Each invocation of a workgroup has a partial result.
        let in_workgroup = parts >= WORKGROUP as usize;
        let parts = parameters.declare_len(parts);
        let starts = declare_starts(&mut parameters, &arrays);
        let space = space.declare(&mut parameters);
        let finish = self.declare_finish(&mut parameters);
        let (output, first, step, groups) = match in_workgroup {
            true => ("group", "local", WORKGROUP, count),
            false => ("thread", "0u", 1, count.div_ceil(WORKGROUP as usize)),
        };
        let (compute_offsets, offsets) = shader.collect_result(|shader| space.offsets(shader, output, &starts));
        let (declare_variables, variables) =
            shader.collect_result(|shader| ReductionVariables::declare(shader, self.reduction));
        let reduce_partial = shader.collect_lines(|shader| {
            let value = shader.define(access::load_words(shader, binding, self.reduction.compute, "slot"));
            let index = match variables {
                ReductionVariables::Fold(_) => String::new(),
                ReductionVariables::Arg(_) => shader.define(shader.word(binding, &self.index_word())),
            };
            variables.reduce(shader, &value, &index);
        });
        let (combine, combined) = shader.collect_result(|shader| match in_workgroup {
            true => variables.combine(shader, subgroups),
            false => variables.result(),
        });
        let return_others = if in_workgroup { "if (local > 0u) { return; }" } else { "" };
        let store = shader.collect_lines(|shader| {
            self.store_results(shader, "reduced", finish, (&bindings, 0), &offsets);
        });
        let [step, words] = [step as usize, self.reduction.partial_words()].map(|v| format!("{v}u"));
        let space = values![output, parts, first, step, words];
        let lines =
            values![compute_offsets, declare_variables, reduce_partial, combine, combined, return_others, store];
        shader.template(REDUCE_PARTIALS, &[&space[..], lines].concat());
        list.dispatch(self.kernel.program.name, shader, parameters, &buffers, groups)
    }

    /// Returns the word of the index in the partial result at `slot`.
    fn index_word(&self) -> String {
        format!("slot + {}u", self.reduction.partial_words() - 1)
    }

    /// Adds the lines that finish a result and store it. `offsets` are the offsets of the other inputs of the finishing
    /// program (the kernel's inputs starting at `first`) and of the outputs.
    fn store_results(
        &self,
        shader: &mut ShaderBuilder,
        result: &str,
        values: Option<ProgramValues>,
        (bindings, first): (&Bindings, usize),
        offsets: &[String],
    ) {
        let (Some(finish), Some(mut values)) = (&self.kernel.finish, values) else {
            let (binding, offset) = (bindings.output(0), &offsets[0]);
            return access::store(shader, binding, self.reduction.result(), self.kernel.output, result, offset);
        };
        values.inputs[0] = shader.define(convert_expr(self.reduction.result(), finish.inputs[0].compute, result));
        access::load_inputs(shader, &mut values, finish, 1, |k| (bindings.input(first + k - 1), &offsets[k - 1]));
        values.compute_steps(shader, finish);
        let outputs = &offsets[finish.inputs.len() - 1..];
        for (k, (stored, dtype)) in finish.outputs.iter().zip(self.kernel.output_dtypes()).enumerate() {
            let value = values.value(stored.value).to_string();
            access::store(shader, bindings.output(k), stored.compute, dtype, &value, &outputs[k]);
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
