//! Compares the recurrent kernel with naive loops and difference quotients, and its bits across threads and instruction
//! sets.

use super::*;
use crate::operand;
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::kernel::{Kernel, RnnMode};

const CELLS: [RnnMode; 4] = [RnnMode::Tanh, RnnMode::Relu, RnnMode::Gru, RnnMode::Lstm];

/// The sizes T, N, H and P.
pub(super) type LayerShape = [usize; 4];

/// Returns the kernel that computes all states.
fn kernel(cell: RnnMode, reverse: bool, lengths: bool, projected: bool) -> Recurrent {
    Recurrent { op: "rnn", cell, reverse, projected, lengths, half_factors: None, part: RecurrentPart::States }
}

/// Returns kernels of every cell in both directions, with and without lengths, and projected where possible.
pub(super) fn kernels() -> impl Iterator<Item = Recurrent> {
    let variants = (0..8).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0));
    let all = CELLS.into_iter().flat_map(move |cell| variants.clone().map(move |variant| (cell, variant)));
    all.filter(|&(cell, variant)| cell == RnnMode::Lstm || !variant.2).map(|(cell, (r, l, p))| kernel(cell, r, l, p))
}

/// Returns pseudo-random values of magnitude below 1.
pub(super) fn reals(count: usize, seed: u64) -> Vec<f64> {
    numbers(count, 1000, seed).into_iter().map(|v| v / 1024.0).collect()
}

/// Returns the shapes and values of the inputs of the forward pass, in order and without the lengths.
pub(super) fn inputs(k: &Recurrent, [t, n, h, p]: LayerShape) -> Vec<(Vec<usize>, Vec<f64>)> {
    let (g, b) = (k.cell.gates() * h, k.cell.blocks() * h);
    let mut shapes = vec![vec![t, n, b], vec![g, p], vec![b], vec![n, p]];
    if k.cell == RnnMode::Lstm {
        shapes.push(vec![n, h]);
    }
    if k.projected {
        shapes.push(vec![p, h]);
    }
    // The weights are scaled so that a sum of many products has the magnitude of a single product.
    let size = |i: usize| if i == 1 { 1.0 / (p.max(1) as f64).sqrt() } else { 1.0 };
    let filled = |(i, shape): (usize, Vec<usize>)| {
        let values = reals(shape.iter().product(), i as u64 + 1).into_iter().map(|v| v * size(i)).collect();
        (shape, values)
    };
    shapes.into_iter().enumerate().map(filled).collect()
}

/// Returns a length from 0 to `steps` for each sequence.
fn lengths_of(steps: usize, batch: usize) -> Vec<i64> {
    (0..batch).map(|n| ((n * 7 + 2) % (steps + 1)) as i64).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns the states h and the cell states c before the first step and after each step, computed by naive loops.
pub(super) fn naive(k: &Recurrent, [steps, batch, h, p]: LayerShape, x: &[Vec<f64>]) -> [Vec<f64>; 2] {
    let (gates, w, bias) = (&x[0], &x[1], &x[2]);
    let lengths = lengths_of(steps, batch);
    let blocks = k.cell.blocks();
    let mut state = x[3].clone();
    let mut c = if k.cell == RnnMode::Lstm { x[4].clone() } else { vec![0.0; batch * h] };
    let (mut states, mut cells) = (vec![0.0; (steps + 1) * batch * p], vec![0.0; (steps + 1) * batch * h]);
    let mut save = |slot: usize, state: &[f64], c: &[f64]| {
        states[slot * batch * p..][..batch * p].copy_from_slice(state);
        cells[slot * batch * h..][..batch * h].copy_from_slice(c);
    };
    save(if k.reverse { steps } else { 0 }, &state, &c);
    for i in 0..steps {
        let t = if k.reverse { steps - 1 - i } else { i };
        for n in 0..batch {
            if k.lengths && t as i64 >= lengths[n] {
                continue;
            }
            let input = |b: usize, j: usize| gates[((t * batch + n) * blocks + b) * h + j];
            let product = |g: usize, j: usize| (0..p).map(|l| w[(g * h + j) * p + l] * state[n * p + l]).sum::<f64>();
            let sum = |b: usize, j: usize| input(b, j) + product(b, j) + bias[b * h + j];
            let mut next = vec![0.0; h];
            for j in 0..h {
                next[j] = match k.cell {
                    RnnMode::Tanh => sum(0, j).tanh(),
                    RnnMode::Relu => sum(0, j).max(0.0),
                    RnnMode::Gru => {
                        let u = product(2, j) + bias[3 * h + j];
                        let new = (input(2, j) + bias[2 * h + j] + sigmoid(sum(0, j)) * u).tanh();
                        new + sigmoid(sum(1, j)) * (state[n * p + j] - new)
                    }
                    RnnMode::Lstm => {
                        let kept = sigmoid(sum(1, j)) * c[n * h + j];
                        c[n * h + j] = kept + sigmoid(sum(0, j)) * sum(2, j).tanh();
                        sigmoid(sum(3, j)) * c[n * h + j].tanh()
                    }
                };
            }
            for l in 0..p {
                state[n * p + l] = match k.projected {
                    true => (0..h).map(|j| x[5][l * h + j] * next[j]).sum(),
                    false => next[l],
                };
            }
        }
        save(if k.reverse { t } else { t + 1 }, &state, &c);
    }
    [states, cells]
}

/// Runs a kernel with one instruction set and returns the outputs. If `in_place`, the gates overwrite the first input.
pub(super) fn run_kernel(
    isa: Isa,
    k: &Recurrent,
    inputs: &[&testing::TestArray],
    in_place: bool,
) -> Result<Vec<testing::TestArray>> {
    let mut outputs = testing::allocate_outputs(&Kernel::Recurrent(*k), inputs)?;
    if in_place {
        outputs[0] = inputs[0].clone();
    }
    let x = testing::operands(inputs.iter().copied(), operand::input)?;
    let y = testing::operands(&outputs, operand::output)?;
    run_with_isa(isa, k, &x, &y)?;
    drop(y);
    Ok(outputs)
}

/// Returns the input arrays of the forward pass.
pub(super) fn arrays(k: &Recurrent, sizes: LayerShape, dtype: DType, layout: TestLayout) -> Vec<testing::TestArray> {
    let mut all: Vec<testing::TestArray> = inputs(k, sizes)
        .iter()
        .map(|(shape, values)| testing::TestArray::cast(&shape[..], layout, dtype, values))
        .collect();
    if k.lengths {
        all.push(testing::TestArray::of([sizes[1]], layout, &lengths_of(sizes[0], sizes[1])));
    }
    all
}

/// Returns true if all elements are equal within a tolerance.
pub(super) fn is_near(got: &[f64], expected: &[f64], tolerance: f64) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance)
}

#[test]
fn states_match_naive_loops_in_all_layouts() {
    for k in kernels() {
        for [t, n, h, p] in [[3, 2, 5, 3], [1, 1, 1, 1], [5, 16, 33, 18], [0, 2, 3, 2], [2, 0, 3, 2], [2, 3, 300, 7]] {
            let sizes = [t, n, h, if k.projected { p } else { h }];
            let values: Vec<Vec<f64>> = inputs(&k, sizes).into_iter().map(|i| i.1).collect();
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
                let [states, cells] = naive(&k, sizes, &values);
                for layout in TestLayout::ALL {
                    let x = arrays(&k, sizes, dtype, layout);
                    let x: Vec<&testing::TestArray> = x.iter().collect();
                    let y = run_kernel(Isa::best(), &k, &x, false).unwrap();
                    assert!(is_near(&y[1].reals(), &states, tolerance), "{k:?} {sizes:?} {dtype} {layout:?}");
                    assert!(
                        k.cell != RnnMode::Lstm || is_near(&y[2].reals(), &cells, tolerance),
                        "{k:?} {sizes:?} {dtype}"
                    );
                }
            }
        }
    }
}

#[test]
fn gates_can_be_computed_in_place() {
    for k in kernels() {
        let sizes = [3, 4, 9, if k.projected { 5 } else { 9 }];
        let x = arrays(&k, sizes, DType::F32, TestLayout::Plain);
        let x: Vec<&testing::TestArray> = x.iter().collect();
        let separate = run_kernel(Isa::best(), &k, &x, false).unwrap();
        let in_place = run_kernel(Isa::best(), &k, &x, true).unwrap();
        for (a, b) in separate.iter().zip(&in_place) {
            assert_eq!(a.values::<f32>(), b.values::<f32>(), "{k:?}");
        }
    }
}

/// Returns the inputs of the gradient: the saved outputs, W, the gradients, and the remaining inputs.
pub(super) fn gradient_inputs<'a>(
    k: &Recurrent,
    x: &'a [testing::TestArray],
    y: &'a [testing::TestArray],
    grads: &'a [testing::TestArray],
) -> Vec<&'a testing::TestArray> {
    let mut all = vec![&y[0], &y[1], &x[1], &grads[0], &grads[1]];
    let lstm = k.cell == RnnMode::Lstm;
    if lstm {
        all.extend([&y[2], &grads[2]]);
    }
    all.extend(&x[4 + usize::from(lstm)..]);
    all
}

/// Returns gradients of the states that the steps compute, of the final state and of the final c.
pub(super) fn gradients([t, n, h, p]: LayerShape, dtype: DType) -> Vec<testing::TestArray> {
    let shapes = [vec![t, n, p], vec![n, p], vec![n, h]];
    let array = |(i, s): (usize, Vec<usize>)| {
        testing::TestArray::cast(&s[..], TestLayout::ALL[i], dtype, &reals(s.iter().product(), 20 + i as u64))
    };
    shapes.into_iter().enumerate().map(array).collect()
}

#[test]
fn gradients_match_difference_quotients() {
    for k in kernels() {
        let sizes @ [t, n, h, p] = [3, 3, 4, if k.projected { 3 } else { 4 }];
        let x = arrays(&k, sizes, DType::F64, TestLayout::Plain);
        let y = run_kernel(Isa::best(), &k, &x.iter().collect::<Vec<_>>(), false).unwrap();
        let grads = gradients(sizes, DType::F64);
        let back = Recurrent { part: RecurrentPart::Gradient, ..k };
        let found = run_kernel(Isa::best(), &back, &gradient_inputs(&k, &x, &y, &grads), false).unwrap();
        let values: Vec<Vec<f64>> = inputs(&k, sizes).into_iter().map(|i| i.1).collect();
        let lengths = lengths_of(t, n);
        let weights: Vec<Vec<f64>> = grads.iter().map(|g| g.reals()).collect();
        let loss = |values: &[Vec<f64>]| -> f64 {
            let [states, cells] = naive(&k, sizes, values);
            let (first, last) = if k.reverse { (0, 0) } else { (1, t) };
            let mut sum = 0.0;
            for (i, w) in weights[0].iter().enumerate() {
                let (step, row) = (i / (n * p), i / p % n);
                let seen = !k.lengths || (step as i64) < lengths[row];
                sum += if seen { w * states[first * n * p + i] } else { 0.0 };
            }
            sum += (0..n * p).map(|i| weights[1][i] * states[last * n * p + i]).sum::<f64>();
            if k.cell == RnnMode::Lstm {
                sum += (0..n * h).map(|i| weights[2][i] * cells[last * n * h + i]).sum::<f64>();
            }
            sum
        };
        let difference = |input: usize, i: usize| {
            let loss_at = |step: f64| {
                let mut values = values.clone();
                values[input][i] += step;
                loss(&values)
            };
            (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
        };
        let all = |input: usize| (0..values[input].len()).map(|i| difference(input, i)).collect::<Vec<f64>>();
        let (mut gates, biases) = (found[0].reals(), all(2));
        // The bias of a block contributes to every step of every sequence.
        let width = k.cell.blocks() * h;
        let sums: Vec<f64> = (0..width).map(|j| gates.iter().skip(j).step_by(width).sum()).collect();
        assert!(is_near(&sums, &biases, 1e-7), "{k:?}: {sums:?} {biases:?}");
        let mut expected = all(0);
        if k.cell == RnnMode::Gru {
            // The last block has no input contribution.
            for i in (0..gates.len()).filter(|i| i / h % 4 == 3) {
                (gates[i], expected[i]) = (0.0, 0.0);
            }
        }
        assert!(is_near(&gates, &expected, 1e-7), "{k:?}");
        assert!(is_near(&found[1].reals(), &all(3), 1e-7), "{k:?}");
        if k.cell == RnnMode::Lstm {
            assert!(is_near(&found[2].reals(), &all(4), 1e-7), "{k:?}");
        }
        if k.projected {
            // ∂V is the sum of the total gradients times the states before their projection, o·tanh(c).
            let (totals, gates, cells) = (found[3].reals(), y[0].reals(), y[2].reals());
            let next = if k.reverse { 0 } else { n * h };
            let product = |l: usize, j: usize| -> f64 {
                let one =
                    |row: usize| totals[row * p + l] * gates[(row * 4 + 3) * h + j] * cells[next + row * h + j].tanh();
                (0..t * n).map(one).sum()
            };
            let found: Vec<f64> = (0..p * h).map(|i| product(i / h, i % h)).collect();
            assert!(is_near(&found, &all(5), 1e-7), "{k:?}");
        }
    }
}

#[test]
fn bits_are_independent_of_threads_and_instruction_sets() {
    for k in kernels() {
        // [T, N, H]: at least as many sequences as threads; one sequence, whose columns the threads share; three
        // sequences with products over several blocks of k.
        for [t, n, h] in [[4, 37, 70], [2, 1, 600], [3, 3, 290]] {
            let sizes = [t, n, h, if k.projected { h - 9 } else { h }];
            for (dtype, half_factors) in [(DType::F32, None), (DType::F64, None), (DType::F32, Some(DType::BF16))] {
                let k = Recurrent { half_factors, ..k };
                let x = arrays(&k, sizes, dtype, TestLayout::Plain);
                let bits = |threads: usize, isa: Isa| bits(&k, sizes, &x, threads, isa);
                let expected = bits(1, Isa::best());
                for threads in [2, 8] {
                    assert!(bits(threads, Isa::best()) == expected, "{k:?} {sizes:?} {dtype} {threads} threads");
                }
                let isas = || Isa::available().iter().copied().filter(|&isa| !can_use_amx(&k, isa));
                let expected = bits(1, isas().next().unwrap());
                for isa in isas() {
                    assert!(bits(1, isa) == expected, "{k:?} {sizes:?} {dtype} {isa:?}");
                }
            }
        }
    }
}

/// Returns true if the products of this layer use AMX if they are large enough.
fn can_use_amx(k: &Recurrent, isa: Isa) -> bool {
    k.half_factors == Some(DType::BF16) && isa.has_bf16_products() && Isa::has_amx()
}

/// Returns the bits of all states and gradients of a layer.
fn bits(k: &Recurrent, sizes: LayerShape, x: &[testing::TestArray], threads: usize, isa: Isa) -> Vec<Vec<u64>> {
    let grads = gradients(sizes, x[0].dtype);
    with_threads(threads, || {
        let y = run_kernel(isa, k, &x.iter().collect::<Vec<_>>(), false).unwrap();
        let back = Recurrent { part: RecurrentPart::Gradient, ..*k };
        let found = run_kernel(isa, &back, &gradient_inputs(k, x, &y, &grads), false).unwrap();
        // Gate activations beyond the end of a sequence are unspecified.
        let arrays = y.iter().skip(1).chain(&found);
        arrays.map(|a| a.reals().into_iter().map(f64::to_bits).collect()).collect()
    })
}

/// With AMX, blocks of 16 sequences multiply pairs or, as those with the smallest states, single factors. The bits are
/// equal for all numbers of threads, and the results are near those of single factors.
#[test]
fn blocks_of_sequences_choose_their_factors_by_themselves() {
    for k in kernels() {
        let k = Recurrent { half_factors: Some(DType::BF16), ..k };
        let sizes = [3, 70, 67, if k.projected { 66 } else { 67 }];
        let mut x = arrays(&k, sizes, DType::F32, TestLayout::Plain);
        // Tiny states of one sequence in the second block, and of the fourth block.
        let is_tiny = |row: usize| row == 20 || (48..64).contains(&row);
        let scaled = |(i, v): (usize, f64)| if is_tiny(i / sizes[3]) { v * 2f64.powi(-120) } else { v };
        let states: Vec<f64> = x[3].reals().into_iter().enumerate().map(scaled).collect();
        x[3] = testing::TestArray::cast([sizes[1], sizes[3]], TestLayout::Plain, DType::F32, &states);
        let found = bits(&k, sizes, &x, 1, Isa::best());
        for threads in [2, 3, 8] {
            assert!(bits(&k, sizes, &x, threads, Isa::best()) == found, "{k:?} {threads} threads");
        }
        let single = bits(&k, sizes, &x, 1, Isa::Portable);
        for (found, single) in found.iter().zip(&single) {
            let [found, single] =
                [found, single].map(|bits| bits.iter().copied().map(f64::from_bits).collect::<Vec<_>>());
            assert!(is_near(&found, &single, 0.03), "{k:?}");
        }
        assert_eq!(found != single, can_use_amx(&k, Isa::best()), "{k:?}: AMX adds in another order");
    }
}

/// Returns the layer with `bf16` factors, and inputs whose weights are multiplied by `scale`.
fn with_bf16_factors(k: &Recurrent, sizes: LayerShape, scale: f64) -> (Recurrent, Vec<testing::TestArray>) {
    let layer = Recurrent { half_factors: Some(DType::BF16), lengths: false, ..*k };
    let scaled = |(i, (shape, values)): (usize, (Vec<usize>, Vec<f64>))| {
        let factor = if i == 1 { scale } else { 1.0 };
        let values: Vec<f64> = values.iter().map(|v| v * factor).collect();
        testing::TestArray::cast(&shape[..], TestLayout::Plain, DType::F32, &values)
    };
    (layer, inputs(&layer, sizes).into_iter().enumerate().map(scaled).collect())
}

#[test]
fn bf16_factors_round_the_factors_only() {
    for k in kernels().filter(|k| !k.lengths) {
        let sizes = [3, 5, 21, if k.projected { 13 } else { 21 }];
        let (layer, x) = with_bf16_factors(&k, sizes, 1.0);
        let values: Vec<Vec<f64>> = x.iter().map(testing::TestArray::reals).collect();
        let [states, cells] = naive(&layer, sizes, &values);
        let y = run_kernel(Isa::best(), &layer, &x.iter().collect::<Vec<_>>(), false).unwrap();
        assert!(is_near(&y[1].reals(), &states, 0.02), "{k:?}");
        assert!(k.cell != RnnMode::Lstm || is_near(&y[2].reals(), &cells, 0.02), "{k:?}");
        let unrounded =
            run_kernel(Isa::best(), &Recurrent { half_factors: None, ..layer }, &x.iter().collect::<Vec<_>>(), false);
        assert!(unrounded.unwrap()[1].reals() != y[1].reals(), "{k:?}: the factors must be rounded");
        // Only the factors of products are rounded to `bf16`, not the stored states.
        let is_bf16 = |v: &f64| pellucid_ir::bf16::from_f64(*v).to_f64() == *v;
        assert!(!y[1].reals().iter().all(is_bf16), "{k:?}");
        let grads = gradients(sizes, DType::F32);
        let back = |layer: &Recurrent| {
            let back = Recurrent { part: RecurrentPart::Gradient, ..*layer };
            run_kernel(Isa::best(), &back, &gradient_inputs(layer, &x, &y, &grads), false).unwrap()
        };
        let (found, single) = (back(&layer), back(&Recurrent { half_factors: None, ..layer }));
        for (found, single) in found.iter().zip(&single) {
            assert!(is_near(&found.reals(), &single.reals(), 0.03), "{k:?}");
        }
    }
}

/// Results have the same bits on every instruction set even if the products of weights and states are subnormal.
#[test]
fn subnormal_products_of_bf16_factors_are_not_replaced_by_zero() {
    for k in kernels().filter(|k| !k.lengths && k.cell == RnnMode::Relu) {
        let sizes = [2, 3, 20, 20];
        let (layer, mut x) = with_bf16_factors(&k, sizes, 2f64.powi(-125));
        for i in [0, 2] {
            let shape = x[i].layout.shape().clone();
            x[i] = testing::TestArray::cast(shape.clone(), TestLayout::Plain, DType::F32, &vec![0.0; shape.size()]);
        }
        let states = |isa| run_kernel(isa, &layer, &x.iter().collect::<Vec<_>>(), false).unwrap()[1].reals();
        let expected = states(Isa::Portable);
        let is_subnormal = |v: &f64| *v != 0.0 && v.abs() < f32::MIN_POSITIVE as f64;
        assert!(expected.iter().any(is_subnormal), "the case must have subnormal states");
        for &isa in Isa::available() {
            assert_eq!(states(isa), expected, "{isa:?}");
        }
    }
}

#[test]
fn check_rejects_mismatched_operands() {
    let k = kernel(RnnMode::Lstm, false, true, true);
    let sizes = [3, 2, 4, 3];
    let good = arrays(&k, sizes, DType::F32, TestLayout::Plain);
    let run =
        |k: &Recurrent, x: &[testing::TestArray]| run_kernel(Isa::best(), k, &x.iter().collect::<Vec<_>>(), false);
    assert!(run(&k, &good).is_ok());
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i] = testing::TestArray::of([1], TestLayout::Plain, &[1.0f32]);
        assert!(matches!(run(&k, &bad), Err(Error::ShapeMismatch { .. })), "input {i}");
        let (mut bad, dtype) = (good.clone(), if i < 6 { DType::F64 } else { DType::I32 });
        let shape = good[i].layout.shape().clone();
        bad[i] = testing::TestArray::cast(shape.clone(), TestLayout::Plain, dtype, &vec![0.0; shape.size()]);
        assert!(matches!(run(&k, &bad), Err(Error::DTypeMismatch { .. })), "input {i}");
    }
    let double = arrays(&k, sizes, DType::F64, TestLayout::Plain);
    for half in [DType::BF16, DType::F16] {
        let rounded = Recurrent { half_factors: Some(half), ..k };
        assert!(run(&rounded, &good).is_ok(), "{half}");
        assert!(matches!(run(&rounded, &double), Err(Error::DTypeMismatch { .. })), "{half}");
    }
    assert!(run(&Recurrent { half_factors: Some(DType::F32), ..k }, &good).is_err());
    let half_precision = arrays(&k, sizes, DType::F16, TestLayout::Plain);
    assert!(matches!(run(&k, &half_precision), Err(Error::DTypeMismatch { .. })));
    for length in [-1i64, 4] {
        let mut bad = good.clone();
        bad[6] = testing::TestArray::of([2], TestLayout::Plain, &[0, length]);
        assert!(matches!(run(&k, &bad), Err(Error::InvalidArgument { .. })), "length {length}");
    }
    assert!(run(&Recurrent { lengths: false, ..k }, &good).is_err());
    assert!(run(&Recurrent { cell: RnnMode::Gru, ..k }, &good).is_err(), "a GRU with a projection must be an error");
    let plain = kernel(RnnMode::Tanh, false, false, false);
    let x = arrays(&plain, [2, 2, 3, 3], DType::F32, TestLayout::Plain);
    let x: Vec<&testing::TestArray> = x.iter().collect();
    let states = testing::TestArray::new([3, 2, 3], DType::F32, TestLayout::Gaps);
    let gates = testing::TestArray::new([2, 2, 3], DType::F32, TestLayout::Plain);
    assert!(
        testing::run_kernel(Kernel::Recurrent(plain), &x, &[&gates, &states]).is_err(),
        "an output of states that is not contiguous must be an error"
    );
    let states = testing::TestArray::new([3, 2, 3], DType::F32, TestLayout::Plain);
    assert!(testing::run_kernel(Kernel::Recurrent(plain), &x, &[&gates, &states]).is_ok());
}
