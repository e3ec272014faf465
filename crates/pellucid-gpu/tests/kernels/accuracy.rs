//! The accuracy of scalar functions, in ULP, against the evaluation in `f64` and against the CPU.

use super::harness::{PairedArray, ProgramBuilder, Rng, device, is_native_map, run_both};
use pellucid_ir::formula::{self, Binary, Op, Unary};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::{Compute, DType, Element};
use pellucid_simd::math::Real;
use std::time::Instant;

/// Returns the distance of `got` from the real number `exact` in units of the last place of the nearest `f32`.
///
/// Results that are subnormal or zero count as equal, because adapters may flush subnormal numbers to zero.
fn ulps(got: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if nearest.is_nan() || got.is_nan() || nearest.is_infinite() || got.is_infinite() {
        let same = nearest.is_nan() && got.is_nan() || nearest == got;
        return if same { 0.0 } else { f64::INFINITY };
    }
    if nearest.abs() < f32::MIN_POSITIVE && got.abs() <= f32::MIN_POSITIVE {
        return 0.0;
    }
    let exponent = f64::from(nearest.abs().max(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(got) - exact).abs() / (exponent - 23.0).exp2()
}

/// Returns numbers of all magnitudes, many small ones, and special values.
fn samples(rng: &mut Rng) -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 1.0, -1.0, 0.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-30, 65536.0];
    values.extend([f32::MAX, f32::MIN_POSITIVE, 88.7, 88.8, -87.3, -103.9, 2.5, -2.5, 1.5, 8388607.5, 1e-10]);
    for k in 0..1500 {
        let unit = (rng.below(1 << 24) as f32 + 0.5) / (1 << 24) as f32;
        let x = match k % 6 {
            0 => unit,
            1 => unit * 20.0,
            2 => unit * 100.0,
            3 => 1.0 + (unit - 0.5) * 0.01,
            4 => (unit * 120.0 - 60.0).exp2(),
            // Finite numbers of any exponent.
            _ => f32::from_bits(0x0080_0000 + rng.below(0x7f00_0000) as u32),
        };
        values.extend([x, -x]);
    }
    values
}

/// Returns the results on the CPU and on the device, or `None` without a device or if the operation is not native.
fn results(op: Op, operands: &[&[f32]], result: Compute) -> Option<[Vec<f64>; 2]> {
    let gpu = device()?;
    let mut p = ProgramBuilder::default();
    let values: Vec<_> = operands.iter().map(|_| p.x(DType::F32)).collect();
    let y = p.step(op, Compute::F32, result, &values);
    let program = p.build(&[(y, result, result.storage(), false)]);
    let kernel = Kernel::Map(Map { program, params: Default::default() });
    if !is_native_map(gpu, &kernel) {
        return None;
    }
    let n = operands[0].len();
    let inputs: Vec<PairedArray> = operands.iter().map(|x| PairedArray::of(gpu, [n], x)).collect();
    let out = match result {
        Compute::Mask => PairedArray::of(gpu, [n], &vec![false; n]),
        _ => PairedArray::of(gpu, [n], &vec![0.0f32; n]),
    };
    run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &[&out]).unwrap();
    let decode = |bytes: Vec<u8>| -> Vec<f64> {
        match result {
            Compute::Mask => bool::from_bytes(&bytes).into_iter().map(|v| f64::from(u8::from(v))).collect(),
            _ => f32::from_bytes(&bytes).into_iter().map(f64::from).collect(),
        }
    };
    let [cpu, device] = out.bytes(gpu);
    Some([decode(cpu), decode(device)])
}

/// Asserts that a function is within 4 ULP and prints its errors.
fn check_accuracy(name: &str, op: Op, operands: &[&[f32]], exact: impl Fn(usize) -> f64, result: Compute) -> bool {
    let Some([cpu, device]) = results(op, operands, result) else { return false };
    let (mut worst, mut at, mut worst_cpu, mut differing) = (0.0, 0, 0.0f64, 0);
    for i in 0..cpu.len() {
        let error = ulps(device[i] as f32, exact(i));
        if error > worst {
            (worst, at) = (error, i);
        }
        worst_cpu = worst_cpu.max(ulps(cpu[i] as f32, exact(i)));
        differing += usize::from(cpu[i] != device[i] && !(cpu[i].is_nan() && device[i].is_nan()));
    }
    println!("| `{name}` | {worst:.2} | {worst_cpu:.2} | {differing} of {} |", cpu.len());
    let x: Vec<f32> = operands.iter().map(|o| o[at]).collect();
    assert!(worst <= 4.0, "{name}{x:?}: {} is {worst} ULP from {}, the CPU has {}", device[at], exact(at), cpu[at]);
    true
}

#[test]
fn unary_functions_are_within_four_ulp() {
    if device().is_none() {
        return;
    }
    let x = samples(&mut Rng(5));
    println!("| function | ULP | ULP of the CPU | bits that differ |\n| --- | --- | --- | --- |");
    let mut native = Vec::new();
    for op in Unary::ALL {
        let result = if op.gives_mask() { Compute::Mask } else { Compute::F32 };
        let exact = |i: usize| match op {
            // The reference returns numbers for some arguments below −2, where the function is not defined.
            Unary::Acosh if x[i] < 1.0 => f64::NAN,
            // The reference has an absolute error of 10⁻¹⁷.
            Unary::Ndtri if x[i] == 0.5 => 0.0,
            _ => formula::evaluate_unary(op, f64::from(x[i])),
        };
        if op != Unary::Not && check_accuracy(op.name(), Op::Unary(op), &[&x], exact, result) {
            native.push(op);
        }
    }
    assert_eq!(native.len(), Unary::ALL.len() - 1, "all functions of one float must be native");
}

#[test]
fn binary_functions_are_within_four_ulp() {
    if device().is_none() {
        return;
    }
    let rng = &mut Rng(6);
    let x = samples(rng);
    let mut y = samples(rng);
    // Pairs of equal, near and unrelated operands, and every pair of special values.
    for i in 0..y.len() {
        match i % 4 {
            0 => y[i] = x[(i + 7) % 21],
            1 => y[i] = x[i],
            _ => {}
        }
    }
    for op in Binary::ALL.into_iter().filter(|op| !op.is_special()) {
        let result = if op.gives_mask() { Compute::Mask } else { Compute::F32 };
        let exact = |i: usize| formula::evaluate_binary(op, f64::from(x[i]), f64::from(y[i]));
        let is_native = check_accuracy(op.name(), Op::Binary(op), &[&x, &y], exact, result);
        assert!(is_native || !op.is_real(), "{op:?} must be native");
    }
}

/// Returns the value of a special function in `f64`.
fn special(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Polygamma => Real::polygamma(a, b),
        Binary::Zeta => Real::zeta(a, b),
        Binary::Igamma => Real::igamma(a, b),
        Binary::Igammac => Real::igammac(a, b),
        Binary::BesselJ => Real::bessel_j(a, b),
        Binary::BesselY => Real::bessel_y(a, b),
        Binary::BesselI => Real::bessel_i(a, b),
        Binary::BesselIe => Real::bessel_ie(a, b),
        Binary::BesselK => Real::bessel_k(a, b),
        Binary::BesselKe => Real::bessel_ke(a, b),
        other => panic!("{other:?} is not a special function"),
    }
}

/// Returns operands of special functions: all pairs of special values, and orders and arguments of all sizes.
fn special_operands() -> [Vec<f32>; 2] {
    let rng = &mut Rng(8);
    let special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, -3.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-30, 300.0];
    let mut operands = [Vec::new(), Vec::new()];
    for a in special {
        for b in special {
            operands[0].push(a);
            operands[1].push(b);
        }
    }
    for k in 0..1500 {
        let [u, v] = [(); 2].map(|()| (rng.below(1 << 24) as f32 + 0.5) / (1 << 24) as f32);
        let order = match k % 4 {
            0 | 2 => rng.below(8) as f32,
            1 => u * 30.0,
            _ => (u * 40.0).trunc() - 5.0,
        };
        let x = match k % 10 {
            4 => v * -10.0,
            5 | 6 => v * 3.0,
            // Magnitudes from 2⁻⁶⁰ to 2⁶⁰.
            7 => (v * 120.0 - 60.0).exp2(),
            _ => v * 60.0,
        };
        operands[0].push(order);
        operands[1].push(x);
    }
    operands
}

#[test]
fn special_functions_are_within_one_ulp() {
    if device().is_none() {
        return;
    }
    let operands = special_operands();
    println!(
        "| function | ULP | ULP of the CPU | other bits | compilation | time |\n| --- | --- | --- | --- | --- | --- |"
    );
    for op in Binary::ALL.into_iter().filter(|op| op.is_special()) {
        let start = Instant::now();
        let few = [&operands[0][..8], &operands[1][..8]];
        assert!(results(Op::Binary(op), &few, Compute::F32).is_some(), "{op:?} must be native");
        let compilation = start.elapsed();
        let start = Instant::now();
        let [cpu, device] = results(Op::Binary(op), &[&operands[0], &operands[1]], Compute::F32)
            .unwrap_or_else(|| panic!("{op:?} must be native"));
        let time = start.elapsed();
        let (mut worst, mut worst_cpu, mut differing) = (0.0f64, 0.0f64, 0);
        let x = |i: usize| [operands[0][i], operands[1][i]];
        for i in 0..cpu.len() {
            let exact = special(op, f64::from(operands[0][i]), f64::from(operands[1][i]));
            let error = ulps(device[i] as f32, exact);
            // Sums of two `f32` have fewer bits for small results.
            assert!(error <= if exact.abs() < 1e-35 { 4.0 } else { 1.0 }, "{op:?}{:?}: {error} ULP", x(i));
            worst = worst.max(error);
            worst_cpu = worst_cpu.max(ulps(cpu[i] as f32, exact));
            let same = cpu[i] == device[i] || cpu[i].is_nan() && device[i].is_nan();
            let is_flushed = device[i] == 0.0 && cpu[i].abs() < f64::from(f32::MIN_POSITIVE);
            differing += usize::from(!same && !is_flushed);
        }
        let name = op.name();
        println!(
            "| `{name}` | {worst:.2} | {worst_cpu:.2} | {differing} of {} | {compilation:.1?} | {time:.1?} |",
            cpu.len()
        );
        let has_bits_of_cpu = matches!(op, Binary::BesselI | Binary::BesselIe);
        assert!(differing == 0 || !has_bits_of_cpu, "{name} must be bit-identical to the CPU");
        let finite = cpu.iter().filter(|y| y.is_finite() && **y != 0.0).count();
        assert!(finite >= 500, "{name}: only {finite} results are finite numbers");
    }
}

#[test]
fn multiply_adds_round_once() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(7);
    let (a, b) = (samples(rng), samples(rng));
    // Sums that cancel the product up to a few bits, and unrelated sums.
    let c: Vec<f32> = (0..a.len())
        .map(|i| match i % 3 {
            0 => -(a[i] * b[i]),
            1 => f32::from_bits((-(a[i] * b[i])).to_bits().wrapping_add(rng.below(7) as u32).wrapping_sub(3)),
            _ => a[(i * 31) % a.len()],
        })
        .collect();
    let exact = |i: usize| {
        let y = a[i].mul_add(b[i], c[i]);
        f64::from(y)
    };
    println!("fused: {}", gpu.has_fused_multiply_add());
    let [_, device] = results(Op::MulAdd, &[&a, &b, &c], Compute::F32).unwrap();
    let mut wrong = 0;
    for i in 0..a.len() {
        let (expected, got) = (exact(i), device[i]);
        let product = f64::from(a[i]) * f64::from(b[i]);
        // Operands, errors and results below 2⁻¹⁰⁰ may be flushed.
        let small = [product, f64::from(c[i])].iter().any(|v| *v != 0.0 && v.abs() < 2f64.powi(-76))
            || expected.abs() < f64::from(f32::MIN_POSITIVE);
        let same = expected == got || expected.is_nan() && got.is_nan();
        if !same && !small {
            wrong += 1;
            println!("fma({:e}, {:e}, {:e}) = {got:e}, expected {expected:e}", a[i], b[i], c[i]);
        }
    }
    assert_eq!(wrong, 0, "multiply-adds must round once");
}
