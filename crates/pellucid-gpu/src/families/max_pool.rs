//! `Pool`: the largest element of each window and its index, and the gradient.

use super::GpuFamily;
use super::shared::window::{fits_shader_coordinates, spatial_lengths};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::{
    Accumulator, AccumulatorOp, CollectLines, MergedAxes, ShaderBuilder, TieRule, axis_values, binary_expr, values,
    wgsl_type,
};
use pellucid_ir::Result;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Pool, PoolPart, PoolWindows};

impl GpuFamily for Pool {
    /// Returns true if shaders can compute the coordinates of all windows, and the first output is contiguous.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let [x, y] = axis_lengths(self.part, inputs, outputs);
        let fits = match &self.windows {
            PoolWindows::Sliding(window) => fits_shader_coordinates(window, [x, y]),
            PoolWindows::Adaptive => x.iter().zip(y).all(|(x, y)| (x + 1).saturating_mul(y + 1) <= i32::MAX as usize),
        };
        outputs[0].layout.is_contiguous() && fits
    }

    fn iterations(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> usize {
        // One invocation visits all taps of a window, or all windows of an element, by three nested loops.
        let [x, y] = axis_lengths(self.part, inputs, outputs);
        let axis_iterations = |axis: usize| match (&self.windows, self.part) {
            (PoolWindows::Sliding(window), _) => window.size[axis],
            (PoolWindows::Adaptive, PoolPart::Maximum) => x[axis].div_ceil(y[axis].max(1)) + 1,
            (PoolWindows::Adaptive, PoolPart::Gradient) => y[axis].div_ceil(x[axis].max(1)) + 1,
        };
        (0..3).map(axis_iterations).fold(3, usize::saturating_mul)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        if operands.outputs[0].shape().size() > 0 {
            match self.part {
                PoolPart::Maximum => describe_maximum(&self.windows, list, operands),
                PoolPart::Gradient => describe_gradient(&self.windows, list, operands),
            }
        }
        Ok(())
    }
}

/// Returns the lengths of the spatial axes of x and of the windows.
fn axis_lengths(part: PoolPart, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> [[usize; 3]; 2] {
    let [input, output] = [inputs, outputs].map(|operands| spatial_lengths(operands[0].layout.shape()));
    match part {
        PoolPart::Maximum => [input, output],
        PoolPart::Gradient => [output, input],
    }
}

/// The loop over the elements of a sliding window along axis `@`. Positions before the input wrap to large numbers.
const SLIDING_TAPS: &str = "
    for (var tap@ = 0u; tap@ < $size@; tap@ = tap@ + 1u) {
        let at@ = window@ * $stride@ + tap@ * $dilation@ - $padding@;
        if (at@ >= $x_length@) { continue; }
";

/// The loop over the elements of an adaptive window along axis `@`.
const ADAPTIVE_TAPS: &str = "
    let end@ = ((window@ + 1u) * $x_length@ + $y_length@ - 1u) / $y_length@;
    for (var at@ = window@ * $x_length@ / $y_length@; at@ < end@; at@ = at@ + 1u) {
";

/// The loop over the sliding windows that contain an element. They start at most `$reach` elements before the element,
/// along the padded axis.
const SLIDING_WINDOWS: &str = "
    let padded@ = at@ + $padding@;
    let end@ = min(padded@ / $stride@ + 1u, $y_length@);
    let first@ = (max(padded@, $reach@) - $reach@ + $stride@ - 1u) / $stride@;
    for (var window@ = first@; window@ < end@; window@ = window@ + 1u) {
";

/// The loop over the adaptive windows that may contain an element. Window o contains element i if and only if window i
/// contains element o after the lengths of x and y are exchanged.
const ADAPTIVE_WINDOWS: &str = "
    let end@ = ((at@ + 1u) * $y_length@ + $x_length@ - 1u) / $x_length@;
    for (var window@ = at@ * $y_length@ / $x_length@; window@ < end@; window@ = window@ + 1u) {
";

/// Returns the beginning of a loop for each axis.
fn axis_loops(source: &str) -> [String; 3] {
    ["0", "1", "2"].map(|axis| source.replace('@', axis))
}

/// The parameters of sliding windows along the spatial axes; empty for adaptive windows.
#[derive(Default)]
struct WindowParameters {
    size: [String; 3],
    stride: [String; 3],
    dilation: [String; 3],
    padding: [String; 3],
    reach: [String; 3],
}

impl WindowParameters {
    fn declare(shader: &mut ShaderBuilder, windows: &PoolWindows) -> WindowParameters {
        let PoolWindows::Sliding(window) = windows else { return WindowParameters::default() };
        WindowParameters {
            size: shader.declare_words(window.size),
            stride: shader.declare_words(window.stride),
            dilation: shader.declare_words(window.dilation),
            padding: shader.declare_words(window.before),
            reach: shader.declare_words([0, 1, 2].map(|axis| window.span(axis))),
        }
    }
}

/// Adds the strides of the spatial axes to the parameters and returns their expressions.
fn spatial_steps(shader: &mut ShaderBuilder, array: &DeviceArray<'_>) -> [String; 3] {
    let strides = array.layout.strides();
    [3, 2, 1].map(|back| shader.declare(strides[strides.len() - back]))
}

/// Finds the largest element of a window.
const MAXIMUM: &str = "
    let window2 = thread % $y_length2;
    let windows1 = thread / $y_length2;
    let window1 = windows1 % $y_length1;
    let windows0 = windows1 / $y_length1;
    let window0 = windows0 % $y_length0;
    let lead = windows0 / $y_length0;
    $compute_base
    $declare_best
    $taps0
        $taps1
            $taps2
                let offset = $base + at0 * $step0 + at1 * $step1 + at2 * $step2;
                let value = $value;
                let index = (at0 * $x_length1 + at1) * $x_length2 + at2;
                $select_best
            }
        }
    }
";

/// Adds the gradients of the windows that selected an element.
const GRADIENT: &str = "
    let element = thread % $plane;
    let at2 = thread % $x_length2;
    let rows = thread / $x_length2;
    let at1 = rows % $x_length1;
    let planes = rows / $x_length1;
    let at0 = planes % $x_length0;
    let lead = planes / $x_length0;
    $compute_bases
    // WGSL initializes variables to zero.
    var sum: $value_type;
    $windows0
        $windows1
            $windows2
                let index_offset = $index_base + window0 * $index_step0 + window1 * $index_step1 + window2 * $index_step2;
                if (all($index == vec2<u32>(element, 0u))) {
                    let gradient_offset = $g_base + window0 * $g_step0 + window1 * $g_step1 + window2 * $g_step2;
                    let value = $value;
                    sum = $sum;
                }
            }
        }
    }
";

/// Adds the dispatch that computes the maxima and their positions. One invocation computes one window.
fn describe_maximum(windows: &PoolWindows, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) {
    let (x, values, positions) = (&operands.inputs[0], &operands.outputs[0], &operands.outputs[1]);
    let (shape, lead) = (values.shape(), values.shape().rank() - 3);
    let lead_axes = MergedAxes::new(&shape[..lead], &[x.layout.strides()[..lead].to_vec()]);
    let mut shader = ShaderBuilder::for_threads(shape.size());
    let bindings = Bindings::new(&mut shader, &operands.inputs[..1], &operands.outputs[..2]);
    let starts = declare_starts(&mut shader, [x, values, positions]);
    let [y_length, x_length] = [values, x].map(|array| shader.declare_words(spatial_lengths(array.shape())));
    let WindowParameters { size, stride, dilation, padding, .. } = WindowParameters::declare(&mut shader, windows);
    let taps = axis_loops(match windows {
        PoolWindows::Sliding(_) => SLIDING_TAPS,
        PoolWindows::Adaptive => ADAPTIVE_TAPS,
    });
    let step = spatial_steps(&mut shader, x);
    let lead_axes = lead_axes.declare(&mut shader);

    let (compute_base, base) = shader.collect_result(|shader| lead_axes.offset(shader, "lead", &starts[0]));
    let largest = AccumulatorOp::Arg { largest: true, ties: TieRule::Earlier };
    let (declare_best, best) =
        shader.collect_result(|shader| Accumulator::declare(shader, largest, x.dtype.compute(), "best"));
    let select_best = shader.collect_lines(|shader| best.accumulate(shader, "value", "index"));
    let value = bindings.input(0).load(&shader, "offset");
    let axes = axis_values![y_length, x_length, size, stride, dilation, padding, step, taps];
    shader.axis_template(MAXIMUM, axes, values![compute_base, base, declare_best, value, select_best]);
    for (k, result) in [best.value(), best.result()].iter().enumerate() {
        let offset = shader.define(format!("{} + thread", starts[1 + k]));
        bindings.output(k).store(&mut shader, result, &offset);
    }
    list.dispatch("max_pool", shader);
}

/// Adds the dispatch that computes the gradient. One invocation computes one element of the output: it adds the
/// gradients of those windows around the element that selected it. The gradients are added in the order of the windows,
/// as on the CPU.
fn describe_gradient(windows: &PoolWindows, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) {
    let (g, positions, out) = (&operands.inputs[0], &operands.inputs[1], &operands.outputs[0]);
    let (shape, lead) = (out.shape(), out.shape().rank() - 3);
    let arrays = [g, positions];
    let lead_axes = MergedAxes::new(&shape[..lead], &arrays.map(|array| array.layout.strides()[..lead].to_vec()));
    let compute = g.dtype.compute();
    let mut shader = ShaderBuilder::for_threads(shape.size());
    let bindings = Bindings::new(&mut shader, &operands.inputs[..2], &operands.outputs[..1]);
    let plane = shader.declare_word(shape[lead..].iter().product());
    let starts = declare_starts(&mut shader, [g, positions, out]);
    let [x_length, y_length] = [out, g].map(|array| shader.declare_words(spatial_lengths(array.shape())));
    let WindowParameters { stride, padding, reach, .. } = WindowParameters::declare(&mut shader, windows);
    let windows = axis_loops(match windows {
        PoolWindows::Sliding(_) => SLIDING_WINDOWS,
        PoolWindows::Adaptive => ADAPTIVE_WINDOWS,
    });
    let [g_step, index_step] = arrays.map(|array| spatial_steps(&mut shader, array));
    let lead_axes = lead_axes.declare(&mut shader);

    let (compute_bases, bases) = shader.collect_result(|shader| lead_axes.offsets(shader, "lead", &starts[..2]));
    let (g_base, index_base) = (&bases[0], &bases[1]);
    let index = bindings.input(1).load(&shader, "index_offset");
    let value = bindings.input(0).load(&shader, "gradient_offset");
    let (value_type, sum) = (wgsl_type(compute), binary_expr(Binary::Add, compute, "sum", "value"));
    let axes = axis_values![x_length, y_length, stride, padding, reach, windows, g_step, index_step];
    let lines = values![plane, compute_bases, g_base, index_base, index, value, value_type, sum];
    shader.axis_template(GRADIENT, axes, lines);
    let offset = shader.define(format!("{} + thread", starts[2]));
    bindings.output(0).store(&mut shader, "sum", &offset);
    list.dispatch("max_pool", shader);
}
