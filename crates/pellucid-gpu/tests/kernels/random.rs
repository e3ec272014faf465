//! Random numbers.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, is_native, run_both};
use pellucid_ir::DType;
use pellucid_ir::kernel::{Distribution, Kernel, Random};

#[test]
fn random_numbers_have_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    let rng = &mut Rng(61);
    for distribution in [Distribution::Uniform, Distribution::Normal, Distribution::Bits] {
        for dtype in DType::ALL {
            let is_defined = dtype.is_float() != (distribution == Distribution::Bits);
            if !is_defined {
                continue;
            }
            let state = PairedArray::of(gpu, [2], &[-7_654_321_987_654_321i64, 0xffff_fffe]);
            for shape in [vec![], vec![1], vec![5], vec![33, 7], vec![0]] {
                let layout = TestLayout::ALL[rng.below(5)];
                let y = PairedArray::new(gpu, shape.clone(), dtype, layout, || rng.value());
                run_both(gpu, &Kernel::Random(Random { distribution }), &[], &[&state, &y]).unwrap();
                let context = format!("{distribution:?} {dtype} {shape:?}");
                y.assert_same(gpu, Tolerance::Bits, &context);
                state.assert_same(gpu, Tolerance::Bits, &context);
            }
        }
    }
}

#[test]
fn unsupported_distributions_are_typed_errors() {
    let Some(gpu) = device() else { return };
    let state = PairedArray::of(gpu, [2], &[1i64, 2]);
    let y = PairedArray::of(gpu, [1], &[0.0f64]);
    let normal = Kernel::Random(Random { distribution: Distribution::Normal });
    assert!(is_native(gpu, &normal, &[], &[&state, &y]), "normal values of f64 must be native");
    let bits = Kernel::Random(Random { distribution: Distribution::Bits });
    assert!(run_both(gpu, &bits, &[], &[&state, &y]).is_err());
}
