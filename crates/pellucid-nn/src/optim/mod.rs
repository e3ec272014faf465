//! Optimizers: how parameters follow their gradients.
//!
//! An update is one kernel a parameter, a formula that reads the parameter, its gradient and its
//! state and writes parameter and state in place. Learning rate and step count are 0-d tensors that
//! the formula reads, and all state exists from the start; so a captured step can be replayed, and
//! sees a new learning rate.

mod adamw;
mod clip;
mod schedule;
mod sgd;

pub use adamw::{AdamW, AdamWOptions};
pub use clip::clip_grad_norm;
pub use schedule::CosineSchedule;
pub use sgd::{Sgd, SgdOptions};

use crate::module::identity;
use crate::parameter::{Buffer, Parameter};
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops, unwrap};
use std::collections::HashSet;

/// What every optimizer does. Parameter groups with other options are other optimizers.
pub trait Optimizer: Send + Sync {
    /// The parameters that it updates.
    fn parameters(&self) -> &[Parameter];

    /// The learning rate, a 0-d tensor of the parameters' dtype.
    fn lr_tensor(&self) -> &Tensor;

    /// Everything that it remembers from step to step, by name: the learning rate, step counts,
    /// running means.
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Updates every parameter that has a gradient, and its state, in place; a parameter without one
    /// is left as it is.
    ///
    /// # Errors
    /// Those of the kernels; with the checks made when the optimizer was, none is expected.
    fn try_step(&self) -> Result<()>;

    /// [`Optimizer::try_step`] as a panic.
    ///
    /// # Panics
    /// With the error of [`Optimizer::try_step`].
    #[track_caller]
    fn step(&self) {
        unwrap(self.try_step());
    }

    /// Leaves every parameter without a gradient: the next backward pass starts from none.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            parameter.tensor().zero_grad();
        }
    }

    /// The learning rate, as the parameters' dtype holds it.
    ///
    /// # Panics
    /// While a step is captured, when no value can be read.
    #[track_caller]
    fn lr(&self) -> f64 {
        self.lr_tensor().item::<f64>()
    }

    /// Sets the learning rate, in place: a captured step that is replayed uses it. Inside a captured
    /// step it would be a constant of that step; call it between launches.
    ///
    /// # Panics
    /// If `lr` is negative or not finite.
    #[track_caller]
    fn set_lr(&self, lr: f64) {
        let set = || {
            nonnegative("set_lr", "lr", lr)?;
            ops::copy_(self.lr_tensor(), &Tensor::from(lr))
        };
        unwrap(set());
    }

    /// A snapshot of [`Optimizer::state`], with which training resumes exactly.
    ///
    /// # Panics
    /// As [`Module::state_dict`](crate::Module::state_dict).
    #[track_caller]
    fn state_dict(&self) -> StateDict {
        state::snapshot(&self.state())
    }

    /// Takes over a snapshot, in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not of an optimizer of this kind over parameters of these
    /// shapes; nothing has changed then.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        state::load(&self.state(), state, true).map(drop)
    }
}

/// The parameters' common dtype; refuses what an optimizer cannot update.
fn dtype_of(op: &'static str, parameters: &[Parameter]) -> Result<DType> {
    let mut seen = HashSet::new();
    if !parameters.iter().all(|p| seen.insert(identity(p))) {
        return Err(Error::invalid(op, "a parameter is listed twice and would be updated twice"));
    }
    let dtype = parameters.first().map_or(DType::F32, |p| p.dtype());
    if parameters.iter().any(|p| p.dtype() != dtype) || !matches!(dtype, DType::F32 | DType::F64) {
        let mut dtypes: Vec<DType> = parameters.iter().map(|p| p.dtype()).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        let mend = "an optimizer's parameters are all f32 or all f64; make one optimizer for each";
        return Err(Error::dtypes(op, dtypes, mend));
    }
    Ok(dtype)
}

/// A 0-d tensor for a formula to read.
fn device_scalar(value: f64, dtype: DType) -> Result<Buffer> {
    ops::full((), value, dtype).map(Buffer::new)
}

/// Zeros like every parameter.
fn zeros_like(parameters: &[Parameter]) -> Result<Vec<Buffer>> {
    parameters.iter().map(|p| ops::zeros_like(&p.detach()).map(Buffer::new)).collect()
}

fn nonnegative(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} must be finite and not negative, got {value}")))
}

/// `name.0`, `name.1`, ... for the state of every parameter.
fn named<'a>(name: &'a str, buffers: &'a [Buffer]) -> impl Iterator<Item = (String, Tensor)> + 'a {
    buffers.iter().enumerate().map(move |(i, b)| (format!("{name}.{i}"), b.tensor().clone()))
}

/// Calls `update` with the position and gradient of every parameter that has one; nothing is recorded.
fn each(parameters: &[Parameter], mut update: impl FnMut(usize, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
    let _guard = no_grad();
    for (i, parameter) in parameters.iter().enumerate() {
        if let Some(gradient) = parameter.grad() {
            update(i, parameter.tensor(), &gradient)?;
        }
    }
    Ok(())
}
