//! Optimizers against the algorithms of their papers in plain `f64`: those that PyTorch does not have, Adafactor and
//! Muon. Every option, several shapes, and all precisions are compared.

use crate::{close, flat, gradient, set_gradients};
use pellucid_nn::Parameter;
use pellucid_nn::optim::{
    AdafactorOptions, Lamb, LambOptions, LionOptions, Muon, MuonLr, MuonOptions, Optimizer, Rule, RuleOptimizer,
};
use pellucid_tensor::{DType, Tensor};

/// The optimizers of this file, with their tests.
pub(crate) const PAPERS: [(&str, fn()); 4] = [
    ("Lion", lion_matches_its_paper),
    ("Lamb", lamb_matches_its_paper),
    ("Adafactor", adafactor_matches_its_paper),
    ("Muon", muon_matches_its_paper),
];

/// The reference of one parameter: it updates the parameter by its gradient in step t, from 1.
type Reference = Box<dyn FnMut(&mut [f64], &[f64], i32)>;

/// Returns a tensor of this shape with equally spaced values from −1 to 1.5.
fn start(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::linspace(-1.0, 1.5, shape.iter().product(), DType::F64).reshape(shape).to_dtype(dtype)
}

/// Compares the optimizer with references, one for each parameter, in double, single and half precision. In half
/// precision the reference holds the unrounded parameter, as the master copy does.
#[track_caller]
fn compare<R: Rule + Copy>(options: R, shapes: &[&[usize]], reference: impl Fn(&[usize]) -> Reference) {
    for (dtype, steps, tolerance) in
        [(DType::F64, 50, 1e-10), (DType::F32, 10, 2e-4), (DType::BF16, 10, 2e-2), (DType::F16, 10, 5e-3)]
    {
        let own: Vec<Parameter> = shapes.iter().map(|shape| Parameter::new(start(shape, dtype))).collect();
        let optimizer = RuleOptimizer::new(own, options);
        let mut expected: Vec<Vec<f64>> = optimizer.parameters().iter().map(|p| p.to_vec()).collect();
        let mut references: Vec<Reference> = shapes.iter().map(|shape| reference(shape)).collect();
        for t in 1..=steps {
            for ((p, update), shape) in expected.iter_mut().zip(&mut references).zip(shapes) {
                let rounded = Tensor::new(p.clone(), *shape).to_dtype(dtype);
                let g: Vec<f64> = gradient(&rounded, f64::from(t)).to_vec();
                update(p, &g, t);
            }
            set_gradients(&optimizer, f64::from(t));
            optimizer.step();
        }
        close(&flat(&optimizer.parameters()), &expected.concat(), tolerance, &format!("{options:?} in {dtype}"));
    }
}

/// Returns −1 to maximize, else 1.
fn sign(maximize: bool) -> f64 {
    if maximize { -1.0 } else { 1.0 }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn rms(x: &[f64]) -> f64 {
    norm(x) / (x.len() as f64).sqrt()
}

/// Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
#[test]
pub(crate) fn lion_matches_its_paper() {
    for options in [
        LionOptions { lr: 0.01, ..Default::default() },
        LionOptions { lr: 0.02, betas: (0.8, 0.95), weight_decay: 0.3, maximize: false },
        LionOptions { lr: 0.01, maximize: true, ..Default::default() },
    ] {
        compare(options, &[&[3, 2], &[4], &[]], |shape| {
            let (b1, b2) = options.betas;
            let mut m = vec![0.0; shape.iter().product()];
            Box::new(move |p, g, _| {
                for (k, m) in m.iter_mut().enumerate() {
                    let g = sign(options.maximize) * g[k];
                    let c = b1 * *m + (1.0 - b1) * g;
                    p[k] -= options.lr * (c.signum() + options.weight_decay * p[k]);
                    *m = b2 * *m + (1.0 - b2) * g;
                }
            })
        });
    }
}

/// You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2 with φ(z) = z.
#[test]
pub(crate) fn lamb_matches_its_paper() {
    for options in [
        LambOptions { lr: 0.05, ..Default::default() },
        LambOptions { lr: 0.02, betas: (0.8, 0.95), weight_decay: 0.3, eps: 1e-3, maximize: false },
        LambOptions { lr: 0.01, weight_decay: 0.0, maximize: true, ..Default::default() },
    ] {
        compare(options, &[&[3, 2], &[4], &[]], |shape| {
            let (b1, b2) = options.betas;
            let n = shape.iter().product();
            let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
            Box::new(move |p, g, t| {
                let direction = |k: usize| {
                    let g = sign(options.maximize) * g[k];
                    m[k] = b1 * m[k] + (1.0 - b1) * g;
                    v[k] = b2 * v[k] + (1.0 - b2) * g * g;
                    let (m, v) = (m[k] / (1.0 - b1.powi(t)), v[k] / (1.0 - b2.powi(t)));
                    m / (v.sqrt() + options.eps) + options.weight_decay * p[k]
                };
                let r: Vec<f64> = (0..n).map(direction).collect();
                let ratio = norm(p) / norm(&r);
                p.iter_mut().zip(&r).for_each(|(p, r)| *p -= options.lr * ratio * r);
            })
        });
    }
}

/// If a norm is 0 the ratio is 1, so parameters that start at 0 can change.
#[test]
fn lamb_moves_from_zero() {
    let p = Parameter::new(Tensor::zeros([2], DType::F64));
    let optimizer = Lamb::new(vec![p.clone()], LambOptions { lr: 0.1, eps: 0.0, ..Default::default() });
    p.set_grad(Some(Tensor::from([2.0, -3.0])));
    optimizer.step();
    close(&p.to_vec::<f64>(), &[-0.1, 0.1], 1e-12, "from zero");
}

/// The second moments of Adafactor: factored for a parameter of at least two axes, otherwise unfactored.
struct SecondMoments {
    rows: usize,
    columns: usize,
    /// The running mean of squares for each row of each matrix.
    by_row: Vec<f64>,
    /// The running mean of squares for each column of each matrix.
    by_column: Vec<f64>,
    is_factored: bool,
}

impl SecondMoments {
    fn new(shape: &[usize]) -> SecondMoments {
        let is_factored = shape.len() >= 2;
        let count: usize = shape.iter().product();
        let [rows, columns] = if is_factored { [shape[shape.len() - 2], shape[shape.len() - 1]] } else { [count, 1] };
        let matrices = count / (rows * columns);
        SecondMoments {
            rows,
            columns,
            by_row: vec![0.0; matrices * rows],
            by_column: vec![0.0; matrices * columns],
            is_factored,
        }
    }

    /// Updates the means by a gradient, with the weight `rest` of the new squares, and returns v̂.
    fn update(&mut self, g: &[f64], rest: f64, eps: f64) -> Vec<f64> {
        let (rows, columns) = (self.rows, self.columns);
        let mean = |values: &mut dyn Iterator<Item = f64>, n: usize| values.map(|g| g * g).sum::<f64>() / n as f64;
        for (i, r) in self.by_row.iter_mut().enumerate() {
            *r += rest * (mean(&mut g[i * columns..(i + 1) * columns].iter().copied(), columns) - *r);
        }
        for (j, c) in self.by_column.iter_mut().enumerate() {
            let first = j / columns * rows * columns + j % columns;
            *c += rest * (mean(&mut g[first..].iter().copied().step_by(columns).take(rows), rows) - *c);
        }
        let estimate = |k: usize| {
            let matrix = k / (rows * columns);
            let of_matrix = &self.by_row[matrix * rows..(matrix + 1) * rows];
            let row = self.by_row[k / columns];
            let mean = of_matrix.iter().sum::<f64>() / rows as f64;
            let column = self.by_column[matrix * columns + k % columns];
            if self.is_factored { row * column / mean.max(eps) } else { row }
        };
        (0..g.len()).map(estimate).collect()
    }
}

/// Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", algorithms 4 and 5, with the
/// learning rate and weight decay of PyTorch.
#[test]
pub(crate) fn adafactor_matches_its_paper() {
    for options in [
        AdafactorOptions { eps: (Some(1e-10), 1e-3), ..Default::default() },
        AdafactorOptions { lr: 0.1, weight_decay: 0.1, d: 2.0, beta2_decay: -0.5, ..Default::default() },
        AdafactorOptions { lr: 0.4, eps: (Some(0.3), 0.9), ..Default::default() },
        AdafactorOptions { maximize: true, ..Default::default() },
    ] {
        compare(options, &[&[3, 2], &[4], &[2, 3, 4], &[5, 1], &[]], |shape| {
            let AdafactorOptions { lr, beta2_decay, eps: (eps1, eps2), d, weight_decay, maximize } = options;
            let eps1 = eps1.unwrap_or(0.0);
            let mut moments = SecondMoments::new(shape);
            Box::new(move |p, g, t| {
                let t = f64::from(t);
                let g: Vec<f64> = g.iter().map(|g| sign(maximize) * g).collect();
                let v = moments.update(&g, t.powf(beta2_decay), eps1);
                let u: Vec<f64> = g.iter().zip(&v).map(|(g, v)| g / v.max(eps1 * eps1).sqrt()).collect();
                let alpha = rms(p).max(eps2) * lr.min(t.sqrt().recip());
                let clipped = alpha / (rms(&u) / d).max(1.0);
                p.iter_mut().zip(&u).for_each(|(p, u)| *p = (1.0 - lr * weight_decay) * *p - clipped * u);
            })
        });
    }
}

/// A matrix [rows, columns] in plain `f64`.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Matrix {
        let values = (0..rows * columns).map(|k| value(k / columns, k % columns)).collect();
        Matrix { rows, columns, values }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    fn transposed(&self) -> Matrix {
        Matrix::new(self.columns, self.rows, |i, j| self.at(j, i))
    }

    fn times(&self, other: &Matrix) -> Matrix {
        Matrix::new(self.rows, other.columns, |i, j| (0..self.columns).map(|k| self.at(i, k) * other.at(k, j)).sum())
    }

    /// Returns a·self + b·other.
    fn mixed(&self, a: f64, b: f64, other: &Matrix) -> Matrix {
        Matrix::new(self.rows, self.columns, |i, j| a * self.at(i, j) + b * other.at(i, j))
    }
}

/// Returns the reference of Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"), with
/// the weight decay and the factors of Liu et al. 2025.
fn muon(options: MuonOptions, shape: &[usize]) -> Reference {
    let &[rows, columns] = shape else { panic!("a matrix") };
    let (a, b, c) = options.ns_coefficients;
    let ratio = rows as f64 / columns as f64;
    let factor = match options.adjust_lr {
        MuonLr::Original => ratio.max(1.0).sqrt(),
        MuonLr::MatchRmsAdamW => 0.2 * (rows.max(columns) as f64).sqrt(),
        MuonLr::SpectralUnclamped => ratio.sqrt(),
    };
    let mut velocity = vec![0.0; rows * columns];
    Box::new(move |p, g, _| {
        let mu = options.momentum;
        velocity.iter_mut().zip(g).for_each(|(v, g)| *v = mu * *v + (1.0 - mu) * g);
        let ahead = |(v, g): (&f64, &f64)| if options.nesterov { mu * v + (1.0 - mu) * g } else { *v };
        let u: Vec<f64> = velocity.iter().zip(g).map(ahead).collect();
        let scale = norm(&u).max(options.eps);
        let mut x = Matrix::new(rows, columns, |i, j| u[i * columns + j] / scale);
        if rows > columns {
            x = x.transposed();
        }
        for _ in 0..options.ns_steps {
            let gram = x.times(&x.transposed());
            x = x.mixed(a, 1.0, &gram.mixed(b, c, &gram.times(&gram)).times(&x));
        }
        if rows > columns {
            x = x.transposed();
        }
        let (lr, decay) = (options.lr, options.weight_decay);
        p.iter_mut().zip(&x.values).for_each(|(p, x)| *p = (1.0 - lr * decay) * *p - lr * factor * x);
    })
}

#[test]
pub(crate) fn muon_matches_its_paper() {
    let plain = MuonOptions { lr: 0.02, ns_dtype: None, ..Default::default() };
    for options in [
        plain,
        MuonOptions { nesterov: false, weight_decay: 0.0, ..plain },
        MuonOptions { adjust_lr: MuonLr::MatchRmsAdamW, momentum: 0.8, ns_steps: 3, ..plain },
        MuonOptions { adjust_lr: MuonLr::SpectralUnclamped, ns_coefficients: (2.0, -1.5, 0.5), eps: 0.7, ..plain },
    ] {
        compare(options, &[&[3, 2], &[1, 4], &[4, 4], &[3, 5]], |shape| muon(options, shape));
    }
}

/// The iteration in `bf16` differs from that in `f64` by rounding only.
#[test]
fn muon_in_half_precision_is_near_its_paper() {
    let options = MuonOptions { lr: 0.02, ..Default::default() };
    assert_eq!(options.ns_dtype, Some(DType::BF16));
    let shape = [3, 5];
    let optimizer = Muon::new(vec![Parameter::new(start(&shape, DType::F64))], options);
    let (mut expected, mut update) = (flat(&optimizer.parameters()), muon(options, &shape));
    for t in 1..=10 {
        let g: Vec<f64> = gradient(&optimizer.parameters()[0].detach(), f64::from(t)).to_vec();
        update(&mut expected, &g, t);
        set_gradients(&optimizer, f64::from(t));
        optimizer.step();
    }
    close(&flat(&optimizer.parameters()), &expected, 5e-3, "bf16");
}
