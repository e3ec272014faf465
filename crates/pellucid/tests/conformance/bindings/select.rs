//! Selection and accumulation by indices and masks.

use super::Binder;
use super::reduce::along;
use crate::call::{Call, KEY};
use crate::index::Argument;
use ops::{EmbeddingBagOptions, EmbeddingOptions, ScatterReduceOp};
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("index_select", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        along(c.x()?, |x| ops::index_select(x, axis, index))
    });
    table.one("index_add", |c| {
        let (axis, index, alpha) =
            (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.float(4, "alpha").unwrap_or(1.0));
        let source = c.tensor(3, "source")?;
        same_rank(c.x()?, source)?;
        along(c.x()?, |x| ops::index_add(x, axis, index, &lifted(source)?, alpha))
    });
    table.one("index_copy", |c| {
        let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "source")?);
        along(c.x()?, |x| ops::index_copy(x, axis, index, &lifted(source)?))
    });
    for name in ["index_reduce.amax", "index_reduce.amin", "index_reduce.mean", "index_reduce.prod"] {
        table.one(name, |c| {
            let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "source")?);
            along(c.x()?, |x| ops::index_reduce(x, axis, index, &lifted(source)?, c.meeting(4)?, c.includes_self()))
        });
    }
    table.one("index_put", |c| ops::index_put(c.x()?, c.index(1)?, c.tensor(2, "values")?, c.flag(3, "accumulate")));
    table.one("__getitem__", |c| c.x()?.try_i(c.index(1)?));
    table.one("gather", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        // A 0-d tensor is treated as a vector of one element.
        ops::reshape(&ops::take_along_axis(&lifted(c.x()?)?, &lifted(index)?, axis)?, index.shape())
    });
    table.one("scatter", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        let values = match c.optional(3, "src") {
            Some(source) => source.clone(),
            None => ops::full(index.shape(), c.float(3, "value").unwrap_or(0.0), c.x()?.dtype())?,
        };
        let (index, values) = (lifted(index)?, lifted(&values)?);
        along(c.x()?, |x| match c.text(KEY, "reduce") {
            None => ops::scatter(x, axis, &index, &values),
            Some("add") => ops::scatter_add(x, axis, &index, &values),
            Some("multiply") => ops::scatter_reduce(x, axis, &index, &values, ScatterReduceOp::Prod, true),
            Some(other) => Err(Error::invalid("scatter", format!("unknown reduction {other}"))),
        })
    });
    table.one("scatter_add", |c| {
        let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "src")?);
        along(c.x()?, |x| ops::scatter_add(x, axis, &lifted(index)?, &lifted(source)?))
    });
    for name in [
        "scatter_reduce.amax",
        "scatter_reduce.amin",
        "scatter_reduce.mean",
        "scatter_reduce.prod",
        "scatter_reduce.sum",
    ] {
        table.one(name, |c| {
            let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "src")?);
            let (meeting, with_self) = (c.meeting(4)?, c.includes_self());
            along(c.x()?, |x| ops::scatter_reduce(x, axis, &lifted(index)?, &lifted(source)?, meeting, with_self))
        });
    }
    table.one("take_along_dim", |c| {
        let (x, index) = (c.x()?, c.tensor(1, "indices")?);
        let Some(axis) = c.int(2, "dim") else { return ops::take(x, &ops::ravel(index)?) };
        let at = x.shape().axis("take_along_dim", axis)?;
        // All axes except `at` broadcast.
        let one = |t: &Tensor| t.shape().with_axis(at, 1);
        let help = "all axes except the selected one must broadcast";
        let broadcast_dims = one(x).broadcast(&one(index));
        let broadcast_dims =
            broadcast_dims.ok_or_else(|| Error::shapes("take_along_dim", [x.shape(), index.shape()], help))?;
        let x = ops::broadcast_to(x, broadcast_dims.with_axis(at, x.shape()[at]))?;
        ops::take_along_axis(&x, &ops::broadcast_to(index, broadcast_dims.with_axis(at, index.shape()[at]))?, axis)
    });
    table.one("put", |c| ops::put(c.x()?, c.tensor(1, "index")?, c.tensor(2, "source")?, c.flag(3, "accumulate")));
    table.one("take", |c| ops::take(c.x()?, c.tensor(1, "index")?));
    table.one("masked_scatter", |c| ops::masked_scatter(c.x()?, c.tensor(1, "mask")?, c.tensor(2, "source")?));
    table.one("masked_fill", |c| {
        let value = match c.optional(2, "value") {
            Some(value) if value.rank() > 0 => {
                return Err(Error::shapes("masked_fill", [value.shape()], "the fill value must be one number"));
            }
            Some(value) => ops::to_dtype(value, c.x()?.dtype())?,
            None => ops::full((), c.scalar(2, "value").unwrap_or_default(), c.x()?.dtype())?,
        };
        ops::where_(c.tensor(1, "mask")?, &value, c.x()?)
    });
    table.one("masked_select", |c| ops::masked_select(c.x()?, c.tensor(1, "mask")?));
    table.one("select_scatter", |c| {
        ops::select_scatter(c.x()?, c.tensor(1, "src")?, c.int(2, "dim").unwrap_or(0), c.int(3, "index").unwrap_or(0))
    });
    table.one("slice_scatter", |c| {
        let (x, source, axis) = (c.x()?, c.tensor(1, "src")?, c.int(2, "dim").unwrap_or(0));
        ops::slice_scatter(x, source, axis, c.int(3, "start"), c.int(4, "end"), c.int(5, "step").unwrap_or(1))
    });
    table.one("diagonal_scatter", |c| {
        let (a, b) = (c.int(3, "dim1").unwrap_or(0), c.int(4, "dim2").unwrap_or(1));
        ops::diagonal_scatter(c.x()?, c.tensor(1, "src")?, c.int(2, "offset").unwrap_or(0), a, b)
    });
    table.one("index_fill", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        let value = c.operand(3, "value")?;
        along(c.x()?, |x| ops::index_fill(x, axis, index, value))
    });
    table.one("nn.functional.embedding_bag", |c| {
        let mode = match c.text(KEY, "mode") {
            None | Some("mean") => ScatterReduceOp::Mean,
            Some("sum") => ScatterReduceOp::Sum,
            Some("max") => ScatterReduceOp::Max,
            Some(other) => return Err(Error::invalid("embedding_bag", format!("unknown mode {other}"))),
        };
        let options = EmbeddingBagOptions {
            offsets: c.optional(KEY, "offsets"),
            include_last_offset: c.flag(KEY, "include_last_offset"),
            mode,
            weights: c.optional(KEY, "per_sample_weights"),
            padding_index: c.int(KEY, "padding_idx"),
            max_norm: c.float(KEY, "max_norm").map(|most| (most, c.float(KEY, "norm_type").unwrap_or(2.0))),
            scale_by_frequency: c.flag(KEY, "scale_grad_by_freq"),
        };
        ops::embedding_bag(c.x()?, c.tensor(1, "input")?, options)
    });
    table.many("unravel_index", |c| {
        let shape = c.ints(1, "shape").unwrap_or_default();
        ops::unravel_index(c.x()?, shape.iter().map(|&d| d as usize).collect::<Vec<_>>())
    });
    table.many("nonzero", |c| match (c.flag(1, "as_tuple"), ops::nonzero(c.x()?)?) {
        // A 0-d tensor is treated as a vector of one element.
        (true, _) if c.x()?.rank() == 0 => ops::nonzero(&ops::unsqueeze(c.x()?, 0)?),
        (true, positions) => Ok(positions),
        (false, positions) => Ok(vec![rows(c.x()?, &positions)?]),
    });
    table.one("nonzero_static", |c| {
        // The result has `size` rows: the indices of the first nonzero elements, then rows of the fill value.
        let (positions, count) = (rows(c.x()?, &ops::nonzero(c.x()?)?)?, c.count(KEY, "size")?);
        let there = positions.shape()[0].min(count);
        let others = ops::full(
            [count - there, positions.shape()[1]],
            c.int(KEY, "fill_value").unwrap_or(-1) as i64,
            DType::I64,
        )?;
        ops::concatenate(&[&ops::narrow(&positions, 0, 0, there)?, &others], 0)
    });
    table.unary("argwhere", |x| rows(x, &ops::nonzero(x)?));
    table.one("nn.functional.embedding", |c| {
        let options = EmbeddingOptions {
            padding_index: c.int(2, "padding_idx"),
            max_norm: c.float(3, "max_norm").map(|most| (most, c.float(4, "norm_type").unwrap_or(2.0))),
            scale_by_frequency: c.flag(5, "scale_grad_by_freq"),
        };
        ops::embedding(c.x()?, c.tensor(1, "input")?, options)
    });
    table.one("nn.functional.one_hot", |c| {
        let x = c.x()?;
        match c.int(1, "num_classes").filter(|&count| count >= 0) {
            Some(classes) => ops::one_hot(x, classes as usize),
            None => ops::one_hot(x, ops::max(x, ..)?.item::<i64>() as usize + 1),
        }
    });
}

impl Call<'_> {
    fn meeting(&self, at: usize) -> Result<ScatterReduceOp> {
        match self.text(at, "reduce") {
            Some("sum") => Ok(ScatterReduceOp::Sum),
            Some("prod") => Ok(ScatterReduceOp::Prod),
            Some("mean") => Ok(ScatterReduceOp::Mean),
            Some("amax") => Ok(ScatterReduceOp::Max),
            Some("amin") => Ok(ScatterReduceOp::Min),
            other => Err(Error::invalid("call", format!("unknown reduction {other:?}"))),
        }
    }

    fn includes_self(&self) -> bool {
        !matches!(self.get(5, "include_self"), Some(Argument::Bool(false)))
    }
}

fn same_rank(x: &Tensor, source: &Tensor) -> Result<()> {
    if x.rank() == source.rank() {
        return Ok(());
    }
    Err(Error::shapes("index_add", [x.shape(), source.shape()], "the source must have the rank of the input"))
}

fn lifted(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 { ops::unsqueeze(x, 0) } else { Ok(x.clone()) }
}

/// Returns multi-axis indices as rows, with one column for each axis.
fn rows(x: &Tensor, positions: &[Tensor]) -> Result<Tensor> {
    if positions.is_empty() {
        return ops::zeros([usize::from(x.item::<bool>()), 0], DType::I64);
    }
    ops::stack(positions, 1)
}
