//! Anomaly mode: the first kernel that makes a NaN is named.

use crate::engine::{self, Watch};
use std::marker::PhantomData;

/// Ends the anomaly mode of its thread when it is dropped.
#[must_use = "the mode lasts as long as the guard: let _guard = detect_anomaly();"]
pub struct AnomalyMode {
    _watch: Option<Watch>,
    /// The mode belongs to this thread, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

/// Until the guard is dropped, everything that runs on this thread is looked at: what makes a NaN of inputs without one is
/// an [`Error::Anomaly`](crate::Error::Anomaly) that names it and, in a backward pass, the operation whose gradient it is
/// part of. This is slow. Deferred work is not looked at.
///
/// ```
/// use pellucid_tensor::{detect_anomaly, Backward, Error, Tensor};
/// let x = Tensor::from([0.0f64, 1.0]).requires_grad_(true);
/// let y = (x.sqrt() * 0.0).sum(..);
/// let _guard = detect_anomaly();
/// let error = y.try_backward(Backward::default()).unwrap_err();
/// assert!(matches!(error, Error::Anomaly { node: Some("sqrt"), .. }));
/// ```
pub fn detect_anomaly() -> AnomalyMode {
    AnomalyMode { _watch: engine::watch(), _not_send: PhantomData }
}
