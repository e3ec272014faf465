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
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Pool {
    /// Shaders compute coordinates in 31 bits, and write the gradient to a contiguous array.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let ([_, ..], [output, ..]) = (inputs, outputs) else { return true };
        let is_small = |a| {
            let (len, count) = axis_lengths(self.part, inputs, outputs, a);
            match &self.windows {
                // The rule of the family rejects larger coordinates.
                PoolWindows::Sliding(window) => {
                    let is_within = |limit| window.has_coordinates(a, len, count, limit);
                    is_within(i32::MAX as usize) || !is_within(Window::MAX_COORDINATE)
                }
                PoolWindows::Adaptive => (len + 1).saturating_mul(count + 1) <= i32::MAX as usize,
            }
        };
        output.layout.is_contiguous() && (0..3).all(is_small)
    }

    fn iterations(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> usize {
        // One invocation visits all taps of a window, or all windows of an element, by three nested loops.
        let of_axis = |a: usize| {
            let (len, count) = axis_lengths(self.part, inputs, outputs, a);
            match (&self.windows, self.part) {
                (PoolWindows::Sliding(window), _) => window.size[a],
                (PoolWindows::Adaptive, PoolPart::Maximum) => len.div_ceil(count.max(1)) + 1,
                (PoolWindows::Adaptive, PoolPart::Gradient) => count.div_ceil(len.max(1)) + 1,
            }
        };
        (0..3).map(of_axis).fold(3, usize::saturating_mul)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        match self.part {
            PoolPart::Maximum => describe_maximum(&self.windows, list, operands),
            PoolPart::Gradient => describe_gradient(&self.windows, list, operands),
        }
    }
}

/// Returns the length of x and the number of windows along spatial axis `a`.
fn axis_lengths(part: PoolPart, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>], a: usize) -> (usize, usize) {
    let length = |array: &OperandMeta<'_>| {
        let shape = array.layout.shape();
        (shape.rank() + a).checked_sub(3).map_or(0, |axis| shape[axis])
    };
    match part {
        PoolPart::Maximum => (length(&inputs[0]), length(&outputs[0])),
        PoolPart::Gradient => (length(&outputs[0]), length(&inputs[0])),
    }
}

/// The windows along a spatial axis, as texts of parameters.
struct AxisText {
    /// The length of x.
    len: String,
    /// The number of windows.
    count: String,
    /// The sliding window, or `None` for adaptive windows.
    sliding: Option<SlidingText>,
}

/// A sliding window along a spatial axis.
struct SlidingText {
    taps: String,
    stride: String,
    dilation: String,
    padding: String,
    /// The distance from the first tap to the last.
    reach: String,
}

impl AxisText {
    /// Adds the windows along the spatial axes to the parameters.
    fn declare(
        parameters: &mut Parameters,
        windows: &PoolWindows,
        x: &DeviceArray<'_>,
        y: &DeviceArray<'_>,
    ) -> [AxisText; 3] {
        [0, 1, 2].map(|a| AxisText {
            len: parameters.declare_len(spatial(x)[a]),
            count: parameters.declare_len(spatial(y)[a]),
            sliding: match windows {
                PoolWindows::Sliding(window) => Some(SlidingText {
                    taps: parameters.declare_len(window.size[a]),
                    stride: parameters.declare_len(window.stride[a]),
                    dilation: parameters.declare_len(window.dilation[a]),
                    padding: parameters.declare_len(window.before[a]),
                    reach: parameters.declare_len(window.reach(a)),
                }),
                PoolWindows::Adaptive => None,
            },
        })
    }

    /// Begins the loop over the positions `at{a}` of x in window `window{a}`.
    fn begin_taps(&self, shader: &mut ShaderBuilder, a: usize) {
        let Some(SlidingText { taps, stride, dilation, padding, .. }) = &self.sliding else {
            return begin_adaptive(shader, &format!("at{a}"), (&self.len, &self.count), &format!("window{a}"));
        };
        shader.line(format!("for (var tap{a} = 0u; tap{a} < {taps}; tap{a} = tap{a} + 1u) {{"));
        // Positions before the input wrap to large numbers.
        shader.line(format!("let at{a} = window{a} * {stride} + tap{a} * {dilation} - {padding};"));
        shader.line(format!("if (at{a} >= {}) {{ continue; }}", self.len));
    }

    /// Begins the loop over all windows `window{a}` that contain position `at{a}` of x, and over windows between them.
    fn begin_windows(&self, shader: &mut ShaderBuilder, a: usize) {
        let Some(SlidingText { stride, padding, reach, .. }) = &self.sliding else {
            // Window o contains element i if and only if o is in adaptive window i over the windows.
            return begin_adaptive(shader, &format!("window{a}"), (&self.count, &self.len), &format!("at{a}"));
        };
        // The windows that contain the element start at most `reach` elements before it, in the padded axis.
        let at = shader.define(format!("at{a} + {padding}"));
        let first = format!("(max({at}, {reach}) - {reach} + {stride} - 1u) / {stride}");
        let end = shader.define(format!("min({at} / {stride} + 1u, {})", self.count));
        shader.line(format!("for (var window{a} = {first}; window{a} < {end}; window{a} = window{a} + 1u) {{"));
    }
}

/// Begins the loop with index `name` over the elements of adaptive window `o` of `outputs` windows over `len` elements.
fn begin_adaptive(shader: &mut ShaderBuilder, name: &str, (len, outputs): (&str, &str), o: &str) {
    let end = shader.define(format!("(({o} + 1u) * {len} + {outputs} - 1u) / {outputs}"));
    shader.line(format!("for (var {name} = {o} * {len} / {outputs}; {name} < {end}; {name} = {name} + 1u) {{"));
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
fn describe_maximum(windows: &PoolWindows, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
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
    let axes = AxisText::declare(&mut parameters, windows, x, values);
    let steps = spatial_steps(&mut parameters, x);
    let lead_axes = lead_axes.declare(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        shader.line(format!("let window{a} = {rest} % {};", axes[a].count));
        rest = shader.define(format!("{rest} / {}", axes[a].count));
    }
    let base = lead_axes.positions(&mut shader, &rest, &starts[..1]).remove(0);
    shader.line(format!("var best: {};", type_text(compute)));
    shader.line("var best_index = 0xffffffffu;");
    (0..3).for_each(|a| axes[a].begin_taps(&mut shader, a));
    let at = shader.define(format!("{base} + at0 * {} + at1 * {} + at2 * {}", steps[0], steps[1], steps[2]));
    let value = shader.define(access::load(&shader, bindings.input(0), x.dtype, compute, &at));
    let is_larger = precedes_text(compute, true, &value, "best");
    shader.line(format!("if (best_index == 0xffffffffu || {is_larger}) {{"));
    shader.line(format!("    best = {value};"));
    shader.line(format!("    best_index = (at0 * {} + at1) * {} + at2;", axes[1].len, axes[2].len));
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
fn describe_gradient(windows: &PoolWindows, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
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
    let axes = AxisText::declare(&mut parameters, windows, out, g);
    let steps = arrays.map(|array| spatial_steps(&mut parameters, array));
    let lead_axes = lead_axes.declare(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    shader.line(format!("let element = thread % {plane};"));
    let mut rest = String::from("thread");
    for a in (0..3).rev() {
        shader.line(format!("let at{a} = {rest} % {};", axes[a].len));
        rest = shader.define(format!("{rest} / {}", axes[a].len));
    }
    let bases = lead_axes.positions(&mut shader, &rest, &starts[..2]);
    // A variable starts at zero.
    shader.line(format!("var sum: {};", type_text(compute)));
    (0..3).for_each(|a| axes[a].begin_windows(&mut shader, a));
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
