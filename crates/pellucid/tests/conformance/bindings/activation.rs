//! Activation functions.

use super::Binder;
use super::normalize::beside;
use pellucid::{Error, ops};

pub(super) fn bind(table: &mut Binder) {
    table.unary("nn.functional.relu", ops::relu);
    table.unary("nn.functional.relu6", ops::relu6);
    table.unary("nn.functional.selu", ops::selu);
    table.unary("nn.functional.silu", ops::silu);
    table.unary("nn.functional.mish", ops::mish);
    table.unary("nn.functional.hardsigmoid", ops::hardsigmoid);
    table.unary("nn.functional.tanhshrink", ops::tanhshrink);
    table.one("nn.functional.leaky_relu", |c| ops::leaky_relu(c.x()?, c.float(1, "negative_slope").unwrap_or(0.01)));
    table.one("nn.functional.celu", |c| ops::celu(c.x()?, c.float(1, "alpha").unwrap_or(1.0)));
    table.one("nn.functional.gelu", |c| match c.text(1, "approximate") {
        None | Some("none") => ops::gelu(c.x()?),
        Some("tanh") => ops::gelu_tanh(c.x()?),
        Some(other) => Err(Error::invalid("gelu", format!("no such approximation: {other}"))),
    });
    table.one("nn.functional.softplus", |c| {
        let (beta, threshold) = (c.float(1, "beta").unwrap_or(1.0), c.float(2, "threshold").unwrap_or(20.0));
        let steep = ops::mul(c.x()?, beta)?;
        ops::where_(&ops::gt(&steep, threshold)?, c.x()?, &ops::div(ops::softplus(&steep)?, beta)?)
    });
    table.one("nn.functional.hardshrink", |c| ops::hardshrink(c.x()?, c.float(1, "lambd").unwrap_or(0.5)));
    table.one("nn.functional.threshold", |c| {
        ops::threshold(c.x()?, c.float(1, "threshold").unwrap_or(0.0), c.float(2, "value").unwrap_or(0.0))
    });
    table.one("nn.functional.prelu", |c| {
        let (x, weight) = (c.x()?, c.tensor(1, "weight")?);
        if weight.rank() > 1 || (weight.size() > 1 && (x.rank() < 2 || x.shape()[1] != weight.size())) {
            return Err(Error::shapes("prelu", [x.shape(), weight.shape()], "one weight, or one a channel"));
        }
        let slope = if x.rank() < 2 { weight.clone() } else { beside(weight, x.rank())? };
        ops::where_(&ops::gt(x, 0.0)?, x, &ops::mul(x, &slope)?)
    });
}
