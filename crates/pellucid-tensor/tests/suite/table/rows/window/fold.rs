//! Windows as columns, and back.

use super::{Slide, batched};
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, argument_refused, real, shape_refused};
use pellucid_tensor::{DType, Error, Tensor, ops};

/// Every (row, column) of the columns, and the element of `[C, spatial..]` that it is, if it lies inside.
fn places(channels: usize, dims: &[usize], slide: Slide) -> Vec<(usize, usize, Option<Vec<usize>>)> {
    let counts: Vec<usize> = (0..dims.len()).map(|a| slide.outputs(a, dims[a])).collect();
    let mut all = vec![];
    for (column, o) in indices(&counts).iter().enumerate() {
        let taps = slide.taps(o, dims);
        for channel in 0..channels {
            for (tap, place) in taps.iter().enumerate() {
                let element = place.as_ref().map(|place| [&[channel], &place[..]].concat());
                all.push((channel * taps.len() + tap, column, element));
            }
        }
    }
    all
}

fn shape_of(n: usize, channels: usize, dims: &[usize], slide: Slide) -> [usize; 3] {
    let columns = (0..dims.len()).map(|a| slide.outputs(a, dims[a])).product();
    [n, channels * slide.size.iter().product::<usize>(), columns]
}

fn unfolded(x: &Nd, slide: Slide) -> Nd {
    let (n, channels, dims) = (x.shape[0], x.shape[1], &x.shape[2..]);
    let mut y = Nd::from_fn(&shape_of(n, channels, dims, slide), |_| 0.0);
    for image in 0..n {
        for (row, column, element) in places(channels, dims, slide) {
            if let Some(element) = element {
                y.set(&[image, row, column], x.at(&[&[image], &element[..]].concat()));
            }
        }
    }
    y
}

fn folded(x: &Nd, dims: &[usize], slide: Slide) -> Nd {
    let channels = x.shape[1] / slide.size.iter().product::<usize>();
    let mut y = Nd::from_fn(&[&[x.shape[0], channels], dims].concat(), |_| 0.0);
    for image in 0..x.shape[0] {
        for (row, column, element) in places(channels, dims, slide) {
            if let Some(element) = element {
                let to = [&[image], &element[..]].concat();
                y.set(&to, y.at(&to) + x.at(&[image, row, column]));
            }
        }
    }
    y
}

/// A label, N images or one without N, their channels and spatial lengths, and the windows.
type Case = (&'static str, Option<usize>, usize, &'static [usize], Slide);

/// Both rows have the same cases.
fn cases() -> [Case; 8] {
    const PLAIN: Slide = Slide { size: &[2, 2], stride: &[1, 1], padding: &[0, 0], dilation: &[1, 1], ceil: false };
    const LINE: Slide = Slide { size: &[2], stride: &[1], padding: &[1], dilation: &[2], ceil: false };
    const SPACE: Slide =
        Slide { size: &[1, 2, 2], stride: &[1, 1, 2], padding: &[0, 0, 1], dilation: &[1, 1, 1], ceil: false };
    let uneven = Slide { size: &[2, 3], stride: &[2, 1], padding: &[1, 2], dilation: &[1, 2], ceil: false };
    [
        ("plain", Some(1), 2, &[3, 3], PLAIN),
        ("a number for each axis", Some(1), 1, &[3, 3], uneven),
        ("next to each other", Some(2), 1, &[4, 2], Slide { stride: &[2, 2], ..PLAIN }),
        ("elements that no window sees", Some(1), 1, &[3, 4], Slide { stride: &[2, 3], ..PLAIN }),
        ("one image", None, 2, &[3, 2], PLAIN),
        ("no image", Some(0), 2, &[3, 2], PLAIN),
        ("a line", Some(1), 2, &[4], LINE),
        ("a space", Some(1), 1, &[2, 2, 3], SPACE),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    let (mut unfold, mut fold) = (Row::new("unfold"), Row::new("fold").scale(4.0));
    for (label, n, channels, dims, slide) in cases() {
        let spatial = dims.len();
        let images: Vec<usize> = n.into_iter().chain([channels]).chain(dims.iter().copied()).collect();
        unfold = unfold
            .case(
                label,
                [Input { shape: images, ..real([]) }],
                move |x| ops::unfold(&x[0], slide.size, slide.dilation, slide.padding, slide.stride, spatial),
                move |x| batched(&x[0], spatial, |x| unfolded(x, slide)),
            )
            .floats_only();
        let [_, rows, columns] = shape_of(1, channels, dims, slide);
        let shape: Vec<usize> = n.into_iter().chain([rows, columns]).collect();
        fold = fold
            .case(
                label,
                [Input { shape, ..real([]) }],
                move |x| ops::fold(&x[0], dims, slide.size, slide.dilation, slide.padding, slide.stride),
                move |x| batched(&x[0], 1, |x| folded(x, dims, slide)),
            )
            .floats_only();
    }
    let image = || Tensor::ones([1, 2, 3, 3], DType::F64);
    let columns = || Tensor::ones([1, 8, 4], DType::F64);
    vec![
        unfold
            .also("another rank", move || shape_refused(ops::unfold(&image(), 2, 1, 0, 1, 1)))
            .also("more axes than there can be", move || {
                argument_refused(ops::unfold(&Tensor::ones([1, 1, 1, 1, 1, 1], DType::F64), 1, 1, 0, 1, 4))
            })
            .also("no spatial axis", move || {
                argument_refused(ops::unfold(&Tensor::ones([1, 1], DType::F64), 1, 1, 0, 1, 0))
            })
            .also("no size", move || argument_refused(ops::unfold(&image(), 0, 1, 0, 1, 2)))
            .also("no stride", move || argument_refused(ops::unfold(&image(), 2, 1, 0, 0, 2)))
            .also("no dilation", move || argument_refused(ops::unfold(&image(), 2, 0, 0, 1, 2)))
            .also("a window larger than the image", move || argument_refused(ops::unfold(&image(), 4, 1, 0, 1, 2)))
            .also("a size beyond any number", move || argument_refused(ops::unfold(&image(), usize::MAX, 2, 0, 1, 2)))
            .also("as many numbers as axes", move || argument_refused(ops::unfold(&image(), [2, 2, 2], 1, 0, 1, 2)))
            .also("integers", || {
                let x = Tensor::from([[[1i64, 2, 3]]]);
                Ok(ops::unfold(&x, 2, 1, 0, 1, 1)?.to_vec::<i64>() == [1, 2, 2, 3])
            })
            .also("truth values", || {
                let x = Tensor::from([[[true, false]]]);
                Ok(ops::unfold(&x, 2, 1, 1, 1, 1)?.to_vec::<bool>() == [false, true, false, true, false, false])
            }),
        fold.also("rows that are no multiple of the taps", move || {
            shape_refused(ops::fold(&Tensor::ones([1, 7, 4], DType::F64), &[3, 3], 2, 1, 0, 1))
        })
        .also("columns that are not the windows", move || shape_refused(ops::fold(&columns(), &[4, 3], 2, 1, 0, 1)))
        .also("another rank", move || shape_refused(ops::fold(&Tensor::ones([8], DType::F64), &[3, 3], 2, 1, 0, 1)))
        .also("no size", move || argument_refused(ops::fold(&columns(), &[3, 3], 0, 1, 0, 1)))
        .also("no length", move || argument_refused(ops::fold(&columns(), &[], 2, 1, 0, 1)))
        .also("a window larger than the image", move || argument_refused(ops::fold(&columns(), &[3, 3], 4, 1, 0, 1)))
        .also("beyond any memory", move || {
            Ok(matches!(ops::fold(&columns(), &[usize::MAX, 3], 2, 1, 0, 1), Err(Error::OutOfMemory { .. })))
        })
        .also("integers", || {
            let x = Tensor::from([[[1i64, 2], [3, 4]]]);
            Ok(ops::fold(&x, &[3], 2, 1, 0, 1)?.to_vec::<i64>() == [1, 5, 4])
        }),
    ]
}
