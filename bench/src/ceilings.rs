//! The peak performance of this machine, measured at the start of a run: arithmetic and bandwidth.
//!
//! A workload that is bound by a peak reports the fraction of this peak that it reaches.

use crate::harness::{Work, rounded};
use serde_json::json;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// The environment variable that passes the measured peaks to a child process.
pub(crate) const VARIABLE: &str = "PELLUCID_BENCH_CEILINGS";

/// Peak rates of all threads together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    /// Single-precision operations per second in registers; a fused multiply-add counts as two.
    fma: f64,
    /// Bytes per second read from 64 MiB for each thread.
    read: f64,
    /// Bytes per second read and written when each thread copies 16 MiB.
    copy: f64,
}

impl Ceilings {
    pub(crate) fn measure(threads: usize) -> Ceilings {
        Ceilings {
            fma: best_total_rate(threads, fma_rate),
            read: best_total_rate(threads, read_rate),
            copy: best_total_rate(threads, copy_rate),
        }
    }

    /// Returns the bandwidth of a copy: bytes per second, read and written.
    pub(crate) fn copy_bandwidth(self) -> f64 {
        self.copy
    }

    pub(crate) fn to_env(self) -> String {
        format!("{:e},{:e},{:e}", self.fma, self.read, self.copy)
    }

    pub(crate) fn from_env() -> Option<Ceilings> {
        let text = std::env::var(VARIABLE).ok()?;
        let mut rates = text.split(',').map(|rate| rate.parse().ok());
        Some(Ceilings { fma: rates.next()??, read: rates.next()??, copy: rates.next()?? })
    }

    /// Returns the name of the peak that bounds this work, and the fraction of the peak that the work reaches in
    /// `seconds`.
    pub(crate) fn share(self, work: Work, seconds: f64) -> Option<(&'static str, f64)> {
        match work {
            Work::Overhead => None,
            Work::Flops(flops) => Some(("fma", flops / seconds / self.fma)),
            Work::Read(bytes) => Some(("read", bytes / seconds / self.read)),
            Work::Copy(bytes) => Some(("copy", bytes / seconds / self.copy)),
        }
    }

    pub(crate) fn to_json_line(self, threads: usize) -> String {
        json!({
            "peer": "machine", "workload": "ceilings", "threads": threads,
            "fma_gflops": rounded(self.fma * 1e-9, 1),
            "read_gb_s": rounded(self.read * 1e-9, 1),
            "copy_gb_s": rounded(self.copy * 1e-9, 1),
        })
        .to_string()
    }
}

/// Returns the sum over all threads of their best concurrent measurement.
fn best_total_rate(threads: usize, rate: fn(&mut dyn FnMut()) -> f64) -> f64 {
    let attempt = || -> f64 {
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            let measure = || {
                rate(&mut || {
                    barrier.wait();
                })
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
            workers.into_iter().map(|w| w.join().expect("the measurement thread did not panic")).sum()
        })
    };
    (0..3).map(|_| attempt()).fold(0.0, f64::max)
}

/// Returns the maximum work per second over many short runs, which start when all threads are ready.
fn peak_rate(work: f64, ready: &mut dyn FnMut(), mut body: impl FnMut()) -> f64 {
    body();
    ready();
    let start = Instant::now();
    let mut min_seconds = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.15 {
        let before = Instant::now();
        body();
        min_seconds = min_seconds.min(before.elapsed().as_secs_f64());
    }
    work / min_seconds
}

/// The number of independent chains of multiply-adds: enough to fill two pipelines of latency 4.
const CHAINS: usize = 12;
const ROUNDS: usize = 20_000;

fn fma_rate(ready: &mut dyn FnMut()) -> f64 {
    let (lanes, chains) = fma_kernel();
    let flops = (2 * lanes * CHAINS * ROUNDS) as f64;
    peak_rate(flops, ready, || {
        black_box(chains(black_box(0.999), black_box(0.001)));
    })
}

/// Returns the widest multiply-add of this processor: its lanes, and a function that executes [`ROUNDS`] × [`CHAINS`]
/// of them.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the function is called only if the processor supports its instruction set")]
fn fma_kernel() -> (usize, fn(f32, f32) -> f32) {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    fn avx512(a: f32, b: f32) -> f32 {
        let (a, b) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
        let mut sums = [b; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2(a: f32, b: f32) -> f32 {
        let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
        let mut sums = [b; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
    }

    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the branch is taken only if the processor has AVX-512F.
        return (16, |a, b| unsafe { avx512(a, b) });
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the branch is taken only if the processor has AVX2 and FMA.
        return (8, |a, b| unsafe { avx2(a, b) });
    }
    (4, portable)
}

#[cfg(not(target_arch = "x86_64"))]
fn fma_kernel() -> (usize, fn(f32, f32) -> f32) {
    (4, portable)
}

/// Executes the multiply-adds as multiplications and additions with four lanes, which the compiler vectorizes.
fn portable(a: f32, b: f32) -> f32 {
    let mut sums = [[b; 4]; CHAINS];
    for _ in 0..ROUNDS {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * a + b;
        }
    }
    sums.as_flattened().iter().sum()
}

fn read_rate(ready: &mut dyn FnMut()) -> f64 {
    let data = vec![1u64; 8 << 20];
    peak_rate(size_of_val(&data[..]) as f64, ready, || {
        // Eight independent sums hide the latency of an addition.
        let (rows, _) = black_box(&data).as_chunks::<8>();
        let sums = rows.iter().fold([0u64; 8], |sums, row| std::array::from_fn(|i| sums[i].wrapping_add(row[i])));
        black_box(sums);
    })
}

fn copy_rate(ready: &mut dyn FnMut()) -> f64 {
    let from = vec![1u64; 2 << 20];
    let mut to = vec![0u64; 2 << 20];
    peak_rate(2.0 * size_of_val(&from[..]) as f64, ready, || {
        black_box(&mut to).copy_from_slice(black_box(&from));
    })
}
