//! Aligned tables of text, and the format of numbers in them.

use std::fmt;

/// Writes rows of cells with aligned columns, two spaces apart. The first column is aligned to the left, the others to
/// the right. All rows have the same number of cells.
pub(crate) fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => write!(f, "{cell:<width$}")?,
                _ => write!(f, "  {cell:>width$}")?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Formats a number with four decimals, or in scientific notation if it is nonzero and its magnitude is below 0.001 or
/// at least 10⁶. NaN and infinity are written as words.
pub(crate) fn decimal_text(value: f64) -> String {
    match value.abs() {
        0.0 | 1e-3..1e6 => format!("{value:.4}"),
        size if size.is_finite() => format!("{value:.3e}"),
        _ => value.to_string(),
    }
}
