//! Compares the attention kernel with naive loops and difference quotients, and its bits across threads and instruction
//! sets.

use super::*;
use crate::operand;
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::Error;
use pellucid_ir::kernel::{AttentionSizes, Kernel};

/// Test cases: the sizes N, H, G, L, S, E and D.
const SIZES: [[usize; 7]; 8] = [
    [1, 1, 1, 3, 4, 2, 5],
    [2, 4, 2, 9, 9, 8, 8],
    [1, 3, 1, 70, 45, 17, 33],
    [2, 1, 1, 1, 77, 16, 16],
    [1, 2, 2, 40, 131, 3, 1],
    [1, 2, 1, 5, 0, 3, 2],
    [2, 2, 2, 0, 4, 3, 2],
    [1, 1, 1, 12, 12, 0, 3],
];

/// Returns the sizes N, H, G, L, S, E and D.
pub(super) fn sizes([batch, heads, kv_heads, queries, keys, qk_width, v_width]: [usize; 7]) -> AttentionSizes {
    AttentionSizes { batch, heads, kv_heads, queries, keys, qk_width, v_width }
}

/// Returns causal and non-causal kernels, without a mask, with a boolean mask and with an additive mask.
pub(super) fn kernels() -> impl Iterator<Item = (Attention, Option<DType>)> {
    let masks = [None, Some(DType::Bool), Some(DType::F64)];
    [false, true].into_iter().flat_map(move |causal| {
        masks.map(|mask| {
            (
                Attention {
                    causal,
                    masked: mask.is_some(),
                    scale: 0.5,
                    half_factors: None,
                    part: AttentionPart::Result,
                },
                mask,
            )
        })
    })
}

/// Returns pseudo-random values of magnitude below 2.
pub(super) fn reals(count: usize, seed: u64) -> Vec<f64> {
    numbers(count, 1000, seed).into_iter().map(|v| v / 512.0).collect()
}

/// Returns the values of Q, K, V and the mask. A boolean mask hides some keys from every query and all keys from the
/// first query. It is returned as the equivalent additive mask of 0 and −∞.
pub(super) fn values(s: &AttentionSizes, mask: Option<DType>) -> Vec<Vec<f64>> {
    let all = s.batch * s.heads * s.queries * s.keys;
    let (q, k, v) = (
        s.batch * s.heads * s.queries * s.qk_width,
        s.batch * s.kv_heads * s.keys * s.qk_width,
        s.batch * s.kv_heads * s.keys * s.v_width,
    );
    let mut values: Vec<Vec<f64>> = [q, k, v].into_iter().zip(1..).map(|(n, seed)| reals(n, seed)).collect();
    match mask {
        None => {}
        Some(DType::Bool) => {
            let is_first_query = |i: usize| (i / s.keys.max(1)).is_multiple_of(s.queries.max(1));
            let added = |(i, x)| if is_first_query(i) || x < -1.0 { f64::NEG_INFINITY } else { 0.0 };
            values.push(reals(all, 4).into_iter().enumerate().map(added).collect());
        }
        Some(_) => values.push(reals(all, 4)),
    }
    values
}

/// Returns the output and λ, computed by naive loops.
pub(super) fn naive(k: &Attention, s: &AttentionSizes, x: &[Vec<f64>]) -> [Vec<f64>; 2] {
    let [mut o, mut logs] = [Vec::new(), Vec::new()];
    for head in 0..s.batch * s.heads {
        let shared = head / s.heads.max(1) * s.kv_heads + head % s.heads * s.kv_heads / s.heads;
        for query in 0..s.queries {
            let score = |key: usize| -> f64 {
                if k.causal && key > query {
                    return f64::NEG_INFINITY;
                }
                let at = |e: usize| {
                    x[0][(head * s.queries + query) * s.qk_width + e] * x[1][(shared * s.keys + key) * s.qk_width + e]
                };
                let added = if k.masked { x[3][(head * s.queries + query) * s.keys + key] } else { 0.0 };
                (0..s.qk_width).map(at).sum::<f64>() * k.scale + added
            };
            let weights: Vec<f64> = (0..s.keys).map(|key| score(key).exp()).collect();
            let sum: f64 = weights.iter().sum();
            logs.push(if sum == 0.0 { f64::INFINITY } else { sum.ln() });
            for d in 0..s.v_width {
                let value = |key: usize| weights[key] * x[2][(shared * s.keys + key) * s.v_width + d];
                o.push(if sum == 0.0 { 0.0 } else { (0..s.keys).map(value).sum::<f64>() / sum });
            }
        }
    }
    [o, logs]
}

/// Returns the input arrays.
pub(super) fn arrays(
    s: &AttentionSizes,
    x: &[Vec<f64>],
    mask: Option<DType>,
    dtype: DType,
    layout: TestLayout,
) -> Vec<testing::TestArray> {
    let shapes = [
        [s.batch, s.heads, s.queries, s.qk_width],
        [s.batch, s.kv_heads, s.keys, s.qk_width],
        [s.batch, s.kv_heads, s.keys, s.v_width],
        [s.batch, s.heads, s.queries, s.keys],
    ];
    let array = |(i, x): (usize, &Vec<f64>)| match mask {
        Some(DType::Bool) if i == 3 => {
            let seen: Vec<bool> = x.iter().map(|&x| x == 0.0).collect();
            testing::TestArray::of(&shapes[i][..], layout, &seen)
        }
        _ => testing::TestArray::cast(&shapes[i][..], layout, dtype, x),
    };
    x.iter().enumerate().map(array).collect()
}

/// Runs a kernel with one instruction set. The heads of the first output are interleaved: its layout is `[N, L, H, D]`.
pub(super) fn run_kernel(isa: Isa, k: &Attention, inputs: &[&testing::TestArray]) -> Result<Vec<testing::TestArray>> {
    let mut outputs = testing::allocate_outputs(&Kernel::Attention(*k), inputs)?;
    let &[n, h, l, e] = outputs[0].layout.shape().dims() else { unreachable!("the output must have four axes") };
    let interleaved = testing::TestArray::new([n, l, h, e], outputs[0].dtype, TestLayout::Plain);
    outputs[0] = testing::TestArray { layout: interleaved.layout.permute(&[0, 2, 1, 3]), ..interleaved };
    let x = testing::operands(inputs.iter().copied(), operand::input)?;
    let y = testing::operands(&outputs, operand::output)?;
    Kernel::Attention(*k).check(&x, &y)?;
    run_with_isa(isa, k, &x, &y)?;
    drop(y);
    Ok(outputs)
}

/// Returns true if all elements are equal within a tolerance.
pub(super) fn is_near(got: &[f64], expected: &[f64], tolerance: f64) -> bool {
    let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= tolerance;
    got.len() == expected.len() && got.iter().zip(expected).all(close)
}

#[test]
fn outputs_match_naive_loops_in_all_layouts() {
    for (k, mask) in kernels() {
        for size in SIZES {
            let s = sizes(size);
            let x = values(&s, mask);
            let [o, logs] = naive(&k, &s, &x);
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 5e-5)] {
                for layout in TestLayout::ALL {
                    let inputs = arrays(&s, &x, mask, dtype, layout);
                    let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
                    assert!(is_near(&y[0].reals(), &o, tolerance), "{k:?} {size:?} {dtype} {layout:?}");
                    assert!(is_near(&y[1].reals(), &logs, tolerance), "{k:?} {size:?} {dtype} {layout:?}");
                }
            }
        }
    }
}

/// Returns the inputs of the gradient kernel: the inputs of the output kernel, Ω, and the saved outputs O and λ.
pub(super) fn gradient_inputs<'a>(
    x: &'a [testing::TestArray],
    g: &'a testing::TestArray,
    y: &'a [testing::TestArray],
) -> Vec<&'a testing::TestArray> {
    x[..3].iter().chain([g, &y[0], &y[1]]).chain(&x[3..]).collect()
}

/// Returns Ω, the gradient of the output.
pub(super) fn output_gradient(s: &AttentionSizes, dtype: DType, layout: TestLayout) -> testing::TestArray {
    let shape = [s.batch, s.heads, s.queries, s.v_width];
    testing::TestArray::cast(&shape[..], layout, dtype, &reals(shape.iter().product(), 9))
}

#[test]
fn gradients_match_difference_quotients() {
    for (k, mask) in kernels() {
        for size in [[2, 4, 2, 3, 4, 2, 3], [1, 1, 1, 5, 3, 2, 2], [1, 2, 1, 0, 2, 2, 2], [1, 1, 1, 2, 4, 1, 1]] {
            let s = sizes(size);
            let x = values(&s, mask);
            let inputs = arrays(&s, &x, mask, DType::F64, TestLayout::Plain);
            let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
            let gradient = Attention { part: AttentionPart::Gradient, ..k };
            let weights = output_gradient(&s, DType::F64, TestLayout::Plain).reals();
            let loss = |x: &[Vec<f64>]| naive(&k, &s, x)[0].iter().zip(&weights).map(|(o, w)| o * w).sum::<f64>();
            for layout in TestLayout::ALL {
                let (inputs, g) = (arrays(&s, &x, mask, DType::F64, layout), output_gradient(&s, DType::F64, layout));
                let found = run_kernel(Isa::best(), &gradient, &gradient_inputs(&inputs, &g, &y)).unwrap();
                for (input, found) in found.iter().enumerate() {
                    let difference = |i: usize| {
                        let loss_at = |step: f64| {
                            let mut x = x.clone();
                            x[input][i] += step;
                            loss(&x)
                        };
                        (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
                    };
                    let expected: Vec<f64> = (0..x[input].len()).map(difference).collect();
                    assert!(is_near(&found.reals(), &expected, 1e-8), "{k:?} {size:?} {layout:?}: input {input}");
                }
            }
        }
    }
}

/// For large sizes, gradients are sums over many blocks. They are compared with difference quotients along random
/// directions.
#[test]
fn gradients_of_many_blocks_match_directional_differences() {
    for (k, mask) in kernels() {
        for size in [[1, 4, 2, 150, 700, 5, 3], [2, 1, 1, 260, 260, 4, 6], [1, 2, 1, 100, 40, 4, 4]] {
            let s = sizes(size);
            let x = values(&s, mask);
            let inputs = arrays(&s, &x, mask, DType::F64, TestLayout::Plain);
            let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
            let g = output_gradient(&s, DType::F64, TestLayout::Plain);
            let gradient = Attention { part: AttentionPart::Gradient, ..k };
            let found = run_kernel(Isa::best(), &gradient, &gradient_inputs(&inputs, &g, &y)).unwrap();
            let along: Vec<Vec<f64>> = (0..3).map(|i| reals(x[i].len(), 20 + i as u64)).collect();
            let expected: f64 =
                found.iter().zip(&along).flat_map(|(f, a)| f.reals().into_iter().zip(a)).map(|(f, a)| f * a).sum();
            let loss_at = |step: f64| -> f64 {
                let mut x = x.clone();
                x.iter_mut().zip(&along).for_each(|(x, a)| x.iter_mut().zip(a).for_each(|(x, a)| *x += step * a));
                naive(&k, &s, &x)[0].iter().zip(&g.reals()).map(|(o, w)| o * w).sum()
            };
            let difference = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
            let tolerance = 1e-6 * difference.abs().max(1.0);
            assert!((difference - expected).abs() < tolerance, "{k:?} {size:?}: {difference} {expected}");
        }
    }
}

#[test]
fn bits_are_independent_of_threads_and_instruction_sets() {
    for (k, mask) in kernels() {
        // Three sizes: at least as many heads as threads; fewer heads, for which blocks are distributed; and few
        // queries.
        for size in [[3, 4, 4, 40, 50, 16, 20], [1, 2, 1, 200, 380, 33, 18], [1, 3, 1, 6, 300, 64, 64]] {
            let s = sizes(size);
            let x = values(&s, mask);
            for dtype in [DType::F32, DType::F64] {
                let mask = mask.map(|m| if m == DType::Bool { m } else { dtype });
                let (inputs, g) =
                    (arrays(&s, &x, mask, dtype, TestLayout::Plain), output_gradient(&s, dtype, TestLayout::Plain));
                let bits = |threads: usize, isa: Isa| -> Vec<Vec<u64>> {
                    with_threads(threads, || {
                        let y = run_kernel(isa, &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
                        let gradient = Attention { part: AttentionPart::Gradient, ..k };
                        let found = run_kernel(isa, &gradient, &gradient_inputs(&inputs, &g, &y)).unwrap();
                        y.iter().chain(&found).map(|a| a.reals().into_iter().map(f64::to_bits).collect()).collect()
                    })
                };
                let expected = bits(1, Isa::best());
                for threads in [2, 8] {
                    assert!(bits(threads, Isa::best()) == expected, "{k:?} {size:?} {dtype} {threads} threads");
                }
                for &isa in Isa::available() {
                    assert!(bits(1, isa) == expected, "{k:?} {size:?} {dtype} {isa:?}");
                }
            }
        }
    }
}

#[test]
fn nan_propagates_and_large_scores_do_not_overflow() {
    let k = Attention { causal: false, masked: false, scale: 1.0, half_factors: None, part: AttentionPart::Result };
    let s = sizes([1, 1, 1, 10, 40, 2, 2]);
    let mut x = values(&s, None);
    x[0].iter_mut().for_each(|x| *x *= 1e4);
    let inputs = arrays(&s, &x, None, DType::F32, TestLayout::Plain);
    let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
    assert!(y[0].reals().iter().all(|o| o.is_finite()));
    x[0][6] = f64::NAN;
    let inputs = arrays(&s, &x, None, DType::F32, TestLayout::Plain);
    let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
    let nans: Vec<usize> = (0..20).filter(|&i| y[0].reals()[i].is_nan()).collect();
    assert_eq!(nans, [6, 7]);
}

/// A constant that is added to all scores of a row does not change the softmax, although λ cannot represent small
/// differences between scores of large magnitude.
#[test]
fn constant_added_to_all_scores_of_a_row_changes_no_gradient() {
    let k = Attention { causal: false, masked: true, scale: 0.5, half_factors: None, part: AttentionPart::Result };
    let s = sizes([1, 1, 1, 3, 40, 4, 4]);
    let mut x = values(&s, Some(DType::F32));
    let gradients = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let inputs = arrays(&s, x, Some(DType::F32), DType::F32, TestLayout::Plain);
        let y = run_kernel(Isa::best(), &k, &inputs.iter().collect::<Vec<_>>()).unwrap();
        let g = output_gradient(&s, DType::F32, TestLayout::Plain);
        let gradient = Attention { part: AttentionPart::Gradient, ..k };
        run_kernel(Isa::best(), &gradient, &gradient_inputs(&inputs, &g, &y))
            .unwrap()
            .iter()
            .map(|a| a.reals())
            .collect()
    };
    // Q is 0 and the mask is constant, so all scores of a row are equal.
    (x[0], x[3]) = (vec![0.0; x[0].len()], vec![0.0; x[3].len()]);
    let plain = gradients(&x);
    for added in [-1e4, -1e9, f64::from(f32::MIN), 1e9] {
        x[3].fill(added);
        for (a, b) in gradients(&x).iter().zip(&plain) {
            assert!(is_near(a, b, 1e-6), "{added}: {a:?} {b:?}");
        }
    }
}

#[test]
fn check_rejects_mismatched_operands() {
    let k = Attention { causal: true, masked: true, scale: 1.0, half_factors: None, part: AttentionPart::Result };
    let s = sizes([2, 4, 2, 3, 5, 4, 6]);
    let good = arrays(&s, &values(&s, Some(DType::F64)), Some(DType::F64), DType::F32, TestLayout::Plain);
    let run = |k: &Attention, x: &[testing::TestArray]| run_kernel(Isa::best(), k, &x.iter().collect::<Vec<_>>());
    assert!(run(&k, &good).is_ok());
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i] = testing::TestArray::of([1], TestLayout::Plain, &[1.0f32]);
        assert!(matches!(run(&k, &bad), Err(Error::ShapeMismatch { .. })), "input {i}");
        let mut bad = good.clone();
        let shape = good[i].layout.shape().clone();
        bad[i] = testing::TestArray::cast(shape.clone(), TestLayout::Plain, DType::F64, &vec![0.0; shape.size()]);
        assert!(matches!(run(&k, &bad), Err(Error::DTypeMismatch { .. })), "input {i}");
    }
    assert!(run(&Attention { masked: false, ..k }, &good).is_err());
    assert!(run(&Attention { part: AttentionPart::Gradient, ..k }, &good).is_err());
    let (o, logs) = ([2, 4, 3, 6], testing::TestArray::new([2, 4, 3], DType::F32, TestLayout::Plain));
    let x: Vec<&testing::TestArray> = good.iter().collect();
    for (layout, fits) in [(TestLayout::Behind, true), (TestLayout::Gaps, false)] {
        let o = testing::TestArray::new(o, DType::F32, layout);
        assert_eq!(testing::run_kernel(Kernel::Attention(k), &x, &[&o, &logs]).is_ok(), fits, "{layout:?}");
    }
}
