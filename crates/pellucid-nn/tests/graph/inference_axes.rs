//! Inference models whose output axes depend on the path and on hooks.

use pellucid_nn::graph::InferenceModel;
use pellucid_nn::paths::If;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

#[derive(Clone, Module)]
struct Doubled;

impl Layer for Doubled {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::add(x, x)
    }
}

/// The sum over the batch.
#[derive(Module)]
struct Total;

impl Layer for Total {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::sum(x, 0)
    }
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec::<f32>()
}

/// Padding is removed by the axes of the recording that has run, not of another path.
#[test]
fn the_axes_of_the_output_may_depend_on_the_path() {
    let model = If::new(Doubled, Total);
    let mut inference = InferenceModel::new(&model, &[4]);
    let x = Tensor::arange(0.0f32, 12.0, 1.0).reshape([3, 4]);
    for _ in 0..2 {
        model.choose(true);
        assert_eq!(values(&inference.run(&x).unwrap()), values(&(&x * 2.0)));
        model.choose(false);
        // The sum has four elements, as many as the filled batch has rows.
        let error = inference.run(&x).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        assert_eq!(values(&inference.run(&Tensor::ones([4, 4], DType::F32)).unwrap()), [4.0; 4]);
        let error = inference.run(&Tensor::ones([8, 4], DType::F32)).unwrap_err();
        assert!(error.to_string().contains("cannot be joined"), "{error}");
    }
    let mut inference = InferenceModel::new(&model, &[1]);
    assert!(matches!(inference.run(&Tensor::ones([1, 4], DType::F32)), Err(Error::ShapeMismatch { .. })));
}

/// A hook that changes the shape of the output changes how padding is removed.
#[test]
fn hooks_may_change_the_shape_of_the_output() {
    let model = sequential![Doubled];
    let x = Tensor::arange(0.0f32, 18.0, 1.0).reshape([3, 3, 2]);
    let twice = &x * 2.0;
    let pairs = |y: &Tensor| ops::concatenate(&[y.sum(1), y.sum(1)], 1).unwrap();
    let mut inference = InferenceModel::new(&model, &[4]).with_lengths(&[4]);
    for _ in 0..2 {
        assert_eq!(values(&inference.run(&x).unwrap()), values(&twice));
        // Axis 1 has the length 4, and is not the sequence.
        let guard = hook::on_forward(&model, "", move |_, y| Some(pairs(y))).unwrap();
        let y = inference.run(&x).unwrap();
        assert_eq!((y.shape().dims(), values(&y)), (&[3, 4][..], values(&pairs(&twice))));
        drop(guard);
        // Axis 0 has the length 4, and is not the batch.
        let guard = hook::on_forward(&model, "", |_, y| Some(y.sum(0))).unwrap();
        assert!(matches!(inference.run(&x), Err(Error::ShapeMismatch { .. })));
        drop(guard);
        let guard = hook::on_forward_pre(&model, "", |x| Some(x.reshape([-1, 8]))).unwrap();
        assert_eq!(inference.run(&x).unwrap().shape().dims(), [3, 8]);
        drop(guard);
    }
    // The first batch is also traced with hooks, and does not determine the inputs if it is rejected.
    let mut other = InferenceModel::new(&model, &[2]);
    let guard = hook::on_forward(&model, "", |_, y| Some(y.sum([0, 1]).sum(0))).unwrap();
    assert!(matches!(other.run(&x), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(other.prepare(&x), Err(Error::ShapeMismatch { .. })));
    assert_eq!(other.cache_stats().len, 0);
    drop(guard);
    assert_eq!(values(&other.run(&x.reshape([9, 2])).unwrap()), values(&twice));
}

/// Parts of one row are joined only if axis 0 of the output is the batch.
#[test]
fn a_mean_over_the_batch_is_not_split_into_rows() {
    #[derive(Module)]
    struct Mean;

    impl Layer for Mean {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            ops::mean(x, ops::over(0).keepdims())
        }
    }

    let x = Tensor::arange(0.0f32, 12.0, 1.0).reshape([3, 4]);
    for sizes in [&[1][..], &[1, 2]] {
        let mut inference = InferenceModel::new(Mean, sizes);
        let error = inference.run(&x).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        assert_eq!(values(&inference.run(&x.narrow(0, 1, 1)).unwrap()), [4.0, 5.0, 6.0, 7.0]);
    }
    assert_eq!(values(&InferenceModel::new(Doubled, &[1]).run(&x).unwrap()), values(&(&x * 2.0)));
}
