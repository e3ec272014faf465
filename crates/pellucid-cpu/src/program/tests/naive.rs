//! The scalar reference implementation, which processes one element and one instruction at a time.
//!
//! It computes each instruction by the loops of [`crate::program::loops`] on single values; the tests of that module
//! cover their results. It implements the order of reductions independently, in scalar code.

use super::{TestArray, Value};
use crate::program::loops::{self, OperandForm};
use crate::program::prepared::scalar_bits;
use pellucid_ir::formula::{Binary, Op, Program, RowOp, UniformSource};
use pellucid_ir::kernel::ReduceOp;
use pellucid_ir::{Compute, DType, Element, Scalar, bf16, f16};
use pellucid_simd::Isa;

/// Evaluates `$body` with `$T` the Rust type of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_type! { $dtype, $T => $body;
            DType::Bool => bool;
            DType::U8 => u8;
            DType::I8 => i8;
            DType::I16 => i16;
            DType::I32 => i32;
            DType::I64 => i64;
            DType::F16 => f16;
            DType::BF16 => bf16;
            DType::F32 => f32;
            DType::F64 => f64;
        }
    };
}

/// Returns the bits of a scalar as `dtype`.
pub(crate) fn encode(value: Scalar, dtype: DType) -> u64 {
    let mut bits = [0; 8];
    by_dtype!(dtype, T => {
        let v = T::from_scalar(value);
        bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&v));
    });
    u64::from_ne_bytes(bits)
}

/// Returns the scalar with these bits as `dtype`.
pub(crate) fn decode(bits: u64, dtype: DType) -> Scalar {
    by_dtype!(dtype, T => T::from_bytes(&bits.to_ne_bytes()[..size_of::<T>()])[0].to_scalar())
}

/// Returns true if the bits are a NaN of `dtype`.
pub(crate) fn is_nan(bits: u64, dtype: DType) -> bool {
    dtype.is_float() && decode(bits, dtype).to_f64().is_nan()
}

/// Computes a unary loop on one value.
fn call_unary(f: loops::UnaryLoop, a: u64) -> u64 {
    let mut out = 0u64;
    // SAFETY: both variables hold one value of at most eight bytes, and the instruction set is available.
    unsafe { f.run((&raw mut out).cast(), (&raw const a).cast(), 1) };
    out
}

/// Computes a binary primitive on one pair of values.
fn call_binary(op: Binary, compute: Compute, a: u64, b: u64) -> u64 {
    let f = loops::binary(op, compute, OperandForm::TileTile, Isa::best()).unwrap();
    let mut out = 0u64;
    // SAFETY: all variables hold one value of at most eight bytes, and the instruction set is available.
    unsafe { f.run((&raw mut out).cast(), (&raw const a).cast(), (&raw const b).cast(), 1) };
    out
}

/// Computes a ternary primitive on one value of each operand.
fn call_ternary(op: Op, compute: Compute, [a, b, c]: [u64; 3]) -> u64 {
    let all = [true; 3];
    let f = match op {
        Op::Select => loops::select(compute, all, Isa::best()),
        _ => loops::mul_add(compute, all, Isa::best()),
    };
    let mut out = 0u64;
    // SAFETY: all variables hold one value of at most eight bytes, and the instruction set is available.
    unsafe {
        f.unwrap().run((&raw mut out).cast(), (&raw const a).cast(), (&raw const b).cast(), (&raw const c).cast(), 1)
    };
    out
}

/// Converts a stored value to a compute type.
pub(crate) fn convert(bits: u64, from: DType, to: Compute) -> u64 {
    call_unary(loops::convert(from, to, Isa::best()), bits)
}

/// Converts a value to the dtype it is stored as.
pub(crate) fn store(bits: u64, from: Compute, to: DType) -> u64 {
    call_unary(loops::store(from, to, Isa::best()), bits)
}

/// Reduces values in the canonical order: chunks of 4096, in each sixteen lanes over blocks of 128, then trees.
pub(crate) fn fold(op: Binary, identity: u64, compute: Compute, values: &[u64]) -> u64 {
    let combine = |a: u64, b: u64| call_binary(op, compute, a, b);
    let chunk = |values: &[u64]| {
        let mut lanes = [identity; 16];
        for block in values.chunks(128) {
            let x = |j: usize, l: usize| block.get(j * 16 + l).copied().unwrap_or(identity);
            for (l, lane) in lanes.iter_mut().enumerate() {
                let low = combine(combine(x(0, l), x(1, l)), combine(x(2, l), x(3, l)));
                let high = combine(combine(x(4, l), x(5, l)), combine(x(6, l), x(7, l)));
                *lane = combine(*lane, combine(low, high));
            }
        }
        for step in [8, 4, 2, 1] {
            (0..step).for_each(|l| lanes[l] = combine(lanes[l], lanes[l + step]));
        }
        lanes[0]
    };
    let mut partials: Vec<u64> = values.chunks(4096).map(chunk).collect();
    if partials.is_empty() {
        partials.push(chunk(&[]));
    }
    while partials.len() > 1 {
        partials = partials.chunks(2).map(|p| if p.len() == 2 { combine(p[0], p[1]) } else { p[0] }).collect();
    }
    partials[0]
}

/// Returns the primitive and the identity of a reduction.
pub(crate) fn monoid(op: ReduceOp, compute: Compute) -> (Binary, u64) {
    let bits = |v: Scalar| scalar_bits(v, compute);
    let (low, high) = match compute {
        Compute::I32 => (Scalar::Int(i32::MIN as i64), Scalar::Int(i32::MAX as i64)),
        Compute::I64 => (Scalar::Int(i64::MIN), Scalar::Int(i64::MAX)),
        _ => (Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::INFINITY)),
    };
    match op {
        ReduceOp::Sum => (Binary::Add, bits(Scalar::Int(0))),
        ReduceOp::Prod => (Binary::Mul, bits(Scalar::Int(1))),
        ReduceOp::Max if compute == Compute::Mask => (Binary::Or, 0),
        ReduceOp::Min if compute == Compute::Mask => (Binary::And, 1),
        ReduceOp::Max => (Binary::Max, bits(low)),
        ReduceOp::Min => (Binary::Min, bits(high)),
        ReduceOp::Any => (Binary::Or, 0),
        _ => (Binary::And, 1),
    }
}

/// Runs a program on one row and returns its outputs. Inputs and outputs have `len` values, or one if they are per row.
pub(crate) fn interpret(program: &Program, params: &[Scalar], inputs: &[Vec<u64>], len: usize) -> Vec<Vec<u64>> {
    let loaded: Vec<Vec<u64>> = program
        .inputs
        .iter()
        .zip(inputs)
        .map(|(load, values)| values.iter().map(|&v| convert(v, load.storage, load.compute)).collect())
        .collect();
    let uniforms: Vec<u64> = program
        .uniforms
        .iter()
        .map(|u| match u.source {
            UniformSource::Param(p) => scalar_bits(params[p as usize], u.compute),
            UniformSource::Literal(v) => scalar_bits(v, u.compute),
            UniformSource::RowLength => scalar_bits(Scalar::Int(len as i64), u.compute),
        })
        .collect();
    let mut registers = vec![Vec::new(); program.registers.len()];
    let mut rows = vec![0; program.row_registers.len()];
    let read = |v: Value, i: usize, registers: &[Vec<u64>], rows: &[u64]| match v {
        Value::Input(k) => loaded[k as usize][if program.inputs[k as usize].per_row { 0 } else { i }],
        Value::Register(r) => registers[r as usize][i],
        Value::Uniform(u) => uniforms[u as usize],
        Value::Row(r) => rows[r as usize],
    };
    for step in &program.steps {
        let one = |i: usize| {
            let arg = |k: usize| read(step.args[k], i, &registers, &rows);
            match step.op {
                Op::Unary(op) => call_unary(loops::unary(op, step.compute, Isa::best()).unwrap(), arg(0)),
                Op::Binary(op) => call_binary(op, step.compute, arg(0), arg(1)),
                Op::Select | Op::MulAdd => call_ternary(step.op, step.compute, [arg(0), arg(1), arg(2)]),
                Op::Convert(to) => convert(arg(0), step.compute.storage(), to),
                Op::Round(dtype) => convert(store(arg(0), step.compute, dtype), dtype, step.compute),
                Op::RowIndex => i as u64,
                Op::Reduce(op) => {
                    let values: Vec<u64> = (0..len).map(|i| read(step.args[0], i, &registers, &rows)).collect();
                    let op = match op {
                        RowOp::Sum => ReduceOp::Sum,
                        RowOp::Max => ReduceOp::Max,
                        RowOp::Min => ReduceOp::Min,
                    };
                    let (op, identity) = monoid(op, step.compute);
                    fold(op, identity, step.compute, &values)
                }
            }
        };
        match step.into {
            Value::Register(r) => registers[r as usize] = (0..len).map(one).collect(),
            Value::Row(r) => rows[r as usize] = one(0),
            _ => unreachable!(),
        }
    }
    let values = |o: &pellucid_ir::formula::Store| {
        let n = if o.per_row { 1 } else { len };
        (0..n).map(|i| store(read(o.value, i, &registers, &rows), o.compute, o.storage)).collect()
    };
    program.outputs.iter().map(values).collect()
}

/// Runs an elementwise program on all elements of `shape` and returns its outputs.
pub(crate) fn map(program: &Program, params: &[Scalar], inputs: &[&TestArray], shape: &[usize]) -> Vec<Vec<u64>> {
    let n = shape.iter().product();
    let columns: Vec<Vec<u64>> = inputs.iter().map(|x| (0..n).map(|i| x.element_bits(shape, i)).collect()).collect();
    interpret(program, params, &columns, n)
}

/// Returns the flat indices of the elements of row `row`. `axes` are the axes within a row; the other axes number the
/// rows.
pub(crate) fn row_elements(shape: &[usize], axes: &[usize], row: usize) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|a| strides[a - 1] = strides[a] * shape[a]);
    let mut start = 0;
    let mut rest = row;
    for a in (0..shape.len()).rev().filter(|a| !axes.contains(a)) {
        start += rest % shape[a] * strides[a];
        rest /= shape[a];
    }
    let mut indices = vec![start];
    for &a in axes {
        indices =
            indices.iter().flat_map(|&p| (0..shape[a]).map(move |i| (p, i))).map(|(p, i)| p + i * strides[a]).collect();
    }
    indices
}
