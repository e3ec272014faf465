//! The recorded graph: leaves, nodes, generations, modes.

use crate::support::{leaf, number, panic_of};
use pellucid_tensor::{
    BackwardOptions, DType, Error, NodeInput, Tensor, enable_grad, is_grad_enabled, no_grad, set_grad_enabled,
};

#[test]
fn leaves_and_results() {
    let (x, c) = (leaf([1.0, 2.0]), Tensor::from([3.0, 4.0]));
    assert!(x.is_leaf() && x.requires_grad() && x.creator().is_none() && x.generation() == 0);
    assert!(c.is_leaf() && !c.requires_grad());
    let y = &x * &c;
    assert!(!y.is_leaf() && y.requires_grad());
    // A result of untracked tensors is a leaf, and can be made to require a gradient.
    let z = &c + &c;
    assert!(z.is_leaf() && !z.requires_grad() && z.creator().is_none() && z.generation() == 0);
    assert!((z.requires_grad_(true) * 2.0).requires_grad());
}

#[test]
fn a_result_stays_tracked_and_integers_are_never_tracked() {
    let y = leaf([1.0]) * 2.0;
    assert!(matches!(y.set_requires_grad(false), Err(Error::InvalidArgument { .. })));
    assert!(y.set_requires_grad(true).is_ok() && y.requires_grad());
    assert!(panic_of(|| Tensor::from([1i64]).requires_grad_(true)).contains("is not supported"));
    assert!(matches!(Tensor::from([true]).set_requires_grad(true), Err(Error::DTypeMismatch { .. })));
    let x = leaf([1.0]);
    x.set_requires_grad(false).unwrap();
    assert!(!(&x * 2.0).requires_grad());
}

#[test]
fn a_node_reads_its_inputs_outputs_and_generation() {
    let (x, c) = (number(2.0), Tensor::from(3.0));
    let y = x.sin();
    let z = &y * &c;
    let node = z.creator().unwrap();
    assert_eq!((node.name(), node.generation(), z.generation()), ("mul", 1, 2));
    let inputs = node.inputs();
    assert!(matches!(&inputs[0], NodeInput::Output(sin, 0) if *sin == y.creator().unwrap()));
    assert!(matches!(inputs[1], NodeInput::Constant));
    let sin = inputs[0].node().unwrap().clone();
    assert_eq!((sin.name(), sin.generation()), ("sin", 0));
    assert!(matches!(&sin.inputs()[0], NodeInput::Leaf(Some(leaf)) if leaf.id() == x.id()));
    assert_eq!(format!("{sin:?}"), "Node(sin, generation 0)");
    // A node holds its outputs weakly.
    assert_eq!(sin.outputs()[0].as_ref().unwrap().item::<f64>(), 2f64.sin());
    drop((y, inputs));
    assert!(sin.outputs()[0].is_none());
}

#[test]
fn several_outputs_share_one_node() {
    let x = leaf([3.0, 1.0, 2.0]);
    let (values, positions) = x.topk(2, 0, true);
    let node = values.creator().unwrap();
    assert_eq!(node.name(), "topk");
    assert_eq!(node.outputs().len(), 2);
    assert!(positions.creator().is_none() && !positions.requires_grad());
}

#[test]
fn generations_are_longest_paths() {
    let x = number(1.0);
    let (a, b) = (x.sin(), x.sin().sin().sin());
    assert_eq!((a.generation(), b.generation()), (1, 3));
    assert_eq!((&a + &b).generation(), 4);
    assert_eq!((&b + &x).creator().unwrap().generation(), 3);
    // A constant has no effect on the generation.
    assert_eq!((&a + &b.detach()).generation(), 2);
}

/// Reads the graph of a first gradient of sin(x²) at 2, node by node.
#[test]
fn the_graph_of_a_gradient_can_be_read() {
    let x = number(2.0);
    let y = x.square().sin();
    y.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
    let g = x.grad().unwrap();
    assert!(g.requires_grad() && g.creator().is_some());
    assert!((g.item::<f64>() - 2.0 * 2.0 * 4f64.cos()).abs() < 1e-14);
    // The graph of the gradient leads to the nodes of the forward pass, and to the leaf.
    let mut seen = vec![];
    let mut open = vec![g.creator().unwrap()];
    let mut leaves = 0;
    while let Some(node) = open.pop() {
        if seen.contains(&node) {
            continue;
        }
        for source in node.inputs() {
            match source {
                NodeInput::Output(producer, _) => {
                    assert!(producer.generation() < node.generation());
                    open.push(producer);
                }
                NodeInput::Leaf(_) => leaves += 1,
                NodeInput::Constant => {}
            }
        }
        seen.push(node);
    }
    assert!(leaves >= 1);
    let names: Vec<_> = seen.iter().map(|n| n.name()).collect();
    assert!(
        names.contains(&"square") && !names.contains(&"sin"),
        "the gradient must depend on x² and not on the sine: {names:?}"
    );
    assert_eq!(g.generation(), 1 + g.creator().unwrap().generation());
}

#[test]
fn without_create_graph_a_gradient_has_no_creator() {
    let x = number(1.0);
    x.sin().backward();
    let g = x.grad().unwrap();
    assert!(g.creator().is_none() && !g.requires_grad() && g.generation() == 0);
}

#[test]
fn detach_cuts_the_graph_and_shares_storage() {
    let x = leaf([1.0, 2.0]);
    let y = &x * 2.0;
    let d = y.detach();
    assert!(d.is_leaf() && !d.requires_grad() && d.array().shares_storage(y.array()));
    (&y * &d).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [4.0, 8.0], "the gradient must be 2·d, since d is a constant");
}

#[test]
fn modes_nest_and_are_restored() {
    let x = leaf([1.0]);
    let tracked = || (&x * 2.0).requires_grad();
    assert!(tracked() && is_grad_enabled());
    {
        let _off = no_grad();
        assert!(!tracked() && !is_grad_enabled());
        assert!((&x * 2.0).is_leaf());
        {
            let _on = enable_grad();
            assert!(tracked());
            let _off = set_grad_enabled(false);
            assert!(!tracked());
        }
        assert!(!tracked());
    }
    assert!(tracked());
}

#[test]
fn a_panic_restores_the_mode() {
    panic_of(|| {
        let _off = no_grad();
        Tensor::from([1.0]).reshape(2)
    });
    assert!(is_grad_enabled());
}

#[test]
fn the_mode_belongs_to_the_thread() {
    let x = leaf([1.0]);
    let _off = no_grad();
    let there = std::thread::scope(|s| s.spawn(|| (&x * 2.0).requires_grad()).join().unwrap());
    assert!(there && !(&x * 2.0).requires_grad());
}

#[test]
fn every_float_dtype_is_tracked() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let x = Tensor::full([2], 0.5, dtype).requires_grad_(true);
        x.square().backward();
        let g = x.grad().unwrap();
        assert_eq!((g.dtype(), g.to_vec::<f64>()), (dtype, vec![1.0, 1.0]));
    }
}

/// The last existing guard determines the mode of a thread.
#[test]
fn guards_of_modes_may_be_dropped_in_any_order() {
    use pellucid_tensor::{autocast, detect_anomaly, enable_grad, is_grad_enabled, no_grad};
    let mut guard = no_grad();
    for _ in 0..200 {
        guard = no_grad();
        assert!(!is_grad_enabled());
    }
    drop(guard);
    assert!(is_grad_enabled());
    let (off, on) = (no_grad(), enable_grad());
    drop(off);
    assert!(is_grad_enabled());
    drop(on);
    assert!(is_grad_enabled());

    let x = Tensor::ones([2, 2], DType::F32);
    let dtype = || x.matmul(&x).dtype();
    let mut guard = autocast(DType::BF16);
    assert_eq!(dtype(), DType::BF16);
    guard = {
        let next = autocast(DType::F16);
        drop(guard);
        next
    };
    assert_eq!(dtype(), DType::F16);
    drop(guard);
    assert_eq!(dtype(), DType::F32);

    let finds_nan = || pellucid_tensor::ops::sqrt(&Tensor::from([-1.0f32])).is_err();
    let first = detect_anomaly();
    let second = detect_anomaly();
    drop(first);
    assert!(finds_nan());
    drop(second);
    assert!(!finds_nan());
}

/// A constant NaN inside an operation is not an anomaly: reductions that ignore NaN use one.
#[test]
fn an_anomaly_is_a_computed_nan() {
    use pellucid_tensor::{GradOptions, detect_anomaly, grad, ops};
    let x = Tensor::from([[1.0f32, 2.0], [3.0, -4.0]]).requires_grad_(true);
    let _guard = detect_anomaly();
    for y in [ops::nanmax(&x, 1).unwrap(), ops::nanmin(&x, 1).unwrap()] {
        grad(&[&y.sum(..)], &[&x], GradOptions::default()).unwrap();
    }
    let nan = ops::full([2], f64::NAN, DType::F32).unwrap();
    assert!(ops::square(&nan).is_ok());
    assert!(ops::log(&Tensor::from([-1.0f32])).is_err());
}
