//! Formats plans as text.

use super::{Elision, Launch, Plan, SlotRole, SlotView};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan: {} kernels", self.launches.len())?;
        if self.report.recorded > self.launches.len() {
            write!(f, " of {} recorded", self.report.recorded)?;
        }
        if !self.setup.is_empty() {
            write!(f, ", {} kernels before the first run", self.setup.len())?;
        }
        writeln!(f, "; {} FLOPs, {} read and written", count(self.flops()), bytes(self.traffic()))?;
        let mut slots: Vec<usize> =
            self.launches.iter().chain(&self.setup).flat_map(Launch::operands).map(|o| o.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let size = |role| slots.iter().filter(|&&s| self.role(s) == role).map(|&s| self.slots[s]).sum::<usize>();
        let many = |role| slots.iter().filter(|&&s| self.role(s) == role).count();
        if many(SlotRole::State) > 0 {
            writeln!(f, "state: {} external tensors, {}", many(SlotRole::State), bytes(size(SlotRole::State)))?;
        }
        match &self.arena {
            Some(arena) => {
                let (all, unshared) = (bytes(arena.bytes), bytes(arena.unshared_bytes));
                let many = arena.allocations.len();
                writeln!(f, "arena: {many} buffers in {all} ({unshared} unshared); @n starts at byte n")?;
            }
            None => writeln!(
                f,
                "buffers: {}, {}",
                many(SlotRole::Scratch) + many(SlotRole::Input),
                bytes(size(SlotRole::Scratch) + size(SlotRole::Input))
            )?,
        }
        for launch in &self.setup {
            writeln!(f, "once  {}", self.line(launch))?;
        }
        for (i, launch) in self.launches.iter().enumerate() {
            writeln!(f, "{i:4}  {}", self.line(launch))?;
        }
        let dead = self.report.elided.iter().filter(|(_, why)| *why == Elision::Dead).count();
        if dead > 0 {
            writeln!(f, "{dead} values are not computed because they are never read")?;
        }
        for (producer, consumer, why) in &self.report.unfused {
            writeln!(f, "not fused: {producer} and {consumer}: {why}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// Formats one launch: outputs, family, inputs, and its FLOPs or bytes.
    fn line(&self, launch: &Launch) -> String {
        let list = |operands: &[SlotView]| operands.iter().map(|o| self.name(o)).collect::<Vec<_>>().join(", ");
        let family = launch.kernel.family();
        let parts = match (&launch.parts[..], launch.kernel.name()) {
            ([], name) if name == family => String::new(),
            ([], name) => format!(" {name}"),
            (parts, _) => format!(" {}", parts.join(" + ")),
        };
        let (outputs, inputs) = (list(&launch.outputs), list(&launch.inputs));
        let work = match launch.kernel.info().is_compute_bound {
            true => format!("  [{} FLOPs]", count(launch.flops())),
            false => format!("  [{}]", bytes(launch.bytes())),
        };
        format!("{outputs} = {family}{parts}({inputs}){work}")
    }

    /// Formats an operand: its slot or arena offset, dtype and shape.
    fn name(&self, operand: &SlotView) -> String {
        let name = match (&self.arena, self.role(operand.slot)) {
            _ if self.names.contains_key(&operand.slot) => self.names[&operand.slot].clone(),
            (Some(arena), _) if operand.slot == arena.slot => {
                format!("@{}", operand.layout.offset() * operand.dtype.size())
            }
            (_, SlotRole::Scratch) => format!("%{}", operand.slot),
            (_, SlotRole::Input | SlotRole::ExternalRead) => format!("input{}", operand.slot),
            (_, SlotRole::ExternalWrite) => format!("result{}", operand.slot),
            (_, SlotRole::Constant) => format!("constant{}", operand.slot),
            (_, SlotRole::State) => format!("state{}", operand.slot),
        };
        let strided = if operand.layout.is_contiguous() { "" } else { " strided" };
        format!("{name} {}{}{strided}", operand.dtype, operand.layout.shape())
    }
}

/// Formats a size in bytes with the unit B, KiB or MiB.
pub(super) fn bytes(n: usize) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / (1 << 20) as f64),
    }
}

/// Formats a count with a decimal prefix.
fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..10_000_000 => format!("{:.1} k", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.1} G", n as f64 / 1e9),
    }
}
