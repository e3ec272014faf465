//! Layers whose weight is a function of the trained parameter.

use super::weighted::{Reparametrized, Weighted, check_new_weight, visit_others};
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::module::{Module, as_dyn, display_as_tree};
use crate::parameter::{Buffer, Parameter};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, is_capturing, no_grad, ops, unwrap};

/// A map from a trained parameter, the original, to a weight of the same shape and dtype; see [`Parametrized`].
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module, Parametrization, Parametrized, Reparametrized};
/// use pellucid::{DType, Result, Tensor, ops};
///
/// /// Symmetric matrices: the upper triangle, and its transpose below.
/// #[derive(Module)]
/// struct Symmetric;
///
/// impl Parametrization for Symmetric {
///     fn forward(&self, original: &Tensor) -> Result<Tensor> {
///         Ok(ops::triu(original, 0)? + ops::triu(original, 1)?.t())
///     }
/// }
///
/// let layer = Parametrized::new(Linear::new(3, 3), Symmetric);
/// let weight = layer.weight();
/// assert_eq!(weight.to_vec::<f32>(), weight.t().to_vec::<f32>());
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Parametrization: Module {
    /// The name of the original in state dicts.
    const ORIGINAL: &'static str = "parametrizations.weight.original";

    /// The name of the parametrization in state dicts, the prefix of the names of its parameters and buffers.
    const NAME: &'static str = "parametrizations.weight.0";

    /// Returns the weight for an original, by differentiable operations.
    ///
    /// # Errors
    /// The errors of the operations.
    fn forward(&self, original: &Tensor) -> Result<Tensor>;

    /// Returns an original whose weight is `weight`. By default it is `weight` itself. If no original has this weight,
    /// for example because the weight is not orthogonal, the result is the original of a nearby weight. A
    /// parametrization with parameters or buffers that depend on the weight sets their values.
    ///
    /// # Errors
    /// The errors of the operations.
    fn right_inverse(&self, weight: &Tensor) -> Result<Tensor> {
        Ok(weight.clone())
    }

    /// Returns the initial original for the weight of a layer that is being wrapped: by default the result of
    /// [`right_inverse`](Self::right_inverse). `outputs` is the axis of the weight that counts outputs.
    ///
    /// # Errors
    /// The errors of the operations.
    fn initialize(&self, weight: &Tensor, outputs: usize) -> Result<Tensor> {
        let _ = outputs;
        self.right_inverse(weight)
    }

    /// Returns true if the parametrization has parameters or buffers that depend on the weight of a layer. It then
    /// cannot be used for another layer, because its clones share these values.
    fn is_initialized(&self) -> bool {
        false
    }

    /// Changes the buffers of the parametrization before a forward pass of the layer. By default it does nothing.
    ///
    /// # Errors
    /// The errors of the operations.
    fn update(&self, original: &Tensor) -> Result<()> {
        let _ = original;
        Ok(())
    }
}

/// A layer whose weight is a function of the trained parameter: PyTorch's `nn.utils.parametrize`.
///
/// The layer's own parameter becomes the original, so an optimizer of this parameter still trains it. Names follow
/// PyTorch: the original is `parametrizations.weight.original`, and the parts of the parametrization are under
/// `parametrizations.weight.0`, unless the [`Parametrization`] defines other names. The methods of [`Reparametrized`]
/// return the weight and the original, set the weight and remove the parametrization. Parametrizations are
/// [`WeightNorm`](crate::WeightNorm), [`SpectralNorm`](crate::SpectralNorm), [`Orthogonal`](crate::Orthogonal) and your
/// own types.
///
/// ```
/// use pellucid::nn::{Linear, Module, Orthogonal, Parametrized, Reparametrized};
/// use pellucid::Tensor;
/// let layer = Parametrized::new(Linear::new(4, 4), Orthogonal::new());
/// let weight = layer.weight();
/// let product = weight.matmul(&weight.t());
/// assert!((product - Tensor::eye(4, weight.dtype())).abs().max(..).item::<f32>() < 1e-5);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "register_parametrization")]
#[derive(Clone, Debug)]
pub struct Parametrized<L, P> {
    layer: L,
    parametrization: P,
}

/// The name of the layer in errors.
const OP: &str = "parametrized";

impl<L: Weighted, P: Parametrization> Parametrized<L, P> {
    /// Wraps this layer, whose parameter becomes the original of its weight.
    ///
    /// # Errors
    /// The errors of [`Parametrization::initialize`]; [`Error::InvalidArgument`] for a parametrization that belongs to
    /// another layer, and for an [`Embedding`](crate::Embedding) with `max_norm`; [`Error::ShapeMismatch`] and
    /// [`Error::DTypeMismatch`] if the original or its weight does not have the shape and dtype of the layer's weight.
    /// On error the layer is not changed.
    #[panicking_form]
    pub fn try_new(layer: L, parametrization: P) -> Result<Parametrized<L, P>> {
        layer.check_replaceable(OP)?;
        if parametrization.is_initialized() {
            let reason = "the parametrization already belongs to another layer, and its clones share its values; \
                          create a new parametrization";
            return Err(Error::invalid(OP, reason));
        }
        let _off = no_grad();
        let weight = layer.weight();
        let original = parametrization.initialize(&weight.detach(), L::OUTPUTS)?;
        for found in [&original, &parametrization.forward(&original)?] {
            if found.shape() != weight.shape() {
                let help = "the original and its weight must have the shape of the layer's weight";
                return Err(Error::shapes(OP, [weight.shape(), found.shape()], help));
            }
            if found.dtype() != weight.dtype() {
                let help = "the original and its weight must have the dtype of the layer's weight";
                return Err(Error::dtypes(OP, [weight.dtype(), found.dtype()], help));
            }
        }
        ops::copy_(weight, &original)?;
        Ok(Parametrized { layer, parametrization })
    }

    /// Returns the parametrization.
    pub fn parametrization(&self) -> &P {
        &self.parametrization
    }

    /// Returns the buffers of the parametrization with copies of their values, to restore them if the input is
    /// rejected. Recording a step changes no values, so the list is then empty.
    fn buffer_values(&self) -> Result<Vec<(Buffer, Tensor)>> {
        if is_capturing() {
            return Ok(Vec::new());
        }
        let buffers = as_dyn(&&self.parametrization).unnamed_buffers().into_iter();
        buffers.map(|buffer| ops::copy(&buffer.detach()).map(|values| (buffer, values))).collect()
    }
}

impl<L: Weighted, P: Parametrization> Reparametrized for Parametrized<L, P> {
    type Layer = L;

    fn original(&self) -> &Parameter {
        self.layer.weight()
    }

    fn try_weight(&self) -> Result<Tensor> {
        self.parametrization.forward(self.original())
    }

    fn try_set_weight(&self, weight: &Tensor) -> Result<()> {
        let _off = no_grad();
        check_new_weight(OP, self.original(), weight)?;
        ops::copy_(self.original(), &self.parametrization.right_inverse(&weight.detach())?)
    }

    fn try_remove(self) -> Result<L> {
        let _off = no_grad();
        ops::copy_(self.original(), &self.try_weight()?)?;
        Ok(self.layer)
    }
}

impl<L: Weighted, P: Parametrization> Module for Parametrized<L, P> {}

impl<L: Weighted, P: Parametrization> Visit for Parametrized<L, P> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visit_others(&self.layer, P::ORIGINAL, visitor);
        visitor.field_at(P::NAME, &self.parametrization);
    }
}

impl<L: Weighted, P: Parametrization> Layer for Parametrized<L, P> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if self.input_dtype().is_float() {
            check_input_dtype(OP, x, self.original())?;
        }
        let before = self.buffer_values()?;
        let updated = self.parametrization.update(self.original());
        let y = updated.and_then(|()| self.layer.compute_with(&self.try_weight()?, x));
        if y.is_err() {
            let _off = no_grad();
            before.iter().try_for_each(|(buffer, values)| ops::copy_(buffer, values))?;
        }
        y
    }

    fn input_dtype(&self) -> DType {
        self.layer.input_dtype()
    }
}

display_as_tree! {
    [L: Weighted, P: Parametrization] Parametrized<L, P>;
}
