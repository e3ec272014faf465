//! Missing values of a table.

use super::column::column_floats;
use super::{Column, OP, Table, invalid};
use pellucid_tensor::{Error, Result};

/// The replacement of missing values; see [`Table::fill_missing`].
#[derive(Clone, Debug, PartialEq)]
pub enum FillValue {
    /// The mean of the existing values.
    Mean,
    /// The median of the existing values.
    Median,
    /// The most frequent value; the smallest one if several are equally frequent.
    Mode,
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
}

impl Table {
    /// Counts the missing values of a column.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist.
    #[doc(alias = "isna")]
    pub fn missing(&self, name: &str) -> Result<usize> {
        let column = self.column(name)?;
        Ok((0..self.rows).filter(|&row| column.is_missing(row)).count())
    }

    /// Returns the rows without missing values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "dropna")]
    pub fn drop_missing(&self) -> Result<Table> {
        let is_complete = |row: &usize| self.columns.iter().all(|(_, column)| !column.is_missing(*row));
        self.rows(&(0..self.rows).filter(is_complete).collect::<Vec<_>>())
    }

    /// Returns the table with the missing values of these columns replaced. Statistics are computed from this table;
    /// [`Imputer`](crate::Imputer) uses the statistics of the training rows for other tables.
    ///
    /// ```
    /// use pellucid::data::{Column, FillValue, Table};
    /// let table = Table::from_columns([("age", Column::from(vec![20.0, f64::NAN, 40.0]))])?;
    /// assert_eq!(table.missing("age")?, 1);
    /// let filled = table.fill_missing(&["age"], FillValue::Mean)?;
    /// assert_eq!(filled.floats("age")?, [20.0, 30.0, 40.0]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist, if a column without values has no statistic, or if the
    /// value cannot fill the column: strings cannot fill a column of numbers, and numbers, the mean and the median
    /// cannot fill a column of strings.
    #[doc(alias = "fillna")]
    #[doc(alias = "SimpleImputer")]
    pub fn fill_missing(&self, names: &[impl AsRef<str>], value: FillValue) -> Result<Table> {
        names.iter().try_fold(self.clone(), |table, name| {
            let name = name.as_ref();
            let filled = fill_missing_in(name, table.column(name)?, &value)?;
            table.with_column(name, filled)
        })
    }
}

/// Returns a column with missing values replaced by `value`.
fn fill_missing_in(name: &str, column: &Column, value: &FillValue) -> Result<Column> {
    match (column, value) {
        // Integers are never missing.
        (Column::Integer(_), FillValue::Text(_)) => Err(mismatch(name, column, value)),
        (Column::Integer(_), _) => Ok(column.clone()),
        _ => filled_with(name, column, &statistic(name, column, value)?),
    }
}

/// Returns the number or the string to which `value` evaluates for a column.
pub(crate) fn statistic(name: &str, column: &Column, value: &FillValue) -> Result<FillValue> {
    let all_missing = || invalid(format!("all values of column {name:?} are missing, so its {value:?} is undefined"));
    if let Column::Category(categories) = column {
        return match value {
            FillValue::Text(_) => Ok(value.clone()),
            FillValue::Mode => {
                let mut codes: Vec<i64> = categories.codes().iter().copied().filter(|code| *code >= 0).collect();
                codes.sort_unstable();
                let code = most_frequent(&codes).ok_or_else(all_missing)?;
                Ok(FillValue::Text(categories.names()[code as usize].clone()))
            }
            _ => Err(mismatch(name, column, value)),
        };
    }
    let mut existing: Vec<f64> =
        column_floats(OP, name, column)?.iter().copied().filter(|value| !value.is_nan()).collect();
    existing.sort_by(f64::total_cmp);
    let n = existing.len();
    Ok(FillValue::Number(match value {
        // A column without values has no type.
        FillValue::Text(_) if n == 0 && matches!(column, Column::Float(_)) => return Ok(value.clone()),
        FillValue::Text(_) => return Err(mismatch(name, column, value)),
        FillValue::Number(number) => *number,
        _ if n == 0 => return Err(all_missing()),
        FillValue::Mean => existing.iter().sum::<f64>() / n as f64,
        FillValue::Median => (existing[(n - 1) / 2] + existing[n / 2]) / 2.0,
        FillValue::Mode => most_frequent(&existing).ok_or_else(all_missing)?,
    }))
}

/// Returns a column with missing values replaced by a number or a string.
pub(crate) fn filled_with(name: &str, column: &Column, value: &FillValue) -> Result<Column> {
    match (column, value) {
        (Column::Integer(_), FillValue::Number(_)) => Ok(column.clone()),
        (Column::Float(values), FillValue::Number(fill)) => {
            Ok(Column::Float(values.iter().map(|value| if value.is_nan() { *fill } else { *value }).collect()))
        }
        // A column without values has no type.
        (Column::Float(values), FillValue::Text(text)) if values.iter().all(|value| value.is_nan()) => {
            Ok(Column::from(vec![text.clone(); values.len()]))
        }
        (Column::Category(categories), FillValue::Text(text)) => Ok(categories.with_missing_as(text).into()),
        _ => Err(mismatch(name, column, value)),
    }
}

/// Returns the error of a value that cannot fill a column.
fn mismatch(name: &str, column: &Column, value: &FillValue) -> Error {
    let kind = if matches!(column, Column::Category(_)) { "strings" } else { "numbers" };
    invalid(format!("{value:?} cannot fill the column {name:?}, which contains {kind}"))
}

/// Returns the most frequent value of a sorted list; the first one if several are equally frequent.
fn most_frequent<T: Copy + PartialEq>(sorted: &[T]) -> Option<T> {
    let groups = sorted.chunk_by(|a, b| a == b);
    // `max_by_key` returns the last maximum.
    groups.rev().max_by_key(|group| group.len()).map(|group| group[0])
}
