//! Gradients as functions: `grad`, `vjp`, `jvp`, `hvp`, `gradcheck`.

use crate::engine::programs::wave;
use crate::support::{assert_close, bits, leaf, number};
use pellucid_tensor::{
    BackwardOptions, Error, GradCheckOptions, GradOptions, Result, Tensor, capture, grad, gradcheck, gradgradcheck,
    hessian, hvp, jacobian, jvp, lazy, no_grad, ops, vjp,
};

fn allowed() -> GradOptions {
    GradOptions { allow_unused: true, ..Default::default() }
}

#[test]
fn grad_does_not_change_stored_gradients() {
    let (x, y) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]));
    x.set_grad(Some(Tensor::from([9.0, 9.0])));
    let z = &x * &y;
    z.retain_grad();
    let got = grad(&[&z], &[&x, &y], GradOptions::default()).unwrap();
    assert_close(&got[0], &[3.0, 4.0]);
    assert_close(&got[1], &[1.0, 2.0]);
    assert_close(&x.grad().unwrap(), &[9.0, 9.0]);
    assert!(y.grad().is_none() && z.grad().is_none());
}

#[test]
fn grad_accepts_non_leaves_and_runs_only_the_necessary_nodes() {
    let x = number(0.5);
    let y = x.sin();
    let z = y.square();
    let retain = || GradOptions { retain_graph: true, ..Default::default() };
    assert_close(&grad(&[&z], &[&y], retain()).unwrap()[0], &[2.0 * 0.5f64.sin()]);
    let both = grad(&[&z], &[&x, &y], GradOptions::default()).unwrap();
    assert_close(&both[0], &[2.0 * 0.5f64.sin() * 0.5f64.cos()]);
    assert_close(&both[1], &[2.0 * 0.5f64.sin()]);
    // A freed node that does not lead to the input is not executed.
    let (a, b) = (number(2.0), number(3.0));
    let side = a.sin();
    side.backward();
    let sum = &side + b.square();
    assert_close(&grad(&[&sum], &[&b], GradOptions::default()).unwrap()[0], &[6.0]);
}

#[test]
fn grad_of_a_result_keeps_the_graph_that_computes_it() {
    let w = leaf([0.1, 0.2]);
    let v = w.exp();
    let got = grad(&[&v.square().sum(..)], &[&v], GradOptions::default()).unwrap();
    assert_close(&got[0], &[2.0 * 0.1f64.exp(), 2.0 * 0.2f64.exp()]);
    v.sum(..).backward();
    assert_close(&w.grad().unwrap(), &[0.1f64.exp(), 0.2f64.exp()]);
    // The pass has freed the graph of the output alone.
    let y = w.exp();
    let z = y.sin();
    grad(&[&z.sum(..)], &[&y], GradOptions::default()).unwrap();
    let freed = z.sum(..).try_backward_with(BackwardOptions::default());
    assert!(matches!(freed, Err(Error::GraphFreed { node: "sin" })), "{freed:?}");
    // The producer of a target is freed if it leads to another target.
    let y = w.exp();
    grad(&[&y.square().sum(..)], &[&y, &w], GradOptions::default()).unwrap();
    let freed = y.sum(..).try_backward_with(BackwardOptions::default());
    assert!(matches!(freed, Err(Error::GraphFreed { node: "exp" })), "{freed:?}");
}

/// Inner steps v ← v − g/10 of the loss Σv², whose gradient is 2v, scale v by 0.8 if the step is differentiated
/// (Finn et al. 2017). First-order MAML treats g as a constant.
#[test]
fn maml_differentiates_through_inner_steps() {
    for create_graph in [false, true] {
        let w = leaf([1.0, 2.0]);
        let mut v = &w * 1.0;
        for _ in 0..3 {
            let options = GradOptions { create_graph, ..Default::default() };
            let g = &grad(&[&v.square().sum(..)], &[&v], options).unwrap()[0];
            v = &v - g * 0.1;
        }
        assert_close(&v, &[0.512, 1.024]);
        v.square().sum(..).backward();
        let slope = if create_graph { 0.512 } else { 1.0 };
        assert_close(&w.grad().unwrap(), &[2.0 * 0.512 * slope, 2.0 * 1.024 * slope]);
    }
}

#[test]
fn results_share_no_memory() {
    let (a, b) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]));
    let seed = Tensor::from([1.0, 1.0]);
    for step in [false, true] {
        let run = || {
            let grad_outputs = vec![Some(seed.clone())];
            let y = &a + &b;
            grad(&[&y], &[&a, &b, &a, &y], GradOptions { grad_outputs, ..Default::default() }).unwrap()
        };
        let results = if step { lazy(run) } else { run() };
        for (i, g) in results.iter().enumerate() {
            assert_ne!(g.storage_id(), seed.storage_id());
            assert!(
                results[..i].iter().all(|other| other.storage_id() != g.storage_id()),
                "result {i} shares its storage with an earlier result"
            );
            g.copy_(&(g * 5.0));
        }
        assert!(results.iter().all(|g| g.to_vec::<f64>() == [5.0, 5.0]));
    }
    // The gradient of a sum is not one broadcast element: its elements can be written separately.
    let g = grad(&[&a.sum(..)], &[&a], GradOptions::default()).unwrap().remove(0);
    g.set(0, 7.0);
    assert_eq!(g.to_vec::<f64>(), [7.0, 1.0]);
}

#[test]
fn an_unused_input_is_an_error_unless_it_is_allowed() {
    let (x, unused) = (number(2.0), leaf([1.0, 2.0]));
    let y = x.square();
    let error = grad(&[&y], &[&x, &unused], GradOptions::default()).unwrap_err();
    assert!(matches!(error, Error::UnusedInput { op: "grad", input: 1, .. }));
    let text = error.to_string();
    assert!(text.contains("input 1 of shape [2]") && text.contains("allow_unused"), "{text}");
    // The call that was rejected did not free the graph.
    let got = grad(&[&y], &[&x, &unused], allowed()).unwrap();
    assert_close(&got[0], &[4.0]);
    assert_close(&got[1], &[0.0, 0.0]);
    // A copy of an input, and a result that was computed from it, are different tensors.
    let derived = &x * 3.0;
    for other in [x.detach().requires_grad_(true), derived] {
        assert!(matches!(grad(&[&x.square()], &[&other], GradOptions::default()), Err(Error::UnusedInput { .. })));
    }
    // The graph reaches an input whose derivative is zero.
    let mask = Tensor::from([false, false]);
    let masked = unused.where_(&mask, leaf([5.0, 6.0])).sum(..);
    assert_close(&grad(&[&masked], &[&unused], GradOptions::default()).unwrap()[0], &[0.0, 0.0]);
}

#[test]
fn an_untracked_input_or_output_is_an_error() {
    let (x, constant) = (number(2.0), Tensor::from(1.0));
    let rejected = |r: Result<Vec<Tensor>>, named: &str| {
        let error = r.unwrap_err();
        assert!(matches!(error, Error::NotTracked { op: "grad", .. }) && error.to_string().contains(named), "{error}");
    };
    rejected(grad(&[&x.square()], &[&x, &constant], GradOptions::default()), "input 1 of shape []");
    rejected(grad(&[&x.square()], &[&x, &constant], allowed()), "input 1 of shape []");
    rejected(grad(&[&x.square(), &constant], &[&x], GradOptions::default()), "output 1 of shape []");
    // An allowed constant output contributes nothing, and the incoming gradients keep their order.
    let grad_outputs = vec![Some(Tensor::from(10.0)), Some(Tensor::from(100.0))];
    let got = grad(&[&constant, &x.square()], &[&x], GradOptions { grad_outputs, ..allowed() }).unwrap();
    assert_close(&got[0], &[400.0]);
    assert_close(&grad(&[&constant], &[&x], allowed()).unwrap()[0], &[0.0]);
    // An output may itself be an input, and an input may occur twice.
    let got = grad(&[&x], &[&x, &x], GradOptions::default()).unwrap();
    assert_eq!((got[0].item::<f64>(), got[1].item::<f64>()), (1.0, 1.0));
}

/// A recorded gradient that is constant is a function of the inputs with derivative zero.
#[test]
fn a_recorded_constant_can_be_differentiated() {
    let recorded = || GradOptions { create_graph: true, ..Default::default() };
    let x = number(3.0);
    let mut y = x.square();
    for expected in [6.0, 2.0, 0.0, 0.0] {
        y = grad(&[&y], &[&x], recorded()).unwrap().remove(0);
        assert_eq!(y.item::<f64>(), expected);
    }
    // The gradient of W·x with respect to x is Wᵀ·1, whose graph does not reach x.
    let (w, v) = (Tensor::from([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(true), leaf([5.0, 6.0]));
    let slope = grad(&[&w.matmul(&v)], &[&v], recorded()).unwrap().remove(0).sum(..);
    let rejected = grad(&[&slope], &[&w, &v], GradOptions { retain_graph: true, ..Default::default() });
    assert!(matches!(rejected, Err(Error::UnusedInput { input: 1, .. })));
    let got = grad(&[&slope], &[&w, &v], allowed()).unwrap();
    assert_close(&got[0], &[1.0; 4]);
    assert_close(&got[1], &[0.0; 2]);
}

#[test]
fn transforms_of_functions_return_zeros_for_unused_inputs() {
    let (a, b) = (leaf([1.0, 2.0]), leaf([3.0, 4.0, 5.0]));
    let (u, v) = (Tensor::from([1.0, 0.5]), Tensor::from([1.0, 0.5, 2.0]));
    let constant = |_: &[Tensor]| Ok(Tensor::from(7.0));
    let uses_one = |x: &[Tensor]| Ok(x[0].cube().sum(..));
    let outer = number(2.0);
    let uses_none = |_: &[Tensor]| Ok(outer.square());
    for (value, products) in
        [hvp(constant, &[&a, &b], &[&u, &v]), hvp(uses_none, &[&a, &b], &[&u, &v])].map(Result::unwrap)
    {
        assert!(value.item::<f64>() > 0.0);
        assert_close(&products[0], &[0.0; 2]);
        assert_close(&products[1], &[0.0; 3]);
    }
    let (_, products) = hvp(uses_one, &[&a, &b], &[&u, &v]).unwrap();
    assert_close(&products[0], &[6.0, 6.0]);
    assert_close(&products[1], &[0.0; 3]);
    let one = Tensor::from(1.0);
    let (_, gradients) = vjp(|x| uses_one(x).map(|y| vec![y]), &[&a, &b], &[&one]).unwrap();
    assert_close(&gradients[0], &[3.0, 12.0]);
    assert_close(&gradients[1], &[0.0; 3]);
    let (_, products) = jvp(|x| Ok(vec![x[0].square(), Tensor::from(1.0)]), &[&a, &b], &[&u, &v]).unwrap();
    assert_close(&products[0], &[2.0, 2.0]);
    assert_close(&products[1], &[0.0]);
    for (_, j) in
        [jacobian(|_| Ok(Tensor::from([1.0])), &a), jacobian(|_| Ok(outer.reshape([1])), &a)].map(Result::unwrap)
    {
        assert_eq!(j.shape().dims(), [1, 2]);
        assert_close(&j, &[0.0; 2]);
    }
    for (_, h) in [hessian(|_| Ok(Tensor::from(1.0)), &a), hessian(|x| Ok((x * &u).sum(..)), &a)].map(Result::unwrap) {
        assert_close(&h, &[0.0; 4]);
    }
}

#[test]
fn several_outputs_are_weighted_and_summed() {
    let x = leaf([1.0, 2.0]);
    let (a, b) = (x.square(), &x * 3.0);
    let weights = vec![Some(Tensor::from([1.0, 10.0])), None];
    let got = grad(&[&a, &b], &[&x], GradOptions { grad_outputs: weights, ..Default::default() }).unwrap();
    assert_close(&got[0], &[2.0 + 3.0, 40.0 + 3.0]);
    let wrong = GradOptions { grad_outputs: vec![Some(Tensor::from(1.0))], ..Default::default() };
    assert!(matches!(grad(&[&x.square()], &[&x], wrong), Err(Error::ShapeMismatch { .. })));
}

#[test]
fn a_freed_graph_is_rejected_unless_retained() {
    let x = number(1.0);
    let y = x.sin();
    grad(&[&y], &[&x], GradOptions { retain_graph: true, ..Default::default() }).unwrap();
    grad(&[&y], &[&x], GradOptions::default()).unwrap();
    assert!(matches!(grad(&[&y], &[&x], GradOptions::default()), Err(Error::GraphFreed { node: "sin" })));
}

/// f(x, y) = (x·y, sin x), with Jacobians in closed form.
fn f(x: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![&x[0] * &x[1], x[0].sin()])
}

fn points() -> (Tensor, Tensor) {
    (Tensor::from([0.3, -1.2]), Tensor::from([2.0, 5.0]))
}

#[test]
fn vjp_in_closed_form() {
    let (x, y) = points();
    let (u, v) = (Tensor::from([1.0, -2.0]), Tensor::from([0.5, 3.0]));
    let (outputs, products) = vjp(f, &[&x, &y], &[&u, &v]).unwrap();
    assert_close(&outputs[0], &[0.6, -6.0]);
    assert_close(&products[0], &[2.0 + 0.5 * 0.3f64.cos(), -10.0 + 3.0 * 1.2f64.cos()]);
    assert_close(&products[1], &[0.3, 2.4]);
    assert!(x.grad().is_none() && !x.requires_grad());
}

#[test]
fn jvp_in_closed_form() {
    let (x, y) = points();
    let (dx, dy) = (Tensor::from([1.0, 2.0]), Tensor::from([-1.0, 0.5]));
    let (outputs, products) = jvp(f, &[&x, &y], &[&dx, &dy]).unwrap();
    assert_close(&outputs[1], &[0.3f64.sin(), -1.2f64.sin()]);
    assert_close(&products[0], &[2.0 - 0.3, 10.0 - 0.6]);
    assert_close(&products[1], &[0.3f64.cos(), 2.0 * 1.2f64.cos()]);
    // The vjp of a linear function does not depend on x.
    let (_, products) = jvp(|x| Ok(vec![&x[0] * 3.0]), &[&x], &[&dx]).unwrap();
    assert_close(&products[0], &[3.0, 6.0]);
    // The product of an output that does not depend on the input is 0.
    let (_, products) = jvp(|_| Ok(vec![Tensor::from([7.0])]), &[&x], &[&dx]).unwrap();
    assert_close(&products[0], &[0.0]);
}

#[test]
fn hvp_in_closed_form() {
    // Σ x³·y: ∂²/∂x² = 6xy, ∂²/∂x∂y = 3x²
    let (x, y) = points();
    let (dx, dy) = (Tensor::from([1.0, 2.0]), Tensor::from([-1.0, 0.5]));
    let (value, products) = hvp(|x| Ok((x[0].cube() * &x[1]).sum(..)), &[&x, &y], &[&dx, &dy]).unwrap();
    let (xs, ys, us, vs) = ([0.3, -1.2f64], [2.0, 5.0], [1.0, 2.0], [-1.0, 0.5]);
    assert_close(&value, &[xs[0].powi(3) * ys[0] + xs[1].powi(3) * ys[1]]);
    let by_x = |i: usize| 6.0 * xs[i] * ys[i] * us[i] + 3.0 * xs[i] * xs[i] * vs[i];
    let by_y = |i: usize| 3.0 * xs[i] * xs[i] * us[i];
    assert_close(&products[0], &[by_x(0), by_x(1)]);
    assert_close(&products[1], &[by_y(0), by_y(1)]);
    // A linear function has a zero Hessian.
    let (_, products) = hvp(|x| Ok(x[0].sum(..)), &[&x], &[&dx]).unwrap();
    assert_close(&products[0], &[0.0, 0.0]);
    assert!(matches!(hvp(|x| Ok(x[0].clone()), &[&x], &[&dx]), Err(Error::NotAScalar { op: "hvp", .. })));
}

/// Returns the loss of a small network that uses every parameter, one of them twice.
fn network(p: &[Tensor]) -> Result<Tensor> {
    let x = wave([5, 6]);
    let hidden = (x.matmul(&p[0].t()) + &p[1]).relu();
    let logits = hidden.matmul(&p[2].t()) + (&p[1] * &p[1]).sum(..);
    ops::cross_entropy(&logits, &Tensor::from([0i64, 2, 1, 2, 0]), ops::CrossEntropyOptions::default())
}

fn parameters() -> ([Tensor; 3], [Tensor; 3]) {
    let parameters = [wave([4, 6]), wave([4]), wave([3, 4])];
    let vectors = parameters.each_ref().map(|p| (p * 3.0).cos());
    (parameters, vectors)
}

/// Returns the value and H·v by the definition of `hvp`, with eager kernels.
fn eager_hvp(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor], vectors: &[Tensor]) -> Vec<Vec<u8>> {
    let inputs: Vec<Tensor> = inputs.iter().map(|t| t.detach().requires_grad_(true)).collect();
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let value = f(&inputs).unwrap();
    let first = grad(&[&value], &refs, GradOptions { create_graph: true, ..Default::default() }).unwrap();
    let seeds = vectors.iter().cloned().map(Some).collect();
    let outputs: Vec<&Tensor> = first.iter().collect();
    let second = grad(&outputs, &refs, GradOptions { grad_outputs: seeds, ..Default::default() }).unwrap();
    [bits(&[value.detach()]), bits(&second)].concat()
}

fn hvp_bits(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor], vectors: &[Tensor]) -> Vec<Vec<u8>> {
    let (inputs, vectors): (Vec<_>, Vec<_>) = (inputs.iter().collect(), vectors.iter().collect());
    let (value, products) = hvp(f, &inputs, &vectors).unwrap();
    [bits(&[value.detach()]), bits(&products)].concat()
}

#[test]
fn hvp_is_bitwise_equal_to_eager_execution_in_every_mode() {
    let (inputs, vectors) = parameters();
    let expected = eager_hvp(network, &inputs, &vectors);
    assert_eq!(hvp_bits(network, &inputs, &vectors), expected);
    assert_eq!(
        lazy(|| hvp_bits(network, &inputs, &vectors)),
        expected,
        "the result in a lazy scope differs from the eager one"
    );
    {
        let _off = no_grad();
        assert_eq!(
            hvp_bits(network, &inputs, &vectors),
            expected,
            "the result under no_grad() differs from the eager one"
        );
    }
    let mut step = capture(
        |v| {
            let (inputs, vectors): (Vec<_>, Vec<_>) = (inputs.iter().collect(), v.iter().collect());
            hvp(network, &inputs, &vectors).unwrap().1
        },
        &vectors.iter().collect::<Vec<_>>(),
    )
    .unwrap();
    let replayed = step.launch(&vectors.iter().collect::<Vec<_>>()).unwrap();
    let products = bits(&(0..3).map(|i| replayed.to_tensor(i)).collect::<Vec<_>>());
    assert_eq!(products, expected[1..], "the captured result differs from the eager one");
    // The results of `hvp` can be differentiated, and their graph is retained.
    let tracked = inputs.each_ref().map(|t| t.detach().requires_grad_(true));
    let all: (Vec<_>, Vec<_>) = (tracked.iter().collect(), vectors.iter().collect());
    let (value, products) = hvp(network, &all.0, &all.1).unwrap();
    products[0].sum(..).backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
    value.backward();
    assert!(tracked.iter().all(|t| t.grad().is_some()));
}

#[test]
fn functions_and_hooks_in_hvp_may_read_values() {
    let (inputs, vectors) = parameters();
    let expected = eager_hvp(network, &inputs, &vectors);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let reading = |p: &[Tensor]| {
        assert!(p[0].sum(..).item::<f32>().is_finite(), "hvp() must let its function read values");
        let value = network(p)?;
        let seen = seen.clone();
        value.register_hook(move |g| {
            seen.lock().unwrap().push(g.item::<f32>());
            None
        });
        Ok(value)
    };
    assert_eq!(hvp_bits(reading, &inputs, &vectors), expected);
    assert_eq!(seen.lock().unwrap()[0], 1.0, "hvp() must let a hook read values");
}

#[test]
fn hvp_and_jvp_return_errors_and_restore_the_mode() {
    let (x, v) = (leaf([1.0, 2.0]), Tensor::from([1.0, 0.5]));
    let cubes = |x: &[Tensor]| Ok(x[0].cube().sum(..));
    let wrong = Tensor::from([1.0, 2.0, 3.0]);
    assert!(matches!(hvp(cubes, &[&x], &[&wrong]), Err(Error::ShapeMismatch { op: "hvp", .. })));
    let rejected = |x: &[Tensor]| ops::index_select(&x[0], 0, &Tensor::from([9i64])).map(|y| y.sum(..));
    assert!(matches!(hvp(rejected, &[&x], &[&v]), Err(Error::IndexOutOfBounds { .. })));
    let one = |x: &[Tensor]| rejected(x).map(|y| vec![y]);
    assert!(matches!(jvp(one, &[&x], &[&v]), Err(Error::IndexOutOfBounds { .. })));
    // Execution is eager again: a class index is checked in the call.
    let classes = Tensor::from([5i64]);
    let checked = ops::cross_entropy(&wave([1, 3]), &classes, ops::CrossEntropyOptions::default());
    assert!(matches!(checked, Err(Error::IndexOutOfBounds { .. })));
}

#[test]
fn transforms_compose_and_work_under_no_grad() {
    // d/dx of the directional derivative of x³ along 1 is 6x.
    let x = number(2.0);
    let (_, slopes) = jvp(|x| Ok(vec![x[0].cube()]), &[&x], &[&Tensor::from(1.0)]).unwrap();
    assert_close(&slopes[0], &[12.0]);
    slopes[0].backward();
    assert_close(&x.grad().unwrap(), &[12.0]);
    let _off = no_grad();
    let (_, products) = vjp(|x| Ok(vec![x[0].square()]), &[&x], &[&Tensor::from(1.0)]).unwrap();
    assert_close(&products[0], &[4.0]);
    assert!(!products[0].requires_grad());
}

#[test]
fn gradcheck_finds_a_wrong_gradient() {
    use super::custom_operation::Cubed;
    let x = leaf([0.5, 1.5]);
    let apply = |wrong| move |x: &[Tensor]| Ok(vec![pellucid_tensor::apply_one(Cubed { wrong }, &[&x[0]])?]);
    gradcheck(apply(false), &[&x], GradCheckOptions::default()).unwrap();
    gradgradcheck(apply(false), &[&x], GradCheckOptions::default()).unwrap();
    let found = gradcheck(apply(true), &[&x], GradCheckOptions::default()).unwrap_err();
    assert!(matches!(found, Error::GradCheck { check: "gradcheck", output: 0, input: 0, .. }), "{found}");
    let narrow = Tensor::from([1.0f32]).requires_grad_(true);
    assert!(matches!(
        gradcheck(apply(false), &[&narrow], GradCheckOptions::default()),
        Err(Error::DTypeMismatch { .. })
    ));
    // gradcheck() must also detect a gradient that is missing because f detaches its input.
    assert!(gradcheck(|x| Ok(vec![x[0].detach().square()]), &[&x], GradCheckOptions::default()).is_err());
}

#[test]
fn a_jacobian_has_the_axes_of_output_and_input() {
    let (x, w) = (Tensor::from([[1.0, 2.0], [3.0, 4.0]]), Tensor::from([[1.0, 0.5, 2.0], [0.0, 1.0, 1.0]]));
    let (y, j) = jacobian(|x| ops::matmul(x, &w), &x).unwrap();
    assert_eq!((y.shape().dims(), j.shape().dims()), (&[2, 3][..], &[2, 3, 2, 2][..]));
    for (k, &d) in j.to_vec::<f64>().iter().enumerate() {
        let (row, column, from, inner) = (k / 12, k / 4 % 3, k / 2 % 2, k % 2);
        let want = if row == from { w.to_vec::<f64>()[3 * inner + column] } else { 0.0 };
        assert_eq!(d, want, "element {k}");
    }
    // The input and the output may be 0-d, the output may be empty, and it may not depend on x.
    let (_, j) = jacobian(|x| Ok(x.sin()), &Tensor::from(0.5)).unwrap();
    assert_eq!((j.rank(), j.item::<f64>()), (0, 0.5f64.cos()));
    assert_eq!(jacobian(|x| ops::narrow(x, 0, 0, 0), &x).unwrap().1.shape().dims(), [0, 2, 2, 2]);
    assert_close(&jacobian(|_| Ok(Tensor::from([1.0])), &Tensor::from(2.0)).unwrap().1, &[0.0]);
}

#[test]
fn a_hessian_agrees_with_hvp_and_is_differentiable() {
    let f = |x: &Tensor| Ok((x.sin() * x.prod(..)).sum(..));
    let x = leaf([0.3, -0.7, 1.1]);
    let (value, h) = hessian(f, &x).unwrap();
    assert_eq!(value.item::<f64>(), f(&x).unwrap().item::<f64>());
    for k in 0..3 {
        let v = Tensor::arange(0i64, 3, 1).eq(k as i64).to_dtype(h.dtype());
        let column = hvp(|x| f(&x[0]), &[&x], &[&v]).unwrap().1.remove(0);
        assert_close(&h.select(1, k), &column.to_vec::<f64>());
    }
    // The derivative of the Hessian of x³ is the third derivative, 6.
    let x = number(2.0);
    let (_, h) = hessian(|x| Ok(x.cube()), &x).unwrap();
    assert_close(&grad(&[&h], &[&x], GradOptions::default()).unwrap()[0], &[6.0]);
    assert!(!no_grad_hessian(&x).requires_grad());
    let error = hessian(|x| Ok(x.sin()), &leaf([1.0, 2.0])).unwrap_err();
    assert!(
        matches!(error, Error::NotAScalar { op: "hessian", .. }) && error.to_string().contains("sum(..)"),
        "{error}"
    );
}

fn no_grad_hessian(x: &Tensor) -> Tensor {
    let _off = no_grad();
    hessian(|x| Ok(x.cube()), x).unwrap().1
}

#[test]
fn there_is_one_vector_for_each_tensor() {
    let x = number(2.0);
    let square = |x: &[Tensor]| Ok(vec![x[0].square()]);
    let rejected = |result: Option<Error>| result.is_some_and(|e| matches!(e, Error::InvalidArgument { .. }));
    assert!(rejected(vjp(square, &[&x], &[]).err()) && rejected(vjp(square, &[&x], &[&x, &x]).err()));
    assert!(rejected(jvp(square, &[&x], &[]).err()) && rejected(jvp(square, &[&x], &[&x, &x]).err()));
    assert!(rejected(hvp(|x| Ok(x[0].square()), &[&x], &[]).err()));
    let y = x.square();
    let grad_outputs = vec![None, Some(Tensor::from(1.0))];
    assert!(rejected(grad(&[&y], &[&x], GradOptions { grad_outputs, ..Default::default() }).err()));
}

#[test]
fn transforms_reject_tensors_that_are_not_floats() {
    let (x, k, v) = (Tensor::from([1.0, 2.0]), Tensor::from([1i64, 2]), Tensor::from([1.0, 1.0]));
    let squares = |x: &[Tensor]| Ok(x.iter().map(Tensor::square).collect::<Vec<_>>());
    let sum = |x: &[Tensor]| Ok(x[1].sum(..));
    let rejections = [
        ("jacobian", "input 0", jacobian(|x| Ok(x.square()), &k).map(drop)),
        ("hessian", "input 0", hessian(|x| Ok(x.sum(..)), &k).map(drop)),
        ("vjp", "input 1", vjp(squares, &[&x, &k], &[&v, &v]).map(drop)),
        ("jvp", "input 1", jvp(squares, &[&x, &k], &[&v, &v]).map(drop)),
        ("jvp", "output 0", jvp(|x| Ok(vec![x[0].argmax(..)]), &[&x], &[&v]).map(drop)),
        ("hvp", "input 1", hvp(sum, &[&x, &k], &[&v, &v]).map(drop)),
    ];
    for (op, named, rejected) in rejections {
        let error = rejected.unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }) && error.operation() == Some(op), "{error}");
        assert!(error.to_string().contains(named) && error.to_string().contains("i64"), "{error}");
    }
}
