//! The key-value cache for incremental decoding.

use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, autocast_dtype, ops, unwrap};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A cache of the keys and values of earlier positions. With it, a decoding step projects only the new positions.
///
/// The buffers are allocated once for `capacity` positions and written in place. The number of cached positions is a
/// tensor, so a decoding step can be captured and replayed. A cache belongs to one attention layer and one batch:
///
/// ```
/// use pellucid::nn::{AttentionMasks, MultiheadAttention};
/// use pellucid::{DType, Tensor, no_grad};
/// let _off = no_grad();
/// let attention = MultiheadAttention::new(8, 2);
/// let x = Tensor::randn([1, 5, 8], DType::F32);
/// let uncached = attention.forward_qkv(&x, &x, &x, AttentionMasks::causal());
/// let cache = attention.cache(1, 16);
/// attention.forward_cached(&x.narrow(1, 0, 4), &cache);
/// let last = attention.forward_cached(&x.narrow(1, 4, 1), &cache);
/// assert!((last - uncached.narrow(1, 4, 1)).abs().max(..).item::<f32>() < 1e-6);
/// ```
///
/// A clone is an independent copy. Beam search calls [`reorder`](KvCache::reorder) to keep the selected sequences.
#[derive(Debug)]
pub struct KvCache {
    /// The keys, `[N, G, C, D]`: batch size N, G key-value heads, capacity C, head width D.
    keys: Tensor,
    /// The values, `[N, G, C, D]`.
    values: Tensor,
    /// The number of cached positions, `i64 []`.
    length: Tensor,
    /// False at padding, bool `[N, 1, 1, C]`; `None` without padding.
    visible: Option<Tensor>,
    /// The number of positions that the current call has written after the cached ones.
    appended: AtomicUsize,
}

/// Copies all tensors of the cache, so that decoding with the clone does not change the original, and vice versa.
///
/// # Panics
/// Panics if there is not enough memory.
impl Clone for KvCache {
    #[track_caller]
    fn clone(&self) -> KvCache {
        let copy = |buffer: &Tensor| unwrap(ops::copy(buffer));
        KvCache {
            keys: copy(&self.keys),
            values: copy(&self.values),
            length: copy(&self.length),
            visible: self.visible.as_ref().map(copy),
            appended: AtomicUsize::new(0),
        }
    }
}

impl KvCache {
    /// Creates an empty cache for `batch` sequences of at most `capacity` positions, each with `heads` keys and values
    /// of length `width`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(batch: usize, heads: usize, capacity: usize, width: usize, dtype: DType) -> Result<KvCache> {
        let buffer = || ops::zeros([batch, heads, capacity, width], dtype);
        let length = ops::zeros((), DType::I64)?;
        Ok(KvCache { keys: buffer()?, values: buffer()?, length, visible: None, appended: AtomicUsize::new(0) })
    }

    /// Sets the padding mask of prompts that are padded to a common length n: `visible`, bool `[N, n]`, is false at
    /// padding, which is never attended to. Prompts must be padded on the left; decoded positions then directly follow
    /// them.
    ///
    /// ```
    /// use pellucid::nn::{Layer, MultiheadAttention};
    /// use pellucid::{DType, Tensor, no_grad};
    /// let _off = no_grad();
    /// let attention = MultiheadAttention::new(8, 2);
    /// let prompts = Tensor::randn([2, 3, 8], DType::F32);
    /// let visible = Tensor::from([[true, true, true], [false, false, true]]);
    /// let cache = attention.cache(2, 16).padded(&visible);
    /// let y = attention.forward_cached(&prompts, &cache);
    /// let alone = attention.forward(&prompts.i((1.., 2..)));
    /// assert!((y.i((1.., 2..)) - alone).abs().max(..).item::<f32>() < 1e-6);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another batch size or n above the capacity; [`Error::DTypeMismatch`] unless the
    /// mask is boolean.
    #[panicking_form]
    pub fn try_padded(self, visible: &Tensor) -> Result<KvCache> {
        let batch = self.keys.shape()[0];
        if visible.rank() != 2 || visible.shape()[0] != batch || visible.shape()[1] > self.capacity() {
            let help = "the mask must have shape [N, n], with N the batch size and n at most the capacity of the cache";
            return Err(Error::shapes("kv_cache", [visible.shape(), self.keys.shape()], help));
        }
        if visible.dtype() != DType::Bool {
            return Err(Error::dtypes(
                "kv_cache",
                [visible.dtype()],
                "a padding mask must be boolean; convert a mask of zeros and ones by ne(0)",
            ));
        }
        let later = ops::ones([batch, self.capacity() - visible.shape()[1]], DType::Bool)?;
        let all = ops::concatenate(&[visible, &later], 1)?;
        let visible = ops::reshape(&all, [batch, 1, 1, self.capacity()])?;
        Ok(KvCache { visible: Some(visible), ..self })
    }

    /// Returns the maximum number of positions.
    pub fn capacity(&self) -> usize {
        self.keys.shape()[2]
    }

    /// Returns the number of cached positions, `i64 []`; a decoding step increases it in place.
    pub fn length(&self) -> &Tensor {
        &self.length
    }

    /// Removes all cached positions; the [padding mask](KvCache::padded) stays.
    ///
    /// # Errors
    /// The errors of [`ops::copy_`], if the buffers cannot be written.
    #[panicking_form]
    pub fn try_clear(&self) -> Result<()> {
        // Attention multiplies the values of hidden positions by 0, which is NaN for a non-finite value, so the buffers
        // are zeroed.
        for buffer in [&self.keys, &self.values, &self.length] {
            ops::copy_(buffer, &ops::zeros((), buffer.dtype())?)?;
        }
        Ok(())
    }

    /// Replaces sequence i by sequence `index[i]`, in place. The integers `index`, `[N]`, may select a sequence several
    /// times. Beam search calls this after it has selected the sequences to continue.
    ///
    /// ```
    /// use pellucid::nn::MultiheadAttention;
    /// use pellucid::{DType, Tensor, no_grad};
    /// let _off = no_grad();
    /// let attention = MultiheadAttention::new(8, 2);
    /// let (x, next) = (Tensor::randn([2, 3, 8], DType::F32), Tensor::randn([1, 1, 8], DType::F32));
    /// let cache = attention.cache(2, 16);
    /// attention.forward_cached(&x, &cache);
    /// cache.reorder(&Tensor::from([1i64, 1]));
    /// let y = attention.forward_cached(&next.expand([2, 1, 8]), &cache);
    /// assert_eq!(y.i(0).to_vec::<f32>(), y.i(1).to_vec::<f32>());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for an index of another shape; the errors of [`ops::index_select`]. On error nothing is
    /// changed.
    #[panicking_form]
    pub fn try_reorder(&self, index: &Tensor) -> Result<()> {
        let batch = self.keys.shape()[0];
        if index.shape().dims() != [batch] {
            let help = "the index must have shape [N], with N the batch size of the cache";
            return Err(Error::shapes("kv_cache", [index.shape(), self.keys.shape()], help));
        }
        let buffers = [Some(&self.keys), Some(&self.values), self.visible.as_ref()].into_iter().flatten();
        let reordered = buffers.map(|buffer| Ok((buffer, ops::index_select(buffer, 0, index)?)));
        reordered.collect::<Result<Vec<_>>>()?.iter().try_for_each(|(buffer, values)| ops::copy_(buffer, values))
    }

    /// Returns the positions of the next `count` elements in the cache, `i64 [count]`.
    pub(super) fn next(&self, count: usize) -> Result<Tensor> {
        ops::add(&self.length, Tensor::arange(0, count as i64, 1))
    }

    /// Writes keys and values `[N, G, n, D]` at `positions`, which follow the cached positions. [`append_after`] then
    /// increases the length.
    ///
    /// Returns all keys and values, `[N, G, C, D]`, and the mask of the positions that each new position attends to,
    /// bool `[n, C]`, or `[N, 1, n, C]` with padding.
    pub(super) fn write(&self, keys: &Tensor, values: &Tensor, positions: &Tensor) -> Result<[Tensor; 3]> {
        let op = "kv_cache";
        if keys.requires_grad() || values.requires_grad() {
            return Err(Error::invalid(op, "a cache does not propagate gradients; decode under no_grad()"));
        }
        // Under `autocast`, keys and values have the dtype of `autocast`, even if the cache has another dtype, so they
        // are converted.
        let in_cache_dtype = |new: &Tensor| match autocast_dtype() {
            Some(_) => ops::to_dtype(new, self.keys.dtype()),
            None => Ok(new.clone()),
        };
        let (keys, values) = (&in_cache_dtype(keys)?, &in_cache_dtype(values)?);
        let count = keys.shape()[2];
        for (new, buffer) in [(keys, &self.keys), (values, &self.values)] {
            let expected: Shape = buffer.shape().with_axis(2, count);
            if *new.shape() != expected || count > self.capacity() {
                let help = "keys and values must have the batch size, heads and width of the cache, and must fit in its capacity";
                return Err(Error::shapes(op, [new.shape(), buffer.shape()], help));
            }
            if new.dtype() != buffer.dtype() {
                let help =
                    "the keys and values must have the dtype of the cache; create the cache with cache() of this layer";
                return Err(Error::dtypes(op, [new.dtype(), buffer.dtype()], help));
            }
        }
        let full = |error: Error| match error {
            Error::IndexOutOfBounds { .. } => {
                let reason = format!(
                    "the cache is full: its capacity is {}, and {count} more positions do not fit; clear() it, or create a cache with a larger capacity",
                    self.capacity()
                );
                Error::invalid(op, reason)
            }
            other => other,
        };
        self.keys.try_set((.., .., positions), keys).map_err(full)?;
        self.values.try_set((.., .., positions), values)?;
        self.appended.store(count, Ordering::Relaxed);
        let number = Tensor::arange(0, self.capacity() as i64, 1);
        let mut visible_keys = ops::le(&number, &ops::unsqueeze(positions, 1)?)?;
        if let Some(visible) = &self.visible {
            visible_keys = ops::logical_and(&visible_keys, visible)?;
        }
        Ok([self.keys.clone(), self.values.clone(), visible_keys])
    }
}

/// Calls `decode`, which writes new positions to the caches, and then increases the lengths of the caches. If `decode`
/// returns an error, the lengths are unchanged.
pub(crate) fn append_after<'a>(
    caches: impl IntoIterator<Item = &'a KvCache>,
    decode: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    let y = decode()?;
    for KvCache { length, appended, .. } in caches {
        ops::copy_(length, &ops::add(length, appended.swap(0, Ordering::Relaxed) as i64)?)?;
    }
    Ok(y)
}
