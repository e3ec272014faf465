//! Exponents and neighbours of numbers, greatest common divisors, least common multiples.

use crate::table::row::{Row, Rule, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns the largest number that divides both, by trial division.
fn divisor(a: f64, b: f64) -> f64 {
    let most = a.abs().max(b.abs());
    (1..=most as i64).map(|d| d as f64).filter(|d| a % d == 0.0 && b % d == 0.0).fold(0.0, f64::max)
}

/// Returns the least common multiple by trial division; 0 if an operand is 0.
fn multiple(a: f64, b: f64) -> f64 {
    let (a, b) = (a.abs(), b.abs());
    if a == 0.0 || b == 0.0 {
        return 0.0;
    }
    (1..=b as i64).map(|k| k as f64 * a).find(|m| m % b == 0.0).expect("b·a must be a multiple of b")
}

/// Checks every pair of integers from −11 to 11 (at least 0 for `u8`), in every integer dtype.
fn agrees_with_trial_division(
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    reference: fn(f64, f64) -> f64,
) -> Result<bool> {
    let dtypes = [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64];
    dtypes.into_iter().try_fold(true, |right, dtype| {
        let numbers: Vec<i64> = (if dtype == DType::U8 { 0 } else { -11 }..=11).collect();
        let x = Tensor::new(&numbers[..], [numbers.len()]).to_dtype(dtype);
        let y = call(&x, &ops::unsqueeze(&x, 1)?)?;
        let pairs = numbers.iter().flat_map(|&b| numbers.iter().map(move |&a| reference(a as f64, b as f64) as i64));
        Ok(right && y.dtype() == dtype && y.to_vec::<i64>() == pairs.collect::<Vec<_>>())
    })
}

pub(super) fn rows() -> Vec<Row> {
    let mantissa = |x: f64| {
        let mut m = x;
        while m.abs() >= 1.0 {
            m *= 0.5;
        }
        while m != 0.0 && m.abs() < 0.5 {
            m *= 2.0;
        }
        m
    };
    vec![
        Row::new("frexp")
            .rule(Rule::Floats)
            .case("mantissas", [real([2, 3])], |x| Ok(ops::frexp(&x[0])?.0), move |x| x[0].map(mantissa))
            .away(&[-1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
            .ordinary()
            .check("mantissa and exponent must reproduce the number", || {
                let values = [1.0, -0.75, 1e-320, f64::MIN_POSITIVE, f64::MAX, -5e-324, 0.1, 8.0, 1.0 - 1e-16];
                let (m, e) = ops::frexp(&Tensor::from(values))?;
                let (m, exponents) = (m.to_vec::<f64>(), e.to_vec::<i32>());
                let is_exact = |i: usize| {
                    let half = exponents[i].div_euclid(2);
                    m[i] * 2f64.powi(half) * 2f64.powi(exponents[i] - half) == values[i]
                };
                Ok((0..values.len()).all(|i| (0.5..1.0).contains(&m[i].abs()) && is_exact(i))
                    && e.dtype() == DType::I32)
            })
            .check("zeros, infinities and NaN", || {
                let (m, e) = ops::frexp(&Tensor::from([0.0, -0.0, f64::INFINITY, f64::NAN]))?;
                let m = m.to_vec::<f64>();
                let zeros = m[0] == 0.0 && m[1].is_sign_negative();
                Ok(zeros && m[2] == f64::INFINITY && m[3].is_nan() && e.to_vec::<i32>() == [0; 4])
            }),
        Row::new("nextafter")
            .untracked()
            .check("every kind of f64", || {
                let (tiny, least) = (f64::MIN_POSITIVE, 5e-324);
                let values = [1.0, 0.1, -3.7, 0.0, -0.0, least, 1e-310, tiny, 1e-300, 1e-290, 1e300, f64::MAX];
                let x = Tensor::from(values);
                let up = ops::nextafter(&x, &Tensor::from(f64::INFINITY))?.to_vec::<f64>();
                let down = ops::nextafter(&x, &Tensor::from(f64::NEG_INFINITY))?.to_vec::<f64>();
                Ok((0..values.len()).all(|i| up[i] == values[i].next_up() && down[i] == values[i].next_down()))
            })
            .check("every kind of f32", || {
                let values = [1f32, 0.1, -3.7, 0.0, 1e-45, 1e-40, f32::MIN_POSITIVE, 1e-35, -1e-31, 1e30, f32::MAX];
                let x = Tensor::from(values);
                let up = ops::nextafter(&x, &Tensor::from(f32::INFINITY))?.to_vec::<f32>();
                let down = ops::nextafter(&x, &Tensor::from(f32::NEG_INFINITY))?.to_vec::<f32>();
                Ok((0..values.len()).all(|i| up[i] == values[i].next_up() && down[i] == values[i].next_down()))
            })
            .check("infinities, equal operands and NaN", || {
                let a = Tensor::from([f64::INFINITY, f64::NEG_INFINITY, 2.0, 1.0, f64::NAN]);
                let b = Tensor::from([0.0, 0.0, 2.0, f64::NAN, 1.0]);
                let y = ops::nextafter(&a, &b)?.to_vec::<f64>();
                Ok(y[..3] == [f64::MAX, f64::MIN, 2.0] && y[3].is_nan() && y[4].is_nan())
            })
            .check("other dtypes must be an error", || {
                let result = ops::nextafter(&Tensor::from([1f32]), &Tensor::from([1f64]));
                Ok(matches!(result, Err(Error::DTypeMismatch { .. })))
            })
            .check("the gradient must flow to the first operand", || {
                let [a, b] = [1.0, 2.0].map(|v| Tensor::from([v]).requires_grad_(true));
                ops::nextafter(&a, &b)?.backward();
                let gradient = |t: &Tensor| t.grad().map(|g| g.to_vec::<f64>());
                Ok(gradient(&a) == Some(vec![1.0]) && gradient(&b).is_none_or(|g| g == [0.0]))
            }),
        Row::new("gcd")
            .untracked()
            .check("the result must agree with trial division", || agrees_with_trial_division(ops::gcd, divisor))
            .check("floats must be an error", || {
                Ok(matches!(ops::gcd(&Tensor::from([1.0]), &Tensor::from([1i64])), Err(Error::DTypeMismatch { .. })))
            })
            .check("the longest division sequence must give a correct result", || {
                // Adjacent Fibonacci numbers.
                let (a, b) = (7_540_113_804_746_346_429i64, 4_660_046_610_375_530_309);
                let y = ops::gcd(&Tensor::from([a, 6 * (a / 7), 0]), &Tensor::from([b, 4 * (a / 7), 0]))?;
                Ok(y.to_vec::<i64>() == [1, 2 * (a / 7), 0])
            })
            .check("the longest division sequences of every magnitude must give correct results", || {
                let (mut a, mut b) = (1i64, 1i64);
                while let Some(next) = a.checked_add(b) {
                    (a, b) = (b, next);
                    let y = ops::gcd(&Tensor::from([a, b, -a, b]), &Tensor::from([b, a, b, -a]))?;
                    if y.to_vec::<i64>() != [1; 4] {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
            .check("shapes that do not broadcast must be an error", || {
                shape_rejected(ops::gcd(&Tensor::from([1i64, 2]), &Tensor::from([1i64, 2, 3])))
            }),
        Row::new("lcm")
            .untracked()
            .check("the result must agree with trial division", || agrees_with_trial_division(ops::lcm, multiple))
            .check("floats must be an error", || {
                Ok(matches!(ops::lcm(&Tensor::from([1i64]), &Tensor::from([1.0])), Err(Error::DTypeMismatch { .. })))
            })
            .check("shapes that do not broadcast must be an error", || {
                shape_rejected(ops::lcm(&Tensor::from([1i64, 2]), &Tensor::from([1i64, 2, 3])))
            }),
    ]
}
