//! Compiled plans of deferred kernels, cached by their structure.
//!
//! A training loop defers the same kernels in every step. Its plan is optimized and compiled once. Run-time parameters
//! of kernels (`x * 0.1`) are not part of the structure: the passes run on a plan in which the index of each parameter
//! replaces its value. A plan with other values is compiled again, but not optimized again.

use super::slot_writes::SlotWrites;
use super::stats;
use crate::device::Device;
use pellucid_ir::backend::{CheckedPlan, CompiledPlan};
use pellucid_ir::plan::{Launch, Passes, Plan};
use pellucid_ir::{Result, Scalar, lock};
use std::sync::{Arc, Mutex};

/// The maximum number of cached plans of a device.
const MAX_PLANS: usize = 64;
/// The maximum total number of recorded kernels in all cached plans of a device. A single larger plan is cached too.
const MAX_KERNELS: usize = 16_384;

/// A plan of deferred kernels, compiled by the backend of its device.
pub(super) struct CachedPlan {
    hash: u64,
    /// The plan before all passes, with indexed parameters.
    recorded: Plan,
    /// The optimized plan, with indexed parameters.
    plan: Plan,
    writes: SlotWrites,
    /// The bytes that all launches read and write.
    bytes: usize,
    arena_bytes: Option<usize>,
    /// The plan that the backend has compiled, with the parameters for which it was compiled.
    compiled: Mutex<(Vec<Scalar>, Arc<dyn CompiledPlan>)>,
}

/// The plans of each device, in the order of their last use; the most recently used one is last. Work on one device
/// does not remove the plans of another.
static PLANS: Mutex<Vec<(Device, Vec<Arc<CachedPlan>>)>> = Mutex::new(Vec::new());

/// Calls `f` with the plans of a device.
fn with_plans<R>(device: Device, f: impl FnOnce(&mut Vec<Arc<CachedPlan>>) -> R) -> R {
    let mut devices = lock(&PLANS);
    let index = devices.iter().position(|(of, _)| *of == device).unwrap_or_else(|| {
        devices.push((device, Vec::new()));
        devices.len() - 1
    });
    f(&mut devices[index].1)
}

impl CachedPlan {
    /// Returns the compiled form of a recorded plan, from the cache if the cache contains it.
    ///
    /// # Errors
    /// The errors of the backend.
    pub(super) fn find_or_compile(
        device: Device,
        mut recorded: Plan,
    ) -> Result<(Arc<CachedPlan>, Arc<dyn CompiledPlan>)> {
        let params = index_params(&mut recorded.launches);
        let hash = structure_hash(&recorded);
        let is_same = |plan: &Arc<CachedPlan>| {
            plan.hash == hash
                && plan.recorded.launches == recorded.launches
                && plan.recorded.slots == recorded.slots
                && plan.recorded.roles == recorded.roles
        };
        let cached = with_plans(device, |plans| {
            let index = plans.iter().rposition(is_same)?;
            plans[index..].rotate_left(1);
            plans.last().cloned()
        });
        if let Some(plan) = cached {
            let compiled = plan.compiled_for(device, params)?;
            return Ok((plan, compiled));
        }
        // Another thread may compile the same plan at the same time; both forms are valid.
        let (plan, compiled) = CachedPlan::compile(device, hash, recorded, params)?;
        let plan = Arc::new(plan);
        with_plans(device, |plans| {
            plans.push(plan.clone());
            let kernels = |plans: &[Arc<CachedPlan>]| plans.iter().map(|p| p.recorded.launches.len()).sum::<usize>();
            while plans.len() > MAX_PLANS || plans.len() > 1 && kernels(plans) > MAX_KERNELS {
                plans.remove(0);
            }
        });
        Ok((plan, compiled))
    }

    fn compile(
        device: Device,
        hash: u64,
        recorded: Plan,
        params: Vec<Scalar>,
    ) -> Result<(CachedPlan, Arc<dyn CompiledPlan>)> {
        // The passes require kernels that their families accept. Only an operation outside this crate records others.
        CheckedPlan::new(&recorded)?;
        // Constants are not folded: folding helps later launches with the same values, but a deferred plan has new
        // values in every run.
        let plan = recorded.clone().after(Passes::all().without("constants")?);
        let writes = SlotWrites::from_launches(&plan.slots, &plan.launches);
        let compiled = compile_with(device, &plan, &params)?;
        let arena_bytes = plan.arena.as_ref().map(|arena| arena.bytes);
        let (bytes, cached) = (plan.traffic(), Mutex::new((params, compiled.clone())));
        let plan = CachedPlan { hash, recorded, plan, writes, bytes, arena_bytes, compiled: cached };
        Ok((plan, compiled))
    }

    /// Returns the compiled plan for these parameters.
    fn compiled_for(&self, device: Device, params: Vec<Scalar>) -> Result<Arc<dyn CompiledPlan>> {
        let mut latest = lock(&self.compiled);
        if !latest.0.iter().map(bits).eq(params.iter().map(bits)) {
            let compiled = compile_with(device, &self.plan, &params)?;
            *latest = (params, compiled);
        }
        Ok(latest.1.clone())
    }

    /// Returns the optimized plan, with indexed parameters.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the bytes that one run reads and writes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the size of the arena, whose slot follows the slots of the recorded plan.
    pub(super) fn arena_bytes(&self) -> Option<usize> {
        self.arena_bytes
    }

    /// Returns the launches that write each slot.
    pub(super) fn writes(&self) -> &SlotWrites {
        &self.writes
    }
}

/// Replaces every parameter by its index in the list of all parameters, and returns their values. Booleans are not
/// replaced.
fn index_params(launches: &mut [Launch]) -> Vec<Scalar> {
    let mut values = Vec::new();
    for launch in launches {
        launch.kernel.each_param(&mut |param| {
            let index = values.len();
            values.push(*param);
            match param {
                Scalar::Float(value) => *value = index as f64,
                Scalar::Int(value) => *value = index as i64,
                Scalar::Bool(_) => {}
            }
        });
    }
    values
}

/// Compiles a plan with indexed parameters for these values.
fn compile_with(device: Device, plan: &Plan, params: &[Scalar]) -> Result<Arc<dyn CompiledPlan>> {
    let mut plan = plan.clone();
    for launch in &mut plan.launches {
        launch.kernel.each_param(&mut |param| match *param {
            Scalar::Float(number) => *param = params[number as usize],
            Scalar::Int(number) => *param = params[number as usize],
            Scalar::Bool(_) => {}
        });
    }
    stats::count_plan(plan.launches.len());
    Ok(super::prepare(device, &plan)?.into())
}

/// Returns the bits of a parameter, so that NaN equals itself.
fn bits(value: &Scalar) -> (u8, u64) {
    match *value {
        Scalar::Bool(value) => (0, u64::from(value)),
        Scalar::Int(value) => (1, value as u64),
        Scalar::Float(value) => (2, value.to_bits()),
    }
}

/// Returns a hash of a plan's structure: the length and first letter of the kernels' names, the slots and sizes of the
/// operands, and the roles of the slots.
fn structure_hash(plan: &Plan) -> u64 {
    let mut hash = plan.slots.len() as u64;
    let mut mix = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    for launch in &plan.launches {
        let name = launch.kernel.name();
        mix((name.len() as u64) << 8 | u64::from(name.as_bytes().first().copied().unwrap_or_default()));
        for operand in launch.inputs.iter().chain(&launch.outputs) {
            mix((operand.slot as u64) << 32 ^ operand.layout.shape().size() as u64);
        }
    }
    plan.roles.iter().for_each(|&role| mix(role as u64));
    hash
}
