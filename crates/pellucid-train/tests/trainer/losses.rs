//! Losses with parameters: a run trains, averages, saves and restores them with those of the model.

use crate::runs::{bits, isolated_generator, points, stop_after, trainer};
use crate::scratch::Scratch;
use pellucid::io;
use pellucid::nn::loss::{AdaptiveLogSoftmaxWithLoss, LinearCrossEntropyLoss, Loss};
use pellucid::nn::optim::ParameterList;
use pellucid::nn::{StateDict, rename_keys};
use pellucid::prelude::*;
use pellucid::train::{FindLrOptions, Supervised, TrainingTask};

type Run = Trainer<'static, Supervised<'static, Sequential, AdamW>>;

/// A run of a body without a classifier, whose optimizer is filled by the first step.
fn run_of(loss: impl Loss + 'static) -> Run {
    manual_seed(5);
    let body = sequential![Linear::new(4, 6), BatchNorm1d::new(6), Tanh, Dropout::new(0.3)];
    let adamw = AdamW::new(ParameterList::default(), AdamWOptions { lr: 0.02, ..Default::default() });
    Trainer::new(body, loss, adamw).epochs(3).quiet(true)
}

/// Returns the hashes of the values of model and loss.
fn bits_of(run: &Run, loss: &impl Module) -> Vec<(String, u64)> {
    bits(run.model()).into_iter().chain(bits(loss)).collect()
}

/// Creates a loss with the initial values of a seed.
fn seeded<L>(seed: u64, make: impl Fn() -> L) -> L {
    manual_seed(seed);
    make()
}

/// Checks runs of losses that `make` creates; clones share their parameters.
fn check_runs_with<L: Loss + Module + Clone + 'static>(name: &str, make: impl Fn() -> L) {
    let (mut train, mut validation) = points();
    let loss = seeded(3, &make);
    let initial = bits(&loss);
    let mut expected = run_of(loss.clone());
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    assert_ne!(bits(&loss), initial, "{name}: the loss must be trained");

    // A run that is stopped and resumed.
    let scratch = Scratch::new(&format!("trainer-loss-{name}"));
    let (mut train, mut validation) = points();
    let mut stopped = run_of(seeded(3, &make)).checkpoints(&scratch.0).callback(stop_after(13));
    stopped.fit(&mut train, Some(&mut validation)).unwrap();
    drop(stopped);
    let (mut train, mut validation) = points();
    let other = seeded(77, &make);
    let mut resumed = run_of(other.clone()).resume(&scratch.0).checkpoints(&scratch.0);
    resumed.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(bits_of(&resumed, &other), bits_of(&expected, &loss), "{name}");

    // The weights of the best epoch contain those of the loss.
    let best = io::load(scratch.0.join("best.safetensors")).unwrap();
    let of_loss = best.iter().filter_map(|(name, value)| Some((name.strip_prefix("loss.")?.into(), value.clone())));
    let of_loss: StateDict = of_loss.collect();
    make().load_state_dict(&of_loss).unwrap();
    assert_eq!(best.len(), of_loss.len() + resumed.model().state_dict().len());
    let changed = |p: &Parameter| ops::copy_(p, &ops::add(p, 1.0).unwrap()).unwrap();
    let off = no_grad();
    resumed.model().parameters().iter().chain(&other.parameters()).for_each(changed);
    drop(off);
    resumed.load_best().unwrap();
    let loaded = resumed.task().weights().unwrap();
    assert!(loaded.iter().all(|(name, value)| value.to_bytes() == best[name].to_bytes()), "{name}");
    let of_model = rename_keys(&best, |name| (!name.starts_with("loss.")).then(|| name.into()));
    resumed.model().load_state_dict(&of_model).unwrap();

    // The search for a rate restores the loss.
    let before = bits_of(&resumed, &other);
    resumed.find_lr(&mut train, FindLrOptions { steps: 20, ..Default::default() }).unwrap();
    assert_eq!(bits_of(&resumed, &other), before, "{name}");
}

#[test]
fn runs_save_and_restore_the_parameters_of_the_loss() {
    let _generator = isolated_generator();
    check_runs_with("linear", || LinearCrossEntropyLoss::new(6, 2, &[]));
    check_runs_with("adaptive", || AdaptiveLogSoftmaxWithLoss::new(6, 4, &[2], 2.0));
}

#[test]
fn the_parameters_of_the_loss_are_averaged() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let loss = LinearCrossEntropyLoss::new(6, 2, &[]);
    let adamw = |body: &Sequential| {
        let parameters = body.parameters().into_iter().chain(loss.parameters()).collect::<Vec<_>>();
        AdamW::new(parameters, AdamWOptions { lr: 0.02, ..Default::default() })
    };
    let body = sequential![Linear::new(4, 6), Tanh];
    let optimizer = adamw(&body);
    let mut run = Trainer::new(body, loss.clone(), optimizer).quiet(true).ema(0.9);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    let averages: StateDict = run.task().averages().unwrap().averages().map(|(n, a)| (n.into(), a.copy())).collect();
    let trained = bits(&loss);
    run.use_averages().unwrap();
    assert_ne!(bits(&loss), trained);
    assert_eq!(loss.linear.weight.to_bytes(), averages["loss.linear.weight"].to_bytes());
}

/// The state of a run whose loss has no parameters does not have the part `loss`, as files of other programs.
#[test]
fn a_loss_without_parameters_has_no_state() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-loss-without-parameters");
    let (mut train, _) = points();
    let mut run = trainer().checkpoints(&scratch.0);
    run.fit(&mut train, None).unwrap();
    let state = io::load(scratch.0.join("last.safetensors")).unwrap();
    assert!(state.contains_key("model.0.weight") && state.keys().all(|name| !name.starts_with("loss")));
}

/// A model with a part that has the name and the parameter names of a loss.
#[derive(Module)]
struct WithLossPart {
    body: Linear,
    loss: LossPart,
}

#[derive(Module)]
struct LossPart {
    linear: Linear,
}

impl Layer for WithLossPart {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.loss.linear.try_forward(&self.body.try_forward(x)?)
    }
}

#[test]
fn a_part_of_the_model_named_loss_and_the_loss_have_different_names() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-loss-named-part");
    let (mut train, mut validation) = points();
    manual_seed(5);
    let model = WithLossPart { body: Linear::new(4, 6), loss: LossPart { linear: Linear::new(6, 2) } };
    let loss = LinearCrossEntropyLoss::new(2, 2, &[]);
    let adamw = AdamW::new(ParameterList::default(), AdamWOptions { lr: 0.02, ..Default::default() });
    let mut run = Trainer::new(&model, loss.clone(), adamw).epochs(2).ema(0.5).quiet(true).checkpoints(&scratch.0);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    let best = io::load(scratch.0.join("best.safetensors")).unwrap();
    let names: Vec<&str> = best.keys().map(String::as_str).collect();
    let expected = ["body.bias", "body.weight", "loss.linear.bias", "loss.linear.weight", "loss_1.linear.weight"];
    assert_eq!(names, expected);
    let averages: Vec<&str> = run.task().averages().unwrap().averages().map(|(name, _)| name).collect();
    assert_eq!(averages.len(), 5);
    assert!(averages.contains(&"loss_1.linear.weight"), "{averages:?}");
    assert!(run.optimizer().state_dict().contains_key("state.loss_1.linear.weight.mean"));
    let state = io::load(scratch.0.join("last.safetensors")).unwrap();
    assert!(state.contains_key("model.loss.linear.weight") && state.contains_key("loss.linear.weight"));
    run.load_best().unwrap();
    assert_eq!(model.loss.linear.weight.to_bytes(), best["loss.linear.weight"].to_bytes());
    assert_eq!(loss.linear.weight.to_bytes(), best["loss_1.linear.weight"].to_bytes());
}
