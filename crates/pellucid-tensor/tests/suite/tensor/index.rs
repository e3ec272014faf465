//! Indexing and assignment, compared with NumPy.

use pellucid_tensor::{DType, Ellipsis, Error, IndexItem, NewAxis, Tensor, capture, lazy, ops, slice};

/// Returns 0, 1, 2, .. of shape `[2, 3, 4]`.
fn cube() -> Tensor {
    Tensor::arange(0i64, 24, 1).reshape([2, 3, 4])
}

#[track_caller]
fn is(x: Tensor, shape: &[usize], values: &[i64]) {
    assert_eq!((&x.shape()[..], &x.to_vec::<i64>()[..]), (shape, values));
}

#[test]
fn integers_ranges_and_steps() {
    let x = cube();
    is(x.i(1), &[3, 4], &(12..24).collect::<Vec<_>>());
    is(x.i((1, 2)), &[4], &[20, 21, 22, 23]);
    is(x.i((-1, -3, -2)), &[], &[14]);
    is(x.i((0, .., 1..3)), &[3, 2], &[1, 2, 5, 6, 9, 10]);
    is(x.i((0, 1.., ..=1)), &[2, 2], &[4, 5, 8, 9]);
    is(x.i((0, ..-1, -2..)), &[2, 2], &[2, 3, 6, 7]);
    is(x.i((0, 0, slice(None, None, 2))), &[2], &[0, 2]);
    is(x.i((0, 0, slice(None, None, -1))), &[4], &[3, 2, 1, 0]);
    is(x.i((0, 0, slice(-2, None, -2))), &[2], &[2, 0]);
    is(x.i((0, 0, slice(3, 0, -2))), &[2], &[3, 1]);
    is(x.i((0, 0, slice(10, -10, -3))), &[2], &[3, 0]);
    is(x.i((0, 0, slice(1, 3, -1))), &[0], &[]);
    is(x.i((0, 0, 5..9)), &[0], &[]);
    is(x.i((0, 0, ..=-1)), &[4], &[0, 1, 2, 3]);
    is(x.i((0, 0, slice(None, None, 7))), &[1], &[0]);
    is(x.i((slice(None, None, -1), 0, 0)), &[2], &[12, 0]);
}

#[test]
fn ellipsis_and_new_axes() {
    let x = cube();
    is(x.i((Ellipsis, 0)), &[2, 3], &[0, 4, 8, 12, 16, 20]);
    is(x.i((1, Ellipsis, 0)), &[3], &[12, 16, 20]);
    is(x.i((1, 2, 3, Ellipsis)), &[], &[23]);
    assert_eq!(x.i((NewAxis, Ellipsis, NewAxis)).shape()[..], [1, 2, 3, 4, 1]);
    assert_eq!(x.i((0, NewAxis, 1..)).shape()[..], [1, 2, 4]);
    assert_eq!(x.i(vec![IndexItem::from(0), IndexItem::NewAxis]).shape()[..], [1, 3, 4]);
    assert_eq!(Tensor::from(1.0).i((NewAxis, NewAxis)).shape()[..], [1, 1]);
}

#[test]
fn plain_indices_are_views() {
    let x = cube();
    for view in [x.i(1), x.i((.., 1..3)), x.i((Ellipsis, slice(None, None, -1))), x.i(NewAxis)] {
        assert!(view.array().shares_storage(x.array()));
    }
    x.i((0, 0)).set(.., -1);
    is(x.i((0, 0)), &[4], &[-1; 4]);
}

#[test]
fn integer_tensors_select_elements() {
    let x = cube();
    let at = Tensor::from([2i64, 0, -1]);
    is(x.i((0, &at)), &[3, 4], &[8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11]);
    is(x.i((.., &at, 0)), &[2, 3], &[8, 0, 8, 20, 12, 20]);
    is(x.i((.., 1, &Tensor::from([[0i64, 3], [1, 1]]))), &[2, 2, 2], &[4, 7, 5, 5, 16, 19, 17, 17]);
    is(x.i((&Tensor::from([0i64, 1]), &Tensor::from([2i64, 0]))), &[2, 4], &[8, 9, 10, 11, 12, 13, 14, 15]);
    is(x.i((&Tensor::from([[0i64], [1]]), &Tensor::from([2i64, 0]), 0)), &[2, 2], &[8, 0, 20, 12]);
    is(x.i((0, &Tensor::from(1u8))), &[4], &[4, 5, 6, 7]);
    is(x.i((0, &Tensor::zeros([0], DType::I32))), &[0, 4], &[]);
    is(x.i((&at.i(1..2), slice(None, None, -2), 3)), &[1, 2], &[11, 3]);
}

/// As in NumPy, the axes of adjacent index tensors replace the indexed axes. If a range or a new axis separates the
/// index tensors, their axes come first in the result.
#[test]
fn axes_of_index_tensors_stay_in_place_only_if_adjacent() {
    let x = Tensor::arange(0i64, 120, 1).reshape([2, 3, 4, 5]);
    let (a, b) = (Tensor::from([0i64, 2]), Tensor::from([1i64, 3]));
    let side_by_side = x.i((.., &a, &b));
    assert_eq!(side_by_side.shape()[..], [2, 2, 5]);
    is(side_by_side.i((1, .., 0)), &[2], &[65, 115]);
    let separated = x.i((.., &a, .., &b));
    assert_eq!(separated.shape()[..], [2, 2, 4]);
    is(separated.i((.., 1, 0)), &[2], &[61, 103]);
    let first_and_third = x.i((&Tensor::from([0i64, 1]), .., &b));
    assert_eq!(first_and_third.shape()[..], [2, 3, 5]);
    is(first_and_third.i((1, 2, 0)), &[], &[115]);
    assert_eq!(x.i((.., &a, NewAxis, &b)).shape()[..], [2, 2, 1, 5]);
    assert_eq!(x.i((.., .., &a, 1)).shape()[..], [2, 3, 2]);
    // An integer in an index with an index tensor counts as an index tensor.
    assert_eq!(x.i((0, .., &a)).shape()[..], [2, 3, 5]);
    assert_eq!(x.i((.., 0, &a)).shape()[..], [2, 2, 5]);
    assert_eq!(x.i((.., &a, .., 0)).shape()[..], [2, 2, 4]);
}

#[test]
fn masks_select_where_they_are_true() {
    let x = cube();
    is(x.i(x.gt(20)), &[3], &[21, 22, 23]);
    is(x.i((&Tensor::from([false, true]), .., 0)), &[1, 3], &[12, 16, 20]);
    is(x.i((.., &Tensor::from([true, false, true]), 3)), &[2, 2], &[3, 11, 15, 23]);
    is(
        x.i((0, &Tensor::from([[true, false, false, true], [false; 4], [false, true, false, false]]))),
        &[3],
        &[0, 3, 9],
    );
    is(x.i((.., Tensor::from([false; 3]))), &[2, 0, 4], &[]);
    is(x.i(x.lt(0)), &[0], &[]);
    // A mask and an index tensor are broadcast together.
    is(x.i((&Tensor::from([true, true]), &Tensor::from([0i64, 2]), 1)), &[2], &[1, 21]);
}

#[test]
fn invalid_indices_are_errors() {
    let x = cube();
    let error = |index: Vec<IndexItem>| x.try_i(index).unwrap_err();
    assert!(matches!(error(vec![2.into()]), Error::IndexOutOfBounds { index: 2, axis: 0, len: 2, .. }));
    assert!(matches!(error(vec![(..).into(), (-4).into()]), Error::IndexOutOfBounds { index: -4, axis: 1, .. }));
    assert!(matches!(error(vec![0.into(); 4]), Error::InvalidArgument { .. }));
    assert!(matches!(error(vec![IndexItem::Ellipsis, IndexItem::Ellipsis]), Error::InvalidArgument { .. }));
    assert!(matches!(error(vec![slice(0, 1, 0).into()]), Error::InvalidArgument { .. }));
    assert!(matches!(error(vec![Tensor::from([true; 3]).into()]), Error::ShapeMismatch { .. }));
    assert!(matches!(error(vec![Tensor::from([0.5]).into()]), Error::DTypeMismatch { .. }));
    assert!(matches!(error(vec![Tensor::from([0i64, 2]).into()]), Error::IndexOutOfBounds { .. }));
    let pair = vec![Tensor::from([0i64, 1]).into(), Tensor::from([0i64, 1, 2]).into()];
    assert!(matches!(error(pair), Error::ShapeMismatch { .. }));
}

#[test]
fn assignment_writes_through_every_kind_of_index() {
    let zeros = || Tensor::zeros([2, 3], DType::I64);
    let set = |write: &dyn Fn(&Tensor)| {
        let x = zeros();
        write(&x);
        x.to_vec::<i64>()
    };
    assert_eq!(set(&|x| x.set(0, 7)), [7, 7, 7, 0, 0, 0]);
    assert_eq!(set(&|x| x.set((1, -1), 7)), [0, 0, 0, 0, 0, 7]);
    assert_eq!(set(&|x| x.set((.., 1..), Tensor::from([[1i64], [2]]))), [0, 1, 1, 0, 2, 2]);
    assert_eq!(set(&|x| x.set((.., slice(None, None, -1)), Tensor::from([1i64, 2, 3]))), [3, 2, 1, 3, 2, 1]);
    assert_eq!(
        set(&|x| x.set(Ellipsis, Tensor::from(2.9f32))),
        [2; 6],
        "the source must be converted to the target's dtype"
    );
    assert_eq!(set(&|x| x.set((NewAxis, 0), 1)), [1, 1, 1, 0, 0, 0]);
    assert_eq!(set(&|x| x.set((.., &Tensor::from([2i64, 0])), Tensor::from([5i64, 6]))), [6, 0, 5, 6, 0, 5]);
    assert_eq!(
        set(&|x| x.set((&Tensor::from([0i64, 1]), &Tensor::from([1i64, 2])), Tensor::from([5i64, 6]))),
        [0, 5, 0, 0, 0, 6]
    );
    assert_eq!(
        set(&|x| x.set(Tensor::from([0i64, 0]), Tensor::from([[1i64], [2]]))),
        [2, 2, 2, 0, 0, 0],
        "the last value for a repeated index must be stored"
    );
    assert_eq!(set(&|x| x.set((.., &Tensor::from([true, false, true])), 4)), [4, 0, 4, 4, 0, 4]);
    assert_eq!(set(&|x| x.set(x.eq(0), Tensor::arange(0i64, 6, 1))), [0, 1, 2, 3, 4, 5]);
    assert_eq!(set(&|x| x.t().set(0, 3)), [3, 0, 0, 3, 0, 0], "a write to a view must change the base");
    assert_eq!(set(&|x| x.set((0, 0..2), x.i((0, 1..3)) + 1)), [1, 1, 0, 0, 0, 0]);
    assert_eq!(set(&|x| x.set((.., 0..0), 9)), [0; 6]);
}

/// As in NumPy 2, a 0-d boolean is an index tensor of shape [1] (true) or [0] (false) that covers no axis.
#[test]
fn a_mask_without_axes_adds_one_of_length_1_or_0() {
    let x = Tensor::arange(0i64, 6, 1).reshape([2, 3]);
    let (yes, no) = (Tensor::from(true), Tensor::from(false));
    let columns = Tensor::from([0i64, 2]);
    let shape = |y: Tensor| y.shape().dims().to_vec();
    assert_eq!((shape(x.i(&yes)), shape(x.i(&no))), (vec![1, 2, 3], vec![0, 2, 3]));
    assert_eq!((shape(x.i(true)), shape(x.i(false))), (vec![1, 2, 3], vec![0, 2, 3]));
    assert_eq!((shape(x.i((.., &yes))), shape(x.i((.., &no)))), (vec![2, 1, 3], vec![2, 0, 3]));
    assert_eq!((shape(x.i((Ellipsis, &yes))), shape(x.i((Ellipsis, &no)))), (vec![2, 3, 1], vec![2, 3, 0]));
    assert_eq!((shape(x.i((NewAxis, &yes))), shape(x.i((&no, NewAxis)))), (vec![1, 1, 2, 3], vec![0, 1, 2, 3]));
    assert_eq!((shape(x.i((&yes, &yes))), shape(x.i((&yes, &no)))), (vec![1, 2, 3], vec![0, 2, 3]));
    assert_eq!((shape(x.i((&yes, 1))), shape(x.i((1, &no)))), (vec![1, 3], vec![0, 3]));
    // A 0-d mask broadcasts with an index tensor, and its axis stays in place if both are adjacent.
    assert_eq!(x.i((&yes, .., &columns)).shape().dims(), [2, 2]);
    assert_eq!(
        x.i((&yes, .., &columns)).to_vec::<i64>(),
        [0, 3, 2, 5],
        "the axes of separated index tensors must come first"
    );
    assert_eq!(x.i((.., &yes, &columns)).to_vec::<i64>(), [0, 2, 3, 5]);
    assert_eq!(shape(x.i((.., &no, &Tensor::from([1i64])))), [2, 0]);
    assert!(matches!(x.try_i((.., &no, &columns)), Err(Error::ShapeMismatch { .. })));
    assert_eq!(x.i((&yes, x.gt(3))).to_vec::<i64>(), [4, 5]);
    // A 0-d tensor can be indexed too.
    let one = Tensor::from(7i64);
    assert_eq!((shape(one.i(&yes)), shape(one.i(&no))), (vec![1], vec![0]));
    assert_eq!(one.i(&yes).item::<i64>(), 7);
    // Writes through a 0-d mask.
    let t = Tensor::from([1.0f32, 2.0]);
    t.set(Tensor::from(-1.0f32).gt(0.0), 9.0);
    t.set((.., false), 9.0);
    assert_eq!(t.to_vec::<f32>(), [1.0, 2.0]);
    t.set((0, true), 9.0);
    assert_eq!(t.to_vec::<f32>(), [9.0, 2.0]);
    t.set(Tensor::from(1.0f32).gt(0.0), Tensor::from([[3.0f32, 4.0]]));
    assert_eq!(t.to_vec::<f32>(), [3.0, 4.0]);
    let put = |mask: &Tensor, accumulate| t.index_put(mask, &Tensor::from(5.0f32), accumulate).to_vec::<f32>();
    assert_eq!((put(&no, false), put(&yes, false), put(&yes, true)), (vec![3.0, 4.0], vec![5.0, 5.0], vec![8.0, 9.0]));
    assert_eq!((t.masked_select(&no).size(), t.masked_select(&yes).size()), (0, 2));
    assert_eq!(t.masked_fill(&no, 0.0).to_vec::<f32>(), [3.0, 4.0]);
    assert_eq!(t.masked_scatter(&yes, &Tensor::from([1.0f32, 2.0, 3.0])).to_vec::<f32>(), [1.0, 2.0]);
    let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
    (x.i(&yes).sum(..) * 2.0 + x.i(&no).sum(..) * 100.0).backward();
    assert_eq!(x.grad().unwrap().to_vec::<f64>(), [2.0, 2.0]);
}

#[test]
fn assignment_from_itself_reads_before_it_writes() {
    let x = Tensor::arange(0i64, 6, 1);
    x.set(1.., x.i(..5));
    assert_eq!(x.to_vec::<i64>(), [0, 0, 1, 2, 3, 4]);
    let y = Tensor::arange(0i64, 4, 1);
    y.set(.., y.flip(0));
    assert_eq!(y.to_vec::<i64>(), [3, 2, 1, 0]);
}

#[test]
fn gradients_flow_through_every_kind_of_index() {
    let x = Tensor::arange(0.0f64, 6.0, 1.0).reshape([2, 3]).requires_grad_(true);
    let gradient = |y: Tensor| {
        x.zero_grad();
        y.backward();
        x.grad().unwrap().to_vec::<f64>()
    };
    assert_eq!(gradient(x.i((1, ..2))), [0.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    assert_eq!(
        gradient(x.i((.., slice(None, None, -2))) * &Tensor::from([[1.0, 2.0], [3.0, 4.0]])),
        [2.0, 0.0, 1.0, 4.0, 0.0, 3.0]
    );
    assert_eq!(
        gradient(x.i((0, &Tensor::from([1i64, 1, 1])))),
        [0.0, 3.0, 0.0, 0.0, 0.0, 0.0],
        "the gradients of repeated indices must be summed"
    );
    assert_eq!(gradient(x.i(x.gt(3.0)) * 5.0), [0.0, 0.0, 0.0, 0.0, 5.0, 5.0]);
    assert_eq!(gradient(x.i((NewAxis, Ellipsis, 0)) * 2.0), [2.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
}

/// A mask with one value is a fill: eager, lazy and captured steps are bit-identical to a write at the positions of
/// the selected elements, with the same gradients.
#[test]
fn a_mask_with_one_value_is_filled_in_every_mode() {
    type MaskIndex = fn(&Tensor) -> Vec<IndexItem>;
    let indices: [MaskIndex; 9] = [
        |x| vec![x.lt(0.0).into()],
        |x| vec![x.i(1).i((.., 0)).lt(0.0).i(..2).into()],
        |x| vec![(..).into(), x.i((0, .., 1)).lt(0.0).into()],
        |x| vec![1.into(), x.i(1).lt(0.0).into()],
        |x| vec![slice(None, None, -1).into(), x.i((0, .., ..)).lt(0.0).into()],
        |x| vec![x.i((.., .., 1)).lt(0.0).into(), 0.into()],
        |x| vec![NewAxis.into(), x.lt(0.0).into()],
        |_| vec![true.into(), 1.into()],
        |_| vec![Ellipsis.into(), false.into()],
    ];
    let numbers = Tensor::from([-1.0, 2.0, -0.0, -4.5, f64::NAN, -6.0, 7.0, -8.0, 0.0, -1e300, 11.0, -0.5]);
    let weights = Tensor::arange(1.0, 13.0, 1.0).reshape([2, 3, 2]);
    let bits = |y: &[Tensor]| -> Vec<Vec<u64>> {
        y.iter().map(|y| y.to_vec::<f64>().iter().map(|v| v.to_bits()).collect()).collect()
    };
    for (k, index) in indices.into_iter().enumerate() {
        for shape in [&[] as &[usize], &[1]] {
            let run = |inputs: &[Tensor], write: &dyn Fn(Tensor, Vec<IndexItem>, &Tensor) -> Tensor| {
                let (x, v) = (inputs[0].detach().requires_grad_(true), inputs[1].detach().requires_grad_(true));
                let y = write(&x * 1.0, index(&x.detach()), &v);
                (y.where_(&y.eq(&y), 0.0) * &weights).sum(..).backward();
                let gradient = |x: &Tensor| x.grad().unwrap_or_else(|| x.zeros_like());
                [y.detach(), gradient(&x), gradient(&v)]
            };
            let set = |y: Tensor, index: Vec<IndexItem>, v: &Tensor| {
                y.set(index, v);
                y
            };
            let put = |y: Tensor, index: Vec<IndexItem>, v: &Tensor| ops::index_put(&y, index, v, false).unwrap();
            let inputs = [numbers.reshape([2, 3, 2]), Tensor::from(3.25).reshape(shape)];
            let expected = bits(&run(&inputs, &put));
            assert_eq!(bits(&run(&inputs, &set)), expected, "index {k}");
            assert_eq!(bits(&lazy(|| run(&inputs, &set))), expected, "index {k}, lazy");
            let operands = [&inputs[0] * -1.0, &inputs[1] + 1.0];
            let mut step = capture(|inputs| run(inputs, &set), &[&operands[0], &operands[1]]).unwrap();
            let launched = step.launch(&[&inputs[0], &inputs[1]]).unwrap();
            let launched: Vec<Tensor> = (0..3).map(|k| launched.to_tensor(k)).collect();
            // Masks that were computed from the values follow them.
            assert_eq!(bits(&launched), expected, "index {k}, captured");
        }
    }
    let y = Tensor::from([-1i64, 2, -3]);
    y.set(y.lt(0), 9);
    assert_eq!(y.to_vec::<i64>(), [9, 2, 9]);
    let flags = Tensor::from([true, false]);
    flags.set([false, true], true);
    assert_eq!(flags.to_vec::<bool>(), [true, true]);
    // The value broadcasts to the selected elements, which are a vector.
    assert!(matches!(y.try_set(y.lt(5), Tensor::from([[1i64]])), Err(Error::ShapeMismatch { .. })));
    assert!(y.try_set(y.lt(5), 2.5).is_err());
    // A mask with several values needs the count of the selected elements.
    let several = |_: &[Tensor]| y.try_set(y.lt(5), [1, 2]);
    assert!(matches!(capture(several, &[]).map(drop), Err(Error::ReadInCapture { .. })));
}
