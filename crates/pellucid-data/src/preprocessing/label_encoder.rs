//! [`LabelEncoder`]: class labels to class indices.

use super::strings::{check_names, strings_from_state, strings_to_state};
use crate::table::{Column, Table};
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{Error, Result, Tensor, lock};
use std::sync::Mutex;

/// Maps the classes of a column of strings or integers to their indices in the sorted list of the training classes. The
/// list is saved with the model, so other rows get the same indices.
///
/// ```
/// use pellucid::data::{Column, LabelEncoder, Table};
/// let train = Table::from_columns([("pet", Column::from(vec!["dog", "cat", "emu"]))])?;
/// let encoder = LabelEncoder::new();
/// assert_eq!(encoder.fit_transform(&train, "pet")?.to_vec::<i64>(), [1, 0, 2]);
/// let test = Table::from_columns([("pet", Column::from(vec!["emu", "dog"]))])?;
/// assert_eq!(encoder.transform(&test, "pet")?.to_vec::<i64>(), [2, 1]);
/// assert_eq!(encoder.classes()?, ["cat", "dog", "emu"]);
/// let other = Table::from_columns([("pet", Column::from(vec!["fox"]))])?;
/// assert!(encoder.transform(&other, "pet").is_err());
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct LabelEncoder {
    classes: Mutex<Option<Vec<String>>>,
}

const OP: &str = "label_encoder";

/// The key of the list in the state.
const CLASSES: &str = "classes";

impl Clone for LabelEncoder {
    fn clone(&self) -> Self {
        LabelEncoder { classes: Mutex::new(lock(&self.classes).clone()) }
    }
}

impl LabelEncoder {
    /// Creates an encoder without classes.
    pub fn new() -> LabelEncoder {
        LabelEncoder::default()
    }

    /// Stores the classes of a column: strings in sorted order, integers in numeric order. Earlier classes are
    /// replaced. If `table` is a part of a split, the classes of a column of strings are the classes of the entire
    /// table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the column does not exist or contains floats.
    pub fn fit(&self, table: &Table, name: &str) -> Result<()> {
        let column = table.column(name)?;
        if matches!(column, Column::Float(_)) {
            let reason = format!(
                "the column {name:?} must have text or integers, but has floats; to_categories({name:?}) makes each \
                 distinct number a category"
            );
            return Err(Error::invalid(OP, reason));
        }
        *lock(&self.classes) = Some(column.to_categories().names().to_vec());
        Ok(())
    }

    /// Returns the class indices of a column, as [`Table::labels_with`] does: `i64` `[rows]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit); the errors of [`Table::labels_with`], for example for a
    /// class that is not in the training rows.
    pub fn transform(&self, table: &Table, name: &str) -> Result<Tensor> {
        table.labels_with(name, &self.classes()?)
    }

    /// Calls [`fit`](Self::fit) and [`transform`](Self::transform).
    ///
    /// # Errors
    /// The errors of both.
    pub fn fit_transform(&self, table: &Table, name: &str) -> Result<Tensor> {
        self.fit(table, name)?;
        self.transform(table, name)
    }

    /// Returns the list of classes in the order of their indices.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit).
    #[doc(alias = "classes_")]
    pub fn classes(&self) -> Result<Vec<String>> {
        let reason =
            "the encoder has no classes yet; fit(&table, name) stores them, and a load of a checkpoint reads them";
        lock(&self.classes).clone().ok_or_else(|| Error::invalid(OP, reason))
    }
}

/// The state consists of the classes as UTF-8 bytes. An encoder that is not fitted has no state.
impl Stateful for LabelEncoder {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        match &*lock(&self.classes) {
            Some(classes) => Ok(strings_to_state(CLASSES, classes)?.into()),
            None => Ok(Vec::new()),
        }
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if state.is_empty() && lock(&self.classes).is_none() {
            return Ok(StateLoad::default());
        }
        check_names(OP, state, &[CLASSES], &[])?;
        let classes = strings_from_state(OP, state, CLASSES)?;
        Ok(StateLoad::default().then(move || {
            *lock(&self.classes) = Some(classes);
            Ok(())
        }))
    }
}
