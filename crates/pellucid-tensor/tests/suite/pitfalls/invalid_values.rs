//! Arguments and elements for which an operation is undefined are errors.

use pellucid_tensor::ops::{
    self, Bins, CovOptions, CtcLossOptions, EmbeddingBagOptions, EmbeddingOptions, MultiMarginLossOptions, PoolOptions,
    Reduction,
};
use pellucid_tensor::{DType, Error, Result, Tensor, capture, lazy, slice};

#[track_caller]
fn rejected<T>(op: &str, result: Result<T>) -> String {
    match result {
        Err(error @ (Error::InvalidArgument { .. } | Error::IndexOutOfBounds { .. })) => {
            assert_eq!(error.operation(), Some(op), "{error}");
            error.to_string()
        }
        Err(error) => panic!("{op}: unexpected error: {error}"),
        Ok(_) => panic!("{op}: the call must return an error"),
    }
}

#[test]
fn probabilities_and_deviations() {
    for p in [2.0, -0.1, f64::NAN, f64::INFINITY] {
        assert!(rejected("bernoulli", ops::bernoulli(&Tensor::from([0.5, p]))).contains("probabilities"));
    }
    assert_eq!(ops::bernoulli(&Tensor::from([0.0, 1.0])).unwrap().to_vec::<f64>(), [0.0, 1.0]);
    assert_eq!(ops::bernoulli(&Tensor::zeros([0], DType::F32)).unwrap().size(), 0);
    let mean = Tensor::from([0.0, 5.0]);
    for std in [-1.0, f64::NAN] {
        rejected("normal", ops::normal(&mean, &Tensor::from([1.0, std])));
    }
    assert_eq!(ops::normal(&mean, &Tensor::from(0.0)).unwrap().to_vec::<f64>(), [0.0, 5.0]);
    for wrong in [-0.5, 1.5] {
        let x = Tensor::from([0.5, wrong]);
        rejected("binary_cross_entropy", ops::binary_cross_entropy(&x, &x.detach(), None, Reduction::Mean));
    }
    rejected("rrelu", ops::rrelu(&mean, 0.0, f64::INFINITY));
}

#[test]
fn numbers_outside_the_range_of_a_dtype() {
    let bytes = Tensor::from([1u8, 2]);
    for value in [300.0, -1.0, 256.0, f64::NAN, f64::INFINITY] {
        assert!(rejected("full", ops::full([2], value, DType::U8)).contains("u8"));
        assert!(rejected("full_like", ops::full_like(&bytes, value)).contains("u8"));
    }
    for value in [255.9f64, -0.9] {
        assert!(rejected("full", ops::full((), value, DType::U8)).contains("round it"));
    }
    assert!(rejected("arange", ops::arange(250, 260, 1, DType::U8)).contains("u8"));
    assert!(rejected("arange", ops::arange(2, -3, -1, DType::U8)).contains("u8"));
    assert_eq!(ops::arange(250, 256, 1, DType::U8).unwrap().size(), 6);
    assert_eq!(
        ops::arange(300, 0, 1, DType::U8).unwrap().size(),
        0,
        "a range without elements must be allowed for a start outside the dtype"
    );
    for (start, end, step) in [(0.0, 5.0, 0.5), (0.5, 5.0, 1.0), (0.0, 5.5, 1.0), (0.0, 1e19, 1.0)] {
        assert!(rejected("arange", ops::arange(start, end, step, DType::I64)).contains("float dtype"));
    }
}

/// An integer operand of an operation with an integer tensor must be in the range of its dtype; bounds saturate.
#[test]
fn integers_beside_narrow_tensors() {
    let (bytes, words) = (Tensor::from([1u8, 7]), Tensor::from([1i32, 7]));
    let huge = 1i64 << 40;
    assert_eq!(ops::clamp(&words, 0, huge).unwrap().to_vec::<i64>(), [1, 7]);
    assert_eq!(ops::clamp(&words, -huge, 5).unwrap().to_vec::<i64>(), [1, 5]);
    assert_eq!(ops::clamp(&bytes, 5, i64::MAX).unwrap().to_vec::<i64>(), [5, 7]);
    assert_eq!(ops::clamp(&bytes, -5, 300).unwrap().to_vec::<i64>(), [1, 7]);
    for (op, result) in [
        ("lt", ops::lt(&words, huge)),
        ("eq", ops::eq(&words, 1i64 << 32)),
        ("minimum", ops::minimum(&words, i64::MAX)),
        ("maximum", ops::maximum(&bytes, 300)),
        ("rem", ops::rem(&words, huge)),
        ("floor_div", ops::floor_div(&words, 1i64 << 31)),
        ("add", ops::add(&bytes, 256)),
    ] {
        assert!(rejected(op, result).contains("range"), "{op}");
    }
    assert_eq!(ops::lt(&bytes, 300).unwrap().to_vec::<bool>(), [true, true]);
    assert_eq!(ops::lt(words.to_dtype(DType::I64), huge).unwrap().to_vec::<bool>(), [true, true]);
    assert_eq!(ops::add(&bytes, 255).unwrap().to_vec::<i64>(), [0, 6], "a sum beyond the range of u8 must wrap");
    // Tensors are promoted, and a float tensor accepts any number.
    assert_eq!(ops::add(&words, huge as f64).unwrap().dtype(), DType::F32);
}

/// The absolute value of the least integer overflows.
#[test]
fn remainders_and_divisors_of_the_least_integer() {
    let numbers = [i64::MIN, i64::MIN + 1, -6, -5, -1, 0, 1, 4, 6, 7, i64::MAX];
    for a in numbers {
        for b in numbers {
            let (x, y) = (Tensor::from([a]), Tensor::from([b]));
            let expected = if b == 0 { 0 } else { a.wrapping_rem(b) };
            assert_eq!(ops::fmod(&x, &y).unwrap().item::<i64>(), expected, "fmod({a}, {b})");
            let (mut p, mut q) = (i128::from(a).abs(), i128::from(b).abs());
            while q != 0 {
                (p, q) = (q, p % q);
            }
            assert_eq!(ops::gcd(&x, &y).unwrap().item::<i64>(), p as i64, "gcd({a}, {b})");
        }
    }
    let x = Tensor::from([-5i32, i32::MIN, 6]);
    assert_eq!(ops::fmod(&x, i32::MIN).unwrap().to_vec::<i64>(), [-5, 0, 6]);
    // A float with a zero divisor, and signs.
    let y = ops::fmod(Tensor::from([-7.5, 7.5, -0.0]), -2.0).unwrap().to_vec::<f64>();
    assert_eq!((y[0], y[1], y[2].is_sign_negative()), (-1.5, 1.5, true));
}

#[test]
fn means_of_scattered_integers() {
    let (x, index) = (Tensor::from([0u8, 1]), Tensor::from([0i64, 0, 0]));
    let mean =
        |x: &Tensor, values: &Tensor| ops::scatter_reduce(x, 0, &index, values, ops::ScatterReduceOp::Mean, false);
    let y = mean(&x, &Tensor::from([200u8, 201, 250])).unwrap();
    assert_eq!((y.dtype(), y.to_vec::<i64>()), (DType::U8, vec![217, 1]));
    let masks = Tensor::from([true, false, true]);
    assert!(matches!(mean(&Tensor::from([true, true]), &masks), Err(Error::DTypeMismatch { .. })));
    let small = ops::geomspace(1e-200, 1e-190, 3, DType::F64).unwrap().to_vec::<f64>();
    assert!(small[0] == 1e-200 && small[2] == 1e-190 && (small[1] / 1e-195 - 1.0).abs() < 1e-12);
}

#[test]
fn weights_of_classes() {
    for weights in [[0.0, 0.0], [1.0, -1.0], [f64::NAN, 1.0], [f64::INFINITY, 1.0], [f64::MAX, f64::MAX]] {
        for replacement in [true, false] {
            let weights = Tensor::from([[1.0, 1.0], weights]);
            rejected("multinomial", ops::multinomial(&weights, 1, replacement));
        }
    }
    let drawn = ops::multinomial(&Tensor::from([[0.0, 2.0], [3.0, 0.0]]), 5, true).unwrap();
    assert_eq!(drawn.to_vec::<i64>(), [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
    // The sum of these weights exceeds the range of f16.
    let many = Tensor::full([3], 60000.0, DType::F16);
    assert!(ops::multinomial(&many, 100, true).unwrap().to_vec::<i64>().contains(&2));
}

#[test]
fn offsets_of_bags() {
    let (table, index) = (Tensor::from([[1.0f32], [10.0], [100.0]]), Tensor::from([0i64, 1, 2, 1]));
    let bags = |offsets: &[i64], include_last_offset| {
        let offsets = Tensor::from(offsets);
        let options = EmbeddingBagOptions {
            offsets: Some(&offsets),
            include_last_offset,
            mode: ops::ScatterReduceOp::Sum,
            ..Default::default()
        };
        ops::embedding_bag(&table, &index, options)
    };
    for wrong in [&[1, 2][..], &[0, 3, 2], &[0, 5], &[-1, 2], &[0, i64::MAX]] {
        assert!(rejected("embedding_bag", bags(wrong, false)).contains("offsets"));
    }
    rejected("embedding_bag", bags(&[], true));
    assert_eq!(bags(&[0, 2, 2], false).unwrap().to_vec::<f32>(), [11.0, 0.0, 110.0]);
    assert_eq!(bags(&[0, 4], false).unwrap().to_vec::<f32>(), [121.0, 0.0]);
    // Indices after the last offset belong to no bag.
    assert_eq!(bags(&[0, 1, 3], true).unwrap().to_vec::<f32>(), [1.0, 110.0]);
    for padding_index in [3, -4, isize::MAX, isize::MIN] {
        let options = EmbeddingBagOptions { padding_index: Some(padding_index), ..Default::default() };
        rejected("embedding_bag", ops::embedding_bag(&table, &index.unsqueeze(0), options));
    }
}

/// Computes the CTC loss of four steps of three equally likely classes.
fn ctc(targets: &Tensor, steps: i64, labels: i64) -> Result<f64> {
    let x = Tensor::full([4, 1, 3], (1.0f64 / 3.0).ln(), DType::F64);
    let options = CtcLossOptions { reduction: Reduction::Sum, ..Default::default() };
    ops::ctc_loss(&x, targets, &Tensor::from([steps]), &Tensor::from([labels]), options).map(|loss| loss.item())
}

#[test]
fn lengths_of_sequences() {
    let padded = Tensor::from([[1i64, 2]]);
    for steps in [-1, 5, i64::MAX, i64::MIN] {
        assert!(rejected("ctc_loss", ctc(&padded, steps, 2)).contains("input lengths"));
    }
    for labels in [-1, 3, i64::MAX, i64::MIN] {
        assert!(rejected("ctc_loss", ctc(&padded, 4, labels)).contains("label lengths"));
        rejected("ctc_loss", ctc(&Tensor::from([1i64, 2]), 4, labels));
    }
    for wrong in [3, -1, i64::MAX] {
        rejected("ctc_loss", ctc(&Tensor::from([[1, wrong]]), 4, 2));
        // Values after the labels are ignored.
        assert!(ctc(&Tensor::from([[1, wrong]]), 4, 1).unwrap().is_finite());
    }
    // Zero steps have only the empty labelling.
    assert_eq!(ctc(&padded, 0, 0).unwrap(), 0.0);
    assert_eq!(ctc(&padded, 0, 1).unwrap(), f64::INFINITY);
    // With one step, a label has probability 1/3.
    assert!((ctc(&padded, 1, 1).unwrap() - 3f64.ln()).abs() < 1e-12);
    let (x, valid) = (Tensor::full([4, 1, 3], (1.0f64 / 3.0).ln(), DType::F64), Tensor::from([2i64]));
    let loss = |steps: &Tensor, labels: &Tensor| ops::ctc_loss(&x, &padded, steps, labels, Default::default());
    for wrong in [-1i64, 5, i64::MAX, i64::MIN] {
        assert_nan_where_not_read("ctc_loss", &Tensor::from([wrong]), &valid, |steps| loss(steps, &valid));
        assert_nan_where_not_read("ctc_loss", &Tensor::from([wrong]), &valid, |labels| loss(&valid, labels));
    }
}

#[test]
fn orders_and_bounds() {
    let x = Tensor::from([[1.0, 2.0], [3.0, 5.0]]);
    for p in [-1.0, f64::NAN] {
        rejected("cdist", ops::cdist(&x, &x, p));
        rejected("pdist", ops::pdist(&x, p));
        rejected("renorm", ops::renorm(&x, p, 0, 1.0));
        let options = MultiMarginLossOptions { p, ..Default::default() };
        rejected("multi_margin_loss", ops::multi_margin_loss(&x, &Tensor::from([0i64, 1]), options));
    }
    rejected("renorm", ops::renorm(&x, 2.0, 0, f64::NAN));
    rejected("softshrink", ops::softshrink(&x, f64::NAN));
    let image = x.reshape([1, 1, 2, 2]);
    for number in [0.0, f64::NAN, f64::INFINITY] {
        rejected("avg_pool2d", ops::avg_pool2d(&image, PoolOptions::new(2), ops::AvgPoolDivisor::Number(number)));
    }
    rejected("lp_pool2d", ops::lp_pool2d(&image, f64::NAN, PoolOptions::new(2)));
    let positions = Tensor::from([[[[-1i64]]]]);
    rejected("max_unpool2d", ops::max_unpool2d(&Tensor::from([[[[1.0]]]]), &positions, &[2, 2]));
}

#[test]
fn bins_and_weights_of_observations() {
    let x = Tensor::from([1.0, 2.0, 3.0]);
    let edges = Tensor::from([0.0, 2.0, 1.0]);
    rejected("histogram", ops::histogram(&x, Bins::Edges(&edges), None, false));
    for bad in [f64::NAN, f64::INFINITY] {
        let x = Tensor::from([1.0, bad]);
        rejected("histogram", ops::histogram(&x, Bins::Count(3), None, false));
        rejected("histc", ops::histc(&x, 3, 0.0, 0.0));
        // With explicit bounds, non-finite elements are not counted.
        let (counts, _) = ops::histogram(&x, Bins::Between(2, 0.0, 2.0), None, false).unwrap();
        assert_eq!(counts.to_vec::<f64>(), [0.0, 1.0]);
    }
    let (weights, frequencies) = (Tensor::from([1.0, -1.0, 1.0]), Tensor::from([1i64, -1, 1]));
    rejected("cov", ops::cov(&x, CovOptions { weights: Some(&weights), ..Default::default() }));
    rejected("cov", ops::cov(&x, CovOptions { frequencies: Some(&frequencies), ..Default::default() }));
}

/// A length beyond `isize::MAX` must not become a negative number with another meaning.
#[test]
fn lengths_beyond_isize_max() {
    let x = Tensor::from([1.0, 2.0, 3.0]);
    assert!(matches!(ops::reshape(&x, [usize::MAX]), Err(Error::ShapeMismatch { .. })));
    assert!(ops::expand(&x, [usize::MAX]).is_err());
    assert!(ops::eye(usize::MAX, 1, DType::F32).is_err());
    assert!(ops::one_hot(&Tensor::from([0i64]), usize::MAX).is_err());
    assert!(ops::unravel_index(&Tensor::from([0i64]), [usize::MAX]).is_err());
    assert_eq!(x.i(usize::MAX..).size(), 0);
    assert_eq!(x.i(..usize::MAX).size(), 3);
    assert_eq!(x.i(0..=usize::MAX).size(), 3);
    assert_eq!(x.i(slice(None, None, isize::MAX)).to_vec::<f64>(), [1.0]);
    let m = x.unsqueeze(0).broadcast_to([3, 3]);
    assert_eq!(m.tril(isize::MAX).to_vec::<f64>(), m.to_vec::<f64>());
    assert_eq!(m.triu(isize::MIN).to_vec::<f64>(), m.to_vec::<f64>());
    assert_eq!(m.tril(isize::MIN).to_vec::<f64>(), [0.0; 9]);
    assert_eq!(m.triu(isize::MAX).to_vec::<f64>(), [0.0; 9]);
}

/// A product of more than 64 factors.
#[test]
fn a_product_of_many_factors() {
    let x = Tensor::from([2.0, 0.5]);
    let y = ops::einsum(&["i"; 70].join(","), &[&x; 70]).unwrap();
    assert_eq!(y.item::<f64>(), 2f64.powi(70) + 0.5f64.powi(70));
}

/// Operations read no values while a step is recorded.
#[test]
fn values_are_not_read_in_a_captured_step() {
    let p = Tensor::from([0.0, 1.0]);
    let offsets = Tensor::from([0i64, 1]);
    let step = |inputs: &[Tensor]| {
        let drawn = ops::bernoulli(&inputs[0]).unwrap() + ops::normal(&inputs[0], &inputs[0]).unwrap() * 0.0;
        let index = Tensor::from([0i64, 1]);
        let options = EmbeddingBagOptions { offsets: Some(&offsets), ..Default::default() };
        let bags = ops::embedding_bag(&drawn.unsqueeze(1), &index, options).unwrap();
        let picked = ops::multinomial(&inputs[0], 1, true).unwrap();
        (bags, picked)
    };
    let mut captured = capture(step, &[&p]).unwrap();
    let outputs = captured.launch(&[&p]).unwrap();
    assert_eq!((outputs.to_vec::<f64>(0), outputs.to_vec::<i64>(1)), (vec![0.0, 1.0], vec![1]));
    let error = outputs.try_to_tensor(3).unwrap_err().to_string();
    assert!(error.contains("no output 3") && error.contains("2"), "{error}");
}

/// Values that an eager call rejects make the results and gradients of a captured step NaN.
#[test]
fn invalid_values_make_a_captured_step_nan() {
    let good = Tensor::from([0.25, 1.0]);
    let mut captured = capture(|inputs| ops::bernoulli(&inputs[0]).unwrap(), &[&good]).unwrap();
    for wrong in [2.0, -0.5, f64::NAN] {
        let drawn = captured.launch(&[&Tensor::from([wrong, 1.0])]).unwrap().to_vec::<f64>(0);
        assert!(drawn[0].is_nan() && drawn[1] == 1.0, "{drawn:?}");
    }

    let leaf = Tensor::from([0.25, 1.0]).requires_grad_(true);
    leaf.set_grad(Some(Tensor::from([0.0, 0.0])));
    let step = |inputs: &[Tensor]| {
        leaf.zero_grad();
        let y = ops::normal(&inputs[0], &(&inputs[0] * &leaf)).unwrap();
        y.sum(..).backward();
        y
    };
    let mut captured = capture(step, &[&good]).unwrap();
    let drawn = captured.launch(&[&Tensor::from([-1.0, 1.0])]).unwrap().to_vec::<f64>(0);
    assert!(drawn[0].is_nan() && drawn[1].is_finite(), "{drawn:?}");
    let gradient = leaf.grad().unwrap().to_vec::<f64>();
    assert!(gradient[0].is_nan() && gradient[1].is_finite(), "{gradient:?}");

    let probability = Tensor::from([0.25, 0.5]).requires_grad_(true);
    probability.set_grad(Some(Tensor::from([0.0, 0.0])));
    let step = |inputs: &[Tensor]| {
        probability.zero_grad();
        let loss = ops::binary_cross_entropy(&probability, &inputs[0], None, ops::Reduction::None).unwrap();
        loss.sum(..).backward();
        loss
    };
    let mut captured = capture(step, &[&good]).unwrap();
    for wrong in [1.5, -0.5, f64::NAN] {
        let loss = captured.launch(&[&Tensor::from([wrong, 1.0])]).unwrap().to_vec::<f64>(0);
        let gradient = probability.grad().unwrap().to_vec::<f64>();
        assert!(loss[0].is_nan() && loss[1].is_finite(), "{wrong}: {loss:?}");
        assert!(gradient[0].is_nan() && gradient[1].is_finite(), "{wrong}: {gradient:?}");
    }

    for replacement in [true, false] {
        let draw = |inputs: &[Tensor]| ops::multinomial(&inputs[0], 1, replacement).unwrap();
        let mut captured = capture(draw, &[&Tensor::from([[1.0, 1.0], [0.0, 1.0]])]).unwrap();
        for wrong in [[0.0, 0.0], [-1.0, 3.0], [f64::NAN, 1.0], [f64::INFINITY, 1.0], [f64::MAX, f64::MAX]] {
            let launched = captured.launch(&[&Tensor::from([wrong, [0.0, 1.0]])]).map(|outputs| outputs.len());
            assert!(matches!(launched, Err(Error::IndexOutOfBounds { .. })), "the weights {wrong:?} must be rejected");
        }
        let drawn = captured.launch(&[&Tensor::from([[1.0, 0.0], [0.0, 1.0]])]).unwrap().to_vec::<i64>(0);
        assert_eq!(drawn, [0, 1], "valid weights after rejected ones");
    }

    let table = Tensor::from([[1.0], [10.0], [100.0]]).requires_grad_(true);
    table.set_grad(Some(Tensor::zeros([3, 1], DType::F64)));
    let bags = |inputs: &[Tensor]| {
        table.zero_grad();
        let options =
            EmbeddingBagOptions { offsets: Some(&inputs[0]), mode: ops::ScatterReduceOp::Sum, ..Default::default() };
        let bags = ops::embedding_bag(&table, &Tensor::from([0i64, 1, 2, 1]), options).unwrap();
        bags.sum(..).backward();
        bags
    };
    let mut captured = capture(bags, &[&Tensor::from([0i64, 2, 2])]).unwrap();
    for wrong in [[1i64, 2, 3], [0, 3, 2], [0, 1, 5], [-1, 2, 3], [0, 0, i64::MAX]] {
        let values = captured.launch(&[&Tensor::from(wrong)]).unwrap().to_vec::<f64>(0);
        assert!(values.iter().all(|v| v.is_nan()), "{wrong:?}: all values must be NaN, got {values:?}");
        let gradient = table.grad().unwrap().to_vec::<f64>();
        assert!(gradient.iter().all(|g| g.is_nan()), "{wrong:?}: the full gradient must be NaN, got {gradient:?}");
    }
    assert_eq!(captured.launch(&[&Tensor::from([0i64, 2, 2])]).unwrap().to_vec::<f64>(0), [11.0, 0.0, 110.0]);
    assert_eq!(table.grad().unwrap().to_vec::<f64>(), [1.0, 2.0, 1.0]);
}

/// The error of a deferred or captured step equals the error of the call: it has the index of the caller, and names the
/// operation instead of one of its parts.
#[test]
fn a_wrong_index_is_named_in_every_mode() {
    type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;
    // x is [4, 2], the index [2].
    let calls: [(&str, Call); 18] = [
        ("embedding", |x, i| ops::embedding(x, i, Default::default())),
        ("embedding_bag", |x, i| ops::embedding_bag(x, &i.unsqueeze(0), Default::default())),
        ("index_select", |x, i| ops::index_select(x, 0, i)),
        ("take", |x, i| ops::take(&x.i((.., 0)), i)),
        ("take_along_axis", |x, i| ops::take_along_axis(&x.i((.., 0)), i, 0)),
        ("index", |x, i| x.try_i(i)),
        ("set", |x, i| {
            let y = x.copy();
            y.try_set(i, 5.0).map(|()| y)
        }),
        ("put", |x, i| ops::put(&x.i((.., 0)), i, &x.i((..2, 0)), false)),
        ("index_put", |x, i| ops::index_put(x, i, &x.i(0), true)),
        ("index_add", |x, i| ops::index_add(x, 0, i, &x.i(..2), 1.0)),
        ("index_copy", |x, i| ops::index_copy(x, 0, i, &x.i(..2))),
        ("index_fill", |x, i| ops::index_fill(x, 0, i, 3.0)),
        ("scatter", |x, i| ops::scatter(&x.i((.., 0)), 0, i, &x.i((..2, 0)))),
        ("scatter_add", |x, i| ops::scatter_add(&x.i((.., 0)), 0, i, &x.i((..2, 0)))),
        ("scatter_add_along", |x, i| ops::scatter_add_along(&x.i((..2, 0)), i, 0, 4)),
        ("scatter_reduce", |x, i| {
            ops::scatter_reduce(&x.i((.., 0)), 0, i, &x.i((..2, 0)), ops::ScatterReduceOp::Max, true)
        }),
        ("max_unpool1d", |x, i| ops::max_unpool1d(&x.i((..2, 0)).reshape([1, 1, 2]), &i.reshape([1, 1, 2]), &[4])),
        ("max_unpool2d", |x, i| {
            ops::max_unpool2d(&x.i((..2, 0)).reshape([1, 1, 1, 2]), &i.reshape([1, 1, 1, 2]), &[2, 2])
        }),
    ];
    let (x, good) = (Tensor::ones([4, 2], DType::F32), Tensor::from([0i64, 1]));
    for (op, call) in calls {
        // These operations count no negative index from the end.
        let from_start = op.starts_with("embedding") || op.starts_with("max_unpool");
        for bad in [4i64, if from_start { -1 } else { -5 }, i64::MIN] {
            let index = Tensor::from([0i64, bad]);
            let expected = call(&x, &index).expect_err("the index is out of bounds").to_string();
            assert!(expected.starts_with(&format!("{op}: index {bad} is out of bounds")), "{expected}");
            let read = |y: Tensor| y.try_to_vec::<f32>();
            let deferred = lazy(|| call(&x, &index).and_then(read)).unwrap_err().to_string();
            assert_eq!(deferred, expected);
            // The operation whose call runs the kernel does not replace the name in its error.
            let y = lazy(|| call(&x, &index)).unwrap();
            assert_eq!(ops::exp(&y).and_then(read).unwrap_err().to_string(), expected, "{op} before exp");
            let mut step = capture(|inputs| call(&x, &inputs[0]), &[&good]).unwrap();
            assert_eq!(step.launch(&[&index]).expect_err("the launch must fail").to_string(), expected);
        }
        assert!(call(&x, &good).is_ok(), "{op}");
    }
}

/// A step whose gradient alone needs the index names the operation of the forward pass.
#[test]
fn the_kernel_of_a_gradient_names_the_operation_of_the_forward_pass() {
    let x = Tensor::ones([3, 2], DType::F32).requires_grad_(true);
    let index = Tensor::from([0i64, 7]);
    let step = |_: &[Tensor]| {
        let y = ops::embedding(&x, &index, Default::default()).unwrap();
        pellucid_tensor::grad_one(&y.sum(..), &x, Default::default()).unwrap()
    };
    let error = capture(step, &[]).and_then(|mut step| step.launch(&[]).map(drop)).unwrap_err().to_string();
    assert!(error.starts_with("embedding: index 7 is out of bounds"), "{error}");
}

#[test]
fn invalid_probabilities_of_a_quantile_are_nan_where_they_are_not_known() {
    let x = Tensor::from([1.0, 2.0, 4.0, 8.0]);
    for interpolation in [ops::QuantileInterpolation::Linear, ops::QuantileInterpolation::Lower] {
        for nan in [false, true] {
            let quantile = |q: &Tensor| match nan {
                true => ops::nanquantile(&x, q, 0, interpolation),
                false => ops::quantile(&x, q, 0, interpolation),
            };
            let valid = Tensor::from([0.0, 1.0, 0.5]);
            let mut step = capture(|inputs| quantile(&inputs[0]), &[&valid]).unwrap();
            for wrong in [-0.1, -1.0, 1.2, f64::NAN, f64::INFINITY] {
                let q = Tensor::from([0.0, 1.0, wrong]);
                assert!(quantile(&q).is_err());
                let deferred = lazy(|| quantile(&q).map(|y| y.to_vec::<f64>())).unwrap();
                for y in [deferred, step.launch(&[&q]).unwrap().to_vec::<f64>(0)] {
                    assert_eq!(y[..2], [1.0, 8.0], "{wrong}");
                    assert!(y[2].is_nan(), "{wrong}: {y:?}");
                }
            }
            assert_eq!(step.launch(&[&valid]).unwrap().to_vec::<f64>(0), quantile(&valid).unwrap().to_vec::<f64>());
        }
    }
}

#[test]
fn shapes_are_checked_before_indices() {
    let error = ops::index_put(&Tensor::zeros([3, 2], DType::F32), [9, 1], &Tensor::zeros([2, 5], DType::F32), false);
    assert!(matches!(error, Err(Error::ShapeMismatch { op: "index_put", .. })), "{error:?}");
}

#[test]
fn dtypes_are_checked_before_indices() {
    let (integers, number) = (Tensor::zeros([3, 2], DType::I64), Tensor::zeros([3, 2], DType::F32));
    let (indices, places) = (Tensor::from([0i64, 9]), Tensor::from([[0i64, 9]]));
    let norm = EmbeddingOptions { max_norm: Some((1.0, 2.0)), ..Default::default() };
    let bags = EmbeddingBagOptions { max_norm: Some((1.0, 2.0)), ..Default::default() };
    let results = [
        ("index_put", ops::index_put(&integers, [9, 1], &Tensor::zeros((), DType::F32), false)),
        ("put", ops::put(&integers, &indices, &number.i((..2, 0)), false)),
        ("scatter", ops::scatter(&integers, 0, &places, &number)),
        ("scatter_add", ops::scatter_add(&integers, 0, &places, &number)),
        ("index_add", ops::index_add(&integers, 0, &indices, &number.i(..2), 1)),
        ("index_copy", ops::index_copy(&integers, 0, &indices, &number.i(..2))),
        ("embedding", ops::embedding(&integers, &indices, norm)),
        ("embedding_bag", ops::embedding_bag(&integers, &places, bags)),
        ("select_scatter", ops::select_scatter(&integers, &number.i(0), 0, 1)),
    ];
    for (op, result) in results {
        let error = result.expect_err(op);
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{op}: {error}");
        assert_eq!(error.operation(), Some(op), "{error}");
    }
}

#[test]
fn a_rejected_bag_leaves_the_table_as_it_is() {
    let table = Tensor::from([[3.0, 4.0], [6.0, 8.0]]);
    let options = EmbeddingBagOptions { max_norm: Some((1.0, 2.0)), padding_index: Some(7), ..Default::default() };
    assert!(ops::embedding_bag(&table, &Tensor::from([[0i64, 1]]), options).is_err());
    assert_eq!(table.to_vec::<f64>(), [3.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_mask_without_true_elements_needs_no_source_in_any_mode() {
    let (x, none) = (Tensor::from([1.0, 2.0]), Tensor::zeros([0], DType::F64));
    let (off, on) = (Tensor::from([false, false]), Tensor::from([false, true]));
    let put = |mask: &Tensor| ops::masked_scatter(&x, mask, &none);
    assert_eq!(put(&off).unwrap().to_vec::<f64>(), [1.0, 2.0]);
    assert!(matches!(put(&on), Err(Error::IndexOutOfBounds { op: "masked_scatter", .. })));
    let mut step = capture(|inputs| put(&inputs[0]), &[&off]).unwrap();
    assert_eq!(step.launch(&[&off]).unwrap().to_vec::<f64>(0), [1.0, 2.0]);
    assert!(matches!(step.launch(&[&on]), Err(Error::IndexOutOfBounds { op: "masked_scatter", .. })));
}

#[test]
fn interpolation_between_descending_points_is_nan_where_they_are_not_read() {
    let (points, x) = (Tensor::from([3.0f32, 1.0]), Tensor::from([2.0f32, 9.0]));
    let interp = |points: &Tensor| ops::interp(&x, points, points, Default::default());
    assert!(matches!(interp(&points), Err(Error::InvalidArgument { op: "interp", .. })));
    let all_nan = |y: &Tensor| y.to_vec::<f32>().iter().all(|v| v.is_nan());
    assert!(all_nan(&lazy(|| interp(&points)).unwrap()));
    let ends = ops::InterpOptions { left: Some(0.0), right: Some(1.0), ..Default::default() };
    assert!(all_nan(&lazy(|| ops::interp(&x, &points, &points, ends)).unwrap()));
    let mut step = capture(|inputs| interp(&inputs[0]), &[&points]).unwrap();
    assert!(step.launch(&[&points]).unwrap().to_vec::<f32>(0).iter().all(|v| v.is_nan()));
    let ascending = points.flip(..).copy();
    assert_eq!(step.launch(&[&ascending]).unwrap().to_vec::<f32>(0), [2.0, 3.0]);
}

#[test]
fn counts_beyond_the_address_space_are_not_printed_as_negative_numbers() {
    let x = Tensor::from([1i64]);
    let results = [
        ops::one_hot(&x, usize::MAX),
        ops::vander(&Tensor::from([1.0]), Some(usize::MAX)),
        ops::diag(&Tensor::from([1.0]), isize::MAX),
        ops::diag_embed(&Tensor::from([1.0]), isize::MIN, 0, 1),
        ops::adaptive_avg_pool2d(&Tensor::zeros([1, 1, 4, 4], DType::F32), &[Some(usize::MAX); 2]),
    ];
    for result in results {
        let error = result.expect_err("the size must be rejected");
        assert!(matches!(error, Error::OutOfMemory { .. }) && !error.to_string().contains('-'), "{error}");
    }
}

/// Runs an operation of one tensor in a lazy scope and in a captured step; both results must be NaN. A step that was
/// captured with `valid` has the same result for `wrong`.
#[track_caller]
fn assert_nan_where_not_read(op: &str, wrong: &Tensor, valid: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor> + Sync) {
    let all_nan = |values: Vec<f64>| !values.is_empty() && values.iter().all(|v| v.is_nan());
    rejected(op, f(wrong));
    assert!(all_nan(lazy(|| f(wrong)).unwrap().to_vec()), "{op}: the result of a lazy scope must be NaN");
    let expected = f(valid).unwrap().to_vec::<f64>();
    let mut step = capture(|inputs| f(&inputs[0]), &[valid]).unwrap();
    assert_eq!(step.launch(&[valid]).unwrap().to_vec::<f64>(0), expected, "{op}");
    assert!(all_nan(step.launch(&[wrong]).unwrap().to_vec(0)), "{op}: the result of a captured step must be NaN");
}

#[test]
fn values_that_are_not_read_make_counts_and_covariances_nan() {
    let x = Tensor::from([0.5, 1.5, 2.5]);
    let (edges, wrong) = (Tensor::from([0.0, 1.0, 2.0, 3.0]), Tensor::from([0.0, 2.0, 1.0, 3.0]));
    assert_nan_where_not_read("histogram", &wrong, &edges, |edges| {
        Ok(ops::histogram(&x, Bins::Edges(edges), None, false)?.0)
    });
    assert_nan_where_not_read("histogram2d", &wrong, &edges, |edges| {
        Ok(ops::histogram2d(&x, &x, [Bins::Edges(edges), Bins::Count(2)], None, true)?.0)
    });
    let not_finite = Tensor::from([f64::NAN, 1.0, 2.0]);
    assert_nan_where_not_read("histc", &not_finite, &x, |x| ops::histc(x, 4, 0.0, 0.0));
    assert_nan_where_not_read("histogram", &Tensor::from([1.0, f64::INFINITY, 2.0]), &x, |x| {
        Ok(ops::histogram(x, Bins::Count(4), None, false)?.0)
    });
    let observations = Tensor::from([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]]);
    let weights = (Tensor::from([1.0, -0.5, 2.0]), Tensor::from([1.0, 0.5, 2.0]));
    assert_nan_where_not_read("cov", &weights.0, &weights.1, |weights| {
        ops::cov(&observations, CovOptions { weights: Some(weights), ..Default::default() })
    });
    let counts = (Tensor::from([1i64, -1, 3]), Tensor::from([1i64, 2, 3]));
    assert_nan_where_not_read("cov", &counts.0, &counts.1, |counts| {
        ops::cov(&observations, CovOptions { frequencies: Some(counts), ..Default::default() })
    });
    let message =
        rejected("histogram", ops::histogram(&x, Bins::Edges(&Tensor::from([0.0, 1e-300, 0.5, 0.1])), None, false));
    assert!(message.contains("edges must ascend, got 0.5 before 0.1 at position 2"), "{message}");
}

/// The order of points is compared by value: differences of bytes wrap, and a NaN does not hide a descent.
#[test]
fn descending_points_of_every_dtype_are_rejected() {
    let (x, values) = (Tensor::from([0.0, 1.0]), Tensor::from([10.0, 20.0, 30.0]));
    let interp = |points: &Tensor| ops::interp(&x, points, &values, Default::default());
    for points in [
        Tensor::from([2u8, 0, 1]),
        Tensor::from([2i64, 0, 1]),
        Tensor::from([true, false, true]),
        Tensor::from([f64::NAN, 0.5, -1.0]),
    ] {
        assert!(rejected("interp", interp(&points)).contains("points must ascend"), "{points}");
    }
    // A repeated point has its last value, even at both ends.
    assert_eq!(interp(&Tensor::from([0u8, 1, 1])).unwrap().to_vec::<f64>(), [10.0, 30.0]);
    assert_eq!(interp(&Tensor::from([1.0, 1.0, 2.0])).unwrap().to_vec::<f64>(), [10.0, 20.0]);
    assert!(
        ops::interp(&Tensor::from([f64::NAN]), &Tensor::from([1.0; 3]), &values, Default::default())
            .unwrap()
            .item::<f64>()
            .is_nan()
    );
}

#[test]
fn distances_of_integers_do_not_wrap() {
    let close = |a: Tensor, b: Tensor, rtol, atol| {
        let both = [ops::isclose(&a, &b, rtol, atol, false), ops::isclose(&b, &a, rtol, atol, false)];
        both.map(|y| y.unwrap().item::<bool>())
    };
    assert_eq!(close(Tensor::from([5u8]), Tensor::from([7u8]), 0.0, 3.0), [true; 2]);
    assert_eq!(close(Tensor::from([100i8]), Tensor::from([-100i8]), 0.0, 60.0), [false; 2]);
    assert_eq!(close(Tensor::from([i64::MAX]), Tensor::from([i64::MIN]), 0.0, 5.0), [false; 2]);
    assert_eq!(close(Tensor::from([i64::MAX]), Tensor::from([i64::MAX - 1]), 0.0, 0.5), [false; 2]);
    assert_eq!(close(Tensor::from([i64::MIN]), Tensor::from([i64::MAX]), 2.1, 0.0), [true; 2]);
    assert_eq!(close(Tensor::from([true]), Tensor::from([false]), 0.0, 0.5), [false; 2]);
    let all = ops::allclose(&Tensor::from([i32::MAX]), &Tensor::from([i32::MIN]), 0.0, 3.0, false);
    assert!(!all.unwrap().item::<bool>());
    let points = Tensor::from([5u8, 1]);
    let y = Tensor::from([3.0, 1.0]);
    assert_eq!(ops::trapezoid(&y, ops::Spacing::Points(&points), 0).unwrap().item::<f64>(), -8.0);
    assert_eq!(ops::gradient(&y, ops::Spacing::Points(&points), 0, 1).unwrap().to_vec::<f64>(), [0.5, 0.5]);
    let bytes = Tensor::from([200u8, 100]);
    assert_eq!(ops::trapezoid(&bytes, ops::Spacing::Step(1.0), 0).unwrap().item::<f64>(), 150.0);
}
