//! Normalization within a sample: over its last axes, groups of channels, or neighbouring channels.

use super::spatial::check_channels;
use super::switch::{switched, switched_affine, values_like};
use crate::call;
use crate::init;
use crate::input_dtype::check_optional_dtype;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::Parameter;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Error, OptionRange, Result, Shape, Tensor, ops, unwrap};

/// Layer normalization (Ba, Kiros & Hinton 2016): over the last axes, (x − mean) / √(var + eps)·weight + bias, with the
/// biased variance.
///
/// eps defaults to 1e-5; the weight starts at 1, the bias at 0.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct LayerNorm {
    /// The scale, of the shape of the last axes.
    pub weight: Option<Parameter>,
    /// The bias, of the shape of the last axes.
    pub bias: Option<Parameter>,
    shape: Shape,
    /// The constant added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Creates a layer for last axes of this shape: `LayerNorm::new(512)`, `LayerNorm::new([8, 8])`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(shape: impl Into<Shape>) -> Result<LayerNorm> {
        let shape = shape.into();
        let [weight, bias] = init::try_affine("layer_norm", &shape)?;
        Ok(LayerNorm { weight: Some(weight), bias: Some(bias), shape, eps: 1e-5 })
    }

    /// Creates a layer for the length of the last axis of its first input.
    pub fn lazy() -> Lazy<LayerNorm> {
        Lazy::new(|input| last_axis_length("layer_norm", input).and_then(LayerNorm::try_new))
    }

    /// Sets eps, which is added to the variance.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<LayerNorm> {
        OptionRange::NONNEGATIVE.check("layer_norm", "eps", eps, 1e-5)?;
        Ok(LayerNorm { eps, ..self })
    }

    /// Sets whether the layer has a bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<LayerNorm> {
        let zeros = || values_like("layer_norm", self.weight.as_deref(), || init::try_zeros(&self.shape));
        Ok(LayerNorm { bias: switched(bias, self.bias, zeros)?, ..self })
    }

    /// Sets whether the layer has a weight and a bias. For a layer that has a weight, `true` changes nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "elementwise_affine")]
    #[panicking_form]
    pub fn try_affine(self, affine: bool) -> Result<LayerNorm> {
        let [weight, bias] = switched_affine("layer_norm", affine, [self.weight, self.bias], None, &self.shape)?;
        Ok(LayerNorm { weight, bias, ..self })
    }

    /// Returns the shape of the last axes.
    #[doc(alias = "normalized_shape")]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl Layer for LayerNorm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_optional_dtype("layer_norm", x, [self.weight.as_deref(), self.bias.as_deref()])?;
        check_last_axes("layer_norm", "LayerNorm", x, &self.shape)?;
        ops::layer_norm(x, &self.shape, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

/// Returns an error if the last axes of x do not have the shape that the layer expects.
fn check_last_axes(op: &'static str, layer: &str, x: &Tensor, shape: &Shape) -> Result<()> {
    if x.shape().ends_with(shape) {
        return Ok(());
    }
    let help = match x.rank().checked_sub(shape.rank()) {
        Some(other_axes) if shape.rank() > 0 => {
            let given = Shape::from(&x.shape()[other_axes..]);
            format!("the last axes of the input are {given}, but the layer expects {shape}; use {layer}::new({given})")
        }
        _ => format!("the last axes of the input must be {shape}, as the layer expects"),
    };
    Err(Error::shapes(op, [x.shape()], help))
}

/// Returns the length of the last axis.
fn last_axis_length(op: &'static str, input: &Shape) -> Result<usize> {
    input
        .last()
        .copied()
        .ok_or_else(|| Error::shapes(op, [input], "the input must have at least one axis; unsqueeze() adds one"))
}

/// Root-mean-square normalization (Zhang & Sennrich 2019): over the last axes, x / √(mean(x²) + eps)·weight.
///
/// eps defaults to the machine epsilon of x's dtype; the weight starts at 1.
#[doc(alias = "RMSNorm")]
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct RmsNorm {
    /// The scale, of the shape of the last axes.
    pub weight: Option<Parameter>,
    shape: Shape,
    /// The constant added to the mean square; `None` means the machine epsilon of x's dtype.
    pub eps: Option<f64>,
}

impl RmsNorm {
    /// Creates a layer for last axes of this shape: `RmsNorm::new(512)`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(shape: impl Into<Shape>) -> Result<RmsNorm> {
        let shape = shape.into();
        Ok(RmsNorm { weight: Some(call::name_layer("rms_norm", init::try_ones(&shape))?), shape, eps: None })
    }

    /// Creates a layer for the length of the last axis of its first input.
    pub fn lazy() -> Lazy<RmsNorm> {
        Lazy::new(|input| last_axis_length("rms_norm", input).and_then(RmsNorm::try_new))
    }

    /// Sets eps, which is added to the mean square.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<RmsNorm> {
        OptionRange::NONNEGATIVE.check("rms_norm", "eps", eps, 1e-6)?;
        Ok(RmsNorm { eps: Some(eps), ..self })
    }

    /// Sets whether the layer has a weight.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "elementwise_affine")]
    #[panicking_form]
    pub fn try_affine(self, affine: bool) -> Result<RmsNorm> {
        let ones = || call::name_layer("rms_norm", init::try_ones(&self.shape));
        Ok(RmsNorm { weight: switched(affine, self.weight, ones)?, ..self })
    }

    /// Returns the shape of the last axes.
    #[doc(alias = "normalized_shape")]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl Layer for RmsNorm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_optional_dtype("rms_norm", x, [self.weight.as_deref()])?;
        check_last_axes("rms_norm", "RmsNorm", x, &self.shape)?;
        let eps = self.eps.or_else(|| x.dtype().epsilon()).unwrap_or_default();
        ops::rms_norm(x, &self.shape, self.weight.as_deref(), eps)
    }
}

/// Group normalization (Wu & He 2018) of x `[B, C, ..]`: each group of channels of each sample gets mean 0 and variance
/// 1; then every channel is multiplied by its weight and its bias is added.
///
/// eps defaults to 1e-5; the weight starts at 1, the bias at 0.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct GroupNorm {
    /// The scale of each channel, `[C]`.
    pub weight: Option<Parameter>,
    /// The bias of each channel, `[C]`.
    pub bias: Option<Parameter>,
    groups: usize,
    /// The constant added to the variance.
    pub eps: f64,
    #[module(skip)]
    channels: usize,
}

impl GroupNorm {
    /// Creates a layer that splits the channels into groups.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of groups is 0 or does not divide the number of channels;
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(groups: usize, channels: usize) -> Result<GroupNorm> {
        if channels == 0 {
            return Err(Error::invalid("group_norm", "the number of channels must be at least 1"));
        }
        if groups == 0 || !channels.is_multiple_of(groups) {
            let reason = format!(
                "the number of groups, {groups}, must divide the number of channels, {channels}; use 1, {channels} or \
                 another divisor"
            );
            return Err(Error::invalid("group_norm", reason));
        }
        let [weight, bias] = init::try_affine("group_norm", channels)?;
        Ok(GroupNorm { weight: Some(weight), bias: Some(bias), groups, eps: 1e-5, channels })
    }

    /// Creates a layer for the length of axis 1 of its first input.
    pub fn lazy(groups: usize) -> Lazy<GroupNorm> {
        Lazy::new(move |input| match input.get(1) {
            Some(&channels) => GroupNorm::try_new(groups, channels),
            None => Err(Error::shapes("group_norm", [input], "the input must have shape [B, C, ..]")),
        })
    }

    /// Sets eps, which is added to the variance.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<GroupNorm> {
        OptionRange::NONNEGATIVE.check("group_norm", "eps", eps, 1e-5)?;
        Ok(GroupNorm { eps, ..self })
    }

    /// Sets whether the layer has a weight and a bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_affine(self, affine: bool) -> Result<GroupNorm> {
        let [weight, bias] = switched_affine("group_norm", affine, [self.weight, self.bias], None, self.channels)?;
        Ok(GroupNorm { weight, bias, ..self })
    }

    /// Returns the number of groups.
    #[doc(alias = "num_groups")]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }
}

impl Layer for GroupNorm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_optional_dtype("group_norm", x, [self.weight.as_deref(), self.bias.as_deref()])?;
        if let Some(&given) = x.shape().get(1) {
            let make = |channels| format!("GroupNorm::new({}, {channels})", self.groups);
            check_channels("group_norm", x, given, self.channels, make)?;
        }
        ops::group_norm(x, self.groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

/// Local response normalization (Krizhevsky, Sutskever & Hinton 2012) of x `[B, C, ..]`: x / (k + alpha·m)^beta, m the
/// mean of x² over `size` neighbouring channels.
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct LocalResponseNorm {
    /// The number of neighbouring channels.
    pub size: usize,
    /// The weight of the mean; default 1e-4.
    pub alpha: f64,
    /// The exponent; default 0.75.
    pub beta: f64,
    /// The constant added to the mean; default 1.
    pub k: f64,
}

impl LocalResponseNorm {
    /// Creates a layer over this many neighbouring channels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    #[panicking_form]
    pub fn try_new(size: usize) -> Result<LocalResponseNorm> {
        if size == 0 {
            return Err(Error::invalid("local_response_norm", "size must be at least 1, got 0; try 5"));
        }
        Ok(LocalResponseNorm { size, alpha: 1e-4, beta: 0.75, k: 1.0 })
    }

    /// Sets alpha, the weight of the mean.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    #[must_use]
    pub fn try_alpha(self, alpha: f64) -> Result<LocalResponseNorm> {
        OptionRange::NONNEGATIVE.check("local_response_norm", "alpha", alpha, 1e-4)?;
        Ok(LocalResponseNorm { alpha, ..self })
    }

    /// Sets beta, the exponent.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not finite.
    #[panicking_form]
    #[must_use]
    pub fn try_beta(self, beta: f64) -> Result<LocalResponseNorm> {
        OptionRange::FINITE.check("local_response_norm", "beta", beta, 0.75)?;
        Ok(LocalResponseNorm { beta, ..self })
    }

    /// Sets k, the constant added to the mean.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    #[must_use]
    pub fn try_k(self, k: f64) -> Result<LocalResponseNorm> {
        OptionRange::NONNEGATIVE.check("local_response_norm", "k", k, 1.0)?;
        Ok(LocalResponseNorm { k, ..self })
    }
}

impl Layer for LocalResponseNorm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::local_response_norm(x, self.size, self.alpha, self.beta, self.k)
    }
}
