//! `Pool`: the largest element of each window and its index, and the gradient.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::program::{binary_text, precedes_text};
use crate::shader::types::type_text;
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Pool, PoolPart, PoolWindows, Window};
use pellucid_ir::{Compute, DType, Error, Result};

impl GpuFamily for Pool {
    /// The CPU pools adaptive windows. Shaders compute coordinates in 31 bits, and write the gradient to a
    /// contiguous array.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let ([input, ..], [output, ..]) = (inputs, outputs) else { return true };
        let PoolWindows::Sliding(window) = &self.windows else { return false };
        let (x, y) = if self.part == PoolPart::Maximum { (input, output) } else { (output, input) };
        let spatial = |array: &OperandMeta<'_>, a: usize| {
            let shape = array.layout.shape();
            (shape.rank() + a).checked_sub(3).map_or(0, |axis| shape[axis])
        };
        // The rule of the family rejects larger coordinates.
        let is_within = |a, limit| window.has_coordinates(a, spatial(x, a), spatial(y, a), limit);
        let is_small = |a| is_within(a, i32::MAX as usize) || !is_within(a, Window::MAX_COORDINATE);
        output.layout.is_contiguous() && (0..3).all(is_small)
    }

    fn iterations(&self, _: &[OperandMeta<'_>]) -> usize {
        // One invocation visits all taps of a window, or all windows of an element, by three nested loops.
        match &self.windows {
            PoolWindows::Sliding(window) => {
                window.size.iter().fold(3, |count: usize, &taps| count.saturating_mul(taps))
            }
            PoolWindows::Adaptive => 0,
        }
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        match (&self.windows, self.part) {
            (PoolWindows::Sliding(window), PoolPart::Maximum) => describe_maximum(window, list, operands),
            (PoolWindows::Sliding(window), PoolPart::Gradient) => describe_gradient(window, list, operands),
            (PoolWindows::Adaptive, _) => {
                Err(Error::invalid("pool", "the device has no kernel for adaptive windows; run it on the CPU"))
            }
        }
    }
}

/// Returns the lengths of the spatial axes.
fn spatial(array: &DeviceArray<'_>) -> [usize; 3] {
    [3, 2, 1].map(|back| array.shape()[array.shape().rank() - back])
}

/// Adds the strides of the spatial axes to the parameters and returns their texts.
fn spatial_steps(parameters: &mut Parameters, array: &DeviceArray<'_>) -> [String; 3] {
    let strides = array.layout.strides();
    [3, 2, 1].map(|back| parameters.declare(strides[strides.len() - back]))
}

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
    let [outputs, lengths, taps] =
        [spatial(values), spatial(x), window.size].map(|axes| axes.map(|v| parameters.declare_len(v)));
    let [strides, dilations, paddings] =
        [window.stride, window.dilation, window.before].map(|axes| axes.map(|v| parameters.declare_len(v)));
    let steps = spatial_steps(&mut parameters, x);
    let lead_axes = lead_axes.declare(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        shader.line(format!("let window{a} = ({rest} % {}) * {};", outputs[a], strides[a]));
        rest = shader.define(format!("{rest} / {}", outputs[a]));
    }
    let base = lead_axes.positions(&mut shader, &rest, &starts[..1]).remove(0);
    shader.line(format!("var best: {};", type_text(compute)));
    shader.line("var best_index = 0xffffffffu;");
    for a in 0..3 {
        shader.line(format!("for (var tap{a} = 0u; tap{a} < {}; tap{a} = tap{a} + 1u) {{", taps[a]));
        // Positions before the input wrap to large numbers.
        shader.line(format!("let at{a} = window{a} + tap{a} * {} - {};", dilations[a], paddings[a]));
        shader.line(format!("if (at{a} >= {}) {{ continue; }}", lengths[a]));
    }
    let at = shader.define(format!("{base} + at0 * {} + at1 * {} + at2 * {}", steps[0], steps[1], steps[2]));
    let value = shader.define(access::load(&shader, bindings.input(0), x.dtype, compute, &at));
    let is_larger = precedes_text(compute, true, &value, "best");
    shader.line(format!("if (best_index == 0xffffffffu || {is_larger}) {{"));
    shader.line(format!("    best = {value};"));
    shader.line(format!("    best_index = (at0 * {} + at1) * {} + at2;", lengths[1], lengths[2]));
    shader.line("}");
    for _ in 0..3 {
        shader.line("}");
    }
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
    let [lengths, windows, strides, paddings, reaches] =
        [spatial(out), spatial(g), window.stride, window.before, reach]
            .map(|axes| axes.map(|v| parameters.declare_len(v)));
    let steps = arrays.map(|array| spatial_steps(&mut parameters, array));
    let lead_axes = lead_axes.declare(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    shader.line(format!("let element = thread % {plane};"));
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        // The windows that contain the element start at most `reach` elements before it, in the padded axis.
        shader.line(format!("let at{a} = {rest} % {} + {};", lengths[a], paddings[a]));
        shader.line(format!("let end{a} = min(at{a} / {} + 1u, {});", strides[a], windows[a]));
        rest = shader.define(format!("{rest} / {}", lengths[a]));
    }
    let bases = lead_axes.positions(&mut shader, &rest, &starts[..2]);
    // A variable starts at zero.
    shader.line(format!("var sum: {};", type_text(compute)));
    for (a, (reach, stride)) in reaches.iter().zip(&strides).enumerate() {
        let first = format!("(max(at{a}, {reach}) - {reach} + {stride} - 1u) / {stride}");
        shader.line(format!("for (var window{a} = {first}; window{a} < end{a}; window{a} = window{a} + 1u) {{"));
    }
    let [of_g, of_index] = [0, 1].map(|k| {
        let steps: Vec<String> = (0..3).map(|a| format!("window{a} * {}", steps[k][a])).collect();
        format!("{} + {}", bases[k], steps.join(" + "))
    });
    let at = shader.define(of_index);
    let index = access::load(&shader, bindings.input(1), DType::I64, Compute::I64, &at);
    shader.line(format!("if (all({index} == vec2<u32>(element, 0u))) {{"));
    let at = shader.define(of_g);
    let value = shader.define(access::load(&shader, bindings.input(0), g.dtype, compute, &at));
    let sum = binary_text(Binary::Add, compute, "sum", &value).expect("every number has a sum");
    shader.line(format!("sum = {sum};"));
    shader.line("}");
    for _ in 0..3 {
        shader.line("}");
    }
    let to = shader.define(format!("{} + thread", starts[2]));
    access::store(&mut shader, bindings.output(0), compute, out.dtype, "sum", &to);
    list.dispatch("pool", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
