//! Printing as NumPy does: aligned columns, and only the ends of long axes.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result, Scalar};
use std::fmt;
use std::sync::{PoisonError, RwLock};

/// Maximum number of elements that are printed.
const MAX_SHOWN: usize = 1 << 20;
/// Maximum number of digits after the point, a limit of `std::fmt`.
const MAX_DIGITS: usize = u16::MAX as usize;

/// How tensors are printed. The fields are the arguments of PyTorch's `set_printoptions`.
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
    /// Tensors of more elements show only the ends of their axes. The default is 1000.
    pub threshold: usize,
    /// The number of elements of a long axis that are shown at each end. The default is 3.
    pub edgeitems: usize,
    /// The maximum number of characters in a line. The default is 78.
    pub linewidth: usize,
    /// Whether floats are printed with exponents. `None`, the default, prints them if digits would otherwise be hidden.
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
    /// Whether positive numbers have a sign.
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

    /// Pads the text of an element to `width` characters.
    fn pad(&self, text: &str, width: usize) -> String {
        let missing = width.saturating_sub(text.chars().count());
        let before = match self.alignment {
            fmt::Alignment::Left => 0,
            fmt::Alignment::Center => missing / 2,
            fmt::Alignment::Right => missing,
        };
        let fill = |count: usize| self.fill.to_string().repeat(count);
        format!("{}{text}{}", fill(before), fill(missing - before))
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
    /// Prints the elements, see [`PrintOptions`].
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

/// A tensor with the options of its printing; [`Tensor::display`] returns it.
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

/// The printed elements, as texts of one width.
struct PrintedElements {
    linewidth: usize,
    shape: Vec<usize>,
    shown: Vec<Vec<Option<usize>>>,
    text: Vec<String>,
}

/// Returns the edge items of a tensor along `axis` and all later axes. Each axis is sliced before anything is copied.
fn ends_of(tensor: &Tensor, shown: &[Vec<Option<usize>>], axis: usize) -> Result<Tensor> {
    let Some(indices) = shown.get(axis) else { return Ok(tensor.clone()) };
    let Some(edge) = indices.iter().position(Option::is_none) else { return ends_of(tensor, shown, axis + 1) };
    let along = axis as isize;
    let low = ops::narrow(tensor, along, 0, edge)?;
    let high = ops::narrow(tensor, along, tensor.shape()[axis] - edge, edge)?;
    ops::concatenate(&[&ends_of(&low, shown, axis + 1)?, &ends_of(&high, shown, axis + 1)?], along)
}

/// Returns true if only the ends of long axes are printed: for many elements, or many rows without elements.
fn is_long(shape: &[usize], threshold: usize) -> bool {
    shape.iter().product::<usize>() > threshold || shape.iter().any(|&len| len > threshold)
}

impl PrintedElements {
    fn read(tensor: &Tensor, style: &ElementFormat) -> Result<PrintedElements> {
        let shape = tensor.shape().to_vec();
        let edge = style.options.edgeitems;
        let (both, short) = (edge.saturating_mul(2), is_long(&shape, style.options.threshold));
        // The printed indices of every axis; `None` represents the omitted ones.
        let list = |&len: &usize| -> Vec<Option<usize>> {
            if short && len > both {
                (0..edge).map(Some).chain([None]).chain((len - edge..len).map(Some)).collect()
            } else {
                (0..len).map(Some).collect()
            }
        };
        // A tensor of many axes has too many ends to print.
        let ends = |&len: &usize| if short { len.min(both) } else { len };
        if shape.iter().map(ends).fold(1, usize::saturating_mul) > MAX_SHOWN {
            return Err(Error::invalid("print", "too many elements to print"));
        }
        let shown: Vec<_> = shape.iter().map(list).collect();
        let text = engine::preserving_errors(tensor.device(), || {
            let part = ends_of(&tensor.detach(), &shown, 0)?;
            texts_of(&part, style)
        })?;
        let width = text.iter().map(|t| t.chars().count()).fold(style.width, usize::max);
        let text = text.iter().map(|t| style.pad(t, width)).collect();
        Ok(PrintedElements { linewidth: style.options.linewidth, shape, shown, text })
    }

    /// Writes the elements of the axes starting at `axis`. `next` is the index of the next text.
    fn write(&self, f: &mut fmt::Formatter<'_>, next: &mut usize, axis: usize) -> fmt::Result {
        if axis == self.shape.len() {
            let text = &self.text[*next];
            *next += 1;
            return f.write_str(text);
        }
        f.write_str("[")?;
        let inner = self.shape.len() - axis - 1;
        let mut column = axis + 1;
        for (k, index) in self.shown[axis].iter().enumerate() {
            let width = if inner > 0 { 0 } else { index.map_or(3, |_| self.text[*next].chars().count()) };
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

/// Reads the elements as texts.
fn texts_of(part: &Tensor, style: &ElementFormat) -> Result<Vec<String>> {
    let mut texts: Vec<String> = match part.dtype() {
        dtype if dtype.is_float() => format_floats(&part.try_to_vec::<f64>()?, dtype, style),
        DType::Bool => return Ok(part.try_to_vec::<bool>()?.iter().map(|b| b.to_string()).collect()),
        _ => part.try_to_vec::<i64>()?.iter().map(|&i| Scalar::Int(i).to_string()).collect(),
    };
    if style.has_plus {
        // As for Rust's numbers, NaN has no sign.
        texts.iter_mut().filter(|t| !t.starts_with('-') && *t != "nan").for_each(|t| t.insert(0, '+'));
    }
    Ok(texts)
}

/// Formats floats with aligned points. Unless an exact number of digits after the point is requested, the longest
/// shortest-exact text determines it, up to the precision. By default, scientific notation is used if a fixed one would
/// hide digits.
fn format_floats(values: &[f64], dtype: DType, style: &ElementFormat) -> Vec<String> {
    let precision = style.options.precision;
    let finite = || values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).map(f64::abs);
    let (largest, smallest) = (finite().fold(0.0, f64::max), finite().fold(f64::INFINITY, f64::min));
    let hides_digits = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3;
    let scientific = style.options.sci_mode.unwrap_or(hides_digits);
    // (before the point, after it, the exponent)
    let parts = |v: f64| -> (String, String, String) {
        let (shortest, rounded) = match (scientific, dtype) {
            (false, DType::F64) => (format!("{v}"), format!("{v:.precision$}")),
            (false, _) => (format!("{}", v as f32), format!("{v:.precision$}")),
            (true, DType::F64) => (format!("{v:e}"), format!("{v:.precision$e}")),
            (true, _) => (format!("{:e}", v as f32), format!("{v:.precision$e}")),
        };
        let cut = |text: &str| {
            let (number, exponent) = text.split_once('e').unwrap_or((text, ""));
            let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
            let fraction = if style.is_exact { fraction } else { fraction.trim_end_matches('0') };
            (integer.to_string(), fraction.to_string(), exponent.to_string())
        };
        let exact = cut(&shortest);
        if !style.is_exact && exact.1.len() <= precision { exact } else { cut(&rounded) }
    };
    let all: Vec<_> = values.iter().map(|&v| v.is_finite().then(|| parts(v))).collect();
    let digits = all.iter().flatten().map(|p| p.1.len()).max().unwrap_or(0);
    let point = if style.is_exact && precision == 0 { "" } else { "." };
    let text = |(value, parts): (&f64, &Option<(String, String, String)>)| match parts {
        None if value.is_nan() => "nan".to_string(),
        None => if *value > 0.0 { "inf" } else { "-inf" }.to_string(),
        Some((integer, fraction, power)) if scientific => {
            format!("{integer}{point}{fraction:0<digits$}{}", format_exponent(power))
        }
        Some((integer, fraction, _)) => format!("{integer}{point}{fraction:<digits$}"),
    };
    values.iter().zip(&all).map(text).collect()
}

/// Formats an exponent as NumPy does: `e-07`, where Rust writes `e-7`.
fn format_exponent(power: &str) -> String {
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |d| ('-', d));
    format!("e{sign}{digits:0>2}")
}
