//! Weighted sums of rows: gradients of every subset of inputs, and the accuracy of long sums.

use pellucid_tensor::ops::{self, EmbeddingBagOptions, ScatterReduceOp};
use pellucid_tensor::{DType, GradCheckOptions, Result, Tensor, gradcheck, gradgradcheck};

/// Returns the sums of bags of four indices: two and two with offsets, or the rows of a matrix.
fn weighted_bags(table: &Tensor, weights: &Tensor, offsets: Option<&Tensor>) -> Result<Tensor> {
    let shape: &[usize] = if offsets.is_some() { &[4] } else { &[2, 2] };
    let index = Tensor::from([2i64, 0, 2, 1]).reshape(shape);
    let weights = &weights.reshape(shape);
    let options =
        EmbeddingBagOptions { mode: ScatterReduceOp::Sum, weights: Some(weights), offsets, ..Default::default() };
    ops::embedding_bag(table, &index, options)
}

#[test]
fn weighted_bags_have_gradients_of_every_subset_of_inputs() {
    // The second bag is empty.
    let offsets = Tensor::from([0i64, 2, 2]);
    for offsets in [None, Some(&offsets)] {
        for [of_table, of_weights] in [[true, false], [false, true], [true, true]] {
            let table = Tensor::from([[0.5, -1.25], [2.0, 0.75], [-0.5, 1.5]]).requires_grad_(of_table);
            let weights = Tensor::from([0.25, -2.0, 1.5, 0.75]).requires_grad_(of_weights);
            let bags = |x: &[Tensor]| Ok(vec![weighted_bags(&x[0], &x[1], offsets)?]);
            let inputs = [&table, &weights];
            gradcheck(bags, &inputs, GradCheckOptions::default()).unwrap();
            gradgradcheck(bags, &inputs, GradCheckOptions::default()).unwrap();
            // The gradients of nonlinear functions have second derivatives of a single input, too.
            let powers = |x: &[Tensor]| Ok(vec![weighted_bags(&x[0], &x[1], offsets)?.square()]);
            gradgradcheck(powers, &inputs, GradCheckOptions::default()).unwrap();
        }
    }
}

#[test]
fn weighted_bags_of_a_table_that_is_a_result_have_gradients() {
    let weights = Tensor::from([0.25, -2.0, 1.5, 0.75]).requires_grad_(true);
    let table = Tensor::from([[0.5, -1.25], [2.0, 0.75], [-0.5, 1.5]]);
    // Neither input of the sums is a leaf. The table is not tracked.
    weighted_bags(&(&table * 2.0), &(&weights * 1.0), None).unwrap().sum(..).backward();
    assert_eq!(weights.grad().unwrap().to_vec::<f64>(), [2.0, -1.5, 2.0, 5.5]);
}

/// The mean error of bags of `f32` is below half a unit in the last place, or near the error of the reduction of the
/// selected rows.
#[test]
fn long_sums_are_as_accurate_as_reductions() {
    let (rows, width) = (997, 64);
    // Positive elements, whose sums have the largest relative errors if they are added in order.
    let elements: Vec<f64> = (0..rows * width).map(|i| ((i * 7919) % 1_000_003) as f64 / 1e6 + 1e-3).collect();
    let table = Tensor::from(elements).reshape([rows, width]).to_dtype(DType::F32);
    let exact_table = table.to_dtype(DType::F64);
    for terms in [5, 20, 100, 1000, 5000, 40_000, 200_000] {
        let index = Tensor::from((0..terms).map(|k| (k * 31 % rows) as i64).collect::<Vec<_>>());
        let exact = exact_table.index_select(0, &index).sum(0);
        let error = |sum: &Tensor| {
            let relative = sum.to_dtype(DType::F64) / &exact - 1.0;
            relative.square().mean(..).item::<f64>().sqrt()
        };
        let options = EmbeddingBagOptions { mode: ScatterReduceOp::Sum, ..Default::default() };
        let bag = error(&ops::embedding_bag(&table, &index.unsqueeze(0), options).unwrap().squeeze(0));
        let reduced = error(&table.index_select(0, &index).sum(0));
        let half_unit = f64::from(f32::EPSILON) / 2.0;
        assert!(bag <= half_unit.max(1.5 * reduced), "{terms} terms: {bag:e}, the reduction has {reduced:e}");
    }
}
