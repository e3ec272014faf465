//! Integer primitives: wrapping arithmetic, defined for all operands, with division that rounds down.

/// An integer type for which formulas are compiled.
pub trait Int: Copy + Ord {
    /// The value 0.
    const ZERO: Self;
    /// The value 1.
    const ONE: Self;
    /// Returns a + b, wrapping.
    fn add(self, b: Self) -> Self;
    /// Returns a − b, wrapping.
    fn sub(self, b: Self) -> Self;
    /// Returns a · b, wrapping.
    fn mul(self, b: Self) -> Self;
    /// Returns −a, wrapping.
    fn neg(self) -> Self;
    /// Returns |a|, wrapping.
    fn abs(self) -> Self;
    /// Returns the sign of the value: −1, 0 or 1.
    fn sign(self) -> Self;
    /// Returns the bitwise complement.
    fn not(self) -> Self;
    /// Returns the bitwise AND.
    fn and(self, b: Self) -> Self;
    /// Returns the bitwise OR.
    fn or(self, b: Self) -> Self;
    /// Returns the bitwise exclusive OR.
    fn xor(self, b: Self) -> Self;
    /// Returns ⌊a / b⌋, or 0 for b = 0. The quotient MIN / −1 wraps.
    fn floor_div(self, b: Self) -> Self;
    /// Returns a − b·⌊a / b⌋, which has the sign of b, or 0 for b = 0.
    fn rem(self, b: Self) -> Self;
    /// Returns aᵇ, wrapping. For b < 0, returns ±1 if |a| = 1, and 0 otherwise.
    fn pow(self, b: Self) -> Self;
    /// Returns a · 2ᵇ, wrapping, if 0 ≤ b < bit width, and 0 otherwise.
    fn shl(self, b: Self) -> Self;
    /// Returns ⌊a / 2ᵇ⌋. If b is negative or at least the bit width, it counts as bit width − 1.
    fn shr(self, b: Self) -> Self;
}

/// Implements [`Int`] for integer types. Each is listed with the unsigned type of the same width.
macro_rules! impl_int {
    ($($t:ident $unsigned:ident),*) => {$(
        impl Int for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> $t {
                self.wrapping_abs()
            }
            #[inline(always)]
            fn sign(self) -> $t {
                self.signum()
            }
            #[inline(always)]
            fn not(self) -> $t {
                !self
            }
            #[inline(always)]
            fn and(self, b: $t) -> $t {
                self & b
            }
            #[inline(always)]
            fn or(self, b: $t) -> $t {
                self | b
            }
            #[inline(always)]
            fn xor(self, b: $t) -> $t {
                self ^ b
            }
            #[inline(always)]
            fn floor_div(self, b: $t) -> $t {
                if b == 0 {
                    return 0;
                }
                let q = self.wrapping_div(b);
                let r = self.wrapping_rem(b);
                if r != 0 && (r < 0) != (b < 0) { q - 1 } else { q }
            }
            #[inline(always)]
            fn rem(self, b: $t) -> $t {
                if b == 0 {
                    return 0;
                }
                let r = self.wrapping_rem(b);
                if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
            }
            #[inline(always)]
            fn pow(self, b: $t) -> $t {
                if b < 0 {
                    return match self {
                        1 => 1,
                        -1 => if b & 1 == 0 { 1 } else { -1 },
                        _ => 0,
                    };
                }
                let (mut power, mut square, mut exponent) = (1 as $t, self, b as $unsigned);
                while exponent != 0 {
                    if exponent & 1 == 1 {
                        power = power.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    exponent >>= 1;
                }
                power
            }
            #[inline(always)]
            fn shl(self, b: $t) -> $t {
                let in_range = (b as $unsigned) < $t::BITS as $unsigned;
                let shifted = self.wrapping_shl(b as u32);
                if in_range { shifted } else { 0 }
            }
            #[inline(always)]
            fn shr(self, b: $t) -> $t {
                let in_range = (b as $unsigned) < $t::BITS as $unsigned;
                let b = if in_range { b as u32 } else { $t::BITS - 1 };
                self.wrapping_shr(b)
            }
        }
    )*};
}
impl_int!(i32 u32, i64 u64);

#[cfg(test)]
mod tests {
    use super::Int;

    #[test]
    fn division_rounds_down_for_all_operands() {
        for a in -9i64..=9 {
            for b in -4i64..=4 {
                let expected = if b == 0 { 0 } else { (a as f64 / b as f64).floor() as i64 };
                assert_eq!(a.floor_div(b), expected, "the floor division {a} // {b} is wrong");
                assert_eq!(
                    Int::rem(a, b),
                    if b == 0 { 0 } else { a - b * expected },
                    "the remainder {a} % {b} is wrong"
                );
            }
        }
        assert_eq!(i32::MIN.floor_div(-1), i32::MIN);
        assert_eq!(Int::rem(i64::MIN, -1), 0);
    }

    #[test]
    fn powers_and_shifts_are_defined_for_all_operands() {
        assert_eq!(Int::pow(3, 4), 81);
        assert_eq!(Int::pow(-2i32, 31), i32::MIN);
        assert_eq!(Int::pow(2i32, 32), 0);
        assert_eq!((Int::pow(-1, -3), Int::pow(1, -3), Int::pow(5, -1), Int::pow(0, -1)), (-1, 1, 0, 0));
        assert_eq!(Int::pow(7i64, 0), 1);
        assert_eq!((Int::shl(1i32, 31), Int::shl(1i32, 32), Int::shl(1i32, -1)), (i32::MIN, 0, 0));
        assert_eq!((Int::shr(-8i32, 1), Int::shr(-8i32, 99), Int::shr(8i32, 99), Int::shr(8i32, -1)), (-4, -1, 0, 0));
    }
}
