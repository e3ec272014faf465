//! Writes in place are differentiable, through the tensor, its views, and its base.

use super::super::engine::SplitMix64;
use crate::support::{assert_close, leaf, number, slope};
use pellucid_tensor::{
    Array, Arrays, BackwardOptions, DType, Error, GradCheckOptions, GradOptions, IndexItem, InputGradients,
    NeedsInputGrad, Operation, OutputGradients, Result, SaveForBackward, SavedTensors, Tensor, apply_one, capture,
    formula, grad, gradcheck, gradgradcheck, lazy, no_grad, ops, slice,
};

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(shape, DType::F64)
}

fn gradient(x: &Tensor) -> Vec<f64> {
    x.grad().expect("the tensor must have a gradient").to_vec()
}

#[test]
fn a_value_that_was_set_has_its_gradient() {
    let x = leaf([1.0, 2.0, 3.0]);
    let out = zeros([3]);
    let handle = out.clone();
    out.set(0, x.i(0).square());
    assert!(
        out.requires_grad() && !out.is_leaf() && handle.requires_grad(),
        "a write must change the history of all clones"
    );
    assert_eq!(out.creator().unwrap().name(), "set");
    (handle.sum(..) + x.sum(..)).backward();
    assert_eq!(gradient(&x), [3.0, 1.0, 1.0]);
}

#[test]
fn elements_that_are_not_overwritten_keep_their_gradient() {
    let (x, v) = (leaf([1.0, 2.0, 3.0]), leaf([10.0]));
    let y = &x * 2.0;
    y.set(slice(0, 2, 1), &v * 5.0);
    assert_eq!(y.to_vec::<f64>(), [50.0, 50.0, 6.0]);
    (&y * Tensor::from([1.0, 10.0, 100.0])).sum(..).backward();
    assert_eq!(
        (gradient(&x), gradient(&v)),
        (vec![0.0, 0.0, 200.0], vec![55.0]),
        "the gradient of v must be summed over the broadcast axis"
    );
    // After a write of a number or of an untracked tensor, the overwritten elements have no gradient either.
    let y = &x * 2.0;
    y.set(1, 7.0);
    y.i(2..).copy_(&Tensor::from([0.5]));
    x.zero_grad();
    y.sum(..).backward();
    assert_eq!(gradient(&x), [2.0, 0.0, 0.0]);
}

#[test]
fn every_write_is_recorded() {
    type Write = fn(&Tensor, &Tensor);
    let writes: [(&str, Write); 9] = [
        ("set", |y, v| y.set(1, v)),
        ("set a range", |y, v| y.set(1..2, v)),
        ("set backwards", |y, v| y.set(slice(1, 0, -1), v)),
        ("set a mask", |y, v| y.set(Tensor::from([false, true, false]), v)),
        ("set positions", |y, v| y.set(Tensor::from([1i64, -2]), v)),
        ("copy_ into a view", |y, v| y.i(1).copy_(v)),
        ("set a view", |y, v| y.reshape([3, 1]).t().set((0, 1), v)),
        ("update a view", |y, v| ops::update(formula!(|_y, v| v * 1.0), &[&y.i(1)], &[v], &[]).unwrap()),
        ("update", |y, v| {
            let mask = Tensor::from([0.0, 1.0, 0.0]);
            ops::update(formula!(|y, m, v| y * (1.0 - m) + m * v), &[y], &[&mask, v], &[]).unwrap();
        }),
    ];
    for (name, write) in writes {
        let (x, v) = (leaf([1.0, 2.0, 3.0]), number(4.0));
        let y = &x * 1.0;
        write(&y, &(&v * 3.0));
        assert_eq!(y.to_vec::<f64>(), [1.0, 12.0, 3.0], "{name}");
        (&y * Tensor::from([1.0, 10.0, 100.0])).sum(..).backward();
        assert_eq!((gradient(&x), slope(&v)), (vec![1.0, 0.0, 100.0], 30.0), "{name}");
        // The target of the write may have no history, and its dtype may differ from the source.
        let (v, y) = (number(4.0), Tensor::zeros([3], DType::F32));
        let dtypes_fit = !name.starts_with("update");
        if dtypes_fit {
            write(&y, &(&v * 3.0));
            (&y * 10.0).sum(..).backward();
            assert_eq!(slope(&v), 30.0, "{name}");
        }
    }
}

#[test]
fn the_last_of_several_values_for_one_position_has_the_gradient() {
    let v = leaf([1.0, 2.0, 3.0]);
    let y = zeros([2, 2]);
    let (rows, columns) = (Tensor::from([0i64, 1, 0]), Tensor::from([1i64, 0, 1]));
    y.set((&rows, &columns), &v * 1.0);
    assert_eq!(y.to_vec::<f64>(), [0.0, 3.0, 2.0, 0.0]);
    (&y * Tensor::from([[1.0, 10.0], [100.0, 1000.0]])).sum(..).backward();
    assert_eq!(gradient(&v), [0.0, 100.0, 10.0]);
}

#[test]
fn views_and_their_base_have_one_history() {
    // The views are created before the write, and their base has no history.
    let v = number(2.0);
    let base = zeros([2, 2]);
    let (row, other) = (base.i(0), base.i(1));
    row.set(1, &v * 3.0);
    assert!(base.requires_grad() && row.requires_grad() && other.requires_grad());
    (base.sum(..) + row.sum(..) * 10.0 + other.sum(..) * 100.0).backward();
    assert_eq!(slope(&v), 33.0);
    // `column` is a view of a view of a result. The first write is to the base, the second to `column`.
    let (x, v) = (leaf([1.0, 2.0, 3.0, 4.0]), number(2.0));
    let base = (&x * 2.0).reshape([2, 2]);
    let column = base.t().i(1);
    base.set((0, 1), &v * 5.0);
    assert_eq!(column.to_vec::<f64>(), [10.0, 8.0]);
    column.set(1, &v * 7.0);
    assert_eq!(base.to_vec::<f64>(), [2.0, 10.0, 6.0, 14.0]);
    (base * Tensor::from([[1.0, 10.0], [100.0, 1000.0]])).sum(..).backward();
    assert_eq!((gradient(&x), slope(&v)), (vec![2.0, 0.0, 200.0, 0.0], 7050.0));
    // The base of the split is dropped. A write to one part leaves the gradient of the other part unchanged.
    let x = leaf([1.0, 2.0]);
    let parts = (&x * 3.0).split([1, 1], 0);
    parts[0].set(.., 0.0);
    (&parts[0] + &parts[1] * 10.0).sum(..).backward();
    assert_eq!(gradient(&x), [0.0, 30.0]);
    // So do windows that overlap.
    let (x, w) = (leaf([1.0, 2.0, 3.0]), Tensor::from([[1.0, 10.0], [100.0, 1000.0]]));
    let base = &x * 2.0;
    let windows = base.windows(0, 2, 1);
    base.copy_(&(&base * 3.0));
    assert_eq!(windows.to_vec::<f64>(), [6.0, 12.0, 12.0, 18.0]);
    (&windows * &w).sum(..).backward();
    assert_eq!(gradient(&x), [6.0, 660.0, 6000.0]);
    assert!(ops::copy_(&windows, &w).is_err(), "windows that overlap must not be written");
    // A view that repeats an element of the base sums its gradients.
    let (base, v) = (zeros([2]), number(2.0));
    let repeated = base.broadcast_to([3, 2]);
    base.set(1, &v * 1.0);
    (repeated * Tensor::from([[1.0, 1.0], [1.0, 10.0], [1.0, 100.0]])).sum(..).backward();
    assert_eq!(slope(&v), 111.0);
}

#[test]
fn a_detached_tensor_has_a_separate_history() {
    let (x, v) = (leaf([1.0, 2.0]), number(5.0));
    let y = &x * 2.0;
    let detached = y.detach();
    let view = detached.i(0);
    detached.set(0, &v * 1.0);
    assert!(detached.requires_grad() && view.requires_grad() && !detached.detach().requires_grad());
    (&y * 10.0 + &detached).sum(..).backward();
    assert_eq!((gradient(&x), slope(&v)), (vec![20.0, 20.0], 1.0));
    // The detached tensor is a column of a matrix: its elements are not adjacent in the storage.
    let (columns, v) = (zeros([3, 2]).i((.., 1)).detach(), number(5.0));
    let last = columns.i(2);
    columns.set(1.., &v * 2.0);
    (columns.sum(..) + last * 10.0).backward();
    assert_eq!(slope(&v), 24.0);
    // After a write through a view of a result, the overwritten element has no gradient.
    let x = leaf([1.0, 2.0, 3.0]);
    let y = x.broadcast_to([2, 3]).copy().t();
    y.set((0, 1), 0.0);
    y.sum(..).backward();
    assert_eq!(gradient(&x), [1.0, 2.0, 2.0]);
}

#[test]
fn a_buffer_filled_step_by_step_is_differentiable() {
    let (steps, x) = (50, leaf([0.5, -0.25]));
    let run = |fill: bool| {
        let (buffer, mut all) = (zeros([steps, 2]), Vec::new());
        let mut h = x.tanh();
        for step in 0..steps {
            h = (&h * 0.9 + &x).sin();
            if fill { buffer.set(step, &h) } else { all.push(h.unsqueeze(0)) }
        }
        let weight = Tensor::arange(0i64, steps as i64, 1).to_dtype(DType::F64).unsqueeze(1);
        let all: Vec<&Tensor> = all.iter().collect();
        let y = if fill { buffer } else { ops::concatenate(&all, 0).unwrap() };
        (y * weight).sum(..)
    };
    let options = || GradOptions { create_graph: true, ..Default::default() };
    let twice = |fill| {
        let first = grad(&[&run(fill)], &[&x], options()).unwrap().remove(0);
        let second = grad(&[&first.square().sum(..)], &[&x], GradOptions::default()).unwrap().remove(0);
        (first.to_vec::<f64>(), second.to_vec::<f64>())
    };
    let (filled, joined) = (twice(true), twice(false));
    assert_close(&Tensor::new(filled.0, [2]), &joined.0);
    assert_close(&Tensor::new(filled.1, [2]), &joined.1);
    // Each step reads the element of the previous step from the buffer. The later writes must not invalidate it.
    let buffer = zeros([4]);
    let v = number(3.0);
    buffer.set(0, &v * 1.0);
    (1..4).for_each(|k| buffer.set(k, &(buffer.i(k - 1) * 2.0 + &v)));
    buffer.i(3).backward();
    assert_eq!(slope(&v), 15.0);
}

#[test]
fn gradients_agree_with_finite_differences() {
    let x = leaf([0.3, -0.7, 1.1]);
    let f = |x: &[Tensor]| {
        let buffer = x[0].sin();
        let view = buffer.i(1..);
        view.set(0, &(x[0].i(2) * x[0].i(0)));
        buffer.set(Tensor::from([0i64, 2, 0]), x[0].exp());
        let square = buffer.square();
        Ok(vec![square, view.copy()])
    };
    gradcheck(f, &[&x], GradCheckOptions::default()).unwrap();
    gradgradcheck(f, &[&x], GradCheckOptions::default()).unwrap();
}

#[test]
fn gradgradcheck_accepts_a_function_that_differentiates() {
    let x = leaf([0.3, -0.7]);
    let slope =
        |x: &[Tensor]| grad(&[&x[0].sin().sum(..)], &[&x[0]], GradOptions { create_graph: true, ..Default::default() });
    gradcheck(slope, &[&x], GradCheckOptions::default()).unwrap();
    gradgradcheck(slope, &[&x], GradCheckOptions::default()).unwrap();
}

#[test]
fn retained_gradients_and_hooks_refer_to_the_current_value() {
    let x = leaf([1.0, 2.0]);
    let y = &x * 3.0;
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = seen.clone();
    y.register_hook(move |g| {
        note.lock().unwrap().push(g.to_vec::<f64>());
        None
    });
    y.retain_grad();
    y.set(0, &x.i(1) * 5.0);
    (&y * Tensor::from([10.0, 100.0])).sum(..).backward();
    assert_eq!(gradient(&x), [0.0, 350.0]);
    assert_eq!(gradient(&y), [10.0, 100.0], "grad() must return the gradient of the current value");
    assert_eq!(
        *seen.lock().unwrap(),
        [[0.0, 100.0]],
        "the hook must receive the gradient of the value before the write"
    );
}

#[test]
fn failed_writes_change_nothing() {
    let (x, v) = (leaf([1.0, 2.0]), number(3.0));
    let tracked = |result: Result<()>| matches!(result, Err(Error::InPlaceOnTracked { .. }));
    assert!(tracked(x.try_set(0, &v)) && tracked(x.i(1..).try_set(0, &v)) && tracked(ops::copy_(&x, &v)));
    assert!(tracked(ops::update(formula!(|a, b| a + b), &[&x], &[&v], &[])));
    // The base may become a leaf that requires a gradient after the view was created.
    let late = zeros([2]);
    let view = late.i(0);
    let late = late.requires_grad_(true);
    assert!(tracked(ops::copy_(&view, &v)));
    late.set_requires_grad(false).unwrap();
    view.copy_(&(&v * 2.0));
    assert!(late.requires_grad());
    // A write to elements that share memory is an error.
    let single = Tensor::from([1.0]);
    let wide = single.broadcast_to([3]);
    assert!(matches!(wide.try_set(.., &v), Err(Error::InvalidArgument { .. })));
    // A backward pass that reads an overwritten saved value is an error.
    let y = &x * 1.0;
    let z = y.square();
    y.set(0, &v);
    assert!(matches!(
        z.try_backward_with(BackwardOptions::default()),
        Err(Error::SavedValueModified { node: "square", .. })
    ));
    // Invalid shapes and indices leave values and history unchanged.
    let y = zeros([2, 2]);
    assert!(matches!(y.try_set(0, x.broadcast_to([3, 2])), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(y.try_set(Tensor::from([2i64]), &v), Err(Error::IndexOutOfBounds { .. })));
    assert!(!y.requires_grad() && y.to_vec::<f64>() == [0.0; 4] && x.to_vec::<f64>() == [1.0, 2.0]);
}

#[test]
fn untracked_writes_are_not_recorded() {
    let (x, y) = (leaf([1.0, 2.0]), zeros([2]));
    {
        let _off = no_grad();
        y.set(0, x.i(1));
        y.copy_(&x);
        ops::update(formula!(|a, b| a + b), &[&x], &[&y], &[]).unwrap();
    }
    assert!(!y.requires_grad() && x.is_leaf() && x.to_vec::<f64>() == [2.0, 4.0]);
    // Integers have no gradient; a tensor without elements has nothing to write.
    let n = Tensor::zeros([2], DType::I64);
    n.set(0, x.i(1));
    zeros([0]).copy_(&x.i(0));
    assert!(!n.requires_grad() && n.to_vec::<i64>() == [4, 0]);
    // If all elements are overwritten, the old value needs no gradient.
    let old = &x * 2.0;
    old.copy_(&x.square());
    old.sum(..).backward();
    assert_eq!(gradient(&x), [4.0, 8.0]);
}

#[test]
fn deferred_and_captured_writes_have_the_same_history() {
    let x = leaf([1.0, 2.0, 3.0]);
    let run = |buffer: &Tensor| {
        let view = buffer.i(1..);
        buffer.set(0, x.i(0).square());
        view.set(Tensor::from([1i64, 1]), x.i(1..).exp());
        let loss = (&view * 3.0).sum(..) + buffer.square().sum(..) * x.sum(..);
        loss.backward();
        loss
    };
    let eager = run(&zeros([3])).item::<f64>();
    let expected = gradient(&x);
    x.zero_grad();
    assert_eq!(lazy(|| run(&zeros([3]))).item::<f64>(), eager);
    assert_eq!(gradient(&x), expected);
    // The buffer is created by the step, or is an external tensor, whose history ends with the step.
    let outside = zeros([3]);
    for own in [true, false] {
        x.zero_grad();
        let mut step = capture(
            |_| {
                x.zero_grad();
                let loss = run(&if own { zeros([3]) } else { outside.clone() });
                [loss, x.grad().unwrap()]
            },
            &[],
        )
        .unwrap();
        for _ in 0..3 {
            let outputs = step.launch(&[]).unwrap();
            assert_eq!(
                (outputs.item::<f64>(0), outputs.to_vec::<f64>(1)),
                (eager, expected.clone()),
                "the captured result differs; the step creates the buffer: {own}"
            );
        }
        assert!(!outside.requires_grad() && outside.is_leaf());
    }
    assert_eq!(outside.i(0).item::<f64>(), 1.0);
}

/// Returns the memory of its input reversed. Its gradient differs from the gradient of a view.
struct Reversed;

impl Operation for Reversed {
    fn name(&self) -> &'static str {
        "reversed"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok([inputs[0].clone()].into_iter().collect())
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok([Some(-grads.get(0)?)].into_iter().collect())
    }
}

#[test]
fn a_view_that_was_made_without_gradients_is_not_written_with_a_history() {
    let (base, v) = (zeros([2]), number(3.0));
    let view = {
        let _off = no_grad();
        base.i(0)
    };
    let error = ops::copy_(&view, &v).unwrap_err().to_string();
    assert!(error.contains("no_grad()") && base.to_vec::<f64>() == [0.0, 0.0], "{error}");
    view.copy_(&Tensor::from(1.0));
    let detached = view.detach();
    detached.copy_(&v);
    assert!(detached.requires_grad() && !base.requires_grad() && base.to_vec::<f64>() == [3.0, 0.0]);
    base.set(1, &v);
    assert!(base.requires_grad() && !view.requires_grad());
}

#[test]
fn threads_share_one_history() {
    let v = number(2.0);
    for _ in 0..50 {
        let base = zeros([4, 2]);
        let views: Vec<Tensor> = (0..4).map(|k| base.i(k)).collect();
        std::thread::scope(|scope| {
            for (k, view) in views.iter().enumerate() {
                let (v, base) = (&v, &base);
                scope.spawn(move || {
                    view.set(k % 2, &(v * (k + 1) as f64));
                    assert!(base.requires_grad() && view.sum(..).requires_grad());
                });
            }
        });
        let sums: Vec<Tensor> = views.iter().map(|view| view.sum(..)).collect();
        (base.sum(..) + &sums[0] + &sums[1] + &sums[2] + &sums[3]).backward();
        assert_eq!(slope(&v), 20.0);
        v.zero_grad();
    }
}

#[test]
fn a_result_that_shares_the_memory_of_its_input_is_not_written_with_a_history() {
    let (x, v) = (leaf([1.0, 2.0]), number(3.0));
    let y = &x * 1.0;
    let z = apply_one(Reversed, &[&y]).unwrap();
    for target in [&y, &z] {
        let error = target.try_set(0, &v).unwrap_err().to_string();
        assert!(error.contains("copy()"), "{error}");
    }
    let z = z.copy();
    z.set(0, &v);
    z.sum(..).backward();
    assert_eq!((gradient(&x), slope(&v)), (vec![0.0, -1.0], 1.0));
}

/// Returns a random index of a tensor of shape [3, 4] or of its views.
fn index(rng: &mut SplitMix64, shape: &[usize]) -> Vec<IndexItem> {
    let part = |rng: &mut SplitMix64, len: usize| -> IndexItem {
        match rng.below(6) {
            0 => IndexItem::from(rng.below(len)),
            1 => slice(None, None, -1).into(),
            2 => slice(rng.below(len) as isize, None, 1 + rng.below(2) as isize).into(),
            3 => Tensor::from([rng.below(len) as i64, rng.below(len) as i64 - len as i64]).into(),
            _ => (..).into(),
        }
    };
    let count = rng.below(shape.len() + 1);
    shape.iter().take(count).map(|&len| part(rng, len)).collect()
}

type View = Box<dyn Fn(&Tensor) -> Tensor>;

/// Returns a random view function.
fn view(rng: &mut SplitMix64, shape: &[usize]) -> View {
    match rng.below(4) {
        0 => Box::new(|x| x.t()),
        1 => Box::new(|x| x.reshape(-1)),
        2 => Box::new(|x| x.unsqueeze(0)),
        _ => {
            let viewed =
                |item: IndexItem| if matches!(item, IndexItem::Tensor(_)) { IndexItem::from(..) } else { item };
            let index: Vec<IndexItem> = index(rng, shape).into_iter().map(viewed).collect();
            Box::new(move |x| x.i(index.clone()))
        }
    }
}

/// Random writes through a tensor and its views, compared with functional updates of new tensors.
#[test]
fn random_writes_have_the_gradients_of_their_functional_form() {
    for seed in 0..300 {
        let mut rng = SplitMix64::new(seed);
        let x = leaf([0.5, -1.25, 2.0]);
        let start: Tensor = match rng.below(3) {
            0 => zeros([3, 4]),
            1 => (&x.unsqueeze(1) * Tensor::from([1.0, 2.0, 3.0, 4.0])).t().copy().t(),
            _ => &x.unsqueeze(1) * Tensor::from([1.0, 2.0, 3.0, 4.0]),
        };
        let numbers = Tensor::arange(0i64, 12, 1).reshape([3, 4]);
        let mut model = start.copy();
        // Each entry is a tensor, with the positions of its elements in the first tensor.
        let mut tensors = vec![(start, numbers)];
        for _ in 0..2 + rng.below(10) {
            let (tensor, places) = tensors[rng.below(tensors.len())].clone();
            if rng.below(3) == 0 && places.size() > 0 && tensor.rank() > 0 && tensor.rank() < 4 {
                let view = view(&mut rng, tensor.shape());
                let (seen, numbers) = (view(&tensor), view(&places));
                if seen.array().shares_storage(tensor.array()) {
                    tensors.push((seen, numbers));
                }
                continue;
            }
            let at = index(&mut rng, tensor.shape());
            let targets = places.i(at.clone());
            let shape = targets.shape().clone();
            let (source, same) = match rng.below(4) {
                0 => (Tensor::from(rng.number()), None),
                1 => (x.i(rng.below(3)) * rng.number(), None),
                2 => {
                    let (other, places) = &tensors[rng.below(tensors.len())];
                    let source = |read: &Tensor| read.sum(..) * 0.5 + x.i(0);
                    (source(other), Some(source(&model.take(places))))
                }
                _ => (x.sum(..) * Tensor::from(1.5).broadcast_to(shape.clone()), None),
            };
            let same = same.as_ref().unwrap_or(&source).broadcast_to(shape);
            model = model.put(&targets, &same, false);
            tensor.set(at, &source);
        }
        let mut loss = (Tensor::from(0.0), Tensor::from(0.0));
        for (tensor, places) in &tensors {
            let weight = Tensor::from(rng.number());
            let read = model.take(places);
            assert_eq!(tensor.to_vec::<f64>(), read.to_vec::<f64>(), "seed {seed}");
            loss = (loss.0 + (tensor.square() * &weight).sum(..), loss.1 + (read.square() * &weight).sum(..));
        }
        let options =
            || GradOptions { create_graph: true, retain_graph: true, allow_unused: true, ..Default::default() };
        if !loss.0.requires_grad() {
            assert!(!loss.1.requires_grad(), "seed {seed}");
            continue;
        }
        let first = [&loss.0, &loss.1].map(|l| grad(&[l], &[&x], options()).unwrap().remove(0));
        assert_close(&first[0], &first[1].to_vec::<f64>());
        let second = first.map(|g| match g.requires_grad() {
            true => grad(&[&g.square().sum(..)], &[&x], options()).unwrap().remove(0).to_vec::<f64>(),
            false => vec![0.0; 3],
        });
        assert_close(&Tensor::new(second[0].clone(), [3]), &second[1]);
    }
}

#[test]
fn a_captured_step_notices_a_recorded_write_into_a_tracked_tensor() {
    let x = leaf([1.0, 2.0, 3.0]);
    let b = &x * 1.0;
    let gradient = || {
        let keep = GradOptions { retain_graph: true, ..Default::default() };
        grad(&[&(&b * &b).sum(..)], &[&x], keep).unwrap().remove(0)
    };
    let mut step = capture(|_| gradient(), &[]).unwrap();
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), [2.0, 4.0, 6.0]);
    b.narrow(0, 0, 1).copy_(&Tensor::from([5.0]));
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), [0.0, 4.0, 6.0]);
    b.copy_(&x.square());
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), gradient().to_vec::<f64>());
}

#[test]
fn a_view_that_became_a_leaf_protects_its_base() {
    let x = leaf([1.0, 2.0, 3.0]);
    let b = Tensor::from([0.0, 0.0, 0.0]);
    let view = b.narrow(0, 0, 2).requires_grad_(true);
    let part = view.narrow(0, 0, 1);
    for (target, source) in [(&part, x.narrow(0, 0, 1)), (&part, Tensor::from([5.0])), (&b, x.clone())] {
        assert!(matches!(ops::copy_(target, &source), Err(Error::InPlaceOnTracked { .. })));
    }
    assert!(matches!(ops::copy_(&b.narrow(0, 2, 1), &x.narrow(0, 0, 1)), Err(Error::InPlaceOnTracked { .. })));
    let gradient = grad(&[&(&part * 3.0).sum(..)], &[&view], GradOptions::default()).unwrap().remove(0);
    assert_eq!(gradient.to_vec::<f64>(), [3.0, 0.0]);
    {
        let _off = no_grad();
        b.copy_(&Tensor::from([1.0, 2.0, 3.0]));
    }
    // After the leaf is detached, its memory may be written again.
    let view = view.requires_grad_(false);
    b.copy_(&x);
    assert!(view.requires_grad());
    assert_eq!(grad(&[&view.sum(..)], &[&x], GradOptions::default()).unwrap()[0].to_vec::<f64>(), [1.0, 1.0, 0.0]);
}

#[test]
fn a_dropped_leaf_view_no_longer_protects_its_base() {
    let buffer = Tensor::from([0.0, 0.0, 0.0]);
    for step in 0..3 {
        buffer.copy_(&Tensor::from(f64::from(step)));
        let points = buffer.narrow(0, 0, 2).requires_grad_(true);
        points.square().sum(..).backward();
        assert_eq!(points.grad().unwrap().to_vec::<f64>(), [2.0 * f64::from(step); 2]);
    }
}

#[test]
fn retained_gradients_share_no_storage() {
    let (x, y) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]));
    let a = &x * 1.0;
    let c = &a + &y;
    a.retain_grad();
    c.retain_grad();
    (&c * 2.0).sum(..).backward();
    c.grad().unwrap().copy_(&Tensor::from([7.0, 7.0]));
    for t in [&a, &x, &y] {
        assert_eq!(t.grad().unwrap().to_vec::<f64>(), [2.0, 2.0]);
    }
}

#[test]
fn overlapping_targets_of_one_update_are_errors() {
    let b = Tensor::arange(1.0, 9.0, 1.0);
    let both = formula!(|p, q| (p + 1.0, q * 2.0));
    let rejected =
        |p: &Tensor, q: &Tensor| matches!(ops::update(both, &[p, q], &[], &[]), Err(Error::ShapeMismatch { .. }));
    assert!(rejected(&b.narrow(0, 0, 6), &b.narrow(0, 2, 6)) && rejected(&b, &b) && rejected(&b.flip(0), &b.flip(0)));
    assert_eq!(b.to_vec::<f64>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    ops::update(both, &[&b.narrow(0, 0, 4), &b.narrow(0, 4, 4)], &[], &[]).unwrap();
    let columns = b.reshape([4, 2]);
    ops::update(both, &[&columns.select(1, 0), &columns.select(1, 1)], &[], &[]).unwrap();
    assert_eq!(b.to_vec::<f64>(), [3.0, 6.0, 5.0, 10.0, 11.0, 24.0, 15.0, 32.0]);
}
