//! Views, rearrangements, joining and splitting.

use super::Binder;
use super::reduce::along_both;
use crate::call::{Call, KEY};
use ops::{MeshgridIndexing, PaddingMode};
use pellucid::{Error, Result, Shape, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    views(table);
    orders(table);
    joins(table);
    tables(table);
    cuts(table);
    pads(table);
    triangles(table);
}

fn views(table: &mut Binder) {
    for name in ["reshape", "view"] {
        table.one(name, |c| ops::reshape(c.x()?, &c.lengths(1, "shape")?[..]));
    }
    for name in ["reshape_as", "view_as"] {
        table.binary(name, |x, like| ops::reshape(x, like.shape()));
    }
    table.one("expand", |c| ops::expand(c.x()?, &c.lengths(1, "shape")?[..]));
    table.one("broadcast_to", |c| ops::broadcast_to(c.x()?, c.lengths(1, "shape")?));
    table.many("broadcast_tensors", |c| {
        let tensors = c.tensors(0)?;
        let mut shape = Shape::scalar();
        for x in &tensors {
            let both = shape.broadcast(x.shape());
            shape = both.ok_or_else(|| Error::shapes("broadcast", [&shape, x.shape()], "the shapes must broadcast"))?;
        }
        tensors.iter().map(|x| ops::broadcast_to(x, &shape)).collect()
    });
    table.one("squeeze", |c| squeezed(c.x()?, c.ints(1, "dim")));
    for name in ["squeeze.multiple", "squeeze_copy"] {
        table.one(name, |c| squeezed(c.x()?, c.ints(1, "dim")));
    }
    table.one("unsqueeze", |c| ops::unsqueeze(c.x()?, c.int(1, "dim").unwrap_or(0)));
    table.one("flatten", |c| {
        ops::flatten(c.x()?, c.int(1, "start_dim").unwrap_or(0), c.int(2, "end_dim").unwrap_or(-1))
    });
    table.one("unflatten", |c| {
        ops::unflatten(c.x()?, c.int(1, "dim").unwrap_or(0), &c.ints(2, "sizes").unwrap_or_default()[..])
    });
    table.unary("ravel", ops::ravel);
    for name in ["as_strided", "as_strided_copy"] {
        table.one(name, |c| ops::take(c.x()?, &strided(c, 1)?));
    }
    table.one("as_strided_scatter", |c| ops::put(c.x()?, &strided(c, 2)?, c.tensor(1, "src")?, false));
    table.one("sum_to_size", |c| {
        let (x, shape) = (c.x()?, Shape::from(c.lengths(1, "size")?));
        if shape.broadcast(x.shape()).as_ref() != Some(x.shape()) {
            return Err(Error::shapes(
                "sum_to_size",
                [x.shape(), &shape],
                "the requested size must broadcast to the shape of the tensor",
            ));
        }
        let lead = x.rank() - shape.rank();
        let summed = |&axis: &usize| axis < lead || shape[axis - lead] != x.shape()[axis];
        let axes: Vec<isize> = (0..x.rank()).filter(summed).map(|axis| axis as isize).collect();
        ops::reshape(&ops::sum(x, axes)?, &shape)
    });
}

/// Returns the flat indices of the elements of a view with these lengths and strides, in row-major order.
fn strided(c: &Call, at: usize) -> Result<Tensor> {
    let numbers = |at, name| {
        c.ints(at, name)
            .ok_or_else(|| Error::invalid("as_strided", "the size and the stride must be lists of integers"))
    };
    let (lengths, steps) = (numbers(at, "size")?, numbers(at + 1, "stride")?);
    let start = c.int(at + 2, "storage_offset").unwrap_or(0) as i64;
    lengths.iter().zip(&steps).try_fold(ops::full((), start, pellucid::DType::I64)?, |indices, (&len, &step)| {
        let own = ops::mul(Tensor::arange(0, len as i64, 1), step as i64)?;
        ops::add(&ops::unsqueeze(&indices, -1)?, &own)
    })
}

/// Removes the given axes that have length 1, or all axes of length 1.
fn squeezed(x: &Tensor, axes: Option<Vec<isize>>) -> Result<Tensor> {
    let axes: Vec<usize> = match axes {
        // The test data allows axis 0 of a 0-d tensor.
        _ if x.rank() == 0 => Vec::new(),
        Some(axes) => axes.iter().map(|&axis| x.shape().axis("squeeze", axis)).collect::<Result<_>>()?,
        None => (0..x.rank()).collect(),
    };
    ops::squeeze(x, axes.into_iter().filter(|&axis| x.shape()[axis] == 1).collect::<Vec<_>>())
}

/// Adds axes of length 1 up to this rank. The first two axes are added in front, the third at the end.
pub(super) fn at_least(x: &Tensor, rank: usize) -> Result<Tensor> {
    let mut x = x.clone();
    while x.rank() < rank {
        x = ops::unsqueeze(&x, if x.rank() == 2 { -1 } else { 0 })?;
    }
    Ok(x)
}

fn orders(table: &mut Binder) {
    table.one("permute", |c| ops::permute(c.x()?, &c.lengths(1, "dims")?));
    table.unary("mT", |x| ops::transpose(x, -2, -1));
    table.unary("T", ops::t);
    table.unary("fliplr", |x| ops::flip(x, 1));
    table.one("movedim", |c| {
        ops::movedim(c.x()?, c.ints(1, "source").unwrap_or_default(), c.ints(2, "destination").unwrap_or_default())
    });
    table.one("roll", |c| {
        ops::roll(c.x()?, c.ints(1, "shifts").unwrap_or_default(), c.ints(2, "dims").unwrap_or_default())
    });
    for name in ["fft.fftshift", "fft.ifftshift"] {
        table.one(name, move |c| {
            let x = c.x()?;
            let axes = c.ints(1, "dim").unwrap_or((0..x.rank() as isize).collect());
            let shift = |&axis: &isize| -> Result<isize> {
                let len = x.shape()[x.shape().axis("roll", axis)?] as isize;
                Ok(if name == "fft.fftshift" { len / 2 } else { -(len / 2) })
            };
            ops::roll(x, &axes.iter().map(shift).collect::<Result<Vec<_>>>()?, &axes)
        });
    }
    table.one("rot90", |c| {
        let (x, axes) = (c.x()?, c.ints(2, "dims").unwrap_or(vec![0, 1]));
        let &[a, b] = &axes[..] else { return Err(Error::invalid("rot90", "a rotation must have two axes")) };
        ops::rot90(x, c.int(1, "k").unwrap_or(1), [a, b])
    });
    table.one("repeat_interleave", |c| ops::repeat(c.x()?, c.ints(1, "repeats").unwrap_or_default(), c.int(2, "dim")));
    for name in ["repeat", "tile"] {
        table.one(name, |c| ops::tile(c.x()?, c.lengths(1, "dims")?));
    }
}

fn joins(table: &mut Binder) {
    table.one("cat", |c| {
        // PyTorch allows concatenating an empty vector with any tensor.
        let tensors = c.tensors(0)?;
        let rank = tensors.iter().map(|t| t.rank()).max().unwrap_or(0);
        let kept: Vec<&Tensor> = tensors.into_iter().filter(|t| t.rank() == rank || t.shape()[..] != [0]).collect();
        ops::concatenate(&kept, c.int(1, "dim").unwrap_or(0))
    });
    table.one("hstack", |c| ops::hstack(&c.tensors(0)?));
    table.one("vstack", |c| ops::vstack(&c.tensors(0)?));
    table.one("dstack", |c| ops::dstack(&c.tensors(0)?));
    table.one("column_stack", |c| {
        let column = |x: &Tensor| if x.rank() <= 1 { ops::reshape(x, [-1, 1]) } else { Ok(x.clone()) };
        let columns = c.tensors(0)?.into_iter().map(column).collect::<Result<Vec<_>>>()?;
        ops::concatenate(&columns, 1)
    });
}

fn tables(table: &mut Binder) {
    for name in ["meshgrid.list_of_tensors", "meshgrid.variadic_tensors"] {
        table.many(name, |c| {
            let xy = c.text(KEY, "indexing") == Some("xy");
            ops::meshgrid(&c.tensors(0)?, if xy { MeshgridIndexing::Xy } else { MeshgridIndexing::Ij })
        });
    }
    table.one("block_diag", |c| {
        let blocks = c.tensors(0)?.into_iter().map(|x| at_least(x, 2)).collect::<Result<Vec<_>>>()?;
        let width: usize = blocks.iter().map(|block| block.shape()[1]).sum();
        let mut left = 0;
        let rows: Vec<Tensor> = blocks
            .iter()
            .map(|block| {
                let right = width - left - block.shape()[1];
                let row = ops::pad(block, [(0, 0), (left as isize, right as isize)], PaddingMode::Constant(0.into()));
                left += block.shape()[1];
                row
            })
            .collect::<Result<_>>()?;
        ops::concatenate(&rows, 0)
    });
    table.one("cartesian_prod", |c| {
        let vectors = c.tensors(0)?;
        if let [alone] = vectors[..] {
            return Ok(alone.clone());
        }
        let lengths: Vec<usize> = vectors.iter().map(|x| x.size()).collect();
        let column = |(k, x): (usize, &&Tensor)| {
            let shape: Vec<isize> = (0..vectors.len()).map(|i| if i == k { -1 } else { 1 }).collect();
            ops::flatten(&ops::broadcast_to(&ops::reshape(x, &shape[..])?, &lengths)?, 0, -1)
        };
        let columns = vectors.iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
        ops::stack(&columns, 1)
    });
    table.one("combinations", |c| {
        let (x, count) = (c.x()?, c.count(1, "r")?);
        let mut rows: Vec<Vec<i64>> = vec![Vec::new()];
        for _ in 0..count {
            let next = |row: &Vec<i64>| row.last().map_or(0, |&i| i + i64::from(!c.flag(2, "with_replacement")));
            let longer = |row: Vec<i64>| (next(&row)..x.size() as i64).map(move |i| [&row[..], &[i]].concat());
            rows = rows.into_iter().flat_map(longer).collect();
        }
        ops::index_select(x, 0, &Tensor::new(rows.concat(), [rows.len(), count]))
    });
}

fn cuts(table: &mut Binder) {
    for name in ["split", "split.list_args", "split_with_sizes", "unsafe_split"] {
        table.many(name, |c| {
            let (x, axis) = (c.x()?, c.int(2, "dim").unwrap_or(0));
            match c.int(1, "split_size") {
                Some(size) => ops::split(x, size, axis),
                None => ops::split(x, c.ints(1, "split_sizes").unwrap_or_default(), axis),
            }
        });
    }
    table.many("chunk", |c| ops::chunk(c.x()?, c.count(1, "chunks")?, c.int(2, "dim").unwrap_or(0)));
    table.many("tensor_split", |c| {
        let (x, axis) = (c.x()?, c.int(2, "dim").unwrap_or(0));
        match c.int(1, "sections") {
            Some(count) => ops::tensor_split(x, count as usize, axis),
            None => ops::tensor_split(x, &c.ints(1, "indices").unwrap_or_default()[..], axis),
        }
    });
    table.many("unbind", |c| ops::unbind(c.x()?, c.int(1, "dim").unwrap_or(0)));
    table.one("narrow", |c| {
        if let Some(start) = c.optional(2, "start") {
            if !start.dtype().is_int() {
                return Err(Error::dtypes("narrow", [start.dtype()], "the start must be an integer"));
            }
            // The start is a tensor, so the indices are computed without reading its value.
            let indices = ops::add(start, Tensor::arange(0, c.count(3, "length")? as i64, 1))?;
            return ops::index_select(c.x()?, c.int(1, "dim").unwrap_or(0), &indices);
        }
        ops::narrow(c.x()?, c.int(1, "dim").unwrap_or(0), c.count(2, "start")?, c.count(3, "length")?)
    });
    table.one("select", |c| ops::select(c.x()?, c.int(1, "dim").unwrap_or(0), c.int(2, "index").unwrap_or(0)));
    table.one("slice", |c| {
        let (x, axis) = (c.x()?, c.int(1, "dim").unwrap_or(0));
        let mut index = vec![pellucid::IndexItem::from(..); x.shape().axis("slice", axis)?];
        index.push(pellucid::slice(c.int(2, "start"), c.int(3, "end"), c.int(4, "step").unwrap_or(1)).into());
        x.try_i(index)
    });
}

fn pads(table: &mut Binder) {
    let constant = |c: &Call, at| PaddingMode::Constant(c.float(at, "value").unwrap_or(0.0).into());
    table.one("constant_pad_nd", move |c| ops::pad(c.x()?, &c.pads()?[..], constant(c, 2)));
    table.one("nn.functional.pad.constant", move |c| ops::pad(c.x()?, &c.pads()?[..], constant(c, 3)));
    for name in ["nn.functional.pad.replicate", "nn.functional.pad.replicate_negative"] {
        table.one(name, |c| ops::pad(c.x()?, &c.pads()?[..], PaddingMode::Replicate));
    }
    table.one("nn.functional.pad.reflect", |c| ops::pad(c.x()?, &c.pads()?[..], PaddingMode::Reflect));
    table.one("nn.functional.pad.circular", |c| ops::pad(c.x()?, &c.pads()?[..], PaddingMode::Circular));
}

impl Call<'_> {
    /// Returns the padding of every axis; the test data lists the padding from the last axis on.
    fn pads(&self) -> Result<Vec<(isize, isize)>> {
        let (rank, widths) = (self.x()?.rank(), self.ints(1, "pad").unwrap_or_default());
        if rank * 2 < widths.len() || !widths.len().is_multiple_of(2) {
            return Err(Error::invalid("pad", "every padded axis must have two widths"));
        }
        let mut pairs = vec![(0, 0); rank];
        for (axis, pair) in pairs.iter_mut().rev().zip(widths.chunks(2)) {
            *axis = (pair[0], pair[1]);
        }
        Ok(pairs)
    }
}

fn triangles(table: &mut Binder) {
    let offset = |c: &Call, at| c.int(at, "offset").unwrap_or(0);
    let axes = |c: &Call, at, default: [isize; 2]| {
        [c.int(at, "dim1").unwrap_or(default[0]), c.int(at + 1, "dim2").unwrap_or(default[1])]
    };
    table.one("triu", |c| ops::triu(c.x()?, c.int(1, "diagonal").unwrap_or(0)));
    table.one("diag", |c| ops::diag(c.x()?, c.int(1, "diagonal").unwrap_or(0)));
    table.one("diagflat", move |c| ops::diag(&ops::ravel(c.x()?)?, offset(c, 1)));
    table.one("diag_embed", move |c| {
        let [a, b] = axes(c, 2, [-2, -1]);
        ops::diag_embed(c.x()?, offset(c, 1), a, b)
    });
    table.one("linalg.diagonal", move |c| {
        let axis = |name, default| c.int(KEY, name).unwrap_or(default);
        ops::diagonal(c.x()?, c.int(KEY, "offset").unwrap_or(0), axis("dim1", -2), axis("dim2", -1))
    });
    table.two("sort", |c| {
        let (axis, descending) = (c.int(1, "dim").unwrap_or(-1), c.flag(2, "descending"));
        let x = c.x()?;
        let (values, positions) = ops::sort(&at_least(x, 1)?, axis, descending)?;
        Ok((ops::reshape(&values, x.shape())?, ops::reshape(&positions, x.shape())?))
    });
    table.two("kthvalue", |c| {
        let (k, axis) = (c.count(1, "k")?, c.int(2, "dim").unwrap_or(-1));
        along_both(c.x()?, |x| {
            let (values, positions) = ops::kthvalue(x, k, axis)?;
            // For a 0-d tensor, `along_both` has added an axis, which is removed without `keepdim`.
            if !c.flag(3, "keepdim") && c.x()?.rank() > 0 {
                return Ok((values, positions));
            }
            Ok((ops::unsqueeze(&values, axis)?, ops::unsqueeze(&positions, axis)?))
        })
    });
}
