//! Pixel and channel shuffles, and their inverses.

use crate::table::nd::Nd;
use crate::table::row::{Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Tensor, ops};

/// Element (.., c, h, w) of the result is (.., c·r² + (h mod r)·r + w mod r, h / r, w / r) of x.
fn shuffled(x: &Nd, r: usize) -> Nd {
    let lead = x.shape.len() - 3;
    let (rest, last) = x.shape.split_at(lead);
    Nd::from_fn(&[rest, &[last[0] / (r * r), last[1] * r, last[2] * r]].concat(), |ix| {
        let (c, h, w) = (ix[lead], ix[lead + 1], ix[lead + 2]);
        x.at(&[&ix[..lead], &[(c * r + h % r) * r + w % r, h / r, w / r]].concat())
    })
}

fn unshuffled(x: &Nd, r: usize) -> Nd {
    let lead = x.shape.len() - 3;
    let (rest, last) = x.shape.split_at(lead);
    Nd::from_fn(&[rest, &[last[0] * r * r, last[1] / r, last[2] / r]].concat(), |ix| {
        let (c, h, w) = (ix[lead], ix[lead + 1], ix[lead + 2]);
        x.at(&[&ix[..lead], &[c / (r * r), h * r + c / r % r, w * r + c % r]].concat())
    })
}

/// Channel c of the result is channel (c mod groups)·(C / groups) + c / groups of x.
fn regrouped(x: &Nd, groups: usize) -> Nd {
    let each = x.shape[1] / groups;
    Nd::from_fn(&x.shape, |ix| x.at(&[&ix[..1], &[ix[1] % groups * each + ix[1] / groups], &ix[2..]].concat()))
}

pub(super) fn rows() -> Vec<Row> {
    let image = || Tensor::ones([1, 6, 4, 6], DType::F64);
    vec![
        Row::new("pixel_shuffle")
            .case("twos", [real([1, 8, 1, 2])], |x| ops::pixel_shuffle(&x[0], 2), |x| shuffled(&x[0], 2))
            .case("threes, one image", [real([9, 2, 1])], |x| ops::pixel_shuffle(&x[0], 3), |x| shuffled(&x[0], 3))
            .floats_only()
            .case("two axes before", [real([2, 1, 4, 1, 1])], |x| ops::pixel_shuffle(&x[0], 2), |x| shuffled(&x[0], 2))
            .floats_only()
            .case("ones", [real([1, 2, 2, 2])], |x| ops::pixel_shuffle(&x[0], 1), |x| x[0].clone())
            .floats_only()
            .case("no image", [real([0, 4, 2, 2])], |x| ops::pixel_shuffle(&x[0], 2), |x| shuffled(&x[0], 2))
            .floats_only()
            .check("an indivisible number of channels must be an error", move || {
                shape_rejected(ops::pixel_shuffle(&image(), 2))
            })
            .check("a factor of 0 must be an error", move || argument_rejected(ops::pixel_shuffle(&image(), 0)))
            .check("an extreme factor must be an error", move || {
                shape_rejected(ops::pixel_shuffle(&image(), usize::MAX))
            })
            .check("another rank must be an error", || {
                shape_rejected(ops::pixel_shuffle(&Tensor::ones([4, 4], DType::F64), 2))
            }),
        Row::new("pixel_unshuffle")
            .case("twos", [real([1, 2, 2, 4])], |x| ops::pixel_unshuffle(&x[0], 2), |x| unshuffled(&x[0], 2))
            .case("threes, one image", [real([1, 6, 3])], |x| ops::pixel_unshuffle(&x[0], 3), |x| unshuffled(&x[0], 3))
            .floats_only()
            .case("no image", [real([0, 1, 2, 2])], |x| ops::pixel_unshuffle(&x[0], 2), |x| unshuffled(&x[0], 2))
            .floats_only()
            .check("indivisible lengths must be an error", move || shape_rejected(ops::pixel_unshuffle(&image(), 4)))
            .check("a factor of 0 must be an error", move || argument_rejected(ops::pixel_unshuffle(&image(), 0)))
            .check("another rank must be an error", || {
                shape_rejected(ops::pixel_unshuffle(&Tensor::ones([4, 4], DType::F64), 2))
            }),
        Row::new("channel_shuffle")
            .case("two groups", [real([1, 6, 2])], |x| ops::channel_shuffle(&x[0], 2), |x| regrouped(&x[0], 2))
            .case("no spatial axis", [real([2, 6])], |x| ops::channel_shuffle(&x[0], 3), |x| regrouped(&x[0], 3))
            .floats_only()
            .case("no image", [real([0, 4, 1])], |x| ops::channel_shuffle(&x[0], 2), |x| regrouped(&x[0], 2))
            .floats_only()
            .check("an indivisible number of groups must be an error", move || {
                shape_rejected(ops::channel_shuffle(&image(), 4))
            })
            .check("zero groups must be an error", move || argument_rejected(ops::channel_shuffle(&image(), 0)))
            .check("another rank must be an error", || {
                shape_rejected(ops::channel_shuffle(&Tensor::ones([4], DType::F64), 2))
            }),
    ]
}
