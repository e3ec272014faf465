//! [`AttentionPass`]: the dispatch of one output.

use crate::dispatch_list::DispatchList;
use crate::families::tile::{
    ArrayText, FactorLoader, FactorSide, SharedTile, TiledArray, WorkgroupTile, declare_shared, quad_type,
};
use crate::operand::BufferRef;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::float::FloatText;
use crate::shader::parameters::Parameters;
use crate::shader::{BindingUse, ShaderBuilder, access};
use pellucid_ir::kernel::{Attention, AttentionSizes};
use pellucid_ir::{Compute, DType, Result};

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
    /// Returns whether the rows are queries.
    fn has_query_rows(self) -> bool {
        matches!(self, PassKind::Output | PassKind::QueryGradient)
    }

    /// Returns whether the weights are the gradients of the scores.
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

    /// Returns the matrices of an operand with rows and columns exchanged.
    fn transposed(&self, array: DeviceArray<'a>) -> TiledArray<'a> {
        let TiledArray { array, start, batch, rows, columns, coordinates } = self.matrices(array);
        TiledArray { array, start, batch, rows: columns, columns: rows, coordinates }
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
        let scale = parameters.declare_float(compute, self.kernel.scale);
        let statistics_binding = statistics.map(|_| {
            shader.binding(if self.kind == PassKind::QueryGradient { BindingUse::Write } else { BindingUse::Read })
        });
        let mut text = PassText {
            pass: self,
            shader,
            parameters,
            bindings,
            float: FloatText(compute),
            limits,
            scale,
            statistics: statistics_binding,
        };
        text.generate(&tile, (chunks, row_tiles, own_heads, width));
        let PassText { shader, parameters, mut bindings, .. } = text;
        bindings.buffers.extend(statistics);
        list.dispatch("attention", shader, parameters, &bindings.buffers, items)
    }
}

impl<'a> PassText<'_, 'a, '_> {
    /// Returns the text of an operand: input `k` of the kernel, for head `head`.
    fn declare(&mut self, array: &TiledArray<'a>, binding: usize, head: &str) -> ArrayText {
        let [start, sequence, of_head] =
            [array.start, array.batch[0], array.batch[1]].map(|v| self.parameters.declare(v));
        let base = self.shader.define(format!("{start} + sequence * {sequence} + {head} * {of_head}"));
        array.declare(&mut self.parameters, binding, base)
    }

    /// Returns the matrix of input `k` of the kernel.
    fn input(&mut self, k: usize, transposed: bool) -> ArrayText {
        let array = self.pass.inputs[k];
        let matrices = if transposed { self.pass.transposed(array) } else { self.pass.matrices(array) };
        let at = self.pass.kind.inputs().iter().position(|&own| own == k).unwrap_or(0);
        let head = if matches!(k, K | V) { "group_head" } else { "query_head" };
        self.declare(&matrices, self.bindings.input(at), head)
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.shader.line(text);
    }

    fn generate(&mut self, tile: &WorkgroupTile, (chunks, row_tiles, heads, width): (usize, usize, usize, usize)) {
        let AttentionSizes { heads: all_heads, groups, width: score_depth, depth, .. } = self.pass.sizes;
        let (kind, float, compute) = (self.pass.kind, self.float, self.float.0);
        let [chunks, row_tiles, heads, width, shared, score_depth, depth] =
            [chunks, row_tiles, heads, width, all_heads / groups.max(1), score_depth, depth]
                .map(|v| self.parameters.declare_len(v));
        let [rows, columns] = self.limits.clone();
        // 16 KiB of shared memory suffice: the weights, and a memory that factors of scores and values share.
        let is_narrow = compute == Compute::F32;
        let score_step = if is_narrow { 16 } else { 8 };
        let globals = &mut self.shader;
        declare_shared(globals, "factors", compute, (2 * BLOCK * score_step).max(tile.width() * VALUE_STEP));
        let row_tile = SharedTile::within("left", ("factors", 0), compute, (BLOCK, score_step));
        let column_tile = SharedTile::within("right", ("factors", BLOCK * score_step), compute, (BLOCK, score_step));
        let value_tile = SharedTile::within("values", ("factors", 0), compute, (tile.width(), VALUE_STEP));
        let weight_tile = SharedTile::declare(globals, "weights", compute, (BLOCK, BLOCK));
        let partials = format!("array<{}, {}>", float.ty(), BLOCK * 8);
        globals
            .globals
            .push_str(&format!("var<workgroup> maxima: {partials};\nvar<workgroup> partials: {partials};\n"));

        self.begin_group(tile, [&chunks, &row_tiles, &heads, &shared]);
        // Query i attends to the keys 0..=i, so whole blocks are not visible.
        let (begin, end): (String, String) = match (self.pass.kernel.causal, kind.has_query_rows()) {
            (false, _) => ("0u".into(), columns.clone()),
            (true, true) => ("0u".into(), format!("min({columns}, first_row + {BLOCK}u)")),
            (true, false) => ("first_row".into(), columns.clone()),
        };
        let (row_input, column_input) = if kind.has_query_rows() { (Q, K) } else { (K, Q) };
        let factors = [self.input(row_input, false), self.input(column_input, true)];
        let products = kind.has_gradient_weights().then(|| {
            let (row, column) = if kind.has_query_rows() { (GRADIENT, V) } else { (V, GRADIENT) };
            [self.input(row, false), self.input(column, true)]
        });
        let values = self.input(kind.values(), false);
        let query_data = (!kind.has_query_rows()).then(|| self.input(LOG_SUMS, false));
        self.line(format!("let end_column = {end};"));
        self.line(format!(
            "for (var first_column = {begin}; first_column < end_column; \
                           first_column = first_column + {BLOCK}u) {{"
        ));
        // All invocations have read the previous weights.
        self.line("workgroupBarrier();");
        let scores = WorkgroupTile { compute, grid: [8, 8], quads: [1, 1] };
        let tiles = [&row_tile, &column_tile];
        let place = (["first_row", "first_column"], [&*rows, &*columns]);
        let shader = &mut self.shader;
        scores.declare(shader, "score");
        scores.accumulate(shader, "score", ([&factors[0], &factors[1]], tiles), place, ("0u", &score_depth));
        self.line(format!("var weight = {};", scores.as_array("score")));
        if let Some([row, column]) = &products {
            let shader = &mut self.shader;
            scores.declare(shader, "product");
            scores.accumulate(shader, "product", ([row, column], tiles), place, ("0u", &depth));
            self.line(format!("var slope = {};", scores.as_array("product")));
        }
        self.mask_scores();
        match kind {
            PassKind::Output => self.update_softmax(tile),
            _ => self.gradient_weights(query_data.as_ref()),
        }
        self.multiply_values(tile, (&weight_tile, &value_tile), &values, &width);
        self.line("}");
        if kind.has_query_rows() {
            self.finish_rows(tile);
        } else {
            self.line("}");
        }
        self.store(tile, &width);
    }

    /// Adds the lines that assign a workgroup to its tile, and begin its query head or the loop over its query heads.
    fn begin_group(&mut self, tile: &WorkgroupTile, [chunks, row_tiles, heads, shared]: [&str; 4]) {
        self.line("if (group >= params[0]) { return; }");
        self.line(format!("let first_chunk = group % {chunks} * {}u;", tile.width()));
        self.line(format!("let first_row = group / {chunks} % {row_tiles} * {BLOCK}u;"));
        self.line(format!("let head = group / {chunks} / {row_tiles} % {heads};"));
        self.line(format!("let sequence = group / {chunks} / {row_tiles} / {heads};"));
        tile.declare_grid(&mut self.shader);
        tile.declare(&mut self.shader, "total");
        self.line(format!("var row_sum = array<{}, 4>();", self.float.ty()));
        if self.pass.kind.has_query_rows() {
            self.line("let query_head = head;");
            self.line(format!("let group_head = head / {shared};"));
            self.begin_rows();
        } else {
            self.line("let group_head = head;");
            self.line(format!("for (var member = 0u; member < {shared}; member = member + 1u) {{"));
            self.line(format!("let query_head = head * {shared} + member;"));
        }
    }

    /// Adds the lines that store the weights of a block in shared memory, and add their product with the values.
    fn multiply_values(
        &mut self,
        tile: &WorkgroupTile,
        (weight_tile, value_tile): (&SharedTile, &SharedTile),
        values: &ArrayText,
        width: &str,
    ) {
        let (compute, columns) = (self.float.0, self.limits[1].clone());
        self.line("for (var j = 0u; j < 4u; j = j + 1u) {");
        let target = weight_tile.quad("own_column * 4u + j", "own_row");
        let column = [0, 1, 2, 3].map(|i| format!("weight[{i}][j]")).join(", ");
        self.line(format!("{target} = {}({column});", quad_type(compute)));
        self.line("}");
        let limit = ("first_chunk", width);
        let loader = FactorLoader::new(&mut self.shader, FactorSide::Right, values, value_tile, limit);
        self.line(format!("for (var part = 0u; part < {BLOCK}u; part = part + {VALUE_STEP}u) {{"));
        let shader = &mut self.shader;
        loader.load(shader, "first_column + part", &columns);
        shader.line("workgroupBarrier();");
        loader.store(shader);
        shader.line("workgroupBarrier();");
        tile.multiply(shader, "total", (weight_tile, "part"), value_tile);
        self.line("}");
    }

    /// Adds the lines that assign 0 to the scores of pairs that are out of range, and apply scale and mask to all
    /// others. `is_visible` states for each score whether it is in range.
    fn mask_scores(&mut self) {
        let float = self.float;
        let [rows, columns] = self.limits.clone();
        let mask = self.pass.mask.map(|mask| {
            let array = match self.pass.kind.has_query_rows() {
                true => self.pass.matrices(mask),
                false => self.pass.transposed(mask),
            };
            let binding = self.bindings.input(self.pass.kind.inputs().len());
            self.declare(&array, binding, "query_head")
        });
        self.line("var is_visible = array<vec4<bool>, 4>();");
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        self.line("for (var j = 0u; j < 4u; j = j + 1u) {");
        self.line("let row = first_row + own_row * 4u + i;");
        self.line("let column = first_column + own_column * 4u + j;");
        let mut visible = format!("row < {rows} && column < {columns}");
        if self.pass.kernel.causal {
            visible += if self.pass.kind.has_query_rows() { " && column <= row" } else { " && row <= column" };
        }
        self.line(format!("is_visible[i][j] = {visible};"));
        self.line(format!("var score = {};", float.mul("weight[i][j]", &self.scale)));
        if let Some(mask) = &mask {
            let shader = &mut self.shader;
            let row = mask.row_part(shader, "row", &rows);
            let column = mask.column_part(shader, "column", &columns);
            let is_boolean = mask.dtype == DType::Bool;
            let (ty, compute, zero) = match is_boolean {
                true => ("bool", Compute::Mask, "false"),
                false => (float.ty(), float.0, float.zero()),
            };
            shader.line(format!("var masked: {ty} = {zero};"));
            mask.load_element(shader, (&row, &column), compute, "masked");
            let score = match is_boolean {
                true => format!("select({}, score, masked)", float.negative_infinity()),
                false => float.add("score", "masked"),
            };
            shader.line(format!("score = {score};"));
        }
        self.line(format!("weight[i][j] = select({}, score, is_visible[i][j]);", float.negative_infinity()));
        self.line("}");
        self.line("}");
    }

    /// Adds the lines that combine the values `own[i]` of the eight invocations of each row, in their order, and
    /// assign the results to `combined[i]`.
    fn combine_rows(&mut self, memory: &str, function: &str, own: &str, combined: &str) {
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        self.line(format!("{memory}[(own_row * 4u + i) * 8u + own_column] = {own}[i];"));
        self.line("}");
        self.line("workgroupBarrier();");
        self.line(format!("var {combined} = array<{}, 4>();", self.float.ty()));
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        self.line(format!("var result = {memory}[(own_row * 4u + i) * 8u];"));
        self.line("for (var c = 1u; c < 8u; c = c + 1u) {");
        let next = format!("{memory}[(own_row * 4u + i) * 8u + c]");
        self.line(format!("result = {};", self.float.call(function, &["result", &next])));
        self.line("}");
        self.line(format!("{combined}[i] = result;"));
        self.line("}");
    }

    /// Adds the lines before the loop over keys: the running maximum, or Σ Ω·O and λ of every row.
    fn begin_rows(&mut self) {
        let float = self.float;
        let ty = float.ty();
        if self.pass.kind == PassKind::Output {
            let lowest = [float.negative_infinity(); 4].join(", ");
            self.line(format!("var row_max = array<{ty}, 4>({lowest});"));
            return;
        }
        let (gradient, result) = (self.input(GRADIENT, false), self.input(RESULT, false));
        let log_sums = self.input(LOG_SUMS, false);
        let rows = self.limits[0].clone();
        let depth = self.parameters.declare_len(self.pass.sizes.depth);
        self.line(format!("var own_dot = array<{ty}, 4>();"));
        self.line(format!("var row_log = array<{ty}, 4>();"));
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        self.line("let row = first_row + own_row * 4u + i;");
        self.line(format!("for (var c = own_column; c < {depth}; c = c + 8u) {{"));
        for (name, array) in [("g", &gradient), ("o", &result)] {
            let shader = &mut self.shader;
            let parts = (array.row_part(shader, "row", &rows), array.column_part(shader, "c", &depth));
            shader.line(format!("var {name}: {ty};"));
            array.load_element(shader, (&parts.0, &parts.1), float.0, name);
        }
        self.line(format!("own_dot[i] = {};", float.mul_add("g", "o", "own_dot[i]")));
        self.line("}");
        let shader = &mut self.shader;
        let parts = (log_sums.row_part(shader, "row", &rows), log_sums.column_part(shader, "0u", "1u"));
        shader.line(format!("var log_sum: {ty};"));
        log_sums.load_element(shader, (&parts.0, &parts.1), float.0, "log_sum");
        shader.line("row_log[i] = log_sum;");
        self.line("}");
        self.combine_rows("maxima", "add", "own_dot", "row_dot");
    }

    /// Adds the lines that replace the scores by exp(score − maximum), and scale the sums if the maximum grows.
    fn update_softmax(&mut self, tile: &WorkgroupTile) {
        let float = self.float;
        let ty = float.ty();
        self.line(format!("var own_max = array<{ty}, 4>();"));
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        let pairs = ["weight[i][0]", "weight[i][1]", "weight[i][2]", "weight[i][3]"];
        let [left, right] = [0, 2].map(|k| float.call("max", &[pairs[k], pairs[k + 1]]));
        self.line(format!("own_max[i] = {};", float.call("max", &[&left, &right])));
        self.line("}");
        self.combine_rows("maxima", "max", "own_max", "block_max");
        self.line(format!("var own_sum = array<{ty}, 4>();"));
        self.line(format!("var factor = array<{ty}, 4>();"));
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        self.line(format!("let largest = {};", float.call("max", &["row_max[i]", "block_max[i]"])));
        // Without visible keys the maximum is −∞, which must not be subtracted from itself.
        let is_empty = float.call("eq", &["largest", float.negative_infinity()]);
        self.line(format!("let base = select(largest, {}, {is_empty});", float.zero()));
        self.line(format!("factor[i] = {};", float.call("exp", &[&float.sub("row_max[i]", "base")])));
        self.line("row_max[i] = largest;");
        self.line("for (var j = 0u; j < 4u; j = j + 1u) {");
        self.line(format!("weight[i][j] = {};", float.call("exp", &[&float.sub("weight[i][j]", "base")])));
        self.line(format!("own_sum[i] = {};", float.add("own_sum[i]", "weight[i][j]")));
        self.line("}");
        self.line("}");
        self.combine_rows("partials", "add", "own_sum", "block_sum");
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        let scaled = float.mul("row_sum[i]", "factor[i]");
        self.line(format!("row_sum[i] = {};", float.add(&scaled, "block_sum[i]")));
        self.line("}");
        tile.scale_rows(&mut self.shader, "total", "factor");
    }

    /// Adds the lines that replace the scores by the weights P, or by the gradients X of the scores. The weights of
    /// the pass of the queries are not divided by their sums yet.
    fn gradient_weights(&mut self, log_sums: Option<&ArrayText>) {
        let float = self.float;
        let (ty, columns) = (float.ty(), self.limits[1].clone());
        // The data of a query belong to a column.
        self.line("for (var j = 0u; j < 4u; j = j + 1u) {");
        if let Some(log_sums) = log_sums {
            let shader = &mut self.shader;
            shader.line("let column = first_column + own_column * 4u + j;");
            let parts = (log_sums.row_part(shader, "column", &columns), log_sums.column_part(shader, "0u", "1u"));
            shader.line(format!("var log_sum: {ty};"));
            log_sums.load_element(shader, (&parts.0, &parts.1), float.0, "log_sum");
            let at = self.statistics_position("column", &columns);
            self.line(format!("var inverse_sum: {ty};"));
            self.line(format!("var dot: {ty};"));
            self.line(format!("if (column < {columns}) {{"));
            for (name, from) in [("inverse_sum", at.clone()), ("dot", format!("{at} + 1u"))] {
                let from = self.shader.define(from);
                let binding = self.statistics.unwrap_or(0);
                let value = access::load(&self.shader, binding, float.0.storage(), float.0, &from);
                self.line(format!("{name} = {value};"));
            }
            self.line("}");
        }
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        let by_row = log_sums.is_none();
        let (log, dot) = if by_row { ("row_log[i]", "row_dot[i]") } else { ("log_sum", "dot") };
        self.line(format!("var p = {};", float.call("exp", &[&float.sub("weight[i][j]", log)])));
        match by_row {
            true => self.line(format!("row_sum[i] = {};", float.add("row_sum[i]", "p"))),
            false => self.line(format!("p = {};", float.mul("p", "inverse_sum"))),
        }
        if self.pass.kind.has_gradient_weights() {
            let difference = float.sub("slope[i][j]", dot);
            self.line(format!("p = {};", float.mul(&float.mul("p", &difference), &self.scale)));
        }
        self.line(format!("weight[i][j] = select({}, p, is_visible[i][j]);", float.zero()));
        self.line("}");
        self.line("}");
    }

    /// Returns the position of the statistics of a query.
    fn statistics_position(&mut self, query: &str, queries: &str) -> String {
        let heads = self.parameters.declare_len(self.pass.sizes.heads);
        self.shader.define(format!("(((sequence * {heads}) + query_head) * {queries} + {query}) * 2u"))
    }

    /// Adds the lines that divide the rows by their sums and store λ or the statistics.
    fn finish_rows(&mut self, tile: &WorkgroupTile) {
        let float = self.float;
        let rows = self.limits[0].clone();
        let kind = self.pass.kind;
        if kind == PassKind::QueryGradient {
            self.combine_rows("partials", "add", "row_sum", "total_sum");
            self.line("row_sum = total_sum;");
        }
        self.line(format!("var factor_of_sum = array<{}, 4>();", float.ty()));
        self.line("for (var i = 0u; i < 4u; i = i + 1u) {");
        let is_zero = float.call("eq", &["row_sum[i]", float.zero()]);
        let inverse = float.call("recip", &["row_sum[i]"]);
        self.line(format!("factor_of_sum[i] = select({inverse}, {}, {is_zero});", float.zero()));
        self.line("let row = first_row + own_row * 4u + i;");
        self.line(format!("if (first_chunk == 0u && own_column == 0u && row < {rows}) {{"));
        if kind == PassKind::Output {
            let array = self.pass.matrices(self.pass.outputs[1]);
            let log_sums = self.declare(&array, self.bindings.output(1), "query_head");
            let shader = &mut self.shader;
            let parts = (log_sums.row_part(shader, "row", &rows), log_sums.column_part(shader, "0u", "1u"));
            let at = log_sums.position(shader, &parts.0, &parts.1);
            let log = float.add("row_max[i]", &float.call("ln", &["row_sum[i]"]));
            let value = shader.define(format!("select({log}, {}, {is_zero})", float.infinity()));
            access::store(shader, log_sums.binding, float.0, float.0.storage(), &value, &at);
        } else {
            let at = self.statistics_position("row", &rows);
            for (value, to) in [("factor_of_sum[i]", at.clone()), ("row_dot[i]", format!("{at} + 1u"))] {
                let to = self.shader.define(to);
                let binding = self.statistics.unwrap_or(0);
                access::store(&mut self.shader, binding, float.0, float.0.storage(), value, &to);
            }
        }
        self.line("}");
        self.line("}");
        tile.scale_rows(&mut self.shader, "total", "factor_of_sum");
    }

    /// Adds the lines that store the rows.
    fn store(&mut self, tile: &WorkgroupTile, width: &str) {
        let rows = self.limits[0].clone();
        let array = self.pass.matrices(self.pass.outputs[self.pass.kind.output()]);
        let head = if self.pass.kind.has_query_rows() { "query_head" } else { "group_head" };
        let output = self.declare(&array, self.bindings.output(0), head);
        let float = self.float;
        tile.loop_over_quads(&mut self.shader, "total", |shader, quad, quad_row, quad_column| {
            shader.line(format!("let row = first_row + {quad_row};"));
            shader.line("for (var j = 0u; j < 4u; j = j + 1u) {");
            shader.line(format!("let column = first_chunk + {quad_column} + j;"));
            shader.line(format!("if (row < {rows} && column < {width}) {{"));
            let parts = (output.row_part(shader, "row", &rows), output.column_part(shader, "column", width));
            let at = output.position(shader, &parts.0, &parts.1);
            let value = shader.define(format!("{quad}[j]"));
            access::store(shader, output.binding, float.0, float.0.storage(), &value, &at);
            shader.line("}");
            shader.line("}");
        });
    }
}
