//! `capture`: the contract of a recorded step.

use super::programs::wave;
use crate::support::{bits, panic_of, payload_of};
use pellucid_tensor::plan::Launch;
use pellucid_tensor::{
    CaptureOptions, DType, Error, Generator, GradOptions, Passes, Tensor, capture, capture_local, capture_with,
    formula, grad_one, lazy, manual_seed, no_grad, ops,
};
use std::cell::{Cell, RefCell};

fn loss(x: &Tensor, w: &Tensor) -> Tensor {
    x.matmul(w).tanh().square().mean(..)
}

/// Executes one training step: computes the gradient and updates the weight in place.
fn descend(x: &Tensor, w: &Tensor) -> Tensor {
    w.zero_grad();
    let value = loss(x, w);
    value.backward();
    let _off = no_grad();
    ops::update(formula!(|w, g| w - 0.5 * g), &[w], &[&w.grad().unwrap()], &[]).unwrap();
    w.zero_grad();
    value.detach()
}

/// A perceptron with two layers, dropout and SGD with momentum.
struct Mlp {
    weights: [Tensor; 4],
    momenta: [Tensor; 4],
    generator: Generator,
}

impl Mlp {
    fn new() -> Mlp {
        let weights = [wave([6, 8]), wave([8]), wave([8, 3]), wave([3])].map(|w| w.requires_grad_(true));
        let momenta = weights.each_ref().map(Tensor::zeros_like);
        Mlp { weights, momenta, generator: Generator::new(12) }
    }

    /// Executes one training step and returns the loss.
    fn step(&self, x: &Tensor, classes: &Tensor) -> Tensor {
        let [w, b, v, c] = &self.weights;
        self.weights.iter().for_each(Tensor::zero_grad);
        let hidden = (x.matmul(w) + b).relu();
        let kept = ops::rand_with(hidden.shape(), DType::F32, &self.generator).unwrap().ge(0.25);
        let hidden = hidden.where_(&kept, 0.0) / 0.75;
        let loss = (hidden.matmul(v) + c).cross_entropy(classes, ops::CrossEntropyOptions::default());
        loss.backward();
        let momentum = formula!(|w, m, g| {
            let m = 0.9 * m + g;
            (w - 0.1 * m, m)
        });
        let _off = no_grad();
        for (w, m) in self.weights.iter().zip(&self.momenta) {
            ops::update(momentum, &[w, m], &[&w.grad().unwrap()], &[]).unwrap();
            w.zero_grad();
        }
        loss.detach()
    }

    fn state(&self) -> Vec<Vec<u8>> {
        let all = self.weights.iter().chain(&self.momenta).chain([self.generator.state()]);
        bits(&all.map(Tensor::detach).collect::<Vec<_>>())
    }
}

#[test]
fn twenty_replayed_steps_equal_twenty_eager_ones_bit_for_bit() {
    // The batches are computed once: the compiler may fold the sines of one call of `wave` and not those of another.
    let batch = |i: usize| (wave([5, 6]) * (0.2 + i as f64), (Tensor::arange(0i64, 5, 1) + i as i64) % 3);
    let batches: Vec<(Tensor, Tensor)> = (0..20).map(batch).collect();
    let (eager, replayed) = (Mlp::new(), Mlp::new());
    let losses: Vec<_> = batches.iter().map(|(x, classes)| eager.step(x, classes).to_vec::<f32>()).collect();
    let (x, classes) = &batches[0];
    let mut step = capture(|inputs| replayed.step(&inputs[0], &inputs[1]), &[x, classes]).unwrap();
    for (i, (expected, (x, classes))) in losses.iter().zip(&batches).enumerate() {
        let _unrelated = wave([50 + i]);
        assert_eq!(
            step.launch(&[x, classes]).unwrap().to_vec::<f32>(0),
            *expected,
            "the replayed loss of step {i} differs from the eager one"
        );
    }
    drop(step);
    assert_eq!(replayed.state(), eager.state());
    assert!(losses[0] != losses[19]);
}

/// A captured step computes the pairs of all columns of the targets, an eager one only those with class indices.
#[test]
fn the_margin_loss_of_few_labels_has_the_bits_of_all_columns() {
    let target = Tensor::full([3, 70], -1i64, DType::I64);
    for (sample, labels) in [&[5i64, 0, 69][..], &[], &[17, 17, 3, 42, 1]].into_iter().enumerate() {
        labels.iter().enumerate().for_each(|(k, &label)| target.set((sample, k), label));
    }
    let leaf = || {
        let x = wave([3, 70]).to_dtype(DType::F32).detach().requires_grad_(true);
        x.set_grad(Some(Tensor::zeros([3, 70], DType::F32)));
        x
    };
    let run = |x: &Tensor, target: &Tensor| {
        let loss = x.multilabel_margin_loss(target, ops::Reduction::None);
        (&loss * Tensor::from([0.3f32, -2.0, 1.7])).sum(..).backward();
        loss
    };
    let (eager, captured) = (leaf(), leaf());
    let loss = run(&eager, &target).to_vec::<f32>();
    let mut step = capture(|inputs| run(&captured, &inputs[0]), &[&target]).unwrap();
    assert_eq!(step.launch(&[&target]).unwrap().to_vec::<f32>(0), loss);
    drop(step);
    assert_eq!(bits(&[captured.grad().unwrap()]), bits(&[eager.grad().unwrap()]));
    assert!(loss[0] > 0.0 && loss[1] == 0.0 && loss[2] > 0.0);
}

#[test]
fn recording_restores_all_state() {
    let (x, w, g) = (wave([4, 3]), wave([3, 2]).requires_grad_(true), Generator::new(3));
    let counter = Tensor::zeros([1], DType::I64);
    let state = || bits(&[w.detach(), g.state().clone(), counter.clone()]);
    let before = state();
    let step = capture(
        |inputs| {
            counter.copy_(&(&counter + 1));
            let noise = ops::randn_with([4, 3], DType::F32, &g).unwrap();
            descend(&(&inputs[0] + noise), &w)
        },
        &[&x],
    );
    assert_eq!(state(), before);
    assert!(w.grad().is_none());
    let mut step = step.unwrap();
    step.launch(&[&x]).unwrap();
    assert_ne!(state(), before);
    assert_eq!(counter.item::<i64>(), 1, "only the launch, and not the recording, must execute the step");
}

#[test]
fn reading_a_value_is_an_error_with_operation_and_line() {
    let x = wave([3]);
    type Read = fn(&Tensor) -> Tensor;
    let reads: [(&str, u32, Read); 5] = [
        ("item", line!(), |x| Tensor::from(x.sum(..).item::<f32>())),
        ("to_vec", line!(), |x| Tensor::from(x.to_vec::<f32>()[0])),
        ("index", line!(), |x| x.i(x.gt(0.0))),
        ("nonzero", line!(), |x| ops::nonzero(x).map_err(|e| std::panic::panic_any(e)).unwrap().remove(0)),
        ("to_bytes", line!(), |x| x.try_to_bytes().map_err(|e| std::panic::panic_any(e)).map(|_| x.clone()).unwrap()),
    ];
    for (op, line, read) in reads {
        match capture(|inputs| read(&inputs[0]), &[&x]).err() {
            Some(Error::ReadInCapture { op: named, location, .. }) => {
                assert_eq!((named, location.file(), location.line()), (op, file!(), line));
            }
            other => panic!("{op}: {other:?}"),
        }
    }
    // The functions that return `Result` return the error inside the step.
    let inside = RefCell::new(None);
    let step = capture_local(
        |inputs| {
            *inside.borrow_mut() = inputs[0].try_to_vec::<f32>().err();
            inputs[0].clone() * 2.0
        },
        &[&x],
    );
    assert!(step.is_ok() && matches!(inside.take(), Some(Error::ReadInCapture { .. })));
}

#[test]
fn a_user_panic_propagates_and_restores_the_mode() {
    let x = wave([3]);
    let caught = payload_of(|| capture(|_| -> Tensor { panic!("mine") }, &[&x]).map(|_| ()));
    assert_eq!(caught.downcast_ref::<&str>(), Some(&"mine"));
    assert_eq!((&x + 0.0).to_vec::<f32>(), x.to_vec::<f32>());
    // An error of an operation is returned unchanged.
    let rejected = capture(|inputs| inputs[0].reshape(7), &[&x]).err();
    assert!(matches!(rejected, Some(Error::ShapeMismatch { op: "reshape", .. })));
}

#[test]
fn escaped_handles_are_poisoned() {
    let escaped = RefCell::new(None);
    let x = wave([3]);
    let mut step = capture_local(
        |inputs| {
            let y = &inputs[0] * 2.0;
            *escaped.borrow_mut() = Some((inputs[0].clone(), y.clone()));
            y + 1.0
        },
        &[&x],
    )
    .unwrap();
    step.launch(&[&x]).unwrap();
    let (input, y) = escaped.take().unwrap();
    for poisoned in [input, y] {
        assert!(matches!(poisoned.try_to_vec::<f32>(), Err(Error::Poisoned { .. })));
        assert!(panic_of(|| &poisoned + 1.0).contains("created inside a captured step"));
    }
}

#[test]
fn a_step_that_accumulates_new_gradients_is_not_a_fixed_point() {
    let (x, w) = (wave([4, 3]), wave([3, 2]).requires_grad_(true));
    let rejected = capture(|inputs| loss(&inputs[0], &w).backward(), &[&x]).err();
    match rejected {
        Some(Error::NotAFixedPoint { slot, help, .. }) => {
            assert!(slot.contains("[3, 2]") && help.contains("zero_grad"), "{slot}: {help}");
        }
        other => panic!("{other:?}"),
    }
    assert!(w.grad().is_none(), "the failed recording must leave the leaf without a gradient");
    w.set_grad(Some(Tensor::zeros([3, 2], DType::F32)));
    let rejected = capture(|_| w.zero_grad(), &[]).err();
    assert!(matches!(rejected, Some(Error::NotAFixedPoint { .. })));
    assert!(w.grad().is_some());
}

#[test]
fn gradients_accumulate_in_an_existing_gradient_tensor() {
    let batches: Vec<Tensor> = (0..5).map(|i| wave([4, 3]) * (0.3 + i as f64)).collect();
    let start = || {
        let w = wave([3, 2]).requires_grad_(true);
        w.set_grad(Some(Tensor::full([3, 2], 0.25, DType::F32)));
        w
    };
    let (eager, w) = (start(), start());
    let kept = w.grad().unwrap();
    let mut step = capture(|inputs| loss(&inputs[0], &w).backward(), &[&batches[0]]).unwrap();
    for x in &batches {
        loss(x, &eager).backward();
        step.launch(&[x]).unwrap();
    }
    assert_eq!(bits(&[w.grad().unwrap()]), bits(&[eager.grad().unwrap()]));
    assert!(kept.array().shares_storage(w.grad().unwrap().array()), "a launch must write the gradient in place");
    // A new gradient tensor has another storage, so the step is recorded again.
    w.set_grad(Some(Tensor::zeros([3, 2], DType::F32)));
    step.launch(&[&batches[0]]).unwrap();
    eager.set_grad(Some(Tensor::zeros([3, 2], DType::F32)));
    loss(&batches[0], &eager).backward();
    assert_eq!(bits(&[w.grad().unwrap()]), bits(&[eager.grad().unwrap()]));
}

#[test]
fn outputs_are_borrowed_and_copies_outlive_launches() {
    let x = wave([3]);
    let mut step = capture(|inputs| [&inputs[0] * 2.0, inputs[0].sum(..)], &[&x]).unwrap();
    let outputs = step.launch(&[&x]).unwrap();
    assert_eq!((outputs.len(), outputs.is_empty(), &outputs.shape(0)[..]), (2, false, &[3][..]));
    let (copy, sum) = (outputs.to_tensor(0), outputs.item::<f32>(1));
    let expected = (&x * 2.0).to_vec::<f32>();
    assert_eq!((copy.to_vec::<f32>(), sum), (expected.clone(), x.sum(..).item::<f32>()));
    let again = step.launch(&[&(&x * 100.0)]).unwrap().to_tensor(0);
    assert_eq!(copy.to_vec::<f32>(), expected, "a later launch must not overwrite the copy");
    assert!(!again.array().shares_storage(copy.array()));
}

#[test]
fn writes_to_inputs_and_reads_of_inputs_after_overlapping_writes_are_errors() {
    let (x, total) = (wave([3]), Tensor::from([1.0f32, 2.0, 3.0]));
    // A write to an input, or to a view of an input, is an error of the capture.
    let writes: [fn(&Tensor); 2] = [|x| x.set(0, 77.0), |x| x.reshape([3, 1]).i(1..).copy_(&Tensor::from(1.0f32))];
    for write in writes {
        let error = capture(|inputs| write(&inputs[0]), &[&x]).err();
        assert!(matches!(&error, Some(Error::InvalidArgument { op: "capture", .. })), "{error:?}");
        assert!(error.unwrap().to_string().contains("input 0"));
    }
    // An input that shares memory with a target of the step, and is read after the write, is an error of the launch.
    let add = |inputs: &[Tensor]| {
        total.copy_(&(&total + 1.0));
        &inputs[0] * 2.0
    };
    let mut step = capture(add, &[&x]).unwrap();
    for alias in [total.clone(), total.reshape([3, 1]).flip(0).reshape(3), total.detach()] {
        let error = step.launch(&[&alias]).err();
        assert!(matches!(&error, Some(Error::InvalidArgument { op: "launch", .. })), "{error:?}");
    }
    assert_eq!(total.to_vec::<f32>(), [1.0, 2.0, 3.0], "a rejected launch must not write to its target");
    assert_eq!(step.launch(&[&total.copy()]).unwrap().to_vec::<f32>(0), [2.0, 4.0, 6.0]);
    // A returned input is read at the end. An input that is read before the write has its eager value.
    let mut step = capture(|inputs| (total.set(0, 5.0), inputs[0].clone()).1, &[&x]).unwrap();
    assert!(step.launch(&[&total]).is_err());
    let mut step = capture(
        |inputs| {
            let y = &inputs[0] * 2.0;
            total.copy_(&(&total + &inputs[0]));
            y
        },
        &[&x],
    )
    .unwrap();
    total.copy_(&Tensor::from([1.0f32, 2.0, 3.0]));
    assert_eq!(step.launch(&[&total]).unwrap().to_vec::<f32>(0), [2.0, 4.0, 6.0]);
    assert_eq!(total.to_vec::<f32>(), [2.0, 4.0, 6.0]);
    // An input may be another region of the storage that the step writes.
    let (left, right) = (total.i(..1), total.i(1..));
    let mut step = capture(|inputs| (left.set(0, 9.0), &inputs[0] * 1.0).1, &[&right]).unwrap();
    assert_eq!(step.launch(&[&right]).unwrap().to_vec::<f32>(0), [4.0, 6.0]);
}

#[test]
fn an_invalid_class_makes_the_loss_and_all_gradients_nan() {
    use pellucid_tensor::ops::{
        self, CrossEntropyOptions, CtcLossOptions, MultiMarginLossOptions, NllLossOptions, Reduction,
    };
    type Loss = fn(&Tensor, &Tensor, Reduction) -> Tensor;
    let losses: [(&str, Loss); 9] = [
        ("cross_entropy", |x, t, reduction| {
            x.cross_entropy(t, CrossEntropyOptions { reduction, ..Default::default() })
        }),
        ("cross_entropy, smoothed", |x, t, reduction| {
            x.cross_entropy(t, CrossEntropyOptions { reduction, label_smoothing: 0.1, ..Default::default() })
        }),
        ("cross_entropy, ignoring", |x, t, reduction| {
            x.cross_entropy(t, CrossEntropyOptions { reduction, ignore_index: Some(-100), ..Default::default() })
        }),
        ("cross_entropy, weighted", |x, t, reduction| {
            let weight = &Tensor::from([1.0, 2.0, 0.5]);
            x.cross_entropy(t, CrossEntropyOptions { reduction, weight: Some(weight), ..Default::default() })
        }),
        ("nll_loss", |x, t, reduction| {
            let weight = &Tensor::from([1.0, 2.0, 0.5]);
            x.log_softmax(1).nll_loss(t, NllLossOptions { reduction, weight: Some(weight), ..Default::default() })
        }),
        ("nll_loss, ignoring", |x, t, reduction| {
            x.nll_loss(t, NllLossOptions { reduction, ignore_index: Some(-100), ..Default::default() })
        }),
        ("multi_margin_loss", |x, t, reduction| {
            x.multi_margin_loss(t, MultiMarginLossOptions { reduction, ..Default::default() })
        }),
        ("multilabel_margin_loss", |x, t, reduction| {
            let ends = Tensor::from([[-1i64, -1]; 4]);
            // A negative label ends the list of labels here; it is not an error.
            let t = ops::where_(&t.lt(0), Tensor::from(9i64), t).unwrap();
            let all = ops::concatenate(&[&t.unsqueeze(1), &ends], 1).unwrap();
            x.multilabel_margin_loss(&all, reduction)
        }),
        ("ctc_loss", |x, t, reduction| {
            let steps = x.log_softmax(1).broadcast_to([5, 4, 3]);
            let (long, one) = (Tensor::from([5i64; 4]), Tensor::from([1i64; 4]));
            // The blank class is not a valid label.
            let t = ops::where_(&t.eq(0), Tensor::from(1i64), t).unwrap();
            steps.ctc_loss(&t.unsqueeze(1), &long, &one, CtcLossOptions { reduction, ..Default::default() })
        }),
    ];
    let good = Tensor::from([2i64, 0, 1, 2]);
    for (name, loss) in losses {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let table = Tensor::from([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5], [0.0, 3.0, 1.0], [2.0, 0.5, 0.75]]);
            let table = table.requires_grad_(true);
            table.set_grad(Some(Tensor::zeros([4, 3], DType::F64)));
            let run = |t: &Tensor| {
                let value = loss(&table, t, reduction);
                value.sum(..).backward();
                value
            };
            let mut step = capture(|inputs| run(&inputs[0]), &[&good]).unwrap();
            for bad in [9i64, 3, -1, i64::MIN, i64::MAX] {
                let bad = Tensor::from([2, 0, bad, 2]);
                step.launch(&[&bad]).unwrap();
                let gradient = table.grad().unwrap().to_vec::<f64>();
                let rows: Vec<bool> = gradient.chunks(3).map(|row| row.iter().all(|g| g.is_nan())).collect();
                let expected = reduction != Reduction::None;
                assert_eq!(rows, [expected, expected, true, expected], "{name}, {reduction:?}: {gradient:?}");
                table.grad().unwrap().copy_(&Tensor::from(0.0));
            }
            let value = step.launch(&[&good]).unwrap().to_vec::<f64>(0);
            let gradient = table.grad().unwrap().to_vec::<f64>();
            table.set_grad(None);
            assert_eq!(value, run(&good).to_vec::<f64>(), "{name}");
            assert_eq!(gradient, table.grad().unwrap().to_vec::<f64>(), "{name}");
            let rejected = panic_of(|| loss(&table, &Tensor::from([2i64, 0, 9, 2]), reduction));
            assert!(
                rejected.contains("out of bounds"),
                "{name}: an eager call must return an error for the invalid class, got: {rejected}"
            );
        }
    }
}

#[test]
fn an_invalid_index_stops_a_launch_before_the_update() {
    let steps: [fn(&Tensor, &Tensor) -> Tensor; 3] = [
        |table, index| table.index_select(0, index),
        |table, index| table.take_along_axis(&index.unsqueeze(1), 0),
        |table, index| table.scatter_add(0, &index.unsqueeze(1), &table.i((..2, ..1))),
    ];
    for read in steps {
        let table = Tensor::from([[0.5, -1.0], [1.0, 0.25], [2.0, 3.0]]).requires_grad_(true);
        let before = table.to_vec::<f64>();
        let mut step = capture(
            |inputs| {
                table.zero_grad();
                read(&table, &inputs[0]).square().sum(..).backward();
                let _off = no_grad();
                table.copy_(&(&table - table.grad().unwrap() * 0.1));
            },
            &[&Tensor::from([0i64, 2])],
        )
        .unwrap();
        assert!(matches!(step.launch(&[&Tensor::from([0i64, 3])]).err(), Some(Error::IndexOutOfBounds { .. })));
        assert_eq!(table.to_vec::<f64>(), before);
        step.launch(&[&Tensor::from([0i64, 2])]).unwrap();
        assert_ne!(table.to_vec::<f64>(), before);
    }
}

#[test]
fn inputs_of_another_shape_are_recorded_again() {
    let runs = Cell::new(0);
    let mut step = capture_local(
        |inputs| {
            runs.set(runs.get() + 1);
            &inputs[0] * 2.0
        },
        &[&wave([3])],
    )
    .unwrap();
    assert_eq!(runs.get(), 1);
    assert_eq!(step.launch(&[&wave([5])]).unwrap().to_vec::<f32>(0), (wave([5]) * 2.0).to_vec::<f32>());
    let wide = wave([3]).to_dtype(DType::F64);
    assert_eq!(step.launch(&[&wide]).unwrap().to_vec::<f64>(0), (&wide * 2.0).to_vec::<f64>());
    let recorded = runs.get();
    let before = wave([3]).to_vec::<f32>();
    let _off = no_grad();
    step.launch(&[&wave([3])]).unwrap();
    assert!(runs.get() > recorded, "a launch in another grad mode must record the step again");
    assert_eq!(before, wave([3]).to_vec::<f32>());
    assert!(matches!(step.launch(&[]).err(), Some(Error::InputMismatch { .. })));
    assert!(matches!(step.launch(&[&wave([3]), &wave([3])]).err(), Some(Error::InputMismatch { index: 1, .. })));
}

#[test]
fn verify_finds_a_changed_host_number() {
    let (x, rate) = (wave([3]), Cell::new(0.1));
    let mut step = capture_local(|inputs| &inputs[0] * rate.get(), &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    rate.set(0.2);
    match step.verify() {
        Err(error @ Error::CaptureChanged { .. }) => {
            let text = error.to_string();
            assert!(text.contains("kernel 0, `mul(f32 [3]) -> f32 [3]`, has different host values"), "{text}");
            assert!(text.contains("hooks") && !text.contains('{'), "{text}");
        }
        other => panic!("{other:?}"),
    }
    // `verify` also detects a different kernel.
    let is_relu = Cell::new(false);
    let mut step =
        capture_local(|inputs| if is_relu.get() { inputs[0].relu() } else { inputs[0].sin() }, &[&x]).unwrap();
    is_relu.set(true);
    let text = step.verify().unwrap_err().to_string();
    assert!(text.contains("kernel 0 is `relu(f32 [3]) -> f32 [3]` instead of `sin(f32 [3]) -> f32 [3]`"), "{text}");
    // `verify` also detects a tensor that was created from changed host values.
    let mut step = capture_local(|inputs| &inputs[0] * Tensor::from([rate.get() as f32]), &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    rate.set(0.3);
    assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })));
    // `verify` also detects a replaced tensor.
    let bound = RefCell::new(wave([3]));
    let mut step = capture_local(|inputs| &inputs[0] * &*bound.borrow(), &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    bound.replace(wave([3]));
    assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })));
}

#[test]
fn debug_builds_verify_before_the_second_and_third_launch() {
    let (x, rate) = (wave([3]), Cell::new(0.1));
    let mut step = capture_local(|inputs| &inputs[0] * rate.get(), &[&x]).unwrap();
    step.launch(&[&x]).unwrap();
    rate.set(0.2);
    let second = step.launch(&[&x]).err();
    assert_eq!(matches!(second, Some(Error::CaptureChanged { .. })), cfg!(debug_assertions));
}

#[test]
fn unused_random_kernels_advance_the_generator() {
    let draw = |g: &Generator| ops::rand_with([4], DType::F32, g).unwrap();
    let (one, other) = (Generator::new(6), Generator::new(6));
    let mut step = capture(
        |_| {
            draw(&one); // The result is not used, but the draw must advance the generator.
            draw(&one)
        },
        &[],
    )
    .unwrap();
    for _ in 0..5 {
        draw(&other);
        assert_eq!(step.launch(&[]).unwrap().to_vec::<f32>(0), draw(&other).to_vec::<f32>());
    }
    drop(step);
    assert_eq!(bits(&[one.state().clone()]), bits(&[other.state().clone()]));
}

#[test]
fn dropout_draws_new_masks_in_every_launch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::ones([64], DType::F32);
    manual_seed(2);
    let eager: Vec<_> = (0..4).map(|_| x.dropout(0.5).to_vec::<f32>()).collect();
    manual_seed(2);
    let mut step = capture(|inputs| inputs[0].dropout(0.5), &[&x]).unwrap();
    let replayed: Vec<_> = (0..4).map(|_| step.launch(&[&x]).unwrap().to_vec::<f32>(0)).collect();
    assert_eq!(replayed, eager);
    assert_ne!(eager[0], eager[1]);
}

/// The gradients of a tensor before and after a write through a mask are added in the same order in every mode.
#[test]
fn gradients_of_masked_writes_have_the_bits_of_eager_mode() {
    let _random = pellucid_tensor::Generator::new(83).scope();
    let step = |x: &Tensor, w: &Tensor| {
        let y = x * 1.5;
        let (a, b) = ((&y * w).sum(..), (y.tanh() * w).sum(..));
        y.set(y.detach().gt(0.3), 0.0);
        let c = (&y * w * 0.3).sum(..);
        grad_one(&(a + b + c), x, GradOptions::default()).unwrap()
    };
    for _ in 0..200 {
        let [x, w] = [(); 2].map(|()| Tensor::randn([6], DType::F32));
        let x = x.requires_grad_(true);
        let mut captured = capture(|inputs| step(&x, &inputs[0]), &[&w]).unwrap();
        let modes = [step(&x, &w), lazy(|| step(&x, &w)), captured.launch(&[&w]).unwrap().to_tensor(0)];
        assert_eq!(bits(&modes[..1]), bits(&modes[1..2]));
        assert_eq!(bits(&modes[..1]), bits(&modes[2..]));
    }
}

#[test]
fn every_launch_reads_the_current_value_of_a_tensor() {
    let (x, scale) = (wave([3]), Tensor::from(2.0f32));
    let mut step = capture(|inputs| &inputs[0] * &scale, &[&x]).unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), (&x * 2.0).to_vec::<f32>());
    scale.copy_(&Tensor::from(5.0f32));
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), (&x * 5.0).to_vec::<f32>());
}

#[test]
fn captures_do_not_nest() {
    let x = wave([3]);
    let inner = RefCell::new(None);
    let _outer = capture_local(
        |inputs| {
            *inner.borrow_mut() = capture(|i| &i[0] * 2.0, &[&inputs[0]]).err();
            &inputs[0] * 2.0
        },
        &[&x],
    )
    .unwrap();
    assert!(matches!(inner.take(), Some(Error::InvalidArgument { op: "capture", .. })));
}

#[test]
fn the_plan_can_be_read() {
    let x = wave([3]);
    let double = |inputs: &[Tensor]| (&inputs[0] * 2.0).sin();
    let step = capture(double, &[&x]).unwrap();
    assert_eq!(step.plan().launches.iter().map(Launch::parts).collect::<Vec<_>>(), [["mul", "sin"]]);
    let options = CaptureOptions { passes: Passes::none(), ..Default::default() };
    let plain = capture_with(options, double, &[&x]).unwrap();
    assert_eq!(plain.plan().launches.iter().map(Launch::parts).collect::<Vec<_>>(), [["mul"], ["sin"]]);
}
