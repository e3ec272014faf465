//! `Scatter`: elements of an array combined with values in place, bit-identical to the CPU, with one exception.
//!
//! An index position refers to a slice of y and a slice of the values; the slices range over the axes that are not
//! indexed. The positions are sorted by the slice of y (see `shared/key_sort`). For every slice element, the invocation
//! at the first position of a group of equal slices then combines the values of the group in order of their positions.
//! The result is thus the sequential one, without atomic additions. n positions with slices of s elements cost
//! O(n log n + n·s) operations; a slice that m positions refer to costs m operations in sequence.
//!
//! A dispatch combines the values of at most [`MAX_POSITIONS`] sorted positions, so that no invocation has a longer
//! loop. Replacing elements needs no loop, and is one dispatch. A group that extends over several dispatches is
//! combined in order too. The exception: a half-precision element is then rounded once per dispatch, but only once in
//! total on the CPU.

use super::GpuFamily;
use super::shared::indices::{IndexedAxes, check_indices, unindexed_strides};
use super::shared::key_sort::{KeySort, KeyType, MAX_KEYS, SortedKeys};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::{
    CollectLines, MergedAxes, ParameterSlot, ShaderBuilder, binary_expr, iterations, max_items, values,
};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Scatter, ScatterOp};
use pellucid_ir::{Compute, Result};

/// The maximum number of sorted positions of a dispatch.
const MAX_POSITIONS: usize = 1 << 15;

impl GpuFamily for Scatter {
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> bool {
        inputs[1].layout.shape().size() <= MAX_KEYS
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (values, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        check_indices(list, self.op, &self.index, self.from_end, y, indices);
        if values.shape().size() > 0 {
            let sorted = sort_positions(list, self, indices, y);
            combine(list, self, operands, &sorted);
        }
        Ok(())
    }
}

/// Adds the dispatches that sort the index positions by the offset of the first element of their slice of y.
fn sort_positions(
    list: &mut DispatchList<'_>,
    kernel: &Scatter,
    indices: &[DeviceArray<'_>],
    y: &DeviceArray<'_>,
) -> SortedKeys {
    let shape = indices[0].shape();
    let y_strides = unindexed_strides(&kernel.index, y, shape.rank());
    let strides: Vec<Vec<isize>> = indices.iter().map(|i| i.layout.strides().to_vec()).chain([y_strides]).collect();
    let space = MergedAxes::new(shape, &strides);
    let length = shape.size();
    let sort = KeySort { op: kernel.op, lines: 1, length, keep: length, key: KeyType::Word };
    sort.sort(list, indices, |shader, bindings| {
        let starts = declare_starts(shader, indices.iter().chain([y]));
        let indexed = IndexedAxes::declare(shader, &kernel.index, y);
        let offsets = space.declare(shader).offsets(shader, "i", &starts);
        let selected = (0..indices.len()).map(|k| (bindings.input(k), &*offsets[k]));
        indexed.offset(shader, &offsets[indices.len()], selected)
    })
}

/// Returns two spaces: the axes of the slice of values that belongs to one position, with the strides of y and of the
/// values, and the index axes of the values.
fn slice_and_index_axes(kernel: &Scatter, values: &DeviceArray<'_>, y: &DeviceArray<'_>) -> (MergedAxes, MergedAxes) {
    let (y_strides, value_strides) = (y.layout.strides(), values.layout.strides());
    let slice_axes: Vec<usize> = kernel.index.slice_axes(y.shape().rank()).collect();
    let index_rank = values.shape().rank() - slice_axes.len();
    let slice_strides = [slice_axes.iter().map(|&a| y_strides[a]).collect(), value_strides[index_rank..].to_vec()];
    let slice = MergedAxes::new(&values.shape()[index_rank..], &slice_strides);
    let space = MergedAxes::new(&values.shape()[..index_rank], &[value_strides[..index_rank].to_vec()]);
    (slice, space)
}

/// Combines the values of a group of equal sorted positions. If values replace elements, the invocation at the last
/// position of the group stores its value; otherwise the invocation at the first position combines all values.
const COMBINE: &str = "
    let first = $begin + thread / $slice_size;
    let key = $key_of_first;
    if ($has_neighbour) { if ($key_of_neighbour == key) { return; } }
    let element = thread % $slice_size;
    $compute_offsets
    $combine_values
    $store_result
";

/// Combines an element with the values of all equal positions.
const COMBINE_EQUAL: &str = "
    var result = $element;
    for (var i = first; i < $end; i = i + 1u) {
        if ($key_of_i != key) { break; }
        $load_value
        result = $combined;
    }
";

/// Adds the dispatches that combine the values with y, each of them for a range of sorted positions.
fn combine(list: &mut DispatchList<'_>, kernel: &Scatter, operands: &DeviceOperands<'_>, sorted: &SortedKeys) {
    let (values, y) = (&operands.inputs[0], &operands.outputs[0]);
    let (slice, space) = slice_and_index_axes(kernel, values, y);
    let (positions, size) = (operands.inputs[1].shape().size(), slice.dims.iter().product::<usize>());
    let (reduction, compute) = (kernel.reduction.for_dtype(y.dtype), y.dtype.compute());
    let is_set = reduction == ScatterOp::Set;
    // Only an operation that combines values needs a loop over equal positions.
    let value_iterations = iterations(&combined_expr(reduction, compute, "x", "y"));
    let step = if is_set { positions } else { positions.min(MAX_POSITIONS).min(max_items(value_iterations)) };

    let mut shader = ShaderBuilder::for_threads(step * size);
    let bindings = Bindings::new(&mut shader, &operands.inputs[..1], &operands.outputs);
    let slice_size = shader.declare_word(size);
    let keys = sorted.declare(&mut shader);
    let value_start = shader.declare_word(values.layout.offset());
    let range = [0, step].map(|v| shader.parameters.declare_slot(v));
    let [slice, space] = [slice, space].map(|axes| axes.declare(&mut shader));
    let [begin, end] = range.map(ParameterSlot::expr);
    let [values, y] =
        [bindings.input(0), bindings.output(0)].map(|elements| if is_set { elements.as_bits() } else { elements });
    let (neighbour, has_neighbour) = match is_set {
        true => ("first + 1u", "first + 1u < $end"),
        false => ("first - 1u", "first > $begin"),
    };
    let starts = ["key".into(), value_start];
    let (compute_offsets, offsets) = shader.collect_result(|shader| slice.offsets(shader, "element", &starts));
    let load_value = |shader: &mut ShaderBuilder, sorted_position: &str| {
        let position = shader.define(keys.index(sorted_position));
        let offset = space.offset(shader, &position, &offsets[1]);
        values.define(shader, &offset)
    };
    let (combine_values, result) = shader.collect_result(|shader| {
        if is_set {
            return load_value(shader, "first");
        }
        let element = y.load(shader, &offsets[0]);
        let (load_value, value) = shader.collect_result(|shader| load_value(shader, "i"));
        let (key_of_i, combined) = (keys.key("i"), combined_expr(reduction, compute, "result", &value));
        shader.template(COMBINE_EQUAL, values![element, end, key_of_i, load_value, combined]);
        "result".into()
    });
    let store_result = shader.collect_lines(|shader| y.store(shader, &result, &offsets[0]));
    let (key_of_first, key_of_neighbour) = (keys.key("first"), keys.key(neighbour));
    let keys = values![begin, end, slice_size, key_of_first, has_neighbour, key_of_neighbour];
    let lines = values![compute_offsets, combine_values, store_result];
    shader.template(COMBINE, &[&keys[..], lines].concat());

    let mut parameters = shader.parameters.clone();
    let index = list.dispatch(kernel.op, shader);
    for begin in (step..positions).step_by(step) {
        let end = positions.min(begin + step);
        parameters.set_items((end - begin) * size);
        range.into_iter().zip([begin, end]).for_each(|(slot, value)| parameters.set(slot, value));
        list.repeat(index, parameters.clone());
    }
}

/// Returns the combination of an element and a value. Half precision accumulates in f32 and is rounded once.
fn combined_expr(op: ScatterOp, compute: Compute, element: &str, value: &str) -> String {
    match op {
        ScatterOp::Set => value.into(),
        ScatterOp::Add => binary_expr(Binary::Add, compute, element, value),
        ScatterOp::Mul => binary_expr(Binary::Mul, compute, element, value),
        // If the operands are equal, maximum and minimum return the second one, which is the element.
        ScatterOp::Max => binary_expr(Binary::Max, compute, value, element),
        ScatterOp::Min => binary_expr(Binary::Min, compute, value, element),
    }
}
