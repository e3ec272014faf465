//! Encodes strings as tensors of a checkpoint part.

use pellucid_nn::StateDict;
use pellucid_tensor::{Error, Result, Tensor};

/// Encodes strings as two tensors of a state: their bytes (`u8`), and the length of each in bytes (`i64`).
pub(super) fn strings_to_state(name: &str, strings: &[String]) -> Result<[(String, Tensor); 2]> {
    let bytes = strings.concat().into_bytes();
    let lengths: Vec<i64> = strings.iter().map(|text| text.len() as i64).collect();
    let len = bytes.len();
    Ok([
        (format!("{name}.bytes"), Tensor::try_new(bytes, [len])?),
        (format!("{name}.lengths"), Tensor::try_new(lengths, [strings.len()])?),
    ])
}

/// Decodes the strings that [`strings_to_state`] encoded.
pub(super) fn strings_from_state(op: &'static str, state: &StateDict, name: &str) -> Result<Vec<String>> {
    let entry = |part: &str| {
        let key = format!("{name}.{part}");
        let missing = vec![key.clone()];
        state.get(&key).ok_or(Error::StateDict { op, missing, unexpected: vec![], wrong_shapes: vec![] })
    };
    let damaged = || Error::invalid(op, format!("the strings `{name}` of the state are damaged"));
    let (bytes, lengths): (Vec<u8>, Vec<i64>) = (entry("bytes")?.try_to_vec()?, entry("lengths")?.try_to_vec()?);
    let mut rest = bytes.as_slice();
    let text = |length: i64| {
        let (text, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        rest = after;
        String::from_utf8(text.to_vec()).ok()
    };
    let strings = lengths.into_iter().map(text).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
    if rest.is_empty() { Ok(strings) } else { Err(damaged()) }
}

/// Returns an error for a key of a state that belongs neither to one of these lists of strings nor to `others`.
pub(super) fn check_names(op: &'static str, state: &StateDict, lists: &[&str], others: &[&str]) -> Result<()> {
    let is_known = |key: &str| {
        let list = key.strip_suffix(".bytes").or_else(|| key.strip_suffix(".lengths"));
        others.contains(&key) || list.is_some_and(|list| lists.contains(&list))
    };
    match state.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => Err(Error::StateDict { op, missing: vec![], unexpected: vec![key.clone()], wrong_shapes: vec![] }),
    }
}
