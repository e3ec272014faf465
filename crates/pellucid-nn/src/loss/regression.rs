//! Regression losses, of predictions and targets of the same shape.

use super::{
    Loss, Reduction, TargetForm, Targets, declared, losses, losses_of_many, methods_of_many, tracked_leaf,
    with_gradients,
};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::PoissonNllLossOptions;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

losses! {
    /// The absolute error |x − y|.
    L1Loss, l1_loss of Values {} |loss, x, y| where Targets::Any => ops::l1_loss(x, y, loss.reduction);

    /// The squared error (x − y)².
    #[doc(alias = "MSELoss")]
    MseLoss, mse_loss of Values {} |loss, x, y| where Targets::Any => ops::mse_loss(x, y, loss.reduction);

    /// The smooth L1 loss ½(x − y)²/β where |x − y| < β, else |x − y| − ½β (Girshick 2015).
    SmoothL1Loss, smooth_l1_loss of Values {
        /// The error β above which the loss is linear; default 1.
        beta: f64 = 1.0,
    } |loss, x, y| where Targets::Any => ops::smooth_l1_loss(x, y, loss.beta, loss.reduction);

    /// The Huber loss ½(x − y)² where |x − y| < δ, else δ·(|x − y| − ½δ) (Huber 1964).
    HuberLoss, huber_loss of Values {
        /// The error δ above which the loss is linear; default 1.
        delta: f64 = 1.0,
    } |loss, x, y| where Targets::Any => ops::huber_loss(x, y, loss.delta, loss.reduction);

    /// The Kullback-Leibler divergence y·(ln y − x) of a distribution y from the distribution with log-probabilities x.
    #[doc(alias = "KLDivLoss")]
    KlDivLoss, kl_div of Values {
        /// Whether y contains log-probabilities too; default false.
        log_target: bool = false,
        /// Whether to divide the sum by the number of samples (PyTorch's `batchmean`); `reduction` is then ignored.
        /// Default false.
        batch_mean: bool = false,
    } |loss, x, y| where if loss.batch_mean { Targets::OfMean } else { Targets::Any } => {
        if !loss.batch_mean {
            return ops::kl_div(x, y, loss.log_target, loss.reduction);
        }
        let samples = x.shape().first().copied().unwrap_or(1);
        ops::div(ops::kl_div(x, y, loss.log_target, Reduction::Sum)?, samples as f64)
    };

    /// The negative log-likelihood of a count y under a Poisson distribution: eˣ − y·x for a log-rate x, or x − y·ln(x
    /// + ε) for a rate x. The term ln y! is omitted by default.
    #[doc(alias = "PoissonNLLLoss")]
    PoissonNllLoss, poisson_nll_loss of Values {
        /// Whether x is the logarithm of the rate; default true.
        log_input: bool = true,
        /// Whether to add Stirling's approximation of ln y!; default false.
        full: bool = false,
        /// ε, added to a rate before the logarithm; default 1e-8.
        eps: f64 = 1e-8,
    } |loss, x, y| where Targets::Any => {
        let PoissonNllLoss { log_input, full, eps, reduction } = *loss;
        ops::poisson_nll_loss(x, y, PoissonNllLossOptions { log_input, full, eps, reduction })
    };
}

losses_of_many! {
    /// The negative log-likelihood of y under a normal distribution with mean x and a given variance:
    /// ½(ln variance + (x − y)²/variance) (Nix & Weigend 1994).
    ///
    /// The variance has x's shape, or one value per row.
    #[doc(alias = "GaussianNLLLoss")]
    GaussianNllLoss, gaussian_nll_loss {
        /// Whether to add the constant ½ln 2π; default false.
        full: bool = false,
        /// The lower bound of the variance; default 1e-6.
        eps: f64 = 1e-6,
    } |loss, x, y, variance| by [x, variance] ops::gaussian_nll_loss(x, y, variance, loss.full, loss.eps, loss.reduction);
}
