//! Convolutions and transposed convolutions over one, two or three spatial axes.

use super::pad::pad_last;
use super::spatial::{PerAxis, by_axes, channels, positive};
use super::switch::uniform_bias;
use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::Parameter;
use crate::visit::{ModulePart, Visit, Visitor};
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::{PaddingMode, Spatial};
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};

/// The padding of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding<const N: usize> {
    /// The same padding before and after each axis, one number per axis.
    Both([usize; N]),
    /// Padding for outputs of the length of the inputs; requires stride 1. If the total padding of an axis is odd, the
    /// end has one element more than the start.
    Same,
}

impl<const N: usize, T: Into<PerAxis<N>>> From<T> for Padding<N> {
    fn from(both: T) -> Padding<N> {
        Padding::Both(both.into().0)
    }
}

/// A convolution (cross-correlation) over N spatial axes (LeCun et al. 1989), for x `[B, in, spatial..]` or
/// `[in, spatial..]`; see [`Conv1d`], [`Conv2d`] and [`Conv3d`].
///
/// An axis of length L becomes `⌊(L + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1`. Weight and bias start
/// uniform on ±1/√(in / groups · taps), PyTorch's default.
///
/// ```
/// use pellucid::nn::{Conv2d, Layer, Padding};
/// let stem = Conv2d::new(3, 64, 7).stride(2).padding(3).bias(false);
/// assert_eq!(stem.output_shape(&[1, 3, 224, 224])?.dims(), [1, 64, 112, 112]);
/// let depthwise = Conv2d::new(64, 64, [3, 5]).groups(64).padding(Padding::Same);
/// assert_eq!(depthwise.output_shape(&[1, 64, 9, 9])?.dims(), [1, 64, 9, 9]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
#[module(class = by_axes::<_, N>(["Conv1d", "Conv2d", "Conv3d"]))]
pub struct Conv<const N: usize> {
    /// The weight, `[out, in / groups, taps..]`.
    pub weight: Parameter,
    /// The bias, `[out]`.
    pub bias: Option<Parameter>,
    settings: ConvSettings<N>,
    /// The padding.
    pub padding: Padding<N>,
    /// The values of the padding; `None` means zeros.
    pub padding_mode: Option<PaddingMode>,
}

/// A convolution over one axis: x is `[B, in, L]`.
pub type Conv1d = Conv<1>;
/// A convolution over two axes: x is `[B, in, H, W]`.
pub type Conv2d = Conv<2>;
/// A convolution over three axes: x is `[B, in, D, H, W]`.
pub type Conv3d = Conv<3>;

/// The settings that convolutions and transposed convolutions share.
#[derive(Clone, Copy, Debug)]
struct ConvSettings<const N: usize> {
    kernel: [usize; N],
    stride: [usize; N],
    dilation: [usize; N],
    groups: usize,
}

impl<const N: usize> Visit for ConvSettings<N> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.setting("kernel", &self.kernel);
        visitor.setting("stride", &self.stride);
        if self.dilation != [1; N] {
            visitor.setting("dilation", &self.dilation);
        }
        if self.groups != 1 {
            visitor.setting("groups", &self.groups);
        }
    }
}

impl<const N: usize> Visit for Padding<N> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self {
            Padding::Both(both) => visitor.part(ModulePart::Setting(both)),
            Padding::Same => visitor.part(ModulePart::Setting(self)),
        }
    }
}

impl<const N: usize> ConvSettings<N> {
    /// Creates the default settings for a kernel of this size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length of 0.
    fn new(layer: &'static str, kernel: [usize; N]) -> Result<ConvSettings<N>> {
        let kernel = positive(layer, "kernel", kernel, "use 1 for an axis along which the kernel has one tap")?;
        Ok(ConvSettings { kernel, stride: [1; N], dilation: [1; N], groups: 1 })
    }

    fn options(&self) -> ops::ConvOptions {
        ops::ConvOptions {
            stride: self.stride.into(),
            dilation: self.dilation.into(),
            groups: self.groups,
            ..Default::default()
        }
    }

    /// Draws a uniform weight `[first, second / groups, taps..]`, where `channels` is [first, second], and a bias of
    /// `bias` elements, unless `bias` is `None`. `kinds` names the two numbers of channels in errors.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of groups does not divide both numbers; [`Error::OutOfMemory`].
    #[track_caller]
    fn draw_parameters(
        &self,
        layer: &'static str,
        kinds: [&str; 2],
        channels: [usize; 2],
        bias: Option<usize>,
    ) -> Result<(Parameter, Option<Parameter>)> {
        self.check_groups(layer, kinds, channels)?;
        let [first, second] = [channels[0], channels[1] / self.groups];
        let bound = init::uniform_bound(self.kernel.iter().fold(second, |fan, &length| fan.saturating_mul(length)));
        let shape: Vec<usize> = [first, second].into_iter().chain(self.kernel).collect();
        let weight = call::name_layer(layer, init::try_uniform(shape, -bound, bound))?;
        let bias = bias.map(|count| call::name_layer(layer, init::try_uniform(count, -bound, bound))).transpose()?;
        Ok((weight, bias))
    }

    /// Returns the weight and the bias for the number of groups: the given ones, reduced to the channels of a group and
    /// scaled to the range of [`draw_parameters`](ConvSettings::draw_parameters). If the weight has too few channels,
    /// both are drawn anew.
    ///
    /// # Errors
    /// The errors of [`draw_parameters`](ConvSettings::draw_parameters).
    #[track_caller]
    fn regroup(
        &self,
        layer: &'static str,
        kinds: [&str; 2],
        channels: [usize; 2],
        weight: Parameter,
        bias: Option<Parameter>,
    ) -> Result<(Parameter, Option<Parameter>)> {
        self.check_groups(layer, kinds, channels)?;
        let (drawn, per_group) = (weight.shape()[1], channels[1] / self.groups);
        if drawn == per_group {
            return Ok((weight, bias));
        }
        if drawn < per_group {
            return init::in_dtype(weight.dtype(), || {
                self.draw_parameters(layer, kinds, channels, bias.map(|bias| bias.size()))
            });
        }
        let _off = no_grad();
        let scale = init::uniform_bound(per_group) / init::uniform_bound(drawn);
        let scaled = |values: &Tensor| ops::mul(values, scale).and_then(Parameter::try_new);
        let weight = ops::narrow(&weight, 1, 0, per_group).and_then(|weight| scaled(&weight));
        Ok((call::name_layer(layer, weight)?, bias.map(|bias| call::name_layer(layer, scaled(&bias))).transpose()?))
    }

    fn check_groups(&self, layer: &'static str, kinds: [&str; 2], channels: [usize; 2]) -> Result<()> {
        let ([first, second], groups) = (channels, self.groups);
        if groups == 0 || channels.iter().any(|count| !count.is_multiple_of(groups)) {
            let reason = format!(
                "the number of groups, {groups}, must divide {first}, the number of {} channels, and {second}, the \
                 number of {} channels; use groups(1), or other numbers of channels",
                kinds[0], kinds[1]
            );
            return Err(Error::invalid(layer, reason));
        }
        Ok(())
    }
}

/// Implements the options that convolutions and transposed convolutions share. `$names` are their names in errors for
/// one, two and three axes, `$kinds` the channels on the first two axes of the weight, and `$output_axis` the axis
/// of its output channels.
macro_rules! convolution_options {
    ($layer:ident, $names:expr, $kinds:expr, $output_axis:literal) => {
        impl<const N: usize> $layer<N> {
            /// The name of the layer in errors.
            const NAME: &'static str = by_axes::<_, N>($names);

            /// Sets the stride.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] for a stride of 0.
            #[panicking_form]
            pub fn try_stride(self, stride: impl Into<PerAxis<N>>) -> Result<$layer<N>> {
                let stride = positive(Self::NAME, "stride", stride, Spatial::DEFAULT_IS_ONE)?;
                Ok($layer { settings: ConvSettings { stride, ..self.settings }, ..self })
            }

            /// Returns the kernel size.
            #[doc(alias = "kernel_size")]
            pub fn kernel(&self) -> [usize; N] {
                self.settings.kernel
            }

            /// Sets the dilation, the distance between taps of the kernel.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] for a dilation of 0.
            #[panicking_form]
            pub fn try_dilation(self, dilation: impl Into<PerAxis<N>>) -> Result<$layer<N>> {
                let dilation = positive(Self::NAME, "dilation", dilation, Spatial::DEFAULT_IS_ONE)?;
                Ok($layer { settings: ConvSettings { dilation, ..self.settings }, ..self })
            }

            /// Splits the channels into groups: the output channels of a group depend on its input channels only. The
            /// weight keeps the values of the channels that its new shape contains, and weight and bias are scaled to
            /// the range of their initial values for this shape. With fewer groups than before, both are initialized
            /// again.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if `groups` does not divide both numbers of channels;
            /// [`Error::OutOfMemory`].
            #[panicking_form]
            pub fn try_groups(self, groups: usize) -> Result<$layer<N>> {
                let channels = [self.weight.shape()[0], self.weight.shape()[1] * self.settings.groups];
                let settings = ConvSettings { groups, ..self.settings };
                let (weight, bias) = settings.regroup(Self::NAME, $kinds, channels, self.weight, self.bias)?;
                Ok($layer { weight, bias, settings, ..self })
            }

            /// Sets whether the layer has a bias. An added bias is initialized as in `new`.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`].
            #[panicking_form]
            pub fn try_bias(self, bias: bool) -> Result<$layer<N>> {
                let shape = self.weight.shape();
                let outputs = [shape[0], shape[1] * self.settings.groups][$output_axis];
                let inputs = shape[1..].iter().product();
                let bias = uniform_bias(Self::NAME, bias, self.bias, &self.weight, outputs, inputs)?;
                Ok($layer { bias, ..self })
            }
        }
    };
}
convolution_options!(Conv, ["conv1d", "conv2d", "conv3d"], ["output", "input"], 0);
convolution_options!(
    ConvTranspose,
    ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
    ["input", "output"],
    1
);

impl<const N: usize> Conv<N> {
    /// Creates a layer from `inputs` to `outputs` channels with this kernel size; stride 1, no padding, dilation 1, one
    /// group, with bias.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a kernel size of 0; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(inputs: usize, outputs: usize, kernel: impl Into<PerAxis<N>>) -> Result<Conv<N>> {
        let settings = ConvSettings::new(Self::NAME, kernel.into().0)?;
        let (weight, bias) =
            settings.draw_parameters(Self::NAME, ["output", "input"], [outputs, inputs], Some(outputs))?;
        Ok(Conv { weight, bias, settings, padding: 0.into(), padding_mode: None })
    }

    /// Creates a lazy layer with `outputs` output channels. The first input determines the number of input channels.
    /// Set options with [`Lazy::with`]: `Conv2d::lazy(64, 3).with(|conv| conv.padding(1))`.
    pub fn lazy(outputs: usize, kernel: impl Into<PerAxis<N>>) -> Lazy<Conv<N>> {
        let kernel = kernel.into();
        Lazy::new(move |input| Conv::try_new(channels::<N>("conv", input)?, outputs, kernel))
    }

    /// Sets the padding.
    pub fn padding(self, padding: impl Into<Padding<N>>) -> Conv<N> {
        Conv { padding: padding.into(), ..self }
    }

    /// Sets the values of the padding; zeros by default.
    pub fn padding_mode(self, mode: PaddingMode) -> Conv<N> {
        Conv { padding_mode: Some(mode), ..self }
    }

    /// Returns the options of the convolution. They include the padding, whatever the padding mode is.
    pub fn options(&self) -> ops::ConvOptions {
        let padding = match self.padding {
            Padding::Both(both) => both.into(),
            Padding::Same => ops::ConvPadding::Same,
        };
        ops::ConvOptions { padding, ..self.settings.options() }
    }

    /// Returns the padding (before, after) of every axis.
    fn pad_widths(&self) -> [(isize, isize); N] {
        // A saturated width exceeds every axis, so the padding operation returns an error.
        let width = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        std::array::from_fn(|a| match self.padding {
            Padding::Both(both) => (width(both[a]), width(both[a])),
            Padding::Same => {
                let reach = self.settings.dilation[a].saturating_mul(self.settings.kernel[a].saturating_sub(1));
                (width(reach / 2), width(reach - reach / 2))
            }
        })
    }
}

impl<const N: usize> Layer for Conv<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.output(&self.weight, x)
    }
}

impl<const N: usize> Conv<N> {
    /// Returns the output with this weight.
    pub(super) fn output(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.output_with(weight, self.bias.as_deref(), x)
    }

    /// Returns the number of groups.
    pub(super) fn group_count(&self) -> usize {
        self.settings.groups
    }

    /// Returns the output with this weight and this bias.
    pub(super) fn output_with(&self, weight: &Tensor, bias: Option<&Tensor>, x: &Tensor) -> Result<Tensor> {
        let conv = by_axes::<_, N>([ops::conv1d, ops::conv2d, ops::conv3d]);
        check_input_dtype(Self::NAME, x, weight)?;
        let Some(mode) = self.padding_mode else { return conv(x, weight, bias, self.options()) };
        if self.padding == Padding::Same && self.settings.stride != [1; N] {
            return Err(Error::invalid(Self::NAME, "padding \"same\" requires stride 1; set a numeric padding"));
        }
        conv(&pad_last(x, self.pad_widths(), mode)?, weight, bias, self.settings.options())
    }
}

/// A transposed convolution over N spatial axes (Zeiler et al. 2010), for x `[B, in, spatial..]` or `[in, spatial..]`;
/// see [`ConvTranspose1d`], [`ConvTranspose2d`] and [`ConvTranspose3d`].
///
/// An axis of length L becomes `(L − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`. Weight and
/// bias start uniform on ±1/√(out / groups · taps), PyTorch's default.
///
/// ```
/// use pellucid::nn::{ConvTranspose2d, Layer};
/// let up = ConvTranspose2d::new(64, 32, 4).stride(2).padding(1);
/// assert_eq!(up.output_shape(&[1, 64, 8, 8])?.dims(), [1, 32, 16, 16]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
#[module(class = by_axes::<_, N>(["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]))]
pub struct ConvTranspose<const N: usize> {
    /// The weight, `[in, out / groups, taps..]`.
    pub weight: Parameter,
    /// The bias, `[out]`.
    pub bias: Option<Parameter>,
    settings: ConvSettings<N>,
    /// The padding, which is cut off at both ends of the output.
    pub padding: [usize; N],
    /// The number of additional outputs at the end of every axis.
    pub output_padding: [usize; N],
}

/// A transposed convolution over one axis: x is `[B, in, L]`.
pub type ConvTranspose1d = ConvTranspose<1>;
/// A transposed convolution over two axes: x is `[B, in, H, W]`.
pub type ConvTranspose2d = ConvTranspose<2>;
/// A transposed convolution over three axes: x is `[B, in, D, H, W]`.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// Creates a layer from `inputs` to `outputs` channels with this kernel size; stride 1, no padding, dilation 1, one
    /// group, with bias.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a kernel size of 0; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(inputs: usize, outputs: usize, kernel: impl Into<PerAxis<N>>) -> Result<ConvTranspose<N>> {
        let settings = ConvSettings::new(Self::NAME, kernel.into().0)?;
        let (weight, bias) =
            settings.draw_parameters(Self::NAME, ["input", "output"], [inputs, outputs], Some(outputs))?;
        Ok(ConvTranspose { weight, bias, settings, padding: [0; N], output_padding: [0; N] })
    }

    /// Creates a lazy layer with `outputs` output channels. The first input determines the number of input channels;
    /// see [`Conv::lazy`].
    pub fn lazy(outputs: usize, kernel: impl Into<PerAxis<N>>) -> Lazy<ConvTranspose<N>> {
        let kernel = kernel.into();
        Lazy::new(move |input| ConvTranspose::try_new(channels::<N>("conv_transpose", input)?, outputs, kernel))
    }

    /// Sets the padding, which is cut off at both ends of the output.
    pub fn padding(self, padding: impl Into<PerAxis<N>>) -> ConvTranspose<N> {
        ConvTranspose { padding: padding.into().0, ..self }
    }

    /// Sets the number of additional outputs at the end of every axis, less than the larger of stride and dilation.
    pub fn output_padding(self, more: impl Into<PerAxis<N>>) -> ConvTranspose<N> {
        ConvTranspose { output_padding: more.into().0, ..self }
    }

    /// Returns the output with these spatial lengths, instead of those from `output_padding`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for lengths that are impossible
    /// for this input.
    #[panicking_form]
    pub fn try_forward_to(&self, x: &Tensor, dims: [usize; N]) -> Result<Tensor> {
        call::call_unary(self, x, |x| self.transposed(&self.weight, x, self.output_padding_for(x, dims)?))
    }

    /// Returns the output padding with which the output has these spatial lengths.
    fn output_padding_for(&self, x: &Tensor, dims: [usize; N]) -> Result<[usize; N]> {
        channels::<N>("conv_transpose", x.shape())?;
        let ConvSettings { kernel, stride, dilation, .. } = self.settings;
        let mut more = [0; N];
        for a in 0..N {
            let steps = x.shape()[x.rank() - N + a].saturating_sub(1).saturating_mul(stride[a]);
            let reach = dilation[a].saturating_mul(kernel[a].saturating_sub(1));
            let min_len = steps.saturating_add(reach).saturating_add(1);
            let padding = self.padding[a].saturating_mul(2);
            let excess = dims[a].saturating_add(padding).checked_sub(min_len);
            more[a] = excess.filter(|&more| more < stride[a].max(dilation[a])).ok_or_else(|| {
                let min = min_len.saturating_sub(padding);
                let max = min_len.saturating_add(stride[a].max(dilation[a]) - 1).saturating_sub(padding);
                let reason = format!(
                    "an input of shape {} cannot have an output of lengths {dims:?}: the length of spatial axis {a} \
                     must be in {min}..={max}",
                    x.shape()
                );
                Error::invalid("conv_transpose", reason)
            })?;
        }
        Ok(more)
    }

    /// Returns the options.
    pub fn options(&self) -> ops::ConvOptions {
        let (padding, output_padding) = (self.padding.into(), self.output_padding.into());
        ops::ConvOptions { padding, output_padding, ..self.settings.options() }
    }

    fn transposed(&self, weight: &Tensor, x: &Tensor, more: [usize; N]) -> Result<Tensor> {
        let conv = by_axes::<_, N>([ops::conv_transpose1d, ops::conv_transpose2d, ops::conv_transpose3d]);
        check_input_dtype(Self::NAME, x, weight)?;
        let options = ops::ConvOptions { output_padding: more.into(), ..self.options() };
        conv(x, weight, self.bias.as_deref(), options)
    }

    /// Returns the output with this weight.
    pub(super) fn output(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.transposed(weight, x, self.output_padding)
    }
}

impl<const N: usize> Layer for ConvTranspose<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.output(&self.weight, x)
    }
}
