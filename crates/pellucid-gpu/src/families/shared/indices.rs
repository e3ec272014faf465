//! Index arrays of `Gather`, `Scatter`, `Recurrent` and `SparseProduct`: their checks, which set the
//! [status word](crate::status), and the offsets of the elements that they select.

use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::{CollectLines, ElementAccess, MergedAxes, ShaderBuilder, i64_from_word, values};
use crate::status::{AXIS, INDEX, LENGTH, OPERATION, PASSED, POSITION};
use pellucid_ir::kernel::Index;

/// Finds the first index out of bounds.
const FIND_INVALID: &str = "
    $load_index
    if (l_le($end, $value) || l_lt($value, $low)) {
        atomicMin(&status[$position], thread);
    }
";

/// Sets the status word if there is an index out of bounds.
const REPORT: &str = "
    let first = atomicLoad(&status[$position]);
    if (thread > 0u) { return; }
    if (first == 0xffffffffu) {
        atomicAdd(&status[$passed], 1u);
        return;
    }
    $load_index
    atomicStore(&status[$low_word], $value.x);
    atomicStore(&status[$high_word], $value.y);
    atomicStore(&status[$axis_word], $axis);
    atomicStore(&status[$len_word], $len);
    atomicStore(&status[$operation_word], $operation);
";

/// Adds the dispatches that set the status word if an index is out of bounds. If `from_end`, negative indices count
/// from the end.
pub(in crate::families) fn check_indices(
    list: &mut DispatchList<'_>,
    op: &'static str,
    index: &Index,
    from_end: bool,
    array: &DeviceArray<'_>,
    indices: &[DeviceArray<'_>],
) {
    let low = if from_end { LowerBound::FromEnd } else { LowerBound::Zero };
    for (index, &axis) in indices.iter().zip(index.axes()) {
        check_range(list, op, index, axis, (low, array.shape()[axis]));
    }
}

/// The smallest valid index.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::families) enum LowerBound {
    Zero,
    /// Negative indices count from the end.
    FromEnd,
    /// The indices ascend: the bound is the previous index, and 0 for the first index.
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
) {
    let count = index.shape().size();
    if count == 0 {
        return;
    }
    let operation = list.count_check(op) as usize;
    // The check is two dispatches: the first finds the position of the first index out of bounds, and one invocation of
    // the second reports the index.
    let shaders = [ShaderBuilder::for_threads(count), ShaderBuilder::with_groups(count, 1)];
    let shaders = shaders.map(ShaderBuilder::into_check);
    for (mut shader, (source, flat)) in shaders.into_iter().zip([(FIND_INVALID, "thread"), (REPORT, "first")]) {
        let bindings = Bindings::new(&mut shader, std::slice::from_ref(index), &[]);
        let [len, start, axis, operation] = shader.declare_words([len, index.layout.offset(), axis, operation]);
        let space = MergedAxes::new(index.shape(), &[index.broadcast_strides(index.shape())]).declare(&mut shader);
        let load = |shader: &mut ShaderBuilder, flat: &str| {
            let offset = space.offset(shader, flat, &start);
            bindings.input(0).define(shader, &offset)
        };
        let end = i64_from_word(&len);
        let (load_index, (value, low)) = shader.collect_result(|shader| {
            let (value, zero) = (load(shader, flat), i64_from_word("0u"));
            let low = match low {
                LowerBound::Zero => zero,
                LowerBound::FromEnd => format!("l_neg({end})"),
                LowerBound::Previous => {
                    let before = shader.define(format!("max({flat}, 1u) - 1u"));
                    let previous = load(shader, &before);
                    format!("select({previous}, {zero}, {flat} == 0u)")
                }
            };
            (value, low)
        });
        let range = values![load_index, value, len, end, low, axis, operation];
        let [position, passed, low_word, high_word, axis_word, len_word, operation_word] =
            [POSITION, PASSED, INDEX, INDEX + 1, AXIS, LENGTH, OPERATION].map(|word| word.to_string());
        let words = values![position, passed, low_word, high_word, axis_word, len_word, operation_word];
        shader.template(source, &[&range[..], words].concat());
        list.dispatch(op, shader);
    }
}

/// Returns the strides of an indexed array over the axes of the index arrays, of rank `rank`. Strides along an indexed
/// axis are 0.
pub(in crate::families) fn unindexed_strides(index: &Index, array: &DeviceArray<'_>, rank: usize) -> Vec<isize> {
    match index {
        Index::Axes(_) => vec![0; rank],
        Index::Along(axis) => (0..rank).map(|a| if a == *axis { 0 } else { array.layout.strides()[a] }).collect(),
    }
}

/// The expressions of the lengths and strides of the indexed axes of an array.
pub(in crate::families) struct IndexedAxes(Vec<[String; 2]>);

impl IndexedAxes {
    /// Adds the length and the stride of every indexed axis of `array` to the parameters.
    pub(in crate::families) fn declare(
        shader: &mut ShaderBuilder,
        index: &Index,
        array: &DeviceArray<'_>,
    ) -> IndexedAxes {
        let (shape, strides) = (array.shape(), array.layout.strides());
        let axis = |&axis: &usize| [shader.declare_word(shape[axis]), shader.declare(strides[axis])];
        IndexedAxes(index.axes().iter().map(axis).collect())
    }

    /// Adds the lines that compute the offset of the element that indices select, and returns its name. `start` is the
    /// offset for indices 0. `indices` contains the elements of every index array and the offset of the index in them.
    /// All indices must be in bounds.
    pub(in crate::families) fn offset<'o>(
        &self,
        shader: &mut ShaderBuilder,
        start: &str,
        indices: impl Iterator<Item = (ElementAccess, &'o str)>,
    ) -> String {
        let mut offset = start.to_string();
        for ((elements, index_offset), [len, stride]) in indices.zip(&self.0) {
            // All indices are in bounds, so the lower word determines them.
            let value = shader.define(elements.lower_word(shader, index_offset));
            let wrapped = shader.define(format!("select({value}, {value} + {len}, {value} >= 0x80000000u)"));
            offset = shader.define(format!("{offset} + {wrapped} * {stride}"));
        }
        offset
    }
}
