//! Embedding bags: sums, means and maxima of selected rows of a table.

use crate::array::host_values;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::index::scatter_reduce::{ScatterReduceOp, index_add, index_reduce};
use crate::ops::index::search;
use crate::ops::nn::embedding::{EmbeddingOptions, check_norm, embedding, padding_row, renorm_rows};
use crate::ops::nn::row_sums::{RowTerms, SumIndices, row_sums};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::gather::select_rows;
use crate::ops::primitive::precision::{round_to_operands, widened_dtype};
use crate::ops::primitive::{copy, create, fill, view};
use crate::ops::reduce::{reductions, value_range};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result};

/// Options of [`embedding_bag`].
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingBagOptions<'a> {
    /// The start of each bag in a vector of indices. Without offsets, each row of a matrix of indices is a bag.
    pub offsets: Option<&'a Tensor>,
    /// Whether the last offset is the end of the last bag instead of the start of a further bag.
    pub include_last_offset: bool,
    /// The reduction of the rows of a bag: sum, mean or maximum. The result for an empty bag is zeros.
    pub mode: ScatterReduceOp,
    /// Factors of the rows, with the shape of the indices; for sums only.
    pub weights: Option<&'a Tensor>,
    /// The index of a row that bags ignore; negative indices count from the end.
    pub padding_index: Option<isize>,
    /// The maximum norm of a row, and the order p of the norm. Selected rows with a larger norm are scaled down in the
    /// table.
    pub max_norm: Option<(f64, f64)>,
    /// Whether the gradient of a row is divided by the number of times that the index selects the row. Not for maxima.
    pub scale_by_frequency: bool,
}

impl Default for EmbeddingBagOptions<'_> {
    fn default() -> Self {
        EmbeddingBagOptions {
            offsets: None,
            include_last_offset: false,
            mode: ScatterReduceOp::Mean,
            weights: None,
            padding_index: None,
            max_norm: None,
            scale_by_frequency: false,
        }
    }
}

/// Reduces the rows of a table `[R, D]` at the indices of each of B bags: `[B, D]`.
///
/// The largest intermediate result contains the selected rows.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the table is a matrix, and the indices a matrix or a vector with offsets;
/// [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`]; [`Error::InvalidArgument`] for an unsupported mode, weights
/// without a sum, frequencies with a maximum, a padding index outside the table, or a maximum norm or order p that is
/// not positive; [`Error::InPlaceOnTracked`] for `max_norm` with a table that is the result of a tracked operation.
///
/// Offsets must ascend from 0 to at most the number of indices. In eager mode on the CPU, other offsets are an
/// [`Error::InvalidArgument`]. In lazy and captured steps, and on a GPU, invalid offsets make the entire result NaN. If
/// the table contains integers, the call that runs the kernel returns an [`Error::IndexOutOfBounds`] instead.
#[tensor_method]
pub fn embedding_bag(table: &Tensor, index: &Tensor, options: EmbeddingBagOptions<'_>) -> Result<Tensor> {
    let op = "embedding_bag";
    if table.rank() != 2 {
        return Err(Error::shapes(op, [table.shape()], "the table must be [R, D]"));
    }
    check::index_dtype(op, index)?;
    if !matches!(options.mode, ScatterReduceOp::Sum | ScatterReduceOp::Mean | ScatterReduceOp::Max) {
        return Err(Error::invalid(op, format!("the mode must be Sum, Mean or Max, got {:?}", options.mode)));
    }
    if options.scale_by_frequency && options.mode == ScatterReduceOp::Max {
        return Err(Error::invalid(op, "scale_by_frequency is supported only in the modes Sum and Mean"));
    }
    if let Some(weights) = options.weights {
        if options.mode != ScatterReduceOp::Sum {
            return Err(Error::invalid(op, format!("weights require the mode Sum, got {:?}", options.mode)));
        }
        if weights.shape() != index.shape() {
            let help = "weights must have the shape of the indices";
            return Err(Error::shapes(op, [index.shape(), weights.shape()], help));
        }
    }
    check_norm(op, table, options.max_norm)?;
    let padding = options.padding_index.map(|padding| padding_row(op, padding, table.shape()[0])).transpose()?;
    let Bags { count: bags, index_bags: bag, is_valid } = bags(op, index, &options)?;
    let flat = view::ravel(&copy::to_dtype(index, DType::I64)?)?;
    if let Some((max_norm, p)) = options.max_norm {
        renorm_rows(op, table, &flat, max_norm, p)?;
    }
    if let Some(starts) = plain_starts(table, index, &options, is_valid.as_ref())? {
        return plain_bags(op, table, &options, [&starts, &bag, &flat], is_valid.as_ref());
    }
    let is_counted = match padding {
        Some(padding) => compare::ne(&flat, padding)?,
        None => fill::ones([flat.size()], DType::Bool)?,
    };
    // Padding indices are assigned to an additional last bag, which is dropped at the end.
    let bag = arithmetic::where_(&is_counted, &bag, bags as i64)?;
    let scaled = EmbeddingOptions { scale_by_frequency: options.scale_by_frequency, ..Default::default() };
    // Rows of half precision are summed in `f32`, so that the result is rounded only once.
    let compute_dtype = widened_dtype(&[table]).unwrap_or(table.dtype());
    let rows = copy::to_dtype(&check::named(op, embedding(table, &flat, scaled))?, compute_dtype)?;
    let rows = match options.weights {
        Some(weights) => {
            let weighted = arithmetic::mul(&rows, &view::reshape(weights, [flat.size(), 1])?)?;
            copy::to_dtype(&weighted, compute_dtype)?
        }
        None => rows,
    };
    let unless_invalid = |x: Tensor| match &is_valid {
        Some(is_valid) if compute_dtype.is_float() => value_range::nan_unless(is_valid, &x),
        _ => Ok(x),
    };
    // Invalid offsets make the rows NaN too, not only the result, because the gradients of rows outside all bags must
    // be NaN.
    let rows = unless_invalid(rows)?;
    let start = fill::zeros([bags + 1, table.shape()[1]], compute_dtype)?;
    let with_padding_bag = match options.mode {
        ScatterReduceOp::Sum => index_add(&start, 0, &bag, &rows, 1)?,
        mode => index_reduce(&start, 0, &bag, &rows, mode, false)?,
    };
    let result = view::narrow(&with_padding_bag, 0, 0, bags)?;
    match is_valid {
        // Integers have no NaN. Instead, the kernel that selects the bags rejects an invalid bag index.
        Some(is_valid) if !compute_dtype.is_float() => select_rows(
            "embedding_bag offsets",
            &result,
            &arithmetic::where_(&is_valid, &create::indices(bags)?, bags as i64)?,
        ),
        _ => round_to_operands(op, &[table], unless_invalid(result)?),
    }
}

/// If each bag is the sum or the mean of all its rows, returns the starts of the bags, followed by the number of
/// indices; otherwise `None`. If the offsets are invalid, all starts are 0.
fn plain_starts(
    table: &Tensor,
    index: &Tensor,
    options: &EmbeddingBagOptions<'_>,
    valid: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let is_summed = matches!(table.dtype(), DType::F32 | DType::F64)
        && options.mode != ScatterReduceOp::Max
        && options.weights.is_none_or(|weights| weights.dtype() == table.dtype());
    // With `include_last_offset`, indices after the last offset are in no bag.
    let is_special = options.padding_index.is_some() || options.scale_by_frequency || options.include_last_offset;
    if !is_summed || is_special {
        return Ok(None);
    }
    let Some(offsets) = options.offsets else {
        let (bags, each) = (index.shape()[0], index.shape()[1] as i64);
        let starts = host_values(bags.saturating_add(1), (0..=bags as i64).map(|bag| bag * each))?;
        return create::from_host(&starts[..], [starts.len()]).map(Some);
    };
    if offsets.size() == 0 {
        return Ok(None);
    }
    let end = create::from_host(&[index.size() as i64], [1])?;
    let starts = concatenate(&[&copy::to_dtype(offsets, DType::I64)?, &end], 0)?;
    valid.map_or(Ok(starts.clone()), |valid| arithmetic::where_(valid, &starts, 0)).map(Some)
}

/// Computes bags that are sums or means of all their rows, from the bag and the row of each index.
fn plain_bags(
    op: &'static str,
    table: &Tensor,
    options: &EmbeddingBagOptions<'_>,
    terms: [&Tensor; 3],
    valid: Option<&Tensor>,
) -> Result<Tensor> {
    let [starts, sum_indices, rows] = terms;
    let unless_invalid = |x: Tensor| valid.map_or(Ok(x.clone()), |valid| value_range::nan_unless(valid, &x));
    // Invalid offsets make the weights NaN too, and thus the gradients of all rows.
    let weights = unless_invalid(match options.weights {
        Some(weights) => view::ravel(weights)?,
        None => fill::ones([rows.size()], table.dtype())?,
    })?;
    let sums = match rows.size().checked_div(starts.size() - 1).filter(|_| options.offsets.is_none()) {
        Some(count) => SumIndices::EqualCounts(count),
        None => SumIndices::OfTerms(sum_indices),
    };
    let result = row_sums(op, table, &RowTerms { starts, rows, weights: &weights, sums })?;
    if options.mode == ScatterReduceOp::Sum {
        return unless_invalid(result);
    }
    let bags = starts.size() - 1;
    let [first, end] = [0, 1].map(|from| view::narrow(starts, 0, from, bags));
    let counts = copy::to_dtype(&arithmetic::maximum(&arithmetic::sub(&end?, &first?)?, 1)?, table.dtype())?;
    unless_invalid(arithmetic::div(&result, &view::unsqueeze(&counts, 1)?)?)
}

/// The assignment of indices to bags.
struct Bags {
    count: usize,
    /// The bag of every index; `count` marks an index in no bag.
    index_bags: Tensor,
    /// A 0-d mask that is true if the offsets are valid. It exists only if the offsets cannot be read: in lazy and
    /// captured steps, and on a GPU.
    is_valid: Option<Tensor>,
}

fn bags(op: &'static str, index: &Tensor, options: &EmbeddingBagOptions<'_>) -> Result<Bags> {
    match (index.rank(), options.offsets) {
        (2, None) => {
            let bag_indices = create::indices(index.shape()[0])?;
            let index_bags = view::ravel(&broadcast::broadcast_to(&view::unsqueeze(&bag_indices, 1)?, index.shape())?)?;
            Ok(Bags { count: index.shape()[0], index_bags, is_valid: None })
        }
        (1, Some(offsets)) if offsets.rank() == 1 && offsets.dtype().is_int() => {
            let Some(bags) = offsets.size().checked_sub(usize::from(options.include_last_offset)) else {
                return Err(Error::invalid(op, "include_last_offset requires at least one offset"));
            };
            let starts = copy::to_dtype(&view::narrow(offsets, 0, 0, bags)?, DType::I64)?;
            let positions = create::indices(index.size())?;
            let is_valid = check_offsets(op, offsets, index.size())?;
            // If several bags have the same start, only the last one can contain indices.
            let bag = arithmetic::sub(&search::searchsorted(&starts, &positions, true)?, 1)?;
            if !options.include_last_offset {
                return Ok(Bags { count: bags, index_bags: bag, is_valid });
            }
            // Indices at or after the last offset belong to no bag.
            let end = copy::to_dtype(&view::narrow(offsets, 0, bags, 1)?, DType::I64)?;
            let index_bags = arithmetic::where_(&compare::lt(&positions, &end)?, &bag, bags as i64)?;
            Ok(Bags { count: bags, index_bags, is_valid })
        }
        _ => {
            let help = "indices must be a matrix, or a vector with a vector of integers as offsets";
            let shapes = [Some(index.shape()), options.offsets.map(|o| o.shape())];
            Err(Error::shapes(op, shapes.into_iter().flatten(), help))
        }
    }
}

/// Returns an error for offsets that do not ascend from 0 to at most the number of indices. If the offsets cannot be
/// read, returns the mask of [`Bags::is_valid`] instead.
fn check_offsets(op: &'static str, offsets: &Tensor, indices: usize) -> Result<Option<Tensor>> {
    let n = offsets.size();
    if !check::is_readable(offsets) {
        if n == 0 {
            return Ok(None);
        }
        let offsets = copy::to_dtype(offsets, DType::I64)?;
        let (earlier, later) = (view::narrow(&offsets, 0, 0, n - 1)?, view::narrow(&offsets, 0, 1, n - 1)?);
        let is_ascending = reductions::all(&compare::le(&earlier, &later)?, ..)?;
        let starts = compare::eq(&view::narrow(&offsets, 0, 0, 1)?, 0)?;
        let ends_in_range = compare::le(&view::narrow(&offsets, 0, n - 1, 1)?, indices as i64)?;
        return compare::logical_and(&is_ascending, &compare::logical_and(&starts, &ends_in_range)?).map(Some);
    }
    let offsets = offsets.array().to_vec::<i64>(op)?;
    let is_ascending = offsets.is_sorted();
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { return Ok(None) };
    if is_ascending && first == 0 && last <= indices as i64 {
        return Ok(None);
    }
    let reason = match is_ascending {
        true => format!("got offsets from {first} to {last}"),
        false => "the offsets do not ascend".to_string(),
    };
    Err(Error::invalid(op, format!("offsets must ascend from 0 to at most {indices}, the number of indices; {reason}")))
}
