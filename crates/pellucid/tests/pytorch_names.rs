//! The calls of PyTorch in `docs/pytorch.md` and their forms in Pellucid.
//!
//! Every form is compiled and run, so a row cannot name a call that does not exist. A test compares these rows with the
//! tables of the page.

// A group declares variables that not all of its rows use. A row may have any type, including `()`.
#![allow(unused, clippy::all)]

mod scratch;

use scratch::Scratch;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Defines `ROWS`, `IMPORTS`, and a test for each group. The test runs the declarations of the group, then each row,
/// with the prelude and the imports of the group alone.
macro_rules! rows {
    ($($group:ident [$($imports:tt)*] { $($setup:tt)* } $($torch:literal => [$($form:tt)*];)*)*) => {
        const ROWS: &[(&str, &str)] = &[$($(($torch, stringify!($($form)*)),)*)*];

        /// The imports of each group in addition to the prelude.
        const IMPORTS: &[&str] = &[$(stringify!($($imports)*)),*];

        $(mod $group {
            use super::Scratch;
            use pellucid::prelude::*;
            $($imports)*

            #[test]
            fn $group() -> Result<()> {
                $($setup)*
                $({ $($form)*; })*
                Ok(())
            }
        })*
    };
}

rows! {
    creation [use pellucid::Generator;] {
        let (x, p) = (Tensor::randn([2, 3], DType::F32), Tensor::full([3], 0.5, DType::F32));
        let (data, weights) = (vec![0.0f32; 6], Tensor::from([0.2f32, 0.8]));
    }
    "torch.tensor([[1., 2.], [3., 4.]])" => [Tensor::from([[1.0f32, 2.0], [3.0, 4.0]])];
    "torch.tensor(rows)" => [Tensor::from(vec![vec![1.0f32, 2.0], vec![3.0, 4.0]])];
    "torch.tensor(data).reshape(2, 3)" => [Tensor::new(&data, [2, 3])];
    "torch.tensor(3.)" => [Tensor::scalar(3.0, DType::F32)];
    "torch.zeros(2, 3)" => [Tensor::zeros([2, 3], DType::F32)];
    "torch.ones(2, 3)" => [Tensor::ones([2, 3], DType::F32)];
    "torch.full((2, 3), 7.)" => [Tensor::full([2, 3], 7.0, DType::F32)];
    "torch.empty(2, 3)" => [Tensor::zeros([2, 3], DType::F32)];
    "torch.zeros_like(x)" => [ops::zeros_like(&x)?];
    "torch.ones_like(x)" => [ops::ones_like(&x)?];
    "torch.full_like(x, 7.)" => [ops::full_like(&x, 7.0)?];
    "torch.arange(10)" => [Tensor::arange(0i64, 10, 1)];
    "torch.arange(0, 1, 0.1)" => [Tensor::arange(0.0f32, 1.0, 0.1)];
    "torch.linspace(0, 1, 5)" => [Tensor::linspace(0.0, 1.0, 5, DType::F32)];
    "torch.eye(3)" => [Tensor::eye(3, DType::F32)];
    "torch.tril_indices(3, 3)" => [ops::tril_indices(3, 3, 0)?];
    "numpy.tri(3)" => [ops::tri(3, 3, 0, DType::F32)?];
    "numpy.diag_indices(3)" => [ops::diag_indices(3, 2)?];
    "torch.rand(2, 3)" => [Tensor::rand([2, 3], DType::F32)];
    "torch.randn(2, 3)" => [Tensor::randn([2, 3], DType::F32)];
    "torch.randn_like(x)" => [ops::randn_like(&x)?];
    "torch.rand_like(x)" => [ops::rand_like(&x)?];
    "torch.randint_like(x, 0, 10)" => [x.randint_like(0, 10)];
    "torch.randint(0, 10, (2, 3))" => [Tensor::randint(0, 10, [2, 3])];
    "torch.randperm(10)" => [ops::randperm(10)?];
    "torch.bernoulli(p)" => [p.bernoulli()];
    "torch.empty(3).exponential_()" => [-(-Tensor::rand([3], DType::F32)).log1p()];
    "torch.multinomial(weights, 5, replacement=True)" => [weights.multinomial(5, true)];
    "torch.manual_seed(0)" => [manual_seed(0)];
    "torch.rand(3, generator=torch.Generator().manual_seed(0))" => [ops::rand_with([3], DType::F32, &Generator::new(0))?];
    "generator.set_state(state)" => [Generator::new(0).set_state(Generator::new(1).state())?];

    reads [] {
        let x = Tensor::randn([2, 3], DType::F32);
        let (loss, y) = (x.sum(..), Tensor::zeros([2, 3], DType::F64));
    }
    "x.shape" => [x.shape().dims()];
    "x.size(0)" => [x.shape()[0]];
    "x.ndim" => [x.rank()];
    "x.numel()" => [x.numel()];
    "x.nbytes" => [x.nbytes()];
    "x.dtype" => [x.dtype()];
    "x.device" => [x.device()];
    "loss.item()" => [loss.item::<f32>()];
    "x.tolist()" => [x.to_vec2::<f32>()];
    "print(x)" => [println!("{x}")];
    "print(f'{x:.2f}')" => [println!("{x:.2}")];
    "x.double()" => [x.to_dtype(DType::F64)];
    "x.type_as(y)" => [x.to_dtype(y.dtype())];
    "torch.result_type(x, y)" => [x.dtype().promote(y.dtype())];
    "torch.finfo(x.dtype).eps" => [x.dtype().epsilon()];
    "x.is_floating_point()" => [x.dtype().is_float()];
    "x.clone()" => [x.copy()];
    "x.contiguous()" => [x.contiguous()];
    "x.is_contiguous()" => [x.is_contiguous()];
    "x.detach()" => [x.detach()];
    "y.copy_(x)" => [y.copy_(&x)];
    "x is y" => [x.id() == y.id()];
    "x.data_ptr() == y.data_ptr()" => [x.storage_id() == y.storage_id()];

    indexing [] {
        let (x, y) = (Tensor::randn([4, 6], DType::F32), Tensor::zeros([4, 6], DType::F32));
        let (mask, rows) = (x.gt(0.0), Tensor::from([3i64, 0]));
        let (index, source) = (Tensor::zeros([4, 1], DType::I64), Tensor::ones([4, 1], DType::F32));
        let labels = Tensor::from([1i64, 0, 2]);
    }
    "x[0]" => [x.i(0)];
    "x[:, 1]" => [x.i((.., 1))];
    "x[1:3]" => [x.i(1..3)];
    "x[:, -1]" => [x.i((.., -1))];
    "for row in x:" => [for row in &x {}];
    "x[::2]" => [x.i(slice(0, None, 2))];
    "x[..., 0]" => [x.i((Ellipsis, 0))];
    "x[:, None]" => [x.i((.., NewAxis))];
    "x[rows]" => [x.i(&rows)];
    "x[mask]" => [x.i(&mask)];
    "x[x > 0]" => [x.i(x.gt(0.0))];
    "y[0] = 1" => [y.set(0, 1.0)];
    "y[:, 1:3] = x[:, 1:3]" => [y.set((.., 1..3), x.i((.., 1..3)))];
    "y[mask] = 0" => [y.set(&mask, 0.0)];
    "torch.index_select(x, 0, rows)" => [x.index_select(0, &rows)];
    "torch.gather(x, 1, index)" => [x.take_along_axis(&index, 1)];
    "x.scatter(1, index, source)" => [x.scatter(1, &index, &source)];
    "x.scatter_add(1, index, source)" => [x.scatter_add(1, &index, &source)];
    "x.scatter_reduce(1, index, source, 'amax')" => [x.scatter_reduce(1, &index, &source, ops::ScatterReduceOp::Max, true)];
    "x.index_add(1, index[0], source)" => [x.index_add(1, &index.i(0), &source, 1.0)];
    "x.masked_fill(mask, 0)" => [x.masked_fill(&mask, 0.0)];
    "x.masked_select(mask)" => [x.masked_select(&mask)];
    "torch.where(mask, x, y)" => [ops::where_(&mask, &x, &y)?];
    "numpy.piecewise(x, [x < 0], [f, g])" => [ops::where_(&x.lt(0.0), &x.neg(), &x.square())?];
    "torch.nonzero(x, as_tuple=True)" => [x.nonzero()];
    "numpy.flatnonzero(x)" => [x.flatnonzero()];
    "numpy.fill_diagonal(y, 5)" => [y.diagonal(0, 0, 1).set(.., 5.0)];
    "x[numpy.ix_([0, 2], [1, 3])]" => [x.i([0, 2]).i((.., [1, 3]))];
    "numpy.delete(x, 1, axis=0)" => [ops::concatenate(&[x.i(..1), x.i(2..)], 0)?];
    "x.narrow(1, 0, 2)" => [x.narrow(1, 0, 2)];
    "F.one_hot(labels, 3)" => [labels.one_hot(3)];

    shapes [] {
        let (x, y) = (Tensor::randn([2, 3, 4], DType::F32), Tensor::randn([2, 3, 4], DType::F32));
        let (row, matrix) = (Tensor::randn([1, 4], DType::F32), Tensor::randn([3, 4], DType::F32));
    }
    "x.reshape(2, -1)" => [x.reshape([2, -1])];
    "x.view(6, 4)" => [x.reshape([6, 4])];
    "x.flatten(1)" => [x.flatten(1, -1)];
    "x.unflatten(2, (2, 2))" => [x.unflatten(2, [2, 2])];
    "row.squeeze(0)" => [row.squeeze(0)];
    "row.squeeze()" => [row.squeeze(..)];
    "x.unsqueeze(-1)" => [x.unsqueeze(-1)];
    "x.permute(2, 0, 1)" => [x.permute((2, 0, 1))];
    "x.transpose(1, 2)" => [x.transpose(1, 2)];
    "matrix.T" => [matrix.t()];
    "x.mT" => [x.transpose(-1, -2)];
    "x.movedim(0, 2)" => [x.movedim(0, 2)];
    "row.expand(3, -1)" => [row.expand([3, -1])];
    "torch.broadcast_to(row, (3, 4))" => [row.broadcast_to([3, 4])];
    "torch.broadcast_tensors(x, row)" => [ops::broadcast_tensors(&[&x, &row])?];
    "torch.cat([x, y], dim=1)" => [ops::concatenate(&[&x, &y], 1)?];
    "torch.stack([x, y])" => [ops::stack(&[&x, &y], 0)?];
    "torch.column_stack([matrix, matrix])" => [ops::column_stack(&[&matrix, &matrix])?];
    "torch.block_diag(matrix, matrix)" => [ops::block_diag(&[&matrix, &matrix])?];
    "torch.atleast_2d(row)" => [row.atleast_2d()];
    "torch.cartesian_prod(u, v)" => [ops::cartesian_prod(&[&row.i(0), &row.i(0)])?];
    "torch.combinations(v)" => [row.i(0).combinations(2, false)];
    "x.split([1, 2], dim=1)" => [x.split([1, 2], 1)];
    "x.split(2, dim=2)" => [x.split(2, 2)];
    "x.chunk(2, dim=2)" => [x.chunk(2, 2)];
    "x.unbind(0)" => [x.unbind(0)];
    "x.repeat(2, 1, 1)" => [x.tile((2, 1, 1))];
    "x.repeat_interleave(2, dim=1)" => [x.repeat(2, 1)];
    "x.roll(1, dims=0)" => [x.roll(1, 0)];
    "x.flip(0)" => [x.flip(0)];
    "matrix.tril()" => [matrix.tril(0)];
    "matrix.diagonal()" => [matrix.diagonal(0, 0, 1)];
    "torch.diag(v)" => [matrix.i(0).diag(0)];
    "torch.meshgrid(u, v, indexing='ij')" => [ops::meshgrid(&[&row.i(0), &row.i(0)], ops::MeshgridIndexing::Ij)?];
    "F.pad(x, (1, 2))" => [x.pad([(0, 0), (0, 0), (1, 2)], ops::PaddingMode::Constant(0.into()))];

    arithmetic [] {
        let (mut a, b) = (Tensor::rand([2, 3], DType::F32), Tensor::rand([2, 3], DType::F32));
        let (m, n) = (a.gt(0.5), b.gt(0.5));
    }
    "a + b" => [&a + &b];
    "a * 2" => [&a * 2.0];
    "1 - a" => [1.0 - &a];
    "-a" => [-&a];
    "a // b" => [a.floor_div(&b)];
    "a % b" => [&a % &b];
    "a ** 2" => [a.pow(2.0)];
    "a += b" => [a += &b];
    "a.copy_(a + b)" => [a.copy_(&(&a + &b))];
    "a.zero_()" => [a.set(.., 0.0)];
    "a.fill_(3)" => [a.set(.., 3.0)];
    "a == b" => [a.eq(&b)];
    "m & n" => [&m & &n];
    "~m" => [!&m];
    "torch.exp(a)" => [a.exp()];
    "torch.log(a)" => [a.log()];
    "torch.sqrt(a)" => [a.sqrt()];
    "torch.rsqrt(a)" => [a.rsqrt()];
    "torch.abs(a)" => [a.abs()];
    "torch.sin(a)" => [a.sin()];
    "torch.sigmoid(a)" => [a.sigmoid()];
    "torch.tanh(a)" => [a.tanh()];
    "torch.erf(a)" => [a.erf()];
    "torch.clamp(a, 0, 1)" => [a.clamp(0.0, 1.0)];
    "torch.clamp(a, min=0)" => [a.clamp(0.0, f64::INFINITY)];
    "torch.round(a)" => [a.round()];
    "torch.round(a, decimals=2)" => [a.around(2)];
    "torch.signbit(a)" => [a.signbit()];
    "torch.logit(a, eps=1e-6)" => [a.logit_with(1e-6)];
    "numpy.cbrt(a)" => [a.cbrt()];
    "numpy.divmod(a, b)" => [a.divmod(&b)];
    "numpy.modf(a)" => [a.modf()];
    "torch.maximum(a, b)" => [a.maximum(&b)];
    "torch.lerp(a, b, 0.3)" => [a.lerp(&b, &Tensor::scalar(0.3, DType::F32))];
    "torch.isnan(a)" => [a.isnan()];
    "torch.allclose(a, b)" => [a.allclose(&b, 1e-5, 1e-8, false)];
    "torch.equal(a, b)" => [a.equal(&b)];
    "torch.nan_to_num(a)" => [a.nan_to_num(0.0, f32::MAX, f32::MIN)];

    reductions [] {
        let x = Tensor::randn([2, 3, 4], DType::F32);
        let (v, counts) = (Tensor::randn([9], DType::F32), Tensor::from([1i64, 4, 1]));
    }
    "x.sum()" => [x.sum(..)];
    "x.sum(dim=1)" => [x.sum(1)];
    "x.sum(dim=(0, 2), keepdim=True)" => [x.sum(ops::over((0, 2)).keepdims())];
    "x.mean(dim=-1)" => [x.mean(-1)];
    "x.var(dim=1)" => [x.var(ops::over(1).ddof(1))];
    "x.std(dim=1, correction=0)" => [x.std(1)];
    "x.max()" => [x.max(..)];
    "x.max(dim=1)" => [(x.max(1), x.argmax(1))];
    "x.amax(dim=(1, 2))" => [x.max((1, 2))];
    "x.argmax(dim=-1)" => [x.argmax(-1)];
    "x.prod(dim=1)" => [x.prod(1)];
    "x.gt(0).any(dim=1)" => [x.gt(0.0).any(1)];
    "torch.count_nonzero(x)" => [x.count_nonzero(..)];
    "numpy.nanmax(x, axis=1)" => [x.nanmax(1)];
    "numpy.ptp(x, axis=1)" => [x.ptp(1)];
    "torch.linalg.vector_norm(x, dim=-1)" => [x.norm(2.0, -1)];
    "x.logsumexp(dim=1)" => [x.logsumexp(1)];
    "x.cumsum(dim=1)" => [x.cumsum(1)];
    "x.cummax(dim=1)" => [x.cummax(1).0];
    "x.sort(dim=-1)" => [x.sort(-1, false)];
    "x.argsort(dim=-1, descending=True)" => [x.argsort(-1, true)];
    "x.topk(2, dim=-1)" => [x.topk(2, -1, true)];
    "v.median()" => [v.median(..).0];
    "v.quantile(0.9)" => [v.quantile(0.9, .., ops::QuantileInterpolation::Linear)];
    "counts.unique(return_counts=True)" => [counts.unique(None)];
    "counts.bincount()" => [counts.bincount(None, 0)];
    "numpy.union1d(counts, counts)" => [counts.union1d(&counts)];
    "numpy.lexsort([v, v])" => [ops::lexsort(&[&v, &v], -1)?];
    "numpy.argpartition(v, 2)" => [v.argpartition(2, -1)];
    "numpy.histogram2d(v, v, bins=4)" => [v.histogram2d(&v, [ops::Bins::Count(4); 2], None, false)];
    "numpy.interp(v, points, values)" => [v.interp(&v.sort(0, false).0, &v, Default::default())];
    "numpy.ediff1d(x)" => [x.ravel().diff(1, 0)];
    "numpy.interp(v, points, values, left=0)" => [v.interp(&v.sort(0, false).0, &v, ops::InterpOptions { left: Some(0.0), ..Default::default() })];
    "numpy.polyfit(v, v, 1)" => [v.polyfit(&v, 1)];
    "numpy.convolve(v, v)" => [v.convolve(&v, ops::ConvolveMode::Full)];
    "torch.searchsorted(s, v)" => [v.sort(0, false).0.searchsorted(&v, false)];

    linear_algebra [] {
        let (a, b) = (Tensor::randn([3, 3], DType::F64), Tensor::randn([3, 3], DType::F64));
        let (batch, u, v) = (Tensor::randn([5, 3, 3], DType::F64), a.i(0), b.i(0));
        let spd = a.matmul(&a.t()) + Tensor::eye(3, DType::F64);
    }
    "a @ b" => [a.matmul(&b)];
    "a @ b.T" => [a.matmul(&b.t())];
    "torch.bmm(batch, batch)" => [batch.matmul(&batch)];
    "torch.dot(u, v)" => [u.dot(&v)];
    "torch.outer(u, v)" => [u.outer(&v)];
    "torch.vdot(u, v)" => [u.vdot(&v)];
    "torch.addmm(a, a, b)" => [a.addmm(&a, &b, 1.0, 1.0)];
    "torch.einsum('ij,jk->ik', a, b)" => [ops::einsum("ij,jk->ik", &[&a, &b])?];
    "torch.linalg.solve(spd, b)" => [spd.solve(&b, true)];
    "torch.linalg.inv(spd)" => [spd.inv()];
    "torch.linalg.det(a)" => [a.det()];
    "torch.linalg.svd(a, full_matrices=False)" => [a.svd(false)];
    "torch.linalg.qr(a)" => [a.qr(ops::QrMode::Reduced)];
    "torch.linalg.cholesky(spd)" => [spd.cholesky(false)];
    "torch.linalg.eigh(spd)" => [spd.eigh(false)];
    "torch.linalg.norm(a)" => [a.norm(2.0, ..)];
    "torch.cdist(a, b)" => [a.cdist(&b, 2.0)];
    "torch.dist(a, b)" => [a.dist(&b, 2.0)];
    "torch.trace(a)" => [a.trace()];

    autograd [use pellucid::{GradCheckOptions, checkpoint, detect_anomaly, gradcheck, gradgradcheck, hessian, hvp, jacobian, jvp, vjp,};] {
        let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
        let (y, g) = (x.square(), Tensor::from([1.0f64, 0.5]));
        let z = Tensor::from([3.0f64]).requires_grad_(true);
        let f = |x: &[Tensor]| Ok(vec![x[0].sin()]);
        let cube = |x: &Tensor| Ok(x.cube().sum(..));
    }
    "torch.tensor([1., 2.], requires_grad=True)" => [Tensor::from([1.0f32, 2.0]).requires_grad_(true)];
    "y.retain_grad()" => [y.retain_grad()];
    "y.retains_grad" => [y.retains_grad()];
    "h = y.register_hook(lambda g: 2 * g)" => [let h = y.register_hook(|g| Some(g * 2.0))];
    "y.sum().backward(retain_graph=True)" => [y.sum(..).backward_with(BackwardOptions { retain_graph: true, ..Default::default() })];
    "y.backward(gradient=g)" => [y.backward_with(BackwardOptions { gradient: Some(g.clone()), ..Default::default() })];
    "x.grad" => [x.grad()];
    "x.grad = None" => [x.zero_grad()];
    "x.grad = g" => [x.set_grad(Some(g.clone()))];
    "loss.backward()" => [x.square().sum(..).backward()];
    "torch.autograd.grad(y, x, create_graph=True)" => [grad_one(&x.square(), &x, GradOptions { create_graph: true, ..Default::default() })?];
    "torch.autograd.grad([y], [x, z])" => [grad(&[&(&x * &z).sum(..)], &[&x, &z], GradOptions::default())?];
    "torch.autograd.grad(y, x, allow_unused=True)" => [grad_one(&x.square(), &x, GradOptions { allow_unused: true, ..Default::default() })?];
    "with torch.no_grad():" => [let _guard = no_grad()];
    "with torch.enable_grad():" => [let _guard = enable_grad()];
    "with torch.autograd.detect_anomaly():" => [let _guard = detect_anomaly()];
    "x.requires_grad" => [x.requires_grad()];
    "x.is_leaf" => [x.is_leaf()];
    "y.grad_fn" => [y.creator()];
    "torch.autograd.gradcheck(f, x)" => [gradcheck(f, &[&x], GradCheckOptions::default())?];
    "torch.autograd.gradgradcheck(f, x)" => [gradgradcheck(f, &[&x], GradCheckOptions::default())?];
    "torch.utils.checkpoint.checkpoint(f, x)" => [checkpoint(f, &[&x])?];
    "torch.func.vjp(f, x)" => [vjp(f, &[&x], &[&g])?];
    "torch.func.jvp(f, (x,), (g,))" => [jvp(f, &[&x], &[&g])?];
    "torch.func.jacrev(f)(x)" => [jacobian(|x| Ok(x.sin()), &x)?];
    "torch.func.hessian(cube)(x)" => [hessian(cube, &x)?];
    "torch.autograd.functional.hvp(cube, x, g)" => [hvp(|x| cube(&x[0]), &[&x], &[&g])?];

    modules [use pellucid::nn::{ModuleDict, functional_call, hook, parameters_to_vector, vector_to_parameters};] {
        #[derive(Module)]
        struct Net {
            hidden: Linear,
            scale: Parameter,
            count: Buffer,
        }
        let net = Net {
            hidden: Linear::new(2, 2),
            scale: Parameter::new(Tensor::ones([2], DType::F32)),
            count: Buffer::new(Tensor::zeros((), DType::F32)),
        };
        let model = sequential![Linear::new(3, 4), Relu, Linear::new(4, 2)];
        let (x, state) = (Tensor::randn([5, 3], DType::F32), model.state_dict());
        let (layers, p) = ([Linear::new(3, 4), Linear::new(4, 2)], net.scale.clone());
    }
    "class Net(nn.Module)" => [#[derive(Module)] struct Other { hidden: Linear, scale: Parameter, count: Buffer }];
    "nn.Parameter(torch.ones(2))" => [Parameter::new(Tensor::ones([2], DType::F32))];
    "net.register_buffer('count', torch.zeros(()))" => [Buffer::new(Tensor::zeros((), DType::F32))];
    "nn.Sequential(nn.Linear(3, 4), nn.ReLU())" => [sequential![Linear::new(3, 4), Relu]];
    "nn.Sequential(*layers)" => [let mut model = Sequential::new(); for layer in layers { model.push(layer); }];
    "nn.ModuleList([nn.Linear(2, 2)])" => [vec![Linear::new(2, 2)]];
    "nn.ModuleDict({'a': nn.Linear(2, 2)})" => [let mut heads = ModuleDict::new(); heads.insert("a", Linear::new(2, 2))];
    "model(x)" => [model.forward(&x)];
    "print(model)" => [println!("{}", model.tree())];
    "model[0]" => [&model[0]];
    "model.parameters()" => [model.parameters()];
    "model.named_parameters()" => [model.named_parameters()];
    "sum(p.numel() for p in model.parameters())" => [model.parameter_count()];
    "nn.utils.parameters_to_vector(model.parameters())" => [parameters_to_vector(&model.parameters())?];
    "nn.utils.vector_to_parameters(vector, model.parameters())" => [vector_to_parameters(&parameters_to_vector(&model.parameters())?, &model.parameters())?];
    "model.buffers()" => [model.buffers()];
    "bn.running_mean" => [BatchNorm1d::new(3).running_mean.as_ref().map(|mean| mean.tensor().clone())];
    "model.named_modules()" => [model.named_modules()];
    "model.train()" => [model.train()];
    "model.eval()" => [model.eval()];
    "model.zero_grad()" => [model.zero_grad()];
    "model.requires_grad_(False)" => [model.freeze()];
    "p.requires_grad = False" => [p.requires_grad_(false)];
    "model.to(device)" => [model.to_(Device::cpu())?];
    "p.to(device)" => [p.tensor().to("cpu")];
    "copy.deepcopy(model)" => [model.deep_copy()?];
    "model.state_dict()" => [model.state_dict()];
    "model.load_state_dict(state)" => [model.load_state_dict(&state)?];
    "model.load_state_dict(state, strict=False)" => [model.load_matching(&state)?];
    "torch.func.functional_call(model, state, x)" => [functional_call(&model, &state, |model| model.forward(&x))?];
    "model[2].register_forward_hook(f)" => [hook::on_forward(&model, "2", |x, y| None)?];
    "model[2].register_forward_pre_hook(f)" => [hook::on_forward_pre(&model, "2", |x| None)?];
    "model[2].register_full_backward_hook(f)" => [hook::on_backward(&model, "2", |g| None)?];
    "torchinfo.summary(model, (5, 3))" => [model.summary(&[5, 3])?];
    "model.half()" => [Linear::new(3, 4).to_dtype(DType::F16)?];

    layers [use pellucid::nn::*;] {
        let (x, image) = (Tensor::randn([2, 5, 8], DType::F32), Tensor::randn([2, 4, 8, 8], DType::F32));
        let (words, lengths) = (Tensor::from([[0i64, 2], [1, 1]]), Tensor::from([2i64, 2, 1, 1, 1]));
        let (lstm, target) = (Lstm::new(8, 6), Tensor::randn([2, 3, 8], DType::F32));
        let (h, c) = (Tensor::zeros([1, 5, 6], DType::F32), Tensor::zeros([1, 5, 6], DType::F32));
        let (attention, visible) = (MultiheadAttention::new(8, 2), Tensor::from([[true; 5], [false; 5]]));
        let none = AttentionMasks::default();
        let (layer, mask) = (Pruned::new(Linear::new(8, 4)), Tensor::ones([4, 8], DType::F32));
        let conv = Conv2d::new(4, 8, 3);
        let (s, packed) = (Tensor::randn([3, 8], DType::F32), pack_padded_sequence(&x, &lengths, false)?);
        let weights = attention.state_dict();
    }
    "nn.Linear(8, 4)" => [Linear::new(8, 4)];
    "nn.Linear(8, 4, bias=False)" => [Linear::new(8, 4).bias(false)];
    "nn.LazyLinear(4)" => [Linear::lazy(4)];
    "nn.Bilinear(8, 8, 4)" => [Bilinear::new(8, 8, 4)];
    "nn.Conv2d(4, 8, 3, stride=2, padding=1)" => [Conv2d::new(4, 8, 3).stride(2).padding(1)];
    "nn.Conv2d(4, 4, 3, groups=4, bias=False)" => [Conv2d::new(4, 4, 3).groups(4).bias(false)];
    "nn.ConvTranspose2d(4, 8, 2, stride=2)" => [ConvTranspose2d::new(4, 8, 2).stride(2)];
    "nn.BatchNorm2d(4)" => [BatchNorm2d::new(4)];
    "nn.LayerNorm(8)" => [LayerNorm::new(8)];
    "nn.GroupNorm(2, 4)" => [GroupNorm::new(2, 4)];
    "nn.InstanceNorm2d(4, affine=True)" => [InstanceNorm2d::new(4).affine(true)];
    "nn.RMSNorm(8)" => [RmsNorm::new(8)];
    "nn.Dropout(0.1)" => [Dropout::new(0.1)];
    "nn.Dropout2d(0.1)" => [Dropout2d::new(0.1)];
    "nn.Embedding(100, 8, padding_idx=0)" => [Embedding::new(100, 8).padding_index(0)];
    "nn.EmbeddingBag(100, 8)" => [EmbeddingBag::new(100, 8)];
    "nn.MaxPool2d(2)" => [MaxPool2d::new(2)];
    "nn.AvgPool2d(2)" => [AvgPool2d::new(2)];
    "nn.AdaptiveAvgPool2d(1)" => [AdaptiveAvgPool2d::new(1)];
    "nn.Flatten()" => [Flatten::new()];
    "nn.Upsample(scale_factor=2)" => [Upsample::by([2.0])];
    "nn.PixelShuffle(2)" => [PixelShuffle(2)];
    "nn.Identity()" => [Identity];
    "nn.ReLU()" => [Relu];
    "nn.GELU()" => [Gelu];
    "nn.GELU(approximate='tanh')" => [GeluTanh];
    "nn.SiLU()" => [Silu];
    "nn.LeakyReLU(0.1)" => [LeakyRelu { slope: 0.1 }];
    "nn.PReLU()" => [Prelu::new()];
    "nn.Tanh()" => [Tanh];
    "nn.Sigmoid()" => [Sigmoid];
    "nn.Softmax(dim=-1)" => [Softmax { axis: -1 }];
    "nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))" => [Parametrized::new(Linear::new(8, 4), WeightNorm::new())];
    "nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))" => [Parametrized::new(Linear::new(8, 4), SpectralNorm::new())];
    "nn.utils.parametrizations.orthogonal(nn.Linear(8, 4))" => [Parametrized::new(Linear::new(8, 4), Orthogonal::new())];
    "parametrize.remove_parametrizations(layer, 'weight')" => [Parametrized::new(Linear::new(8, 4), Orthogonal::new()).remove()];
    "prune.l1_unstructured(layer, 'weight', 0.3)" => [prune::l1_unstructured(&layer, 0.3)?];
    "prune.ln_structured(layer, 'weight', 0.5, n=2, dim=0)" => [prune::ln_structured(&layer, 0.5, 2.0, 0)?];
    "prune.global_unstructured(parameters, prune.L1Unstructured, amount=0.2)" => [prune::global_unstructured(&layer, 0.2)?];
    "prune.custom_from_mask(layer, 'weight', mask)" => [prune::custom_from_mask(&layer, &mask)?];
    "prune.remove(layer, 'weight')" => [layer.remove()];
    "nn.utils.fuse_conv_bn_eval(conv, bn)" => [fuse_conv_bn(&conv, &BatchNorm2d::new(8))?];
    "nn.RNN(8, 6)" => [Rnn::new(8, 6)];
    "nn.GRU(8, 6, num_layers=2)" => [Gru::new(8, 6).layers(2)];
    "nn.LSTM(8, 6, batch_first=True)" => [Lstm::new(8, 6).batch_first(true)];
    "out, (h, c) = lstm(x)" => [let (out, (h, c)) = lstm.forward_sequence(&x, None)];
    "out, (h, c) = lstm(x, (h, c))" => [let (out, (h, c)) = lstm.forward_sequence(&x, Some(&(h, c)))];
    "packed = nn.utils.rnn.pack_padded_sequence(x, lengths)" => [let packed = pack_padded_sequence(&x, &lengths, false)?];
    "packed = nn.utils.rnn.pack_sequence([s, s])" => [let packed = pack_sequence(&[&s, &s])?];
    "out, (h, c) = lstm(packed)" => [let (out, (h, c)) = lstm.forward_packed(&packed, None)];
    "x, lengths = nn.utils.rnn.pad_packed_sequence(out)" => [let (x, lengths) = pad_packed_sequence(&packed, false, 0.0)?];
    "nn.utils.rnn.unpack_sequence(out)" => [unpack_sequence(&packed)?];
    "nn.LSTMCell(8, 6)" => [LstmCell::new(8, 6)];
    "nn.LSTMCell(8, 6)(s)" => [LstmCell::new(8, 6).forward(&s, None)];
    "nn.MultiheadAttention(8, 2, batch_first=True)" => [MultiheadAttention::new(8, 2)];
    "attention(x, x, x, need_weights=False)" => [attention.forward_qkv(&x, &x, &x, none)];
    "attention(x, x, x, key_padding_mask=~visible)" => [attention.forward_qkv(&x, &x, &x, AttentionMasks::padding(&visible))];
    "attention(x, x, x)" => [attention.forward_with_weights(&x, &x, &x, none, true)];
    "F.multi_head_attention_forward(x, x, x, 8, 2, ..)" => [functional_call(&attention, &weights, |attention| attention.forward_qkv(&x, &x, &x, none))?];
    "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)" => [TransformerEncoderLayer::new(8, 2).hidden(16)];
    "nn.TransformerEncoder(layer, 3)" => [TransformerEncoder::new(8, 2, 3)];
    "encoder(x, src_key_padding_mask=~visible)" => [TransformerEncoder::new(8, 2, 3).forward_masked(&x, AttentionMasks::padding(&visible))];
    "nn.TransformerDecoder(layer, 3)" => [TransformerDecoder::new(8, 2, 3)];
    "decoder(x, memory)" => [TransformerDecoder::new(8, 2, 3).forward(&x, &x, none, none)];
    "nn.Transformer(8, 2, 1, 2, 16, batch_first=True)" => [Transformer::new(8, 2, [1, 2]).hidden(16)];
    "model(x, x)" => [Transformer::new(8, 2, [1, 2]).forward(&x, &x, none, none, none)];
    "nn.Transformer.generate_square_subsequent_mask(5)" => [AttentionMasks::causal()];

    functional [] {
        let (x, w) = (Tensor::randn([2, 4], DType::F32), Tensor::randn([3, 4], DType::F32));
        let (b, image) = (Tensor::zeros([3], DType::F32), Tensor::randn([1, 3, 8, 8], DType::F32));
        let (kernel, grid) = (Tensor::randn([3, 3, 3, 3], DType::F32), Tensor::zeros([1, 5, 5, 2], DType::F32));
        let (q, words) = (Tensor::randn([1, 2, 5, 4], DType::F32), Tensor::from([0i64, 2]));
        let (gamma, beta) = (Tensor::ones([4], DType::F32), Tensor::zeros([4], DType::F32));
    }
    "F.relu(x)" => [x.relu()];
    "F.gelu(x)" => [x.gelu()];
    "F.silu(x)" => [x.silu()];
    "F.leaky_relu(x, 0.1)" => [x.leaky_relu(0.1)];
    "F.softplus(x)" => [x.softplus()];
    "F.softmax(x, dim=-1)" => [x.softmax(-1)];
    "F.log_softmax(x, dim=-1)" => [x.log_softmax(-1)];
    "F.dropout(x, 0.5)" => [x.dropout(0.5)];
    "F.normalize(x, dim=-1)" => [x.normalize(2.0, -1, 1e-12)];
    "F.cosine_similarity(x, x, dim=-1)" => [x.cosine_similarity(&x, -1, 1e-8)];
    "F.bilinear(x, x, kernels, b)" => [x.bilinear(&x, &Tensor::ones([3, 4, 4], DType::F32), Some(&b))];
    "F.linear(x, w, b)" => [x.linear(&w, Some(&b))];
    "F.layer_norm(x, (4,), gamma, beta)" => [x.layer_norm(4, Some(&gamma), Some(&beta), 1e-5)];
    "F.embedding(words, w)" => [w.embedding(&words, Default::default())];
    "F.conv2d(image, kernel, b, padding=1)" => [image.conv2d(&kernel, Some(&b), ops::ConvOptions { padding: 1.into(), ..Default::default() })];
    "F.conv_transpose2d(image, w)" => [image.conv_transpose2d(&Tensor::randn([3, 4, 3, 3], DType::F32), None, ops::ConvOptions::default())];
    "F.max_pool2d(image, 2)" => [image.max_pool2d(ops::PoolOptions::new(2)).0];
    "F.avg_pool2d(image, 2)" => [image.avg_pool2d(ops::PoolOptions::new(2), ops::AvgPoolDivisor::default())];
    "F.adaptive_avg_pool2d(image, 1)" => [image.adaptive_avg_pool2d(&[Some(1), Some(1)])];
    "F.interpolate(image, scale_factor=2, mode='bilinear')" => [image.interpolate(ops::Resize::By(vec![2.0, 2.0]), ops::InterpolationMode::Linear { align_corners: false })];
    "F.interpolate(image, scale_factor=0.5, mode='bilinear', antialias=True)" => [image.interpolate(ops::Resize::By(vec![0.5, 0.5]), ops::InterpolationMode::LinearAntialias)];
    "F.grid_sample(image, grid)" => [image.grid_sample(&grid, ops::GridSampleMode::Linear, ops::GridSamplePadding::Zeros, false)];
    "F.unfold(image, 3)" => [image.unfold(ops::FoldOptions::new(3), 2)];
    "F.scaled_dot_product_attention(q, q, q, is_causal=True)" => [q.scaled_dot_product_attention(&q, &q, ops::AttentionOptions { causal: true, ..Default::default() })];

    losses [use pellucid::nn::loss::*;] {
        let (logits, y) = (Tensor::randn([4, 3], DType::F32), Tensor::from([0i64, 2, 1, 1]));
        let (p, t) = (logits.sigmoid(), Tensor::rand([4, 3], DType::F32));
        let (logs, w) = (logits.log_softmax(-1), Tensor::ones([3], DType::F32));
        let lengths = Tensor::from([1i64]);
        let loss = CrossEntropyLoss::default();
    }
    "F.cross_entropy(logits, y)" => [cross_entropy(&logits, &y)];
    "F.mse_loss(p, t)" => [mse_loss(&p, &t)];
    "nn.CrossEntropyLoss(label_smoothing=0.1)" => [CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() }];
    "nn.CrossEntropyLoss(weight=w, ignore_index=-100)" => [CrossEntropyLoss { weight: Some(w.clone()), ignore_index: Some(-100), ..Default::default() }];
    "loss(logits, y)" => [loss.forward(&logits, &y)];
    "nn.MSELoss(reduction='none')" => [MseLoss { reduction: Reduction::None }];
    "nn.L1Loss()" => [L1Loss::default()];
    "nn.SmoothL1Loss()" => [SmoothL1Loss::default()];
    "nn.HuberLoss(delta=0.5)" => [HuberLoss { delta: 0.5, ..Default::default() }];
    "nn.BCELoss()" => [BceLoss::default().forward(&p, &t)];
    "nn.BCEWithLogitsLoss(pos_weight=w)" => [BceWithLogitsLoss { pos_weight: Some(w.clone()), ..Default::default() }];
    "nn.NLLLoss()" => [NllLoss::default().forward(&logs, &y)];
    "nn.KLDivLoss(reduction='batchmean')" => [KlDivLoss { batch_mean: true, ..Default::default() }];
    "nn.GaussianNLLLoss()" => [GaussianNllLoss::default().forward(&logits, &t, &p)];
    "nn.CTCLoss()" => [CtcLoss::default()];
    "nn.TripletMarginLoss()" => [TripletMarginLoss::default().forward(&logits, &p, &t)];
    "nn.CosineEmbeddingLoss()" => [CosineEmbeddingLoss::default()];

    optimizers [use pellucid::nn::optim::{schedule::*, *};] {
        let model = sequential![Linear::new(3, 4), Relu, Linear::new(4, 2)];
        let (x, head) = (Tensor::randn([5, 3], DType::F32), Linear::new(2, 2));
        model.forward(&x).sum(..).backward();
        let mut optimizer = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..Default::default() });
        let mut scheduler = Scheduler::new(StepLr::new(30), &optimizer);
        let mut plateau = ReduceLrOnPlateau::new(Default::default(), &optimizer);
        let scaler = GradScaler::new(Default::default());
        let mut averaged = AveragedModel::new(&model, Average::Exponential(0.999));
        let state = optimizer.state_dict();
    }
    "optim.SGD(model.parameters(), lr=0.1, momentum=0.9)" => [Sgd::new(model.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() })];
    "optim.Adam(model.parameters())" => [Adam::new(model.parameters(), AdamOptions::default())];
    "optim.AdamW(model.parameters(), lr=3e-4)" => [AdamW::new(model.parameters(), AdamWOptions { lr: 3e-4, ..Default::default() })];
    "optim.RMSprop(model.parameters())" => [RmsProp::new(model.parameters(), RmsPropOptions::default())];
    "optim.Adagrad(model.parameters())" => [Adagrad::new(model.parameters(), AdagradOptions::default())];
    "optim.LBFGS(model.parameters())" => [Lbfgs::new(model.parameters(), LbfgsOptions::default())];
    "optim.SGD([{'params': model.parameters()}, {'params': head.parameters(), 'lr': 0.1}])" => [Sgd::with_groups(vec![(model.parameters(), SgdOptions::default()), (head.parameters(), SgdOptions { lr: 0.1, ..Default::default() })])];
    "nn.utils.clip_grad_norm_(model.parameters(), 1.0)" => [clip_grad_norm(&model.parameters(), 1.0)?];
    "nn.utils.clip_grad_value_(model.parameters(), 0.5)" => [clip_grad_value(&model.parameters(), 0.5)?];
    "optimizer.step()" => [optimizer.step()];
    "optimizer.zero_grad()" => [optimizer.zero_grad()];
    "optimizer.step(closure)" => [optimizer.step_with(&mut || { model.zero_grad(); let loss = model.forward(&x).sum(..); loss.backward(); loss })];
    "optimizer.param_groups[0]['lr']" => [optimizer.groups()[0].lr()];
    "for g in optimizer.param_groups: g['lr'] = 0.01" => [optimizer.set_lr(0.01)];
    "optimizer.state_dict()" => [optimizer.state_dict()];
    "optimizer.load_state_dict(state)" => [Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..Default::default() }).load_state_dict(&state)?];
    "lr_scheduler.StepLR(optimizer, 30)" => [Scheduler::new(StepLr::new(30), &optimizer)];
    "lr_scheduler.MultiStepLR(optimizer, [30, 80])" => [Scheduler::new(MultiStepLr::new(vec![30, 80]), &optimizer)];
    "lr_scheduler.ExponentialLR(optimizer, 0.99)" => [Scheduler::new(ExponentialLr::new(0.99), &optimizer)];
    "lr_scheduler.CosineAnnealingLR(optimizer, 100)" => [Scheduler::new(CosineAnnealingLr::new(100), &optimizer)];
    "lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)" => [Scheduler::new(CosineAnnealingWarmRestarts::new(10), &optimizer)];
    "lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)" => [Scheduler::new(OneCycleLr::new(0.1, 100), &optimizer)];
    "lr_scheduler.LambdaLR(optimizer, lambda e: 0.9 ** e)" => [Scheduler::new(LambdaLr::new(|e| 0.9f64.powi(e as i32)), &optimizer)];
    "lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5)" => [Scheduler::new(LinearLr { start_factor: 0.1, ..Default::default() }, &optimizer)];
    "lr_scheduler.SequentialLR(optimizer, [a, b], [5])" => [Scheduler::new(SequentialLr::new(ConstantLr { factor: 0.1, ..Default::default() }).then(5, ExponentialLr::new(0.9)), &optimizer)];
    "lr_scheduler.ReduceLROnPlateau(optimizer)" => [ReduceLrOnPlateau::new(ReduceLrOnPlateauOptions::default(), &optimizer)];
    "plateau.step(loss)" => [plateau.step(0.5)];
    "scheduler.step()" => [scheduler.step()];
    "scheduler.get_last_lr()" => [scheduler.last_lr()];
    "with torch.autocast('cpu', dtype=torch.bfloat16):" => [let _guard = autocast(DType::BF16)];
    "scaler.scale(loss).backward()" => [scaler.scale(&model.forward(&x).sum(..)).backward()];
    "scaler.get_scale()" => [scaler.get_scale()];
    "scaler.step(optimizer); scaler.update()" => [scaler.step(&optimizer); scaler.update()];
    "scaler.scale(loss).backward(); scaler.unscale_(optimizer)" => [scaler.scale(&model.forward(&x).sum(..)).backward(); scaler.unscale(&optimizer).step()];
    "optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))" => [AveragedModel::new(&model, Average::Exponential(0.999))];
    "averaged.update_parameters(model)" => [averaged.update()?];
    "optimizer.add_param_group({'params': head.parameters(), 'lr': 0.1})" => [optimizer.try_add_group(head.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() })?];

    initialisation [use pellucid::nn::init;] {
        let (w, n) = (Linear::new(8, 8).weight, Linear::new(8, 8).weight);
    }
    "nn.init.zeros_(w)" => [init::zeros_(&w)];
    "nn.init.constant_(w, 0.5)" => [init::constant_(&w, 0.5)];
    "nn.init.uniform_(w, -1, 1)" => [init::uniform_(&w, -1.0, 1.0)];
    "nn.init.normal_(w, std=0.02)" => [init::normal_(&w, 0.0, 0.02)];
    "nn.init.trunc_normal_(w)" => [init::trunc_normal_(&w, 0.0, 1.0, -2.0, 2.0)];
    "nn.init.xavier_uniform_(w)" => [init::xavier_uniform_(&w, 1.0)];
    "nn.init.kaiming_normal_(w, nonlinearity='relu')" => [init::kaiming_normal_(&w, init::Fan::In, init::Nonlinearity::Relu)];
    "nn.init.orthogonal_(w)" => [init::orthogonal_(&w, 1.0)];

    data_and_files [use pellucid::data::{StreamLoader, TensorDataset, WeightedRandomSampler, from_fn, from_records, random_split}; use pellucid::{io, nn::{Checkpoint, pad_sequence}};] {
        let (x, y) = (Tensor::randn([20, 3], DType::F32), Tensor::randint(0, 2, [20]));
        let (model, folder) = (Linear::new(3, 2), Scratch::new("pytorch-names"));
        let optimizer = Sgd::new(model.parameters(), SgdOptions::default());
        let path = folder.0.join("model.safetensors");
        let mut loader = Batches::new(&[&x, &y], 8);
        let dataset = TensorDataset::new(&[&x, &y]);
        let numbers = from_records(|_epoch| Ok((0..20i64).map(Ok)));
        let options = LoaderOptions { batch_size: 8, ..Default::default() };
    }
    "DataLoader(TensorDataset(x, y), batch_size=8)" => [Batches::new(&[&x, &y], 8)];
    "DataLoader(dataset, 8, shuffle=True, drop_last=True)" => [Batches::new(&[&x, &y], 8).shuffled(0).drop_last(true)];
    "for a, b in loader:" => [for [a, b] in loader.epoch() {}];
    "len(loader)" => [loader.len()];
    "DataLoader(dataset, 8, num_workers=2)" => [DataLoader::new(dataset.clone(), LoaderOptions { batch_size: 8, workers: 2, ..Default::default() })];
    "DataLoader(dataset, 8, collate_fn=f)" => [DataLoader::with_collate(dataset.clone(), options, |samples| Ok(samples.len()))];
    "DataLoader(dataset, 8, sampler=WeightedRandomSampler(weights, 20))" => [DataLoader::new(dataset.clone(), options).sampler(WeightedRandomSampler::with_replacement(&[1.0, 2.0], 20))];
    "class Squares(Dataset): .." => [from_fn(20, |index| Ok((index * index) as f32))];
    "class Numbers(IterableDataset): .." => [from_records(|_epoch| Ok((0..20i64).map(Ok)))];
    "DataLoader(iterable, 8)" => [StreamLoader::new(numbers.clone(), options)];
    "random_split(dataset, [0.75, 0.25])" => [let [train, test] = random_split(dataset.clone(), [0.75, 0.25], 0)?];
    "Subset(dataset, [0, 2])" => [dataset.clone().subset(vec![0, 2])?];
    "ConcatDataset([a, b])" => [dataset.clone().concat(dataset.clone())];
    "nn.utils.rnn.pad_sequence([x, x], batch_first=True)" => [pad_sequence(&[&x, &x], true, 0.0)?];
    "torch.save(model.state_dict(), path)" => [io::save(&path, &model.state_dict())?];
    "model.load_state_dict(torch.load(path))" => [model.load_state_dict(&io::load(&path)?)?];
    "torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, path)" => [io::save_checkpoint(&path, &Checkpoint::new().model(&model).optimizer(&optimizer))?];
    "checkpoint = torch.load(path)" => [io::load_checkpoint(&path, &Checkpoint::new().model(&model).optimizer(&optimizer))?];

    devices_and_capture [use pellucid::nn::graph::{GraphTrainer, InferenceModel, StepOptions}; use pellucid::nn::{loss::CrossEntropyLoss, optim::clip_grad_norm}; use std::sync::Arc;] {
        let device = Device::cpu();
        let (x, y) = (Tensor::randn([4, 3], DType::F32), Tensor::randint(0, 2, [4]));
        let model = Linear::new(3, 2);
        let optimizer = Sgd::new(model.parameters(), SgdOptions::default());
        let mut graph = capture(|inputs| inputs[0].exp() + 1.0, &[&x])?;
    }
    "torch.device('cpu')" => [Device::cpu()];
    "torch.device('cuda' if torch.cuda.is_available() else 'cpu')" => [Device::best()];
    "torch.cuda.is_available()" => [Device::is_available("gpu")];
    "x.to(device)" => [x.to(device)];
    "x.cpu()" => [x.to("cpu")];
    "torch.cuda.synchronize()" => [device.synchronize()?];
    "start.record(); ..; end.record(); start.elapsed_time(end)" => [device.time(|| Ok(x.exp()))?];
    "torch.cuda.memory_stats()" => [device.memory_stats()];
    "torch.compile(f)" => [capture(|inputs| inputs[0].exp() + 1.0, &[&x])?];
    "torch.compile(model.eval())" => [InferenceModel::new(model.clone(), &[1, 8]).run(&x)?];
    "with torch.cuda.graph(g):" => [capture(|inputs| inputs[0].exp(), &[&x])?];
    "g.replay()" => [graph.launch(&[&x])?.to_tensor(0)];
    "torch.cuda.make_graphed_callables(model, (x,))" => [let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer); trainer.step(&x, &y)?; trainer.loss()?];
    "clip_grad_norm_ in a captured step" => [let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer).with_options(StepOptions { before_update: Some(Arc::new(|parameters| clip_grad_norm(parameters, 1.0).map(drop))), ..Default::default() }); trainer.step(&x, &y)?];
}

/// Removes white space, which `stringify!` does not preserve.
fn compact(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// The tables of the page have the rows of this file, in this order.
#[test]
fn the_page_has_these_rows() {
    let page = include_str!("../../../docs/pytorch.md");
    // A `|` inside a cell is escaped. The code of a cell may be followed by a remark.
    let code = |cell: &str| cell.split('`').nth(1).unwrap_or_default().replace("\\|", "|");
    let table: Vec<(String, String)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" | "))
        .map(|(torch, form)| (code(&format!("`{torch}")), compact(&code(form))))
        .collect();
    let rows: Vec<(String, String)> = ROWS.iter().map(|&(torch, form)| (torch.to_string(), compact(form))).collect();
    for (row, known) in table.iter().zip(&rows) {
        assert_eq!(row, known, "docs/pytorch.md and this test have different rows");
    }
    assert_eq!(table.len(), rows.len(), "docs/pytorch.md and this test have different numbers of rows");
}

/// The page states the imports of every table.
#[test]
fn the_page_has_these_imports() {
    let page = include_str!("../../../docs/pytorch.md");
    let (_, calls) = page.split_once("\n## Calls\n").expect("the page must have the section of the tables");
    let sections = calls.split("\n### ").skip(1);
    let imports: Vec<String> = sections
        .map(|section| {
            let before = section.split("\n| PyTorch |").next().unwrap_or_default();
            compact(before.split("```rust").nth(1).map_or("", |rest| rest.split("```").next().unwrap_or_default()))
        })
        .collect();
    let expected: Vec<String> = IMPORTS.iter().map(|imports| compact(imports)).collect();
    assert_eq!(imports, expected, "docs/pytorch.md and this test have different imports for a table");
}

/// The search of the documentation finds every class of `torch.nn` and `torch.optim` in the rows: an item or an alias
/// has its name.
#[test]
fn search_finds_the_classes() {
    let sources: String =
        ["../pellucid-nn/src", "../pellucid-data/src", "../pellucid-train/src", "src"].map(read_sources).concat();
    let words: HashSet<&str> = sources.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let classes = ROWS.iter().flat_map(|(torch, _)| {
        let parts = torch.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        let path = parts.filter(|part| ["nn.", "optim.", "lr_scheduler."].iter().any(|start| part.starts_with(start)));
        path.map(|path| path.rsplit('.').next().unwrap_or_default())
    });
    let missing: Vec<&str> = classes.filter(|class| !words.contains(class)).collect();
    assert!(missing.is_empty(), "no item has these names, nor an alias `#[doc(alias = \"..\")]`: {missing:?}");
}

/// Returns the contents of all source files of a directory, relative to this crate.
fn read_sources(folder: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&folder).expect("the directory must be readable").map(|e| e.expect("an entry").path());
    entries
        .map(|path| match path.is_dir() {
            true => read_sources(path.to_str().expect("the path must be UTF-8")),
            false => fs::read_to_string(path).expect("a source file must be UTF-8"),
        })
        .collect()
}
