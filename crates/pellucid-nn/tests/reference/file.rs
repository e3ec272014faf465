//! The references: the file that `reference.py` writes, and those of `own.rs`; and tolerances.

use crate::own::{OwnLayer, OwnLoss, own_layers, own_losses};
use pellucid_nn::StateDict;
use pellucid_tensor::{DType, Tensor};
use safetensors::{Dtype, SafeTensors};

/// Returns the tensors of all references.
pub(crate) fn references() -> StateDict {
    let mut all = file();
    all.extend(own_layers().iter().flat_map(OwnLayer::reference));
    all.extend(own_losses().iter().flat_map(OwnLoss::reference));
    all
}

/// Returns all tensors of the file.
fn file() -> StateDict {
    let bytes = include_bytes!("reference.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            Dtype::I64 => DType::I64,
            other => panic!("the dtype {other:?} of {name} is not supported"),
        };
        (name.to_string(), Tensor::from_bytes(view.data(), dtype, view.shape()))
    };
    file.iter().map(tensor).collect()
}

/// The tensors of one layer.
pub(crate) struct Reference<'a> {
    file: &'a StateDict,
    name: &'a str,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(file: &'a StateDict, name: &'a str) -> Reference<'a> {
        Reference { file, name }
    }

    pub(crate) fn get(&self, key: &str) -> &'a Tensor {
        let key = format!("{}/{key}", self.name);
        self.file.get(&key).unwrap_or_else(|| panic!("the reference file must have the tensor {key}"))
    }

    /// Returns all tensors under a key, by the rest of their names.
    pub(crate) fn all(&self, key: &str) -> StateDict {
        let prefix = format!("{}/{key}/", self.name);
        let named = |(name, t): (&String, &Tensor)| Some((name.strip_prefix(&prefix)?.to_string(), t.clone()));
        self.file.iter().filter_map(named).collect()
    }
}

/// Returns the gradient of element i of an output.
pub(crate) fn cosine(i: usize) -> f64 {
    (i as f64).cos()
}

/// Returns cos 0, cos 1, ..: the gradient of outputs.
pub(crate) fn cosines(y: &Tensor) -> Tensor {
    let values: Vec<f64> = (0..y.size()).map(cosine).collect();
    Tensor::new(values, y.shape()).to_dtype(y.dtype())
}

/// Asserts equality within 1e-5 of the largest value, or of 1.
#[track_caller]
pub(crate) fn near(what: &str, ours: &Tensor, theirs: &Tensor) {
    nearer(what, ours, theirs, 1e-5);
}

/// Asserts equality within this fraction of the largest value, or of 1.
#[track_caller]
pub(crate) fn nearer(what: &str, ours: &Tensor, theirs: &Tensor, tolerance: f64) {
    assert_eq!(
        (ours.shape(), ours.dtype()),
        (theirs.shape(), theirs.dtype()),
        "{what}: shape or dtype differs from the reference"
    );
    let (a, b) = (ours.to_vec::<f64>(), theirs.to_vec::<f64>());
    let size = b.iter().filter(|v| v.is_finite()).fold(1f64, |most, v| most.max(v.abs()));
    let close = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * size;
    assert!(a.iter().zip(&b).all(close), "{what}: the difference exceeds {tolerance}·{size}\n{a:?}\n{b:?}");
}
