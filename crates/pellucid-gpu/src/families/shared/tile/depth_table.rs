//! [`DepthTable`]: the parts of the offsets of a factor that depend on k, in shared memory.
//!
//! Without a table, every invocation divides k by the lengths of its digits, and compares each coordinate of each
//! element with its limit. With a table, one invocation does the divisions for each k index, and whether an element
//! exists is one operation on two words.
//!
//! Along every coordinate, k or the index of the product has few values, such as the taps of a window. Each of these
//! *taps* has a bit. One of the words has the bits of the element's own taps, the other one the bits of all taps that
//! are out of range. An element exists if the words have no common bit. Two further bits are for an index that is not
//! in range:
//!
//! | word | bits of an index in range | bits of another index |
//! | --- | --- | --- |
//! | own taps | its taps and [`PRESENT`] | [`ABSENT`] |
//! | missing taps | taps out of range and [`ABSENT`] | all |

use super::array::{ArrayExprs, FactorSide, IndexDigit, IndexPart, TapBits, TapExprs, TiledArray};
use crate::shader::{CollectLines, ShaderBuilder, WORKGROUP, values};

/// The maximum number of taps along all coordinates.
const MAX_TAPS: usize = 30;

const PRESENT: u32 = 1 << 30;
const ABSENT: u32 = 1 << 31;

/// Returns the number and the factor of the taps along every coordinate if `digits` contains the taps, or `None` if
/// several digits contribute to a coordinate.
fn taps_in(digits: &[IndexDigit], coordinates: usize) -> Option<Vec<(usize, isize)>> {
    let taps = |index: usize| {
        let mut along = digits.iter().filter_map(|digit| Some((digit.len, digit.coordinate?)));
        let mut along = along.by_ref().filter(|&(_, (coordinate, _))| coordinate == index);
        let first = along.next().map_or((1, 0), |(len, (_, factor))| (len, factor));
        along.next().is_none().then_some(first)
    };
    (0..coordinates).map(taps).collect()
}

impl TiledArray<'_> {
    /// Returns the taps along every coordinate and whether they are digits of k, or `None` if a table of a factor on
    /// this side has no advantage or has too many taps.
    fn window_taps(&self, side: FactorSide) -> Option<(bool, Vec<(usize, isize)>)> {
        let (k, index) = match side {
            FactorSide::Left => (&self.columns, &self.rows),
            FactorSide::Right => (&self.rows, &self.columns),
        };
        if k.len() <= 1 && self.coordinates.is_empty() {
            return None;
        }
        let count = |taps: &[(usize, isize)]| taps.iter().fold(0, |sum: usize, tap| sum.saturating_add(tap.0));
        // The missing taps of an index of the product are computed once, those of k for every entry.
        let candidates = [(true, k), (false, index)];
        candidates
            .into_iter()
            .filter_map(|(are_in_k, digits)| Some((are_in_k, taps_in(digits, self.coordinates.len())?)))
            .find(|(_, taps)| count(taps) <= MAX_TAPS)
    }
}

impl ArrayExprs {
    /// Prepares a table for the factor `array` on this side, if it has an advantage.
    pub(super) fn declare_table(&mut self, shader: &mut ShaderBuilder, array: &TiledArray<'_>, side: FactorSide) {
        let Some((are_in_k, taps)) = array.window_taps(side) else { return };
        let mut first_bit = 0;
        let mut declare = |&(count, factor): &(usize, isize)| {
            let first = first_bit;
            first_bit += count;
            let [first_bit, count] = shader.declare_words([first, count]);
            TapExprs { first_bit, count, factor: shader.declare(factor) }
        };
        self.taps = Some(TapBits { are_in_k, axes: taps.iter().map(&mut declare).collect() });
    }

    /// Adds the lines that compute the word of bits of a part of k, or of the index of the product, if the factor has a
    /// table.
    fn declare_bits(&self, shader: &mut ShaderBuilder, part: &mut IndexPart, is_k: bool) {
        let Some(taps) = &self.taps else { return };
        let (present, absent) = match taps.are_in_k == is_k {
            true => (own_taps(taps, part), ABSENT),
            false => (self.missing_taps(shader, taps, part), u32::MAX),
        };
        part.bits = shader.define(format!("select({absent}u, {present}, {})", part.is_valid));
    }

    /// Adds the lines that compute the bits of the taps that are out of range for an index.
    fn missing_taps(&self, shader: &mut ShaderBuilder, taps: &TapBits, part: &IndexPart) -> String {
        let missing = shader.define_variable(format!("{ABSENT}u"));
        for ((coordinate, axis), own) in self.coordinates.iter().zip(&taps.axes).zip(&part.coordinates) {
            // The part of the rows contains the start of the coordinate.
            let start = match (own, part.has_starts) {
                (Some(own), true) => own.clone(),
                (Some(own), false) => format!("{own} + {}", coordinate.start),
                (None, _) => coordinate.start.clone(),
            };
            let (start, limit) = (shader.define(start), &coordinate.limit);
            let TapExprs { first_bit, count, factor } = axis;
            shader.template(MISSING_TAPS, values![start, limit, first_bit, count, factor, missing]);
        }
        missing
    }
}

/// Adds the bits of the taps along a coordinate that are out of range. Coordinates below 0 wrap to large numbers.
const MISSING_TAPS: &str = "
    for (var tap = 0u; tap < $count; tap = tap + 1u) {
        $missing = $missing | (select(1u, 0u, $start + tap * $factor < $limit) << ($first_bit + tap));
    }
";

/// Returns the expression of the bits of the taps of an index.
fn own_taps(taps: &TapBits, part: &IndexPart) -> String {
    let bit = |(axis, tap): (&TapExprs, &Option<String>)| {
        let tap = tap.as_deref().unwrap_or("0u");
        format!(" | (1u << ({} + {tap}))", axis.first_bit)
    };
    let bits: String = taps.axes.iter().zip(&part.taps).map(bit).collect();
    format!("{PRESENT}u{bits}")
}

impl FactorSide {
    /// Adds the lines that compute the part of an offset that depends on the index of the product: a row of a left
    /// factor, or a column of a right factor.
    pub(crate) fn index_part(
        self,
        shader: &mut ShaderBuilder,
        array: &ArrayExprs,
        index: &str,
        limit: &str,
    ) -> IndexPart {
        let mut part = match self {
            FactorSide::Left => array.row_part(shader, index, limit),
            FactorSide::Right => array.column_part(shader, index, limit),
        };
        array.declare_bits(shader, &mut part, false);
        part
    }

    /// Adds the lines that compute the part of an offset that depends on k.
    pub(super) fn k_part(self, shader: &mut ShaderBuilder, array: &ArrayExprs, k: &str, limit: &str) -> IndexPart {
        let mut part = match self {
            FactorSide::Left => array.column_part(shader, k, limit),
            FactorSide::Right => array.row_part(shader, k, limit),
        };
        array.declare_bits(shader, &mut part, true);
        part
    }
}

/// A table with an entry for each of [`DepthTable::LEN`] k indices: the part of the offset and the word of bits.
pub(super) struct DepthTable {
    name: String,
}

/// Computes the entries of the k indices starting at `$first_k`. Every invocation computes one.
const FILL_TABLE: &str = "
    {
        let table_k = $first_k + local;
        var entry = vec2<u32>(0u, $absent);
        if (table_k < $limit) {
            $compute_part
            entry = vec2<u32>($offset, $bits);
        }
        $table[local] = entry;
    }
";

impl DepthTable {
    /// The number of entries, a multiple of the k extents of all shared tiles.
    pub(super) const LEN: usize = WORKGROUP as usize;

    /// Declares the table of a factor with the tile `tile`, if it has one.
    pub(super) fn declare(shader: &mut ShaderBuilder, array: &ArrayExprs, tile: &str) -> Option<DepthTable> {
        array.taps.as_ref()?;
        let name = format!("{tile}_parts");
        shader.workgroup_array(&name, "vec2<u32>", DepthTable::LEN);
        Some(DepthTable { name })
    }

    /// Adds the lines that compute the entries of the k indices starting at `first_k`, below `limit`.
    pub(super) fn fill(
        &self,
        shader: &mut ShaderBuilder,
        (side, array): (FactorSide, &ArrayExprs),
        (first_k, limit): (&str, &str),
    ) {
        let (compute_part, part) = shader.collect_result(|shader| side.k_part(shader, array, "table_k", limit));
        let absent = if array.taps.as_ref().is_some_and(|taps| taps.are_in_k) { ABSENT } else { u32::MAX };
        let (table, absent) = (&self.name, format!("{absent}u"));
        let (offset, bits) = (part.offset, part.bits);
        shader.template(FILL_TABLE, values![table, first_k, limit, absent, compute_part, offset, bits]);
    }

    /// Adds the line that reads the entry `index`, and returns its name.
    pub(super) fn read(&self, shader: &mut ShaderBuilder, index: &str) -> String {
        shader.define(format!("{}[{index}]", self.name))
    }
}
