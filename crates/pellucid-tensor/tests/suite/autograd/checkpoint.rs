//! Checkpoints give the same results with less memory; anomaly mode.

use crate::support::leaf;
use crate::table::devices::toy;
use pellucid_tensor::{
    BackwardOptions, DType, Device, Error, Generator, GradOptions, Tensor, capture, checkpoint, detect_anomaly, grad,
    lazy, manual_seed, ops,
};

fn cubed(x: &[Tensor]) -> pellucid_tensor::Result<Vec<Tensor>> {
    Ok(vec![x[0].pow(3.0) * &x[1], x[0].sin()])
}

/// The gradient of a leaf that is passed twice is the sum of the gradients of both inputs, and is added only once.
#[test]
fn a_leaf_that_is_passed_twice() {
    let x = Tensor::from([0.5f64, 2.0]).requires_grad_(true);
    let f = |x: &[Tensor]| Ok(vec![&x[0] * 3.0 + (&x[1] * &x[1]) * 5.0]);
    for same in [x.clone(), x.detach().requires_grad_(true)] {
        let y = checkpoint(f, &[&x, &same]).unwrap().remove(0);
        let again = GradOptions { create_graph: true, ..Default::default() };
        let first = grad(&[&y.sum(..)], &[&x, &same], again).unwrap();
        let is_twice = x.id() == same.id();
        let expected = if is_twice { [8.0, 23.0] } else { [3.0, 3.0] };
        assert_eq!(first[0].to_vec::<f64>(), expected);
        let second = grad(&[&first[1].sum(..)], &[&same], GradOptions::default()).unwrap().remove(0);
        assert_eq!(second.to_vec::<f64>(), [10.0, 10.0]);
    }
}

#[test]
fn derivatives_of_every_order_equal_those_without_checkpoint() {
    let x = Tensor::from([0.7f64, -0.4]).requires_grad_(true);
    let w = Tensor::from([1.3f64, 0.2]).requires_grad_(true);
    let orders = |through: bool| -> Vec<Vec<f64>> {
        // These inputs are not leaves: gradients flow through them.
        let (a, b) = (&x * 2.0, w.exp());
        let y = if through { checkpoint(cubed, &[&a, &b]).unwrap() } else { cubed(&[a, b]).unwrap() };
        let mut value = (&y[0] * &y[1]).sum(..);
        let mut found = vec![value.to_vec::<f64>()];
        for _ in 0..3 {
            let again = GradOptions { create_graph: true, ..Default::default() };
            let gradients = grad(&[&value], &[&x, &w], again).unwrap();
            gradients.iter().for_each(|g| found.push(g.to_vec::<f64>()));
            value = gradients.iter().map(|g| (g * g).sum(..)).reduce(|a, b| a + b).unwrap();
        }
        found
    };
    let (plain, through) = (orders(false), orders(true));
    for (a, b) in plain.iter().flatten().zip(through.iter().flatten()) {
        assert!(
            (a - b).abs() <= 1e-9 * a.abs().max(1.0),
            "the gradients differ: {plain:?} of the plain function, {through:?} of the checkpoint"
        );
    }
}

#[test]
fn recomputation_draws_the_same_numbers_and_the_stream_advances() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::ones([64], DType::F64).requires_grad_(true);
    let drop = |x: &[Tensor]| Ok(vec![ops::dropout(&x[0], 0.5)?]);
    let run = |through: bool| {
        manual_seed(11);
        x.zero_grad();
        let y = if through { checkpoint(drop, &[&x]).unwrap() } else { drop(std::slice::from_ref(&x)).unwrap() };
        let after = Tensor::rand([4], DType::F64).to_vec::<f64>();
        y[0].backward();
        let later = Tensor::rand([4], DType::F64).to_vec::<f64>();
        (y[0].to_vec::<f64>(), x.grad().unwrap().to_vec::<f64>(), after, later)
    };
    let (plain, through) = (run(false), run(true));
    assert_eq!(plain, through);
    assert_eq!(through.0, through.1, "the result and its gradient at ones must be equal: 0, or the scale");
}

#[test]
fn a_closure_may_use_a_leaf_that_is_also_an_input_but_no_other() {
    let x = Tensor::from([2.0f64]).requires_grad_(true);
    let w = Tensor::from([3.0f64]).requires_grad_(true);
    let own = w.clone();
    let y = checkpoint(move |x| Ok(vec![&x[0] * &own]), &[&x, &w]).unwrap();
    y[0].backward();
    assert_eq!((x.grad().unwrap().item::<f64>(), w.grad().unwrap().item::<f64>()), (3.0, 2.0));
    let own = w.clone();
    let lost = checkpoint(move |x| Ok(vec![&x[0] * &own]), &[&x]);
    assert!(matches!(lost, Err(Error::InvalidArgument { .. })));
    let before = &w * 2.0;
    let lost = checkpoint(move |x| Ok(vec![&x[0] * &before]), &[&x]);
    assert!(matches!(lost, Err(Error::InvalidArgument { .. })));
    let integers = checkpoint(|x| Ok(vec![x[0].to_dtype(DType::I64)]), &[&x]);
    assert!(matches!(integers, Err(Error::InvalidArgument { .. })));
}

#[test]
fn untracked_inputs_and_errors_pass_through() {
    let (x, index) = (Tensor::from([1.0f64, 2.0]).requires_grad_(true), Tensor::from([1i64]));
    let y = checkpoint(|x| Ok(vec![ops::index_select(&x[0], 0, &x[1])?]), &[&x, &index]).unwrap();
    y[0].backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [0.0, 1.0]);
    assert!(!checkpoint(|x| Ok(vec![x[0].exp()]), &[&x.detach()]).unwrap()[0].requires_grad());
    let rejected = checkpoint(|x| Ok(vec![ops::reshape(&x[0], [3])?]), &[&x]);
    assert!(matches!(rejected, Err(Error::ShapeMismatch { .. })));
}

#[test]
fn checkpoints_can_be_deferred_and_captured() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::from([0.3f64, 0.6]).requires_grad_(true);
    let step = || {
        x.zero_grad();
        let y = checkpoint(|x| Ok(vec![ops::dropout(&x[0].exp(), 0.5)?]), &[&x]).unwrap();
        y[0].backward();
        x.grad().unwrap()
    };
    manual_seed(3);
    let eager = step().to_vec::<f64>();
    manual_seed(3);
    assert_eq!(lazy(step).to_vec::<f64>(), eager);
    manual_seed(3);
    let mut captured = capture(|_: &[Tensor]| vec![step()], &[]).unwrap();
    assert_eq!(captured.launch(&[]).unwrap().to_tensor(0).to_vec::<f64>(), eager);
}

#[test]
fn anomaly_mode_names_the_operation_that_produced_nan() {
    let x = Tensor::from([-1.0f64, 4.0]).requires_grad_(true);
    assert!(x.sqrt().to_vec::<f64>()[0].is_nan());
    {
        let _guard = detect_anomaly();
        assert!(matches!(ops::sqrt(&x), Err(Error::Anomaly { op: "sqrt", node: None, .. })));
        // An operation with a NaN input is not reported.
        let nan = Tensor::from([f64::NAN]);
        assert!(ops::exp(&nan).is_ok());
        assert!(matches!(
            ops::matmul(&Tensor::from([[f64::INFINITY]]), &Tensor::from([[0.0]])),
            Err(Error::Anomaly { .. })
        ));
        assert!(lazy(|| ops::sqrt(&x)).is_ok(), "anomaly mode must not check deferred operations");
    }
    assert!(ops::sqrt(&x).is_ok(), "anomaly mode must end when its guard is dropped");
}

#[test]
fn anomaly_mode_names_the_line_of_the_forward_call() {
    let x = Tensor::from([0.0f64, 1.0]).requires_grad_(true);
    // The derivative of √x at 0 is ∞.
    let mask = Tensor::from([0.0, 1.0]);
    let line = |y: Tensor| match (y * &mask).sum(..).try_backward_with(BackwardOptions::default()) {
        Err(Error::Anomaly { location, .. }) => location,
        other => panic!("{other:?}"),
    };
    let expected = |line: u32| format!("{}:{line}:", file!());
    let before = x.sqrt();
    let _guard = detect_anomaly();
    assert_eq!(line(before), None, "a forward call before anomaly mode must have no location");
    let (method, at) = (x.sqrt(), line!());
    assert!(line(method).unwrap().contains(&expected(at)));
    let (operator, at) = (x.i(1) * &Tensor::from(f64::INFINITY), line!());
    let chosen = ops::where_(&Tensor::from(false), &operator, 0.0).unwrap();
    let error = chosen.try_backward_with(BackwardOptions::default()).unwrap_err();
    assert!(error.to_string().contains(&expected(at)), "{error}");
    let (function, at) = (ops::sqrt(&x).unwrap(), line!());
    let found = line(function).unwrap();
    assert!(found.contains(&format!("checkpoint.rs:{at}")), "{found}");
}

#[test]
fn anomaly_mode_names_the_operation_of_a_backward_pass_and_leaves_no_gradient() {
    let x = Tensor::from([0.0f64, 1.0]).requires_grad_(true);
    // The derivative of √x at 0 is ∞, and ∞·0 is NaN.
    let y = (x.sqrt() * Tensor::from([0.0, 1.0])).sum(..);
    let guard = detect_anomaly();
    let error = y.try_backward_with(BackwardOptions { retain_graph: true, ..Default::default() }).unwrap_err();
    assert!(matches!(error, Error::Anomaly { node: Some("sqrt"), .. }), "{error}");
    assert!(error.to_string().contains("in the backward pass of `sqrt`"));
    assert!(x.grad().is_none());
    drop(guard);
    y.backward();
    assert!(x.grad().unwrap().to_vec::<f64>()[0].is_nan());
}

/// A checkpoint replaces an input that is not a leaf by a new leaf. A tracked write into an external tensor would lose
/// the gradient, because its history would end at that leaf.
#[test]
fn a_tracked_write_into_an_external_tensor_is_an_error() {
    let x = leaf([1.0, 2.0, 3.0]);
    let writing = |b: &Tensor, input: &Tensor| {
        let b = b.clone();
        let f = move |x: &[Tensor]| {
            // Tensors that the function creates may be written.
            let own = Tensor::from([0.0, 0.0, 0.0]);
            ops::copy_(&own, &x[0].cos())?;
            ops::copy_(&b, &x[0].sin())?;
            Ok(vec![x[0].square() + &own])
        };
        checkpoint(f, &[input])
    };
    let b = Tensor::from([0.0, 0.0, 0.0]);
    let error = writing(&b, &(&x * 1.0)).unwrap_err();
    assert!(error.to_string().contains("from outside"), "{error}");
    // An input that is a leaf is not replaced, so the write is recorded correctly.
    let b = Tensor::from([0.0, 0.0, 0.0]);
    let y = writing(&b, &x).unwrap();
    let gradient = grad(&[&(y[0].sum(..) + b.sum(..))], &[&x], GradOptions::default()).unwrap().remove(0);
    for (g, x) in gradient.to_vec::<f64>().into_iter().zip([1.0f64, 2.0, 3.0]) {
        assert!((g - (2.0 * x - x.sin() + x.cos())).abs() < 1e-15);
    }
    // Tensors that the function creates may also be returned.
    let f = |x: &[Tensor]| {
        let own = Tensor::from([0.0, 0.0, 0.0]);
        ops::copy_(&own.narrow(0, 0, 1), &x[0].narrow(0, 0, 1).square())?;
        Ok(vec![own.narrow(0, 0, 2), own])
    };
    let y = checkpoint(f, &[&(&x * 1.0)]).unwrap();
    let gradient = grad(&[&(y[0].sum(..) + y[1].sum(..))], &[&x], GradOptions::default()).unwrap().remove(0);
    assert_eq!(gradient.to_vec::<f64>(), [4.0, 0.0, 0.0]);
}

/// A checkpoint saves the random number states only of the devices on which its function draws.
#[test]
fn checkpoints_are_captured_on_every_device() {
    for device in [Device::cpu(), toy(0), toy(1)] {
        let generator = Generator::new(5);
        let _random = generator.scope();
        // The generator has states on several devices.
        for other in [Device::cpu(), toy(0), toy(1)] {
            ops::dropout(&Tensor::ones([2], DType::F32).to(other), 0.5).unwrap();
        }
        let x = Tensor::from([0.5f64, 1.5, -0.25, 2.0]).to(device).requires_grad_(true);
        let step = || {
            let f = |x: &[Tensor]| {
                let inner = checkpoint(|x| Ok(vec![ops::dropout(&x[0].sin(), 0.5)?]), &[&x[0]])?;
                Ok(vec![ops::dropout(&x[0].exp(), 0.5)? + &inner[0]])
            };
            let y = checkpoint(f, &[&x])?.remove(0);
            let again = GradOptions { create_graph: true, ..Default::default() };
            let first = grad(&[&y.sum(..)], &[&x], again)?.remove(0);
            let second = grad(&[&first.sum(..)], &[&x], GradOptions::default())?.remove(0);
            Ok::<_, Error>(vec![y.detach(), first.detach(), second])
        };
        let state = generator.state_on(device).unwrap().copy();
        let eager: Vec<Vec<f64>> = step().unwrap().iter().map(|y| y.to_vec()).collect();
        let others: Vec<_> = generator.states().into_iter().map(|(d, s)| (d, s.to_vec::<i64>())).collect();
        generator.state_on(device).unwrap().copy_(&state);
        let mut captured = capture(|_: &[Tensor]| step(), &[]).unwrap();
        let outputs = captured.launch(&[]).unwrap();
        assert_eq!((0..3).map(|k| outputs.to_vec::<f64>(k)).collect::<Vec<_>>(), eager, "{device}");
        // Neither the gradients nor the capture advance any state beyond the forward pass.
        let after: Vec<_> = generator.states().into_iter().map(|(d, s)| (d, s.to_vec::<i64>())).collect();
        assert_eq!(after, others, "{device}");
    }
}

/// The check reads an element that is repeated along an axis once.
#[test]
fn broadcast_operands_are_checked_for_nan_in_their_own_size() {
    let _guard = detect_anomaly();
    let x = Tensor::from([[0.5f32]]);
    assert!(matches!(ops::tile(&x, [1usize << 40]), Err(Error::OutOfMemory { op: "tile", .. })));
    let huge = x.broadcast_to([1 << 30, 1]);
    assert_eq!(huge.narrow(0, 5, 2).exp().to_vec::<f32>(), [0.5f32.exp(); 2]);
    let error = ops::log(&x.neg().broadcast_to([4, 3])).unwrap_err();
    assert!(matches!(error, Error::Anomaly { op: "log", .. }), "{error}");
}

/// A function that returns fewer results when it runs again would lose gradients.
#[test]
fn another_number_of_results_is_an_error() {
    let runs = std::sync::atomic::AtomicUsize::new(0);
    let f = move |x: &[Tensor]| {
        let all = vec![x[0].square(), x[0].exp()];
        let kept = 2 - runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(1);
        Ok(all.into_iter().take(kept).collect())
    };
    let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
    let y = checkpoint(f, &[&x]).unwrap();
    let error = y[1].sum(..).try_backward().unwrap_err();
    assert!(error.to_string().contains("2 results at first, and 1"), "{error}");
}
