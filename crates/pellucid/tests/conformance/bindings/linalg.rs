//! Linear algebra, as far as it follows from other operations.

use super::Binder;
use crate::call::KEY;
use pellucid::{Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("linalg.vander", |c| {
        let x = &super::shape::at_least(c.x()?, 1)?;
        let count = c.int(KEY, "N").unwrap_or(x.shape().last().map_or(1, |&n| n as isize));
        let powers = Tensor::arange(0, count as i64, 1);
        ops::pow(ops::unsqueeze(x, -1)?, &ops::to_dtype(&powers, x.dtype())?)
    });
}
