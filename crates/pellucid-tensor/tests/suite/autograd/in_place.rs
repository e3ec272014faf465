//! Writes in place: backward detects a modified saved value, and leaves that require a gradient are protected.

use crate::support::{leaf, number, panic_of, slope};
use pellucid_tensor::{BackwardOptions, Error, Tensor, formula, no_grad, ops};

#[test]
fn a_modified_saved_value_is_an_error_that_names_the_node() {
    let (x, c) = (leaf([1.0, 2.0]), Tensor::from([3.0, 4.0]));
    let y = &x * &c;
    c.set(0, 100.0);
    let error = y.try_backward_with(BackwardOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::SavedValueModified { node: "mul", saved, now, .. } if now > saved), "{error}");
    assert!(x.grad().is_none());
    assert!(error.to_string().contains("mul") && error.to_string().contains("[2]"));
}

#[test]
fn every_kind_of_write_is_counted() {
    let writes: [fn(&Tensor); 5] = [
        |c| c.set(.., 1.0),
        |c| c.copy_(&Tensor::from([5.0, 6.0])),
        |c| c.i(1..).set(.., 1.0),
        |c| c.set(Tensor::from([0i64]), 1.0),
        |c| ops::update(formula!(|c| c * 2.0), &[c], &[], &[]).unwrap(),
    ];
    for (i, write) in writes.into_iter().enumerate() {
        let (x, c) = (leaf([1.0, 2.0]), Tensor::from([3.0, 4.0]));
        let y = &x * &c;
        write(&c);
        assert!(
            matches!(y.try_backward_with(BackwardOptions::default()), Err(Error::SavedValueModified { .. })),
            "write {i}"
        );
    }
}

#[test]
fn writes_before_use_and_to_unsaved_values_are_allowed() {
    let (x, c) = (leaf([1.0, 2.0]), Tensor::from([3.0, 4.0]));
    c.set(0, 10.0);
    let y = &x * &c;
    y.backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [10.0, 4.0]);
    // A sum saves neither operand.
    let (x, c) = (leaf([1.0]), Tensor::from([3.0]));
    let y = &x + &c;
    c.set(0, 100.0);
    y.backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [1.0]);
}

#[test]
fn writes_to_saved_leaves_are_counted() {
    let x = number(3.0);
    let y = x.square();
    {
        let _off = no_grad();
        x.copy_(&Tensor::from(5.0));
    }
    assert!(matches!(
        y.try_backward_with(BackwardOptions::default()),
        Err(Error::SavedValueModified { node: "square", .. })
    ));
    // A new forward pass after the write has a valid graph.
    x.square().backward();
    assert_eq!(slope(&x), 10.0);
}

#[test]
fn a_leaf_that_requires_a_gradient_is_protected() {
    let x = leaf([1.0, 2.0]);
    let y = &x * 2.0;
    let rejected = |e: Error| matches!(e, Error::InPlaceOnTracked { .. });
    assert!(rejected(x.try_set(0, 9.0).unwrap_err()));
    assert!(panic_of(|| x.copy_(&Tensor::from([0.0, 0.0]))).contains("cannot write in place"));
    assert!(rejected(x.i(0..1).try_set(0, 9.0).unwrap_err()), "a write to a view of a leaf must be an error");
    {
        let _off = no_grad();
        y.set(0, 7.0);
        assert!(
            y.creator().is_some_and(|node| node.name() == "mul"),
            "a write under no_grad() must not change the creator"
        );
        assert_eq!(x.to_vec::<f64>(), [1.0, 2.0]);
        x.set(0, 9.0);
    }
    assert_eq!(x.to_vec::<f64>(), [9.0, 2.0], "a write to a leaf under no_grad() must be allowed");
    assert_eq!(y.to_vec::<f64>(), [7.0, 4.0]);
}

#[test]
fn the_error_of_a_modified_value_names_a_remedy() {
    let x = leaf([1.0, 2.0]);
    let (c, y) = (Tensor::from([3.0, 4.0]), &x * 1.0);
    let text = |saved: &Tensor| {
        let y = &y * saved;
        c.set(0, 100.0);
        y.sum(..)
            .try_backward_with(BackwardOptions { retain_graph: true, ..Default::default() })
            .err()
            .map(|e| e.to_string())
    };
    assert!(text(&c).is_some_and(|text| text.contains("use a copy() of it")));
    assert!(text(&c.clone()).is_some(), "a write must also invalidate a saved clone of its target");
    assert_eq!(text(&c.copy()), None);
}
