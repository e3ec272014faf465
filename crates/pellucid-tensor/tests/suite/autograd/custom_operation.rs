//! User-defined operations have the same capabilities as built-in ones.

use crate::support::{assert_close, leaf, number, slope};
use pellucid_tensor::{
    Array, Arrays, BackwardOptions, DType, Error, GradCheckOptions, GradOptions, InputGradients, NeedsInputGrad,
    Operation, OutputGradients, Result, SaveForBackward, SavedTensors, Tensor, apply, apply_one, grad, gradcheck,
    gradgradcheck, hvp, jacobian, jvp, lazy, no_grad, ops, vjp,
};
use std::sync::{Arc, Mutex};

/// x³, with a wrong gradient on request.
pub(super) struct Cubed {
    pub(super) wrong: bool,
}

impl Operation for Cubed {
    fn name(&self) -> &'static str {
        "cubed"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        Ok(std::iter::once(ops::cube(&Tensor::from(inputs[0].clone()))?.array().clone()).collect())
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let factor = if self.wrong { 2.0 } else { 3.0 };
        let gradient = grads.get(0)? * saved.input(0)?.square() * factor;
        Ok(std::iter::once(Some(gradient)).collect())
    }
}

/// Returns (sin(x)·y, x + y, the position of the larger). It has several inputs, outputs, dtypes and kinds of saved
/// values.
struct SeveralOutputs {
    needed: NeededInputs,
}

/// One entry for each call of `backward`: whether each of the two inputs needed a gradient.
type NeededInputs = Arc<Mutex<Vec<(bool, bool)>>>;

impl Operation for SeveralOutputs {
    fn name(&self) -> &'static str {
        "several_outputs"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let (x, y) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
        let sine = x.sin();
        saves.input(0);
        saves.output(0);
        saves.input(1);
        saves.array(sine.array().clone());
        Ok([&sine * &y, &x + &y, x.gt(&y)].iter().map(|t| t.array().clone()).collect())
    }
    fn backward(
        &self,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needed: NeedsInputGrad,
    ) -> Result<InputGradients> {
        self.needed.lock().unwrap().push((needed.contains(0), needed.contains(1)));
        assert_eq!((saved.inputs(), grads.len()), (2, 3));
        let (x, y) = (saved.input(0)?, saved.input(1)?);
        // A saved intermediate value is a constant, so differentiable code recomputes it from the inputs.
        assert_eq!(saved.array(0)?.to_vec::<f64>(), x.sin().to_vec::<f64>());
        assert_eq!(saved.output(0)?.to_vec::<f64>(), (x.sin() * &y).to_vec::<f64>());
        let (g, h) = (grads.get(0)?, grads.get(1)?);
        let by_x = needed.contains(0).then(|| &g * x.cos() * &y + &h);
        let by_y = needed.contains(1).then(|| &g * x.sin() + &h);
        Ok([by_x, by_y].into_iter().collect())
    }
}

fn several_outputs() -> (SeveralOutputs, NeededInputs) {
    let needed = Arc::new(Mutex::new(vec![]));
    (SeveralOutputs { needed: needed.clone() }, needed)
}

#[test]
fn operations_may_have_several_inputs_outputs_and_saved_values() {
    let (x, y) = (leaf([0.3, -1.0]), leaf([2.0, 3.0]));
    let (op, _) = several_outputs();
    let out = apply(op, &[&x, &y]).unwrap();
    assert!(out[0].requires_grad() && out[1].requires_grad());
    assert!(!out[2].requires_grad() && out[2].is_leaf() && out[2].dtype() == DType::Bool);
    assert_eq!(out[0].creator(), out[1].creator());
    (&out[0] * 10.0 + &out[1]).backward();
    assert_close(&x.grad().unwrap(), &[10.0 * 0.3f64.cos() * 2.0 + 1.0, 10.0 * 1f64.cos() * 3.0 + 1.0]);
    assert_close(&y.grad().unwrap(), &[10.0 * 0.3f64.sin() + 1.0, -10.0 * 1f64.sin() + 1.0]);
    let call = |x: &[Tensor]| Ok(apply(several_outputs().0, &[&x[0], &x[1]])?.into_vec());
    gradcheck(call, &[&x, &y], GradCheckOptions::default()).unwrap();
    gradgradcheck(call, &[&x, &y], GradCheckOptions::default()).unwrap();
}

#[test]
fn backward_receives_the_needed_gradients() {
    let (x, c) = (leaf([0.3, -1.0]), Tensor::from([2.0, 3.0]));
    let (op, needed) = several_outputs();
    apply(op, &[&c, &x]).unwrap()[0].backward();
    assert_eq!(*needed.lock().unwrap(), [(false, true)]);
    assert!(c.grad().is_none());
}

#[test]
fn under_no_grad_nothing_is_recorded() {
    let x = leaf([1.0]);
    let _off = no_grad();
    assert!(apply_one(Cubed { wrong: false }, &[&x]).unwrap().is_leaf());
}

/// An operation with a float result that declares no gradient.
struct NoDerivative;

impl Operation for NoDerivative {
    fn name(&self) -> &'static str {
        "no_derivative"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(std::iter::once(inputs[0].copy()?).collect())
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        unreachable!("an operation without a gradient always rejects tracked inputs")
    }
    fn has_gradient(&self) -> bool {
        false
    }
}

#[test]
fn a_missing_gradient_is_an_error() {
    let x = leaf([1.0]);
    assert_eq!(apply_one(NoDerivative, &[&x]).unwrap_err(), Error::NoGradient { op: "no_derivative" });
    assert_eq!(apply_one(NoDerivative, &[&x.detach()]).unwrap().item::<f64>(), 1.0);
    let _off = no_grad();
    assert!(apply_one(NoDerivative, &[&x]).is_ok());
}

/// An operation whose `backward` returns the result of the given function.
struct ReturnsGradient(fn(Tensor) -> Result<InputGradients>);

impl Operation for ReturnsGradient {
    fn name(&self) -> &'static str {
        "returns"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(std::iter::once(inputs[0].copy()?).collect())
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        self.0(grads.get(0)?)
    }
}

#[test]
fn a_wrong_gradient_is_a_typed_error() {
    let x = leaf([1.0, 2.0]);
    let run = |f| apply_one(ReturnsGradient(f), &[&x]).unwrap().try_backward_with(BackwardOptions::default());
    assert!(matches!(
        run(|g| Ok([Some(g.sum(..))].into_iter().collect())),
        Err(Error::ShapeMismatch { op: "returns", .. })
    ));
    let narrow = run(|g| Ok([Some(g.to_dtype(DType::F32))].into_iter().collect()));
    assert!(matches!(narrow, Err(Error::DTypeMismatch { op: "returns", .. })));
    let own = run(|_| Err(Error::InvalidArgument { op: "returns", reason: "a test error".into() }));
    assert!(matches!(own, Err(Error::InvalidArgument { .. })));
    assert!(x.grad().is_none());
    run(|_| Ok([None].into_iter().collect())).unwrap();
    assert!(x.grad().is_none(), "the leaf must have no gradient, because backward returned none");
}

/// The identity; its first `backward` runs the backward pass of another loss.
struct NestedPass(Arc<Mutex<Option<Tensor>>>);

impl Operation for NestedPass {
    fn name(&self) -> &'static str {
        "nested_pass"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(std::iter::once(inputs[0].copy()?).collect())
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let other = self.0.lock().unwrap().take();
        other.map_or(Ok(()), |loss| loss.try_backward())?;
        Ok(std::iter::once(Some(grads.get(0)?)).collect())
    }
}

/// Several passes can run a node without saved values at the same time, also in several threads.
#[test]
fn passes_share_a_node_without_saved_values() {
    let x = leaf([1.0, 2.0]);
    let nested = Arc::new(Mutex::new(None));
    let shared = apply_one(NestedPass(nested.clone()), &[&x]).unwrap();
    let [first, second] = [1.0, 10.0].map(|factor| (&shared * factor).sum(..));
    *nested.lock().unwrap() = Some(second);
    first.backward();
    assert_close(&x.grad().unwrap(), &[11.0, 11.0]);
}

/// An operation whose `backward` reads a value that `forward` did not save.
struct ReadsUnsavedValue;

impl Operation for ReadsUnsavedValue {
    fn name(&self) -> &'static str {
        "forgetful"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(std::iter::once(inputs[0].copy()?).collect())
    }
    fn backward(&self, saved: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok([Some(saved.input(0)?)].into_iter().collect())
    }
}

#[test]
fn reading_an_unsaved_value_is_an_error() {
    let y = apply_one(ReadsUnsavedValue, &[&number(1.0)]).unwrap();
    // If no input requires a gradient, backward is not called and cannot fail.
    assert!(y.try_backward_with(BackwardOptions::default()).is_ok());
    let x = number(1.0);
    let y = apply_one(ReadsUnsavedValue, &[&x]).unwrap();
    assert!(matches!(
        y.try_backward_with(BackwardOptions::default()),
        Err(Error::InvalidArgument { op: "forgetful", .. })
    ));
}

#[test]
fn custom_operations_are_nodes_of_the_graph() {
    let x = number(2.0);
    let y = apply_one(Cubed { wrong: false }, &[&(&x * 2.0)]).unwrap();
    assert_eq!((y.creator().unwrap().name(), y.generation()), ("cubed", 2));
    y.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
    let first = x.grad().unwrap();
    assert_eq!(first.item::<f64>(), 24.0 * 4.0, "24x²");
    x.zero_grad();
    first.backward();
    assert_eq!(slope(&x), 96.0);
}

/// Σ x·c, whose gradient is the saved c. `Count` returns a wrong number of gradients, `Saves` saves an input that does
/// not exist, and `Reads` reads the gradient of an output that does not exist.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Correct,
    Count,
    Saves,
    Reads,
    NoOutput,
}

impl Operation for Variant {
    fn name(&self) -> &'static str {
        "weighted_sum"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        if *self == Variant::NoOutput {
            return Ok(Arrays::new());
        }
        saves.input(if *self == Variant::Saves { 7 } else { 1 });
        let (x, c) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
        Ok([(&x * &c).sum(..).array().clone()].into_iter().collect())
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        match self {
            Variant::Count => Ok(InputGradients::new()),
            Variant::Reads => Ok([Some(grads.get(4)?), None].into_iter().collect()),
            _ => Ok([Some(saved.input(1)?), None].into_iter().collect()),
        }
    }
}

#[test]
fn a_gradient_that_is_a_saved_value_shares_no_memory_with_it() {
    for create_graph in [false, true] {
        for is_lazy in [false, true] {
            let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
            let c = Tensor::from([3.0f64, 4.0]);
            let clear = || {
                let y = apply_one(Variant::Correct, &[&x, &c]).unwrap();
                y.backward_with(BackwardOptions { create_graph, ..Default::default() });
                assert_ne!(x.grad().unwrap().storage_id(), c.storage_id(), "the gradient must have its own storage");
                let _off = no_grad();
                x.grad().unwrap().copy_(&Tensor::from(0.0f64));
            };
            if is_lazy {
                lazy(clear)
            } else {
                clear()
            }
            assert_eq!(c.to_vec::<f64>(), [3.0, 4.0], "create_graph {create_graph}, lazy {is_lazy}: c must not change");
            assert_eq!(x.grad().unwrap().to_vec::<f64>(), [0.0, 0.0]);
        }
    }
}

#[test]
fn mistakes_in_an_operation_are_errors_that_name_it() {
    let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
    let c = Tensor::from([3.0f64, 4.0]);
    for (variant, part) in
        [(Variant::Count, "0 gradients, but the operation has 2 inputs"), (Variant::Reads, "output 4")]
    {
        let y = apply_one(variant, &[&x, &c]).unwrap();
        let error = y.try_backward_with(BackwardOptions::default()).unwrap_err().to_string();
        assert!(error.contains("weighted_sum") && error.contains(part), "{error}");
    }
    for inputs in [[&x, &c], [&c, &c]] {
        let error = apply(Variant::NoOutput, &inputs).unwrap_err().to_string();
        assert!(error.contains("weighted_sum") && error.contains("no output"), "{error}");
    }
    let saves = std::panic::AssertUnwindSafe(|| apply_one(Variant::Saves, &[&x, &c]));
    let message = std::panic::catch_unwind(saves).expect_err("saving input 7 must panic");
    let message = message.downcast_ref::<String>().expect("the panic must have a message");
    assert!(message.contains("weighted_sum") && message.contains("2 inputs"), "{message}");
}

#[test]
fn vectors_of_another_shape_are_errors_that_name_the_called_function() {
    let (x, wrong) = (Tensor::from([1.0f64, 2.0, 3.0]), Tensor::from([1.0f64, 2.0]));
    let sine = |x: &[Tensor]| Ok(vec![x[0].sin()]);
    for (name, error) in [
        ("jvp", jvp(sine, &[&x], &[&wrong]).unwrap_err()),
        ("vjp", vjp(sine, &[&x], &[&wrong]).unwrap_err()),
        ("hvp", hvp(|x| Ok(x[0].sin().sum(..)), &[&x], &[&wrong]).unwrap_err()),
    ] {
        let error = error.to_string();
        assert!(error.starts_with(name) && error.contains("[2]") && error.contains("[3]"), "{error}");
    }
}

/// An operation that computes its gradient from host values has no second derivative: it is rejected, not zero.
#[test]
fn a_gradient_from_values_on_the_host_has_no_derivative() {
    struct HostSquare;
    impl Operation for HostSquare {
        fn name(&self) -> &'static str {
            "host_square"
        }
        fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
            saves.input(0);
            Ok(std::iter::once(ops::square(&Tensor::from(inputs[0].clone()))?.array().clone()).collect())
        }
        fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
            let (g, x) = (grads.get(0)?.to_vec::<f64>(), saved.input(0)?.to_vec::<f64>());
            let values: Vec<f64> = g.iter().zip(x).map(|(g, x)| 2.0 * g * x).collect();
            Ok(std::iter::once(Some(Tensor::from(values))).collect())
        }
    }
    let x = Tensor::from([3.0f64, -1.0]).requires_grad_(true);
    let square = |x: &Tensor| apply_one(HostSquare, &[x]);
    square(&x).unwrap().sum(..).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [6.0, -2.0]);
    let error = jvp(|x| square(&x[0]).map(|y| vec![y]), &[&x], &[&Tensor::ones([2], DType::F64)]).unwrap_err();
    assert!(error.to_string().starts_with("host_square: backward() returned a gradient that does not"), "{error}");
    // First derivatives need no history.
    let (_, products) = jacobian(|x| Ok(square(x)?.square()), &x).unwrap();
    assert_eq!(products.to_vec::<f64>(), [108.0, 0.0, 0.0, -4.0]);
}

/// A gradient may depend on only some of the incoming gradients.
#[test]
fn a_constant_gradient_of_one_of_two_outputs_is_accepted() {
    struct Scaled;
    impl Operation for Scaled {
        fn name(&self) -> &'static str {
            "scaled"
        }
        fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
            let scale = |k: usize| Ok((Tensor::from(inputs[k].clone()) * (k + 2) as f64).array().clone());
            (0..2).map(scale).collect()
        }
        fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
            Ok([Some(grads.get(0)? * 2.0), Some(grads.get(1)? * 3.0)].into_iter().collect())
        }
    }
    let [a, b] = [1.5f64, -2.0].map(|value| Tensor::from([value]).requires_grad_(true));
    let y = apply(Scaled, &[&a, &b]).unwrap();
    let loss = y[0].square().sum(..) + y[1].sum(..);
    let options = GradOptions { create_graph: true, ..Default::default() };
    let first = grad(&[&loss], &[&a, &b], options).unwrap();
    assert_eq!([first[0].item::<f64>(), first[1].item::<f64>()], [12.0, 3.0]);
    let second = grad(&[&first[0].sum(..)], &[&a], GradOptions::default()).unwrap();
    assert_eq!(second[0].item::<f64>(), 8.0);
}

/// A check without an input that requires a gradient would compare nothing.
#[test]
fn a_gradient_check_needs_a_tracked_input() {
    let x = Tensor::from([0.5f64]);
    let f = |x: &[Tensor]| Ok(vec![x[0].sin()]);
    for result in
        [gradcheck(f, &[&x], GradCheckOptions::default()), gradgradcheck(f, &[&x], GradCheckOptions::default())]
    {
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
}
