//! Normalisation layers: mean 0 and variance 1, or unit root mean square, over some axes, then scale and shift.

mod channel;
mod layer;

pub use channel::{BatchNormOptions, RunningStatistics, batch_norm, group_norm, instance_norm, local_response_norm};
pub use layer::{layer_norm, rms_norm};

use super::formula::apply_rows;
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::formula::Expr;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Result, formula};

/// Computes (x − mean) / √(var + eps) with the mean and biased variance of the row.
fn standard_score(x: Expr, eps: Expr) -> Expr {
    let d = x - x.row_mean();
    d * ((d * d).row_mean() + eps).sqrt().recip()
}

/// Computes (x − mean) / √(var + eps)·weight + bias with mean and biased variance over `axes`, in one kernel. Weight
/// and bias broadcast.
#[operation(autocast = Single, transparent)]
fn standardized(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64, axes: AxisSet) -> Result<Tensor> {
    let params = [eps.into()];
    if weight.is_none() && bias.is_some() {
        in_single!("standardized", [x; bias] => standardized(x, None, bias, eps, axes));
    }
    match (weight, bias) {
        (None, _) => {
            let y =
                apply_rows(formula! { static standardized(x; eps) = standard_score(x, eps); }, &[x], &params, axes)?;
            if let Some(bias) = bias { ops::add(&y, bias) } else { Ok(y) }
        }
        (Some(weight), None) => {
            let scaled = formula! { static standardized(x, w; eps) = standard_score(x, eps) * w; };
            apply_rows(scaled, &[x, weight], &params, axes)
        }
        (Some(weight), Some(bias)) => {
            let affine = formula! { static standardized(x, w, b; eps) = standard_score(x, eps).mul_add(w, b); };
            apply_rows(affine, &[x, weight, bias], &params, axes)
        }
    }
}
