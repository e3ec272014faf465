//! `lazy`: deferred operations are bit-identical when they are read.

use super::programs::{ALL, wave};
use crate::support::{bits, leaf, payload_of};
use pellucid_tensor::ops::ScatterReduceOp;
use pellucid_tensor::{
    Array, Arrays, DType, Error, Generator, InputGradients, NeedsInputGrad, Operation, OutputGradients, Result,
    SaveForBackward, SavedTensors, Tensor, apply_one, capture, eager, flush, lazy, manual_seed, ops,
};

#[test]
fn every_program_computes_the_same_bits() {
    for (name, program) in ALL {
        let eager = bits(&program());
        assert_eq!(bits(&lazy(program)), eager, "{name}");
        // The values are read inside the lazy scope, one tensor at a time.
        assert_eq!(
            lazy(|| bits(&program())),
            eager,
            "{name}: values that are read inside the lazy scope differ from the eager ones"
        );
    }
}

#[test]
fn the_generator_of_the_thread_advances() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let draw = || {
        let a = Tensor::rand([3], DType::F32);
        a.dropout(0.5) + Tensor::randn([3], DType::F32)
    };
    manual_seed(4);
    let eager = bits(&[draw(), draw()]);
    manual_seed(4);
    assert_eq!(bits(&lazy(|| [draw(), draw()])), eager);
    manual_seed(4);
    assert_eq!(
        [bits(&[lazy(draw)]), bits(&[draw()])].concat(),
        eager,
        "a lazy draw and a later eager draw must use the generator in program order"
    );
}

#[test]
fn control_flow_may_depend_on_a_read() {
    let y = lazy(|| {
        let x = wave([4]);
        let scale = if x.sum(..).item::<f32>() > 0.0 { 2.0 } else { 3.0 };
        let y = x.i(x.gt(0.0)) * scale;
        assert_eq!(y.size(), y.to_vec::<f32>().len());
        y.to_string();
        assert_eq!(Tensor::from([[1.0, 2.0], [3.0, 4.0]]).t().to_vec::<f64>(), [1.0, 3.0, 2.0, 4.0], "a view");
        y
    });
    assert!(y.size() > 0);
}

#[test]
fn a_read_returns_the_value_at_the_time_of_computation() {
    let (before, after) = lazy(|| {
        let x = Tensor::from([1.0, 2.0]);
        let before = &x * 10.0;
        x.set(0, 9.0);
        (before, x * 10.0)
    });
    assert_eq!((before.to_vec::<f64>(), after.to_vec::<f64>()), (vec![10.0, 20.0], vec![90.0, 20.0]));
}

#[test]
fn a_deferred_write_to_a_saved_value_is_noticed() {
    let error = lazy(|| {
        let (x, c) = (leaf([1.0]), Tensor::from([2.0]));
        let y = &x * &c;
        c.set(0, 3.0);
        y.try_backward_with(Default::default()).unwrap_err()
    });
    assert!(matches!(error, Error::SavedValueModified { .. }));
}

#[test]
fn lazy_scopes_nest_and_other_threads_may_read_deferred_values() {
    let y = lazy(|| lazy(|| wave([3]) * 2.0) + 1.0);
    assert_eq!(bits(&[y]), bits(&[wave([3]) * 2.0 + 1.0]));
    let seen = lazy(|| {
        let y = wave([3]) * 2.0;
        let there = std::thread::scope(|s| s.spawn(|| (&y + 1.0).to_vec::<f32>()).join().unwrap());
        (there, (&y + 1.0).to_vec::<f32>())
    });
    assert_eq!(seen.0, seen.1);
}

/// Copies its input, reads it, and writes at a position.
struct WriteAfterRead(Tensor);

impl Operation for WriteAfterRead {
    fn name(&self) -> &'static str {
        "write_after_read"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let y = Tensor::from(inputs[0].copy()?);
        y.try_to_vec::<f32>()?;
        y.try_set(&self.0, 2.0)?;
        Ok(std::iter::once(y.array().clone()).collect())
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        unreachable!("the input is not tracked")
    }
}

/// A list runs at 2,048 kernels, and when it is read, even if that is between the kernels of one operation.
#[test]
fn a_failed_write_into_a_result_of_an_earlier_run_leaves_no_result() {
    let (x, v, bad) = (wave([3]), wave([1]), Tensor::from([7i64]));
    let is_failed = |y: &Tensor, program: &str| {
        assert!(matches!(y.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { index: 7, .. })), "{program}");
        assert!(matches!(y.try_to_vec::<f32>(), Err(Error::NotComputed { .. })), "{program}");
    };
    is_failed(&lazy(|| apply_one(WriteAfterRead(bad.clone()), &[&x])).unwrap(), "a read in an operation");
    let results = (2_040..2_050).map(|earlier| {
        let y = lazy(|| {
            let _ = (1..earlier).fold(Tensor::zeros([2], DType::F64), |z, _| z + 1.0);
            ops::scatter_add(&x, 0, &bad, &v)
        });
        y.inspect(|y| is_failed(y, &format!("{earlier} kernels before")))
    });
    assert_eq!(results.filter(Result::is_err).count(), 1, "the list runs in one of the calls, which returns the error");
}

/// The list is divided after a kernel that fails, before a write into its result.
#[test]
fn a_write_into_the_result_of_a_failed_kernel_of_an_earlier_run_gives_it_no_values() {
    let (x, good, bad) = (wave([3]), Tensor::from([1i64]), Tensor::from([7i64]));
    let (first, source) = (wave([1]), wave([1]));
    let results = lazy(|| {
        ops::copy_(&first, &source)?;
        let select = |k| {
            let y = ops::index_select(&x, 0, if k == 511 { &bad } else { &good })?;
            ops::copy_(&y, &source).map(|()| y)
        };
        Ok::<_, Error>((0..1_030).map(select).collect::<Vec<_>>())
    });
    let results = results.unwrap();
    let failed = results.iter().filter(|y| y.is_err()).count();
    assert!(failed <= 1, "the call that runs the list returns the error");
    let y = results[511].as_ref().unwrap();
    assert!(matches!(y.try_to_vec::<f32>(), Err(Error::NotComputed { .. })));
}

#[test]
fn a_long_list_is_flushed_automatically() {
    let y = lazy(|| (0..25_000).fold(Tensor::zeros([2], DType::F64), |y, _| y + 1.0));
    assert_eq!(y.to_vec::<f64>(), [25_000.0; 2]);
}

#[test]
fn a_failed_kernel_is_an_error_at_the_read() {
    let bad = || wave([3]).index_select(0, &Tensor::from([7i64]));
    let is_cause = |error: Error| matches!(error, Error::IndexOutOfBounds { index: 7, .. });
    // The error of a kernel that fails at the end of the scope is kept for the read.
    let (y, z) = lazy(|| (bad(), wave([2]) + 1.0));
    assert!(is_cause(y.try_to_vec::<f32>().unwrap_err()));
    assert!(matches!(y.try_to_vec::<f32>().unwrap_err(), Error::NotComputed { .. }));
    assert!(matches!(z.try_to_vec::<f32>(), Ok(_) | Err(Error::NotComputed { .. })));
    let y = lazy(bad);
    assert!(is_cause(ops::add(&y, 1.0).unwrap_err()), "an operation that reads the result");
    // A lost write is reported too, although its target has values.
    let target = wave([1]);
    lazy(|| target.copy_(&bad()));
    assert!(is_cause(flush().unwrap_err()));
    assert_eq!(target.to_vec::<f32>(), wave([1]).to_vec::<f32>());
    let y = lazy(|| ops::take(&wave([3]), &Tensor::from([7i64])).unwrap());
    let error = y.try_to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::IndexOutOfBounds { op: "take", .. }), "{error}");
    let inside = lazy(|| {
        let y = bad();
        y.try_to_vec::<f32>().unwrap_err()
    });
    assert!(matches!(inside, Error::IndexOutOfBounds { .. }));
}

/// Copies its input and writes at a position, as an operation of a user does.
struct WriteAt(Tensor);

impl Operation for WriteAt {
    fn name(&self) -> &'static str {
        "write_at"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let y = Tensor::from(inputs[0].copy()?);
        y.try_set(&self.0, 2.0)?;
        Ok(std::iter::once(y.array().clone()).collect())
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        unreachable!("the input is not tracked")
    }
}

/// An operation that copies an operand, or fills a tensor, and then writes into it has no result if the write fails.
#[test]
fn a_failed_write_into_the_copy_of_an_operation_leaves_no_result() {
    let (x, v, bad) = (wave([3]), wave([1]), Tensor::from([7i64]));
    let reduced = |reduce, include_self| ops::scatter_reduce(&x, 0, &bad, &v, reduce, include_self);
    let programs: [(&str, &dyn Fn() -> Result<Tensor>); 19] = [
        ("scatter", &|| ops::scatter(&x, 0, &bad, &v)),
        ("scatter_add", &|| ops::scatter_add(&x, 0, &bad, &v)),
        ("scatter_add_along", &|| ops::scatter_add_along(&v, &bad, 0, [3])),
        ("scatter_reduce of a sum", &|| reduced(ScatterReduceOp::Sum, true)),
        ("scatter_reduce of a product", &|| reduced(ScatterReduceOp::Prod, true)),
        ("scatter_reduce of a mean", &|| reduced(ScatterReduceOp::Mean, true)),
        ("scatter_reduce of a maximum", &|| reduced(ScatterReduceOp::Max, true)),
        ("scatter_reduce without x", &|| reduced(ScatterReduceOp::Min, false)),
        ("index_add", &|| ops::index_add(&x, 0, &bad, &v, 2.0)),
        ("index_copy", &|| ops::index_copy(&x, 0, &bad, &v)),
        ("index_fill", &|| ops::index_fill(&x, 0, &bad, 2.0)),
        ("index_reduce", &|| ops::index_reduce(&x, 0, &bad, &v, ScatterReduceOp::Max, true)),
        ("put", &|| ops::put(&x, &bad, &v, false)),
        ("index_put", &|| ops::index_put(&x, &bad, &v, true)),
        ("max_unpool1d", &|| ops::max_unpool1d(&v.reshape([1, 1, 1]), &bad.reshape([1, 1, 1]), &[3])),
        ("an operation of a user", &|| apply_one(WriteAt(bad.clone()), &[&x])),
        ("a copy of the result", &|| ops::copy(&ops::scatter_add(&x, 0, &bad, &v)?)),
        ("a view of the result", &|| ops::unsqueeze(&ops::scatter_add(&x, 0, &bad, &v)?, 0)),
        ("a part of the result", &|| ops::concatenate(&[&x, &ops::scatter_add(&x, 0, &bad, &v)?], 0)),
    ];
    for (name, program) in programs {
        let y = lazy(program).unwrap();
        let read = || y.try_to_vec::<f32>().unwrap_err();
        assert!(matches!(read(), Error::IndexOutOfBounds { index: 7, .. }), "{name}");
        assert!(matches!(read(), Error::NotComputed { .. }), "{name}");
        assert!(matches!(ops::add(&y, 1.0), Err(Error::NotComputed { .. })), "{name}");
    }
    // A write in place is another operation: its target keeps the values from before.
    let y = lazy(|| {
        let y = &x + 1.0;
        y.set(&bad, 9.0);
        y
    });
    assert!(matches!(y.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { index: 7, .. })));
    assert_eq!(y.to_vec::<f32>(), (&x + 1.0).to_vec::<f32>());
    // An operation after the failed one does not affect results that were complete.
    let (y, z) = lazy(|| (ops::scatter_add(&x, 0, &Tensor::from([2i64]), &v).unwrap(), ops::take(&x, &bad).unwrap()));
    assert!(matches!(z.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { index: 7, .. })));
    assert_eq!(y.to_vec::<f32>(), ops::scatter_add(&x, 0, &Tensor::from([2i64]), &v).unwrap().to_vec::<f32>());
}

#[test]
fn a_panic_ends_the_lazy_mode() {
    let caught = payload_of(|| lazy(|| panic!("mine")));
    assert_eq!(caught.downcast_ref::<&str>(), Some(&"mine"));
    assert_eq!((Tensor::from([1.0]) + 1.0).item::<f64>(), 2.0);
}

#[test]
fn eval_runs_what_is_recorded() {
    let y = lazy(|| {
        let y = wave([3]) * 2.0;
        y.eval();
        y
    });
    y.eval();
    assert_eq!(bits(&[y]), bits(&[wave([3]) * 2.0]));
}

#[test]
fn unreachable_results_are_not_computed() {
    let generator = Generator::new(5);
    let (kept, view, behind) = (wave([4]), Tensor::zeros([2, 3], DType::F32), Tensor::zeros([2], DType::F32));
    let (sum, product) = lazy(|| {
        // The index is out of bounds, but the kernel is not executed: its result and all dependent values are dropped.
        let bad = kept.index_select(0, &Tensor::from([7i64]));
        drop(&bad * 2.0);
        drop(bad);
        drop(ops::rand_with([4], DType::F32, &generator));
        // These values are reachable: a result, an existing tensor written through a view, and a saved value.
        view.i((.., 1)).copy_(&behind.exp());
        let x = wave([3]).requires_grad_(true);
        let product = (&x * &x.exp()).sum(..);
        ((&kept + 1.0).i(1..).sum(..), product)
    });
    assert_eq!(sum.item::<f32>(), (&kept + 1.0).i(1..).sum(..).item::<f32>());
    assert_eq!(view.to_vec::<f32>(), [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    product.backward();
    assert_eq!(
        generator.state().to_vec::<i64>(),
        drawn(5, 4),
        "a draw whose result is not used must advance the generator too"
    );
    // A read computes the values that are reachable at that time.
    lazy(|| {
        let bad = kept.index_select(0, &Tensor::from([7i64]));
        let good = &kept * 2.0;
        drop(bad);
        assert_eq!(bits(&[good]), bits(&[&kept * 2.0]));
    });
}

/// Returns the state of a generator with this key after it drew `numbers` numbers.
fn drawn(key: u64, numbers: usize) -> Vec<i64> {
    let generator = Generator::new(key);
    ops::rand_with([numbers], DType::F32, &generator).unwrap();
    generator.state().to_vec()
}

/// Every reader sees the new value of an external tensor that a deferred kernel writes.
#[test]
fn deferred_writes_to_external_tensors_are_visible() {
    let on_thread = |f: &(dyn Fn() -> Vec<f64> + Sync)| std::thread::scope(|s| s.spawn(f).join().unwrap());
    let (five, nine) = (Tensor::from([5.0f64, 5.0]), Tensor::from([9.0f64, 9.0]));
    let start = || Tensor::from([1.0f64, 2.0]);

    let x = start();
    lazy(|| {
        x.copy_(&five);
        assert_eq!(on_thread(&|| x.to_vec()), [5.0, 5.0]);
        x.copy_(&nine);
        assert_eq!(eager(|| (&x * 2.0).to_vec::<f64>()), [18.0, 18.0]);
        let y = &x * 1.0;
        eager(|| x.copy_(&five));
        assert_eq!(y.to_vec::<f64>(), [9.0, 9.0], "the deferred read must run before the eager write");
    });
    // The next write is by another thread in eager mode, by another thread in a lazy scope, or by a captured step.
    let mut step = capture(|_| x.copy_(&nine), &[]).unwrap();
    for way in 0..3 {
        lazy(|| {
            x.copy_(&five);
            match way {
                0 => drop(on_thread(&|| (x.copy_(&nine), vec![]).1)),
                1 => drop(on_thread(&|| (lazy(|| x.copy_(&nine)), vec![]).1)),
                _ => drop(step.launch(&[]).unwrap()),
            }
            assert_eq!(x.to_vec::<f64>(), [9.0, 9.0], "{way}");
        });
    }
    // The kernels read their target with another layout, and `y` is read between two writes to x.
    let x = Tensor::from([1.0f64, 2.0, 3.0]);
    lazy(|| {
        x.copy_(&x.flip(0));
        let y = &x * 10.0;
        x.copy_(&x.roll([1], [0]));
        assert_eq!((y.to_vec::<f64>(), x.to_vec::<f64>()), (vec![30.0, 20.0, 10.0], vec![1.0, 3.0, 2.0]));
    });
    // A failed kernel leaves the tensor unchanged and its own results without values.
    let x = start();
    let picked = lazy(|| {
        let picked = x.index_select(0, &Tensor::from([7i64]));
        x.copy_(&five);
        picked
    });
    assert!(matches!(picked.try_to_vec::<f64>(), Err(Error::IndexOutOfBounds { index: 7, .. })));
    assert_eq!(x.to_vec::<f64>(), [1.0, 2.0]);
}
