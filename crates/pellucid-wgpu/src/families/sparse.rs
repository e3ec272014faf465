//! `SparseProduct`: products of a sparse matrix and the lines of an array along an axis, bit-identical to the CPU.
//!
//! The first dispatches check the columns and the starts. One invocation then computes one element. A dispatch adds at
//! most [`CHUNK`] terms of each row, so that no invocation has a longer loop; the next one continues the sums.

use super::GpuFamily;
use super::shared::indices::{LowerBound, check_range};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands, declare_starts};
use crate::shader::access::{self, MergedAxes};
use crate::shader::parameters::Parameters;
use crate::shader::types::WgslFloat;
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Result;
use pellucid_ir::kernel::SparseProduct;

/// The terms of a row that a dispatch adds: one of the largest groups.
const CHUNK: usize = SparseProduct::LARGEST_GROUP;

impl GpuFamily for SparseProduct {
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let ([x, starts, columns, weights], y) = (
            [&operands.inputs[0], &operands.inputs[1], &operands.inputs[2], &operands.inputs[3]],
            &operands.outputs[0],
        );
        let (axis, shape, terms) = (self.axis, y.shape(), columns.shape()[0]);
        check_range(list, self.op, columns, axis, (LowerBound::Zero, x.shape()[axis]))?;
        check_range(list, self.op, starts, 0, (LowerBound::Previous, terms + 1))?;
        let count = shape.size();
        if count == 0 {
            return Ok(());
        }
        // The columns replace the axis of x.
        let mut strides = [y, x].map(|array| array.layout.strides().to_vec());
        let step = std::mem::take(&mut strides[1][axis]);
        let space = MergedAxes::new(shape, &strides);
        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, &operands.inputs, &operands.outputs);
        let mut parameters = Parameters::for_items(count);
        let begin_slot = parameters.declare_slot(0);
        let begin = begin_slot.expr();
        let firsts = declare_starts(&mut parameters, [y, x, starts, columns, weights]);
        let [rows, inner] = [shape[axis], shape[axis + 1..].iter().product()].map(|len| parameters.declare_len(len));
        let column_step = parameters.declare(step);
        let [start_step, term_step, weight_step] =
            [starts, columns, weights].map(|array| parameters.declare(array.layout.strides()[0]));
        let space = space.declare(&mut parameters);

        let (float, compute) = (WgslFloat(x.dtype.compute()), x.dtype.compute());
        shader.template("if (thread >= $item_count) { return; }", &[]);
        shader.line(format!("let row = thread / {inner} % {rows};"));
        let [row_start, row_end] = ["row", "(row + 1u)"].map(|row| {
            // The lower word determines a valid start or column.
            let word = shader.word(bindings.input(1), &format!("2u * ({} + {row} * {start_step})", firsts[2]));
            shader.define(word)
        });
        let first = shader.define(format!("{row_start} + {begin}"));
        shader.line(format!("if ({begin} > 0u && {first} >= {row_end}) {{ return; }}"));
        let end = shader.define(format!("min({row_end}, {first} + {CHUNK}u)"));
        let at = space.offsets(&mut shader, "thread", &firsts[..2]);
        let term = |shader: &mut ShaderBuilder, k: &str| {
            let column = shader.word(bindings.input(2), &format!("2u * ({} + {k} * {term_step})", firsts[3]));
            let from = shader.define(format!("{} + {column} * {column_step}", at[1]));
            let value = shader.define(access::load(shader, bindings.input(0), x.dtype, compute, &from));
            let from = shader.define(format!("{} + {k} * {weight_step}", firsts[4]));
            let weight = shader.define(access::load(shader, bindings.input(3), x.dtype, compute, &from));
            shader.define(float.mul(&value, &weight))
        };
        shader.line(format!("var total = {};", float.zero()));
        let earlier = access::load(&shader, bindings.output(0), y.dtype, compute, &at[0]);
        shader.line(format!("if ({begin} > 0u) {{ total = {earlier}; }}"));
        add_terms(&mut shader, float, ("total", &row_start), CHUNK, [&first, &end], &term);
        access::store(&mut shader, bindings.output(0), compute, y.dtype, "total", &at[0]);
        let dispatch = list.len();
        list.dispatch(
            "sparse_product",
            shader,
            parameters.clone(),
            &bindings.buffers,
            count.div_ceil(WORKGROUP as usize),
        )?;
        for begin in (CHUNK..terms).step_by(CHUNK) {
            parameters.set(begin_slot, begin);
            list.repeat(dispatch, parameters.clone());
        }
        Ok(())
    }
}

/// Adds the lines that add the terms of a range to the variable `sum`, in groups of `size` terms, which have groups of
/// their own. The group at `origin` is the first one: it replaces the sum.
fn add_terms(
    shader: &mut ShaderBuilder,
    float: WgslFloat,
    (sum, origin): (&str, &str),
    size: usize,
    [first, end]: [&str; 2],
    term: &impl Fn(&mut ShaderBuilder, &str) -> String,
) {
    let k = format!("k{size}");
    shader.line(format!("for (var {k} = {first}; {k} < {end}; {k} = {k} + {size}u) {{"));
    let value = match size {
        1 => term(shader, &k),
        _ => {
            let group = format!("sum{size}");
            shader.line(format!("var {group}: {};", float.ty()));
            let end = shader.define(format!("min({end}, {k} + {size}u)"));
            add_terms(shader, float, (&group, &k), size / SparseProduct::GROUP, [&k, &end], term);
            group
        }
    };
    shader.line(format!("{sum} = select({}, {value}, {k} == {origin});", float.add(sum, &value)));
    shader.line("}");
}
