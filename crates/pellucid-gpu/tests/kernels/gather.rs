//! Elements selected by indices.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::Backend;
use pellucid_ir::kernel::{Gather, Index, Kernel};
use pellucid_ir::{DType, Error, Scalar};

#[test]
fn gathers_match_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(51);
    let cases: [(&[usize], Index, &[usize]); 9] = [
        (&[7], Index::Axes([0].into_iter().collect()), &[5]),
        (&[7, 3], Index::Axes([0].into_iter().collect()), &[2, 4]),
        (&[3, 7], Index::Axes([1].into_iter().collect()), &[70]),
        (&[3, 4, 5], Index::Axes([0, 2].into_iter().collect()), &[6]),
        (&[3, 4, 5], Index::Axes([0, 1, 2].into_iter().collect()), &[2, 3]),
        (&[3, 4], Index::Along(0), &[5, 4]),
        (&[3, 4, 2], Index::Along(1), &[2, 9, 2]),
        (&[3], Index::Axes([0].into_iter().collect()), &[0]),
        (&[2, 0], Index::Axes([0].into_iter().collect()), &[3]),
    ];
    for (shape, index, index_shape) in cases {
        for dtype in DType::ALL {
            let axes: Vec<usize> = match &index {
                Index::Axes(axes) => axes.to_vec(),
                Index::Along(axis) => vec![*axis],
            };
            let layout = |rng: &mut Rng| TestLayout::ALL[rng.below(5)];
            let mut inputs = vec![PairedArray::new(gpu, shape, dtype, layout(rng), || rng.value())];
            for &axis in &axes {
                let len = shape[axis];
                let value = || Scalar::Int(rng.below(2 * len) as i64 - len as i64);
                inputs.push(PairedArray::new(gpu, index_shape, DType::I64, TestLayout::Offset, value));
            }
            let out = index.shape(&shape.into(), &index_shape.into());
            let y = PairedArray::new(gpu, out, dtype, layout(rng), || rng.value());
            let kernel = Kernel::Gather(Gather { op: "gather", from_end: true, index: index.clone() });
            run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &[&y]).unwrap();
            y.assert_same(gpu, Tolerance::Bits, &format!("{shape:?} {index:?} {dtype}"));
        }
    }
}

#[test]
fn an_index_out_of_bounds_is_the_error_of_the_cpu_and_writes_nothing() {
    let Some(gpu) = device() else { return };
    let x = PairedArray::of(gpu, [3], &[1.0f32, 2.0, 3.0]);
    let kernel = |op, from_end| Kernel::Gather(Gather { op, from_end, index: Index::Axes([0].into_iter().collect()) });
    let (any, positive) = (kernel("gather", true), kernel("embedding", false));
    let cases = [3, -4, i64::MIN, i64::MAX, 1 << 32].map(|bad| (&any, -1, bad));
    let positive = [3, -1, -3, i64::MIN, i64::MAX].map(|bad| (&positive, 2, bad));
    for (kernel, good, bad) in cases.into_iter().chain(positive) {
        let index = PairedArray::of(gpu, [4], &[0, good, bad, 7]);
        let y = PairedArray::of(gpu, [4], &[9.0f32; 4]);
        let on_cpu = Cpu.run(kernel, &[x.on_cpu(), index.on_cpu()], &[y.on_cpu()]).unwrap_err();
        let on_gpu = gpu.run(kernel, &[x.on_gpu(), index.on_gpu()], &[y.on_gpu()]).unwrap_err();
        assert!(matches!(on_gpu, Error::IndexOutOfBounds { .. }) && on_cpu == on_gpu, "{on_gpu} instead of {on_cpu}");
        assert_eq!(y.device_values::<f32>(gpu), [9.0; 4]);
    }
}

#[test]
fn other_threads_do_not_see_the_error_of_a_kernel() {
    let Some(gpu) = device() else { return };
    let x = PairedArray::of(gpu, [3], &[1.0f32, 2.0, 3.0]);
    let index = PairedArray::of(gpu, [2], &[0i64, 3]);
    let kernel = Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..40).for_each(|_| gpu.download(&x.gpu, 0, &mut [0; 4]).unwrap()));
        for _ in 0..20 {
            let y = gpu.storage(8).unwrap();
            let y = PairedArray { gpu: y, ..PairedArray::of(gpu, [2], &[0.0f32; 2]) };
            let rejected = gpu.run(&kernel, &[x.on_gpu(), index.on_gpu()], &[y.on_gpu()]);
            assert!(matches!(rejected, Err(Error::IndexOutOfBounds { index: 3, .. })), "{rejected:?}");
        }
        reader.join().unwrap();
    });
}
