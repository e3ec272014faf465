//! Scatter operations with reductions, and tensors with parts replaced.

use crate::table::nd::{Nd, indices, with};
use crate::table::row::{Row, argument_rejected, axis_rejected, class, index, real, shape_rejected};
use ops::{EmbeddingBagOptions, EmbeddingOptions, ScatterReduceOp};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Reduces an element and the values that are scattered to it.
fn reduce_values(meeting: ScatterReduceOp, own: f64, with_self: bool, scatter_along: &[f64]) -> f64 {
    if scatter_along.is_empty() {
        return own;
    }
    let all: Vec<f64> = with_self.then_some(own).into_iter().chain(scatter_along.iter().copied()).collect();
    match meeting {
        ScatterReduceOp::Sum => all.iter().sum(),
        ScatterReduceOp::Prod => all.iter().product(),
        ScatterReduceOp::Mean => all.iter().sum::<f64>() / all.len() as f64,
        ScatterReduceOp::Max => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ScatterReduceOp::Min => all.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

/// Scatters the values at `places` to x along an axis, to the positions that the index contains there.
fn scatter_along(
    x: &Nd,
    values: &Nd,
    axis: usize,
    to: impl Fn(&[usize]) -> f64,
    places: &[usize],
    m: ScatterReduceOp,
    own: bool,
) -> Nd {
    let len = x.shape[axis] as f64;
    Nd::from_fn(&x.shape, |ix| {
        let here = |at: &Vec<usize>| with(at, axis, ix[axis]) == ix && (to(at) + len) % len == ix[axis] as f64;
        let scatter_along: Vec<f64> = indices(places).iter().filter(|at| here(at)).map(|at| values.at(at)).collect();
        reduce_values(m, x.at(ix), own, &scatter_along)
    })
}

const MEETINGS: [(ScatterReduceOp, bool); 6] = [
    (ScatterReduceOp::Sum, false),
    (ScatterReduceOp::Prod, true),
    (ScatterReduceOp::Mean, true),
    (ScatterReduceOp::Mean, false),
    (ScatterReduceOp::Max, true),
    (ScatterReduceOp::Min, false),
];

fn out_of_bounds<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::IndexOutOfBounds { .. })))
}

fn reduction_rows() -> Vec<Row> {
    let mut scattered = Row::new("scatter_reduce").scale(8.0).ordinary();
    let mut indexed = Row::new("index_reduce").scale(8.0).ordinary();
    for (m, own) in MEETINGS {
        scattered = scattered
            .case(
                format!("{m:?}, {own}"),
                [real([3, 3]), real([2, 4]), index([2, 4], 3)],
                move |x| ops::scatter_reduce(&x[0], 1, &x[2], &x[1].to_dtype(x[0].dtype()), m, own),
                move |x| scatter_along(&x[0], &x[1], 1, |at| x[2].at(at), &[2, 4], m, own),
            )
            .floats_only();
        indexed = indexed
            .case(
                format!("{m:?}, {own}"),
                [real([3, 2]), real([4, 2]), index([4], 3)],
                move |x| ops::index_reduce(&x[0], 0, &x[2], &x[1].to_dtype(x[0].dtype()), m, own),
                move |x| scatter_along(&x[0], &x[1], 0, |at| x[2].at(&at[..1]), &[4, 2], m, own),
            )
            .floats_only();
    }
    let slopes = |values: Tensor, m| -> Result<Vec<f64>> {
        let (x, v) = (Tensor::from([2.0]).requires_grad_(true), values.requires_grad_(true));
        ops::scatter_reduce(&x, 0, &[0i64, 0].into(), &v, m, true)?.backward();
        Ok([x.grad(), v.grad()]
            .into_iter()
            .flat_map(|g| g.expect("the tensor must have a gradient").to_vec::<f64>())
            .collect())
    };
    let scattered = scattered
        .check("equal extrema must share the gradient", move || {
            Ok(slopes(Tensor::from([2.0, 1.0]), ScatterReduceOp::Max)? == [0.5, 0.5, 0.0])
        })
        .check("the gradient of a product at zeros must be the product of the other factors", move || {
            Ok(slopes(Tensor::from([0.0, 3.0]), ScatterReduceOp::Prod)? == [0.0, 6.0, 0.0])
        })
        .check("integers, and the minimum of their dtype", || {
            let x = Tensor::from([5i8, 5]);
            let least =
                ops::scatter_reduce(&x, 0, &[0i64].into(), &Tensor::from([-128i8]), ScatterReduceOp::Max, false)?;
            let mean =
                ops::scatter_reduce(&x, 0, &[0i64, 0].into(), &Tensor::from([-2i8, -2]), ScatterReduceOp::Mean, true)?;
            Ok(least.to_vec::<i8>() == [-128, 5] && mean.to_vec::<i8>() == [0, 5])
        })
        .check("NaN must propagate", || {
            let y = ops::scatter_reduce(
                &Tensor::from([1.0]),
                0,
                &[0i64].into(),
                &Tensor::from([f64::NAN]),
                ScatterReduceOp::Max,
                true,
            );
            Ok(y?.item::<f64>().is_nan())
        })
        .check("an index out of bounds must be an error", || {
            let x = Tensor::from([1.0]);
            out_of_bounds(ops::scatter_reduce(&x, 0, &[1i64].into(), &x, ScatterReduceOp::Sum, true))
        });
    let indexed = indexed.check("a source of another shape must be an error", || {
        let x = Tensor::zeros([2, 2], DType::F32);
        shape_rejected(ops::index_reduce(&x, 0, &[0i64].into(), &x, ScatterReduceOp::Max, true))
    });
    vec![scattered, indexed]
}

fn slice_rows() -> Vec<Row> {
    let inputs = || [real([3, 2]), real([4, 2]), index([4], 3)];
    let place = |v: f64| (v as isize).rem_euclid(3) as usize;
    let zeros = || Tensor::zeros([3, 2], DType::F64);
    vec![
        Row::new("index_add")
            .scale(8.0)
            .case(
                "twice",
                inputs(),
                |x| ops::index_add(&x[0], 0, &x[2], &x[1].to_dtype(x[0].dtype()), 2),
                |x| {
                    scatter_along(
                        &x[0],
                        &x[1].map(|v| 2.0 * v),
                        0,
                        |at| x[2].at(&at[..1]),
                        &[4, 2],
                        ScatterReduceOp::Sum,
                        true,
                    )
                },
            )
            .floats_only()
            .check("an invalid axis must be an error", move || {
                axis_rejected(ops::index_add(&zeros(), 2, &[0i64].into(), &zeros(), 1))
            })
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::index_add(&zeros(), 0, &[3i64].into(), &Tensor::zeros([1, 2], DType::F64), 1))
            }),
        Row::new("index_copy")
            .case(
                "slices",
                inputs(),
                |x| ops::index_copy(&x[0], 0, &x[2], &x[1].to_dtype(x[0].dtype())),
                move |x| {
                    Nd::from_fn(&[3, 2], |ix| {
                        let last = (0..4).rev().find(|&k| place(x[2].data[k]) == ix[0]);
                        last.map_or(x[0].at(ix), |k| x[1].at(&[k, ix[1]]))
                    })
                },
            )
            .floats_only()
            .check("fewer slices than indices must be an error", move || {
                shape_rejected(ops::index_copy(&zeros(), 0, &[0i64, 1].into(), &Tensor::zeros([1, 2], DType::F64)))
            }),
        Row::new("index_fill")
            .case(
                "a number",
                [real([3, 2]), index([2], 3)],
                |x| ops::index_fill(&x[0], 0, &x[1], 1),
                move |x| {
                    let hit = |i| x[1].data.iter().any(|&v| place(v) == i);
                    Nd::from_fn(&[3, 2], |ix| if hit(ix[0]) { 1.0 } else { x[0].at(ix) })
                },
            )
            .check("a value tensor must receive a gradient", || {
                let value = Tensor::from(5.0).requires_grad_(true);
                ops::sum(&ops::index_fill(&Tensor::zeros([3, 2], DType::F64), 1, &[0i64].into(), &value)?, ..)?
                    .backward();
                Ok(value.grad().expect("the tensor must have a gradient").item::<f64>() == 3.0)
            })
            .check("a value of several elements must be an error", move || {
                shape_rejected(ops::index_fill(&zeros(), 0, &[0i64].into(), Tensor::from([1.0, 2.0])))
            }),
    ]
}

/// Returns x with the k-th value where `place` returns k.
fn replaced(x: &[Nd], place: impl Fn(&[usize]) -> Option<usize>) -> Nd {
    Nd::from_fn(&x[0].shape, |ix| place(ix).map_or(x[0].at(ix), |k| x[1].data[k]))
}

fn part_rows() -> Vec<Row> {
    let cast = |x: &[Tensor]| x[1].to_dtype(x[0].dtype());
    let zeros = || Tensor::zeros([3, 4], DType::F64);
    vec![
        Row::new("put")
            .case(
                "positions",
                [real([2, 3]), real([2])],
                move |x| ops::put(&x[0], &[-1i64, 1].into(), &cast(x), false),
                |x| {
                    replaced(x, |ix| match ix {
                        [1, 2] => Some(0),
                        [0, 1] => Some(1),
                        _ => None,
                    })
                },
            )
            .floats_only()
            .case(
                "added",
                [real([2, 3]), real([2])],
                move |x| ops::put(&x[0], &[1i64, 1].into(), &cast(x), true),
                |x| {
                    Nd::from_fn(&[2, 3], |ix| {
                        x[0].at(ix) + if ix == [0, 1] { x[1].data[0] + x[1].data[1] } else { 0.0 }
                    })
                },
            )
            .floats_only()
            .scale(4.0)
            .check("a wrong number of values must be an error", move || {
                shape_rejected(ops::put(&zeros(), &[0i64].into(), &Tensor::from([1.0, 2.0]), false))
            })
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::put(&zeros(), &[12i64].into(), &Tensor::from([1.0]), false))
            }),
        Row::new("index_put")
            .case(
                "rows, broadcast",
                [real([3, 2]), real([2])],
                move |x| ops::index_put(&x[0], Tensor::from([2i64, 0]), &cast(x), false),
                |x| Nd::from_fn(&[3, 2], |ix| if ix[0] == 1 { x[0].at(ix) } else { x[1].data[ix[1]] }),
            )
            .floats_only()
            .case(
                "repeated places, added",
                [real([3]), real([3])],
                move |x| ops::index_put(&x[0], Tensor::from([1i64, 1, -1]), &cast(x), true),
                |x| {
                    let v = &x[1].data;
                    Nd { shape: vec![3], data: vec![x[0].data[0], x[0].data[1] + v[0] + v[1], x[0].data[2] + v[2]] }
                },
            )
            .floats_only()
            .scale(4.0)
            .check("a mask", || {
                let y = ops::index_put(
                    &Tensor::from([1.0, 2.0, 3.0]),
                    Tensor::from([true, false, true]),
                    &Tensor::from(9.0),
                    false,
                );
                Ok(y?.to_vec::<f64>() == [9.0, 2.0, 9.0])
            })
            .check("values that do not broadcast must be an error", move || {
                shape_rejected(ops::index_put(&zeros(), Tensor::from([0i64]), &Tensor::from([1.0, 2.0]), false))
            }),
        Row::new("masked_scatter")
            .case(
                "in order",
                [real([2, 3]), real([4])],
                move |x| {
                    ops::masked_scatter(&x[0], &Tensor::from([[true, false, true], [false, true, false]]), &cast(x))
                },
                |x| replaced(x, |ix| [[0, 0], [0, 2], [1, 1]].iter().position(|at| ix == at)),
            )
            .floats_only()
            .check("a source with too few elements must be an error", move || {
                out_of_bounds(ops::masked_scatter(&zeros(), &Tensor::ones([3, 4], DType::Bool), &Tensor::from([1.0])))
            })
            .check("an all-false mask must use no values", move || {
                let y = ops::masked_scatter(
                    &zeros(),
                    &Tensor::zeros([3, 4], DType::Bool),
                    &Tensor::zeros([0], DType::F64),
                )?;
                let rejected =
                    ops::masked_scatter(&zeros(), &Tensor::ones([3, 4], DType::Bool), &Tensor::zeros([0], DType::F64));
                Ok(y.shape()[..] == [3, 4] && out_of_bounds(rejected)?)
            })
            .check("a source of another dtype must be an error", move || {
                let rejected =
                    ops::masked_scatter(&zeros(), &Tensor::zeros([3, 4], DType::Bool), &Tensor::from([1f32]));
                Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
            })
            .check("a mask of another dtype must be an error", move || {
                Ok(matches!(ops::masked_scatter(&zeros(), &zeros(), &zeros()), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("select_scatter")
            .case(
                "the last row",
                [real([2, 3]), real([3])],
                move |x| ops::select_scatter(&x[0], &cast(x), 0, -1),
                |x| replaced(x, |ix| (ix[0] == 1).then_some(ix[1])),
            )
            .floats_only()
            .check("an index out of bounds must be an error", move || {
                out_of_bounds(ops::select_scatter(&zeros(), &Tensor::zeros([4], DType::F64), 0, 3))
            })
            .check("another shape must be an error", move || {
                shape_rejected(ops::select_scatter(&zeros(), &Tensor::zeros([3], DType::F64), 0, 0))
            }),
        Row::new("slice_scatter")
            .case(
                "every second",
                [real([2, 5]), real([2, 2])],
                move |x| ops::slice_scatter(&x[0], &cast(x), 1, Some(1), None, 2),
                |x| replaced(x, |ix| (ix[1] % 2 == 1).then_some(2 * ix[0] + ix[1] / 2)),
            )
            .floats_only()
            .check("an invalid axis must be an error", move || {
                axis_rejected(ops::slice_scatter(&zeros(), &zeros(), 2, None, None, 1))
            })
            .check("another shape must be an error", move || {
                shape_rejected(ops::slice_scatter(&zeros(), &zeros(), 0, Some(1), None, 1))
            }),
        Row::new("diagonal_scatter")
            .case(
                "a diagonal above the main diagonal",
                [real([3, 4]), real([3])],
                move |x| ops::diagonal_scatter(&x[0], &cast(x), 1, 0, 1),
                |x| replaced(x, |ix| (ix[1] == ix[0] + 1).then_some(ix[0])),
            )
            .floats_only()
            .check("another length must be an error", move || {
                shape_rejected(ops::diagonal_scatter(&zeros(), &Tensor::from([1.0]), 0, 0, 1))
            }),
    ]
}

fn embedding_row() -> Row {
    let plain = EmbeddingOptions::default;
    let picked = |x: &[Nd]| {
        let shape = [&x[1].shape[..], &[x[0].shape[1]]].concat();
        Nd::from_fn(&shape, |ix| {
            let row = x[1].at(&ix[..ix.len() - 1]) as usize;
            x[0].at(&[row, ix[ix.len() - 1]])
        })
    };
    let gradient = |options: EmbeddingOptions, index: &[i64]| -> Result<Vec<f64>> {
        let table = Tensor::from([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).requires_grad_(true);
        ops::embedding(&table, &Tensor::new(index, [index.len()]), options)?.sum(..).backward();
        Ok(table.grad().expect("the tensor must have a gradient").to_vec::<f64>())
    };
    Row::new("embedding")
        .case(
            "a matrix of indices",
            [real([3, 2]), class([2, 4], 3)],
            move |x| ops::embedding(&x[0], &x[1], plain()),
            picked,
        )
        .case("one index", [real([3, 2]), class([], 3)], move |x| ops::embedding(&x[0], &x[1], plain()), picked)
        .floats_only()
        .case("no index", [real([3, 2]), class([0], 3)], move |x| ops::embedding(&x[0], &x[1], plain()), picked)
        .floats_only()
        .check("the padding row must have gradient 0", move || {
            let options = EmbeddingOptions { padding_index: Some(-2), ..plain() };
            Ok(gradient(options, &[1, 0, 1, 0])? == [2.0, 2.0, 0.0, 0.0, 0.0, 0.0])
        })
        .check("gradients must be divided by frequencies", move || {
            let options = EmbeddingOptions { scale_by_frequency: true, ..plain() };
            Ok(gradient(options, &[2, 2, 0, 2])? == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
        })
        .check("used rows above the maximal norm must be renormalized in the table", move || {
            let table = Tensor::from([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]).requires_grad_(true);
            let options = EmbeddingOptions { max_norm: Some((1.0, 2.0)), ..plain() };
            let y = ops::embedding(&table, &Tensor::from([0i64, 1, 0]), options)?;
            let near = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
            Ok(near(y.to_vec(), &[0.6, 0.8, 0.3, 0.4, 0.6, 0.8])
                && near(table.to_vec(), &[0.6, 0.8, 0.3, 0.4, 6.0, 8.0])
                && y.requires_grad())
        })
        .check("renormalizing a table that is not a leaf must be an error", move || {
            let table = &Tensor::from([[3.0, 4.0]]).requires_grad_(true) * 2.0;
            let options = EmbeddingOptions { max_norm: Some((1.0, 2.0)), ..plain() };
            let rejected = ops::embedding(&table, &Tensor::from([0i64]), options);
            Ok(matches!(rejected, Err(Error::InPlaceOnTracked { .. })))
        })
        .check("an index out of bounds must be an error", move || {
            let outside = |at: i64| ops::embedding(&Tensor::zeros([3, 2], DType::F32), &Tensor::from([at]), plain());
            Ok([3, -1, -4, i64::MAX, i64::MIN]
                .into_iter()
                .all(|at| matches!(outside(at), Err(Error::IndexOutOfBounds { .. }))))
        })
        .check("a padding index out of bounds must be an error", move || {
            let options = EmbeddingOptions { padding_index: Some(3), ..plain() };
            argument_rejected(gradient(options, &[0]))
        })
        .check("a table that is not a matrix must be an error", move || {
            shape_rejected(ops::embedding(&Tensor::zeros([3], DType::F32), &Tensor::from([0i64]), plain()))
        })
}

fn embedding_bag_row() -> Row {
    let offsets = || Tensor::from([0i64, 2, 2]);
    let of = move |mode| {
        move |x: &[Tensor]| {
            ops::embedding_bag(
                &x[0],
                &x[1],
                EmbeddingBagOptions { mode, offsets: Some(&offsets()), ..Default::default() },
            )
        }
    };
    // Bags of two rows, none, and three rows.
    let bag = |x: &[Nd], b: usize| -> Vec<usize> {
        let rows = [0..2, 2..2, 2..5][b].clone();
        rows.map(|k| x[1].data[k] as usize).collect()
    };
    let combined = move |meeting| {
        move |x: &[Nd]| {
            Nd::from_fn(&[3, 2], |ix| {
                let rows: Vec<f64> = bag(x, ix[0]).into_iter().map(|r| x[0].at(&[r, ix[1]])).collect();
                reduce_values(meeting, 0.0, false, &rows)
            })
        }
    };
    let table = || Tensor::from([[1.0, 2.0], [4.0, 8.0]]);
    [ScatterReduceOp::Sum, ScatterReduceOp::Mean, ScatterReduceOp::Max]
        .into_iter()
        .fold(Row::new("embedding_bag").scale(4.0).ordinary(), move |row, mode| {
            row.case(format!("{mode:?}"), [real([4, 2]), class([5], 4)], of(mode), combined(mode)).floats_only()
        })
        .case(
            "weighted rows of a matrix, but one",
            [real([4, 2]), real([2, 2])],
            |x| {
                let index = Tensor::from([[0i64, 3], [1, 0]]);
                let options = EmbeddingBagOptions {
                    mode: ScatterReduceOp::Sum,
                    weights: Some(&x[1]),
                    padding_index: Some(-1),
                    ..Default::default()
                };
                ops::embedding_bag(&x[0], &index, options)
            },
            |x| {
                let (row, w) = (|r, k| x[0].at(&[r, k]), &x[1].data);
                Nd::from_fn(&[2, 2], |ix| match ix[0] {
                    0 => w[0] * row(0, ix[1]),
                    _ => w[2] * row(1, ix[1]) + w[3] * row(0, ix[1]),
                })
            },
        )
        .floats_only()
        .check("the last offset must be allowed to be the end", move || {
            let options = EmbeddingBagOptions {
                offsets: Some(&Tensor::from([0i64, 1, 2])),
                include_last_offset: true,
                ..Default::default()
            };
            Ok(ops::embedding_bag(&table(), &[1i64, 0].into(), options)?.to_vec::<f64>() == [4.0, 8.0, 1.0, 2.0])
        })
        .check("rows above the maximal norm must be renormalized in the table", move || {
            let table = Tensor::from([[3.0, 4.0], [6.0, 8.0]]).requires_grad_(true);
            let options =
                EmbeddingBagOptions { max_norm: Some((1.0, 2.0)), mode: ScatterReduceOp::Sum, ..Default::default() };
            let y = ops::embedding_bag(&table, &[[0i64, 0]].into(), options)?.to_vec::<f64>();
            Ok((y[0] - 1.2).abs() < 1e-6 && (y[1] - 1.6).abs() < 1e-6 && table.to_vec::<f64>()[2..] == [6.0, 8.0])
        })
        .check("gradients must be divided by frequencies", move || {
            let table = table().requires_grad_(true);
            let options =
                EmbeddingBagOptions { mode: ScatterReduceOp::Sum, scale_by_frequency: true, ..Default::default() };
            ops::embedding_bag(&table, &[[0i64, 0], [0, 1]].into(), options)?.sum(..).backward();
            let max = EmbeddingBagOptions { mode: ScatterReduceOp::Max, ..options };
            let rejected = ops::embedding_bag(&table, &[[0i64]].into(), max);
            // Three gradients of a third, and one of 1.
            let even = table.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [1.0; 4];
            Ok(even && matches!(rejected, Err(Error::InvalidArgument { .. })))
        })
        .check("a vector of indices without offsets must be an error", move || {
            shape_rejected(ops::embedding_bag(&table(), &[1i64].into(), EmbeddingBagOptions::default()))
        })
        .check("an index out of bounds must be an error", move || {
            out_of_bounds(ops::embedding_bag(&table(), &[[2i64]].into(), EmbeddingBagOptions::default()))
        })
        .check("an unsupported reduction must be an error", move || {
            let options = EmbeddingBagOptions { mode: ScatterReduceOp::Prod, ..Default::default() };
            Ok(matches!(ops::embedding_bag(&table(), &[[0i64]].into(), options), Err(Error::InvalidArgument { .. })))
        })
}

pub(super) fn rows() -> Vec<Row> {
    reduction_rows()
        .into_iter()
        .chain(slice_rows())
        .chain(part_rows())
        .chain([embedding_row(), embedding_bag_row()])
        .collect()
}
