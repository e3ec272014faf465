//! Losses: functions whose value training makes small.
//!
//! Each comes in two forms: a struct by PyTorch's name, whose fields are its options, and a function with the defaults.
//!
//! ```
//! use pellucid_nn::loss::{CrossEntropyLoss, Loss, cross_entropy};
//! use pellucid_tensor::Tensor;
//!
//! let (logits, classes) = (Tensor::from([[2.0f32, 0.0, -1.0], [0.0, 1.0, 0.0]]), Tensor::from([0i64, 2]));
//! let smoothed = CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() };
//! let (loss, d_logits) = smoothed.forward_with_grad(&logits, &classes);
//! assert_eq!((loss.rank(), d_logits.shape()), (0, logits.shape()));
//! assert!(loss.item::<f32>() > 0.0 && cross_entropy(&logits, &classes).item::<f32>() > 0.0);
//! ```
//!
//! Losses are modules, mostly without parameters, so that they can be parts of one, and be hooked.
//!
//! The value stays on the device, a 0-d tensor (unless every sample keeps its own); [`Tensor::item`] reads it. A
//! loss of two inputs is a [`Loss`]; those of more have methods of the same names.

mod adaptive;
mod classes;
mod compare;
mod ctc;
mod kind;
mod projected;
mod regression;
mod scale;

pub use adaptive::AdaptiveLogSoftmaxWithLoss;
pub use classes::{
    BceLoss, BceWithLogitsLoss, CrossEntropyLoss, HingeEmbeddingLoss, MultiLabelMarginLoss, MultiLabelSoftMarginLoss,
    MultiMarginLoss, NllLoss, SoftMarginLoss, binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy,
    hinge_embedding, multi_margin, multilabel_margin, multilabel_soft_margin, nll, soft_margin,
};
pub use compare::{
    CosineEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, TripletMarginWithDistanceLoss, cosine_embedding,
    margin_ranking, triplet_margin,
};
pub use ctc::{CtcLoss, ctc};
pub use kind::{LossKind, WithTargets};
pub use pellucid_tensor::ops::{CrossEntropy, Reduction};
pub use projected::LinearCrossEntropyLoss;
pub use regression::{
    GaussianNllLoss, HuberLoss, KlDivLoss, L1Loss, MseLoss, PoissonNllLoss, SmoothL1Loss, gaussian_nll, huber, kl_div,
    l1, mse, poisson_nll, smooth_l1,
};
pub use scale::{GradKind, infer_grad_scale};

use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, Grad, Result, Shape, Tensor, enable_grad, grad, unwrap};

/// A loss of what a model puts out and what it should.
///
/// One method is written, [`try_forward`](Loss::try_forward); a function of two tensors is a loss as well.
pub trait Loss {
    /// The loss of `logits` (scores, predictions) against the truth `y`.
    ///
    /// # Errors
    /// Those of the operations to which the two do not fit.
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor>;

    /// Which targets it takes; `None` where the loss does not say, see [`with_targets`](Loss::with_targets).
    fn kind(&self) -> Option<LossKind> {
        None
    }

    /// Returns the loss's own parameters by name; none unless it says so. A [compiled](crate::graph) step refuses an
    /// optimizer that leaves them out.
    fn trainable(&self) -> Vec<(String, Parameter)> {
        Vec::new()
    }

    /// The same loss, of targets of this shape and dtype: its [`kind`](Loss::kind).
    fn with_targets(self, shape: impl Into<Shape>, dtype: DType) -> WithTargets<Self>
    where
        Self: Sized,
    {
        WithTargets::new(self, shape.into(), dtype)
    }

    /// [`try_forward`](Loss::try_forward), or a panic.
    ///
    /// # Panics
    /// With the error, at the caller's line.
    #[track_caller]
    fn forward(&self, logits: &Tensor, y: &Tensor) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(logits, y))
    }

    /// The loss, and its gradient with respect to the logits, of their shape: what autograd computes, bit for bit. Of a
    /// loss that gives every sample's value, the gradient of their sum. Neither has a history; the logits' own is left
    /// alone, and goes on with `logits.backward_with(Backward { gradient: Some(d_logits), .. })`.
    ///
    /// # Errors
    /// Those of [`try_forward`](Loss::try_forward).
    fn try_forward_with_grad(&self, logits: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        let logits = tracked(logits);
        let (loss, [d_logits]) = with_gradients([&logits], || self.try_forward(&logits, y))?;
        Ok((loss, d_logits))
    }

    /// [`try_forward_with_grad`](Loss::try_forward_with_grad), or a panic.
    ///
    /// # Panics
    /// With the error, at the caller's line.
    #[track_caller]
    fn forward_with_grad(&self, logits: &Tensor, y: &Tensor) -> (Tensor, Tensor) {
        unwrap(self.try_forward_with_grad(logits, y))
    }
}

impl<F: Fn(&Tensor, &Tensor) -> Result<Tensor>> Loss for F {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        self(logits, y)
    }
}

/// The same values as a leaf of their own.
fn tracked(x: &Tensor) -> Tensor {
    let x = x.detach();
    // What is no float is refused by the loss.
    if x.dtype().is_float() { x.requires_grad_(true) } else { x }
}

/// A loss, and its gradients with respect to leaves that it is computed from.
fn with_gradients<const K: usize>(
    leaves: [&Tensor; K],
    loss: impl FnOnce() -> Result<Tensor>,
) -> Result<(Tensor, [Tensor; K])> {
    let _on = enable_grad();
    let loss = loss()?;
    let gradients = grad(&[&loss], &leaves, Grad::default())?;
    Ok((loss.detach(), gradients.try_into().unwrap_or_else(|_| unreachable!("one for every leaf"))))
}

/// The struct of a loss, its defaults, and the function of these.
macro_rules! declared {
    ($(#[$doc:meta])* $name:ident, $function:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }
        ($($input:ident),*)) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// What happens with the values of the samples; their mean.
            pub reduction: Reduction,
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* reduction: Reduction::Mean }
            }
        }

        impl crate::Module for $name {
            fn visit(&self, visitor: &mut crate::Visitor<'_>) {
                visitor.module(self, None);
            }
        }

        #[doc = concat!("The mean of [`", stringify!($name), "`] with its other options at their defaults, a 0-d tensor.")]
        ///
        /// # Panics
        #[doc = concat!("Where [`", stringify!($name), "`] returns an error.")]
        #[track_caller]
        pub fn $function($($input: &Tensor),*) -> Tensor {
            $name::default().forward($($input),*)
        }
    };
}

/// Losses of two inputs.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident, $function:ident $(as $kind:ident)? { $($fields:tt)* } |$loss:ident, $x:ident, $y:ident| $body:expr;)*) => {$(
        declared! { $(#[$doc])* $name, $function { $($fields)* } ($x, $y) }

        impl Loss for $name {
            fn try_forward(&self, $x: &Tensor, $y: &Tensor) -> Result<Tensor> {
                let $loss = self;
                crate::call::call($loss, &[$x, $y], || $body)
            }
            $(fn kind(&self) -> Option<$crate::loss::LossKind> {
                Some($crate::loss::LossKind::$kind)
            })?
        }
        crate::loss::borrowed! { $name }
    )*};
}

/// A borrowed loss is that loss. (One implementation for all losses would overlap with that of functions.)
macro_rules! borrowed {
    ($name:ident $(<$generic:ident>)?) => {
        impl$(<$generic: Loss>)? Loss for &$name$(<$generic>)? {
            fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
                (**self).try_forward(logits, y)
            }

            fn kind(&self) -> Option<crate::loss::LossKind> {
                (**self).kind()
            }

            fn trainable(&self) -> Vec<(String, crate::Parameter)> {
                (**self).trainable()
            }
        }
    };
}

/// Losses of more inputs, which differ in those that they have a gradient by.
macro_rules! losses_of_many {
    ($($(#[$doc:meta])* $name:ident, $function:ident { $($fields:tt)* }
        |$loss:ident, $($input:ident),*| by [$($by:ident),*] $body:expr;)*) => {$(
        declared! { $(#[$doc])* $name, $function { $($fields)* } ($($input),*) }
        methods_of_many! {
            [$name] |$loss, $($input),*| by [$($by),*] $body
        }
    )*};
}

/// Their methods.
macro_rules! methods_of_many {
    ([$($name:tt)*] |$loss:ident, $($input:ident),*| by [$($by:ident),*] $body:expr) => {
        impl $($name)* {
            /// The loss.
            ///
            /// # Errors
            /// Those of the operation of this name in [`ops`].
            pub fn try_forward(&self, $($input: &Tensor),*) -> Result<Tensor> {
                let $loss = self;
                crate::call::call($loss, &[$($input),*], || $body)
            }

            /// [`try_forward`](Self::try_forward), or a panic.
            ///
            /// # Panics
            /// With the error, at the caller's line.
            #[track_caller]
            pub fn forward(&self, $($input: &Tensor),*) -> Tensor {
                let _call = pellucid_tensor::called();
                unwrap(self.try_forward($($input),*))
            }

            #[doc = concat!("The loss, and its gradients with respect to `", stringify!($($by),*), "`, as autograd computes them; see")]
            /// [`Loss::try_forward_with_grad`](crate::loss::Loss::try_forward_with_grad).
            ///
            /// # Errors
            /// Those of [`try_forward`](Self::try_forward).
            pub fn try_forward_with_grad(
                &self,
                $($input: &Tensor),*
            ) -> Result<(Tensor, [Tensor; [$(stringify!($by)),*].len()])> {
                $(let $by = &tracked($by);)*
                with_gradients([$($by),*], || self.try_forward($($input),*))
            }

            /// [`try_forward_with_grad`](Self::try_forward_with_grad), or a panic.
            ///
            /// # Panics
            /// With the error, at the caller's line.
            #[track_caller]
            pub fn forward_with_grad(
                &self,
                $($input: &Tensor),*
            ) -> (Tensor, [Tensor; [$(stringify!($by)),*].len()]) {
                unwrap(self.try_forward_with_grad($($input),*))
            }
        }
    };
}

use {borrowed, declared, losses, losses_of_many, methods_of_many};

/// Refuses two shapes: broadcasting one of them would be a mistake more often than not.
fn same_shape(op: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    Err(Error::shapes(op, [x.shape(), y.shape()], "both must have one shape; reshape or expand one of them"))
}
