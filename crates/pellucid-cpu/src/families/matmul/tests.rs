use super::*;
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::formula;
use pellucid_ir::kernel::Kernel;

fn naive(a: (&Shape, &[f64]), b: (&Shape, &[f64]), out: &Shape) -> Vec<f64> {
    let (m, n, k) = (out[out.rank() - 2], out[out.rank() - 1], a.0[a.0.rank() - 1]);
    let matrix = |s: &Shape, batch: usize| {
        let (mut flat, mut at, mut step) = (batch, 0, s[s.rank() - 2] * s[s.rank() - 1]);
        for axis in (0..out.rank() - 2).rev() {
            let i = flat % out[axis];
            flat /= out[axis];
            if let Some(own) = (axis + s.rank()).checked_sub(out.rank()) {
                at += if s[own] == 1 { 0 } else { i * step };
                step *= s[own];
            }
        }
        at
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
        for (lie, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
            let (a, b) =
                (testing::Array::cast(x.clone(), lie, dtype, &a), testing::Array::cast(y.clone(), lie, dtype, &b));
            let c = testing::Array::new(z.clone(), dtype, lie);
            testing::run(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
            let wrap = |v: f64| if dtype == DType::I8 { v as i64 as i8 as f64 } else { v };
            let expected: Vec<f64> = expected.iter().map(|&v| wrap(v)).collect();
            assert_eq!(c.reals(), expected, "{x} {y} {lie:?} {dtype}");
        }
    }
}

#[test]
fn folding_a_batch_into_rows_and_threads_change_no_bit() {
    let (x, y) = (Shape::from([6, 50, 300]), Shape::from([300, 40]));
    let real = |n, seed| numbers(n, 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
    let (a, b) = (real(x.size(), 1), real(y.size(), 2));
    let of = |lie, threads| {
        with_threads(threads, || {
            let a = testing::Array::cast(x.clone(), lie, DType::F32, &a);
            let b = testing::Array::cast(y.clone(), TestLayout::Plain, DType::F32, &b);
            let c = testing::Array::new([6, 50, 40], DType::F32, lie);
            testing::run(Kernel::MatMul(MatMul::default()), &[&a, &b], &[&c]).unwrap();
            c.values::<f32>()
        })
    };
    let folded = of(TestLayout::Plain, 1);
    // Column-major batches cannot be folded.
    TestLayout::ALL.into_iter().for_each(|lie| assert_eq!(of(lie, 3), folded, "{lie:?}"));
}

#[test]
fn the_epilogue_reads_the_product_rounded_to_its_dtype() {
    let (x, y) = (Shape::from([2, 5, 8]), Shape::from([8, 6]));
    let (a, b, bias) = (numbers(x.size(), 60, 1), numbers(y.size(), 60, 2), numbers(6, 9, 3));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let program = formula!(|c, bias| (c + bias).relu()).uniform_program(dtype).unwrap().clone();
        let kernel = MatMul { epilogue: Some(program), params: Default::default() };
        for lie in TestLayout::ALL {
            let factors =
                [testing::Array::cast(x.clone(), lie, dtype, &a), testing::Array::cast(y.clone(), lie, dtype, &b)];
            let bias = testing::Array::cast([6], lie, dtype, &bias);
            let [plain, fused] = [(); 2].map(|()| testing::Array::new([2, 5, 6], dtype, lie));
            testing::run(Kernel::MatMul(MatMul::default()), &[&factors[0], &factors[1]], &[&plain]).unwrap();
            testing::run(Kernel::MatMul(kernel.clone()), &[&factors[0], &factors[1], &bias], &[&fused]).unwrap();
            let map = Map { program: kernel.epilogue.clone().unwrap(), params: Default::default() };
            testing::run(Kernel::Map(map), &[&plain, &bias], &[&plain]).unwrap();
            assert_eq!(fused.reals(), plain.reals(), "{dtype} {lie:?}");
        }
    }
}

/// What a kernel with an epilogue gives, beside the product and the map one after the other.
fn beside(
    program: &std::sync::Arc<pellucid_ir::formula::Program>,
    (x, y): (&testing::Array, &testing::Array),
    others: &[&testing::Array],
    (fused, apart): (&[&testing::Array], &[&testing::Array]),
    product: &testing::Array,
) {
    let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
    let inputs: Vec<&testing::Array> = [x, y].into_iter().chain(others.iter().copied()).collect();
    testing::run(Kernel::MatMul(kernel), &inputs, fused).unwrap();
    testing::run(Kernel::MatMul(MatMul::default()), &[x, y], &[product]).unwrap();
    let map = Map { program: program.clone(), params: Default::default() };
    let inputs: Vec<&testing::Array> = [product].into_iter().chain(others.iter().copied()).collect();
    testing::run(Kernel::Map(map), &inputs, apart).unwrap();
}

#[test]
fn an_epilogue_of_several_outputs_meets_the_product_part_by_part() {
    // Several blocks of the columns, of the depth and of the rows; a batch that folds and one that does not; vectors.
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
            let program = formula!(|c, row, column, one, whole| {
                let sum = c + row * column + one;
                (sum, sum.tanh() * whole, c)
            });
            let program = program.uniform_program(dtype).unwrap();
            for (lie, threads) in TestLayout::ALL.into_iter().zip([1, 3].into_iter().cycle()) {
                let of = |s: Shape, seed| testing::Array::cast(s.clone(), lie, dtype, &real(&s, seed));
                let (a, b) = (of(x.clone(), 1), of(y.clone(), 2));
                let others = [of([n].into(), 3), of([m, 1].into(), 4), of(Shape::scalar(), 5), of(z.clone(), 6)];
                let others = others.each_ref();
                let new = || [(); 3].map(|()| testing::Array::new(z.clone(), dtype, lie));
                let (fused, apart, product) = (new(), new(), testing::Array::new(z.clone(), dtype, lie));
                with_threads(threads, || {
                    let outputs = (&fused.each_ref()[..], &apart.each_ref()[..]);
                    beside(program, (&a, &b), &others, outputs, &product);
                });
                for (fused, apart) in fused.iter().zip(&apart) {
                    assert_eq!(fused.reals(), apart.reals(), "{x} {y} {lie:?} {dtype}");
                }
            }
        }
    }
}

#[test]
fn an_epilogue_writes_where_it_reads_and_over_a_factor() {
    let shape = Shape::from([600, 520]);
    let real = |s: &Shape, seed| numbers(s.size(), 1000, seed).into_iter().map(|v| v / 777.0).collect::<Vec<f64>>();
    let of = |s: &Shape, seed| testing::Array::cast(s.clone(), TestLayout::Plain, DType::F32, &real(s, seed));
    let program = formula!(|g, p, m| {
        let m = m * 0.9 + g;
        (p - m * 0.1, m)
    });
    let program = program.uniform_program(DType::F32).unwrap();
    let (x, y) = (of(&[600, 30].into(), 1), of(&[30, 520].into(), 2));
    let [[p, m], [q, n]] = [(); 2].map(|()| [of(&shape, 3), of(&shape, 4)]);
    let product = testing::Array::new(shape.clone(), DType::F32, TestLayout::Plain);
    let kernel = MatMul { epilogue: Some(program.clone()), params: Default::default() };
    testing::run(Kernel::MatMul(kernel), &[&x, &y, &p, &m], &[&p, &m]).unwrap();
    testing::run(Kernel::MatMul(MatMul::default()), &[&x, &y], &[&product]).unwrap();
    let map = Map { program: program.clone(), params: Default::default() };
    testing::run(Kernel::Map(map), &[&product, &q, &n], &[&q, &n]).unwrap();
    assert_eq!((p.reals(), m.reals()), (q.reals(), n.reals()));

    // x ← x·w + x: the factor is whole until the product is.
    let square = Shape::from([300, 300]);
    let (x, w, once) = (of(&square, 5), of(&square, 6), of(&square, 5));
    let program = formula!(|c, x| c + x).uniform_program(DType::F32).unwrap().clone();
    let new = testing::Array::new(square, DType::F32, TestLayout::Plain);
    let kernel = Kernel::MatMul(MatMul { epilogue: Some(program), params: Default::default() });
    testing::run(kernel.clone(), &[&once, &w, &once], &[&new]).unwrap();
    testing::run(kernel, &[&x, &w, &x], &[&x]).unwrap();
    assert_eq!(x.reals(), new.reals());
}

#[test]
fn what_does_not_fit_is_refused() {
    let of = |shape: &[usize], dtype| {
        testing::Array::cast(shape, TestLayout::Plain, dtype, &vec![1.0; shape.iter().product()])
    };
    let go = |a: &testing::Array, b: &testing::Array, c: &testing::Array| {
        testing::run(Kernel::MatMul(MatMul::default()), &[a, b], &[c])
    };
    let (a, b, c) = (of(&[2, 3], DType::F32), of(&[3, 2], DType::F32), of(&[2, 2], DType::F32));
    assert!(matches!(go(&a, &a, &c), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(go(&a, &b, &b), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(go(&a, &of(&[3], DType::F32), &c), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(go(&a, &of(&[3, 2], DType::F64), &c), Err(Error::DTypeMismatch { .. })));
    assert!(matches!(go(&a, &b, &of(&[2, 2], DType::F64)), Err(Error::DTypeMismatch { .. })));
    let (a, b, c) = (of(&[2, 3], DType::Bool), of(&[3, 2], DType::Bool), of(&[2, 2], DType::Bool));
    assert!(matches!(go(&a, &b, &c), Err(Error::DTypeMismatch { .. })));
}
