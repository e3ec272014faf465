use crate::testing::{Array, Choices, TestLayout, numbers, run};
use crate::with_threads;
use pellucid_ir::kernel::{Combine, Gather, Index, Kernel, Scatter};
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

/// For every element of `x[index]`, the element of x that it is.
fn naive(index: &Index, x: &Shape, places: &Shape, indices: &[Vec<i64>]) -> Vec<usize> {
    let out = index.shape(x, places);
    let wrap = |i: i64, len: usize| if i < 0 { i + len as i64 } else { i } as usize;
    (0..out.size())
        .map(|flat| {
            let at = unravel(flat, &out);
            let from: Vec<usize> = match index {
                Index::Axes(axes) => {
                    let (place, mut rest) = (ravel(&at[..places.rank()], places), at[places.rank()..].iter());
                    let coordinate = |a: usize| match axes.iter().position(|&i| i == a) {
                        Some(k) => wrap(indices[k][place], x[a]),
                        None => *rest.next().unwrap(),
                    };
                    (0..x.rank()).map(coordinate).collect()
                }
                Index::Along(axis) => {
                    let at_axis = wrap(indices[0][flat], x[*axis]);
                    at.iter().enumerate().map(|(a, &i)| if a == *axis { at_axis } else { i }).collect()
                }
            };
            ravel(&from, x)
        })
        .collect()
}

fn axes(list: &[usize]) -> Index {
    Index::Axes(list.iter().copied().collect())
}

/// Array shape, index, shape of the index arrays.
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
        ([4, 5].into(), axes(&[1]), [0].into()),
        ([9].into(), Index::Along(0), [0].into()),
    ]
}

fn indices(index: &Index, x: &Shape, places: &Shape, seed: u64) -> Vec<Vec<i64>> {
    let of = |axis: usize| {
        let len = x[axis] as i64;
        let wild = numbers(places.size(), 1 << 20, seed + axis as u64);
        wild.into_iter().map(|v| (v as i64).rem_euclid(2 * len) - len).collect()
    };
    match index {
        Index::Axes(axes) => axes.iter().map(|&a| of(a)).collect(),
        Index::Along(axis) => vec![of(*axis)],
    }
}

#[test]
fn gather_picks_what_the_definition_says_in_every_layout_and_width() {
    for (shape, index, places) in cases() {
        let tables = indices(&index, &shape, &places, 5);
        let picked = naive(&index, &shape, &places, &tables);
        let x: Vec<f64> = (0..shape.size()).map(|i| (i % 100) as f64).collect();
        for (lie, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(1)) {
            let (from, to) =
                (Array::cast(shape.clone(), lie, dtype, &x), Array::new(index.shape(&shape, &places), dtype, lie));
            let tables: Vec<_> = tables.iter().map(|t| Array::of(places.clone(), lie, t)).collect();
            let inputs: Vec<_> = [&from].into_iter().chain(&tables).collect();
            run(Kernel::Gather(Gather { index: index.clone() }), &inputs, &[&to]).unwrap();
            let expected: Vec<f64> = picked.iter().map(|&i| x[i]).collect();
            assert_eq!(to.reals(), expected, "{shape} {index:?} {places} {lie:?} {dtype}");
        }
    }
}

#[test]
fn scatter_combines_in_order_in_every_layout_and_dtype() {
    for (shape, index, places) in cases() {
        let tables = indices(&index, &shape, &places, 11);
        let picked = naive(&index, &shape, &places, &tables);
        let (y, v) = (numbers(shape.size(), 1, 3), numbers(picked.len(), 1, 4));
        for combine in [Combine::Set, Combine::Add, Combine::Mul, Combine::Max, Combine::Min] {
            let mut expected = y.clone();
            for (&i, &v) in picked.iter().zip(&v) {
                let e = &mut expected[i];
                *e = match combine {
                    Combine::Set => v,
                    Combine::Add => *e + v,
                    Combine::Mul => *e * v,
                    Combine::Max => e.max(v),
                    Combine::Min => e.min(v),
                };
            }
            for (lie, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
                let into = Array::cast(shape.clone(), lie, dtype, &y);
                let values = Array::cast(index.shape(&shape, &places), lie, dtype, &v);
                let tables: Vec<_> = tables.iter().map(|t| Array::of(places.clone(), lie, t)).collect();
                let inputs: Vec<_> = [&values].into_iter().chain(&tables).collect();
                run(Kernel::Scatter(Scatter { index: index.clone(), combine }), &inputs, &[&into]).unwrap();
                assert_eq!(into.reals(), expected, "{shape} {index:?} {places} {lie:?} {dtype} {combine:?}");
            }
        }
    }
}

/// Shapes of two axes, with counts of indices along them: all small ones, and some around blocks and tasks.
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
    for (shape, index, places) in sweep_cases() {
        let tables = indices(&index, &shape, &places, 5);
        let picked = naive(&index, &shape, &places, &tables);
        let (dtype, lie, threads) = (choices.of(&DType::ALL[1..]), choices.of(&TestLayout::ALL), choices.threads());
        let combine = choices.of(&[Combine::Set, Combine::Add, Combine::Max, Combine::Min]);
        let (x, v) = (numbers(shape.size(), 9, 3), numbers(picked.len(), 1, 4));
        let array = |shape: &Shape, values: &[f64]| Array::cast(shape.clone(), lie, dtype, values);
        let tables: Vec<Array> = tables.iter().map(|t| Array::of(places.clone(), lie, t)).collect();
        let (from, to) = (array(&shape, &x), Array::new(index.shape(&shape, &places), dtype, lie));
        let x = from.reals();
        let into = array(&shape, &x);
        let values = array(&index.shape(&shape, &places), &v);
        let v = values.reals();
        with_threads(threads, || {
            let inputs: Vec<&Array> = [&from].into_iter().chain(&tables).collect();
            run(Kernel::Gather(Gather { index: index.clone() }), &inputs, &[&to]).unwrap();
            let inputs: Vec<&Array> = [&values].into_iter().chain(&tables).collect();
            run(Kernel::Scatter(Scatter { index: index.clone(), combine }), &inputs, &[&into]).unwrap();
        });
        let what = format!("{shape} {index:?} {places} {lie:?} {dtype} {combine:?} {threads} threads");
        assert_eq!(to.reals(), picked.iter().map(|&i| x[i]).collect::<Vec<f64>>(), "{what}");
        let mut expected = x;
        for (&i, &v) in picked.iter().zip(&v) {
            let e = &mut expected[i];
            *e = match combine {
                Combine::Set => v,
                Combine::Add => *e + v,
                Combine::Mul => *e * v,
                Combine::Max => e.max(v),
                Combine::Min => e.min(v),
            };
        }
        // Sums are rounded, or wrap, once at the end.
        let expected = Array::cast(shape.clone(), TestLayout::Plain, dtype, &expected).reals();
        assert_eq!(into.reals(), expected, "{what}");
    }
}

#[test]
fn half_types_accumulate_repeated_indices_exactly() {
    for (dtype, big) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        let y = Array::cast([2, 2], TestLayout::Plain, dtype, &[big, 1.0, 2.0, 3.0]);
        let ones = Array::cast([4, 2], TestLayout::Plain, dtype, &[1.0; 8]);
        let rows = Array::of([4], TestLayout::Plain, &[0i64, -2, 0, 0]);
        run(Kernel::Scatter(Scatter { index: axes(&[0]), combine: Combine::Add }), &[&ones, &rows], &[&y]).unwrap();
        assert_eq!(y.reals(), [big + 4.0, 5.0, 2.0, 3.0]);
    }
}

#[test]
fn sums_of_masks_are_or_and_nan_wins_extrema() {
    let scatter = |combine| Kernel::Scatter(Scatter { index: Index::Along(0), combine });
    let at = Array::of([3], TestLayout::Plain, &[0i64, 0, 1]);
    let (y, v) =
        (Array::of([2], TestLayout::Plain, &[true, false]), Array::of([3], TestLayout::Plain, &[true, true, false]));
    run(scatter(Combine::Add), &[&v, &at], &[&y]).unwrap();
    assert_eq!(y.values::<bool>(), [true, false]);
    let (y, v) = (
        Array::of([2], TestLayout::Plain, &[0.0f32, f32::NAN]),
        Array::of([3], TestLayout::Plain, &[f32::NAN, 7.0, 8.0]),
    );
    run(scatter(Combine::Max), &[&v, &at], &[&y]).unwrap();
    assert!(y.values::<f32>().iter().all(|v| v.is_nan()));
}

#[test]
fn out_of_bounds_is_found_before_any_write() {
    let x = Array::of([3, 2], TestLayout::Plain, &[1.0f32; 6]);
    for bad in [3i64, -4, i64::MAX, i64::MIN] {
        let at = Array::of([4], TestLayout::Plain, &[0, -3, 2, bad]);
        let y = Array::of([4, 2], TestLayout::Plain, &[9.0f32; 8]);
        let error = Error::IndexOutOfBounds { op: "gather", index: bad, axis: 0, len: 3 };
        assert_eq!(run(Kernel::Gather(Gather { index: axes(&[0]) }), &[&x, &at], &[&y]), Err(error));
        assert_eq!(y.values::<f32>(), [9.0; 8]);
        let error = Error::IndexOutOfBounds { op: "scatter", index: bad, axis: 0, len: 3 };
        let scatter = Scatter { index: axes(&[0]), combine: Combine::Set };
        assert_eq!(run(Kernel::Scatter(scatter), &[&y, &at], &[&x]), Err(error));
        assert_eq!(x.values::<f32>(), [1.0; 6]);
    }
    let none = Array::new([0, 2], DType::F32, TestLayout::Plain);
    let (at, y) = (Array::of([1], TestLayout::Plain, &[0i64]), Array::new([1, 2], DType::F32, TestLayout::Plain));
    assert!(matches!(
        run(Kernel::Gather(Gather { index: axes(&[0]) }), &[&none, &at], &[&y]),
        Err(Error::IndexOutOfBounds { .. })
    ));
    let narrow = Array::new([1, 1], DType::F32, TestLayout::Plain);
    assert!(matches!(
        run(Kernel::Gather(Gather { index: axes(&[0]) }), &[&x, &at], &[&narrow]),
        Err(Error::ShapeMismatch { .. })
    ));
}

#[test]
fn threads_change_no_bit() {
    let x: Vec<f64> = numbers(50_000, 1000, 1).iter().map(|v| v / 777.0).collect();
    for (shape, index, places) in [
        (Shape::from([500, 100]), axes(&[0]), Shape::from([3000])),
        ([100, 500].into(), Index::Along(0), [300, 500].into()),
        ([100, 500].into(), Index::Along(1), [100, 3000].into()),
    ] {
        let tables = indices(&index, &shape, &places, 11);
        let out = index.shape(&shape, &places);
        let run = |threads| {
            with_threads(threads, || {
                let (into, at) = (
                    Array::cast(shape.clone(), TestLayout::Plain, DType::F32, &x),
                    Array::of(places.clone(), TestLayout::Plain, &tables[0]),
                );
                let picked = Array::new(out.clone(), DType::F32, TestLayout::Plain);
                run(Kernel::Gather(Gather { index: index.clone() }), &[&into, &at], &[&picked]).unwrap();
                run(
                    Kernel::Scatter(Scatter { index: index.clone(), combine: Combine::Add }),
                    &[&picked, &at],
                    &[&into],
                )
                .unwrap();
                (picked.values::<f32>(), into.values::<f32>())
            })
        };
        assert_eq!(run(1), run(3), "{index:?}");
    }
}
