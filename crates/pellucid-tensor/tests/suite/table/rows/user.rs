//! Users' own formulas.

use crate::table::nd::zip;
use crate::table::row::{Gradient::Third, Row, real};
use crate::table::special::sigmoid;
use pellucid_tensor::{DType, Error, Scalar, Tensor, formula, ops};

fn scaled_swish(x: &Tensor, beta: f64) -> pellucid_tensor::Result<Tensor> {
    Ok(ops::map(formula!(|x; beta| x * (beta * x).sigmoid()), &[x], &[beta.into()])?.remove(0))
}

pub(super) fn rows() -> Vec<Row> {
    let map = Row::new("map")
        .case(
            "one input, a parameter",
            [real([2, 3])],
            |x| scaled_swish(&x[0], 1.5),
            |x| x[0].map(|v| v * sigmoid(1.5 * v)),
        )
        .floats_only()
        .outputs(
            "two inputs, two outputs",
            [real([2, 3]), real([3])],
            |x| ops::map(formula!(|a, b| (a * b, (a - b).sin())), &[&x[0], &x[1]], &[]),
            |x| vec![zip(x, |v| v[0] * v[1]), zip(x, |v| (v[0] - v[1]).sin())],
        )
        .floats_only()
        .gradient(Third)
        .also("another number of inputs", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map(formula!(|a, b| a * b), &[&x], &[]), Err(Error::InvalidArgument { .. })))
        })
        .also("row reductions need map_rows", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map(formula!(|a| a.row_sum()), &[&x], &[]), Err(Error::InvalidArgument { .. })))
        });
    let share = |row: &[f64]| row.iter().map(|v| v / row.iter().sum::<f64>()).collect();
    let map_rows = Row::new("map_rows")
        .outputs(
            "shares of the row",
            [real([2, 3])],
            |x| ops::map_rows(formula!(|x| x / x.row_sum()), &[&x[0]], &[], -1),
            move |x| vec![x[0].rows(&[1], share)],
        )
        .floats_only()
        .outputs(
            "a value per row",
            [real([2, 3])],
            |x| ops::map_rows(formula!(|x| ((x * x).row_sum(), x - x.row_mean())), &[&x[0]], &[], 0),
            |x| {
                let mean = x[0].fold(&[0], |r| r.iter().sum::<f64>() / r.len() as f64);
                vec![x[0].fold(&[0], |r| r.iter().map(|v| v * v).sum()), zip(&[x[0].clone(), mean], |v| v[0] - v[1])]
            },
        )
        .floats_only()
        .within(0.3..=2.0)
        .ulps(32.0)
        .also("no such axis", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map_rows(formula!(|a| a.row_sum()), &[&x], &[], 1), Err(Error::AxisOutOfRange { .. })))
        });
    vec![map, map_rows, update()]
}

fn update() -> Row {
    fn momentum(p: &Tensor, m: &Tensor, g: &Tensor, lr: Scalar) -> pellucid_tensor::Result<()> {
        let step = formula!(|p, m, g; lr| {
            let m = 0.9 * m + g;
            (p - lr * m, m)
        });
        ops::update(step, &[p, m], &[g], &[lr])
    }
    Row::new("update")
        .also("several tensors by one kernel", || {
            let (p, m, g) = (Tensor::from([1.0, 2.0]), Tensor::from([10.0, 20.0]), Tensor::from([1.0, -1.0]));
            let view = p.i(1..);
            momentum(&p, &m, &g, 0.5.into())?;
            let seen = view.to_vec::<f64>() == p.to_vec::<f64>()[1..];
            Ok(seen
                && m.to_vec::<f64>() == [0.9 * 10.0 + 1.0, 0.9 * 20.0 - 1.0]
                && p.to_vec::<f64>() == [1.0 - 0.5 * 10.0, 2.0 - 0.5 * 17.0])
        })
        .also("a half-width target takes what was computed at full width", || {
            let (p, g) = (Tensor::from([1.0f32]), Tensor::from([0.125f32]).to_dtype(DType::BF16));
            let half = Tensor::zeros([1], DType::BF16);
            // 1.001 is no bf16: the full target has it, the half one its rounding.
            ops::update(formula!(|p, _half, g; k| (p + g * k, p + g * k)), &[&p, &half], &[&g], &[0.008.into()])?;
            Ok(p.item::<f32>() == 1.0 + 0.125 * 0.008 && half.item::<f32>() == 1.0)
        })
        .also("another shape changes nothing", || {
            let (p, m) = (Tensor::from([1.0]), Tensor::from([10.0]));
            let refused =
                matches!(momentum(&p, &m, &Tensor::from([1.0, 2.0]), 0.5.into()), Err(Error::ShapeMismatch { .. }));
            Ok(refused && p.item::<f64>() == 1.0 && m.item::<f64>() == 10.0)
        })
        .also("another dtype changes nothing", || {
            let (p, m) = (Tensor::from([1.0f32]), Tensor::from([10.0f32]));
            let refused = matches!(
                momentum(&p, &m, &Tensor::ones([1], DType::F64), 0.5.into()),
                Err(Error::DTypeMismatch { .. })
            );
            Ok(refused && p.item::<f64>() == 1.0 && m.item::<f64>() == 10.0)
        })
        .also("a tracked target is refused", || {
            let (p, m) = (Tensor::from([1.0]).requires_grad_(true), Tensor::from([10.0]));
            Ok(matches!(momentum(&p, &m, &Tensor::from([1.0]), 0.5.into()), Err(Error::InPlaceOnTracked { .. })))
        })
}
