//! Quads of `i8`: the elements of matrix products of small integers.

/// A 32-bit element of a matrix product with `i8` factors: four factors with consecutive k indices, or an `i32` sum.
///
/// [`mul_add`](super::Element::mul_add) multiplies two quads and adds the four products to a sum.
/// [`add`](super::Element::add) and [`sub`](super::Element::sub) operate on sums. All sums wrap modulo 2³², so their
/// order does not matter.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct I8Quad(pub(super) u32);

impl I8Quad {
    /// Returns the quad of four factors.
    #[inline(always)]
    pub fn new(factors: [i8; 4]) -> I8Quad {
        I8Quad::from_neighbours(u32::from_ne_bytes(factors.map(|factor| factor as u8)))
    }

    /// Returns the quad of four factors that are neighbours in memory.
    #[inline(always)]
    pub fn from_neighbours(bits: u32) -> I8Quad {
        I8Quad(bits)
    }

    /// Returns the four factors.
    #[inline(always)]
    pub fn factors(self) -> [i8; 4] {
        self.0.to_ne_bytes().map(|byte| byte as i8)
    }

    /// Returns the element that stores a sum.
    #[inline(always)]
    pub fn from_sum(sum: i32) -> I8Quad {
        I8Quad(sum as u32)
    }

    /// Returns the sum that this element stores.
    #[inline(always)]
    pub fn sum(self) -> i32 {
        self.0 as i32
    }
}
