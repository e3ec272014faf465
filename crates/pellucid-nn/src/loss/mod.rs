//! Loss functions.
//!
//! Each loss has two forms: a struct with PyTorch's name, whose fields are its options, and a function with the
//! defaults.
//!
//! ```
//! use pellucid::nn::loss::{CrossEntropyLoss, Loss, cross_entropy};
//! use pellucid::Tensor;
//!
//! let (logits, classes) = (Tensor::from([[2.0f32, 0.0, -1.0], [0.0, 1.0, 0.0]]), Tensor::from([0i64, 2]));
//! let smoothed = CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() };
//! let (loss, d_logits) = smoothed.forward_with_grad(&logits, &classes);
//! assert_eq!((loss.rank(), d_logits.shape()), (0, logits.shape()));
//! assert!(loss.item::<f32>() > 0.0 && cross_entropy(&logits, &classes).item::<f32>() > 0.0);
//! ```
//!
//! The losses of this module are modules, usually without parameters, so models can contain them and hooks can observe
//! them.
//!
//! The value is a 0-d tensor that stays on the device; [`Tensor::item`] reads it. Without reduction, there is one value
//! per sample or per element. A loss of two inputs is a [`Loss`], as is a pointer to a loss (`&L`, `Box<dyn Loss>`,
//! `Arc<L>`); [`from_fn`] makes a loss from a function. Losses of more inputs have methods of the same names.

mod adaptive;
mod batch_weight;
mod classes;
mod compare;
mod ctc;
mod projected;
mod regression;
mod targets;
mod with_targets;

crate::exports::exports! {
    /// The names of all losses; `tests/reference/losses.rs` has a row for each.
    LOSSES:
    adaptive::{AdaptiveLogSoftmaxWithLoss};
    classes::{
        BceLoss, BceWithLogitsLoss, CrossEntropyLoss, HingeEmbeddingLoss, MultiLabelMarginLoss,
        MultiLabelSoftMarginLoss, MultiMarginLoss, NllLoss, SoftMarginLoss,
    } and {
        binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy, hinge_embedding_loss, multi_margin_loss,
        multilabel_margin_loss, multilabel_soft_margin_loss, nll_loss, soft_margin_loss,
    };
    compare::{CosineEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, TripletMarginWithDistanceLoss} and {
        cosine_embedding_loss, margin_ranking_loss, triplet_margin_loss,
    };
    ctc::{CtcLoss} and {ctc_loss};
    projected::{LinearCrossEntropyLoss};
    regression::{GaussianNllLoss, HuberLoss, KlDivLoss, L1Loss, MseLoss, PoissonNllLoss, SmoothL1Loss} and {
        gaussian_nll_loss, huber_loss, kl_div, l1_loss, mse_loss, poisson_nll_loss, smooth_l1_loss,
    };
}
pub use batch_weight::BatchWeight;
pub use pellucid_tensor::ops::{CrossEntropyOptions, Reduction};
pub(crate) use targets::TargetForm;
use targets::Targets;
pub use with_targets::WithTargets;

use crate::delegate::delegate;
use crate::visit::{Visit, Visitor};
use pellucid_tensor::{DType, GradOptions, Result, Shape, Tensor, enable_grad, grad, unwrap};
use std::fmt;
use std::sync::Arc;

/// A loss of a model's output and its target.
///
/// Implement [`try_forward`](Loss::try_forward), or use [`from_fn`] for a function of two tensors. A loss may have
/// parameters and buffers, as a module does: `#[derive(Module)]` implements [`Visit`]. A trainer trains the parameters,
/// and a run saves them. Losses are thread-safe, as modules are, so a trainer can move to another thread.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a loss",
    note = "a loss implements `Loss` and derives `Module`; `loss::from_fn(f)` is the loss of a function `f(logits, y)`",
    note = "a loss is `Send` and `Sync`: share values with `Arc` and atomics, not with `Rc`, `Cell` or `RefCell`"
)]
pub trait Loss: Visit {
    /// Returns the loss of `logits` (scores, predictions) and the target `y`.
    ///
    /// The losses of this module reject invalid targets: class indices that do not exist, binary targets that are
    /// not in [0, 1], and signs other than 1 and −1. In captured steps and on other devices, where the values are not
    /// read, an invalid target makes the loss and its gradient NaN.
    ///
    /// # Errors
    /// The errors of the operations if shapes or dtypes do not match.
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor>;

    /// Returns shape and dtype of the targets for logits of this shape and dtype; `None` if the loss does not define
    /// them, see [`with_targets`](Loss::with_targets).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for logits without a class axis if the loss needs one.
    ///
    /// [`Error::ShapeMismatch`]: pellucid_tensor::Error::ShapeMismatch
    fn expected_targets(&self, _logits: &Shape, _dtype: DType) -> Result<Option<(Shape, DType)>> {
        Ok(None)
    }

    /// Returns true if the targets may also be probabilities: floats of the shape of the logits. A trainer then accepts
    /// both forms, even in one run, for example with MixUp in training but not in evaluation.
    fn accepts_probabilities(&self) -> bool {
        false
    }

    /// Checks the values of the targets of a batch, for logits of this shape, if the host can read them
    /// ([`Tensor::is_readable`]). A captured step calls it before a launch, which cannot reject a value: a class index
    /// that does not exist would make all parameters NaN. Nothing is checked by default.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] for a class index that does not exist; [`Error::InvalidArgument`] for another value
    /// for which the loss is not defined.
    ///
    /// [`Error::IndexOutOfBounds`]: pellucid_tensor::Error::IndexOutOfBounds
    /// [`Error::InvalidArgument`]: pellucid_tensor::Error::InvalidArgument
    fn check_targets(&self, _logits: &Shape, _y: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Returns the weight of the loss of a batch with targets `y` in the mean over several batches. By default the loss
    /// counts as a mean over samples. The losses of this module take sums, ignored classes and class weights into
    /// account.
    ///
    /// # Errors
    /// The errors of the operations.
    fn batch_weight(&self, _y: &Tensor) -> Result<BatchWeight> {
        Ok(BatchWeight::Samples)
    }

    /// Returns this loss with targets of this shape and dtype; see [`expected_targets`](Loss::expected_targets).
    fn with_targets(self, shape: impl Into<Shape>, dtype: DType) -> WithTargets<Self>
    where
        Self: Sized,
    {
        WithTargets::new(self, shape.into(), dtype)
    }

    /// Returns the loss.
    ///
    /// # Panics
    /// Panics with the error of [`try_forward`](Loss::try_forward) at the caller's line.
    #[track_caller]
    fn forward(&self, logits: &Tensor, y: &Tensor) -> Tensor {
        let _call = pellucid_tensor::note_call_location();
        unwrap(self.try_forward(logits, y))
    }

    /// Returns the loss and its gradient with respect to the logits, of their shape, bit for bit as autograd computes
    /// it. Without reduction, it is the gradient of the sum of all loss values. Both are detached. The graph of the
    /// logits is unchanged; continue with `logits.backward_with(BackwardOptions { gradient: Some(d_logits), .. })`.
    ///
    /// # Errors
    /// The errors of [`try_forward`](Loss::try_forward).
    fn try_forward_with_grad(&self, logits: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        let logits = tracked_leaf(logits);
        let (loss, [d_logits]) = with_gradients([&logits], || self.try_forward(&logits, y))?;
        Ok((loss, d_logits))
    }

    /// Returns the loss and its gradient, as [`try_forward_with_grad`](Loss::try_forward_with_grad) does.
    ///
    /// # Panics
    /// Panics with the error of [`try_forward_with_grad`](Self::try_forward_with_grad) at the caller's line.
    #[track_caller]
    fn forward_with_grad(&self, logits: &Tensor, y: &Tensor) -> (Tensor, Tensor) {
        unwrap(self.try_forward_with_grad(logits, y))
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<L: Loss + ?Sized> Loss for $pointer {
            delegate! {
                [**self]
                fn try_forward(self: &Self, logits: &Tensor, y: &Tensor) -> Result<Tensor>;
                fn expected_targets(self: &Self, logits: &Shape, dtype: DType) -> Result<Option<(Shape, DType)>>;
                fn accepts_probabilities(self: &Self) -> bool;
                fn check_targets(self: &Self, logits: &Shape, y: &Tensor) -> Result<()>;
                fn batch_weight(self: &Self, y: &Tensor) -> Result<BatchWeight>;
                #[track_caller]
                fn forward(self: &Self, logits: &Tensor, y: &Tensor) -> Tensor;
                fn try_forward_with_grad(self: &Self, logits: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)>;
                #[track_caller]
                fn forward_with_grad(self: &Self, logits: &Tensor, y: &Tensor) -> (Tensor, Tensor);
            }
        }
    )*};
}
pointers!(&L, &mut L, Box<L>, Arc<L>);

/// A loss that a function computes; see [`from_fn`].
#[derive(Clone)]
pub struct FnLoss<F>(F);

impl<F> fmt::Debug for FnLoss<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnLoss").finish_non_exhaustive()
    }
}

/// Returns a loss that calls `f` with the logits and the targets.
///
/// ```
/// use pellucid::nn::loss::{Loss, from_fn};
/// use pellucid::{Tensor, ops};
/// let distance = from_fn(|logits, y| ops::mean(&ops::abs(&ops::sub(logits, y)?)?, ..));
/// assert_eq!(distance.forward(&Tensor::from([1.0f32, 4.0]), &Tensor::from([2.0f32, 2.0])).item::<f32>(), 1.5);
/// ```
pub fn from_fn<F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync>(f: F) -> FnLoss<F> {
    FnLoss(f)
}

/// The function has no parts. A loss with parameters is a struct.
impl<F: Send + Sync> Visit for FnLoss<F> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> Loss for FnLoss<F> {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        (self.0)(logits, y)
    }
}

/// Returns the values as a new leaf that requires a gradient.
fn tracked_leaf(x: &Tensor) -> Tensor {
    let x = x.detach();
    // The loss returns an error for dtypes other than floats.
    if x.dtype().is_float() { x.requires_grad_(true) } else { x }
}

/// Returns a loss and its gradients with respect to the given leaves.
fn with_gradients<const K: usize>(
    leaves: [&Tensor; K],
    loss: impl FnOnce() -> Result<Tensor>,
) -> Result<(Tensor, [Tensor; K])> {
    let _on = enable_grad();
    let loss = loss()?;
    let gradients = grad(&[&loss], &leaves, GradOptions::default())?;
    Ok((
        loss.detach(),
        gradients.try_into().unwrap_or_else(|_| unreachable!("grad() must return one gradient for each leaf")),
    ))
}

/// Defines the struct of a loss, its defaults, and the function with the defaults.
macro_rules! declared {
    ($(#[$doc:meta])* $name:ident, $function:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }
        ($($input:ident),*)) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The reduction of the loss values; default mean.
            pub reduction: Reduction,
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* reduction: Reduction::Mean }
            }
        }

        impl crate::Module for $name {}

        impl crate::Visit for $name {
            fn visit(&self, visitor: &mut crate::Visitor<'_>) {
                visitor.module(self, None);
            }
        }

        #[doc = concat!("Computes the mean of [`", stringify!($name), "`] with default options, a 0-d tensor.")]
        ///
        /// # Panics
        #[doc = concat!("Panics if [`", stringify!($name), "`] returns an error.")]
        #[track_caller]
        pub fn $function($($input: &Tensor),*) -> Tensor {
            $name::default().forward($($input),*)
        }
    };
}

/// Defines losses of two inputs. `of` states the form of the targets, a [`TargetForm`], and `where` their values.
/// Errors name the function.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident, $function:ident of $form:ident { $($fields:tt)* }
        |$loss:ident, $x:ident, $y:ident| where $targets:expr => $body:expr;
    )*) => {$(
        declared! { $(#[$doc])* $name, $function { $($fields)* } ($x, $y) }

        impl $name {
            fn targets(&self) -> Targets<'_> {
                let $loss = self;
                _ = $loss;
                $targets
            }
        }

        impl Loss for $name {
            fn try_forward(&self, $x: &Tensor, $y: &Tensor) -> Result<Tensor> {
                let $loss = self;
                crate::call::call($loss, &[$x, $y], || {
                    TargetForm::$form.check(stringify!($function), $x, $y)?;
                    $loss.targets().check_if_readable(stringify!($function), $x.shape(), $y)?;
                    $body
                })
            }
            fn batch_weight(&self, y: &Tensor) -> Result<crate::loss::BatchWeight> {
                self.targets().batch_weight(self.reduction, y)
            }
            fn expected_targets(
                &self,
                logits: &pellucid_tensor::Shape,
                dtype: pellucid_tensor::DType,
            ) -> Result<Option<(pellucid_tensor::Shape, pellucid_tensor::DType)>> {
                TargetForm::$form.expected(logits, dtype)
            }
            fn accepts_probabilities(&self) -> bool {
                matches!(TargetForm::$form, TargetForm::Classes)
            }
            fn check_targets(&self, logits: &pellucid_tensor::Shape, y: &Tensor) -> Result<()> {
                self.targets().check_if_readable(stringify!($function), logits, y)
            }
        }
    )*};
}

/// Defines losses of more than two inputs; `by` lists the inputs that have a gradient.
macro_rules! losses_of_many {
    ($($(#[$doc:meta])* $name:ident, $function:ident { $($fields:tt)* }
        |$loss:ident, $($input:ident),*| by [$($by:ident),*] $body:expr;)*) => {$(
        declared! { $(#[$doc])* $name, $function { $($fields)* } ($($input),*) }
        methods_of_many! {
            [$name] |$loss, $($input),*| by [$($by),*] $body
        }
    )*};
}

/// Defines the methods of losses of more than two inputs.
macro_rules! methods_of_many {
    ([$($name:tt)*] |$loss:ident, $($input:ident),*| by [$($by:ident),*] $body:expr) => {
        impl $($name)* {
            /// Returns the loss.
            ///
            /// # Errors
            /// The errors of the operation of the same name in [`ops`].
            #[panicking_form]
            pub fn try_forward(&self, $($input: &Tensor),*) -> Result<Tensor> {
                let $loss = self;
                crate::call::call($loss, &[$($input),*], || $body)
            }

            #[doc = concat!("Returns the loss and its gradients with respect to `", stringify!($($by),*), "`; see")]
            /// [`Loss::try_forward_with_grad`](crate::loss::Loss::try_forward_with_grad).
            ///
            /// # Errors
            /// The errors of [`try_forward`](Self::try_forward).
            #[panicking_form]
            pub fn try_forward_with_grad(
                &self,
                $($input: &Tensor),*
            ) -> Result<(Tensor, [Tensor; [$(stringify!($by)),*].len()])> {
                $(let $by = &tracked_leaf($by);)*
                with_gradients([$($by),*], || self.try_forward($($input),*))
            }
        }
    };
}

use {declared, losses, losses_of_many, methods_of_many};
