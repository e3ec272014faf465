//! `Map`, `Reduce`, `Row` and `Copy` over all small shapes, and those around vectors, blocks and tiles.

use super::*;
use pellucid_ir::kernel::ReduceOp;
use std::sync::Arc;

/// Lengths around vectors of all widths, around blocks of loops, and around tiles.
const LONG: [usize; 15] = [31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025];

/// All small shapes of two axes, and long ones with a short axis on either side.
fn planes() -> impl Iterator<Item = [usize; 2]> {
    let small = (1..=20).flat_map(|n| (1..=20).map(move |m| [n, m]));
    let long = LONG.into_iter().flat_map(|n| [1, 2, 3, 17].into_iter().flat_map(move |m| [[n, m], [m, n]]));
    small.chain(long)
}

/// Runs `f` on 1, 2 and 4 threads where the shape is worth several, else on one.
fn on_threads(shape: &[usize], mut f: impl FnMut(usize) + Send) {
    let counts = if shape.iter().product::<usize>() > 8192 { &[1, 2, 4][..] } else { &[2] };
    counts.iter().for_each(|&threads| crate::with_threads(threads, || f(threads)));
}

/// An array that is dense half of the time.
fn array(rng: &mut Rng, shape: &[usize], dtype: DType, stretch: bool) -> Array {
    if rng.flip() { Array::contiguous(rng, shape, dtype) } else { Array::random(rng, shape, dtype, stretch) }
}

/// x∘y of one dtype, as a single instruction.
fn single(dtype: DType, op: Binary) -> Arc<Program> {
    let mut p = Builder::new();
    let (x, y) = (p.x(dtype), p.x(dtype));
    let z = p.binary(op, dtype.compute(), x, y);
    let compute = if op.gives_mask() { Compute::Mask } else { dtype.compute() };
    p.build(&[(z, compute, if op.gives_mask() { DType::Bool } else { dtype }, false)]).into()
}

#[test]
fn maps() {
    let rng = &mut Rng(21);
    for shape in planes() {
        for program in [0, 1, 2] {
            let dtype = |rng: &mut Rng| DType::ALL[rng.below(DType::ALL.len())];
            let (a, b, out) = (dtype(rng), dtype(rng), dtype(rng));
            let program = match program {
                0 => maps::mixed(a, b, out),
                1 => single(a, if a == DType::Bool { Binary::Xor } else { Binary::Mul }),
                _ => single(a, Binary::Lt),
            };
            let inputs: Vec<Array> = program.inputs.iter().map(|i| array(rng, &shape, i.storage, true)).collect();
            let outputs: Vec<Array> = program.outputs.iter().map(|o| array(rng, &shape, o.storage, false)).collect();
            let params = [rng.value()].into();
            let what = format!("{shape:?} {:?}\n{program}", inputs.iter().map(|i| &i.layout).collect::<Vec<_>>());
            on_threads(&shape, |_| {
                let (mut inputs, mut outputs) = (inputs.clone(), outputs.clone());
                maps::check(&program, &params, &mut inputs, &mut outputs, &shape, &what);
            });
        }
    }
}

#[test]
fn maps_in_place() {
    let rng = &mut Rng(22);
    for n in (1..=40).chain(LONG) {
        for dtype in DType::ALL {
            let program = single(dtype, if dtype == DType::Bool { Binary::Xor } else { Binary::Add });
            let (x, y) = (Array::contiguous(rng, &[n], dtype), Array::contiguous(rng, &[n], dtype));
            let expected = naive::map(&program, &[], &[&x, &y], &[n]).remove(0);
            let kernel = pellucid_ir::kernel::Map { program, params: Default::default() };
            crate::program::map::run_map(&kernel, &[x.shared(), y.shared()], &[x.shared()]).unwrap();
            assert_same(&x.bits(), &expected, dtype, &format!("{n} {dtype}"));
        }
    }
}

#[test]
fn reductions() {
    use ReduceOp::*;
    let rng = &mut Rng(23);
    for shape in planes() {
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
            reductions::check(rng, &kernel, &shape, axes);
            let dot = reductions::kernel(Sum, axes, reductions::product(), DType::F32);
            reductions::check(rng, &dot, &shape, axes);
        }
    }
}

#[test]
fn rows() {
    let rng = &mut Rng(24);
    let programs = [rows::softmax, || rows::layer_norm(DType::F32), || rows::layer_norm(DType::F16), rows::products];
    let programs = programs.map(|program| Arc::new(program()));
    for shape in planes() {
        for axes in [&[0][..], &[1], &[0, 1]] {
            let program = programs[rng.below(programs.len())].clone();
            let whole = rng.flip();
            rows::check(rng, &program, &shape, axes, |rng, shape, dtype, stretch| match whole {
                true => Array::contiguous(rng, shape, dtype),
                false => Array::random(rng, shape, dtype, stretch),
            });
        }
    }
}

#[test]
fn copies() {
    let rng = &mut Rng(25);
    let cubes = [[3, 5, 7], [2, 33, 17], [4, 16, 16], [1, 70, 65]].map(|s| s.to_vec());
    for shape in planes().map(|s| s.to_vec()).chain(cubes) {
        let (from, to) = (DType::ALL[rng.below(10)], DType::ALL[rng.below(10)]);
        for (from, to) in [(from, from), (from, to)] {
            let x = array(rng, &shape, from, true);
            let y = array(rng, &shape, to, false);
            let cast = |bits| match from == to {
                true => bits,
                false => naive::store(naive::convert(bits, from, from.compute()), from.compute(), to),
            };
            let expected: Vec<u64> = (0..y.layout.shape().size()).map(|i| cast(x.at(&shape, i))).collect();
            let what = format!("{shape:?} {from} {:?} to {to} {:?}", x.layout, y.layout);
            on_threads(&shape, |_| {
                let mut y = y.clone();
                crate::program::copy(&x.shared(), &y.operand()).unwrap();
                assert_same(&y.bits(), &expected, to, &what);
            });
        }
    }
}
