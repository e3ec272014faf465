//! Arguments at the ends of their ranges, and beyond them.

use pellucid_tensor::ops::{
    self, BatchNormOptions, Bins, CtcLossOptions, InterpolationMode, QuantileInterpolation, Reduction, Resize,
    WindowFunction,
};
use pellucid_tensor::{DType, GradOptions, Result, Tensor, grad};

fn message<T>(result: Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn linear_interpolation_reaches_both_ends() {
    let t = |v: f32| Tensor::from([v]);
    let lerp = |a, b, w| ops::lerp(&t(a), &t(b), &t(w)).unwrap().i(0).item::<f32>();
    assert_eq!((lerp(-1e8, 1.0, 0.0), lerp(-1e8, 1.0, 1.0), lerp(1.0, -1e8, 1.0)), (-1e8, 1.0, -1e8));
    assert_eq!(lerp(f32::NEG_INFINITY, 1.0, 0.5), f32::NEG_INFINITY);
    // An infinite end and a difference that overflows.
    let inf = f32::INFINITY;
    assert_eq!((lerp(1.0, inf, 0.0), lerp(-inf, 1.0, 1.0), lerp(1.0, inf, 0.25)), (1.0, 1.0, inf));
    assert!([0.0, 0.25, 0.75, 1.0, 2.0].iter().all(|&w| lerp(-inf, -inf, w) == -inf && lerp(inf, inf, w) == inf));
    assert!(lerp(-inf, inf, 0.5).is_nan() && lerp(1.0, 1.0, f32::NAN).is_nan() && lerp(inf, inf, f32::NAN).is_nan());
    let large = 2f32.powi(127);
    assert_eq!((lerp(-large, large, 0.25), lerp(-large, large, 0.75)), (-0.5 * large, 0.5 * large));
    let half = |v: f64| Tensor::from(v).to_dtype(DType::F16);
    assert_eq!(ops::lerp(&half(-40000.0), &half(40000.0), &half(0.75)).unwrap().item::<f64>(), 20000.0);
    // Derivatives with respect to the ends and the weight, and the mixed ones at equal finite ends.
    for (ends, by_weight) in [([inf, inf], 0.0), ([2.0, 2.0], 0.0), ([1.0, 3.0], 2.0)] {
        let [a, b, w] = [ends[0], ends[1], 0.25].map(|v| Tensor::from(v).requires_grad_(true));
        let options = || GradOptions { create_graph: true, ..Default::default() };
        let first = grad(&[&ops::lerp(&a, &b, &w).unwrap()], &[&a, &b, &w], options()).unwrap();
        assert_eq!(first.iter().map(|g| g.item::<f32>()).collect::<Vec<_>>(), [0.75, 0.25, by_weight], "{ends:?}");
        if ends[0].is_finite() {
            let mixed = grad(&[&first[2]], &[&a, &b], options()).unwrap();
            assert_eq!((mixed[0].item::<f32>(), mixed[1].item::<f32>()), (-1.0, 1.0), "{ends:?}");
        }
    }
    let infinite = Tensor::from([f64::NEG_INFINITY, f64::INFINITY, 1.0]);
    for interpolation in [QuantileInterpolation::Linear, QuantileInterpolation::Midpoint] {
        let y = ops::quantile(&infinite, 0.25, 0, interpolation).unwrap();
        assert_eq!(y.item::<f64>(), f64::NEG_INFINITY);
        // At an integer rank both neighbours are one element.
        let y = ops::quantile(&infinite, Tensor::from([0.0, 0.5, 1.0]), 0, interpolation).unwrap();
        assert_eq!(y.to_vec::<f64>(), [f64::NEG_INFINITY, 1.0, f64::INFINITY]);
        let repeated = Tensor::from([f64::INFINITY, 0.0, f64::INFINITY, f64::NAN]);
        let y = ops::nanquantile(&repeated, Tensor::from([0.5, 0.75]), 0, interpolation).unwrap();
        assert_eq!(y.to_vec::<f64>(), [f64::INFINITY; 2]);
    }
}

#[test]
fn bins_whose_range_overflows_are_rejected() {
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
fn bins_of_large_elements() {
    let x = Tensor::from([0.0f32, 1e38, 3e38]);
    assert_eq!(ops::histc(&x, 10, 0.0, 0.0).unwrap().to_vec::<f32>(), [1., 0., 0., 1., 0., 0., 0., 0., 0., 1.]);
    // ½ is less than half the distance to the next number.
    let numbers = [(DType::F32, 1e10), (DType::F32, -f64::from(f32::MAX)), (DType::F64, 1e17), (DType::F64, f64::MAX)];
    for (dtype, number) in numbers.into_iter().chain([(DType::F16, 65504.0), (DType::BF16, 1000.0)]) {
        let x = Tensor::from([number; 3]).to_dtype(dtype);
        assert_eq!(ops::histc(&x, 4, 0.0, 0.0).unwrap().sum(..).item::<f64>(), 3.0, "{number} in {dtype}");
        let (counts, edges) = ops::histogram(&x, Bins::Count(1), None, false).unwrap();
        let edges = edges.to_vec::<f64>();
        assert_eq!(counts.to_vec::<f64>(), [3.0], "{number} in {dtype}");
        let (number, is_finite) = (x.i(0).item::<f64>(), edges.iter().all(|edge| edge.is_finite()));
        assert!(edges[0] <= number && number <= edges[1] && edges[0] < edges[1] && is_finite, "{edges:?} in {dtype}");
    }
}

#[test]
fn slices_of_norm_zero_and_a_maximal_norm_of_zero_have_gradients() {
    let x = Tensor::from([[3.0, 4.0], [0.0, 0.0]]).requires_grad_(true);
    for (max_norm, values, gradient) in [(0.0, [0.0; 4], [0.0, 0.0, 1.0, 1.0]), (10.0, [3.0, 4.0, 0.0, 0.0], [1.0; 4])]
    {
        let y = x.renorm(2.0, 0, max_norm);
        assert_eq!(y.to_vec::<f64>(), values);
        x.zero_grad();
        y.sum(..).backward();
        assert_eq!(x.grad().unwrap().to_vec::<f64>(), gradient);
    }
}

#[test]
fn points_whose_distance_overflows_are_interpolated() {
    let [points, values, x] =
        [&[-2e38f32, 2e38][..], &[0.0, 1.0], &[-2e38, -1e38, 0.0, 2e38]].map(|v| Tensor::new(v.to_vec(), [v.len()]));
    let x = x.requires_grad_(true);
    let y = ops::interp(&x, &points, &values, Default::default()).unwrap();
    assert_eq!(y.to_vec::<f32>(), [0.0, 0.25, 0.5, 1.0]);
    y.sum(..).backward();
    assert!(x.grad().unwrap().to_vec::<f64>().iter().all(|slope| (slope * 4e38 - 1.0).abs() < 1e-3));
    let y = ops::interp(&Tensor::from([0.25f32, 0.5, 0.75]), &values, &points, Default::default()).unwrap();
    assert_eq!(y.to_vec::<f32>(), [-1e38, 0.0, 1e38]);
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
