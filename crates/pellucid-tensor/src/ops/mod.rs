//! Operations on tensors. A file contains the forward pass, the gradient and the error checks of an operation.
//!
//! The functions return typed errors and suit servers, importers and bindings. [`Tensor`](crate::Tensor) has methods of
//! the same names, which panic with the same error.
//!
//! Every file is in a directory. A file imports the files that define the items that it uses, and a directory uses only
//! directories above it in this table. The test `structure` of `pellucid` reads the table and enforces the rule.
//!
//! | | directory | contents | may use |
//! | --- | --- | --- | --- |
//! | 1 | `call` | axes, integer lists, checks of arguments, the scope of a call, the registry | – |
//! | 2 | `primitive` | copies, fills, precision, views, concatenation, gather, gradients by definition | 1 |
//! | 3 | `formula` | application of formulas, their gradients, broadcasting, tables of operations over axes | 1–2 |
//! | 4 | `elementwise` | tables of elementwise operations, operators | 1–3 |
//! | 5 | `shape` | rearranging, joining and padding, diagonals | 1–4 |
//! | 6 | `reduce` | reductions, scans, softmax, checks of values, `einops` | 1–5 |
//! | 7 | `index` | indexing, scatter, writes in place, sorting, searching, sets | 1–6 |
//! | 8 | `products` | products of matrices and tensors, `einsum` | 1–6 |
//! | 9 | `linalg` | factorizations, linear systems, matrix norms | 1–8 |
//! | 10 | `random` | generators, random tensors | 1–7 |
//! | 11 | `statistics` | covariance, quantiles, reductions of selected elements | 1–8 |
//! | 12 | `nn` | windows, attention, recurrence, normalization, embeddings, losses | 1–10 |
//! | 13 | `numeric` | polynomials, interpolation, signals, integrals, finite differences | 1–12 |

pub(crate) mod call;
pub(crate) mod elementwise;
mod formula;
pub(crate) mod index;
mod linalg;
mod nn;
mod numeric;
pub(crate) mod primitive;
mod products;
pub(crate) mod random;
mod reduce;
mod shape;
mod statistics;

pub use call::axes::{Axes, over};
pub use call::int_list::IntList;
pub use elementwise::TensorOrScalar;
#[doc(hidden)]
pub use elementwise::{betainc_of_pair, log_gamma_quantile_slope, student_t_cdf};
pub use index::scatter_reduce::ScatterReduceOp;
pub use index::search::Bins;
pub use index::unique::Unique;
pub use linalg::{Cutoff, Lstsq, MatrixNorm, QrMode};
pub use nn::attention::AttentionOptions;
pub use nn::embedding::EmbeddingOptions;
pub use nn::embedding_bag::EmbeddingBagOptions;
pub use nn::loss::{
    CrossEntropyOptions, CtcLossOptions, MultiMarginLossOptions, NllLossOptions, PoissonNllLossOptions, Reduction,
    TripletMarginLossOptions,
};
pub use nn::normalize::{BatchNormOptions, RunningStatistics};
pub use nn::recurrent::{RecurrenceOptions, RecurrentWeights, RnnNonlinearity};
#[doc(hidden)]
pub use nn::window::check_positive;
pub use nn::window::{
    AvgPoolDivisor, ConvOptions, ConvPadding, FoldOptions, GridSampleMode, GridSamplePadding, InterpolationMode,
    PoolOptions, Resize, Spatial,
};
pub use numeric::convolve::ConvolveMode;
pub use numeric::integrate::Spacing;
pub use numeric::polyfit::InterpOptions;
pub use numeric::signal::WindowFunction;
pub use primitive::concatenate::SplitSizes;
pub use reduce::einops;
pub use shape::pad::{PadWidth, PaddingMode, WidthEntry, WidthPair};
pub use shape::rearrange::{MeshgridIndexing, Sections};
pub use statistics::moments::CovOptions;
pub use statistics::quantile::QuantileInterpolation;

registry! {
    tables {
        elementwise::activation::unary_table;
        elementwise::arithmetic::binary_table;
        elementwise::arithmetic::unary_table;
        elementwise::compare::binary_table;
        elementwise::compare::unary_table;
        elementwise::special::binary_table;
        elementwise::special::unary_table;
        elementwise::transcendental::binary_table;
        elementwise::transcendental::unary_table;
    }
    functions {
        primitive::concatenate: concatenate, split;
        primitive::copy: contiguous, copy, to_dtype;
        primitive::create: arange, geomspace, linspace, logspace;
        primitive::fill: full, full_like, ones, ones_like, zeros, zeros_like;
        primitive::gather: index_select, scatter_add_along, take, take_along_axis;
        primitive::view: flatten, flip, movedim, narrow, permute, ravel, reshape, select, squeeze, swapaxes,
            t, transpose, unsqueeze;
        formula::broadcast: broadcast_tensors, broadcast_to, expand;
        formula::user: map, map_all, map_rows, map_rows_all;
        elementwise: addcdiv, addcmul, airy_ai, around, betainc, betaincc, clamp, divmod, frexp, gcd, hardtanh, igamma,
            igammac, isclose, lcm, lerp, logit_with, modf, multigammaln, nan_to_num, nextafter, softshrink, where_,
            zeta;
        shape::diagonal: diag, diag_embed, diagonal, eye, tri, tril, triu;
        shape::join: atleast_1d, atleast_2d, atleast_3d, block_diag, column_stack, dstack, hstack, stack,
            vstack;
        shape::pad: pad;
        shape::rearrange: chunk, meshgrid, repeat, roll, rot90, tensor_split, tile, unbind, unflatten,
            windows;
        reduce::einops: rearrange, reduce;
        reduce::equality: allclose, equal;
        reduce::reductions: all, aminmax, any, argmax, argmin, count_nonzero, logsumexp, max, mean, min,
            nanmean, nansum, norm, prod, ptp, std, sum, var;
        reduce::scan: cummax, cummin, cumprod, cumsum, diff, logcumsumexp;
        reduce::softmax: log_softmax, softmax, softmin;
        index::combinatorics: cartesian_prod, combinations, diag_indices, tril_indices, triu_indices;
        index::in_place: copy_;
        index::masked: masked_fill, masked_select, one_hot;
        index::nonzero: flatnonzero, nonzero, unravel_index;
        index::put: diagonal_scatter, index_put, masked_scatter, put, select_scatter, slice_scatter;
        index::scatter: scatter, scatter_add;
        index::scatter_reduce: index_add, index_copy, index_fill, index_reduce, scatter_reduce;
        index::search: bincount, bucketize, histc, histogram, histogram2d, histogramdd, searchsorted;
        index::set_operations: intersect1d, isin, setdiff1d, setxor1d, union1d;
        index::sort: argpartition, argsort, kthvalue, lexsort, msort, sort, topk;
        index::unique: unique, unique_consecutive;
        index::update: update, update_many;
        products::blas: addbmm, addmm, addmv, addr, baddbmm, vdot;
        products::einsum: bilinear, einsum, inner, kron, tensordot;
        products::matmul: cross, dot, linear, matmul, matmul_integer, outer, trace;
        linalg: cholesky, cholesky_ex, cholesky_inverse, cholesky_solve, cond, det, eigh, eigvalsh, geqrf,
            householder_product, inv, inv_ex, ldl_factor, ldl_factor_ex, ldl_solve, logdet, lstsq, lu, lu_factor,
            lu_factor_ex, lu_solve, lu_unpack, matrix_exp, matrix_norm, matrix_power, matrix_rank, matrix_sqrth,
            multi_dot, ormqr, pinv, polar, qr, slogdet, solve, solve_ex, solve_triangular, svd, svdvals, tensorinv,
            tensorsolve, vander, vecdot;
        random: bernoulli, multinomial, normal, rand, rand_like, rand_with, randint, randint_like, randn,
            randn_like, randn_with, randperm;
        statistics::masked_reduce: masked_argmax, masked_argmin, masked_cumprod, masked_cumsum,
            masked_log_softmax, masked_logsumexp, masked_max, masked_mean, masked_median, masked_min, masked_norm,
            masked_normalize, masked_prod, masked_softmax, masked_softmin, masked_std, masked_sum, masked_var;
        statistics::moments: corrcoef, cov, std_mean, var_mean;
        statistics::nan_reduce: nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmin, nanprod, nanstd,
            nanvar;
        statistics::quantile: median, mode, nanmedian, nanquantile, quantile;
        nn::attention: scaled_dot_product_attention;
        nn::distance: cdist, cosine_similarity, dist, normalize, pairwise_distance, pdist, renorm;
        nn::dropout: alpha_dropout, dropout, feature_alpha_dropout, feature_dropout;
        nn::embedding: embedding;
        nn::embedding_bag: embedding_bag;
        nn::gate: glu, prelu, rrelu;
        nn::gumbel_softmax: gumbel_softmax;
        nn::loss: binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss,
            cross_entropy, ctc_loss, gaussian_nll_loss, hinge_embedding_loss, huber_loss, kl_div, l1_loss,
            margin_ranking_loss, mse_loss, multi_margin_loss, multilabel_margin_loss, multilabel_soft_margin_loss,
            nll_loss, poisson_nll_loss, smooth_l1_loss, soft_margin_loss, triplet_margin_loss,
            triplet_margin_with_distance_loss;
        nn::normalize: batch_norm, group_norm, instance_norm, layer_norm, local_response_norm, rms_norm;
        nn::recurrent: gru, lstm, rnn;
        nn::window: adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool1d,
            adaptive_max_pool2d, adaptive_max_pool3d, affine_grid, avg_pool1d, avg_pool2d, avg_pool3d,
            channel_shuffle, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, fold,
            fractional_max_pool2d, fractional_max_pool3d, grid_sample, interpolate, lp_pool1d, lp_pool2d, lp_pool3d,
            max_pool1d, max_pool2d, max_pool3d, max_unpool1d, max_unpool2d, max_unpool3d, pixel_shuffle,
            pixel_unshuffle, unfold;
        numeric::convolve: convolve, correlate;
        numeric::gradient: gradient;
        numeric::integrate: cumulative_trapezoid, trapezoid;
        numeric::polyfit: interp, polyfit, polyval;
        numeric::polynomial: chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w, hermite_h, hermite_he,
            laguerre_l, legendre_p, shifted_chebyshev_t, shifted_chebyshev_u, shifted_chebyshev_v,
            shifted_chebyshev_w;
        numeric::signal: signal_window;
    }
    elsewhere {
        einops_repeat;
    }
    parts {
        standardized;
    }
}

use call::registry::registry;
