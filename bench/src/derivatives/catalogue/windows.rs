//! Pools, resampling and other operations on windows.

use super::{CatalogueOperation, Domain, OperationFamily, fit};
use Domain::{Any, Apart, Positive, Unit};
use pellucid::ops;
use pellucid::ops::{
    AvgPoolDivisor, FoldOptions, GridSampleMode, GridSamplePadding, InterpolationMode, PoolOptions, Resize,
};

pub(super) fn operations() -> Vec<CatalogueOperation> {
    entries! { Windows;
        "avg_pool1d" [Any] (x, _) => {
            ops::avg_pool1d(&fit(&x[0], &[1, 4])?, PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) }, AvgPoolDivisor::Window)
        };
        "avg_pool2d" [Any] (x, _) => {
            ops::avg_pool2d(&fit(&x[0], &[1, 1, 3, 3])?, PoolOptions { padding: 1.into(), ..PoolOptions::new(2) }, AvgPoolDivisor::Inside)
        };
        "avg_pool3d" [Any] (x, _) => {
            ops::avg_pool3d(&fit(&x[0], &[1, 2, 2, 3])?, PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) }, AvgPoolDivisor::Number(3.0))
        };
        "max_pool1d" [Apart] (x, _) => Ok(ops::max_pool1d(&fit(&x[0], &[1, 4])?, PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) })?.0);
        "max_pool2d" [Apart] (x, _) => {
            Ok(ops::max_pool2d(&fit(&x[0], &[1, 1, 3, 3])?, PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) })?.0)
        };
        "max_pool3d" [Apart] (x, _) => Ok(ops::max_pool3d(&fit(&x[0], &[1, 2, 2, 2])?, PoolOptions::new(2))?.0);
        "max_unpool1d" [Apart] (x, _) => {
            let (y, positions) = ops::max_pool1d(&fit(&x[0], &[1, 4])?, PoolOptions::new(2))?;
            ops::max_unpool1d(&y, &positions, &[4])
        };
        "max_unpool2d" [Apart] (x, _) => {
            let (y, positions) = ops::max_pool2d(&fit(&x[0], &[1, 2, 4])?, PoolOptions::new(2))?;
            ops::max_unpool2d(&y, &positions, &[2, 4])
        };
        "max_unpool3d" [Apart] (x, _) => {
            let (y, positions) = ops::max_pool3d(&fit(&x[0], &[1, 2, 2, 2])?, PoolOptions::new(2))?;
            ops::max_unpool3d(&y, &positions, &[2, 2, 2])
        };
        "lp_pool1d" [Positive] (x, _) => ops::lp_pool1d(&fit(&x[0], &[1, 4])?, 3.0, PoolOptions::new(2));
        "lp_pool2d" [Positive] (x, _) => ops::lp_pool2d(&fit(&x[0], &[1, 2, 4])?, 2.0, PoolOptions::new(2));
        "lp_pool3d" [Positive] (x, _) => ops::lp_pool3d(&fit(&x[0], &[1, 2, 2, 2])?, 2.0, PoolOptions::new(2));
        "adaptive_avg_pool1d" [Any] (x, _) => ops::adaptive_avg_pool1d(&fit(&x[0], &[1, 5])?, &[Some(3)]);
        "adaptive_avg_pool2d" [Any] (x, _) => ops::adaptive_avg_pool2d(&fit(&x[0], &[1, 2, 3])?, &[Some(1), Some(2)]);
        "adaptive_avg_pool3d" [Any] (x, _) => {
            ops::adaptive_avg_pool3d(&fit(&x[0], &[1, 2, 1, 3])?, &[Some(1), None, Some(2)])
        };
        "adaptive_max_pool2d" [Apart] (x, _) => {
            Ok(ops::adaptive_max_pool2d(&fit(&x[0], &[1, 2, 3])?, &[Some(1), Some(2)])?.0)
        };
        "adaptive_max_pool3d" [Apart] (x, _) => {
            Ok(ops::adaptive_max_pool3d(&fit(&x[0], &[1, 2, 1, 3])?, &[Some(1), None, Some(2)])?.0)
        };
        "adaptive_max_pool1d" [Apart] (x, _) => Ok(ops::adaptive_max_pool1d(&fit(&x[0], &[1, 5])?, &[Some(3)])?.0);
        "fractional_max_pool2d" [Apart] (x, random) => {
            let samples = random.tensor(&[1, 1, 2], 0.0, 1.0);
            Ok(ops::fractional_max_pool2d(&fit(&x[0], &[1, 3, 4])?, 2, 2, Some(&samples))?.0)
        };
        "fractional_max_pool3d" [Apart] (x, random) => {
            let samples = random.tensor(&[1, 1, 3], 0.0, 1.0);
            Ok(ops::fractional_max_pool3d(&fit(&x[0], &[1, 2, 3, 3])?, [1, 2, 2], [2, 2, 2], Some(&samples))?.0)
        };
        "interpolate nearest" [Any] (x, _) => {
            ops::interpolate(&fit(&x[0], &[1, 1, 3])?, Resize::To(vec![5]), InterpolationMode::Nearest)
        };
        "interpolate linear" [Any] (x, random) => {
            let mode = InterpolationMode::Linear { align_corners: random.coin() };
            ops::interpolate(&fit(&x[0], &[1, 1, 3])?, Resize::To(vec![5]), mode)
        };
        "interpolate bilinear" [Any] (x, random) => {
            let mode = InterpolationMode::Linear { align_corners: random.coin() };
            ops::interpolate(&fit(&x[0], &[1, 1, 2, 3])?, Resize::By(vec![1.5, 1.4]), mode)
        };
        "interpolate cubic" [Any] (x, random) => {
            let mode = InterpolationMode::Cubic { align_corners: random.coin() };
            ops::interpolate(&fit(&x[0], &[1, 1, 2, 3])?, Resize::To(vec![3, 4]), mode)
        };
        "interpolate area" [Any] (x, _) => {
            ops::interpolate(&fit(&x[0], &[1, 1, 5])?, Resize::To(vec![3]), InterpolationMode::Area)
        };
        "grid_sample" [Any, Unit] (x, random) => {
            let (x, grid) = (fit(&x[0], &[1, 1, 2, 3])?, fit(&x[1], &[1, 2, 2, 2])?);
            let mode = random.choose(&[GridSampleMode::Nearest, GridSampleMode::Linear, GridSampleMode::Cubic]);
            let paddings = [GridSamplePadding::Zeros, GridSamplePadding::Border, GridSamplePadding::Reflection];
            let outside = random.choose(&paddings);
            ops::grid_sample(&x, &ops::mul(&grid, 0.97)?, mode, outside, random.coin())
        };
        "affine_grid" [Any] (x, random) => ops::affine_grid(&fit(&x[0], &[1, 2, 3])?, &[2, 2], random.coin());
        "unfold" [Any] (x, _) => {
            let options = FoldOptions { padding: 1.into(), ..FoldOptions::new(2) };
            ops::unfold(&fit(&x[0], &[1, 2, 3])?, options, 2)
        };
        "fold" [Any] (x, _) => ops::fold(&fit(&x[0], &[4, 2])?, &[2, 3], FoldOptions::new(2));
    }
}
