//! Random programs: captured, lazy and deferred execution compute the same bits as eager execution.
//!
//! The seed determines a program: shapes, dtypes, inputs, state that persists across steps, and a sequence of
//! operations on a pool of tensors. Operations are chosen by shapes and dtypes alone, never by values, so that every
//! mode executes the same sequence. Values are used several times, before and after writes in place and through views.
//! A step may return a view of an input, of the state, or of another output.

mod operations;
mod rng;

use crate::support::bits;
use crate::table::devices::toy;
use operations::OPERATIONS;
use pellucid_tensor::{DType, Device, Generator, Tensor, capture_local, lazy, manual_seed, ops};
pub use rng::SplitMix64;
use std::cell::RefCell;

/// Number of inputs of every program.
const INPUTS: usize = 5;

/// Number of launches of every program.
const STEPS: usize = 3;

/// The state of a program, which persists across steps.
pub struct ProgramState {
    /// Matrices `[m, n]`, of two dtypes, both written in place.
    states: [Tensor; 2],
    /// `i64 [n]`, an index into axes of length `n`.
    index: Tensor,
    /// A leaf `[n, 3]` that the program trains.
    weight: Tensor,
    /// A leaf whose gradient every step adds to.
    total: Tensor,
    generator: Generator,
}

/// The sizes, dtypes and number of operations of a program.
struct ProgramConfig {
    m: usize,
    n: usize,
    dtypes: [DType; 4],
    operations: usize,
}

impl ProgramConfig {
    fn random(rng: &mut SplitMix64) -> ProgramConfig {
        let sides = [(3, 4), (1, 5), (6, 1), (2, 3), (5, 7), (4, 2), (1, 1), (7, 16), (17, 33)];
        let (m, n) = match rng.below(40) {
            0 => (0, 3),
            1 => (70, 130),
            _ => rng.choose(&sides),
        };
        let float = |rng: &mut SplitMix64| rng.choose(&[DType::F32, DType::F32, DType::F64, DType::BF16]);
        ProgramConfig { m, n, dtypes: [(); 4].map(|()| float(rng)), operations: 10 + rng.below(31) }
    }

    /// Returns the inputs of a step: a matrix, a row, a column, an index tensor and a mask.
    fn inputs(&self, step: usize) -> Vec<Tensor> {
        let &ProgramConfig { m, n, dtypes, .. } = self;
        let wave = |shape: [usize; 2], pace: f64| {
            let numbers: Vec<f64> =
                (0..shape[0] * shape[1]).map(|i| (0.3 + step as f64 + pace * i as f64).sin()).collect();
            Tensor::new(numbers, shape)
        };
        let whole: Vec<i64> = (0..n).map(|i| ((i * 7 + step * 3) % n.max(1)) as i64).collect();
        vec![
            wave([m, n], 1.9).to_dtype(dtypes[0]),
            wave([1, n], 0.7).reshape([n]).to_dtype(dtypes[1]),
            wave([m, 1], 2.3).to_dtype(dtypes[2]),
            Tensor::new(whole, [n]),
            wave([m, n], 3.1).gt(0.2),
        ]
    }
}

impl ProgramState {
    fn new(config: &ProgramConfig, seed: u64) -> ProgramState {
        let &ProgramConfig { m, n, dtypes, .. } = config;
        let generator = Generator::new(seed);
        let draw =
            |shape: [usize; 2], dtype: DType| ops::randn_with(shape, DType::F64, &generator).unwrap().to_dtype(dtype);
        ProgramState {
            states: [draw([m, n], dtypes[0]), draw([m, n], dtypes[3])],
            index: (Tensor::arange(0i64, n as i64, 1) * 5 + 1) % (n as i64),
            weight: draw([n, 3], dtypes[0]).requires_grad_(true),
            total: {
                let total = Tensor::zeros([n], dtypes[1]).requires_grad_(true);
                total.set_grad(Some(Tensor::ones([n], dtypes[1])));
                total
            },
            generator,
        }
    }

    /// Returns the state on a device. The generator draws on the CPU.
    fn on(self, device: Device) -> ProgramState {
        let leaf = |x: &Tensor| x.detach().to(device).requires_grad_(true);
        let total = leaf(&self.total);
        total.set_grad(self.total.grad().map(|gradient| gradient.to(device)));
        ProgramState {
            states: self.states.map(|state| state.to(device)),
            index: self.index.to(device),
            weight: leaf(&self.weight),
            total,
            generator: self.generator,
        }
    }

    /// Returns all tensors that a step may change.
    fn all(&self) -> Vec<Tensor> {
        let mut all = self.states.to_vec();
        let (weight, gradient) =
            (self.weight.detach(), self.total.grad().expect("`ProgramState::new` must set a gradient"));
        all.extend([
            self.index.clone(),
            weight,
            gradient,
            self.generator.state().clone(),
            Generator::default().state().clone(),
        ]);
        all
    }
}

/// A program in execution: the tensors that it may use, and a log of its operations.
pub struct ProgramRun<'w> {
    rng: SplitMix64,
    program_state: &'w ProgramState,
    pool: Vec<Tensor>,
    /// The largest size of a result that is kept.
    max_elements: usize,
    /// The positions in the pool of the operands of the current operation.
    operands: Vec<usize>,
    log: Vec<String>,
    /// How often each operation was executed.
    counts: Vec<usize>,
}

impl<'w> ProgramRun<'w> {
    fn new(
        rng: SplitMix64,
        config: &ProgramConfig,
        program_state: &'w ProgramState,
        inputs: &[Tensor],
    ) -> ProgramRun<'w> {
        let mut pool = inputs.to_vec();
        pool.extend(program_state.states.iter().chain([&program_state.index]).cloned());
        let names = ["matrix", "row", "column", "whole", "mask", "state 0", "state 1", "index"];
        let log = pool.iter().zip(names).enumerate();
        let log = log.map(|(i, (t, name))| format!("%{i} {}{} = {name}", t.dtype(), t.shape())).collect();
        let max_elements = 4 * config.m.max(1) * config.n + 64;
        ProgramRun { rng, program_state, pool, max_elements, operands: vec![], log, counts: vec![0; OPERATIONS.len()] }
    }

    /// Returns a tensor of the pool that satisfies `wanted`. Half of the draws are from the four newest tensors.
    fn pick(&mut self, wanted: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        for _ in 0..24 {
            let len = self.pool.len();
            let at = if self.rng.below(2) == 0 { len - 1 - self.rng.below(len.min(4)) } else { self.rng.below(len) };
            if wanted(&self.pool[at]) {
                self.operands.push(at);
                return Some(self.pool[at].clone());
            }
        }
        None
    }

    /// Returns true if a tensor shares the storage of an input. Inputs come first in the pool.
    fn has_input_storage(&self, x: &Tensor) -> bool {
        self.pool[..INPUTS].iter().any(|input| input.array().shares_storage(x.array()))
    }

    /// Executes one random operation, if one of eight draws is applicable.
    fn apply_random_operation(&mut self) {
        for _ in 0..8 {
            let which = self.rng.below(OPERATIONS.len());
            let (name, apply) = OPERATIONS[which];
            self.operands.clear();
            let Some(mut results) = apply(self) else { continue };
            results.retain(|t| t.size() <= self.max_elements);
            self.counts[which] += 1;
            let first = self.pool.len();
            let what = results.iter().enumerate().map(|(k, t)| format!("%{} {}{}", first + k, t.dtype(), t.shape()));
            let what = what.collect::<Vec<_>>().join(", ");
            self.log.push(format!("{what} = {name} of {:?}", self.operands));
            self.pool.extend(results.into_iter().map(|t| t.detach()));
            return;
        }
    }
}

/// Executes one step of a program. Returns its results and the finished run.
fn execute_step<'w>(seed: u64, program_state: &'w ProgramState, inputs: &[Tensor]) -> (Vec<Tensor>, ProgramRun<'w>) {
    let mut rng = SplitMix64::new(seed);
    let config = ProgramConfig::random(&mut rng);
    let mut run = ProgramRun::new(rng, &config, program_state, inputs);
    for _ in 0..config.operations {
        run.apply_random_operation();
    }
    let count = 1 + run.rng.below(6);
    run.operands.clear();
    let outputs: Vec<Tensor> = (0..count).filter_map(|_| run.pick(|_| true)).collect();
    run.log.push(format!("returns {:?}", run.operands));
    (outputs, run)
}

/// The observable effect of a step: the bits of its results, and of the state after it.
type Observation = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Returns the bits of tensors, with every NaN replaced by the same one.
fn comparable_bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let plain =
        |t: &Tensor| if t.dtype().is_float() { ops::where_(&t.isnan(), f64::NAN, t).unwrap() } else { t.clone() };
    bits(&tensors.iter().map(plain).collect::<Vec<_>>())
}

#[derive(Clone, Copy, Debug)]
enum ExecutionMode {
    Eager,
    Lazy,
    Captured,
    /// On the example device of this index. Devices of odd index defer their kernels.
    OnDevice(usize),
}

fn run_program(seed: u64, mode: ExecutionMode, counts: &mut Vec<usize>) -> (Vec<Observation>, String) {
    let config = ProgramConfig::random(&mut SplitMix64::new(seed));
    manual_seed(seed);
    let program_state = ProgramState::new(&config, seed);
    let log = RefCell::new(String::new());
    let note = |run: ProgramRun<'_>| {
        log.replace(run.log.join("\n"));
        run.counts
    };
    let mut all = Vec::new();
    match mode {
        ExecutionMode::Eager | ExecutionMode::Lazy => {
            for i in 0..STEPS {
                let inputs = config.inputs(i);
                let work = || execute_step(seed, &program_state, &inputs);
                let (outputs, run) = if let ExecutionMode::Lazy = mode { lazy(work) } else { work() };
                *counts = note(run);
                all.push((comparable_bits(&outputs), comparable_bits(&program_state.all())));
            }
        }
        ExecutionMode::OnDevice(index) => {
            let program_state = program_state.on(toy(index));
            for i in 0..STEPS {
                let inputs: Vec<Tensor> = config.inputs(i).iter().map(|x| x.to(toy(index))).collect();
                let (outputs, run) = execute_step(seed, &program_state, &inputs);
                *counts = run.counts.clone();
                log.replace(run.log.join("\n"));
                drop(run);
                all.push((comparable_bits(&outputs), comparable_bits(&program_state.all())));
            }
        }
        ExecutionMode::Captured => {
            let before = bits(&program_state.all());
            let inputs = config.inputs(0);
            let work = |inputs: &[Tensor]| {
                let (outputs, run) = execute_step(seed, &program_state, inputs);
                note(run);
                outputs
            };
            let mut captured = capture_local(work, &inputs.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(bits(&program_state.all()), before, "program {seed}: the recording must not change the state");
            for i in 0..STEPS {
                let inputs = config.inputs(i);
                let outputs = captured.launch(&inputs.iter().collect::<Vec<_>>()).unwrap();
                let outputs: Vec<Tensor> = (0..outputs.len()).map(|k| outputs.to_tensor(k)).collect();
                all.push((comparable_bits(&outputs), comparable_bits(&program_state.all())));
                assert_eq!(
                    bits(&inputs),
                    bits(&config.inputs(i)),
                    "program {seed}: a launch must not write to the caller's inputs"
                );
            }
        }
    }
    (all, log.into_inner())
}

/// Runs programs in every mode and compares the bits. Returns how often each operation was executed.
fn compare_modes(seeds: std::ops::Range<u64>) -> Vec<usize> {
    let mut totals = vec![0; OPERATIONS.len()];
    for seed in seeds {
        let mut counts = Vec::new();
        let (eager, log) = run_program(seed, ExecutionMode::Eager, &mut counts);
        totals.iter_mut().zip(&counts).for_each(|(total, count)| *total += count);
        for mode in [ExecutionMode::Captured, ExecutionMode::Lazy] {
            compare_with(seed, mode, (&eager, &log));
        }
    }
    totals
}

/// Runs a program in a mode and compares it with the observations and the log of another run.
fn compare_with(seed: u64, mode: ExecutionMode, (eager, log): (&[Observation], &str)) {
    let (other, its_log) = run_program(seed, mode, &mut Vec::new());
    assert_eq!(its_log, log, "program {seed}: the operations in mode {mode:?} differ from those in eager mode");
    for (i, (found, expected)) in other.iter().zip(eager).enumerate() {
        let differs = |a: &[Vec<u8>], b: &[Vec<u8>]| (0..a.len()).filter(|&k| a[k] != b[k]).collect::<Vec<_>>();
        let (results, state) = (differs(&found.0, &expected.0), differs(&found.1, &expected.1));
        assert!(
            results.is_empty() && state.is_empty(),
            "program {seed}, {mode:?}, step {i} differs from eager: results {results:?}, state {state:?}\n{log}"
        );
    }
}

/// A device that defers its kernels computes the bits of one that runs them at once.
#[test]
fn random_programs_compute_the_same_bits_on_a_device_that_defers_kernels() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for seed in 1000..1100 {
        let (expected, log) = run_program(seed, ExecutionMode::OnDevice(0), &mut Vec::new());
        compare_with(seed, ExecutionMode::OnDevice(1), (&expected, &log));
    }
}

#[test]
fn random_programs_compute_the_same_bits_in_every_mode() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let counts = compare_modes(0..250);
    for ((name, _), count) in OPERATIONS.iter().zip(counts) {
        assert!(count >= 8, "`{name}` must be executed at least 8 times, got {count}");
    }
}

/// Dropping a guard ends the scope of that guard, in any order of drops.
#[test]
fn scopes_that_end_out_of_order() {
    let draw = || Tensor::rand([3], DType::F64).to_vec::<f64>();
    let expected = {
        let _scope = Generator::new(8).scope();
        draw()
    };
    let outer = Generator::new(7).scope();
    let inner = Generator::new(8).scope();
    drop(outer);
    assert_eq!(draw(), expected);
    let last = Generator::new(9).scope();
    drop(inner);
    let _scope = Generator::new(8).scope();
    drop(last);
    assert_eq!(draw(), expected);
}
