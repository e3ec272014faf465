//! Products with so few rows that packing their operand would cost more than it saves: depthwise convolutions.

use super::gemv::VIRTUAL_LANES;
use super::offsets::OffsetList;
use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// `to[i] = Σₚ weights[p] · data[lanes[i] + depths[p]]`, one chain of fused multiply-adds for each i, in the order
/// of p.
pub struct OffsetDotRow<'a, T> {
    pub data: *const T,
    pub lanes: &'a OffsetList,
    pub depths: &'a OffsetList,
    pub weights: &'a [T],
    pub to: *mut T,
}

impl<T: Element> OffsetDotRow<'_, T> {
    /// # Safety
    ///
    /// As for [`Vector`]; the elements exist, there are as many weights as depths, and there is room for the lanes.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>>(&self) {
        debug_assert_eq!(self.weights.len(), self.depths.len(), "a weight for every depth");
        // SAFETY: vectors stay within their run, the last one under a mask.
        unsafe {
            for (first, at, len) in self.lanes.runs(0..self.lanes.len()) {
                let (from, to) = (self.data.wrapping_offset(at), self.to.add(first));
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

/// `sums[p] += Σᵢ x[i] · data[lanes[i] + depths[p]]`, in 16 virtual lanes for each p: lane l takes the
/// elements i ≡ l (mod 16) of each run.
pub struct WeightGradDots<'a, T> {
    pub x: *const T,
    pub data: *const T,
    pub lanes: &'a OffsetList,
    pub depths: &'a OffsetList,
    /// 16 for each depth.
    pub sums: *mut T,
}

impl<T: Element> WeightGradDots<'_, T> {
    /// # Safety
    ///
    /// As for [`Vector`]; the elements exist.
    #[inline(always)]
    pub(crate) unsafe fn add<V: Vector<Scalar = T>>(&self) {
        // SAFETY: vectors stay within their run, the last ones under a mask.
        unsafe {
            for (first, at, len) in self.lanes.runs(0..self.lanes.len()) {
                let (x, from) = (self.x.add(first), self.data.wrapping_offset(at));
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

/// The sum of each 16 virtual lanes, as a tree: lane l takes lane l + 8, then l + 4, l + 2, l + 1.
pub fn folded<T: Element>(lanes: &[T]) -> impl Iterator<Item = T> {
    lanes.chunks_exact(VIRTUAL_LANES).map(|lanes| {
        let mut lanes: [T; VIRTUAL_LANES] = lanes.try_into().expect("16 lanes");
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|l| lanes[l] = lanes[l].add(lanes[l + half]));
        }
        lanes[0]
    })
}
