//! `Pool`: the largest element of each window, and its index. One invocation computes one window.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::program::{comparison_text, type_text};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::{Pool, Window};
use pellucid_ir::{Compute, DType, Error, Result};

impl GpuFamily for Pool {
    fn is_supported(&self) -> bool {
        true
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, values, indices) = (&operands.inputs[0], &operands.outputs[0], &operands.outputs[1]);
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
        let is_valid = |a: usize| is_axis_valid(&self.window, a, x.shape()[rank - 3 + a], values.shape()[rank - 3 + a]);
        if values.shape().size() == 0 || (0..3).all(is_valid) {
            return Ok(());
        }
        Err(Error::invalid("pool", "a window is entirely in the padding, or its parameters are out of range"))
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
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
            let window = &self.window;
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
}

/// Returns whether every window along axis `a` has a tap inside an input of length `len`, and all positions fit 31 bits.
fn is_axis_valid(window: &Window, a: usize, len: usize, outputs: usize) -> bool {
    let (stride, dilation) = (window.stride[a], window.dilation[a]);
    let (before, size) = (window.before[a], window.size[a]);
    let span = stride.checked_mul(outputs).zip(dilation.checked_mul(size)).and_then(|(s, d)| s.checked_add(d));
    let fits = span.and_then(|s| s.checked_add(before)).is_some_and(|s| s < i32::MAX as usize);
    let has_tap = |o: usize| {
        let first = before.saturating_sub(stride * o).div_ceil(dilation);
        let end = (len + before).saturating_sub(stride * o).div_ceil(dilation).min(size);
        first < end
    };
    stride > 0 && dilation > 0 && fits && (0..outputs).all(has_tap)
}
