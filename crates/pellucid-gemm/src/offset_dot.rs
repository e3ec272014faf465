//! Products with so few rows that packing the operand would cost more than it saves, as in depthwise convolutions.

use super::gemv::VIRTUAL_LANES;
use super::offsets::OffsetList;
use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// One row of a product with an operand given by offset lists: `to[i] = Σₚ weights[p] · data[lanes[i] + depths[p]]`.
///
/// Each element is one chain of fused multiply-adds in the order of p.
///
/// # Offset dot contract
///
/// - *Reads*: `data` is valid for reads at `lanes[i] + depths[p]` for every lane i and every depth p, and no thread
///   writes these elements meanwhile.
/// - *Weights*: there are as many weights as depths.
/// - *Writes*: `to` is valid for writes of one element for each lane. They overlap no operand, and no other thread
///   accesses them.
pub struct OffsetDotRow<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// Offsets of the lanes, which are the elements of the row.
    pub lanes: &'a OffsetList,
    /// Offsets of the steps of the depth, relative to a lane.
    pub depths: &'a OffsetList,
    /// One weight for each step of the depth.
    pub weights: &'a [T],
    /// The row of results, one contiguous element for each lane.
    pub to: *mut T,
}

impl<T: Element> OffsetDotRow<'_, T> {
    /// Computes the row.
    ///
    /// # Safety
    ///
    /// - The offset dot contract of [`OffsetDotRow`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>>(&self) {
        debug_assert_eq!(self.weights.len(), self.depths.len(), "there must be one weight for each depth");
        // SAFETY: vectors stay within their run of lanes, the last one under a mask. *Reads* and *Writes* cover all
        // lanes of a run at every depth.
        unsafe {
            for (first, offset, len) in self.lanes.runs(0..self.lanes.len()) {
                let (from, to) = (self.data.wrapping_offset(offset), self.to.add(first));
                let mut i = 0;
                while i + 4 * V::LANES <= len {
                    let mut sums = [V::zero(); 4];
                    for (weight, &offset) in self.weights.iter().zip(self.depths.all()) {
                        let (weight, from) = (V::splat(weight), from.wrapping_offset(offset).add(i));
                        for (v, sum) in sums.iter_mut().enumerate() {
                            *sum = weight.mul_add(V::load(from.add(v * V::LANES)), *sum);
                        }
                    }
                    sums.iter().enumerate().for_each(|(v, sum)| sum.store(to.add(i + v * V::LANES)));
                    i += 4 * V::LANES;
                }
                while i < len {
                    let mask = V::mask((len - i).min(V::LANES));
                    let mut sum = V::zero();
                    for (weight, &offset) in self.weights.iter().zip(self.depths.all()) {
                        let from = from.wrapping_offset(offset).add(i);
                        sum = V::splat(weight).mul_add(V::load_part(from, mask), sum);
                    }
                    sum.store_part(to.add(i), mask);
                    i += V::LANES;
                }
            }
        }
    }
}

/// Sums of products along the lanes, added to virtual lanes: `sums[p] += Σᵢ x[i] · data[lanes[i] + depths[p]]`.
///
/// Each p has 16 virtual lanes. Virtual lane l sums the elements i ≡ l (mod 16) of each run. [`sum_virtual_lanes`]
/// reduces them.
///
/// # Gradient dot contract
///
/// - *Reads*: `x` is valid for reads of one element for each lane, and `data` at `lanes[i] + depths[p]` for every lane
///   i and every depth p. No thread writes these elements meanwhile.
/// - *Writes*: `sums` is valid for reads and writes of 16 elements for each depth. They overlap no operand, and no
///   other thread accesses them.
pub struct WeightGradDots<'a, T> {
    /// The contiguous vector x, one element for each lane.
    pub x: *const T,
    /// The origin of the offsets.
    pub data: *const T,
    /// Offsets of the lanes.
    pub lanes: &'a OffsetList,
    /// Offsets of the results, relative to a lane.
    pub depths: &'a OffsetList,
    /// [`VIRTUAL_LANES`] partial sums for each depth.
    pub sums: *mut T,
}

impl<T: Element> WeightGradDots<'_, T> {
    /// Adds the products to the virtual lanes.
    ///
    /// # Safety
    ///
    /// - The gradient dot contract of [`WeightGradDots`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn accumulate<V: Vector<Scalar = T>>(&self) {
        // SAFETY: reads stay within their run of lanes, the last one under a mask (*Reads*). `i` is a multiple of
        // LANES, which divides 16, so whole vectors of sums stay within the 16 virtual lanes of a depth (*Writes*).
        unsafe {
            for (first, offset, len) in self.lanes.runs(0..self.lanes.len()) {
                let (x, from) = (self.x.add(first), self.data.wrapping_offset(offset));
                for i in (0..len).step_by(V::LANES) {
                    let mask = V::mask((len - i).min(V::LANES));
                    let (x, lane) = (V::load_part(x.add(i), mask), i % VIRTUAL_LANES);
                    for (p, &offset) in self.depths.all().iter().enumerate() {
                        let sum = self.sums.add(p * VIRTUAL_LANES + lane);
                        let y = V::load_part(from.wrapping_offset(offset).add(i), mask);
                        x.mul_add(y, V::load(sum)).store(sum);
                    }
                }
            }
        }
    }
}

/// Reduces each group of 16 virtual lanes to its sum, by a fixed tree: lane l adds lane l + 8, then l + 4, l + 2, l +
/// 1.
///
/// An incomplete group at the end of `lanes` is ignored.
pub fn sum_virtual_lanes<T: Element>(lanes: &[T]) -> impl Iterator<Item = T> {
    lanes.chunks_exact(VIRTUAL_LANES).map(|lanes| {
        let mut lanes: [T; VIRTUAL_LANES] = lanes.try_into().expect("a chunk has 16 lanes");
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|l| lanes[l] = lanes[l].add(lanes[l + half]));
        }
        lanes[0]
    })
}
