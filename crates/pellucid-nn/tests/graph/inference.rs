//! Inference models: padding, splitting, bits, changes of the model, several inputs, errors.

use crate::changes_between_launches::Changing;
use crate::models::*;
use pellucid_nn::graph::{Batch, InferenceModel, Model};
use pellucid_nn::optim::Optimizer;
use pellucid_nn::paths::If;
use pellucid_nn::*;
use pellucid_tensor::{CacheStats, DType, Device, Error, Result, Tensor, no_grad, ops};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// Returns the eager output in evaluation mode; the mode stays as it was, if all layers have one mode.
fn eager<X>(model: &impl Model<X>, x: &X, training: bool) -> Tensor {
    let _off = no_grad();
    model.eval();
    let y = model.compute(x).unwrap();
    if training {
        model.train();
    }
    y
}

fn bytes(x: &Tensor) -> Vec<u8> {
    x.to_bytes()
}

/// Fills a batch with copies of its last row.
fn with_rows(x: &Tensor, rows: usize) -> Tensor {
    let last = x.shape()[0] - 1;
    let index: Vec<i64> = (0..rows).map(|row| row.min(last) as i64).collect();
    x.index_select(0, &Tensor::new(&index[..], [rows]))
}

fn counts(stats: CacheStats) -> (u64, u64, usize) {
    (stats.hits, stats.misses, stats.len)
}

#[test]
fn a_batch_runs_on_the_smallest_compiled_size() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        let model = built(kind);
        let mut inference = InferenceModel::new(&model, &[8, 1, 4, 4]);
        let (samples, _) = batch(kind.2, 1);
        let state = bits(model.state_dict());
        for rows in (1..=BATCH).rev() {
            let x = samples.narrow(0, 0, rows);
            let y = inference.run(&x).unwrap();
            let size = if rows == 1 { 1 } else { rows.next_multiple_of(4) };
            let expected = eager(&model, &with_rows(&x, size), true).narrow(0, 0, rows);
            assert_eq!(y.shape(), expected.shape());
            assert!(bytes(&y) == bytes(&expected), "{}: {rows} rows differ from eager evaluation", kind.0);
            let exact = eager(&model, &x, true);
            assert!((y - exact).abs().max(..).item::<f32>() < 1e-5, "{}: padding changed {rows} rows", kind.0);
        }
        assert_eq!(counts(inference.cache_stats()), (5, 3, 3));
        assert_eq!(bits(model.state_dict()), state, "inference must not change the state");
    }
}

#[test]
fn a_batch_above_all_sizes_is_split() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[0]);
    model.eval();
    let mut inference = InferenceModel::new(&model, &[2, 8]);
    inference.prepare(&Tensor::zeros([1, 6], DType::F32)).unwrap();
    assert_eq!(counts(inference.cache_stats()), (0, 0, 2));
    let x = Tensor::randn([18, 6], DType::F32);
    let y = inference.run(&x).unwrap();
    assert_eq!(counts(inference.cache_stats()), (3, 0, 2));
    let parts = [(0, 8), (8, 8), (16, 2)].map(|(start, rows)| eager(&model, &x.narrow(0, start, rows), false));
    assert_eq!(bytes(&y), bytes(&ops::concatenate(&parts, 0).unwrap()));
    // A result does not change with later launches.
    let before = bytes(&y);
    inference.run(&(x * 2.0)).unwrap();
    assert_eq!(bytes(&y), before);
}

#[test]
fn updates_in_place_are_seen_and_replaced_parameters_recorded_again() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[1]);
    let mut inference = InferenceModel::new(&model, &[BATCH]);
    let optimizer = sgd(&model, 0.1, 0.9);
    for seed in 0..3 {
        let (x, y) = batch(KINDS[1].2, seed);
        assert_eq!(bytes(&inference.run(&x).unwrap()), bytes(&eager(&model, &x, true)));
        optimizer.zero_grad();
        loss::cross_entropy(&model.forward(&x), &y).backward();
        optimizer.step();
    }
    assert_eq!(counts(inference.cache_stats()), (2, 1, 1));

    let model = Arc::new(Changing(RwLock::new(Linear::new(6, 2))));
    let mut inference = InferenceModel::new(model.clone(), &[4]);
    let x = Tensor::randn([4, 6], DType::F32);
    let first = inference.run(&x).unwrap();
    // The test keeps the old parameters, so the recording's own check cannot find that they were replaced.
    let old = model.replace(Linear::new(6, 2));
    let second = inference.run(&x).unwrap();
    assert_eq!(bytes(&second), bytes(&eager(&*model, &x, true)));
    assert_ne!(bytes(&first), bytes(&second));
    assert_eq!(bytes(&first), bytes(&eager(&old, &x, true)));
    assert_eq!(counts(inference.cache_stats()), (0, 2, 1));
}

#[test]
fn another_path_of_the_model_is_recorded() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = (Linear::new(3, 3), If::new(Relu, Tanh));
    let mut inference = InferenceModel::new(&model, &[2]);
    let x = Tensor::randn([2, 3], DType::F32);
    for then in [true, false, true] {
        model.1.choose(then);
        assert_eq!(bytes(&inference.run(&x).unwrap()), bytes(&eager(&model, &x, true)));
    }
}

/// An encoder of tokens with a padding mask.
#[derive(Module)]
struct Encoder {
    words: Embedding,
    layers: TransformerEncoder,
    /// Whether to return the mean over the tokens.
    pools: bool,
}

impl Encoder {
    fn new(pools: bool) -> Encoder {
        let layers = TransformerEncoder::new(8, 2, 2).hidden(16);
        Encoder { words: Embedding::new(20, 8), layers, pools }
    }
}

impl Model<(Tensor, Tensor)> for Encoder {
    fn compute(&self, (ids, mask): &(Tensor, Tensor)) -> Result<Tensor> {
        let x = self.layers.try_forward_masked(&self.words.try_forward(ids)?, AttentionMasks::padding(mask))?;
        if !self.pools {
            return Ok(x);
        }
        let counted = mask.to_dtype(x.dtype()).unsqueeze(-1);
        Ok((x * &counted).sum(1) / counted.sum(1))
    }
}

impl Model<BTreeMap<String, Tensor>> for Encoder {
    fn compute(&self, x: &BTreeMap<String, Tensor>) -> Result<Tensor> {
        Model::compute(self, &(x["ids"].clone(), x["mask"].clone()))
    }
}

fn sentences(rows: usize, length: usize) -> (Tensor, Tensor) {
    (Tensor::randint(1, 20, [rows, length]), Tensor::ones([rows, length], DType::Bool))
}

#[test]
fn sequences_run_on_the_smallest_compiled_length() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for pools in [false, true] {
        let encoder = Encoder::new(pools);
        // The width of the pooled output is 8 too, which must not be mistaken for a length.
        let mut inference = InferenceModel::new(&encoder, &[1, 4]).with_lengths(&[8, 4]);
        inference.prepare(&sentences(2, 3)).unwrap();
        for (rows, length) in [(1, 1), (1, 8), (2, 4), (3, 5), (6, 7)] {
            let x = sentences(rows, length);
            let y = inference.run(&x).unwrap();
            let expected = eager(&encoder, &x, true);
            assert_eq!(y.shape(), expected.shape());
            assert!((&y - expected).abs().max(..).item::<f32>() < 1e-5, "padding changed [{rows}, {length}]");
            if rows <= 4 {
                let (to, long) = (if rows > 1 { 4 } else { 1 }, if length > 4 { 8 } else { 4 });
                let longer = |x: &Tensor| {
                    let zeros = Tensor::zeros([rows, long - length], x.dtype());
                    with_rows(&ops::concatenate(&[x, &zeros], 1).unwrap(), to)
                };
                let mut filled = eager(&encoder, &(longer(&x.0), longer(&x.1)), true).narrow(0, 0, rows);
                if !pools {
                    filled = filled.narrow(1, 0, length);
                }
                assert_eq!(bytes(&y), bytes(&filled));
            }
        }
        assert_eq!(counts(inference.cache_stats()), (6, 0, 4));
    }
}

#[test]
fn a_batch_may_be_a_map() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let encoder = Encoder::new(true);
    let named = |(ids, mask): (Tensor, Tensor)| BTreeMap::from([("ids".to_string(), ids), ("mask".to_string(), mask)]);
    let mut inference = InferenceModel::new(&encoder, &[4]);
    let x = named(sentences(3, 5));
    let y = inference.run(&x).unwrap();
    assert!((y - eager(&encoder, &x, true)).abs().max(..).item::<f32>() < 1e-5);
    let mut other = x.clone();
    let mask = other.remove("mask").unwrap();
    other.insert("seen".into(), mask);
    assert!(matches!(inference.run(&other), Err(Error::InvalidArgument { .. })));
    other.insert("mask".into(), Tensor::ones([3, 5], DType::Bool));
    assert!(matches!(inference.run(&other), Err(Error::InvalidArgument { .. })));
}

/// Returns the error of a run, which must name the operation.
fn rejected<'f, M: Model<X> + 'f, X: Batch + 'f>(inference: &mut InferenceModel<'f, M, X>, x: &X) -> Error {
    let before = inference.cache_stats();
    let error = inference.run(x).expect_err("the batch must be rejected");
    assert!(error.to_string().starts_with("inference: "), "{error}");
    assert_eq!(inference.cache_stats(), before);
    error
}

#[test]
fn batches_that_do_not_fit_are_rejected() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[0]);
    for sizes in [&[][..], &[2, 0]] {
        let inference: Result<InferenceModel<'_, _>> = InferenceModel::try_new(&model, sizes);
        assert!(matches!(inference.err(), Some(Error::InvalidArgument { .. })));
        let inference: InferenceModel<'_, _> = InferenceModel::new(&model, &[1]);
        assert!(matches!(inference.try_with_lengths(sizes).err(), Some(Error::InvalidArgument { .. })));
    }
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let mut inference = InferenceModel::new(&model, &[2, 4]);
    // A batch that the model rejects does not determine the shape of later ones.
    assert!(matches!(inference.run(&zeros(&[2, 7])), Err(Error::Layer { .. })));
    let text = inference.run(&zeros(&[3, 7])).expect_err("the model must reject the batch").to_string();
    assert!(text.starts_with("inputs of shape [3, 7], filled up to [4, 7]: "), "{text}");
    inference.run(&zeros(&[2, 6])).unwrap();
    assert!(matches!(rejected(&mut inference, &zeros(&[2, 7])), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&mut inference, &zeros(&[2, 1, 6])), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&mut inference, &zeros(&[])), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&mut inference, &zeros(&[0, 6])), Error::InvalidArgument { .. }));
    assert!(matches!(rejected(&mut inference, &Tensor::zeros([2, 6], DType::F64)), Error::DTypeMismatch { .. }));
    for rows in [3, 5] {
        let error = inference.launch(&zeros(&[rows, 6])).err();
        assert!(matches!(error, Some(Error::ShapeMismatch { .. })), "{error:?}");
    }

    let encoder = Encoder::new(true);
    let mut inference = InferenceModel::new(&encoder, &[2]).with_lengths(&[4]);
    let ((ids, mask), (_, longer)) = (sentences(2, 3), sentences(2, 4));
    let (long, one) = (sentences(2, 5), sentences(1, 3));
    assert!(matches!(rejected(&mut inference, &long), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&mut inference, &(ids.clone(), longer)), Error::ShapeMismatch { .. }));
    assert!(matches!(rejected(&mut inference, &(ids.clone(), one.1)), Error::ShapeMismatch { .. }));
    inference.run(&(ids, mask)).unwrap();

    /// A model whose output has no batch axis.
    #[derive(Module)]
    struct Total;
    impl Layer for Total {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            ops::sum(x, 0)
        }
    }
    let mut inference = InferenceModel::new(Total, &[4]);
    assert!(matches!(rejected(&mut inference, &zeros(&[2, 6])), Error::ShapeMismatch { .. }));
}

#[test]
fn a_launch_returns_the_stored_output() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = built(&KINDS[2]);
    let mut inference = InferenceModel::new(&model, &[2, BATCH]);
    // An input that requires a gradient is detached.
    let x = batch(KINDS[2].2, 4).0.requires_grad_(true);
    let expected = eager(&model, &x, true);
    let outputs = inference.launch(&x).unwrap();
    assert_eq!(outputs.len(), 1);
    assert_eq!(bytes(&outputs.to_tensor(0)), bytes(&expected));
    assert!(!inference.run(&x).unwrap().requires_grad());
    assert_eq!(expected.device(), Device::cpu());
}

#[test]
fn a_lazy_model_is_built_by_its_first_batch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = cnn();
    let mut inference = InferenceModel::new(&model, &[4]);
    let x = Tensor::randn([3, 2, 5, 5], DType::F32);
    let y = inference.run(&x).unwrap();
    assert_eq!(bytes(&y), bytes(&eager(&model, &with_rows(&x, 4), true).narrow(0, 0, 3)));
    inference.run(&x).unwrap();
    assert_eq!(counts(inference.cache_stats()), (1, 1, 1));
}

#[test]
fn a_converted_model_is_recorded_again() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = Linear::new(4, 3);
    let mut inference = InferenceModel::new(&model, &[2]);
    let x = Tensor::randn([2, 4], DType::F32);
    let first = inference.run(&x).unwrap();
    model.to_dtype_(DType::F64).unwrap();
    let text = inference.run(&x).unwrap_err().to_string();
    assert!(text.contains("f32 and f64") && text.contains("to_dtype"), "{text}");
    let converted = inference.run(&x.to_dtype(DType::F64)).unwrap();
    assert!((converted - first).abs().max(..).item::<f64>() < 1e-5);
}
