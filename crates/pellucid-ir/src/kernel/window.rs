//! The kernel families with sliding windows: `Conv` and `Pool`.

/// The geometry of a sliding window over three spatial axes; with fewer axes the leading ones have length 1.
///
/// Along each axis, tap t of the window at output o is at input position `stride·o + dilation·t − before`. Positions
/// outside the input are padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The number of taps.
    pub size: [usize; 3],
    /// The distance between windows; at least 1.
    pub stride: [usize; 3],
    /// The distance between taps; at least 1.
    pub dilation: [usize; 3],
    /// The padding before the first element of the input.
    pub before: [usize; 3],
}

impl Window {
    /// Returns the number of taps over all axes.
    pub fn taps(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the distance from the first tap to the last along an axis.
    pub fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * self.size[axis].saturating_sub(1)
    }
}

/// The array that a [`Conv`] computes from the two others.
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
    /// Returns the position of the array in the order x, w, y.
    pub fn place(self) -> usize {
        match self {
            ConvPart::Input => 0,
            ConvPart::Weight => 1,
            ConvPart::Output => 2,
        }
    }
}

/// One partial derivative of the trilinear form
/// `T(x, w, y) = Σ x[n, c, s·o + d·t − b] · w[k, c, t] · y[n, k, o]`.
///
/// x is `[n, channels, z, y, x]`, w `[outputs, channels / groups, taps..]`, y `[n, outputs, z, y, x]`. Outputs and
/// channels are split into `groups` groups; group g of y depends only on group g of x. The form is linear in each of
/// the three arrays, so each [`ConvPart`] is a derivative of the others, and its derivatives belong to the same family.
///
/// The two inputs come in the order x, w, y. The caller chooses the shape of the output; positions outside x count as 0
/// and are never read. All arrays have one dtype; `f16` and `bf16` accumulate in `f32`. The order of accumulation
/// depends on the shapes alone: channels, then taps, in blocks of a fixed length. Where the shapes make it faster,
/// Winograd convolution is used (Winograd 1980; Lavin and Gray 2016). It is also exact for small integers, but its
/// rounding errors are relative to the largest elements near a window, not only those in it. An input that is not
/// finite affects only its own windows: if there is one, or the Winograd transform overflows, the whole call runs
/// without it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv {
    /// The geometry of the window w over x.
    pub window: Window,
    /// The number of independent groups of channels.
    pub groups: usize,
    /// The array that is computed.
    pub part: ConvPart,
}

/// The largest element of each window over the last three axes, and its position.
///
/// x is `[.., z, y, x]`; the outputs are the values, in x's dtype, and `i64` positions (row-major over the three
/// axes of x). The first of equal elements is selected; NaN is the largest. Padding is never selected: every window
/// has at least one tap inside x.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// The geometry of the window over x.
    pub window: Window,
}
