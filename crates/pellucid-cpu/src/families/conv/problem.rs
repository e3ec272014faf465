//! The shapes of a convolution.

use pellucid_ir::Shape;
use pellucid_ir::kernel::Window;
use pellucid_simd::Isa;

/// The number of channels and the spatial lengths of every image of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageSizes {
    /// The number of channels.
    pub(super) channels: usize,
    /// The lengths along z, y and x.
    pub(super) dims: [usize; 3],
}

impl ImageSizes {
    /// Returns the sizes of images of shape `[image, channel, z, y, x]`.
    pub(super) fn from_shape(shape: &Shape) -> ImageSizes {
        ImageSizes { channels: shape[1], dims: [shape[2], shape[3], shape[4]] }
    }

    /// Returns the number of elements of one channel.
    pub(super) fn plane_len(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The shapes of a convolution. They do not depend on which of the arrays x, w and y is computed.
///
/// x is `[image, channel, z, y, x]`, w is `[output channel, channel of the group, window]` and y is `[image, output
/// channel, z, y, x]`.
///
/// # The array contract
/// The unsafe functions of this family that compute one of x, w and y from the others require:
///
/// - *shape*: the arrays are row-major, have the shapes of the problem, and are valid for reads;
/// - *exclusive*: the computed array is valid for writes, overlaps neither operand, and no other thread accesses it;
/// - *unchanged*: no thread writes the operands during the call;
/// - *isa*: the processor supports `isa`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvProblem {
    /// The instruction set of the kernels.
    pub(super) isa: Isa,
    /// The window.
    pub(super) window: Window,
    /// The number of images of the batch.
    pub(super) images: usize,
    /// The number of groups.
    pub(super) groups: usize,
    /// The sizes of x.
    pub(super) x: ImageSizes,
    /// The sizes of y.
    pub(super) y: ImageSizes,
}

impl ConvProblem {
    /// Returns the numbers of channels of x and of y in one group.
    pub(super) fn group_channels(&self) -> (usize, usize) {
        (self.x.channels / self.groups, self.y.channels / self.groups)
    }
}
