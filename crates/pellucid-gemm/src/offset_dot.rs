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
/// - *Reads*: `data` is valid for reads at `lanes[i] + depths[p]` for every index i of the row and every k index p, and
///   no thread writes these elements during the call.
/// - *Weights*: `weights` and `depths` have the same length.
/// - *Writes*: `to` is valid for writes of `lanes.len()` elements. These elements overlap no operand, and no other
///   thread accesses them.
pub struct OffsetDotRow<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// `lanes[i]` is the offset of the operand's elements for element i of the row.
    pub lanes: &'a OffsetList,
    /// `depths[p]` is the offset of k index p, relative to `lanes[i]`.
    pub depths: &'a OffsetList,
    /// The weight of each k index.
    pub weights: &'a [T],
    /// The contiguous row of results, which has `lanes.len()` elements.
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
        debug_assert_eq!(self.weights.len(), self.depths.len(), "there must be one weight for each k index");
        // SAFETY: each vector is within a run of consecutive offsets of `lanes`, and the last vector of a run is
        // accessed under a mask. *Reads* and *Writes* of the offset dot contract cover all elements of a run at every k
        // index.
        unsafe {
            for (first, offset, len) in self.lanes.runs(0..self.lanes.len()) {
                let (from, to) = (self.data.wrapping_offset(offset), self.to.add(first));
                let mut i = 0;
                while i + 4 * V::LANES <= len {
                    self.multiply_vectors::<V, 4>(from.add(i), to.add(i));
                    i += 4 * V::LANES;
                }
                if i + 2 * V::LANES <= len {
                    self.multiply_vectors::<V, 2>(from.add(i), to.add(i));
                    i += 2 * V::LANES;
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

impl<T: Element> OffsetDotRow<'_, T> {
    /// Computes `N` vectors of results, whose chains of multiply-adds overlap.
    ///
    /// # Safety
    ///
    /// - The offset dot contract of [`OffsetDotRow`] holds for `N` vectors of consecutive lanes: `from` is the origin
    ///   plus the offset of the first of these lanes, and `to` is the result of this lane.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    unsafe fn multiply_vectors<V: Vector<Scalar = T>, const N: usize>(&self, from: *const T, to: *mut T) {
        // SAFETY: *Reads* and *Writes* of the offset dot contract cover all lanes of the vectors.
        unsafe {
            let mut sums = [V::zero(); N];
            for (weight, &offset) in self.weights.iter().zip(self.depths.all()) {
                let (weight, from) = (V::splat(weight), from.wrapping_offset(offset));
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = weight.mul_add(V::load(from.add(v * V::LANES)), *sum);
                }
            }
            sums.iter().enumerate().for_each(|(v, sum)| sum.store(to.add(v * V::LANES)));
        }
    }
}

/// The dot products `Σᵢ x[i] · data[lanes[i] + depths[p]]` for each p, which are added to partial sums.
///
/// Each p has [`VIRTUAL_LANES`] = 16 partial sums. The product with index i is added to partial sum l if the index of
/// `lanes[i]` in its run of consecutive offsets is ≡ l (mod 16). [`sum_virtual_lanes`] reduces the partial sums.
///
/// # Gradient dot contract
///
/// - *Reads*: `x` is valid for reads of `lanes.len()` elements, and `data` is valid for reads at `lanes[i] + depths[p]`
///   for every i and every p. No thread writes these elements during the call.
/// - *Writes*: `sums` is valid for reads and writes of `16 · depths.len()` elements. These elements overlap no operand,
///   and no other thread accesses them.
pub struct WeightGradDots<'a, T> {
    /// The contiguous vector x, which has `lanes.len()` elements.
    pub x: *const T,
    /// The origin of the offsets.
    pub data: *const T,
    /// `lanes[i]` is the offset of the elements that are multiplied by `x[i]`.
    pub lanes: &'a OffsetList,
    /// `depths[p]` is the offset of result p, relative to `lanes[i]`.
    pub depths: &'a OffsetList,
    /// The partial sums: [`VIRTUAL_LANES`] contiguous elements for each result p.
    pub sums: *mut T,
}

impl<T: Element> WeightGradDots<'_, T> {
    /// Adds the products to the partial sums.
    ///
    /// # Safety
    ///
    /// - The gradient dot contract of [`WeightGradDots`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn accumulate<V: Vector<Scalar = T>>(&self) {
        let (mut first, count) = (0, self.depths.len());
        // SAFETY: the results `first..first + N` exist. The caller guarantees the other clauses.
        unsafe {
            while first + 9 <= count {
                self.accumulate_results::<V, 9>(first);
                first += 9;
            }
            while first + 3 <= count {
                self.accumulate_results::<V, 3>(first);
                first += 3;
            }
            while first < count {
                self.accumulate_results::<V, 1>(first);
                first += 1;
            }
        }
    }

    /// Adds the products of `N` results, starting at result `first`, to their partial sums, which stay in registers.
    ///
    /// # Safety
    ///
    /// - The gradient dot contract of [`WeightGradDots`] holds, and there are at least `first + N` results.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    unsafe fn accumulate_results<V: Vector<Scalar = T>, const N: usize>(&self, first: usize) {
        let Some(&depths) = self.depths.all()[first..].first_chunk::<N>() else {
            unreachable!("there must be {N} results")
        };
        for lane in (0..VIRTUAL_LANES).step_by(V::LANES) {
            let to = self.sums.wrapping_add(first * VIRTUAL_LANES + lane);
            // SAFETY: each read is within a run of consecutive offsets of `lanes`, and the last vector of a run is
            // loaded under a mask, so *Reads* of the gradient dot contract covers the reads. `lane` is a multiple of
            // LANES, which divides 16, so full vectors are within the 16 partial sums of a result (*Writes* of that
            // contract).
            unsafe {
                let mut sums = [V::zero(); N];
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(to.add(p * VIRTUAL_LANES));
                }
                for (index, offset, len) in self.lanes.runs(0..self.lanes.len()) {
                    let mut i = lane;
                    let mut x = self.x.wrapping_add(index + i);
                    let mut from = self.data.wrapping_offset(offset).wrapping_add(i);
                    while i + V::LANES <= len {
                        let factor = V::load(x);
                        for (sum, depth) in sums.iter_mut().zip(depths) {
                            *sum = factor.mul_add(V::load(from.wrapping_offset(depth)), *sum);
                        }
                        (x, from) = (x.wrapping_add(VIRTUAL_LANES), from.wrapping_add(VIRTUAL_LANES));
                        i += VIRTUAL_LANES;
                    }
                    if i < len {
                        let mask = V::mask(len - i);
                        let factor = V::load_part(x, mask);
                        for (sum, depth) in sums.iter_mut().zip(depths) {
                            *sum = factor.mul_add(V::load_part(from.wrapping_offset(depth), mask), *sum);
                        }
                    }
                }
                for (p, sum) in sums.iter().enumerate() {
                    sum.store(to.add(p * VIRTUAL_LANES));
                }
            }
        }
    }
}

/// Reduces each group of 16 partial sums to one sum, by a fixed tree: to sum l, it adds sum l + 8, then l + 4, l + 2
/// and l + 1.
///
/// An incomplete group at the end of `lanes` is ignored.
pub fn sum_virtual_lanes<T: Element>(lanes: &[T]) -> impl Iterator<Item = T> {
    lanes.chunks_exact(VIRTUAL_LANES).map(|lanes| {
        let mut lanes: [T; VIRTUAL_LANES] = lanes.try_into().expect("each chunk must have 16 partial sums");
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|l| lanes[l] = lanes[l].add(lanes[l + half]));
        }
        lanes[0]
    })
}
