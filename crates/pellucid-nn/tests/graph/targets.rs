//! Targets: their shapes, dtypes and values.

use crate::models::*;
use pellucid_nn::graph::{GraphTrainer, StepOptions};
use pellucid_nn::loss::*;
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Generator, Tensor, autocast, ops};

#[test]
fn losses_accept_the_targets_that_they_expect() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let adaptive = AdaptiveLogSoftmaxWithLoss::new(3, 6, &[2, 4], 1.0);
    let projected = LinearCrossEntropyLoss::new(3, 5, &[4, 2]);
    let losses: [(&dyn Loss, &[usize], DType); 15] = [
        (&CrossEntropyLoss::default(), &[8], DType::I64),
        (&NllLoss::default(), &[8], DType::I64),
        (&MultiMarginLoss::default(), &[8], DType::I64),
        (&MultiLabelMarginLoss::default(), &[8, 3], DType::I64),
        (&adaptive, &[8], DType::I64),
        (&projected, &[8, 4, 2], DType::I64),
        (&BceLoss::default(), &[8, 3], DType::F32),
        (&BceWithLogitsLoss::default(), &[8, 3], DType::F32),
        (&MultiLabelSoftMarginLoss::default(), &[8, 3], DType::F32),
        (&L1Loss::default(), &[8, 3], DType::F32),
        (&MseLoss::default(), &[8, 3], DType::F32),
        (&SmoothL1Loss::default(), &[8, 3], DType::F32),
        (&HuberLoss::default(), &[8, 3], DType::F32),
        (&KlDivLoss::default(), &[8, 3], DType::F32),
        (&PoissonNllLoss::default(), &[8, 3], DType::F32),
    ];
    let logits = Tensor::rand([8, 3], DType::F32);
    for (loss, shape, dtype) in losses {
        let expected = loss.expected_targets(logits.shape(), logits.dtype()).unwrap();
        assert_eq!(expected, Some((shape.into(), dtype)));
        assert_eq!(loss.forward(&logits, &ops::zeros(shape, dtype).unwrap()).rank(), 0);
    }
    // A margin loss accepts integers too, so the targets decide.
    let hinge = HingeEmbeddingLoss::default().expected_targets(logits.shape(), logits.dtype()).unwrap();
    assert_eq!(hinge, None);
}

/// The targets enter the loss as they are, in captured steps as in eager ones.
#[test]
fn captured_steps_equal_eager_ones_for_targets_of_every_dtype() {
    let losses: [(&str, &dyn Loss); 8] = [
        ("l1", &L1Loss::default()),
        ("mse", &MseLoss::default()),
        ("smooth_l1", &SmoothL1Loss::default()),
        ("huber", &HuberLoss::default()),
        ("bce_with_logits", &BceWithLogitsLoss::default()),
        ("multilabel_soft_margin", &MultiLabelSoftMarginLoss::default()),
        ("kl_div", &KlDivLoss::default()),
        ("poisson_nll", &PoissonNllLoss::default()),
    ];
    let dtypes = [DType::F64, DType::F32, DType::BF16, DType::F16];
    let precisions = [None, Some(DType::BF16), Some(DType::F16)];
    for ((name, loss), dtype, half) in losses
        .into_iter()
        .flat_map(|loss| dtypes.map(|dtype| (loss, dtype)))
        .flat_map(|(loss, dtype)| precisions.map(|half| (loss, dtype, half)))
    {
        let _random = Generator::new(1).scope();
        let (x, y) =
            (Tensor::randn([BATCH, 6], DType::F32), Tensor::rand([BATCH, CLASSES], DType::F64).to_dtype(dtype));
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let _half = half.map(autocast);
        let (captured, eager) = (sgd(&model, 0.1, 0.9), sgd(&other, 0.1, 0.9));
        let mut trainer = GraphTrainer::new(&model, loss, &captured);
        for step in 0..2 {
            trainer.step(&x, &y).unwrap();
            eager.zero_grad();
            let value = loss.forward(&other.forward(&x), &y);
            value.backward();
            eager.step();
            let place = format!("{name} with targets of {dtype} under {half:?}, step {step}");
            assert_eq!(trainer.loss_tensor().unwrap().to_bytes(), value.to_bytes(), "{place}: the losses differ");
            assert!(bits(model.state_dict()) == bits(other.state_dict()), "{place}: the parameters differ");
        }
    }
}

/// A mean over the batch is a mean over samples, whatever the reduction is that it replaces.
#[test]
fn the_batch_mean_of_a_divergence_counts_samples() {
    let y = Tensor::full([8, 3], 1.0 / 3.0, DType::F32);
    for (batch_mean, reduction) in [(true, Reduction::Sum), (true, Reduction::Mean), (false, Reduction::Mean)] {
        let loss = KlDivLoss { batch_mean, reduction, ..Default::default() };
        assert!(matches!(loss.batch_weight(&y), Ok(BatchWeight::Samples)), "{batch_mean} {reduction:?}");
    }
    let sum = KlDivLoss { reduction: Reduction::Sum, ..Default::default() };
    assert!(matches!(sum.batch_weight(&y), Ok(BatchWeight::SumOfSamples)));
}

/// A class that does not exist is an error before the launch, for losses with parameters too.
#[test]
fn losses_with_parameters_check_classes() {
    let _random = Generator::new(0).scope();
    let model = Linear::new(6, 3);
    let adaptive = AdaptiveLogSoftmaxWithLoss::new(3, 6, &[2, 4], 1.0);
    let projected = LinearCrossEntropyLoss::new(3, 5, &[4, 2]);
    let losses: [(&dyn Loss, &[usize], i64); 2] = [(&adaptive, &[BATCH], 6), (&projected, &[BATCH, 4, 2], 5)];
    let own = [adaptive.parameters(), projected.parameters()];
    for ((loss, shape, classes), own) in losses.into_iter().zip(own) {
        let parameters: Vec<Parameter> = model.parameters().into_iter().chain(own).collect();
        let bytes = || parameters.iter().map(|p| p.to_bytes()).collect::<Vec<_>>();
        let sgd = Sgd::new(parameters.clone(), SgdOptions { lr: 0.1, ..Default::default() });
        let mut trainer = GraphTrainer::new(&model, loss, sgd).with_options(StepOptions::default());
        let x = Tensor::randn([BATCH, 6], DType::F32);
        trainer.step(&x, &ops::zeros(shape, DType::I64).unwrap()).unwrap();
        let before = bytes();
        for class in [classes, -1] {
            let rejected = trainer.step(&x, &ops::full(shape, class, DType::I64).unwrap()).unwrap_err();
            assert!(matches!(rejected.root(), Error::IndexOutOfBounds { .. }), "{rejected}");
            assert_eq!(bytes(), before, "a rejected batch must change nothing");
        }
        trainer.step(&x, &ops::full(shape, classes - 1, DType::I64).unwrap()).unwrap();
        assert_ne!(bytes(), before);
    }
}

#[test]
fn cross_entropy_accepts_class_indices_and_probabilities_in_one_run() {
    let (model, (x, classes)) = (mlp(), batch(&[BATCH, 6], 1));
    let optimizer = sgd(&model, 0.1, 0.0);
    let loss = CrossEntropyLoss::default();
    let probabilities = |rows| Tensor::full([rows, CLASSES], 1.0 / CLASSES as f64, DType::F32);
    let declared = loss.clone().with_targets([BATCH, CLASSES], DType::F32);
    for mut trainer in [GraphTrainer::new(&model, &loss, &optimizer), GraphTrainer::new(&model, &declared, &optimizer)]
    {
        for (rows, y) in [(BATCH, probabilities(BATCH)), (BATCH - 1, probabilities(BATCH - 1))] {
            let x = x.narrow(0, 0, rows);
            let expected = loss.forward(&model.forward(&x), &y).item::<f64>();
            trainer.step(&x, &y).unwrap();
            assert_eq!(trainer.loss().unwrap(), expected);
        }
    }
    let mut trainer = GraphTrainer::new(&model, &loss, &optimizer);
    trainer.step(&x, &probabilities(BATCH)).unwrap();
    trainer.step(&x, &classes).unwrap();
    // The negative log likelihood has class indices only.
    let rejected =
        GraphTrainer::new(&model, NllLoss::default(), &optimizer).step(&x, &probabilities(BATCH)).unwrap_err();
    assert!(rejected.to_string().contains("expects class indices of shape"), "{rejected}");
}

#[test]
fn a_binary_target_outside_of_its_values_changes_nothing() {
    let (model, (x, _)) = (mlp(), batch(&[BATCH, 6], 1));
    let optimizer = sgd(&model, 0.1, 0.9);
    let mut trainer = GraphTrainer::new(&model, BceWithLogitsLoss::default(), &optimizer);
    let y = Tensor::full([BATCH, CLASSES], 0.5, DType::F32);
    trainer.step(&x, &y).unwrap();
    let flat = || model.parameters().iter().flat_map(|p| p.to_vec::<f32>()).collect::<Vec<f32>>();
    let before = flat();
    let rejected = trainer.step(&x, &(&y * 3.0)).unwrap_err().to_string();
    assert!(rejected.contains("from 0 to 1, got 1.5"), "{rejected}");
    assert_eq!(flat(), before, "a rejected batch must change nothing");
    trainer.step(&x, &y).unwrap();
    assert_ne!(flat(), before);
}
