//! Checkpoints of a training run: all parts whose state the next step depends on.

use crate::module::DynModule;
use crate::optim::{GradScaler, Optimizer};
use crate::state::{StateDict, Stateful};
use crate::visit::Visit;
use pellucid_tensor::{DType, Error, Generator, Result, Tensor, is_capturing};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name of the part that every checkpoint contains, the generator of the current thread. Other names have no dots.
const GENERATOR: &str = ".generator";

/// The name of the number of steps in a state. The number is one tensor and not a part, so its name has no dot.
const STEP: &str = "step";

/// The named parts of a training run, which are borrowed, and are saved and restored together.
///
/// A run that is restored from a checkpoint continues bit for bit like a run that was not stopped. The generator of the
/// current thread, from which dropout and `randn` draw, always belongs to a checkpoint, as the part `.generator`.
/// `pellucid::io::save_checkpoint` and `pellucid::io::load_checkpoint` write a checkpoint to a file and restore it; the
/// same function of a program should create the checkpoint for both.
///
/// ```
/// use pellucid::nn::optim::schedule::{ExponentialLr, Scheduler};
/// use pellucid::nn::optim::{AdamW, AdamWOptions};
/// use pellucid::nn::{Checkpoint, Linear, Module};
///
/// let model = Linear::new(3, 2);
/// let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
/// let schedule = Scheduler::new(ExponentialLr { gamma: 0.9 }, &optimizer);
/// let checkpoint = Checkpoint::new().model(&model).optimizer(&optimizer).schedule(&schedule).step(100);
/// let state = checkpoint.state()?;
/// assert!(state.contains_key("model.weight") && state.contains_key("schedule.epoch"));
/// assert_eq!(checkpoint.load_state_dict(&state)?, 100);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// The name of a value is the name of its part, a dot, and the name of the value in the part. All parts have different
/// names without dots; `step` is reserved.
#[derive(Default)]
pub struct Checkpoint<'a> {
    parts: Vec<(String, Box<dyn Stateful + 'a>)>,
    step: usize,
}

impl<'a> Checkpoint<'a> {
    /// Creates a checkpoint that contains the generator of the current thread and step 0.
    pub fn new() -> Checkpoint<'a> {
        Checkpoint::default()
    }

    /// Adds the parameters and persistent buffers of a model, as the part `model`.
    pub fn model(self, model: &'a impl Visit) -> Checkpoint<'a> {
        self.named_model("model", model)
    }

    /// Adds the parameters and persistent buffers of a model as the part `name`, for a run with several models, such as
    /// a GAN.
    pub fn named_model(self, name: &str, model: &'a impl Visit) -> Checkpoint<'a> {
        let model: &'a dyn DynModule = model;
        self.with(name, Box::new(model))
    }

    /// Adds the state of an optimizer, as the part `optimizer`.
    pub fn optimizer(self, optimizer: &'a dyn Optimizer) -> Checkpoint<'a> {
        self.named_optimizer("optimizer", optimizer)
    }

    /// Adds the state of an optimizer as the part `name`, for a run with several optimizers.
    pub fn named_optimizer(self, name: &str, optimizer: &'a dyn Optimizer) -> Checkpoint<'a> {
        self.with(name, Box::new(optimizer))
    }

    /// Adds a [`Scheduler`](crate::optim::schedule::Scheduler) or a
    /// [`ReduceLrOnPlateau`](crate::optim::schedule::ReduceLrOnPlateau), as the part `schedule`.
    pub fn schedule(self, schedule: &'a dyn Stateful) -> Checkpoint<'a> {
        self.part("schedule", schedule)
    }

    /// Adds a loss scaler, as the part `scaler`.
    pub fn scaler(self, scaler: &'a GradScaler) -> Checkpoint<'a> {
        self.part("scaler", scaler)
    }

    /// Adds a data loader, such as `pellucid::data::Batches`, as the part `batches`.
    pub fn batches(self, batches: &'a dyn Stateful) -> Checkpoint<'a> {
        self.part("batches", batches)
    }

    /// Adds a generator that the program passes to operations. The generator of the current thread is already in the
    /// checkpoint.
    pub fn generator(self, name: &str, generator: &'a Generator) -> Checkpoint<'a> {
        self.part(name, generator)
    }

    /// Adds any other part, such as an [`AveragedModel`](crate::optim::AveragedModel) or a second schedule.
    pub fn part(self, name: &str, part: &'a dyn Stateful) -> Checkpoint<'a> {
        self.with(name, Box::new(part))
    }

    /// Sets the number of steps so far, which loading returns.
    pub fn step(self, step: usize) -> Checkpoint<'a> {
        Checkpoint { step, ..self }
    }

    fn with(mut self, name: &str, part: Box<dyn Stateful + 'a>) -> Checkpoint<'a> {
        self.parts.push((name.to_string(), part));
        self
    }

    /// Returns the values of all parts by name. They are the tensors of the parts, not copies.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names a part whose name is invalid or used twice, or whose state does not exist yet.
    pub fn state(&self) -> Result<StateDict> {
        self.check_names()?;
        let mut all = StateDict::from([(STEP.to_string(), Tensor::scalar(self.step as i64, DType::I64))]);
        let generator = Generator::default();
        for (name, part) in self.all_parts(&generator) {
            let state = part.state().map_err(|error| part_error(name, error))?;
            all.extend(state.into_iter().map(|(value, tensor)| (format!("{name}.{value}"), tensor)));
        }
        Ok(all)
    }

    /// Restores all parts in place and returns the number of steps. All values are checked before any part changes.
    /// Recorded steps and other holders of the tensors see the restored values. Tensors stay on their device, even if
    /// the saved value is on another one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names a part that is only in this checkpoint or only in the state, or that rejects its
    /// saved values, for example because of their names, shapes or dtypes. [`Error::InvalidArgument`] while a step is
    /// captured. On error nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<usize> {
        self.check_loadable()?;
        let mut given = by_part(state);
        let step = read_step(given.remove(STEP))?;
        let generator = Generator::default();
        self.check_parts(&given, &generator)?;
        load_all(&self.all_parts(&generator).collect::<Vec<_>>(), &mut given)?;
        Ok(step)
    }

    /// Restores the parts of this checkpoint in place from a state that may contain other parts too, for example only
    /// the model from the state of a training run. The generator of the current thread is not changed. All values are
    /// checked before any part changes.
    ///
    /// ```
    /// use pellucid::nn::{Checkpoint, Linear};
    /// let (encoder, head) = (Linear::new(3, 4), Linear::new(4, 2));
    /// let state = Checkpoint::new().named_model("encoder", &encoder).named_model("head", &head).state()?;
    /// let other = Linear::new(4, 2);
    /// Checkpoint::new().named_model("head", &other).load_parts(&state)?;
    /// assert_eq!(other.weight.to_vec::<f32>(), head.weight.to_vec::<f32>());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`load_state_dict`](Checkpoint::load_state_dict). A part that is only in the state is no error.
    pub fn load_parts(&self, state: &StateDict) -> Result<()> {
        self.check_loadable()?;
        let mut given = by_part(state);
        let parts: Vec<(&str, &dyn Stateful)> =
            self.parts.iter().map(|(name, part)| (name.as_str(), &**part as &dyn Stateful)).collect();
        check_present(&given, &parts)?;
        load_all(&parts, &mut given)
    }

    fn check_loadable(&self) -> Result<()> {
        if is_capturing() {
            let reason = "a checkpoint cannot be loaded inside a captured step, because every launch would load it \
                          again; load it between launches";
            return Err(Error::invalid("load_checkpoint", reason));
        }
        self.check_names()
    }

    /// Returns all parts, with the generator of the current thread.
    fn all_parts<'b>(&'b self, generator: &'b Generator) -> impl Iterator<Item = (&'b str, &'b (dyn Stateful + 'b))> {
        let generator_part: (&str, &(dyn Stateful + 'b)) = (GENERATOR, generator);
        self.parts.iter().map(|(name, part)| (name.as_str(), &**part as &(dyn Stateful + 'b))).chain([generator_part])
    }

    /// Checks the names of the parts, as [`state`](Checkpoint::state) and the methods that load a state do.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names a part whose name is invalid or used twice.
    pub fn check_names(&self) -> Result<()> {
        let mut seen = BTreeSet::from([STEP]);
        for (name, _) in &self.parts {
            let reason = if name.is_empty() || name.contains('.') {
                "the name of a part must have at least one character and no dot"
            } else if seen.insert(name) {
                continue;
            } else {
                "the name is used twice, or is `step`, which is reserved; give the part another name with \
                 named_model(), named_optimizer() or part()"
            };
            return Err(part_error(name, Error::invalid("checkpoint", reason)));
        }
        Ok(())
    }

    /// Returns an error for a part that is only in the state or only in this checkpoint. A part without values, such as
    /// a model without parameters, is not in a state.
    fn check_parts(&self, given: &BTreeMap<&str, StateDict>, generator: &Generator) -> Result<()> {
        let parts: Vec<_> = self.all_parts(generator).collect();
        check_present(given, &parts)?;
        let known: BTreeSet<&str> = parts.iter().map(|(name, _)| *name).collect();
        match given.keys().find(|name| !known.contains(*name)) {
            Some(name) => {
                let reason = format!(
                    "the saved state has this part, but the checkpoint that loads it does not; its parts are {}; add the \
                     part, or load some parts only with load_parts()",
                    list(known.iter())
                );
                Err(part_error(name, Error::invalid("load_checkpoint", reason)))
            }
            None => Ok(()),
        }
    }
}

/// Returns an error for a part that the state does not have, unless the part has no values.
fn check_present(given: &BTreeMap<&str, StateDict>, parts: &[(&str, &dyn Stateful)]) -> Result<()> {
    for (name, part) in parts {
        if !given.contains_key(name) && !part.state().map_err(|error| part_error(name, error))?.is_empty() {
            let reason = format!(
                "the saved state does not have this part; its parts are {}; leave the part out, or save it again with \
                 the part",
                list(given.keys())
            );
            return Err(part_error(name, Error::invalid("load_checkpoint", reason)));
        }
    }
    Ok(())
}

/// Checks the values of all parts, and then restores them.
fn load_all<'a>(parts: &[(&'a str, &'a (dyn Stateful + 'a))], given: &mut BTreeMap<&'a str, StateDict>) -> Result<()> {
    let mut loads = Vec::with_capacity(parts.len());
    for (name, part) in parts {
        let given = given.remove(name).unwrap_or_default();
        let load = check_dtypes(*part, &given).and_then(|()| part.prepare_load(&given));
        loads.push((name, load.map_err(|error| part_error(name, error))?));
    }
    loads.into_iter().try_for_each(|(name, load)| load.commit().map_err(|error| part_error(name, error)))
}

fn part_error(part: &str, source: Error) -> Error {
    Error::Checkpoint { path: None, part: part.to_string(), source: Box::new(source) }
}

/// Formats names in backquotes, separated by commas.
fn list<'a>(names: impl Iterator<Item = &'a &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the state dict of every part. Only the first character of the name of a part may be a dot.
fn by_part(state: &StateDict) -> BTreeMap<&str, StateDict> {
    let mut parts: BTreeMap<&str, StateDict> = BTreeMap::new();
    for (name, tensor) in state {
        let dot = name.char_indices().skip(1).find(|(_, character)| *character == '.');
        let (part, value) = dot.map_or((name.as_str(), ""), |(dot, _)| (&name[..dot], &name[dot + 1..]));
        parts.entry(part).or_default().insert(value.to_string(), tensor.clone());
    }
    parts
}

fn read_step(state: Option<StateDict>) -> Result<usize> {
    let step = state.unwrap_or_default();
    let number = step.get("").filter(|number| step.len() == 1 && number.rank() == 0 && number.dtype() == DType::I64);
    let number = number.map(|number| number.try_item::<i64>()).transpose()?;
    number.and_then(|number| usize::try_from(number).ok()).ok_or_else(|| {
        let reason = "the saved state must contain `step`, the number of steps: a 0-d i64 tensor of at least 0";
        part_error(STEP, Error::invalid("load_checkpoint", reason))
    })
}

/// Returns an error for a value whose dtype differs from the dtype of the part, because a conversion would change bits.
fn check_dtypes(part: &dyn Stateful, given: &StateDict) -> Result<()> {
    for (name, own) in part.state()? {
        if let Some(other) = given.get(&name).filter(|other| other.dtype() != own.dtype()) {
            let help = format!(
                "the saved `{name}` must have the dtype of the part that loads it; create the part in the saved dtype"
            );
            return Err(Error::dtypes("load_checkpoint", [other.dtype(), own.dtype()], help));
        }
    }
    Ok(())
}

impl fmt::Debug for Checkpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.parts.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Checkpoint").field("parts", &parts).field("step", &self.step).finish()
    }
}
