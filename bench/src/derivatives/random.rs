//! Random numbers that are the same on every machine.

use pellucid::Tensor;

/// SplitMix64 (Steele, Lea & Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an integer below `n`, which must be at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a random boolean.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Returns a random element of the list.
    pub fn pick<T: Copy>(&mut self, elements: &[T]) -> T {
        elements[self.below(elements.len())]
    }

    /// Returns a number from `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a constant `f64` tensor of numbers from `[low, high)`.
    pub fn tensor(&mut self, shape: &[usize], low: f64, high: f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.between(low, high)).collect();
        Tensor::new(values, shape)
    }

    /// Returns numbers from -1.5 to 1.5 in random order, at least 0.6 / n apart from each other and from 0.
    pub fn apart(&mut self, n: usize) -> Vec<f64> {
        let order = self.permutation(n);
        let step = 3.0 / n as f64;
        order
            .into_iter()
            .map(|k| {
                let value = -1.5 + step * (k as f64 + self.between(0.3, 0.7));
                if value.abs() < 0.3 * step { value + 0.3 * step } else { value }
            })
            .collect()
    }

    /// Returns a random permutation of the integers below `n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }

    /// Returns an `i64` tensor of indices below `n`.
    pub fn indices(&mut self, shape: &[usize], n: usize) -> Tensor {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.below(n) as i64).collect();
        Tensor::new(values, shape)
    }

    /// Returns a boolean tensor whose first element is true.
    pub fn mask(&mut self, shape: &[usize]) -> Tensor {
        let values: Vec<bool> = (0..shape.iter().product::<usize>()).map(|i| i == 0 || self.coin()).collect();
        Tensor::new(values, shape)
    }
}
