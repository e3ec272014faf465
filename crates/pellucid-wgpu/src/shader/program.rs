//! The instructions of a program as WGSL.

use super::iterations::iterations;
use super::parameters::Parameters;
use super::special_functions::has_two_floats;
use super::types::{WgslFloat, float_prefix, wgsl_type};
use super::{ShaderBuilder, has_function};
use pellucid_ir::formula::{Binary, InstructionOperand, Op, Program, RowOp, Step, Unary};
use pellucid_ir::{Compute, DType};

/// The slot of this backend in the forms that a program caches ([`Program::prepared`]).
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

/// The maximum number of functions of two operands with long texts in a program: llvmpipe compiles each of them for
/// about two seconds. The third derivative of a Bessel function contains four.
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

/// The names of the values of a program while its text is generated.
#[derive(Clone, Debug)]
pub(crate) struct ProgramValues {
    /// The value of every input.
    pub(crate) inputs: Vec<String>,
    uniforms: Vec<String>,
    registers: Vec<String>,
    rows: Vec<String>,
}

impl ProgramValues {
    /// Declares the uniforms of a program ([`Parameters::declare_uniforms`]), whose other values are unknown.
    pub(crate) fn declare(
        parameters: &mut Parameters,
        program: &Program,
        first: usize,
        row_length: usize,
    ) -> ProgramValues {
        ProgramValues {
            inputs: vec![String::new(); program.inputs.len()],
            uniforms: parameters.declare_uniforms(program, first, row_length),
            registers: vec![String::new(); program.registers.len()],
            rows: vec![String::new(); program.row_registers.len()],
        }
    }

    /// Returns the expression of an operand.
    pub(crate) fn value(&self, operand: InstructionOperand) -> &str {
        match operand {
            InstructionOperand::Input(i) => &self.inputs[i as usize],
            InstructionOperand::Register(r) => &self.registers[r as usize],
            InstructionOperand::Uniform(u) => &self.uniforms[u as usize],
            InstructionOperand::Row(r) => &self.rows[r as usize],
        }
    }

    /// Sets the value of the destination of a step.
    pub(crate) fn set(&mut self, into: InstructionOperand, value: String) {
        match into {
            InstructionOperand::Register(r) => self.registers[r as usize] = value,
            InstructionOperand::Row(r) => self.rows[r as usize] = value,
            InstructionOperand::Input(i) => self.inputs[i as usize] = value,
            InstructionOperand::Uniform(u) => self.uniforms[u as usize] = value,
        }
    }

    /// Adds the lines of every step. The program is supported and has no row reductions.
    pub(crate) fn compute_steps(&mut self, shader: &mut ShaderBuilder, program: &Program) {
        for step in &program.steps {
            self.compute_step(shader, step, "");
        }
    }

    /// Adds the line of one step that is not a reduction. `row_index` is the index of the element in its row.
    pub(crate) fn compute_step(&mut self, shader: &mut ShaderBuilder, step: &Step, row_index: &str) {
        let args: Vec<&str> = step.args.iter().map(|&a| self.value(a)).collect();
        let expr = step_expr(step, &args, row_index);
        let name = shader.define(expr);
        self.set(step.into, name);
    }
}

fn step_expr(step: &Step, args: &[&str], row_index: &str) -> String {
    match (step.op, args) {
        (Op::Unary(op), [a]) => supported_unary(op, step.compute, a).unwrap_or_else(|| UNSUPPORTED.into()),
        (Op::Binary(op), [a, b]) => binary_expr(op, step.compute, a, b),
        (Op::Select, [m, a, b]) => format!("select({b}, {a}, {m})"),
        (Op::MulAdd, [a, b, c]) if step.compute == Compute::F64 => format!("d_fma({a}, {b}, {c})"),
        (Op::MulAdd, [a, b, c]) => format!("f_fma({a}, {b}, {c})"),
        (Op::Convert(to), [a]) => convert_expr(step.compute, to, a),
        (Op::Round(dtype), [a]) => round_expr(dtype, a),
        (Op::RowIndex, _) => format!("vec2<u32>({row_index}, 0u)"),
        _ => UNSUPPORTED.into(),
    }
}

/// Returns the conversion between compute types: integers wrap, floats are truncated with saturation, and every nonzero
/// value converts to true.
pub(crate) fn convert_expr(from: Compute, to: Compute, x: &str) -> String {
    use Compute::*;
    match (from, to) {
        (Mask, I32) => format!("select(0, 1, {x})"),
        (Mask, I64) => format!("vec2<u32>(select(0u, 1u, {x}), 0u)"),
        (Mask, F32) => format!("select(0.0, 1.0, {x})"),
        (I32, Mask) => format!("({x} != 0)"),
        (I32, I64) => format!("i_to_i64({x})"),
        (I32, F32) => format!("f32({x})"),
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

/// Returns x rounded through `dtype`, whose compute type is the type of x.
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

/// Returns the expression of a primitive of one operand, or `None` if shaders do not have it for this type.
fn supported_unary(op: Unary, compute: Compute, x: &str) -> Option<String> {
    use Unary::*;
    let rounding = matches!(op, Floor | Ceil | Round | Trunc);
    Some(match compute {
        Compute::Mask => match op {
            Not => format!("(!{x})"),
            _ => return None,
        },
        Compute::I32 => match op {
            Neg => format!("(0 - {x})"),
            Abs => format!("abs({x})"),
            Sign => format!("sign({x})"),
            Not => format!("(~{x})"),
            IsNan => "false".into(),
            IsFinite => "true".into(),
            _ if rounding => x.into(),
            _ => return None,
        },
        Compute::I64 => match op {
            Neg => format!("l_neg({x})"),
            Abs => format!("l_abs({x})"),
            Sign => format!("l_signum({x})"),
            Not => format!("(~{x})"),
            IsNan => "false".into(),
            IsFinite => "true".into(),
            _ if rounding => x.into(),
            _ => return None,
        },
        Compute::F32 | Compute::F64 => {
            let name = match op {
                Not => return None,
                Round => "round",
                Expm1 => "expm1",
                other => other.name(),
            };
            let function = format!("{}_{name}", float_prefix(compute));
            return has_function(&function).then(|| format!("{function}({x})"));
        }
    })
}

/// Returns the expression of a primitive of two operands. If shaders do not have it for this type, the shader does not
/// compile.
pub(crate) fn binary_expr(op: Binary, compute: Compute, x: &str, y: &str) -> String {
    supported_binary(op, compute, x, y).unwrap_or_else(|| UNSUPPORTED.into())
}

/// Returns the expression of a primitive of two operands, or `None` if shaders do not have it for this type.
fn supported_binary(op: Binary, compute: Compute, x: &str, y: &str) -> Option<String> {
    use Binary::*;
    Some(match compute {
        Compute::Mask => match op {
            And | Min => format!("({x} && {y})"),
            Or | Max => format!("({x} || {y})"),
            Xor | Ne => format!("({x} != {y})"),
            Eq => format!("({x} == {y})"),
            Lt => format!("(!{x} && {y})"),
            Le => format!("(!{x} || {y})"),
            Gt => format!("({x} && !{y})"),
            Ge => format!("({x} || !{y})"),
            _ => return None,
        },
        Compute::I32 => match op {
            Add => format!("({x} + {y})"),
            Sub => format!("({x} - {y})"),
            Mul => format!("({x} * {y})"),
            Max => format!("max({x}, {y})"),
            Min => format!("min({x}, {y})"),
            And => format!("({x} & {y})"),
            Or => format!("({x} | {y})"),
            Xor => format!("({x} ^ {y})"),
            Lt => format!("({x} < {y})"),
            Le => format!("({x} <= {y})"),
            Gt => format!("({x} > {y})"),
            Ge => format!("({x} >= {y})"),
            Eq => format!("({x} == {y})"),
            Ne => format!("({x} != {y})"),
            FloorDiv | Rem | Pow | Shl | Shr => format!("i_{}({x}, {y})", op.name()),
            _ => return None,
        },
        Compute::I64 => match op {
            Add | Sub | Mul | Max | Min | FloorDiv | Rem | Pow | Shl | Shr | Lt | Le | Eq => {
                format!("l_{}({x}, {y})", op.name())
            }
            And => format!("({x} & {y})"),
            Or => format!("({x} | {y})"),
            Xor => format!("({x} ^ {y})"),
            Gt => format!("l_lt({y}, {x})"),
            Ge => format!("l_le({y}, {x})"),
            Ne => format!("(!l_eq({x}, {y}))"),
            _ => return None,
        },
        Compute::F32 | Compute::F64 => {
            let prefix = float_prefix(compute);
            match op {
                Gt => format!("{prefix}_lt({y}, {x})"),
                Ge => format!("{prefix}_le({y}, {x})"),
                Ne => format!("(!{prefix}_eq({x}, {y}))"),
                And | Or | Xor | Shl | Shr => return None,
                // They can be translated, but drivers inline all calls, and compile the long result for minutes.
                _ if compute == Compute::F64 && has_two_floats(op.name()) => return None,
                _ => {
                    let function = format!("{prefix}_{}", op.name());
                    return has_function(&function).then(|| format!("{function}({x}, {y})"));
                }
            }
        }
    })
}

/// Returns the condition that x is larger than y, or smaller if `largest` is false. In both orders NaN precedes all
/// numbers.
pub(crate) fn precedes_expr(compute: Compute, largest: bool, x: &str, y: &str) -> String {
    let (low, high) = if largest { (y, x) } else { (x, y) };
    match compute {
        Compute::Mask => format!("(!{low} && {high})"),
        Compute::I32 => format!("({low} < {high})"),
        Compute::I64 => format!("l_lt({low}, {high})"),
        Compute::F32 | Compute::F64 => {
            let p = float_prefix(compute);
            format!("(({p}_is_nan({x}) && !{p}_is_nan({y})) || {p}_lt({low}, {high}))")
        }
    }
}

/// Returns the primitive that combines two values of a reduction.
pub(crate) fn combining_primitive(op: RowOp) -> Binary {
    match op {
        RowOp::Sum => Binary::Add,
        RowOp::Max => Binary::Max,
        RowOp::Min => Binary::Min,
    }
}

/// A running reduction of values in one invocation. Sums of `f32` also accumulate their rounding errors (Neumaier
/// 1974).
#[derive(Clone, Debug)]
pub(crate) struct Accumulator {
    op: Binary,
    compute: Compute,
    name: String,
}

impl Accumulator {
    /// Declares the variables of an accumulator, with the identity of the operation.
    pub(crate) fn declare(shader: &mut ShaderBuilder, op: Binary, compute: Compute, name: &str) -> Accumulator {
        shader.line(format!("var {name}: {} = {};", wgsl_type(compute), identity_expr(op, compute)));
        let accumulator = Accumulator { op, compute, name: name.to_string() };
        if accumulator.is_compensated() {
            shader.line(format!("var {name}_error = 0.0;"));
        }
        accumulator
    }

    /// Returns the type of the results.
    pub(crate) fn compute(&self) -> Compute {
        self.compute
    }

    fn is_compensated(&self) -> bool {
        self.op == Binary::Add && self.compute == Compute::F32
    }

    /// Adds the lines that accumulate `value`.
    pub(crate) fn accumulate(&self, shader: &mut ShaderBuilder, value: &str) {
        let name = &self.name;
        if self.is_compensated() {
            let sum = shader.define(format!("f_two_sum({name}, {value})"));
            shader.line(format!("{name} = {sum}.x;"));
            shader.line(format!("{name}_error = f_add({name}_error, {sum}.y);"));
        } else {
            shader.line(format!("{name} = {};", self.combined(name, value)));
        }
    }

    /// Returns the result. The errors of a sum that is infinite or NaN are ignored.
    pub(crate) fn result(&self) -> String {
        let name = &self.name;
        match self.is_compensated() {
            true => format!("select({name}, f_add({name}, {name}_error), f_is_finite({name}))"),
            false => name.clone(),
        }
    }

    /// Returns the combination of two results.
    pub(crate) fn combined(&self, x: &str, y: &str) -> String {
        binary_expr(self.op, self.compute, x, y)
    }
}

/// Returns the identity of an operation.
fn identity_expr(op: Binary, compute: Compute) -> &'static str {
    let is_largest = matches!(op, Binary::Min | Binary::And);
    let float = WgslFloat(compute);
    match (op, compute) {
        (Binary::Mul, Compute::F32 | Compute::F64) => float.one(),
        (Binary::Mul, Compute::I64) => "vec2<u32>(1u, 0u)",
        (Binary::Mul, _) => "1",
        (_, Compute::Mask) if is_largest => "true",
        (_, Compute::Mask) => "false",
        (Binary::Add, Compute::F32 | Compute::F64) => float.zero(),
        (Binary::Add, Compute::I64) => "vec2<u32>(0u, 0u)",
        (Binary::Add, _) => "0",
        (_, Compute::F32 | Compute::F64) if is_largest => float.infinity(),
        (_, Compute::F32 | Compute::F64) => float.negative_infinity(),
        (_, Compute::I64) if is_largest => "vec2<u32>(0xffffffffu, 0x7fffffffu)",
        (_, Compute::I64) => "vec2<u32>(0u, 0x80000000u)",
        (_, Compute::I32) if is_largest => "2147483647",
        (_, Compute::I32) => "i32(-2147483648)",
    }
}
