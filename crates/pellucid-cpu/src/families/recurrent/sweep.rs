//! Sweeps of recurrent layers and their gradients over small sizes and over sizes near vector and panel lengths.

use super::tests::{
    LayerShape, arrays, gradient_inputs, gradients, inputs, is_near, kernels, naive, reals, run_kernel,
};
use super::*;
use crate::testing::{Choices, TestArray, TestLayout};
use crate::with_threads;
use pellucid_ir::kernel::RnnMode;

/// Compares all states with naive loops, and the gradient along a random direction with a difference quotient.
fn check_sizes(choices: &Choices, sizes: LayerShape) {
    let all: Vec<Recurrent> = kernels().filter(|k| !k.lengths).collect();
    let k = all[choices.below(all.len())];
    let [t, n, h, p] = if k.projected { sizes } else { [sizes[0], sizes[1], sizes[2], sizes[2]] };
    let (layout, threads) = (choices.of(&TestLayout::ALL), choices.threads());
    let isas: Vec<Isa> = Isa::available().to_vec();
    let isa = choices.of(&isas);
    let values: Vec<Vec<f64>> = inputs(&k, [t, n, h, p]).into_iter().map(|i| i.1).collect();
    let label = format!("{k:?} {:?} {layout:?} {isa:?} {threads} threads", [t, n, h, p]);
    let run = |k: &Recurrent, inputs: &[&TestArray]| {
        let inputs: Vec<TestArray> = inputs.iter().map(|&a| a.clone()).collect();
        with_threads(threads, || run_kernel(isa, k, &inputs.iter().collect::<Vec<_>>(), false).unwrap())
    };
    for (dtype, tolerance) in [(DType::F32, 5e-5), (DType::F64, 1e-12)] {
        let [states, cells] = naive(&k, [t, n, h, p], &values);
        let x = arrays(&k, [t, n, h, p], dtype, layout);
        let y = run(&k, &x.iter().collect::<Vec<_>>());
        assert!(is_near(&y[1].reals(), &states, tolerance), "{dtype} {label}");
        assert!(k.cell != RnnMode::Lstm || is_near(&y[2].reals(), &cells, tolerance), "{dtype} {label}");
        // The kernel computes the gradients of the gates and of the initial h and c. ReLU has no gradient at 0.
        if k.cell == RnnMode::Relu {
            continue;
        }
        let grads = gradients([t, n, h, p], dtype);
        let back = Recurrent { part: RecurrentPart::Gradient, ..k };
        let found = run(&back, &gradient_inputs(&k, &x, &y, &grads));
        let input_indices: &[usize] = if k.cell == RnnMode::Lstm { &[0, 3, 4] } else { &[0, 3] };
        let mut along: Vec<Vec<f64>> = input_indices.iter().map(|&i| reals(values[i].len(), 40 + i as u64)).collect();
        if k.cell == RnnMode::Gru {
            // The last block of the gates has no input contribution.
            along[0].iter_mut().enumerate().filter(|(i, _)| i / h % 4 == 3).for_each(|(_, a)| *a = 0.0);
        }
        let products = found.iter().zip(&along).flat_map(|(f, a)| f.reals().into_iter().zip(a)).map(|(f, a)| f * a);
        let slope: f64 = products.sum();
        let weights: Vec<Vec<f64>> = grads.iter().map(|g| g.reals()).collect();
        let loss_at = |step: f64| -> f64 {
            let mut values = values.clone();
            for (&i, along) in input_indices.iter().zip(&along) {
                values[i].iter_mut().zip(along).for_each(|(x, a)| *x += step * a);
            }
            let [states, cells] = naive(&k, [t, n, h, p], &values);
            let (first, last) = if k.reverse { (0, 0) } else { (1, t) };
            let mut sum: f64 = weights[0].iter().zip(&states[first * n * p..]).map(|(w, s)| w * s).sum();
            sum += weights[1].iter().zip(&states[last * n * p..]).map(|(w, s)| w * s).sum::<f64>();
            if k.cell == RnnMode::Lstm {
                sum += weights[2].iter().zip(&cells[last * n * h..]).map(|(w, s)| w * s).sum::<f64>();
            }
            sum
        };
        let difference = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
        let tolerance = if dtype == DType::F64 { 1e-6 } else { 2e-3 } * (1.0 + (n * h) as f64).sqrt();
        assert!((difference - slope).abs() <= tolerance * difference.abs().max(1.0), "{slope} {difference} {label}");
    }
}

#[test]
fn small_sizes_match_naive_loops_and_differences() {
    let choices = &Choices::new(101);
    for (batch, hidden) in (1..=20).flat_map(|n| (1..=20).map(move |h| (n, h))) {
        check_sizes(choices, [1 + choices.below(3), batch, hidden, 1 + choices.below(20)]);
    }
}

#[test]
fn sizes_near_vectors_and_panels_match_naive_loops_and_differences() {
    let choices = &Choices::new(102);
    for hidden in [31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 129] {
        for batch in [1, 2, 7, 15, 16, 17] {
            check_sizes(choices, [2, batch, hidden, choices.of(&[1, 15, 16, 17, 33])]);
        }
    }
    check_sizes(choices, [3, 64, 64, 64]);
    check_sizes(choices, [2, 1, 290, 300]);
}
