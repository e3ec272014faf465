//! Max unpooling: values are written to their positions.

use super::batched;
use crate::table::nd::{Nd, indices};
use crate::table::row::{Input, Row, real, shape_rejected};
use pellucid_tensor::ops::PoolOptions;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

type Call = fn(&Tensor, &Tensor, &[usize]) -> Result<Tensor>;

fn unpooled(x: &Nd, positions: &Nd, dims: &[usize]) -> Nd {
    let mut flat = Nd::from_fn(&[x.shape[0], x.shape[1], dims.iter().product()], |_| 0.0);
    for ix in indices(&x.shape) {
        flat.set(&[ix[0], ix[1], positions.at(&ix) as usize], x.at(&ix));
    }
    flat.reshape(&[&x.shape[..2], dims].concat())
}

/// Returns positions in descending order; each plane starts one position lower than the previous plane.
fn positions(shape: &[usize], dims: &[usize]) -> Vec<i64> {
    let (places, each): (usize, usize) = (dims.iter().product(), shape[shape.len() - dims.len()..].iter().product());
    let place = |k: usize| (places - 1 - (k % each + k / each) % places) as i64;
    (0..shape.iter().product()).map(place).collect()
}

fn case(row: Row, label: &str, call: Call, shape: &'static [usize], dims: &'static [usize]) -> Row {
    row.case(
        label,
        [Input { shape: shape.to_vec(), ..real([]) }],
        move |x| call(&x[0], &Tensor::new(positions(shape, dims), shape), dims),
        move |x| {
            let at = Nd { shape: shape.to_vec(), data: positions(shape, dims).iter().map(|&p| p as f64).collect() };
            batched(&x[0], dims.len(), |image| unpooled(image, &at.reshape(&image.shape), dims))
        },
    )
}

pub(super) fn rows() -> Vec<Row> {
    let place = |at: i64| Tensor::from([[[at]]]);
    let one = || Tensor::from([[[1.5]]]);
    let out_of_bounds = |at: i64| {
        let rejected = ops::max_unpool1d(&Tensor::from([[[1.5]]]), &Tensor::from([[[at]]]), &[4]);
        Ok(matches!(rejected, Err(Error::IndexOutOfBounds { .. })))
    };
    let call: Call = ops::max_unpool1d;
    let row = case(Row::new("max_unpool1d"), "a line", call, &[1, 2, 2], &[5]);
    let row = case(row, "one image", call, &[2, 2], &[5]).floats_only();
    let row = case(row, "no image", call, &[0, 2, 2], &[5]).floats_only();
    let line = row
        .check("a range beyond the end must be an error", move || out_of_bounds(4))
        .check("an extreme start must be an error", move || out_of_bounds(i64::MAX))
        .check("an extreme negative position must be an error", move || out_of_bounds(i64::MIN))
        .check("the last of several values for one position must be stored, and each must receive a gradient", || {
            let x = Tensor::from([[1.0, 2.0, 3.0]]).requires_grad_(true);
            let y = ops::max_unpool1d(&x, &Tensor::from([[1i64, 1, 0]]), &[3])?;
            ops::sum(&ops::mul(&y, Tensor::from([5.0, 7.0, 9.0]))?, ..)?.backward();
            let gradient = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
            Ok(y.to_vec::<f64>() == [3.0, 2.0, 0.0] && gradient == [7.0, 7.0, 5.0])
        })
        .check("positions of another shape must be an error", move || {
            shape_rejected(ops::max_unpool1d(&Tensor::from([[[1.0, 2.0]]]), &place(0), &[4]))
        })
        .check("a wrong number of lengths must be an error", move || {
            shape_rejected(ops::max_unpool1d(&one(), &place(0), &[4, 4]))
        })
        .check("positions of float dtype must be an error", move || {
            Ok(matches!(ops::max_unpool1d(&one(), &one(), &[4]), Err(Error::DTypeMismatch { .. })))
        });

    let call: Call = ops::max_unpool2d;
    let row = case(Row::new("max_unpool2d"), "a plane", call, &[1, 2, 1, 2], &[2, 3]);
    let row = case(row, "one image", call, &[2, 2, 1], &[2, 3]).floats_only();
    let plane = row
        .check("a result beyond the memory must be an error", || {
            let (x, at) = (Tensor::ones([1, 1, 1], DType::F64), Tensor::zeros([1, 1, 1], DType::I64));
            Ok(matches!(ops::max_unpool2d(&x, &at, &[1 << 40, 1 << 40]), Err(Error::OutOfMemory { .. })))
        })
        .check("unpooling must restore the maxima of a pool", || {
            let x = Tensor::from([[[[1.0, 4.0], [3.0, 2.0]]]]);
            let (values, positions) = ops::max_pool2d(&x, PoolOptions::new(2))?;
            Ok(ops::max_unpool2d(&values, &positions, &[2, 2])?.to_vec::<f64>() == [0.0, 4.0, 0.0, 0.0])
        });

    let call: Call = ops::max_unpool3d;
    let row = case(Row::new("max_unpool3d"), "a space", call, &[1, 1, 1, 2, 1], &[2, 1, 3]);
    let row = case(row, "one image", call, &[1, 1, 2, 1], &[2, 2, 1]).floats_only();
    let space = row.check("another rank must be an error", || {
        shape_rejected(ops::max_unpool3d(&Tensor::ones([2], DType::F64), &Tensor::zeros([2], DType::I64), &[1, 1, 1]))
    });
    vec![line, plane, space]
}
