//! Recurrent layers and their gradients.

use super::harness::{PairedArray, Rng, TestLayout, Tolerance, device, run_both};
use crate::backend::TestBackend;
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, View};
use pellucid_ir::kernel::{Kernel, Recurrent, RecurrentPart, RnnMode};
use pellucid_ir::{DType, Error, Scalar};

/// The sizes T (steps), N (sequences), H (hidden units) and P (projected states).
type RecurrentShape = [usize; 4];

/// Makes the contents on the device equal to those on the CPU.
fn copy_from_cpu(gpu: &TestBackend, arrays: &[PairedArray]) {
    for array in arrays {
        gpu.upload(&array.bytes(gpu)[0], &array.gpu).unwrap();
    }
}

/// Runs the forward pass and the gradient on both backends.
fn check_recurrent(rng: &mut Rng, layer: Recurrent, [t, n, h, p]: RecurrentShape, dtype: DType, in_place: bool) {
    let Some(gpu) = device() else { return };
    let (gates, blocks, lstm) = (layer.cell.gates() * h, layer.cell.blocks() * h, layer.cell == RnnMode::Lstm);
    let lengths: Vec<i64> = (0..n).map(|k| ((k * 7 + 2) % (t + 1)) as i64).collect();
    let lengths = layer.lengths.then(|| PairedArray::of(gpu, [n], &lengths));
    let mut array = |shape: &[usize], layout: Option<TestLayout>| {
        let layout = layout.unwrap_or(TestLayout::ALL[rng.below(5)]);
        PairedArray::new(gpu, shape, dtype, layout, || Scalar::Float((rng.below(2001) as f64 - 1000.0) / 1000.0))
    };
    let context = format!("{layer:?}, {t} steps of {n} sequences, H = {h}, P = {p}, {dtype}, in place: {in_place}");
    let epsilon = match (dtype, layer.half_factors) {
        (DType::F64, _) => 1e-13,
        (_, None) => 1e-5,
        // Factors are rounded to 11 or 8 bits in every step.
        (_, Some(DType::F16)) => 2f64.powi(-10),
        (_, Some(_)) => 2f64.powi(-7),
    };
    let tolerance = Tolerance::Relative(epsilon, 4.0 * epsilon);
    let plain = Some(TestLayout::Plain);

    let x = array(&[t, n, blocks], if in_place { plain } else { None });
    let mut inputs = vec![x, array(&[gates, p], None), array(&[blocks], None), array(&[n, p], None)];
    if lstm {
        inputs.push(array(&[n, h], None));
    }
    let projection = layer.projected.then(|| array(&[p, h], None));
    inputs.extend(projection.clone().into_iter().chain(lengths.clone()));
    let mut outputs = vec![array(&[t, n, blocks], plain), array(&[t + 1, n, p], plain)];
    if lstm {
        outputs.push(array(&[t + 1, n, h], plain));
    }
    if in_place {
        outputs[0] = inputs[0].clone();
    }
    let kernel = Kernel::Recurrent(Recurrent { part: RecurrentPart::States, ..layer });
    run_both(gpu, &kernel, &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    // The gate activations of inactive steps are unspecified.
    for (k, output) in outputs.iter().enumerate().skip(usize::from(layer.lengths)) {
        output.assert_same(gpu, tolerance, &format!("output {k} of {context}"));
    }

    copy_from_cpu(gpu, &outputs);
    let (gates, states) = (outputs[0].clone(), outputs[1].clone());
    let mut backward = vec![gates, states, inputs[1].clone(), array(&[t, n, p], None), array(&[n, p], None)];
    if lstm {
        backward.extend([outputs[2].clone(), array(&[n, h], None)]);
    }
    backward.extend(projection.into_iter().chain(lengths));
    let mut outputs = vec![array(&[t, n, blocks], plain), array(&[n, p], plain)];
    if lstm {
        outputs.push(array(&[n, h], plain));
    }
    if layer.projected {
        outputs.push(array(&[t, n, p], plain));
    }
    let kernel = Kernel::Recurrent(Recurrent { part: RecurrentPart::Gradient, ..layer });
    run_both(gpu, &kernel, &backward.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    // Gradients are sums over the gates and steps, with terms of magnitude 1.
    let tolerance = Tolerance::Relative(epsilon, epsilon * (blocks * t).max(1) as f64);
    for (k, output) in outputs.iter().enumerate() {
        output.assert_same(gpu, tolerance, &format!("gradient {k} of {context}"));
    }
}

/// Returns a layer.
fn layer(cell: RnnMode, reverse: bool, lengths: bool, projected: bool) -> Recurrent {
    Recurrent { op: "rnn", cell, reverse, lengths, projected, half_factors: None, part: RecurrentPart::States }
}

const CELLS: [RnnMode; 4] = [RnnMode::Tanh, RnnMode::Relu, RnnMode::Gru, RnnMode::Lstm];

#[test]
fn recurrent_layers_match_the_cpu() {
    let rng = &mut Rng(81);
    for (k, cell) in CELLS.into_iter().enumerate() {
        check_recurrent(rng, layer(cell, k % 2 == 1, false, false), [3, 3, 5, 5], DType::F32, k % 2 == 0);
        check_recurrent(rng, layer(cell, k % 2 == 0, true, false), [4, 9, 9, 9], DType::F32, k % 2 == 1);
        check_recurrent(rng, layer(cell, false, true, false), [2, 2, 3, 3], DType::F64, false);
        for half in [DType::BF16, DType::F16] {
            let layer = Recurrent { half_factors: Some(half), ..layer(cell, false, true, false) };
            check_recurrent(rng, layer, [3, 33, 12, 12], DType::F32, false);
        }
    }
}

#[test]
fn projected_layers_match_the_cpu() {
    let rng = &mut Rng(82);
    check_recurrent(rng, layer(RnnMode::Lstm, false, false, true), [3, 2, 6, 4], DType::F32, false);
    check_recurrent(rng, layer(RnnMode::Lstm, true, true, true), [3, 4, 5, 7], DType::F32, true);
    check_recurrent(rng, layer(RnnMode::Lstm, true, true, true), [2, 2, 2, 3], DType::F64, false);
}

#[test]
fn empty_layers_match_the_cpu() {
    let rng = &mut Rng(83);
    for sizes in [[0, 2, 3, 3], [2, 0, 3, 3], [2, 2, 0, 0]] {
        check_recurrent(rng, layer(RnnMode::Gru, false, false, false), sizes, DType::F32, false);
    }
    check_recurrent(rng, layer(RnnMode::Lstm, false, false, true), [2, 2, 0, 3], DType::F32, false);
}

#[test]
fn lengths_out_of_range_are_rejected() {
    let Some(gpu) = device() else { return };
    let kernel = Kernel::Recurrent(layer(RnnMode::Tanh, false, true, false));
    let array = |shape: &[usize]| PairedArray::new(gpu, shape, DType::F32, TestLayout::Plain, || 1.into());
    let inputs = [array(&[2, 2, 3]), array(&[3, 3]), array(&[3]), array(&[2, 3])];
    let outputs = [array(&[2, 2, 3]), array(&[3, 2, 3])];
    for (lengths, bad) in [([2_i64, 0], None), ([1, 3], Some(3)), ([-1, 2], Some(-1))] {
        let lengths = PairedArray::of(gpu, [2], &lengths);
        let before: Vec<_> = outputs.iter().map(|o| o.bytes(gpu)[1].clone()).collect();
        let views: Vec<View<'_>> = inputs.iter().chain([&lengths]).map(PairedArray::on_gpu).collect();
        let written: Vec<View<'_>> = outputs.iter().map(PairedArray::on_gpu).collect();
        let result = gpu.run(&kernel, &views, &written);
        let on_cpu: Vec<View<'_>> = inputs.iter().chain([&lengths]).map(PairedArray::on_cpu).collect();
        let cpu_outputs: Vec<View<'_>> = outputs.iter().map(PairedArray::on_cpu).collect();
        assert_eq!(Cpu.run(&kernel, &on_cpu, &cpu_outputs).is_err(), bad.is_some());
        match bad {
            None => result.unwrap(),
            Some(bad) => {
                let expected = Error::IndexOutOfBounds { op: "rnn", index: bad, axis: 0, len: 3 };
                assert_eq!(result, Err(expected));
                let after: Vec<_> = outputs.iter().map(|o| o.bytes(gpu)[1].clone()).collect();
                assert_eq!(before, after, "a failed call must change nothing");
            }
        }
    }
}

#[test]
fn misfitting_operands_of_recurrent_layers_are_rejected() {
    let Some(gpu) = device() else { return };
    let kernel = Kernel::Recurrent(layer(RnnMode::Tanh, false, false, false));
    let array = |shape: &[usize], dtype, layout| PairedArray::new(gpu, shape, dtype, layout, || 1.into());
    let plain = |shape: &[usize]| array(shape, DType::F32, TestLayout::Plain);
    let (x, w, b, h) = (plain(&[2, 2, 3]), plain(&[3, 3]), plain(&[3]), plain(&[2, 3]));
    let (gates, states) = (plain(&[2, 2, 3]), plain(&[3, 2, 3]));
    run_both(gpu, &kernel, &[&x, &w, &b, &h], &[&gates, &states]).unwrap();
    let (narrow, half) = (plain(&[3, 2]), array(&[2, 2, 3], DType::F16, TestLayout::Plain));
    let gaps = array(&[3, 2, 3], DType::F32, TestLayout::Gaps);
    run_both(gpu, &kernel, &[&x, &narrow, &b, &h], &[&gates, &states]).unwrap_err();
    run_both(gpu, &kernel, &[&half, &w, &b, &h], &[&gates, &states]).unwrap_err();
    run_both(gpu, &kernel, &[&x, &w, &b, &h], &[&gates, &gaps]).unwrap_err();
}
