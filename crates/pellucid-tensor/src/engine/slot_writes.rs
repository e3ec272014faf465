//! [`SlotWrites`]: the launches of a plan that write each slot.

use pellucid_ir::plan::Launch;

/// The launches that write each slot of a plan.
pub(super) struct SlotWrites(Vec<Writes>);

/// The launches that write a slot.
#[derive(Clone, Copy, Default)]
struct Writes {
    /// The first launch that writes all elements of the slot.
    first_full: Option<usize>,
    /// The last launch of the operation that created the slot, if it writes the slot by several launches.
    last_of_operation: Option<usize>,
    /// The last launch that writes the slot.
    last: Option<usize>,
}

impl SlotWrites {
    /// Collects the writes of `launches`. `slots` contains the size of every slot in bytes.
    pub(super) fn from_launches(slots: &[usize], launches: &[Launch]) -> SlotWrites {
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

    /// Returns true if a slot without initial values has values after `launch` has failed. Returns false if the failed
    /// launch is unknown.
    pub(super) fn is_complete(&self, slot: usize, launch: Option<usize>) -> bool {
        let Writes { first_full, last_of_operation, last } = self.0[slot];
        let write = last_of_operation.or(first_full).or(last);
        write.zip(launch).is_some_and(|(write, launch)| write < launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_ir::kernel::Kernel;
    use pellucid_ir::plan::SlotView;
    use pellucid_ir::{DType, Layout};

    #[test]
    fn a_slot_is_complete_if_its_write_precedes_the_failed_launch() {
        let view = |slot| SlotView { slot, layout: Layout::contiguous([2].into()), dtype: DType::F32 };
        let copy = |from, to| Launch::new(Kernel::Copy, vec![view(from)], vec![view(to)]);
        let writes = SlotWrites::from_launches(&[8; 3], &[copy(0, 1), copy(1, 2)]);
        let complete = |launch| [1, 2].map(|slot| writes.is_complete(slot, launch));
        assert_eq!([Some(0), Some(1)].map(complete), [[false, false], [true, false]]);
        assert_eq!(complete(None), [false, false], "an unknown launch may have been the first one");
    }
}
