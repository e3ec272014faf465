//! The families of sliding windows: `Conv` and `Pool`.

/// How a window slides over three spatial axes; work on fewer axes has leading ones of length 1.
///
/// Along each axis, tap t of the window at output o lies at the input's position
/// `stride·o + dilation·t − before`. Positions outside the input are padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The number of taps.
    pub size: [usize; 3],
    /// From one window to the next; at least 1.
    pub stride: [usize; 3],
    /// From one tap to the next; at least 1.
    pub dilation: [usize; 3],
    /// How far the first window reaches out of the input.
    pub before: [usize; 3],
}

impl Window {
    /// The number of taps.
    pub fn taps(&self) -> usize {
        self.size.iter().product()
    }

    /// From the first tap to the last along an axis.
    pub fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * self.size[axis].saturating_sub(1)
    }
}

/// Which of its three arrays a [`Conv`] computes from the two others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvPart {
    /// y from x and w: a cross-correlation.
    Output,
    /// x from w and y: what each y was made of gets its share (the transposed convolution).
    Input,
    /// w from x and y.
    Weight,
}

impl ConvPart {
    /// Its place in the order x, w, y.
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
/// x is `[n, channels, z, y, x]`, w `[outputs, channels / groups, taps..]`, y `[n, outputs, z, y, x]`; outputs and
/// channels are cut into `groups` parts, of which part g of y sees part g of x alone. The form is linear in each of
/// the three, so each [`ConvPart`] is a derivative of the others, and its own derivatives are again of the family.
///
/// The two inputs come in the order x, w, y. The output has the shape that its array is given; positions of x
/// outside it count as 0 and are never read. All have one dtype; half types accumulate in `f32`. The order of
/// accumulation depends on the shapes alone: channels, then taps, in blocks of a fixed length; or, where the shapes
/// make it the faster way, sums and differences of neighbours before the products and after them (Winograd 1980; Lavin
/// and Gray 2016). Then too integers that are small enough are exact, but rounding errors are relative to the largest
/// elements near a window, and not to those in it alone. What is not finite arrives where its windows are, and nowhere
/// else; if there is any, or a difference of neighbours overflows, the order is the first for the whole call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv {
    /// How w slides over x.
    pub window: Window,
    /// Into how many independent parts the channels are cut.
    pub groups: usize,
    /// What is computed.
    pub part: ConvPart,
}

/// The largest element of each window of the last three axes, and where it is.
///
/// x is `[.., z, y, x]`; the outputs are the values, in x's dtype, and `i64` positions (row-major over the three
/// axes of x). The first of equals is taken; NaN is the largest. Padding is never taken: every window has at least one
/// tap inside x.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// How the window slides over x.
    pub window: Window,
}
