//! Decoding with a cache, positional encodings, and errors.

use pellucid::Error;
use pellucid::nn::{
    AttentionMasks, KvCache, LearnedPositions, Lstm, MultiheadAttention, MultiheadAttentionOptions, Rnn, Rotary,
    SinusoidalPositions, StateDict, Transformer, TransformerDecoder, TransformerEncoder, causal_mask, functional_call,
    pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, sinusoidal_positions, unpack_sequence,
    unpad_sequence,
};
use pellucid::prelude::*;

fn distance(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).abs().max(..).item()
}

/// Returns a pre-norm encoder with grouped-query attention and rotary embeddings.
fn body() -> TransformerEncoder {
    let plain = TransformerEncoder::new(16, 4, 3).hidden(32).dropout(0.0).activation(ops::silu).norm_first(true);
    plain.kv_heads(2).rotary(Rotary::default()).norm(true)
}

#[test]
fn steps_of_any_length_are_attention_over_the_whole_sequence() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(1);
    let (model, x) = (body(), Tensor::randn([2, 9, 16], DType::F32));
    let _off = no_grad();
    let full = model.forward_masked(&x, AttentionMasks::causal());
    let caches = model.caches(2, 12);
    for _ in 0..2 {
        for (start, length) in [(0, 4), (4, 1), (5, 1), (6, 3)] {
            let part = model.forward_cached(&x.narrow(1, start, length), &caches);
            assert!(
                distance(&part, &full.narrow(1, start, length)) < 1e-5,
                "the decoded elements starting at {start} differ"
            );
        }
        assert_eq!(caches[2].length().item::<i64>(), 9);
        caches.iter().for_each(KvCache::clear);
    }
}

#[test]
fn a_captured_decoding_step_continues_the_sequence() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(2);
    let (model, x) = (body(), Tensor::randn([2, 6, 16], DType::F32));
    let _off = no_grad();
    let eager = model.caches(2, 6);
    let caches = model.caches(2, 6);
    let mut step = capture(|inputs| model.forward_cached(&inputs[0], &caches), &[&x.narrow(1, 0, 1)]).unwrap();
    for at in 0..6 {
        let element = x.narrow(1, at, 1);
        let expected = model.forward_cached(&element, &eager).to_vec::<f32>();
        assert_eq!(step.launch(&[&element]).unwrap().to_vec::<f32>(0), expected, "the decoded element {at} differs");
    }
    assert_eq!(caches[0].length().item::<i64>(), 6);
    let full = step.launch(&[&x.narrow(1, 0, 1)]).err().unwrap();
    assert!(matches!(full, Error::IndexOutOfBounds { .. }), "{full}");
}

#[test]
fn decoders_with_cross_attention_decode_step_by_step() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(3);
    let model = TransformerDecoder::new(8, 2, 2).hidden(12).dropout(0.0);
    let (x, memory) = (Tensor::randn([2, 5, 8], DType::F32), Tensor::randn([2, 3, 8], DType::F32));
    let visible = Tensor::from([[true, true, false], [true, true, true]]);
    let _off = no_grad();
    let full = model.forward(&x, &memory, AttentionMasks::causal(), AttentionMasks::padding(&visible));
    let caches = model.caches(2, 5);
    for at in 0..5 {
        let part = model.forward_cached(&x.narrow(1, at, 1), &memory, &caches, AttentionMasks::padding(&visible));
        assert!(distance(&part, &full.narrow(1, at, 1)) < 1e-5, "the decoded element {at} differs");
    }
}

/// A cache that is created under autocast has half precision; other caches keep their dtype under the guard.
#[test]
fn decoding_in_mixed_precision() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(5);
    let (model, x) = (body(), Tensor::randn([2, 5, 16], DType::F32));
    let _off = no_grad();
    let full = model.forward_masked(&x, AttentionMasks::causal());
    let single = model.caches(2, 5);
    for half in [DType::BF16, DType::F16] {
        let _guard = autocast(half);
        single.iter().for_each(KvCache::clear);
        for caches in [&model.caches(2, 5), &single] {
            for (start, length) in [(0, 3), (3, 1), (4, 1)] {
                let part = model.forward_cached(&x.narrow(1, start, length), caches);
                let error = distance(&part, &full.narrow(1, start, length));
                assert!(
                    error > 0.0 && error < 0.05,
                    "the error of the decoded elements starting at {start} is {error}, expected in (0, 0.05)"
                );
            }
        }
    }
}

/// Decoding a padded batch of sequences equals decoding each sequence separately.
#[test]
fn prompts_may_be_padded_on_the_left() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(6);
    let (model, lengths) = (body(), [4usize, 2, 1]);
    let _off = no_grad();
    let x = Tensor::randn([3, 7, 16], DType::F32);
    let visible = Tensor::from([[true; 4], [false, false, true, true], [false, false, false, true]]);
    let caches: Vec<KvCache> = model.caches(3, 9).into_iter().map(|c| c.padded(&visible)).collect();
    for _ in 0..2 {
        let parts = [(0, 4), (4, 1), (5, 2)].map(|(start, n)| model.forward_cached(&x.narrow(1, start, n), &caches));
        let found = ops::concatenate(&parts, 1).unwrap();
        for (row, length) in lengths.into_iter().enumerate() {
            let own = |t: &Tensor| t.narrow(0, row, 1).narrow(1, 4 - length, 3 + length);
            let alone = model.forward_masked(&own(&x), AttentionMasks::causal());
            assert!(
                distance(&own(&found), &alone) < 1e-5,
                "the output of a prompt of length {length} in the padded batch differs from that without padding"
            );
        }
        assert!(found.isfinite().all(..).item::<bool>());
        caches.iter().for_each(KvCache::clear);
    }
    let rejected = |visible: Tensor| caches[0].clone().try_padded(&visible).err().unwrap();
    assert!(matches!(rejected(Tensor::ones([2, 4], DType::Bool)), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(Tensor::ones([3, 10], DType::Bool)), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(Tensor::ones([3, 4], DType::I64)), Error::DTypeMismatch { .. }));
}

#[test]
fn invalid_inputs_of_a_cache_are_errors() {
    let _random = pellucid::Generator::new(0).scope();
    let model = MultiheadAttention::new(8, 2);
    let (x, cache) = (Tensor::ones([1, 3, 8], DType::F32), model.cache(1, 4));
    let rejected = |x: &Tensor, cache: &KvCache| model.try_forward_cached(x, cache).err().unwrap();
    assert!(
        matches!(rejected(&x, &cache), Error::InvalidArgument { .. }),
        "a cached call must be an error while gradients are recorded"
    );
    let _off = no_grad();
    assert!(
        matches!(rejected(&x, &model.cache(2, 4)), Error::ShapeMismatch { .. }),
        "a batch size that differs from the cache must be an error"
    );
    assert!(
        matches!(rejected(&Tensor::ones([1, 5, 8], DType::F32), &cache), Error::ShapeMismatch { .. }),
        "a sequence longer than the capacity of the cache must be an error"
    );
    model.forward_cached(&x, &cache);
    let full = rejected(&x, &cache).to_string();
    assert!(full.contains("the cache is full: its capacity is 4"), "{full}");
    assert_eq!(cache.length().item::<i64>(), 3);
    assert_eq!(body().try_forward_cached(&Tensor::ones([1, 1, 16], DType::F32), &[]).err().unwrap().to_string(), {
        "transformer_encoder: expected one cache per layer (3), got 0; create them with caches()"
    });
}

#[test]
fn shapes_are_known_without_values() {
    let _random = pellucid::Generator::new(0).scope();
    let summary = body().summary(&[2, 9, 16]).unwrap();
    assert_eq!(summary.rows[0].output.dims(), [2, 9, 16]);
    assert!(summary.rows.iter().any(|row| row.name == "layers.2.self_attn.out_proj"), "{summary}");
    let two = Lstm::new(4, 5).layers(2).bidirectional(true).projection(3);
    assert_eq!(two.output_shape(&[7, 2, 4]).unwrap().dims(), [7, 2, 6]);
    let source = Tensor::zeros([0, 4, 8], DType::F32);
    let model = Transformer::new(8, 2, [1, 1]).hidden(12);
    let y =
        model.forward(&source, &source, AttentionMasks::default(), AttentionMasks::causal(), AttentionMasks::default());
    assert_eq!(y.shape().dims(), [0, 4, 8]);
}

#[test]
fn invalid_options_are_errors() {
    let _random = pellucid::Generator::new(0).scope();
    let attention = || MultiheadAttention::new(6, 2);
    assert!(attention().try_kv_heads(0).is_err());
    assert!(attention().try_kv_heads(4).is_err());
    assert!(attention().try_dropout(1.5).is_err());
    assert!(attention().try_rotary(Rotary::default()).is_err());
    assert!(MultiheadAttention::try_new(6, 4).is_err());
    assert!(Rnn::new(2, 3).try_layers(0).is_err());
    let rnn = Rnn::new(2, 3);
    let x = Tensor::ones([4, 1, 2], DType::F32);
    assert!(matches!(
        rnn.try_forward_sequence(&x, Some(&Tensor::ones([1, 3], DType::F32))),
        Err(Error::ShapeMismatch { .. })
    ));
}

#[test]
fn dropout_of_attention_is_off_in_evaluation() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(4);
    let m = MultiheadAttention::new(8, 2).dropout(0.5);
    let x = Tensor::randn([2, 5, 8], DType::F32);
    let _off = no_grad();
    assert!(distance(&m.forward(&x), &m.forward(&x)) > 0.0);
    m.eval();
    assert_eq!(m.forward(&x).to_vec::<f32>(), m.forward(&x).to_vec::<f32>());
}

#[test]
pub(crate) fn positions_are_sinusoids_or_rows() {
    let _random = pellucid::Generator::new(0).scope();
    let table = sinusoidal_positions(&Tensor::arange(0i64, 50, 1), 5, DType::F64).unwrap();
    for (p, k) in [(0usize, 0usize), (0, 1), (7, 2), (49, 3), (49, 4)] {
        let angle = p as f64 / 10_000f64.powf((k - k % 2) as f64 / 5.0);
        let expected = if k % 2 == 0 { angle.sin() } else { angle.cos() };
        assert!(
            (table.i((p as isize, k as isize)).item::<f64>() - expected).abs() < 1e-12,
            "the encoding of position {p} is wrong at index {k}"
        );
    }
    let x = Tensor::ones([2, 4, 6], DType::F32);
    let expected = sinusoidal_positions(&Tensor::arange(0i64, 4, 1), 6, DType::F32).unwrap() + 1.0;
    assert_eq!(SinusoidalPositions.forward(&x).select(0, 1).to_vec::<f32>(), expected.to_vec::<f32>());
    let learned = LearnedPositions::new(4, 6);
    let rows = learned.forward_rows(&Tensor::from([3i64]));
    assert_eq!((learned.forward(&x) - 1.0).i((0, 3)).to_vec::<f32>(), (rows + 1.0 - 1.0).to_vec::<f32>());
    assert!(learned.try_forward(&Tensor::ones([5, 6], DType::F32)).is_err());
    assert_eq!(causal_mask(3).to_vec::<bool>(), [true, false, false, true, true, false, true, true, true]);
}

#[test]
fn padded_sequences_are_recovered() {
    let _random = pellucid::Generator::new(0).scope();
    let lengths = [3usize, 0, 5];
    let sequences: Vec<Tensor> =
        lengths.iter().map(|&l| Tensor::randn([l, 2], DType::F32).requires_grad_(true)).collect();
    let all: Vec<&Tensor> = sequences.iter().collect();
    for batch_first in [false, true] {
        let (padded, found) = pad_sequence(&all, batch_first, 7.0).unwrap();
        assert_eq!(padded.shape().dims(), if batch_first { [3, 5, 2] } else { [5, 3, 2] });
        assert_eq!(found.to_vec::<i64>(), [3, 0, 5]);
        assert_eq!(padded.eq(7.0).to_dtype(DType::I64).sum(..).item::<i64>(), 2 * (2 + 5));
        for (sequence, again) in all.iter().zip(unpad_sequence(&padded, &found, batch_first).unwrap()) {
            assert_eq!(sequence.to_vec::<f32>(), again.to_vec::<f32>());
        }
        padded.sum(..).backward();
    }
    assert_eq!(sequences[0].grad().unwrap().to_vec::<f32>(), [2.0; 6]);
    assert!(pad_sequence(&[] as &[&Tensor], false, 0.0).is_err());
    let padded = Tensor::ones([5, 3, 2], DType::F32);
    for wrong in [
        Tensor::from([3i64, 0]),
        Tensor::from([3i64, -1, 5]),
        Tensor::from([3i64, 6, 5]),
        Tensor::ones([3], DType::F32),
    ] {
        assert!(unpad_sequence(&padded, &wrong, false).is_err());
    }
    assert!(pad_sequence(&[&Tensor::ones([1, 2], DType::F32), &Tensor::ones([1, 3], DType::F32)], false, 0.0).is_err());
}

#[test]
fn packed_sequences_run_to_their_own_ends() {
    let _random = pellucid::Generator::new(0).scope();
    for batch_first in [false, true] {
        let lstm = Lstm::new(3, 4).layers(2).bidirectional(true).batch_first(batch_first);
        let of = |length: usize| Tensor::randn([length, 3], DType::F64).to_dtype(DType::F32);
        let all: Vec<Tensor> = [2, 5, 0, 4].map(of).map(|x| x.requires_grad_(true)).into();
        let (y, (h, c)) = lstm.forward_packed(&pack_sequence(&all).unwrap(), None);
        let near = |a: &Tensor, b: &Tensor| a.allclose(b, 1e-5, 1e-6, false).item::<bool>();
        for (k, (x, y)) in all.iter().zip(unpack_sequence(&y).unwrap()).enumerate().filter(|(_, (x, _))| x.numel() > 0)
        {
            let (expected, (last, cell)) = lstm.forward_sequence(x, None);
            assert!(near(&y, &expected), "sequence {k}");
            assert!(near(&h.select(1, k as isize), &last) && near(&c.select(1, k as isize), &cell), "states of {k}");
        }
        let (padded, lengths) = pad_packed_sequence(&y, true, 7.0).unwrap();
        assert_eq!((padded.shape().dims(), lengths.to_vec::<i64>()), (&[4, 5, 8][..], vec![2, 5, 0, 4]));
        assert!(
            padded.i((0, 2..)).eq(7.0).all(..).item::<bool>() && padded.select(0, 2).eq(7.0).all(..).item::<bool>()
        );
        padded.sum(..).backward();
        assert!(all.iter().all(|x| x.grad().unwrap().shape() == x.shape()));
        // A tensor with arbitrary values in its padding packs to the same sequences.
        let (junk, lengths) = pad_sequence(&all, batch_first, f64::NAN).unwrap();
        let (again, _) = lstm.forward_packed(&pack_padded_sequence(&junk, &lengths, batch_first).unwrap(), None);
        let again = pad_packed_sequence(&again, true, 7.0).unwrap().0;
        assert_eq!(again.to_vec::<f32>(), padded.to_vec::<f32>());
    }
    let x = Tensor::ones([5, 2, 3], DType::F32);
    for lengths in [Tensor::from([1i64, 2, 3]), Tensor::from([[1i64, 2]]), Tensor::from([1.0f32, 2.0])] {
        assert!(pack_padded_sequence(&x, &lengths, false).is_err());
    }
    let beyond = pack_padded_sequence(&x, &Tensor::from([6i64, 1]), false).unwrap();
    assert!(Lstm::new(3, 4).try_forward_packed(&beyond, None).is_err() && unpack_sequence(&beyond).is_err());
}

/// A functional call of attention is bit-identical to the layer, for every option, and gradients reach all weights.
#[test]
fn attention_as_a_function_equals_the_layer() {
    let _random = pellucid::Generator::new(0).scope();
    let plain = || MultiheadAttention::new(8, 4);
    let grouped = || plain().bias(false).kv_heads(2).rotary(Rotary::default());
    let extended = || plain().kdim(5).vdim(3).bias_kv(true).zero_attn(true);
    let widths = MultiheadAttentionOptions { kv_heads: Some(4), kdim: Some(8), vdim: Some(8), ..Default::default() };
    let kinds: [(&dyn Fn() -> MultiheadAttention, _); 3] = [
        (&plain, widths),
        (
            &grouped,
            MultiheadAttentionOptions { bias: false, kv_heads: Some(2), rotary: Some(Rotary::default()), ..widths },
        ),
        (
            &extended,
            MultiheadAttentionOptions { kdim: Some(5), vdim: Some(3), bias_kv: true, zero_attn: true, ..widths },
        ),
    ];
    for (kind, (make, options)) in kinds.into_iter().enumerate() {
        let layer = make();
        assert_eq!(layer.options(), options);
        let x = Tensor::randn([2, 5, 8], DType::F32);
        let of = |width: Option<usize>| match width {
            None | Some(8) => x.clone(),
            Some(width) => Tensor::randn([2, 5, width], DType::F32),
        };
        let (key, value) = (of(options.kdim), of(options.vdim));
        let visible = Tensor::from([[true, true, true, true, false], [true, true, false, false, false]]);
        let masks = AttentionMasks { key_padding: Some(&visible), causal: true, ..Default::default() };
        let weights = layer.state_dict();
        weights.values().for_each(|weight| weight.set_requires_grad(true).unwrap());
        let other = make();
        let call = |average: bool| {
            functional_call(&other, &weights, |other| other.forward_with_weights(&x, &key, &value, masks, average))
        };
        for average in [false, true] {
            let (y, seen) = call(average).unwrap();
            let (expected, of_layer) = layer.forward_with_weights(&x, &key, &value, masks, average);
            assert_eq!(y.to_vec::<f32>(), expected.to_vec::<f32>(), "kind {kind}");
            assert_eq!((seen.shape(), seen.to_vec::<f32>()), (of_layer.shape(), of_layer.to_vec::<f32>()));
        }
        let y = functional_call(&other, &weights, |other| other.forward_qkv(&x, &key, &value, masks)).unwrap();
        assert_eq!(y.to_vec::<f32>(), layer.forward_qkv(&x, &key, &value, masks).to_vec::<f32>(), "kind {kind}");
        y.square().sum(..).backward();
        assert!(weights.values().all(|weight| weight.grad().is_some()), "kind {kind}");
        assert!(other.parameters().iter().all(|parameter| parameter.grad().is_none()), "kind {kind}");

        let narrow = StateDict::from([("out_proj.weight".to_string(), Tensor::ones([7, 8], DType::F32))]);
        assert!(functional_call(&other, &narrow, |other| other.try_forward(&x)).is_err());
    }
}
