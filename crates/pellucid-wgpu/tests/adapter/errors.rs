//! The rounding errors of products in `f32`, against the CPU in `f64`. The table is printed for `docs/wgpu.md`.

use crate::kernels::harness::{PairedArray, Rng, TestLayout, device};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, View};
use pellucid_ir::kernel::{
    Attention, AttentionPart, Conv, ConvPart, Kernel, MatMul, Recurrent, RecurrentPart, RnnMode, Window,
};
use pellucid_ir::{DType, Element, Scalar};
use pellucid_wgpu::Wgpu;

/// Returns the largest error of an output, relative to its largest element. The inputs are random in −1..1, scaled by
/// the factor next to their shape.
fn largest_error(gpu: &Wgpu, kernel: &Kernel, inputs: &[(&[usize], f64)], outputs: &[&[usize]]) -> f64 {
    let rng = &mut Rng(91);
    // The values are exact in both dtypes.
    let mut both = |(shape, scale): (&[usize], f64)| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| ((rng.below(2_000_001) as f64 - 1e6) / 1e6 * scale) as f32).collect();
        let wide: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
        (PairedArray::of(gpu, shape, &values), PairedArray::of(gpu, shape, &wide))
    };
    let inputs: Vec<_> = inputs.iter().map(|&input| both(input)).collect();
    let outputs: Vec<_> = outputs
        .iter()
        .map(|&shape| {
            [DType::F32, DType::F64].map(|d| PairedArray::new(gpu, shape, d, TestLayout::Plain, || Scalar::Int(0)))
        })
        .collect();
    let narrow: Vec<View<'_>> = inputs.iter().map(|(narrow, _)| narrow.on_gpu()).collect();
    let wide: Vec<View<'_>> = inputs.iter().map(|(_, wide)| wide.on_cpu()).collect();
    gpu.run(kernel, &narrow, &outputs.iter().map(|[narrow, _]| narrow.on_gpu()).collect::<Vec<_>>()).unwrap();
    Cpu.run(kernel, &wide, &outputs.iter().map(|[_, wide]| wide.on_cpu()).collect::<Vec<_>>()).unwrap();
    let error = |[narrow, wide]: &[PairedArray; 2]| {
        let got: Vec<f32> = narrow.device_values(gpu);
        let size = wide.layout.shape().size();
        let expected: Vec<f64> = f64::from_bytes(&wide.bytes(gpu)[0][..8 * size]);
        let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        got.iter().zip(&expected).map(|(&g, &e)| (f64::from(g) - e).abs()).fold(0.0, f64::max) / largest
    };
    outputs.iter().map(error).fold(0.0, f64::max)
}

#[test]
fn errors_of_products_are_small() {
    let Some(gpu) = device() else { return };
    let window = Window { size: [1, 3, 3], stride: [1; 3], dilation: [1; 3], before: [0, 1, 1] };
    let conv = |part| Kernel::Conv(Conv { window, groups: 1, part });
    let attention =
        |part| Kernel::Attention(Attention { causal: false, masked: false, scale: 0.25, half_factors: None, part });
    let lstm = Recurrent {
        op: "lstm",
        cell: RnnMode::Lstm,
        reverse: false,
        projected: false,
        half_factors: None,
        lengths: false,
        part: RecurrentPart::States,
    };
    let (x, w, y) = ([2, 8, 1, 12, 12], [8, 8, 1, 3, 3], [2, 8, 1, 12, 12]);
    let (q, k) = ([1, 2, 40, 16], [1, 2, 70, 16]);
    let (gates, states) = ([6, 4, 64], [7, 4, 16]);
    type ErrorCase<'a> = (&'a str, Kernel, Vec<(&'a [usize], f64)>, Vec<&'a [usize]>);
    let cases: Vec<ErrorCase<'_>> = vec![
        (
            "product, k = 100",
            Kernel::MatMul(MatMul::default()),
            vec![(&[64, 100], 1.0), (&[100, 64], 1.0)],
            vec![&[64, 64]],
        ),
        (
            "product, k = 3000",
            Kernel::MatMul(MatMul::default()),
            vec![(&[4, 3000], 1.0), (&[3000, 4], 1.0)],
            vec![&[4, 4]],
        ),
        ("convolution", conv(ConvPart::Output), vec![(&x, 1.0), (&w, 1.0)], vec![&y]),
        ("its gradient of x", conv(ConvPart::Input), vec![(&w, 1.0), (&y, 1.0)], vec![&x]),
        ("its gradient of w", conv(ConvPart::Weight), vec![(&x, 1.0), (&y, 1.0)], vec![&w]),
        ("attention", attention(AttentionPart::Result), vec![(&q, 4.0), (&k, 4.0), (&k, 1.0)], vec![&q, &[1, 2, 40]]),
        (
            "LSTM, 6 steps",
            Kernel::Recurrent(lstm),
            vec![(&gates, 1.0), (&[64, 16], 0.25), (&[64], 1.0), (&[4, 16], 1.0), (&[4, 16], 1.0)],
            vec![&gates, &states, &states],
        ),
    ];
    for (name, kernel, inputs, outputs) in cases {
        let error = largest_error(gpu, &kernel, &inputs, &outputs);
        println!("| {name} | {error:.1e} |");
        assert!(error < 1e-5, "the error of {name} is {error:e}");
    }
}
