//! `Map`: elementwise programs over broadcast strided operands.
//!
//! One invocation computes `lanes` consecutive elements of the index space: 4 if an output has elements of one byte, 2
//! if an output has elements of two bytes, otherwise 1. A contiguous packed output whose first element starts a word is
//! written word by word; other packed outputs are merged element by element.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::{
    CollectLines, CollectedWord, ElementRef, MergedAxes, ProgramValues, ShaderBuilder, WORKGROUP, compute_program,
    is_elementwise_supported, program_iterations, values,
};
use pellucid_ir::Result;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Map;

/// The maximum number of elements of an invocation, which share a word.
const MAX_LANES: usize = 4;

impl GpuFamily for Map {
    fn is_supported(&self) -> bool {
        is_elementwise_supported(&self.program)
    }

    /// Returns 0, because a map is one dispatch without scratch memory.
    fn scratch_bindings(&self) -> usize {
        0
    }

    fn iterations(&self, _: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        program_iterations(&self.program).saturating_mul(MAX_LANES)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        describe_map(list, &self.program, operands);
        Ok(())
    }
}

/// Returns the index space of the outputs, with the strides of all operands. The axes are in the memory order of the
/// first output, so that neighbouring invocations write neighbouring words.
fn memory_order_space(operands: &DeviceOperands<'_>, first: &DeviceArray<'_>) -> MergedAxes {
    let shape = first.shape();
    let first_strides = first.broadcast_strides(shape);
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(first_strides[axis].unsigned_abs()));
    let dims: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let ordered_strides = |array: &DeviceArray<'_>| {
        let strides = array.broadcast_strides(shape);
        order.iter().map(|&axis| strides[axis]).collect()
    };
    MergedAxes::new(&dims, &operands.all().map(ordered_strides).collect::<Vec<_>>())
}

/// Returns for every output whether its elements are collected into full words.
fn collected_outputs(space: &MergedAxes, inputs: usize, outputs: &[DeviceArray<'_>]) -> Vec<bool> {
    let is_dense = |k: usize| space.strides[inputs + k].last().is_none_or(|&s| s == 1) && space.dims.len() <= 1;
    let is_collected = |(k, o): (usize, &DeviceArray<'_>)| {
        o.dtype.size() < 4 && is_dense(k) && (o.layout.offset() * o.dtype.size()).is_multiple_of(4)
    };
    outputs.iter().enumerate().map(is_collected).collect()
}

/// The code of an invocation that computes one element.
const ONE_ELEMENT: &str = "
    let flat = thread;
    $compute_element
";

/// The code of an invocation that computes up to `$lanes` elements.
const SEVERAL_ELEMENTS: &str = "
    let first = thread * $lanes;
    if (first >= $item_count) { return; }
    $declare_words
    let lanes = min($lanes, $item_count - first);
    for (var lane = 0u; lane < lanes; lane = lane + 1u) {
        let flat = first + lane;
        $compute_element
    }
";

/// Adds the dispatch of a program over the shape of its outputs.
pub(super) fn describe_map(list: &mut DispatchList<'_>, program: &Program, operands: &DeviceOperands<'_>) {
    let DeviceOperands { inputs, outputs } = operands;
    let Some(first) = outputs.first() else { return };
    let count = first.shape().size();
    if count == 0 {
        return;
    }
    let space = memory_order_space(operands, first);
    let lane_count = outputs.iter().map(|o| MAX_LANES / o.dtype.size().min(MAX_LANES)).max().unwrap_or(1);
    let (source, mut shader, is_collected) = match lane_count {
        1 => (ONE_ELEMENT, ShaderBuilder::for_threads(count), vec![false; outputs.len()]),
        _ => {
            let groups = count.div_ceil(lane_count).div_ceil(WORKGROUP as usize);
            let is_collected = collected_outputs(&space, inputs.len(), outputs);
            (SEVERAL_ELEMENTS, ShaderBuilder::with_groups(count, groups), is_collected)
        }
    };
    let bindings = Bindings::new(&mut shader, inputs, outputs);
    let starts = declare_starts(&mut shader, operands.all());
    let axes = space.declare(&mut shader);
    let mut values = ProgramValues::declare(&mut shader, program, 0, 0);

    let compute_element = shader.collect_lines(|shader| {
        let elements = bindings.elements(axes.offsets(shader, "flat", &starts));
        compute_program(shader, program, &mut values, 0, &elements);
        for (k, store) in program.outputs.iter().enumerate() {
            let ElementRef { elements, offset } = &elements[inputs.len() + k];
            let (elements, value) = (elements.as_type(store.compute), values.value(store.value));
            if is_collected[k] {
                let variable = format!("word{k}");
                let word = CollectedWord { variable: &variable, lane: "lane", is_last: "lane + 1u == lanes" };
                elements.store_collected(shader, value, offset, word);
            } else {
                elements.store(shader, value, offset);
            }
        }
    });
    let collected = (0..outputs.len()).filter(|&k| is_collected[k]);
    let declare_words: String = collected.map(|k| format!("var word{k} = 0u;\n")).collect();
    let lanes = format!("{lane_count}u");
    shader.template(source, values![lanes, declare_words, compute_element]);
    list.dispatch(program.name, shader);
}
