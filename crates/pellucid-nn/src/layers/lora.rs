//! Low-rank adaptation: frozen layers with small trained updates.

use super::spatial::by_axes;
use super::switch::values_like;
use super::weighted::{Reparametrized, Weighted, check_new_weight, visit_others};
use super::{Conv, Embedding, Linear};
use crate::init::{self, uniform_bound};
use crate::layer::Layer;
use crate::module::{Module, display_as_tree, modules_in_role};
use crate::parameter::{Parameter, TrainingMode};
use crate::state::{StateDict, snapshot};
use crate::state_flag::StateFlag;
use crate::visit::{ModuleRole, Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::OptionRange;
use pellucid_tensor::{DType, Error, Result, Tensor, formula, is_capturing, no_grad, ops, unwrap};

/// A layer to which [`Lora`] adds a low-rank update. Its output is linear in its weight.
pub trait LoraTarget: Weighted {
    /// Creates A and B of this rank, with B·A = 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn low_rank_parameters(&self, rank: usize) -> Result<[Parameter; 2]>;

    /// Returns the output without bias for the weight B·A, without computing this product.
    ///
    /// # Errors
    /// The errors of [`Layer::compute`].
    fn compute_low_rank(&self, a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor>;

    /// Returns the product B·A, in the shape of W.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn low_rank_product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
}

impl LoraTarget for Linear {
    /// A `[r, in]`, uniform on ±1/√in, and B `[out, r]` of zeros.
    fn low_rank_parameters(&self, rank: usize) -> Result<[Parameter; 2]> {
        let (outputs, inputs) = (self.weight.shape()[0], self.weight.shape()[1]);
        let bound = uniform_bound(inputs);
        Ok([init::try_uniform([rank, inputs], -bound, bound)?, init::try_zeros([outputs, rank])?])
    }

    fn compute_low_rank(&self, a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
        ops::linear(&ops::linear(x, a, None)?, b, None)
    }

    fn low_rank_product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        ops::matmul(b, a)
    }
}

/// A is a convolution to r channels with the settings of the layer, and B is a convolution with one tap. In a layer
/// with groups, the groups share A.
impl<const N: usize> LoraTarget for Conv<N> {
    /// A `[r, in / groups, taps..]`, uniform on ±1/√(in / groups · taps), and B `[out, r, 1, ..]` of zeros.
    fn low_rank_parameters(&self, rank: usize) -> Result<[Parameter; 2]> {
        let (mut a, mut b) = (self.weight.shape().to_vec(), vec![1; 2 + N]);
        (b[0], b[1], a[0]) = (a[0], rank, rank);
        let bound = uniform_bound(a[1..].iter().product());
        Ok([init::try_uniform(a, -bound, bound)?, init::try_zeros(b)?])
    }

    fn compute_low_rank(&self, a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
        let groups = self.group_count();
        let mut times = vec![1; 2 + N];
        times[0] = groups;
        let inner = match groups {
            1 => self.output_with(a, None, x)?,
            _ => self.output_with(&ops::tile(a, times)?, None, x)?,
        };
        let conv = by_axes::<_, N>([ops::conv1d, ops::conv2d, ops::conv3d]);
        conv(&inner, b, None, ops::ConvOptions { groups, ..Default::default() })
    }

    fn low_rank_product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        ops::reshape(&ops::matmul(&ops::flatten(b, 1, -1)?, &ops::flatten(a, 1, -1)?)?, self.weight.shape())
    }
}

impl LoraTarget for Embedding {
    /// A `[r, rows]` of zeros, and B `[width, r]`, standard normal. The product (B·A)ᵀ has the shape of the table.
    fn low_rank_parameters(&self, rank: usize) -> Result<[Parameter; 2]> {
        let (rows, width) = (self.weight.shape()[0], self.weight.shape()[1]);
        Ok([init::try_zeros([rank, rows])?, init::try_normal([width, rank], 0.0, 1.0)?])
    }

    fn compute_low_rank(&self, a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
        ops::linear(&self.output(&ops::transpose(a, 0, 1)?, x)?, b, None)
    }

    fn low_rank_product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        ops::transpose(&ops::matmul(b, a)?, 0, 1)
    }
}

/// Low-rank adaptation (Hu et al. 2021): y = W·x + (α / r)·B·A·x, where the layer with its weight W is frozen, and only
/// A and B of the small rank r are trained. The layer is a [`Linear`], a [`Conv`] or an [`Embedding`].
///
/// Initially B·A = 0, so the outputs equal the outputs of the layer. The wrapper freezes the layer;
/// [`only_lora_trainable`] also freezes the rest of a model. Names follow the authors' library: `weight` and `bias` of
/// the layer keep their names, so files of the original model load with [`load_matching`](Module::load_matching). The
/// update has the parameters `lora_A` and `lora_B`. In a state dict, `lora_merged` says that `weight` includes the
/// update; a state dict without this name has the original weight.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Lora, Module, Relu, lora_parameters, only_lora_trainable, sequential};
/// use pellucid::nn::optim::{AdamW, AdamWOptions, Optimizer};
/// use pellucid::{DType, Tensor};
/// let pretrained = [Linear::new(8, 16), Linear::new(16, 2)];
/// let [first, last] = pretrained.map(|layer| Lora::new(layer, 4).alpha(8.0));
/// let model = sequential![first.clone(), Relu, last];
/// only_lora_trainable(&model)?;
/// let optimizer = AdamW::new(lora_parameters(&model)?, AdamWOptions::default());
/// assert_eq!(optimizer.parameters().len(), 4);
///
/// let x = Tensor::randn([3, 8], DType::F32);
/// model.forward(&x).square().mean(..).backward();
/// optimizer.step();
/// let before = first.forward(&x);
/// first.merge();
/// assert!((first.forward(&x) - before).abs().max(..).item::<f32>() < 1e-5);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lora<L> {
    /// A.
    pub lora_a: Parameter,
    /// B.
    pub lora_b: Parameter,
    layer: L,
    rank: usize,
    alpha: f64,
    /// The probability of dropout on the input of the update in training.
    pub dropout: f64,
    training: TrainingMode,
    /// Whether W includes the update. The flag selects the path of a call, so a captured step has one recording for
    /// each value. Clones share the flag, since they share W.
    merged: StateFlag,
}

impl<L: LoraTarget> Lora<L> {
    /// Freezes this layer, and adds an update of this rank, with α = r and without dropout.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank of 0; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(layer: L, rank: usize) -> Result<Lora<L>> {
        if rank == 0 {
            return Err(Error::invalid("lora", "the rank must be at least 1; try 8"));
        }
        let [lora_a, lora_b] = values_like("lora", Some(layer.weight()), || layer.low_rank_parameters(rank))?;
        layer.try_freeze()?;
        Ok(Lora {
            lora_a,
            lora_b,
            layer,
            rank,
            alpha: rank as f64,
            dropout: 0.0,
            training: TrainingMode::new(),
            merged: StateFlag::new(&MERGED_NAMES),
        })
    }

    /// Sets α; the update is B·A times α / r. Clones share W, A and B, so all must have the same α.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless α is finite and above 0, if the layer has clones with another α, or if W
    /// includes the update with another α.
    #[panicking_form]
    pub fn try_alpha(self, alpha: f64) -> Result<Lora<L>> {
        OptionRange::POSITIVE.check("lora", "alpha", alpha, 16.0)?;
        if self.is_merged() && alpha != self.alpha {
            let reason = "the weight includes the update with the current `alpha`; call unmerge() first";
            return Err(Error::invalid("lora", reason));
        }
        if self.merged.is_shared() && alpha != self.alpha {
            let reason = "clones of the layer share its weight and need the same `alpha` to merge the update into it; \
                          set alpha() before the first clone(), or set it on a deep_copy()";
            return Err(Error::invalid("lora", reason));
        }
        Ok(Lora { alpha, ..self })
    }

    /// Sets the probability of dropout on the input of the update in training; the input of W is not changed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `p` is not in [0, 1], or is positive and the inputs of the layer are integers.
    #[panicking_form]
    pub fn try_dropout(self, p: f64) -> Result<Lora<L>> {
        OptionRange::PROBABILITY.check("lora", "dropout", p, 0.05)?;
        if p > 0.0 && !self.layer.input_dtype().is_float() {
            let reason = format!("dropout {p} requires float inputs, but the inputs of this layer are integers; use 0");
            return Err(Error::invalid("lora", reason));
        }
        Ok(Lora { dropout: p, ..self })
    }

    /// Returns the frozen layer.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// Returns r, the rank of the update.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns α / r, the scale of the update.
    pub fn scaling(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Returns true if W includes the update.
    pub fn is_merged(&self) -> bool {
        self.merged.get()
    }

    /// Returns the update of the weight, (α / r)·B·A.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_delta_weight(&self) -> Result<Tensor> {
        ops::mul(&self.layer.low_rank_product(&self.lora_a, &self.lora_b)?, self.scaling())
    }

    /// Adds the update to W in place, so that a call costs no more than a call of the layer alone. Does nothing if W
    /// includes it. Clones of the layer share W, so it is merged for them as well. While it is merged, A and B get no
    /// gradient. State dicts contain the merged W, and the value 1 under the name `lora_merged`; loading a state dict
    /// makes the layer merged or unmerged accordingly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] inside a captured step; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_merge(&self) -> Result<()> {
        self.set_merged(true)
    }

    /// Subtracts the update from W again, which restores W up to rounding. Does nothing if W does not include it.
    ///
    /// # Errors
    /// The errors of [`merge`](Lora::merge).
    #[panicking_form]
    pub fn try_unmerge(&self) -> Result<()> {
        self.set_merged(false)
    }

    fn set_merged(&self, merged: bool) -> Result<()> {
        if is_capturing() {
            return Err(Error::invalid(
                "lora",
                "a captured step cannot merge or unmerge a Lora layer; call merge() or unmerge() before the step",
            ));
        }
        if merged == self.is_merged() {
            return Ok(());
        }
        let _off = no_grad();
        let (weight, delta) = (self.layer.weight(), self.try_delta_weight()?);
        let changed = if merged { ops::add(weight, &delta)? } else { ops::sub(weight, &delta)? };
        ops::copy_(weight, &changed)?;
        self.merged.set(merged);
        Ok(())
    }
}

impl<L: LoraTarget> Module for Lora<L> {}

impl<L: LoraTarget> Visit for Lora<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.role(ModuleRole::Lora);
        visitor.module(self, None);
        visit_others(&self.layer, "weight", visitor);
        visitor.field(LORA_NAMES[0], &self.lora_a);
        visitor.field(LORA_NAMES[1], &self.lora_b);
        visitor.field("lora_merged", &self.merged);
        visitor.setting("alpha", &self.alpha);
        if self.dropout > 0.0 {
            visitor.setting("dropout", &self.dropout);
        }
        visitor.field("training", &self.training);
    }
}

/// The original is the frozen W, and the weight is the sum of W and the update.
impl<L: LoraTarget> Reparametrized for Lora<L> {
    type Layer = L;

    fn original(&self) -> &Parameter {
        self.layer.weight()
    }

    fn try_weight(&self) -> Result<Tensor> {
        if self.is_merged() { ops::copy(self.original()) } else { ops::add(self.original(), &self.try_delta_weight()?) }
    }

    fn try_set_weight(&self, weight: &Tensor) -> Result<()> {
        let _off = no_grad();
        check_new_weight("lora", self.original(), weight)?;
        let weight = weight.detach();
        let original = if self.is_merged() { weight } else { ops::sub(&weight, &self.try_delta_weight()?)? };
        ops::copy_(self.original(), &original)
    }

    /// Merges the update, and returns the layer, whose parameters are trainable again.
    fn try_remove(self) -> Result<L> {
        self.try_merge()?;
        self.layer.unfreeze();
        Ok(self.layer)
    }
}

impl<L: LoraTarget> Layer for Lora<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.layer.compute(x)?;
        if self.is_merged() {
            return Ok(y);
        }
        let dropped = match self.training.get() && self.dropout > 0.0 {
            true => &ops::dropout(x, self.dropout)?,
            false => x,
        };
        let update = self.layer.compute_low_rank(&self.lora_a, &self.lora_b, dropped)?;
        ops::map(formula!(|y, update; scale| y + update * scale), &[&y, &update], &[self.scaling().into()])
    }

    fn input_dtype(&self) -> DType {
        self.layer.input_dtype()
    }
}

display_as_tree! {
    [L: LoraTarget] Lora<L>;
}

/// The names of A and B.
const LORA_NAMES: [&str; 2] = ["lora_A", "lora_B"];

/// The name of W, and the names of the parameters that a merged W includes.
const MERGED_NAMES: [&str; 3] = ["weight", LORA_NAMES[0], LORA_NAMES[1]];

/// Returns A and B of all [`Lora`] layers of a model by name; a shared parameter once.
fn named_lora_parameters(op: &'static str, model: &(impl Module + ?Sized)) -> Result<Vec<(String, Parameter)>> {
    let mut found = Vec::<(String, Parameter)>::new();
    for layer in modules_in_role(op, model, ModuleRole::Lora)? {
        for (name, parameter) in layer.parameters.iter().filter(|(name, _)| LORA_NAMES.contains(&name.as_str())) {
            if found.iter().all(|(_, known)| known.id() != parameter.id()) {
                let path = if layer.name.is_empty() { name.clone() } else { format!("{}.{name}", layer.name) };
                found.push((path, parameter.clone()));
            }
        }
    }
    if found.is_empty() {
        return Err(Error::invalid(op, "the model has no Lora layer; wrap its layers by Lora::new(layer, 8)"));
    }
    Ok(found)
}

/// Returns A and B of all [`Lora`] layers of a model, for example for an optimizer or one of its groups.
///
/// # Errors
/// [`Error::InvalidArgument`] if the model has no such layer; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that
/// is not built.
pub fn lora_parameters(model: &(impl Module + ?Sized)) -> Result<Vec<Parameter>> {
    let found = named_lora_parameters("lora_parameters", model)?;
    Ok(found.into_iter().map(|(_, parameter)| parameter).collect())
}

/// Freezes all parameters of a model except A and B of its [`Lora`] layers, which become trainable.
///
/// # Errors
/// [`Error::InvalidArgument`] if the model has no such layer; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that
/// is not built. On error nothing changes.
#[doc(alias = "mark_only_lora_as_trainable")]
pub fn only_lora_trainable(model: &(impl Module + ?Sized)) -> Result<()> {
    let found = named_lora_parameters("only_lora_trainable", model)?;
    model.try_freeze()?;
    found.iter().try_for_each(|(_, parameter)| parameter.set_requires_grad(true))
}

/// Returns copies of A and B of all [`Lora`] layers of a model by name: a small state dict, which
/// [`load_matching`](Module::load_matching) loads into the model.
///
/// # Errors
/// [`Error::InvalidArgument`] if the model has no such layer; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that
/// is not built; [`Error::OutOfMemory`]; [`Error::ReadInCapture`] inside a captured step.
pub fn lora_state_dict(model: &(impl Module + ?Sized)) -> Result<StateDict> {
    let found = named_lora_parameters("lora_state_dict", model)?;
    snapshot(&found.into_iter().map(|(name, parameter)| (name, parameter.tensor().clone())).collect::<Vec<_>>())
}
