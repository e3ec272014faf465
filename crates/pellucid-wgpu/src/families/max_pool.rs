//! `Pool`: the largest element of each window and its index, and the gradient.

use super::GpuFamily;
use super::shared::window::{fits_shader_coordinates, spatial_lengths};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::program::{binary_expr, precedes_expr};
use crate::shader::template::{CollectLines, axis_values, values};
use crate::shader::types::wgsl_type;
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Pool, PoolPart, Window};
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Pool {
    /// Shaders compute coordinates in 31 bits, and write the gradient to a contiguous array.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let ([input, ..], [output, ..]) = (inputs, outputs) else { return true };
        let (x, y) = if self.part == PoolPart::Maximum { (input, output) } else { (output, input) };
        let lengths = |array: &OperandMeta<'_>| {
            let shape = array.layout.shape();
            [3, 2, 1].map(|back| shape.rank().checked_sub(back).map_or(0, |axis| shape[axis]))
        };
        output.layout.is_contiguous() && fits_shader_coordinates(&self.window, [&lengths(x), &lengths(y)])
    }

    fn iterations(&self, _: &[OperandMeta<'_>]) -> usize {
        // One invocation visits all taps of a window, or all windows of an element, by three nested loops.
        self.window.size.iter().fold(3usize, |iterations, &taps| iterations.saturating_mul(taps))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        match self.part {
            PoolPart::Maximum => describe_maximum(&self.window, list, operands),
            PoolPart::Gradient => describe_gradient(&self.window, list, operands),
        }
    }
}

/// Adds the strides of the spatial axes to the parameters and returns their expressions.
fn spatial_steps(parameters: &mut Parameters, array: &DeviceArray<'_>) -> [String; 3] {
    let strides = array.layout.strides();
    [3, 2, 1].map(|back| parameters.declare(strides[strides.len() - back]))
}

/// Finds the largest element of a window.
const MAXIMUM: &str = "
    if (thread >= $item_count) { return; }
    let window2 = (thread % $y_length2) * $stride2;
    let windows1 = thread / $y_length2;
    let window1 = (windows1 % $y_length1) * $stride1;
    let windows0 = windows1 / $y_length1;
    let window0 = (windows0 % $y_length0) * $stride0;
    let lead = windows0 / $y_length0;
    $compute_base
    var best: $value_type;
    var best_index = 0xffffffffu;
    // Positions before the input wrap to large numbers.
    for (var tap0 = 0u; tap0 < $size0; tap0 = tap0 + 1u) {
        let at0 = window0 + tap0 * $dilation0 - $padding0;
        if (at0 >= $x_length0) { continue; }
        for (var tap1 = 0u; tap1 < $size1; tap1 = tap1 + 1u) {
            let at1 = window1 + tap1 * $dilation1 - $padding1;
            if (at1 >= $x_length1) { continue; }
            for (var tap2 = 0u; tap2 < $size2; tap2 = tap2 + 1u) {
                let at2 = window2 + tap2 * $dilation2 - $padding2;
                if (at2 >= $x_length2) { continue; }
                let offset = $base + at0 * $step0 + at1 * $step1 + at2 * $step2;
                let value = $value;
                if (best_index == 0xffffffffu || $is_larger) {
                    best = value;
                    best_index = (at0 * $x_length1 + at1) * $x_length2 + at2;
                }
            }
        }
    }
";

/// Adds the gradients of the windows that selected an element. These windows start at most `reach` elements before it,
/// in the padded axis.
const GRADIENT: &str = "
    if (thread >= $item_count) { return; }
    let element = thread % $plane;
    let at2 = thread % $x_length2 + $padding2;
    let end2 = min(at2 / $stride2 + 1u, $y_length2);
    let rows = thread / $x_length2;
    let at1 = rows % $x_length1 + $padding1;
    let end1 = min(at1 / $stride1 + 1u, $y_length1);
    let planes = rows / $x_length1;
    let at0 = planes % $x_length0 + $padding0;
    let end0 = min(at0 / $stride0 + 1u, $y_length0);
    let lead = planes / $x_length0;
    $compute_bases
    // A variable starts at zero.
    var sum: $value_type;
    for (var window0 = $first0; window0 < end0; window0 = window0 + 1u) {
        for (var window1 = $first1; window1 < end1; window1 = window1 + 1u) {
            for (var window2 = $first2; window2 < end2; window2 = window2 + 1u) {
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

/// Adds the dispatch that computes the maxima and their indices. One invocation computes one window.
fn describe_maximum(window: &Window, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
    let (x, values, indices) = (&operands.inputs[0], &operands.outputs[0], &operands.outputs[1]);
    let (shape, rank) = (values.shape(), values.shape().rank());
    let count = shape.size();
    if count == 0 {
        return Ok(());
    }
    let lead = rank - 3;
    let lead_axes = MergedAxes::new(&shape[..lead], &[x.layout.strides()[..lead].to_vec()]);
    let compute = x.dtype.compute();
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, &operands.inputs[..1], &operands.outputs[..2]);
    let mut parameters = Parameters::for_items(count);
    let starts = declare_starts(&mut parameters, [x, values, indices]);
    let [y_length, x_length, size] =
        [spatial_lengths(values), spatial_lengths(x), window.size].map(|axes| axes.map(|v| parameters.declare_len(v)));
    let [stride, dilation, padding] =
        [window.stride, window.dilation, window.before].map(|axes| axes.map(|v| parameters.declare_len(v)));
    let step = spatial_steps(&mut parameters, x);
    let lead_axes = lead_axes.declare(&mut parameters);

    let (compute_base, base) =
        shader.collect_result(|shader| lead_axes.offsets(shader, "lead", &starts[..1]).remove(0));
    let value = access::load(&shader, bindings.input(0), x.dtype, compute, "offset");
    let (value_type, is_larger) = (wgsl_type(compute), precedes_expr(compute, true, "value", "best"));
    let axes = axis_values![y_length, x_length, size, stride, dilation, padding, step];
    shader.axis_template(MAXIMUM, axes, values![compute_base, base, value, value_type, is_larger]);
    let to = shader.define(format!("{} + thread", starts[1]));
    access::store(&mut shader, bindings.output(0), compute, x.dtype, "best", &to);
    let to = shader.define(format!("{} + thread", starts[2]));
    let index = "vec2<u32>(best_index, 0u)";
    access::store(&mut shader, bindings.output(1), Compute::I64, DType::I64, index, &to);
    let groups = count.div_ceil(WORKGROUP as usize);
    list.dispatch("pool", shader, parameters, &bindings.buffers, groups)
}

/// Adds the dispatch that computes the gradient. One invocation computes one element of the output: it adds the
/// gradients of those windows around the element that selected it. The gradients are added in the order of the windows,
/// as on the CPU.
fn describe_gradient(window: &Window, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
    let (g, indices, out) = (&operands.inputs[0], &operands.inputs[1], &operands.outputs[0]);
    let (shape, lead) = (out.shape(), out.shape().rank() - 3);
    let count = shape.size();
    if count == 0 {
        return Ok(());
    }
    let arrays = [g, indices];
    let lead_axes = MergedAxes::new(&shape[..lead], &arrays.map(|array| array.layout.strides()[..lead].to_vec()));
    let compute = g.dtype.compute();
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, &operands.inputs[..2], &operands.outputs[..1]);
    let plane: usize = shape[lead..].iter().product();
    let mut parameters = Parameters::for_items(count);
    let plane = parameters.declare_len(plane);
    let starts = declare_starts(&mut parameters, [g, indices, out]);
    let reach = [0, 1, 2].map(|a| window.reach(a));
    let [x_length, y_length, stride, padding, reach] =
        [spatial_lengths(out), spatial_lengths(g), window.stride, window.before, reach]
            .map(|axes| axes.map(|v| parameters.declare_len(v)));
    let [g_step, index_step] = arrays.map(|array| spatial_steps(&mut parameters, array));
    let lead_axes = lead_axes.declare(&mut parameters);

    let (compute_bases, bases) = shader.collect_result(|shader| lead_axes.offsets(shader, "lead", &starts[..2]));
    let (g_base, index_base) = (&bases[0], &bases[1]);
    let first = [0, 1, 2].map(|a| {
        let (reach, stride) = (&reach[a], &stride[a]);
        format!("(max(at{a}, {reach}) - {reach} + {stride} - 1u) / {stride}")
    });
    let index = access::load(&shader, bindings.input(1), DType::I64, Compute::I64, "index_offset");
    let value = access::load(&shader, bindings.input(0), g.dtype, compute, "gradient_offset");
    let (value_type, sum) = (wgsl_type(compute), binary_expr(Binary::Add, compute, "sum", "value"));
    let axes = axis_values![x_length, y_length, stride, padding, first, g_step, index_step];
    let lines = values![plane, compute_bases, g_base, index_base, index, value, value_type, sum];
    shader.axis_template(GRADIENT, axes, lines);
    let to = shader.define(format!("{} + thread", starts[2]));
    access::store(&mut shader, bindings.output(0), compute, out.dtype, "sum", &to);
    list.dispatch("pool", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
