//! `Row`: programs with row reductions.
//!
//! One workgroup computes one row, or several rows if each has at most half as many elements as the workgroup has
//! invocations. The invocations of a row, a power of two, read its elements in turn, once for each level of reductions
//! and once for the outputs. A reduction then combines the results of the [invocations](crate::shader::workgroup).
//! Values of elements are recomputed in every pass.
//!
//! A long row is divided into parts. Their number depends only on the length of the row and on the program. A workgroup
//! then computes one part, and every pass is a dispatch of its own: one for each level of reductions, which stores a
//! partial result of each part, and one each for the outputs per element and the outputs per row. Each workgroup begins
//! with the combination of the partial results of earlier levels.

use super::GpuFamily;
use super::shared::axes::axes_space;
use super::shared::parts::PartSizes;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts, is_countable};
use crate::shader::{
    Accumulator, AccumulatorOp, AxesExprs, BindingUse, BufferRef, CollectLines, CombinedLanes, ProgramValues,
    ShaderBuilder, WORKGROUP, combining_primitive, is_supported, max_items, program_iterations, step_expr, store_words,
    values, words,
};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::{InstructionOperand, Op, Program, RowOp, Step};
use pellucid_ir::kernel::{Row, common_shape};
use pellucid_ir::{Result, Shape};
use std::collections::{BTreeSet, HashMap};

/// Returns the sizes of the parts of a row that is read in `passes` passes, and whose elements each need `iterations`
/// loop iterations. A workgroup reads an undivided row in all passes, and a part in one.
fn part_sizes(passes: usize, iterations: usize) -> PartSizes {
    let (workgroup, invocation_limit) = (WORKGROUP as usize, max_items(iterations));
    let undivided = (1 << 15).min(workgroup.saturating_mul(invocation_limit / passes));
    let limit = workgroup.saturating_mul(invocation_limit);
    PartSizes { undivided, small: 1 << 13, few_parts: 1 << 10, large: 1 << 20, limit }
}

/// The source of an operand in static single assignment form, where every result has its own name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum StepOperand {
    /// An input, a uniform, or an operand that needs no step.
    Leaf(InstructionOperand),
    /// The result of a step.
    Step(usize),
}

/// The steps of a row program with the level at which each can be computed.
struct RowSteps<'a> {
    program: &'a Program,
    /// The operands of every step.
    args: Vec<Vec<StepOperand>>,
    /// The values of the outputs.
    outputs: Vec<StepOperand>,
    /// For every step, the number of reductions in sequence that precede its result.
    levels: Vec<usize>,
}

impl<'a> RowSteps<'a> {
    fn new(program: &'a Program) -> RowSteps<'a> {
        // The step that wrote each register last.
        let mut writers: HashMap<InstructionOperand, usize> = HashMap::new();
        let source = |writers: &HashMap<InstructionOperand, usize>, operand| {
            writers.get(&operand).map_or(StepOperand::Leaf(operand), |&k| StepOperand::Step(k))
        };
        let (mut args, mut levels): (Vec<Vec<StepOperand>>, Vec<usize>) = Default::default();
        for (k, step) in program.steps.iter().enumerate() {
            let operands: Vec<StepOperand> = step.args.iter().map(|&a| source(&writers, a)).collect();
            let level = operands.iter().map(|s| if let StepOperand::Step(s) = s { levels[*s] } else { 0 }).max();
            levels.push(level.unwrap_or(0) + usize::from(matches!(step.op, Op::Reduce(_))));
            args.push(operands);
            writers.insert(step.into, k);
        }
        let outputs = program.outputs.iter().map(|o| source(&writers, o.value)).collect();
        RowSteps { program, args, outputs, levels }
    }

    /// Returns the reductions of a level with their operations.
    fn reductions(&self, level: usize) -> Vec<(usize, RowOp)> {
        let reduction = |(k, step): (usize, &Step)| match step.op {
            Op::Reduce(op) if self.levels[k] == level => Some((k, op)),
            _ => None,
        };
        self.program.steps.iter().enumerate().filter_map(reduction).collect()
    }

    /// Returns the offset of the partial result of step `k` within the words of a part.
    fn partial_word(&self, k: usize) -> usize {
        let reductions = self.program.steps[..k].iter().filter(|step| matches!(step.op, Op::Reduce(_)));
        reductions.map(|step| words(step.compute)).sum()
    }

    /// Returns the number of words of the partial results of a part.
    fn partial_words(&self) -> usize {
        self.partial_word(self.program.steps.len())
    }

    /// Returns the number of reductions in sequence.
    fn level_count(&self) -> usize {
        self.levels.iter().copied().max().unwrap_or(0)
    }

    /// Returns true if the result of a step has one value for each element.
    fn is_per_element(&self, k: usize) -> bool {
        matches!(self.program.steps[k].into, InstructionOperand::Register(_))
    }

    /// Returns the steps with one value for each element, and the inputs with one value for each element, that `values`
    /// need.
    fn needed(&self, values: impl IntoIterator<Item = StepOperand>) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let (mut steps, mut inputs) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<StepOperand> = values.into_iter().collect();
        while let Some(value) = open.pop() {
            match value {
                StepOperand::Step(k) if self.is_per_element(k) && steps.insert(k) => open.extend(&self.args[k]),
                StepOperand::Leaf(InstructionOperand::Input(i)) if !self.program.inputs[i as usize].per_row => {
                    inputs.insert(i as usize);
                }
                _ => {}
            }
        }
        (steps, inputs)
    }
}

impl GpuFamily for Row {
    fn is_supported(&self) -> bool {
        is_supported(&self.program)
    }

    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        // The inputs broadcast, and the outputs may have one value for each row.
        common_shape(inputs.iter().chain(outputs)).is_some_and(|shape| is_countable(&shape))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        describe_row(list, self, operands);
        Ok(())
    }
}

/// The shader of a row program.
struct RowShader<'a> {
    shader: ShaderBuilder,
    steps: RowSteps<'a>,
    values: ProgramValues,
    /// The name of the result of every step that is computed.
    results: Vec<String>,
    bindings: Bindings,
    /// The offset of the row in each operand.
    bases: Vec<String>,
    /// The axes of a row.
    row_axes: AxesExprs,
    /// The invocations of the row.
    lanes: RowLanes,
    subgroups: bool,
    /// The length of a row, the number of its parts, and the length of a part.
    length: String,
    parts: String,
    part_length: String,
    /// The binding of the partial results, if the row is divided.
    partial: Option<usize>,
}

impl AsMut<ShaderBuilder> for RowShader<'_> {
    fn as_mut(&mut self) -> &mut ShaderBuilder {
        &mut self.shader
    }
}

/// The WGSL expressions of the invocations that compute a row.
struct RowLanes {
    /// The number of invocations.
    count: String,
    /// The index of an invocation among the invocations of its row.
    index: &'static str,
    /// The number of elements that the invocations visit, if the row is not divided.
    end: String,
    /// The condition under which an invocation stores the values of its row.
    is_first: &'static str,
}

/// Assigns the invocations of a workgroup to several rows. Invocations without a row execute the barriers too; they
/// visit no element of the last row and store nothing.
const BEGIN_SHORT_ROWS: &str = "
    let lane = local % $lanes;
    let own_row = group * ($workgroup / $lanes) + local / $lanes;
    let has_row = own_row < $item_count;
    let row = min(own_row, $item_count - 1u);
    let row_end = select(0u, $length, has_row);
";

impl RowLanes {
    /// Returns all invocations of a workgroup.
    fn workgroup(length: &str) -> RowLanes {
        RowLanes { count: format!("{WORKGROUP}u"), index: "local", end: length.into(), is_first: "local == 0u" }
    }

    /// Adds the lines that assign `lanes` invocations to every row.
    fn declare_short(shader: &mut ShaderBuilder, lanes: usize, length: &str) -> RowLanes {
        let (lanes, workgroup) = (shader.declare_word(lanes), format!("{WORKGROUP}u"));
        shader.template(BEGIN_SHORT_ROWS, values![lanes, workgroup, length]);
        RowLanes { count: lanes, index: "lane", end: "row_end".into(), is_first: "lane == 0u && has_row" }
    }
}

/// The loop over the elements of a row or of a part of it.
const LOOP_OVER_ELEMENTS: &str = "
    for (var element = $first; element < $end; element = element + $lanes) {
        $visit_element
    }
";

/// The loop over the parts of a row.
const LOOP_OVER_PARTS: &str = "
    for (var other = local; other < $parts; other = other + $lanes) {
        $accumulate_part
    }
";

/// The lines that one invocation of a row executes.
const FIRST_INVOCATION: &str = "
    if ($is_first) {
        $store
    }
";

impl RowShader<'_> {
    /// Adds the lines of a pass, and the lines of the reductions that it needs.
    fn add_pass(&mut self, pass: RowPass) {
        for level in 0..=self.steps.level_count() {
            let stores_partials = pass == RowPass::Level(level);
            self.reduce(level, self.partial.filter(|_| !stores_partials));
            if stores_partials {
                return self.store_partials(level);
            }
            self.compute_row_values(level);
        }
        if pass != RowPass::Rows {
            self.store_elements();
        }
        if pass != RowPass::Elements {
            self.store_rows();
        }
    }

    /// Adds a loop over the elements of the row, with the lines of the inputs and steps that `values` need. `lines`
    /// receives the offsets of all operands.
    fn loop_over_elements(
        &mut self,
        values: impl IntoIterator<Item = StepOperand>,
        lines: impl FnOnce(&mut Self, &[String]),
    ) {
        let (steps, inputs) = self.steps.needed(values);
        let RowShader { lanes, length, part_length, .. } = self;
        let (first, end) = match self.partial {
            Some(_) => (format!("part * {part_length} + local"), format!("min((part + 1u) * {part_length}, {length})")),
            None => (lanes.index.into(), lanes.end.clone()),
        };
        let visit_element = self.collect_lines(|this| {
            let offsets = this.row_axes.offsets(&mut this.shader, "element", &this.bases);
            inputs.into_iter().for_each(|k| this.load_input(k, &offsets[k]));
            steps.into_iter().for_each(|k| this.compute(k, "element"));
            lines(this, &offsets);
        });
        let lanes = &self.lanes.count;
        self.shader.template(LOOP_OVER_ELEMENTS, values![first, end, lanes, visit_element]);
    }

    /// Adds the line that loads input `k`.
    fn load_input(&mut self, k: usize, offset: &str) {
        let elements = self.bindings.input(k).as_type(self.steps.program.inputs[k].compute);
        self.values.set_input(k, elements.define(&mut self.shader, offset));
    }

    /// Adds the line of a step.
    fn compute(&mut self, k: usize, row_index: &str) {
        let args: Vec<&str> = self.steps.args[k].iter().map(|&a| self.value(a)).collect();
        let expr = step_expr(&self.steps.program.steps[k], &args, row_index);
        self.results[k] = self.shader.define(expr);
    }

    fn value(&self, source: StepOperand) -> &str {
        match source {
            StepOperand::Leaf(operand) => self.values.value(operand),
            StepOperand::Step(k) => &self.results[k],
        }
    }

    /// Adds the lines that compute all reductions of a level: from the partial results of the parts, which are words of
    /// the buffer `partial`, or else from the elements.
    fn reduce(&mut self, level: usize, partial: Option<usize>) {
        let mut accumulators: Vec<(usize, Accumulator)> = Vec::new();
        for (k, op) in self.steps.reductions(level) {
            let (reduction, compute) =
                (AccumulatorOp::Fold(combining_primitive(op)), self.steps.program.steps[k].compute);
            accumulators.push((k, Accumulator::declare(&mut self.shader, reduction, compute, &format!("sum{k}"))));
        }
        if accumulators.is_empty() {
            return;
        }
        if let Some(binding) = partial {
            let accumulate_part = self.collect_lines(|this| {
                for (k, accumulator) in &accumulators {
                    let offset = this.partial_offset(*k, "other");
                    accumulator.accumulate_partial(&mut this.shader, binding, &offset);
                }
            });
            let (parts, lanes) = (&self.parts, &self.lanes.count);
            self.shader.template(LOOP_OVER_PARTS, values![parts, lanes, accumulate_part]);
        } else {
            let args: Vec<StepOperand> = accumulators.iter().map(|&(k, _)| self.steps.args[k][0]).collect();
            self.loop_over_elements(args.clone(), |this, _| {
                for ((_, accumulator), &arg) in accumulators.iter().zip(&args) {
                    let value = this.value(arg).to_string();
                    accumulator.accumulate(&mut this.shader, &value, "element");
                }
            });
        }
        for (k, accumulator) in &accumulators {
            let shared = format!("shared{k}");
            let lanes = CombinedLanes { count: &self.lanes.count, subgroups: self.subgroups };
            self.results[*k] = accumulator.combine_in_workgroup(&mut self.shader, &shared, lanes);
        }
    }

    /// Adds the lines that store the partial results of a level.
    fn store_partials(&mut self, level: usize) {
        let (Some(binding), is_first) = (self.partial, self.lanes.is_first) else { return };
        let store = self.collect_lines(|this| {
            for (k, _) in this.steps.reductions(level) {
                let offset = this.partial_offset(k, "part");
                let compute = this.steps.program.steps[k].compute;
                store_words(&mut this.shader, binding, compute, &this.results[k], &offset);
            }
        });
        self.shader.template(FIRST_INVOCATION, values![is_first, store]);
    }

    /// Defines the index of the first word of the partial result of step `k` for a part of the row.
    fn partial_offset(&mut self, k: usize, part: &str) -> String {
        let (parts, size, word) = (&self.parts, self.steps.partial_words(), self.steps.partial_word(k));
        self.shader.define(format!("(row * {parts} + {part}) * {size}u + {word}u"))
    }

    /// Adds the lines that compute the values per row of a level, except reductions.
    fn compute_row_values(&mut self, level: usize) {
        for k in 0..self.steps.program.steps.len() {
            let is_reduction = matches!(self.steps.program.steps[k].op, Op::Reduce(_));
            if !is_reduction && !self.steps.is_per_element(k) && self.steps.levels[k] == level {
                self.compute(k, "0u");
            }
        }
    }

    /// Returns the outputs with one value for each row, or those with one value for each element.
    fn outputs(&self, per_row: bool) -> Vec<usize> {
        let outputs = &self.steps.program.outputs;
        (0..outputs.len()).filter(|&k| outputs[k].per_row == per_row).collect()
    }

    /// Adds the pass that stores the outputs with one value for each element.
    fn store_elements(&mut self) {
        let outputs = self.outputs(false);
        if !outputs.is_empty() {
            let values: Vec<StepOperand> = outputs.iter().map(|&k| self.steps.outputs[k]).collect();
            self.loop_over_elements(values, |this, offsets| this.store(&outputs, offsets));
        }
    }

    /// Adds the lines that store the outputs with one value for each row.
    fn store_rows(&mut self) {
        // After the barrier, all invocations have read the values per row, which an output may overwrite.
        self.shader.line("workgroupBarrier();");
        let (outputs, bases, is_first) = (self.outputs(true), self.bases.clone(), self.lanes.is_first);
        let store = self.collect_lines(|this| this.store(&outputs, &bases));
        self.shader.template(FIRST_INVOCATION, values![is_first, store]);
    }

    /// Adds the lines that store outputs. `offsets` are the offsets of all operands.
    fn store(&mut self, outputs: &[usize], offsets: &[String]) {
        let program = self.steps.program;
        for &k in outputs {
            let value = self.value(self.steps.outputs[k]).to_string();
            let elements = self.bindings.output(k).as_type(program.outputs[k].compute);
            elements.store(&mut self.shader, &value, &offsets[program.inputs.len() + k]);
        }
    }
}

/// The work of one dispatch of a row program.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RowPass {
    /// All levels and outputs, for rows that are not divided.
    All,
    /// The partial results of one level of reductions.
    Level(usize),
    /// The outputs with one value for each element.
    Elements,
    /// The outputs with one value for each row.
    Rows,
}

/// The rows of a kernel and their parts.
struct RowLaunch<'a> {
    kernel: &'a Row,
    operands: &'a DeviceOperands<'a>,
    shape: Shape,
    parts: usize,
    /// The partial results, if the rows are divided.
    partial: Option<BufferRef>,
}

/// Adds the dispatches of a row program.
fn describe_row(list: &mut DispatchList<'_>, kernel: &Row, operands: &DeviceOperands<'_>) {
    let arrays: Vec<DeviceArray<'_>> = operands.all().copied().collect();
    let shape = common_shape(&arrays).unwrap_or(Shape::scalar());
    let (count, length) = (kernel.axes.keepdims(&shape).size(), kernel.axes.count(&shape));
    if count == 0 {
        return;
    }
    let steps = RowSteps::new(&kernel.program);
    let levels = steps.level_count();
    let parts = part_sizes(levels + 1, program_iterations(&kernel.program)).part_count(length);
    if parts == 1 {
        return RowLaunch { kernel, operands, shape, parts, partial: None }.describe(list, RowPass::All);
    }
    let partial = Some(list.scratch((count * parts * steps.partial_words() * 4).max(4)));
    let launch = RowLaunch { kernel, operands, shape, parts, partial };
    for level in (1..=levels).filter(|&level| !steps.reductions(level).is_empty()) {
        launch.describe(list, RowPass::Level(level));
    }
    // The outputs per element come first: they are computed from inputs per row, which an output per row may overwrite.
    for (pass, per_row) in [(RowPass::Elements, false), (RowPass::Rows, true)] {
        if kernel.program.outputs.iter().any(|output| output.per_row == per_row) {
            launch.describe(list, pass);
        }
    }
}

impl RowLaunch<'_> {
    /// Adds the dispatch of a pass.
    fn describe(&self, list: &mut DispatchList<'_>, pass: RowPass) {
        let RowLaunch { kernel, operands, shape, .. } = self;
        let program = &*kernel.program;
        let arrays: Vec<DeviceArray<'_>> = operands.all().copied().collect();
        let (count, length) = (kernel.axes.keepdims(shape).size(), kernel.axes.count(shape));
        // One workgroup stores the values of a row.
        let parts = if pass == RowPass::Rows { 1 } else { self.parts };
        let workgroup = WORKGROUP as usize;
        let lanes = if self.parts == 1 { length.next_power_of_two().min(workgroup) } else { workgroup };
        let mut shader = match lanes < workgroup {
            true => ShaderBuilder::with_groups(count, count.div_ceil(workgroup / lanes)),
            false => ShaderBuilder::for_groups(count * parts),
        };
        let (stored, usage) = match pass {
            RowPass::Level(_) => (&[][..], BindingUse::Write),
            _ => (&operands.outputs[..], BindingUse::Read),
        };
        let bindings = Bindings::new(&mut shader, &operands.inputs, stored);
        let partial = self.partial.map(|buffer| shader.binding(buffer, usage));
        let [length_expr, parts_expr, part_length] =
            shader.declare_words([length, self.parts, length.div_ceil(self.parts)]);
        let starts = declare_starts(&mut shader, &arrays);
        let [kept, row_axes] = [false, true].map(|is_reduced| {
            axes_space(&arrays, shape, |axis| kernel.axes.contains(axis) == is_reduced).declare(&mut shader)
        });
        let values = ProgramValues::declare(&mut shader, program, 0, length);
        let lanes = if lanes < workgroup {
            RowLanes::declare_short(&mut shader, lanes, &length_expr)
        } else {
            let [row, part] = match parts {
                1 => ["group".into(), "0u".into()],
                _ => [format!("group / {parts_expr}"), format!("group % {parts_expr}")],
            };
            shader.line(format!("let row = {row};"));
            shader.line(format!("let part = {part};"));
            RowLanes::workgroup(&length_expr)
        };
        let bases = kept.offsets(&mut shader, "row", &starts);
        let mut builder = RowShader {
            shader,
            steps: RowSteps::new(program),
            values,
            results: vec![String::new(); program.steps.len()],
            bindings,
            bases,
            row_axes,
            lanes,
            subgroups: list.features.subgroups,
            length: length_expr,
            parts: parts_expr,
            part_length,
            partial,
        };
        for k in (0..program.inputs.len()).filter(|&k| program.inputs[k].per_row) {
            let offset = builder.bases[k].clone();
            builder.load_input(k, &offset);
        }
        builder.add_pass(pass);
        list.dispatch(program.name, builder.shader);
    }
}
