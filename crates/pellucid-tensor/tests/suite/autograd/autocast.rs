//! Mixed precision.

use pellucid_tensor::ops::{
    self, AttentionOptions, ConvOptions, CrossEntropyOptions, NllLossOptions, RecurrenceOptions, RecurrentWeights,
    Reduction, RnnNonlinearity,
};
use pellucid_tensor::{
    AutocastPolicy, BackwardOptions, DType, GradOptions, Result, Tensor, autocast, autocast_dtype, autocast_off,
    autocast_policy, capture, checkpoint, grad, manual_seed,
};

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(shape, DType::F32)
}

type Op = fn(&Tensor) -> Result<Tensor>;

/// Returns operations on one tensor `[4, 4]`, with the names that determine their autocast policy.
fn operations() -> Vec<(&'static str, Op)> {
    fn loss(f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
        f(x, &ops::zeros_like(x)?)
    }
    vec![
        ("matmul", |x| ops::matmul(x, x)),
        ("linear", |x| ops::linear(x, x, Some(&ops::select(x, 0, 0)?))),
        ("scaled_dot_product_attention", |x| ops::scaled_dot_product_attention(x, x, x, AttentionOptions::default())),
        ("conv1d", |x| ops::conv1d(x, &ops::unsqueeze(x, -1)?, None, ConvOptions::default())),
        ("conv_transpose1d", |x| ops::conv_transpose1d(x, &ops::unsqueeze(x, -1)?, None, ConvOptions::default())),
        ("exp", |x| ops::exp(x)),
        ("log1p", |x| ops::log1p(&ops::abs(x)?)),
        ("pow", |x| ops::pow(x, 2)),
        ("reciprocal", |x| ops::reciprocal(x)),
        ("softplus", |x| ops::softplus(x)),
        ("sum", |x| ops::sum(x, ..)),
        ("sum", |x| ops::mean(x, 0)),
        ("var", |x| ops::var(x, ..)),
        ("prod", |x| ops::prod(x, ..)),
        ("cumsum", |x| ops::cumsum(x, 0)),
        ("cumprod", |x| ops::cumprod(x, 0)),
        ("logcumsumexp", |x| ops::logcumsumexp(x, 0)),
        ("logsumexp", |x| ops::logsumexp(x, 0)),
        ("softmax", |x| ops::softmax(x, -1)),
        ("log_softmax", |x| ops::log_softmax(x, -1)),
        ("standardized", |x| ops::layer_norm(x, [4], None, None, 1e-5)),
        ("rms_norm", |x| ops::rms_norm(x, [4], None, 1e-5)),
        ("mse_loss", |x| loss(|x, t| ops::mse_loss(x, t, Reduction::None), x)),
        ("l1_loss", |x| loss(|x, t| ops::l1_loss(x, t, Reduction::None), x)),
        ("huber_loss", |x| loss(|x, t| ops::huber_loss(x, t, 1.0, Reduction::None), x)),
        ("binary_cross_entropy_with_logits", |x| {
            loss(|x, t| ops::binary_cross_entropy_with_logits(x, t, None, None, Reduction::None), x)
        }),
        ("nll_loss", |x| {
            let options = NllLossOptions { reduction: Reduction::None, ..Default::default() };
            ops::nll_loss(x, &Tensor::from([0i64, 1, 2, 3]), options)
        }),
        ("margin_ranking_loss", |x| loss(|x, t| ops::margin_ranking_loss(x, t, t, 0.5, Reduction::None), x)),
        ("cross_entropy", |x| ops::cross_entropy(x, &Tensor::from([0i64, 1, 2, 3]), CrossEntropyOptions::default())),
        ("lstm", |x| {
            let w = ops::concatenate(&[x; 4], 0)?;
            let weights =
                RecurrentWeights { weight_ih: &w, weight_hh: &w, bias_ih: None, bias_hh: None, weight_hr: None };
            Ok(ops::lstm(&ops::unsqueeze(x, 1)?, weights, None, RecurrenceOptions::default())?.0)
        }),
        ("relu", |x| ops::relu(x)),
        ("add", |x| ops::add(x, x)),
        ("tanh", |x| ops::tanh(x)),
        ("max", |x| ops::max(x, 0)),
    ]
}

#[test]
fn every_operation_follows_its_policy() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let x = random(&[4, 4]);
    for (name, op) in operations() {
        for half in [DType::BF16, DType::F16] {
            for given in [DType::F32, half] {
                let _guard = autocast(half);
                let x = x.to_dtype(given).detach().requires_grad_(true);
                let y = op(&x).unwrap_or_else(|e| panic!("{name}: {e}"));
                let expected = match autocast_policy(name) {
                    AutocastPolicy::Half => half,
                    AutocastPolicy::Single => DType::F32,
                    AutocastPolicy::Promote => given,
                };
                assert_eq!(y.dtype(), expected, "the dtype of {name} of {given} differs from the policy");
                y.sum(..).backward();
                assert_eq!(x.grad().unwrap().dtype(), given, "{name}");
            }
            let _guard = autocast(half);
            assert_eq!(op(&x.to_dtype(DType::F64)).unwrap().dtype(), DType::F64, "{name}");
        }
        // Outside the guard, dtypes are unchanged.
        assert_eq!(op(&x.to_dtype(DType::BF16)).unwrap().dtype(), DType::BF16, "{name}");
    }
}

/// Recurrent layers with two units over `[3, 1, 2]`: name, outputs, and gradients of Σy² with respect to W_ih, computed
/// by PyTorch 2.15 on the CPU under `autocast` with bf16.
const RECURRENT: [(&str, usize, [f64; 6], &[f64]); 3] = [
    ("rnn", 1, [0.99609, -0.58984, 0.99609, 0.82422, 0.019531, 0.96484], &[-0.016968, -0.019897, -0.45703, -1.0234]),
    (
        "gru",
        3,
        [-0.45599, -0.049286, -0.4495, -0.19529, -0.16103, -0.5403],
        &[
            0.0092773, -0.017578, -0.0099487, -0.0088501, -0.39453, -0.46484, 0.13281, 0.17676, -0.19824, 0.12793,
            0.043701, 0.037598,
        ],
    ),
    (
        "lstm",
        4,
        [-0.48828, -0.049072, -0.44336, -0.34375, -0.070312, -0.67578],
        &[
            0.03125,
            0.013367,
            0.026001,
            -0.030273,
            0.020508,
            -0.03064,
            -0.067383,
            -0.066406,
            -0.10303,
            0.013611,
            -0.0025024,
            -0.00069427,
            0.21289,
            0.11572,
            -0.10156,
            -0.19238,
        ],
    ),
];

/// Returns the outputs and final states of a recurrent layer. `w` is W_ih, W_hh, b_ih, b_hh.
fn recurrent(name: &str, x: &Tensor, w: &[Tensor; 4], state: Option<&Tensor>) -> Vec<Tensor> {
    let weights = RecurrentWeights {
        weight_ih: &w[0],
        weight_hh: &w[1],
        bias_ih: Some(&w[2]),
        bias_hh: Some(&w[3]),
        weight_hr: None,
    };
    let options = RecurrenceOptions::default();
    match name {
        "rnn" => ops::rnn(x, weights, state, RnnNonlinearity::Tanh, options).map(|(y, h)| vec![y, h]),
        "gru" => ops::gru(x, weights, state, options).map(|(y, h)| vec![y, h]),
        _ => ops::lstm(x, weights, state.zip(state), options).map(|(y, (h, c))| vec![y, h, c]),
    }
    .unwrap()
}

/// Returns the inputs and weights of [`RECURRENT`].
fn recurrent_operands(gates: usize) -> (Tensor, [Tensor; 4]) {
    let sines = |shape: &[usize], k: f32| {
        let values: Vec<f32> = (1..=shape.iter().product()).map(|i| (i as f32 * k).sin()).collect();
        Tensor::new(&values[..], shape)
    };
    let rows = gates * 2;
    let weights = [sines(&[rows, 2], 1.1), sines(&[rows, 2], 2.3), sines(&[rows], 0.7), sines(&[rows], 1.9)];
    (sines(&[3, 1, 2], 0.9), weights.map(|w| w.requires_grad_(true)))
}

#[test]
fn recurrent_layers_agree_with_pytorch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for (name, gates, outputs, gradients) in RECURRENT {
        let (x, w) = recurrent_operands(gates);
        let y = {
            let _guard = autocast(DType::BF16);
            recurrent(name, &x, &w, None).remove(0)
        };
        assert_eq!(y.dtype(), DType::BF16);
        y.to_dtype(DType::F32).square().sum(..).backward();
        let found = w[0].grad().unwrap();
        assert_eq!(found.dtype(), DType::F32);
        for (found, expected) in [(y, &outputs[..]), (found, gradients)] {
            let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            for (a, b) in found.to_vec::<f64>().iter().zip(expected) {
                assert!((a - b).abs() <= 0.02 * largest, "{name}: got {a}, expected {b}");
            }
        }
    }
}

/// Under `autocast`, the dtypes of states and weights do not change a bit. In `f16`, nothing is rounded between steps;
/// in `bf16`, the factors of products are.
#[test]
fn recurrent_layers_read_and_write_half_precision() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for half in [DType::BF16, DType::F16] {
        for (name, gates, ..) in RECURRENT {
            let (x, w) = recurrent_operands(gates);
            let state = random(&[1, 2]);
            let cast = |t: &Tensor| t.to_dtype(half).detach();
            let half_operands = || recurrent(name, &cast(&x), &w.each_ref().map(cast), Some(&cast(&state)));
            let plain = half_operands();
            let _guard = autocast(half);
            let expected = half_operands();
            for (expected, plain) in expected.iter().zip(&plain) {
                let largest = (expected.to_dtype(DType::F32) - plain.to_dtype(DType::F32)).abs().max(..).item::<f64>();
                assert!(if half == DType::BF16 { largest < 0.02 } else { largest == 0.0 }, "{name} {half}: {largest}");
            }
            // States and weights may have different dtypes.
            for (state, w) in [(state.clone(), w.clone()), (cast(&state), w.clone()), (state, w.each_ref().map(cast))] {
                let found = recurrent(name, &cast(&x), &w, Some(&state));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.dtype(), half, "{name}");
                    assert_eq!(found.to_vec::<f32>(), expected.to_vec::<f32>(), "{name}");
                }
            }
        }
    }
}

/// The gradients of recurrent layers under `autocast` are near those of `f32`, and second derivatives exist.
#[test]
fn gradients_of_recurrent_layers_with_bf16_factors() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for (name, gates, ..) in RECURRENT {
        // Smaller weights saturate no activation, whose derivatives would have large relative errors.
        let (x, w) = recurrent_operands(gates);
        let w = w.map(|w| (w.detach() * 0.5).requires_grad_(true));
        let gradients = |half: bool| {
            let y = {
                let _guard = half.then(|| autocast(DType::BF16));
                recurrent(name, &x, &w, None).remove(0)
            };
            let loss = y.to_dtype(DType::F32).square().sum(..);
            let options = GradOptions { create_graph: true, ..Default::default() };
            let inputs: Vec<&Tensor> = w.iter().collect();
            let first = grad(&[&loss], &inputs, options).unwrap();
            let norm = first.iter().map(|g| g.square().sum(..)).reduce(|sum, g| sum + g).unwrap();
            let second = grad(&[&norm], &inputs, GradOptions::default()).unwrap();
            [first, second].map(|all| all.iter().flat_map(|g| g.to_vec::<f64>()).collect::<Vec<f64>>())
        };
        let tolerances = [("first", 0.05), ("second", 0.15)];
        for ((half, single), (order, tolerance)) in gradients(true).iter().zip(&gradients(false)).zip(tolerances) {
            let largest = single.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let difference = half.iter().zip(single).fold(0.0f64, |m, (h, s)| m.max((h - s).abs()));
            assert!(difference <= tolerance * largest, "{name}: {order} derivatives {half:?} {single:?}");
            assert!(half != single, "{name}: the factors must be rounded");
        }
    }
}

/// Attention under `autocast` and its gradients are near those of `f32`, and second derivatives exist.
#[test]
fn gradients_of_attention_with_bf16_factors() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let operands: [Tensor; 3] = [40, 50, 50].map(|len| random(&[2, 2, len, 16]).requires_grad_(true));
    let derivatives = |half: bool| {
        let [q, k, v] = &operands;
        let y = {
            let _guard = half.then(|| autocast(DType::BF16));
            q.scaled_dot_product_attention(k, v, Default::default())
        };
        let loss = y.to_dtype(DType::F32).square().sum(..);
        let options = GradOptions { create_graph: true, ..Default::default() };
        let first = grad(&[&loss], &[q, k, v], options).unwrap();
        let norm = first.iter().map(|g| g.square().sum(..)).reduce(|sum, g| sum + g).unwrap();
        let second = grad(&[&norm], &[q, k, v], GradOptions::default()).unwrap();
        let first = first.iter().flat_map(|g| g.to_vec::<f64>()).collect();
        let second = second.iter().flat_map(|g| g.to_vec::<f64>()).collect();
        [y.to_vec::<f64>(), first, second]
    };
    for ((half, single), (order, tolerance)) in
        derivatives(true).iter().zip(&derivatives(false)).zip([("no", 0.02), ("first", 0.05), ("second", 0.15)])
    {
        let largest = single.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let difference = half.iter().zip(single).fold(0.0f64, |m, (h, s)| m.max((h - s).abs()));
        assert!(difference <= tolerance * largest, "{order} derivatives: {difference} of {largest}");
        assert!(half != single, "{order} derivatives: the factors must be rounded");
    }
}

/// The CPU multiplies factors of `f16` in `f32`: under `autocast`, attention and its gradients have the same bits.
#[test]
fn the_cpu_does_not_round_the_factors_of_f16_attention() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let operands: [Tensor; 3] =
        [40, 50, 50].map(|len| random(&[2, 2, len, 16]).to_dtype(DType::F16).detach().requires_grad_(true));
    let results = |half: bool| {
        let [q, k, v] = &operands;
        let _guard = half.then(|| autocast(DType::F16));
        let y = q.scaled_dot_product_attention(k, v, Default::default());
        let loss = y.to_dtype(DType::F32).square().sum(..);
        let gradients = grad(&[&loss], &[q, k, v], GradOptions::default()).unwrap();
        [y].into_iter().chain(gradients).map(|t| t.to_bytes()).collect::<Vec<_>>()
    };
    assert!(results(true) == results(false));
}

fn model(x: &Tensor, w: &[&Tensor]) -> Tensor {
    let h = x.linear(w[0], None).layer_norm([16], None, None, 1e-5).gelu();
    h.linear(w[1], None).log_softmax(-1).index_select(1, &Tensor::from([0i64])).mean(..).neg()
}

fn weights() -> [Tensor; 2] {
    manual_seed(2);
    [random(&[16, 8]), random(&[3, 16])].map(|w| w.requires_grad_(true))
}

#[test]
fn gradients_of_mixed_precision_are_near_those_of_single() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let w = weights();
    let x = random(&[5, 8]);
    let gradients = |half: bool| {
        let loss = {
            let _guard = half.then(|| autocast(DType::BF16));
            model(&x, &[&w[0], &w[1]])
        };
        w.iter().for_each(|w| w.zero_grad());
        loss.backward();
        w.each_ref().map(|w| w.grad().unwrap().to_vec::<f64>())
    };
    for (half, single) in gradients(true).iter().zip(&gradients(false)) {
        let largest = single.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (h, s) in half.iter().zip(single) {
            assert!((h - s).abs() <= 0.05 * largest, "{h} {s}");
            assert!(half != single);
        }
    }
}

#[test]
fn a_backward_pass_does_not_depend_on_the_guard() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let w = weights();
    let x = random(&[5, 8]);
    let gradients = |inside: bool| {
        let guard = autocast(DType::BF16);
        let loss = model(&x, &[&w[0], &w[1]]);
        if !inside {
            drop(guard);
        }
        w.iter().for_each(|w| w.zero_grad());
        loss.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        w.each_ref().map(|w| w.grad().unwrap().to_vec::<f32>())
    };
    assert_eq!(gradients(true), gradients(false));
}

#[test]
fn a_checkpoint_recomputes_in_the_original_precision() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let w = weights();
    let x = random(&[5, 8]);
    let gradients = |again: bool| {
        let loss = {
            let _guard = autocast(DType::BF16);
            match again {
                true => checkpoint(|t| Ok(vec![model(&t[0], &[&t[1], &t[2]])]), &[&x, &w[0], &w[1]]).unwrap().remove(0),
                false => model(&x, &[&w[0], &w[1]]),
            }
        };
        w.iter().for_each(|w| w.zero_grad());
        loss.backward();
        w.each_ref().map(|w| w.grad().unwrap().to_vec::<f32>())
    };
    assert_eq!(gradients(true), gradients(false));
}

#[test]
fn a_captured_step_keeps_its_precision() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let w = weights();
    let x = random(&[5, 8]);
    let step = |x: &Tensor| {
        let _guard = autocast(DType::BF16);
        x.linear(&w[0], None)
    };
    let expected = step(&x);
    assert_eq!(expected.dtype(), DType::BF16);
    let mut captured = capture(|inputs| step(&inputs[0]), &[&x]).unwrap();
    assert_eq!(captured.launch(&[&x]).unwrap().to_vec::<f32>(0), expected.to_vec::<f32>());
}

#[test]
fn guards_nest_and_other_dtypes_are_errors() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    assert_eq!(autocast_dtype(), None);
    {
        let _outer = autocast(DType::F16);
        {
            let _off = autocast_off();
            assert_eq!(autocast_dtype(), None);
        }
        assert_eq!(autocast_dtype(), Some(DType::F16));
    }
    assert_eq!(autocast_dtype(), None);
    let rejected = std::panic::catch_unwind(|| drop(autocast(DType::F64))).unwrap_err();
    assert!(rejected.downcast_ref::<String>().unwrap().contains("bf16 or f16"));
}

/// Losses convert half-precision inputs to `f32` and compute without further rounding.
#[test]
fn losses_and_distances_are_computed_in_f32() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    type Two = fn(&Tensor, &Tensor) -> Result<Tensor>;
    const MEAN: Reduction = Reduction::Mean;
    let cases: [(&str, Two); 14] = [
        ("l1_loss", |x, y| ops::l1_loss(x, y, MEAN)),
        ("smooth_l1_loss", |x, y| ops::smooth_l1_loss(x, y, 0.5, MEAN)),
        ("kl_div", |x, y| ops::kl_div(x, y, false, MEAN)),
        ("kl_div", |x, y| ops::kl_div(x, y, true, MEAN)),
        ("poisson_nll_loss", |x, y| ops::poisson_nll_loss(x, y, Default::default())),
        ("gaussian_nll_loss", |x, y| ops::gaussian_nll_loss(x, y, y, true, 1e-6, MEAN)),
        ("soft_margin_loss", |x, y| ops::soft_margin_loss(x, y, MEAN)),
        ("multi_margin_loss", |x, _| ops::multi_margin_loss(x, &Tensor::from([1i64, 0, 2]), Default::default())),
        ("multilabel_margin_loss", |x, _| ops::multilabel_margin_loss(x, &Tensor::from([[1i64, -1, 0]; 3]), MEAN)),
        ("cosine_embedding_loss", |x, y| ops::cosine_embedding_loss(x, y, &Tensor::from([1i64, -1, 1]), 0.1, MEAN)),
        ("triplet_margin_loss", |x, y| ops::triplet_margin_loss(x, y, &ops::flip(x, 0)?, Default::default())),
        ("cosine_similarity", |x, y| ops::cosine_similarity(x, y, 1, 1e-8)),
        ("cdist", |x, y| ops::cdist(x, y, 2.0)),
        ("pdist", |x, _| ops::pdist(x, 2.0)),
    ];
    manual_seed(3);
    let [x, y] = [(); 2].map(|()| Tensor::rand([3, 3], DType::F32));
    for half in [DType::BF16, DType::F16] {
        let [x, y] = [&x, &y].map(|t| t.to_dtype(half));
        for (name, f) in cases {
            let mixed = {
                let _guard = autocast(half);
                f(&x, &y).unwrap_or_else(|e| panic!("{name}: {e}"))
            };
            let single = f(&x.to_dtype(DType::F32), &y.to_dtype(DType::F32)).unwrap();
            assert_eq!(mixed.dtype(), DType::F32, "{name}");
            assert_eq!(mixed.to_vec::<f32>(), single.to_vec::<f32>(), "{name}");
        }
    }
}

/// Attention accepts an `f32` mask with half-precision queries, keys and values.
#[test]
fn attention_accepts_an_f32_mask_with_half_precision_operands() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = random(&[2, 3, 4]).to_dtype(DType::BF16);
    let mask = Tensor::zeros([3, 3], DType::F32);
    let _on = autocast(DType::BF16);
    let attend =
        |mask| ops::scaled_dot_product_attention(&x, &x, &x, AttentionOptions { mask, ..AttentionOptions::default() });
    let (masked, plain) = (attend(Some(&mask)).unwrap(), attend(None).unwrap());
    assert_eq!((masked.dtype(), masked.to_vec::<f32>()), (DType::BF16, plain.to_vec::<f32>()));
}

/// A bias that the kernel cannot add is added to the wide product, which must not be cast again.
#[test]
fn a_bias_of_any_shape_and_dtype_is_added_under_autocast() {
    let x = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let weight = Tensor::ones([3, 3], DType::F32);
    for bias in [
        Tensor::from(0.5f32),
        Tensor::from([0.5f32]),
        Tensor::from([[0.5f32; 3]; 2]),
        Tensor::from([0.5f64; 3]),
        Tensor::from([1i64; 3]),
        Tensor::from([0.5f32; 3]),
    ] {
        let expected = ops::linear(&x, &weight, Some(&bias)).unwrap().to_vec::<f64>();
        let _guard = autocast(DType::BF16);
        let y = ops::linear(&x, &weight, Some(&bias)).unwrap();
        assert_eq!(y.to_vec::<f64>(), expected, "bias {} {}", bias.dtype(), bias.shape());
    }
    let vector = Tensor::ones([3], DType::F32);
    let _guard = autocast(DType::F16);
    assert_eq!(ops::linear(&x, &vector, Some(&Tensor::from(0.5f32))).unwrap().to_vec::<f64>(), [6.5, 15.5]);
}

/// All powers of a matrix have the dtype of autocast, and are rounded once.
#[test]
fn powers_of_a_matrix_have_one_dtype_under_autocast() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::from([[2.0f32, 0.0], [0.0, 1.0]]).to_dtype(dtype);
        for (n, first) in [(-2, 0.25), (-1, 0.5), (1, 2.0), (2, 4.0), (3, 8.0)] {
            let eager = ops::matrix_power(&x, n).unwrap();
            assert_eq!((eager.dtype(), eager.i((0, 0)).item::<f64>()), (dtype, first), "{n}");
            let _guard = autocast(DType::BF16);
            let y = ops::matrix_power(&x, n).unwrap();
            assert_eq!((y.dtype(), y.i((0, 0)).item::<f64>()), (DType::BF16, first), "{n}");
        }
    }
}
