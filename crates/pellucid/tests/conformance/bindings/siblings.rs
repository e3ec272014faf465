//! Operation names of the test data that correspond to other operations: copies of views, conversions, constants.

use super::Binder;
use super::reduce::along;
use super::shape::at_least;
use crate::call::{Call, KEY};
use pellucid::{DType, Error, Result, Shape, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    views(table);
    cuts(table);
    constants(table);
    for name in ["contiguous", "alias_copy", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real"] {
        table.unary(name, ops::copy);
    }
    for (name, dtype) in [
        ("bfloat16", DType::BF16),
        ("bool", DType::Bool),
        ("byte", DType::U8),
        ("char", DType::I8),
        ("float", DType::F32),
        ("half", DType::F16),
        ("int", DType::I32),
        ("long", DType::I64),
        ("short", DType::I16),
    ] {
        table.unary(name, move |x| ops::to_dtype(x, dtype));
    }
    table.one("to", |c| {
        let dtype = (1..c.len()).find_map(|at| c.dtype(at, "dtype")).or_else(|| c.dtype(KEY, "dtype"));
        let dtype = dtype.or_else(|| c.optional(1, "other").map(|like| like.dtype()));
        ops::to_dtype(c.x()?, dtype.unwrap_or(c.x()?.dtype()))
    });
    table.unary("nn.functional.feature_alpha_dropout.without_train", ops::copy);
    table.one("double", |c| ops::to_dtype(c.x()?, c.float));
    table.many("broadcast_shapes", |c| {
        let shape = |at| Shape::from(c.ints(at, "shape").unwrap_or_default());
        let common = (0..c.len()).try_fold(Shape::scalar(), |common, at| common.broadcast(&shape(at)));
        let common = common.ok_or_else(|| Error::invalid("broadcast_shapes", "the shapes must broadcast"))?;
        Ok(common.iter().map(|&d| Tensor::from(d as i64)).collect())
    });
    table.binary("kron", ops::kron);
    table.one("einsum", |c| {
        let equation =
            c.text(1, "equation").ok_or_else(|| Error::invalid("einsum", "the equation must be a string"))?;
        ops::einsum(equation, &c.tensors(0)?)
    });
}

fn views(table: &mut Binder) {
    for name in ["t", "t_copy", "H"] {
        table.unary(name, |x| match x.rank() {
            0..=2 => ops::t(x),
            _ => Err(Error::shapes("t", [x.shape()], "the tensor must have at most two axes")),
        });
    }
    table.unary("mH", |x| ops::transpose(x, -2, -1));
    for name in ["transpose", "transpose_copy"] {
        table.one(name, |c| {
            let (a, b) = (c.int(1, "dim0").unwrap_or(0), c.int(2, "dim1").unwrap_or(0));
            along(c.x()?, |x| ops::transpose(x, a, b))
        });
    }
    table.one("permute_copy", |c| ops::permute(c.x()?, &c.lengths(1, "dims")?));
    for name in ["resize_", "resize_as_"] {
        table.one(name, |c| match c.optional(1, "other") {
            Some(like) => ops::reshape(c.x()?, like.shape()),
            None => ops::reshape(c.x()?, &c.lengths(1, "size")?[..]),
        });
    }
    table.one("item", |c| match c.x()?.size() {
        1 => ops::reshape(&c.x()?.detach(), ()),
        _ => Err(Error::shapes("item", [c.x()?.shape()], "the tensor must have exactly one element")),
    });
    table.one("view_copy", |c| ops::reshape(c.x()?, &c.lengths(1, "shape")?[..]));
    table.one("unsqueeze_copy", |c| ops::unsqueeze(c.x()?, c.int(1, "dim").unwrap_or(0)));
    table.one("expand_copy", |c| ops::expand(c.x()?, &c.lengths(1, "shape")?[..]));
    table.binary("expand_as", |x, like| ops::broadcast_to(x, like.shape()));
    table.unary("flipud", |x| ops::flip(x, 0));
    table.one("flip", |c| ops::flip(c.x()?, &c.lengths(1, "dims")?[..]));
    for (name, rank) in [("atleast_1d", 1), ("atleast_2d", 2), ("atleast_3d", 3)] {
        table.many(name, move |c| c.tensors(0)?.into_iter().map(|x| at_least(x, rank)).collect());
    }
    table.one("tril", |c| ops::tril(c.x()?, c.int(1, "diagonal").unwrap_or(0)));
    for name in ["diagonal", "diagonal_copy"] {
        table.one(name, |c| {
            let (a, b) = (c.int(2, "dim1").unwrap_or(0), c.int(3, "dim2").unwrap_or(1));
            ops::diagonal(c.x()?, c.int(1, "offset").unwrap_or(0), a, b)
        });
    }
    table.one("stack", |c| ops::stack(&c.tensors(0)?, c.int(1, "dim").unwrap_or(0)));
    for name in ["unfold", "unfold_copy"] {
        table.one(name, |c| {
            let (axis, size, step) = (c.int(1, "dimension").unwrap_or(0), c.count(2, "size")?, c.count(3, "step")?);
            match c.x()?.rank() {
                // The windows of a 0-d tensor are the tensor itself.
                0 => ops::expand(c.x()?, [size]),
                _ => ops::windows(c.x()?, axis, size, step),
            }
        });
    }
}

fn cuts(table: &mut Binder) {
    table.one("narrow_copy", |c| {
        ops::narrow(c.x()?, c.int(1, "dim").unwrap_or(0), c.count(2, "start")?, c.count(3, "length")?)
    });
    table.many("unbind_copy", |c| ops::unbind(c.x()?, c.int(1, "dim").unwrap_or(0)));
    table.many("unsafe_chunk", |c| ops::chunk(c.x()?, c.count(1, "chunks")?, c.int(2, "dim").unwrap_or(0)));
    table.many("split_with_sizes_copy", |c| {
        ops::split(c.x()?, c.ints(1, "split_sizes").unwrap_or_default(), c.int(2, "dim").unwrap_or(0))
    });
    for (name, axis) in [("hsplit", 1), ("vsplit", 0), ("dsplit", 2)] {
        table.many(name, move |c| {
            let axis = if c.x()?.rank() == 1 { 0 } else { axis };
            match c.int(1, "sections") {
                Some(count) => ops::tensor_split(c.x()?, count as usize, axis),
                None => {
                    let places = c
                        .ints(1, "indices")
                        .ok_or_else(|| Error::invalid("split", "the indices must be a list of integers"))?;
                    ops::tensor_split(c.x()?, &places[..], axis)
                }
            }
        });
    }
}

/// Returns a constant tensor whose shape is the argument at position `at`.
fn filled(c: &Call, at: usize, value: f64) -> Result<Tensor> {
    let shape = Shape::from(c.ints(at, "size").unwrap_or_default());
    // A result that is created from a tensor has the dtype of that tensor.
    let own = c.x().map_or(c.float, |x| x.dtype());
    ops::full(shape, value, c.dtype(KEY, "dtype").unwrap_or(own))
}

/// Returns the number that is the argument at position `at`; booleans are 0 and 1.
fn number(c: &Call, at: usize) -> f64 {
    c.scalar(at, "value").map_or(0.0, |value| value.to_f64())
}

fn constants(table: &mut Binder) {
    table.one("zeros", |c| filled(c, 0, 0.0));
    table.one("ones", |c| filled(c, 0, 1.0));
    table.one("new_zeros", |c| filled(c, 1, 0.0));
    table.one("new_ones", |c| filled(c, 1, 1.0));
    table.one("new_full", |c| filled(c, 1, number(c, 2)));
    let like = |c: &Call, value: f64| -> Result<Tensor> {
        ops::full(c.x()?.shape(), value, c.dtype(KEY, "dtype").unwrap_or(c.x()?.dtype()))
    };
    table.one("zero_", |c| ops::zeros_like(c.x()?));
    table.one("zeros_like", move |c| like(c, 0.0));
    table.one("ones_like", move |c| like(c, 1.0));
    table.one("full_like", move |c| like(c, number(c, 1)));
    table.one("scalar_tensor", |c| ops::full((), number(c, 0), c.dtype(KEY, "dtype").unwrap_or(c.float)));
    table.one("eye", |c| {
        let n = c.count(0, "n")?;
        let columns = if c.get(1, "m").is_some() { c.count(1, "m")? } else { n };
        ops::eye(n, columns, c.dtype(KEY, "dtype").unwrap_or(c.float))
    });
    for name in ["logspace", "logspace.tensor_overload"] {
        table.one(name, |c| {
            let number = |at, name: &str| {
                c.float(at, name).ok_or_else(|| Error::invalid("logspace", "the bounds must be numbers"))
            };
            let base = c.float(3, "base").unwrap_or(10.0);
            let dtype = c.dtype(KEY, "dtype").unwrap_or(c.float);
            let float = if dtype.is_float() { dtype } else { DType::F64 };
            let y = ops::logspace(number(0, "start")?, number(1, "end")?, c.count(2, "steps")?, base, float)?;
            ops::to_dtype(&y, dtype)
        });
    }
}
