//! A run that is stopped after any step and resumed ends bit-identical to an uninterrupted run.

use crate::runs::{CapturedRun, CnnRun, MlpRun, TrainingRun, assert_equal, bits};
use crate::scratch::{Scratch, names};
use pellucid::nn::Checkpoint;
use pellucid::nn::optim::{Lbfgs, LbfgsOptions, Muon, MuonOptions};
use pellucid::prelude::*;
use pellucid::{Generator, io};

const END: usize = 11;

/// Stops and resumes a run after every step, including the last step of an epoch. A run that has already trained also
/// returns to an earlier step.
fn resumes_exactly<R: TrainingRun>(name: &str) {
    let scratch = Scratch::new(name);
    let path = |step: usize| scratch.0.join(format!("{step}.safetensors"));
    let _random = Generator::new(1).scope();
    let mut uninterrupted = R::new();
    let mut expected = vec![bits(&uninterrupted.checkpoint())];
    io::save_checkpoint(path(0), uninterrupted.checkpoint()).unwrap();
    uninterrupted.train(END, &mut |run| {
        io::save_checkpoint(path(run.steps()), run.checkpoint()).unwrap();
        expected.push(bits(&run.checkpoint()));
    });
    assert!(expected[0] != expected[END]);
    let check = |run: &mut R, step: usize| {
        let steps = io::load_checkpoint(path(step), run.checkpoint()).unwrap();
        run.set_steps(steps);
        assert_equal(&bits(&run.checkpoint()), &expected[step], &format!("{name}: step {step} is loaded"));
        run.train(END, &mut |run| {
            let at = run.steps();
            assert_equal(&bits(&run.checkpoint()), &expected[at], &format!("{name}: from {step} to {at}"));
        });
    };
    for step in (0..=END).rev() {
        {
            let _other = Generator::new(100 + step as u64).scope();
            let mut fresh = R::new();
            // The fresh run consumes a batch and random numbers before it is resumed.
            fresh.train(step % 3, &mut |_| {});
            check(&mut fresh, step);
        }
        check(&mut uninterrupted, step);
    }
    assert_eq!(names(&scratch.0).len(), END + 1);
}

#[test]
fn an_mlp_with_dropout_and_shuffled_batches() {
    resumes_exactly::<MlpRun>("mlp");
}

#[test]
fn a_cnn_with_batch_norm_and_loss_scaling() {
    resumes_exactly::<CnnRun>("cnn");
    // The scaler has skipped some steps and accepted others.
    let _random = Generator::new(1).scope();
    let mut run = CnnRun::new();
    let mut scales = vec![];
    run.train(END, &mut |run| scales.push(run.scaler.scale_tensor().item::<f64>()));
    assert!(scales.windows(2).any(|pair| pair[1] < pair[0]) && scales.windows(2).any(|pair| pair[1] >= pair[0]));
}

#[test]
fn a_captured_step() {
    resumes_exactly::<CapturedRun>("captured");
}

/// Resumes a GAN with two named models and two named optimizers.
#[test]
fn several_models_and_optimizers() {
    let scratch = Scratch::new("gan");
    let path = scratch.0.join("gan");
    let _random = Generator::new(5).scope();
    let run = Gan::new();
    run.step();
    io::save_checkpoint(&path, run.checkpoint()).unwrap();
    run.step();
    let resumed = Gan::new();
    io::load_checkpoint(&path, resumed.checkpoint()).unwrap();
    assert!(bits(&resumed.checkpoint()) != bits(&run.checkpoint()));
    resumed.step();
    assert_equal(&bits(&resumed.checkpoint()), &bits(&run.checkpoint()), "the second step");
    // Every model loads its values, even from a state dict without the prefixes.
    let weights = io::load(&path).unwrap();
    assert!(weights.contains_key("generating.weight") && weights.contains_key("judging.weight"));
}

/// A generator and a discriminator, each with an optimizer.
struct Gan {
    generating: Linear,
    judging: Linear,
    generating_optimizer: Muon,
    judging_optimizer: Sgd,
}

impl Gan {
    fn new() -> Gan {
        let (generating, judging) = (Linear::new(2, 3), Linear::new(3, 1));
        let options = SgdOptions { lr: 0.1, momentum: 0.5, ..Default::default() };
        Gan {
            generating_optimizer: Muon::new(vec![generating.weight.clone()], MuonOptions::default()),
            judging_optimizer: Sgd::new(judging.parameters(), options),
            generating,
            judging,
        }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new()
            .named_model("generating", &self.generating)
            .named_model("judging", &self.judging)
            .named_optimizer("generating_optimizer", &self.generating_optimizer)
            .named_optimizer("judging_optimizer", &self.judging_optimizer)
    }

    fn step(&self) {
        self.generating_optimizer.zero_grad();
        self.judging_optimizer.zero_grad();
        let generated = self.generating.forward(&Tensor::randn([4, 2], DType::F32));
        self.judging.forward(&generated).square().mean(..).backward();
        self.generating_optimizer.step();
        self.judging_optimizer.step();
    }
}

/// L-BFGS creates its history in the first step, so a fresh optimizer has fewer values than the checkpoint.
#[test]
fn an_optimizer_without_history_yet() {
    let scratch = Scratch::new("lbfgs");
    let path = scratch.0.join("lbfgs");
    let start = || Parameter::new(Tensor::from([-1.2f64, 1.0]));
    let new_optimizer = |p: &Parameter| Lbfgs::new(vec![p.clone()], LbfgsOptions { max_iter: 2, ..Default::default() });
    let step = |p: &Parameter, optimizer: &mut Lbfgs| {
        optimizer.step_with(&mut || {
            p.zero_grad();
            let loss = (p.tensor() * Tensor::from([1.0f64, 3.0])).square().sum(..);
            loss.backward();
            loss
        })
    };
    let p = start();
    let mut optimizer = new_optimizer(&p);
    step(&p, &mut optimizer);
    io::save_checkpoint(&path, Checkpoint::new().model(&p).optimizer(&optimizer)).unwrap();
    let q = start();
    let mut resumed = new_optimizer(&q);
    io::load_checkpoint(&path, Checkpoint::new().model(&q).optimizer(&resumed)).unwrap();
    for _ in 0..3 {
        assert_eq!(step(&p, &mut optimizer).to_bits(), step(&q, &mut resumed).to_bits());
        assert_eq!(p.to_bytes(), q.to_bytes());
    }
}
