//! Losses that are not finite: a check before the update, and the search for their origin.

use pellucid_nn::graph::{Batch, Model};
use pellucid_nn::loss::{Loss, LossKind};
use pellucid_nn::{Parameter, hook};
use pellucid_tensor::{Autocast, DType, Error, Result, Shape, Tensor, is_grad_enabled, no_grad, ops};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A loss that refuses a value that is not finite, before the backward pass and the update of a step. Parameters and
/// optimizer then stay as they were.
///
/// A captured step cannot branch on values, but an index out of bounds stops its launch. The loss therefore passes
/// through a selection from one element, with index 0 if it is finite, else [`NOT_FINITE`].
#[derive(Clone)]
pub(super) struct FiniteLoss<L> {
    loss: L,
    is_checked: Arc<AtomicBool>,
}

/// The index of a loss that is not finite, which no other selection from one element has.
const NOT_FINITE: i64 = 0x6e61_6e21;

impl<L: Loss> FiniteLoss<L> {
    pub(super) fn new(loss: L) -> FiniteLoss<L> {
        FiniteLoss { loss, is_checked: Arc::new(AtomicBool::new(true)) }
    }

    pub(super) fn set_checked(&self, is_checked: bool) {
        self.is_checked.store(is_checked, Ordering::Relaxed);
    }

    /// Returns the loss without a check.
    pub(super) fn unchecked(&self) -> &L {
        &self.loss
    }
}

/// Returns true for the error of a loss that is not finite.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error.root(), Error::IndexOutOfBounds { index: NOT_FINITE, len: 1, .. })
}

impl<L: Loss> Loss for FiniteLoss<L> {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.loss.try_forward(logits, y)?;
        if !is_grad_enabled() || !self.is_checked.load(Ordering::Relaxed) || loss.rank() > 0 {
            return Ok(loss);
        }
        let is_infinite = ops::logical_not(&ops::isfinite(&loss)?)?;
        let index = ops::mul(&ops::to_dtype(&is_infinite, DType::I64)?, NOT_FINITE)?;
        let one = ops::index_select(&ops::reshape(&loss, [1])?, 0, &ops::reshape(&index, [1])?)?;
        ops::reshape(&one, ())
    }

    fn kind(&self) -> Option<LossKind> {
        self.loss.kind()
    }

    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        self.loss.check_targets(logits, y)
    }

    fn trainable(&self) -> Vec<(String, Parameter)> {
        self.loss.trainable()
    }
}

/// Returns the name of the first tensor that is not finite: an input, a parameter, the targets, the output of a module
/// in the order of the computation, or the loss. Random numbers are drawn anew.
pub(super) fn first_non_finite_output<M: Model<X>, X: Batch, L: Loss>(
    model: &M,
    loss: &FiniteLoss<L>,
    x: &X,
    y: &Tensor,
    precision: impl Fn() -> Option<Autocast>,
) -> Option<String> {
    let _off = no_grad();
    let inputs = x.named().into_iter().map(|(name, x)| (format!("the input `{name}`"), x));
    let parameters = model.try_named_parameters().ok()?.into_iter();
    let parameters = parameters.map(|(name, p)| (format!("the parameter `{name}`"), p.tensor().clone()));
    let known = inputs.chain([("the targets".to_string(), y.clone())]).chain(parameters);
    if let Some((name, _)) = { known }.find(|(_, tensor)| !is_finite(tensor)) {
        return Some(name);
    }
    let found: Arc<Mutex<Option<String>>> = Arc::default();
    let mut guards = Vec::new();
    for (name, info) in model.named_modules() {
        let (found, described) = (found.clone(), format!("the output of `{name}` ({})", info.class()));
        let observe = move |_: &[&Tensor], output: &Tensor| {
            let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if found.is_none() && !is_finite(output) {
                *found = Some(described.clone());
            }
            None
        };
        // A layer without an address of its own is observed through the module around it.
        guards.extend(hook::on_call(model, &name, observe));
    }
    let _precision = precision();
    let output = model.run(x).ok()?;
    drop(guards);
    if let Some(name) = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
        return Some(name);
    }
    if !is_finite(&output) {
        return Some("the output of the model".to_string());
    }
    let loss = loss.unchecked().try_forward(&output, y).ok()?;
    (!is_finite(&loss)).then(|| "the loss; the output of the model is finite".to_string())
}

/// Returns false if a float tensor has an element that is NaN or infinite.
pub(super) fn is_finite(x: &Tensor) -> bool {
    if !x.dtype().is_float() {
        return true;
    }
    let all = ops::isfinite(&x.detach()).and_then(|finite| ops::all(&finite, ..));
    all.and_then(|all| all.try_item::<bool>()).unwrap_or(true)
}
