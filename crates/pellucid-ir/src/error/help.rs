//! The parts of messages that name what an operation accepts, and how to correct a call.

use crate::dtype::DType;
use crate::shape::Shape;

pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(" and ")
}

/// Returns the subject and the verb of a sentence about dtypes: "dtype f32 is", "dtypes f32 and f64 are".
pub(super) fn dtypes_are(dtypes: &[DType]) -> String {
    let (plural, verb) = if dtypes.len() == 1 { ("", "is") } else { ("s", "are") };
    format!("dtype{plural} {} {verb}", list(dtypes))
}

/// Formats names in backquotes, separated by commas.
pub(super) fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Formats the number of samples of a batch; empty if it is 0, which means unknown.
pub(super) fn samples(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => ", 1 sample".to_string(),
        count => format!(", {count} samples"),
    }
}

/// Returns the text in parentheses after a space; empty if there is no text.
pub(super) fn in_parentheses(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" ({text})"))
}

/// Returns the text after a space; empty if there is no text.
pub(super) fn after_space(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" {text}"))
}

/// Returns the axes that the operation accepts for a tensor of rank `rank`.
pub(super) fn axis_help(op: &str, rank: usize) -> String {
    match rank {
        _ if op == "stack" => format!("axes of the result are -{}..={rank}", rank + 1),
        _ if op == "unsqueeze" => format!("axes of the result are -{}..={rank}, for one new axis", rank + 1),
        0 => "a 0-d tensor has no axis".to_string(),
        rank => format!("axes are -{rank}..={}", rank - 1),
    }
}

/// Returns the end of the message for an index out of bounds: the indices that the operation accepts, or how to correct
/// the call. A negative class usually means "no class", like PyTorch's −100.
///
/// Operations that are not listed here accept negative indices, which count from the end.
pub(super) fn index_help(op: &str, index: i64, len: usize) -> String {
    match op {
        "cross_entropy" | "nll_loss" if index < 0 => {
            "; ignore_index skips the samples of one class index (PyTorch's default is -100; Pellucid has no default)"
                .to_string()
        }
        "cross_entropy" | "nll_loss" if len == 1 => "; one output has only the class 0: for labels of 0 and 1 use \
            BceWithLogitsLoss with float targets, or give the model two outputs"
            .to_string(),
        "cross_entropy" | "nll_loss" | "multi_margin_loss" | "multilabel_margin_loss" | "ctc_loss" => {
            format!("; classes are 0..{len}: add outputs to the model, or renumber the labels")
        }
        "embedding" | "embedding_bag" => {
            format!("; indices must be in 0..{len}: enlarge the table, or check the vocabulary")
        }
        "embedding_bag offsets" => "; offsets must ascend from 0 to at most the number of indices".to_string(),
        "multinomial" => "; a row of weights has an invalid weight or sum, or fewer positive weights than samples \
            to draw without replacement"
            .to_string(),
        "masked_scatter" => {
            format!("; the mask has more than {len} true elements: the source must have one element for each of them")
        }
        // `narrow` reports the start or the end of the range.
        "narrow" => format!(
            "; start must be at least -{len}, and the range must end at or before {len}; a negative start counts from \
             the end"
        ),
        _ if len == 0 => "; the axis is empty".to_string(),
        "max_unpool1d" | "max_unpool2d" | "max_unpool3d" | "dataset" => format!("; indices must be in 0..{len}"),
        "rnn" | "gru" | "lstm" => format!("; lengths of sequences must be in 0..={}", len - 1),
        _ => format!("; indices must be in -{len}..={}", len - 1),
    }
}

/// Formats the name of the operation whose backward pass produced NaN, and the line that called the operation.
pub(super) fn origin(node: Option<&str>, location: Option<&str>) -> String {
    match (node, location) {
        (None, _) => String::new(),
        (Some(node), Some(at)) => format!(", in the backward pass of `{node}`, which was called at {at}"),
        (Some(node), None) => {
            format!(
                ", in the backward pass of `{node}`; enable anomaly mode before the forward pass to see the line of the call"
            )
        }
    }
}

/// Returns how to correct the call whose result or gradient is NaN.
pub(super) fn domain_help(op: &str, node: Option<&str>) -> String {
    match node {
        None => format!("clamp() the inputs of `{op}` to finite values of its domain, or add an epsilon to them"),
        Some(node) => {
            format!("clamp() the inputs of `{node}` to values with a finite derivative, or add an epsilon to them")
        }
    }
}

/// Formats the text of [`Error::OutOfMemory`].
pub(super) fn memory_message(op: &str, shape: Option<&Shape>, requested: usize, in_use: usize, cap: usize) -> String {
    let op = if op.is_empty() { String::new() } else { format!("{op}: ") };
    if requested == 0 && shape.is_none() {
        return format!("{op}out of memory: the device has none left to run a command; use a smaller shape or batch");
    }
    let shape = shape.map_or("a buffer".to_string(), |shape| format!("a tensor of shape {shape}"));
    let needs = match requested {
        usize::MAX => "more bytes than can be addressed".to_string(),
        bytes => readable_bytes(bytes),
    };
    let in_use = match cap {
        usize::MAX => format!("{} in use", readable_bytes(in_use)),
        // `cap` is the memory cap, or the size of the largest buffer of the device.
        cap if requested > cap => format!("more than the limit of {}", readable_bytes(cap)),
        cap => format!("{} of at most {} in use", readable_bytes(in_use), readable_bytes(cap)),
    };
    format!("{op}out of memory: {shape} needs {needs}; {in_use}; use a smaller shape or batch")
}

/// Formats a number of bytes with a binary unit.
fn readable_bytes(bytes: usize) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} bytes"),
        1024..0x10_0000 => (1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (1048576.0, "MiB"),
        _ => (1073741824.0, "GiB"),
    };
    format!("{:.1} {name}", bytes as f64 / unit)
}
