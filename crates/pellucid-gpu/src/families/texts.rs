//! Digests of the descriptions of a fixed list of kernels: texts, parameters, buffers and workgroups of all dispatches.
//!
//! The list has every family that runs on a GPU, its dtypes and several layouts, and the texts for devices without,
//! with one and with all features. `texts.txt` has the digests of the committed texts. After an intended change of a
//! text, the test writes the file if the environment variable `UPDATE_TEXTS` is set.

use super::{DispatchLimits, implementation};
use crate::dispatch_list::DispatchList;
use crate::operand::{DeviceOperands, UncheckedOperand};
use crate::shader::KernelFeatures;
use crate::shader::tests::program;
use crate::status::CheckedOperations;
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::formula::{Binary, Op, Program, Signature, Unary};
use pellucid_ir::kernel::{
    Attention, AttentionPart, AxisSet, Conv, ConvPart, Distribution, Gather, Index, Kernel, Map, MatMul, Meta, Pool,
    PoolPart, PoolWindows, Random, ReadOrder, Recurrent, RecurrentPart, Reduce, ReduceOp, RnnMode, Row, Scan, ScanOp,
    Scatter, ScatterOp, Search, Sort, SparseProduct, Window,
};
use pellucid_ir::{Compute, DType, Layout, Scalar, Shape, formula};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The features of a device without any, with one, and with all.
const FEATURES: [KernelFeatures; 5] = {
    const NONE: KernelFeatures = KernelFeatures {
        fused: false,
        subgroups: false,
        native_f16: false,
        matrix_units: false,
        library_products: false,
        large_shared_memory: false,
    };
    [
        NONE,
        KernelFeatures { fused: true, ..NONE },
        KernelFeatures { subgroups: true, ..NONE },
        KernelFeatures { native_f16: true, ..NONE },
        KernelFeatures { fused: true, subgroups: true, native_f16: true, ..NONE },
    ]
};

/// Limits that no kernel of the list exceeds.
const LIMITS: DispatchLimits = DispatchLimits { bindings: 30, iterations: usize::MAX };

/// A digest of 64 bits (Fowler, Noll & Vo, FNV-1a), which is equal for all versions of the compiler.
struct TextDigest(u64);

impl Write for TextDigest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 = text.bytes().fold(self.0, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Ok(())
    }
}

/// The counts and the digest of a family.
struct FamilyTexts {
    kernels: usize,
    dispatches: usize,
    digest: TextDigest,
}

/// The number of layouts of [`layout`].
const LAYOUTS: usize = 5;

/// Returns a layout of an array: row-major, at an offset, column-major, reversed, or with gaps.
fn layout(shape: &Shape, number: usize) -> Layout {
    let (plain, rank) = (Layout::contiguous(shape.clone()), shape.rank());
    match number % LAYOUTS {
        1 => Layout::contiguous_from(shape.clone(), 5),
        2 => {
            let reversed: Vec<usize> = (0..rank).rev().collect();
            Layout::contiguous(reversed.iter().map(|&axis| shape[axis]).collect()).permute(&reversed)
        }
        3 => (0..rank).filter(|&a| shape[a] > 0).fold(plain, |l, a| l.slice(a, shape[a] - 1, -1, shape[a])),
        4 if rank > 0 => {
            let last = shape[rank - 1];
            Layout::contiguous(shape.with_axis(rank - 1, 3 * last)).slice(rank - 1, 0, 3, last)
        }
        _ => plain,
    }
}

/// Records descriptions.
#[derive(Default)]
struct TextRecorder(BTreeMap<&'static str, FamilyTexts>);

fn metas(operands: &[(&[usize], DType)]) -> Vec<Meta> {
    operands.iter().map(|&(shape, dtype)| Meta { shape: shape.into(), dtype }).collect()
}

impl TextRecorder {
    /// Records a kernel whose outputs follow from its inputs, in all layouts. A kernel that the rule of the family
    /// rejects is not recorded; the counts in the file show it.
    fn record(&mut self, kernel: &Kernel, inputs: &[(&[usize], DType)]) {
        let inputs = metas(inputs);
        if let Ok(outputs) = kernel.infer(&inputs) {
            (0..LAYOUTS).for_each(|number| self.record_layouts(kernel, &inputs, &outputs, number));
        }
    }

    /// Records a kernel with given outputs, in all layouts.
    fn record_to(&mut self, kernel: &Kernel, inputs: &[(&[usize], DType)], outputs: &[(&[usize], DType)]) {
        let (inputs, outputs) = (metas(inputs), metas(outputs));
        (0..LAYOUTS).for_each(|number| self.record_layouts(kernel, &inputs, &outputs, number));
    }

    /// Records a kernel. Operand k has layout `number` + k, or layout 0 if the family accepts no other.
    fn record_layouts(&mut self, kernel: &Kernel, inputs: &[Meta], outputs: &[Meta], number: usize) {
        let mixed = inputs.iter().chain(outputs).enumerate().map(|(k, meta)| layout(&meta.shape, number + k));
        let plain = |meta: &Meta| Layout::contiguous(meta.shape.clone());
        let mixed: Vec<Layout> = mixed.collect();
        let dense: Vec<Layout> = mixed[..inputs.len()].iter().cloned().chain(outputs.iter().map(plain)).collect();
        let dtypes: Vec<DType> = inputs.iter().chain(outputs).map(|meta| meta.dtype).collect();
        let accepted = [mixed, dense].into_iter().find(|layouts| {
            let operand = |(layout, &dtype)| OperandMeta { layout, dtype };
            let operands: Vec<OperandMeta<'_>> = layouts.iter().zip(&dtypes).map(operand).collect();
            let (inputs, outputs) = operands.split_at(inputs.len());
            kernel.check(inputs, outputs).is_ok() && LIMITS.are_met(kernel, inputs, outputs)
        });
        let Some(layouts) = accepted else { return };
        self.describe(kernel, &layouts, &dtypes, inputs.len(), false);
        let is_elementwise = kernel.info().reads != ReadOrder::Anywhere;
        if is_elementwise && number == 0 && inputs.first().is_some_and(|first| *first == outputs[0]) {
            self.describe(kernel, &layouts, &dtypes, inputs.len(), true);
        }
    }

    /// Adds the description of a kernel to the digest. If `is_in_place` is true, the first output overwrites the first
    /// input.
    fn describe(&mut self, kernel: &Kernel, layouts: &[Layout], dtypes: &[DType], inputs: usize, is_in_place: bool) {
        let start = FamilyTexts { kernels: 0, dispatches: 0, digest: TextDigest(0xcbf2_9ce4_8422_2325) };
        let texts = self.0.entry(kernel.family()).or_insert(start);
        texts.kernels += 1;
        let operand = |(k, (layout, &dtype)): (usize, (&'_ Layout, &DType))| {
            let is_shared = is_in_place && k == inputs;
            let bytes = layout.extent().end.max(0) as usize * dtype.size();
            (if is_shared { 0 } else { k }, bytes, if is_shared { 0 } else { k }, dtype)
        };
        let operands: Vec<_> = layouts.iter().zip(dtypes).enumerate().map(operand).collect();
        let unchecked = operands.iter().map(|&(identity, bytes, layout, dtype)| {
            let layout = &layouts[layout];
            UncheckedOperand { identity, bytes, layout, dtype }
        });
        let operands = DeviceOperands::new(kernel, &unchecked.collect::<Vec<_>>(), inputs).unwrap();
        for features in FEATURES {
            let operations = CheckedOperations::default();
            let mut list = DispatchList::new(features, &operations);
            implementation(kernel).describe(&mut list, &operands).unwrap();
            let digest = &mut texts.digest;
            let _ = writeln!(digest, "{} {:?} {}", kernel.name(), list.scratch_sizes(), list.check_count());
            for (op, shader, parameters) in list.described() {
                let mut words = Vec::new();
                parameters.append_bytes(&mut words, |index| Scalar::Int(index as i64 + 1));
                let (groups, buffers) = (shader.groups, shader.buffers());
                let _ = writeln!(digest, "{op} {groups} {buffers:?} {words:?}\n{}", shader.finish(features));
                texts.dispatches += usize::from(features == FEATURES[0]);
            }
        }
    }
}

/// All dtypes without `bool`.
const NUMBERS: [DType; 9] = {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8};
    [U8, I8, I16, I32, I64, F16, BF16, F32, F64]
};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn record_maps(texts: &mut TextRecorder) {
    let computes = [Compute::Mask, Compute::I32, Compute::I64, Compute::F32, Compute::F64];
    for compute in computes {
        let result = |gives_mask| if gives_mask { Compute::Mask } else { compute };
        let unary = Unary::ALL.map(|op| (Op::Unary(op), 1, result(op.gives_mask())));
        let binary = Binary::ALL.map(|op| (Op::Binary(op), 2, result(op.gives_mask())));
        let others = [(Op::Select, 3, compute), (Op::MulAdd, 3, compute)];
        let converts = computes.map(|to| (Op::Convert(to), 1, to));
        let rounds = DType::ALL.map(|dtype| (Op::Round(dtype), 1, compute));
        for (op, operands, result) in unary.into_iter().chain(binary).chain(others).chain(converts).chain(rounds) {
            let program = Arc::new(program(op, operands, compute, result));
            let inputs: Vec<Meta> =
                program.inputs.iter().map(|input| Meta { shape: [6, 7].into(), dtype: input.storage }).collect();
            let kernel = Kernel::Map(Map { program, params: Default::default() });
            let outputs = kernel.infer(&inputs).unwrap();
            texts.record_layouts(&kernel, &inputs, &outputs, 0);
        }
    }
    let scaled = formula!(|x, y; k| (x * k + y, x.max(y)));
    for dtype in NUMBERS {
        let Ok(program) = scaled.uniform_program(dtype) else { continue };
        let kernel = Kernel::Map(Map { program: program.clone(), params: [Scalar::Float(0.5)].into() });
        for shape in [&[3, 4, 5][..], &[1], &[8], &[]] {
            texts.record(&kernel, &[(shape, dtype), (shape, dtype)]);
        }
        texts.record(&kernel, &[(&[3, 1, 5], dtype), (&[4, 1], dtype)]);
    }
}

fn record_copies(texts: &mut TextRecorder) {
    for from in DType::ALL {
        for to in DType::ALL {
            for (x, y) in [(&[3, 5][..], &[3, 5][..]), (&[5], &[5]), (&[1, 5], &[3, 5])] {
                texts.record_to(&Kernel::Copy, &[(x, from)], &[(y, to)]);
            }
        }
    }
}

fn reduce(op: ReduceOp, axes: AxisSet, program: &Arc<Program>, output: DType) -> Reduce {
    let (params, finish_params) = Default::default();
    Reduce { op, axes, program: program.clone(), params, finish: None, finish_params, output }
}

fn record_reductions(texts: &mut TextRecorder) {
    use ReduceOp::{All, Any, ArgMax, ArgMin, Max, Min, Prod, Sum};
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[], &[]),
        (&[1000], &[0]),
        (&[3, 5], &[1]),
        (&[300, 3], &[0]),
        (&[2, 9, 4, 5], &[1, 3]),
        (&[2, 3, 4], &[]),
        (&[4200, 3], &[0]),
        (&[270_000], &[0]),
    ];
    let (identity, product) = (formula!(|x| x), formula!(|x, y| x * y));
    for (shape, axes) in shapes {
        let axes: AxisSet = axes.iter().copied().collect();
        for op in [Sum, Prod, Max, Min, ArgMax, ArgMin, Any, All] {
            for dtype in DType::ALL {
                let output = match op {
                    ArgMax | ArgMin => DType::I64,
                    Sum | Prod if !dtype.is_float() => DType::I64,
                    _ => dtype,
                };
                let signature = Signature::new([dtype], dtype).with_output_dtypes([dtype.compute().storage()]);
                let Ok(program) = identity.program(&signature) else { continue };
                texts.record(&Kernel::Reduce(reduce(op, axes, program, output)), &[(shape, dtype)]);
            }
        }
        let finish = formula!(|sum; scale| (sum * scale).sqrt()).uniform_program(DType::F32).unwrap();
        let program = product.uniform_program(DType::F32).unwrap();
        let (finish, finish_params) = (Some(finish.clone()), [Scalar::Float(0.5)].into());
        let kernel = Reduce { finish, finish_params, ..reduce(Sum, axes, program, DType::F32) };
        texts.record(&Kernel::Reduce(kernel), &[(shape, DType::F32), (shape, DType::F32)]);
    }
}

fn record_rows(texts: &mut TextRecorder) {
    let softmax = formula!(|x| {
        let e = (x - x.row_max()).exp();
        e / e.row_sum()
    });
    let centred = formula!(|x, g: per_row; k| {
        let y = x - x.row_mean();
        (y * g * k, y.square().row_sum(), x.row_min())
    });
    let selected = formula!(|x, t: per_row index| t.eq(formula::row_index()).select(x, 0.0).row_sum());
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[3, 5], &[1]),
        (&[5, 3], &[0]),
        (&[2, 130], &[1]),
        (&[3, 4, 5], &[0, 2]),
        (&[37, 10], &[1]),
        (&[100, 33], &[1]),
        (&[2, 40_000], &[1]),
        (&[180, 2, 190], &[0, 2]),
    ];
    for (shape, axes) in shapes {
        let axes: AxisSet = axes.iter().copied().collect();
        let row = axes.keepdims(&shape.into());
        for dtype in [DType::I32, DType::I64].into_iter().chain(FLOATS) {
            let x = (shape, dtype);
            for (formula, inputs) in
                [(softmax, vec![x]), (centred, vec![x, (&row[..], dtype)]), (selected, vec![x, (&row[..], DType::I64)])]
            {
                let Ok(program) = formula.uniform_program(dtype) else { continue };
                let params = (0..formula.params()).map(|_| Scalar::Float(2.0)).collect();
                texts.record(&Kernel::Row(Row { axes, program: program.clone(), params }), &inputs);
            }
        }
    }
}

fn record_scans(texts: &mut TextRecorder) {
    for op in [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp] {
        for dtype in DType::ALL {
            for (shape, axis) in [(&[3, 9][..], 1), (&[9, 3], 0), (&[2, 5, 4], 1), (&[1025], 0), (&[2, 3000], 1)] {
                for reverse in [false, true] {
                    texts.record(&Kernel::Scan(Scan { op, axis, reverse }), &[(shape, dtype)]);
                }
            }
        }
    }
}

fn record_products(texts: &mut TextRecorder) {
    let cases: [(&[usize], &[usize]); 12] = [
        (&[1, 1], &[1, 1]),
        (&[33, 17], &[17, 31]),
        (&[64, 32], &[32, 64]),
        (&[70, 40], &[40, 33]),
        (&[1, 50], &[50, 40]),
        (&[3, 1, 5, 6], &[4, 6, 2]),
        (&[4, 0], &[0, 3]),
        (&[4, 65, 19], &[4, 19, 68]),
        (&[8, 33], &[33, 130]),
        (&[131, 20], &[20, 3]),
        (&[2, 600], &[600, 5]),
        (&[36, 44], &[44, 68]),
    ];
    let epilogue = formula!(|c, bias; k| ((c + bias * k).tanh(), c));
    for (a, b) in cases {
        let columns = &b[b.len() - 1..];
        for dtype in NUMBERS {
            texts.record(&Kernel::MatMul(MatMul::default()), &[(a, dtype), (b, dtype)]);
            let product = MatMul::default().product_dtype(dtype);
            let signature = Signature::new([product, DType::F32], DType::F32).with_output_dtypes([dtype, DType::F32]);
            if let (true, Ok(program)) = (dtype.is_float(), epilogue.program(&signature)) {
                let kernel = MatMul { epilogue: Some(program.clone()), params: [Scalar::Float(2.0)].into() };
                texts.record(&Kernel::MatMul(kernel), &[(a, dtype), (b, dtype), (columns, DType::F32)]);
            }
        }
    }
}

fn record_convolutions(texts: &mut TextRecorder) {
    // The shapes of x, w and y, the number of groups and the window.
    type ConvCase = ([usize; 5], [usize; 5], [usize; 5], usize, [[usize; 3]; 4]);
    let cases: [ConvCase; 7] = [
        ([2, 3, 1, 1, 9], [4, 3, 1, 1, 3], [2, 4, 1, 1, 9], 1, [[1, 1, 3], [1, 1, 1], [1, 1, 1], [0, 0, 1]]),
        ([2, 4, 1, 1, 11], [6, 2, 1, 1, 3], [2, 6, 1, 1, 5], 2, [[1, 1, 3], [1, 1, 2], [1, 1, 3], [0, 0, 2]]),
        ([2, 3, 1, 7, 6], [5, 3, 1, 3, 2], [2, 5, 1, 4, 6], 1, [[1, 3, 2], [1, 2, 1], [1, 1, 2], [0, 1, 1]]),
        ([1, 6, 1, 5, 5], [6, 1, 1, 3, 3], [1, 6, 1, 5, 5], 6, [[1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1]]),
        ([2, 4, 1, 4, 4], [40, 4, 1, 1, 1], [2, 40, 1, 4, 4], 1, [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        ([1, 2, 1, 8, 9], [3, 2, 1, 4, 3], [1, 3, 1, 2, 3], 1, [[1, 4, 3], [1, 4, 3], [1, 1, 1], [0, 0, 0]]),
        ([2, 2, 4, 3, 5], [3, 2, 2, 3, 2], [2, 3, 3, 3, 5], 1, [[2, 3, 2], [2, 1, 1], [1, 1, 2], [1, 1, 1]]),
    ];
    for (x, w, y, groups, [size, stride, dilation, before]) in &cases {
        let window = Window { size: *size, stride: *stride, dilation: *dilation, before: *before };
        for part in [ConvPart::Output, ConvPart::Input, ConvPart::Weight] {
            for dtype in NUMBERS {
                let mut arrays = vec![(&x[..], dtype), (&w[..], dtype), (&y[..], dtype)];
                let output = arrays.remove(part.output_index());
                texts.record_to(&Kernel::Conv(Conv { window, groups: *groups, part }), &arrays, &[output]);
            }
        }
    }
}

fn record_attention(texts: &mut TextRecorder) {
    let sizes: [[usize; 7]; 6] = [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 2, 1, 33, 35, 5, 7],
        [1, 2, 2, 40, 70, 8, 4],
        [1, 1, 1, 34, 3, 9, 3],
        [1, 1, 1, 3, 4, 36, 70],
        [1, 1, 1, 2, 0, 3, 2],
    ];
    for [n, h, g, l, s, e, d] in sizes {
        for dtype in FLOATS {
            let (q, k, v) = (&[n, h, l, e][..], &[n, g, s, e][..], &[n, g, s, d][..]);
            let (o, log_sums, scores) = (&[n, h, l, d][..], &[n, h, l][..], &[n, h, l, s][..]);
            for mask in [None, Some(DType::Bool), Some(dtype)] {
                for (causal, half_factors) in [(false, None), (true, None), (false, Some(DType::BF16))] {
                    let kernel = |part| {
                        let masked = mask.is_some();
                        Kernel::Attention(Attention { causal, masked, scale: 0.5, half_factors, part })
                    };
                    let mask = mask.map(|dtype| (scores, dtype));
                    let forward: Vec<_> = [q, k, v].map(|shape| (shape, dtype)).into_iter().chain(mask).collect();
                    texts.record(&kernel(AttentionPart::Result), &forward);
                    let backward = [q, k, v, o, o, log_sums].map(|shape| (shape, dtype)).into_iter().chain(mask);
                    texts.record(&kernel(AttentionPart::Gradient), &backward.collect::<Vec<_>>());
                }
            }
        }
    }
}

fn record_recurrent(texts: &mut TextRecorder) {
    let layers = [RnnMode::Tanh, RnnMode::Relu, RnnMode::Gru, RnnMode::Lstm].map(|cell| (cell, false));
    for (cell, projected) in layers.into_iter().chain([(RnnMode::Lstm, true)]) {
        for (reverse, lengths) in [(false, false), (true, false), (false, true), (true, true)] {
            for [t, n, h, p] in [[3, 3, 5, if projected { 4 } else { 5 }], [4, 40, 9, if projected { 12 } else { 9 }]] {
                let rounded = (DType::F32, Some(DType::BF16));
                for (dtype, half_factors) in FLOATS.map(|dtype| (dtype, None)).into_iter().chain([rounded]) {
                    let (gates, blocks, lstm) = (cell.gates() * h, cell.blocks() * h, cell == RnnMode::Lstm);
                    let kernel = |part| {
                        let op = "rnn";
                        Kernel::Recurrent(Recurrent { op, cell, reverse, projected, lengths, half_factors, part })
                    };
                    let optional = |is_used: bool, shape: &[usize]| is_used.then(|| shape.to_vec());
                    let shapes = |shapes: Vec<Option<Vec<usize>>>| shapes.into_iter().flatten().collect::<Vec<_>>();
                    let forward = shapes(vec![
                        Some(vec![t, n, blocks]),
                        Some(vec![gates, p]),
                        Some(vec![blocks]),
                        Some(vec![n, p]),
                        optional(lstm, &[n, h]),
                        optional(projected, &[p, h]),
                    ]);
                    let backward = shapes(vec![
                        Some(vec![t, n, blocks]),
                        Some(vec![t + 1, n, p]),
                        Some(vec![gates, p]),
                        Some(vec![t, n, p]),
                        Some(vec![n, p]),
                        optional(lstm, &[t + 1, n, h]),
                        optional(lstm, &[n, h]),
                        optional(projected, &[p, h]),
                    ]);
                    for (part, shapes) in [(RecurrentPart::States, forward), (RecurrentPart::Gradient, backward)] {
                        let mut inputs: Vec<(&[usize], DType)> = shapes.iter().map(|s| (&s[..], dtype)).collect();
                        let sequences = [n];
                        inputs.extend(lengths.then_some((&sequences[..], DType::I64)));
                        texts.record(&kernel(part), &inputs);
                    }
                }
            }
        }
    }
}

fn record_pools(texts: &mut TextRecorder) {
    let sliding = |size, stride, dilation, before| PoolWindows::Sliding(Window { size, stride, dilation, before });
    let cases: [(&[usize], &[usize], PoolWindows); 5] = [
        (&[1, 1, 8], &[1, 1, 4], sliding([1, 1, 2], [1, 1, 2], [1, 1, 1], [0, 0, 0])),
        (&[2, 3, 1, 6, 7], &[2, 3, 1, 3, 4], sliding([1, 2, 3], [1, 2, 2], [1, 1, 1], [0, 0, 1])),
        (&[2, 4, 5, 6], &[2, 2, 3, 4], sliding([2, 2, 2], [2, 2, 1], [1, 2, 2], [0, 1, 0])),
        (&[2, 3, 4, 6, 7], &[2, 3, 3, 4, 7], PoolWindows::Adaptive),
        (&[2, 1, 70, 65], &[2, 1, 1, 1], PoolWindows::Adaptive),
    ];
    for (x, y, windows) in cases {
        for dtype in DType::ALL {
            let (values, positions) = ((y, dtype), (y, DType::I64));
            let kernel = |part| Kernel::Pool(Pool { windows, part });
            texts.record_to(&kernel(PoolPart::Maximum), &[(x, dtype)], &[values, positions]);
            texts.record_to(&kernel(PoolPart::Gradient), &[values, positions], &[(x, dtype)]);
        }
    }
}

fn record_indexed(texts: &mut TextRecorder) {
    let axes = |axes: &[usize]| Index::Axes(axes.iter().copied().collect());
    let cases: [(&[usize], Index, &[usize]); 9] = [
        (&[7], axes(&[0]), &[25]),
        (&[7, 3], axes(&[0]), &[2, 9]),
        (&[3, 7], axes(&[1]), &[70]),
        (&[3, 4, 5], axes(&[0, 2]), &[16]),
        (&[3, 2, 2], axes(&[0, 1, 2]), &[2, 13]),
        (&[3, 4], Index::Along(0), &[9, 4]),
        (&[3, 4, 2], Index::Along(1), &[3, 9, 2]),
        (&[3], axes(&[0]), &[0]),
        (&[50, 5], axes(&[0]), &[70_000]),
    ];
    for (shape, index, index_shape) in &cases {
        let count = match index {
            Index::Axes(axes) => axes.len(),
            Index::Along(_) => 1,
        };
        let values = index.shape(&(*shape).into(), &(*index_shape).into());
        for dtype in DType::ALL {
            let with_indices = |array| [array].into_iter().chain(vec![(*index_shape, DType::I64); count]);
            for from_end in [true, false] {
                let kernel = Kernel::Gather(Gather { op: "gather", from_end, index: index.clone() });
                texts.record(&kernel, &with_indices((*shape, dtype)).collect::<Vec<_>>());
            }
            for reduction in [ScatterOp::Set, ScatterOp::Add, ScatterOp::Mul, ScatterOp::Max, ScatterOp::Min] {
                let scatter = Scatter { op: "scatter", from_end: true, index: index.clone(), reduction };
                let inputs: Vec<_> = with_indices((&values[..], dtype)).collect();
                texts.record_to(&Kernel::Scatter(scatter), &inputs, &[(*shape, dtype)]);
            }
        }
    }
}

fn record_sorts(texts: &mut TextRecorder) {
    for dtype in DType::ALL {
        for (shape, axis, k) in
            [(&[9][..], 0, 9), (&[17, 3], 0, 17), (&[2, 5, 4], 1, 2), (&[2, 1025], 1, 1025), (&[600, 2], 0, 257)]
        {
            for descending in [false, true] {
                texts.record(&Kernel::Sort(Sort { axis, k, descending }), &[(shape, dtype)]);
            }
        }
        for (sorted, values) in [(&[37][..], &[2, 3, 5][..]), (&[2, 9], &[2, 40]), (&[0], &[3])] {
            for right in [false, true] {
                texts.record(&Kernel::Search(Search { right }), &[(sorted, dtype), (values, dtype)]);
            }
        }
        for distribution in [Distribution::Uniform, Distribution::Normal, Distribution::Bits] {
            for shape in [&[33, 7][..], &[5], &[0]] {
                let outputs = [(&[2][..], DType::I64), (shape, dtype)];
                texts.record_to(&Kernel::Random(Random { distribution }), &[], &outputs);
            }
        }
        for (shape, axis, terms) in [(&[7][..], 0, 6), (&[3, 7], 1, 8), (&[2, 5, 4, 3], 2, 90), (&[50, 2], 0, 70_000)] {
            let (starts, columns, weights) = ((&[5][..], DType::I64), ([terms], DType::I64), ([terms], dtype));
            let inputs = [(shape, dtype), starts, (&columns.0[..], columns.1), (&weights.0[..], weights.1)];
            texts.record(&Kernel::SparseProduct(SparseProduct { op: "test", axis }), &inputs);
        }
    }
}

#[test]
fn texts_of_all_families_are_unchanged() {
    let mut texts = TextRecorder::default();
    let families = [
        record_maps,
        record_copies,
        record_reductions,
        record_rows,
        record_scans,
        record_products,
        record_convolutions,
        record_attention,
        record_recurrent,
        record_pools,
        record_indexed,
        record_sorts,
    ];
    families.into_iter().for_each(|record| record(&mut texts));
    let mut lines = String::from("# family: kernels, dispatches, digest of all descriptions\n");
    for (family, FamilyTexts { kernels, dispatches, digest }) in &texts.0 {
        let _ = writeln!(lines, "{family}: {kernels} {dispatches} {:016x}", digest.0);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/families/texts.txt");
    if std::env::var_os("UPDATE_TEXTS").is_some() {
        std::fs::write(path, &lines).unwrap();
    }
    assert_eq!(lines, std::fs::read_to_string(path).unwrap(), "the texts of a family have changed");
    assert_eq!(texts.0.len(), 16, "every family that runs on a GPU must have texts");
}
