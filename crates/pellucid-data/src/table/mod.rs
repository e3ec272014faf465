//! [`Table`]: named columns of numbers and strings.

mod column;
#[cfg(feature = "csv")]
mod csv;
#[cfg(feature = "json")]
mod json;
mod missing;

#[cfg(feature = "csv")]
pub use self::csv::CsvOptions;
pub use column::{Categories, Column, ColumnType};
#[cfg(feature = "json")]
pub use json::{JsonValue, read_json_lines};
pub use missing::FillValue;
pub(crate) use missing::{filled_with, statistic};

use crate::random::vec_with_capacity;
use crate::split::{SplitLength, split_indices};
use column::{column_floats, column_integers, text_error};
use pellucid_tensor::{DType, Error, Result, Scalar, Tensor, ops};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

const OP: &str = "table";

/// Named columns of floats, integers and strings, with the same number of rows.
///
/// ```
/// use pellucid::data::{Column, Table};
///
/// let table = Table::from_columns([
///     ("height", Column::from(vec![1.7, 1.6, 1.8, 1.5])),
///     ("age", Column::from(vec![31, 25, 44, 50])),
///     ("city", Column::from(vec!["Rome", "Oslo", "Rome", "Bern"])),
/// ])?;
/// assert_eq!(table.shape(), (4, 3));
/// assert_eq!(table.tensor(&["height", "age"])?.shape().dims(), [4, 2]);
/// assert_eq!(table.categories("city")?, ["Bern", "Oslo", "Rome"]);
/// assert_eq!(table.labels("city")?.to_vec::<i64>(), [2, 1, 2, 0]);
/// let [train, test] = table.split([0.75, 0.25], 0)?;
/// assert_eq!((train.len(), test.len()), (3, 1));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// With the feature `csv`, `Table::read_csv` reads a CSV file. Column names usually come from a file, so the methods
/// that read a column return an error if it does not exist. The error lists the existing names.
#[doc(alias = "DataFrame")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<(String, Column)>,
    rows: usize,
}

/// The options of [`Table::tensor_with`].
#[derive(Clone, Copy, Debug)]
pub struct TableTensorOptions {
    /// The dtype of the tensor. Default: `f32`.
    pub dtype: DType,
    /// Whether missing values become NaN. Otherwise they are rejected, because one NaN makes the loss NaN. Default:
    /// false.
    pub allow_missing: bool,
}

impl Default for TableTensorOptions {
    fn default() -> Self {
        TableTensorOptions { dtype: DType::F32, allow_missing: false }
    }
}

fn invalid(reason: String) -> Error {
    Error::invalid(OP, reason)
}

/// Returns the error for a column of floats that is used as classes.
fn float_labels(name: &str) -> Error {
    invalid(format!(
        "the column {name:?} must have text or integers, but has floats; to_categories({name:?}) makes each distinct \
         number a category"
    ))
}

/// Formats a list of names. A long list is truncated.
fn list_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 24;
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<&str> = names.take(SHOWN).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// Returns an error if a number exceeds the range of a dtype, or is not an integer although the dtype is an integer
/// dtype.
fn check_represented(name: &str, column: &Column, dtype: DType) -> Result<()> {
    let (_, largest) = dtype.range();
    let is_represented = |value: Scalar| match value {
        Scalar::Float(x) if dtype.is_float() => !x.is_finite() || x.abs() <= largest.to_f64(),
        _ => dtype.represents(value),
    };
    let outside = match column {
        Column::Float(values) => values.iter().find(|&&x| !is_represented(x.into())).map(|x| format!("{x:?}")),
        Column::Integer(values) => values.iter().find(|&&x| !is_represented(x.into())).map(i64::to_string),
        Column::Category(_) => None,
    };
    let Some(value) = outside else { return Ok(()) };
    Err(invalid(format!("the column {name:?} has the value {value}, which {dtype} cannot represent")))
}

impl Table {
    /// Creates a table from columns with their names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if two columns have the same name or different numbers of rows.
    pub fn from_columns<N: Into<String>, C: Into<Column>>(columns: impl IntoIterator<Item = (N, C)>) -> Result<Table> {
        let columns: Vec<(String, Column)> =
            columns.into_iter().map(|(name, column)| (name.into(), column.into())).collect();
        let rows = columns.first().map_or(0, |(_, column)| column.len());
        let mut known = HashSet::with_capacity(columns.len());
        for (name, column) in &columns {
            if !known.insert(name) {
                return Err(invalid(format!("two columns have the name {name:?}; the names must be different")));
            }
            if column.len() != rows {
                let (first, other) = (&columns[0].0, column.len());
                let reason = format!("the column {name:?} has {other} rows, but {first:?} has {rows}");
                return Err(invalid(reason));
            }
        }
        Ok(Table { columns, rows })
    }

    /// Returns the table with an added column. An existing column of this name is replaced.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of rows differs.
    #[doc(alias = "assign")]
    pub fn with_column(&self, name: &str, column: impl Into<Column>) -> Result<Table> {
        let mut columns = self.columns.clone();
        let column = column.into();
        match columns.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = column,
            None => columns.push((name.to_string(), column)),
        }
        Table::from_columns(columns)
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the row and column counts.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns.len())
    }

    /// Returns the names of the columns.
    #[doc(alias = "columns")]
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the index of a column.
    fn index_of(&self, name: &str) -> Result<usize> {
        self.columns.iter().position(|(other, _)| other == name).ok_or_else(|| {
            let column_list = list_names(self.columns.iter().map(|(name, _)| name.as_str()));
            invalid(format!("there is no column {name:?}; the columns are {column_list}"))
        })
    }

    /// Returns a column.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist.
    pub fn column(&self, name: &str) -> Result<&Column> {
        Ok(&self.columns[self.index_of(name)?].1)
    }

    /// Returns the values of a numeric column. A missing value is NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist or contains strings.
    pub fn floats(&self, name: &str) -> Result<Vec<f64>> {
        column_floats(OP, name, self.column(name)?).map(Cow::into_owned)
    }

    /// Returns the distinct strings of a column in sorted order. The index of a string is its code in
    /// [`labels`](Table::labels).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist or contains numbers.
    #[doc(alias = "classes_")]
    pub fn categories(&self, name: &str) -> Result<&[String]> {
        match self.column(name)? {
            Column::Category(categories) => Ok(categories.names()),
            _ => Err(invalid(format!(
                "the column {name:?} is numeric and has no categories; to_categories({name:?}) converts it"
            ))),
        }
    }

    /// Converts a column to categories. Numbers become strings, which are sorted numerically.
    ///
    /// ```
    /// use pellucid::data::{Column, Table};
    /// let table = Table::from_columns([("class", Column::from(vec![3, 1, 10, 1]))])?.to_categories("class")?;
    /// assert_eq!(table.categories("class")?, ["1", "3", "10"]);
    /// assert_eq!(table.labels("class")?.to_vec::<i64>(), [1, 0, 2, 0]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist.
    #[doc(alias = "astype")]
    pub fn to_categories(&self, name: &str) -> Result<Table> {
        self.with_column(name, self.column(name)?.to_categories())
    }

    /// Returns the table with these columns only, in this order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist, or a name is repeated.
    pub fn select(&self, names: &[impl AsRef<str>]) -> Result<Table> {
        let column = |name: &str| Ok((name.to_string(), self.column(name)?.clone()));
        let columns = names.iter().map(|name| column(name.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(Table { rows: self.rows, ..Table::from_columns(columns)? })
    }

    /// Returns the table without these columns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist.
    #[doc(alias = "drop")]
    pub fn drop_columns(&self, names: &[impl AsRef<str>]) -> Result<Table> {
        let dropped = names.iter().map(|name| self.index_of(name.as_ref())).collect::<Result<Vec<_>>>()?;
        let remaining = self.columns.iter().enumerate().filter(|(index, _)| !dropped.contains(index));
        Ok(Table { columns: remaining.map(|(_, column)| column.clone()).collect(), rows: self.rows })
    }

    /// Returns the rows with these indices, in this order.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] if a row does not exist; [`Error::OutOfMemory`].
    #[doc(alias = "iloc")]
    pub fn rows(&self, indices: &[usize]) -> Result<Table> {
        if let Some(&index) = indices.iter().find(|&&index| index >= self.rows) {
            return Err(Error::IndexOutOfBounds { op: OP, index: index as i64, axis: 0, len: self.rows });
        }
        let taken = |(name, column): &(String, Column)| Ok((name.clone(), column.take_rows(indices)?));
        Ok(Table { columns: self.columns.iter().map(taken).collect::<Result<_>>()?, rows: indices.len() })
    }

    /// Splits the rows at random into disjoint tables, as [`random_split`](crate::random_split) does. The sizes are
    /// fractions that sum to 1, or row counts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the sizes do not sum to the number of rows; [`Error::OutOfMemory`].
    #[doc(alias = "train_test_split")]
    pub fn split<S: SplitLength, const N: usize>(&self, sizes: [S; N], seed: u64) -> Result<[Table; N]> {
        let parts = split_indices(self.rows, &sizes, seed)?;
        let tables = parts.iter().map(|indices| self.rows(indices)).collect::<Result<Vec<_>>>()?;
        Ok(tables.try_into().unwrap_or_else(|_| unreachable!("N sizes have N parts")))
    }

    /// Returns numeric columns as an `f32` tensor `[rows, columns]`.
    ///
    /// # Errors
    /// The errors of [`tensor_with`](Table::tensor_with).
    #[doc(alias = "to_numpy")]
    pub fn tensor(&self, names: &[impl AsRef<str>]) -> Result<Tensor> {
        self.tensor_with(names, TableTensorOptions::default())
    }

    /// Returns numeric columns as a tensor `[rows, columns]`, with options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist or contains strings, a value is missing and not allowed,
    /// or the dtype cannot represent a value; [`Error::OutOfMemory`].
    pub fn tensor_with(&self, names: &[impl AsRef<str>], options: TableTensorOptions) -> Result<Tensor> {
        let TableTensorOptions { dtype, allow_missing } = options;
        let columns = names.iter().map(|name| {
            let (name, column) = (name.as_ref(), self.column(name.as_ref())?);
            if let Column::Category(categories) = column {
                return Err(text_error(OP, name, categories));
            }
            if !allow_missing || !dtype.is_float() {
                self.check_complete(name, column)?;
            }
            Ok((name, column))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let shape = [self.rows, columns.len()];
        for (name, column) in &columns {
            check_represented(name, column, dtype)?;
        }
        let columns = columns.into_iter();
        // `i64` represents integers beyond 2⁵³ exactly.
        if !dtype.is_float() && dtype != DType::Bool {
            let lists = columns.map(|(name, column)| column_integers(OP, name, column)).collect::<Result<Vec<_>>>()?;
            return ops::to_dtype(&Tensor::try_new(interleave(&lists, self.rows)?, shape)?, dtype);
        }
        let lists = columns.map(|(name, column)| column_floats(OP, name, column)).collect::<Result<Vec<_>>>()?;
        ops::to_dtype(&Tensor::try_new(interleave(&lists, self.rows)?, shape)?, dtype)
    }

    /// Returns a column as class indices, an `i64` tensor `[rows]`: the codes of its [categories](Table::categories),
    /// or its integers. The codes depend on the strings of the table, so a file with different strings has different
    /// codes. [`labels_with`](Table::labels_with) and [`LabelEncoder`](crate::LabelEncoder) use the classes of the
    /// training rows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist or contains floats, or a value is missing.
    #[doc(alias = "LabelEncoder")]
    pub fn labels(&self, name: &str) -> Result<Tensor> {
        let column = self.column(name)?;
        let codes = match column {
            Column::Category(categories) => categories.codes(),
            Column::Integer(values) => values,
            Column::Float(_) => return Err(float_labels(name)),
        };
        self.check_complete(name, column)?;
        Tensor::try_new(codes, [self.rows])
    }

    /// Returns a column as class indices, an `i64` tensor `[rows]`: the index of each string in a list of classes, such
    /// as the [categories](Table::categories) of the training rows. Integers are compared as strings.
    ///
    /// ```
    /// use pellucid::data::{Column, Table};
    /// let train = Table::from_columns([("pet", Column::from(vec!["cat", "dog", "emu"]))])?;
    /// let test = Table::from_columns([("pet", Column::from(vec!["emu", "dog"]))])?;
    /// assert_eq!(test.labels_with("pet", train.categories("pet")?)?.to_vec::<i64>(), [2, 1]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist or contains floats, a value is missing or is not in the
    /// list, or a class is repeated in the list.
    pub fn labels_with(&self, name: &str, classes: &[impl AsRef<str>]) -> Result<Tensor> {
        let column = self.column(name)?;
        if matches!(column, Column::Float(_)) {
            return Err(float_labels(name));
        }
        self.check_complete(name, column)?;
        let mut codes_by_class = HashMap::with_capacity(classes.len());
        for (code, class) in classes.iter().enumerate() {
            if codes_by_class.insert(class.as_ref(), code as i64).is_some() {
                return Err(invalid(format!("the list of classes contains {:?} twice", class.as_ref())));
            }
        }
        let values = column.to_categories();
        // The class index of each distinct string, if it is in the list.
        let codes: Vec<Option<i64>> =
            values.names().iter().map(|text| codes_by_class.get(text.as_str()).copied()).collect();
        let mut labels = vec_with_capacity(self.rows)?;
        for (row, &code) in values.codes().iter().enumerate() {
            let Some(class) = codes.get(code as usize).copied().flatten() else {
                let list = list_names(classes.iter().map(AsRef::as_ref));
                let text = values.text(row).unwrap_or_default();
                let reason = format!(
                    "row {row} of the column {name:?} has {text:?}, which is not a class; the classes are {list}"
                );
                return Err(invalid(reason));
            };
            labels.push(class);
        }
        Tensor::try_new(labels, [self.rows])
    }

    /// Returns an error for the first missing value of a column.
    fn check_complete(&self, name: &str, column: &Column) -> Result<()> {
        match (0..self.rows).find(|&row| column.is_missing(row)) {
            None => Ok(()),
            Some(row) => Err(invalid(format!(
                "the value of the column {name:?} in row {row} is missing; drop_missing() drops such rows, and \
                 fill_missing(..) replaces missing values"
            ))),
        }
    }
}

/// Returns the values of columns in row-major order.
fn interleave<T: Copy>(columns: &[Cow<'_, [T]>], rows: usize) -> Result<Vec<T>> {
    let mut values = vec_with_capacity(rows.saturating_mul(columns.len()))?;
    for row in 0..rows {
        values.extend(columns.iter().map(|column| column[row]));
    }
    Ok(values)
}

/// Formats the column names and the values of at most ten rows.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        let shown = self.rows.min(SHOWN);
        let column = |(name, column): &(String, Column)| {
            let cells: Vec<String> =
                std::iter::once(name.clone()).chain((0..shown).map(|row| column.text(row))).collect();
            let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            (cells, width)
        };
        let columns: Vec<(Vec<String>, usize)> = self.columns.iter().map(column).collect();
        for line in 0..=shown {
            let cells: Vec<String> =
                columns.iter().map(|(cells, width)| format!("{:>width$}", cells[line], width = *width)).collect();
            writeln!(f, "{}", cells.join("  "))?;
        }
        write!(f, "[{} rows × {} columns]", self.rows, self.columns.len())
    }
}
