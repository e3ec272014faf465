//! The family [`Recurrent`]: what it computes, and the shapes of what comes out.

use super::{Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use smallvec::smallvec;

/// The equations of one step: from the inputs' share x and the state h before it to the state h′, of H numbers each.
///
/// Gates are blocks of H numbers: xᵦ what the inputs give to block b, hᵦ = (W·h)ᵦ what the state gives, βᵦ the
/// bias, σ the logistic function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cell {
    /// h′ = tanh(x + W·h + β) (Elman 1990).
    Tanh,
    /// h′ = max(x + W·h + β, 0).
    Relu,
    /// r = σ(x₀ + h₀ + β₀), z = σ(x₁ + h₁ + β₁), u = h₂ + β₃, n = tanh(x₂ + β₂ + r·u), h′ = n + z·(h − n) (Cho et al. 2014,
    /// with the reset after the product). There are four blocks of x, of which the last one is only room for u.
    Gru,
    /// i, f, g, o = σ, σ, tanh, σ of x₀.. + h₀.. + β₀..; c′ = f·c + i·g, h′ = o·tanh(c′) (Hochreiter & Schmidhuber 1997, Gers et
    /// al. 2000), or, projected, h′ = V·(o·tanh(c′)) (Sak et al. 2014).
    Lstm,
}

impl Cell {
    /// The blocks of rows of the weights.
    pub fn gates(self) -> usize {
        match self {
            Cell::Tanh | Cell::Relu => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// The blocks of the bias, and of what a step leaves for its derivative.
    pub fn blocks(self) -> usize {
        match self {
            Cell::Tanh | Cell::Relu => 1,
            Cell::Gru | Cell::Lstm => 4,
        }
    }
}

/// What a [`Recurrent`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecurrentPart {
    /// All states.
    States,
    /// The gradients of gates and of the first state.
    Gradient,
}

/// A recurrent layer over T steps of N sequences, or the way back through it.
///
/// It is a family of its own because a step is too short to be a few kernels: its weights are packed once for all
/// steps, and stay in the cache between them.
///
/// H is the width of a cell, P that of a state (H, unless projected), B and G the cell's [`blocks`](Cell::blocks) and
/// [`gates`](Cell::gates). Arrays are `f32` or `f64`, outputs dense.
///
/// **States** takes what the inputs give to the gates `[T, N, B·H]`, W `[G·H, P]`, β `[B·H]`, the first state `[N, P]`;
/// for [`Cell::Lstm`] the first c `[N, H]`; if projected V `[P, H]`; if there are lengths those, `i64 [N]` in 0..=T. It
/// gives what the gates came to, `[T, N, B·H]` (r, z, n, u of [`Cell::Gru`]), which may be the very view of the first
/// input; all states, `[T + 1, N, P]`; and all c, `[T + 1, N, H]`. Step t leads from state t to t + 1, or, in `reverse`,
/// from t + 1 to t. A step that is not below its sequence's length leaves the state as it is, and its gates unspecified.
///
/// **Gradient** takes these gates (of a plain cell, the states that the steps lead to) and states, W, the gradients of
/// the states that the steps lead to, `[T, N, P]`, and, once more, of the last of them, `[N, P]`; for [`Cell::Lstm`] all c
/// and the gradient of the last one; then V and the lengths. It gives the gradients of x + β (u's in the last block of
/// [`Cell::Gru`]), `[T, N, B·H]`, of the first state and of the first c; if projected also the whole gradient of every
/// state, `[T, N, P]`. Steps behind a sequence's length do not see the gradients of their states, and have zeros.
///
/// A sum over a state is accumulated as a [`MatMul`](super::MatMul)'s is; it is added to x, and β to both. The order of
/// accumulation depends on the shapes alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Recurrent {
    /// The equations.
    pub cell: Cell,
    /// From the last step to the first.
    pub reverse: bool,
    /// States are projected: for [`Cell::Lstm`].
    pub projected: bool,
    /// Sequences have lengths of their own.
    pub lengths: bool,
    /// What is computed.
    pub part: RecurrentPart,
}

/// T, N, H and P.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentSizes {
    /// The number of steps.
    pub steps: usize,
    /// The number of sequences.
    pub batch: usize,
    /// The width of a cell.
    pub hidden: usize,
    /// The width of a state.
    pub state: usize,
}

impl Recurrent {
    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        let own = match (self.part, self.cell) {
            (RecurrentPart::States, Cell::Lstm) => 5,
            (RecurrentPart::States, _) => 4,
            (RecurrentPart::Gradient, Cell::Lstm) => 7,
            (RecurrentPart::Gradient, _) => 5,
        };
        own + usize::from(self.projected) + usize::from(self.lengths)
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        let gradient = self.part == RecurrentPart::Gradient;
        2 + usize::from(self.cell == Cell::Lstm) + usize::from(gradient && self.projected)
    }

    /// T, N, H and P, if the first inputs say what they are.
    pub fn sizes(&self, inputs: &[Meta]) -> Option<RecurrentSizes> {
        let w = match self.part {
            RecurrentPart::States => &inputs[1],
            RecurrentPart::Gradient => &inputs[2],
        };
        let (&[steps, batch, width], &[_, state]) = (inputs[0].shape.dims(), w.shape.dims()) else { return None };
        let hidden = width / self.cell.blocks();
        let fits = self.projected && self.cell == Cell::Lstm || !self.projected && state == hidden;
        fits.then_some(RecurrentSizes { steps, batch, hidden, state })
    }

    /// Shape and dtype of every output.
    pub(super) fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let misfit = || Error::shapes("recurrent", inputs.iter().map(|m| &m.shape), "inputs are those of `Recurrent`");
        let sizes = self.sizes(inputs).filter(|_| inputs.len() == self.inputs()).ok_or_else(misfit)?;
        let RecurrentSizes { steps, batch, hidden, state } = sizes;
        let (gates, blocks, lstm) = (self.cell.gates() * hidden, self.cell.blocks() * hidden, self.cell == Cell::Lstm);
        let all = steps.checked_add(1).ok_or_else(misfit)?;
        let mut wanted: Vec<Shape> = match self.part {
            RecurrentPart::States => {
                vec![[steps, batch, blocks].into(), [gates, state].into(), [blocks].into(), [batch, state].into()]
            }
            RecurrentPart::Gradient => vec![
                [steps, batch, blocks].into(),
                [all, batch, state].into(),
                [gates, state].into(),
                [steps, batch, state].into(),
                [batch, state].into(),
            ],
        };
        if lstm && self.part == RecurrentPart::Gradient {
            wanted.push([all, batch, hidden].into());
        }
        if lstm {
            wanted.push([batch, hidden].into());
        }
        if self.projected {
            wanted.push([state, hidden].into());
        }
        let floats = wanted.len();
        if self.lengths {
            wanted.push([batch].into());
        }
        if wanted.iter().zip(inputs).any(|(shape, input)| *shape != input.shape) {
            return Err(misfit());
        }
        let dtype = inputs[0].dtype;
        let typed = matches!(dtype, DType::F32 | DType::F64)
            && inputs[..floats].iter().all(|m| m.dtype == dtype)
            && inputs[floats..].iter().all(|m| m.dtype == DType::I64);
        if !typed {
            let help = "takes f32 or f64, and lengths of i64; use to_dtype()";
            return Err(Error::dtypes("recurrent", inputs.iter().map(|m| m.dtype), help));
        }
        let of = |shape: Shape| Meta { shape, dtype };
        let mut outputs: Metas = match self.part {
            RecurrentPart::States => {
                smallvec![inputs[0].clone(), of([all, batch, state].into())]
            }
            RecurrentPart::Gradient => smallvec![inputs[0].clone(), of([batch, state].into())],
        };
        match self.part {
            RecurrentPart::States if lstm => outputs.push(of([all, batch, hidden].into())),
            RecurrentPart::Gradient if lstm => outputs.push(of([batch, hidden].into())),
            _ => {}
        }
        if self.projected && self.part == RecurrentPart::Gradient {
            outputs.push(of([steps, batch, state].into()));
        }
        Ok(outputs)
    }
}
