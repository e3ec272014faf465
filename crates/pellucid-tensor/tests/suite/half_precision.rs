//! Half precision: an operation of several kernels computes in `f32` and rounds once. The same holds for its gradients.
//!
//! The result of every operation is compared with its `f64` result, rounded once. At some sizes, squares and sums
//! overflow `f16` although the result does not. At others, squares underflow.

use crate::support::bits;
use pellucid_tensor::ops::{
    self, AvgPoolDivisor, ConvOptions, CovOptions, EmbeddingBagOptions, GridSamplePadding, InterpolationMode,
    PoolOptions, Reduction, Resize, ScatterReduceOp, Spacing,
};
use pellucid_tensor::ops::{
    BatchNormOptions, CrossEntropyOptions, GridSampleMode, NllLossOptions, PoissonNllLossOptions,
    QuantileInterpolation, RecurrenceOptions, RecurrentWeights, RnnNonlinearity, RunningStatistics,
};
use pellucid_tensor::{BackwardOptions, DType, Generator, Result, Tensor, capture, ops::over};

/// The domain of an operation, and the size of its operands.
#[derive(Clone, Copy, PartialEq)]
enum Domain {
    /// All numbers, of any size.
    Any,
    /// Positive numbers of any size.
    Positive,
    /// Between 0 and 1.
    Unit,
    /// Numbers of magnitude near 1, for products.
    Near,
    /// Coordinates and logits, of magnitude 1.
    Fixed,
}
use Domain::{Any, Fixed, Near, Positive, Unit};

type Call = fn(&[Tensor]) -> Result<Tensor>;

const MEAN: Reduction = Reduction::Mean;

fn classes() -> Tensor {
    Tensor::from([1i64, 0, 5, 2])
}

fn mask() -> Tensor {
    Tensor::new((0..24).map(|i| i % 5 != 1).collect::<Vec<bool>>(), [4, 6])
}

/// `[4, 6]` as an image `[1, 1, 4, 6]`.
fn image(x: &Tensor) -> Result<Tensor> {
    ops::reshape(x, [1, 1, 4, 6])
}

fn reductions() -> Vec<(&'static str, Domain, Call)> {
    vec![
        ("sum", Any, |x| ops::sum(&x[0], 1)),
        ("mean", Any, |x| ops::mean(&x[0], ..)),
        ("var", Any, |x| ops::var(&x[0], 1)),
        ("std", Any, |x| ops::std(&x[0], over(0).ddof(1))),
        ("norm 2", Any, |x| ops::norm(&x[0], 2.0, ..)),
        ("norm 1.5", Any, |x| ops::norm(&x[0], 1.5, 1)),
        ("norm 3", Any, |x| ops::norm(&x[0], 3.0, over(1).keepdims())),
        ("norm 1", Any, |x| ops::norm(&x[0], 1.0, 1)),
        ("prod", Near, |x| ops::prod(&x[0], 1)),
        ("logsumexp", Any, |x| ops::logsumexp(&x[0], 1)),
        ("nansum", Any, |x| ops::nansum(&x[0], ..)),
        ("nanmean", Any, |x| ops::nanmean(&x[0], 1)),
        ("masked_mean", Any, |x| ops::masked_mean(&x[0], &mask(), 1)),
        ("masked_var", Any, |x| ops::masked_var(&x[0], &mask(), 1)),
        ("masked_std", Any, |x| ops::masked_std(&x[0], &mask(), ..)),
        ("masked_norm", Any, |x| ops::masked_norm(&x[0], &mask(), 2.0, 1)),
        ("masked_normalize", Any, |x| ops::masked_normalize(&x[0], &mask(), 2.0, 1, 1e-12)),
        ("masked_logsumexp", Fixed, |x| ops::masked_logsumexp(&x[0], &mask(), 1)),
        ("masked_prod", Near, |x| ops::masked_prod(&x[0], &mask(), 1)),
        ("softmax", Fixed, |x| ops::softmax(&x[0], 1)),
        ("log_softmax", Fixed, |x| ops::log_softmax(&x[0], 1)),
        ("softmin", Fixed, |x| ops::softmin(&x[0], 0)),
        ("cumsum", Any, |x| ops::cumsum(&x[0], 1)),
        ("cumprod", Near, |x| ops::cumprod(&x[0], 1)),
        ("logcumsumexp", Fixed, |x| ops::logcumsumexp(&x[0], 1)),
        ("diff", Any, |x| ops::diff(&x[0], 3, 1)),
        ("vander", Unit, |x| ops::vander(&x[0], Some(8))),
        ("trapezoid", Any, |x| ops::trapezoid(&x[0], Spacing::Step(0.3), 1)),
        ("trapezoid with points", Any, |x| ops::trapezoid(&x[0], Spacing::Points(&x[1]), 1)),
        ("cumulative_trapezoid", Any, |x| ops::cumulative_trapezoid(&x[0], Spacing::Step(0.3), 1)),
        ("gradient", Any, |x| ops::gradient(&x[0], Spacing::Step(0.7), 1, 2)),
        ("cov", Any, |x| ops::cov(&x[0], CovOptions::default())),
        ("corrcoef", Any, |x| ops::corrcoef(&x[0])),
        ("quantile", Any, |x| {
            let q = Tensor::from([0.3, 0.5]).to_dtype(DType::BF16).to_dtype(x[0].dtype());
            ops::quantile(&x[0], &q, 1, QuantileInterpolation::Linear)
        }),
        ("scatter_reduce mean", Any, |x| {
            ops::scatter_reduce(&x[0], 1, &Tensor::zeros([4, 6], DType::I64), &x[1], ScatterReduceOp::Mean, true)
        }),
        ("scatter_reduce product", Near, |x| {
            ops::scatter_reduce(&x[0], 1, &Tensor::zeros([4, 6], DType::I64), &x[1], ScatterReduceOp::Prod, true)
        }),
        ("embedding_bag", Any, |x| {
            let index = Tensor::from([[0i64, 1, 0], [3, 3, 2]]);
            ops::embedding_bag(&x[0], &index, EmbeddingBagOptions::default())
        }),
        ("embedding_bag with weights", Any, |x| {
            let (index, weights) = (Tensor::from([[0i64, 1, 0], [3, 3, 2]]), ops::narrow(&x[1], 1, 0, 3)?);
            let weights = ops::narrow(&weights, 0, 0, 2)?;
            let options =
                EmbeddingBagOptions { mode: ScatterReduceOp::Sum, weights: Some(&weights), ..Default::default() };
            ops::embedding_bag(&x[0], &index, options)
        }),
    ]
}

fn norms() -> Vec<(&'static str, Domain, Call)> {
    vec![
        ("layer_norm", Any, |x| {
            let (w, b) = (ops::select(&x[1], 0, 0)?, ops::select(&x[1], 0, 1)?);
            ops::layer_norm(&x[0], [6], Some(&w), Some(&b), 1e-5)
        }),
        ("layer_norm with a bias", Any, |x| ops::layer_norm(&x[0], [6], None, Some(&ops::select(&x[1], 0, 1)?), 1e-5)),
        ("rms_norm", Any, |x| ops::rms_norm(&x[0], [6], Some(&ops::select(&x[1], 0, 0)?), 1e-5)),
        ("batch_norm", Any, |x| {
            let (w, b) = (ops::select(&x[1], 0, 0)?, ops::select(&x[1], 0, 1)?);
            ops::batch_norm(&x[0], None, Some(&w), Some(&b), BatchNormOptions::default())
        }),
        ("batch_norm in evaluation", Any, |x| {
            let (mean, var) = (ops::select(&x[1], 0, 0)?, ops::abs(&ops::select(&x[1], 0, 1)?)?);
            let running = Some(RunningStatistics { mean: &mean, var: &var });
            let (w, b) = (ops::select(&x[1], 0, 2)?, ops::select(&x[1], 0, 3)?);
            let options = BatchNormOptions { training: false, ..Default::default() };
            ops::batch_norm(&x[0], running, Some(&w), Some(&b), options)
        }),
        ("group_norm", Any, |x| {
            let (w, b) = (ops::select(&x[1], 0, 0)?, ops::select(&x[1], 0, 1)?);
            ops::group_norm(&x[0], 2, Some(&w), Some(&b), 1e-5)
        }),
        ("instance_norm", Any, |x| {
            let x = ops::reshape(&x[0], [2, 2, 6])?;
            ops::instance_norm(&x, None, None, None, BatchNormOptions::default())
        }),
        ("local_response_norm", Any, |x| ops::local_response_norm(&ops::unsqueeze(&x[0], 0)?, 3, 1.0, 0.5, 1.0)),
        ("normalize", Any, |x| ops::normalize(&x[0], 2.0, 1, 1e-12)),
        ("renorm", Any, |x| ops::renorm(&x[0], 2.0, 0, 3.0)),
        ("cosine_similarity", Any, |x| ops::cosine_similarity(&x[0], &x[1], 1, 1e-8)),
        ("pairwise_distance", Any, |x| ops::pairwise_distance(&x[0], &x[1], 2.0, 1e-6, false)),
        ("cdist", Any, |x| ops::cdist(&x[0], &x[1], 2.0)),
        ("pdist", Any, |x| ops::pdist(&x[0], 2.0)),
    ]
}

fn windows() -> Vec<(&'static str, Domain, Call)> {
    vec![
        ("avg_pool2d", Any, |x| ops::avg_pool2d(&image(&x[0])?, PoolOptions::new(3), AvgPoolDivisor::Window)),
        ("avg_pool2d, divided by the elements inside", Any, |x| {
            ops::avg_pool2d(
                &image(&x[0])?,
                PoolOptions { stride: Some(1.into()), padding: 1.into(), ..PoolOptions::new(3) },
                AvgPoolDivisor::Inside,
            )
        }),
        ("lp_pool1d", Positive, |x| ops::lp_pool1d(&x[0], 2.0, PoolOptions::new(3))),
        ("adaptive_avg_pool1d", Any, |x| ops::adaptive_avg_pool1d(&x[0], &[Some(2)])),
        ("adaptive_avg_pool1d of unequal windows", Any, |x| ops::adaptive_avg_pool1d(&x[0], &[Some(4)])),
        ("adaptive_avg_pool2d", Any, |x| ops::adaptive_avg_pool2d(&image(&x[0])?, &[Some(1), Some(1)])),
        ("interpolate linear", Any, |x| {
            ops::interpolate(&image(&x[0])?, Resize::To(vec![7, 5]), InterpolationMode::Linear { align_corners: false })
        }),
        ("interpolate cubic", Any, |x| {
            ops::interpolate(&image(&x[0])?, Resize::To(vec![7, 5]), InterpolationMode::Cubic { align_corners: true })
        }),
        ("interpolate area", Any, |x| {
            ops::interpolate(&image(&x[0])?, Resize::To(vec![3, 4]), InterpolationMode::Area)
        }),
        ("grid_sample", Fixed, |x| {
            let grid = ops::reshape(&x[2], [1, 4, 3, 2])?;
            ops::grid_sample(&image(&x[0])?, &grid, GridSampleMode::Linear, GridSamplePadding::Zeros, false)
        }),
        ("affine_grid", Any, |x| {
            let theta = ops::reshape(&ops::select(&x[0], 0, 0)?, [1, 2, 3])?;
            ops::affine_grid(&theta, &[3, 5], false)
        }),
        ("fold", Any, |x| {
            let columns = ops::reshape(&ops::concatenate(&[&x[0], &x[1]], 0)?, [1, 8, 6])?;
            ops::fold(&columns, &[4, 3], ops::FoldOptions::new([2, 2]))
        }),
    ]
}

/// Two sequences of two steps, `[2, 2, 6]`.
fn sequence(x: &Tensor) -> Result<Tensor> {
    ops::reshape(x, [2, 2, 6])
}

fn recurrence() -> RecurrenceOptions<'static> {
    RecurrenceOptions::default()
}

/// The weights and biases of a recurrent layer.
struct Gates {
    ih: Tensor,
    hh: Tensor,
    biases: [Tensor; 2],
}

impl Gates {
    fn weights(&self) -> RecurrentWeights<'_> {
        let [bias_ih, bias_hh] = self.biases.each_ref().map(Some);
        RecurrentWeights { weight_ih: &self.ih, weight_hh: &self.hh, bias_ih, bias_hh, weight_hr: None }
    }
}

/// Returns the gates of `hidden` units, with elements of the last two operands.
fn gates(x: &[Tensor], gates: usize, hidden: usize) -> Result<Gates> {
    let rows = gates * hidden;
    let elements = |t: &Tensor, first: usize, count: usize| ops::narrow(&ops::ravel(t)?, 0, first as isize, count);
    Ok(Gates {
        ih: ops::narrow(&x[1], 0, 0, rows)?,
        hh: ops::reshape(&elements(&x[2], 0, rows * hidden)?, [rows, hidden])?,
        biases: [elements(&x[2], 12, rows)?, elements(&x[2], 18, rows)?],
    })
}

fn products() -> Vec<(&'static str, Domain, Call)> {
    vec![
        ("vecdot", Any, |x| ops::vecdot(&x[0], &x[1], 1)),
        ("cross", Any, |x| ops::cross(&ops::narrow(&x[0], 1, 0, 3)?, &ops::narrow(&x[1], 1, 0, 3)?, 1)),
        ("einsum of three factors", Any, |x| ops::einsum("ij,kj,kl->il", &[&x[0], &x[1], &x[2]])),
        ("einsum with a sum before the product", Any, |x| ops::einsum("ij,kl->il", &[&x[0], &x[1]])),
        ("multi_dot", Any, |x| ops::multi_dot(&[&x[0], &ops::t(&x[1])?, &x[2]])),
        ("matrix_power", Near, |x| ops::matrix_power(&ops::narrow(&x[0], 1, 0, 4)?, 5)),
        ("linear", Near, |x| ops::linear(&x[0], &x[1], Some(&ops::select(&x[2], 1, 0)?))),
        ("linear with a bias that broadcasts", Near, |x| {
            ops::linear(&x[0], &x[1], Some(&ops::reshape(&ops::select(&x[2], 1, 0)?, [4, 1])?))
        }),
        ("conv2d", Near, |x| {
            let bias = ops::narrow(&ops::select(&x[1], 0, 0)?, 0, 0, 2)?;
            let weight = ops::reshape(&ops::narrow(&x[2], 1, 0, 4)?, [2, 1, 2, 4])?;
            ops::conv2d(&image(&x[0])?, &weight, Some(&bias), ConvOptions::default())
        }),
        ("conv_transpose1d", Near, |x| {
            let bias = ops::narrow(&ops::select(&x[1], 0, 0)?, 0, 0, 3)?;
            ops::conv_transpose1d(&x[0], &ops::reshape(&x[2], [4, 3, 2])?, Some(&bias), ConvOptions::default())
        }),
        ("addmm", Near, |x| ops::addmm(&ops::select(&x[2], 1, 0)?, &x[0], &ops::t(&x[1])?, 0.7, 1.5)),
        ("addmv", Near, |x| ops::addmv(&ops::select(&x[2], 1, 0)?, &x[0], &ops::select(&x[1], 0, 0)?, 0.7, 1.5)),
        ("addr", Near, |x| ops::addr(&x[0], &ops::select(&x[1], 1, 0)?, &ops::select(&x[2], 0, 0)?, 0.7, 1.5)),
        ("baddbmm", Near, |x| {
            let [a, b] = [ops::reshape(&x[0], [2, 2, 6])?, ops::reshape(&x[1], [2, 6, 2])?];
            ops::baddbmm(&ops::narrow(&ops::select(&x[2], 0, 0)?, 0, 0, 2)?, &a, &b, 0.7, 1.5)
        }),
        ("addbmm", Near, |x| {
            let [a, b] = [ops::reshape(&x[0], [2, 2, 6])?, ops::reshape(&x[1], [2, 6, 2])?];
            ops::addbmm(&ops::narrow(&ops::select(&x[2], 0, 0)?, 0, 0, 2)?, &a, &b, 0.7, 1.5)
        }),
        ("bilinear", Near, |x| {
            let [a, c] = [ops::narrow(&x[0], 1, 0, 3)?, ops::narrow(&x[1], 1, 0, 4)?];
            let bias = ops::select(&ops::narrow(&x[1], 1, 4, 2)?, 0, 0)?;
            ops::bilinear(&a, &c, &ops::reshape(&x[2], [2, 3, 4])?, Some(&bias))
        }),
        ("rnn", Unit, |x| {
            Ok(ops::rnn(&sequence(&x[0])?, gates(x, 1, 3)?.weights(), None, RnnNonlinearity::Relu, recurrence())?.0)
        }),
        ("gru", Unit, |x| Ok(ops::gru(&sequence(&x[0])?, gates(x, 3, 1)?.weights(), None, recurrence())?.0)),
        ("lstm", Unit, |x| Ok(ops::lstm(&sequence(&x[0])?, gates(x, 4, 1)?.weights(), None, recurrence())?.0)),
        ("c of lstm", Unit, |x| Ok(ops::lstm(&sequence(&x[0])?, gates(x, 4, 1)?.weights(), None, recurrence())?.1.1)),
        ("linear of one output", Any, |x| {
            ops::linear(&x[0], &ops::select(&x[1], 0, 0)?, Some(&ops::select(&ops::select(&x[1], 0, 1)?, 0, 0)?))
        }),
    ]
}

fn losses() -> Vec<(&'static str, Domain, Call)> {
    let all: Vec<(&'static str, Domain, Call)> = vec![
        ("mse_loss", Any, |x| ops::mse_loss(&x[0], &x[1], MEAN)),
        ("l1_loss", Any, |x| ops::l1_loss(&x[0], &x[1], MEAN)),
        ("smooth_l1_loss", Any, |x| ops::smooth_l1_loss(&x[0], &x[1], 0.3, MEAN)),
        ("huber_loss", Any, |x| ops::huber_loss(&x[0], &x[1], 1.5, MEAN)),
        ("kl_div", Unit, |x| ops::kl_div(&x[0], &x[1], false, MEAN)),
        ("kl_div of logarithms", Fixed, |x| ops::kl_div(&x[0], &x[1], true, MEAN)),
        ("poisson_nll_loss", Fixed, |x| {
            ops::poisson_nll_loss(&x[0], &ops::abs(&x[1])?, PoissonNllLossOptions { full: true, ..Default::default() })
        }),
        ("gaussian_nll_loss", Positive, |x| ops::gaussian_nll_loss(&x[0], &x[1], &x[2], true, 1e-6, MEAN)),
        ("binary_cross_entropy", Unit, |x| ops::binary_cross_entropy(&x[0], &x[1], Some(&x[2]), MEAN)),
        ("binary_cross_entropy_with_logits", Fixed, |x| {
            ops::binary_cross_entropy_with_logits(&x[0], &x[2], None, Some(&ops::abs(&x[1])?), MEAN)
        }),
        ("multilabel_soft_margin_loss", Fixed, |x| {
            ops::multilabel_soft_margin_loss(&x[0], &ops::to_dtype(&mask(), x[0].dtype())?, None, MEAN)
        }),
        ("soft_margin_loss", Fixed, |x| ops::soft_margin_loss(&x[0], &ops::sign(&x[1].detach())?, MEAN)),
        ("hinge_embedding_loss", Any, |x| ops::hinge_embedding_loss(&x[0], &ops::sign(&x[1].detach())?, 1.0, MEAN)),
        ("margin_ranking_loss", Any, |x| {
            ops::margin_ranking_loss(&x[0], &x[1], &Tensor::ones([4, 6], DType::I64), 0.3, MEAN)
        }),
        ("cosine_embedding_loss", Fixed, |x| {
            ops::cosine_embedding_loss(&x[0], &x[1], &Tensor::from([1i64, -1, 1, -1]), -0.5, MEAN)
        }),
        ("triplet_margin_loss", Any, |x| ops::triplet_margin_loss(&x[0], &x[1], &x[2], Default::default())),
        ("cross_entropy", Fixed, |x| ops::cross_entropy(&x[0], &classes(), CrossEntropyOptions::default())),
        ("cross_entropy with options", Fixed, |x| {
            let weight = ops::select(&x[2].detach(), 0, 0)?;
            let options = CrossEntropyOptions {
                label_smoothing: 0.1,
                ignore_index: Some(2),
                weight: Some(&weight),
                reduction: MEAN,
            };
            ops::cross_entropy(&x[0], &classes(), options)
        }),
        ("cross_entropy of probabilities", Fixed, |x| ops::cross_entropy(&x[0], &x[2], CrossEntropyOptions::default())),
        ("nll_loss", Any, |x| {
            let weight = ops::select(&x[2].detach(), 0, 0)?;
            ops::nll_loss(&x[0], &classes(), NllLossOptions { weight: Some(&weight), ..Default::default() })
        }),
        ("multi_margin_loss", Any, |x| ops::multi_margin_loss(&x[0], &classes(), Default::default())),
        ("multilabel_margin_loss", Any, |x| {
            let labels = Tensor::from([[3i64, 0, -1, 1, 1, 1]; 4]);
            ops::multilabel_margin_loss(&x[0], &labels, MEAN)
        }),
        ("ctc_loss", Fixed, |x| {
            let probs = ops::neg(&ops::abs(&ops::unsqueeze(&x[0], 1)?)?)?;
            let (steps, labels) = (Tensor::from([4i64]), Tensor::from([2i64]));
            ops::ctc_loss(&probs, &Tensor::from([[1i64, 3]]), &steps, &labels, Default::default())
        }),
    ];
    all
}

/// Returns two operands `[4, 6]` of a domain and a size, and one between 0 and 1. The half-precision dtype `half`
/// represents all elements exactly.
fn operands(domain: Domain, half: DType, size: f64) -> Vec<Tensor> {
    let generator = Generator::new(5);
    let draw = |domain: Domain| {
        let u = ops::rand_with([4, 6], DType::F64, &generator).unwrap();
        let x = match domain {
            Unit => u * 0.98 + 0.01,
            Near => (u - 0.5) * 0.6 + 1.0,
            Positive => (u + 0.1) * size,
            Any | Fixed => (u * 6.0 - 3.0) * size,
        };
        x.to_dtype(half).to_dtype(DType::F64)
    };
    vec![draw(domain), draw(domain), draw(Unit)]
}

/// Returns the spacing of a half-precision dtype at x.
fn ulp(half: DType, x: f64) -> f64 {
    let (digits, least) = if half == DType::F16 { (10, -14) } else { (7, -126) };
    let exponent = if x == 0.0 { least } else { (x.abs().log2().floor() as i32).max(least) };
    2f64.powi(exponent - digits)
}

/// Asserts that `got` is `exact` rounded once, up to one unit in the last place and the error of `f32`.
fn assert_rounded(what: &str, half: DType, got: &Tensor, exact: &Tensor, noise: f64) {
    assert_eq!(got.dtype(), half, "{what}");
    let (got, exact) = (got.to_vec::<f64>(), exact.to_vec::<f64>());
    let greatest = if half == DType::F16 { 65504.0 } else { 3.38e38 };
    let largest = exact.iter().fold(0f64, |m, x| if x.is_finite() { m.max(x.abs()) } else { m });
    for (i, (&got, &exact)) in got.iter().zip(&exact).enumerate() {
        let near = exact.abs() > greatest || (got - exact).abs() <= ulp(half, exact) + noise * largest;
        assert!(near || got.is_nan() && exact.is_nan(), "{what}: element {i} is {got}, expected {exact}");
    }
}

/// Returns the result and the gradients of all operands.
fn run_call(call: Call, operands: &[Tensor], dtype: DType) -> Result<(Tensor, Vec<Option<Tensor>>)> {
    let leaves: Vec<Tensor> = operands.iter().map(|t| t.to_dtype(dtype).detach().requires_grad_(true)).collect();
    let y = call(&leaves)?;
    let g: Vec<f64> = (0..y.size()).map(|i| [1.0, -0.5, 0.25, 0.75, -1.0][i % 5]).collect();
    let g = Tensor::new(g, y.shape()).to_dtype(dtype);
    y.backward_with(BackwardOptions { gradient: Some(g), ..Default::default() });
    Ok((y.detach(), leaves.iter().map(|t| t.grad()).collect()))
}

fn check_table(table: Vec<(&'static str, Domain, Call)>) {
    for (name, domain, call) in table {
        let sizes: &[f64] = if matches!(domain, Any | Positive) { &[1.0, 300.0, 1.0 / 4096.0] } else { &[1.0] };
        for (half, &size) in [DType::F16, DType::BF16].into_iter().flat_map(|h| sizes.iter().map(move |s| (h, s))) {
            let what = format!("{name} of {half} at {size}");
            let operands = operands(domain, half, size);
            let (exact, slopes) = run_call(call, &operands, DType::F64).unwrap_or_else(|e| panic!("{what}: {e}"));
            let (y, gradients) = run_call(call, &operands, half).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_rounded(&what, half, &y, &exact, 1e-6);
            for (k, (g, slope)) in gradients.iter().zip(&slopes).enumerate() {
                if let (Some(g), Some(slope)) = (g, slope) {
                    assert_rounded(&format!("gradient {k} of {what}"), half, g, slope, 1e-5);
                }
            }
            // The captured step is bit-identical.
            let narrow: Vec<Tensor> = operands.iter().map(|t| t.to_dtype(half)).collect();
            let inputs: Vec<&Tensor> = narrow.iter().collect();
            let mut step = capture(|x| vec![call(x).unwrap()], &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
            let launched = step.launch(&inputs).unwrap().to_tensor(0);
            assert_eq!(bits(&[launched]), bits(&[y]), "{what}: the captured result differs from the eager one");
        }
    }
}

#[test]
fn reductions_round_once() {
    check_table(reductions());
}

#[test]
fn norms_and_distances_round_once() {
    check_table(norms());
}

#[test]
fn pools_and_resampled_images_round_once() {
    check_table(windows());
}

#[test]
fn products_of_several_factors_round_once() {
    check_table(products());
}

#[test]
fn losses_round_once() {
    check_table(losses());
}

/// Sums that overflow half precision although the result does not.
#[test]
fn long_sums_stay_finite() {
    let full = |len: usize, x: f64, dtype| Tensor::full([len], x, dtype);
    assert_eq!(full(70000, 1.0, DType::F16).mean(..).item::<f64>(), 1.0);
    assert_eq!(full(4, 300.0, DType::F16).norm(2.0, 0).item::<f64>(), 600.0);
    assert_eq!(full(5000, 1000.0, DType::BF16).mean(..).item::<f64>(), 1000.0);
    let (x, y) = (full(777, 3.0, DType::BF16), full(777, 1.0, DType::BF16));
    assert_eq!(x.mse_loss(&y, MEAN).item::<f64>(), 4.0);
    let many = full(70000, 1.0, DType::F16);
    assert_eq!(many.nanmean(..).item::<f64>(), 1.0);
    assert_eq!(many.masked_mean(&many.gt(0.0), ..).item::<f64>(), 1.0);
    assert_eq!(many.quantile(0.5, .., QuantileInterpolation::Linear).item::<f64>(), 1.0);
    let image = full(300 * 300, 60000.0, DType::F16).reshape([1, 1, 300, 300]);
    assert_eq!(image.adaptive_avg_pool2d(&[Some(1)]).item::<f64>(), 60000.0);
    let means = image.avg_pool2d(PoolOptions::new(20), AvgPoolDivisor::Window).to_vec::<f64>();
    assert!(means.len() == 225 && means.iter().all(|&mean| mean == 60000.0));
    // The gradient of a mean is 1/N, even if N is outside the range of the dtype.
    let leaf = many.detach().requires_grad_(true);
    leaf.mean(..).backward();
    assert_eq!(leaf.grad().unwrap().i(0).item::<f64>(), 1.430511474609375e-5);
    // Losses without a reduction, class counts and class weights.
    let logits = Tensor::zeros([70000, 2], DType::F16);
    let options = CrossEntropyOptions { ignore_index: Some(7), ..Default::default() };
    let loss = logits.cross_entropy(&Tensor::zeros([70000], DType::I64), options).item::<f64>();
    assert!((loss - 2f64.ln()).abs() < 1e-3, "{loss}");
}

/// The gradient of a weight that many rows share is summed before it is rounded.
#[test]
fn gradients_of_shared_weights_round_once() {
    let rows = 3000;
    let x = Tensor::new((0..rows * 2).map(|i| (i % 7) as f64).collect::<Vec<_>>(), [rows, 2]);
    let slope = |dtype: DType| {
        let w = Tensor::ones([2], dtype).requires_grad_(true);
        let b = Tensor::zeros([2], dtype).requires_grad_(true);
        let y = x.to_dtype(dtype).layer_norm([2], Some(&w), Some(&b), 1e-5);
        let g = Tensor::new((0..rows * 2).map(|i| 1.0 / (1 + i % 13) as f64).collect::<Vec<_>>(), [rows, 2]);
        let g = g.to_dtype(DType::BF16).to_dtype(dtype);
        y.backward_with(BackwardOptions { gradient: Some(g), ..Default::default() });
        (w.grad().unwrap(), b.grad().unwrap())
    };
    let (exact, half) = (slope(DType::F64), slope(DType::BF16));
    assert_rounded("weight", DType::BF16, &half.0, &exact.0, 1e-6);
    assert_rounded("bias", DType::BF16, &half.1, &exact.1, 1e-6);
}

/// A probability is not rounded to the dtype of the elements: bf16 would round 0.999 to 1.
#[test]
fn quantiles_of_half_precision() {
    use pellucid_tensor::ops::QuantileInterpolation;
    let x = Tensor::arange(0f32, 256f32, 1f32).to_dtype(DType::BF16);
    let at = |q: f64| ops::quantile(&x, q, .., QuantileInterpolation::Lower).unwrap();
    assert_eq!((at(0.999).dtype(), at(0.999).to_vec::<f32>()), (DType::BF16, vec![254.0]));
    let q = Tensor::from([0.999f32, 0.5]);
    assert_eq!(ops::nanquantile(&x, &q, .., QuantileInterpolation::Lower).unwrap().to_vec::<f32>(), [254.0, 127.0]);
    let x = Tensor::arange(0f32, 1000f32, 1f32).to_dtype(DType::F16);
    assert_eq!(ops::quantile(&x, 0.9999, .., QuantileInterpolation::Lower).unwrap().to_vec::<f32>(), [998.0]);
}

/// The constants of a dtype match its conversions: beyond them, a value rounds, overflows or loses bits.
#[test]
fn constants_of_dtypes_match_the_conversions() {
    for dtype in DType::ALL {
        let convert = |x: f64| Tensor::from(x).to_dtype(dtype).item::<f64>();
        let (least, largest) = dtype.range();
        if !dtype.is_float() {
            assert_eq!((dtype.epsilon(), dtype.min_positive()), (None, None));
            let ends = Tensor::from([least.to_f64(), largest.to_f64()]).to_dtype(dtype).to_vec::<i64>();
            let expected =
                if dtype == DType::Bool { [0, 1] } else { [i64::MIN, i64::MAX].map(|end| dtype.saturate(end)) };
            assert_eq!(ends, expected, "{dtype}");
            continue;
        }
        let (epsilon, tiny) = (dtype.epsilon().unwrap(), dtype.min_positive().unwrap());
        let largest = largest.to_f64();
        assert_eq!((convert(largest), convert(least.to_f64())), (largest, -largest), "{dtype}");
        assert!(convert(largest * (1.0 + epsilon)).is_infinite(), "{dtype}");
        assert_eq!((convert(1.0 + epsilon), convert(1.0 + epsilon / 2.0)), (1.0 + epsilon, 1.0), "{dtype}");
        // Below the normal numbers, the last bit of the fraction is lost.
        assert_eq!(convert(tiny * (1.0 + epsilon)), tiny * (1.0 + epsilon), "{dtype}");
        assert_ne!(convert(tiny * (1.0 + epsilon) / 2.0) * 2.0, tiny * (1.0 + epsilon), "{dtype}");
    }
}

#[test]
fn sums_of_log_gammas_and_edges_are_rounded_once() {
    for (x, p) in [(0.7083, 6), (0.28, 2), (3.1, 4), (200.0, 3)] {
        for dtype in [DType::F16, DType::BF16] {
            let half = Tensor::from([x]).to_dtype(dtype);
            let expected = ops::multigammaln(&half.to_dtype(DType::F32), p).unwrap().to_dtype(dtype);
            assert_eq!(ops::multigammaln(&half, p).unwrap().to_bytes(), expected.to_bytes(), "{dtype} {x} {p}");
            let edges = |x: &Tensor| ops::histogram(x, ops::Bins::Between(3, 1.0, 3.0), None, false).unwrap().1;
            let expected = edges(&half.to_dtype(DType::F32)).to_dtype(dtype);
            assert_eq!(edges(&half).to_bytes(), expected.to_bytes(), "{dtype}");
        }
    }
}
