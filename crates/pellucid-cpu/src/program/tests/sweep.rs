//! Sweeps of `Map`, `Reduce`, `Row` and `Copy` over all small shapes, and over lengths near the lengths of vectors,
//! blocks and tiles.

use super::*;
use pellucid_ir::kernel::ReduceOp;
use std::sync::Arc;

/// Lengths near the lengths of vectors of all widths, of the blocks of loops and of tiles.
const LONG: [usize; 15] = [31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025];

/// Returns all small matrix shapes, and shapes of a long and a short axis in both orders.
fn matrix_shapes() -> impl Iterator<Item = [usize; 2]> {
    let small = (1..=20).flat_map(|n| (1..=20).map(move |m| [n, m]));
    let long = LONG.into_iter().flat_map(|n| [1, 2, 3, 17].into_iter().flat_map(move |m| [[n, m], [m, n]]));
    small.chain(long)
}

/// Runs `f` with 1, 2 and 4 threads if the shape has more than 8192 elements, otherwise with 2.
fn for_each_sweep_thread_count(shape: &[usize], mut f: impl FnMut(usize) + Send) {
    let counts = if shape.iter().product::<usize>() > 8192 { &[1, 2, 4][..] } else { &[2] };
    counts.iter().for_each(|&threads| crate::with_threads(threads, || f(threads)));
}

/// Returns a random array, contiguous in half of the cases.
fn random_array(rng: &mut Rng, shape: &[usize], dtype: DType, stretch: bool) -> TestArray {
    if rng.flip() { TestArray::contiguous(rng, shape, dtype) } else { TestArray::random(rng, shape, dtype, stretch) }
}

/// Returns the program of the single instruction x∘y for a single dtype.
fn binary_program(dtype: DType, op: Binary) -> Arc<Program> {
    let mut p = ProgramBuilder::new();
    let (x, y) = (p.x(dtype), p.x(dtype));
    let z = p.binary(op, dtype.compute(), x, y);
    let compute = if op.gives_mask() { Compute::Mask } else { dtype.compute() };
    p.build(&[(z, compute, if op.gives_mask() { DType::Bool } else { dtype }, false)]).into()
}

#[test]
fn maps_match_the_reference() {
    let rng = &mut Rng(21);
    for shape in matrix_shapes() {
        for program in [0, 1, 2] {
            let dtype = |rng: &mut Rng| DType::ALL[rng.below(DType::ALL.len())];
            let (a, b, out) = (dtype(rng), dtype(rng), dtype(rng));
            let program = match program {
                0 => maps::mixed(a, b, out),
                1 => binary_program(a, if a == DType::Bool { Binary::Xor } else { Binary::Mul }),
                _ => binary_program(a, Binary::Lt),
            };
            let inputs: Vec<TestArray> =
                program.inputs.iter().map(|i| random_array(rng, &shape, i.storage, true)).collect();
            let outputs: Vec<TestArray> =
                program.outputs.iter().map(|o| random_array(rng, &shape, o.storage, false)).collect();
            let params = [rng.value()].into();
            let context = format!("{shape:?} {:?}\n{program}", inputs.iter().map(|i| &i.layout).collect::<Vec<_>>());
            for_each_sweep_thread_count(&shape, |_| {
                let (mut inputs, mut outputs) = (inputs.clone(), outputs.clone());
                maps::check_map(&program, &params, &mut inputs, &mut outputs, &shape, &context);
            });
        }
    }
}

/// Returns programs of one instruction: x∘y, x∘k, k∘x and x∘x, where k is a parameter, and functions of x.
fn programs_in_place(dtype: DType) -> Vec<Arc<Program>> {
    let compute = dtype.compute();
    let ops = match compute {
        Compute::Mask => vec![Binary::Xor],
        c if c.is_float() => vec![Binary::Add, Binary::Sub, Binary::Mul, Binary::Div],
        _ => vec![Binary::Add, Binary::Sub, Binary::Mul],
    };
    let mut programs = Vec::new();
    for op in ops {
        programs.push(binary_program(dtype, op));
        for operands in 0..3 {
            let mut p = ProgramBuilder::new();
            let x = p.x(dtype);
            let k = if operands == 2 { x } else { p.uniform(UniformSource::Param(0), compute) };
            let z = if operands == 0 { p.binary(op, compute, x, k) } else { p.binary(op, compute, k, x) };
            programs.push(p.build(&[(z, compute, dtype, false)]).into());
        }
    }
    let functions = if compute.is_float() { &[Unary::Neg, Unary::Sqrt, Unary::Abs, Unary::Floor][..] } else { &[] };
    for &function in functions {
        let mut p = ProgramBuilder::new();
        let x = p.x(dtype);
        let z = p.unary(function, compute, x);
        programs.push(p.build(&[(z, compute, dtype, false)]).into());
    }
    programs
}

#[test]
fn maps_in_place_match_the_reference() {
    let rng = &mut Rng(22);
    for n in (1..=40).chain(LONG).chain([9000]) {
        for dtype in DType::ALL {
            for program in programs_in_place(dtype) {
                let params: pellucid_ir::kernel::Params = [rng.value()].into();
                for own in 0..program.inputs.len() {
                    let x: Vec<TestArray> =
                        program.inputs.iter().map(|_| TestArray::contiguous(rng, &[n], dtype)).collect();
                    let expected = naive::map(&program, &params, &x.iter().collect::<Vec<_>>(), &[n]).remove(0);
                    let kernel = pellucid_ir::kernel::Map { program: program.clone(), params: params.clone() };
                    let operands: Vec<Operand<'_>> = x.iter().map(TestArray::shared).collect();
                    crate::program::map::run_map(&kernel, &operands, &[x[own].shared()]).unwrap();
                    assert_same(&x[own].bits(), &expected, dtype, &format!("{n} {dtype} in place of {own}\n{program}"));
                }
            }
        }
    }
}

#[test]
fn reductions_match_the_reference() {
    use ReduceOp::*;
    let rng = &mut Rng(23);
    for shape in matrix_shapes() {
        for axes in [&[0][..], &[1], &[0, 1]] {
            let dtype = DType::ALL[rng.below(DType::ALL.len())];
            let op = [Sum, Prod, Max, Min, ArgMax, ArgMin][rng.below(6)];
            let op = if dtype == DType::Bool && rng.flip() { [Any, All][rng.below(2)] } else { op };
            let output = match op {
                ArgMax | ArgMin => DType::I64,
                Sum | Prod if dtype.compute() == Compute::I32 || dtype == DType::Bool => DType::I64,
                _ => dtype,
            };
            let kernel = reductions::kernel(op, axes, reductions::identity(dtype), output);
            reductions::check_reduction(rng, &kernel, &shape, axes);
            let dot = reductions::kernel(Sum, axes, reductions::product(), DType::F32);
            reductions::check_reduction(rng, &dot, &shape, axes);
        }
    }
}

#[test]
fn row_programs_match_the_reference() {
    let rng = &mut Rng(24);
    let programs = [rows::softmax, || rows::layer_norm(DType::F32), || rows::layer_norm(DType::F16), rows::products];
    let programs = programs.map(|program| Arc::new(program()));
    for shape in matrix_shapes() {
        for axes in [&[0][..], &[1], &[0, 1]] {
            let program = programs[rng.below(programs.len())].clone();
            let contiguous = rng.flip();
            rows::check_row_program(rng, &program, &shape, axes, |rng, shape, dtype, stretch| match contiguous {
                true => TestArray::contiguous(rng, shape, dtype),
                false => TestArray::random(rng, shape, dtype, stretch),
            });
        }
    }
}

#[test]
fn copies_match_the_reference() {
    let rng = &mut Rng(25);
    let cubes = [[3, 5, 7], [2, 33, 17], [4, 16, 16], [1, 70, 65]].map(|s| s.to_vec());
    for shape in matrix_shapes().map(|s| s.to_vec()).chain(cubes) {
        let (from, to) = (DType::ALL[rng.below(10)], DType::ALL[rng.below(10)]);
        for (from, to) in [(from, from), (from, to)] {
            let x = random_array(rng, &shape, from, true);
            let y = random_array(rng, &shape, to, false);
            let cast = |bits| match from == to {
                true => bits,
                false => naive::store(naive::convert(bits, from, from.compute()), from.compute(), to),
            };
            let expected: Vec<u64> = (0..y.layout.shape().size()).map(|i| cast(x.element_bits(&shape, i))).collect();
            let context = format!("{shape:?} {from} {:?} to {to} {:?}", x.layout, y.layout);
            for_each_sweep_thread_count(&shape, |_| {
                let mut y = y.clone();
                crate::program::copy(&x.shared(), &y.operand()).unwrap();
                assert_same(&y.bits(), &expected, to, &context);
            });
        }
    }
}
