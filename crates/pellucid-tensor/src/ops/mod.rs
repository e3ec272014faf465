//! Operations on tensors. One file holds the forward pass, the gradient and the error checks of an operation.
//!
//! The functions return typed errors and suit servers, importers and bindings. [`Tensor`] has methods of the same
//! names, which panic with the same error.

mod attention;
mod axes;
mod check;
mod copy;
mod create;
mod diagonal;
mod distance;
mod dropout;
pub mod einops;
mod einsum;
mod elementwise;
mod embedding;
mod embedding_bag;
mod formula;
mod gate;
mod gather;
mod gradient;
mod in_place;
mod integrate;
mod join;
mod linalg;
mod loss;
mod masked;
mod masked_reduce;
mod matmul;
mod normalize;
mod pad;
mod polynomial;
mod precision;
mod put;
mod quantile;
mod random;
mod rearrange;
mod recurrent;
mod reduce;
mod scan;
mod scatter_reduce;
mod search;
mod signal;
mod softmax;
mod sort;
mod statistics;
mod unique;
mod update;
mod view;
mod window;

pub use attention::{Attention, scaled_dot_product_attention};
pub use axes::{Axes, over};
pub use copy::{contiguous, copy, copy_, to_dtype};
pub use create::{arange, eye, full, full_like, geomspace, linspace, logspace, ones, ones_like, zeros, zeros_like};
pub use diagonal::{diag, diag_embed, diagonal, tril, triu};
pub use distance::{cdist, cosine_similarity, normalize, pairwise_distance, pdist, renorm};
pub use dropout::{alpha_dropout, dropout, feature_alpha_dropout, feature_dropout};
pub use einops::{rearrange, reduce};
pub use einsum::{einsum, inner, kron, tensordot};
pub use elementwise::*;
pub use embedding::{Embedding, embedding};
pub use embedding_bag::{EmbeddingBag, embedding_bag};
pub use gate::{glu, prelu, rrelu};
pub use gather::{index_select, nonzero, scatter, scatter_add, scatter_add_along, take_along_axis, unravel_index};
pub use gradient::gradient;
pub use integrate::{Spacing, cumulative_trapezoid, trapezoid};
pub use join::{concatenate, dstack, hstack, stack, vstack};
pub use linalg::{
    Cutoff, Lstsq, MatrixNorm, QrMode, cholesky, cholesky_ex, cholesky_inverse, cholesky_solve, cond, det, eigh,
    eigvalsh, geqrf, householder_product, inv, inv_ex, ldl_factor, ldl_factor_ex, ldl_solve, logdet, lstsq, lu,
    lu_factor, lu_factor_ex, lu_solve, lu_unpack, matrix_exp, matrix_norm, matrix_power, matrix_rank, matrix_sqrth,
    multi_dot, ormqr, pinv, polar, qr, slogdet, solve, solve_ex, solve_triangular, svd, svdvals, tensorinv,
    tensorsolve, vander, vecdot,
};
pub use loss::{
    CrossEntropy, Ctc, MultiMargin, NllLoss, PoissonNll, Reduction, Triplet, binary_cross_entropy,
    binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, ctc_loss, gaussian_nll_loss,
    hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss, mse_loss, multi_margin_loss,
    multilabel_margin_loss, multilabel_soft_margin_loss, nll_loss, poisson_nll_loss, smooth_l1_loss, soft_margin_loss,
    triplet_margin_loss, triplet_margin_with_distance_loss,
};
pub use masked::{masked_fill, masked_select, one_hot, take};
pub use masked_reduce::{
    masked_argmax, masked_argmin, masked_cumprod, masked_cumsum, masked_log_softmax, masked_logsumexp, masked_max,
    masked_mean, masked_median, masked_min, masked_norm, masked_normalize, masked_prod, masked_softmax, masked_softmin,
    masked_std, masked_sum, masked_var,
};
pub use matmul::{cross, dot, linear, matmul, outer, trace};
pub use normalize::{
    BatchNorm, RunningStatistics, batch_norm, group_norm, instance_norm, layer_norm, local_response_norm, rms_norm,
};
pub use pad::{PadMode, PadWidth, pad};
pub use polynomial::{
    chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w, hermite_h, hermite_he, laguerre_l, legendre_p,
    shifted_chebyshev_t, shifted_chebyshev_u, shifted_chebyshev_v, shifted_chebyshev_w,
};
pub use put::{diagonal_scatter, index_put, masked_scatter, put, select_scatter, slice_scatter};
pub use quantile::{Interpolation, median, mode, nanmedian, nanquantile, quantile};
pub use random::{bernoulli, multinomial, normal, rand, rand_with, randint, randn, randn_with, randperm};
pub use rearrange::{
    Indexing, Repeats, Sections, chunk, meshgrid, movedim, ravel, repeat, roll, rot90, tensor_split, tile, unbind,
    unflatten, windows,
};
pub use recurrent::{Nonlinearity, Recurrence, RecurrentWeights, gru, lstm, rnn};
pub use reduce::{
    all, aminmax, any, argmax, argmin, count_nonzero, logsumexp, max, mean, min, nanmean, nansum, norm, prod, std, sum,
    var,
};
pub use scan::{cummax, cummin, cumprod, cumsum, diff, logcumsumexp};
pub use scatter_reduce::{ScatterReduceOp, index_add, index_copy, index_fill, index_reduce, scatter_reduce};
pub use search::{Bins, bincount, bucketize, histc, histogram, histogramdd, searchsorted};
pub use signal::{Window, signal_window};
pub use softmax::{gumbel_softmax, log_softmax, softmax, softmin};
pub use sort::{argsort, kthvalue, msort, sort, topk};
pub use statistics::{Cov, corrcoef, cov, std_mean, var_mean};
pub use unique::{Unique, unique, unique_consecutive};
pub use update::{update, update_many};
pub use view::{
    Target, broadcast_to, expand, flatten, flip, narrow, permute, reshape, select, split, squeeze, swapaxes, t,
    transpose, unsqueeze,
};

pub use window::{
    AvgPoolDivisor, Conv, InterpolationMode, Padding, PaddingMode, Pool, Resample, Resize, Spatial,
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool1d, adaptive_max_pool2d,
    adaptive_max_pool3d, affine_grid, avg_pool1d, avg_pool2d, avg_pool3d, channel_shuffle, conv_transpose1d,
    conv_transpose2d, conv_transpose3d, conv1d, conv2d, conv3d, fold, fractional_max_pool2d, fractional_max_pool3d,
    grid_sample, interpolate, lp_pool1d, lp_pool2d, lp_pool3d, max_pool1d, max_pool2d, max_pool3d, max_unpool1d,
    max_unpool2d, max_unpool3d, pixel_shuffle, pixel_unshuffle, unfold,
};

pub(crate) use check::named;
pub(crate) use copy::identity;
pub(crate) use create::{from_host, indices, written_scalar};
pub(crate) use gather::{gather_axes, positions};
pub(crate) use in_place::{Embedded, Strided, put_axes, put_view, writable};
pub(crate) use reduce::{broadcast_axes, sum_to};
pub(crate) use view::{Cuts, cuts, reshape_to};

use crate::autograd::{Grad, collect_gradients, enable_grad, is_grad_enabled};
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Result, Scalar};

/// Applies a user-defined elementwise formula to tensors that broadcast, in one kernel. Returns every output.
///
/// The formula is as fast as a built-in operation, and differentiable to any order.
///
/// ```
/// use pellucid_tensor::{formula, ops, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = ops::map(formula!(|x; k| (k * x).sin()), &[&x], &[2.0.into()])?.remove(0);
/// y.backward();
/// assert_eq!(x.grad().unwrap().item::<f64>(), 2.0 * 1f64.cos());
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the number of inputs or parameters is wrong, or the
/// formula has row reductions (see [`map_rows`]);
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
pub fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Vec<Tensor>> {
    formula::check(formula, inputs, params, false)?;
    Ok(formula::map_all(formula, inputs, params)?.into_vec())
}

/// Applies a user-defined formula with row reductions. A row extends over `axes` of the broadcast shape.
///
/// ```
/// use pellucid_tensor::{formula, ops, Tensor};
/// let x = Tensor::from([[1.0f64, 3.0], [2.0, 2.0]]);
/// let y = ops::map_rows(formula!(|x| x / x.row_sum()), &[&x], &[], -1)?;
/// assert_eq!(y[0].to_vec::<f64>(), [0.25, 0.75, 0.5, 0.5]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`map`], and [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
pub fn map_rows(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: impl Into<Axes>,
) -> Result<Vec<Tensor>> {
    formula::check(formula, inputs, params, true)?;
    formula::rows_all(formula, inputs, params, axes.into())
}

/// Computes gradients by differentiating `definition`, a composite of operations, at the saved inputs of an operation.
/// This gives derivatives of every order to an operation whose kernel has no gradient kernel. An output that depends on
/// no input adds nothing.
pub(crate) fn via_definition(
    inputs: &[&Tensor],
    gradients: &[&Tensor],
    definition: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let fresh = |t: &&Tensor| if t.requires_grad() { identity(t) } else { Ok(t.detach().requires_grad_(true)) };
    let inputs: Vec<Tensor> = inputs.iter().map(fresh).collect::<Result<_>>()?;
    let outputs = definition(&inputs)?;
    let (outputs, grad_outputs): (Vec<&Tensor>, Vec<Option<Tensor>>) =
        outputs.iter().zip(gradients).filter(|(y, _)| y.requires_grad()).map(|(y, &g)| (y, Some(g.clone()))).unzip();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    collect_gradients(&outputs, &inputs, Grad { grad_outputs, create_graph, retain_graph: false })
}
