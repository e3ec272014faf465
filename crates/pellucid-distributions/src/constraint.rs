//! Constraints: the ranges of parameters and the supports of distributions.

use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};
use std::fmt;

/// A set of values: the range of a parameter, or the support of a distribution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Constraint {
    /// All finite numbers.
    Real,
    /// Positive finite numbers.
    Positive,
    /// Nonnegative finite numbers.
    NonNegative,
    /// The interval [0, 1].
    UnitInterval,
    /// The interval (0, 1).
    OpenUnitInterval,
    /// The interval (0, 1], of success probabilities above 0.
    PositiveProbability,
    /// The interval [0, 1), of success probabilities below 1.
    ProbabilityBelowOne,
    /// The numbers 0 and 1.
    Boolean,
    /// The integers 0, 1, 2, ..
    NonNegativeInteger,
    /// The integers from 0 to the bound, inclusive.
    IntegerUpTo(Tensor),
    /// The interval [low, high].
    Interval(Tensor, Tensor),
    /// The interval (low, high).
    OpenInterval(Tensor, Tensor),
    /// Finite numbers that are at least the bound.
    AtLeast(Tensor),
    /// Vectors along the last axis, with nonnegative elements that sum to 1. The tolerance of the sum is 1e-5, or 16
    /// rounding errors if that is larger.
    Simplex,
    /// One-hot vectors along the last axis.
    OneHot,
    /// Vectors along the last axis, with nonnegative integers that have this sum.
    Counts(usize),
    /// Vectors of finite elements along the last axis.
    RealVector,
    /// Lower triangular matrices with a positive diagonal.
    LowerCholesky,
    /// Symmetric matrices. The tolerance relative to the largest element is 1e-5, or 16 rounding errors if that is
    /// larger.
    Symmetric,
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Constraint::Real => "finite",
            Constraint::Positive => "finite and above 0",
            Constraint::NonNegative => "finite and at least 0",
            Constraint::UnitInterval => "in [0, 1]",
            Constraint::OpenUnitInterval => "in (0, 1)",
            Constraint::PositiveProbability => "in (0, 1]",
            Constraint::ProbabilityBelowOne => "in [0, 1)",
            Constraint::Boolean => "0 or 1",
            Constraint::NonNegativeInteger => "a nonnegative integer",
            Constraint::IntegerUpTo(_) => "an integer from 0 to the bound",
            Constraint::Interval(..) => "in the interval",
            Constraint::OpenInterval(..) => "in the open interval",
            Constraint::AtLeast(_) => "at least the bound",
            Constraint::Simplex => "nonnegative with sum 1 along the last axis",
            Constraint::OneHot => "one-hot along the last axis",
            Constraint::Counts(_) => "nonnegative integers with the given sum along the last axis",
            Constraint::RealVector => "finite",
            Constraint::LowerCholesky => "lower triangular with a positive diagonal",
            Constraint::Symmetric => "symmetric",
        })
    }
}

impl Constraint {
    /// Returns the number of event axes: 0 for numbers, 1 for vectors and 2 for matrices.
    pub fn event_rank(&self) -> usize {
        match self {
            Constraint::Simplex | Constraint::OneHot | Constraint::Counts(_) | Constraint::RealVector => 1,
            Constraint::LowerCholesky | Constraint::Symmetric => 2,
            _ => 0,
        }
    }

    /// Returns a mask of the values in the set, with one element per value. NaN is in no set.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if x and a bound do not broadcast; [`Error::AxisOutOfRange`] if x has too few axes.
    #[pellucid_derive::panicking_form]
    pub fn try_contains(&self, x: &Tensor) -> Result<Tensor> {
        let x = &x.detach();
        let both = |a: Result<Tensor>, b: Result<Tensor>| ops::logical_and(&a?, &b?);
        let is_integer = || ops::eq(x, &ops::floor(x)?);
        let tolerance = 1e-5f64.max(16.0 * x.dtype().epsilon().unwrap_or(0.0));
        let has_sum = |sum: f64| ops::le(&ops::abs(&ops::sub(&ops::sum(x, -1)?, sum)?)?, tolerance);
        match self {
            Constraint::Real => ops::isfinite(x),
            Constraint::Positive => both(ops::gt(x, 0), ops::isfinite(x)),
            Constraint::NonNegative => both(ops::ge(x, 0), ops::isfinite(x)),
            Constraint::UnitInterval => both(ops::ge(x, 0), ops::le(x, 1)),
            Constraint::OpenUnitInterval => both(ops::gt(x, 0), ops::lt(x, 1)),
            Constraint::PositiveProbability => both(ops::gt(x, 0), ops::le(x, 1)),
            Constraint::ProbabilityBelowOne => both(ops::ge(x, 0), ops::lt(x, 1)),
            Constraint::Boolean => ops::logical_or(&ops::eq(x, 0)?, &ops::eq(x, 1)?),
            Constraint::NonNegativeInteger => both(both(ops::ge(x, 0), ops::isfinite(x)), is_integer()),
            Constraint::IntegerUpTo(high) => both(both(ops::ge(x, 0), ops::le(x, high.detach())), is_integer()),
            Constraint::Interval(low, high) => both(ops::ge(x, low.detach()), ops::le(x, high.detach())),
            Constraint::OpenInterval(low, high) => both(ops::gt(x, low.detach()), ops::lt(x, high.detach())),
            Constraint::AtLeast(low) => both(ops::ge(x, low.detach()), ops::isfinite(x)),
            Constraint::Simplex => both(ops::all(&ops::ge(x, 0)?, -1), has_sum(1.0)),
            Constraint::OneHot => both(ops::all(&Constraint::Boolean.try_contains(x)?, -1), has_sum(1.0)),
            Constraint::Counts(sum) => {
                both(ops::all(&Constraint::NonNegativeInteger.try_contains(x)?, -1), has_sum(*sum as f64))
            }
            Constraint::RealVector => ops::all(&ops::isfinite(x)?, -1),
            Constraint::LowerCholesky => {
                let lower = ops::all(&ops::eq(x, &ops::tril(x, 0)?)?, [-2, -1]);
                both(lower, ops::all(&ops::gt(&ops::diagonal(x, 0, -2, -1)?, 0)?, -1))
            }
            Constraint::Symmetric => {
                let difference = ops::abs(&ops::sub(x, &ops::transpose(x, -1, -2)?)?)?;
                let largest = ops::max(&ops::abs(x)?, ops::over([-2, -1]).keepdims())?;
                ops::all(&ops::le(&difference, &ops::mul(&largest, tolerance)?)?, [-2, -1])
            }
        }
    }

    /// Returns an error that names `op` and the parameter unless all values of x are in the set. Values that cannot be
    /// read without waiting, as in captured steps and on deferred devices, pass.
    pub(crate) fn check(&self, op: &'static str, parameter: &str, x: &Tensor) -> Result<()> {
        if x.rank() < self.event_rank() {
            let help = format!("`{parameter}` must have at least {} axes", self.event_rank());
            return Err(Error::shapes(op, [x.shape()], help));
        }
        if !x.is_readable() || x.size() == 0 {
            return Ok(());
        }
        let inside = self.try_contains(x)?;
        if ops::all(&inside, ..)?.try_item::<bool>()? {
            return Ok(());
        }
        let example = match self.event_rank() {
            0 => {
                let at = inside.try_to_vec::<bool>()?.iter().position(|inside| !inside).unwrap_or(0);
                format!(", got {:?}", x.try_to_vec::<f64>()?[at])
            }
            _ => String::new(),
        };
        Err(Error::invalid(op, format!("`{parameter}` must be {self}{example}")))
    }
}
