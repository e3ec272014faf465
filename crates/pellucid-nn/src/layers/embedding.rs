//! Embeddings: tables of vectors.

use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::parameter::Parameter;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::ScatterReduceOp;
use pellucid_tensor::{DType, Error, Integer, OptionRange, Result, Tensor, no_grad, ops, unwrap};

/// An embedding: integers x of any shape select rows of a table. The result is `[x.., width]`.
///
/// The table is initialized from the standard normal distribution.
///
/// ```
/// use pellucid::nn::{Embedding, Layer};
/// use pellucid::Tensor;
/// let words = Embedding::new(1000, 64).padding_index(0);
/// let y = words.forward(&Tensor::from([[5i64, 7, 0], [9, 0, 0]]));
/// assert_eq!(y.shape().dims(), [2, 3, 64]);
/// assert_eq!(y.narrow(1, 2, 1).to_vec::<f32>(), [0.0; 128]);
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Embedding {
    /// The table, `[rows, width]`.
    pub weight: Parameter,
    #[module(skip)]
    options: ops::EmbeddingOptions,
}

/// Overwrites a row of a table with zeros.
fn clear(layer: &'static str, table: &Parameter, row: isize) -> Result<()> {
    let _off = no_grad();
    let rows = table.shape()[0];
    let is_row = (-(rows as isize)..rows as isize).contains(&row);
    if !is_row {
        return Err(Error::IndexOutOfBounds { op: layer, index: row as i64, axis: 0, len: rows });
    }
    ops::copy_(&ops::select(&table.detach(), 0, row)?, &ops::zeros((), table.dtype())?)
}

/// Returns an error unless `length` is a valid maximum of the norm, and `p` a valid order.
fn check_max_norm(layer: &'static str, length: f64, p: f64) -> Result<()> {
    OptionRange::NONNEGATIVE.check(layer, "max_norm", length, 1.0)?;
    OptionRange::NONZERO.check(layer, "p", p, 2.0)
}

impl Embedding {
    /// Creates a table of this many vectors of this width.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(rows: usize, width: usize) -> Result<Embedding> {
        Ok(Embedding::from_table(call::name_layer("embedding", init::try_normal([rows, width], 0.0, 1.0))?))
    }

    /// Creates a layer with this table `[rows, width]`. To keep it fixed, [freeze](crate::Module::freeze) the layer.
    #[doc(alias = "from_pretrained")]
    pub fn from_table(weight: Parameter) -> Embedding {
        Embedding { weight, options: ops::EmbeddingOptions::default() }
    }

    /// Sets the padding row: it starts at 0 and is not trained. Negative numbers count from the end.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] if the table has no such row.
    #[doc(alias = "padding_idx")]
    #[panicking_form]
    pub fn try_padding_index(self, row: impl Integer) -> Result<Embedding> {
        let row = row.to_isize();
        clear("Embedding::padding_index", &self.weight, row)?;
        let options = ops::EmbeddingOptions { padding_index: Some(row), ..self.options };
        Ok(Embedding { options, ..self })
    }

    /// Limits the p-norm of vectors to `length`: a longer vector is scaled down in the table when it is looked up.
    /// PyTorch's default is p = 2.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length is negative or not finite, or if p is 0 or NaN.
    #[panicking_form]
    pub fn try_max_norm(mut self, length: f64, p: f64) -> Result<Embedding> {
        check_max_norm("embedding", length, p)?;
        self.options.max_norm = Some((length, p));
        Ok(self)
    }

    /// Sets whether the gradient of a vector is divided by the number of its look-ups in a batch.
    #[doc(alias = "scale_grad_by_freq")]
    pub fn scale_by_frequency(mut self, scale: bool) -> Embedding {
        self.options.scale_by_frequency = scale;
        self
    }

    /// Returns the options.
    pub fn options(&self) -> ops::EmbeddingOptions {
        self.options
    }
}

impl Embedding {
    /// Returns rows of a table that replaces the layer's own. All options apply except the maximum norm, which rescales
    /// the layer's own table in place.
    pub(super) fn output(&self, table: &Tensor, x: &Tensor) -> Result<Tensor> {
        ops::embedding(table, x, ops::EmbeddingOptions { max_norm: None, ..self.options })
    }
}

impl Layer for Embedding {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::embedding(&self.weight, x, self.options)
    }

    fn input_dtype(&self) -> DType {
        DType::I64
    }
}

/// Sums, means or maxima of embeddings: integers x `[B, n]`, one bag per row, are mapped to `[B, width]`.
///
/// The table is initialized from the standard normal distribution. The default reduction is the mean.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct EmbeddingBag {
    /// The table, `[rows, width]`.
    pub weight: Parameter,
    mode: ScatterReduceOp,
    padding: Option<isize>,
    max_norm: Option<(f64, f64)>,
    scale_by_frequency: bool,
    include_last_offset: bool,
}

impl EmbeddingBag {
    /// Creates a table of this many vectors of this width.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(rows: usize, width: usize) -> Result<EmbeddingBag> {
        Ok(EmbeddingBag::from_table(call::name_layer("embedding_bag", init::try_normal([rows, width], 0.0, 1.0))?))
    }

    /// Creates a layer with this table `[rows, width]`. To keep it fixed, [freeze](crate::Module::freeze) the layer.
    #[doc(alias = "from_pretrained")]
    pub fn from_table(weight: Parameter) -> EmbeddingBag {
        EmbeddingBag {
            weight,
            mode: ScatterReduceOp::Mean,
            padding: None,
            max_norm: None,
            scale_by_frequency: false,
            include_last_offset: false,
        }
    }

    /// Sets the reduction of a bag: [`ScatterReduceOp::Sum`], [`ScatterReduceOp::Mean`] or
    /// [`ScatterReduceOp::Max`].
    pub fn mode(self, mode: ScatterReduceOp) -> EmbeddingBag {
        EmbeddingBag { mode, ..self }
    }

    /// Sets the padding row: it starts at 0, is excluded from bags and is not trained. Negative numbers count from the
    /// end.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] if the table has no such row.
    #[doc(alias = "padding_idx")]
    #[panicking_form]
    pub fn try_padding_index(self, row: impl Integer) -> Result<EmbeddingBag> {
        let row = row.to_isize();
        clear("EmbeddingBag::padding_index", &self.weight, row)?;
        Ok(EmbeddingBag { padding: Some(row), ..self })
    }

    /// Limits the p-norm of vectors to `length`: a longer vector is scaled down in the table when it is looked up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length is negative or not finite, or if p is 0 or NaN.
    #[panicking_form]
    pub fn try_max_norm(self, length: f64, p: f64) -> Result<EmbeddingBag> {
        check_max_norm("embedding_bag", length, p)?;
        Ok(EmbeddingBag { max_norm: Some((length, p)), ..self })
    }

    /// Sets whether the gradient of a vector is divided by the number of its look-ups in a batch; for sums and means.
    #[doc(alias = "scale_grad_by_freq")]
    pub fn scale_by_frequency(self, scale: bool) -> EmbeddingBag {
        EmbeddingBag { scale_by_frequency: scale, ..self }
    }

    /// Sets whether the last offset is the end of the last bag, as in compressed sparse rows.
    pub fn include_last_offset(self, include: bool) -> EmbeddingBag {
        EmbeddingBag { include_last_offset: include, ..self }
    }

    /// Returns the options of the layer. Offsets and weights are arguments of a call, and are `None`.
    pub fn options(&self) -> ops::EmbeddingBagOptions<'static> {
        ops::EmbeddingBagOptions {
            offsets: None,
            weights: None,
            mode: self.mode,
            padding_index: self.padding,
            max_norm: self.max_norm,
            scale_by_frequency: self.scale_by_frequency,
            include_last_offset: self.include_last_offset,
        }
    }

    /// Returns the reductions of bags. If `index` is a vector, its bags start at the `offsets`; if it is a matrix, each
    /// row is a bag. For sums, the selected rows of the table may be multiplied by `weights` of the shape of `index`.
    ///
    /// # Errors
    /// The errors of [`ops::embedding_bag`].
    #[panicking_form]
    pub fn try_forward_bags(
        &self,
        index: &Tensor,
        offsets: Option<&Tensor>,
        weights: Option<&Tensor>,
    ) -> Result<Tensor> {
        call::call_unary(self, index, |index| {
            weights.map_or(Ok(()), |weights| check_input_dtype("embedding_bag", weights, &self.weight))?;
            ops::embedding_bag(&self.weight, index, ops::EmbeddingBagOptions { offsets, weights, ..self.options() })
        })
    }
}

impl Layer for EmbeddingBag {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::embedding_bag(&self.weight, x, self.options())
    }

    fn input_dtype(&self) -> DType {
        DType::I64
    }
}
