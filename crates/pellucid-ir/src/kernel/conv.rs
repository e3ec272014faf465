//! The kernel family [`Conv`]: convolutions and their derivatives.

use super::{Family, FamilyInfo, KernelOperand, Meta, Window};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The array that a [`Conv`] computes from the other two arrays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvPart {
    /// y from x and w: a cross-correlation.
    Output,
    /// x from w and y: the transposed convolution.
    Input,
    /// w from x and y.
    Weight,
}

impl ConvPart {
    /// Returns the index of the array in the order x, w, y.
    pub fn output_index(self) -> usize {
        match self {
            ConvPart::Input => 0,
            ConvPart::Weight => 1,
            ConvPart::Output => 2,
        }
    }

    /// Returns `[x, w, y]` from the two inputs, which are in the same order, and the output.
    pub fn sorted<T>(self, [a, b]: [T; 2], output: T) -> [T; 3] {
        match self {
            ConvPart::Input => [output, a, b],
            ConvPart::Weight => [a, output, b],
            ConvPart::Output => [a, b, output],
        }
    }
}

/// One partial derivative of the trilinear form `T(x, w, y) = Σ x[n, c, s·o + d·t − b] · w[k, c, t] · y[n, k, o]` with
/// stride s, dilation d and b elements of padding before x. The sum is over all indices.
///
/// x is `[n, channels, z, y, x]`, w `[outputs, channels / groups, taps..]`, y `[n, outputs, z, y, x]`. Outputs and
/// channels are split into `groups` groups; group g of y depends only on group g of x. The form is linear in each of
/// the three arrays, so its derivative with respect to one array is a function of the two others ([`ConvPart`]), and
/// the derivatives of this function belong to the same family.
///
/// The two inputs come in the order x, w, y. The caller chooses the shape of the output; positions outside x count as 0
/// and are never read. All arrays have the same dtype; `f16` and `bf16` accumulate in `f32`, and their output may have
/// dtype `f32`; it is then not rounded to half precision. The order of accumulation depends on the shapes alone:
/// channels, then taps, in blocks of a fixed length. A backend may use Winograd convolution (Winograd 1980; Lavin and
/// Gray 2016) for shapes for which it is faster. It is also exact for small integers, but its rounding errors are
/// relative to the largest elements near a window, not only those in it. If a result of an image is not finite, all
/// results of the image (for a weight gradient, all results) are recomputed without Winograd convolution, so that an
/// element that is not finite affects only its own windows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv {
    /// The geometry of the window w over x.
    pub window: Window,
    /// The number of independent groups of channels.
    pub groups: usize,
    /// The array that is computed.
    pub part: ConvPart,
}

impl Conv {
    /// Returns true if the kernel computes an output of dtype `output` from two inputs of these dtypes.
    pub fn accepts_dtypes(&self, inputs: [DType; 2], output: DType) -> bool {
        let wide = matches!(inputs[0], DType::F16 | DType::BF16) && output == DType::F32;
        inputs[0] == inputs[1] && inputs[0] != DType::Bool && (output == inputs[0] || wide)
    }
}

impl Family for Conv {
    const FAMILY: &'static str = "conv";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { is_compute_bound: true, ..FamilyInfo::new(2, 1) }
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
        let [x, w, y] = self.part.sorted([a, b], out);
        let (window, groups) = (&self.window, self.groups);
        if !self.accepts_dtypes([a.dtype(), b.dtype()], out.dtype()) {
            let help = "operands must have the same dtype and must not be bool; use to_dtype()";
            return Err(Error::dtypes("conv", [x.dtype(), w.dtype(), y.dtype()], help));
        }
        let [x, w, y] = [x.shape(), w.shape(), y.shape()];
        let fits = [x, w, y].iter().all(|s| s.rank() == 5)
            && x[0] == y[0]
            && w[0] == y[1]
            && groups > 0
            && w[0] % groups == 0
            && w[1].checked_mul(groups) == Some(x[1])
            && w[2..] == window.size;
        if !fits {
            let help = format!("x must be [n, c, ...], w [k, c/{groups}, {:?}] and y [n, k, ...]", window.size);
            return Err(Error::shapes("conv", [x, w, y], help));
        }
        if (0..3).all(|axis| window.has_coordinates(axis, x[2 + axis], y[2 + axis], Window::MAX_COORDINATE)) {
            return Ok(());
        }
        let reason = format!(
            "stride and dilation must be positive, and the positions of the windows must not overflow; got {window:?}"
        );
        Err(Error::invalid("conv", reason))
    }

    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        // The shapes of x, w and y. The inputs are in this order already; the output is inserted at its position.
        let mut parts = [&inputs[0], &inputs[1]].map(|m| &m.shape).to_vec();
        parts.insert(self.part.output_index(), &outputs[0].shape);
        // Each element of y is a sum over the channels of its group and the taps.
        let terms = parts[1].iter().skip(1).product::<usize>() as u64;
        2 * parts[2].size() as u64 * terms
    }
}
