//! [`StateFlag`]: a host flag that describes the values of parameters, and its entry in state dicts.

use crate::cloning::clone_state_flag;
use pellucid_tensor::{DType, Error, HostFlag, Result, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A state dict.
type FlagTensors = BTreeMap<String, Tensor>;

/// A host flag that describes the values of parameters, for example whether a weight includes the update of a
/// [`Lora`](crate::Lora) layer.
///
/// Clones share the flag, as they share the parameters, except in [`deep_copy`](crate::Module::deep_copy). A state dict
/// contains the name of the flag with the value 1 while the flag is set, and no such name otherwise. Loading the first
/// of the described parameters sets the flag to the value of the flag in the state dict, or to false if the state dict
/// has none. If the flag is set, in the model or in the state dict, the other described parameters cannot be loaded
/// without the first, whose value includes their old values.
#[derive(Debug)]
pub struct StateFlag {
    flag: Arc<HostFlag>,
    described: &'static [&'static str],
}

impl StateFlag {
    /// Creates a flag that is not set. It describes the parameters of these names in its module.
    pub fn new(described: &'static [&'static str]) -> StateFlag {
        StateFlag { flag: Arc::new(HostFlag::new(0)), described }
    }

    /// Returns true if the flag is set.
    pub fn get(&self) -> bool {
        self.flag.get() == 1
    }

    /// Sets the flag of all clones.
    pub fn set(&self, value: bool) {
        self.flag.set(usize::from(value));
    }

    /// Returns true if there are clones that share the flag.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.flag) > 1
    }

    fn is_same(&self, other: &StateFlag) -> bool {
        Arc::ptr_eq(&self.flag, &other.flag)
    }

    /// Returns another handle of this flag, inside `deep_copy` too.
    pub(crate) fn handle(&self) -> StateFlag {
        StateFlag { flag: self.flag.clone(), described: self.described }
    }
}

impl Clone for StateFlag {
    fn clone(&self) -> StateFlag {
        StateFlag { flag: clone_state_flag(&self.flag), described: self.described }
    }
}

/// A flag of a model with all its names.
pub(crate) struct NamedFlag {
    names: Vec<String>,
    flag: StateFlag,
}

impl NamedFlag {
    /// Returns the flags of a model; a shared flag once, with all its names.
    pub(crate) fn grouped(flags: Vec<(String, StateFlag)>) -> Vec<NamedFlag> {
        let mut grouped: Vec<NamedFlag> = Vec::new();
        for (name, flag) in flags {
            match grouped.iter_mut().find(|known| known.flag.is_same(&flag)) {
                Some(known) => known.names.push(name),
                None => grouped.push(NamedFlag { names: vec![name], flag }),
            }
        }
        grouped
    }

    /// Returns the entry of the flag in a state dict; `None` unless the flag is set.
    pub(crate) fn entry(&self) -> Option<(String, Tensor)> {
        self.flag.get().then(|| (self.names[0].clone(), Tensor::scalar(1i64, DType::I64)))
    }

    /// Returns the value of the flag after a load of this state dict, or `None` if the load does not change the flag.
    fn loaded(&self, op: &'static str, state: &FlagTensors) -> Result<Option<bool>> {
        let given = self.names.iter().find_map(|name| Some((name, state.get(name)?)));
        let given = given.map(|(name, value)| read_flag(op, name, value)).transpose()?;
        let mut loaded = self.flag.described.iter().filter(|described| self.is_given(described, state));
        let Some(first) = loaded.next() else { return Ok(None) };
        if *first == self.flag.described[0] {
            return Ok(Some(given.unwrap_or(false)));
        }
        if !self.flag.get() && given != Some(true) {
            return Ok(None);
        }
        let [described, flag] = [first, &self.flag.described[0]].map(|name| sibling_name(&self.names[0], name));
        let reason = format!(
            "`{described}` cannot be loaded without `{flag}`, whose values include it according to `{}`; load both, or \
             call unmerge() of the layer first",
            self.names[0]
        );
        Err(Error::invalid(op, reason))
    }

    /// Returns true if a state dict has a described parameter.
    fn is_given(&self, described: &str, state: &FlagTensors) -> bool {
        self.names.iter().any(|name| state.contains_key(&sibling_name(name, described)))
    }
}

/// Returns the name of another part of the module of a flag.
fn sibling_name(flag: &str, name: &str) -> String {
    flag.rsplit_once('.').map_or_else(|| name.to_string(), |(module, _)| format!("{module}.{name}"))
}

fn read_flag(op: &'static str, name: &str, value: &Tensor) -> Result<bool> {
    let invalid = |found: String| Err(Error::invalid(op, format!("`{name}` must be one value, 0 or 1, got {found}")));
    if value.size() != 1 {
        return invalid(format!("shape {}", value.shape()));
    }
    match value.try_to_vec::<f64>()?[0] {
        0.0 => Ok(false),
        1.0 => Ok(true),
        other => invalid(other.to_string()),
    }
}

/// The new values of the flags that a load changes, and the state dict without the entries of flags.
pub(crate) struct FlagLoad {
    pub(crate) state: FlagTensors,
    changes: Vec<(StateFlag, bool)>,
}

impl FlagLoad {
    /// Checks a state dict for the flags of a model.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a flag that is not one value, and for a described parameter that cannot be loaded
    /// without the first described parameter of its flag.
    pub(crate) fn prepare(op: &'static str, flags: &[NamedFlag], state: &FlagTensors) -> Result<FlagLoad> {
        let mut load = FlagLoad { state: state.clone(), changes: Vec::new() };
        for flag in flags {
            if let Some(value) = flag.loaded(op, state)? {
                load.changes.push((flag.flag.handle(), value));
            }
            flag.names.iter().for_each(|name| drop(load.state.remove(name)));
        }
        Ok(load)
    }

    /// Sets the flags.
    pub(crate) fn commit(self) -> Result<()> {
        self.changes.iter().for_each(|(flag, value)| flag.set(*value));
        Ok(())
    }
}
