//! The driver: checks every row and reports all failures.

use super::data::{LAYOUTS, dtype_of, epsilon, operands, operands_on, round, stretched, tensor, values, with_layout};
use super::devices;
use super::gradients;
use super::modes;
use super::nd::{Nd, zip};
use super::orders;
use super::row::{Case, Gradient, Row, Rule};
use crate::tensor::promotion::join;
use pellucid_tensor::{DType, Device, Error, Result, Scalar, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The failures of all rows.
#[derive(Default)]
pub struct Report {
    place: String,
    failures: Vec<String>,
}

impl Report {
    pub fn fail(&mut self, what: impl std::fmt::Display) {
        let what = what.to_string();
        // Limits the length of a failure, so that a tensor of wrong values does not hide the other rows.
        let short: String = what.chars().take(600).collect();
        self.failures.push(format!("{}: {short}", self.place));
    }

    /// Panics if there are failures, with all of them.
    pub fn finish(self) {
        let count = self.failures.len();
        assert!(count == 0, "{count} failures in the table:\n{}", self.failures.join("\n"));
    }

    pub fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    /// Runs a check; an error or a panic of the check is recorded as a failure.
    pub fn section(&mut self, name: impl std::fmt::Display, check: impl FnOnce(&mut Report) -> Result<()>) {
        let outer = self.place.clone();
        self.place = format!("{outer} · {name}");
        match catch_unwind(AssertUnwindSafe(|| check(self))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error),
            Err(payload) => {
                let text = payload.downcast_ref::<Error>().map(|e| e.to_string());
                let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
                self.fail(format!("panicked: {}", text.unwrap_or_default()));
            }
        }
        self.place = outer;
    }
}

/// Runs rows and panics with all failures. `ROW=softmax` runs only that row.
pub fn run_rows(rows: Vec<Row>) {
    let only = std::env::var("ROW").ok();
    let mut report = Report::default();
    for row in rows.iter().filter(|r| only.as_ref().is_none_or(|o| r.name == o)) {
        report.section(row.name, |report| {
            devices::check_fallbacks(row, report)?;
            for case in &row.cases {
                report.section(&case.label, |report| {
                    all(row, case, report);
                    Ok(())
                });
            }
            if row.special && row.is_elementwise() {
                report.section("special numbers", |report| special(row, Device::cpu(), report));
                for gpu in devices::gpus() {
                    report.section(format!("special numbers on {gpu}"), |report| special(row, gpu, report));
                }
            }
            if let Some(scalar) = &row.scalar {
                report.section("with a number", |report| scalars(row, scalar, report));
            }
            for (statement, holds) in &row.more {
                report.section(statement, |report| {
                    report.expect(holds()?, || "the property in the label does not hold".into());
                    Ok(())
                });
            }
            Ok(())
        });
    }
    report.finish();
}

fn all(row: &Row, case: &Case, report: &mut Report) {
    values_of_all_kinds(row, case, Device::cpu(), report);
    report.section("another device", |report| devices::check_device(row, case, report));
    report.section("modes", |report| modes::check_modes(row, case, report));
    for gpu in devices::gpus() {
        report.section(gpu, |report| {
            values_of_all_kinds(row, case, gpu, report);
            Ok(())
        });
    }
    match row.gradient {
        _ if case.values_only => {}
        Gradient::Untracked => report.section("untracked", |report| gradients::untracked(row, case, report)),
        _ => {
            gradients::all(row, case, report);
            report.section("higher orders", |report| orders::all(row, case, report));
        }
    }
}

/// Compares the outputs with the reference: in `f64` and `f32`, in every layout and dtype, and with NaN and infinities.
fn values_of_all_kinds(row: &Row, case: &Case, device: Device, report: &mut Report) {
    for &dtype in floats(device) {
        report.section(dtype, |report| value(row, case, device, &[dtype], report));
    }
    report.section("layouts", |report| layouts(row, case, device, report));
    if case.dtypes {
        report.section("dtypes", |report| dtypes(row, case, device, report));
    }
    if row.special && !row.is_elementwise() {
        report.section("special numbers", |report| non_finite_elements(row, case, device, report));
    }
}

/// Returns the float dtypes of the checks on a device. Computation in `f64` is slow on a GPU.
fn floats(device: Device) -> &'static [DType] {
    if device.is_cpu() { &[DType::F64, DType::F32] } else { &[DType::F32] }
}

/// Returns true for a row of a function of real numbers on a GPU.
fn is_function_on_gpu(row: &Row, device: Device) -> bool {
    !device.is_cpu() && row.is_elementwise() && row.rules == [Rule::Floats]
}

/// Compares the outputs of the operation with the reference, for numbers of these dtypes.
fn value(row: &Row, case: &Case, device: Device, dtypes: &[DType], report: &mut Report) -> Result<()> {
    let (values, tensors) = operands_on(device, row.name, case, dtypes)?;
    compare(row, case, &values, &tensors, report)
}

fn compare(row: &Row, case: &Case, values: &[Nd], tensors: &[Tensor], report: &mut Report) -> Result<()> {
    let numbers = case.inputs.iter().zip(tensors).filter(|(i, _)| i.is_number()).map(|(_, t)| t.dtype());
    let number = numbers.reduce(join).unwrap_or(DType::I64);
    let expected: Option<Vec<DType>> = row.rules.iter().map(|r| r.result(number)).collect();
    let Some(expected) = expected else { return rejected(case, tensors, report) };
    let outputs = (case.call)(tensors)?;
    let mut references = (case.reference)(values);
    if let Some(integers) = row.integers.filter(|_| expected.iter().all(|d| d.is_int())) {
        references = vec![zip(values, |v| integers(&v.iter().map(|&x| x as i64).collect::<Vec<_>>()) as f64)];
    }
    report.expect(outputs.len() == references.len(), || {
        format!("the call returned {} outputs, expected {}", outputs.len(), references.len())
    });
    for (k, (output, reference)) in outputs.iter().zip(&references).enumerate() {
        let rule = expected[k.min(expected.len() - 1)];
        report.expect(output.dtype() == rule, || {
            format!("output {k} of {number} is {}, expected {rule}", output.dtype())
        });
        compare_output(row, case.scale.max(row.scale), output, reference, k, report);
    }
    Ok(())
}

/// Checks that a result has the shape and values of the reference.
fn compare_output(row: &Row, scale: f64, output: &Tensor, reference: &Nd, k: usize, report: &mut Report) {
    if output.shape()[..] != reference.shape[..] {
        return report.fail(format!("output {k} has shape {}, expected {:?}", output.shape(), reference.shape));
    }
    let dtype = output.dtype();
    let got = values(output);
    let (relative, scale) = tolerance(row, scale, output, &reference.data);
    let mismatch = got.iter().zip(&reference.data).position(|(&got, &want)| {
        let rounded = round(want, dtype);
        let tolerance = relative * want.abs().max(scale);
        let near = dtype.is_float() && want.is_finite() && (got - want).abs() <= tolerance;
        !(got == rounded || (got.is_nan() && rounded.is_nan()) || near)
    });
    if let Some(i) = mismatch {
        let all = if got.len() > 24 { String::new() } else { format!(", of {got:?} and {:?}", reference.data) };
        report.fail(format!("output {k}, element {i}: got {}, expected {}{all}", got[i], reference.data[i]));
    }
}

/// Returns the relative tolerance of an output, and the magnitude below which the tolerance is absolute.
///
/// On a GPU, elementwise operations in `f32` must be within 4 ULP, unless the table of exceptions contains them, and
/// all other operations within 1e-5 of the largest element.
fn tolerance(row: &Row, scale: f64, output: &Tensor, reference: &[f64]) -> (f64, f64) {
    let dtype = output.dtype();
    // Half precision computes in f32 and rounds at the end.
    let ulps = if dtype.size() == 2 { row.ulps.min(3.0) } else { row.ulps };
    match (output.device().is_cpu() || dtype != DType::F32, row.is_elementwise()) {
        (true, _) => (ulps * epsilon(dtype), scale),
        (false, true) => (ulps.min(devices::ulps(row.name)) * epsilon(dtype), scale),
        (false, false) => {
            let largest = reference.iter().filter(|v| v.is_finite()).fold(scale, |m, v| m.max(v.abs()));
            (1e-5, largest)
        }
    }
}

/// Checks that a failing call returns a typed error and changes nothing.
fn rejected(case: &Case, tensors: &[Tensor], report: &mut Report) -> Result<()> {
    let state = || tensors.iter().map(|t| (t.to_bytes(), t.array().storage().version())).collect::<Vec<_>>();
    let before = state();
    match (case.call)(tensors) {
        Err(Error::DTypeMismatch { .. }) => {}
        Err(other) => report.fail(format!("the call must return a dtype error, got: {other}")),
        Ok(outputs) => report.fail(format!("the call must return an error, got {outputs:?}")),
    }
    report.expect(state() == before, || "a failed call must not change an input".into());
    Ok(())
}

/// Checks that the results are bit-identical in every layout.
fn layouts(row: &Row, case: &Case, device: Device, report: &mut Report) -> Result<()> {
    let floats = row.rules.iter().all(|r| r.result(DType::F32).is_some());
    let (_, tensors) = operands_on(device, row.name, case, &[if floats { DType::F32 } else { DType::I32 }])?;
    let mut same = |name: String, laid: Vec<Tensor>, dense: &[Tensor]| -> Result<()> {
        let (laid, dense) = ((case.call)(&laid)?, (case.call)(dense)?);
        for (k, (a, b)) in laid.iter().zip(&dense).enumerate() {
            report.expect(a.shape() == b.shape() && bits(a) == bits(b), || {
                format!("{name}: output {k} is {a:?}, but must be {b:?} as for dense inputs")
            });
        }
        Ok(())
    };
    // Other elementwise rows test the loads, and each layout is one more long shader.
    if is_function_on_gpu(row, device) {
        let layout = LAYOUTS[0];
        return same(format!("{layout:?}"), tensors.iter().map(|t| with_layout(t, layout)).collect(), &tensors);
    }
    for layout in LAYOUTS {
        same(format!("{layout:?}"), tensors.iter().map(|t| with_layout(t, layout)).collect(), &tensors)?;
    }
    for axis in 0..tensors.iter().map(|t| t.rank()).max().unwrap_or(0) {
        let wide: Vec<Tensor> = tensors.iter().map(|t| stretched(t, axis)).collect();
        let dense: Vec<Tensor> = wide.iter().map(|t| t.contiguous()).collect();
        same(format!("stretched along {axis}"), wide, &dense)?;
    }
    Ok(())
}

/// Returns the bits of the elements, with one pattern for all NaNs: the payload is unspecified.
fn bits(x: &Tensor) -> Vec<u64> {
    values(x).into_iter().map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() }).collect()
}

/// Checks every dtype, and every pair of dtypes for two inputs; on a GPU, dtypes of each size and kind, because the
/// compilation of many shaders takes long.
fn dtypes(row: &Row, case: &Case, device: Device, report: &mut Report) -> Result<()> {
    if !device.is_cpu() {
        // Other rows test the conversions of integers.
        let dtypes: &[DType] = if is_function_on_gpu(row, device) {
            &[DType::F16]
        } else {
            &[DType::Bool, DType::I8, DType::I64, DType::F16]
        };
        for &dtype in dtypes {
            report.section(dtype, |report| value(row, case, device, &[dtype], report));
        }
        return Ok(());
    }
    let pairs = case.inputs.iter().filter(|i| i.is_number()).count() > 1;
    for a in DType::ALL {
        if !pairs {
            report.section(a, |report| value(row, case, device, &[a], report));
        }
        for b in DType::ALL.into_iter().filter(|_| pairs) {
            report.section(format!("{a} with {b}"), |report| value(row, case, device, &[a, b], report));
        }
    }
    Ok(())
}

const SPECIAL: [f64; 13] =
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e4, -1e4, 1e-30, -1e-30];

/// Checks NaN, ±∞, ±0 and extreme values in every combination; the sign of a zero counts.
fn special(row: &Row, device: Device, report: &mut Report) -> Result<()> {
    let case = &row.cases[0];
    let n = SPECIAL.len();
    let lists: Vec<Nd> = match case.inputs.len() {
        1 => vec![Nd { shape: vec![n], data: SPECIAL.to_vec() }],
        2 => vec![Nd::from_fn(&[n, n], |ix| SPECIAL[ix[0]]), Nd::from_fn(&[n, n], |ix| SPECIAL[ix[1]])],
        count => return Err(Error::invalid("table", format!("an elementwise row of {count} inputs"))),
    };
    for &dtype in floats(device) {
        let lists: Vec<Nd> = lists.iter().map(|l| l.map(|x| round(x, dtype))).collect();
        let tensors: Vec<Tensor> = lists.iter().map(|l| tensor(l, dtype).try_to(device)).collect::<Result<_>>()?;
        let Some(expected) = row.rules[0].result(dtype) else { return Ok(()) };
        let output = (case.call)(&tensors)?.remove(0);
        let reference = (case.reference)(&lists).remove(0);
        let (relative, scale) = tolerance(row, row.scale, &output, &reference.data);
        for (i, (&got, &want)) in values(&output).iter().zip(&reference.data).enumerate() {
            let rounded = round(want, expected);
            let near =
                expected.is_float() && want.is_finite() && (got - want).abs() <= relative * want.abs().max(scale);
            let zero = want == 0.0 && expected.is_float() && got.to_bits() != want.to_bits();
            if !(got == rounded || (got.is_nan() && rounded.is_nan()) || near) || (zero && row.signed_zero) {
                let at: Vec<f64> = lists.iter().map(|l| l.data[i]).collect();
                report.fail(format!("{dtype} at {at:?}: got {got:?}, expected {want:?}"));
            }
        }
    }
    Ok(())
}

/// Checks NaN and infinities among ordinary numbers.
fn non_finite_elements(row: &Row, case: &Case, device: Device, report: &mut Report) -> Result<()> {
    let dtype = floats(device)[0];
    let (dense, _) = operands(row.name, case, &[dtype]);
    let numbers = || (0..case.inputs.len()).filter(|&i| case.inputs[i].is_number() && !dense[i].data.is_empty());
    for input in numbers() {
        for plants in
            [&[f64::NAN][..], &[f64::INFINITY], &[f64::NEG_INFINITY], &[f64::INFINITY, f64::NAN], &[-0.0, 0.0]]
        {
            let mut values = dense.clone();
            let data = &mut values[input].data;
            let size = data.len();
            plants.iter().enumerate().for_each(|(k, &plant)| data[(size / 3 + k) % size] = plant);
            let tensors: Vec<Tensor> = values
                .iter()
                .zip(&case.inputs)
                .map(|(v, i)| tensor(v, dtype_of(i, dtype)).try_to(device))
                .collect::<Result<_>>()?;
            report.section(format!("{plants:?} in input {input}"), |report| {
                compare(row, case, &values, &tensors, report)
            });
        }
    }
    Ok(())
}

/// Checks a host number as either operand. It must never widen a tensor, and the gradients must be correct.
fn scalars(row: &Row, (right, left): &super::row::Scalars, report: &mut Report) -> Result<()> {
    let case = &row.cases[0];
    for dtype in DType::ALL {
        let (numbers, tensors) = operands(row.name, case, &[dtype]);
        for k in [Scalar::Bool(true), Scalar::Int(2), Scalar::Float(1.5)] {
            // A scalar may change the kind of the tensor's dtype, but never its width.
            let joined = match k {
                Scalar::Bool(_) => dtype,
                Scalar::Int(_) => {
                    if dtype == DType::Bool {
                        DType::I64
                    } else {
                        dtype
                    }
                }
                Scalar::Float(_) => {
                    if dtype.is_float() {
                        dtype
                    } else {
                        DType::F32
                    }
                }
            };
            let host = Nd::scalar(k.to_f64());
            for side in 0..2 {
                let (values, x) = (&numbers[side], &tensors[side]);
                let (result, operands) = match side {
                    0 => (right(x, k), [values.clone(), host.clone()]),
                    _ => (left(k, x), [host.clone(), values.clone()]),
                };
                report.section(format!("{dtype}, {k:?} on side {}", 1 - side), |report| {
                    let Some(expected) = row.rules[0].result(joined) else {
                        let rejected = matches!(result, Err(Error::DTypeMismatch { .. }));
                        report.expect(rejected, || format!("the call must return an error, got {result:?}"));
                        return Ok(());
                    };
                    let output = result?;
                    let mut reference = (case.reference)(&operands).remove(0);
                    if let Some(integers) = row.integers.filter(|_| expected.is_int()) {
                        reference = zip(&operands, |v| integers(&[v[0] as i64, v[1] as i64]) as f64);
                    }
                    report.expect(output.dtype() == expected, || {
                        format!("the dtype is {}, expected {expected}", output.dtype())
                    });
                    compare_output(row, row.scale, &output, &reference, 0, report);
                    Ok(())
                });
            }
        }
    }
    gradients::with_a_number(row, right, left, report)
}
