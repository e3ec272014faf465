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
use super::shared::indices::{IndexedAxes, check_indices};
use super::shared::key_sort::{KeySort, KeyType, SortedKeys};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes, same_size_integer};
use crate::shader::iterations::{MAX_ITERATIONS, iterations};
use crate::shader::parameters::Parameters;
use crate::shader::program::binary_text;
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Index, Scatter, ScatterReduction};
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

/// Adds the dispatches that sort the index positions by the position of the first element of their slice of y.
fn sort_positions(
    list: &mut DispatchList<'_>,
    index: &Index,
    indices: &[DeviceArray<'_>],
    y: &DeviceArray<'_>,
) -> Result<SortedKeys> {
    let shape = indices[0].shape();
    // The strides of y over the index positions, without the axes that are indexed.
    let own = y.layout.strides();
    let y_strides = match index {
        Index::Axes(_) => vec![0; shape.rank()],
        Index::Along(axis) => (0..shape.rank()).map(|a| if a == *axis { 0 } else { own[a] }).collect(),
    };
    let strides: Vec<Vec<isize>> = indices.iter().map(|i| i.layout.strides().to_vec()).chain([y_strides]).collect();
    let space = MergedAxes::new(shape, &strides);
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, indices, &[]);
    let length = shape.size();
    let sort = KeySort { op: "scatter", lines: 1, length, keep: length, key: KeyType::Word };
    sort.sort(list, shader, &bindings, |shader, parameters| {
        let starts = declare_starts(parameters, indices.iter().chain([y]));
        let indexed = IndexedAxes::declare(parameters, index, y);
        let at = space.declare(parameters).positions(shader, "i", &starts);
        let selected: Vec<(usize, &str)> = (0..indices.len()).map(|k| (bindings.input(k), &*at[k])).collect();
        indexed.position(shader, &at[indices.len()], &selected)
    })
}

/// Returns the axes of the slice of values that belongs to one position, with the strides of y and of the values, and
/// the index axes of the values.
fn slice_and_index_axes(kernel: &Scatter, values: &DeviceArray<'_>, y: &DeviceArray<'_>) -> (MergedAxes, MergedAxes) {
    let (own, value_strides) = (y.layout.strides(), values.layout.strides());
    let others: Vec<usize> = match &kernel.index {
        Index::Axes(axes) => (0..y.shape().rank()).filter(|a| !axes.contains(a)).collect(),
        Index::Along(_) => Vec::new(),
    };
    let index_rank = values.shape().rank() - others.len();
    let slice_strides = [others.iter().map(|&a| own[a]).collect(), value_strides[index_rank..].to_vec()];
    let slice = MergedAxes::new(&values.shape()[index_rank..], &slice_strides);
    let space = MergedAxes::new(&values.shape()[..index_rank], &[value_strides[..index_rank].to_vec()]);
    (slice, space)
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
    let is_set = kernel.reduction == ScatterReduction::Set;
    // Only combined values need a loop.
    let of_value = iterations(&combined_text(kernel.reduction, y.dtype.compute(), "x", "y"));
    let max_positions = MAX_POSITIONS.min(MAX_ITERATIONS / (1 + of_value)).max(1);
    let step = if is_set { positions } else { positions.min(max_positions) };
    let work = step * size;

    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(values), std::slice::from_ref(y));
    let from = shader.binding(BindingUse::Read);
    let mut parameters = Parameters::for_items(work);
    let slice_size = parameters.declare_len(size);
    let keys = sorted.declare(&mut parameters, from);
    let value_start = parameters.declare_len(values.layout.offset());
    // The range of positions of the dispatch.
    let range_at = parameters.len();
    let [begin, end] = [0, step].map(|v| parameters.declare_len(v));
    let [slice, space] = [slice, space].map(|axes| axes.declare(&mut parameters));

    shader.line("if (thread >= params[0]) { return; }");
    shader.line(format!("let first = {begin} + thread / {slice_size};"));
    let own_key = shader.define(keys.key("first"));
    // The last of equal positions replaces an element; the first one combines all values.
    let (neighbour, exists) = match is_set {
        true => ("first + 1u", format!("first + 1u < {end}")),
        false => ("first - 1u", format!("first > {begin}")),
    };
    shader.line(format!("if ({exists}) {{ if ({} == {own_key}) {{ return; }} }}", keys.key(neighbour)));
    shader.line(format!("let element = thread % {slice_size};"));
    let bases = slice.positions(&mut shader, "element", &[own_key.clone(), value_start]);
    let dtype = if is_set { same_size_integer(y.dtype) } else { y.dtype };
    let load_value = |shader: &mut ShaderBuilder, at: &str| {
        let position = shader.define(keys.index(at));
        let at = space.positions(shader, &position, &bases[1..]).remove(0);
        shader.define(access::load(shader, bindings.input(0), dtype, dtype.compute(), &at))
    };
    let result = match is_set {
        true => load_value(&mut shader, "first"),
        false => {
            let element = access::load(&shader, bindings.output(0), dtype, dtype.compute(), &bases[0]);
            let is_end = |at: &str| format!("{} != {own_key}", keys.key(at));
            combine_equal(&mut shader, (kernel.reduction, dtype.compute()), &element, &end, is_end, load_value)
        }
    };
    access::store(&mut shader, bindings.output(0), dtype.compute(), dtype, &result, &bases[0]);
    let buffers = [&bindings.buffers[..], &[sorted.buffer]].concat();
    let dispatch = list.len();
    list.dispatch("scatter", shader, parameters.clone(), &buffers, work.div_ceil(WORKGROUP as usize))?;
    for begin in (step..positions).step_by(step) {
        let end = positions.min(begin + step);
        parameters[0] = ((end - begin) * size) as u32;
        parameters[range_at..range_at + 2].copy_from_slice(&[begin as u32, end as u32]);
        list.repeat(dispatch, parameters.clone());
    }
    Ok(())
}

/// Adds the lines that combine an element with the values of all equal positions, starting at `first`, and returns the
/// result. Half precision accumulates in f32 and is rounded once.
fn combine_equal(
    shader: &mut ShaderBuilder,
    (reduction, compute): (ScatterReduction, Compute),
    element: &str,
    end: &str,
    is_end: impl Fn(&str) -> String,
    load_value: impl Fn(&mut ShaderBuilder, &str) -> String,
) -> String {
    shader.line(format!("var result = {element};"));
    shader.line(format!("for (var i = first; i < {end}; i = i + 1u) {{"));
    shader.line(format!("if ({}) {{ break; }}", is_end("i")));
    let value = load_value(shader, "i");
    shader.line(format!("result = {};", combined_text(reduction, compute, "result", &value)));
    shader.line("}");
    "result".into()
}

/// Returns the combination of an element and a value. For booleans, the sum is "or" and the product is "and".
fn combined_text(reduction: ScatterReduction, compute: Compute, element: &str, value: &str) -> String {
    let op = match (reduction, compute) {
        (ScatterReduction::Add, Compute::Mask) | (ScatterReduction::Max, _) => Binary::Max,
        (ScatterReduction::Mul, Compute::Mask) | (ScatterReduction::Min, _) => Binary::Min,
        (ScatterReduction::Add, _) => Binary::Add,
        (ScatterReduction::Mul, _) => Binary::Mul,
        (ScatterReduction::Set, _) => return value.into(),
    };
    // Of equal operands, maxima and minima return the second one: the element.
    let (a, b) = if matches!(op, Binary::Max | Binary::Min) { (value, element) } else { (element, value) };
    binary_text(op, compute, a, b).unwrap_or_else(|| value.into())
}
