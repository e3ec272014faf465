//! The error message for a state dict that does not match.

use super::WrongShape;
use super::help::list;

/// Formats the names and shapes that do not match, with a remedy that depends on the names: the state dict may be a
/// checkpoint, belong to an optimizer, or have prefixed names.
pub(super) fn message(op: &str, missing: &[String], unexpected: &[String], wrong_shapes: &[WrongShape]) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing {missing:?}"));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected {unexpected:?}"));
    }
    if !wrong_shapes.is_empty() {
        parts.push(format!("other shapes: {}", list(wrong_shapes)));
    }
    let mismatches = parts.join(", ");
    match op {
        "functional_call" => format!(
            "{op}: the tensors do not match the model: {mismatches}; pass tensors with the names and shapes of \
             named_parameters()"
        ),
        "concatenate_entries" => format!(
            "{op}: the state dict does not have all parts of a group: {mismatches}; add these values, or leave their \
             part out of `parts`"
        ),
        _ => {
            let help = help(missing, unexpected, wrong_shapes);
            format!("{op}: the state dict does not match: {mismatches}; nothing was loaded; {help}")
        }
    }
}

fn help(missing: &[String], unexpected: &[String], wrong_shapes: &[WrongShape]) -> String {
    // Every optimizer with parameter groups has an entry with this name. A name on both sides is in neither list.
    let has_rate = |names: &[String]| names.iter().any(|name| name == "groups.0.lr");
    let is_of_optimizer = |name: &str| name.starts_with("groups.") || name.starts_with("state.");
    let mut names = missing.iter().chain(unexpected).chain(wrong_shapes.iter().map(|value| &value.name));
    let help = match (has_rate(missing), has_rate(unexpected)) {
        _ if is_checkpoint(unexpected) => "the file is a checkpoint: use io::load_checkpoint",
        (true, _) => "it is not a state dict of this type of optimizer; load one that this type of optimizer saved",
        (_, true) => "it is the state dict of an optimizer; load it into an optimizer of the same type",
        _ if names.all(|name| is_of_optimizer(name)) => {
            "it belongs to another optimizer: create an optimizer of the saved type, with the same options and parameters under the same names"
        }
        _ if missing.is_empty() && unexpected.is_empty() => {
            "create the model with the sizes in the file, or remove these entries from the state dict and use \
             load_matching()"
        }
        _ if unexpected.is_empty() => "load_matching() keeps the current values of missing names",
        _ if missing.is_empty() => "load_matching() ignores unexpected names",
        _ => match prefix(missing, unexpected) {
            Some(prefix) => {
                return format!("the names of the state dict begin with `{prefix}`: remove it with rename_keys()");
            }
            None => "rename entries with rename_keys(), or load the matching entries with load_matching()",
        },
    };
    help.into()
}

/// Returns the prefix, such as the prefix of a wrapper module, whose removal turns every unexpected name into a missing
/// name. `None` if there is no such prefix.
fn prefix<'a>(missing: &[String], unexpected: &'a [String]) -> Option<&'a str> {
    let first = missing.first()?;
    let prefix = unexpected.iter().find_map(|name| name.strip_suffix(first.as_str()))?;
    let is_missing = |name: &String| name.strip_prefix(prefix).is_some_and(|rest| missing.iter().any(|m| m == rest));
    (!prefix.is_empty() && unexpected.iter().all(is_missing)).then_some(prefix)
}

/// Returns true for names of a checkpoint: every checkpoint contains the number of steps and the state of a random
/// generator.
fn is_checkpoint(unexpected: &[String]) -> bool {
    let has_part = |part: &str| unexpected.iter().any(|name| name.starts_with(part));
    unexpected.iter().any(|name| name == "step") && (has_part(".generator.") || has_part("generator."))
}

#[cfg(test)]
mod tests {
    use crate::{Error, Shape, WrongShape};

    fn text(missing: &[&str], unexpected: &[&str], wrong_shapes: &[&str]) -> String {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let other = |name: &&str| WrongShape {
            name: name.to_string(),
            found: Shape::from([3usize]),
            expected: Shape::from([2usize]),
        };
        let wrong_shapes = wrong_shapes.iter().map(other).collect();
        let (missing, unexpected) = (owned(missing), owned(unexpected));
        Error::StateDict { op: "load_state_dict", missing, unexpected, wrong_shapes }.to_string()
    }

    #[test]
    fn the_message_lists_only_mismatches() {
        let found = text(&["0.weight"], &[], &[]);
        assert!(found.contains("missing [\"0.weight\"]") && found.contains("load_matching() keeps"), "{found}");
        assert!(!found.contains("unexpected") && !found.contains("shape"), "{found}");
        let found = text(&[], &[], &["0.bias"]);
        assert!(found.contains("other shapes: 0.bias: [3] instead of [2]") && !found.contains("missing"), "{found}");
    }

    #[test]
    fn the_help_fits_the_mismatch() {
        let shapes = text(&[], &[], &["0.weight"]);
        assert!(
            shapes.contains("create the model with the sizes in the file") && !shapes.contains("rename"),
            "{shapes}"
        );
        let renamed = text(&["0.weight"], &["fc.weight"], &["1.weight"]);
        assert!(renamed.contains("rename_keys()"), "{renamed}");
        for generator in [".generator.cpu", "generator.cpu"] {
            let checkpoint = [generator, "model.0.weight", "optimizer.groups.0.lr", "step"];
            for missing in ["0.weight", "groups.0.lr"] {
                let found = text(&[missing], &checkpoint, &[]);
                assert!(found.ends_with("the file is a checkpoint: use io::load_checkpoint"), "{found}");
            }
        }
        assert!(!text(&["0.weight"], &["step"], &[]).contains("checkpoint"));
        assert!(text(&[], &["1.weight"], &[]).ends_with("load_matching() ignores unexpected names"));
        let wrapped = text(&["0.weight", "0.bias"], &["module.0.bias", "module.0.weight"], &[]);
        assert!(wrapped.ends_with("begin with `module.`: remove it with rename_keys()"), "{wrapped}");
        let other = text(&["0.weight", "0.bias"], &["module.0.bias", "head"], &[]);
        assert!(other.contains("load the matching entries with load_matching()"), "{other}");
    }

    #[test]
    fn a_state_dict_of_another_optimizer_is_recognized() {
        let another = "belongs to another optimizer";
        assert!(text(&["state.0.momentum"], &["state.0.mean", "state.0.variance"], &[]).contains(another));
        assert!(text(&[], &["groups.1.lr", "state.0.step"], &[]).contains(another));
        assert!(text(&[], &[], &["state.head.weight.mean"]).contains(another));
        assert!(text(&["0.weight"], &["groups.0.lr", "state.0.step"], &[]).contains("state dict of an optimizer"));
        assert!(text(&["groups.0.lr", "state.0.step"], &["0.weight"], &[]).contains("not a state dict of this type"));
        for names in [text(&["groups.0.lr"], &["lr"], &[]), text(&[], &["state.0.step"], &[])] {
            assert!(!names.contains("rename"), "{names}");
        }
        // A module may have a part with the name `state` next to parts with other names.
        assert!(text(&["state.weight", "head.weight"], &[], &[]).contains("load_matching()"));
    }
}
