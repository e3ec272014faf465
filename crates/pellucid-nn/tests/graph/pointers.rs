//! Models, losses and optimizers that a trainer borrows, boxes or shares.

use pellucid_nn::graph::*;
use pellucid_nn::loss::{Loss, MseLoss, from_fn};
use pellucid_nn::optim::{Optimizer, ParamGroup, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Result, Tensor, manual_seed, ops};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Pair = (Tensor, Tensor);

/// A model that adds its two inputs.
#[derive(Module)]
struct Sum(Linear, Linear);

impl Model<Pair> for Sum {
    fn compute(&self, (a, b): &Pair) -> Result<Tensor> {
        ops::add(&self.0.try_forward(a)?, &self.1.try_forward(b)?)
    }
}

/// A model that adds its inputs before a layer.
#[derive(Module)]
struct LinearOfSum(Linear);

impl<const N: usize> Model<[Tensor; N]> for LinearOfSum {
    fn compute(&self, inputs: &[Tensor; N]) -> Result<Tensor> {
        self.0.try_forward(&inputs[1..].iter().try_fold(inputs[0].clone(), |sum, x| ops::add(&sum, x))?)
    }
}

impl Model<(Tensor, Tensor, Tensor, Tensor)> for LinearOfSum {
    fn compute(&self, (a, b, c, d): &(Tensor, Tensor, Tensor, Tensor)) -> Result<Tensor> {
        self.compute(&[a, b, c, d].map(Tensor::clone))
    }
}

fn linear_of_sum() -> LinearOfSum {
    manual_seed(3);
    LinearOfSum(Linear::new(2, 1))
}

fn sum() -> Sum {
    manual_seed(3);
    Sum(Linear::new(2, 1), Linear::new(3, 1))
}

fn single() -> Sequential {
    manual_seed(3);
    sequential![Linear::new(2, 1)]
}

fn pair() -> Pair {
    (Tensor::ones([4, 2], DType::F32), Tensor::ones([4, 3], DType::F32))
}

fn sgd(model: &(impl Module + ?Sized)) -> Sgd {
    Sgd::try_new(model.parameters(), SgdOptions { lr: 0.05, ..Default::default() }).unwrap()
}

/// Returns the losses of some steps.
fn losses<X: Batch, M: Model<X>>(model: M, loss: impl Loss, optimizer: impl Optimizer, x: &X) -> Vec<f64> {
    let mut trainer = GraphTrainer::new(model, loss, optimizer);
    let y = Tensor::zeros([4, 1], DType::F32);
    let losses: Vec<f64> = (0..3).map(|_| trainer.step_and_evaluate(x, &y).unwrap()).collect();
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "the losses must fall: {losses:?}");
    losses
}

/// Checks that trainers with each of these models return the same losses.
macro_rules! same_losses {
    ($x:expr, $model:ident = $make:expr; $($pointer:expr),* $(,)?) => {{
        let expected = {
            let model = $make;
            let optimizer = sgd(&model);
            losses(model, MseLoss::default(), optimizer, &$x)
        };
        $({
            #[allow(unused_mut)]
            let mut $model = $make;
            let optimizer = sgd(&$model);
            assert_eq!(losses($pointer, MseLoss::default(), optimizer, &$x), expected, stringify!($pointer));
        })*
    }};
}

#[test]
fn a_model_of_several_inputs_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same_losses! {
        pair(), model = sum();
        &model,
        &&model,
        &mut model,
        Box::new(model),
        Arc::new(model),
        &model as &dyn Model<Pair>,
        Box::new(model) as Box<dyn Model<Pair>>,
        Arc::new(model) as Arc<dyn Model<Pair>>,
        &*Rc::new(model),
    }
}

#[test]
fn a_model_of_one_input_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    same_losses! {
        pair().0, model = single();
        &model,
        &mut model,
        Box::new(model),
        Arc::new(model),
        &model as &dyn Layer,
        Box::new(model) as Box<dyn Layer>,
        Arc::new(model) as Arc<dyn Layer>,
    }
}

/// Every tensor of an array or a tuple is an input of the recorded step, under its own name.
#[test]
fn a_batch_may_be_an_array_or_a_tuple_of_four() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let zeros = || Tensor::zeros([4, 2], DType::F32);
    let x = Tensor::ones([4, 2], DType::F32);
    let model = single();
    let expected = losses(&model, MseLoss::default(), sgd(&model), &x);
    let model = linear_of_sum();
    let array: [Tensor; 10] = std::array::from_fn(|i| if i == 9 { x.clone() } else { zeros() });
    assert_eq!(losses(&model, MseLoss::default(), sgd(&model), &array), expected);
    let model = linear_of_sum();
    let four = (zeros(), zeros(), zeros(), x);
    assert_eq!(losses(&model, MseLoss::default(), sgd(&model), &four), expected);
}

#[test]
fn an_optimizer_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = pair();
    let with = |run: &dyn Fn(&Sum, Sgd) -> Vec<f64>| {
        let model = sum();
        run(&model, sgd(&model))
    };
    let loss = MseLoss::default;
    let expected = with(&|model, sgd| losses(model, loss(), sgd, &x));
    for (name, found) in [
        ("&", with(&|model, sgd| losses(model, loss(), &sgd, &x))),
        ("&mut", with(&|model, mut sgd| losses(model, loss(), &mut sgd, &x))),
        ("&dyn", with(&|model, sgd| losses(model, loss(), &sgd as &dyn Optimizer, &x))),
        ("&mut dyn", with(&|model, mut sgd| losses(model, loss(), &mut sgd as &mut dyn Optimizer, &x))),
        ("Box", with(&|model, sgd| losses(model, loss(), Box::new(sgd), &x))),
        ("Box<dyn>", with(&|model, sgd| losses(model, loss(), Box::new(sgd) as Box<dyn Optimizer>, &x))),
        ("&mut Box<dyn>", with(&|model, sgd| losses(model, loss(), &mut (Box::new(sgd) as Box<dyn Optimizer>), &x))),
        ("Arc", with(&|model, sgd| losses(model, loss(), Arc::new(sgd), &x))),
        ("Arc<dyn>", with(&|model, sgd| losses(model, loss(), Arc::new(sgd) as Arc<dyn Optimizer>, &x))),
        ("Rc, borrowed", with(&|model, sgd| losses(model, loss(), &*Rc::new(sgd), &x))),
    ] {
        assert_eq!(found, expected, "{name}");
    }
}

/// A loss of a program: a struct.
#[derive(Module)]
struct Squares;

impl Loss for Squares {
    fn try_forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        MseLoss::default().try_forward(x, y)
    }

    fn try_forward_with_grad(&self, x: &Tensor, _: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((x.clone(), x.clone()))
    }
}

#[test]
fn a_loss_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = pair();
    let with = |run: &dyn Fn(&Sum, Sgd, Squares) -> Vec<f64>| {
        let model = sum();
        run(&model, sgd(&model), Squares)
    };
    let expected = with(&|model, sgd, _| losses(model, MseLoss::default(), sgd, &x));
    for (name, found) in [
        ("owned", with(&|model, sgd, loss| losses(model, loss, sgd, &x))),
        ("&", with(&|model, sgd, loss| losses(model, &loss, sgd, &x))),
        ("&mut", with(&|model, sgd, mut loss| losses(model, &mut loss, sgd, &x))),
        ("&dyn", with(&|model, sgd, loss| losses(model, &loss as &dyn Loss, sgd, &x))),
        ("Box", with(&|model, sgd, loss| losses(model, Box::new(loss), sgd, &x))),
        ("Box<dyn>", with(&|model, sgd, loss| losses(model, Box::new(loss) as Box<dyn Loss>, sgd, &x))),
        ("&Box<dyn>", with(&|model, sgd, loss| losses(model, &(Box::new(loss) as Box<dyn Loss>), sgd, &x))),
        ("Arc", with(&|model, sgd, loss| losses(model, Arc::new(loss), sgd, &x))),
        ("Arc<dyn>", with(&|model, sgd, loss| losses(model, Arc::new(loss) as Arc<dyn Loss>, sgd, &x))),
        ("with_targets", with(&|model, sgd, loss| losses(model, loss.with_targets([4, 1], DType::F32), sgd, &x))),
        ("from_fn", with(&|model, sgd, loss| losses(model, from_fn(|x, y| loss.try_forward(x, y)), sgd, &x))),
    ] {
        assert_eq!(found, expected, "{name}");
    }
}

/// An optimizer that overrides provided methods.
struct Overriding(ParamGroup, AtomicUsize);

impl Optimizer for Overriding {
    fn parameters(&self) -> Arc<[Parameter]> {
        Arc::default()
    }

    fn groups(&self) -> &[ParamGroup] {
        std::slice::from_ref(&self.0)
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }

    fn try_step_scaled(&self, _: Option<&Tensor>, _: Option<&Tensor>) -> Result<()> {
        Ok(())
    }

    fn zero_grad(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn lr(&self) -> f64 {
        7.0
    }
}

fn zero_grad(optimizer: impl Optimizer) {
    optimizer.zero_grad();
}

fn gradient(loss: impl Loss, x: &Tensor) -> Tensor {
    loss.forward_with_grad(x, x).1
}

/// A pointer calls the overrides of its optimizer or loss.
#[test]
fn overrides_are_not_lost_behind_pointers() {
    let own = Arc::new(Overriding(ParamGroup::new(0.5, None, DType::F32), AtomicUsize::new(0)));
    let boxed: Box<dyn Optimizer> = Box::new(own.clone());
    boxed.zero_grad();
    zero_grad(&boxed);
    assert_eq!((boxed.lr(), own.1.load(Ordering::Relaxed)), (7.0, 2));
    let (x, boxed) = (Tensor::from([1.0f32, 2.0]), Box::new(Squares) as Box<dyn Loss>);
    assert_eq!(gradient(&boxed, &x).to_vec::<f32>(), [1.0, 2.0]);
    assert_eq!(gradient(boxed, &x).to_vec::<f32>(), [1.0, 2.0]);
}
