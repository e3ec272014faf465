//! `Scan`: cumulative reductions along one axis. Sums and products of `f32` accumulate in `f64`.
//!
//! One invocation computes a line of up to [`MAX_SERIAL`] elements in order, bit-identical to the CPU. A longer line of
//! N elements is divided into about √N chunks. A first dispatch reduces every chunk. An invocation of the second one
//! combines the results of the chunks before its own, and continues with its own elements.

use super::GpuFamily;
use super::shared::axes::axes_space;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, BufferRef, DeviceArray, DeviceOperands};
use crate::shader::access;
use crate::shader::iterations::{MAX_ITERATIONS, iterations};
use crate::shader::parameters::{Parameters, words};
use crate::shader::program::{Accumulator, convert_text, precedes_text};
use crate::shader::types::{FloatText, float_prefix, type_text};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{Compute, DType, Result};

/// The length of the longest line that is not divided.
const MAX_SERIAL: usize = 1024;

/// Returns the length of the chunks of a line whose elements need `iterations` of loops.
fn chunk_length(length: usize, iterations: usize) -> usize {
    let is_serial = length <= MAX_SERIAL && length * (1 + iterations) <= MAX_ITERATIONS;
    if is_serial { length } else { length.isqrt().next_power_of_two() }
}

impl GpuFamily for Scan {
    fn iterations(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        let length = inputs[0].layout.shape()[self.axis];
        let of_element = RunningScan::iterations(self.op, inputs[0].dtype.compute());
        let chunk = chunk_length(length, of_element).max(1);
        let earlier = length.div_ceil(chunk).saturating_sub(1);
        (chunk + earlier).saturating_mul(1 + of_element)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, outputs) = (&operands.inputs[0], &operands.outputs[..]);
        let shape = x.shape();
        if shape.size() == 0 {
            return Ok(());
        }
        let chunk = chunk_length(shape[self.axis], RunningScan::iterations(self.op, x.dtype.compute()));
        let chunks = shape[self.axis].div_ceil(chunk);
        let launch = ScanLaunch { kernel: self, x, outputs, chunk, chunks };
        if chunks == 1 {
            return launch.describe(list, ScanPass::All);
        }
        let words = RunningScan::words(self.op, x.dtype.compute());
        let results = list.scratch(shape.size() / shape[self.axis] * chunks * words * 4);
        launch.describe(list, ScanPass::Chunks(results))?;
        launch.describe(list, ScanPass::Outputs(results))
    }
}

/// The work of one dispatch of a scan.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ScanPass {
    /// The outputs, of lines that are not divided.
    All,
    /// The results of all chunks.
    Chunks(BufferRef),
    /// The outputs, from the results of the chunks.
    Outputs(BufferRef),
}

/// A scan with its operands.
struct ScanLaunch<'a> {
    kernel: &'a Scan,
    x: &'a DeviceArray<'a>,
    outputs: &'a [DeviceArray<'a>],
    /// The length of a chunk.
    chunk: usize,
    /// The number of chunks of a line.
    chunks: usize,
}

impl ScanLaunch<'_> {
    /// Adds the dispatch of a pass.
    fn describe(&self, list: &mut DispatchList<'_>, pass: ScanPass) -> Result<()> {
        let ScanLaunch { kernel, x, outputs, chunk, chunks } = *self;
        let outputs = if matches!(pass, ScanPass::Chunks(_)) { &[] } else { outputs };
        let (shape, axis) = (x.shape(), kernel.axis);
        let items = shape.size() / shape[axis] * chunks;
        let arrays: Vec<_> = [x].into_iter().chain(outputs).collect();
        let axes = axes_space(arrays.iter().copied(), shape, |other| other != axis);
        let mut shader = ShaderBuilder::default();
        let mut bindings = Bindings::new(&mut shader, std::slice::from_ref(x), outputs);
        let results = match pass {
            ScanPass::All => None,
            ScanPass::Chunks(buffer) => Some((buffer, shader.binding(BindingUse::Write))),
            ScanPass::Outputs(buffer) => Some((buffer, shader.binding(BindingUse::Read))),
        };
        bindings.buffers.extend(results.map(|(buffer, _)| buffer));
        let mut parameters = Parameters::for_items(items);
        let [length, chunks, chunk] = [shape[axis], chunks, chunk].map(|v| parameters.declare_len(v));
        let declare = |array: &&DeviceArray<'_>| {
            (parameters.declare_len(array.layout.offset()), parameters.declare(array.layout.strides()[axis]))
        };
        let (starts, steps): (Vec<String>, Vec<String>) = arrays.iter().map(declare).unzip();
        let axes = axes.declare(&mut parameters);

        shader.line("if (thread >= params[0]) { return; }");
        shader.line(format!("let line = thread / {chunks};"));
        shader.line(format!("let chunk = thread % {chunks};"));
        let bases = axes.positions(&mut shader, "line", &starts);
        let compute = x.dtype.compute();
        let running = RunningScan::declare(&mut shader, kernel.op, compute);
        let words = RunningScan::words(kernel.op, compute);
        if let (ScanPass::Outputs(_), Some((_, binding))) = (pass, results) {
            shader.line("for (var earlier = 0u; earlier < chunk; earlier = earlier + 1u) {");
            let at = shader.define(format!("(line * {chunks} + earlier) * {words}u"));
            running.combine(&mut shader, binding, &at);
            shader.line("}");
        }
        shader.line(format!("let end = min((chunk + 1u) * {chunk}, {length});"));
        shader.line(format!("for (var i = chunk * {chunk}; i < end; i = i + 1u) {{"));
        let index = if kernel.reverse { format!("{length} - 1u - i") } else { "i".into() };
        shader.line(format!("let index = {index};"));
        let position = |(base, step)| shader.define(format!("{base} + index * {step}"));
        let at: Vec<String> = bases.iter().zip(&steps).map(position).collect();
        let value = shader.define(access::load(&shader, bindings.input(0), x.dtype, compute, &at[0]));
        running.accumulate(&mut shader, &value, "index");
        if let [values, indices @ ..] = outputs {
            let result = running.result(&mut shader);
            access::store(&mut shader, bindings.output(0), compute, values.dtype, &result, &at[1]);
            if !indices.is_empty() {
                let index = "vec2<u32>(extremum_index, 0u)";
                access::store(&mut shader, bindings.output(1), Compute::I64, DType::I64, index, &at[2]);
            }
        }
        shader.line("}");
        if let (ScanPass::Chunks(_), Some((_, binding))) = (pass, results) {
            let at = shader.define(format!("thread * {words}u"));
            running.store(&mut shader, binding, &at);
        }
        list.dispatch("scan", shader, parameters, &bindings.buffers, items.div_ceil(WORKGROUP as usize))
    }
}

/// The variables of a scan in the text of a shader.
enum RunningScan {
    /// A sum or product, with the types of the elements and of the total.
    Total(Accumulator, Compute, Compute),
    Extremum(ScanOp, Compute),
    LogSumExp(Compute),
}

impl RunningScan {
    fn declare(shader: &mut ShaderBuilder, op: ScanOp, compute: Compute) -> RunningScan {
        match op {
            ScanOp::Sum | ScanOp::Prod => {
                let total = total_compute(compute);
                let primitive = if op == ScanOp::Sum { Binary::Add } else { Binary::Mul };
                let accumulator = Accumulator::declare(shader, primitive, total, "total");
                if (op, total) == (ScanOp::Sum, Compute::F64) {
                    // The sum of −0 alone is −0.
                    shader.line("total = vec2<u32>(0u, 0x80000000u);");
                }
                RunningScan::Total(accumulator, compute, total)
            }
            ScanOp::Max | ScanOp::Min => {
                shader.line(format!("var extremum: {};", type_text(compute)));
                shader.line("var extremum_index = 0xffffffffu;");
                RunningScan::Extremum(op, compute)
            }
            ScanOp::LogSumExp => {
                shader.line(format!("var largest = {};", FloatText(compute).negative_infinity()));
                shader.line(format!("var sum = {};", FloatText(Compute::F64).zero()));
                RunningScan::LogSumExp(compute)
            }
        }
    }

    /// Returns an estimate of the iterations of the loops for one element.
    fn iterations(op: ScanOp, compute: Compute) -> usize {
        let mut shader = ShaderBuilder::default();
        let running = RunningScan::declare(&mut shader, op, compute);
        running.accumulate(&mut shader, "value", "index");
        running.result(&mut shader);
        iterations(&shader.body)
    }

    /// Returns the number of words of the variables of a scan.
    fn words(op: ScanOp, compute: Compute) -> usize {
        match op {
            ScanOp::Sum | ScanOp::Prod => words(total_compute(compute)),
            ScanOp::Max | ScanOp::Min => words(compute) + 1,
            ScanOp::LogSumExp => words(compute) + words(Compute::F64),
        }
    }

    /// Adds the lines that store the variables in words of the buffer `binding`.
    fn store(&self, shader: &mut ShaderBuilder, binding: usize, at: &str) {
        match self {
            RunningScan::Total(accumulator, _, total) => {
                access::store_words(shader, binding, *total, &accumulator.result(), at);
            }
            RunningScan::Extremum(_, compute) => {
                access::store_words(shader, binding, *compute, "extremum", at);
                shader.store_word(binding, &format!("{at} + {}u", words(*compute)), "extremum_index");
            }
            RunningScan::LogSumExp(compute) => {
                access::store_words(shader, binding, *compute, "largest", at);
                let at = format!("{at} + {}u", words(*compute));
                access::store_words(shader, binding, Compute::F64, "sum", &at);
            }
        }
    }

    /// Adds the lines that combine the variables with the variables that [`RunningScan::store`] has stored for the
    /// following elements.
    fn combine(&self, shader: &mut ShaderBuilder, binding: usize, at: &str) {
        match self {
            RunningScan::Total(accumulator, _, total) => {
                let value = shader.define(access::load_words(shader, binding, *total, at));
                accumulator.accumulate(shader, &value);
            }
            RunningScan::Extremum(_, compute) => {
                let value = shader.define(access::load_words(shader, binding, *compute, at));
                let index = shader.define(shader.word(binding, &format!("{at} + {}u", words(*compute))));
                self.accumulate(shader, &value, &index);
            }
            RunningScan::LogSumExp(compute) => {
                let value = shader.define(access::load_words(shader, binding, *compute, at));
                let at = format!("{at} + {}u", words(*compute));
                let count = shader.define(access::load_words(shader, binding, Compute::F64, &at));
                add_exponentials(shader, *compute, &value, Some(&count));
            }
        }
    }

    /// Adds the lines that process the next value, which has the index `index` in its line.
    fn accumulate(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        match self {
            RunningScan::Total(accumulator, compute, total) => {
                let wide = shader.define(convert_text(*compute, *total, value));
                accumulator.accumulate(shader, &wide);
            }
            RunningScan::Extremum(op, compute) => {
                // A value replaces an equal one.
                let precedes = precedes_text(*compute, *op == ScanOp::Max, "extremum", value);
                shader.line(format!("if (extremum_index == 0xffffffffu || !{precedes}) {{"));
                shader.line(format!("    extremum = {value};"));
                shader.line(format!("    extremum_index = {index};"));
                shader.line("}");
            }
            RunningScan::LogSumExp(compute) => add_exponentials(shader, *compute, value, None),
        }
    }

    /// Defines the result for the values so far.
    fn result(&self, shader: &mut ShaderBuilder) -> String {
        match self {
            RunningScan::Total(accumulator, compute, total) => {
                shader.define(convert_text(*total, *compute, &accumulator.result()))
            }
            RunningScan::Extremum(..) => "extremum".into(),
            RunningScan::LogSumExp(compute) => {
                let p = float_prefix(*compute);
                let rounded = shader.define(convert_text(Compute::F64, *compute, "sum"));
                let y = shader.define(format!("{p}_add(largest, {p}_ln({rounded}))"));
                if *compute == Compute::F64 {
                    return y;
                }
                // ln s = ln w + r/w, where r is the rounding error of w. r matters only for w near 1.
                let wide = shader.define(convert_text(*compute, Compute::F64, &rounded));
                let rest = shader.define(convert_text(Compute::F64, *compute, &format!("d_sub(sum, {wide})")));
                let rest = shader.define(format!("select(0.0, {rest}, {p}_lt({rounded}, 2.0))"));
                shader.define(format!("{p}_add({y}, {rest})"))
            }
        }
    }
}

/// Returns the type of the total of values of type `compute`.
fn total_compute(compute: Compute) -> Compute {
    if compute == Compute::F32 { Compute::F64 } else { compute }
}

/// Adds the lines that add `count`·e^`value` to sum·e^largest, where `count` is an `f64`, or 1.
fn add_exponentials(shader: &mut ShaderBuilder, compute: Compute, value: &str, count: Option<&str>) {
    let (p, one) = (float_prefix(compute), FloatText(Compute::F64).one());
    let e = shader.define(format!("{p}_exp({p}_neg({p}_abs({p}_sub({value}, largest))))"));
    let wide = shader.define(convert_text(compute, Compute::F64, &e));
    let wide = shader.define(format!("select({wide}, {one}, {p}_eq({value}, largest))"));
    let grows = shader.define(format!("{p}_lt(largest, {value})"));
    shader.line(format!("if ({grows}) {{"));
    shader.line(format!("    sum = d_add(d_mul(sum, {wide}), {});", count.unwrap_or(one)));
    shader.line(format!("    largest = {value};"));
    shader.line("} else {");
    let added = count.map_or(wide.clone(), |count| format!("d_mul({count}, {wide})"));
    shader.line(format!("    sum = d_add(sum, {added});"));
    shader.line("}");
}
