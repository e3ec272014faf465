//! Kernels that a backend lacks.

use super::plan_fuzz::without_kernels;
use pellucid_tensor::kernel::{Kernel, Map, Params};
use pellucid_tensor::{DType, Tensor, capture, formula, slice};
use pellucid_tensor::{ops, submit};

/// A kernel copies the bytes from the first to the last element of its operands, and no other bytes of their storages.
#[test]
fn a_fallback_copies_only_the_operands() {
    let device = without_kernels();
    let copied = || device.counters()[0].1;
    let double = formula!(|x| x * 2.0);
    let len = 1usize << 16;
    let x = Tensor::arange(0.0f32, len as f32, 1.0).to(device);
    let part = x.narrow(0, 100, 16);

    let before = copied();
    let y = &part * 2.0;
    assert_eq!(copied() - before, 2 * 64, "16 elements there, 16 elements back");
    assert_eq!(y.to_vec::<f32>(), (100..116).map(|k| 2.0 * k as f32).collect::<Vec<_>>());

    // An output over an input is copied once in each direction, with the bytes between its elements.
    let before = copied();
    ops::update(double, &[&x.i(slice(1, 8, 2))], &[], &[]).unwrap();
    assert_eq!(copied() - before, 2 * 28);
    assert_eq!(x.narrow(0, 0, 9).to_vec::<f32>(), [0.0, 2.0, 2.0, 6.0, 4.0, 10.0, 6.0, 14.0, 8.0]);

    // A captured step keeps its results in one storage, of which a kernel copies its operands.
    let wide = Tensor::zeros([len], DType::F32).to(device);
    let mut step = capture(
        |_: &[Tensor]| (ops::cumsum(&ops::cumsum(&part, 0).unwrap(), 0).unwrap(), ops::cumsum(&wide, 0).unwrap()),
        &[],
    )
    .unwrap();
    step.launch(&[]).unwrap();
    let before = copied();
    let outputs = step.launch(&[]).unwrap();
    let bytes = copied() - before;
    let short = outputs.to_vec::<f32>(0);
    assert_eq!(short, ops::cumsum(&ops::cumsum(&part, 0).unwrap(), 0).unwrap().to_vec::<f32>());
    // The long result moves in, back (and as the old contents of its memory), the short ones likewise.
    assert!(bytes <= 3 * 4 * len as u64 + 6 * 64, "{bytes} bytes");
}

/// Outputs whose elements alternate in one storage keep the results of each other.
#[test]
fn a_fallback_writes_interleaved_outputs() {
    let device = without_kernels();
    let both = formula!(|x| (x + 1.0, x + 2.0));
    let x = Tensor::from([1.0f32, 2.0, 3.0, 4.0]).to(device);
    let y = Tensor::zeros([10], DType::F32).to(device);
    let (even, odd) = (y.i(slice(0, 8, 2)), y.i(slice(1, 9, 2)));
    let kernel = Kernel::Map(Map { program: both.uniform_program(DType::F32).unwrap().clone(), params: Params::new() });
    submit(&kernel, &[x.array()], &[even.array(), odd.array()]).unwrap();
    assert_eq!(y.to_vec::<f32>(), [2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 0.0, 0.0]);
}
