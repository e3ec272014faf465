//! Comparison with scikit-learn (`make_references.py`), for one batch and for other splits, which must be
//! bit-identical.

use pellucid::train::metrics::*;
use pellucid::{DType, Tensor};
use serde_json::Value;

/// Reads a number; NaN is null.
fn parse_number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn tensor(entry: &Value) -> Tensor {
    let list = |name: &str| entry[name].as_array().unwrap();
    let shape: Vec<usize> = list("shape").iter().map(|length| length.as_u64().unwrap() as usize).collect();
    let values = Tensor::new(list("values").iter().map(parse_number).collect::<Vec<f64>>(), shape);
    if entry["float"].as_bool().unwrap() { values } else { values.to_dtype(DType::I64) }
}

/// Returns the metric for a name in the reference file. Label 255 is ignored.
fn metric(name: &str) -> Box<dyn Metric> {
    let (family, average) = name.rsplit_once('_').unwrap_or((name, ""));
    let average = match average {
        "binary" => Some(ClassAverage::Binary),
        "micro" => Some(ClassAverage::Micro),
        "macro" => Some(ClassAverage::Macro),
        "weighted" => Some(ClassAverage::Weighted),
        _ => None,
    };
    match (family, average) {
        ("precision", Some(average)) => Box::new(Precision::new(average).ignore_index(255)),
        ("recall", Some(average)) => Box::new(Recall::new(average).ignore_index(255)),
        ("f1", Some(average)) => Box::new(F1Score::new(average).ignore_index(255)),
        ("iou", Some(average)) => Box::new(IntersectionOverUnion::new(average).ignore_index(255)),
        _ => match name {
            "accuracy" => Box::new(Accuracy::new().ignore_index(255)),
            "roc_auc" => Box::new(RocAuc::new()),
            "roc_auc_of_probabilities" => Box::new(RocAuc::new().scores(ScoreKind::Probabilities)),
            "average_precision" => Box::new(AveragePrecision::new()),
            "log_loss" => Box::new(LogLoss::new().ignore_index(255)),
            "log_loss_of_probabilities" => Box::new(LogLoss::new().scores(ScoreKind::Probabilities).ignore_index(255)),
            "perplexity" => Box::new(Perplexity::new().ignore_index(255)),
            "mean_squared_error" => Box::new(MeanSquaredError::new()),
            "root_mean_squared_error" => Box::new(RootMeanSquaredError::new()),
            "mean_absolute_error" => Box::new(MeanAbsoluteError::new()),
            "r2" => Box::new(R2Score::new()),
            other => {
                let k = other.strip_prefix("top_").and_then(|rest| rest.strip_suffix("_accuracy"));
                Box::new(TopKAccuracy::new(k.unwrap().parse().unwrap()).ignore_index(255))
            }
        },
    }
}

/// Adds an empty batch, then all samples in batches of these sizes, which repeat cyclically. The state is saved and
/// loaded after each batch.
fn value_in_batches(metric: &mut dyn Metric, output: &Tensor, target: &Tensor, sizes: &[usize]) -> f64 {
    metric.reset();
    metric.update(&output.narrow(0, 0, 0), &target.narrow(0, 0, 0)).unwrap();
    let (mut start, samples) = (0, output.shape()[0]);
    for &size in sizes.iter().cycle() {
        let size = size.min(samples - start);
        metric.update(&output.narrow(0, start, size), &target.narrow(0, start, size)).unwrap();
        let state = metric.state().unwrap();
        metric.reset();
        metric.load_state(&state).unwrap();
        start += size;
        if start == samples {
            break;
        }
    }
    metric.compute().unwrap()
}

/// Returns the output of an input of the file, whose scores of tokens `[N, T, V]` have the vocabulary last.
fn output(metric: &str, data: &Value) -> Tensor {
    let output = tensor(&data["output"]);
    if metric == "perplexity" && output.rank() == 3 { output.movedim(-1, 1) } else { output }
}

#[test]
fn values_agree_with_scikit_learn_for_every_split() {
    let file: Value = serde_json::from_str(include_str!("references.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    for case in cases {
        let (input, name) = (case["input"].as_str().unwrap(), case["metric"].as_str().unwrap());
        let data = &file["inputs"][input];
        let (output, target) = (output(name, data), tensor(&data["target"]));
        let (mut metric, expected) = (metric(name), parse_number(&case["value"]));
        metric.update(&output, &target).unwrap();
        let value = metric.compute().unwrap();
        let is_close = (value - expected).abs() <= 1e-12 * (1.0 + expected.abs());
        assert!(is_close || value.is_nan() && expected.is_nan(), "{name} of {input}: {value} instead of {expected}");
        for sizes in [&[1][..], &[7], &[3, 0, 11], &[usize::MAX]] {
            let in_batches = value_in_batches(&mut *metric, &output, &target, sizes);
            assert_eq!(in_batches.to_bits(), value.to_bits(), "{name} of {input} in batches of {sizes:?}");
        }
    }
}

#[test]
fn all_metrics_are_nan_without_samples() {
    let file: Value = serde_json::from_str(include_str!("references.json")).unwrap();
    for case in file["cases"].as_array().unwrap() {
        let mut metric = metric(case["metric"].as_str().unwrap());
        assert!(metric.compute().unwrap().is_nan(), "{}", metric.name());
        let data = &file["inputs"][case["input"].as_str().unwrap()];
        metric.update(&output(case["metric"].as_str().unwrap(), data), &tensor(&data["target"])).unwrap();
        metric.reset();
        assert!(metric.compute().unwrap().is_nan(), "{} after a reset", metric.name());
    }
}
