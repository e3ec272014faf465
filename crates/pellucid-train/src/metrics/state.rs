//! The accumulated values of metrics as lists of numbers, which a checkpoint within an epoch contains.

use std::slice::Iter;

/// A value that is stored as a sequence of numbers.
pub(super) trait StoredValue: Sized {
    fn store(&self, numbers: &mut Vec<f64>);

    /// Reads the value, or returns `None` if the next numbers do not encode a value of this type.
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<Self>;
}

impl StoredValue for f64 {
    fn store(&self, numbers: &mut Vec<f64>) {
        numbers.push(*self);
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<f64> {
        numbers.next().copied()
    }
}

/// Counts up to 2⁵³ are exact.
impl StoredValue for u64 {
    fn store(&self, numbers: &mut Vec<f64>) {
        numbers.push(*self as f64);
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<u64> {
        let number = *numbers.next()?;
        (number as u64 as f64 == number).then_some(number as u64)
    }
}

impl StoredValue for usize {
    fn store(&self, numbers: &mut Vec<f64>) {
        (*self as u64).store(numbers);
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<usize> {
        usize::try_from(u64::restore(numbers)?).ok()
    }
}

impl StoredValue for bool {
    fn store(&self, numbers: &mut Vec<f64>) {
        u64::from(*self).store(numbers);
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<bool> {
        let number = u64::restore(numbers)?;
        (number < 2).then_some(number == 1)
    }
}

impl<A: StoredValue, B: StoredValue> StoredValue for (A, B) {
    fn store(&self, numbers: &mut Vec<f64>) {
        self.0.store(numbers);
        self.1.store(numbers);
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<(A, B)> {
        Some((A::restore(numbers)?, B::restore(numbers)?))
    }
}

/// The length is followed by the elements.
impl<T: StoredValue> StoredValue for Vec<T> {
    fn store(&self, numbers: &mut Vec<f64>) {
        self.len().store(numbers);
        self.iter().for_each(|value| value.store(numbers));
    }
    fn restore(numbers: &mut Iter<'_, f64>) -> Option<Vec<T>> {
        let len = usize::restore(numbers)?;
        (0..len).map(|_| T::restore(numbers)).collect()
    }
}

/// Stores a struct as the sequence of its fields.
macro_rules! stored_struct {
    ($name:ident { $($field:ident),+ }) => {
        impl crate::metrics::state::StoredValue for $name {
            fn store(&self, numbers: &mut Vec<f64>) {
                $(crate::metrics::state::StoredValue::store(&self.$field, numbers);)+
            }
            fn restore(numbers: &mut std::slice::Iter<'_, f64>) -> Option<$name> {
                Some($name { $($field: crate::metrics::state::StoredValue::restore(numbers)?),+ })
            }
        }
    };
}

/// Defines `state` and `load_state` of a [`Metric`](super::Metric) from the fields that contain its accumulated values.
macro_rules! metric_state {
    ($($field:ident),+) => {
        fn state(&self) -> Option<Vec<f64>> {
            let mut numbers = Vec::new();
            $(crate::metrics::state::StoredValue::store(&self.$field, &mut numbers);)+
            Some(numbers)
        }

        fn load_state(&mut self, state: &[f64]) -> pellucid_tensor::Result<()> {
            let mut numbers = state.iter();
            $(let $field = crate::metrics::state::StoredValue::restore(&mut numbers);)+
            match ($($field,)+) {
                ($(Some($field),)+) if numbers.next().is_none() => {
                    $(self.$field = $field;)+
                    Ok(())
                }
                _ => Err(crate::metrics::state::wrong_state(&self.name(), state.len())),
            }
        }
    };
}

pub(super) use {metric_state, stored_struct};

/// Returns the error for numbers that are not the state of a metric.
pub(super) fn wrong_state(metric: &str, len: usize) -> pellucid_tensor::Error {
    let reason = format!("the {len} numbers are not the state of the metric `{metric}`");
    pellucid_tensor::Error::invalid("load_state", reason)
}
