//! `RecurrentLayer`, and its step-by-step definition in tensor operations.

use crate::ops::elementwise::{activation, arithmetic, compare, transcendental};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::{copy, view};
use crate::ops::products::matmul::matmul;
use crate::tensor::Tensor;
use pellucid_ir::kernel::RnnMode;
use pellucid_ir::{DType, Result};

/// A recurrent layer in `f32` or `f64`.
///
/// The inputs are x `[T, N, I]`, dense; W_ih `[G·H, I]`; W_hh `[G·H, P]`; the bias `[B·H]`, with B = G blocks (G + 1
/// for a GRU); h `[N, P]`; for an LSTM c `[N, H]`; with a projection W_hr `[P, H]`; and optional lengths, `i64 [N]`.
/// The outputs are all states, the last state, and for an LSTM the last c.
#[derive(Clone, Copy)]
pub(super) struct RecurrentLayer {
    /// The called operation, which an error of a deferred kernel names.
    pub(super) op: &'static str,
    pub(super) cell: RnnMode,
    pub(super) reverse: bool,
    pub(super) projected: bool,
    pub(super) lengths: bool,
    /// The dtype to which the factors of products may be rounded. It is set only for `f32` inputs.
    pub(super) half_factors: Option<DType>,
}

impl RecurrentLayer {
    /// Returns a factor of a product, rounded to `bf16` if the factors of this layer are. As in the kernels of the CPU,
    /// factors of `f16` are not rounded.
    fn rounded(&self, factor: &Tensor) -> Result<Tensor> {
        match self.half_factors {
            Some(DType::BF16) => copy::to_dtype(&copy::to_dtype(factor, DType::BF16)?, DType::F32),
            _ => Ok(factor.clone()),
        }
    }
}

/// Computes all states, the last state, and for an LSTM the last c. `x` contains the inputs of [`RecurrentLayer`]
/// without lengths.
pub(super) fn definition(layer: &RecurrentLayer, x: &[Tensor], lengths: Option<&Tensor>) -> Result<Vec<Tensor>> {
    let [inputs, w_ih, w_hh, bias, h0] = [0, 1, 2, 3, 4].map(|i| &x[i]);
    let lstm = layer.cell == RnnMode::Lstm;
    let weight_hr = layer.projected.then(|| layer.rounded(&x[6])).transpose()?;
    let (steps, hidden) = (inputs.shape()[0], bias.shape()[0] / layer.cell.blocks());
    let projections = matmul(&layer.rounded(inputs)?, &view::t(&layer.rounded(w_ih)?)?)?;
    let w_hh = view::t(&layer.rounded(w_hh)?)?;
    let (mut h, mut c) = (h0.clone(), lstm.then(|| x[5].clone()));
    // The states are in the order of time, with the initial state at both ends.
    let mut states = vec![view::unsqueeze(h0, 0)?; 2];
    for k in 0..steps {
        let step = if layer.reverse { steps - 1 - k } else { k };
        let projection = view::select(&projections, 0, step as isize)?;
        let product = matmul(&layer.rounded(&h)?, &w_hh)?;
        let (mut next, next_c) = cell_step(layer.cell, hidden, &projection, &product, bias, &h, c.as_ref())?;
        if let Some(weight) = &weight_hr {
            next = matmul(&layer.rounded(&next)?, &view::t(weight)?)?;
        }
        let active = lengths.map(|lengths| view::unsqueeze(&compare::gt(lengths, step as i64)?, 1)).transpose()?;
        let select_active = |new: &Tensor, old: &Tensor| match &active {
            Some(active) => arithmetic::where_(active, new, old),
            None => Ok(new.clone()),
        };
        h = select_active(&next, &h)?;
        c = c.zip(next_c).map(|(old, new)| select_active(&new, &old)).transpose()?;
        let masked = match &active {
            Some(active) => arithmetic::where_(active, &h, 0.0)?,
            None => h.clone(),
        };
        let last = if layer.reverse { 1 } else { states.len() - 1 };
        states.insert(last, view::unsqueeze(&masked, 0)?);
    }
    let states = concatenate(&states, 0)?;
    Ok([view::narrow(&states, 0, 1, steps)?, h].into_iter().chain(c).collect())
}

/// Computes one step. Returns the next state, before projection, and the next c.
fn cell_step(
    cell: RnnMode,
    hidden: usize,
    projection: &Tensor,
    product: &Tensor,
    bias: &Tensor,
    h: &Tensor,
    c: Option<&Tensor>,
) -> Result<(Tensor, Option<Tensor>)> {
    let block = |t: &Tensor, b: usize| view::narrow(t, -1, b * hidden, hidden);
    let sum =
        |b: usize| arithmetic::add(&arithmetic::add(&block(projection, b)?, &block(product, b)?)?, &block(bias, b)?);
    Ok(match (cell, c) {
        (RnnMode::Tanh, _) => (transcendental::tanh(&sum(0)?)?, None),
        (RnnMode::Relu, _) => (activation::relu(&sum(0)?)?, None),
        (RnnMode::Gru, _) => {
            let (r, z) = (activation::sigmoid(&sum(0)?)?, activation::sigmoid(&sum(1)?)?);
            let u = arithmetic::add(&block(product, 2)?, &block(bias, 3)?)?;
            let n = arithmetic::add(
                &arithmetic::add(&block(projection, 2)?, &block(bias, 2)?)?,
                &arithmetic::mul(&r, &u)?,
            )?;
            let n = transcendental::tanh(&n)?;
            (arithmetic::add(&n, &arithmetic::mul(&z, &arithmetic::sub(h, &n)?)?)?, None)
        }
        (RnnMode::Lstm, c) => {
            let (i, f, o) =
                (activation::sigmoid(&sum(0)?)?, activation::sigmoid(&sum(1)?)?, activation::sigmoid(&sum(3)?)?);
            let c = arithmetic::mul(&f, c.expect("an LSTM must have a cell state"))?;
            let c = arithmetic::add(&c, &arithmetic::mul(&i, &transcendental::tanh(&sum(2)?)?)?)?;
            (arithmetic::mul(&o, &transcendental::tanh(&c)?)?, Some(c))
        }
    })
}
