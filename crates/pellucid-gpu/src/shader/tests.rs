//! Validates generated shaders with the shader compiler of wgpu, without an adapter, and translates them to the
//! languages of all graphics APIs.

use super::access::{CollectedWord, ElementAccess};
use super::accumulator::{Accumulator, AccumulatorOp, TieRule};
use super::axes::MergedAxes;
use super::languages::check_translations;
use super::program::{ProgramValues, combining_primitive, convert_expr, is_supported};
use super::{BindingUse, BufferRef, CombinedLanes, KernelFeatures, LIBRARY, ShaderBuilder, has_function};
use pellucid_ir::formula::{
    Binary, InstructionOperand, Load, Op, Program, RowOp, Step, Store, Unary, Uniform, UniformSource,
};
use pellucid_ir::{Compute, DType, Scalar};

const COMPUTES: [Compute; 5] = [Compute::Mask, Compute::I32, Compute::I64, Compute::F32, Compute::F64];

/// Asserts that the text is valid WGSL that translates to the languages of all graphics APIs.
#[track_caller]
fn validate(source: &str) {
    check_translations("test", source).unwrap_or_else(|e| panic!("{e}\n{source}"));
}

/// Returns the program of one step whose operands all have type `compute`.
pub(crate) fn program(op: Op, operands: usize, compute: Compute, result: Compute) -> Program {
    let load = |k: usize| {
        let compute = if op == Op::Select && k == 0 { Compute::Mask } else { compute };
        Load { storage: compute.storage(), compute, per_row: false }
    };
    let into = InstructionOperand::Register(0);
    let args = (0..operands as u8).map(InstructionOperand::Input).collect();
    Program::new(
        "test",
        (0..operands).map(load).collect(),
        vec![Uniform { source: UniformSource::Literal(Scalar::Float(0.5)), compute }],
        vec![Step { op, compute, into, args }],
        (vec![result], vec![]),
        vec![Store { value: into, compute: result, storage: result.storage(), per_row: false }],
    )
}

/// Binds a buffer with elements of type `dtype`.
fn bind(shader: &mut ShaderBuilder, usage: BindingUse, dtype: DType) -> ElementAccess {
    ElementAccess::new(shader.binding(BufferRef::Scratch(0), usage), dtype)
}

/// Returns a shader that runs a program on contiguous operands.
fn shader(program: &Program) -> ShaderBuilder {
    let mut shader = ShaderBuilder::for_threads(1);
    let inputs = program.inputs.iter().map(|input| bind(&mut shader, BindingUse::Read, input.storage));
    let inputs: Vec<ElementAccess> = inputs.collect();
    let stored = program.outputs[0];
    let output = bind(&mut shader, BindingUse::Atomic, stored.storage);
    let mut values = ProgramValues::declare(&mut shader, program, 0, 0);
    for (k, input) in program.inputs.iter().enumerate() {
        values.set_input(k, inputs[k].as_type(input.compute).define(&mut shader, "thread"));
    }
    values.compute_steps(&mut shader, program);
    output.as_type(stored.compute).store(&mut shader, values.value(stored.value), "thread");
    shader
}

#[test]
fn a_shader_that_one_language_cannot_express_is_an_error_with_its_name() {
    let source = |body: &str| {
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BufferRef::Scratch(0), BindingUse::Write);
        let value = shader.define(body);
        shader.store_word(output, "thread", &value);
        shader.finish(KernelFeatures::default())
    };
    validate(&source("thread + 1u"));
    let rejected = [("u32(f64(thread))", "MSL (Metal)"), ("thread + ", "expected")];
    for (body, reason) in rejected {
        let error = check_translations("planted", &source(body)).expect_err(body).to_string();
        assert!(error.contains("planted") && error.contains(reason), "{error}");
    }
}

#[test]
fn every_supported_instruction_is_a_valid_shader() {
    let mut count = 0;
    for compute in COMPUTES {
        let unary = Unary::ALL.map(|op| (Op::Unary(op), 1, if op.gives_mask() { Compute::Mask } else { compute }));
        let binary = Binary::ALL.map(|op| (Op::Binary(op), 2, if op.gives_mask() { Compute::Mask } else { compute }));
        let others = [(Op::Select, 3, compute), (Op::MulAdd, 3, compute)];
        let converts = COMPUTES.map(|to| (Op::Convert(to), 1, to));
        let rounds = DType::ALL.map(|dtype| (Op::Round(dtype), 1, compute));
        let all = unary.into_iter().chain(binary).chain(others).chain(converts).chain(rounds);
        for (op, operands, result) in all {
            let program = program(op, operands, compute, result);
            if is_supported(&program) {
                validate(&shader(&program).finish(KernelFeatures::default()));
                count += 1;
            }
        }
    }
    assert!(count >= 150, "only {count} instructions are supported");
}

#[test]
fn programs_with_many_series_are_not_supported() {
    let with_length = |n: usize| {
        let one = program(Op::Binary(Binary::Zeta), 2, Compute::F32, Compute::F32);
        let steps = vec![one.steps[0].clone(); n];
        Program::new(
            "test",
            one.inputs.to_vec(),
            one.uniforms.to_vec(),
            steps,
            (vec![Compute::F32], vec![]),
            one.outputs.to_vec(),
        )
    };
    assert!(is_supported(&with_length(16)) && !is_supported(&with_length(17)));
}

#[test]
fn a_fused_multiply_add_of_the_adapter_is_one_call() {
    let program = program(Op::MulAdd, 3, Compute::F32, Compute::F32);
    let source = shader(&program).finish(KernelFeatures { fused: true, ..Default::default() });
    validate(&source);
    assert!(source.contains("fma(a, b, c)") && !source.contains("f_two_product"));
    assert!(shader(&program).finish(KernelFeatures::default()).contains("f_fma_in_range"));
}

#[test]
fn conversions_of_half_precision_by_instructions_are_valid() {
    let native = KernelFeatures { native_f16: true, ..Default::default() };
    let rounded = program(Op::Round(DType::F16), 1, Compute::F32, Compute::F32);
    let source = shader(&rounded).finish(native);
    validate(&source);
    assert!(source.starts_with("enable f16;") && !source.contains("by_bits"));
    for (from, to) in [(DType::F16, DType::F32), (DType::F32, DType::F16)] {
        let mut shader = ShaderBuilder::default();
        let (input, output) = (bind(&mut shader, BindingUse::Read, from), bind(&mut shader, BindingUse::Atomic, to));
        let element = input.load(&shader, "thread");
        output.store(&mut shader, &element, "thread");
        let source = shader.finish(native);
        validate(&source);
        assert!(source.contains("pack2x16float(") && !source.contains("by_bits"));
    }
}

#[test]
fn functions_with_two_floats_are_valid() {
    for name in
        ["f_zeta", "f_igamma", "f_igammac", "f_polygamma", "f_bessel_j", "f_bessel_y", "f_bessel_k", "f_bessel_ke"]
    {
        let mut shader = ShaderBuilder::default();
        shader.line(format!("// {name}("));
        let source = shader.finish(KernelFeatures::default());
        validate(&source);
        assert!(!source.contains("d_mul("), "{name} must not compute with `f64`");
    }
}

#[test]
fn every_function_of_the_library_is_valid() {
    for name in LIBRARY.keys() {
        let mut shader = ShaderBuilder::default();
        // A comment is enough to include a function.
        shader.line(format!("// {name}("));
        validate(&shader.finish(KernelFeatures::default()));
    }
    assert!(LIBRARY.len() > 60);
}

#[test]
fn a_function_that_the_language_defines_brings_no_other_functions() {
    let mut shader = ShaderBuilder::default();
    shader.line("let sum = d_add(x, y);");
    let source = shader.source(KernelFeatures::default());
    let functions = |is_native: fn(&str) -> bool| -> Vec<(String, bool)> {
        source.library(is_native).into_iter().map(|function| (function.name, function.source.is_some())).collect()
    };
    assert_eq!(functions(|name| name == "d_add"), [("d_add".to_string(), false)]);
    let translated = functions(|_| false);
    assert!(translated.len() > 1 && translated.contains(&("d_add".to_string(), true)), "{translated:?}");
}

#[test]
fn functions_without_calls_of_libm_are_translated() {
    let names = "
        f_exp f_exp2 f_expm1 f_ln f_ln_1p f_log2 f_log10 f_tanh f_sigmoid f_erf f_asin f_acos f_atan
        f_sin_fast f_cos_fast f_tan_fast f_sin f_tan f_sinh f_pow f_erfinv d_exp d_ln d_erf d_tanh d_sigmoid
        d_ndtri f_sin_pi f_cos_pi f_ndtr f_ldexp d_ndtr d_ldexp d_sin_pi d_cos_pi f_atan2 d_atan d_pow d_rem
        d_floor_div d_sin_fast f_lgamma d_digamma d_bessel_i f_bessel_ie f_zeta f_igamma f_igammac
        f_polygamma t_digamma f_bessel_j f_bessel_y f_bessel_k f_bessel_ke t_lgamma
    ";
    for name in names.split_whitespace() {
        assert!(has_function(name), "{name}: {:?}", super::translate::translated(name));
    }
    for name in ["d_sin", "d_asin", "d_bessel_j"] {
        assert!(super::translate::translated(name).is_err(), "{name} calls libm, which is not translated");
    }
}

#[test]
fn loads_and_stores_of_all_dtypes_are_valid() {
    for from in DType::ALL {
        for to in DType::ALL {
            let mut shader = ShaderBuilder::default();
            let (input, output) =
                (bind(&mut shader, BindingUse::Read, from), bind(&mut shader, BindingUse::Atomic, to));
            shader.line("var word = 0u;");
            let space = MergedAxes::new(&[2, 3, 4], &[vec![24, 1, 6], vec![12, 4, 1]]);
            let starts = [String::from("0u"), String::from("5u")];
            let offsets = space.declare(&mut shader).offsets(&mut shader, "thread", &starts);
            let value = input.define(&mut shader, &offsets[0]);
            let output = output.as_type(from.compute());
            output.store(&mut shader, &value, &offsets[1]);
            if to.size() < 4 {
                let word = CollectedWord { variable: "word", lane: "local", is_last: "local == 3u" };
                output.store_collected(&mut shader, &value, &offsets[1], word);
            }
            validate(&shader.finish(KernelFeatures::default()));
        }
    }
}

#[test]
fn accumulators_are_valid() {
    let folds = [RowOp::Sum, RowOp::Max, RowOp::Min].map(|op| AccumulatorOp::Fold(combining_primitive(op)));
    let arg = |ties| AccumulatorOp::Arg { largest: ties == TieRule::Later, ties };
    let args = [TieRule::Earlier, TieRule::Later, TieRule::LowestIndex].map(arg);
    for (compute, subgroups) in COMPUTES.into_iter().flat_map(|compute| [(compute, false), (compute, true)]) {
        for reduction in folds.into_iter().chain(args) {
            if (compute, reduction) == (Compute::Mask, folds[0])
                || compute == Compute::Mask && args.contains(&reduction)
            {
                continue;
            }
            let mut shader = ShaderBuilder::default();
            let output = bind(&mut shader, BindingUse::Write, DType::I32);
            let partial = shader.binding(BufferRef::Scratch(1), BindingUse::Write);
            let accumulator = Accumulator::declare(&mut shader, reduction, compute, "sum");
            let value = shader.define(convert_expr(Compute::I32, compute, "bitcast<i32>(thread)"));
            accumulator.accumulate(&mut shader, &value, "local");
            accumulator.store_partial(&mut shader, partial, "group");
            accumulator.accumulate_partial(&mut shader, partial, "group");
            let result =
                accumulator.combine_in_workgroup(&mut shader, "total", CombinedLanes { count: "params[2]", subgroups });
            let result_compute = if args.contains(&reduction) { Compute::I64 } else { compute };
            output.as_type(result_compute).store(&mut shader, &result, "thread");
            validate(&shader.finish(KernelFeatures::default()));
        }
    }
}

#[test]
fn neighbouring_axes_merge_if_all_operands_traverse_them_with_one_stride() {
    let space = MergedAxes::new(&[2, 1, 3, 4], &[vec![12, 7, 4, 1], vec![12, 0, 4, 1]]);
    assert_eq!(space, MergedAxes { dims: vec![24], strides: vec![vec![1], vec![1]] });
    let space = MergedAxes::new(&[2, 3, 4], &[vec![12, 4, 1], vec![0, 0, 1]]);
    assert_eq!(space, MergedAxes { dims: vec![6, 4], strides: vec![vec![4, 1], vec![0, 1]] });
    let space = MergedAxes::new(&[2, 3], &[vec![-3, -1]]);
    assert_eq!(space, MergedAxes { dims: vec![6], strides: vec![vec![-1]] });
}
