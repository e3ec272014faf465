//! A node of the graph: its input tensors, its local backward computation, its text.

use crate::support::{assert_close, leaf, number};
use pellucid_tensor::{
    BackwardOptions, Error, GradOptions, Node, NodeInput, Tensor, TensorId, autocast, capture, grad, lazy, no_grad,
};
use std::collections::HashMap;

fn creator(tensor: &Tensor) -> Node {
    tensor.creator().expect("the tensor must be a result")
}

#[test]
fn the_local_backward_returns_the_gradients_of_the_inputs() {
    let (x, c) = (leaf([2.0, 3.0]), Tensor::from([10.0, 100.0]));
    let y = &x * &c;
    let g = Tensor::from([1.0, 0.5]);
    let gradients = creator(&y).backward(&[Some(&g)]).unwrap();
    assert_close(gradients[0].as_ref().unwrap(), &[10.0, 50.0]);
    assert!(gradients[1].is_none(), "a constant must have no gradient");
    assert!(x.grad().is_none() && y.grad().is_none());
    // A missing incoming gradient is zero.
    assert_close(creator(&y).backward(&[None]).unwrap()[0].as_ref().unwrap(), &[0.0, 0.0]);
    // The saved values are kept, so the graph can still be used.
    y.sum(..).backward();
    assert_close(&x.grad().unwrap(), &[10.0, 100.0]);
    assert!(matches!(creator(&y).backward(&[Some(&g)]), Err(Error::GraphFreed { node: "mul" })));
}

#[test]
fn the_local_backward_is_differentiable() {
    let (x, g) = (number(2.0), number(5.0));
    let y = x.cube();
    let slope = creator(&y).backward(&[Some(&g)]).unwrap().remove(0).unwrap();
    assert_eq!(slope.item::<f64>(), 5.0 * 3.0 * 4.0);
    let second = grad(&[&slope], &[&x, &g], GradOptions::default()).unwrap();
    assert_eq!((second[0].item::<f64>(), second[1].item::<f64>()), (5.0 * 6.0 * 2.0, 12.0));
    let _off = no_grad();
    assert!(!creator(&y).backward(&[Some(&g)]).unwrap()[0].as_ref().unwrap().requires_grad());
}

#[test]
fn the_local_backward_rejects_wrong_gradients() {
    let y = leaf([1.0, 2.0]).exp();
    let (exp, g) = (creator(&y), Tensor::from([1.0, 1.0]));
    assert!(matches!(exp.backward(&[]), Err(Error::InvalidArgument { op: "exp", .. })));
    assert!(matches!(exp.backward(&[Some(&g), None]), Err(Error::InvalidArgument { op: "exp", .. })));
    let wrong = exp.backward(&[Some(&Tensor::from([1.0]))]);
    assert!(matches!(wrong, Err(Error::ShapeMismatch { op: "exp", .. })));
    // A gradient of a different dtype is converted, as in backward().
    let x = Tensor::from([1.0f32]).requires_grad_(true);
    let gradients = creator(&x.exp()).backward(&[Some(&Tensor::from([2.0f64]))]);
    assert!(gradients.is_err() || gradients.unwrap()[0].as_ref().unwrap().dtype() == x.dtype());
}

#[test]
fn several_outputs_have_one_incoming_gradient_each() {
    let x = leaf([3.0, 1.0, 2.0]);
    let (values, _) = x.topk(2, 0, true);
    let g = Tensor::from([10.0, 20.0]);
    let gradients = creator(&values).backward(&[Some(&g), None]).unwrap();
    assert_close(gradients[0].as_ref().unwrap(), &[10.0, 0.0, 20.0]);
}

#[test]
fn local_gradients_share_no_memory() {
    let (a, b) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]));
    let y = &a + &b;
    let g = Tensor::from([5.0, 6.0]);
    let _off = no_grad();
    let gradients = creator(&y).backward(&[Some(&g)]).unwrap();
    gradients[0].as_ref().unwrap().set(0, 9.0);
    assert_close(&g, &[5.0, 6.0]);
    assert_close(gradients[1].as_ref().unwrap(), &[5.0, 6.0]);
    // The gradient of a product with respect to one factor may be the other factor.
    let product = {
        let _on = pellucid_tensor::enable_grad();
        &a * &b
    };
    let ones = Tensor::from([1.0, 1.0]);
    let gradients = creator(&product).backward(&[Some(&ones)]).unwrap();
    gradients[0].as_ref().unwrap().set(0, 9.0);
    assert_close(&b, &[3.0, 4.0]);
}

/// Computes the gradients of all leaves by local backward computations only, in the order of decreasing generations.
fn gradients_by_hand(output: &Tensor) -> HashMap<TensorId, Tensor> {
    let mut waiting: Vec<(Node, Vec<Option<Tensor>>)> = vec![];
    let mut leaves: HashMap<TensorId, Tensor> = HashMap::new();
    let node = creator(output);
    let outputs = node.outputs().len();
    let mut seeds = vec![None; outputs];
    seeds[0] = Some(output.ones_like());
    waiting.push((node, seeds));
    let add = |sum: Option<Tensor>, g: Tensor| Some(sum.map_or(g.clone(), |sum| sum + g));
    while !waiting.is_empty() {
        let last = (0..waiting.len()).max_by_key(|&i| waiting[i].0.generation()).unwrap();
        let (node, incoming) = waiting.swap_remove(last);
        let incoming: Vec<Option<&Tensor>> = incoming.iter().map(Option::as_ref).collect();
        for (input, gradient) in node.inputs().into_iter().zip(node.backward(&incoming).unwrap()) {
            match (input, gradient) {
                (NodeInput::Leaf(Some(leaf)), Some(g)) => {
                    let sum = add(leaves.remove(&leaf.id()), g).unwrap();
                    leaves.insert(leaf.id(), sum);
                }
                (NodeInput::Output(producer, index), Some(g)) => {
                    let at = waiting.iter().position(|(node, _)| *node == producer).unwrap_or_else(|| {
                        waiting.push((producer.clone(), vec![None; producer.outputs().len()]));
                        waiting.len() - 1
                    });
                    let slot = &mut waiting[at].1[index];
                    *slot = add(slot.take(), g);
                }
                (_, None) => {}
                (input, Some(_)) => panic!("{input:?} must have no gradient"),
            }
        }
    }
    leaves
}

#[test]
fn a_backward_pass_is_the_chain_of_local_ones() {
    let (x, w) = (leaf([0.5, -1.0, 2.0]), Tensor::from([[0.3, -0.7, 1.1], [0.2, 0.4, -0.9], [1.0, 0.1, 0.5]]));
    let w = w.requires_grad_(true);
    let h = w.matmul(&x).tanh();
    let (values, _) = h.topk(2, 0, true);
    let y = (h.softmax(0) * &x).sum(..) + values.square().sum(..) + w.diagonal(0, 0, 1).exp().sum(..);
    let found = gradients_by_hand(&y);
    y.backward();
    assert_eq!(found.len(), 2);
    for leaf in [&x, &w] {
        assert_close(&found[&leaf.id()], &leaf.grad().unwrap().to_vec::<f64>());
    }
}

#[test]
fn input_tensors_are_the_tensors_or_their_saved_values() {
    let (x, c) = (leaf([1.0, 2.0]), Tensor::from([3.0, 4.0]));
    let y = x.sin();
    let z = &y * &c;
    let mul = creator(&z);
    let ids = |tensors: &[Option<Tensor>]| tensors.iter().map(|t| t.as_ref().map(Tensor::id)).collect::<Vec<_>>();
    let inputs = mul.input_tensors();
    assert_eq!(inputs[0].as_ref().map(Tensor::id), Some(y.id()));
    assert_close(inputs[1].as_ref().unwrap(), &[3.0, 4.0]);
    let sin = creator(&y);
    assert_eq!(ids(&sin.input_tensors()), [Some(x.id())]);
    // A value that was saved has its history, even if the tensor was dropped.
    let expected = y.to_vec::<f64>();
    let (a, b) = (x.exp(), &c + &x);
    let product = &a * &b;
    drop((y, inputs, a));
    let _off = no_grad();
    let inputs = creator(&product).input_tensors();
    let saved = inputs[0].as_ref().unwrap();
    assert!(saved.creator().is_some_and(|node| node.name() == "exp") && saved.requires_grad());
    assert_close(saved, &[1f64.exp(), 2f64.exp()]);
    // The product saves the constant only, and the sine was dropped.
    assert!(mul.input_tensors()[0].as_ref().is_none_or(|sine| sine.to_vec::<f64>() == expected));
    // After the graph was freed, only live tensors remain.
    let total = {
        let _on = pellucid_tensor::enable_grad();
        product.sum(..)
    };
    total.backward();
    let inputs = creator(&product).input_tensors();
    assert_eq!(ids(&inputs), [None, Some(b.id())]);
    // A dropped leaf is not returned.
    let _on = pellucid_tensor::enable_grad();
    let sum = creator(&(number(2.0) + &x));
    assert!(matches!(sum.inputs()[0], NodeInput::Leaf(None)) && sum.inputs()[0].leaf().is_none());
    assert_eq!(ids(&sum.input_tensors()), [None, Some(x.id())]);
}

#[test]
fn a_tensor_that_was_written_in_place_is_no_longer_the_input() {
    let x = leaf([1.0, 2.0]);
    let y = &x * 3.0;
    let z = y.exp();
    y.set(0, &x.i(1) * 5.0);
    assert!(creator(&z).input_tensors()[0].is_none());
    let again = y.exp();
    assert_eq!(creator(&again).input_tensors()[0].as_ref().map(Tensor::id), Some(y.id()));
}

#[test]
fn the_graph_is_printed_with_the_identity_of_leaves() {
    let (x, b) = (Tensor::from([[1.0f32, 2.0]]).requires_grad_(true), leaf([0.5, 0.25]));
    x.square().sum(..).backward();
    let h = x.to_dtype(b.dtype()) * &b;
    let y = (&h + &b).exp();
    let node = creator(&y);
    let expected = "%0 = leaf `input`: f32[1, 2], has a gradient\n\
                    %1 = to_dtype(%0): f64[1, 2]\n\
                    %2 = leaf: f64[2], no gradient\n\
                    %3 = mul(%1, %2): f64[1, 2]\n\
                    %4 = add(%3, %2): f64[1, 2]\n\
                    %5 = exp(%4): f64[1, 2]\n";
    assert_eq!(node.graph_text([("input", &x), ("other", &y)]), expected);
    assert_eq!(node.to_string(), expected.replace(" `input`", ""));
    drop(b);
    assert!(node.to_string().contains("%2 = leaf: dropped\n"), "{node}");
    // Outputs of a node with several outputs have their index.
    let (values, _) = leaf([3.0, 1.0]).topk(1, 0, true);
    let text = creator(&values.exp()).to_string();
    assert!(text.contains("= topk(%0): (f64[1], i64[1])\n") && text.contains("= exp(%1.0): f64[1]\n"), "{text}");
}

#[test]
fn a_long_chain_is_printed_without_recursion() {
    let x = number(1.0);
    let mut y = &x * 1.0;
    for _ in 0..100_000 {
        y *= 1.0;
    }
    assert_eq!(creator(&y).to_string().lines().count(), 100_002);
}

#[test]
fn a_local_backward_runs_in_deferred_and_captured_steps() {
    let step = |x: &Tensor| {
        let x = x.detach().requires_grad_(true);
        let y = x.sin();
        creator(&y)
            .backward(&[Some(&y)])
            .map(|mut gradients| gradients.remove(0).expect("x requires a gradient").detach())
    };
    let x = Tensor::from([0.3, 1.2]);
    let expected: Vec<f64> = x.to_vec::<f64>().iter().map(|x| x.sin() * x.cos()).collect();
    assert_close(&lazy(|| step(&x)).unwrap(), &expected);
    let mut captured = capture(|inputs| step(&inputs[0]).unwrap(), &[&Tensor::from([0.0, 0.0])]).unwrap();
    assert_close(&captured.launch(&[&x]).unwrap().to_tensor(0), &expected);
    // Autocast does not change the dtypes of a gradient.
    let w = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).requires_grad_(true);
    let y = w.matmul(&w);
    let _half = autocast(pellucid_tensor::DType::BF16);
    let gradients = creator(&y).backward(&[Some(&Tensor::from([[1.0f32, 0.0], [0.0, 1.0]]))]).unwrap();
    assert_eq!(gradients[1].as_ref().unwrap().dtype(), w.dtype());
}

#[test]
fn retained_gradients_can_be_switched_off() {
    let x = number(2.0);
    let y = x.square();
    let z = &y * 3.0;
    assert!(!y.retains_grad());
    y.retain_grad();
    assert!(y.retains_grad());
    z.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
    assert_eq!(y.grad().unwrap().item::<f64>(), 3.0);
    y.set_retain_grad(false);
    assert!(!y.retains_grad() && y.grad().is_some(), "a gradient that was kept must stay");
    y.zero_grad();
    z.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
    assert!(y.grad().is_none());
    y.set_retain_grad(true);
    z.backward();
    assert_eq!(y.grad().unwrap().item::<f64>(), 3.0);
    assert_eq!(x.grad().unwrap().item::<f64>(), 3.0 * 3.0 * 4.0);
}
