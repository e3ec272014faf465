//! The order in which elementwise operations store their results.

use pellucid_tensor::{DType, GradOptions, Tensor, capture, grad_one, ops};

/// Returns a tensor of this shape with distinct elements, some of them negative.
fn sample(shape: &[usize]) -> Tensor {
    let size: usize = shape.iter().product();
    Tensor::arange(0, size as i64, 1).to_dtype(DType::F32).mul(0.37).sub(3.0).sin().mul(4.0).reshape(shape)
}

/// Asserts that two tensors have the same shape and bits.
fn assert_same_bits(x: &Tensor, y: &Tensor, context: &str) {
    assert_eq!(x.shape(), y.shape(), "{context}");
    let bits = |x: &Tensor| x.to_vec::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(x), bits(y), "{context}");
}

#[test]
fn a_map_keeps_the_order_of_its_inputs() {
    let x = sample(&[5, 3, 4]);
    for order in [[1, 0, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0]] {
        let view = x.permute(order);
        // The memory of a result is contiguous in the order of x.
        let mut inverse = [0isize; 3];
        order.iter().enumerate().for_each(|(at, &axis)| inverse[axis as usize] = at as isize);
        let is_kept = |y: Tensor| y.permute(inverse).is_contiguous() && !y.is_contiguous();
        assert!(is_kept(view.exp()), "{order:?}");
        assert!(is_kept(&view * &view), "{order:?}");
        assert!(is_kept(&view + 1.0), "{order:?}");
        let row = sample(&[view.shape()[2]]);
        assert!(is_kept(&view * &row), "{order:?}");
        let dense = view.contiguous();
        assert_same_bits(&(&view * &row).exp(), &(&dense * &row).exp(), &format!("{order:?}"));
        // Operands in different orders, views with gaps and broadcast views give a contiguous result.
        assert!((&view * &dense).is_contiguous() && (&dense * &view).is_contiguous(), "{order:?}");
    }
    assert!(x.i((.., 1, ..)).exp().is_contiguous());
    assert!(sample(&[1, 4]).expand([3, 4]).t().exp().is_contiguous());
    assert!(Tensor::zeros([0, 4], DType::F32).t().exp().is_contiguous());
}

#[test]
fn results_of_several_outputs_and_gradients_have_the_same_bits() {
    let x = sample(&[6, 9]);
    let both = |x: &Tensor| ops::modf(&(x.exp() * x)).unwrap();
    let (fraction, integer) = both(&x.t());
    let (expected_fraction, expected_integer) = both(&x.t().contiguous());
    assert_same_bits(&fraction, &expected_fraction, "fraction");
    assert_same_bits(&integer, &expected_integer, "integer");
    let gradient = |x: &Tensor| {
        let x = x.detach().requires_grad_(true);
        let y = (x.t().sigmoid() * x.t()).sum(..);
        grad_one(&y, &x, GradOptions::default()).unwrap()
    };
    assert_same_bits(&gradient(&x.t()), &gradient(&x.t().contiguous()), "gradient");
}

#[test]
fn captured_steps_have_the_order_and_the_bits_of_eager_ones() {
    let x = sample(&[7, 4]);
    let f = |x: &Tensor| (x.t().exp() + 1.0).ln();
    let eager = f(&x);
    let mut step = capture(|inputs| f(&inputs[0]), &[&x]).unwrap();
    let captured = step.launch(&[&x]).unwrap();
    let captured = captured.tensors()[0].copy();
    assert_same_bits(&captured, &eager, "captured");
    assert!(eager.t().is_contiguous());
}

#[test]
fn reductions_of_transposed_tensors_have_the_bits_of_contiguous_ones() {
    for shape in [[8, 8], [130, 9], [9, 300], [257, 129], [300, 8]] {
        let x = sample(&shape);
        let (view, dense) = (x.t(), x.t().contiguous());
        assert_same_bits(&view.sum(..), &dense.sum(..), &format!("{shape:?}"));
        assert_same_bits(&view.max(..), &dense.max(..), &format!("{shape:?}"));
        assert_same_bits(&view.softmax(1), &dense.softmax(1), &format!("{shape:?}"));
        let half = view.to_dtype(DType::BF16);
        assert_same_bits(
            &half.sum(..).to_dtype(DType::F32),
            &half.contiguous().sum(..).to_dtype(DType::F32),
            &format!("{shape:?}"),
        );
        let (stack, order) = (sample(&[3, shape[0], shape[1]]), [0, 2, 1]);
        assert_same_bits(
            &stack.permute(order).sum([1, 2]),
            &stack.permute(order).contiguous().sum([1, 2]),
            &format!("{shape:?}"),
        );
    }
}

#[test]
fn simple_powers_match_f64() {
    let values: [f64; 9] = [-2.5, -1.0, -0.0, 0.0, 0.3, 1.0, 7.0, f64::INFINITY, f64::NEG_INFINITY];
    for exponent in [2.0, 3.0, -1.0, 0.5] {
        let expected = values.map(|x| x.powf(exponent));
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        for (i, y) in Tensor::from(values).pow(exponent).to_vec::<f64>().into_iter().enumerate() {
            let is_near = (y - expected[i]).abs() <= 1e-15 * expected[i].abs();
            assert!(same(y, expected[i]) || is_near, "{}^{exponent} is {y}, expected {}", values[i], expected[i]);
        }
    }
    // An integer is raised to an integer power as before.
    assert_eq!(Tensor::from([3i64, -4]).pow(2).to_vec::<i64>(), [9, 16]);
    assert_eq!(Tensor::from([3i64, -1]).pow(-1).to_vec::<i64>(), [0, -1]);
}
