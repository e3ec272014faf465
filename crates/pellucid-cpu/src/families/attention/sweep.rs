//! Attention and its gradient over all small sizes, and those around vectors and blocks.

use super::tests::{arrays, back, incoming, kernels, naive, near, reals, run_at, sizes, values};
use super::*;
use crate::testing::{Choices, TestArray, TestLayout};
use crate::with_threads;
use pellucid_ir::DType;

/// The result against loops, and the gradient along a random direction against a difference.
fn check(choices: &Choices, size: [usize; 7]) {
    let all: Vec<_> = kernels().collect();
    let (k, mask) = all[choices.below(all.len())];
    let (lie, threads) = (choices.of(&TestLayout::ALL), choices.threads());
    let isas: Vec<Isa> = Isa::available().to_vec();
    let isa = choices.of(&isas);
    let s = sizes(size);
    let x = values(&s, mask);
    let [o, logs] = naive(&k, &s, &x);
    let what = format!("{k:?} {size:?} {mask:?} {lie:?} {isa:?} {threads} threads");
    let refs = |all: &[TestArray]| all.to_vec();
    let run = |k: &Attention, inputs: Vec<TestArray>| {
        with_threads(threads, || run_at(isa, k, &inputs.iter().collect::<Vec<_>>()).unwrap())
    };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-12)] {
        let inputs = arrays(&s, &x, mask, dtype, lie);
        let y = run(&k, refs(&inputs));
        assert!(near(&y[0].reals(), &o, tolerance), "{dtype} {what}");
        assert!(near(&y[1].reals(), &logs, tolerance), "{dtype} {what}");
        let gradient = Attention { part: AttentionPart::Gradient, ..k };
        let g = incoming(&s, dtype, lie);
        let found = run(&gradient, back(&inputs, &g, &y).into_iter().cloned().collect());
        let along: Vec<Vec<f64>> = (0..3).map(|i| reals(x[i].len(), 20 + i as u64)).collect();
        let products = found.iter().zip(&along).flat_map(|(f, a)| f.reals().into_iter().zip(a)).map(|(f, a)| f * a);
        let slope: f64 = products.sum();
        let at = |by: f64| -> f64 {
            let mut x = x.clone();
            x.iter_mut().zip(&along).for_each(|(x, a)| x.iter_mut().zip(a).for_each(|(x, a)| *x += by * a));
            naive(&k, &s, &x)[0].iter().zip(&g.reals()).map(|(o, w)| o * w).sum()
        };
        let difference = (at(1e-6) - at(-1e-6)) / 2e-6;
        let tolerance = if dtype == DType::F64 { 1e-6 } else { 1e-3 } * (1.0 + o.len() as f64).sqrt();
        assert!((difference - slope).abs() <= tolerance * difference.abs().max(1.0), "{slope} {difference} {what}");
    }
}

#[test]
fn small_sizes() {
    let choices = &Choices::new(91);
    for (queries, keys) in (1..=20).flat_map(|l| (1..=20).map(move |s| (l, s))) {
        let [width, depth] = [(); 2].map(|()| 1 + choices.below(20));
        let [groups, each] = [(); 2].map(|()| 1 + choices.below(2));
        check(choices, [1 + choices.below(2), groups * each, groups, queries, keys, width, depth]);
    }
}

#[test]
fn sizes_around_vectors_and_blocks() {
    let choices = &Choices::new(92);
    for queries in [31, 32, 33, 64, 65, 127, 128, 130] {
        for keys in [4, 7, 8, 11, 15, 16, 17, 31, 32, 33, 65] {
            let [width, depth] = [(); 2].map(|()| choices.of(&[1, 5, 8, 15, 16, 17, 33]));
            check(choices, [1, 2, 1 + choices.below(2), queries, keys, width, depth]);
        }
    }
}
