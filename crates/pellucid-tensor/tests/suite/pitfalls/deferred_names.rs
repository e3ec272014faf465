//! The errors of kernels in deferred steps name the operation that was called, as in eager mode.

use pellucid_tensor::ops::{self, AvgPoolDivisor, PoolOptions, RecurrenceOptions, RecurrentWeights, RnnNonlinearity};
use pellucid_tensor::{DType, Result, Tensor, capture, grad_one, lazy};

type Call = fn(&Tensor) -> Result<Tensor>;

/// Compares the error of a call in three modes: eager, lazy and captured. It must begin with the name of the call. The
/// step is captured with `valid`.
#[track_caller]
fn assert_named(
    op: &str,
    call: impl Fn(&Tensor) -> Result<Tensor> + Clone + Send + 'static,
    valid: &Tensor,
    x: &Tensor,
) {
    let read = |y: Tensor| y.try_to_bytes().map(drop);
    let eager = call(x).and_then(read).expect_err(op).to_string();
    assert!(eager.starts_with(&format!("{op}: ")), "{op}, eager: {eager}");
    let inside = lazy(|| call(x).and_then(read)).expect_err(op).to_string();
    assert_eq!(inside, eager, "{op}, lazy");
    let other = lazy(|| call(x)).and_then(|y| ops::eq(&y, &y)).and_then(read).expect_err(op).to_string();
    assert_eq!(other, eager, "{op}, lazy, read by another operation");
    let step = {
        let call = call.clone();
        capture(move |inputs| call(&inputs[0]), &[valid])
    };
    let captured = step.and_then(|mut step| step.launch(&[x]).map(drop)).expect_err(op).to_string();
    assert_eq!(captured, eager, "{op}, captured");
}

#[test]
fn booleans_that_a_kernel_rejects_name_the_call() {
    let calls: [(&str, usize, Call); 17] = [
        ("avg_pool1d", 1, |x| ops::avg_pool1d(x, PoolOptions::new(2), AvgPoolDivisor::Window)),
        ("avg_pool2d", 2, |x| ops::avg_pool2d(x, PoolOptions::new(2), AvgPoolDivisor::Inside)),
        ("avg_pool3d", 3, |x| ops::avg_pool3d(x, PoolOptions::new(2), AvgPoolDivisor::Number(2.0))),
        ("conv1d", 1, |x| ops::conv1d(x, x, None, Default::default())),
        ("conv2d", 2, |x| ops::conv2d(x, x, None, Default::default())),
        ("conv_transpose3d", 3, |x| ops::conv_transpose3d(x, x, None, Default::default())),
        ("local_response_norm", 1, |x| ops::local_response_norm(x, 2, 1.0, 0.75, 1.0)),
        ("matmul", 0, |x| ops::matmul(x, x)),
        ("linear", 0, |x| ops::linear(x, x, None)),
        ("scaled_dot_product_attention", 1, |x| ops::scaled_dot_product_attention(x, x, x, Default::default())),
        ("solve", 0, |x| ops::solve(x, x, true)),
        ("lu_factor", 0, |x| ops::lu_factor(x).map(|(packed, _)| packed)),
        ("qr", 0, |x| ops::qr(x, Default::default()).map(|(q, _)| q)),
        ("cholesky", 0, |x| ops::cholesky(x, false)),
        ("matrix_exp", 0, ops::matrix_exp),
        ("var", 0, |x| ops::var(x, ..)),
        ("quantile", 0, |x| ops::quantile(x, 0.5, 0, ops::QuantileInterpolation::Linear)),
    ];
    for (op, spatial, call) in calls {
        let shape = [&[2, 2][..], &vec![2; spatial]].concat();
        let x = Tensor::zeros(&shape[..], DType::Bool);
        assert_named(op, call, &x, &x);
    }
}

fn recurrent_layer(op: &str, lengths: &Tensor, reverse: bool, is_tracked: bool) -> Result<Tensor> {
    let gates = match op {
        "rnn" => 1,
        "gru" => 3,
        _ => 4,
    };
    let x = Tensor::ones([3, 2, 2], DType::F32).requires_grad_(is_tracked);
    let (ih, hh) = (Tensor::ones([2 * gates, 2], DType::F32), Tensor::ones([2 * gates, 2], DType::F32));
    let weights = RecurrentWeights { weight_ih: &ih, weight_hh: &hh, bias_ih: None, bias_hh: None, weight_hr: None };
    let options = RecurrenceOptions { reverse, lengths: Some(lengths) };
    let y = match op {
        "rnn" => ops::rnn(&x, weights, None, RnnNonlinearity::Tanh, options)?.0,
        "gru" => ops::gru(&x, weights, None, options)?.0,
        _ => ops::lstm(&x, weights, None, options)?.0,
    };
    match is_tracked {
        true => pellucid_tensor::grad_one(&ops::sum(&y, ..)?, &x, Default::default()),
        false => Ok(y),
    }
}

#[test]
fn lengths_that_a_recurrent_kernel_rejects_name_the_call() {
    let valid = Tensor::from([3i64, 1]);
    for op in ["rnn", "gru", "lstm"] {
        for (reverse, is_tracked) in [(false, false), (true, false), (false, true)] {
            for wrong in [4i64, -1] {
                let call = move |lengths: &Tensor| recurrent_layer(op, lengths, reverse, is_tracked);
                assert_named(op, call, &valid, &Tensor::from([2i64, wrong]));
            }
        }
    }
}

/// A launch with wrong lengths fails before the step writes a tensor, even if the write does not need the layer.
#[test]
fn wrong_lengths_leave_the_state_of_a_step_unchanged() {
    let count = Tensor::from([0.0f32; 4]);
    let valid = Tensor::from([3i64, 1]);
    let counted = count.clone();
    let step = move |inputs: &[Tensor]| {
        let y = recurrent_layer("lstm", &inputs[0], false, false)?;
        ops::copy_(&counted, &ops::add(&counted, 1.0)?)?;
        Ok::<Tensor, pellucid_tensor::Error>(y)
    };
    let mut step = capture(step, &[&valid]).unwrap();
    let before = count.to_vec::<f32>();
    assert!(step.launch(&[&Tensor::from([9i64, 1])]).is_err());
    assert_eq!(count.to_vec::<f32>(), before);
    step.launch(&[&valid]).unwrap();
    assert_eq!(count.to_vec::<f32>(), before.iter().map(|n| n + 1.0).collect::<Vec<_>>());
}

#[test]
fn pivots_that_a_kernel_rejects_name_the_call() {
    let valid = Tensor::from([1i32, 2]);
    let calls: [(&str, Call); 4] = [
        ("lu_solve", |pivots| {
            let a = Tensor::eye(2, DType::F64);
            ops::lu_solve(&a, pivots, &a, true, false)
        }),
        ("lu_solve", |pivots| {
            let a = Tensor::eye(2, DType::F64);
            ops::lu_solve(&a, pivots, &a, false, true)
        }),
        ("lu_unpack", |pivots| ops::lu_unpack(&Tensor::eye(2, DType::F64), pivots).map(|(p, _, _)| p)),
        ("ldl_solve", |pivots| {
            let a = Tensor::eye(2, DType::F64);
            ops::ldl_solve(&a, pivots, &a)
        }),
    ];
    for (op, call) in calls {
        for wrong in [[1i32, 3], [0, 1], [9, 9]] {
            assert_named(op, call, &valid, &Tensor::from(wrong));
        }
    }
}

/// The memory of lists and steps is allocated when they run.
#[test]
fn memory_errors_name_an_operation() {
    let calls: [(&str, Call); 3] = [
        ("exp", |x| ops::exp(&ops::broadcast_to(x, [1usize << 46])?)),
        ("cumsum", |x| ops::cumsum(&ops::broadcast_to(x, [1usize << 46])?, 0)),
        ("matmul", |x| {
            let wide = ops::broadcast_to(x, [1usize << 23, 1])?;
            ops::matmul(&wide, &ops::transpose(&wide, 0, 1)?)
        }),
    ];
    let x = Tensor::ones([1], DType::F32);
    for (op, call) in calls {
        let eager = call(&x).expect_err(op).to_string();
        assert!(eager.starts_with(&format!("{op}: out of memory: a tensor of shape ")), "{eager}");
        let read = |y: Tensor| y.i(0).try_to_bytes().map(drop);
        let deferred = lazy(|| call(&x).and_then(read)).expect_err(op).to_string();
        assert!(deferred.starts_with(&format!("{op}: out of memory: a tensor of shape [")), "{deferred}");
        let step = capture(move |inputs| call(&inputs[0]).and_then(|y| ops::sum(&ops::cumsum(&y, 0)?, ..)), &[&x]);
        let captured = step.and_then(|mut step| step.launch(&[&x]).map(drop)).expect_err(op).to_string();
        assert!(captured.contains(": out of memory: a "), "{captured}");
        assert!(!captured.starts_with("out of memory"), "{captured}");
    }
}

#[test]
fn windows_in_the_padding_name_the_call() {
    let pool = |size: usize, padding: usize, dilation: usize| PoolOptions {
        padding: padding.into(),
        dilation: dilation.into(),
        ..PoolOptions::new(size)
    };
    let x = Tensor::ones([1, 1, 1], DType::F32);
    for (size, padding, dilation, is_valid) in [(2, 1, 3, false), (2, 1, 1, true), (3, 1, 1, true), (3, 2, 2, true)] {
        let call = |x: &Tensor| ops::max_pool1d(x, pool(size, padding, dilation)).map(|(y, _)| y);
        match (call(&x), lazy(|| call(&x).and_then(|y| y.try_to_vec::<f32>()))) {
            (Ok(y), Ok(deferred)) if is_valid => assert_eq!(y.to_vec::<f32>(), deferred),
            (Err(eager), Err(deferred)) if !is_valid => {
                assert_eq!(eager.to_string(), deferred.to_string());
                assert!(eager.to_string().starts_with("max_pool1d: a window "), "{eager}");
            }
            other => panic!("{size}, {padding}, {dilation}: {other:?}"),
        }
    }
}

/// The gradient of the values alone needs the index.
#[test]
fn an_index_that_a_gradient_needs_names_the_call() {
    let index = Tensor::from([0i64, 9]);
    type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let calls: [(&str, Call); 4] = [
        ("scatter", |v, i| ops::scatter(&Tensor::zeros([4], DType::F32), 0, i, v)),
        ("scatter_add", |v, i| ops::scatter_add(&Tensor::zeros([4], DType::F32), 0, i, v)),
        ("put", |v, i| ops::put(&Tensor::zeros([4], DType::F32), i, v, false)),
        ("scatter_reduce", |v, i| {
            ops::scatter_reduce(&Tensor::zeros([4], DType::F32), 0, i, v, ops::ScatterReduceOp::Max, true)
        }),
    ];
    for (op, call) in calls {
        let values = Tensor::ones([2], DType::F32).requires_grad_(true);
        let step = |_: &[Tensor]| {
            let y = call(&values, &index)?;
            grad_one(&ops::sum(&y, ..)?, &values, Default::default())
        };
        let error = capture(step, &[]).and_then(|mut step| step.launch(&[]).map(drop)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{op}: index 9 is out of bounds")), "{error}");
    }
}

#[test]
fn versions_in_errors_are_equal_in_all_modes() {
    let modified = || {
        let w = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
        let h = &w * 1.0;
        let y = h.square();
        h.copy_(&(&h * 2.0));
        y.sum(..).try_backward().expect_err("the saved value is modified").to_string()
    };
    let eager = modified();
    assert!(eager.contains("version 0, now 1"), "{eager}");
    assert_eq!(lazy(modified), eager);
    let captured = std::sync::Mutex::new(String::new());
    let record = |_: &[Tensor]| *captured.lock().unwrap() = modified();
    capture(record, &[]).unwrap();
    assert_eq!(captured.into_inner().unwrap(), eager);
}
