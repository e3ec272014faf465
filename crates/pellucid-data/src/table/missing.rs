//! Missing values of a table.

use super::{Column, Table, invalid};
use pellucid_tensor::Result;

/// The value in place of missing ones; see [`Table::fill_missing`].
#[derive(Clone, Debug, PartialEq)]
pub enum FillValue {
    /// The mean of the values that exist.
    Mean,
    /// Their median.
    Median,
    /// The most frequent of them, the least of several.
    Mode,
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
}

impl Table {
    /// Returns the number of missing values of a column.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if there is no such column.
    #[doc(alias = "isna")]
    pub fn missing(&self, name: &str) -> Result<usize> {
        let column = self.column(name)?;
        Ok((0..self.rows).filter(|&row| column.is_missing(row)).count())
    }

    /// Returns the rows without missing values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[doc(alias = "dropna")]
    pub fn drop_missing(&self) -> Result<Table> {
        let is_complete = |row: &usize| self.columns.iter().all(|(_, column)| !column.is_missing(*row));
        self.rows(&(0..self.rows).filter(is_complete).collect::<Vec<_>>())
    }

    /// Returns the table with another value in place of the missing values of these columns. A statistic of the
    /// training rows fills other rows by [`FillValue::Number`].
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
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if there is no column of a name, all values
    /// of a column are missing, or the value cannot fill the column: strings cannot fill a column of numbers, and
    /// numbers and the mean cannot fill a column of strings.
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

/// Returns a column with `value` in place of missing values.
fn fill_missing_in(name: &str, column: &Column, value: &FillValue) -> Result<Column> {
    let mismatch = |kind: &str| invalid(format!("{value:?} cannot fill the column {name:?}, which contains {kind}"));
    let all_missing = || invalid(format!("all values of column {name:?} are missing, so its {value:?} is undefined"));
    match column {
        Column::Integer(_) if matches!(value, FillValue::Text(_)) => Err(mismatch("numbers")),
        Column::Integer(_) => Ok(column.clone()),
        Column::Float(values) => {
            let mut existing: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
            existing.sort_by(f64::total_cmp);
            let n = existing.len();
            let fill = match value {
                FillValue::Text(_) => return Err(mismatch("numbers")),
                FillValue::Number(number) => *number,
                _ if n == 0 => return Err(all_missing()),
                FillValue::Mean => existing.iter().sum::<f64>() / n as f64,
                FillValue::Median => (existing[(n - 1) / 2] + existing[n / 2]) / 2.0,
                FillValue::Mode => most_frequent(&existing).ok_or_else(all_missing)?,
            };
            Ok(Column::Float(values.iter().map(|value| if value.is_nan() { fill } else { *value }).collect()))
        }
        Column::Category(categories) => match value {
            FillValue::Text(text) => Ok(categories.with_missing_as(text).into()),
            FillValue::Mode => {
                let mut codes: Vec<i64> = categories.codes().iter().copied().filter(|code| *code >= 0).collect();
                codes.sort_unstable();
                let code = most_frequent(&codes).ok_or_else(all_missing)?;
                Ok(categories.with_missing_as(&categories.names()[code as usize]).into())
            }
            _ => Err(mismatch("strings")),
        },
    }
}

/// Returns the most frequent value of a sorted list, the first of several.
fn most_frequent<T: Copy + PartialEq>(sorted: &[T]) -> Option<T> {
    let groups = sorted.chunk_by(|a, b| a == b);
    // `max_by_key` returns the last of several.
    groups.rev().max_by_key(|group| group.len()).map(|group| group[0])
}
