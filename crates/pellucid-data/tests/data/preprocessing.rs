//! Scalers and encoders, compared with scikit-learn.

use pellucid::data::{Column, MinMaxScaler, OneHotEncoder, StandardScaler, Table, UnknownCategory};
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::{DType, Error, Result, Tensor};
use std::collections::HashMap;

const FEATURES: usize = 6;

/// The matrices of `reference/scalers.txt` by name.
fn reference() -> HashMap<&'static str, Tensor> {
    let matrix = |line: &'static str| {
        let (name, values) = line.split_once(' ').unwrap();
        let values: Vec<f64> = values.split(' ').map(|value| value.parse().unwrap()).collect();
        let rows = values.len() / FEATURES;
        (name, Tensor::new(values, [rows, FEATURES]))
    };
    include_str!("reference/scalers.txt").lines().map(matrix).collect()
}

fn assert_close(name: &str, found: &Tensor, expected: &Tensor) {
    let (found, expected) = (found.to_vec::<f64>(), expected.to_vec::<f64>());
    for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
        let is_close = (a - b).abs() <= 1e-12 * b.abs().max(1.0) || a.is_nan() && b.is_nan();
        assert!(is_close, "{name}: element {i} is {a}, expected {b}");
    }
}

#[test]
fn scalers_have_the_values_of_scikit_learn() {
    let reference = reference();
    let (train, test) = (&reference["train"], &reference["test"]);
    let expected = |name: &str, part: &str| &reference[format!("{name}_{part}").as_str()];
    let standard = StandardScaler::new();
    assert_close("standard", &standard.fit_transform(train).unwrap(), expected("standard", "train"));
    assert_close("standard", &standard.transform(test).unwrap(), expected("standard", "test"));
    assert_close("standard", &standard.inverse_transform(test).unwrap(), expected("standard", "inverse"));
    for (name, scaler) in
        [("min_max", MinMaxScaler::new()), ("min_max_range", MinMaxScaler::new().feature_range(-2.0, 3.0))]
    {
        assert_close(name, &scaler.fit_transform(train).unwrap(), expected(name, "train"));
        assert_close(name, &scaler.transform(test).unwrap(), expected(name, "test"));
        assert_close(name, &scaler.inverse_transform(test).unwrap(), expected(name, "inverse"));
    }
}

#[test]
fn scalers_keep_the_dtype_and_refuse_other_features() {
    let x = Tensor::from([[1.0f32, 2.0], [3.0, 5.0]]);
    let scaler = StandardScaler::new();
    let text = |result: Result<Tensor>| result.unwrap_err().to_string();
    assert!(text(scaler.transform(&x)).contains("fit(&x)"));
    assert_eq!(scaler.fit_transform(&x).unwrap().dtype(), DType::F32);
    assert_eq!(scaler.fit_transform(&x.to_dtype(DType::BF16)).unwrap().dtype(), DType::BF16);
    assert!(text(scaler.transform(&Tensor::zeros([2, 3], DType::F32))).contains("fitted on 2 features"));
    assert!(text(scaler.transform(&Tensor::zeros([2], DType::F32))).contains("[samples, features]"));
    assert!(text(scaler.transform(&Tensor::from([[1i64, 2]]))).contains("to_dtype"));
    assert!(text(scaler.fit_transform(&Tensor::zeros([0, 2], DType::F32))).contains("at least one sample"));
    assert!(text(scaler.fit_transform(&Tensor::from([[f32::INFINITY]]))).contains("finite or NaN"));
    // A failed fit keeps the statistics.
    assert_eq!(scaler.mean().unwrap().to_vec::<f64>(), [2.0, 3.5]);
    let empty = MinMaxScaler::new().feature_range(1.0, 1.0);
    assert!(text(empty.fit_transform(&x)).contains("range"));
    // A constant feature has the scale 1.
    scaler.fit(&Tensor::from([[0.1f64], [0.1], [0.1]])).unwrap();
    assert_eq!(scaler.scale().unwrap().to_vec::<f64>(), [1.0]);
}

#[test]
fn checkpoints_contain_scalers_and_encoders() {
    let x = Tensor::from([[1.0f32, 2.0], [3.0, 5.0]]);
    let table = Table::from_columns([
        ("city", Column::from(vec!["São Paulo", "Rome", ""])),
        ("zone", Column::from(vec![10, 9, 10])),
    ])
    .unwrap();
    let (standard, min_max, encoder) = (StandardScaler::new(), MinMaxScaler::new(), OneHotEncoder::new());
    standard.fit(&x).unwrap();
    min_max.fit(&x).unwrap();
    encoder.fit(&table, &["city", "zone"]).unwrap();
    let saved = Checkpoint::new().part("a", &standard).part("b", &min_max).part("c", &encoder).state().unwrap();
    let (other, other_range, other_encoder) = (StandardScaler::new(), MinMaxScaler::new(), OneHotEncoder::new());
    let parts = Checkpoint::new().part("a", &other).part("b", &other_range).part("c", &other_encoder);
    parts.load_state_dict(&saved).unwrap();
    let bytes = |x: Result<Tensor>| x.unwrap().to_bytes();
    assert_eq!(bytes(other.transform(&x)), bytes(standard.transform(&x)));
    assert_eq!(bytes(other_range.inverse_transform(&x)), bytes(min_max.inverse_transform(&x)));
    assert_eq!(bytes(other_encoder.transform(&table)), bytes(encoder.transform(&table)));
    assert_eq!(other_encoder.feature_names().unwrap(), ["city_", "city_Rome", "city_São Paulo", "zone_9", "zone_10"]);
    // A damaged state changes nothing.
    let refused: Vec<StateDict> = saved
        .keys()
        .filter(|key| !key.contains("step"))
        .map(|key| saved.iter().filter(|(name, _)| *name != key).map(|(n, t)| (n.clone(), t.clone())).collect())
        .collect();
    for state in refused {
        let fresh = (StandardScaler::new(), MinMaxScaler::new(), OneHotEncoder::new());
        let parts = Checkpoint::new().part("a", &fresh.0).part("b", &fresh.1).part("c", &fresh.2);
        assert!(parts.load_state_dict(&state).is_err());
        assert!(fresh.0.transform(&x).is_err() && fresh.2.transform(&table).is_err());
    }
}

#[test]
fn one_hot_codes_follow_the_fitted_categories() {
    let cities = |names: Vec<&'static str>| Table::from_columns([("city", Column::from(names))]).unwrap();
    let encoder = OneHotEncoder::new();
    encoder.fit(&cities(vec!["b", "c", "a"]), &["city"]).unwrap();
    let codes = encoder.transform(&cities(vec!["c", "a"])).unwrap();
    assert_eq!(codes.to_vec2::<f32>(), [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]);
    let unknown = cities(vec!["a", "d"]);
    let error = encoder.transform(&unknown).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }));
    assert!(error.to_string().contains(r#"row 1 of column "city" has the unknown category "d""#), "{error}");
    let lenient = encoder.clone().unknown(UnknownCategory::Ignore);
    assert_eq!(lenient.transform(&unknown).unwrap().to_vec2::<f32>(), [[1.0, 0.0, 0.0], [0.0; 3]]);
    let floats = Table::from_columns([("city", Column::from(vec![0.5]))]).unwrap();
    assert!(encoder.fit(&floats, &["city"]).unwrap_err().to_string().contains("to_categories"));
    assert!(OneHotEncoder::new().transform(&unknown).unwrap_err().to_string().contains("fit("));
}
