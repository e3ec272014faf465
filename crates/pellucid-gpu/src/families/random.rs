//! `Random`: random numbers from Philox 4×32-10 (Salmon et al. 2011), bit-identical to the CPU.
//!
//! One invocation computes one draw of four words and stores the resulting four elements, or two elements of eight
//! bytes. A second dispatch advances the counter.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::{CollectLines, MergedAxes, ShaderBuilder, WORKGROUP, i64_from_word, u64_literal, values};
use pellucid_ir::kernel::{Distribution, Random};
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Random {
    /// The CPU computes permutations, whose exchanges are sequential.
    fn is_supported(&self) -> bool {
        self.distribution != Distribution::Permutation
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let [state, values] = [0, 1].map(|k| &operands.outputs[k]);
        let per_draw = 4 / Distribution::words_per_element(values.dtype);
        if values.shape().size() > 0 {
            list.dispatch("random", draw_shader(self.distribution, per_draw, state, values));
        }
        list.dispatch("random", advance_shader(values.shape().size().div_ceil(per_draw), state));
        Ok(())
    }
}

/// Returns the literal of an `f64`.
fn f64_literal(x: f64) -> String {
    u64_literal(x.to_bits())
}

/// Returns the upper bits of the words k and k + 1 as an `f64` in [0, 1).
fn wide_unit(shader: &mut ShaderBuilder, k: usize) -> String {
    let (bits, high) = (Distribution::unit_bits(DType::F64), format!("words[{}]", k + 1));
    let (low_shift, high_shift) = (64 - bits, bits - 32);
    let integer = format!(
        "d_from_i64(vec2<u32>((words[{k}] >> {low_shift}u) | ({high} << {high_shift}u), {high} >> {low_shift}u))"
    );
    let integer = shader.define(integer);
    // Dividing by a power of two subtracts from the exponent, unless the value is zero.
    let scaled = format!("vec2<u32>({integer}.x, {integer}.y - {}u)", bits << 20);
    format!("select({scaled}, vec2<u32>(0u, 0u), {integer}.y == 0u)")
}

/// Returns the names of the elements of one draw, and their type. For permutations, which shaders do not compute, they
/// are the random bits.
fn elements(shader: &mut ShaderBuilder, distribution: Distribution, dtype: DType) -> (Vec<String>, Compute) {
    let word = |k: usize| format!("words[{k}]");
    let unit = |k: usize, bits: u32| {
        let scale = format!("bitcast<f32>({}u)", (127 - bits) << 23);
        format!("f_mul(f32({} >> {}u), {scale})", word(k), 32 - bits)
    };
    match (distribution, dtype) {
        (Distribution::Uniform, DType::F64) => (vec![wide_unit(shader, 0), wide_unit(shader, 2)], Compute::F64),
        (Distribution::Uniform, _) => ((0..4).map(|k| unit(k, Distribution::unit_bits(dtype))).collect(), Compute::F32),
        (Distribution::Normal, DType::F64) => {
            let [u, v] = [0, 2].map(|k| {
                let unit = wide_unit(shader, k);
                shader.define(unit)
            });
            let radius =
                shader.define(format!("d_sqrt(d_mul({}, d_ln(d_sub({}, {u}))))", f64_literal(-2.0), f64_literal(1.0)));
            let angle = shader.define(format!("d_mul({}, {v})", f64_literal(std::f64::consts::TAU)));
            let values = ["cos", "sin"].map(|name| format!("d_mul({radius}, d_{name}_fast({angle}))"));
            (values.into(), Compute::F64)
        }
        (Distribution::Normal, _) => {
            let mut values = Vec::new();
            for pair in [0, 2] {
                // The logarithm of 1 − u is finite, because u may be 0 but not 1.
                let [u, v] = [pair, pair + 1].map(|k| shader.define(unit(k, Distribution::unit_bits(DType::F32))));
                let radius = shader.define(format!("f_sqrt(f_mul(-2.0, f_ln(f_sub(1.0, {u}))))"));
                let angle = shader.define(format!("f_mul({:e}f, {v})", std::f32::consts::TAU));
                values.push(format!("f_mul({radius}, f_cos_fast({angle}))"));
                values.push(format!("f_mul({radius}, f_sin_fast({angle}))"));
            }
            (values, Compute::F32)
        }
        (Distribution::Bits | Distribution::Permutation, DType::I64) => {
            let pair = |k: usize| format!("vec2<u32>({}, {})", word(k), word(k + 1));
            (vec![pair(0), pair(2)], Compute::I64)
        }
        (Distribution::Bits | Distribution::Permutation, _) => {
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

/// Computes one draw in every invocation.
const DRAW: &str = "
    let first = thread * $per_draw;
    if (first >= $item_count) { return; }
    let key = $key;
    let counter_offset = $key_offset + $step;
    let counter = l_add($counter, $invocation);
    var words = l_philox(counter, key);
    $store_elements
";

/// Stores an element of a draw.
const STORE_ELEMENT: &str = "
    if (first + $lane < $item_count) {
        $store
    }
";

/// Returns the dispatch that writes the numbers, `per_draw` in each invocation.
fn draw_shader(
    distribution: Distribution,
    per_draw: usize,
    state: &DeviceArray<'_>,
    values: &DeviceArray<'_>,
) -> ShaderBuilder {
    let count = values.shape().size();
    let space = MergedAxes::new(values.shape(), &[values.broadcast_strides(values.shape())]);
    let mut shader = ShaderBuilder::with_groups(count, count.div_ceil(per_draw).div_ceil(WORKGROUP as usize));
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(state), std::slice::from_ref(values));
    let [key_offset, step] = [state.layout.offset() as isize, state.layout.strides()[0]].map(|v| shader.declare(v));
    let start = shader.declare_word(values.layout.offset());
    let space = space.declare(&mut shader);
    let [key, counter] = [&key_offset, "counter_offset"].map(|offset| bindings.input(0).load(&shader, offset));
    let store_elements = shader.collect_lines(|shader| {
        let (elements, compute) = elements(shader, distribution, values.dtype);
        let output = bindings.output(0).as_type(compute);
        for (k, element) in elements.iter().enumerate() {
            let lane = format!("{k}u");
            let store = shader.collect_lines(|shader| {
                let flat = shader.define(format!("first + {lane}"));
                let offset = space.offset(shader, &flat, &start);
                let value = shader.define(element);
                output.store(shader, &value, &offset);
            });
            shader.template(STORE_ELEMENT, values![lane, store]);
        }
    });
    let (per_draw, invocation) = (format!("{per_draw}u"), i64_from_word("thread"));
    shader.template(DRAW, values![per_draw, key, key_offset, step, counter, invocation, store_elements]);
    shader
}

/// Returns the dispatch that advances the counter of the state by `draws`.
fn advance_shader(draws: usize, state: &DeviceArray<'_>) -> ShaderBuilder {
    let mut shader = ShaderBuilder::for_threads(1);
    let bindings = Bindings::new(&mut shader, &[], std::slice::from_ref(state));
    let counter_offset = shader.declare(state.layout.offset() as isize + state.layout.strides()[0]);
    let draws = shader.declare_word(draws);
    let counter = bindings.output(0).load(&shader, &counter_offset);
    let next = shader.define(format!("l_add({counter}, {})", i64_from_word(&draws)));
    bindings.output(0).store(&mut shader, &next, &counter_offset);
    shader
}
