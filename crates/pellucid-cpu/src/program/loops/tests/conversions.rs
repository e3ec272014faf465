//! Conversions between dtypes and compute types.

use super::*;
use pellucid_ir::formula::Unary;

#[test]
fn conversions_agree_on_every_isa() {
    for ty in ALL {
        for dtype in DType::ALL {
            for_each_isa(|isa| {
                let pairs = [
                    (Some(convert(dtype, ty, isa)), Some(convert(dtype, ty, Isa::Portable)), dtype, ty.storage()),
                    (Some(store(ty, dtype, isa)), Some(store(ty, dtype, Isa::Portable)), ty.storage(), dtype),
                    (round(ty, dtype, isa), round(ty, dtype, Isa::Portable), ty.storage(), ty.storage()),
                ];
                for (run, one, from, to) in pairs {
                    let (Some(run), Some(one)) = (run, one) else { continue };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint, and the instruction set is
                    // available.
                    let run = |d, [a]: [*const u8; 1], n| unsafe { run.run(d, a, n) };
                    // SAFETY: `check` passes buffers of `n` elements, in place or disjoint. Every instruction set
                    // includes the portable one.
                    let one = |d, [a]: [*const u8; 1], n| unsafe { one.run(d, a, n) };
                    check_loop(&format!("{from} to {to} {isa:?}"), [(from, true)], to, &one, &run);
                }
            });
        }
    }
}

#[test]
fn signs_of_half_precision_change_without_conversion() {
    for_each_isa(|isa| {
        let negate = half_precision_sign(Unary::Neg, isa).unwrap();
        let abs = half_precision_sign(Unary::Abs, isa).unwrap();
        assert!(half_precision_sign(Unary::Sqrt, isa).is_none());
        for dtype in [DType::F16, DType::BF16] {
            let from: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
            let in_f32 = |f: fn(f32) -> f32| -> Vec<u8> {
                let value = |bits: u16| match dtype {
                    DType::F16 => F16::from_f32(f(F16(bits).to_f32())).0,
                    _ => BF16::from_f32(f(BF16(bits).to_f32())).0,
                };
                (0..=u16::MAX).flat_map(|bits| value(bits).to_ne_bytes()).collect()
            };
            for (run, expected) in [(negate, in_f32(|x| -x)), (abs, in_f32(f32::abs))] {
                let mut got = vec![0; from.len()];
                // SAFETY: both buffers have 2¹⁶ elements of two bytes and are disjoint. The instruction set is
                // available.
                unsafe { run.run(got.as_mut_ptr(), from.as_ptr(), 1 << 16) };
                assert_same(dtype, &got, &expected, &format!("{dtype} {isa:?}"));
            }
        }
    });
}

#[test]
fn conversions_saturate_wrap_and_round() {
    fn convert_one<A: Copy, B: Copy + Default>(f: UnaryLoop, x: A) -> B {
        let mut y = B::default();
        // SAFETY: both pointers refer to one value; the instruction set is available.
        unsafe { f.run((&raw mut y).cast(), (&raw const x).cast(), 1) };
        y
    }
    for_each_isa(|isa| {
        for x in [
            0.5,
            -0.5,
            127.9,
            128.0,
            -128.9,
            -129.0,
            255.5,
            256.0,
            -1.5,
            32767.5,
            2147483520.0,
            2147483648.0,
            1e20,
            -2147483648.0,
            -2147483904.0,
            9.2233715e18,
            9.223372e18,
            -9.223372e18,
            -1e30,
            f32::INFINITY,
            f32::NAN,
        ] {
            assert_eq!(convert_one::<f32, u8>(store(Compute::F32, DType::U8, isa), x), x as u8);
            assert_eq!(convert_one::<f32, i8>(store(Compute::F32, DType::I8, isa), x), x as i8);
            assert_eq!(convert_one::<f32, i16>(store(Compute::F32, DType::I16, isa), x), x as i16);
            assert_eq!(convert_one::<f32, i32>(store(Compute::F32, DType::I32, isa), x), x as i32);
            assert_eq!(convert_one::<f32, i64>(store(Compute::F32, DType::I64, isa), x), x as i64);
            for x in [x as f64, x as f64 * (1.0 + f64::EPSILON), x as f64 * (1.0 - f64::EPSILON)] {
                assert_eq!(convert_one::<f64, i32>(store(Compute::F64, DType::I32, isa), x), x as i32);
                assert_eq!(convert_one::<f64, i64>(store(Compute::F64, DType::I64, isa), x), x as i64);
            }
        }
        assert_eq!(convert_one::<f32, u8>(store(Compute::F32, DType::U8, isa), -1.5), 0);
        assert_eq!(convert_one::<f32, i64>(store(Compute::F32, DType::I64, isa), f32::NAN), 0);
        assert_eq!(convert_one::<f64, i64>(store(Compute::F64, DType::I64, isa), -1e300), i64::MIN);
        assert_eq!(convert_one::<i32, i8>(store(Compute::I32, DType::I8, isa), 200), -56);
        assert_eq!(convert_one::<i32, u8>(store(Compute::I32, DType::Bool, isa), 256), 1);
        assert_eq!(convert_one::<f32, u8>(convert(DType::F32, Compute::Mask, isa), f32::NAN), 1);
        assert_eq!(convert_one::<u8, f32>(convert(DType::Bool, Compute::F32, isa), 1), 1.0);
        assert_eq!(convert_one::<i64, f32>(convert(DType::I64, Compute::F32, isa), (1 << 24) + 1), 16_777_216.0);
        assert_eq!(convert_one::<f64, u16>(store(Compute::F64, DType::F16, isa), 1.0 + 2f64.powi(-11) + 1e-12), 0x3c01);
        assert_eq!(convert_one::<i32, i32>(round(Compute::I32, DType::I16, isa).unwrap(), 70_000), 4464);
    });
}
