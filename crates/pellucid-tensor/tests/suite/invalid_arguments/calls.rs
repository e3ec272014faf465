//! Invalid sizes, axes, counts and ranges for every operation that has such a parameter.

use super::Case;
use pellucid_tensor::ops::{
    self, Bins, ConvOptions, FoldOptions, InterpolationMode, MatrixNorm, MeshgridIndexing, PaddingMode, PoolOptions,
    Reduction, Resize, Sections, Spacing, WindowFunction, einops, over,
};
use pellucid_tensor::{DType, Error, Generator, Result, Tensor, slice};
use std::fmt::Debug;

const SIZES: [usize; 9] =
    [1 << 31, (1 << 32) + 1, 1 << 33, 1 << 40, 1 << 50, 1 << 61, 1 << 62, isize::MAX as usize, usize::MAX];
const OFFSETS: [isize; 8] = [1 << 31, 1 << 40, 1 << 62, isize::MAX, -(1 << 31), -(1 << 40), isize::MIN + 1, isize::MIN];
const NUMBERS: [f64; 6] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e18, -1e300, 1e-310];

#[derive(Default)]
struct Calls(Vec<Case>);

impl Calls {
    fn each<A: Copy + Debug + 'static, R>(
        &mut self,
        op: &'static str,
        values: &[A],
        call: impl Fn(A) -> Result<R> + Copy + 'static,
    ) {
        for &value in values {
            let call = Box::new(move || call(value).map(drop));
            self.0.push(Case { op, label: format!("{value:?}"), call, any_name: false, is_row: false });
        }
    }

    fn sizes<R>(&mut self, op: &'static str, call: impl Fn(usize) -> Result<R> + Copy + 'static) {
        self.each(op, &SIZES, call);
    }

    /// Adds a case for each axis, and for other parameters that may be negative.
    fn axes<R>(&mut self, op: &'static str, call: impl Fn(isize) -> Result<R> + Copy + 'static) {
        self.each(op, &OFFSETS, call);
    }

    fn numbers<R>(&mut self, op: &'static str, call: impl Fn(f64) -> Result<R> + Copy + 'static) {
        self.each(op, &NUMBERS, call);
    }
}

const F: DType = DType::F32;

/// `[3]`
fn v() -> Tensor {
    Tensor::from([1.0f32, 2.0, 3.0])
}

/// `[2, 3]`
fn m() -> Tensor {
    Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])
}

/// `[2, 2]`
fn square() -> Tensor {
    Tensor::from([[2.0f32, 1.0], [1.0, 3.0]])
}

/// Returns positions `[3]`.
fn at() -> Tensor {
    Tensor::from([0i64, 1, 1])
}

fn mask() -> Tensor {
    Tensor::from([true, false, true])
}

fn empty() -> Tensor {
    Tensor::zeros([0], F)
}

/// Returns images with `spatial` axes.
fn image(spatial: usize) -> Tensor {
    Tensor::ones(&[1, 2, 4, 4, 4][..spatial + 2], F)
}

pub fn all() -> Vec<Case> {
    let mut calls = Calls::default();
    create(&mut calls);
    views(&mut calls);
    reductions(&mut calls);
    positions(&mut calls);
    windows(&mut calls);
    others(&mut calls);
    calls.0
}

fn create(c: &mut Calls) {
    c.sizes("full", |n| ops::full([n], 1.0, F));
    c.axes("full", |n| ops::full((n, 2), 1.0, F));
    c.sizes("full", |n| ops::full([n, n], 1.0, DType::U8));
    c.sizes("full", |n| ops::full([0, n, n], 1.0, F));
    c.sizes("zeros", |n| ops::zeros([n, 2], F));
    c.sizes("ones", |n| ops::ones([2, n], F));
    c.sizes("zeros", |n| ops::zeros(vec![1; n.min(1000)], F));
    c.each("arange", &[1e10, 1e18, 1e300, f64::MAX, f64::INFINITY, f64::NAN], |n| ops::arange(0.0, n, 1.0, F));
    c.each("arange", &[1e-300, 1e-18, 0.0, f64::NAN, -1.0], |step| ops::arange(0.0, 1.0, step, F));
    c.axes("arange", |n| ops::arange(0, n as i64, 1, DType::I64));
    c.axes("arange", |n| ops::arange(i64::MIN, n as i64, 1, DType::I64));
    c.sizes("linspace", |n| ops::linspace(0.0, 1.0, n, F));
    c.numbers("linspace", |x| ops::linspace(0.0, x, 3, F));
    c.sizes("logspace", |n| ops::logspace(0.0, 1.0, n, 10.0, F));
    c.sizes("geomspace", |n| ops::geomspace(1.0, 2.0, n, F));
    c.sizes("eye", |n| ops::eye(n, n, F));
    c.sizes("eye", |n| ops::eye(n, 1, DType::I64));
    c.sizes("eye", |n| ops::eye(0, n, F));
    c.sizes("rand", |n| ops::rand([n], F));
    c.sizes("randn", |n| ops::randn([n], F));
    c.sizes("rand_with", |n| ops::rand_with([n], F, &Generator::new(1)));
    c.sizes("randn_with", |n| ops::randn_with([n, n], F, &Generator::new(1)));
    c.sizes("randint", |n| ops::randint(0, 5, [n]));
    c.axes("randint", |n| ops::randint(i64::MIN, n as i64, [2]));
    c.sizes("randperm", ops::randperm);
    c.sizes("tril_indices", |n| ops::tril_indices(n, n, 0));
    c.sizes("tril_indices", |n| ops::tril_indices(n, 0, 0));
    c.axes("tril_indices", |k| ops::tril_indices(3, 2, k));
    c.axes("tril_indices", |k| ops::tril_indices(usize::MAX, 2, k));
    c.sizes("diag_indices", |n| ops::diag_indices(n, 2));
    c.sizes("diag_indices", |n| ops::diag_indices(2, n));
    c.sizes("diag_indices", |n| ops::diag_indices(0, n));
    c.sizes("tri", |n| ops::tri(n, n, 0, F));
    c.sizes("tri", |n| ops::tri(n, 0, 0, F));
    c.axes("tri", |k| ops::tri(3, 2, k, F));
    c.sizes("triu_indices", |n| ops::triu_indices(n, 1, 0));
    c.sizes("triu_indices", |n| ops::triu_indices(0, n, 0));
    c.axes("triu_indices", |k| ops::triu_indices(2, 3, k));
    c.axes("triu_indices", |k| ops::triu_indices(1 << 62, 1 << 62, k));
    c.sizes("combinations", |n| ops::combinations(&v(), n, false));
    c.sizes("combinations", |n| ops::combinations(&v(), n, true));
    c.sizes("combinations", |n| ops::combinations(&empty(), n, true));
    c.sizes("combinations", |n| ops::combinations(&v().i(0).expand([n.min(1 << 59)]), 2, false));
    c.sizes("polyfit", |n| ops::polyfit(&v(), &v(), n));
    c.sizes("signal_window", |n| ops::signal_window(WindowFunction::Hann, n, true, F));
    c.sizes("signal_window", |n| ops::signal_window(WindowFunction::Kaiser { beta: 2.0 }, n, false, F));
    c.sizes("one_hot", |n| ops::one_hot(&at(), n));
    c.sizes("one_hot", |n| ops::one_hot(&Tensor::zeros([0], DType::I64), n));
    c.sizes("vander", |n| ops::vander(&v(), Some(n)));
    c.sizes("vander", |n| ops::vander(&empty(), Some(n)));
    c.sizes("multigammaln", |n| ops::multigammaln(&v(), n));
    c.sizes("affine_grid", |n| ops::affine_grid(&Tensor::ones([1, 2, 3], F), &[n, n], true));
    c.sizes("affine_grid", |n| ops::affine_grid(&Tensor::ones([1, 2, 3], F), &[n, 0], true));
}

fn views(c: &mut Calls) {
    c.sizes("reshape", |n| ops::reshape(&v(), [n]));
    c.sizes("reshape", |n| ops::reshape(&v(), [n, 2]));
    c.sizes("reshape", |n| ops::reshape(&empty(), [n, 0]));
    c.axes("reshape", |n| ops::reshape(&v(), [n, 3]));
    c.axes("flatten", |a| ops::flatten(&m(), a, -1));
    c.axes("flatten", |a| ops::flatten(&m(), 0, a));
    c.axes("squeeze", |a| ops::squeeze(&m(), a));
    c.axes("squeeze", |a| ops::squeeze(&m(), [a, 0]));
    c.axes("unsqueeze", |a| ops::unsqueeze(&m(), a));
    c.axes("unsqueeze", |a| ops::unsqueeze(&m(), [0, a]));
    c.axes("permute", |a| ops::permute(&m(), [0, a]));
    c.axes("transpose", |a| ops::transpose(&m(), 0, a));
    c.axes("swapaxes", |a| ops::swapaxes(&m(), a, 1));
    c.axes("movedim", |a| ops::movedim(&m(), [a], [0]));
    c.axes("movedim", |a| ops::movedim(&m(), [0], [a]));
    c.sizes("broadcast_to", |n| ops::broadcast_to(&v(), [n, n, 3]));
    c.sizes("broadcast_to", |n| ops::broadcast_to(&Tensor::from(1.0f32), [n, n, 0]));
    c.sizes("expand", |n| ops::expand(&v(), [n, n, 3]));
    c.axes("expand", |n| ops::expand(&v(), [n, 3]));
    c.sizes("narrow", |n| ops::narrow(&m(), 0, n, 1));
    c.sizes("narrow", |n| ops::narrow(&m(), 0, 1, n));
    c.axes("narrow", |a| ops::narrow(&m(), a, 0, 1));
    c.axes("select", |n| ops::select(&m(), 0, n));
    c.axes("select", |a| ops::select(&m(), a, 0));
    c.axes("flip", |a| ops::flip(&m(), a));
    c.sizes("split", |n| ops::split(&m(), [n, n], 0));
    c.axes("split", |a| ops::split(&m(), [1, 1], a));
    c.axes("split", |n| ops::split(&v().unsqueeze(0).expand([1usize << 50, 3]), n, 0));
    c.axes("split", |n| ops::split(&m(), [n, n], 0));
    c.sizes("chunk", |n| ops::chunk(&empty(), n, 0));
    c.sizes("chunk", |n| ops::chunk(&m(), n, 0));
    c.sizes("chunk", |n| ops::chunk(&v().unsqueeze(0).expand([n.min(1 << 57), 3]), n, 0));
    c.axes("chunk", |a| ops::chunk(&m(), 2, a));
    c.sizes("tensor_split", |n| ops::tensor_split(&m(), n, 0));
    c.axes("tensor_split", |n| ops::tensor_split(&m(), Sections::At(vec![n, 1, n]), 0));
    c.axes("tensor_split", |a| ops::tensor_split(&m(), 2usize, a));
    c.axes("unbind", |a| ops::unbind(&m(), a));
    c.axes("roll", |n| ops::roll(&m(), [n], [0]));
    c.axes("roll", |a| ops::roll(&m(), [1], [a]));
    c.axes("rot90", |n| ops::rot90(&m(), n, [0, 1]));
    c.axes("rot90", |a| ops::rot90(&m(), 1, [0, a]));
    c.sizes("unflatten", |n| ops::unflatten(&m(), 1, [n, n]));
    c.axes("unflatten", |a| ops::unflatten(&m(), a, [1, 3]));
    c.sizes("repeat", |n| ops::repeat(&v(), n, None));
    c.sizes("repeat", |n| ops::repeat(&v(), [n, 2, 1], None));
    c.sizes("repeat", |n| ops::repeat(&v(), [n, n, n], Some(0)));
    c.sizes("repeat", |n| ops::repeat(&empty(), n, Some(0)));
    c.axes("repeat", |a| ops::repeat(&v(), 2usize, Some(a)));
    c.sizes("tile", |n| ops::tile(&v(), [n]));
    c.sizes("tile", |n| ops::tile(&empty(), [n, n]));
    c.axes("tile", |n| ops::tile(&m(), n));
    c.axes("repeat", |n| ops::repeat(&m(), n, 1));
    c.sizes("meshgrid", |n| {
        let n = n.min(1 << 59);
        let long = v().i(0).expand([n]);
        ops::meshgrid(&[&long, &long, &v()], MeshgridIndexing::Ij)
    });
    c.sizes("windows", |n| ops::windows(&m(), 1, n, 1));
    c.sizes("windows", |n| ops::windows(&m(), 1, 1, n));
    c.sizes("windows", |n| ops::windows(&v().i(0).expand([n.min(1 << 59)]), 0, 2, 1));
    c.sizes("windows", |n| ops::windows(&v().i(0).expand([n.min(1 << 59)]), 0, n.min(1 << 58), 1));
    c.axes("windows", |a| ops::windows(&m(), a, 1, 1));
    c.axes("diagonal", |n| ops::diagonal(&m(), n, 0, 1));
    c.axes("diagonal", |a| ops::diagonal(&m(), 0, a, 1));
    c.axes("diag_embed", |n| ops::diag_embed(&v(), n, 0, 1));
    c.axes("diag_embed", |a| ops::diag_embed(&v(), 0, a, 1));
    c.axes("diag", |n| ops::diag(&v(), n));
    c.axes("diag", |n| ops::diag(&m(), n));
    c.axes("tril", |n| ops::tril(&m(), n));
    c.axes("triu", |n| ops::triu(&m(), n));
    c.axes("glu", |a| ops::glu(&m(), a));
    c.axes("concatenate", |a| ops::concatenate(&[&m(), &m()], a));
    c.axes("stack", |a| ops::stack(&[&m(), &m()], a));
    c.sizes("concatenate", |n| {
        let long = v().i(0).expand([n.min(1 << 59)]);
        ops::concatenate(&[&long, &long, &long, &long], 0)
    });
    for mode in [PaddingMode::Constant(0.into()), PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular] {
        c.axes("pad", move |n| ops::pad(&m(), (n, 0), mode));
        c.axes("pad", move |n| ops::pad(&m(), (0, n), mode));
        c.axes("pad", move |n| ops::pad(&m(), n, mode));
    }
    c.sizes("rearrange", |n| einops::rearrange(&m(), "a (b c) -> a b c", &[("b", n)]));
    c.sizes("rearrange", |n| einops::rearrange(&m(), "a (b c d) -> a b c d", &[("b", n), ("c", n)]));
    c.sizes("reduce", |n| einops::reduce(&m(), "a (b c) -> a", einops::EinopsReduction::Sum, &[("b", n)]));
    c.sizes("repeat", |n| einops::repeat(&m(), "a b -> a b c d", &[("c", n), ("d", n)]));
    c.sizes("repeat", |n| einops::repeat(&m(), "a b -> (a c) (b d)", &[("c", n), ("d", n)]));
    c.sizes("pixel_shuffle", |n| ops::pixel_shuffle(&image(2), n));
    c.sizes("pixel_shuffle", |n| ops::pixel_shuffle(&Tensor::zeros([0, 3, 3], F), n));
    c.sizes("pixel_unshuffle", |n| ops::pixel_unshuffle(&image(2), n));
    c.sizes("pixel_unshuffle", |n| ops::pixel_unshuffle(&Tensor::zeros([3, 0, 0], F), n));
    c.sizes("channel_shuffle", |n| ops::channel_shuffle(&image(2), n));
    c.sizes("channel_shuffle", |n| ops::channel_shuffle(&Tensor::zeros([1, 0, 3], F), n));
    c.axes("index", |n| m().try_i(n));
    c.axes("index", |n| m().try_i(slice(n, None, 1)));
    c.axes("index", |n| m().try_i(slice(None, n, -1)));
    c.axes("index", |n| m().try_i(slice(None, None, n)));
    c.sizes("index", |n| m().try_i(n..));
    c.sizes("index", |n| m().try_i(..=n));
    c.axes("set", |n| m().try_set(slice(None, None, n), 1.0));
}

macro_rules! by_axes {
    ($c:ident: $($name:ident),* $(,)?) => {$(
        $c.axes(stringify!($name), |a| ops::$name(&m(), a));
        $c.sizes(stringify!($name), |n| ops::$name(&m(), over(0).ddof(n)));
        $c.axes(stringify!($name), |a| ops::$name(&m(), vec![a; 100]));
    )*};
}

macro_rules! masked_by_axes {
    ($c:ident: $($name:ident),* $(,)?) => {$($c.axes(stringify!($name), |a| ops::$name(&m(), &mask(), a));)*};
}

fn reductions(c: &mut Calls) {
    by_axes!(c: sum, mean, var, std, max, min, argmax, argmin, any, all, prod, logsumexp, count_nonzero, aminmax, nansum,
        nanmean, cumsum, cumprod, logcumsumexp, cummax, cummin, softmax, log_softmax, softmin, median, nanmedian, mode,
        var_mean, std_mean, ptp, nanmax, nanmin, nanargmax, nanargmin, nanprod, nancumsum, nancumprod, nanvar, nanstd);
    masked_by_axes!(c: masked_sum, masked_prod, masked_max, masked_min, masked_argmax, masked_argmin, masked_logsumexp,
        masked_softmax, masked_log_softmax, masked_softmin, masked_cumsum, masked_cumprod, masked_mean, masked_var,
        masked_std, masked_median);
    c.axes("norm", |a| ops::norm(&m(), 2.0, a));
    c.numbers("norm", |p| ops::norm(&m(), p, 0));
    c.axes("masked_norm", |a| ops::masked_norm(&m(), &mask(), 2.0, a));
    c.numbers("masked_norm", |p| ops::masked_norm(&m(), &mask(), p, 0));
    c.axes("masked_normalize", |a| ops::masked_normalize(&m(), &mask(), 2.0, a, 1e-12));
    c.axes("quantile", |a| ops::quantile(&m(), 0.5, a, Default::default()));
    c.numbers("quantile", |q| ops::quantile(&m(), q, 0, Default::default()));
    c.axes("nanquantile", |a| ops::nanquantile(&m(), 0.5, a, Default::default()));
    c.axes("normalize", |a| ops::normalize(&m(), 2.0, a, 1e-12));
    c.axes("renorm", |a| ops::renorm(&m(), 2.0, a, 1.0));
    c.numbers("renorm", |p| ops::renorm(&m(), p, 0, 1.0));
    c.axes("cosine_similarity", |a| ops::cosine_similarity(&m(), &m(), a, 1e-8));
    c.numbers("pairwise_distance", |p| ops::pairwise_distance(&m(), &m(), p, 1e-6, false));
    c.numbers("cdist", |p| ops::cdist(&m(), &m(), p));
    c.numbers("pdist", |p| ops::pdist(&m(), p));
    c.sizes("pdist", |n| ops::pdist(&ops::zeros([n.min(1 << 59), 0], F)?, 2.0));
    c.axes("vecdot", |a| ops::vecdot(&m(), &m(), a));
    c.axes("cross", |a| ops::cross(&m(), &m(), a));
    c.axes("diff", |a| ops::diff(&m(), 1, a));
    c.sizes("diff", |n| ops::diff(&m(), n, 0));
    c.axes("trapezoid", |a| ops::trapezoid(&m(), Spacing::Step(1.0), a));
    c.axes("cumulative_trapezoid", |a| ops::cumulative_trapezoid(&m(), Spacing::Step(1.0), a));
    c.axes("gradient", |a| ops::gradient(&m(), Spacing::Step(1.0), a, 1));
    c.sizes("gradient", |n| ops::gradient(&m(), Spacing::Step(1.0), 0, n));
    c.axes("sort", |a| ops::sort(&m(), a, false));
    c.axes("argpartition", |a| ops::argpartition(&m(), 0, a));
    c.axes("argpartition", |k| ops::argpartition(&m(), k, 0));
    c.axes("lexsort", |a| ops::lexsort(&[m(), m()], a));
    c.numbers("dist", |p| ops::dist(&m(), &m(), p));
    c.axes("argsort", |a| ops::argsort(&m(), a, false));
    c.axes("topk", |a| ops::topk(&m(), 1, a, true));
    c.sizes("topk", |n| ops::topk(&m(), n, 0, true));
    c.axes("kthvalue", |a| ops::kthvalue(&m(), 1, a));
    c.sizes("kthvalue", |n| ops::kthvalue(&m(), n, 0));
    c.axes("unique", |a| ops::unique(&m(), Some(a)));
    c.axes("unique_consecutive", |a| ops::unique_consecutive(&m(), Some(a)));
    c.axes("gumbel_softmax", |a| ops::gumbel_softmax(&m(), 1.0, true, a));
    c.numbers("gumbel_softmax", |tau| ops::gumbel_softmax(&m(), tau, true, 0));
    c.axes("matrix_norm", |a| ops::matrix_norm(&m(), 1, [0, a], false));
    c.numbers("matrix_norm", |p| ops::matrix_norm(&m(), MatrixNorm::Order(p), [0, 1], false));
    c.axes("matrix_power", |n| ops::matrix_power(&square(), n));
    c.sizes("tensorinv", |n| ops::tensorinv(&square(), n));
    c.axes("tensorsolve", |a| ops::tensorsolve(&square(), &v().i(..2), &[a]));
    c.axes("tensordot", |a| ops::tensordot(&m(), &m(), &[a], &[0]));
}

fn positions(c: &mut Calls) {
    c.axes("index_select", |a| ops::index_select(&m(), a, &at()));
    c.axes("index_select", |n| ops::index_select(&m(), 0, &Tensor::from([n as i64])));
    c.axes("take", |n| ops::take(&m(), &Tensor::from([n as i64])));
    c.axes("take_along_axis", |a| ops::take_along_axis(&v(), &at(), a));
    c.axes("take_along_axis", |n| ops::take_along_axis(&v(), &Tensor::from([n as i64]), 0));
    c.axes("scatter_add_along", |a| ops::scatter_add_along(&v(), &at(), a, [3]));
    c.sizes("scatter_add_along", |n| ops::scatter_add_along(&v(), &at(), 0, [n]));
    c.axes("scatter", |a| ops::scatter(&v(), a, &at(), &v()));
    c.axes("scatter", |n| ops::scatter(&v(), 0, &Tensor::from([n as i64]), &v()));
    c.axes("scatter_add", |a| ops::scatter_add(&v(), a, &at(), &v()));
    c.axes("scatter_reduce", |a| ops::scatter_reduce(&v(), a, &at(), &v(), ops::ScatterReduceOp::Prod, true));
    c.axes("scatter_reduce", |n| {
        ops::scatter_reduce(&v(), 0, &Tensor::from([n as i64]), &v(), ops::ScatterReduceOp::Mean, true)
    });
    c.axes("index_add", |a| ops::index_add(&v(), a, &at(), &v(), 1.0));
    c.axes("index_add", |n| ops::index_add(&v(), 0, &Tensor::from([n as i64; 3]), &v(), 1.0));
    c.axes("index_copy", |a| ops::index_copy(&v(), a, &at(), &v()));
    c.axes("index_fill", |a| ops::index_fill(&v(), a, &at(), 1.0));
    c.axes("index_fill", |n| ops::index_fill(&v(), 0, &Tensor::from([n as i64]), 1.0));
    c.axes("index_reduce", |a| ops::index_reduce(&v(), a, &at(), &v(), ops::ScatterReduceOp::Max, true));
    c.axes("put", |n| ops::put(&v(), &Tensor::from([n as i64]), &v().i(..1), false));
    c.axes("index_put", |n| ops::index_put(&m(), n, &Tensor::from(1.0f32), false));
    c.axes("select_scatter", |a| ops::select_scatter(&m(), &v(), a, 0));
    c.axes("select_scatter", |n| ops::select_scatter(&m(), &v(), 0, n));
    c.axes("slice_scatter", |n| ops::slice_scatter(&m(), &m(), 0, Some(n), Some(2), 1));
    c.axes("slice_scatter", |n| ops::slice_scatter(&m(), &m(), 0, None, None, n));
    c.axes("slice_scatter", |a| ops::slice_scatter(&m(), &m(), a, None, None, 1));
    c.axes("diagonal_scatter", |n| ops::diagonal_scatter(&m(), &v(), n, 0, 1));
    c.axes("diagonal_scatter", |a| ops::diagonal_scatter(&m(), &v(), 0, a, 1));
    c.sizes("unravel_index", |n| ops::unravel_index(&at(), [n, n]));
    c.sizes("unravel_index", |n| ops::unravel_index(&at(), [n]));
    c.sizes("bincount", |n| ops::bincount(&at(), None, n));
    c.axes("bincount", |n| ops::bincount(&Tensor::from([n as i64]), None, 0));
    c.sizes("histogram", |n| ops::histogram(&v(), Bins::Count(n), None, false));
    c.sizes("histogram", |n| ops::histogram(&v(), Bins::Between(n, 0.0, 1.0), None, true));
    c.numbers("histogram", |x| ops::histogram(&v(), Bins::Between(3, 0.0, x), None, true));
    c.sizes("histogramdd", |n| ops::histogramdd(&m(), &[Bins::Count(n); 3], None, false));
    c.sizes("histogramdd", |n| ops::histogramdd(&m(), &[Bins::Count(2), Bins::Count(n), Bins::Count(2)], None, true));
    c.sizes("histogram2d", |n| ops::histogram2d(&v(), &v(), [Bins::Count(n), Bins::Count(2)], None, true));
    c.sizes("histc", |n| ops::histc(&v(), n, 0.0, 0.0));
    c.numbers("histc", |x| ops::histc(&v(), 3, 0.0, x));
    c.sizes("multinomial", |n| ops::multinomial(&v(), n, true));
    c.sizes("multinomial", |n| ops::multinomial(&v(), n, false));
    c.axes("embedding", |n| ops::embedding(&m(), &Tensor::from([n as i64]), Default::default()));
    c.axes("embedding", |n| {
        ops::embedding(&m(), &at(), ops::EmbeddingOptions { padding_index: Some(n), ..Default::default() })
    });
    c.axes("embedding_bag", |n| {
        let offsets = Tensor::from([0, n as i64]);
        ops::embedding_bag(&m(), &at(), ops::EmbeddingBagOptions { offsets: Some(&offsets), ..Default::default() })
    });
    c.axes("embedding_bag", |n| {
        let options = ops::EmbeddingBagOptions { padding_index: Some(n), ..Default::default() };
        ops::embedding_bag(&m(), &at().unsqueeze(0), options)
    });
    c.axes("cross_entropy", |n| ops::cross_entropy(&v(), &Tensor::from(n as i64), Default::default()));
    c.axes("nll_loss", |n| ops::nll_loss(&v(), &Tensor::from(n as i64), Default::default()));
    c.axes("multi_margin_loss", |n| ops::multi_margin_loss(&v(), &Tensor::from(n as i64), Default::default()));
    c.axes("multilabel_margin_loss", |n| {
        ops::multilabel_margin_loss(&v(), &Tensor::from([n as i64; 3]), Reduction::Mean)
    });
    c.axes("ctc_loss", |n| {
        let (x, lengths) = (Tensor::zeros([4, 1, 3], F), Tensor::from([n as i64]));
        ops::ctc_loss(&x, &Tensor::from([[1i64, 2]]), &lengths, &Tensor::from([2i64]), Default::default())
    });
    c.axes("ctc_loss", |n| {
        let (x, lengths) = (Tensor::zeros([4, 1, 3], F), Tensor::from([n as i64]));
        ops::ctc_loss(&x, &Tensor::from([1i64, 2]), &Tensor::from([4i64]), &lengths, Default::default())
    });
    c.sizes("ctc_loss", |n| {
        let (x, four) = (Tensor::zeros([4, 1, 3], F), Tensor::from([4i64]));
        ops::ctc_loss(
            &x,
            &Tensor::from([[1i64, 2]]),
            &four,
            &four,
            ops::CtcLossOptions { blank: n, ..Default::default() },
        )
    });
}

macro_rules! pools {
    ($c:ident: $($spatial:literal, $max:ident, $avg:ident, $lp:ident, $unpool:ident, $amax:ident, $aavg:ident;)*) => {$(
        $c.sizes(stringify!($max), |n| ops::$max(&image($spatial), PoolOptions::new(n)));
        $c.sizes(stringify!($max), |n| ops::$max(&image($spatial), PoolOptions { padding: (n / 4).into(), stride: Some(1.into()), ..PoolOptions::new(n) }));
        $c.sizes(stringify!($max), |n| ops::$max(&image($spatial), PoolOptions { stride: Some(n.into()), ceil: true, ..PoolOptions::new(2) }));
        $c.sizes(stringify!($max), |n| ops::$max(&image($spatial), PoolOptions { dilation: n.into(), ..PoolOptions::new(2) }));
        $c.sizes(stringify!($avg), |n| {
            ops::$avg(&image($spatial), PoolOptions { padding: (n / 2).into(), ..PoolOptions::new(n) }, AvgPoolDivisor::Inside)
        });
        $c.sizes(stringify!($avg), |n| {
            ops::$avg(&image($spatial), PoolOptions { stride: Some(n.into()), ceil: true, ..PoolOptions::new(2) }, AvgPoolDivisor::Window)
        });
        $c.numbers(stringify!($avg), |x| ops::$avg(&image($spatial), PoolOptions::new(2), AvgPoolDivisor::Number(x)));
        $c.sizes(stringify!($lp), |n| ops::$lp(&image($spatial), 2.0, PoolOptions { ceil: true, ..PoolOptions::new(n) }));
        $c.numbers(stringify!($lp), |p| ops::$lp(&image($spatial), p, PoolOptions::new(2)));
        $c.sizes(stringify!($unpool), |n| {
            ops::$unpool(&image($spatial), &image($spatial).to_dtype(DType::I64), &[n; $spatial])
        });
        $c.axes(stringify!($unpool), |n| {
            let x = image($spatial);
            ops::$unpool(&x, &Tensor::full(x.shape(), n as i64, DType::I64), &[8; $spatial])
        });
        $c.sizes(stringify!($amax), |n| ops::$amax(&image($spatial), &[Some(n)]));
        $c.sizes(stringify!($aavg), |n| ops::$aavg(&image($spatial), &[Some(n)]));
        $c.sizes(stringify!($amax), |n| ops::$amax(&Tensor::zeros(&[1, 0, 4, 4, 4][..$spatial + 2], F), &[Some(n)]));
    )*};
}

macro_rules! convolutions {
    ($c:ident: $($spatial:literal, $conv:ident, $transpose:ident;)*) => {$(
        $c.sizes(stringify!($conv), |n| {
            let options = ConvOptions { padding: n.into(), ..Default::default() };
            ops::$conv(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($conv), |n| {
            let options = ConvOptions { padding: n.into(), dilation: n.into(), stride: n.into(), ..Default::default() };
            ops::$conv(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($conv), |n| {
            let options = ConvOptions { dilation: n.into(), padding: ops::ConvPadding::Same, ..Default::default() };
            ops::$conv(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($conv), |n| {
            let options = ConvOptions { groups: n, ..Default::default() };
            ops::$conv(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($transpose), |n| {
            let options = ConvOptions { stride: n.into(), output_padding: (n - 1).into(), ..Default::default() };
            ops::$transpose(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($transpose), |n| {
            let options = ConvOptions { dilation: n.into(), padding: n.into(), ..Default::default() };
            ops::$transpose(&image($spatial), &Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F), None, options)
        });
        $c.sizes(stringify!($transpose), |n| {
            let w = Tensor::ones(&[2, 2, 3, 3, 3][..$spatial + 2], F);
            ops::$transpose(&image($spatial), &w, None, ConvOptions { groups: n, ..Default::default() })
        });
    )*};
}

fn windows(c: &mut Calls) {
    use ops::AvgPoolDivisor;
    pools!(c:
        1, max_pool1d, avg_pool1d, lp_pool1d, max_unpool1d, adaptive_max_pool1d, adaptive_avg_pool1d;
        2, max_pool2d, avg_pool2d, lp_pool2d, max_unpool2d, adaptive_max_pool2d, adaptive_avg_pool2d;
        3, max_pool3d, avg_pool3d, lp_pool3d, max_unpool3d, adaptive_max_pool3d, adaptive_avg_pool3d;
    );
    convolutions!(c: 1, conv1d, conv_transpose1d; 2, conv2d, conv_transpose2d; 3, conv3d, conv_transpose3d;);
    c.sizes("fractional_max_pool2d", |n| ops::fractional_max_pool2d(&image(2), n, 2, None));
    c.sizes("fractional_max_pool2d", |n| ops::fractional_max_pool2d(&image(2), 2, n, None));
    c.sizes("fractional_max_pool3d", |n| ops::fractional_max_pool3d(&image(3), n, n, None));
    for spatial in 1..=3 {
        c.sizes("unfold", move |n| ops::unfold(&image(spatial), FoldOptions::new(n), spatial));
        c.sizes("unfold", move |n| {
            ops::unfold(&image(spatial), FoldOptions { padding: n.into(), ..FoldOptions::new(2) }, spatial)
        });
        c.sizes("unfold", move |n| {
            ops::unfold(&image(spatial), FoldOptions { padding: n.into(), ..FoldOptions::new(n) }, spatial)
        });
        c.sizes("unfold", move |n| {
            ops::unfold(
                &image(spatial),
                FoldOptions { dilation: n.into(), padding: n.into(), stride: n.into(), ..FoldOptions::new(2) },
                spatial,
            )
        });
        c.sizes("unfold", move |n| {
            let x = Tensor::zeros(&[0, 2, 4, 4, 4][..spatial + 2], F);
            ops::unfold(&x, FoldOptions { padding: n.into(), ..FoldOptions::new(2) }, spatial)
        });
        c.sizes("fold", move |n| ops::fold(&Tensor::ones([1, 8, 9], F), &vec![n; spatial], FoldOptions::new(2)));
        c.sizes("fold", move |n| {
            ops::fold(
                &Tensor::ones([1, 8, 9], F),
                &vec![4; spatial],
                FoldOptions { padding: n.into(), ..FoldOptions::new(n) },
            )
        });
        c.sizes("fold", move |n| {
            ops::fold(
                &Tensor::ones([1, 8, 0], F),
                &vec![4; spatial],
                FoldOptions { padding: n.into(), stride: n.into(), ..FoldOptions::new(2) },
            )
        });
        for mode in [
            InterpolationMode::Nearest,
            InterpolationMode::NearestExact,
            InterpolationMode::Linear { align_corners: true },
            InterpolationMode::Cubic { align_corners: false },
            InterpolationMode::Area,
        ] {
            c.sizes("interpolate", move |n| ops::interpolate(&image(spatial), Resize::To(vec![n; spatial]), mode));
            c.numbers("interpolate", move |x| ops::interpolate(&image(spatial), Resize::By(vec![x; spatial]), mode));
        }
    }
    c.sizes("unfold", |n| ops::unfold(&image(2), FoldOptions::new(2), n));
}

fn others(c: &mut Calls) {
    c.sizes("layer_norm", |n| ops::layer_norm(&m(), [n], None, None, 1e-5));
    c.sizes("layer_norm", |n| ops::layer_norm(&m(), [n, n], None, None, 1e-5));
    c.numbers("layer_norm", |eps| ops::layer_norm(&m(), [3], None, None, eps));
    c.sizes("rms_norm", |n| ops::rms_norm(&m(), [n], None, 1e-5));
    c.sizes("group_norm", |n| ops::group_norm(&image(2), n, None, None, 1e-5));
    c.sizes("local_response_norm", |n| ops::local_response_norm(&image(2), n, 1e-4, 0.75, 1.0));
    c.sizes("local_response_norm", |n| ops::local_response_norm(&Tensor::zeros([1, 0, 4], F), n, 1e-4, 0.75, 1.0));
    c.numbers("dropout", |p| ops::dropout(&m(), p));
    c.numbers("feature_dropout", |p| ops::feature_dropout(&m(), p));
    c.numbers("alpha_dropout", |p| ops::alpha_dropout(&m(), p));
    c.numbers("feature_alpha_dropout", |p| ops::feature_alpha_dropout(&m(), p));
    c.numbers("rrelu", |x| ops::rrelu(&m(), x, 1.0));
    c.numbers("rrelu", |x| ops::rrelu(&m(), 0.0, x));
    c.numbers("polygamma", |n| ops::polygamma(&m(), n));
    c.numbers("hardtanh", |x| ops::hardtanh(&m(), x, 1.0));
    c.numbers("softshrink", |x| ops::softshrink(&m(), x));
    c.numbers("bernoulli", |p| ops::bernoulli(&Tensor::from([p])));
    c.numbers("normal", |x| ops::normal(&Tensor::from([0.0]), &Tensor::from([x])));
    c.numbers("huber_loss", |x| ops::huber_loss(&m(), &m(), x, Reduction::Mean));
    c.numbers("smooth_l1_loss", |x| ops::smooth_l1_loss(&m(), &m(), x, Reduction::Mean));
    c.numbers("lstsq", |x| ops::lstsq(&square(), &square(), Some(x)));
    c.numbers("chebyshev_t", |n| ops::chebyshev_t(&v(), &Tensor::from([n])));
    c.axes("laguerre_l", |n| ops::laguerre_l(&v(), &Tensor::from([n as i64])));
    c.numbers("scaled_dot_product_attention", |p| {
        let options = ops::AttentionOptions { dropout: p, ..Default::default() };
        ops::scaled_dot_product_attention(&m(), &m(), &m(), options)
    });
    c.axes("einsum", |n| {
        let count = 2 + n.unsigned_abs().min(40);
        ops::einsum(&vec!["i"; count].join(","), &vec![&v(); count])
    });
    // Printing is not an operation; it must handle a view of any size.
    let print = |n: usize| {
        let wide = v().i(0).expand([n.min(1 << 30), 1 << 29]);
        assert!(format!("{wide:?}").contains("..."), "the text must show only the first and last elements");
        Ok::<(), Error>(())
    };
    c.sizes("print", print);
}
