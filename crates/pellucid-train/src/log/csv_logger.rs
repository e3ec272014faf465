//! [`CsvLogger`]: a log in CSV format.

use super::append::{AppendFile, ResumedRecords, resume};
use super::names::{check_names, number_text};
use super::{Logger, csv};
use pellucid_tensor::{Error, Result};
use std::path::Path;

/// The name of the first column.
const STEP: &str = "step";

/// Writes the values of each step as a row of a CSV file.
///
/// The first column is `step`. Each other column contains the values of one name. The columns are in the order in which
/// the names first occur. A cell is empty if the row has no value for the column. For a new name, a column is added at
/// the end, and the file is replaced atomically. Numbers are written such that parsing returns the same `f64`.
/// Non-finite values are written as `NaN`, `inf` and `-inf`, which pandas and NumPy can parse.
///
/// Each row is written immediately, without a buffer.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("pellucid-doc-log-{}.csv", std::process::id()));
/// use pellucid::train::{CsvLogger, Logger};
/// let mut log = CsvLogger::new(&path)?;
/// log.scalars(1, &[("train_loss", 0.75)])?;
/// log.scalars(2, &[("train_loss", 0.5), ("accuracy", f64::NAN)])?;
/// let text = "step,train_loss,accuracy\n1,0.75,\n2,0.5,NaN\n";
/// assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
///
/// // A run that continues after step 1.
/// let mut log = CsvLogger::resume(&path, 1)?;
/// log.scalars(2, &[("train_loss", 0.25)])?;
/// assert_eq!(std::fs::read_to_string(&path).unwrap(), "step,train_loss,accuracy\n1,0.75,\n2,0.25,\n");
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug)]
pub struct CsvLogger {
    file: AppendFile,
    /// The column names, including `step`; empty if the file has no header.
    columns: Vec<String>,
    resumed: ResumedRecords,
}

impl CsvLogger {
    /// Creates a log. An existing file is truncated.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn new(path: impl AsRef<Path>) -> Result<CsvLogger> {
        Ok(CsvLogger {
            file: AppendFile::create("csv_logger", path.as_ref())?,
            columns: Vec::new(),
            resumed: ResumedRecords::default(),
        })
    }

    /// Continues a log after step `step`: rows of later steps are removed, and new rows are appended. An incomplete
    /// last row, left by a killed process, is removed. A missing file is created. A new row of step `step` is dropped
    /// if the log already contains a row of this step with the same names, because the earlier process was killed
    /// before it saved its state.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or written, or is not a log of this type.
    pub fn resume(path: impl AsRef<Path>, step: usize) -> Result<CsvLogger> {
        let (op, path) = ("csv_logger", path.as_ref());
        let file_error = |reason: String| Error::file(op, path, format!("not a log of CsvLogger: {reason}"));
        let mut columns: Vec<String> = Vec::new();
        let mut resumed = ResumedRecords::new(step);
        let file = resume(op, path, |text| {
            let rows = csv::parse(text).map_err(file_error)?;
            let mut retained = String::new();
            for (index, row) in rows.iter().enumerate() {
                let is_kept = match row[0].parse::<usize>() {
                    _ if index == 0 && row[0] == STEP => {
                        columns = row.clone();
                        true
                    }
                    _ if index == 0 => {
                        return Err(file_error(format!("the first column is `{}`, not `{STEP}`", row[0])));
                    }
                    Ok(row_step) => {
                        let named = columns.iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty());
                        resumed.note(row_step, named.map(|(name, _)| name.clone()));
                        row_step <= step
                    }
                    Err(_) => {
                        return Err(file_error(format!("row {} has the step `{}`, not a number", index + 1, row[0])));
                    }
                };
                if is_kept {
                    csv::push_row(&mut retained, row);
                }
            }
            Ok(retained)
        })?;
        Ok(CsvLogger { file, columns, resumed })
    }

    /// Adds columns to the header and to all rows of the file.
    fn add_columns(&mut self, new: &[String]) -> Result<()> {
        if self.columns.is_empty() {
            let mut header = String::new();
            csv::push_row(&mut header, new);
            return self.file.append(header.as_bytes());
        }
        let added = ",".repeat(new.len() - self.columns.len());
        self.file.rewrite(|text| {
            let mut longer = String::new();
            csv::push_row(&mut longer, new);
            // Only the header has quoted cells, which may contain line endings.
            let mut header = String::new();
            csv::push_row(&mut header, &self.columns);
            for line in text.strip_prefix(header.as_str()).unwrap_or(text).lines() {
                longer.push_str(line);
                longer.push_str(&added);
                longer.push('\n');
            }
            longer
        })
    }
}

impl Logger for CsvLogger {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        check_names("csv_logger", STEP, values)?;
        if self.resumed.contains(step, values.iter().map(|(name, _)| name.to_string())) {
            return Ok(());
        }
        let known_columns: &[String] = if self.columns.is_empty() { &[STEP.to_string()] } else { &self.columns };
        let new = values.iter().map(|(name, _)| name.to_string()).filter(|name| !known_columns.contains(name));
        let columns: Vec<String> = known_columns.iter().cloned().chain(new).collect();
        if columns.len() > self.columns.len() {
            self.add_columns(&columns)?;
            self.columns = columns;
        }
        let value = |column: &String| values.iter().find(|(name, _)| name == column).map(|(_, value)| *value);
        let cells = self.columns[1..].iter().map(|column| value(column).map_or(String::new(), number_text));
        let mut row = String::new();
        csv::push_row(&mut row, std::iter::once(step.to_string()).chain(cells));
        self.file.append(row.as_bytes())
    }

    /// Does nothing: rows are not buffered.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
