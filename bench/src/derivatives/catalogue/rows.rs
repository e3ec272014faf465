//! Reductions, scans, norms, softmax and other operations on rows.

use super::{CatalogueOperation, Domain, OperationFamily, axis, dims, fit, length, matrix, ranked};
use Domain::{Any, Apart, Positive, Share, Unit};
use pellucid::ops::{
    Axes, BatchNormOptions, CovOptions, InterpOptions, MeshgridIndexing, QuantileInterpolation, Spacing,
};
use pellucid::{Result, Tensor, formula, ops};

/// Returns one random axis or all axes, with or without `keepdims`.
fn axes(x: &Tensor, random: &mut super::SplitMix64) -> Axes {
    let axes = if random.below(3) == 0 { ops::over(..) } else { ops::over(axis(x, random)) };
    if random.coin() { axes.keepdims() } else { axes }
}

/// Returns weight and bias of the same shape, from two tensors.
fn affine(x: &[Tensor], shape: &[usize]) -> Result<(Tensor, Tensor)> {
    Ok((fit(&x[1], shape)?, fit(&x[2], shape)?))
}

fn norms() -> Vec<CatalogueOperation> {
    entries! { Rows;
        "softmax" [Any] (x, random) => { let x = ranked(&x[0])?; ops::softmax(&x, axis(&x, random)) };
        "log_softmax" [Any] (x, random) => { let x = ranked(&x[0])?; ops::log_softmax(&x, axis(&x, random)) };
        "softmin" [Any] (x, random) => { let x = ranked(&x[0])?; ops::softmin(&x, axis(&x, random)) };
        "layer_norm" [Apart] (x, _) => {
            let x = fit(&x[0], &[2, 3])?;
            ops::layer_norm(&x, [3], None, None, 1e-3)
        };
        "layer_norm with weights" [Apart, Any, Any] (x, _) => {
            let (weight, bias) = affine(x, &[3])?;
            ops::layer_norm(&fit(&x[0], &[2, 3])?, [3], Some(&weight), Some(&bias), 1e-3)
        };
        "rms_norm" [Apart] (x, _) => ops::rms_norm(&fit(&x[0], &[2, 3])?, [3], None, 1e-3);
        "rms_norm with weights" [Apart, Any] (x, _) => {
            ops::rms_norm(&fit(&x[0], &[2, 3])?, [3], Some(&fit(&x[1], &[3])?), 1e-3)
        };
        "group_norm" [Apart, Any, Any] (x, _) => {
            let (weight, bias) = affine(x, &[4])?;
            ops::group_norm(&fit(&x[0], &[1, 4, 3])?, 2, Some(&weight), Some(&bias), 1e-3)
        };
        "batch_norm" [Apart, Any, Any] (x, _) => {
            let (weight, bias) = affine(x, &[2])?;
            let options = BatchNormOptions { training: true, momentum: 0.1, eps: 1e-3 };
            ops::batch_norm(&fit(&x[0], &[3, 2])?, None, Some(&weight), Some(&bias), options)
        };
        "instance_norm" [Apart] (x, _) => {
            let options = BatchNormOptions { training: true, momentum: 0.1, eps: 1e-3 };
            ops::instance_norm(&fit(&x[0], &[1, 2, 3])?, None, None, None, options)
        };
        "local_response_norm" [Any] (x, _) => ops::local_response_norm(&fit(&x[0], &[1, 3, 2])?, 2, 0.5, 0.75, 1.0);
        "normalize" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::normalize(&x, 2.0, axis(&x, random), 1e-6) };
        "renorm" [Apart] (x, _) => ops::renorm(&fit(&x[0], &[2, 3])?, 2.0, 0, 0.7);
        "norm 2" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::norm(&x, 2.0, axes(&x, random)) };
        "norm 1" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::norm(&x, 1.0, axes(&x, random)) };
        "norm 3" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::norm(&x, 3.0, axes(&x, random)) };
        "norm inf" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::norm(&x, f64::INFINITY, axes(&x, random)) };
        "cosine_similarity" [Apart, Apart] (x, _) => {
            ops::cosine_similarity(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 3])?, 1, 1e-6)
        };
        "pairwise_distance" [Apart, Positive] (x, _) => {
            let b = ops::add(&fit(&x[1], &[2, 3])?, 1.5)?;
            ops::pairwise_distance(&ops::tanh(&fit(&x[0], &[2, 3])?)?, &b, 2.0, 1e-6, false)
        };
        "cdist" [Apart, Positive] (x, random) => {
            let b = ops::add(&fit(&x[1], &[2, 3])?, 1.5)?;
            ops::cdist(&ops::tanh(&fit(&x[0], &[2, 3])?)?, &b, random.choose(&[1.0, 2.0, 3.0]))
        };
        "cdist inf" [Apart, Positive] (x, _) => {
            let b = ops::add(&fit(&x[1], &[2, 3])?, 1.5)?;
            ops::cdist(&ops::tanh(&fit(&x[0], &[2, 3])?)?, &b, f64::INFINITY)
        };
        "pdist" [Apart] (x, random) => ops::pdist(&fit(&x[0], &[3, 2])?, random.choose(&[1.0, 2.0, 3.0]));
        "dist" [Apart, Positive] (x, random) => {
            let b = ops::add(&fit(&x[1], &[2, 3])?, 1.5)?;
            ops::dist(&ops::tanh(&fit(&x[0], &[2, 3])?)?, &b, random.choose(&[1.0, 2.0, 3.0]))
        };
        "cov" [Any] (x, _) => ops::cov(&matrix(&x[0])?, CovOptions { correction: 0.0, ..CovOptions::default() });
        "corrcoef" [Apart] (x, _) => ops::corrcoef(&fit(&x[0], &[2, 3])?);
        "glu" [Any] (x, _) => ops::glu(&fit(&x[0], &[3, 2])?, 1);
        "prelu" [Apart, Any] (x, _) => ops::prelu(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3])?);
        "a formula of rows" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            ops::map_rows(formula!(|x| x.exp() * x / (x * x + 1.0).row_sum()), &[&x], &[], axis(&x, random))
        };
        "a formula of rows of two inputs" [Any, Positive] (x, _) => {
            let (a, b) = (fit(&x[0], &[2, 3])?, fit(&x[1], &[2, 3])?);
            ops::map_rows(formula!(|a, b| (a * b).row_sum().sin() + a / b.row_sum()), &[&a, &b], &[], -1)
        };
    }
}

fn reductions() -> Vec<CatalogueOperation> {
    entries! { Rows;
        "sum" [Any] (x, random) => { let x = ranked(&x[0])?; ops::sum(&x, axes(&x, random)) };
        "mean" [Any] (x, random) => { let x = ranked(&x[0])?; ops::mean(&x, axes(&x, random)) };
        "var" [Any] (x, random) => { let x = ranked(&x[0])?; ops::var(&x, axes(&x, random)) };
        "std" [Apart] (x, _) => ops::std(&fit(&x[0], &[2, 3])?, 1);
        "var_mean" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let (var, mean) = ops::var_mean(&x, axes(&x, random))?;
            ops::mul(&var, &mean)
        };
        "std_mean" [Apart] (x, _) => {
            let (std, mean) = ops::std_mean(&fit(&x[0], &[2, 3])?, 1)?;
            ops::mul(&std, &mean)
        };
        "max" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::max(&x, axes(&x, random)) };
        "min" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::min(&x, axes(&x, random)) };
        "aminmax" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            let (low, high) = ops::aminmax(&x, axes(&x, random))?;
            ops::mul(&low, &high)
        };
        "prod" [Any] (x, random) => { let x = ranked(&x[0])?; ops::prod(&x, axes(&x, random)) };
        "prod with a zero" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let mask = random.mask(&dims(&x));
            ops::prod(&ops::where_(&mask, &x, 0.0)?, axes(&x, random))
        };
        "logsumexp" [Any] (x, random) => { let x = ranked(&x[0])?; ops::logsumexp(&x, axes(&x, random)) };
        "nansum" [Any] (x, random) => { let x = ranked(&x[0])?; ops::nansum(&x, axes(&x, random)) };
        "nanmean" [Any] (x, random) => { let x = ranked(&x[0])?; ops::nanmean(&x, axes(&x, random)) };
        "nanmax" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::nanmax(&x, axes(&x, random)) };
        "nanmin" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::nanmin(&x, axes(&x, random)) };
        "nanprod with a NaN" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let mask = random.mask(&dims(&x));
            ops::nanprod(&ops::where_(&mask, &x, f64::NAN)?, axes(&x, random))
        };
        "nanvar" [Any] (x, random) => { let x = ranked(&x[0])?; ops::nanvar(&x, axes(&x, random)) };
        "nanstd" [Apart] (x, _) => ops::nanstd(&fit(&x[0], &[2, 3])?, 1);
        "ptp" [Apart] (x, random) => { let x = ranked(&x[0])?; ops::ptp(&x, axes(&x, random)) };
        "median" [Apart] (x, random) => { let x = ranked(&x[0])?; Ok(ops::median(&x, axes(&x, random))?.0) };
        "nanmedian" [Apart] (x, random) => { let x = ranked(&x[0])?; Ok(ops::nanmedian(&x, axes(&x, random))?.0) };
        "mode" [Apart] (x, random) => { let x = ranked(&x[0])?; Ok(ops::mode(&x, axes(&x, random))?.0) };
        "quantile" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            ops::quantile(&x, random.between(0.1, 0.9), axes(&x, random), QuantileInterpolation::Linear)
        };
        "quantile of q" [Apart, Share] (x, _) => {
            let q = fit(&x[1], &[2])?;
            ops::quantile(&fit(&x[0], &[2, 3])?, &q, 1, QuantileInterpolation::Linear)
        };
        "nanquantile" [Apart] (x, _) => ops::nanquantile(&x[0], 0.3, .., QuantileInterpolation::Midpoint);
    }
}

fn masked_reductions() -> Vec<CatalogueOperation> {
    entries! { Rows;
        "masked_sum" [Any] (x, random) => ops::masked_sum(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_mean" [Any] (x, random) => ops::masked_mean(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_prod" [Any] (x, random) => ops::masked_prod(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_max" [Apart] (x, random) => ops::masked_max(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_min" [Apart] (x, random) => ops::masked_min(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_log_softmax" [Any] (x, random) => {
            // The mask is −∞ where the random mask is false.
            let mask = random.mask(&dims(&x[0]));
            ops::masked_select(&ops::masked_log_softmax(&x[0], &mask, ..)?, &mask)
        };
        "masked_logsumexp" [Any] (x, random) => ops::masked_logsumexp(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_var" [Any] (x, random) => ops::masked_var(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_std" [Apart] (x, _) => {
            ops::masked_std(&fit(&x[0], &[3])?, &Tensor::new(&[true, false, true][..], [3]), 0)
        };
        "masked_norm" [Apart] (x, random) => ops::masked_norm(&x[0], &random.mask(&dims(&x[0])), 2.0, ..);
        "masked_median" [Apart] (x, random) => Ok(ops::masked_median(&x[0], &random.mask(&dims(&x[0])), ..)?.0);
        "masked_softmax" [Any] (x, random) => ops::masked_softmax(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_softmin" [Any] (x, random) => ops::masked_softmin(&x[0], &random.mask(&dims(&x[0])), ..);
        "masked_cumsum" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            ops::masked_cumsum(&x, &random.mask(&dims(&x)), axis(&x, random))
        };
        "masked_cumprod" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            ops::masked_cumprod(&x, &random.mask(&dims(&x)), axis(&x, random))
        };
        "masked_normalize" [Apart] (x, random) => {
            ops::masked_normalize(&fit(&x[0], &[3])?, &random.mask(&[3]), 2.0, 0, 1e-6)
        };
    }
}

fn scans() -> Vec<CatalogueOperation> {
    entries! { Rows;
        "cumsum" [Any] (x, random) => { let x = ranked(&x[0])?; ops::cumsum(&x, axis(&x, random)) };
        "cumprod" [Any] (x, random) => { let x = ranked(&x[0])?; ops::cumprod(&x, axis(&x, random)) };
        "nancumsum" [Any] (x, random) => { let x = ranked(&x[0])?; ops::nancumsum(&x, axis(&x, random)) };
        "nancumprod" [Any] (x, random) => { let x = ranked(&x[0])?; ops::nancumprod(&x, axis(&x, random)) };
        "interp" [Unit, Any] (x, _) => {
            let points = Tensor::from([-1.0, -0.03, 0.41, 1.0]);
            ops::interp(&x[0], &points, &fit(&x[1], &[4])?, InterpOptions::default())
        };
        "interp with a period" [Share, Any, Unit] (x, _) => {
            let points = ops::add(Tensor::from([2.0, 1.0]), &ops::mul(&fit(&x[2], &[2])?, 0.2)?)?;
            let options = InterpOptions { period: Some(3.0), ..Default::default() };
            ops::interp(&ops::mul(&x[0], 0.5)?, &points, &fit(&x[1], &[2])?, options)
        };
        "polyval" [Any, Any] (x, _) => ops::polyval(&fit(&x[0], &[3])?, &x[1]);
        "polyfit" [Any, Any] (x, _) => {
            let points = ops::add(Tensor::from([-1.0, 0.0, 1.5]), &ops::mul(&fit(&x[0], &[3])?, 0.1)?)?;
            ops::polyfit(&points, &fit(&x[1], &[3])?, 1)
        };
        "logcumsumexp" [Any] (x, random) => { let x = ranked(&x[0])?; ops::logcumsumexp(&x, axis(&x, random)) };
        "cummax" [Apart] (x, random) => { let x = ranked(&x[0])?; Ok(ops::cummax(&x, axis(&x, random))?.0) };
        "cummin" [Apart] (x, random) => { let x = ranked(&x[0])?; Ok(ops::cummin(&x, axis(&x, random))?.0) };
        "diff" [Any] (x, random) => ops::diff(&fit(&x[0], &[2, 3])?, 1 + random.below(2), 1);
        "sort" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            Ok(ops::sort(&x, axis(&x, random), random.coin())?.0)
        };
        "msort" [Apart] (x, _) => ops::msort(&ranked(&x[0])?);
        "topk" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            let axis = axis(&x, random);
            Ok(ops::topk(&x, 1 + random.below(length(&x, axis)), axis, random.coin())?.0)
        };
        "kthvalue" [Apart] (x, random) => {
            let x = ranked(&x[0])?;
            let axis = axis(&x, random);
            Ok(ops::kthvalue(&x, 1 + random.below(length(&x, axis)), axis)?.0)
        };
        "trapezoid" [Any] (x, _) => ops::trapezoid(&fit(&x[0], &[2, 3])?, Spacing::Step(0.5), 1);
        "trapezoid of points" [Any, Apart] (x, _) => {
            ops::trapezoid(&fit(&x[0], &[2, 3])?, Spacing::Points(&fit(&x[1], &[3])?), 1)
        };
        "cumulative_trapezoid" [Any] (x, _) => ops::cumulative_trapezoid(&fit(&x[0], &[2, 3])?, Spacing::Step(0.5), 1);
        "gradient" [Any] (x, random) => ops::gradient(&fit(&x[0], &[2, 3])?, Spacing::Step(0.5), 1, 1 + random.below(2));
        "gradient of points" [Any, Positive] (x, _) => {
            let points = ops::cumsum(&fit(&x[1], &[3])?, 0)?;
            ops::gradient(&fit(&x[0], &[2, 3])?, Spacing::Points(&points), 1, 2)
        };
        "meshgrid" [Any, Any] (x, _) => {
            let (a, b) = (fit(&x[0], &[3])?, fit(&x[1], &[2])?);
            let grid = ops::meshgrid(&[&a, &b], MeshgridIndexing::Xy)?;
            ops::mul(&grid[0], &grid[1])
        };
    }
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = norms();
    all.extend(reductions());
    all.extend(masked_reductions());
    all.extend(scans());
    all
}
