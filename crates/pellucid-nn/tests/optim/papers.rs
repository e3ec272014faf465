//! Optimizers that PyTorch does not have, against their papers' algorithms in plain `f64`.

use crate::{close, flat, gradient, parameters, set_gradients};
use pellucid_nn::optim::{Lamb, LambOptions, Lion, LionOptions, Optimizer};
use pellucid_tensor::{DType, Tensor};

/// Runs fifty steps of `update` (parameter, gradient, step) for each parameter.
fn by_hand(mut update: impl FnMut(usize, &mut Vec<f64>, &[f64], i32)) -> Vec<f64> {
    let mut values: Vec<Vec<f64>> = parameters(false, DType::F64).iter().map(|p| p.to_vec()).collect();
    for t in 1..=50 {
        for (i, p) in values.iter_mut().enumerate() {
            let g: Vec<f64> = gradient(&Tensor::new(p.clone(), [p.len()]), f64::from(t)).to_vec();
            update(i, p, &g, t);
        }
    }
    values.concat()
}

fn run(optimizer: &dyn Optimizer) -> Vec<f64> {
    for t in 1..=50 {
        set_gradients(optimizer, f64::from(t));
        optimizer.step();
    }
    flat(optimizer.parameters())
}

/// Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
#[test]
fn lion_matches_its_paper() {
    for options in [
        LionOptions { lr: 0.01, ..Default::default() },
        LionOptions { lr: 0.02, betas: (0.8, 0.95), weight_decay: 0.3, maximize: false },
        LionOptions { lr: 0.01, maximize: true, ..Default::default() },
    ] {
        let ((b1, b2), mut means) = (options.betas, [vec![0.0; 6], vec![0.0; 4]]);
        let sign = if options.maximize { -1.0 } else { 1.0 };
        let expected = by_hand(|i, p, g, _| {
            for (k, m) in means[i].iter_mut().enumerate() {
                let g = sign * g[k];
                let c = b1 * *m + (1.0 - b1) * g;
                p[k] -= options.lr * (c.signum() + options.weight_decay * p[k]);
                *m = b2 * *m + (1.0 - b2) * g;
            }
        });
        let found = run(&Lion::new(parameters(false, DType::F64), options).unwrap());
        close(&found, &expected, 1e-12, "lion");
    }
}

/// You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2 with φ(z) = z.
#[test]
fn lamb_matches_its_paper() {
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    for options in [
        LambOptions { lr: 0.05, ..Default::default() },
        LambOptions { lr: 0.02, betas: (0.8, 0.95), weight_decay: 0.3, eps: 1e-3, maximize: false },
        LambOptions { lr: 0.01, weight_decay: 0.0, maximize: true, ..Default::default() },
    ] {
        let ((b1, b2), mut m, mut v) = (options.betas, [vec![0.0; 6], vec![0.0; 4]], [vec![0.0; 6], vec![0.0; 4]]);
        let sign = if options.maximize { -1.0 } else { 1.0 };
        let expected = by_hand(|i, p, g, t| {
            let (m, v) = (&mut m[i], &mut v[i]);
            let r: Vec<f64> = (0..p.len())
                .map(|k| {
                    let g = sign * g[k];
                    m[k] = b1 * m[k] + (1.0 - b1) * g;
                    v[k] = b2 * v[k] + (1.0 - b2) * g * g;
                    let (m, v) = (m[k] / (1.0 - b1.powi(t)), v[k] / (1.0 - b2.powi(t)));
                    m / (v.sqrt() + options.eps) + options.weight_decay * p[k]
                })
                .collect();
            let ratio = norm(p) / norm(&r);
            p.iter_mut().zip(&r).for_each(|(p, r)| *p -= options.lr * ratio * r);
        });
        let found = run(&Lamb::new(parameters(false, DType::F64), options).unwrap());
        close(&found, &expected, 1e-11, "lamb");
    }
}

/// If a norm is 0 the ratio is 1, so that parameters that start at 0 can change.
#[test]
fn lamb_moves_from_zero() {
    let p = pellucid_nn::Parameter::new(Tensor::zeros([2], DType::F64));
    let optimizer = Lamb::new(vec![p.clone()], LambOptions { lr: 0.1, eps: 0.0, ..Default::default() }).unwrap();
    p.set_grad(Some(Tensor::from([2.0, -3.0])));
    optimizer.step();
    close(&p.to_vec::<f64>(), &[-0.1, 0.1], 1e-12, "from zero");
}
