//! [`History`]: named values of the epochs and validations of a training run.

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
/// Keys of the state: the number of rows, the epoch of each row, and the prefix of the columns.
const ROWS: &str = "rows";
const EPOCHS: &str = "epochs";
const COLUMNS: &str = "columns.";

/// The named values of each epoch of a training run, such as losses, metrics and learning rates.
///
/// Each row is an epoch, or a validation [within an epoch](crate::Trainer::validate_every), and the columns are in the
/// order in which their names first occur. A missing value is NaN. `Display` prints a table. If a
/// [`Checkpoint`](pellucid_nn::Checkpoint) contains the history, a resumed run continues it.
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

/// The values of all rows, by column.
#[derive(Clone, Debug, Default, PartialEq)]
struct HistoryColumns {
    /// The epoch of each row, from 1. Every column has the same length.
    epochs: Vec<usize>,
    columns: Vec<(String, Vec<f64>)>,
    /// The number of columns before the last row was added, which [`remove_last`](History::remove_last) restores.
    earlier_columns: usize,
}

impl HistoryColumns {
    fn push(&mut self, epoch: usize, row: &[(&str, f64)]) {
        self.earlier_columns = self.columns.len();
        for (name, _) in row {
            if self.find(name).is_none() {
                self.columns.push((name.to_string(), vec![f64::NAN; self.epochs.len()]));
            }
        }
        for (name, values) in &mut self.columns {
            let value = row.iter().find(|(column_name, _)| column_name == name);
            values.push(value.map_or(f64::NAN, |(_, value)| *value));
        }
        self.epochs.push(epoch);
    }

    fn find(&self, name: &str) -> Option<&Vec<f64>> {
        self.columns.iter().find(|(column_name, _)| column_name == name).map(|(_, values)| values)
    }

    /// Returns the cells of a table, with a header and a column of epoch numbers.
    fn cells(&self, format: fn(&[f64], f64) -> String) -> Vec<Vec<String>> {
        let header = std::iter::once(EPOCH.to_string()).chain(self.columns.iter().map(|(name, _)| name.clone()));
        let row = |row: usize| {
            let values = self.columns.iter().map(|(_, values)| format(values, values[row]));
            std::iter::once(self.epochs[row].to_string()).chain(values).collect()
        };
        std::iter::once(header.collect()).chain((0..self.epochs.len()).map(row)).collect()
    }
}

impl History {
    /// Creates a history without rows.
    pub fn new() -> History {
        History::default()
    }

    /// Adds a row for the epoch that follows the last row's epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the reserved name `epoch`, and for a repeated name.
    #[panicking_form]
    pub fn try_push(&self, row: &[(&str, f64)]) -> Result<()> {
        let last = lock(&self.0).epochs.last().copied().unwrap_or(0);
        self.push_in_epoch(last + 1, row)
    }

    /// Adds the values of an epoch, or of a validation in it.
    pub(crate) fn push_in_epoch(&self, epoch: usize, row: &[(&str, f64)]) -> Result<()> {
        check_names("history", EPOCH, row)?;
        lock(&self.0).push(epoch, row);
        Ok(())
    }

    /// Removes the last row.
    pub(crate) fn remove_last(&self) {
        let HistoryColumns { epochs, columns, earlier_columns } = &mut *lock(&self.0);
        epochs.pop();
        columns.truncate(*earlier_columns);
        columns.iter_mut().for_each(|(_, values)| values.truncate(epochs.len()));
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        lock(&self.0).epochs.len()
    }

    /// Returns the epoch of each row, from 1. The rows of validations within an epoch precede the row of the entire
    /// epoch.
    pub fn epochs(&self) -> Vec<usize> {
        lock(&self.0).epochs.clone()
    }

    /// Returns true if the history has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).columns.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the values of all rows for a name, or `None` if no row has the name.
    pub fn column(&self, name: &str) -> Option<Vec<f64>> {
        lock(&self.0).find(name).cloned()
    }

    /// Returns the value of the last row for a name, or `None` if no row has the name.
    pub fn last(&self, name: &str) -> Option<f64> {
        lock(&self.0).find(name)?.last().copied()
    }

    /// Returns the index and the value of the best row in the [column](History::column). The first of equal values is
    /// the best. NaN is skipped. Returns `None` if no row has the name, or if all values are NaN.
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

    /// Writes a CSV file with the column `epoch`, which counts from 1, and the columns of the history. An existing file
    /// is replaced atomically. NaN is written as `NaN`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn save_csv(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut text = String::new();
        lock(&self.0).cells(|_, value| number_text(value)).iter().for_each(|row| csv::push_row(&mut text, row));
        replace("history", path.as_ref(), &text)
    }

    /// Reads a file written by [`save_csv`](History::save_csv). An empty cell is read as NaN.
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
        let mut epoch = 0;
        for (index, row) in rows[1..].iter().enumerate() {
            let (last, next) = (epoch, epoch + 1);
            epoch = match row[0].parse() {
                Ok(found) if found == next || found == last && last > 0 => found,
                _ => {
                    let allowed = if last > 0 { format!("{last} or {next}") } else { next.to_string() };
                    let reason = format!("row {} has epoch `{}`, but it must be {allowed}", index + 2, row[0]);
                    return Err(file_error(reason));
                }
            };
            let parse_value = |(name, cell)| -> Result<(&str, f64)> {
                let (name, cell): (&String, &String) = (name, cell);
                let value = if cell.is_empty() { Ok(f64::NAN) } else { cell.parse() };
                let value =
                    value.map_err(|_| file_error(format!("`{name}` of epoch {epoch} is not a number: `{cell}`")))?;
                Ok((name, value))
            };
            let values = header.iter().zip(row).skip(1).map(parse_value).collect::<Result<Vec<_>>>()?;
            history.push_in_epoch(epoch, &values).map_err(|error| file_error(error.to_string()))?;
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

/// The state consists of `rows`, `epochs` and each column under its position and name, such as `columns.0.train_loss`.
impl Stateful for History {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let HistoryColumns { epochs, columns, .. } = lock(&self.0).clone();
        let rows = epochs.len();
        let epochs: Vec<i64> = epochs.into_iter().map(|epoch| epoch as i64).collect();
        let mut state = vec![
            (ROWS.to_string(), Tensor::scalar(rows as i64, DType::I64)),
            (EPOCHS.to_string(), Tensor::try_new(epochs, [rows])?),
        ];
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
    let mismatch = |missing: Vec<String>, unexpected: Vec<String>, wrong_shapes: Vec<WrongShape>| Error::StateDict {
        op,
        missing,
        unexpected,
        wrong_shapes,
    };
    let count = |name: &str, count: i64, least: usize| match usize::try_from(count) {
        Ok(count) if count >= least => Ok(count),
        _ => Err(Error::invalid(op, format!("`{name}` must be at least {least}, got {count}"))),
    };
    let rows = state.get(ROWS).ok_or_else(|| mismatch(vec![ROWS.to_string()], vec![], vec![]))?;
    let rows = count(ROWS, rows.try_item()?, 0)?;
    let expected = Shape::from([rows]);
    let check_shape = |name: &String, values: &Tensor| match *values.shape() == expected {
        true => Ok(()),
        false => {
            let wrong = WrongShape { name: name.clone(), found: values.shape().clone(), expected: expected.clone() };
            Err(mismatch(vec![], vec![], vec![wrong]))
        }
    };
    let epochs = match state.get_key_value(EPOCHS) {
        Some((name, epochs)) => {
            check_shape(name, epochs)?;
            epochs.try_to_vec()?.into_iter().map(|epoch| count(EPOCHS, epoch, 1)).collect::<Result<_>>()?
        }
        // A state of an earlier version has no `epochs`, and one row for each epoch.
        None => (1..=rows).collect(),
    };
    let is_column = |key: &str| key != ROWS && key != EPOCHS;
    let mut columns: Vec<Option<(String, Vec<f64>)>> = vec![None; state.keys().filter(|key| is_column(key)).count()];
    for (key, values) in state.iter().filter(|(key, _)| is_column(key)) {
        let column = key.strip_prefix(COLUMNS).and_then(|rest| rest.split_once('.'));
        let slot = column.and_then(|(position, _)| columns.get_mut(position.parse::<usize>().ok()?));
        // The positions must be distinct and below the number of columns.
        let (Some(slot @ None), Some((_, name))) = (slot, column) else {
            return Err(mismatch(vec![], vec![key.clone()], vec![]));
        };
        check_shape(key, values)?;
        *slot = Some((name.to_string(), values.try_to_vec::<f64>()?));
    }
    let columns: Vec<_> = columns.into_iter().flatten().collect();
    Ok(HistoryColumns { epochs, earlier_columns: columns.len(), columns })
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
