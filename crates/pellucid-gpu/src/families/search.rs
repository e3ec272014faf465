//! `Search`: binary search in sorted rows. One invocation searches for one value.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands, declare_starts};
use crate::shader::{CollectLines, MergedAxes, ShaderBuilder, WgslFloat, binary_expr, i64_from_word, values};
use pellucid_ir::Result;
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::Search;

impl GpuFamily for Search {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        if operands.outputs[0].shape().size() > 0 {
            list.dispatch("search", search_shader(self.right, operands));
        }
        Ok(())
    }
}

/// Searches a row of `$length` elements for `$target`.
const SEARCH_ROW: &str = "
    var low = 0u;
    for (var count = $length; count > 0u; count = count / 2u) { // at most 32 iterations
        let jump = (count + 1u) / 2u;
        $load_probe
        if ($precedes) { low = low + jump; }
    }
    let position = select(low, $length, $is_nan);
";

/// Returns the dispatch that searches for all values.
fn search_shader(right: bool, operands: &DeviceOperands<'_>) -> ShaderBuilder {
    let ([sorted, targets], y) = ([0, 1].map(|k| &operands.inputs[k]), &operands.outputs[0]);
    let (shape, row_axis) = (y.shape(), sorted.shape().rank() - 1);
    let mut row_strides = sorted.layout.strides()[..row_axis].to_vec();
    row_strides.resize(shape.rank(), 0);
    let strides = [y.layout.strides().to_vec(), targets.layout.strides().to_vec(), row_strides];
    let space = MergedAxes::new(shape, &strides);
    let mut shader = ShaderBuilder::for_threads(shape.size());
    let bindings = Bindings::new(&mut shader, &operands.inputs, &operands.outputs);
    let starts = declare_starts(&mut shader, [y, targets, sorted]);
    let length = shader.declare_word(sorted.shape()[row_axis]);
    let step = shader.declare(sorted.layout.strides()[row_axis]);
    let space = space.declare(&mut shader);

    let offsets = space.offsets(&mut shader, "thread", &starts);
    let target = bindings.input(1).define(&mut shader, &offsets[1]);
    let compute = sorted.dtype.compute();
    let (load_probe, probe) = shader.collect_result(|shader| {
        let offset = shader.define(format!("{} + (low + jump - 1u) * {step}", offsets[2]));
        bindings.input(0).define(shader, &offset)
    });
    let precedes = binary_expr(if right { Binary::Le } else { Binary::Lt }, compute, &probe, &target);
    let is_nan = if compute.is_float() { WgslFloat(compute).call("is_nan", &[&target]) } else { "false".into() };
    shader.template(SEARCH_ROW, values![length, load_probe, precedes, is_nan]);
    bindings.output(0).store(&mut shader, &i64_from_word("position"), &offsets[0]);
    shader
}
