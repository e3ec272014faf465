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
use crate::shader::program::{Accumulator, convert_expr, precedes_expr};
use crate::shader::template::{CollectLines, values};
use crate::shader::types::{WgslFloat, wgsl_type};
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
        let element_iterations = RunningScan::iterations(self.op, inputs[0].dtype.compute());
        let chunk = chunk_length(length, element_iterations).max(1);
        let earlier = length.div_ceil(chunk).saturating_sub(1);
        (chunk + earlier).saturating_mul(1 + element_iterations)
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
        let [length, chunks, chunk_length] = [shape[axis], chunks, chunk].map(|v| parameters.declare_len(v));
        let declare = |array: &&DeviceArray<'_>| {
            (parameters.declare_len(array.layout.offset()), parameters.declare(array.layout.strides()[axis]))
        };
        let (starts, steps): (Vec<String>, Vec<String>) = arrays.iter().map(declare).unzip();
        let axes = axes.declare(&mut parameters);

        let (compute, words) = (x.dtype.compute(), RunningScan::words(kernel.op, x.dtype.compute()));
        let (compute_bases, bases) = shader.collect_result(|shader| axes.offsets(shader, "line", &starts));
        let (declare_variables, running) =
            shader.collect_result(|shader| RunningScan::declare(shader, kernel.op, compute));
        let combine_chunk = shader.collect_lines(|shader| {
            if let (ScanPass::Outputs(_), Some((_, binding))) = (pass, results) {
                running.combine(shader, binding, "variables");
            }
        });
        let combine_earlier = if matches!(pass, ScanPass::Outputs(_)) { COMBINE_EARLIER } else { "" };
        let scan_element = shader.collect_lines(|shader| {
            let offset = |(base, step)| shader.define(format!("{base} + index * {step}"));
            let offsets: Vec<String> = bases.iter().zip(&steps).map(offset).collect();
            let value = shader.define(access::load(shader, bindings.input(0), x.dtype, compute, &offsets[0]));
            running.accumulate(shader, &value, "index");
            let [values, indices @ ..] = outputs else { return };
            let result = running.result(shader);
            access::store(shader, bindings.output(0), compute, values.dtype, &result, &offsets[1]);
            if !indices.is_empty() {
                let index = "vec2<u32>(extremum_index, 0u)";
                access::store(shader, bindings.output(1), Compute::I64, DType::I64, index, &offsets[2]);
            }
        });
        let store_chunk = shader.collect_lines(|shader| {
            if let (ScanPass::Chunks(_), Some((_, binding))) = (pass, results) {
                let offset = shader.define(format!("thread * {words}u"));
                running.store(shader, binding, &offset);
            }
        });
        let (words, index) = (format!("{words}u"), if kernel.reverse { "$length - 1u - i" } else { "i" });
        let sizes = values![length, chunks, chunk_length, words, index];
        let begin = values![compute_bases, declare_variables, combine_earlier, combine_chunk];
        shader.template(SCAN_CHUNK, &[&sizes[..], begin, values![scan_element, store_chunk]].concat());
        list.dispatch("scan", shader, parameters, &bindings.buffers, items.div_ceil(WORKGROUP as usize))
    }
}

/// Scans one chunk of a line in every invocation.
const SCAN_CHUNK: &str = "
    if (thread >= $item_count) { return; }
    let line = thread / $chunks;
    let chunk = thread % $chunks;
    $compute_bases
    $declare_variables
    $combine_earlier
    let end = min((chunk + 1u) * $chunk_length, $length);
    for (var i = chunk * $chunk_length; i < end; i = i + 1u) {
        let index = $index;
        $scan_element
    }
    $store_chunk
";

/// Combines the variables of the earlier chunks of the line.
const COMBINE_EARLIER: &str = "
    for (var earlier = 0u; earlier < chunk; earlier = earlier + 1u) {
        let variables = (line * $chunks + earlier) * $words;
        $combine_chunk
    }
";

/// Selects a value. It replaces an equal one.
const SELECT_EXTREMUM: &str = "
    if (extremum_index == 0xffffffffu || !$precedes) {
        extremum = $value;
        extremum_index = $index;
    }
";

/// Adds `$count`·e^`$value` to sum·e^largest.
const ADD_EXPONENTIALS: &str = "
    let exponential = $exp($neg($abs($sub($value, largest))));
    let wide = $wide_exponential;
    let factor = select(wide, $wide_one, $eq($value, largest));
    let grows = $lt(largest, $value);
    if (grows) {
        sum = d_add(d_mul(sum, factor), $count);
        largest = $value;
    } else {
        sum = d_add(sum, $added);
    }
";

/// Computes largest + ln(sum).
const LOG_SUM_EXP: &str = "
    let rounded = $rounded_sum;
    let log_sum = $add(largest, $ln(rounded));
";

/// Corrects the rounding of the sum: ln s = ln w + r/w with the rounding error r of w. r matters only for w near 1.
const CORRECT_LOG_SUM: &str = "
    let wide_rounded = $wide_rounded;
    let rounding_error = $rounding_error;
    let correction = select(0.0, rounding_error, $lt(rounded, 2.0));
    let corrected = $add(log_sum, correction);
";

/// The variables of a scan in a shader.
enum RunningScan {
    /// A sum or product, with the types of the elements and of the total.
    Fold(Accumulator, Compute, Compute),
    Extremum(ScanOp, Compute),
    LogSumExp(Compute),
}

impl RunningScan {
    fn declare(shader: &mut ShaderBuilder, op: ScanOp, compute: Compute) -> RunningScan {
        match op {
            ScanOp::Sum | ScanOp::Prod => {
                let total = ScanOp::accumulator(compute);
                let primitive = if op == ScanOp::Sum { Binary::Add } else { Binary::Mul };
                let accumulator = Accumulator::declare(shader, primitive, total, "total");
                if (op, total) == (ScanOp::Sum, Compute::F64) {
                    // The sum of −0 alone is −0.
                    shader.line("total = vec2<u32>(0u, 0x80000000u);");
                }
                RunningScan::Fold(accumulator, compute, total)
            }
            ScanOp::Max | ScanOp::Min => {
                shader.line(format!("var extremum: {};", wgsl_type(compute)));
                shader.line("var extremum_index = 0xffffffffu;");
                RunningScan::Extremum(op, compute)
            }
            ScanOp::LogSumExp => {
                shader.line(format!("var largest = {};", WgslFloat(compute).negative_infinity()));
                shader.line(format!("var sum = {};", WgslFloat(Compute::F64).zero()));
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
            ScanOp::Sum | ScanOp::Prod => words(ScanOp::accumulator(compute)),
            ScanOp::Max | ScanOp::Min => words(compute) + 1,
            ScanOp::LogSumExp => words(compute) + words(Compute::F64),
        }
    }

    /// Adds the lines that store the variables in words of the buffer `binding`.
    fn store(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        match self {
            RunningScan::Fold(accumulator, _, total) => {
                access::store_words(shader, binding, *total, &accumulator.result(), offset);
            }
            RunningScan::Extremum(_, compute) => {
                access::store_words(shader, binding, *compute, "extremum", offset);
                shader.store_word(binding, &format!("{offset} + {}u", words(*compute)), "extremum_index");
            }
            RunningScan::LogSumExp(compute) => {
                access::store_words(shader, binding, *compute, "largest", offset);
                let offset = format!("{offset} + {}u", words(*compute));
                access::store_words(shader, binding, Compute::F64, "sum", &offset);
            }
        }
    }

    /// Adds the lines that combine the variables with the variables that [`RunningScan::store`] has stored for the
    /// following elements.
    fn combine(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        match self {
            RunningScan::Fold(accumulator, _, total) => {
                let value = shader.define(access::load_words(shader, binding, *total, offset));
                accumulator.accumulate(shader, &value);
            }
            RunningScan::Extremum(_, compute) => {
                let value = shader.define(access::load_words(shader, binding, *compute, offset));
                let index = shader.define(shader.word(binding, &format!("{offset} + {}u", words(*compute))));
                self.accumulate(shader, &value, &index);
            }
            RunningScan::LogSumExp(compute) => {
                let value = shader.define(access::load_words(shader, binding, *compute, offset));
                let offset = format!("{offset} + {}u", words(*compute));
                let count = shader.define(access::load_words(shader, binding, Compute::F64, &offset));
                add_exponentials(shader, *compute, &value, Some(&count));
            }
        }
    }

    /// Adds the lines that process the next value, which has the index `index` in its line.
    fn accumulate(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        match self {
            RunningScan::Fold(accumulator, compute, total) => {
                let wide = shader.define(convert_expr(*compute, *total, value));
                accumulator.accumulate(shader, &wide);
            }
            RunningScan::Extremum(op, compute) => {
                let precedes = precedes_expr(*compute, *op == ScanOp::Max, "extremum", value);
                shader.template(SELECT_EXTREMUM, values![precedes, value, index]);
            }
            RunningScan::LogSumExp(compute) => add_exponentials(shader, *compute, value, None),
        }
    }

    /// Defines the result for the values so far.
    fn result(&self, shader: &mut ShaderBuilder) -> String {
        match self {
            RunningScan::Fold(accumulator, compute, total) => {
                shader.define(convert_expr(*total, *compute, &accumulator.result()))
            }
            RunningScan::Extremum(..) => "extremum".into(),
            RunningScan::LogSumExp(compute) => {
                let float = WgslFloat(*compute);
                let rounded_sum = convert_expr(Compute::F64, *compute, "sum");
                float.template(shader, LOG_SUM_EXP, values![rounded_sum]);
                if *compute == Compute::F64 {
                    return "log_sum".into();
                }
                let wide_rounded = convert_expr(*compute, Compute::F64, "rounded");
                let rounding_error = convert_expr(Compute::F64, *compute, "d_sub(sum, wide_rounded)");
                float.template(shader, CORRECT_LOG_SUM, values![wide_rounded, rounding_error]);
                "corrected".into()
            }
        }
    }
}

/// Adds the lines that add `count`·e^`value` to sum·e^largest, where `count` is an `f64`, or 1.
fn add_exponentials(shader: &mut ShaderBuilder, compute: Compute, value: &str, count: Option<&str>) {
    let wide_exponential = convert_expr(compute, Compute::F64, "exponential");
    let wide_one = WgslFloat(Compute::F64).one();
    let added = count.map_or("factor".into(), |count| format!("d_mul({count}, factor)"));
    let count = count.unwrap_or(wide_one);
    WgslFloat(compute).template(shader, ADD_EXPONENTIALS, values![value, wide_exponential, wide_one, count, added]);
}
