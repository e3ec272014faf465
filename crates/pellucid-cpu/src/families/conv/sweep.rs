//! Sweeps of convolutions and their gradients over small channel, output and position counts, compared with naive
//! loops.

use super::tests::{ALL_PARTS, ConvCase, window};
use crate::testing::{Choices, TestArray, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::kernel::ConvPart;
use pellucid_ir::{DType, bf16};

const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I8, DType::BF16];

/// Compares one part of a case with the naive loops, on a random number of threads, in a random layout and dtype.
///
/// The values are small integers, so their sums are exact.
fn check_part(case: &ConvCase, part: ConvPart, choices: &Choices) {
    let shapes = case.shapes();
    let values = [0, 1, 2].map(|i| numbers(shapes[i].size(), 2, i as u64 + 7));
    let (dtype, layout, threads) = (choices.of(&DTYPES), choices.of(&TestLayout::ALL), choices.threads());
    let round = |v: f64| match dtype {
        DType::I8 => v as i64 as i8 as f64,
        DType::BF16 => bf16::from_f64(v).to_f64(),
        _ => v,
    };
    let expected: Vec<f64> = case.naive(part, values.each_ref().map(|v| &v[..])).into_iter().map(round).collect();
    let arrays = [0, 1, 2].map(|i| TestArray::cast(shapes[i].clone(), layout, dtype, &values[i]));
    let found = with_threads(threads, || case.compute(part, &arrays, layout).reals());
    assert!(found == expected, "{part:?} {dtype} {layout:?} {threads} threads {case:?}");
}

fn case(images: usize, groups: usize, channels: [usize; 2], x: [usize; 3], size: [usize; 3]) -> ConvCase {
    ConvCase { images, groups, channels, x, after: [0; 3], window: window(size, [1; 3], [1; 3], [0; 3]) }
}

#[test]
fn one_position_with_all_small_channel_counts() {
    let choices = &Choices::new(31);
    for [cin, cout] in (1..=20).flat_map(|cin| (1..=20).map(move |cout| [cin, cout])) {
        let size = choices.of(&[[1, 1, 1], [1, 1, 2], [1, 2, 3]]);
        let (images, groups) = (1 + choices.below(4), 1 + choices.below(2));
        ALL_PARTS
            .into_iter()
            .for_each(|part| check_part(&case(images, groups, [cin, cout], size, size), part, choices));
    }
}

#[test]
fn small_image_sizes_with_several_channel_counts() {
    let choices = &Choices::new(32);
    for (width, height) in (1..=20).flat_map(|w| [1, 2, 3, 7, 16].map(|h| (w, h))) {
        for _ in 0..2 {
            let channels = [choices.of(&[1, 2, 3, 7, 8, 17]), choices.of(&[1, 2, 3, 5, 8, 15, 16, 17, 33])];
            let size = [1, 1 + choices.below(3), 1 + choices.below(3)];
            let x = [1, height + size[1] - 1, width + size[2] - 1];
            let (images, groups) = (1 + choices.below(3), choices.of(&[1, 1, 2, 3]));
            ALL_PARTS.into_iter().for_each(|part| check_part(&case(images, groups, channels, x, size), part, choices));
        }
    }
}

#[test]
fn random_windows_strides_dilations_and_paddings() {
    let choices = &Choices::new(33);
    for _ in 0..400 {
        let triple = |choices: &Choices, n: usize| [(); 3].map(|()| 1 + choices.below(n));
        let (size, stride, dilation) = (triple(choices, 4), triple(choices, 3), triple(choices, 2));
        let before = [(); 3].map(|()| choices.below(4));
        let window = window(size, stride, dilation, before);
        // Along each axis, the image has one to four elements, or more if the padded image would be shorter than a
        // window.
        let [x, after] = [(); 2].map(|()| [(); 3].map(|()| choices.below(4)));
        let x = [0, 1, 2].map(|a| (x[a] + 1).max((window.span(a) + 1).saturating_sub(before[a] + after[a])));
        let channels = [1 + choices.below(6), 1 + choices.below(20)];
        let case = ConvCase { images: 1 + choices.below(3), groups: 1 + choices.below(2), channels, x, after, window };
        ALL_PARTS.into_iter().for_each(|part| check_part(&case, part, choices));
    }
}

#[test]
fn output_counts_near_vector_and_task_sizes() {
    let choices = &Choices::new(34);
    // The work is large enough for several threads. The output has one position or two.
    for cout in [15, 16, 17, 31, 33, 47, 49, 63, 65, 120] {
        let size = choices.of(&[[1, 5, 5], [1, 4, 4]]);
        for x in [size, [1, size[1] + 1, size[2]]] {
            ALL_PARTS.into_iter().for_each(|part| check_part(&case(40, 1, [16, cout], x, size), part, choices));
        }
    }
    // Winograd windows: channel counts near the vector length, images of one tile and of several.
    for channels in [[16, 16], [17, 16], [16, 33], [31, 32], [20, 19]] {
        for side in [4usize, 5, 6, 7, 9, 16] {
            let (images, groups) = (16usize.div_ceil((side - 2).div_ceil(2).pow(2)) + 1, 1 + choices.below(2));
            ALL_PARTS.into_iter().for_each(|part| {
                check_part(&case(images, groups, channels, [1, side, side], [1, 3, 3]), part, choices)
            });
        }
    }
}

#[test]
fn weight_gradient_of_one_position_writes_only_its_own_memory() {
    let choices = &Choices::new(35);
    for _ in 0..10 {
        check_part(&case(64, 1, [16, 120], [1, 5, 5], [1, 5, 5]), ConvPart::Weight, choices);
    }
    check_part(&case(1024, 1, [8, 250], [1, 1, 1], [1, 1, 1]), ConvPart::Weight, choices);
}
