//! `Row`: programs with row reductions.
//!
//! One workgroup computes one row. Its invocations read the elements of the row with a stride of the size of the
//! workgroup, once for each level of reductions and once for the outputs. A reduction then combines the results of the
//! [invocations](crate::shader::workgroup). Values of elements are recomputed in every pass.
//!
//! A long row is divided into parts, whose number depends on its length alone. A workgroup then computes one part, and
//! every pass is a dispatch of its own: one for each level of reductions, which stores a partial result of each part,
//! and one for the outputs. Each workgroup begins with the combination of the partial results of earlier levels.

use super::GpuFamily;
use super::shared::axes::axes_space;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, BufferRef, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, AxesExprs};
use crate::shader::iterations::MAX_ITERATIONS;
use crate::shader::parameters::{Parameters, words};
use crate::shader::program::{Accumulator, ProgramValues, combining_primitive, is_supported, program_iterations};
use crate::shader::template::{CollectLines, values};
use crate::shader::workgroup::combine_in_workgroup;
use crate::shader::{BindingUse, ShaderBuilder, ShaderFeatures, WORKGROUP};
use pellucid_ir::formula::{InstructionOperand, Op, Program, Step};
use pellucid_ir::kernel::{Row, common_shape};
use pellucid_ir::{Result, Shape};
use std::collections::BTreeSet;

/// The length of the longest row that is not divided.
const MAX_UNDIVIDED: usize = 1 << 15;

/// The minimum number of elements of a part of a divided row.
const MIN_PART: usize = 1 << 13;

/// The maximum number of parts of a row of elements without loops.
const MAX_PARTS: usize = 1 << 10;

/// Returns the number of parts of a row that is read in `passes`. There are more parts if the loops of an element have
/// `iterations`, so that no invocation has more than [`MAX_ITERATIONS`].
fn part_count(length: usize, passes: usize, iterations: usize) -> usize {
    let pass_iterations = length.div_ceil(WORKGROUP as usize).saturating_mul(1 + iterations);
    if length <= MAX_UNDIVIDED && pass_iterations.saturating_mul(passes) <= MAX_ITERATIONS {
        return 1;
    }
    length.div_ceil(MIN_PART).min(MAX_PARTS).max(pass_iterations.div_ceil(MAX_ITERATIONS))
}

/// The source of an operand after every result has its own name.
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
    /// The number of reductions in sequence that precede the result of every step.
    levels: Vec<usize>,
}

impl<'a> RowSteps<'a> {
    fn new(program: &'a Program) -> RowSteps<'a> {
        // The step that wrote each register last.
        let mut registers = vec![None; program.registers.len()];
        let mut rows = vec![None; program.row_registers.len()];
        let source = |registers: &[Option<usize>], rows: &[Option<usize>], operand| {
            let step = match operand {
                InstructionOperand::Register(r) => registers[r as usize],
                InstructionOperand::Row(r) => rows[r as usize],
                _ => None,
            };
            step.map_or(StepOperand::Leaf(operand), StepOperand::Step)
        };
        let (mut args, mut levels): (Vec<Vec<StepOperand>>, Vec<usize>) = Default::default();
        for (k, step) in program.steps.iter().enumerate() {
            let operands: Vec<StepOperand> = step.args.iter().map(|&a| source(&registers, &rows, a)).collect();
            let level = operands.iter().map(|s| if let StepOperand::Step(s) = s { levels[*s] } else { 0 }).max();
            levels.push(level.unwrap_or(0) + usize::from(matches!(step.op, Op::Reduce(_))));
            args.push(operands);
            match step.into {
                InstructionOperand::Register(r) => registers[r as usize] = Some(k),
                InstructionOperand::Row(r) => rows[r as usize] = Some(k),
                _ => {}
            }
        }
        let outputs = program.outputs.iter().map(|o| source(&registers, &rows, o.value)).collect();
        RowSteps { program, args, outputs, levels }
    }

    /// Returns the reductions of a level.
    fn reductions(&self, level: usize) -> Vec<usize> {
        let is_reduction = |k: &usize| matches!(self.step(*k).op, Op::Reduce(_)) && self.levels[*k] == level;
        (0..self.program.steps.len()).filter(is_reduction).collect()
    }

    /// Returns the word of the partial result of step `k` within a part. For the number of steps, this is the number of
    /// words of a part.
    fn partial_word(&self, k: usize) -> usize {
        let reductions = self.program.steps[..k].iter().filter(|step| matches!(step.op, Op::Reduce(_)));
        reductions.map(|step| words(step.compute)).sum()
    }

    fn step(&self, k: usize) -> &'a Step {
        &self.program.steps[k]
    }

    /// Returns true if the result of a step has one value for each element.
    fn is_per_element(&self, k: usize) -> bool {
        matches!(self.step(k).into, InstructionOperand::Register(_))
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

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        describe_row(list, self, operands)
    }
}

/// The shader of a row program.
struct RowShader<'a> {
    shader: ShaderBuilder,
    steps: RowSteps<'a>,
    values: ProgramValues,
    /// The name of the result of every step that has one value for each row.
    row_results: Vec<String>,
    bindings: Bindings,
    /// The offset of the row in each operand.
    bases: Vec<String>,
    /// The axes of a row.
    row_axes: AxesExprs,
    /// The length of a row, the number of its parts, and the length of a part.
    length: String,
    parts: String,
    part_length: String,
    inputs: usize,
    features: ShaderFeatures,
    /// The binding of the partial results, if the row is divided.
    partial: Option<usize>,
}

impl AsMut<ShaderBuilder> for RowShader<'_> {
    fn as_mut(&mut self) -> &mut ShaderBuilder {
        &mut self.shader
    }
}

/// The loop over the elements of a row or of a part of it.
const LOOP_OVER_ELEMENTS: &str = "
    for (var element = $first; element < $end; element = element + $step) {
        $visit_element
    }
";

/// The loop over the parts of a row.
const LOOP_OVER_PARTS: &str = "
    for (var other = local; other < $parts; other = other + $step) {
        $accumulate_part
    }
";

/// The lines that one invocation executes.
const FIRST_INVOCATION: &str = "
    if (local == 0u) {
        $store
    }
";

impl RowShader<'_> {
    /// Adds a loop over the elements of the row, with the lines of the given inputs and steps. `lines` receives the
    /// names of the results of the steps and of the offsets of all operands.
    fn loop_over_elements(
        &mut self,
        needed: &(BTreeSet<usize>, BTreeSet<usize>),
        lines: impl FnOnce(&mut Self, &[String], &[String]),
    ) {
        let RowShader { length, part_length, .. } = self;
        let (first, end) = match self.partial {
            Some(_) => (format!("part * {part_length} + local"), format!("min((part + 1u) * {part_length}, {length})")),
            None => ("local".into(), length.clone()),
        };
        let visit_element = self.collect_lines(|this| {
            let offsets = this.row_axes.offsets(&mut this.shader, "element", &this.bases);
            for &k in &needed.1 {
                this.load_input(k, &offsets[k]);
            }
            let mut results = this.row_results.clone();
            for &k in &needed.0 {
                results[k] = this.compute(k, &results, "element");
            }
            lines(this, &results, &offsets);
        });
        let step = format!("{WORKGROUP}u");
        self.shader.template(LOOP_OVER_ELEMENTS, values![first, end, step, visit_element]);
    }

    /// Adds the line that loads input `k`.
    fn load_input(&mut self, k: usize, offset: &str) {
        let load = self.steps.program.inputs[k];
        let element = access::load(&self.shader, self.bindings.input(k), load.storage, load.compute, offset);
        self.values.inputs[k] = self.shader.define(element);
    }

    /// Adds the line of a step and returns the name of its result.
    fn compute(&mut self, k: usize, results: &[String], row_index: &str) -> String {
        let step = self.steps.step(k).clone();
        let args: Vec<String> = self.steps.args[k].iter().map(|&a| self.value(a, results)).collect();
        let mut values = self.values.clone();
        // The operands of the step are replaced by inputs with the names of the values.
        values.inputs = args;
        let args = (0..step.args.len() as u8).map(InstructionOperand::Input).collect();
        let step = Step { args, ..step };
        values.compute_step(&mut self.shader, &step, row_index);
        values.value(step.into).to_string()
    }

    fn value(&self, source: StepOperand, results: &[String]) -> String {
        match source {
            StepOperand::Leaf(operand) => self.values.value(operand).to_string(),
            StepOperand::Step(k) => results[k].clone(),
        }
    }

    /// Declares the accumulators of all reductions of a level.
    fn declare_accumulators(&mut self, level: usize) -> Vec<(usize, Accumulator)> {
        let mut accumulators = Vec::new();
        for k in self.steps.reductions(level) {
            let step = self.steps.step(k);
            let Op::Reduce(op) = step.op else { continue };
            let primitive = combining_primitive(op);
            let name = format!("sum{k}");
            accumulators.push((k, Accumulator::declare(&mut self.shader, primitive, step.compute, &name)));
        }
        accumulators
    }

    /// Adds the pass over the elements that computes all reductions of a level, and combines the results of the
    /// invocations.
    fn reduce_elements(&mut self, level: usize) {
        let accumulators = self.declare_accumulators(level);
        if accumulators.is_empty() {
            return;
        }
        let needed = self.steps.needed(accumulators.iter().map(|&(k, _)| self.steps.args[k][0]));
        self.loop_over_elements(&needed, |this, results, _| {
            for (k, accumulator) in &accumulators {
                let value = this.value(this.steps.args[*k][0], results);
                accumulator.accumulate(&mut this.shader, &value);
            }
        });
        self.combine(&accumulators);
    }

    /// Adds the lines that compute all reductions of a level from the partial results of the parts, which are words of
    /// the buffer `binding`.
    fn reduce_partials(&mut self, level: usize, binding: usize) {
        let accumulators = self.declare_accumulators(level);
        if accumulators.is_empty() {
            return;
        }
        let accumulate_part = self.collect_lines(|this| {
            for (k, accumulator) in &accumulators {
                let offset = this.partial_offset(*k, "other");
                let partial = access::load_words(&this.shader, binding, accumulator.compute(), &offset);
                let partial = this.shader.define(partial);
                accumulator.accumulate(&mut this.shader, &partial);
            }
        });
        let (parts, step) = (&self.parts, format!("{WORKGROUP}u"));
        self.shader.template(LOOP_OVER_PARTS, values![parts, step, accumulate_part]);
        self.combine(&accumulators);
    }

    /// Adds the lines that store the partial results of a level in the buffer `binding`.
    fn store_partials(&mut self, level: usize, binding: usize) {
        let store = self.collect_lines(|this| {
            for k in this.steps.reductions(level) {
                let offset = this.partial_offset(k, "part");
                let (compute, value) = (this.steps.step(k).compute, this.row_results[k].clone());
                access::store_words(&mut this.shader, binding, compute, &value, &offset);
            }
        });
        self.shader.template(FIRST_INVOCATION, values![store]);
    }

    /// Defines the first word of the partial result of step `k` of a part of the row.
    fn partial_offset(&mut self, k: usize, part: &str) -> String {
        let size = self.steps.partial_word(self.steps.program.steps.len());
        let (parts, word) = (&self.parts, self.steps.partial_word(k));
        self.shader.define(format!("(row * {parts} + {part}) * {size}u + {word}u"))
    }

    /// Adds the lines that combine the results of the invocations.
    fn combine(&mut self, accumulators: &[(usize, Accumulator)]) {
        for (k, accumulator) in accumulators {
            let shared = format!("shared{k}");
            let subgroups = self.features.subgroups;
            self.row_results[*k] = combine_in_workgroup(&mut self.shader, accumulator, &shared, subgroups);
        }
    }

    /// Adds the lines that compute the values per row of a level, except reductions.
    fn compute_row_values(&mut self, level: usize) {
        for k in 0..self.steps.program.steps.len() {
            let is_reduction = matches!(self.steps.step(k).op, Op::Reduce(_));
            if !is_reduction && !self.steps.is_per_element(k) && self.steps.levels[k] == level {
                let results = self.row_results.clone();
                self.row_results[k] = self.compute(k, &results, "0u");
            }
        }
    }

    /// Adds the pass that stores the outputs with one value for each element.
    fn store_elements(&mut self) {
        let outputs = &self.steps.program.outputs;
        let per_element: Vec<usize> = (0..outputs.len()).filter(|&k| !outputs[k].per_row).collect();
        if per_element.is_empty() {
            return;
        }
        let needed = self.steps.needed(per_element.iter().map(|&k| self.steps.outputs[k]));
        self.loop_over_elements(&needed, |this, results, offsets| {
            for &k in &per_element {
                let value = this.value(this.steps.outputs[k], results);
                this.store(k, &value, &offsets[this.inputs + k]);
            }
        });
    }

    /// Adds the lines that store the outputs with one value for each row.
    fn store_rows(&mut self) {
        let outputs = &self.steps.program.outputs;
        // All invocations have read the values per row, which an output may overwrite.
        self.shader.line("workgroupBarrier();");
        let store = self.collect_lines(|this| {
            for k in (0..outputs.len()).filter(|&k| outputs[k].per_row) {
                let value = this.value(this.steps.outputs[k], &this.row_results.clone());
                let offset = this.bases[this.inputs + k].clone();
                this.store(k, &value, &offset);
            }
        });
        self.shader.template(FIRST_INVOCATION, values![store]);
    }

    fn store(&mut self, k: usize, value: &str, offset: &str) {
        let store = self.steps.program.outputs[k];
        let binding = self.bindings.output(k);
        access::store(&mut self.shader, binding, store.compute, store.storage, value, offset);
    }
}

/// The work of one dispatch of a row program.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RowPass {
    /// Everything, for rows that are not divided.
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
fn describe_row(list: &mut DispatchList<'_>, kernel: &Row, operands: &DeviceOperands<'_>) -> Result<()> {
    let arrays: Vec<DeviceArray<'_>> = operands.all().copied().collect();
    let shape = common_shape(&arrays).unwrap_or(Shape::scalar());
    let (count, length) = (kernel.axes.keepdims(&shape).size(), kernel.axes.count(&shape));
    if count == 0 {
        return Ok(());
    }
    let steps = RowSteps::new(&kernel.program);
    let levels = steps.levels.iter().copied().max().unwrap_or(0);
    let parts = part_count(length, levels + 1, program_iterations(&kernel.program));
    let words = steps.partial_word(kernel.program.steps.len());
    if parts == 1 {
        return RowLaunch { kernel, operands, shape, parts, partial: None }.describe(list, RowPass::All);
    }
    let partial = Some(list.scratch((count * parts * words * 4).max(4)));
    let launch = RowLaunch { kernel, operands, shape, parts, partial };
    for level in (1..=levels).filter(|&level| !steps.reductions(level).is_empty()) {
        launch.describe(list, RowPass::Level(level))?;
    }
    // The elements come first: they need inputs per row that an output per row may overwrite.
    for (pass, per_row) in [(RowPass::Elements, false), (RowPass::Rows, true)] {
        if kernel.program.outputs.iter().any(|output| output.per_row == per_row) {
            launch.describe(list, pass)?;
        }
    }
    Ok(())
}

impl RowLaunch<'_> {
    /// Adds the dispatch of a pass.
    fn describe(&self, list: &mut DispatchList<'_>, pass: RowPass) -> Result<()> {
        let RowLaunch { kernel, operands: DeviceOperands { inputs, outputs }, shape, .. } = self;
        let program = &*kernel.program;
        let arrays: Vec<DeviceArray<'_>> = inputs.iter().chain(outputs).copied().collect();
        let (count, length) = (kernel.axes.keepdims(shape).size(), kernel.axes.count(shape));
        // One workgroup stores the values of a row.
        let parts = if pass == RowPass::Rows { 1 } else { self.parts };
        let kept = axes_space(&arrays, shape, |axis| !kernel.axes.contains(axis));
        let row = axes_space(&arrays, shape, |axis| kernel.axes.contains(axis));
        let mut shader = ShaderBuilder::default();
        let stored = if matches!(pass, RowPass::Level(_)) { &[][..] } else { &outputs[..] };
        let mut bindings = Bindings::new(&mut shader, inputs, stored);
        let partial = self.partial.map(|buffer| {
            bindings.buffers.push(buffer);
            shader.binding(if matches!(pass, RowPass::Level(_)) { BindingUse::Write } else { BindingUse::Read })
        });
        let mut parameters = Parameters::for_items(count * parts);
        let [length_expr, parts_expr, part_length] =
            [length, self.parts, length.div_ceil(self.parts)].map(|v| parameters.declare_len(v));
        let starts = declare_starts(&mut parameters, &arrays);
        let [kept, row_axes] = [kept, row].map(|axes| axes.declare(&mut parameters));
        let values = ProgramValues::declare(&mut parameters, program, 0, length);

        shader.return_unless_item("group");
        match parts {
            1 => shader.line("let row = group;"),
            _ => {
                shader.line(format!("let row = group / {parts_expr};"));
                shader.line(format!("let part = group % {parts_expr};"));
            }
        }
        let bases = kept.offsets(&mut shader, "row", &starts);
        let steps = RowSteps::new(program);
        let mut builder = RowShader {
            shader,
            steps,
            values,
            row_results: vec![String::new(); program.steps.len()],
            bindings,
            bases,
            row_axes,
            length: length_expr,
            parts: parts_expr,
            part_length,
            inputs: inputs.len(),
            features: list.features(),
            partial,
        };
        for k in (0..inputs.len()).filter(|&k| program.inputs[k].per_row) {
            let offset = builder.bases[k].clone();
            builder.load_input(k, &offset);
        }
        builder.add_pass(pass);
        list.dispatch(program.name, builder.shader, parameters, &builder.bindings.buffers, count * parts)
    }
}

impl RowShader<'_> {
    /// Adds the lines of a pass, and the lines of the reductions that it needs.
    fn add_pass(&mut self, pass: RowPass) {
        let levels = self.steps.levels.iter().copied().max().unwrap_or(0);
        for level in 0..=levels {
            match (pass, self.partial) {
                (RowPass::Level(reduced), Some(binding)) if reduced == level => {
                    self.reduce_elements(level);
                    return self.store_partials(level, binding);
                }
                (_, Some(binding)) => self.reduce_partials(level, binding),
                (_, None) => self.reduce_elements(level),
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
}
