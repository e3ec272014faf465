//! `Scatter`: elements of an array combined with values in place, bit-identical to the CPU.
//!
//! An index position refers to a slice of y and a slice of the values; the slices range over the axes that are not
//! indexed. The positions are sorted by the slice of y (see `shared/key_sort`). For every slice element, the invocation
//! at the first position of a group of equal slices then combines the values of the group in order of their positions.
//! The result is thus the sequential one, without atomic additions. n positions with slices of s elements cost
//! O(n log n + n·s) operations; a slice that m positions refer to costs m operations in sequence.
//!
//! A dispatch combines the values of at most [`MAX_POSITIONS`] sorted positions, so that no invocation has a longer
//! loop. A group that extends over several dispatches is combined in order too; an element of half precision is then
//! rounded once for each of them.

use super::GpuFamily;
use super::shared::indices::{IndexedAxes, check_indices, unindexed_strides};
use super::shared::key_sort::{KeySort, KeyType, SortedKeys, SortedKeysExprs};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes, same_size_integer};
use crate::shader::iterations::{MAX_ITERATIONS, iterations};
use crate::shader::parameters::{ParameterSlot, Parameters};
use crate::shader::program::binary_expr;
use crate::shader::template::{CollectLines, values};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Index, Scatter, ScatterOp};
use pellucid_ir::{Compute, Error, Result};

/// The maximum number of sorted positions of a dispatch.
const MAX_POSITIONS: usize = 1 << 15;

impl GpuFamily for Scatter {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (values, indices, y) = (&operands.inputs[0], &operands.inputs[1..], &operands.outputs[0]);
        check_indices(list, self.op, &self.index, self.from_end, y, indices)?;
        if values.shape().size() == 0 {
            return Ok(());
        }
        let sorted = sort_positions(list, &self.index, indices, y)?;
        combine(list, self, values, indices[0].shape().size(), y, &sorted)
    }
}

/// Adds the dispatches that sort the index positions by the offset of the first element of their slice of y.
fn sort_positions(
    list: &mut DispatchList<'_>,
    index: &Index,
    indices: &[DeviceArray<'_>],
    y: &DeviceArray<'_>,
) -> Result<SortedKeys> {
    let shape = indices[0].shape();
    let y_strides = unindexed_strides(index, y, shape.rank());
    let strides: Vec<Vec<isize>> = indices.iter().map(|i| i.layout.strides().to_vec()).chain([y_strides]).collect();
    let space = MergedAxes::new(shape, &strides);
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, indices, &[]);
    let length = shape.size();
    let sort = KeySort { op: "scatter", lines: 1, length, keep: length, key: KeyType::Word };
    sort.sort(list, shader, &bindings, |shader, parameters| {
        let starts = declare_starts(parameters, indices.iter().chain([y]));
        let indexed = IndexedAxes::declare(parameters, index, y);
        let offsets = space.declare(parameters).offsets(shader, "i", &starts);
        let selected: Vec<(usize, &str)> = (0..indices.len()).map(|k| (bindings.input(k), &*offsets[k])).collect();
        indexed.offset(shader, &offsets[indices.len()], &selected)
    })
}

/// Returns the axes of the slice of values that belongs to one position, with the strides of y and of the values, and
/// the index axes of the values.
fn slice_and_index_axes(kernel: &Scatter, values: &DeviceArray<'_>, y: &DeviceArray<'_>) -> (MergedAxes, MergedAxes) {
    let (y_strides, value_strides) = (y.layout.strides(), values.layout.strides());
    let slice_axes: Vec<usize> = kernel.index.slice_axes(y.shape().rank()).collect();
    let index_rank = values.shape().rank() - slice_axes.len();
    let slice_strides = [slice_axes.iter().map(|&a| y_strides[a]).collect(), value_strides[index_rank..].to_vec()];
    let slice = MergedAxes::new(&values.shape()[index_rank..], &slice_strides);
    let space = MergedAxes::new(&values.shape()[..index_rank], &[value_strides[..index_rank].to_vec()]);
    (slice, space)
}

/// Combines the values of a group of equal sorted positions. The last one replaces an element; the first one combines
/// all values.
const COMBINE: &str = "
    if (thread >= $item_count) { return; }
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

/// The dispatches that combine the values with y, each of them for a range of sorted positions.
struct ScatterDispatches<'a, 'k> {
    /// The kernel's operator for the dtype of y.
    op: ScatterOp,
    values: &'a DeviceArray<'k>,
    y: &'a DeviceArray<'k>,
    sorted: &'a SortedKeys,
    /// The axes of a slice, with the strides of y and of the values.
    slice: MergedAxes,
    /// The index axes of the values.
    space: MergedAxes,
    /// The number of elements of a slice.
    size: usize,
    /// The number of sorted positions of a dispatch.
    step: usize,
}

/// Adds the dispatches that combine the values with y. `positions` is the number of index positions.
fn combine(
    list: &mut DispatchList<'_>,
    kernel: &Scatter,
    values: &DeviceArray<'_>,
    positions: usize,
    y: &DeviceArray<'_>,
    sorted: &SortedKeys,
) -> Result<()> {
    let (slice, space) = slice_and_index_axes(kernel, values, y);
    let size: usize = slice.dims.iter().product();
    if positions.checked_mul(size).is_none_or(|work| work > u32::MAX as usize) {
        return Err(Error::invalid("scatter", "the values have more than 2^32 elements"));
    }
    let op = kernel.reduction.for_dtype(y.dtype);
    // Only combined values need a loop.
    let value_iterations = iterations(&combined_expr(op, y.dtype.compute(), "x", "y"));
    let max_positions = MAX_POSITIONS.min(MAX_ITERATIONS / (1 + value_iterations)).max(1);
    let step = if op == ScatterOp::Set { positions } else { positions.min(max_positions) };
    ScatterDispatches { op, values, y, sorted, slice, space, size, step }.describe(list, positions)
}

impl ScatterDispatches<'_, '_> {
    fn describe(&self, list: &mut DispatchList<'_>, positions: usize) -> Result<()> {
        let ScatterDispatches { values, y, sorted, size, step, .. } = *self;
        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, std::slice::from_ref(values), std::slice::from_ref(y));
        let keys_binding = shader.binding(BindingUse::Read);
        let mut parameters = Parameters::for_items(step * size);
        let slice_size = parameters.declare_len(size);
        let keys = sorted.declare(&mut parameters, keys_binding);
        let value_start = parameters.declare_len(values.layout.offset());
        let range = [0, step].map(|v| parameters.declare_slot(v));
        self.generate(&mut shader, &mut parameters, &bindings, (&keys, range), [slice_size, value_start]);
        let buffers = [&bindings.buffers[..], &[sorted.buffer]].concat();
        let dispatch = list.len();
        let groups = (step * size).div_ceil(WORKGROUP as usize);
        list.dispatch("scatter", shader, parameters.clone(), &buffers, groups)?;
        for begin in (step..positions).step_by(step) {
            let end = positions.min(begin + step);
            parameters.set_items((end - begin) * size);
            range.into_iter().zip([begin, end]).for_each(|(slot, value)| parameters.set(slot, value));
            list.repeat(dispatch, parameters.clone());
        }
        Ok(())
    }

    /// Adds the lines of the shader, which combines the values of the sorted positions `range`.
    fn generate(
        &self,
        shader: &mut ShaderBuilder,
        parameters: &mut Parameters,
        bindings: &Bindings,
        (keys, range): (&SortedKeysExprs, [ParameterSlot; 2]),
        [slice_size, value_start]: [String; 2],
    ) {
        let [slice, space] = [&self.slice, &self.space].map(|axes| axes.declare(parameters));
        let [begin, end] = range.map(ParameterSlot::expr);
        let is_set = self.op == ScatterOp::Set;
        let dtype = if is_set { same_size_integer(self.y.dtype) } else { self.y.dtype };
        let compute = dtype.compute();
        let (neighbour, has_neighbour) = match is_set {
            true => ("first + 1u", "first + 1u < $end"),
            false => ("first - 1u", "first > $begin"),
        };
        let starts = ["key".into(), value_start];
        let (compute_offsets, offsets) = shader.collect_result(|shader| slice.offsets(shader, "element", &starts));
        let load_value = |shader: &mut ShaderBuilder, sorted_position: &str| {
            let position = shader.define(keys.index(sorted_position));
            let offset = space.offsets(shader, &position, &offsets[1..]).remove(0);
            shader.define(access::load(shader, bindings.input(0), dtype, compute, &offset))
        };
        let (combine_values, result) = shader.collect_result(|shader| {
            if is_set {
                return load_value(shader, "first");
            }
            let element = access::load(shader, bindings.output(0), dtype, compute, &offsets[0]);
            let (load_value, value) = shader.collect_result(|shader| load_value(shader, "i"));
            let (key_of_i, combined) = (keys.key("i"), combined_expr(self.op, compute, "result", &value));
            shader.template(COMBINE_EQUAL, values![element, end, key_of_i, load_value, combined]);
            "result".into()
        });
        let store_result = shader.collect_lines(|shader| {
            access::store(shader, bindings.output(0), compute, dtype, &result, &offsets[0]);
        });
        let (key_of_first, key_of_neighbour) = (keys.key("first"), keys.key(neighbour));
        let positions = values![begin, end, slice_size, key_of_first, has_neighbour, key_of_neighbour];
        let lines = values![compute_offsets, combine_values, store_result];
        shader.template(COMBINE, &[&positions[..], lines].concat());
    }
}

/// Returns the combination of an element and a value. Half precision accumulates in f32 and is rounded once.
fn combined_expr(op: ScatterOp, compute: Compute, element: &str, value: &str) -> String {
    match op {
        ScatterOp::Set => value.into(),
        ScatterOp::Add => binary_expr(Binary::Add, compute, element, value),
        ScatterOp::Mul => binary_expr(Binary::Mul, compute, element, value),
        // Of equal operands, maxima and minima return the second one: the element.
        ScatterOp::Max => binary_expr(Binary::Max, compute, value, element),
        ScatterOp::Min => binary_expr(Binary::Min, compute, value, element),
    }
}
