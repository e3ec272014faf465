//! Tests of attention with factors that are rounded to `bf16`.

use super::tests::{arrays, gradient_inputs, kernels, output_gradient, run_kernel, sizes, values};
use super::*;
use crate::testing::{TestArray, TestLayout};
use crate::with_threads;
use pellucid_simd::math::half::BF16;

/// Returns the nearest value of `bf16`.
fn rounded(x: f64) -> f64 {
    f64::from(BF16::from_f32(x as f32).to_f32())
}

/// Returns the outputs and the gradients of a kernel for inputs that are rounded to `bf16` and multiplied by powers of
/// two.
fn results(isa: Isa, k: &Attention, size: [usize; 7], mask: Option<DType>, scales: [f64; 3]) -> Vec<TestArray> {
    let (s, mut mask) = (sizes(size), mask);
    let mut x = values(&s, mask);
    for (x, scale) in x.iter_mut().zip(scales) {
        x.iter_mut().for_each(|x| *x = rounded(*x) * scale);
    }
    mask = mask.map(|m| if m == DType::Bool { m } else { DType::F32 });
    let inputs = arrays(&s, &x, mask, DType::F32, TestLayout::Plain);
    let g = output_gradient(&s, DType::F32, TestLayout::Plain);
    let g = TestArray::cast(
        g.layout.shape().clone(),
        TestLayout::Plain,
        DType::F32,
        &g.reals().iter().map(|&g| rounded(g)).collect::<Vec<_>>(),
    );
    let mut y = run_kernel(isa, k, &inputs.iter().collect::<Vec<_>>()).unwrap();
    let gradient = Attention { part: AttentionPart::Gradient, ..*k };
    y.extend(run_kernel(isa, &gradient, &gradient_inputs(&inputs, &g, &y)).unwrap());
    y
}

fn bits(arrays: &[TestArray]) -> Vec<Vec<u64>> {
    arrays.iter().map(|a| a.reals().into_iter().map(f64::to_bits).collect()).collect()
}

/// Returns the instruction sets whose products have equal bits.
fn equal_instruction_sets() -> Vec<Isa> {
    Isa::available().iter().copied().filter(|isa| !(isa.has_bf16_products() && Isa::has_amx())).collect()
}

/// Pairs are multiplied, or single factors where a product could be subnormal, as with the smallest of these values.
#[test]
fn bits_are_independent_of_threads_and_instruction_sets_and_near_unrounded_results() {
    for (k, mask) in kernels() {
        let k = Attention { half_factors: Some(DType::BF16), ..k };
        for size in [[3, 4, 2, 40, 50, 16, 20], [1, 2, 1, 205, 381, 33, 17], [1, 3, 1, 6, 300, 64, 64]] {
            for scales in [[1.0; 3], [1.0, 1.0, 2f64.powi(-120)], [1.0, 2f64.powi(-130), 1.0]] {
                let label = format!("{k:?} {size:?} {scales:?}");
                let run = |threads: usize, isa: Isa| with_threads(threads, || results(isa, &k, size, mask, scales));
                let best = run(1, Isa::best());
                for threads in [2, 8] {
                    assert!(bits(&run(threads, Isa::best())) == bits(&best), "{label} {threads} threads");
                }
                let isas = equal_instruction_sets();
                let first = run(1, isas[0]);
                for &isa in &isas {
                    assert!(bits(&run(1, isa)) == bits(&first), "{label} {isa:?}");
                }
                let single = results(Isa::best(), &Attention { half_factors: None, ..k }, size, mask, scales);
                for (i, (a, b)) in best.iter().zip(&single).enumerate() {
                    let (a, b) = (a.reals(), b.reals());
                    let largest = b.iter().filter(|b| b.is_finite()).fold(0.0, |m: f64, b| m.max(b.abs()));
                    let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 0.01 * largest;
                    assert!(a.iter().zip(&b).all(near), "{label}: array {i}");
                }
            }
        }
    }
}

/// Returns the kernel without a mask that rounds its factors to `bf16`.
fn rounding_kernel(causal: bool, scale: f64) -> Attention {
    let half_factors = Some(DType::BF16);
    Attention { causal, masked: false, scale, half_factors, part: AttentionPart::Result }
}

/// One query attends to two keys, with the scores 0 and −0.6.
#[test]
fn weights_and_gradients_of_scores_are_rounded_as_factors_only() {
    let k = rounding_kernel(false, 0.6);
    // All queries but the first are zero. They make the keys and values packed.
    let s = sizes([1, 1, 1, 9, 2, 1, 1]);
    let mut q = vec![0.0; 9];
    q[0] = 1.0;
    let inputs = arrays(&s, &[q, vec![0.0, -1.0], vec![0.0, 1.0]], None, DType::F32, TestLayout::Plain);
    let mut weights = vec![0.0; 9];
    weights[0] = 1.0;
    let g = TestArray::cast([1, 1, 9, 1], TestLayout::Plain, DType::F32, &weights);
    let e = (-0.6f64).exp();
    let (p, o) = (e / (1.0 + e), rounded(e) / (1.0 + e));
    let x = 0.6 * p * (1.0 - o);
    assert!((rounded(e) - e).abs() > 1e-4 && (rounded(p) - p).abs() > 1e-4 && (rounded(x) - x).abs() > 1e-4);
    for &isa in Isa::available() {
        let y = run_kernel(isa, &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
        assert!((y[0].reals()[0] - o).abs() < 1e-6, "{isa:?}: {} instead of {o}", y[0].reals()[0]);
        assert!((y[1].reals()[0] - (1.0 + e).ln()).abs() < 1e-6, "{isa:?}: the sum must not be rounded");
        let gradient = Attention { part: AttentionPart::Gradient, ..k };
        let found = run_kernel(isa, &gradient, &gradient_inputs(&inputs, &g, &y)).unwrap();
        let found: Vec<f64> = found.iter().map(|a| *a.reals().last().unwrap()).collect();
        assert_eq!(found[1..], [rounded(x), rounded(p)], "{isa:?}: the gradients of the second key and its value");
    }
}

/// Values behind the last visible key do not change a result, even if the number of visible keys is odd.
#[test]
fn hidden_infinities_do_not_change_results() {
    let k = rounding_kernel(true, 1.0);
    let s = sizes([1, 1, 1, 9, 12, 4, 4]);
    let mut x = values(&s, None);
    x.iter_mut().flatten().for_each(|x| *x = rounded(*x));
    let run = |x: &[Vec<f64>]| {
        let inputs = arrays(&s, x, None, DType::F32, TestLayout::Plain);
        run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap()
    };
    let expected = bits(&run(&x));
    x[2][9 * 4..].fill(f64::INFINITY);
    assert!(bits(&run(&x)) == expected);
}

#[test]
fn f64_factors_are_not_rounded() {
    let k = rounding_kernel(true, 1.0);
    let s = sizes([1, 1, 1, 3, 3, 2, 2]);
    let inputs = arrays(&s, &values(&s, None), None, DType::F64, TestLayout::Plain);
    let error = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>());
    assert!(matches!(error, Err(pellucid_ir::Error::DTypeMismatch { .. })));
}
