//! Tiles in shared memory and in registers.

use super::array::{ArrayExprs, FactorSide, IndexPart, quad_type};
use super::block_loads::BlockDepth;
use super::depth_table::DepthTable;
use super::unit::MatrixUnit;
use crate::shader::{CollectLines, ShaderBuilder, WORKGROUP, values};
use pellucid_ir::Compute;

/// A tile of a factor in shared memory: for each k, the elements of neighbouring indices of the product, four in a
/// quad.
///
/// A quad of 32-bit elements has 16 bytes, so eight invocations access all 32 banks of shared memory. Quad q of k is
/// stored at q XOR s(k), where s(k) changes with every fourth k:
/// - when four or eight neighbouring invocations read the same k, s is constant and their quads are neighbours;
/// - when they store blocks of neighbouring k, s differs between the blocks, so their quads are in different banks.
#[derive(Clone, Debug)]
pub(crate) struct SharedTile {
    pub(super) name: String,
    /// The array that contains the tile, and the tile's first quad in it.
    memory: (String, usize),
    compute: Compute,
    /// The number of quads for each k.
    quads: usize,
    /// The k extent.
    pub(crate) tile_k: usize,
}

/// Declares shared memory of `elements` elements. Tiles that are not in use together may share it.
pub(crate) fn declare_shared(shader: &mut ShaderBuilder, name: &str, compute: Compute, elements: usize) {
    shader.workgroup_array(name, &quad_type(compute), elements / 4);
}

/// Returns true if a value has one word. The sums of a tile are then separate variables. Otherwise they are an array,
/// and the long arithmetic on two-word values is in a loop.
pub(crate) fn is_narrow(compute: Compute) -> bool {
    matches!(compute, Compute::F32 | Compute::I32)
}

impl SharedTile {
    /// Declares a tile of `width` indices and the k extent `tile_k`.
    pub(crate) fn declare(
        shader: &mut ShaderBuilder,
        name: &str,
        compute: Compute,
        (width, tile_k): (usize, usize),
    ) -> SharedTile {
        declare_shared(shader, name, compute, width * tile_k);
        SharedTile::within(name, (name, 0), compute, (width, tile_k))
    }

    /// Creates a tile that starts at element `memory.1` of the shared memory `memory.0`.
    pub(crate) fn within(
        name: &str,
        memory: (&str, usize),
        compute: Compute,
        (width, tile_k): (usize, usize),
    ) -> SharedTile {
        let memory = (memory.0.to_string(), memory.1 / 4);
        SharedTile { name: name.into(), memory, compute, quads: width / 4, tile_k }
    }

    /// Returns the expression of quad `quad` of k.
    pub(crate) fn quad(&self, k: &str, quad: &str) -> String {
        let (memory, first) = &self.memory;
        format!("{memory}[{first}u + ({k}) * {}u + {}]", self.quads, self.swizzled(k, quad))
    }

    /// Returns the expression of quad `quad` of k index `offset` + `k`, where `offset` is a multiple of 16.
    fn quad_from(&self, (offset, k): (&str, &str), quad: &str) -> String {
        let (memory, first) = &self.memory;
        match self.tile_k > 32 {
            true => format!("{memory}[{first}u + ({offset} + {k}) * {}u + {}]", self.quads, self.swizzled(k, quad)),
            false => self.quad(&format!("{k} + {offset}"), quad),
        }
    }

    /// Returns the position of quad `quad` among the quads of k.
    fn swizzled(&self, k: &str, quad: &str) -> String {
        let mask = self.quads.min(8) - 1;
        // In tiles with a larger k extent, s repeats after every 16 k indices.
        let step = if self.tile_k > 32 { 2 } else { 32 / self.tile_k };
        format!("(({quad}) ^ (((({k}) >> 2u) * {step}u) & {mask}u))")
    }

    /// Returns the number of blocks of 4 × 4 elements.
    fn blocks(&self) -> usize {
        self.quads * self.tile_k / 4
    }
}

/// The loads of one factor of a product into its tile. Every invocation loads blocks of 4 × 4 elements, whose indices
/// of the product stay the same for all k.
pub(crate) struct FactorLoader<'a> {
    side: FactorSide,
    array: &'a ArrayExprs,
    tile: &'a SharedTile,
    /// For each block of an invocation: its quad, the first k in the tile, and the parts of its four indices.
    blocks: Vec<(String, String, [IndexPart; 4])>,
    /// The parts of the offsets that depend on k, if a table contains them.
    table: Option<DepthTable>,
}

impl<'a> FactorLoader<'a> {
    /// Adds the lines before the loop over k. `first` is the first index of the tile, `limit` the number of indices.
    pub(crate) fn new(
        shader: &mut ShaderBuilder,
        side: FactorSide,
        array: &'a ArrayExprs,
        tile: &'a SharedTile,
        (first, limit): (&str, &str),
    ) -> FactorLoader<'a> {
        let slots = tile.blocks().div_ceil(WORKGROUP as usize);
        let blocks = (0..slots)
            .map(|slot| {
                let block = shader.define(format!("local + {}u", slot * WORKGROUP as usize));
                // Neighbouring invocations load neighbouring elements.
                let (quad, k) = match side.has_quads_along_k(array.quads) {
                    true => (format!("{block} / {}u", tile.tile_k / 4), format!("{block} % {}u * 4u", tile.tile_k / 4)),
                    false => (format!("{block} % {}u", tile.quads), format!("{block} / {}u * 4u", tile.quads)),
                };
                let (quad, k) = (shader.define(quad), shader.define(k));
                let parts = [0, 1, 2, 3].map(|i| {
                    let index = shader.define(format!("{first} + {quad} * 4u + {i}u"));
                    side.index_part(shader, array, &index, limit)
                });
                (quad, k, parts)
            })
            .collect();
        let table = DepthTable::declare(shader, array, &tile.name);
        FactorLoader { side, array, tile, blocks, table }
    }

    fn name(&self, slot: usize) -> String {
        format!("{}_{slot}_", self.tile.name)
    }

    /// Adds the lines that load the elements starting at `k`, below `limit`, into registers.
    pub(crate) fn load(&self, shader: &mut ShaderBuilder, k: &str, limit: &str) {
        for (slot, (_, first_k, parts)) in self.blocks.iter().enumerate() {
            let name = self.name(slot);
            let ty = quad_type(self.tile.compute);
            for kk in 0..4 {
                shader.line(format!("var {name}{kk} = {ty}();"));
            }
            let depth = match &self.table {
                Some(table) => BlockDepth::Table(table, format!("{k} - first_depth + {first_k}")),
                None => BlockDepth::Computed(shader.define(format!("{k} + {first_k}")), limit),
            };
            self.in_range(shader, |shader| {
                let compute = self.tile.compute;
                self.side.load_block(shader, self.array, compute, (&name, parts), &depth);
            });
        }
    }

    /// Adds the lines that compute the table of the k indices starting at `k`, below `limit`.
    fn fill_table(&self, shader: &mut ShaderBuilder, k: &str, limit: &str) {
        if let Some(table) = &self.table {
            table.fill(shader, (self.side, self.array), (k, limit));
        }
    }

    /// Adds the lines that store the loaded elements in the tile.
    pub(crate) fn store(&self, shader: &mut ShaderBuilder) {
        self.visit_blocks(shader, |shader, quad, k, name| {
            for kk in 0..4 {
                let target = self.tile.quad(&format!("{k} + {kk}u"), quad);
                shader.line(format!("{target} = {name}{kk};"));
            }
        });
    }

    /// Adds lines for every loaded block of an invocation. `lines` receives the block's quad, its first k in the tile,
    /// and the prefix of its variables: the variable of k index kk has four neighbouring indices of the product.
    pub(crate) fn visit_blocks(
        &self,
        shader: &mut ShaderBuilder,
        mut lines: impl FnMut(&mut ShaderBuilder, &str, &str, &str),
    ) {
        for (slot, (quad, k, _)) in self.blocks.iter().enumerate() {
            let name = self.name(slot);
            self.in_range(shader, |shader| lines(shader, quad, k, &name));
        }
    }

    /// Adds lines for the invocations that have a block. Invocations are idle only if a tile has fewer blocks than
    /// there are invocations.
    fn in_range(&self, shader: &mut ShaderBuilder, lines: impl FnOnce(&mut ShaderBuilder)) {
        let is_partial = !self.tile.blocks().is_multiple_of(WORKGROUP as usize);
        if is_partial {
            shader.line(format!("if (local < {}u) {{", self.tile.blocks()));
        }
        lines(shader);
        if is_partial {
            shader.line("}");
        }
    }
}

/// The loop over k.
const ACCUMULATE: &str = "
    for (var depth = $begin; depth < $end; depth = depth + $step) {
        $load
        // After the barrier, all invocations have read the previous tiles.
        workgroupBarrier();
        $store
        workgroupBarrier();
        $multiply
    }
";

/// The loop over k with tables. All invocations have read the previous tables before the last barrier of `$accumulate`.
const ACCUMULATE_WITH_TABLES: &str = "
    for (var first_depth = $first; first_depth < $limit; first_depth = first_depth + $table_len) {
        $fill_tables
        workgroupBarrier();
        let end_depth = min(first_depth + $table_len, $limit);
        $accumulate
    }
";

/// Adds the loop over k in a range. `lines` returns the lines that store the loaded elements, and the lines that
/// multiply them.
pub(super) fn loop_over_depth(
    shader: &mut ShaderBuilder,
    loaders: [&FactorLoader<'_>; 2],
    (first, limit): (&str, &str),
    lines: impl FnOnce(&mut ShaderBuilder) -> [String; 2],
) {
    let load = shader.collect_lines(|shader| loaders.iter().for_each(|loader| loader.load(shader, "depth", limit)));
    let [store, multiply] = lines(shader);
    let step = format!("{}u", loaders[0].tile.tile_k);
    let tables: Vec<&FactorLoader<'_>> = loaders.into_iter().filter(|loader| loader.table.is_some()).collect();
    let (begin, end) = if tables.is_empty() { (first, limit) } else { ("first_depth", "end_depth") };
    let accumulate = shader.collect_lines(|shader| {
        shader.template(ACCUMULATE, values![begin, end, step, load, store, multiply]);
    });
    if tables.is_empty() {
        return shader.body.push_str(&accumulate);
    }
    let fill_tables = shader.collect_lines(|shader| {
        tables.iter().for_each(|loader| loader.fill_table(shader, "first_depth", limit));
    });
    let table_len = format!("{}u", DepthTable::LEN);
    shader.template(ACCUMULATE_WITH_TABLES, values![first, limit, table_len, fill_tables, accumulate]);
}

/// Adds products of values of one word, [`UNROLLED_STEP`] k indices at a time.
const MULTIPLY_UNROLLED: &str = "
    for (var k = 0u; k < $tile_k; k = k + $step) {
        $add_products
    }
";

/// The number of k indices of an iteration of [`MULTIPLY_UNROLLED`].
pub(in crate::families) const UNROLLED_STEP: usize = 4;

/// Adds products of values of two words. The quads are copied to variables, which can be indexed at run time.
const MULTIPLY_WIDE: &str = "
    for (var k = 0u; k < $tile_k; k = k + 1u) {
        $load_quads
        var row = $a;
        var column = $b;
        for (var i = 0u; i < 4u; i = i + 1u) {
            for (var j = 0u; j < 4u; j = j + 1u) {
                $sum = $product_sum;
            }
        }
    }
";

/// The iterations of [`MULTIPLY_WIDE`] for one k.
pub(in crate::families) const WIDE_PRODUCT_ITERATIONS: usize = 1 + 4 + 4 * 4;

/// Multiplies rows of `f64` by factors.
const SCALE_ROWS: &str = "
    for (var r = 0u; r < $count; r = r + 1u) {
        for (var j = 0u; j < 4u; j = j + 1u) {
            $sums[r][j] = d_mul($sums[r][j], $factors[r / $quad_columns]);
        }
    }
";

/// The loop over the quads of a tile.
const LOOP_OVER_QUADS: &str = "
    var $copy = $array;
    for (var q = 0u; q < $count; q = q + 1u) {
        var quad = $copy[q];
        let quad_row = (own_row + (q / $block) * $grid_rows) * 4u + (q / $width) % 4u;
        let quad_column = (own_column + (q % $width) * $grid_columns) * 4u;
        $visit_quad
    }
";

/// The loop over the elements of a quad.
const VISIT_QUAD: &str = "
    let row = $first_row + quad_row;
    for (var j = 0u; j < 4u; j = j + 1u) {
        let column = $first_column + quad_column + j;
        if (row < $rows && column < $columns) {
            let value = quad[j];
            $visit_element
        }
    }
";

/// The rows and columns of a matrix that a tile covers, as WGSL expressions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileBounds<'a> {
    /// The first row and the first column of the tile.
    pub(crate) first: [&'a str; 2],
    /// The row and column counts of the matrix.
    pub(crate) limits: [&'a str; 2],
}

/// A tile of a product in the registers of a workgroup.
///
/// The invocations form a grid of `grid[0] × grid[1]`. Each computes `quads[0] × quads[1]` blocks of 4 × 4 elements;
/// the blocks of one invocation are an entire grid apart, so neighbouring invocations read neighbouring quads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WorkgroupTile {
    pub(crate) compute: Compute,
    /// The rows and columns of invocations.
    pub(crate) grid: [usize; 2],
    /// The rows and columns of blocks of an invocation.
    pub(crate) quads: [usize; 2],
    /// The unit that multiplies factors of half precision, for a grid of 8 × 8 only.
    pub(crate) unit: Option<MatrixUnit>,
}

impl WorkgroupTile {
    /// Returns the number of rows of the tile.
    pub(crate) fn height(&self) -> usize {
        4 * self.grid[0] * self.quads[0]
    }

    /// Returns the number of columns of the tile.
    pub(crate) fn width(&self) -> usize {
        4 * self.grid[1] * self.quads[1]
    }

    /// Returns the number of quads of an invocation.
    fn count(&self) -> usize {
        4 * self.quads[0] * self.quads[1]
    }

    /// Adds the lines that compute the row and column of the invocation in the grid.
    pub(crate) fn declare_grid(&self, shader: &mut ShaderBuilder) {
        shader.line(format!("let own_row = local / {}u;", self.grid[1]));
        shader.line(format!("let own_column = local % {}u;", self.grid[1]));
    }

    /// Adds the variables `name` of the sums, with the initial value 0.
    pub(crate) fn declare(&self, shader: &mut ShaderBuilder, name: &str) {
        let ty = quad_type(self.compute);
        match is_narrow(self.compute) {
            true => (0..self.count()).for_each(|k| shader.line(format!("var {name}{k} = {ty}();"))),
            false => shader.line(format!("var {name} = array<{ty}, {}>();", self.count())),
        }
    }

    /// Adds the lines that compute the first row and column of tile `tile`. A row of tiles has `columns` tiles.
    pub(crate) fn begin(&self, shader: &mut ShaderBuilder, tile: &str, columns: &str) {
        shader.line(format!("let first_row = {tile} / {columns} * {}u;", self.height()));
        shader.line(format!("let first_column = {tile} % {columns} * {}u;", self.width()));
    }

    /// Declares the row and column of the invocation in the grid, the shared tiles of both factors with the k extent
    /// `tile_k`, and the sums `sum`.
    pub(crate) fn declare_product(&self, shader: &mut ShaderBuilder, tile_k: usize) -> [SharedTile; 2] {
        self.declare_grid(shader);
        let tiles = [("tile_a", self.height()), ("tile_b", self.width())].map(|(name, width)| match self.unit {
            None => SharedTile::declare(shader, name, self.compute, (width, tile_k)),
            Some(_) => SharedTile::within(name, (name, 0), self.compute, (width, tile_k)),
        });
        self.declare(shader, "sum");
        tiles
    }

    /// Adds the lines that add the products of a left and a right factor with k in `range` to the sums `name`.
    pub(crate) fn accumulate_in_registers(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (factors, tiles): ([&ArrayExprs; 2], [&SharedTile; 2]),
        TileBounds { first, limits }: TileBounds<'_>,
        range: (&str, &str),
    ) {
        let left = FactorLoader::new(shader, FactorSide::Left, factors[0], tiles[0], (first[0], limits[0]));
        let right = FactorLoader::new(shader, FactorSide::Right, factors[1], tiles[1], (first[1], limits[1]));
        loop_over_depth(shader, [&left, &right], range, |shader| {
            let store = shader.collect_lines(|shader| {
                left.store(shader);
                right.store(shader);
            });
            [store, shader.collect_lines(|shader| self.multiply(shader, name, (tiles[0], "0u"), tiles[1]))]
        });
    }

    /// Adds the lines that add the product of two tiles to the sums, in the order of k. The left tile is read starting
    /// at k index `first`.
    pub(crate) fn multiply(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (a, first): (&SharedTile, &str),
        b: &SharedTile,
    ) {
        let block = |side: usize, q: usize| {
            let grid_index = if side == 0 { "own_row" } else { "own_column" };
            format!("{grid_index} + {}u", q * self.grid[side])
        };
        let quads = |shader: &mut ShaderBuilder, k: &str| {
            let a: Vec<String> =
                (0..self.quads[0]).map(|q| shader.define(a.quad_from((first, k), &block(0, q)))).collect();
            let b: Vec<String> = (0..self.quads[1]).map(|q| shader.define(b.quad(k, &block(1, q)))).collect();
            (a, b)
        };
        let tile_k = format!("{}u", b.tile_k);
        if !is_narrow(self.compute) {
            debug_assert_eq!(self.quads, [1, 1], "tiles of values of two words have one block for each invocation");
            let (load_quads, (a, b)) = shader.collect_result(|shader| quads(shader, "k"));
            let (a, b) = (&a[0], &b[0]);
            let sum = format!("{name}[i][j]");
            let product_sum = match self.compute {
                Compute::F64 => format!("d_fma(row[i], column[j], {sum})"),
                _ => format!("l_add({sum}, l_mul(row[i], column[j]))"),
            };
            return shader.template(MULTIPLY_WIDE, values![tile_k, load_quads, a, b, sum, product_sum]);
        }
        let ty = quad_type(self.compute);
        let add_products = shader.collect_lines(|shader| {
            for kk in 0..UNROLLED_STEP {
                let (a, b) = quads(shader, &format!("k + {kk}u"));
                for (row, column) in (0..4 * a.len()).flat_map(|r| (0..b.len()).map(move |c| (r, c))) {
                    let (x, y) = (format!("{ty}({}[{}])", a[row / 4], row % 4), &b[column]);
                    let sum = format!("{name}{}", row * self.quads[1] + column);
                    shader.line(match self.compute {
                        Compute::F32 => format!("{sum} = fma({x}, {y}, {sum});"),
                        _ => format!("{sum} = {sum} + {x} * {y};"),
                    });
                }
            }
        });
        let step = format!("{UNROLLED_STEP}u");
        shader.template(MULTIPLY_UNROLLED, values![tile_k, step, add_products]);
    }

    /// Adds the lines that multiply every row of the sums `sums` by an element of the array `factors`. Every invocation
    /// has four rows.
    pub(crate) fn scale_rows(&self, shader: &mut ShaderBuilder, sums: &str, factors: &str) {
        if is_narrow(self.compute) {
            for k in 0..self.count() {
                shader.line(format!("{sums}{k} = {sums}{k} * {factors}[{}];", k / self.quads[1]));
            }
            return;
        }
        let [count, quad_columns] = [self.count(), self.quads[1]].map(|v| format!("{v}u"));
        shader.template(SCALE_ROWS, values![count, sums, factors, quad_columns]);
    }

    /// Returns the sums `name` as the expression of one array.
    pub(crate) fn as_array(&self, name: &str) -> String {
        let all: Vec<String> = match is_narrow(self.compute) {
            true => (0..self.count()).map(|k| format!("{name}{k}")).collect(),
            false => (0..self.count()).map(|k| format!("{name}[{k}]")).collect(),
        };
        format!("array<{}, {}>({})", quad_type(self.compute), self.count(), all.join(", "))
    }

    /// Adds a loop over the elements of the sums `name` that are in range. `lines` adds the lines for the element
    /// `value` at `row` and `column`.
    pub(crate) fn loop_over_elements(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        TileBounds { first: [first_row, first_column], limits: [rows, columns] }: TileBounds<'_>,
        lines: impl FnOnce(&mut ShaderBuilder),
    ) {
        self.loop_over_quads(shader, name, |shader| {
            let visit_element = shader.collect_lines(lines);
            shader.template(VISIT_QUAD, values![first_row, first_column, rows, columns, visit_element]);
        });
    }

    /// Adds a loop over the quads of the sums `name` at run time. `lines` adds the lines for the variable `quad` at the
    /// row `quad_row` of the tile, with the first column `quad_column`.
    ///
    /// The loop reads a copy, so that the sums themselves are never indexed at run time and stay in registers.
    pub(crate) fn loop_over_quads(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        lines: impl FnOnce(&mut ShaderBuilder),
    ) {
        let (copy, array, quad_columns) = (format!("{name}_copy"), self.as_array(name), self.quads[1]);
        let [count, block, width, grid_rows, grid_columns] =
            [self.count(), 4 * quad_columns, quad_columns, self.grid[0], self.grid[1]].map(|v| format!("{v}u"));
        let visit_quad = shader.collect_lines(lines);
        let sizes = values![count, block, width, grid_rows, grid_columns];
        shader.template(LOOP_OVER_QUADS, &[&sizes[..], values![copy, array, visit_quad]].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::iterations;

    #[test]
    fn the_loops_of_a_wide_product_have_the_stated_iterations() {
        for compute in [Compute::F64, Compute::I64] {
            let tile = WorkgroupTile { compute, grid: [8, 8], quads: [1, 1], unit: None };
            let mut shader = ShaderBuilder::default();
            let [a, b] = ["a", "b"].map(|name| SharedTile::declare(&mut shader, name, compute, (32, 16)));
            tile.multiply(&mut shader, "sum", (&a, "0u"), &b);
            assert_eq!(iterations(&shader.body), 16 * WIDE_PRODUCT_ITERATIONS, "{}", shader.body);
        }
    }
}
