//! Losses between numbers and numbers of one shape.

use super::{Loss, Reduction, declared, losses, losses_of_many, methods_of_many, same_shape, tracked, with_gradients};
use pellucid_tensor::ops::PoissonNll;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

losses! {
    /// |x − y|
    L1Loss, l1 {} |loss, x, y| {
        same_shape("l1", x, y)?;
        ops::l1_loss(x, y, loss.reduction)
    };

    /// (x − y)²
    MseLoss, mse as Mse {} |loss, x, y| {
        same_shape("mse", x, y)?;
        ops::mse_loss(x, y, loss.reduction)
    };

    /// ½(x − y)²/β where |x − y| < β, else |x − y| − ½β (Girshick 2015).
    SmoothL1Loss, smooth_l1 {
        /// Where the square ends; 1.
        beta: f64 = 1.0,
    } |loss, x, y| {
        same_shape("smooth_l1", x, y)?;
        ops::smooth_l1_loss(x, y, loss.beta, loss.reduction)
    };

    /// ½(x − y)² where |x − y| < δ, else δ·(|x − y| − ½δ) (Huber 1964).
    HuberLoss, huber {
        /// Where the square ends; 1.
        delta: f64 = 1.0,
    } |loss, x, y| {
        same_shape("huber", x, y)?;
        ops::huber_loss(x, y, loss.delta, loss.reduction)
    };

    /// Kullback & Leibler's divergence of a distribution y from one whose logarithms are x: y·(ln y − x).
    KlDivLoss, kl_div {
        /// y is logarithms as well; it is not.
        log_target: bool = false,
        /// Divides the sum by the number of samples, which is the divergence's own mean, whatever `reduction` says; it does
        /// not.
        batch_mean: bool = false,
    } |loss, x, y| {
        same_shape("kl_div", x, y)?;
        if !loss.batch_mean {
            return ops::kl_div(x, y, loss.log_target, loss.reduction);
        }
        let samples = x.shape().first().copied().unwrap_or(1);
        ops::div(ops::kl_div(x, y, loss.log_target, Reduction::Sum)?, samples as f64)
    };

    /// −ln of the probability of a count y at a rate λ, without ln y! unless it is asked for: eˣ − y·x for x = ln λ, else
    /// x − y·ln(x + ε).
    PoissonNllLoss, poisson_nll {
        /// x is the logarithm of the rate, not the rate; it is.
        log_input: bool = true,
        /// With Stirling's approximation of ln y!; without.
        full: bool = false,
        /// What is added to a rate before its logarithm is taken; 1e-8.
        eps: f64 = 1e-8,
    } |loss, x, y| {
        same_shape("poisson_nll", x, y)?;
        let PoissonNllLoss { log_input, full, eps, reduction } = *loss;
        ops::poisson_nll_loss(x, y, PoissonNll { log_input, full, eps, reduction })
    };
}

losses_of_many! {
    /// −ln of the density of a normal distribution with mean x and a variance at y: ½(ln variance + (x − y)²/variance) (Nix &
    /// Weigend 1994).
    ///
    /// The variance has x's shape, or one number a row.
    GaussianNllLoss, gaussian_nll {
        /// With ½ln 2π; without.
        full: bool = false,
        /// The least variance, 1e-6; a smaller one counts as this.
        eps: f64 = 1e-6,
    } |loss, x, y, variance| by [x, variance] {
        ops::gaussian_nll_loss(x, y, variance, loss.full, loss.eps, loss.reduction)
    };
}
