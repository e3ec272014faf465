//! The weights of a block of 64 × 64 scores. Shared memory contains the 8 × 8 scores of an invocation, which leaves the
//! registers to the rows of the output.

use super::pass::{PassKind, PassShader};
use super::template;
use crate::families::shared::tile::{ArrayExprs, SharedTile, quad_type};
use crate::shader::{CollectLines, values};

impl PassShader<'_, '_, '_> {
    /// Adds the lines that write the scores in the sums `sums` to the shared tile.
    pub(super) fn share_scores(&mut self, sums: &str, tile: &SharedTile) {
        for (r, c, j) in (0..2).flat_map(|r| (0..2).flat_map(move |c| (0..4).map(move |j| (r, c, j)))) {
            let target = tile.quad(&format!("(own_column + {}u) * 4u + {j}u", 8 * c), &format!("own_row + {}u", 8 * r));
            let scores = [0, 1, 2, 3].map(|i| format!("{sums}{}[{j}]", (4 * r + i) * 2 + c)).join(", ");
            self.shader.line(format!("{target} = {}({scores});", quad_type(self.float.0)));
        }
    }

    /// Adds the lines that visit all scores of the invocation. `visit_score` changes the score w.
    fn visit_scores(
        &mut self,
        (weights, slopes): (&SharedTile, Option<&SharedTile>),
        begin_column: &str,
        visit_score: &str,
    ) {
        let visit_rows = self.collect_lines(|this| {
            for r in 0..2 {
                let quad = |tile: &SharedTile| tile.quad("block_column", &format!("own_row + {}u", 8 * r));
                let (shared_weights, first_i) = (quad(weights), format!("{}u", 4 * r));
                let load_slopes = slopes.map_or(String::new(), |tile| format!("let slopes_of_rows = {};", quad(tile)));
                this.template(template::VISIT_ROWS, values![shared_weights, first_i, load_slopes, visit_score]);
            }
        });
        self.template(template::VISIT_COLUMNS, values![begin_column, visit_rows]);
    }

    /// Adds the lines that replace the scores in the tile `weights` by weights. `slopes` has the products of the
    /// gradient and the values, if the weights are gradients of scores. `log_sums` is λ, if queries are columns.
    pub(super) fn weigh_large_block(
        &mut self,
        weights: &SharedTile,
        slopes: Option<&SharedTile>,
        log_sums: Option<&ArrayExprs>,
    ) {
        let mask_score = self.collect_lines(|this| this.mask_with(template::MASK_SCORE));
        if self.pass.kind == PassKind::Output {
            let find_maxima = format!("{mask_score}\nown_max[i] = $max(own_max[i], w);");
            let find_maxima = self.collect_lines(|this| this.visit_scores((weights, None), "", &find_maxima));
            let exponentiate = "w = $exp($sub(w, base[i]));\nown_sum[i] = $add(own_sum[i], w);";
            let exponentiate = self.collect_lines(|this| this.visit_scores((weights, None), "", exponentiate));
            let (combine_maxima, combine_sums, scale_total) = self.softmax_parts();
            let lowest = self.lowest();
            return self.template(
                template::SOFTMAX_OF_LARGE_BLOCK,
                values![lowest, find_maxima, combine_maxima, exponentiate, combine_sums, scale_total],
            );
        }
        let begin_column =
            log_sums.map_or(String::new(), |log_sums| self.collect_lines(|this| this.load_query(log_sums)));
        let (log_sum, dot, normalize) = PassShader::query_exprs(log_sums.is_some());
        let multiply_slope = match slopes {
            Some(_) => "p = $mul($mul(p, $sub(slopes_of_rows[r], $dot)), $scale);",
            None => "",
        };
        let weight = self.collect_lines(|this| {
            this.template(template::GRADIENT_WEIGHT, values![log_sum, dot, normalize, multiply_slope])
        });
        self.visit_scores((weights, slopes), &begin_column, &format!("{mask_score}\n{weight}"));
    }
}
