//! Key-value caches: copies and the selection of sequences; the base of rotary embeddings.

use pellucid_nn::{AttentionMasks, KvCache, MultiheadAttention, Rotary, TransformerDecoder, TransformerEncoder, hook};
use pellucid_tensor::{DType, Error, Generator, Tensor, no_grad, ops};

/// Returns the largest difference.
fn distance(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).abs().max(..).item::<f32>()
}

/// Beam search continues a clone and the original differently.
#[test]
fn a_cloned_cache_is_independent() {
    let _random = Generator::new(0).scope();
    let _off = no_grad();
    let attention = MultiheadAttention::new(8, 2);
    let [x, a, b] = [4, 1, 1].map(|n| Tensor::randn([2, n, 8], DType::F32));
    let uncached = |end: &Tensor| {
        let all = ops::concatenate(&[&x, end], 1).unwrap();
        attention.forward_qkv(&all, &all, &all, AttentionMasks::causal()).narrow(1, 4, 1)
    };
    let cache = attention.cache(2, 6);
    attention.forward_cached(&x, &cache);
    let clone = cache.clone();
    let (of_clone, of_cache) = (attention.forward_cached(&a, &clone), attention.forward_cached(&b, &cache));
    assert!(distance(&of_clone, &uncached(&a)) < 1e-6 && distance(&of_cache, &uncached(&b)) < 1e-6);
    assert_eq!((clone.length().item::<i64>(), cache.length().item::<i64>()), (5, 5));
}

#[test]
fn a_cache_selects_its_sequences_with_their_padding() {
    let _random = Generator::new(0).scope();
    let _off = no_grad();
    let attention = MultiheadAttention::new(8, 2);
    let (x, next) = (Tensor::randn([3, 2, 8], DType::F32), Tensor::randn([3, 1, 8], DType::F32));
    let visible = Tensor::from([[true, true], [false, true], [true, true]]);
    let order = Tensor::from([1i64, 1, 0]);
    let selected = attention.cache(3, 4).padded(&visible);
    attention.forward_cached(&x, &selected);
    for rejected in [Tensor::from([1i64, 1]), Tensor::from([1i64, 1, 3])] {
        assert!(selected.try_reorder(&rejected).is_err());
    }
    selected.reorder(&order);
    let expected = attention.cache(3, 4).padded(&visible.index_select(0, &order));
    attention.forward_cached(&x.index_select(0, &order), &expected);
    let [found, expected] = [&selected, &expected].map(|cache| attention.forward_cached(&next, cache));
    assert!(distance(&found, &expected) < 1e-6);
}

/// A call that fails in a later part of the model appends no elements, so that it can be repeated.
#[test]
fn a_failed_call_appends_no_elements() {
    let _random = Generator::new(0).scope();
    let _off = no_grad();
    let (none, x, memory) =
        (AttentionMasks::default(), Tensor::randn([1, 3, 8], DType::F32), Tensor::randn([1, 2, 8], DType::F32));
    let wide = Tensor::ones([1, 2, 9], DType::F32);
    let lengths = |caches: &[KvCache]| caches.iter().map(|cache| cache.length().item::<i64>()).collect::<Vec<_>>();

    let decoder = TransformerDecoder::new(8, 2, 2).hidden(8).dropout(0.0);
    let caches = decoder.caches(1, 6);
    decoder.try_forward_cached(&x, &wide, &caches, none).unwrap_err();
    let layer = &decoder.layers[0];
    layer.try_forward_cached(&x, &wide, &caches[0], none).unwrap_err();
    assert_eq!(lengths(&caches), [0, 0]);
    let y = decoder.forward_cached(&x, &memory, &caches, none);
    assert!(distance(&y, &decoder.forward(&x, &memory, AttentionMasks::causal(), none)) < 1e-6);
    assert_eq!(lengths(&caches), [3, 3]);

    // The cache of the second layer has too little capacity.
    let encoder = TransformerEncoder::new(8, 2, 2).hidden(8).dropout(0.0);
    let caches = [encoder.layers[0].self_attn.cache(1, 4), encoder.layers[1].self_attn.cache(1, 2)];
    encoder.try_forward_cached(&x, &caches).unwrap_err();
    let layer = &encoder.layers[0];
    let fails = hook::on_forward(layer, "linear2", |_, _| Some(Tensor::ones([2, 5], DType::F32))).unwrap();
    layer.try_forward_cached(&x, &caches[0]).unwrap_err();
    drop(fails);
    let fails = hook::on_forward(layer, "self_attn.out_proj", |_, _| Some(Tensor::ones([2, 5], DType::F32))).unwrap();
    layer.try_forward_cached(&x, &caches[0]).unwrap_err();
    drop(fails);
    assert_eq!(lengths(&caches), [0, 0]);
    layer.forward_cached(&x, &caches[0]);
    // Elements that a hook adds to the input are counted.
    let _prefix = hook::on_forward_pre(&encoder, "", |x| Some(ops::concatenate(&[x, x], 1).unwrap())).unwrap();
    let caches = encoder.caches(1, 6);
    encoder.forward_cached(&x, &caches);
    assert_eq!(lengths(&caches), [6, 6]);
}

#[test]
fn a_base_of_rotary_embeddings_that_is_not_positive_is_rejected() {
    let (x, positions) = (Tensor::ones([2, 4], DType::F32), Tensor::from([0i64, 1]));
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let rejected = Rotary { base, ..Rotary::default() }.try_rotate(&x, &positions);
        assert!(matches!(rejected, Err(Error::InvalidArgument { op: "rotary", .. })), "{base}");
    }
}
