//! Losses and distances.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::ops::{
    CrossEntropyOptions, CtcLossOptions, MultiMarginLossOptions, NllLossOptions, PoissonNllLossOptions,
    TripletMarginLossOptions,
};
use pellucid::{Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    regression(table);
    classes(table);
    margins(table);
    distances(table);
}

fn regression(table: &mut Binder) {
    table.one("nn.functional.mse_loss", |c| ops::mse_loss(c.x()?, c.y()?, c.reduction()?));
    table.one("nn.functional.l1_loss", |c| ops::l1_loss(c.x()?, c.y()?, c.reduction()?));
    table.one("nn.functional.huber_loss", |c| {
        ops::huber_loss(c.x()?, c.y()?, c.float(KEY, "delta").unwrap_or(1.0), c.reduction()?)
    });
    table.one("nn.functional.smooth_l1_loss", |c| {
        ops::smooth_l1_loss(c.x()?, c.y()?, c.float(KEY, "beta").unwrap_or(1.0), c.reduction()?)
    });
    table.one("nn.functional.kl_div", |c| {
        let (x, target, log_target) = (c.x()?, c.y()?, c.flag(KEY, "log_target"));
        match c.text(KEY, "reduction") {
            // The reduction `batchmean` is the sum divided by the number of samples.
            Some("batchmean") => {
                ops::div(ops::kl_div(x, target, log_target, ops::Reduction::Sum)?, x.shape()[0] as f64)
            }
            _ => ops::kl_div(x, target, log_target, c.reduction()?),
        }
    });
    table.one("nn.functional.poisson_nll_loss", |c| {
        let options = PoissonNllLossOptions {
            log_input: !matches!(c.get(KEY, "log_input"), Some(crate::index::Argument::Bool(false))),
            full: c.flag(KEY, "full"),
            eps: c.float(KEY, "eps").unwrap_or(1e-8),
            reduction: c.reduction()?,
        };
        ops::poisson_nll_loss(c.x()?, c.y()?, options)
    });
    table.one("nn.functional.gaussian_nll_loss", |c| {
        let (full, eps) = (c.flag(KEY, "full"), c.float(KEY, "eps").unwrap_or(1e-6));
        ops::gaussian_nll_loss(c.x()?, c.y()?, c.tensor(2, "var")?, full, eps, c.reduction()?)
    });
}

fn classes(table: &mut Binder) {
    // The test data uses −100 for "no class".
    let ignored = |c: &Call| Some(c.int(KEY, "ignore_index").map_or(-100, |i| i as i64));
    table.one("nn.functional.cross_entropy", move |c| {
        let options = CrossEntropyOptions {
            label_smoothing: c.float(KEY, "label_smoothing").unwrap_or(0.0),
            ignore_index: ignored(c).filter(|_| c.y().is_ok_and(|target| !target.dtype().is_float())),
            reduction: c.reduction()?,
            weight: c.optional(2, "weight"),
        };
        ops::cross_entropy(c.x()?, c.y()?, options)
    });
    for name in [
        "nn.functional.linear_cross_entropy",
        "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
    ] {
        table.one(name, move |c| linear_cross_entropy(c, ignored(c)));
    }
    table.one("nn.functional.nll_loss", move |c| {
        let options =
            NllLossOptions { weight: c.optional(2, "weight"), ignore_index: ignored(c), reduction: c.reduction()? };
        ops::nll_loss(c.x()?, c.y()?, options)
    });
    table.one("nn.functional.binary_cross_entropy", |c| {
        ops::binary_cross_entropy(c.x()?, c.y()?, c.optional(2, "weight"), c.reduction()?)
    });
    table.one("nn.functional.binary_cross_entropy_with_logits", |c| {
        let (weight, positive) = (c.optional(2, "weight"), c.optional(KEY, "pos_weight"));
        ops::binary_cross_entropy_with_logits(c.x()?, c.y()?, weight, positive, c.reduction()?)
    });
    table.one("nn.functional.multilabel_soft_margin_loss", |c| {
        ops::multilabel_soft_margin_loss(c.x()?, c.y()?, c.optional(2, "weight"), c.reduction()?)
    });
    table.one("nn.functional.multilabel_margin_loss", |c| ops::multilabel_margin_loss(c.x()?, c.y()?, c.reduction()?));
    table.one("nn.functional.multi_margin_loss", |c| {
        let options = MultiMarginLossOptions {
            p: c.float(KEY, "p").unwrap_or(1.0),
            margin: c.float(KEY, "margin").unwrap_or(1.0),
            weight: c.optional(KEY, "weight"),
            reduction: c.reduction()?,
        };
        ops::multi_margin_loss(c.x()?, c.y()?, options)
    });
    table.one("nn.functional.ctc_loss", |c| {
        let lengths = |at, name| -> Result<Tensor> {
            if let Some(tensor) = c.optional(at, name) {
                return Ok(tensor.clone());
            }
            let lengths =
                c.ints(at, name).ok_or_else(|| Error::invalid("ctc_loss", "the lengths must be a list of integers"))?;
            Ok(Tensor::new(lengths.iter().map(|&n| n as i64).collect::<Vec<_>>(), [lengths.len()]))
        };
        let options = CtcLossOptions {
            blank: c.int(4, "blank").unwrap_or(0) as usize,
            zero_infinity: c.flag(KEY, "zero_infinity"),
            reduction: c.reduction()?,
        };
        let (inputs, targets) = (lengths(2, "input_lengths")?, lengths(3, "target_lengths")?);
        ops::ctc_loss(c.x()?, c.y()?, &inputs, &targets, options)
    });
}

/// Computes the loss for a weight `[C, outputs.., inputs]`, which produces logits of C classes at every output
/// position.
fn linear_cross_entropy(c: &Call, ignore_index: Option<i64>) -> Result<Tensor> {
    let (x, weight, target) = (c.x()?, c.tensor(1, "linear_weight")?, c.tensor(2, "target")?);
    let (Some((&inputs, outputs)), true) = (weight.shape().split_last(), matches!(x.rank(), 1 | 2)) else {
        return Err(Error::shapes(
            "linear_cross_entropy",
            [x.shape(), weight.shape()],
            "x must have rank 1 or 2, and the weight at least one axis",
        ));
    };
    if (outputs.len() > 1 && x.rank() == 1) || (target.dtype().is_float() && c.get(KEY, "ignore_index").is_some()) {
        return Err(Error::invalid(
            "linear_cross_entropy",
            "several output axes require x with a batch axis, and ignore_index requires a target of class indices",
        ));
    }
    if outputs.is_empty() || c.optional(KEY, "linear_bias").is_some_and(|b| b.shape()[..] != *outputs) {
        return Err(Error::shapes(
            "linear_cross_entropy",
            [weight.shape()],
            "the weight must have at least one output axis, and the bias must have the shape of the output axes",
        ));
    }
    let options = CrossEntropyOptions {
        label_smoothing: c.float(KEY, "label_smoothing").unwrap_or(0.0),
        ignore_index: ignore_index.filter(|_| !target.dtype().is_float()),
        reduction: c.reduction()?,
        weight: c.optional(KEY, "weight"),
    };
    let bias = c.optional(KEY, "linear_bias").map(ops::ravel).transpose()?;
    let rows = ops::reshape(weight, [outputs.iter().product::<usize>(), inputs])?;
    let logits = ops::linear(x, &rows, bias.as_ref())?;
    let shape = [&x.shape()[..x.rank() - 1], outputs].concat();
    ops::cross_entropy(&ops::reshape(&logits, &shape[..])?, target, options)
}

fn margins(table: &mut Binder) {
    table.one("nn.functional.margin_ranking_loss", |c| {
        let margin = c.float(KEY, "margin").unwrap_or(0.0);
        ops::margin_ranking_loss(c.x()?, c.tensor(1, "input2")?, c.tensor(2, "target")?, margin, c.reduction()?)
    });
    table.one("nn.functional.soft_margin_loss", |c| ops::soft_margin_loss(c.x()?, c.y()?, c.reduction()?));
    table.one("nn.functional.hinge_embedding_loss", |c| {
        ops::hinge_embedding_loss(c.x()?, c.y()?, c.float(KEY, "margin").unwrap_or(1.0), c.reduction()?)
    });
    table.one("nn.functional.cosine_embedding_loss", |c| {
        let margin = c.float(KEY, "margin").unwrap_or(0.0);
        ops::cosine_embedding_loss(c.x()?, c.tensor(1, "input2")?, c.tensor(2, "target")?, margin, c.reduction()?)
    });
    let triplet = |c: &Call| -> Result<Tensor> {
        let options = TripletMarginLossOptions {
            margin: c.float(KEY, "margin").unwrap_or(1.0),
            p: c.float(KEY, "p").unwrap_or(2.0),
            eps: c.float(KEY, "eps").unwrap_or(1e-6),
            swap: c.flag(KEY, "swap"),
            reduction: c.reduction()?,
        };
        ops::triplet_margin_loss(c.x()?, c.tensor(1, "positive")?, c.tensor(2, "negative")?, options)
    };
    table.one("nn.functional.triplet_margin_loss", triplet);
    table.one("nn.functional.triplet_margin_with_distance_loss", triplet);
}

fn distances(table: &mut Binder) {
    table.one("nn.functional.cosine_similarity", |c| {
        let (axis, eps) = (c.int(2, "dim").unwrap_or(1), c.float(3, "eps").unwrap_or(1e-8));
        let (a, b) = (c.x()?, c.tensor(1, "x2")?);
        match (a.rank(), b.rank()) {
            // A 0-d tensor is treated as a vector of one element.
            (0, 0) => ops::cosine_similarity(&ops::unsqueeze(a, 0)?, &ops::unsqueeze(b, 0)?, 0, eps),
            _ => ops::cosine_similarity(a, b, axis, eps),
        }
    });
    table.one("nn.functional.pairwise_distance", |c| {
        let (p, eps) = (c.float(2, "p").unwrap_or(2.0), c.float(3, "eps").unwrap_or(1e-6));
        ops::pairwise_distance(c.x()?, c.tensor(1, "x2")?, p, eps, c.flag(4, "keepdim"))
    });
    table.one("nn.functional.pdist", |c| ops::pdist(c.x()?, c.float(1, "p").unwrap_or(2.0)));
    table.one("cdist", |c| ops::cdist(c.x()?, c.tensor(1, "x2")?, c.float(2, "p").unwrap_or(2.0)));
    table.one("nn.functional.normalize", |c| {
        let (p, axis) = (c.float(1, "p").unwrap_or(2.0), c.int(2, "dim").unwrap_or(1));
        super::reduce::along(c.x()?, |x| ops::normalize(x, p, axis, c.float(KEY, "eps").unwrap_or(1e-12)))
    });
    table.one("renorm", |c| {
        let (p, most) = (c.float(1, "p").unwrap_or(2.0), c.float(3, "maxnorm").unwrap_or(1.0));
        ops::renorm(c.x()?, p, c.int(2, "dim").unwrap_or(0), most)
    });
}
