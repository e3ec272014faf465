//! Spectral normalization.

use super::Parametrization;
use crate::module::Module;
use crate::parameter::{Buffer, TrainingMode};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, Tensor, no_grad, ops, unwrap};
use std::sync::OnceLock;

/// The parametrization that divides a weight, as a matrix with one row per output, by an estimate of its largest
/// singular value σ: spectral normalization (Miyato et al. 2018). The map then has Lipschitz constant about 1.
///
/// σ = uᵀ·W·v. Every forward pass in training improves u ← W·v/‖W·v‖ and v ← Wᵀ·u/‖Wᵀ·u‖ by iterations of the power
/// method, by default one; gradients treat both as constants. The initial vectors are random vectors, improved by 15
/// iterations. Names follow PyTorch's `parametrizations.spectral_norm`: `parametrizations.weight.original`, and the
/// buffers `parametrizations.weight.0._u` and `parametrizations.weight.0._v`.
///
/// ```
/// use pellucid::nn::{Linear, Parametrized, Reparametrized, SpectralNorm};
/// let layer = Parametrized::new(Linear::new(3, 2), SpectralNorm::new());
/// let weight = layer.weight();
/// // σ³² is the largest eigenvalue of (W·Wᵀ)¹⁶, and nearly its norm.
/// let power = (0..4).fold(weight.matmul(&weight.t()), |power, _| power.matmul(&power));
/// let largest = power.norm(2.0, ..).item::<f32>().powf(1.0 / 32.0);
/// assert!((largest - 1.0).abs() < 0.1);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "spectral_norm")]
#[derive(Clone, Debug)]
pub struct SpectralNorm {
    vectors: OnceLock<SingularVectors>,
    /// The number of iterations in every forward pass in training.
    #[doc(alias = "n_power_iterations")]
    pub iterations: usize,
    /// The lower bound of the norms by which vectors are divided.
    pub eps: f64,
    training: TrainingMode,
}

/// The estimated singular vectors of a weight.
#[derive(Clone, Debug)]
struct SingularVectors {
    /// The left singular vector, `[outputs]`.
    u: Buffer,
    /// The right singular vector.
    v: Buffer,
    /// The axis of the weight that counts outputs.
    outputs: usize,
}

impl Default for SpectralNorm {
    fn default() -> SpectralNorm {
        SpectralNorm { vectors: OnceLock::new(), iterations: 1, eps: 1e-12, training: TrainingMode::new() }
    }
}

const OP: &str = "spectral_norm";

impl SpectralNorm {
    /// Creates the parametrization, with one iteration in every forward pass and eps 10⁻¹².
    pub fn new() -> SpectralNorm {
        SpectralNorm::default()
    }

    /// Sets the number of iterations in every forward pass, at least 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is 0.
    #[panicking_form]
    pub fn try_iterations(self, iterations: usize) -> Result<SpectralNorm> {
        OptionRange::COUNT.check(OP, "the number of iterations", iterations as f64, 1.0)?;
        Ok(SpectralNorm { iterations, ..self })
    }

    /// Sets the lower bound of the norms by which vectors are divided, 10⁻¹² by default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<SpectralNorm> {
        OptionRange::NONNEGATIVE.check(OP, "eps", eps, 1e-12)?;
        Ok(SpectralNorm { eps, ..self })
    }

    /// Returns the left singular vector, `[outputs]`, once a layer is wrapped.
    pub fn u(&self) -> Option<&Buffer> {
        self.vectors.get().map(|vectors| &vectors.u)
    }

    /// Returns the right singular vector, once a layer is wrapped.
    pub fn v(&self) -> Option<&Buffer> {
        self.vectors.get().map(|vectors| &vectors.v)
    }

    fn vectors(&self) -> Result<&SingularVectors> {
        let help = "the singular vectors are not set; wrap a layer by Parametrized::new()";
        self.vectors.get().ok_or_else(|| Error::invalid(OP, help))
    }
}

impl SingularVectors {
    /// Returns random vectors for a weight.
    fn random(weight: &Tensor, outputs: usize) -> Result<SingularVectors> {
        let w = weight_matrix(weight, outputs)?;
        let random = |length: usize| {
            let values = ops::randn(length, w.dtype())?.try_to(w.device())?;
            ops::normalize(&values, 2.0, 0, 1e-12).map(Buffer::new)
        };
        Ok(SingularVectors { u: random(w.shape()[0])?, v: random(w.shape()[1])?, outputs })
    }

    /// Runs iterations of the power method.
    fn iterate(&self, original: &Tensor, iterations: usize, eps: f64) -> Result<()> {
        let _off = no_grad();
        let w = weight_matrix(&original.detach(), self.outputs)?;
        let normalized_product = |w: &Tensor, x: &Tensor| ops::normalize(&ops::matmul(w, x)?, 2.0, 0, eps);
        for _ in 0..iterations {
            let u = normalized_product(&w, &self.v)?;
            let v = normalized_product(&ops::transpose(&w, 0, 1)?, &u)?;
            ops::copy_(&self.u, &u)?;
            ops::copy_(&self.v, &v)?;
        }
        Ok(())
    }
}

/// Returns a weight as a matrix with one row per output.
fn weight_matrix(weight: &Tensor, outputs: usize) -> Result<Tensor> {
    ops::flatten(&ops::movedim(weight, [outputs as isize], [0])?, 1, -1)
}

impl Module for SpectralNorm {}

impl Visit for SpectralNorm {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        if let Some(SingularVectors { u, v, .. }) = self.vectors.get() {
            visitor.field("_u", u);
            visitor.field("_v", v);
        }
        visitor.field("training", &self.training);
    }
}

impl Parametrization for SpectralNorm {
    fn forward(&self, original: &Tensor) -> Result<Tensor> {
        let SingularVectors { u, v, outputs } = self.vectors()?;
        // The vectors are copied, because a later iteration may overwrite them before the backward pass.
        let (u, v) = (ops::copy(u)?, ops::copy(v)?);
        let sigma = ops::dot(&u, &ops::matmul(&weight_matrix(original, *outputs)?, &v)?)?;
        ops::div(original, &sigma)
    }

    fn initialize(&self, weight: &Tensor, outputs: usize) -> Result<Tensor> {
        let vectors = SingularVectors::random(weight, outputs)?;
        vectors.iterate(weight, 15, self.eps)?;
        self.vectors.get_or_init(|| vectors);
        Ok(weight.clone())
    }

    fn is_initialized(&self) -> bool {
        self.vectors.get().is_some()
    }

    fn update(&self, original: &Tensor) -> Result<()> {
        let iterations = if self.training.get() { self.iterations } else { 0 };
        self.vectors()?.iterate(original, iterations, self.eps)
    }
}
