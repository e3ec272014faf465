//! Refusals: a typed error from the function, the same as a panic of the method, at the caller's line.

use crate::support::panic_of;
use pellucid_tensor::{DType, Error, Tensor, ops};
use std::cell::RefCell;
use std::panic;

thread_local! {
    static PLACE: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
}

/// The file and line at which `f` panics.
fn place_of(f: impl FnOnce()) -> (String, u32) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|l| (l.file().to_string(), l.line()));
            PLACE.with_borrow_mut(|p| *p = place);
            before(info);
        }));
    });
    panic_of(f);
    PLACE.take().expect("a place")
}

#[test]
fn a_method_panics_at_the_callers_line_with_the_functions_error() {
    let (a, b) = (Tensor::zeros([2, 3], DType::F32), Tensor::zeros([4], DType::F32));
    let expected = ops::matmul(&a, &b).unwrap_err();
    assert_eq!(panic_of(|| a.matmul(&b)), expected.to_string());
    assert!(matches!(&expected, Error::ShapeMismatch { op: "matmul", shapes, .. } if shapes.len() == 2));

    let refusals: [(u32, &dyn Fn()); 8] = [
        (line!(), &|| drop(a.matmul(&b))),
        (line!(), &|| drop(&a + &b)),
        (line!(), &|| drop(a.clone() & 3.5)),
        (line!(), &|| drop(a.i((0, 5)))),
        (line!(), &|| a.set((.., 3), 1.0)),
        (line!(), &|| a.backward()),
        (line!(), &|| assert_eq!(a.item::<f32>(), 0.0)),
        (line!(), &|| drop(a.sum(2))),
    ];
    for (line, refusal) in refusals {
        assert_eq!(place_of(refusal), (file!().to_string(), line));
    }
}

#[test]
fn messages_name_the_operation_the_shapes_and_the_mend() {
    let (a, b) = (Tensor::zeros([2, 3], DType::F32), Tensor::zeros([4], DType::F32));
    let text = panic_of(|| &a * &b);
    assert!(
        text.contains("mul") && text.contains("[2, 3]") && text.contains("[4]") && text.contains("unsqueeze"),
        "{text}"
    );
    let text = panic_of(|| a.bitwise_and(b.zeros_like()));
    assert!(text.contains("bitwise_and"), "{text}");
    let text = panic_of(|| Tensor::zeros([2], DType::F32) & 1);
    assert!(text.contains("f32") && text.contains("to_dtype"), "{text}");
    let text = panic_of(|| a.i((.., -4)));
    assert!(text.contains("-4") && text.contains("axis 1") && text.contains("length 3"), "{text}");
    let text = panic_of(|| a.clone().requires_grad_(true).i(0).item::<f32>());
    assert!(text.contains("item") && text.contains("[3]"), "{text}");
    // The weight is shown as its owner made it.
    let text = panic_of(|| a.linear(&Tensor::zeros([5, 4], DType::F32), None));
    assert!(text.contains("linear") && text.contains("[5, 4]") && text.contains("has 3 numbers"), "{text}");
    let (image, weight) = (Tensor::zeros([1, 3, 4, 4], DType::F32), Tensor::zeros([2, 4, 1, 1], DType::F32));
    let text = panic_of(|| image.conv2d(&weight, None, ops::Conv::default()));
    assert!(text.contains("conv2d") && text.contains("has 3 channels") && text.contains("takes 4"), "{text}");
}

#[test]
fn a_refused_call_changes_nothing() {
    let x = Tensor::from([1.0f32, 2.0, 3.0]);
    let version = x.array().storage().version();
    assert!(x.try_set(3, 9.0).is_err());
    assert!(x.try_set(.., Tensor::from([1.0f32, 2.0])).is_err());
    assert!(x.try_set(Tensor::from([0i64, 5]), 9.0).is_err(), "the first index is good, the second is not");
    assert!(ops::copy_(&x, &Tensor::from([[1.0f32], [2.0]])).is_err());
    assert_eq!(x.to_vec::<f32>(), [1.0, 2.0, 3.0]);
    assert_eq!(x.array().storage().version(), version);
}
