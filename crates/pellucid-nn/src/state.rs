//! State dicts: all values of a module or an optimizer, by name.

use crate::delegate::delegate;
use crate::module::{identity, view};
use pellucid_tensor::{Device, Error, Generator, Result, Shape, Tensor, WrongShape, no_grad, ops};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Tensors by name, sorted by name.
pub type StateDict = BTreeMap<String, Tensor>;

/// Copies values into a state dict.
#[track_caller]
pub(crate) fn snapshot(values: &[(String, Tensor)]) -> Result<StateDict> {
    values.iter().map(|(name, tensor)| Ok((name.clone(), ops::copy(&tensor.detach())?))).collect()
}

/// A part of a training run whose state can be saved and restored: a model, an optimizer, a schedule, a generator, a
/// data loader. A [`Checkpoint`](crate::Checkpoint) consists of such parts.
///
/// A restored part continues exactly like the saved one. Its options are not part of the state: the program creates the
/// part with the same options.
///
/// ```
/// use pellucid::nn::{StateDict, StateLoad, Stateful};
/// use pellucid::{Result, Tensor};
/// use std::cell::Cell;
///
/// /// The best accuracy so far.
/// struct Best(Cell<f64>);
///
/// impl Stateful for Best {
///     fn state(&self) -> Result<Vec<(String, Tensor)>> {
///         Ok(vec![("accuracy".to_string(), Tensor::from(self.0.get()))])
///     }
///
///     fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
///         let load = StateLoad::new(&self.state()?, state)?;
///         let best = state["accuracy"].try_item::<f64>()?;
///         Ok(load.then(move || {
///             self.0.set(best);
///             Ok(())
///         }))
///     }
/// }
///
/// let (saved, best) = (Best(Cell::new(0.75)), Best(Cell::new(0.0)));
/// let state: StateDict = saved.state()?.into_iter().collect();
/// best.prepare_load(&state)?.commit()?;
/// assert_eq!(best.0.get(), 0.75);
/// assert!(best.prepare_load(&StateDict::new()).is_err());
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Stateful {
    /// Returns the state by name. The tensors may be the part's own, so the caller must not write to them.
    ///
    /// # Errors
    /// Returns an error if the state does not exist yet, for example in a lazy layer.
    fn state(&self) -> Result<Vec<(String, Tensor)>>;

    /// Checks a state dict without changing the part. [`StateLoad::commit`] of the result writes the values.
    ///
    /// # Errors
    /// [`Error::StateDict`] for names or shapes that do not fit; [`Error::InvalidArgument`] for invalid values.
    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>>;
}

impl<T: Stateful + ?Sized> Stateful for &T {
    delegate! {
        [**self]
        fn state(self: &Self) -> Result<Vec<(String, Tensor)>>;
        fn prepare_load(self: &Self, state: &StateDict) -> Result<StateLoad<'_>>;
    }
}

/// The state is (key, counter) for each device, by the device's name. A load ignores a device that does not exist in
/// this process, because no number can be drawn there.
impl Stateful for Generator {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.states().into_iter().map(|(device, state)| (device.to_string(), state)).collect())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let on_device = |(name, state): (&String, &Tensor)| Some((name.parse::<Device>().ok()?, state.clone()));
        let states: Vec<(Device, Tensor)> = state.iter().filter_map(on_device).collect();
        Ok(StateLoad::of_writes(self.prepare_states(&states)?))
    }
}

/// Checked values that [`commit`](StateLoad::commit) writes into a part of a training run. Dropping them changes
/// nothing.
#[derive(Default)]
#[must_use = "the values are not loaded before commit()"]
pub struct StateLoad<'a> {
    changes: Vec<Box<dyn FnOnce() -> Result<()> + 'a>>,
}

impl fmt::Debug for StateLoad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateLoad").field("changes", &self.changes.len()).finish_non_exhaustive()
    }
}

impl<'a> StateLoad<'a> {
    /// Checks the names and shapes of a state dict against the tensors `targets`, into which the values are copied.
    /// Values are converted to the dtypes of `targets`.
    ///
    /// # Errors
    /// [`Error::StateDict`] if a name is missing or unexpected, or a shape differs; [`Error::InvalidArgument`] if two
    /// names of one tensor have different values.
    pub fn new(targets: &[(String, Tensor)], state: &StateDict) -> Result<StateLoad<'a>> {
        prepare_entries(targets, state, true).map(|(load, _)| load)
    }

    /// Creates a load that copies each value into its tensor, which has the same shape, dtype and device.
    fn of_writes(writes: Vec<(Tensor, Tensor)>) -> StateLoad<'a> {
        let write = move || {
            let _guard = no_grad();
            writes.iter().try_for_each(|(target, value)| ops::copy_(target, value))
        };
        StateLoad { changes: vec![Box::new(write)] }
    }

    /// Adds a change after all earlier ones, such as the change of a host value. It should fail only if a device fails.
    pub fn then(mut self, change: impl FnOnce() -> Result<()> + 'a) -> StateLoad<'a> {
        self.changes.push(Box::new(change));
        self
    }

    /// Applies all changes.
    ///
    /// # Errors
    /// The errors of the devices that store the values.
    pub fn commit(self) -> Result<()> {
        self.changes.into_iter().try_for_each(|change| change())
    }
}

/// Returns the count `name` from a state dict, in which it is a tensor of one element.
///
/// # Errors
/// [`Error::InvalidArgument`] if the value is not an integer from 0 to 2⁵³.
pub(crate) fn whole_number(op: &'static str, state: &StateDict, name: &str) -> Result<usize> {
    let value = state[name].try_item::<f64>()?;
    if (0.0..=(1u64 << 53) as f64).contains(&value) && value.fract() == 0.0 {
        return Ok(value as usize);
    }
    Err(Error::invalid(op, format!("{name} must be an integer from 0 to 2^53, got {value}")))
}

/// The names that only a module or only a state dict has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncompatibleKeys {
    /// Names that only the module has.
    pub missing: Vec<String>,
    /// Names that only the state dict has.
    pub unexpected: Vec<String>,
}

/// Returns a state dict with other names. `map` returns the new name of a value, or `None` to leave it out. Use it for
/// files of other systems, whose layers have other names.
///
/// ```
/// use pellucid::nn::{Linear, Module, rename_keys};
/// let theirs = Linear::new(2, 3).state_dict();
/// let theirs = rename_keys(&theirs, |name| Some(format!("model.fc.{name}")));
/// let ours = Linear::new(2, 3);
/// ours.load_state_dict(&rename_keys(&theirs, |name| name.strip_prefix("model.fc.").map(String::from)))?;
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// A state dict is a plain map, so values can be transformed as well, such as GPT-2's weights of shape `[in, out]`.
///
/// ```
/// use pellucid::nn::{Linear, Module, StateDict};
/// use pellucid::{DType, Tensor};
/// let theirs = StateDict::from([
///     ("c_fc.weight".to_string(), Tensor::ones([2, 3], DType::F32)),
///     ("c_fc.bias".to_string(), Tensor::ones([3], DType::F32)),
/// ]);
/// let transposed = |(name, value): (String, Tensor)| {
///     let name = name.replace("c_fc.", "");
///     if name == "weight" { (name, value.t()) } else { (name, value) }
/// };
/// Linear::new(2, 3).load_state_dict(&theirs.into_iter().map(transposed).collect())?;
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// To merge several files, [extend](Extend::extend) one state dict with the others.
pub fn rename_keys(state: &StateDict, map: impl Fn(&str) -> Option<String>) -> StateDict {
    state.iter().filter_map(|(name, value)| Some((map(name)?, value.clone()))).collect()
}

/// Concatenates values along their first axis, for files of systems that store one matrix as several.
///
/// A group consists of the values whose names differ only in which of `parts` they contain. It is concatenated in the
/// order of `parts`, under the name in which `joined_part` replaces the part. Other values are kept.
///
/// ```
/// use pellucid::nn::{StateDict, concatenate_entries};
/// use pellucid::{DType, Tensor};
/// let matrix = |name: &str| (format!("layers.0.{name}.weight"), Tensor::ones([2, 3], DType::F32));
/// let theirs = StateDict::from([matrix("query"), matrix("key"), matrix("value"), matrix("dense")]);
/// let ours = concatenate_entries(&theirs, &["query.", "key.", "value."], "in_proj_")?;
/// assert_eq!(ours.keys().collect::<Vec<_>>(), ["layers.0.dense.weight", "layers.0.in_proj_weight"]);
/// assert_eq!(ours["layers.0.in_proj_weight"].shape().dims(), [6, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::StateDict`] names the missing values of a group; [`Error::ShapeMismatch`] if shapes do not match.
pub fn concatenate_entries(state: &StateDict, parts: &[&str], joined_part: &str) -> Result<StateDict> {
    let mut joined = StateDict::new();
    for (name, value) in state {
        let Some(part) = parts.iter().find(|part| name.contains(**part)) else {
            joined.insert(name.clone(), value.clone());
            continue;
        };
        let names: Vec<String> = parts.iter().map(|other| name.replacen(part, other, 1)).collect();
        let missing: Vec<String> = names.iter().filter(|name| !state.contains_key(*name)).cloned().collect();
        if !missing.is_empty() {
            let op = "concatenate_entries";
            return Err(Error::StateDict { op, missing, unexpected: vec![], wrong_shapes: vec![] });
        }
        // The first part that the loop finds triggers the concatenation, since the order of the parts is arbitrary.
        if let Entry::Vacant(place) = joined.entry(name.replacen(part, joined_part, 1)) {
            let values: Vec<&Tensor> = names.iter().map(|name| &state[name]).collect();
            place.insert(ops::concatenate(&values, 0)?);
        }
    }
    Ok(joined)
}

/// Loads the values whose names are in both `targets` and `state`, and returns the names that only one of them has.
/// `targets` has one entry for each name of a shared value. `complete` adds further changes. On error nothing is
/// written.
pub(crate) fn load_matching<'a>(
    targets: &[(String, Tensor)],
    state: &StateDict,
    complete: impl FnOnce(StateLoad<'a>) -> StateLoad<'a>,
) -> Result<IncompatibleKeys> {
    let (load, other_names) = prepare_entries(targets, state, false)?;
    complete(load).commit().map(|()| other_names)
}

/// A value of a module or an optimizer with its names; a shared value has several.
struct NamedValue<'a> {
    names: Vec<&'a str>,
    tensor: &'a Tensor,
}

impl<'a> NamedValue<'a> {
    fn all(named: &'a [(String, Tensor)]) -> Vec<NamedValue<'a>> {
        let (mut all, mut indices) = (Vec::<NamedValue<'_>>::new(), HashMap::new());
        for (name, tensor) in named {
            let place = *indices.entry(view(tensor)).or_insert(all.len());
            if place == all.len() {
                all.push(NamedValue { names: Vec::new(), tensor });
            }
            all[place].names.push(name);
        }
        all
    }

    /// Returns the entries of a state dict for this value.
    fn given<'s>(&self, state: &'s StateDict) -> impl Iterator<Item = (&'a str, &'s Tensor)> {
        self.names.iter().filter_map(|&name| Some((name, state.get(name)?)))
    }

    /// Returns a copy of the value in the state dict, converted to the dtype of the tensor; `None` if it has no entry.
    fn value(&self, state: &StateDict) -> Result<Option<Tensor>> {
        let mut given = self.given(state);
        let Some((name, first)) = given.next() else { return Ok(None) };
        let converted = |value: &Tensor| ops::to_dtype(&value.detach(), self.tensor.dtype());
        let value = converted(first)?;
        for (other, again) in given.filter(|(_, again)| identity(again) != identity(first)) {
            if converted(again)?.try_to_bytes()? != value.try_to_bytes()? {
                let reason = format!(
                    "{name} and {other} are names of one shared tensor but have different values in the state dict; \
                     untie the parameters, or remove one entry"
                );
                return Err(Error::invalid("load_state_dict", reason));
            }
        }
        ops::copy(&value).map(Some)
    }
}

/// The names and shapes in which a state dict differs from the values of a part.
pub(crate) struct StateMismatch {
    pub(crate) keys: IncompatibleKeys,
    pub(crate) wrong_shapes: Vec<WrongShape>,
}

impl StateMismatch {
    /// Compares a state dict with the names and shapes of a part. `missing` are the names that the state dict lacks.
    pub(crate) fn new<'a>(
        expected: impl Iterator<Item = (&'a str, &'a Shape)> + Clone,
        missing: Vec<String>,
        state: &StateDict,
    ) -> StateMismatch {
        let known: HashSet<&str> = expected.clone().map(|(name, _)| name).collect();
        let unexpected = state.keys().filter(|name| !known.contains(name.as_str())).cloned().collect();
        let shape_error = |(name, expected): (&str, &Shape)| {
            let found = state.get(name)?.shape();
            (found != expected).then(|| WrongShape {
                name: name.into(),
                found: found.clone(),
                expected: expected.clone(),
            })
        };
        StateMismatch {
            keys: IncompatibleKeys { missing, unexpected },
            wrong_shapes: expected.filter_map(shape_error).collect(),
        }
    }

    /// Returns true if the names are the same.
    fn has_same_names(&self) -> bool {
        self.keys == IncompatibleKeys::default()
    }

    /// Returns true if names and shapes are the same.
    pub(crate) fn is_empty(&self) -> bool {
        self.wrong_shapes.is_empty() && self.has_same_names()
    }

    /// Returns the error of the operation `op`.
    pub(crate) fn into_error(self, op: &'static str) -> Error {
        let StateMismatch { keys: IncompatibleKeys { missing, unexpected }, wrong_shapes } = self;
        Error::StateDict { op, missing, unexpected, wrong_shapes }
    }
}

/// Returns the names and shapes of named tensors.
pub(crate) fn names_and_shapes(named: &[(String, Tensor)]) -> impl Iterator<Item = (&str, &Shape)> + Clone {
    named.iter().map(|(name, tensor)| (name.as_str(), tensor.shape()))
}

/// Checks the values of `state` for `targets`; `strict` requires that both have the same names. Returns the names that
/// only one of them has.
fn prepare_entries<'a>(
    targets: &[(String, Tensor)],
    state: &StateDict,
    strict: bool,
) -> Result<(StateLoad<'a>, IncompatibleKeys)> {
    let values = NamedValue::all(targets);
    let absent = values.iter().filter(|value| value.given(state).next().is_none());
    let missing = absent.map(|value| value.names[0].to_string()).collect();
    let mismatch = StateMismatch::new(names_and_shapes(targets), missing, state);
    if !mismatch.wrong_shapes.is_empty() || strict && !mismatch.has_same_names() {
        return Err(mismatch.into_error(if strict { "load_state_dict" } else { "load_matching" }));
    }
    let _guard = no_grad();
    // All fallible work (memory, missing values) is done before the first write.
    let found = values.iter().filter_map(|value| Some((value.tensor, value.value(state).transpose()?)));
    let writes =
        found.map(|(target, value)| Ok((target.clone(), value?.try_to(target.device())?))).collect::<Result<_>>()?;
    Ok((StateLoad::of_writes(writes), mismatch.keys))
}
