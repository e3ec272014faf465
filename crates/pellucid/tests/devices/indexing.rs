//! Indexing of a tensor on a GPU.

use crate::{pinned, toy};
use pellucid::prelude::*;
use pellucid::{IntoIndex, slice};

/// Returns x `[3, 4]` with the elements 0 to 11, on the toy device and on the CPU.
fn both() -> [Tensor; 2] {
    let x = Tensor::arange(0.0f32, 12.0, 1.0).reshape([3, 4]);
    [x.to(toy(0)), x]
}

/// Checks that an index selects and writes the same elements on both devices, with gradients.
#[track_caller]
fn check_index<I: IntoIndex>(index: impl Fn() -> I) {
    let [on_gpu, on_cpu] = both();
    let run = |x: &Tensor| {
        let leaf = x.detach().requires_grad_(true);
        let selected = leaf.i(index());
        assert_eq!(selected.device(), x.device());
        (&selected * &selected).sum(..).backward();
        let written = x.copy();
        written.set(index(), -1.0f32);
        let gradient = leaf.grad().unwrap();
        assert_eq!((gradient.device(), written.device()), (x.device(), x.device()));
        (selected.shape().clone(), [selected, gradient, written].map(|t| t.to_vec::<f32>()))
    };
    assert_eq!(run(&on_gpu), run(&on_cpu));
}

#[test]
fn indices_select_the_same_elements_on_every_device() {
    check_index(|| 1);
    check_index(|| (slice(None, None, -1), 2..));
    check_index(|| Tensor::from([2i64, 0, 2, -1]));
    check_index(|| Tensor::from([2u8, 0]));
    check_index(|| vec![1i64, -3]);
    check_index(|| [0i32, 2]);
    check_index(Vec::<i64>::new);
    check_index(|| [true, false, true]);
    check_index(|| Tensor::from([false, true, true]));
    check_index(|| true);
    check_index(|| false);
    check_index(|| ([0i64, 2], [1i64, 3]));
    check_index(|| (Tensor::from([[0i64], [2]]), Tensor::from([1i64, 3])));
    check_index(|| both()[1].gt(4.0));
    check_index(|| both()[1].gt(100.0));
}

#[test]
fn a_mask_on_the_device_selects_as_in_numpy() {
    let [x, _] = both();
    assert_eq!(x.i(x.gt(8.0)).to_vec::<f32>(), [9.0, 10.0, 11.0]);
    assert_eq!(x.i(Tensor::from([1i64]).to(toy(0))).to_vec::<f32>(), [4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn an_index_on_another_device_is_rejected_by_its_position() {
    let [x, _] = both();
    let cpu = Tensor::from([0i64, 1]).to(Device::cpu());
    let error = x.try_i((slice(None, None, 1), &cpu)).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }));
    let expected = "(toy:0, cpu at position 1 of the index); move one with to(device)";
    assert!(error.to_string().ends_with(expected), "{error}");
    let on_cpu = pinned(&[1.0, 2.0], Device::cpu());
    let on_gpu = Tensor::from([0i64]).to(toy(0));
    assert!(matches!(on_cpu.try_i(&on_gpu), Err(Error::DeviceMismatch { .. })));
    let free = Tensor::from([1.0f32, 2.0]);
    assert_eq!(free.i(&on_gpu).device(), toy(0), "a free tensor follows its index");
}
