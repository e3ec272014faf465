//! Kernels of the public engine whose operands their families reject. Operations check their arguments before they
//! submit a kernel, but an operation outside the workspace may submit any kernel.

use pellucid::engine::kernel::{Kernel, Map, MatMul, Params, Pool, PoolPart, Scan, ScanOp, Window};
use pellucid::engine::{Array, submit};
use pellucid::{DType, Error, Formula, Result, Tensor, capture, flush, formula, lazy, ops};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn matmul() -> Kernel {
    Kernel::MatMul(MatMul { epilogue: None, params: Params::new() })
}

/// Returns an elementwise kernel of a program, without run-time parameters.
fn map(formula: &Formula) -> Kernel {
    let program = formula.uniform_program(DType::F32).expect("the formula must compile").clone();
    Kernel::Map(Map { program, params: Params::new() })
}

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype)
}

/// Kernels with operands that they reject. The last operands are the outputs.
fn rejected() -> Vec<(Kernel, Vec<Tensor>, usize)> {
    let window = Window { size: [1, 1, 2], stride: [1, 1, 0], dilation: [1; 3], before: [0; 3] };
    let huge = Window { size: [1, 1, usize::MAX], stride: [1; 3], ..window };
    let pool = |window: Window| Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Maximum });
    let pooled = || vec![zeros(&[1, 1, 6], DType::F32), zeros(&[1, 1, 5], DType::F32), zeros(&[1, 1, 5], DType::I64)];
    let product = |m: usize| vec![zeros(&[2, 3], DType::F32), zeros(&[3, 4], DType::F32), zeros(&[m, 4], DType::F32)];
    vec![
        (matmul(), product(3), 1),
        (matmul(), product(2)[1..].to_vec(), 1),
        (matmul(), vec![zeros(&[2, 2], DType::F32), zeros(&[2, 2], DType::F64), zeros(&[2, 2], DType::F32)], 1),
        (Kernel::Scan(Scan { op: ScanOp::Sum, axis: 7, reverse: false }), vec![zeros(&[3], DType::F32); 2], 1),
        (pool(window), pooled(), 2),
        (pool(huge), pooled(), 2),
        (Kernel::Copy, vec![zeros(&[2], DType::F32), zeros(&[3], DType::F32)], 1),
        (map(formula!(|x; k| x * k)), vec![zeros(&[2], DType::F32); 2], 1),
        (map(formula!(|x| x - x.row_sum())), vec![zeros(&[2, 3], DType::F32); 2], 1),
    ]
}

/// Submits a kernel that writes 1 to a counter, and then the kernel.
fn submit_after_write(kernel: &Kernel, operands: &[Tensor], outputs: usize, counter: &Tensor) -> Result<()> {
    ops::copy_(counter, &ops::add(counter, 1.0)?)?;
    let arrays: Vec<&Array> = operands.iter().map(Tensor::array).collect();
    let (inputs, outputs) = arrays.split_at(arrays.len() - outputs);
    submit(kernel, inputs, outputs)
}

#[test]
fn a_rejected_kernel_is_a_typed_error_in_every_mode_and_changes_no_operand() {
    for (kernel, operands, outputs) in rejected() {
        let counter = Tensor::from(0.0f32);
        let error = submit_after_write(&kernel, &operands, outputs, &counter).unwrap_err();
        assert_eq!(error.operation(), Some(kernel.name()), "{error}");
        // The kernel before the rejected one runs, as in eager mode.
        let deferred = lazy(|| submit_after_write(&kernel, &operands, outputs, &counter)).and_then(|()| flush());
        assert_eq!(deferred.unwrap_err(), error);
        assert_eq!(counter.item::<f32>(), 2.0);
        let step = capture(|_| submit_after_write(&kernel, &operands, outputs, &counter), &[]).map(drop);
        assert_eq!(step.unwrap_err(), error);
        assert_eq!(counter.item::<f32>(), 2.0, "a step that cannot be captured must write nothing");
        for operand in &operands {
            assert!(operand.try_to_vec::<f64>().unwrap().iter().all(|&value| value == 0.0));
        }
    }
}

#[test]
fn a_kernel_without_outputs_is_an_error() {
    let x = zeros(&[2, 2], DType::F32);
    for inputs in [&[][..], &[x.array(), x.array()]] {
        let step = capture(|_| submit(&matmul(), inputs, &[]), &[]).map(drop);
        for error in
            [submit(&matmul(), inputs, &[]), lazy(|| submit(&matmul(), inputs, &[])), step].map(Result::unwrap_err)
        {
            assert!(matches!(error, Error::InvalidArgument { op: "matmul", .. }), "{error}");
        }
    }
}

#[test]
fn the_shape_of_a_missing_output_is_an_error_at_the_callers_line() {
    let x = Tensor::from([1.0f32, 2.0]);
    let mut step = capture(|inputs| inputs[0].exp(), &[&x]).unwrap();
    let outputs = step.launch(&[&x]).unwrap();
    assert_eq!(outputs.shape(0)[..], [2]);
    let panic = catch_unwind(AssertUnwindSafe(|| outputs.shape(1).clone())).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("the payload of the panic must be a string");
    assert_eq!(text, "launch: the step has no output 1; the number of outputs is 1");
}

#[test]
fn a_wrong_number_of_inputs_is_counted_in_words() {
    let x = Tensor::from([1.0f32]);
    let mut step = capture(|inputs| inputs[0].exp(), &[&x]).unwrap();
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(step.launch(&[]).unwrap_err()),
        "launch: input 0 is missing; the step was captured for 1 input; pass inputs like those passed to capture()"
    );
    assert_eq!(
        text(step.launch(&[&x, &x]).unwrap_err()),
        "launch: input 1 is one too many; the step was captured for 1 input; pass inputs like those passed to capture()"
    );
}
