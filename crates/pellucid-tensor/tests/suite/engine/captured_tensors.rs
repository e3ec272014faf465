//! `capture`: ownership of inputs, outputs, constants and tensors of the environment of a step.

use super::programs::{ALL, wave};
use crate::support::bits;
use pellucid_tensor::{
    Captured, DType, Error, Generator, Tensor, autocast, capture, capture_local, formula, hvp, jacobian, no_grad, ops,
};
use std::cell::{Cell, RefCell};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Launches the step and returns copies of its results.
fn launched(step: &mut Captured<'_>, inputs: &[&Tensor]) -> Vec<Tensor> {
    let outputs = step.launch(inputs).unwrap();
    (0..outputs.len()).map(|k| outputs.to_tensor(k)).collect()
}

#[test]
fn repeated_launches_compute_the_eager_bits() {
    let mut rejected = Vec::new();
    for (name, program) in ALL {
        let eager = bits(&program());
        let mut step = match capture(|_| program(), &[]) {
            Ok(step) => step,
            // The program leaves a gradient in a leaf that it created.
            Err(Error::NotAFixedPoint { .. }) => {
                rejected.push(name);
                continue;
            }
            Err(other) => panic!("{name}: {other}"),
        };
        for launch in 1..=4 {
            assert_eq!(bits(&launched(&mut step, &[])), eager, "{name}: launch {launch} differs from the eager result");
        }
    }
    assert!(rejected.len() <= 5, "{rejected:?}");
}

/// A tensor that the step creates from host values has its original values in every launch, even if the last launch
/// wrote to it.
#[test]
fn constants_have_their_values_in_every_launch() {
    let x = wave([3]);
    let work = |x: &Tensor| {
        let sum = Tensor::from([1.0f32, 2.0, 3.0]);
        sum.copy_(&(&sum + x));
        sum.set(0, 5.0 + sum.i(1));
        sum
    };
    let expected = bits(&[work(&x)]);
    let mut step = capture(|i| work(&i[0]), &[&x]).unwrap();
    for launch in 1..=4 {
        assert_eq!(bits(&launched(&mut step, &[&x])), expected, "launch {launch} differs from the eager result");
    }
}

/// A launch computes the same values as an eager call with copies of its inputs, even for inputs that share storage
/// with each other or with a target of the step, or start at an offset.
#[test]
fn inputs_may_share_storage_with_targets_and_have_offsets() {
    let (state, other) = (wave([4, 4]), wave([4, 4]).exp());
    let work = |x: &Tensor, y: &Tensor, state: &Tensor| {
        state.copy_(&(state * 0.5 + x));
        x.matmul(y) + state
    };
    let mut step = capture(|i| work(&i[0], &i[1], &state), &[&other, &other]).unwrap();
    let long = wave([3, 4, 4]);
    let part = long.i(1);
    let turned = other.t();
    for (x, y) in [(&other, &part), (&other, &other), (&part, &turned), (&turned, &long.i(0))] {
        let eager = state.copy();
        let expected = [work(&x.copy(), &y.copy(), &eager), eager];
        let result = launched(&mut step, &[x, y]).remove(0);
        assert_eq!(bits(&[result, state.copy()]), bits(&expected));
    }
    // An input that shares storage with a tensor that the step writes is an error: the step would read the new values.
    for (x, y) in [(&state, &other), (&other, &state), (&state, &state), (&other, &state.t())] {
        let before = bits(&[state.copy()]);
        assert!(matches!(step.launch(&[x, y]).err(), Some(Error::InvalidArgument { op: "launch", .. })));
        assert_eq!(bits(&[state.copy()]), before);
    }
}

#[test]
fn results_do_not_share_storage() {
    let (x, state) = (wave([2, 3]), wave([2, 3]));
    let mut step = capture(
        |i| {
            state.copy_(&(&state + &i[0]));
            let y = &i[0] * 2.0;
            vec![y.clone(), y.clone(), y.t(), y.i(0), i[0].clone(), state.clone(), state.i((.., 1)), state.detach()]
        },
        &[&x],
    )
    .unwrap();
    let (first, kept) = (launched(&mut step, &[&x]), state.to_vec::<f32>());
    let values = bits(&first);
    for (a, one) in first.iter().enumerate() {
        let others = first[..a].iter().chain([&x, &state]);
        assert!(
            others.into_iter().all(|other| !one.array().shares_storage(other.array())),
            "result {a} shares its storage with another tensor"
        );
        one.copy_(&Tensor::from(f32::NAN));
    }
    assert_eq!((x.to_vec::<f32>(), state.to_vec::<f32>()), (wave([2, 3]).to_vec(), kept.clone()));
    // A launch with other inputs does not see these writes and leaves earlier results unchanged.
    state.copy_(&wave([2, 3]));
    let again = launched(&mut step, &[&x]);
    assert_eq!(bits(&again), values);
    launched(&mut step, &[&(&x * 100.0)]);
    assert_eq!(bits(&again), values);
}

#[test]
fn inputs_may_share_memory() {
    let state = wave([3, 3]);
    let work = |a: &Tensor, b: &Tensor| {
        state.copy_(&(a + b));
        [a * 2.0 + b, &state * 1.0]
    };
    let fresh = || wave([3, 3]) * 0.5;
    let mut step = capture(|i| work(&i[0], &i[1]), &[&fresh(), &fresh()]).unwrap();
    // (Label, first input, second input). The expected values are computed from copies of both inputs.
    let (square, row) = (fresh(), wave([3]));
    let pairs: [(&str, Tensor, Tensor); 4] = [
        ("one tensor twice", square.clone(), square.clone()),
        ("views of one tensor", square.clone(), square.t()),
        ("a reversed view", square.flip(0), square.flip(1)),
        ("a broadcast row", row.broadcast_to([3, 3]), square.clone()),
    ];
    for (what, a, b) in pairs {
        let before = bits(&[square.clone(), row.clone()]);
        let copies = (&a * 1.0, &b * 1.0);
        let found = launched(&mut step, &[&a, &b]);
        assert_eq!(
            bits(&[square.clone(), row.clone()]),
            before,
            "{what}: the launch must not change the caller's tensors"
        );
        let written = bits(from_ref(&state));
        assert_eq!(bits(&found), bits(&work(&copies.0, &copies.1)), "{what}");
        assert_eq!(bits(from_ref(&state)), written, "{what}");
    }
}

/// Closures of one type that capture different values have separate recordings.
#[test]
fn closures_of_one_source_line_are_separate_steps() {
    let x = wave([4]);
    let mut steps: Vec<_> = (0..4).map(|k| capture(move |i| &i[0] * k as f64, &[&x]).unwrap()).collect();
    for _ in 0..3 {
        for (k, step) in steps.iter_mut().enumerate() {
            assert_eq!(bits(&launched(step, &[&x])), bits(&[&x * k as f64]));
        }
    }
}

#[test]
fn verify_finds_every_change() {
    type Step = fn(&Tensor, usize) -> Tensor;
    let changes: [(&str, Step); 12] = [
        ("a parameter of a formula", |x, n| x * (0.1 * n as f64)),
        ("one of several parameters", |x, n| x.clamp(-1.0, n as f64)),
        ("the sign of zero", |x, n| x * if n == 1 { 0.0 } else { -0.0 }),
        ("a shape", |x, n| x.sum(..) + Tensor::zeros([n], DType::F32)),
        ("the values of a tensor", |x, n| x + Tensor::from([n as f32])),
        ("the dtype of a tensor", |x, n| x.to_dtype(if n == 1 { DType::F64 } else { DType::BF16 })),
        ("an axis", |x, n| x.broadcast_to([4, 4]).sum(n as isize - 1)),
        ("the start of a view", |x, n| x.i(n..n + 2).exp()),
        ("the operation", |x, n| if n == 1 { x.sin() } else { x.cos() }),
        ("the number of kernels", |x, n| (0..n).fold(x.exp(), |y, _| y.sin())),
        ("a fill", |x, n| x + Tensor::full([4], n as f64, DType::F32)),
        ("a probability", |x, n| x.dropout(0.25 * n as f64)),
    ];
    let x = wave([4]);
    for (what, work) in changes {
        let n = Cell::new(1);
        let mut step = capture_local(|i| work(&i[0], n.get()), &[&x]).unwrap();
        assert_eq!(step.verify(), Ok(()), "{what}");
        n.set(2);
        assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })), "{what}");
        n.set(1);
        assert_eq!(step.verify(), Ok(()), "{what}: the step must be valid after the value is restored");
    }
}

/// `verify` compares parameters bitwise, so a step with a NaN parameter equals itself.
#[test]
fn verify_accepts_nan_parameters() {
    let mut step = capture(|i| ops::where_(&i[0].gt(0.0), &i[0], f64::NAN).unwrap(), &[&wave([4])]).unwrap();
    assert_eq!(step.verify(), Ok(()));
}

#[test]
fn verify_finds_a_frozen_parameter() {
    let (x, w) = (wave([3]), wave([3]).requires_grad_(true));
    let work = |i: &[Tensor]| {
        w.zero_grad();
        let loss = (&i[0] * &w).square().sum(..);
        if loss.requires_grad() {
            loss.backward();
        }
        loss.detach()
    };
    let mut step = capture(work, &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    w.set_requires_grad(false).unwrap();
    assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })));
}

#[test]
fn inputs_of_other_shapes_are_errors_or_recorded() {
    let (x, y) = (wave([3]), wave([3]));
    let mut step = capture(|i| &i[0] + &i[1], &[&x, &y]).unwrap();
    for inputs in [&[][..], &[&x], &[&x, &y, &x]] {
        match step.launch(inputs).err() {
            Some(Error::InputMismatch { index, .. }) => assert_eq!(index, inputs.len().min(2)),
            other => panic!("{} inputs: {other:?}", inputs.len()),
        }
    }
    // A shape error of an operation is an error of the launch, and the step remains usable.
    let rejected = step.launch(&[&wave([2]), &y]).err();
    assert!(matches!(rejected, Some(Error::ShapeMismatch { op: "add", .. })), "{rejected:?}");
    assert_eq!(bits(&launched(&mut step, &[&x, &y])), bits(&[&x + &y]));
    // The step is launched twice for each of several shapes and dtypes. Their number exceeds the number of cached
    // recordings.
    for _ in 0..2 {
        for n in 1..=7 {
            for dtype in [DType::F32, DType::F64, DType::I64] {
                let (a, b) = ((wave([n, 3]) * 9.0).to_dtype(dtype), wave([3]).to_dtype(dtype));
                assert_eq!(bits(&launched(&mut step, &[&a, &b])), bits(&[&a + &b]), "{n} {dtype}");
            }
        }
    }
}

#[test]
fn a_launch_notices_a_set_or_cleared_gradient() {
    let (x, w) = (wave([3]), wave([3]).requires_grad_(true));
    let zeros = || Some(Tensor::zeros([3], DType::F32));
    w.set_grad(zeros());
    let mut step = capture(|i| (&i[0] * &w).sum(..).backward(), &[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    assert_eq!(w.grad().unwrap().to_vec::<f32>(), x.to_vec::<f32>());
    // Without a gradient to add to, every launch would create a new gradient tensor, which is an error.
    w.set_grad(None);
    assert!(matches!(step.launch(&[&x]).err(), Some(Error::NotAFixedPoint { .. })));
    assert!(w.grad().is_none());
    w.set_grad(zeros());
    step.launch(&[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    assert_eq!(w.grad().unwrap().to_vec::<f32>(), (&x * 2.0).to_vec::<f32>());
}

/// `verify` detects a replaced tensor of the environment. Debug builds call it before launches 2 and 3.
#[test]
fn verify_finds_a_replaced_tensor() {
    let (x, held) = (wave([3]), RefCell::new(Tensor::zeros([3], DType::F32)));
    let work = |i: &[Tensor]| {
        let total = held.borrow();
        total.copy_(&(&*total + &i[0]));
    };
    let mut step = capture_local(work, &[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    held.replace(Tensor::zeros([3], DType::F32));
    assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })));
    assert_eq!(held.borrow().to_vec::<f32>(), [0.0; 3], "verify() must not change a tensor");
}

/// A step keeps its tensors and generators alive.
#[test]
fn a_step_outlives_its_environment() {
    let x = wave([2, 3]);
    let eager = |w: &Tensor, g: &Generator| {
        let noise = ops::rand_with([2, 3], DType::F32, g).unwrap();
        w.copy_(&(w + noise));
        w * 2.0
    };
    let make = || (wave([2, 3]), Generator::new(5));
    let mut step = {
        let (w, g) = make();
        capture(move |i| eager(&w, &g) + &i[0], &[&x]).unwrap()
    };
    drop((0..20).map(|n| Tensor::full([n, 6], 1e30, DType::F32)).collect::<Vec<_>>());
    let (w, g) = make();
    for launch in 1..=4 {
        let expected = bits(&[eager(&w, &g) + &x]);
        assert_eq!(bits(&launched(&mut step, &[&x])), expected, "launch {launch} differs from the eager result");
    }
}

/// A launch counts its writes, so that backward detects a saved value that a launch has overwritten.
#[test]
fn a_graph_outside_the_step_notices_writes_of_a_launch() {
    let (x, c) = (wave([3]).requires_grad_(true), wave([3]));
    let mut step = capture(|i| c.copy_(&(&c * &i[0])), &[&wave([3])]).unwrap();
    let y = &x * &c;
    step.launch(&[&wave([3])]).unwrap();
    assert!(matches!(y.try_backward_with(Default::default()), Err(Error::SavedValueModified { .. })));
    (&x * &c).backward();
    assert_eq!(bits(&[x.grad().unwrap()]), bits(from_ref(&c)));
}

/// An invalid index is an error of that launch alone. The later kernels of the step are not executed.
#[test]
fn a_step_remains_usable_after_a_failed_launch() {
    let (x, total) = (wave([4, 2]), Tensor::zeros([3, 2], DType::F32));
    let good = Tensor::from([3i64, 0, -1]);
    let work = |i: &[Tensor]| {
        let rows = i[0].index_select(0, &i[1]);
        total.copy_(&(&total + rows));
    };
    let mut step = capture(work, &[&x, &good]).unwrap();
    for wrong in [4i64, -5] {
        let rejected = step.launch(&[&x, &Tensor::from([0, wrong, 1])]).err();
        assert!(matches!(rejected, Some(Error::IndexOutOfBounds { index, .. }) if index == wrong), "{rejected:?}");
        assert_eq!(total.to_vec::<f32>(), [0.0; 6]);
    }
    step.launch(&[&x, &good]).unwrap();
    assert_eq!(bits(from_ref(&total)), bits(&[x.index_select(0, &good) + 0.0]));
}

#[test]
fn gradients_of_gradients_are_captured() {
    let f = |x: &[Tensor]| Ok((x[0].sin() * &x[0]).square().sum(..));
    let step = |x: &Tensor, v: &Tensor| {
        let (value, product) = hvp(f, &[x], &[v]).unwrap();
        let (_, wide) = jacobian(|x| Ok(x.softmax(0)), x).unwrap();
        [value, product[0].clone(), wide]
    };
    let (x, v) = (wave([4]), wave([4]).flip(0));
    let mut captured = capture(|i| step(&i[0], &i[1]), &[&x, &v]).unwrap();
    for k in 1..=3 {
        let (x, v) = (&x * k as f64, &v + k as f64);
        assert_eq!(bits(&launched(&mut captured, &[&x, &v])), bits(&step(&x, &v)));
    }
}

/// Launches of several threads that write one tensor are mutually exclusive, and a reader sees the tensor between two
/// launches.
#[test]
fn launches_on_several_threads_do_not_mix() {
    const LAUNCHES: usize = 60;
    let (total, halves) = (Tensor::zeros([5000], DType::F64), Tensor::zeros([5000], DType::F64));
    let done = AtomicBool::new(false);
    let bump = formula!(|a, b, x| (a + x, b + 0.5 * x));
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let one = Tensor::from(1.0f64);
                    let work = |i: &[Tensor]| {
                        let _off = no_grad();
                        ops::update(bump, &[&total, &halves], &[&i[0]], &[]).unwrap();
                        total.copy_(&(&total + &halves - &halves));
                    };
                    let mut step = capture(work, &[&one]).unwrap();
                    for _ in 0..LAUNCHES {
                        step.launch(&[&one]).unwrap();
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            loop {
                let last = done.load(Ordering::Relaxed);
                let values = total.to_vec::<f64>();
                assert!(values.iter().all(|v| *v == values[0]) && values[0].fract() == 0.0, "{}", values[0]);
                if last {
                    break;
                }
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(total.to_vec::<f64>(), [2.0 * LAUNCHES as f64; 5000]);
}

/// Every launch reads the current value of a 0-d tensor.
#[test]
fn every_launch_reads_the_current_scalars() {
    let (x, w) = (wave([3]), wave([3]).requires_grad_(true));
    let (rate, steps) = (Tensor::from(0.5f32), Tensor::zeros((), DType::I64));
    let train = |x: &Tensor, w: &Tensor| {
        w.zero_grad();
        (x * w).square().sum(..).backward();
        let _off = no_grad();
        steps.copy_(&(&steps + 1));
        let g = w.grad().unwrap() / steps.to_dtype(DType::F32);
        ops::update(formula!(|w, g, rate| w - rate * g), &[w], &[&g, &rate], &[]).unwrap();
        w.zero_grad();
    };
    let rates = [0.5f32, 0.25, 0.0, -1.0, 0.125];
    let other = w.detach().copy().requires_grad_(true);
    for r in rates {
        rate.copy_(&Tensor::from(r));
        train(&x, &other);
    }
    steps.copy_(&Tensor::from(0i64));
    let mut step = capture(|i| train(&i[0], &w), &[&x]).unwrap();
    for r in rates {
        rate.copy_(&Tensor::from(r));
        step.launch(&[&x]).unwrap();
    }
    drop(step);
    assert_eq!(bits(&[w.detach()]), bits(&[other.detach()]));
    assert_eq!(steps.item::<i64>(), rates.len() as i64);
}

/// A leaf that the step creates is not part of the state: its gradient is unreachable after the launch.
#[test]
fn a_leaf_created_by_the_step_may_keep_its_gradient() {
    let x = wave([3]);
    let work = |x: &Tensor| {
        let w = Tensor::from([1.0f32, 2.0, 3.0]).requires_grad_(true);
        (x * &w).square().sum(..).backward();
        w.grad().unwrap()
    };
    let mut step = capture(|i| work(&i[0]), &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), work(&x).to_vec::<f32>());
}

/// The autocast mode of the thread is part of the key of a recording.
#[test]
fn autocast_is_part_of_the_recording_key() {
    let (x, w) = (wave([3, 4]), wave([4, 2]));
    let mut step = capture(|i| i[0].matmul(&w), &[&x]).unwrap();
    (0..4).for_each(|_| assert_eq!(step.launch(&[&x]).unwrap().len(), 1));
    let _half = autocast(DType::BF16);
    let eager = x.matmul(&w);
    assert_eq!(step.launch(&[&x]).unwrap().to_tensor(0).dtype(), eager.dtype());
}

#[test]
fn an_input_that_requires_a_gradient_is_rejected() {
    let (x, w) = (wave([3]).requires_grad_(true), wave([3]).requires_grad_(true));
    let step = |i: &[Tensor]| {
        w.zero_grad();
        (&i[0] * &w).sum(..).backward();
        w.zero_grad();
    };
    assert!(capture(step, &[&x]).is_err());
}

/// Writes before the failure of a launch are counted.
#[test]
fn a_failed_launch_counts_its_writes() {
    let (x, c) = (wave([3]).requires_grad_(true), wave([3]));
    let work = |i: &[Tensor]| {
        c.copy_(&(&c * 2.0));
        i[0].index_select(0, &i[1])
    };
    let mut step = capture(work, &[&wave([3]), &Tensor::from([0i64])]).unwrap();
    let y = &x * &c;
    assert!(step.launch(&[&wave([3]), &Tensor::from([9i64])]).is_err());
    assert!(c.to_vec::<f32>() == wave([3]).to_vec::<f32>() || y.try_backward_with(Default::default()).is_err());
}
