//! Index arrays of `Gather`, `Scatter`, `Recurrent` and `SparseProduct`: their checks, which set the [status word](crate::status), and
//! the positions that they select.

use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, BufferRef, DeviceArray};
use crate::shader::access::{self, AxesText, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::{ShaderBuilder, WORKGROUP};
use crate::status::{AXIS, INDEX, LENGTH, OPERATION, PASSED, POSITION};
use pellucid_ir::kernel::Index;
use pellucid_ir::{Compute, DType, Result};

/// Adds the dispatches that set the status word if an index is out of bounds. If `from_end`, negative indices count
/// from the end.
pub(in crate::families) fn check_indices(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &Index,
    from_end: bool,
    array: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) -> Result<()> {
    let low = if from_end { LowerBound::FromEnd } else { LowerBound::Zero };
    let mut checked = indices.iter().zip(index.axes());
    checked.try_for_each(|(index, &axis)| check_range(list, op, index, axis, (low, array.shape()[axis])))
}

/// Adds the dispatches that set the status word if a length is not in `0..=steps`.
pub(in crate::families) fn check_lengths(
    list: &mut DispatchList<'_>,
    op: &'static str,
    lengths: &DeviceArray<'_>,
    steps: usize,
) -> Result<()> {
    check_range(list, op, lengths, 0, (LowerBound::Zero, steps + 1))
}

/// The smallest valid index.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::families) enum LowerBound {
    Zero,
    /// Negative indices count from the end.
    FromEnd,
    /// The indices ascend: the previous index is the bound, and 0 is the bound of the first one.
    Previous,
}

/// Adds the dispatches that set the status word if an index is below `low` or at least `len`. `axis` is the axis of the
/// indexed array, for the error.
pub(in crate::families) fn check_range(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &DeviceArray<'_>,
    axis: usize,
    (low, len): (LowerBound, usize),
) -> Result<()> {
    let count = index.shape().size();
    if count == 0 {
        return Ok(());
    }
    let strides = index.broadcast_strides(index.shape());
    let space = MergedAxes::new(index.shape(), &[strides]);
    let mut parameters = Parameters::for_items(count);
    let [len, start, axis, operation] =
        [len, index.layout.offset(), axis, list.count_check(op) as usize].map(|v| parameters.declare_len(v));
    let place = (space.declare(&mut parameters), [start]);

    // The first dispatch finds the first index out of bounds.
    let (mut shader, buffers) = check_shader(index);
    shader.line("if (thread >= params[0]) { return; }");
    let value = index_value(&mut shader, &place, "thread");
    let low = match low {
        LowerBound::Zero => "vec2<u32>(0u, 0u)".into(),
        LowerBound::FromEnd => format!("l_neg(vec2<u32>({len}, 0u))"),
        LowerBound::Previous => {
            let before = shader.define("max(thread, 1u) - 1u");
            let previous = index_value(&mut shader, &place, &before);
            format!("select({previous}, vec2<u32>(0u, 0u), thread == 0u)")
        }
    };
    shader.line(format!("if (l_le(vec2<u32>({len}, 0u), {value}) || l_lt({value}, {low})) {{"));
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
    let value = index_value(&mut shader, &place, "first");
    for (word, text) in [
        (INDEX, format!("{value}.x")),
        (INDEX + 1, format!("{value}.y")),
        (AXIS, axis),
        (LENGTH, len),
        (OPERATION, operation),
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
fn index_value(shader: &mut ShaderBuilder, (space, start): &(AxesText, [String; 1]), flat: &str) -> String {
    let at = space.positions(shader, flat, start).remove(0);
    shader.define(access::load(shader, 1, DType::I64, Compute::I64, &at))
}

/// The text of the lengths and strides of the indexed axes of an array.
pub(in crate::families) struct IndexedAxes(Vec<[String; 2]>);

impl IndexedAxes {
    /// Adds the length and the stride of every indexed axis of `array` to the parameters.
    pub(in crate::families) fn declare(
        parameters: &mut Parameters,
        index: &Index,
        array: &DeviceArray<'_>,
    ) -> IndexedAxes {
        let (shape, strides) = (array.shape(), array.layout.strides());
        let axis = |&axis: &usize| [parameters.declare_len(shape[axis]), parameters.declare(strides[axis])];
        IndexedAxes(index.axes().iter().map(axis).collect())
    }

    /// Adds the lines that compute the position of the element that indices select, and returns its name. `start` is
    /// the position for indices 0. `indices` has the binding of every index array and the position of the index. All
    /// indices are in bounds.
    pub(in crate::families) fn position(
        &self,
        shader: &mut ShaderBuilder,
        start: &str,
        indices: &[(usize, &str)],
    ) -> String {
        let mut position = start.to_string();
        for ((binding, index_at), [len, stride]) in indices.iter().zip(&self.0) {
            // The lower word determines an index in bounds.
            let value = shader.define(shader.word(*binding, &format!("2u * {index_at}")));
            let wrapped = shader.define(format!("select({value}, {value} + {len}, {value} >= 0x80000000u)"));
            position = shader.define(format!("{position} + {wrapped} * {stride}"));
        }
        position
    }
}
