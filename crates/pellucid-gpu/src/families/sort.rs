//! `Sort`: the first k elements of every line in sorted order, and their positions, bit-identical to the CPU.
//!
//! Every element has an unsigned key with the required order, as on the CPU: a descending key is the complement of the
//! ascending one, NaN has the largest key, and −0 and 0 have the same key. The keys are sorted with their indices (see
//! `shared/key_sort`), and a last dispatch copies the elements that the indices select.

use super::GpuFamily;
use super::shared::axes::axes_space;
use super::shared::key_sort::{KeySort, KeyType, MAX_KEYS, SortedKeys};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::{ShaderBuilder, i64_from_word};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::Sort;
use pellucid_ir::{DType, Result};

impl GpuFamily for Sort {
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> bool {
        inputs[0].layout.shape().size() <= MAX_KEYS
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        if operands.outputs[0].shape().size() > 0 {
            let sorted = sort_keys(list, self, &operands.inputs[0]);
            copy_selected(list, self, operands, &sorted);
        }
        Ok(())
    }
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
fn sort_keys(list: &mut DispatchList<'_>, kernel: &Sort, x: &DeviceArray<'_>) -> SortedKeys {
    let length = x.shape()[kernel.axis];
    let lines = x.shape().size() / length;
    let axes = axes_space([x], x.shape(), |axis| axis != kernel.axis);
    let sort = KeySort { op: "sort", lines, length, keep: kernel.k, key: key_type(x.dtype) };
    sort.sort(list, std::slice::from_ref(x), |shader, bindings| {
        let starts = declare_starts(shader, [x]);
        let stride = shader.declare(x.layout.strides()[kernel.axis]);
        let base = axes.declare(shader).offset(shader, "line", &starts[0]);
        let offset = shader.define(format!("{base} + i * {stride}"));
        let bits = bindings.input(0).as_bits().define(shader, &offset);
        let key = element_key(x.dtype, &bits);
        shader.define(if kernel.descending { format!("~{key}") } else { key })
    })
}

/// Adds the dispatch that writes the first k elements of every line and their positions.
fn copy_selected(list: &mut DispatchList<'_>, kernel: &Sort, operands: &DeviceOperands<'_>, sorted: &SortedKeys) {
    let (x, y, positions) = (&operands.inputs[0], &operands.outputs[0], &operands.outputs[1]);
    let arrays = [x, y, positions];
    let axes = axes_space(arrays, x.shape(), |axis| axis != kernel.axis);
    let mut shader = ShaderBuilder::for_threads(y.shape().size());
    let bindings = Bindings::new(&mut shader, &operands.inputs, &operands.outputs);
    let [kept, length] = shader.declare_words([kernel.k, x.shape()[kernel.axis]]);
    let keys = sorted.declare(&mut shader);
    let starts = declare_starts(&mut shader, arrays);
    let strides = arrays.map(|array| shader.declare(array.layout.strides()[kernel.axis]));
    let axes = axes.declare(&mut shader);

    shader.line(format!("let line = thread / {kept};"));
    shader.line(format!("let i = thread % {kept};"));
    let bases = axes.offsets(&mut shader, "line", &starts);
    shader.line(format!("let index = {};", keys.index(&format!("(line * {length} + i)"))));
    let offsets = [("index", 0), ("i", 1), ("i", 2)]
        .map(|(index, k)| shader.define(format!("{} + {index} * {}", bases[k], strides[k])));
    let value = bindings.input(0).as_bits().define(&mut shader, &offsets[0]);
    bindings.output(0).as_bits().store(&mut shader, &value, &offsets[1]);
    bindings.output(1).store(&mut shader, &i64_from_word("index"), &offsets[2]);
    list.dispatch("sort", shader);
}
