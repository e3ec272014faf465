//! `Map`: elementwise programs over broadcast strided operands.
//!
//! One invocation computes `lanes` consecutive elements of the index space: 4 if an output has elements of one byte, 2
//! if an output has elements of two bytes, otherwise 1. A contiguous packed output whose first element starts a word is
//! written word by word; other packed outputs are merged element by element.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::program::{ProgramValues, is_supported, program_iterations};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Result;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Map;

impl GpuFamily for Map {
    fn is_supported(&self) -> bool {
        !self.program.is_row() && is_supported(&self.program)
    }

    fn iterations(&self, _: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        // An invocation computes up to four elements.
        program_iterations(&self.program).saturating_mul(4)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        describe_map(list, &self.program, operands)
    }
}

/// Adds the dispatch of a program over the shape of its outputs.
pub(super) fn describe_map(
    list: &mut DispatchList<'_>,
    program: &Program,
    operands: &DeviceOperands<'_>,
) -> Result<()> {
    let DeviceOperands { inputs, outputs } = operands;
    let Some(first) = outputs.first() else { return Ok(()) };
    let shape = first.shape();
    let count = shape.size();
    if count == 0 {
        return Ok(());
    }
    // The axes in the memory order of the first output, so that neighbouring invocations write neighbouring words.
    let arrays = || inputs.iter().chain(outputs);
    let own = first.broadcast_strides(shape);
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(own[axis].unsigned_abs()));
    let dims: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let strides: Vec<Vec<isize>> = arrays()
        .map(|array| {
            let strides = array.broadcast_strides(shape);
            order.iter().map(|&axis| strides[axis]).collect()
        })
        .collect();
    let space = MergedAxes::new(&dims, &strides);

    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, inputs, outputs);
    let lanes = outputs.iter().map(|o| 4 / o.dtype.size().min(4)).max().unwrap_or(1);
    let mut parameters = Parameters::for_items(count);
    let starts = declare_starts(&mut parameters, arrays());
    let axes = space.declare(&mut parameters);
    let mut values = ProgramValues::declare(&mut parameters, program, 0, 0);

    let is_dense = |k: usize| space.strides[inputs.len() + k].last().is_none_or(|&s| s == 1) && space.dims.len() <= 1;
    let is_collected = |k: usize, o: &DeviceArray<'_>| {
        o.dtype.size() < 4 && is_dense(k) && (o.layout.offset() * o.dtype.size()).is_multiple_of(4)
    };
    shader.line(format!("let first = thread * {lanes}u;"));
    shader.line("if (first >= params[0]) { return; }");
    if lanes > 1 {
        for (k, _) in outputs.iter().enumerate().filter(|(k, o)| is_collected(*k, o)) {
            shader.line(format!("var word{k} = 0u;"));
        }
        shader.line(format!("let lanes = min({lanes}u, params[0] - first);"));
        shader.line("for (var lane = 0u; lane < lanes; lane = lane + 1u) {");
        shader.line("let flat = first + lane;");
    } else {
        shader.line("let flat = first;");
    }
    let positions = axes.positions(&mut shader, "flat", &starts);
    for (k, load) in program.inputs.iter().enumerate() {
        let text = access::load(&shader, bindings.input(k), load.storage, load.compute, &positions[k]);
        values.inputs[k] = shader.define(text);
    }
    values.compute_steps(&mut shader, program);
    for (k, store) in program.outputs.iter().enumerate() {
        let (binding, at) = (bindings.output(k), &positions[inputs.len() + k]);
        let value = values.value(store.value).to_string();
        if lanes > 1 && is_collected(k, &outputs[k]) {
            let lane = (&*format!("word{k}"), "lane", "lane + 1u == lanes");
            access::store_collected(&mut shader, binding, store.compute, store.storage, &value, at, lane);
        } else {
            access::store(&mut shader, binding, store.compute, store.storage, &value, at);
        }
    }
    if lanes > 1 {
        shader.line("}");
    }
    let groups = count.div_ceil(lanes).div_ceil(WORKGROUP as usize);
    list.dispatch(program.name, shader, parameters, &bindings.buffers, groups)
}
