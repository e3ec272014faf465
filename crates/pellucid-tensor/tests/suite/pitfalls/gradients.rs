//! Gradients through shapes, selections and windows.

use super::{gradients, matrix};
use crate::support::{assert_close, leaf, number};
use pellucid_tensor::ops::{
    self, GridSampleMode, GridSamplePadding, InterpolationMode, MeshgridIndexing, PoolOptions, Resize, over,
};
use pellucid_tensor::{DType, GradOptions, Tensor, grad};

#[test]
fn broadcast_along_a_leading_axis() {
    let (a, b) = (leaf([1.0, 2.0, 3.0]), Tensor::from([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]));
    assert_eq!(gradients(&(&a * &b), Tensor::from([[1.0; 3]; 2]), [&a]), [[11.0, 22.0, 33.0]]);
}

#[test]
fn broadcast_along_a_middle_axis() {
    let a = Tensor::from([[[1.0, 2.0]], [[3.0, 4.0]]]).requires_grad_(true);
    let b = Tensor::new(vec![1.0, 2.0, 10.0, 20.0, 100.0, 200.0, 5.0, 6.0, 50.0, 60.0, 500.0, 600.0], [2, 3, 2]);
    let y = &a * &b;
    assert_eq!(y.shape()[..], [2, 3, 2]);
    y.sum(..).backward();
    let gradient = a.grad().unwrap();
    assert_eq!(gradient.shape()[..], [2, 1, 2]);
    assert_eq!(gradient.to_vec::<f64>(), [111.0, 222.0, 555.0, 666.0]);
}

#[test]
fn broadcast_of_both_operands() {
    let (a, b) = (matrix([[1.0], [2.0]]), leaf([3.0, 4.0, 5.0]));
    let weights = Tensor::from([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let [da, db] = gradients(&(&a * &b), weights, [&a, &b]);
    assert_eq!((da, db), (vec![26.0, 62.0], vec![9.0, 12.0, 15.0]));
}

#[test]
fn reductions_over_a_leading_axis() {
    let x = matrix([[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]);
    let weights = || Tensor::from([1.0, 10.0, 100.0]);
    assert_eq!(gradients(&x.sum(0), weights(), [&x]), [[1.0, 10.0, 100.0, 1.0, 10.0, 100.0]]);
    assert_eq!(gradients(&x.mean(0), weights(), [&x]), [[0.5, 5.0, 50.0, 0.5, 5.0, 50.0]]);
    assert_eq!(gradients(&x.max(0), weights(), [&x]), [[0.0, 10.0, 0.0, 1.0, 0.0, 100.0]]);
    assert_eq!(gradients(&x.prod(0), weights(), [&x]), [[4.0, 30.0, 600.0, 1.0, 50.0, 200.0]]);
}

#[test]
fn reductions_over_a_middle_axis() {
    let x = Tensor::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0], [2, 3, 2])
        .requires_grad_(true);
    let weights = || Tensor::from([[3.0, 30.0], [300.0, 3000.0]]);
    let each = |a: f64, b: f64, c: f64, d: f64| vec![a, b, a, b, a, b, c, d, c, d, c, d];
    assert_eq!(gradients(&x.sum(1), weights(), [&x]), [each(3.0, 30.0, 300.0, 3000.0)]);
    assert_eq!(gradients(&x.mean(1), weights(), [&x]), [each(1.0, 10.0, 100.0, 1000.0)]);
    let largest = [[0.0, 0.0, 0.0, 0.0, 3.0, 30.0, 300.0, 3000.0, 0.0, 0.0, 0.0, 0.0]];
    assert_eq!(gradients(&x.max(1), weights(), [&x]), largest);
    let kept = x.sum(over(1).keepdims());
    assert_eq!(kept.shape()[..], [2, 1, 2]);
    assert_eq!(gradients(&kept, weights().reshape([2, 1, 2]), [&x]), [each(3.0, 30.0, 300.0, 3000.0)]);
}

#[test]
fn matmul_of_vectors() {
    let (a, b) = (leaf([1.0, 2.0, 3.0]), leaf([4.0, 5.0, 6.0]));
    let product = a.matmul(&b);
    assert_eq!((product.rank(), product.item::<f64>()), (0, 32.0));
    let [da, db] = gradients(&product, Tensor::from(2.0), [&a, &b]);
    assert_eq!((da, db), (vec![8.0, 10.0, 12.0], vec![2.0, 4.0, 6.0]));
}

#[test]
fn matmul_of_a_matrix_and_a_vector() {
    let (m, v) = (matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), leaf([1.0, 0.0, -1.0]));
    let y = m.matmul(&v);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[2][..], vec![-2.0, -2.0]));
    let [dm, dv] = gradients(&y, Tensor::from([1.0, 10.0]), [&m, &v]);
    assert_eq!((dm, dv), (vec![1.0, 0.0, -1.0, 10.0, 0.0, -10.0], vec![41.0, 52.0, 63.0]));
}

#[test]
fn matmul_of_a_vector_and_a_matrix() {
    let (v, m) = (leaf([1.0, -1.0]), matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]]));
    let y = v.matmul(&m);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[3][..], vec![-3.0, -3.0, -4.0]));
    let [dv, dm] = gradients(&y, Tensor::from([1.0, 10.0, 100.0]), [&v, &m]);
    assert_eq!((dv, dm), (vec![321.0, 754.0], vec![1.0, 10.0, 100.0, -1.0, -10.0, -100.0]));
}

#[test]
fn matmul_of_a_batch_and_a_vector() {
    let x = Tensor::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [2, 2, 2]).requires_grad_(true);
    let v = leaf([1.0, -1.0]);
    let y = x.matmul(&v);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[2, 2][..], vec![-1.0; 4]));
    let [dx, dv] = gradients(&y, Tensor::from([[1.0, 2.0], [3.0, 4.0]]), [&x, &v]);
    assert_eq!((dx, dv), (vec![1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0], vec![50.0, 60.0]));
}

#[test]
fn tile_with_a_tuple() {
    let x = leaf([1.0, 2.0]);
    let y = x.tile([2, 2]);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[2, 4][..], vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]));
    let weights = Tensor::from([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    assert_eq!(gradients(&y, weights, [&x]), [[16.0, 20.0]]);
    let z = matrix([[1.0, 2.0], [3.0, 4.0]]);
    let shorter = z.tile([2]);
    assert_eq!(shorter.to_vec::<f64>(), [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    let weights = Tensor::from([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    assert_eq!(gradients(&shorter, weights, [&z]), [[4.0, 6.0, 12.0, 14.0]]);
}

#[test]
fn var_over_an_axis() {
    let x = matrix([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]]);
    let biased = x.var(1);
    assert_close(&biased, &[14.0 / 9.0, 2.0]);
    biased.backward();
    let slopes = [-8.0 / 9.0, -2.0 / 9.0, 10.0 / 9.0, -2.0 / 3.0, -2.0 / 3.0, 4.0 / 3.0];
    assert_close(&x.grad().unwrap(), &slopes);
    x.zero_grad();
    let unbiased = x.var(over(1).ddof(1));
    assert_close(&unbiased, &[7.0 / 3.0, 3.0]);
    unbiased.backward();
    assert_close(&x.grad().unwrap(), &slopes.map(|s| s * 1.5));
    x.zero_grad();
    let columns = x.var(0);
    assert_close(&columns, &[0.25, 1.0, 0.25]);
    columns.backward();
    assert_close(&x.grad().unwrap(), &[0.5, 1.0, 0.5, -0.5, -1.0, -0.5]);
}

#[test]
fn meshgrid() {
    let (a, b) = (leaf([1.0, 2.0]), leaf([3.0, 4.0, 5.0]));
    let weights = || Tensor::from([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let ij = ops::meshgrid(&[&a, &b], MeshgridIndexing::Ij).unwrap();
    assert_eq!(ij[0].to_vec::<f64>(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(ij[1].to_vec::<f64>(), [3.0, 4.0, 5.0, 3.0, 4.0, 5.0]);
    assert_eq!(gradients(&ij[0], weights(), [&a]), [[6.0, 15.0]]);
    assert_eq!(gradients(&ij[1], weights(), [&b]), [[5.0, 7.0, 9.0]]);
    let xy = ops::meshgrid(&[&a, &b], MeshgridIndexing::Xy).unwrap();
    assert_eq!(xy[0].to_vec::<f64>(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    assert_eq!(xy[1].to_vec::<f64>(), [3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    assert_eq!(gradients(&xy[0], weights().reshape([3, 2]), [&a]), [[9.0, 12.0]]);
    assert_eq!(gradients(&xy[1], weights().reshape([3, 2]), [&b]), [[3.0, 7.0, 11.0]]);
}

#[test]
fn hstack_of_unequal_widths() {
    let (a, b) = (matrix([[1.0], [2.0]]), matrix([[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]));
    let y = ops::hstack(&[&a, &b]).unwrap();
    assert_eq!(y.to_vec::<f64>(), [1.0, 3.0, 4.0, 5.0, 2.0, 6.0, 7.0, 8.0]);
    let weights = Tensor::from([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    let [da, db] = gradients(&y, weights, [&a, &b]);
    assert_eq!((da, db), (vec![1.0, 5.0], vec![2.0, 3.0, 4.0, 6.0, 7.0, 8.0]));
    let (v, w) = (leaf([1.0]), leaf([2.0, 3.0]));
    let [dv, dw] = gradients(&ops::hstack(&[&v, &w]).unwrap(), Tensor::from([1.0, 2.0, 3.0]), [&v, &w]);
    assert_eq!((dv, dw), (vec![1.0], vec![2.0, 3.0]));
}

#[test]
fn concatenate_of_unequal_parts() {
    let (a, b, c) = (leaf([1.0, 2.0]), leaf([3.0]), leaf([4.0, 5.0, 6.0]));
    let y = ops::concatenate(&[&c, &a, &b], 0).unwrap();
    let [da, db, dc] = gradients(&y, Tensor::from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [&a, &b, &c]);
    assert_eq!((da, db, dc), (vec![4.0, 5.0], vec![6.0], vec![1.0, 2.0, 3.0]));
}

#[test]
fn t_of_a_non_square_matrix() {
    let x = matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let y = x.t();
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[3, 2][..], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    let weights = Tensor::from([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    assert_eq!(gradients(&y, weights, [&x]), [[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]]);
}

#[test]
fn permute_of_unequal_axes() {
    let x = Tensor::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 3]).requires_grad_(true);
    // The permutation is not its own inverse: axis k of the result is axis order[k].
    let y = x.permute([2, 0, 1]);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[3, 1, 2][..], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    let weights = Tensor::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 1, 2]);
    assert_eq!(gradients(&y, weights, [&x]), [[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]]);
}

#[test]
fn cumsum_over_all_elements() {
    let x = matrix([[1.0, 2.0], [3.0, 4.0]]);
    let y = x.cumsum(..);
    assert_eq!((&y.shape()[..], y.to_vec::<f64>()), (&[4][..], vec![1.0, 3.0, 6.0, 10.0]));
    assert_eq!(gradients(&y, Tensor::from([1.0, 10.0, 100.0, 1000.0]), [&x]), [[1111.0, 1110.0, 1100.0, 1000.0]]);
    let first = x.cumsum(0);
    assert_eq!(first.to_vec::<f64>(), [1.0, 2.0, 4.0, 6.0]);
    assert_eq!(gradients(&first, Tensor::from([[1.0, 2.0], [3.0, 4.0]]), [&x]), [[4.0, 6.0, 3.0, 4.0]]);
}

#[test]
fn cumprod_with_zeros() {
    let x = leaf([2.0, 0.0, 3.0, 5.0]);
    let y = x.cumprod(0);
    assert_eq!(y.to_vec::<f64>(), [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(gradients(&y, Tensor::from([1.0; 4]), [&x]), [[1.0, 38.0, 0.0, 0.0]]);
    let two = leaf([2.0, 0.0, 3.0, 0.0]);
    assert_eq!(gradients(&two.cumprod(0), Tensor::from([1.0; 4]), [&two]), [[1.0, 8.0, 0.0, 0.0]]);
    // ∂²Σy/∂x₁∂x = (1 + x₂ + x₂x₃, 0, x₀ + x₀x₃, x₀x₂).
    let options = || GradOptions { create_graph: true, ..Default::default() };
    let first = grad(&[&x.cumprod(0).sum(..)], &[&x], options()).unwrap().remove(0);
    let second = grad(&[&first.select(0, 1)], &[&x], options()).unwrap().remove(0);
    assert_eq!(second.to_vec::<f64>(), [19.0, 0.0, 12.0, 6.0]);
}

#[test]
fn prod_with_zeros() {
    let x = matrix([[2.0, 0.0, 5.0], [0.0, 3.0, 0.0]]);
    assert_eq!(gradients(&x.prod(1), Tensor::from([1.0, 1.0]), [&x]), [[0.0, 10.0, 0.0, 0.0, 0.0, 0.0]]);
}

#[test]
fn topk_off_the_last_axis() {
    let x = matrix([[3.0, 1.0], [5.0, 9.0], [4.0, 2.0]]);
    let (values, positions) = x.topk(2, 0, true);
    assert_eq!(values.to_vec::<f64>(), [5.0, 9.0, 4.0, 2.0]);
    assert_eq!(positions.to_vec::<i64>(), [1, 1, 2, 2]);
    let weights = || Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(gradients(&values, weights(), [&x]), [[0.0, 0.0, 1.0, 2.0, 3.0, 4.0]]);
    let (values, positions) = x.topk(2, -2, false);
    assert_eq!((values.to_vec::<f64>(), positions.to_vec::<i64>()), (vec![3.0, 1.0, 4.0, 2.0], vec![0, 0, 2, 2]));
    assert_eq!(gradients(&values, weights(), [&x]), [[1.0, 2.0, 0.0, 0.0, 3.0, 4.0]]);
}

#[test]
fn repeated_indices_accumulate() {
    let x = leaf([1.0, 2.0, 3.0]);
    let weights = || Tensor::from([1.0, 10.0, 100.0]);
    let at = Tensor::from([1i64, -2, 0]);
    assert_eq!(gradients(&x.index_select(0, &at), weights(), [&x]), [[100.0, 11.0, 0.0]]);
    assert_eq!(gradients(&x.take_along_axis(&at, 0), weights(), [&x]), [[100.0, 11.0, 0.0]]);
    assert_eq!(gradients(&x.take(&at), weights(), [&x]), [[100.0, 11.0, 0.0]]);
    assert_eq!(gradients(&x.i(&at), weights(), [&x]), [[100.0, 11.0, 0.0]]);
    let m = matrix([[1.0, 2.0], [3.0, 4.0]]);
    let rows = m.index_select(0, &Tensor::from([1i64, 1]));
    assert_eq!(gradients(&rows, Tensor::from([[1.0, 2.0], [10.0, 20.0]]), [&m]), [[0.0, 0.0, 11.0, 22.0]]);
}

#[test]
fn einsum_with_one_operand() {
    let x = matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let one = |equation: &str| ops::einsum(equation, &[&x]).unwrap();
    let columns = one("ij->j");
    assert_eq!(columns.to_vec::<f64>(), [5.0, 7.0, 9.0]);
    assert_eq!(gradients(&columns, Tensor::from([1.0, 10.0, 100.0]), [&x]), [[1.0, 10.0, 100.0, 1.0, 10.0, 100.0]]);
    let turned = one("ij->ji");
    assert_eq!(turned.to_vec::<f64>(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let weights = Tensor::from([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    assert_eq!(gradients(&turned, weights, [&x]), [[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]]);
    let all = one("ij->");
    assert_eq!(all.item::<f64>(), 21.0);
    assert_eq!(gradients(&all, Tensor::from(2.0), [&x]), [[2.0; 6]]);
}

#[test]
fn einsum_with_repeated_labels() {
    let x = matrix([[1.0, 2.0], [3.0, 4.0]]);
    let trace = ops::einsum("ii", &[&x]).unwrap();
    assert_eq!(trace.item::<f64>(), 5.0);
    assert_eq!(gradients(&trace, Tensor::from(3.0), [&x]), [[3.0, 0.0, 0.0, 3.0]]);
    let diagonal = ops::einsum("ii->i", &[&x]).unwrap();
    assert_eq!(diagonal.to_vec::<f64>(), [1.0, 4.0]);
    assert_eq!(gradients(&diagonal, Tensor::from([5.0, 7.0]), [&x]), [[5.0, 0.0, 0.0, 7.0]]);
    // The first product is y_j = Σᵢ x_ii·v_j. In the second one, both operands are the same tensor.
    let v = leaf([10.0, 100.0]);
    let scaled = ops::einsum("ii,j->j", &[&x, &v]).unwrap();
    assert_eq!(scaled.to_vec::<f64>(), [50.0, 500.0]);
    let [dx, dv] = gradients(&scaled, Tensor::from([1.0, 2.0]), [&x, &v]);
    assert_eq!((dx, dv), (vec![210.0, 0.0, 0.0, 210.0], vec![5.0, 10.0]));
    let square = ops::einsum("ij,jk->ik", &[&x, &x]).unwrap();
    assert_eq!(square.to_vec::<f64>(), [7.0, 10.0, 15.0, 22.0]);
    assert_eq!(gradients(&square, Tensor::from([[1.0, 0.0], [0.0, 0.0]]), [&x]), [[2.0, 3.0, 2.0, 0.0]]);
}

#[test]
fn log_softmax_at_large_logits() {
    let x = leaf([1e4, -1e4]);
    let y = x.log_softmax(0);
    assert_eq!(y.to_vec::<f64>(), [0.0, -2e4]);
    assert_eq!(gradients(&y, Tensor::from([0.0, 1.0]), [&x]), [[-1.0, 1.0]]);
    assert_eq!(gradients(&x.log_softmax(0), Tensor::from([1.0, 0.0]), [&x]), [[0.0, 0.0]]);
    let narrow = Tensor::from([1e4f32, 1e4, -1e4]).log_softmax(0).to_vec::<f32>();
    assert_eq!(narrow, [-std::f32::consts::LN_2, -std::f32::consts::LN_2, -2e4 - std::f32::consts::LN_2]);
}

#[test]
fn max_pool_with_stride_other_than_kernel() {
    let x = Tensor::from([[[1.0, 5.0, 2.0, 4.0, 3.0]]]).requires_grad_(true);
    let (y, positions) = x.max_pool1d(PoolOptions { stride: Some(1.into()), ..PoolOptions::new(3) });
    assert_eq!((y.to_vec::<f64>(), positions.to_vec::<i64>()), (vec![5.0, 5.0, 4.0], vec![1, 1, 3]));
    assert_eq!(gradients(&y, Tensor::from([[[1.0, 10.0, 100.0]]]), [&x]), [[0.0, 11.0, 0.0, 100.0, 0.0]]);
    let (y, _) = x.max_pool1d(PoolOptions { stride: Some(3.into()), ..PoolOptions::new(2) });
    assert_eq!(gradients(&y, Tensor::from([[[1.0, 10.0]]]), [&x]), [[0.0, 1.0, 0.0, 10.0, 0.0]]);
    let plane = Tensor::from([[[[1.0, 2.0, 3.0], [4.0, 9.0, 6.0], [7.0, 8.0, 5.0]]]]).requires_grad_(true);
    let (y, _) = plane.max_pool2d(PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) });
    assert_eq!(y.to_vec::<f64>(), [9.0; 4]);
    let weights = Tensor::from([[[[1.0, 10.0], [100.0, 1000.0]]]]);
    assert_eq!(gradients(&y, weights, [&plane]), [[0.0, 0.0, 0.0, 0.0, 1111.0, 0.0, 0.0, 0.0, 0.0]]);
}

#[test]
fn upsampling_accumulates() {
    let x = Tensor::from([[[5.0, 7.0]]]).requires_grad_(true);
    let to = |len: usize| Resize::To(vec![len]);
    let nearest = x.interpolate(to(4), InterpolationMode::Nearest);
    assert_eq!(nearest.to_vec::<f64>(), [5.0, 5.0, 7.0, 7.0]);
    assert_eq!(gradients(&nearest, Tensor::from([[[1.0, 10.0, 100.0, 1000.0]]]), [&x]), [[11.0, 1100.0]]);
    let linear = x.interpolate(to(3), InterpolationMode::Linear { align_corners: true });
    assert_eq!(linear.to_vec::<f64>(), [5.0, 6.0, 7.0]);
    assert_eq!(gradients(&linear, Tensor::from([[[1.0, 10.0, 100.0]]]), [&x]), [[6.0, 105.0]]);
    let edges = x.interpolate(to(4), InterpolationMode::Linear { align_corners: false });
    assert_eq!(edges.to_vec::<f64>(), [5.0, 5.5, 6.5, 7.0]);
    assert_eq!(gradients(&edges, Tensor::from([[[1.0, 4.0, 8.0, 16.0]]]), [&x]), [[6.0, 23.0]]);
    let plane = Tensor::from([[[[1.0, 2.0]]]]).requires_grad_(true);
    let doubled = plane.interpolate(Resize::By(vec![2.0, 2.0]), InterpolationMode::Nearest);
    assert_eq!(doubled.shape()[..], [1, 1, 2, 4]);
    let weights = Tensor::from([[[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]]]);
    assert_eq!(gradients(&doubled, weights, [&plane]), [[14.0, 22.0]]);
}

#[test]
fn scatter() {
    let (x, values) = (leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0]));
    let y = x.scatter(0, &Tensor::from([2i64, 0]), &values);
    assert_eq!(y.to_vec::<f64>(), [20.0, 2.0, 10.0]);
    let weights = || Tensor::from([1.0, 10.0, 100.0]);
    let [dx, dv] = gradients(&y, weights(), [&x, &values]);
    assert_eq!((dx, dv), (vec![0.0, 10.0, 0.0], vec![100.0, 1.0]));
    // The last value for a position is stored; the others have gradient 0.
    let y = x.scatter(0, &Tensor::from([1i64, -2]), &values);
    assert_eq!(y.to_vec::<f64>(), [1.0, 20.0, 3.0]);
    let [dx, dv] = gradients(&y, weights(), [&x, &values]);
    assert_eq!((dx, dv), (vec![1.0, 0.0, 100.0], vec![0.0, 10.0]));
}

#[test]
fn scatter_add() {
    let (x, values) = (leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0]));
    let y = x.scatter_add(0, &Tensor::from([1i64, -2]), &values);
    assert_eq!(y.to_vec::<f64>(), [1.0, 32.0, 3.0]);
    let weights = || Tensor::from([1.0, 10.0, 100.0]);
    let [dx, dv] = gradients(&y, weights(), [&x, &values]);
    assert_eq!((dx, dv), (vec![1.0, 10.0, 100.0], vec![10.0, 10.0]));
    let spread = values.scatter_add_along(&Tensor::from([2i64, 2]), 0, 3);
    assert_eq!(spread.to_vec::<f64>(), [0.0, 0.0, 30.0]);
    assert_eq!(gradients(&spread, weights(), [&values]), [[100.0, 100.0]]);
}

#[test]
fn one_tensor_for_both_operands() {
    let x = number(3.0);
    assert_eq!(gradients(&(&x * &x), Tensor::from(1.0), [&x]), [[6.0]]);
    assert_eq!(gradients(&(&x - &x), Tensor::from(1.0), [&x]), [[0.0]]);
    let m = matrix([[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(gradients(&m.matmul(&m.t()), Tensor::from([[1.0, 0.0], [0.0, 0.0]]), [&m]), [[2.0, 4.0, 0.0, 0.0]]);
}

#[test]
fn a_point_on_the_last_element_has_no_gradient_through_the_border() {
    let image = || Tensor::from([1.0, 2.0, 3.0, 4.0]).reshape([1, 1, 2, 2]);
    let slopes = |x: f64, outside: GridSamplePadding, align: bool| {
        let grid = leaf([x, 0.0]).reshape([1, 1, 1, 2]).detach().requires_grad_(true);
        image().grid_sample(&grid, GridSampleMode::Linear, outside, align).sum(..).backward();
        grid.grad().unwrap().to_vec::<f64>()
    };
    for outside in [GridSamplePadding::Border, GridSamplePadding::Reflection] {
        // At the ends the gradient is 0, as beyond the border; inside it is the slope between the elements.
        assert_eq!(slopes(1.0, outside, true), [0.0, 1.0], "{outside:?}");
        assert_eq!(slopes(-1.0, outside, true), [0.0, 1.0], "{outside:?}");
        assert_eq!(slopes(0.5, outside, false)[0], 0.0, "{outside:?}");
        assert_eq!(slopes(0.25, outside, true), [0.5, 1.0], "{outside:?}");
        // An image of one element is constant.
        let (single, grid) = (Tensor::from([[[[5.0], [7.0]]]]), leaf([0.0, 0.2]));
        let y = single.grid_sample(&grid.reshape([1, 1, 1, 2]), GridSampleMode::Linear, outside, false);
        y.sum(..).backward();
        assert_eq!(grid.grad().unwrap().to_vec::<f64>()[0], 0.0, "{outside:?}");
    }
    // The identity map of a spatial transformer, three axes.
    let volume = Tensor::arange(0.0, 27.0, 1.0).reshape([1, 1, 3, 3, 3]);
    let grid = Tensor::ones([1, 1, 1, 1, 3], DType::F64).requires_grad_(true);
    volume.grid_sample(&grid, GridSampleMode::Linear, GridSamplePadding::Border, true).sum(..).backward();
    assert_eq!(grid.grad().unwrap().to_vec::<f64>(), [0.0; 3]);
}

#[test]
fn the_gradient_of_fmod_by_its_first_operand_is_1() {
    for (a, b) in [(0.0, 0.0), (f64::NAN, 2.0), (-7.5, 2.0), (3.0, -2.0), (0.0, 3.0)] {
        let [a, b] = [a, b].map(number);
        a.fmod(&b).backward();
        assert_eq!(a.grad().unwrap().item::<f64>(), 1.0);
    }
    let [a, b] = [-7.5, 2.0].map(number);
    a.fmod(&b).backward();
    assert_eq!(b.grad().unwrap().item::<f64>(), 3.0); // -trunc(a / b)
}
