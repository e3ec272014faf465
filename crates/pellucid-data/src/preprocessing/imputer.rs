//! [`Imputer`]: replaces missing values by statistics of the training rows.

use super::strings::{check_names, strings_from_state, strings_to_state};
use crate::table::{FillValue, Table, filled_with, statistic};
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{DType, Error, Result, Tensor, lock, ops};
use std::sync::Mutex;

/// A column name and the number or string that replaces missing values.
#[derive(Clone, Debug, PartialEq)]
struct FilledColumn {
    name: String,
    value: FillValue,
}

/// Replaces the missing values of columns by statistics of the training rows, which are saved with the model.
///
/// ```
/// use pellucid::data::{Column, FillValue, Imputer, Table};
/// let ages = |ages: Vec<f64>| Table::from_columns([("age", Column::from(ages))]);
/// let imputer = Imputer::new(FillValue::Median);
/// let train = imputer.fit_transform(&ages(vec![20.0, 30.0, f64::NAN, 70.0])?, &["age"])?;
/// assert_eq!(train.floats("age")?, [20.0, 30.0, 30.0, 70.0]);
/// assert_eq!(imputer.transform(&ages(vec![f64::NAN, 5.0])?)?.floats("age")?, [30.0, 5.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "SimpleImputer")]
#[derive(Debug)]
pub struct Imputer {
    value: FillValue,
    columns: Mutex<Option<Vec<FilledColumn>>>,
}

const OP: &str = "imputer";

// The keys of the state.
const COLUMNS: &str = "columns";
const TEXTS: &str = "texts";
const NUMBERS: &str = "numbers";
const IS_TEXT: &str = "is_text";

impl Clone for Imputer {
    fn clone(&self) -> Self {
        Imputer { value: self.value.clone(), columns: Mutex::new(lock(&self.columns).clone()) }
    }
}

impl Imputer {
    /// Creates an imputer that is not fitted. `value` is a statistic or a constant.
    pub fn new(value: FillValue) -> Imputer {
        Imputer { value, columns: Mutex::new(None) }
    }

    /// Computes the statistics of these columns. Earlier statistics are replaced.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist, if a column without values has no statistic, or if the
    /// value cannot fill the column, as in [`Table::fill_missing`].
    pub fn fit(&self, table: &Table, names: &[impl AsRef<str>]) -> Result<()> {
        let fitted = |name: &str| {
            let value = statistic(name, table.column(name)?, &self.value)?;
            Ok(FilledColumn { name: name.to_string(), value })
        };
        let columns = names.iter().map(|name| fitted(name.as_ref())).collect::<Result<Vec<_>>>()?;
        *lock(&self.columns) = Some(columns);
        Ok(())
    }

    /// Returns the table with the missing values of the fitted columns replaced by the statistics.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit), if a fitted column is missing, or has strings instead of
    /// numbers or vice versa.
    pub fn transform(&self, table: &Table) -> Result<Table> {
        self.fitted()?.iter().try_fold(table.clone(), |table, FilledColumn { name, value }| {
            let filled = filled_with(name, table.column(name)?, value)?;
            table.with_column(name, filled)
        })
    }

    /// Calls [`fit`](Self::fit) and [`transform`](Self::transform).
    ///
    /// # Errors
    /// The errors of both.
    pub fn fit_transform(&self, table: &Table, names: &[impl AsRef<str>]) -> Result<Table> {
        self.fit(table, names)?;
        self.transform(table)
    }

    /// Returns the name of each fitted column, and the number or string that replaces its missing values.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit).
    #[doc(alias = "statistics_")]
    pub fn values(&self) -> Result<Vec<(String, FillValue)>> {
        Ok(self.fitted()?.into_iter().map(|column| (column.name, column.value)).collect())
    }

    fn fitted(&self) -> Result<Vec<FilledColumn>> {
        let reason = "the imputer has no statistics yet; fit(&table, &[..]) computes them, and a load of a checkpoint \
                      reads them";
        lock(&self.columns).clone().ok_or_else(|| Error::invalid(OP, reason))
    }
}

/// The state consists of the column names and their numbers or strings. An imputer that is not fitted has no state.
impl Stateful for Imputer {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let Some(columns) = lock(&self.columns).clone() else { return Ok(Vec::new()) };
        let (mut names, mut texts, mut numbers, mut is_text) = (vec![], vec![], vec![], vec![]);
        for FilledColumn { name, value } in columns {
            let (number, text) = match value {
                FillValue::Number(number) => (number, None),
                FillValue::Text(text) => (0.0, Some(text)),
                FillValue::Mean | FillValue::Median | FillValue::Mode => (f64::NAN, None),
            };
            names.push(name);
            numbers.push(number);
            is_text.push(i64::from(text.is_some()));
            texts.push(text.unwrap_or_default());
        }
        let count = names.len();
        let mut state = Vec::from(strings_to_state(COLUMNS, &names)?);
        state.extend(strings_to_state(TEXTS, &texts)?);
        state.push((NUMBERS.to_string(), Tensor::try_new(numbers, [count])?));
        state.push((IS_TEXT.to_string(), Tensor::try_new(is_text, [count])?));
        Ok(state)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if state.is_empty() && lock(&self.columns).is_none() {
            return Ok(StateLoad::default());
        }
        check_names(OP, state, &[COLUMNS, TEXTS], &[NUMBERS, IS_TEXT])?;
        let names = strings_from_state(OP, state, COLUMNS)?;
        let texts = strings_from_state(OP, state, TEXTS)?;
        let templates = [(NUMBERS, DType::F64), (IS_TEXT, DType::I64)];
        let templates = templates.map(|(name, dtype)| Ok((name.to_string(), ops::zeros([names.len()], dtype)?)));
        let rest: StateDict =
            [NUMBERS, IS_TEXT].iter().filter_map(|name| Some((name.to_string(), state.get(*name)?.clone()))).collect();
        let load = StateLoad::new(&templates.into_iter().collect::<Result<Vec<_>>>()?, &rest)?;
        let (numbers, is_text): (Vec<f64>, Vec<i64>) = (rest[NUMBERS].try_to_vec()?, rest[IS_TEXT].try_to_vec()?);
        if texts.len() != names.len() {
            let reason =
                format!("the state must have one string for each of {} columns, got {}", names.len(), texts.len());
            return Err(Error::invalid(OP, reason));
        }
        let values = numbers.into_iter().zip(texts).zip(is_text);
        let values = values.map(|((number, text), is_text)| match is_text {
            0 => FillValue::Number(number),
            _ => FillValue::Text(text),
        });
        let columns = names.into_iter().zip(values).map(|(name, value)| FilledColumn { name, value }).collect();
        Ok(load.then(move || {
            *lock(&self.columns) = Some(columns);
            Ok(())
        }))
    }
}
