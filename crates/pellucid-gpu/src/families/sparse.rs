//! `SparseProduct`: products of a sparse matrix and the lines of an array along an axis, bit-identical to the CPU.
//!
//! The first dispatches check the columns and the starts. One invocation then computes one element. A dispatch adds at
//! most [`CHUNK`] terms of each row, so that no invocation has a longer loop; the next one continues the sums.

use super::GpuFamily;
use super::shared::indices::{LowerBound, check_range};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands, declare_starts};
use crate::shader::{CollectLines, MergedAxes, ParameterSlot, ShaderBuilder, WgslFloat, values};
use pellucid_ir::Result;
use pellucid_ir::kernel::SparseProduct;

/// The maximum number of terms of a row that a dispatch adds: the size of the largest group.
const CHUNK: usize = SparseProduct::LARGEST_GROUP;

impl GpuFamily for SparseProduct {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, starts, columns) = (&operands.inputs[0], &operands.inputs[1], &operands.inputs[2]);
        let terms = columns.shape()[0];
        check_range(list, self.op, columns, self.axis, (LowerBound::Zero, x.shape()[self.axis]));
        check_range(list, self.op, starts, 0, (LowerBound::Previous, terms + 1));
        if operands.outputs[0].shape().size() == 0 {
            return Ok(());
        }
        let (shader, begin) = product_shader(self.axis, operands);
        let mut parameters = shader.parameters.clone();
        let index = list.dispatch(self.op, shader);
        for first in (CHUNK..terms).step_by(CHUNK) {
            parameters.set(begin, first);
            list.repeat(index, parameters.clone());
        }
        Ok(())
    }
}

/// Adds at most `$chunk` terms of a row, starting at term `$begin` of the row.
const ADD_ROW: &str = "
    let row = thread / $inner % $rows;
    let row_start = $row_start;
    let row_end = $row_end;
    let first = row_start + $begin;
    if ($begin > 0u && first >= row_end) { return; }
    let end = min(row_end, first + $chunk);
    $compute_offsets
    var total = $zero;
    if ($begin > 0u) { total = $earlier; }
    $add_groups
    $store
";

/// Adds the groups of a range to `$sum`. The group at `$origin` is the first one: it replaces the sum.
const ADD_GROUPS: &str = "
    for (var $k = $first; $k < $end; $k = $k + $size) {
        $compute_group
        $sum = select($add($sum, $group), $group, $k == $origin);
    }
";

/// Returns the dispatch that adds a chunk of the terms of every row, and the parameter of the first term of the chunk.
fn product_shader(axis: usize, operands: &DeviceOperands<'_>) -> (ShaderBuilder, ParameterSlot) {
    let ([x, starts, columns, weights], y) = ([0, 1, 2, 3].map(|k| &operands.inputs[k]), &operands.outputs[0]);
    let shape = y.shape();
    // The axis of x is indexed by the columns of the sparse matrix.
    let mut strides = [y, x].map(|array| array.layout.strides().to_vec());
    let step = std::mem::take(&mut strides[1][axis]);
    let space = MergedAxes::new(shape, &strides);
    let mut shader = ShaderBuilder::for_threads(shape.size());
    let bindings = Bindings::new(&mut shader, &operands.inputs, &operands.outputs);
    let begin_slot = shader.parameters.declare_slot(0);
    let begin = begin_slot.expr();
    let array_starts = declare_starts(&mut shader, [y, x, starts, columns, weights]);
    let [rows, inner] = shader.declare_words([shape[axis], shape[axis + 1..].iter().product()]);
    let column_step = shader.declare(step);
    let [start_step, term_step, weight_step] =
        [starts, columns, weights].map(|array| shader.declare(array.layout.strides()[0]));
    let space = space.declare(&mut shader);

    let [elements, starts, columns, weights] = [0, 1, 2, 3].map(|k| bindings.input(k));
    let float = WgslFloat(x.dtype.compute());
    // Starts and columns are valid, so the lower word determines them.
    let [row_start, row_end] = ["row", "(row + 1u)"]
        .map(|row| starts.lower_word(&shader, &format!("({} + {row} * {start_step})", array_starts[2])));
    let (compute_offsets, offsets) =
        shader.collect_result(|shader| space.offsets(shader, "thread", &array_starts[..2]));
    let earlier = bindings.output(0).load(&shader, &offsets[0]);
    let term = |shader: &mut ShaderBuilder, k: &str| {
        let column = columns.lower_word(shader, &format!("({} + {k} * {term_step})", array_starts[3]));
        let offset = shader.define(format!("{} + {column} * {column_step}", offsets[1]));
        let value = elements.define(shader, &offset);
        let offset = shader.define(format!("{} + {k} * {weight_step}", array_starts[4]));
        let weight = weights.define(shader, &offset);
        shader.define(float.mul(&value, &weight))
    };
    let range = GroupRange { sum: "total", origin: "row_start", first: "first", end: "end" };
    let add_groups = shader.collect_lines(|shader| add_groups(shader, float, CHUNK, range, &term));
    let store = shader.collect_lines(|shader| bindings.output(0).store(shader, "total", &offsets[0]));
    let chunk = format!("{CHUNK}u");
    let row = values![inner, rows, row_start, row_end, begin, chunk];
    let lines = values![compute_offsets, earlier, add_groups, store];
    float.template(&mut shader, ADD_ROW, &[&row[..], lines].concat());
    (shader, begin_slot)
}

/// A range of terms that are added to a variable, as WGSL expressions.
#[derive(Clone, Copy)]
struct GroupRange<'a> {
    sum: &'a str,
    /// The first term of the sum.
    origin: &'a str,
    first: &'a str,
    end: &'a str,
}

/// Adds the lines that add the terms of a range in groups of `size` terms, which consist of smaller groups.
fn add_groups(
    shader: &mut ShaderBuilder,
    float: WgslFloat,
    size: usize,
    GroupRange { sum, origin, first, end }: GroupRange<'_>,
    term: &impl Fn(&mut ShaderBuilder, &str) -> String,
) {
    let k = format!("k{size}");
    let (compute_group, group) = shader.collect_result(|shader| {
        if size == 1 {
            return term(shader, &k);
        }
        let group = format!("sum{size}");
        shader.line(format!("var {group}: {};", float.ty()));
        let end = shader.define(format!("min({end}, {k} + {size}u)"));
        let smaller = GroupRange { sum: &group, origin: &k, first: &k, end: &end };
        add_groups(shader, float, size / SparseProduct::GROUP, smaller, term);
        group
    });
    let size = format!("{size}u");
    float.template(shader, ADD_GROUPS, values![k, first, end, size, compute_group, sum, group, origin]);
}
