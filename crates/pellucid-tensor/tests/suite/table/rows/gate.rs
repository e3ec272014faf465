//! Activations with random or learned slopes, and gates.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, axis_rejected, real, shape_rejected};
use crate::table::special::sigmoid;
use pellucid_tensor::{DType, Error, Tensor, manual_seed, ops};

pub(super) fn rows() -> Vec<Row> {
    let slope = |x: f64, w: f64| if x > 0.0 { x } else { x * w };
    let ones = || Tensor::full([1000], -1, DType::F64);
    vec![
        Row::new("prelu")
            .case(
                "one slope a channel",
                [real([2, 3, 2]), real([3])],
                |x| ops::prelu(&x[0], &x[1]),
                move |x| Nd::from_fn(&[2, 3, 2], |ix| slope(x[0].at(ix), x[1].at(&[ix[1]]))),
            )
            .floats_only()
            .case(
                "one slope",
                [real([4]), real([1])],
                |x| ops::prelu(&x[0], &x[1]),
                move |x| x[0].map(|v| slope(v, x[1].data[0])),
            )
            .floats_only()
            .ordinary()
            .check("a wrong number of slopes must be an error", || {
                shape_rejected(ops::prelu(&Tensor::zeros([2, 3], DType::F32), &Tensor::zeros([2], DType::F32)))
            }),
        Row::new("rrelu")
            .check("random slopes must be in the range", move || {
                let y = ops::rrelu(&ones(), 0.2, 0.4)?.to_vec::<f64>();
                let mean = y.iter().sum::<f64>() / 1000.0;
                Ok(y.iter().all(|v| (-0.4..=-0.2).contains(v)) && (mean + 0.3).abs() < 0.01)
            })
            .check("the gradient must be the drawn slope", move || {
                let x = ones().requires_grad_(true);
                let y = ops::rrelu(&x, 0.2, 0.4)?;
                y.backward();
                let slopes = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok(y.to_vec::<f64>().iter().zip(slopes).all(|(y, slope)| *y == -slope))
            })
            .check("nonnegative elements must be unchanged", || {
                Ok(ops::rrelu(&Tensor::from([2.0, 0.0]), 0.2, 0.4)?.to_vec::<f64>() == [2.0, 0.0])
            })
            .check("bounds in the wrong order must be an error", move || {
                Ok(matches!(ops::rrelu(&ones(), 0.4, 0.2), Err(Error::InvalidArgument { .. })))
            }),
        Row::new("glu")
            .rule(Rule::Floats)
            .case(
                "halves of the last axis",
                [real([2, 4])],
                |x| ops::glu(&x[0], -1),
                |x| Nd::from_fn(&[2, 2], |ix| x[0].at(ix) * sigmoid(x[0].at(&[ix[0], ix[1] + 2]))),
            )
            .floats_only()
            .ordinary()
            .check("an axis of odd length must be an error", || {
                shape_rejected(ops::glu(&Tensor::zeros([3], DType::F32), 0))
            })
            .check("an invalid axis must be an error", || axis_rejected(ops::glu(&Tensor::zeros([2], DType::F32), 1))),
        Row::new("softmin")
            .rule(Rule::Floats)
            .ulps(32.0)
            .case(
                "rows",
                [real([2, 3])],
                |x| ops::softmin(&x[0], 1),
                |x| {
                    x[0].rows(&[1], |row| {
                        let sum: f64 = row.iter().map(|v| (-v).exp()).sum();
                        row.iter().map(|v| (-v).exp() / sum).collect()
                    })
                },
            )
            .floats_only()
            .ordinary(),
        Row::new("gumbel_softmax")
            .check("class frequencies must match the probabilities", || {
                manual_seed(4);
                let x = Tensor::from([[0.6f64.ln(), 0.3f64.ln(), 0.1f64.ln()]]).broadcast_to([20_000, 3]);
                let y = ops::gumbel_softmax(&x, 0.5, true, -1)?;
                let share = ops::mean(&y, 0)?.to_vec::<f64>();
                let hard = ops::eq(&y, 0.0)?.logical_or(ops::isclose(&y, &Tensor::from(1.0), 1e-12, 0.0, false)?);
                let near = share.iter().zip([0.6, 0.3, 0.1]).all(|(got, want)| (got - want).abs() < 0.02);
                Ok(near
                    && ops::sum(&y, ..)?.item::<f64>().round() == 20_000.0
                    && ops::count_nonzero(&hard, ..)?.item::<i64>() > 59_000)
            })
            .check("soft rows must sum to 1 and have a gradient", || {
                let x = Tensor::from([0.1, 0.2, 0.3]).requires_grad_(true);
                let y = ops::gumbel_softmax(&x, 1.0, false, 0)?;
                let sum = ops::sum(&y, ..)?.item::<f64>();
                ops::sum(&ops::mul(&y, Tensor::from([1.0, 2.0, 4.0]))?, ..)?.backward();
                let slopes = x.grad().expect("the tensor must have a gradient").to_vec::<f64>();
                Ok((sum - 1.0).abs() < 1e-12 && slopes.iter().sum::<f64>().abs() < 1e-12 && slopes[2] > 0.0)
            })
            .check("a temperature of 0 or less must be an error", || {
                Ok(matches!(
                    ops::gumbel_softmax(&Tensor::from([1.0]), 0.0, false, 0),
                    Err(Error::InvalidArgument { .. })
                ))
            }),
    ]
}
