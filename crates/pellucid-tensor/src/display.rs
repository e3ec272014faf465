//! Printing as NumPy does: aligned columns, and only the edge items of long axes.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result, Scalar};
use std::fmt;
use std::sync::{PoisonError, RwLock};

/// The maximum number of elements that are printed.
const MAX_SHOWN: usize = 1 << 20;
/// The maximum number of digits after the point, a limit of `std::fmt`.
const MAX_DIGITS: usize = u16::MAX as usize;

/// The options for printing tensors. The fields are the arguments of PyTorch's `set_printoptions`.
///
/// [`Tensor::display`] prints with given options, and [`set_printoptions`] changes them for the process. A format
/// string has precedence, as for numbers: `{x:.2}` prints exactly two digits after the point, `{x:e}` and `{x:.2e}`
/// print exponents, `{x:8.2}` pads every element to 8 characters (`<`, `^` and `>` align it), and `{x:+}` prints the
/// sign of positive numbers.
///
/// ```
/// use pellucid::{PrintOptions, Tensor};
/// let x = Tensor::from([1.0, 2.0 / 3.0]);
/// assert_eq!(x.to_string(), "[1.     0.6667]");
/// assert_eq!(format!("{x:.2}"), "[1.00 0.67]");
/// assert_eq!(format!("{x:.1e}"), "[1.0e+00 6.7e-01]");
/// assert_eq!(x.display(PrintOptions { precision: 8, ..Default::default() }).to_string(), "[1.         0.66666667]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// The maximum number of digits after the point. The default is 4.
    pub precision: usize,
    /// Tensors with more elements show only the edge items of each axis. The default is 1000.
    pub threshold: usize,
    /// The number of edge items at each end of a summarized axis. The default is 3.
    pub edgeitems: usize,
    /// The maximum number of characters in a line. The default is 78.
    pub linewidth: usize,
    /// Whether floats are printed with exponents. `None`, the default, prints exponents if the largest magnitude is at
    /// least 10⁸, the smallest nonzero magnitude is less than 10⁻⁴, or their ratio exceeds 1000.
    pub sci_mode: Option<bool>,
}

impl PrintOptions {
    const DEFAULT: PrintOptions =
        PrintOptions { precision: 4, threshold: 1000, edgeitems: 3, linewidth: 78, sci_mode: None };
}

impl Default for PrintOptions {
    fn default() -> PrintOptions {
        PrintOptions::DEFAULT
    }
}

static PRINT_OPTIONS: RwLock<PrintOptions> = RwLock::new(PrintOptions::DEFAULT);

/// Sets the options with which all threads print tensors.
///
/// ```
/// use pellucid::{PrintOptions, Tensor, get_printoptions, set_printoptions};
/// set_printoptions(PrintOptions { precision: 2, ..get_printoptions() });
/// assert_eq!(Tensor::from([1.0, 2.0 / 3.0]).to_string(), "[1.   0.67]");
/// set_printoptions(PrintOptions::default());
/// ```
pub fn set_printoptions(options: PrintOptions) {
    *PRINT_OPTIONS.write().unwrap_or_else(PoisonError::into_inner) = options;
}

/// Returns the options with which tensors are printed.
pub fn get_printoptions() -> PrintOptions {
    *PRINT_OPTIONS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Options together with the flags of a format string.
struct ElementFormat {
    options: PrintOptions,
    /// Whether floats have exactly `options.precision` digits.
    is_exact: bool,
    /// The minimum number of characters of an element.
    width: usize,
    alignment: fmt::Alignment,
    fill: char,
    /// Whether numbers without a minus sign get a plus sign.
    has_plus: bool,
}

impl ElementFormat {
    fn new(mut options: PrintOptions, f: &fmt::Formatter<'_>) -> ElementFormat {
        options.precision = f.precision().unwrap_or(options.precision).min(MAX_DIGITS);
        if f.precision().is_some() {
            options.sci_mode = options.sci_mode.or(Some(false));
        }
        ElementFormat {
            options,
            is_exact: f.precision().is_some(),
            width: f.width().unwrap_or(0),
            alignment: f.align().unwrap_or(fmt::Alignment::Right),
            fill: f.fill(),
            has_plus: f.sign_plus(),
        }
    }

    /// Pads a formatted element to `width` characters.
    fn pad(&self, element: &str, width: usize) -> String {
        let missing = width.saturating_sub(element.chars().count());
        let before = match self.alignment {
            fmt::Alignment::Left => 0,
            fmt::Alignment::Center => missing / 2,
            fmt::Alignment::Right => missing,
        };
        let fill = |count: usize| self.fill.to_string().repeat(count);
        format!("{}{element}{}", fill(before), fill(missing - before))
    }
}

fn print(tensor: &Tensor, options: PrintOptions, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let style = ElementFormat::new(options, f);
    match PrintedElements::read(tensor, &style) {
        Ok(cells) => cells.write(f, &mut 0, 0),
        Err(Error::ReadInCapture { .. } | Error::Poisoned { .. } | Error::NotComputed { .. }) => {
            write!(f, "<no values yet: shape {}, {}>", tensor.shape(), tensor.dtype())
        }
        Err(error) => write!(f, "<{error}: shape {}, {}>", tensor.shape(), tensor.dtype()),
    }
}

impl fmt::Display for Tensor {
    /// Prints the elements as described in [`PrintOptions`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self, get_printoptions(), f)
    }
}

impl fmt::LowerExp for Tensor {
    /// Prints floats with exponents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self, PrintOptions { sci_mode: Some(true), ..get_printoptions() }, f)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tensor(")?;
        fmt::Display::fmt(self, f)?;
        write!(f, ", shape {}, {}", self.shape(), self.dtype())?;
        match self.creator() {
            Some(node) => write!(f, ", by {})", node.name()),
            None if self.requires_grad() => f.write_str(", requires_grad)"),
            None => f.write_str(")"),
        }
    }
}

/// A tensor with print options, as [`Tensor::display`] returns it.
struct DisplayTensor<'a>(&'a Tensor, PrintOptions);

impl fmt::Display for DisplayTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, self.1, f)
    }
}

impl Tensor {
    /// Returns a value that prints the elements with these options.
    pub fn display(&self, options: PrintOptions) -> impl fmt::Display + '_ {
        DisplayTensor(self, options)
    }
}

/// The printed elements, formatted and padded to one width.
struct PrintedElements {
    linewidth: usize,
    shape: Vec<usize>,
    printed_indices: Vec<Vec<Option<usize>>>,
    elements: Vec<String>,
}

/// Returns the edge items of a tensor along `axis` and all later axes. Each axis is sliced before anything is copied.
fn edge_items(tensor: &Tensor, printed_indices: &[Vec<Option<usize>>], axis: usize) -> Result<Tensor> {
    let Some(indices) = printed_indices.get(axis) else { return Ok(tensor.clone()) };
    let Some(edge) = indices.iter().position(Option::is_none) else {
        return edge_items(tensor, printed_indices, axis + 1);
    };
    let along = axis as isize;
    let low = ops::narrow(tensor, along, 0, edge)?;
    let high = ops::narrow(tensor, along, tensor.shape()[axis] - edge, edge)?;
    ops::concatenate(
        &[&edge_items(&low, printed_indices, axis + 1)?, &edge_items(&high, printed_indices, axis + 1)?],
        along,
    )
}

/// Returns true if only edge items are printed: if there are more elements than `threshold`, or if an axis is longer,
/// for example in a tensor of many empty rows.
fn must_summarize(shape: &[usize], threshold: usize) -> bool {
    shape.iter().product::<usize>() > threshold || shape.iter().any(|&len| len > threshold)
}

impl PrintedElements {
    fn read(tensor: &Tensor, style: &ElementFormat) -> Result<PrintedElements> {
        let shape = tensor.shape().to_vec();
        let edge = style.options.edgeitems;
        let (edges, is_summarized) = (edge.saturating_mul(2), must_summarize(&shape, style.options.threshold));
        // The printed indices of every axis; `None` stands for the omitted indices.
        let list = |&len: &usize| -> Vec<Option<usize>> {
            if is_summarized && len > edges {
                (0..edge).map(Some).chain([None]).chain((len - edge..len).map(Some)).collect()
            } else {
                (0..len).map(Some).collect()
            }
        };
        // A tensor with many axes can have too many edge items to print.
        let printed_len = |&len: &usize| if is_summarized { len.min(edges) } else { len };
        if shape.iter().map(printed_len).fold(1, usize::saturating_mul) > MAX_SHOWN {
            return Err(Error::invalid("print", "too many elements to print; print a slice of the tensor"));
        }
        let printed_indices: Vec<_> = shape.iter().map(list).collect();
        let elements = engine::preserving_errors(tensor.device(), || {
            let printed = edge_items(&tensor.detach(), &printed_indices, 0)?;
            format_elements(&printed, style)
        })?;
        let width = elements.iter().map(|e| e.chars().count()).fold(style.width, usize::max);
        let elements = elements.iter().map(|e| style.pad(e, width)).collect();
        Ok(PrintedElements { linewidth: style.options.linewidth, shape, printed_indices, elements })
    }

    /// Writes the elements of the axes starting at `axis`. `next` is the index of the next element.
    fn write(&self, f: &mut fmt::Formatter<'_>, next: &mut usize, axis: usize) -> fmt::Result {
        if axis == self.shape.len() {
            let element = &self.elements[*next];
            *next += 1;
            return f.write_str(element);
        }
        f.write_str("[")?;
        let inner = self.shape.len() - axis - 1;
        let mut column = axis + 1;
        for (k, index) in self.printed_indices[axis].iter().enumerate() {
            let width = if inner > 0 { 0 } else { index.map_or(3, |_| self.elements[*next].chars().count()) };
            if k > 0 && inner > 0 {
                f.write_str(&"\n".repeat(inner))?;
                f.write_str(&" ".repeat(axis + 1))?;
            } else if k > 0 && column + 1 + width > self.linewidth {
                write!(f, "\n{}", " ".repeat(axis + 1))?;
                column = axis + 1;
            } else if k > 0 {
                f.write_str(" ")?;
                column += 1;
            }
            column += width;
            match index {
                Some(_) => self.write(f, next, axis + 1)?,
                None => f.write_str("...")?,
            }
        }
        f.write_str("]")
    }
}

/// Reads and formats the elements.
fn format_elements(tensor: &Tensor, style: &ElementFormat) -> Result<Vec<String>> {
    let mut elements: Vec<String> = match tensor.dtype() {
        dtype if dtype.is_float() => format_floats(&tensor.try_to_vec::<f64>()?, dtype, style),
        DType::Bool => return Ok(tensor.try_to_vec::<bool>()?.iter().map(|b| b.to_string()).collect()),
        _ => tensor.try_to_vec::<i64>()?.iter().map(|&i| Scalar::Int(i).to_string()).collect(),
    };
    if style.has_plus {
        // As for Rust's numbers, NaN has no sign.
        elements.iter_mut().filter(|e| !e.starts_with('-') && *e != "nan").for_each(|e| e.insert(0, '+'));
    }
    Ok(elements)
}

/// Formats floats with aligned decimal points. The number of digits after the point is the number that the elements
/// need to be printed exactly, up to the precision, unless the format string sets it. By default, scientific notation
/// is used for very large or small values, and for values of very different magnitudes.
fn format_floats(values: &[f64], dtype: DType, style: &ElementFormat) -> Vec<String> {
    let precision = style.options.precision;
    let finite = || values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).map(f64::abs);
    let (largest, smallest) = (finite().fold(0.0, f64::max), finite().fold(f64::INFINITY, f64::min));
    let hides_digits = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3;
    let is_scientific = style.options.sci_mode.unwrap_or(hides_digits);
    // The tuple is (digits before the point, digits after it, exponent).
    let parts = |v: f64| -> (String, String, String) {
        let (shortest, rounded) = match (is_scientific, dtype) {
            (false, DType::F64) => (format!("{v}"), format!("{v:.precision$}")),
            (false, _) => (format!("{}", v as f32), format!("{v:.precision$}")),
            (true, DType::F64) => (format!("{v:e}"), format!("{v:.precision$e}")),
            (true, _) => (format!("{:e}", v as f32), format!("{v:.precision$e}")),
        };
        let cut = |formatted: &str| {
            let (mantissa, exponent) = formatted.split_once('e').unwrap_or((formatted, ""));
            let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
            let fraction = if style.is_exact { fraction } else { fraction.trim_end_matches('0') };
            (integer.to_string(), fraction.to_string(), exponent.to_string())
        };
        let exact = cut(&shortest);
        if !style.is_exact && exact.1.len() <= precision { exact } else { cut(&rounded) }
    };
    let all_parts: Vec<_> = values.iter().map(|&v| v.is_finite().then(|| parts(v))).collect();
    let digits = all_parts.iter().flatten().map(|p| p.1.len()).max().unwrap_or(0);
    let point = if style.is_exact && precision == 0 { "" } else { "." };
    let format_one = |(value, parts): (&f64, &Option<(String, String, String)>)| match parts {
        None if value.is_nan() => "nan".to_string(),
        None => if *value > 0.0 { "inf" } else { "-inf" }.to_string(),
        Some((integer, fraction, power)) if is_scientific => {
            format!("{integer}{point}{fraction:0<digits$}{}", format_exponent(power))
        }
        Some((integer, fraction, _)) => format!("{integer}{point}{fraction:<digits$}"),
    };
    values.iter().zip(&all_parts).map(format_one).collect()
}

/// Formats an exponent as NumPy does: `e-07`, where Rust writes `e-7`.
fn format_exponent(power: &str) -> String {
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |d| ('-', d));
    format!("e{sign}{digits:0>2}")
}
