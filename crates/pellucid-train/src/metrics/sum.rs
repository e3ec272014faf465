//! Sums of `f64` values.

use super::state::stored_struct;

/// A sum with compensation of rounding errors (Neumaier 1974).
///
/// Values are added one after another, so the sum does not depend on how they are split into batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CompensatedSum {
    sum: f64,
    compensation: f64,
}

stored_struct!(CompensatedSum { sum, compensation });

impl CompensatedSum {
    pub(super) fn add(&mut self, value: f64) {
        let total = self.sum + value;
        // The smaller operand loses its low bits.
        let (large, small) = if self.sum.abs() >= value.abs() { (self.sum, value) } else { (value, self.sum) };
        self.compensation += (large - total) + small;
        self.sum = total;
    }

    pub(super) fn value(self) -> f64 {
        // For an infinite sum, the compensation is NaN.
        if self.sum.is_finite() { self.sum + self.compensation } else { self.sum }
    }
}

impl Extend<f64> for CompensatedSum {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.add(value));
    }
}

impl FromIterator<f64> for CompensatedSum {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> CompensatedSum {
        let mut sum = CompensatedSum::default();
        sum.extend(values);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::CompensatedSum;

    fn sum(values: &[f64]) -> f64 {
        values.iter().copied().collect::<CompensatedSum>().value()
    }

    #[test]
    fn low_bits_are_kept() {
        assert_eq!(sum(&[1.0, 1e100, 1.0, -1e100]), 2.0);
        assert_eq!(sum(&[0.1; 10]), 1.0);
    }

    #[test]
    fn special_values_follow_the_rules_of_addition() {
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[1.0, f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan() && sum(&[1.0, f64::NAN]).is_nan());
    }
}
