//! Pruning: masks as PyTorch sets them, training with masks, and their removal.

use crate::bits;
use pellucid_nn::graph::GraphTrainer;
use pellucid_nn::loss::MseLoss;
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
use pellucid_nn::prune::{self, PruneAmount};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Tensor, no_grad, ops};

fn pruned<const N: usize>(weight: [[f32; N]; 2]) -> Pruned<Linear> {
    let layer = Linear::new(N, 2).bias(false);
    let _off = no_grad();
    ops::copy_(&layer.weight, &Tensor::from(weight)).unwrap();
    Pruned::new(layer)
}

/// The layer of the values that PyTorch computed.
fn example() -> Pruned<Linear> {
    pruned([[0.5, -0.1, 0.3], [-0.7, 0.2, -0.4]])
}

fn mask(layer: &Pruned<Linear>) -> Vec<f32> {
    layer.weight_mask.to_vec()
}

/// The masks of `torch.nn.utils.prune`, also after a second call.
#[test]
fn masks_equal_the_masks_of_pytorch() {
    let layer = example();
    prune::l1_unstructured(&layer, 0.5).unwrap();
    assert_eq!(mask(&layer), [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    prune::l1_unstructured(&layer, 0.34).unwrap();
    assert_eq!(mask(&layer), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

    let layer = example();
    prune::ln_structured(&layer, 1, 2.0, 1).unwrap();
    assert_eq!(mask(&layer), [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    prune::ln_structured(&layer, 0.5, 1.0, 0).unwrap();
    assert_eq!(mask(&layer), [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);

    let [a, b] = [example(), pruned([[0.15, 0.9, 9.0], [-0.05, 0.6, 9.0]])];
    let model = (a.clone(), b.clone());
    prune::global_unstructured(&model, 4).unwrap();
    assert_eq!(mask(&a), [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(mask(&b), [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    let report = prune::sparsity(&model).unwrap();
    assert_eq!((report.zeros(), report.elements()), (4, 12));
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["0", "1"]);
    assert!(report.to_string().ends_with("total           4 of         12 zeros   33.3 %\n"), "{report}");
}

#[test]
fn random_masks_have_their_amount() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let layer = Pruned::new(Conv2d::new(4, 6, 3));
    prune::random_unstructured(&layer, 0.25).unwrap();
    assert_eq!(prune::sparsity(&layer).unwrap().zeros(), 54);
    prune::random_structured(&layer, 2, 1).unwrap();
    let channels = layer.weight_mask.sum([0, 2, 3]).to_vec::<f32>();
    assert_eq!(channels.iter().filter(|count| **count == 0.0).count(), 2);
    assert_eq!(layer.forward(&Tensor::zeros([1, 4, 5, 5], DType::F32)).shape().dims(), [1, 6, 3, 3]);
}

#[test]
fn a_custom_mask_is_combined_with_the_own_one() {
    let layer = example();
    prune::custom_from_mask(&layer, &Tensor::from([[true, true, false], [true, true, true]])).unwrap();
    prune::custom_from_mask(&layer, &Tensor::from([[0, 1, 1], [1, 1, 1]])).unwrap();
    assert_eq!(mask(&layer), [0.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(layer.weight().to_vec::<f32>(), [0.0, -0.1, 0.0, -0.7, 0.2, -0.4]);
}

#[test]
fn a_rejected_call_changes_no_mask() {
    let model = (example(), pruned([[1.0, 2.0], [3.0, 4.0]]));
    let rejected = [
        prune::l1_unstructured(&model, 1.5),
        prune::l1_unstructured(&model, PruneAmount::Count(5)),
        prune::global_unstructured(&model, 11),
        prune::custom_from_mask(&model.0, &Tensor::full([2, 3], 0.5, DType::F32)),
    ];
    assert!(rejected.iter().all(|result| matches!(result, Err(Error::InvalidArgument { .. }))), "{rejected:?}");
    assert!(matches!(prune::random_structured(&model, 1, 2), Err(Error::AxisOutOfRange { .. })));
    assert!(matches!(prune::custom_from_mask(&model.0, &Tensor::from([1.0])), Err(Error::ShapeMismatch { .. })));
    assert_eq!(prune::sparsity(&model).unwrap().zeros(), 0);
    let error = prune::sparsity(&Linear::new(2, 2)).unwrap_err();
    assert!(error.to_string().contains("Pruned::new"), "{error}");
}

/// Masks stay in training, whatever momentum and decay the optimizer has, and a captured step sees a new mask without a
/// new recording.
#[test]
fn masks_stay_in_eager_and_captured_training() {
    let run = |captured: bool| {
        let _random = pellucid_tensor::Generator::new(0).scope();
        let model = sequential![Pruned::new(Linear::new(6, 8)), Tanh, Pruned::new(Linear::new(8, 3))];
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
        let (x, y) = (Tensor::randn([5, 6], DType::F32), Tensor::randn([5, 3], DType::F32));
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer);
        for amount in [0.0, 0.5, 0.5] {
            prune::global_unstructured(&model, amount).unwrap();
            for _ in 0..3 {
                if captured {
                    trainer.step(&x, &y).unwrap();
                } else {
                    optimizer.zero_grad();
                    loss::mse_loss(&model.forward(&x), &y).backward();
                    optimizer.step();
                }
            }
        }
        if captured {
            assert_eq!(trainer.cache_stats().misses, 1);
        }
        // A half of 72 elements, and a half of the rest.
        assert_eq!(prune::sparsity(&model).unwrap().zeros(), 54);
        bits(model.state_dict().values())
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn gradients_of_pruned_elements_are_zero_and_removal_is_permanent() {
    let layer = example();
    prune::l1_unstructured(&layer, 3).unwrap();
    let x = Tensor::from([[1.0f32, 2.0, 3.0]]);
    layer.forward(&x).sum(..).backward();
    assert_eq!(layer.original().grad().unwrap().to_vec::<f32>(), [1.0, 0.0, 0.0, 1.0, 0.0, 3.0]);
    let names: Vec<String> = layer.state_dict().into_keys().collect();
    assert_eq!(names, ["weight_mask", "weight_orig"]);
    let (y, original) = (layer.forward(&x), layer.original().clone());
    let plain = layer.remove();
    assert_eq!(plain.forward(&x).to_bytes(), y.to_bytes());
    assert_eq!(plain.weight.to_vec::<f32>(), [0.5, 0.0, 0.0, -0.7, 0.0, -0.4]);
    assert_eq!(plain.weight.id(), original.id());
}
