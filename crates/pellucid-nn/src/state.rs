//! State dicts: all values of a module or an optimizer, by name.

use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::collections::BTreeMap;

/// Tensors by name, in alphabetical order.
pub type StateDict = BTreeMap<String, Tensor>;

/// Copies of these values.
#[track_caller]
pub(crate) fn snapshot(own: &[(String, Tensor)]) -> StateDict {
    let copies = own.iter().map(|(name, tensor)| Ok((name.clone(), ops::copy(&tensor.detach())?)));
    unwrap(copies.collect::<Result<_>>())
}

/// Writes `state` into `own`, or says what does not fit and writes nothing.
pub(crate) fn load(own: &[(String, Tensor)], state: &StateDict) -> Result<()> {
    let (mut missing, mut misshaped) = (Vec::new(), Vec::new());
    for (name, tensor) in own {
        match state.get(name) {
            None => missing.push(name.clone()),
            Some(value) if value.shape() != tensor.shape() => misshaped.push(name.clone()),
            Some(_) => {}
        }
    }
    let unexpected: Vec<String> = state.keys().filter(|&k| !own.iter().any(|(name, _)| name == k)).cloned().collect();
    if !(missing.is_empty() && unexpected.is_empty() && misshaped.is_empty()) {
        return Err(Error::StateDict { missing, unexpected, misshaped });
    }
    let _guard = no_grad();
    // Whatever can fail (memory, a value that does not exist) fails before the first write.
    let values: Vec<Tensor> = own
        .iter()
        .map(|(name, tensor)| ops::copy(&ops::to_dtype(&state[name], tensor.dtype())?))
        .collect::<Result<_>>()?;
    own.iter().zip(&values).try_for_each(|((_, tensor), value)| ops::copy_(tensor, value))
}
