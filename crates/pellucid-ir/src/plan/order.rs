//! Order dependencies between launches, and moving one launch next to another.

use super::Launch;

/// Returns true if `a` and `b` must keep their order: one launch writes a slot that the other launch reads
/// or writes.
pub(super) fn have_conflict(a: &Launch, b: &Launch) -> bool {
    a.outputs.iter().any(|o| b.touches(o.slot)) || b.outputs.iter().any(|o| a.touches(o.slot))
}

/// A reordering that makes launches `i` and `j`, `i < j`, adjacent.
pub(super) struct Interleaving {
    /// The launches between them that must run after `i`.
    pub(super) after: Vec<usize>,
    /// The launches between them that must run before `j`.
    pub(super) before: Vec<usize>,
}

impl Interleaving {
    /// Returns the reordering; `None` if a launch between them must run after `i` and before `j`.
    pub(super) fn between(launches: &[Launch], i: usize, j: usize) -> Option<Interleaving> {
        let mut after = Vec::new();
        for k in i + 1..j {
            if have_conflict(&launches[i], &launches[k])
                || after.iter().any(|&a: &usize| have_conflict(&launches[a], &launches[k]))
            {
                after.push(k);
            }
        }
        if after.iter().any(|&k| have_conflict(&launches[k], &launches[j])) {
            return None;
        }
        let mut before = Vec::new();
        for k in (i + 1..j).rev() {
            if have_conflict(&launches[k], &launches[j])
                || before.iter().any(|&b: &usize| have_conflict(&launches[k], &launches[b]))
            {
                before.push(k);
            }
        }
        before.reverse();
        Some(Interleaving { after, before })
    }
}

/// Replaces launches `i` and `j` by `merged` and returns its position. `merged` takes the position of `j`, followed by
/// the launches `after`; with `up` it takes the position of `i`, preceded by the launches `before`.
pub(super) fn replace_pair(
    launches: &mut Vec<Launch>,
    i: usize,
    j: usize,
    merged: Launch,
    interleaving: &Interleaving,
    up: bool,
) -> usize {
    let (moved, lead) = if up { (&interleaving.before, true) } else { (&interleaving.after, false) };
    let mut window: Vec<Option<Launch>> = launches.drain(i..=j).map(Some).collect();
    let mut take = |k: &usize| window[k - i].take().expect("each launch is moved once");
    let moved: Vec<Launch> = moved.iter().map(&mut take).collect();
    let last = j - i;
    let rest: Vec<Launch> =
        window.into_iter().enumerate().filter(|(k, _)| *k != 0 && *k != last).filter_map(|(_, l)| l).collect();
    let at = i + if lead { moved.len() } else { rest.len() };
    let ordered: Vec<Launch> = if lead {
        moved.into_iter().chain([merged]).chain(rest).collect()
    } else {
        rest.into_iter().chain([merged]).chain(moved).collect()
    };
    launches.splice(i..i, ordered);
    at
}
