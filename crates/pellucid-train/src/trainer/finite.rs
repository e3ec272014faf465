//! Non-finite losses: a check before the update, and the search for the origin.

use pellucid_nn::hook::HookGuard;
use pellucid_nn::loss::{BatchWeight, Loss};
use pellucid_nn::{ModuleInfo, Parameter, Visit, Visitor};
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, is_grad_enabled, lock, no_grad, ops};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A loss that rejects non-finite values before the backward pass and the update of a step. Parameters and optimizer
/// are then unchanged.
///
/// A captured step cannot branch on values, but an index out of bounds stops its launch. The loss therefore passes
/// through an index selection from a tensor of one element. The index is 0 if the loss is finite, otherwise
/// [`NOT_FINITE`].
#[derive(Clone)]
pub(super) struct FiniteCheckedLoss<'f> {
    loss: Arc<dyn Loss + 'f>,
    is_checked: Arc<AtomicBool>,
}

/// The index that marks a non-finite loss. It is too large for a plausible index of another selection.
const NOT_FINITE: i64 = 0x6e61_6e21;

impl<'f> FiniteCheckedLoss<'f> {
    pub(super) fn new(loss: impl Loss + 'f) -> FiniteCheckedLoss<'f> {
        FiniteCheckedLoss { loss: Arc::new(loss), is_checked: Arc::new(AtomicBool::new(true)) }
    }

    pub(super) fn set_checked(&self, is_checked: bool) {
        self.is_checked.store(is_checked, Ordering::Relaxed);
    }

    /// Returns the loss without a check.
    pub(super) fn unchecked(&self) -> &(dyn Loss + 'f) {
        &*self.loss
    }
}

/// Returns true for the error of a non-finite loss.
pub(super) fn is_non_finite_loss(error: &Error) -> bool {
    matches!(error.root(), Error::IndexOutOfBounds { index: NOT_FINITE, len: 1, .. })
}

/// Adds the check to the loss of a step. A launch fails if the loss is not finite.
fn checked(loss: Tensor) -> Result<Tensor> {
    if !is_grad_enabled() || loss.rank() > 0 {
        return Ok(loss);
    }
    let is_infinite = ops::logical_not(&ops::isfinite(&loss)?)?;
    let index = ops::mul(&ops::to_dtype(&is_infinite, DType::I64)?, NOT_FINITE)?;
    let one = ops::index_select(&ops::reshape(&loss, [1])?, 0, &ops::reshape(&index, [1])?)?;
    ops::reshape(&one, ())
}

impl Visit for FiniteCheckedLoss<'_> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.loss.visit(visitor);
    }
}

impl Loss for FiniteCheckedLoss<'_> {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.loss.try_forward(logits, y)?;
        if self.is_checked.load(Ordering::Relaxed) { checked(loss) } else { Ok(loss) }
    }

    fn expected_targets(&self, logits: &Shape, dtype: DType) -> Result<Option<(Shape, DType)>> {
        self.loss.expected_targets(logits, dtype)
    }

    fn accepts_probabilities(&self) -> bool {
        self.loss.accepts_probabilities()
    }

    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        self.loss.check_targets(logits, y)
    }

    fn batch_weight(&self, y: &Tensor) -> Result<BatchWeight> {
        self.loss.batch_weight(y)
    }
}

/// A function that registers a hook for the output of a module, until the guard is dropped.
type ObserveOutput<'a> = &'a dyn Fn(&str, OutputHook) -> Option<HookGuard<'a>>;

/// A forward hook of a module, called with its inputs and its output.
type OutputHook = Box<dyn Fn(&[&Tensor], &Tensor) -> Option<Tensor> + Send + Sync>;

/// The search for the first non-finite tensor in the computation of a loss.
pub(super) struct NonFiniteSearch<'a> {
    pub(super) inputs: Vec<(String, Tensor)>,
    pub(super) targets: Tensor,
    pub(super) parameters: Vec<(String, Parameter)>,
    pub(super) modules: Vec<(String, ModuleInfo)>,
    pub(super) observe: ObserveOutput<'a>,
    pub(super) output: &'a dyn Fn() -> Result<Tensor>,
    pub(super) loss: &'a dyn Fn(&Tensor) -> Result<Tensor>,
}

impl NonFiniteSearch<'_> {
    /// Returns the name of the first non-finite tensor: an input, the targets, a parameter, the output of a module in
    /// the order of the computation, or the loss. The search repeats the computation, which changes buffers and random
    /// numbers.
    pub(super) fn first(self) -> Option<String> {
        let _off = no_grad();
        let inputs = self.inputs.iter().map(|(name, x)| (format!("the input `{name}`"), x));
        let parameters = self.parameters.iter().map(|(name, p)| (format!("the parameter `{name}`"), p.tensor()));
        let mut operands = inputs.chain([("the targets".to_string(), &self.targets)]).chain(parameters);
        if let Some((name, _)) = operands.find(|(_, tensor)| !is_finite(tensor)) {
            return Some(name);
        }
        let non_finite: Arc<Mutex<Option<String>>> = Arc::default();
        let mut guards = Vec::new();
        for (name, info) in &self.modules {
            let (non_finite, described) = (non_finite.clone(), format!("the output of `{name}` ({})", info.class()));
            let observe = move |_: &[&Tensor], output: &Tensor| {
                let mut non_finite = lock(&non_finite);
                if non_finite.is_none() && !is_finite(output) {
                    *non_finite = Some(described.clone());
                }
                None
            };
            // A zero-sized layer has no unique address and is observed through its enclosing module.
            guards.extend((self.observe)(name, Box::new(observe)));
        }
        let output = (self.output)().ok()?;
        drop(guards);
        if let Some(name) = lock(&non_finite).take() {
            return Some(name);
        }
        if !is_finite(&output) {
            return Some("the output of the model".to_string());
        }
        let loss = (self.loss)(&output).ok()?;
        (!is_finite(&loss)).then(|| "the loss; the output of the model is finite".to_string())
    }
}

/// Returns false if a float tensor has an element that is NaN or infinite.
pub(super) fn is_finite(x: &Tensor) -> bool {
    if !x.dtype().is_float() {
        return true;
    }
    let all = ops::isfinite(&x.detach()).and_then(|finite| ops::all(&finite, ..));
    all.and_then(|all| all.try_item::<bool>()).unwrap_or(true)
}
