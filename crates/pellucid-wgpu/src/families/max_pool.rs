//! `Pool`: the largest element of each window and its index, and the gradient.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::program::{binary_text, comparison_text, type_text};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Pool, PoolPart, Window};
use pellucid_ir::{Compute, DType, Error, Result};

impl GpuFamily for Pool {
    fn is_supported(&self) -> bool {
        true
    }

    fn iterations(&self, _: &[OperandMeta<'_>]) -> usize {
        // One invocation visits all taps of a window, or all windows of an element, by three nested loops.
        self.window.size.iter().fold(3usize, |iterations, &taps| iterations.saturating_mul(taps))
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let (inputs, outputs) = (&operands.inputs, &operands.outputs);
        match self.part {
            PoolPart::Maximum => check_maximum(&self.window, &inputs[0], &outputs[0], &outputs[1]),
            PoolPart::Gradient => check_gradient(&self.window, &inputs[0], &inputs[1], &outputs[0]),
        }
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        match self.part {
            PoolPart::Maximum => describe_maximum(&self.window, list, operands),
            PoolPart::Gradient => describe_gradient(&self.window, list, operands),
        }
    }
}

/// Returns an error if the shapes or dtypes of x, the maxima and their indices do not fit, or if a window has no tap
/// inside x.
fn check_maximum(
    window: &Window,
    x: &DeviceArray<'_>,
    values: &DeviceArray<'_>,
    indices: &DeviceArray<'_>,
) -> Result<()> {
    let rank = x.shape().rank();
    let fits = rank >= 3
        && values.shape() == indices.shape()
        && values.shape().rank() == rank
        && values.shape()[..rank - 3] == x.shape()[..rank - 3]
        && values.dtype == x.dtype
        && indices.dtype == DType::I64
        && values.layout.is_contiguous()
        && indices.layout.is_contiguous();
    if !fits {
        let help = "values and indices must be contiguous, with the shape of the input except along the last \
                    three axes";
        return Err(Error::shapes("pool", [x.shape(), values.shape()], help));
    }
    let is_valid = |a: usize| is_axis_valid(window, a, x.shape()[rank - 3 + a], values.shape()[rank - 3 + a]);
    if values.shape().size() == 0 || (0..3).all(is_valid) {
        return Ok(());
    }
    Err(Error::invalid("pool", "a window is entirely in the padding, or its parameters are out of range"))
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

/// Returns an error if the shapes or dtypes of the gradient g, the indices and the output do not fit, or if a
/// coordinate needs more than 31 bits.
fn check_gradient(
    window: &Window,
    g: &DeviceArray<'_>,
    indices: &DeviceArray<'_>,
    out: &DeviceArray<'_>,
) -> Result<()> {
    let rank = out.shape().rank();
    let fits = rank >= 3
        && g.shape() == indices.shape()
        && g.shape().rank() == rank
        && g.shape()[..rank - 3] == out.shape()[..rank - 3]
        && out.layout.is_contiguous();
    if !fits {
        let help = "gradient and indices must have the shape of the output, which must be contiguous, except along the \
                    last three axes";
        return Err(Error::shapes("pool", [g.shape(), indices.shape(), out.shape()], help));
    }
    if !g.dtype.is_float() || g.dtype != out.dtype || indices.dtype != DType::I64 {
        let help = "gradient and output must have the same float dtype, and the indices must be i64";
        return Err(Error::dtypes("pool", [g.dtype, indices.dtype, out.dtype], help));
    }
    let is_valid = |a: usize| has_small_coordinates(window, a, out.shape()[rank - 3 + a], g.shape()[rank - 3 + a]);
    if (0..3).all(is_valid) {
        return Ok(());
    }
    Err(Error::invalid("pool", "the parameters of the window are out of range"))
}

/// Adds the dispatch that computes the gradient. One invocation computes one element of the output: it adds the
/// gradients of those windows around the element that selected it. The order is that of the windows, as on the CPU.
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
        // The windows that contain the element start at most the reach before it, in the padded axis.
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

/// Returns whether every window along axis `a` has a tap inside an input of length `len`, and all positions fit 31 bits.
fn is_axis_valid(window: &Window, a: usize, len: usize, outputs: usize) -> bool {
    let (stride, dilation) = (window.stride[a], window.dilation[a]);
    let (before, size) = (window.before[a], window.size[a]);
    let has_tap = |o: usize| {
        let first = before.saturating_sub(stride * o).div_ceil(dilation);
        let end = (len + before).saturating_sub(stride * o).div_ceil(dilation).min(size);
        first < end
    };
    has_small_coordinates(window, a, len, outputs) && (0..outputs).all(has_tap)
}

/// Returns whether stride and dilation along axis `a` are positive, and all coordinates fit 31 bits.
fn has_small_coordinates(window: &Window, a: usize, len: usize, outputs: usize) -> bool {
    let (stride, dilation) = (window.stride[a], window.dilation[a]);
    let span =
        stride.checked_mul(outputs).zip(dilation.checked_mul(window.size[a])).and_then(|(s, d)| s.checked_add(d));
    let end = span.and_then(|s| s.checked_add(window.before[a])).and_then(|s| s.checked_add(len));
    stride > 0 && dilation > 0 && end.is_some_and(|end| end < i32::MAX as usize)
}
