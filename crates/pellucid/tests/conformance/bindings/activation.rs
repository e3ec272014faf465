//! Activation functions.

use super::Binder;
use crate::call::KEY;
use pellucid::{Error, ops};

pub(super) fn bind(table: &mut Binder) {
    table.unary("nn.functional.relu", ops::relu);
    table.unary("nn.functional.relu6", ops::relu6);
    table.unary("nn.functional.selu", ops::selu);
    table.unary("nn.functional.silu", ops::silu);
    table.unary("nn.functional.mish", ops::mish);
    table.unary("nn.functional.hardsigmoid", ops::hardsigmoid);
    table.unary("nn.functional.hardswish", ops::hardswish);
    table.unary("nn.functional.logsigmoid", ops::logsigmoid);
    table.unary("nn.functional.softsign", ops::softsign);
    table.unary("nn.functional.tanhshrink", ops::tanhshrink);
    table.one("nn.functional.leaky_relu", |c| ops::leaky_relu(c.x()?, c.float(1, "negative_slope").unwrap_or(0.01)));
    table.one("nn.functional.celu", |c| ops::celu(c.x()?, c.float(1, "alpha").unwrap_or(1.0)));
    table.one("nn.functional.elu", |c| ops::elu(c.x()?, c.float(1, "alpha").unwrap_or(1.0)));
    table.one("nn.functional.gelu", |c| match c.text(1, "approximate") {
        None | Some("none") => ops::gelu(c.x()?),
        Some("tanh") => ops::gelu_tanh(c.x()?),
        Some(other) => Err(Error::invalid("gelu", format!("unknown approximation {other}"))),
    });
    table.one("nn.functional.softplus", |c| {
        ops::softplus_beta(c.x()?, c.float(1, "beta").unwrap_or(1.0), c.float(2, "threshold").unwrap_or(20.0))
    });
    table.one("nn.functional.hardtanh", |c| {
        let end = |at, name, default: i64| c.scalar(at, name).unwrap_or(default.into());
        ops::hardtanh(c.x()?, end(1, "min_val", -1), end(2, "max_val", 1))
    });
    table.one("nn.functional.hardshrink", |c| ops::hardshrink(c.x()?, c.float(1, "lambd").unwrap_or(0.5)));
    table.one("nn.functional.softshrink", |c| ops::softshrink(c.x()?, c.float(1, "lambd").unwrap_or(0.5)));
    table.one("nn.functional.threshold", |c| {
        let number = |at, name| c.scalar(at, name).unwrap_or_default();
        ops::threshold(c.x()?, number(1, "threshold"), number(2, "value"))
    });
    table.one("nn.functional.prelu", |c| ops::prelu(c.x()?, c.tensor(1, "weight")?));
    table.one("nn.functional.glu", |c| ops::glu(c.x()?, c.int(1, "dim").unwrap_or(-1)));
    table.one("nn.functional.rrelu", |c| {
        let (lower, upper) = (c.float(1, "lower").unwrap_or(0.125), c.float(2, "upper").unwrap_or(1.0 / 3.0));
        match c.flag(3, "training") {
            true => ops::rrelu(c.x()?, lower, upper),
            false => ops::leaky_relu(c.x()?, 0.5 * (lower + upper)),
        }
    });
    table.one("nn.functional.softmin", |c| ops::softmin(c.x()?, c.axes(1, "dim")));
    table.one("nn.functional.softmin.with_dtype", |c| {
        ops::softmin(&ops::to_dtype(c.x()?, c.dtype(KEY, "dtype").unwrap_or(c.float))?, c.axes(1, "dim"))
    });
    table.one("log_softmax.with_dtype", |c| {
        ops::log_softmax(&ops::to_dtype(c.x()?, c.dtype(KEY, "dtype").unwrap_or(c.float))?, c.axes(1, "dim"))
    });
}
