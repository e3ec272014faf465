//! QR factors.

use super::{mt, regular, row, zeros};
use crate::table::algebra::{Mat, each, identity, mat, times, transposed};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, real, shape_rejected};
use pellucid_tensor::ops::{self, QrMode};
use pellucid_tensor::{DType, Error, Result, Tensor};

/// Returns Q and R of a matrix with at least as many rows as columns by the Gram–Schmidt process, with the signs of
/// LAPACK: each diagonal element of R has the opposite sign of the element that the reflection replaces.
fn qr_of(a: &Mat) -> (Mat, Mat) {
    let (m, n) = (a.len(), a[0].len());
    let mut columns = transposed(a);
    let mut r = mat(n, n, |_, _| 0.0);
    for k in 0..n {
        // There are two passes, because after the first one the columns are not orthogonal to the last digit.
        for _ in 0..2 {
            for i in 0..k {
                let part: f64 = (0..m).map(|row| columns[i][row] * columns[k][row]).sum();
                r[i][k] += part;
                (0..m).for_each(|row| columns[k][row] -= part * columns[i][row]);
            }
        }
        r[k][k] = columns[k].iter().map(|x| x * x).sum::<f64>().sqrt();
        (0..m).for_each(|row| columns[k][row] /= r[k][k]);
    }
    (transposed(&columns), r)
}

/// Returns Q and R with the signs changed so that the diagonal of R is positive.
fn positive_qr(q: &Tensor, r: &Tensor) -> Result<Vec<Tensor>> {
    let k = q.shape()[q.rank() - 1];
    let sign = ops::sign(&ops::diagonal(&ops::narrow(r, -1, 0, k)?, 0, -2, -1)?.detach())?;
    Ok(vec![ops::mul(q, &ops::unsqueeze(&sign, -2)?)?, ops::mul(r, &ops::unsqueeze(&sign, -1)?)?])
}

/// Returns the product of the Householder reflections of the columns of V.
fn reflections(v: &Mat, tau: &[f64]) -> Mat {
    let m = v.len();
    tau.iter().enumerate().fold(identity(m), |q, (k, tau)| {
        let v = |i: usize| {
            if i == k {
                1.0
            } else if i > k {
                v[i][k]
            } else {
                0.0
            }
        };
        times(&q, &mat(m, m, |i, j| f64::from(u8::from(i == j)) - tau * v(i) * v(j)))
    })
}

pub(super) fn qr_rows() -> Vec<Row> {
    let reduced = |x: &[Tensor]| ops::qr(&x[0], QrMode::Reduced).and_then(|(q, r)| positive_qr(&q, &r));
    let tall = |x: &[Nd]| vec![each(x, |a| qr_of(&a[0]).0), each(x, |a| qr_of(&a[0]).1)];
    let first = |x: &Nd, k: usize| x.narrow(x.shape.len() - 1, 0, k);
    let q_of = |x: &[Nd]| {
        let tau = x[1].data.clone();
        each(&x[..1], |a| reflections(&a[0], &tau))
    };
    vec![
        row("qr")
            .rules([Rule::Precise, Rule::Precise])
            .outputs("square", [real([3, 3])], reduced, tall)
            .outputs("more rows", [real([4, 2])], reduced, tall)
            .floats_only()
            .outputs("more columns", [real([2, 2, 3])], reduced, move |x| {
                let q = each(&[first(&x[0], 2)], |a| qr_of(&a[0]).0);
                let r = each(&[q.clone(), x[0].clone()], |a| times(&transposed(&a[0]), &a[1]));
                vec![q, r]
            })
            .floats_only()
            .outputs(
                "nothing",
                [real([3, 0])],
                |x| ops::qr(&x[0], QrMode::Reduced).map(|(q, r)| vec![q, r]),
                |x| vec![x[0].clone(), Nd { shape: vec![0, 0], data: vec![] }],
            )
            .floats_only()
            .check("a complete basis", || {
                let x = ops::sin(&ops::reshape(&Tensor::arange(1.0, 9.0, 1.0), [4, 2])?)?;
                let (q, r) = ops::qr(&x, QrMode::Complete)?;
                let back = ops::sub(&ops::matmul(&q, &r)?, &x)?;
                let gram = ops::sub(&ops::matmul(&mt(&q)?, &q)?, &ops::diag(&Tensor::ones([4], DType::F64), 0)?)?;
                let small = |t: &Tensor| t.to_vec::<f64>().iter().all(|e| e.abs() < 1e-14);
                let rejected = ops::qr(&x.requires_grad_(true), QrMode::Complete);
                Ok(small(&back) && small(&gram) && matches!(rejected, Err(Error::NoGradient { .. })))
            })
            .check("R alone", || {
                let x = regular(&zeros(&[2, 2]))?;
                let (q, r) = ops::qr(&x, QrMode::R)?;
                Ok(q.size() == 0 && r.to_vec::<f64>() == ops::qr(&x, QrMode::Reduced)?.1.to_vec::<f64>())
            }),
        row("geqrf")
            .rules([Rule::Precise, Rule::Precise])
            .outputs(
                "one column",
                [real([2, 1])],
                |x| ops::geqrf(&x[0]).map(|(a, tau)| vec![a, tau]),
                |x| {
                    let (head, tail) = (x[0].data[0], x[0].data[1]);
                    let beta = -head.hypot(tail).copysign(head);
                    let packed = Nd { shape: vec![2, 1], data: vec![beta, tail / (head - beta)] };
                    vec![packed, Nd { shape: vec![1], data: vec![(beta - head) / beta] }]
                },
            )
            .long()
            .check("tracked inputs must be an error", || {
                let x = regular(&zeros(&[2, 2]))?.requires_grad_(true);
                Ok(matches!(ops::geqrf(&x), Err(Error::NoGradient { .. })))
            }),
        row("householder_product")
            .case(
                "one reflection for each column",
                [real([3, 2]), real([2])],
                |x| ops::householder_product(&x[0], &x[1]),
                move |x| first(&q_of(x), 2),
            )
            .case(
                "fewer",
                [real([3, 3]), real([2])],
                |x| ops::householder_product(&x[0], &x[1]),
                move |x| first(&q_of(x), 3),
            )
            .floats_only()
            .case(
                "none",
                [real([2, 2]), real([0])],
                |x| ops::householder_product(&x[0], &x[1]),
                |_| Nd::from_fn(&[2, 2], |ix| f64::from(u8::from(ix[0] == ix[1]))),
            )
            .floats_only()
            .check("the reflections of geqrf must give Q", || {
                let x = ops::sin(&ops::reshape(&Tensor::arange(1.0, 7.0, 1.0), [3, 2])?)?;
                let (packed, tau) = ops::geqrf(&x)?;
                let q = ops::householder_product(&packed, &tau)?;
                let expected = ops::qr(&x, QrMode::Reduced)?.0.to_vec::<f64>();
                Ok(q.to_vec::<f64>().iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-14))
            })
            .check("more columns than rows must be an error", || {
                shape_rejected(ops::householder_product(&zeros(&[2, 3]), &zeros(&[2])))
            })
            .check("more factors than columns must be an error", || {
                shape_rejected(ops::householder_product(&zeros(&[3, 2]), &zeros(&[3])))
            }),
        row("ormqr")
            .case(
                "a product from the left",
                [real([3, 2]), real([2]), real([3, 1])],
                |x| ops::ormqr(&x[0], &x[1], &x[2], true, false),
                move |x| each(&[q_of(x), x[2].clone()], |a| times(&a[0], &a[1])),
            )
            .case(
                "transposed, from the right",
                [real([2, 2]), real([1]), real([3, 2])],
                |x| ops::ormqr(&x[0], &x[1], &x[2], false, true),
                move |x| each(&[q_of(x), x[2].clone()], |a| times(&a[1], &transposed(&a[0]))),
            )
            .floats_only()
            .check("unequal lengths must be an error", || {
                shape_rejected(ops::ormqr(&zeros(&[2, 2]), &zeros(&[2]), &zeros(&[3, 2]), true, false))
            }),
    ]
}
