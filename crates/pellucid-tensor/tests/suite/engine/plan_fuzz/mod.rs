//! Random programs: every mode of execution is bit-identical to eager execution.
//!
//! A program runs eagerly, lazily and captured on the CPU. It also runs on a device that defers kernels and fuses them
//! by the rules of launch-bound plans, eagerly and captured, and on a device that runs the same kernels immediately.
//! The results of each of [`STEPS`] steps, the state and the inputs after it are compared; so is the state before the
//! first step, which the recording of a captured step must not change.

mod launch_bound;
mod operations;
mod program;
pub mod rng;

pub use launch_bound::{launch_bound, unfused, without_kernels};
use operations::OPERATIONS;
use pellucid_tensor::{Device, Error, Generator, Tensor, capture_local, lazy, ops};
use program::{PlanProgram, ProgramState};
use std::cell::RefCell;
use std::fmt;

/// The number of steps of every program.
const STEPS: usize = 3;

/// How the steps of a program are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMode {
    Eager,
    Lazy,
    Captured,
}

/// A difference from eager execution.
pub struct PlanDifference {
    /// The mode of execution and the device.
    pub mode: String,
    pub reason: String,
    /// The operations of the program.
    pub log: String,
}

impl fmt::Display for PlanDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.mode, self.reason, self.log)
    }
}

/// The coverage of one program.
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

/// The bits of the results of a step, and of the state and the inputs after it.
type Observation = [Vec<Vec<u8>>; 3];

/// Returns the bits of tensors. One bit pattern replaces every NaN.
fn comparable_bits(tensors: &[Tensor]) -> Result<Vec<Vec<u8>>, Error> {
    let plain = |t: &Tensor| if t.dtype().is_float() { ops::where_(&t.isnan(), f64::NAN, t) } else { Ok(t.clone()) };
    tensors.iter().map(|t| plain(t)?.try_to_bytes()).collect()
}

/// Runs a program. Returns the observations before the first and after every step, the log and the coverage.
fn run_program(seed: u64, mode: PlanMode, device: Device) -> Result<(Vec<Observation>, String, PlanCoverage), Error> {
    let program = PlanProgram::new(seed);
    let _random = Generator::new(seed).scope();
    let state = ProgramState::new(&program, seed, device)?;
    let inputs_of = |step| program.inputs(step).iter().map(|t| t.try_to(device)).collect::<Result<Vec<_>, _>>();
    let notes = RefCell::new(Default::default());
    let work = |inputs: &[Tensor]| {
        let (outputs, log, coverage) = program.execute(&state, inputs);
        notes.replace((log, coverage));
        outputs
    };
    let mut captured = match mode {
        PlanMode::Captured => Some(capture_local(work, &inputs_of(0)?.iter().collect::<Vec<_>>())?),
        _ => None,
    };
    let mut all = vec![[vec![], comparable_bits(&state.all())?, vec![]]];
    for step in 0..STEPS {
        let inputs = inputs_of(step)?;
        let outputs = match &mut captured {
            Some(captured) => {
                let outputs = captured.launch(&inputs.iter().collect::<Vec<_>>())?;
                (0..outputs.len()).map(|k| outputs.try_to_tensor(k)).collect::<Result<_, _>>()?
            }
            None if mode == PlanMode::Lazy => lazy(|| work(&inputs)),
            None => work(&inputs),
        };
        all.push([comparable_bits(&outputs)?, comparable_bits(&state.all())?, comparable_bits(&inputs)?]);
    }
    drop(captured);
    let (log, coverage) = notes.into_inner();
    Ok((all, log, coverage))
}

/// Runs a program eagerly on the device `reference`, and compares the bits with other modes and devices.
///
/// # Errors
/// The first difference.
pub fn compare(
    seed: u64,
    reference: Device,
    others: &[(PlanMode, Device)],
) -> Result<PlanCoverage, Box<PlanDifference>> {
    let run = |(mode, device): (PlanMode, Device), log: &str| {
        run_program(seed, mode, device).map_err(|error| {
            let (mode, reason) = (format!("{mode:?} on {device}"), format!("it fails: {error}"));
            Box::new(PlanDifference { mode, reason, log: log.to_string() })
        })
    };
    let (eager, log, coverage) = run((PlanMode::Eager, reference), "")?;
    for &(mode, device) in others {
        let (found, its_log, _) = run((mode, device), &log)?;
        let difference =
            |reason| Err(Box::new(PlanDifference { mode: format!("{mode:?} on {device}"), reason, log: log.clone() }));
        if its_log != log {
            return difference(format!("it executes other operations:\n{its_log}\ninstead of"));
        }
        for (step, (found, eager)) in found.iter().zip(&eager).enumerate() {
            let [results, state, inputs] = [0, 1, 2].map(|part| {
                let (a, b) = (&found[part], &eager[part]);
                (0..b.len()).filter(|&k| a.get(k) != b.get(k)).collect::<Vec<_>>()
            });
            if !(results.is_empty() && state.is_empty() && inputs.is_empty()) {
                return difference(format!(
                    "after {step} steps the results {results:?}, the state {state:?} and the inputs {inputs:?} differ"
                ));
            }
        }
    }
    Ok(coverage)
}

/// Runs a program in every mode, on the CPU and on a launch-bound device, and compares the bits with eager mode.
///
/// # Errors
/// The first difference.
pub fn compare_modes(seed: u64) -> Result<PlanCoverage, Box<PlanDifference>> {
    use PlanMode::{Captured, Eager, Lazy};
    compare(seed, unfused(), &[(Eager, launch_bound()), (Captured, launch_bound())])?;
    compare(seed, Device::cpu(), &[(Lazy, Device::cpu()), (Captured, Device::cpu())])
}
