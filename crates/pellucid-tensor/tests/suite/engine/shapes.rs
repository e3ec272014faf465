//! Operations whose result's shape depends on values: while a step is captured they are refused at the caller's line, and
//! name what has a known shape; that can be captured, and computes the same.

use pellucid_tensor::{DType, Error, Tensor, capture, ops, unwrap};

type Step = fn(&Tensor) -> Tensor;

#[test]
fn shapes_that_depend_on_values_are_refused_with_an_alternative() {
    let x = Tensor::from([3i64, 0, 1, 1]);
    let refused: [(&str, u32, &str, Step); 8] = [
        ("nonzero", line!(), "where_", |x| unwrap(ops::nonzero(x)).remove(0)),
        ("masked_select", line!(), "masked_sum", |x| x.masked_select(&x.gt(0))),
        ("unique", line!(), "sort", |x| x.unique(None).values),
        ("unique_consecutive", line!(), "sort", |x| x.unique_consecutive(None).values),
        ("bincount", line!(), "one_hot", |x| x.bincount(None, 4)),
        ("index", line!(), "where_", |x| x.i(x.gt(0))),
        ("set", line!(), "masked_fill", |x| unwrap(x.copy().try_set(x.gt(0), 1).map(|()| x.clone()))),
        ("item", line!(), "return the tensor", |x| Tensor::from(x.sum(..).item::<i64>())),
    ];
    for (op, line, alternative, step) in refused {
        match capture(|inputs| step(&inputs[0]), &[&x]).err() {
            Some(Error::ReadInCapture { op: named, location, mend }) => {
                assert_eq!((named, location.file(), location.line()), (op, file!(), line));
                assert!(mend.contains(alternative), "{op}: {mend}");
            }
            other => panic!("{op}: {other:?}"),
        }
    }
}

#[test]
fn the_alternatives_are_captured() {
    let x = Tensor::from([3i64, 0, 1, 1]);
    let pairs: [(Step, Step); 4] = [
        (|x| x.masked_select(&x.gt(0)).sum(..), |x| x.masked_fill(&x.le(0), 0).sum(..)),
        (|x| x.bincount(None, 4), |x| x.one_hot(4).sum(0)),
        (|x| x.bincount(None, 4), |x| Tensor::ones([4], DType::I64).scatter_add_along(x, 0, [4])),
        (|x| x.i(x.gt(0)).sum(..), |x| unwrap(ops::where_(&x.gt(0), x, 0)).sum(..)),
    ];
    for (by_values, by_shapes) in pairs {
        let mut step = capture(|inputs| by_shapes(&inputs[0]), &[&x]).unwrap();
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<i64>(0), by_values(&x).to_vec::<i64>());
    }
}
