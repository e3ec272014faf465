//! Regression metrics: squared and absolute errors, and the coefficient of determination.

use super::input::{check_float, read, same_but_for_unit_axis};
use super::state::{metric_state, stored_struct};
use super::sum::CompensatedSum;
use super::{Goal, Metric};
use pellucid_tensor::{Error, Result, Tensor};

/// Reads outputs and targets of the same shape, as pairs in row-major order.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] if the output does not have a float dtype.
fn read_numbers(op: &'static str, output: &Tensor, target: &Tensor) -> Result<Vec<(f64, f64)>> {
    let (outputs, targets) = (output.shape(), target.shape());
    if outputs != targets && !same_but_for_unit_axis(outputs, targets) {
        let help = "the output and the target must have the same shape, except that [N, 1] matches [N]; use reshape()";
        return Err(Error::shapes(op, [outputs, targets], help));
    }
    check_float(op, output)?;
    let outputs = read::<f64>(op, Ok(output.clone()))?;
    Ok(outputs.into_iter().zip(read::<f64>(op, Ok(target.clone()))?).collect())
}

/// The mean of a function of the error of each element.
#[derive(Clone, Copy, Debug, Default)]
struct ErrorMean {
    sum: CompensatedSum,
    elements: u64,
}

stored_struct!(ErrorMean { sum, elements });

impl ErrorMean {
    fn update(&mut self, op: &'static str, output: &Tensor, target: &Tensor, size: fn(f64) -> f64) -> Result<()> {
        let pairs = read_numbers(op, output, target)?;
        self.elements += pairs.len() as u64;
        self.sum.extend(pairs.into_iter().map(|(output, target)| size(output - target)));
        Ok(())
    }

    fn mean(self) -> f64 {
        self.sum.value() / self.elements as f64
    }
}

/// Defines metrics from their names in logs and errors, a function of the error of an element, and a function of the
/// mean.
macro_rules! error_means {
    ($($(#[$doc:meta])* $metric:ident($op:literal) = |$error:ident| $size:expr, |$mean:ident| $value:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $metric {
            errors: ErrorMean,
        }

        impl $metric {
            /// Creates the metric.
            pub fn new() -> $metric {
                $metric::default()
            }
        }

        impl Metric for $metric {
            fn name(&self) -> String {
                $op.into()
            }

            fn goal(&self) -> Goal {
                Goal::Minimize
            }

            fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
                self.errors.update($op, output, target, |$error| $size)
            }

            fn compute(&self) -> Result<f64> {
                let $mean = self.errors.mean();
                Ok($value)
            }

            fn reset(&mut self) {
                self.errors = ErrorMean::default();
            }

            metric_state!(errors);
        }
    )*};
}

error_means! {
    /// The mean of the squared errors of all elements. The output and the target must have the same shape; `[N, 1]`
    /// matches `[N]`.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::train::metrics::{MeanSquaredError, Metric};
    /// let mut mse = MeanSquaredError::new();
    /// mse.update(&Tensor::from([[1.0], [3.0]]), &Tensor::from([0.0, 3.0]))?;
    /// assert_eq!(mse.compute()?, 0.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias("mean_squared_error", "mse"))]
    MeanSquaredError("mean_squared_error") = |error| error * error, |mean| mean;

    /// The square root of the [`MeanSquaredError`] of all elements. (For several columns, scikit-learn returns the mean
    /// of the roots of the columns.)
    #[doc(alias("root_mean_squared_error", "rmse"))]
    RootMeanSquaredError("root_mean_squared_error") = |error| error * error, |mean| mean.sqrt();

    /// The mean of the absolute errors of all elements. The output and the target must have the same shape; `[N, 1]`
    /// matches `[N]`.
    #[doc(alias("mean_absolute_error", "mae"))]
    MeanAbsoluteError("mean_absolute_error") = |error| error.abs(), |mean| mean;
}

/// The sums from which the R² of one column is computed.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnSums {
    /// The first target. Sums use differences from it, which avoids cancellation.
    origin: f64,
    offsets: CompensatedSum,
    /// Σ(y − ȳ)² of the targets so far (Welford 1962).
    squared_deviations: CompensatedSum,
    squared_errors: CompensatedSum,
}

stored_struct!(ColumnSums { origin, offsets, squared_deviations, squared_errors });

impl ColumnSums {
    /// Adds a sample. `samples` is the number of samples including this one.
    fn add(&mut self, output: f64, target: f64, samples: u64) {
        let (error, offset) = (output - target, target - self.origin);
        self.squared_errors.add(error * error);
        let before = if samples > 1 { self.offsets.value() / (samples - 1) as f64 } else { 0.0 };
        self.offsets.add(offset);
        let mean = self.offsets.value() / samples as f64;
        self.squared_deviations.add((offset - before) * (offset - mean));
    }

    fn r2(self) -> f64 {
        let (total, residual) = (self.squared_deviations.value(), self.squared_errors.value());
        match total {
            // For constant targets, the value depends on the errors only.
            0.0 if residual == 0.0 => 1.0,
            0.0 if !residual.is_nan() => 0.0,
            _ => 1.0 - residual / total,
        }
    }
}

/// The coefficient of determination R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)², where ȳ is the mean of the targets.
///
/// Outputs and targets are `[N]` or `[N, D]`. For several columns, the value is the mean of their R². For constant
/// targets, the value is 1 if all outputs equal the targets, otherwise 0. The value for fewer than 2 samples is NaN.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{Metric, R2Score};
/// let mut r2 = R2Score::new();
/// r2.update(&Tensor::from([2.5, 0.0, 2.0, 8.0]), &Tensor::from([3.0, -0.5, 2.0, 7.0]))?;
/// assert!((r2.compute()? - 0.9486081370449679).abs() < 1e-12);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "r2_score")]
#[derive(Clone, Debug, Default)]
pub struct R2Score {
    samples: u64,
    /// One entry for each column; empty before the first sample.
    columns: Vec<ColumnSums>,
}

impl R2Score {
    /// Creates the metric.
    pub fn new() -> R2Score {
        R2Score::default()
    }
}

impl Metric for R2Score {
    fn name(&self) -> String {
        "r2".into()
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "r2";
        let columns = match output.shape()[..] {
            [_] => 1,
            [_, columns] => columns,
            _ => {
                let help = "the output must be [N] or [N, D]; use flatten(1, -1)";
                return Err(Error::shapes(op, [output.shape(), target.shape()], help));
            }
        };
        let pairs = read_numbers(op, output, target)?;
        if pairs.is_empty() {
            return Ok(());
        }
        if !self.columns.is_empty() && self.columns.len() != columns {
            let (shape, columns) = (output.shape(), self.columns.len());
            let reason = format!("the output has shape {shape}, but earlier batches had {columns} columns");
            return Err(Error::invalid(op, reason));
        }
        if self.columns.is_empty() {
            let first = pairs[..columns].iter();
            self.columns = first.map(|&(_, target)| ColumnSums { origin: target, ..Default::default() }).collect();
        }
        for row in pairs.chunks_exact(columns) {
            self.samples += 1;
            for (column, &(output, target)) in self.columns.iter_mut().zip(row) {
                column.add(output, target, self.samples);
            }
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        if self.samples < 2 {
            return Ok(f64::NAN);
        }
        let values = self.columns.iter().map(|column| column.r2());
        Ok(values.collect::<CompensatedSum>().value() / self.columns.len() as f64)
    }

    fn reset(&mut self) {
        *self = R2Score::default();
    }

    metric_state!(samples, columns);
}
