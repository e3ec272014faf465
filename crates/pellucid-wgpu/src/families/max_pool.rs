//! `Pool`: the largest element of each window and its index, and the gradient.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::program::{binary_text, comparison_text, type_text};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Pool, PoolPart, Window};
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Pool {
    fn is_supported(&self) -> bool {
        true
    }

    /// Shaders compute coordinates in 31 bits, and write the gradient to a contiguous array.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let ([input, ..], [output, ..]) = (inputs, outputs) else { return true };
        let (x, y) = if self.part == PoolPart::Maximum { (input, output) } else { (output, input) };
        let spatial = |array: &OperandMeta<'_>, a: usize| {
            let shape = array.layout.shape();
            (shape.rank() + a).checked_sub(3).map_or(0, |axis| shape[axis])
        };
        // The rule of the family refuses larger coordinates.
        let is_within = |a, limit| self.window.has_coordinates(a, spatial(x, a), spatial(y, a), limit);
        let is_small = |a| is_within(a, i32::MAX as usize) || !is_within(a, Window::MAX_COORDINATE);
        output.layout.is_contiguous() && (0..3).all(is_small)
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
    let offsets = [x, values, indices].map(|array| array.layout.offset() as u32);
    let mut parameters = vec![count as u32, 0, offsets[0], offsets[1], offsets[2]];
    // For each axis: outputs, length, taps, stride, dilation, padding, stride of x.
    let axes_at = parameters.len();
    for a in 0..3 {
        let own = [shape[lead + a], x.shape()[lead + a], window.size[a], window.stride[a], window.dilation[a]];
        parameters.extend(own.map(|v| v as u32));
        parameters.extend([window.before[a] as u32, x.layout.strides()[lead + a] as u32]);
    }
    let lead_at = parameters.len();
    lead_axes.push_params(&mut parameters);
    let axis = |a: usize, k: usize| format!("params[{}]", axes_at + 7 * a + k);

    shader.line("if (thread >= params[0]) { return; }");
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        shader.line(format!("let window{a} = ({rest} % {}) * {};", axis(a, 0), axis(a, 3)));
        rest = shader.define(format!("{rest} / {}", axis(a, 0)));
    }
    let start = ["params[2]".into()];
    let base = position_lines(&mut shader, (lead_axes.dims.len(), lead_at), &rest, &start).remove(0);
    shader.line(format!("var best: {};", type_text(compute)));
    shader.line("var best_index = 0xffffffffu;");
    for a in 0..3 {
        shader.line(format!("for (var tap{a} = 0u; tap{a} < {}; tap{a} = tap{a} + 1u) {{", axis(a, 2)));
        // Positions before the input wrap to large numbers.
        shader.line(format!("let at{a} = window{a} + tap{a} * {} - {};", axis(a, 4), axis(a, 5)));
        shader.line(format!("if (at{a} >= {}) {{ continue; }}", axis(a, 1)));
    }
    let at = shader.define(format!("{base} + at0 * {} + at1 * {} + at2 * {}", axis(0, 6), axis(1, 6), axis(2, 6)));
    let text = access::load(&shader, bindings.input(0), x.dtype, compute, &at);
    let value = shader.define(text);
    let is_larger = comparison_text(compute, &value, "best");
    shader.line(format!("if (best_index == 0xffffffffu || {is_larger}) {{"));
    shader.line(format!("    best = {value};"));
    shader.line(format!("    best_index = (at0 * {} + at1) * {} + at2;", axis(1, 1), axis(2, 1)));
    shader.line("}");
    for _ in 0..3 {
        shader.line("}");
    }
    let to = shader.define("params[3] + thread");
    access::store(&mut shader, bindings.output(0), compute, x.dtype, "best", &to);
    let to = shader.define("params[4] + thread");
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
    let mut parameters = vec![count as u32, 0, plane as u32];
    parameters.extend([g, indices, out].map(|array| array.layout.offset() as u32));
    // For each axis: length, windows, stride, padding, distance from the first tap to the last, strides of both inputs.
    let axes_at = parameters.len();
    for a in 0..3 {
        let own = [shape[lead + a], g.shape()[lead + a], window.stride[a], window.before[a], window.reach(a)];
        parameters.extend(own.map(|v| v as u32));
        parameters.extend(arrays.map(|array| array.layout.strides()[lead + a] as u32));
    }
    let lead_at = parameters.len();
    lead_axes.push_params(&mut parameters);
    let axis = |a: usize, k: usize| format!("params[{}]", axes_at + 7 * a + k);

    shader.line("if (thread >= params[0]) { return; }");
    shader.line("let element = thread % params[2];");
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        // The windows that contain the element start at most `reach` elements before it, in the padded axis.
        shader.line(format!("let at{a} = {rest} % {} + {};", axis(a, 0), axis(a, 3)));
        shader.line(format!("let end{a} = min(at{a} / {} + 1u, {});", axis(a, 2), axis(a, 1)));
        rest = shader.define(format!("{rest} / {}", axis(a, 0)));
    }
    let starts = ["params[3]".to_string(), "params[4]".to_string()];
    let bases = position_lines(&mut shader, (lead_axes.dims.len(), lead_at), &rest, &starts);
    // A variable starts at zero.
    shader.line(format!("var sum: {};", type_text(compute)));
    for a in 0..3 {
        let first = format!(
            "(max(at{a}, {reach}) - {reach} + {stride} - 1u) / {stride}",
            reach = axis(a, 4),
            stride = axis(a, 2)
        );
        shader.line(format!("for (var window{a} = {first}; window{a} < end{a}; window{a} = window{a} + 1u) {{"));
    }
    let position = |base: &str, k: usize| {
        let steps: Vec<String> = (0..3).map(|a| format!("window{a} * {}", axis(a, 5 + k))).collect();
        format!("{base} + {}", steps.join(" + "))
    };
    let at = shader.define(position(&bases[1], 1));
    let index = access::load(&shader, bindings.input(1), DType::I64, Compute::I64, &at);
    shader.line(format!("if (all({index} == vec2<u32>(element, 0u))) {{"));
    let at = shader.define(position(&bases[0], 0));
    let text = access::load(&shader, bindings.input(0), g.dtype, compute, &at);
    let value = shader.define(text);
    let sum = binary_text(Binary::Add, compute, "sum", &value).expect("every number has a sum");
    shader.line(format!("sum = {sum};"));
    shader.line("}");
    for _ in 0..3 {
        shader.line("}");
    }
    let to = shader.define("params[5] + thread");
    access::store(&mut shader, bindings.output(0), compute, out.dtype, "sum", &to);
    list.dispatch("pool", shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
}
