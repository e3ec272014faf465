//! Normalisation.

use super::Binder;
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("nn.functional.layer_norm", |c| {
        let shape = shape(c.ints(1, "normalized_shape"));
        let eps = c.float(4, "eps").unwrap_or(1e-5);
        ops::layer_norm(c.x()?, shape, c.optional(2, "weight"), c.optional(3, "bias"), eps)
    });
    table.one("nn.functional.rms_norm", |c| {
        let least = if c.float == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let eps = c.float(3, "eps").unwrap_or(least);
        ops::rms_norm(c.x()?, shape(c.ints(1, "normalized_shape")), c.optional(2, "weight"), eps)
    });
    table.one("nn.functional.group_norm", |c| {
        let (x, groups) = (c.x()?, c.count(1, "num_groups")?);
        if x.rank() < 2 || x.shape()[1] == 0 || !x.shape()[1].is_multiple_of(groups) {
            return Err(Error::shapes("group_norm", [x.shape()], "takes [N, C, ..], C a multiple of the groups"));
        }
        let inside = x.shape()[1..].iter().product::<usize>() / groups;
        let grouped = ops::reshape(x, [x.shape()[0], groups, inside])?;
        let normal = ops::layer_norm(&grouped, [inside], None, None, c.float(4, "eps").unwrap_or(1e-5))?;
        let normal = ops::reshape(&normal, x.shape())?;
        let scaled = match c.optional(2, "weight") {
            Some(weight) => ops::mul(&normal, beside(weight, x.rank())?)?,
            None => normal,
        };
        match c.optional(3, "bias") {
            Some(bias) => ops::add(&scaled, beside(bias, x.rank())?),
            None => Ok(scaled),
        }
    });
}

fn shape(lengths: Option<Vec<isize>>) -> Vec<usize> {
    lengths.unwrap_or_default().iter().map(|&d| d as usize).collect()
}

/// One value a channel, of axis 1.
pub(super) fn beside(values: &Tensor, rank: usize) -> Result<Tensor> {
    let shape: Vec<isize> = (0..rank).map(|k| if k == 1 { -1 } else { 1 }).collect();
    ops::reshape(values, &shape[..])
}
