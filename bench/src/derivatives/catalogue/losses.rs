//! Losses.

use super::{CatalogueOperation, Domain, OperationFamily, SplitMix64, fit};
use Domain::{Any, Apart, Positive, Share, Unit};
use pellucid::ops::{
    CrossEntropyOptions, CtcLossOptions, MultiMarginLossOptions, NllLossOptions, PoissonNllLossOptions, Reduction,
    TripletMarginLossOptions,
};
use pellucid::{Result, Tensor, ops};

fn reduction(random: &mut SplitMix64) -> Reduction {
    random.choose(&[Reduction::Mean, Reduction::Sum, Reduction::None])
}

/// Returns both tensors reshaped to `[2, 3]`.
fn pair(x: &[Tensor]) -> Result<(Tensor, Tensor)> {
    Ok((fit(&x[0], &[2, 3])?, fit(&x[1], &[2, 3])?))
}

/// Returns ±1 with random signs.
fn signs(random: &mut SplitMix64, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| if random.coin() { 1.0 } else { -1.0 }).collect();
    Tensor::new(values, shape)
}

fn regression() -> Vec<CatalogueOperation> {
    entries! { Losses;
        "l1_loss" [Apart, Apart] (x, random) => { let (a, b) = pair(x)?; ops::l1_loss(&a, &b, reduction(random)) };
        "mse_loss" [Any, Any] (x, random) => { let (a, b) = pair(x)?; ops::mse_loss(&a, &b, reduction(random)) };
        "huber_loss" [Apart, Apart] (x, random) => {
            let (a, b) = pair(x)?;
            ops::huber_loss(&a, &b, 0.8, reduction(random))
        };
        "smooth_l1_loss" [Apart, Apart] (x, random) => {
            let (a, b) = pair(x)?;
            ops::smooth_l1_loss(&a, &b, 0.8, reduction(random))
        };
        "kl_div" [Any, Share] (x, random) => { let (a, b) = pair(x)?; ops::kl_div(&a, &b, false, reduction(random)) };
        "kl_div of logarithms" [Any, Any] (x, random) => {
            let (a, b) = pair(x)?;
            ops::kl_div(&a, &b, true, reduction(random))
        };
        "poisson_nll_loss" [Any, Positive] (x, random) => {
            let (a, b) = pair(x)?;
            let reduction = reduction(random);
            let options = PoissonNllLossOptions { log_input: true, full: false, eps: 1e-8, reduction };
            ops::poisson_nll_loss(&a, &b, options)
        };
        "poisson_nll_loss of rates" [Positive, Positive] (x, random) => {
            let (a, b) = pair(x)?;
            let b = ops::add(&b, 1.0)?;
            let reduction = reduction(random);
            let options = PoissonNllLossOptions { log_input: false, full: true, eps: 1e-8, reduction };
            ops::poisson_nll_loss(&a, &b, options)
        };
        "gaussian_nll_loss" [Any, Any, Positive] (x, random) => {
            let ((a, b), variance) = (pair(x)?, fit(&x[2], &[2, 3])?);
            ops::gaussian_nll_loss(&a, &b, &variance, true, 1e-6, reduction(random))
        };
        "margin_ranking_loss" [Apart, Apart] (x, random) => {
            let (a, b) = pair(x)?;
            ops::margin_ranking_loss(&a, &b, &signs(random, &[2, 3]), 0.3, reduction(random))
        };
        "cosine_embedding_loss" [Apart, Apart] (x, random) => {
            let (a, b) = pair(x)?;
            ops::cosine_embedding_loss(&a, &b, &signs(random, &[2]), 0.1, reduction(random))
        };
        "triplet_margin_loss" [Apart, Apart, Apart] (x, random) => {
            let ((a, b), c) = (pair(x)?, fit(&x[2], &[2, 3])?);
            let (swap, reduction) = (random.coin(), reduction(random));
            let options = TripletMarginLossOptions { margin: 1.0, p: 2.0, eps: 1e-3, swap, reduction };
            ops::triplet_margin_loss(&a, &b, &c, options)
        };
        "triplet_margin_with_distance_loss" [Apart, Apart, Apart] (x, random) => {
            let ((a, b), c) = (pair(x)?, fit(&x[2], &[2, 3])?);
            let distance = |a: &Tensor, b: &Tensor| ops::sum(&ops::square(&ops::sub(a, b)?)?, -1);
            ops::triplet_margin_with_distance_loss(&a, &b, &c, distance, 1.0, random.coin(), reduction(random))
        };
        "hinge_embedding_loss" [Apart] (x, random) => {
            ops::hinge_embedding_loss(&fit(&x[0], &[2, 3])?, &signs(random, &[2, 3]), 0.9, reduction(random))
        };
        "soft_margin_loss" [Any] (x, random) => {
            ops::soft_margin_loss(&fit(&x[0], &[2, 3])?, &signs(random, &[2, 3]), reduction(random))
        };
    }
}

fn classes() -> Vec<CatalogueOperation> {
    entries! { Losses;
        "binary_cross_entropy" [Share, Share] (x, random) => {
            let (a, b) = pair(x)?;
            ops::binary_cross_entropy(&a, &b, None, reduction(random))
        };
        "binary_cross_entropy_with_logits" [Any, Share] (x, random) => {
            let (a, b) = pair(x)?;
            ops::binary_cross_entropy_with_logits(&a, &b, None, None, reduction(random))
        };
        "binary_cross_entropy_with_logits, weighted" [Any, Share, Positive, Positive] (x, random) => {
            let ((a, b), weight, positive) = (pair(x)?, fit(&x[2], &[3])?, fit(&x[3], &[3])?);
            ops::binary_cross_entropy_with_logits(&a, &b, Some(&weight), Some(&positive), reduction(random))
        };
        "multilabel_soft_margin_loss" [Any] (x, random) => {
            let target = ops::to_dtype(&random.mask(&[2, 3]), pellucid::DType::F64)?;
            ops::multilabel_soft_margin_loss(&fit(&x[0], &[2, 3])?, &target, None, reduction(random))
        };
        "cross_entropy" [Any] (x, random) => {
            let options = CrossEntropyOptions { reduction: reduction(random), ..Default::default() };
            ops::cross_entropy(&fit(&x[0], &[2, 3])?, &random.indices(&[2], 3), options)
        };
        "cross_entropy, smoothed" [Any] (x, random) => {
            let reduction = reduction(random);
            let options = CrossEntropyOptions { label_smoothing: 0.1, reduction, ..Default::default() };
            ops::cross_entropy(&fit(&x[0], &[2, 3])?, &random.indices(&[2], 3), options)
        };
        "cross_entropy, weighted" [Any, Positive] (x, random) => {
            let weight = fit(&x[1], &[3])?;
            let reduction = reduction(random);
            let options = CrossEntropyOptions { weight: Some(&weight), reduction, ..Default::default() };
            ops::cross_entropy(&fit(&x[0], &[2, 3])?, &random.indices(&[2], 3), options)
        };
        "cross_entropy of probabilities" [Any, Share] (x, random) => {
            let (a, b) = pair(x)?;
            ops::cross_entropy(&a, &b, CrossEntropyOptions { reduction: reduction(random), ..Default::default() })
        };
        "nll_loss" [Any] (x, random) => {
            let options = NllLossOptions { reduction: reduction(random), ..NllLossOptions::default() };
            ops::nll_loss(&fit(&x[0], &[2, 3])?, &random.indices(&[2], 3), options)
        };
        "multi_margin_loss" [Apart] (x, random) => {
            let (p, reduction) = (random.choose(&[1.0, 2.0]), reduction(random));
            let options = MultiMarginLossOptions { p, reduction, ..Default::default() };
            ops::multi_margin_loss(&fit(&x[0], &[2, 3])?, &random.indices(&[2], 3), options)
        };
        "multilabel_margin_loss" [Apart] (x, random) => {
            let target = Tensor::new(&[1i64, -1, -1, 0, 2, -1][..], [2, 3]);
            ops::multilabel_margin_loss(&fit(&x[0], &[2, 3])?, &target, reduction(random))
        };
        "ctc_loss" [Unit] (x, random) => {
            let probs = ops::log_softmax(&fit(&x[0], &[4, 1, 3])?, -1)?;
            let (targets, steps, labels) = (Tensor::from([[1i64, 2]]), Tensor::from([4i64]), Tensor::from([2i64]));
            let options = CtcLossOptions { blank: 0, zero_infinity: false, reduction: reduction(random) };
            ops::ctc_loss(&probs, &targets, &steps, &labels, options)
        };
    }
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = regression();
    all.extend(classes());
    all
}
