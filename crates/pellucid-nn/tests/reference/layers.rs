//! Every layer against its reference, mostly PyTorch's values with PyTorch's weights, and properties that all layers
//! share.

use crate::device::{gpu, toy};
use crate::file::{Reference, cosines, near, references};
use crate::near::assert_near;
use crate::table::layers;
use crate::two_inputs::{layers_of_two_inputs_match_pytorch, max_unpooling_restores_the_maxima};
use pellucid_nn::{ACTIVATIONS, LAYERS, Layer, Module};
use pellucid_tensor::{BackwardOptions, Device, GradOptions, Tensor, capture, grad, no_grad};

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The layers that are not in the table, because they have two inputs, with their tests.
const OUTSIDE_THE_TABLE: [(&str, fn()); 6] = [
    ("Bilinear", layers_of_two_inputs_match_pytorch),
    ("CosineSimilarity", layers_of_two_inputs_match_pytorch),
    ("PairwiseDistance", layers_of_two_inputs_match_pytorch),
    ("MaxUnpool1d", max_unpooling_restores_the_maxima),
    ("MaxUnpool2d", max_unpooling_restores_the_maxima),
    ("MaxUnpool3d", max_unpooling_restores_the_maxima),
];

/// Returns the name of the type of a layer.
fn class(layer: &dyn Layer) -> &'static str {
    layer.named_modules()[0].1.class()
}

/// Runs a check for every layer of the table, and reports all failures.
fn every_layer(check: impl Fn(&dyn Layer, &Reference<'_>)) {
    let references = references();
    let mut failed = Vec::new();
    for (name, layer) in layers() {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let reference = Reference::new(&references, name);
            layer.build(reference.get("x").shape()).unwrap();
            layer.load_state_dict(&reference.all("state")).unwrap();
            if name.ends_with("_eval") {
                layer.eval();
            }
            check(&*layer, &reference);
        }));
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
            failed.push(format!("{name}: {text}"));
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn the_table_has_every_reference_of_a_layer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let references = references();
    let mut theirs: Vec<&str> = references.keys().filter_map(|key| key.split_once('/')).map(|(name, _)| name).collect();
    theirs.dedup();
    theirs.retain(|&name| name != "two" && name != "loss");
    let mut ours: Vec<&str> = layers().iter().map(|(name, _)| *name).collect();
    ours.sort();
    assert_eq!(ours, theirs);
}

#[test]
fn every_layer_has_a_row() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let references = references();
    let mut tested: BTreeSet<&str> = OUTSIDE_THE_TABLE.iter().map(|(name, _)| *name).collect();
    for (name, layer) in layers() {
        layer.build(Reference::new(&references, name).get("x").shape()).unwrap();
        tested.insert(class(&*layer));
    }
    let listed: Vec<&str> = [ACTIVATIONS, LAYERS].concat();
    let untested: Vec<_> = listed.iter().filter(|name| !tested.contains(*name)).collect();
    assert!(
        untested.is_empty(),
        "add these layers to own.rs, or to reference.py and table.rs, in tests/reference: {untested:?}"
    );
    let unlisted: Vec<_> = tested.iter().filter(|name| !listed.contains(name)).collect();
    assert!(unlisted.is_empty(), "the list of layers/mod.rs must contain {unlisted:?}");
}

#[test]
fn outputs_gradients_and_statistics_match_the_reference() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    every_layer(|layer, reference| {
        let x = reference.get("x").detach();
        let x = if x.dtype().is_float() { x.requires_grad_(true) } else { x };
        let y = layer.forward(&x);
        near("y", &y, reference.get("y"));
        let parameters = layer.named_parameters();
        let mut inputs: Vec<(String, &Tensor)> = Vec::new();
        if x.requires_grad() {
            inputs.push(("dx".into(), &x));
        }
        inputs.extend(parameters.iter().map(|(name, p)| (format!("grad/{name}"), p.tensor())));
        let seeds = GradOptions { grad_outputs: vec![Some(cosines(&y))], ..Default::default() };
        let tensors: Vec<&Tensor> = inputs.iter().map(|(_, t)| *t).collect();
        // A layer of integers without parameters has no gradients.
        let gradients = if tensors.is_empty() { vec![] } else { grad(&[&y], &tensors, seeds).unwrap() };
        for ((name, _), gradient) in inputs.iter().zip(&gradients) {
            near(name, gradient, reference.get(name));
        }
        if !layer.buffers().is_empty() {
            layer.forward(&(x.detach() * 2.0 + 1.0));
            for (name, buffer) in layer.named_buffers() {
                near(&name, &buffer, reference.get(&format!("after/{name}")));
            }
            layer.eval();
            near("evaluation", &layer.forward(&x), reference.get("eval"));
        }
    });
}

#[test]
fn shapes_and_summaries_are_known_without_a_kernel() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    every_layer(|layer, reference| {
        let (x, y) = (reference.get("x"), reference.get("y"));
        let before: Vec<_> = layer.state_dict().values().map(|t| t.to_bytes()).collect();
        assert_eq!(layer.output_shape(x.shape()).unwrap(), *y.shape());
        let summary = layer.summary(x.shape()).unwrap();
        assert_eq!(summary.rows[0].output, *y.shape());
        assert_eq!(summary.parameters, layer.parameter_count());
        let after: Vec<_> = layer.state_dict().values().map(|t| t.to_bytes()).collect();
        assert_eq!(before, after, "a summary must not change the state dict of the layer");
        layer.supports_capture().unwrap();
    });
}

/// A captured layer has the outputs and statistics of an eager layer, in training and in evaluation mode.
#[test]
fn a_captured_layer_equals_the_eager_one() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    every_layer(|layer, reference| {
        let x = reference.get("x");
        for training in [true, false] {
            let state = layer.state_dict();
            if training {
                layer.train()
            } else {
                layer.eval()
            }
            let run = |steps: &mut dyn FnMut(&Tensor) -> Vec<u8>| -> Vec<Vec<u8>> {
                layer.load_state_dict(&state).unwrap();
                pellucid_tensor::manual_seed(5);
                let mut bytes: Vec<Vec<u8>> = (0..3).map(|_| steps(x)).collect();
                bytes.extend(layer.state_dict().values().map(|t| t.to_bytes()));
                bytes
            };
            let _off = no_grad();
            let eager = run(&mut |x| layer.forward(x).to_bytes());
            let mut step = capture(|inputs| layer.forward(&inputs[0]), &[x]).unwrap();
            let replayed = run(&mut |x| step.launch(&[x]).unwrap().to_tensor(0).to_bytes());
            assert!(eager == replayed, "the captured layer must equal the eager one (training mode: {training})");
            layer.load_state_dict(&state).unwrap();
        }
    });
}

/// A layer on another device has the outputs, gradients and statistics of the layer on the CPU.
#[test]
fn a_moved_layer_equals_the_one_on_the_cpu() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    every_layer(|layer, reference| {
        let x = reference.get("x").detach();
        let state = layer.state_dict();
        let run = |device: Device| -> Vec<Tensor> {
            layer.to_(device).unwrap();
            layer.load_state_dict(&state).unwrap();
            pellucid_tensor::manual_seed(5);
            layer.zero_grad();
            let x = if x.dtype().is_float() { x.detach().requires_grad_(true) } else { x.clone() };
            let y = layer.forward(&x.to(device));
            assert_eq!(y.device(), device, "the output must be on the device of the layer");
            let mut all = vec![y.clone()];
            if y.requires_grad() {
                y.backward_with(BackwardOptions { gradient: Some(cosines(&y)), ..Default::default() });
                all.extend(x.grad());
                let gradients = layer.parameters().into_iter().filter_map(|p| p.grad());
                all.extend(gradients.inspect(|g| assert_eq!(g.device(), device, "a gradient must be on the device")));
            }
            all.extend(layer.state_dict().into_values());
            all.iter().map(|t| t.detach().to(Device::cpu()).copy()).collect()
        };
        let bits = |all: &[Tensor]| all.iter().map(|t| t.to_bytes()).collect::<Vec<_>>();
        let on_cpu = run(Device::cpu());
        assert!(bits(&on_cpu) == bits(&run(toy(0))), "the result of the layer must be bit-identical on another device");
        if let Some(gpu) = gpu() {
            assert_near(&run(gpu), &on_cpu, "the layer on a GPU");
        }
    });
}

#[test]
fn a_class_is_the_name_of_its_type() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    assert_eq!(class(&pellucid_nn::Conv2d::new(1, 1, 1)), "Conv2d");
    assert_eq!(class(&pellucid_nn::Dropout3d::new(0.1)), "Dropout3d");
    assert_eq!(class(&pellucid_nn::ReflectionPad1d::new(1)), "ReflectionPad1d");
    let error = pellucid_nn::BatchNorm2d::new(3).output_shape(&[2, 3, 4]).unwrap_err();
    assert!(error.to_string().starts_with("BatchNorm2d: batch_norm: incompatible shapes"), "{error}");
}
