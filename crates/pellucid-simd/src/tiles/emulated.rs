//! The emulation of tile registers.

use super::{TILE_SIDE, TileUnit};
use crate::vector::{Element, I8Quad};

/// Tile registers in memory. Products are bit-identical to products of AMX, with one exception. The initial elements
/// are NaN.
///
/// The exception: if the exact value of a sum is less than 2⁻¹²⁶ but is rounded to 2⁻¹²⁶, AMX flushes it to zero.
#[derive(Debug)]
pub struct EmulatedTiles([[[u32; TILE_SIDE]; TILE_SIDE]; 8]);

impl TileUnit for EmulatedTiles {
    unsafe fn configure() {}

    unsafe fn release() {}

    #[inline(always)]
    fn new() -> EmulatedTiles {
        EmulatedTiles([[[u32::MAX; TILE_SIDE]; TILE_SIDE]; 8])
    }

    #[inline(always)]
    unsafe fn zero<const R: usize>(&mut self) {
        self.0[R] = [[0; TILE_SIDE]; TILE_SIDE];
    }

    #[inline(always)]
    unsafe fn load<const R: usize>(&mut self, from: *const u8, row_bytes: isize) {
        for (r, row) in self.0[R].iter_mut().enumerate() {
            // SAFETY: *tile validity* covers the reads of row r.
            *row = unsafe { from.wrapping_offset(r as isize * row_bytes).cast::<[u32; TILE_SIDE]>().read_unaligned() };
        }
    }

    #[inline(always)]
    unsafe fn store<const R: usize>(&mut self, to: *mut u8, row_bytes: isize) {
        for (r, &row) in self.0[R].iter().enumerate() {
            let to = to.wrapping_offset(r as isize * row_bytes).cast::<[u32; TILE_SIDE]>();
            // SAFETY: *tile validity* covers the writes of row r.
            unsafe { to.write_unaligned(row) }
        }
    }

    #[inline(always)]
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self) {
        let factors = |pair: u32| [pair & 0xffff_0000, pair << 16].map(|bits| flushed(f32::from_bits(bits)));
        let mut sums = self.0[C];
        for (row, sums) in self.0[A].iter().zip(&mut sums) {
            let mut chains = [[0.0f32; 2]; TILE_SIDE];
            for (&a, b) in row.iter().zip(&self.0[B]) {
                let a = factors(a);
                for (chain, &b) in chains.iter_mut().zip(b) {
                    let b = factors(b);
                    *chain = [0, 1].map(|i| flushed(a[i].mul_add(b[i], chain[i])));
                }
            }
            for (sum, [first, second]) in sums.iter_mut().zip(chains) {
                *sum = flushed(flushed(f32::from_bits(*sum)) + flushed(first + second)).to_bits();
            }
        }
        self.0[C] = sums;
    }

    #[inline(always)]
    unsafe fn multiply_add_i8<const C: usize, const A: usize, const B: usize>(&mut self) {
        let mut sums = self.0[C].map(|row| row.map(|bits| I8Quad::from_sum(bits as i32)));
        for (row, sums) in self.0[A].iter().zip(&mut sums) {
            for (&a, b) in row.iter().zip(&self.0[B]) {
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum = I8Quad::from_neighbours(a).mul_add(I8Quad::from_neighbours(b), *sum);
                }
            }
        }
        self.0[C] = sums.map(|row| row.map(|sum| sum.sum() as u32));
    }
}

/// Returns `x`, or zero with its sign if it is subnormal.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::half::BF16;

    /// Returns `sum` plus the products of pairs, computed as element (3, 5) of a register.
    fn sum_of_products(sum: f32, products: &[[(f32, f32); 2]]) -> f32 {
        let (m, n) = (3, 5);
        let mut matrices = [[[0u32; TILE_SIDE]; TILE_SIDE]; 3];
        let pair = |first: f32, second: f32| {
            let [first, second] = [first, second].map(|x| u32::from(BF16::from_f32(x).0));
            first << 16 | second
        };
        matrices[2][m][n] = sum.to_bits();
        for (k, &[first, second]) in products.iter().enumerate() {
            matrices[0][m][k] = pair(first.0, second.0);
            matrices[1][k][n] = pair(first.1, second.1);
        }
        let mut found = [[0u32; TILE_SIDE]; TILE_SIDE];
        let mut unit = EmulatedTiles::new();
        // SAFETY: emulated registers need no processor, and the matrices have the rows of a register.
        unsafe {
            EmulatedTiles::configure();
            unit.load::<1>(matrices[0].as_ptr().cast(), 64);
            unit.load::<2>(matrices[1].as_ptr().cast(), 64);
            unit.load::<7>(matrices[2].as_ptr().cast(), 64);
            unit.multiply_add::<7, 1, 2>();
            unit.store::<7>(found.as_mut_ptr().cast(), 64);
            EmulatedTiles::release();
        }
        f32::from_bits(found[m][n])
    }

    /// Returns 2^`exponent`.
    fn power(exponent: i32) -> f32 {
        2f32.powi(exponent)
    }

    #[test]
    fn first_and_second_factors_have_separate_chains() {
        let tiny = (power(-12), power(-12));
        let one = (1.0, 1.0);
        // 2⁻²⁴ is half of the distance from 1 to the next number.
        assert_eq!(sum_of_products(1.0, &[[tiny, tiny]]), 1.0 + power(-23), "the chains must be added before C");
        assert_eq!(
            sum_of_products(0.0, &[[one, tiny], [tiny, tiny]]),
            1.0 + power(-23),
            "the second chain must be 2 · 2⁻²⁴"
        );
        assert_eq!(
            sum_of_products(0.0, &[[tiny, one], [tiny, tiny], [tiny, tiny]]),
            1.0 + power(-22),
            "the tie 1 + 3 · 2⁻²⁴ must round to even"
        );
        assert_eq!(sum_of_products(0.0, &[[one, one], [tiny, tiny]]), 2.0, "each chain must round to 1");
        let above = (power(-12), power(-12) * 1.0078125);
        assert_eq!(
            sum_of_products(0.0, &[[one, one], [above, (0.0, 0.0)]]),
            2.0,
            "the tie 2 + 2⁻²³ must round to even"
        );
        assert_eq!(
            sum_of_products(0.0, &[[one, (0.0, 0.0)], [above, (0.0, 0.0)]]),
            1.0 + power(-23),
            "a sum above the tie 1 + 2⁻²⁴ must round up"
        );
    }

    #[test]
    fn ties_are_rounded_to_even() {
        let (tiny, zero) = ((power(-12), power(-12)), (0.0, 0.0));
        assert_eq!(sum_of_products(0.0, &[[(1.0, 1.0), zero], [tiny, zero]]), 1.0);
        let next = (power(-23), 1.0);
        assert_eq!(sum_of_products(0.0, &[[(1.0, 1.0), zero], [next, zero], [tiny, zero]]), 1.0 + power(-22));
        assert_eq!(sum_of_products(-1.0, &[[(-power(-24), 1.0), zero]]), -1.0);
    }

    #[test]
    fn subnormal_numbers_are_replaced_by_zero() {
        let (small, zero) = (power(-64), (0.0, 0.0));
        assert_eq!(
            sum_of_products(0.0, &[[(power(-127), power(100)), zero]]),
            0.0,
            "a subnormal factor must count as 0"
        );
        assert_eq!(
            sum_of_products(0.0, &[[(small, small), zero], [(small, small), zero]]),
            0.0,
            "a subnormal product must count as 0"
        );
        assert_eq!(
            sum_of_products(0.0, &[[(small, small * 4.0), zero]]),
            power(-126),
            "the smallest normal number must not be replaced by 0"
        );
        let difference = [[(1.5, power(-126)), zero], [(-1.0, power(-126)), zero]];
        assert_eq!(sum_of_products(0.0, &difference), 0.0, "a subnormal partial sum must count as 0");
        assert_eq!(
            sum_of_products(0.0, &[difference[0], [zero, zero], [zero, difference[1][0]]]),
            0.0,
            "a subnormal sum of both chains must count as 0"
        );
        assert_eq!(sum_of_products(-power(-127), &[[zero, zero]]), 0.0, "a subnormal initial sum must count as 0");
        assert_eq!(
            sum_of_products(-1.5 * power(-126), &[[(1.0, power(-126)), zero]]).to_bits(),
            1 << 31,
            "a subnormal result must be replaced by a zero of its sign"
        );
    }

    #[test]
    fn nan_and_infinity_propagate() {
        let zero = (0.0, 0.0);
        assert!(sum_of_products(f32::NAN, &[]).is_nan());
        assert!(sum_of_products(1.0, &[[(f32::NAN, 0.0), zero]]).is_nan());
        assert!(sum_of_products(1.0, &[[zero, (f32::INFINITY, 0.0)]]).is_nan());
        assert!(sum_of_products(f32::INFINITY, &[[(f32::NEG_INFINITY, 1.0), zero]]).is_nan());
        assert_eq!(sum_of_products(1.0, &[[(f32::INFINITY, 2.0), zero]]), f32::INFINITY);
        assert_eq!(
            sum_of_products(1.0, &[[(power(127), -power(1)), zero]]),
            f32::NEG_INFINITY,
            "a product that overflows must be infinite"
        );
    }
}
