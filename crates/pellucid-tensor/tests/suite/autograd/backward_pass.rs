//! One backward pass: its seeds, the accumulation of gradients, retained and freed values.

use crate::support::{assert_close, bits, leaf, number, panic_of, slope};
use pellucid_tensor::{BackwardOptions, DType, Error, GradOptions, Tensor, grad, lazy};
use std::sync::{Arc, Mutex};

#[test]
fn a_pass_starts_with_ones_scalar_or_not() {
    let x = leaf([1.0, 2.0, 3.0]);
    x.square().backward();
    assert_close(&x.grad().unwrap(), &[2.0, 4.0, 6.0]);
    let y = number(3.0);
    y.square().backward();
    assert_eq!(slope(&y), 6.0);
    // A leaf is its own output.
    let z = leaf([5.0, 6.0]);
    z.backward();
    assert_close(&z.grad().unwrap(), &[1.0, 1.0]);
}

#[test]
fn a_given_seed_replaces_the_ones() {
    let x = leaf([1.0, 2.0]);
    let start = |g: Tensor| BackwardOptions { gradient: Some(g), retain_graph: true, ..Default::default() };
    let y = x.square();
    y.backward_with(start(Tensor::from([10.0, 0.5])));
    assert_close(&x.grad().unwrap(), &[20.0, 2.0]);
    x.zero_grad();
    y.backward_with(start(Tensor::from([1.0f32, 2.0])));
    assert_eq!(x.grad().unwrap().dtype(), DType::F64, "the incoming gradient must be converted to the output's dtype");
    x.zero_grad();
    for wrong in [Tensor::from([1.0]), Tensor::from([[1.0, 2.0]]), Tensor::from(1.0)] {
        assert!(matches!(y.try_backward_with(start(wrong)), Err(Error::ShapeMismatch { .. })));
    }
    assert!(x.grad().is_none());
}

#[test]
fn an_untracked_tensor_is_rejected() {
    let expected = |e| matches!(e, Error::NotTracked { op: "backward", .. });
    assert!(expected(Tensor::from([1.0]).try_backward_with(BackwardOptions::default()).unwrap_err()));
    assert!(panic_of(|| leaf([1.0]).detach().backward()).contains("does not require a gradient"));
    assert!(panic_of(|| leaf([1.0]).gt(0.0).backward()).contains("does not require a gradient"));
}

#[test]
fn gradients_accumulate_over_paths_and_calls() {
    let x = number(3.0);
    let y = x.square() + &x * 5.0 + &x;
    y.backward();
    assert_eq!(slope(&x), 12.0);
    x.sin().backward();
    assert!((slope(&x) - (12.0 + 3f64.cos())).abs() < 1e-15);
    x.zero_grad();
    assert!(x.grad().is_none());
    x.set_grad(Some(Tensor::from(100.0)));
    (&x * 2.0).backward();
    assert_eq!(slope(&x), 102.0);
    assert!(panic_of(|| x.set_grad(Some(Tensor::from([1.0])))).contains("incompatible shapes"));
}

#[test]
fn gradients_of_diamond_graphs() {
    let x = number(3.0);
    let z = &x * 2.0;
    (&z * &z).backward();
    assert_eq!(slope(&x), 24.0, "(2x)²");
    x.zero_grad();
    let a = x.square();
    let (b, c) = (&a + 1.0, &a * 3.0);
    let d = &b * &c + &a;
    (&d * &d).backward();
    // d = 3a² + 4a, a = x²
    let (a, da) = (9.0, 6.0);
    assert_eq!(slope(&x), 2.0 * (3.0 * a * a + 4.0 * a) * (6.0 * a + 4.0) * da);
}

#[test]
fn repeated_indices_accumulate() {
    let table = Tensor::from([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(true);
    let rows = table.index_select(0, &Tensor::from([1i64, 1, 0, 1]));
    (rows * &Tensor::from([[1.0], [10.0], [100.0], [1000.0]])).backward();
    assert_close(&table.grad().unwrap(), &[100.0, 100.0, 1011.0, 1011.0]);
}

/// One array may be the gradient of several tensors. The accumulation of gradients must not write to it.
#[test]
fn accumulation_does_not_write_to_shared_arrays() {
    // In x + x, both operands have the same gradient array.
    let x = leaf([1.0, 2.0]);
    (&x + &x).backward();
    assert_close(&x.grad().unwrap(), &[2.0, 2.0]);
    (&x + &x).backward();
    assert_close(&x.grad().unwrap(), &[4.0, 4.0]);

    // a and b receive the same gradient array, and a receives another gradient later.
    let (a, b) = (leaf([1.0]), leaf([1.0]));
    let y = &a + &b;
    (&y + &a * 10.0).backward();
    assert_close(&a.grad().unwrap(), &[11.0]);
    assert_close(&b.grad().unwrap(), &[1.0]);

    // The pass must not write to the seed, which the caller owns.
    let seed = Tensor::from([5.0]);
    let c = leaf([1.0]);
    let y = &c + 0.0;
    for _ in 0..2 {
        y.backward_with(BackwardOptions { gradient: Some(seed.clone()), retain_graph: true, ..Default::default() });
    }
    assert_close(&c.grad().unwrap(), &[10.0]);
    assert_close(&seed, &[5.0]);

    // A gradient that the caller keeps does not change.
    let held = c.grad().unwrap();
    (&c * 3.0).backward();
    assert_close(&held, &[10.0]);
    assert_close(&c.grad().unwrap(), &[13.0]);

    // The retained gradient of m is the array that m passes to its producer.
    let d = leaf([1.0]);
    let m = &d * 1.0;
    m.retain_grad();
    let y = &m + 0.0;
    for _ in 0..2 {
        y.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
    }
    assert_close(&m.grad().unwrap(), &[2.0]);
    assert_close(&d.grad().unwrap(), &[2.0]);
}

/// Kernels add their gradient to the accumulated sum directly. The result is bit-identical to separate additions in the
/// order of arrival.
#[test]
fn accumulation_is_bitwise_equal_to_separate_additions() {
    let leaf = || Tensor::from([0.3f32, -1.7, 1e-3, 7.1, 1e10, -0.0]).requires_grad_(true);
    let uses = |x: [&Tensor; 4]| ((x[0].sin() * 3.0 * x[1]).tanh() * x[2]) / (x[3] * x[3] + 0.5);
    let parts: [Tensor; 4] = std::array::from_fn(|_| leaf());
    uses(parts.each_ref()).backward();
    let x = leaf();
    uses([&x; 4]).backward();
    // Nodes run by descending generation: the product with x[2] runs before the square of x[3].
    let [first, second, third, last] = [2, 1, 3, 0].map(|i: usize| parts[i].grad().unwrap());
    assert_eq!(bits(&[x.grad().unwrap()]), bits(&[((first + second) + third) + last]));
}

/// The pass adds to an accumulated gradient in place only if no other tensor shares its storage.
#[test]
fn accumulated_gradients_are_written_to_only_if_unshared() {
    // y = x + z passes one array to x and z. x then receives another gradient, whose computation reads this array.
    let (x, z) = (leaf([2.0, 3.0]), leaf([1.0, 1.0]));
    let square = &x * &x;
    let y = &x + &z * 1.0 + &square;
    y.retain_grad();
    square.retain_grad();
    let seed = Tensor::from([1.0, 2.0]);
    y.backward_with(BackwardOptions { gradient: Some(seed.clone()), ..Default::default() });
    assert_close(&x.grad().unwrap(), &[5.0, 14.0]);
    for untouched in [y.grad().unwrap(), square.grad().unwrap(), z.grad().unwrap(), seed] {
        assert_close(&untouched, &[1.0, 2.0]);
    }

    // Every intermediate tensor retains its gradient, which is a sum and an operand of later computations.
    let x = leaf([2.0]);
    let a = &x * 3.0;
    let b = &a * &a;
    let c = &b * &a + &b;
    c.backward_with(BackwardOptions { retain_grad: true, ..Default::default() });
    // c = a³ + a², a = 6
    assert_close(&b.grad().unwrap(), &[7.0]);
    assert_close(&a.grad().unwrap(), &[36.0 + 2.0 * 6.0 * 7.0]);
    assert_close(&x.grad().unwrap(), &[360.0]);

    // A tracked seed: the gradient of the seed may be requested, so no addition is untracked.
    let (x, seed) = (leaf([2.0]), leaf([1.0]));
    let y = &x + &x * &x;
    y.backward_with(BackwardOptions { gradient: Some(&seed * 1.0), ..Default::default() });
    assert_close(&x.grad().unwrap(), &[5.0]);
}

#[test]
fn non_leaf_gradients_are_retained_on_request_only() {
    let x = number(2.0);
    let build = || {
        let y = x.square();
        let z = &y * 3.0;
        (y, z)
    };
    let (y, z) = build();
    z.backward();
    assert!(y.grad().is_none() && z.grad().is_none());

    let (y, z) = build();
    y.retain_grad();
    z.backward();
    assert_eq!((slope(&y), z.grad().is_none()), (3.0, true));

    let (y, z) = build();
    z.backward_with(BackwardOptions { retain_grad: true, ..Default::default() });
    assert_eq!((slope(&y), slope(&z)), (3.0, 1.0));
}

#[test]
fn nodes_without_saved_values_are_never_freed() {
    let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
    let y = x.reshape([2, 1]).broadcast_to([2, 3]).to_dtype(DType::F32) * 2.0;
    for pass in 1..4 {
        (&y + 1.0).sum(..).backward();
        assert_eq!(x.grad().unwrap().to_vec::<f64>(), [6.0 * f64::from(pass); 2]);
    }
}

#[test]
fn a_second_pass_through_a_freed_graph_is_an_error() {
    let x = number(2.0);
    let y = x.sin();
    y.backward();
    let error = y.try_backward_with(BackwardOptions::default()).unwrap_err();
    assert_eq!(error, Error::GraphFreed { node: "sin" });
    assert!(error.to_string().contains("retain_graph"));
    assert_eq!(slope(&x), 2f64.cos(), "the failed pass changed a gradient");
    // The error names an operation that saves values; sums and reshapes save none.
    let m = Tensor::from([[1.0f64, 2.0], [3.0, 4.0]]).requires_grad_(true);
    let freed = |y: Tensor| {
        y.sum(..).backward();
        y.try_backward_with(BackwardOptions { gradient: Some(y.detach()), ..Default::default() }).unwrap_err()
    };
    assert_eq!(freed(m.square().sum(0)), Error::GraphFreed { node: "square" });
    assert_eq!(freed(m.square().max(1)), Error::GraphFreed { node: "max" });
    assert_eq!(freed(m.square().reshape([4])), Error::GraphFreed { node: "square" });
    let total = m.square().sum(..);
    total.backward();
    let error = total.try_backward_with(BackwardOptions::default()).unwrap_err();
    assert_eq!(error, Error::GraphFreed { node: "square" });
    // A new result over freed nodes is an error too.
    assert!(matches!((&y * 2.0).try_backward_with(BackwardOptions::default()), Err(Error::GraphFreed { .. })));

    let y = x.cos();
    x.zero_grad();
    for pass in 1..4 {
        y.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
        assert!((slope(&x) + pass as f64 * 2f64.sin()).abs() < 1e-15);
    }
    y.backward();
    assert!(y.try_backward_with(BackwardOptions::default()).is_err());
}

/// The pass reaches the retaining result before the node that was freed.
#[test]
fn a_failed_pass_changes_no_retained_gradient() {
    let x = number(3.0);
    let y = &x * &x;
    y.retain_grad();
    let loss = y.sum(..);
    loss.backward();
    assert!(matches!(loss.try_backward(), Err(Error::GraphFreed { node: "mul" })));
    assert_eq!((slope(&y), slope(&x)), (1.0, 6.0));
    let every = BackwardOptions { retain_grad: true, ..Default::default() };
    assert!(matches!(loss.try_backward_with(every), Err(Error::GraphFreed { node: "mul" })));
    assert!((slope(&y), loss.grad().is_none()) == (1.0, true));
}

/// Saved values that backward no longer needs are freed while handles of the graph exist.
#[test]
fn saved_values_are_freed_during_the_pass() {
    let x = Tensor::ones([4], DType::F64).requires_grad_(true);
    let factor = Tensor::from([1.0, 2.0, 3.0, 4.0]);
    let y = &x * &factor;
    let storage = std::sync::Arc::downgrade(factor.array().storage());
    drop(factor);
    assert!(storage.upgrade().is_some(), "the graph must keep the saved value before the pass");
    y.backward();
    assert!(storage.upgrade().is_none(), "the pass must free the saved value");
}

#[test]
fn a_missing_gradient_of_several_outputs_is_zero() {
    let x = leaf([3.0, 1.0, 2.0, 5.0]);
    let parts = x.split([1, 2, 1], 0);
    (&parts[1] * 10.0).backward();
    assert_close(&x.grad().unwrap(), &[0.0, 10.0, 10.0, 0.0]);
    x.zero_grad();
    let (values, _) = x.topk(2, 0, true);
    (values.i(1) * 7.0).backward();
    assert_close(&x.grad().unwrap(), &[7.0, 0.0, 0.0, 0.0]);
    x.zero_grad();
    // The node has two outputs, and only the second one is used.
    use pellucid_tensor::{formula, ops};
    let outputs = ops::map_all(formula!(|x| (x * x, x.sin())), &[&x], &[]).unwrap();
    outputs[1].backward();
    assert_close(&x.grad().unwrap(), &[3f64.cos(), 1f64.cos(), 2f64.cos(), 5f64.cos()]);
}

#[test]
fn a_gradient_has_its_tensors_dtype_and_shape() {
    let a = Tensor::from([[1.0f32], [2.0]]).requires_grad_(true);
    let b = Tensor::from([3.0f64, 4.0, 5.0]).requires_grad_(true);
    let c = Tensor::full([2], 2.0, DType::BF16).requires_grad_(true);
    let y = (&a * &b).sum(1) * &c;
    assert_eq!(y.dtype(), DType::F64);
    y.backward();
    let (ga, gb, gc) = (a.grad().unwrap(), b.grad().unwrap(), c.grad().unwrap());
    assert_eq!((ga.dtype(), &ga.shape()[..], ga.to_vec::<f64>()), (DType::F32, &[2, 1][..], vec![24.0, 24.0]));
    assert_eq!((gb.dtype(), &gb.shape()[..], gb.to_vec::<f64>()), (DType::F64, &[3][..], vec![6.0; 3]));
    assert_eq!((gc.dtype(), &gc.shape()[..], gc.to_vec::<f64>()), (DType::BF16, &[2][..], vec![12.0, 24.0]));
}

#[test]
fn only_tracked_tensors_receive_gradients() {
    let (x, c) = (number(2.0), Tensor::from(3.0));
    (&x * &c).backward();
    assert!(c.grad().is_none());
    assert_eq!(slope(&x), 3.0);
    // A dropped leaf needs no gradient.
    let y = {
        let gone = number(1.0);
        &gone * &x
    };
    x.zero_grad();
    y.backward();
    assert_eq!(slope(&x), 1.0);
}

/// A write to the gradient of a leaf affects neither other leaves nor the seed of the pass.
#[test]
fn every_leaf_has_a_separate_writable_gradient() {
    let leaf = || Tensor::from([1.0f64, 2.0]).requires_grad_(true);
    let begin = Tensor::from([5.0f64, 6.0]);
    let started = |y: &Tensor| y.backward_with(BackwardOptions { gradient: Some(begin.clone()), ..Default::default() });
    let scale = |t: &Tensor, by: f64| t.copy_(&t.mul(by));
    let check = |run: &dyn Fn()| {
        run();
        lazy(run);
    };
    check(&|| {
        let (a, b) = (leaf(), leaf());
        started(&(&a + &b));
        let [x, y] = [&a, &b].map(|t| t.grad().unwrap());
        scale(&x, 2.0);
        assert_eq!((x.to_vec::<f64>(), y.to_vec::<f64>()), (vec![10.0, 12.0], vec![5.0, 6.0]));
        // Accumulation into the gradient of a does not change the gradient of b.
        started(&(&a + &b));
        assert_eq!((a.grad().unwrap().to_vec::<f64>(), y.to_vec::<f64>()), (vec![15.0, 18.0], vec![5.0, 6.0]));
        // The gradients are also separate for reshaped inputs.
        let (c, d) = (leaf(), Tensor::from([[1.0f64, 2.0]]).requires_grad_(true));
        (c.reshape([1, 2]) + &d).square().sum(..).backward();
        scale(&c.grad().unwrap(), 0.0);
        assert_eq!(d.grad().unwrap().to_vec::<f64>(), [4.0, 8.0]);
    });
    check(&|| {
        // The gradient of a sum is one element that is broadcast. The leaf gets a copy of it.
        let a = leaf();
        a.sum(..).backward();
        scale(&a.grad().unwrap(), 3.0);
        assert_eq!(a.grad().unwrap().to_vec::<f64>(), [3.0, 3.0]);
    });
    check(&|| {
        // A write to the gradient of a leaf does not change a retained gradient, or a gradient that a hook has kept.
        let a = leaf();
        let h = a.reshape([1, 2]);
        h.retain_grad();
        h.square().sum(..).backward();
        scale(&a.grad().unwrap(), 0.0);
        assert_eq!(h.grad().unwrap().to_vec::<f64>(), [2.0, 4.0]);
        let b = leaf();
        let kept = Arc::new(Mutex::new(None));
        let place = kept.clone();
        b.register_hook(move |g| {
            *place.lock().unwrap() = Some(g.clone());
            None
        });
        b.square().sum(..).backward();
        scale(&b.grad().unwrap(), 0.0);
        let seen = kept.lock().unwrap().take().unwrap();
        assert_eq!(seen.to_vec::<f64>(), [2.0, 4.0]);
    });
    let a = leaf();
    started(&a.reshape([2]));
    scale(&a.grad().unwrap(), 0.0);
    assert_eq!(begin.to_vec::<f64>(), [5.0, 6.0]);
}

#[test]
fn a_gradient_set_on_a_result_is_the_seed() {
    let x = number(3.0);
    let keep = || BackwardOptions { retain_graph: true, retain_grad: true, ..Default::default() };
    let y = x.square();
    let after = |options: BackwardOptions| {
        x.zero_grad();
        y.backward_with(options);
        (slope(&x), y.grad().map(|g| g.item::<f64>()))
    };
    assert_eq!(after(keep()), (6.0, Some(1.0)));
    assert_eq!(after(keep()), (6.0, Some(2.0)), "the gradient of an earlier pass must not be the seed");
    y.set_grad(Some(Tensor::from(10.0)));
    assert_eq!(after(keep()), (60.0, Some(10.0)));
    assert_eq!(after(keep()), (60.0, Some(10.0)), "a gradient that set_grad() has set must remain the seed");
    assert_eq!(
        after(BackwardOptions { gradient: Some(Tensor::from(2.0)), ..keep() }),
        (12.0, Some(12.0)),
        "the gradient in the options must take precedence over set_grad()"
    );
    assert_eq!(after(keep()).0, 6.0, "the gradient that the last pass has stored must not be the seed");
    y.set_grad(Some(Tensor::from(10.0)));
    y.zero_grad();
    assert_eq!(after(keep()), (6.0, Some(1.0)));
    // A leaf adds to its gradient.
    x.set_grad(Some(Tensor::from(5.0)));
    x.backward();
    assert_eq!(slope(&x), 6.0);
    // `grad` uses its own seed.
    y.set_grad(Some(Tensor::from(10.0)));
    assert_eq!(grad(&[&y], &[&x], GradOptions::default()).unwrap()[0].item::<f64>(), 6.0);
}
