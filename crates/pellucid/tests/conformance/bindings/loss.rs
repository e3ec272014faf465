//! Losses and distances.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::ops::{CrossEntropy, Reduction, over};
use pellucid::{Error, Result, Tensor, ops};
use std::f64::consts::PI;

pub(super) fn bind(table: &mut Binder) {
    regression(table);
    classes(table);
    margins(table);
    distances(table);
}

/// What the call's `reduction` makes of these values.
fn reduced(c: &Call, values: Tensor) -> Result<Tensor> {
    match c.reduction()? {
        Reduction::Mean => ops::mean(&values, ..),
        Reduction::Sum => ops::sum(&values, ..),
        Reduction::None => Ok(values),
    }
}

fn regression(table: &mut Binder) {
    table.one("nn.functional.mse_loss", |c| reduced(c, ops::square(&ops::sub(c.x()?, c.y()?)?)?));
    table.one("nn.functional.l1_loss", |c| reduced(c, ops::abs(&ops::sub(c.x()?, c.y()?)?)?));
    table.one("nn.functional.huber_loss", |c| {
        let delta = c.float(KEY, "delta").unwrap_or(1.0);
        reduced(c, rounded(c, delta)?)
    });
    table.one("nn.functional.smooth_l1_loss", |c| {
        let beta = c.float(KEY, "beta").unwrap_or(1.0);
        reduced(c, ops::div(rounded(c, beta)?, beta)?)
    });
    table.one("nn.functional.kl_div", |c| {
        let (x, target) = (c.x()?, c.y()?);
        let values = match c.flag(KEY, "log_target") {
            true => ops::mul(ops::exp(target)?, ops::sub(target, x)?)?,
            false => ops::mul(target, ops::sub(ops::log(target)?, x)?)?,
        };
        match c.text(KEY, "reduction") {
            Some("batchmean") => ops::div(ops::sum(&values, ..)?, x.shape()[0] as f64),
            _ => reduced(c, values),
        }
    });
    table.one("nn.functional.poisson_nll_loss", |c| {
        let (x, target) = (c.x()?, c.y()?);
        let values = match c.get(KEY, "log_input") {
            Some(crate::index::Argument::Bool(false)) => {
                ops::sub(x, ops::mul(target, ops::log(&ops::add(x, 1e-8)?)?)?)?
            }
            _ => ops::sub(ops::exp(x)?, ops::mul(target, x)?)?,
        };
        if !c.flag(KEY, "full") {
            return reduced(c, values);
        }
        // Stirling's approximation of ln target!, where the target is larger than 1.
        let safe = ops::where_(&ops::gt(target, 1.0)?, target, 1.0)?;
        let log = ops::log(&safe)?;
        let terms =
            ops::add(ops::sub(ops::mul(&safe, &log)?, &safe)?, ops::mul(ops::log(&ops::mul(&safe, 2.0 * PI)?)?, 0.5)?)?;
        reduced(c, ops::add(values, ops::where_(&ops::gt(target, 1.0)?, &terms, 0.0)?)?)
    });
}

/// ½d² where |d| < δ, else δ·(|d| − ½δ).
fn rounded(c: &Call, delta: f64) -> Result<Tensor> {
    if delta <= 0.0 {
        return Err(Error::invalid("huber_loss", "the width is positive"));
    }
    let difference = ops::sub(c.x()?, c.y()?)?;
    let size = ops::abs(&difference)?;
    let outside = ops::mul(ops::sub(&size, 0.5 * delta)?, delta)?;
    ops::where_(&ops::lt(&size, delta)?, &ops::mul(ops::square(&difference)?, 0.5)?, &outside)
}

fn classes(table: &mut Binder) {
    table.one("nn.functional.cross_entropy", |c| {
        if c.get(2, "weight").is_some() {
            return Err(Error::invalid("cross_entropy", "takes no weights of classes"));
        }
        let options = CrossEntropy {
            label_smoothing: c.float(KEY, "label_smoothing").unwrap_or(0.0),
            ignore_index: c.int(KEY, "ignore_index").map(|i| i as i64),
            reduction: c.reduction()?,
        };
        ops::cross_entropy(c.x()?, c.y()?, options)
    });
    table.one("nn.functional.nll_loss", |c| {
        let (x, target) = (c.x()?, c.y()?);
        let axis = if x.rank() == 1 { 0 } else { 1 };
        let counts = ops::ne(target, c.int(KEY, "ignore_index").unwrap_or(-100) as i64)?;
        let valid = ops::where_(&counts, target, 0)?;
        let picked = ops::squeeze(&ops::take_along_axis(x, &ops::unsqueeze(&valid, axis)?, axis)?, axis)?;
        let weights = match c.optional(2, "weight") {
            Some(weight) => ops::index_select(weight, 0, &valid)?,
            None => ops::ones(target.shape(), x.dtype())?,
        };
        let weights = ops::where_(&counts, &weights, 0.0)?;
        let values = ops::neg(&ops::mul(picked, &weights)?)?;
        match c.reduction()? {
            Reduction::Mean => ops::div(ops::sum(&values, ..)?, ops::sum(&weights, ..)?),
            _ => reduced(c, values),
        }
    });
    table.one("nn.functional.binary_cross_entropy", |c| {
        let (x, target) = (c.x()?, c.y()?);
        let log = |x: &Tensor| ops::maximum(ops::log(x)?, -100.0);
        let (hit, miss) = (log(x)?, log(&ops::sub(1.0, x)?)?);
        let values = ops::add(ops::mul(target, hit)?, ops::mul(ops::sub(1.0, target)?, miss)?)?;
        reduced(c, weighted(c, ops::neg(&values)?)?)
    });
    table.one("nn.functional.binary_cross_entropy_with_logits", |c| {
        if c.get(KEY, "pos_weight").is_some() {
            return Err(Error::invalid("binary_cross_entropy_with_logits", "takes no weight of hits here"));
        }
        let (x, target) = (c.x()?, c.y()?);
        let values = ops::sub(ops::mul(ops::sub(1.0, target)?, x)?, ops::logsigmoid(x)?)?;
        reduced(c, weighted(c, values)?)
    });
    table.one("nn.functional.multilabel_soft_margin_loss", |c| {
        let (x, target) = (c.x()?, c.y()?);
        let (hit, miss) = (ops::logsigmoid(x)?, ops::logsigmoid(&ops::neg(x)?)?);
        let values = ops::add(ops::mul(target, hit)?, ops::mul(ops::sub(1.0, target)?, miss)?)?;
        reduced(c, ops::mean(&weighted(c, ops::neg(&values)?)?, -1)?)
    });
}

fn weighted(c: &Call, values: Tensor) -> Result<Tensor> {
    c.optional(2, "weight").map_or(Ok(values.clone()), |weight| ops::mul(&values, weight))
}

fn margins(table: &mut Binder) {
    table.one("nn.functional.margin_ranking_loss", |c| {
        let (a, b, sign) = (c.x()?, c.tensor(1, "input2")?, c.tensor(2, "target")?);
        let ahead = ops::mul(ops::sub(b, a)?, sign)?;
        reduced(c, ops::relu(&ops::add(ahead, c.float(KEY, "margin").unwrap_or(0.0))?)?)
    });
    table.one("nn.functional.soft_margin_loss", |c| {
        reduced(c, ops::neg(&ops::logsigmoid(&ops::mul(c.x()?, c.y()?)?)?)?)
    });
    table.one("nn.functional.triplet_margin_loss", |c| {
        let (p, eps) = (c.float(KEY, "p").unwrap_or(2.0), c.float(KEY, "eps").unwrap_or(1e-6));
        let distance = |b: &Tensor| ops::norm(&ops::add(ops::sub(c.x()?, b)?, eps)?, p, -1);
        let (near, far) = (distance(c.tensor(1, "positive")?)?, distance(c.tensor(2, "negative")?)?);
        reduced(c, ops::relu(&ops::add(ops::sub(near, far)?, c.float(KEY, "margin").unwrap_or(1.0))?)?)
    });
}

fn distances(table: &mut Binder) {
    table.one("nn.functional.cosine_similarity", |c| {
        let (a, b) = (c.x()?, c.tensor(1, "x2")?);
        let (axis, eps) = (c.int(2, "dim").unwrap_or(1), c.float(3, "eps").unwrap_or(1e-8));
        let length = |x: &Tensor| ops::maximum(ops::norm(x, 2.0, over(axis).keepdims())?, eps);
        let (a, b) = (ops::div(a, length(a)?)?, ops::div(b, length(b)?)?);
        ops::sum(&ops::mul(a, b)?, axis)
    });
    table.one("nn.functional.pairwise_distance", |c| {
        let difference = ops::add(ops::sub(c.x()?, c.tensor(1, "x2")?)?, c.float(3, "eps").unwrap_or(1e-6))?;
        let axes = if c.flag(4, "keepdim") { over(-1).keepdims() } else { over(-1) };
        ops::norm(&difference, c.float(2, "p").unwrap_or(2.0), axes)
    });
    table.one("nn.functional.pdist", |c| {
        let (x, p) = (c.x()?, c.float(1, "p").unwrap_or(2.0));
        let count = x.shape()[0] as i64;
        let (a, b): (Vec<i64>, Vec<i64>) = (0..count).flat_map(|i| (i + 1..count).map(move |j| (i, j))).unzip();
        let rows = |index: &[i64]| ops::index_select(x, 0, &Tensor::new(index, [index.len()]));
        ops::norm(&ops::sub(rows(&a)?, rows(&b)?)?, p, -1)
    });
    table.one("cdist", |c| {
        let (a, b) = (ops::unsqueeze(c.x()?, -2)?, ops::unsqueeze(c.tensor(1, "x2")?, -3)?);
        ops::norm(&ops::sub(a, b)?, c.float(2, "p").unwrap_or(2.0), -1)
    });
}
