//! Attention masks.

use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops, unwrap};

/// The name of the attention layer in errors.
pub(super) const MULTIHEAD_ATTENTION: &str = "multihead_attention";

/// The masks of an attention layer. A key is visible to a query if no mask hides it; the result for a query without
/// visible keys is zero.
///
/// In boolean masks *true means visible*, as in
/// [`scaled_dot_product_attention`](pellucid_tensor::ops::scaled_dot_product_attention) and in the masks of tokenizers.
/// (In PyTorch's `nn.MultiheadAttention` and `nn.Transformer` true means hidden: negate those masks.) A float `mask` is
/// added to the scores: 0 is visible, −∞ is hidden. A padding mask of ones and zeros must be converted to booleans by
/// `to_dtype(DType::Bool)`; added to the scores, it would hide nothing.
///
/// ```
/// use pellucid::nn::{AttentionMasks, MultiheadAttention};
/// use pellucid::{DType, Tensor};
/// let attention = MultiheadAttention::new(8, 2);
/// let x = Tensor::randn([2, 3, 8], DType::F32);
/// // The second sequence has two elements; the third is padding.
/// let visible = Tensor::from([[true, true, true], [true, true, false]]);
/// let masks = AttentionMasks { key_padding: Some(&visible), ..AttentionMasks::causal() };
/// let y = attention.forward_qkv(&x, &x, &x, masks);
/// assert_eq!(y.shape().dims(), [2, 3, 8]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMasks<'a> {
    /// The attention mask, which broadcasts to the scores `[.., H, L, S]`: a mask `[L, S]` applies to all samples and
    /// heads.
    pub mask: Option<&'a Tensor>,
    /// The padding mask of the keys, booleans `[.., S]`, for sequences that were padded to the same length.
    pub key_padding: Option<&'a Tensor>,
    /// Whether query i sees only the keys 0..=i.
    pub causal: bool,
}

impl<'a> AttentionMasks<'a> {
    /// Returns a causal mask: query i sees the keys 0..=i.
    #[doc(alias = "generate_square_subsequent_mask")]
    #[doc(alias = "is_causal")]
    pub fn causal() -> AttentionMasks<'a> {
        AttentionMasks { causal: true, ..AttentionMasks::default() }
    }

    /// Returns a padding mask: every query sees the keys where `visible`, `[.., S]`, is true.
    #[doc(alias = "key_padding_mask")]
    pub fn padding(visible: &'a Tensor) -> AttentionMasks<'a> {
        AttentionMasks { key_padding: Some(visible), ..AttentionMasks::default() }
    }

    /// Checks the dtype of the padding mask, and the shapes of the masks for queries `[.., L, E]` and keys `[.., S,
    /// E]`.
    pub(super) fn check(&self, query: &Tensor, key: &Tensor, heads: usize) -> Result<()> {
        let op = MULTIHEAD_ATTENTION;
        let batch_axes = |x: &Tensor| Shape::from(&x.shape()[..x.rank() - 2]);
        // Inputs that do not match are rejected later.
        let Some(batch) = batch_axes(query).broadcast(&batch_axes(key)) else { return Ok(()) };
        let [queries, keys] = [query, key].map(|x| x.shape()[x.rank() - 2]);
        if let Some(padding) = self.key_padding {
            if padding.dtype() != DType::Bool {
                let help = "key_padding must be boolean, true for visible keys; convert a mask of ones and zeros by \
                            to_dtype(DType::Bool), and pass values that are added to the scores as `mask`";
                return Err(Error::dtypes(op, [padding.dtype()], help));
            }
            let expected: Shape = batch.iter().copied().chain([keys]).collect();
            if !padding.shape().broadcasts_to(&expected) {
                let is_transposed = padding.rank() == 2 && expected.iter().rev().eq(padding.shape().iter());
                let help = format!(
                    "key_padding {} must be [batch, keys] = {expected}{}",
                    padding.shape(),
                    if is_transposed {
                        "; transpose it?"
                    } else {
                        "; reshape() it, or create it from the lengths of the keys"
                    }
                );
                return Err(Error::shapes(op, [query.shape(), key.shape(), padding.shape()], help));
            }
        }
        let Some(mask) = self.mask else { return Ok(()) };
        let expected: Shape = batch.iter().copied().chain([heads, queries, keys]).collect();
        if !mask.shape().broadcasts_to(&expected) {
            let lacks_heads = batch.iter().chain(&[queries, keys]).eq(mask.shape().iter());
            let remedy = if lacks_heads {
                "; add a head axis with unsqueeze(-3)".to_string()
            } else if mask.rank() == 3 && mask.shape().size() == expected.size() {
                format!("; use reshape({expected})")
            } else {
                String::new()
            };
            let help =
                format!("mask {} must broadcast to [batch, heads, queries, keys] = {expected}{remedy}", mask.shape());
            return Err(Error::shapes(op, [query.shape(), key.shape(), mask.shape()], help));
        }
        Ok(())
    }

    /// Combines all masks except `causal` into one mask that broadcasts to `[.., H, L, S]`, boolean or of this float
    /// dtype.
    pub(super) fn joint(&self, dtype: DType) -> Result<Option<Tensor>> {
        let usable = |mask: &Tensor| match mask.dtype() {
            DType::Bool => Ok(mask.clone()),
            float if float.is_float() => ops::to_dtype(mask, dtype),
            other => Err(Error::dtypes(
                MULTIHEAD_ATTENTION,
                [other],
                "an attention mask must be boolean or have a float dtype; use to_dtype()",
            )),
        };
        let padding = self.key_padding.map(|visible| ops::unsqueeze(&ops::unsqueeze(visible, -2)?, -2));
        combine_masks(self.mask.map(usable).transpose()?, padding.transpose()?, dtype)
    }
}

/// Combines two masks: a key is hidden if at least one of them hides it.
fn combine_masks(a: Option<Tensor>, b: Option<Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) if a.dtype() == DType::Bool && b.dtype() == DType::Bool => {
            ops::logical_and(&a, &b).map(Some)
        }
        (Some(a), Some(b)) => ops::add(&additive_mask(&a, dtype)?, &additive_mask(&b, dtype)?).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

/// Converts a mask to floats that are added to the scores: 0 for true, −∞ for false.
fn additive_mask(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return Ok(mask.clone());
    }
    let unseen = ops::full((), f64::NEG_INFINITY, dtype)?;
    ops::where_(mask, &ops::zeros((), dtype)?, &unseen)
}

/// Returns a mask `[.., queries, keys + more]` that combines `mask` with the causal mask if `causal` is true. All
/// queries see the `more` keys at the end. Returns `None` if there is no `mask` and `causal` is false.
pub(super) fn extend_mask(
    mask: Option<Tensor>,
    causal: bool,
    [queries, keys]: [usize; 2],
    more: usize,
    dtype: DType,
) -> Result<Option<Tensor>> {
    let positions = |n: usize| ops::arange(0, n as i64, 1, DType::I64);
    let below = || ops::le(&positions(keys)?, &ops::unsqueeze(&positions(queries)?, 1)?);
    let below = if causal { Some(below()?) } else { None };
    let Some(mask) = combine_masks(mask, below, dtype)? else { return Ok(None) };
    // The mask may broadcast along the keys, so it is expanded before keys are appended.
    let mut shape = mask.shape().dims().to_vec();
    let Some(last) = shape.len().checked_sub(1) else {
        let help = "an attention mask must have at least one axis, the axis of the keys";
        return Err(Error::shapes(MULTIHEAD_ATTENTION, [mask.shape()], help));
    };
    shape[last] = keys;
    let mask = ops::broadcast_to(&mask, shape.clone())?;
    shape[last] = more;
    let appended_mask = match mask.dtype() {
        DType::Bool => ops::ones(shape, DType::Bool)?,
        float => ops::zeros(shape, float)?,
    };
    ops::concatenate(&[&mask, &appended_mask], -1).map(Some)
}

/// Returns the causal mask as a tensor, bool `[length, length]`: true on and below the diagonal.
/// [`AttentionMasks::causal`] has the same effect without a tensor.
///
/// # Panics
/// Panics if [`try_causal_mask`] returns an error.
#[track_caller]
pub fn causal_mask(length: usize) -> Tensor {
    unwrap(try_causal_mask(length))
}

/// Returns the causal mask, as [`causal_mask`] does, or an error.
///
/// # Errors
/// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
pub fn try_causal_mask(length: usize) -> Result<Tensor> {
    let number = ops::arange(0, length as i64, 1, DType::I64)?;
    ops::le(&number, &ops::unsqueeze(&number, 1)?)
}
