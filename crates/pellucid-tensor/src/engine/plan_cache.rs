//! Compiled plans of deferred kernels, found by their structure.
//!
//! A training loop defers the same kernels in every step. Its plan is optimized and compiled once.

use super::stats;
use crate::device::Device;
use pellucid_ir::backend::CompiledPlan;
use pellucid_ir::plan::{Passes, Plan, SlotView};
use pellucid_ir::{Result, Shape};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximal number of cached plans.
const MAX_PLANS: usize = 64;
/// The maximal number of recorded kernels of all cached plans together.
const MAX_KERNELS: usize = 32_768;

/// A plan of deferred kernels, compiled by the backend of its device.
pub(super) struct CachedPlan {
    device: Device,
    hash: u64,
    /// The plan before all passes.
    recorded: Plan,
    /// For each slot, the index of the last launch that writes it.
    last_writes: Vec<Option<usize>>,
    /// The shape of the largest output of each launch, for errors.
    shapes: Vec<Shape>,
    arena_bytes: Option<usize>,
    compiled: Box<dyn CompiledPlan>,
}

/// The plans, in the order of their last use; the most recently used one is last.
static PLANS: Mutex<Vec<Arc<CachedPlan>>> = Mutex::new(Vec::new());

impl CachedPlan {
    /// Returns the compiled form of a recorded plan: a cached one, or a new one, which is then cached.
    ///
    /// # Errors
    /// Those of the backend.
    pub(super) fn find_or_compile(device: Device, recorded: Plan) -> Result<Arc<CachedPlan>> {
        let hash = structure_hash(&recorded);
        let is_same = |plan: &Arc<CachedPlan>| {
            plan.hash == hash
                && plan.device == device
                && plan.recorded.launches == recorded.launches
                && plan.recorded.slots == recorded.slots
                && plan.recorded.roles == recorded.roles
        };
        let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = plans.iter().rposition(is_same) {
            plans[at..].rotate_left(1);
            return Ok(plans[plans.len() - 1].clone());
        }
        // Another thread may compile the same plan at the same time; both forms are valid.
        drop(plans);
        let plan = Arc::new(CachedPlan::compile(device, hash, recorded)?);
        let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push(plan.clone());
        let kernels = |plans: &[Arc<CachedPlan>]| plans.iter().map(|p| p.recorded.launches.len()).sum::<usize>();
        while plans.len() > MAX_PLANS || plans.len() > 1 && kernels(&plans) > MAX_KERNELS {
            plans.remove(0);
        }
        Ok(plan)
    }

    fn compile(device: Device, hash: u64, recorded: Plan) -> Result<CachedPlan> {
        // Constants are folded for later launches of the same values; a deferred plan has new values in every run.
        let plan = recorded.clone().after(Passes::all().without("constants")?);
        let mut last_writes = vec![None; plan.slots.len()];
        for (k, launch) in plan.launches.iter().enumerate() {
            launch.outputs.iter().for_each(|out| last_writes[out.slot] = Some(k));
        }
        let largest =
            |outputs: &[SlotView]| outputs.iter().max_by_key(|out| out.bytes()).map(|o| o.layout.shape().clone());
        let shapes = plan.launches.iter().map(|launch| largest(&launch.outputs).unwrap_or_default()).collect();
        let compiled = super::prepare(device, &plan)?;
        stats::count_plan(plan.launches.len());
        let arena_bytes = plan.arena.as_ref().map(|arena| arena.bytes);
        Ok(CachedPlan { device, hash, recorded, last_writes, shapes, arena_bytes, compiled })
    }

    pub(super) fn compiled(&self) -> &dyn CompiledPlan {
        &*self.compiled
    }

    /// Returns the number of launches of one run.
    pub(super) fn launches(&self) -> usize {
        self.shapes.len()
    }

    /// Returns the size of the arena, whose slot follows those of the recorded plan.
    pub(super) fn arena_bytes(&self) -> Option<usize> {
        self.arena_bytes
    }

    /// Returns the shape of the largest output of a launch.
    pub(super) fn shape(&self, launch: usize) -> Option<&Shape> {
        self.shapes.get(launch)
    }

    /// Returns whether the values of a slot are complete after the launches before `launch`.
    pub(super) fn is_complete(&self, slot: usize, launch: usize) -> bool {
        self.last_writes[slot].is_some_and(|last| last < launch)
    }
}

/// Returns a hash of a plan: of the names of its kernels, their slots and sizes.
fn structure_hash(plan: &Plan) -> u64 {
    let mut hash = plan.slots.len() as u64;
    let mut mix = |word: usize| hash = (hash.rotate_left(5) ^ word as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
    for launch in &plan.launches {
        let name = launch.kernel.name();
        mix(name.len() << 8 | usize::from(name.as_bytes().first().copied().unwrap_or_default()));
        for operand in launch.inputs.iter().chain(&launch.outputs) {
            mix(operand.slot << 32 ^ operand.layout.shape().size());
        }
    }
    plan.roles.iter().for_each(|&role| mix(role as usize));
    hash
}
