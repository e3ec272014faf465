//! Loads of blocks of 4 × 4 elements of a factor.

use super::array::{ArrayExprs, FactorSide, IndexPart};
use super::depth_table::DepthTable;
use crate::shader::ShaderBuilder;
use pellucid_ir::Compute;

/// The part of an offset that depends on k.
enum DepthPart {
    Computed(IndexPart),
    /// The entry of a [`DepthTable`].
    Entry(String),
}

/// The k indices of a block of 4 × 4 elements, starting at the first one.
pub(super) enum BlockDepth<'t> {
    /// The first k, and the limit of k.
    Computed(String, &'t str),
    /// A table, and the first k in the tile.
    Table(&'t DepthTable, String),
}

impl FactorSide {
    /// Adds the lines that compute the part of k index `kk` of a block, or read it from a table.
    fn depth_part(
        self,
        shader: &mut ShaderBuilder,
        array: &ArrayExprs,
        depth: &BlockDepth<'_>,
        kk: usize,
    ) -> DepthPart {
        match depth {
            BlockDepth::Table(table, first) => DepthPart::Entry(table.read(shader, &format!("{first} + {kk}u"))),
            BlockDepth::Computed(first, limit) => {
                let k = if kk == 0 { first.to_string() } else { shader.define(format!("{first} + {kk}u")) };
                DepthPart::Computed(self.k_part(shader, array, &k, limit))
            }
        }
    }

    /// Adds the lines that compute the condition under which an element exists, and returns it with the expression of
    /// the element's offset.
    fn factor_place(
        self,
        shader: &mut ShaderBuilder,
        array: &ArrayExprs,
        index: &IndexPart,
        k: &DepthPart,
    ) -> (String, String) {
        match (self, k) {
            (_, DepthPart::Entry(entry)) => {
                (format!("({entry}[1] & {}) == 0u", index.bits), format!("{entry}[0] + {}", index.offset))
            }
            (FactorSide::Left, DepthPart::Computed(k)) => array.element_place(shader, (index, k)),
            (FactorSide::Right, DepthPart::Computed(k)) => array.element_place(shader, (k, index)),
        }
    }

    /// Adds the lines that load 4 × 4 elements of a factor: `name`ₖ receives the elements of k + 0, .., k + 3 for four
    /// neighbouring indices of the product.
    pub(super) fn load_block(
        self,
        shader: &mut ShaderBuilder,
        array: &ArrayExprs,
        compute: Compute,
        (name, indices): (&str, &[IndexPart; 4]),
        depth: &BlockDepth<'_>,
    ) {
        if self.has_quads_along_k(array.quads) {
            let k = self.depth_part(shader, array, depth, 0);
            for (i, index) in indices.iter().enumerate() {
                let place = self.factor_place(shader, array, index, &k);
                array.load_quad(shader, &place, compute, [0, 1, 2, 3].map(|kk| format!("{name}{kk}[{i}]")));
            }
            return;
        }
        for kk in 0..4 {
            let k = self.depth_part(shader, array, depth, kk);
            if array.quads.is_some() {
                let place = self.factor_place(shader, array, &indices[0], &k);
                array.load_quad(shader, &place, compute, [0, 1, 2, 3].map(|i| format!("{name}{kk}[{i}]")));
                continue;
            }
            for (i, index) in indices.iter().enumerate() {
                let place = self.factor_place(shader, array, index, &k);
                array.load_place(shader, &place, compute, &format!("{name}{kk}[{i}]"));
            }
        }
    }
}
