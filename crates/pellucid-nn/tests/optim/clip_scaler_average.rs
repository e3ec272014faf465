//! Gradient clipping, the loss scaler, and averages of weights.

use crate::numbers::KINDS;
use crate::{close, flat, parameters, set_gradients};
use pellucid_nn::optim::*;
use pellucid_nn::{
    BatchNorm1d, Dropout, InstanceNorm1d, Layer, Linear, Module, Parameter, init, sequential, with_evaluation_mode,
};
use pellucid_tensor::{DType, Error, Tensor, autocast, capture};
use std::slice::from_ref;

fn with_gradients(gradients: &[&[f64]], dtype: DType) -> Vec<Parameter> {
    let make = |g: &&[f64]| {
        let p = Parameter::new(Tensor::zeros([g.len()], dtype));
        p.set_grad(Some(Tensor::new(g.to_vec(), [g.len()]).to_dtype(dtype)));
        p
    };
    gradients.iter().map(make).collect()
}

fn gradients(parameters: &[Parameter]) -> Vec<f64> {
    parameters.iter().flat_map(|p| p.grad().unwrap().to_vec::<f64>()).collect()
}

#[test]
fn norms_of_any_order_are_clipped() {
    let all = [1.0, -2.0, 4.0, 0.5, -8.0];
    for order in [1.0, 2.0, 3.0, f64::INFINITY] {
        let parameters = with_gradients(&[&all[..2], &all[2..]], DType::F64);
        let norm = if order.is_infinite() {
            8.0
        } else {
            all.iter().map(|x: &f64| x.abs().powf(order)).sum::<f64>().powf(1.0 / order)
        };
        let options = ClipGradNormOptions { order, error_if_nonfinite: true };
        close(&[grad_norm(&parameters, order).unwrap().item()], &[norm], 1e-14, "norm");
        let found = clip_grad_norm_with(&parameters, 2.0, options).unwrap();
        close(&[found.item()], &[norm], 1e-14, "norm");
        close(&gradients(&parameters), &all.map(|g| g * 2.0 / (norm + 1e-6)), 1e-14, "clipped");
    }
}

/// The powers of these gradients over- or underflow `f32`.
#[test]
fn large_and_small_gradients_are_clipped() {
    for order in [2.0, 3.0] {
        for scale in [2f64.powi(83), 2f64.powi(-83)] {
            let all = [2.0, -3.0, 6.0].map(|g| g * scale);
            let parameters = with_gradients(&[&all[..2], &all[2..]], DType::F32);
            let norm = scale * [2.0f64, 3.0, 6.0].iter().map(|x| x.powf(order)).sum::<f64>().powf(1.0 / order);
            let options = ClipGradNormOptions { order, ..Default::default() };
            let found = clip_grad_norm_with(&parameters, 2.0, options).unwrap();
            close(&[found.item::<f64>() / scale], &[norm / scale], 1e-6, "norm");
            close(&gradients(&parameters), &all.map(|g| g * (2.0 / (norm + 1e-6)).min(1.0)), 1e-6, "clipped");
        }
    }
}

#[test]
fn norms_that_are_not_finite_can_be_errors() {
    let parameters = with_gradients(&[&[1.0, f64::NAN], &[2.0]], DType::F32);
    let strict = ClipGradNormOptions { error_if_nonfinite: true, ..Default::default() };
    assert!(matches!(clip_grad_norm_with(&parameters, 1.0, strict), Err(Error::InvalidArgument { .. })));
    assert_eq!(gradients(&parameters)[2], 2.0);
    assert!(clip_grad_norm(&parameters, 1.0).unwrap().item::<f32>().is_nan());
    assert!(gradients(&parameters)[2].is_nan());
}

/// The norm of `f16` gradients does not overflow, and gradients may have different dtypes.
#[test]
fn half_precision_gradients_are_clipped() {
    let half = with_gradients(&[&[6e4, 6e4]], DType::F16);
    let all = [half, with_gradients(&[&[1.0]], DType::F32)].concat();
    let norm = clip_grad_norm(&all, 1.0).unwrap();
    assert_eq!(norm.dtype(), DType::F32);
    close(&[norm.item()], &[6e4 * 2f64.sqrt()], 1e-3, "norm");
    close(&gradients(&all)[..2], &[0.5f64.sqrt(); 2], 1e-3, "clipped");
}

#[test]
fn values_are_clipped() {
    let parameters = with_gradients(&[&[1.0, -2.0], &[0.25]], DType::F16);
    clip_grad_value(&parameters, 0.5).unwrap();
    assert_eq!(gradients(&parameters), [0.5, -0.5, 0.25]);
    assert!(matches!(clip_grad_value(&parameters, 0.0), Err(Error::InvalidArgument { .. })));
}

/// A step with inf or NaN changes no optimizer; other steps are as without a scaler.
#[test]
fn the_scaler_skips_non_finite_steps() {
    let options = GradScalerOptions { init_scale: 8.0, growth_interval: 2, ..Default::default() };
    for (kind, cases, make) in KINDS.iter().copied() {
        for case in 0..cases {
            let make = || make(parameters(kind == "muon", DType::F64), case);
            let (scaled, plain) = (make(), make());
            let scaler = GradScaler::new(options);
            let mut scales = Vec::new();
            for (i, poison) in [None, Some(f64::INFINITY), None, None, Some(f64::NAN), None].into_iter().enumerate() {
                scales.push(scaler.scale_tensor().item::<f64>());
                let unscaled = scaler.scale(&Tensor::scalar(1.0, DType::F64));
                for p in scaled.parameters().iter() {
                    p.set_grad(Some((crate::gradient(&p.detach(), i as f64) * &unscaled).detach()));
                }
                if let Some(poison) = poison {
                    let g = scaled.parameters()[1].grad().unwrap();
                    g.set(0, Tensor::full(g.i(0).shape(), poison, DType::F64));
                    let before: Vec<_> = scaled.state().iter().map(|(_, t)| t.to_bytes()).collect();
                    let values = flat(&scaled.parameters());
                    scaler.step(&*scaled);
                    let after: Vec<_> = scaled.state().iter().map(|(_, t)| t.to_bytes()).collect();
                    assert_eq!(
                        (after, flat(&scaled.parameters())),
                        (before, values),
                        "{kind}.{case}: a skipped step must change neither state nor parameters"
                    );
                } else {
                    set_gradients(&*plain, i as f64);
                    plain.step();
                    scaler.step(&*scaled);
                }
                scaler.update();
            }
            assert_eq!(scales, [8.0, 8.0, 4.0, 4.0, 8.0, 4.0], "{kind}.{case}: the scales differ");
            close(&flat(&scaled.parameters()), &flat(&plain.parameters()), 1e-12, &format!("{kind}.{case}"));
        }
    }
}

/// The scale follows PyTorch's rule; it does not grow beyond the range of `f32`.
#[test]
fn the_scale_grows_and_backs_off() {
    let options = GradScalerOptions { init_scale: 3e38, growth_interval: 1, ..Default::default() };
    let scaler = GradScaler::new(options);
    let optimizer = Sgd::new(with_gradients(&[&[0.0]], DType::F32), SgdOptions::default());
    scaler.scale(&Tensor::scalar(0.0, DType::F32));
    scaler.step(&optimizer);
    scaler.update();
    assert_eq!(scaler.scale_tensor().item::<f32>(), 3e38);
    let other = GradScaler::new(GradScalerOptions::default());
    other.load_state_dict(&scaler.state_dict()).unwrap();
    assert_eq!(other.scale_tensor().item::<f32>(), 3e38);
    for wrong in [
        GradScalerOptions { init_scale: 0.0, ..options },
        GradScalerOptions { growth_factor: 1.0, ..options },
        GradScalerOptions { backoff_factor: 1.0, ..options },
        GradScalerOptions { growth_interval: 0, ..options },
    ] {
        assert!(matches!(GradScaler::try_new(wrong), Err(Error::InvalidArgument { .. })));
    }
}

/// A step needs a scaled loss, an optimizer makes one step for each update, and an update needs a step.
#[test]
fn the_scaler_rejects_another_order() {
    let rejected = |result: Result<(), Error>, help: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("grad_scaler") && text.contains(help), "{text}");
    };
    let parameters = with_gradients(&[&[2.0]], DType::F32);
    let mut optimizer = Sgd::new(parameters, SgdOptions { lr: 1.0, ..Default::default() });
    let other = Sgd::new(with_gradients(&[&[2.0]], DType::F32), SgdOptions::default());
    let scaler = GradScaler::new(GradScalerOptions { init_scale: 4.0, ..Default::default() });
    let before = flat(&optimizer.parameters());
    let loss = Tensor::scalar(1.0, DType::F32);
    for _ in 0..2 {
        rejected(scaler.try_update(), "step(&optimizer)");
        rejected(scaler.try_step(&optimizer), "scale(&loss).backward()");
        rejected(scaler.try_unscale(&optimizer).map(|_| ()), "scale(&loss).backward()");
        scaler.scale(&loss);
        rejected(scaler.try_update(), "step(&optimizer)");
        scaler.step(&optimizer);
        let boxed: Box<dyn Optimizer + '_> = Box::new(&optimizer);
        rejected(scaler.try_step(&*boxed), "call update()");
        rejected(scaler.try_unscale(&optimizer).map(|_| ()), "call update()");
        let unscaled = scaler.unscale(&other);
        rejected(scaler.try_step(&other), "call update()");
        unscaled.step();
        scaler.update();
    }
    assert_eq!(flat(&optimizer.parameters()), [before[0] - 1.0], "a failed step must change nothing");

    // The order is checked after a captured step of all calls, however often it is launched, even if the optimizer has
    // received parameters.
    let mut step = capture(
        |inputs| {
            let scaled = scaler.scale(&inputs[0]);
            scaler.step(&optimizer);
            scaler.update();
            scaled
        },
        &[&loss],
    )
    .unwrap();
    (0..2).for_each(|_| _ = step.launch(&[&loss]).unwrap());
    drop(step);
    rejected(scaler.try_update(), "step(&optimizer)");
    rejected(scaler.try_step(&optimizer), "scale(&loss).backward()");
    scaler.scale(&loss);
    scaler.step(&optimizer);
    optimizer.add_params(with_gradients(&[&[2.0]], DType::F32));
    rejected(scaler.try_step(&optimizer), "call update()");
    scaler.update();

    // The launches of a captured step of some of the calls make no calls.
    let scale = capture(|inputs| scaler.scale(&inputs[0]), &[&loss]);
    drop(scale.unwrap());
    scaler.step(&optimizer);
    scaler.step(&optimizer);
}

/// Mixed precision with clipping: captured steps equal eager ones bit for bit, skipped ones included.
#[test]
fn a_scaled_step_can_be_captured() {
    let run = |captured: bool| {
        let p = Parameter::new(Tensor::linspace(-1.0, 1.0, 8, DType::F16));
        let optimizer = AdamW::new(vec![p.clone()], AdamWOptions { lr: 0.05, ..Default::default() });
        let options = GradScalerOptions { init_scale: 65536.0, growth_interval: 3, ..Default::default() };
        let scaler = GradScaler::new(options);
        let step = |x: &Tensor| {
            optimizer.zero_grad();
            let loss = (p.tensor() * x.to_dtype(DType::F16)).to_dtype(DType::F32).square().sum(..);
            scaler.scale(&loss).backward();
            let unscaled = scaler.unscale(&optimizer);
            clip_grad_norm(&optimizer.parameters(), 0.5).unwrap();
            unscaled.step();
            scaler.update();
            loss
        };
        let inputs: Vec<Tensor> = (0..12).map(|i| Tensor::full([8], 0.3 + 0.1 * f64::from(i), DType::F32)).collect();
        if captured {
            let mut replay = capture(|inputs| step(&inputs[0]), &[&inputs[0]]).unwrap();
            for x in &inputs {
                replay.launch(&[x]).unwrap();
            }
        } else {
            for x in &inputs {
                step(x);
            }
        }
        let state = optimizer.state_dict().into_iter().chain(scaler.state_dict());
        let bytes: Vec<_> = state.map(|(_, t)| t.to_bytes()).collect();
        (
            bytes,
            p.to_bytes(),
            scaler.scale_tensor().item::<f32>(),
            optimizer.clock_tensor(0, "step").unwrap().item::<f32>(),
        )
    };
    let eager = run(false);
    assert!(eager.2 < 65536.0, "the initial scale must overflow f16 and be reduced");
    assert!(
        eager.3 > 4.0 && eager.3 < 12.0,
        "some steps must be applied and some skipped, but {} steps were applied",
        eager.3
    );
    assert_eq!(run(true), eager);
}

#[test]
fn averages_match_their_definitions() {
    let model = Linear::new(2, 1);
    let ema = AveragedModel::new(&model, Average::Exponential(0.8));
    let mut swa = AveragedModel::new(&model, Average::Equal);
    let weights: Vec<[f64; 2]> = (0..6).map(|i| [f64::from(i * i), 1.0 / f64::from(i + 1)]).collect();
    for w in &weights {
        let _guard = pellucid_tensor::no_grad();
        model.parameters()[0].copy_(&Tensor::from([*w]));
        ema.update().unwrap();
        swa.update().unwrap();
    }
    let of = |average: &AveragedModel| average.averages().next().unwrap().1.to_vec::<f64>();
    let mean = [0, 1].map(|k| weights.iter().map(|w| w[k]).sum::<f64>() / 6.0);
    let fading = [0, 1].map(|k| weights[1..].iter().fold(weights[0][k], |a, w| 0.8 * a + (1.0 - 0.8) * w[k]));
    close(&of(&swa), &mean, 1e-6, "swa");
    close(&of(&ema), &fading, 1e-6, "ema");
    assert_eq!(ema.count_tensor().item::<f32>(), 6.0);

    let own = flat(&model.parameters());
    swa.apply().unwrap();
    close(&flat(&model.parameters())[..2], &mean, 1e-6, "applied");
    assert!(matches!(swa.apply(), Err(Error::InvalidArgument { .. })));
    assert!(matches!(swa.update(), Err(Error::InvalidArgument { .. })));
    swa.restore().unwrap();
    assert_eq!(flat(&model.parameters()), own);
    assert!(matches!(swa.restore(), Err(Error::InvalidArgument { .. })));

    let state = ema.state_dict();
    let mut again = AveragedModel::new(&model, Average::Exponential(0.8));
    again.load_state_dict(&state).unwrap();
    ema.update().unwrap();
    again.update().unwrap();
    assert_eq!(of(&again), of(&ema));
    again.apply().unwrap();
    let mut empty = AveragedModel::new(&model, Average::Equal);
    let weights = model.parameters()[0].to_vec::<f64>();
    let rejected = empty.apply().unwrap_err().to_string();
    assert!(rejected.contains("before the first update()"), "{rejected}");
    assert_eq!(model.parameters()[0].to_vec::<f64>(), weights, "a failed call must change nothing");
    assert!(matches!(AveragedModel::try_new(&model, Average::Exponential(1.5)), Err(Error::InvalidArgument { .. })));
}

/// The gradient that a parameter had before it was frozen takes no part in a scaled step.
#[test]
fn an_infinite_gradient_of_a_frozen_parameter_skips_no_step() {
    let parameter = || Parameter::new(Tensor::ones([1], DType::F32));
    let (frozen, trained) = (parameter(), parameter());
    let optimizer = Sgd::new(vec![frozen.clone(), trained.clone()], SgdOptions { lr: 0.5, ..Default::default() });
    frozen.set_grad(Some(Tensor::from([f32::INFINITY])));
    frozen.set_requires_grad(false).unwrap();
    trained.set_grad(Some(Tensor::from([4.0f32])));
    let scaler = GradScaler::new(GradScalerOptions { init_scale: 4.0, ..Default::default() });
    scaler.scale(&Tensor::from(1.0f32));
    scaler.unscale(&optimizer).step();
    scaler.update();
    assert_eq!((trained.item::<f32>(), frozen.item::<f32>()), (0.5, 1.0));
    assert_eq!(scaler.scale_tensor().item::<f32>(), 4.0);
}

/// Like PyTorch's `update_bn`, `update_bn` averages the means and the unbiased variances over all batches.
#[test]
fn update_bn_recomputes_statistics() {
    let norm = |momentum: f64| BatchNorm1d::new(2).momentum(momentum);
    let model = sequential![norm(0.1), Dropout::new(0.5), norm(0.7), InstanceNorm1d::new(2).running_statistics(true)];
    model.forward(&Tensor::full([4, 2, 3], 7.0, DType::F32));
    model.eval();
    let batches = [[[1.0f32, 5.0], [3.0, 5.0]], [[6.0, 5.0], [-2.0, 1.0]]];
    update_bn(&sequential![norm(0.1)], [Tensor::zeros([3, 3], DType::F32)])
        .expect_err("data of three channels must be an error for a layer of two channels");
    let first = sequential![norm(0.3)];
    first.eval();
    update_bn(&first, batches.iter().map(|&b| Tensor::from(b))).unwrap();
    let state = first.state_dict();
    assert_eq!(state["0.running_mean"].to_vec::<f32>(), [2.0, 4.0]);
    assert_eq!(state["0.running_var"].to_vec::<f32>(), [17.0, 4.0]);
    assert_eq!(state["0.num_batches_tracked"].item::<i64>(), 2);
    // update_bn() restores evaluation mode, in which a call leaves the statistics unchanged, and the momentum 0.3: in
    // training, the mean of channel 1 becomes 0.7·4 + 0.3·5.
    first.forward(&Tensor::from(batches[0]));
    assert_eq!(first.state_dict()["0.num_batches_tracked"].item::<i64>(), 2);
    first.train();
    first.forward(&Tensor::from(batches[0]));
    close(&first.state_dict()["0.running_mean"].to_vec::<f64>(), &[2.0, 0.7 * 4.0 + 0.3 * 5.0], 1e-6, "momentum");
    // Without batches, all statistics are unchanged. Those of an instance normalization always are, and a model without
    // statistics is not called.
    let statistics = |name: &str| model.state_dict()[name].to_vec::<f32>();
    let (before, own) = (statistics("0.running_var"), statistics("3.running_mean"));
    assert!(matches!(update_bn(&model, []), Err(Error::InvalidArgument { op: "update_bn", .. })));
    assert_eq!(statistics("0.running_var"), before);
    update_bn(&model, [Tensor::full([4, 2, 3], 1.0, DType::F32)]).unwrap();
    assert_eq!((statistics("0.running_var"), statistics("3.running_mean")), (vec![0.0; 2], own));
    update_bn(&Linear::new(2, 2), [Tensor::zeros([9, 9], DType::F32)]).unwrap();
}

/// Two parameters of a sum have equal gradients in separate memory: each gradient is clipped, or unscaled, once.
#[test]
fn gradients_that_are_equal_or_repeat_a_number_are_clipped_once() {
    let pair = || [3.0, 4.0].map(|x| Parameter::new(Tensor::from([x; 2])));
    let train = |[a, b]: &[Parameter; 2]| (&**a + &**b).mul(6.0).sum(..).backward();
    let both = pair();
    train(&both);
    close(&[clip_grad_norm(&both, 1.0).unwrap().item()], &[12.0], 1e-14, "norm");
    close(&gradients(&both), &[0.5; 4], 1e-6, "clipped");
    let both = pair();
    train(&both);
    clip_grad_value(&both, 1.5).unwrap();
    assert_eq!(gradients(&both), [1.5; 4]);
    let optimizer = Sgd::new(both.to_vec(), SgdOptions { lr: 1.0, ..Default::default() });
    optimizer.zero_grad();
    train(&both);
    let scaler = GradScaler::new(GradScalerOptions { init_scale: 4.0, ..Default::default() });
    scaler.scale(&Tensor::scalar(1.0, DType::F64));
    let unscaled = scaler.unscale(&optimizer);
    assert_eq!(gradients(&both), [1.5; 4]);
    unscaled.step();
    assert_eq!(both.map(|p| p.to_vec::<f64>()), [[1.5; 2], [2.5; 2]]);

    let recorded = pair();
    let optimizer = Sgd::new(recorded.to_vec(), SgdOptions { lr: 1.0, ..Default::default() });
    let step = |_: &[Tensor]| {
        optimizer.zero_grad();
        train(&recorded);
        let norm = clip_grad_norm(&recorded, 1.0).unwrap();
        optimizer.step();
        norm
    };
    close(&[capture(step, &[]).unwrap().launch(&[]).unwrap().item(0)], &[12.0], 1e-14, "recorded norm");
    close(&recorded[0].to_vec::<f64>(), &[2.5; 2], 1e-6, "recorded");

    let [summed, _] = pair();
    summed.sum(..).backward();
    clip_grad_norm(from_ref(&summed), 1.0).unwrap();
    close(&gradients(from_ref(&summed)), &[0.5f64.sqrt(); 2], 1e-6, "one number, repeated");
}

/// The weights of the batches in plain averages do not depend on the dtype of the activations.
#[test]
fn statistics_are_plain_averages_of_many_batches_in_half_precision() {
    let model = sequential![Linear::new(1, 1).bias(false), BatchNorm1d::new(1)];
    init::ones_(&model.parameters()[0]);
    let batch = Tensor::from([[1.0f32], [3.0]]);
    for dtype in [DType::BF16, DType::F16] {
        let _half = autocast(dtype);
        update_bn(&model, (0..1500).map(|_| batch.clone())).unwrap();
        let state = model.state_dict();
        close(&state["1.running_mean"].to_vec::<f64>(), &[2.0], 1e-5, "mean");
        close(&state["1.running_var"].to_vec::<f64>(), &[2.0], 1e-5, "variance");
    }
}

/// Modes are restored inside an evaluation too.
#[test]
fn modes_are_restored_inside_an_evaluation() {
    let model = sequential![Linear::new(2, 2), BatchNorm1d::new(2), Dropout::new(0.5)];
    with_evaluation_mode(|| update_bn(&model, [Tensor::ones([3, 2], DType::F32)])).unwrap();
    model.forward(&Tensor::ones([3, 2], DType::F32));
    assert_eq!(model.state_dict()["1.num_batches_tracked"].item::<i64>(), 1);
}

/// While a model contains the averages, they are neither saved nor loaded.
#[test]
fn averages_in_use_are_neither_saved_nor_loaded() {
    let model = Linear::new(2, 2);
    let mut averaged = AveragedModel::new(&model, Average::Equal);
    averaged.update().unwrap();
    let state = averaged.state_dict();
    averaged.apply().unwrap();
    assert!(matches!(averaged.try_state_dict(), Err(Error::InvalidArgument { .. })));
    assert!(matches!(averaged.load_state_dict(&state), Err(Error::InvalidArgument { .. })));
    averaged.restore().unwrap();
    averaged.load_state_dict(&state).unwrap();
}

/// With gradients that are never finite, the scale stays above 0, and the skipped updates are counted.
#[test]
fn the_scaler_counts_skipped_updates() {
    let p = Parameter::new(Tensor::from([1.0f32]));
    let optimizer = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    let scaler = GradScaler::new(GradScalerOptions::default());
    let step = |gradient: f64| {
        let _ = scaler.scale(&Tensor::from(1.0f32));
        p.set_grad(Some(Tensor::from([gradient as f32])));
        scaler.step(&optimizer);
        scaler.update();
        scaler.skipped_updates()
    };
    for count in 1..=300 {
        assert_eq!(step(f64::INFINITY), count);
    }
    let scale = scaler.get_scale();
    assert!(scale > 0.0 && (1.0 / scale as f32).is_finite(), "{scale}");
    assert_eq!(p.item::<f32>(), 1.0);
    let copy = GradScaler::new(GradScalerOptions::default());
    copy.load_state_dict(&scaler.state_dict()).unwrap();
    assert_eq!(copy.skipped_updates(), 300);
    assert_eq!((step(scale), p.item::<f32>()), (0, 0.0));
}
