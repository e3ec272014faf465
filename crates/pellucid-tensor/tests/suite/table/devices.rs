//! Rows on other devices. Most kernels of the example backend run on the CPU, so its bits are equal. With the features
//! `cuda` and `wgpu`, the results of a GPU are compared within a tolerance.

use super::data::{operands, operands_on, values};
use super::driver::Report;
use super::gradients::gradient_of;
use super::row::{Case, Gradient, Row};
use pellucid_tensor::{DType, Device, Result, Tensor, deferred_stats};
use std::sync::Once;

#[path = "../../../../pellucid/examples/toy_backend/backend.rs"]
mod backend;

/// Returns a device. Devices with odd index defer their kernels.
pub fn toy(index: usize) -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(backend::ToyDriver).expect("the name of the driver must be new"));
    format!("toy:{index}").parse().expect("a registered device must be found")
}

/// How closely the results of a device must agree with the CPU.
#[derive(Clone, Copy)]
enum Agreement {
    Bits,
    /// Relative to the largest element of the result, or to the size of the intermediate values if that is larger.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Within {
        relative: f64,
        scale: f64,
    },
}

/// Returns the GPUs on which all values are compared with the reference.
pub fn gpus() -> Vec<Device> {
    ["wgpu", "cuda"].iter().filter_map(|name| name.parse().ok()).collect()
}

/// Checks whether the forward pass of a row in `f32` runs kernels on the CPU, for every GPU, against the list in the
/// documentation of the backend.
pub fn check_fallbacks(row: &Row, report: &mut Report) -> Result<()> {
    for gpu in gpus() {
        let before = deferred_stats().fallbacks;
        for case in &row.cases {
            let floats = row.rules.iter().all(|r| r.result(DType::F32).is_some());
            let dtype = if floats { DType::F32 } else { DType::I32 };
            let (_, inputs) = operands_on(gpu, row.name, case, &[dtype])?;
            for output in (case.call)(&inputs)? {
                values(&output);
            }
        }
        let (found, documented) = (deferred_stats().fallbacks > before, documented_fallbacks().contains(&row.name));
        report.expect(found == documented, || match found {
            true => format!("it runs on the CPU for {gpu}, but docs/wgpu.md does not list it"),
            false => format!("it runs on {gpu}, but docs/wgpu.md lists it"),
        });
    }
    Ok(())
}

/// Returns the operations in the list of `docs/wgpu.md`.
fn documented_fallbacks() -> Vec<&'static str> {
    let text = include_str!("../../../../../docs/wgpu.md");
    let (_, list) = text.split_once("```fallbacks\n").expect("the document must have a list of operations");
    list.split_once("```").expect("the list must end").0.split_whitespace().collect()
}

/// The tolerance of an elementwise operation in `f32` on a GPU, in ULP.
pub fn ulps(name: &str) -> f64 {
    EXCEPTIONS.iter().find(|(row, _)| *row == name).map_or(4.0, |(_, ulps)| *ulps)
}

/// Formulas whose rounding errors add up or cancel large terms, on the CPU too.
const EXCEPTIONS: [(&str, f64); 4] = [("gelu", 8.0), ("gelu_tanh", 8.0), ("logit", 8.0), ("sinc", 8.0)];

/// Checks a case on all devices.
pub fn check_device(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    check_on(toy(0), Agreement::Bits, row, case, report)?;
    report.section("pins", |report| check_pins(row, case, report));
    report.section(toy(1), |report| check_on(toy(1), Agreement::Bits, row, case, report));
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    for gpu in gpus() {
        let near = Agreement::Within { relative: 1e-5, scale: case.scale.max(row.scale) };
        report.section(gpu, |report| check_on(gpu, near, row, case, report));
    }
    Ok(())
}

/// Checks that outputs and gradients are on the device of the inputs and agree with the CPU.
fn check_on(device: Device, agreement: Agreement, row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let floats = row.rules.iter().all(|r| r.result(DType::F32).is_some());
    let (_, on_cpu) = operands(row.name, case, &[if floats { DType::F32 } else { DType::I32 }]);
    if on_cpu.is_empty() {
        return Ok(());
    }
    let moved: Vec<Tensor> = on_cpu.iter().map(|t| t.try_to(device)).collect::<Result<_>>()?;
    let mut compare = |what: &str, (got, on): (&Tensor, Device), expected: &Tensor| {
        report.expect(got.device() == on, || format!("{what} is on {}, expected {on}", got.device()));
        let agrees = got.shape() == expected.shape() && agreement.holds(got, expected);
        report.expect(agrees, || format!("{what} is {got:?}, but must be {expected:?} as on the CPU"));
    };
    for (k, (got, expected)) in (case.call)(&moved)?.iter().zip(&(case.call)(&on_cpu)?).enumerate() {
        compare(&format!("output {k}"), (got, device), expected);
    }
    if !floats || case.values_only || row.gradient == Gradient::Untracked {
        return Ok(());
    }
    let tracked = |t: &Tensor, i: usize| t.detach().requires_grad_(case.inputs[i].is_number());
    let [expected, got] = [&on_cpu, &moved].map(|list| {
        let leaves: Vec<Tensor> = list.iter().enumerate().map(|(i, t)| tracked(t, i)).collect();
        gradient_of(&*case.call, &leaves)
    });
    for (k, (got, expected)) in got?.iter().zip(&expected?).enumerate() {
        compare(&format!("gradient {k}"), (got, device), expected);
    }
    Ok(())
}

/// Checks the device of outputs and gradients, and whether they are free. A result is pinned if any input is, and is
/// computed on the input's device.
pub fn check_pins(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let floats = row.rules.iter().all(|r| r.result(DType::F32).is_some());
    let (_, host) = operands(row.name, case, &[if floats { DType::F32 } else { DType::I32 }]);
    let (cpu, gpu, count) = (Device::cpu(), toy(0), host.len());
    let freed = |t: Tensor| {
        t.free();
        t
    };
    let all_on = |device: Device| host.iter().map(|t| t.try_to(device)).collect::<Result<Vec<Tensor>>>();
    let mut calls = vec![
        ("free inputs".to_string(), host.clone(), cpu, true),
        ("pinned inputs".into(), all_on(cpu)?, cpu, count == 0),
        (
            "free inputs of another device".into(),
            all_on(gpu)?.into_iter().map(freed).collect(),
            if count == 0 { cpu } else { gpu },
            true,
        ),
        ("pinned inputs of another device".into(), all_on(gpu)?, if count == 0 { cpu } else { gpu }, count == 0),
    ];
    // A write does not move its target, and some results depend on one input alone.
    let together = !matches!(row.name, "broadcast_tensors" | "copy_" | "lstsq" | "meshgrid");
    for k in (0..count).filter(|_| together) {
        let mut inputs = host.clone();
        inputs[k] = inputs[k].try_to(gpu)?;
        calls.push((format!("free inputs, but input {k} pinned to another device"), inputs, gpu, false));
    }
    for (label, inputs, device, is_free) in calls {
        let mut expect = |what: String, got: &Tensor, device: Device, is_free: bool| {
            let of = |device: Device, is_free| format!("{} on {device}", if is_free { "free" } else { "pinned" });
            report.expect((got.device(), got.is_free()) == (device, is_free), || {
                format!("{label}: {what} is {}, expected {}", of(got.device(), got.is_free()), of(device, is_free))
            });
        };
        for (k, output) in (case.call)(&inputs)?.iter().enumerate() {
            expect(format!("output {k}"), output, device, is_free);
        }
        if !floats || case.values_only || row.gradient == Gradient::Untracked {
            continue;
        }
        let leaf = |(i, t): (usize, &Tensor)| t.detach().requires_grad_(case.inputs[i].is_number());
        let leaves: Vec<Tensor> = inputs.iter().enumerate().map(leaf).collect();
        let wanted = inputs.iter().zip(&case.inputs).filter(|(_, input)| input.is_number());
        for (k, (gradient, (input, _))) in gradient_of(&*case.call, &leaves)?.iter().zip(wanted).enumerate() {
            expect(format!("gradient {k}"), gradient, input.device(), input.is_free() && is_free);
        }
    }
    Ok(())
}

impl Agreement {
    fn holds(self, got: &Tensor, expected: &Tensor) -> bool {
        match self {
            Agreement::Bits => bits(got) == bits(expected),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Agreement::Within { relative, scale } => {
                let (got, expected) = (values(got), values(expected));
                let largest = expected.iter().filter(|v| v.is_finite()).fold(scale, |m, v| m.max(v.abs()));
                let near =
                    |(g, e): (&f64, &f64)| g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= relative * largest;
                got.iter().zip(&expected).all(near)
            }
        }
    }
}

/// Returns the bits of the elements, with one pattern for all NaNs.
fn bits(x: &Tensor) -> Vec<u64> {
    values(x).into_iter().map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() }).collect()
}
