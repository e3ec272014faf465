//! [`History`]: named values of each epoch of a training run.

use super::append::{read_text, replace};
use super::csv;
use super::names::{check_names, number_text};
use crate::metrics::Goal;
use crate::text_table::{decimal_text, write_table};
use pellucid_derive::panicking_form;
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, WrongShape, lock, unwrap};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

/// The name of the first column of tables: the epoch number, counted from 1.
const EPOCH: &str = "epoch";
/// Keys of the state: the number of rows, and the prefix of the columns.
const ROWS: &str = "rows";
const COLUMNS: &str = "columns.";

/// The named values of each epoch of a training run, such as losses, metrics and learning rates.
///
/// Each row is an epoch, and the columns are in the order of their first use. A missing value is NaN. `Display` prints
/// a table. As a part of a [`Checkpoint`](pellucid_nn::Checkpoint), the history continues in a resumed run.
///
/// ```
/// use pellucid::train::History;
/// use pellucid::train::metrics::Goal;
/// let history = History::new();
/// history.push(&[("train_loss", 0.75), ("accuracy", 0.5)]);
/// history.push(&[("train_loss", 0.25), ("accuracy", 0.875)]);
/// history.push(&[("train_loss", 0.125), ("accuracy", 0.75)]);
/// assert_eq!(history.column("train_loss").unwrap(), [0.75, 0.25, 0.125]);
/// assert_eq!(history.last("accuracy"), Some(0.75));
/// assert_eq!(history.best("accuracy", Goal::Maximize), Some((1, 0.875)));
/// let table = "\
/// epoch  train_loss  accuracy
/// 1          0.7500    0.5000
/// 2          0.2500    0.8750
/// 3          0.1250    0.7500
/// ";
/// assert_eq!(history.to_string(), table);
/// ```
#[derive(Default)]
pub struct History(Mutex<HistoryColumns>);

/// The values of all epochs, by column.
#[derive(Clone, Debug, Default, PartialEq)]
struct HistoryColumns {
    /// The number of epochs, which is the length of every column.
    rows: usize,
    columns: Vec<(String, Vec<f64>)>,
    /// The number of columns before the last epoch.
    earlier_columns: usize,
}

impl HistoryColumns {
    fn push(&mut self, row: &[(&str, f64)]) {
        self.earlier_columns = self.columns.len();
        for (name, _) in row {
            if self.find(name).is_none() {
                self.columns.push((name.to_string(), vec![f64::NAN; self.rows]));
            }
        }
        for (name, values) in &mut self.columns {
            let value = row.iter().find(|(column_name, _)| column_name == name);
            values.push(value.map_or(f64::NAN, |(_, value)| *value));
        }
        self.rows += 1;
    }

    fn find(&self, name: &str) -> Option<&Vec<f64>> {
        self.columns.iter().find(|(column_name, _)| column_name == name).map(|(_, values)| values)
    }

    /// Returns the cells of a table with a header and the epoch numbers.
    fn cells(&self, format: fn(&[f64], f64) -> String) -> Vec<Vec<String>> {
        let header = std::iter::once(EPOCH.to_string()).chain(self.columns.iter().map(|(name, _)| name.clone()));
        let row = |row: usize| {
            let values = self.columns.iter().map(|(_, values)| format(values, values[row]));
            std::iter::once((row + 1).to_string()).chain(values).collect()
        };
        std::iter::once(header.collect()).chain((0..self.rows).map(row)).collect()
    }
}

impl History {
    /// Creates a history without epochs.
    pub fn new() -> History {
        History::default()
    }

    /// Adds the values of an epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the reserved name `epoch`, and for a repeated name.
    #[panicking_form]
    pub fn try_push(&self, row: &[(&str, f64)]) -> Result<()> {
        check_names("history", EPOCH, row)?;
        lock(&self.0).push(row);
        Ok(())
    }

    /// Removes the values of the last epoch.
    pub(crate) fn remove_last(&self) {
        let columns = &mut *lock(&self.0);
        columns.rows = columns.rows.saturating_sub(1);
        columns.columns.truncate(columns.earlier_columns);
        columns.columns.iter_mut().for_each(|(_, values)| values.truncate(columns.rows));
    }

    /// Returns the number of epochs.
    pub fn len(&self) -> usize {
        lock(&self.0).rows
    }

    /// Returns true if the history has no epochs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).columns.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the values of all epochs for a name, or `None` if no epoch has the name.
    pub fn column(&self, name: &str) -> Option<Vec<f64>> {
        lock(&self.0).find(name).cloned()
    }

    /// Returns the value of the last epoch for a name, or `None` if no epoch has the name.
    pub fn last(&self, name: &str) -> Option<f64> {
        lock(&self.0).find(name)?.last().copied()
    }

    /// Returns the index and the value of the best epoch in the [column](History::column). The first of equal values is
    /// the best. NaN is skipped; if all values are NaN, returns `None`.
    pub fn best(&self, name: &str, goal: Goal) -> Option<(usize, f64)> {
        let columns = lock(&self.0);
        let mut best = (0, f64::NAN);
        for (index, &value) in columns.find(name)?.iter().enumerate() {
            if goal.is_better(value, best.1) {
                best = (index, value);
            }
        }
        (!best.1.is_nan()).then_some(best)
    }

    /// Writes a CSV file with the column `epoch`, from 1, and the columns of the history. An existing file is replaced
    /// atomically. NaN is written as `NaN`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn save_csv(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut text = String::new();
        lock(&self.0).cells(|_, value| number_text(value)).iter().for_each(|row| csv::push_row(&mut text, row));
        replace("history", path.as_ref(), &text)
    }

    /// Reads a file written by [`save_csv`](History::save_csv). An empty cell is NaN.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, or is not a history.
    pub fn load_csv(path: impl AsRef<Path>) -> Result<History> {
        let path = path.as_ref();
        let file_error = |reason: String| Error::file("history", path, reason);
        let text = read_text("history", path)?;
        let text = text.ok_or_else(|| Error::unreadable_file("history", path, &std::io::ErrorKind::NotFound.into()))?;
        let rows = csv::parse(&text).map_err(file_error)?;
        let header = rows.first().filter(|header| header[0] == EPOCH);
        let header = header.ok_or_else(|| file_error(format!("the first column must be `{EPOCH}`")))?;
        let history = History::new();
        for (index, row) in rows[1..].iter().enumerate() {
            if row[0] != (index + 1).to_string() {
                return Err(file_error(format!("row {} is epoch `{}`, not {}", index + 2, row[0], index + 1)));
            }
            let parse_value = |(name, cell)| -> Result<(&str, f64)> {
                let (name, cell): (&String, &String) = (name, cell);
                let value = if cell.is_empty() { Ok(f64::NAN) } else { cell.parse() };
                let value = value.map_err(|_| file_error(format!("`{name}` of epoch {} is `{cell}`", index + 1)))?;
                Ok((name, value))
            };
            let values = header.iter().zip(row).skip(1).map(parse_value).collect::<Result<Vec<_>>>()?;
            history.try_push(&values).map_err(|error| file_error(error.to_string()))?;
        }
        Ok(history)
    }
}

impl Clone for History {
    fn clone(&self) -> History {
        History(Mutex::new(lock(&self.0).clone()))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("History").field(&*lock(&self.0)).finish()
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(
            f,
            &lock(&self.0).cells(|column, value| match column.iter().all(|value| is_count(*value)) {
                true => value.to_string(),
                false => decimal_text(value),
            }),
        )
    }
}

/// Returns true for a non-negative integer, such as a step count.
fn is_count(value: f64) -> bool {
    value >= 0.0 && value.fract() == 0.0 && value < 1e15
}

/// The state consists of `rows` and of each column under its position and name, such as `columns.0.train_loss`.
impl Stateful for History {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let HistoryColumns { rows, columns, .. } = lock(&self.0).clone();
        let mut state = vec![(ROWS.to_string(), Tensor::scalar(rows as i64, DType::I64))];
        for (position, (name, values)) in columns.into_iter().enumerate() {
            state.push((format!("{COLUMNS}{position}.{name}"), Tensor::try_new(values, [rows])?));
        }
        Ok(state)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let loaded = read_state(state)?;
        Ok(StateLoad::default().then(move || {
            *lock(&self.0) = loaded;
            Ok(())
        }))
    }
}

/// Decodes a state from [`History::state`].
///
/// # Errors
/// [`Error::StateDict`] for unexpected names or shapes; [`Error::InvalidArgument`] for an invalid number of rows.
fn read_state(state: &StateDict) -> Result<HistoryColumns> {
    let op = "load_state_dict";
    let mismatch = |missing: Vec<String>, unexpected: Vec<String>, wrong_shapes: Vec<WrongShape>| {
        Err(Error::StateDict { op, missing, unexpected, wrong_shapes })
    };
    let Some(rows) = state.get(ROWS) else { return mismatch(vec![ROWS.to_string()], vec![], vec![]) };
    let rows = rows.try_item::<i64>()?;
    let rows =
        usize::try_from(rows).map_err(|_| Error::invalid(op, format!("`{ROWS}` must be at least 0, got {rows}")))?;
    let mut columns: Vec<Option<(String, Vec<f64>)>> = vec![None; state.len() - 1];
    for (key, values) in state.iter().filter(|(key, _)| *key != ROWS) {
        let column = key.strip_prefix(COLUMNS).and_then(|rest| rest.split_once('.'));
        let slot = column.and_then(|(position, _)| columns.get_mut(position.parse::<usize>().ok()?));
        // The positions must be distinct and below the number of columns.
        let (Some(slot @ None), Some((_, name))) = (slot, column) else {
            return mismatch(vec![], vec![key.clone()], vec![]);
        };
        let expected = Shape::from([rows]);
        if *values.shape() != expected {
            let wrong = WrongShape { name: key.clone(), found: values.shape().clone(), expected };
            return mismatch(vec![], vec![], vec![wrong]);
        }
        *slot = Some((name.to_string(), values.try_to_vec::<f64>()?));
    }
    let columns: Vec<_> = columns.into_iter().flatten().collect();
    Ok(HistoryColumns { rows, earlier_columns: columns.len(), columns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_an_epoch_removes_the_columns_that_began_with_it() {
        let history = History::new();
        history.push(&[("auc", f64::NAN), ("loss", 1.0)]);
        history.push(&[("loss", 0.5), ("late", 2.0)]);
        history.remove_last();
        assert_eq!((history.names(), history.len()), (vec!["auc".to_string(), "loss".to_string()], 1));
        history.push(&[("auc", 0.75), ("loss", 0.5)]);
        assert_eq!(history.names(), ["auc", "loss"]);
    }
}
