//! Models with several paths: one recording for each, with the same parameters, gradients and moments.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{CrossEntropyLoss, Loss};
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
use pellucid_nn::paths::*;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Tensor, manual_seed};

/// A model with all three kinds of choices, which `set` selects.
fn model() -> Sequential {
    manual_seed(5);
    let branch = If::new((Linear::new(6, 6), Tanh), Linear::new(6, 6));
    let stages = [(Linear::new(6, 5), Linear::new(5, CLASSES)), (Linear::new(5, 4), Linear::new(4, CLASSES))];
    sequential![branch, Repeat::new((Linear::new(6, 6), Tanh), 1), EarlyExit::new(stages)]
}

/// Sets the choices, in visiting order.
fn set(model: &Sequential, ways: [usize; 3]) {
    let mut ways = ways.into_iter();
    let mut meet = |_: &str, part: ModulePart<'_>| {
        if let ModulePart::PathChoice(choice) = part {
            choice.set(ways.next().expect("the model must have three path choices"));
        }
    };
    model.visit(&mut Visitor::new(&mut meet));
}

const WAYS: [[usize; 3]; 6] = [[1, 1, 1], [0, 1, 1], [1, 3, 0], [1, 1, 1], [0, 0, 0], [0, 1, 1]];

#[test]
fn a_layer_takes_the_path_that_the_host_selected() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = batch(&[BATCH, 6], 1).0;
    let (then, otherwise) = (Linear::new(6, 3), Linear::new(6, 2));
    let branch = If::new(then.clone(), otherwise.clone());
    assert_eq!(branch.forward(&x).to_vec::<f32>(), then.forward(&x).to_vec::<f32>());
    branch.choose(false);
    assert_eq!(branch.forward(&x).to_vec::<f32>(), otherwise.forward(&x).to_vec::<f32>());

    let layer = Linear::new(6, 6);
    let repeat = Repeat::new(layer.clone(), 2);
    assert_eq!(repeat.forward(&x).to_vec::<f32>(), layer.forward(&layer.forward(&x)).to_vec::<f32>());
    repeat.choose(0);
    assert_eq!(repeat.forward(&x).to_vec::<f32>(), x.to_vec::<f32>());

    let (stages, heads) = ([Linear::new(6, 5), Linear::new(5, 4)], [Linear::new(5, 2), Linear::new(4, 3)]);
    let exit = EarlyExit::new(stages.iter().cloned().zip(heads.iter().cloned()));
    let all = heads[1].forward(&stages[1].forward(&stages[0].forward(&x)));
    assert_eq!(exit.forward(&x).to_vec::<f32>(), all.to_vec::<f32>());
    exit.choose(0);
    assert_eq!(exit.forward(&x).to_vec::<f32>(), heads[0].forward(&stages[0].forward(&x)).to_vec::<f32>());
    assert!(matches!(exit.try_choose(2), Err(Error::InvalidArgument { .. })));
    assert!(EarlyExit::<Linear, Linear>::try_new([]).is_err());
    let names: Vec<String> = exit.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[0], "stages.0.weight");
    assert_eq!(names[4], "heads.0.weight");
}

#[test]
fn a_path_has_a_name_for_each_choice() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = model();
    set(&model, [0, 3, 1]);
    let expected = [("0.choice", 0), ("1.choice", 3), ("2.choice", 1)].map(|(name, way)| (name.to_string(), way));
    assert_eq!(path_of(&model), expected);
    assert!(path_of(&mlp()).is_empty());
}

/// Steps along changing paths equal eager ones bit for bit. Parameters that a path does not use are not updated, and
/// their gradient is zero.
#[test]
fn trainers_follow_the_path() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (by_graph, by_hand) = (model(), model());
        let loss = CrossEntropyLoss::default();
        let optimizer = |model: &Sequential| AdamW::try_new(model.parameters(), AdamWOptions::default()).unwrap();
        let (recorded, hand_optimizer) = (optimizer(&by_graph), optimizer(&by_hand));
        let mut trainer = GraphTrainer::new(&by_graph, loss.clone(), recorded)
            .with_options(StepOptions { eager, ..Default::default() });
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        let gradients = |model: &Sequential| model.parameters().iter().map(|p| p.grad()).collect::<Vec<_>>();
        let bound = gradients(&by_graph);
        for (seed, ways) in WAYS.into_iter().enumerate() {
            let (x, y) = batch(&[BATCH, 6], seed as u64);
            set(&by_graph, ways);
            trainer.step(&x, &y).unwrap();
            set(&by_hand, ways);
            hand_optimizer.zero_grad();
            let value = loss.forward(&by_hand.forward(&x), &y);
            value.backward();
            hand_optimizer.step();
            assert_eq!(trainer.loss().unwrap(), value.item::<f64>(), "paths {ways:?}: the losses differ");
            assert_eq!(bits(by_graph.state_dict()), bits(by_hand.state_dict()), "paths {ways:?}: the models differ");
            assert!(
                bits(trainer.optimizer().state_dict()) == bits(hand_optimizer.state_dict()),
                "paths {ways:?}: the optimizers differ"
            );
            for ((found, bound), expected) in gradients(&by_graph).iter().zip(&bound).zip(gradients(&by_hand)) {
                let (found, bound) = (found.as_ref().unwrap(), bound.as_ref().unwrap());
                assert!(found.array().shares_storage(bound.array()), "all paths must share one gradient buffer");
                let zeros = || vec![0.0; found.size()];
                assert_eq!(found.to_vec::<f32>(), expected.map_or_else(zeros, |g: Tensor| g.to_vec()));
            }
        }
    }
}
