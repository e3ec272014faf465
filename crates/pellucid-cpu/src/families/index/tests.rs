use crate::testing::{Choices, TestArray, TestLayout, numbers, run_kernel};
use crate::with_threads;
use pellucid_ir::kernel::{Gather, Index, Kernel, Scatter, ScatterOp};
use pellucid_ir::{DType, Error, Shape};

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut out = vec![0; shape.len()];
    for (o, &d) in out.iter_mut().zip(shape).rev() {
        (*o, flat) = (flat % d, flat / d);
    }
    out
}

fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (&i, &d)| flat * d + i)
}

/// Returns, for every element of `x[index]`, its row-major index in x.
fn naive(index: &Index, x: &Shape, index_shape: &Shape, indices: &[Vec<i64>]) -> Vec<usize> {
    let out = index.shape(x, index_shape);
    let wrap = |i: i64, len: usize| if i < 0 { i + len as i64 } else { i } as usize;
    (0..out.size())
        .map(|flat| {
            let position = unravel(flat, &out);
            let from: Vec<usize> = match index {
                Index::Axes(axes) => {
                    let (index_axes, others) = position.split_at(index_shape.rank());
                    let (k, mut others) = (ravel(index_axes, index_shape), others.iter());
                    let coordinate = |a: usize| match axes.iter().position(|&i| i == a) {
                        Some(i) => wrap(indices[i][k], x[a]),
                        None => *others.next().unwrap(),
                    };
                    (0..x.rank()).map(coordinate).collect()
                }
                Index::Along(axis) => {
                    let index = wrap(indices[0][flat], x[*axis]);
                    position.iter().enumerate().map(|(a, &i)| if a == *axis { index } else { i }).collect()
                }
            };
            ravel(&from, x)
        })
        .collect()
}

fn axes(list: &[usize]) -> Index {
    Index::Axes(list.iter().copied().collect())
}

/// Returns test cases: the shape of the array, the index, and the shape of the index arrays.
fn cases() -> Vec<(Shape, Index, Shape)> {
    vec![
        ([7].into(), axes(&[0]), [300].into()),
        ([5, 6].into(), axes(&[0]), [4].into()),
        ([5, 6].into(), axes(&[1]), [2, 3].into()),
        ([5, 600].into(), axes(&[0]), [70].into()),
        ([4, 5, 6].into(), axes(&[1]), [3].into()),
        ([4, 5, 6].into(), axes(&[0, 2]), [3, 2].into()),
        ([4, 5, 6].into(), axes(&[0, 1, 2]), [10].into()),
        ([4, 5, 6].into(), axes(&[2]), ().into()),
        ([4, 5, 6].into(), Index::Along(0), [9, 5, 6].into()),
        ([4, 5, 6].into(), Index::Along(1), [4, 3, 2].into()),
        ([4, 5, 6].into(), Index::Along(2), [2, 5, 40].into()),
        ([9, 40].into(), Index::Along(1), [9, 40].into()),
        ([9, 3, 50].into(), Index::Along(2), [9, 3, 50].into()),
        ([9, 3, 50].into(), Index::Along(1), [9, 4, 50].into()),
        ([3, 7, 40].into(), axes(&[1]), [600].into()),
        ([40, 3, 5].into(), axes(&[1, 2]), [300].into()),
        ([3, 400].into(), Index::Along(1), [3, 600].into()),
        ([300, 3].into(), Index::Along(0), [600, 2].into()),
        ([4, 5].into(), axes(&[1]), [0].into()),
        ([9].into(), Index::Along(0), [0].into()),
    ]
}

/// Returns random index arrays, with indices from −len to len − 1.
fn indices(index: &Index, x: &Shape, index_shape: &Shape, seed: u64) -> Vec<Vec<i64>> {
    let index_array = |axis: usize| {
        let len = x[axis] as i64;
        let numbers = numbers(index_shape.size(), 1 << 20, seed + axis as u64);
        numbers.into_iter().map(|v| (v as i64).rem_euclid(2 * len) - len).collect()
    };
    match index {
        Index::Axes(axes) => axes.iter().map(|&a| index_array(a)).collect(),
        Index::Along(axis) => vec![index_array(*axis)],
    }
}

#[test]
fn gather_equals_the_definition_in_every_layout_and_dtype() {
    for (shape, index, index_shape) in cases() {
        let index_arrays = indices(&index, &shape, &index_shape, 5);
        let positions = naive(&index, &shape, &index_shape, &index_arrays);
        let x: Vec<f64> = (0..shape.size()).map(|i| (i % 100) as f64).collect();
        for (layout, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(1)) {
            let (from, to) = (
                TestArray::cast(shape.clone(), layout, dtype, &x),
                TestArray::new(index.shape(&shape, &index_shape), dtype, layout),
            );
            let index_arrays: Vec<_> =
                index_arrays.iter().map(|t| TestArray::of(index_shape.clone(), layout, t)).collect();
            let inputs: Vec<_> = [&from].into_iter().chain(&index_arrays).collect();
            run_kernel(Kernel::Gather(Gather { op: "gather", from_end: true, index: index.clone() }), &inputs, &[&to])
                .unwrap();
            let expected: Vec<f64> = positions.iter().map(|&i| x[i]).collect();
            assert_eq!(to.reals(), expected, "{shape} {index:?} {index_shape} {layout:?} {dtype}");
        }
    }
}

#[test]
fn scatter_equals_the_definition_in_every_layout_and_dtype() {
    for (shape, index, index_shape) in cases() {
        let index_arrays = indices(&index, &shape, &index_shape, 11);
        let positions = naive(&index, &shape, &index_shape, &index_arrays);
        let (y, v) = (numbers(shape.size(), 1, 3), numbers(positions.len(), 1, 4));
        for reduction in [ScatterOp::Set, ScatterOp::Add, ScatterOp::Mul, ScatterOp::Max, ScatterOp::Min] {
            let mut expected = y.clone();
            for (&i, &v) in positions.iter().zip(&v) {
                let e = &mut expected[i];
                *e = match reduction {
                    ScatterOp::Set => v,
                    ScatterOp::Add => *e + v,
                    ScatterOp::Mul => *e * v,
                    ScatterOp::Max => e.max(v),
                    ScatterOp::Min => e.min(v),
                };
            }
            for (layout, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
                let into = TestArray::cast(shape.clone(), layout, dtype, &y);
                let values = TestArray::cast(index.shape(&shape, &index_shape), layout, dtype, &v);
                let index_arrays: Vec<_> =
                    index_arrays.iter().map(|t| TestArray::of(index_shape.clone(), layout, t)).collect();
                let inputs: Vec<_> = [&values].into_iter().chain(&index_arrays).collect();
                run_kernel(
                    Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: index.clone(), reduction }),
                    &inputs,
                    &[&into],
                )
                .unwrap();
                assert_eq!(into.reals(), expected, "{shape} {index:?} {index_shape} {layout:?} {dtype} {reduction:?}");
            }
        }
    }
}

/// Returns test cases of an index array that is broadcast: the shape of the array, the axis, the shape of the index
/// array, and its shape before it is broadcast.
fn broadcast_cases() -> Vec<(Shape, usize, Shape, Shape)> {
    let mut cases: Vec<(Shape, usize, Shape, Shape)> = vec![];
    for count in [1, 2, 31, 32, 33, 255, 256, 257, 600] {
        for (n, m) in [(1, 1), (3, 2), (70, 3), (2, 33), (5, 40)] {
            cases.push(([n, 9, m].into(), 1, [n, count, m].into(), [1, count, 1].into()));
            cases.push(([9, n, m].into(), 0, [count, n, m].into(), [count, 1, 1].into()));
            cases.push(([n, m, 9].into(), 2, [n, m, count].into(), [1, 1, count].into()));
            cases.push(([n, 9, m].into(), 1, [n, count, m].into(), [n, count, 1].into()));
            cases.push(([n + 1, 9, m + 2].into(), 1, [n, count, m].into(), [1, count, m].into()));
        }
    }
    cases
}

#[test]
fn an_index_that_is_broadcast_selects_the_elements_of_its_copy() {
    let choices = &Choices::new(53);
    for (shape, axis, index_shape, base_shape) in broadcast_cases() {
        let index = Index::Along(axis);
        let base = &indices(&index, &shape, &base_shape, 7)[0];
        let base_position = |position: Vec<usize>| -> usize {
            let position: Vec<usize> = position.iter().zip(base_shape.iter()).map(|(&i, &d)| i % d).collect();
            ravel(&position, &base_shape)
        };
        let full = (0..index_shape.size()).map(|flat| base[base_position(unravel(flat, &index_shape))]).collect();
        let positions = naive(&index, &shape, &index_shape, &[full]);
        let (dtype, layout, threads) = (choices.of(&DType::ALL[1..]), choices.of(&TestLayout::ALL), choices.threads());
        let mut index_array = TestArray::of(base_shape.clone(), layout, base);
        index_array.layout = index_array.layout.broadcast_to(&index_shape).unwrap();
        let (from, to) = (
            TestArray::cast(shape.clone(), layout, dtype, &numbers(shape.size(), 9, 3)),
            TestArray::new(index_shape.clone(), dtype, layout),
        );
        let values = TestArray::cast(index_shape.clone(), layout, dtype, &numbers(positions.len(), 1, 4));
        let mut expected = from.reals();
        let gathered: Vec<f64> = positions.iter().map(|&i| expected[i]).collect();
        for (&i, v) in positions.iter().zip(values.reals()) {
            expected[i] += v;
        }
        let expected = TestArray::cast(shape.clone(), TestLayout::Plain, dtype, &expected).reals();
        with_threads(threads, || {
            let gather = Gather { op: "gather", from_end: true, index: index.clone() };
            run_kernel(Kernel::Gather(gather), &[&from, &index_array], &[&to]).unwrap();
            let reduction = ScatterOp::Add;
            let scatter = Scatter { op: "scatter", from_end: true, index: index.clone(), reduction };
            run_kernel(Kernel::Scatter(scatter), &[&values, &index_array], &[&from]).unwrap();
        });
        let case = format!("{shape} axis {axis} {index_shape} {base_shape} {layout:?} {dtype} {threads} threads");
        assert_eq!(to.reals(), gathered, "{case}");
        assert_eq!(from.reals(), expected, "{case}");
    }
}

/// Returns two-dimensional test cases: all small shapes, and sizes around multiples of the block and task sizes.
fn sweep_cases() -> Vec<(Shape, Index, Shape)> {
    let small = (1..=20).flat_map(|n| (1..=20).map(move |m| (n, m)));
    let long = [(3, 63), (64, 5), (2, 129), (255, 3), (257, 2), (40, 300), (2, 5000)];
    let choices = &Choices::new(51);
    let mut cases = vec![];
    for (n, m) in small.chain(long) {
        let count = [1 + choices.below(20), choices.of(&[63, 64, 65, 129, 300])][choices.below(8) / 7];
        cases.push(match choices.below(5) {
            0 => ([n, m].into(), axes(&[0]), [count].into()),
            1 => ([n, m].into(), axes(&[1]), [2, count].into()),
            2 => ([n, m].into(), axes(&[0, 1]), [count].into()),
            3 => ([n, m].into(), Index::Along(0), [count, 1 + choices.below(m)].into()),
            _ => ([n, m].into(), Index::Along(1), [1 + choices.below(n), count].into()),
        });
    }
    cases
}

#[test]
fn sweep_of_gather_and_scatter() {
    let choices = &Choices::new(52);
    for (shape, index, index_shape) in sweep_cases() {
        let index_arrays = indices(&index, &shape, &index_shape, 5);
        let positions = naive(&index, &shape, &index_shape, &index_arrays);
        let (dtype, layout, threads) = (choices.of(&DType::ALL[1..]), choices.of(&TestLayout::ALL), choices.threads());
        let reduction = choices.of(&[ScatterOp::Set, ScatterOp::Add, ScatterOp::Max, ScatterOp::Min]);
        let (x, v) = (numbers(shape.size(), 9, 3), numbers(positions.len(), 1, 4));
        let array = |shape: &Shape, values: &[f64]| TestArray::cast(shape.clone(), layout, dtype, values);
        let index_arrays: Vec<TestArray> =
            index_arrays.iter().map(|t| TestArray::of(index_shape.clone(), layout, t)).collect();
        let (from, to) = (array(&shape, &x), TestArray::new(index.shape(&shape, &index_shape), dtype, layout));
        let x = from.reals();
        let into = array(&shape, &x);
        let values = array(&index.shape(&shape, &index_shape), &v);
        let v = values.reals();
        with_threads(threads, || {
            let inputs: Vec<&TestArray> = [&from].into_iter().chain(&index_arrays).collect();
            run_kernel(Kernel::Gather(Gather { op: "gather", from_end: true, index: index.clone() }), &inputs, &[&to])
                .unwrap();
            let inputs: Vec<&TestArray> = [&values].into_iter().chain(&index_arrays).collect();
            run_kernel(
                Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: index.clone(), reduction }),
                &inputs,
                &[&into],
            )
            .unwrap();
        });
        let case = format!("{shape} {index:?} {index_shape} {layout:?} {dtype} {reduction:?} {threads} threads");
        assert_eq!(to.reals(), positions.iter().map(|&i| x[i]).collect::<Vec<f64>>(), "{case}");
        let mut expected = x;
        for (&i, &v) in positions.iter().zip(&v) {
            let e = &mut expected[i];
            *e = match reduction {
                ScatterOp::Set => v,
                ScatterOp::Add => *e + v,
                ScatterOp::Mul => *e * v,
                ScatterOp::Max => e.max(v),
                ScatterOp::Min => e.min(v),
            };
        }
        // Sums are rounded or wrap once, at the end.
        let expected = TestArray::cast(shape.clone(), TestLayout::Plain, dtype, &expected).reals();
        assert_eq!(into.reals(), expected, "{case}");
    }
}

#[test]
fn half_precision_accumulates_repeated_indices_in_f32() {
    for (dtype, big) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        let y = TestArray::cast([2, 2], TestLayout::Plain, dtype, &[big, 1.0, 2.0, 3.0]);
        let ones = TestArray::cast([4, 2], TestLayout::Plain, dtype, &[1.0; 8]);
        let rows = TestArray::of([4], TestLayout::Plain, &[0i64, -2, 0, 0]);
        run_kernel(
            Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: axes(&[0]), reduction: ScatterOp::Add }),
            &[&ones, &rows],
            &[&y],
        )
        .unwrap();
        assert_eq!(y.reals(), [big + 4.0, 5.0, 2.0, 3.0]);
    }
}

#[test]
fn boolean_sums_are_or_and_extrema_propagate_nan() {
    let scatter =
        |reduction| Kernel::Scatter(Scatter { op: "scatter", from_end: true, index: Index::Along(0), reduction });
    let index = TestArray::of([3], TestLayout::Plain, &[0i64, 0, 1]);
    let (y, v) = (
        TestArray::of([2], TestLayout::Plain, &[true, false]),
        TestArray::of([3], TestLayout::Plain, &[true, true, false]),
    );
    run_kernel(scatter(ScatterOp::Add), &[&v, &index], &[&y]).unwrap();
    assert_eq!(y.values::<bool>(), [true, false]);
    let (y, v) = (
        TestArray::of([2], TestLayout::Plain, &[0.0f32, f32::NAN]),
        TestArray::of([3], TestLayout::Plain, &[f32::NAN, 7.0, 8.0]),
    );
    run_kernel(scatter(ScatterOp::Max), &[&v, &index], &[&y]).unwrap();
    assert!(y.values::<f32>().iter().all(|v| v.is_nan()));
}

#[test]
fn indices_out_of_bounds_are_errors_before_any_write() {
    let x = TestArray::of([3, 2], TestLayout::Plain, &[1.0f32; 6]);
    for bad in [3i64, -4, i64::MAX, i64::MIN] {
        let index = TestArray::of([4], TestLayout::Plain, &[0, -3, 2, bad]);
        let y = TestArray::of([4, 2], TestLayout::Plain, &[9.0f32; 8]);
        let error = Error::IndexOutOfBounds { op: "gather", index: bad, axis: 0, len: 3 };
        assert_eq!(
            run_kernel(
                Kernel::Gather(Gather { op: "gather", from_end: true, index: axes(&[0]) }),
                &[&x, &index],
                &[&y]
            ),
            Err(error)
        );
        assert_eq!(y.values::<f32>(), [9.0; 8]);
        let error = Error::IndexOutOfBounds { op: "scatter", index: bad, axis: 0, len: 3 };
        let scatter = Scatter { op: "scatter", from_end: true, index: axes(&[0]), reduction: ScatterOp::Set };
        assert_eq!(run_kernel(Kernel::Scatter(scatter), &[&y, &index], &[&x]), Err(error));
        assert_eq!(x.values::<f32>(), [1.0; 6]);
    }
    // Without `from_end`, negative indices are errors.
    let kernel = Gather { op: "embedding", from_end: false, index: axes(&[0]) };
    for bad in [-1i64, -3, 3, i64::MIN, i64::MAX] {
        let index = TestArray::of([3], TestLayout::Plain, &[0, 2, bad]);
        let y = TestArray::of([3, 2], TestLayout::Plain, &[9.0f32; 6]);
        let error = Error::IndexOutOfBounds { op: "embedding", index: bad, axis: 0, len: 3 };
        assert_eq!(run_kernel(Kernel::Gather(kernel.clone()), &[&x, &index], &[&y]), Err(error));
        assert_eq!(y.values::<f32>(), [9.0; 6]);
    }
    let none = TestArray::new([0, 2], DType::F32, TestLayout::Plain);
    let (index, y) =
        (TestArray::of([1], TestLayout::Plain, &[0i64]), TestArray::new([1, 2], DType::F32, TestLayout::Plain));
    assert!(matches!(
        run_kernel(Kernel::Gather(Gather { op: "gather", from_end: true, index: axes(&[0]) }), &[&none, &index], &[&y]),
        Err(Error::IndexOutOfBounds { .. })
    ));
    let narrow = TestArray::new([1, 1], DType::F32, TestLayout::Plain);
    assert!(matches!(
        run_kernel(
            Kernel::Gather(Gather { op: "gather", from_end: true, index: axes(&[0]) }),
            &[&x, &index],
            &[&narrow]
        ),
        Err(Error::ShapeMismatch { .. })
    ));
}

#[test]
fn threads_change_no_bit() {
    let x: Vec<f64> = numbers(50_000, 1000, 1).iter().map(|v| v / 777.0).collect();
    for (shape, index, index_shape) in [
        (Shape::from([500, 100]), axes(&[0]), Shape::from([3000])),
        ([100, 500].into(), Index::Along(0), [300, 500].into()),
        ([100, 500].into(), Index::Along(1), [100, 3000].into()),
    ] {
        let index_arrays = indices(&index, &shape, &index_shape, 11);
        let out = index.shape(&shape, &index_shape);
        let gather_and_scatter = |threads| {
            with_threads(threads, || {
                let (into, index_array) = (
                    TestArray::cast(shape.clone(), TestLayout::Plain, DType::F32, &x),
                    TestArray::of(index_shape.clone(), TestLayout::Plain, &index_arrays[0]),
                );
                let gathered = TestArray::new(out.clone(), DType::F32, TestLayout::Plain);
                run_kernel(
                    Kernel::Gather(Gather { op: "gather", from_end: true, index: index.clone() }),
                    &[&into, &index_array],
                    &[&gathered],
                )
                .unwrap();
                run_kernel(
                    Kernel::Scatter(Scatter {
                        op: "scatter",
                        from_end: true,
                        index: index.clone(),
                        reduction: ScatterOp::Add,
                    }),
                    &[&gathered, &index_array],
                    &[&into],
                )
                .unwrap();
                (gathered.values::<f32>(), into.values::<f32>())
            })
        };
        assert_eq!(gather_and_scatter(1), gather_and_scatter(3), "{index:?}");
    }
}
