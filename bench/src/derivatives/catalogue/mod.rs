//! Differentiable operations, with the domains of their inputs.

/// Defines a list of operations of one family, each with the domains of its inputs and its body.
macro_rules! entries {
    ($kind:ident; $($name:literal [$($domain:ident),+] ($x:ident, $random:pat) => $body:expr;)*) => {
        vec![$(CatalogueOperation::new(OperationFamily::$kind, $name, &[$($domain),+], |$x, $random| $body)),*]
    };
}

mod elementwise;
mod linalg;
mod losses;
mod products;
mod rows;
mod shapes;
mod windows;

use super::random::SplitMix64;
use pellucid::{Result, Tensor, ops};
use std::sync::OnceLock;

/// A domain in which an operation is smooth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// All numbers.
    Any,
    /// Positive numbers.
    Positive,
    /// Numbers between -1 and 1.
    Unit,
    /// Numbers between 0 and 1.
    Share,
    /// Numbers above 1.
    AboveOne,
    /// Numbers that are distinct and different from 0.
    Apart,
}

/// The family of an operation, which determines how it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationFamily {
    /// Elementwise operations.
    Elementwise,
    /// Reductions, scans, norms, softmax and other operations on rows.
    Rows,
    /// Views, joins, indexing and scattering.
    Shape,
    /// Matrix products, convolutions, attention and recurrent layers.
    Products,
    /// Pools, resampling and other operations on windows.
    Windows,
    /// Losses.
    Losses,
    /// Matrix factorizations.
    Linalg,
}

type Apply = fn(&[Tensor], &mut SplitMix64) -> Result<Tensor>;

/// An operation on tensors of any shape. Its body reshapes unsuitable inputs.
pub struct CatalogueOperation {
    /// The name. If several entries share a name, a suffix distinguishes them.
    pub name: &'static str,
    /// The family of the operation.
    pub family: OperationFamily,
    /// The domain of every input.
    pub inputs: Vec<Domain>,
    apply: Apply,
}

impl CatalogueOperation {
    fn new(family: OperationFamily, name: &'static str, inputs: &[Domain], apply: Apply) -> CatalogueOperation {
        CatalogueOperation { name, family, inputs: inputs.to_vec(), apply }
    }

    /// Computes the result for inputs in the domains. The seed determines axes, indices and other arguments.
    ///
    /// # Errors
    /// The errors of the operation.
    pub fn apply(&self, inputs: &[Tensor], seed: u64) -> Result<Tensor> {
        (self.apply)(inputs, &mut SplitMix64::new(seed))
    }
}

/// Returns all operations in a fixed order.
pub fn operations() -> &'static [CatalogueOperation] {
    static ALL: OnceLock<Vec<CatalogueOperation>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = elementwise::operations();
        all.extend(rows::operations());
        all.extend(shapes::operations());
        all.extend(products::operations());
        all.extend(windows::operations());
        all.extend(losses::operations());
        all.extend(linalg::operations());
        all
    })
}

/// Computes a smooth function of x with values in the domain.
///
/// # Errors
/// The errors of the operations that it calls.
pub fn guarded(x: &Tensor, domain: Domain, random: &mut SplitMix64) -> Result<Tensor> {
    match domain {
        Domain::Any => Ok(x.clone()),
        Domain::Positive if random.coin() => ops::add(&ops::softplus(x)?, 0.3),
        Domain::Positive => ops::add(&ops::mul(x, x)?, 0.5),
        Domain::Unit if random.coin() => ops::mul(&ops::tanh(x)?, 0.8),
        Domain::Unit => ops::mul(&ops::sin(x)?, 0.7),
        Domain::Share => ops::add(&ops::mul(&ops::sigmoid(x)?, 0.8)?, 0.1),
        Domain::AboveOne => ops::add(&ops::softplus(x)?, 1.2),
        Domain::Apart => ops::add(x, Tensor::new(random.separated(x.size()), x.shape().clone())),
    }
}

/// Returns random values in the domain.
pub fn values(shape: &[usize], domain: Domain, random: &mut SplitMix64) -> Vec<f64> {
    let n = shape.iter().product();
    let (low, high) = match domain {
        Domain::Any => (-1.2, 1.2),
        Domain::Positive => (0.4, 2.2),
        Domain::Unit => (-0.8, 0.8),
        Domain::Share => (0.15, 0.85),
        Domain::AboveOne => (1.3, 2.5),
        Domain::Apart => return random.separated(n),
    };
    (0..n).map(|_| random.between(low, high)).collect()
}

/// Returns the elements of x in a given shape. A larger x is truncated. A smaller x is repeated, and each repetition is
/// scaled by 0.9.
///
/// # Errors
/// The errors of the operations that it calls.
pub fn fit(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if x.shape()[..] == *shape {
        return Ok(x.clone());
    }
    let wanted: usize = shape.iter().product();
    let mut flat = ops::ravel(x)?;
    if flat.size() < wanted {
        let (own, times) = (flat.size(), wanted.div_ceil(flat.size()));
        // Equal elements would cause ties and rows without variance.
        let factors: Vec<f64> = (0..own * times).map(|i| 0.9f64.powi((i / own) as i32)).collect();
        flat = ops::mul(&ops::tile(&flat, [times])?, Tensor::new(factors, [own * times]))?;
    }
    ops::reshape(&ops::narrow(&flat, 0, 0, wanted)?, shape)
}

/// Returns x with at least one axis.
fn ranked(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 { ops::reshape(x, 1) } else { Ok(x.clone()) }
}

/// Returns x as a matrix. The last axis of a tensor of rank 2 or more is preserved.
fn matrix(x: &Tensor) -> Result<Tensor> {
    let last = if x.rank() == 0 { 1 } else { x.shape()[x.rank() - 1] };
    ops::reshape(x, [-1, last as isize])
}

/// Returns a random axis of x, counted from either end.
fn axis(x: &Tensor, random: &mut SplitMix64) -> isize {
    let rank = x.rank().max(1);
    let axis = random.below(rank) as isize;
    if random.coin() { axis } else { axis - rank as isize }
}

/// Returns the length of an axis that [`axis`] returned.
fn length(x: &Tensor, axis: isize) -> usize {
    x.shape()[axis.rem_euclid(x.rank() as isize) as usize]
}

/// Returns the shape of x.
fn dims(x: &Tensor) -> Vec<usize> {
    x.shape()[..].to_vec()
}
