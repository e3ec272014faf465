//! The instructions of a program as WGSL.

use super::iterations::iterations;
use super::special_functions::has_two_floats;
use super::types::{float_prefix, i64_from_word};
use super::{ShaderBuilder, has_function};
use pellucid_ir::formula::{Binary, InstructionOperand, Op, Program, RowOp, Step, Unary};
use pellucid_ir::{Compute, DType};
use std::collections::HashMap;

/// The slot in which a program caches its form for this backend ([`Program::prepared`]).
const PROGRAM_CACHE_SLOT: usize = 1;

/// The expression of an instruction that shaders do not have. Its shader does not compile, and the error names it.
const UNSUPPORTED: &str = "unsupported_instruction()";

/// The properties of a program that are computed once.
struct ProgramForm {
    is_supported: bool,
    /// The iterations of the loops of all steps for one element.
    iterations: usize,
}

fn program_form(program: &Program) -> &ProgramForm {
    program.prepared(PROGRAM_CACHE_SLOT, || {
        let long = program.steps.iter().filter(|step| is_long_division(step)).count();
        let series = program.steps.iter().filter(|step| is_series(step)).count();
        let is_short = long <= MAX_LONG_DIVISIONS && series <= MAX_SERIES;
        let is_supported = is_short && program.steps.iter().all(is_step_supported);
        let iterations = program.steps.iter().map(step_iterations).fold(0, usize::saturating_add);
        ProgramForm { is_supported, iterations }
    })
}

/// Returns true if shaders can compute every instruction of `program`.
pub(crate) fn is_supported(program: &Program) -> bool {
    program_form(program).is_supported
}

/// Returns true if shaders can compute every instruction of `program`, and it has no row reductions.
pub(crate) fn is_elementwise_supported(program: &Program) -> bool {
    !program.is_row() && is_supported(program)
}

/// Returns an estimate of the iterations of the loops that compute all steps of a program for one element.
pub(crate) fn program_iterations(program: &Program) -> usize {
    program_form(program).iterations
}

/// Returns an estimate of the iterations of the loops of a step.
fn step_iterations(step: &Step) -> usize {
    match step.op {
        Op::Reduce(op) => iterations(&binary_expr(combining_primitive(op), step.compute, "x", "y")),
        _ => iterations(&step_expr(step, &["x", "y", "z"][..step.args.len().min(3)], "i")),
    }
}

/// The maximum number of divisions of 64-bit values in a program. Drivers inline every call: the greatest common
/// divisor of `i64` has 92 of them, and its shader compiles for minutes.
const MAX_LONG_DIVISIONS: usize = 8;

/// The maximum number of binary functions with long source code in a program: llvmpipe compiles each of them for about
/// two seconds. The third derivative of a Bessel function contains four.
const MAX_SERIES: usize = 16;

fn is_series(step: &Step) -> bool {
    matches!(step.op, Op::Binary(op) if op.is_special())
}

fn is_long_division(step: &Step) -> bool {
    let is_division = matches!(step.op, Op::Binary(Binary::Div | Binary::FloorDiv | Binary::Rem | Binary::Pow));
    is_division && matches!(step.compute, Compute::I64 | Compute::F64)
}

fn is_step_supported(step: &Step) -> bool {
    match step.op {
        Op::Unary(op) => supported_unary(op, step.compute, "x").is_some(),
        Op::Binary(op) => supported_binary(op, step.compute, "x", "y").is_some(),
        Op::Round(dtype) => dtype.compute() == step.compute,
        Op::MulAdd => step.compute.is_float(),
        Op::Reduce(RowOp::Sum) => step.compute != Compute::Mask,
        Op::Reduce(_) | Op::Select | Op::Convert(_) | Op::RowIndex => true,
    }
}

/// The names of the values of a program while its source code is generated.
#[derive(Clone, Debug)]
pub(crate) struct ProgramValues(HashMap<InstructionOperand, String>);

impl ProgramValues {
    /// Declares the uniforms of a program, whose other values are unknown. See
    /// [`Parameters::declare_uniforms`](super::Parameters::declare_uniforms).
    pub(crate) fn declare(
        shader: &mut ShaderBuilder,
        program: &Program,
        first: usize,
        row_length: usize,
    ) -> ProgramValues {
        let uniforms = shader.parameters.declare_uniforms(program, first, row_length);
        ProgramValues((0..).map(InstructionOperand::Uniform).zip(uniforms).collect())
    }

    /// Returns the name of the value of an operand.
    pub(crate) fn value(&self, operand: InstructionOperand) -> &str {
        self.0.get(&operand).map_or("unknown_value", String::as_str)
    }

    /// Sets the name of the value of input `k`.
    pub(crate) fn set_input(&mut self, k: usize, name: String) {
        self.0.insert(InstructionOperand::Input(k as u8), name);
    }

    /// Adds the lines of every step. The program must be supported and must not have row reductions.
    pub(crate) fn compute_steps(&mut self, shader: &mut ShaderBuilder, program: &Program) {
        for step in &program.steps {
            let args: Vec<&str> = step.args.iter().map(|&a| self.value(a)).collect();
            let name = shader.define(step_expr(step, &args, ""));
            self.0.insert(step.into, name);
        }
    }
}

/// Returns the expression of a step that is not a reduction. `row_index` is the index of the element in its row.
pub(crate) fn step_expr(step: &Step, args: &[&str], row_index: &str) -> String {
    match (step.op, args) {
        (Op::Unary(op), [a]) => supported_unary(op, step.compute, a).unwrap_or_else(|| UNSUPPORTED.into()),
        (Op::Binary(op), [a, b]) => binary_expr(op, step.compute, a, b),
        (Op::Select, [m, a, b]) => format!("select({b}, {a}, {m})"),
        (Op::MulAdd, [a, b, c]) if step.compute == Compute::F64 => format!("d_fma({a}, {b}, {c})"),
        (Op::MulAdd, [a, b, c]) => format!("f_fma({a}, {b}, {c})"),
        (Op::Convert(to), [a]) => convert_expr(step.compute, to, a),
        (Op::Round(dtype), [a]) => round_expr(dtype, a),
        (Op::RowIndex, _) => i64_from_word(row_index),
        _ => UNSUPPORTED.into(),
    }
}

/// Returns the conversion between compute types: integers wrap, floats are truncated with saturation, and every nonzero
/// value converts to true.
pub(crate) fn convert_expr(from: Compute, to: Compute, x: &str) -> String {
    use Compute::*;
    match (from, to) {
        (Mask, I32) => format!("select(0, 1, {x})"),
        (Mask, I64) => i64_from_word(&format!("select(0u, 1u, {x})")),
        (Mask, F32) => format!("select(0.0, 1.0, {x})"),
        (I32, Mask) => format!("({x} != 0)"),
        (I32, I64) => format!("i_to_i64({x})"),
        (I32, F32) => format!("i_to_f32({x})"),
        (I64, Mask) => format!("any({x} != vec2<u32>(0u, 0u))"),
        (I64, I32) => format!("l_to_i32({x})"),
        (I64, F32) => format!("l_to_f32({x})"),
        (F32, Mask) => format!("((bitcast<u32>({x}) & 0x7fffffffu) != 0u)"),
        (F32, I32) => format!("f_to_i32({x})"),
        (F32, I64) => format!("f_to_i64({x})"),
        (Mask, F64) => format!("vec2<u32>(0u, select(0u, 0x3ff00000u, {x}))"),
        (I32, F64) => format!("d_from_i64(i_to_i64({x}))"),
        (I64, F64) => format!("d_from_i64({x})"),
        (F32, F64) => format!("d_from_f32({x})"),
        (F64, Mask) => format!("any(({x} & vec2<u32>(0xffffffffu, 0x7fffffffu)) != vec2<u32>(0u, 0u))"),
        (F64, I32) => format!("d_to_range({x}, i32(-2147483648), 2147483647)"),
        (F64, I64) => format!("d_to_i64({x})"),
        (F64, F32) => format!("d_to_f32({x})"),
        _ => x.to_string(),
    }
}

/// Returns x rounded to `dtype`, in the type of x, which is the compute type of `dtype`.
pub(crate) fn round_expr(dtype: DType, x: &str) -> String {
    match dtype {
        DType::F16 => format!("h_round_f16({x})"),
        DType::BF16 => format!("h_round_bf16({x})"),
        DType::U8 => format!("({x} & 255)"),
        DType::I8 => format!("(({x} << 24u) >> 24u)"),
        DType::I16 => format!("(({x} << 16u) >> 16u)"),
        _ => x.to_string(),
    }
}

/// Returns the expression of a unary primitive, or `None` if shaders do not have it for this type.
fn supported_unary(op: Unary, compute: Compute, x: &str) -> Option<String> {
    use Compute::{F32, F64, I32, I64, Mask};
    use Unary::*;
    Some(match (compute, op) {
        (Mask, Not) => format!("(!{x})"),
        (I32 | I64, Not) => format!("(~{x})"),
        (I32 | I64, IsNan) => "false".into(),
        (I32 | I64, IsFinite) => "true".into(),
        (I32 | I64, Floor | Ceil | Round | Trunc) => x.into(),
        (I32, Neg) => format!("(0 - {x})"),
        (I32, Abs) => format!("abs({x})"),
        (I32, Sign) => format!("sign({x})"),
        (I64, Neg) => format!("l_neg({x})"),
        (I64, Abs) => format!("l_abs({x})"),
        (I64, Sign) => format!("l_signum({x})"),
        (Mask | I32 | I64, _) | (F32 | F64, Not) => return None,
        (F32 | F64, _) => {
            let name = match op {
                Round => "round",
                Expm1 => "expm1",
                other => other.name(),
            };
            let function = format!("{}_{name}", float_prefix(compute));
            return has_function(&function).then(|| format!("{function}({x})"));
        }
    })
}

/// Returns the expression of a binary primitive. If shaders do not have it for this type, the shader does not compile.
pub(crate) fn binary_expr(op: Binary, compute: Compute, x: &str, y: &str) -> String {
    supported_binary(op, compute, x, y).unwrap_or_else(|| UNSUPPORTED.into())
}

/// Returns the expression of a binary primitive, or `None` if shaders do not have it for this type.
fn supported_binary(op: Binary, compute: Compute, x: &str, y: &str) -> Option<String> {
    use Binary::*;
    use Compute::{F32, F64, I32, I64, Mask};
    let infix = |symbol: &str| format!("({x} {symbol} {y})");
    let p = float_prefix(compute);
    Some(match (compute, op) {
        (Mask, And | Min) => infix("&&"),
        (Mask, Or | Max) => infix("||"),
        (Mask, Xor | Ne) => infix("!="),
        (Mask, Lt) => format!("(!{x} && {y})"),
        (Mask, Le) => format!("(!{x} || {y})"),
        (Mask, Gt) => format!("({x} && !{y})"),
        (Mask, Ge) => format!("({x} || !{y})"),
        (Mask | I32, Eq) => infix("=="),
        (I32, Ne) => infix("!="),
        (I32, Add) => infix("+"),
        (I32, Sub) => infix("-"),
        (I32, Mul) => infix("*"),
        (I32, Lt) => infix("<"),
        (I32, Le) => infix("<="),
        (I32, Gt) => infix(">"),
        (I32, Ge) => infix(">="),
        (I32, Max | Min) => format!("{}({x}, {y})", op.name()),
        (I32, FloorDiv | Rem | Pow | Shl | Shr) => format!("i_{}({x}, {y})", op.name()),
        (I32 | I64, And) => infix("&"),
        (I32 | I64, Or) => infix("|"),
        (I32 | I64, Xor) => infix("^"),
        (I64, Add | Sub | Mul | Max | Min | FloorDiv | Rem | Pow | Shl | Shr | Lt | Le | Eq) => {
            format!("l_{}({x}, {y})", op.name())
        }
        (I64, Gt) => format!("l_lt({y}, {x})"),
        (I64, Ge) => format!("l_le({y}, {x})"),
        (I64, Ne) => format!("(!l_eq({x}, {y}))"),
        (F32 | F64, Gt) => format!("{p}_lt({y}, {x})"),
        (F32 | F64, Ge) => format!("{p}_le({y}, {x})"),
        (F32 | F64, Ne) => format!("(!{p}_eq({x}, {y}))"),
        (Mask | I32 | I64, _) | (F32 | F64, And | Or | Xor | Shl | Shr) => return None,
        // These functions can be translated, but drivers inline all calls and take minutes to compile the result.
        (F64, _) if has_two_floats(op.name()) => return None,
        (F32 | F64, _) => {
            let function = format!("{p}_{}", op.name());
            return has_function(&function).then(|| format!("{function}({x}, {y})"));
        }
    })
}

/// Returns the primitive that combines two values of a reduction.
pub(crate) fn combining_primitive(op: RowOp) -> Binary {
    match op {
        RowOp::Sum => Binary::Add,
        RowOp::Max => Binary::Max,
        RowOp::Min => Binary::Min,
    }
}
