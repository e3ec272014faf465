//! Padding.

use crate::table::nd::Nd;
use crate::table::row::{Row, real};
use pellucid_tensor::ops::PaddingMode::{self, Circular, Constant, Reflect, Replicate};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Pads x. `from` maps the distance of an index to the old start to an index of x, or to `None` for the fill value.
fn padded(x: &Nd, pairs: &[(isize, isize)], rest: f64, from: impl Fn(isize, isize) -> Option<isize>) -> Nd {
    let shape: Vec<usize> = x.shape.iter().zip(pairs).map(|(&len, &(b, a))| (len as isize + b + a) as usize).collect();
    Nd::from_fn(&shape, |ix| {
        let place = |k: usize| from(ix[k] as isize - pairs[k].0, x.shape[k] as isize).map(|i| i as usize);
        let own: Option<Vec<usize>> = (0..ix.len()).map(place).collect();
        own.map_or(rest, |own| x.at(&own))
    })
}

fn inside(i: isize, len: isize) -> Option<isize> {
    (0..len).contains(&i).then_some(i)
}

fn rejected(width: impl Into<ops::PadWidth>, mode: PaddingMode) -> Result<bool> {
    let x = Tensor::zeros([2, 3], DType::F32);
    Ok(matches!(ops::pad(&x, width, mode), Err(Error::InvalidArgument { .. })))
}

pub(super) fn rows() -> Vec<Row> {
    let zero = Constant(0.into());
    vec![
        Row::new("pad")
            .case(
                "the same everywhere",
                [real([2, 3])],
                move |x| ops::pad(&x[0], 1, zero),
                |x| padded(&x[0], &[(1, 1), (1, 1)], 0.0, inside),
            )
            .case(
                "a pair for all",
                [real([2, 3])],
                |x| ops::pad(&x[0], (0, 2), Constant(1.into())),
                |x| padded(&x[0], &[(0, 2), (0, 2)], 1.0, inside),
            )
            .floats_only()
            .case(
                "taken away and added",
                [real([2, 4])],
                |x| ops::pad(&x[0], [(1, -1), (-1, 2)], Constant(0.5.into())),
                |x| padded(&x[0].narrow(0, 0, 1).narrow(1, 1, 3), &[(1, 0), (0, 2)], 0.5, inside),
            )
            .floats_only()
            .case("only taken away", [real([4])], move |x| ops::pad(&x[0], (-1, -1), zero), |x| x[0].narrow(0, 1, 2))
            .floats_only()
            .case("of nothing", [real([0])], move |x| ops::pad(&x[0], 1, zero), |_| Nd::from_fn(&[2], |_| 0.0))
            .floats_only()
            .case(
                "reflected",
                [real([2, 3])],
                |x| ops::pad(&x[0], [(1, 0), (2, 2)], Reflect),
                |x| {
                    let mirror = |i: isize, len: isize| {
                        let i = if i < 0 { -i } else { i };
                        Some(if i >= len { 2 * (len - 1) - i } else { i })
                    };
                    padded(&x[0], &[(1, 0), (2, 2)], 0.0, mirror)
                },
            )
            .floats_only()
            .case(
                "replicated",
                [real([2, 3])],
                |x| ops::pad(&x[0], [(0, 3), (2, 0)], Replicate),
                |x| padded(&x[0], &[(0, 3), (2, 0)], 0.0, |i, len| Some(i.max(0).min(len - 1))),
            )
            .floats_only()
            .case(
                "circular",
                [real([2, 3])],
                |x| ops::pad(&x[0], [(2, 1), (0, 3)], Circular),
                |x| padded(&x[0], &[(2, 1), (0, 3)], 0.0, |i, len| Some((i + len) % len)),
            )
            .floats_only()
            .case(
                "circular, around what is kept",
                [real([5])],
                |x| ops::pad(&x[0], [(2, -2)], Circular),
                |x| padded(&x[0], &[(2, -2)], 0.0, |i, _| Some((i + 3) % 3)),
            )
            .floats_only()
            .case(
                "one pair in a list",
                [real([2, 3])],
                move |x| ops::pad(&x[0], ((1, 0),), zero),
                |x| padded(&x[0], &[(1, 0), (1, 0)], 0.0, inside),
            )
            .floats_only()
            .case(
                "a number and a pair",
                [real([2, 3])],
                move |x| ops::pad(&x[0], (1, (0, 2)), zero),
                |x| padded(&x[0], &[(1, 1), (0, 2)], 0.0, inside),
            )
            .floats_only()
            .check("a wrong number of pairs must be an error", || rejected([(1, 1); 3], zero_mode()))
            .check("removing more than the length must be an error", || rejected([(-2, -1), (0, 0)], zero_mode()))
            .check("an extreme width must be an error", || rejected(isize::MAX, zero_mode()))
            .check("an extreme negative width must be an error", || rejected(isize::MIN, zero_mode()))
            .check("extreme widths of both signs must be an error", || {
                rejected([(isize::MIN, isize::MAX), (0, 0)], Replicate)
            })
            .check("a width beyond the memory must be an error", || {
                let x = Tensor::zeros([2], DType::F32);
                Ok(matches!(ops::pad(&x, (0, 1usize << 60), Replicate), Err(Error::OutOfMemory { .. })))
            })
            .check("a reflection beyond the other end must be an error", || rejected([(2, 0), (0, 0)], Reflect))
            .check("a circular width above the length must be an error", || rejected([(3, 0), (0, 0)], Circular))
            .check("replicating an empty axis must be an error", || {
                let x = Tensor::zeros([0], DType::F32);
                Ok(matches!(ops::pad(&x, 1, Replicate), Err(Error::InvalidArgument { .. })))
            }),
    ]
}

fn zero_mode() -> PaddingMode {
    Constant(0.into())
}
