//! Operations of a warp: which lanes take part, and the results.

/// The kinds of `device.h`.
pub(crate) mod kind {
    pub(crate) const SYNC: u32 = 0;
    pub(crate) const SHUFFLE: u32 = 1;
    pub(crate) const SHUFFLE_UP: u32 = 2;
    pub(crate) const SHUFFLE_DOWN: u32 = 3;
    pub(crate) const SHUFFLE_XOR: u32 = 4;
    pub(crate) const BALLOT: u32 = 5;
    pub(crate) const ANY: u32 = 6;
    pub(crate) const ALL: u32 = 7;
    pub(crate) const MATCH_ANY: u32 = 8;
    pub(crate) const REDUCE_ADD: u32 = 9;
    pub(crate) const REDUCE_MIN: u32 = 10;
    pub(crate) const REDUCE_MAX: u32 = 11;
    pub(crate) const REDUCE_OR: u32 = 12;
    pub(crate) const REDUCE_AND: u32 = 13;
}

/// Returns the name of an operation in a report.
pub(crate) fn warp_operation_name(kind: u32) -> &'static str {
    match kind {
        kind::SYNC => "__syncwarp",
        kind::SHUFFLE => "__shfl_sync",
        kind::SHUFFLE_UP => "__shfl_up_sync",
        kind::SHUFFLE_DOWN => "__shfl_down_sync",
        kind::SHUFFLE_XOR => "__shfl_xor_sync",
        kind::BALLOT => "__ballot_sync",
        kind::ANY => "__any_sync",
        kind::ALL => "__all_sync",
        kind::MATCH_ANY => "__match_any_sync",
        _ => "__reduce_sync",
    }
}

/// One lane's call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarpCall {
    pub(crate) kind: u32,
    pub(crate) mask: u32,
    pub(crate) value: u64,
    pub(crate) lane: u32,
    pub(crate) width: u32,
}

/// Returns the lane that a shuffle reads, or the lane itself where CUDA defines that.
fn source_lane(call: &WarpCall, lane: u32) -> u32 {
    let segment = lane & !(call.width - 1);
    match call.kind {
        kind::SHUFFLE => segment | (call.lane & (call.width - 1)),
        kind::SHUFFLE_UP => {
            let source = i64::from(lane) - i64::from(call.lane);
            if source < i64::from(segment) { lane } else { source as u32 }
        }
        kind::SHUFFLE_DOWN => {
            let source = u64::from(lane) + u64::from(call.lane);
            if source >= u64::from(segment + call.width) { lane } else { source as u32 }
        }
        _ => {
            let source = lane ^ call.lane;
            if source >= segment + call.width { lane } else { source }
        }
    }
}

/// Returns the result of an operation in one lane. `calls` has the calls of all lanes that take part.
///
/// # Errors
/// The lane that a shuffle reads although it does not take part.
pub(crate) fn warp_result(calls: &[Option<WarpCall>; 32], lane: u32) -> Result<u64, u32> {
    let Some(call) = &calls[lane as usize] else {
        return Err(lane);
    };
    let values = || calls.iter().flatten().map(|other| other.value);
    let lanes_with = |wanted: u64| {
        let bits = calls.iter().enumerate().filter(|(_, c)| c.is_some_and(|c| c.value == wanted));
        bits.fold(0_u64, |mask, (lane, _)| mask | 1 << lane)
    };
    Ok(match call.kind {
        kind::SYNC => 0,
        kind::SHUFFLE..=kind::SHUFFLE_XOR => {
            let source = source_lane(call, lane);
            calls.get(source as usize).copied().flatten().ok_or(source)?.value
        }
        kind::BALLOT => lanes_with(1),
        kind::ANY => u64::from(values().any(|value| value != 0)),
        kind::ALL => u64::from(values().all(|value| value != 0)),
        kind::MATCH_ANY => lanes_with(call.value),
        kind::REDUCE_ADD => values().fold(0, |sum, value| (sum + value) & 0xffff_ffff),
        kind::REDUCE_MIN => values().min().unwrap_or(0),
        kind::REDUCE_MAX => values().max().unwrap_or(0),
        kind::REDUCE_OR => values().fold(0, |bits, value| bits | value),
        kind::REDUCE_AND => values().fold(u64::MAX, |bits, value| bits & value),
        other => unreachable!("device.h has no operation {other}"),
    })
}
