//! `Attention`: scaled dot-product attention and its gradient, without a stored matrix of scores.
//!
//! A workgroup computes 32 rows of an output. It loops over blocks of 32 columns: the scores Q·Kᵀ of the block are a
//! [tiled product](super::shared::tile), the weights are computed from them in registers, and their product with a
//! block of values is added to the rows. The rows of an output wider than 128 elements (32 for `f64`) are divided.
//! Devices with large shared memory compute blocks of 64 × 64 scores of `f32` if there are more than 32 queries and
//! keys, and then divide rows wider than 64 elements.
//!
//! | pass | rows | columns | weights | values |
//! | --- | --- | --- | --- | --- |
//! | `Output` | queries | keys | exp(scores − running maximum) | V |
//! | `QueryGradient` | queries | keys | X | K |
//! | `KeyGradient` | keys | queries | Xᵀ | Q |
//! | `ValueGradient` | keys | queries | Pᵀ | Ω |
//!
//! O is the output, Ω its incoming gradient, P the softmax of the scores, and X the gradient of the scores. λ is the
//! logarithm of the sum of the exponentials of the scores of a query; the output pass stores it. The softmax of the
//! output is computed online (Milakov & Gimelshein 2018; Dao et al. 2022): if a block has a larger maximum, the sums so
//! far are scaled down. The gradient passes compute P = exp(scores − λ)/Σ exp(scores − λ): they divide by the sum,
//! because it is not exactly 1 for the rounded λ. The pass `QueryGradient` stores the reciprocals of these sums and
//! Σ Ω·O for the other two gradient passes.

mod large_block;
mod pass;
mod template;

use super::GpuFamily;
use super::shared::tile::{WIDE_PRODUCT_ITERATIONS, is_narrow};
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceOperands;
use crate::shader::{WgslFloat, iterations};
use pass::{AttentionPass, BLOCK, PassKind};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::{Attention, AttentionPart, AttentionSizes, metas};
use pellucid_ir::{Error, Result};

impl GpuFamily for Attention {
    fn iterations(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        let Some(sizes) = self.sizes(&metas(&inputs[..3])) else { return 0 };
        let AttentionSizes { heads, kv_heads, queries, keys, qk_width, v_width, .. } = sizes;
        // All query heads that share a key contribute to its gradient.
        let group_size = heads.div_ceil(kv_heads.max(1));
        let blocks = keys.max(queries.saturating_mul(group_size)).div_ceil(BLOCK);
        let elements = qk_width + v_width;
        // For a block of 32 columns, an invocation has about 44 loop iterations if the vectors are short, and less than
        // one more for each further element of the vectors. In `f64`, every element and every column adds more.
        let compute = inputs[0].dtype.compute();
        let products = match is_narrow(compute) {
            true => 44 + elements,
            false => 128 + WIDE_PRODUCT_ITERATIONS * (elements + BLOCK),
        };
        // The exponentials of 16 weights and of the factors of four rows.
        let exponentials = 20 * iterations(&WgslFloat(compute).call("exp", &["x"]));
        blocks.saturating_mul(products + exponentials)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let sizes = self.sizes(&metas(&inputs[..3])).ok_or_else(|| {
            let help = "queries, keys and values must be [N, H, L, E], [N, G, S, E] and [N, G, S, D]";
            Error::shapes("attention", inputs[..3].iter().map(|input| input.shape()), help)
        })?;
        let mask = self.mask(inputs).copied();
        let features = list.features;
        let pass = |kind| AttentionPass { kernel: self, sizes, kind, mask, inputs, outputs, features };
        let (kinds, statistics) = match self.part {
            AttentionPart::Result => (&[PassKind::Output][..], None),
            AttentionPart::Gradient => {
                // Each query has two statistics.
                let rows = sizes.batch * sizes.heads * sizes.queries;
                let statistics = list.scratch(2 * rows.max(1) * inputs[0].dtype.size());
                let kinds = &[PassKind::QueryGradient, PassKind::KeyGradient, PassKind::ValueGradient];
                (&kinds[..], Some(statistics))
            }
        };
        for shader in kinds.iter().filter_map(|&kind| pass(kind).shader(statistics)) {
            list.dispatch("attention", shader);
        }
        Ok(())
    }
}
