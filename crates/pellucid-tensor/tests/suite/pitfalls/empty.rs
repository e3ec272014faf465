//! Tensors without elements give a result where one is defined, and an error otherwise.

use crate::support::leaf;
use pellucid_tensor::ops::{
    self, ConvOptions, InterpolationMode, MeshgridIndexing, PaddingMode, PoolOptions, Resize, over,
};
use pellucid_tensor::{DType, Error, Result, Tensor};

fn empty(shape: impl Into<pellucid_tensor::Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F64)
}

#[test]
fn reductions() {
    let x = empty([0, 3]);
    assert_eq!(x.sum(..).item::<f64>(), 0.0);
    assert_eq!(x.sum(0).to_vec::<f64>(), [0.0; 3]);
    assert_eq!(x.sum(1).shape()[..], [0]);
    assert_eq!(x.sum(over(0).keepdims()).shape()[..], [1, 3]);
    assert_eq!(x.prod(0).to_vec::<f64>(), [1.0; 3]);
    assert!(x.mean(0).to_vec::<f64>().iter().all(|v| v.is_nan()));
    assert!(x.var(0).to_vec::<f64>().iter().all(|v| v.is_nan()));
    assert_eq!(x.norm(2.0, 0).to_vec::<f64>(), [0.0; 3]);
    assert_eq!(x.logsumexp(0).to_vec::<f64>(), [f64::NEG_INFINITY; 3]);
    assert_eq!(x.any(0).to_vec::<bool>(), [false; 3]);
    assert_eq!(x.all(0).to_vec::<bool>(), [true; 3]);
    assert_eq!(x.count_nonzero(..).item::<i64>(), 0);
    // Over axes that have elements, zero rows have zero extrema.
    assert_eq!(x.max(1).shape()[..], [0]);
    assert_eq!(x.argmin(1).shape()[..], [0]);
}

#[test]
fn extrema_of_empty_tensors_are_errors() {
    let x = empty([0, 3]);
    let rejected = |result: Result<Tensor>| matches!(result, Err(Error::InvalidArgument { .. }));
    assert!(rejected(ops::max(&x, 0)) && rejected(ops::min(&x, ..)));
    assert!(rejected(ops::argmax(&x, 0)) && rejected(ops::argmin(&x, ..)));
    assert!(rejected(ops::aminmax(&x, 0).map(|(low, _)| low)));
}

#[test]
fn products() {
    assert_eq!(empty([2, 0]).matmul(&empty([0, 3])).to_vec::<f64>(), [0.0; 6]);
    assert_eq!(empty([0, 2]).matmul(&empty([2, 3])).shape()[..], [0, 3]);
    assert_eq!(empty([0, 2, 2]).matmul(&empty([2, 3])).shape()[..], [0, 2, 3]);
    assert_eq!(empty([0]).dot(&empty([0])).item::<f64>(), 0.0);
    assert_eq!(empty([0]).outer(&empty([3])).shape()[..], [0, 3]);
    assert_eq!(ops::kron(&empty([2, 0]), &empty([3, 1])).unwrap().shape()[..], [6, 0]);
    assert_eq!(ops::einsum("ij,jk->ik", &[&empty([2, 0]), &empty([0, 1])]).unwrap().to_vec::<f64>(), [0.0; 2]);
    assert_eq!(empty([0, 3]).linear(&empty([2, 3]), None).shape()[..], [0, 2]);
}

#[test]
fn empty_products_have_gradients() {
    let (a, b) = (empty([2, 0]).requires_grad_(true), empty([0, 3]).requires_grad_(true));
    a.matmul(&b).backward();
    assert_eq!(a.grad().unwrap().shape()[..], [2, 0]);
    assert_eq!(b.grad().unwrap().shape()[..], [0, 3]);
}

#[test]
fn order_and_scans() {
    let x = empty([0, 3]);
    for axis in [0, 1] {
        assert_eq!(x.sort(axis, false).0.shape()[..], [0, 3]);
        assert_eq!(x.argsort(axis, true).shape()[..], [0, 3]);
        assert_eq!(x.cumsum(axis).shape()[..], [0, 3]);
        assert_eq!(x.cumprod(axis).shape()[..], [0, 3]);
        assert_eq!(x.cummax(axis).1.shape()[..], [0, 3]);
        assert_eq!(x.logcumsumexp(axis).shape()[..], [0, 3]);
        assert_eq!(x.softmax(axis).shape()[..], [0, 3]);
        assert_eq!(x.topk(0, axis, true).0.size(), 0);
    }
    assert_eq!(x.topk(2, 1, true).0.shape()[..], [0, 2]);
    assert_eq!(x.diff(1, 0).shape()[..], [0, 3]);
}

#[test]
fn shapes() {
    let x = empty([0, 3]);
    assert_eq!(x.reshape([3, 0, 7]).shape()[..], [3, 0, 7]);
    assert_eq!(x.t().shape()[..], [3, 0]);
    assert_eq!(x.flatten(0, -1).shape()[..], [0]);
    assert_eq!(x.flip(0).shape()[..], [0, 3]);
    assert_eq!(x.roll([1], [0]).shape()[..], [0, 3]);
    assert_eq!(x.tile([2, 2]).shape()[..], [0, 6]);
    assert_eq!(Tensor::from([1.0, 2.0]).tile([0]).shape()[..], [0]);
    assert_eq!(Tensor::from([1.0, 2.0]).repeat(0, Some(0)).shape()[..], [0]);
    assert_eq!(x.broadcast_to([2, 0, 3]).shape()[..], [2, 0, 3]);
    assert_eq!(x.pad([(1, 1), (0, 0)], PaddingMode::Constant(2.into())).to_vec::<f64>(), [2.0; 6]);
    assert_eq!(x.tril(0).shape()[..], [0, 3]);
    assert_eq!(empty([0, 0]).diagonal(0, 0, 1).shape()[..], [0]);
    assert_eq!(empty([0]).diag(1).shape()[..], [1, 1]);
    let grids = ops::meshgrid(&[&empty([0]), &empty([2])], MeshgridIndexing::Ij).unwrap();
    assert_eq!(grids[1].shape()[..], [0, 2]);
    let parts = x.split([0, 0], 0);
    assert_eq!((parts.len(), &parts[1].shape()[..]), (2, &[0, 3][..]));
    assert!(x.unbind(0).is_empty());
}

#[test]
fn joins() {
    let x = leaf([1.0, 2.0]);
    let y = ops::concatenate(&[&empty([0]), &x, &empty([0])], 0).unwrap();
    assert_eq!(y.to_vec::<f64>(), [1.0, 2.0]);
    y.backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [1.0, 1.0]);
    assert_eq!(ops::stack(&[&empty([0]), &empty([0])], 0).unwrap().shape()[..], [2, 0]);
    assert_eq!(ops::hstack(&[&empty([2, 0]), &empty([2, 1])]).unwrap().shape()[..], [2, 1]);
    assert_eq!(ops::vstack(&[&empty([0]), &empty([0])]).unwrap().shape()[..], [2, 0]);
}

#[test]
fn selections() {
    let x = leaf([1.0, 2.0, 3.0]);
    let nowhere = Tensor::zeros([0], DType::I64);
    assert_eq!(x.index_select(0, &nowhere).shape()[..], [0]);
    assert_eq!(x.take(&nowhere).shape()[..], [0]);
    assert_eq!(x.scatter(0, &nowhere, &empty([0])).to_vec::<f64>(), [1.0, 2.0, 3.0]);
    assert_eq!(x.scatter_add(0, &nowhere, &empty([0])).to_vec::<f64>(), [1.0, 2.0, 3.0]);
    assert_eq!(x.masked_select(&Tensor::from([false; 3])).shape()[..], [0]);
    assert_eq!(ops::nonzero(&empty([2, 2])).unwrap()[1].shape()[..], [0]);
    assert_eq!(nowhere.one_hot(3).shape()[..], [0, 3]);
    assert_eq!(ops::where_(&empty([0]).gt(0.0), 1.0, 2.0).unwrap().shape()[..], [0]);
    // No element was selected, so the gradient is 0.
    x.index_select(0, &nowhere).sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [0.0; 3]);
}

#[test]
fn windows() {
    let x = empty([0, 2, 5]).requires_grad_(true);
    let w = Tensor::ones([3, 2, 2], DType::F64).requires_grad_(true);
    let y = x.conv1d(&w, None, ConvOptions::default());
    assert_eq!(y.shape()[..], [0, 3, 4]);
    y.backward();
    assert_eq!(x.grad().unwrap().shape()[..], [0, 2, 5]);
    assert_eq!(w.grad().unwrap().to_vec::<f64>(), [0.0; 12]);
    assert_eq!(x.max_pool1d(PoolOptions::new(2)).0.shape()[..], [0, 2, 2]);
    assert_eq!(x.avg_pool1d(PoolOptions::new(2), Default::default()).shape()[..], [0, 2, 2]);
    assert_eq!(x.interpolate(Resize::To(vec![3]), InterpolationMode::Area).shape()[..], [0, 2, 3]);
    assert_eq!(x.batch_norm(None, None, None, Default::default()).shape()[..], [0, 2, 5]);
}
