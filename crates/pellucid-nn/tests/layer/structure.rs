//! The parts of a model: names, summaries, freezing, and files with other names.

use super::mlp;
use pellucid_nn::{
    AttentionMasks, Checkpoint, Embedding, Flatten, Layer, Linear, Module, ModuleDict, ModuleList, Parameter, Relu,
    StateDict, TransformerEncoder, Visit, Visitor, rename_keys, sequential,
};
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, manual_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn frozen_parameters_get_no_gradient() {
    let model = (Linear::new(4, 3), Linear::new(3, 2));
    model.0.freeze();
    model.forward(&Tensor::ones([2, 4], DType::F32)).sum(..).backward();
    assert!(model.0.weight.grad().is_none());
    assert!(model.1.weight.grad().is_some());
    let summary = model.summary(&[1, 4]).unwrap();
    assert_eq!((summary.parameters, summary.trainable), (4 * 3 + 3 + 3 * 2 + 2, 3 * 2 + 2));
    // An old gradient is removed with the others.
    model.1.freeze();
    model.zero_grad();
    assert!(model.1.weight.grad().is_none());
    model.unfreeze();
    assert!(model.parameters().iter().all(|p| p.requires_grad()));
    model.to_(Device::cpu()).unwrap();
}

#[test]
fn a_summary_counts_parameters_memory_and_work() {
    let model = sequential![Flatten::new(), (Linear::new(784, 256), Relu), Linear::lazy(10)];
    let summary = model.summary(&[64, 28, 28]).unwrap();
    let rows: Vec<_> =
        summary.rows.iter().map(|r| (r.name.as_str(), r.class, r.depth, r.output.dims().to_vec())).collect();
    let expected = [
        ("", "Sequential", 0, vec![64, 10]),
        ("0", "Flatten", 1, vec![64, 784]),
        ("", "tuple", 1, vec![64, 256]),
        ("1.0", "Linear", 2, vec![64, 256]),
        ("", "Relu", 2, vec![64, 256]),
        ("2", "Linear", 1, vec![64, 10]),
    ];
    assert_eq!(rows, expected);
    let products = 2 * 64 * (784 * 256 + 256 * 10) as u64;
    let rest = summary.work.flops - products;
    assert!((2 * 64 * 256..4 * 64 * 256).contains(&rest), "unexpected number of operations: {rest}");
    assert_eq!(summary.state_bytes, 4 * summary.parameters);
    assert_eq!(summary.activation_bytes, 4 * 64 * (784 + 256 + 256 + 10));
    let text = summary.to_string();
    assert!(text.contains("203,530 parameters") && text.contains("1.0 (Linear)"), "{text}");
}

/// The head of a language model shares the embedding. A summary counts shared parameters once, at the first layer, but
/// counts the operations of every call.
#[test]
fn a_summary_counts_shared_parameters_once() {
    #[derive(Clone, Module)]
    struct Tied {
        words: Embedding,
        head: Linear,
    }
    impl Layer for Tied {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            self.head.try_forward(&self.words.try_forward(x)?)
        }
        fn input_dtype(&self) -> DType {
            DType::I64
        }
    }
    let table: Parameter = pellucid_nn::init::normal([50, 8], 0.0, 1.0);
    let mut head = Linear::new(8, 50);
    head.weight = table.clone();
    let model = Tied { words: Embedding::from_table(table), head };
    let summary = model.summary(&[3, 7]).unwrap();
    assert_eq!((summary.parameters, summary.state_bytes), (50 * 8 + 50, 4 * (50 * 8 + 50)));
    let own: Vec<usize> = summary.rows.iter().map(|row| summary.parameters_of(row)).collect();
    assert_eq!(own, [50 * 8 + 50, 50 * 8, 50]);
    assert!(summary.rows[2].work.flops >= 2 * 21 * 8 * 50 && summary.work.flops < 2 * 2 * 21 * 8 * 50, "{summary}");
    assert_eq!(model.state_dict().keys().collect::<Vec<_>>(), ["head.bias", "words.weight"]);
}

#[test]
fn children_are_the_outermost_parts() {
    let model = sequential![(Linear::new(1, 1), Relu), sequential![Linear::new(1, 1)]];
    let names = |found: Vec<(String, pellucid_nn::ModuleInfo)>| found.into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert_eq!(names(model.named_modules()), ["", "0.0", "0.1", "1", "1.0"]);
    assert_eq!(names(model.named_children()), ["0.0", "0.1", "1"]);
}

#[test]
fn containers_name_their_parts() {
    let mut dict = ModuleDict::new();
    assert!(dict.is_empty());
    dict.insert("b", Linear::new(1, 2));
    dict.insert("a", Linear::new(2, 3));
    assert!(dict.insert("b", Linear::new(1, 4)).is_some());
    let names: Vec<_> = dict.named_parameters().into_iter().map(|(n, p)| (n, p.shape().clone())).collect();
    let expected: [(&str, &[usize]); 4] =
        [("b.weight", &[4, 1]), ("b.bias", &[4]), ("a.weight", &[3, 2]), ("a.bias", &[3])];
    assert_eq!(names, expected.map(|(n, s)| (n.to_string(), Shape::from(s))));
    assert!(dict.remove("b").is_some() && dict.get("b").is_none());
    assert_eq!(dict.len(), 1);
    let panic = std::panic::catch_unwind(|| dict["b"].weight.clone()).expect_err("an unknown name must panic");
    let text = panic.downcast_ref::<String>().expect("the message must be a string");
    assert!(text.contains("no module named \"b\"; the names are [\"a\"]"), "{text}");
    let list: ModuleList = vec![Box::new(Linear::new(1, 1)), Box::new(Relu)];
    assert_eq!(list.named_parameters()[1].0, "0.bias");
}

/// Two modules of one name, or a name with a dot, would have one entry in a state dict.
#[test]
fn ambiguous_names_are_rejected() {
    /// The fields of `body`, and a field that may have the name of one of them.
    struct Flattened {
        body: Linear,
        name: &'static str,
        value: Parameter,
    }
    impl Module for Flattened {}
    impl Visit for Flattened {
        fn visit(&self, visitor: &mut Visitor<'_>) {
            visitor.module(self, None);
            self.body.visit(visitor);
            visitor.field(self.name, &self.value);
        }
    }
    let with_name =
        |name| Flattened { body: Linear::new(2, 2), name, value: Parameter::new(Tensor::zeros([2, 2], DType::F32)) };
    let (model, clashing) = (with_name("value"), with_name("weight"));
    let state = model.state_dict();
    let results = [
        clashing.try_state_dict().map(drop),
        Checkpoint::new().model(&clashing).state().map(drop),
        clashing.load_state_dict(&state),
        clashing.load_matching(&state).map(drop),
    ];
    for error in results.map(Result::unwrap_err) {
        assert!(
            matches!(error.root(), Error::InvalidArgument { reason, .. } if reason.contains("`weight`")),
            "{error}"
        );
    }
    // A shared parameter may have one name twice.
    let shared = Flattened { value: model.body.weight.clone(), ..with_name("weight") };
    let shared = Flattened { body: model.body.clone(), ..shared };
    assert_eq!(shared.state_dict().len(), 2);

    let mut dict = ModuleDict::new();
    for name in ["", "a.b", "."] {
        assert!(matches!(dict.try_insert(name, Relu), Err(Error::InvalidArgument { .. })), "{name:?}");
        let panic = catch_unwind(AssertUnwindSafe(|| with_name(name).named_parameters())).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("no dot, got"), "{name:?}");
    }
    assert!(dict.is_empty());
}

/// The names of the tensors in GPT-2's files, where the weights of linear layers are `[in, out]`.
#[test]
fn a_file_with_other_names_and_transposed_weights_is_loaded() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(3);
    let model = || TransformerEncoder::new(6, 2, 2).hidden(12).norm_first(true).dropout(0.0).norm(true);
    const NAMES: [(&str, &str); 7] = [
        ("self_attn.in_proj_", "attn.c_attn."),
        ("self_attn.out_proj.", "attn.c_proj."),
        ("linear1.", "mlp.c_fc."),
        ("linear2.", "mlp.c_proj."),
        ("norm1.", "ln_1."),
        ("norm2.", "ln_2."),
        ("layers.", "transformer.h."),
    ];
    let turned = |(name, w): (String, Tensor)| {
        let is_linear = name.contains(".c_") && name.ends_with("weight");
        (name, if is_linear { w.t() } else { w })
    };
    let written = model();
    let theirs = rename_keys(&written.state_dict(), |name| {
        let name = name.strip_prefix("norm.").map_or(name.to_string(), |rest| format!("transformer.ln_f.{rest}"));
        Some(NAMES.iter().fold(name, |name, (ours, theirs)| name.replace(ours, theirs)))
    });
    let mut theirs: StateDict = theirs.into_iter().map(turned).collect();
    assert_eq!(theirs["transformer.h.1.attn.c_attn.weight"].shape().dims(), [6, 18]);
    theirs.insert("transformer.h.0.attn.bias".into(), Tensor::ones([1, 1, 4, 4], DType::Bool));
    let ours = rename_keys(&theirs.into_iter().map(turned).collect(), |name| {
        if name.ends_with(".attn.bias") {
            return None;
        }
        let name = name.replace("transformer.ln_f", "norm");
        Some(NAMES.iter().fold(name, |name, (ours, theirs)| name.replace(theirs, ours)))
    });
    let read = model();
    read.load_state_dict(&ours).unwrap();
    let x = Tensor::randn([2, 4, 6], DType::F32);
    let y = |model: &TransformerEncoder| model.forward_masked(&x, AttentionMasks::causal()).to_vec::<f32>();
    assert_eq!(y(&read), y(&written));
}

#[test]
fn load_matching_loads_common_names_and_returns_the_others() {
    let (a, b) = (mlp(), mlp());
    let mut state = a.state_dict();
    state.remove("0.bias");
    state.insert("head.weight".into(), Tensor::zeros([1], DType::F32));
    let before = b.state_dict()["0.bias"].to_vec::<f32>();
    let keys = b.load_matching(&state).unwrap();
    assert_eq!((keys.missing, keys.unexpected), (vec!["0.bias".to_string()], vec!["head.weight".to_string()]));
    assert_eq!(b.state_dict()["2.weight"].to_vec::<f32>(), a.state_dict()["2.weight"].to_vec::<f32>());
    assert_eq!(b.state_dict()["0.bias"].to_vec::<f32>(), before);
    state.insert("0.weight".into(), Tensor::zeros([4, 4], DType::F32));
    let error = b.load_matching(&state).unwrap_err();
    assert!(error.to_string().contains("0.weight: [4, 4] instead of [3, 4];"), "{error}");
    let renamed = rename_keys(&a.state_dict(), |name| (!name.starts_with('2')).then(|| format!("x.{name}")));
    assert_eq!(renamed.keys().collect::<Vec<_>>(), ["x.0.bias", "x.0.weight"]);
}
