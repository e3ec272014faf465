//! Stacks of recurrent layers of one kind, in one or two directions.

use super::kind::{CellKind, RecurrentOutputs};
use super::weights::LayerWeights;
use crate::init::in_dtype;
use crate::layer::Layer;
use crate::layers::{Dropout, make_layers};
use crate::visit::Visitor;
use pellucid_tensor::OptionRange;
use pellucid_tensor::ops::RecurrenceOptions;
use pellucid_tensor::{Error, Result, Shape, Tensor, ops};

/// The options of an [`Rnn`](crate::Rnn), a [`Gru`](crate::Gru) or an [`Lstm`](crate::Lstm), for
/// [`with_options`](crate::RecurrentNetwork::with_options).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RecurrentOptions {
    /// The number of layers; each reads the outputs of the previous layer.
    pub layers: usize,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether sequences are `[N, T, I]` instead of `[T, N, I]`. States are `[.., N, H]` in both cases.
    pub batch_first: bool,
    /// The probability of dropping an output in training, in all layers but the last.
    pub dropout: f64,
    /// Whether each layer also has a reverse direction; outputs are concatenated along the last axis.
    pub bidirectional: bool,
    /// The width to which an LSTM's states h are projected (Sak et al. 2014).
    pub projection: Option<usize>,
}

impl Default for RecurrentOptions {
    fn default() -> RecurrentOptions {
        RecurrentOptions {
            layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            projection: None,
        }
    }
}

/// The weights and options of all layers and directions.
#[derive(Clone, Debug)]
pub(super) struct RecurrentStack {
    cell: CellKind,
    options: RecurrentOptions,
    /// The weights, layer by layer, forward before reverse.
    weights: Vec<LayerWeights>,
    dropout: Dropout,
}

impl RecurrentStack {
    #[track_caller]
    pub(super) fn new(cell: CellKind, input: usize, hidden: usize) -> Result<RecurrentStack> {
        let options = RecurrentOptions::default();
        let weights = vec![LayerWeights::new(cell, input, hidden, options.bias, options.projection)?];
        Ok(RecurrentStack { cell, options, weights, dropout: Dropout::try_new(options.dropout)? })
    }

    /// Returns the stack with other options. Weights that are new or change shape are initialized randomly.
    #[track_caller]
    pub(super) fn with_options(self, options: RecurrentOptions) -> Result<RecurrentStack> {
        let (cell, input, hidden, earlier_directions) = (self.cell, self.input(), self.hidden(), self.directions());
        let RecurrentOptions { layers, bias, dropout, bidirectional, projection, .. } = options;
        if layers == 0 {
            return Err(Error::invalid(cell.names().layer, "the number of layers must be at least 1"));
        }
        if projection.is_some() && cell != CellKind::Lstm {
            return Err(Error::invalid(
                cell.names().layer,
                "`projection` must be None, since only an LSTM projects its states; use a smaller hidden width",
            ));
        }
        OptionRange::PROBABILITY.check(cell.names().layer, "dropout", dropout, 0.2)?;
        let directions = 1 + usize::from(bidirectional);
        let width =
            |layer: usize| if layer == 0 { input } else { projection.unwrap_or(hidden).saturating_mul(directions) };
        let dtype = self.weights[0].weight_ih.dtype();
        let mut earlier: Vec<Option<LayerWeights>> = self.weights.into_iter().map(Some).collect();
        let weights = |k: usize| {
            let (layer, direction) = (k / directions, k % directions);
            let same = match direction < earlier_directions {
                true => earlier.get_mut(layer * earlier_directions + direction).and_then(Option::take),
                false => None,
            };
            match same.filter(|weights| weights.has_widths(width(layer), projection)) {
                Some(weights) => weights.with_biases(cell, bias),
                None => in_dtype(dtype, || LayerWeights::new(cell, width(layer), hidden, bias, projection)),
            }
        };
        let weights = make_layers(cell.names().layer, layers.saturating_mul(directions), weights)?;
        let mut dropout_layer = self.dropout;
        dropout_layer.p = dropout;
        Ok(RecurrentStack { cell, options, weights, dropout: dropout_layer })
    }

    pub(super) fn with_batch_first(self, batch_first: bool) -> RecurrentStack {
        RecurrentStack { options: RecurrentOptions { batch_first, ..self.options }, ..self }
    }

    pub(super) fn options(&self) -> RecurrentOptions {
        self.options
    }

    /// Returns the number of input features.
    pub(super) fn input(&self) -> usize {
        self.weights[0].input()
    }

    /// Returns the number of hidden features.
    pub(super) fn hidden(&self) -> usize {
        self.weights[0].hidden(self.cell)
    }

    /// Replaces the cell by one whose weights have the same shapes.
    pub(super) fn with_cell(self, cell: CellKind) -> RecurrentStack {
        RecurrentStack { cell, ..self }
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.options.bidirectional)
    }

    pub(super) fn visit(&self, visitor: &mut Visitor<'_>) {
        for (k, weights) in self.weights.iter().enumerate() {
            let reverse = if k % self.directions() == 1 { "_reverse" } else { "" };
            weights.visit(visitor, &format!("_l{}{reverse}", k / self.directions()));
        }
        visitor.field("dropout", &self.dropout);
        let RecurrentOptions { layers, batch_first, bidirectional, .. } = &self.options;
        visitor.setting("layers", layers);
        visitor.setting("batch_first", batch_first);
        visitor.setting("bidirectional", bidirectional);
    }

    /// Runs x `[T, N, I]` (or `[N, T, I]`, or `[T, I]`: one sequence) from the states h and c, or from zeros. Returns
    /// the outputs and the last states of all layers and directions.
    pub(super) fn run(
        &self,
        x: &Tensor,
        states: [Option<&Tensor>; 2],
        lengths: Option<&Tensor>,
    ) -> Result<RecurrentOutputs> {
        let type_name = self.cell.names().layer_class;
        self.weights[0].check_dtypes(self.cell.names().layer, x, states)?;
        if x.rank() == 2 || x.rank() == 3 {
            self.weights[0].check_features(self.cell, type_name, x)?;
            self.check_states(x, states)?;
        }
        if x.rank() == 2 {
            let [h, c] = states.map(|state| state.map(|t| ops::unsqueeze(t, 1)).transpose());
            let (y, h, c) = self.run_layers(&ops::unsqueeze(x, 1)?, [h?.as_ref(), c?.as_ref()], lengths)?;
            return Ok((ops::squeeze(&y, 1)?, ops::squeeze(&h, 1)?, c.map(|c| ops::squeeze(&c, 1)).transpose()?));
        }
        if x.rank() != 3 {
            let help = "the input must have shape [T, N, I], [N, T, I] with batch_first, or [T, I] without a batch";
            return Err(Error::shapes(self.cell.names().layer, [x.shape()], help));
        }
        if !self.options.batch_first {
            return self.run_layers(x, states, lengths);
        }
        let (y, h, c) = self.run_layers(&ops::transpose(x, 0, 1)?, states, lengths)?;
        Ok((ops::transpose(&y, 0, 1)?, h, c))
    }

    /// Returns an error unless the initial states are `[layers·K, N, H]`, or `[layers·K, H]` for one sequence.
    fn check_states(&self, x: &Tensor, states: [Option<&Tensor>; 2]) -> Result<()> {
        let widths = self.weights[0].state_widths(self.cell);
        let batch = (x.rank() == 3).then(|| x.shape()[usize::from(!self.options.batch_first)]);
        for ((name, state), width) in ["h", "c"].into_iter().zip(states).zip(widths) {
            let Some(state) = state else { continue };
            let expected: Shape = [self.weights.len()].into_iter().chain(batch).chain([width]).collect();
            if *state.shape() != expected {
                let axes = if batch.is_some() { "[layers·directions, N, H]" } else { "[layers·directions, H]" };
                let help = format!(
                    "the initial state {name} must have shape {axes} = {expected}{}",
                    self.layout_help(x, state)
                );
                return Err(Error::shapes(self.cell.names().layer, [x.shape(), state.shape()], help));
            }
        }
        Ok(())
    }

    /// Returns the end of an error text: it suggests the option `batch_first` if the batch size of a state is the
    /// length of the other one of the first two axes of x.
    fn layout_help(&self, x: &Tensor, state: &Tensor) -> String {
        let batch_first = self.options.batch_first;
        if x.rank() != 3 || state.rank() != 3 || state.shape()[1] != x.shape()[usize::from(batch_first)] {
            return String::new();
        }
        let (axes, other) = if batch_first { ("[N, T, I]", "[T, N, I]") } else { ("[T, N, I]", "[N, T, I]") };
        format!("; sequences are {axes}; for {other} set batch_first({})", !batch_first)
    }

    /// Runs x `[T, N, I]`; see [`RecurrentStack::run`].
    fn run_layers(
        &self,
        x: &Tensor,
        states: [Option<&Tensor>; 2],
        lengths: Option<&Tensor>,
    ) -> Result<RecurrentOutputs> {
        let (mut x, mut all_h, mut all_c) = (x.clone(), Vec::new(), Vec::new());
        for (layer, weights) in self.weights.chunks(self.directions()).enumerate() {
            if layer > 0 {
                x = self.dropout.try_forward(&x)?;
            }
            let mut outputs = Vec::new();
            for (direction, weights) in weights.iter().enumerate() {
                let initial_state = |t: Option<&Tensor>| t.map(|t| ops::select(t, 0, all_h.len() as isize)).transpose();
                let [h, c] = states.map(initial_state);
                let options = RecurrenceOptions { reverse: direction == 1, lengths };
                let (y, h, c) = self.cell.run(&x, weights.borrowed(), [h?.as_ref(), c?.as_ref()], options)?;
                outputs.push(y);
                all_h.push(h);
                all_c.extend(c);
            }
            x = match &outputs[..] {
                [forwards, backwards] => ops::concatenate(&[forwards, backwards], -1)?,
                _ => outputs.swap_remove(0),
            };
        }
        let stacked = |states: &[Tensor]| ops::stack(states, 0);
        Ok((x, stacked(&all_h)?, (self.cell == CellKind::Lstm).then(|| stacked(&all_c)).transpose()?))
    }
}
