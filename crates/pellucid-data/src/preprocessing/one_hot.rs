//! [`OneHotEncoder`]: one-hot codes of categories.

use super::strings::{strings_from_state, strings_to_state};
use crate::random::vec_with_capacity;
use crate::table::{Categories, Column, Table};
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{Error, Result, Tensor, lock};
use std::sync::Mutex;

/// How [`OneHotEncoder::transform`] treats a category that is not in the training rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownCategory {
    /// Return an error.
    #[default]
    Reject,
    /// Encode the category as zeros.
    Ignore,
}

/// The name and the categories of a column.
#[derive(Clone, Debug, PartialEq)]
struct EncodedColumn {
    name: String,
    categories: Vec<String>,
}

/// Encodes columns of strings or integers: category i of K becomes K numbers, 1 at index i and 0 elsewhere.
///
/// ```
/// use pellucid::data::{Column, OneHotEncoder, Table};
/// let table = Table::from_columns([("city", Column::from(vec!["Rome", "Oslo", "Rome"]))])?;
/// let encoder = OneHotEncoder::new();
/// let codes = encoder.fit_transform(&table, &["city"])?;
/// assert_eq!(encoder.feature_names()?, ["city_Oslo", "city_Rome"]);
/// assert_eq!(codes.to_vec2::<f32>(), [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// Concatenate the codes with scaled numbers: `ops::concatenate(&[&numbers, &codes], 1)`.
#[derive(Debug, Default)]
pub struct OneHotEncoder {
    unknown: UnknownCategory,
    columns: Mutex<Option<Vec<EncodedColumn>>>,
}

const OP: &str = "one_hot_encoder";

impl Clone for OneHotEncoder {
    fn clone(&self) -> Self {
        OneHotEncoder { unknown: self.unknown, columns: Mutex::new(lock(&self.columns).clone()) }
    }
}

/// Returns the categories of a column of strings or integers.
fn column_categories(name: &str, column: &Column) -> Result<Categories> {
    if matches!(column, Column::Float(_)) {
        let help = format!("to_categories({name:?}) makes each distinct number a category");
        return Err(Error::invalid(
            OP,
            format!("the column {name:?} must have text or integers, but has floats; {help}"),
        ));
    }
    let categories = column.to_categories();
    match categories.codes().iter().position(|code| *code < 0) {
        None => Ok(categories),
        Some(row) => Err(Error::invalid(
            OP,
            format!(
                "the value of the column {name:?} in row {row} is missing; call drop_missing() or fill_missing(..)"
            ),
        )),
    }
}

impl OneHotEncoder {
    /// Creates an encoder that is not fitted.
    pub fn new() -> OneHotEncoder {
        OneHotEncoder::default()
    }

    /// Sets the treatment of categories that are not in the training rows. Default: [`UnknownCategory::Reject`].
    #[doc(alias = "handle_unknown")]
    #[must_use]
    pub fn unknown(self, unknown: UnknownCategory) -> Self {
        OneHotEncoder { unknown, ..self }
    }

    /// Stores the categories of these columns. Earlier categories are replaced. If `table` is a part of a split, the
    /// categories of a column of strings are the categories of the entire table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a column does not exist or contains floats, or a value is missing.
    pub fn fit(&self, table: &Table, names: &[impl AsRef<str>]) -> Result<()> {
        let encoded = |name: &str| {
            let categories = column_categories(name, table.column(name)?)?.names().to_vec();
            Ok(EncodedColumn { name: name.to_string(), categories })
        };
        let columns = names.iter().map(|name| encoded(name.as_ref())).collect::<Result<Vec<_>>>()?;
        *lock(&self.columns) = Some(columns);
        Ok(())
    }

    /// Returns the codes of the fitted columns: `f32` `[rows, K]`, where K is the total number of categories.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit), if a fitted column or a value is missing, and for an
    /// [unknown category](Self::unknown); [`Error::OutOfMemory`].
    pub fn transform(&self, table: &Table) -> Result<Tensor> {
        let columns = self.fitted()?;
        let width: usize = columns.iter().map(|column| column.categories.len()).sum();
        let mut codes = vec_with_capacity(table.len().saturating_mul(width))?;
        codes.resize(table.len() * width, 0.0f32);
        let mut first = 0;
        for EncodedColumn { name, categories } in &columns {
            let values = column_categories(name, table.column(name)?)?;
            for row in 0..table.len() {
                let text = values.text(row).unwrap_or_default();
                match categories.iter().position(|category| category == text) {
                    Some(code) => codes[row * width + first + code] = 1.0,
                    None if self.unknown == UnknownCategory::Ignore => {}
                    None => {
                        let reason = format!(
                            "row {row} of column {name:?} has the unknown category {text:?}; \
                             unknown(UnknownCategory::Ignore) encodes it as zeros"
                        );
                        return Err(Error::invalid(OP, reason));
                    }
                }
            }
            first += categories.len();
        }
        Tensor::try_new(codes, [table.len(), width])
    }

    /// Calls [`fit`](Self::fit) and [`transform`](Self::transform).
    ///
    /// # Errors
    /// The errors of both.
    pub fn fit_transform(&self, table: &Table, names: &[impl AsRef<str>]) -> Result<Tensor> {
        self.fit(table, names)?;
        self.transform(table)
    }

    /// Returns the name of each output column: the input column and the category.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit).
    #[doc(alias = "get_feature_names_out")]
    pub fn feature_names(&self) -> Result<Vec<String>> {
        let columns = self.fitted()?;
        let names = |column: &EncodedColumn| {
            let EncodedColumn { name, categories } = column;
            categories.iter().map(|category| format!("{name}_{category}")).collect::<Vec<_>>()
        };
        Ok(columns.iter().flat_map(names).collect())
    }

    fn fitted(&self) -> Result<Vec<EncodedColumn>> {
        let reason = "the encoder has no categories yet; fit(&table, &[..]) or a load of a checkpoint stores them";
        lock(&self.columns).clone().ok_or_else(|| Error::invalid(OP, reason))
    }
}

/// The state consists of the names of the columns and categories as UTF-8 bytes.
impl Stateful for OneHotEncoder {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        // An encoder that is not fitted has no state.
        let Some(columns) = lock(&self.columns).clone() else { return Ok(Vec::new()) };
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let lists = columns.iter().enumerate().map(|(i, column)| (format!("categories.{i}"), &column.categories));
        let mut state = Vec::new();
        for (name, strings) in std::iter::once(("columns".to_string(), &names)).chain(lists) {
            state.extend(strings_to_state(&name, strings)?);
        }
        Ok(state)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if state.is_empty() && lock(&self.columns).is_none() {
            return Ok(StateLoad::default());
        }
        let names = strings_from_state(OP, state, "columns")?;
        let columns = names.into_iter().enumerate().map(|(i, name)| {
            Ok(EncodedColumn { name, categories: strings_from_state(OP, state, &format!("categories.{i}"))? })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        if let Some(key) = state.keys().find(|key| {
            let list = key.strip_suffix(".bytes").or_else(|| key.strip_suffix(".lengths")).unwrap_or(key);
            list != "columns" && !(0..columns.len()).any(|i| list == format!("categories.{i}"))
        }) {
            let unexpected = vec![key.clone()];
            return Err(Error::StateDict { op: OP, missing: vec![], unexpected, wrong_shapes: vec![] });
        }
        Ok(StateLoad::default().then(move || {
            *lock(&self.columns) = Some(columns);
            Ok(())
        }))
    }
}
