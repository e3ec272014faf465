//! Sweeps of attention and its gradient over small sizes and over sizes near vector and block lengths.

use super::tests::{
    arrays, gradient_inputs, is_near, kernels, naive, output_gradient, reals, run_kernel, sizes, values,
};
use super::*;
use crate::testing::{Choices, TestArray, TestLayout};
use crate::with_threads;
use pellucid_ir::DType;

/// Compares the output with naive loops, and the gradient along a random direction with a difference quotient.
fn check_sizes(choices: &Choices, size: [usize; 7]) {
    let all: Vec<_> = kernels().collect();
    let (k, mask) = all[choices.below(all.len())];
    let (layout, threads) = (choices.of(&TestLayout::ALL), choices.threads());
    let isas: Vec<Isa> = Isa::available().to_vec();
    let isa = choices.of(&isas);
    let s = sizes(size);
    let x = values(&s, mask);
    let [o, logs] = naive(&k, &s, &x);
    let label = format!("{k:?} {size:?} {mask:?} {layout:?} {isa:?} {threads} threads");
    let run = |k: &Attention, inputs: Vec<TestArray>| {
        with_threads(threads, || run_kernel(isa, k, &inputs.iter().collect::<Vec<_>>()).unwrap())
    };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-12)] {
        let inputs = arrays(&s, &x, mask, dtype, layout);
        let y = run(&k, inputs.clone());
        assert!(is_near(&y[0].reals(), &o, tolerance), "{dtype} {label}");
        assert!(is_near(&y[1].reals(), &logs, tolerance), "{dtype} {label}");
        let gradient = Attention { part: AttentionPart::Gradient, ..k };
        let g = output_gradient(&s, dtype, layout);
        let found = run(&gradient, gradient_inputs(&inputs, &g, &y).into_iter().cloned().collect());
        let along: Vec<Vec<f64>> = (0..3).map(|i| reals(x[i].len(), 20 + i as u64)).collect();
        let products = found.iter().zip(&along).flat_map(|(f, a)| f.reals().into_iter().zip(a)).map(|(f, a)| f * a);
        let slope: f64 = products.sum();
        let loss_at = |step: f64| -> f64 {
            let mut x = x.clone();
            x.iter_mut().zip(&along).for_each(|(x, a)| x.iter_mut().zip(a).for_each(|(x, a)| *x += step * a));
            naive(&k, &s, &x)[0].iter().zip(&g.reals()).map(|(o, w)| o * w).sum()
        };
        let difference = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
        let tolerance = if dtype == DType::F64 { 1e-6 } else { 1e-3 } * (1.0 + o.len() as f64).sqrt();
        assert!((difference - slope).abs() <= tolerance * difference.abs().max(1.0), "{slope} {difference} {label}");
    }
}

#[test]
fn small_sizes_match_naive_loops_and_differences() {
    let choices = &Choices::new(91);
    for (queries, keys) in (1..=20).flat_map(|l| (1..=20).map(move |s| (l, s))) {
        let [width, depth] = [(); 2].map(|()| 1 + choices.below(20));
        let [groups, each] = [(); 2].map(|()| 1 + choices.below(2));
        check_sizes(choices, [1 + choices.below(2), groups * each, groups, queries, keys, width, depth]);
    }
}

#[test]
fn sizes_near_vectors_and_blocks_match_naive_loops_and_differences() {
    let choices = &Choices::new(92);
    for queries in [31, 32, 33, 64, 65, 127, 128, 130] {
        for keys in [4, 7, 8, 11, 15, 16, 17, 31, 32, 33, 65] {
            let [width, depth] = [(); 2].map(|()| choices.of(&[1, 5, 8, 15, 16, 17, 33]));
            check_sizes(choices, [1, 2, 1 + choices.below(2), queries, keys, width, depth]);
        }
    }
}
