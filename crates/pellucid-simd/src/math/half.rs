//! Half-precision storage: conversions between `f16` or `bf16` and `f32`.
//!
//! The conversions use integer arithmetic on the bit patterns, and one addition for subnormal `f16` (F. Giesen, 2012).
//! They vectorize on every processor. The results do not change if the processor flushes subnormal `f32` to zero.

/// The 16 bits of an IEEE half-precision float.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct F16(
    /// The bit pattern.
    pub u16,
);

/// The 16 bits of a brain float.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct BF16(
    /// The bit pattern.
    pub u16,
);

impl F16 {
    /// Returns the value as an `f32`; the conversion is exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        // 2⁻¹⁴, the smallest normal `f16`.
        const MIN_NORMAL: f32 = 6.103_515_625e-5;
        let magnitude = (self.0 as u32 & 0x7fff) << 13;
        let exponent = magnitude & 0x0f80_0000;
        let normal = magnitude + ((127 - 15) << 23);
        let special = magnitude + ((255 - 31) << 23);
        // The value of a subnormal operand is its fraction with the exponent of 2⁻¹⁴, minus 2⁻¹⁴.
        let small = (f32::from_bits(normal + (1 << 23)) - MIN_NORMAL).to_bits();
        let bits = if exponent == 0x0f80_0000 { special } else { normal };
        let bits = if exponent == 0 { small } else { bits };
        f32::from_bits(bits | (self.0 as u32 & 0x8000) << 16)
    }

    /// Returns the nearest `f16`, ties to even. Magnitudes of at least 65520, which would round to a number above the
    /// largest `f16`, 65504, become infinite.
    #[inline(always)]
    pub fn from_f32(x: f32) -> F16 {
        let sign = (x.to_bits() >> 16) as u16 & 0x8000;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        // Normal results: one addition rebiases the exponent and rounds; a carry increments the exponent.
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
        // For a subnormal result, adding ½ aligns the fraction to 2⁻²⁴ and rounds it.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let large = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let bits = if magnitude < 0x3880_0000 { small } else { normal };
        let bits = if magnitude >= 0x477f_f000 { large } else { bits };
        F16(bits as u16 | sign)
    }
}

impl BF16 {
    /// Returns the value as an `f32`; the conversion is exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    /// Returns the nearest `bf16`, ties to even.
    #[inline(always)]
    pub fn from_f32(x: f32) -> BF16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        let nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
        BF16(if nan { quiet } else { rounded } as u16)
    }
}

/// Returns x rounded to odd: an inexact x becomes the neighbouring `f32` whose last bit is 1.
///
/// Rounding the result once more to a narrower type rounds x correctly (Boldo & Melquiond 2008).
#[inline(always)]
pub fn round_to_odd(x: f64) -> f32 {
    let y = x as f32;
    let back = y as f64;
    let bits = y.to_bits();
    let other = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits.wrapping_add(1) };
    // A NaN counts as inexact. It stays a NaN.
    f32::from_bits(if back != x && bits & 1 == 0 { other } else { bits })
}

/// Returns v as an `f64` rounded to odd, so that a second rounding to a narrower type rounds v correctly.
#[inline(always)]
pub fn int_round_to_odd(v: i64) -> f64 {
    let sticky = (v & !0xfff) | (((v & 0xfff != 0) as i64) << 12);
    // Below 2⁵³ every integer is exact.
    let exact = v.unsigned_abs() < 1 << 53;
    (if exact { v } else { sticky }) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_pattern_survives_the_round_trip() {
        for h in 0..=u16::MAX {
            let (f, b) = (F16(h).to_f32(), BF16(h).to_f32());
            assert_eq!(f.is_nan(), half::f16::from_bits(h).is_nan());
            assert_eq!(b.is_nan(), half::bf16::from_bits(h).is_nan());
            if !f.is_nan() {
                assert_eq!(f.to_bits(), half::f16::from_bits(h).to_f32().to_bits());
                assert_eq!(F16::from_f32(f), F16(h));
            } else {
                assert!(F16::from_f32(f).to_f32().is_nan());
            }
            if !b.is_nan() {
                assert_eq!(BF16::from_f32(b), BF16(h));
            } else {
                assert!(BF16::from_f32(b).to_f32().is_nan());
            }
        }
    }

    /// Checks each tie between two neighbours, and the floats adjacent to the tie, against the definition of rounding.
    #[test]
    fn ties_go_to_even() {
        for h in 0..0x7c00u16 {
            let next = if h == 0x7bff { 65536.0 } else { F16(h + 1).to_f32() };
            let tie = (F16(h).to_f32() + next) * 0.5;
            let even = if h & 1 == 0 { h } else { h + 1 };
            assert_eq!(F16::from_f32(tie), F16(even), "the tie {tie} must round to even");
            assert_eq!(F16::from_f32(f32::from_bits(tie.to_bits() - 1)), F16(h));
            assert_eq!(F16::from_f32(f32::from_bits(tie.to_bits() + 1)), F16(h + 1));
            assert_eq!(F16::from_f32(-tie), F16(even | 0x8000));
        }
        for h in 0..0x7f80u16 {
            let tie = f32::from_bits(((h as u32) << 16) | 0x8000);
            assert_eq!(BF16::from_f32(tie), BF16(if h & 1 == 0 { h } else { h + 1 }));
        }
    }

    #[test]
    fn double_rounding_is_avoided() {
        // Slightly above the tie between 1 and 1 + 2⁻¹⁰; `f32` cannot distinguish it from the tie.
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(F16::from_f32(x as f32), F16(0x3c00));
        assert_eq!(F16::from_f32(round_to_odd(x)), F16(0x3c01));
        assert_eq!(F16::from_f32(round_to_odd(-x)), F16(0xbc01));
        assert_eq!(round_to_odd(1e300), f32::MAX);
        assert!(round_to_odd(f64::NAN).is_nan());
        assert_eq!(round_to_odd(f64::INFINITY), f32::INFINITY);
        // 2⁶² + 2⁵⁴ is a tie between two `bf16`. The next integer is rounded up.
        let v = (1i64 << 62) + (1 << 54) + 1;
        assert_eq!(BF16::from_f32(round_to_odd(int_round_to_odd(v))).0, BF16::from_f32((1i64 << 62) as f32).0 + 1);
    }
}
