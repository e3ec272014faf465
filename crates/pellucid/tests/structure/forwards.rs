//! Forward passes of layers are calls: otherwise hooks and summaries do not see them, and errors have no path of the
//! layer.

/// The calls, and the functions that make them.
const CALLS: [&str; 5] =
    ["call::call", "call_with_states(", "self.run_sequences(", "self.try_forward", "append_after("];

/// Returns the names of the public functions `try_forward..` whose bodies have no call.
pub(crate) fn without_call(text: &str) -> Vec<String> {
    let functions = text.split("pub fn try_forward").skip(1);
    let uncalled = functions.filter_map(|rest| {
        // The end of a method, or of a method in a macro.
        let end = ["\n    }\n", "\n            }\n"].iter().filter_map(|end| rest.find(end)).min()?;
        let name = rest.split('(').next()?;
        (!CALLS.iter().any(|call| rest[..end].contains(call))).then(|| format!("try_forward{name}"))
    });
    uncalled.collect()
}
