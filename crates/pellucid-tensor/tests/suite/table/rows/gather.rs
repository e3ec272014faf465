//! Selection of elements by index tensors, and accumulation at indices.

use crate::table::nd::{Nd, indices, with};
use crate::table::row::{Row, index, real};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns the position on an axis, counted from its end if it is negative.
fn place(position: f64, len: usize) -> usize {
    if position < 0.0 { (position + len as f64) as usize } else { position as usize }
}

fn selected(x: &[Nd], axis: usize) -> Nd {
    let (x, at) = (&x[0], &x[1]);
    let shape = [&x.shape[..axis], &at.shape, &x.shape[axis + 1..]].concat();
    Nd::from_fn(&shape, |ix| {
        let inner = axis + at.shape.len();
        let here = place(at.at(&ix[axis..inner]), x.shape[axis]);
        x.at(&[&ix[..axis], &[here], &ix[inner..]].concat())
    })
}

fn taken(x: &[Nd], axis: usize) -> Nd {
    Nd::from_fn(&x[1].shape, |ix| x[0].at(&with(ix, axis, place(x[1].at(ix), x[0].shape[axis]))))
}

fn scattered(x: &[Nd], axis: usize, shape: &[usize]) -> Nd {
    let mut sum = Nd::from_fn(shape, |_| 0.0);
    for ix in indices(&x[0].shape) {
        let to = with(&ix, axis, place(x[1].at(&ix), shape[axis]));
        sum.set(&to, sum.at(&to) + x[0].at(&ix));
    }
    sum
}

fn out_of_bounds<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::IndexOutOfBounds { .. })))
}

/// Checks that index tensors of all integer dtypes are equivalent, and that other dtypes are errors.
fn integer_dtypes(call: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<bool> {
    let x = Tensor::arange(0i64, 6, 1).reshape([2, 3]);
    let at = Tensor::from([[1i64, 0, 1]]);
    let expected = call(&x, &at)?.to_vec::<i64>();
    for dtype in DType::ALL {
        let result = call(&x, &at.to_dtype(dtype));
        let fits = match dtype.is_int() {
            true => result?.to_vec::<i64>() == expected,
            false => matches!(result, Err(Error::DTypeMismatch { .. })),
        };
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn rows() -> Vec<Row> {
    let select = |axis| move |x: &[Tensor]| ops::index_select(&x[0], axis, &x[1]);
    let take = |axis| move |x: &[Tensor]| ops::take_along_axis(&x[0], &x[1], axis);
    let add = |axis, shape: [usize; 2]| move |x: &[Tensor]| ops::scatter_add_along(&x[0], &x[1], axis, shape);
    let x = || Tensor::zeros([2, 3], DType::F32);
    let into = |axis, set: bool| {
        move |x: &[Tensor]| match set {
            true => ops::scatter(&x[0], axis, &x[2], &x[1].to_dtype(x[0].dtype())),
            false => ops::scatter_add(&x[0], axis, &x[2], &x[1].to_dtype(x[0].dtype())),
        }
    };
    let put = |x: &[Nd], axis: usize, set: bool| {
        let mut y = x[0].clone();
        for ix in indices(&x[2].shape) {
            let to = with(&ix, axis, place(x[2].at(&ix), y.shape[axis]));
            y.set(&to, if set { x[1].at(&ix) } else { y.at(&to) + x[1].at(&ix) });
        }
        y
    };
    vec![
        Row::new("index_select")
            .case("rows", [real([3, 2]), index([4], 3)], select(0), |x| selected(x, 0))
            .case("columns", [real([2, 3]), index([4], 3)], select(-1), |x| selected(x, 1))
            .floats_only()
            .case("by a matrix", [real([2, 3, 2]), index([2, 2], 3)], select(1), |x| selected(x, 1))
            .floats_only()
            .case("by a number", [real([3, 2]), index([], 3)], select(0), |x| selected(x, 0))
            .floats_only()
            .case("none", [real([3, 2]), index([0], 3)], select(0), |x| selected(x, 0))
            .floats_only()
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::index_select(&x(), 1, &[0i64, 3].into()))
            })
            .check("a negative index out of bounds must be an error", move || {
                out_of_bounds(ops::index_select(&x(), 0, &[-3i64].into()))
            })
            .check("every index of an empty axis must be out of bounds", || {
                out_of_bounds(ops::index_select(&Tensor::zeros([0, 2], DType::F32), 0, &[0i64].into()))
            })
            .check("index tensors must have an integer dtype", || integer_dtypes(|x, at| ops::index_select(x, 0, at))),
        Row::new("take_along_axis")
            .case("along the last", [real([2, 3]), index([2, 4], 3)], take(-1), |x| taken(x, 1))
            .case("along the first", [real([3, 2]), index([5, 2], 3)], take(0), |x| taken(x, 0))
            .floats_only()
            .case("a shorter index", [real([3, 4]), index([2, 2], 4)], take(1), |x| taken(x, 1))
            .floats_only()
            .case("none", [real([3, 2]), index([0, 2], 3)], take(0), |x| taken(x, 0))
            .floats_only()
            .check("an empty index, and an index of another rank", move || {
                Ok(ops::take_along_axis(&x(), &Tensor::zeros([0], DType::I64), 1)?.shape()[..] == [0])
            })
            .check("another rank must be an error", move || {
                Ok(matches!(ops::take_along_axis(&x(), &[0i64].into(), 1), Err(Error::ShapeMismatch { .. })))
            })
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::take_along_axis(&x(), &[[3i64]].into(), 1))
            })
            .check("index tensors must have an integer dtype", || {
                integer_dtypes(|x, at| ops::take_along_axis(x, at, 0))
            }),
        Row::new("unravel_index")
            .untracked()
            .check("row-major positions, negative positions, an empty tensor", || {
                let positions = Tensor::from([[0i32, 5], [7, 11], [12, -1]]);
                let places = ops::unravel_index(&positions, [3, 4])?;
                let numbers = ops::unravel_index(&Tensor::zeros([0], DType::I64), [2, 2, 2])?;
                Ok(places[0].to_vec::<i64>() == [0, 1, 1, 2, 0, 2]
                    && places[1].to_vec::<i64>() == [0, 1, 3, 3, 0, 3]
                    && places.iter().all(|p| p.shape()[..] == [3, 2] && p.dtype() == DType::I64)
                    && numbers.len() == 3
                    && ops::unravel_index(&positions, ())?.is_empty())
            })
            .check("positions of float dtype must be an error", || {
                Ok(matches!(ops::unravel_index(&Tensor::from([0.5]), [2]), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("scatter_add_along")
            .scale(2.0)
            .case("repeated indices", [real([2, 4]), index([2, 4], 3)], add(1, [2, 3]), |x| scattered(x, 1, &[2, 3]))
            .case("along the first", [real([5, 2]), index([5, 2], 3)], add(0, [3, 2]), |x| scattered(x, 0, &[3, 2]))
            .floats_only()
            .case("a wider target", [real([1, 2]), index([1, 2], 3)], add(1, [2, 3]), |x| scattered(x, 1, &[2, 3]))
            .floats_only()
            .case("nothing", [real([0, 2]), index([0, 2], 3)], add(0, [3, 2]), |x| scattered(x, 0, &[3, 2]))
            .floats_only()
            .check("values of another shape must be an error", || {
                let result = ops::scatter_add_along(&Tensor::from([[1.0]]), &[[0i64, 1]].into(), 1, [1, 2]);
                Ok(matches!(result, Err(Error::ShapeMismatch { .. })))
            })
            .check("an index out of bounds must be an error", || {
                out_of_bounds(ops::scatter_add_along(&Tensor::from([[1.0]]), &[[2i64]].into(), 1, [1, 2]))
            }),
        Row::new("scatter")
            .case("repeated indices", [real([2, 3]), real([2, 4]), index([2, 4], 3)], into(1, true), move |x| {
                put(x, 1, true)
            })
            .floats_only()
            .case("a shorter index", [real([3, 4]), real([3, 3]), index([2, 2], 4)], into(-1, true), move |x| {
                put(x, 1, true)
            })
            .floats_only()
            .case("along the first", [real([3, 2]), real([2, 2]), index([2, 2], 3)], into(0, true), move |x| {
                put(x, 0, true)
            })
            .floats_only()
            .case("nothing", [real([3, 2]), real([0, 2]), index([0, 2], 3)], into(0, true), |x| x[0].clone())
            .floats_only()
            .check("every dtype", || {
                DType::ALL.into_iter().try_fold(true, |all, dtype| {
                    let (x, one) = (Tensor::zeros([2], dtype), Tensor::ones([1], dtype));
                    let y = ops::scatter(&x, 0, &[1i64].into(), &one)?;
                    Ok(all && y.dtype() == dtype && y.to_dtype(DType::I64).to_vec::<i64>() == [0, 1])
                })
            })
            .check("values of another dtype must be an error", move || {
                let result = ops::scatter(&x(), 1, &[[0i64]].into(), &Tensor::from([[1.0f64]]));
                Ok(matches!(result, Err(Error::DTypeMismatch { .. })))
            })
            .check("fewer values than indices must be an error", move || {
                let result = ops::scatter(&x(), 1, &[[0i64, 1]].into(), &Tensor::from([[1f32]]));
                Ok(matches!(result, Err(Error::ShapeMismatch { .. })))
            })
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::scatter(&x(), 1, &[[3i64]].into(), &Tensor::from([[1f32]])))
            }),
        Row::new("scatter_add")
            .scale(4.0)
            .case("repeated indices", [real([2, 3]), real([2, 4]), index([2, 4], 3)], into(1, false), move |x| {
                put(x, 1, false)
            })
            .floats_only()
            .case("a shorter index", [real([3, 4]), real([3, 3]), index([2, 2], 4)], into(-1, false), move |x| {
                put(x, 1, false)
            })
            .floats_only()
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::scatter_add(&x(), 1, &[[-4i64]].into(), &Tensor::from([[1f32]])))
            }),
        nonzero(),
        Row::new("flatnonzero")
            .check("row-major positions in all axes, for every dtype", || {
                let x = Tensor::from([[0i64, 3], [1, 0], [0, 1]]);
                let hits = |dtype| Ok::<_, Error>(ops::flatnonzero(&x.to_dtype(dtype))?.to_vec::<i64>());
                DType::ALL.into_iter().try_fold(true, |all, dtype| Ok(all && hits(dtype)? == [1, 2, 5]))
            })
            .check("a transposed tensor, a 0-d tensor and an empty one", || {
                let x = Tensor::from([[0.0, 3.0], [f64::NAN, -0.0]]);
                let shapes_fit = ops::flatnonzero(&Tensor::zeros([0, 2], DType::F32))?.shape()[..] == [0];
                let scalar = ops::flatnonzero(&Tensor::from(2.0))?.to_vec::<i64>() == [0];
                Ok(ops::flatnonzero(&x.t())?.to_vec::<i64>() == [1, 2] && shapes_fit && scalar)
            }),
    ]
}

fn nonzero() -> Row {
    Row::new("nonzero")
        .check("row-major positions, one vector for each axis", || {
            let found = ops::nonzero(&Tensor::from([[0.0, 2.0, f64::NAN], [-1.0, 0.0, -0.0]]))?;
            let rows: Vec<Vec<i64>> = found.iter().map(|t| t.to_vec()).collect();
            Ok(rows == [[0, 0, 1], [1, 2, 0]] && found.iter().all(|t| t.dtype() == DType::I64))
        })
        .check("every dtype", || {
            let hits = |dtype| {
                Ok::<_, Error>(ops::nonzero(&Tensor::from([0i64, 3, 0, 1]).to_dtype(dtype))?[0].to_vec::<i64>())
            };
            DType::ALL.into_iter().try_fold(true, |all, dtype| Ok(all && hits(dtype)? == [1, 3]))
        })
        .check("an empty tensor", || {
            Ok(ops::nonzero(&Tensor::zeros([0, 2], DType::F32))?.iter().all(|t| t.shape()[..] == [0]))
        })
        .check("a 0-d tensor must be an error, since it has no axis", || {
            Ok(ops::nonzero(&Tensor::from(1.0))?.is_empty())
        })
        .check("a transposed matrix", || {
            let x = Tensor::from([[1i64, 0], [1, 0]]);
            Ok(ops::nonzero(&x.t())?[1].to_vec::<i64>() == [0, 1])
        })
}
