//! Forms of outputs and targets: dtypes, shapes, thresholds, tables, means and names.

use pellucid::nn::loss::{CrossEntropyLoss, Loss, MseLoss, Reduction};
use pellucid::train::metrics::*;
use pellucid::{DType, Tensor, is_grad_enabled, ops};

fn value(mut metric: impl Metric, output: &Tensor, target: &Tensor) -> f64 {
    metric.update(output, target).unwrap();
    metric.compute().unwrap()
}

fn logits() -> Tensor {
    Tensor::from([[2.0, 1.0, 0.5], [0.0, 3.0, 1.0], [0.25, 0.5, 0.125], [1.0, -1.0, 4.0]])
}

#[test]
fn every_dtype_of_outputs_and_labels_is_read() {
    let labels = Tensor::from([0i64, 1, 2, 2]);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for label in [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
            let (output, target) = (logits().to_dtype(dtype), labels.to_dtype(label));
            assert_eq!(value(Accuracy::new(), &output, &target), 0.75);
            assert_eq!(value(TopKAccuracy::new(3), &output, &target), 1.0);
            let expected = value(LogLoss::new(), &output.to_dtype(DType::F64), &target);
            assert!((value(LogLoss::new(), &output, &target) - expected).abs() < 1e-6);
            assert_eq!(value(RocAuc::new(), &output, &target), value(RocAuc::new(), &logits(), &labels));
        }
        let (scores, target) = (Tensor::from([1.0, -1.0, 2.0]).to_dtype(dtype), Tensor::from([1.0, 2.0, 2.0]));
        assert_eq!(value(MeanSquaredError::new(), &scores, &target), 3.0);
    }
}

#[test]
fn binary_labels_are_integers_booleans_or_floats() {
    let scores = Tensor::from([[0.5f32], [-0.5], [1.5]]);
    let labels = [Tensor::from([true, false, false]), Tensor::from([1i64, 0, 0]), Tensor::from([1f32, 0.0, 0.0])];
    for labels in labels {
        for labels in [labels.clone(), labels.reshape([3, 1])] {
            for scores in [scores.clone(), scores.reshape([3])] {
                assert_eq!(value(Accuracy::new(), &scores, &labels), 2.0 / 3.0);
                assert_eq!(value(RocAuc::new(), &scores, &labels), 0.5);
                assert_eq!(value(F1Score::new(ClassAverage::Binary), &scores, &labels), 2.0 / 3.0);
            }
        }
    }
    // A mask of 2 by 2 pixels.
    let (scores, mask) = (Tensor::from([[[[1.0, -1.0], [2.0, -2.0]]]]), Tensor::from([[[[1.0, 1.0], [1.0, 0.0]]]]));
    assert_eq!(value(IntersectionOverUnion::new(ClassAverage::Binary), &scores, &mask), 2.0 / 3.0);
    assert_eq!(value(IntersectionOverUnion::new(ClassAverage::Binary), &scores, &mask.squeeze(1)), 2.0 / 3.0);
}

#[test]
fn a_threshold_is_rounded_to_the_dtype_of_the_scores() {
    let with = |threshold| Accuracy::new().threshold(threshold);
    // 0.1 in f32 is greater than 0.1 in f64, but not greater than the rounded threshold.
    assert_eq!(value(with(0.1), &Tensor::from([0.1f32, 0.2]), &Tensor::from([0i64, 1])), 1.0);
    assert_eq!(value(with(0.5), &Tensor::from([0.4, 0.5, 0.6]), &Tensor::from([0i64, 0, 1])), 1.0);
}

#[test]
fn views_and_tracked_outputs_are_read() {
    let output = logits().t().copy().t().requires_grad_(true);
    assert_eq!(value(Accuracy::new(), &output, &Tensor::from([0i64, 1, 2, 2])), 0.75);
    assert!(is_grad_enabled() && output.grad().is_none());
}

#[test]
fn ratios_of_classes_and_their_names() {
    let (output, target) = (Tensor::from([0i64, 0, 1, 4]), Tensor::from([0i64, 1, 1, 2]));
    let mut precision = Precision::new(ClassAverage::Macro);
    precision.update(&output, &target).unwrap();
    let per_class = precision.per_class();
    assert_eq!(per_class[..3], [0.5, 1.0, 0.0]);
    assert!(per_class[3].is_nan() && per_class[4] == 0.0 && per_class.len() == 5);
    let averages = [ClassAverage::Binary, ClassAverage::Micro, ClassAverage::Macro, ClassAverage::Weighted];
    let names = averages.map(|average| F1Score::new(average).name());
    assert_eq!(names, ["f1", "f1_micro", "f1_macro", "f1_weighted"]);
    assert_eq!(TopKAccuracy::new(5).name(), "top_5_accuracy");
    assert_eq!((Accuracy::new().goal(), R2Score::new().goal()), (Goal::Maximize, Goal::Maximize));
    assert_eq!((LogLoss::new().goal(), MeanAbsoluteError::new().goal()), (Goal::Minimize, Goal::Minimize));
}

#[test]
fn a_confusion_matrix_counts_labels_in_rows() {
    let mut matrix = ConfusionMatrix::new(3).ignore_index(-1);
    matrix.update(&logits(), &Tensor::from([0i64, 1, 2, -1])).unwrap();
    matrix.update(&Tensor::from([2i64, 2]), &Tensor::from([2i64, 2])).unwrap();
    assert_eq!(matrix.counts(), [[1, 0, 0], [0, 1, 0], [0, 1, 2]]);
    assert_eq!(matrix.to_tensor().to_vec2::<i64>(), [[1, 0, 0], [0, 1, 0], [0, 1, 2]]);
    let table = "\
label \\ predicted  0  1  2
0                  1  0  0
1                  0  1  0
2                  0  1  2
";
    assert_eq!(matrix.to_string(), table);
    let named = matrix.clone().class_names(["cat", "dog", "élan"]).to_string();
    assert!(named.ends_with("élan                 0    1     2\n"), "{named}");
    matrix.reset();
    assert_eq!(matrix.counts(), [[0; 3]; 3]);
}

#[test]
fn means_of_losses_are_weighted_by_samples() {
    let labels = Tensor::from([0i64, 1, 2, 2]);
    let mean = value(MeanLoss::new(CrossEntropyLoss::default()), &logits(), &labels);
    assert!((mean - value(LogLoss::new(), &logits(), &labels)).abs() < 1e-12);
    let mut in_batches = MeanLoss::new(CrossEntropyLoss { reduction: Reduction::None, ..Default::default() });
    for (start, size) in [(0, 0), (0, 3), (3, 1)] {
        in_batches.update(&logits().narrow(0, start, size), &labels.narrow(0, start, size)).unwrap();
    }
    assert!((in_batches.compute().unwrap() - mean).abs() < 1e-12);
    in_batches.reset();
    assert!(in_batches.compute().unwrap().is_nan());
    assert_eq!(value(MeanLoss::new(MseLoss::default()), &Tensor::from([1.0, 3.0]), &Tensor::from([0.0, 0.0])), 5.0);
    let mut mean = Mean::new();
    assert!(mean.value().is_nan());
    mean.push(f64::NAN, 0.0);
    mean.push(2.0, 3.0);
    mean.push(4.0, 1.0);
    assert_eq!(mean.value(), 2.5);
}

/// Ignored samples, even those with a NaN score, do not change the value of any metric of labels.
#[test]
fn ignored_samples_have_no_effect() {
    let (scores, labels) = (Tensor::from([0.1, f64::NAN, 0.4, 0.35, 0.8]), Tensor::from([0i64, 7, 0, 1, 1]));
    let kept = [0, 2, 3, 4].map(|index| (scores.narrow(0, index, 1), labels.narrow(0, index, 1)));
    let class_scores = ops::concatenate(&[&logits(), &Tensor::from([[f64::NAN, 0.0, 1.0]])], 0).unwrap();
    let (class_labels, ignored) = (Tensor::from([0i64, 1, 2, 0]), Tensor::from([0i64, 1, 2, 0, 7]));
    macro_rules! check {
        ($($metric:expr),*) => {$(
            let mut metric = $metric;
            kept.iter().for_each(|(score, label)| metric.update(score, label).unwrap());
            assert_eq!(metric.compute().unwrap(), value($metric.ignore_index(7), &scores, &labels));
        )*};
    }
    check!(RocAuc::new(), AveragePrecision::new(), Accuracy::new(), LogLoss::new());
    assert_eq!(
        value(RocAuc::new().ignore_index(7), &class_scores, &ignored),
        value(RocAuc::new(), &logits(), &class_labels)
    );
}

#[test]
fn nan_scores_make_the_value_nan() {
    let scores = Tensor::from([0.5, f64::NAN]);
    let labels = Tensor::from([1i64, 1]);
    assert!(value(Accuracy::new(), &scores, &labels).is_nan());
    assert!(value(F1Score::new(ClassAverage::Binary), &scores, &labels).is_nan());
    let class_scores = Tensor::from([[0.0, f64::NAN, 1.0], [0.0, 1.0, 0.0]]);
    let class_labels = Tensor::from([0i64, 1]);
    assert!(value(TopKAccuracy::new(2), &class_scores, &class_labels).is_nan());
    assert!(value(Accuracy::new(), &class_scores, &class_labels).is_nan());
    for average in [ClassAverage::Micro, ClassAverage::Macro, ClassAverage::Weighted] {
        assert!(value(Recall::new(average), &class_scores, &class_labels).is_nan(), "{average:?}");
    }
    assert!(ConfusionMatrix::new(3).update(&class_scores, &class_labels).is_err());
    // A NaN score of an ignored sample has no effect.
    assert_eq!(value(Accuracy::new().ignore_index(0), &class_scores, &class_labels), 1.0);
    let labels = Tensor::from([1i64, 0]);
    let metrics: [Box<dyn Metric>; 5] = [
        Box::new(RocAuc::new()),
        Box::new(AveragePrecision::new()),
        Box::new(LogLoss::new()),
        Box::new(MeanSquaredError::new()),
        Box::new(R2Score::new()),
    ];
    for metric in metrics {
        let name = metric.name();
        assert!(value(metric, &scores, &labels).is_nan(), "{name}");
    }
}

/// Means of losses over ignored and weighted labels equal the loss of all samples, for every split into batches.
#[test]
fn mean_losses_do_not_depend_on_the_split() {
    let weight = Some(Tensor::from([1.0, 4.0, 0.25]));
    let (x, labels) = (logits(), Tensor::from([0i64, 1, 2, -1]));
    for (weight, ignore_index, reduction) in [
        (None, Some(-1), Reduction::Mean),
        (weight.clone(), Some(-1), Reduction::Mean),
        (weight.clone(), Some(1), Reduction::None),
        (weight, None, Reduction::Mean),
        (None, None, Reduction::Sum),
    ] {
        let labels = if ignore_index == Some(-1) { labels.clone() } else { labels.abs() };
        let loss = CrossEntropyLoss { weight, ignore_index, reduction, ..Default::default() };
        let mean = CrossEntropyLoss { reduction: Reduction::Mean, ..loss.clone() };
        let expected = mean.forward(&x, &labels).item::<f64>();
        for split in [&[(0, 4)][..], &[(0, 1), (1, 3)], &[(3, 1), (0, 2), (2, 1)]] {
            let mut metric = MeanLoss::new(&loss);
            for &(start, size) in split {
                metric.update(&x.narrow(0, start, size), &labels.narrow(0, start, size)).unwrap();
            }
            let actual = metric.compute().unwrap();
            assert!((actual - expected).abs() < 1e-12, "{loss:?}: {actual}, not {expected}");
        }
    }
}

#[test]
fn independent_labels_have_metrics() {
    let scores = Tensor::from([[1.0, -1.0, 2.0], [-0.5, 0.5, -1.0], [3.0, 1.0, -2.0]]);
    let labels = Tensor::from([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]);
    assert_eq!(value(MultiLabelAccuracy::new(), &scores, &labels), 7.0 / 9.0);
    assert_eq!(value(MultiLabelAccuracy::new().exact(true), &scores, &labels), 1.0 / 3.0);
    // TP, FP, FN: (2, 0, 0), (1, 1, 0), (0, 1, 0).
    let mut f1 = MultiLabelF1Score::new(LabelAverage::Macro);
    for row in 0..3 {
        f1.update(&scores.narrow(0, row, 1), &labels.narrow(0, row, 1)).unwrap();
    }
    assert_eq!(f1.per_label(), [1.0, 2.0 / 3.0, 0.0]);
    assert!((f1.compute().unwrap() - 5.0 / 9.0).abs() < 1e-15);
    assert_eq!(value(MultiLabelF1Score::new(LabelAverage::Micro), &scores, &labels), 0.75);
    let integers = labels.to_dtype(DType::I64);
    assert_eq!(value(MultiLabelF1Score::new(LabelAverage::Micro), &scores, &integers), 0.75);
    let metrics: [Box<dyn Metric>; 2] =
        [Box::new(MultiLabelAccuracy::new().exact(true)), Box::new(MultiLabelF1Score::new(LabelAverage::Macro))];
    for mut metric in metrics {
        metric.update(&scores, &integers).unwrap();
        let (state, value) = (metric.state().unwrap(), metric.compute().unwrap());
        metric.reset();
        metric.load_state(&state).unwrap();
        assert_eq!(metric.compute().unwrap().to_bits(), value.to_bits(), "{}", metric.name());
    }
    let (scores, labels) = (Tensor::from([[1.0, f64::NAN]]), Tensor::from([[1i64, -1]]));
    assert_eq!(value(MultiLabelAccuracy::new().ignore_index(-1), &scores, &labels), 1.0);
    let labels = Tensor::from([[1i64, 1]]);
    assert!(value(MultiLabelAccuracy::new(), &scores, &labels).is_nan());
    assert!(value(MultiLabelF1Score::new(LabelAverage::Macro), &scores, &labels).is_nan());
    assert!(MultiLabelAccuracy::new().update(&scores, &Tensor::from([1i64])).is_err());
    assert!(MultiLabelAccuracy::new().update(&scores, &Tensor::from([[1i64, 2]])).is_err());
    f1.reset();
    assert!(f1.compute().unwrap().is_nan());
}

#[test]
fn infinite_values_are_defined() {
    let scores = Tensor::from([f64::INFINITY, f64::NEG_INFINITY, 0.0]);
    let labels = Tensor::from([1i64, 0, 1]);
    assert_eq!(value(RocAuc::new(), &scores, &labels), 1.0);
    assert!((value(LogLoss::new(), &scores, &labels) - 2f64.ln() / 3.0).abs() < 1e-15);
    assert_eq!(value(LogLoss::new(), &scores, &Tensor::from([0i64, 0, 1])), f64::INFINITY);
    assert_eq!(value(MeanSquaredError::new(), &scores, &labels), f64::INFINITY);
}
