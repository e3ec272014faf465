//! Guarantees after the failure of a deferred kernel, on every device that defers its kernels.

use crate::gpus;
use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid::nn::{Embedding, Parameter};
use pellucid::prelude::*;
use pellucid::{Error, flush, lazy, ops};

/// Runs `check` on the GPUs of this index that defer their kernels.
fn each_device(index: usize, check: impl Fn(Device)) {
    gpus(index).into_iter().filter(Device::is_deferred).for_each(check);
}

/// A generator of small random numbers (Marsaglia 2003).
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Three arrays that random kernels write, and results that random kernels create.
struct RandomProgram {
    device: Device,
    states: Vec<Tensor>,
    results: Vec<Tensor>,
}

impl RandomProgram {
    fn new(device: Device) -> RandomProgram {
        let state = |k: usize| {
            let values: Vec<f32> = (0..12).map(|i| ((i + 12 * k) as f32 * 0.37).sin()).collect();
            let state = Tensor::new(values, [4, 3]).to(device);
            // The state has memory before the list starts.
            state.try_to_vec::<f32>().unwrap();
            state
        };
        RandomProgram { device, states: (0..3).map(state).collect(), results: Vec::new() }
    }

    /// Runs one random operation. If it is an indexing operation, its index is `index`.
    fn step(&mut self, random: &mut Xorshift, index: Option<i64>) -> Result<(), Error> {
        let [a, b] = [0; 2].map(|_| self.states[random.below(3)].clone());
        let rows = Tensor::from([random.below(4) as i64, index.unwrap_or(1)]).try_to(self.device)?;
        let kind = random.below(8);
        match (index.map(|_| kind % 3), kind) {
            (Some(0), _) => a.copy_(&(&a + ops::index_select(&b, 0, &rows)?.sum(..))),
            (Some(1), _) => a.try_set((rows,), b.i(..2))?,
            (Some(_), _) => self.results.push(ops::index_select(&b, 0, &rows)?.exp()),
            (None, 0) => a.copy_(&(&b * 0.5 + 1.0)),
            (None, 1) => a.try_set((1..3,), b.i(..2).tanh())?,
            (None, 2) => a.try_set((rows,), b.i(2..))?,
            (None, 3) => self.results.push(a.sum(0)),
            (None, 4) => self.results.push(a.softmax(-1).matmul(&b.transpose(0, 1))),
            (None, 5) => a.copy_(&(&a - b.sum(0) * 0.1)),
            (None, 6) => self.results.push((&a * &b).tanh()),
            (None, _) if self.results.is_empty() => {}
            (None, _) => {
                let result = &self.results[random.below(self.results.len())];
                result.copy_(&(result * 0.5));
            }
        }
        Ok(())
    }
}

fn assert_near(found: &Tensor, expected: &Tensor, what: &str) {
    let [found, expected] = [found, expected].map(|t| t.try_to_vec::<f32>().unwrap_or_else(|e| panic!("{what}: {e}")));
    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
    assert!(near, "{what}: {found:?} instead of {expected:?}");
}

/// All writes before the failed kernel happen, and no writes after it, as in eager mode.
#[test]
fn a_failed_kernel_ends_its_list_where_eager_mode_ends_the_program() {
    each_device(20, |device| {
        for seed in 1..=60 {
            let mut random = Xorshift(seed * 0x9e37_79b9);
            let (before, after) = (random.below(8), random.below(8));
            let choices = random.0;
            let (mut eager, mut random) = (RandomProgram::new(Device::cpu()), Xorshift(choices));
            (0..before).for_each(|_| eager.step(&mut random, None).unwrap());
            let complete = eager.results.len();
            let rejected = eager.step(&mut random, Some(9));
            assert!(matches!(rejected, Err(Error::IndexOutOfBounds { index: 9, .. })), "{rejected:?}");

            let (mut deferred, mut random) = (RandomProgram::new(device), Xorshift(choices));
            (0..before).for_each(|_| deferred.step(&mut random, None).unwrap());
            deferred.step(&mut random, Some(9)).unwrap();
            (0..after).for_each(|_| deferred.step(&mut random, None).unwrap());
            let reported = flush();
            let what = format!("{device}, seed {seed}");
            assert!(matches!(reported, Err(Error::IndexOutOfBounds { index: 9, .. })), "{what}: {reported:?}");
            for (k, (found, expected)) in deferred.states.iter().zip(&eager.states).enumerate() {
                assert_near(found, expected, &format!("{what}: state {k}"));
            }
            for (k, (found, expected)) in deferred.results.iter().zip(&eager.results).take(complete).enumerate() {
                assert_near(found, expected, &format!("{what}: result {k}"));
            }
            // The device remains usable.
            eager.results.clear();
            deferred.results.clear();
            for program in [&mut eager, &mut deferred] {
                let mut random = Xorshift(choices ^ 1);
                (0..6).for_each(|_| program.step(&mut random, None).unwrap());
            }
            for (found, expected) in deferred.states.iter().zip(&eager.states) {
                assert_near(found, expected, &format!("{what}: after the failure"));
            }
        }
    });
}

/// A model that trains embedding rows, so that a bad row is an index out of bounds.
struct Rows {
    layer: Embedding,
    optimizer: Box<dyn Optimizer>,
}

type NewOptimizer = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// Constructors of an optimizer without a state and an optimizer with a state.
const OPTIMIZERS: [NewOptimizer; 2] = [
    |parameters| Box::new(Sgd::new(parameters, SgdOptions { lr: 0.1, ..Default::default() })),
    |parameters| Box::new(Adam::new(parameters, AdamOptions::default())),
];

impl Rows {
    fn new(device: Device, optimizer: NewOptimizer) -> Rows {
        let layer = Embedding::new(4, 2);
        let weights: Vec<f32> = (0..8).map(|i| (i as f32).sin()).collect();
        layer.parameters()[0].detach().copy_(&Tensor::new(weights, [4, 2]));
        layer.to_(device).unwrap();
        let optimizer = optimizer(layer.parameters());
        Rows { layer, optimizer }
    }

    fn step(&self, row: i64) -> Result<(), Error> {
        self.optimizer.zero_grad();
        let rows = Tensor::from([row, 1]).try_to(self.layer.parameters()[0].device())?;
        let loss = self.layer.try_forward(&rows)?.square().sum(..);
        loss.try_backward_with(Default::default())?;
        self.optimizer.try_step()
    }

    fn weights(&self) -> Vec<f32> {
        self.layer.parameters()[0].to_vec()
    }
}

/// The step with the bad row returns the error, even if its plan has run before. All other steps train.
#[test]
fn the_step_with_a_bad_index_returns_the_error_and_changes_nothing() {
    each_device(21, |device| {
        for optimizer in OPTIMIZERS {
            let (good, mixed) = (Rows::new(device, optimizer), Rows::new(device, optimizer));
            for k in 0..8 {
                if k == 0 || k == 5 {
                    let before = mixed.weights();
                    let rejected = mixed.step(9);
                    assert!(
                        matches!(rejected, Err(Error::IndexOutOfBounds { index: 9, .. })),
                        "step {k}: {rejected:?}"
                    );
                    assert_eq!(mixed.weights(), before, "step {k}");
                }
                good.step(k % 4).unwrap();
                mixed.step(k % 4).unwrap();
            }
            assert_eq!(good.weights(), mixed.weights());
        }
    });
}

/// A failed launch neither skips work of another thread nor returns its error there.
#[test]
fn a_bad_index_on_one_thread_does_not_reach_another_thread() {
    each_device(22, |device| {
        let [new, _] = OPTIMIZERS.map(|optimizer| move || Rows::new(device, optimizer));
        let expected = new();
        (0..20).for_each(|k| expected.step(k % 4).unwrap());
        let trained = std::thread::scope(|scope| {
            let bad = scope.spawn(move || {
                let rows = new();
                rows.step(0).unwrap();
                let is_rejected = |row| matches!(rows.step(row), Err(Error::IndexOutOfBounds { .. }));
                (0..20).map(|k| is_rejected(if k % 2 == 0 { 77 } else { 1 })).collect::<Vec<bool>>()
            });
            let good = new();
            (0..20).for_each(|k| good.step(k % 4).unwrap());
            let errors = bad.join().unwrap();
            assert!(errors.iter().enumerate().all(|(k, rejected)| *rejected == (k % 2 == 0)), "{errors:?}");
            good.weights()
        });
        assert_eq!(trained, expected.weights());
    });
}

/// A partial write that is skipped leaves the old values, which the next list may use.
#[test]
fn a_skipped_write_leaves_the_old_values() {
    each_device(23, |device| {
        let x = Tensor::new(vec![1.0f32, 2.0, 3.0, 4.0], [4]).to(device);
        let other = Tensor::from([5.0f32, 6.0]).to(device);
        for _ in 0..3 {
            let bad = ops::index_select(&other, 0, &Tensor::from([2i64]).to(device)).unwrap();
            x.set((1..2,), &bad);
            assert!(matches!(flush(), Err(Error::IndexOutOfBounds { .. })));
            assert_eq!(x.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
            let sum = &x + 1.0;
            other.copy_(&(&other + 1.0));
            assert_eq!(sum.to_vec::<f32>(), [2.0, 3.0, 4.0, 5.0]);
        }
        assert_eq!(other.to_vec::<f32>(), [8.0, 9.0]);
    });
    let x = lazy(|| {
        let x = Tensor::from([1.0f32, 2.0]);
        flush().unwrap();
        x.set((0..1,), ops::index_select(&x, 0, &Tensor::from([9i64])).unwrap());
        assert!(flush().is_err());
        x
    });
    assert_eq!(x.to_vec::<f32>(), [1.0, 2.0]);
}
