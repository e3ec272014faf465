//! Errors: the function returns a typed error, and the method panics with the same error at the line of the caller.

use crate::support::panic_of;
use pellucid_tensor::{BackwardOptions, DType, Device, Error, GradOptions, Tensor, detect_anomaly, grad, ops};
use std::cell::RefCell;
use std::panic;

thread_local! {
    static PLACE: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
}

/// Returns the file and line at which `f` panics.
fn panic_location(f: impl FnOnce()) -> (String, u32) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|l| (l.file().to_string(), l.line()));
            PLACE.with_borrow_mut(|p| *p = place);
            before(info);
        }));
    });
    panic_of(f);
    PLACE.take().expect("the panic hook must store the location")
}

#[test]
fn a_method_panics_at_the_callers_line_with_the_functions_error() {
    let (a, b) = (Tensor::zeros([2, 3], DType::F32), Tensor::zeros([4], DType::F32));
    let expected = ops::matmul(&a, &b).unwrap_err();
    assert_eq!(panic_of(|| a.matmul(&b)), expected.to_string());
    assert!(matches!(&expected, Error::ShapeMismatch { op: "matmul", shapes, .. } if shapes.len() == 2));

    let ragged = vec![vec![1.0], vec![]];
    let rejections: [(u32, &dyn Fn()); 13] = [
        (line!(), &|| drop(a.matmul(&b))),
        (line!(), &|| drop(&a + &b)),
        (line!(), &|| drop(a.clone() & 3.5)),
        (line!(), &|| drop(a.i((0, 5)))),
        (line!(), &|| a.set((.., 3), 1.0)),
        (line!(), &|| a.backward()),
        (line!(), &|| assert_eq!(a.item::<f32>(), 0.0)),
        (line!(), &|| drop(a.sum(2))),
        (line!(), &|| drop(Tensor::from(&ragged))),
        (line!(), &|| drop((a.to_vec2::<f32>(), a.to_vec3::<f32>()))),
        (line!(), &|| drop((&Tensor::from(1.0)).into_iter())),
        (line!(), &|| [a.clone()].iter_mut().for_each(|c| *c += &b)),
        (line!(), &|| drop(Tensor::zeros((2, -1), DType::F32))),
    ];
    for (line, rejection) in rejections {
        assert_eq!(panic_location(rejection), (file!().to_string(), line));
    }
}

#[test]
fn messages_name_the_operation_the_shapes_and_the_remedy() {
    let (a, b) = (Tensor::zeros([2, 3], DType::F32), Tensor::zeros([4], DType::F32));
    let text = panic_of(|| &a * &b);
    assert!(
        text.contains("mul") && text.contains("[2, 3]") && text.contains("[4]") && text.contains("unsqueeze"),
        "{text}"
    );
    let text = panic_of(|| a.bitwise_and(b.zeros_like()));
    assert!(text.contains("bitwise_and"), "{text}");
    let text = panic_of(|| Tensor::zeros([2], DType::F32) & 1);
    assert!(text.contains("f32") && text.contains("to_dtype"), "{text}");
    let text = panic_of(|| a.i((.., -4)));
    assert!(text.contains("-4") && text.contains("axis 1") && text.contains("length 3"), "{text}");
    let text = panic_of(|| a.clone().requires_grad_(true).i(0).item::<f32>());
    assert!(text.contains("item") && text.contains("[3]"), "{text}");
    // The weight is shown with the shape that the caller gave it.
    let text = panic_of(|| a.linear(&Tensor::zeros([5, 4], DType::F32), None));
    assert!(text.contains("linear") && text.contains("[5, 4]") && text.contains("has length 3"), "{text}");
    let (image, weight) = (Tensor::zeros([1, 3, 4, 4], DType::F32), Tensor::zeros([2, 4, 1, 1], DType::F32));
    let text = panic_of(|| image.conv2d(&weight, None, ops::ConvOptions::default()));
    assert!(text.contains("conv2d") && text.contains("has 3 channels") && text.contains("requires 4"), "{text}");
}

/// Calls that fail, and parts of their messages, among them the correction of the call.
#[test]
fn messages_name_a_correction() {
    let f32s = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let i64s = |shape: &[usize]| Tensor::zeros(shape, DType::I64);
    let full = |shape: &[usize], class: i64| Tensor::full(shape, class, DType::I64);
    let entropy = |x: &Tensor, t: &Tensor| ops::cross_entropy(x, t, Default::default());
    let nll = |x: &Tensor, t: &Tensor| ops::nll_loss(x, t, Default::default());
    let backward = |x: &Tensor| x.try_backward_with(BackwardOptions::default()).map(|()| x.clone());
    let (x, w) = (f32s(&[2, 3]), Tensor::from([2.0f64]).requires_grad_(true));
    let first_order = grad(&[&w.exp()], &[&w], GradOptions::default()).unwrap().remove(0);
    let anomaly = |f: &dyn Fn() -> Result<Tensor, Error>| {
        let _guard = detect_anomaly();
        f()
    };
    let rejections: [(Result<Tensor, Error>, &[&str]); 41] = [
        (ops::pixel_shuffle(&f32s(&[1, 3, 2, 2]), 0), &["pixel_shuffle: the factor r must be at least 1, got 0"]),
        (ops::pixel_unshuffle(&f32s(&[1, 3, 2, 2]), 0), &["pixel_unshuffle: the factor r must be at least 1, got 0"]),
        (
            ops::channel_shuffle(&f32s(&[1, 3, 2, 2]), 0),
            &["channel_shuffle: the number of groups must be at least 1, got 0"],
        ),
        (ops::one_hot(&i64s(&[2]), 1 << 61), &["one_hot: out of memory: a tensor of shape [2, 2305843009213693952]"]),
        (ops::one_hot(&i64s(&[2]), 1 << 57), &["one_hot: out of memory: a tensor of shape", "144115188075855872]"]),
        (
            ops::combinations(&i64s(&[1 << 20]), 3, false),
            &["combinations: out of memory: a tensor of shape [192153034345676800, 3]"],
        ),
        (ops::vander(&x, Some(1 << 50)), &["vander: out of memory: a tensor of shape [2, 3, 1125899906842624]"]),
        (
            ops::interpolate(&f32s(&[1, 2, 4]), ops::Resize::To(vec![1 << 50]), ops::InterpolationMode::Nearest),
            &["interpolate: out of memory: a tensor of shape [1, 2, 1125899906842624]"],
        ),
        (
            ops::adaptive_avg_pool1d(&f32s(&[1, 2, 4]), &[Some(1 << 50)]),
            &["adaptive_avg_pool1d: out of memory: a tensor of shape [1, 2, 1125899906842624]"],
        ),
        (backward(&x), &["backward: ", "[2, 3]", "set requires_grad", "detach()", "argmax()", "unfreeze()"]),
        (
            grad(&[&first_order.sum(..)], &[&w], GradOptions::default()).map(|mut all| all.remove(0)),
            &["grad: output 0 of shape []", "If it is a gradient itself, compute it with create_graph: true"],
        ),
        (entropy(&i64s(&[2]), &x), &["the logits (first argument) must be floats", "exchange the arguments"]),
        (
            ops::binary_cross_entropy(&f32s(&[2]), &Tensor::from([0.5f32, 2.0]), None, Default::default()),
            &["targets must be from 0 to 1, got 2"],
        ),
        (ops::full(2, 1e300, DType::F32), &["outside the range of f32", "wider dtype"]),
        (ops::full(2, 70000.0, DType::F16), &["outside the range of f16"]),
        (ops::reshape(&x, [4, 2]), &["6 elements cannot fill [4, 2]", "use -1 to infer one length"]),
        (ops::split(&x, [1, 2], 0).map(|mut all| all.remove(0)), &["[1, 2] do not add up to 2", "narrow()"]),
        (ops::inv(&x), &["must be square", "pinv(), lstsq()"]),
        (entropy(&x, &full(&[2], 3)), &["index 3", "classes are 0..3: add outputs to the model, or renumber"]),
        (nll(&x, &full(&[2], 4)), &["nll_loss: index 4", "classes are 0..3"]),
        (entropy(&x, &full(&[2], -1)), &["index -1", "ignore_index"]),
        (entropy(&f32s(&[2, 1]), &full(&[2], 1)), &["index 1", "BceWithLogitsLoss"]),
        (ops::multi_margin_loss(&x, &full(&[2], 3), Default::default()), &["index 3", "classes are 0..3"]),
        (entropy(&x, &i64s(&[2, 3])), &["targets of dtype i64", "one-hot rows: use argmax(-1)", "DType::F32"]),
        (entropy(&f32s(&[2, 3, 4]), &i64s(&[2, 3, 4])), &["one-hot rows: use argmax(1)"]),
        (entropy(&f32s(&[2, 1]), &i64s(&[2, 1])), &["BceWithLogitsLoss"]),
        (entropy(&f32s(&[2, 4, 3]), &i64s(&[2, 4])), &["axis 1: permute((0, 2, 1))", "flatten(0, 1) both"]),
        (entropy(&f32s(&[2, 4, 5, 3]), &i64s(&[2, 4, 5])), &["permute((0, 3, 1, 2))", "flatten(0, 2) both"]),
        (entropy(&x, &i64s(&[2, 1])), &["squeeze(1)"]),
        (nll(&x, &i64s(&[2, 1])), &["nll_loss: ", "squeeze(1)"]),
        (nll(&x, &i64s(&[5])), &["nll_loss: ", "[N, C, ..] or [C]"]),
        (entropy(&x, &i64s(&[5])), &["class indices must have", "[2]"]),
        (
            ops::binary_cross_entropy(&Tensor::full([2], 1.5f32, DType::F32), &f32s(&[2]), None, Default::default()),
            &["from 0 to 1, got 1.5", "apply sigmoid() first, or use BceWithLogitsLoss"],
        ),
        (
            ops::concatenate(&[&x, &f32s(&[2, 5]), &f32s(&[4, 3])], 1),
            &["all axes except 1", "axis 0 has length 2 in tensor 0 and 4 in tensor 2", "concatenate along axis 0"],
        ),
        (ops::concatenate(&[&x, &f32s(&[3])], 0), &["tensor 0 has rank 2 and tensor 1 rank 1", "unsqueeze()"]),
        (ops::max(&f32s(&[0]), ..), &["max: ", "zero elements", "test numel() first"]),
        (
            anomaly(&|| ops::log(&Tensor::from([-1.0f32]))),
            &["log: produced NaN", "clamp() the inputs of `log`", "epsilon"],
        ),
        (
            anomaly(&|| {
                let leaf = Tensor::from([0.0f32]).requires_grad_(true);
                let y = ops::mul(&ops::sqrt(&leaf)?, 0.0)?;
                backward(&y)
            }),
            &["backward pass of `sqrt`", "clamp() the inputs of `sqrt`", "finite derivative"],
        ),
        ("rocm:0".parse::<Device>().map(|_| x.clone()), &["device \"rocm\"", "GPUs are named \"gpu\""]),
        ("".parse::<Device>().map(|_| x.clone()), &["device \"\" is not available", "`cpu`"]),
        (Tensor::try_from_bytes(&[0; 12], DType::F32, [2, 2]), &["12 bytes do not fill shape [2, 2] of f32"]),
    ];
    for (result, parts) in rejections {
        let text = result.expect_err(parts[0]).to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} must be in: {text}");
    }
    let text = panic_of(|| Tensor::new([1.0f32, 2.0, 3.0], [2, 2]));
    assert_eq!(
        text,
        "tensor: 3 elements of dtype f32 do not fill shape [2, 2], which requires 4; change the shape, or use full() to repeat a value"
    );
}

/// Wrong axes, windows of size 0 and exchanged arguments: the error names the probable intention of the caller.
#[test]
fn messages_name_the_probable_mistake() {
    let f32s = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let (x, image) = (f32s(&[2, 3]), f32s(&[1, 4, 4]));
    let mask = x.gt(0.0);
    let reflect = ops::pad(&x, [(0, 0), (3, 0)], ops::PaddingMode::Reflect);
    let pool = ops::PoolOptions::new;
    let rejections: [(Result<Tensor, Error>, &[&str]); 12] = [
        (
            ops::conv2d(&f32s(&[5, 28, 28]), &f32s(&[8, 1, 3, 3]), None, Default::default()),
            &["5 samples of one channel", "unsqueeze(1)"],
        ),
        (ops::conv1d(&f32s(&[5, 28]), &f32s(&[8, 1, 3]), None, Default::default()), &["unsqueeze(1)"]),
        (ops::conv_transpose2d(&f32s(&[5, 9, 9]), &f32s(&[1, 8, 3, 3]), None, Default::default()), &["unsqueeze(1)"]),
        (ops::conv2d(&f32s(&[5, 28, 28]), &f32s(&[8, 3, 3, 3]), None, Default::default()), &["one sample [C, ..]"]),
        (
            ops::conv2d(&image, &f32s(&[8, 1, 0, 3]), None, Default::default()),
            &["conv2d: the kernel size must be at least 1 on every axis, got [0, 3]; use 1"],
        ),
        (
            ops::conv2d(
                &image,
                &f32s(&[8, 1, 3, 3]),
                None,
                ops::ConvOptions { stride: 0.into(), ..Default::default() },
            ),
            &["use 1, the default"],
        ),
        (ops::avg_pool2d(&image, pool(0), Default::default()), &["avg_pool2d: the size must be", "got [0]; use 1"]),
        (
            ops::max_pool2d(&image, ops::PoolOptions { stride: Some([1, 0].into()), ..pool(2) }).map(|y| y.0),
            &["stride", "the default is the size of the window"],
        ),
        (ops::where_(&x, &mask, &x), &["the condition must be a bool tensor", "where_(condition, x, y)"]),
        (ops::where_(&x, 0.0, &mask), &["call ops::where_(condition, x, y)"]),
        (ops::where_(&x, &x, 0.0), &["where_: dtype f32", "compare with ne(0)"]),
        (reflect, &["too short for reflect padding"]),
    ];
    for (result, parts) in rejections {
        let text = result.expect_err(parts[0]).to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} must be in: {text}");
    }
}

/// Errors write settings as programs do, and name a remedy.
#[test]
fn messages_write_settings_as_programs_do() {
    let f32s = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let (x, zeros, linear) = (
        f32s(&[3, 4, 5]),
        ops::PaddingMode::Constant(0.into()),
        ops::InterpolationMode::Linear { align_corners: false },
    );
    let image = f32s(&[1, 1, 4, 4]);
    let rejections = [
        (
            ops::pad(&x, ((1, 1), (0, 0)), zeros),
            "one for each of the 3 axes of [3, 4, 5]; got 2: [(1, 1), (0, 0)]; a pair (0, 0) leaves an axis unchanged",
        ),
        (ops::pad(&x, (-4, 0), zeros), "cannot be padded by (-4, 0); negative numbers crop, but no more elements"),
        (ops::interpolate(&f32s(&[5, 5]), ops::Resize::To(vec![2]), linear), "unsqueeze() adds missing axes"),
        (ops::interpolate(&image, ops::Resize::To(vec![2]), linear), "2 spatial axes, got lengths [2]; pass 2 numbers"),
        (ops::interpolate(&image, ops::Resize::By(vec![0.5]), linear), "got factors [0.5]"),
        (ops::interpolate(&image, ops::Resize::To(vec![0, 2]), linear), "cannot be resized to lengths [0, 2]"),
        (ops::einsum("ij,jk-ik", &[&f32s(&[2, 2]), &f32s(&[2, 2])]), "`-` is not a letter (the factors are separated"),
    ];
    for (result, part) in rejections {
        let text = result.expect_err(part).to_string();
        assert!(text.contains(part), "{part:?} must be in: {text}");
    }
    let widths = [ops::PadWidth::from(2), ops::PadWidth::from((0, -1)), ops::PadWidth::from([(1, 0), (0, 2)])];
    assert_eq!(widths.map(|width| width.to_string()), ["2", "(0, -1)", "[(1, 0), (0, 2)]"]);
}

/// Errors of values outside a range name the range.
#[test]
fn messages_name_the_accepted_values() {
    let f32s = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let (x, scalar, empty) = (f32s(&[3, 4]), f32s(&[]), f32s(&[0, 2]));
    let conv = |x: &[usize], w: &[usize], options: ops::ConvOptions| ops::conv2d(&f32s(x), &f32s(w), None, options);
    let attend = |k: &[usize], v: &[usize]| {
        ops::scaled_dot_product_attention(&f32s(&[2, 4]), &f32s(k), &f32s(v), Default::default())
    };
    let (mask, source) = (Tensor::full([3], true, DType::Bool), f32s(&[2]));
    let rejections: [(Result<Tensor, Error>, &[&str]); 28] = [
        (x.try_i(5), &["index 5", "axis 0 of length 3; indices must be in -3..=2"]),
        (ops::select(&x, 1, -5), &["length 4; indices must be in -4..=3"]),
        (ops::take(&x, &Tensor::from([12i64])), &["length 12; indices must be in -12..=11"]),
        (empty.try_i(0), &["length 0; the axis is empty"]),
        (ops::narrow(&x, 0, 1, 3), &["start must be at least -3, and the range must end at or before 3"]),
        (ops::embedding(&x, &Tensor::from([3i64]), Default::default()), &["indices must be in 0..3:"]),
        (
            ops::max_unpool1d(&f32s(&[1, 1, 1]), &Tensor::full([1, 1, 1], -1, DType::I64), &[3]),
            &["index -1", "length 3; indices must be in 0..3"],
        ),
        (
            ops::multi_margin_loss(&x, &Tensor::full([3], -1, DType::I64), Default::default()),
            &["index -1", "classes are 0..4"],
        ),
        (ops::masked_scatter(&f32s(&[3]), &mask, &source), &["the mask has more than 2 true elements"]),
        (ops::sum(&x, 2), &["sum: axis 2", "shape [3, 4] of rank 2; axes are -2..=1"]),
        (ops::sum(&scalar, 0), &["a 0-d tensor has no axis"]),
        (ops::unsqueeze(&x, 5), &["axes of the result are -3..=2"]),
        (ops::stack(&[&x], 7), &["stack: axis 7", "axes of the result are -3..=2"]),
        (ops::sum(&x, [0, 0]), &["axis 0 is named twice in [0, 0]; remove one"]),
        (ops::full([1], 7.5, DType::I64), &["full: 7.5 cannot be stored", "dtype i64; round it, or use a float dtype"]),
        (ops::full([1], 300, DType::U8), &["300 is outside the range of u8; use a wider dtype"]),
        (ops::full([1], f64::NAN, DType::I64), &["NaN is outside the range of i64; use a float dtype"]),
        (ops::full_like(&Tensor::from([1i64]), f64::INFINITY), &["full_like: inf", "use a float dtype"]),
        (conv(&[1, 5, 5, 3], &[2, 3, 1, 1], Default::default()), &["if it is the channels, use permute([0, 3, 1, 2])"]),
        (
            conv(&[1, 3, 5, 5], &[2, 3, 1, 1], ops::ConvOptions { stride: 0.into(), ..Default::default() }),
            &["stride must be at least 1 on every axis, got [0]; use 1, the default"],
        ),
        (
            ops::conv_transpose2d(
                &f32s(&[1, 3, 5, 5]),
                &f32s(&[3, 2, 1, 1]),
                None,
                ops::ConvOptions { stride: 2.into(), output_padding: 3.into(), ..Default::default() },
            ),
            &["got output_padding 3, stride 2 and dilation 1"],
        ),
        (ops::linear(&scalar, &x, None), &["linear: ", "unsqueeze(0)"]),
        (ops::zeros([1 << 16, 1 << 16, 1 << 14], DType::F32), &["in use; use a smaller shape or batch"]),
        (attend(&[3, 5], &[3, 2]), &["but E is 4 in Q and 5 in K"]),
        (attend(&[3, 4], &[5, 2]), &["but S is 3 in K and 5 in V"]),
        (attend(&[3, 5], &[5, 2]), &["E is 4 in Q and 5 in K, and S is 3 in K and 5 in V"]),
        (attend(&[3], &[5, 2]), &["but K has rank 1"]),
        (ops::einsum("ij->iz", &[&x]), &["`z`, which is in no factor; remove it from the result"]),
    ];
    for (result, parts) in rejections {
        let text = result.expect_err(parts[0]).to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} must be in: {text}");
    }
    let grouped = conv(&[1, 4, 5, 6], &[2, 3, 1, 1], ops::ConvOptions { groups: 2, ..Default::default() })
        .unwrap_err()
        .to_string();
    assert!(grouped.contains("requires 6") && !grouped.contains("permute"), "{grouped}");
}

/// Operations that accept floats only name the conversion.
#[test]
fn messages_for_an_integer_tensor_name_the_conversion() {
    let integers = |shape: &[usize]| Tensor::zeros(shape, DType::I64);
    let (x, image) = (integers(&[3, 4]), Tensor::zeros([1, 2, 4, 4], DType::F32));
    let linear = ops::QuantileInterpolation::default();
    let cutoff = ops::Cutoff { atol: Some(integers(&[])), ..Default::default() };
    let sample = |x: &Tensor, grid: &Tensor| {
        ops::grid_sample(x, grid, ops::GridSampleMode::Linear, ops::GridSamplePadding::Zeros, false)
    };
    let floats = Tensor::zeros([3, 4], DType::F32);
    let rejections: [(Result<Tensor, Error>, &str); 6] = [
        (ops::quantile(&x, 0.5, .., linear), "quantile: dtype i64 is not supported: the input must have a float dtype"),
        (
            ops::nanquantile(&x, 0.5, 1, linear),
            "nanquantile: dtype i64 is not supported: the input must have a float dtype",
        ),
        (
            ops::quantile(&floats, integers(&[2]), 0, linear),
            "quantile: dtypes f32 and i64 are not supported: probabilities must have the dtype",
        ),
        (
            ops::fractional_max_pool2d(&image, 2, 2, Some(&integers(&[1, 2, 2]))).map(|y| y.0),
            "the samples must be floats",
        ),
        (sample(&image, &integers(&[1, 2, 2, 2])), "x and the grid must have the same float dtype"),
        (ops::pinv(&floats, &cutoff), "`atol` and `rtol` must be floats"),
    ];
    for (result, expected) in rejections {
        let text = result.expect_err(expected).to_string();
        assert!(text.contains(expected) && text.contains("; use to_dtype()"), "{expected} must be in: {text}");
    }
}

#[test]
fn a_failed_call_changes_nothing() {
    let x = Tensor::from([1.0f32, 2.0, 3.0]);
    let version = x.array().storage().version();
    assert!(x.try_set(3, 9.0).is_err());
    assert!(x.try_set(.., Tensor::from([1.0f32, 2.0])).is_err());
    assert!(
        x.try_set(Tensor::from([0i64, 5]), 9.0).is_err(),
        "a valid index followed by an invalid one must be an error"
    );
    assert!(ops::copy_(&x, &Tensor::from([[1.0f32], [2.0]])).is_err());
    assert_eq!(x.to_vec::<f32>(), [1.0, 2.0, 3.0]);
    assert_eq!(x.array().storage().version(), version);
}

/// Invalid calls of operations that are composed of other operations.
#[test]
fn errors_name_the_operation_that_was_called() {
    let (x, index) = (Tensor::zeros([2, 3], DType::F32), Tensor::from([0i64, 9]));
    let labels = Tensor::from([[0i64, 1, 2], [0, 1, 2]]);
    let rejections: [(&str, Result<Tensor, Error>); 14] = [
        ("embedding", ops::embedding(&x, &index, Default::default())),
        ("index", x.try_i((0, &index))),
        ("set", x.try_set((0, &index), 1.0).map(|()| x.clone())),
        ("index_put", ops::index_put(&x, (0, 9), &Tensor::from(1.0f32), false)),
        ("take", ops::take(&x, &index)),
        ("argmax", ops::argmax(&Tensor::zeros([0], DType::F32), ..)),
        ("count_nonzero", ops::count_nonzero(&x, 5)),
        ("aminmax", ops::aminmax(&x, 5).map(|(least, _)| least)),
        ("stack", ops::stack(&[] as &[&Tensor], 0)),
        ("hstack", ops::hstack(&[] as &[&Tensor])),
        ("stack", ops::stack(&[&x], 7)),
        ("cumulative_trapezoid", ops::cumulative_trapezoid(&x, ops::Spacing::Step(1.0), 7)),
        ("dot", ops::dot(&Tensor::zeros([2], DType::F32), &Tensor::zeros([3], DType::F32))),
        ("multi_margin_loss", ops::multi_margin_loss(&x, &labels, Default::default())),
    ];
    for (op, result) in rejections {
        let error = result.expect_err(op);
        assert_eq!(error.operation(), Some(op), "{error}");
        assert!(error.to_string().starts_with(&format!("{op}: ")), "{error}");
    }
}

#[test]
fn messages_show_axes_as_the_user_wrote_them() {
    let x = Tensor::zeros([3, 4], DType::F32);
    let text = x.try_i((0, 1, 2)).unwrap_err().to_string();
    assert_eq!(
        text,
        "index: too many indices: 3 for a tensor with 2 axes, shape [3, 4]; remove some, or add axes with unsqueeze()"
    );
    let text = x.try_i((pellucid_tensor::Ellipsis, pellucid_tensor::Ellipsis)).unwrap_err().to_string();
    assert!(text.contains("at most one ellipsis"), "{text}");
    let text = ops::einsum("ij->ik", &[&x]).unwrap_err().to_string();
    assert!(text.contains("`k`") && !text.contains("Letter"), "{text}");
    let text = ops::einsum("ij,jk->ik", &[&x, &x]).unwrap_err().to_string();
    assert!(text.contains("`j`") && text.contains("[3, 4]") && !text.contains("Letter"), "{text}");
}

#[test]
fn an_out_of_memory_error_names_operation_shape_and_size() {
    let text = ops::zeros([1 << 16, 1 << 16, 1 << 14], DType::F32).unwrap_err().to_string();
    let expected = "zeros: out of memory: a tensor of shape [65536, 65536, 16384] needs 262144.0 GiB; ";
    assert!(text.starts_with(expected) && !text.contains(&usize::MAX.to_string()), "{text}");
    let x = Tensor::ones([1], DType::F32).broadcast_to([1 << 30, 1 << 14]);
    let text = ops::exp(&x).unwrap_err().to_string();
    assert!(text.starts_with("exp: out of memory: a tensor of shape [1073741824, 16384] needs 65536.0 GiB"), "{text}");
    let text = x.try_to_vec::<f32>().unwrap_err().to_string();
    assert!(text.starts_with("to_vec: out of memory: ") && text.contains("65536.0 GiB"), "{text}");
    let text = ops::zeros([isize::MAX, 2], DType::F32).unwrap_err().to_string();
    assert!(text.contains("[9223372036854775807, 2] needs more bytes than can be addressed"), "{text}");
}

/// `unwrap()` and a `main` that returns an error print `Debug`.
#[test]
fn debug_of_an_error_is_its_message() {
    let error = ops::stack(&[&Tensor::from(1.0), &Tensor::from([1.0])], 0).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert_eq!(format!("{:?}", Err::<(), _>(&error)), format!("Err({error})"));
}

/// The error for a rejected dtype of an operand names a call that helps. If the operation has no specific one, it is
/// `to_dtype()`.
#[test]
fn errors_of_dtypes_have_a_remedy() {
    let (x, doubles) = (Tensor::ones([2, 3], DType::F32), Tensor::ones([3], DType::F64));
    let (vector, integers) = (x.i(0), Tensor::ones([2, 3], DType::I64));
    let image = Tensor::ones([1, 1, 2], DType::F32);
    let labels = Tensor::from([0i64, 1]);
    let masked = ops::AttentionOptions { mask: Some(&integers), ..Default::default() };
    let weighted = ops::CrossEntropyOptions { weight: Some(&doubles), ..Default::default() };
    let frequencies = ops::CovOptions { frequencies: Some(&doubles), ..Default::default() };
    let row = integers.i(0);
    let weights = ops::CovOptions { weights: Some(&row), ..Default::default() };
    let rejected: [Result<Tensor, Error>; 16] = [
        ops::histogram(&vector, ops::Bins::Edges(&doubles), None, false).map(|y| y.0),
        ops::histogram(&vector, ops::Bins::Count(3), Some(&doubles), false).map(|y| y.0),
        ops::bincount(&vector, None, 0),
        ops::max_unpool1d(&image, &image, &[4]),
        ops::cross_entropy(&x, &labels, weighted),
        ops::cross_entropy(&labels, &x, Default::default()),
        ops::scaled_dot_product_attention(&x, &x, &x, masked),
        ops::gcd(&x, &x),
        ops::cov(&x, frequencies),
        ops::cov(&x, weights),
        ops::embedding(&x, &x, Default::default()),
        ops::take(&x, &x),
        ops::lu_solve(&x.i((.., ..2)), &vector.i(..2), &x.i((.., ..2)), true, false),
        ops::ldl_solve(&x.i((.., ..2)), &vector.i(..2), &x.i((.., ..2))),
        ops::var(&integers, ..),
        ops::rand([2], DType::I64),
    ];
    for (k, result) in rejected.into_iter().enumerate() {
        let error = result.err().unwrap_or_else(|| panic!("call {k} must be rejected"));
        let Error::DTypeMismatch { help, .. } = &error else { panic!("{error:?}") };
        let calls = ["to_dtype(", "bincount()", "randint()", "cross_entropy(logits, targets)"];
        assert!(calls.iter().any(|call| help.contains(call)) && help.matches("to_dtype(").count() < 2, "{error}");
    }
    // No conversion of a tensor changes an argument that is a dtype.
    let error = Error::dtype_argument("autocast", DType::I64, "the dtype must be a half-precision dtype");
    assert_eq!(error.to_string(), "autocast: dtype i64 is not supported: the dtype must be a half-precision dtype");
}
