//! Scalers: linear maps of features with scikit-learn's statistics.

use crate::random::vec_with_capacity;
use pellucid_derive::panicking_form;
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{DType, Error, Result, Tensor, lock, ops, unwrap};
use std::sync::Mutex;

/// Statistics by name, each with one value per feature.
#[derive(Clone, Debug)]
struct FeatureStatistics<const K: usize> {
    values: [Vec<f64>; K],
}

/// The statistics that a scaler has after `fit` or a load.
#[derive(Debug)]
struct FittedStatistics<const K: usize> {
    op: &'static str,
    names: [&'static str; K],
    fitted: Mutex<Option<FeatureStatistics<K>>>,
}

impl<const K: usize> Clone for FittedStatistics<K> {
    fn clone(&self) -> Self {
        let fitted = Mutex::new(lock(&self.fitted).clone());
        FittedStatistics { op: self.op, names: self.names, fitted }
    }
}

impl<const K: usize> FittedStatistics<K> {
    fn new(op: &'static str, names: [&'static str; K]) -> Self {
        FittedStatistics { op, names, fitted: Mutex::new(None) }
    }

    fn get(&self) -> Result<FeatureStatistics<K>> {
        let reason = "the scaler has no statistics yet; call fit(&x), or load a checkpoint";
        lock(&self.fitted).clone().ok_or_else(|| Error::invalid(self.op, reason))
    }

    fn set(&self, values: [Vec<f64>; K]) {
        *lock(&self.fitted) = Some(FeatureStatistics { values });
    }

    /// Returns a statistic as an `f64` tensor `[F]`.
    fn tensor(&self, index: usize) -> Result<Tensor> {
        let values = self.get()?.values[index].clone();
        let len = values.len();
        Tensor::try_new(values, [len])
    }

    /// Returns the statistics by name, or an empty list for a scaler that is not fitted.
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        if lock(&self.fitted).is_none() {
            return Ok(Vec::new());
        }
        self.names.iter().enumerate().map(|(i, name)| Ok((name.to_string(), self.tensor(i)?))).collect()
    }

    /// Checks a state. The state determines the number of features, so a new scaler can load it.
    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        if state.is_empty() && lock(&self.fitted).is_none() {
            return Ok(StateLoad::default());
        }
        let features = state.get(self.names[0]).map_or(0, Tensor::size);
        let zeros = ops::zeros([features], DType::F64)?;
        let templates = self.names.map(|name| (name.to_string(), zeros.copy()));
        let load = StateLoad::new(&templates, state)?;
        let mut values = [const { Vec::new() }; K];
        for (list, name) in values.iter_mut().zip(self.names) {
            *list = state[name].try_to_vec()?;
        }
        Ok(load.then(move || {
            self.set(values);
            Ok(())
        }))
    }

    /// Replaces each value of x by `f(value, feature)`, computed in `f64` and rounded once.
    fn map_features(&self, x: &Tensor, f: impl Fn(f64, usize, &[Vec<f64>; K]) -> f64) -> Result<Tensor> {
        let FeatureStatistics { values } = self.get()?;
        let (rows, features) = matrix_shape(self.op, x)?;
        if features != values[0].len() {
            let help = format!("the scaler was fitted on {} features, the length of the last axis", values[0].len());
            return Err(Error::shapes(self.op, [x.shape()], help));
        }
        let mut data = read_matrix(x)?;
        if features > 0 {
            for row in data.chunks_exact_mut(features) {
                row.iter_mut().enumerate().for_each(|(feature, value)| *value = f(*value, feature, &values));
            }
        }
        let result = Tensor::try_new(data, [rows, features])?;
        ops::to_dtype(&result, x.dtype())?.try_to(x.device())
    }
}

/// Returns the row and feature counts of a matrix of floats.
fn matrix_shape(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    let &[rows, features] = x.shape().dims() else {
        return Err(Error::shapes(op, [x.shape()], "the features must be a matrix [samples, features]; use reshape()"));
    };
    if !x.dtype().is_float() {
        let help = "the features must have a float dtype; to_dtype(DType::F32) converts them";
        return Err(Error::dtypes(op, [x.dtype()], help));
    }
    Ok((rows, features))
}

/// Returns the elements of a tensor in `f64`.
fn read_matrix(x: &Tensor) -> Result<Vec<f64>> {
    x.detach().try_to_vec()
}

/// Returns the values of each feature of a matrix, without NaNs.
fn features_without_nan(op: &'static str, x: &Tensor) -> Result<Vec<Vec<f64>>> {
    let (rows, features) = matrix_shape(op, x)?;
    if rows == 0 {
        return Err(Error::invalid(op, "the features must have at least one sample, got 0"));
    }
    let data = read_matrix(x)?;
    if let Some(value) = data.iter().find(|value| value.is_infinite()) {
        return Err(Error::invalid(op, format!("the features must be finite or NaN, got {value}")));
    }
    let feature = |feature: usize| {
        let mut values = vec_with_capacity(rows)?;
        values.extend(data.iter().skip(feature).step_by(features).filter(|value| !value.is_nan()));
        Ok(values)
    };
    (0..features).map(feature).collect()
}

macro_rules! scaler_methods {
    ($scaler:ident) => {
        impl $scaler {
            /// Computes the statistics of the features of x `[samples, features]`. Earlier statistics are replaced.
            /// NaNs are missing values and are ignored.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] if x is not a matrix of floats;
            /// [`Error::InvalidArgument`] if it has no rows, or contains an infinite value.
            pub fn fit(&self, x: &Tensor) -> Result<()> {
                self.statistics.set(self.compute_statistics(x)?);
                Ok(())
            }

            /// Calls [`fit`](Self::fit) and [`transform`](Self::transform).
            ///
            /// # Errors
            /// The errors of [`fit`](Self::fit).
            pub fn fit_transform(&self, x: &Tensor) -> Result<Tensor> {
                self.fit(x)?;
                self.transform(x)
            }
        }

        impl Default for $scaler {
            fn default() -> Self {
                $scaler::new()
            }
        }

        /// The state consists of the statistics in `f64`.
        impl Stateful for $scaler {
            fn state(&self) -> Result<Vec<(String, Tensor)>> {
                self.statistics.state()
            }

            fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
                self.statistics.prepare_load(state)
            }
        }
    };
}

/// Scales every feature to mean 0 and variance 1: (x − mean)/√variance, where the variance has the divisor N, not N −
/// 1.
///
/// Statistics are computed in `f64`. A constant feature is only shifted, and NaNs stay NaNs, both as in scikit-learn.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::StandardScaler;
/// use pellucid::nn::Checkpoint;
///
/// let train = Tensor::from([[1.0f32, 10.0], [3.0, 30.0]]);
/// let scaler = StandardScaler::new();
/// assert_eq!(scaler.fit_transform(&train)?.to_vec::<f32>(), [-1.0, -1.0, 1.0, 1.0]);
/// let test = Tensor::from([[2.0f32, 40.0]]);
/// assert_eq!(scaler.transform(&test)?.to_vec::<f32>(), [0.0, 2.0]);
/// assert_eq!(scaler.inverse_transform(&scaler.transform(&test)?)?.to_vec::<f32>(), [2.0, 40.0]);
///
/// // A checkpoint contains the statistics.
/// let saved = Checkpoint::new().part("scaler", &scaler).state()?;
/// let other = StandardScaler::new();
/// Checkpoint::new().part("scaler", &other).load_state_dict(&saved)?;
/// assert_eq!(other.transform(&test)?.to_vec::<f32>(), [0.0, 2.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StandardScaler {
    statistics: FittedStatistics<3>,
}

scaler_methods!(StandardScaler);

impl StandardScaler {
    /// Creates a scaler that is not fitted.
    pub fn new() -> StandardScaler {
        StandardScaler { statistics: FittedStatistics::new("standard_scaler", ["mean", "var", "scale"]) }
    }

    /// Returns the mean, the variance and the scale of each feature.
    fn compute_statistics(&self, x: &Tensor) -> Result<[Vec<f64>; 3]> {
        let features = features_without_nan(self.statistics.op, x)?;
        let mut statistics = [const { Vec::new() }; 3];
        for values in &features {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            // The second term corrects the rounding of the mean (Chan, Golub & LeVeque 1983).
            let deviations = values.iter().map(|value| value - mean);
            let (sum, squares) = deviations.fold((0.0, 0.0), |(sum, squares), d| (sum + d, squares + d * d));
            let variance = (squares - sum * sum / n) / n;
            // As in scikit-learn, a feature whose variance is within the rounding error is constant.
            let bound = n * f64::EPSILON * variance + (n * mean * f64::EPSILON).powi(2);
            let scale = if variance <= bound { 1.0 } else { variance.sqrt() };
            statistics.iter_mut().zip([mean, variance, scale]).for_each(|(list, value)| list.push(value));
        }
        Ok(statistics)
    }

    /// Returns x `[samples, features]` with scaled features, in the dtype of x.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit); [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] if x is
    /// not a matrix of floats with the same number of features.
    pub fn transform(&self, x: &Tensor) -> Result<Tensor> {
        self.statistics.map_features(x, |value, i, [mean, _, scale]| (value - mean[i]) / scale[i])
    }

    /// Inverts [`transform`](Self::transform): returns the original features of the scaled features x.
    ///
    /// # Errors
    /// The errors of [`transform`](Self::transform).
    pub fn inverse_transform(&self, x: &Tensor) -> Result<Tensor> {
        self.statistics.map_features(x, |value, i, [mean, _, scale]| value * scale[i] + mean[i])
    }

    /// Returns the means of the features: `f64` `[F]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit).
    #[doc(alias = "mean_")]
    pub fn mean(&self) -> Result<Tensor> {
        self.statistics.tensor(0)
    }

    /// Returns the divisors of the features, √variance or 1: `f64` `[F]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit).
    #[doc(alias = "scale_")]
    pub fn scale(&self) -> Result<Tensor> {
        self.statistics.tensor(2)
    }
}

/// Scales every feature linearly so that its training minimum and maximum become the bounds of a range, by default [0,
/// 1]. A constant feature becomes the lower bound, and NaNs stay NaNs, both as in scikit-learn.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::MinMaxScaler;
/// let scaler = MinMaxScaler::new().feature_range(-1.0, 1.0);
/// scaler.fit(&Tensor::from([[0.0f32], [10.0]]))?;
/// assert_eq!(scaler.transform(&Tensor::from([[5.0f32], [20.0]]))?.to_vec::<f32>(), [0.0, 3.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MinMaxScaler {
    statistics: FittedStatistics<4>,
    range: (f64, f64),
}

scaler_methods!(MinMaxScaler);

impl MinMaxScaler {
    /// Creates a scaler that is not fitted.
    pub fn new() -> MinMaxScaler {
        let names = ["data_min", "data_max", "scale", "min"];
        MinMaxScaler { statistics: FittedStatistics::new("min_max_scaler", names), range: (0.0, 1.0) }
    }

    /// Sets the range of the scaled training values; default [0, 1].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a range that is empty or not finite.
    #[panicking_form]
    #[must_use]
    pub fn try_feature_range(self, low: f64, high: f64) -> Result<Self> {
        if !(low < high && low.is_finite() && high.is_finite()) {
            let reason = format!("the range must be finite and not empty, got {low} to {high}");
            return Err(Error::invalid(self.statistics.op, reason));
        }
        Ok(MinMaxScaler { range: (low, high), ..self })
    }

    /// Returns the minimum, the maximum, the scale and the offset of each feature.
    fn compute_statistics(&self, x: &Tensor) -> Result<[Vec<f64>; 4]> {
        let (op, (low, high)) = (self.statistics.op, self.range);
        let mut statistics = [const { Vec::new() }; 4];
        for values in features_without_nan(op, x)? {
            let min_value = values.iter().copied().fold(f64::NAN, f64::min);
            let max_value = values.iter().copied().fold(f64::NAN, f64::max);
            let range = max_value - min_value;
            let divisor = if range < 10.0 * f64::EPSILON { 1.0 } else { range };
            let scale = (high - low) / divisor;
            let offset = low - min_value * scale;
            let values = [min_value, max_value, scale, offset];
            statistics.iter_mut().zip(values).for_each(|(list, value)| list.push(value));
        }
        Ok(statistics)
    }

    /// Returns x `[samples, features]` with scaled features, in the dtype of x.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`fit`](Self::fit); [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] if x is
    /// not a matrix of floats with the same number of features.
    pub fn transform(&self, x: &Tensor) -> Result<Tensor> {
        self.statistics.map_features(x, |value, i, [_, _, scale, offset]| value * scale[i] + offset[i])
    }

    /// Inverts [`transform`](Self::transform): returns the original features of the scaled features x.
    ///
    /// # Errors
    /// The errors of [`transform`](Self::transform).
    pub fn inverse_transform(&self, x: &Tensor) -> Result<Tensor> {
        self.statistics.map_features(x, |value, i, [_, _, scale, offset]| (value - offset[i]) / scale[i])
    }
}
