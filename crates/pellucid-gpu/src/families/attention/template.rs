//! The shaders of the attention passes.
//!
//! A `$name` is a value or the lines of a part; a call such as `$add(a, b)` is a function of the float type. An
//! invocation has `$own_rows` rows `$row_of_i` of a block.

/// The shader of one dispatch. `$visit_head` is [`QUERY_HEAD`] or [`KEY_HEAD`].
pub(super) const PASS: &str = "
    let first_output_column = group % $width_tiles * $tile_width;
    let first_row = group / $width_tiles % $row_tiles * $block;
    let head = group / $width_tiles / $row_tiles % $heads;
    let sequence = group / $width_tiles / $row_tiles / $heads;
    $declare_tile
    var row_sum = array<$real, $own_rows>();
    $visit_head
    $store
";

/// The rows are the queries of one head.
pub(super) const QUERY_HEAD: &str = "
    let query_head = head;
    let group_head = head / $group_size;
    $begin_rows
    $visit_columns
    $finish_rows
";

/// The rows are the keys of one key head. All query heads that share this head contribute to the rows.
pub(super) const KEY_HEAD: &str = "
    let group_head = head;
    for (var group_index = 0u; group_index < $group_size; group_index = group_index + 1u) {
        let query_head = head * $group_size + group_index;
        $visit_columns
    }
";

/// The loop over blocks of columns. The weights initially are the scores.
pub(super) const COLUMNS: &str = "
    let end_column = $end_column;
    for (var first_column = $first_column; first_column < end_column; first_column = first_column + $block) {
        // After the barrier, all invocations have read the previous weights.
        workgroupBarrier();
        $compute_scores
        $compute_weights
        $multiply_values
    }
";

/// Masks the 4 × 4 scores of an invocation, replaces them by weights and writes these to shared memory.
pub(super) const SMALL_BLOCK: &str = "
    $mask_scores
    $compute_weights
    for (var j = 0u; j < 4u; j = j + 1u) {
        $shared_weights = $quad(weight[0][j], weight[1][j], weight[2][j], weight[3][j]);
    }
";

/// Adds the product of the weights, which are in shared memory, and the values.
pub(super) const MULTIPLY_VALUES: &str = "
    for (var part = 0u; part < $block; part = part + $step) {
        $load
        workgroupBarrier();
        $store_tile
        workgroupBarrier();
        $multiply
    }
";

/// Scales and masks the scores. `is_visible` states for each score whether its row and column exist and the query may
/// attend to the key.
pub(super) const MASK_SCORES: &str = "
    var is_visible = array<vec4<bool>, 4>();
    for (var i = 0u; i < 4u; i = i + 1u) {
        for (var j = 0u; j < 4u; j = j + 1u) {
            let row = first_row + own_row * 4u + i;
            let column = first_column + own_column * 4u + j;
            is_visible[i][j] = row < $rows && column < $columns$and_is_visible;
            var score = $mul(weight[i][j], $scale);
            $load_mask
            $apply_mask
            weight[i][j] = select($negative_infinity, score, is_visible[i][j]);
        }
    }
";

/// Combines the values `$row_values[i]` of the eight invocations of each row, in their order, into `$combined[i]`.
pub(super) const COMBINE_ROWS: &str = "
    for (var i = 0u; i < $row_count; i = i + 1u) {
        $memory[($row_of_i) * 8u + own_column] = $row_values[i];
    }
    workgroupBarrier();
    var $combined = array<$real, $own_rows>();
    for (var i = 0u; i < $row_count; i = i + 1u) {
        var result = $memory[($row_of_i) * 8u];
        for (var c = 1u; c < 8u; c = c + 1u) {
            result = $combine(result, $memory[($row_of_i) * 8u + c]);
        }
        $combined[i] = result;
    }
";

/// Declares the running maximum of every row.
pub(super) const SOFTMAX_ROWS: &str = "
    var row_max = array<$real, $own_rows>($lowest);
";

/// Computes Σ Ω·O and λ of every row.
pub(super) const GRADIENT_ROWS: &str = "
    var own_dot = array<$real, $own_rows>();
    var row_log = array<$real, $own_rows>();
    for (var i = 0u; i < $row_count; i = i + 1u) {
        let row = first_row + $row_of_i;
        for (var c = own_column; c < $v_width; c = c + 8u) {
            $load_factors
            own_dot[i] = $fma(g, o, own_dot[i]);
        }
        $load_log_sum
        row_log[i] = log_sum;
    }
    $combine_dots
";

/// Replaces the scores by exp(score − maximum), and scales the sums if the maximum grows.
pub(super) const SOFTMAX_WEIGHTS: &str = "
    var own_max = array<$real, 4>();
    for (var i = 0u; i < 4u; i = i + 1u) {
        own_max[i] = $max($max(weight[i][0], weight[i][1]), $max(weight[i][2], weight[i][3]));
    }
    $combine_maxima
    var own_sum = array<$real, 4>();
    var factor = array<$real, 4>();
    for (var i = 0u; i < 4u; i = i + 1u) {
        let largest = $max(row_max[i], block_max[i]);
        // Without visible keys the maximum is −∞, which must not be subtracted from itself.
        let base = select(largest, $zero, $eq(largest, $negative_infinity));
        factor[i] = $exp($sub(row_max[i], base));
        row_max[i] = largest;
        for (var j = 0u; j < 4u; j = j + 1u) {
            weight[i][j] = $exp($sub(weight[i][j], base));
            own_sum[i] = $add(own_sum[i], weight[i][j]);
        }
    }
    $combine_sums
    for (var i = 0u; i < 4u; i = i + 1u) {
        row_sum[i] = $add($mul(row_sum[i], factor[i]), block_sum[i]);
    }
    $scale_total
";

/// Replaces the scores by the weights P, or by the gradients X of the scores. In the pass `QueryGradient`,
/// the weights are not divided by their sums yet.
pub(super) const GRADIENT_WEIGHTS: &str = "
    for (var j = 0u; j < 4u; j = j + 1u) {
        $load_query
        for (var i = 0u; i < 4u; i = i + 1u) {
            var p = $exp($sub(weight[i][j], $log_sum));
            $normalize
            $multiply_slope
            weight[i][j] = select($zero, p, is_visible[i][j]);
        }
    }
";

/// Visits the scores of an invocation in a large block, in the order of its columns.
pub(super) const VISIT_COLUMNS: &str = "
    for (var j = 0u; j < 8u; j = j + 1u) {
        let block_column = (own_column + j / 4u * 8u) * 4u + j % 4u;
        let column = first_column + block_column;
        $begin_column
        $visit_rows
    }
";

/// Visits the scores of four rows in a column.
pub(super) const VISIT_ROWS: &str = "
    {
        var weights_of_rows = $shared_weights;
        $load_slopes
        for (var r = 0u; r < 4u; r = r + 1u) {
            let i = $first_i + r;
            var w = weights_of_rows[r];
            $visit_score
            weights_of_rows[r] = w;
        }
        $shared_weights = weights_of_rows;
    }
";

/// Scales and masks a score. `is_visible` states whether its row and column exist and the query may attend to the key.
pub(super) const MASK_SCORE: &str = "
    let row = first_row + $row_of_i;
    let is_visible = row < $rows && column < $columns$and_is_visible;
    var score = $mul(w, $scale);
    $load_mask
    $apply_mask
    w = select($negative_infinity, score, is_visible);
";

/// Replaces the scores of a large block by exp(score − maximum), and scales the sums if the maximum grows.
pub(super) const SOFTMAX_OF_LARGE_BLOCK: &str = "
    var own_max = array<$real, $own_rows>($lowest);
    $find_maxima
    $combine_maxima
    var own_sum = array<$real, $own_rows>();
    var base = array<$real, $own_rows>();
    var factor = array<$real, $own_rows>();
    for (var i = 0u; i < $row_count; i = i + 1u) {
        let largest = $max(row_max[i], block_max[i]);
        // Without visible keys the maximum is −∞, which must not be subtracted from itself.
        base[i] = select(largest, $zero, $eq(largest, $negative_infinity));
        factor[i] = $exp($sub(row_max[i], base[i]));
        row_max[i] = largest;
    }
    $exponentiate
    $combine_sums
    for (var i = 0u; i < $row_count; i = i + 1u) {
        row_sum[i] = $add($mul(row_sum[i], factor[i]), block_sum[i]);
    }
    $scale_total
";

/// Replaces a score by the weight P, or by the gradient X of the score.
pub(super) const GRADIENT_WEIGHT: &str = "
    var p = $exp($sub(w, $log_sum));
    $normalize
    $multiply_slope
    w = select($zero, p, is_visible);
";

/// Loads the statistics of a query: the reciprocal of the sum of its weights, and Σ Ω·O.
pub(super) const LOAD_STATISTICS: &str = "
    var inverse_sum: $real;
    var dot: $real;
    if (column < $columns) {
        inverse_sum = $inverse_sum;
        dot = $dot;
    }
";

/// Divides the rows by their sums, and stores λ or the statistics.
pub(super) const FINISH_ROWS: &str = "
    $combine_sums
    var factor_of_sum = array<$real, $own_rows>();
    for (var i = 0u; i < $row_count; i = i + 1u) {
        factor_of_sum[i] = select($recip($sums[i]), $zero, $eq($sums[i], $zero));
        let row = first_row + $row_of_i;
        if (first_output_column == 0u && own_column == 0u && row < $rows) {
            $store_row
        }
    }
    $scale_total
";

/// Computes λ, the logarithm of the sum of the exponentials of the scores of a row.
pub(super) const LOG_SUM: &str = "
    let log_sum = select($add(row_max[i], $ln(row_sum[i])), $infinity, $eq(row_sum[i], $zero));
";
