//! Creation, views and shape changes.

use crate::sweep::OperandValues::{Mask, Normal};
use crate::sweep::{SweepRow, cubes, squares, vectors};
use pellucid::{DType, Tensor, ops};

fn valid(result: pellucid::Result<Tensor>) -> Tensor {
    result.expect("the shapes of the sweep must be valid")
}

fn first_valid(list: pellucid::Result<Vec<Tensor>>) -> Tensor {
    list.expect("the shapes of the sweep must be valid").swap_remove(0)
}

pub(super) fn rows() -> Vec<SweepRow> {
    [creation(), views(), joins(), rearrangements()].into_iter().flatten().collect()
}

/// Returns the rows of operations that create a tensor with the shape of the operand.
fn creation() -> Vec<SweepRow> {
    let rows: Vec<SweepRow> = vec![
        SweepRow::new("zeros", "torch.zeros(a.shape)", |t, _| Tensor::zeros(t[0].shape().dims(), DType::F32)),
        SweepRow::new("ones", "torch.ones(a.shape)", |t, _| Tensor::ones(t[0].shape().dims(), DType::F32)),
        SweepRow::new("full", "torch.full(a.shape, 7.0)", |t, _| Tensor::full(t[0].shape().dims(), 7.0, DType::F32)),
        SweepRow::new("zeros_like", "torch.zeros_like(a)", |t, _| t[0].zeros_like()),
        SweepRow::new("ones_like", "torch.ones_like(a)", |t, _| t[0].ones_like()),
        SweepRow::new("full_like", "torch.full_like(a, 7.0)", |t, _| t[0].full_like(7.0)),
        SweepRow::new("arange", "torch.arange(a.numel())", |t, _| Tensor::arange(0i64, t[0].numel() as i64, 1)),
        SweepRow::new("arange", "torch.arange(0, a.numel(), dtype=torch.float32)", |t, _| {
            Tensor::arange(0.0f32, t[0].numel() as f32, 1.0)
        }),
        SweepRow::new("linspace", "torch.linspace(0, 1, a.numel())", |t, _| {
            Tensor::linspace(0.0, 1.0, t[0].numel(), DType::F32)
        }),
        SweepRow::new("logspace", "torch.logspace(0, 1, a.numel())", |t, _| {
            valid(ops::logspace(0.0, 1.0, t[0].numel(), 10.0, DType::F32))
        }),
        SweepRow::new("geomspace", "", |t, _| valid(ops::geomspace(1.0, 10.0, t[0].numel(), DType::F32))),
        SweepRow::new("eye", "torch.eye(a.shape[0])", |t, _| Tensor::eye(t[0].shape()[0], DType::F32)),
        SweepRow::new("tri", "torch.ones(a.shape).tril()", |t, _| {
            valid(ops::tri(t[0].shape()[0], t[0].shape()[1], 0, DType::F32))
        }),
        SweepRow::new("tril_indices", "torch.tril_indices(*a.shape)", |t, _| {
            valid(ops::tril_indices(t[0].shape()[0], t[0].shape()[1], 0))
        }),
        SweepRow::new("triu_indices", "torch.triu_indices(*a.shape)", |t, _| {
            valid(ops::triu_indices(t[0].shape()[0], t[0].shape()[1], 0))
        }),
        SweepRow::new("diag_indices", "torch.arange(a.shape[0]).expand(2, -1)", |t, _| {
            valid(ops::diag_indices(t[0].shape()[0], 2))
        }),
        SweepRow::new("signal_window", "torch.hann_window(a.numel(), periodic=False)", |t, _| {
            valid(ops::signal_window(ops::WindowFunction::Hann, t[0].numel(), true, DType::F32))
        }),
    ];
    rows.into_iter().map(|row| row.of([Normal]).forward_only()).collect()
}

/// Returns the rows of operations that return views.
fn views() -> Vec<SweepRow> {
    let rows: Vec<SweepRow> = vec![
        SweepRow::new("reshape", "a.reshape(-1)", |t, _| t[0].reshape([-1])).of([Normal]).layouts(),
        SweepRow::new("flatten", "a.flatten()", |t, _| t[0].flatten(0, -1)),
        SweepRow::new("ravel", "a.ravel()", |t, _| t[0].ravel()),
        SweepRow::new("squeeze", "a.squeeze()", |t, _| t[0].squeeze(..)),
        SweepRow::new("unsqueeze", "a.unsqueeze(1)", |t, _| t[0].unsqueeze(1)),
        SweepRow::new("permute", "a.permute(1, 0)", |t, _| t[0].permute((1, 0))),
        SweepRow::new("transpose", "a.transpose(0, 1)", |t, _| t[0].transpose(0, 1)),
        SweepRow::new("swapaxes", "a.swapaxes(0, 1)", |t, _| t[0].swapaxes(0, 1)),
        SweepRow::new("t", "a.t()", |t, _| t[0].t()),
        SweepRow::new("movedim", "a.movedim(0, 1)", |t, _| t[0].movedim(0, 1)),
        SweepRow::new("narrow", "a.narrow(1, 1, 4)", |t, _| t[0].narrow(1, 1, 4)),
        SweepRow::new("select", "a.select(1, 2)", |t, _| t[0].select(1, 2)),
        SweepRow::new("diagonal", "a.diagonal()", |t, _| t[0].diagonal(0, 0, 1)),
        SweepRow::new("broadcast_to", "torch.broadcast_to(a, (3, *a.shape))", |t, _| {
            let dims = [&[3], t[0].shape().dims()].concat();
            t[0].broadcast_to(dims)
        }),
        SweepRow::new("expand", "a.expand(3, -1, -1)", |t, _| t[0].expand([3, -1, -1])),
        SweepRow::new("broadcast_tensors", "torch.broadcast_tensors(a, a[0])[1]", |t, _| {
            ops::broadcast_tensors(&[&t[0], &t[0].i(0)]).expect("the shapes must broadcast").swap_remove(1)
        }),
        SweepRow::new("atleast_1d", "torch.atleast_1d(a)", |t, _| t[0].atleast_1d()),
        SweepRow::new("atleast_2d", "torch.atleast_2d(a)", |t, _| t[0].atleast_2d()),
        SweepRow::new("atleast_3d", "torch.atleast_3d(a)", |t, _| t[0].atleast_3d()),
        SweepRow::new("unflatten", "a.unflatten(1, (2, -1))", |t, _| t[0].unflatten(1, [2, -1])),
        SweepRow::new("split", "a.split(4, 1)[1]", |t, _| t[0].split(4, 1).swap_remove(1)),
        SweepRow::new("chunk", "a.chunk(2, 1)[1]", |t, _| t[0].chunk(2, 1).swap_remove(1)),
        SweepRow::new("tensor_split", "torch.tensor_split(a, 3, 1)[1]", |t, _| t[0].tensor_split(3, 1).swap_remove(1)),
        SweepRow::new("unbind", "a.unbind(0)[1]", |t, _| t[0].unbind(0).swap_remove(1)),
        SweepRow::new("windows", "a.unfold(1, 4, 2)", |t, _| t[0].windows(1, 4, 2)),
    ];
    rows.into_iter().map(|row| row.of([Normal])).collect()
}

fn joins() -> Vec<SweepRow> {
    let pair = |row: SweepRow| row.of([Normal; 2]);
    let mut rows: Vec<SweepRow> = vec![
        pair(SweepRow::new("concatenate", "torch.cat([a, b], {d})", |t, s| valid(ops::concatenate(t, s.axis))))
            .shapes(cubes)
            .axes(3),
        pair(SweepRow::new("stack", "torch.stack([a, b], {d})", |t, s| valid(ops::stack(t, s.axis))))
            .shapes(cubes)
            .axes(3),
        pair(SweepRow::new("hstack", "torch.hstack([a, b])", |t, _| valid(ops::hstack(t)))),
        pair(SweepRow::new("vstack", "torch.vstack([a, b])", |t, _| valid(ops::vstack(t)))),
        pair(SweepRow::new("dstack", "torch.dstack([a, b])", |t, _| valid(ops::dstack(t)))),
        pair(SweepRow::new("column_stack", "torch.column_stack([a, b])", |t, _| valid(ops::column_stack(t)))),
        pair(SweepRow::new("block_diag", "torch.block_diag(a, b)", |t, _| valid(ops::block_diag(t)))),
    ];
    let short = |n: usize| vec![vec![[8, 256, 1024][n]]; 2];
    rows.push(
        pair(SweepRow::new("cartesian_prod", "torch.cartesian_prod(a, b)", |t, _| valid(ops::cartesian_prod(t))))
            .shapes(short),
    );
    rows.push(
        pair(SweepRow::new("meshgrid", "torch.meshgrid(a, b, indexing='ij')[0]", |t, _| {
            first_valid(ops::meshgrid(&[&t[0], &t[1]], ops::MeshgridIndexing::Ij))
        }))
        .shapes(short),
    );
    let vector = |n: usize| vec![vec![[8, 256, 1024][n]]];
    rows.push(
        SweepRow::new("combinations", "torch.combinations(a)", |t, _| t[0].combinations(2, false))
            .of([Normal])
            .shapes(vector),
    );
    rows.push(SweepRow::new("vander", "torch.vander(a, 8)", |t, _| t[0].vander(Some(8))).of([Normal]).shapes(vectors));
    rows
}

/// Returns the rows of operations that rearrange elements.
fn rearrangements() -> Vec<SweepRow> {
    let rows: Vec<SweepRow> = vec![
        SweepRow::new("flip", "a.flip({d})", |t, s| t[0].flip(s.axis)).shapes(cubes).axes(3),
        SweepRow::new("roll", "a.roll(3, {d})", |t, s| t[0].roll(3, s.axis)).shapes(cubes).axes(3),
        SweepRow::new("repeat", "a.repeat_interleave(2, {d})", |t, s| t[0].repeat(2, s.axis)).shapes(cubes).axes(3),
        SweepRow::new("rot90", "torch.rot90(a, 1, [0, 1])", |t, _| t[0].rot90(1, [0, 1])).shapes(squares),
        SweepRow::new("tile", "a.repeat(2, 2)", |t, _| t[0].tile((2, 2))),
        SweepRow::new("repeat", "a.unsqueeze(1).expand(-1, 2, -1).reshape(-1, a.shape[1])", |t, _| {
            ops::einops::repeat(&t[0], "i j -> (i k) j", &[("k", 2)]).expect("the pattern must fit")
        }),
        SweepRow::new("tril", "a.tril()", |t, _| t[0].tril(0)),
        SweepRow::new("triu", "a.triu()", |t, _| t[0].triu(0)),
        SweepRow::new("diag", "torch.diag(a)", |t, _| t[0].diag(0)),
        SweepRow::new("diag_embed", "torch.diag_embed(a)", |t, _| t[0].diag_embed(0, -2, -1))
            .shapes(|n| vec![[vec![2, 6], vec![16, 64], vec![64, 128]][n].clone()]),
        SweepRow::new("pad", "F.pad(a, (2, 3, 1, 1))", |t, _| {
            t[0].pad([(1, 1), (2, 3)], ops::PaddingMode::Constant(0.into()))
        }),
        SweepRow::new("pad", "F.pad(a[None], (2, 3), mode='reflect')[0]", |t, _| {
            t[0].pad([(0, 0), (2, 3)], ops::PaddingMode::Reflect)
        }),
        SweepRow::new("pad", "F.pad(a[None], (2, 3), mode='replicate')[0]", |t, _| {
            t[0].pad([(0, 0), (2, 3)], ops::PaddingMode::Replicate)
        }),
        SweepRow::new("select_scatter", "torch.select_scatter(a, a[0], 0, 1)", |t, _| {
            t[0].select_scatter(&t[0].i(0), 0, 1)
        }),
        SweepRow::new("slice_scatter", "torch.slice_scatter(a, a[2:4], 0, 0, 2)", |t, _| {
            t[0].slice_scatter(&t[0].i(2..4), 0, Some(0), Some(2), 1)
        }),
        SweepRow::new("diagonal_scatter", "torch.diagonal_scatter(a, a[0])", |t, _| {
            t[0].diagonal_scatter(&t[0].i(0), 0, 0, 1)
        }),
        SweepRow::new("pixel_shuffle", "F.pixel_shuffle(a, 2)", |t, _| t[0].pixel_shuffle(2)).shapes(images),
        SweepRow::new("pixel_unshuffle", "F.pixel_unshuffle(a, 2)", |t, _| t[0].pixel_unshuffle(2)).shapes(images),
        SweepRow::new("channel_shuffle", "F.channel_shuffle(a, 2)", |t, _| t[0].channel_shuffle(2)).shapes(images),
    ];
    let mut rows: Vec<SweepRow> = rows.into_iter().map(|row| row.of([Normal])).collect();
    rows.push(
        SweepRow::new("masked_fill", "a.masked_fill(b, 0.0)", |t, _| t[0].masked_fill(&t[1], 0.0))
            .of([Normal, Mask])
            .layouts(),
    );
    rows
}

/// Returns the shape of images `[N, C, H, W]` with an even number of pixels and a multiple of 4 channels.
pub(super) fn images(n: usize) -> Vec<Vec<usize>> {
    vec![[vec![1, 4, 4, 4], vec![4, 16, 32, 32], vec![16, 16, 64, 64]][n].clone()]
}
