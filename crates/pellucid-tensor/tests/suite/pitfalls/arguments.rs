//! Arguments at the ends of their ranges, and beyond them.

use pellucid_tensor::ops::{
    self, BatchNormOptions, Bins, CtcLossOptions, InterpolationMode, QuantileInterpolation, Reduction, Resize,
    WindowFunction,
};
use pellucid_tensor::{DType, Result, Tensor};

fn message<T>(result: Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn linear_interpolation_reaches_both_ends() {
    let t = |v: f32| Tensor::from([v]);
    let lerp = |a, b, w| ops::lerp(&t(a), &t(b), &t(w)).unwrap().i(0).item::<f32>();
    assert_eq!((lerp(-1e8, 1.0, 0.0), lerp(-1e8, 1.0, 1.0), lerp(1.0, -1e8, 1.0)), (-1e8, 1.0, -1e8));
    assert_eq!(lerp(f32::NEG_INFINITY, 1.0, 0.5), f32::NEG_INFINITY);
    let infinite = Tensor::from([f64::NEG_INFINITY, f64::INFINITY, 1.0]);
    for interpolation in [QuantileInterpolation::Linear, QuantileInterpolation::Midpoint] {
        let y = ops::quantile(&infinite, 0.25, 0, interpolation).unwrap();
        assert_eq!(y.item::<f64>(), f64::NEG_INFINITY);
    }
}

#[test]
fn bins_whose_range_overflows_are_refused() {
    let x = Tensor::from([-3e38f32, 0.0, 3e38]);
    for rejected in [
        message(ops::histogram(&x, Bins::Count(2), None, false)),
        message(ops::histogram(&x, Bins::Between(2, -3.4e38, 3.4e38), None, false)),
        message(ops::histc(&x, 2, -3.4e38, 3.4e38)),
    ] {
        assert!(rejected.contains("the distance between the ends of the bins must be finite"), "{rejected}");
    }
}

#[test]
fn variances_are_not_negative() {
    let m = Tensor::from([1.0f32, 2.0]);
    let loss = |v: &Tensor, eps| ops::gaussian_nll_loss(&m, &m, v, false, eps, Reduction::Mean);
    assert!(message(loss(&-&m, 1e-6)).contains("variances must be at least 0"));
    assert!(message(loss(&m, f64::NAN)).contains("eps must be at least 0"));
    assert!(message(loss(&m, -1.0)).contains("eps must be at least 0"));
    assert!(loss(&Tensor::from([0.0f32, 1.0]), 1e-6).is_ok());
    let deferred = pellucid_tensor::lazy(|| loss(&-&m, 1e-6).unwrap());
    assert!(deferred.item::<f32>().is_nan());
}

#[test]
fn integers_are_not_added_in_fractions() {
    let (x, at, source) = (Tensor::from([1i64, 2]), Tensor::from([0i64]), Tensor::from([3i64]));
    assert!(message(ops::index_add(&x, 0, &at, &source, 0.5)).contains("0.5"));
    assert_eq!(ops::index_add(&x, 0, &at, &source, 2).unwrap().to_vec::<i64>(), [7, 2]);
}

#[test]
fn steep_kaiser_windows_are_finite() {
    let window = ops::signal_window(WindowFunction::Kaiser { beta: 800.0 }, 5, true, DType::F64).unwrap();
    let values = window.to_vec::<f64>();
    assert!(values.iter().all(|v| v.is_finite()) && values[2] == 1.0, "{values:?}");
}

#[test]
fn messages_name_the_argument() {
    let probs = Tensor::zeros([4, 1, 3], DType::F32);
    let (targets, lengths, floats) = (Tensor::from([[1i64, 2]]), Tensor::from([2i64]), Tensor::from([4.5f32]));
    let rejected = message(ops::ctc_loss(&probs, &targets, &floats, &lengths, CtcLossOptions::default()));
    assert!(rejected.contains("lengths must be integers"), "{rejected}");
    let x = Tensor::zeros([1, 1, 2, 3], DType::F32);
    let rejected = message(ops::interpolate(&x, Resize::By(vec![f64::INFINITY, 1.0]), InterpolationMode::Nearest));
    assert!(rejected.contains("factors must be finite and positive") && !rejected.contains("By("), "{rejected}");
    let rejected = std::panic::catch_unwind(|| {
        Tensor::from([1.0f32]).requires_grad_(true).set_grad(Some(Tensor::from([1.0f64])));
    });
    let text = rejected.unwrap_err().downcast::<String>().expect("the payload of the panic must be a string");
    assert!(text.contains("f64"), "{text}");
}

#[test]
fn eps_and_momentum_are_finite() {
    let x = Tensor::arange(0, 12, 1).to_dtype(DType::F32).reshape([2, 3, 2]);
    for eps in [f64::NEG_INFINITY, f64::NAN, f64::INFINITY] {
        let options = BatchNormOptions { eps, ..Default::default() };
        for rejected in [
            message(ops::layer_norm(&x, [2], None, None, eps)),
            message(ops::rms_norm(&x, [2], None, eps)),
            message(ops::group_norm(&x, 1, None, None, eps)),
            message(ops::batch_norm(&x, None, None, None, options)),
            message(ops::instance_norm(&x, None, None, None, options)),
            message(ops::normalize(&x, 2.0, -1, eps)),
            message(ops::masked_normalize(&x, &x.gt(1.0), 2.0, -1, eps)),
            message(ops::cosine_similarity(&x, &x, -1, eps)),
        ] {
            assert!(rejected.contains("eps must be finite"), "{rejected}");
        }
    }
    let options = BatchNormOptions { momentum: f64::NAN, ..Default::default() };
    let rejected = message(ops::batch_norm(&x, None, None, None, options));
    assert!(rejected.contains("momentum must be finite, got NaN"), "{rejected}");
}
