//! Scalers and encoders, compared with scikit-learn.

use pellucid::data::{
    Categories, Column, FillValue, Imputer, LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler, Table,
    UnknownCategory,
};
use pellucid::nn::{Checkpoint, StateDict, Stateful};
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

fn assert_close(name: &str, actual: &Tensor, expected: &Tensor) {
    let (actual, expected) = (actual.to_vec::<f64>(), expected.to_vec::<f64>());
    for (i, (a, b)) in actual.iter().zip(&expected).enumerate() {
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
fn scalers_keep_the_dtype_and_reject_other_features() {
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
    // A failed fit leaves the statistics unchanged.
    assert_eq!(scaler.mean().unwrap().to_vec::<f64>(), [2.0, 3.5]);
    for (low, high) in [(1.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
        let error = MinMaxScaler::new().try_feature_range(low, high).unwrap_err();
        assert!(error.to_string().contains("range"), "{error}");
    }
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
    // Loading a damaged state changes nothing.
    let damaged: Vec<StateDict> = saved
        .keys()
        .filter(|key| !key.contains("step"))
        .map(|key| saved.iter().filter(|(name, _)| *name != key).map(|(n, t)| (n.clone(), t.clone())).collect())
        .collect();
    for state in damaged {
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

/// Other tables use the class indices of the training rows, even after a load.
#[test]
fn labels_are_numbered_by_the_classes_of_the_training_rows() {
    let table = |pets: Vec<&str>| Table::from_columns([("pet", Column::from(pets))]).unwrap();
    let (train, test) = (table(vec!["emu", "cat", "dog"]), table(vec!["dog", "emu"]));
    let encoder = LabelEncoder::new();
    assert!(encoder.transform(&test, "pet").unwrap_err().to_string().contains("fit("));
    assert_eq!(encoder.fit_transform(&train, "pet").unwrap().to_vec::<i64>(), [2, 0, 1]);
    let saved = Checkpoint::new().part("labels", &encoder).state().unwrap();
    let other = LabelEncoder::new();
    Checkpoint::new().part("labels", &other).load_state_dict(&saved).unwrap();
    assert_eq!(other.transform(&test, "pet").unwrap().to_vec::<i64>(), [1, 2]);
    assert_eq!(test.labels_with("pet", &["dog", "emu"]).unwrap().to_vec::<i64>(), [0, 1]);
    let error = other.transform(&table(vec!["cat", "fox"]), "pet").unwrap_err().to_string();
    assert!(error.contains("row 1") && error.contains("fox") && error.contains("cat, dog, emu"), "{error}");
    assert!(test.labels_with("pet", &["dog", "dog", "emu"]).unwrap_err().to_string().contains("twice"));
    let numbers = Table::from_columns([("n", Column::from(vec![10, 9]))]).unwrap();
    assert_eq!(encoder.fit_transform(&numbers, "n").unwrap().to_vec::<i64>(), [1, 0]);
    assert_eq!(encoder.classes().unwrap(), ["9", "10"]);
    let floats = Table::from_columns([("x", Column::from(vec![1.5]))]).unwrap();
    assert!(encoder.fit(&floats, "x").is_err() && floats.labels_with("x", &["1.5"]).is_err());
    let wrong = StateDict::from([("labels".to_string(), Tensor::from(1.0f32))]);
    assert!(Stateful::prepare_load(&encoder, &wrong).is_err());
}

#[test]
fn an_imputer_keeps_the_statistics_of_the_training_rows() {
    let table = |ages: Vec<f64>, cities: &[Option<&str>]| {
        let cities = Column::from(Categories::new(cities));
        Table::from_columns([("age", Column::from(ages)), ("city", cities), ("n", Column::from(vec![1, 2, 6]))])
            .unwrap()
    };
    let train = table(vec![1.0, f64::NAN, 4.0], &[Some("Rome"), Some("Bern"), Some("Rome")]);
    let test = table(vec![f64::NAN; 3], &[None, Some("Oslo"), None]);
    let mode = Imputer::new(FillValue::Mode);
    assert!(mode.transform(&test).unwrap_err().to_string().contains("fit("));
    mode.fit(&train, &["age", "city"]).unwrap();
    let saved = Checkpoint::new().part("imputer", &mode).state().unwrap();
    let other = Imputer::new(FillValue::Mode);
    Checkpoint::new().part("imputer", &other).load_state_dict(&saved).unwrap();
    for imputer in [&mode, &other] {
        let filled = imputer.transform(&test).unwrap();
        assert_eq!(filled.floats("age").unwrap(), [1.0; 3]);
        let cities = filled.column("city").unwrap();
        assert_eq!([0, 1, 2].map(|row| cities.text(row)), ["Rome", "Oslo", "Rome"]);
    }
    let mean = Imputer::new(FillValue::Mean);
    assert_eq!(mean.fit_transform(&train, &["age"]).unwrap().floats("age").unwrap(), [1.0, 2.5, 4.0]);
    // The statistics of a column of integers fill tables with missing values.
    mean.fit(&train, &["n"]).unwrap();
    assert_eq!(mean.values().unwrap(), [("n".to_string(), FillValue::Number(3.0))]);
    let gaps = Table::from_columns([("n", Column::from(vec![f64::NAN, 2.0]))]).unwrap();
    assert_eq!(mean.transform(&gaps).unwrap().floats("n").unwrap(), [3.0, 2.0]);
    assert!(mean.fit(&train, &["city"]).is_err());
    assert!(Imputer::new(FillValue::Median).fit(&test, &["age"]).unwrap_err().to_string().contains("all values"));
    let text = Imputer::new(FillValue::Text("none".to_string()));
    text.fit(&train, &["city"]).unwrap();
    assert_eq!(text.transform(&test).unwrap().column("city").unwrap().text(0), "none");
    // A column without values has no type, so a text may fill it.
    assert!(text.fit(&train, &["age"]).unwrap_err().to_string().contains("numbers"));
    assert_eq!(text.fit_transform(&test, &["age"]).unwrap().column("age").unwrap().text(2), "none");
    let filled = test.fill_missing(&["age"], FillValue::Text("none".to_string())).unwrap();
    assert_eq!(filled.column("age").unwrap().text(0), "none");
}
