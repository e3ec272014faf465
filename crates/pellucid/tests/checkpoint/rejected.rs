//! Files and states that do not match return typed errors and change nothing.

use crate::runs::{CnnRun, MlpRun, TrainingRun, assert_equal, bits, data};
use crate::scratch::Scratch;
use pellucid::nn::optim::schedule::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions};
use pellucid::nn::optim::{Adam, AdamOptions, Average, AveragedModel, GradScaler, GradScalerOptions};
use pellucid::nn::{Checkpoint, Lazy, StateDict};
use pellucid::prelude::*;
use pellucid::{Generator, io};
use std::path::PathBuf;

/// Returns the part that an error of a checkpoint names, and the error message.
fn part<T: std::fmt::Debug>(result: Result<T>) -> (String, String) {
    match result {
        Err(ref error @ Error::Checkpoint { ref part, .. }) => (part.clone(), error.to_string()),
        other => panic!("expected Error::Checkpoint, got {other:?}"),
    }
}

/// The state of a trained run, and a fresh run that must reject modified states.
struct Rejecting {
    state: StateDict,
    run: MlpRun,
    scratch: Scratch,
}

impl Rejecting {
    fn new(name: &str) -> Rejecting {
        let scratch = Scratch::new(name);
        let mut run = MlpRun::new();
        run.train(5, &mut |_| {});
        io::save_checkpoint(scratch.0.join("good"), run.checkpoint()).unwrap();
        let state = io::load(scratch.0.join("good")).unwrap();
        let mut run = MlpRun::new();
        run.train(2, &mut |_| {});
        Rejecting { state, run, scratch }
    }

    /// Loads a modified state. The part `expected` must reject it with a message that contains `names`, and nothing may
    /// change.
    fn rejects(&self, expected: &str, names: &[&str], change: impl FnOnce(&mut StateDict)) {
        let before = bits(&self.run.checkpoint());
        let mut state = self.state.clone();
        change(&mut state);
        let (part, text) = part(self.run.checkpoint().load_state_dict(&state));
        assert_eq!(part, expected, "{text}");
        assert!(names.iter().all(|name| text.contains(name)), "{names:?} must be in: {text}");
        assert_equal(&bits(&self.run.checkpoint()), &before, &text);
    }

    /// Replaces a value.
    fn rejects_value(&self, name: &str, value: Tensor) {
        // The name of the generator begins with a dot.
        let (part, inner) = match name[1..].find('.') {
            Some(dot) => (&name[..dot + 1], &name[dot + 2..]),
            None => (name, name),
        };
        // The error of a generator does not name the value.
        let inner = if inner == "cpu" { "i64" } else { inner };
        assert!(self.state.contains_key(name), "{name} must be in {:?}", self.state.keys());
        self.rejects(part, &[inner], |state| _ = state.insert(name.to_string(), value));
    }
}

#[test]
fn states_that_do_not_fit_change_nothing() {
    let _random = Generator::new(1).scope();
    let rejecting = Rejecting::new("rejected-states");
    let f64s = |value: f64| Tensor::from(value);
    let i64s = |value: i64| Tensor::from(value);
    // The generators are the last parts of the checkpoint, so all other parts were accepted before.
    for part in [".generator", "noise"] {
        rejecting.rejects_value(&format!("{part}.cpu"), Tensor::from([1i64, 2, 3]));
        rejecting.rejects_value(&format!("{part}.cpu"), Tensor::from([1.0f32, 2.0]));
        rejecting.rejects(part, &["CPU"], |state| {
            let value = state.remove(&format!("{part}.cpu")).unwrap();
            state.insert(format!("{part}.no such device"), value);
        });
    }
    for name in ["model.0.weight", "model.3.bias", "optimizer.state.0.mean", "averaged.average.0.weight"] {
        let value = &rejecting.state.get(name).unwrap_or_else(|| panic!("{name} in {:?}", rejecting.state.keys()));
        rejecting.rejects_value(name, Tensor::zeros([3, 17], value.dtype()));
        rejecting.rejects_value(name, value.to_dtype(DType::F64));
        let (part, inner) = name.split_once('.').unwrap();
        rejecting.rejects(part, &["missing", inner], |state| _ = state.remove(name));
        rejecting.rejects(part, &["unexpected", "more"], |state| {
            state.insert(format!("{part}.more"), f64s(0.0));
        });
    }
    for value in [f64::NAN, -1.0, f64::INFINITY] {
        let lr = f64s(value).to_dtype(rejecting.state["optimizer.groups.0.lr"].dtype());
        rejecting.rejects("optimizer", &["lr"], |state| _ = state.insert("optimizer.groups.0.lr".into(), lr));
        rejecting.rejects_value("schedule.lr.0", f64s(if value < 0.0 { f64::NAN } else { value * 2.0 }));
    }
    for value in [0.5, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        rejecting.rejects_value("schedule.epoch", f64s(value));
        rejecting.rejects_value("plateau.bad", f64s(value));
        rejecting.rejects_value("plateau.cooling", f64s(value));
    }
    rejecting.rejects_value("plateau.best", f64s(f64::NAN));
    for (name, value) in [("batch", 5), ("batch", -1), ("epoch", -1), ("samples", 15), ("size", 5)] {
        rejecting.rejects("batches", &[&value.to_string()], |state| {
            state.insert(format!("batches.{name}"), i64s(value));
        });
    }
    rejecting.rejects("batches", &["seed"], |state| _ = state.remove("batches.seed"));
    for value in [i64s(-1), f64s(1.0), Tensor::from([1i64])] {
        rejecting.rejects("step", &["step"], |state| _ = state.insert("step".into(), value));
    }
    rejecting.rejects("step", &["step"], |state| _ = state.remove("step"));
    // Entire parts.
    for part in ["model", "optimizer", "schedule", "plateau", "averaged", "noise", "batches", ".generator"] {
        rejecting.rejects(part, &["does not have this part; its parts are"], |state| {
            state.retain(|name, _| !name.starts_with(&format!("{part}.")));
        });
    }
    for (name, part) in [("other.weight", "other"), ("weight", "weight"), (".", "."), ("generator.cpu", "generator")] {
        rejecting.rejects(part, &["does not; its parts are", "`model`"], |state| {
            state.insert(name.into(), f64s(0.0));
        });
    }
    // The unmodified state can be loaded.
    assert_eq!(rejecting.run.checkpoint().load_state_dict(&rejecting.state).unwrap(), 5);
}

#[test]
fn runs_of_other_parts_are_rejected() {
    let _random = Generator::new(1).scope();
    let rejecting = Rejecting::new("rejected-runs");
    let good = rejecting.scratch.0.join("good");
    let run = &rejecting.run;
    let plain = || Checkpoint::new().model(&run.model).optimizer(&run.optimizer);
    let other = sequential![Linear::new(6, 8), Relu, Dropout::new(0.3), Linear::new(8, 3)];
    let adam = Adam::new(run.model.parameters(), AdamOptions { amsgrad: true, ..Default::default() });
    let scaler = GradScaler::new(GradScalerOptions::default());
    let fits = |checkpoint: Checkpoint<'_>| part(io::load_checkpoint(&good, checkpoint)).0;
    assert_eq!(fits(plain()), "averaged");
    assert_eq!(fits(run.checkpoint().scaler(&scaler)), "scaler");
    // A different model or optimizer, with all other parts.
    let state = |change: &dyn Fn(&str) -> bool| -> StateDict {
        rejecting
            .state
            .iter()
            .filter(|(name, _)| change(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let two = state(&|name| ["model.", "optimizer.", ".generator.", "step"].iter().any(|part| name.starts_with(part)));
    let before = bits(&plain());
    assert_eq!(plain().load_state_dict(&two).unwrap(), 5);
    assert!(bits(&plain()) != before);
    let before = bits(&Checkpoint::new().model(&other).optimizer(&adam));
    for (checkpoint, name) in [
        (Checkpoint::new().model(&other).optimizer(&run.optimizer), "model"),
        (Checkpoint::new().model(&run.model).optimizer(&adam), "optimizer"),
    ] {
        assert_eq!(part(checkpoint.load_state_dict(&two)).0, name);
    }
    assert_eq!(bits(&Checkpoint::new().model(&other).optimizer(&adam)), before);
    // Invalid names.
    for name in ["", "a.b", ".generator", "step", "model"] {
        let rejected = |result| {
            let (part, text) = part(result);
            assert!(part == name && text.contains("name"), "{text}");
        };
        rejected(io::save_checkpoint(&good, plain().part(name, &run.noise)).map(|()| 0));
        rejected(io::load_checkpoint(&good, plain().part(name, &run.noise)));
    }
    // Parts without a state.
    let lazy = sequential![Lazy::new(|_: &_| Ok(Linear::new(2, 2)))];
    assert_eq!(part(io::save_checkpoint(&good, Checkpoint::new().model(&lazy))).0, "model");
    let mut averaged = AveragedModel::new(&run.model, Average::Equal);
    averaged.update().unwrap();
    averaged.apply().unwrap();
    let (named, text) = part(io::save_checkpoint(&good, plain().part("averaged", &averaged)));
    assert!(named == "averaged" && text.contains("restore()"), "{text}");
    // The file is still complete.
    assert_eq!(run.checkpoint().load_state_dict(&io::load(&good).unwrap()).unwrap(), 5);
}

#[test]
fn a_scaler_rejects_invalid_scales() {
    let _random = Generator::new(1).scope();
    let run = CnnRun::new();
    let state = run.checkpoint().state().unwrap();
    let before = bits(&run.checkpoint());
    for (name, value) in
        [("scale", 0.0), ("scale", f64::NAN), ("scale", f64::INFINITY), ("scale", -1.0), ("growth_tracker", 0.5)]
    {
        let mut state = state.clone();
        state.insert(format!("scaler.{name}"), Tensor::from(value as f32));
        let (part, text) = part(run.checkpoint().load_state_dict(&state));
        assert!(part == "scaler" && text.contains(name), "{text}");
        assert_equal(&bits(&run.checkpoint()), &before, &text);
    }
    // The state dict of a single part is also checked.
    let plateau = ReduceLrOnPlateau::new(ReduceLrOnPlateauOptions::default(), &run.optimizer);
    let mut state = plateau.state_dict();
    state.insert("bad".into(), Tensor::from(-3.0));
    assert!(matches!(plateau.load_state_dict(&state), Err(Error::InvalidArgument { .. })));
    assert_eq!(plateau.state_dict()["bad"].item::<f64>(), 0.0);
    let (x, _) = data(&[4, 2]);
    let batches = Batches::new(&[&x], 2);
    assert!(matches!(batches.load_state_dict(&plateau.state_dict()), Err(Error::StateDict { .. })));
}

/// Inside a captured step values cannot be read, and a load would run again in every launch.
#[test]
fn captured_steps_are_rejected() {
    let _random = Generator::new(1).scope();
    let scratch = Scratch::new("rejected-capture");
    let path = scratch.0.join("path");
    let (layer, x) = (Linear::new(2, 2), Tensor::ones([1, 2], DType::F32));
    let checkpoint = || Checkpoint::new().model(&layer);
    io::save_checkpoint(&path, checkpoint()).unwrap();
    let (bytes, before) = (std::fs::read(&path).unwrap(), bits(&checkpoint()));
    let mut step = pellucid::capture(
        |x| {
            assert!(matches!(io::save_checkpoint(&path, checkpoint()), Err(Error::ReadInCapture { .. })));
            assert!(matches!(io::load_checkpoint(&path, checkpoint()), Err(Error::InvalidArgument { .. })));
            let generator = Generator::default();
            assert!(matches!(generator.set_state(generator.state()), Err(Error::InvalidArgument { .. })));
            layer.forward(&x[0])
        },
        &[&x],
    )
    .unwrap();
    assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), layer.forward(&x).to_vec::<f32>());
    assert_eq!((std::fs::read(&path).unwrap(), bits(&checkpoint())), (bytes, before));
}

#[test]
fn foreign_and_damaged_files_change_nothing() {
    let _random = Generator::new(1).scope();
    let rejecting = Rejecting::new("rejected-files");
    let run = &rejecting.run;
    let before = bits(&run.checkpoint());
    let good = std::fs::read(rejecting.scratch.0.join("good")).unwrap();
    let rejected = |label: &str, bytes: &[u8], text: &str| {
        match io::load_checkpoint(rejecting.scratch.file("case", bytes), run.checkpoint()) {
            Err(Error::File { reason, .. }) => assert!(reason.contains(text), "{label}: {reason}"),
            other => panic!("{label}: expected Error::File, got {other:?}"),
        }
        assert_equal(&bits(&run.checkpoint()), &before, label);
    };
    for length in (0..good.len()).step_by(97).chain([1, 7, 8, 9, good.len() - 1]) {
        rejected(&format!("{length} bytes"), &good[..length], "");
    }
    let all = io::load(rejecting.scratch.0.join("good")).unwrap();
    let text = pellucid::nn::init::from_generator(&Generator::new(1), || Linear::new(2, 3))
        .load_state_dict(&all)
        .unwrap_err()
        .to_string();
    assert!(text.ends_with("the file is a checkpoint: use io::load_checkpoint"), "{text}");
    rejected("one more byte", &[&good[..], b"\0"].concat(), "damaged");
    rejected("JSON", b"{}", "JSON");
    rejected("noise", &[0xa5; 300], "");
    let weights = rejecting.scratch.0.join("weights");
    io::save(&weights, &run.model.state_dict()).unwrap();
    rejected("weights", &std::fs::read(&weights).unwrap(), "not a checkpoint");
    io::save(&weights, &rejecting.state).unwrap();
    rejected("unmarked", &std::fs::read(&weights).unwrap(), "not a checkpoint");
    let marked = |version: &str| {
        let views: Vec<(&str, safetensors::tensor::TensorView<'_>)> = vec![];
        let description = [("pellucid_checkpoint".to_string(), version.to_string())];
        safetensors::serialize(views, Some(description.into_iter().collect())).unwrap()
    };
    rejected("version 2", &marked("2"), "version 2");
    let empty = rejecting.scratch.file("case", &marked("1"));
    assert_eq!(part(io::load_checkpoint(&empty, run.checkpoint())).0, "step");
    assert!(matches!(
        io::load_checkpoint(rejecting.scratch.0.join("no file"), run.checkpoint()),
        Err(Error::File { .. })
    ));
    // A flipped bit of the header.
    let mut before = before;
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in (0..header).step_by(29) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        match io::load_checkpoint(rejecting.scratch.file("case", &bytes), run.checkpoint()) {
            Err(Error::File { .. } | Error::Checkpoint { .. }) => {
                assert_equal(&bits(&run.checkpoint()), &before, &format!("byte {at} of the header"));
            }
            // The flipped bit is in white space, or in the device name of a generator.
            Ok(_) => before = bits(&run.checkpoint()),
            Err(other) => panic!("byte {at} of the header: {other:?}"),
        }
    }
}

/// Malformed files with an index of the expected results; see `PELLUCID_MALFORMED` in `tests/files.rs`.
#[test]
fn a_corpus_of_malformed_files_changes_nothing() {
    let Some(directory) = std::env::var_os("PELLUCID_MALFORMED").map(PathBuf::from) else { return };
    let _random = Generator::new(1).scope();
    let run = MlpRun::new();
    let before = bits(&run.checkpoint());
    let index = std::fs::read_to_string(directory.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    for entry in index.as_array().unwrap() {
        let file = entry["file"].as_str().unwrap();
        let result = io::load_checkpoint(directory.join(file), run.checkpoint());
        assert!(matches!(result, Err(Error::File { .. })), "{file}: {result:?}");
        assert_equal(&bits(&run.checkpoint()), &before, file);
    }
}

/// The generator of the thread has a name that no part of a program has. Older files call it `generator`.
#[test]
fn a_part_may_be_named_generator() {
    let _random = Generator::new(1).scope();
    let (model, other) = (Linear::new(2, 3), Linear::new(2, 3));
    let draw = || Tensor::randn([4], DType::F32).to_vec::<f32>();
    // A state contains the tensors of the parts, which a draw changes.
    let state = Checkpoint::new().named_model("generator", &model).state().unwrap();
    let state: StateDict = state.into_iter().map(|(name, value)| (name, value.copy())).collect();
    let drawn = draw();
    Checkpoint::new().named_model("generator", &other).load_state_dict(&state).unwrap();
    assert_eq!(other.weight.to_vec::<f32>(), model.weight.to_vec::<f32>());
    assert_eq!(draw(), drawn);
}
