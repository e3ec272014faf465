//! Channels to places and back.

use crate::ops;
use crate::ops::reshape_to;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, Shape};

/// The axes before the last three, and those.
fn image<'a>(op: &'static str, x: &'a Tensor) -> Result<(&'a [usize], [usize; 3])> {
    if x.rank() < 3 {
        return Err(Error::shapes(op, [x.shape()], "takes [.., C, H, W]"));
    }
    let (lead, last) = x.shape().split_at(x.rank() - 3);
    Ok((lead, [last[0], last[1], last[2]]))
}

fn joined(lead: &[usize], rest: &[usize]) -> Shape {
    lead.iter().chain(rest).copied().collect()
}

/// x with the last axes of its pieces in another order, all axes before them left alone.
fn turned(x: &Tensor, lead: usize, order: [isize; 5]) -> Result<Tensor> {
    let order: Vec<isize> = (0..lead as isize).chain(order.map(|a| a + lead as isize)).collect();
    ops::permute(x, &order)
}

/// `[.., C·r², H, W]` to `[.., C, H·r, W·r]`: r² channels become a square of elements (Shi et al. 2016).
///
/// # Errors
/// [`Error::ShapeMismatch`] if r² does not divide the channels.
#[tensor_method]
pub fn pixel_shuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let op = "pixel_shuffle";
    let (lead, [c, h, w]) = image(op, x)?;
    let square = r.checked_mul(r).filter(|&square| square > 0 && c.is_multiple_of(square));
    let Some(square) = square else {
        return Err(Error::shapes(op, [x.shape()], format!("{c} channels are no multiple of {r}²")));
    };
    let split = reshape_to(x, &joined(lead, &[c / square, r, r, h, w]))?;
    let (height, width) = (h.saturating_mul(r), w.saturating_mul(r));
    reshape_to(&turned(&split, lead.len(), [0, 3, 1, 4, 2])?, &joined(lead, &[c / square, height, width]))
}

/// `[.., C, H·r, W·r]` to `[.., C·r², H, W]`: the inverse of [`pixel_shuffle`].
///
/// # Errors
/// [`Error::ShapeMismatch`] if r does not divide the lengths.
#[tensor_method]
pub fn pixel_unshuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let op = "pixel_unshuffle";
    let (lead, [c, h, w]) = image(op, x)?;
    if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
        return Err(Error::shapes(op, [x.shape()], format!("{h} or {w} is no multiple of {r}")));
    }
    let channels = c.saturating_mul(r).saturating_mul(r);
    let split = reshape_to(x, &joined(lead, &[c, h / r, r, w / r, r]))?;
    reshape_to(&turned(&split, lead.len(), [0, 2, 4, 1, 3])?, &joined(lead, &[channels, h / r, w / r]))
}

/// The channels of x `[N, C, ..]`, seen as `[groups, C / groups]`, transposed (Zhang et al., ShuffleNet, 2018).
///
/// # Errors
/// [`Error::ShapeMismatch`] if the groups do not divide the channels.
#[tensor_method]
pub fn channel_shuffle(x: &Tensor, groups: usize) -> Result<Tensor> {
    let op = "channel_shuffle";
    if x.rank() < 2 || groups == 0 || !x.shape()[1].is_multiple_of(groups) {
        return Err(Error::shapes(op, [x.shape()], format!("takes [N, C, ..], C a multiple of {groups}")));
    }
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    let split = reshape_to(x, &joined(&[n, groups, channels / groups], &x.shape()[2..]))?;
    reshape_to(&ops::transpose(&split, 1, 2)?, x.shape())
}
