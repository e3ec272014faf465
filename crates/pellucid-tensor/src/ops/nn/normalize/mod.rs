//! Normalization layers: mean 0 and variance 1, or unit root mean square, over some axes, with scale and shift.

mod channel;
mod layer;
mod score;

pub use channel::{BatchNormOptions, RunningStatistics, batch_norm, group_norm, instance_norm, local_response_norm};
pub use layer::{layer_norm, rms_norm};

use crate::ops::elementwise::arithmetic;
use crate::ops::formula::apply_rows;
use crate::ops::primitive::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::Result;
use pellucid_ir::kernel::AxisSet;

/// Computes (x − mean) / √(var + eps)·weight + bias with mean and biased variance over `axes`, in one kernel. Weight
/// and bias broadcast.
#[operation(autocast = Single, transparent)]
fn standardized(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64, axes: AxisSet) -> Result<Tensor> {
    if weight.is_none() && bias.is_some() {
        in_single!("standardized", [x; bias] => standardized(x, None, bias, eps, axes));
    }
    let params = score::params(x, eps);
    match (weight, bias) {
        (None, None) => apply_rows(score::standardized(x, eps), &[x], &params, axes),
        (None, Some(bias)) => arithmetic::add(&standardized(x, None, None, eps, axes)?, bias),
        (Some(w), None) => apply_rows(score::standardized_with_weight(x, eps), &[x, w], &params, axes),
        (Some(w), Some(b)) => apply_rows(score::standardized_with_bias(x, eps), &[x, w, b], &params, axes),
    }
}
