//! [`TiledProduct`]: batched products of two factors with an epilogue.

use super::array::{ArrayExprs, TiledArray};
use super::registers::{TileBounds, WorkgroupTile, is_narrow};
use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, BufferRef, DeviceArray};
use crate::shader::access::{self, MergedAxes};
use crate::shader::iterations::MAX_ITERATIONS;
use crate::shader::parameters::Parameters;
use crate::shader::program::{Accumulator, ProgramValues, convert_expr, program_iterations, round_expr};
use crate::shader::template::{CollectLines, values};
use crate::shader::{BindingUse, ITEM_COUNT, ShaderBuilder, WORKGROUP};
use pellucid_ir::formula::{Binary, Program};
use pellucid_ir::{Compute, DType, Error, Result};

/// The minimum k extent of a split.
const MIN_SPLIT_DEPTH: usize = 256;

/// Returns the maximum k extent of a split: llvmpipe executes at most 65,535 iterations of the loops of an invocation.
fn max_split_depth(compute: Compute) -> usize {
    // The arithmetic of values of two words is in loops: 2^11 · `WIDE_PRODUCT_ITERATIONS` < 65,535.
    if is_narrow(compute) { 1 << 17 } else { 1 << 11 }
}

/// Returns an estimate of the iterations of the loops of an invocation of a product with this epilogue.
pub(crate) fn epilogue_iterations(epilogue: Option<&Program>) -> usize {
    // The loops of a split of k, and 64 elements of the largest tile.
    let split_iterations = MAX_ITERATIONS * 3 / 4;
    split_iterations.saturating_add(epilogue.map_or(0, program_iterations).saturating_mul(64))
}

/// The number of small tiles below which k is split.
const SPLIT_K_MAX_TILES: usize = 64;

/// The number of workgroups from which large tiles are used.
const MIN_LARGE_TILES: usize = 16;

/// The tiles of a product and the splits of k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProductPlan {
    /// The tile of a workgroup.
    pub(crate) tile: WorkgroupTile,
    /// The k extent of the shared tiles.
    pub(crate) tile_k: usize,
    /// The number of splits of k, each computed by its own workgroups.
    pub(crate) k_splits: usize,
    /// The k extent of a split.
    pub(crate) split_depth: usize,
}

impl ProductPlan {
    /// Chooses the tiles of `batch` products of `[m, k]` and `[k, n]`.
    ///
    /// The order of accumulation depends on m, n and k alone: the splits follow from these, and every tile adds in
    /// the order of k.
    pub(crate) fn new(compute: Compute, batch: usize, [m, n, k]: [usize; 3]) -> ProductPlan {
        let small_tiles = m.div_ceil(32) * n.div_ceil(32);
        let k_splits = (SPLIT_K_MAX_TILES / small_tiles.max(1)).clamp(1, (k / MIN_SPLIT_DEPTH).max(1));
        let k_splits = k_splits.max(k.div_ceil(max_split_depth(compute)));
        let split_depth = k.div_ceil(k_splits).next_multiple_of(32).max(32);
        let k_splits = k.div_ceil(split_depth).max(1);
        let (tile, tile_k) = choose_tile(compute, batch * k_splits, [m, n]);
        ProductPlan { tile, tile_k, k_splits, split_depth }
    }
}

/// Returns the tile for `batch` products of m rows and n columns, and the k extent of its shared tiles.
pub(crate) fn choose_tile(compute: Compute, batch: usize, [m, n]: [usize; 2]) -> (WorkgroupTile, usize) {
    let is_narrow = is_narrow(compute);
    let large_tiles = m.div_ceil(64) * n.div_ceil(64) * batch;
    // The tiles of both factors fit the 16 KiB of shared memory that every adapter has.
    let (grid, quads, tile_k) = match () {
        () if m <= 8 && n > 32 => ([2, 32], [1, 1], if is_narrow { 16 } else { 8 }),
        () if n <= 8 && m > 32 => ([32, 2], [1, 1], if is_narrow { 16 } else { 8 }),
        () if m > 32 && n > 32 && is_narrow && large_tiles >= MIN_LARGE_TILES => ([8, 8], [2, 2], 16),
        () => ([8, 8], [1, 1], if is_narrow { 32 } else { 16 }),
    };
    (WorkgroupTile { compute, grid, quads }, tile_k)
}

/// The tile, the split of k and the matrix of a workgroup.
const BEGIN_TILE: &str = "
    if (group >= $item_count) { return; }
    let tile = group % $tile_count;
    let split = group / $tile_count % $k_splits;
    let matrix = group / $tile_count / $k_splits;
    $begin_tile
    let first_k = split * $split_depth;
    let end_k = min(first_k + $split_depth, $k_extent);
";

/// The element of an invocation.
const BEGIN_ELEMENT: &str = "
    if (thread >= $item_count) { return; }
    let column = thread % $columns;
    let row = thread / $columns % $rows;
    let matrix = thread / $columns / $rows;
";

/// Adds the splits of an element.
const ADD_SPLITS: &str = "
    for (var split = 0u; split < $k_splits; split = split + 1u) {
        let offset = split * $item_count + thread;
        $add_split
    }
";

/// `C[.., i, j] = Σₖ A[.., i, k]·B[.., k, j]`, followed by an epilogue.
pub(crate) struct TiledProduct<'a, 'p> {
    /// The name of the operation.
    pub(crate) op: &'static str,
    /// m, n and k.
    pub(crate) sizes: [usize; 3],
    /// The lengths of the batch axes.
    pub(crate) batch: Vec<usize>,
    /// The dtype to which the product is rounded.
    pub(crate) dtype: DType,
    /// A, B and the other inputs of the epilogue.
    pub(crate) inputs: Vec<TiledArray<'a>>,
    /// The outputs.
    pub(crate) outputs: Vec<TiledArray<'a>>,
    /// The program whose first input is the product.
    pub(crate) epilogue: Option<&'p Program>,
}

/// A shader of a product while it is generated.
#[derive(Default)]
pub(crate) struct ProductShader {
    /// The shader.
    pub(crate) shader: ShaderBuilder,
    /// The parameters.
    pub(crate) parameters: Parameters,
    /// The buffers.
    pub(crate) bindings: Bindings,
    /// The operands, inputs first.
    pub(crate) arrays: Vec<ArrayExprs>,
}

impl ProductShader {
    /// Binds the operands and adds the lines that compute the offset of matrix `matrix` in each.
    pub(crate) fn declare_arrays(&mut self, batch: &[usize], operands: [&[TiledArray<'_>]; 2], matrix: &str) {
        let [inputs, outputs] = operands.map(|side| side.iter().map(|a| a.array).collect::<Vec<DeviceArray<'_>>>());
        let is_vector = |k: usize| operands[0][k].array.dtype.size() >= 4 && operands[0][k].quad_axis().is_some();
        self.bindings = Bindings::with_vectors(&mut self.shader, &inputs, &outputs, is_vector);
        let all: Vec<&TiledArray<'_>> = operands.into_iter().flatten().collect();
        let strides: Vec<Vec<isize>> = all.iter().map(|a| a.batch.clone()).collect();
        let space = MergedAxes::new(batch, &strides);
        let starts: Vec<String> = all.iter().map(|a| self.parameters.declare(a.start)).collect();
        let bases = space.declare(&mut self.parameters).offsets(&mut self.shader, matrix, &starts);
        for (k, (array, base)) in all.iter().zip(bases).enumerate() {
            let binding =
                if k < inputs.len() { self.bindings.input(k) } else { self.bindings.output(k - inputs.len()) };
            self.arrays.push(array.declare(&mut self.parameters, binding, base));
        }
    }
}

impl TiledProduct<'_, '_> {
    /// Returns the number of matrices.
    fn matrices(&self) -> usize {
        self.batch.iter().product()
    }

    /// Adds the dispatches to a list.
    pub(crate) fn describe(&self, list: &mut DispatchList<'_>) -> Result<()> {
        let [m, n, _] = self.sizes;
        let count = self.matrices() * m * n;
        if count == 0 {
            return Ok(());
        }
        let plan = ProductPlan::new(self.dtype.compute(), self.matrices(), self.sizes);
        if plan.k_splits == 1 {
            return self.multiply(list, &plan, None);
        }
        let elements = count.checked_mul(plan.k_splits).filter(|&elements| elements <= u32::MAX as usize / 2);
        let bytes = elements.ok_or_else(|| Error::out_of_memory(usize::MAX))? * plan.tile.compute.size();
        let partial = list.scratch(bytes);
        self.multiply(list, &plan, Some(partial))?;
        self.combine(list, &plan, partial, count)
    }

    /// Adds the dispatch that computes the product, or its splits in `partial`.
    fn multiply(&self, list: &mut DispatchList<'_>, plan: &ProductPlan, partial: Option<BufferRef>) -> Result<()> {
        let [m, n, k] = self.sizes;
        let tiles = [m.div_ceil(plan.tile.height()), n.div_ceil(plan.tile.width())];
        let groups = self.matrices() * tiles[0] * tiles[1] * plan.k_splits;
        let mut builder = ProductShader { parameters: Parameters::for_items(groups), ..Default::default() };
        let [rows, columns, k_extent, tile_columns, tile_count, k_splits, split_depth] =
            [m, n, k, tiles[1], tiles[0] * tiles[1], plan.k_splits, plan.split_depth]
                .map(|v| builder.parameters.declare_len(v));
        let shader = &mut builder.shader;
        let begin_tile = shader.collect_lines(|shader| plan.tile.begin(shader, "tile", &tile_columns));
        shader.template(BEGIN_TILE, values![tile_count, k_splits, split_depth, k_extent, begin_tile]);
        let [a, b] = plan.tile.declare_product(shader, plan.tile_k);
        let (inputs, outputs) = match partial {
            Some(_) => (&self.inputs[..2], &[][..]),
            None => (&self.inputs[..], &self.outputs[..]),
        };
        builder.declare_arrays(&self.batch, [inputs, outputs], "matrix");
        let bounds = TileBounds { first: ["first_row", "first_column"], limits: [&rows, &columns] };
        let factors = ([&builder.arrays[0], &builder.arrays[1]], [&a, &b]);
        plan.tile.accumulate(&mut builder.shader, "sum", factors, bounds, ("first_k", "end_k"));
        let scratch = partial.map(|_| builder.shader.binding(BindingUse::Write));
        let values = if partial.is_none() { self.declare_epilogue(&mut builder.parameters) } else { None };
        let ProductShader { mut shader, parameters, mut bindings, arrays } = builder;
        plan.tile.loop_over_elements(&mut shader, "sum", bounds, |shader| match scratch {
            Some(binding) => {
                let all = shader.define(format!("{ITEM_COUNT} / {tile_count} / {k_splits}"));
                let offset = format!("((split * {all} + matrix) * {rows} + row) * {columns} + column");
                let (offset, compute) = (shader.define(offset), plan.tile.compute);
                access::store(shader, binding, compute, compute.storage(), "value", &offset);
            }
            None => self.store(shader, &arrays[2..], ("value", values), ("row", &rows), ("column", &columns)),
        });
        bindings.buffers.extend(partial);
        list.dispatch(self.op, shader, parameters, &bindings.buffers, groups)
    }

    /// Adds the dispatch that adds the splits of every element in their order and stores the result.
    fn combine(&self, list: &mut DispatchList<'_>, plan: &ProductPlan, partial: BufferRef, count: usize) -> Result<()> {
        let [m, n, _] = self.sizes;
        let mut builder = ProductShader { parameters: Parameters::for_items(count), ..Default::default() };
        let [rows, columns, k_splits] = [m, n, plan.k_splits].map(|v| builder.parameters.declare_len(v));
        builder.shader.template(BEGIN_ELEMENT, values![rows, columns]);
        builder.declare_arrays(&self.batch, [&self.inputs[2..], &self.outputs], "matrix");
        let values = self.declare_epilogue(&mut builder.parameters);
        let ProductShader { mut shader, parameters, mut bindings, arrays } = builder;
        let binding = shader.binding(BindingUse::Read);
        bindings.buffers.push(partial);
        let compute = plan.tile.compute;
        let total = Accumulator::declare(&mut shader, Binary::Add, compute, "total");
        let add_split = shader.collect_lines(|shader| {
            let value = access::load(shader, binding, compute.storage(), compute, "offset");
            let value = shader.define(value);
            total.accumulate(shader, &value);
        });
        shader.template(ADD_SPLITS, values![k_splits, add_split]);
        let value = shader.define(total.result());
        self.store(&mut shader, &arrays, (&value, values), ("row", &rows), ("column", &columns));
        list.dispatch(self.op, shader, parameters, &bindings.buffers, count.div_ceil(WORKGROUP as usize))
    }

    /// Declares the uniforms of the epilogue.
    fn declare_epilogue(&self, parameters: &mut Parameters) -> Option<ProgramValues> {
        Some(ProgramValues::declare(parameters, self.epilogue?, 0, 0))
    }

    /// Adds the lines that round an element of the product, apply the epilogue and store the results. `arrays` are the
    /// other inputs of the epilogue and the outputs.
    fn store(
        &self,
        shader: &mut ShaderBuilder,
        arrays: &[ArrayExprs],
        (value, values): (&str, Option<ProgramValues>),
        row: (&str, &str),
        column: (&str, &str),
    ) {
        let compute = self.dtype.compute();
        let offsets: Vec<String> = arrays
            .iter()
            .map(|array| {
                let row = array.row_part(shader, row.0, row.1);
                let column = array.column_part(shader, column.0, column.1);
                array.offset(shader, &row, &column)
            })
            .collect();
        let product = shader.define(round_expr(self.dtype, value));
        let (Some(program), Some(mut values)) = (self.epilogue, values) else {
            access::store(shader, arrays[0].binding, compute, self.dtype, &product, &offsets[0]);
            return;
        };
        values.inputs[0] = shader.define(convert_expr(compute, program.inputs[0].compute, &product));
        access::load_inputs(shader, &mut values, program, 1, |k| (arrays[k - 1].binding, &offsets[k - 1]));
        values.compute_steps(shader, program);
        let others = program.inputs.len() - 1;
        for (k, store) in program.outputs.iter().enumerate() {
            let value = values.value(store.value).to_string();
            let (binding, offset) = (arrays[others + k].binding, &offsets[others + k]);
            access::store(shader, binding, store.compute, store.storage, &value, offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_splits_of_k_depend_on_the_shape_of_one_product() {
        for (sizes, narrow, wide) in
            [([64, 64, 4096], 16, 16), ([4, 4, 600], 2, 2), ([4, 4, 511], 1, 1), ([1024, 1024, 8192], 1, 4)]
        {
            for batch in [1, 7, 1000] {
                for (compute, k_splits) in [(Compute::F32, narrow), (Compute::I64, wide)] {
                    let plan = ProductPlan::new(compute, batch, sizes);
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
                let (tile, tile_k) = choose_tile(compute, 1, sizes);
                assert_eq!(tile.grid[0] * tile.grid[1], WORKGROUP as usize);
                assert!((tile.height() + tile.width()) * tile_k * compute.size() <= 16 << 10);
            }
        }
        let (tile, _) = choose_tile(Compute::F32, 1, [1000, 1000]);
        assert_eq!((tile.height(), tile.width()), (64, 64));
    }
}
