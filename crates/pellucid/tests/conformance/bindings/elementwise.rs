//! Elementwise operations of one, two and three operands; comparisons and logic.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::{DType, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    one_operand(table);
    compositions(table);
    two_operands(table);
    comparisons(table);
    three_operands(table);
}

fn one_operand(table: &mut Binder) {
    table.unary("abs", ops::abs);
    table.unary("acosh", ops::acosh);
    table.unary("asin", ops::asin);
    table.unary("asinh", ops::asinh);
    table.unary("bitwise_not", ops::bitwise_not);
    table.unary("ceil", ops::ceil);
    table.unary("clone", ops::copy);
    table.unary("cosh", ops::cosh);
    table.unary("digamma", ops::digamma);
    table.unary("erf", ops::erf);
    table.unary("erfc", ops::erfc);
    table.unary("erfinv", ops::erfinv);
    table.unary("exp", ops::exp);
    table.unary("exp2", ops::exp2);
    table.unary("floor", ops::floor);
    table.unary("frac", ops::frac);
    table.unary("isfinite", ops::isfinite);
    table.unary("isinf", ops::isinf);
    table.unary("isnan", ops::isnan);
    table.unary("log", ops::log);
    table.unary("log1p", ops::log1p);
    table.unary("log2", ops::log2);
    table.unary("logical_not", ops::logical_not);
    table.unary("neg", ops::neg);
    table.unary("reciprocal", ops::reciprocal);
    table.unary("round", ops::round);
    table.unary("rsqrt", ops::rsqrt);
    table.unary("sgn", ops::sign);
    table.unary("sigmoid", ops::sigmoid);
    table.unary("sign", ops::sign);
    table.unary("sin", ops::sin);
    table.unary("sinc", ops::sinc);
    table.unary("sinh", ops::sinh);
    table.unary("sqrt", ops::sqrt);
    table.unary("square", ops::square);
    table.unary("tan", ops::tan);
    table.unary("tanh", ops::tanh);
    table.unary("trunc", ops::trunc);
    table.unary("acos", ops::acos);
    table.unary("angle", ops::angle);
    table.unary("atan", ops::atan);
    table.unary("atanh", ops::atanh);
    table.unary("cos", ops::cos);
    table.unary("expm1", ops::expm1);
    table.unary("isneginf", ops::isneginf);
    table.unary("log10", ops::log10);
}

fn compositions(table: &mut Binder) {
    table.two("frexp", |c| ops::frexp(c.x()?));
    table.unary("isreal", |x| ops::full(x.shape(), true, DType::Bool));
    table.unary("deg2rad", ops::deg2rad);
    table.unary("rad2deg", ops::rad2deg);
    table.unary("positive", |x| Ok(x.clone()));
    table.unary("isposinf", ops::isposinf);
    table.unary("signbit", |x| ops::lt(&ops::copysign(1.0, x)?, 0.0));
    table.one("fill", |c| {
        let value = c.scalar(1, "value").or_else(|| c.float(1, "value").map(Into::into));
        ops::full_like(c.x()?, value.unwrap_or_default())
    });
    table.unary("nan_to_num", |x| {
        let most = if x.dtype() == DType::F32 { f64::from(f32::MAX) } else { f64::MAX };
        ops::nan_to_num(x, 0.0, most, -most)
    });
    for name in ["round.decimals_0", "round.decimals_3", "round.decimals_neg_3"] {
        table.one(name, decimals);
    }
    table.one("logit", |c| match c.float(1, "eps") {
        Some(eps) => {
            let below = ops::lt(c.x()?, eps)?;
            ops::logit(&ops::where_(&below, eps, &ops::minimum(c.x()?, 1.0 - eps)?)?)
        }
        None => ops::logit(c.x()?),
    });
}

fn decimals(c: &Call) -> Result<Tensor> {
    let scale = 10f64.powi(c.int(1, "decimals").unwrap_or(0) as i32);
    ops::div(ops::round(&ops::mul(c.x()?, scale)?)?, scale)
}

fn two_operands(table: &mut Binder) {
    table.one("add", |c| ops::add(c.x()?, scaled(c, c.y()?)?));
    table.one("rsub", |c| ops::sub(c.y()?, scaled(c, c.x()?)?));
    table.one("mul", |c| ops::mul(c.x()?, c.operand(1, "other")?));
    table.one("div.no_rounding_mode", |c| ops::div(c.x()?, c.operand(1, "other")?));
    table.one("div.floor_rounding", |c| ops::floor_div(c.x()?, c.operand(1, "other")?));
    table.one("div.trunc_rounding", |c| {
        let quotient = ops::trunc(&ops::div(c.x()?, c.operand(1, "other")?)?)?;
        let is_integer = !c.x()?.dtype().is_float() && c.y().map_or(true, |y| !y.dtype().is_float());
        if is_integer { ops::to_dtype(&quotient, DType::I64) } else { Ok(quotient) }
    });
    table.one("true_divide", |c| ops::div(c.x()?, c.operand(1, "other")?));
    table.one("floor_divide", |c| ops::floor_div(c.x()?, c.operand(1, "other")?));
    table.one("remainder", |c| ops::rem(c.x()?, c.operand(1, "other")?));
    table.one("fmod", |c| ops::fmod(c.x()?, c.operand(1, "other")?));
    table.one("float_power", |c| {
        let wide = |x: &Tensor| if x.dtype().is_float() { Ok(x.clone()) } else { ops::to_dtype(x, c.float) };
        match c.optional(1, "other") {
            Some(power) => ops::pow(&wide(c.x()?)?, &wide(power)?),
            None => ops::pow(&wide(c.x()?)?, c.operand(1, "other")?),
        }
    });
    table.binary("gcd", ops::gcd);
    table.binary("lcm", ops::lcm);
    table.binary("nextafter", ops::nextafter);
    table.binary("minimum", |a, b| ops::minimum(a, b));
    table.binary("fmax", |a, b| ops::fmax(a, b));
    table.binary("fmin", |a, b| ops::fmin(a, b));
    table.one("clamp_min", |c| ops::maximum(c.x()?, c.operand(1, "other")?));
    table.one("clamp_max", |c| ops::minimum(c.x()?, c.operand(1, "other")?));
    table.one("copysign", |c| ops::copysign(c.x()?, c.operand(1, "other")?));
    table.binary("ldexp", |a, b| ops::ldexp(a, b));
    table.one("xlogy", |c| ops::xlogy(c.x()?, c.operand(1, "other")?));
    table.one("special.xlog1py", |c| ops::xlog1py(c.x()?, c.operand(1, "other")?));
    table.binary("logaddexp", |a, b| ops::logaddexp(a, b));
    table.binary("heaviside", |a, b| ops::heaviside(a, b));
    table.one("sub", |c| ops::sub(c.operand(0, "input")?, scaled(c, c.y()?)?));
    table.one("pow", |c| ops::pow(c.x()?, c.operand(1, "other")?));
    table.binary("maximum", |a, b| ops::maximum(a, b));
    table.binary("max.binary", |a, b| ops::maximum(a, b));
    table.binary("min.binary", |a, b| ops::minimum(a, b));
    table.binary("atan2", |a, b| ops::atan2(a, b));
    table.binary("hypot", |a, b| ops::hypot(a, b));
    table.binary("logaddexp2", |a, b| ops::logaddexp2(a, b));
    table.one("bitwise_xor", |c| ops::bitwise_xor(c.x()?, c.operand(1, "other")?));
    table.one("__rmul__", |c| ops::mul(c.operand(1, "other")?, c.x()?));
    table.one("__rsub__", |c| ops::sub(c.operand(1, "other")?, c.x()?));
    table.one("__rand__", |c| ops::bitwise_and(c.operand(1, "other")?, c.x()?));
    table.one("__ror__", |c| ops::bitwise_or(c.operand(1, "other")?, c.x()?));
    table.one("__rxor__", |c| ops::bitwise_xor(c.operand(1, "other")?, c.x()?));
    table.one("__radd__", |c| ops::add(c.operand(1, "other")?, c.x()?));
    table.one("__rdiv__", |c| ops::div(c.operand(1, "other")?, c.x()?));
    table.one("__rpow__", |c| ops::pow(c.operand(1, "other")?, c.x()?));
    table.one("__rmod__", |c| ops::rem(c.operand(1, "other")?, c.x()?));
    table.one("bitwise_and", |c| ops::bitwise_and(c.x()?, c.operand(1, "other")?));
    table.one("bitwise_or", |c| ops::bitwise_or(c.x()?, c.operand(1, "other")?));
    table.one("bitwise_left_shift", |c| ops::shift_left(c.x()?, c.operand(1, "other")?));
    table.one("bitwise_right_shift", |c| ops::shift_right(c.x()?, c.operand(1, "other")?));
}

/// Computes alpha·x.
fn scaled(c: &Call, x: &Tensor) -> Result<Tensor> {
    match c.scalar(KEY, "alpha") {
        Some(alpha) => ops::mul(x, alpha),
        None => Ok(x.clone()),
    }
}

fn comparisons(table: &mut Binder) {
    table.one("eq", |c| ops::eq(c.x()?, c.operand(1, "other")?));
    table.one("lt", |c| ops::lt(c.x()?, c.operand(1, "other")?));
    table.one("le", |c| ops::le(c.x()?, c.operand(1, "other")?));
    table.one("gt", |c| ops::gt(c.x()?, c.operand(1, "other")?));
    table.one("ge", |c| ops::ge(c.x()?, c.operand(1, "other")?));
    table.binary("logical_or", |a, b| ops::logical_or(a, b));
    table.binary("logical_xor", |a, b| ops::logical_xor(a, b));
    table.one("ne", |c| ops::ne(c.x()?, c.operand(1, "other")?));
    table.binary("logical_and", |a, b| ops::logical_and(a, b));
    table.binary("equal", ops::equal);
    table.binary("isin", ops::isin);
    let tolerances = |c: &Call| (c.float(2, "rtol").unwrap_or(1e-5), c.float(3, "atol").unwrap_or(1e-8));
    table.one("isclose", move |c| {
        let (rtol, atol) = tolerances(c);
        ops::isclose(c.x()?, c.y()?, rtol, atol, c.flag(4, "equal_nan"))
    });
    table.one("allclose", move |c| {
        let (rtol, atol) = tolerances(c);
        ops::allclose(c.x()?, c.y()?, rtol, atol, c.flag(4, "equal_nan"))
    });
}

fn three_operands(table: &mut Binder) {
    table.one("lerp", |c| {
        let weight = match c.optional(2, "weight") {
            Some(weight) => weight.clone(),
            None => ops::full((), c.float(2, "weight").unwrap_or(0.0), c.float)?,
        };
        ops::lerp(c.x()?, c.tensor(1, "end")?, &weight)
    });
    let value = |c: &Call| c.scalar(KEY, "value").unwrap_or(1.into());
    table.one("addcmul", move |c| ops::addcmul(c.x()?, c.tensor(1, "tensor1")?, c.tensor(2, "tensor2")?, value(c)));
    table.one("addcdiv", move |c| ops::addcdiv(c.x()?, c.tensor(1, "tensor1")?, c.tensor(2, "tensor2")?, value(c)));
    table.one("clamp", |c| {
        let low = c.get(1, "min").map(|_| ops::maximum(c.x()?, c.operand(1, "min")?)).transpose()?;
        let raised = low.map_or_else(|| c.x().cloned(), Ok)?;
        c.get(2, "max").map_or(Ok(raised.clone()), |_| ops::minimum(&raised, c.operand(2, "max")?))
    });
    table.one("native_dropout_backward", |c| {
        let kept = ops::where_(c.tensor(1, "mask")?, c.x()?, 0.0)?;
        ops::mul(&kept, c.float(2, "scale").unwrap_or(1.0))
    });
    table.one("where", |c| ops::where_(c.tensor(1, "condition")?, c.x()?, c.operand(2, "other")?));
}
