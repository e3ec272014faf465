//! State dicts: all values of a module or an optimizer, by name.

use crate::module::identity;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

/// Tensors by name, in alphabetical order.
pub type StateDict = BTreeMap<String, Tensor>;

/// Copies of these values.
#[track_caller]
pub(crate) fn snapshot(own: &[(String, Tensor)]) -> StateDict {
    let copies = own.iter().map(|(name, tensor)| Ok((name.clone(), ops::copy(&tensor.detach())?)));
    unwrap(copies.collect::<Result<_>>())
}

/// Names that only one of a module and a state dict has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Those that the module has and the state dict has not.
    pub missing: Vec<String>,
    /// Those that the state dict has and the module has not.
    pub unexpected: Vec<String>,
}

/// A state dict with other names: `map` says what a name becomes, or `None` for a value to leave out. It reads files
/// of other systems, whose layers go by other names.
///
/// ```
/// use pellucid_nn::{Linear, Module, rename};
/// let theirs = Linear::new(2, 3).state_dict();
/// let theirs = rename(&theirs, |name| Some(format!("model.fc.{name}")));
/// let ours = Linear::new(2, 3);
/// ours.load_state_dict(&rename(&theirs, |name| name.strip_prefix("model.fc.").map(String::from)))?;
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// A state dict is a plain map: values that lie otherwise are turned on the way, such as GPT-2's weights `[in, out]`.
///
/// ```
/// use pellucid_nn::{Linear, Module, StateDict};
/// use pellucid_tensor::{DType, Tensor};
/// let theirs = StateDict::from([
///     ("c_fc.weight".to_string(), Tensor::ones([2, 3], DType::F32)),
///     ("c_fc.bias".to_string(), Tensor::ones([3], DType::F32)),
/// ]);
/// let turned = |(name, value): (String, Tensor)| {
///     let name = name.replace("c_fc.", "");
///     if name == "weight" { (name, value.t()) } else { (name, value) }
/// };
/// Linear::new(2, 3).load_state_dict(&theirs.into_iter().map(turned).collect())?;
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub fn rename(state: &StateDict, map: impl Fn(&str) -> Option<String>) -> StateDict {
    state.iter().filter_map(|(name, value)| Some((map(name)?, value.clone()))).collect()
}

/// A state dict in which values are joined along their first axis: those whose names differ in which of `parts` they have,
/// in this order, under the name that has `whole` in its place. Other values stay. It reads files of systems that keep
/// apart what is one matrix here.
///
/// ```
/// use pellucid_nn::{StateDict, join};
/// use pellucid_tensor::{DType, Tensor};
/// let matrix = |name: &str| (format!("layers.0.{name}.weight"), Tensor::ones([2, 3], DType::F32));
/// let theirs = StateDict::from([matrix("query"), matrix("key"), matrix("value"), matrix("dense")]);
/// let ours = join(&theirs, &["query.", "key.", "value."], "in_proj_")?;
/// assert_eq!(ours.keys().collect::<Vec<_>>(), ["layers.0.dense.weight", "layers.0.in_proj_weight"]);
/// assert_eq!(ours["layers.0.in_proj_weight"].shape().dims(), [6, 3]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::StateDict`] names what is missing of a group; [`Error::ShapeMismatch`] for values that do not fit together.
pub fn join(state: &StateDict, parts: &[&str], whole: &str) -> Result<StateDict> {
    let mut joined = StateDict::new();
    for (name, value) in state {
        let Some(part) = parts.iter().find(|part| name.contains(**part)) else {
            joined.insert(name.clone(), value.clone());
            continue;
        };
        let names: Vec<String> = parts.iter().map(|other| name.replacen(part, other, 1)).collect();
        let missing: Vec<String> = names.iter().filter(|name| !state.contains_key(*name)).cloned().collect();
        if !missing.is_empty() {
            return Err(Error::StateDict { missing, unexpected: vec![], misshaped: vec![] });
        }
        // The whole is made when its first part comes along, whichever that is.
        if let Entry::Vacant(place) = joined.entry(name.replacen(part, whole, 1)) {
            let values: Vec<&Tensor> = names.iter().map(|name| &state[name]).collect();
            place.insert(ops::concatenate(&values, 0)?);
        }
    }
    Ok(joined)
}

/// Writes `state` into `own`, or says what does not fit and writes nothing.
pub(crate) fn load(own: &[(String, Tensor)], state: &StateDict) -> Result<()> {
    write(own, state, true).map(drop)
}

/// [`load`] of the names that both have; returns the others.
pub(crate) fn load_matching(own: &[(String, Tensor)], state: &StateDict) -> Result<Keys> {
    write(own, state, false)
}

fn write(own: &[(String, Tensor)], state: &StateDict, strict: bool) -> Result<Keys> {
    let (mut missing, mut misshaped) = (Vec::new(), Vec::new());
    // A shared tensor has several names, of which one is enough.
    let mut met: HashSet<_> =
        own.iter().filter(|(name, _)| state.contains_key(name)).map(|(_, t)| identity(t)).collect();
    for (name, tensor) in own {
        match state.get(name) {
            None if met.insert(identity(tensor)) => missing.push(name.clone()),
            None => {}
            Some(value) if value.shape() != tensor.shape() => misshaped.push(name.clone()),
            Some(_) => {}
        }
    }
    let known: HashSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let unexpected: Vec<String> = state.keys().filter(|k| !known.contains(k.as_str())).cloned().collect();
    if !misshaped.is_empty() || strict && !(missing.is_empty() && unexpected.is_empty()) {
        return Err(Error::StateDict { missing, unexpected, misshaped });
    }
    let _guard = no_grad();
    // Whatever can fail (memory, a value that does not exist) fails before the first write.
    let common = own.iter().filter_map(|(name, tensor)| Some((tensor, state.get(name)?)));
    let values: Vec<(&Tensor, Tensor)> = common
        .map(|(tensor, value)| Ok((tensor, ops::copy(&ops::to_dtype(value, tensor.dtype())?)?)))
        .collect::<Result<_>>()?;
    values.iter().try_for_each(|(tensor, value)| ops::copy_(tensor, value))?;
    Ok(Keys { missing, unexpected })
}
