//! A model for inference: forward passes that are recorded once for each of a few shapes.

use super::batch::{Batch, BatchTensors, BoundModel, Model, ModelOfInputs, as_step_input, check_batch_dtype};
use super::launcher::{Launcher, PerRecording};
use super::state::ModelState;
use crate::call::{module_device, trace_output};
use crate::module::DynModule;
use crate::parameter::with_evaluation_mode;
use pellucid_derive::panicking_form;
use pellucid_tensor::{
    CacheStats, CaptureOptions, Captured, DType, Device, Error, Outputs, Result, Shape, Tensor, no_grad, ops,
    placeholder, unwrap,
};
use std::fmt;
use std::sync::Arc;

/// The name of the operation in errors.
const INFERENCE: &str = "inference";

/// A model whose forward pass is recorded once for each of a few batch sizes, and replayed.
///
/// All layers are in evaluation mode, as after [`Module::eval`](crate::Module::eval), regardless of the model's own
/// mode, and no gradients are computed. A batch of n rows runs on the smallest listed size of at least n rows, and a
/// batch that is larger than all listed sizes is split, which may change the last bits. Parameters and buffers are
/// shared with the model: the next launch sees a write in place, such as an optimizer's update. After a parameter was
/// replaced, the model was converted to another dtype or moved to another device, or a [hook](crate::hook) was added or
/// removed, the forward pass is recorded again.
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
/// let mut inference = InferenceModel::new(&model, &[1, 8, 32]);
/// inference.prepare(&Tensor::zeros([1, 4], DType::F32))?; // or else at the first batch of each size
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
/// The rows that fill a batch up to a listed size repeat its last row, and their results are not returned. The result
/// is bit-identical to the model's eager forward pass for the filled batch. Filling does not change the results of the
/// other rows if the model computes each row of axis 0 independently. In evaluation mode, all layers of this crate do,
/// except a batch norm without running statistics, and a layer whose axis 0 is not the batch, such as a recurrent layer
/// without `batch_first`. Your own layers must not reduce, sort or shift along axis 0. Give other models only batches
/// of a listed size.
///
/// [`with_lengths`](InferenceModel::with_lengths) adds a list of lengths of axis 1, for sequences.
///
/// # Memory
/// Each recording has buffers of its own for intermediate results; their memory grows with the number of recorded
/// shapes. On the CPU, the weights of matrix products are kept a second time, in the order in which products read them
/// ([`CaptureOptions::pack_weights`]). All recordings share these copies. After a write to a weight, the next batch
/// copies it again.
pub struct InferenceModel<'f, M, X = Tensor> {
    model: Arc<BoundModel<Arc<M>, X>>,
    passes: ForwardPasses<'f>,
}

impl<'f, M: Model<X> + 'f, X: Batch + 'f> InferenceModel<'f, M, X> {
    /// Creates a model for these batch sizes, in any order. Nothing is recorded yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no size, or one is 0.
    #[panicking_form]
    pub fn try_new(model: M, batch_sizes: &[usize]) -> Result<Self> {
        Ok(InferenceModel::with_shapes(Arc::new(model), ascending("batch size", batch_sizes)?, Vec::new()))
    }

    fn with_shapes(model: Arc<M>, sizes: Vec<usize>, lengths: Vec<usize>) -> Self {
        let model = Arc::new(BoundModel::new(model));
        InferenceModel { passes: ForwardPasses::new(model.clone(), sizes, lengths), model }
    }

    /// Sets the list of lengths of axis 1, in any order. Every input of at least two axes is then a batch of padded
    /// sequences `[N, L, ..]`; the length L is the same for all inputs. The end is padded with zeros to the smallest
    /// listed length of at least L. Where the model's output has the length of the sequence on axis 1, only the first L
    /// elements are returned.
    ///
    /// The padding does not change these results if the model ignores it. Attention needs a mask among the inputs,
    /// which is padded with 0 or false. Causal attention and recurrent layers in the forward direction need none.
    ///
    /// ```
    /// use pellucid::nn::graph::{InferenceModel, Model};
    /// use pellucid::nn::{AttentionMasks, Embedding, Layer, Module, TransformerEncoder};
    /// use pellucid::{DType, Result, Tensor, ops};
    ///
    /// #[derive(Module)]
    /// struct Encoder(Embedding, TransformerEncoder);
    ///
    /// impl Model<(Tensor, Tensor)> for Encoder {
    ///     fn compute(&self, (ids, mask): &(Tensor, Tensor)) -> Result<Tensor> {
    ///         self.1.try_forward_masked(&self.0.try_forward(ids)?, AttentionMasks::padding(mask))
    ///     }
    /// }
    ///
    /// let layers = TransformerEncoder::new(8, 2, 1).hidden(16);
    /// let encoder = Encoder(Embedding::new(50, 8), layers);
    /// let mut inference = InferenceModel::new(encoder, &[1, 4]).with_lengths(&[8, 16]);
    /// let (ids, mask) = (Tensor::randint(0, 50, [3, 10]), Tensor::ones([3, 10], DType::Bool));
    /// assert_eq!(inference.run(&(ids, mask))?.shape().dims(), [3, 10, 8]); // runs on [4, 16]
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no length, or one is 0.
    #[panicking_form]
    pub fn try_with_lengths(self, lengths: &[usize]) -> Result<Self> {
        Ok(InferenceModel::with_shapes(self.model.model.clone(), self.passes.sizes, ascending("length", lengths)?))
    }

    /// Returns another inference model of the same model, with the same listed sizes and without recordings.
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
    /// let mut inference = InferenceModel::new(sequential![Linear::new(4, 16), Relu, Linear::new(16, 3)], &[1, 8]);
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
        InferenceModel::with_shapes(self.model.model.clone(), self.passes.sizes.clone(), self.passes.lengths.clone())
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        &self.model.model
    }

    /// Returns the number of kept recordings, and the numbers of launches that found a recording (hits) or created one
    /// (misses). A shape has one recording for each path and each set of hooks with which it ran.
    pub fn cache_stats(&self) -> CacheStats {
        self.passes.launcher.cache_stats()
    }

    /// Records the forward pass for all listed sizes and lengths. `like` determines the names, dtypes and other axes
    /// of the inputs; its values are not used. Without this call, a shape is recorded when a batch first needs it.
    ///
    /// # Errors
    /// The errors of [`run`](InferenceModel::run).
    pub fn prepare(&mut self, like: &X) -> Result<()> {
        self.set_structure(like)?;
        self.passes.drop_recordings_on_error(|passes| passes.prepare(like))
    }

    /// Returns the model's output for a batch of any number of rows: `[N, ..]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for inputs that differ from the first batch in an axis
    /// other than the batch and the length, for inputs of different numbers of rows, for a sequence that is longer than
    /// all listed lengths, and for a model whose output has no batch axis; [`Error::InvalidArgument`] for a batch
    /// without rows; errors of [`capture`](pellucid_tensor::capture()), and of the model's operations.
    pub fn run(&mut self, x: &X) -> Result<Tensor> {
        self.set_structure(x)?;
        self.passes.drop_recordings_on_error(|passes| passes.run(x))
    }

    /// Runs a batch that has exactly a listed shape. Returns the recording's own output, which the next launch
    /// overwrites. After the first launches, this allocates nothing on the CPU.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a batch of another shape, which [`run`](InferenceModel::run) pads;
    /// [`Error::DeviceUnavailable`] on a device without capture; the errors of [`run`](InferenceModel::run).
    pub fn launch(&mut self, x: &X) -> Result<Outputs<'_>> {
        self.set_structure(x)?;
        self.passes.launch(x)
    }

    fn set_structure(&mut self, x: &X) -> Result<()> {
        self.passes.drop_outdated_recordings();
        if self.passes.expected.is_empty() { self.model.set_structure(x) } else { Ok(()) }
    }
}

impl<M, X> fmt::Debug for InferenceModel<'_, M, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InferenceModel")
            .field("cache_stats", &self.passes.launcher.cache_stats())
            .finish_non_exhaustive()
    }
}

/// Returns the values in ascending order, without duplicates.
fn ascending(what: &str, values: &[usize]) -> Result<Vec<usize>> {
    if values.is_empty() || values.contains(&0) {
        let reason = format!("the list of {what}s must be nonempty, and all values must be at least 1; got {values:?}");
        return Err(Error::invalid(INFERENCE, reason));
    }
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    Ok(values)
}

/// The forward passes of a model. It has no type parameters, so it is compiled once, in this crate.
struct ForwardPasses<'f> {
    model: Arc<dyn ModelOfInputs + 'f>,
    /// The listed batch sizes, ascending.
    sizes: Vec<usize>,
    /// The listed lengths of axis 1, ascending; empty if axis 1 is not padded.
    lengths: Vec<usize>,
    /// The names of the inputs of the first batch that was not rejected, and their shapes (axis 0 and the length may
    /// differ in other batches) and dtypes.
    names: Vec<String>,
    expected: Vec<(Shape, DType)>,
    /// The recordings, for the tensors of the model in `state`.
    launcher: Launcher<'f>,
    state: Option<ModelState<'f>>,
    /// The axes of the output of each recording that has run on a padded batch.
    axes: PerRecording<OutputAxes>,
    /// The inputs of the current launch.
    inputs: Vec<Tensor>,
}

/// The listed shape on which a batch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BatchShape {
    rows: usize,
    /// The length of axis 1; `None` without listed lengths, or if no input has an axis 1.
    length: Option<usize>,
}

impl BatchShape {
    /// Returns the shape of an input of shape `shape` after it is filled up to this batch shape.
    fn padded_shape(self, shape: &Shape) -> Shape {
        let filled = shape.with_axis(0, self.rows);
        match self.length {
            Some(length) if shape.rank() > 1 => filled.with_axis(1, length),
            _ => filled,
        }
    }
}

/// The axes of an output that change with the inputs.
#[derive(Clone, Copy)]
struct OutputAxes {
    /// Whether axis 0 is the batch.
    batch: bool,
    /// Whether axis 1 is the sequence.
    length: bool,
}

impl<'f> ForwardPasses<'f> {
    fn new(model: Arc<dyn ModelOfInputs + 'f>, sizes: Vec<usize>, lengths: Vec<usize>) -> Self {
        let forward = model.clone();
        let forward = move |inputs: &[Tensor]| Ok(vec![forward_in_evaluation(&*forward, inputs)?]);
        // Each listed shape may be recorded for several paths and hooks.
        let max_recordings = CaptureOptions::default().max_recordings * sizes.len() * lengths.len().max(1);
        let options = CaptureOptions { pack_weights: true, max_recordings, ..CaptureOptions::default() };
        let launcher = Launcher::new(false, options, Box::new(forward));
        let (names, expected, axes, inputs) = (Vec::new(), Vec::new(), PerRecording::default(), Vec::new());
        ForwardPasses { model, sizes, lengths, names, expected, launcher, state: None, axes, inputs }
    }

    /// Calls `f`. If it fails for the first batch, recordings are dropped, so that the next batch may have other names,
    /// shapes and dtypes.
    fn drop_recordings_on_error<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let result = f(self);
        if result.is_err() && self.expected.is_empty() {
            self.drop_recordings();
        }
        result
    }

    fn prepare(&mut self, like: &dyn BatchTensors) -> Result<()> {
        let BatchShape { length, .. } = self.check(like)?;
        self.set_inputs(like)?;
        let lengths = self.lengths.iter().map(|&length| Some(length)).collect();
        let lengths: Vec<Option<usize>> = if length.is_some() { lengths } else { vec![None] };
        for &rows in &self.sizes.clone() {
            for &length in &lengths {
                let fill = BatchShape { rows, length };
                let empty = self.placeholders(fill)?;
                let _off = no_grad();
                if self.launcher.prepare(&empty)? {
                    self.log_recording(fill);
                }
                self.launcher.output_shape(&empty, 0).map_or(Ok(()), |output| check_rows(&output, fill.rows))?;
            }
        }
        self.accept(like);
        Ok(())
    }

    fn run(&mut self, x: &dyn BatchTensors) -> Result<Tensor> {
        let BatchShape { rows, length } = self.check(x)?;
        self.set_inputs(x)?;
        let _off = no_grad();
        let largest = *self.sizes.last().expect("the list of sizes must not be empty");
        let (all, mut parts) = (std::mem::take(&mut self.inputs), Vec::new());
        for start in (0..rows).step_by(largest) {
            let rows = largest.min(rows - start);
            self.inputs = all.iter().map(|input| ops::narrow(input, 0, start, rows)).collect::<Result<_>>()?;
            parts.push(self.run_part(BatchShape { rows, length }, rows < all[0].shape()[0])?);
        }
        self.inputs.clear();
        self.accept(x);
        match &parts[..] {
            [only] => Ok(only.clone()),
            parts => ops::concatenate(parts, 0),
        }
    }

    /// Runs the inputs, of at most the largest listed size, and returns the output without its padding. `is_split`
    /// tells whether they are a part of a larger batch.
    fn run_part(&mut self, given: BatchShape, is_split: bool) -> Result<Tensor> {
        let fill = self.listed_shape(given);
        let unfilled = if fill == given { Vec::new() } else { self.inputs.clone() };
        for input in &mut self.inputs {
            *input = filled(input, fill)?;
        }
        let before = self.launcher.cache_stats().misses;
        if let Err(error) = self.launcher.launch(&self.inputs) {
            return Err(in_filled(&unfilled, &self.inputs, error));
        }
        if self.launcher.cache_stats().misses > before {
            self.log_recording(fill);
        }
        let output = &self.launcher.outputs()[0];
        check_rows(output.shape(), fill.rows)?;
        // The next launch overwrites the output.
        let output = ops::copy(output)?;
        if fill == given && !is_split {
            return Ok(output);
        }
        let axes = self.output_axes(fill, output.shape())?;
        if !axes.batch && (is_split || given.rows < fill.rows) {
            let help = "axis 0 of the output is not the batch, so padded rows cannot be removed and the outputs of \
                        parts cannot be joined; give this model only batches of a listed size";
            return Err(Error::shapes(INFERENCE, [output.shape()], help));
        }
        let output = ops::narrow(&output, 0, 0, given.rows)?;
        match given.length {
            Some(length) if axes.length => ops::narrow(&output, 1, 0, length),
            _ => Ok(output),
        }
    }

    fn launch(&mut self, x: &dyn BatchTensors) -> Result<Outputs<'_>> {
        let given = self.check(x)?;
        if given.rows > self.sizes[self.sizes.len() - 1] || self.listed_shape(given) != given {
            let (mut shapes, lengths) = (Vec::new(), &self.lengths);
            x.each_tensor(&mut |_, x| shapes.push(x.shape().clone()));
            let sizes = &self.sizes;
            let length =
                if lengths.is_empty() { String::new() } else { format!(", and the length one of {lengths:?}") };
            let help = format!("the batch size of launch() must be one of {sizes:?}{length}; run() pads others");
            return Err(Error::shapes(INFERENCE, &shapes, help));
        }
        self.drop_recordings_on_error(|passes| {
            passes.set_inputs(x)?;
            let _off = no_grad();
            check_rows(passes.launcher.launch(&passes.inputs)?[0].shape(), given.rows)?;
            passes.accept(x);
            Ok(())
        })?;
        self.launcher.captured().map(Captured::outputs).ok_or_else(|| {
            let device = self.state.as_ref().map_or(Device::cpu(), ModelState::device).to_string();
            Error::DeviceUnavailable { device, reason: self.launcher.eager_reason().unwrap_or_default().to_string() }
        })
    }

    /// Returns the number of rows of a batch, and its length. Returns an error if the batch does not fit.
    fn check(&self, x: &dyn BatchTensors) -> Result<BatchShape> {
        let mut given = None;
        let check = &mut |index, name: &str, x: &Tensor| self.check_input(index, name, x, &mut given);
        x.try_each_tensor(INFERENCE, &self.names, check)?;
        given.ok_or_else(|| Error::invalid(INFERENCE, "the batch has no input"))
    }

    fn check_input(&self, index: usize, name: &str, x: &Tensor, given: &mut Option<BatchShape>) -> Result<()> {
        let reject = |help: String| Err(Error::shapes(INFERENCE, [x.shape()], help));
        let Some(&rows) = x.shape().first() else {
            return reject(format!("the input `{name}` must have a batch axis; unsqueeze(0) adds one"));
        };
        if rows == 0 {
            return Err(Error::invalid(
                INFERENCE,
                format!("the input `{name}` of shape {} has no rows; skip the batch", x.shape()),
            ));
        }
        let length = (!self.lengths.is_empty() && x.rank() > 1).then(|| x.shape()[1]);
        let given = given.get_or_insert(BatchShape { rows, length });
        given.length = given.length.or(length);
        if rows != given.rows || length.is_some() && length != given.length {
            return reject(format!(
                "all inputs must have the same number of rows and the same length; `{name}` differs from the first one"
            ));
        }
        if let (Some(length), Some(&longest)) = (length, self.lengths.last())
            && !(1..=longest).contains(&length)
        {
            return reject(format!(
                "the length of `{name}` must be 1 to {longest}; list larger lengths with with_lengths()"
            ));
        }
        let Some((expected, dtype)) = self.expected.get(index) else { return Ok(()) };
        if x.rank() != expected.rank() || given.padded_shape(x.shape()) != given.padded_shape(expected) {
            let axes = if length.is_some() { "axes 0 and 1" } else { "axis 0" };
            let help = format!(
                "the model was recorded for `{name}` of shape {expected}, in which only {axes} may differ; create another \
                 inference model"
            );
            return Err(Error::shapes(INFERENCE, [x.shape(), expected], help));
        }
        check_batch_dtype(INFERENCE, *dtype, name, x)
    }

    /// Stores the inputs of the first batch that was not rejected.
    fn accept(&mut self, x: &dyn BatchTensors) {
        if self.expected.is_empty() {
            x.each_tensor(&mut |name, x| {
                self.names.push(name.to_string());
                self.expected.push((x.shape().clone(), x.dtype()));
            });
        }
    }

    /// Returns the smallest listed shape that contains the given shape, which must not exceed the largest one.
    fn listed_shape(&self, given: BatchShape) -> BatchShape {
        let smallest = |values: &[usize], min: usize| values.iter().copied().find(|&value| value >= min).unwrap_or(min);
        BatchShape {
            rows: smallest(&self.sizes, given.rows),
            length: given.length.map(|length| smallest(&self.lengths, length)),
        }
    }

    /// Drops the recordings and the expected inputs if the model was converted to another dtype, or a parameter or
    /// buffer was replaced.
    fn drop_outdated_recordings(&mut self) {
        if self.state.as_ref().is_some_and(|state| state.is_converted() || state.check().is_err()) {
            self.drop_recordings();
        }
    }

    fn drop_recordings(&mut self) {
        self.names.clear();
        self.expected.clear();
        self.launcher.drop_recordings();
        self.state = None;
    }

    /// Sets the inputs of the launch: without autograd history, and on the device of the model. Lazy layers are built.
    fn set_inputs(&mut self, x: &dyn BatchTensors) -> Result<()> {
        let device = self.state.as_ref().map_or_else(|| module_device(&*self.model), ModelState::device);
        self.inputs.clear();
        x.try_each_tensor(INFERENCE, &[], &mut |_, _, x| {
            as_step_input(INFERENCE, device, x).map(|x| self.inputs.push(x))
        })?;
        if self.state.is_none() {
            let model: &dyn DynModule = &*self.model;
            model.supports_capture()?;
            let BatchShape { rows, length } = self.check(x)?;
            let rows = rows.min(self.sizes[self.sizes.len() - 1]);
            let (given, fill) = (BatchShape { rows, length }, self.listed_shape(BatchShape { rows, length }));
            let traced = self.traced_shape(fill).and_then(|output| check_rows(&output, fill.rows));
            if let Err(error) = traced {
                let unfilled = if fill == given { &[] } else { &self.inputs[..] };
                return Err(in_filled(unfilled, &self.placeholders(fill)?, error));
            }
            self.state = Some(ModelState::new(self.model.clone()));
        }
        Ok(())
    }

    /// Returns which axes of the output of the latest launch, of shape `output`, change with the inputs. The shape
    /// alone does not tell, because an axis may have the number of rows or the length by chance.
    fn output_axes(&mut self, fill: BatchShape, output: &Shape) -> Result<OutputAxes> {
        let mut axes = std::mem::take(&mut self.axes);
        let latest = axes.of_latest(&self.launcher, || {
            // If the model rejects the other shape, a matching axis is assumed to change with the inputs.
            let follows = |inputs: BatchShape, axis: usize, length: usize| {
                self.traced_shape(inputs).map_or(true, |output| output.get(axis) == Some(&length))
            };
            let other = |length: usize| if length > 1 { length - 1 } else { 2 };
            let rows = other(fill.rows);
            let batch = follows(BatchShape { rows, ..fill }, 0, rows);
            let length = fill.length.filter(|length| output.get(1) == Some(length)).is_some_and(|length| {
                let length = other(length);
                follows(BatchShape { length: Some(length), ..fill }, 1, length)
            });
            Ok(OutputAxes { batch, length })
        });
        let latest = latest.copied();
        self.axes = axes;
        latest
    }

    /// Returns the shape of the output, for inputs of this shape.
    fn traced_shape(&self, fill: BatchShape) -> Result<Shape> {
        let inputs = self.placeholders(fill)?;
        let output = trace_output(&*self.model, &mut || forward_in_evaluation(&*self.model, &inputs))?;
        Ok(output.shape().clone())
    }

    fn placeholders(&self, fill: BatchShape) -> Result<Vec<Tensor>> {
        self.inputs.iter().map(|x| placeholder(x.device(), fill.padded_shape(x.shape()), x.dtype())).collect()
    }

    fn log_recording(&self, fill: BatchShape) {
        let kernels = self.launcher.captured().map(|step| step.plan().launches.len());
        tracing::info!(rows = fill.rows, length = fill.length, kernels, "recorded a forward pass");
    }
}

/// Computes the output in evaluation mode, without gradients.
fn forward_in_evaluation<'f>(model: &(dyn ModelOfInputs + 'f), inputs: &[Tensor]) -> Result<Tensor> {
    let _off = no_grad();
    with_evaluation_mode(|| model.output(inputs))
}

/// Returns an error unless an output has this number of rows.
fn check_rows(output: &Shape, rows: usize) -> Result<()> {
    if output.first() == Some(&rows) {
        return Ok(());
    }
    let help =
        format!("for a batch of {rows} rows, the output must have {rows} rows too, since padded rows are removed");
    Err(Error::shapes(INFERENCE, [output], help))
}

/// Returns the error of a launch for padded inputs. An error of the model names the padded shapes, so this function
/// adds the original shapes, unless nothing was padded.
#[cold]
fn in_filled(unfilled: &[Tensor], filled: &[Tensor], error: Error) -> Error {
    if unfilled.is_empty() || error.operation() == Some(INFERENCE) {
        return error;
    }
    let list = |tensors: &[Tensor]| tensors.iter().map(|x| x.shape().to_string()).collect::<Vec<_>>().join(", ");
    let layer = format!("inputs of shape {}, filled up to {}", list(unfilled), list(filled));
    Error::Layer { layer, source: Box::new(error) }
}

/// Returns an input that is filled up to a listed shape: with zeros along axis 1, with its last row along axis 0.
///
/// Rows of zeros would be simpler, but may produce NaN (as in a mean over no elements), which selects slower kernels.
fn filled(x: &Tensor, fill: BatchShape) -> Result<Tensor> {
    let (shape, mut x) = (fill.padded_shape(x.shape()), x.clone());
    let more = |x: &Tensor, axis: usize| shape[axis] - x.shape()[axis];
    if x.rank() > 1 && more(&x, 1) > 0 {
        let zeros = ops::zeros(x.shape().with_axis(1, more(&x, 1)), x.dtype())?.try_to(x.device())?;
        x = ops::concatenate(&[&x, &zeros], 1)?;
    }
    match more(&x, 0) {
        0 => Ok(x),
        more => {
            let last = ops::narrow(&x, 0, x.shape()[0] - 1, 1)?;
            ops::concatenate(&[&x, &ops::broadcast_to(&last, x.shape().with_axis(0, more))?], 0)
        }
    }
}
