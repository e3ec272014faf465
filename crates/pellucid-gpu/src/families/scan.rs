//! `Scan`: cumulative reductions along one axis. Sums and products of `f32` accumulate in `f64`.
//!
//! One invocation computes a line of up to [`MAX_SERIAL`] elements in order, bit-identical to the CPU. A longer line of
//! N elements is divided into about √N chunks. A first dispatch reduces every chunk. In the second dispatch, an
//! invocation combines the results of the chunks before its own, and continues with its own elements.

use super::GpuFamily;
use super::shared::axes::axes_space;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::{
    Accumulator, AccumulatorOp, BindingUse, BufferRef, CollectLines, ShaderBuilder, TieRule, WgslFloat, convert_expr,
    iterations, load_words, max_items, store_words, values, words,
};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{Compute, Result};

/// The maximum length of an undivided line. It is less if the elements need long loops ([`max_items`]).
const MAX_SERIAL: usize = 1024;

/// Returns the length of the chunks of a line whose elements each need `iterations` loop iterations.
fn chunk_length(length: usize, iterations: usize) -> usize {
    if length <= MAX_SERIAL.min(max_items(iterations)) { length } else { length.isqrt().next_power_of_two() }
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
            launch.describe(list, ScanPass::All);
        } else {
            let words = RunningScan::words(self.op, x.dtype.compute());
            let results = list.scratch(shape.size() / shape[self.axis] * chunks * words * 4);
            launch.describe(list, ScanPass::Chunks(results));
            launch.describe(list, ScanPass::Outputs(results));
        }
        Ok(())
    }
}

/// The work of one dispatch of a scan.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ScanPass {
    /// The outputs of undivided lines.
    All,
    /// The results of all chunks.
    Chunks(BufferRef),
    /// The outputs, computed from the results of the chunks.
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
    fn describe(&self, list: &mut DispatchList<'_>, pass: ScanPass) {
        let ScanLaunch { kernel, x, outputs, chunk, chunks } = *self;
        let outputs = if matches!(pass, ScanPass::Chunks(_)) { &[] } else { outputs };
        let (shape, axis) = (x.shape(), kernel.axis);
        let arrays: Vec<_> = [x].into_iter().chain(outputs).collect();
        let axes = axes_space(arrays.iter().copied(), shape, |other| other != axis);
        let mut shader = ShaderBuilder::for_threads(shape.size() / shape[axis] * chunks);
        let bindings = Bindings::new(&mut shader, std::slice::from_ref(x), outputs);
        let results = match pass {
            ScanPass::All => 0,
            ScanPass::Chunks(buffer) => shader.binding(buffer, BindingUse::Write),
            ScanPass::Outputs(buffer) => shader.binding(buffer, BindingUse::Read),
        };
        let [length, chunks, chunk_length] = shader.declare_words([shape[axis], chunks, chunk]);
        let declare = |array: &&DeviceArray<'_>| {
            (shader.declare_word(array.layout.offset()), shader.declare(array.layout.strides()[axis]))
        };
        let (starts, steps): (Vec<String>, Vec<String>) = arrays.iter().map(declare).unzip();
        let axes = axes.declare(&mut shader);

        let (compute, words) = (x.dtype.compute(), RunningScan::words(kernel.op, x.dtype.compute()));
        let (compute_bases, bases) = shader.collect_result(|shader| axes.offsets(shader, "line", &starts));
        let (declare_variables, running) =
            shader.collect_result(|shader| RunningScan::declare(shader, kernel.op, compute));
        let (combine_earlier, combine_chunk) = match pass {
            ScanPass::Outputs(_) => {
                (COMBINE_EARLIER, shader.collect_lines(|shader| running.combine(shader, results, "variables")))
            }
            _ => ("", String::new()),
        };
        let scan_element = shader.collect_lines(|shader| {
            let offset = |(base, step)| shader.define(format!("{base} + index * {step}"));
            let offsets: Vec<String> = bases.iter().zip(&steps).map(offset).collect();
            let value = bindings.input(0).define(shader, &offsets[0]);
            running.accumulate(shader, &value, "index");
            let [_, indices @ ..] = outputs else { return };
            let result = running.result(shader);
            bindings.output(0).store(shader, &result, &offsets[1]);
            if let (RunningScan::Reduction(accumulator, _), [_]) = (&running, indices) {
                bindings.output(1).store(shader, &accumulator.result(), &offsets[2]);
            }
        });
        let store_chunk = match pass {
            ScanPass::Chunks(_) => shader.collect_lines(|shader| {
                let offset = shader.define(format!("thread * {words}u"));
                running.store(shader, results, &offset);
            }),
            _ => String::new(),
        };
        let (words, index) = (format!("{words}u"), if kernel.reverse { "$length - 1u - i" } else { "i" });
        let sizes = values![length, chunks, chunk_length, words, index];
        let begin = values![compute_bases, declare_variables, combine_earlier, combine_chunk];
        shader.template(SCAN_CHUNK, &[&sizes[..], begin, values![scan_element, store_chunk]].concat());
        list.dispatch("scan", shader);
    }
}

/// Scans one chunk of a line in every invocation.
const SCAN_CHUNK: &str = "
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

/// Combines the partial results of the preceding chunks of the line.
const COMBINE_EARLIER: &str = "
    for (var earlier = 0u; earlier < chunk; earlier = earlier + 1u) {
        let variables = (line * $chunks + earlier) * $words;
        $combine_chunk
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

/// Corrects the rounding of the sum s = w + r with the rounded sum w and the error r: ln s ≈ ln w + r/w. The correction
/// matters only for w near 1.
const CORRECT_LOG_SUM: &str = "
    let wide_rounded = $wide_rounded;
    let rounding_error = $rounding_error;
    let correction = select(0.0, rounding_error, $lt(rounded, 2.0));
    let corrected = $add(log_sum, correction);
";

/// The variables of a scan in a shader.
enum RunningScan {
    /// A reduction, and the type of its values.
    Reduction(Accumulator, Compute),
    LogSumExp(Compute),
}

/// Returns the reduction that a scan computes and the type of its values, or `None` for ln Σ exp.
fn reduction(op: ScanOp, compute: Compute) -> Option<(AccumulatorOp, Compute)> {
    let arg = |largest| (AccumulatorOp::Arg { largest, ties: TieRule::Later }, compute);
    match op {
        ScanOp::Sum => Some((AccumulatorOp::Fold(Binary::Add), ScanOp::accumulator(compute))),
        ScanOp::Prod => Some((AccumulatorOp::Fold(Binary::Mul), ScanOp::accumulator(compute))),
        ScanOp::Max => Some(arg(true)),
        ScanOp::Min => Some(arg(false)),
        ScanOp::LogSumExp => None,
    }
}

impl RunningScan {
    fn declare(shader: &mut ShaderBuilder, op: ScanOp, compute: Compute) -> RunningScan {
        let Some((reduction, total)) = reduction(op, compute) else {
            shader.line(format!("var largest = {};", WgslFloat(compute).negative_infinity()));
            shader.line(format!("var sum = {};", WgslFloat(Compute::F64).zero()));
            return RunningScan::LogSumExp(compute);
        };
        let accumulator = Accumulator::declare(shader, reduction, total, "total");
        if (op, total) == (ScanOp::Sum, Compute::F64) {
            // The sum of −0 alone is −0.
            shader.line("total = vec2<u32>(0u, 0x80000000u);");
        }
        RunningScan::Reduction(accumulator, compute)
    }

    /// Returns an estimate of the iterations of the loops for one element.
    fn iterations(op: ScanOp, compute: Compute) -> usize {
        iterations(&ShaderBuilder::default().collect_lines(|shader| {
            let running = RunningScan::declare(shader, op, compute);
            running.accumulate(shader, "value", "index");
            running.result(shader);
        }))
    }

    /// Returns the number of words of the variables of a scan.
    fn words(op: ScanOp, compute: Compute) -> usize {
        match reduction(op, compute) {
            Some((reduction, total)) => reduction.partial_words(total),
            None => words(compute) + words(Compute::F64),
        }
    }

    /// Adds the lines that store the variables in words of the buffer `binding`.
    fn store(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        match self {
            RunningScan::Reduction(accumulator, _) => accumulator.store_partial(shader, binding, offset),
            RunningScan::LogSumExp(compute) => {
                store_words(shader, binding, *compute, "largest", offset);
                let offset = format!("{offset} + {}u", words(*compute));
                store_words(shader, binding, Compute::F64, "sum", &offset);
            }
        }
    }

    /// Adds the lines that combine the variables with the variables that [`RunningScan::store`] has stored for the
    /// following elements.
    fn combine(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        match self {
            RunningScan::Reduction(accumulator, _) => accumulator.accumulate_partial(shader, binding, offset),
            RunningScan::LogSumExp(compute) => {
                let value = shader.define(load_words(shader, binding, *compute, offset));
                let offset = format!("{offset} + {}u", words(*compute));
                let count = shader.define(load_words(shader, binding, Compute::F64, &offset));
                add_exponentials(shader, *compute, &value, Some(&count));
            }
        }
    }

    /// Adds the lines that process the next value, which has the index `index` in its line.
    fn accumulate(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        match self {
            RunningScan::Reduction(accumulator, compute) => {
                let wide = shader.define(convert_expr(*compute, accumulator.compute, value));
                accumulator.accumulate(shader, &wide, index);
            }
            RunningScan::LogSumExp(compute) => add_exponentials(shader, *compute, value, None),
        }
    }

    /// Defines the result for the values so far.
    fn result(&self, shader: &mut ShaderBuilder) -> String {
        match self {
            RunningScan::Reduction(accumulator, compute) => {
                shader.define(convert_expr(accumulator.compute, *compute, &accumulator.value()))
            }
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
