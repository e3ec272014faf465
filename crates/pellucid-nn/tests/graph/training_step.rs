//! Steps of any computation: several inputs, losses, results and optimizers.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{BceWithLogitsLoss, CrossEntropyLoss, Loss};
use pellucid_nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::{CacheStats, DType, Error, Result, Tensor, ops};

fn adam(model: &Sequential) -> Adam {
    Adam::try_new(model.parameters(), AdamOptions { lr: 0.01, ..Default::default() }).unwrap()
}

fn label(logits: &Tensor, y: f64) -> Result<Tensor> {
    BceWithLogitsLoss::default().try_forward(logits, &ops::full(logits.shape(), y, DType::F32)?)
}

/// The losses of a discriminator, for samples and for noise.
fn discriminator_losses(discriminator: &Sequential, generator: &Sequential, i: &[Tensor]) -> Result<[Tensor; 3]> {
    let real = label(&discriminator.try_forward(&i[0])?, 1.0)?;
    let fake = label(&discriminator.try_forward(&generator.try_forward(&i[1])?)?, 0.0)?;
    Ok([ops::add(&real, &fake)?, real, fake])
}

/// The steps of a GAN are bit-identical to eager steps. Each step changes only the parameters and gradients of its own
/// optimizer, and a batch of other shapes is recorded.
#[test]
fn the_steps_of_a_gan_equal_eager_steps() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let networks = || {
            pellucid_tensor::manual_seed(3);
            (
                sequential![Linear::new(2, 8), Tanh, Linear::new(8, 6)],
                sequential![Linear::new(6, 8), Relu, Linear::new(8, 1)],
            )
        };
        let ((generator, discriminator), (g, d)) = (networks(), networks());
        let (for_g, for_d) = (adam(&g), adam(&d));
        let options = StepOptions { eager, ..Default::default() };
        let mut discriminate =
            TrainingStep::new(adam(&discriminator), |i| discriminator_losses(&discriminator, &generator, i))
                .with_options(options.clone());
        let mut deceive = TrainingStep::new(adam(&generator), |i: &[Tensor]| {
            label(&discriminator.try_forward(&generator.try_forward(&i[0])?)?, 1.0)
        })
        .with_options(options);
        for (seed, rows) in [8, 8, 5, 8, 5].into_iter().enumerate() {
            let real = batch(&[rows, 6], seed as u64).0;
            let noise = Tensor::randn([rows, 2], DType::F32);
            let before = bits(generator.state_dict());
            let found = discriminate.launch(&[&real, &noise]).unwrap().iter().map(Tensor::item::<f32>);
            let found: Vec<f32> = found.collect();
            assert_eq!(bits(generator.state_dict()), before);
            for_d.zero_grad();
            let losses = discriminator_losses(&d, &g, &[real, noise.clone()]).unwrap();
            losses[0].backward();
            for_d.step();
            assert_eq!(found, losses.map(|loss| loss.item::<f32>()));
            let gradient = discriminator.parameters()[0].grad().unwrap().to_vec::<f32>();
            let found = deceive.launch(&[&noise]).unwrap()[0].item::<f32>();
            assert_eq!(discriminator.parameters()[0].grad().unwrap().to_vec::<f32>(), gradient);
            for_g.zero_grad();
            let loss = label(&d.forward(&g.forward(&noise)), 1.0).unwrap();
            loss.backward();
            for_g.step();
            assert_eq!(found, loss.item::<f32>());
            assert_eq!(bits(generator.state_dict()), bits(g.state_dict()));
            assert_eq!(bits(discriminator.state_dict()), bits(d.state_dict()));
        }
        let recorded = if eager { CacheStats::default() } else { CacheStats { hits: 3, misses: 2, len: 2 } };
        assert_eq!(discriminate.cache_stats(), recorded);
    }
}

/// What a step cannot train is rejected, and changes nothing.
#[test]
fn rejected_steps_change_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, other) = (mlp(), mlp());
    let x = batch(&[BATCH, 6], 1).0;
    let before = bits(model.state_dict());
    let rejected = |step: TrainingStep<'_>| {
        let mut step = step;
        let error = step.launch(&[&x]).unwrap_err();
        assert_eq!(step.prepare(&[&x]).unwrap_err().to_string(), error.to_string());
        assert!(model.parameters().iter().all(|p| p.grad().is_none()));
        assert_eq!(bits(model.state_dict()), before);
        assert_eq!(step.cache_stats().len, 0);
        error
    };
    let mean = |model: &Sequential, i: &[Tensor]| ops::mean(&model.try_forward(&i[0])?, ..);
    let error = rejected(TrainingStep::new(adam(&model), |i| model.try_forward(&i[0])));
    assert!(error.to_string().contains("reduce the loss"), "{error}");
    let error = rejected(TrainingStep::new(adam(&model), |i| mean(&other, i)));
    assert!(error.to_string().contains("nothing would be trained"), "{error}");
    let error = rejected(TrainingStep::new(adam(&model), |_| ()));
    assert!(error.to_string().contains("return its loss"), "{error}");
    let options = StepOptions { accumulate: 0, ..Default::default() };
    let error = rejected(TrainingStep::new(adam(&model), |i| mean(&model, i)).with_options(options));
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let options = StepOptions { max_recordings: 0, ..Default::default() };
    let error = rejected(TrainingStep::new(adam(&model), |i| mean(&model, i)).with_options(options));
    assert!(error.to_string().contains("`max_recordings` must be at least 1"), "{error}");
    // A step that was prepared does not record at its first launch.
    let options = StepOptions { max_recordings: 1, ..Default::default() };
    let mut step = TrainingStep::new(adam(&model), |i| mean(&model, i)).with_options(options);
    step.prepare(&[&x]).unwrap();
    assert_eq!((step.captured().is_some(), step.cache_stats()), (true, CacheStats { hits: 0, misses: 0, len: 1 }));
    assert_eq!(bits(model.state_dict()), before);
    step.launch(&[&x.requires_grad_(true)]).unwrap();
    assert_eq!(step.cache_stats(), CacheStats { hits: 1, misses: 0, len: 1 });
    assert!(step.optimizer().parameters().iter().all(|p| p.grad().is_some()));
    assert_ne!(bits(model.state_dict()), before);
}

/// A step that runs eagerly has a fixed number of inputs, as a captured one, and a panic of the first launch leaves no
/// gradients.
#[test]
fn captured_and_eager_steps_reject_the_same() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = batch(&[BATCH, 6], 1).0;
    for eager in [false, true] {
        let model = mlp();
        let options = || StepOptions { eager, ..Default::default() };
        let compute = |i: &[Tensor]| ops::mean(&model.try_forward(&i[0])?, ..);
        let mut step = TrainingStep::new(adam(&model), compute).with_options(options());
        step.launch(&[&x]).unwrap();
        for inputs in [&[][..], &[&x, &x]] {
            let error = step.launch(inputs).unwrap_err();
            assert!(matches!(error, Error::InputMismatch { .. }), "{error}");
        }
        let other = mlp();
        let panics = |_: &[Tensor]| -> Tensor { panic!("the closure panics") };
        let mut step = TrainingStep::new(adam(&other), panics).with_options(options());
        let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.launch(&[&x]).map(drop)));
        assert!(launched.is_err() && other.parameters().iter().all(|p| p.grad().is_none()));
        let zero = StepOptions { accumulate: 0, ..options() };
        let error = TrainingStep::new(adam(&other), compute).with_options(zero).launch(&[&x]).err().unwrap();
        assert!(!error.to_string().contains("rebind"), "{error}");
    }
}

/// A failed launch does not bring back gradients that were removed.
#[test]
fn a_rejected_launch_leaves_removed_gradients_removed() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (x, y) = batch(&[BATCH, 6], 1);
    let model = mlp();
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), adam(&model));
    trainer.step(&x, &y).unwrap();
    trainer.optimizer().zero_grad();
    assert!(trainer.step(&x, &(&y + CLASSES as i64)).is_err());
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}

/// The last launches of an epoch update the parameters with the mean of their gradients, although there are fewer.
#[test]
fn a_step_that_accumulates_may_end_early() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = batch(&[BATCH, 6], 1).0;
    for eager in [false, true] {
        let [model, expected] = [(); 2].map(|()| {
            pellucid_tensor::manual_seed(3);
            mlp()
        });
        let compute = |model: &Sequential, i: &[Tensor]| ops::mean(&ops::square(&model.try_forward(&i[0])?)?, ..);
        let options = StepOptions { accumulate: 4, eager, ..Default::default() };
        let mut step = TrainingStep::new(adam(&model), |i| compute(&model, i)).with_options(options);
        let mut one = TrainingStep::new(adam(&expected), |i| compute(&expected, i));
        assert!(!step.update_early().unwrap());
        step.launch(&[&x]).unwrap();
        step.launch(&[&x]).unwrap();
        assert!(step.update_early().unwrap() && !step.update_early().unwrap());
        one.launch(&[&x]).unwrap();
        assert_eq!(bits(model.state_dict()), bits(expected.state_dict()));
    }
}
