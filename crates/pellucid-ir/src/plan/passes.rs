//! The list of passes, in the order in which they run, and the selection of passes to run.

use super::{Plan, arena, constants, copies, dead, early, fuse};
use crate::error::{Error, Result};

/// One pass: a pure function from a plan to a plan with bit-identical results.
pub struct Pass {
    /// The name, for [`Passes::with`] and [`Passes::without`].
    pub name: &'static str,
    /// A description in one sentence.
    pub description: &'static str,
    run: fn(Plan) -> Plan,
}

/// All passes, in the order in which they run.
pub const PASSES: [Pass; 6] = [
    Pass { name: "copies", description: "removes copies between layouts", run: copies::remove },
    Pass { name: "dead", description: "removes unused launches and outputs", run: dead::remove },
    Pass {
        name: "constants",
        description: "computes values that depend only on constants once, before the first run",
        run: constants::fold,
    },
    Pass { name: "fuse", description: "fuses a kernel with the kernel that reads its result", run: fuse::fuse },
    Pass { name: "early", description: "runs launches that free memory as early as possible", run: early::hoist },
    Pass {
        name: "arena",
        description: "places all buffers that the plan owns in one allocation, in which they share memory",
        run: arena::assign_offsets,
    },
];

/// A set of passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passes(u32);

impl Default for Passes {
    fn default() -> Passes {
        Passes::all()
    }
}

impl Passes {
    /// Returns the set of all passes.
    pub fn all() -> Passes {
        Passes((1 << PASSES.len()) - 1)
    }

    /// Returns the empty set, which keeps the plan as it was recorded.
    pub fn none() -> Passes {
        Passes(0)
    }

    /// Returns the set without the pass called `name`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no pass has this name.
    pub fn without(self, name: &str) -> Result<Passes> {
        Ok(Passes(self.0 & !Passes::bit(name)?))
    }

    /// Returns the set with the pass called `name`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no pass has this name.
    pub fn with(self, name: &str) -> Result<Passes> {
        Ok(Passes(self.0 | Passes::bit(name)?))
    }

    fn bit(name: &str) -> Result<u32> {
        let names = || PASSES.map(|p| p.name).join(", ");
        let index = PASSES.iter().position(|p| p.name == name);
        index
            .map(|k| 1 << k)
            .ok_or_else(|| Error::invalid("passes", format!("no pass is called `{name}`; the passes are {}", names())))
    }
}

impl Plan {
    /// Returns the plan after `passes`.
    ///
    /// # Panics
    /// Panics in debug builds, if the plan or the result of a pass is invalid, for example because a launch reads
    /// memory that no earlier launch has written. The message names the pass, the launch and the slot.
    #[must_use]
    #[track_caller]
    pub fn after(mut self, passes: Passes) -> Plan {
        self.report.recorded = self.launches.len();
        let verifies = cfg!(debug_assertions);
        if verifies {
            self.assert_valid(None, "recording");
        }
        let selected = PASSES.iter().enumerate().filter(|(k, _)| passes.0 >> k & 1 == 1);
        selected.fold(self, |mut plan, (_, pass)| {
            // The previous pass may have removed the launch that was the first to check an index.
            plan.mark_rejections();
            let before = verifies.then(|| plan.clone());
            let plan = (pass.run)(plan);
            if let Some(before) = before {
                plan.assert_valid(Some(&before), pass.name);
            }
            plan
        })
    }
}
