//! Initialization of parameters.
//!
//! Every scheme has two forms. `kaiming_normal(shape, ..)` creates a [`Parameter`] of the [default dtype](in_dtype).
//! `kaiming_normal_(&parameter, ..)` overwrites a parameter in place with new initial values, which all holders of the
//! parameter see. Both have a form with the prefix `try_`, which returns errors. Random values come from the thread's
//! generator ([`manual_seed`](pellucid_tensor::manual_seed)), or from the argument of [`from_generator`].
//!
//! ```
//! use pellucid::nn::init::{self, Fan, Nonlinearity};
//! use pellucid::nn::{Linear, Module};
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

use crate::call::name_layer;
use crate::parameter::Parameter;
use crate::temporary::with_temporary;
use pellucid_tensor::{DType, Error, Generator, Result, Shape, Tensor, no_grad, ops, unwrap};
use std::cell::{Cell, RefCell};

thread_local! {
    static DTYPE: Cell<DType> = const { Cell::new(DType::F32) };
    static GENERATOR: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// Returns the dtype of new parameters and buffers of this thread: `f32`, except inside [`in_dtype`].
#[doc(alias = "get_default_dtype")]
pub fn default_dtype() -> DType {
    DTYPE.get()
}

/// Runs `make` with this float dtype for new parameters and buffers.
///
/// ```
/// use pellucid::nn::{Linear, init};
/// use pellucid::DType;
/// assert_eq!(init::in_dtype(DType::F64, || Linear::new(2, 3)).weight.dtype(), DType::F64);
/// ```
///
/// # Panics
/// Panics if [`try_in_dtype`] returns an error.
#[doc(alias = "set_default_dtype")]
#[track_caller]
pub fn in_dtype<R>(dtype: DType, make: impl FnOnce() -> R) -> R {
    unwrap(try_in_dtype(dtype, make))
}

/// Runs `make` as [`in_dtype`] does, or returns an error.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the dtype is not a float.
pub fn try_in_dtype<R>(dtype: DType, make: impl FnOnce() -> R) -> Result<R> {
    if !dtype.is_float() {
        let help = "the dtype of parameters must be a float: F64, F32, BF16 or F16";
        return Err(Error::dtype_argument("in_dtype", dtype, help));
    }
    Ok(with_temporary(dtype, |dtype| DTYPE.replace(dtype), make))
}

/// Runs `make` with random initial values from this generator instead of the thread's.
///
/// ```
/// use pellucid::nn::{Linear, init};
/// use pellucid::Generator;
/// let [a, b] = [0, 1].map(|_| init::from_generator(&Generator::new(7), || Linear::new(2, 3)));
/// assert_eq!(a.weight.to_vec::<f32>(), b.weight.to_vec::<f32>());
/// ```
pub fn from_generator<R>(generator: &Generator, make: impl FnOnce() -> R) -> R {
    with_temporary(Some(generator.clone()), |generator| GENERATOR.replace(generator), make)
}

/// Returns the generator of random initial values.
fn generator() -> Generator {
    GENERATOR.with_borrow(|given| given.clone()).unwrap_or_default()
}

/// Overwrites a parameter without recording the write for autograd.
fn overwrite_parameter(parameter: &Tensor, values: Result<Tensor>) -> Result<()> {
    let _off = no_grad();
    ops::copy_(parameter, &values?)
}

/// Returns the bound 1/√n of uniform initial values for n inputs, or 0 for n = 0.
pub(crate) fn uniform_bound(inputs: usize) -> f64 {
    if inputs == 0 { 0.0 } else { (inputs as f64).sqrt().recip() }
}

/// Returns a weight of ones and a bias of zeros for a layer of this name.
pub(crate) fn try_affine(layer: &'static str, shape: impl Into<Shape>) -> Result<[Parameter; 2]> {
    let shape = shape.into();
    Ok([name_layer(layer, try_ones(&shape))?, name_layer(layer, try_zeros(&shape))?])
}

/// Defines four functions for each initialization scheme of the module `values`: they create or refill a parameter, and
/// panic or return errors.
macro_rules! schemes {
    ($($(#[$doc:meta])* $name:ident, $try_name:ident; $refill:ident, $try_refill:ident
        ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        #[doc = concat!("Panics if [`", stringify!($try_name), "`] returns an error.")]
        #[track_caller]
        pub fn $name(shape: impl Into<Shape>, $($argument: $type),*) -> Parameter {
            unwrap($try_name(shape, $($argument),*))
        }

        #[doc = concat!("Returns the result of [`", stringify!($name), "`], or its error.")]
        ///
        /// # Errors
        /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) or
        /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if the scheme is not defined for the shape
        /// or an argument; [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
        #[track_caller]
        pub fn $try_name(shape: impl Into<Shape>, $($argument: $type),*) -> Result<Parameter> {
            Parameter::try_new(values::$name(&shape.into(), default_dtype(), $($argument),*)?)
        }

        #[doc = concat!("Overwrites a parameter in place with initial values as [`", stringify!($name), "`] creates them.")]
        ///
        /// # Panics
        #[doc = concat!("Panics if [`", stringify!($try_refill), "`] returns an error.")]
        #[track_caller]
        pub fn $refill(parameter: &Tensor, $($argument: $type),*) {
            unwrap($try_refill(parameter, $($argument),*));
        }

        #[doc = concat!("Refills a parameter as [`", stringify!($refill), "`] does, or returns its error.")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`", stringify!($try_name), "`];")]
        /// [`Error::InPlaceOnTracked`](pellucid_tensor::Error::InPlaceOnTracked) for a tensor that is not a leaf.
        #[track_caller]
        pub fn $try_refill(parameter: &Tensor, $($argument: $type),*) -> Result<()> {
            overwrite_parameter(parameter, values::$name(parameter.shape(), parameter.dtype(), $($argument),*))
        }
    )*};
}

schemes! {
    /// Creates a parameter whose elements all equal `value`.
    constant, try_constant; constant_, try_constant_(value: f64);
    /// Creates a parameter of zeros.
    zeros, try_zeros; zeros_, try_zeros_();
    /// Creates a parameter of ones.
    ones, try_ones; ones_, try_ones_();
    /// Creates a matrix, square or not, with 1 on the diagonal and 0 elsewhere.
    eye, try_eye; eye_, try_eye_();
    /// Creates the weight `[out, in / groups, taps..]` of an identity convolution: 1 at the middle tap from the i-th
    /// input channel to the i-th output channel of each group, and 0 elsewhere.
    dirac, try_dirac; dirac_, try_dirac_(groups: usize);
    /// Creates a parameter of uniform random values in [low, high).
    uniform, try_uniform; uniform_, try_uniform_(low: f64, high: f64);
    /// Creates a parameter of normal random values with this mean and standard deviation.
    normal, try_normal; normal_, try_normal_(mean: f64, std: f64);
    /// Creates a parameter of random values from a normal distribution that is truncated to [low, high]. Mean and
    /// standard deviation refer to the distribution before truncation.
    trunc_normal, try_trunc_normal; trunc_normal_, try_trunc_normal_(mean: f64, std: f64, low: f64, high: f64);
    /// Creates a weight of uniform random values with mean 0 and standard deviation gain·√(2 / (fan in + fan out))
    /// (Glorot & Bengio 2010).
    xavier_uniform, try_xavier_uniform; xavier_uniform_, try_xavier_uniform_(gain: f64);
    /// Creates a weight of normal random values with mean 0 and standard deviation gain·√(2 / (fan in + fan out))
    /// (Glorot & Bengio 2010).
    xavier_normal, try_xavier_normal; xavier_normal_, try_xavier_normal_(gain: f64);
    /// Creates a weight of uniform random values with mean 0 and standard deviation gain / √fan (He et al. 2015).
    kaiming_uniform, try_kaiming_uniform; kaiming_uniform_, try_kaiming_uniform_(fan: Fan, nonlinearity: Nonlinearity);
    /// Creates a weight of normal random values with mean 0 and standard deviation gain / √fan (He et al. 2015).
    kaiming_normal, try_kaiming_normal; kaiming_normal_, try_kaiming_normal_(fan: Fan, nonlinearity: Nonlinearity);
    /// Creates a random (semi-)orthogonal matrix, uniformly distributed, times the gain (Saxe, McClelland & Ganguli
    /// 2014). Axes after the first are flattened. The rows are orthogonal and of length `gain` if there are at most as
    /// many rows as columns, otherwise the columns. Needs the feature `linalg`.
    orthogonal, try_orthogonal; orthogonal_, try_orthogonal_(gain: f64);
    /// Creates a matrix with a fraction `sparsity` of zeros, rounded up, at random positions of each column. Other
    /// values are normal with mean 0 and this standard deviation (Martens 2010).
    sparse, try_sparse; sparse_, try_sparse_(sparsity: f64, std: f64);
}
