//! Spectral normalization.

use super::weighted::{Weighted, visit_others};
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::{Buffer, Parameter, TrainingMode};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};

/// Spectral normalization (Miyato et al. 2018): the weight of the layer, as a matrix with one row per output, is
/// divided by an estimate of its largest singular value σ. The map then has Lipschitz constant about 1.
///
/// σ = uᵀ·W·v. Every forward pass in training improves u ← W·v/‖W·v‖ and v ← Wᵀ·u/‖Wᵀ·u‖ by iterations of the power
/// method; gradients treat both as constants. Names follow PyTorch's `parametrizations.spectral_norm`:
/// `parametrizations.weight.original`, and the buffers `parametrizations.weight.0._u` and
/// `parametrizations.weight.0._v`.
///
/// ```
/// use pellucid::nn::{Linear, SpectralNorm};
/// let layer = SpectralNorm::new(Linear::new(3, 2));
/// let weight = layer.weight();
/// // σ³² is the largest eigenvalue of (W·Wᵀ)¹⁶, and nearly its norm.
/// let power = (0..4).fold(weight.matmul(&weight.t()), |power, _| power.matmul(&power));
/// let largest = power.norm(2.0, ..).item::<f32>().powf(1.0 / 32.0);
/// assert!((largest - 1.0).abs() < 0.1);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "spectral_norm")]
#[derive(Clone, Debug)]
pub struct SpectralNorm<L> {
    /// The left singular vector, `[outputs]`.
    pub u: Buffer,
    /// The right singular vector.
    pub v: Buffer,
    layer: L,
    iterations: usize,
    eps: f64,
    training: TrainingMode,
}

impl<L: Weighted> SpectralNorm<L> {
    /// Wraps this layer, with one iteration in every forward pass, after 15 initial ones from random vectors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(layer: L) -> Result<SpectralNorm<L>> {
        let w = weight_matrix::<L>(&layer.weight().detach())?;
        let random = |length: usize| ops::normalize(&ops::randn(length, w.dtype())?, 2.0, 0, 1e-12).map(Buffer::new);
        let (u, v) = (random(w.shape()[0])?, random(w.shape()[1])?);
        let norm = SpectralNorm { u, v, layer, iterations: 1, eps: 1e-12, training: TrainingMode::new() };
        norm.run_power_iterations(15)?;
        Ok(norm)
    }

    /// Sets the number of iterations in every forward pass, at least 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is 0.
    #[panicking_form]
    pub fn try_iterations(self, iterations: usize) -> Result<SpectralNorm<L>> {
        if iterations == 0 {
            return Err(Error::invalid("spectral_norm", "the number of iterations must be at least 1"));
        }
        Ok(SpectralNorm { iterations, ..self })
    }

    /// Sets the lower bound of the norms in divisions, 10⁻¹² by default.
    pub fn eps(self, eps: f64) -> SpectralNorm<L> {
        SpectralNorm { eps, ..self }
    }

    /// Returns the weight before the division.
    pub fn original(&self) -> &Parameter {
        self.layer.weight()
    }

    /// Returns the weight for the current singular vectors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_weight(&self) -> Result<Tensor> {
        let original = self.original();
        // Copies, since an iteration before the backward pass overwrites the vectors.
        let (u, v) = (ops::copy(&self.u)?, ops::copy(&self.v)?);
        let sigma = ops::dot(&u, &ops::matmul(&weight_matrix::<L>(original)?, &v)?)?;
        ops::div(original.tensor(), &sigma)
    }

    /// Runs iterations of the power method.
    fn run_power_iterations(&self, iterations: usize) -> Result<()> {
        let _off = no_grad();
        let w = weight_matrix::<L>(&self.original().detach())?;
        let onto = |w: &Tensor, x: &Tensor| ops::normalize(&ops::matmul(w, x)?, 2.0, 0, self.eps);
        for _ in 0..iterations {
            let u = onto(&w, &self.v)?;
            let v = onto(&ops::transpose(&w, 0, 1)?, &u)?;
            ops::copy_(&self.u, &u)?;
            ops::copy_(&self.v, &v)?;
        }
        Ok(())
    }
}

/// Returns a weight as a matrix with one row per output.
fn weight_matrix<L: Weighted>(weight: &Tensor) -> Result<Tensor> {
    ops::flatten(&ops::movedim(weight, [L::OUTPUTS as isize], [0])?, 1, -1)
}

impl<L: Weighted> Module for SpectralNorm<L> {}

impl<L: Weighted> Visit for SpectralNorm<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visit_others(&self.layer, "parametrizations.weight.original", visitor);
        visitor.field("parametrizations.weight.0._u", &self.u);
        visitor.field("parametrizations.weight.0._v", &self.v);
        visitor.field("training", &self.training);
    }
}

impl<L: Weighted> Layer for SpectralNorm<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_input_dtype("spectral_norm", x, self.original())?;
        if self.training.get() {
            self.run_power_iterations(self.iterations)?;
        }
        self.layer.compute_with(&self.try_weight()?, x)
    }
}

display_as_tree! {
    [L: Weighted] SpectralNorm<L>;
}
