//! The settings and the state of a run.

use super::caught::CaughtResult;
use super::event::{Callback, StopReason};
use super::files::RunFiles;
use super::schedules::RunSchedule;
use super::snapshot::RandomSnapshot;
use super::state::RunState;
use super::train_metrics::TrainMetrics;
use crate::log::{History, Logger};
use crate::metrics::{Goal, Metric};
use pellucid_nn::Stateful;
use pellucid_tensor::{Error, Result, ThreadStream, ThreadStreamGuard};
use std::sync::OnceLock;

/// The name of the step count among the values of an epoch. Loggers receive the step count as an argument instead.
pub(super) const STEP: &str = "step";

/// The names that a run reserves for parts of its checkpoint, in addition to the parts of its task and `schedule_0`,
/// `schedule_1`, ..
const RESERVED: [&str; 5] = ["batches", "validation_batches", "run", "history", "train_metrics"];

/// A function that opens a logger for a run that begins after the given number of steps.
type OpenLogger<'f> = Box<dyn FnOnce(usize) -> Result<Box<dyn Logger + 'f>> + Send + 'f>;

/// Options of early stopping: a run ends after `patience` consecutive epochs in which the monitored value has not
/// improved by more than `min_delta`; with [`validate_every`](super::Trainer::validate_every), validations are counted
/// instead of epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// The number of consecutive epochs or validations without improvement after which the run ends, at least 1.
    /// Default: 3.
    pub patience: usize,
    /// Only a change by more than this value counts as an improvement; at least 0. Default: 0.
    pub min_delta: f64,
}

impl Default for EarlyStopping {
    fn default() -> EarlyStopping {
        EarlyStopping { patience: 3, min_delta: 0.0 }
    }
}

/// A run that does not depend on the types of its task and its batches, so that it is compiled once, in this crate.
pub(super) struct RunCore<'f> {
    pub(super) epochs: Option<usize>,
    pub(super) max_steps: Option<usize>,
    /// The number of steps between two validations within an epoch.
    pub(super) validate_every: Option<usize>,
    /// The metrics of validations and evaluations.
    pub(super) metrics: Vec<Box<dyn Metric + 'f>>,
    pub(super) train_metrics: TrainMetrics<'f>,
    pub(super) callbacks: Vec<Box<dyn Callback + 'f>>,
    pub(super) loggers: Vec<Box<dyn Logger + 'f>>,
    /// Functions that open loggers when the run begins.
    pub(super) opened_loggers: Vec<OpenLogger<'f>>,
    pub(super) schedules: Vec<RunSchedule<'f>>,
    pub(super) early_stopping: Option<EarlyStopping>,
    /// The name of the value that determines the best epoch, and its direction.
    pub(super) monitor: Option<(String, Goal)>,
    pub(super) files: RunFiles,
    /// Whether the state must be saved after the next update, because a save was due while gradients were accumulated.
    pub(super) is_save_due: bool,
    pub(super) log_every: usize,
    pub(super) is_quiet: bool,
    pub(super) state: RunState,
    pub(super) history: History,
    /// Additional parts of the saved state.
    pub(super) parts: Vec<(String, Box<dyn Stateful + Send + 'f>)>,
    pub(super) stop_reason: Option<StopReason>,
    /// Whether a callback has ended the current run.
    pub(super) is_stop_requested: bool,
    /// The random stream of the thread that first used the run.
    random: OnceLock<ThreadStream>,
}

impl<'f> RunCore<'f> {
    /// Creates a run with the default settings.
    pub(super) fn boxed() -> Box<RunCore<'f>> {
        Box::new(RunCore {
            epochs: None,
            max_steps: None,
            validate_every: None,
            metrics: Vec::new(),
            train_metrics: TrainMetrics::default(),
            callbacks: Vec::new(),
            loggers: Vec::new(),
            opened_loggers: Vec::new(),
            schedules: Vec::new(),
            early_stopping: None,
            monitor: None,
            files: RunFiles::default(),
            is_save_due: false,
            log_every: 50,
            is_quiet: false,
            state: RunState::default(),
            history: History::default(),
            parts: Vec::new(),
            stop_reason: None,
            is_stop_requested: false,
            random: OnceLock::new(),
        })
    }

    /// Makes the random stream of the run the stream of the current thread until the guard is dropped. Steps, loaders
    /// and the saved generator then use the same stream, even after the run is moved to another thread.
    pub(super) fn enter_random(&self) -> ThreadStreamGuard {
        self.random.get_or_init(ThreadStream::current).enter()
    }

    /// Calls `f` with the random stream of the run, and then restores the stream: the next step draws the same numbers
    /// as without the call. Returns an error that names `op` if the state to resume from is not loaded yet.
    pub(super) fn keep_random<R>(&self, op: &'static str, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.files.check_loaded(op)?;
        let _random = self.enter_random();
        let random = RandomSnapshot::new()?;
        CaughtResult::call(f).resume_after(random.restore())
    }

    /// Returns an error if an additional part has a reserved name, even if this run does not use that name.
    pub(super) fn check_part_names(&self) -> Result<()> {
        let is_schedule = |name: &str| name.strip_prefix("schedule_").is_some_and(|n| n.parse::<usize>().is_ok());
        match self.parts.iter().find(|(name, _)| RESERVED.contains(&name.as_str()) || is_schedule(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let source = Box::new(Error::invalid("part", "this name is reserved; choose another name of the part"));
                Err(Error::Checkpoint { path: None, part: name.clone(), source })
            }
        }
    }
}
