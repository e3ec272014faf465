//! `MatMul`: batched matrix products with an epilogue.
//!
//! A workgroup of 8 × 8 invocations computes a tile of 32 × 32 elements of the product; each invocation computes 4 × 4
//! of them in registers. Blocks of 16 columns of A and 16 rows of B pass through shared memory. The products are added
//! in the order of k. Half precision is multiplied as `f32` and small integers as `i32`; the product is rounded or
//! wrapped once.

use super::GpuFamily;
use super::map::check_dtypes;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray, DeviceOperands};
use crate::shader::ShaderBuilder;
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::parameters::Parameters;
use crate::shader::program::{ProgramValues, convert_text, is_supported, round_text, type_text};
use pellucid_ir::kernel::MatMul;
use pellucid_ir::{Compute, DType, Error, Result, Shape};

/// The rows and columns of a tile of the product.
const TILE: usize = 32;

/// The number of invocations along each axis of a tile.
const INVOCATIONS: usize = 8;

/// The rows and columns that one invocation computes.
const PER_INVOCATION: usize = TILE / INVOCATIONS;

/// The number of values of k whose factors are in shared memory together.
const DEPTH: usize = 16;

impl GpuFamily for MatMul {
    fn is_supported(&self) -> bool {
        match &self.epilogue {
            Some(program) => is_supported(program) && !program.is_row(),
            None => true,
        }
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let (a, b) = (&inputs[0], &inputs[1]);
        let shape = product_shape(a.shape(), b.shape()).filter(|shape| outputs.iter().all(|o| o.shape() == shape));
        let Some(shape) = shape else {
            let help = "the product of factors [.., m, k] and [.., k, n] must have the shape [.., m, n]";
            return Err(Error::shapes("matmul", [a.shape(), b.shape(), outputs[0].shape()], help));
        };
        if a.dtype == DType::Bool || a.dtype != b.dtype {
            let help = "the factors must have one dtype other than bool; use to_dtype()";
            return Err(Error::dtypes("matmul", [a.dtype, b.dtype], help));
        }
        let Some(program) = &self.epilogue else {
            let help = "both factors and the product must have the same dtype";
            let same = outputs[0].dtype == a.dtype;
            return if same { Ok(()) } else { Err(Error::dtypes("matmul", [a.dtype, outputs[0].dtype], help)) };
        };
        let others = &inputs[2..];
        if let Some(bad) = others.iter().find(|o| shape.broadcast(o.shape()).as_ref() != Some(&shape)) {
            let help = "the inputs of the epilogue must broadcast to the shape of the product";
            return Err(Error::shapes("matmul", [bad.shape(), &shape], help));
        }
        let product = DeviceArray { layout: outputs[0].layout, ..*a };
        let program_inputs: Vec<DeviceArray<'_>> = [product].into_iter().chain(others.iter().copied()).collect();
        check_dtypes(program, &program_inputs, outputs)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        multiply(list, self, operands)
    }
}

/// Returns the shape of `[batch.., m, k]` times `[batch.., k, n]`, or `None` if they do not fit.
fn product_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let (i, j) = (a.rank().checked_sub(2)?, b.rank().checked_sub(2)?);
    let batch = Shape::from(&a[..i]).broadcast(&Shape::from(&b[..j]))?;
    (a[i + 1] == b[j]).then(|| batch.iter().copied().chain([a[i], b[j + 1]]).collect())
}

/// Adds the lines that load element (`row`, `column`) of a factor into `name`, or zero outside of the factor.
fn load_factor(
    shader: &mut ShaderBuilder,
    (binding, dtype): (usize, DType),
    name: &str,
    (row, column): (&str, &str),
    (rows, columns): (&str, &str),
    (base, row_stride, column_stride): (&str, String, String),
) {
    let compute = dtype.compute();
    shader.line(format!("var {name}: {};", type_text(compute)));
    shader.line(format!("if ({row} < {rows} && {column} < {columns}) {{"));
    let at = shader.define(format!("{base} + {row} * {row_stride} + {column} * {column_stride}"));
    let value = access::load(shader, binding, dtype, compute, &at);
    shader.line(format!("{name} = {value};"));
    shader.line("}");
}

/// Adds the dispatch of a product and its epilogue.
fn multiply(list: &mut DispatchList<'_>, kernel: &MatMul, operands: &DeviceOperands<'_>) -> Result<()> {
    let DeviceOperands { inputs, outputs } = operands;
    let (a, b) = (&inputs[0], &inputs[1]);
    let shape = outputs[0].shape();
    if shape.size() == 0 {
        return Ok(());
    }
    let rank = shape.rank();
    let [m, n, k] = [shape[rank - 2], shape[rank - 1], a.shape()[a.shape().rank() - 1]];
    // Strides over the batch axes, and of rows and columns, of every operand.
    let batch_shape = Shape::from(&shape[..rank - 2]);
    let arrays: Vec<DeviceArray<'_>> = inputs.iter().chain(outputs).copied().collect();
    let (mut batch_strides, mut matrix_strides) = (Vec::new(), Vec::new());
    for (index, array) in arrays.iter().enumerate() {
        let matrix = match index {
            0 => [m, k],
            1 => [k, n],
            _ => [m, n],
        };
        let full: Shape = batch_shape.iter().copied().chain(matrix).collect();
        let strides = array.broadcast_strides(&full);
        matrix_strides.push([strides[rank - 2], strides[rank - 1]]);
        batch_strides.push(strides[..rank - 2].to_vec());
    }
    let batch = MergedAxes::new(&batch_shape, &batch_strides);
    let tiles = [m.div_ceil(TILE), n.div_ceil(TILE)];
    let groups = batch_shape.size() * tiles[0] * tiles[1];

    let mut shader = ShaderBuilder::default();
    let bindings = Bindings::new(&mut shader, inputs, outputs);
    let header = [groups, 0, m, n, k, tiles[1], tiles[0] * tiles[1]];
    let mut parameters = Parameters::from(header.map(|v| v as u32));
    let starts_at = parameters.len();
    parameters.extend(arrays.iter().map(|array| array.layout.offset() as u32));
    let strides_at = parameters.len();
    parameters.extend(matrix_strides.iter().flatten().map(|&s| s as u32));
    let batch_at = parameters.len();
    batch.push_params(&mut parameters);
    let uniforms_at = parameters.len();
    if let Some(program) = &kernel.epilogue {
        parameters.push_uniforms(program, 0, 0);
    }

    let compute = a.dtype.compute();
    let ty = type_text(compute);
    let area = TILE * DEPTH;
    shader.globals.push_str(&format!("var<workgroup> tile_a: array<{ty}, {area}>;\n"));
    shader.globals.push_str(&format!("var<workgroup> tile_b: array<{ty}, {area}>;\n"));
    shader.line("if (group >= params[0]) { return; }");
    shader.line("let tile = group % params[6];");
    shader.line("let matrix = group / params[6];");
    shader.line(format!("let first_row = (tile / params[5]) * {TILE}u;"));
    shader.line(format!("let first_column = (tile % params[5]) * {TILE}u;"));
    shader.line(format!("let own_row = local / {INVOCATIONS}u;"));
    shader.line(format!("let own_column = local % {INVOCATIONS}u;"));
    let starts: Vec<String> = (0..arrays.len()).map(|k| format!("params[{}]", starts_at + k)).collect();
    let bases = position_lines(&mut shader, (batch.dims.len(), batch_at), "matrix", &starts);
    let stride = |k: usize, axis: usize| format!("params[{}]", strides_at + 2 * k + axis);
    for index in 0..PER_INVOCATION * PER_INVOCATION {
        shader.line(format!("var sum{index}: {ty};"));
    }
    shader.line(format!("for (var depth = 0u; depth < params[4]; depth = depth + {DEPTH}u) {{"));
    shader.line(format!("for (var e = local; e < {area}u; e = e + {}u) {{", INVOCATIONS * INVOCATIONS));
    shader.line(format!("let a_row = first_row + e / {DEPTH}u;"));
    shader.line(format!("let a_column = depth + e % {DEPTH}u;"));
    let place = (&*bases[0], stride(0, 0), stride(0, 1));
    let factor = (bindings.input(0), a.dtype);
    load_factor(&mut shader, factor, "x", ("a_row", "a_column"), ("params[2]", "params[4]"), place);
    shader.line("tile_a[e] = x;");
    shader.line(format!("let b_row = depth + e / {TILE}u;"));
    shader.line(format!("let b_column = first_column + e % {TILE}u;"));
    let place = (&*bases[1], stride(1, 0), stride(1, 1));
    let factor = (bindings.input(1), b.dtype);
    load_factor(&mut shader, factor, "y", ("b_row", "b_column"), ("params[4]", "params[3]"), place);
    shader.line("tile_b[e] = y;");
    shader.line("}");
    shader.line("workgroupBarrier();");
    shader.line(format!("for (var k = 0u; k < {DEPTH}u; k = k + 1u) {{"));
    for i in 0..PER_INVOCATION {
        shader.line(format!("let a{i} = tile_a[(own_row + {}u) * {DEPTH}u + k];", i * INVOCATIONS));
        shader.line(format!("let b{i} = tile_b[k * {TILE}u + own_column + {}u];", i * INVOCATIONS));
    }
    for (i, j) in (0..PER_INVOCATION).flat_map(|i| (0..PER_INVOCATION).map(move |j| (i, j))) {
        let sum = format!("sum{}", i * PER_INVOCATION + j);
        shader.line(match compute {
            Compute::I64 => format!("{sum} = l_add({sum}, l_mul(a{i}, b{j}));"),
            Compute::F64 => format!("{sum} = d_fma(a{i}, b{j}, {sum});"),
            _ => format!("{sum} = {sum} + a{i} * b{j};"),
        });
    }
    shader.line("}");
    shader.line("workgroupBarrier();");
    shader.line("}");
    // A copy, so that the sums themselves are never indexed at run time and stay in registers.
    let count = PER_INVOCATION * PER_INVOCATION;
    let sums: Vec<String> = (0..count).map(|k| format!("sum{k}")).collect();
    shader.line(format!("var sums = array<{ty}, {count}>({});", sums.join(", ")));
    shader.line(format!("for (var e = 0u; e < {count}u; e = e + 1u) {{"));
    shader.line(format!("let row = first_row + own_row + (e / {PER_INVOCATION}u) * {INVOCATIONS}u;"));
    shader.line(format!("let column = first_column + own_column + (e % {PER_INVOCATION}u) * {INVOCATIONS}u;"));
    shader.line("if (row < params[2] && column < params[3]) {");
    let position = |shader: &mut ShaderBuilder, k: usize| {
        shader.define(format!("{} + row * {} + column * {}", bases[k], stride(k, 0), stride(k, 1)))
    };
    let product = shader.define(round_text(a.dtype, "sums[e]"));
    match &kernel.epilogue {
        None => {
            let at = position(&mut shader, inputs.len());
            access::store(&mut shader, bindings.output(0), compute, a.dtype, &product, &at);
        }
        Some(program) => {
            let mut values = ProgramValues::new(program, uniforms_at);
            values.inputs[0] = shader.define(convert_text(compute, program.inputs[0].compute, &product));
            for (k, load) in program.inputs.iter().enumerate().skip(1) {
                let at = position(&mut shader, k + 1);
                let text = access::load(&shader, bindings.input(k + 1), load.storage, load.compute, &at);
                values.inputs[k] = shader.define(text);
            }
            values.compute_steps(&mut shader, program);
            let places: Vec<String> = (0..outputs.len()).map(|k| position(&mut shader, inputs.len() + k)).collect();
            for (k, store) in program.outputs.iter().enumerate() {
                let value = values.value(store.value).to_string();
                access::store(&mut shader, bindings.output(k), store.compute, store.storage, &value, &places[k]);
            }
        }
    }
    shader.line("}");
    shader.line("}");
    list.dispatch("matmul", shader, parameters, &bindings.buffers, groups)
}
