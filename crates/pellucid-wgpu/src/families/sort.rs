//! `Sort`: the first k elements of every line in sorted order, and their indices, with the bits of the CPU.
//!
//! Every element has an unsigned key with the required order, as on the CPU: a descending key is the complement of the
//! ascending one, NaN has the largest key, and −0 and 0 have the same key. The keys are sorted with their indices (see
//! `key_sort`), and a last dispatch copies the elements that the indices select.

use super::GpuFamily;
use super::copy::same_size_integer;
use super::key_sort::{KEY_PARAMETERS, KeySort, KeyType, SortedKeys, index_text};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::kernel::Sort;
use pellucid_ir::{Compute, DType, Result};

impl GpuFamily for Sort {
    fn is_supported(&self) -> bool {
        true
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        if operands.outputs[0].shape().size() == 0 {
            return Ok(());
        }
        let sorted = sort_keys(list, self, &operands.inputs[0])?;
        copy_selected(list, self, operands, &sorted)
    }
}

/// Returns the axes of the lines of the arrays, with the strides of every array.
fn line_axes(kernel: &Sort, arrays: &[&DeviceArray<'_>]) -> MergedAxes {
    let others: Vec<usize> = (0..arrays[0].shape().rank()).filter(|&a| a != kernel.axis).collect();
    let dims: Vec<usize> = others.iter().map(|&a| arrays[0].shape()[a]).collect();
    let along = |array: &&DeviceArray<'_>| {
        let own = array.layout.strides();
        others.iter().map(|&a| own[a]).collect()
    };
    MergedAxes::new(&dims, &arrays.iter().map(along).collect::<Vec<_>>())
}

/// Returns the type of the keys of a dtype.
fn key_type(dtype: DType) -> KeyType {
    if dtype.size() == 8 { KeyType::Pair } else { KeyType::Word }
}

/// Returns the expression of the key of an element, given as an integer of the same size. Elements of one and two bytes
/// move to the upper bits of the word.
fn element_key(dtype: DType, bits: &str) -> String {
    let word = format!("(bitcast<u32>({bits}) << {}u)", 32usize.saturating_sub(8 * dtype.size()));
    match dtype {
        DType::Bool | DType::U8 => word,
        DType::I8 | DType::I16 | DType::I32 => format!("({word} ^ 0x80000000u)"),
        DType::F16 => format!("f_sort_key({word}, 0x7c000000u)"),
        DType::BF16 | DType::F32 => format!("f_sort_key({word}, 0x7f800000u)"),
        DType::I64 => format!("({bits} ^ vec2<u32>(0u, 0x80000000u))"),
        DType::F64 => format!("d_sort_key({bits})"),
    }
}

/// Adds the dispatches that sort the keys of all lines.
fn sort_keys(list: &mut DispatchList<'_>, kernel: &Sort, x: &DeviceArray<'_>) -> Result<SortedKeys> {
    let length = x.shape()[kernel.axis];
    let lines = x.shape().size() / length;
    let axes = line_axes(kernel, &[x]);
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(x), &[]);
    let mut parameters = vec![x.layout.offset() as u32, x.layout.strides()[kernel.axis] as u32];
    axes.push_params(&mut parameters);
    let sort = KeySort { op: "sort", lines, length, keep: kernel.k, key: key_type(x.dtype) };
    let [start, stride] = [KEY_PARAMETERS, KEY_PARAMETERS + 1].map(|at| format!("params[{at}]"));
    sort.sort(list, shader, &bindings, &parameters, |shader, line, i| {
        let space = (axes.dims.len(), KEY_PARAMETERS + 2);
        let base = position_lines(shader, space, line, &[start]).remove(0);
        let at = shader.define(format!("{base} + {i} * {stride}"));
        let integer = same_size_integer(x.dtype);
        let text = access::load(shader, bindings.input(0), integer, integer.compute(), &at);
        let bits = shader.define(text);
        let key = element_key(x.dtype, &bits);
        shader.define(if kernel.descending { format!("~{key}") } else { key })
    })
}

/// Adds the dispatch that writes the first k elements of every line and their indices.
fn copy_selected(
    list: &mut DispatchList<'_>,
    kernel: &Sort,
    operands: &DeviceOperands<'_>,
    sorted: &SortedKeys,
) -> Result<()> {
    let (x, y, positions) = (&operands.inputs[0], &operands.outputs[0], &operands.outputs[1]);
    let arrays = [x, y, positions];
    let axes = line_axes(kernel, &arrays);
    let count = y.shape().size();
    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, std::slice::from_ref(x), &[*y, *positions]);
    let from = shader.binding(BindingUse::Read);
    let mut parameters = vec![count as u32, 0, kernel.k as u32, x.shape()[kernel.axis] as u32, sorted.total as u32];
    let arrays_at = parameters.len();
    for array in arrays {
        parameters.extend([array.layout.offset() as u32, array.layout.strides()[kernel.axis] as u32]);
    }
    let axes_at = parameters.len();
    axes.push_params(&mut parameters);

    shader.line("if (thread >= params[0]) { return; }");
    shader.line("let line = thread / params[2];");
    shader.line("let i = thread % params[2];");
    let starts = [0, 1, 2].map(|k| format!("params[{}]", arrays_at + 2 * k));
    let bases = position_lines(&mut shader, (axes.dims.len(), axes_at), "line", &starts);
    let index = index_text(key_type(x.dtype), from, "params[4]", "(line * params[3] + i)");
    shader.line(format!("let index = {index};"));
    let at = ["index", "i", "i"];
    let at: Vec<String> = (0..3)
        .map(|k| shader.define(format!("{} + {} * params[{}]", bases[k], at[k], arrays_at + 2 * k + 1)))
        .collect();
    let integer = same_size_integer(x.dtype);
    let text = access::load(&shader, bindings.input(0), integer, integer.compute(), &at[0]);
    let value = shader.define(text);
    access::store(&mut shader, bindings.output(0), integer.compute(), integer, &value, &at[1]);
    access::store(&mut shader, bindings.output(1), Compute::I64, DType::I64, "vec2<u32>(index, 0u)", &at[2]);
    let buffers = [&bindings.buffers[..], &[sorted.buffer]].concat();
    list.dispatch("sort", shader, parameters, &buffers, count.div_ceil(WORKGROUP as usize))
}
