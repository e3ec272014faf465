//! Primitives of one, two and three operands, and copies.

use super::*;
use pellucid_ir::formula::{Binary, Unary, evaluate_binary, evaluate_unary};
use pellucid_simd::math::Real;

#[test]
fn unary_loops_agree_on_every_isa() {
    for ty in ALL {
        for op in Unary::ALL {
            for_each_isa(|isa| {
                let Some(run) = unary(op, ty, isa) else { return };
                let one = unary(op, ty, Isa::Portable).unwrap();
                let out = if op.gives_mask() { DType::Bool } else { ty.storage() };
                // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the instruction set is
                // available.
                let run = |d, [a]: [*const u8; 1], n| unsafe { run.run(d, a, n) };
                // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every instruction set includes
                // the portable one.
                let one = |d, [a]: [*const u8; 1], n| unsafe { one.run(d, a, n) };
                check_loop(&format!("{op:?} {ty:?} {isa:?}"), [(ty.storage(), true)], out, &one, &run);
            });
        }
    }
}

/// Tests that the loops compute the functions of `math`.
#[test]
fn unary_loops_match_the_scalar_functions() {
    let functions: [(Unary, fn(f32) -> f32); 36] = [
        (Unary::Sign, f32::sign),
        (Unary::Floor, f32::floor),
        (Unary::Ceil, f32::ceil),
        (Unary::Round, Real::round),
        (Unary::Trunc, f32::trunc),
        (Unary::Sqrt, f32::sqrt),
        (Unary::Exp, Real::exp),
        (Unary::Exp2, Real::exp2),
        (Unary::Expm1, Real::expm1),
        (Unary::Ln, Real::ln),
        (Unary::Log2, Real::log2),
        (Unary::Log10, Real::log10),
        (Unary::Ln1p, Real::ln_1p),
        (Unary::Sin, Real::sin),
        (Unary::Cos, Real::cos),
        (Unary::SinPi, Real::sin_pi),
        (Unary::CosPi, Real::cos_pi),
        (Unary::Tan, Real::tan),
        (Unary::Asin, Real::asin),
        (Unary::Acos, Real::acos),
        (Unary::Atan, Real::atan),
        (Unary::Sinh, Real::sinh),
        (Unary::Cosh, Real::cosh),
        (Unary::Tanh, Real::tanh),
        (Unary::Asinh, Real::asinh),
        (Unary::Acosh, Real::acosh),
        (Unary::Atanh, Real::atanh),
        (Unary::Sigmoid, Real::sigmoid),
        (Unary::Erf, Real::erf),
        (Unary::Erfc, Real::erfc),
        (Unary::Erfcx, Real::erfcx),
        (Unary::Erfinv, Real::erfinv),
        (Unary::Ndtr, Real::ndtr),
        (Unary::Ndtri, Real::ndtri),
        (Unary::Lgamma, Real::lgamma),
        (Unary::Digamma, Real::digamma),
    ];
    for (op, f) in functions {
        for_each_isa(|isa| {
            let a = values(DType::F32, 999, 7);
            let mut got = vec![0; a.len()];
            // SAFETY: both buffers hold 999 values and are disjoint; the instruction set is available.
            unsafe { unary(op, Compute::F32, isa).unwrap().run(got.as_mut_ptr(), a.as_ptr(), 999) };
            let want: Vec<u8> =
                a.chunks(4).flat_map(|b| f(f32::from_ne_bytes(b.try_into().unwrap())).to_ne_bytes()).collect();
            assert_same(DType::F32, &got, &want, &format!("{op:?} {isa:?}"));
        });
    }
}

/// Tests that every primitive of floats has a loop, and that the loop computes the function of the evaluator.
#[test]
fn every_primitive_has_a_loop_that_matches_the_evaluator() {
    fn check_values(name: &str, got: [f64; 2], want: [f64; 2]) {
        for (got, want) in got.into_iter().zip(want) {
            let is_close = got == want || (got - want).abs() <= 1e-5 * (1.0 + want.abs());
            let is_close = is_close || got.is_nan() && want.is_nan();
            assert!(is_close, "{name}: {got}, the evaluator returns {want}");
        }
    }
    let isa = Isa::best();
    for op in Unary::ALL.into_iter().filter(|op| *op != Unary::Not) {
        let [single, double] = [Compute::F32, Compute::F64]
            .map(|ty| unary(op, ty, isa).unwrap_or_else(|| panic!("{op:?} must have a loop")));
        for x in [-0.4f32, 0.1, 0.8, 1.5, 2.5].into_iter().filter(|_| !op.gives_mask()) {
            let (wide, mut y, mut wide_y) = (f64::from(x), 0f32, 0f64);
            // SAFETY: the loops read one element and write another of their type; the instruction set is available.
            unsafe {
                single.run((&raw mut y).cast(), (&raw const x).cast(), 1);
                double.run((&raw mut wide_y).cast(), (&raw const wide).cast(), 1);
            }
            check_values(&format!("{op:?}({x})"), [y.into(), wide_y], [evaluate_unary(op, wide); 2]);
        }
    }
    use Binary::{And, Or, Shl, Shr, Xor};
    for op in Binary::ALL.into_iter().filter(|op| ![And, Or, Shl, Shr, Xor].contains(op)) {
        let [single, double] = [Compute::F32, Compute::F64]
            .map(|ty| binary(op, ty, OperandForm::TileTile, isa).unwrap_or_else(|| panic!("{op:?} must have a loop")));
        for (a, b) in [(2.0f32, 0.75f32), (1.0, 2.5), (3.0, 1.5)].into_iter().filter(|_| !op.gives_mask()) {
            let (wide, mut y, mut wide_y) = ([a, b].map(f64::from), 0f32, 0f64);
            // SAFETY: the loops read one element of each operand and write another of their type; the instruction set
            // is available.
            unsafe {
                single.run((&raw mut y).cast(), (&raw const a).cast(), (&raw const b).cast(), 1);
                let from = wide.as_ptr();
                double.run((&raw mut wide_y).cast(), from.cast(), from.add(1).cast(), 1);
            }
            check_values(&format!("{op:?}({a}, {b})"), [y.into(), wide_y], [evaluate_binary(op, wide[0], wide[1]); 2]);
        }
    }
}

#[test]
fn binary_loops_agree_on_every_isa() {
    for ty in ALL {
        for op in Binary::ALL {
            for (form, tiles) in [
                (OperandForm::TileTile, [true, true]),
                (OperandForm::TileUniform, [true, false]),
                (OperandForm::UniformTile, [false, true]),
            ] {
                for_each_isa(|isa| {
                    let Some(run) = binary(op, ty, form, isa) else { return };
                    let one = binary(op, ty, OperandForm::TileTile, Isa::Portable).unwrap();
                    let out = if op.gives_mask() { DType::Bool } else { ty.storage() };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the instruction set is
                    // available.
                    let run = |d, [a, b]: [*const u8; 2], n| unsafe { run.run(d, a, b, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every instruction set
                    // includes the portable one.
                    let one = |d, [a, b]: [*const u8; 2], n| unsafe { one.run(d, a, b, n) };
                    let types = tiles.map(|tile| (ty.storage(), tile));
                    check_loop(&format!("{op:?} {ty:?} {form:?} {isa:?}"), types, out, &one, &run);
                });
            }
        }
    }
}

/// Tests loops with a uniform order, which choose the coefficients of the order only once.
#[test]
fn loops_of_a_uniform_order_agree_on_every_isa() {
    use Binary::{BesselI, BesselIe, BesselJ, BesselK, BesselKe, BesselY, Polygamma};
    let mut x = values(DType::F32, 300, 7);
    x.extend((-99..200).flat_map(|k| (k as f32 * 0.13).to_ne_bytes()));
    let n = x.len() / 4;
    for op in [Polygamma, BesselJ, BesselY, BesselI, BesselIe, BesselK, BesselKe] {
        for order in [-2.0f32, -1.0, 0.0, 1.0, 2.0, 3.0, 0.5] {
            let (orders, mut want) = (order.to_ne_bytes().repeat(n), vec![0; x.len()]);
            let each = binary(op, Compute::F32, OperandForm::TileTile, Isa::Portable).unwrap();
            // SAFETY: the buffers hold `n` values and are disjoint. Every instruction set includes the portable one.
            unsafe { each.run(want.as_mut_ptr(), orders.as_ptr(), x.as_ptr(), n) };
            for_each_isa(|isa| {
                let uniform = binary(op, Compute::F32, OperandForm::UniformTile, isa).unwrap();
                let mut got = GuardedBytes::new(&vec![0; x.len()], 1);
                // SAFETY: `x` and `got` hold `n` values and are disjoint; the instruction set is available.
                unsafe { uniform.run(got.ptr(), orders.as_ptr(), x.as_ptr(), n) };
                assert_same(DType::F32, &got.into_contents(), &want, &format!("{op:?} of order {order}, {isa:?}"));
            });
        }
    }
}

#[test]
fn ternary_loops_agree_on_every_isa() {
    for ty in ALL {
        for bits in 0..8 {
            let tiles = [bits & 1 == 1, bits & 2 == 2, bits & 4 == 4];
            for_each_isa(|isa| {
                let storage = ty.storage();
                let all = |name: &str, run: Option<TernaryLoop>, one: Option<TernaryLoop>, first: DType| {
                    let (Some(run), Some(one)) = (run, one) else { return };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the instruction set is
                    // available.
                    let run = |d, [a, b, c]: [*const u8; 3], n| unsafe { run.run(d, a, b, c, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every instruction set
                    // includes the portable one.
                    let one = |d, [a, b, c]: [*const u8; 3], n| unsafe { one.run(d, a, b, c, n) };
                    let types = [(first, tiles[0]), (storage, tiles[1]), (storage, tiles[2])];
                    check_loop(&format!("{name} {ty:?} {tiles:?} {isa:?}"), types, storage, &one, &run);
                };
                let full = [true; 3];
                all("select", select(ty, tiles, isa), select(ty, full, Isa::Portable), DType::Bool);
                all("mul_add", mul_add(ty, tiles, isa), mul_add(ty, full, Isa::Portable), storage);
            });
        }
    }
}

#[test]
fn splat_fills_the_tile() {
    for ty in ALL {
        for_each_isa(|isa| {
            let x = values(ty.storage(), 1, 3);
            let mut got = GuardedBytes::new(&vec![0; 77 * ty.size()], 1);
            // SAFETY: `x` holds one value and `got` 77 values, disjoint; the instruction set is available.
            unsafe { splat(ty, isa)(got.ptr(), x.as_ptr(), 77) };
            assert_eq!(got.into_contents(), x.repeat(77));
        });
    }
}

#[test]
fn non_temporal_copies_write_exactly_the_destination() {
    let from: Vec<u8> = (0..2000u32).map(|i| (i * 7) as u8).collect();
    for_each_isa(|isa| {
        for (start, n) in [(0, 0), (0, 64), (1, 63), (3, 64), (5, 200), (64, 1024), (60, 1500), (17, 1900)] {
            let mut to = vec![0xEE; 2000];
            // SAFETY: both buffers hold `n` bytes starting at `start`; the instruction set is available.
            unsafe { non_temporal_copy(isa)(to.as_mut_ptr().add(start), from.as_ptr().add(start), n, []) };
            store_fence();
            assert_eq!(to[start..start + n], from[start..start + n], "{isa:?} {start} {n}");
            assert!(to[..start].iter().chain(&to[start + n..]).all(|&b| b == 0xEE), "{isa:?} {start} {n}");
        }
    });
}
