//! `Random`: random numbers from Philox 4×32-10 (Salmon et al. 2011), bit-identical to the CPU.
//!
//! One invocation computes one draw of four words and stores the resulting four elements, or two elements of eight
//! bytes. A second dispatch advances the counter.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::{Distribution, Random};
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Random {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        draw(list, self.distribution, operands)
    }
}

/// Returns the text of an `f64`.
fn wide(x: f64) -> String {
    let bits = x.to_bits();
    format!("vec2<u32>({:#x}u, {:#x}u)", bits as u32, bits >> 32)
}

/// Returns the number in [0, 1) whose bits are the upper 53 bits of the words k and k + 1.
fn wide_unit(shader: &mut ShaderBuilder, k: usize) -> String {
    let high = format!("words[{}]", k + 1);
    let integer = format!("d_from_i64(vec2<u32>((words[{k}] >> 11u) | ({high} << 21u), {high} >> 11u))");
    let integer = shader.define(integer);
    // 53 is subtracted from the exponent unless the value is zero.
    let scaled = format!("vec2<u32>({integer}.x, {integer}.y - {}u)", 53u32 << 20);
    format!("select({scaled}, vec2<u32>(0u, 0u), {integer}.y == 0u)")
}

/// Returns the names of the elements of one draw, and their type.
fn elements(shader: &mut ShaderBuilder, distribution: Distribution, dtype: DType) -> (Vec<String>, Compute) {
    let word = |k: usize| format!("words[{k}]");
    // The number of bits equals the precision of the significand, so no value is rounded up to 1.
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    let unit = |k: usize, bits: u32| {
        let scale = format!("bitcast<f32>({}u)", (127 - bits) << 23);
        format!("f_mul(f32({} >> {}u), {scale})", word(k), 32 - bits)
    };
    match (distribution, dtype) {
        (Distribution::Uniform, DType::F64) => (vec![wide_unit(shader, 0), wide_unit(shader, 2)], Compute::F64),
        (Distribution::Uniform, _) => ((0..4).map(|k| unit(k, bits)).collect(), Compute::F32),
        (Distribution::Normal, DType::F64) => {
            let [u, v] = [0, 2].map(|k| {
                let unit = wide_unit(shader, k);
                shader.define(unit)
            });
            let radius = shader.define(format!("d_sqrt(d_mul({}, d_ln(d_sub({}, {u}))))", wide(-2.0), wide(1.0)));
            let angle = shader.define(format!("d_mul({}, {v})", wide(std::f64::consts::TAU)));
            let values = ["cos", "sin"].map(|name| format!("d_mul({radius}, d_{name}_fast({angle}))"));
            (values.into(), Compute::F64)
        }
        (Distribution::Normal, _) => {
            let mut values = Vec::new();
            for pair in [0, 2] {
                // The logarithm of 1 − u is finite, because u may be 0 but not 1.
                let u = shader.define(unit(pair, 24));
                let v = shader.define(unit(pair + 1, 24));
                let radius = shader.define(format!("f_sqrt(f_mul(-2.0, f_ln(f_sub(1.0, {u}))))"));
                let angle = shader.define(format!("f_mul({:e}f, {v})", std::f32::consts::TAU));
                values.push(format!("f_mul({radius}, f_cos_fast({angle}))"));
                values.push(format!("f_mul({radius}, f_sin_fast({angle}))"));
            }
            (values, Compute::F32)
        }
        (Distribution::Bits, DType::I64) => {
            let pair = |k: usize| format!("vec2<u32>({}, {})", word(k), word(k + 1));
            (vec![pair(0), pair(2)], Compute::I64)
        }
        (Distribution::Bits, _) => {
            let unused = match dtype {
                DType::Bool => 31,
                _ => 32 - 8 * dtype.size(),
            };
            let value = |k: usize| match dtype {
                DType::Bool => format!("({} >> {unused}u) != 0u", word(k)),
                _ => format!("bitcast<i32>({} >> {unused}u)", word(k)),
            };
            ((0..4).map(value).collect(), dtype.compute())
        }
    }
}

/// Adds the dispatches that write the numbers and advance the counter.
fn draw(list: &mut DispatchList<'_>, distribution: Distribution, operands: &DeviceOperands<'_>) -> Result<()> {
    let (state, values) = (&operands.outputs[0], &operands.outputs[1]);
    let count = values.shape().size();
    let per_draw = if values.dtype.size() == 8 { 2 } else { 4 };
    let draws = count.div_ceil(per_draw);
    let (key_at, step) = (state.layout.offset() as isize, state.layout.strides()[0]);
    if count > 0 {
        let space = MergedAxes::new(values.shape(), &[values.broadcast_strides(values.shape())]);
        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, std::slice::from_ref(state), std::slice::from_ref(values));
        let mut parameters = Parameters::for_items(count);
        let [key_at, step] = [key_at, step].map(|v| parameters.declare(v));
        let start = declare_starts(&mut parameters, [values]);
        let space = space.declare(&mut parameters);
        shader.line(format!("let first = thread * {per_draw}u;"));
        shader.line("if (first >= params[0]) { return; }");
        let binding = bindings.input(0);
        let key = access::load(&shader, binding, DType::I64, Compute::I64, &key_at);
        shader.line(format!("let key = {key};"));
        shader.line(format!("let counter_at = {key_at} + {step};"));
        let counter = access::load(&shader, binding, DType::I64, Compute::I64, "counter_at");
        shader.line(format!("let counter = l_add({counter}, vec2<u32>(thread, 0u));"));
        shader.line("var words = l_philox(counter, key);");
        let (elements, compute) = elements(&mut shader, distribution, values.dtype);
        for (k, element) in elements.iter().enumerate() {
            shader.line(format!("if (first + {k}u < params[0]) {{"));
            let flat = shader.define(format!("first + {k}u"));
            let at = space.positions(&mut shader, &flat, &start).remove(0);
            let value = shader.define(element);
            access::store(&mut shader, bindings.output(0), compute, values.dtype, &value, &at);
            shader.line("}");
        }
        let groups = draws.div_ceil(WORKGROUP as usize);
        list.dispatch("random", shader, parameters, &bindings.buffers, groups)?;
    }
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, &[], std::slice::from_ref(state));
    let mut parameters = Parameters::for_items(1);
    let [counter_at, draws] = [key_at + step, draws as isize].map(|v| parameters.declare(v));
    shader.line("if (thread >= params[0]) { return; }");
    let counter = access::load(&shader, bindings.output(0), DType::I64, Compute::I64, &counter_at);
    let next = shader.define(format!("l_add({counter}, vec2<u32>({draws}, 0u))"));
    access::store(&mut shader, bindings.output(0), Compute::I64, DType::I64, &next, &counter_at);
    list.dispatch("random", shader, parameters, &bindings.buffers, 1)
}
