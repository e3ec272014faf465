use super::*;

fn positions(layout: &Layout) -> Vec<isize> {
    let mut out = vec![layout.offset() as isize];
    for (&dim, &stride) in layout.shape().iter().zip(&*layout.strides()) {
        out = out.iter().flat_map(|&p| (0..dim as isize).map(move |i| p + i * stride)).collect();
    }
    out
}

#[test]
fn operands_overlap_as_the_same_elements_partially_or_not() {
    let at = |offset, shape: &[usize]| Layout::contiguous_from(shape.into(), offset);
    let matrix = Layout::contiguous([2, 3].into());
    for (a, b, sizes, expected) in [
        (at(0, &[3]), at(3, &[3]), (4, 4), Overlap::Disjoint),
        (at(0, &[3]), at(2, &[3]), (4, 4), Overlap::Partial),
        (at(2, &[3]), at(2, &[3]), (4, 4), Overlap::Same),
        (at(2, &[1, 3]), at(2, &[3]), (4, 4), Overlap::Same),
        (at(2, &[3]), at(2, &[2]), (4, 4), Overlap::Partial),
        // A column and a row: element (i, j) of the common shape is element i of the column and element j of the row.
        (at(0, &[3, 1]), at(0, &[3]), (4, 4), Overlap::Partial),
        (at(0, &[2, 1, 3]), at(0, &[2, 3]), (4, 4), Overlap::Partial),
        (at(0, &[1, 3]), at(0, &[1, 1, 3]), (4, 4), Overlap::Same),
        (matrix.clone(), matrix.permute(&[1, 0]), (4, 4), Overlap::Partial),
        (matrix.permute(&[1, 0]), matrix.permute(&[1, 0]), (4, 4), Overlap::Same),
        // Elements of different sizes: equal extents in elements are different extents in bytes.
        (at(4, &[4]), at(2, &[2]), (4, 8), Overlap::Partial),
        (at(4, &[4]), at(4, &[4]), (4, 8), Overlap::Disjoint),
        (at(4, &[4]), at(0, &[4]), (4, 8), Overlap::Partial),
        // The positions of the elements exceed the address space.
        (at(usize::MAX >> 1, &[2]), at(usize::MAX >> 1, &[2]), (4, 4), Overlap::Same),
        (at(usize::MAX >> 1, &[2]), at(0, &[2]), (4, 4), Overlap::Disjoint),
        // An operand without elements overlaps nothing.
        (at(1, &[0]), at(0, &[3]), (4, 4), Overlap::Disjoint),
        // Interleaved elements share no byte, but their extents overlap.
        (at(0, &[6]).slice(0, 0, 2, 3), at(0, &[6]).slice(0, 1, 2, 3), (4, 4), Overlap::Partial),
    ] {
        assert_eq!(a.overlap(sizes.0, &b, sizes.1), expected, "overlap of {a:?} with {b:?}, bytes {sizes:?}");
        assert_eq!(b.overlap(sizes.1, &a, sizes.0), expected, "overlap of {b:?} with {a:?}, bytes {sizes:?}");
    }
}

#[test]
fn reshape_keeps_the_order_of_elements_or_returns_none() {
    let base = Layout::contiguous([4, 6].into());
    let every_other = base.slice(1, 1, 2, 3);
    for (layout, shape, viewable) in [
        (base.clone(), Shape::from([2, 2, 3, 2]), true),
        (base.permute(&[1, 0]), [24].into(), false),
        (base.permute(&[1, 0]), [2, 3, 4].into(), true),
        (every_other.clone(), [2, 2, 3].into(), true),
        (every_other.clone(), [12].into(), true),
        (base.slice(0, 3, -1, 4), [4, 2, 3].into(), true),
        (base.slice(1, 0, 1, 3), [12].into(), false),
    ] {
        let out = layout.reshape(&shape);
        assert_eq!(
            out.is_some(),
            viewable,
            "the reshape of {layout:?} to {shape} must return a view exactly if one is possible ({viewable})"
        );
        if let Some(out) = out {
            assert_eq!(positions(&out), positions(&layout));
        }
    }
}

#[test]
fn broadcasting_aligns_at_the_last_axis() {
    let a = Shape::from([4, 1, 3]);
    assert_eq!(a.broadcast(&[2, 1].into()).unwrap(), [4, 2, 3]);
    assert_eq!(a.broadcast(&().into()).unwrap(), a);
    assert!(a.broadcast(&[2].into()).is_none());
    assert_eq!(Shape::from([0, 1]).broadcast(&[5].into()).unwrap(), [0, 5]);
    assert!(Layout::contiguous([1, 3].into()).broadcast_to(&[2, 3].into()).unwrap().is_broadcast());
    assert!(Layout::contiguous([4, 3].into()).broadcast_to(&[1, 3].into()).is_none());
}

#[test]
fn checked_size_detects_overflow_even_beside_a_zero() {
    assert_eq!(Shape::from([usize::MAX, 2]).checked_size(), None);
    assert_eq!(Shape::from([0, usize::MAX, 2]).checked_size(), None);
    assert_eq!((Shape::from([0, -1]).checked_size(), Shape::from([-1]).checked_size()), (None, None));
    assert_eq!(Shape::from([0, 7]).checked_size(), Some(0));
}
