//! Singular values, eigenvalues, and functions of matrices.

use super::{
    mt, not_square, positive, positive_of, promotes, regular, regular_of, row, square, symmetric, symmetric_of, zeros,
};
use crate::table::algebra::{
    Mat, each, eigen, function, identity, inverse, lists, mat, singular_values, times, transposed,
};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, real, shape_rejected};
use pellucid_tensor::ops::{self, Cutoff};
use pellucid_tensor::{DType, Error, Tensor};

/// Returns U·Vᵀ, which does not depend on the choice of signs.
fn rotation_of(a: &Mat) -> Mat {
    match a.len() < a[0].len() {
        true => times(&function(&times(a, &transposed(a)), |w| 1.0 / w.sqrt()), a),
        false => times(a, &function(&times(&transposed(a), a), |w| 1.0 / w.sqrt())),
    }
}

pub(super) fn singular_rows() -> Vec<Row> {
    let free = |x: &[Tensor]| {
        let (u, s, vt) = ops::svd(&x[0], false)?;
        Ok(vec![ops::matmul(&u, &vt)?, s])
    };
    let of = |x: &[Nd]| vec![each(x, |a| rotation_of(&a[0])), lists(&x[0], singular_values)];
    let inverted = |a: &Mat| match a.len() < a[0].len() {
        true => times(&transposed(a), &inverse(&times(a, &transposed(a)))),
        false => times(&inverse(&times(&transposed(a), a)), &transposed(a)),
    };
    // Matrices of rank 1, used unchanged.
    let thin = |x: &Tensor| ops::matmul(x, &mt(x)?);
    let rank = |x: &Tensor, cutoff: &Cutoff| Ok(ops::matrix_rank(x, cutoff)?.to_vec::<i64>());
    let steps = || ops::diag(&Tensor::from([4.0, 1.0, 1e-3, 1e-20]), 0);
    vec![
        row("svd")
            .rules([Rule::Precise, Rule::Precise])
            .outputs("square", [real([3, 3])], free, of)
            .outputs("more rows", [real([2, 3, 2])], free, of)
            .floats_only()
            .outputs("more columns", [real([2, 3])], free, of)
            .floats_only()
            .outputs("nothing", [real([0, 2, 2])], free, |x| vec![x[0].clone(), x[0].reshape(&[0, 2])])
            .floats_only()
            .outputs(
                "full bases",
                [real([3, 2])],
                |x| {
                    let (u, s, vt) = ops::svd(&x[0], true)?;
                    let us = ops::mul(&ops::narrow(&u, -1, 0, 2)?, &ops::unsqueeze(&s, -2)?)?;
                    Ok(vec![ops::matmul(&us, &vt)?, ops::matmul(&u.detach(), &mt(&u.detach())?)?])
                },
                |x| vec![x[0].clone(), Nd::from_fn(&[3, 3], |ix| f64::from(u8::from(ix[0] == ix[1])))],
            )
            .long()
            .check("a matrix without columns", || {
                let (u, s, vt) = ops::svd(&zeros(&[2, 0]), true)?;
                Ok(u.to_vec::<f64>() == [1.0, 0.0, 0.0, 1.0] && s.size() == 0 && vt.size() == 0)
            })
            .check("a vector must be an error", || shape_rejected(ops::svd(&zeros(&[3]), false))),
        row("svdvals")
            .case("square", [real([3, 3])], |x| ops::svdvals(&x[0]), |x| lists(&x[0], singular_values))
            .case("a batch", [real([2, 2, 3])], |x| ops::svdvals(&x[0]), |x| lists(&x[0], singular_values))
            .floats_only()
            .case("nothing", [real([2, 0])], |x| ops::svdvals(&x[0]), |_| Nd { shape: vec![0], data: vec![] })
            .floats_only()
            .check("NaN", || {
                Ok(ops::svdvals(&Tensor::full([2, 2], f64::NAN, DType::F64))?
                    .to_vec::<f64>()
                    .iter()
                    .all(|x| x.is_nan()))
            }),
        row("polar")
            .rules([Rule::Precise, Rule::Precise])
            .outputs(
                "square",
                [real([3, 3])],
                |x| ops::polar(&x[0]).map(|(q, h)| vec![q, h]),
                |x| {
                    vec![
                        each(x, |a| rotation_of(&a[0])),
                        each(x, |a| function(&times(&transposed(&a[0]), &a[0]), f64::sqrt)),
                    ]
                },
            )
            .outputs(
                "more rows, equal singular values",
                [real([3, 1])],
                |x| {
                    let ones = ops::diag_embed(&ops::ones([3], x[0].dtype())?, 0, -2, -1)?;
                    ops::polar(&ops::concatenate(&[&mt(&x[0])?, &ones], -2)?).map(|(q, h)| vec![q, h])
                },
                |x| {
                    let tall =
                        |v: &Mat| mat(4, 3, |i, j| if i == 0 { v[j][0] } else { f64::from(u8::from(i == j + 1)) });
                    let root = |a: &Mat| function(&times(&transposed(a), a), f64::sqrt);
                    vec![each(x, |v| rotation_of(&tall(&v[0]))), each(x, |v| root(&tall(&v[0])))]
                },
            )
            .floats_only()
            .check("more columns than rows must be an error", || shape_rejected(ops::polar(&zeros(&[2, 3])))),
        row("pinv")
            .case(
                "square",
                [real([3, 3])],
                |x| ops::pinv(&regular(&x[0])?, &Cutoff::default()),
                |x| each(x, |a| inverse(&regular_of(&a[0]))),
            )
            .case(
                "more rows",
                [real([2, 3, 2])],
                |x| ops::pinv(&x[0], &Cutoff::default()),
                move |x| each(x, |a| inverted(&a[0])),
            )
            .floats_only()
            .case(
                "more columns",
                [real([2, 3])],
                |x| ops::pinv(&x[0], &Cutoff::default()),
                move |x| each(x, |a| inverted(&a[0])),
            )
            .floats_only()
            .case(
                "of rank 1",
                [real([3, 1])],
                move |x| ops::pinv(&thin(&x[0])?, &Cutoff::default()),
                |x| {
                    each(x, |a| {
                        let size: f64 = a[0].iter().map(|row| row[0] * row[0]).sum();
                        mat(3, 3, |i, j| a[0][i][0] * a[0][j][0] / (size * size))
                    })
                },
            )
            .floats_only()
            .case(
                "symmetric",
                [real([2, 2])],
                |x| ops::pinv(&positive(&x[0])?, &Cutoff { hermitian: true, ..Cutoff::default() }),
                |x| each(x, |a| inverse(&positive_of(&a[0]))),
            )
            .floats_only()
            .case(
                "nothing",
                [real([0, 3])],
                |x| ops::pinv(&x[0], &Cutoff::default()),
                |_| Nd { shape: vec![3, 0], data: vec![] },
            )
            .floats_only()
            .check("small singular values must count as zero", move || {
                let x = ops::pinv(&steps()?, &Cutoff::relative(0.1))?;
                Ok(ops::diagonal(&x, 0, 0, 1)?.to_vec::<f64>() == [0.25, 1.0, 0.0, 0.0])
            })
            .check("a tolerance for each matrix", || {
                let cutoff = Cutoff { atol: Some(Tensor::from([1.0, 2.0, 3.0])), ..Cutoff::default() };
                shape_rejected(ops::pinv(&zeros(&[2, 2, 2]), &cutoff))
            }),
        row("matrix_rank")
            .rule(Rule::OfPrecise(DType::I64))
            .untracked()
            .case(
                "full",
                [real([2, 3, 3])],
                |x| ops::matrix_rank(&regular(&x[0])?, &Cutoff::default()),
                |_| Nd { shape: vec![2], data: vec![3.0; 2] },
            )
            .case(
                "one",
                [real([3, 1])],
                move |x| ops::matrix_rank(&thin(&x[0])?, &Cutoff::default()),
                |_| Nd::scalar(1.0),
            )
            .floats_only()
            .check("tolerances", move || {
                let (x, bound) = (steps()?, |bound: f64| Some(Tensor::from(bound)));
                let absolute = Cutoff { atol: bound(1e-2), ..Cutoff::default() };
                let both = Cutoff { atol: bound(1e-2), rtol: bound(0.5), hermitian: true };
                Ok(rank(&x, &Cutoff::default())? == [3] && rank(&x, &absolute)? == [2] && rank(&x, &both)? == [1])
            })
            .check("an empty input", move || Ok(rank(&zeros(&[2, 0, 3]), &Cutoff::default())? == [0, 0])),
        row("lstsq")
            .rules([Rule::Precise, Rule::Precise, Rule::OfPrecise(DType::I64), Rule::Precise])
            .outputs(
                "more rows",
                [real([3, 2]), real([3, 1])],
                |x| ops::lstsq(&x[0], &x[1], None).map(|l| vec![l.solution, l.residuals, l.rank, l.singular_values]),
                move |x| {
                    let solution = each(x, |a| times(&inverted(&a[0]), &a[1]));
                    let rest = |a: &[Mat]| {
                        let product = times(&a[0], &times(&inverted(&a[0]), &a[1]));
                        vec![vec![(0..3).map(|i| (product[i][0] - a[1][i][0]).powi(2)).sum()]]
                    };
                    vec![solution, each(x, rest).reshape(&[1]), Nd::scalar(2.0), lists(&x[0], singular_values)]
                },
            )
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    Ok(ops::lstsq(a, b, None)?.solution)
                })
            })
            .outputs(
                "more columns, vectors",
                [real([2, 2, 3]), real([2, 2])],
                |x| ops::lstsq(&x[0], &x[1], None).map(|l| vec![l.solution]),
                move |x| {
                    let b = x[1].reshape(&[2, 2, 1]);
                    vec![each(&[x[0].clone(), b], |a| times(&inverted(&a[0]), &a[1])).reshape(&[2, 3])]
                },
            )
            .floats_only()
            .check("unequal row counts must be an error", || {
                shape_rejected(ops::lstsq(&zeros(&[3, 2]), &zeros(&[2, 1]), None))
            }),
    ]
}

pub(super) fn symmetric_rows() -> Vec<Row> {
    let eigenvalues = |x: &[Nd]| lists(&x[0], |a| eigen(&symmetric_of(a)).0);
    let upper = |x: &Tensor| {
        let x = symmetric(x)?;
        ops::add(&ops::triu(&x, 0)?, ops::tril(&ops::full_like(&x, 9.0)?, -1)?)
    };
    vec![
        row("eigh")
            .rules([Rule::Precise, Rule::Precise])
            .outputs(
                "one",
                [real([3, 3])],
                |x| {
                    let (w, v) = ops::eigh(&symmetric(&x[0])?, false)?;
                    let scaled = ops::mul(&v, &ops::unsqueeze(&ops::sin(&w)?, -2)?)?;
                    Ok(vec![w, ops::matmul(&scaled, &mt(&v)?)?])
                },
                move |x| vec![eigenvalues(x), each(x, |a| function(&symmetric_of(&a[0]), f64::sin))],
            )
            .outputs(
                "nothing",
                [real([0, 2, 2])],
                |x| ops::eigh(&x[0], false).map(|(w, v)| vec![w, v]),
                |x| vec![x[0].reshape(&[0, 2]), x[0].clone()],
            )
            .floats_only()
            .check("only the given triangle must be read", || {
                let x = Tensor::from([[1.0, 7.0], [0.0, 2.0]]);
                let values = |upper| Ok::<_, Error>(ops::eigh(&x, upper)?.0.to_vec::<f64>());
                Ok(values(false)? == [1.0, 2.0] && values(true)?[0] < -5.0)
            })
            .check("a matrix that is not square must be an error", || not_square(|x| ops::eigh(x, false))),
        row("eigvalsh")
            .case("one", [real([3, 3])], |x| ops::eigvalsh(&symmetric(&x[0])?, false), eigenvalues)
            .case("a batch", [real([2, 1, 2, 2])], |x| ops::eigvalsh(&symmetric(&x[0])?, false), eigenvalues)
            .floats_only()
            .case("the upper triangle", [real([2, 2])], move |x| ops::eigvalsh(&upper(&x[0])?, true), eigenvalues)
            .long()
            .case(
                "nothing",
                [real([2, 0, 0])],
                |x| ops::eigvalsh(&x[0], false),
                |_| Nd { shape: vec![2, 0], data: vec![] },
            )
            .floats_only(),
        square("matrix_sqrth", |x| ops::matrix_sqrth(&positive(x)?), |x| function(&positive_of(x), f64::sqrt))
            .case(
                "equal eigenvalues",
                [real([3, 1])],
                |x| ops::matrix_sqrth(&positive(&x[0])?),
                |x| each(x, |v| function(&positive_of(&v[0]), f64::sqrt)),
            )
            .floats_only(),
        square("matrix_exp", ops::matrix_exp, |x| {
            let small = mat(x.len(), x.len(), |i, j| x[i][j] / 1024.0);
            let (mut term, mut sum) = (identity(x.len()), identity(x.len()));
            for k in 1..12 {
                term = times(&term, &small);
                term.iter_mut().flatten().for_each(|t| *t /= f64::from(k));
                sum = mat(x.len(), x.len(), |i, j| sum[i][j] + term[i][j]);
            }
            (0..10).fold(sum, |y, _| times(&y, &y))
        })
        .scale(16.0)
        .check("matrices of large norm", || {
            let y = ops::matrix_exp(&Tensor::from([[0.0, 1e3], [0.0, 0.0]]))?.to_vec::<f64>();
            Ok(y.iter().zip([1.0, 1e3, 0.0, 1.0]).all(|(y, expected)| (y - expected).abs() < 1e-9))
        })
        .check("a matrix that is not square must be an error", || not_square(ops::matrix_exp)),
    ]
}
