//! CSV files (RFC 4180), with a configurable delimiter.

use super::column::{TextColumn, WrongValue};
use super::{Column, ColumnType, Table, list_names};
use crate::text::BYTE_ORDER_MARK;
use ::csv::{ReaderBuilder, StringRecord, Trim};
use pellucid_tensor::{Error, Result};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The maximum file size in bytes. A larger file, or an endless one such as `/dev/zero`, would
/// exhaust the memory.
const MAX_BYTES: u64 = 8 << 30;

/// The maximum number of columns. A file with more columns has a different delimiter or is not a table.
const MAX_COLUMNS: usize = 1 << 16;

/// The options of [`Table::read_csv`].
///
/// ```
/// use pellucid::data::{ColumnType, CsvOptions, Table};
///
/// let options = CsvOptions {
///     delimiter: ';',
///     names: &["id", "age", "city"],
///     header: false,
///     missing: &["?"],
///     types: &[("id", ColumnType::Category)],
///     ..Default::default()
/// };
/// let table = Table::from_csv("007;31;Rome\n008;?;\"Rio; Brazil\"\n", options)?;
/// assert_eq!(table.categories("id")?, ["007", "008"]);
/// assert!(table.floats("age")?[1].is_nan());
/// assert_eq!(table.categories("city")?, ["Rio; Brazil", "Rome"]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CsvOptions<'a> {
    /// Whether the first line contains the column names. Default: true.
    pub header: bool,
    /// Column names that replace the header. Default: none.
    pub names: &'a [&'a str],
    /// The columns to read, in the order of this list. An empty list selects all columns. Default: empty.
    #[doc(alias = "usecols")]
    pub columns: &'a [&'a str],
    /// The ASCII character between fields. Default: a comma.
    #[doc(alias = "sep")]
    pub delimiter: char,
    /// The ASCII character with which comment lines begin. Default: none.
    pub comment: Option<char>,
    /// The strings that mark missing values. Default: the empty string, `NA`, `N/A`, `NaN`, `null`, and the variants
    /// that pandas recognizes.
    #[doc(alias = "na_values")]
    pub missing: &'a [&'a str],
    /// Whether values may be missing: a missing number becomes NaN, and a column of integers is then stored as floats.
    /// Default: true.
    pub allow_missing: bool,
    /// The types of columns. All other columns have integers if all values are integers, otherwise floats if all are
    /// numbers, otherwise strings. Default: none.
    #[doc(alias = "dtype")]
    pub types: &'a [(&'a str, ColumnType)],
}

impl Default for CsvOptions<'_> {
    fn default() -> Self {
        CsvOptions {
            header: true,
            names: &[],
            columns: &[],
            delimiter: ',',
            comment: None,
            missing: &["", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"],
            allow_missing: true,
            types: &[],
        }
    }
}

impl Table {
    /// Reads a CSV file. Fields may be quoted by `"`. White space around a field is removed, but kept inside quotes.
    /// Empty lines are skipped.
    ///
    /// ```no_run
    /// use pellucid::data::{CsvOptions, Table};
    /// let table = Table::read_csv("houses.csv", CsvOptions::default())?;
    /// println!("{table}");
    /// let (x, y) = (table.tensor(&["area", "age"])?, table.tensor(&["price"])?);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, or, with the line and the column, for a line with a wrong number of
    /// fields, a value of the wrong type, a missing value that is not allowed, a repeated column name, or an unknown
    /// column name in the options; [`Error::OutOfMemory`].
    pub fn read_csv(path: impl AsRef<Path>, options: CsvOptions<'_>) -> Result<Table> {
        let (op, path) = ("read_csv", path.as_ref());
        let file = File::open(path).map_err(|error| Error::unreadable_file(op, path, &error))?;
        let is_folder = file.metadata().map(|data| data.is_dir());
        if is_folder.map_err(|error| Error::unreadable_file(op, path, &error))? {
            return Err(Error::file(op, path, "the path is a directory: add a file name"));
        }
        let mut bytes = Vec::new();
        // Reading one byte beyond the limit detects a larger file.
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| Error::unreadable_file(op, path, &error))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::file(op, path, format!("the file has more than {MAX_BYTES} bytes; split it")));
        }
        parse(&bytes, options).map_err(|reason| Error::file(op, path, reason))
    }

    /// Parses a string in CSV format, as [`read_csv`](Table::read_csv) does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the line and the column, in the cases of [`read_csv`](Table::read_csv).
    pub fn from_csv(text: &str, options: CsvOptions<'_>) -> Result<Table> {
        parse(text.as_bytes(), options).map_err(|reason| Error::invalid("from_csv", reason))
    }
}

/// The lines of a file.
struct CsvLines<'a> {
    bytes: &'a [u8],
    names: Vec<String>,
    records: Vec<StringRecord>,
    comment: Option<u8>,
}

impl CsvLines<'_> {
    /// Returns the 1-based line number of a row.
    fn line(&self, row: usize) -> u64 {
        self.records[row].position().map_or(0, |position| line_number(position, self.bytes, self.comment))
    }
}

/// Returns the 1-based line number of a record. The position of the parser is before the empty lines and comments that
/// it skips.
fn line_number(position: &::csv::Position, bytes: &[u8], comment: Option<u8>) -> u64 {
    let mut line = position.line();
    let mut rest = &bytes[bytes.len().min(position.byte() as usize)..];
    while let Some(&first) = rest.first() {
        let is_comment = comment == Some(first);
        let skipped = match first {
            b'\r' | b'\n' => 1,
            _ if is_comment => rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1),
            _ => break,
        };
        line += u64::from(first == b'\n' || is_comment);
        rest = &rest[skipped..];
    }
    line
}

/// Parses a CSV file. The error message contains the line and the column.
fn parse(bytes: &[u8], options: CsvOptions<'_>) -> std::result::Result<Table, String> {
    let lines = read_lines(bytes, options)?;
    let column_list = || list_names(lines.names.iter().map(String::as_str));
    let index_of = |name: &str| {
        let index = lines.names.iter().position(|other| other == name);
        index.ok_or_else(|| format!("there is no column {name:?}; the columns are {}", column_list()))
    };
    for (name, _) in options.types {
        index_of(name)?;
    }
    let columns = match options.columns {
        [] => (0..lines.names.len()).collect(),
        names => names.iter().map(|name| index_of(name)).collect::<std::result::Result<Vec<_>, _>>()?,
    };
    let columns = columns.into_iter().map(|index| Ok((lines.names[index].clone(), column(&lines, index, options)?)));
    let columns = columns.collect::<std::result::Result<Vec<_>, String>>()?;
    Table::from_columns(columns).map_err(|error| error.to_string())
}

/// Reads all lines, and checks the field counts and the column names.
fn read_lines<'a>(bytes: &'a [u8], options: CsvOptions<'_>) -> std::result::Result<CsvLines<'a>, String> {
    let ascii = |option: &str, character: char| {
        u8::try_from(character)
            .ok()
            .filter(u8::is_ascii)
            .ok_or_else(|| format!("the {option} must be an ASCII character, got {character:?}"))
    };
    check_special_characters(options)?;
    let mut builder = ReaderBuilder::new();
    builder.has_headers(false).flexible(true).trim(Trim::All).delimiter(ascii("delimiter", options.delimiter)?);
    let comment = options.comment.map(|character| ascii("comment", character)).transpose()?;
    let spaced = check_quotes(bytes, options.delimiter as u8, comment)?;
    let records = builder.comment(comment).from_reader(bytes).into_records();
    let mut records: Vec<StringRecord> = records
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| describe(&error, |position| line_number(position, bytes, comment)))?;
    spaced.into_iter().for_each(|field| field.restore_in(&mut records));
    let header = if options.header && !records.is_empty() { Some(records.remove(0)) } else { None };
    let names: Vec<String> = match (options.names, &header) {
        ([], Some(header)) => header.iter().map(String::from).collect(),
        ([], None) if records.is_empty() => return Err("the file is empty".to_string()),
        ([], None) => (0..records[0].len()).map(|index| index.to_string()).collect(),
        (names, _) => names.iter().map(|name| name.to_string()).collect(),
    };
    if names.len() > MAX_COLUMNS {
        return Err(format!("the first line has {} fields; a table has at most {MAX_COLUMNS} columns", names.len()));
    }
    let mut known = HashSet::with_capacity(names.len());
    if let Some(name) = names.iter().find(|name| !known.insert(*name)) {
        let help = "name all columns with the option `names`";
        return Err(format!("two columns have the name {name:?}; {help}"));
    }
    let lines = CsvLines { bytes, names, records, comment };
    let expected = lines.names.len();
    let checked = header.as_ref().filter(|_| !options.names.is_empty());
    if let Some(header) = checked.filter(|header| header.len() != expected) {
        return Err(format!("the option `names` has {expected} names, but the header has {} fields", header.len()));
    }
    if let Some(row) = lines.records.iter().position(|record| record.len() != expected) {
        let (line, field_count) = (lines.line(row), lines.records[row].len());
        let names = list_names(lines.names.iter().map(String::as_str));
        return Err(format!(
            "line {line} has {field_count} fields, but there are {expected} columns: {names}; check the delimiter, {:?}, and \
             the quotes",
            options.delimiter
        ));
    }
    Ok(lines)
}

/// Returns an error if the delimiter or the comment character has a special meaning in CSV.
fn check_special_characters(options: CsvOptions<'_>) -> std::result::Result<(), String> {
    let reserved = |character: char| matches!(character, '"' | '\n' | '\r');
    if reserved(options.delimiter) {
        return Err(format!("the delimiter must not be a quote or a line end, got {:?}", options.delimiter));
    }
    match options.comment {
        Some(comment) if reserved(comment) || comment == options.delimiter => {
            Err(format!("the comment character must not be a quote, a line end or the delimiter, got {comment:?}"))
        }
        _ => Ok(()),
    }
}

/// A quoted field that begins or ends with white space, which the parser removes.
struct SpacedField {
    /// The offset of the quote in the file.
    at: usize,
    /// The index of the field in its record.
    index: usize,
    text: String,
}

impl SpacedField {
    /// Restores the original field in its record.
    fn restore_in(self, records: &mut [StringRecord]) {
        let starts_before = |record: &StringRecord| record.position().is_some_and(|p| p.byte() <= self.at as u64);
        let Some(row) = records.partition_point(starts_before).checked_sub(1) else { return };
        let mut restored = StringRecord::new();
        for (index, field) in records[row].iter().enumerate() {
            restored.push_field(if index == self.index { &self.text } else { field });
        }
        restored.set_position(records[row].position().cloned());
        records[row] = restored;
    }
}

/// Returns the quoted fields that begin or end with white space. Returns an error for an unclosed quote, which would
/// merge all later lines into one field, and for characters after a closing quote. The parser accepts both.
fn check_quotes(bytes: &[u8], delimiter: u8, comment: Option<u8>) -> std::result::Result<Vec<SpacedField>, String> {
    let (mut spaced, mut index) = (Vec::new(), 0);
    let (mut line, mut at) = (1, bytes.strip_prefix(BYTE_ORDER_MARK).map_or(0, |_| BYTE_ORDER_MARK.len()));
    let (mut is_line_start, mut is_field_start) = (true, true);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if is_line_start && comment == Some(byte) {
            at += bytes[at..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - at);
            continue;
        }
        if is_field_start && byte == b'"' {
            let (opened, start) = (line, at);
            loop {
                let Some(end) = bytes[at..].iter().position(|byte| *byte == b'"') else {
                    return Err(format!("line {opened}: a field begins with a quote that is never closed"));
                };
                line += bytes[at..at + end].iter().filter(|byte| **byte == b'\n').count();
                at += end + 1;
                // Inside a quoted field, two quotes represent one quote.
                if bytes.get(at) != Some(&b'"') {
                    break;
                }
                at += 1;
            }
            let content = String::from_utf8_lossy(&bytes[start..at - 1]);
            if content.trim().len() != content.len() {
                spaced.push(SpacedField { at: start - 1, index, text: content.replace("\"\"", "\"") });
            }
            let rest = bytes[at..].iter().find(|byte| !matches!(byte, b' ' | b'\t'));
            if rest.is_some_and(|byte| *byte != delimiter && !matches!(byte, b'\r' | b'\n')) {
                return Err(format!(
                    "line {line}: text follows the closing quote of a field that begins in line {opened}; double each \
                     quote inside a quoted field"
                ));
            }
            (is_line_start, is_field_start) = (false, false);
            continue;
        }
        line += usize::from(byte == b'\n');
        is_line_start = matches!(byte, b'\r' | b'\n');
        is_field_start = is_line_start || byte == delimiter;
        index = if is_line_start { 0 } else { index + usize::from(byte == delimiter) };
    }
    Ok(spaced)
}

/// Describes an error of the parser with its line number.
fn describe(error: &::csv::Error, line: impl Fn(&::csv::Position) -> u64) -> String {
    let line = error.position().map_or_else(String::new, |position| format!("line {}: ", line(position)));
    match error.kind() {
        ::csv::ErrorKind::Utf8 { .. } => format!("{line}the text is not UTF-8; convert the file"),
        _ => format!("{line}{error}"),
    }
}

/// Returns the values of a column.
fn column(lines: &CsvLines<'_>, index: usize, options: CsvOptions<'_>) -> std::result::Result<Column, String> {
    let name = &lines.names[index];
    let present = |record: &'_ StringRecord| {
        let text = record.get(index).unwrap_or_default();
        !options.missing.contains(&text)
    };
    let missing = |row: usize| {
        format!("line {}, column {name:?}: the value is missing; `allow_missing: true` permits it", lines.line(row))
    };
    if let Some(row) = lines.records.iter().position(|record| !options.allow_missing && !present(record)) {
        return Err(missing(row));
    }
    let text = |record| if present(record) { record.get(index) } else { None };
    let strings = TextColumn { strings: lines.records.iter().map(text).collect() };
    let column = match options.types.iter().find(|(other, _)| other == name) {
        None => strings.infer(),
        Some((_, column_type)) => strings.typed(*column_type).map_err(|WrongValue { row, text, needed }| {
            format!("line {}, column {name:?}: {text:?} is not {needed}", lines.line(row))
        })?,
    };
    // A NaN in a spelling that does not mark missing values was parsed as a number, but is missing as well.
    let nan = match &column {
        Column::Float(values) if !options.allow_missing => values.iter().position(|value| value.is_nan()),
        _ => None,
    };
    nan.map_or(Ok(column), |row| Err(missing(row)))
}
