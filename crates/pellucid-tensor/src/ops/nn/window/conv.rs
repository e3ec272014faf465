//! Convolutions and transposed convolutions.

use super::{Spatial, SpatialImages};
use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::ops::formula::map_in;
use crate::ops::primitive::precision::{in_policy_dtype, round_to_operands, widened_dtype};
use crate::ops::primitive::sparse::{SparseMatrix, multiply_axis};
use crate::ops::primitive::{copy, fill, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, ConvPart, Kernel, Window};
use pellucid_ir::{DType, Error, Result, Shape, formula};

/// A derivative of T(x, w, y) = Σ x[n, c, s·o + d·t − b]·w[k, c, t]·y[n, k, o] with respect to one argument. The inputs
/// are the other two arguments.
///
/// T is linear in each argument, so the gradient of a derivative is again a derivative of T, where g replaces one
/// argument. This holds for every derivative and argument, so gradients of every order exist.
#[derive(Clone)]
struct Convolution {
    window: Window,
    groups: usize,
    part: ConvPart,
    /// The shape of the result.
    shape: Shape,
    /// The dtype of the inputs.
    factors: DType,
    /// The dtype of the result: the dtype of the inputs, or `f32` for a result in half precision that is rounded later.
    dtype: DType,
}

impl Convolution {
    fn with_part(&self, part: ConvPart, shape: Shape) -> Convolution {
        Convolution { part, shape, dtype: self.factors, ..self.clone() }
    }
}

impl Operation for Convolution {
    fn name(&self) -> &'static str {
        "conv"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let device = Array::common_device("conv", inputs)?;
        for i in 0..2 {
            if saves.needs(1 - i) {
                saves.input(i);
            }
        }
        let out = Array::new(device, self.dtype, self.shape.clone())?;
        let (x, y) = match self.part {
            ConvPart::Output => (inputs[0].shape(), &self.shape),
            ConvPart::Input => (&self.shape, inputs[1].shape()),
            ConvPart::Weight => (inputs[0].shape(), inputs[1].shape()),
        };
        let window = without_unused_stride(self.window, x, y);
        let kernel = kernel::Conv { window, groups: self.groups, part: self.part };
        engine::submit(&Kernel::Conv(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        use ConvPart::{Input, Output, Weight};
        // Both gradients read g. If g is a broadcast view, such as the gradient of a sum, both share one copy.
        let g = copy::contiguous(&copy::to_dtype(&grads.get(0)?, self.factors)?)?;
        // The roles (x, w or y) of the first and the second input.
        let parts = match self.part {
            Output => [Input, Weight],
            Input => [Weight, Output],
            Weight => [Input, Output],
        };
        let gradient = |i: usize| {
            let other = saved.input(1 - i)?;
            let operation = self.with_part(parts[i], saved.input_shape(i));
            let first = parts[1 - i].output_index() < self.part.output_index();
            apply_one(operation, &if first { [&other, &g] } else { [&g, &other] })
        };
        (0..2).map(|i| needs.contains(i).then(|| gradient(i)).transpose()).collect()
    }
}

/// Limits the stride to the length of x along axes with one output, where the stride has no effect. The run time of
/// kernels may be proportional to the stride.
fn without_unused_stride(mut window: Window, x: &Shape, y: &Shape) -> Window {
    for a in 0..3 {
        if y[2 + a] == 1 {
            window.stride[a] = window.stride[a].min(x[2 + a].max(1));
        }
    }
    window
}

/// The zero padding of a convolution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConvPadding {
    /// Padding at both ends of every axis.
    Both(Spatial),
    /// Padding for which output and input have the same length. Odd padding has one more element at the end. Requires
    /// stride 1.
    Same,
}

impl<T: Into<Spatial>> From<T> for ConvPadding {
    fn from(both: T) -> ConvPadding {
        ConvPadding::Both(both.into())
    }
}

/// Options of a convolution. The default is PyTorch's: stride 1, no padding, dilation 1, one group.
///
/// ```
/// use pellucid::{DType, Tensor, ops::{ConvOptions, ConvPadding}};
/// let (x, w) = (Tensor::ones([1, 4, 8, 8], DType::F32), Tensor::ones([6, 2, 3, 3], DType::F32));
/// assert_eq!(x.conv2d(&w, None, ConvOptions { groups: 2, ..Default::default() }).shape().dims(), [1, 6, 6, 6]);
/// let strided = ConvOptions { groups: 2, stride: 2.into(), padding: 1.into(), ..Default::default() };
/// assert_eq!(x.conv2d(&w, None, strided).shape().dims(), [1, 6, 4, 4]);
/// let same = ConvOptions { groups: 2, padding: ConvPadding::Same, ..Default::default() };
/// assert_eq!(x.conv2d(&w, None, same).shape().dims(), [1, 6, 8, 8]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvOptions {
    /// The stride between windows.
    pub stride: Spatial,
    /// The zero padding of the input.
    pub padding: ConvPadding,
    /// The spacing of the taps of a window.
    pub dilation: Spatial,
    /// The number of channel groups. The output channels of a group read only the input channels of this group.
    pub groups: usize,
    /// For transposed convolutions: the number of additional outputs at the end of every axis.
    pub output_padding: Spatial,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        let one = Spatial::from(1);
        ConvOptions { stride: one.clone(), padding: 0.into(), dilation: one, groups: 1, output_padding: 0.into() }
    }
}

/// The checked operands of a convolution or its transpose: images and weights with three spatial axes, and the window.
struct ConvOperands {
    images: SpatialImages,
    w: Tensor,
    window: Window,
    /// The padding at the end of each axis.
    after: [usize; 3],
}

impl ConvOperands {
    fn new(op: &'static str, spatial: usize, x: &Tensor, w: &Tensor, options: &ConvOptions) -> Result<ConvOperands> {
        let images = SpatialImages::new(op, x, spatial)?;
        if w.rank() != spatial + 2 || options.groups == 0 {
            let help = format!(
                "the weight must have {} axes, and `groups` must be at least 1, got {}",
                spatial + 2,
                options.groups
            );
            return Err(Error::shapes(op, [x.shape(), w.shape()], help));
        }
        if x.dtype() != w.dtype() || x.dtype() == DType::Bool {
            let help = "x and the weight must have the same non-bool dtype; use to_dtype()";
            return Err(Error::dtypes(op, [x.dtype(), w.dtype()], help));
        }
        let stride = options.stride.to_positive(op, "stride", spatial, Spatial::DEFAULT_IS_ONE)?;
        let dilation = options.dilation.to_positive(op, "dilation", spatial, Spatial::DEFAULT_IS_ONE)?;
        let size = Spatial::from(&w.shape()[2..]).to_positive(op, "the kernel size", spatial, Spatial::ONE_ELEMENT)?;
        let mut window = Window { size, stride, dilation, before: [0; 3] };
        let after = match &options.padding {
            ConvPadding::Both(both) => {
                window.before = both.to_three(op, "padding", spatial, 0)?;
                window.before
            }
            ConvPadding::Same if stride == [1; 3] => {
                let total = [0, 1, 2].map(|a| window.span(a));
                window.before = total.map(|t| t / 2);
                [0, 1, 2].map(|a| total[a] - window.before[a])
            }
            ConvPadding::Same => return Err(Error::invalid(op, "padding \"same\" requires stride 1")),
        };
        let inserted = std::iter::repeat_n(1, 3 - spatial);
        let shape: Shape =
            w.shape()[..2].iter().copied().chain(inserted).chain(w.shape()[2..].iter().copied()).collect();
        Ok(ConvOperands { images, w: view::reshape_to(w, &shape)?, window, after })
    }

    /// Returns an error unless the input has the number of channels that the weight requires, and the number of groups
    /// divides the channel count `divided`. The error message calls these channels `kind`. `axes` are the axes of the
    /// weight.
    fn check_channels(
        &self,
        op: &'static str,
        [x, w]: [&Tensor; 2],
        takes: usize,
        options: &ConvOptions,
        (divided, kind): (usize, &str),
        axes: &str,
    ) -> Result<()> {
        let (channels, groups) = (self.images.x.shape()[1], options.groups);
        let help = match (channels == takes, divided.is_multiple_of(groups)) {
            (true, true) => return Ok(()),
            (true, false) => {
                format!("the number of {kind}channels, {divided}, must be divisible by the number of groups, {groups}")
            }
            (false, _) => format!(
                "the input has {channels} channels, but the weight {axes} requires {takes}{}",
                channels_remedy(x, self.images.spatial, takes, groups)
            ),
        };
        Err(Error::shapes(op, [x.shape(), w.shape()], help))
    }

    /// Computes the derivative `part`, of shape `shape`, from the images and the weight, and adds the bias, if given.
    fn compute(
        &self,
        op: &'static str,
        part: ConvPart,
        shape: [usize; 5],
        groups: usize,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (x, w) = (&self.images.x, &self.w);
        let (factors, dtype) = (w.dtype(), self.sum_dtype(bias));
        let operation = Convolution { window: self.window, groups, part, shape: shape.into(), factors, dtype };
        // The inputs have the order x, w, y.
        let inputs = if part == ConvPart::Output { [x, w] } else { [w, x] };
        self.add_bias(op, &apply_one(operation, &inputs)?, bias)
    }

    /// Restores the original number of axes, and adds the bias, if given, to the channels.
    fn add_bias(&self, op: &'static str, y: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let y = self.images.restore_axes(y)?;
        let Some(bias) = bias else { return Ok(y) };
        let channels = y.shape()[y.rank() - self.images.spatial - 1];
        if bias.shape()[..] != [channels] {
            return Err(Error::shapes(
                op,
                [y.shape(), bias.shape()],
                "the bias must have one value per output channel",
            ));
        }
        if bias.dtype() != self.w.dtype() {
            let help = "the bias must have the dtype of the input; use to_dtype()";
            return Err(Error::dtypes(op, [self.w.dtype(), bias.dtype()], help));
        }
        let shape: Shape = std::iter::once(channels).chain(std::iter::repeat_n(1, self.images.spatial)).collect();
        let added = formula! { static add_bias(y, bias) = y + bias; };
        map_in(added, &[&y, &view::reshape_to(bias, &shape)?], &[], Some(bias.dtype()))
    }

    /// Returns the dtype of the sum before the bias is added: `f32` in half precision, because the result is rounded
    /// once.
    fn sum_dtype(&self, bias: Option<&Tensor>) -> DType {
        match self.w.dtype() {
            DType::F16 | DType::BF16 if bias.is_some() => DType::F32,
            dtype => dtype,
        }
    }
}

/// Returns the remedy for an input with a wrong number of channels. If the last axis has the expected length, the input
/// is probably channels-last. With several groups, the weight may have the wrong number of channels. An input without a
/// batch axis may be a batch without a channel axis.
fn channels_remedy(x: &Tensor, spatial: usize, channels: usize, groups: usize) -> String {
    if groups > 1 || x.shape().last() != Some(&channels) {
        return match (x.rank() == spatial + 1, channels) {
            (true, 1) => format!(
                "; an input of rank {} is one sample [C, ..]: for {} samples of one channel, add the channel axis with \
                 unsqueeze(1)",
                x.rank(),
                x.shape()[0]
            ),
            (true, _) => format!(
                "; an input of rank {} is one sample [C, ..]: add a missing channel axis with unsqueeze(), or make \
                 the channel counts equal",
                x.rank()
            ),
            _ => "; make the channel counts equal".into(),
        };
    }
    let outer_axes = x.rank() - spatial - 1;
    let order: Vec<usize> = (0..outer_axes).chain([x.rank() - 1]).chain(outer_axes..x.rank() - 1).collect();
    format!("; the last axis has length {channels}: if it is the channels, use permute({order:?})")
}

fn conv(
    op: &'static str,
    spatial: usize,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions,
) -> Result<Tensor> {
    in_policy_dtype!(op, [x, w; bias] => conv(op, spatial, x, w, bias, options));
    let start = ConvOperands::new(op, spatial, x, w, options)?;
    let (images, window, groups) = (&start.images, start.window, options.groups);
    let (outputs, takes) = (start.w.shape()[0], start.w.shape()[1].saturating_mul(groups));
    start.check_channels(op, [x, w], takes, options, (outputs, "output "), "[outputs, channels / groups, ..]")?;
    let dims = images.dims();
    let mut shape = [images.x.shape()[0], outputs, 0, 0, 0];
    for a in 0..3 {
        let padded = dims[a] + window.before[a] + start.after[a];
        shape[2 + a] = window.outputs(a, padded).ok_or_else(|| {
            let help = format!(
                "a window of {} does not fit into an axis of length {padded} including padding; add padding, or make the \
                 kernel smaller",
                window.extent(a)
            );
            Error::shapes(op, [x.shape(), w.shape()], help)
        })?;
    }
    start.compute(op, ConvPart::Output, shape, groups, bias)
}

fn conv_transpose(
    op: &'static str,
    spatial: usize,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions,
) -> Result<Tensor> {
    in_policy_dtype!(op, [x, w; bias] => conv_transpose(op, spatial, x, w, bias, options));
    let start = ConvOperands::new(op, spatial, x, w, options)?;
    let (images, window, groups) = (&start.images, start.window, options.groups);
    let takes = start.w.shape()[0];
    start.check_channels(op, [x, w], takes, options, (takes, ""), "[channels, outputs / groups, ..]")?;
    let more = options.output_padding.to_three(op, "output_padding", spatial, 0)?;
    let dims = images.dims();
    let mut shape = [images.x.shape()[0], start.w.shape()[1].saturating_mul(groups), 0, 0, 0];
    for a in 0..3 {
        if more[a] > 0 && more[a] >= window.stride[a].max(window.dilation[a]) {
            let reason = format!(
                "output_padding must be less than the stride or the dilation, got output_padding {}, stride {} and \
                 dilation {}",
                more[a], window.stride[a], window.dilation[a]
            );
            return Err(Error::invalid(op, reason));
        }
        let full = dims[a].saturating_sub(1).checked_mul(window.stride[a]);
        let full = full.and_then(|f| f.checked_add(window.extent(a))?.checked_add(more[a]));
        let padding = window.before[a].saturating_add(start.after[a]);
        let Some(full) = full else { return Err(Error::size_overflow()) };
        shape[2 + a] = full.saturating_sub(padding);
        if full <= padding {
            let help = format!(
                "the padding of both ends, {padding}, leaves no output on an axis, whose length without padding is \
                 {full}; use less padding"
            );
            return Err(Error::shapes(op, [x.shape(), w.shape()], help));
        }
    }
    start.compute(op, ConvPart::Input, shape, groups, bias)
}

macro_rules! convolutions {
    ($($conv:ident, $transpose:ident: $spatial:literal, $axes:literal, $size:literal, $out:literal;)*) => {$(
        #[doc = concat!("Computes the convolution (as a cross-correlation) of x over ", $axes, ".")]
        ///
        /// `y[n, k, o] = Σ x[n, c, stride·o + dilation·t − padding]·w[k, c, t] + bias[k]`, summed over the input
        /// channels c of k's group and the taps t of the window.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`, the weight `[K, C / groups, taps..]`,")]
        #[doc = concat!("the bias `[K]`; y is `[N, K, ", $out, "]` with")]
        /// `L' = ⌊(L + 2·padding − dilation·(taps − 1) − 1) / stride⌋ + 1`. `f16` and `bf16` accumulate in `f32`.
        /// Padding zeros are multiplied like other elements: their product with a weight of NaN or ∞ is NaN.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`] if the shapes or the groups do not fit, or a window is larger than the padded
        /// input; [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for invalid options.
        #[tensor_method(autocast = Half)]
        pub fn $conv(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions) -> Result<Tensor> {
            conv(stringify!($conv), $spatial, x, weight, bias, &options)
        }

        #[doc = concat!("Computes the transposed convolution over ", $axes, " (Zeiler et al. 2010).")]
        ///
        #[doc = concat!("It is the transpose of the linear map of [`", stringify!($conv), "`]:")]
        /// `y[n, k, stride·i + dilation·t − padding] = Σ x[n, c, i]·w[c, k, t] + bias[k]`.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`, the weight `[C, K / groups, taps..]`,")]
        /// the bias `[K]`; an axis of length L becomes
        /// `(L − 1)·stride − 2·padding + dilation·(taps − 1) + output_padding + 1`.
        ///
        /// # Errors
        #[doc = concat!("The errors of [`", stringify!($conv), "`]; [`Error::InvalidArgument`] if `output_padding`")]
        /// is neither below the stride nor below the dilation.
        #[tensor_method(autocast = Half)]
        pub fn $transpose(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions) -> Result<Tensor> {
            conv_transpose(stringify!($transpose), $spatial, x, weight, bias, &options)
        }
    )*};
}

convolutions! {
    conv1d, conv_transpose1d: 1, "one axis", "L", "L'";
    conv2d, conv_transpose2d: 2, "two axes", "H, W", "H', W'";
    conv3d, conv_transpose3d: 3, "three axes", "D, H, W", "D', H', W'";
}

/// Computes the sum of each window of the planes `[.., z, y, x]`. Errors name `op`, the operation that computes these
/// sums.
///
/// # Errors
/// [`Error::DTypeMismatch`] for booleans.
pub(crate) fn window_sums(op: &'static str, x: &Tensor, window: Window, outputs: [usize; 3]) -> Result<Tensor> {
    match x.dtype() {
        DType::Bool => Err(Error::dtypes(op, [x.dtype()], "windows of booleans have no sum; use to_dtype()")),
        // The matrix of an axis has a term for each tap of each window. For long windows that overlap, these are too
        // many terms, and a convolution computes the sums.
        dtype if dtype.is_float() && (0..3).all(|a| outputs[a].saturating_mul(window.size[a]) <= x.size()) => {
            window_sums_by_axis(op, x, window, outputs)
        }
        _ => window_sums_by_conv(x, window, outputs),
    }
}

/// Computes the sums along one axis after the other, by products with sparse matrices.
fn window_sums_by_axis(op: &'static str, x: &Tensor, window: Window, outputs: [usize; 3]) -> Result<Tensor> {
    let outer_axes = x.rank() - 3;
    // The intermediate sums are not rounded to half precision.
    let mut sums = copy::to_dtype(x, widened_dtype(&[x]).unwrap_or(x.dtype()))?;
    for a in 0..3 {
        let len = x.shape()[outer_axes + a];
        let is_identity = window.size[a] == 1 && window.stride[a] == 1 && window.before[a] == 0 && outputs[a] == len;
        if is_identity {
            continue;
        }
        let mut matrix = SparseMatrix::new(len, outputs[a], outputs[a].saturating_mul(window.size[a]))?;
        for o in 0..outputs[a] {
            let position = |tap: usize| window.stride[a] * o + window.dilation[a] * tap - window.before[a];
            matrix.push_row(window.taps_inside(a, len, o).map(|tap| (position(tap), 1.0)));
        }
        sums = multiply_axis(op, &sums, outer_axes + a, matrix)?;
    }
    round_to_operands(op, &[x], sums)
}

/// Computes the sums as a convolution of one channel with ones.
fn window_sums_by_conv(x: &Tensor, window: Window, outputs: [usize; 3]) -> Result<Tensor> {
    let shape = x.shape().clone();
    let outer_axes = shape.rank() - 3;
    let planes: usize = shape[..outer_axes].iter().product();
    let flat = |count, dims: &[usize]| -> Shape { [count, 1].iter().chain(dims).copied().collect() };
    let ones = fill::ones(flat(1, &window.size), x.dtype())?;
    let operation = Convolution {
        window,
        groups: 1,
        part: ConvPart::Output,
        shape: flat(planes, &outputs),
        factors: x.dtype(),
        dtype: x.dtype(),
    };
    let sums = apply_one(operation, &[&view::reshape_to(x, &flat(planes, &shape[outer_axes..]))?, &ones])?;
    view::reshape_to(&sums, &shape[..outer_axes].iter().chain(&outputs).copied().collect())
}
