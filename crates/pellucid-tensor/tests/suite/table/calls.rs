//! Calls without a reference: operations that draw random numbers, or whose results depend on values in ways that the
//! rows state as properties. They are compared between modes and devices like the cases of the rows.

use super::devices::{self, toy};
use super::driver::Report;
use super::modes;
use super::row::{Row, class, index, mask, one, real};
use super::rows;
use pellucid_tensor::ops::{self, Bins, EmbeddingBagOptions, ScatterReduceOp, Unique};
use pellucid_tensor::{DType, Device, GradOptions, Result, Tensor, grad, jacobian, operations, vjp};

/// Operations that have no result, or are compared elsewhere.
const ELSEWHERE: [&str; 2] = ["update", "update_many"];

fn call<const N: usize>(
    name: &'static str,
    inputs: [super::row::Input; N],
    call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Row {
    Row::new(name).outputs("call", inputs, call, |_| vec![])
}

fn untracked<const N: usize>(
    name: &'static str,
    inputs: [super::row::Input; N],
    call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Row {
    self::call(name, inputs, call).untracked()
}

fn created(name: &'static str, call: impl Fn() -> Result<Tensor> + 'static) -> Row {
    self::call(name, [], move |_| one(call()))
}

fn lists((counts, edges): (Tensor, Vec<Tensor>)) -> Vec<Tensor> {
    [counts].into_iter().chain(edges).collect()
}

fn parts(unique: Unique) -> Vec<Tensor> {
    vec![unique.values, unique.inverse, unique.counts]
}

fn bags(mode: ScatterReduceOp) -> Row {
    call("embedding_bag", [real([4, 2]), class([5], 4), class([1], 3)], move |x| {
        let zero = ops::zeros_like(&x[2].narrow(0, 0, 1))?;
        let offsets = ops::concatenate(&[&zero, &x[2]], 0)?;
        let options = EmbeddingBagOptions { mode, offsets: Some(&offsets), ..Default::default() };
        one(ops::embedding_bag(&x[0], &x[1], options))
    })
}

/// Returns the calls, as rows without references.
fn all() -> Vec<Row> {
    let positive = || real([2, 3]).within(0.1..=0.9);
    vec![
        created("rand", || ops::rand([3], DType::F32)),
        created("rand_with", || ops::rand_with([3], DType::BF16, &Default::default())),
        created("randn", || ops::randn([3], DType::F64)),
        created("randn_with", || ops::randn_with([3], DType::F16, &Default::default())),
        created("randint", || ops::randint(-3, 5, [4])),
        created("randperm", || ops::randperm(7)),
        created("tril_indices", || ops::tril_indices(3, 4, 1)),
        created("diag_indices", || ops::diag_indices(3, 2)),
        created("tri", || ops::tri(3, 2, -1, DType::F16)),
        created("triu_indices", || ops::triu_indices(3, 4, -1)),
        untracked("rand_like", [real([2, 3])], |x| one(ops::rand_like(&x[0]))),
        untracked("randn_like", [real([2, 3])], |x| one(ops::randn_like(&x[0]))),
        untracked("randint_like", [real([2, 3])], |x| one(ops::randint_like(&x[0], 0, 2))),
        created("full", || ops::full([2], 3, DType::I16)),
        created("zeros", || ops::zeros([2], DType::U8)),
        created("ones", || ops::ones([2], DType::Bool)),
        created("eye", || ops::eye(2, 3, DType::BF16)),
        created("arange", || ops::arange(0, 5, 2, DType::I64)),
        created("linspace", || ops::linspace(0.0, 1.0, 5, DType::F16)),
        created("logspace", || ops::logspace(0.0, 1.0, 5, 2.0, DType::F32)),
        created("geomspace", || ops::geomspace(1.0, 8.0, 4, DType::F64)),
        created("signal_window", || ops::signal_window(ops::WindowFunction::Hann, 5, true, DType::F32)),
        call("normal", [real([2, 3]), real([3]).within(0.0..=2.0)], |x| one(ops::normal(&x[0], &x[1].abs()))),
        untracked("bernoulli", [positive()], |x| one(ops::bernoulli(&x[0]))),
        untracked("multinomial", [positive()], |x| {
            Ok(vec![ops::multinomial(&x[0], 2, true)?, ops::multinomial(&x[0], 2, false)?])
        }),
        call("feature_dropout", [real([2, 3, 2])], |x| one(ops::feature_dropout(&x[0], 0.5))),
        call("alpha_dropout", [real([2, 3])], |x| one(ops::alpha_dropout(&x[0], 0.5))),
        call("feature_alpha_dropout", [real([2, 3, 2])], |x| one(ops::feature_alpha_dropout(&x[0], 0.5))),
        call("dropout", [real([2, 3])], |x| one(ops::dropout(&x[0], 0.5))),
        call("rrelu", [real([2, 3])], |x| one(ops::rrelu(&x[0], 0.1, 0.4))),
        call("gumbel_softmax", [real([2, 3])], |x| {
            Ok(vec![ops::gumbel_softmax(&x[0], 0.5, true, -1)?, ops::gumbel_softmax(&x[0], 0.5, false, 0)?])
        }),
        untracked("allclose", [real([2, 3]), real([3])], |x| one(ops::allclose(&x[0], &x[1], 0.1, 0.1, true))),
        untracked("equal", [real([2, 3]), real([2, 3])], |x| one(ops::equal(&x[0], &x[1]))),
        untracked("isin", [real([2, 3]), real([3])], |x| one(ops::isin(&x[0], &x[1]))),
        untracked("flatnonzero", [real([2, 3])], |x| one(ops::flatnonzero(&x[0]))),
        untracked("nonzero", [real([2, 3])], |x| ops::nonzero(&x[0])),
        call("masked_select", [real([2, 3]), mask([3])], |x| one(ops::masked_select(&x[0], &x[1]))),
        untracked("unravel_index", [index([2, 2], 6)], |x| ops::unravel_index(&x[0], [3, 2])),
        untracked("bincount", [class([5], 4)], |x| one(ops::bincount(&x[0], None, 0))),
        call("bincount", [class([5], 4), real([5])], |x| one(ops::bincount(&x[0], Some(&x[1]), 6))),
        untracked("histogram", [real([6])], |x| {
            let (counts, edges) = ops::histogram(&x[0], Bins::Count(3), None, false)?;
            Ok(vec![counts, edges])
        }),
        untracked("histogram", [real([6])], |x| {
            let (counts, edges) = ops::histogram(&x[0], Bins::Between(3, -1.0, 1.0), None, true)?;
            Ok(vec![counts, edges])
        }),
        untracked("histogramdd", [real([5, 2]), real([5]).within(0.1..=1.0), real([4])], |x| {
            let edges = x[2].sort(0, false).0;
            let bins = [Bins::Edges(&edges), Bins::Between(3, -1.0, 1.0)];
            ops::histogramdd(&x[0], &bins, Some(&x[1]), false).map(lists)
        }),
        untracked("histogram2d", [real([5]), real([5])], |x| {
            let bins = [Bins::Count(2), Bins::Between(3, -1.0, 1.0)];
            let (counts, of_x, of_y) = ops::histogram2d(&x[0], &x[1], bins, None, false)?;
            Ok(vec![counts, of_x, of_y])
        }),
        untracked("histc", [real([6])], |x| one(ops::histc(&x[0], 3, -1.0, 1.0))),
        untracked("histc", [real([6])], |x| one(ops::histc(&x[0], 3, 0.0, 0.0))),
        untracked("unique", [real([6])], |x| ops::unique(&x[0], None).map(parts)),
        untracked("unique_consecutive", [real([3, 2])], |x| ops::unique_consecutive(&x[0], Some(0)).map(parts)),
        untracked("union1d", [real([6]), real([2])], |x| one(ops::union1d(&x[0], &x[1]))),
        untracked("intersect1d", [real([6]), class([3], 2)], |x| one(ops::intersect1d(&x[0], &x[1]))),
        untracked("setdiff1d", [real([6]), class([3], 2)], |x| one(ops::setdiff1d(&x[0], &x[1]))),
        untracked("setxor1d", [real([6]), class([3], 2)], |x| one(ops::setxor1d(&x[0], &x[1]))),
        untracked("matmul_integer", [class([3, 34], 100), class([34, 20], 100)], |x| {
            one(ops::matmul_integer(&ops::to_dtype(&x[0], DType::I8)?, &ops::to_dtype(&x[1], DType::I8)?))
        }),
        untracked("gcd", [class([2, 3], 9), class([3], 7)], |x| one(ops::gcd(&x[0], &x[1]))),
        untracked("lcm", [class([2, 3], 9), class([3], 7)], |x| one(ops::lcm(&x[0], &x[1]))),
        untracked("nextafter", [real([2, 3]), real([3])], |x| one(ops::nextafter(&x[0], &x[1]))),
        untracked("matrix_power", [real([3, 2, 2])], |x| one(ops::matrix_power(&x[0], 0))),
        bags(ScatterReduceOp::Sum),
        bags(ScatterReduceOp::Mean),
        bags(ScatterReduceOp::Max),
    ]
}

#[test]
fn calls_agree_in_all_modes_and_keep_their_device() {
    let mut report = Report::default();
    for row in all() {
        for case in &row.cases {
            report.section(row.name, |report| modes::check_modes(&row, case, report));
            report.section(row.name, |report| devices::check_pins(&row, case, report));
        }
    }
    report.finish();
}

/// Gradients with respect to a free vector, and matrices of derivatives, are pinned like the tensor to which they
/// belong.
#[test]
fn derivatives_of_pinned_inputs_are_pinned() {
    for device in [Device::cpu(), toy(0), toy(1)] {
        let x = Tensor::from([1.0, 2.0]).to(device).requires_grad_(true);
        let v = Tensor::from([1.0, -1.0]);
        let square = |x: &Tensor| Ok(x.square());
        let options = || GradOptions { grad_outputs: vec![Some(v.clone())], ..Default::default() };
        let mut found = grad(&[&x.square()], &[&x], options()).unwrap();
        found.extend(vjp(|x| Ok(vec![square(&x[0])?]), &[&x], &[&v]).unwrap().1);
        found.push(jacobian(square, &x).unwrap().1);
        found.push(jacobian(|_| Ok(Tensor::from([3.0])), &x).unwrap().1);
        let node = x.square();
        found.extend(node.creator().unwrap().backward(&[Some(&v)]).unwrap().into_iter().flatten());
        for (k, gradient) in found.iter().enumerate() {
            assert_eq!((gradient.device(), gradient.is_free()), (device, false), "{k}");
        }
        assert!(v.is_free(), "the vector of the caller stays free");
    }
}

/// If a caller or a hook sets a free gradient of a pinned tensor, the gradient is pinned too.
#[test]
fn gradients_from_the_caller_are_pinned_like_their_tensor() {
    for device in [Device::cpu(), toy(0), toy(1)] {
        let free = || Tensor::from([5.0, 6.0]);
        let x = Tensor::from([1.0, 2.0]).to(device).requires_grad_(true);
        let gradient = || (x.grad().unwrap().device(), x.grad().unwrap().is_free(), x.grad().unwrap().to_vec::<f64>());
        x.set_grad(Some(free()));
        assert_eq!(gradient(), (device, false, vec![5.0, 6.0]));
        for on_result in [false, true] {
            x.zero_grad();
            let y = x.square();
            let hooked = if on_result { &y } else { &x };
            let hook = hooked.register_hook(move |_| Some(free()));
            y.sum(..).backward();
            let expected = if on_result { vec![10.0, 24.0] } else { vec![5.0, 6.0] };
            assert_eq!(gradient(), (device, false, expected));
            hook.remove();
        }
    }
}

/// The result for orders up to 0 reads no element of the points, and is pinned like them.
#[test]
fn polynomials_of_free_orders_are_pinned_like_their_points() {
    for device in [Device::cpu(), toy(0)] {
        let (x, orders) = (Tensor::from([0.5, 0.7]).to(device), Tensor::from([0i64, -1]));
        for y in [ops::chebyshev_t(&x, &orders), ops::legendre_p(&x, &orders)] {
            let y = y.unwrap();
            assert_eq!((y.device(), y.is_free(), y.to_vec::<f64>()), (device, false, vec![1.0, 0.0]));
        }
    }
}

#[test]
fn every_operation_is_called_in_all_modes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let rows: Vec<Row> = rows::all().into_iter().chain(all()).collect();
    let is_called = |name: &str| rows.iter().any(|row| row.name == name && !row.cases.is_empty());
    let missing: Vec<&str> =
        operations().map(|op| op.name).filter(|n| !is_called(n) && !ELSEWHERE.contains(n)).collect();
    assert!(missing.is_empty(), "add a case, or a call to calls.rs, for {missing:?}");
}
