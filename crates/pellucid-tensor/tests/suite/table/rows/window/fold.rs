//! Unfold (im2col) and fold (col2im).

use super::{WindowGeometry, batched};
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::ops::FoldOptions;
use pellucid_tensor::{DType, Error, Tensor, ops};

/// Returns (row, column, index) for all elements of the columns; the index in `[C, spatial..]` is `None` in the
/// padding.
fn places(channels: usize, dims: &[usize], slide: WindowGeometry) -> Vec<(usize, usize, Option<Vec<usize>>)> {
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

fn shape_of(n: usize, channels: usize, dims: &[usize], slide: WindowGeometry) -> [usize; 3] {
    let columns = (0..dims.len()).map(|a| slide.outputs(a, dims[a])).product();
    [n, channels * slide.size.iter().product::<usize>(), columns]
}

fn unfold_reference(x: &Nd, slide: WindowGeometry) -> Nd {
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

fn fold_reference(x: &Nd, dims: &[usize], slide: WindowGeometry) -> Nd {
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

/// The label, the number of images or `None`, the channels and spatial lengths, and the windows.
type Case = (&'static str, Option<usize>, usize, &'static [usize], WindowGeometry);

/// Returns the cases of both rows.
fn cases() -> [Case; 8] {
    const PLAIN: WindowGeometry =
        WindowGeometry { size: &[2, 2], stride: &[1, 1], padding: &[0, 0], dilation: &[1, 1], ceil: false };
    const LINE: WindowGeometry =
        WindowGeometry { size: &[2], stride: &[1], padding: &[1], dilation: &[2], ceil: false };
    const SPACE: WindowGeometry =
        WindowGeometry { size: &[1, 2, 2], stride: &[1, 1, 2], padding: &[0, 0, 1], dilation: &[1, 1, 1], ceil: false };
    let uneven = WindowGeometry { size: &[2, 3], stride: &[2, 1], padding: &[1, 2], dilation: &[1, 2], ceil: false };
    [
        ("plain", Some(1), 2, &[3, 3], PLAIN),
        ("a number for each axis", Some(1), 1, &[3, 3], uneven),
        ("next to each other", Some(2), 1, &[4, 2], WindowGeometry { stride: &[2, 2], ..PLAIN }),
        ("elements that no window sees", Some(1), 1, &[3, 4], WindowGeometry { stride: &[2, 3], ..PLAIN }),
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
                move |x| ops::unfold(&x[0], slide.fold_options(), spatial),
                move |x| batched(&x[0], spatial, |x| unfold_reference(x, slide)),
            )
            .floats_only();
        let [_, rows, columns] = shape_of(1, channels, dims, slide);
        let shape: Vec<usize> = n.into_iter().chain([rows, columns]).collect();
        fold = fold
            .case(
                label,
                [Input { shape, ..real([]) }],
                move |x| ops::fold(&x[0], dims, slide.fold_options()),
                move |x| batched(&x[0], 1, |x| fold_reference(x, dims, slide)),
            )
            .floats_only();
    }
    let image = || Tensor::ones([1, 2, 3, 3], DType::F64);
    let columns = || Tensor::ones([1, 8, 4], DType::F64);
    vec![
        unfold
            .check("another rank must be an error", move || {
                shape_rejected(ops::unfold(&image(), FoldOptions::new(2), 1))
            })
            .check("too many axes must be an error", move || {
                argument_rejected(ops::unfold(&Tensor::ones([1, 1, 1, 1, 1, 1], DType::F64), FoldOptions::new(1), 4))
            })
            .check("zero spatial axes must be an error", move || {
                argument_rejected(ops::unfold(&Tensor::ones([1, 1], DType::F64), FoldOptions::new(1), 0))
            })
            .check("a size of 0 must be an error", move || {
                argument_rejected(ops::unfold(&image(), FoldOptions::new(0), 2))
            })
            .check("a stride of 0 must be an error", move || {
                argument_rejected(ops::unfold(&image(), FoldOptions { stride: 0.into(), ..FoldOptions::new(2) }, 2))
            })
            .check("a dilation of 0 must be an error", move || {
                argument_rejected(ops::unfold(&image(), FoldOptions { dilation: 0.into(), ..FoldOptions::new(2) }, 2))
            })
            .check("a window larger than the image must be an error", move || {
                argument_rejected(ops::unfold(&image(), FoldOptions::new(4), 2))
            })
            .check("an extreme size must be an error", move || {
                argument_rejected(ops::unfold(
                    &image(),
                    FoldOptions { dilation: 2.into(), ..FoldOptions::new(usize::MAX) },
                    2,
                ))
            })
            .check("a wrong number of values must be an error", move || {
                argument_rejected(ops::unfold(&image(), FoldOptions::new([2, 2, 2]), 2))
            })
            .check("integers", || {
                let x = Tensor::from([[[1i64, 2, 3]]]);
                Ok(ops::unfold(&x, FoldOptions::new(2), 1)?.to_vec::<i64>() == [1, 2, 2, 3])
            })
            .check("booleans", || {
                let x = Tensor::from([[[true, false]]]);
                Ok(ops::unfold(&x, FoldOptions { padding: 1.into(), ..FoldOptions::new(2) }, 1)?.to_vec::<bool>()
                    == [false, true, false, true, false, false])
            }),
        fold.check("a number of rows that is not a multiple of the window size must be an error", move || {
            shape_rejected(ops::fold(&Tensor::ones([1, 7, 4], DType::F64), &[3, 3], FoldOptions::new(2)))
        })
        .check("a wrong number of columns must be an error", move || {
            shape_rejected(ops::fold(&columns(), &[4, 3], FoldOptions::new(2)))
        })
        .check("another rank must be an error", move || {
            shape_rejected(ops::fold(&Tensor::ones([8], DType::F64), &[3, 3], FoldOptions::new(2)))
        })
        .check("a size of 0 must be an error", move || {
            argument_rejected(ops::fold(&columns(), &[3, 3], FoldOptions::new(0)))
        })
        .check("a length of 0 must be an error", move || {
            argument_rejected(ops::fold(&columns(), &[], FoldOptions::new(2)))
        })
        .check("a window larger than the image must be an error", move || {
            argument_rejected(ops::fold(&columns(), &[3, 3], FoldOptions::new(4)))
        })
        .check("a result beyond the memory must be an error", move || {
            Ok(matches!(ops::fold(&columns(), &[usize::MAX, 3], FoldOptions::new(2)), Err(Error::OutOfMemory { .. })))
        })
        .check("integers", || {
            let x = Tensor::from([[[1i64, 2], [3, 4]]]);
            Ok(ops::fold(&x, &[3], FoldOptions::new(2))?.to_vec::<i64>() == [1, 5, 4])
        }),
    ]
}
