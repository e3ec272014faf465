//! Which launches must keep their order, and how one may be moved to another.

use super::Launch;

/// True if the two must keep their order: one writes what the other reads or writes.
pub(super) fn conflict(a: &Launch, b: &Launch) -> bool {
    a.outputs.iter().any(|o| b.touches(o.slot)) || b.outputs.iter().any(|o| a.touches(o.slot))
}

/// How launches `i` and `j`, `i < j`, come to stand side by side.
pub(super) struct Interleaving {
    /// What stands between them and must run after the first.
    pub(super) after: Vec<usize>,
    /// What stands between them and must run before the second.
    pub(super) before: Vec<usize>,
}

impl Interleaving {
    /// `None` if something between them must run after `i` and before `j`.
    pub(super) fn of(launches: &[Launch], i: usize, j: usize) -> Option<Interleaving> {
        let mut after = Vec::new();
        for k in i + 1..j {
            if conflict(&launches[i], &launches[k])
                || after.iter().any(|&a: &usize| conflict(&launches[a], &launches[k]))
            {
                after.push(k);
            }
        }
        if after.iter().any(|&k| conflict(&launches[k], &launches[j])) {
            return None;
        }
        let mut before = Vec::new();
        for k in (i + 1..j).rev() {
            if conflict(&launches[k], &launches[j])
                || before.iter().any(|&b: &usize| conflict(&launches[k], &launches[b]))
            {
                before.push(k);
            }
        }
        before.reverse();
        Some(Interleaving { after, before })
    }
}

/// Puts `merged` in the place of launches `i` and `j`: where `j` stands, with what must run `after` behind it;
/// or, `up`, where `i` stands, with what must run `before` in front of it. Gives its place.
pub(super) fn replace(
    launches: &mut Vec<Launch>,
    i: usize,
    j: usize,
    merged: Launch,
    meeting: &Interleaving,
    up: bool,
) -> usize {
    let (moved, lead) = if up { (&meeting.before, true) } else { (&meeting.after, false) };
    let mut window: Vec<Option<Launch>> = launches.drain(i..=j).map(Some).collect();
    let mut take = |k: &usize| window[k - i].take().expect("each is moved once");
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
