//! Vector clocks of streams, and the last accesses to an allocation (Lamport 1978; Mattern 1989).
//!
//! Every piece of work that is enqueued advances its stream's component. Events carry clocks from stream to stream.
//! Two accesses are ordered if the clock of the later one contains the tick of the earlier one.

use std::collections::BTreeMap;
use std::rc::Rc;

/// The ticks of each stream that happen before a point.
#[derive(Clone, Default, Debug)]
pub(crate) struct VectorClock(BTreeMap<usize, u64>);

impl VectorClock {
    /// Adds everything that `other` contains.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        for (&stream, &tick) in &other.0 {
            let own = self.0.entry(stream).or_default();
            *own = tick.max(*own);
        }
    }

    /// Advances the component of a stream, and returns it.
    pub(crate) fn tick(&mut self, stream: usize) -> u64 {
        let own = self.0.entry(stream).or_default();
        *own += 1;
        *own
    }

    fn contains(&self, stream: usize, tick: u64) -> bool {
        self.0.get(&stream).is_some_and(|&own| own >= tick)
    }
}

/// One access: the stream, its tick, and a description.
#[derive(Clone, Debug)]
struct PastAccess {
    stream: usize,
    tick: u64,
    work: Rc<str>,
}

/// The last write to an allocation, and the reads since.
#[derive(Default, Debug)]
pub(crate) struct AccessHistory {
    write: Option<PastAccess>,
    reads: Vec<PastAccess>,
}

impl AccessHistory {
    /// Records an access. Returns the earlier work that it conflicts with and that is not ordered before it.
    pub(crate) fn record(
        &mut self,
        clock: &VectorClock,
        stream: usize,
        tick: u64,
        is_write: bool,
        work: &Rc<str>,
    ) -> Option<Rc<str>> {
        let is_unordered = |past: &&PastAccess| !clock.contains(past.stream, past.tick);
        let mut conflict = self.write.as_ref().filter(is_unordered).cloned();
        let access = PastAccess { stream, tick, work: work.clone() };
        if is_write {
            conflict = conflict.or_else(|| self.reads.iter().find(is_unordered).cloned());
            self.write = Some(access);
            self.reads.clear();
        } else {
            self.reads.retain(|past| past.stream != stream);
            self.reads.push(access);
        }
        conflict.map(|past| past.work)
    }
}
