//! Exchange of channels and spatial positions, and permutation of channels.

use crate::ops::primitive::view;
use crate::ops::primitive::view::reshape_to;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, Shape};

/// Returns the lengths of the leading axes, and the lengths of the last three axes.
fn image_dims<'a>(op: &'static str, x: &'a Tensor) -> Result<(&'a [usize], [usize; 3])> {
    if x.rank() < 3 {
        return Err(Error::shapes(op, [x.shape()], "the input must be [.., C, H, W]; unsqueeze() adds an axis"));
    }
    let (outer, last) = x.shape().split_at(x.rank() - 3);
    Ok((outer, [last[0], last[1], last[2]]))
}

pub(super) fn concat_dims(outer: &[usize], inner: &[usize]) -> Shape {
    outer.iter().chain(inner).copied().collect()
}

/// Permutes the last five axes of x, which follow `outer_axes` other axes.
fn permute_last_five(x: &Tensor, outer_axes: usize, order: [isize; 5]) -> Result<Tensor> {
    let order: Vec<isize> = (0..outer_axes as isize).chain(order.map(|a| a + outer_axes as isize)).collect();
    view::permute(x, &order)
}

/// Returns an error for a factor of 0.
fn check_factor(op: &'static str, r: usize) -> Result<()> {
    if r > 0 { Ok(()) } else { Err(Error::invalid(op, "the factor r must be at least 1, got 0; try 2")) }
}

/// Rearranges r² channels into a square of elements: `[.., C·r², H, W]` to `[.., C, H·r, W·r]` (Shi et al. 2016).
///
/// # Errors
/// [`Error::ShapeMismatch`] if the channels are not divisible by r²; [`Error::InvalidArgument`] for r = 0.
#[tensor_method]
pub fn pixel_shuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let op = "pixel_shuffle";
    let (outer, [c, h, w]) = image_dims(op, x)?;
    check_factor(op, r)?;
    let square = r.checked_mul(r).filter(|&square| c.is_multiple_of(square));
    let Some(square) = square else {
        let help = format!("{c} channels are not divisible by {r}²; use an input with a multiple of {r}² channels");
        return Err(Error::shapes(op, [x.shape()], help));
    };
    let split = reshape_to(x, &concat_dims(outer, &[c / square, r, r, h, w]))?;
    let (height, width) = (h.saturating_mul(r), w.saturating_mul(r));
    reshape_to(
        &permute_last_five(&split, outer.len(), [0, 3, 1, 4, 2])?,
        &concat_dims(outer, &[c / square, height, width]),
    )
}

/// Rearranges squares of r² elements into channels: `[.., C, H·r, W·r]` to `[.., C·r², H, W]`, the inverse of
/// [`pixel_shuffle`].
///
/// # Errors
/// [`Error::ShapeMismatch`] if the lengths are not divisible by r; [`Error::InvalidArgument`] for r = 0.
#[tensor_method]
pub fn pixel_unshuffle(x: &Tensor, r: usize) -> Result<Tensor> {
    let op = "pixel_unshuffle";
    let (outer, [c, h, w]) = image_dims(op, x)?;
    check_factor(op, r)?;
    if !h.is_multiple_of(r) || !w.is_multiple_of(r) {
        return Err(Error::shapes(op, [x.shape()], format!("the lengths {h} and {w} must be divisible by {r}")));
    }
    let channels = c.saturating_mul(r).saturating_mul(r);
    let split = reshape_to(x, &concat_dims(outer, &[c, h / r, r, w / r, r]))?;
    reshape_to(
        &permute_last_five(&split, outer.len(), [0, 2, 4, 1, 3])?,
        &concat_dims(outer, &[channels, h / r, w / r]),
    )
}

/// Transposes the channels of x `[N, C, ..]`, viewed as `[groups, C / groups]` (Zhang et al., ShuffleNet, 2018).
///
/// # Errors
/// [`Error::ShapeMismatch`] if the channels are not divisible by the groups; [`Error::InvalidArgument`] for 0 groups.
#[tensor_method]
pub fn channel_shuffle(x: &Tensor, groups: usize) -> Result<Tensor> {
    let op = "channel_shuffle";
    if groups == 0 {
        return Err(Error::invalid(op, "the number of groups must be at least 1, got 0"));
    }
    if x.rank() < 2 || !x.shape()[1].is_multiple_of(groups) {
        return Err(Error::shapes(
            op,
            [x.shape()],
            format!("the input must be [N, C, ..] with C divisible by the {groups} groups"),
        ));
    }
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    let split = reshape_to(x, &concat_dims(&[n, groups, channels / groups], &x.shape()[2..]))?;
    reshape_to(&view::transpose(&split, 1, 2)?, x.shape())
}
