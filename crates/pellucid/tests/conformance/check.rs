//! Compares one sample with the reference data: outputs, then derivatives of three orders.
//!
//! With cotangents c and directions v and w: L1 = Σ ⟨c, out⟩, whose gradient is `grad`; L2 = Σ ⟨grad, v⟩, whose
//! gradient with respect to the inputs is `ggrad`, and with respect to the cotangents J·v (`jvp`); L3 = Σ ⟨ggrad, w⟩,
//! whose gradient is `g3`.

use crate::bindings::Binding;
use crate::call::Call;
use crate::data::Case;
use crate::differences;
use crate::index::{Level, RejectedCall, Sample};
use crate::steps;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use pellucid::Device;
use pellucid::{DType, Error, GradOptions, Tensor, capture_local, grad, jvp, lazy, ops};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The execution mode.
#[derive(Clone, Copy)]
enum Engine {
    /// Eager: kernels run when they are submitted.
    Eager,
    /// Lazy: kernels run when values are read.
    Deferred,
    /// Captured: the entire sample is recorded as one step and launched.
    Captured,
    /// Like `Eager`, with all tensors on a device.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    On(Device),
}

/// A configuration of a run, and its tolerance.
#[derive(Clone, Copy)]
struct RunConfig {
    name: &'static str,
    float: DType,
    /// Whether inputs are column-major, with NaN between their elements.
    strided: bool,
    engine: Engine,
    outputs: f64,
    gradients: f64,
}

impl RunConfig {
    /// Returns true for an eager run with contiguous inputs.
    fn is_plain(self) -> bool {
        matches!(self.engine, Engine::Eager) && !self.strided
    }
}

/// An eager run in the precision of the test data.
const DOUBLE: RunConfig =
    RunConfig { name: "f64", float: DType::F64, strided: false, engine: Engine::Eager, outputs: 1e-9, gradients: 1e-7 };
/// The same samples, converted to another precision.
const SINGLE: RunConfig = RunConfig { name: "f32", float: DType::F32, outputs: 1e-4, gradients: 1e-4, ..DOUBLE };

/// Returns the runs of an operation, for arguments with or without a mask. The runs after a plain run must
/// equal it bit for bit.
fn runs(operation: &str, with_mask: bool) -> Vec<RunConfig> {
    let algebra = ["linalg.", "cholesky", "logdet", "matrix_exp"].iter().any(|prefix| operation.starts_with(prefix));
    // The reference values of these operations are accurate to six digits.
    let coarse = operation.starts_with("special.bessel_") || operation == "special.airy_ai";
    let double = match (algebra, coarse) {
        (true, _) => RunConfig { outputs: 1e-6, gradients: 1e-6, ..DOUBLE },
        (_, true) => RunConfig { outputs: 1e-6, gradients: 1e-5, ..DOUBLE },
        _ => DOUBLE,
    };
    let mut runs = vec![
        double,
        RunConfig { name: "f64 strided", strided: true, ..double },
        RunConfig { name: "f64 deferred", engine: Engine::Deferred, ..double },
        RunConfig { name: "f64 captured", engine: Engine::Captured, ..double },
        SINGLE,
        RunConfig { name: "f32 strided", strided: true, ..SINGLE },
        RunConfig { name: "f32 deferred", engine: Engine::Deferred, ..SINGLE },
        RunConfig { name: "f32 captured", engine: Engine::Captured, ..SINGLE },
    ];
    runs.retain(|run| !(matches!(run.engine, Engine::Captured) && differences::reads(operation, with_mask)));
    runs
}

/// Calls `f`, and returns a panic as an error with its message.
fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("?")))
    })
}

/// Checks that a call returns a typed error.
pub(crate) fn rejected(binding: &Binding, case: &Case, rejection: &RejectedCall) -> Result<(), String> {
    let prefix = format!("{}.in.", rejection.key);
    let inside = |(name, tensor): (&String, &Tensor)| Some((name.strip_prefix(&prefix)?.to_string(), tensor.clone()));
    let tensors = case.tensors.iter().filter_map(inside).collect();
    let call = Call { arguments: &rejection.arguments, tensors: &tensors, float: DType::F64 };
    guarded(|| match binding(&call) {
        Ok(_) => {
            Err(format!("accepted, but expected the error: {}", rejection.message.lines().next().unwrap_or_default()))
        }
        Err(_) => Ok(()),
    })
}

/// Checks a sample in every run; returns the names of the runs with their failures.
pub(crate) fn sample(binding: &Binding, case: &Case, sample: &Sample) -> Vec<(&'static str, Result<(), String>)> {
    let mut plain: Option<Vec<Tensor>> = None;
    let verdict = |run: RunConfig| {
        let check = SampleCheck { binding, case, sample, run };
        let values = guarded(|| match run.engine {
            Engine::Eager => check.eager(),
            Engine::Deferred => lazy(|| check.eager()),
            Engine::Captured => check.captured(),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Engine::On(_) => check.eager(),
        });
        let verdict = values.and_then(|values| {
            if run.is_plain() {
                plain = Some(values);
                return Ok(());
            }
            plain.as_ref().map_or(Ok(()), |plain| same_bits(plain, &values))
        });
        (run.name, verdict)
    };
    let prefix = format!("{}.in.", sample.key);
    let mask = |(name, tensor): (&String, &Tensor)| name.starts_with(&prefix) && tensor.dtype() == DType::Bool;
    runs(&case.operation.name, case.tensors.iter().any(mask)).into_iter().map(verdict).collect()
}

/// Checks a sample in single precision with all tensors on a device.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn sample_on(device: Device, binding: &Binding, case: &Case, sample: &Sample) -> Result<(), String> {
    let run = RunConfig { name: "f32 on the device", engine: Engine::On(device), ..SINGLE };
    guarded(|| SampleCheck { binding, case, sample, run }.eager().map(drop))
}

/// Checks that layout and execution mode change no bit.
fn same_bits(plain: &[Tensor], again: &[Tensor]) -> Result<(), String> {
    let same = |(a, b): (&Tensor, &Tensor)| a.try_to_bytes().ok() == b.try_to_bytes().ok();
    match plain.iter().zip(again).position(|pair| !same(pair)) {
        Some(at) => Err(format!("value {at} differs bitwise from the eager run on contiguous inputs")),
        None => Ok(()),
    }
}

struct SampleCheck<'a> {
    binding: &'a Binding,
    case: &'a Case,
    sample: &'a Sample,
    run: RunConfig,
}

/// A computed tensor, and the expected one (`None` for zeros).
struct Computed<'a> {
    what: String,
    value: Tensor,
    expected: Option<&'a Tensor>,
    tolerance: f64,
    /// A lower bound, in `f64`, of the norm to which differences are relative.
    least: f64,
}

type Leaves = BTreeMap<String, Tensor>;

/// Returns the text of a failure.
fn to_message(e: Error) -> String {
    format!("rejected: {e}")
}

impl<'a> SampleCheck<'a> {
    /// Computes and compares all outputs and derivatives eagerly. Returns all computed tensors.
    fn eager(&self) -> Result<Vec<Tensor>, String> {
        let leaves = self.inputs()?;
        let computed = self.compute_all(&leaves)?;
        computed.iter().try_for_each(|computed| self.compare(computed, &computed.value))?;
        Ok(computed.into_iter().map(|computed| computed.value).collect())
    }

    /// Computes all outputs and derivatives in one captured step, which is launched twice.
    fn captured(&self) -> Result<Vec<Tensor>, String> {
        let leaves = self.inputs()?;
        let (last, values) = (RefCell::new(Ok(Vec::new())), leaves.values().map(Tensor::detach).collect::<Vec<_>>());
        let values: Vec<&Tensor> = values.iter().collect();
        let step = |inputs: &[Tensor]| {
            let fresh = leaves.iter().zip(inputs).map(|((path, leaf), input)| {
                // A step does not write into its inputs, but the call writes running statistics.
                let tracked = leaf.requires_grad();
                (path.clone(), if tracked { input.detach().requires_grad_(true) } else { input.copy() })
            });
            let computed = self.compute_all(&fresh.collect());
            let values = computed.iter().flatten().map(|computed| computed.value.clone()).collect::<Vec<_>>();
            *last.borrow_mut() = computed;
            values
        };
        let mut step = capture_local(step, &values).map_err(to_message)?;
        step.launch(&values).map_err(to_message)?;
        let outputs = step.launch(&values).map_err(to_message)?;
        let computed = last.replace(Ok(Vec::new()))?;
        let values: Vec<Tensor> = (0..outputs.len())
            .map(|j| outputs.try_to_tensor(j))
            .collect::<pellucid::Result<_>>()
            .map_err(to_message)?;
        computed.iter().zip(&values).try_for_each(|(computed, value)| self.compare(computed, value))?;
        Ok(values)
    }

    /// Computes outputs and derivatives without reading values on the host. A captured step can therefore contain it.
    fn compute_all(&self, leaves: &Leaves) -> Result<Vec<Computed<'a>>, String> {
        let outputs = self.call(leaves)?;
        let output_kind = if self.sample.post.is_some() { "pout" } else { "out" };
        if self.sample.post.is_none() && outputs.len() != self.sample.outputs {
            return Err(format!("the call returned {} outputs, expected {}", outputs.len(), self.sample.outputs));
        }
        let mut all = Vec::new();
        for (j, output) in outputs.iter().enumerate() {
            let Some(expected) = self.expected(output_kind, j) else {
                return Err(format!("the test data does not contain output {j}"));
            };
            let float = |dtype: DType| if dtype == DType::F64 { self.run.float } else { dtype };
            if output.dtype() != float(expected.dtype()) {
                return Err(format!("output {j} has dtype {}, expected {}", output.dtype(), float(expected.dtype())));
            }
            all.push(self.output(format!("output {j}"), output, expected));
        }
        for (path, leaf) in leaves {
            if let Some(expected) = self.expected("after", path) {
                // A copy of the current value, because the call is repeated for the derivatives.
                let now = ops::copy(&leaf.detach()).map_err(to_message)?;
                all.push(self.output(format!("{path} after the call"), &now, expected));
            }
        }
        if self.sample.comparable && self.sample.levels[0] != Level::Absent && !self.sample.tracked.is_empty() {
            self.derivatives(leaves, &outputs, &mut all)?;
        }
        Ok(all)
    }

    fn output(&self, what: String, value: &Tensor, expected: &'a Tensor) -> Computed<'a> {
        // Expected values in single precision are accurate only to single precision.
        let tolerance = if expected.dtype() == DType::F32 { SINGLE.outputs } else { self.run.outputs };
        Computed { what, value: value.clone(), expected: Some(expected), tolerance, least: 0.0 }
    }

    /// Returns the tensors of the call in the precision of the run. Tensors with gradients are leaves that require a
    /// gradient.
    fn inputs(&self) -> Result<Leaves, String> {
        let prefix = format!("{}.in.", self.sample.key);
        let mut leaves = Leaves::new();
        for (name, tensor) in &self.case.tensors {
            if let Some(path) = name.strip_prefix(&prefix) {
                // A copy, because a call may write into its arguments.
                let copied = ops::copy(&self.cast(tensor)?).map_err(to_message)?;
                let leaf = if self.run.strided { strided(&copied).map_err(to_message)? } else { copied };
                #[cfg(any(feature = "cuda", feature = "wgpu"))]
                let leaf = match self.run.engine {
                    Engine::On(device) => leaf.try_to(device).map_err(to_message)?,
                    _ => leaf,
                };
                leaf.set_requires_grad(self.sample.tracked.iter().any(|t| t == path)).map_err(to_message)?;
                leaves.insert(path.to_string(), leaf);
            }
        }
        Ok(leaves)
    }

    /// Converts a tensor to the precision of the run, and returns it as a new handle.
    fn cast(&self, tensor: &Tensor) -> Result<Tensor, String> {
        let dtype = if tensor.dtype() == DType::F64 { self.run.float } else { tensor.dtype() };
        Ok(ops::to_dtype(tensor, dtype).map_err(to_message)?.detach())
    }

    /// Returns the outputs, after the preparation of the input and before the derivatives.
    fn call(&self, leaves: &Leaves) -> Result<Vec<Tensor>, String> {
        let prepared = steps::prepare(self.sample, leaves).map_err(to_message)?;
        let call = Call { arguments: &self.sample.arguments, tensors: &prepared, float: self.run.float };
        let outputs = (self.binding)(&call).map_err(to_message)?;
        steps::post(self.sample, outputs).map_err(to_message)
    }

    /// Returns the expected tensor of this sample for `kind` and a path or an output index.
    fn expected(&self, kind: &str, at: impl std::fmt::Display) -> Option<&'a Tensor> {
        self.case.tensors.get(&format!("{}.{kind}.{at}", self.sample.key))
    }

    /// Computes every derivative for which the test data has an expected value.
    fn derivatives(&self, leaves: &Leaves, outputs: &[Tensor], all: &mut Vec<Computed<'a>>) -> Result<(), String> {
        let sample = self.sample;
        let inputs: Vec<&Tensor> = sample.tracked.iter().map(|path| &leaves[path]).collect();
        let mut cotangents = Vec::new();
        for &j in &sample.cotangents {
            let cotangent =
                self.expected("cot", j).ok_or_else(|| format!("the test data does not contain cotangent {j}"))?;
            cotangents.push(self.cast(cotangent)?.requires_grad_(true));
        }
        let outputs: Vec<&Tensor> = sample.cotangents.iter().map(|&j| &outputs[j]).collect();
        let seeds = cotangents.iter().cloned().map(Some).collect();
        let first = gradients(&outputs, seeds, &inputs)?;
        self.push_gradients("grad", sample.levels[0], &first, all);
        let Some(directions) = self.directions("v")? else { return Ok(()) };

        let by: Vec<&Tensor> = inputs.iter().copied().chain(&cotangents).collect();
        let second = gradients(&first.iter().collect::<Vec<_>>(), directions, &by)?;
        self.push_gradients("ggrad", sample.levels[1], &second[..inputs.len()], all);
        self.push_products("jvp", &second[inputs.len()..], all);
        self.push_products("jvp()", &self.jvp_products(leaves)?, all);
        let Some(directions) = self.directions("w")? else { return Ok(()) };

        let third = gradients(&second[..inputs.len()].iter().collect::<Vec<_>>(), directions, &inputs)?;
        self.push_gradients("g3", sample.levels[2], &third, all);
        Ok(())
    }

    /// Returns the directions of the next order, or `None` if the test data contains none.
    fn directions(&self, kind: &str) -> Result<Option<Vec<Option<Tensor>>>, String> {
        let cast = |path| self.expected(kind, path).map(|t| self.cast(t)).transpose();
        let found: Vec<Option<Tensor>> = self.sample.tracked.iter().map(cast).collect::<Result<_, String>>()?;
        Ok(found.iter().any(Option::is_some).then_some(found))
    }

    /// Computes J·v by the public function `jvp`, with the same directions.
    fn jvp_products(&self, leaves: &Leaves) -> Result<Vec<Tensor>, String> {
        let tracked = &self.sample.tracked;
        let inputs: Vec<&Tensor> = tracked.iter().map(|path| &leaves[path]).collect();
        let directions = self.directions("v")?.unwrap_or_default().into_iter().zip(&inputs);
        let tangents: Vec<Tensor> = directions
            .map(|(v, x)| v.map_or_else(|| ops::zeros_like(x), Ok))
            .collect::<pellucid::Result<_>>()
            .map_err(to_message)?;
        let f = |fresh: &[Tensor]| {
            let mut leaves = leaves.clone();
            leaves.extend(tracked.iter().cloned().zip(fresh.iter().cloned()));
            let outputs = self.call(&leaves).map_err(|e| Error::invalid("jvp", e))?;
            Ok(self.sample.cotangents.iter().map(|&j| outputs[j].clone()).collect())
        };
        let (_, products) = jvp(f, &inputs, &tangents.iter().collect::<Vec<_>>()).map_err(to_message)?;
        Ok(products)
    }

    /// Adds the gradients of one order with their expected values.
    fn push_gradients(&self, kind: &str, level: Level, gradients: &[Tensor], all: &mut Vec<Computed<'a>>) {
        if level == Level::Absent {
            return;
        }
        for (path, gradient) in self.sample.tracked.iter().zip(gradients) {
            let expected = self.expected(kind, path).filter(|_| level == Level::Known);
            let (what, value) = (format!("{kind} of {path}"), gradient.clone());
            all.push(Computed { what, value, expected, tolerance: self.run.gradients, least: 1e-3 });
        }
    }

    /// Adds the products J·v with their expected values.
    fn push_products(&self, kind: &str, products: &[Tensor], all: &mut Vec<Computed<'a>>) {
        for (&j, product) in self.sample.cotangents.iter().zip(products) {
            let expected = self.expected("jvp", j);
            if expected.is_some() {
                let (what, value) = (format!("{kind} of output {j}"), product.clone());
                all.push(Computed { what, value, expected, tolerance: self.run.gradients, least: 1e-3 });
            }
        }
    }

    /// Compares shapes, then every element: equal, or both NaN, or close relative to the expected element and to the
    /// norm of the tensor.
    fn compare(&self, computed: &Computed, value: &Tensor) -> Result<(), String> {
        let Computed { what, expected, tolerance, least, .. } = computed;
        let wanted = match expected {
            Some(expected) if expected.shape() != value.shape() => {
                return Err(format!("{what} has shape {}, expected {}", value.shape(), expected.shape()));
            }
            Some(expected) => expected.to_vec::<f64>(),
            None => vec![0.0; value.size()],
        };
        let size = wanted.iter().filter(|e| e.is_finite()).fold(0.0, |m: f64, e| m.max(e.abs()));
        // Gradients, and all results in the smaller precision, may be sums of larger terms. If the terms cancel, the
        // remainder is a rounding error.
        let floor = match self.run.float {
            DType::F64 => size.clamp(*least, 1.0),
            _ if *least > 0.0 => size.max(1.0),
            _ => size.max(1e-2),
        };
        for (i, (&value, &expected)) in value.to_vec::<f64>().iter().zip(&wanted).enumerate() {
            let close = (value - expected).abs() <= tolerance * (expected.abs() + floor);
            if !(value == expected || (value.is_nan() && expected.is_nan()) || (close && expected.is_finite())) {
                return Err(format!("{what}: element {i} is {value}, expected {expected}"));
            }
        }
        Ok(())
    }
}

/// Computes Σⱼ ∂⟨seedⱼ, outputⱼ⟩ with respect to every input, recorded. Outputs without history or seed contribute
/// nothing.
fn gradients(outputs: &[&Tensor], seeds: Vec<Option<Tensor>>, inputs: &[&Tensor]) -> Result<Vec<Tensor>, String> {
    let (seeded, grad_outputs): (Vec<&Tensor>, Vec<Option<Tensor>>) =
        outputs.iter().zip(seeds).filter(|(_, seed)| seed.is_some()).unzip();
    let options = GradOptions { grad_outputs, create_graph: true, retain_graph: true, allow_unused: true };
    grad(&seeded, inputs, options).map_err(to_message)
}

/// Returns the same elements in column-major order, with other elements between them.
fn strided(x: &Tensor) -> pellucid::Result<Tensor> {
    let columns = ops::contiguous(&ops::t(x)?)?;
    let other = if x.dtype().is_float() { ops::full_like(&columns, f64::NAN)? } else { ops::ones_like(&columns)? };
    let between = ops::select(&ops::stack(&[&columns, &other], -1)?, -1, 0)?;
    Ok(ops::t(&between)?.detach())
}
