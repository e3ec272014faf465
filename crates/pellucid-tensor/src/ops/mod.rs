//! Operations on tensors. One file holds the forward pass, the gradient and the error checks of an operation.
//!
//! The functions return typed errors and suit servers, importers and bindings. [`Tensor`](crate::Tensor) has methods of
//! the same names, which panic with the same error.

mod attention;
mod axes;
mod blas;
mod broadcast;
mod check;
mod combinatorics;
mod convolve;
pub(crate) mod copy;
mod create;
mod diagonal;
mod distance;
mod dropout;
pub mod einops;
mod einsum;
pub(crate) mod elementwise;
mod embedding;
mod embedding_bag;
pub(crate) mod fill;
mod formula;
mod full_range;
mod gate;
mod gather;
mod gradient;
mod in_place;
pub(crate) mod index;
mod int_list;
mod integrate;
mod join;
mod linalg;
mod loss;
mod masked;
mod masked_reduce;
mod matmul;
mod nan_reduce;
mod normalize;
pub(crate) mod operation_scope;
mod over_axes;
mod pad;
mod polyfit;
mod polynomial;
mod power;
mod precision;
mod put;
mod quantile;
pub(crate) mod random;
mod rearrange;
mod recurrent;
mod reduce;
pub(crate) mod registry;
mod scan;
mod scatter_reduce;
mod search;
mod set_operations;
mod signal;
mod softmax;
mod sort;
mod statistics;
pub(crate) mod tensor_options;
mod unique;
mod update;
mod user;
mod via_definition;
mod view;
mod window;

pub use attention::AttentionOptions;
pub use axes::{Axes, over};
pub use convolve::ConvolveMode;
pub use elementwise::TensorOrScalar;
pub use embedding::EmbeddingOptions;
pub use embedding_bag::EmbeddingBagOptions;
pub use int_list::IntList;
pub use integrate::Spacing;
pub use linalg::{Cutoff, Lstsq, MatrixNorm, QrMode};
pub use loss::{
    CrossEntropyOptions, CtcLossOptions, MultiMarginLossOptions, NllLossOptions, PoissonNllLossOptions, Reduction,
    TripletMarginLossOptions,
};
pub use normalize::{BatchNormOptions, RunningStatistics};
pub use pad::{PadMode, PadWidth, WidthEntry, WidthPair};
pub use polyfit::InterpOptions;
pub use quantile::QuantileInterpolation;
pub use rearrange::{MeshgridIndexing, Sections};
pub use recurrent::{RecurrenceOptions, RecurrentWeights, RnnNonlinearity};
pub use scatter_reduce::ScatterReduceOp;
pub use search::Bins;
pub use signal::WindowFunction;
pub use statistics::CovOptions;
pub use unique::Unique;
pub use view::SplitSizes;
pub use window::{
    AvgPoolDivisor, ConvOptions, ConvPadding, InterpolationMode, PaddingMode, PoolOptions, Resize, ResizeMode, Spatial,
};

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
        attention: scaled_dot_product_attention;
        blas: addbmm, addmm, addmv, addr, baddbmm, vdot;
        broadcast: broadcast_tensors, broadcast_to, expand;
        combinatorics: cartesian_prod, combinations, diag_indices, tril_indices, triu_indices;
        convolve: convolve, correlate;
        copy: contiguous, copy, to_dtype;
        create: arange, eye, geomspace, linspace, logspace;
        diagonal: diag, diag_embed, diagonal, tri, tril, triu;
        distance: cdist, cosine_similarity, dist, normalize, pairwise_distance, pdist, renorm;
        dropout: alpha_dropout, dropout, feature_alpha_dropout, feature_dropout;
        einops: rearrange, reduce;
        einsum: einsum, inner, kron, tensordot;
        elementwise: addcdiv, addcmul, airy_ai, allclose, around, clamp, divmod, equal, frexp, gcd, hardtanh, igamma,
            igammac, isclose, isin, lcm, lerp, logit_with, modf, multigammaln, nan_to_num, nextafter, softshrink, where_, zeta;
        embedding: embedding;
        embedding_bag: embedding_bag;
        fill: full, full_like, ones, ones_like, zeros, zeros_like;
        gate: glu, prelu, rrelu;
        gather: flatnonzero, index_select, nonzero, scatter, scatter_add, scatter_add_along, take_along_axis, unravel_index;
        gradient: gradient;
        in_place: copy_;
        integrate: cumulative_trapezoid, trapezoid;
        join: atleast_1d, atleast_2d, atleast_3d, block_diag, column_stack, concatenate, dstack, hstack, stack, vstack;
        linalg: cholesky, cholesky_ex, cholesky_inverse, cholesky_solve, cond, det, eigh, eigvalsh, geqrf,
            householder_product, inv, inv_ex, ldl_factor, ldl_factor_ex, ldl_solve, logdet, lstsq, lu, lu_factor,
            lu_factor_ex, lu_solve, lu_unpack, matrix_exp, matrix_norm, matrix_power, matrix_rank, matrix_sqrth,
            multi_dot, ormqr, pinv, polar, qr, slogdet, solve, solve_ex, solve_triangular, svd, svdvals, tensorinv,
            tensorsolve, vander, vecdot;
        loss: binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, ctc_loss,
            gaussian_nll_loss, hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss, mse_loss,
            multi_margin_loss, multilabel_margin_loss, multilabel_soft_margin_loss, nll_loss, poisson_nll_loss,
            smooth_l1_loss, soft_margin_loss, triplet_margin_loss, triplet_margin_with_distance_loss;
        masked: masked_fill, masked_select, one_hot, take;
        masked_reduce: masked_argmax, masked_argmin, masked_cumprod, masked_cumsum, masked_log_softmax,
            masked_logsumexp, masked_max, masked_mean, masked_median, masked_min, masked_norm, masked_normalize,
            masked_prod, masked_softmax, masked_softmin, masked_std, masked_sum, masked_var;
        matmul: bilinear, cross, dot, linear, matmul, outer, trace;
        nan_reduce: nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmin, nanprod, nanstd, nanvar;
        normalize: batch_norm, group_norm, instance_norm, layer_norm, local_response_norm, rms_norm;
        pad: pad;
        polyfit: interp, polyfit, polyval;
        polynomial: chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w, hermite_h, hermite_he, laguerre_l, legendre_p,
            shifted_chebyshev_t, shifted_chebyshev_u, shifted_chebyshev_v, shifted_chebyshev_w;
        put: diagonal_scatter, index_put, masked_scatter, put, select_scatter, slice_scatter;
        quantile: median, mode, nanmedian, nanquantile, quantile;
        random: bernoulli, multinomial, normal, rand, rand_like, rand_with, randint, randint_like, randn, randn_like,
            randn_with, randperm;
        rearrange: chunk, meshgrid, movedim, ravel, repeat, roll, rot90, tensor_split, tile, unbind, unflatten, windows;
        recurrent: gru, lstm, rnn;
        reduce: all, aminmax, any, argmax, argmin, count_nonzero, logsumexp, max, mean, min, nanmean, nansum, norm,
            prod, ptp, std, sum, var;
        scan: cummax, cummin, cumprod, cumsum, diff, logcumsumexp;
        scatter_reduce: index_add, index_copy, index_fill, index_reduce, scatter_reduce;
        search: bincount, bucketize, histc, histogram, histogram2d, histogramdd, searchsorted;
        set_operations: intersect1d, setdiff1d, setxor1d, union1d;
        signal: signal_window;
        softmax: gumbel_softmax, log_softmax, softmax, softmin;
        sort: argpartition, argsort, kthvalue, lexsort, msort, sort, topk;
        statistics: corrcoef, cov, std_mean, var_mean;
        unique: unique, unique_consecutive;
        update: update, update_many;
        user: map, map_all, map_rows, map_rows_all;
        view: flatten, flip, narrow, permute, reshape, select, split, squeeze, swapaxes, t,
            transpose, unsqueeze;
        window: adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool1d, adaptive_max_pool2d,
            adaptive_max_pool3d, affine_grid, avg_pool1d, avg_pool2d, avg_pool3d, channel_shuffle, conv1d, conv2d,
            conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, fold, fractional_max_pool2d,
            fractional_max_pool3d, grid_sample, interpolate, lp_pool1d, lp_pool2d, lp_pool3d, max_pool1d, max_pool2d,
            max_pool3d, max_unpool1d, max_unpool2d, max_unpool3d, pixel_shuffle, pixel_unshuffle, unfold;
    }
    elsewhere {
        einops_repeat;
    }
    parts {
        standardized;
    }
}

pub(crate) use check::named;
pub(crate) use create::{from_host, indices};
pub(crate) use fill::{check_written, check_written_list, full_on_device_of, written_scalar};
pub(crate) use gather::{gather_axes, nonzero_as};
pub(crate) use in_place::{check_writable, put_axes, put_view};
pub(crate) use reduce::{broadcast_axes, sum_to};
pub(crate) use via_definition::via_definition;
pub(crate) use view::{AxisSlices, reshape_to, slice_axes};

use registry::registry;
