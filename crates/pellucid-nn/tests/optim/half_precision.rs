//! Parameters in half precision: state and master in `f32`.

use crate::numbers::KINDS;
use crate::{flat, parameters, set_gradients};
use pellucid_nn::Parameter;
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use pellucid_tensor::{DType, Error, Tensor, capture, no_grad};

/// For every rule, the parameter is its master copy, rounded, and the master copy equals an `f32`
/// parameter with the same gradients.
#[test]
fn master_copies_equal_f32_parameters() {
    for dtype in [DType::F16, DType::BF16] {
        for (kind, cases, make) in KINDS.iter().copied() {
            for case in 0..cases {
                let own = parameters(kind == "muon", dtype);
                let full: Vec<Parameter> = own.iter().map(|p| Parameter::new(p.to_dtype(DType::F32))).collect();
                let (half, full) = (make(own, case), make(full, case));
                for t in 1..=5 {
                    set_gradients(&*half, f64::from(t));
                    for (p, h) in full.parameters().iter().zip(&*half.parameters()) {
                        p.set_grad(Some(h.grad().unwrap().to_dtype(DType::F32)));
                    }
                    half.step();
                    full.step();
                }
                let state = half.state_dict();
                for (i, (h, f)) in half.parameters().iter().zip(&*full.parameters()).enumerate() {
                    let master = &state[&format!("state.{i}.master")];
                    assert_eq!(
                        master.to_vec::<f32>(),
                        f.to_vec::<f32>(),
                        "{kind}.{case} in {dtype}: the master copy differs from the f32 parameter"
                    );
                    assert_eq!(
                        h.to_bytes(),
                        f.to_dtype(dtype).to_bytes(),
                        "{kind}.{case}: the parameter differs from the rounded f32 parameter"
                    );
                }
            }
        }
    }
}

/// Steps below the resolution of half precision accumulate in the master copy.
#[test]
fn small_steps_are_not_lost() {
    let p = Parameter::new(Tensor::ones([1], DType::BF16));
    let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 1e-3, ..Default::default() });
    for _ in 0..100 {
        p.set_grad(Some(Tensor::ones([1], DType::BF16)));
        optimizer.step();
    }
    assert!((p.item::<f64>() - 0.9).abs() < 4e-3, "the parameter is {}, expected about 0.9", p.item::<f64>());
}

/// A value that is written into a half-precision parameter stays: the next step starts from it. Elements that were not
/// written keep the precision of their `f32` copies.
#[test]
fn written_weights_are_not_overwritten_by_older_copies() {
    for dtype in [DType::BF16, DType::F16] {
        let p = Parameter::new(Tensor::ones([2], dtype));
        let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 1e-4, ..Default::default() });
        let step = || {
            p.set_grad(Some(Tensor::ones([2], dtype)));
            optimizer.step();
        };
        (0..20).for_each(|_| step());
        {
            let _guard = no_grad();
            p.set(0, 5.0);
        }
        step();
        let rounded = |value: f64| Tensor::from([value]).to_dtype(dtype).item::<f64>();
        assert_eq!(p.to_vec::<f64>(), [rounded(5.0 - 1e-4), rounded(1.0 - 21e-4)], "{dtype}");
        let master = &optimizer.state_dict()["state.0.master"];
        assert!((master.i(0).item::<f64>() - (5.0 - 1e-4)).abs() < 1e-6, "{master}");
        assert!((master.i(1).item::<f64>() - (1.0 - 21e-4)).abs() < 1e-6, "{master}");
    }
}

/// The same for every optimizer, in eager and in captured steps: the written value is far from the older copy.
#[test]
fn every_optimizer_keeps_written_weights() {
    for (kind, cases, make) in KINDS.iter().copied() {
        for case in 0..cases {
            let optimizer = make(parameters(kind == "muon", DType::BF16), case);
            let write = || {
                let _guard = no_grad();
                optimizer.parameters().iter().for_each(|p| p.copy_(&Tensor::full(p.shape(), 64.0, p.dtype())));
            };
            let distances = |what: &str| {
                let moved = flat(&optimizer.parameters()).iter().any(|value| (value - 64.0).abs() > 32.0);
                assert!(!moved, "{kind}.{case}, {what}: the step does not start from the written weights");
            };
            set_gradients(&*optimizer, 1.0);
            optimizer.step();
            write();
            optimizer.step();
            distances("eager");
            let mut step = capture(|_: &[Tensor]| optimizer.try_step(), &[]).unwrap();
            step.launch(&[]).unwrap();
            write();
            step.launch(&[]).unwrap();
            distances("captured");
        }
    }
}

#[test]
fn dtypes_mix_in_a_group_but_not_with_double() {
    let mixed = || [parameters(false, DType::F16), parameters(false, DType::F32)].concat();
    let optimizer = AdamW::new(mixed(), AdamWOptions::default());
    set_gradients(&optimizer, 1.0);
    let before = flat(&optimizer.parameters());
    optimizer.set_lr(0.1);
    optimizer.step();
    assert!(flat(&optimizer.parameters()).iter().zip(before).all(|(a, b)| *a != b));
    let double = [mixed(), parameters(false, DType::F64)].concat();
    assert!(matches!(AdamW::try_new(double, AdamWOptions::default()), Err(Error::DTypeMismatch { .. })));
}
