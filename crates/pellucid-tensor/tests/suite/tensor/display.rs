//! Printing, compared with NumPy 2 with `precision=4, linewidth=78`. Booleans are printed as in Rust.

use pellucid_tensor::{DType, Error, PrintOptions, Tensor, lazy, ops};

#[track_caller]
fn prints(tensor: Tensor, expected: &str) {
    assert_eq!(tensor.to_string(), expected);
}

#[test]
fn columns_are_aligned() {
    prints(Tensor::from([[1.0, 2.5], [3.25, -4.0]]), "[[ 1.    2.5 ]\n [ 3.25 -4.  ]]");
    prints(Tensor::from([-1.5, 22.75, 100.0]), "[ -1.5   22.75 100.  ]");
    prints(Tensor::arange(0i64, 6, 1).reshape([2, 3]), "[[0 1 2]\n [3 4 5]]");
    prints(Tensor::from([1i8, -100, 3]), "[   1 -100    3]");
    prints(Tensor::from([true, false]), "[ true false]");
    prints(Tensor::arange(0i64, 8, 1).reshape([2, 2, 2]), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
    prints(Tensor::from([[1i64, 2], [3, 4]]).t(), "[[1 3]\n [2 4]]");
}

#[test]
fn floats_show_at_most_four_digits() {
    prints(Tensor::from([0.1f32, 0.2, 0.3]), "[0.1 0.2 0.3]");
    prints(Tensor::from([1.0 / 3.0, 2.0 / 3.0]), "[0.3333 0.6667]");
    prints(Tensor::zeros([3], DType::F64), "[0. 0. 0.]");
    prints(Tensor::from([99_999_999.0]), "[99999999.]");
    prints(Tensor::from([0.0001]), "[0.0001]");
    prints(Tensor::from([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5]), "[ nan  inf -inf  1.5]");
    prints(Tensor::from([1.0, f64::NAN]), "[ 1. nan]");
}

#[test]
fn numbers_of_very_different_size_are_scientific() {
    prints(Tensor::from([1e-5, 1.0]), "[1.e-05 1.e+00]");
    prints(Tensor::from([1e10, 1.0]), "[1.e+10 1.e+00]");
    prints(Tensor::from([[1e-10, 1e10]]), "[[1.e-10 1.e+10]]");
    prints(Tensor::from([100_000_000.0]), "[1.e+08]");
    prints(Tensor::from([0.00009]), "[9.e-05]");
    prints(Tensor::from([123456.789, 0.001]), "[1.2346e+05 1.0000e-03]");
    prints(Tensor::from([1e-3, 123.5]), "[1.000e-03 1.235e+02]");
}

#[test]
fn scalars_and_empty_tensors() {
    prints(Tensor::from(2.5), "2.5");
    prints(Tensor::from(7i64), "7");
    prints(Tensor::from(0.1f32), "0.1");
    prints(Tensor::zeros([0], DType::F32), "[]");
}

#[test]
fn long_rows_are_broken() {
    let expected = "\
[ 0.   1.1  2.2  3.3  4.4  5.5  6.6  7.7  8.8  9.9 11.  12.1 13.2 14.3 15.4
 16.5 17.6 18.7 19.8 20.9 22.  23.1 24.2 25.3 26.4 27.5 28.6 29.7 30.8 31.9
 33.  34.1 35.2 36.3 37.4 38.5 39.6 40.7 41.8 42.9]";
    prints(Tensor::arange(0.0f64, 40.0, 1.0) * 1.1, expected);
}

#[test]
fn long_axes_show_only_their_ends() {
    prints(Tensor::arange(0i64, 2000, 1), "[   0    1    2 ... 1997 1998 1999]");
    let expected = "\
[[   0    1    2 ...   97   98   99]
 [ 100  101  102 ...  197  198  199]
 [ 200  201  202 ...  297  298  299]
 ...
 [9700 9701 9702 ... 9797 9798 9799]
 [9800 9801 9802 ... 9897 9898 9899]
 [9900 9901 9902 ... 9997 9998 9999]]";
    prints(Tensor::arange(0i64, 10_000, 1).reshape([100, 100]), expected);
    // A short axis is printed completely.
    let narrow = Tensor::arange(0i64, 2000, 1).reshape([1000, 2]).to_string();
    assert!(
        narrow.starts_with("[[   0    1]\n") && narrow.contains("\n ...\n") && narrow.ends_with("[1998 1999]]"),
        "{narrow}"
    );
}

#[test]
fn debug_adds_shape_dtype_and_creator() {
    let x = Tensor::from([1.0f32]).requires_grad_(true);
    assert_eq!(format!("{x:?}"), "Tensor([1.], shape [1], f32, requires_grad)");
    assert_eq!(format!("{:?}", x.sin()), format!("Tensor({}, shape [1], f32, by sin)", x.sin()));
    assert_eq!(format!("{:?}", x.detach()), "Tensor([1.], shape [1], f32)");
}

#[test]
fn printing_a_deferred_value_computes_it() {
    let text = lazy(|| (Tensor::from([1.0, 2.0]) * 2.0).to_string());
    assert_eq!(text, "[2. 4.]");
}

#[test]
fn a_format_string_sets_the_digits_of_every_element() {
    let x = Tensor::from([[1.0, 2.0 / 3.0], [-12.5, 1e-7]]);
    assert_eq!(format!("{x:.2}"), "[[  1.00   0.67]\n [-12.50   0.00]]");
    assert_eq!(format!("{x:.0}"), "[[  1   1]\n [-12   0]]");
    assert_eq!(format!("{x:.1e}"), "[[ 1.0e+00  6.7e-01]\n [-1.2e+01  1.0e-07]]");
    assert_eq!(format!("{:e}", Tensor::from([1.0, 250.0])), "[1.0e+00 2.5e+02]");
    assert_eq!(format!("{:.3}", Tensor::from(0.12f32)), "0.120");
    assert_eq!(format!("{:8.3}|", Tensor::from(0.12f32)), "   0.120|");
    assert_eq!(format!("{:5}", Tensor::from([1i64, -20])), "[    1   -20]");
    assert_eq!(format!("{:.2}", Tensor::from([1i64, 20])), "[ 1 20]", "integers have no digits after the point");
    assert_eq!(format!("{:.1}", Tensor::from([f64::NAN, 1.0, f64::INFINITY])), "[nan 1.0 inf]");
    assert_eq!(format!("{:.1?}", Tensor::from([1.0])), "Tensor([1.0], shape [1], f64)");
}

#[test]
fn options_of_printing() {
    let defaults = PrintOptions::default();
    let prints =
        |x: &Tensor, options: PrintOptions, expected: &str| assert_eq!(x.display(options).to_string(), expected);
    let x = Tensor::from([1.0 / 3.0, 2.0]);
    prints(&x, defaults, &x.to_string());
    prints(&x, PrintOptions { precision: 8, ..defaults }, "[0.33333333 2.        ]");
    prints(&x, PrintOptions { precision: 2, ..defaults }, "[0.33 2.  ]");
    let wide = Tensor::from([1e-5, 1.0]);
    prints(&wide, PrintOptions { sci_mode: Some(false), ..defaults }, "[0. 1.]");
    prints(&x, PrintOptions { sci_mode: Some(true), precision: 2, ..defaults }, "[3.33e-01 2.00e+00]");
    let counts = Tensor::arange(0i64, 12, 1);
    prints(&counts, PrintOptions { threshold: 10, edgeitems: 2, ..defaults }, "[ 0  1 ... 10 11]");
    prints(&counts, PrintOptions { threshold: 10, edgeitems: 0, ..defaults }, "[...]");
    prints(&counts, PrintOptions { linewidth: 14, ..defaults }, "[ 0  1  2  3\n  4  5  6  7\n  8  9 10 11]");
    let long = Tensor::arange(0i64, 2000, 1).display(PrintOptions { threshold: usize::MAX, ..defaults }).to_string();
    assert!(!long.contains("...") && long.ends_with("1999]"));
    assert_eq!(format!("{:.3}", x.display(defaults)), "[0.333 2.000]", "the format string must have precedence");
}

#[test]
fn a_format_string_aligns_elements_and_adds_signs() {
    let x = Tensor::from([1i64, -20]);
    assert_eq!(format!("{x:<5}|"), "[1     -20  ]|");
    assert_eq!(format!("{x:^5}"), "[  1    -20 ]");
    assert_eq!(format!("{x:>5}"), format!("{x:5}"));
    assert_eq!(format!("{x:*^5}"), "[**1** *-20*]");
    assert_eq!(format!("{x:<}"), "[1   -20]", "all elements have one width");
    assert_eq!(format!("{x:+}"), "[ +1 -20]");
    assert_eq!(format!("{:+.1}", Tensor::from([1.5, -2.0, f64::NAN, f64::INFINITY])), "[+1.5 -2.0  nan +inf]");
    assert_eq!(format!("{:+.1e}", Tensor::from([1.5, -2.0])), "[+1.5e+00 -2.0e+00]");
    assert_eq!(format!("{:+}", Tensor::from([true])), "[true]");
    assert_eq!(format!("{:<8.1}|", Tensor::from(2.0f32)), "2.0     |");
    assert_eq!(format!("{:+}", Tensor::from(2.0f32).display(PrintOptions::default())), "+2.");
}

/// A tensor without elements may have axes of any length: only the edge items are printed, and nested vectors are
/// rejected.
#[test]
fn long_axes_without_elements() {
    let long = Tensor::zeros([1usize << 40, 0], DType::F32);
    assert_eq!(long.to_string(), "[[]\n []\n []\n ...\n []\n []\n []]");
    assert!(format!("{:?}", Tensor::zeros([1usize << 20, 1 << 20, 0], DType::F32)).len() < 1000);
    assert!(matches!(long.try_to_vec2::<f32>(), Err(Error::OutOfMemory { .. })));
    let cube = Tensor::zeros([1usize << 40, 0, 2], DType::F32);
    assert!(matches!(cube.try_to_vec3::<f32>(), Err(Error::OutOfMemory { .. })));
    assert_eq!(Tensor::zeros([2, 0], DType::F32).to_vec2::<f32>(), [[], []] as [[f32; 0]; 2]);
    let tiled = ops::tile(&long, [1 << 30, 1]).unwrap_err().to_string();
    assert!(tiled.contains("is too long when repeated 1073741824 times"), "{tiled}");
    let row = Tensor::zeros([1, 3], DType::F32);
    let joined = ops::concatenate(&[&row, &row.expand([1usize << 45, 3])], 0).unwrap_err().to_string();
    assert!(joined.starts_with("concatenate: out of memory: a buffer needs"), "{joined}");
}
