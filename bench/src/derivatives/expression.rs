//! Random expressions over the catalogue, which are determined by seed and index.

use super::catalogue::{self, CatalogueOperation, Domain, operations};
use super::random::SplitMix64;
use pellucid::{Result, Tensor, no_grad, ops};
use std::fmt;

/// The maximum size of an intermediate result. Larger results are truncated.
const MAX_ELEMENTS: usize = 24;

/// Shapes of leaves.
const SHAPES: [&[usize]; 3] = [&[2, 3], &[3], &[2, 2, 3]];

/// An expression over leaf tensors.
#[derive(Clone)]
pub enum Expression {
    /// The leaf with this index.
    Leaf(usize),
    /// A constant of this shape, whose values the seed determines.
    Constant(Vec<usize>, u64),
    /// An operation on subexpressions.
    Node {
        /// The operation.
        operation: &'static CatalogueOperation,
        /// The seed of the input guards and of the arguments.
        seed: u64,
        /// The factor of the result, which keeps values moderate.
        scale: f64,
        /// One expression for every input.
        inputs: Vec<Expression>,
    },
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expression::Leaf(k) => write!(f, "x{k}"),
            Expression::Constant(shape, _) => write!(f, "constant{shape:?}"),
            Expression::Node { operation, scale, inputs, .. } => {
                if *scale != 1.0 {
                    write!(f, "{scale}·")?;
                }
                write!(f, "{}(", operation.name)?;
                for (k, input) in inputs.iter().enumerate() {
                    write!(f, "{}{input}", if k == 0 { "" } else { ", " })?;
                }
                write!(f, ")")
            }
        }
    }
}

impl Expression {
    /// Computes the value at these leaves.
    ///
    /// # Errors
    /// The errors of the operations.
    pub fn evaluate(&self, leaves: &[Tensor]) -> Result<Tensor> {
        match self {
            Expression::Leaf(k) => Ok(leaves[*k].clone()),
            Expression::Constant(shape, seed) => Ok(SplitMix64::new(*seed).tensor(shape, -1.2, 1.2)),
            Expression::Node { operation, seed, scale, inputs } => {
                let inputs: Vec<Tensor> = inputs.iter().map(|e| e.evaluate(leaves)).collect::<Result<_>>()?;
                let y = apply(operation, *seed, &inputs)?;
                if *scale == 1.0 { Ok(y) } else { ops::mul(&y, *scale) }
            }
        }
    }

    /// Returns the number of operations.
    pub fn size(&self) -> usize {
        match self {
            Expression::Node { inputs, .. } => 1 + inputs.iter().map(Expression::size).sum::<usize>(),
            _ => 0,
        }
    }

    /// Returns smaller expressions: every subexpression, and this expression with a subexpression replaced by its input
    /// or a leaf.
    pub fn smaller(&self) -> Vec<Expression> {
        let Expression::Node { operation, seed, scale, inputs } = self else { return Vec::new() };
        let mut all = inputs.clone();
        for (k, input) in inputs.iter().enumerate() {
            let mut instead = input.smaller();
            if !matches!(input, Expression::Leaf(_)) {
                instead.push(Expression::Leaf(0));
            }
            for one in instead {
                let mut inputs = inputs.clone();
                inputs[k] = one;
                all.push(Expression::Node { operation, seed: *seed, scale: *scale, inputs });
            }
        }
        all.retain(|e| !matches!(e, Expression::Constant(..)));
        all
    }
}

/// Maps the inputs into the domains of an operation, and computes it. The result has at most [`MAX_ELEMENTS`] elements.
fn apply(operation: &CatalogueOperation, seed: u64, inputs: &[Tensor]) -> Result<Tensor> {
    let mut random = SplitMix64::new(seed);
    let guarded = inputs.iter().zip(&operation.inputs).map(|(x, &domain)| catalogue::guarded(x, domain, &mut random));
    let y = operation.apply(&guarded.collect::<Result<Vec<_>>>()?, random.bits())?;
    if y.size() <= MAX_ELEMENTS { Ok(y) } else { ops::narrow(&ops::ravel(&y)?, 0, 0, MAX_ELEMENTS) }
}

/// A random expression with the leaves at which it is differentiated.
pub struct Case {
    /// The expression.
    pub expression: Expression,
    /// The shapes of the leaves and their values.
    pub leaves: Vec<(Vec<usize>, Vec<f64>)>,
    /// The names and error messages of operations that failed and were replaced.
    pub rejected: Vec<(&'static str, String)>,
}

impl Case {
    /// Returns the expression with index `number` in the sequence of `seed`, of at most the given depth.
    pub fn new(seed: u64, number: u64, depth: usize) -> Case {
        let mut random = SplitMix64::new(SplitMix64::new(seed).bits() ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        let leaves: Vec<(Vec<usize>, Vec<f64>)> = (0..1 + random.below(2))
            .map(|_| {
                let shape = random.choose(&SHAPES).to_vec();
                let values = catalogue::values(&shape, Domain::Apart, &mut random);
                (shape, values)
            })
            .collect();
        let tensors: Vec<Tensor> = leaves.iter().map(|(shape, values)| Tensor::new(&values[..], &shape[..])).collect();
        let _off = no_grad();
        let mut rejected = Vec::new();
        // Half of the expressions have the full depth.
        let depth = if random.coin() { depth } else { 1 + random.below(depth) };
        let expression = grow(&tensors, depth, &mut random, &mut rejected).0;
        Case { expression, leaves, rejected }
    }
}

/// Returns a random expression of exactly this depth along one path, and its value.
fn grow(
    leaves: &[Tensor],
    depth: usize,
    random: &mut SplitMix64,
    rejected: &mut Vec<(&'static str, String)>,
) -> (Expression, Tensor) {
    if depth == 0 {
        if random.below(12) == 0 {
            let constant = Expression::Constant(random.choose(&SHAPES).to_vec(), random.bits());
            let value = constant.evaluate(leaves).expect("a constant must be evaluated");
            return (constant, value);
        }
        let k = random.below(leaves.len());
        return (Expression::Leaf(k), leaves[k].clone());
    }
    loop {
        let operation = &operations()[random.below(operations().len())];
        let deep = random.below(operation.inputs.len());
        let (inputs, values): (Vec<Expression>, Vec<Tensor>) = (0..operation.inputs.len())
            .map(|k| grow(leaves, if k == deep { depth - 1 } else { random.below(depth) }, random, rejected))
            .unzip();
        let seed = random.bits();
        match apply(operation, seed, &values) {
            Err(error) => rejected.push((operation.name, error.to_string())),
            Ok(value) => {
                let max_magnitude = value.to_vec::<f64>().into_iter().map(f64::abs).fold(0.0, f64::max);
                if value.size() == 0 || !max_magnitude.is_finite() || max_magnitude > 1e12 {
                    continue;
                }
                let scale =
                    if max_magnitude > 4.0 { 0.5f64.powi((max_magnitude / 2.0).log2().ceil() as i32) } else { 1.0 };
                let value = if scale == 1.0 { value } else { value * scale };
                return (Expression::Node { operation, seed, scale, inputs }, value);
            }
        }
    }
}
