//! [`FunctionOfOrder`]: functions of an integer order and a real argument.

/// A function of an integer order n and a real argument x, with branch-free code for some orders and for the usual
/// range of x.
///
/// A value of this type contains the coefficients for one order. Usually all elements of an array have the same order,
/// so that its coefficients are chosen once.
pub trait FunctionOfOrder: Sized + Copy {
    /// Returns the function of order n, or `None` if only [`exact`](Self::exact) computes this order.
    fn of_order(n: f32) -> Option<Self>;

    /// Returns the value at x without branches, for every x that is not [rare](Self::is_rare).
    fn at(&self, x: f32) -> f32;

    /// Returns true for an operand that [`at`](Self::at) does not support.
    fn is_rare(x: f32) -> bool;

    /// Returns the value for any order and any x, computed in `f64` and rounded once.
    fn exact(n: f32, x: f32) -> f32;

    /// Returns the value for order n at x.
    #[inline]
    fn value(n: f32, x: f32) -> f32 {
        match Self::of_order(n) {
            Some(f) if !Self::is_rare(x) => f.at(x),
            _ => Self::exact(n, x),
        }
    }
}
