use super::*;
use crate::program::reduce::run_reduce;
use pellucid_ir::kernel::{AxisSet, Params, Reduce, ReduceOp};
use std::sync::Arc;

/// Returns the program that outputs its input x.
pub(crate) fn identity(dtype: DType) -> Program {
    let mut p = ProgramBuilder::new();
    let x = p.x(dtype);
    p.build(&[(x, dtype.compute(), dtype, false)])
}

/// Returns the program x·y + x.
pub(crate) fn product() -> Program {
    let c = Compute::F32;
    let mut p = ProgramBuilder::new();
    let (x, y) = (p.x(DType::F32), p.x(DType::F32));
    let t = p.binary(Binary::Mul, c, x, y);
    let t = p.binary(Binary::Add, c, t, x);
    p.build(&[(t, c, DType::F32, false)])
}

/// Returns the finishing program k·x.
fn scaled(compute: Compute, out: DType) -> Program {
    let mut p = ProgramBuilder::new();
    let x = p.x(compute.storage());
    let k = p.uniform(UniformSource::Param(0), compute);
    let y = p.binary(Binary::Mul, compute, x, k);
    p.build(&[(y, compute, out, false)])
}

/// Returns the expected bits of the reduction, in logical order of the kept axes.
fn expected(kernel: &Reduce, inputs: &[&TestArray], shape: &[usize], axes: &[usize]) -> Vec<u64> {
    let values = naive::map(&kernel.program, &kernel.params, inputs, shape).remove(0);
    let stored = &kernel.program.outputs[0];
    let compute = stored.compute;
    let finished = kernel.finish.as_ref().map_or(kernel.output.compute(), |f| f.inputs[0].compute);
    let adds = matches!(kernel.op, ReduceOp::Sum | ReduceOp::Prod);
    let wide = match (compute, finished) {
        (Compute::Mask, Compute::Mask) if adds => Compute::I32,
        (Compute::Mask | Compute::I32, wider) if adds && wider != Compute::I32 => wider,
        _ => compute,
    };
    let rows: usize = (0..shape.len()).filter(|a| !axes.contains(a)).map(|a| shape[a]).product();
    let one = |r: usize| {
        let row: Vec<u64> = naive::row_elements(shape, axes, r).iter().map(|&p| values[p]).collect();
        let loaded: Vec<u64> = row.iter().map(|&v| naive::convert(v, stored.storage, wide)).collect();
        let (result, ty) = match kernel.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let number = |v: &u64| naive::decode(*v, wide.storage()).to_f64();
                let largest = kernel.op == ReduceOp::ArgMax;
                let mut best = 0;
                for (i, v) in loaded.iter().enumerate() {
                    let (v, b) = (number(v), number(&loaded[best]));
                    if !b.is_nan() && (v.is_nan() || if largest { v > b } else { v < b }) {
                        best = i;
                    }
                }
                (best as u64, Compute::I64)
            }
            op => {
                let (primitive, identity) = naive::monoid(op, wide);
                (naive::fold(primitive, identity, wide, &loaded), wide)
            }
        };
        match &kernel.finish {
            None => naive::store(result, ty, kernel.output),
            Some(f) => {
                let bits = naive::interpret(f, &kernel.finish_params, &[vec![result]], 1)[0][0];
                let out = &f.outputs[0];
                naive::store(naive::convert(bits, out.storage, out.compute), out.compute, kernel.output)
            }
        }
    };
    (0..rows).map(one).collect()
}

/// Asserts that `kernel` yields the same results as the scalar reference on random arrays.
pub(crate) fn check_reduction(rng: &mut Rng, kernel: &Reduce, shape: &[usize], axes: &[usize]) {
    let inputs: Vec<TestArray> = kernel
        .program
        .inputs
        .iter()
        .map(|i| TestArray::random(rng, shape, i.storage, allows_broadcast(shape)))
        .collect();
    check_reduction_of(&inputs, rng, kernel, shape, axes);
}

/// Asserts that `kernel` yields the same results as the scalar reference on these arrays.
fn check_reduction_of(inputs: &[TestArray], rng: &mut Rng, kernel: &Reduce, shape: &[usize], axes: &[usize]) {
    let expected = expected(kernel, &inputs.iter().collect::<Vec<_>>(), shape, axes);
    let kept: Vec<usize> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect();
    let out = TestArray::random(rng, &kept, kernel.output, false);
    for_each_thread_count(|threads| {
        let mut out = out.clone();
        let from: Vec<_> = inputs.iter().map(TestArray::shared).collect();
        run_reduce(kernel, &from, &[out.operand()]).unwrap();
        let context = format!(
            "{:?} of {shape:?} over {axes:?} as {} with {threads} threads, {:?}",
            kernel.op,
            kernel.output,
            inputs.iter().map(|i| &i.layout).collect::<Vec<_>>()
        );
        assert_same(&out.bits(), &expected, kernel.output, &context);
    });
}

/// Returns true if inputs of this shape may be broadcast. Inputs with three or more axes are never broadcast, so that
/// they are as large as the shape.
fn allows_broadcast(shape: &[usize]) -> bool {
    shape.len() < 3
}

/// Returns a reduction without a finishing program.
pub(crate) fn kernel(op: ReduceOp, axes: &[usize], program: Program, output: DType) -> Reduce {
    Reduce {
        op,
        axes: axes.iter().copied().collect::<AxisSet>(),
        program: Arc::new(program),
        params: Params::new(),
        finish: None,
        finish_params: Params::new(),
        output,
    }
}

/// Returns shapes with the axes to reduce.
fn cases() -> Vec<(Vec<usize>, Vec<usize>)> {
    vec![
        (vec![], vec![]),
        (vec![1], vec![0]),
        (vec![9], vec![0]),
        (vec![129], vec![0]),
        (vec![50_000], vec![0]),
        (vec![64, 10], vec![1]),
        (vec![64, 10], vec![0]),
        (vec![64, 10], vec![0, 1]),
        (vec![300, 200], vec![0]),
        (vec![300, 200], vec![1]),
        (vec![9000, 5], vec![0]),
        (vec![9000, 150], vec![0]),
        (vec![3, 5000], vec![1]),
        (vec![20, 7, 30], vec![1]),
        (vec![20, 7, 30], vec![0, 2]),
        (vec![8, 3, 6, 50], vec![0, 2]),
        (vec![8, 30, 6, 5], vec![1, 3]),
        (vec![4, 600], vec![0]),
        (vec![3, 4], vec![]),
        (vec![0, 4], vec![1]),
    ]
}

#[test]
fn sums_of_all_layouts_have_the_canonical_bits() {
    let rng = &mut Rng(9);
    for round in 0..3 {
        for (shape, axes) in cases() {
            check_reduction(rng, &kernel(ReduceOp::Sum, &axes, identity(DType::F32), DType::F32), &shape, &axes);
            if round < 2 {
                check_reduction(rng, &kernel(ReduceOp::Sum, &axes, product(), DType::F32), &shape, &axes);
                check_reduction(rng, &kernel(ReduceOp::Sum, &axes, identity(DType::F16), DType::BF16), &shape, &axes);
                check_reduction(rng, &kernel(ReduceOp::ArgMax, &axes, product(), DType::I64), &shape, &axes);
            }
        }
    }
}

/// Tests sequences whose parts have several chunks, and transposed inputs whose panels have few rows or are large.
#[test]
fn long_sequences_have_the_canonical_bits() {
    let rng = &mut Rng(13);
    for (op, output) in [(ReduceOp::Sum, DType::F32), (ReduceOp::ArgMax, DType::I64)] {
        for (shape, axes) in [(vec![700_003], vec![0]), (vec![2, 400_001], vec![1])] {
            let x = TestArray::contiguous(rng, &shape, DType::F32);
            check_reduction_of(&[x], rng, &kernel(op, &axes, identity(DType::F32), output), &shape, &axes);
        }
    }
    // Rows of entire blocks, and a last group of fewer rows than the others.
    let blocks = [[1, 9, 128], [3, 300, 256], [1, 513, 384], [2, 33, 4096]];
    for shape in [[1, 40, 9000], [3, 40, 9000], [2, 140, 9001]].into_iter().chain(blocks) {
        let [n, rows, columns] = shape;
        let mut x = TestArray::contiguous(rng, &[n, columns, rows], DType::F32);
        x.layout = x.layout.permute(&[0, 2, 1]);
        for axes in [vec![1, 2], vec![0, 1, 2]] {
            let kernel = kernel(ReduceOp::Sum, &axes, identity(DType::F32), DType::F32);
            check_reduction_of(std::slice::from_ref(&x), rng, &kernel, &shape, &axes);
        }
    }
    for (op, dtype) in [(ReduceOp::Max, DType::F64), (ReduceOp::Sum, DType::I64), (ReduceOp::All, DType::Bool)] {
        let mut x = TestArray::contiguous(rng, &[256, 150], dtype);
        x.layout = x.layout.permute(&[1, 0]);
        check_reduction_of(&[x], rng, &kernel(op, &[0, 1], identity(dtype), dtype), &[150, 256], &[0, 1]);
    }
}

#[test]
fn all_operations_and_dtypes_match_the_reference() {
    use ReduceOp::*;
    let rng = &mut Rng(10);
    for (shape, axes) in [(vec![6, 40], vec![1]), (vec![200, 6], vec![0]), (vec![3, 7, 130], vec![0, 2])] {
        for dtype in DType::ALL {
            for op in [Sum, Prod, Max, Min, ArgMax, ArgMin, Any, All] {
                let output = match op {
                    Any | All if dtype != DType::Bool => continue,
                    ArgMax | ArgMin => DType::I64,
                    Sum | Prod if dtype.compute() == Compute::I32 => DType::I64,
                    Sum | Prod if dtype == DType::Bool => [DType::I64, DType::F32][rng.below(2)],
                    _ => dtype,
                };
                check_reduction(rng, &kernel(op, &axes, identity(dtype), output), &shape, &axes);
            }
        }
    }
}

#[test]
fn integers_are_summed_in_the_wider_type() {
    let n = 3;
    let mut x = TestArray::zeros(n, Layout::contiguous([n].into()), DType::I32);
    x.fill(|| Scalar::Int(i32::MAX as i64));
    let mut y = TestArray::zeros(1, Layout::contiguous([1].into()), DType::I64);
    run_reduce(&kernel(ReduceOp::Sum, &[0], identity(DType::I32), DType::I64), &[x.operand()], &[y.operand()]).unwrap();
    assert_eq!(y.bits()[0] as i64, 3 * i32::MAX as i64);
}

#[test]
fn a_finishing_program_runs_on_every_result() {
    let rng = &mut Rng(11);
    for (shape, axes) in cases() {
        let mut mean = kernel(ReduceOp::Sum, &axes, product(), DType::F16);
        mean.finish = Some(Arc::new(scaled(Compute::F32, DType::F16)));
        mean.finish_params = [Scalar::Float(0.01)].into();
        check_reduction(rng, &mean, &shape, &axes);
        let mut position = kernel(ReduceOp::ArgMin, &axes, identity(DType::F32), DType::I32);
        position.finish = Some(Arc::new(scaled(Compute::I64, DType::I64)));
        position.finish_params = [Scalar::Int(2)].into();
        check_reduction(rng, &position, &shape, &axes);
    }
}

#[test]
fn empty_reductions_return_the_identity() {
    for (op, identity_of, expected) in [
        (ReduceOp::Sum, DType::F32, 0.0),
        (ReduceOp::Prod, DType::F32, 1.0),
        (ReduceOp::Any, DType::Bool, 0.0),
        (ReduceOp::All, DType::Bool, 1.0),
    ] {
        for (shape, axis) in [([3, 0], 1), ([0, 600], 0)] {
            let mut x = TestArray::zeros(0, Layout::contiguous(shape.into()), identity_of);
            let mut kept = shape;
            kept[axis] = 1;
            let mut y = TestArray::zeros(600, Layout::contiguous(kept.into()), identity_of);
            y.fill(|| Scalar::Int(7));
            run_reduce(&kernel(op, &[axis], identity(identity_of), identity_of), &[x.operand()], &[y.operand()])
                .unwrap();
            let values: Vec<f64> = y.bits().iter().map(|&b| naive::decode(b, identity_of).to_f64()).collect();
            assert_eq!(values, vec![expected; kept[0] * kept[1]], "{op:?}");
        }
    }
}

#[test]
fn arg_max_returns_the_first_nan_and_the_first_of_ties() {
    let mut x = TestArray::zeros(8, Layout::contiguous([2, 4].into()), DType::F32);
    for (i, v) in [1.0, 3.0, f32::NAN, f32::NAN, 3.0, 2.0, 3.0, 0.0].into_iter().enumerate() {
        x.write(i as isize, v.to_bits() as u64);
    }
    for (axis, expected) in [(1usize, vec![2u64, 0]), (0, vec![1, 0, 0, 0])] {
        let kept = if axis == 1 { [2, 1] } else { [1, 4] };
        let mut y = TestArray::zeros(8, Layout::contiguous(kept.into()), DType::I64);
        run_reduce(
            &kernel(ReduceOp::ArgMax, &[axis], identity(DType::F32), DType::I64),
            &[x.operand()],
            &[y.operand()],
        )
        .unwrap();
        assert_eq!(y.bits(), expected);
    }
}

#[test]
fn a_finishing_program_has_further_operands() {
    let rng = &mut Rng(29);
    let c = Compute::F32;
    // The finishing program computes s + k·r and r.
    let mut p = ProgramBuilder::new();
    let (r, s) = (p.x(DType::F32), p.x(DType::F32));
    let k = p.uniform(UniformSource::Param(0), c);
    let t = p.binary(Binary::Mul, c, r, k);
    let t = p.binary(Binary::Add, c, s, t);
    let finish = Arc::new(p.build(&[(t, c, DType::F32, false), (r, c, DType::F32, false)]));
    for (shape, axes) in [(vec![3, 50], vec![1]), (vec![300, 4], vec![0]), (vec![2, 70, 3], vec![0, 2])] {
        let plain = kernel(ReduceOp::Sum, &axes, identity(DType::F32), DType::F32);
        let mut wide = plain.clone();
        wide.finish = Some(finish.clone());
        wide.finish_params = [Scalar::Float(0.25)].into_iter().collect();
        let x = TestArray::random(rng, &shape, DType::F32, false);
        let result: Vec<usize> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect();
        let [mut state, mut sum, mut stored] = [(); 3].map(|()| TestArray::random(rng, &result, DType::F32, false));
        run_reduce(&plain, &[x.shared()], &[sum.operand()]).unwrap();
        let expected = naive::interpret(&finish, &wide.finish_params, &[sum.bits(), state.bits()], sum.bits().len());
        // The update is in place.
        let updated = state.operand();
        run_reduce(&wide, &[x.shared(), updated], &[updated, stored.operand()]).unwrap();
        assert_eq!(state.bits(), expected[0], "{shape:?}");
        assert_eq!(stored.bits(), sum.bits(), "{shape:?}");
    }
}

/// Tests sums of (a − b)², |a − b| and ±k·w·(a − b) over pairs, with operands `[n, d, 1]`, `[d, m]` and `[n, 1, m]`.
#[test]
fn sums_over_pairs_have_the_canonical_bits() {
    let rng = &mut Rng(31);
    let shapes = [[3, 64, 40], [2, 7, 33], [5, 130, 17], [1, 300, 64], [2, 4096, 20], [4, 1, 50], [9, 5, 515]];
    for (dtype, shape) in [DType::F32, DType::F64].into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        let [n, d, m] = shape;
        let c = dtype.compute();
        for (kind, axis) in [(0, 1), (1, 1), (2, 2), (3, 0), (4, 0), (5, 2)] {
            let mut p = ProgramBuilder::new();
            let (a, b) = (p.x(dtype), p.x(dtype));
            let difference =
                if kind % 2 == 0 { p.binary(Binary::Sub, c, a, b) } else { p.binary(Binary::Sub, c, b, a) };
            let term = match kind {
                0 => p.binary(Binary::Mul, c, difference, difference),
                1 => p.unary(Unary::Abs, c, difference),
                _ => {
                    let w = p.x(dtype);
                    let k = p.uniform(UniformSource::Param(0), c);
                    let scaled = if kind == 5 { w } else { p.binary(Binary::Mul, c, k, w) };
                    let product = p.binary(Binary::Mul, c, scaled, difference);
                    if kind > 3 { p.unary(Unary::Neg, c, product) } else { product }
                }
            };
            let program = p.build(&[(term, c, dtype, false)]);
            let mut sum = kernel(ReduceOp::Sum, &[axis], program, dtype);
            sum.params = [Scalar::Float(1.75)].into_iter().collect();
            let layouts = [vec![n, d, 1], vec![d, m], vec![n, 1, m]];
            let operands = layouts.iter().take(sum.program.inputs.len());
            let inputs: Vec<TestArray> = operands.map(|shape| TestArray::contiguous(rng, shape, dtype)).collect();
            check_reduction_of(&inputs, rng, &sum, &shape, &[axis]);
        }
    }
}
