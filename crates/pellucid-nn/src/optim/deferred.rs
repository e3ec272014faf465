//! [`DeferredParameters`]: parameters that a recorded step adds to an optimizer without parameters.

use crate::parameter::Parameter;
use pellucid_tensor::Result;

/// An optimizer to which parameters may be added after its creation.
pub trait DeferredParameters {
    /// Adds parameters with these names to an optimizer without parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the optimizer has parameters or several
    /// groups; the errors of the constructor. On error nothing is changed.
    fn add(&self, parameters: Vec<(String, Parameter)>) -> Result<()>;

    /// Removes the parameters that [`add`](DeferredParameters::add) added, with their state. The learning rate and the
    /// momentum stay.
    fn remove_added(&self);
}
