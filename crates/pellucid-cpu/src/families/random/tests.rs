use super::*;
use crate::testing::{self, Choices, TestLayout};
use crate::with_threads;
use pellucid_ir::Error;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Element, Shape};

/// Computes Philox 4×32-10 by the definition.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        counter = round(counter, key);
        key = next_key(key);
    }
    counter
}

/// Draws an array from the generator state `state`, and returns it with the new state.
fn generate_array(
    distribution: Distribution,
    shape: &Shape,
    dtype: DType,
    layout: TestLayout,
    state: [i64; 2],
) -> (testing::TestArray, Vec<i64>) {
    let state = testing::TestArray::of([2], TestLayout::Plain, &state);
    let values = testing::TestArray::new(shape.clone(), dtype, layout);
    testing::run_kernel(Kernel::Random(Random { distribution }), &[], &[&state, &values]).unwrap();
    let state = state.values();
    (values, state)
}

/// Draws `n` values from the generator state `state`.
fn draw<T: Element>(distribution: Distribution, n: usize, state: [i64; 2]) -> Vec<T> {
    generate_array(distribution, &[n].into(), T::DTYPE, TestLayout::Plain, state).0.values()
}

#[test]
fn philox_equals_the_published_test_vectors() {
    // Known answers from Random123 (`tests/kat_vectors`).
    assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    assert_eq!(philox([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    let (counter, key) = ([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]);
    assert_eq!(philox(counter, key), [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
}

#[test]
fn element_i_uses_word_i_of_the_stream() {
    let (key, counter) = (0x0123_4567_89ab_cdef_i64, (1i64 << 32) - 3);
    let word = |i: u64| {
        let c = counter as u64 + i / 4;
        philox([c as u32, (c >> 32) as u32, 0, 0], [key as u32, (key >> 32) as u32])[i as usize % 4]
    };
    for &isa in Isa::available() {
        let mut out = [0; WORDS];
        // SAFETY: `Isa::available` lists instruction sets of this processor.
        unsafe { generate::<u32, RawBits>(isa).run([key as u32, (key >> 32) as u32], counter as u64, &mut out) };
        assert!(out.iter().enumerate().all(|(i, &w)| w == word(i as u64)), "{isa:?}");
    }
    let bits: Vec<i32> = draw(Distribution::Bits, 1001, [key, counter]);
    assert!(bits.iter().enumerate().all(|(i, &b)| b as u32 == word(i as u64)));
    let wide: Vec<i64> = draw(Distribution::Bits, 101, [key, counter]);
    assert!(wide.iter().enumerate().all(|(i, &b)| b as u64 == join_words(word(2 * i as u64), word(2 * i as u64 + 1))));
    let unit: Vec<f32> = draw(Distribution::Uniform, 1001, [key, counter]);
    assert!(unit.iter().enumerate().all(|(i, &u)| u == (word(i as u64) >> 8) as f32 / 16_777_216.0));
    let bytes: Vec<u8> = draw(Distribution::Bits, 9, [key, counter]);
    assert!(bytes.iter().enumerate().all(|(i, &b)| b == (word(i as u64) >> 24) as u8));
}

#[test]
fn the_counter_advances_by_the_draws_and_continues_the_stream() {
    for (n, dtype, draws) in
        [(0, DType::F32, 0), (1, DType::F32, 1), (9, DType::F16, 3), (9, DType::F64, 5), (8, DType::F64, 4)]
    {
        let (_, state) = generate_array(Distribution::Uniform, &[n].into(), dtype, TestLayout::Plain, [7, -1]);
        assert_eq!(state, [7, -1 + draws], "{n} {dtype}");
    }
    let all: Vec<f64> = draw(Distribution::Normal, 200, [5, 0]);
    assert_eq!(all[64..], draw::<f64>(Distribution::Normal, 136, [5, 32]));
}

#[test]
fn layouts_and_threads_change_no_value() {
    let shape = Shape::from([37, 11, 100]);
    for distribution in [Distribution::Uniform, Distribution::Normal] {
        for dtype in [DType::F16, DType::F32, DType::F64] {
            let plain = generate_array(distribution, &shape, dtype, TestLayout::Plain, [1, 2]).0.reals();
            for layout in TestLayout::ALL {
                let other = with_threads(3, || generate_array(distribution, &shape, dtype, layout, [1, 2]).0.reals());
                assert_eq!(plain, other, "{dtype} {layout:?}");
            }
        }
    }
    assert_eq!(
        generate_array(Distribution::Uniform, &().into(), DType::F32, TestLayout::Plain, [0, 0]).0.reals().len(),
        1
    );
}

#[test]
fn arrays_of_all_lengths_are_prefixes_of_one_stream() {
    use Distribution::{Bits, Normal, Uniform};
    let choices = &Choices::new(81);
    for dtype in DType::ALL {
        for distribution in if dtype.is_float() { &[Uniform, Normal][..] } else { &[Bits] } {
            let values = |shape: &Shape, layout| generate_array(*distribution, shape, dtype, layout, [3, 4]).0.reals();
            let longest = values(&[40_000].into(), TestLayout::Plain);
            for n in (1..=70).chain([127, 128, 129, 1000, 40_000]) {
                let (layout, threads) = (choices.of(&TestLayout::ALL), choices.threads());
                let rows = if n % 5 == 0 { 5 } else { 1 };
                let found = with_threads(threads, || values(&[rows, n / rows].into(), layout));
                assert!(found == longest[..n], "{n} {dtype} {distribution:?} {layout:?} {threads} threads");
            }
        }
    }
}

#[test]
fn instruction_sets_change_no_bit_of_normal_values() {
    for counter in (0..100_000).step_by(LANES) {
        let bits = |isa: &Isa| {
            let (mut single, mut double) = ([0f32; WORDS], [0f64; WORDS]);
            // SAFETY: `isa` is portable or from `Isa::available`, so it is an instruction set of this processor.
            unsafe {
                generate::<f32, StandardNormal>(*isa).run([3, 4], counter, &mut single);
                generate::<f64, StandardNormal>(*isa).run([3, 4], counter, &mut double);
            }
            (single.map(f32::to_bits), double.map(f64::to_bits))
        };
        let portable = bits(&Isa::Portable);
        assert!(Isa::available().iter().all(|isa| bits(isa) == portable));
    }
}

#[test]
fn moments_and_range_match_the_distribution() {
    let n = 1_000_000;
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let moments = |distribution| {
            let x = generate_array(distribution, &[n].into(), dtype, TestLayout::Plain, [11, 0]).0.reals();
            let mean = x.iter().sum::<f64>() / n as f64;
            let power = |p| x.iter().map(|x| (x - mean).powi(p)).sum::<f64>() / n as f64;
            (mean, power(2), power(3), power(4), x)
        };
        let (mean, variance, _, _, x) = moments(Distribution::Uniform);
        assert!(x.iter().all(|x| (0.0..1.0).contains(x)), "{dtype}");
        // Uniform `bf16` values are multiples of 2⁻⁸ below 1, so their mean is ½ − 2⁻⁹.
        assert!((mean - 0.5).abs() < 3e-3 && (variance - 1.0 / 12.0).abs() < 1e-3, "{dtype} {mean} {variance}");
        let (mean, variance, third, fourth, x) = moments(Distribution::Normal);
        assert!(x.iter().all(|x| x.is_finite()));
        assert!(mean.abs() < 4e-3 && (variance - 1.0).abs() < 6e-3, "{dtype} {mean} {variance}");
        assert!(third.abs() < 0.02 && (fourth - 3.0).abs() < 0.05, "{dtype} {third} {fourth}");
    }
    let heads = draw::<bool>(Distribution::Bits, n, [0, 0]).into_iter().filter(|&b| b).count();
    assert!((heads as f64 / n as f64 - 0.5).abs() < 2e-3);
}

#[test]
fn wrong_dtypes_are_errors_and_leave_the_state_unchanged() {
    for (distribution, dtype) in
        [(Distribution::Uniform, DType::I32), (Distribution::Normal, DType::Bool), (Distribution::Bits, DType::F32)]
    {
        let state = testing::TestArray::of([2], TestLayout::Plain, &[1i64, 2]);
        let values = testing::TestArray::new([4], dtype, TestLayout::Plain);
        let result = testing::run_kernel(Kernel::Random(Random { distribution }), &[], &[&state, &values]);
        assert!(matches!(result, Err(Error::DTypeMismatch { .. })));
        assert_eq!(state.values::<i64>(), [1, 2]);
    }
}

/// Computes a permutation by its definition.
fn naive_permutation(words: &[u64], bits: u32) -> Vec<i64> {
    let bucket = |number: usize| if bits == 0 { 0 } else { words[number] >> (64 - bits) };
    let mut numbers: Vec<usize> = (0..words.len()).collect();
    numbers.sort_by_key(|&number| bucket(number));
    let mut start = 0;
    while start < numbers.len() {
        let len = numbers[start..].iter().take_while(|&&number| bucket(number) == bucket(numbers[start])).count();
        for k in 1..len {
            let other = (u128::from(words[start + k] << bits) * (k as u128 + 1)) >> 64;
            numbers.swap(start + k, start + other as usize);
        }
        start += len;
    }
    numbers.into_iter().map(|number| number as i64).collect()
}

#[test]
fn permutations_follow_their_definition_in_every_layout() {
    for n in [0, 1, 2, 3, 100, 4095, 4096, 5000, 70_000] {
        let words: Vec<i64> = draw(Distribution::Bits, n, [9, 4]);
        let words: Vec<u64> = words.into_iter().map(|word| word as u64).collect();
        let expected = naive_permutation(&words, Distribution::bucket_bits(n));
        for layout in TestLayout::ALL {
            for threads in [1, 3] {
                let (numbers, state) = with_threads(threads, || {
                    generate_array(Distribution::Permutation, &[n].into(), DType::I64, layout, [9, 4])
                });
                assert!(numbers.values::<i64>() == expected, "{n} {layout:?} {threads}");
                assert_eq!(state, [9, 4 + n.div_ceil(2) as i64]);
            }
        }
    }
    assert_eq!([4095, 4096, 1 << 20, 1 << 22, 1 << 30].map(Distribution::bucket_bits), [0, 1, 9, 11, 11]);
}

#[test]
fn permutations_are_uniform() {
    // Each number is at each position equally often, across the buckets.
    let (n, quarter) = (8192, 2048);
    let mut counts = [[0u32; 4]; 4];
    for key in 0..40 {
        let numbers: Vec<i64> = draw(Distribution::Permutation, n, [key, 0]);
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..n as i64));
        numbers.iter().enumerate().for_each(|(i, &number)| counts[i / quarter][number as usize / quarter] += 1);
    }
    let expected = 40.0 * quarter as f64 / 4.0;
    assert!(counts.iter().flatten().all(|&count| (f64::from(count) / expected - 1.0).abs() < 0.04), "{counts:?}");
    // All orders of three numbers are equally frequent.
    let mut orders = std::collections::BTreeMap::new();
    (0..6000).for_each(|key| *orders.entry(draw::<i64>(Distribution::Permutation, 3, [key, 0])).or_insert(0) += 1);
    assert!(orders.len() == 6 && orders.values().all(|count| (850..1150).contains(count)), "{orders:?}");
}
