//! [`TiledProduct`]: batched products of two factors with an epilogue.

use super::array::{ArrayExprs, FactorSide, TiledArray};
use super::registers::{TileBounds, UNROLLED_STEP, WIDE_PRODUCT_ITERATIONS, WorkgroupTile, is_narrow};
use super::unit::MatrixUnit;
use crate::api::LibraryProduct;
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::{
    Accumulator, AccumulatorOp, BindingUse, BufferRef, CollectLines, ElementAccess, ElementRef, ITEM_COUNT,
    MAX_ITERATIONS, MergedAxes, ProgramValues, ShaderBuilder, program_iterations, round_expr, store_finished, values,
};
use pellucid_ir::formula::{Binary, Program};
use pellucid_ir::{Compute, DType};

/// The minimum k extent of a split.
const MIN_SPLIT_DEPTH: usize = 256;

/// The maximum number of iterations of the loops over k of a split. The epilogue may use the rest of
/// [`MAX_ITERATIONS`].
const SPLIT_ITERATIONS: usize = MAX_ITERATIONS * 3 / 4;

/// Returns the maximum k extent of a split, a power of two, so that its loops have at most [`SPLIT_ITERATIONS`].
fn max_split_depth(compute: Compute) -> usize {
    // Shared tiles have a k extent of 16 or more for values of one word, otherwise of 8 or more.
    let (iterations, depth) = match is_narrow(compute) {
        true => (1 + 16 / UNROLLED_STEP, 16),
        false => (1 + 8 * WIDE_PRODUCT_ITERATIONS, 8),
    };
    1 << (SPLIT_ITERATIONS / iterations * depth).ilog2()
}

/// Returns an estimate of the loop iterations of one invocation of a product with this epilogue.
pub(crate) fn epilogue_iterations(epilogue: Option<&Program>) -> usize {
    // An invocation computes up to 64 elements.
    SPLIT_ITERATIONS.saturating_add(epilogue.map_or(0, program_iterations).saturating_mul(64))
}

/// The target number of workgroups of a product with splits of k: a product of t small tiles has at most ⌊this number /
/// t⌋ splits, unless their loops would be too long.
const SPLIT_K_TARGET_GROUPS: usize = 64;

/// The minimum number of workgroups for which large tiles are used.
const MIN_LARGE_TILES: usize = 16;

/// The tiles of a product and the splits of k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProductPlan {
    pub(crate) tile: WorkgroupTile,
    /// The k extent of the shared tiles.
    pub(crate) tile_k: usize,
    /// The number of splits of k, each computed by its own workgroups.
    pub(crate) k_splits: usize,
    /// The k extent of a split.
    pub(crate) split_depth: usize,
    /// Whether shared memory may contain the parts of offsets that depend on k.
    pub(crate) depth_tables: bool,
}

impl ProductPlan {
    /// Chooses the tiles of `batch` products of `[m, k]` and `[k, n]`.
    ///
    /// The order of accumulation depends only on m, n, k and the compute type: the splits follow from these, and every
    /// tile adds in the order of k.
    pub(crate) fn new(
        (compute, unit): (Compute, Option<MatrixUnit>),
        batch: usize,
        [m, n, k]: [usize; 3],
    ) -> ProductPlan {
        let small_tiles = m.div_ceil(32) * n.div_ceil(32);
        let k_splits = (SPLIT_K_TARGET_GROUPS / small_tiles.max(1)).clamp(1, (k / MIN_SPLIT_DEPTH).max(1));
        let k_splits = k_splits.max(k.div_ceil(max_split_depth(compute)));
        let split_depth = k.div_ceil(k_splits).next_multiple_of(32).max(32);
        let k_splits = k.div_ceil(split_depth).max(1);
        let (tile, tile_k) = choose_tile((compute, unit), batch * k_splits, [m, n]);
        ProductPlan { tile, tile_k, k_splits, split_depth, depth_tables: false }
    }
}

/// Returns the tile for `batch` products of m rows and n columns, and the k extent of its shared tiles.
///
/// Products with at most 8 rows or columns do not use a matrix unit. They are limited by memory.
pub(crate) fn choose_tile(
    (compute, unit): (Compute, Option<MatrixUnit>),
    batch: usize,
    [m, n]: [usize; 2],
) -> (WorkgroupTile, usize) {
    let is_narrow = is_narrow(compute);
    let large_tiles = m.div_ceil(64) * n.div_ceil(64) * batch;
    // The tiles of both factors fit the 16 KiB of shared memory that every adapter has.
    let (grid, quads, tile_k) = match () {
        () if m <= 8 && n > 32 => ([2, 32], [1, 1], if is_narrow { 16 } else { 8 }),
        () if n <= 8 && m > 32 => ([32, 2], [1, 1], if is_narrow { 16 } else { 8 }),
        () if m > 32 && n > 32 && is_narrow && large_tiles >= MIN_LARGE_TILES => ([8, 8], [2, 2], 16),
        () => ([8, 8], [1, 1], if is_narrow { 32 } else { 16 }),
    };
    let unit = unit.filter(|_| grid == [8, 8]);
    (WorkgroupTile { compute, grid, quads, unit }, tile_k)
}

/// The code that computes the tile, the split of k and the matrix of a workgroup.
const BEGIN_TILE: &str = "
    let tile = group % $tile_count;
    let split = group / $tile_count % $k_splits;
    let matrix = group / $tile_count / $k_splits;
    $begin_tile
    let first_k = split * $split_depth;
    let end_k = min(first_k + $split_depth, $k_extent);
";

/// The code that computes the element of an invocation.
const BEGIN_ELEMENT: &str = "
    let column = thread % $columns;
    let row = thread / $columns % $rows;
    let matrix = thread / $columns / $rows;
";

/// The code that adds the splits of an element.
const ADD_SPLITS: &str = "
    for (var split = 0u; split < $k_splits; split = split + 1u) {
        let offset = split * $item_count + thread;
        $add_split
    }
";

/// `C[.., i, j] = Σₖ A[.., i, k]·B[.., k, j]`, followed by an epilogue.
pub(crate) struct TiledProduct<'a, 'p> {
    pub(crate) op: &'static str,
    /// The sizes m, n and k: the matrices of A are `[m, k]`, and the matrices of B are `[k, n]`.
    pub(crate) sizes: [usize; 3],
    /// The lengths of the batch axes.
    pub(crate) batch: Vec<usize>,
    /// The dtype to which the product is rounded.
    pub(crate) dtype: DType,
    /// A, B and the other inputs of the epilogue.
    pub(crate) inputs: Vec<TiledArray<'a>>,
    pub(crate) outputs: Vec<TiledArray<'a>>,
    /// The program whose first input is the product.
    pub(crate) epilogue: Option<&'p Program>,
}

/// Binds the operands, inputs first, and adds the lines that compute the offset of matrix `matrix` in each.
fn declare_arrays(
    shader: &mut ShaderBuilder,
    batch: &[usize],
    operands: [&[TiledArray<'_>]; 2],
    matrix: &str,
) -> Vec<ArrayExprs> {
    let [inputs, outputs] = operands.map(|side| side.iter().map(|a| a.array).collect::<Vec<DeviceArray<'_>>>());
    let is_vector = |k: usize| operands[0][k].array.dtype.size() >= 4 && operands[0][k].quad_axis().is_some();
    let bindings = Bindings::with_vectors(shader, &inputs, &outputs, is_vector);
    let all: Vec<&TiledArray<'_>> = operands.into_iter().flatten().collect();
    let strides: Vec<Vec<isize>> = all.iter().map(|a| a.batch.clone()).collect();
    let space = MergedAxes::new(batch, &strides);
    let starts: Vec<String> = all.iter().map(|a| shader.declare(a.start)).collect();
    let bases = space.declare(shader).offsets(shader, matrix, &starts);
    all.iter().zip(bindings.elements(bases)).map(|(array, first)| array.declare(shader, first)).collect()
}

impl TiledProduct<'_, '_> {
    /// Returns the number of matrices.
    fn matrices(&self) -> usize {
        self.batch.iter().product()
    }

    /// Adds the dispatches to a list.
    pub(crate) fn describe(&self, list: &mut DispatchList<'_>) {
        let [m, n, _] = self.sizes;
        let count = self.matrices() * m * n;
        if count == 0 {
            return;
        }
        let factors = [0, 1].map(|k| self.inputs[k].array.dtype);
        let unit = MatrixUnit::for_factors(list.features, factors);
        let plan = ProductPlan::new((self.dtype.compute(), unit), self.matrices(), self.sizes);
        // Two tiles of 64 × 16 words take 16 KiB.
        let plan = ProductPlan { depth_tables: list.features.large_shared_memory, ..plan };
        if plan.k_splits == 1 {
            list.dispatch(self.op, self.multiply(&plan, None));
            return;
        }
        let partial = list.scratch((count * plan.k_splits).saturating_mul(plan.tile.compute.size()));
        list.dispatch(self.op, self.multiply(&plan, Some(partial)));
        list.dispatch(self.op, self.combine(&plan, partial, count));
    }

    /// Adds the dispatches of a product that a library may compute from factors in the buffers `factors`. Another
    /// dispatch applies the epilogue and stores the results, since a library writes its result even after a failed
    /// check.
    pub(crate) fn describe_by_library(
        &self,
        list: &mut DispatchList<'_>,
        product: LibraryProduct,
        factors: [BufferRef; 2],
    ) {
        let [m, n, k] = self.sizes;
        let count = self.matrices() * m * n;
        let plan = ProductPlan::new((self.dtype.compute(), None), self.matrices(), self.sizes);
        let plan = ProductPlan { k_splits: 1, split_depth: k.next_multiple_of(32), ..plan };
        let sums = list.scratch(count.saturating_mul(plan.tile.compute.size()));
        let shader = self.multiply(&plan, Some(sums));
        list.dispatch_product(self.op, shader, (product, [factors[0], factors[1], sums]));
        list.dispatch(self.op, self.combine(&plan, sums, count));
    }

    /// Returns the dispatch that computes the product, or its splits in `partial`.
    fn multiply(&self, plan: &ProductPlan, partial: Option<BufferRef>) -> ShaderBuilder {
        let [m, n, k] = self.sizes;
        let tiles = [m.div_ceil(plan.tile.height()), n.div_ceil(plan.tile.width())];
        let mut shader = ShaderBuilder::for_groups(self.matrices() * tiles[0] * tiles[1] * plan.k_splits);
        let [rows, columns, k_extent, tile_columns, tile_count, k_splits, split_depth] =
            shader.declare_words([m, n, k, tiles[1], tiles[0] * tiles[1], plan.k_splits, plan.split_depth]);
        let begin_tile = shader.collect_lines(|shader| plan.tile.begin(shader, "tile", &tile_columns));
        shader.template(BEGIN_TILE, values![tile_count, k_splits, split_depth, k_extent, begin_tile]);
        let [a, b] = plan.tile.declare_product(&mut shader, plan.tile_k);
        let (inputs, outputs) = match partial {
            Some(_) => (&self.inputs[..2], &[][..]),
            None => (&self.inputs[..], &self.outputs[..]),
        };
        let mut arrays = declare_arrays(&mut shader, &self.batch, [inputs, outputs], "matrix");
        if plan.depth_tables {
            let sides = [FactorSide::Left, FactorSide::Right].into_iter();
            let factors = sides.zip(&mut arrays).zip(inputs);
            factors.for_each(|((side, exprs), array)| exprs.declare_table(&mut shader, array, side));
        }
        let bounds = TileBounds { first: ["first_row", "first_column"], limits: [&rows, &columns] };
        let factors = ([&arrays[0], &arrays[1]], [&a, &b]);
        plan.tile.accumulate(&mut shader, "sum", factors, bounds, ("first_k", "end_k"));
        let compute = plan.tile.compute;
        let scratch =
            partial.map(|buffer| ElementAccess::new(shader.binding(buffer, BindingUse::Write), compute.storage()));
        let values = if partial.is_none() { self.declare_epilogue(&mut shader) } else { None };
        plan.tile.loop_over_elements(&mut shader, "sum", bounds, |shader| match scratch {
            Some(scratch) => {
                let all = shader.define(format!("{ITEM_COUNT} / {tile_count} / {k_splits}"));
                let offset = format!("((split * {all} + matrix) * {rows} + row) * {columns} + column");
                let offset = shader.define(offset);
                scratch.store(shader, "value", &offset);
            }
            None => self.store(shader, &arrays[2..], "value", values),
        });
        shader
    }

    /// Returns the dispatch that adds the splits of every element in their order and stores the result.
    fn combine(&self, plan: &ProductPlan, partial: BufferRef, count: usize) -> ShaderBuilder {
        let [m, n, _] = self.sizes;
        let mut shader = ShaderBuilder::for_threads(count);
        let [rows, columns, k_splits] = shader.declare_words([m, n, plan.k_splits]);
        shader.template(BEGIN_ELEMENT, values![rows, columns]);
        let arrays = declare_arrays(&mut shader, &self.batch, [&self.inputs[2..], &self.outputs], "matrix");
        let values = self.declare_epilogue(&mut shader);
        let compute = plan.tile.compute;
        let splits = ElementAccess::new(shader.binding(partial, BindingUse::Read), compute.storage());
        let total = Accumulator::declare(&mut shader, AccumulatorOp::Fold(Binary::Add), compute, "total");
        let add_split = shader.collect_lines(|shader| {
            let value = splits.define(shader, "offset");
            total.accumulate(shader, &value, "split");
        });
        shader.template(ADD_SPLITS, values![k_splits, add_split]);
        let value = shader.define(total.result());
        self.store(&mut shader, &arrays, &value, values);
        shader
    }

    /// Declares the uniforms of the epilogue, if any. Returns the epilogue and the names of its values.
    fn declare_epilogue(&self, shader: &mut ShaderBuilder) -> Option<(&Program, ProgramValues)> {
        let epilogue = self.epilogue?;
        Some((epilogue, ProgramValues::declare(shader, epilogue, 0, 0)))
    }

    /// Adds the lines that round the element `value` of the product at `row` and `column`, apply the epilogue and store
    /// the results. `arrays` are the other inputs of the epilogue and the outputs.
    fn store(
        &self,
        shader: &mut ShaderBuilder,
        arrays: &[ArrayExprs],
        value: &str,
        epilogue: Option<(&Program, ProgramValues)>,
    ) {
        let elements: Vec<ElementRef> = arrays.iter().map(|array| array.element(shader, "row", "column")).collect();
        let product = shader.define(round_expr(self.dtype, value));
        store_finished(shader, epilogue, &product, self.dtype.compute(), &elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::WORKGROUP;

    #[test]
    fn the_splits_of_k_depend_on_the_shape_of_one_product() {
        for (sizes, narrow, wide) in
            [([64, 64, 4096], 16, 16), ([4, 4, 600], 2, 2), ([4, 4, 511], 1, 1), ([1024, 1024, 8192], 1, 4)]
        {
            for batch in [1, 7, 1000] {
                for (compute, k_splits) in [(Compute::F32, narrow), (Compute::I64, wide)] {
                    let plan = ProductPlan::new((compute, None), batch, sizes);
                    assert_eq!((plan.k_splits, plan.split_depth % plan.tile_k), (k_splits, 0), "{sizes:?}");
                    assert!(
                        plan.split_depth * plan.k_splits >= sizes[2]
                            && plan.split_depth * (plan.k_splits - 1) < sizes[2]
                    );
                }
            }
        }
    }

    #[test]
    fn tiles_have_64_invocations_and_fit_the_shared_memory_of_every_adapter() {
        for sizes in [[1, 1], [5, 100], [100, 5], [40, 40], [64, 64], [1000, 1000]] {
            for compute in [Compute::I32, Compute::F32, Compute::I64, Compute::F64] {
                let (tile, tile_k) = choose_tile((compute, None), 1, sizes);
                assert_eq!(tile.grid[0] * tile.grid[1], WORKGROUP as usize);
                assert!((tile.height() + tile.width()) * tile_k * compute.size() <= 16 << 10);
            }
        }
        let (tile, _) = choose_tile((Compute::F32, None), 1, [1000, 1000]);
        assert_eq!((tile.height(), tile.width()), (64, 64));
    }
}
