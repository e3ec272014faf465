//! `Scan`: cumulative reductions along one axis, with the bits of the CPU. One invocation computes one line, strictly in
//! order; sums and products of `f32` accumulate in `f64`.

use super::GpuFamily;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceOperands};
use crate::shader::access::{self, MergedAxes, position_lines};
use crate::shader::program::{Accumulator, convert_text, type_text};
use crate::shader::{ShaderBuilder, WORKGROUP};
use pellucid_ir::formula::Binary;
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{Compute, DType, Error, Result};

impl GpuFamily for Scan {
    fn is_supported(&self) -> bool {
        true
    }

    fn check(&self, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, outputs) = (&operands.inputs[0], &operands.outputs);
        let has_indices = matches!(self.op, ScanOp::Max | ScanOp::Min);
        let fits = outputs.len() == 1 + usize::from(has_indices)
            && outputs.iter().all(|o| o.shape() == x.shape())
            && self.axis < x.shape().rank()
            && outputs[0].dtype == x.dtype
            && outputs.get(1).is_none_or(|indices| indices.dtype == DType::I64);
        if !fits {
            let help = "values and indices must have the shape of the input";
            return Err(Error::shapes("scan", [x.shape(), outputs[0].shape()], help));
        }
        let dtype_error = |help: &str| Err(Error::dtypes("scan", [x.dtype], help));
        match (self.op, x.dtype) {
            (ScanOp::Sum | ScanOp::Prod, DType::Bool) => dtype_error("convert booleans to integers first"),
            (ScanOp::LogSumExp, d) if !d.is_float() => dtype_error("logcumsumexp requires a floating-point dtype"),
            _ => Ok(()),
        }
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let (x, outputs) = (&operands.inputs[0], &operands.outputs);
        let shape = x.shape();
        if shape.size() == 0 {
            return Ok(());
        }
        let length = shape[self.axis];
        let lines = shape.size() / length;
        let arrays: Vec<_> = [x].into_iter().chain(outputs).collect();
        let others: Vec<usize> = (0..shape.rank()).filter(|&a| a != self.axis).collect();
        let dims: Vec<usize> = others.iter().map(|&a| shape[a]).collect();
        let strides: Vec<Vec<isize>> = arrays
            .iter()
            .map(|array| {
                let own = array.layout.strides();
                others.iter().map(|&a| own[a]).collect()
            })
            .collect();
        let axes = MergedAxes::new(&dims, &strides);
        let mut shader = ShaderBuilder::default();
        let bindings = Bindings::new(&mut shader, &operands.inputs[..1], outputs);
        let mut parameters = vec![lines as u32, 0, length as u32];
        for array in &arrays {
            parameters.extend([array.layout.offset() as u32, array.layout.strides()[self.axis] as u32]);
        }
        let axes_at = parameters.len();
        axes.push_params(&mut parameters);
        let starts: Vec<String> = (0..arrays.len()).map(|k| format!("params[{}]", 3 + 2 * k)).collect();

        shader.line("if (thread >= params[0]) { return; }");
        let bases = position_lines(&mut shader, (axes.dims.len(), axes_at), "thread", &starts);
        let compute = x.dtype.compute();
        let running = RunningScan::declare(&mut shader, self.op, compute);
        shader.line("for (var i = 0u; i < params[2]; i = i + 1u) {");
        shader.line(if self.reverse { "let index = params[2] - 1u - i;" } else { "let index = i;" });
        let at: Vec<String> =
            (0..arrays.len()).map(|k| shader.define(format!("{} + index * params[{}]", bases[k], 4 + 2 * k))).collect();
        let text = access::load(&shader, bindings.input(0), x.dtype, compute, &at[0]);
        let value = shader.define(text);
        let result = running.step(&mut shader, &value);
        access::store(&mut shader, bindings.output(0), compute, x.dtype, &result, &at[1]);
        if outputs.len() > 1 {
            let index = "vec2<u32>(extremum_index, 0u)";
            access::store(&mut shader, bindings.output(1), Compute::I64, DType::I64, index, &at[2]);
        }
        shader.line("}");
        list.dispatch("scan", shader, parameters, &bindings.buffers, lines.div_ceil(WORKGROUP as usize))
    }
}

/// The variables of a scan in the text of a shader.
enum RunningScan {
    /// A sum or product, with the type of the elements and that of the total.
    Total(Accumulator, Compute, Compute),
    Extremum(ScanOp, Compute),
    LogSumExp(Compute),
}

impl RunningScan {
    fn declare(shader: &mut ShaderBuilder, op: ScanOp, compute: Compute) -> RunningScan {
        match op {
            ScanOp::Sum | ScanOp::Prod => {
                let total = if compute == Compute::F32 { Compute::F64 } else { compute };
                let primitive = if op == ScanOp::Sum { Binary::Add } else { Binary::Mul };
                let accumulator = Accumulator::declare(shader, primitive, total, "total");
                if (op, total) == (ScanOp::Sum, Compute::F64) {
                    // The sum of −0 alone is −0.
                    shader.line("total = vec2<u32>(0u, 0x80000000u);");
                }
                RunningScan::Total(accumulator, compute, total)
            }
            ScanOp::Max | ScanOp::Min => {
                shader.line(format!("var extremum: {};", type_text(compute)));
                shader.line("var extremum_index = 0xffffffffu;");
                RunningScan::Extremum(op, compute)
            }
            ScanOp::LogSumExp => {
                let lowest = match compute {
                    Compute::F64 => "vec2<u32>(0u, 0xfff00000u)",
                    _ => "bitcast<f32>(0xff800000u ^ zero)",
                };
                shader.line(format!("var largest = {lowest};"));
                shader.line("var sum = vec2<u32>(0u, 0u);");
                RunningScan::LogSumExp(compute)
            }
        }
    }

    /// Adds the lines that process the next value, and returns the result.
    fn step(&self, shader: &mut ShaderBuilder, value: &str) -> String {
        match self {
            RunningScan::Total(accumulator, compute, total) => {
                let wide = shader.define(convert_text(*compute, *total, value));
                accumulator.accumulate(shader, &wide);
                shader.define(convert_text(*total, *compute, &accumulator.result()))
            }
            RunningScan::Extremum(op, compute) => {
                // A value replaces an equal one, and NaN replaces every value.
                let (low, high) = if *op == ScanOp::Max { ("extremum", value) } else { (value, "extremum") };
                let replaces = match compute {
                    Compute::Mask => format!("(!{low} || {high})"),
                    Compute::I32 => format!("({low} <= {high})"),
                    Compute::I64 => format!("l_le({low}, {high})"),
                    Compute::F32 => format!("(f_le({low}, {high}) || f_is_nan({value}))"),
                    Compute::F64 => format!("(d_le({low}, {high}) || d_is_nan({value}))"),
                };
                shader.line(format!("if (extremum_index == 0xffffffffu || {replaces}) {{"));
                shader.line(format!("    extremum = {value};"));
                shader.line("    extremum_index = index;");
                shader.line("}");
                "extremum".into()
            }
            RunningScan::LogSumExp(compute) => {
                let p = if *compute == Compute::F64 { "d" } else { "f" };
                let e = shader.define(format!("{p}_exp({p}_neg({p}_abs({p}_sub({value}, largest))))"));
                let wide = shader.define(convert_text(*compute, Compute::F64, &e));
                let one = "vec2<u32>(0u, 0x3ff00000u)";
                let wide = shader.define(format!("select({wide}, {one}, {p}_eq({value}, largest))"));
                let grows = shader.define(format!("{p}_lt(largest, {value})"));
                shader.line(format!("if ({grows}) {{"));
                shader.line(format!("    sum = d_add(d_mul(sum, {wide}), {one});"));
                shader.line(format!("    largest = {value};"));
                shader.line("} else {");
                shader.line(format!("    sum = d_add(sum, {wide});"));
                shader.line("}");
                let narrow = shader.define(convert_text(Compute::F64, *compute, "sum"));
                shader.define(format!("{p}_add(largest, {p}_ln({narrow}))"))
            }
        }
    }
}
