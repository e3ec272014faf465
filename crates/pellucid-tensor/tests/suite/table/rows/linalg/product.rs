//! Products and powers.

use super::{names_the_second, not_square, singular, zeros};
use crate::table::algebra::{each, mat, times};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, one, real, shape_rejected};
use pellucid_tensor::{GradCheckOptions, Tensor, gradcheck, ops};

pub(super) fn rows() -> Vec<Row> {
    let power = |x: &[Nd], n: usize| each(x, |a| (1..n).fold(a[0].clone(), |power, _| times(&power, &a[0])));
    let number = |row: Row, rule| row.rule(rule).ulps(64.0).scale(64.0).ordinary().any_zero();
    vec![
        number(Row::new("matrix_power"), Rule::NoTruth)
            .case("squared", [real([3, 3])], |x| ops::matrix_power(&x[0], 2), move |x| power(x, 2))
            .case("to the fifth", [real([2, 2, 2])], |x| ops::matrix_power(&x[0], 5), move |x| power(x, 5))
            .floats_only()
            .case("itself", [real([2, 2])], |x| ops::matrix_power(&x[0], 1), |x| x[0].clone())
            .floats_only()
            .check("the identity", || {
                let y = ops::matrix_power(&zeros(&[2, 2, 2]), 0)?;
                Ok(y.to_vec::<f64>() == [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
            })
            .check("a negative power", || {
                let x = Tensor::from([[2.0, 0.0], [0.0, 4.0]]).requires_grad_(true);
                gradcheck(|x| one(ops::matrix_power(&x[0], -3)), &[&x], GradCheckOptions::default())?;
                Ok(ops::matrix_power(&x, -2)?.to_vec::<f64>() == [0.25, 0.0, 0.0, 0.0625])
            })
            .check("a negative power of a singular matrix must be an error", || {
                names_the_second(ops::matrix_power(&singular(), -1))
            })
            .check("a matrix that is not square must be an error", || not_square(|x| ops::matrix_power(x, 2))),
        number(Row::new("multi_dot"), Rule::NoTruth)
            .case(
                "three",
                [real([2, 3]), real([3, 1]), real([1, 4])],
                |x| ops::multi_dot(&[&x[0], &x[1], &x[2]]),
                |x| {
                    each(&x[..1], |a| {
                        let plain = |x: &Nd| mat(x.shape[0], x.shape[1], |i, j| x.at(&[i, j]));
                        times(&times(&a[0], &plain(&x[1])), &plain(&x[2]))
                    })
                },
            )
            .floats_only()
            .case(
                "vectors at the ends",
                [real([2]), real([2, 3]), real([3])],
                |x| ops::multi_dot(&[&x[0], &x[1], &x[2]]),
                |x| {
                    Nd::scalar(
                        (0..2)
                            .flat_map(|i| (0..3).map(move |j| (i, j)))
                            .map(|(i, j)| x[0].at(&[i]) * x[1].at(&[i, j]) * x[2].at(&[j]))
                            .sum(),
                    )
                },
            )
            .check("one matrix must be an error", || argument_rejected(ops::multi_dot(&[&zeros(&[2, 2])])))
            .check("unequal lengths must be an error", || {
                shape_rejected(ops::multi_dot(&[&zeros(&[2, 3]), &zeros(&[2, 2])]))
            })
            .check("a batch must be an error", || {
                shape_rejected(ops::multi_dot(&[&zeros(&[2, 2]), &zeros(&[1, 2, 2])]))
            }),
        number(Row::new("vander"), Rule::Any)
            .case(
                "square",
                [real([3])],
                |x| ops::vander(&x[0], None),
                |x| Nd::from_fn(&[3, 3], |ix| x[0].at(&ix[..1]).powi(ix[1] as i32)),
            )
            .floats_only()
            .case(
                "a number of powers",
                [real([2, 3])],
                |x| ops::vander(&x[0], Some(4)),
                |x| Nd::from_fn(&[2, 3, 4], |ix| x[0].at(&ix[..2]).powi(ix[2] as i32)),
            )
            .floats_only()
            .check("zeros", || {
                let x = Tensor::from([0.0]).requires_grad_(true);
                gradcheck(|x| one(ops::vander(&x[0], Some(3))), &[&x], GradCheckOptions::default())?;
                Ok(ops::vander(&x, Some(3))?.to_vec::<f64>() == [1.0, 0.0, 0.0])
            })
            .check("zero powers must be an error", || argument_rejected(ops::vander(&zeros(&[2]), Some(0))))
            .check("a 0-d tensor must be an error", || shape_rejected(ops::vander(&Tensor::from(1.0), None))),
        number(Row::new("vecdot"), Rule::Counts)
            .case(
                "the last axis",
                [real([2, 3]), real([2, 3])],
                |x| ops::vecdot(&x[0], &x[1], -1),
                |x| Nd::from_fn(&[2], |ix| (0..3).map(|k| x[0].at(&[ix[0], k]) * x[1].at(&[ix[0], k])).sum()),
            )
            .floats_only()
            .case(
                "the first, broadcast",
                [real([2, 1]), real([2, 3])],
                |x| ops::vecdot(&x[0], &x[1], 0),
                |x| Nd::from_fn(&[3], |ix| (0..2).map(|k| x[0].at(&[k, 0]) * x[1].at(&[k, ix[0]])).sum()),
            )
            .floats_only()
            .case(
                "all pairs",
                [real([2, 1, 3]), real([2, 3])],
                |x| ops::vecdot(&x[0], &x[1], -1),
                |x| Nd::from_fn(&[2, 2], |ix| (0..3).map(|k| x[0].at(&[ix[0], 0, k]) * x[1].at(&[ix[1], k])).sum()),
            )
            .floats_only()
            .check("unequal shapes must be an error", || shape_rejected(ops::vecdot(&zeros(&[2]), &zeros(&[3]), 0))),
    ]
}
