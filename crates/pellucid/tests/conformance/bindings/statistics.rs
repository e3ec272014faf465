//! Order statistics, counts, covariances and integrals.

use super::Binder;
use super::reduce::{along, along_both};
use crate::call::{Call, KEY};
use crate::index::Argument;
use ops::{Bins, CovOptions, QuantileInterpolation, Spacing, over};
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    order(table);
    counts(table);
    table.one("cov", |c| {
        let options = CovOptions {
            correction: c.float(KEY, "correction").unwrap_or(1.0),
            frequencies: c.optional(KEY, "fweights"),
            weights: c.optional(KEY, "aweights"),
        };
        ops::cov(c.x()?, options)
    });
    table.unary("corrcoef", ops::corrcoef);
    table.many("gradient", |c| {
        let axes = c.ints(KEY, "dim").unwrap_or((0..c.x()?.rank() as isize).collect());
        if axes.iter().enumerate().any(|(k, axis)| axes[..k].contains(axis)) {
            return Err(Error::invalid("gradient", "the list of axes contains an axis twice"));
        }
        let order = c.int(KEY, "edge_order").unwrap_or(1) as usize;
        let spacing = |k: usize| -> Result<Spacing<'_>> {
            Ok(match c.get(KEY, "spacing") {
                None => Spacing::Step(1.0),
                Some(Argument::List(all)) => match all.get(k) {
                    Some(Argument::Float(step)) => Spacing::Step(*step),
                    Some(Argument::Int(step)) => Spacing::Step(*step as f64),
                    Some(Argument::Tensor(path)) => Spacing::Points(&c.tensors[path]),
                    _ => {
                        return Err(Error::invalid(
                            "gradient",
                            "the spacing must be one number or one tensor for each axis",
                        ));
                    }
                },
                Some(_) => Spacing::Step(c.float(KEY, "spacing").unwrap_or(1.0)),
            })
        };
        axes.iter().enumerate().map(|(k, &axis)| ops::gradient(c.x()?, spacing(k)?, axis, order)).collect()
    });
    for name in ["trapezoid", "trapz"] {
        table.one(name, |c| ops::trapezoid(c.x()?, c.spacing(), c.int(2, "dim").unwrap_or(-1)));
    }
    table
        .one("cumulative_trapezoid", |c| ops::cumulative_trapezoid(c.x()?, c.spacing(), c.int(2, "dim").unwrap_or(-1)));
}

/// Computes a reduction that selects an element. Returns its index only if an axis is given.
fn middle(c: &Call, f: impl Fn(&Tensor, ops::Axes) -> Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    let (value, position) = f(c.x()?, c.reduced(1, "dim"))?;
    Ok(if c.get(1, "dim").is_some() { vec![value, position] } else { vec![value] })
}

fn order(table: &mut Binder) {
    table.many("median", |c| middle(c, ops::median));
    table.many("nanmedian", |c| middle(c, ops::nanmedian));
    table.two("mode", |c| {
        let x = c.x()?;
        let axes = if x.rank() == 0 { over(..) } else { over(c.int(1, "dim").unwrap_or(-1)) };
        ops::mode(x, if c.flag(2, "keepdim") { axes.keepdims() } else { axes })
    });
    table.one("quantile", |c| ops::quantile(c.x()?, c.operand(1, "q")?, c.reduced(2, "dim"), c.interpolation()?));
    table.one("nanquantile", |c| ops::nanquantile(c.x()?, c.operand(1, "q")?, c.reduced(2, "dim"), c.interpolation()?));
    table.one("msort", |c| along(c.x()?, ops::msort));
    table
        .one("argsort", |c| along(c.x()?, |x| ops::argsort(x, c.int(1, "dim").unwrap_or(-1), c.flag(2, "descending"))));
    table.two("topk", |c| {
        let (k, axis) = (c.count(1, "k")?, c.int(2, "dim").unwrap_or(-1));
        let largest = !matches!(c.get(3, "largest"), Some(Argument::Bool(false)));
        along_both(c.x()?, |x| ops::topk(x, k, axis, largest))
    });
    table.many("unique", |c| {
        let unique = ops::unique(c.x()?, c.int(KEY, "dim"))?;
        Ok(c.requested_outputs(unique))
    });
    table.many("unique_consecutive", |c| {
        let unique = ops::unique_consecutive(c.x()?, c.int(KEY, "dim"))?;
        Ok(c.requested_outputs(unique))
    });
}

fn counts(table: &mut Binder) {
    table.one("searchsorted", |c| {
        let (x, values) = (c.x()?, c.values(1, "values")?);
        let sorted = match c.optional(KEY, "sorter") {
            Some(order) => ops::take_along_axis(x, order, -1)?,
            None => x.clone(),
        };
        c.positions(ops::searchsorted(&sorted, &values, c.flag(KEY, "right") || c.text(KEY, "side") == Some("right"))?)
    });
    table.one("bucketize", |c| {
        c.positions(ops::bucketize(&c.values(0, "input")?, c.tensor(1, "boundaries")?, c.flag(KEY, "right"))?)
    });
    table.one("bincount", |c| {
        // With weights, the counts are sums of floats.
        let weights = c.optional(1, "weights");
        let float = |w: &Tensor| if w.dtype().is_int() { ops::to_dtype(w, c.float) } else { Ok(w.clone()) };
        ops::bincount(c.x()?, weights.map(float).transpose()?.as_ref(), c.int(2, "minlength").unwrap_or(0) as usize)
    });
    table.one("histc", |c| {
        let bins = c.int(1, "bins").unwrap_or(100) as usize;
        ops::histc(c.x()?, bins, c.float(2, "min").unwrap_or(0.0), c.float(3, "max").unwrap_or(0.0))
    });
    table.one("histogramdd", |c| {
        let bins = match c.get(1, "bins") {
            Some(Argument::List(items)) if items.iter().any(|item| matches!(item, Argument::Tensor(_))) => {
                c.argument_tensors(1, "bins")?.into_iter().map(Bins::Edges).collect()
            }
            Some(Argument::List(_)) => {
                let counts = c.ints(1, "bins").unwrap_or_default();
                counts.iter().map(|&count| Bins::Count(count.max(0) as usize)).collect::<Vec<_>>()
            }
            _ => vec![Bins::Count(c.count(1, "bins")?); c.x()?.shape().last().copied().unwrap_or(0)],
        };
        Ok(ops::histogramdd(c.x()?, &bins, c.optional(KEY, "weight"), c.flag(KEY, "density"))?.0)
    });
    table.two("histogram", |c| {
        let bins = match c.optional(1, "bins") {
            Some(edges) => Bins::Edges(edges),
            None => Bins::Count(c.count(1, "bins")?),
        };
        ops::histogram(c.x()?, bins, c.optional(KEY, "weight"), c.flag(KEY, "density"))
    });
}

impl Call<'_> {
    fn interpolation(&self) -> Result<QuantileInterpolation> {
        match self.text(KEY, "interpolation") {
            None | Some("linear") => Ok(QuantileInterpolation::Linear),
            Some("lower") => Ok(QuantileInterpolation::Lower),
            Some("higher") => Ok(QuantileInterpolation::Higher),
            Some("midpoint") => Ok(QuantileInterpolation::Midpoint),
            Some("nearest") => Ok(QuantileInterpolation::Nearest),
            Some(other) => Err(Error::invalid("call", format!("unknown interpolation {other}"))),
        }
    }

    /// Returns the tensors of a list.
    fn argument_tensors(&self, at: usize, name: &str) -> Result<Vec<&Tensor>> {
        let Some(Argument::List(items)) = self.get(at, name) else { return Ok(Vec::new()) };
        let tensor = |item: &Argument| match item {
            Argument::Tensor(path) => self.tensors.get(path),
            _ => None,
        };
        items
            .iter()
            .map(|item| tensor(item).ok_or_else(|| Error::invalid("call", "the argument must be a list of tensors")))
            .collect()
    }

    /// Returns a tensor argument. A number is converted to a tensor.
    fn values(&self, at: usize, name: &str) -> Result<Tensor> {
        match self.float(at, name).filter(|_| self.optional(at, name).is_none()) {
            Some(number) => ops::full((), number, self.float),
            None => self.tensor(at, name).cloned(),
        }
    }

    /// Returns indices in the requested dtype.
    fn positions(&self, positions: Tensor) -> Result<Tensor> {
        if self.flag(KEY, "out_int32") { ops::to_dtype(&positions, DType::I32) } else { Ok(positions) }
    }

    /// Returns the requested outputs of `unique`.
    fn requested_outputs(&self, unique: ops::Unique) -> Vec<Tensor> {
        let mut outputs = vec![unique.values];
        outputs.extend(self.flag(KEY, "return_inverse").then_some(unique.inverse));
        outputs.extend(self.flag(KEY, "return_counts").then_some(unique.counts));
        outputs
    }

    fn spacing(&self) -> Spacing<'_> {
        match self.optional(1, "x") {
            Some(points) => Spacing::Points(points),
            None => Spacing::Step(self.float(KEY, "dx").unwrap_or(1.0)),
        }
    }
}
