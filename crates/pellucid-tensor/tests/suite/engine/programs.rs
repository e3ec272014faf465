//! Programs for tests of all execution modes. Each returns its results and has no other effect.

use pellucid_tensor::{DType, Generator, GradOptions, Tensor, grad, no_grad, ops};

/// A name, and a program that creates all its tensors.
pub type Program = (&'static str, fn() -> Vec<Tensor>);

/// Returns the same elements in every run.
pub fn wave<const N: usize>(shape: [usize; N]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| (0.7 + 1.9 * i as f32).sin()).collect();
    Tensor::new(data, shape)
}

pub const ALL: [Program; 13] = [
    ("elementwise", || vec![(wave([3, 4]) * 2.0 + 1.0).tanh() / (wave([4]).exp() + 1e-3)]),
    ("views and reductions", || {
        let x = wave([4, 6]);
        vec![x.t().sum(0), x.i((.., 1..4)).mean(1), x.flip(1).max(..), x.reshape([2, 12]).argmax(1)]
    }),
    ("products", || {
        let (a, b) = (wave([5, 7]), wave([7, 3]));
        vec![a.matmul(&b), a.t().matmul(&a), wave([2, 5, 7]).matmul(&b)]
    }),
    ("rows", || {
        let x = wave([3, 9]);
        vec![x.softmax(-1), x.layer_norm(9, None, None, 1e-5), x.logsumexp(0), x.var(1)]
    }),
    ("indices and order", || {
        let x = wave([6]);
        let (values, positions) = x.sort(0, true);
        vec![x.index_select(0, &positions), values, x.cumsum(0), x.take_along_axis(&positions, 0)]
    }),
    ("in place", || {
        let x = wave([2, 3]);
        let view = x.i((.., 0));
        let before = &x * 1.0;
        x.set((.., 1), 5.0);
        let between = x.sum(..);
        x.copy_(&(&x + 1.0));
        x.set((0, 0..2), x.i((1, 1..3)));
        vec![before, between, view * 1.0, x]
    }),
    ("backward", || {
        let (x, w) = (wave([4, 3]), wave([3, 2]).requires_grad_(true));
        let loss = x.matmul(&w).tanh().square().mean(..);
        loss.backward();
        vec![loss, w.grad().unwrap()]
    }),
    ("gradients add up", || {
        let w = wave([3]).requires_grad_(true);
        w.set_grad(Some(Tensor::full([3], 0.5, DType::F32)));
        (&w * &w).backward();
        w.sin().backward();
        vec![w.grad().unwrap()]
    }),
    ("a tensor used many times", || {
        let mut gradients = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let x = wave([3, 40]).to_dtype(dtype).requires_grad_(true);
            let row = wave([40]).requires_grad_(true);
            let inner = (&x + &x * 0.044715 * &x * &x) * 0.797885;
            let gelu = &x * 0.5 * (inner.tanh() + 1.0);
            let wide = (&x * &row).exp() - &x / (&row * &row + 2.0) + x.where_(&x.gt(0.0), &row);
            let turned = (x.t() * (&x * &x).t()).t() + x.softmax(1);
            (gelu + wide + turned).backward();
            gradients.extend([x.grad().unwrap(), row.grad().unwrap()]);
        }
        gradients
    }),
    ("a second derivative", || {
        let x = wave([5]).requires_grad_(true);
        let first =
            grad(&[&x.softmax(0).square()], &[&x], GradOptions { create_graph: true, ..Default::default() }).unwrap();
        first[0].square().backward();
        vec![first[0].detach(), x.grad().unwrap()]
    }),
    ("training", || {
        let (x, w) = (wave([8, 3]), wave([3, 1]).requires_grad_(true));
        for _ in 0..4 {
            w.zero_grad();
            x.matmul(&w).square().mean(..).backward();
            let _off = no_grad();
            w.copy_(&(&w - w.grad().unwrap() * 0.1));
        }
        vec![w.detach()]
    }),
    ("random draws", || {
        let g = Generator::new(9);
        let first = ops::rand_with([5], DType::F32, &g).unwrap();
        ops::randn_with([70], DType::F32, &g).unwrap();
        let second = ops::randn_with([5], DType::F64, &g).unwrap();
        vec![first, second, g.state().clone()]
    }),
    ("dtypes", || {
        let x = wave([9]) * 10.0;
        vec![
            x.to_dtype(DType::I8),
            x.to_dtype(DType::BF16).exp(),
            x.gt(0.0).to_dtype(DType::F64),
            x.to_dtype(DType::I64) % 3,
        ]
    }),
];
