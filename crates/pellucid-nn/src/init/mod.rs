//! First values of parameters.
//!
//! Every scheme comes in two forms: `kaiming_normal(shape, ..)` makes a [`Parameter`] of the [default dtype](in_dtype),
//! and `kaiming_normal_(&parameter, ..)` refills one in place, so that whoever holds it sees the new values. What is random
//! comes from the thread's generator ([`manual_seed`](pellucid_tensor::manual_seed)), or from the one that
//! [`from_generator`] is given.
//!
//! ```
//! use pellucid_nn::init::{self, Fan, Nonlinearity};
//! use pellucid_nn::{Linear, Module};
//!
//! let layer = Linear::new(256, 64);
//! init::kaiming_normal_(&layer.weight, Fan::In, Nonlinearity::Relu);
//! init::zeros_(layer.bias.as_ref().unwrap());
//! let table = init::trunc_normal([1000, 64], 0.0, 0.02, -0.04, 0.04);
//! # let _ = table;
//! ```

mod fan;
mod values;

pub use fan::{Fan, Nonlinearity};

use crate::parameter::Parameter;
use pellucid_tensor::{DType, Generator, Result, Shape, Tensor, no_grad, ops, unwrap};
use std::cell::{Cell, RefCell};

thread_local! {
    static DTYPE: Cell<DType> = const { Cell::new(DType::F32) };
    static GENERATOR: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// The dtype of new parameters and buffers of this thread: `f32`, but inside of [`in_dtype`].
pub fn default_dtype() -> DType {
    DTYPE.get()
}

/// Runs `make` with new parameters and buffers of this float dtype.
///
/// ```
/// use pellucid_nn::{Linear, init};
/// use pellucid_tensor::DType;
/// assert_eq!(init::in_dtype(DType::F64, || Linear::new(2, 3)).weight.dtype(), DType::F64);
/// ```
///
/// # Panics
/// If the dtype is not a float.
#[track_caller]
pub fn in_dtype<R>(dtype: DType, make: impl FnOnce() -> R) -> R {
    struct Before(DType);
    impl Drop for Before {
        fn drop(&mut self) {
            DTYPE.set(self.0);
        }
    }
    assert!(dtype.is_float(), "parameters are floats, not {dtype}");
    let _before = Before(DTYPE.replace(dtype));
    make()
}

/// Runs `make` with random first values from this generator instead of the thread's.
///
/// ```
/// use pellucid_nn::{Linear, init};
/// use pellucid_tensor::Generator;
/// let [a, b] = [0, 1].map(|_| init::from_generator(&Generator::new(7), || Linear::new(2, 3)));
/// assert_eq!(a.weight.to_vec::<f32>(), b.weight.to_vec::<f32>());
/// ```
pub fn from_generator<R>(generator: &Generator, make: impl FnOnce() -> R) -> R {
    struct Before(Option<Generator>);
    impl Drop for Before {
        fn drop(&mut self) {
            GENERATOR.set(self.0.take());
        }
    }
    let _before = Before(GENERATOR.replace(Some(generator.clone())));
    make()
}

/// Where random first values come from.
fn generator() -> Generator {
    GENERATOR.with_borrow(|given| given.clone()).unwrap_or_default()
}

/// Writes values into a parameter, whose gradient's graph does not see it.
fn refill(parameter: &Tensor, values: Result<Tensor>) -> Result<()> {
    let _off = no_grad();
    ops::copy_(parameter, &values?)
}

/// The two forms of every scheme of `values`.
macro_rules! schemes {
    ($($(#[$doc:meta])* $name:ident, $refill:ident ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// With the errors of what is drawn and computed: a shape for which the scheme is not defined, an argument out of its
        /// range, [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
        #[track_caller]
        pub fn $name(shape: impl Into<Shape>, $($argument: $type),*) -> Parameter {
            Parameter::new(unwrap(values::$name(&shape.into(), default_dtype(), $($argument),*)))
        }

        #[doc = concat!("Refills a parameter in place, as [`", stringify!($name), "`] makes one.")]
        ///
        /// # Panics
        #[doc = concat!("As [`", stringify!($name), "`], and for a tensor that is a result; nothing is written then.")]
        #[track_caller]
        pub fn $refill(parameter: &Tensor, $($argument: $type),*) {
            unwrap(refill(parameter, values::$name(parameter.shape(), parameter.dtype(), $($argument),*)));
        }
    )*};
}

schemes! {
    /// Every value the same.
    constant, constant_(value: f64);
    /// Every value 0.
    zeros, zeros_();
    /// Every value 1.
    ones, ones_();
    /// The identity: a matrix of any lengths with 1 on its diagonal, else 0.
    eye, eye_();
    /// The identity of channels, for the weight `[out, in / groups, taps..]` of a convolution with so many groups: 1 at the middle tap
    /// from each channel to the one of the same number in its group, else 0.
    dirac, dirac_(groups: usize);
    /// Uniform on [low, high).
    uniform, uniform_(low: f64, high: f64);
    /// Normal with this mean and standard deviation.
    normal, normal_(mean: f64, std: f64);
    /// Normal with this mean and standard deviation (both of the whole distribution), given that it is between `low` and
    /// `high`.
    trunc_normal, trunc_normal_(mean: f64, std: f64, low: f64, high: f64);
    /// Uniform with standard deviation gain·√(2 / (fan in + fan out)) (Glorot & Bengio 2010).
    xavier_uniform, xavier_uniform_(gain: f64);
    /// Normal with standard deviation gain·√(2 / (fan in + fan out)) (Glorot & Bengio 2010).
    xavier_normal, xavier_normal_(gain: f64);
    /// Uniform with standard deviation gain / √fan (He et al. 2015).
    kaiming_uniform, kaiming_uniform_(fan: Fan, nonlinearity: Nonlinearity);
    /// Normal with standard deviation gain / √fan (He et al. 2015).
    kaiming_normal, kaiming_normal_(fan: Fan, nonlinearity: Nonlinearity);
    /// A (semi-)orthogonal matrix, evenly drawn from all, times the gain (Saxe, McClelland & Ganguli 2014): the last axes
    /// of more than two count as one. The shorter of rows and columns are of length `gain` and at right angles. Needs the feature
    /// `linalg`.
    orthogonal, orthogonal_(gain: f64);
    /// A matrix whose columns have a share `sparsity` of zeros, at random places, and are else normal with this standard
    /// deviation (Martens 2010).
    sparse, sparse_(sparsity: f64, std: f64);
}
