//! Rearrangements in Einops notation: `"b (h 2) w -> b h w 2"` (Rogozhnikov, "Einops", 2022).
//!
//! The left side names the axes of x, and the right side names the axes of the result. Parentheses merge several axes
//! into one axis, in which the last of these axes varies fastest. `...` represents any number of axes. A number
//! represents an unnamed axis of this length. Lengths are inferred from x. In a pair of parentheses on the left side,
//! all lengths except one must be given.

use crate::ops::formula::broadcast;
use crate::ops::primitive::view;
use crate::ops::primitive::view::reshape_to;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{Error, Result, Shape};

/// Splits, merges and permutes the axes of x by the pattern. Every axis must be on both sides, except unnamed axes of
/// length 1.
///
/// ```
/// use pellucid::{DType, Tensor};
/// let x = Tensor::zeros([2, 8, 6, 3], DType::F32);
/// assert_eq!(x.rearrange("b h w c -> b c h w", &[]).shape().dims(), [2, 3, 8, 6]);
/// assert_eq!(x.rearrange("b (h s) (w t) c -> b (h w) (s t c)", &[("s", 2), ("t", 2)]).shape().dims(), [2, 12, 12]);
/// assert_eq!(x.rearrange("... c -> c (...)", &[]).shape().dims(), [3, 96]);
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for a malformed pattern, or a pattern with an axis on one side only;
/// [`Error::ShapeMismatch`] if x does not fit the pattern.
#[tensor_method]
pub fn rearrange(x: &Tensor, pattern: &str, lengths: &[(&str, usize)]) -> Result<Tensor> {
    let plan = EinopsPlan::new("rearrange", x, pattern, lengths)?;
    if let Some(axis) = plan.dropped_axes().next() {
        return Err(plan.invalid(format!("{} is on the left only: use reduce() to reduce it", plan.name(axis))));
    }
    if let Some(axis) = plan.new_axes().next() {
        return Err(plan.invalid(format!("{} is on the right only: use einops::repeat()", plan.name(axis))));
    }
    plan.finish(&plan.split_axes(x)?, &plan.left)
}

/// The reduction over the axes that only the left side contains; see [`reduce`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EinopsReduction {
    /// The sum of the elements.
    Sum,
    /// The mean of the elements.
    Mean,
    /// The largest element.
    Max,
    /// The smallest element.
    Min,
    /// The product of the elements.
    Prod,
}

/// Rearranges x as [`rearrange`] does, and reduces the axes that only the left side contains.
///
/// ```
/// use pellucid::{DType, Tensor, ops::einops::EinopsReduction};
/// let x = Tensor::ones([2, 3, 8, 6], DType::F32);
/// assert_eq!(x.reduce("b c (h 2) (w 2) -> b c h w", EinopsReduction::Max, &[]).shape().dims(), [2, 3, 4, 3]);
/// assert_eq!(x.reduce("b c h w -> c", EinopsReduction::Sum, &[]).to_vec::<f32>(), [96.0; 3]);
/// ```
///
/// # Errors
/// The errors of [`rearrange`], and of the reduction.
#[tensor_method]
pub fn reduce(x: &Tensor, pattern: &str, fold: EinopsReduction, lengths: &[(&str, usize)]) -> Result<Tensor> {
    let plan = EinopsPlan::new("reduce", x, pattern, lengths)?;
    if let Some(axis) = plan.new_axes().next() {
        return Err(plan.invalid(format!("{} is on the right only: use einops::repeat()", plan.name(axis))));
    }
    let dropped_axes: Vec<isize> =
        (0..plan.left.len()).filter(|&k| !plan.right.contains(&plan.left[k])).map(|k| k as isize).collect();
    let split = plan.split_axes(x)?;
    let remaining: Vec<usize> = plan.left.iter().copied().filter(|axis| plan.right.contains(axis)).collect();
    let folded = match fold {
        _ if dropped_axes.is_empty() => split,
        EinopsReduction::Sum => reductions::sum(&split, &dropped_axes[..])?,
        EinopsReduction::Mean => reductions::mean(&split, &dropped_axes[..])?,
        EinopsReduction::Max => reductions::max(&split, &dropped_axes[..])?,
        EinopsReduction::Min => reductions::min(&split, &dropped_axes[..])?,
        EinopsReduction::Prod => reductions::prod(&split, &dropped_axes[..])?,
    };
    plan.finish(&folded, &remaining)
}

/// Rearranges x as [`rearrange`] does, and repeats it along axes that only the right side contains.
///
/// ```
/// use pellucid::{ops::einops, Tensor};
/// let x = Tensor::from([1.0f32, 2.0]);
/// assert_eq!(einops::repeat(&x, "a -> (a 2)", &[])?.to_vec::<f32>(), [1.0, 1.0, 2.0, 2.0]);
/// assert_eq!(einops::repeat(&x, "a -> (r a)", &[("r", 2)])?.to_vec::<f32>(), [1.0, 2.0, 1.0, 2.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`rearrange`].
#[operation(entry = einops_repeat)]
pub fn repeat(x: &Tensor, pattern: &str, lengths: &[(&str, usize)]) -> Result<Tensor> {
    let plan = EinopsPlan::new("repeat", x, pattern, lengths)?;
    if let Some(axis) = plan.dropped_axes().next() {
        return Err(plan.invalid(format!("{} is on the left only: use reduce() to reduce it", plan.name(axis))));
    }
    let new: Vec<usize> = plan.new_axes().collect();
    let split = plan.split_axes(x)?;
    let shape: Shape = new.iter().map(|&axis| plan.axes[axis].len).chain(split.shape().iter().copied()).collect();
    let all_axes: Vec<usize> = new.iter().chain(&plan.left).copied().collect();
    plan.finish(&broadcast::broadcast_to(&split, shape)?, &all_axes)
}

/// An elementary axis, which the pattern does not split.
struct ElementaryAxis {
    /// The name; empty for an unnamed axis.
    name: String,
    len: usize,
}

/// A parsed pattern, with the lengths of all axes.
struct EinopsPlan {
    op: &'static str,
    pattern: String,
    axes: Vec<ElementaryAxis>,
    /// The elementary axes of x and of the result, as indices into `axes`.
    left: Vec<usize>,
    right: Vec<usize>,
    /// For each axis of the result, the number of elementary axes that it merges.
    joined: Vec<usize>,
}

/// One axis of a side of the pattern, which consists of elementary axes.
struct AxisGroup<'a> {
    parts: Vec<&'a str>,
    is_bracketed: bool,
}

impl AxisGroup<'_> {
    /// Returns true for `...` outside parentheses, which represents any number of axes.
    fn is_rest(&self) -> bool {
        !self.is_bracketed && self.parts == ["..."]
    }
}

impl EinopsPlan {
    fn new(op: &'static str, x: &Tensor, pattern: &str, given: &[(&str, usize)]) -> Result<EinopsPlan> {
        let invalid = |reason: String| Error::invalid(op, format!("{reason}, in \"{pattern}\""));
        let Some((left, right)) = pattern.split_once("->") else {
            return Err(invalid("the arrow -> is missing".into()));
        };
        let (left, right) = (parse_groups(left).map_err(invalid)?, parse_groups(right).map_err(invalid)?);
        let mut plan =
            EinopsPlan { op, pattern: pattern.into(), axes: vec![], left: vec![], right: vec![], joined: vec![] };
        let ellipsis = plan.add_left(x, &left, given)?;
        for group in &right {
            plan.add_right(group, ellipsis.as_deref(), given)?;
        }
        let twice = (0..plan.right.len()).find(|&k| plan.right[..k].contains(&plan.right[k]));
        if let Some(k) = twice {
            return Err(plan.invalid(format!("{} is on the right twice", plan.name(plan.right[k]))));
        }
        if let Some((name, _)) = given.iter().find(|(name, _)| plan.find(name).is_none()) {
            return Err(plan.invalid(format!("a length is given for {name}, which is not an axis of the pattern")));
        }
        Ok(plan)
    }

    /// Adds the axes of x. Returns the axes that `...` represents, if it occurs.
    fn add_left(&mut self, x: &Tensor, left: &[AxisGroup], given: &[(&str, usize)]) -> Result<Option<Vec<usize>>> {
        let named = left.iter().filter(|group| !group.is_rest()).count();
        let has_rest = left.iter().any(AxisGroup::is_rest);
        if left.iter().flat_map(|group| &group.parts).filter(|part| **part == "...").count() != usize::from(has_rest) {
            return Err(self.invalid("`...` may occur on the left at most once, and only outside parentheses".into()));
        }
        let more = x.rank().checked_sub(named).filter(|&more| has_rest || more == 0);
        let Some(more) = more else {
            let help = format!("x must have the {named} axes that the left side of \"{}\" names", self.pattern);
            return Err(Error::shapes(self.op, [x.shape()], help));
        };
        let (mut axis, mut ellipsis) = (0, None);
        for group in left {
            if group.is_rest() {
                let axes: Vec<usize> = x.shape()[axis..axis + more].iter().map(|&len| self.add("", len)).collect();
                self.left.extend(&axes);
                ellipsis = Some(axes);
                axis += more;
            } else {
                self.split_axis(x, axis, group, given)?;
                axis += 1;
            }
        }
        Ok(ellipsis)
    }

    /// Adds the elementary axes of one axis of x.
    fn split_axis(&mut self, x: &Tensor, axis: usize, group: &AxisGroup, given: &[(&str, usize)]) -> Result<()> {
        let len = x.shape()[axis];
        let parts: Vec<Option<usize>> = group.parts.iter().map(|part| length(part, given)).collect();
        let known_size = parts.iter().flatten().fold(1usize, |known_size, &len| known_size.saturating_mul(len));
        let fits = match parts.iter().filter(|part| part.is_none()).count() {
            0 => known_size == len,
            1 => known_size > 0 && len.is_multiple_of(known_size),
            _ => return Err(self.invalid(format!("more than one length of ({}) is unknown", group.parts.join(" ")))),
        };
        if !fits {
            let parts = group.parts.join(" ");
            let help = format!("({parts}) of \"{}\" cannot describe axis {axis} of length {len}", self.pattern);
            return Err(Error::shapes(self.op, [x.shape()], help));
        }
        for (part, part_len) in group.parts.iter().zip(parts) {
            if is_name(part) && self.find(part).is_some() {
                return Err(self.invalid(format!("{part} occurs twice")));
            }
            let elementary =
                self.add(if is_name(part) { part } else { "" }, part_len.unwrap_or(len / known_size.max(1)));
            self.left.push(elementary);
        }
        Ok(())
    }

    /// Adds one axis of the result, or the axes `ellipsis` that `...` represents.
    fn add_right(&mut self, group: &AxisGroup, ellipsis: Option<&[usize]>, given: &[(&str, usize)]) -> Result<()> {
        let before = self.right.len();
        for part in &group.parts {
            if *part == "..." {
                let Some(ellipsis) = ellipsis else { return Err(self.invalid("... is on the right only".into())) };
                self.right.extend(ellipsis);
                continue;
            }
            let existing = if is_name(part) { self.find(part) } else { None };
            let axis = match (existing, length(part, given)) {
                (Some(axis), _) => axis,
                (None, Some(len)) => self.add(if is_name(part) { part } else { "" }, len),
                (None, None) => {
                    return Err(self.invalid(format!("the length of {part} is unknown; pass it in `lengths`")));
                }
            };
            self.right.push(axis);
        }
        let added = self.right.len() - before;
        match group.is_rest() {
            true => self.joined.extend(std::iter::repeat_n(1, added)),
            false => self.joined.push(added),
        }
        Ok(())
    }

    fn invalid(&self, reason: String) -> Error {
        Error::invalid(self.op, format!("{reason}, in \"{}\"", self.pattern))
    }

    fn add(&mut self, name: &str, len: usize) -> usize {
        self.axes.push(ElementaryAxis { name: name.into(), len });
        self.axes.len() - 1
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    /// Returns the description of an axis for an error message.
    fn name(&self, axis: usize) -> String {
        let ElementaryAxis { name, len } = &self.axes[axis];
        if name.is_empty() { format!("the unnamed axis of length {len}") } else { format!("axis {name}") }
    }

    /// Returns the axes that only x has, except unnamed axes of length 1, which may be dropped.
    fn dropped_axes(&self) -> impl Iterator<Item = usize> + '_ {
        self.left.iter().copied().filter(|&axis| !self.right.contains(&axis) && !self.is_unnamed_unit(axis))
    }

    /// Returns the axes that only the result has, except unnamed axes of length 1, which may be inserted.
    fn new_axes(&self) -> impl Iterator<Item = usize> + '_ {
        self.right.iter().copied().filter(|&axis| !self.left.contains(&axis) && !self.is_unnamed_unit(axis))
    }

    fn is_unnamed_unit(&self, axis: usize) -> bool {
        self.axes[axis].name.is_empty() && self.axes[axis].len == 1
    }

    /// Splits x into its elementary axes.
    fn split_axes(&self, x: &Tensor) -> Result<Tensor> {
        reshape_to(x, &self.left.iter().map(|&axis| self.axes[axis].len).collect())
    }

    /// Permutes and merges the elementary axes `present` of a tensor to the axes of the result.
    fn finish(&self, x: &Tensor, present: &[usize]) -> Result<Tensor> {
        // Unnamed axes of length 1 may appear on only one side of the pattern.
        let order: Vec<usize> = self.right.iter().filter_map(|axis| present.iter().position(|h| h == axis)).collect();
        let gone: Vec<usize> = (0..present.len()).filter(|k| !order.contains(k)).collect();
        let order: Vec<isize> = order.iter().chain(&gone).map(|&k| k as isize).collect();
        let mut lengths = self.right.iter().map(|&axis| self.axes[axis].len);
        let shape: Shape =
            self.joined.iter().map(|&count| lengths.by_ref().take(count).fold(1, usize::saturating_mul)).collect();
        reshape_to(&view::permute(x, &order)?, &shape)
    }
}

/// Returns true if an item of a pattern is a name.
fn is_name(part: &str) -> bool {
    part != "..." && !part.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the length of an item that is a number, or whose length the caller provides.
fn length(part: &str, given: &[(&str, usize)]) -> Option<usize> {
    if is_name(part) { given.iter().find(|(name, _)| name == &part).map(|(_, len)| *len) } else { part.parse().ok() }
}

/// Parses the axes of one side into groups.
fn parse_groups(side: &str) -> std::result::Result<Vec<AxisGroup<'_>>, String> {
    let mut groups: Vec<AxisGroup<'_>> = vec![];
    let (mut inside, mut rest) = (false, side.trim_start());
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '(' if inside => return Err("parentheses must not be nested".into()),
            ')' if !inside => return Err("a closing parenthesis has no opening parenthesis".into()),
            '(' | ')' => {
                inside = first == '(';
                if inside {
                    groups.push(AxisGroup { parts: vec![], is_bracketed: true });
                }
                1
            }
            '.' if rest.starts_with("...") => 3,
            c if c.is_alphanumeric() || c == '_' => {
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())
            }
            other => return Err(format!("'{other}' is not allowed in a pattern")),
        };
        let part = &rest[..len];
        if !matches!(part, "(" | ")") {
            if part.starts_with(|c: char| c.is_ascii_digit()) && part.parse::<usize>().is_err() {
                return Err(format!("{part} is not a length; a name must not begin with a digit"));
            }
            match groups.last_mut().filter(|_| inside) {
                Some(group) => group.parts.push(part),
                None => groups.push(AxisGroup { parts: vec![part], is_bracketed: false }),
            }
        }
        rest = rest[len..].trim_start();
    }
    if inside { Err("a parenthesis is not closed".into()) } else { Ok(groups) }
}
