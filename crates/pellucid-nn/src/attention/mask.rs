//! Who sees whom: masks of attention.

use pellucid_tensor::{DType, Error, Result, Tensor, ops, unwrap};

/// What hides keys from queries. A key is seen if nothing hides it; a query that sees no key gets zeros.
///
/// In all masks of truth values *true is seen*, as in
/// [`scaled_dot_product_attention`](pellucid_tensor::ops::scaled_dot_product_attention) and in the masks of tokenizers.
/// (PyTorch's `nn.MultiheadAttention` and `nn.Transformer` have it the other way round: negate theirs.) Masks of floats
/// are added to the scores: 0 is seen, −∞ is not.
///
/// ```
/// use pellucid_nn::{Masks, MultiheadAttention};
/// use pellucid_tensor::{DType, Tensor};
/// let attention = MultiheadAttention::new(8, 2);
/// let x = Tensor::randn([2, 3, 8], DType::F32);
/// // The second sequence has two elements; the third is padding.
/// let there = Tensor::from([[true, true, true], [true, true, false]]);
/// let y = attention.attend(&x, &x, &x, Masks { key_padding: Some(&there), ..Masks::causal() });
/// assert_eq!(y.shape().dims(), [2, 3, 8]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks<'a> {
    /// Which keys a query sees; broadcasts to the scores, `[.., H, L, S]`: `[L, S]` is the same for all heads.
    pub mask: Option<&'a Tensor>,
    /// Which keys are there at all, `[.., S]`, for sequences that were padded to one length.
    pub key_padding: Option<&'a Tensor>,
    /// Query i sees the keys 0..=i alone.
    pub causal: bool,
}

impl<'a> Masks<'a> {
    /// Query i sees the keys 0..=i.
    pub fn causal() -> Masks<'a> {
        Masks { causal: true, ..Masks::default() }
    }

    /// Every query sees the keys that are there, `[.., S]`.
    pub fn padding(there: &'a Tensor) -> Masks<'a> {
        Masks { key_padding: Some(there), ..Masks::default() }
    }

    /// All but `causal` as one mask that broadcasts to `[.., H, L, S]`, of truth values or of this dtype.
    pub(super) fn joint(&self, dtype: DType) -> Result<Option<Tensor>> {
        let usable = |mask: &Tensor| match mask.dtype() {
            DType::Bool => Ok(mask.clone()),
            float if float.is_float() => ops::to_dtype(mask, dtype),
            other => Err(Error::dtypes("attention", [other], "masks have truth values or floats; use to_dtype()")),
        };
        let padding = self.key_padding.map(|there| ops::unsqueeze(&ops::unsqueeze(&usable(there)?, -2)?, -2));
        both(self.mask.map(usable).transpose()?, padding.transpose()?, dtype)
    }
}

/// What either of two masks hides is hidden.
fn both(a: Option<Tensor>, b: Option<Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) if a.dtype() == DType::Bool && b.dtype() == DType::Bool => {
            ops::logical_and(&a, &b).map(Some)
        }
        (Some(a), Some(b)) => ops::add(&added(&a, dtype)?, &added(&b, dtype)?).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

/// What a mask adds to the scores.
fn added(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return Ok(mask.clone());
    }
    let unseen = ops::full((), f64::NEG_INFINITY, dtype)?;
    ops::where_(mask, &ops::zeros((), dtype)?, &unseen)
}

/// A mask of `[queries, keys]`, and of causality, for so many more keys behind the others, which all queries see.
pub(super) fn widened(
    mask: Option<Tensor>,
    causal: bool,
    [queries, keys]: [usize; 2],
    more: usize,
    dtype: DType,
) -> Result<Option<Tensor>> {
    let number = |n: usize| ops::arange(0, n as i64, 1, DType::I64);
    let below = || ops::le(&number(keys)?, &ops::unsqueeze(&number(queries)?, 1)?);
    let below = if causal { Some(below()?) } else { None };
    let Some(mask) = both(mask, below, dtype)? else { return Ok(None) };
    // Along the keys it may have been one for all.
    let mut shape = mask.shape().dims().to_vec();
    let Some(last) = shape.len().checked_sub(1) else {
        return Err(Error::shapes("attention", [mask.shape()], "a mask has an axis of keys"));
    };
    shape[last] = keys;
    let mask = ops::broadcast_to(&mask, shape.clone())?;
    shape[last] = more;
    let seen = match mask.dtype() {
        DType::Bool => ops::ones(shape, DType::Bool)?,
        float => ops::zeros(shape, float)?,
    };
    ops::concatenate(&[&mask, &seen], -1).map(Some)
}

/// The mask of a causal model as a tensor, bool `[length, length]`: true on and below the diagonal.
/// [`Masks::causal`] says the same without one.
///
/// # Panics
/// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
#[track_caller]
pub fn causal_mask(length: usize) -> Tensor {
    let number = Tensor::arange(0, length as i64, 1);
    unwrap(ops::unsqueeze(&number, 1).and_then(|query| ops::le(&number, &query)))
}
