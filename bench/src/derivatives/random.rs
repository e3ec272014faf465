//! Random tensors that are the same on every machine, from the generator of the test suite.

#[path = "../../../crates/pellucid-tensor/tests/suite/engine/plan_fuzz/rng.rs"]
mod rng;

use pellucid::Tensor;
pub use rng::SplitMix64;

impl SplitMix64 {
    /// Returns a random boolean.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Returns a uniformly distributed number in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 * 2f64.powi(-53)
    }

    /// Returns an `f64` tensor of uniformly distributed numbers in `[low, high)`, without gradient.
    pub fn tensor(&mut self, shape: &[usize], low: f64, high: f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.between(low, high)).collect();
        Tensor::new(values, shape)
    }

    /// Returns numbers from -1.5 to 1.5 in random order, whose distances from each other and from 0 are at least 0.6 /
    /// n.
    pub fn separated(&mut self, n: usize) -> Vec<f64> {
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
