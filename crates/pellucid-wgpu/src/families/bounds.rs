//! The check of an index array, which sets the [status word](crate::status).

use crate::dispatch_list::DispatchList;
use crate::operand::BufferRef;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{ShaderBuilder, WORKGROUP};
use crate::status::{AXIS, INDEX, LENGTH, OPERATION, PASSED, POSITION};
use pellucid_ir::{Compute, DType, Result};

/// Adds the dispatches that set the status word if an index is not in `0..len`, or if `from_end` in `-len..len`. `axis`
/// is the axis of the indexed array, for the error.
pub(super) fn check_bounds(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &DeviceArray<'_>,
    from_end: bool,
    axis: usize,
    len: usize,
) -> Result<()> {
    let low = if from_end { "l_neg(vec2<u32>(params[2], 0u))" } else { "vec2<u32>(0u, 0u)" };
    check_range(list, op, index, axis, len, low)
}

/// Adds the dispatches that set the status word if a length is not in `0..=steps`.
pub(super) fn check_lengths(
    list: &mut DispatchList<'_>,
    op: &'static str,
    lengths: &DeviceArray<'_>,
    steps: usize,
) -> Result<()> {
    check_range(list, op, lengths, 0, steps + 1, "vec2<u32>(0u, 0u)")
}

/// Adds the dispatches that set the status word if an index is less than `low` or not less than `len`.
fn check_range(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &DeviceArray<'_>,
    axis: usize,
    len: usize,
    low: &str,
) -> Result<()> {
    let count = index.shape().size();
    if count == 0 {
        return Ok(());
    }
    let strides = index.broadcast_strides(index.shape());
    let space = MergedAxes::new(index.shape(), &[strides]);
    let header = [count, 0, len, index.layout.offset(), axis, list.count_check(op) as usize];
    let mut parameters = header.map(|v| v as u32).to_vec();
    let space_at = (space.dims.len(), parameters.len());
    space.push_params(&mut parameters);

    // The first dispatch finds the first index out of bounds.
    let (mut shader, buffers) = check_shader(index);
    shader.line("if (thread >= params[0]) { return; }");
    let value = index_value(&mut shader, space_at, "thread");
    shader.line(format!("if (l_le(vec2<u32>(params[2], 0u), {value}) || l_lt({value}, {low})) {{"));
    shader.line(format!("    atomicMin(&status[{POSITION}], thread);"));
    shader.line("}");
    list.dispatch(op, shader, parameters.clone(), &buffers, count.div_ceil(WORKGROUP as usize))?;

    // The second one reports it. It has one invocation, because all others return.
    let (mut shader, buffers) = check_shader(index);
    shader.line(format!("let first = atomicLoad(&status[{POSITION}]);"));
    shader.line("if (thread > 0u) { return; }");
    shader.line("if (first == 0xffffffffu) {");
    shader.line(format!("    atomicAdd(&status[{PASSED}], 1u);"));
    shader.line("    return;");
    shader.line("}");
    let value = index_value(&mut shader, space_at, "first");
    for (word, text) in [
        (INDEX, format!("{value}.x")),
        (INDEX + 1, format!("{value}.y")),
        (AXIS, "params[4]".into()),
        (LENGTH, "params[2]".into()),
        (OPERATION, "params[5]".into()),
    ] {
        shader.line(format!("atomicStore(&status[{word}], {text});"));
    }
    list.dispatch(op, shader, parameters, &buffers, 1)
}

/// Returns a shader that reads an index array and may change the status, and the buffers of its bindings.
fn check_shader(index: &DeviceArray<'_>) -> (ShaderBuilder, Vec<BufferRef>) {
    let mut shader = ShaderBuilder::default();
    shader.is_check = true;
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(index), &[]);
    (shader, bindings.buffers)
}

/// Adds the lines that load the index with the flat position `flat`, and returns its name.
fn index_value(shader: &mut ShaderBuilder, space: (usize, usize), flat: &str) -> String {
    let at = position_lines(shader, space, flat, &["params[3]".into()]).remove(0);
    let text = access::load(shader, 1, DType::I64, Compute::I64, &at);
    shader.define(text)
}
