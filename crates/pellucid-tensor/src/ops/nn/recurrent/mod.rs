//! Recurrent layers: one layer in one direction, over entire sequences.
//!
//! - `layer`: the operation and its gradient, which consist of a few large matrix products and the kernel `Recurrent`;
//! - `definition`: the same layer step by step, in tensor operations, for higher-order gradients;
//! - this file: weights, options, and checks.

mod definition;
mod layer;

use crate::autocast::autocast_dtype;
use crate::autograd::apply;
use crate::engine::outermost_operation;
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::{copy, fill, precision, view};
use crate::tensor::Tensor;
use definition::RecurrentLayer;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::RnnMode;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;

/// The weights of a recurrent layer with G gates, in PyTorch's layout: the rows of gate 0, then the rows of gate 1, and
/// so on.
///
/// I is the input size, H the hidden size, and P the size of a state. P is H without a projection.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentWeights<'a> {
    /// The weight of the inputs, `[G·H, I]`.
    pub weight_ih: &'a Tensor,
    /// The weight of the states, `[G·H, P]`.
    pub weight_hh: &'a Tensor,
    /// The bias of the input contribution, `[G·H]`.
    pub bias_ih: Option<&'a Tensor>,
    /// The bias of the state contribution, `[G·H]`.
    pub bias_hh: Option<&'a Tensor>,
    /// The projection of states, `[P, H]`; for [`lstm`] only.
    pub weight_hr: Option<&'a Tensor>,
}

/// Direction and sequence lengths of a recurrent layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrenceOptions<'a> {
    /// Whether to process the sequence from the last step to the first.
    pub reverse: bool,
    /// The length of each sequence, integers `[N]` in 0..=T; the default is T. After the end of a sequence, the state
    /// is constant and outputs are 0. With `reverse`, the recurrence starts at the end of the sequence.
    pub lengths: Option<&'a Tensor>,
}

/// The activation function of [`rnn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RnnNonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// max(x, 0).
    Relu,
}

/// Runs a plain recurrent layer (Elman 1990): hₜ = f(W_ih·xₜ + b_ih + W_hh·hₜ₋₁ + b_hh).
///
/// x is `[T, N, I]`, the initial state `[N, H]` (default zeros), and G is 1. Returns all states, `[T, N, H]`, and the
/// last one, `[N, H]`. `f16` and `bf16` are computed in `f32` throughout, and results are rounded once. Under
/// [`autocast`](crate::autocast()), inputs, states and weights are first cast to half precision. With `bf16`, the
/// factors of all products are then rounded: the states that a step multiplies, and the gradients of the gates.
///
/// ```
/// use pellucid::ops::{self, RnnNonlinearity, RecurrenceOptions, RecurrentWeights};
/// use pellucid::{DType, Tensor};
/// let x = Tensor::randn([5, 2, 3], DType::F32);
/// let (weight_ih, weight_hh) = (Tensor::randn([4, 3], DType::F32), Tensor::randn([4, 4], DType::F32));
/// let weights = RecurrentWeights {
///     weight_ih: &weight_ih,
///     weight_hh: &weight_hh,
///     bias_ih: None,
///     bias_hh: None,
///     weight_hr: None,
/// };
/// let (y, h) = ops::rnn(&x, weights, None, RnnNonlinearity::Tanh, RecurrenceOptions::default())?;
/// assert_eq!((y.shape().dims(), h.shape().dims()), ([5, 2, 4].as_slice(), [2, 4].as_slice()));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] unless all operands have the same float dtype and lengths are
/// integers; [`Error::InvalidArgument`] for a length outside 0..=T.
#[tensor_method(autocast = Half)]
pub fn rnn(
    x: &Tensor,
    weights: RecurrentWeights<'_>,
    h0: Option<&Tensor>,
    nonlinearity: RnnNonlinearity,
    options: RecurrenceOptions<'_>,
) -> Result<(Tensor, Tensor)> {
    let cell = match nonlinearity {
        RnnNonlinearity::Tanh => RnnMode::Tanh,
        RnnNonlinearity::Relu => RnnMode::Relu,
    };
    let [y, h, _] = recurrent("rnn", cell, x, weights, [h0, None], options)?;
    Ok((y, h))
}

/// Runs a layer of gated recurrent units (Cho et al. 2014), with the reset gate applied after the product.
///
/// ```text
/// r = σ(W_ir·x + b_ir + W_hr·h + b_hr)    n = tanh(W_in·x + b_in + r·(W_hn·h + b_hn))
/// z = σ(W_iz·x + b_iz + W_hz·h + b_hz)    h′ = (1 − z)·n + z·h
/// ```
///
/// x is `[T, N, I]`, the initial state `[N, H]` (default zeros), and G is 3, with gates in the order r, z, n. Returns
/// all states, `[T, N, H]`, and the last one, `[N, H]`. Half precision is computed as in [`rnn`].
///
/// # Errors
/// The errors of [`rnn`].
#[tensor_method(autocast = Half)]
pub fn gru(
    x: &Tensor,
    weights: RecurrentWeights<'_>,
    h0: Option<&Tensor>,
    options: RecurrenceOptions<'_>,
) -> Result<(Tensor, Tensor)> {
    let [y, h, _] = recurrent("gru", RnnMode::Gru, x, weights, [h0, None], options)?;
    Ok((y, h))
}

/// Runs a long short-term memory layer (Hochreiter & Schmidhuber 1997, Gers et al. 2000).
///
/// ```text
/// i = σ(W_ii·x + b_ii + W_hi·h + b_hi)    g = tanh(W_ig·x + b_ig + W_hg·h + b_hg)    c′ = f·c + i·g
/// f = σ(W_if·x + b_if + W_hf·h + b_hf)    o = σ(W_io·x + b_io + W_ho·h + b_ho)       h′ = o·tanh(c′)
/// ```
///
/// With a projection, h′ is W_hr·(o·tanh(c′)) (Sak et al. 2014). x is `[T, N, I]`, the initial h `[N, P]` and c
/// `[N, H]` (default zeros), and G is 4, with gates in the order i, f, g, o. Returns all h, `[T, N, P]`, and the last
/// h and c, `[N, P]` and `[N, H]`. Half precision is computed as in [`rnn`].
///
/// # Errors
/// The errors of [`rnn`].
#[tensor_method(autocast = Half)]
pub fn lstm(
    x: &Tensor,
    weights: RecurrentWeights<'_>,
    first: Option<(&Tensor, &Tensor)>,
    options: RecurrenceOptions<'_>,
) -> Result<(Tensor, (Tensor, Tensor))> {
    let [y, h, c] = recurrent("lstm", RnnMode::Lstm, x, weights, [first.map(|f| f.0), first.map(|f| f.1)], options)?;
    Ok((y, (h, c)))
}

/// Runs a recurrent layer with the given cell. The third result is c for an LSTM, otherwise h.
fn recurrent(
    op: &'static str,
    cell: RnnMode,
    x: &Tensor,
    weights: RecurrentWeights<'_>,
    [h0, c0]: [Option<&Tensor>; 2],
    options: RecurrenceOptions<'_>,
) -> Result<[Tensor; 3]> {
    // Autocast also considers the states, because their dtype may differ from the dtype of inputs and weights.
    let operands: SmallVec<[&Tensor; 4]> = [x, weights.weight_ih].into_iter().chain(h0).chain(c0).collect();
    if let Some(dtype) = precision::autocast_operand_dtype(op, &operands) {
        let cast = |t: &Tensor| precision::cast(t, dtype);
        let some = |t: Option<&Tensor>| precision::cast_some(t, dtype);
        let (x, weight_ih, weight_hh) = (cast(x)?, cast(weights.weight_ih)?, cast(weights.weight_hh)?);
        let (bias_ih, bias_hh, weight_hr) = (some(weights.bias_ih)?, some(weights.bias_hh)?, some(weights.weight_hr)?);
        let (h0, c0) = (some(h0)?, some(c0)?);
        let weights = RecurrentWeights {
            weight_ih: &weight_ih,
            weight_hh: &weight_hh,
            bias_ih: bias_ih.as_ref(),
            bias_hh: bias_hh.as_ref(),
            weight_hr: weight_hr.as_ref(),
        };
        return recurrent(op, cell, &x, weights, [h0.as_ref(), c0.as_ref()], options);
    }
    let sizes = LayerSizes::new(op, cell, x, &weights)?;
    sizes.check(op, x, &weights, [h0, c0], options.lengths)?;
    let dtype = x.dtype();
    // Half precision would round the state at every step.
    let compute = if dtype.size() == 2 { DType::F32 } else { dtype };
    let wide = |t: &Tensor| copy::to_dtype(t, compute);
    let first = |given: Option<&Tensor>, width: usize| match given {
        Some(t) => wide(t),
        None => fill::zeros([sizes.batch, width], compute),
    };
    let bias =
        sizes.bias(cell, weights.bias_ih.map(wide).transpose()?, weights.bias_hh.map(wide).transpose()?, compute)?;
    let mut operands = vec![
        copy::contiguous(&wide(x)?)?,
        wide(weights.weight_ih)?,
        wide(weights.weight_hh)?,
        bias,
        first(h0, sizes.state)?,
    ];
    if cell == RnnMode::Lstm {
        operands.push(first(c0, sizes.hidden)?);
    }
    if let Some(weight) = weights.weight_hr {
        operands.push(wide(weight)?);
    }
    if let Some(lengths) = options.lengths {
        operands.push(copy::to_dtype(lengths, DType::I64)?);
    }
    let layer = RecurrentLayer {
        op: outermost_operation(op),
        cell,
        reverse: options.reverse,
        projected: weights.weight_hr.is_some(),
        lengths: options.lengths.is_some(),
        half_factors: autocast_dtype().filter(|&half| half == dtype),
    };
    let outputs = apply(layer, &operands.iter().collect::<Vec<_>>())?;
    let narrow = |i: usize| copy::to_dtype(&outputs[i], dtype);
    Ok([narrow(0)?, narrow(1)?, narrow(outputs.len() - 1)?])
}

/// The sizes of a layer.
struct LayerSizes {
    /// N, the number of sequences.
    batch: usize,
    /// I, the input size.
    input: usize,
    /// H, the size of the cell state.
    hidden: usize,
    /// P, the size of the hidden state: H without a projection.
    state: usize,
    /// G, the number of gates.
    gates: usize,
}

impl LayerSizes {
    fn new(op: &'static str, cell: RnnMode, x: &Tensor, weights: &RecurrentWeights<'_>) -> Result<LayerSizes> {
        let (ih, gates) = (weights.weight_ih, cell.gates());
        let shape_error = |help: String| Error::shapes(op, [x.shape(), ih.shape()], help);
        let (&[_, batch, input], &[rows, _]) = (x.shape().dims(), ih.shape().dims()) else {
            return Err(shape_error(format!("x must be [T, N, I] and weight_ih [{gates}·H, I]")));
        };
        if rows % gates != 0 {
            return Err(shape_error(format!(
                "the number of rows of weight_ih must be divisible by {gates}, the number of gates"
            )));
        }
        let hidden = rows / gates;
        let state = match weights.weight_hr {
            None => hidden,
            Some(_) if cell != RnnMode::Lstm => {
                return Err(Error::invalid(op, "weight_hr is supported by lstm() only"));
            }
            Some(weight) => *weight.shape().first().unwrap_or(&0),
        };
        Ok(LayerSizes { batch, input, hidden, state, gates })
    }

    fn check(
        &self,
        op: &'static str,
        x: &Tensor,
        weights: &RecurrentWeights<'_>,
        [h0, c0]: [Option<&Tensor>; 2],
        lengths: Option<&Tensor>,
    ) -> Result<()> {
        let &LayerSizes { batch, input, hidden, state, gates, .. } = self;
        let rows = gates * hidden;
        let expected: [(&str, Option<&Tensor>, Shape); 7] = [
            ("weight_ih", Some(weights.weight_ih), [rows, input].into()),
            ("weight_hh", Some(weights.weight_hh), [rows, state].into()),
            ("bias_ih", weights.bias_ih, [rows].into()),
            ("bias_hh", weights.bias_hh, [rows].into()),
            ("weight_hr", weights.weight_hr, [state, hidden].into()),
            ("the initial state", h0, [batch, state].into()),
            ("the initial c", c0, [batch, hidden].into()),
        ];
        for (name, tensor, shape) in &expected {
            let Some(tensor) = tensor else { continue };
            if tensor.shape() != shape {
                return Err(Error::shapes(op, [x.shape(), tensor.shape()], format!("{name} must have shape {shape}")));
            }
            if tensor.dtype() != x.dtype() || !x.dtype().is_float() {
                let help = format!("x and {name} must have the same float dtype; use to_dtype()");
                return Err(Error::dtypes(op, [x.dtype(), tensor.dtype()], help));
            }
        }
        let Some(lengths) = lengths else { return Ok(()) };
        if lengths.shape()[..] != [batch] {
            return Err(Error::shapes(
                op,
                [x.shape(), lengths.shape()],
                "the lengths must be [N], with one element for each sequence",
            ));
        }
        if !lengths.dtype().is_int() {
            return Err(Error::dtypes(op, [lengths.dtype()], "lengths must be integers; use to_dtype()"));
        }
        Ok(())
    }

    /// Returns the bias of every gate block. In a GRU the state contribution to the last gate has a separate block.
    fn bias(&self, cell: RnnMode, ih: Option<Tensor>, hh: Option<Tensor>, dtype: DType) -> Result<Tensor> {
        let &LayerSizes { hidden, gates, .. } = self;
        let or_zeros = |b: Option<Tensor>| b.map_or_else(|| fill::zeros([gates * hidden], dtype), Ok);
        match (ih, hh) {
            (None, None) => fill::zeros([cell.blocks() * hidden], dtype),
            (ih, hh) if cell == RnnMode::Gru => {
                let (ih, hh) = (or_zeros(ih)?, or_zeros(hh)?);
                let gates_rz =
                    arithmetic::add(&view::narrow(&ih, 0, 0, 2 * hidden)?, &view::narrow(&hh, 0, 0, 2 * hidden)?)?;
                let last = |b: &Tensor| view::narrow(b, 0, 2 * hidden, hidden);
                concatenate(&[&gates_rz, &last(&ih)?, &last(&hh)?], 0)
            }
            (Some(ih), Some(hh)) => arithmetic::add(&ih, &hh),
            (Some(b), None) | (None, Some(b)) => Ok(b),
        }
    }
}
