//! `capture`: a step recorded once and launched many times.
//!
//! The plan is in its plainest form: the kernels of the step in their order, every value in a buffer
//! of its own, all of them owned by the captured step, so that a launch allocates nothing.

use super::list::{Deferred, Touched};
use super::{Held, MODE, Mode, Recorded, Recording, list, ready, run};
use crate::array::Array;
use crate::autograd::{Slot, is_grad_enabled};
use crate::device::Device;
use crate::panic;
use crate::tensor::Tensor;
use pellucid_ir::backend::{POISONED, Prepared, Storage};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::plan::{Launch, Operand, Plan};
use pellucid_ir::{Element, Error, Result, Shape};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// What a step returns: no tensor, one, or several.
pub trait IntoOutputs {
    /// The tensors, in order.
    fn into_outputs(self) -> Vec<Tensor>;
}

impl IntoOutputs for () {
    fn into_outputs(self) -> Vec<Tensor> {
        Vec::new()
    }
}

impl IntoOutputs for Tensor {
    fn into_outputs(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl IntoOutputs for (Tensor, Tensor) {
    fn into_outputs(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl IntoOutputs for (Tensor, Tensor, Tensor) {
    fn into_outputs(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
    }
}

impl<const N: usize> IntoOutputs for [Tensor; N] {
    fn into_outputs(self) -> Vec<Tensor> {
        self.into()
    }
}

impl IntoOutputs for Vec<Tensor> {
    fn into_outputs(self) -> Vec<Tensor> {
        self
    }
}

type Closure<'f> = Box<dyn FnMut(&[Tensor]) -> Vec<Tensor> + 'f>;
/// The gradient slots that a step touches, as it found them.
pub(super) type Slots = Vec<(Arc<Slot>, Option<Tensor>)>;

/// Steps of one `Captured` for different input shapes; the oldest goes first.
const CACHE: usize = 8;

/// A recorded step: [`launch`](Captured::launch) executes it.
///
/// It owns its closure, and a small cache of recordings keyed by the inputs' shapes and dtypes and by
/// grad mode; nothing is global.
pub struct Captured<'f> {
    step: Closure<'f>,
    recordings: Vec<Step>,
    launches: u64,
}

/// Records `step` for inputs of these shapes and dtypes. No kernel runs: parameters, optimizer state
/// and generators are untouched until the first launch.
///
/// Everything that changes between launches must be a tensor: inputs, and what the step writes in
/// place. Numbers of the host are part of the recording ([`Captured::verify`] finds them).
///
/// ```
/// use pellucid_tensor::{capture, DType, Tensor};
/// let total = Tensor::zeros([2], DType::F32);
/// let x = Tensor::from([1.0f32, 2.0]);
/// let mut step = capture(
///     |inputs| {
///         let sum = &total + &inputs[0];
///         total.copy_(&sum);
///         sum * 10.0
///     },
///     &[&x],
/// )?;
/// assert_eq!(total.to_vec::<f32>(), [0.0, 0.0]);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [10.0, 20.0]);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [20.0, 40.0]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::ReadInCapture`] if the step reads a value, branches on one, or has a shape depend on one;
/// [`Error::NotAFixedPoint`] if it does not leave gradients as it found them; any error of an
/// operation in it. Any other panic of the step goes on.
pub fn capture<'f, O: IntoOutputs>(
    mut step: impl FnMut(&[Tensor]) -> O + 'f,
    inputs: &[&Tensor],
) -> Result<Captured<'f>> {
    let step = Box::new(move |inputs: &[Tensor]| step(inputs).into_outputs());
    let mut captured = Captured { step, recordings: Vec::new(), launches: 0 };
    captured.record(inputs)?;
    Ok(captured)
}

impl Captured<'_> {
    /// Executes the step on these inputs, whose values are copied into the step's own buffers.
    ///
    /// # Errors
    /// [`Error::InputMismatch`] for another number of inputs. Other shapes or dtypes, and gradients
    /// that were bound to other storage since, record the step again, with its errors.
    /// [`Error::CaptureChanged`] in debug builds, which [`verify`](Captured::verify) before launches 2 and 3.
    pub fn launch(&mut self, inputs: &[&Tensor]) -> Result<Outputs<'_>> {
        if MODE.get() == Mode::Capture {
            return Err(Error::invalid("launch", "a captured step cannot be launched inside a captured step"));
        }
        let at = self.recording_for(inputs)?;
        if cfg!(debug_assertions) && (1..3).contains(&self.launches) {
            self.compare(at)?;
        }
        self.launches += 1;
        let step = &self.recordings[at];
        step.launch(inputs)?;
        Ok(Outputs { arrays: &step.outputs })
    }

    /// Records the step again, without running a kernel, and compares.
    ///
    /// # Errors
    /// [`Error::CaptureChanged`] names the first difference: a number of the host that was baked in
    /// and has changed since.
    pub fn verify(&mut self) -> Result<()> {
        self.compare(self.recordings.len() - 1)
    }

    /// The latest recording's plan.
    pub fn plan(&self) -> &Plan {
        &self.recordings.last().expect("a captured step has a recording").plan
    }

    fn compare(&mut self, at: usize) -> Result<()> {
        let again = Step::record(&mut self.step, &self.recordings[at].key)?;
        match self.recordings[at].difference(&again) {
            Some(difference) => Err(Error::CaptureChanged { difference }),
            None => Ok(()),
        }
    }

    /// The recording for these inputs, made if there is none that still holds.
    fn recording_for(&mut self, inputs: &[&Tensor]) -> Result<usize> {
        let expected = self.recordings.last().map_or(inputs.len(), |s| s.key.metas.len());
        if inputs.len() != expected {
            let index = inputs.len().min(expected);
            let (got, expected) = (format!("one of {} inputs", inputs.len()), format!("{expected} inputs"));
            return Err(Error::InputMismatch { index, got, expected });
        }
        if let Some(at) = self.recordings.iter().position(|s| s.key.fits(inputs)) {
            if self.recordings[at].still_bound() {
                return Ok(at);
            }
            self.recordings.remove(at);
        }
        self.record(inputs)
    }

    fn record(&mut self, inputs: &[&Tensor]) -> Result<usize> {
        if MODE.get() == Mode::Capture {
            return Err(Error::invalid("capture", "a step cannot be captured inside a captured step"));
        }
        let step = Step::record(&mut self.step, &Key::of(inputs))?;
        if self.recordings.len() == CACHE {
            self.recordings.remove(0);
        }
        self.recordings.push(step);
        Ok(self.recordings.len() - 1)
    }
}

/// For what a step was recorded.
#[derive(Clone)]
struct Key {
    metas: Vec<(Meta, Device)>,
    grad: bool,
}

impl Key {
    fn of(inputs: &[&Tensor]) -> Key {
        let meta = |t: &&Tensor| (Meta { shape: t.shape().clone(), dtype: t.dtype() }, t.device());
        Key { metas: inputs.iter().map(meta).collect(), grad: is_grad_enabled() }
    }

    /// True if [`Key::of`] the inputs would be this key; a launch must not allocate one.
    fn fits(&self, inputs: &[&Tensor]) -> bool {
        let same = |(meta, device): &(Meta, Device), t: &Tensor| {
            meta.shape == *t.shape() && meta.dtype == t.dtype() && *device == t.device()
        };
        self.grad == is_grad_enabled()
            && self.metas.len() == inputs.len()
            && self.metas.iter().zip(inputs).all(|(meta, t)| same(meta, t))
    }
}

/// What a slot of the plan stands for.
#[derive(Clone)]
enum Origin {
    Input(usize),
    /// Made by the step, and owned by it.
    Own,
    /// A tensor that exists outside of it.
    Bound,
    /// Host values that the step itself turned into a tensor.
    Constant(Vec<u8>),
}

/// One recording.
struct Step {
    key: Key,
    plan: Plan,
    prepared: Box<dyn Prepared>,
    storages: Vec<Arc<Storage>>,
    origins: Vec<Origin>,
    /// The outside storages that the step only reads.
    read: Vec<Arc<Storage>>,
    /// The outside storages that it writes.
    written: Vec<Arc<Storage>>,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    slots: Slots,
}

impl Step {
    fn record(step: &mut dyn FnMut(&[Tensor]) -> Vec<Tensor>, key: &Key) -> Result<Step> {
        let empty = |(meta, device): &(Meta, Device)| Array::new(*device, meta.dtype, meta.shape.clone());
        let inputs: Vec<Array> = key.metas.iter().map(empty).collect::<Result<_>>()?;
        let handles: Vec<Tensor> = inputs.iter().map(|a| Tensor::from(a.clone())).collect();
        let (outputs, recording, changed) = recorded(|| step(&handles))?;
        inputs.iter().for_each(|a| a.storage().set_pending(POISONED));
        let slots = changed?;
        let outputs = outputs.iter().map(|t| t.array().clone()).collect();
        Step::lay_out(key.clone(), recording, inputs, outputs, slots)
    }

    /// Numbers the buffers in the order in which the kernels meet them.
    fn lay_out(key: Key, recording: Recording, inputs: Vec<Array>, outputs: Vec<Array>, slots: Slots) -> Result<Step> {
        let mut step = Numbering {
            at: HashMap::new(),
            storages: Vec::new(),
            origins: Vec::new(),
            inputs: &inputs,
            constants: &recording.constants,
        };
        let mut plan = Plan::default();
        let mut written: Vec<bool> = Vec::new();
        for Recorded { kernel, inputs, outputs } in &recording.kernels {
            let operands = |list: &[Array], step: &mut Numbering<'_>| -> Result<Vec<Operand>> {
                list.iter()
                    .map(|a| Ok(Operand { slot: step.slot(a)?, layout: a.layout().clone(), dtype: a.dtype() }))
                    .collect()
            };
            let launch = Launch {
                kernel: kernel.clone(),
                inputs: operands(inputs, &mut step)?,
                outputs: operands(outputs, &mut step)?,
            };
            written.resize(step.storages.len(), false);
            launch.outputs.iter().for_each(|o| written[o.slot] = true);
            plan.launches.push(launch);
        }
        let Numbering { storages, origins, .. } = step;
        plan.slots = storages.iter().map(|s| s.buffer().bytes()).collect();
        let outside = |i: &usize| matches!(origins[*i], Origin::Bound | Origin::Constant(_));
        let (write, read): (Vec<usize>, Vec<usize>) = (0..storages.len()).filter(outside).partition(|i| written[*i]);
        let [read, written] = [read, write].map(|list| list.into_iter().map(|i| storages[i].clone()).collect());
        let prepared = Device::cpu().backend().prepare(&plan)?;
        Ok(Step { key, plan, prepared, storages, origins, read, written, inputs, outputs, slots })
    }

    /// True while the gradients that the step reads and writes lie where they were.
    fn still_bound(&self) -> bool {
        self.slots.iter().all(|(slot, entry)| match (slot.peek(), entry) {
            (Some(now), Some(then)) => now.array().shares_storage(then.array()),
            (None, None) => true,
            _ => false,
        })
    }

    fn launch(&self, inputs: &[&Tensor]) -> Result<()> {
        if MODE.get() == Mode::Lazy {
            list::flush_current()?;
        }
        for storage in inputs.iter().map(|t| t.array().storage()).chain(&self.read).chain(&self.written) {
            ready("launch", storage)?;
        }
        for (input, own) in inputs.iter().zip(&self.inputs) {
            run(&Kernel::Copy, &[input.array()], &[own])?;
        }
        let _held = Held::new(&self.read, &self.written);
        self.prepared.launch(&self.storages)?;
        self.written.iter().for_each(|storage| storage.bump());
        Ok(())
    }

    fn difference(&self, other: &Step) -> Option<String> {
        if let Some(difference) = self.plan.difference(&other.plan) {
            return Some(difference);
        }
        let same = |i: usize| match (&self.origins[i], &other.origins[i]) {
            (Origin::Input(a), Origin::Input(b)) => a == b,
            (Origin::Own, Origin::Own) => true,
            (Origin::Bound, Origin::Bound) => Arc::ptr_eq(&self.storages[i], &other.storages[i]),
            (Origin::Constant(a), Origin::Constant(b)) => a == b,
            _ => false,
        };
        let slot = (0..self.origins.len()).find(|&i| !same(i))?;
        let user = self.plan.launches.iter().position(|l| l.inputs.iter().chain(&l.outputs).any(|o| o.slot == slot));
        let kernel = user.map_or("an output", |k| self.plan.launches[k].kernel.name());
        Some(match &self.origins[slot] {
            Origin::Constant(_) => format!("`{kernel}` reads a tensor made of other host values"),
            _ => format!("`{kernel}` works on another tensor"),
        })
    }
}

/// Which slot a storage has.
struct Numbering<'a> {
    at: HashMap<*const (), usize>,
    storages: Vec<Arc<Storage>>,
    origins: Vec<Origin>,
    inputs: &'a [Array],
    constants: &'a [Array],
}

impl Numbering<'_> {
    fn slot(&mut self, array: &Array) -> Result<usize> {
        let address = Arc::as_ptr(array.storage()).cast::<()>();
        if let Some(&slot) = self.at.get(&address) {
            return Ok(slot);
        }
        let shares = |a: &Array| a.shares_storage(array);
        let origin = if let Some(i) = self.inputs.iter().position(shares) {
            Origin::Input(i)
        } else if let Some(constant) = self.constants.iter().find(|c| shares(c)) {
            Origin::Constant(constant.to_bytes("capture")?)
        } else if array.storage().pending() == POISONED {
            Origin::Own
        } else {
            Origin::Bound
        };
        self.storages.push(array.storage().clone());
        self.origins.push(origin);
        self.at.insert(address, self.storages.len() - 1);
        Ok(self.storages.len() - 1)
    }
}

/// What `f` returns and records, without a kernel run: gradient slots are as they were before, or the third
/// value says why the step would not leave them so; what `f` made has no values outside of launches.
///
/// A panic of `f` with a typed error is that error; any other goes on.
pub(super) fn recorded<R>(f: impl FnOnce() -> R) -> Result<(R, Recording, Result<Slots>)> {
    let deferred = Deferred::enter(Mode::Capture);
    let result = catch_unwind(AssertUnwindSafe(f));
    let mut recording = deferred.take();
    let own = recording.id;
    let changed = restore(&mut recording);
    drop(deferred);
    for array in recording.kernels.iter().flat_map(|k| &k.outputs) {
        if array.storage().pending() == own {
            array.storage().set_pending(POISONED);
        }
    }
    match result {
        Ok(value) => Ok((value, recording, changed)),
        Err(payload) => match payload.downcast::<Error>() {
            Ok(error) => Err(*error),
            Err(other) => resume_unwind(other),
        },
    }
}

/// Puts every gradient slot back as the step found it, and makes the step leave it so: a gradient that
/// was there receives the new one.
fn restore(recording: &mut Recording) -> Result<Slots> {
    let mut slots = Vec::new();
    let mut refused = None;
    for Touched { slot, entry, cleared } in std::mem::take(&mut recording.touched) {
        let exit = slot.peek();
        slot.put(entry.clone());
        let change = match (&entry, &exit) {
            (None, None) => None,
            (None, Some(_)) if cleared => None,
            (None, Some(_)) => Some((
                "empty before, set after",
                "call zero_grad() inside the step, before backward; or give the tensor a gradient to accumulate into first",
            )),
            (Some(_), None) => {
                Some(("set before, empty after", "call zero_grad() before the step is captured, or not at its end"))
            }
            (Some(before), Some(after)) => {
                if !before.array().shares_storage(after.array()) {
                    let (inputs, outputs) = (vec![after.array().clone()], vec![before.array().clone()]);
                    recording.kernels.push(Recorded { kernel: Kernel::Copy, inputs, outputs });
                }
                None
            }
        };
        if let (Some((change, mend)), None) = (change, &refused) {
            let slot = format!("the gradient of a tensor of shape {}", slot.meta.shape);
            refused = Some(Error::NotAFixedPoint { slot, change: change.into(), mend: mend.into() });
        }
        slots.push((slot, entry));
    }
    refused.map_or(Ok(slots), Err)
}

/// What a launch computed: borrowed from the step, and overwritten by its next launch.
pub struct Outputs<'a> {
    arrays: &'a [Array],
}

impl Outputs<'_> {
    /// The number of outputs.
    pub fn len(&self) -> usize {
        self.arrays.len()
    }

    /// True for a step that returns nothing.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// The shape of output `index`.
    pub fn shape(&self, index: usize) -> &Shape {
        self.arrays[index].shape()
    }

    /// A copy of output `index`, which later launches leave alone.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn to_tensor(&self, index: usize) -> Result<Tensor> {
        self.copy_of(index).map(Tensor::from)
    }

    /// The elements of output `index` in row-major order, converted to `T`.
    ///
    /// # Panics
    /// If there is no such output, or no memory for its copy.
    #[track_caller]
    pub fn to_vec<T: Element>(&self, index: usize) -> Vec<T> {
        panic::unwrap(self.copy_of(index).and_then(|a| a.to_vec("to_vec")))
    }

    /// The one element of output `index`, converted to `T`.
    ///
    /// # Panics
    /// If there is no such output, or it does not have exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self, index: usize) -> T {
        let one = self.copy_of(index).and_then(|a| Tensor::from(a).try_item());
        panic::unwrap(one)
    }

    fn copy_of(&self, index: usize) -> Result<Array> {
        let array = &self.arrays[index];
        let copy = Array::new(array.device(), array.dtype(), array.shape().clone())?;
        run(&Kernel::Copy, &[array], &[&copy])?;
        Ok(copy)
    }
}
