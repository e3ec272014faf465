//! Plans are bit-identical to eager kernels, with the fusion rules of the CPU and of launch-bound devices.

use super::plan_fuzz::{PlanMode, compare, compare_modes, launch_bound, operation_names};
use crate::support::bits;
use crate::table::devices::toy;
use pellucid_tensor::ops::{self, PaddingMode, QuantileInterpolation, TripletMarginLossOptions, over};
use pellucid_tensor::{DType, GradOptions, Result, Tensor, capture, grad, lazy};

/// The first programs of `fuzz_plans`, whose number of programs is configurable.
#[test]
fn random_programs_compute_the_same_bits_in_every_mode() {
    let (mut operations, mut gradients, mut has_axes) = (vec![0; operation_names().count()], [0; 2], [0; 2]);
    for seed in 0..500 {
        let coverage = compare_modes(seed).unwrap_or_else(|difference| panic!("program {seed}, {difference}"));
        operations.iter_mut().zip(&coverage.operations).for_each(|(total, count)| *total += count);
        for k in 0..2 {
            gradients[k] += usize::from(coverage.gradients[k] > 0);
            has_axes[k] += usize::from(coverage.has_axes[k]);
        }
    }
    for (name, count) in operation_names().zip(operations) {
        assert!(count >= 8, "`{name}` must return a result at least 8 times, got {count}");
    }
    assert!(gradients[0] > 100 && gradients[1] > 30, "{gradients:?}");
    assert!(has_axes[0] > 20 && has_axes[1] > 200, "{has_axes:?}");
}

/// A device that defers its kernels, most of which run on the CPU, is bit-identical to a device that runs them
/// immediately.
#[test]
fn random_programs_compute_the_same_bits_on_a_device_that_defers_kernels() {
    for seed in 1000..1100 {
        compare(seed, toy(0), &[(PlanMode::Eager, toy(1))])
            .unwrap_or_else(|difference| panic!("program {seed}, {difference}"));
    }
}

/// Operations whose gradients read a map both in a reduction and together with its result.
type Reducing = (&'static str, fn(&Tensor) -> Result<Tensor>);

const REDUCING: [Reducing; 11] = [
    ("pdist", |x| ops::pdist(x, 3.0)),
    ("cdist", |x| ops::cdist(x, &ops::exp(x)?, 4.0)),
    ("normalize", |x| ops::normalize(x, 3.0, -1, 1e-6)),
    ("masked_normalize", |x| ops::masked_normalize(x, &ops::gt(x, 0.0)?, 3.0, -1, 1e-6)),
    ("renorm", |x| ops::renorm(x, 3.0, 0, 0.7)),
    ("norm 3", |x| ops::norm(x, 3.0, -1)),
    ("norm 0.5", |x| ops::norm(x, 0.5, over(-1).keepdims())),
    ("pairwise_distance", |x| ops::pairwise_distance(x, &ops::tanh(x)?, 3.0, 1e-6, true)),
    ("cosine_similarity", |x| ops::cosine_similarity(x, &ops::exp(x)?, -1, 1e-6)),
    ("triplet_margin_loss", |x| {
        ops::triplet_margin_loss(x, &ops::exp(x)?, &ops::sin(x)?, TripletMarginLossOptions::default())
    }),
    ("a quotient by its own sum", |x| {
        let q = ops::exp(x)?;
        ops::mul(&ops::div(&q, &ops::sum(&q, over(-1).keepdims())?)?, &q)
    }),
];

#[test]
fn gradients_of_reductions_over_axes_of_any_length_are_equal_on_launch_bound_devices() {
    for (name, apply) in REDUCING {
        for (shape, dtype) in
            [[3, 1], [1, 1], [3, 4], [4, 0], [0, 1]].map(|s| [DType::F32, DType::F64].map(|d| (s, d))).concat()
        {
            let x = (Tensor::arange(0.0, (shape[0] * shape[1]) as f64, 1.0) * 1.7 - 1.9).sin().reshape(shape);
            let x = x.to_dtype(dtype);
            let step = |x: &Tensor| {
                let x = x.detach().requires_grad_(true);
                let Ok(y) = apply(&x) else { return vec![] };
                let create = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
                let first = grad(&[&y], &[&x], create).unwrap();
                let last = GradOptions { allow_unused: true, ..Default::default() };
                let second = grad(&[&first[0].square()], &[&x], last).unwrap();
                vec![y.detach(), first[0].detach(), second[0].clone()]
            };
            let expected = bits(&step(&x));
            let on_device = x.to(launch_bound());
            assert_eq!(bits(&lazy(|| step(&x))), expected, "{name} {shape:?}, lazy");
            assert_eq!(bits(&step(&on_device)), expected, "{name} {shape:?}, launch-bound");
            for x in [&x, &on_device] {
                let mut step = capture(|inputs| step(&inputs[0]), &[x]).unwrap();
                let outputs = step.launch(&[x]).unwrap();
                let outputs: Vec<Tensor> = (0..outputs.len()).map(|k| outputs.to_tensor(k)).collect();
                assert_eq!(bits(&outputs), expected, "{name} {shape:?}, captured on {}", x.device());
            }
        }
    }
}

/// Operations that create constants, and calls that are rejected after they have created one, can be part of a step
/// that is captured on a device other than the CPU.
#[test]
fn numbers_of_an_operation_are_on_the_device_of_a_captured_step() {
    let cases: [Reducing; 5] = [
        ("quantile", |x| ops::quantile(x, 0.3, over(1), QuantileInterpolation::Linear)),
        ("median of two", |x| ops::quantile(x, 0.5, .., QuantileInterpolation::Midpoint)),
        ("pad", |x| {
            ops::to_dtype(&ops::pad(&ops::to_dtype(x, DType::I64)?, 1, PaddingMode::Constant(1.into()))?, x.dtype())
        }),
        ("prod of none", |x| ops::prod(&ops::narrow(x, 0, 0, 0)?, 0)),
        ("a failed call", |x| {
            ops::where_(&ops::gt(x, 0.0)?, &ops::reshape(x, [6])?, 1.0).expect_err("the shapes must not broadcast");
            ops::mul(x, 2.0)
        }),
    ];
    let x = Tensor::from([[0.3f32, -1.2, 2.5], [0.7, 0.1, -0.4]]);
    let on_device = x.to(launch_bound());
    for (name, apply) in cases {
        let step = |x: &Tensor| {
            let x = x.detach().requires_grad_(true);
            let y = apply(&x).unwrap();
            let mut all = vec![y.detach()];
            if y.requires_grad() {
                all.extend(grad(&[&y], &[&x], GradOptions::default()).unwrap());
            }
            all
        };
        let mut captured = capture(|inputs| step(&inputs[0]), &[&on_device]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let outputs = captured.launch(&[&on_device]).unwrap();
        let outputs: Vec<Tensor> = (0..outputs.len()).map(|k| outputs.to_tensor(k)).collect();
        assert_eq!(bits(&outputs), bits(&step(&x)), "{name}");
    }
}
