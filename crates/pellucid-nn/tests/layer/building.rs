//! Layers that are built later, their dtype and shapes, and cells without a batch.

use super::mlp;
use pellucid_nn::graph::InferenceModel;
use pellucid_nn::optim::{Average, AveragedModel, update_bn};
use pellucid_nn::{
    AdaptiveAvgPool2d, AdaptiveMaxPool2d, BatchNorm1d, Dropout, Embedding, Flatten, GruCell, Layer, Linear, LstmCell,
    Module, Relu, RnnCell, Sequential, StateDict, init, lora_parameters, prune, sequential, with_evaluation_mode,
};
use pellucid_tensor::{DType, Error, Tensor, manual_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An optional layer is built with the input of the layer in it.
#[test]
fn an_optional_layer_has_the_input_dtype_of_its_layer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Some(Embedding::new(5, 3)), Linear::new(3, 2)];
    assert_eq!(model.output_shape(&[4]).unwrap().dims(), [4, 2]);
    let absent: Option<Embedding> = None;
    assert_eq!(absent.input_dtype(), DType::F32);
}

#[test]
fn a_lazy_model_is_built_once_from_the_shape_of_an_input() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(1);
    let model = sequential![Flatten::new(), Linear::lazy(5), Relu, Linear::lazy(2)];
    model.build(&[7, 2, 3]).unwrap();
    let before = model.state_dict();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["1.bias", "1.weight", "3.bias", "3.weight"]);
    assert_eq!(before["1.weight"].shape().dims(), [5, 6]);
    model.build(&[9, 2, 3]).unwrap();
    for (name, value) in model.state_dict() {
        assert_eq!(value.to_vec::<f32>(), before[&name].to_vec::<f32>(), "{name} must not change");
    }
    let error = model.build(&[9, 2, 4]).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "1 (Linear)"), "{error}");
    // The first forward builds the layer as well, with values.
    let other = Linear::lazy(3);
    assert_eq!(other.forward(&Tensor::ones([2, 4], DType::F32)).to_vec::<f32>().len(), 6);
    assert_eq!(other.get().unwrap().weight.shape().dims(), [3, 4]);
}

/// Operations that would omit unbuilt parameters are errors; other operations succeed.
#[test]
fn parameters_of_an_unbuilt_model_are_rejected() {
    let model = sequential![Linear::new(4, 3), (Relu, Linear::lazy(2)), Linear::lazy(1)];
    let uses: [fn(&Sequential); 10] = [
        |model| drop(model.parameters()),
        |model| drop(model.named_parameters()),
        |model| _ = model.parameter_count(),
        |model| drop(model.state_dict()),
        |model| drop(model.load_matching(&StateDict::new()).map_err(|error| panic!("{error}"))),
        |model| drop(model.buffers()),
        |model| drop(model.named_buffers()),
        |model| model.unfreeze(),
        |model| model.freeze(),
        |model| drop(AveragedModel::new(model, Average::Equal)),
    ];
    for rejected in uses {
        let error = catch_unwind(AssertUnwindSafe(|| rejected(&model))).unwrap_err();
        let text = error.downcast_ref::<String>().unwrap();
        assert!(text.contains("1.1 (Lazy)") && text.contains("build()"), "{text}");
    }
    assert!(matches!(lora_parameters(&model), Err(Error::Layer { .. })));
    assert!(matches!(prune::sparsity(&model), Err(Error::Layer { .. })));
    assert!(matches!(update_bn(&model, []), Err(Error::Layer { .. })));
    model.zero_grad();
    model.eval();
    let built = sequential![Linear::new(4, 3), (Relu, Linear::new(3, 2)), Linear::new(2, 1)].state_dict();
    let error = model.load_state_dict(&built).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "1.1 (Lazy)"), "{error}");
    assert!(model.load_matching(&built).is_err());
    assert_eq!(model.summary(&[5, 4]).unwrap().parameters, 15 + 8 + 3);
    model.load_state_dict(&built).unwrap();
    uses.iter().for_each(|accepted| accepted(&model));
    assert!(model.parameters().iter().all(|p| !p.requires_grad()));
}

/// A lazy layer has the default dtype at its construction; layers without parameters do not affect the input
/// dtype.
#[test]
fn a_lazy_model_has_the_dtype_of_its_construction() {
    let make = || sequential![Flatten::new(), Linear::lazy(3).with(|layer| layer.bias(false)), (Relu, Linear::lazy(2))];
    let model = init::in_dtype(DType::F64, make);
    assert_eq!(model.input_dtype(), DType::F64);
    model.build(&[4, 5]).unwrap();
    assert!(model.parameters().iter().all(|p| p.dtype() == DType::F64));
    assert_eq!((model.parameters().len(), model.input_dtype()), (3, DType::F64));
    assert_eq!((make().input_dtype(), sequential![Relu].input_dtype()), (DType::F32, DType::F32));
    let words = (Dropout::new(0.1), Embedding::new(5, 2), Linear::new(2, 2));
    assert_eq!(words.input_dtype(), DType::I64);
}

#[test]
fn shapes_are_inferred_without_a_kernel_or_a_random_number() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(4, 3), Dropout::new(0.5)];
    manual_seed(3);
    let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
    manual_seed(3);
    assert_eq!(model.output_shape(&[5, 4]).unwrap().dims(), [5, 3]);
    assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected);
    let error = mlp().output_shape(&[5, 5]).unwrap_err();
    let Error::Layer { layer, source } = &error else { panic!("{error}") };
    assert_eq!(layer, "0 (Linear)");
    assert!(matches!(**source, Error::ShapeMismatch { .. }), "{source}");
}

/// A cell accepts one sequence without a batch, and returns the row of a batch of one.
#[test]
fn cells_take_steps_without_a_batch() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    manual_seed(2);
    let (x, h) = (Tensor::randn([3], DType::F32), Tensor::randn([4], DType::F32));
    let row = |t: &Tensor| t.unsqueeze(0);
    let check = |one: Tensor, batch: Tensor| assert_eq!((one.rank(), one.to_vec::<f32>()), (1, batch.to_vec()));
    let rnn = RnnCell::new(3, 4);
    check(rnn.forward(&x, Some(&h)), rnn.forward(&row(&x), Some(&row(&h))));
    let gru = GruCell::new(3, 4);
    check(gru.forward(&x, None), gru.forward(&row(&x), None));
    let lstm = LstmCell::new(3, 4);
    let states = (h.clone(), &h * 2.0);
    let one = lstm.forward(&x, Some(&states));
    let batch = lstm.forward(&row(&x), Some(&(row(&states.0), row(&states.1))));
    check(one.0, batch.0);
    check(one.1, batch.1);
    let cube = Tensor::ones([1, 1, 3], DType::F32);
    assert!(matches!(gru.try_forward(&cube, None), Err(Error::ShapeMismatch { .. })));
}

#[test]
fn adaptive_pools_of_no_windows_are_empty() {
    let x = Tensor::ones([1, 2, 4, 4], DType::F32).requires_grad_(true);
    for (windows, expected) in [([0, 0], [1, 2, 0, 0]), ([0, 3], [1, 2, 0, 3])] {
        for y in [AdaptiveAvgPool2d::new(windows).forward(&x), AdaptiveMaxPool2d::new(windows).forward(&x)] {
            assert_eq!(y.shape().dims(), expected);
            x.zero_grad();
            y.sum(..).backward();
            assert_eq!(x.grad().unwrap().to_vec::<f32>(), [0.0; 32]);
        }
    }
}

/// A lazy layer that an evaluation builds has the mode of its model, which is not the mode of the evaluation.
#[test]
fn a_layer_that_an_evaluation_builds_is_in_training_mode() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = Tensor::randn([6, 3], DType::F32);
    let new = || sequential![Linear::lazy(4), BatchNorm1d::lazy(), Dropout::new(0.1)];
    let evaluated: [fn(&Sequential, &Tensor); 2] = [
        |model, x| drop(with_evaluation_mode(|| model.forward(x))),
        |model, x| InferenceModel::new(model, &[6]).prepare(x).unwrap(),
    ];
    for evaluate in evaluated {
        let model = new();
        evaluate(&model, &x);
        model.forward(&x);
        assert_eq!(model.state_dict()["1.num_batches_tracked"].item::<i64>(), 1);
        let model = new();
        model.eval();
        evaluate(&model, &x);
        model.forward(&x);
        assert_eq!(model.state_dict()["1.num_batches_tracked"].item::<i64>(), 0);
    }
}
