//! Products of half-precision factors on matrix units (tensor cores).
//!
//! A subgroup of 32 invocations multiplies a tile of 16 × 16 elements of the left factor by a tile of 16 × 8 elements
//! of the right factor, and adds the products to 16 × 8 sums in `f32`. With g = lane / 4 and t = lane % 4, an
//! invocation holds these parts of the tiles; a word has two elements with neighbouring k:
//!
//! | tile | words or values of an invocation |
//! | --- | --- |
//! | left | (row g, k 2t), (row g + 8, k 2t), (row g, k 2t + 8), (row g + 8, k 2t + 8) |
//! | right | (k 2t, column g), (k 2t + 8, column g) |
//! | sums | (row g, columns 2t and 2t + 1), (row g + 8, columns 2t and 2t + 1) |
//!
//! Both factors pass through shared memory as words. The sums of the unit go back through shared memory to the
//! invocations that own their elements in a [`WorkgroupTile`], so the callers do not depend on the layout above.
//!
//! The products are exact. The order and the rounding of the sums of one tile are properties of the hardware, so the
//! results differ from the sums in the order of k in their last bits. They depend only on the shape of the product.

use super::array::{ArrayExprs, FactorSide};
use super::registers::{FactorLoader, SharedTile, TileBounds, WorkgroupTile, loop_over_depth};
use super::unit::MatrixUnit;
use crate::shader::{CollectLines, ShaderBuilder, values};
use pellucid_ir::Compute;

/// The k extent of the shared tiles.
const DEPTH: usize = 32;

/// The number of k indices that the unit multiplies at a time.
const UNIT_DEPTH: usize = 16;

/// The number of words of a row of a shared tile. With four words more than a row has elements, the invocations of a
/// subgroup read all banks of shared memory.
const ROW_WORDS: usize = DEPTH / 2 + 4;

/// The array of the shared tiles and of the sums.
const MEMORY: &str = "units";

/// The variables of an invocation that are used with a unit.
struct UnitLane {
    /// The index of the invocation in its subgroup.
    lane: String,
    /// lane / 4 and lane % 4.
    group: String,
    member: String,
    /// The first row of the subgroup.
    first_row: String,
}

/// The loop over the steps of a shared tile.
const STEPS: &str = "
    for (var step = 0u; step < $steps; step = step + 1u) {
        let pair = step * 8u + $member;
        $add_products
    }
";

impl WorkgroupTile {
    /// Writes the loop that accumulates the products of a left and a right factor in the sums `name`, for a range of k.
    /// The declared shared tiles `tiles` are not used with a [`MatrixUnit`], which has shared memory of its own.
    pub(crate) fn accumulate(
        &self,
        shader: &mut ShaderBuilder,
        name: &str,
        (factors, tiles): ([&ArrayExprs; 2], [&SharedTile; 2]),
        bounds: TileBounds<'_>,
        range: (&str, &str),
    ) {
        match self.unit {
            None => self.accumulate_in_registers(shader, name, (factors, tiles), bounds, range),
            Some(unit) => unit.accumulate(self, shader, name, factors, bounds, range),
        }
    }
}

impl MatrixUnit {
    /// Returns the word of two values, which are rounded.
    fn pack(self, [x, y]: [&str; 2]) -> String {
        format!("h_pack_{}({x}, {y})", self.suffix())
    }

    /// Adds the lines that add the products of a left and a right factor with k in the range to the sums `name`.
    pub(crate) fn accumulate(
        self,
        tile: &WorkgroupTile,
        shader: &mut ShaderBuilder,
        name: &str,
        factors: [&ArrayExprs; 2],
        TileBounds { first, limits }: TileBounds<'_>,
        range: (&str, &str),
    ) {
        self.declare_memory(tile, shader, [tile.height(), tile.width()]);
        let tiles = [("unit_left", tile.height()), ("unit_right", tile.width())]
            .map(|(name, width)| SharedTile::within(name, (MEMORY, 0), tile.compute, (width, DEPTH)));
        let left = FactorLoader::new(shader, FactorSide::Left, factors[0], &tiles[0], (first[0], limits[0]));
        let right = FactorLoader::new(shader, FactorSide::Right, factors[1], &tiles[1], (first[1], limits[1]));
        let lane = UnitLane::declare(tile, shader);
        lane.declare_sums(tile, shader);
        loop_over_depth(shader, [&left, &right], range, |shader| {
            let store = shader.collect_lines(|shader| {
                self.store(shader, &left, 0);
                self.store(shader, &right, tile.height());
            });
            let multiply = shader.collect_lines(|shader| {
                let left = |shader: &mut ShaderBuilder, block: usize| {
                    let row = format!("{} + {}u + {}", lane.first_row, 16 * block, lane.group);
                    let first = shader.define(format!("({row}) * {ROW_WORDS}u + pair"));
                    let words =
                        [0, 8 * ROW_WORDS, 4, 8 * ROW_WORDS + 4].map(|word| format!("{MEMORY}[{first} + {word}u]"));
                    shader.define(format!("vec4<u32>({})", words.join(", ")))
                };
                self.multiply(tile, shader, &lane, left, tile.height());
            });
            [store, multiply]
        });
        lane.add_sums(tile, shader, name);
    }

    /// Adds the lines that store loaded blocks as words, starting at row `first_row` of the shared memory.
    pub(crate) fn store(self, shader: &mut ShaderBuilder, loader: &FactorLoader<'_>, first_row: usize) {
        loader.visit_blocks(shader, |shader, quad, k, name| {
            let first = shader.define(format!("({first_row}u + {quad} * 4u) * {ROW_WORDS}u + {k} / 2u"));
            for i in 0..4 {
                for half in 0..2 {
                    let values = [2 * half, 2 * half + 1].map(|kk| format!("{name}{kk}[{i}]"));
                    let word = self.pack(values.each_ref().map(|value| &**value));
                    shader.line(format!("{MEMORY}[{first} + {}u] = {word};", i * ROW_WORDS + half));
                }
            }
        });
    }

    /// Returns the tile for the loads of a right factor of `width` columns with the k extent of a shared tile.
    pub(crate) fn right_tile(tile: &WorkgroupTile) -> SharedTile {
        SharedTile::within("unit_right", (MEMORY, 0), tile.compute, (tile.width(), DEPTH))
    }

    /// Adds the lines that multiply a left factor of `f32` in the shared tile `weights` by a right factor that
    /// [`store`](MatrixUnit::store) has stored in row 0, and add the products to the sums `name`. The left factor is
    /// rounded.
    pub(crate) fn multiply_weights(
        self,
        tile: &WorkgroupTile,
        shader: &mut ShaderBuilder,
        name: &str,
        weights: &SharedTile,
    ) {
        debug_assert_eq!(weights.tile_k, DEPTH);
        self.declare_memory(tile, shader, [0, tile.width()]);
        let lane = UnitLane::declare(tile, shader);
        lane.declare_sums(tile, shader);
        let left = |shader: &mut ShaderBuilder, block: usize| {
            let words = [0, 1, 2, 3].map(|word| {
                let row = format!("{} + {}u + {}", lane.first_row, 16 * block + word % 2 * 8, lane.group);
                let row = shader.define(row);
                let value = |shader: &mut ShaderBuilder, k: usize| {
                    let quad = weights.quad(&format!("pair * 2u + {k}u"), &format!("{row} >> 2u"));
                    shader.define(format!("{quad}[{row} & 3u]"))
                };
                let pair = [0, 1].map(|k| value(shader, word / 2 * 8 + k));
                self.pack(pair.each_ref().map(|x| &**x))
            });
            shader.define(format!("vec4<u32>({})", words.join(", ")))
        };
        self.multiply(tile, shader, &lane, left, 0);
        lane.add_sums(tile, shader, name);
    }

    /// Adds the loop over the steps of a shared tile. `left` returns the words of a block of 16 rows; the right factor
    /// starts in row `first_row` of the shared memory.
    fn multiply(
        self,
        tile: &WorkgroupTile,
        shader: &mut ShaderBuilder,
        lane: &UnitLane,
        left: impl Fn(&mut ShaderBuilder, usize) -> String,
        first_row: usize,
    ) {
        let add_products = shader.collect_lines(|shader| {
            let left: Vec<String> = (0..row_blocks(tile)).map(|block| left(shader, block)).collect();
            for j in 0..column_blocks(tile) {
                let first = format!("({}u + {}) * {ROW_WORDS}u + pair", first_row + 8 * j, lane.group);
                let first = shader.define(first);
                let right = shader.define(format!("vec2<u32>({MEMORY}[{first}], {MEMORY}[{first} + 4u])"));
                for (i, left) in left.iter().enumerate() {
                    let (sum, lane, suffix) = (lane.sum(i, j), &lane.lane, self.suffix());
                    shader.line(format!("{sum} = h_multiply_units_{suffix}({sum}, {left}, {right}, {lane});"));
                }
            }
        });
        let (steps, member) = (format!("{}u", DEPTH / UNIT_DEPTH), &lane.member);
        shader.template(STEPS, values![steps, member, add_products]);
    }

    /// Declares shared memory for rows of the factors, and for the sums of a tile.
    fn declare_memory(self, tile: &WorkgroupTile, shader: &mut ShaderBuilder, rows: [usize; 2]) {
        let words = ((rows[0] + rows[1]) * ROW_WORDS).max(tile.height() * sum_row_words(tile));
        shader.workgroup_array(MEMORY, "u32", words);
    }
}

/// Returns the number of blocks of 16 rows of a subgroup. A workgroup has two subgroups, one below the other.
fn row_blocks(tile: &WorkgroupTile) -> usize {
    tile.height() / 32
}

/// Returns the number of blocks of 8 columns.
fn column_blocks(tile: &WorkgroupTile) -> usize {
    tile.width() / 8
}

/// Returns the number of words of a row of the sums in shared memory.
fn sum_row_words(tile: &WorkgroupTile) -> usize {
    tile.width() + 8
}

impl UnitLane {
    fn declare(tile: &WorkgroupTile, shader: &mut ShaderBuilder) -> UnitLane {
        debug_assert!(tile.compute == Compute::F32 && tile.height().is_multiple_of(32));
        let lane = shader.define("local & 31u");
        let (group, member) = (shader.define(format!("{lane} >> 2u")), shader.define(format!("{lane} & 3u")));
        let first_row = shader.define(format!("(local >> 5u) * {}u", tile.height() / 2));
        UnitLane { lane, group, member, first_row }
    }

    /// Returns the variable of the sums of a block. The name of the lane is unique in the shader.
    fn sum(&self, i: usize, j: usize) -> String {
        format!("{}_sum{i}_{j}", self.lane)
    }

    fn declare_sums(&self, tile: &WorkgroupTile, shader: &mut ShaderBuilder) {
        for (i, j) in (0..row_blocks(tile)).flat_map(|i| (0..column_blocks(tile)).map(move |j| (i, j))) {
            shader.line(format!("var {} = vec4<f32>();", self.sum(i, j)));
        }
    }

    /// Adds the lines that add the sums to the sums `name` of the invocations that own the elements.
    fn add_sums(&self, tile: &WorkgroupTile, shader: &mut ShaderBuilder, name: &str) {
        let row_words = sum_row_words(tile);
        shader.line("workgroupBarrier();");
        let first = format!("({} + {}) * {row_words}u + {} * 2u", self.first_row, self.group, self.member);
        let first = shader.define(first);
        for (i, j) in (0..row_blocks(tile)).flat_map(|i| (0..column_blocks(tile)).map(move |j| (i, j))) {
            for k in 0..4 {
                let word = (16 * i + k / 2 * 8) * row_words + 8 * j + k % 2;
                shader.line(format!("{MEMORY}[{first} + {word}u] = bitcast<u32>({}[{k}]);", self.sum(i, j)));
            }
        }
        shader.line("workgroupBarrier();");
        let first = shader.define(format!("own_row * {}u + own_column * 4u", 4 * row_words));
        for (r, c) in (0..4 * tile.quads[0]).flat_map(|r| (0..tile.quads[1]).map(move |c| (r, c))) {
            let word = (4 * tile.grid[0] * (r / 4) + r % 4) * row_words + 4 * tile.grid[1] * c;
            let values = [0, 1, 2, 3].map(|j| format!("bitcast<f32>({MEMORY}[{first} + {}u])", word + j));
            let sum = format!("{name}{}", r * tile.quads[1] + c);
            shader.line(format!("{sum} = {sum} + vec4<f32>({});", values.join(", ")));
        }
    }
}
