//! Latencies of requests.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of most recent requests from which percentiles are computed.
const WINDOW: usize = 100_000;

/// The latencies of answered requests.
#[derive(Default)]
pub(crate) struct Latencies(Mutex<VecDeque<Duration>>);

impl Latencies {
    pub(crate) fn add(&self, latency: Duration) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == WINDOW {
            kept.pop_front();
        }
        kept.push_back(latency);
    }

    /// Returns the number of requests, and the median and the 99th percentile in milliseconds.
    pub(crate) fn summary(&self) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times: Vec<f64> = kept.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        drop(kept);
        times.sort_by(f64::total_cmp);
        json!({ "requests": times.len(), "p50_ms": percentile(&times, 50), "p99_ms": percentile(&times, 99) })
    }
}

/// Returns the p-th percentile of sorted values: the smallest value that at least p % of the values do not exceed.
/// Returns `None` without values.
pub(crate) fn percentile(sorted: &[f64], p: usize) -> Option<f64> {
    sorted.get((sorted.len() * p).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(
            [0, 50, 99, 100].map(|p| percentile(&values, p)),
            [Some(1.0), Some(100.0), Some(198.0), Some(200.0)]
        );
        assert_eq!([percentile(&[7.0], 99), percentile(&[], 50)], [Some(7.0), None]);
    }

    #[test]
    fn a_summary_counts_requests() {
        let latencies = Latencies::default();
        assert_eq!(latencies.summary()["p50_ms"], Value::Null);
        [3, 1, 2].iter().for_each(|&ms| latencies.add(Duration::from_millis(ms)));
        assert_eq!(latencies.summary(), json!({ "requests": 3, "p50_ms": 2.0, "p99_ms": 3.0 }));
    }
}
