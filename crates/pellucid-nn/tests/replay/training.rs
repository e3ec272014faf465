//! A training, and the modes of running it.

use pellucid_nn::StateDict;
use pellucid_tensor::{DType, Device, Generator, Tensor, capture_local, lazy, manual_seed};
use std::collections::HashSet;

type Step = Box<dyn Fn(&[Tensor]) -> Tensor>;

/// The dtype and the device of a model.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl Setting {
    /// Returns the setting of models of this dtype on the CPU.
    pub(crate) fn on_cpu(dtype: DType) -> Setting {
        Setting { dtype, device: Device::cpu() }
    }
}

/// A model, its optimizer and the steps of their training.
pub(crate) struct TrainingCase {
    /// The steps, each of which is captured separately.
    pub(crate) steps: Vec<Step>,
    /// Returns the index of the step of launch `i`, and its inputs.
    pub(crate) launch: fn(DType, usize) -> (usize, Vec<Tensor>),
    /// The host's action before launch `i`.
    pub(crate) before: Box<dyn Fn(usize)>,
    /// Returns all state that training changes.
    pub(crate) state: Box<dyn Fn() -> StateDict>,
}

/// Creates the model of a training.
pub(crate) type MakeTraining = fn(Setting) -> TrainingCase;

/// The mode of running the steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Way {
    Eager,
    Lazy,
    Replayed,
    /// Replayed, while other tensors are created, kept for a while, and dropped between launches.
    Disturbed,
}

/// The bytes of every loss, and of all state at the end.
#[derive(PartialEq)]
pub(crate) struct Seen {
    pub(crate) losses: Vec<Vec<u8>>,
    pub(crate) state: Vec<(String, Vec<u8>)>,
}

impl Seen {
    fn of(losses: Vec<Vec<u8>>, trainings: &[TrainingCase]) -> Seen {
        Seen { losses, state: state_of(trainings) }
    }

    /// Panics at the first difference of two runs.
    #[track_caller]
    pub(crate) fn assert_is(&self, expected: &Seen, what: &str) {
        let step = self.losses.iter().zip(&expected.losses).position(|(a, b)| a != b);
        assert!(
            step.is_none() && self.losses.len() == expected.losses.len(),
            "{what}: the losses differ from step {step:?} on"
        );
        for (found, expected) in self.state.iter().zip(&expected.state) {
            assert!(found == expected, "{what}: the final value of {} differs", found.0);
        }
        assert!(self == expected, "{what}: the names of the state differ");
    }
}

fn state_of(trainings: &[TrainingCase]) -> Vec<(String, Vec<u8>)> {
    let own =
        |(k, t): (usize, &TrainingCase)| (t.state)().into_iter().map(move |(name, v)| (format!("{k}: {name}"), v));
    let all = trainings.iter().enumerate().flat_map(own);
    let generator = ("generator".to_string(), Generator::default().state().clone());
    all.chain([generator]).map(|(name, t)| (name, t.to_bytes())).collect()
}

/// Runs several training runs side by side, one launch of each in turn.
pub(crate) fn run_training(make: MakeTraining, setting: Setting, count: usize, launches: usize, way: Way) -> Seen {
    manual_seed(42);
    let Setting { dtype, device } = setting;
    let trainings: Vec<TrainingCase> = (0..count).map(|_| make(setting)).collect();
    let launch = |t: &TrainingCase, i: usize| {
        let (step, inputs) = (t.launch)(dtype, i);
        (step, inputs.into_iter().map(|x| x.to(device)).collect::<Vec<_>>())
    };
    let bytes = |loss: Tensor| loss.to_bytes();
    let turns = (0..launches).flat_map(|i| trainings.iter().enumerate().map(move |(k, t)| (i, k, t)));
    if let Way::Eager | Way::Lazy = way {
        let go = |(i, _, t): (usize, usize, &TrainingCase)| {
            (t.before)(i);
            let (step, inputs) = launch(t, i);
            (t.steps[step])(&inputs)
        };
        let losses: Vec<Tensor> =
            if way == Way::Lazy { lazy(|| turns.map(go).collect()) } else { turns.map(go).collect() };
        return Seen::of(losses.into_iter().map(bytes).collect(), &trainings);
    }
    let before = state_of(&trainings);
    let mut captured: Vec<Vec<_>> = Vec::new();
    for t in &trainings {
        let example = |s: usize| (0..launches).map(|i| launch(t, i)).find(|(step, _)| *step == s).unwrap().1;
        let record = |(s, step)| capture_local(step, &example(s).iter().collect::<Vec<_>>()).unwrap();
        captured.push(t.steps.iter().enumerate().map(record).collect());
    }
    assert!(state_of(&trainings) == before, "capturing the steps must not change the state");
    let (mut losses, mut others) = (Vec::new(), Vec::new());
    for (i, k, t) in turns {
        (t.before)(i);
        let (step, inputs) = launch(t, i);
        let outputs = captured[k][step].launch(&inputs.iter().collect::<Vec<_>>()).unwrap();
        losses.push(bytes(outputs.to_tensor(0)));
        if way == Way::Disturbed {
            others.push(Tensor::full([1 + i % 13, 1 + 7 * (i % 5)], f64::NAN, dtype));
            if others.len() > 6 {
                others.drain(..3 + i % 3);
            }
        }
    }
    drop(captured);
    Seen::of(losses, &trainings)
}

/// Checks that all modes give the same results, and that losses change from step to step.
pub(crate) fn same(make: MakeTraining, dtype: DType, launches: usize) {
    same_in(make, Setting::on_cpu(dtype), launches);
}

/// Checks the modes of [`same`] with a setting.
pub(crate) fn same_in(make: MakeTraining, setting: Setting, launches: usize) {
    let device = setting.device;
    let eager = run_training(make, setting, 1, launches, Way::Eager);
    let distinct: HashSet<_> = eager.losses.iter().collect();
    assert!(
        distinct.len() * 3 > launches,
        "{device}: more than a third of the losses must differ, but only {} of {launches} do",
        distinct.len()
    );
    let replayed = run_training(make, setting, 1, launches, Way::Disturbed);
    replayed.assert_is(&eager, &format!("{device}: replayed among other tensors"));
    run_training(make, setting, 1, launches, Way::Lazy).assert_is(&eager, &format!("{device}: run lazily"));
    run_training(make, setting, 2, launches, Way::Replayed).assert_is(
        &run_training(make, setting, 2, launches, Way::Eager),
        &format!("{device}: two training runs replayed in turn"),
    );
}

/// Sine values that differ from launch to launch.
pub(crate) fn wave(shape: &[usize], launch: usize, dtype: DType) -> Tensor {
    let size: usize = shape.iter().product();
    let at = |i: usize| (0.4 + 1.7 * i as f64 + 0.9 * launch as f64).sin();
    Tensor::new((0..size).map(at).collect::<Vec<f64>>(), shape).to_dtype(dtype)
}

/// Class indices, `[n]` or of another shape.
pub(crate) fn classes(shape: &[usize], launch: usize, count: usize) -> Tensor {
    let size: usize = shape.iter().product();
    Tensor::new((0..size).map(|i| ((i * i + 3 * i + launch) % count) as i64).collect::<Vec<_>>(), shape)
}
