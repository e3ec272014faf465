//! Pooling, compared with loops over every element of every window.

use super::{WindowGeometry, batched, largest};
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::ops::{AvgPoolDivisor, PoolOptions};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

const LINE: WindowGeometry = WindowGeometry { size: &[2], stride: &[2], padding: &[0], dilation: &[1], ceil: false };
const PLANE: WindowGeometry =
    WindowGeometry { size: &[2, 2], stride: &[2, 2], padding: &[0, 0], dilation: &[1, 1], ceil: false };
const SPACE: WindowGeometry =
    WindowGeometry { size: &[2, 2, 1], stride: &[2, 2, 1], padding: &[0, 0, 0], dilation: &[1, 1, 1], ceil: false };

/// A geometry whose two axes differ in every parameter.
const UNEVEN: WindowGeometry =
    WindowGeometry { size: &[2, 3], stride: &[1, 2], padding: &[1, 0], dilation: &[2, 1], ceil: false };
/// The same geometry without dilation, for average and norm pools.
const DENSE: WindowGeometry = WindowGeometry { padding: &[1, 1], dilation: &[1, 1], ..UNEVEN };

impl WindowGeometry {
    fn pool(&self) -> PoolOptions {
        PoolOptions {
            // The default stride is the window size.
            stride: (self.stride != self.size).then(|| self.stride.into()),
            padding: self.padding.into(),
            dilation: self.dilation.into(),
            ceil: self.ceil,
            ..PoolOptions::new(self.size)
        }
    }
}

fn input(shape: &[usize]) -> [Input; 1] {
    [Input { shape: shape.to_vec(), ..real([]) }]
}

fn ones(spatial: usize, len: usize) -> Tensor {
    let shape: Vec<usize> = [1, 2].into_iter().chain(std::iter::repeat_n(len, spatial)).collect();
    Tensor::ones(shape, DType::F64)
}

/// Adds the checks of errors that all pools share.
fn with_error_checks(row: Row, spatial: usize, call: fn(&Tensor, PoolOptions) -> Result<Tensor>) -> Row {
    row.check("another rank must be an error", move || {
        shape_rejected(call(&Tensor::ones([2], DType::F64), PoolOptions::new(1)))
    })
    .check("a size of 0 must be an error", move || argument_rejected(call(&ones(spatial, 3), PoolOptions::new(0))))
    .check("a stride of 0 must be an error", move || {
        argument_rejected(call(&ones(spatial, 3), PoolOptions { stride: Some(0.into()), ..PoolOptions::new(2) }))
    })
    .check("a window larger than the axis must be an error", move || {
        argument_rejected(call(&ones(spatial, 3), PoolOptions::new(4)))
    })
    .check("a wrong number of values must be an error", move || {
        argument_rejected(call(&ones(spatial, 3), PoolOptions::new([1, 1, 1, 1])))
    })
    .check("an empty axis must be an error", move || Ok(call(&ones(spatial, 0), PoolOptions::new(1)).is_err()))
    .check("an extreme size must be an error", move || {
        Ok(call(&ones(spatial, 3), PoolOptions::new(usize::MAX)).is_err())
    })
    .check("an extreme stride", move || {
        argument_rejected(call(
            &ones(spatial, 3),
            PoolOptions { stride: Some(usize::MAX.into()), ceil: true, ..PoolOptions::new(3) },
        ))
    })
    .check("an extreme dilation must be an error", move || {
        argument_rejected(call(&ones(spatial, 3), PoolOptions { dilation: (1 << 63).into(), ..PoolOptions::new(3) }))
    })
}

pub(super) fn rows() -> Vec<Row> {
    [max_pools(), avg_pools(), lp_pools()].into_iter().flatten().collect()
}

/// Adds a case of a pool that returns values and positions.
fn max_case(
    row: Row,
    label: &str,
    call: fn(&Tensor, PoolOptions) -> Result<(Tensor, Tensor)>,
    shape: &[usize],
    slide: WindowGeometry,
) -> Row {
    row.outputs(
        label,
        input(shape),
        move |x| call(&x[0], slide.pool()).map(|(values, positions)| vec![values, positions]),
        move |x| {
            let spatial = slide.size.len();
            let values = batched(&x[0], spatial, |x| slide.windows(x, |_, all| largest(all).1));
            let positions = batched(&x[0], spatial, |x| slide.windows(x, |_, all| largest(all).0 as f64));
            vec![values, positions]
        },
    )
    .floats_only()
}

/// Adds the checks of max pools.
fn with_max_checks(row: Row, call: fn(&Tensor, PoolOptions) -> Result<(Tensor, Tensor)>, spatial: usize) -> Row {
    row.rules([Rule::Any, Rule::Always(DType::I64)])
        .check("a dilation of 0 must be an error", move || {
            argument_rejected(call(&ones(spatial, 3), PoolOptions { dilation: 0.into(), ..PoolOptions::new(2) }))
        })
        .check("a padding of more than half a window must be an error", move || {
            argument_rejected(call(&ones(spatial, 3), PoolOptions { padding: 2.into(), ..PoolOptions::new(2) }))
        })
        .check("an extreme padding must be an error", move || {
            argument_rejected(call(
                &ones(spatial, 3),
                PoolOptions { padding: usize::MAX.into(), ..PoolOptions::new(2) },
            ))
        })
        .check("integers must keep their dtype", move || {
            let (values, positions) = call(&ones(spatial, 2).to_dtype(DType::I32), PoolOptions::new(2))?;
            Ok(values.dtype() == DType::I32 && values.to_vec::<i32>() == [1, 1] && positions.to_vec::<i64>() == [0, 0])
        })
        .check("booleans must be preserved", move || {
            Ok(call(&ones(spatial, 2).to_dtype(DType::Bool), PoolOptions::new(2))?.0.to_vec::<bool>() == [true, true])
        })
}

fn max_pools() -> Vec<Row> {
    let line = |row, label, shape: &[usize], slide| max_case(row, label, ops::max_pool1d, shape, slide);
    let row = Row::new("max_pool1d");
    let row = line(row, "next to each other", &[2, 2, 5], LINE);
    let row = line(row, "overlapping", &[1, 2, 6], WindowGeometry { size: &[3], stride: &[1], ..LINE });
    let row = line(row, "apart", &[1, 2, 7], WindowGeometry { stride: &[3], ..LINE });
    let row = line(row, "padding", &[1, 2, 4], WindowGeometry { size: &[3], padding: &[1], ..LINE });
    let row = line(row, "dilation", &[1, 2, 6], WindowGeometry { stride: &[1], dilation: &[3], ..LINE });
    let row = line(row, "ceil", &[1, 2, 5], WindowGeometry { ceil: true, ..LINE });
    let row = line(
        row,
        "ceil, begun in the padding",
        &[1, 1, 4],
        WindowGeometry { padding: &[1], stride: &[3], ceil: true, ..LINE },
    );
    let row = line(row, "one image", &[2, 4], LINE);
    let row = line(row, "no image", &[0, 2, 4], LINE);
    let row = row.check("zero channels", || {
        shape_rejected(ops::max_pool1d(&Tensor::zeros([2, 0, 4], DType::F32), PoolOptions::new(2)))
    });
    let line = with_max_checks(with_error_checks(row, 1, |x, p| Ok(ops::max_pool1d(x, p)?.0)), ops::max_pool1d, 1);

    let plane = |row, label, shape: &[usize], slide| max_case(row, label, ops::max_pool2d, shape, slide);
    let row = Row::new("max_pool2d");
    let row = plane(row, "next to each other", &[1, 2, 4, 4], PLANE);
    let row = plane(row, "a number for each axis", &[1, 1, 3, 5], UNEVEN);
    let row = plane(row, "ceil", &[1, 1, 3, 5], WindowGeometry { ceil: true, ..UNEVEN });
    let row = plane(row, "one image", &[2, 3, 3], WindowGeometry { stride: &[1, 1], ..PLANE });
    let row = plane(row, "no image", &[0, 1, 4, 4], PLANE);
    let overlapping = WindowGeometry { size: &[3, 3], padding: &[1, 1], ..PLANE };
    let row = plane(row, "large", &[2, 5, 23, 37], overlapping).long();
    let plane = with_max_checks(with_error_checks(row, 2, |x, p| Ok(ops::max_pool2d(x, p)?.0)), ops::max_pool2d, 2);

    let space = |row, label, shape: &[usize], slide| max_case(row, label, ops::max_pool3d, shape, slide);
    let row = Row::new("max_pool3d");
    let row = space(row, "next to each other", &[1, 2, 2, 2, 3], SPACE);
    let uneven =
        WindowGeometry { size: &[2, 1, 3], stride: &[1, 2, 2], padding: &[1, 0, 1], dilation: &[2, 1, 1], ceil: true };
    let row = space(row, "a number for each axis", &[1, 1, 3, 2, 4], uneven);
    let row = space(row, "one image", &[1, 2, 3, 2], SPACE);
    let row = space(row, "no image", &[0, 1, 2, 2, 2], SPACE);
    let space = with_max_checks(with_error_checks(row, 3, |x, p| Ok(ops::max_pool3d(x, p)?.0)), ops::max_pool3d, 3);
    vec![line, plane, space]
}

/// Returns the divisor of the mean of the window at `o`.
fn divided_by(slide: WindowGeometry, divisor: AvgPoolDivisor, o: &[usize], dims: &[usize], inside: usize) -> f64 {
    match divisor {
        AvgPoolDivisor::Number(number) => number,
        AvgPoolDivisor::Inside => inside as f64,
        AvgPoolDivisor::Window => {
            // Counts the taps that are inside the padded axes.
            let within = |tap: &&Vec<usize>| {
                (0..dims.len()).all(|a| o[a] * slide.stride[a] + tap[a] < dims[a] + 2 * slide.padding[a])
            };
            indices(slide.size).iter().filter(within).count() as f64
        }
    }
}

type Average = fn(&Tensor, PoolOptions, AvgPoolDivisor) -> Result<Tensor>;

fn avg_case(
    row: Row,
    label: &str,
    call: Average,
    shape: &[usize],
    slide: WindowGeometry,
    divisor: AvgPoolDivisor,
) -> Row {
    let mean = move |x: &Nd| {
        slide.windows(x, |o, all| {
            let sum: f64 = all.iter().map(|(_, v)| v).sum();
            sum / divided_by(slide, divisor, o, &x.shape[2..], all.len())
        })
    };
    row.case(
        label,
        input(shape),
        move |x| call(&x[0], slide.pool(), divisor),
        move |x| batched(&x[0], slide.size.len(), mean),
    )
    .floats_only()
}

/// Adds the checks of average pools.
fn with_average_checks(row: Row, call: Average, spatial: usize) -> Row {
    row.scale(2.0)
        .check("a dilation must be an error", move || {
            argument_rejected(call(
                &ones(spatial, 3),
                PoolOptions { dilation: 2.into(), ..PoolOptions::new(2) },
                AvgPoolDivisor::Window,
            ))
        })
        .check("integers must give floats, booleans must be an error", move || {
            let (x, truth) = (ones(spatial, 2).to_dtype(DType::I64) * 3, ones(spatial, 2).to_dtype(DType::Bool));
            let y = call(&x, PoolOptions::new(2), AvgPoolDivisor::Window)?;
            let rejected = call(&truth, PoolOptions::new(2), AvgPoolDivisor::Window);
            Ok(y.to_vec::<f32>() == [3.0; 2] && matches!(rejected, Err(Error::DTypeMismatch { .. })))
        })
        .check("a divisor of 0 must be an error", move || {
            argument_rejected(call(&ones(spatial, 3), PoolOptions::new(2), AvgPoolDivisor::Number(0.0)))
        })
        .check("a padding of more than half a window must be an error", move || {
            argument_rejected(call(
                &ones(spatial, 3),
                PoolOptions { padding: 2.into(), ..PoolOptions::new(2) },
                AvgPoolDivisor::Window,
            ))
        })
        .check("an extreme padding must be an error", move || {
            argument_rejected(call(
                &ones(spatial, 3),
                PoolOptions { padding: usize::MAX.into(), ..PoolOptions::new(2) },
                AvgPoolDivisor::Window,
            ))
        })
}

fn avg_pools() -> Vec<Row> {
    use AvgPoolDivisor::{Inside, Number, Window};
    let call: Average = ops::avg_pool1d;
    let line = |row, label, shape: &[usize], slide, divisor| avg_case(row, label, call, shape, slide, divisor);
    let row = Row::new("avg_pool1d");
    let row = line(row, "next to each other", &[2, 2, 5], LINE, Window);
    let row = line(row, "overlapping", &[1, 2, 6], WindowGeometry { size: &[3], stride: &[1], ..LINE }, Window);
    let padded = WindowGeometry { size: &[3], padding: &[1], ..LINE };
    let row = line(row, "padding counts", &[1, 2, 4], padded, Window);
    let row = line(row, "padding does not count", &[1, 2, 4], padded, Inside);
    let row = line(row, "another divisor", &[1, 2, 4], padded, Number(-2.5));
    let row = line(row, "ceil", &[1, 1, 5], WindowGeometry { ceil: true, ..LINE }, Window);
    let row = line(row, "ceil and padding", &[1, 1, 6], WindowGeometry { ceil: true, ..padded }, Window);
    let row = line(row, "ceil, inside", &[1, 1, 6], WindowGeometry { ceil: true, ..padded }, Inside);
    let row = line(row, "one image", &[2, 4], LINE, Window);
    let row = line(row, "no image", &[0, 2, 4], LINE, Window);
    let line = with_average_checks(with_error_checks(row, 1, |x, p| ops::avg_pool1d(x, p, Window)), call, 1);

    let call: Average = ops::avg_pool2d;
    let plane = |row, label, shape: &[usize], slide, divisor| avg_case(row, label, call, shape, slide, divisor);
    let row = Row::new("avg_pool2d");
    let row = plane(row, "next to each other", &[1, 2, 4, 4], PLANE, Window);
    let row = plane(row, "a number for each axis", &[1, 1, 3, 4], DENSE, Window);
    let row = plane(row, "inside", &[1, 1, 3, 4], DENSE, Inside);
    let row = plane(row, "ceil, inside", &[1, 1, 3, 4], WindowGeometry { ceil: true, ..DENSE }, Inside);
    let row = plane(row, "another divisor", &[1, 1, 3, 4], DENSE, Number(3.0));
    let row = plane(row, "one image", &[2, 3, 3], WindowGeometry { stride: &[1, 1], ..PLANE }, Window);
    let row = plane(row, "no image", &[0, 1, 4, 4], PLANE, Inside);
    let plane = with_average_checks(with_error_checks(row, 2, |x, p| ops::avg_pool2d(x, p, Window)), call, 2);

    let call: Average = ops::avg_pool3d;
    let space = |row, label, shape: &[usize], slide, divisor| avg_case(row, label, call, shape, slide, divisor);
    let row = Row::new("avg_pool3d");
    let row = space(row, "next to each other", &[1, 2, 2, 2, 3], SPACE, Window);
    let uneven =
        WindowGeometry { size: &[2, 1, 3], stride: &[1, 2, 2], padding: &[1, 0, 1], dilation: &[1, 1, 1], ceil: true };
    let row = space(row, "a number for each axis", &[1, 1, 2, 2, 4], uneven, Window);
    let row = space(row, "inside", &[1, 1, 2, 2, 4], uneven, Inside);
    let row = space(row, "another divisor", &[1, 1, 2, 2, 4], uneven, Number(2.0));
    let row = space(row, "one image", &[1, 2, 3, 2], SPACE, Window);
    let space = with_average_checks(with_error_checks(row, 3, |x, p| ops::avg_pool3d(x, p, Window)), call, 3);
    vec![line, plane, space]
}

type Norm = fn(&Tensor, f64, PoolOptions) -> Result<Tensor>;

fn lp_case(row: Row, label: &str, call: Norm, shape: &[usize], slide: WindowGeometry, p: f64) -> Row {
    let taps = slide.size.iter().product::<usize>() as f64;
    // The part of a window beyond the padded axis counts as the mean of the rest.
    let full = move |all: &[(usize, f64)]| all.iter().map(|(_, v)| v.powf(p)).sum::<f64>() * taps / all.len() as f64;
    let norm = move |x: &Nd| slide.windows(x, |_, all| full(all).powf(1.0 / p));
    row.case(
        label,
        input(shape).map(|i| i.within(0.3..=2.0)),
        move |x| call(&x[0], p, slide.pool()),
        move |x| batched(&x[0], slide.size.len(), norm),
    )
    .floats_only()
}

/// Adds the checks of norm pools.
fn with_norm_checks(row: Row, call: Norm, spatial: usize) -> Row {
    // The result for −0, and for NaN with infinity, depends on the powers.
    row.scale(2.0)
        .ulps(16.0)
        .check("p = 0 must be an error", move || argument_rejected(call(&ones(spatial, 3), 0.0, PoolOptions::new(2))))
        .check("padding must be an error", move || {
            argument_rejected(call(&ones(spatial, 3), 2.0, PoolOptions { padding: 1.into(), ..PoolOptions::new(2) }))
        })
        .check("dilation must be an error", move || {
            argument_rejected(call(&ones(spatial, 3), 2.0, PoolOptions { dilation: 2.into(), ..PoolOptions::new(2) }))
        })
        .check("integers and booleans must give floats", move || {
            let (x, truth) = (ones(spatial, 2).to_dtype(DType::I64) * 3, ones(spatial, 2).to_dtype(DType::Bool));
            let (y, z) = (call(&x, 1.0, PoolOptions::new(2))?, call(&truth, 1.0, PoolOptions::new(2))?);
            let taps = f32::powi(2.0, spatial as i32);
            Ok(y.to_vec::<f32>() == [3.0 * taps; 2] && z.to_vec::<f32>() == [taps; 2])
        })
        .check("a negative sum must give NaN", move || {
            let y: Vec<f64> = call(&-ones(spatial, 2), 3.0, PoolOptions::new(2))?.to_vec();
            Ok(y.iter().all(|v| v.is_nan()))
        })
}

fn lp_pools() -> Vec<Row> {
    let call: Norm = ops::lp_pool1d;
    let row = lp_case(Row::new("lp_pool1d"), "p = 2", call, &[2, 2, 5], LINE, 2.0);
    let row = lp_case(row, "p = 1", call, &[1, 2, 5], LINE, 1.0);
    let row =
        lp_case(row, "p = 3, overlapping", call, &[1, 2, 5], WindowGeometry { size: &[3], stride: &[1], ..LINE }, 3.0);
    let row = lp_case(row, "a broken p", call, &[1, 2, 4], LINE, 1.5);
    let row = lp_case(row, "ceil", call, &[1, 2, 5], WindowGeometry { ceil: true, ..LINE }, 2.0);
    let row = lp_case(row, "one image", call, &[2, 4], LINE, 2.0);
    let row = lp_case(row, "no image", call, &[0, 2, 4], LINE, 2.0);
    let line = with_norm_checks(with_error_checks(row, 1, |x, p| ops::lp_pool1d(x, 2.0, p)), call, 1);

    let call: Norm = ops::lp_pool2d;
    let row = lp_case(Row::new("lp_pool2d"), "p = 2", call, &[1, 2, 4, 4], PLANE, 2.0);
    let uneven = WindowGeometry { padding: &[0, 0], ceil: true, ..DENSE };
    let row = lp_case(row, "a number for each axis", call, &[1, 1, 3, 4], uneven, 3.0);
    let row = lp_case(row, "one image", call, &[1, 3, 3], PLANE, 2.0);
    let plane = with_norm_checks(with_error_checks(row, 2, |x, p| ops::lp_pool2d(x, 2.0, p)), call, 2);

    let call: Norm = ops::lp_pool3d;
    let row = lp_case(Row::new("lp_pool3d"), "p = 2", call, &[1, 1, 2, 2, 3], SPACE, 2.0);
    let uneven = WindowGeometry { size: &[2, 1, 2], stride: &[1, 2, 2], ..SPACE };
    let row = lp_case(row, "a number for each axis", call, &[1, 1, 3, 2, 4], uneven, 3.0);
    let row = lp_case(row, "one image", call, &[1, 2, 2, 2], SPACE, 2.0);
    let space = with_norm_checks(with_error_checks(row, 3, |x, p| ops::lp_pool3d(x, 2.0, p)), call, 3);
    vec![line, plane, space]
}
