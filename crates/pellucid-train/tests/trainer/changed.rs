//! Runs that are resumed with other settings or into another directory, and batches of mixed samples.

use crate::runs::{bits, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::Result;
use pellucid::data::{DataLoader, LoaderOptions, MixUp, from_fn};
use pellucid::io;
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, Goal};
use pellucid::train::{Logger, Trainer};
use std::sync::{Arc, Mutex};

#[test]
fn another_monitored_value_is_rejected() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-changed-monitor");
    let (mut train, mut validation) = points();
    trainer().epochs(2).checkpoints(&scratch.0).fit(&mut train, Some(&mut validation)).unwrap();
    let run = || trainer().epochs(3).metric(Accuracy::new()).resume(&scratch.0);
    let mut changed = run().monitor("validation_accuracy", Goal::Maximize);
    let before = bits(changed.model());
    let error = changed.fit(&mut train, Some(&mut validation)).unwrap_err().to_string();
    assert!(error.contains("monitor `validation_loss, Minimize`"), "{error}");
    assert!(error.contains("`validation_accuracy, Maximize`"), "{error}");
    assert_eq!(bits(changed.model()), before);
    run().fit(&mut train, Some(&mut validation)).unwrap();
}

#[test]
fn errors_of_parts_name_the_methods_of_the_trainer() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-changed-parts");
    let (mut train, mut validation) = points();
    trainer().checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let resumed = || trainer().epochs(2).resume(&scratch.0);
    for (run, is_validated, method) in [
        (resumed().train_metric(Accuracy::new()), false, "train_metric()"),
        (resumed().ema(0.9), false, "ema()"),
        (resumed(), true, "the validation batches of fit()"),
    ] {
        let validation = is_validated.then_some(&mut validation as &mut dyn pellucid::train::EpochLoader<_>);
        let error = run.monitor("train_loss", Goal::Minimize).fit(&mut train, validation).unwrap_err().to_string();
        assert!(error.contains(method), "{error}");
    }
}

#[test]
fn a_run_in_another_directory_has_the_best_weights_so_far() {
    let _generator = isolated_generator();
    let [first, second] = ["first", "second"].map(|name| Scratch::new(&format!("trainer-changed-{name}")));
    let best = |scratch: &Scratch| io::load(scratch.0.join("best.safetensors")).unwrap();
    let (mut train, mut validation) = points();
    trainer().epochs(3).checkpoints(&first.0).fit(&mut train, Some(&mut validation)).unwrap();
    let mut resumed = trainer().epochs(3).resume(&first.0).checkpoints(&second.0);
    resumed.fit(&mut train, Some(&mut validation)).unwrap();
    let bytes = |scratch: &Scratch| best(scratch).into_values().map(|tensor| tensor.to_bytes()).collect::<Vec<_>>();
    assert_eq!(bytes(&first), bytes(&second));
}

/// The classes of validation batches are indices, those of mixed training batches are probabilities.
#[test]
fn a_run_trains_on_mixed_samples_and_validates_class_indices() {
    let _generator = isolated_generator();
    let sample = |index: usize| {
        let class = (index % 3) as i64;
        Ok((Tensor::randn([4], DType::F32) + 3.0 * class as f64, class))
    };
    let options = LoaderOptions { batch_size: 16, shuffle: true, seed: Some(1), ..Default::default() };
    let mix = |samples: Vec<(Tensor, i64)>| -> Result<(Tensor, Tensor)> {
        let (inputs, classes): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        MixUp::new(0.2, 3).apply(&ops::stack(&inputs, 0)?, &Tensor::from(classes))
    };
    let mut train = DataLoader::with_collate(from_fn(100, sample), options, mix);
    let mut validation = DataLoader::new(from_fn(30, sample), options);
    let model = Linear::new(4, 3);
    let adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 0.1, ..Default::default() });
    let mut run = Trainer::new(model, CrossEntropyLoss::default(), adamw).quiet(true).epochs(10);
    run = run.metric(Accuracy::new());
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    assert!(history.last("validation_accuracy").unwrap() > 0.8, "{history}");
}

/// Keeps the names of all values.
#[derive(Default)]
struct Names(Vec<String>);

impl Logger for Names {
    fn scalars(&mut self, _: usize, values: &[(&str, f64)]) -> Result<()> {
        self.0.extend(values.iter().map(|(name, _)| name.to_string()));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_run_and_a_callback_share_a_logger() {
    let _generator = isolated_generator();
    let names = Arc::new(Mutex::new(Names::default()));
    let mut shared = names.clone();
    let mut run = trainer().logger(names.clone()).on_event(move |event, _| match event {
        TrainingEvent::FitBegan { step } => shared.scalars(*step, &[("weights", 1.0)]),
        _ => Ok(()),
    });
    run.fit(&mut points().0, None).unwrap();
    let names = &names.lock().unwrap().0;
    assert!(names[0] == "weights" && names.contains(&"train_loss".to_string()), "{names:?}");
}
