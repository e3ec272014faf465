//! Picking and accumulating by indices and masks.

use super::Binder;
use super::reduce::along;
use crate::call::KEY;
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("index_select", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        along(c.x()?, |x| ops::index_select(x, axis, index))
    });
    table.one("index_add", |c| {
        let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "source")?);
        if c.x()?.rank() != source.rank() {
            return Err(Error::shapes("index_add", [c.x()?.shape(), source.shape()], "the source has the same rank"));
        }
        along(c.x()?, |x| {
            let source = if source.rank() == 0 { ops::unsqueeze(source, 0)? } else { source.clone() };
            let at = x.shape().axis("index_add", axis)?;
            let beside: Vec<usize> = (0..x.rank()).map(|k| if k == at { index.size() } else { 1 }).collect();
            let index = ops::broadcast_to(&ops::reshape(index, &beside[..])?, source.shape())?;
            let alpha = c.float(4, "alpha").unwrap_or(1.0);
            let added = ops::scatter_add_along(&ops::mul(&source, alpha)?, &index, axis, x.shape())?;
            ops::add(x, &added)
        })
    });
    table.one("__getitem__", |c| c.x()?.try_i(c.index(1)?));
    table.one("gather", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        along(c.x()?, |x| ops::take_along_axis(x, &lifted(index)?, axis))
    });
    table.one("scatter", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        if c.text(KEY, "reduce").is_some() {
            return Err(Error::invalid("scatter", "a reduction is scatter_reduce's"));
        }
        let values = match c.optional(3, "src") {
            Some(source) => source.clone(),
            None => ops::full(index.shape(), c.float(3, "value").unwrap_or(0.0), c.x()?.dtype())?,
        };
        along(c.x()?, |x| ops::scatter(x, &lifted(index)?, &lifted(&values)?, axis))
    });
    table.one("scatter_add", |c| {
        let (axis, index, source) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?, c.tensor(3, "src")?);
        along(c.x()?, |x| ops::scatter_add(x, &lifted(index)?, &lifted(source)?, axis))
    });
    table.one("take_along_dim", |c| {
        let (x, index, axis) = (c.x()?, c.tensor(1, "indices")?, c.int(2, "dim").unwrap_or(0));
        let at = x.shape().axis("take_along_dim", axis)?;
        // All axes but the picked one broadcast.
        let one = |t: &Tensor| t.shape().with_axis(at, 1);
        let mend = "the axes beside the picked one must broadcast";
        let beside = one(x).broadcast(&one(index));
        let beside = beside.ok_or_else(|| Error::shapes("take_along_dim", [x.shape(), index.shape()], mend))?;
        let x = ops::broadcast_to(x, beside.with_axis(at, x.shape()[at]))?;
        ops::take_along_axis(&x, &ops::broadcast_to(index, beside.with_axis(at, index.shape()[at]))?, axis)
    });
    table.one("put", |c| {
        let (x, index, source) = (c.x()?, c.tensor(1, "index")?, c.tensor(2, "source")?);
        if !c.flag(3, "accumulate") {
            return Err(Error::invalid("put", "only accumulating"));
        }
        let (index, source) = (ops::flatten(index, 0, -1)?, ops::flatten(source, 0, -1)?);
        let added = ops::scatter_add_along(&source, &index, 0, [x.size()])?;
        ops::add(x, &ops::reshape(&added, x.shape())?)
    });
    table.one("masked_select", |c| ops::masked_select(c.x()?, c.tensor(1, "mask")?));
    table.one("select_scatter", |c| {
        let (x, source) = (c.x()?, c.tensor(1, "src")?);
        let (axis, index) = (c.int(2, "dim").unwrap_or(0), c.int(3, "index").unwrap_or(0));
        let at = x.shape().axis("select_scatter", axis)?;
        let row = Tensor::new([index.rem_euclid(x.shape()[at] as isize) as i64].as_slice(), [1]);
        ops::where_(&mask(x, at, &row)?, &ops::unsqueeze(source, axis)?, x)
    });
    table.one("slice_scatter", |c| {
        let (x, source, axis) = (c.x()?, c.tensor(1, "src")?, c.int(2, "dim").unwrap_or(0));
        let len = x.shape()[x.shape().axis("slice_scatter", axis)?];
        let (start, end) = (c.int(3, "start").unwrap_or(0) as usize, c.int(4, "end").map_or(len, |end| end as usize));
        if c.int(5, "step").unwrap_or(1) != 1 {
            return Err(Error::invalid("slice_scatter", "only without gaps"));
        }
        let parts = [&ops::narrow(x, axis, 0, start)?, source, &ops::narrow(x, axis, end, len - end)?];
        ops::concatenate(&parts, axis)
    });
    table.one("index_fill", |c| {
        let (axis, index) = (c.int(1, "dim").unwrap_or(0), c.tensor(2, "index")?);
        let value = c.operand(3, "value")?;
        along(c.x()?, |x| ops::where_(&mask(x, x.shape().axis("index_fill", axis)?, index)?, value, x))
    });
    table.one("bincount", |c| {
        let (x, least) = (c.x()?, c.count(2, "minlength")?);
        let classes = if x.size() == 0 { 0 } else { ops::max(x, ..)?.item::<i64>() as usize + 1 };
        let weights = c.optional(1, "weights").map_or_else(|| ops::ones_like(x), |w| Ok(w.clone()))?;
        let weights = if weights.dtype().is_int() && c.optional(1, "weights").is_some() {
            // Weights are counted in floats.
            ops::to_dtype(&weights, c.float)?
        } else {
            weights
        };
        ops::scatter_add_along(&weights, x, 0, [classes.max(least)])
    });
    table.many("nonzero", |c| match (c.flag(1, "as_tuple"), ops::nonzero(c.x()?)?) {
        (true, positions) => Ok(positions),
        (false, positions) => Ok(vec![rows(c.x()?, &positions)?]),
    });
    table.unary("argwhere", |x| rows(x, &ops::nonzero(x)?));
    table.one("nn.functional.embedding", |c| {
        let weight = c.x()?;
        if weight.rank() != 2 {
            return Err(Error::shapes("embedding", [weight.shape()], "the weight is [classes, width]"));
        }
        ops::index_select(weight, 0, c.tensor(1, "input")?)
    });
    table.unary("nn.functional.one_hot", |x| {
        let classes = ops::max(x, ..)?.item::<i64>() + 1;
        let hit = ops::eq(ops::unsqueeze(x, -1)?, Tensor::arange(0, classes, 1))?;
        ops::to_dtype(&hit, DType::I64)
    });
}

/// True at these indices of an axis, with length 1 along the others.
fn mask(x: &Tensor, axis: usize, index: &Tensor) -> Result<Tensor> {
    let hits = ops::eq(Tensor::arange(0, x.shape()[axis] as i64, 1), &ops::reshape(index, [-1, 1])?)?;
    let beside: Vec<isize> = (0..x.rank()).map(|k| if k == axis { -1 } else { 1 }).collect();
    ops::reshape(&ops::any(&hits, 0)?, &beside[..])
}

fn lifted(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 { ops::unsqueeze(x, 0) } else { Ok(x.clone()) }
}

/// Positions as rows, one column an axis.
fn rows(x: &Tensor, positions: &[Tensor]) -> Result<Tensor> {
    if positions.is_empty() {
        return ops::zeros([usize::from(x.item::<bool>()), 0], DType::I64);
    }
    ops::stack(&positions.iter().collect::<Vec<_>>(), 1)
}
