//! A log as JSON objects, one on each line.

use super::Logger;
use super::append::{AppendFile, resume};
use super::names::{check_names, number_text};
use pellucid_tensor::{Error, Result};
use std::fmt::Write;
use std::path::Path;

/// The text before the step, with which every line begins.
const START: &str = "{\"step\":";

/// Writes the values of each step to a line of a file, as a JSON object (JSON Lines).
///
/// The first member is `step`. Numbers are written so that reading them gives the same `f64`. JSON has no other
/// numbers: they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON format of Protocol Buffers.
///
/// Each line is written immediately, without a buffer.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("pellucid-doc-log-{}.jsonl", std::process::id()));
/// use pellucid::train::{JsonLinesLogger, Logger};
/// let mut log = JsonLinesLogger::new(&path)?;
/// log.scalars(1, &[("loss", 0.75), ("lr", 1e-6)])?;
/// log.scalars(2, &[("loss", f64::NAN)])?;
/// let text = "{\"step\":1,\"loss\":0.75,\"lr\":1e-6}\n{\"step\":2,\"loss\":\"NaN\"}\n";
/// assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug)]
pub struct JsonLinesLogger {
    file: AppendFile,
}

impl JsonLinesLogger {
    /// Creates a log. An existing file is emptied.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn new(path: impl AsRef<Path>) -> Result<JsonLinesLogger> {
        Ok(JsonLinesLogger { file: AppendFile::create("json_lines_logger", path.as_ref())? })
    }

    /// Continues a log after step `step`: lines of later steps are removed, and new lines are appended. A last line
    /// that is incomplete because the process was killed is removed. A missing file is created.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or written, or is not a log of this type.
    pub fn resume(path: impl AsRef<Path>, step: u64) -> Result<JsonLinesLogger> {
        let (op, path) = ("json_lines_logger", path.as_ref());
        let file = resume(op, path, |text| {
            let mut kept = String::new();
            for (index, line) in text.split_inclusive('\n').enumerate() {
                let own = step_of(line).ok_or_else(|| {
                    let reason = format!(
                        "not a log of JsonLinesLogger: line {} does not begin with {START} and a number",
                        index + 1
                    );
                    Error::file(op, path, reason)
                })?;
                if own <= step {
                    kept.push_str(line);
                }
            }
            Ok(kept)
        })?;
        Ok(JsonLinesLogger { file })
    }
}

/// Returns the step of a line.
fn step_of(line: &str) -> Option<u64> {
    let rest = line.strip_prefix(START)?;
    rest[..rest.find([',', '}'])?].parse().ok()
}

impl Logger for JsonLinesLogger {
    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        check_names("json_lines_logger", "step", values)?;
        let mut line = format!("{START}{step}");
        for &(name, value) in values {
            line.push(',');
            push_string(&mut line, name);
            line.push(':');
            line.push_str(&json_number(value));
        }
        line.push_str("}\n");
        self.file.append(line.as_bytes())
    }

    /// Does nothing: lines are not buffered.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Formats a number, as a string if JSON has no such number.
fn json_number(value: f64) -> String {
    match value {
        value if value.is_nan() => "\"NaN\"".into(),
        f64::INFINITY => "\"Infinity\"".into(),
        f64::NEG_INFINITY => "\"-Infinity\"".into(),
        value => number_text(value),
    }
}

/// Appends a string, quoted and escaped.
fn push_string(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c < ' ' => write!(line, "\\u{:04x}", u32::from(c)).expect("writing to a String cannot fail"),
            c => line.push(c),
        }
    }
    line.push('"');
}
