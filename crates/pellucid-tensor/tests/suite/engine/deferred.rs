//! Deferred kernels run as plans: how many launches they take, when they run, and on which devices.

use super::programs::wave;
use crate::support::{bits, leaf};
use crate::table::devices::toy;
use pellucid_tensor::{
    DType, DeferredStats, Device, Error, Generator, Result, Tensor, capture, deferred_stats, eval, flush, grad, lazy,
    ops,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the deferred work of `f` on this thread.
fn work_of<R>(f: impl FnOnce() -> R) -> (DeferredStats, R) {
    let before = deferred_stats();
    let result = f();
    let after = deferred_stats();
    let work = DeferredStats {
        runs: after.runs - before.runs,
        kernels: after.kernels - before.kernels,
        launches: after.launches - before.launches,
        bytes: after.bytes - before.bytes,
        compiled_plans: after.compiled_plans - before.compiled_plans,
        compiled_launches: after.compiled_launches - before.compiled_launches,
        fallbacks: after.fallbacks - before.fallbacks,
    };
    (work, result)
}

/// A chain of ten elementwise operations.
fn chain(x: &Tensor) -> Tensor {
    ((((x * 1.5).tanh() + 0.25).exp() - x).square().sigmoid() * x).sin().abs() / 3.0
}

#[test]
fn a_chain_of_ten_operations_with_its_gradient_takes_at_most_four_launches() {
    let x = leaf([0.3, -0.7, 1.1]);
    let run = || {
        let y = chain(&x);
        y.sum(..).backward();
        let gradient = x.grad().unwrap();
        x.zero_grad();
        [y, gradient]
    };
    let expected = bits(&run());
    let (work, found) = work_of(|| lazy(run));
    assert_eq!(bits(&found), expected);
    assert!(work.kernels >= 20 && work.launches <= 4, "{work:?}");
}

#[test]
fn a_list_of_the_same_structure_is_compiled_once() {
    let x = wave([7, 3]);
    let step = || lazy(|| (chain(&x) * x.sum(..)).sum([0]));
    let (first, a) = work_of(step);
    let (second, b) = work_of(step);
    assert_eq!((first.compiled_plans, second.compiled_plans), (1, 0));
    assert_eq!(first.launches, second.launches);
    assert_eq!(bits(&[a]), bits(&[b]));
    // Run-time parameters may change, even to NaN, which differs from itself.
    let scaled = |factor: f64| work_of(|| lazy(|| (&x * factor).exp() + (&x - factor).sum(..)));
    for factor in [2.0, 3.0, f64::NAN, f64::NAN, -1.0] {
        assert_eq!(bits(&[scaled(factor).1]), bits(&[(&x * factor).exp() + (&x - factor).sum(..)]), "{factor}");
    }
    assert_eq!(scaled(-1.0).0.compiled_plans, 0);
    // A new shape is a new structure.
    let y = wave([3, 7]);
    assert_eq!(work_of(|| lazy(|| (chain(&y) * y.sum(..)).sum([0]))).0.compiled_plans, 1);
}

#[test]
fn unreachable_results_cause_no_launch() {
    let x = wave([4]);
    let (work, ()) = work_of(|| {
        lazy(|| {
            drop(chain(&x).sum(..));
            drop(grad(&[&chain(&x.detach().requires_grad_(true)).sum(..)], &[], Default::default()));
        })
    });
    assert!(work.kernels > 0);
    assert_eq!((work.launches, work.compiled_plans), (0, 0));
}

/// A loop without reads is divided where the list starts to repeat, so that few plans are compiled.
#[test]
fn a_long_loop_runs_in_lists_of_the_same_structure() {
    let go = |steps: usize| {
        (0..steps).fold(wave([3]), |x, _| {
            let y = x.matmul(&wave([3, 3])) + 0.5;
            let z = y.sum(..) * &y;
            z / 7.0
        })
    };
    let expected = bits(&[go(5_000)]);
    let (work, found) = work_of(|| lazy(|| go(5_000)));
    assert_eq!(bits(&[found]), expected);
    assert!(work.runs >= 4 && work.compiled_plans <= 3, "{work:?}");
}

#[test]
fn a_kernel_that_fails_leaves_complete_results() {
    let (x, bad) = (wave([3]), Tensor::from([7i64]));
    let (y, z, outcome) = lazy(|| {
        let y = x.matmul(&wave([3, 2]));
        let z = x.index_select(0, &bad).sum(..) * 2.0;
        let outcome = flush();
        (y, z, outcome)
    });
    assert!(matches!(outcome, Err(Error::IndexOutOfBounds { .. })), "{outcome:?}");
    assert_eq!(bits(&[y]), bits(&[x.matmul(&wave([3, 2]))]));
    assert!(matches!(z.try_to_vec::<f32>(), Err(Error::NotComputed { .. })));
}

#[test]
fn uploads_bound_the_memory_of_a_list() {
    // Every batch is 16 MiB; the list must run before it holds many of them.
    let batch = vec![1.0f32; 4 << 20];
    let (work, ()) = work_of(|| {
        lazy(|| {
            let total = Tensor::zeros([1], DType::F32);
            for _ in 0..40 {
                total.copy_(&(&total + Tensor::new(batch.clone(), [4 << 20]).i(..1)));
            }
            assert!(total.size() == 1);
        })
    });
    assert!(work.runs >= 3, "{work:?}");
}

/// Kernels of a device that defers them need neither `lazy` nor `eval`.
#[test]
fn a_device_may_defer_all_its_kernels() {
    let device = toy(1);
    assert!(device.is_deferred() && !toy(0).is_deferred() && !Device::cpu().is_deferred());
    let x = wave([5]).to(device);
    let (work, y) = work_of(|| chain(&x) + 1.0);
    assert_eq!(work.launches, 0, "nothing reads the result yet");
    let expected = bits(&[chain(&wave([5])) + 1.0]);
    let (work, found) = work_of(|| bits(std::slice::from_ref(&y)));
    assert_eq!((found, work.runs > 0), (expected, true));
    // `eval`, `flush` and `synchronize` run the recorded kernels.
    let (a, b) = (&x + 1.0, &x * 2.0);
    assert!(work_of(|| eval([&a, &b]).unwrap()).0.launches > 0);
    drop((a, b));
    let a = &x - 1.0;
    assert_eq!(work_of(|| flush().unwrap()).0.launches, 1);
    let b = &a - 1.0;
    assert_eq!(work_of(|| device.synchronize().unwrap()).0.launches, 1);
    drop(b);
    let (work, ()) = work_of(|| {
        drop(&x - 1.0);
        flush().unwrap();
    });
    assert_eq!((work.kernels, work.launches), (1, 0), "the difference cannot be read");
}

/// A write waits for the deferred kernels of all threads that read the old value.
#[test]
fn writes_of_other_threads_come_after_deferred_reads() {
    let device = toy(1);
    let start = || Tensor::from([1.0f32, 2.0]).to(device);
    let nine = Tensor::from([9.0f32, 9.0]).to(device);
    let x = start();
    let before = &x * 10.0;
    std::thread::scope(|s| s.spawn(|| x.copy_(&nine)).join().unwrap());
    let after = &x * 10.0;
    assert_eq!((before.to_vec::<f32>(), after.to_vec::<f32>()), (vec![10.0, 20.0], vec![90.0, 90.0]));
    // Two threads have deferred reads; one of them ends before its results are read.
    let x = start();
    let there = std::thread::scope(|s| s.spawn(|| &x + 1.0).join().unwrap());
    let here = &x + 2.0;
    x.copy_(&nine);
    assert_eq!((there.to_vec::<f32>(), here.to_vec::<f32>()), (vec![2.0, 3.0], vec![3.0, 4.0]));
    assert_eq!(x.to_vec::<f32>(), [9.0, 9.0]);
    // The same on the CPU: an eager write while another thread is in a lazy scope.
    let x = Tensor::from([1.0f32, 2.0]);
    let y = lazy(|| {
        let y = &x * 3.0;
        std::thread::scope(|s| s.spawn(|| x.copy_(&Tensor::from([0.0f32, 0.0]))).join().unwrap());
        y
    });
    assert_eq!(y.to_vec::<f32>(), [3.0, 6.0]);
}

/// A copy of an output is deferred too. It has the values of its launch, even if the next launch comes first.
#[test]
fn deferred_copies_of_outputs_keep_the_values_of_their_launch() {
    let x = Tensor::from([1.0f32, 2.0]).to(toy(1));
    let total = x.detach().copy();
    let mut step = capture(
        |_: &[Tensor]| {
            total.copy_(&(&total + &x));
            &total * 10.0
        },
        &[],
    )
    .unwrap();
    let first = step.launch(&[]).unwrap().to_tensor(0);
    let sum = &total + 0.0;
    let second = step.launch(&[]).unwrap().to_tensor(0);
    assert_eq!((first.to_vec::<f32>(), sum.to_vec::<f32>()), (vec![20.0, 40.0], vec![2.0, 4.0]));
    assert_eq!((second.to_vec::<f32>(), total.to_vec::<f32>()), (vec![30.0, 60.0], vec![3.0, 6.0]));
    let x = Tensor::from([1.0f32, 2.0]);
    let mut step = capture(|i: &[Tensor]| &i[0] * 10.0, &[&x]).unwrap();
    let (first, second) = lazy(|| {
        let first = step.launch(&[&x]).unwrap().to_tensor(0);
        (first, step.launch(&[&(&x + 1.0)]).unwrap().to_tensor(0))
    });
    assert_eq!((first.to_vec::<f32>(), second.to_vec::<f32>()), (vec![10.0, 20.0], vec![20.0, 30.0]));
}

/// The error of a kernel reaches only the thread that deferred it.
#[test]
fn threads_that_share_a_device_do_not_share_errors() {
    let device = toy(1);
    let x = wave([3]).to(device);
    let bad = Tensor::from([7i64]).to(device);
    let broken = x.index_select(0, &bad);
    std::thread::scope(|s| {
        let other = s.spawn(|| bits(&[&x * 2.0 + 1.0])).join().unwrap();
        assert_eq!(other, bits(&[wave([3]) * 2.0 + 1.0]));
    });
    assert!(matches!(broken.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { .. })));
    let fine = ops::add(&x, 1.0).unwrap();
    assert_eq!(bits(&[fine]), bits(&[wave([3]) + 1.0]));
}

/// The error of a list that runs because of another thread, or because of a move, is returned to the thread of the
/// list.
#[test]
fn no_error_of_a_deferred_kernel_is_lost() {
    let bad = Tensor::from([7i64]);
    let failing = |device: Device| {
        let [w, x] = [wave([2]).to(device), wave([2]).to(device)];
        w.copy_(&(&w + x.index_select(0, &bad).sum(..)));
        (w, x)
    };
    let (w, _x) = failing(toy(1));
    wave([2]).to(toy(1)).to_(toy(0));
    assert!(matches!(w.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { .. })), "a move runs the list");
    assert_eq!(w.to_vec::<f32>(), wave([2]).to_vec::<f32>());
    let (_w, x) = failing(toy(1));
    std::thread::scope(|s| s.spawn(|| x.copy_(&wave([2]).to(toy(1)))).join().unwrap());
    assert!(matches!(flush(), Err(Error::IndexOutOfBounds { .. })), "a write runs the list that reads its target");
    assert!(flush().is_ok());
    lazy(|| {
        let (_w, x) = failing(Device::cpu());
        std::thread::scope(|s| s.spawn(|| x.copy_(&wave([2]))).join().unwrap());
    });
    assert!(matches!(flush(), Err(Error::IndexOutOfBounds { .. })), "the end of the scope runs the list");
    assert!(flush().is_ok());
}

#[test]
fn a_read_on_another_thread_does_not_take_the_error_of_this_one() {
    let x = wave([2]).to(toy(1));
    let y = &x + 10.0;
    let failed = x.index_select(0, &Tensor::from([7i64]));
    let after = &failed + 1.0;
    let [read, read_after] =
        std::thread::scope(|s| s.spawn(|| [&y, &after].map(|t| t.try_to_vec::<f32>())).join().unwrap());
    assert_eq!(read.unwrap(), (wave([2]) + 10.0).to_vec::<f32>());
    assert!(matches!(read_after, Err(Error::NotComputed { .. })), "{read_after:?}");
    assert!(matches!(flush(), Err(Error::IndexOutOfBounds { .. })));
    assert_eq!(y.to_vec::<f32>(), (wave([2]) + 10.0).to_vec::<f32>());
}

/// A list that cannot run as a plan runs kernel by kernel, so the writes before the failing kernel happen.
#[test]
fn writes_before_an_impossible_allocation_happen() {
    let found = lazy(|| {
        let w = Tensor::zeros([2], DType::F32);
        w.copy_(&(&w + 1.0));
        let y = &w * 3.0;
        let wide = Tensor::zeros([1 << 17], DType::F32);
        let huge = wide.unsqueeze(1) + &wide;
        let error = huge.sum(..).exp().try_to_vec::<f32>();
        assert!(matches!(error, Err(Error::OutOfMemory { .. })), "{error:?}");
        [w.to_vec::<f32>(), y.to_vec::<f32>()]
    });
    assert_eq!(found, [[1.0, 1.0], [3.0, 3.0]]);
}

#[test]
fn the_error_of_a_deferred_kernel_names_the_called_operation() {
    let wide = Tensor::zeros([1 << 17], DType::F32);
    let huge = wide.expand([1 << 17, 1 << 17]);
    let programs: [(&str, &dyn Fn() -> Result<Tensor>); 4] = [
        ("cumsum", &|| ops::cumsum(&huge, 0)),
        ("argsort", &|| ops::argsort(&huge, 0, false)),
        ("rand_with", &|| ops::rand_with([1 << 17, 1 << 17], DType::F32, &Generator::new(0))),
        ("bitwise_not", &|| ops::bitwise_not(&ops::argsort(&huge, 0, false)?)),
    ];
    for (name, program) in programs {
        let error = lazy(|| program()?.try_to_vec::<f32>()).unwrap_err();
        let op = if name == "bitwise_not" { "argsort" } else { name };
        assert!(matches!(error, Error::OutOfMemory { op: named, .. } if named == op), "{name}: {error}");
    }
}

#[test]
fn kernels_before_a_panic_run() {
    let w = Tensor::zeros([2], DType::F32);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        lazy(|| {
            w.copy_(&(&w + 5.0));
            panic!("on purpose");
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(w.to_vec::<f32>(), [5.0, 5.0]);
}
