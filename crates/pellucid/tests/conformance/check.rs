//! One sample against the data: outputs, then the derivatives of three orders.
//!
//! With cotangents c and directions v and w: L1 = Σ ⟨c, out⟩, its gradient is `grad`;
//! L2 = Σ ⟨grad, v⟩, its gradient by the inputs is `ggrad`, by the cotangents J·v (`jvp`);
//! L3 = Σ ⟨ggrad, w⟩, its gradient is `g3`.

use crate::bindings::Binding;
use crate::call::Call;
use crate::data::Case;
use crate::index::{Level, Refusal, Sample};
use crate::steps;
use pellucid::{DType, Error, Grad, Tensor, grad, jvp, lazy, ops};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a sample runs, and what may differ there.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) float: DType,
    /// Inputs lie column by column, with NaN between their elements.
    strided: bool,
    /// Kernels run when values are read.
    deferred: bool,
    outputs: f64,
    gradients: f64,
}

/// The data's own precision.
const DOUBLE: Run =
    Run { name: "f64", float: DType::F64, strided: false, deferred: false, outputs: 1e-9, gradients: 1e-7 };
/// The same samples, cast.
const SINGLE: Run = Run { name: "f32", float: DType::F32, outputs: 1e-4, gradients: 1e-4, ..DOUBLE };

/// The runs of an operation.
pub(crate) fn runs(operation: &str) -> [Run; 4] {
    let algebra = ["linalg.", "cholesky", "logdet", "matrix_exp"].iter().any(|prefix| operation.starts_with(prefix));
    let double = if algebra { Run { outputs: 1e-6, gradients: 1e-6, ..DOUBLE } } else { DOUBLE };
    let strided = Run { name: "f64 strided", strided: true, ..double };
    let deferred = Run { name: "f64 deferred", deferred: true, ..double };
    [double, strided, deferred, SINGLE]
}

/// Runs what may panic: a panic is a failure with its text.
fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("?")))
    })
}

/// A call that must be refused, with a typed error.
pub(crate) fn refused(binding: &Binding, case: &Case, refusal: &Refusal) -> Result<(), String> {
    let prefix = format!("{}.in.", refusal.key);
    let inside = |(name, tensor): (&String, &Tensor)| Some((name.strip_prefix(&prefix)?.to_string(), tensor.clone()));
    let tensors = case.tensors.iter().filter_map(inside).collect();
    let call = Call { arguments: &refusal.arguments, tensors: &tensors, float: DType::F64 };
    guarded(|| match binding(&call) {
        Ok(_) => Err(format!("accepted, though: {}", refusal.message.lines().next().unwrap_or_default())),
        Err(_) => Ok(()),
    })
}

/// A sample in one run.
pub(crate) fn sample(binding: &Binding, case: &Case, sample: &Sample, run: Run) -> Result<(), String> {
    let check = || Check { binding, case, sample, run }.all();
    guarded(|| if run.deferred { lazy(check) } else { check() })
}

struct Check<'a> {
    binding: &'a Binding,
    case: &'a Case,
    sample: &'a Sample,
    run: Run,
}

fn refuse(e: Error) -> String {
    format!("refused: {e}")
}

impl Check<'_> {
    fn all(&self) -> Result<(), String> {
        let leaves = self.inputs()?;
        let outputs = self.call(&leaves)?;
        let stored = if self.sample.post.is_some() { "pout" } else { "out" };
        if self.sample.post.is_none() && outputs.len() != self.sample.outputs {
            return Err(format!("{} outputs, expected {}", outputs.len(), self.sample.outputs));
        }
        for (j, output) in outputs.iter().enumerate() {
            let Some(expected) = self.stored(stored, j) else {
                return Err(format!("output {j} is not in the data"));
            };
            let float = |dtype: DType| if dtype == DType::F64 { self.run.float } else { dtype };
            if output.dtype() != float(expected.dtype()) {
                return Err(format!("output {j} is {}, expected {}", output.dtype(), expected.dtype()));
            }
            self.compare(&format!("output {j}"), output, expected, self.run.outputs)?;
        }
        for (path, leaf) in &leaves {
            if let Some(expected) = self.stored("after", path) {
                self.compare(&format!("{path} afterwards"), leaf, expected, self.run.outputs)?;
            }
        }
        if !self.sample.comparable || self.sample.levels[0] == Level::Absent || self.sample.tracked.is_empty() {
            return Ok(());
        }
        self.derivatives(&leaves, &outputs)
    }

    /// The tensors of the call, cast; the ones that have gradients are leaves that require them.
    fn inputs(&self) -> Result<BTreeMap<String, Tensor>, String> {
        let prefix = format!("{}.in.", self.sample.key);
        let mut leaves = BTreeMap::new();
        for (name, tensor) in &self.case.tensors {
            if let Some(path) = name.strip_prefix(&prefix) {
                // Its own copy: a call may write into its arguments.
                let copied = ops::copy(&self.cast(tensor)?).map_err(refuse)?;
                let leaf = if self.run.strided { strided(&copied).map_err(refuse)? } else { copied };
                leaf.set_requires_grad(self.sample.tracked.iter().any(|t| t == path)).map_err(refuse)?;
                leaves.insert(path.to_string(), leaf);
            }
        }
        Ok(leaves)
    }

    fn cast(&self, tensor: &Tensor) -> Result<Tensor, String> {
        if tensor.dtype() != DType::F64 {
            return Ok(tensor.clone());
        }
        ops::to_dtype(tensor, self.run.float).map_err(refuse)
    }

    /// The outputs, after the preparation of the input and before the derivatives.
    fn call(&self, leaves: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, String> {
        let prepared = steps::prepare(self.sample, leaves).map_err(refuse)?;
        let call = Call { arguments: &self.sample.arguments, tensors: &prepared, float: self.run.float };
        let outputs = (self.binding)(&call).map_err(refuse)?;
        steps::post(self.sample, outputs).map_err(refuse)
    }

    /// What the data holds for this sample under `kind` at a path or an output.
    fn stored(&self, kind: &str, at: impl std::fmt::Display) -> Option<&Tensor> {
        self.case.tensors.get(&format!("{}.{kind}.{at}", self.sample.key))
    }

    /// Every derivative that the data has.
    fn derivatives(&self, leaves: &BTreeMap<String, Tensor>, outputs: &[Tensor]) -> Result<(), String> {
        let sample = self.sample;
        let inputs: Vec<&Tensor> = sample.tracked.iter().map(|path| &leaves[path]).collect();
        let mut cotangents = Vec::new();
        for &j in &sample.cotangents {
            let stored = self.stored("cot", j).ok_or_else(|| format!("cotangent {j} is not in the data"))?;
            cotangents.push(self.cast(stored)?.requires_grad_(true));
        }
        let outputs: Vec<&Tensor> = sample.cotangents.iter().map(|&j| &outputs[j]).collect();
        let seeds = cotangents.iter().cloned().map(Some).collect();
        let first = gradients(&outputs, seeds, &inputs)?;
        self.order("grad", sample.levels[0], &first)?;
        let Some(directions) = self.directions("v")? else { return Ok(()) };

        let by: Vec<&Tensor> = inputs.iter().copied().chain(&cotangents).collect();
        let second = gradients(&first.iter().collect::<Vec<_>>(), directions, &by)?;
        self.order("ggrad", sample.levels[1], &second[..inputs.len()])?;
        self.forward("jvp", &second[inputs.len()..])?;
        self.forward("jvp()", &self.transformed(leaves)?)?;
        let Some(directions) = self.directions("w")? else { return Ok(()) };

        let third = gradients(&second[..inputs.len()].iter().collect::<Vec<_>>(), directions, &inputs)?;
        self.order("g3", sample.levels[2], &third)
    }

    /// The directions that the data has for the next order, `None` where it has none at all.
    fn directions(&self, kind: &str) -> Result<Option<Vec<Option<Tensor>>>, String> {
        let cast = |path| self.stored(kind, path).map(|t| self.cast(t)).transpose();
        let found: Vec<Option<Tensor>> = self.sample.tracked.iter().map(cast).collect::<Result<_, String>>()?;
        Ok(found.iter().any(Option::is_some).then_some(found))
    }

    /// Forward mode by the public transform, at the same directions.
    fn transformed(&self, leaves: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, String> {
        let tracked = &self.sample.tracked;
        let inputs: Vec<&Tensor> = tracked.iter().map(|path| &leaves[path]).collect();
        let directions = self.directions("v")?.unwrap_or_default().into_iter().zip(&inputs);
        let tangents: Vec<Tensor> = directions
            .map(|(v, x)| v.map_or_else(|| ops::zeros_like(x), Ok))
            .collect::<pellucid::Result<_>>()
            .map_err(refuse)?;
        let mut failure = None;
        let f = |fresh: &[Tensor]| {
            let mut leaves = leaves.clone();
            leaves.extend(tracked.iter().cloned().zip(fresh.iter().cloned()));
            let outputs = self.call(&leaves).map_err(|e| {
                failure = Some(e);
                Error::invalid("jvp", "the call was refused")
            })?;
            Ok(self.sample.cotangents.iter().map(|&j| outputs[j].clone()).collect())
        };
        let (_, products) = jvp(f, &inputs, &tangents.iter().collect::<Vec<_>>()).map_err(refuse)?;
        Ok(products)
    }

    /// The gradients of one order against the data.
    fn order(&self, kind: &str, level: Level, gradients: &[Tensor]) -> Result<(), String> {
        if level == Level::Absent {
            return Ok(());
        }
        for (path, gradient) in self.sample.tracked.iter().zip(gradients) {
            let zeros;
            let expected = match self.stored(kind, path) {
                Some(expected) if level == Level::Known => expected,
                _ => {
                    zeros = ops::zeros_like(gradient).map_err(refuse)?;
                    &zeros
                }
            };
            self.compare(&format!("{kind} of {path}"), gradient, expected, self.run.gradients)?;
        }
        Ok(())
    }

    fn forward(&self, what: &str, products: &[Tensor]) -> Result<(), String> {
        for (&j, product) in self.sample.cotangents.iter().zip(products) {
            if let Some(expected) = self.stored("jvp", j) {
                self.compare(&format!("{what} of output {j}"), product, expected, self.run.gradients)?;
            }
        }
        Ok(())
    }

    /// Shapes, then every element: equal, or both NaN, or close relative to the expected one and to
    /// the size of the whole.
    fn compare(&self, what: &str, got: &Tensor, expected: &Tensor, tolerance: f64) -> Result<(), String> {
        if got.shape() != expected.shape() {
            return Err(format!("{what} has shape {}, expected {}", got.shape(), expected.shape()));
        }
        let (values, wanted) = (got.to_vec::<f64>(), expected.to_vec::<f64>());
        let size = wanted.iter().filter(|e| e.is_finite()).fold(0.0, |m: f64, e| m.max(e.abs()));
        // Gradients are sums of larger terms, and so are all results in the smaller precision: what is
        // left where these cancel is noise.
        let floor = match self.run.float {
            DType::F64 if tolerance == self.run.outputs => size.min(1.0),
            DType::F64 => size.clamp(1e-3, 1.0),
            _ => size.max(1e-2),
        };
        for (i, (&value, &expected)) in values.iter().zip(&wanted).enumerate() {
            let close = (value - expected).abs() <= tolerance * (expected.abs() + floor);
            if !(value == expected || (value.is_nan() && expected.is_nan()) || (close && expected.is_finite())) {
                return Err(format!("{what}: element {i} is {value}, expected {expected}"));
            }
        }
        Ok(())
    }
}

/// Σⱼ ∂⟨seedⱼ, outputⱼ⟩ by every input, recorded; outputs without history or seed contribute nothing.
fn gradients(outputs: &[&Tensor], seeds: Vec<Option<Tensor>>, inputs: &[&Tensor]) -> Result<Vec<Tensor>, String> {
    let (linked, seeds): (Vec<&Tensor>, Vec<Option<Tensor>>) =
        outputs.iter().zip(seeds).filter(|(output, seed)| output.requires_grad() && seed.is_some()).unzip();
    if linked.is_empty() {
        return inputs.iter().map(|x| ops::zeros_like(x)).collect::<pellucid::Result<_>>().map_err(refuse);
    }
    grad(&linked, inputs, Grad { grad_outputs: seeds, create_graph: true, retain_graph: true }).map_err(refuse)
}

/// The same values in a storage where they lie column by column, with others between them.
fn strided(x: &Tensor) -> pellucid::Result<Tensor> {
    let columns = ops::contiguous(&ops::t(x)?)?;
    let other = if x.dtype().is_float() { ops::full_like(&columns, f64::NAN)? } else { ops::ones_like(&columns)? };
    let between = ops::select(&ops::stack(&[&columns, &other], -1)?, -1, 0)?;
    Ok(ops::t(&between)?.detach())
}
