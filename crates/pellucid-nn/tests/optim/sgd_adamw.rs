//! SGD and AdamW against PyTorch's values, and against their definitions in `f64`.

use pellucid_nn::Parameter;
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm};
use pellucid_tensor::{DType, Error, Tensor};

const START: [f64; 3] = [0.5, -1.0, 2.0];

/// Runs four steps on Σ p³/3 + t·sin p, from [`START`], and returns the parameter.
fn descend(optimizer: &impl Optimizer) -> Vec<f64> {
    let p = optimizer.parameters()[0].clone();
    for t in 1..=4i32 {
        optimizer.zero_grad();
        p.cube().div(3.0).add(p.sin() * f64::from(t)).sum(..).backward();
        optimizer.step();
    }
    p.to_vec()
}

/// The gradient of the loss of [`descend`].
fn gradient(p: f64, t: i32) -> f64 {
    p * p + f64::from(t) * p.cos()
}

fn parameter(dtype: DType) -> Vec<Parameter> {
    vec![Parameter::new(Tensor::from(START).to_dtype(dtype))]
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "the parameters are {found:?}, expected {expected:?}");
    }
}

/// The values of PyTorch 2 in `f64`, for the same four steps.
#[test]
fn sgd_matches_pytorch() {
    let base = SgdOptions { lr: 0.1, ..Default::default() };
    let decay = SgdOptions { weight_decay: 0.05, ..base };
    let momentum = SgdOptions { momentum: 0.9, ..decay };
    let nesterov = SgdOptions { nesterov: true, ..momentum };
    for (options, expected) in [
        (base, [-0.5099762845266109, -1.8588224056194087, 0.8419326222317871]),
        (decay, [-0.5146828128361531, -1.8346667419723532, 0.8090452542541964]),
        (momentum, [-1.3881150118498458, -2.7552757527818317, -0.8771792498941706]),
        (nesterov, [-2.0593276368003495, -3.6095520921147197, -1.7978331264501983]),
    ] {
        close(&descend(&Sgd::new(parameter(DType::F64), options)), &expected, 1e-14);
        close(&descend(&Sgd::new(parameter(DType::F32), options)), &expected, 1e-5);
    }
}

#[test]
fn adamw_matches_pytorch() {
    let strong = AdamWOptions { lr: 0.1, betas: (0.9, 0.99), eps: 1e-6, weight_decay: 0.05, ..Default::default() };
    for (options, expected) in [
        (strong, [0.10253581488113878, -1.3763131658958037, 1.5691437890075841]),
        (AdamWOptions::default(), [0.49606144045856265, -1.003950149803979, 1.9959703082529408]),
    ] {
        close(&descend(&AdamW::new(parameter(DType::F64), options)), &expected, 1e-13);
        close(&descend(&AdamW::new(parameter(DType::F32), options)), &expected, 2e-7);
    }
}

#[test]
fn adamw_matches_its_definition() {
    let options = AdamWOptions { lr: 0.03, betas: (0.8, 0.95), eps: 1e-3, weight_decay: 0.2, ..Default::default() };
    let (b1, b2) = options.betas;
    let expected = START.map(|start| {
        let (mut p, mut m, mut v) = (start, 0.0, 0.0);
        for t in 1..=4 {
            let g = gradient(p, t);
            p *= 1.0 - options.lr * options.weight_decay;
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            p -= options.lr * (m / (1.0 - b1.powi(t))) / ((v / (1.0 - b2.powi(t))).sqrt() + options.eps);
        }
        p
    });
    close(&descend(&AdamW::new(parameter(DType::F64), options)), &expected, 1e-13);
}

/// With β = 0, every step is η·g / (|g| + ε).
#[test]
fn adamw_without_memory_is_sign_descent() {
    let options = AdamWOptions { lr: 0.1, betas: (0.0, 0.0), eps: 0.0, weight_decay: 0.0, ..Default::default() };
    let optimizer = AdamW::new(parameter(DType::F64), options);
    let p = optimizer.parameters()[0].clone();
    p.sum(..).backward();
    optimizer.step();
    close(&p.to_vec::<f64>(), &START.map(|s| s - 0.1), 1e-15);
}

#[test]
fn parameters_without_gradient_are_unchanged() {
    let parameters: Vec<Parameter> = (0..2).map(|i| Parameter::new(Tensor::from([1.0f32 + i as f32]))).collect();
    let optimizer = AdamW::new(parameters.clone(), AdamWOptions::default());
    parameters[0].sum(..).backward();
    optimizer.step();
    assert_ne!(parameters[0].item::<f32>(), 1.0);
    assert_eq!(parameters[1].item::<f32>(), 2.0);
    assert_eq!(optimizer.state_dict()["state.1.square"].item::<f32>(), 0.0);
}

#[test]
fn a_step_does_not_record_and_keeps_the_handles() {
    let parameters = parameter(DType::F32);
    let optimizer = Sgd::new(parameters.clone(), SgdOptions { momentum: 0.5, ..Default::default() });
    descend(&optimizer);
    assert!(parameters[0].is_leaf() && parameters[0].requires_grad());
    assert!(optimizer.state().iter().all(|(_, t)| t.is_leaf() && !t.requires_grad()));
}

#[test]
fn training_resumes_exactly() {
    let options = AdamWOptions { lr: 0.1, ..Default::default() };
    let first = AdamW::new(parameter(DType::F32), options);
    descend(&first);
    first.set_lr(0.05);
    let second = AdamW::new(vec![Parameter::new(first.parameters()[0].copy())], options);
    second.load_state_dict(&first.state_dict()).unwrap();
    assert_eq!(second.lr(), 0.05);
    assert_eq!(descend(&first), descend(&second));
    assert_eq!(first.clock_tensor(0, "step").unwrap().item::<f32>(), 8.0);

    let sgd = Sgd::new(parameter(DType::F32), SgdOptions::default());
    assert!(matches!(sgd.load_state_dict(&first.state_dict()), Err(Error::StateDict { .. })));
}

#[test]
fn clipping_scales_all_gradients_alike() {
    let parameters: Vec<Parameter> = (0..2).map(|_| Parameter::new(Tensor::from([1.0f64]))).collect();
    parameters[0].mul(3.0).add(parameters[1].mul(4.0)).sum(..).backward();
    assert_eq!(clip_grad_norm(&parameters, 10.0).unwrap().item::<f64>(), 5.0);
    assert_eq!(parameters[0].grad().unwrap().item::<f64>(), 3.0);
    clip_grad_norm(&parameters, 1.0).unwrap();
    let clipped: Vec<f64> = parameters.iter().map(|p| p.grad().unwrap().item()).collect();
    close(&clipped, &[0.6, 0.8], 1e-6);
    assert!(matches!(clip_grad_norm(&[], 1.0), Err(Error::InvalidArgument { .. })));
}

#[test]
fn invalid_arguments_are_rejected_at_construction() {
    let invalid = |options| matches!(Sgd::try_new(parameter(DType::F32), options), Err(Error::InvalidArgument { .. }));
    let base = SgdOptions::default();
    assert!(invalid(SgdOptions { lr: -1.0, ..base }));
    assert!(invalid(SgdOptions { lr: f64::NAN, ..base }));
    assert!(invalid(SgdOptions { momentum: 1.0, ..base }));
    assert!(invalid(SgdOptions { nesterov: true, ..base }));
    let betas = AdamWOptions { betas: (0.9, 1.0), ..Default::default() };
    assert!(matches!(AdamW::try_new(parameter(DType::F32), betas), Err(Error::InvalidArgument { .. })));

    let shared = parameter(DType::F32);
    let twice = vec![shared[0].clone(), shared[0].clone()];
    let text = Sgd::try_new(twice, base).expect_err("a parameter with two entries must be rejected").to_string();
    assert!(text.contains("listed twice, as `0` and as `1`"), "{text}");
    let mixed = [parameter(DType::F32), parameter(DType::F64)].concat();
    assert!(matches!(Sgd::try_new(mixed, base), Err(Error::DTypeMismatch { .. })));
}
