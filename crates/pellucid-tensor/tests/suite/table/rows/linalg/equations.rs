//! Inverses and equations.

use super::{
    names_the_second, not_square, promotes, regular, regular_of, row, second_is_nan, singular, square, triangle, zeros,
};
use crate::table::algebra::{each, inverse, solve_with_determinant};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    let both = |x: &[Tensor], left| ops::solve(&regular(&x[0])?, &x[1], left);
    let of = |x: &[Nd]| each(x, |a| solve_with_determinant(&regular_of(&a[0]), &a[1]).0);
    let ones = || Tensor::ones([2, 2, 1], DType::F64);
    let tri = |x: &[Tensor], upper, left, unit| ops::solve_triangular(&regular(&x[0])?, &x[1], upper, left, unit);
    let tri_of = |x: &[Nd], upper, unit| {
        each(x, |a| solve_with_determinant(&triangle(&regular_of(&a[0]), upper, unit), &a[1]).0)
    };
    vec![
        square("inv", |x| ops::inv(&regular(x)?), |x| inverse(&regular_of(x)))
            .check("a singular matrix must be an error that names the matrix", || {
                names_the_second(ops::inv(&singular()))
            })
            .check("a singular matrix must give NaN in deferred execution", || second_is_nan(|| ops::inv(&singular())))
            .check("NaN in the input must not be an error", || {
                Ok(ops::inv(&Tensor::full([2, 2], f64::NAN, DType::F64))?.to_vec::<f64>().iter().all(|x| x.is_nan()))
            })
            .check("a matrix that is not square must be an error", || not_square(ops::inv)),
        row("inv_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "regular",
                [real([2, 2])],
                |x| ops::inv_ex(&regular(&x[0])?).map(|(x, info)| vec![x, info]),
                |x| vec![each(x, |a| inverse(&regular_of(&a[0]))), Nd::scalar(0.0)],
            )
            .check("a singular matrix must be an error that names the matrix", || {
                let (x, info) = ops::inv_ex(&singular())?;
                Ok(info.to_vec::<i32>() == [0, 2] && x.to_vec::<f64>()[4..].iter().all(|x| x.is_nan()))
            }),
        row("solve")
            .case("matrices", [real([3, 3]), real([3, 2])], move |x| both(x, true), of)
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| ops::solve(a, b, true))
            })
            .case("a batch", [real([2, 2, 2]), real([2, 2, 1])], move |x| both(x, true), of)
            .floats_only()
            .case(
                "broadcast",
                [real([2, 2]), real([3, 2, 1])],
                move |x| both(x, true),
                move |x| of(&[Nd::from_fn(&[3, 2, 2], |ix| x[0].at(&ix[1..])), x[1].clone()]),
            )
            .floats_only()
            .case(
                "a vector",
                [real([2, 2]), real([2])],
                move |x| both(x, true),
                move |x| of(&[x[0].clone(), x[1].reshape(&[2, 1])]).reshape(&[2]),
            )
            .floats_only()
            .case(
                "from the right",
                [real([2, 2]), real([3, 2])],
                move |x| both(x, false),
                move |x| of(&[x[0].permute(&[1, 0]), x[1].permute(&[1, 0])]).permute(&[1, 0]),
            )
            .floats_only()
            .case("nothing", [real([0, 2, 2]), real([0, 2, 3])], |x| ops::solve(&x[0], &x[1], true), |x| x[1].clone())
            .floats_only()
            .check("a singular matrix must be an error that names the matrix", move || {
                names_the_second(ops::solve(&singular(), &ones(), true))
            })
            .check("a singular matrix must give NaN in deferred execution", move || {
                second_is_nan(|| ops::solve(&singular(), &ones(), true))
            })
            .check("vectors on the right side", || {
                argument_rejected(ops::solve(&regular(&zeros(&[2, 2]))?, &zeros(&[2]), false))
            })
            .check("unequal lengths must be an error", || {
                shape_rejected(ops::solve(&zeros(&[2, 2]), &zeros(&[3, 1]), true))
            })
            .check("unequal batch shapes must be an error", || {
                shape_rejected(ops::solve(&zeros(&[2, 2, 2]), &zeros(&[3, 2, 1]), true))
            }),
        row("solve_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "regular",
                [real([2, 2]), real([2, 1])],
                |x| ops::solve_ex(&regular(&x[0])?, &x[1], true).map(|(x, info)| vec![x, info]),
                move |x| vec![of(x), Nd::scalar(0.0)],
            )
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    Ok(ops::solve_ex(a, b, true)?.0)
                })
            })
            .check("a singular matrix must be an error that names the matrix", move || {
                Ok(ops::solve_ex(&singular(), &ones(), true)?.1.to_vec::<i32>() == [0, 2])
            }),
        row("solve_triangular")
            .case(
                "upper",
                [real([3, 3]), real([3, 2])],
                move |x| tri(x, true, true, false),
                move |x| tri_of(x, true, false),
            )
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    ops::solve_triangular(a, b, true, true, false)
                })
            })
            .case(
                "lower",
                [real([2, 2]), real([2, 1])],
                move |x| tri(x, false, true, false),
                move |x| tri_of(x, false, false),
            )
            .floats_only()
            .case(
                "a diagonal of ones",
                [real([2, 2]), real([2, 1])],
                move |x| tri(x, false, true, true),
                move |x| tri_of(x, false, true),
            )
            .floats_only()
            .case(
                "from the right",
                [real([2, 2]), real([1, 2])],
                move |x| tri(x, true, false, false),
                move |x| tri_of(&[x[0].permute(&[1, 0]), x[1].permute(&[1, 0])], false, false).permute(&[1, 0]),
            )
            .floats_only()
            .case(
                "broadcast",
                [real([2, 2]), real([3, 2, 1])],
                move |x| tri(x, true, true, false),
                move |x| tri_of(&[Nd::from_fn(&[3, 2, 2], |ix| x[0].at(&ix[1..])), x[1].clone()], true, false),
            )
            .floats_only()
            .check("a zero on the diagonal must be an error", move || {
                let a = Tensor::from([[[1.0, 2.0], [0.0, 1.0]], [[1.0, 2.0], [5.0, 0.0]]]);
                let go = || ops::solve_triangular(&a, &ones(), true, true, false);
                Ok(names_the_second(go())? && second_is_nan(go)?)
            })
            .check("unequal lengths must be an error", || {
                shape_rejected(ops::solve_triangular(&zeros(&[2, 2]), &zeros(&[3, 1]), true, true, false))
            }),
        row("tensorinv")
            .case(
                "two axes are mapped to one",
                [real([2, 2, 4])],
                |x| {
                    let y = regular(&ops::reshape(&x[0], [4, 4])?)?;
                    ops::tensorinv(&ops::reshape(&y, [2, 2, 4])?, 2)
                },
                |x| each(&[x[0].reshape(&[4, 4])], |a| inverse(&regular_of(&a[0]))).reshape(&[4, 2, 2]),
            )
            .check("unequal lengths must be an error", || shape_rejected(ops::tensorinv(&zeros(&[2, 3]), 1)))
            .check("zero axes must be an error", || argument_rejected(ops::tensorinv(&zeros(&[2, 2]), 0))),
        row("tensorsolve")
            .case(
                "two axes",
                [real([2, 1, 2]), real([2, 1])],
                |x| {
                    let y = regular(&ops::reshape(&x[0], [2, 2])?)?;
                    ops::tensorsolve(&ops::reshape(&y, [2, 1, 2])?, &x[1], &[])
                },
                move |x| of(&[x[0].reshape(&[2, 2]), x[1].clone()]).reshape(&[2]),
            )
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    ops::tensorsolve(a, &ops::squeeze(b, 1)?, &[])
                })
            })
            .case(
                "moved ones",
                [real([2, 2]), real([2])],
                |x| ops::tensorsolve(&ops::t(&regular(&x[0])?)?, &x[1], &[0]),
                move |x| of(&[x[0].clone(), x[1].reshape(&[2, 1])]).reshape(&[2]),
            )
            .floats_only()
            .check("unequal sizes must be an error", || {
                shape_rejected(ops::tensorsolve(&zeros(&[2, 3]), &zeros(&[2]), &[]))
            }),
    ]
}
