//! Binary search, counts, and unique elements.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, axis_rejected, real, shape_rejected};
use ops::Bins;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

fn before(row: &[f64], value: f64, right: bool) -> f64 {
    row.iter().filter(|&&v| v < value || (right && v == value)).count() as f64
}

fn numbers(x: &Tensor) -> Vec<i64> {
    x.to_vec::<i64>()
}

pub(super) fn rows() -> Vec<Row> {
    let edges = || Tensor::from([-1.0, 0.0, 0.5, 2.0]);
    let counted = |x: &Nd, edges: &[f64]| {
        let bins = edges.len() - 1;
        let inside = |v: f64, b: usize| edges[b] <= v && (v < edges[b + 1] || (b + 1 == bins && v == edges[bins]));
        Nd::from_fn(&[bins], |ix| x.data.iter().filter(|&&v| inside(v, ix[0])).count() as f64)
    };
    vec![
        Row::new("searchsorted")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case(
                "left",
                [real([2, 4])],
                move |x| ops::searchsorted(&edges().to_dtype(x[0].dtype()), &x[0], false),
                |x| x[0].map(|v| before(&[-1.0, 0.0, 0.5, 2.0], v, false)),
            )
            .floats_only()
            .ordinary()
            .check("equal elements, and NaN", move || {
                let values = Tensor::from([-1.0, 0.5, 2.0, 3.0, -2.0, f64::NAN]);
                let (left, right) =
                    (ops::searchsorted(&edges(), &values, false)?, ops::searchsorted(&edges(), &values, true)?);
                Ok(numbers(&left) == [0, 2, 3, 4, 0, 4] && numbers(&right) == [1, 3, 4, 4, 0, 4])
            })
            .check("NaNs must be sorted last", || {
                let sorted = Tensor::from([1.0, 2.0, f64::NAN, f64::NAN]);
                let values = Tensor::from([0.0, 1.0, 1.5, 2.0, 9.0, f64::NAN]);
                let (left, right) =
                    (ops::searchsorted(&sorted, &values, false)?, ops::searchsorted(&sorted, &values, true)?);
                Ok(numbers(&left) == [0, 0, 1, 1, 2, 4] && numbers(&right) == [0, 1, 1, 2, 2, 4])
            })
            .check("each value must be searched in its own row", || {
                let sorted = Tensor::from([[1i64, 3, 5], [2, 4, 6]]);
                Ok(numbers(&ops::searchsorted(&sorted, &Tensor::from([[3i64], [3]]), false)?) == [1, 1])
            })
            .check("an empty sequence", || {
                Ok(numbers(&ops::searchsorted(&Tensor::zeros([0], DType::F32), &Tensor::from(1f32), true)?) == [0])
            })
            .check("the result for an empty row is pinned if an operand is", || {
                let (row, values) = (Tensor::zeros([2, 0], DType::I32), Tensor::from([[1i32], [2]]));
                let mut found = Vec::new();
                for (a, b) in [(true, false), (false, true), (false, false)] {
                    let on_cpu = |t: &Tensor, pin: bool| if pin { t.try_to("cpu") } else { Ok(t.clone()) };
                    found.push(ops::searchsorted(&on_cpu(&row, a)?, &on_cpu(&values, b)?, false)?.is_free());
                }
                Ok(found == [false, false, true])
            })
            .check("unequal numbers of rows must be an error", move || {
                shape_rejected(ops::searchsorted(
                    &Tensor::zeros([2, 3], DType::F32),
                    &Tensor::zeros([3, 1], DType::F32),
                    false,
                ))
            }),
        Row::new("bucketize")
            .rule(Rule::Always(DType::I64))
            .untracked()
            .case(
                "right",
                [real([5])],
                move |x| ops::bucketize(&x[0], &edges().to_dtype(x[0].dtype()), true),
                |x| x[0].map(|v| before(&[-1.0, 0.0, 0.5, 2.0], v, true)),
            )
            .floats_only()
            .ordinary()
            .check("a matrix of boundaries must be an error", || {
                shape_rejected(ops::bucketize(&Tensor::from([1.0]), &Tensor::from([[1.0]]), false))
            }),
        Row::new("bincount")
            .check("counts", || Ok(numbers(&ops::bincount(&[1i64, 3, 1].into(), None, 0)?) == [0, 2, 0, 1]))
            .check("the result must have the minimal length", || {
                Ok(numbers(&ops::bincount(&Tensor::zeros([0], DType::I32), None, 2)?) == [0, 0])
            })
            .check("sums of weights must be correct, with gradients", || {
                let weights = Tensor::from([0.5, 2.0, 4.0]).requires_grad_(true);
                let y = ops::bincount(&[1i64, 0, 1].into(), Some(&weights), 0)?;
                ops::sum(&ops::mul(&y, Tensor::from([3.0, 5.0]))?, ..)?.backward();
                Ok(y.to_vec::<f64>() == [2.0, 4.5]
                    && weights.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [5.0, 3.0, 5.0])
            })
            .check("a negative value must be an error", || argument_rejected(ops::bincount(&[-1i64].into(), None, 0)))
            .check("a matrix must be an error", || shape_rejected(ops::bincount(&[[1i64]].into(), None, 0)))
            .check("floats must be an error", || {
                Ok(matches!(ops::bincount(&[1.0].into(), None, 0), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("histogram")
            .rule(Rule::FloatsOnly)
            .untracked()
            .outputs(
                "edges",
                [real([3, 4])],
                move |x| {
                    let (counts, edges) =
                        ops::histogram(&x[0], Bins::Edges(&edges().to_dtype(x[0].dtype())), None, false)?;
                    Ok(vec![counts, edges])
                },
                move |x| {
                    vec![counted(&x[0], &[-1.0, 0.0, 0.5, 2.0]), Nd { shape: vec![4], data: vec![-1.0, 0.0, 0.5, 2.0] }]
                },
            )
            .floats_only()
            .ordinary()
            .check("the default range must be the range of the elements", || {
                let (counts, edges) = ops::histogram(&Tensor::from([1.0, 2.0, 2.0, 5.0]), Bins::Count(4), None, false)?;
                Ok(counts.to_vec::<f64>() == [1.0, 2.0, 0.0, 1.0] && edges.to_vec::<f64>() == [1.0, 2.0, 3.0, 4.0, 5.0])
            })
            .check("a single value must be in the middle bin", || {
                let (counts, edges) = ops::histogram(&Tensor::from([2.0]), Bins::Count(2), None, false)?;
                Ok(counts.to_vec::<f64>() == [0.0, 1.0] && edges.to_vec::<f64>() == [1.5, 2.0, 2.5])
            })
            .check("densities of weights must be correct, with gradients", || {
                let weights = Tensor::from([1.0, 3.0]).requires_grad_(true);
                let bins = Bins::Between(2, 0.0, 4.0);
                let (density, _) = ops::histogram(&Tensor::from([1.0, 3.0]), bins, Some(&weights), true)?;
                ops::select(&density, 0, 0)?.backward();
                let slopes = weights.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok(density.to_vec::<f64>() == [0.125, 0.375]
                    && (slopes[0] - 0.09375).abs() < 1e-15
                    && (slopes[1] + 0.03125).abs() < 1e-15)
            })
            .check("zero bins must be an error", || {
                argument_rejected(ops::histogram(&Tensor::from([1.0]), Bins::Count(0), None, false))
            })
            .check("bounds in the wrong order must be an error", || {
                argument_rejected(ops::histogram(&Tensor::from([1.0]), Bins::Between(2, 1.0, 0.0), None, false))
            })
            .check("one edge must be an error", || {
                shape_rejected(ops::histogram(&Tensor::from([1.0]), Bins::Edges(&Tensor::from([1.0])), None, false))
            }),
        Row::new("histogramdd")
            .check("points in two dimensions", || {
                let x = Tensor::from([[0.5, 0.5], [1.5, 0.0], [2.0, 3.0], [1.0, 4.0], [f64::NAN, 1.0]]);
                let edges = Tensor::from([0.0, 1.0, 3.0]);
                let bins = [Bins::Between(2, 0.0, 2.0), Bins::Edges(&edges)];
                let (counts, edges) = ops::histogramdd(&x, &bins, None, false)?;
                Ok(counts.to_vec::<f64>() == [1.0, 0.0, 1.0, 1.0]
                    && counts.shape()[..] == [2, 2]
                    && edges[0].to_vec::<f64>() == [0.0, 1.0, 2.0])
            })
            .check("densities of weights must be correct, with gradients", || {
                let weights = Tensor::from([1.0, 3.0]).requires_grad_(true);
                let (x, edges) = (Tensor::from([[0.5, 0.5], [1.5, 2.0]]), Tensor::from([0.0, 1.0, 3.0]));
                let bins = [Bins::Between(2, 0.0, 2.0), Bins::Edges(&edges)];
                let (density, _) = ops::histogramdd(&x, &bins, Some(&weights), true)?;
                ops::select(&ops::ravel(&density)?, 0, 0)?.backward();
                let slopes = weights.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok(density.to_vec::<f64>() == [0.25, 0.0, 0.0, 0.375] && slopes == [0.1875, -0.0625])
            })
            .check("zero points", || {
                let x = Tensor::zeros([0, 2], DType::F64);
                Ok(ops::histogramdd(&x, &[Bins::Count(2); 2], None, false)?.0.to_vec::<f64>() == [0.0; 4])
            })
            .check("a wrong number of bins must be an error", || {
                shape_rejected(ops::histogramdd(&Tensor::from([[1.0, 2.0]]), &[Bins::Count(2)], None, false))
            })
            .check("a wrong number of weights must be an error", || {
                let weights = Tensor::from([1.0, 2.0]);
                shape_rejected(ops::histogramdd(&Tensor::from([[1.0]]), &[Bins::Count(2)], Some(&weights), false))
            }),
        Row::new("histogram2d")
            .check("the counts must equal those of histogramdd", || {
                let (x, y) = (Tensor::from([0.5, 1.5, 2.0, 1.0]), Tensor::from([0.5, 0.0, 3.0, 4.0]));
                let edges = Tensor::from([0.0, 1.0, 3.0]);
                let bins = [Bins::Between(2, 0.0, 2.0), Bins::Edges(&edges)];
                let (counts, of_x, of_y) = ops::histogram2d(&x, &y, bins, None, false)?;
                Ok(counts.to_vec::<f64>() == [1.0, 0.0, 1.0, 1.0]
                    && counts.shape()[..] == [2, 2]
                    && of_x.to_vec::<f64>() == [0.0, 1.0, 2.0]
                    && of_y.to_vec::<f64>() == [0.0, 1.0, 3.0])
            })
            .check("weights must have gradients", || {
                let (x, weights) = (Tensor::from([0.5, 1.5]), Tensor::from([1.0, 3.0]).requires_grad_(true));
                let bins = [Bins::Between(2, 0.0, 2.0), Bins::Between(1, 0.0, 2.0)];
                let (sums, ..) = ops::histogram2d(&x, &x, bins, Some(&weights), false)?;
                ops::select(&sums, 0, 1)?.backward();
                Ok(weights.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0, 1.0])
            })
            .check("unequal lengths must be an error", || {
                let (x, y) = (Tensor::from([1.0]), Tensor::from([1.0, 2.0]));
                shape_rejected(ops::histogram2d(&x, &y, [Bins::Count(2); 2], None, false))
            }),
        Row::new("histc")
            .check("elements outside a given range must not be counted", || {
                Ok(ops::histc(&Tensor::from([0.5, 1.0, 2.0, 3.0]), 2, 0.0, 2.0)?.to_vec::<f64>() == [1.0, 2.0])
            })
            .check("elements beyond the ends and NaN must not be counted", || {
                let x = Tensor::from([-0.1, 0.0, 2.0, 2.1, f64::NAN, f64::INFINITY]);
                Ok(ops::histc(&x, 4, 0.0, 2.0)?.to_vec::<f64>() == [1.0, 0.0, 0.0, 1.0])
            })
            .check("zero bins must be an error", || argument_rejected(ops::histc(&Tensor::from([1.0]), 0, 0.0, 1.0)))
            .check("the default range must be the range of the elements", || {
                Ok(ops::histc(&Tensor::from([0.0, 1.0, 2.0]), 2, 0.0, 0.0)?.to_vec::<f64>() == [1.0, 2.0])
            }),
        unique("unique", ops::unique, [1, 2, 3], [1, 2, 0, 0, 1], [2, 2, 1])
            .check("slices", || {
                let x = Tensor::from([[2i64, 1], [1, 9], [2, 1], [1, 3]]);
                let found = ops::unique(&x, Some(0))?;
                let right = numbers(&found.values) == [1, 3, 1, 9, 2, 1] && numbers(&found.inverse) == [2, 1, 2, 0];
                Ok(right
                    && numbers(&found.counts) == [1, 1, 2]
                    && ops::unique(&x, Some(-1))?.values.shape()[..] == [4, 2])
            })
            .check("NaNs must count as unequal to each other", || {
                Ok(ops::unique(&Tensor::from([f64::NAN, 1.0, f64::NAN]), None)?.counts.size() == 3)
            }),
        unique("unique_consecutive", ops::unique_consecutive, [2, 3, 1, 2], [0, 1, 2, 2, 3], [1, 1, 2, 1]),
    ]
}

/// Returns a row for the elements 2, 3, 1, 1, 2.
fn unique<const N: usize>(
    name: &'static str,
    call: fn(&Tensor, Option<isize>) -> Result<ops::Unique>,
    values: [i64; N],
    inverse: [i64; 5],
    counts: [i64; N],
) -> Row {
    Row::new(name)
        .check("values, inverse positions and counts", move || {
            let found = call(&Tensor::from([2i64, 3, 1, 1, 2]), None)?;
            let (v, i, c) = (numbers(&found.values), numbers(&found.inverse), numbers(&found.counts));
            Ok(v == values && i == inverse && c == counts)
        })
        .check("an empty input", move || {
            let found = call(&Tensor::zeros([0, 2], DType::F32), None)?;
            Ok(found.values.size() == 0 && found.inverse.shape()[..] == [0, 2])
        })
        .check("the gradient must go to the first occurrence", move || {
            let x = Tensor::from([4.0, 4.0]).requires_grad_(true);
            ops::sum(&call(&x, None)?.values, ..)?.backward();
            Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [1.0, 0.0])
        })
        .check("an invalid axis must be an error", move || axis_rejected(call(&Tensor::from([1.0]), Some(1))))
}
