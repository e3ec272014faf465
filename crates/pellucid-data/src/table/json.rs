//! JSON Lines files: one JSON value per line.

use super::column::is_exact;
use super::{Categories, Column, Table};
use crate::random::vec_with_capacity;
use crate::text::BYTE_ORDER_MARK;
use pellucid_tensor::{Error, Result};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A JSON value (`serde_json::Value`).
pub use serde_json::Value as JsonValue;

const OP: &str = "read_json_lines";

/// The maximum size of a line in bytes. A line is parsed as one value in memory.
const MAX_LINE: u64 = 256 << 20;

/// Reads the JSON values of a file with one value per line. Empty lines and a byte order mark are skipped.
///
/// ```no_run
/// use pellucid::data::read_json_lines;
/// let texts = read_json_lines("reviews.jsonl")?;
/// let texts: Vec<&str> = texts.iter().filter_map(|review| review["text"].as_str()).collect();
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] if the file cannot be read, or a line is not a JSON value (the error contains the line number).
pub fn read_json_lines(path: impl AsRef<Path>) -> Result<Vec<JsonValue>> {
    Ok(numbered_values(path.as_ref())?.into_iter().map(|(_, value)| value).collect())
}

/// Reads the values of a file with their line numbers.
fn numbered_values(path: &Path) -> Result<Vec<(usize, Value)>> {
    let unreadable = |error| Error::unreadable_file(OP, path, &error);
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        bytes.clear();
        let len = (&mut file).take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(unreadable)?;
        if len == 0 {
            break;
        }
        if len as u64 > MAX_LINE {
            return Err(Error::file(OP, path, format!("line {line} has more than {MAX_LINE} bytes")));
        }
        if line == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            let reason = format!("line {line}, byte {}: {}", error.column(), error_message(&error));
            Error::file(OP, path, reason)
        })?;
        values.push((line, value));
    }
    Ok(values)
}

/// Returns the message of an error without its position, which is relative to the line and not to the file.
fn error_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_string()
}

impl Table {
    /// Reads a file with one JSON object per line. Each key is a column: of integers if all values are integers,
    /// otherwise of floats if all are numbers, otherwise of strings. Booleans become strings. `null` and an absent key
    /// are missing values. If floats would round an integer beyond 2⁵³, the column has strings.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, or a line is not an object, or contains an array, an object, or a
    /// string in a column of numbers (the error contains the line number).
    pub fn read_json_lines(path: impl AsRef<Path>) -> Result<Table> {
        let path = path.as_ref();
        let rows = numbered_values(path)?;
        let line_error = |line: usize, reason: String| Error::file(OP, path, format!("line {line}{reason}"));
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        for (line, value) in &rows {
            let Value::Object(fields) = value else {
                return Err(line_error(
                    *line,
                    ": a row of a table must be a JSON object; read_json_lines(path) reads \
                                          other values"
                        .to_string(),
                ));
            };
            for name in fields.keys() {
                if known.insert(name) {
                    names.push(name);
                }
            }
        }
        let column = |name: &String| {
            let mut cells = vec_with_capacity(rows.len())?;
            for (line, row) in &rows {
                let value = row.get(name).unwrap_or(&Value::Null);
                if value.is_array() || value.is_object() {
                    let reason =
                        format!(", column {name:?}: a value of a table must be a number, a string or a boolean");
                    return Err(line_error(*line, reason));
                }
                cells.push((*line, value));
            }
            let column = column_from_values(&cells).map_err(|[number, text]| {
                let reason = format!(
                    ", column {name:?}: the column mixes numbers and strings: line {number} has the first number, line \
                     {text} the first string; all its values must have the same type"
                );
                line_error(number.max(text), reason)
            })?;
            Ok((name.clone(), column))
        };
        Table::from_columns(names.into_iter().map(column).collect::<Result<Vec<_>>>()?)
    }
}

/// Returns a column of values. If strings and numbers are mixed, returns the lines of the first number and of the first
/// string.
fn column_from_values(cells: &[(usize, &Value)]) -> std::result::Result<Column, [usize; 2]> {
    let values = || cells.iter().map(|(_, value)| *value);
    if let Some(integers) = values().map(Value::as_i64).collect::<Option<Vec<i64>>>() {
        return Ok(Column::Integer(integers));
    }
    let to_float = |value: &Value| if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
    if let Some(floats) = values().map(to_float).collect::<Option<Vec<f64>>>() {
        let is_integer = |value: &Value| value.is_i64() || value.is_u64();
        let is_inexact = |value: &Value| is_integer(value) && !value.as_i64().is_some_and(is_exact);
        if values().any(is_inexact) {
            let strings: Vec<Option<String>> =
                values().map(|value| (!value.is_null()).then(|| value.to_string())).collect();
            return Ok(Column::Category(Categories::new(&strings)));
        }
        return Ok(Column::Float(floats));
    }
    let line_of =
        |is_wanted: fn(&Value) -> bool| cells.iter().find(|(_, value)| is_wanted(value)).map(|(line, _)| *line);
    let (number, text) = (line_of(Value::is_number), line_of(|value| value.is_string() || value.is_boolean()));
    if let (Some(number), Some(text)) = (number, text) {
        return Err([number, text]);
    }
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    Ok(Column::Category(Categories::new(&values().map(text).collect::<Vec<_>>())))
}
