use super::*;
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::formula;
use pellucid_ir::kernel::Kernel;
use pellucid_simd::math::half::BF16;

/// Computes the elements of a product of shape `out` by the definition. Each factor is a shape and its elements.
fn naive(a: (&Shape, &[f64]), b: (&Shape, &[f64]), out: &Shape) -> Vec<f64> {
    let (m, n, k) = (out[out.rank() - 2], out[out.rank() - 1], a.0[a.0.rank() - 1]);
    let matrix = |s: &Shape, batch: usize| {
        let (mut flat, mut offset, mut stride) = (batch, 0, s[s.rank() - 2] * s[s.rank() - 1]);
        for axis in (0..out.rank() - 2).rev() {
            let i = flat % out[axis];
            flat /= out[axis];
            if let Some(own) = (axis + s.rank()).checked_sub(out.rank()) {
                offset += if s[own] == 1 { 0 } else { i * stride };
                stride *= s[own];
            }
        }
        offset
    };
    let mut c = vec![];
    for batch in 0..out[..out.rank() - 2].iter().product() {
        let (x, y) = (matrix(a.0, batch), matrix(b.0, batch));
        for i in 0..m * n {
            c.push((0..k).map(|l| a.1[x + i / n * k + l] * b.1[y + l * n + i % n]).sum());
        }
    }
    c
}

#[test]
fn batches_broadcast_in_every_layout_and_dtype() {
    for (x, y, z) in [
        (Shape::from([3, 4]), Shape::from([4, 5]), Shape::from([3, 5])),
        ([2, 3, 4].into(), [4, 5].into(), [2, 3, 5].into()),
        ([2, 1, 4].into(), [4, 5].into(), [2, 1, 5].into()),
        ([2, 3, 4].into(), [2, 4, 1].into(), [2, 3, 1].into()),
        ([6, 1, 3, 4].into(), [2, 4, 5].into(), [6, 2, 3, 5].into()),
        ([1, 3, 0].into(), [7, 0, 5].into(), [7, 3, 5].into()),
        ([0, 3, 4].into(), [4, 5].into(), [0, 3, 5].into()),
        ([40, 70].into(), [70, 90].into(), [40, 90].into()),
    ] {
        let (a, b) = (numbers(x.size(), 2, 1), numbers(y.size(), 2, 2));
        let expected = naive((&x, &a), (&y, &b), &z);
        for (layout, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
            let (a, b) = (
                testing::TestArray::cast(x.clone(), layout, dtype, &a),
                testing::TestArray::cast(y.clone(), layout, dtype, &b),
            );
            let c = testing::TestArray::new(z.clone(), dtype, layout);
            testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
            let wrap = |v: f64| if dtype == DType::I8 { v as i64 as i8 as f64 } else { v };
            let expected: Vec<f64> = expected.iter().map(|&v| wrap(v)).collect();
            assert_eq!(c.reals(), expected, "{x} {y} {layout:?} {dtype}");
        }
    }
}

#[test]
fn folding_a_batch_into_rows_and_threads_change_no_bit() {
    let (x, y) = (Shape::from([6, 50, 300]), Shape::from([300, 40]));
    let real = |n, seed| numbers(n, 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
    let (a, b) = (real(x.size(), 1), real(y.size(), 2));
    let run = |layout, threads| {
        with_threads(threads, || {
            let a = testing::TestArray::cast(x.clone(), layout, DType::F32, &a);
            let b = testing::TestArray::cast(y.clone(), TestLayout::Plain, DType::F32, &b);
            let c = testing::TestArray::new([6, 50, 40], DType::F32, layout);
            testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
            c.values::<f32>()
        })
    };
    let folded = run(TestLayout::Plain, 1);
    // The batch axis of column-major operands cannot be merged into the rows, so these batches are computed one product
    // after the other.
    TestLayout::ALL.into_iter().for_each(|layout| assert_eq!(run(layout, 3), folded, "{layout:?}"));
}

#[test]
fn an_epilogue_reads_the_product_rounded_to_its_dtype() {
    let (x, y) = (Shape::from([2, 5, 8]), Shape::from([8, 6]));
    let (a, b, bias) = (numbers(x.size(), 60, 1), numbers(y.size(), 60, 2), numbers(6, 9, 3));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let program = formula!(|c, bias| (c + bias).relu()).uniform_program(dtype).unwrap().clone();
        let kernel = MatMul { epilogue: Some(program), params: Default::default() };
        for layout in TestLayout::ALL {
            let factors = [
                testing::TestArray::cast(x.clone(), layout, dtype, &a),
                testing::TestArray::cast(y.clone(), layout, dtype, &b),
            ];
            let bias = testing::TestArray::cast([6], layout, dtype, &bias);
            let [plain, fused] = [(); 2].map(|()| testing::TestArray::new([2, 5, 6], dtype, layout));
            testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&factors[0], &factors[1]], &[&plain]).unwrap();
            testing::run_kernel(Kernel::MatMul(kernel.clone()), &[&factors[0], &factors[1], &bias], &[&fused]).unwrap();
            let map = Map { program: kernel.epilogue.clone().unwrap(), params: Default::default() };
            testing::run_kernel(Kernel::Map(map), &[&plain, &bias], &[&plain]).unwrap();
            assert_eq!(fused.reals(), plain.reals(), "{dtype} {layout:?}");
        }
    }
}

/// Runs a product with an epilogue into `fused`, and the product and the map as separate kernels into `separate`.
fn run_fused_and_separate(
    program: &std::sync::Arc<pellucid_ir::formula::Program>,
    (x, y): (&testing::TestArray, &testing::TestArray),
    others: &[&testing::TestArray],
    (fused, separate): (&[&testing::TestArray], &[&testing::TestArray]),
    product: &testing::TestArray,
) {
    let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
    let inputs: Vec<&testing::TestArray> = [x, y].into_iter().chain(others.iter().copied()).collect();
    testing::run_kernel(Kernel::MatMul(kernel), &inputs, fused).unwrap();
    testing::run_kernel(Kernel::MatMul(MatMul::default()), &[x, y], &[product]).unwrap();
    let map = Map { program: program.clone(), params: Default::default() };
    let inputs: Vec<&testing::TestArray> = [product].into_iter().chain(others.iter().copied()).collect();
    testing::run_kernel(Kernel::Map(map), &inputs, separate).unwrap();
}

/// Products of small integers wrap to their dtype, or are read by an epilogue as the exact sums in `i32`.
#[test]
fn products_of_small_integers_are_exact() {
    let sums = formula!(|sum| (sum, sum * 2)).uniform_program(DType::I32).unwrap().clone();
    for (x, y, z) in [
        (Shape::from([3, 40, 70]), Shape::from([70, 90]), Shape::from([3, 40, 90])),
        ([2, 5, 7].into(), [2, 7, 33].into(), [2, 5, 33].into()),
        ([1, 9].into(), [9, 20].into(), [1, 20].into()),
        ([300, 1100].into(), [1100, 2].into(), [300, 2].into()),
    ] {
        for (dtype, shift) in [(DType::I8, 0.0), (DType::U8, 128.0), (DType::I16, 0.0)] {
            let values = |s: &Shape, seed| numbers(s.size(), 127, seed).into_iter().map(|v| v + shift).collect();
            let (a, b): (Vec<f64>, Vec<f64>) = (values(&x, 1), values(&y, 2));
            let expected = naive((&x, &a), (&y, &b), &z);
            for layout in TestLayout::ALL {
                let cast = |shape: &Shape, values| testing::TestArray::cast(shape.clone(), layout, dtype, values);
                let (a, b) = (cast(&x, &a), cast(&y, &b));
                let [sum, double] = [(); 2].map(|()| testing::TestArray::new(z.clone(), DType::I32, layout));
                let kernel = MatMul { epilogue: Some(sums.clone()), params: Default::default() };
                testing::run_kernel(Kernel::MatMul(kernel), &[&a, &b], &[&sum, &double]).unwrap();
                assert_eq!(sum.reals(), expected, "{x} {y} {layout:?} {dtype}");
                assert!(double.reals().iter().zip(&expected).all(|(double, sum)| *double == 2.0 * sum));
                let wrapped = testing::TestArray::new(z.clone(), dtype, layout);
                testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&wrapped]).unwrap();
                let wrap = |v: &f64| match dtype {
                    DType::I8 => f64::from(*v as i64 as i8),
                    DType::U8 => f64::from(*v as i64 as u8),
                    _ => f64::from(*v as i64 as i16),
                };
                assert_eq!(wrapped.reals(), expected.iter().map(wrap).collect::<Vec<f64>>(), "{x} {y} {dtype}");
            }
        }
    }
}

#[test]
fn an_epilogue_with_several_outputs_equals_a_separate_map() {
    // The shapes cover several blocks of columns, of k and of rows; a batch axis that is merged into the rows and one
    // that is not; and vectors.
    for (x, y, z) in [
        (Shape::from([40, 300]), Shape::from([300, 1100]), Shape::from([40, 1100])),
        ([700, 20].into(), [20, 530].into(), [700, 530].into()),
        ([3, 30, 20].into(), [20, 70].into(), [3, 30, 70].into()),
        ([2, 3, 30, 20].into(), [3, 20, 7].into(), [2, 3, 30, 7].into()),
        ([1, 90].into(), [90, 50].into(), [1, 50].into()),
        ([50, 90].into(), [90, 1].into(), [50, 1].into()),
        ([5, 0].into(), [0, 6].into(), [5, 6].into()),
    ] {
        let real = |s: &Shape, seed| numbers(s.size(), 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
        let (m, n) = (z[z.rank() - 2], z[z.rank() - 1]);
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let program = formula!(|c, row, column, scalar, full| {
                let sum = c + row * column + scalar;
                (sum, sum.tanh() * full, c)
            });
            let program = program.uniform_program(dtype).unwrap();
            for (layout, threads) in TestLayout::ALL.into_iter().zip([1, 3].into_iter().cycle()) {
                let array = |s: Shape, seed| testing::TestArray::cast(s.clone(), layout, dtype, &real(&s, seed));
                let (a, b) = (array(x.clone(), 1), array(y.clone(), 2));
                let others = [([n].into(), 3), ([m, 1].into(), 4), (Shape::scalar(), 5), (z.clone(), 6)];
                let others = others.map(|(shape, seed)| array(shape, seed));
                let others = others.each_ref();
                let new = || [(); 3].map(|()| testing::TestArray::new(z.clone(), dtype, layout));
                let (fused, separate, product) = (new(), new(), testing::TestArray::new(z.clone(), dtype, layout));
                with_threads(threads, || {
                    let outputs = (&fused.each_ref()[..], &separate.each_ref()[..]);
                    run_fused_and_separate(program, (&a, &b), &others, outputs, &product);
                });
                for (fused, separate) in fused.iter().zip(&separate) {
                    assert_eq!(fused.reals(), separate.reals(), "{x} {y} {layout:?} {dtype}");
                }
            }
        }
    }
}

#[test]
fn an_epilogue_may_write_in_place() {
    let shape = Shape::from([600, 520]);
    let real = |s: &Shape, seed| numbers(s.size(), 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
    let array = |s: &Shape, seed| testing::TestArray::cast(s.clone(), TestLayout::Plain, DType::F32, &real(s, seed));
    let program = formula!(|g, p, m| {
        let m = m * 0.9 + g;
        (p - m * 0.1, m)
    });
    let program = program.uniform_program(DType::F32).unwrap();
    let (x, y) = (array(&[600, 30].into(), 1), array(&[30, 520].into(), 2));
    let [[p, m], [q, n]] = [(); 2].map(|()| [array(&shape, 3), array(&shape, 4)]);
    let product = testing::TestArray::new(shape.clone(), DType::F32, TestLayout::Plain);
    let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
    testing::run_kernel(Kernel::MatMul(kernel), &[&x, &y, &p, &m], &[&p, &m]).unwrap();
    testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&x, &y], &[&product]).unwrap();
    let map = Map { program: program.clone(), params: Default::default() };
    testing::run_kernel(Kernel::Map(map), &[&product, &q, &n], &[&q, &n]).unwrap();
    assert_eq!((p.reals(), m.reals()), (q.reals(), n.reals()));

    // x ← x·w + x would overwrite the factor before the product is complete.
    let (x, w) = (array(&[300, 300].into(), 5), array(&[300, 300].into(), 6));
    let program = formula!(|c, x| c + x).uniform_program(DType::F32).unwrap().clone();
    let kernel = Kernel::MatMul(MatMul { epilogue: Some(program), params: Default::default() });
    let error = testing::run_kernel(kernel, &[&x, &w, &x], &[&x]).unwrap_err();
    assert!(error.to_string().contains("overlaps another operand"), "{error}");
}

#[test]
fn wrong_shapes_and_dtypes_are_errors() {
    let array = |shape: &[usize], dtype| {
        testing::TestArray::cast(shape, TestLayout::Plain, dtype, &vec![1.0; shape.iter().product()])
    };
    let multiply = |a: &testing::TestArray, b: &testing::TestArray, c: &testing::TestArray| {
        testing::run_kernel(Kernel::MatMul(MatMul::default()), &[a, b], &[c])
    };
    let (a, b, c) = (array(&[2, 3], DType::F32), array(&[3, 2], DType::F32), array(&[2, 2], DType::F32));
    assert!(matches!(multiply(&a, &a, &c), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(multiply(&a, &b, &b), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(multiply(&a, &array(&[3], DType::F32), &c), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(multiply(&a, &array(&[3, 2], DType::F64), &c), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(multiply(&a, &b, &array(&[2, 2], DType::F64)), Err(Error::DTypeMismatch { .. })));
    let (a, b, c) = (array(&[2, 3], DType::Bool), array(&[3, 2], DType::Bool), array(&[2, 2], DType::Bool));
    assert!(matches!(multiply(&a, &b, &c), Err(Error::DTypeMismatch { .. })));
}

/// A product of `bf16` factors has the bits of the product of the same factors as `f32`, rounded once. Factors with
/// subnormal products are included.
#[test]
fn bf16_products_are_the_rounded_products_of_f32_factors() {
    let real = |s: &Shape, seed, scale: f64| -> Vec<f64> {
        let values = numbers(s.size(), 1000, seed).into_iter();
        values.map(|v| pellucid_ir::bf16::from_f64(v / 777.0 * scale).to_f64()).collect()
    };
    for (x, y, z) in [
        (Shape::from([40, 301]), Shape::from([301, 90]), Shape::from([40, 90])),
        ([2, 3].into(), [3, 2].into(), [2, 2].into()),
        ([2, 1, 33, 20].into(), [3, 20, 17].into(), [2, 3, 33, 17].into()),
        ([3, 30, 1].into(), [1, 70].into(), [3, 30, 70].into()),
        ([1, 90].into(), [90, 50].into(), [1, 50].into()),
        ([600, 20].into(), [20, 1030].into(), [600, 1030].into()),
    ] {
        for (scales, (layout, threads)) in
            [[1.0, 1.0], [1e-19, 1e-20], [1e-39, 1.0]].into_iter().zip(TestLayout::ALL.into_iter().zip([1, 3, 2]))
        {
            let (a, b) = (real(&x, 1, scales[0]), real(&y, 2, scales[1]));
            let product = |dtype: DType| {
                let a = testing::TestArray::cast(x.clone(), layout, dtype, &a);
                let b = testing::TestArray::cast(y.clone(), layout, dtype, &b);
                let c = testing::TestArray::new(z.clone(), dtype, layout);
                with_threads(threads, || testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]))
                    .unwrap();
                c.reals()
            };
            let rounded: Vec<f64> =
                product(DType::F32).iter().map(|&v| BF16::from_f32(v as f32).to_f32() as f64).collect();
            let found = product(DType::BF16);
            if uses_amx(&x, &y) {
                let largest = rounded.iter().fold(0.0f64, |max, v| max.max(v.abs()));
                let is_close = |(&found, &v): (&f64, &f64)| (found - v).abs() <= v.abs() / 128.0 + largest * 1e-5;
                assert!(found.iter().zip(&rounded).all(is_close), "{x} {y} {layout:?} {scales:?}");
            } else {
                assert_eq!(found, rounded, "{x} {y} {layout:?} {scales:?}");
            }
        }
    }
}

/// Returns true if products of `bf16` matrices of these shapes use AMX, provided that they use pairs.
fn uses_amx(x: &Shape, y: &Shape) -> bool {
    let (m, k, n) = (x[x.rank() - 2], x[x.rank() - 1], y[y.rank() - 1]);
    pair_isa(Isa::best(), (m, n, k)) == Isa::Amx
}

/// The layouts, the number of threads and the other products of a batch change no bit of a `bf16` product.
#[test]
fn bf16_products_depend_on_shapes_and_values_only() {
    for (x, y, z) in [
        (Shape::from([40, 301]), Shape::from([301, 90]), Shape::from([40, 90])),
        ([16, 64].into(), [64, 16].into(), [16, 16].into()),
        ([15, 64].into(), [64, 16].into(), [15, 16].into()),
        ([6, 20, 70].into(), [70, 33].into(), [6, 20, 33].into()),
        ([2, 1, 33, 100].into(), [3, 100, 17].into(), [2, 3, 33, 17].into()),
        ([3, 10, 100].into(), [100, 33].into(), [3, 10, 33].into()),
    ] {
        let [a, b] = [&x, &y].map(|s| numbers(s.size(), 1000, 5).iter().map(|v| v / 777.0).collect::<Vec<f64>>());
        let product = |x: &Shape, a: &[f64], z: &Shape, layout: TestLayout, threads: usize| {
            let a = testing::TestArray::cast(x.clone(), layout, DType::BF16, a);
            let b = testing::TestArray::cast(y.clone(), layout, DType::BF16, &b);
            let c = testing::TestArray::new(z.clone(), DType::BF16, layout);
            with_threads(threads, || testing::run_kernel(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c])).unwrap();
            c.reals()
        };
        let found = product(&x, &a, &z, TestLayout::Plain, 1);
        for layout in TestLayout::ALL {
            assert_eq!(product(&x, &a, &z, layout, 3), found, "{x} {y} {layout:?}");
        }
        if x.rank() == 3 {
            let [one, part] = [&x, &z].map(|s| Shape::from(&s[1..]));
            for (i, (a, found)) in a.chunks(one.size()).zip(found.chunks(part.size())).enumerate() {
                assert_eq!(product(&one, a, &part, TestLayout::Plain, 2), found, "{x} {y}, product {i}");
            }
        }
    }
}
