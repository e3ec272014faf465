//! Printing does not change which call returns the error of a deferred kernel.

use crate::gpus;
use pellucid::{flush, lazy, prelude::*};

/// Checks that printing a tensor whose kernel fails shows the error, and that the next read still returns it.
fn check_printing(device: Device) {
    let table = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).to(device);
    let rows = Tensor::from([0i64, 7]).to(device);
    let failing = || ops::index_select(&table, 0, &rows);
    let other = &table * 2.0;
    let Ok(y) = failing() else { panic!("{device} must defer the kernel") };
    for text in [format!("{y}"), format!("{y:?}"), format!("{y}")] {
        assert!(text.contains("index 7"), "{device}: {text}");
    }
    let error = y.try_to_vec::<f32>();
    assert!(matches!(error, Err(Error::IndexOutOfBounds { index: 7, .. })), "{device}: {error:?}");
    // The error is returned once.
    assert!(matches!(y.try_to_vec::<f32>(), Err(Error::NotComputed { .. })), "{device}");
    assert!(format!("{y}").contains("no values yet"), "{device}");
    assert_eq!(other.to_vec::<f32>(), [2.0, 4.0, 6.0, 8.0], "{device}");
    // A flush also returns the error, and printing other tensors shows their values.
    let y = failing().unwrap();
    assert!(format!("{y}").contains("index 7"), "{device}");
    assert_eq!(format!("{table}"), "[[1. 2.]\n [3. 4.]]", "{device}");
    assert!(matches!(flush(), Err(Error::IndexOutOfBounds { index: 7, .. })), "{device}");
    // Printing that fails for another reason leaves no error.
    let long = Tensor::zeros([1], DType::F32).to(device).broadcast_to([7; 8]);
    assert!(format!("{long}").contains("too many elements"), "{device}");
    assert_eq!(table.i((1, 1)).item::<f32>(), 4.0, "{device}");
}

#[test]
fn printing_keeps_the_error_of_a_deferred_kernel() {
    gpus(16).into_iter().filter(Device::is_deferred).for_each(check_printing);
    lazy(|| check_printing(Device::cpu()));
}
