//! [`AttentionPass`]: the dispatch of one output. Its shader is in [`template`].

use super::template;
use crate::families::shared::tile::{
    ArrayExprs, FactorLoader, FactorSide, MatrixUnit, SharedTile, TileBounds, TiledArray, WorkgroupTile,
    declare_shared, is_narrow, quad_type,
};
use crate::operand::{Bindings, DeviceArray};
use crate::shader::{
    BindingUse, BufferRef, CollectLines, ElementAccess, ElementRef, KernelFeatures, ShaderBuilder, WgslFloat, values,
    wgsl_type,
};
use pellucid_ir::kernel::{Attention, AttentionSizes};
use pellucid_ir::{Compute, DType, Scalar};

/// The number of rows, and of columns, of a block of scores. The order of accumulation depends on it.
pub(super) const BLOCK: usize = 32;

/// The maximum number of quads in a row of the sums of an invocation with 8 × 8 scores. Its registers contain both.
const MAX_QUADS_OF_LARGE_BLOCK: usize = 2;

/// The output that a dispatch computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PassKind {
    Output,
    QueryGradient,
    KeyGradient,
    ValueGradient,
}

/// The dispatch of one output.
pub(super) struct AttentionPass<'a, 'o> {
    pub(super) kernel: &'o Attention,
    pub(super) sizes: AttentionSizes,
    pub(super) kind: PassKind,
    pub(super) mask: Option<DeviceArray<'a>>,
    pub(super) inputs: &'o [DeviceArray<'a>],
    pub(super) outputs: &'o [DeviceArray<'a>],
    pub(super) features: KernelFeatures,
}

/// The number of weights of a row that are multiplied by the values at a time.
const VALUE_STEP: usize = 16;

impl PassKind {
    /// Returns true if the rows are queries.
    fn has_query_rows(self) -> bool {
        matches!(self, PassKind::Output | PassKind::QueryGradient)
    }

    /// Returns true if the weights are the gradients of the scores.
    fn has_gradient_weights(self) -> bool {
        matches!(self, PassKind::QueryGradient | PassKind::KeyGradient)
    }

    /// Returns the index of the output that the dispatch computes.
    fn output(self) -> usize {
        match self {
            PassKind::Output | PassKind::QueryGradient => 0,
            PassKind::KeyGradient => 1,
            PassKind::ValueGradient => 2,
        }
    }

    /// Returns the input whose rows are multiplied by the weights.
    fn values(self) -> usize {
        match self {
            PassKind::Output => Attention::V,
            PassKind::QueryGradient => Attention::K,
            PassKind::KeyGradient => Attention::Q,
            PassKind::ValueGradient => Attention::GRADIENT,
        }
    }

    /// Returns the inputs that the pass reads.
    fn inputs(self) -> &'static [usize] {
        match self {
            PassKind::Output => &[Attention::Q, Attention::K, Attention::V],
            PassKind::QueryGradient => {
                &[Attention::Q, Attention::K, Attention::V, Attention::GRADIENT, Attention::RESULT, Attention::LOG_SUMS]
            }
            PassKind::KeyGradient => {
                &[Attention::Q, Attention::K, Attention::V, Attention::GRADIENT, Attention::LOG_SUMS]
            }
            PassKind::ValueGradient => &[Attention::Q, Attention::K, Attention::GRADIENT, Attention::LOG_SUMS],
        }
    }
}

/// The shader of a pass while it is generated.
pub(super) struct PassShader<'p, 'a, 'o> {
    pub(super) pass: &'p AttentionPass<'a, 'o>,
    pub(super) shader: ShaderBuilder,
    bindings: Bindings,
    pub(super) float: WgslFloat,
    /// The rows of the output.
    tile: WorkgroupTile,
    /// A block of scores.
    scores: WorkgroupTile,
    /// The unit that multiplies factors that are rounded to half precision.
    unit: Option<MatrixUnit>,
    /// The expressions of the row and column counts of the scores.
    limits: [String; 2],
    /// The expression of the scale of the scores.
    scale: String,
    /// The statistics of the queries.
    statistics: Option<ElementAccess>,
}

impl<'a> AttentionPass<'a, '_> {
    /// Returns the operands that the dispatch reads, in the order of its bindings.
    fn reads(&self) -> Vec<DeviceArray<'a>> {
        self.kind.inputs().iter().map(|&k| self.inputs[k]).chain(self.mask).collect()
    }

    /// Returns the operands that the dispatch writes.
    fn writes(&self) -> Vec<DeviceArray<'a>> {
        match self.kind {
            PassKind::Output => self.outputs.to_vec(),
            kind => vec![self.outputs[kind.output()]],
        }
    }

    /// Returns the matrices of the heads of an operand; the matrix of an operand without a fourth axis is a column.
    fn matrices(&self, array: DeviceArray<'a>) -> TiledArray<'a> {
        let (shape, strides) = (array.shape(), array.layout.strides());
        let column = (shape.get(3).copied().unwrap_or(1), strides.get(3).copied().unwrap_or(0));
        TiledArray::matrix(array, strides[..2].to_vec(), [(shape[2], strides[2]), column])
    }

    /// Returns the dispatch, unless it has no rows. `statistics` contains two numbers for each query: the reciprocal of
    /// the sum of its weights and Σ Ω·O.
    pub(super) fn shader(&self, statistics: Option<BufferRef>) -> Option<ShaderBuilder> {
        let AttentionSizes { batch, heads, kv_heads, queries, keys, .. } = self.sizes;
        let output = self.outputs[self.kind.output()];
        let has_query_rows = self.kind.has_query_rows();
        let (rows, columns, row_heads) =
            if has_query_rows { (queries, keys, heads) } else { (keys, queries, kv_heads) };
        let compute = output.dtype.compute();
        let width = output.shape()[3];
        let unit = MatrixUnit::for_rounded(self.features, self.kernel.half_factors);
        // Large blocks need 28 KiB of shared memory, and 44 KiB with products of the gradient and the values.
        let is_large = self.features.large_shared_memory && unit.is_none() && compute == Compute::F32;
        let is_large = is_large && queries > BLOCK && keys > BLOCK;
        let row_quads = if is_large { 2 } else { 1 };
        // Scores are recomputed for every tile of columns of the output, so wider tiles compute them less often.
        let quads =
            if compute == Compute::F64 { 1 } else { [4, 2, 1][usize::from(width <= 64) + usize::from(width <= 32)] };
        let quads = if is_large { quads.min(MAX_QUADS_OF_LARGE_BLOCK) } else { quads };
        let tile = WorkgroupTile { compute, grid: [8, 8], quads: [row_quads, quads], unit: None };
        let scores = WorkgroupTile { quads: [row_quads; 2], unit, ..tile };
        // `QueryGradient` also writes the statistics, so it needs a tile even if its output has no columns.
        let width_tiles = width.div_ceil(tile.width()).max(1);
        let row_tiles = rows.div_ceil(scores.height());
        let items = batch * row_heads * row_tiles * width_tiles;
        if items == 0 {
            return None;
        }
        let mut shader = ShaderBuilder::for_groups(items);
        let is_vector = |array: &DeviceArray<'a>| {
            array.dtype.size() >= 4 && array.shape().rank() == 4 && self.matrices(*array).quad_axis().is_some()
        };
        let reads = self.reads();
        let bindings = Bindings::with_vectors(&mut shader, &reads, &self.writes(), |k| is_vector(&reads[k]));
        let limits = shader.declare_words([rows, columns]);
        let scale = shader.parameters.declare_scalar(compute, Scalar::Float(self.kernel.scale));
        let usage = if self.kind == PassKind::QueryGradient { BindingUse::Write } else { BindingUse::Read };
        let statistics = statistics.map(|buffer| ElementAccess::new(shader.binding(buffer, usage), compute.storage()));
        let float = WgslFloat(compute);
        let mut pass =
            PassShader { pass: self, shader, bindings, float, tile, scores, unit, limits, scale, statistics };
        pass.generate([width_tiles, row_tiles, row_heads, width]);
        Some(pass.shader)
    }
}

impl AsMut<ShaderBuilder> for PassShader<'_, '_, '_> {
    fn as_mut(&mut self) -> &mut ShaderBuilder {
        &mut self.shader
    }
}

impl<'a> PassShader<'_, 'a, '_> {
    /// Returns true if blocks have 64 × 64 scores.
    fn is_large(&self) -> bool {
        self.scores.quads[0] > 1
    }

    /// Adds the lines of a template. In addition to `values`, the template can use `$rows`, `$columns`, `$scale`,
    /// `$block`, and the rows of an invocation in a block: their number, as a constant of the language (`$own_rows`)
    /// and as an unsigned number (`$row_count`), and row i (`$row_of_i`).
    pub(super) fn template(&mut self, source: &str, values: &[(&str, &str)]) {
        let ([rows, columns], scale) = (self.limits.clone(), self.scale.clone());
        let block = format!("{}u", self.scores.height());
        let own_rows = format!("{}", 4 * self.scores.quads[0]);
        let row_count = format!("{own_rows}u");
        let row_of_i = if self.is_large() { "(own_row + i / 4u * 8u) * 4u + i % 4u" } else { "own_row * 4u + i" };
        let own = values![rows, columns, scale, block, own_rows, row_count, row_of_i];
        self.float.template(&mut self.shader, source, &[values, own].concat());
    }

    /// Returns the expressions of the matrix of an operand for head `head`.
    fn declare(&mut self, array: &TiledArray<'a>, elements: ElementAccess, head: &str) -> ArrayExprs {
        let [start, sequence_stride, head_stride] =
            [array.start, array.batch[0], array.batch[1]].map(|v| self.shader.declare(v));
        let offset = self.shader.define(format!("{start} + sequence * {sequence_stride} + {head} * {head_stride}"));
        array.declare(&mut self.shader, ElementRef { elements, offset })
    }

    /// Returns the expressions of the matrix of input `k` of the kernel.
    fn input(&mut self, k: usize, transposed: bool) -> ArrayExprs {
        let array = self.pass.inputs[k];
        let matrices = self.pass.matrices(array);
        let matrices = if transposed { matrices.transposed() } else { matrices };
        let index = self.pass.kind.inputs().iter().position(|&input| input == k).unwrap_or(0);
        let head = if matches!(k, Attention::K | Attention::V) { "group_head" } else { "query_head" };
        self.declare(&matrices, self.bindings.input(index), head)
    }

    /// Adds the lines that declare a variable and assign an element to it. `row` and `column` are indices with their
    /// limits.
    fn load(&mut self, array: &ArrayExprs, [row, column]: [(&str, &str); 2], compute: Compute, name: &str) {
        let shader = &mut self.shader;
        let (row, column) = (array.row_part(shader, row.0, row.1), array.column_part(shader, column.0, column.1));
        shader.line(format!("var {name}: {};", wgsl_type(compute)));
        array.load_element(shader, (&row, &column), compute, name);
    }

    fn generate(&mut self, [width_tiles, row_tiles, heads, width]: [usize; 4]) {
        let AttentionSizes { heads: all_heads, kv_heads, qk_width, v_width, .. } = self.pass.sizes;
        let group_size = all_heads / kv_heads.max(1);
        let [width_tiles, row_tiles, heads, width, group_size, qk_width, v_width] =
            self.shader.declare_words([width_tiles, row_tiles, heads, width, group_size, qk_width, v_width]);
        let (has_query_rows, tile) = (self.pass.kind.has_query_rows(), self.tile);
        let declare_tile = self.collect_lines(|this| {
            tile.declare_grid(&mut this.shader);
            tile.declare(&mut this.shader, "total");
        });
        let begin_rows = if has_query_rows { self.collect_lines(Self::begin_rows) } else { String::new() };
        let visit_columns = self.collect_lines(|this| this.visit_columns(&width, [&qk_width, &v_width]));
        let finish_rows = if has_query_rows { self.collect_lines(Self::finish_rows) } else { String::new() };
        let store = self.collect_lines(|this| this.store(&width));
        let visit_head = if has_query_rows { template::QUERY_HEAD } else { template::KEY_HEAD };
        let tile_width = format!("{}u", tile.width());
        let group = values![width_tiles, row_tiles, heads, group_size, tile_width, declare_tile];
        let rows = values![visit_head, begin_rows, visit_columns, finish_rows, store];
        self.template(template::PASS, &[&group[..], rows].concat());
    }

    /// Adds the loop over the blocks of columns.
    fn visit_columns(&mut self, width: &str, [qk_width, v_width]: [&str; 2]) {
        let (kind, compute) = (self.pass.kind, self.float.0);
        // A shader with small blocks needs at most 16 KiB of shared memory: the weights, and memory that the factors of
        // the scores and the values share.
        let score_step = if is_narrow(compute) { 16 } else { 8 };
        let (shader, width_of_tile, block) = (&mut self.shader, self.tile.width(), self.scores.height());
        let (score_elements, value_elements) = (2 * block * score_step, width_of_tile * VALUE_STEP);
        if self.unit.is_none() {
            declare_shared(shader, "factors", compute, score_elements.max(value_elements));
        }
        let factor_tile =
            |name, side| SharedTile::within(name, ("factors", side * block * score_step), compute, (block, score_step));
        let tiles = [factor_tile("left", 0), factor_tile("right", 1)];
        let value_tile = SharedTile::within("values", ("factors", 0), compute, (width_of_tile, VALUE_STEP));
        let weight_tile = SharedTile::declare(shader, "weights", compute, (block, block));
        for name in ["maxima", "partials"] {
            shader.workgroup_array(name, self.float.ty(), block * 8);
        }
        let sides = |query, key| if kind.has_query_rows() { (query, key) } else { (key, query) };
        let mut factors = |(row, column)| [self.input(row, false), self.input(column, true)];
        let (scored, products) = (
            factors(sides(Attention::Q, Attention::K)),
            kind.has_gradient_weights().then(|| factors(sides(Attention::GRADIENT, Attention::V))),
        );
        let values = self.input(kind.values(), false);
        let log_sums = (!kind.has_query_rows()).then(|| self.input(Attention::LOG_SUMS, false));
        // The products with the values stay in registers only in small blocks.
        let slope_tile = (self.is_large() && products.is_some())
            .then(|| SharedTile::declare(&mut self.shader, "slopes", compute, (block, block)));
        let compute_scores = self.collect_lines(|this| {
            this.multiply_factors(&scored, &tiles, qk_width, ("score", "weight", &weight_tile));
            if let Some(products) = &products {
                let slopes = slope_tile.as_ref().unwrap_or(&weight_tile);
                this.multiply_factors(products, &tiles, v_width, ("product", "slope", slopes));
            }
        });
        let compute_weights = self.collect_lines(|this| match this.is_large() {
            true => this.weigh_large_block(&weight_tile, slope_tile.as_ref(), log_sums.as_ref()),
            false => this.weigh_small_block(&weight_tile, log_sums.as_ref()),
        });
        let multiply_values =
            self.collect_lines(|this| this.multiply_values((&weight_tile, &value_tile), &values, width));
        // Query i attends to the keys 0..=i, so blocks after the last visible key are skipped.
        let (first_column, end_column) = match (self.pass.kernel.causal, kind.has_query_rows()) {
            (false, _) => ("0u", "$columns"),
            (true, true) => ("0u", "min($columns, first_row + $block)"),
            (true, false) => ("first_row", "$columns"),
        };
        let range = values![first_column, end_column];
        let parts = values![compute_scores, compute_weights, multiply_values];
        self.template(template::COLUMNS, &[&range[..], parts].concat());
    }

    /// Adds the lines that mask 4 × 4 scores, replace them by weights and write these to the tile `weights`.
    fn weigh_small_block(&mut self, weights: &SharedTile, log_sums: Option<&ArrayExprs>) {
        let mask_scores = self.collect_lines(|this| this.mask_with(template::MASK_SCORES));
        let compute_weights = self.collect_lines(|this| match this.pass.kind {
            PassKind::Output => this.softmax_weights(),
            _ => this.gradient_weights(log_sums),
        });
        let (quad, shared_weights) = (quad_type(self.float.0), weights.quad("own_column * 4u + j", "own_row"));
        self.template(template::SMALL_BLOCK, values![mask_scores, compute_weights, quad, shared_weights]);
    }

    /// Adds the lines that compute the invocation's elements of the product of two factors for the block, in the
    /// variable `array`, or in `shared` for a large block.
    fn multiply_factors(
        &mut self,
        factors: &[ArrayExprs; 2],
        tiles: &[SharedTile; 2],
        k_extent: &str,
        (sums, array, shared): (&str, &str, &SharedTile),
    ) {
        let tile = self.scores;
        let limits = self.limits.each_ref().map(|limit| &**limit);
        let bounds = TileBounds { first: ["first_row", "first_column"], limits };
        tile.declare(&mut self.shader, sums);
        tile.accumulate(&mut self.shader, sums, (factors.each_ref(), tiles.each_ref()), bounds, ("0u", k_extent));
        match self.is_large() {
            true => self.share_scores(sums, shared),
            false => self.shader.line(format!("var {array} = {};", tile.as_array(sums))),
        }
    }

    /// Adds the lines that multiply the weights of a block, which are in shared memory, by the values.
    fn multiply_values(&mut self, (weights, tile): (&SharedTile, &SharedTile), values: &ArrayExprs, width: &str) {
        let (columns, limit) = (self.limits[1].clone(), ("first_output_column", width));
        if let Some(unit) = self.unit {
            let (output, tile) = (self.tile, MatrixUnit::right_tile(&self.tile));
            let loader = FactorLoader::new(&mut self.shader, FactorSide::Right, values, &tile, limit);
            let load = self.collect_lines(|this| loader.load(&mut this.shader, "first_column + part", &columns));
            let store_tile = self.collect_lines(|this| unit.store(&mut this.shader, &loader, 0));
            let multiply =
                self.collect_lines(|this| unit.multiply_weights(&output, &mut this.shader, "total", weights));
            let step = format!("{}u", tile.tile_k);
            return self.template(template::MULTIPLY_VALUES, values![step, load, store_tile, multiply]);
        }
        let loader = FactorLoader::new(&mut self.shader, FactorSide::Right, values, tile, limit);
        let load = self.collect_lines(|this| loader.load(&mut this.shader, "first_column + part", &columns));
        let store_tile = self.collect_lines(|this| loader.store(&mut this.shader));
        let multiply =
            self.collect_lines(|this| this.tile.multiply(&mut this.shader, "total", (weights, "part"), tile));
        let step = format!("{VALUE_STEP}u");
        self.template(template::MULTIPLY_VALUES, values![step, load, store_tile, multiply]);
    }

    /// Adds the lines of a template that applies scale and mask to scores.
    pub(super) fn mask_with(&mut self, source: &str) {
        let has_query_rows = self.pass.kind.has_query_rows();
        let mask = self.pass.mask.map(|mask| {
            let array = self.pass.matrices(mask);
            let array = if has_query_rows { array } else { array.transposed() };
            let elements = self.bindings.input(self.pass.kind.inputs().len());
            (self.declare(&array, elements, "query_head"), mask.dtype == DType::Bool)
        });
        let and_is_visible = match (self.pass.kernel.causal, has_query_rows) {
            (false, _) => "",
            (true, true) => " && column <= row",
            (true, false) => " && row <= column",
        };
        let (load_mask, apply_mask) = match &mask {
            None => Default::default(),
            Some((mask, is_boolean)) => {
                let [rows, columns] = self.limits.clone();
                let compute = if *is_boolean { Compute::Mask } else { self.float.0 };
                let load = self
                    .collect_lines(|this| this.load(mask, [("row", &rows), ("column", &columns)], compute, "masked"));
                let apply = match is_boolean {
                    true => "score = select($negative_infinity, score, masked);",
                    false => "score = $add(score, masked);",
                };
                (load, apply)
            }
        };
        self.template(source, values![and_is_visible, load_mask, apply_mask]);
    }

    /// Returns the lines that combine the values `row_values[i]` of the invocations of each row into `combined[i]`.
    fn combine_rows(&mut self, memory: &str, combine: &str, row_values: &str, combined: &str) -> String {
        self.collect_lines(|this| this.template(template::COMBINE_ROWS, values![memory, combine, row_values, combined]))
    }

    /// Adds the lines before the loop over keys: the running maximum, or Σ Ω·O and λ of every row.
    fn begin_rows(&mut self) {
        if self.pass.kind == PassKind::Output {
            let lowest = self.lowest();
            return self.template(template::SOFTMAX_ROWS, values![lowest]);
        }
        let [gradient, result, log_sums] =
            [Attention::GRADIENT, Attention::RESULT, Attention::LOG_SUMS].map(|k| self.input(k, false));
        let (rows, compute) = (self.limits[0].clone(), self.float.0);
        let v_width = self.shader.declare_word(self.pass.sizes.v_width);
        let load_factors = self.collect_lines(|this| {
            this.load(&gradient, [("row", &rows), ("c", &v_width)], compute, "g");
            this.load(&result, [("row", &rows), ("c", &v_width)], compute, "o");
        });
        let load_log_sum =
            self.collect_lines(|this| this.load(&log_sums, [("row", &rows), ("0u", "1u")], compute, "log_sum"));
        let combine_dots = self.combine_rows("maxima", "$add", "own_dot", "row_dot");
        self.template(template::GRADIENT_ROWS, values![v_width, load_factors, load_log_sum, combine_dots]);
    }

    /// Returns the initial values −∞ for all rows of an invocation.
    pub(super) fn lowest(&self) -> String {
        vec!["$negative_infinity"; 4 * self.scores.quads[0]].join(", ")
    }

    /// Returns the lines that combine the maxima and the sums of rows, and that scale the rows of the output.
    pub(super) fn softmax_parts(&mut self) -> (String, String, String) {
        let combine_maxima = self.combine_rows("maxima", "$max", "own_max", "block_max");
        let combine_sums = self.combine_rows("partials", "$add", "own_sum", "block_sum");
        let scale_total = self.collect_lines(|this| this.tile.scale_rows(&mut this.shader, "total", "factor"));
        (combine_maxima, combine_sums, scale_total)
    }

    /// Adds the lines that replace the scores by the weights of the softmax.
    fn softmax_weights(&mut self) {
        let (combine_maxima, combine_sums, scale_total) = self.softmax_parts();
        self.template(template::SOFTMAX_WEIGHTS, values![combine_maxima, combine_sums, scale_total]);
    }

    /// Returns λ and Σ Ω·O of a query, and the line that divides its weight or adds it to its sum.
    pub(super) fn query_exprs(are_columns: bool) -> (&'static str, &'static str, &'static str) {
        match are_columns {
            false => ("row_log[i]", "row_dot[i]", "row_sum[i] = $add(row_sum[i], p);"),
            true => ("log_sum", "dot", "p = $mul(p, inverse_sum);"),
        }
    }

    /// Adds the lines that replace the scores by the weights of a gradient. `log_sums` is λ, if queries are columns.
    fn gradient_weights(&mut self, log_sums: Option<&ArrayExprs>) {
        let load_query = log_sums.map_or(String::new(), |log_sums| {
            self.collect_lines(|this| {
                this.shader.line("let column = first_column + own_column * 4u + j;");
                this.load_query(log_sums);
            })
        });
        let (log_sum, dot, normalize) = PassShader::query_exprs(log_sums.is_some());
        let multiply_slope = match self.pass.kind.has_gradient_weights() {
            true => "p = $mul($mul(p, $sub(slope[i][j], $dot)), $scale);",
            false => "",
        };
        self.template(template::GRADIENT_WEIGHTS, values![load_query, log_sum, dot, normalize, multiply_slope]);
    }

    /// Adds the lines that load λ and the statistics of the query of a column.
    pub(super) fn load_query(&mut self, log_sums: &ArrayExprs) {
        let (columns, compute) = (self.limits[1].clone(), self.float.0);
        self.load(log_sums, [("column", &columns), ("0u", "1u")], compute, "log_sum");
        let statistics = self.statistics.expect("a gradient must have statistics");
        let [inverse_sum, dot] =
            self.statistics_offsets("column", &columns).map(|offset| statistics.load(&self.shader, &offset));
        self.template(template::LOAD_STATISTICS, values![inverse_sum, dot]);
    }

    /// Adds the lines that compute the offsets of both statistics of a query.
    fn statistics_offsets(&mut self, query: &str, queries: &str) -> [String; 2] {
        let heads = self.shader.declare_word(self.pass.sizes.heads);
        let first = format!("(((sequence * {heads}) + query_head) * {queries} + {query}) * 2u");
        let first = self.shader.define(first);
        let second = self.shader.define(format!("{first} + 1u"));
        [first, second]
    }

    /// Adds the lines that divide the rows by their sums and store λ or the statistics.
    fn finish_rows(&mut self) {
        let (sums, combine_sums) = match self.pass.kind {
            PassKind::Output => ("row_sum", String::new()),
            _ => ("total_sum", self.combine_rows("partials", "$add", "row_sum", "total_sum")),
        };
        let store_row = self.collect_lines(Self::store_row);
        let scale_total = self.collect_lines(|this| this.tile.scale_rows(&mut this.shader, "total", "factor_of_sum"));
        self.template(template::FINISH_ROWS, values![sums, combine_sums, store_row, scale_total]);
    }

    /// Adds the lines that store λ or the statistics of a row.
    fn store_row(&mut self) {
        let Some(statistics) = self.statistics else {
            let array = self.pass.matrices(self.pass.outputs[1]);
            let log_sums = self.declare(&array, self.bindings.output(1), "query_head");
            let log_sum = log_sums.element(&mut self.shader, "row", "0u");
            self.template(template::LOG_SUM, &[]);
            return log_sum.store(&mut self.shader, "log_sum");
        };
        let rows = self.limits[0].clone();
        let offsets = self.statistics_offsets("row", &rows);
        for (value, offset) in ["factor_of_sum[i]", "row_dot[i]"].iter().zip(&offsets) {
            statistics.store(&mut self.shader, value, offset);
        }
    }

    /// Adds the lines that store the rows.
    fn store(&mut self, width: &str) {
        let rows = self.limits[0].clone();
        let array = self.pass.matrices(self.pass.outputs[self.pass.kind.output()]);
        let head = if self.pass.kind.has_query_rows() { "query_head" } else { "group_head" };
        let output = self.declare(&array, self.bindings.output(0), head);
        let bounds = TileBounds { first: ["first_row", "first_output_column"], limits: [&rows, width] };
        self.tile.loop_over_elements(&mut self.shader, "total", bounds, |shader| {
            output.element(shader, "row", "column").store(shader, "value");
        });
    }
}
