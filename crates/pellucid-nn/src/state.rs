//! State dicts: all values of a module or an optimizer, by name.

use crate::module::{identity, view};
use pellucid_tensor::{Error, Result, Tensor, WrongShape, no_grad, ops, unwrap};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Tensors by name, in alphabetical order.
pub type StateDict = BTreeMap<String, Tensor>;

/// Copies values into a state dict.
#[track_caller]
pub(crate) fn snapshot(own: &[(String, Tensor)]) -> StateDict {
    let copies = own.iter().map(|(name, tensor)| Ok((name.clone(), ops::copy(&tensor.detach())?)));
    unwrap(copies.collect::<Result<_>>())
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
/// use pellucid_nn::{Linear, Module, rename_keys};
/// let theirs = Linear::new(2, 3).state_dict();
/// let theirs = rename_keys(&theirs, |name| Some(format!("model.fc.{name}")));
/// let ours = Linear::new(2, 3);
/// ours.load_state_dict(&rename_keys(&theirs, |name| name.strip_prefix("model.fc.").map(String::from)))?;
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// A state dict is a plain map, so values can be transformed as well, such as GPT-2's weights of shape `[in, out]`.
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
///
/// To merge several files, [extend](Extend::extend) one state dict by the others.
pub fn rename_keys(state: &StateDict, map: impl Fn(&str) -> Option<String>) -> StateDict {
    state.iter().filter_map(|(name, value)| Some((map(name)?, value.clone()))).collect()
}

/// Concatenates values along their first axis, for files of systems that store one matrix as several.
///
/// A group consists of the values whose names differ only in which of `parts` they contain. It is concatenated in the
/// order of `parts`, under the name with `whole` in place of the part. Other values are kept.
///
/// ```
/// use pellucid_nn::{StateDict, concatenate_entries};
/// use pellucid_tensor::{DType, Tensor};
/// let matrix = |name: &str| (format!("layers.0.{name}.weight"), Tensor::ones([2, 3], DType::F32));
/// let theirs = StateDict::from([matrix("query"), matrix("key"), matrix("value"), matrix("dense")]);
/// let ours = concatenate_entries(&theirs, &["query.", "key.", "value."], "in_proj_")?;
/// assert_eq!(ours.keys().collect::<Vec<_>>(), ["layers.0.dense.weight", "layers.0.in_proj_weight"]);
/// assert_eq!(ours["layers.0.in_proj_weight"].shape().dims(), [6, 3]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::StateDict`] names the missing values of a group; [`Error::ShapeMismatch`] if shapes do not match.
pub fn concatenate_entries(state: &StateDict, parts: &[&str], whole: &str) -> Result<StateDict> {
    let mut joined = StateDict::new();
    for (name, value) in state {
        let Some(part) = parts.iter().find(|part| name.contains(**part)) else {
            joined.insert(name.clone(), value.clone());
            continue;
        };
        let names: Vec<String> = parts.iter().map(|other| name.replacen(part, other, 1)).collect();
        let missing: Vec<String> = names.iter().filter(|name| !state.contains_key(*name)).cloned().collect();
        if !missing.is_empty() {
            return Err(Error::StateDict { missing, unexpected: vec![], wrong_shapes: vec![] });
        }
        // The first part that the loop finds triggers the concatenation, since the order of the parts is arbitrary.
        if let Entry::Vacant(place) = joined.entry(name.replacen(part, whole, 1)) {
            let values: Vec<&Tensor> = names.iter().map(|name| &state[name]).collect();
            place.insert(ops::concatenate(&values, 0)?);
        }
    }
    Ok(joined)
}

/// Copies the values of `state` into `own`, which has one entry for each name of a shared value. On error nothing is
/// written.
pub(crate) fn load(own: &[(String, Tensor)], state: &StateDict) -> Result<()> {
    load_entries(own, state, true).map(drop)
}

/// Loads the values whose names are in `own` and in `state`, as [`load`] does, and returns the other names.
pub(crate) fn load_matching(own: &[(String, Tensor)], state: &StateDict) -> Result<IncompatibleKeys> {
    load_entries(own, state, false)
}

/// A value of a module or an optimizer with its names; a shared value has several.
struct NamedValue<'a> {
    names: Vec<&'a str>,
    tensor: &'a Tensor,
}

impl<'a> NamedValue<'a> {
    fn all(own: &'a [(String, Tensor)]) -> Vec<NamedValue<'a>> {
        let (mut all, mut places) = (Vec::<NamedValue<'_>>::new(), HashMap::new());
        for (name, tensor) in own {
            let place = *places.entry(view(tensor)).or_insert(all.len());
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

    /// Returns the new value in its dtype, if the state dict has one.
    fn value(&self, state: &StateDict) -> Result<Option<Tensor>> {
        let mut given = self.given(state);
        let Some((name, first)) = given.next() else { return Ok(None) };
        let converted = |value: &Tensor| ops::to_dtype(&value.detach(), self.tensor.dtype());
        let value = converted(first)?;
        for (other, again) in given.filter(|(_, again)| identity(again) != identity(first)) {
            if converted(again)?.to_bytes()? != value.to_bytes()? {
                let reason = format!(
                    "{name} and {other} share one value in the module, but have different values in the state dict"
                );
                return Err(Error::invalid("load_state_dict", reason));
            }
        }
        ops::copy(&value).map(Some)
    }
}

fn load_entries(own: &[(String, Tensor)], state: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
    let values = NamedValue::all(own);
    let absent = values.iter().filter(|value| value.given(state).next().is_none());
    let missing: Vec<String> = absent.map(|value| value.names[0].to_string()).collect();
    let known: HashSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let unexpected: Vec<String> = state.keys().filter(|name| !known.contains(name.as_str())).cloned().collect();
    let misfit = |(name, tensor): &(String, Tensor)| {
        let (found, expected) = (state.get(name)?.shape().clone(), tensor.shape().clone());
        (found != expected).then(|| WrongShape { name: name.clone(), found, expected })
    };
    let wrong_shapes: Vec<WrongShape> = own.iter().filter_map(misfit).collect();
    if !wrong_shapes.is_empty() || strict && !(missing.is_empty() && unexpected.is_empty()) {
        return Err(Error::StateDict { missing, unexpected, wrong_shapes });
    }
    let _guard = no_grad();
    // All fallible work (memory, missing values) is done before the first write.
    let found = values.iter().filter_map(|own| Some((own.tensor, own.value(state).transpose()?)));
    let found: Vec<(&Tensor, Tensor)> = found.map(|(own, value)| Ok((own, value?))).collect::<Result<_>>()?;
    found.iter().try_for_each(|(own, value)| ops::copy_(own, &value.to(own.device())?))?;
    Ok(IncompatibleKeys { missing, unexpected })
}
