//! Matrix products and attention.

use super::Binder;
use crate::call::{Call, KEY};
use crate::index::Argument;
use pellucid::ops::{self, AttentionOptions};
use pellucid::{Error, Result, Tensor};

pub(super) fn bind(table: &mut Binder) {
    table.binary("matmul", ops::matmul);
    table.binary("mm", ops::matmul);
    table.binary("bmm", ops::matmul);
    table.binary("bmm.triton_optimized", ops::matmul);
    table.binary("__rmatmul__", |a, b| ops::matmul(b, a));
    table.binary("dot", ops::dot);
    table.binary("vdot", ops::dot);
    table.binary("inner", ops::inner);
    table.binary("mv", ops::matmul);
    for name in ["addmm", "addmm.decomposed"] {
        table.one(name, |c| weighted(c, ops::matmul(c.tensor(1, "mat1")?, c.tensor(2, "mat2")?)?));
    }
    table.one("addbmm", |c| {
        let products = ops::matmul(c.tensor(1, "batch1")?, c.tensor(2, "batch2")?)?;
        weighted(c, ops::sum(&products, 0)?)
    });
    table.one("addmv", |c| weighted(c, ops::matmul(c.tensor(1, "mat")?, c.tensor(2, "vec")?)?));
    table.one("addr", |c| weighted(c, ops::outer(c.tensor(1, "vec1")?, c.tensor(2, "vec2")?)?));
    table.one("baddbmm", |c| weighted(c, ops::matmul(c.tensor(1, "batch1")?, c.tensor(2, "batch2")?)?));
    table.one("nn.functional.linear", |c| ops::linear(c.x()?, c.tensor(1, "weight")?, c.optional(2, "bias")));
    table.one("nn.functional.bilinear", |c| {
        let (a, b, weight) = (c.x()?, c.tensor(1, "input2")?, c.tensor(2, "weight")?);
        let rows = |x: &Tensor| ops::reshape(x, [-1, x.shape()[x.rank() - 1] as isize]);
        let halves = ops::matmul(&rows(a)?, weight)?;
        let y = ops::t(&ops::sum(&ops::mul(&halves, &rows(b)?)?, -1)?)?;
        let y = ops::reshape(&y, &[&a.shape()[..a.rank() - 1], &weight.shape()[..1]].concat()[..])?;
        c.optional(3, "bias").map_or(Ok(y.clone()), |bias| ops::add(&y, bias))
    });
    table.one("cross", |c| ops::cross(c.x()?, c.y()?, c.int(2, "dim").unwrap_or(-1)));
    table.one("tensordot", |c| {
        let (a, b) = (c.x()?, c.y()?);
        if let Some(count) = c.int(KEY, "dims") {
            let axes: Vec<isize> = (0..count).collect();
            let last: Vec<isize> = axes.iter().map(|k| k - count).collect();
            return ops::tensordot(a, b, &last, &axes);
        }
        let Some(Argument::List(pair)) = c.get(KEY, "dims") else { return Err(Error::invalid("tensordot", "axes")) };
        let axes = |argument: &Argument| match argument {
            Argument::List(items) => {
                items.iter().map(|i| if let Argument::Int(i) = i { *i as isize } else { 0 }).collect()
            }
            _ => Vec::new(),
        };
        ops::tensordot(a, b, &axes(&pair[0]), &axes(&pair[1]))
    });
    table.one("nn.functional.scaled_dot_product_attention", attention);
}

/// Computes beta·x + alpha·product. With beta = 0, x is ignored, even if it is NaN.
fn weighted(c: &Call, product: Tensor) -> Result<Tensor> {
    let factor = |name| c.scalar(KEY, name).unwrap_or(1.into());
    let (beta, alpha) = (factor("beta"), factor("alpha"));
    let product = ops::mul(&product, alpha)?;
    if beta.to_f64() == 0.0 {
        return ops::broadcast_to(
            &product,
            c.x()?.shape().broadcast(product.shape()).unwrap_or(product.shape().clone()),
        );
    }
    ops::add(ops::mul(c.x()?, beta)?, &product)
}

/// Computes attention with PyTorch's arguments.
fn attention(c: &Call) -> Result<Tensor> {
    let options = AttentionOptions {
        mask: c.optional(3, "attn_mask"),
        dropout: c.float(4, "dropout_p").unwrap_or(0.0),
        causal: c.flag(5, "is_causal"),
        scale: c.float(KEY, "scale"),
    };
    ops::scaled_dot_product_attention(c.x()?, c.tensor(1, "key")?, c.tensor(2, "value")?, options)
}
