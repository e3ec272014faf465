//! Printing as NumPy does: aligned columns, and only the ends of what is long.

use super::Tensor;
use pellucid_ir::{DType, Scalar};
use std::fmt;

/// Tensors of more elements show only [`EDGE`] entries at both ends of every axis.
const WHOLE: usize = 1000;
const EDGE: usize = 3;
/// Digits after the point, at most.
const PRECISION: usize = 4;
/// Characters of a line before it is broken.
const WIDTH: usize = 78;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(cells) = Cells::read(self) else {
            return write!(f, "<no values yet: shape {}, {}>", self.shape(), self.dtype());
        };
        cells.write(f, &mut 0, 0)
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

/// The entries that are shown, as text of one width.
struct Cells {
    shape: Vec<usize>,
    shown: Vec<Vec<Option<usize>>>,
    text: Vec<String>,
}

impl Cells {
    fn read(tensor: &Tensor) -> crate::Result<Cells> {
        let shape = tensor.shape().to_vec();
        let short = tensor.size() > WHOLE;
        // Every axis lists its shown indices; `None` stands for what is left out.
        let list = |&len: &usize| -> Vec<Option<usize>> {
            if short && len > 2 * EDGE {
                (0..EDGE).map(Some).chain([None]).chain((len - EDGE..len).map(Some)).collect()
            } else {
                (0..len).map(Some).collect()
            }
        };
        let shown: Vec<_> = shape.iter().map(list).collect();
        // Only what is shown is read: the ends of each axis, side by side.
        let mut part = tensor.detach();
        for (axis, indices) in shown.iter().enumerate() {
            if indices.contains(&None) {
                let axis = axis as isize;
                let low = crate::ops::narrow(&part, axis, 0, EDGE)?;
                let high = crate::ops::narrow(&part, axis, part.shape()[axis as usize] - EDGE, EDGE)?;
                part = crate::ops::concatenate(&[&low, &high], axis)?;
            }
        }
        let text = if tensor.dtype().is_float() {
            floats(&part.try_to_vec::<f64>()?, tensor.dtype())
        } else if tensor.dtype() == DType::Bool {
            part.try_to_vec::<bool>()?.iter().map(|b| b.to_string()).collect()
        } else {
            part.try_to_vec::<i64>()?.iter().map(|&i| Scalar::Int(i).to_string()).collect()
        };
        let width = text.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        let text = text.into_iter().map(|t| format!("{t:>width$}")).collect();
        Ok(Cells { shape, shown, text })
    }

    /// Writes the block at `axis`; `next` counts the texts that were used.
    fn write(&self, f: &mut fmt::Formatter<'_>, next: &mut usize, axis: usize) -> fmt::Result {
        if axis == self.shape.len() {
            let text = &self.text[*next];
            *next += 1;
            return f.write_str(if self.shape.is_empty() { text.trim_start() } else { text });
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

/// Floats with as many digits after the point as the shortest exact text of any needs, at most
/// [`PRECISION`]; in scientific notation where fixed would hide digits.
fn floats(values: &[f64], dtype: DType) -> Vec<String> {
    let finite = || values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).map(f64::abs);
    let (largest, smallest) = (finite().fold(0.0, f64::max), finite().fold(f64::INFINITY, f64::min));
    let scientific = largest >= 1e8 || smallest < 1e-4 || (largest > 0.0 && largest / smallest > 1e3);
    let shortest = |v: f64| match dtype {
        DType::F64 => format!("{v}"),
        _ => format!("{}", v as f32),
    };
    let fraction = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = values.iter().filter(|v| v.is_finite()).map(|&v| fraction(&shortest(v))).max().unwrap_or(0);
    let digits = digits.min(PRECISION);
    let text = |&v: &f64| match v {
        v if v.is_nan() => "nan".to_string(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_string(),
        v if scientific => exponent(format!("{v:.PRECISION$e}")),
        v if digits == 0 => format!("{v:.0}."),
        v => format!("{v:.digits$}"),
    };
    let text: Vec<String> = values.iter().map(text).collect();
    // NumPy drops zeros at the end and keeps the columns aligned.
    let kept = text.iter().filter(|t| !scientific && t.contains('.')).map(|t| fraction(t.trim_end_matches('0'))).max();
    let trim = |t: String| match (t.split_once('.'), kept) {
        (Some((whole, fraction)), Some(kept)) if !scientific => format!("{whole}.{}", &fraction[..kept.min(fraction.len())]),
        _ => t,
    };
    text.into_iter().map(trim).collect()
}

/// Rust writes `1.5e-7`, NumPy `1.5e-07`.
fn exponent(text: String) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(("+", exponent), |d| ("-", d));
    format!("{mantissa}e{sign}{digits:0>2}")
}
