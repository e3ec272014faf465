//! Layers compared with `fixtures.safetensors`, which `make_fixtures.py` computed with PyTorch.

use pellucid::io;
use pellucid::nn::{
    AttentionMasks, Gru, GruCell, Lstm, LstmCell, MultiheadAttention, Rnn, RnnCell, Rotary, RotaryPairing, Transformer,
    TransformerDecoder, TransformerEncoder, TransformerEncoderLayer, pack_padded_sequence, pad_packed_sequence,
};
use pellucid::ops::RnnNonlinearity;
use pellucid::prelude::*;

/// The tests of all layers of sequences.
const TESTS: [(&str, fn()); 14] = [
    ("LearnedPositions", super::decoding::positions_are_sinusoids_or_rows),
    ("MultiheadAttention", self_attention),
    ("SinusoidalPositions", super::decoding::positions_are_sinusoids_or_rows),
    ("Gru", gated_recurrent_units),
    ("GruCell", cells),
    ("Lstm", long_short_term_memory),
    ("LstmCell", cells),
    ("Rnn", plain_recurrent_layers),
    ("RnnCell", cells),
    ("Transformer", whole_transformers),
    ("TransformerDecoder", decoders_without_biases),
    ("TransformerDecoderLayer", decoders_without_biases),
    ("TransformerEncoder", encoders),
    ("TransformerEncoderLayer", encoders),
];

#[test]
fn every_layer_of_sequences_has_a_test() {
    let tested: Vec<&str> = TESTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(tested, pellucid::nn::SEQUENCE_LAYERS, "every layer in SEQUENCE_LAYERS must have a test");
}

/// The weights, inputs, outputs and gradients of a PyTorch layer.
struct Case {
    name: &'static str,
    tensors: StateDict,
}

impl Case {
    fn new(name: &'static str) -> Case {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sequence_models/fixtures.safetensors");
        let prefix = format!("{name}/");
        let own = |(key, value): (String, Tensor)| Some((key.strip_prefix(&prefix)?.to_string(), value));
        let tensors: StateDict = io::load(path).unwrap().into_iter().filter_map(own).collect();
        assert!(!tensors.is_empty(), "the fixtures must contain the test case {name}");
        Case { name, tensors }
    }

    /// Returns all tensors of one part by name.
    fn part(&self, part: &str) -> StateDict {
        let prefix = format!("{part}/");
        let own = |(key, value): (&String, &Tensor)| Some((key.strip_prefix(&prefix)?.to_string(), value.clone()));
        self.tensors.iter().filter_map(own).collect()
    }

    /// Loads the weights, runs the module on the inputs, and compares outputs and all gradients.
    fn check(&self, module: &dyn Module, run: impl Fn(&dyn Fn(&str) -> Tensor) -> Vec<(&'static str, Tensor)>) {
        module.load_state_dict(&self.part("state")).unwrap();
        let inputs = self.part("in");
        for (name, input) in &inputs {
            input.set_requires_grad(self.tensors.contains_key(&format!("grad/in/{name}"))).unwrap();
        }
        let outputs = run(&|name| inputs[name].clone());
        assert_eq!(outputs.len(), self.part("out").len(), "{}: the number of outputs differs", self.name);
        let fed = outputs.iter().map(|(name, y)| {
            self.compare(&format!("out/{name}"), y);
            (y * &self.tensors[&format!("seed/{name}")]).sum(..)
        });
        fed.reduce(|a, b| a + b).unwrap().backward();
        for (name, parameter) in module.named_parameters() {
            self.compare(&format!("grad/state/{name}"), &parameter.grad().unwrap());
        }
        for (name, input) in inputs.iter().filter(|(_, input)| input.requires_grad()) {
            self.compare(&format!("grad/in/{name}"), &input.grad().unwrap());
        }
    }

    fn compare(&self, key: &str, got: &Tensor) {
        let expected = &self.tensors[key];
        assert_eq!(got.shape(), expected.shape(), "{}: the shape of {key} differs", self.name);
        let largest = expected.abs().max(..).item::<f32>().max(1.0);
        let error = (got - expected).abs().max(..).item::<f32>();
        assert!(
            error <= 1e-5 * largest,
            "{}: the error of {key} is {error}, too large for elements of magnitude {largest}",
            self.name
        );
    }
}

fn attention() -> MultiheadAttention {
    MultiheadAttention::new(8, 2)
}

#[test]
fn self_attention() {
    let _random = pellucid::Generator::new(0).scope();
    let m = attention();
    Case::new("mha").check(&m, |get| vec![("y", m.forward(&get("x")))]);
    // Queries, keys and values that are different tensors are projected separately.
    let m = attention();
    Case::new("mha").check(&m, |get| {
        let x = get("x");
        vec![("y", m.forward_qkv(&x, &x.clone(), &x.clone(), AttentionMasks::default()))]
    });
}

#[test]
fn boolean_masks_and_returned_weights() {
    let _random = pellucid::Generator::new(0).scope();
    let m = attention();
    let case = Case::new("mha_masked");
    case.check(&m, |get| {
        let (x, mask, padding) = (get("x"), get("mask"), get("padding"));
        let masks = AttentionMasks { mask: Some(&mask), key_padding: Some(&padding), causal: false };
        let causal = AttentionMasks { key_padding: Some(&padding), ..AttentionMasks::causal() };
        let (y, weights) = m.forward_with_weights(&x, &x, &x, masks, false);
        let (_, mean) = m.forward_with_weights(&x, &x, &x, causal, true);
        assert!((mean - weights.mean(1)).abs().max(..).item::<f32>() < 1e-6);
        for same in [masks, causal] {
            assert!((m.forward_qkv(&x, &x, &x, same) - &y).abs().max(..).item::<f32>() < 1e-5);
        }
        vec![("y", y), ("weights", weights)]
    });
}

#[test]
fn additive_masks_have_gradients() {
    let _random = pellucid::Generator::new(0).scope();
    let m = attention().bias(false);
    Case::new("mha_added").check(&m, |get| {
        let mask = get("mask");
        let masks = AttentionMasks { mask: Some(&mask), ..Default::default() };
        let (y, weights) = m.forward_with_weights(&get("query"), &get("key"), &get("value"), masks, false);
        assert!(
            (m.forward_qkv(&get("query"), &get("key"), &get("value"), masks) - &y).abs().max(..).item::<f32>() < 1e-5
        );
        vec![("y", y), ("weights", weights)]
    });
}

#[test]
fn additional_keys_for_all_queries() {
    let _random = pellucid::Generator::new(0).scope();
    let m = attention().bias_kv(true).zero_attn(true);
    Case::new("mha_bias_kv").check(&m, |get| {
        let (q, k, v, padding) = (get("query"), get("key"), get("value"), get("padding"));
        let (y, weights) = m.forward_with_weights(&q, &k, &v, AttentionMasks::padding(&padding), false);
        assert!((m.forward_qkv(&q, &k, &v, AttentionMasks::padding(&padding)) - &y).abs().max(..).item::<f32>() < 1e-5);
        vec![("y", y), ("weights", weights)]
    });
    let m = attention().bias_kv(true);
    Case::new("mha_causal_bias_kv").check(&m, |get| {
        let (x, mask) = (get("x"), get("mask"));
        let (y, weights) = m.forward_with_weights(&x, &x, &x, AttentionMasks::causal(), false);
        let written = AttentionMasks { mask: Some(&mask), ..Default::default() };
        assert!((m.forward_qkv(&x, &x, &x, written) - &y).abs().max(..).item::<f32>() < 1e-5);
        // Sequences that are processed separately have the same outputs.
        let cached = {
            let _off = no_grad();
            let cache = m.cache(2, 4);
            let steps: Vec<Tensor> = (0..4).map(|i| m.forward_cached(&x.detach().narrow(1, i, 1), &cache)).collect();
            ops::concatenate(&steps, 1).unwrap()
        };
        assert!((cached - &y).abs().max(..).item::<f32>() < 1e-5);
        vec![("y", y), ("weights", weights)]
    });
}

#[test]
fn keys_and_values_of_other_widths() {
    let _random = pellucid::Generator::new(0).scope();
    let m = attention().kdim(6).vdim(5);
    let names: Vec<String> = m.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..4], ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"]);
    Case::new("mha_widths").check(&m, |get| {
        vec![("y", m.forward_qkv(&get("query"), &get("key"), &get("value"), AttentionMasks::default()))]
    });
}

#[test]
fn grouped_queries_and_rotary_positions() {
    let _random = pellucid::Generator::new(0).scope();
    let check = |name, heads, kv_heads, pairs: Option<RotaryPairing>| {
        let rotary = pairs.map(|pairs| Rotary { pairs, ..Default::default() });
        let m = MultiheadAttention::new(8, heads).kv_heads(kv_heads).rotary(rotary);
        Case::new(name).check(&m, |get| {
            let x = get("x");
            let y = m.forward_qkv(&x, &x, &x, AttentionMasks::causal());
            let (again, _) = m.forward_with_weights(&x, &x, &x, AttentionMasks::causal(), false);
            assert!((again - &y).abs().max(..).item::<f32>() < 1e-5);
            vec![("y", y)]
        });
    };
    check("grouped", 4, 2, None);
    check("rotary_neighbours", 2, 2, Some(RotaryPairing::Neighbours));
    check("rotary_halves", 2, 1, Some(RotaryPairing::Halves));
}

#[test]
fn encoders() {
    let _random = pellucid::Generator::new(0).scope();
    let m = TransformerEncoderLayer::new(8, 2).hidden(12).dropout(0.0);
    Case::new("encoder_layer").check(&m, |get| vec![("y", m.forward(&get("x")))]);
    let m = TransformerEncoder::new(8, 2, 2).hidden(12).dropout(0.0).norm_first(true).activation(ops::gelu).norm(true);
    Case::new("encoder").check(&m, |get| {
        let (mask, padding) = (get("mask"), get("padding"));
        let masks = AttentionMasks { mask: Some(&mask), key_padding: Some(&padding), causal: false };
        vec![("y", m.forward_masked(&get("x"), masks))]
    });
}

#[test]
fn decoders_without_biases() {
    let _random = pellucid::Generator::new(0).scope();
    let m = TransformerDecoder::new(8, 2, 2).hidden(12).dropout(0.0).bias(false);
    Case::new("decoder").check(&m, |get| {
        let padding = get("padding");
        vec![("y", m.forward(&get("x"), &get("memory"), AttentionMasks::causal(), AttentionMasks::padding(&padding)))]
    });
}

#[test]
fn whole_transformers() {
    let _random = pellucid::Generator::new(0).scope();
    let m = Transformer::new(8, 2, [1, 1]).hidden(12).dropout(0.0);
    Case::new("transformer").check(&m, |get| {
        let padding = get("padding");
        let visible = AttentionMasks::padding(&padding);
        vec![("y", m.forward(&get("source"), &get("target"), visible, AttentionMasks::causal(), visible))]
    });
}

#[test]
fn plain_recurrent_layers() {
    let _random = pellucid::Generator::new(0).scope();
    let m = Rnn::new(3, 4).layers(2).bidirectional(true);
    Case::new("rnn").check(&m, |get| {
        let (y, h) = m.forward_sequence(&get("x"), Some(&get("h")));
        vec![("y", y), ("h", h)]
    });
    let m = Rnn::new(3, 4).bias(false).nonlinearity(RnnNonlinearity::Relu);
    Case::new("rnn_relu").check(&m, |get| {
        let (y, h) = m.forward_sequence(&get("x"), None);
        vec![("y", y), ("h", h)]
    });
}

#[test]
fn gated_recurrent_units() {
    let _random = pellucid::Generator::new(0).scope();
    let m = Gru::new(3, 4).layers(2).bidirectional(true).batch_first(true);
    Case::new("gru").check(&m, |get| {
        let (y, h) = m.forward_sequence(&get("x"), Some(&get("h")));
        vec![("y", y), ("h", h)]
    });
    let m = Gru::new(3, 4).bidirectional(true).batch_first(true);
    Case::new("gru_packed").check(&m, |get| {
        let packed = pack_padded_sequence(&get("x"), &get("lengths"), true).unwrap();
        let (y, h) = m.forward_packed(&packed, None);
        vec![("y", pad_packed_sequence(&y, true, 0).unwrap().0), ("h", h)]
    });
}

#[test]
fn long_short_term_memory() {
    let _random = pellucid::Generator::new(0).scope();
    let m = Lstm::new(3, 4).bidirectional(true).layers(2);
    Case::new("lstm").check(&m, |get| {
        let (y, (h, c)) = m.forward_sequence(&get("x"), Some(&(get("h"), get("c"))));
        vec![("y", y), ("h", h), ("c", c)]
    });
    let m = Lstm::new(3, 4);
    Case::new("lstm_one").check(&m, |get| {
        let (y, (h, c)) = m.forward_sequence(&get("x"), None);
        vec![("y", y), ("h", h), ("c", c)]
    });
    let m = Lstm::new(3, 4).layers(2).projection(2).bidirectional(true);
    Case::new("lstm_projected").check(&m, |get| {
        let (y, (h, c)) = m.forward_padded(&get("x"), &get("lengths"), Some(&(get("h"), get("c"))));
        vec![("y", y), ("h", h), ("c", c)]
    });
}

#[test]
fn cells() {
    let _random = pellucid::Generator::new(0).scope();
    let m = RnnCell::new(3, 4);
    Case::new("rnn_cell").check(&m, |get| vec![("h", m.forward(&get("x"), Some(&get("h"))))]);
    let m = GruCell::new(3, 4);
    Case::new("gru_cell").check(&m, |get| vec![("h", m.forward(&get("x"), Some(&get("h"))))]);
    let m = LstmCell::new(3, 4);
    Case::new("lstm_cell").check(&m, |get| {
        let (h, c) = m.forward(&get("x"), Some(&(get("h"), get("c"))));
        vec![("h", h), ("c", c)]
    });
}
