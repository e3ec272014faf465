//! The forms of arguments: shapes, axes, counts, nested data, bounds; iteration, nested reads and assigning operators.

use crate::support::{bits, leaf, number, panic_of};
use pellucid_tensor::ops::PaddingMode;
use pellucid_tensor::{DType, Error, GradOptions, IndexItem, Shape, Tensor, capture, grad, ops, slice};

/// Returns 0, 1, 2, .. of shape `[2, 3, 4]`.
fn cube() -> Tensor {
    Tensor::arange(0i64, 24, 1).reshape((2, 3, 4))
}

fn dims(x: &Tensor) -> &[usize] {
    x.shape().dims()
}

#[test]
fn a_shape_has_every_form_of_a_list_of_integers() {
    let (a, b) = (2usize, 3usize);
    let shapes = [
        Shape::from((2, 3)),
        Shape::from((a, 3i64)),
        Shape::from([2, 3]),
        Shape::from([a, b]),
        Shape::from([2i64, 3]),
        Shape::from([2u32, 3]),
        Shape::from(&[2, 3]),
        Shape::from(&[a, b][..]),
        Shape::from(vec![a, b]),
        Shape::from(&vec![2i32, 3]),
        Shape::from(Tensor::zeros((a, b), DType::F32).shape()),
    ];
    for shape in &shapes {
        assert_eq!(dims(&Tensor::ones(shape, DType::F32)), [2, 3], "{shape}");
    }
    assert_eq!(dims(&Tensor::full((), 1, DType::I64)), [] as [usize; 0]);
    assert_eq!((dims(&Tensor::zeros(4, DType::F32)), dims(&Tensor::zeros((4,), DType::F32))), (&[4][..], &[4][..]));
    assert_eq!(dims(&Tensor::randn((1, 2, 3, 1, 2, 1), DType::F32)), [1, 2, 3, 1, 2, 1]);
    assert_eq!(dims(&Tensor::new([1.0, 2.0], (1, 2))), [1, 2]);
    let x = cube();
    assert_eq!((dims(&x.reshape((6, -1))), dims(&x.reshape(vec![a, 12]))), (&[6, 4][..], &[2, 12][..]));
    assert_eq!(dims(&x.reshape([4i64, -1])), [4, 6]);
    assert_eq!(
        (dims(&x.unflatten(1, (3, 1))), dims(&x.expand((5, -1, -1, -1)))),
        (&[2, 3, 1, 4][..], &[5, 2, 3, 4][..])
    );
}

#[test]
fn a_negative_length_is_an_error_that_shows_it() {
    for rejected in
        [ops::zeros([-1, 3], DType::F32), ops::rand((2, -5i64), DType::F32), ops::zeros([0, -1], DType::F32)]
    {
        let error = rejected.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    let text = ops::zeros([-1, 3], DType::F32).unwrap_err().to_string();
    assert!(text.starts_with("zeros") && text.contains("[-1, 3]") && text.contains("≥ 0"), "{text}");
    assert!(panic_of(|| Tensor::new([1.0, 2.0], [-1, 2])).contains("[-1, 2]"));
    assert!(ops::broadcast_to(&cube(), [-1, 2, 3, 4]).is_err());
}

#[test]
fn axes_and_counts_have_every_form_of_a_list_of_integers() {
    let x = cube();
    let expected = x.sum([0, 2]);
    let last = x.rank() - 1;
    for sum in [x.sum((0, 2)), x.sum((0usize, last)), x.sum(vec![0i64, -1]), x.sum(&[0usize, 2][..]), x.sum([0, -1])] {
        assert_eq!(sum.to_vec::<i64>(), expected.to_vec::<i64>());
    }
    assert_eq!(x.sum(last).to_vec::<i64>(), x.sum(-1).to_vec::<i64>());
    assert_eq!(x.sum(()).to_vec::<i64>(), x.to_vec::<i64>(), "no axis must reduce nothing");
    assert_eq!((dims(&x.permute((2, 0, 1))), dims(&x.permute(vec![2usize, 0, 1]))), (&[4, 2, 3][..], &[4, 2, 3][..]));
    assert_eq!((dims(&x.movedim(0, -1)), dims(&x.movedim((0, 1), (1, 0)))), (&[3, 4, 2][..], &[3, 2, 4][..]));
    assert_eq!((dims(&x.tile(2)), dims(&x.tile((2, 1, 1)))), (&[2, 3, 8][..], &[4, 3, 4][..]));
    assert_eq!(x.roll(1, 0).to_vec::<i64>(), x.roll([1i64], [0usize]).to_vec::<i64>());
    assert_eq!(x.roll(1, ()).to_vec::<i64>()[..3], [23, 0, 1]);
    assert_eq!(x.repeat([3], 0).to_vec::<i64>(), x.repeat(3usize, Some(0)).to_vec::<i64>());
    assert_eq!(dims(&x.repeat((1, 2), 0)), [3, 3, 4]);
    let parts = |parts: Vec<Tensor>| parts.iter().map(|part| part.shape()[2]).collect::<Vec<_>>();
    assert_eq!(
        (parts(x.split(3, 2)), parts(x.split([1, 3], -1)), parts(x.split(vec![4usize], 2))),
        (vec![3, 1], vec![1, 3], vec![4])
    );
    assert_eq!((parts(x.tensor_split(3, 2)), parts(x.tensor_split((1, 3), 2))), (vec![2, 1, 1], vec![1, 2, 1]));
    let zero = PaddingMode::Constant(0.into());
    let padded = x.pad(((1, 0), (0, 2), (0, 0)), zero).to_vec::<i64>();
    assert_eq!(padded, x.pad([[1, 0], [0, 2], [0, 0]], zero).to_vec::<i64>());
    assert_eq!(padded, x.pad(vec![(1usize, 0usize), (0, 2), (0, 0)], zero).to_vec::<i64>());
    assert_eq!(padded, x.pad([(1i64, 0), (0, 2), (0, 0)], zero).to_vec::<i64>());
    assert_eq!(dims(&x.pad((1,), zero)), dims(&x.pad(1usize, zero)));
    assert_eq!((dims(&x.pad(((1, 2),), zero)), dims(&x.pad((1, 2), zero))), (&[5, 6, 7][..], &[5, 6, 7][..]));
}

#[test]
fn squeeze_and_expand_dims_are_inverse_to_each_other() {
    let x = cube();
    let y = x.expand_dims((0, 2, -1));
    assert_eq!(dims(&y), [1, 2, 1, 3, 4, 1]);
    assert!(y.array().shares_storage(x.array()));
    assert_eq!(
        (dims(&y.squeeze((0, 2, -1))), dims(&y.squeeze(..)), dims(&y.squeeze(0))),
        (dims(&x), dims(&x), &[2, 1, 3, 4, 1][..])
    );
    assert_eq!(dims(&x.squeeze(..)), dims(&x));
    assert_eq!(dims(&Tensor::ones([1, 1], DType::F32).squeeze(..)), [] as [usize; 0]);
    let text = panic_of(|| y.squeeze((0, 1)));
    assert!(text.starts_with("squeeze") && text.contains("axis 1 has length 2"), "{text}");
}

#[test]
fn nested_lists_give_their_shape() {
    let rows = vec![vec![1.0f32, 2.0], vec![3.0, 4.0], vec![5.0, 6.0]];
    let borrowed: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
    let arrays = [[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
    for x in [
        Tensor::from(&rows),
        Tensor::from(&rows[..]),
        Tensor::from(borrowed),
        Tensor::from(arrays),
        Tensor::from(&arrays),
        Tensor::from(&arrays[..]),
        Tensor::from(arrays.to_vec()),
        Tensor::from([&rows[0], &rows[1], &rows[2]]),
        Tensor::from(rows.clone()),
    ] {
        assert_eq!(
            (dims(&x), x.dtype(), x.to_vec::<f32>()),
            (&[3, 2][..], DType::F32, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        );
    }
    let deep = Tensor::from(vec![[vec![1i64, 2], vec![3, 4], vec![5, 6]]; 2]);
    assert_eq!((dims(&deep), deep.i((1, 2, 0)).item::<i64>()), (&[2, 3, 2][..], 5));
    assert_eq!(dims(&Tensor::from(Vec::<[f32; 3]>::new())), [0, 3]);
    assert_eq!(dims(&Tensor::from(Vec::<Vec<[bool; 3]>>::new())), [0, 0, 3]);
    assert_eq!(dims(&Tensor::from(vec![Vec::<f64>::new(); 2])), [2, 0]);
}

#[test]
fn ragged_lists_are_rejected_with_their_lengths() {
    let ragged = vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0]];
    let error = Tensor::try_from_nested(&ragged).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { reason, .. } if reason.contains("lengths 3 and 2")), "{error}");
    assert_eq!(panic_of(|| Tensor::from(&ragged)), error.to_string());
    let deep = vec![[vec![1i64], vec![2]], [vec![3], vec![]]];
    let text = panic_of(|| Tensor::from(&deep));
    assert!(text.contains("level 2") && text.contains("lengths 1 and 0"), "{text}");
    assert!(Tensor::try_from_nested(vec![vec![], vec![1.0f32]]).is_err());
}

#[test]
fn bounds_and_positions_have_every_integer_type() {
    let x = Tensor::arange(0i64, 10, 1);
    let is = |y: Tensor, expected: std::ops::Range<i64>| assert_eq!(y.to_vec::<i64>(), expected.collect::<Vec<_>>());
    macro_rules! check {
        ($($t:ty),*) => {$({
            let (low, high): ($t, $t) = (2, 7);
            is(x.i(low..high), 2..7);
            is(x.i(low..=high), 2..8);
            is(x.i(low..), 2..10);
            is(x.i(..high), 0..7);
            is(x.i(..=high), 0..8);
            is(x.i(slice(low, high, 1)), 2..7);
            is(x.i(slice(low, None, 1)), 2..10);
            is(x.unsqueeze(0).i((0, low..high)), 2..7);
            assert_eq!(x.i(high).item::<i64>(), 7);
            assert_eq!(x.i([high, low]).to_vec::<i64>(), [7, 2]);
            assert_eq!(x.i(vec![high, low]).to_vec::<i64>(), [7, 2]);
            assert_eq!(x.i(&vec![high, low]).to_vec::<i64>(), [7, 2]);
            assert_eq!(x.i(&[high, low][..]).to_vec::<i64>(), [7, 2]);
        })*};
    }
    check!(i32, i64, isize, usize, u32, u64);
    let back: i64 = -3;
    is(x.i(back..), 7..10);
    is(x.i(..=back + 2), 0..10);
    is(x.i(..u64::MAX), 0..10);
    assert!(matches!(x.try_i(IndexItem::from(u64::MAX)), Err(Error::IndexOutOfBounds { .. })));
}

#[test]
fn iteration_returns_the_slices_of_the_first_axis() {
    let x = cube();
    let mut count = 0;
    for (k, part) in x.iter().enumerate() {
        assert_eq!((dims(&part), part.to_vec::<i64>()), (&[3, 4][..], x.i(k).to_vec::<i64>()));
        assert!(part.array().shares_storage(x.array()), "a slice must be a view");
        count += 1;
    }
    assert_eq!((count, x.iter().len()), (2, 2));
    let mut sum = 0;
    for row in &x.i(0) {
        for value in row {
            sum += value.item::<i64>();
        }
    }
    assert_eq!(sum, (0..12).sum::<i64>());
    assert_eq!(Tensor::zeros((0, 3), DType::F32).iter().count(), 0);
    let text = panic_of(|| Tensor::from(1.0).iter());
    assert!(text.starts_with("iter") && text.contains("0-d"), "{text}");
}

#[test]
fn iteration_has_gradients_of_every_order() {
    let x = leaf([1.0, 2.0, 3.0]);
    // Σ (k + 1)·xₖ³
    let y: Tensor = x.iter().enumerate().map(|(k, x)| x.cube() * (k + 1) as f64).sum();
    let first = grad(&[&y], &[&x], GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
    assert_eq!(first.to_vec::<f64>(), [3.0, 24.0, 81.0]);
    let second = grad(&[&first.sum(..)], &[&x], GradOptions::default()).unwrap().remove(0);
    assert_eq!(second.to_vec::<f64>(), [6.0, 24.0, 54.0]);
    // Slices that are not used have no gradient.
    x.iter().nth(1).unwrap().backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [0.0, 1.0, 0.0]);
}

#[test]
fn an_assigning_operator_replaces_the_handle() {
    let mut x = Tensor::from([1.0f32, 2.0]);
    let before = x.clone();
    x += 1.0;
    x -= 0.5f32;
    x *= 2i64;
    x /= &Tensor::from([1.0f32, 2.0]);
    assert_eq!((x.to_vec::<f32>(), x.dtype()), (vec![3.0, 2.5], DType::F32));
    assert_eq!(before.to_vec::<f32>(), [1.0, 2.0], "another handle must not change");
    x %= 2;
    x += Tensor::from([2.0f32]);
    assert_eq!((dims(&x), x.to_vec::<f32>()), (&[2][..], vec![3.0, 2.5]));
    let mut bits = Tensor::from([0b1100i64, 0b1010]);
    bits &= 0b0110;
    bits |= 1;
    bits ^= Tensor::from([1i64, 0]);
    assert_eq!(bits.to_vec::<i64>(), [0b0100, 0b0011]);
}

#[test]
fn a_rejected_assignment_changes_nothing() {
    let mut x = Tensor::from([1.0, 2.0]);
    let id = x.id();
    let text = panic_of(|| x += Tensor::from([1.0, 2.0, 3.0]));
    assert!(text.starts_with("add"), "{text}");
    assert_eq!((x.id(), x.to_vec::<f64>()), (id, vec![1.0, 2.0]));
    let text = panic_of(|| x -= Tensor::from([[1.0], [2.0]]));
    assert!(
        text.contains("-=") && text.contains("the result has shape [2, 2]") && text.contains("x = &x - y"),
        "{text}"
    );
    assert_eq!((x.id(), x.to_vec::<f64>()), (id, vec![1.0, 2.0]));
    let mut count = Tensor::from([1i64, 2]);
    for text in [panic_of(|| count *= 0.5), panic_of(|| count /= 2)] {
        assert!(text.contains("the result has dtype f32") && text.contains("to_dtype()"), "{text}");
    }
    assert_eq!((count.dtype(), count.to_vec::<i64>()), (DType::I64, vec![1, 2]));
}

#[test]
fn an_assigning_operator_is_recorded() {
    let x = number(3.0);
    let mut y = x.clone();
    y *= &x;
    y *= x.clone();
    y += 1.0;
    assert!(x.is_leaf() && y.requires_grad());
    let first = grad(&[&y], &[&x], GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
    let second = grad(&[&first], &[&x], GradOptions::default()).unwrap().remove(0);
    assert_eq!((first.item::<f64>(), second.item::<f64>()), (27.0, 18.0));
}

#[test]
fn the_forms_work_in_a_captured_step() {
    let step = |x: &[Tensor]| -> Tensor {
        let x = x[0].detach().requires_grad_(true);
        let mut total = Tensor::zeros((), DType::F64);
        for row in &x {
            total += row.square().sum(..);
        }
        for part in x.expand_dims((0, -1)).squeeze(..).split([1, 2], 0) {
            total *= part.sin().sum(..);
        }
        for part in x.split(2, 0) {
            total += part.pad((1, (0, 1)), PaddingMode::Constant(2.into())).tile((2, 1)).prod(..);
        }
        total.backward();
        x.grad().expect("the leaf must have a gradient")
    };
    let inputs =
        [Tensor::from([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]), Tensor::from([[1.5, 0.25], [0.5, 2.0], [1.0, 0.75]])];
    let mut captured = capture(|x: &[Tensor]| step(x), &[&inputs[0]]).unwrap();
    for x in &inputs {
        let replayed = captured.launch(&[x]).unwrap().to_tensor(0);
        assert_eq!(bits(&[replayed]), bits(&[step(std::slice::from_ref(x))]));
    }
}

#[test]
fn nested_reads_return_rows() {
    let x = cube();
    let expected: Vec<Vec<Vec<i64>>> =
        (0..2).map(|i| (0..3).map(|j| (0..4).map(|k| 12 * i + 4 * j + k).collect()).collect()).collect();
    assert_eq!(x.to_vec3::<i64>(), expected);
    assert_eq!(x.i(1).to_vec2::<i64>(), expected[1]);
    let transposed = x.i(0).t().to_vec2::<f32>();
    assert_eq!((transposed.len(), &transposed[3][..]), (4, &[3.0, 7.0, 11.0][..]));
    assert_eq!(Tensor::zeros((2, 0), DType::F32).to_vec2::<f32>(), vec![Vec::<f32>::new(); 2]);
    assert_eq!(Tensor::zeros((0, 2, 3), DType::F32).to_vec3::<f32>(), Vec::<Vec<Vec<f32>>>::new());
    assert_eq!(Tensor::from(&x.to_vec3::<i64>()).to_vec::<i64>(), x.to_vec::<i64>());
    let text = panic_of(|| x.to_vec2::<i64>());
    assert!(text.starts_with("to_vec2") && text.contains("[2, 3, 4]") && text.contains("2 axes"), "{text}");
    assert!(matches!(x.i(0).try_to_vec3::<i64>(), Err(Error::ShapeMismatch { op: "to_vec3", .. })));
    assert_eq!((x.numel(), x.size()), (24, 24));
}

#[test]
fn joins_take_lists_of_tensors_or_references() {
    let (x, y) = (Tensor::from([1, 2]), Tensor::from([3, 4]));
    let owned = vec![x.clone(), y.clone()];
    let expected = [1, 2, 3, 4];
    assert_eq!(ops::concatenate(&[&x, &y], 0).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::concatenate(&owned, 0).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::concatenate(&owned[..], 0).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::hstack(&[x.clone(), y.clone()]).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::stack(&owned, 0).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::vstack(&owned).unwrap().to_vec::<i64>(), expected);
    assert_eq!(ops::dstack(&owned).unwrap().to_vec::<i64>(), [1, 3, 2, 4]);
}

#[test]
fn set_writes_lists_of_numbers() {
    let y = Tensor::zeros([2, 3, 2], DType::I64);
    y.set((1, [0, 2], 1), [7i64, 8]);
    y.set((0, .., 0), vec![1i64, 2, 3]);
    y.set((0, 0), &[4i64, 5][..]);
    y.set((1, 1), vec![6.0f32, 9.0]);
    y.set((0, 1..), [[10, 11], [12, 13]]);
    assert_eq!(y.to_vec::<i64>(), [4, 5, 10, 11, 12, 13, 0, 7, 6, 9, 0, 8]);
    let rejected = y.try_set(0, [1i64, 2, 3]).unwrap_err();
    assert!(matches!(rejected, Error::ShapeMismatch { .. }) && rejected.operation() == Some("set"), "{rejected}");
    let ragged = y.try_set(0, vec![vec![1i64], vec![1, 2]]).unwrap_err();
    assert_eq!(ragged.operation(), Some("set"), "{ragged}");
    // A captured step writes the list in every launch.
    let mut step = capture(|_| y.set((0, 0), [20, 21]), &[]).unwrap();
    assert_eq!(y.i((0, 0)).to_vec::<i64>(), [4, 5]);
    step.launch(&[]).unwrap();
    assert_eq!(y.i((0, 0)).to_vec::<i64>(), [20, 21]);
}

#[test]
fn a_full_range_indexes_a_tensor_without_axes() {
    let x = Tensor::from(1.0f32);
    x.set(.., 5.0);
    assert_eq!((x.item::<f32>(), x.i(..).item::<f32>(), x.i(..).rank()), (5.0, 5.0, 0));
    assert!(x.try_i(1..).is_err() && x.try_i((.., ..)).is_err() && x.try_i(0).is_err());
}

#[test]
fn borrowed_forms_of_sums_indices_and_shapes() {
    let tensors = [Tensor::from([1, 2]), Tensor::from([3, 4])];
    assert_eq!(tensors.iter().sum::<Tensor>().to_vec::<i64>(), [4, 6]);
    assert_eq!(tensors[0].to_vec::<i64>(), [1, 2]);
    let x = cube();
    let positions = &[1, 0];
    assert_eq!(x.i(positions).to_vec::<i64>(), x.i([1, 0]).to_vec::<i64>());
    assert_eq!(x.i((0, &[2usize], 1)).to_vec::<i64>(), [9]);
    assert!(x.shape() == [2, 3, 4] && x.shape() != [2, 3]);
    assert_eq!(x.shape(), [2, 3, 4]);
}

#[test]
fn elements_are_read_as_integers_without_a_dtype() {
    let x = Tensor::from([[3i64, 0], [255, 65_535]]);
    assert_eq!(x.to_vec::<usize>(), [3, 0, 255, 65_535]);
    assert_eq!(x.to_vec2::<u16>(), [[3, 0], [255, 65_535]]);
    assert_eq!(Tensor::from([7.0f32]).item::<u32>(), 7);
    let mut step = capture(|inputs| inputs[0].argmax(0), &[&Tensor::from([1.0f32, 4.0])]).unwrap();
    assert_eq!(step.launch(&[&Tensor::from([1.0f32, 4.0])]).unwrap().item::<usize>(0), 1);
    let text = Tensor::from([1i64, -2]).try_to_vec::<usize>().unwrap_err().to_string();
    assert!(text.contains("to_vec") && text.contains("element 1 is -2") && text.contains("usize"), "{text}");
    let text = Tensor::from(0.5f32).try_item::<u64>().unwrap_err().to_string();
    assert!(text.contains("item") && text.contains("0.5"), "{text}");
    assert!(Tensor::from(70_000i64).try_item::<u16>().is_err());
}

#[test]
fn an_element_is_found_in_every_layout_and_dtype() {
    let all = Tensor::arange(0i64, 1000, 1);
    for first in [0, 1, 127, 128, 129, 500, 999] {
        assert_eq!(all.try_find(|value: i64| value >= first).unwrap(), Some(first));
        assert_eq!(all.i(first..).try_find(|_: i64| true).unwrap(), Some(first));
        assert_eq!(all.i(..first).try_find(|value: i64| value >= first).unwrap(), None);
    }
    let odd = all.reshape([500, 2]).i((.., 1));
    assert_eq!(odd.try_find(|value: i64| value > 500).unwrap(), Some(501));
    assert_eq!(odd.flip(0).to_dtype(DType::I16).try_find(|value: i64| value < 500).unwrap(), Some(499));
    let half = (&odd + 0.5).try_find(|value: f32| value > 500.0).unwrap();
    assert_eq!((half, odd.try_find(f64::is_nan).unwrap()), (Some(501.5), None));
    assert!(Tensor::from([0.5]).try_find(|_: i64| true).is_err());
    let captured = capture(|x: &[Tensor]| x[0].try_find(|_: i64| true).map(|_| x[0].clone()), &[&all]);
    assert!(captured.is_err(), "a read in a captured step must be an error");
}
