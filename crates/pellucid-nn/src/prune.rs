//! Pruning: masks for the weights of [`Pruned`] layers, chosen by magnitude or at random.
//!
//! The functions prune all [`Pruned`] layers of a module, which may be one layer or a model; [`custom_from_mask`]
//! prunes one layer. A fraction is relative to the elements (or slices) that are not pruned yet, so repeated calls
//! prune more. Masks do not change in training. [`Reparametrized::remove`](crate::Reparametrized::remove) makes them
//! permanent.
//!
//! ```
//! use pellucid::nn::{Linear, Pruned, Relu, prune, sequential};
//! let model = sequential![Pruned::new(Linear::new(8, 16)), Relu, Pruned::new(Linear::new(16, 4))];
//! prune::global_unstructured(&model, 0.5)?;
//! let report = prune::sparsity(&model)?;
//! assert_eq!((report.zeros(), report.elements()), (96, 192));
//! println!("{report}");
//! # Ok::<(), pellucid::Error>(())
//! ```

use crate::layers::{PRUNED_NAMES, Pruned, Weighted};
use crate::module::{Module, modules_in_role};
use crate::parameter::{Buffer, Parameter};
use crate::visit::ModuleRole;
use pellucid_tensor::OptionRange;
use pellucid_tensor::ops::over;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};
use std::collections::HashSet;
use std::fmt;

/// The number of elements or slices to prune: `0.3` is a fraction of those that are not pruned yet, `3` is a count.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PruneAmount {
    /// A fraction in [0, 1]. The count is rounded to the nearest integer.
    Fraction(f64),
    /// A count.
    Count(usize),
}

impl From<f64> for PruneAmount {
    fn from(fraction: f64) -> PruneAmount {
        PruneAmount::Fraction(fraction)
    }
}

impl From<usize> for PruneAmount {
    fn from(count: usize) -> PruneAmount {
        PruneAmount::Count(count)
    }
}

impl PruneAmount {
    /// Returns the count for this many elements or slices that are not pruned.
    fn count(self, op: &'static str, kept: usize) -> Result<usize> {
        match self {
            PruneAmount::Fraction(fraction) => {
                OptionRange::PROBABILITY.check(op, "amount", fraction, 0.5)?;
                Ok((fraction * kept as f64).round() as usize)
            }
            PruneAmount::Count(count) if count <= kept => Ok(count),
            PruneAmount::Count(count) => {
                let reason =
                    format!("amount must be at most {kept}, the number of unpruned elements or slices, got {count}");
                Err(Error::invalid(op, reason))
            }
        }
    }
}

/// Prunes the elements of smallest magnitude in each weight separately: PyTorch's `prune.l1_unstructured`. Of equal
/// magnitudes, the earlier element is pruned first.
///
/// # Errors
/// [`Error::InvalidArgument`] if the module has no [`Pruned`] layer, for a fraction that is not in [0, 1], or for a
/// count above the number of unpruned elements of a weight; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that
/// is not built; [`Error::ReadInCapture`] inside a captured step. On error no mask changes.
pub fn l1_unstructured(module: &(impl Module + ?Sized), amount: impl Into<PruneAmount>) -> Result<()> {
    prune_each("l1_unstructured", module, amount.into(), |weight| {
        Ok(Units { axis: None, importance: weight.magnitudes()? })
    })
}

/// Prunes random elements of each weight: PyTorch's `prune.random_unstructured`. Random numbers are drawn from the
/// thread's generator.
///
/// # Errors
/// The errors of [`l1_unstructured`].
pub fn random_unstructured(module: &(impl Module + ?Sized), amount: impl Into<PruneAmount>) -> Result<()> {
    prune_each("random_unstructured", module, amount.into(), |weight| {
        Ok(Units { axis: None, importance: random(weight.original.size())? })
    })
}

/// Prunes the slices along `axis` whose elements have the smallest norm of order n in each weight separately: PyTorch's
/// `prune.ln_structured`. A slice along axis 0 of a weight `[out, in, ..]` computes one output. Pruned elements count
/// as 0 in the norm.
///
/// # Errors
/// The errors of [`l1_unstructured`], where slices are counted; [`Error::AxisOutOfRange`].
pub fn ln_structured(
    module: &(impl Module + ?Sized),
    amount: impl Into<PruneAmount>,
    n: f64,
    axis: isize,
) -> Result<()> {
    let op = "ln_structured";
    prune_each(op, module, amount.into(), |weight| {
        let axis = weight.original.shape().axis(op, axis)?;
        let others: Vec<isize> = (0..weight.original.rank() as isize).filter(|other| *other != axis as isize).collect();
        let norms = ops::norm(&weight.masked()?, n, over(&others[..]))?;
        Ok(Units { axis: Some(axis), importance: norms.try_to_vec()? })
    })
}

/// Prunes random slices along `axis` of each weight: PyTorch's `prune.random_structured`. Random numbers are drawn from
/// the thread's generator.
///
/// # Errors
/// The errors of [`ln_structured`].
pub fn random_structured(module: &(impl Module + ?Sized), amount: impl Into<PruneAmount>, axis: isize) -> Result<()> {
    let op = "random_structured";
    prune_each(op, module, amount.into(), |weight| {
        let axis = weight.original.shape().axis(op, axis)?;
        Ok(Units { axis: Some(axis), importance: random(weight.original.shape()[axis])? })
    })
}

/// Prunes the elements of smallest magnitude among all weights of the module together: PyTorch's
/// `prune.global_unstructured` with `L1Unstructured`. Layers with small weights lose a larger share.
///
/// # Errors
/// The errors of [`l1_unstructured`], where the elements of all weights are counted.
pub fn global_unstructured(module: &(impl Module + ?Sized), amount: impl Into<PruneAmount>) -> Result<()> {
    let op = "global_unstructured";
    let weights = masked_weights(op, module)?;
    let (mut importance, mut mask) = (Vec::new(), Vec::new());
    for weight in &weights {
        importance.extend(weight.magnitudes()?);
        mask.extend(weight.mask_values()?);
    }
    let is_kept: Vec<bool> = mask.iter().map(|value| *value != 0.0).collect();
    let pruned = least_important(op, &importance, &is_kept, amount.into())?;
    let mut start = 0;
    let masks = weights.iter().map(|weight| {
        let elements = start..start + weight.original.size();
        start = elements.end;
        let values: Vec<f64> = elements.map(|i| if pruned.contains(&i) { 0.0 } else { mask[i] }).collect();
        weight.mask_of(values)
    });
    set_masks(&weights, masks.collect::<Result<_>>()?)
}

/// Multiplies the mask of a layer by another mask of zeros and ones: PyTorch's `prune.custom_from_mask`.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::nn::{Linear, Pruned, Reparametrized, prune};
/// let layer = Pruned::new(Linear::new(2, 2));
/// prune::custom_from_mask(&layer, &Tensor::from([[1.0f32, 0.0], [0.0, 1.0]]))?;
/// assert_eq!(layer.weight().to_vec::<f32>()[1..3], [0.0, 0.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if the mask does not have the shape of the weight; [`Error::InvalidArgument`] if it has an
/// element that is neither 0 nor 1; [`Error::ReadInCapture`] inside a captured step.
pub fn custom_from_mask<L: Weighted>(layer: &Pruned<L>, mask: &Tensor) -> Result<()> {
    let op = "custom_from_mask";
    let current = &layer.weight_mask;
    if mask.shape() != current.shape() {
        let help = "the mask must have the shape of the weight";
        return Err(Error::shapes(op, [mask.shape(), current.shape()], help));
    }
    if let Some(other) = mask.try_to_vec::<f64>()?.into_iter().find(|value| ![0.0, 1.0].contains(value)) {
        return Err(Error::invalid(op, format!("all elements of the mask must be 0 or 1, got {other}")));
    }
    let _off = no_grad();
    let mask = ops::to_dtype(&mask.detach(), current.dtype())?.try_to(current.device())?;
    ops::copy_(current, &ops::mul(current.tensor(), &mask)?)
}

/// Counts the zeros of the weights of all [`Pruned`] layers of a module. Elements that are 0 without the mask count as
/// well.
///
/// # Errors
/// [`Error::InvalidArgument`] if the module has no [`Pruned`] layer; [`Error::Layer`] names a [`Lazy`](crate::Lazy)
/// layer that is not built; [`Error::ReadInCapture`] inside a captured step.
pub fn sparsity(module: &(impl Module + ?Sized)) -> Result<SparsityReport> {
    let row = |weight: &MaskedWeight| {
        let zeros = weight.masked()?.try_to_vec::<f64>()?.iter().filter(|value| **value == 0.0).count();
        Ok(SparsityRow { name: weight.name.clone(), zeros, elements: weight.original.size() })
    };
    let rows = masked_weights("sparsity", module)?.iter().map(row).collect::<Result<_>>()?;
    Ok(SparsityReport { rows })
}

/// The zeros of the weights of a module, as [`sparsity`] counts them. It implements `Display`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparsityReport {
    /// One row for each weight, in the order of the fields.
    pub rows: Vec<SparsityRow>,
}

/// The zeros of one weight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparsityRow {
    /// The name of the layer; empty if the module is the layer itself.
    pub name: String,
    /// The number of zeros.
    pub zeros: usize,
    /// The number of elements.
    pub elements: usize,
}

impl SparsityReport {
    /// Returns the number of zeros of all weights.
    pub fn zeros(&self) -> usize {
        self.rows.iter().map(|row| row.zeros).sum()
    }

    /// Returns the number of elements of all weights.
    pub fn elements(&self) -> usize {
        self.rows.iter().map(|row| row.elements).sum()
    }

    /// Returns the fraction of zeros, 0 for weights without elements.
    pub fn fraction(&self) -> f64 {
        fraction(self.zeros(), self.elements())
    }
}

impl fmt::Display for SparsityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max("total".len());
        let total = SparsityRow { name: "total".to_string(), zeros: self.zeros(), elements: self.elements() };
        for row in self.rows.iter().chain([&total]) {
            let percent = 100.0 * fraction(row.zeros, row.elements);
            writeln!(f, "{:width$}  {:>10} of {:>10} zeros  {percent:>5.1} %", row.name, row.zeros, row.elements)?;
        }
        Ok(())
    }
}

fn fraction(zeros: usize, elements: usize) -> f64 {
    if elements == 0 { 0.0 } else { zeros as f64 / elements as f64 }
}

/// The weight of a [`Pruned`] layer.
struct MaskedWeight {
    /// The name of the layer.
    name: String,
    original: Parameter,
    mask: Buffer,
}

/// Returns the weights of all [`Pruned`] layers; a shared weight once.
fn masked_weights(op: &'static str, module: &(impl Module + ?Sized)) -> Result<Vec<MaskedWeight>> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for layer in modules_in_role(op, module, ModuleRole::Pruned)? {
        if let (Some(original), Some(mask)) = (layer.parameter(PRUNED_NAMES[0]), layer.buffer(PRUNED_NAMES[1]))
            && seen.insert(original.id())
        {
            let (original, mask) = (original.clone(), mask.clone());
            found.push(MaskedWeight { name: layer.name, original, mask });
        }
    }
    if found.is_empty() {
        let reason = "the module has no Pruned layer; wrap the layers to be pruned by Pruned::new(layer)";
        return Err(Error::invalid(op, reason));
    }
    Ok(found)
}

impl MaskedWeight {
    /// Returns original·mask without history.
    fn masked(&self) -> Result<Tensor> {
        let _off = no_grad();
        ops::mul(self.original.tensor(), self.mask.tensor())
    }

    fn magnitudes(&self) -> Result<Vec<f64>> {
        let _off = no_grad();
        ops::abs(self.original.tensor())?.try_to_vec()
    }

    fn mask_values(&self) -> Result<Vec<f64>> {
        self.mask.try_to_vec()
    }

    /// Returns a mask of these values, with the shape, dtype and device of the current mask.
    fn mask_of(&self, values: Vec<f64>) -> Result<Tensor> {
        let mask = Tensor::try_new(values, self.mask.shape())?;
        ops::to_dtype(&mask, self.mask.dtype())?.try_to(self.mask.device())
    }
}

/// The units of a weight that are pruned together, each with its importance: the elements, or the slices along an axis.
struct Units {
    axis: Option<usize>,
    importance: Vec<f64>,
}

/// Prunes the least important units of every weight.
fn prune_each(
    op: &'static str,
    module: &(impl Module + ?Sized),
    amount: PruneAmount,
    units: impl Fn(&MaskedWeight) -> Result<Units>,
) -> Result<()> {
    let weights = masked_weights(op, module)?;
    let pruned_mask = |weight: &MaskedWeight| {
        let Units { axis, importance } = units(weight)?;
        let (shape, mut mask) = (weight.original.shape(), weight.mask_values()?);
        // Element i belongs to the unit (i / inner) mod units.
        let inner: usize = axis.map_or(1, |axis| shape[axis + 1..].iter().product());
        let unit_of = |i: usize| (i / inner.max(1)) % importance.len().max(1);
        let mut is_kept = vec![false; importance.len()];
        for (i, value) in mask.iter().enumerate() {
            is_kept[unit_of(i)] |= *value != 0.0;
        }
        let pruned = least_important(op, &importance, &is_kept, amount)?;
        for (i, value) in mask.iter_mut().enumerate() {
            if pruned.contains(&unit_of(i)) {
                *value = 0.0;
            }
        }
        weight.mask_of(mask)
    };
    let masks = weights.iter().map(pruned_mask).collect::<Result<_>>()?;
    set_masks(&weights, masks)
}

/// Returns the units with the smallest importance among those that are not pruned yet; of units of equal importance,
/// the first.
fn least_important(
    op: &'static str,
    importance: &[f64],
    is_kept: &[bool],
    amount: PruneAmount,
) -> Result<HashSet<usize>> {
    let mut units: Vec<usize> = (0..importance.len()).filter(|unit| is_kept[*unit]).collect();
    let count = amount.count(op, units.len())?;
    units.sort_by(|a, b| importance[*a].total_cmp(&importance[*b]));
    Ok(units.into_iter().take(count).collect())
}

/// Returns uniform random numbers.
fn random(count: usize) -> Result<Vec<f64>> {
    ops::rand(count, DType::F64)?.try_to_vec()
}

fn set_masks(weights: &[MaskedWeight], masks: Vec<Tensor>) -> Result<()> {
    let _off = no_grad();
    weights.iter().zip(&masks).try_for_each(|(weight, mask)| ops::copy_(&weight.mask, mask))
}
