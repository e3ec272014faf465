//! Every loss with several sets of options and every reduction, in double precision.

use crate::file::{Reference, nearer, references};
use crate::own::own_losses;
use pellucid_nn::graph::mirror::{GradKind, infer_grad_scale};
use pellucid_nn::loss::{self, *};
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::{BatchNorm1d, Dropout, Embedding, Flatten, Layer, Linear, Module, Relu, init, sequential};
use pellucid_tensor::{BackwardOptions, DType, Error, Result, Tensor, capture, capture_local, grad_one, manual_seed};
use std::any::type_name;
use std::collections::BTreeSet;

/// Computes a loss and its gradients from the reference inputs.
type LossRun = Box<dyn Fn(Reduction, &Reference<'_>) -> (Tensor, Vec<Tensor>)>;

/// A row's computation.
pub(crate) struct Run {
    /// The name of the loss's type.
    class: &'static str,
    /// Returns the loss and its gradients, in the order of their names in `reference.py`.
    run: LossRun,
}

impl Run {
    fn new<L>(run: impl Fn(Reduction, &Reference<'_>) -> (Tensor, Vec<Tensor>) + 'static) -> Run {
        let path = type_name::<L>().split('<').next().unwrap();
        Run { class: path.rsplit("::").next().unwrap(), run: Box::new(run) }
    }

    /// A loss of x and y.
    pub(crate) fn of<L: Loss>(make: impl Fn(Reduction, &Reference<'_>) -> L + 'static) -> Run {
        Run::new::<L>(move |reduction, inputs| {
            let (loss, gradient) = make(reduction, inputs).forward_with_grad(inputs.get("x"), inputs.get("y"));
            (loss, vec![gradient])
        })
    }
}

/// A loss of other inputs.
fn many<L, const K: usize>(
    make: impl Fn(Reduction) -> L + 'static,
    run: impl Fn(L, &Reference<'_>) -> (Tensor, [Tensor; K]) + 'static,
) -> Run {
    Run::new::<L>(move |reduction, inputs| {
        let (loss, gradients) = run(make(reduction), inputs);
        (loss, gradients.into())
    })
}

/// The CTC loss of the logits in the file.
fn ctc_of(loss: CtcLoss) -> Run {
    let make = move |reduction| CtcLoss { reduction, ..loss.clone() };
    many(make, |loss, inputs| {
        let logits = inputs.get("logits").detach().requires_grad_(true);
        let log_probs = logits.log_softmax(-1);
        let [labels, steps, counts] = ["labels", "input_lengths", "label_lengths"].map(|key| inputs.get(key));
        let (loss, [gradient]) = loss.forward_with_grad(&log_probs, labels, steps, counts);
        log_probs.backward_with(BackwardOptions { gradient: Some(gradient), ..Default::default() });
        (loss, [logits.grad().unwrap()])
    })
}

/// The losses with tests of their own: they have parameters.
const OUTSIDE_THE_TABLE: [(&str, fn()); 2] = [
    ("AdaptiveLogSoftmaxWithLoss", an_adaptive_softmax_matches_pytorch),
    ("LinearCrossEntropyLoss", a_projected_cross_entropy_matches_pytorch),
];

/// The names, options, and differentiable inputs of all losses.
#[rustfmt::skip]
fn table() -> Vec<(&'static str, &'static str, &'static [&'static str], Run)> {
    let weight = |inputs: &Reference<'_>| Some(inputs.get("weight").clone());
    let gaussian = |full: bool, eps: f64| many(move |reduction| GaussianNllLoss { full, eps, reduction }, |loss, inputs| {
        let [x, y, variance] = ["x", "y", "variance"].map(|key| inputs.get(key));
        loss.forward_with_grad(x, y, variance)
    });
    let ranking = |margin: f64| many(move |reduction| MarginRankingLoss { margin, reduction }, |loss, inputs| {
        let [a, b, y] = ["a", "b", "y"].map(|key| inputs.get(key));
        loss.forward_with_grad(a, b, y)
    });
    let cosine = |margin: f64| many(move |reduction| CosineEmbeddingLoss { margin, reduction }, |loss, inputs| {
        let [a, b, y] = ["a", "b", "y"].map(|key| inputs.get(key));
        loss.forward_with_grad(a, b, y)
    });
    let triplet = |loss: TripletMarginLoss| many(move |reduction| TripletMarginLoss { reduction, ..loss.clone() }, |loss, inputs| {
        let [x, positive, negative] = ["x", "positive", "negative"].map(|key| inputs.get(key));
        loss.forward_with_grad(x, positive, negative)
    });
    let squares = |reduction| {
        let distance = |a: &Tensor, b: &Tensor| -> Result<Tensor> { Ok((a - b).square().sum(1)) };
        TripletMarginWithDistanceLoss { margin: 3.0, swap: true, reduction, ..TripletMarginWithDistanceLoss::new(distance) }
    };
    let squares = many(squares, |loss, inputs| {
        let [x, positive, negative] = ["x", "positive", "negative"].map(|key| inputs.get(key));
        loss.forward_with_grad(x, positive, negative)
    });
    let x: &[&str] = &["x"];
    let mut table = vec![
        ("l1", "plain", x, Run::of(|reduction, _| L1Loss { reduction })),
        ("mse", "plain", x, Run::of(|reduction, _| MseLoss { reduction })),
        ("smooth_l1", "plain", x, Run::of(|reduction, _| SmoothL1Loss { reduction, ..Default::default() })),
        ("smooth_l1", "beta", x, Run::of(|reduction, _| SmoothL1Loss { beta: 0.4, reduction })),
        ("huber", "plain", x, Run::of(|reduction, _| HuberLoss { reduction, ..Default::default() })),
        ("huber", "delta", x, Run::of(|reduction, _| HuberLoss { delta: 0.4, reduction })),
        ("kl_div", "plain", x, Run::of(|reduction, _| KlDivLoss { reduction, ..Default::default() })),
        ("kl_div", "batch", x, Run::of(|reduction, _| KlDivLoss { batch_mean: true, reduction, ..Default::default() })),
        ("kl_div_log", "plain", x, Run::of(|reduction, _| KlDivLoss { log_target: true, reduction, ..Default::default() })),
        ("poisson_nll", "plain", x, Run::of(|reduction, _| PoissonNllLoss { reduction, ..Default::default() })),
        ("poisson_nll", "full", x, Run::of(|reduction, _| PoissonNllLoss { full: true, reduction, ..Default::default() })),
        ("poisson_nll", "rate", x, Run::of(|reduction, _| PoissonNllLoss { log_input: false, eps: 1e-3, reduction, ..Default::default() })),
        ("gaussian_nll", "plain", &["x", "variance"], gaussian(false, 1e-6)),
        ("gaussian_nll", "full", &["x", "variance"], gaussian(true, 0.3)),
        ("gaussian_nll_rows", "plain", &["x", "variance"], gaussian(false, 1e-6)),
        ("gaussian_nll_rows", "full", &["x", "variance"], gaussian(true, 0.3)),
        ("cross_entropy_soft", "plain", x, Run::of(|reduction, _| CrossEntropyLoss { reduction, ..Default::default() })),
        ("cross_entropy_soft", "smoothing", x, Run::of(|reduction, _| CrossEntropyLoss { label_smoothing: 0.2, reduction, ..Default::default() })),
        ("cross_entropy_soft", "weight", x, Run::of(move |reduction, i| CrossEntropyLoss { weight: weight(i), reduction, ..Default::default() })),
        ("nll", "plain", x, Run::of(|reduction, _| NllLoss { reduction, ..Default::default() })),
        ("nll", "weight", x, Run::of(move |reduction, i| NllLoss { weight: weight(i), reduction, ..Default::default() })),
        ("nll", "ignore", x, Run::of(|reduction, _| NllLoss { ignore_index: Some(1), reduction, ..Default::default() })),
        ("binary_cross_entropy", "plain", x, Run::of(|reduction, _| BceLoss { reduction, ..Default::default() })),
        ("binary_cross_entropy", "weight", x, Run::of(move |reduction, i| BceLoss { weight: weight(i), reduction })),
        ("binary_cross_entropy_with_logits", "plain", x, Run::of(|reduction, _| BceWithLogitsLoss { reduction, ..Default::default() })),
        ("binary_cross_entropy_with_logits", "weight", x, Run::of(move |reduction, i| {
            BceWithLogitsLoss { weight: weight(i), pos_weight: Some(i.get("pos_weight").clone()), reduction }
        })),
        ("hinge_embedding", "plain", x, Run::of(|reduction, _| HingeEmbeddingLoss { reduction, ..Default::default() })),
        ("hinge_embedding", "margin", x, Run::of(|reduction, _| HingeEmbeddingLoss { margin: 0.3, reduction })),
        ("soft_margin", "plain", x, Run::of(|reduction, _| SoftMarginLoss { reduction })),
        ("multi_margin", "plain", x, Run::of(|reduction, _| MultiMarginLoss { reduction, ..Default::default() })),
        ("multi_margin", "all", x, Run::of(move |reduction, i| MultiMarginLoss { p: 2.0, margin: 0.7, weight: weight(i), reduction })),
        ("multilabel_margin", "plain", x, Run::of(|reduction, _| MultiLabelMarginLoss { reduction })),
        ("multilabel_soft_margin", "plain", x, Run::of(|reduction, _| MultiLabelSoftMarginLoss { reduction, ..Default::default() })),
        ("multilabel_soft_margin", "weight", x, Run::of(move |reduction, i| MultiLabelSoftMarginLoss { weight: weight(i), reduction })),
        ("margin_ranking", "plain", &["a", "b"], ranking(0.0)),
        ("margin_ranking", "margin", &["a", "b"], ranking(0.5)),
        ("cosine_embedding", "plain", &["a", "b"], cosine(0.0)),
        ("cosine_embedding", "margin", &["a", "b"], cosine(-0.3)),
        ("triplet_margin", "plain", &["x", "positive", "negative"], triplet(TripletMarginLoss::default())),
        ("triplet_margin", "all", &["x", "positive", "negative"],
            triplet(TripletMarginLoss { margin: 2.0, p: 3.0, eps: 1e-3, swap: true, ..Default::default() })),
        ("triplet_margin", "distance", &["x", "positive", "negative"], squares),
        ("ctc", "plain", &["logits"], ctc_of(CtcLoss::default())),
        ("ctc", "blank", &["logits"], ctc_of(CtcLoss { blank: 4, ..Default::default() })),
        ("ctc_infinite", "zero", &["logits"], ctc_of(CtcLoss { zero_infinity: true, ..Default::default() })),
        ("ctc_joined", "plain", &["logits"], ctc_of(CtcLoss::default())),
    ];
    for name in ["cross_entropy", "cross_entropy_image"] {
        let plain = |reduction| CrossEntropyLoss { reduction, ..Default::default() };
        table.push((name, "plain", x, Run::of(move |r, _| plain(r))));
        table.push((name, "smoothing", x, Run::of(move |r, _| CrossEntropyLoss { label_smoothing: 0.2, ..plain(r) })));
        table.push((name, "weight", x, Run::of(move |r, i| CrossEntropyLoss { weight: weight(i), ..plain(r) })));
        table.push((name, "ignore", x, Run::of(move |r, _| CrossEntropyLoss { ignore_index: Some(1), ..plain(r) })));
        table.push((name, "all", x, Run::of(move |r, i| {
            CrossEntropyLoss { weight: weight(i), ignore_index: Some(1), label_smoothing: 0.2, ..plain(r) }
        })));
    }
    table.extend(own_losses().into_iter().map(|own| (own.name, "plain", x, own.run)));
    table
}

#[test]
fn every_loss_has_a_row() {
    let mut tested: BTreeSet<&str> = OUTSIDE_THE_TABLE.iter().map(|(name, _)| *name).collect();
    tested.extend(table().iter().map(|(.., run)| run.class));
    let untested: Vec<_> = LOSSES.iter().filter(|name| !tested.contains(*name)).collect();
    assert!(
        untested.is_empty(),
        "add these losses to own.rs, or to reference.py and losses.rs, in tests/reference: {untested:?}"
    );
    let unlisted: Vec<_> = tested.iter().filter(|name| !LOSSES.contains(name)).collect();
    assert!(unlisted.is_empty(), "the list of loss/mod.rs must contain {unlisted:?}");
}

#[test]
fn values_and_gradients_match_the_reference() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let references = references();
    let mut checked = 0;
    for (name, option, by, run) in table() {
        let group = format!("loss/{name}");
        let reference = Reference::new(&references, &group);
        for (key, reduction) in [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)] {
            let what = format!("{name}, {option}, {key}");
            let (loss, gradients) = (run.run)(reduction, &reference);
            assert!(
                !loss.requires_grad() && gradients.iter().all(|g| !g.requires_grad()),
                "{what}: loss and gradients must be detached"
            );
            nearer(&what, &loss, reference.get(&format!("{option}/{key}")), 1e-9);
            assert_eq!(by.len(), gradients.len());
            for (input, gradient) in by.iter().zip(&gradients) {
                let theirs = reference.get(&format!("{option}/{key}/{input}"));
                nearer(&format!("{what}, by {input}"), gradient, theirs, 1e-9);
                checked += 1;
            }
        }
    }
    let theirs = references.keys().filter(|key| key.starts_with("loss/") && key.split('/').count() == 5).count();
    assert_eq!(checked, theirs, "the table must contain every loss with a reference");
}

/// PyTorch's values for weights sin 0, sin 1, .. in each matrix and features cos 0, cos 1, ..
#[test]
fn an_adaptive_softmax_matches_pytorch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let softmax = init::in_dtype(DType::F64, || AdaptiveLogSoftmaxWithLoss::new(4, 7, &[2, 4], 2.0));
    let shapes: [(&str, &[usize]); 5] = [
        ("head.weight", &[4, 4]),
        ("tail.0.0.weight", &[2, 4]),
        ("tail.0.1.weight", &[2, 2]),
        ("tail.1.0.weight", &[1, 4]),
        ("tail.1.1.weight", &[3, 1]),
    ];
    let weights = shapes.map(|(name, shape)| {
        let count = shape.iter().product::<usize>() as f64;
        (name.to_string(), Tensor::arange(0.0f64, count, 1.0).sin().reshape(shape))
    });
    softmax.load_state_dict(&weights.into()).unwrap();
    let x = Tensor::arange(0.0f64, 12.0, 1.0).cos().reshape([3, 4]);
    let y = Tensor::from([0i64, 3, 6]);
    let (loss, d_x) = softmax.forward_with_grad(&x, &y);
    nearer("loss", &loss, &Tensor::from(3.9287721699191196), 1e-12);
    #[rustfmt::skip]
    let expected = [
        0.2876798540987164, -0.13838155593199208, -0.43721560161806894, -0.3340756394995451, -0.5154241733925808,
        -0.16728239445084905, 0.33465804648670605, 0.5289154228390378, 0.05453732433277496, -0.48537696046194057,
        -0.5790379062384857, -0.14033407138948645,
    ];
    nearer("by x", &d_x, &Tensor::new(&expected[..], [3, 4]), 1e-12);
    assert_eq!(softmax.predict(&x).to_vec::<i64>(), [3, 0, 1]);
    softmax.forward(&x, &y).backward();
    let expected = [0.02951079044485737, 0.18479840535167597, 0.170183218619674, -0.0008976344711327608];
    nearer("by w", &softmax.tail[1].0.weight.grad().unwrap(), &Tensor::from([expected]), 1e-12);
    for cutoffs in [&[][..], &[0, 3], &[3, 3], &[2, 7]] {
        let rejected = AdaptiveLogSoftmaxWithLoss::try_new(4, 7, cutoffs, 2.0);
        assert!(matches!(rejected, Err(Error::InvalidArgument { .. })), "the cutoffs {cutoffs:?} must be an error");
    }
    assert!(matches!(AdaptiveLogSoftmaxWithLoss::try_new(4, 7, &[2, 4], 4.0), Err(Error::InvalidArgument { .. })));
}

/// PyTorch's values, for scores at two positions of each sample.
#[test]
fn a_projected_cross_entropy_matches_pytorch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let mut loss = init::in_dtype(DType::F64, || LinearCrossEntropyLoss::new(2, 3, &[2]).bias(true));
    loss.loss.label_smoothing = 0.1;
    loss.loss.ignore_index = Some(1);
    let weights = [
        ("linear.weight", (Tensor::arange(0.0f64, 12.0, 1.0) / 10.0 - 0.4).reshape([6, 2])),
        ("linear.bias", Tensor::arange(0.0f64, 6.0, 1.0) / 7.0),
    ];
    loss.load_state_dict(&weights.map(|(name, tensor)| (name.to_string(), tensor)).into()).unwrap();
    let x = Tensor::from([[0.5f64, -1.0], [2.0, 0.25]]);
    let y = Tensor::from([[0i64, 2], [1, 0]]);
    let (value, d_x) = loss.forward_with_grad(&x, &y);
    nearer("loss", &value, &Tensor::from(1.596881709889737), 1e-12);
    let expected = [[0.01521946599879978, 0.01521946599879978], [0.2064173118395075, 0.20641731183950757]];
    nearer("by x", &d_x, &Tensor::from(expected), 1e-12);
    loss.forward(&x, &y).backward();
    #[rustfmt::skip]
    let expected = [
        0.10468818064784273, -0.6952641374404871, -0.04986419504643559, 0.08894306203299433, -0.054823985601407145,
        0.6063210754074928,
    ];
    let by_rows = loss.linear.weight.grad().unwrap().sum(1);
    nearer("by w", &by_rows, &Tensor::from(expected), 1e-12);
    let one = LinearCrossEntropyLoss::new(2, 3, &[]);
    assert_eq!(one.forward(&Tensor::from([1.0f32, 2.0]), &Tensor::from(2i64)).rank(), 0);
    assert!(one.try_forward(&Tensor::from(1.0f32), &Tensor::from(2i64)).is_err());
}

/// Each loss function equals the loss struct with default options.
#[test]
fn a_function_equals_its_loss_with_defaults() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let references = references();
    type Function = fn(&Tensor, &Tensor) -> Tensor;
    let functions: [(&str, Function); 15] = [
        ("l1", loss::l1_loss),
        ("mse", loss::mse_loss),
        ("smooth_l1", loss::smooth_l1_loss),
        ("huber", loss::huber_loss),
        ("kl_div", loss::kl_div),
        ("poisson_nll", loss::poisson_nll_loss),
        ("cross_entropy", loss::cross_entropy),
        ("nll", loss::nll_loss),
        ("binary_cross_entropy", loss::binary_cross_entropy),
        ("binary_cross_entropy_with_logits", loss::binary_cross_entropy_with_logits),
        ("hinge_embedding", loss::hinge_embedding_loss),
        ("soft_margin", loss::soft_margin_loss),
        ("multi_margin", loss::multi_margin_loss),
        ("multilabel_margin", loss::multilabel_margin_loss),
        ("multilabel_soft_margin", loss::multilabel_soft_margin_loss),
    ];
    for (name, function) in functions {
        let group = format!("loss/{name}");
        let reference = Reference::new(&references, &group);
        let value = function(reference.get("x"), reference.get("y"));
        nearer(name, &value, reference.get("plain/mean"), 1e-9);
    }
    type OfThree = fn(&Tensor, &Tensor, &Tensor) -> Tensor;
    let three: [(&str, [&str; 3], OfThree); 4] = [
        ("gaussian_nll", ["x", "y", "variance"], loss::gaussian_nll_loss),
        ("margin_ranking", ["a", "b", "y"], loss::margin_ranking_loss),
        ("cosine_embedding", ["a", "b", "y"], loss::cosine_embedding_loss),
        ("triplet_margin", ["x", "positive", "negative"], loss::triplet_margin_loss),
    ];
    for (name, keys, function) in three {
        let group = format!("loss/{name}");
        let reference = Reference::new(&references, &group);
        let [a, b, c] = keys.map(|key| reference.get(key));
        nearer(name, &function(a, b, c), reference.get("plain/mean"), 1e-9);
    }
    let reference = Reference::new(&references, "loss/ctc");
    let [logits, labels, steps, counts] =
        ["logits", "labels", "input_lengths", "label_lengths"].map(|key| reference.get(key));
    nearer("ctc", &loss::ctc_loss(&logits.log_softmax(-1), labels, steps, counts), reference.get("plain/mean"), 1e-9);
}

#[test]
fn the_gradient_equals_autograds_bit_for_bit() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let logits = Tensor::randn([7, 5], DType::F32).requires_grad_(true);
    let (classes, truth) = (Tensor::randint(0, 5, [7]), Tensor::rand([7, 5], DType::F32));
    let losses: [(&dyn Loss, &Tensor); 4] = [
        (&CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() }, &classes),
        (&MseLoss { reduction: Reduction::Sum }, &truth),
        (&BceWithLogitsLoss { reduction: Reduction::None, ..Default::default() }, &truth),
        (&loss::from_fn(|x, y| Ok((x - y).abs().mean(..))), &truth),
    ];
    for (loss, y) in losses {
        logits.zero_grad();
        let value = loss.forward(&logits, y);
        value.sum(..).backward();
        let (again, gradient) = {
            // The gradient is computed under no_grad() as well.
            let _off = pellucid_tensor::no_grad();
            loss.forward_with_grad(&logits, y)
        };
        assert_eq!(again.to_bytes(), value.to_bytes());
        assert_eq!(gradient.to_bytes(), logits.grad().unwrap().to_bytes());
    }
}

/// A step by the loss's own gradient equals one by `backward`, captured or not.
#[test]
fn the_gradient_goes_on_through_the_model_and_into_a_captured_step() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let run = |captured: bool, by_gradient: bool| {
        manual_seed(2);
        let model = (Linear::new(6, 8), Relu, Linear::new(8, 3));
        let (x, y) = (Tensor::randn([10, 6], DType::F32), Tensor::randint(0, 3, [10]));
        let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
        let loss = CrossEntropyLoss::default();
        let step = |x: &Tensor, y: &Tensor| {
            optimizer.zero_grad();
            let logits = model.forward(x);
            let value = if by_gradient {
                let (value, gradient) = loss.forward_with_grad(&logits, y);
                logits.backward_with(BackwardOptions { gradient: Some(gradient), ..Default::default() });
                value
            } else {
                let value = loss.forward(&logits, y);
                value.backward();
                value
            };
            optimizer.step();
            value
        };
        if captured {
            let mut step = capture(|inputs| step(&inputs[0], &inputs[1]), &[&x, &y]).unwrap();
            (0..4).for_each(|_| _ = step.launch(&[&x, &y]).unwrap());
        } else {
            (0..4).for_each(|_| _ = step(&x, &y));
        }
        model.state_dict().into_values().map(|t| t.to_bytes()).collect::<Vec<_>>()
    };
    let expected = run(false, false);
    assert!(expected == run(false, true) && expected == run(true, true) && expected == run(true, false));
}

#[test]
fn different_shapes_and_integers_are_rejected() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (x, y) = (Tensor::ones([3, 1], DType::F32), Tensor::ones([3], DType::F32));
    let losses: [&dyn Loss; 8] = [
        &L1Loss::default(),
        &MseLoss::default(),
        &SmoothL1Loss::default(),
        &HuberLoss::default(),
        &KlDivLoss { batch_mean: true, ..Default::default() },
        &PoissonNllLoss::default(),
        &BceWithLogitsLoss::default(),
        &HingeEmbeddingLoss::default(),
    ];
    for loss in losses {
        assert!(matches!(loss.try_forward(&x, &y), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(loss.try_forward_with_grad(&x, &y), Err(Error::ShapeMismatch { .. })));
    }
    let integers = Tensor::from([1i64, 2, 3]);
    assert!(matches!(MseLoss::default().try_forward_with_grad(&integers, &integers), Err(Error::DTypeMismatch { .. })));
}

/// Errors of shapes come before errors of values, whose remedy would be wrong: batches of sequences with the classes
/// last.
#[test]
fn shapes_are_checked_before_values() {
    let (logits, labels) = (Tensor::zeros([2, 3, 9], DType::F32), Tensor::full([2, 3], 5, DType::I64));
    let classes: [&dyn Loss; 3] = [&CrossEntropyLoss::default(), &NllLoss::default(), &MultiMarginLoss::default()];
    for loss in classes {
        assert!(matches!(loss.try_forward(&logits, &labels), Err(Error::ShapeMismatch { .. })));
    }
    let text = CrossEntropyLoss::default().try_forward(&logits, &labels).unwrap_err().to_string();
    assert!(text.contains("classes are on axis 1: permute"), "{text}");
    let (x, y) = (Tensor::full([2, 3], 0.5, DType::F32), Tensor::full([4], 7, DType::F32));
    let numbers: [&dyn Loss; 5] = [
        &BceLoss::default(),
        &BceWithLogitsLoss::default(),
        &MultiLabelSoftMarginLoss::default(),
        &HingeEmbeddingLoss::default(),
        &SoftMarginLoss::default(),
    ];
    for loss in numbers {
        assert!(matches!(loss.try_forward(&x, &y), Err(Error::ShapeMismatch { .. })));
    }
    assert!(matches!(CosineEmbeddingLoss::default().try_forward(&x, &x, &y), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(MarginRankingLoss::default().try_forward(&x, &x, &y), Err(Error::ShapeMismatch { .. })));
    // A vector of scores has one class.
    let scores = Tensor::zeros([3], DType::F32);
    assert!(MultiMarginLoss::default().check_targets(scores.shape(), &Tensor::from([3i64])).is_err());
    assert!(CrossEntropyLoss::default().check_targets(scores.shape(), &Tensor::from(3i64)).is_err());
    assert!(
        CrossEntropyLoss::default().check_targets(&[4, 3, 2].into(), &Tensor::full([4, 2], 3, DType::I64)).is_err()
    );
}

/// A target outside the allowed values is rejected with an error that contains it; in a captured step, which reads no
/// values, it makes the loss and its gradient NaN.
#[test]
fn targets_outside_of_their_values_are_rejected() {
    let x = Tensor::from([[0.2f32, 0.7], [0.9, 0.4]]);
    let shares: [&dyn Loss; 3] =
        [&BceLoss::default(), &BceWithLogitsLoss::default(), &MultiLabelSoftMarginLoss::default()];
    let signs: [&dyn Loss; 2] = [&HingeEmbeddingLoss::default(), &SoftMarginLoss::default()];
    let y = |value: f32| Tensor::from([[1.0f32, 1.0], [1.0, value]]);
    let check = |loss: &dyn Loss, accepted: &[f32], rejected: &[f32]| {
        for &value in accepted {
            loss.try_forward(&x, &y(value)).unwrap();
        }
        for &value in rejected {
            let error = loss.try_forward(&x, &y(value)).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(&value.to_string()));
            assert!(loss.check_targets(x.shape(), &y(value)).is_err());
            assert!(loss.check_targets(x.shape(), &y(value).to_dtype(DType::F64)).is_err());
        }
    };
    shares.iter().for_each(|&loss| check(loss, &[0.0, 0.5, f32::NAN], &[-1.0, 1.5, f32::INFINITY]));
    signs.iter().for_each(|&loss| check(loss, &[-1.0, f32::NAN], &[0.0, 2.0, -0.5]));
    let rows = |value: i64| (Tensor::from([1i64, value]), Tensor::from([[1.0f32], [value as f32]]));
    for value in [-1, 0] {
        let (labels, column) = rows(value);
        assert_eq!(CosineEmbeddingLoss::default().try_forward(&x, &x, &labels).is_ok(), value == -1);
        assert_eq!(MarginRankingLoss::default().try_forward(&x, &x, &column).is_ok(), value == -1);
    }
    let captured = |targets: &Tensor, wrong: &Tensor, loss: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
        let step = |inputs: &[Tensor]| {
            let x = inputs[0].detach().requires_grad_(true);
            let loss = loss(&x, &inputs[1])?;
            let gradient = grad_one(&loss.sum(..), &x, Default::default())?;
            Ok::<_, Error>((loss, gradient))
        };
        let mut recorded = capture_local(step, &[&x, targets]).unwrap();
        for (targets, is_valid) in [(targets, true), (wrong, false), (targets, true)] {
            let outputs = recorded.launch(&[&x, targets]).unwrap();
            let (loss, gradient) = (outputs.to_vec::<f32>(0), outputs.to_vec::<f32>(1));
            assert_eq!(loss.iter().all(|v| v.is_finite()), is_valid, "{loss:?}");
            assert_eq!(gradient.iter().all(|v| v.is_finite()), is_valid, "{gradient:?}");
            assert!(is_valid || gradient[3].is_nan(), "{gradient:?}");
        }
    };
    shares.iter().for_each(|loss| captured(&y(0.5), &y(1.5), &|x, y| loss.try_forward(x, y)));
    signs.iter().for_each(|loss| captured(&y(-1.0), &y(3.0), &|x, y| loss.try_forward(x, y)));
    let with_integers = HingeEmbeddingLoss::default();
    let labels = |value: i64| Tensor::from([[1i64, 1], [1, value]]);
    captured(&labels(-1), &labels(0), &|x, y| with_integers.try_forward(x, y));
    let other = Tensor::from([[0.1f32, 0.3], [0.5, 0.8]]);
    let ranking = MarginRankingLoss { margin: 2.0, ..Default::default() };
    captured(&rows(-1).1, &rows(0).1, &|x, y| ranking.try_forward(x, &other, y));
    let cosine = CosineEmbeddingLoss::default();
    captured(&rows(-1).0, &rows(0).0, &|x, y| cosine.try_forward(x, &other, y));
    let numbers = |value: f32| Tensor::from([1.0f32, value]);
    captured(&numbers(-1.0), &numbers(0.5), &|x, y| cosine.try_forward(x, &other, y));
    // A loss that rejects integers also does so in a captured step.
    let rejected = |inputs: &[Tensor]| SoftMarginLoss::default().try_forward(&inputs[0], &inputs[1]);
    assert!(matches!(capture(rejected, &[&x, &labels(-1)]).map(drop), Err(Error::DTypeMismatch { .. })));
}

#[test]
fn sums_and_means_are_distinguished_at_any_magnitude() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    for scale in [1e-6, 1.0, 1e6] {
        for batch in [1, 2, 64] {
            let model = Linear::new(4, 3);
            let (x, y) = (Tensor::randn([batch, 4], DType::F32), Tensor::randn([batch, 3], DType::F32));
            let scaled = |reduction| loss::from_fn(move |x, y| Ok(MseLoss { reduction }.try_forward(x, y)? * scale));
            let found = |reduction| infer_grad_scale(&scaled(reduction), &model, &x, &y).unwrap();
            assert_eq!(found(Reduction::Mean), (1.0, GradKind::Mean), "loss scale {scale}, batch size {batch}");
            assert_eq!(
                found(Reduction::Sum),
                (1.0 / batch as f64, GradKind::Sum),
                "loss scale {scale}, batch size {batch}"
            );
            assert_eq!(
                found(Reduction::None),
                (1.0 / batch as f64, GradKind::Sum),
                "loss scale {scale}, batch size {batch}"
            );
        }
    }
    let model = Linear::new(4, 3);
    let (x, y) = (Tensor::randn([5, 4], DType::F32), Tensor::from([0i64, 1, 1, 2, 0]));
    let weighted = CrossEntropyLoss { weight: Some(Tensor::from([0.1f32, 2.0, 5.0])), ..Default::default() };
    let ignoring = CrossEntropyLoss { ignore_index: Some(1), ..weighted };
    assert_eq!(infer_grad_scale(&ignoring, &model, &x, &y).unwrap().1, GradKind::Mean);
}

#[test]
fn infer_grad_scale_changes_nothing_and_reports_undetermined_scales() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(4);
    let model = sequential![
        Embedding::new(10, 6),
        Flatten::new(),
        BatchNorm1d::new(12),
        Dropout::new(0.5),
        Linear::new(12, 3),
    ];
    let (x, y) = (Tensor::randint(0, 10, [8, 2]), Tensor::randint(0, 3, [8]));
    // During a step there are gradients, and a graph that has saved parameters.
    loss::cross_entropy(&model.forward(&x), &y).backward();
    let pending = loss::cross_entropy(&model.forward(&x), &y);
    let everything = || -> Vec<Vec<u8>> {
        let gradients = model.parameters().into_iter().map(|p| p.grad().unwrap());
        let state = model.state_dict().into_values().chain(gradients);
        state.chain([pellucid_tensor::Generator::default().state().clone()]).map(|t| t.to_bytes()).collect()
    };
    let before = everything();
    let sum = CrossEntropyLoss { reduction: Reduction::Sum, ..Default::default() };
    assert_eq!(infer_grad_scale(&sum, &model, &x, &y).unwrap(), (0.125, GradKind::Sum));
    assert!(everything() == before);
    pending.backward();

    let linear = Linear::new(2, 2);
    let (x, y) = (Tensor::randn([3, 2], DType::F32), Tensor::zeros([3, 2], DType::F32));
    let strange = loss::from_fn(|x, y| Ok((x - y).square().sum(..) * x.shape()[0] as f64));
    let error = infer_grad_scale(&strange, &linear, &x, &y).unwrap_err();
    assert!(error.to_string().contains("neither a sum nor a mean"), "{error}");
    init::zeros_(&linear.weight);
    init::zeros_(linear.bias.as_ref().unwrap());
    let error = infer_grad_scale(&MseLoss::default(), &linear, &x, &y).unwrap_err();
    assert!(error.to_string().contains("so its scale is undetermined"), "{error}");
    assert!(matches!(
        infer_grad_scale(&MseLoss::default(), &linear, &Tensor::from(1.0f32), &y),
        Err(Error::ShapeMismatch { .. })
    ));
}
