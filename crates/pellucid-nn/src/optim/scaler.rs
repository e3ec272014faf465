//! Loss scaling for `f16`, in which small gradients would underflow.

use super::clip::{factor_for_gradient, gradients};
use super::free_buffer::{free_buffer, move_free};
use super::hyperparameter::Hyperparameter;
use super::options::options;
use super::param_group::ParamGroup;
use super::{Optimizer, Parameter};
use crate::parameter::Buffer;
use crate::state::{self, StateDict, StateLoad, Stateful};
use pellucid_derive::panicking_form;
use pellucid_tensor::OptionRange;
use pellucid_tensor::{DType, Device, Error, Result, Tensor, eager, formula, lock, no_grad, ops, recording_id, unwrap};
use std::fmt;
use std::sync::Mutex;

/// The name of the operation in errors.
const OP: &str = "grad_scaler";

options! {
    /// Options of [`GradScaler`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    GradScalerOptions {
        /// The initial scale.
        init_scale: f64 = 65536.0 => POSITIVE;
        /// The factor by which the scale is multiplied after `growth_interval` steps without inf or NaN.
        growth_factor: f64 = 2.0 => ABOVE_ONE;
        /// The factor by which the scale is multiplied after a step with inf or NaN.
        backoff_factor: f64 = 0.5 => INNER_FRACTION;
        /// The number of consecutive finite steps before the scale grows.
        growth_interval: u32 = 2000 => COUNT;
    }
}

/// A loss scaler: multiplies losses by a scale, divides gradients by it, and skips steps with non-finite gradients
/// (Micikevicius et al. 2018). Scale, counts and the decision to skip stay on the device, so a captured step may
/// contain them.
///
/// A training step calls [`scale`](GradScaler::scale), then [`step`](GradScaler::step) or
/// [`unscale`](GradScaler::unscale) once for each optimizer, and then [`update`](GradScaler::update). Another order is
/// rejected. The order is not checked if a captured step contains only some of these calls, because its launches do not
/// call these methods.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::{GradScaler, Optimizer, Sgd, SgdOptions};
/// use pellucid::{DType, Device, Tensor};
///
/// let w = Parameter::new(Tensor::from([1.0f32]).to_dtype(DType::F16));
/// let optimizer = Sgd::new(vec![w.clone()], SgdOptions { lr: 0.5, ..Default::default() });
/// let scaler = GradScaler::new(Default::default());
/// // A gradient of 1e-8 underflows in f16; 65536 times as much does not.
/// scaler.scale(&w.to_dtype(DType::F32).mul(1e-8).sum(..)).backward();
/// assert!(w.grad().unwrap().item::<f32>() > 0.0);
/// scaler.step(&optimizer);
/// scaler.update();
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct GradScaler {
    scale: Hyperparameter,
    /// The number of finite steps since the scale changed.
    growth_tracker: Buffer,
    /// Whether a step since the last update had inf or NaN.
    found_inf: Buffer,
    /// The number of consecutive updates with inf or NaN.
    skipped: Buffer,
    options: GradScalerOptions,
    calls: Mutex<ScalerCalls>,
}

/// The calls of a [`GradScaler`] since its last update.
#[derive(Default)]
struct ScalerCalls {
    /// Whether a loss was scaled.
    scaled: bool,
    /// The first groups of the optimizers whose gradients were checked by `step` or `unscale`.
    optimizers: Vec<ParamGroup>,
    /// The recording of the calls, or 0 for eager calls; `None` before the first call.
    recording: Option<u32>,
    /// Whether calls between two updates were in different recordings, or only some of them in a recording. Launches
    /// make no calls, so the order is unknown afterwards.
    is_split: bool,
}

/// The result of [`GradScaler::unscale`]: an optimizer whose gradients are divided by the scale, before its step.
#[must_use = "unscale() only unscales the gradients; call step() of the result to update the parameters"]
pub struct Unscaled<'o, O: ?Sized> {
    optimizer: &'o O,
    found_inf: Tensor,
}

impl<O: ?Sized> fmt::Debug for Unscaled<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unscaled").field("found_inf", &self.found_inf).finish_non_exhaustive()
    }
}

impl GradScaler {
    /// Creates a scaler.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a scale that is not above 0 or is outside the range of `f32`, a growth factor of
    /// at most 1, a backoff factor outside (0, 1), or an interval of 0.
    #[panicking_form]
    pub fn try_new(options: GradScalerOptions) -> Result<GradScaler> {
        options.check_ranges(OP)?;
        if options.init_scale as f32 == 0.0 {
            let reason =
                format!("`init_scale` must not underflow in f32, in which it is stored, got {:e}", options.init_scale);
            return Err(Error::invalid(OP, reason));
        }
        let scale = Hyperparameter::stored_as(OP, options.init_scale, DType::F32, |scale| scale)?;
        let growth_tracker = free_buffer(ops::full((), 0.0, DType::F32)?);
        let found_inf = free_buffer(ops::full((), false, DType::Bool)?);
        let skipped = free_buffer(ops::full((), 0.0, DType::F32)?);
        Ok(GradScaler { scale, growth_tracker, found_inf, skipped, options, calls: Mutex::default() })
    }

    /// Returns the loss times the scale: call `backward` on it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_scale(&self, loss: &Tensor) -> Result<Tensor> {
        self.follow(loss.device())?;
        let scaled = ops::mul(loss, self.scale.tensor())?;
        self.note(|calls| calls.scaled = true);
        Ok(scaled)
    }

    /// Returns the scale, a 0-d tensor.
    pub fn scale_tensor(&self) -> &Tensor {
        self.scale.tensor()
    }

    /// Returns the scale, rounded as [`ParamGroup`] describes.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured, since values cannot be read then.
    #[panicking_form]
    pub fn try_get_scale(&self) -> Result<f64> {
        self.scale.try_get()
    }

    /// Returns the number of consecutive updates that were skipped because a gradient was not finite. A few are usual
    /// while the scale adapts; a growing number means that the gradients are not finite at any scale.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured, since values cannot be read then.
    #[panicking_form]
    pub fn try_skipped_updates(&self) -> Result<usize> {
        Ok(self.skipped.try_item::<f64>()? as usize)
    }

    /// Runs a step of the optimizer with its gradients divided by the scale. If a gradient
    /// is not finite, parameters, state and step counts stay unchanged.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`]; [`Error::InvalidArgument`] if no loss was scaled since the last
    /// [`update`](GradScaler::update), or if `step` or `unscale` of this optimizer was called since then.
    #[panicking_form]
    pub fn try_step(&self, optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
        let _guard = no_grad();
        self.check_order("step", optimizer)?;
        let is_infinite = self.find(&optimizer.parameters())?;
        optimizer.try_step_scaled(Some(&ops::reciprocal(self.scale_tensor())?), Some(&is_infinite))?;
        self.note(|calls| calls.optimizers.extend(identity(optimizer)));
        Ok(())
    }

    /// Divides the optimizer's gradients by the scale in place, so that they can be clipped before
    /// [`Unscaled::step`].
    ///
    /// # Errors
    /// [`Error::InPlaceOnTracked`] for gradients that are tracked by autograd; [`Error::InvalidArgument`] as for
    /// [`step`](GradScaler::step).
    #[panicking_form]
    pub fn try_unscale<'o, O: Optimizer + ?Sized>(&self, optimizer: &'o O) -> Result<Unscaled<'o, O>> {
        let _guard = no_grad();
        self.check_order("unscale", optimizer)?;
        let found_inf = self.find(&optimizer.parameters())?;
        let inverse = ops::reciprocal(self.scale_tensor())?;
        for gradient in gradients(&optimizer.parameters()) {
            ops::update(formula!(|g, s| g * s), &[&gradient], &[&factor_for_gradient(&inverse, &gradient)?], &[])?;
        }
        self.note(|calls| calls.optimizers.extend(identity(optimizer)));
        Ok(Unscaled { optimizer, found_inf })
    }

    /// Calls `f` with the optimizer's gradients divided by the scale. If it fails or panics, the call of
    /// [`unscale`](GradScaler::unscale) does not count, so that it can be repeated before the next update.
    ///
    /// # Errors
    /// The errors of [`unscale`](GradScaler::unscale) and of `f`.
    pub fn with_unscaled<'o, O: Optimizer + ?Sized>(
        &self,
        optimizer: &'o O,
        f: impl FnOnce(Unscaled<'o, O>) -> Result<()>,
    ) -> Result<()> {
        struct ForgetOnDrop<'a>(&'a GradScaler, Option<ParamGroup>);
        impl Drop for ForgetOnDrop<'_> {
            fn drop(&mut self) {
                let Some(forgotten) = &self.1 else { return };
                lock(&self.0.calls).optimizers.retain(|optimizer| !optimizer.is_same(forgotten));
            }
        }
        let unscaled = self.try_unscale(optimizer)?;
        let guard = ForgetOnDrop(self, identity(optimizer));
        f(unscaled)?;
        std::mem::forget(guard);
        Ok(())
    }

    /// Adjusts the scale for the next steps; call it once after the steps of all optimizers.
    ///
    /// # Errors
    /// The errors of [`ops::update`]; [`Error::InvalidArgument`] without a [`step`](GradScaler::step) or
    /// [`unscale`](GradScaler::unscale) since the last update.
    #[panicking_form]
    pub fn try_update(&self) -> Result<()> {
        let _guard = no_grad();
        let calls = lock(&self.calls);
        if !calls.is_order_unknown() && calls.optimizers.is_empty() {
            let reason = "update() was called without a step() or unscale() since the last update(); call \
                          scale(&loss).backward(), step(&optimizer) and update(), in this order";
            return Err(Error::invalid(OP, reason));
        }
        drop(calls);
        // The scale and its reciprocal stay finite.
        let update = formula!(update |scale, tracker, found: mask, skipped; growth, backoff, interval, least| {
            let tracker = tracker + 1.0;
            let is_due = tracker.ge(interval);
            let (larger, smaller) = (scale * growth, scale * backoff);
            let grown = (is_due & larger.is_finite()).select(larger, scale);
            let reduced = smaller.ge(least).select(smaller, scale);
            let skips = found.select(skipped + 1.0, 0.0);
            (found.select(reduced, grown), (found | is_due).select(0.0, tracker), found & false, skips)
        });
        let GradScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        let least = f64::from(f32::MIN_POSITIVE);
        let params = [growth_factor, backoff_factor, f64::from(growth_interval), least].map(Into::into);
        let targets = [self.scale_tensor(), &self.growth_tracker, &self.found_inf, &self.skipped];
        ops::update(update, &targets, &[], &params)?;
        self.note(|calls| *calls = ScalerCalls { is_split: calls.is_split, ..ScalerCalls::default() });
        Ok(())
    }

    /// Returns a snapshot, from which training resumes exactly: `scale`, `growth_tracker`, `found_inf` and `skipped`.
    ///
    /// # Errors
    /// The errors of [`Module::try_state_dict`](crate::Module::try_state_dict).
    #[panicking_form]
    pub fn try_state_dict(&self) -> Result<StateDict> {
        state::snapshot(&self.values())
    }

    /// Loads a snapshot in place.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not a snapshot of a scaler; [`Error::InvalidArgument`] for a scale that is not
    /// finite and above 0, or a count that is not an integer. On error nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    /// Returns the state by name.
    pub(crate) fn values(&self) -> Vec<(String, Tensor)> {
        let (scale, growth_tracker) = (("scale", self.scale.buffer()), ("growth_tracker", &self.growth_tracker));
        let named = [scale, growth_tracker, ("found_inf", &self.found_inf), ("skipped", &self.skipped)];
        named.map(|(name, buffer)| (name.to_string(), buffer.tensor().clone())).into()
    }

    /// Records a call.
    fn note(&self, call: impl FnOnce(&mut ScalerCalls)) {
        let mut calls = lock(&self.calls);
        calls.is_split = calls.is_order_unknown();
        calls.recording = Some(recording_id());
        call(&mut calls);
    }

    /// Checks that a loss was scaled, and that the gradients of this optimizer were not checked before.
    fn check_order(&self, method: &str, optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
        let calls = lock(&self.calls);
        if calls.is_order_unknown() {
            return Ok(());
        }
        if !calls.scaled {
            let reason = format!(
                "{method}() divides the gradients by the scale, but no loss was scaled since the last update(); call \
                 scale(&loss).backward() first"
            );
            return Err(Error::invalid(OP, reason));
        }
        if identity(optimizer).is_some_and(|group| calls.optimizers.iter().any(|known| known.is_same(&group))) {
            let reason = format!(
                "{method}() was called after step() or unscale() of the same optimizer; call update() once after the \
                 steps of all optimizers, and step() of the result of unscale()"
            );
            return Err(Error::invalid(OP, reason));
        }
        Ok(())
    }

    /// Moves the scale and the counts to `device`.
    fn follow(&self, device: Device) -> Result<()> {
        if self.scale_tensor().device() == device {
            return Ok(());
        }
        // A captured step only references the buffers: moving them is not part of the step.
        let buffers = [self.scale.buffer(), &self.growth_tracker, &self.found_inf, &self.skipped];
        eager(|| buffers.into_iter().try_for_each(|buffer| move_free(buffer, device)))
    }

    /// Returns a 0-d bool tensor that is true if a gradient is not finite, and stores it for the next update.
    fn find(&self, parameters: &[Parameter]) -> Result<Tensor> {
        let mut finite: Option<Tensor> = None;
        for gradient in gradients(parameters) {
            // The parameters may be on several devices.
            let is_finite = ops::all(&ops::isfinite(&gradient)?, ..)?.try_to(self.found_inf.device())?;
            finite = Some(match finite {
                Some(others) => ops::logical_and(&others, &is_finite)?,
                None => is_finite,
            });
        }
        let is_infinite = match finite {
            Some(finite) => ops::logical_not(&finite)?,
            None => ops::zeros_like(self.found_inf.tensor())?,
        };
        is_infinite.free();
        ops::update(formula!(|old: mask, new: mask| old | new), &[&self.found_inf], &[&is_infinite], &[])?;
        Ok(is_infinite)
    }
}

impl ScalerCalls {
    /// Whether the order of the calls is unknown: earlier calls were in different recordings, or a call now would be in
    /// a different recording than they were.
    fn is_order_unknown(&self) -> bool {
        self.is_split || self.recording.is_some_and(|recording| recording != recording_id())
    }
}

/// Returns the first group, which identifies an optimizer even behind a box.
fn identity(optimizer: &(impl Optimizer + ?Sized)) -> Option<ParamGroup> {
    optimizer.groups().first().cloned()
}

/// The state consists of the values of [`GradScaler::state_dict`].
impl Stateful for GradScaler {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let load = StateLoad::new(&self.values(), state)?;
        let usual = GradScalerOptions::default().init_scale;
        OptionRange::POSITIVE.check(OP, "scale", state["scale"].try_item::<f64>()?, usual)?;
        ["growth_tracker", "skipped"].iter().try_for_each(|name| state::whole_number(OP, state, name).map(drop))?;
        Ok(load)
    }
}

impl<O: Optimizer + ?Sized> Unscaled<'_, O> {
    /// Runs the step with the unscaled gradients; if one of them was not finite, nothing changes.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_step`].
    #[panicking_form]
    pub fn try_step(self) -> Result<()> {
        self.optimizer.try_step_scaled(None, Some(&self.found_inf))
    }
}

impl fmt::Debug for GradScaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GradScaler").field("options", &self.options).finish_non_exhaustive()
    }
}
