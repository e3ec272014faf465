//! The passes, in the order in which they run, and which of them are wanted.

use super::{Plan, arena, constants, copies, dead, early, fuse};
use crate::error::{Error, Result};

/// One pass: a pure function from a plan to one that computes the same bits.
pub struct Pass {
    /// Its name, by which it is switched off.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    run: fn(Plan) -> Plan,
}

/// All passes, in their order.
pub const PASSES: [Pass; 6] = [
    Pass { name: "copies", what: "values are read where they lie, and made where they shall lie", run: copies::remove },
    Pass { name: "dead", what: "what nobody reads is not computed", run: dead::remove },
    Pass { name: "constants", what: "what depends on constants alone is computed once", run: constants::fold },
    Pass { name: "fuse", what: "neighbours become one kernel", run: fuse::fuse },
    Pass { name: "early", what: "what frees memory runs as soon as it can", run: early::hoist },
    Pass {
        name: "arena",
        what: "all own buffers lie in one piece of memory, as many as can in the same place",
        run: arena::lay_out,
    },
];

/// Which passes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passes(u32);

impl Default for Passes {
    fn default() -> Passes {
        Passes::all()
    }
}

impl Passes {
    /// All of them.
    pub fn all() -> Passes {
        Passes((1 << PASSES.len()) - 1)
    }

    /// None: the plan stays as it was recorded.
    pub fn none() -> Passes {
        Passes(0)
    }

    /// These without the one of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none of this name.
    pub fn without(self, name: &str) -> Result<Passes> {
        Ok(Passes(self.0 & !Passes::bit(name)?))
    }

    /// These and the one of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none of this name.
    pub fn with(self, name: &str) -> Result<Passes> {
        Ok(Passes(self.0 | Passes::bit(name)?))
    }

    fn bit(name: &str) -> Result<u32> {
        let names = || PASSES.map(|p| p.name).join(", ");
        let place = PASSES.iter().position(|p| p.name == name);
        place
            .map(|k| 1 << k)
            .ok_or_else(|| Error::invalid("passes", format!("no pass is called `{name}`; there are {}", names())))
    }
}

impl Plan {
    /// The plan after these passes.
    #[must_use]
    pub fn after(mut self, passes: Passes) -> Plan {
        self.notes.recorded = self.launches.len();
        let wanted = PASSES.iter().enumerate().filter(|(k, _)| passes.0 >> k & 1 == 1);
        wanted.fold(self, |plan, (_, pass)| (pass.run)(plan))
    }
}
