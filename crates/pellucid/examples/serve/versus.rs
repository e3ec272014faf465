//! Alternating timing of the encoder and another program that runs the same model.

use crate::AnyResult;
use crate::latency::percentile;
use crate::worker::Encoder;
use pellucid::prelude::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The shapes that are timed: batch size and length.
const SHAPES: [(usize, usize); 4] = [(1, 16), (1, 128), (32, 16), (32, 128)];

/// The duration of a turn, after which the other program runs.
const TURN: Duration = Duration::from_millis(400);

/// Prints for each shape the times of both programs in microseconds, and the median over the rounds of the ratio
/// Pellucid / other, for the medians (`p50`) and the lower quartiles (`p25`).
pub(crate) fn run(mut encoder: Encoder, command: &str, rounds: usize) -> AnyResult<()> {
    let mut peer = Peer::start(command)?;
    println!("{}", peer.ask(&json!({}))?);
    for (rows, length) in SHAPES {
        let ids = Tensor::randint(1000, 30000, [rows, length]);
        let x = (ids, Tensor::ones([rows, length], DType::Bool));
        let list = |x: &Tensor| x.unbind(0).iter().map(|row| row.to_vec::<i64>()).collect::<Vec<_>>();
        let request = json!({ "ids": list(&x.0), "mask": list(&x.1) });
        // The first runs record and allocate, and determine the number of calls per turn.
        let own = encoder.run(&x)?;
        let difference = largest_difference(&own, &peer.ask(&request)?["embeddings"])?;
        let calls = (TURN.as_secs_f64() * 1e6 / time(&mut encoder, &x, 3)?[1]).clamp(1.0, 1000.0) as usize;
        let mut ratios: [Vec<f64>; 2] = Default::default();
        let mut all: [Vec<f64>; 2] = Default::default();
        for _ in 0..rounds {
            let ours = time(&mut encoder, &x, calls)?;
            let mut timed = request.clone();
            timed["calls"] = calls.into();
            let answer = peer.ask(&timed)?;
            let mut theirs: Vec<f64> = serde_json::from_value(answer["times_us"].clone())?;
            theirs.sort_by(f64::total_cmp);
            for (ratios, p) in ratios.iter_mut().zip([50, 25]) {
                ratios.extend(percentile(&ours, p).zip(percentile(&theirs, p)).map(|(a, b)| a / b));
            }
            all.iter_mut().zip([ours, theirs]).for_each(|(all, times)| all.extend(times));
        }
        let [ours, theirs] = all.map(|times| percentiles(times, [50, 99]));
        let [p50, p25] = ratios.map(|ratios| percentiles(ratios, [50])[0]);
        println!(
            "{}",
            json!({
                "batch": rows, "length": length, "rounds": rounds, "calls": calls, "ratio_p50": p50, "ratio_p25": p25,
                "ours_p50_us": ours[0], "ours_p99_us": ours[1], "theirs_p50_us": theirs[0], "theirs_p99_us": theirs[1],
                "largest_difference": difference,
            })
        );
    }
    Ok(())
}

fn percentiles<const N: usize>(mut values: Vec<f64>, p: [usize; N]) -> [Option<f64>; N] {
    values.sort_by(f64::total_cmp);
    p.map(|p| percentile(&values, p).map(|value| (value * 1e3).round() / 1e3))
}

/// Returns the sorted times of some calls in microseconds.
fn time(encoder: &mut Encoder, x: &(Tensor, Tensor), calls: usize) -> AnyResult<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        encoder.run(x)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn largest_difference(own: &Tensor, theirs: &Value) -> AnyResult<f32> {
    let theirs: Vec<Vec<f32>> = serde_json::from_value(theirs.clone())?;
    let (own, theirs) = (own.to_vec::<f32>(), theirs.concat());
    if own.len() != theirs.len() {
        return Err("the other program returned embeddings of another shape".into());
    }
    Ok(own.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
}

/// The other program, which answers each line with a line.
struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(command: &str) -> AnyResult<Peer> {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or("--bench must have a command")?;
        let mut process = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take().expect("the standard input must be a pipe");
        let answers = process.stdout.take().expect("the standard output must be a pipe");
        Ok(Peer { process, requests, answers: BufReader::new(answers).lines() })
    }

    fn ask(&mut self, request: &Value) -> AnyResult<Value> {
        writeln!(self.requests, "{request}")?;
        let answer = self.answers.next().ok_or("the other program has ended")??;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A process that has ended already is not an error.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
