//! Random programs for the plans of deferred and captured steps, whose results must equal the eager bits.
//!
//! The seed determines a program: leaves and state of shapes that broadcast, with axes of length 0 and 1 among them, up
//! to [`DEPTH`] operations on a pool of tensors, each on the results of earlier ones, gradients of some results with
//! respect to the leaves, and sometimes gradients of the gradients. Operations are chosen by shapes and dtypes alone,
//! never by values, so that every mode executes the same sequence. An operation that returns an error has no result;
//! errors depend on shapes and dtypes alone.
//!
//! A program runs eagerly, lazily and captured on the CPU, and deferred and captured on a device that fuses by the rules
//! of launch-bound plans. Results and state are compared after each of [`STEPS`] steps.

mod launch_bound;
mod operations;
#[allow(clippy::duplicate_mod, reason = "the benchmark compiles this folder without the other module")]
#[path = "../random/rng.rs"]
mod rng;

pub use launch_bound::launch_bound;
use operations::OPERATIONS;
use pellucid_tensor::{DType, Device, Error, Generator, GradOptions, Shape, Tensor, capture_local, grad, lazy, ops};
use rng::SplitMix64;
use std::cell::RefCell;
use std::fmt;

/// The largest number of operations of a program.
pub const DEPTH: usize = 8;

/// The number of steps of every program.
const STEPS: usize = 2;

/// The largest number of elements of a result that is kept.
const MOST_ELEMENTS: usize = 4096;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMode {
    Eager,
    Lazy,
    Captured,
    LaunchBound,
    LaunchBoundCaptured,
}

/// The modes that are compared with eager mode.
pub const MODES: [PlanMode; 4] =
    [PlanMode::Lazy, PlanMode::Captured, PlanMode::LaunchBound, PlanMode::LaunchBoundCaptured];

impl PlanMode {
    fn device(self) -> Device {
        match self {
            PlanMode::LaunchBound | PlanMode::LaunchBoundCaptured => launch_bound(),
            _ => Device::cpu(),
        }
    }
}

/// A difference between two modes.
pub struct PlanDifference {
    pub mode: PlanMode,
    pub reason: String,
    /// The operations of the program.
    pub log: String,
}

impl fmt::Display for PlanDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}\n{}", self.mode, self.reason, self.log)
    }
}

/// What one program has exercised.
#[derive(Clone, Debug, Default)]
pub struct PlanCoverage {
    /// How often each operation has returned a result, in the order of [`operation_names`].
    pub operations: Vec<usize>,
    /// The number of gradients of the first and of the second order.
    pub gradients: [usize; 2],
    /// True if a tensor has an axis of length 0, and of length 1.
    pub has_axes: [bool; 2],
}

/// Returns the names of all operations.
pub fn operation_names() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|(name, _)| *name)
}

/// The leaves and the state of a program, on the CPU.
struct ProgramShapes {
    leaves: Vec<(Shape, DType)>,
    /// The shape of a mask.
    mask: Shape,
    states: Vec<(Shape, DType)>,
}

impl ProgramShapes {
    fn random(rng: &mut SplitMix64) -> ProgramShapes {
        let length = |rng: &mut SplitMix64| match rng.below(24) {
            0 => 0,
            1 => 19,
            2 => 40,
            k => [1, 1, 1, 2, 3, 4][k % 6],
        };
        let [a, b, c] = [(); 3].map(|()| length(rng));
        // In a square, an operand of one row and one of one column have the same size.
        let c = if rng.below(4) == 0 { b } else { c };
        let shape = |rng: &mut SplitMix64| -> Shape {
            match rng.below(11) {
                0 => [a, b, c].into(),
                1 => [a, 1, c].into(),
                2 => [b, 1].into(),
                3 => [1, c].into(),
                4 => [c].into(),
                5 => [1].into(),
                6 => Shape::scalar(),
                7 => [c, b].into(),
                _ => [b, c].into(),
            }
        };
        let dtype = |rng: &mut SplitMix64| {
            use DType::{BF16, F16, F32, F64, I32, I64};
            rng.choose(&[F32, F32, F32, F32, F32, F64, F64, BF16, F16, I64, I32, F32])
        };
        // Half of the programs have one dtype, in which more operations fuse.
        let one = rng.choose(&[None, Some(DType::F32)]);
        let array = |rng: &mut SplitMix64| (shape(rng), one.unwrap_or_else(|| dtype(rng)));
        let leaves = (0..2 + rng.below(3)).map(|_| array(rng)).collect();
        let states = (0..2).map(|_| array(rng)).collect();
        ProgramShapes { leaves, mask: shape(rng), states }
    }

    /// Returns the inputs of a step: the leaves, then the mask.
    fn inputs(&self, step: usize) -> Vec<Tensor> {
        let mut inputs: Vec<Tensor> = self.leaves.iter().enumerate().map(|(k, of)| wave(of, step, k)).collect();
        inputs.push(wave(&(self.mask.clone(), DType::F32), step, 7).gt(-0.2));
        inputs
    }
}

/// Returns numbers that the step and the number of the tensor determine.
fn wave((shape, dtype): &(Shape, DType), step: usize, number: usize) -> Tensor {
    let phase = 0.3 + step as f64 + 0.7 * number as f64;
    let value = |i: usize| 2.0 * (phase + (1.3 + 0.4 * number as f64) * i as f64).sin();
    Tensor::new((0..shape.size()).map(value).collect::<Vec<f64>>(), shape.clone()).to_dtype(*dtype)
}

/// A program in execution: the tensors that it may use, and a log of its operations.
struct PlanProgram<'s> {
    rng: SplitMix64,
    states: &'s [Tensor],
    mask: Tensor,
    pool: Vec<Tensor>,
    /// The positions in the pool of the operands of the current operation.
    operands: Vec<usize>,
    log: Vec<String>,
    coverage: PlanCoverage,
}

impl PlanProgram<'_> {
    /// Returns a tensor of the pool that satisfies `wanted`. Half of the draws are from the three newest tensors.
    fn pick(&mut self, wanted: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        for _ in 0..24 {
            let len = self.pool.len();
            let at = if self.rng.below(2) == 0 { len - 1 - self.rng.below(len.min(3)) } else { self.rng.below(len) };
            if wanted(&self.pool[at]) {
                self.operands.push(at);
                return Some(self.pool[at].clone());
            }
        }
        None
    }

    fn note(&mut self, first: usize, results: &[Tensor], what: String) {
        let each = results.iter().enumerate().map(|(k, t)| format!("%{} {}{}", first + k, t.dtype(), t.shape()));
        self.log.push(format!("{} = {what}", each.collect::<Vec<_>>().join(", ")));
        for (axis, seen) in self.coverage.has_axes.iter_mut().enumerate() {
            *seen |= results.iter().any(|t| t.shape().contains(&axis));
        }
    }

    /// Executes one random operation, if one of eight draws is applicable.
    fn apply_random_operation(&mut self) {
        for _ in 0..8 {
            let which = self.rng.below(OPERATIONS.len());
            let (name, apply) = OPERATIONS[which];
            self.operands.clear();
            let Some(mut results) = apply(self) else { continue };
            results.retain(|t| t.size() <= MOST_ELEMENTS);
            self.coverage.operations[which] += 1;
            let what = format!("{name} of {:?}", self.operands);
            self.note(self.pool.len(), &results, what);
            self.pool.extend(results);
            return;
        }
    }

    /// Returns the gradients of two of the newest results with respect to the leaves, and sometimes those of the
    /// gradients.
    fn differentiate(&mut self, leaves: &[Tensor]) -> Vec<Tensor> {
        self.operands.clear();
        let is_target = |t: &Tensor| t.requires_grad() && !t.is_leaf();
        let targets: Vec<Tensor> = (0..2).filter_map(|_| self.pick(is_target)).collect();
        let create_graph = self.rng.below(3) == 0;
        let sources: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
        if targets.is_empty() || sources.is_empty() {
            return Vec::new();
        }
        let of = |targets: &[Tensor], create_graph| {
            let options = GradOptions { create_graph, retain_graph: true, allow_unused: true, ..Default::default() };
            grad(&targets.iter().collect::<Vec<_>>(), &sources, options)
        };
        let what = format!("the gradients of {:?}", self.operands);
        let mut all = match of(&targets, create_graph) {
            Ok(first) => first,
            Err(error) => {
                // The text ends with the versions of tensors, which count differently in recorded steps.
                let text = error.to_string();
                let reason = text.split('(').next().unwrap_or_default();
                self.log.push(format!("no gradients of {:?}: {reason}", self.operands));
                return Vec::new();
            }
        };
        self.note(self.pool.len(), &all, what);
        self.coverage.gradients[0] += all.len();
        if create_graph {
            let squares: Vec<Tensor> = all.iter().filter(|g| g.requires_grad()).map(Tensor::square).collect();
            if let Ok(second) = of(&squares, false) {
                self.note(self.pool.len() + all.len(), &second, "their gradients".into());
                self.coverage.gradients[1] += second.len();
                all.extend(second);
            }
        }
        all
    }
}

/// Executes one step of a program. Returns its results, its log and its coverage.
fn execute_step(seed: u64, states: &[Tensor], inputs: &[Tensor]) -> (Vec<Tensor>, String, PlanCoverage) {
    let mut rng = SplitMix64::new(seed);
    ProgramShapes::random(&mut rng);
    let (mask, leaves) = inputs.split_last().expect("the last input must be the mask");
    let tracked = |x: &Tensor| if x.dtype().is_float() { x.detach().requires_grad_(true) } else { x.clone() };
    let leaves: Vec<Tensor> = leaves.iter().map(tracked).collect();
    let coverage = PlanCoverage { operations: vec![0; OPERATIONS.len()], ..PlanCoverage::default() };
    let pool: Vec<Tensor> = leaves.iter().chain(states).cloned().collect();
    let mut run =
        PlanProgram { rng, states, mask: mask.clone(), pool: vec![], operands: vec![], log: vec![], coverage };
    run.note(0, &pool, "leaves and state".into());
    let own = pool.len();
    run.pool = pool;
    for _ in 0..1 + run.rng.below(DEPTH) {
        run.apply_random_operation();
    }
    let gradients = run.differentiate(&leaves);
    run.operands.clear();
    let mut outputs: Vec<Tensor> = (0..1 + run.rng.below(3)).filter_map(|_| run.pick(|_| true)).collect();
    // The newest result is always read.
    outputs.extend(run.pool[own..].last().cloned());
    run.log.push(format!("returns {:?}, the newest result and the gradients", run.operands));
    outputs.extend(gradients);
    let outputs = outputs.iter().map(Tensor::detach).collect();
    (outputs, run.log.join("\n"), run.coverage)
}

/// The bits of the results of a step, and of the state after it.
type Observation = [Vec<Vec<u8>>; 2];

/// Returns the bits of tensors, with every NaN replaced by the same one.
fn comparable_bits(tensors: &[Tensor]) -> Result<Vec<Vec<u8>>, Error> {
    let plain = |t: &Tensor| if t.dtype().is_float() { ops::where_(&t.isnan(), f64::NAN, t) } else { Ok(t.clone()) };
    tensors.iter().map(|t| plain(t)?.try_to_bytes()).collect()
}

/// Runs a program in a mode. Returns the observation of every step, the log and the coverage.
fn run_program(seed: u64, mode: PlanMode) -> Result<(Vec<Observation>, String, PlanCoverage), Error> {
    let shapes = ProgramShapes::random(&mut SplitMix64::new(seed));
    let _random = Generator::new(seed).scope();
    let moved = |tensors: Vec<Tensor>| tensors.iter().map(|t| t.try_to(mode.device())).collect::<Result<Vec<_>, _>>();
    let states = moved(shapes.states.iter().enumerate().map(|(k, of)| wave(of, 3, k)).collect())?;
    let notes = RefCell::new(Default::default());
    let work = |inputs: &[Tensor]| {
        let (outputs, log, coverage) = execute_step(seed, &states, inputs);
        notes.replace((log, coverage));
        outputs
    };
    let mut all = Vec::new();
    let mut captured = match mode {
        PlanMode::Captured | PlanMode::LaunchBoundCaptured => {
            let inputs = moved(shapes.inputs(0))?;
            Some(capture_local(work, &inputs.iter().collect::<Vec<_>>())?)
        }
        _ => None,
    };
    for step in 0..STEPS {
        let inputs = moved(shapes.inputs(step))?;
        let outputs = match (&mut captured, mode) {
            (Some(captured), _) => {
                let outputs = captured.launch(&inputs.iter().collect::<Vec<_>>())?;
                (0..outputs.len()).map(|k| outputs.try_to_tensor(k)).collect::<Result<_, _>>()?
            }
            (None, PlanMode::Lazy) => lazy(|| work(&inputs)),
            (None, _) => work(&inputs),
        };
        all.push([comparable_bits(&outputs)?, comparable_bits(&states)?]);
    }
    drop(captured);
    let (log, coverage) = notes.into_inner();
    Ok((all, log, coverage))
}

/// Runs a program in every mode and compares the bits with those of eager mode.
///
/// # Errors
/// The first difference.
pub fn compare_modes(seed: u64) -> Result<PlanCoverage, Box<PlanDifference>> {
    let failed = |mode, log: &str, error: Error| {
        Box::new(PlanDifference { mode, reason: format!("it fails: {error}"), log: log.to_string() })
    };
    let (eager, log, coverage) = run_program(seed, PlanMode::Eager).map_err(|e| failed(PlanMode::Eager, "", e))?;
    for mode in MODES {
        let (found, its_log, _) = run_program(seed, mode).map_err(|error| failed(mode, &log, error))?;
        let difference = |reason| Err(Box::new(PlanDifference { mode, reason, log: log.clone() }));
        if its_log != log {
            return difference(format!("it executes other operations:\n{its_log}\ninstead of"));
        }
        for (step, (found, eager)) in found.iter().zip(&eager).enumerate() {
            let [results, states] = [0, 1].map(|part| {
                let (a, b) = (&found[part], &eager[part]);
                (0..b.len()).filter(|&k| a.get(k) != b.get(k)).collect::<Vec<_>>()
            });
            if !results.is_empty() || !states.is_empty() {
                return difference(format!("step {step} differs in the results {results:?} and the states {states:?}"));
            }
        }
    }
    Ok(coverage)
}
