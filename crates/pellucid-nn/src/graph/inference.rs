//! A model for inference: forward passes that are recorded once for each of a few shapes.

use super::batch::{Batch, BatchTensors, Model, placed_on};
use super::filled_shape::{FilledShape, INFERENCE, ascending, filled};
use super::state::ModelState;
use crate::call::{first_device, trace_calls};
use crate::module::ModuleParts;
use crate::parameter::EvaluationGuard;
use crate::visit::Visitor;
use pellucid_tensor::{
    CacheStats, CaptureOptions, Captured, DType, Device, Error, Outputs, Result, Shape, Tensor, capture_with, no_grad,
    ops, placeholder, unwrap,
};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// A model whose forward pass is recorded once for each of a few batch sizes, and replayed.
///
/// All layers are in evaluation mode, as after [`Module::eval`](crate::Module::eval), whatever the model's own mode is,
/// and no gradients are computed. A batch of n rows runs on the smallest compiled size of at least n rows, and a batch
/// that is larger than all compiled sizes is split, which may change last bits. Parameters and buffers are shared with
/// the model: the next launch sees a write in place, such as an optimizer's update. After a parameter was replaced, the
/// model was converted to another dtype or moved to another device, or a [hook](crate::hook) was added or removed, the
/// forward pass is recorded again.
///
/// The model may be owned or borrowed: `&M` and `Arc<M>` are models too. [`fork`](InferenceModel::fork) returns another
/// inference model of the same weights, for another thread.
///
/// ```
/// use pellucid::nn::graph::InferenceModel;
/// use pellucid::nn::{Dropout, Layer, Linear, Module, Relu, sequential};
/// use pellucid::{DType, Tensor, no_grad};
///
/// let model = sequential![Linear::new(4, 16), Relu, Dropout::new(0.5), Linear::new(16, 3)];
/// let mut inference = InferenceModel::new(&model, &[1, 8, 32])?;
/// inference.compile_for(&Tensor::zeros([1, 4], DType::F32))?; // or else at the first batch of each size
///
/// let x = Tensor::randn([5, 4], DType::F32);
/// let y = inference.run(&x)?; // runs on 8 rows and returns 5
/// assert_eq!(y.shape().dims(), [5, 3]);
/// model.eval();
/// let _off = no_grad();
/// assert!((y - model.forward(&x)).abs().max(..).item::<f32>() < 1e-6);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Padding
/// The rows that fill a batch up to a compiled size repeat its last row, and their results are not returned. The result
/// has the bits of the model's eager forward pass for the filled batch. Filling does not change the results of the
/// other rows if the model computes each row of axis 0 by itself. In evaluation mode, all layers of this crate do, with
/// these exceptions: a batch norm without running statistics, a recurrent layer whose axis 0 is time, and your own
/// layers that reduce, sort or shift along axis 0. Give such a model only batches of a compiled size.
///
/// [`with_lengths`](InferenceModel::with_lengths) adds compiled lengths of axis 1, for sequences.
///
/// # Memory
/// Each recording has buffers of its own for intermediate results; their memory grows with the number of compiled
/// shapes. On the CPU, the weights of matrix products are kept a second time, in the order in which products read them
/// ([`CaptureOptions::pack_weights`]). All recordings share these copies. A batch after a write to a weight makes a new
/// one.
pub struct InferenceModel<'f, M, X = Tensor> {
    model: Arc<M>,
    passes: ForwardPasses<'f>,
    types: PhantomData<fn(X)>,
}

impl<'f, M: Model<X> + 'f, X: Batch + 'f> InferenceModel<'f, M, X> {
    /// Creates a model for these batch sizes, in any order. Nothing is recorded yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no size, or one is 0.
    pub fn new(model: M, batch_sizes: &[usize]) -> Result<Self> {
        let batch_sizes = ascending("batch size", batch_sizes)?;
        Ok(InferenceModel { model: Arc::new(model), passes: ForwardPasses::new(batch_sizes), types: PhantomData })
    }

    /// Sets compiled lengths of axis 1, in any order. Every input of at least two axes is a padded sequence `[N, L,
    /// ..]` then, all of one length L. It is padded with zeros at its end to the smallest compiled length of at least
    /// L. Where the model's output has the length of the sequence on axis 1, only the first L elements are returned.
    ///
    /// The padding changes no other result if the model hides it: attention by a mask that is one of the inputs (0 or
    /// false where the sequence is padded), recurrent layers and causal attention by their order.
    ///
    /// ```
    /// use pellucid::nn::graph::{InferenceModel, Model};
    /// use pellucid::nn::{AttentionMasks, Embedding, Layer, Module, TransformerEncoder, TransformerOptions};
    /// use pellucid::{DType, Result, Tensor, ops};
    ///
    /// #[derive(Module)]
    /// struct Encoder(Embedding, TransformerEncoder);
    ///
    /// impl Model<(Tensor, Tensor)> for Encoder {
    ///     fn run(&self, (ids, mask): &(Tensor, Tensor)) -> Result<Tensor> {
    ///         self.1.try_forward_masked(&self.0.try_forward(ids)?, AttentionMasks::padding(mask))
    ///     }
    /// }
    ///
    /// let layers = TransformerEncoder::new(1, 8, 2, 16, TransformerOptions::default());
    /// let encoder = Encoder(Embedding::new(50, 8), layers);
    /// let mut inference = InferenceModel::new(encoder, &[1, 4])?.with_lengths(&[8, 16])?;
    /// let (ids, mask) = (Tensor::randint(0, 50, [3, 10]), Tensor::ones([3, 10], DType::Bool));
    /// assert_eq!(inference.run(&(ids, mask))?.shape().dims(), [3, 10, 8]); // runs on [4, 16]
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no length, or one is 0.
    pub fn with_lengths(mut self, lengths: &[usize]) -> Result<Self> {
        self.passes = ForwardPasses { lengths: ascending("length", lengths)?, ..ForwardPasses::new(self.passes.sizes) };
        Ok(self)
    }

    /// Returns another inference model of the same model, with the same compiled sizes and without recordings.
    ///
    /// An inference model is `Send`, and runs one batch at a time. To serve requests on several threads, give each
    /// thread a fork. All forks share the parameters, the buffers and the packed weights of the model; each has its own
    /// recordings, with their buffers for intermediate results. The model may be trained at the same time; a captured
    /// training step updates all parameters between two batches.
    ///
    /// ```
    /// use pellucid::nn::graph::InferenceModel;
    /// use pellucid::nn::{Linear, Relu, sequential};
    /// use pellucid::{DType, Tensor};
    ///
    /// let mut inference = InferenceModel::new(sequential![Linear::new(4, 16), Relu, Linear::new(16, 3)], &[1, 8])?;
    /// let x = Tensor::randn([5, 4], DType::F32);
    /// let expected = inference.run(&x)?.to_vec::<f32>();
    /// let threads = [(); 2].map(|()| {
    ///     let (mut inference, x) = (inference.fork(), x.clone());
    ///     std::thread::spawn(move || inference.run(&x).map(|y| y.to_vec::<f32>()))
    /// });
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap()?, expected);
    /// }
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// A service that starts no threads of its own holds a pool: `Mutex<Vec<InferenceModel<..>>>`, from which a request
    /// pops a fork, and to which it returns the fork after the batch.
    #[must_use]
    pub fn fork(&self) -> Self {
        let ForwardPasses { sizes, lengths, .. } = &self.passes;
        let passes = ForwardPasses { lengths: lengths.clone(), ..ForwardPasses::new(sizes.clone()) };
        InferenceModel { model: self.model.clone(), passes, types: PhantomData }
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Returns the number of kept recordings, and the launches that found or made theirs. A shape has one recording for
    /// each set of hooks with which it ran.
    pub fn cache(&self) -> CacheStats {
        self.passes.stats()
    }

    /// Records the forward pass for all compiled sizes and lengths. `like` determines the names, dtypes and other axes
    /// of the inputs; its values are not used. Without this call, a shape is recorded when a batch first needs it.
    ///
    /// # Errors
    /// The errors of [`run`](InferenceModel::run).
    pub fn compile_for(&mut self, like: &X) -> Result<()> {
        let model = &self.model;
        self.passes.compile(like, &|| ModelOfInputs::bind(model.clone(), like))
    }

    /// Returns the model's output for a batch of any number of rows: `[N, ..]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for inputs that differ from the first batch in an axis
    /// other than the batch and the length, for inputs of different numbers of rows, for a sequence that is longer than
    /// all compiled lengths, and for a model whose output has no batch axis; [`Error::InvalidArgument`] for a batch
    /// without rows; errors of [`capture`](pellucid_tensor::capture()), and of the model's operations.
    pub fn run(&mut self, x: &X) -> Result<Tensor> {
        let model = &self.model;
        self.passes.run(x, &|| ModelOfInputs::bind(model.clone(), x))
    }

    /// Runs a batch of exactly a compiled shape, and returns the output as the recording stores it. The next launch
    /// overwrites it. After the first launches, this allocates nothing on the CPU.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a batch of another shape, which [`run`](InferenceModel::run) pads;
    /// [`Error::DeviceUnavailable`] on a device without capture; the errors of [`run`](InferenceModel::run).
    pub fn launch(&mut self, x: &X) -> Result<Outputs<'_>> {
        let model = &self.model;
        self.passes.launch(x, &|| ModelOfInputs::bind(model.clone(), x))
    }
}

/// A model that computes its output from a list of inputs, without the type of its batch.
trait ForwardOfInputs: ModuleParts + Send + Sync {
    fn output(&self, inputs: &[Tensor]) -> Result<Tensor>;
}

/// A pointer to a model, with the structure of its batch.
struct ModelOfInputs<P, X> {
    model: P,
    /// A batch of empty tensors.
    structure: X,
}

impl<'f, X: Batch + 'f, P: Deref<Target: Model<X>> + Send + Sync + 'f> ModelOfInputs<P, X> {
    fn bind(model: P, like: &X) -> Result<Arc<dyn ForwardOfInputs + 'f>> {
        let structure = like.map(&mut |_, tensor| ops::zeros([0], tensor.dtype()))?;
        Ok(Arc::new(ModelOfInputs { model, structure }))
    }
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> ModuleParts for ModelOfInputs<P, X> {
    fn visit_parts(&self, visitor: &mut Visitor<'_>) {
        crate::module::Module::visit(&*self.model, visitor);
    }
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> ForwardOfInputs for ModelOfInputs<P, X> {
    fn output(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let mut inputs = inputs.iter();
        let missing = || Error::invalid(INFERENCE, "the batch has more inputs than the recorded one");
        self.model.run(&self.structure.map(&mut |_, _| inputs.next().cloned().ok_or_else(missing))?)
    }
}

/// Returns the model with the structure of a batch.
type BindForward<'a, 'f> = &'a dyn Fn() -> Result<Arc<dyn ForwardOfInputs + 'f>>;

/// The recorded forward passes of a model. It has no type parameters, so it is compiled once, in this crate.
struct ForwardPasses<'f> {
    /// The compiled batch sizes, ascending.
    sizes: Vec<usize>,
    /// The compiled lengths of axis 1, ascending; empty if axis 1 is an axis like all others.
    lengths: Vec<usize>,
    /// The inputs of the first batch that was not refused.
    expected: Vec<ExpectedInput>,
    /// The recordings for the model's present tensors.
    kept: Option<KeptPasses<'f>>,
    /// The inputs of the present launch.
    inputs: Vec<Tensor>,
    stats: CacheStats,
}

/// An input: its name, its shape (axis 0 and the length may differ), and its dtype.
struct ExpectedInput {
    name: String,
    shape: Shape,
    dtype: DType,
}

/// The recordings for one set of parameters and buffers.
struct KeptPasses<'f> {
    forward: Arc<dyn ForwardOfInputs + 'f>,
    state: ModelState<'f>,
    device: Device,
    recorded: Vec<RecordedPass<'f>>,
}

/// The recording for a batch size and a length.
struct RecordedPass<'f> {
    fill: FilledShape,
    /// Whether axis 1 of the output is the sequence.
    has_output_length: bool,
    /// The recording, or the error of a device without capture, where the model runs eagerly.
    step: std::result::Result<Captured<'f>, Error>,
}

impl<'f> ForwardPasses<'f> {
    fn new(sizes: Vec<usize>) -> Self {
        let stats = CacheStats::default();
        ForwardPasses { sizes, lengths: Vec::new(), expected: Vec::new(), kept: None, inputs: Vec::new(), stats }
    }

    fn compile(&mut self, like: &dyn BatchTensors, bind: BindForward<'_, 'f>) -> Result<()> {
        self.forget_converted();
        let FilledShape { length, .. } = self.check(like)?;
        self.keep_current(bind)?;
        self.set_inputs(like)?;
        let lengths = self.lengths.iter().map(|&length| Some(length)).collect();
        let lengths: Vec<Option<usize>> = if length.is_some() { lengths } else { vec![None] };
        for &rows in &self.sizes.clone() {
            for &length in &lengths {
                self.recorded(FilledShape { rows, length })?;
            }
        }
        self.accept(like);
        Ok(())
    }

    fn run(&mut self, x: &dyn BatchTensors, bind: BindForward<'_, 'f>) -> Result<Tensor> {
        self.forget_converted();
        let FilledShape { rows, length } = self.check(x)?;
        self.keep_current(bind)?;
        self.set_inputs(x)?;
        let _off = no_grad();
        let largest = *self.sizes.last().expect("the list of sizes must not be empty");
        let (all, mut parts) = (std::mem::take(&mut self.inputs), Vec::new());
        for start in (0..rows).step_by(largest) {
            let rows = largest.min(rows - start);
            let part = |tensor: &Tensor| ops::narrow(tensor, 0, start, rows);
            self.inputs =
                if rows == all[0].shape()[0] { all.clone() } else { all.iter().map(part).collect::<Result<_>>()? };
            parts.push(self.run_part(FilledShape { rows, length })?);
        }
        self.inputs.clear();
        self.accept(x);
        match &parts[..] {
            [only] => Ok(only.clone()),
            parts => ops::concatenate(parts, 0),
        }
    }

    /// Runs the inputs, at most the largest compiled size, and returns the output without its padding.
    fn run_part(&mut self, given: FilledShape) -> Result<Tensor> {
        let fill = self.fill(given);
        let at = self.counted(fill).map_err(|error| self.in_filled(given, error))?;
        for input in &mut self.inputs {
            *input = filled(input, fill)?;
        }
        let kept = self.kept.as_mut().expect("keep_current() must have made the recordings");
        let RecordedPass { step, has_output_length, .. } = &mut kept.recorded[at];
        let mut output = match step {
            Ok(captured) => launch_captured(captured, &self.inputs)?.try_to_tensor(0)?,
            Err(_) => forward_in_evaluation(&*kept.forward, &self.inputs)?,
        };
        if given.rows < fill.rows {
            output = ops::narrow(&output, 0, 0, given.rows)?;
        }
        match given.length {
            Some(length) if *has_output_length && given.length < fill.length => ops::narrow(&output, 1, 0, length),
            _ => Ok(output),
        }
    }

    /// Returns the error of a recording for the present inputs. If they are filled, an error of the model names the
    /// filled shapes, so the inputs' own shapes are added.
    #[cold]
    fn in_filled(&self, given: FilledShape, error: Error) -> Error {
        let fill = self.fill(given);
        if fill == given || error.operation() == Some(INFERENCE) {
            return error;
        }
        let list = |of: &dyn Fn(&Tensor) -> Shape| {
            self.inputs.iter().map(|x| of(x).to_string()).collect::<Vec<_>>().join(", ")
        };
        let (own, filled) = (list(&|x| x.shape().clone()), list(&|x| fill.of(x.shape())));
        Error::Layer { layer: format!("inputs of shape {own}, filled up to {filled}"), source: Box::new(error) }
    }

    fn launch(&mut self, x: &dyn BatchTensors, bind: BindForward<'_, 'f>) -> Result<Outputs<'_>> {
        self.forget_converted();
        let given = self.check(x)?;
        if given.rows > self.sizes[self.sizes.len() - 1] || self.fill(given) != given {
            let (mut shapes, lengths) = (Vec::new(), &self.lengths);
            x.each_tensor(&mut |_, x| shapes.push(x.shape().clone()));
            let sizes = &self.sizes;
            let length = if lengths.is_empty() { String::new() } else { format!(" and a length of {lengths:?}") };
            let help = format!("launch() needs a batch size of {sizes:?}{length}; run() pads others");
            return Err(Error::shapes(INFERENCE, &shapes, help));
        }
        self.keep_current(bind)?;
        self.set_inputs(x)?;
        let at = self.counted(given)?;
        self.accept(x);
        let kept = self.kept.as_mut().expect("keep_current() must have made the recordings");
        match &mut kept.recorded[at].step {
            Ok(captured) => launch_captured(captured, &self.inputs),
            Err(error) => Err(error.clone()),
        }
    }

    /// Returns the number of rows of a batch, and its length. Returns an error if the batch does not fit.
    fn check(&self, x: &dyn BatchTensors) -> Result<FilledShape> {
        let (mut given, mut index, mut refused) = (None, 0, None);
        x.each_tensor(&mut |name, tensor| {
            if refused.is_none() {
                refused = self.check_input(index, name, tensor, &mut given).err();
            }
            index += 1;
        });
        match (refused, given) {
            (Some(error), _) => Err(error),
            (None, _) if !self.expected.is_empty() && index != self.expected.len() => {
                let expected = self.expected.len();
                Err(Error::invalid(INFERENCE, format!("the batch must have {expected} inputs, got {index}")))
            }
            (None, None) => Err(Error::invalid(INFERENCE, "the batch has no input")),
            (None, Some(given)) => Ok(given),
        }
    }

    fn check_input(&self, index: usize, name: &str, x: &Tensor, given: &mut Option<FilledShape>) -> Result<()> {
        let refuse = |help: String| Err(Error::shapes(INFERENCE, [x.shape()], help));
        let Some(&rows) = x.shape().first() else {
            return refuse(format!("the input `{name}` must have a batch axis"));
        };
        if rows == 0 {
            return Err(Error::invalid(INFERENCE, format!("the input `{name}` of shape {} has no rows", x.shape())));
        }
        let length = (!self.lengths.is_empty() && x.rank() > 1).then(|| x.shape()[1]);
        let given = given.get_or_insert(FilledShape { rows, length });
        given.length = given.length.or(length);
        if rows != given.rows || length.is_some() && length != given.length {
            return refuse(format!(
                "all inputs must have the same number of rows and the same length; `{name}` differs from the first input"
            ));
        }
        if let (Some(length), Some(&longest)) = (length, self.lengths.last())
            && !(1..=longest).contains(&length)
        {
            return refuse(format!("the length of `{name}` must be 1 to {longest}, the largest compiled length"));
        }
        let Some(expected) = self.expected.get(index) else { return Ok(()) };
        if name != expected.name {
            let reason = format!("expected the input `{}`, got `{name}`", expected.name);
            return Err(Error::invalid(INFERENCE, reason));
        }
        if x.rank() != expected.shape.rank() || given.of(x.shape()) != given.of(&expected.shape) {
            let (own, shape) = (&expected.shape, x.shape());
            let axes = if length.is_some() { "axes 0 and 1" } else { "axis 0" };
            let help = format!(
                "the model was compiled for `{name}` of shape {own}, in which only {axes} may differ; compile another model"
            );
            return Err(Error::shapes(INFERENCE, [shape, own], help));
        }
        if x.dtype() != expected.dtype {
            let help = format!("the model was compiled for `{name}` of dtype {}; use to_dtype()", expected.dtype);
            return Err(Error::dtypes(INFERENCE, [x.dtype(), expected.dtype], help));
        }
        Ok(())
    }

    /// Stores the inputs of the first batch that was not refused.
    fn accept(&mut self, x: &dyn BatchTensors) {
        if self.expected.is_empty() {
            x.each_tensor(&mut |name, x| {
                let (name, shape) = (name.to_string(), x.shape().clone());
                self.expected.push(ExpectedInput { name, shape, dtype: x.dtype() });
            });
        }
    }

    /// Returns the smallest compiled shape that contains this one, which is not larger than all compiled shapes.
    fn fill(&self, given: FilledShape) -> FilledShape {
        let smallest = |of: &[usize], least: usize| of.iter().copied().find(|&value| value >= least).unwrap_or(least);
        FilledShape {
            rows: smallest(&self.sizes, given.rows),
            length: given.length.map(|length| smallest(&self.lengths, length)),
        }
    }

    /// Drops the recordings and the expected inputs if the model was converted to another dtype.
    fn forget_converted(&mut self) {
        if self.kept.as_ref().is_some_and(|kept| kept.state.is_converted()) {
            self.stats = CacheStats { held: 0, ..self.stats() };
            self.kept = None;
            self.expected.clear();
        }
    }

    /// Drops the recordings if tensors of the model were replaced, or moved to another device, since recording.
    fn keep_current(&mut self, bind: BindForward<'_, 'f>) -> Result<()> {
        let is_current = |kept: &KeptPasses<'f>| kept.state.check().is_ok();
        if !self.kept.as_ref().is_some_and(is_current) {
            self.stats = CacheStats { held: 0, ..self.stats() };
            self.kept = None;
            let forward = bind()?;
            let model: &dyn ModuleParts = &*forward;
            model.supports_capture()?;
            let (device, state) = (first_device(model), ModelState::of(forward.clone()));
            self.kept = Some(KeptPasses { forward, state, device, recorded: Vec::new() });
        }
        Ok(())
    }

    /// Sets the inputs of the launch: without autograd history, and on the device of the model.
    fn set_inputs(&mut self, x: &dyn BatchTensors) -> Result<()> {
        let device = self.kept.as_ref().map_or(Device::cpu(), |kept| kept.device);
        let (inputs, mut placed) = (&mut self.inputs, Ok(()));
        inputs.clear();
        x.each_tensor(&mut |_, x| {
            let detached = if x.requires_grad() { x.detach() } else { x.clone() };
            match placed_on(device, &detached) {
                Ok(x) => inputs.push(x),
                Err(error) => placed = Err(error),
            }
        });
        placed
    }

    /// Returns the statistics. `self.stats` counts the launches that found the recording of their shape; of these, the
    /// kept recordings know which were recorded again.
    fn stats(&self) -> CacheStats {
        let (mut again, mut held) = (0, 0);
        for pass in self.kept.iter().flat_map(|kept| &kept.recorded) {
            let stats = pass.step.as_ref().map_or(CacheStats { held: 1, ..CacheStats::default() }, Captured::cache);
            (again, held) = (again + stats.misses, held + stats.held);
        }
        CacheStats { hits: self.stats.hits - again, misses: self.stats.misses + again, held }
    }

    /// Returns the index of the recording for a shape, which is counted as a hit or a miss.
    fn counted(&mut self, fill: FilledShape) -> Result<usize> {
        let before = self.kept.as_ref().map_or(0, |kept| kept.recorded.len());
        let at = self.recorded(fill)?;
        if at == before {
            self.stats.misses += 1;
        } else {
            self.stats.hits += 1;
        }
        Ok(at)
    }

    /// Returns the index of the recording for a shape, and records it if there is none.
    fn recorded(&mut self, fill: FilledShape) -> Result<usize> {
        let kept = self.kept.as_mut().expect("keep_current() must have made the recordings");
        match kept.recorded.iter().position(|pass| pass.fill == fill) {
            Some(at) => Ok(at),
            None => {
                kept.record(fill, &self.inputs)?;
                Ok(kept.recorded.len() - 1)
            }
        }
    }
}

impl<'f> KeptPasses<'f> {
    /// Records the forward pass for a shape; only the other axes and the dtypes of the inputs are used.
    fn record(&mut self, fill: FilledShape, inputs: &[Tensor]) -> Result<()> {
        let output = self.traced_shape(fill, inputs)?;
        if self.recorded.is_empty() {
            // The trace has built lazy layers.
            self.state = ModelState::of(self.forward.clone());
        }
        if output.first() != Some(&fill.rows) {
            let help = format!(
                "for a batch of {} rows, the output must have {} rows too, since padded rows are removed",
                fill.rows, fill.rows
            );
            return Err(Error::shapes(INFERENCE, [&output], help));
        }
        let has_output_length = match fill.length {
            Some(length) if length > 1 && output.get(1) == Some(&length) => {
                // Axis 1 may have this length by chance.
                self.traced_shape(FilledShape { length: Some(length - 1), ..fill }, inputs)?.get(1)
                    == Some(&(length - 1))
            }
            _ => false,
        };
        let forward = self.forward.clone();
        let step = move |inputs: &[Tensor]| unwrap(forward_in_evaluation(&*forward, inputs));
        let empty = self.placeholders(fill, inputs)?;
        let _off = no_grad();
        let options = CaptureOptions { pack_weights: true, ..CaptureOptions::default() };
        let step = match capture_with(options, step, &empty.iter().collect::<Vec<_>>()) {
            Err(error @ Error::DeviceUnavailable { .. }) => {
                let device = self.device;
                tracing::warn!(%device, %error, "the device cannot capture: the model runs eagerly");
                Err(error)
            }
            captured => Ok(captured?),
        };
        let kernels = step.as_ref().ok().map(|step| step.plan().launches.len());
        tracing::info!(rows = fill.rows, length = fill.length, kernels, "recorded a forward pass");
        self.recorded.push(RecordedPass { fill, has_output_length, step });
        Ok(())
    }

    /// Returns the shape of the output, for inputs of this shape.
    fn traced_shape(&self, fill: FilledShape, inputs: &[Tensor]) -> Result<Shape> {
        let (model, inputs): (&dyn ModuleParts, _) = (&*self.forward, self.placeholders(fill, inputs)?);
        let (output, _) = trace_calls(model, &mut || forward_in_evaluation(&*self.forward, &inputs))?;
        Ok(output.shape().clone())
    }

    fn placeholders(&self, fill: FilledShape, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|x| placeholder(self.device, fill.of(x.shape()), x.dtype())).collect()
    }
}

/// Computes the output in evaluation mode, without gradients.
fn forward_in_evaluation<'f>(forward: &(dyn ForwardOfInputs + 'f), inputs: &[Tensor]) -> Result<Tensor> {
    let _off = no_grad();
    let _evaluating = EvaluationGuard::new();
    forward.output(inputs)
}

/// Launches a recording without allocating a list of references to the inputs, unless there are more than three.
fn launch_captured<'a>(captured: &'a mut Captured<'_>, inputs: &[Tensor]) -> Result<Outputs<'a>> {
    let _off = no_grad();
    match inputs {
        [a] => captured.launch(&[a]),
        [a, b] => captured.launch(&[a, b]),
        [a, b, c] => captured.launch(&[a, b, c]),
        many => captured.launch(&many.iter().collect::<Vec<_>>()),
    }
}
