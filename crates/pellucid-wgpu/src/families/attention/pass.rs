//! [`AttentionPass`]: the dispatch of one output. Its text is in [`template`].

use super::template;
use crate::dispatch_list::DispatchList;
use crate::families::shared::tile::{
    ArrayText, FactorLoader, FactorSide, SharedTile, TiledArray, WorkgroupTile, declare_shared, is_narrow, quad_type,
};
use crate::operand::{Bindings, BufferRef, DeviceArray};
use crate::shader::parameters::Parameters;
use crate::shader::template::values;
use crate::shader::types::{FloatText, type_text};
use crate::shader::{BindingUse, ShaderBuilder, access};
use pellucid_ir::kernel::{Attention, AttentionSizes};
use pellucid_ir::{Compute, DType, Result, Scalar};

/// The rows and columns of a block of scores. The order of accumulation depends on this number.
pub(super) const BLOCK: usize = 32;

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
    /// The kernel.
    pub(super) kernel: &'o Attention,
    /// Its sizes.
    pub(super) sizes: AttentionSizes,
    /// The output.
    pub(super) kind: PassKind,
    /// The mask.
    pub(super) mask: Option<DeviceArray<'a>>,
    /// The inputs of the kernel.
    pub(super) inputs: &'o [DeviceArray<'a>],
    /// The outputs of the kernel.
    pub(super) outputs: &'o [DeviceArray<'a>],
}

/// The index of an input of the kernel.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const GRADIENT: usize = 3;
const RESULT: usize = 4;
const LOG_SUMS: usize = 5;

/// The number of weights of a row that are multiplied with the values at a time.
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

    /// Returns the index of the output.
    fn output(self) -> usize {
        match self {
            PassKind::Output | PassKind::QueryGradient => 0,
            PassKind::KeyGradient => 1,
            PassKind::ValueGradient => 2,
        }
    }

    /// Returns the input whose rows are multiplied with the weights.
    fn values(self) -> usize {
        match self {
            PassKind::Output => V,
            PassKind::QueryGradient => K,
            PassKind::KeyGradient => Q,
            PassKind::ValueGradient => GRADIENT,
        }
    }

    /// Returns the inputs that the pass reads.
    fn inputs(self) -> &'static [usize] {
        match self {
            PassKind::Output => &[Q, K, V],
            PassKind::QueryGradient => &[Q, K, V, GRADIENT, RESULT, LOG_SUMS],
            PassKind::KeyGradient => &[Q, K, V, GRADIENT, LOG_SUMS],
            PassKind::ValueGradient => &[Q, K, GRADIENT, LOG_SUMS],
        }
    }
}

/// The text of a pass while it is generated.
struct PassText<'p, 'a, 'o> {
    pass: &'p AttentionPass<'a, 'o>,
    shader: ShaderBuilder,
    parameters: Parameters,
    bindings: Bindings,
    float: FloatText,
    tile: WorkgroupTile,
    /// The numbers of rows and columns.
    limits: [String; 2],
    /// The scale of the scores.
    scale: String,
    /// The binding of the statistics of the queries.
    statistics: Option<usize>,
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

    /// Adds the dispatch to a list. `statistics` contains two numbers for each query: the reciprocal of the sum of its
    /// weights and Σ Ω·O.
    pub(super) fn describe(&self, list: &mut DispatchList<'_>, statistics: Option<BufferRef>) -> Result<()> {
        let AttentionSizes { batch, heads, groups, queries, keys, .. } = self.sizes;
        let output = self.outputs[self.kind.output()];
        let has_query_rows = self.kind.has_query_rows();
        let (rows, columns, own_heads) = if has_query_rows { (queries, keys, heads) } else { (keys, queries, groups) };
        let compute = output.dtype.compute();
        let width = output.shape()[3];
        // Wider tiles repeat the scores less often.
        let quads =
            if compute == Compute::F64 { 1 } else { [4, 2, 1][usize::from(width <= 64) + usize::from(width <= 32)] };
        let tile = WorkgroupTile { compute, grid: [8, 8], quads: [1, quads] };
        // The pass of the queries writes its statistics even if it has no output.
        let chunks = width.div_ceil(tile.width()).max(1);
        let row_tiles = rows.div_ceil(BLOCK);
        let items = batch * own_heads * row_tiles * chunks;
        if items == 0 {
            return Ok(());
        }
        let mut shader = ShaderBuilder::default();
        let mut parameters = Parameters::for_items(items);
        let is_vector = |array: &DeviceArray<'a>| {
            array.dtype.size() >= 4 && array.shape().rank() == 4 && self.matrices(*array).quad_axis().is_some()
        };
        let reads = self.reads();
        let bindings = Bindings::with_vectors(&mut shader, &reads, &self.writes(), |k| is_vector(&reads[k]));
        let limits = [rows, columns].map(|v| parameters.declare_len(v));
        let scale = parameters.declare_scalar(compute, Scalar::Float(self.kernel.scale));
        let statistics_binding = statistics.map(|_| {
            shader.binding(if self.kind == PassKind::QueryGradient { BindingUse::Write } else { BindingUse::Read })
        });
        let mut text = PassText {
            pass: self,
            shader,
            parameters,
            bindings,
            float: FloatText(compute),
            tile,
            limits,
            scale,
            statistics: statistics_binding,
        };
        text.generate([chunks, row_tiles, own_heads, width]);
        let PassText { shader, parameters, mut bindings, .. } = text;
        bindings.buffers.extend(statistics);
        list.dispatch("attention", shader, parameters, &bindings.buffers, items)
    }
}

impl<'a> PassText<'_, 'a, '_> {
    /// Adds the lines of a template. All templates have the values of this function.
    fn template(&mut self, text: &str, values: &[(&str, &str)]) {
        let ([rows, columns], scale, block) = (&self.limits, &self.scale, format!("{BLOCK}u"));
        self.float.template(&mut self.shader, text, &[values, values![rows, columns, scale, block]].concat());
    }

    /// Returns the lines that `lines` adds, as a value of a template.
    fn part(&mut self, lines: impl FnOnce(&mut Self)) -> String {
        let before = std::mem::take(&mut self.shader.body);
        lines(self);
        std::mem::replace(&mut self.shader.body, before)
    }

    /// Returns the text of the matrix of an operand for head `head`.
    fn declare(&mut self, array: &TiledArray<'a>, binding: usize, head: &str) -> ArrayText {
        let [start, sequence, of_head] =
            [array.start, array.batch[0], array.batch[1]].map(|v| self.parameters.declare(v));
        let base = self.shader.define(format!("{start} + sequence * {sequence} + {head} * {of_head}"));
        array.declare(&mut self.parameters, binding, base)
    }

    /// Returns the text of the matrix of input `k` of the kernel.
    fn input(&mut self, k: usize, transposed: bool) -> ArrayText {
        let array = self.pass.inputs[k];
        let matrices = self.pass.matrices(array);
        let matrices = if transposed { matrices.transposed() } else { matrices };
        let at = self.pass.kind.inputs().iter().position(|&own| own == k).unwrap_or(0);
        let head = if matches!(k, K | V) { "group_head" } else { "query_head" };
        self.declare(&matrices, self.bindings.input(at), head)
    }

    /// Adds the lines that declare a variable and assign an element to it. `row` and `column` are indices with their
    /// limits.
    fn load(&mut self, array: &ArrayText, [row, column]: [(&str, &str); 2], compute: Compute, name: &str) {
        let shader = &mut self.shader;
        let (row, column) = (array.row_part(shader, row.0, row.1), array.column_part(shader, column.0, column.1));
        shader.line(format!("var {name}: {};", type_text(compute)));
        array.load_element(shader, (&row, &column), compute, name);
    }

    fn generate(&mut self, [chunks, row_tiles, heads, width]: [usize; 4]) {
        let AttentionSizes { heads: all_heads, groups, width: score_depth, depth, .. } = self.pass.sizes;
        let [chunks, row_tiles, heads, width, shared, score_depth, depth] =
            [chunks, row_tiles, heads, width, all_heads / groups.max(1), score_depth, depth]
                .map(|v| self.parameters.declare_len(v));
        let (has_query_rows, tile) = (self.pass.kind.has_query_rows(), self.tile);
        let declare_tile = self.part(|text| {
            tile.declare_grid(&mut text.shader);
            tile.declare(&mut text.shader, "total");
        });
        let begin_rows = if has_query_rows { self.part(Self::begin_rows) } else { String::new() };
        let visit_columns = self.part(|text| text.visit_columns(&width, [&score_depth, &depth]));
        let finish_rows = if has_query_rows { self.part(Self::finish_rows) } else { String::new() };
        let store = self.part(|text| text.store(&width));
        let visit_head = if has_query_rows { template::QUERY_HEAD } else { template::KEY_HEAD };
        let tile_width = format!("{}u", tile.width());
        let group = values![chunks, row_tiles, heads, shared, tile_width, declare_tile];
        let rows = values![visit_head, begin_rows, visit_columns, finish_rows, store];
        self.template(template::PASS, &[&group[..], rows].concat());
    }

    /// Adds the loop over the columns.
    fn visit_columns(&mut self, width: &str, [score_depth, depth]: [&str; 2]) {
        let (kind, compute) = (self.pass.kind, self.float.0);
        // 16 KiB of shared memory suffice: the weights, and a memory that factors of scores and values share.
        let score_step = if is_narrow(compute) { 16 } else { 8 };
        let (shader, width_of_tile) = (&mut self.shader, self.tile.width());
        declare_shared(shader, "factors", compute, (2 * BLOCK * score_step).max(width_of_tile * VALUE_STEP));
        let factor_tile =
            |name, side| SharedTile::within(name, ("factors", side * BLOCK * score_step), compute, (BLOCK, score_step));
        let tiles = [factor_tile("left", 0), factor_tile("right", 1)];
        let value_tile = SharedTile::within("values", ("factors", 0), compute, (width_of_tile, VALUE_STEP));
        let weight_tile = SharedTile::declare(shader, "weights", compute, (BLOCK, BLOCK));
        for name in ["maxima", "partials"] {
            let declaration = format!("var<workgroup> {name}: array<{}, {}>;\n", self.float.ty(), BLOCK * 8);
            shader.globals.push_str(&declaration);
        }
        let sides = |query, key| if kind.has_query_rows() { (query, key) } else { (key, query) };
        let mut factors = |(row, column)| [self.input(row, false), self.input(column, true)];
        let (scored, products) =
            (factors(sides(Q, K)), kind.has_gradient_weights().then(|| factors(sides(GRADIENT, V))));
        let values = self.input(kind.values(), false);
        let log_sums = (!kind.has_query_rows()).then(|| self.input(LOG_SUMS, false));
        let compute_scores = self.part(|text| {
            text.multiply_factors(&scored, &tiles, score_depth, ("score", "weight"));
            if let Some(products) = &products {
                text.multiply_factors(products, &tiles, depth, ("product", "slope"));
            }
        });
        let mask_scores = self.part(Self::mask_scores);
        let compute_weights = self.part(|text| match kind {
            PassKind::Output => text.softmax_weights(),
            _ => text.gradient_weights(log_sums.as_ref()),
        });
        let multiply_values = self.part(|text| text.multiply_values((&weight_tile, &value_tile), &values, width));
        // Query i attends to the keys 0..=i, so full blocks are not visible.
        let (first_column, end_column) = match (self.pass.kernel.causal, kind.has_query_rows()) {
            (false, _) => ("0u", "$columns"),
            (true, true) => ("0u", "min($columns, first_row + $block)"),
            (true, false) => ("first_row", "$columns"),
        };
        let (quad, shared_weights) = (quad_type(compute), weight_tile.quad("own_column * 4u + j", "own_row"));
        let range = values![first_column, end_column, quad, shared_weights];
        let parts = values![compute_scores, mask_scores, compute_weights, multiply_values];
        self.template(template::COLUMNS, &[&range[..], parts].concat());
    }

    /// Adds the lines that compute the product of two factors for the block, as an array `array`.
    fn multiply_factors(
        &mut self,
        factors: &[ArrayText; 2],
        tiles: &[SharedTile; 2],
        depth: &str,
        (sums, array): (&str, &str),
    ) {
        let tile = WorkgroupTile { compute: self.float.0, grid: [8, 8], quads: [1, 1] };
        let place = (["first_row", "first_column"], [&*self.limits[0], &*self.limits[1]]);
        tile.declare(&mut self.shader, sums);
        tile.accumulate(&mut self.shader, sums, (factors.each_ref(), tiles.each_ref()), place, ("0u", depth));
        self.shader.line(format!("var {array} = {};", tile.as_array(sums)));
    }

    /// Adds the lines that multiply the weights of a block, which are in shared memory, with the values.
    fn multiply_values(&mut self, (weights, tile): (&SharedTile, &SharedTile), values: &ArrayText, width: &str) {
        let (columns, limit) = (self.limits[1].clone(), ("first_chunk", width));
        let loader = FactorLoader::new(&mut self.shader, FactorSide::Right, values, tile, limit);
        let load = self.part(|text| loader.load(&mut text.shader, "first_column + part", &columns));
        let share = self.part(|text| loader.store(&mut text.shader));
        let multiply = self.part(|text| text.tile.multiply(&mut text.shader, "total", (weights, "part"), tile));
        let step = format!("{VALUE_STEP}u");
        self.template(template::MULTIPLY_VALUES, values![step, load, share, multiply]);
    }

    /// Adds the lines that apply scale and mask to the scores.
    fn mask_scores(&mut self) {
        let has_query_rows = self.pass.kind.has_query_rows();
        let mask = self.pass.mask.map(|mask| {
            let array = self.pass.matrices(mask);
            let array = if has_query_rows { array } else { array.transposed() };
            let binding = self.bindings.input(self.pass.kind.inputs().len());
            self.declare(&array, binding, "query_head")
        });
        let and_is_visible = match (self.pass.kernel.causal, has_query_rows) {
            (false, _) => "",
            (true, true) => " && column <= row",
            (true, false) => " && row <= column",
        };
        let (load_mask, apply_mask) = match &mask {
            None => Default::default(),
            Some(mask) => {
                let [rows, columns] = self.limits.clone();
                let is_boolean = mask.dtype == DType::Bool;
                let compute = if is_boolean { Compute::Mask } else { self.float.0 };
                let load = self.part(|text| text.load(mask, [("row", &rows), ("column", &columns)], compute, "masked"));
                let apply = match is_boolean {
                    true => "score = select($negative_infinity, score, masked);",
                    false => "score = $add(score, masked);",
                };
                (load, apply)
            }
        };
        self.template(template::MASK_SCORES, values![and_is_visible, load_mask, apply_mask]);
    }

    /// Returns the lines that combine the values `own[i]` of the invocations of each row to `combined[i]`.
    fn combine_rows(&mut self, memory: &str, combine: &str, own: &str, combined: &str) -> String {
        self.part(|text| text.template(template::COMBINE_ROWS, values![memory, combine, own, combined]))
    }

    /// Adds the lines before the loop over keys: the running maximum, or Σ Ω·O and λ of every row.
    fn begin_rows(&mut self) {
        if self.pass.kind == PassKind::Output {
            return self.template(template::SOFTMAX_ROWS, &[]);
        }
        let [gradient, result, log_sums] = [GRADIENT, RESULT, LOG_SUMS].map(|k| self.input(k, false));
        let (rows, compute) = (self.limits[0].clone(), self.float.0);
        let depth = self.parameters.declare_len(self.pass.sizes.depth);
        let load_factors = self.part(|text| {
            text.load(&gradient, [("row", &rows), ("c", &depth)], compute, "g");
            text.load(&result, [("row", &rows), ("c", &depth)], compute, "o");
        });
        let load_log_sum = self.part(|text| text.load(&log_sums, [("row", &rows), ("0u", "1u")], compute, "log_sum"));
        let combine_dots = self.combine_rows("maxima", "$add", "own_dot", "row_dot");
        self.template(template::GRADIENT_ROWS, values![depth, load_factors, load_log_sum, combine_dots]);
    }

    /// Adds the lines that replace the scores by the weights of the softmax.
    fn softmax_weights(&mut self) {
        let combine_maxima = self.combine_rows("maxima", "$max", "own_max", "block_max");
        let combine_sums = self.combine_rows("partials", "$add", "own_sum", "block_sum");
        let scale_total = self.part(|text| text.tile.scale_rows(&mut text.shader, "total", "factor"));
        self.template(template::SOFTMAX_WEIGHTS, values![combine_maxima, combine_sums, scale_total]);
    }

    /// Adds the lines that replace the scores by the weights of a gradient. `log_sums` is λ, if queries are columns.
    fn gradient_weights(&mut self, log_sums: Option<&ArrayText>) {
        let load_query = log_sums.map_or(String::new(), |log_sums| self.part(|text| text.load_query(log_sums)));
        let (log_sum, dot, normalize) = match log_sums {
            None => ("row_log[i]", "row_dot[i]", "row_sum[i] = $add(row_sum[i], p);"),
            Some(_) => ("log_sum", "dot", "p = $mul(p, inverse_sum);"),
        };
        let multiply_slope = match self.pass.kind.has_gradient_weights() {
            true => "p = $mul($mul(p, $sub(slope[i][j], $dot)), $scale);",
            false => "",
        };
        self.template(template::GRADIENT_WEIGHTS, values![load_query, log_sum, dot, normalize, multiply_slope]);
    }

    /// Adds the lines that load the data of a query, which belong to a column.
    fn load_query(&mut self, log_sums: &ArrayText) {
        let (columns, compute) = (self.limits[1].clone(), self.float.0);
        self.shader.line("let column = first_column + own_column * 4u + j;");
        self.load(log_sums, [("column", &columns), ("0u", "1u")], compute, "log_sum");
        let binding = self.statistics.unwrap_or(0);
        let [inverse_sum, dot] = self
            .statistics_positions("column", &columns)
            .map(|at| access::load(&self.shader, binding, compute.storage(), compute, &at));
        self.template(template::LOAD_STATISTICS, values![inverse_sum, dot]);
    }

    /// Adds the lines that compute the positions of both statistics of a query.
    fn statistics_positions(&mut self, query: &str, queries: &str) -> [String; 2] {
        let heads = self.parameters.declare_len(self.pass.sizes.heads);
        let position = format!("(((sequence * {heads}) + query_head) * {queries} + {query}) * 2u");
        let first = self.shader.define(position);
        let second = self.shader.define(format!("{first} + 1u"));
        [first, second]
    }

    /// Adds the lines that divide the rows by their sums and store λ or the statistics.
    fn finish_rows(&mut self) {
        let (sums, combine_sums) = match self.pass.kind {
            PassKind::Output => ("row_sum", String::new()),
            _ => ("total_sum", self.combine_rows("partials", "$add", "row_sum", "total_sum")),
        };
        let store_row = self.part(Self::store_row);
        let scale_total = self.part(|text| text.tile.scale_rows(&mut text.shader, "total", "factor_of_sum"));
        self.template(template::FINISH_ROWS, values![sums, combine_sums, store_row, scale_total]);
    }

    /// Adds the lines that store λ or the statistics of a row.
    fn store_row(&mut self) {
        let (rows, float) = (self.limits[0].clone(), self.float);
        let (compute, storage) = (float.0, float.0.storage());
        if self.pass.kind == PassKind::Output {
            let array = self.pass.matrices(self.pass.outputs[1]);
            let log_sums = self.declare(&array, self.bindings.output(1), "query_head");
            let shader = &mut self.shader;
            let (row, column) = (log_sums.row_part(shader, "row", &rows), log_sums.column_part(shader, "0u", "1u"));
            let at = log_sums.position(shader, &row, &column);
            self.template(template::LOG_SUM, &[]);
            return access::store(&mut self.shader, log_sums.binding, compute, storage, "log_sum", &at);
        }
        let positions = self.statistics_positions("row", &rows);
        for (value, to) in ["factor_of_sum[i]", "row_dot[i]"].iter().zip(&positions) {
            access::store(&mut self.shader, self.statistics.unwrap_or(0), compute, storage, value, to);
        }
    }

    /// Adds the lines that store the rows.
    fn store(&mut self, width: &str) {
        let (rows, compute) = (self.limits[0].clone(), self.float.0);
        let array = self.pass.matrices(self.pass.outputs[self.pass.kind.output()]);
        let head = if self.pass.kind.has_query_rows() { "query_head" } else { "group_head" };
        let output = self.declare(&array, self.bindings.output(0), head);
        let place = (["first_row", "first_chunk"], [&*rows, width]);
        self.tile.loop_over_elements(&mut self.shader, "total", place, |shader, value| {
            let parts = (output.row_part(shader, "row", &rows), output.column_part(shader, "column", width));
            let at = output.position(shader, &parts.0, &parts.1);
            access::store(shader, output.binding, compute, compute.storage(), value, &at);
        });
    }
}
