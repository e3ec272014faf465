//! [`JsonLinesLogger`]: a log in JSON Lines format.

use super::Logger;
use super::append::{AppendFile, ResumedRecords, resume};
use super::names::{check_names, number_text};
use pellucid_tensor::{Error, Result};
use std::fmt::Write;
use std::path::Path;

/// The prefix of every line, before the step.
const START: &str = "{\"step\":";

/// Writes the values of each step as a JSON object on one line of a file (JSON Lines).
///
/// The first member is `step`. Numbers are written such that parsing returns the same `f64`. JSON has no NaN or
/// infinity, which are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON format of
/// Protocol Buffers.
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
    resumed: ResumedRecords,
}

impl JsonLinesLogger {
    /// Creates a log. An existing file is truncated.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn new(path: impl AsRef<Path>) -> Result<JsonLinesLogger> {
        Ok(JsonLinesLogger {
            file: AppendFile::create("json_lines_logger", path.as_ref())?,
            resumed: ResumedRecords::default(),
        })
    }

    /// Continues a log after step `step`: lines of later steps are removed, and new lines are appended. An incomplete
    /// last line, left by a killed process, is removed. A missing file is created. A new line of step `step` is dropped
    /// if the log already contains a line of this step with the same names, because the earlier process was killed
    /// before it saved its state.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or written, or is not a log of this type.
    pub fn resume(path: impl AsRef<Path>, step: usize) -> Result<JsonLinesLogger> {
        let (op, path) = ("json_lines_logger", path.as_ref());
        let mut resumed = ResumedRecords::new(step);
        let file = resume(op, path, |text| {
            let mut retained = String::new();
            for (index, line) in text.split_inclusive('\n').enumerate() {
                let line_step = parse_step(line).ok_or_else(|| {
                    let reason = format!(
                        "not a log of JsonLinesLogger: line {} does not begin with {START} and a number",
                        index + 1
                    );
                    Error::file(op, path, reason)
                })?;
                resumed.note(line_step, parse_names(line).into_iter());
                if line_step <= step {
                    retained.push_str(line);
                }
            }
            Ok(retained)
        })?;
        Ok(JsonLinesLogger { file, resumed })
    }
}

/// Parses the step of a line.
fn parse_step(line: &str) -> Option<usize> {
    let rest = line.strip_prefix(START)?;
    rest[..rest.find([',', '}'])?].parse().ok()
}

/// Parses the quoted names of the values of a line.
fn parse_names(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = line.strip_prefix(START).unwrap_or_default();
    // A name follows each comma outside of a string.
    while let Some((_, member)) = rest.split_once(',') {
        let Some(end) = string_len(member) else { break };
        names.push(member[..end].to_string());
        rest = &member[end..];
        if let Some(value) = rest.strip_prefix(":\"") {
            rest = &value[value.find('"').map_or(value.len(), |end| end + 1)..];
        }
    }
    names
}

/// Returns the length in bytes of the quoted string at the start of `text`.
fn string_len(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

/// Returns a string, quoted and escaped.
fn quoted(text: &str) -> String {
    let mut line = String::new();
    push_string(&mut line, text);
    line
}

impl Logger for JsonLinesLogger {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        check_names("json_lines_logger", "step", values)?;
        if self.resumed.contains(step, values.iter().map(|(name, _)| quoted(name))) {
            return Ok(());
        }
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

/// Formats a number. NaN and infinity become strings.
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
