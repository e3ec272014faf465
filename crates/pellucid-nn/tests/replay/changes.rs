//! Values that change between launches are tensors; each test checks that the captured step uses one changed value.

use crate::training::wave;
use pellucid_nn::optim::schedule::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions};
use pellucid_nn::optim::{
    AdamW, AdamWOptions, Average, AveragedModel, GradScaler, GradScalerOptions, Optimizer, Sgd, SgdOptions,
    clip_grad_norm,
};
use pellucid_nn::{BatchNorm1d, Dropout, Layer, Linear, Module, Parameter, loss};
use pellucid_tensor::{Captured, DType, Error, Generator, Tensor, capture, manual_seed};

fn parameter(values: [f64; 2]) -> Parameter {
    Parameter::new(Tensor::from(values))
}

/// Captures a step whose gradient is its input, and whose result is the updated parameter.
fn descend<'a>(p: &'a Parameter, optimizer: &'a dyn Optimizer) -> Captured<'a> {
    let step = move |inputs: &[Tensor]| {
        optimizer.zero_grad();
        (p.tensor() * &inputs[0]).sum(..).backward();
        optimizer.step();
        p.detach()
    };
    capture(step, &[&Tensor::from([1.0f64, 2.0])]).unwrap()
}

#[test]
fn the_learning_rate() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([1.0, 2.0]);
    let mut sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 0.5, ..Default::default() });
    let q = parameter([0.0, 0.0]);
    sgd.add_group(vec![q.clone()], SgdOptions { lr: 0.25, ..Default::default() });
    let step = |inputs: &[Tensor]| {
        sgd.zero_grad();
        ((p.tensor() + q.tensor()) * &inputs[0]).sum(..).backward();
        sgd.step();
    };
    let g = Tensor::from([1.0f64, 2.0]);
    let mut step = capture(step, &[&g]).unwrap();
    let options = ReduceLrOnPlateauOptions { patience: 0, factor: 0.5, ..Default::default() };
    let mut plateau = ReduceLrOnPlateau::new(options, &sgd);
    let values = |p: &Parameter| p.to_vec::<f64>();
    step.launch(&[&g]).unwrap();
    assert_eq!((values(&p), values(&q)), (vec![0.5, 1.0], vec![-0.25, -0.5]));
    sgd.groups()[1].set_lr(1.0);
    step.launch(&[&g]).unwrap();
    assert_eq!((values(&p), values(&q)), (vec![0.0, 0.0], vec![-1.25, -2.5]));
    sgd.set_lr(0.0);
    step.launch(&[&g]).unwrap();
    assert_eq!((values(&p), values(&q)), (vec![0.0, 0.0], vec![-1.25, -2.5]));
    sgd.set_lr(1.0);
    plateau.step(1.0);
    plateau.step(1.0);
    step.launch(&[&g]).unwrap();
    assert_eq!((values(&p), values(&q)), (vec![-0.5, -1.0], vec![-1.75, -3.5]));
}

#[test]
fn the_momentum() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([0.0, 0.0]);
    let sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, momentum: 0.5, ..Default::default() });
    let mut step = descend(&p, &sgd);
    let g = Tensor::from([1.0f64, -2.0]);
    let mut launch = || step.launch(&[&g]).unwrap().to_vec::<f64>(0);
    assert_eq!((launch(), launch()), (vec![-1.0, 2.0], vec![-2.5, 5.0]));
    sgd.groups()[0].set_momentum(0.0);
    assert_eq!(launch(), [-3.5, 7.0]);
}

/// Bias corrections make Adam's first step equal to the learning rate for any gradient.
#[test]
fn the_step_count_and_its_bias_corrections() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([0.0, 0.0]);
    let options = AdamWOptions { lr: 0.5, weight_decay: 0.0, eps: 1e-30, betas: (0.5, 0.5), ..Default::default() };
    let adam = AdamW::new(vec![p.clone()], options);
    let mut step = descend(&p, &adam);
    let (m, v) = (|t: i32, g: [f64; 3]| mean(t, g), |t: i32, g: [f64; 3]| mean(t, g.map(|g| g * g)));
    let gradients = [3.0, -1.0, 7.0];
    let mut expected = 0.0;
    for t in 1..=3 {
        let g = gradients[t as usize - 1];
        let found = step.launch(&[&Tensor::from([g, g])]).unwrap().to_vec::<f64>(0);
        expected -= 0.5 * m(t, gradients) / v(t, gradients).sqrt();
        assert!(found.iter().all(|f| (f - expected).abs() < 1e-12), "step {t} returned {found:?}, expected {expected}");
        assert_eq!(adam.clock_tensor(0, "step").unwrap().item::<i32>(), t);
    }
}

/// Returns the weighted mean of the first `t` numbers; the weight halves with every step into the past.
fn mean(t: i32, g: [f64; 3]) -> f64 {
    let weight = |k: i32| 0.5f64.powi(t - k);
    (1..=t).map(|k| weight(k) * g[k as usize - 1]).sum::<f64>() / (1..=t).map(weight).sum::<f64>()
}

#[test]
fn the_loss_scale_and_whether_a_step_is_skipped() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([0.0, 0.0]);
    let sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    let options = GradScalerOptions { init_scale: 8.0, growth_interval: 2, ..Default::default() };
    let scaler = GradScaler::new(options);
    let step = |inputs: &[Tensor]| {
        sgd.zero_grad();
        scaler.scale(&(p.tensor() * &inputs[0]).sum(..)).backward();
        scaler.step(&sgd);
        scaler.update();
        p.detach()
    };
    let x = |k: f64| Tensor::from([k, -k]);
    let mut step = capture(step, &[&x(1.0)]).unwrap();
    let launches =
        [(1.0, -1.0, 8.0), (1.0, -2.0, 16.0), (f64::NAN, -2.0, 8.0), (2.0, -4.0, 8.0), (f64::INFINITY, -4.0, 4.0)];
    for (k, value, scale) in launches {
        assert_eq!(step.launch(&[&x(k)]).unwrap().to_vec::<f64>(0), [value, -value]);
        assert_eq!(scaler.scale_tensor().item::<f64>(), scale);
    }
}

#[test]
fn the_clipping_factor() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([0.0, 0.0]);
    let sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    let step = |inputs: &[Tensor]| {
        sgd.zero_grad();
        (p.tensor() * &inputs[0]).sum(..).backward();
        let norm = clip_grad_norm(&sgd.parameters(), 1.0).unwrap();
        let clipped = p.grad().unwrap();
        sgd.zero_grad();
        [norm, clipped]
    };
    let mut step = capture(step, &[&Tensor::from([1.0f64, 1.0])]).unwrap();
    for (x, norm, clipped) in
        [([3.0, 4.0], 5.0, [0.6, 0.8]), ([0.3, -0.4], 0.5, [0.3, -0.4]), ([0.0, -9.0], 9.0, [0.0, -1.0])]
    {
        let outputs = step.launch(&[&Tensor::from(x)]).unwrap();
        assert!((outputs.item::<f64>(0) - norm).abs() < 1e-12);
        assert!(outputs.to_vec::<f64>(1).iter().zip(clipped).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn running_statistics() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (layer, eager) = (BatchNorm1d::new(3), BatchNorm1d::new(3));
    let mut step = capture(|i| layer.forward(&i[0]), &[&wave(&[5, 3], 0, DType::F32)]).unwrap();
    for i in 0..4 {
        let x = wave(&[5, 3], i, DType::F32) * (1.0 + i as f64);
        let y = eager.forward(&x);
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), y.to_vec::<f32>());
        for ((name, a), b) in layer.state_dict().iter().zip(eager.state_dict().values()) {
            assert_eq!(a.to_bytes(), b.to_bytes(), "{name} differs after step {i}");
        }
    }
    assert_eq!(layer.state_dict()["num_batches_tracked"].item::<i64>(), 4);
}

/// A generator that is reseeded between two launches restarts.
#[test]
fn the_state_of_the_generator() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (layer, x) = (Dropout::new(0.5), Tensor::ones([40], DType::F32));
    let mut step = capture(|i| layer.forward(&i[0]), &[&x]).unwrap();
    let mut launch = || step.launch(&[&x]).unwrap().to_vec::<f32>(0);
    manual_seed(7);
    let (first, second) = (launch(), launch());
    assert_ne!(first, second);
    manual_seed(7);
    assert_eq!((launch(), launch()), (first.clone(), second));
    manual_seed(7);
    assert_eq!(layer.forward(&x).to_vec::<f32>(), first);
    // A launch continues the sequence of eager draws.
    let before = Generator::default().state().to_vec::<i64>();
    launch();
    assert_ne!(Generator::default().state().to_vec::<i64>(), before);
}

#[test]
fn the_count_of_an_average() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let p = parameter([0.0, 0.0]);
    let sgd = Sgd::new(vec![p.clone()], SgdOptions { lr: 1.0, ..Default::default() });
    let average = AveragedModel::new(&vec![p.clone()], Average::Equal);
    let step = |inputs: &[Tensor]| {
        sgd.zero_grad();
        (p.tensor() * &inputs[0]).sum(..).backward();
        sgd.step();
        average.update().unwrap();
    };
    let g = Tensor::from([-2.0f64, -4.0]);
    let mut step = capture(step, &[&g]).unwrap();
    for _ in 0..3 {
        step.launch(&[&g]).unwrap();
    }
    // The parameters are 2, 4, 6 and 4, 8, 12 after the three steps; the averages are their means.
    assert_eq!(average.averages().next().unwrap().1.to_vec::<f64>(), [4.0, 8.0]);
}

/// Loading writes in place, so a captured step continues from the loaded weights and optimizer state.
#[test]
fn loaded_state_dicts() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(5);
    let make = || {
        let model = Linear::new(3, 2);
        let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
        (model, optimizer)
    };
    let train = |(model, optimizer): &(Linear, AdamW), x: &Tensor| {
        optimizer.zero_grad();
        let loss = loss::mse_loss(&model.forward(x), &x.i((.., ..2)));
        loss.backward();
        optimizer.step();
        loss.detach()
    };
    let (own, other) = (make(), make());
    let x = wave(&[4, 3], 0, DType::F32);
    (0..3).for_each(|_| drop(train(&other, &x)));
    let mut step = capture(|i| train(&own, &i[0]), &[&x]).unwrap();
    for _ in 0..4 {
        step.launch(&[&x]).unwrap();
    }
    own.0.load_state_dict(&other.0.state_dict()).unwrap();
    own.1.load_state_dict(&other.1.state_dict()).unwrap();
    for _ in 0..4 {
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), train(&other, &x).to_vec::<f32>());
    }
}

/// A mode is a host value: `verify` detects its change.
#[test]
fn the_mode_of_a_model_is_verified() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (layer, x) = (Dropout::new(0.5), Tensor::ones([4], DType::F32));
    let mut step = capture(|i| layer.forward(&i[0]) + 1.0, &[&x]).unwrap();
    assert_eq!(step.verify(), Ok(()));
    layer.eval();
    assert!(matches!(step.verify(), Err(Error::CaptureChanged { .. })));
    layer.train();
    assert_eq!(step.verify(), Ok(()));
}

/// A model may be dropped before its step, which holds its tensors.
#[test]
fn a_step_outlives_its_model() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(6);
    let x = wave(&[4, 3], 0, DType::F32);
    let mut step = {
        let model = Linear::new(3, 2);
        let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
        let train = move |inputs: &[Tensor]| {
            optimizer.zero_grad();
            let loss = model.forward(&inputs[0]).square().mean(..);
            loss.backward();
            optimizer.step();
            loss.detach()
        };
        capture(train, &[&x]).unwrap()
    };
    let losses: Vec<f32> = (0..30).map(|_| step.launch(&[&x]).unwrap().item(0)).collect();
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "the losses must fall: {losses:?}");
}

#[test]
fn a_change_to_evaluation_and_back_is_followed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (layer, x) = (Dropout::new(0.5), Tensor::ones([40], DType::F32));
    let mut step = capture(|i| layer.forward(&i[0]) + 0.0, &[&x]).unwrap();
    let zeros = |y: Vec<f32>| y.iter().filter(|y| **y == 0.0).count();
    for training in [true, true, true, true, false, false, true, true] {
        if training {
            layer.train()
        } else {
            layer.eval()
        }
        let zeros = zeros(step.launch(&[&x]).unwrap().to_vec(0));
        assert_eq!(zeros > 0, training);
    }
    assert_eq!((step.cache_stats().misses, step.cache_stats().len), (1, 2));
}
