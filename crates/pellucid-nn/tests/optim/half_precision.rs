//! Parameters in half precision: state and master in `f32`.

use crate::numbers::KINDS;
use crate::{flat, parameters, set_gradients};
use pellucid_nn::Parameter;
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use pellucid_tensor::{DType, Error, Tensor, no_grad};

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
                    for (p, h) in full.parameters().iter().zip(half.parameters()) {
                        p.set_grad(Some(h.grad().unwrap().to_dtype(DType::F32)));
                    }
                    half.step();
                    full.step();
                }
                let state = half.state_dict();
                for (i, (h, f)) in half.parameters().iter().zip(full.parameters()).enumerate() {
                    let master = &state[&format!("state.{i}.master")];
                    assert_eq!(
                        master.to_vec::<f32>(),
                        f.to_vec::<f32>(),
                        "{kind}.{case} in {dtype}: the master copy differs from the f32 parameter"
                    );
                    assert_eq!(
                        h.to_bytes().unwrap(),
                        f.to_dtype(dtype).to_bytes().unwrap(),
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
    let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 1e-3, ..Default::default() }).unwrap();
    for _ in 0..100 {
        p.set_grad(Some(Tensor::ones([1], DType::BF16)));
        optimizer.step();
    }
    assert!((p.item::<f64>() - 0.9).abs() < 4e-3, "the parameter is {}, expected about 0.9", p.item::<f64>());
}

/// Weights that are loaded into half-precision parameters are not overwritten by old master copies.
#[test]
fn masters_can_be_renewed() {
    let p = Parameter::new(Tensor::ones([1], DType::BF16));
    let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 0.25, ..Default::default() }).unwrap();
    {
        let _guard = no_grad();
        p.copy_(&Tensor::from([5.0f32]));
    }
    optimizer.renew_masters().unwrap();
    p.set_grad(Some(Tensor::ones([1], DType::BF16)));
    optimizer.step();
    assert_eq!(p.item::<f32>(), 4.75);
}

#[test]
fn dtypes_mix_in_a_group_but_not_with_double() {
    let mixed = || [parameters(false, DType::F16), parameters(false, DType::F32)].concat();
    let optimizer = AdamW::new(mixed(), AdamWOptions::default()).unwrap();
    set_gradients(&optimizer, 1.0);
    let before = flat(optimizer.parameters());
    optimizer.set_lr(0.1);
    optimizer.step();
    assert!(flat(optimizer.parameters()).iter().zip(before).all(|(a, b)| *a != b));
    let double = [mixed(), parameters(false, DType::F64)].concat();
    assert!(matches!(AdamW::new(double, AdamWOptions::default()), Err(Error::DTypeMismatch { .. })));
}
