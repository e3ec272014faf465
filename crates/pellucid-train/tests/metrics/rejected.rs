//! Rejected calls: typed errors that name the metric and leave it unchanged.

use pellucid::train::metrics::*;
use pellucid::{DType, Error, Tensor};

/// Updates a metric with valid samples, and asserts that an invalid batch is rejected without a change.
fn assert_rejected(mut metric: impl Metric, valid: (&Tensor, &Tensor), output: &Tensor, target: &Tensor) -> Error {
    metric.update(valid.0, valid.1).unwrap();
    let before = metric.compute().unwrap();
    let error = metric.update(output, target).unwrap_err();
    let after = metric.compute().unwrap();
    assert_eq!(before.to_bits(), after.to_bits(), "{error}");
    error
}

fn scores() -> Tensor {
    Tensor::from([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
}

fn accuracy_error(output: &Tensor, target: &Tensor) -> String {
    assert_rejected(Accuracy::new(), (&scores(), &Tensor::from([0i64, 1])), output, target).to_string()
}

#[test]
fn numbers_that_are_not_a_state_are_rejected() {
    let labels = Tensor::from([0i64, 1]);
    let metrics: Vec<Box<dyn Metric>> = vec![
        Box::new(Accuracy::new()),
        Box::new(F1Score::new(ClassAverage::Macro)),
        Box::new(RocAuc::new()),
        Box::new(LogLoss::new()),
    ];
    for mut metric in metrics {
        metric.update(&scores(), &labels).unwrap();
        let state = metric.state().unwrap();
        let mut fraction = state.clone();
        *fraction.last_mut().unwrap() = -0.5;
        for wrong in [&state[1..], &[&state[..], &[0.0]].concat(), &[f64::NAN; 3], &[1e300], &fraction] {
            let error = metric.load_state(wrong).unwrap_err().to_string();
            assert!(error.ends_with(&format!("are not the state of the metric `{}`", metric.name())), "{error}");
            assert_eq!(metric.state().unwrap(), state);
        }
    }
}

/// The forms and the number of classes of a batch without samples are not those of later batches.
#[test]
fn a_batch_without_samples_changes_nothing() {
    let (scores, labels) = (Tensor::zeros([0, 3], DType::F32), Tensor::zeros(0, DType::I64));
    let binary = (Tensor::from([0.1, 0.4, 0.35, 0.8]), Tensor::from([0i64, 0, 1, 1]));
    let metrics: [Box<dyn Metric>; 3] = [
        Box::new(RocAuc::new()),
        Box::new(Accuracy::new().threshold(0.5)),
        Box::new(F1Score::new(ClassAverage::Binary).threshold(0.5)),
    ];
    for mut metric in metrics {
        metric.update(&scores, &labels).unwrap();
        metric.update(&binary.0, &binary.1).unwrap();
        assert!((metric.compute().unwrap() - 0.75).abs() < 0.1, "{}", metric.name());
    }
    let mut f1 = MultiLabelF1Score::new(LabelAverage::Macro);
    f1.update(&scores, &Tensor::zeros([0, 3], DType::I64)).unwrap();
    f1.update(&Tensor::from([[2.0, -1.0]]), &Tensor::from([[1i64, 0]])).unwrap();
    assert_eq!(f1.per_label(), [1.0, 0.0]);
}

#[test]
fn a_threshold_that_is_not_finite_is_rejected() {
    assert!(matches!(Accuracy::new().try_threshold(f64::NAN), Err(Error::InvalidArgument { .. })));
    assert!(MultiLabelAccuracy::new().try_threshold(f64::INFINITY).is_err());
}

#[test]
fn labels_must_be_classes() {
    let error = accuracy_error(&scores(), &Tensor::from([0i64, 3]));
    let text = "accuracy: label 1 is 3, but the classes of an output of shape [2, 3] are 0..3; ignore_index skips the \
                samples of one label";
    assert_eq!(error, text);
    assert!(accuracy_error(&scores(), &Tensor::from([-100i64, 0])).contains("label 0 is -100"));
    assert!(accuracy_error(&Tensor::from([0.1, 0.2]), &Tensor::from([0.0, 0.5])).contains("label 1 is 0.5"));
    assert!(accuracy_error(&Tensor::from([0.1, 0.2]), &Tensor::from([f64::NAN, 0.5])).contains("label 0 is NaN"));
    assert!(accuracy_error(&Tensor::from([0.1, 0.2]), &Tensor::from([0i64, 2])).contains("0..2"));
    assert!(accuracy_error(&Tensor::from([0i64, 1 << 40]), &Tensor::from([0i64, 2])).contains("class of sample 1"));
}

#[test]
fn labels_of_classes_must_be_integers() {
    let error = accuracy_error(&scores(), &Tensor::from([0.0f32, 1.0]));
    let text = "accuracy: dtype f32 is not supported: the labels must be integers; convert class indices with \
                to_dtype(DType::I64)";
    assert_eq!(error, text);
    let auc = assert_rejected(
        AveragePrecision::new(),
        (&Tensor::from([0.5, 0.1]), &Tensor::from([1i64, 0])),
        &Tensor::from([0i64, 1]),
        &Tensor::from([0i64, 1]),
    );
    assert!(matches!(auc, Error::DTypeMismatch { op: "average_precision", .. }), "{auc}");
}

#[test]
fn shapes_must_fit() {
    let error = accuracy_error(&scores(), &Tensor::from([0i64, 1, 2]));
    assert_eq!(error, "accuracy: incompatible shapes [2, 3] and [3]: the output has 2 samples, but the target has 3");
    let one_hot = accuracy_error(&scores(), &Tensor::from([[1i64, 0, 0], [0, 1, 0]]));
    assert!(one_hot.contains("argmax(1)") && one_hot.contains("MultiLabelAccuracy"), "{one_hot}");
    let last = accuracy_error(&Tensor::zeros([2, 5, 3], DType::F32), &Tensor::zeros([2, 5], DType::I64));
    assert!(last.contains("movedim(-1, 1)"), "{last}");
    for (output, target) in [(vec![2, 3], vec![2, 2]), (vec![], vec![]), (vec![2, 0], vec![2, 4]), (vec![2], vec![])] {
        let error = accuracy_error(&Tensor::zeros(output, DType::F32), &Tensor::zeros(target, DType::I64));
        assert!(error.starts_with("accuracy: incompatible shapes") && !error.contains("one-hot"), "{error}");
    }
    let numbers = (&Tensor::from([1.0, 2.0]), &Tensor::from([1.0, 2.5]));
    let error = assert_rejected(MeanSquaredError::new(), numbers, &Tensor::zeros([4, 3], DType::F32), numbers.1);
    assert!(matches!(error, Error::ShapeMismatch { op: "mean_squared_error", .. }), "{error}");
    let error = assert_rejected(
        R2Score::new(),
        numbers,
        &Tensor::zeros([4, 3], DType::F32),
        &Tensor::zeros([4, 3], DType::F32),
    );
    assert_eq!(error.to_string(), "r2: the output has shape [4, 3], but earlier batches had 1 columns");
    let tokens = (&Tensor::zeros([2, 4], DType::F32), &Tensor::from([0i64, 1]));
    let error = assert_rejected(Perplexity::new(), tokens, &Tensor::zeros([2, 3, 4], DType::F32), tokens.1);
    assert!(matches!(error, Error::ShapeMismatch { op: "perplexity", .. }), "{error}");
    let error = assert_rejected(TopKAccuracy::new(1), tokens, &Tensor::zeros([2, 1], DType::F32), tokens.1);
    assert!(matches!(error, Error::ShapeMismatch { op: "top_k_accuracy", .. }), "{error}");
}

#[test]
fn a_binary_average_needs_two_classes() {
    let valid = (&Tensor::from([0.5, 0.1]), &Tensor::from([1i64, 0]));
    let error =
        assert_rejected(F1Score::new(ClassAverage::Binary), valid, &scores(), &Tensor::from([0i64, 1])).to_string();
    assert!(
        error.starts_with("f1: ClassAverage::Binary requires 2 classes, but an output of shape [2, 3] has 3"),
        "{error}"
    );
    let (classes, labels) = (Tensor::from([0i64, 1]), Tensor::from([0i64, 2]));
    assert_rejected(Recall::new(ClassAverage::Binary), valid, &classes, &labels);
    let two = Tensor::from([[1.0, 0.0], [0.0, 1.0]]);
    F1Score::new(ClassAverage::Binary).update(&two, &Tensor::from([0i64, 1])).unwrap();
}

#[test]
fn probabilities_must_be_valid() {
    let labels = Tensor::from([0i64, 1]);
    let valid = Tensor::from([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]);
    let metric = LogLoss::new().scores(ScoreKind::Probabilities);
    let error = assert_rejected(metric, (&valid, &labels), &scores(), &labels).to_string();
    let text = "log_loss: sample 0 has the probability 2, which is not in [0, 1]; pass probabilities, or set \
                ScoreKind::Logits";
    assert_eq!(error, text);
    let sums = Tensor::from([[0.5, 0.25, 0.25], [0.0, 0.5, 1.0]]);
    let metric = RocAuc::new().scores(ScoreKind::Probabilities);
    let error = assert_rejected(metric, (&valid, &labels), &sums, &labels).to_string();
    assert!(error.starts_with("roc_auc: the probabilities of sample 1 sum to 1.5"), "{error}");
    let error = assert_rejected(RocAuc::new(), (&valid, &labels), &Tensor::from([0.5, 0.1]), &labels).to_string();
    assert_eq!(error, "roc_auc: the output has shape [2], but earlier batches had 3 scores per sample");
}

#[test]
fn arguments_of_constructors_are_checked() {
    assert_eq!(TopKAccuracy::try_new(0).unwrap_err().to_string(), "top_k_accuracy: k must be at least 1, got 0");
    assert!(ConfusionMatrix::try_new(0).is_err() && ConfusionMatrix::try_new(usize::MAX).is_err());
    let error = ConfusionMatrix::new(3).try_class_names(["a", "b"]).unwrap_err().to_string();
    assert_eq!(error, "confusion_matrix: got 2 names for 3 classes; pass one name for each class");
    let mut matrix = ConfusionMatrix::new(2);
    let error = matrix.update(&scores(), &Tensor::from([0i64, 1])).unwrap_err().to_string();
    assert!(error.contains("the matrix has 2 classes"), "{error}");
    assert_eq!(matrix.counts(), [[0, 0], [0, 0]]);
}

#[test]
fn a_rejected_loss_leaves_the_mean() {
    let mut loss = MeanLoss::new(pellucid::nn::loss::MseLoss::default());
    loss.update(&Tensor::from([1.0]), &Tensor::from([0.0])).unwrap();
    loss.update(&Tensor::from([1.0, 2.0]), &Tensor::from([0.0, 1.0, 2.0])).unwrap_err();
    assert_eq!(loss.compute().unwrap(), 1.0);
}
