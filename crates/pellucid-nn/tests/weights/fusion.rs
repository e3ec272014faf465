//! Fused normalization: the values of PyTorch's fusion, and of the two layers in evaluation.

use crate::assert_near;
use pellucid_nn::*;
use pellucid_tensor::ops::PaddingMode;
use pellucid_tensor::{DType, Error, Tensor, no_grad, ops};

/// Fills the statistics and the parameters of a normalization with values that are not the initial ones.
fn randomize<const N: usize>(norm: &BatchNorm<N>) {
    let _off = no_grad();
    for (_, parameter) in norm.named_parameters() {
        ops::copy_(&parameter, &ops::randn_like(&parameter).unwrap()).unwrap();
    }
    for buffer in [&norm.running_mean, &norm.running_var].into_iter().flatten() {
        ops::copy_(buffer, &(ops::rand_like(buffer).unwrap() + 0.5)).unwrap();
    }
    norm.eval();
}

/// The values of `torch.nn.utils.fusion`.
#[test]
fn fused_parameters_equal_the_ones_of_pytorch() {
    let norm = BatchNorm2d::new(2);
    let set = |tensor: &Tensor, values: [f32; 2]| {
        let _off = no_grad();
        ops::copy_(tensor, &Tensor::from(values)).unwrap();
    };
    set(norm.running_mean.as_ref().unwrap(), [0.1, -0.4]);
    set(norm.running_var.as_ref().unwrap(), [0.25, 4.0]);
    set(norm.weight.as_ref().unwrap(), [1.5, -2.0]);
    set(norm.bias.as_ref().unwrap(), [0.7, 0.2]);
    let linear = Linear::new(2, 2);
    init::try_constant_(&linear.weight, 0.0).unwrap();
    {
        let _off = no_grad();
        ops::copy_(&linear.weight, &Tensor::from([[1.0f32, 2.0], [-1.0, 0.5]])).unwrap();
    }
    set(linear.bias.as_ref().unwrap(), [0.3, -0.2]);
    let flat = BatchNorm1d::new(2);
    flat.load_state_dict(&norm.state_dict()).unwrap();
    let conv = Conv2d::new(2, 2, 1);
    let state = linear.state_dict();
    let weight = state["weight"].reshape([2, 2, 1, 1]);
    conv.load_state_dict(&[("weight".into(), weight), ("bias".into(), state["bias"].copy())].into()).unwrap();
    let fused = fuse_linear_bn(&linear, &flat).unwrap();
    let (weight, bias) = ([2.999_94_f32, 5.999_88, 0.999_998_8, -0.499_999_4], [1.299_988f32, 2.384_185_8e-7]);
    assert_near(&fused.weight.ravel(), &Tensor::from(weight), 1e-6);
    assert_near(fused.bias.as_ref().unwrap(), &Tensor::from(bias), 1e-6);
    let fused = fuse_conv_bn(&conv, &norm).unwrap();
    assert_near(&fused.weight.ravel(), &Tensor::from(weight), 1e-6);
    assert_near(fused.bias.as_ref().unwrap(), &Tensor::from(bias), 1e-6);
}

#[test]
fn a_fused_layer_equals_both_layers_in_evaluation() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    init::in_dtype(DType::F64, || {
        let randn = |shape: &[usize]| Tensor::randn(shape, DType::F64);
        let norm = BatchNorm1d::new(6);
        randomize(&norm);
        let (conv, x) = (Conv1d::new(4, 6, 3).groups(2), randn(&[2, 4, 9]));
        let fused = fuse_conv_bn(&conv, &norm).unwrap();
        assert_near(&fused.forward(&x), &norm.forward(&conv.forward(&x)), 1e-12);
        let (linear, x) = (Linear::new(5, 6).bias(false), randn(&[3, 5]));
        let fused = fuse_linear_bn(&linear, &norm).unwrap();
        assert_near(&fused.forward(&x), &norm.forward(&linear.forward(&x)), 1e-12);
        assert_eq!(fused.parameter_count(), 36);

        let norm = BatchNorm2d::new(6).eps(1e-2);
        randomize(&norm);
        let conv = Conv2d::new(4, 6, 3).stride(2).padding(1).padding_mode(PaddingMode::Reflect).bias(false);
        let x = randn(&[2, 4, 7, 8]);
        let before = conv.forward(&x);
        assert_near(&fuse_conv_bn(&conv, &norm).unwrap().forward(&x), &norm.forward(&before), 1e-12);
        assert_eq!(conv.forward(&x).to_bytes(), before.to_bytes(), "the fusion must not change the layer");

        let norm = BatchNorm3d::new(2).affine(false);
        randomize(&norm);
        let (conv, x) = (Conv3d::new(3, 2, [2, 1, 3]), randn(&[2, 3, 4, 3, 5]));
        conv.freeze();
        let fused = fuse_conv_bn(&conv, &norm).unwrap();
        assert_near(&fused.forward(&x), &norm.forward(&conv.forward(&x)), 1e-12);
        assert!(fused.parameters().iter().all(|parameter| !parameter.requires_grad()));
    });
}

#[test]
fn layers_that_do_not_fit_are_rejected() {
    let conv = Conv2d::new(3, 4, 1);
    assert!(matches!(fuse_conv_bn(&conv, &BatchNorm2d::new(3)), Err(Error::ShapeMismatch { .. })));
    let plain = BatchNorm2d::new(4).running_statistics(false);
    assert!(matches!(fuse_conv_bn(&conv, &plain), Err(Error::InvalidArgument { .. })));
    let wide = BatchNorm2d::new(4).to_dtype(DType::F64).unwrap();
    assert!(matches!(fuse_conv_bn(&conv, &wide), Err(Error::DTypeMismatch { .. })));
}
