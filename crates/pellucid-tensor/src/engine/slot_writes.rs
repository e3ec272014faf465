//! [`SlotWrites`]: the launches of a plan that write each slot.

use pellucid_ir::plan::Launch;

/// For each slot of a plan, which launches write it.
pub(super) struct SlotWrites(Vec<Writes>);

/// The launches that write a slot.
#[derive(Clone, Copy, Default)]
struct Writes {
    /// The first launch that writes all elements of the slot.
    first_full: Option<usize>,
    /// The last launch of the operation that computes the slot by several launches.
    last_of_operation: Option<usize>,
    /// The last launch that writes the slot.
    last: Option<usize>,
}

impl SlotWrites {
    /// Collects the writes of `launches`. `slots` contains the size of every slot in bytes.
    pub(super) fn of(slots: &[usize], launches: &[Launch]) -> SlotWrites {
        let mut writes = vec![Writes::default(); slots.len()];
        for (k, launch) in launches.iter().enumerate() {
            for out in &launch.outputs {
                let Writes { first_full, last_of_operation, last } = &mut writes[out.slot];
                *last = Some(k);
                if launch.shares_result {
                    *last_of_operation = Some(k);
                }
                if out.bytes() == slots[out.slot] {
                    first_full.get_or_insert(k);
                }
            }
        }
        SlotWrites(writes)
    }

    /// Returns true if a slot without initial values has values after the launches before `launch`.
    pub(super) fn is_complete(&self, slot: usize, launch: usize) -> bool {
        let Writes { first_full, last_of_operation, last } = self.0[slot];
        last_of_operation.or(first_full).or(last).is_some_and(|write| write < launch)
    }
}
