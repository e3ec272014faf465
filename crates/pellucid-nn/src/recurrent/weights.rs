//! The weights of one layer in one direction.

use super::kind::CellKind;
use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layers::uniform_bias;
use crate::parameter::Parameter;
use crate::visit::Visitor;
use pellucid_tensor::ops::RecurrentWeights;
use pellucid_tensor::{Error, Result, Tensor};

/// Weights with the layouts of [`RecurrentWeights`].
#[derive(Clone, Debug)]
pub(super) struct LayerWeights {
    pub(super) weight_ih: Parameter,
    weight_hh: Parameter,
    biases: Option<[Parameter; 2]>,
    weight_hr: Option<Parameter>,
}

impl LayerWeights {
    /// Creates the weights of a recurrent layer of this cell, uniform on ±1/√hidden.
    #[track_caller]
    pub(super) fn new(
        cell: CellKind,
        input: usize,
        hidden: usize,
        bias: bool,
        projection: Option<usize>,
    ) -> Result<LayerWeights> {
        let bound = init::uniform_bound(hidden);
        let (rows, state) = (cell.gates().saturating_mul(hidden), projection.unwrap_or(hidden));
        let uniform = |shape: &[usize]| call::name_layer(cell.names().layer, init::try_uniform(shape, -bound, bound));
        Ok(LayerWeights {
            weight_ih: uniform(&[rows, input])?,
            weight_hh: uniform(&[rows, state])?,
            biases: if bias { Some([uniform(&[rows])?, uniform(&[rows])?]) } else { None },
            weight_hr: projection.map(|p| uniform(&[p, hidden])).transpose()?,
        })
    }

    pub(super) fn borrowed(&self) -> RecurrentWeights<'_> {
        RecurrentWeights {
            weight_ih: &self.weight_ih,
            weight_hh: &self.weight_hh,
            bias_ih: self.biases.as_ref().map(|b| b[0].tensor()),
            bias_hh: self.biases.as_ref().map(|b| b[1].tensor()),
            weight_hr: self.weight_hr.as_deref(),
        }
    }

    /// Returns an error if an input or a state of the layer `op` does not have the dtype of the weights.
    pub(super) fn check_dtypes(&self, op: &'static str, x: &Tensor, states: [Option<&Tensor>; 2]) -> Result<()> {
        let inputs = [Some(x), states[0], states[1]];
        inputs.into_iter().flatten().try_for_each(|input| check_input_dtype(op, input, &self.weight_ih))
    }

    /// Returns an error if the last axis of x does not have the length for which the layer was created.
    pub(super) fn check_features(&self, cell: CellKind, type_name: &str, x: &Tensor) -> Result<()> {
        let (given, expected) = (x.shape().last().copied().unwrap_or(0), self.weight_ih.shape()[1]);
        if given == expected {
            return Ok(());
        }
        let help = format!(
            "the input has {given} features on its last axis, but the layer expects {expected}; create a {type_name} with \
             {given} input and {} hidden features",
            self.hidden(cell)
        );
        Err(Error::shapes(cell.names().layer, [x.shape()], help))
    }

    /// Returns the lengths of the last axis of the states h and c.
    pub(super) fn state_widths(&self, cell: CellKind) -> [usize; 2] {
        [self.weight_hh.shape()[1], self.hidden(cell)]
    }

    /// Returns the weights with or without biases. Added biases are initialized randomly.
    #[track_caller]
    pub(super) fn with_biases(self, cell: CellKind, bias: bool) -> Result<LayerWeights> {
        let (layer, rows, hidden) = (cell.names().layer, self.weight_ih.shape()[0], self.hidden(cell));
        let draw = || uniform_bias(layer, true, None, &self.weight_ih, rows, hidden);
        let both = || Ok(draw()?.zip(draw()?).map(|(ih, hh)| [ih, hh]));
        let biases = if bias && self.biases.is_none() { both()? } else { self.biases.filter(|_| bias) };
        Ok(LayerWeights { biases, ..self })
    }

    /// Returns true if the weights have this number of input features and this projection.
    pub(super) fn has_widths(&self, input: usize, projection: Option<usize>) -> bool {
        self.input() == input && self.weight_hr.as_ref().map(|weight| weight.shape()[0]) == projection
    }

    /// Returns the number of input features.
    pub(super) fn input(&self) -> usize {
        self.weight_ih.shape()[1]
    }

    /// Returns the number of hidden features.
    pub(super) fn hidden(&self, cell: CellKind) -> usize {
        self.weight_ih.shape()[0] / cell.gates()
    }

    /// Visits the weights as fields of the current module, with names that end in `suffix`.
    pub(super) fn visit(&self, visitor: &mut Visitor<'_>, suffix: &str) {
        visitor.field(format_args!("weight_ih{suffix}"), &self.weight_ih);
        visitor.field(format_args!("weight_hh{suffix}"), &self.weight_hh);
        if let Some([ih, hh]) = &self.biases {
            visitor.field(format_args!("bias_ih{suffix}"), ih);
            visitor.field(format_args!("bias_hh{suffix}"), hh);
        }
        if let Some(weight) = &self.weight_hr {
            visitor.field(format_args!("weight_hr{suffix}"), weight);
        }
    }
}
