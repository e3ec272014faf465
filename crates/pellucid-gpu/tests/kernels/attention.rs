//! Scaled dot-product attention and its gradient.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, is_native, run_both};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Attention, AttentionPart, Kernel};
use pellucid_ir::{DType, Scalar};

/// The sizes N, H, G, L, S, E and D of the operands.
type HeadSizes = [usize; 7];

/// Runs the forward pass and the gradient on both backends. The dtypes `bf16` and `f16` stand for `f32` with factors of
/// these dtypes.
fn check_attention(rng: &mut Rng, sizes: HeadSizes, dtype: DType, causal: bool, mask: Option<DType>, scale: f64) {
    let Some(gpu) = device() else { return };
    let [n, h, g, l, s, e, d] = sizes;
    let half_factors = (dtype.size() == 2).then_some(dtype);
    let dtype = half_factors.map_or(dtype, |_| DType::F32);
    let mut array = |shape: &[usize], dtype| {
        let layout = TestLayout::ALL[rng.below(5)];
        PairedArray::new(gpu, shape, dtype, layout, || match dtype {
            DType::Bool => Scalar::Int(i64::from(rng.below(3) > 0)),
            // Values of both half-precision dtypes.
            _ if half_factors.is_some() => Scalar::Float((rng.below(257) as f64 - 128.0) / 128.0),
            _ => Scalar::Float((rng.below(2001) as f64 - 1000.0) / 1000.0),
        })
    };
    let part = |part| Attention { causal, masked: mask.is_some(), scale, half_factors, part };
    let inputs = [array(&[n, h, l, e], dtype), array(&[n, g, s, e], dtype), array(&[n, g, s, d], dtype)];
    let mask = mask.map(|dtype| array(&[n, h, l, s], dtype));
    let plain = |shape: &[usize]| PairedArray::new(gpu, shape, dtype, TestLayout::Plain, || 7.into());
    let (o, log_sums) = (plain(&[n, h, l, d]), plain(&[n, h, l]));
    let forward: Vec<&PairedArray> = inputs.iter().chain(&mask).collect();
    run_both(gpu, &Kernel::Attention(part(AttentionPart::Result)), &forward, &[&o, &log_sums]).unwrap();
    let epsilon = match (dtype, half_factors) {
        (DType::F64, _) => 1e-13,
        (_, None) => 1e-5,
        // Weights, and gradients of scores, are rounded to 11 or 8 bits.
        (_, Some(DType::F16)) => 2f64.powi(-10),
        (_, Some(_)) => 2f64.powi(-7),
    };
    let context = format!(
        "{sizes:?} of {dtype}, factors: {half_factors:?}, causal: {causal}, mask: {:?}",
        mask.as_ref().map(|m| m.dtype)
    );
    // Sums of terms of both signs have errors relative to their largest terms.
    let tolerance = Tolerance::Relative(epsilon, epsilon / 2.0);
    o.assert_same(gpu, tolerance, &format!("output of {context}"));
    log_sums.assert_same(gpu, tolerance, &format!("lambda of {context}"));

    // The gradient of both backends reads the output of the CPU.
    for array in [&o, &log_sums] {
        let bytes = array.bytes(gpu)[0].clone();
        gpu.upload(&bytes, &array.gpu).unwrap();
        Cpu.upload(&bytes, &array.cpu).unwrap();
    }
    let gradient = array(&[n, h, l, d], dtype);
    let backward: Vec<&PairedArray> = inputs.iter().chain([&gradient, &o, &log_sums]).chain(&mask).collect();
    let outputs = [plain(&[n, h, l, e]), plain(&[n, g, s, e]), plain(&[n, g, s, d])];
    let results: Vec<&PairedArray> = outputs.iter().collect();
    run_both(gpu, &Kernel::Attention(part(AttentionPart::Gradient)), &backward, &results).unwrap();
    let largest = (l * h / g.max(1)).max(s).max(1) as f64;
    for (output, name) in outputs.iter().zip(["queries", "keys", "values"]) {
        let tolerance = Tolerance::Relative(epsilon, epsilon * largest.sqrt());
        output.assert_same(gpu, tolerance, &format!("gradient of {name} of {context}"));
    }
}

#[test]
fn attention_matches_the_cpu() {
    let rng = &mut Rng(71);
    let f32 = DType::F32;
    check_attention(rng, [1, 1, 1, 1, 1, 1, 1], f32, false, None, 1.0);
    // Blocks of queries and keys, and grouped heads.
    check_attention(rng, [2, 2, 1, 33, 35, 5, 7], f32, false, None, 0.5);
    check_attention(rng, [1, 2, 2, 40, 70, 8, 4], f32, true, None, 0.3);
    // More keys than queries and the reverse, with masks.
    check_attention(rng, [1, 2, 1, 3, 40, 16, 12], f32, true, Some(DType::Bool), 0.25);
    check_attention(rng, [1, 1, 1, 34, 3, 9, 3], f32, false, Some(f32), 0.25);
    // Two blocks of keys, and tiles of an output with 32, 64 and 128 columns.
    for half in [DType::BF16, DType::F16] {
        for (sizes, mask) in [([1, 1, 1, 3, 5, 4, 4], None), ([2, 2, 1, 33, 37, 40, 40], Some(DType::Bool))] {
            check_attention(rng, sizes, half, mask.is_none(), mask, 0.25);
        }
        check_attention(rng, [1, 1, 1, 34, 35, 20, 70], half, false, Some(f32), 0.25);
    }
}

/// On devices with large shared memory, blocks have 64 rows and columns.
#[test]
fn attention_in_large_blocks_matches_the_cpu() {
    let rng = &mut Rng(76);
    let f32 = DType::F32;
    check_attention(rng, [1, 2, 1, 70, 90, 40, 64], f32, false, None, 0.3);
    check_attention(rng, [1, 1, 1, 130, 65, 64, 36], f32, true, Some(DType::Bool), 0.2);
    check_attention(rng, [1, 1, 1, 40, 140, 70, 20], f32, true, Some(f32), 0.2);
}

#[test]
#[ignore = "a software adapter compiles the shaders of f64 for two minutes"]
fn attention_of_f64_matches_the_cpu() {
    check_attention(&mut Rng(75), [1, 2, 1, 2, 34, 3, 33], DType::F64, true, Some(DType::F64), 0.7);
}

#[test]
fn attention_of_wide_heads_is_divided() {
    // The widest tile of an output has 128 columns.
    check_attention(&mut Rng(72), [1, 1, 1, 3, 4, 36, 70], DType::F32, false, None, 0.2);
    check_attention(&mut Rng(73), [1, 1, 1, 2, 3, 130, 33], DType::F32, false, None, 0.1);
}

#[test]
fn attention_without_keys_or_queries_matches_the_cpu() {
    let rng = &mut Rng(74);
    for sizes in [[1, 1, 1, 2, 0, 3, 2], [1, 1, 1, 0, 2, 3, 2], [0, 1, 1, 2, 2, 3, 2], [1, 1, 1, 2, 2, 0, 2]] {
        check_attention(rng, sizes, DType::F32, false, None, 1.0);
    }
}

#[test]
fn misfitting_operands_of_attention_are_rejected() {
    let Some(gpu) = device() else { return };
    let kernel = |masked| {
        Kernel::Attention(Attention {
            causal: false,
            masked,
            scale: 1.0,
            half_factors: None,
            part: AttentionPart::Result,
        })
    };
    let array = |shape: &[usize], dtype, layout| PairedArray::new(gpu, shape, dtype, layout, || 1.into());
    let plain = |shape: &[usize]| array(shape, DType::F32, TestLayout::Plain);
    let (q, k, v) = (plain(&[1, 2, 3, 4]), plain(&[1, 2, 5, 4]), plain(&[1, 2, 5, 6]));
    let (o, log) = (plain(&[1, 2, 3, 6]), plain(&[1, 2, 3]));
    run_both(gpu, &kernel(false), &[&q, &k, &v], &[&o, &log]).unwrap();
    let half = array(&[1, 2, 3, 4], DType::F16, TestLayout::Plain);
    let gaps = array(&[1, 2, 3, 6], DType::F32, TestLayout::Gaps);
    let mask = array(&[1, 2, 3, 5], DType::I32, TestLayout::Plain);
    run_both(gpu, &kernel(false), &[&half, &k, &v], &[&o, &log]).unwrap_err();
    run_both(gpu, &kernel(false), &[&q, &v, &v], &[&o, &log]).unwrap_err();
    run_both(gpu, &kernel(false), &[&q, &k, &v], &[&gaps, &log]).unwrap_err();
    run_both(gpu, &kernel(true), &[&q, &k, &v, &mask], &[&o, &log]).unwrap_err();
}

/// An adapter that terminates long loops early declares no native support for a kernel with such loops.
#[test]
fn attention_over_many_keys_is_complete_or_not_native() {
    let Some(gpu) = device() else { return };
    let keys = 60_000;
    let array =
        |shape: &[usize], value: i64| PairedArray::new(gpu, shape, DType::F32, TestLayout::Plain, || value.into());
    let (q, k) = (array(&[1, 1, 1, 4], 0), array(&[1, 1, keys, 4], 1));
    let outputs = [array(&[1, 1, 1, 4], 7), array(&[1, 1, 1], 7)];
    let kernel =
        Attention { causal: false, masked: false, scale: 1.0, half_factors: None, part: AttentionPart::Result };
    let (kernel, inputs, outputs) = (Kernel::Attention(kernel), [&q, &k, &k], [&outputs[0], &outputs[1]]);
    if !is_native(gpu, &kernel, &inputs, &outputs) {
        let [views, results] =
            [&inputs[..], &outputs[..]].map(|arrays| arrays.iter().map(|a| a.on_gpu()).collect::<Vec<_>>());
        assert!(gpu.run(&kernel, &views, &results).is_err(), "a kernel that is not native must be rejected");
        let few = array(&[1, 1, 5000, 4], 1);
        assert!(is_native(gpu, &kernel, &[&q, &few, &few], &outputs), "5000 keys must be native");
        return;
    }
    run_both(gpu, &kernel, &inputs, &outputs).unwrap();
    outputs.iter().for_each(|output| output.assert_same(gpu, Tolerance::Relative(1e-5, 0.0), "many keys"));
}
