//! The columns of a table: floats, integers and categories.

use crate::random::vec_with_capacity;
use pellucid_tensor::{Error, Result};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The values of a column of a [`Table`](crate::Table).
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Floats. A missing value is NaN.
    Float(Vec<f64>),
    /// Integers without missing values. A column with missing integers is stored as floats.
    Integer(Vec<i64>),
    /// Strings, stored as codes: indices into a sorted list of distinct strings.
    Category(Categories),
}

/// The type of a [`Column`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// [`Column::Float`].
    Float,
    /// [`Column::Integer`].
    Integer,
    /// [`Column::Category`].
    Category,
}

/// Strings, each stored as its index in a list of distinct strings. The list is sorted; strings of integers are sorted
/// numerically.
///
/// Row selections share the list, so the parts of a split have the same codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Categories {
    names: Arc<[String]>,
    /// The index of each string in `names`; -1 if it is missing.
    codes: Vec<i64>,
}

impl Categories {
    /// Creates categories from strings; `None` is a missing value.
    pub fn new<T: AsRef<str>>(strings: &[Option<T>]) -> Categories {
        let strings = || strings.iter().map(|text| text.as_ref().map(AsRef::as_ref));
        let sorted: BTreeSet<&str> = strings().flatten().collect();
        let names: Arc<[String]> = sorted.into_iter().map(String::from).collect();
        let code = |text: &str| names.binary_search_by(|name| name.as_str().cmp(text)).map_or(-1, |code| code as i64);
        let codes = strings().map(|text| text.map_or(-1, code)).collect();
        Categories { names, codes }
    }

    /// Creates categories from integers. The strings are sorted numerically.
    fn from_integers(values: &[i64]) -> Categories {
        let sorted: Vec<i64> = values.iter().copied().collect::<BTreeSet<i64>>().into_iter().collect();
        let code = |value: &i64| sorted.binary_search(value).map_or(-1, |code| code as i64);
        Categories { names: sorted.iter().map(i64::to_string).collect(), codes: values.iter().map(code).collect() }
    }

    /// Returns the distinct strings.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the index of each string in [`names`](Categories::names), -1 if it is missing.
    pub fn codes(&self) -> &[i64] {
        &self.codes
    }

    /// Returns the string of a row, or `None` if it is missing or the row does not exist.
    pub fn text(&self, row: usize) -> Option<&str> {
        let code = usize::try_from(*self.codes.get(row)?).ok()?;
        self.names.get(code).map(String::as_str)
    }

    /// Returns these categories with `text` among their names, and the code of `text`.
    fn with_name(&self, text: &str) -> (Categories, i64) {
        if let Some(code) = self.names.iter().position(|name| name == text) {
            return (self.clone(), code as i64);
        }
        // The names are in the order of their characters or, if they were integers, of their values.
        let values: Option<Vec<i64>> = self.names.iter().map(|name| name.parse().ok()).collect();
        let code = match (values.filter(|values| values.is_sorted()), text.parse::<i64>()) {
            _ if self.names.is_sorted() => self.names.partition_point(|name| name.as_str() < text),
            (Some(values), Ok(new)) => values.partition_point(|&value| value < new),
            _ => self.names.len(),
        };
        let mut names = self.names.to_vec();
        names.insert(code, text.to_string());
        let code = code as i64;
        let codes = self.codes.iter().map(|&old| old + i64::from(old >= code)).collect();
        (Categories { names: names.into(), codes }, code)
    }

    /// Returns these categories with missing strings replaced by `text`.
    pub(super) fn with_missing_as(&self, text: &str) -> Categories {
        let (mut categories, code) = self.with_name(text);
        categories.codes.iter_mut().filter(|code| **code < 0).for_each(|missing| *missing = code);
        categories
    }
}

impl Column {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Column::Float(values) => values.len(),
            Column::Integer(values) => values.len(),
            Column::Category(categories) => categories.codes.len(),
        }
    }

    /// Returns true if the column has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the values.
    pub fn column_type(&self) -> ColumnType {
        match self {
            Column::Float(_) => ColumnType::Float,
            Column::Integer(_) => ColumnType::Integer,
            Column::Category(_) => ColumnType::Category,
        }
    }

    /// Returns true if the value of a row is missing.
    pub fn is_missing(&self, row: usize) -> bool {
        match self {
            Column::Float(values) => values.get(row).is_some_and(|value| value.is_nan()),
            Column::Integer(_) => false,
            Column::Category(categories) => categories.codes.get(row).is_some_and(|code| *code < 0),
        }
    }

    /// Returns the value of a row as a string, which is empty if the value is missing.
    pub fn text(&self, row: usize) -> String {
        let text = match self {
            _ if self.is_missing(row) => None,
            Column::Float(values) => values.get(row).map(|value| format!("{value:?}")),
            Column::Integer(values) => values.get(row).map(i64::to_string),
            Column::Category(categories) => categories.text(row).map(String::from),
        };
        text.unwrap_or_default()
    }

    /// Returns the values of these rows, which must exist.
    pub(super) fn take_rows(&self, rows: &[usize]) -> Result<Column> {
        fn taken<T: Copy>(values: &[T], rows: &[usize]) -> Result<Vec<T>> {
            let mut result = vec_with_capacity(rows.len())?;
            result.extend(rows.iter().map(|&row| values[row]));
            Ok(result)
        }
        Ok(match self {
            Column::Float(values) => Column::Float(taken(values, rows)?),
            Column::Integer(values) => Column::Integer(taken(values, rows)?),
            Column::Category(Categories { names, codes }) => {
                Column::Category(Categories { names: names.clone(), codes: taken(codes, rows)? })
            }
        })
    }

    /// Returns the values as categories: floats sorted as strings, integers sorted numerically.
    pub(crate) fn to_categories(&self) -> Categories {
        match self {
            Column::Float(values) => {
                let text = |row: usize| (!values[row].is_nan()).then(|| self.text(row));
                Categories::new(&(0..values.len()).map(text).collect::<Vec<_>>())
            }
            Column::Integer(values) => Categories::from_integers(values),
            Column::Category(categories) => categories.clone(),
        }
    }
}

/// The strings of a column whose type is inferred: numbers if all strings are numbers, otherwise categories.
#[cfg(any(feature = "csv", feature = "json"))]
pub(super) struct TextColumn<'a> {
    /// The strings; `None` is a missing value.
    pub(super) strings: Vec<Option<&'a str>>,
}

/// A value whose type differs from the column's: its row and string.
#[cfg(any(feature = "csv", feature = "json"))]
pub(super) struct WrongValue<'a> {
    pub(super) row: usize,
    pub(super) text: &'a str,
    pub(super) needed: &'static str,
}

#[cfg(any(feature = "csv", feature = "json"))]
impl<'a> TextColumn<'a> {
    /// Returns a column of the narrowest type that represents all values exactly. If an integer exceeds `i64`, or a
    /// column of floats would round it, the column has categories.
    pub(super) fn infer(&self) -> Column {
        let numbers = [ColumnType::Integer, ColumnType::Float];
        let column = numbers.into_iter().find_map(|column_type| self.typed(column_type).ok());
        match column {
            // A column without values has no type and becomes a column of floats.
            Some(Column::Float(_)) if self.strings.iter().flatten().any(|text| is_inexact_integer(text)) => {
                Column::Category(Categories::new(&self.strings))
            }
            Some(column) => column,
            None => Column::Category(Categories::new(&self.strings)),
        }
    }

    /// Returns the strings as a column of this type, or the first string that is not a value of this type. A column of
    /// integers with missing values is stored as floats, which must represent all values exactly.
    pub(super) fn typed(&self, column_type: ColumnType) -> std::result::Result<Column, WrongValue<'a>> {
        match column_type {
            ColumnType::Category => Ok(Column::Category(Categories::new(&self.strings))),
            ColumnType::Float => self.floats(|text| text.trim().parse().ok(), "a number").map(Column::Float),
            ColumnType::Integer if self.strings.iter().all(Option::is_some) => {
                self.numbers(|text| text.trim().parse().ok(), 0, "an integer").map(Column::Integer)
            }
            ColumnType::Integer => {
                let exact = |text: &str| text.trim().parse::<i64>().ok().filter(|&value| is_exact(value));
                let needed =
                    "an integer that f64 represents exactly; integers with missing values are stored as floats";
                self.floats(|text| exact(text).map(|value| value as f64), needed).map(Column::Float)
            }
        }
    }

    fn floats(
        &self,
        parse: impl Fn(&str) -> Option<f64>,
        needed: &'static str,
    ) -> std::result::Result<Vec<f64>, WrongValue<'a>> {
        self.numbers(parse, f64::NAN, needed)
    }

    fn numbers<T: Copy>(
        &self,
        parse: impl Fn(&str) -> Option<T>,
        missing: T,
        needed: &'static str,
    ) -> std::result::Result<Vec<T>, WrongValue<'a>> {
        let parse_cell = |(row, text): (usize, &Option<&'a str>)| match text {
            None => Ok(missing),
            Some(text) => parse(text).ok_or(WrongValue { row, text, needed }),
        };
        self.strings.iter().enumerate().map(parse_cell).collect()
    }
}

/// Returns true for the string of an integer that a float would round, or that exceeds `i64`.
#[cfg(any(feature = "csv", feature = "json"))]
fn is_inexact_integer(text: &str) -> bool {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
    is_integer && !text.parse::<i64>().is_ok_and(is_exact)
}

/// Returns true if a float represents the integer exactly.
#[cfg(any(feature = "csv", feature = "json"))]
pub(super) fn is_exact(value: i64) -> bool {
    value as f64 as i128 == i128::from(value)
}

impl From<Vec<f64>> for Column {
    fn from(values: Vec<f64>) -> Column {
        Column::Float(values)
    }
}

impl From<Vec<i64>> for Column {
    fn from(values: Vec<i64>) -> Column {
        Column::Integer(values)
    }
}

impl From<Vec<String>> for Column {
    fn from(strings: Vec<String>) -> Column {
        Column::Category(Categories::new(&strings.into_iter().map(Some).collect::<Vec<_>>()))
    }
}

impl From<Vec<&str>> for Column {
    fn from(strings: Vec<&str>) -> Column {
        Column::Category(Categories::new(&strings.into_iter().map(Some).collect::<Vec<_>>()))
    }
}

impl From<Categories> for Column {
    fn from(categories: Categories) -> Column {
        Column::Category(categories)
    }
}

/// Returns the values of a column as floats.
///
/// # Errors
/// [`Error::InvalidArgument`] if the column contains strings.
pub(super) fn column_floats<'a>(op: &'static str, name: &str, column: &'a Column) -> Result<Cow<'a, [f64]>> {
    match column {
        Column::Float(values) => Ok(values.into()),
        Column::Integer(values) => Ok(values.iter().map(|&value| value as f64).collect()),
        Column::Category(categories) => Err(text_error(op, name, categories)),
    }
}

/// Returns the values of a numeric column as `i64`. Floats must be integers in the range of `i64`.
pub(super) fn column_integers<'a>(op: &'static str, name: &str, column: &'a Column) -> Result<Cow<'a, [i64]>> {
    match column {
        Column::Float(values) => Ok(values.iter().map(|&value| value as i64).collect()),
        Column::Integer(values) => Ok(values.into()),
        Column::Category(categories) => Err(text_error(op, name, categories)),
    }
}

/// Returns the error for strings in a column of numbers. It names the first string that is not a finite number, or else
/// the first string.
pub(super) fn text_error(op: &'static str, name: &str, categories: &Categories) -> Error {
    let texts = || (0..categories.codes.len()).filter_map(|row| Some((row, categories.text(row)?)));
    let is_number = |text: &str| text.parse::<f64>().is_ok_and(f64::is_finite);
    let example = match texts().find(|(_, text)| !is_number(text)).or_else(|| texts().next()) {
        Some((row, text)) => format!(", such as {text:?} in row {row} (the first row is 0)"),
        None => String::new(),
    };
    let reason = format!(
        "the column {name:?} must have numbers, but has text{example}; labels(..) returns the codes of its categories, \
         and OneHotEncoder encodes them. If CsvOptions sets the type, the error of read_csv() contains the line"
    );
    Error::invalid(op, reason)
}
