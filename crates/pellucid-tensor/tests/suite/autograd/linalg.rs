//! Gradients of linear algebra in closed form.

use crate::support::assert_close;
use pellucid_tensor::ops::{self, Cutoff, MatrixNorm, QrMode};
use pellucid_tensor::{DType, GradCheckOptions, GradOptions, Tensor, grad, gradcheck, gradgradcheck};

/// Returns a matrix that is neither symmetric nor near the identity, and its inverse.
fn matrix() -> (Tensor, [f64; 4]) {
    // det = 2·3 − 1·(−4) = 10.
    (Tensor::from([[2.0, 1.0], [-4.0, 3.0]]).requires_grad_(true), [0.3, -0.1, 0.4, 0.2])
}

fn symmetric() -> Tensor {
    Tensor::from([[4.0, 2.0], [2.0, 5.0]]).requires_grad_(true)
}

/// Returns the gradient of the scalar y with respect to x.
#[track_caller]
fn slope(y: &Tensor, x: &Tensor) -> Tensor {
    grad(&[y], &[x], GradOptions { retain_graph: true, ..Default::default() })
        .expect("the tensor must have a gradient")
        .remove(0)
}

#[test]
fn gradient_of_det_is_the_cofactor_matrix() {
    let (x, _) = matrix();
    assert_close(&slope(&x.det(), &x), &[3.0, 4.0, -1.0, 2.0]);
}

#[test]
fn gradient_of_det_of_a_singular_matrix() {
    let x = Tensor::from([[1.0, 2.0], [2.0, 4.0]]).requires_grad_(true);
    assert_close(&slope(&x.det(), &x), &[4.0, -2.0, -2.0, 1.0]);
}

#[test]
fn gradient_of_logdet_and_slogdet_is_the_transposed_inverse() {
    let (x, [a, b, c, d]) = matrix();
    assert_close(&slope(&x.logdet(), &x), &[a, c, b, d]);
    assert_close(&slope(&x.slogdet().1, &x), &[a, c, b, d]);
}

#[test]
fn gradient_of_inv_is_minus_column_sums_times_row_sums() {
    // ∂ Σ X⁻¹ / ∂xᵢⱼ = −(column sum i of X⁻¹)·(row sum j of X⁻¹).
    let (x, [a, b, c, d]) = matrix();
    let (columns, rows) = ([a + c, b + d], [a + b, c + d]);
    let expected = [columns[0] * rows[0], columns[0] * rows[1], columns[1] * rows[0], columns[1] * rows[1]].map(|g| -g);
    assert_close(&slope(&x.inv().sum(..), &x), &expected);
    assert_close(&slope(&x.pinv(&Cutoff::default()).sum(..), &x), &expected);
    assert_close(&slope(&x.matrix_power(-1).sum(..), &x), &expected);
}

#[test]
fn gradient_of_a_symmetric_pseudo_inverse_reads_the_lower_triangle_only() {
    let weights = [[[1.0, -2.0], [0.5, 3.0]], [[0.25, 4.0], [-1.0, 2.0]]].map(Tensor::from);
    // The last matrix has rank 1.
    for [a, b, c] in [[2.0, 1.0, 3.0], [1.0, 2.0, 4.0]] {
        let derivatives = |x: Tensor, f: &dyn Fn(&Tensor) -> Tensor| {
            let x = x.requires_grad_(true);
            let options = || GradOptions { create_graph: true, ..Default::default() };
            let first = grad(&[&(f(&x) * &weights[0]).sum(..)], &[&x], options()).unwrap().remove(0);
            let second = grad(&[&(&first * &weights[1]).sum(..)], &[&x], options()).unwrap().remove(0);
            [first, second].map(|t| t.to_vec::<f64>())
        };
        let full = Tensor::from([[a, b], [b, c]]);
        let [first, second] = derivatives(full, &|x| ((x + x.t()) * 0.5).pinv(&Cutoff::default()));
        let lower = Tensor::from([[a, f64::NAN], [b, c]]);
        let symmetric = Cutoff { hermitian: true, ..Cutoff::default() };
        let found = derivatives(lower, &|x| x.pinv(&symmetric));
        assert_close(&Tensor::from(found[0].clone()), &first);
        assert_close(&Tensor::from(found[1].clone()), &second);
    }
}

#[test]
fn gradient_of_solve_equals_that_of_the_inverse_times_the_right_side() {
    let (x, [a, b, c, d]) = matrix();
    let right = Tensor::from([1.0, 1.0]).requires_grad_(true);
    let by_right = [a + c, b + d];
    let solution = [a + b, c + d];
    let by_x =
        [by_right[0] * solution[0], by_right[0] * solution[1], by_right[1] * solution[0], by_right[1] * solution[1]];
    for y in [x.solve(&right, true), x.lstsq(&right, None).solution, {
        let (packed, pivots) = x.lu_factor();
        packed.lu_solve(&pivots, &right.unsqueeze(1), true, false)
    }] {
        assert_close(&slope(&y.sum(..), &x), &by_x.map(|g| -g));
        assert_close(&slope(&y.sum(..), &right), &by_right);
    }
}

#[test]
fn gradient_of_solve_triangular_is_zero_in_the_other_triangle() {
    let x = Tensor::from([[2.0, 7.0], [1.0, 4.0]]).requires_grad_(true);
    let y = x.solve_triangular(&Tensor::from([[2.0], [5.0]]), false, true, false);
    // y = (1, (5 − y₀)/4), and its sum is differentiated with respect to the lower triangle.
    assert_close(&slope(&y.sum(..), &x), &[-0.375, 0.0, -0.25, -0.25]);
}

#[test]
fn gradient_of_squared_eigenvalues_is_twice_the_matrix() {
    // Σ wᵢ² = tr X² has the gradient 2·X.
    let x = symmetric();
    let expected = [8.0, 4.0, 4.0, 10.0];
    assert_close(&slope(&x.eigvalsh(false).square().sum(..), &x), &expected);
    let (w, v) = x.eigh(false);
    let again = (&v * &w).matmul(&v.t());
    assert_close(&slope(&(&again * &again).sum(..), &x), &expected);
}

#[test]
fn gradient_of_squared_singular_values_is_twice_the_matrix() {
    let (x, _) = matrix();
    let expected = [4.0, 2.0, -8.0, 6.0];
    assert_close(&slope(&x.svdvals().square().sum(..), &x), &expected);
    let (u, s, vt) = x.svd(false);
    let again = u.matmul(&(s.unsqueeze(1) * vt));
    assert_close(&slope(&(&again * &again).sum(..), &x), &expected);
}

#[test]
fn gradient_of_squared_factors_equals_that_of_the_product() {
    // Σ Lᵢⱼ² = tr X, and Σ Rᵢⱼ² = Σ Xᵢⱼ².
    let x = symmetric();
    assert_close(&slope(&x.cholesky(false).square().sum(..), &x), &[1.0, 0.0, 0.0, 1.0]);
    let (x, _) = matrix();
    let (q, r) = x.qr(QrMode::Reduced);
    assert_close(&slope(&r.square().sum(..), &x), &[4.0, 2.0, -8.0, 6.0]);
    assert_close(&slope(&q.square().sum(..), &x), &[0.0; 4]);
}

#[test]
fn gradient_of_lu_agrees_with_its_elements() {
    // No rows are exchanged: −4 is the pivot of the first column, so L = 2/−4 and U = (−4, 3; 0, 1 + 3/2).
    let (x, _) = matrix();
    let (_, l, u) = x.lu();
    assert_close(&slope(&l.sum(..), &x), &[-0.25, 0.0, -0.125, 0.0]);
    assert_close(&slope(&u.select(0, 1).select(0, 1), &x), &[0.75, 1.0, 0.375, 0.5]);
}

#[test]
fn gradient_of_the_trace_of_the_exponential_is_the_transposed_exponential() {
    let (x, _) = matrix();
    let y = x.matrix_exp();
    let expected = y.t().to_vec::<f64>();
    let got = slope(&y.trace(), &x);
    assert_close(&(got / expected[0].abs()), &expected.iter().map(|e| e / expected[0].abs()).collect::<Vec<_>>());
}

#[test]
fn gradient_of_a_norm_has_dual_norm_one() {
    let x = Tensor::from([[3.0, 0.0], [0.0, -4.0]]).requires_grad_(true);
    for (order, expected) in [
        (MatrixNorm::Frobenius, [0.6, 0.0, 0.0, -0.8]),
        (MatrixNorm::Nuclear, [1.0, 0.0, 0.0, -1.0]),
        (MatrixNorm::Order(2.0), [0.0, 0.0, 0.0, -1.0]),
        (MatrixNorm::Order(-2.0), [1.0, 0.0, 0.0, 0.0]),
        (MatrixNorm::Order(1.0), [0.0, 0.0, 0.0, -1.0]),
        (MatrixNorm::Order(f64::NEG_INFINITY), [1.0, 0.0, 0.0, 0.0]),
    ] {
        assert_close(&slope(&x.matrix_norm(order, [0, 1], false), &x), &expected);
    }
    // 4/3, for both singular values.
    assert_close(&slope(&x.cond(2), &x), &[-4.0 / 9.0, 0.0, 0.0, -1.0 / 3.0]);
}

#[test]
fn gradient_of_multi_dot_is_the_product_of_the_other_factors() {
    let (a, b) = (Tensor::from([[1.0, 2.0]]), Tensor::from([[5.0], [7.0]]));
    let (x, _) = matrix();
    let y = ops::multi_dot(&[&a, &x, &b]).unwrap();
    assert_close(&slope(&y.sum(..), &x), &[5.0, 7.0, 10.0, 14.0]);
}

/// Returns the identity, 4·I, and a matrix with the eigenvalues 1, 3, 3.
fn equal_eigenvalues() -> Tensor {
    let scaled = |x: f64| [[x, 0.0, 0.0], [0.0, x, 0.0], [0.0, 0.0, x]];
    Tensor::from([scaled(1.0), scaled(4.0), [[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]])
}

fn weights() -> Tensor {
    Tensor::from([[0.3, 0.7, -0.2], [0.7, 1.1, 0.5], [-0.2, 0.5, -0.9]])
}

#[test]
fn gradient_of_the_square_root_at_equal_eigenvalues() {
    let x = equal_eigenvalues().requires_grad_(true);
    let g = slope(&(x.matrix_sqrth() * weights()).sum(..), &x);
    let w = weights();
    assert_close(&g.select(0, 0), &(&w * 0.5).to_vec::<f64>());
    assert_close(&g.select(0, 1), &(&w * 0.25).to_vec::<f64>());
    // X = √A has the eigenvectors (1, ±1, 0)/√2 of √3 and 1, and e₃ of √3; a₀₂ pairs e₃ with both.
    let root = 3f64.sqrt();
    let (same, mixed) = (0.5 / root, 1.0 / (1.0 + root));
    let (sum, difference) = (0.5 * (-0.2 + 0.5) * same, 0.5 * (-0.2 - 0.5) * mixed);
    assert_close(&g.select(0, 2).select(0, 0).select(0, 2), &[sum + difference]);

    let single = equal_eigenvalues().to_dtype(DType::F32).requires_grad_(true);
    let g32 = slope(&(single.matrix_sqrth() * weights().to_dtype(DType::F32)).sum(..), &single);
    crate::support::assert_within(&g32, &g.to_vec::<f64>(), 1e-6);
}

#[test]
fn derivatives_of_square_roots_and_polar_factors_at_equal_values() {
    let check = GradCheckOptions::default();
    let root =
        |x: &[Tensor]| Ok(vec![ops::matrix_sqrth(&ops::mul(ops::add(&x[0], ops::transpose(&x[0], -2, -1)?)?, 0.5)?)?]);
    let polar = |x: &[Tensor]| ops::polar(&x[0]).map(|(q, h)| vec![q, h]);
    let square = equal_eigenvalues().requires_grad_(true);
    let tall = Tensor::from([[[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]], [[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]]]);
    let tall = tall.requires_grad_(true);
    gradcheck(root, &[&square], check).unwrap();
    gradgradcheck(root, &[&square], check).unwrap();
    for x in [square, tall] {
        gradcheck(polar, &[&x], check).unwrap();
        gradgradcheck(polar, &[&x], check).unwrap();
    }
}

#[test]
fn pairs_of_zero_eigenvalues_contribute_nothing() {
    let x = Tensor::from([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).requires_grad_(true);
    let ones = Tensor::full([3, 3], 1.0, DType::F64);
    let kept = [0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    assert_close(&slope(&(x.matrix_sqrth() * &ones).sum(..), &x), &kept);
    let zero = Tensor::zeros([3, 2], DType::F64).requires_grad_(true);
    let (q, _) = zero.polar();
    assert_close(&slope(&q.sum(..), &zero), &[0.0; 6]);
}

/// A matrix that broadcasts with a batch of bounds gets the sum of the gradients.
#[test]
fn bounds_of_a_batch_have_gradients_of_one_matrix() {
    let a = Tensor::from([[3.0, 0.0], [0.0, 0.1]]).requires_grad_(true);
    let cutoff = |atol: Tensor| Cutoff { atol: Some(atol), ..Cutoff::default() };
    let batch = ops::pinv(&a, &cutoff(Tensor::from([0.01, 0.5]))).unwrap();
    assert_eq!(batch.shape().dims(), [2, 2, 2]);
    let parts = [0.01, 0.5].map(|bound| ops::pinv(&a, &cutoff(Tensor::from(bound))).unwrap());
    let weight = Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
    let expected = parts.iter().map(|y| (y * &weight).sum(..)).reduce(|a, b| a + b).unwrap();
    let total = (&batch * &weight).sum(..);
    assert_close(&slope(&total, &a), &slope(&expected, &a).to_vec::<f64>());
    let error =
        ops::pinv(&a, &Cutoff { rtol: Some(Tensor::zeros([3], DType::F64)), ..cutoff(Tensor::from([0.1, 0.2])) });
    assert!(error.unwrap_err().to_string().contains("atol and rtol must broadcast"));
}
