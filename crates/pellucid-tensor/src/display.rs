//! Printing as NumPy does: aligned columns, and only the ends of long axes.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result, Scalar};
use std::fmt;

/// Tensors of more elements show only [`EDGE`] elements at both ends of every axis.
const MAX_FULL_SIZE: usize = 1000;
const EDGE: usize = 3;
/// Maximum number of elements that are printed.
const MOST_SHOWN: usize = 1 << 20;
/// Maximum number of digits after the point.
const PRECISION: usize = 4;
/// Maximum number of characters in a line.
const WIDTH: usize = 78;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PrintedElements::read(self) {
            Ok(cells) => cells.write(f, &mut 0, 0),
            Err(Error::ReadInCapture { .. } | Error::Poisoned { .. } | Error::NotComputed { .. }) => {
                write!(f, "<no values yet: shape {}, {}>", self.shape(), self.dtype())
            }
            Err(error) => write!(f, "<{error}: shape {}, {}>", self.shape(), self.dtype()),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({self}, shape {}, {}", self.shape(), self.dtype())?;
        match self.creator() {
            Some(node) => write!(f, ", by {})", node.name()),
            None if self.requires_grad() => f.write_str(", requires_grad)"),
            None => f.write_str(")"),
        }
    }
}

/// The printed elements, as texts of one width.
struct PrintedElements {
    shape: Vec<usize>,
    shown: Vec<Vec<Option<usize>>>,
    text: Vec<String>,
}

/// Returns the printed part of a tensor: the ends of each axis, from `axis` on, concatenated. Each axis is sliced
/// before anything is copied.
fn ends_of(tensor: &Tensor, shown: &[Vec<Option<usize>>], axis: usize) -> Result<Tensor> {
    let Some(indices) = shown.get(axis) else { return Ok(tensor.clone()) };
    if !indices.contains(&None) {
        return ends_of(tensor, shown, axis + 1);
    }
    let along = axis as isize;
    let low = ops::narrow(tensor, along, 0, EDGE)?;
    let high = ops::narrow(tensor, along, tensor.shape()[axis] - EDGE, EDGE)?;
    ops::concatenate(&[&ends_of(&low, shown, axis + 1)?, &ends_of(&high, shown, axis + 1)?], along)
}

impl PrintedElements {
    fn read(tensor: &Tensor) -> Result<PrintedElements> {
        let shape = tensor.shape().to_vec();
        let short = tensor.size() > MAX_FULL_SIZE;
        // The printed indices of every axis; `None` represents the omitted ones.
        let list = |&len: &usize| -> Vec<Option<usize>> {
            if short && len > 2 * EDGE {
                (0..EDGE).map(Some).chain([None]).chain((len - EDGE..len).map(Some)).collect()
            } else {
                (0..len).map(Some).collect()
            }
        };
        // A tensor of many axes has too many ends to print.
        let ends = |&len: &usize| if short { len.min(2 * EDGE) } else { len };
        if shape.iter().map(ends).fold(1, usize::saturating_mul) > MOST_SHOWN {
            return Err(Error::invalid("print", "too many elements to print"));
        }
        let shown: Vec<_> = shape.iter().map(list).collect();
        let text = engine::without_report(tensor.device(), || {
            let part = ends_of(&tensor.detach(), &shown, 0)?;
            texts_of(&part)
        })?;
        let width = text.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        let text = text.into_iter().map(|t| format!("{t:>width$}")).collect();
        Ok(PrintedElements { shape, shown, text })
    }

    /// Writes the elements of the axes from `axis` on. `next` is the index of the next text.
    fn write(&self, f: &mut fmt::Formatter<'_>, next: &mut usize, axis: usize) -> fmt::Result {
        if axis == self.shape.len() {
            let text = &self.text[*next];
            *next += 1;
            return f.write_str(if self.shape.is_empty() { text.trim() } else { text });
        }
        f.write_str("[")?;
        let inner = self.shape.len() - axis - 1;
        let mut column = axis + 1;
        for (k, index) in self.shown[axis].iter().enumerate() {
            let width = if inner > 0 { 0 } else { index.map_or(3, |_| self.text[*next].chars().count()) };
            if k > 0 && inner > 0 {
                f.write_str(&"\n".repeat(inner))?;
                f.write_str(&" ".repeat(axis + 1))?;
            } else if k > 0 && column + 1 + width > WIDTH {
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
fn texts_of(part: &Tensor) -> Result<Vec<String>> {
    Ok(match part.dtype() {
        dtype if dtype.is_float() => format_floats(&part.try_to_vec::<f64>()?, dtype),
        DType::Bool => part.try_to_vec::<bool>()?.iter().map(|b| b.to_string()).collect(),
        _ => part.try_to_vec::<i64>()?.iter().map(|&i| Scalar::Int(i).to_string()).collect(),
    })
}

/// Formats floats with aligned points. The number of digits after the point is that of the longest shortest-exact text,
/// at most [`PRECISION`]. Scientific notation is used if a fixed one would hide digits.
fn format_floats(values: &[f64], dtype: DType) -> Vec<String> {
    let finite = || values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).map(f64::abs);
    let (largest, smallest) = (finite().fold(0.0, f64::max), finite().fold(f64::INFINITY, f64::min));
    let scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3;
    // (before the point, after it, the exponent)
    let parts = |v: f64| -> (String, String, String) {
        let (shortest, rounded) = match (scientific, dtype) {
            (false, DType::F64) => (format!("{v}"), format!("{v:.PRECISION$}")),
            (false, _) => (format!("{}", v as f32), format!("{v:.PRECISION$}")),
            (true, DType::F64) => (format!("{v:e}"), format!("{v:.PRECISION$e}")),
            (true, _) => (format!("{:e}", v as f32), format!("{v:.PRECISION$e}")),
        };
        let cut = |text: &str| {
            let (number, exponent) = text.split_once('e').unwrap_or((text, ""));
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            (whole.to_string(), fraction.trim_end_matches('0').to_string(), exponent.to_string())
        };
        let exact = cut(&shortest);
        if exact.1.len() <= PRECISION { exact } else { cut(&rounded) }
    };
    let all: Vec<_> = values.iter().map(|&v| v.is_finite().then(|| parts(v))).collect();
    let digits = all.iter().flatten().map(|p| p.1.len()).max().unwrap_or(0);
    let text = |(value, parts): (&f64, &Option<(String, String, String)>)| match parts {
        None if value.is_nan() => "nan".to_string(),
        None => if *value > 0.0 { "inf" } else { "-inf" }.to_string(),
        Some((whole, fraction, power)) if scientific => {
            format!("{whole}.{fraction:0<digits$}{}", format_exponent(power))
        }
        Some((whole, fraction, _)) => format!("{whole}.{fraction:<digits$}"),
    };
    values.iter().zip(&all).map(text).collect()
}

/// Formats an exponent as NumPy does: `e-07`, where Rust writes `e-7`.
fn format_exponent(power: &str) -> String {
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |d| ('-', d));
    format!("e{sign}{digits:0>2}")
}
