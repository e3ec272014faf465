//! Layers that include the batch normalization after them, for inference.

use super::{BatchNorm, BatchNorm1d, Conv, Linear};
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};

/// Returns a convolution that computes the convolution and the batch normalization after it in evaluation mode:
/// PyTorch's `torch.nn.utils.fuse_conv_bn_eval`.
///
/// In evaluation, the normalization is the affine map y = s·x + t of each channel, with s = weight / √(var + eps) and t
/// = bias − s·mean. The fused layer has the weight s·W and the bias s·b + t, in new parameters; neither layer changes.
///
/// ```
/// use pellucid::nn::{BatchNorm2d, Conv2d, Layer, Module, fuse_conv_bn, with_evaluation_mode};
/// use pellucid::{DType, Tensor};
/// let (conv, norm) = (Conv2d::new(3, 8, 3).padding(1).bias(false), BatchNorm2d::new(8));
/// let x = Tensor::randn([2, 3, 5, 5], DType::F32);
/// norm.forward(&conv.forward(&x));
/// let fused = fuse_conv_bn(&conv, &norm)?;
/// let expected = with_evaluation_mode(|| norm.forward(&conv.forward(&x)));
/// assert!((fused.forward(&x) - expected).abs().max(..).item::<f32>() < 1e-5);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if the normalization has another number of channels; [`Error::InvalidArgument`] if it has
/// no running statistics; [`Error::DTypeMismatch`] if its dtype is not the dtype of the weight.
#[doc(alias = "fuse_conv_bn_eval")]
pub fn fuse_conv_bn<const N: usize>(conv: &Conv<N>, norm: &BatchNorm<N>) -> Result<Conv<N>> {
    let (weight, bias) = fused("fuse_conv_bn", &conv.weight, conv.bias.as_ref(), norm)?;
    let mut layer = conv.clone();
    (layer.weight, layer.bias) = (weight, Some(bias));
    Ok(layer)
}

/// Returns a linear layer that computes the layer and the batch normalization of its outputs `[B, out]` in evaluation
/// mode: PyTorch's `torch.nn.utils.fuse_linear_bn_eval`. See [`fuse_conv_bn`].
///
/// # Errors
/// The errors of [`fuse_conv_bn`].
#[doc(alias = "fuse_linear_bn_eval")]
pub fn fuse_linear_bn(linear: &Linear, norm: &BatchNorm1d) -> Result<Linear> {
    let (weight, bias) = fused("fuse_linear_bn", &linear.weight, linear.bias.as_ref(), norm)?;
    Ok(Linear { weight, bias: Some(bias) })
}

/// Returns the weight s·W and the bias s·b + t. The first axis of W is the axis of output channels.
fn fused<const N: usize>(
    op: &'static str,
    weight: &Parameter,
    bias: Option<&Parameter>,
    norm: &BatchNorm<N>,
) -> Result<(Parameter, Parameter)> {
    let _off = no_grad();
    let [scale, shift] = norm.evaluation_map(op)?;
    if scale.shape()[0] != weight.shape()[0] {
        let help = "the normalization must have as many channels as the layer has outputs";
        return Err(Error::shapes(op, [weight.shape(), scale.shape()], help));
    }
    let dtype = weight.dtype();
    if norm.running_mean.as_ref().is_some_and(|mean| mean.dtype() != dtype) {
        let help = "the layers must have the same dtype; convert one of them with to_dtype_()";
        return Err(Error::dtypes(op, [dtype, scale.dtype()], help));
    }
    let wide = |values: &Tensor| ops::to_dtype(values, dtype.promote(DType::F32));
    let parameter = |values: Tensor| {
        let parameter = Parameter::try_new(ops::to_dtype(&values, dtype)?)?;
        parameter.set_requires_grad(weight.requires_grad())?;
        Ok(parameter)
    };
    let mut per_output = vec![1; weight.rank()];
    per_output[0] = scale.shape()[0];
    let scaled = ops::mul(&wide(weight)?, &ops::reshape(&scale, per_output)?)?;
    let bias = match bias {
        Some(bias) => ops::add(&ops::mul(&wide(bias)?, &scale)?, &shift)?,
        None => shift,
    };
    Ok((parameter(scaled)?, parameter(bias)?))
}
