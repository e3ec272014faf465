//! Measures compile time: tensors and gradients without modules.

use pellucid::prelude::*;

fn main() -> Result<()> {
    manual_seed(0);
    let x = Tensor::randn([8], DType::F64).requires_grad_(true);
    let y = (x.sin() * &x).sum(..);
    let first = grad_one(&y, &x, GradOptions { create_graph: true, ..Default::default() })?;
    let second = grad_one(&first.sum(..), &x, GradOptions::default())?;
    assert_eq!(second.shape().dims(), [8]);
    Ok(())
}
