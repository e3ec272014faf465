//! Conventions: ties, kinks, NaN, and the result dtypes of integers and booleans.

use super::{gradients, matrix};
use crate::support::{leaf, slope};
use pellucid_tensor::ops::{self, AvgPoolDivisor, PoolOptions, over};
use pellucid_tensor::{DType, Error, Result, Tensor};

#[test]
fn extrema_without_positions_split_the_gradient_of_ties() {
    let x = leaf([3.0, 1.0, 3.0, 3.0]);
    assert_eq!(gradients(&x.max(..), Tensor::from(6.0), [&x]), [[2.0, 0.0, 2.0, 2.0]]);
    let m = matrix([[0.0, 0.0], [5.0, 0.0]]);
    assert_eq!(gradients(&m.min(1), Tensor::from([4.0, 4.0]), [&m]), [[2.0, 2.0, 0.0, 4.0]]);
    assert_eq!(gradients(&m.max([0, 1]), Tensor::from(1.0), [&m]), [[0.0, 0.0, 1.0, 0.0]]);
    assert_eq!(gradients(&m.min([0, 1]), Tensor::from(3.0), [&m]), [[1.0, 1.0, 0.0, 1.0]]);
    let (low, high) = m.aminmax(over(0).keepdims());
    assert_eq!(gradients(&low, Tensor::from([[2.0, 2.0]]), [&m]), [[2.0, 1.0, 0.0, 1.0]]);
    assert_eq!(gradients(&high, Tensor::from([[2.0, 2.0]]), [&m]), [[0.0, 1.0, 2.0, 1.0]]);
}

#[test]
fn extrema_with_positions_give_the_gradient_to_that_position() {
    let x = leaf([2.0, 7.0, 7.0]);
    let (values, positions) = x.topk(1, 0, true);
    assert_eq!(positions.to_vec::<i64>(), [1]);
    assert_eq!(gradients(&values, Tensor::from([1.0]), [&x]), [[0.0, 1.0, 0.0]]);
    let (values, positions) = x.kthvalue(3, 0);
    assert_eq!(positions.item::<i64>(), 2);
    assert_eq!(gradients(&values, Tensor::from(1.0), [&x]), [[0.0, 0.0, 1.0]]);
    let (values, positions) = x.cummax(0);
    assert_eq!(positions.to_vec::<i64>(), [0, 1, 2], "cummax must return the position of the last equal element");
    assert_eq!(gradients(&values, Tensor::from([1.0, 10.0, 100.0]), [&x]), [[1.0, 10.0, 100.0]]);
    let image = Tensor::from([[[7.0, 7.0, 1.0, 1.0]]]).requires_grad_(true);
    let weights = || Tensor::from([[[1.0, 10.0]]]);
    let (values, positions) = image.max_pool1d(PoolOptions::new(2));
    assert_eq!(positions.to_vec::<i64>(), [0, 2]);
    assert_eq!(gradients(&values, weights(), [&image]), [[1.0, 0.0, 10.0, 0.0]]);
    let (values, positions) = image.adaptive_max_pool1d(&[Some(2)]);
    assert_eq!(positions.to_vec::<i64>(), [0, 2]);
    assert_eq!(gradients(&values, weights(), [&image]), [[1.0, 0.0, 10.0, 0.0]]);
}

#[test]
fn maximum_and_minimum_share_the_gradient_of_equal_operands() {
    let (a, b) = (leaf([1.0, 2.0, 3.0]), leaf([1.0, 3.0, 2.0]));
    let weights = || Tensor::from([2.0, 4.0, 6.0]);
    let [da, db] = gradients(&a.maximum(&b), weights(), [&a, &b]);
    assert_eq!((da, db), (vec![1.0, 0.0, 6.0], vec![1.0, 4.0, 0.0]));
    let [da, db] = gradients(&a.minimum(&b), weights(), [&a, &b]);
    assert_eq!((da, db), (vec![1.0, 4.0, 0.0], vec![1.0, 0.0, 6.0]));
}

#[test]
fn gradients_at_kinks() {
    let at = |f: fn(&Tensor) -> Tensor, x: f64| {
        let x = Tensor::from(x).requires_grad_(true);
        f(&x).backward();
        slope(&x)
    };
    assert_eq!(at(|x| x.relu(), 0.0), 0.0);
    assert_eq!(at(|x| x.relu(), -0.0), 0.0);
    assert_eq!(at(|x| x.relu(), 1e-300), 1.0);
    assert_eq!(at(|x| x.abs(), 0.0), 0.0);
    assert_eq!(at(|x| x.clamp(-1.0, 2.0), -1.0), 1.0);
    assert_eq!(at(|x| x.clamp(-1.0, 2.0), 2.0), 1.0);
    assert_eq!(at(|x| x.clamp(-1.0, 2.0), 2.5), 0.0);
}

const NAN: f64 = f64::NAN;

#[track_caller]
fn all_nan(results: impl IntoIterator<Item = (&'static str, Tensor)>) {
    for (name, y) in results {
        let values = y.to_vec::<f64>();
        assert!(!values.is_empty() && values.iter().all(|v| v.is_nan()), "{name}: {values:?}");
    }
}

#[test]
fn nan_propagates_through_reductions() {
    for place in 0..3 {
        let x = Tensor::from([1.0, 2.0, 3.0]);
        x.set(place, NAN);
        all_nan([
            ("sum", x.sum(..)),
            ("mean", x.mean(0)),
            ("prod", x.prod(0)),
            ("max", x.max(..)),
            ("min", x.min(0)),
            ("aminmax, minimum", x.aminmax(..).0),
            ("aminmax, maximum", x.aminmax(..).1),
            ("var", x.var(..)),
            ("std", x.std(..)),
            ("norm", x.norm(2.0, ..)),
            ("norm of order ∞", x.norm(f64::INFINITY, ..)),
            ("logsumexp", x.logsumexp(..)),
            ("softmax", x.softmax(0)),
            ("log_softmax", x.log_softmax(0)),
            ("dot", x.dot(&Tensor::from([0.0, 0.0, 0.0]))),
        ]);
        assert_eq!((x.argmax(..).item::<i64>(), x.argmin(0).item::<i64>()), (place as i64, place as i64));
    }
}

#[test]
fn nan_propagates_through_elementwise_operations() {
    let x = Tensor::from([NAN]);
    all_nan([
        ("maximum", x.maximum(1.0)),
        ("maximum, second operand", ops::maximum(1.0, &x).unwrap()),
        ("minimum", x.minimum(1.0)),
        ("minimum, second operand", ops::minimum(1.0, &x).unwrap()),
        ("relu", x.relu()),
        ("relu6", x.relu6()),
        ("hardtanh", x.hardtanh(-1.0, 1.0)),
        ("leaky_relu", x.leaky_relu(0.1)),
        ("clamp", x.clamp(-1.0, 1.0)),
        ("abs", x.abs()),
        ("sign", x.sign()),
        ("floor", x.floor()),
        ("a product with 0", &x * 0.0),
        ("sigmoid", x.sigmoid()),
        ("tanh", x.tanh()),
    ]);
    assert_eq!(x.eq(&x).to_vec::<bool>(), [false]);
    assert_eq!(x.ne(&x).to_vec::<bool>(), [true]);
}

#[test]
fn nan_propagates_through_scans() {
    let x = Tensor::from([1.0, NAN, 3.0]);
    for (name, y) in [
        ("cumsum", x.cumsum(0)),
        ("cumprod", x.cumprod(0)),
        ("cummax", x.cummax(0).0),
        ("cummin", x.cummin(0).0),
        ("logcumsumexp", x.logcumsumexp(0)),
    ] {
        let y = y.to_vec::<f64>();
        assert!(y[0] == 1.0 && y[1].is_nan() && y[2].is_nan(), "{name}: {y:?}");
    }
}

#[test]
fn nan_is_sorted_as_the_largest() {
    let x = Tensor::from([NAN, 1.0, f64::INFINITY, NAN, -1.0]);
    for (descending, order, numbers) in [
        (false, [4, 1, 2, 0, 3], [-1.0, 1.0, f64::INFINITY, NAN, NAN]),
        (true, [0, 3, 2, 1, 4], [NAN, NAN, f64::INFINITY, 1.0, -1.0]),
    ] {
        let (values, positions) = x.sort(0, descending);
        assert_eq!(positions.to_vec::<i64>(), order);
        assert_eq!(x.argsort(0, descending).to_vec::<i64>(), order);
        let values = values.to_vec::<f64>();
        assert!(values.iter().zip(numbers).all(|(&v, n)| v == n || v.is_nan() && n.is_nan()), "{values:?}");
    }
}

#[test]
fn nan_propagates_through_windows() {
    let x = Tensor::from([[[1.0, NAN, 3.0, 4.0]]]);
    for (name, y) in [
        ("max_pool1d", x.max_pool1d(PoolOptions::new(2)).0),
        ("adaptive_max_pool1d", x.adaptive_max_pool1d(&[Some(2)]).0),
        ("avg_pool1d", x.avg_pool1d(PoolOptions::new(2), AvgPoolDivisor::Window)),
        ("adaptive_avg_pool1d", x.adaptive_avg_pool1d(&[Some(2)])),
        ("lp_pool1d", x.lp_pool1d(2.0, PoolOptions::new(2))),
    ] {
        let y = y.to_vec::<f64>();
        assert!(y[0].is_nan() && !y[1].is_nan(), "{name}: {y:?}");
    }
    assert_eq!(x.max_pool1d(PoolOptions::new(4)).1.to_vec::<i64>(), [1], "NaN must count as the largest value");
}

#[test]
fn integers_and_booleans_sum_in_i64() {
    let bytes = Tensor::from([200u8, 100]);
    let truth = Tensor::from([true, true, false]);
    for (y, expected) in [
        (bytes.sum(..), 300),
        (truth.sum(0), 2),
        (bytes.prod(..), 20_000),
        (truth.prod(..), 0),
        (bytes.cumsum(0).i(1), 300),
        (truth.cumsum(0).i(2), 2),
        (bytes.cumprod(0).i(1), 20_000),
        (truth.count_nonzero(..), 2),
        (bytes.argmax(..), 0),
    ] {
        assert_eq!((y.dtype(), y.item::<i64>()), (DType::I64, expected));
    }
    assert_eq!(Tensor::from([i64::MAX, 1]).sum(..).item::<i64>(), i64::MIN, "integer sums must wrap");
    for (y, expected) in [(bytes.max(..), 200u8), (bytes.min(..), 100)] {
        assert_eq!((y.dtype(), y.item::<u8>()), (DType::U8, expected));
    }
    assert_eq!((truth.max(..).dtype(), truth.max(..).item::<bool>()), (DType::Bool, true));
}

#[test]
fn integers_divide_into_floats() {
    let x = Tensor::from([7i64, -7]);
    let mean = x.mean(..);
    assert_eq!((mean.dtype(), mean.item::<f32>()), (DType::F32, 0.0));
    let quotient = &x / 2;
    assert_eq!((quotient.dtype(), quotient.to_vec::<f32>()), (DType::F32, vec![3.5, -3.5]));
    let root = Tensor::from([4i32]).sqrt();
    assert_eq!((root.dtype(), root.to_vec::<f32>()), (DType::F32, vec![2.0]));
    assert_eq!(x.floor_div(2).to_vec::<i64>(), [3, -4]);
    assert_eq!(x.rem(2).to_vec::<i64>(), [1, 1]);
    assert_eq!(x.fmod(2).to_vec::<i64>(), [1, -1]);
    assert_eq!(x.floor_div(0).to_vec::<i64>(), [0, 0], "a division by 0 must give 0");
    assert_eq!(
        Tensor::from([i64::MIN]).floor_div(-1).to_vec::<i64>(),
        [i64::MIN],
        "the division of the least integer by -1 must wrap"
    );
    assert_eq!(x.rem(0).to_vec::<i64>(), [0, 0]);
}

#[test]
fn integers_wrap_and_keep_their_width() {
    let x = Tensor::from([250u8, 5]);
    let y = &x + 10;
    assert_eq!((y.dtype(), y.to_vec::<u8>()), (DType::U8, vec![4, 15]));
    assert_eq!((-&x).to_vec::<u8>(), [6, 251]);
    assert_eq!((&Tensor::from([100i8]) * 2).to_vec::<i8>(), [-56]);
    let wide = &x + &Tensor::from([10i32, 10]);
    assert_eq!((wide.dtype(), wide.to_vec::<i32>()), (DType::I32, vec![260, 15]));
    assert_eq!(Tensor::from([2i64]).pow(-1).to_vec::<i64>(), [0]);
    assert_eq!(Tensor::from([1i64, 1]).shift_left(Tensor::from([3i64, 64])).to_vec::<i64>(), [8, 0]);
    let product = Tensor::from([[1i64, 2], [3, 4]]).matmul(&Tensor::from([[1i64, 0], [1, 1]]));
    assert_eq!((product.dtype(), product.to_vec::<i64>()), (DType::I64, vec![3, 2, 7, 4]));
    assert_eq!(Tensor::from([1i64]).max(0).dtype(), DType::I64);
}

#[test]
fn arithmetic_on_booleans_counts_or_is_an_error() {
    let x = Tensor::from([true, true, false]);
    let y = &x + &x;
    assert_eq!(
        (y.dtype(), y.to_vec::<bool>()),
        (DType::Bool, vec![true, true, false]),
        "the sum of booleans must be their logical or"
    );
    let z = &x + 0.5;
    assert_eq!((z.dtype(), z.to_vec::<f32>()), (DType::F32, vec![1.5, 1.5, 0.5]));
    assert_eq!((x.any(..).item::<bool>(), x.all(..).item::<bool>()), (true, false));
    assert_eq!(x.logical_not().to_vec::<bool>(), [false, false, true]);
    assert_eq!(x.sort(0, false).0.to_vec::<bool>(), [false, true, true]);
    let rejected = |result: Result<Tensor>| matches!(result, Err(Error::DTypeMismatch { .. }));
    assert!(rejected(ops::matmul(&x, &x)));
    assert!(rejected(ops::var(&x, ..)));
    assert!(rejected(ops::norm(&x, 2.0, ..)));
    assert!(rejected(ops::where_(&Tensor::from([1i64]), 1.0, 0.0)), "a condition that is not bool must be an error");
    assert!(rejected(ops::index_select(&x, 0, &x)), "an index that is not an integer must be an error");
}

#[test]
fn integer_results_have_no_gradient() {
    let x = leaf([1.0, 3.0, 2.0]);
    for y in [x.argmax(..), x.argsort(0, false), x.sort(0, true).1, x.gt(1.5), x.isnan(), x.to_dtype(DType::I64)] {
        assert!(!y.requires_grad(), "{y:?}");
    }
    assert!(x.floor().requires_grad(), "floor must be tracked, with a gradient of 0");
    assert_eq!(gradients(&x.floor(), Tensor::from([1.0; 3]), [&x]), [[0.0; 3]]);
}
