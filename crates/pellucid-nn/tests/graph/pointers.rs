//! Models, losses and optimizers that a trainer borrows, boxes or shares.

use pellucid_nn::graph::*;
use pellucid_nn::loss::{Loss, MseLoss};
use pellucid_nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Result, Tensor, manual_seed, ops};
use std::rc::Rc;
use std::sync::Arc;

type Pair = (Tensor, Tensor);

/// A model that adds its two inputs.
#[derive(Module)]
struct Sum(Linear, Linear);

impl Model<Pair> for Sum {
    fn run(&self, (a, b): &Pair) -> Result<Tensor> {
        ops::add(&self.0.try_forward(a)?, &self.1.try_forward(b)?)
    }
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
fn losses<X: Batch, M: Model<X>>(model: M, loss: impl Loss, optimizer: impl Optimizer, x: &X) -> Vec<f32> {
    let mut trainer = GraphTrainer::new(model, loss, optimizer);
    let y = Tensor::zeros([4, 1], DType::F32);
    let losses: Vec<f32> = (0..3).map(|_| trainer.step_and_evaluate(x, &y).unwrap()).collect();
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

#[test]
fn an_optimizer_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = pair();
    let with = |run: &dyn Fn(&Sum, Sgd) -> Vec<f32>| {
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

#[test]
fn a_loss_may_be_a_pointer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = pair();
    let with = |run: &dyn Fn(&Sum, Sgd, MseLoss) -> Vec<f32>| {
        let model = sum();
        run(&model, sgd(&model), MseLoss::default())
    };
    let expected = with(&|model, sgd, loss| losses(model, loss, sgd, &x));
    for (name, found) in [
        ("&", with(&|model, sgd, loss| losses(model, &loss, sgd, &x))),
        ("&dyn", with(&|model, sgd, loss| losses(model, &loss as &dyn Loss, sgd, &x))),
        ("Box<dyn>", with(&|model, sgd, loss| losses(model, Box::new(loss) as Box<dyn Loss>, sgd, &x))),
        ("Arc", with(&|model, sgd, loss| losses(model, Arc::new(loss), sgd, &x))),
        ("Arc<dyn>", with(&|model, sgd, loss| losses(model, Arc::new(loss) as Arc<dyn Loss>, sgd, &x))),
    ] {
        assert_eq!(found, expected, "{name}");
    }
}
