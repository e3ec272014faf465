//! Normalisation layers: mean 0 and variance 1, or unit root mean square, over some axes, then scale and shift.

mod channel;
mod layer;

pub use channel::{BatchNorm, RunningStatistics, batch_norm, group_norm, instance_norm, local_response_norm};
pub use layer::{layer_norm, rms_norm};

use super::formula::rows;
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Result, formula};
use std::sync::OnceLock;

/// Computes (x − mean) / √(var + eps)·weight + bias with mean and biased variance over `axes`, in one kernel. Weight
/// and bias broadcast.
fn standardized(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64, axes: AxisSet) -> Result<Tensor> {
    static PLAIN: OnceLock<Formula> = OnceLock::new();
    static WEIGHT: OnceLock<Formula> = OnceLock::new();
    static AFFINE: OnceLock<Formula> = OnceLock::new();
    let params = [eps.into()];
    if weight.is_none() && bias.is_some() {
        in_single!("standardized", [x; bias] => standardized(x, None, bias, eps, axes));
    }
    match (weight, bias) {
        (None, _) => {
            let plain = PLAIN.get_or_init(|| {
                formula! { standardized(x; eps) = {
                    let d = x - x.row_mean();
                    d * ((d * d).row_mean() + eps).sqrt().recip()
                }; }
                .eternal()
            });
            let y = rows(plain, &[x], &params, axes)?;
            match bias {
                Some(bias) => ops::add(&y, bias),
                None => Ok(y),
            }
        }
        (Some(weight), None) => {
            let scaled = WEIGHT.get_or_init(|| {
                formula! { standardized(x, w; eps) = {
                    let d = x - x.row_mean();
                    d * ((d * d).row_mean() + eps).sqrt().recip() * w
                }; }
                .eternal()
            });
            rows(scaled, &[x, weight], &params, axes)
        }
        (Some(weight), Some(bias)) => {
            let affine = AFFINE.get_or_init(|| {
                formula! { standardized(x, w, b; eps) = {
                    let d = x - x.row_mean();
                    (d * ((d * d).row_mean() + eps).sqrt().recip()).mul_add(w, b)
                }; }
                .eternal()
            });
            rows(affine, &[x, weight, bias], &params, axes)
        }
    }
}
