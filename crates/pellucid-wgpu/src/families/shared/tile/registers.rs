//! Tiles in shared memory and in registers.

use super::array::{ArrayText, FactorSide, IndexPart, quad_type};
use crate::shader::{ShaderBuilder, WORKGROUP};
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
    name: String,
    /// The array that contains the tile, and the tile's first quad in it.
    memory: (String, usize),
    compute: Compute,
    /// The number of quads for each k.
    quads: usize,
    /// The number of values of k.
    pub(crate) depth: usize,
}

/// Declares shared memory of `elements` elements. Tiles that are not in use together may share it.
pub(crate) fn declare_shared(shader: &mut ShaderBuilder, name: &str, compute: Compute, elements: usize) {
    let declaration = format!("var<workgroup> {name}: array<{}, {}>;\n", quad_type(compute), elements / 4);
    shader.globals.push_str(&declaration);
}

/// Returns true if a value has one word.
pub(crate) fn is_narrow(compute: Compute) -> bool {
    matches!(compute, Compute::F32 | Compute::I32)
}

impl SharedTile {
    /// Declares a tile of `width` indices and `depth` values of k.
    pub(crate) fn declare(
        shader: &mut ShaderBuilder,
        name: &str,
        compute: Compute,
        (width, depth): (usize, usize),
    ) -> SharedTile {
        declare_shared(shader, name, compute, width * depth);
        SharedTile::within(name, (name, 0), compute, (width, depth))
    }

    /// Creates a tile from element `memory.1` of the shared memory `memory.0` on.
    pub(crate) fn within(
        name: &str,
        memory: (&str, usize),
        compute: Compute,
        (width, depth): (usize, usize),
    ) -> SharedTile {
        let memory = (memory.0.to_string(), memory.1 / 4);
        SharedTile { name: name.into(), memory, compute, quads: width / 4, depth }
    }

    /// Returns the expression of quad `quad` of k.
    pub(crate) fn quad(&self, k: &str, quad: &str) -> String {
        let mask = self.quads.min(8) - 1;
        let step = (32 / self.depth).max(1);
        let (memory, first) = &self.memory;
        let swizzled = format!("(({quad}) ^ (((({k}) >> 2u) * {step}u) & {mask}u))");
        format!("{memory}[{first}u + ({k}) * {}u + {swizzled}]", self.quads)
    }

    /// Returns the number of blocks of 4 × 4 elements.
    fn blocks(&self) -> usize {
        self.quads * self.depth / 4
    }
}

/// The loads of one factor of a product into its tile. Every invocation loads blocks of 4 × 4 elements, whose indices
/// of the product stay the same for all k.
pub(crate) struct FactorLoader<'a> {
    side: FactorSide,
    array: &'a ArrayText,
    tile: &'a SharedTile,
    /// For each block of an invocation: its quad, the first k in the tile, and the parts of its four indices.
    blocks: Vec<(String, String, [IndexPart; 4])>,
}

impl<'a> FactorLoader<'a> {
    /// Adds the lines before the loop over k. `first` is the first index of the tile, `limit` the number of indices.
    pub(crate) fn new(
        shader: &mut ShaderBuilder,
        side: FactorSide,
        array: &'a ArrayText,
        tile: &'a SharedTile,
        (first, limit): (&str, &str),
    ) -> FactorLoader<'a> {
        let slots = tile.blocks().div_ceil(WORKGROUP as usize);
        let blocks = (0..slots)
            .map(|slot| {
                let block = shader.define(format!("local + {}u", slot * WORKGROUP as usize));
                // Neighbouring invocations load neighbouring elements.
                let (quad, k) = match side.has_quads_along_k(array.quads) {
                    true => (format!("{block} / {}u", tile.depth / 4), format!("{block} % {}u * 4u", tile.depth / 4)),
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
        FactorLoader { side, array, tile, blocks }
    }

    fn name(&self, slot: usize) -> String {
        format!("{}_{slot}_", self.tile.name)
    }

    /// Adds the lines that load the elements starting at `k`, below `limit`, into registers.
    pub(crate) fn load(&self, shader: &mut ShaderBuilder, k: &str, limit: &str) {
        for (slot, (_, own, parts)) in self.blocks.iter().enumerate() {
            let name = self.name(slot);
            let ty = quad_type(self.tile.compute);
            for kk in 0..4 {
                shader.line(format!("var {name}{kk} = {ty}();"));
            }
            let k = shader.define(format!("{k} + {own}"));
            self.in_range(shader, |shader| {
                let compute = self.tile.compute;
                self.side.load_block(shader, self.array, compute, (&name, parts), (&k, limit));
            });
        }
    }

    /// Adds the lines that store the loaded elements in the tile.
    pub(crate) fn store(&self, shader: &mut ShaderBuilder) {
        for (slot, (quad, k, _)) in self.blocks.iter().enumerate() {
            let name = self.name(slot);
            self.in_range(shader, |shader| {
                for kk in 0..4 {
                    let target = self.tile.quad(&format!("{k} + {kk}u"), quad);
                    shader.line(format!("{target} = {name}{kk};"));
                }
            });
        }
    }

    /// Adds lines for the invocations that have a block. Only tiles of fewer blocks than invocations leave some idle.
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

/// A tile of a product in the registers of a workgroup.
///
/// The invocations form a grid of `grid[0] × grid[1]`. Each computes `quads[0] × quads[1]` blocks of 4 × 4 elements;
/// the blocks of one invocation are an entire grid apart, so neighbouring invocations read neighbouring quads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WorkgroupTile {
    /// The type of the elements.
    pub(crate) compute: Compute,
    /// The rows and columns of invocations.
    pub(crate) grid: [usize; 2],
    /// The rows and columns of blocks of an invocation.
    pub(crate) quads: [usize; 2],
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

    /// Returns true if the sums are separate variables. Arithmetic in two words is long, so it is in a loop instead.
    fn is_unrolled(&self) -> bool {
        is_narrow(self.compute)
    }

    /// Returns the number of quads of an invocation.
    fn count(&self) -> usize {
        4 * self.quads[0] * self.quads[1]
    }

    /// Adds the lines that compute the position of the invocation in the grid.
    pub(crate) fn declare_grid(&self, shader: &mut ShaderBuilder) {
        shader.line(format!("let own_row = local / {}u;", self.grid[1]));
        shader.line(format!("let own_column = local % {}u;", self.grid[1]));
    }

    /// Adds the variables `name` of the sums, which are 0.
    pub(crate) fn declare(&self, shader: &mut ShaderBuilder, name: &str) {
        let ty = quad_type(self.compute);
        match self.is_unrolled() {
            true => (0..self.count()).for_each(|k| shader.line(format!("var {name}{k} = {ty}();"))),
            false => shader.line(format!("var {name} = array<{ty}, {}>();", self.count())),
        }
    }

    /// Adds the lines that add the products of a left and a right factor with k in `range` to the sums `name`. `first`
    /// are the first row and the first column of the tile, `limits` the row and column counts.
    pub(crate) fn accumulate(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (factors, tiles): ([&ArrayText; 2], [&SharedTile; 2]),
        (first, limits): ([&str; 2], [&str; 2]),
        range: (&str, &str),
    ) {
        let left = FactorLoader::new(shader, FactorSide::Left, factors[0], tiles[0], (first[0], limits[0]));
        let right = FactorLoader::new(shader, FactorSide::Right, factors[1], tiles[1], (first[1], limits[1]));
        let step = tiles[1].depth;
        shader.line(format!("for (var depth = {}; depth < {}; depth = depth + {step}u) {{", range.0, range.1));
        left.load(shader, "depth", range.1);
        right.load(shader, "depth", range.1);
        // All invocations have read the previous tiles.
        shader.line("workgroupBarrier();");
        left.store(shader);
        right.store(shader);
        shader.line("workgroupBarrier();");
        self.multiply(shader, name, (tiles[0], "0u"), tiles[1]);
        shader.line("}");
    }

    /// Adds the lines that add the product of two tiles to the sums, in the order of k. The left tile is read from k
    /// index `first` on.
    pub(crate) fn multiply(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (a, first): (&SharedTile, &str),
        b: &SharedTile,
    ) {
        let block = |side: usize, q: usize| {
            let own = if side == 0 { "own_row" } else { "own_column" };
            format!("{own} + {}u", q * self.grid[side])
        };
        let quads = |shader: &mut ShaderBuilder, k: &str| {
            let a: Vec<String> =
                (0..self.quads[0]).map(|q| shader.define(a.quad(&format!("{k} + {first}"), &block(0, q)))).collect();
            let b: Vec<String> = (0..self.quads[1]).map(|q| shader.define(b.quad(k, &block(1, q)))).collect();
            (a, b)
        };
        if !self.is_unrolled() {
            shader.line(format!("for (var k = 0u; k < {}u; k = k + 1u) {{", b.depth));
            let (left, right) = quads(shader, "k");
            // Values are indexed at run time through variables.
            left.iter().enumerate().for_each(|(p, a)| shader.line(format!("var own_a{p} = {a};")));
            right.iter().enumerate().for_each(|(q, b)| shader.line(format!("var own_b{q} = {b};")));
            for p in 0..left.len() {
                for q in 0..right.len() {
                    shader.line("for (var i = 0u; i < 4u; i = i + 1u) {");
                    shader.line("for (var j = 0u; j < 4u; j = j + 1u) {");
                    let quad = format!("({}u + i) * {}u + {q}u", 4 * p, self.quads[1]);
                    let (x, y) = (format!("own_a{p}[i]"), format!("own_b{q}[j]"));
                    let sum = format!("{name}[{quad}][j]");
                    shader.line(match self.compute {
                        Compute::F64 => format!("{sum} = d_fma({x}, {y}, {sum});"),
                        _ => format!("{sum} = l_add({sum}, l_mul({x}, {y}));"),
                    });
                    shader.line("}");
                    shader.line("}");
                }
            }
            shader.line("}");
            return;
        }
        shader.line(format!("for (var k = 0u; k < {}u; k = k + 4u) {{", b.depth));
        let ty = quad_type(self.compute);
        for kk in 0..4 {
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
        shader.line("}");
    }

    /// Adds the lines that multiply every row of the sums `name` by an element of the array `factors`. Every invocation
    /// has four rows.
    pub(crate) fn scale_rows(&self, shader: &mut ShaderBuilder, name: &str, factors: &str) {
        if self.is_unrolled() {
            for k in 0..self.count() {
                shader.line(format!("{name}{k} = {name}{k} * {factors}[{}];", k / self.quads[1]));
            }
            return;
        }
        shader.line(format!("for (var r = 0u; r < {}u; r = r + 1u) {{", self.count()));
        shader.line("for (var j = 0u; j < 4u; j = j + 1u) {");
        shader.line(format!("{name}[r][j] = d_mul({name}[r][j], {factors}[r / {}u]);", self.quads[1]));
        shader.line("}");
        shader.line("}");
    }

    /// Returns the sums `name` as the text of one array.
    pub(crate) fn as_array(&self, name: &str) -> String {
        let all: Vec<String> = match self.is_unrolled() {
            true => (0..self.count()).map(|k| format!("{name}{k}")).collect(),
            false => (0..self.count()).map(|k| format!("{name}[{k}]")).collect(),
        };
        format!("array<{}, {}>({})", quad_type(self.compute), self.count(), all.join(", "))
    }

    /// Adds a loop over the elements of the sums `name` that are in range. `first` are the first row and the first
    /// column of the tile, `limits` the row and column counts. `lines` receives the value of the element at `row` and
    /// `column`.
    pub(crate) fn loop_over_elements(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (first, limits): ([&str; 2], [&str; 2]),
        lines: impl FnOnce(&mut ShaderBuilder, &str),
    ) {
        self.loop_over_quads(shader, name, |shader, quad, quad_row, quad_column| {
            shader.line(format!("let row = {} + {quad_row};", first[0]));
            shader.line("for (var j = 0u; j < 4u; j = j + 1u) {");
            shader.line(format!("let column = {} + {quad_column} + j;", first[1]));
            shader.line(format!("if (row < {} && column < {}) {{", limits[0], limits[1]));
            let value = shader.define(format!("{quad}[j]"));
            lines(shader, &value);
            shader.line("}");
            shader.line("}");
        });
    }

    /// Adds a loop over the quads of the sums `name` at run time. `lines` receives a quad variable, its row in the tile
    /// and its first column in the tile.
    ///
    /// The loop reads a copy, so that the sums themselves are never indexed at run time and stay in registers.
    pub(crate) fn loop_over_quads(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        lines: impl FnOnce(&mut ShaderBuilder, &str, &str, &str),
    ) {
        shader.line(format!("var {name}_copy = {};", self.as_array(name)));
        shader.line(format!("for (var q = 0u; q < {}u; q = q + 1u) {{", self.count()));
        shader.line(format!("var quad = {name}_copy[q];"));
        let [rows, columns] = self.grid;
        let width = self.quads[1];
        shader.line(format!("let quad_row = (own_row + (q / {}u) * {rows}u) * 4u + (q / {width}u) % 4u;", 4 * width));
        shader.line(format!("let quad_column = (own_column + (q % {width}u) * {columns}u) * 4u;"));
        lines(shader, "quad", "quad_row", "quad_column");
        shader.line("}");
    }
}
