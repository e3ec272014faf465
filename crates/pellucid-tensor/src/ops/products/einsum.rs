//! Contractions: sums of products over labelled axes, computed as matrix products, and bilinear maps.

use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast;
use crate::ops::primitive::precision::{in_single, widen_all_operands};
use crate::ops::primitive::{copy, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::ops::shape::diagonal::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{Error, Result, Shape};
use std::collections::BTreeMap;
use std::fmt;

/// The label of an axis: a letter, or the index of an axis under `...`, counted from the right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Under(usize),
    Letter(char),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Letter(letter) => write!(f, "`{letter}`"),
            Label::Under(k) => write!(f, "axis {k} (from the right) of `...`"),
        }
    }
}

/// A factor of the product, with one distinct label for each axis.
#[derive(Clone)]
struct LabelledFactor {
    tensor: Tensor,
    labels: Vec<Label>,
}

/// The largest number of factors for which all contraction orders are compared.
const ALL_ORDERS: usize = 8;

/// Computes an Einstein summation: `einsum("ij,jk->ik", &[a, b])` sums the product over the letters not in the result.
///
/// A letter labels an axis in every factor that contains it. If it is repeated in one factor, it selects the diagonal.
/// `...` represents unlabelled axes, which broadcast. Without `->`, the result has the axes of `...`, then the letters
/// that occur once, in alphabetical order. Up to 8 factors are contracted in the order with the fewest multiplications.
/// With more factors, the cheapest pair is contracted first. Each pair is contracted by one matrix product, or
/// elementwise if no axis is summed. The order minimizes multiplications, not memory: an intermediate result of more
/// than two factors may be larger than all factors and the result.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let a = Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
/// assert_eq!(ops::einsum("ii", &[&a])?.item::<f64>(), 5.0);
/// assert_eq!(ops::einsum("ij,kj->ik", &[&a, &a])?.to_vec::<f64>(), [5.0, 11.0, 11.0, 25.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for a malformed equation, or one that does not fit the number of factors and axes;
/// [`Error::ShapeMismatch`] if axes with the same label have different lengths, and neither length is 1.
#[operation(autocast = Half)]
pub fn einsum(equation: &str, factors: &[&Tensor]) -> Result<Tensor> {
    let invalid = |reason: String| Error::invalid("einsum", format!("in \"{equation}\", {reason}"));
    let compact_equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match compact_equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (&compact_equation[..], None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != factors.len() {
        return Err(invalid(format!(
            "there are {} terms, but {} factors; write one term for each factor",
            terms.len(),
            factors.len()
        )));
    }
    let mut named: Vec<Vec<Label>> = Vec::new();
    for (term, factor) in terms.iter().zip(factors) {
        let labels = parse_labels(term, factor.rank()).map_err(invalid)?;
        if labels.len() != factor.rank() {
            return Err(invalid(format!("term `{term}` does not match the {} axes of its factor", factor.rank())));
        }
        named.push(labels);
    }
    let under = named.iter().flatten().filter(|l| matches!(l, Label::Under(_))).max().copied();
    let under = under.map_or(0, |l| if let Label::Under(k) = l { k + 1 } else { 0 });
    let result: Vec<Label> = match output {
        // The rank of the result: its letters plus the axes of `...`.
        Some(output) => parse_labels(output, output.replace("...", "").len() + under).map_err(invalid)?,
        None => {
            let mut count: BTreeMap<char, usize> = BTreeMap::new();
            named.iter().flatten().for_each(|l| {
                if let Label::Letter(c) = l {
                    *count.entry(*c).or_default() += 1;
                }
            });
            let once = count.into_iter().filter(|&(_, n)| n == 1).map(|(c, _)| Label::Letter(c));
            (0..under).rev().map(Label::Under).chain(once).collect()
        }
    };
    if let Some(twice) = (1..result.len()).find(|&k| result[..k].contains(&result[k])) {
        return Err(invalid(format!("the result names {} twice", result[twice])));
    }
    if let Some(unknown) = result.iter().find(|l| !named.iter().flatten().any(|n| n == *l)) {
        return Err(invalid(format!("the result names {unknown}, which is in no factor; remove it from the result")));
    }
    contract(factors, named, &result)
}

/// Parses the labels of one term. `rank` determines the number of axes under `...`.
fn parse_labels(term: &str, rank: usize) -> Result<Vec<Label>, String> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let letters = |text: &str| -> Result<Vec<Label>, String> {
        let letter = |c: char| {
            if c.is_ascii_alphabetic() {
                Ok(Label::Letter(c))
            } else {
                Err(format!("`{c}` is not a letter (the factors are separated by `,`, and `->` precedes the result)"))
            }
        };
        text.chars().map(letter).collect()
    };
    let (mut labels, after) = (letters(before)?, letters(after)?);
    if term.contains("...") {
        let under = rank.saturating_sub(labels.len() + after.len());
        labels.extend((0..under).rev().map(Label::Under));
    }
    labels.extend(after);
    Ok(labels)
}

/// Sums the product over all labels that are not in the result.
fn contract(factors: &[&Tensor], named: Vec<Vec<Label>>, result: &[Label]) -> Result<Tensor> {
    let mut length: BTreeMap<Label, usize> = BTreeMap::new();
    for (factor, labels) in factors.iter().zip(&named) {
        for (&label, &len) in labels.iter().zip(factor.shape().iter()) {
            let common_length = length.entry(label).or_insert(len);
            if *common_length == 1 {
                *common_length = len;
            }
            if len != *common_length && len != 1 {
                let help = format!("all lengths of {label} must be equal or 1; transpose a factor, or use two letters");
                return Err(Error::shapes("einsum", factors.iter().map(|f| f.shape()), help));
            }
        }
    }
    let mut terms: Vec<LabelledFactor> = Vec::new();
    for (factor, labels) in factors.iter().zip(named) {
        terms.push(LabelledFactor::new(factor, labels, &length)?);
    }
    // A single kernel, for one product or one sum, rounds once. Only several kernels need widening.
    let is_lonely = |k: usize, l: &Label| {
        !result.contains(l) && terms.iter().enumerate().all(|(j, t)| j == k || !t.labels.contains(l))
    };
    let is_summed = |(k, t): (usize, &LabelledFactor)| t.labels.iter().any(|l| is_lonely(k, l));
    if terms.len() > 2 || (terms.len() == 2 && terms.iter().enumerate().any(is_summed)) {
        let tensors: Vec<&Tensor> = terms.iter().map(|t| &t.tensor).collect();
        if let Some((rounding, wide)) = widen_all_operands("einsum", &tensors)? {
            for (term, tensor) in terms.iter_mut().zip(wide) {
                term.tensor = tensor;
            }
            return rounding.round(contract_pairwise(terms, result, &length)?);
        }
    }
    contract_pairwise(terms, result, &length)
}

/// Sums the product of terms over all labels that are not in the result, by pairwise contraction.
fn contract_pairwise(
    mut terms: Vec<LabelledFactor>,
    result: &[Label],
    length: &BTreeMap<Label, usize>,
) -> Result<Tensor> {
    // An axis that only one factor contains, and that is not in the result, is summed first.
    for k in 0..terms.len() {
        let others: Vec<Label> =
            terms.iter().enumerate().filter(|(j, _)| *j != k).flat_map(|(_, t)| t.labels.clone()).collect();
        terms[k] = terms[k].clone().sum_all_but(|l| result.contains(&l) || others.contains(&l))?;
    }
    while terms.len() > 1 {
        let (i, j) = cheapest_pair(&terms, result, length);
        let (b, a) = (terms.swap_remove(i.max(j)), terms.swap_remove(i.min(j)));
        let keep = |l: Label| result.contains(&l) || terms.iter().any(|t| t.labels.contains(&l));
        terms.push(a.contract_with(b, keep)?);
    }
    let Some(last) = terms.pop() else {
        return Err(Error::invalid("einsum", "the list of factors is empty; pass at least one tensor"));
    };
    last.permuted(result)
}

/// Returns the pair to multiply first: by the best order, or the cheapest pair if there are many terms.
fn cheapest_pair(terms: &[LabelledFactor], result: &[Label], length: &BTreeMap<Label, usize>) -> (usize, usize) {
    let n = terms.len();
    let cost = |labels: &[Label]| labels.iter().map(|l| length[l] as f64).product::<f64>();
    // The product of the selected terms keeps the labels that the result or another term contains.
    let remaining_labels = |inside: &dyn Fn(&usize) -> bool| -> Vec<Label> {
        let mut labels: Vec<Label> = (0..n).filter(inside).flat_map(|k| terms[k].labels.clone()).collect();
        labels.sort_unstable();
        labels.dedup();
        labels.retain(|l| result.contains(l) || (0..n).any(|k| !inside(&k) && terms[k].labels.contains(l)));
        labels
    };
    let both = |a: &dyn Fn(&usize) -> bool, b: &dyn Fn(&usize) -> bool| {
        let mut labels = [remaining_labels(a), remaining_labels(b)].concat();
        labels.sort_unstable();
        labels.dedup();
        cost(&labels)
    };
    let pairs = || (0..n).flat_map(move |j| (0..j).map(move |i| (i, j)));
    if n == 2 {
        return (0, 1);
    }
    if n > ALL_ORDERS {
        let pair_cost = |&(i, j): &(usize, usize)| both(&|&k| k == i, &|&k| k == j);
        return pairs()
            .min_by(|a, b| pair_cost(a).total_cmp(&pair_cost(b)))
            .expect("the list must have at least two terms");
    }
    // Dynamic programming over subsets: the best order of a set follows from its best split into two subsets. Subsets
    // have smaller bit patterns than the set.
    let full_set = (1u32 << n) - 1;
    let has = |set: u32| move |k: &usize| set >> k & 1 == 1;
    let mut best = vec![(0.0f64, 0u32); 1 << n];
    for set in 1..=full_set {
        if set.count_ones() < 2 {
            continue;
        }
        let mut choice = (f64::INFINITY, 0);
        let mut subset = (set - 1) & set;
        while subset > 0 {
            let complement = set & !subset;
            if subset < complement {
                let total =
                    best[subset as usize].0 + best[complement as usize].0 + both(&has(subset), &has(complement));
                if total < choice.0 {
                    choice = (total, subset);
                }
            }
            subset = (subset - 1) & set;
        }
        best[set as usize] = choice;
    }
    // Descends to a pair of single terms, which is contracted first.
    let mut set = full_set;
    while set.count_ones() > 2 {
        let subset = best[set as usize].1;
        set = if subset.count_ones() > 1 { subset } else { set & !subset };
    }
    (set.trailing_zeros() as usize, (31 - set.leading_zeros()) as usize)
}

impl LabelledFactor {
    /// Creates a factor. Repeated labels select the diagonal. Axes of length 1 that broadcast are removed.
    fn new(tensor: &Tensor, labels: Vec<Label>, length: &BTreeMap<Label, usize>) -> Result<LabelledFactor> {
        let mut factor = LabelledFactor { tensor: tensor.clone(), labels };
        for k in (0..factor.labels.len()).rev() {
            if factor.tensor.shape()[k] == 1 && length[&factor.labels[k]] != 1 {
                factor.tensor = view::squeeze(&factor.tensor, k as isize)?;
                factor.labels.remove(k);
            }
        }
        let twice = |labels: &[Label]| {
            (1..labels.len()).find_map(|j| Some((labels[..j].iter().position(|l| *l == labels[j])?, j)))
        };
        while let Some((i, j)) = twice(&factor.labels) {
            factor.tensor = diagonal(&factor.tensor, 0, i as isize, j as isize)?;
            let label = factor.labels.remove(j);
            factor.labels.remove(i);
            factor.labels.push(label);
        }
        Ok(factor)
    }

    /// Sums over the labels for which `keep` is false.
    fn sum_all_but(self, keep: impl Fn(Label) -> bool) -> Result<LabelledFactor> {
        let summed_axes: Vec<isize> =
            (0..self.labels.len()).filter(|&k| !keep(self.labels[k])).map(|k| k as isize).collect();
        if summed_axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.into_iter().filter(|&l| keep(l)).collect();
        Ok(LabelledFactor { tensor: reductions::sum(&self.tensor, summed_axes)?, labels })
    }

    fn len(&self, label: Label) -> usize {
        let axis = self.labels.iter().position(|&l| l == label).expect("the factor must have an axis with this label");
        self.tensor.shape()[axis]
    }

    /// Permutes the axes to `order`, which contains all labels.
    fn permuted(&self, order: &[Label]) -> Result<Tensor> {
        if self.labels == order {
            return Ok(self.tensor.clone());
        }
        let axis = |l: &Label| {
            self.labels.iter().position(|label| label == l).expect("the factor must have an axis with this label")
                as isize
        };
        view::permute(&self.tensor, order.iter().map(axis).collect::<Vec<_>>())
    }

    /// Multiplies two factors and sums over the shared labels for which `keep` is false, as one batched matrix product,
    /// or elementwise if no label is summed.
    fn contract_with(self, other: LabelledFactor, keep: impl Fn(Label) -> bool) -> Result<LabelledFactor> {
        let shared = |l: &Label| self.labels.contains(l) && other.labels.contains(l);
        let only = |a: &LabelledFactor| a.labels.iter().copied().filter(|l| !shared(l)).collect::<Vec<_>>();
        let (left, right) = (only(&self), only(&other));
        let (stack, summed): (Vec<Label>, Vec<Label>) =
            self.labels.iter().copied().filter(|l| shared(l)).partition(|&l| keep(l));
        let labels = [&stack[..], &left[..], &right[..]].concat();
        let lengths = |of: &LabelledFactor, labels: &[Label]| labels.iter().map(|&l| of.len(l)).collect::<Vec<_>>();
        let (stacks, rows, columns) = (lengths(&self, &stack), lengths(&self, &left), lengths(&other, &right));
        let inner: usize = lengths(&self, &summed).iter().product();
        let shape: Shape = [&stacks[..], &rows[..], &columns[..]].concat().into();
        if summed.is_empty() {
            // Without a sum the product is elementwise: axes of length 1 are added to each factor for the labels of the
            // other factor.
            let ones = |n: usize| vec![1usize; n];
            let a = self.permuted(&[&stack[..], &left[..]].concat())?;
            let a = view::reshape(&a, Shape::from([&stacks[..], &rows[..], &ones(right.len())[..]].concat()))?;
            let b = other.permuted(&[&stack[..], &right[..]].concat())?;
            let b = view::reshape(&b, Shape::from([&stacks[..], &ones(left.len())[..], &columns[..]].concat()))?;
            return Ok(LabelledFactor { tensor: arithmetic::mul(&a, &b)?, labels });
        }
        let matrix = |stack: &[usize], m: usize, n: usize| Shape::from([stack, &[m, n]].concat());
        let (m, n) = (rows.iter().product(), columns.iter().product());
        let a = self.permuted(&[&stack[..], &left[..], &summed[..]].concat())?;
        let b = other.permuted(&[&stack[..], &summed[..], &right[..]].concat())?;
        let a = view::reshape(&a, matrix(&stacks, m, inner))?;
        let b = view::reshape(&b, matrix(&stacks, inner, n))?;
        Ok(LabelledFactor { tensor: view::reshape(&matmul(&a, &b)?, &shape)?, labels })
    }
}

/// Sums products over the axes `axes_a` of a, paired with `axes_b` of b.
///
/// The result has the unpaired axes of a, then the unpaired axes of b.
///
/// # Errors
/// [`Error::InvalidArgument`] if the lists differ in length or contain an axis twice; [`Error::AxisOutOfRange`];
/// [`Error::ShapeMismatch`] if paired axes differ in length and neither length is 1, which broadcasts.
#[tensor_method]
pub fn tensordot(a: &Tensor, b: &Tensor, axes_a: &[isize], axes_b: &[isize]) -> Result<Tensor> {
    let op = "tensordot";
    let resolve = |t: &Tensor, axes: &[isize]| -> Result<Vec<usize>> {
        let axes: Vec<usize> = axes.iter().map(|&k| t.shape().axis(op, k)).collect::<Result<_>>()?;
        let twice = (1..axes.len()).any(|k| axes[..k].contains(&axes[k]));
        if twice { Err(Error::invalid(op, format!("{axes:?} contains an axis twice"))) } else { Ok(axes) }
    };
    let (from, to) = (resolve(a, axes_a)?, resolve(b, axes_b)?);
    if from.len() != to.len() {
        return Err(Error::invalid(
            op,
            format!("the lists of axes must have the same length, got {axes_a:?} and {axes_b:?}"),
        ));
    }
    let fits = |(&i, &j): (&usize, &usize)| a.shape()[i] == b.shape()[j] || a.shape()[i] == 1 || b.shape()[j] == 1;
    if !from.iter().zip(&to).all(fits) {
        return Err(Error::shapes(op, [a.shape(), b.shape()], "paired axes must have equal lengths, or length 1"));
    }
    // The axes of a are labelled 0, 1, ... A paired axis of b has the label of the axis of a with which it is paired;
    // each other axis of b has a new label.
    let left: Vec<Label> = (0..a.rank()).map(Label::Under).collect();
    let partner = |k: usize| to.iter().position(|&t| t == k).map_or(a.rank() + k, |i| from[i]);
    let right: Vec<Label> = (0..b.rank()).map(|k| Label::Under(partner(k))).collect();
    let once = |labels: &[Label], summed_axes: &[usize]| -> Vec<Label> {
        labels.iter().enumerate().filter(|(k, _)| !summed_axes.contains(k)).map(|(_, &l)| l).collect()
    };
    let result = [once(&left, &from), once(&right, &to)].concat();
    contract(&[a, b], vec![left, right], &result)
}

/// Computes the sum of products over the last axes of both operands (NumPy's `inner`). A 0-d operand is multiplied with
/// every element of the other operand.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the last axes differ in length.
#[tensor_method]
pub fn inner(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() == 0 || b.rank() == 0 {
        return arithmetic::mul(a, b);
    }
    tensordot(a, b, &[-1], &[-1])
}

/// Computes the Kronecker product: every element of a times the tensor b. The shorter shape is padded with leading 1s.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn kron(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let rank = a.rank().max(b.rank());
    let length = |t: &Tensor, k: usize| (k + t.rank()).checked_sub(rank).map_or(1, |axis| t.shape()[axis]);
    let outer: Shape = (0..rank).flat_map(|k| [length(a, k), 1]).collect();
    let inner: Shape = (0..rank).flat_map(|k| [1, length(b, k)]).collect();
    let mut factors = [view::reshape(a, &outer)?, view::reshape(b, &inner)?];
    if has_short_rows(a, b) {
        // Rows are expanded to the rows of the result, so that the products are computed in long rows.
        let (pairs, last) = (2 * rank - 2, rank - 1);
        for factor in &mut factors {
            let shape = factor.shape().with_axis(pairs, length(a, last)).with_axis(pairs + 1, length(b, last));
            *factor = copy::contiguous(&broadcast::broadcast_to(factor, shape)?)?;
        }
    }
    let product = arithmetic::mul(&factors[0], &factors[1])?;
    let shape: Shape = (0..rank).map(|k| length(a, k) * length(b, k)).collect();
    view::reshape(&product, &shape)
}

/// Returns true if [`kron`] expands the rows of its factors: the rows of the result have several short runs, and the
/// result is much larger than the expanded rows, but not so large that it may exceed the memory.
fn has_short_rows(a: &Tensor, b: &Tensor) -> bool {
    const MIN_ROW: usize = 64;
    const MIN_ROWS: usize = 8;
    const MAX_SIZE: usize = 1 << 15;
    let (Some(&left), Some(&right)) = (a.shape().last(), b.shape().last()) else { return false };
    let has_rows = |t: &Tensor, row: usize| (row.saturating_mul(MIN_ROWS)..=MAX_SIZE).contains(&t.size());
    has_rows(a, left) && has_rows(b, right) && left * right >= MIN_ROW
}

/// Computes yₖ = Σᵢⱼ aᵢ·Wₖᵢⱼ·cⱼ + bₖ, for a `[.., n]`, c `[.., m]`, W `[out, n, m]`, b `[out]`; y is `[.., out]`. The
/// leading axes of a and c broadcast. In half precision, y is computed in `f32` and rounded once.
///
/// The operation stores the products of one input with W: out·m (or out·n) elements for each row.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the last axes of a and c have the lengths of the last two axes of W;
/// [`Error::DTypeMismatch`]; the errors of the addition.
#[tensor_method]
pub fn bilinear(a: &Tensor, c: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let &[_, left, right] = weight.shape().dims() else {
        let help = "the weight must be [out, n, m]";
        return Err(Error::shapes("bilinear", [a.shape(), c.shape(), weight.shape()], help));
    };
    for (name, input, features) in [("first", a, left), ("second", c, right)] {
        if input.shape().last() != Some(&features) {
            let help = format!(
                "the {name} input must have {features} features on its last axis, like the weight {}",
                weight.shape()
            );
            return Err(Error::shapes("bilinear", [a.shape(), c.shape()], help));
        }
    }
    in_single!("bilinear", [a, c, weight; bias] => bilinear(a, c, weight, bias));
    let y = einsum("...i,kij,...j->...k", &[a, weight, c])?;
    match bias {
        None => Ok(y),
        Some(bias) => arithmetic::add(&y, bias),
    }
}
