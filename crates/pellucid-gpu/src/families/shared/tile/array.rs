//! [`TiledArray`]: an operand of a tiled product, and the expressions of its offsets.

use crate::operand::DeviceArray;
use crate::shader::{ElementRef, SELECT_LOADED, ShaderBuilder, digits, wgsl_type};
use pellucid_ir::{Compute, are_one_axis};

/// One digit of a row, a column or a k index in mixed radix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IndexDigit {
    pub(crate) len: usize,
    /// The stride of neighbouring values in elements.
    pub(crate) stride: isize,
    /// The coordinate to which the digit contributes, and the factor of its contribution.
    pub(crate) coordinate: Option<(usize, isize)>,
}

impl IndexDigit {
    /// Returns a digit that moves the offset by `stride`.
    pub(crate) fn plain(len: usize, stride: isize) -> IndexDigit {
        IndexDigit { len, stride, coordinate: None }
    }

    /// Returns a digit that adds `factor` to a coordinate.
    pub(crate) fn along(len: usize, coordinate: usize, factor: isize) -> IndexDigit {
        IndexDigit { len, stride: 0, coordinate: Some((coordinate, factor)) }
    }
}

/// A coordinate of an element: `start` plus the contributions of the digits of both indices. Elements whose coordinate
/// is not in `0..len` are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coordinate {
    pub(crate) len: usize,
    /// The coordinate if all digits are 0.
    pub(crate) start: isize,
    /// The stride of neighbouring positions in elements.
    pub(crate) stride: isize,
}

/// An operand of a tiled product: a batch of matrices. The offset of an element is the sum of a part that depends on
/// the row and a part that depends on the column. An element with a coordinate out of range is 0.
#[derive(Clone, Debug)]
pub(crate) struct TiledArray<'a> {
    pub(crate) array: DeviceArray<'a>,
    /// The offset of the first element.
    pub(crate) start: isize,
    /// The strides of the batch axes.
    pub(crate) batch: Vec<isize>,
    /// The digits of the row, the most significant first.
    pub(crate) rows: Vec<IndexDigit>,
    /// The digits of the column, the most significant first.
    pub(crate) columns: Vec<IndexDigit>,
    pub(crate) coordinates: Vec<Coordinate>,
}

/// The axis of a matrix along which four elements are loaded together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum QuadAxis {
    Row,
    Column,
}

impl<'a> TiledArray<'a> {
    /// Creates a batch of matrices with one stride for rows and one for columns.
    pub(crate) fn matrix(
        array: DeviceArray<'a>,
        batch: Vec<isize>,
        [rows, columns]: [(usize, isize); 2],
    ) -> TiledArray<'a> {
        TiledArray {
            array,
            start: array.layout.offset() as isize,
            batch,
            rows: vec![IndexDigit::plain(rows.0, rows.1)],
            columns: vec![IndexDigit::plain(columns.0, columns.1)],
            coordinates: Vec::new(),
        }
        .simplified()
    }

    /// Returns the array with rows and columns exchanged.
    pub(crate) fn transposed(self) -> TiledArray<'a> {
        TiledArray { rows: self.columns, columns: self.rows, ..self }
    }

    /// Removes coordinates that are always in range, and merges digits.
    pub(crate) fn simplified(mut self) -> TiledArray<'a> {
        for c in (0..self.coordinates.len()).rev() {
            let Coordinate { len, start, stride } = self.coordinates[c];
            let (mut low, mut high) = (start, start);
            for digit in self.rows.iter().chain(&self.columns) {
                if let Some((_, factor)) = digit.coordinate.filter(|&(index, _)| index == c) {
                    let last = factor * (digit.len as isize - 1);
                    if last < 0 { low += last } else { high += last }
                }
            }
            let is_needed = low < 0 || high >= len as isize;
            for digit in self.rows.iter_mut().chain(&mut self.columns) {
                match &mut digit.coordinate {
                    Some((index, factor)) if *index == c && !is_needed => {
                        digit.stride = *factor * stride;
                        digit.coordinate = None;
                    }
                    Some((index, _)) if *index > c && !is_needed => *index -= 1,
                    _ => {}
                }
            }
            if !is_needed {
                self.start += start * stride;
                self.coordinates.remove(c);
            }
        }
        self.rows = merged(&self.rows);
        self.columns = merged(&self.columns);
        self
    }

    /// Returns the axis along which aligned groups of four elements are contiguous in memory.
    pub(crate) fn quad_axis(&self) -> Option<QuadAxis> {
        let is_aligned = |digits: &[IndexDigit]| digits.iter().all(|d| d.stride % 4 == 0);
        let is_contiguous = |digits: &[IndexDigit]| match digits {
            [outer @ .., inner] => inner.stride == 1 && inner.len.is_multiple_of(4) && is_aligned(outer),
            [] => false,
        };
        if !self.coordinates.is_empty() || self.start % 4 != 0 || self.batch.iter().any(|s| s % 4 != 0) {
            return None;
        }
        match (is_contiguous(&self.rows), is_contiguous(&self.columns)) {
            (true, _) if is_aligned(&self.columns) => Some(QuadAxis::Row),
            (_, true) if is_aligned(&self.rows) => Some(QuadAxis::Column),
            _ => None,
        }
    }

    /// Adds the values of the array to the parameters and returns its expressions. `first` is the first element of the
    /// matrix.
    pub(crate) fn declare(&self, shader: &mut ShaderBuilder, first: ElementRef) -> ArrayExprs {
        let mut digit = |d: &IndexDigit| DigitExprs {
            len: shader.declare_word(d.len),
            stride: shader.declare(d.stride),
            coordinate: d.coordinate.map(|(index, factor)| (index, shader.declare(factor))),
        };
        let rows = self.rows.iter().map(&mut digit).collect();
        let columns = self.columns.iter().map(&mut digit).collect();
        let coordinate = |c: &Coordinate| CoordinateExprs {
            limit: shader.declare_word(c.len),
            start: shader.declare(c.start),
            stride: shader.declare(c.stride),
        };
        let coordinates = self.coordinates.iter().map(coordinate).collect();
        ArrayExprs { first, rows, columns, coordinates, quads: self.quad_axis(), taps: None }
    }
}

/// Drops digits of length 1, and merges adjacent digits that one stride covers.
fn merged(digits: &[IndexDigit]) -> Vec<IndexDigit> {
    let mut result: Vec<IndexDigit> = digits.iter().copied().filter(|digit| digit.len != 1).collect();
    result.dedup_by(|inner, outer| {
        let is_plain = outer.coordinate.is_none() && inner.coordinate.is_none();
        let merges = is_plain && are_one_axis(outer.stride, inner.stride, inner.len);
        if merges {
            *outer = IndexDigit::plain(outer.len * inner.len, inner.stride);
        }
        merges
    });
    result
}

/// The parameters of an [`IndexDigit`].
struct DigitExprs {
    len: String,
    stride: String,
    coordinate: Option<(usize, String)>,
}

/// The parameters of a [`Coordinate`].
pub(super) struct CoordinateExprs {
    pub(super) limit: String,
    pub(super) start: String,
    stride: String,
}

/// The expressions of the taps along a coordinate.
pub(super) struct TapExprs {
    /// The bit of the first tap.
    pub(super) first_bit: String,
    pub(super) count: String,
    /// The difference of the coordinates of neighbouring taps.
    pub(super) factor: String,
}

/// The taps of an array along all coordinates.
pub(super) struct TapBits {
    /// Whether the taps are digits of k.
    pub(super) are_in_k: bool,
    pub(super) axes: Vec<TapExprs>,
}

/// The expressions of a [`TiledArray`] in a shader.
pub(crate) struct ArrayExprs {
    /// The first element of the matrix.
    first: ElementRef,
    rows: Vec<DigitExprs>,
    columns: Vec<DigitExprs>,
    pub(super) coordinates: Vec<CoordinateExprs>,
    /// The axis along which four elements are loaded together.
    pub(crate) quads: Option<QuadAxis>,
    /// The taps of a factor with a table.
    pub(super) taps: Option<TapBits>,
}

/// The part of an offset that depends on one index.
#[derive(Clone)]
pub(crate) struct IndexPart {
    /// Whether the index is in range.
    pub(crate) is_valid: String,
    pub(super) offset: String,
    /// The contribution to every coordinate.
    pub(super) coordinates: Vec<Option<String>>,
    /// Whether the contributions contain the starts of the coordinates.
    pub(super) has_starts: bool,
    /// The digit along every coordinate.
    pub(super) taps: Vec<Option<String>>,
    /// The word of bits of a factor with a table.
    pub(super) bits: String,
}

impl ArrayExprs {
    /// Adds the lines that compute the part of the offsets in row `index`, which must be less than `limit`.
    pub(crate) fn row_part(&self, shader: &mut ShaderBuilder, index: &str, limit: &str) -> IndexPart {
        self.part(shader, &self.rows, Some(&self.first.offset), index, limit)
    }

    /// Adds the lines that compute the part of the offsets in column `index`, which must be less than `limit`.
    pub(crate) fn column_part(&self, shader: &mut ShaderBuilder, index: &str, limit: &str) -> IndexPart {
        self.part(shader, &self.columns, None, index, limit)
    }

    fn part(
        &self,
        shader: &mut ShaderBuilder,
        side: &[DigitExprs],
        base: Option<&str>,
        index: &str,
        limit: &str,
    ) -> IndexPart {
        let mut offset = base.unwrap_or("0u").to_string();
        // The row contributes the starts of the coordinates.
        let start = |c: &CoordinateExprs| base.map(|_| c.start.clone());
        let mut coordinates: Vec<Option<String>> = self.coordinates.iter().map(start).collect();
        let mut taps = vec![None; self.coordinates.len()];
        let values = digits(shader, index, side.iter().map(|digit| &digit.len));
        for (value, digit) in values.iter().zip(side).rev() {
            match &digit.coordinate {
                None => offset = format!("{offset} + {value} * {}", digit.stride),
                Some((index, factor)) => {
                    taps[*index] = Some(value.clone());
                    let term = format!("{value} * {factor}");
                    coordinates[*index] = Some(match coordinates[*index].take() {
                        Some(sum) => format!("{sum} + {term}"),
                        None => term,
                    });
                }
            }
        }
        let coordinates: Vec<Option<String>> =
            coordinates.into_iter().map(|sum| sum.map(|sum| shader.define(sum))).collect();
        for (coordinate, sum) in self.coordinates.iter().zip(&coordinates) {
            if let Some(sum) = sum {
                offset = format!("{offset} + {sum} * {}", coordinate.stride);
            }
        }
        let offset = shader.define(offset);
        let (is_valid, has_starts) = (format!("{index} < {limit}"), base.is_some());
        IndexPart { is_valid, offset, coordinates, has_starts, taps, bits: String::new() }
    }

    /// Adds the lines that compute the offset of the element at a row and a column of an array without coordinates.
    pub(crate) fn element(&self, shader: &mut ShaderBuilder, row: &str, column: &str) -> ElementRef {
        // The contribution of an index to the offset does not depend on its limit.
        let (row, column) = (self.row_part(shader, row, ""), self.column_part(shader, column, ""));
        let offset = shader.define(format!("{} + {}", row.offset, column.offset));
        ElementRef { elements: self.first.elements, offset }
    }

    /// Adds the lines that compute the condition under which an element exists, and returns it with the expression of
    /// the element's offset.
    pub(super) fn element_place(
        &self,
        shader: &mut ShaderBuilder,
        (row, column): (&IndexPart, &IndexPart),
    ) -> (String, String) {
        let mut conditions = vec![row.is_valid.clone(), column.is_valid.clone()];
        for (k, coordinate) in self.coordinates.iter().enumerate() {
            let sum = match (&row.coordinates[k], &column.coordinates[k]) {
                (Some(a), Some(b)) => shader.define(format!("{a} + {b}")),
                (Some(a), None) | (None, Some(a)) => a.clone(),
                (None, None) => continue,
            };
            // Coordinates below 0 wrap to large numbers.
            conditions.push(format!("{sum} < {}", coordinate.limit));
        }
        (conditions.join(" && "), format!("{} + {}", row.offset, column.offset))
    }

    /// Adds the lines that assign an element to `target`, or 0 if the element is outside the array.
    pub(crate) fn load_element(
        &self,
        shader: &mut ShaderBuilder,
        parts: (&IndexPart, &IndexPart),
        compute: Compute,
        target: &str,
    ) {
        let place = self.element_place(shader, parts);
        self.load_place(shader, &place, compute, target);
    }

    /// Adds the lines that assign the element at an offset to `target`, or 0 if the condition is false.
    pub(super) fn load_place(
        &self,
        shader: &mut ShaderBuilder,
        (condition, offset): &(String, String),
        compute: Compute,
        target: &str,
    ) {
        let (is_valid, offset) = valid_offset(shader, condition, offset);
        let value = self.first.elements.as_type(compute).load(shader, &offset);
        shader.line(format!("{target} = {SELECT_LOADED}({}(), {value}, {is_valid});", wgsl_type(compute)));
    }

    /// Adds the lines that assign four neighbouring elements, starting at an offset, to `targets`, or 0 if the
    /// condition is false. The array has a [`QuadAxis`].
    pub(super) fn load_quad(
        &self,
        shader: &mut ShaderBuilder,
        (condition, offset): &(String, String),
        compute: Compute,
        targets: [String; 4],
    ) {
        let (is_valid, offset) = valid_offset(shader, condition, offset);
        let values = self.first.elements.as_type(compute).load_quad(shader, &offset);
        for (target, value) in targets.iter().zip(values) {
            shader.line(format!("{target} = {SELECT_LOADED}({}(), {value}, {is_valid});", wgsl_type(compute)));
        }
    }
}

/// Adds the lines that compute whether an element exists, and its offset, or 0 if it does not exist. Loads without
/// branches can run at the same time.
fn valid_offset(shader: &mut ShaderBuilder, condition: &str, offset: &str) -> (String, String) {
    let is_valid = shader.define(condition);
    let offset = shader.define(format!("select(0u, {offset}, {is_valid})"));
    (is_valid, offset)
}

/// The side of a product on which a factor is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FactorSide {
    /// The rows are rows of the product, and the columns are k indices.
    Left,
    /// The rows are k indices, and the columns are columns of the product.
    Right,
}

impl FactorSide {
    /// Returns true if aligned groups of four elements along k are contiguous in memory.
    pub(crate) fn has_quads_along_k(self, quads: Option<QuadAxis>) -> bool {
        matches!((self, quads), (FactorSide::Left, Some(QuadAxis::Column)) | (FactorSide::Right, Some(QuadAxis::Row)))
    }
}

/// Returns the type of four values.
pub(crate) fn quad_type(compute: Compute) -> String {
    match compute {
        Compute::F32 => "vec4<f32>".into(),
        Compute::I32 => "vec4<i32>".into(),
        other => format!("array<{}, 4>", wgsl_type(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::BufferRef;
    use pellucid_ir::{DType, Layout};

    /// Returns an array with these digits of rows and columns.
    fn tiled(layout: &Layout, [rows, columns]: [&[IndexDigit]; 2], coordinates: &[Coordinate]) -> TiledArray<'static> {
        let layout = Box::leak(Box::new(layout.clone()));
        TiledArray {
            array: DeviceArray { buffer: BufferRef::Operand(0), layout, dtype: DType::F32 },
            start: 0,
            batch: vec![64],
            rows: rows.to_vec(),
            columns: columns.to_vec(),
            coordinates: coordinates.to_vec(),
        }
        .simplified()
    }

    #[test]
    fn a_window_of_one_element_is_a_plain_matrix() {
        let layout = Layout::contiguous([3, 1, 1, 4, 4].into());
        let rows = [IndexDigit::plain(3, 16), IndexDigit::along(1, 0, 1)];
        let columns = [IndexDigit::plain(1, 48), IndexDigit::along(4, 1, 1), IndexDigit::along(4, 0, 1)];
        let along = |stride| Coordinate { len: 4, start: 0, stride };
        let array = tiled(&layout, [&rows, &columns], &[along(1), along(4)]);
        assert_eq!(array.coordinates, []);
        assert_eq!(array.rows, [IndexDigit::plain(3, 16)]);
        assert_eq!(array.columns, [IndexDigit::plain(16, 1)]);
        assert_eq!(array.quad_axis(), Some(QuadAxis::Column));
    }

    #[test]
    fn coordinates_that_leave_the_array_are_checked() {
        let layout = Layout::contiguous([8, 4].into());
        let digits = [IndexDigit::along(4, 0, 1), IndexDigit::along(3, 0, 1)];
        let coordinate = |len, start| Coordinate { len, start, stride: 5 };
        let checked = |c: Coordinate| tiled(&layout, [&digits[..1], &digits[1..]], &[c]).coordinates.len();
        assert_eq!([coordinate(6, 0), coordinate(5, 0), coordinate(6, -1)].map(checked), [0, 1, 1]);
        let shifted = tiled(&layout, [&digits[..1], &digits[1..]], &[coordinate(9, 2)]);
        assert_eq!((shifted.start, shifted.rows), (10, vec![IndexDigit::plain(4, 5)]));
    }

    #[test]
    fn quads_need_aligned_strides_and_a_multiple_of_four_elements() {
        let layout = Layout::contiguous([8, 8].into());
        let axis = |rows: (usize, isize), columns: (usize, isize)| {
            let [rows, columns] = [rows, columns].map(|(len, stride)| [IndexDigit::plain(len, stride)]);
            tiled(&layout, [&rows, &columns], &[]).quad_axis()
        };
        assert_eq!(axis((8, 8), (8, 1)), Some(QuadAxis::Column));
        assert_eq!(axis((8, 1), (5, 8)), Some(QuadAxis::Row));
        assert_eq!(axis((8, 9), (8, 1)), None);
        assert_eq!(axis((8, 8), (6, 1)), None);
        assert_eq!(axis((8, 8), (8, 2)), None);
    }
}
