//! Products that are added to a tensor.

use crate::table::nd::{Nd, zip};
use crate::table::row::{Gradient::Third, Row, Rule, real, shape_rejected};
use pellucid_tensor::{DType, Result, Tensor, ops};

/// Computes A·B of matrices.
fn product(a: &Nd, b: &Nd) -> Nd {
    let depth = a.shape[1];
    Nd::from_fn(&[a.shape[0], b.shape[1]], |ix| (0..depth).map(|k| a.at(&[ix[0], k]) * b.at(&[k, ix[1]])).sum())
}

/// Returns matrix i of a batch.
fn matrix(x: &Nd, i: usize) -> Nd {
    x.narrow(0, i, 1).reshape(&x.shape[1..])
}

/// Computes 2·x + 3·`product`.
fn combined(x: &Nd, product: Nd) -> Nd {
    zip(&[x.clone(), product], |v| 2.0 * v[0] + 3.0 * v[1])
}

fn column(v: &Nd) -> Nd {
    v.reshape(&[v.data.len(), 1])
}

/// Checks that β = 0 hides NaN, and that half precision is rounded once: (2048 + 1) − 2048.
fn with_checks(row: Row, one: fn(Tensor, Tensor, Tensor, f64) -> Result<Tensor>, ranks: [usize; 2]) -> Row {
    let operand = |rank: usize, values: [f64; 2], second: bool| {
        let shapes: [&[usize]; 3] = if second { [&[2], &[2, 1], &[1, 2, 1]] } else { [&[2], &[1, 2], &[1, 1, 2]] };
        Tensor::new(values, shapes[rank - 1])
    };
    row.check("with a factor of 0, NaN must have no effect", move || {
        let (a, b) = (operand(ranks[0], [1.0, 2.0], false), operand(ranks[1], [3.0, 4.0], true));
        let y = one(Tensor::from(f64::NAN), a, b, 0.0)?;
        Ok(y.isfinite().all(..).item::<bool>())
    })
    .check("half precision must be rounded once", move || {
        let (a, b) = (operand(ranks[0], [2048.0, 1.0], false), operand(ranks[1], [1.0, 1.0], true));
        let half = |t: Tensor| t.to_dtype(DType::F16);
        let y = one(half(Tensor::from(-2048.0)), half(a), half(b), 1.0)?;
        Ok(y.dtype() == DType::F16 && y.to_vec::<f64>().last() == Some(&1.0))
    })
}

pub(super) fn rows() -> Vec<Row> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let addmm = Row::new("addmm")
        .case(
            "matrices",
            [real([2, 4]), real([2, 3]), real([3, 4])],
            |x| ops::addmm(&x[0], &x[1], &x[2], 2, 3),
            |x| combined(&x[0], product(&x[1], &x[2])),
        )
        .case(
            "a row",
            [real([4]), real([2, 3]), real([3, 4])],
            |x| ops::addmm(&x[0], &x[1], &x[2], 2, 3),
            |x| combined(&x[0], product(&x[1], &x[2])),
        )
        .floats_only()
        .case(
            "no inner length",
            [real([2, 1]), real([2, 0]), real([0, 3])],
            |x| ops::addmm(&x[0], &x[1], &x[2], 2, 3),
            |x| combined(&x[0], product(&x[1], &x[2])),
        )
        .floats_only()
        .check("a vector as an operand must be an error", move || {
            shape_rejected(ops::addmm(&zeros(&[2]), &zeros(&[2, 3]), &zeros(&[3]), 1, 1))
        })
        .check("an addend that is larger than the product must be an error", move || {
            shape_rejected(ops::addmm(&zeros(&[5, 2, 2]), &zeros(&[2, 3]), &zeros(&[3, 2]), 1, 1))
        })
        .check("unequal inner lengths must be an error", move || {
            shape_rejected(ops::addmm(&zeros(&[2]), &zeros(&[2, 3]), &zeros(&[2, 2]), 1, 1))
        });
    let addmv = Row::new("addmv")
        .case(
            "a matrix and a vector",
            [real([2]), real([2, 3]), real([3])],
            |x| ops::addmv(&x[0], &x[1], &x[2], 2, 3),
            |x| combined(&x[0], product(&x[1], &column(&x[2])).reshape(&[2])),
        )
        .check("two matrices must be an error", move || {
            shape_rejected(ops::addmv(&zeros(&[2]), &zeros(&[2, 3]), &zeros(&[3, 2]), 1, 1))
        });
    let addr = Row::new("addr")
        .case(
            "vectors",
            [real([2, 3]), real([2]), real([3])],
            |x| ops::addr(&x[0], &x[1], &x[2], 2, 3),
            |x| combined(&x[0], product(&column(&x[1]), &x[2].reshape(&[1, 3]))),
        )
        .check("matrices must be an error", move || {
            shape_rejected(ops::addr(&zeros(&[2, 2]), &zeros(&[2, 2]), &zeros(&[2]), 1, 1))
        });
    let batches = || [real([2, 1]), real([3, 2, 2]), real([3, 2, 3])];
    let baddbmm = Row::new("baddbmm")
        .case(
            "batches",
            batches(),
            |x| ops::baddbmm(&x[0], &x[1], &x[2], 2, 3),
            |x| {
                let each: Vec<Nd> =
                    (0..3).map(|i| combined(&x[0], product(&matrix(&x[1], i), &matrix(&x[2], i)))).collect();
                Nd { shape: vec![3, 2, 3], data: each.into_iter().flat_map(|y| y.data).collect() }
            },
        )
        .check("unequal batches must be an error, even if they broadcast", move || {
            shape_rejected(ops::baddbmm(&zeros(&[]), &zeros(&[1, 2, 2]), &zeros(&[3, 2, 2]), 1, 1))
        })
        .check("matrices must be an error", move || {
            shape_rejected(ops::baddbmm(&zeros(&[]), &zeros(&[2, 2]), &zeros(&[2, 2]), 1, 1))
        });
    let addbmm = Row::new("addbmm")
        .case(
            "batches",
            batches(),
            |x| ops::addbmm(&x[0], &x[1], &x[2], 2, 3),
            |x| {
                let parts: Vec<Nd> = (0..3).map(|i| product(&matrix(&x[1], i), &matrix(&x[2], i))).collect();
                combined(&x[0], zip(&parts, |v| v.iter().sum()))
            },
        )
        .check("unequal inner lengths must be an error", move || {
            shape_rejected(ops::addbmm(&zeros(&[]), &zeros(&[3, 2, 2]), &zeros(&[3, 1, 2]), 1, 1))
        });
    let vdot = Row::new("vdot")
        .case(
            "matrices of other shapes",
            [real([2, 3]), real([3, 2])],
            |x| ops::vdot(&x[0], &x[1]),
            |x| Nd::scalar(x[0].data.iter().zip(&x[1].data).map(|(a, b)| a * b).sum()),
        )
        .case(
            "numbers",
            [real([]), real([1])],
            |x| ops::vdot(&x[0], &x[1]),
            |x| Nd::scalar(x[0].data[0] * x[1].data[0]),
        )
        .floats_only()
        .check("unequal sizes must be an error", move || shape_rejected(ops::vdot(&zeros(&[2]), &zeros(&[3]))));
    let added = vec![
        with_checks(addmm, |x, a, b, beta| ops::addmm(&x, &a, &b, beta, 1.0), [2, 2]),
        with_checks(addmv, |x, a, v, beta| ops::addmv(&x, &a, &v, beta, 1.0), [2, 1]),
        addr.rule(Rule::Numbers)
            .check("with a factor of 0, NaN must have no effect", || {
                let v = Tensor::from([1.0, 2.0]);
                Ok(ops::addr(&Tensor::from(f64::NAN), &v, &v, 0, 1)?.to_vec::<f64>() == [1.0, 2.0, 2.0, 4.0])
            })
            .check("half precision must be rounded once", || {
                // 3·683 is 2049, which f16 rounds to 2048.
                let [x, u, v] = [-2048.0, 3.0, 683.0].map(|n| Tensor::from([n]).to_dtype(DType::F16));
                Ok(ops::addr(&x, &u, &v, 1, 1)?.to_vec::<f64>() == [1.0])
            }),
        with_checks(baddbmm, |x, a, b, beta| ops::baddbmm(&x, &a, &b, beta, 1.0), [3, 3]),
        with_checks(addbmm, |x, a, b, beta| ops::addbmm(&x, &a, &b, beta, 1.0), [3, 3]),
        vdot,
    ];
    added.into_iter().map(|row| row.gradient(Third).scale(16.0)).map(numbers_only).collect()
}

/// Booleans have no matrix product.
fn numbers_only(row: Row) -> Row {
    if row.name == "addr" { row } else { row.rule(Rule::NoTruth) }
}
