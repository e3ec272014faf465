//! `Attention`: scaled dot-product attention and its gradient, without a stored matrix of scores.
//!
//! A workgroup computes 32 rows of an output. It loops over blocks of 32 columns: the scores Q·Kᵀ of the block are a
//! [tiled product](super::shared::tile), the weights are computed from them in registers, and their product with a
//! block of values is added to the rows. The rows of an output wider than 128 elements (32 for `f64`) are divided.
//!
//! | pass | rows | columns | weights | values |
//! | --- | --- | --- | --- | --- |
//! | `Output` | queries | keys | exp(scores − running maximum) | V |
//! | `QueryGradient` | queries | keys | X | K |
//! | `KeyGradient` | keys | queries | Xᵀ | Q |
//! | `ValueGradient` | keys | queries | Pᵀ | Ω |
//!
//! The softmax of the output is computed online (Milakov & Gimelshein 2018; Dao et al. 2022): if a block has a larger
//! maximum, the sums so far are scaled down. The gradients compute P = exp(scores − λ)/Σ exp(scores − λ) again, because
//! λ is rounded. The pass of the queries stores the reciprocals of these sums and Σ Ω·O for the other two.

mod pass;
mod template;

use super::GpuFamily;
use super::shared::tile::is_narrow;
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceOperands;
use crate::shader::iterations::iterations;
use crate::shader::types::FloatText;
use pass::{AttentionPass, BLOCK, PassKind};
use pellucid_ir::backend::OperandMeta;
use pellucid_ir::kernel::{Attention, AttentionPart, metas};
use pellucid_ir::{Result, Shape};

impl GpuFamily for Attention {
    fn iterations(&self, inputs: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> usize {
        let [queries, keys, values] = [0, 1, 2].map(|k| inputs[k].layout.shape());
        let length = |shape: &Shape, back: usize| shape.rank().checked_sub(back).map_or(1, |axis| shape[axis]);
        // All query heads that share a key contribute to its gradient.
        let shared = length(queries, 3).div_ceil(length(keys, 3).max(1));
        let blocks = length(keys, 2).max(length(queries, 2).saturating_mul(shared)).div_ceil(BLOCK);
        let elements = length(queries, 1) + length(values, 1);
        // 43 iterations for a block of short vectors, and less than one for each further element of a vector. Products
        // of `f64` have 21 for each element and each column of a block.
        let compute = inputs[0].dtype.compute();
        let products = if is_narrow(compute) { 44 + elements } else { 128 + 21 * (elements + BLOCK) };
        // 16 weights and the factors of four rows.
        let exponentials = 20 * iterations(&FloatText(compute).call("exp", &["x"]));
        blocks.saturating_mul(products + exponentials)
    }

    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()> {
        let DeviceOperands { inputs, outputs } = operands;
        let Some(sizes) = self.sizes(&metas(&inputs[..3])) else { return Ok(()) };
        let mask = inputs.last().filter(|_| self.masked).copied();
        let pass = |kind| AttentionPass { kernel: self, sizes, kind, mask, inputs, outputs };
        match self.part {
            AttentionPart::Result => pass(PassKind::Output).describe(list, None),
            AttentionPart::Gradient => {
                // Two numbers for each query.
                let rows = sizes.batch * sizes.heads * sizes.queries;
                let statistics = list.scratch(2 * rows.max(1) * inputs[0].dtype.size());
                for kind in [PassKind::QueryGradient, PassKind::KeyGradient, PassKind::ValueGradient] {
                    pass(kind).describe(list, Some(statistics))?;
                }
                Ok(())
            }
        }
    }
}
