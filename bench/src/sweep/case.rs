//! The cases of a row: operands and timing.

use super::peer::PeerProcess;
use super::{OperandValues, Size, SweepOptions, SweepRow};
use pellucid::{DType, Generator, Tensor, no_grad, ops};
use serde_json::{Value, json};
use std::hint::black_box;
use std::io::Result;
use std::time::{Duration, Instant};

/// The memory layout of the operands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SweepLayout {
    Contiguous,
    /// The first operand is a transposed view.
    Transposed,
    /// The second operand is a row, which broadcasts.
    Row,
    /// The second operand is a column.
    Column,
}

/// A row at one size, axis, layout and dtype.
pub(super) struct SweepCase<'a> {
    row: &'a SweepRow,
    size: Size,
    layout: SweepLayout,
    dtype: DType,
    with_gradient: bool,
}

/// The duration of a turn in seconds.
const TURN: f64 = 0.01;

impl<'a> SweepCase<'a> {
    /// Returns all cases of a row up to a size.
    pub(super) fn all(row: &'a SweepRow, largest: usize) -> Vec<SweepCase<'a>> {
        let mut cases = Vec::new();
        let mut add = |size: Size, layout, dtype: DType| {
            for with_gradient in [false, true] {
                let has_gradient = size.step < row.gradient_steps && dtype.is_float();
                if !with_gradient || has_gradient {
                    cases.push(SweepCase { row, size, layout, dtype, with_gradient });
                }
            }
        };
        for step in 0..=largest {
            for axis in 0..row.axes.max(1) as isize {
                add(Size { step, axis }, SweepLayout::Contiguous, DType::F32);
            }
            let size = Size { step, axis: 0 };
            if row.has_layouts {
                add(size, SweepLayout::Transposed, DType::F32);
                if row.values.len() > 1 {
                    add(size, SweepLayout::Row, DType::F32);
                    add(size, SweepLayout::Column, DType::F32);
                }
            }
            for &dtype in row.dtypes.iter().filter(|dtype| **dtype != DType::F32) {
                add(size, SweepLayout::Contiguous, dtype);
            }
        }
        cases
    }

    /// Returns the shape and the values of each operand.
    fn operands(&self) -> Vec<(Vec<usize>, OperandValues)> {
        let shapes = (self.row.shapes)(self.size.step);
        let values = &self.row.values;
        let count = if self.row.is_uniform { shapes.len() } else { values.len() };
        let mut operands: Vec<(Vec<usize>, OperandValues)> = (0..count)
            .map(|k| (shapes[k.min(shapes.len() - 1)].clone(), if self.row.is_uniform { values[0] } else { values[k] }))
            .collect();
        match self.layout {
            SweepLayout::Row => operands[1].0[0] = 1,
            SweepLayout::Column => operands[1].0[1] = 1,
            SweepLayout::Contiguous | SweepLayout::Transposed => {}
        }
        operands
    }

    /// Returns whether the gradient of operand `k` is computed.
    fn is_leaf(&self, k: usize, values: OperandValues) -> bool {
        self.with_gradient && k < self.row.leaves && values.is_float()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let operands = self.operands().into_iter().enumerate();
        let tensor = |(k, (shape, values)): (usize, (Vec<usize>, OperandValues))| {
            let dtype = if values.is_float() { self.dtype } else { DType::F32 };
            let transposed = k == 0 && self.layout == SweepLayout::Transposed;
            let random = |shape: &[usize]| random(shape, values, dtype, self.size.step, k);
            let tensor = match transposed {
                true => random(&shape.iter().rev().copied().collect::<Vec<_>>()).t(),
                false => random(&shape),
            };
            let tensor = tensor.detach();
            if self.is_leaf(k, values) { tensor.requires_grad_(true) } else { tensor }
        };
        operands.map(tensor).collect()
    }

    /// Returns the timed function.
    fn body(&self) -> impl Fn() + use<> {
        let (tensors, run, size, with_gradient) = (self.tensors(), self.row.run, self.size, self.with_gradient);
        let leaves: Vec<Tensor> = tensors.iter().filter(|tensor| tensor.requires_grad()).cloned().collect();
        move || {
            if with_gradient {
                leaves.iter().for_each(Tensor::zero_grad);
                run(&tensors, size).sum(..).backward();
            } else {
                let _off = no_grad();
                drop(black_box(run(&tensors, size)));
            }
        }
    }

    /// Runs the case.
    #[cfg(test)]
    pub(super) fn run_once(&self) {
        self.body()();
    }

    /// Returns the description of the case for the peer.
    fn for_peer(&self) -> Value {
        let operand = |(k, (shape, values)): (usize, (Vec<usize>, OperandValues))| {
            let (kind, numbers) = value_kind(values, self.size.step);
            json!({
                "shape": shape, "values": kind, "numbers": numbers, "leaf": self.is_leaf(k, values),
                "dtype": if values.is_float() { torch_dtype(self.dtype) } else { "int64" },
                "transposed": k == 0 && self.layout == SweepLayout::Transposed,
            })
        };
        let operands: Vec<Value> = self.operands().into_iter().enumerate().map(operand).collect();
        let expression = self.row.torch.replace("{d}", &self.size.axis.to_string());
        json!({ "operands": operands, "expression": expression, "gradient": self.with_gradient, "seconds": TURN })
    }

    /// Times the case, alternating with the peer. The line contains the lower quartile of each program in microseconds,
    /// the median of the ratios, and the fraction of the copy bandwidth.
    pub(super) fn time(&self, options: &SweepOptions, mut peer: Option<&mut PeerProcess>) -> Result<Value> {
        let body = self.body();
        let description = self.for_peer();
        let has_peer = peer.is_some() && !self.row.torch.is_empty();
        let (mut ours, mut ratios, mut theirs, mut rejection) = (f64::INFINITY, Vec::new(), f64::INFINITY, None);
        let calls = calls_in(&body, TURN / 20.0);
        for _ in 0..options.rounds {
            let own = turn(&body, calls);
            ours = ours.min(own);
            if let (true, Some(peer)) = (has_peer && rejection.is_none(), peer.as_mut()) {
                match peer.time(&description)? {
                    Ok(other) => {
                        theirs = theirs.min(other);
                        ratios.push(own / other);
                    }
                    Err(reason) => rejection = Some(reason),
                }
            }
        }
        ratios.sort_by(f64::total_cmp);
        let mut line = json!({
            "op": self.row.op, "expression": description["expression"], "shape": self.operands()[0].0,
            "layout": format!("{:?}", self.layout).to_lowercase(), "dtype": self.dtype.to_string(),
            "pass": if self.with_gradient { "gradient" } else { "forward" }, "us": ours,
        });
        if self.row.axes > 0 {
            line["axis"] = self.size.axis.into();
        }
        if let Some(&ratio) = ratios.get(ratios.len() / 2) {
            line["peer_us"] = theirs.into();
            line["ratio"] = ratio.into();
        }
        if let Some(reason) = rejection {
            line["rejected"] = reason.into();
        }
        if !self.with_gradient {
            let _off = no_grad();
            let result = (self.row.run)(&self.tensors(), self.size);
            let bytes: usize = self.tensors().iter().map(Tensor::nbytes).sum::<usize>() + result.nbytes();
            line["share"] = (bytes as f64 / (ours * 1e-6) / options.copy_bandwidth).into();
        }
        Ok(line)
    }
}

/// Returns the number of calls that take about `seconds`.
fn calls_in(body: &impl Fn(), seconds: f64) -> usize {
    body();
    let mut calls = 1;
    loop {
        let start = Instant::now();
        (0..calls).for_each(|_| body());
        let took = start.elapsed().as_secs_f64();
        if took > seconds / 2.0 || calls > 1 << 20 {
            return (calls as f64 * seconds / took).ceil().max(1.0) as usize;
        }
        calls *= 4;
    }
}

/// Returns the lower quartile of the microseconds per call, over groups of `calls` calls.
fn turn(body: &impl Fn(), calls: usize) -> f64 {
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 3 || start.elapsed() < Duration::from_secs_f64(TURN) {
        let group = Instant::now();
        (0..calls).for_each(|_| body());
        times.push(group.elapsed().as_secs_f64() * 1e6 / calls as f64);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

fn torch_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::I64 => "int64",
        _ => "float32",
    }
}

/// Returns the kind of the values as a name for the peer, and its parameters.
fn value_kind(values: OperandValues, step: usize) -> (&'static str, [f64; 2]) {
    match values {
        OperandValues::Normal => ("normal", [0.0; 2]),
        OperandValues::Positive => ("uniform", [0.5, 1.5]),
        OperandValues::Unit => ("uniform", [0.05, 0.95]),
        OperandValues::Uniform(low, high) => ("uniform", [low, high]),
        OperandValues::LogProbabilities => ("log_probabilities", [0.0; 2]),
        OperandValues::Signs => ("signs", [0.0; 2]),
        OperandValues::Integers(low, high) => ("integers", [low as f64, high as f64]),
        OperandValues::Below(bounds) => ("integers", [0.0, bounds[step] as f64]),
        OperandValues::Permutation => ("permutation", [0.0; 2]),
        OperandValues::Mask => ("mask", [0.0; 2]),
        OperandValues::Sorted => ("sorted", [0.0; 2]),
        OperandValues::Spd => ("spd", [0.0; 2]),
        OperandValues::Lower => ("lower", [0.0; 2]),
    }
}

/// Returns random values of a kind for operand `k`, which are integers for an integer dtype. Operands differ, because
/// equal ones are special cases, such as a distance of 0.
fn random(shape: &[usize], values: OperandValues, dtype: DType, step: usize, k: usize) -> Tensor {
    let _random = Generator::new(k as u64 + 1).scope();
    let normal = || Tensor::randn(shape, DType::F32);
    let uniform = |low: f64, high: f64| Tensor::rand(shape, DType::F32) * (high - low) + low;
    let tensor = match values {
        _ if dtype.is_int() => Tensor::randint(1, 100, shape),
        OperandValues::Normal => normal(),
        OperandValues::Positive => uniform(0.5, 1.5),
        OperandValues::Unit => uniform(0.05, 0.95),
        OperandValues::Uniform(low, high) => uniform(low, high),
        OperandValues::LogProbabilities => normal().log_softmax(-1),
        OperandValues::Signs => Tensor::rand(shape, DType::F32).gt(0.5).to_dtype(DType::F32) * 2.0 - 1.0,
        OperandValues::Integers(low, high) => Tensor::randint(low, high, shape),
        OperandValues::Below(bounds) => Tensor::randint(0, bounds[step], shape),
        OperandValues::Permutation => ops::randperm(shape[0]).expect("the shape must be valid"),
        OperandValues::Mask => Tensor::rand(shape, DType::F32).gt(0.5),
        OperandValues::Sorted => normal().sort(-1, false).0,
        OperandValues::Spd => {
            let (x, n) = (normal(), shape[shape.len() - 1]);
            x.matmul(&x.transpose(-1, -2)) * (1.0 / n as f64) + Tensor::eye(n, DType::F32)
        }
        OperandValues::Lower => normal().tril(-1) * 0.1 + Tensor::eye(shape[shape.len() - 1], DType::F32),
    };
    if values.is_float() { tensor.to_dtype(dtype) } else { tensor }
}
