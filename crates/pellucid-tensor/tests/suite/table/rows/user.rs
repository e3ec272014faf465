//! User formulas.

use crate::table::nd::zip;
use crate::table::row::{Gradient::Third, Row, real};
use crate::table::special::sigmoid;
use pellucid_tensor::{DType, Error, Scalar, Tensor, formula, lazy, ops};

fn scaled_swish(x: &Tensor, beta: f64) -> pellucid_tensor::Result<Tensor> {
    ops::map(formula!(|x; beta| x * (beta * x).sigmoid()), &[x], &[beta.into()])
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
        .gradient(Third)
        .check("a wrong number of inputs must be an error", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map(formula!(|a, b| a * b), &[&x], &[]), Err(Error::InvalidArgument { .. })))
        })
        .check("a formula with row reductions must be an error", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map(formula!(|a| a.row_sum()), &[&x], &[]), Err(Error::InvalidArgument { .. })))
        })
        .check("a formula with several outputs must be an error that names map_all", || {
            let error = ops::map(formula!(|a| (a, a * a)), &[&Tensor::from([1.0])], &[]).unwrap_err();
            Ok(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains("map_all()"))
        });
    let map_all = Row::new("map_all")
        .outputs(
            "two inputs, two outputs",
            [real([2, 3]), real([3])],
            |x| ops::map_all(formula!(|a, b| (a * b, a.exp() + b.exp())), &[&x[0], &x[1]], &[]),
            |x| vec![zip(x, |v| v[0] * v[1]), zip(x, |v| v[0].exp() + v[1].exp())],
        )
        .floats_only()
        .scale(2.0)
        .gradient(Third);
    let share = |row: &[f64]| row.iter().map(|v| v / row.iter().sum::<f64>()).collect();
    let map_rows = Row::new("map_rows")
        .case(
            "shares of the row",
            [real([2, 3])],
            |x| ops::map_rows(formula!(|x| x / x.row_sum()), &[&x[0]], &[], -1),
            move |x| x[0].rows(&[1], share),
        )
        .floats_only()
        .within(0.3..=2.0)
        .ulps(32.0)
        .check("an invalid axis must be an error", || {
            let x = Tensor::from([1.0]);
            Ok(matches!(ops::map_rows(formula!(|a| a.row_sum()), &[&x], &[], 1), Err(Error::AxisOutOfRange { .. })))
        })
        .check("a formula with several outputs must be an error that names map_rows_all", || {
            let two = formula!(|a| (a.row_sum(), a));
            let error = ops::map_rows(two, &[&Tensor::from([1.0])], &[], 0).unwrap_err();
            Ok(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains("map_rows_all()"))
        });
    let map_rows_all = Row::new("map_rows_all")
        .outputs(
            "a value per row",
            [real([2, 3])],
            |x| ops::map_rows_all(formula!(|x| ((x * x).row_sum(), x - x.row_mean())), &[&x[0]], &[], 0),
            |x| {
                let mean = x[0].fold(&[0], |r| r.iter().sum::<f64>() / r.len() as f64);
                vec![x[0].fold(&[0], |r| r.iter().map(|v| v * v).sum()), zip(&[x[0].clone(), mean], |v| v[0] - v[1])]
            },
        )
        .floats_only()
        .within(0.3..=2.0)
        .ulps(32.0);
    vec![map, map_all, map_rows, map_rows_all, update(), update_many()]
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
        .check("one kernel must update several tensors", || {
            let (p, m, g) = (Tensor::from([1.0, 2.0]), Tensor::from([10.0, 20.0]), Tensor::from([1.0, -1.0]));
            let view = p.i(1..);
            momentum(&p, &m, &g, 0.5.into())?;
            let seen = view.to_vec::<f64>() == p.to_vec::<f64>()[1..];
            Ok(seen
                && m.to_vec::<f64>() == [0.9 * 10.0 + 1.0, 0.9 * 20.0 - 1.0]
                && p.to_vec::<f64>() == [1.0 - 0.5 * 10.0, 2.0 - 0.5 * 17.0])
        })
        .check("a half-precision target must store the rounded f32 result", || {
            let (p, g) = (Tensor::from([1.0f32]), Tensor::from([0.125f32]).to_dtype(DType::BF16));
            let half = Tensor::zeros([1], DType::BF16);
            // 1.001 is not a bf16 number: the f32 target stores it, the bf16 target its rounded value.
            ops::update(formula!(|p, _half, g; k| (p + g * k, p + g * k)), &[&p, &half], &[&g], &[0.008.into()])?;
            Ok(p.item::<f32>() == 1.0 + 0.125 * 0.008 && half.item::<f32>() == 1.0)
        })
        .check("a shape error must change no operand", || {
            let (p, m) = (Tensor::from([1.0]), Tensor::from([10.0]));
            let rejected =
                matches!(momentum(&p, &m, &Tensor::from([1.0, 2.0]), 0.5.into()), Err(Error::ShapeMismatch { .. }));
            Ok(rejected && p.item::<f64>() == 1.0 && m.item::<f64>() == 10.0)
        })
        .check("a dtype error must change no operand", || {
            let (p, m) = (Tensor::from([1.0f32]), Tensor::from([10.0f32]));
            let rejected = matches!(
                momentum(&p, &m, &Tensor::ones([1], DType::F64), 0.5.into()),
                Err(Error::DTypeMismatch { .. })
            );
            Ok(rejected && p.item::<f64>() == 1.0 && m.item::<f64>() == 10.0)
        })
        .check("a tracked target must be an error", || {
            let (p, m) = (Tensor::from([1.0]).requires_grad_(true), Tensor::from([10.0]));
            Ok(matches!(momentum(&p, &m, &Tensor::from([1.0]), 0.5.into()), Err(Error::InPlaceOnTracked { .. })))
        })
}

fn update_many() -> Row {
    let descend = || formula!(|p, g, lr| p - lr * g);
    Row::new("update_many")
        .check("the result must equal one update for each set", move || {
            let lr = Tensor::from([9.0, 0.5]).i(1);
            let (p, g) = (Tensor::from([1.0, 2.0]), Tensor::from([2.0, -2.0]));
            let (q, h) = (Tensor::from([[3.0]]), Tensor::from([[4.0]]));
            let empty = Tensor::zeros([0, 3], DType::F64);
            ops::update_many(descend(), 1, &[&p, &g, &lr, &q, &h, &lr, &empty, &empty, &lr], &[])?;
            ops::update_many(descend(), 1, &[], &[])?;
            Ok(p.to_vec::<f64>() == [0.0, 3.0] && q.to_vec::<f64>() == [1.0])
        })
        .check("sets with different dtypes, layouts or shared storage must be updated", move || {
            let base = Tensor::from([1.0, 2.0, 3.0, 4.0]);
            let (left, right) = (base.i(..2), base.i(2..));
            let (single, half) = (Tensor::from([8.0f32]), Tensor::from([0.25f32]).to_dtype(DType::BF16));
            let turned = Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
            let (t, g) = (turned.t(), Tensor::from([[1.0, 2.0], [3.0, 4.0]]));
            let (ones, lr, narrow) = (Tensor::from([1.0, 1.0]), Tensor::from(1.0), Tensor::from(1.0f32));
            let sets = [&left, &ones, &lr, &right, &ones, &lr, &single, &half, &narrow, &t, &g, &lr];
            ops::update_many(descend(), 1, &sets, &[])?;
            Ok(base.to_vec::<f64>() == [0.0, 1.0, 2.0, 3.0]
                && single.item::<f32>() == 7.75
                && turned.to_vec::<f64>() == [0.0, -1.0, 1.0, 0.0])
        })
        .check("an invalid set must change no target", move || {
            let (p, q, lr) = (Tensor::from([1.0]), Tensor::from([2.0]), Tensor::from(1.0));
            let bad = Tensor::from([1.0, 2.0]);
            let shapes = ops::update_many(descend(), 1, &[&p, &q, &lr, &q, &bad, &lr], &[]);
            let count = ops::update_many(descend(), 1, &[&p, &q, &lr, &q], &[]);
            let tracked = Tensor::from([1.0]).requires_grad_(true);
            let tracked = ops::update_many(descend(), 1, &[&p, &q, &lr, &tracked, &q, &lr], &[]);
            Ok(matches!(shapes, Err(Error::ShapeMismatch { .. }))
                && matches!(count, Err(Error::InvalidArgument { .. }))
                && matches!(tracked, Err(Error::InPlaceOnTracked { .. }))
                && (p.item::<f64>(), q.item::<f64>()) == (1.0, 2.0))
        })
        .check("the result must be the same in deferred execution", move || {
            let (p, q, g, lr) = (Tensor::from([1.0]), Tensor::from([2.0]), Tensor::from([3.0]), Tensor::from(0.5));
            lazy(|| ops::update_many(descend(), 1, &[&p, &g, &lr, &q, &g, &lr], &[]))?;
            Ok((p.item::<f64>(), q.item::<f64>()) == (-0.5, 0.5))
        })
}
