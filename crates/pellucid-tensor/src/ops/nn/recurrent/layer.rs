//! The recurrent layer and its gradient: one matrix product for all inputs, and one kernel for all steps.

use super::definition::{RecurrentLayer, definition};
use crate::autograd::{apply, interface::*};
use crate::device::Device;
use crate::engine;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::map;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, create, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_ir::formula::Signature;
use pellucid_ir::kernel::{Kernel, MatMul, Meta, Recurrent, RecurrentPart, RnnMode};
use pellucid_ir::{DType, Result, Shape, formula};

impl RecurrentLayer {
    fn kernel(&self, part: RecurrentPart) -> Kernel {
        let &RecurrentLayer { op, cell, reverse, projected, lengths, half_factors } = self;
        Kernel::Recurrent(Recurrent { op, cell, reverse, projected, lengths, half_factors, part })
    }

    fn is_lstm(&self) -> bool {
        self.cell == RnnMode::Lstm
    }

    /// Returns the number of inputs, without the optional lengths.
    fn float_inputs(&self) -> usize {
        5 + usize::from(self.is_lstm()) + usize::from(self.projected)
    }

    /// Returns the dtype to which the factors of products over all steps are rounded. The CPU multiplies factors of
    /// `f16` in `f32`, so that rounding would not make it faster.
    fn factor_dtype(&self, device: Device) -> Option<DType> {
        self.half_factors.filter(|&half| half == DType::BF16 || device != Device::cpu())
    }

    /// Returns a factor of a product over all steps, which may be rounded.
    fn factor(&self, array: Array) -> Result<Array> {
        self.factor_dtype(array.device()).map_or(Ok(array.clone()), |half| array.cast(half))
    }

    /// Computes a matrix product over all steps. The product of rounded factors is converted to `f32`.
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let product = matmul(a, b)?;
        if product.dtype().size() == 2 { copy::to_dtype(&product, DType::F32) } else { Ok(product) }
    }

    /// Returns the number of outputs.
    fn outputs(&self) -> usize {
        2 + usize::from(self.is_lstm())
    }

    /// Returns the offsets into T + 1 stored states: of the states after each step, and of the states before it.
    fn state_offsets(&self) -> (usize, usize) {
        if self.reverse { (0, 1) } else { (1, 0) }
    }
}

/// Submits a kernel. Its first outputs are `existing`; the other outputs are new arrays.
fn submit(kernel: &Kernel, inputs: &[&Array], existing: &[Array]) -> Result<Vec<Array>> {
    let metas: Vec<Meta> = inputs.iter().map(|a| a.meta()).collect();
    let mut outputs = existing.to_vec();
    for Meta { shape, dtype } in kernel.infer(&metas)?.into_iter().skip(existing.len()) {
        outputs.push(Array::new(inputs[0].device(), dtype, shape)?);
    }
    engine::submit(kernel, inputs, &outputs.iter().collect::<Vec<_>>())?;
    Ok(outputs)
}

/// Returns the slice `start..start + count` of the first axis.
fn first_axis_slice(array: &Array, start: usize, count: usize) -> Array {
    array.view(array.layout().slice(0, start, 1, count))
}

impl Operation for RecurrentLayer {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let device = Array::common_device(self.name(), inputs)?;
        let (x, weight, bias) = (inputs[0], inputs[1], inputs[3]);
        let &[steps, batch, width] = x.shape().dims() else {
            unreachable!("the input of a recurrent layer is always [T, N, I]")
        };
        let blocks = bias.shape()[0];
        let gates = Array::new(device, x.dtype(), [steps, batch, blocks].into())?;
        // The input contribution to the gates. The kernel overwrites it in place with the gate activations.
        let flat = |array: &Array, width: usize| array.reshape(&[steps * batch, width].into());
        let all = flat(&gates, blocks)?;
        let projections = all.view(all.layout().slice(1, 0, 1, weight.shape()[0]));
        let transposed = weight.view(weight.layout().permute(&[1, 0]));
        let factors = [self.factor(flat(x, width)?)?, self.factor(transposed)?];
        // A product of rounded factors is rounded, unless an epilogue reads it.
        let epilogue = match factors[0].dtype().size() == 2 {
            true => Some(formula!(|product| product).program(&Signature::new([DType::F32], DType::F32))?.clone()),
            false => None,
        };
        let product = Kernel::MatMul(MatMul { epilogue, ..MatMul::default() });
        engine::submit(&product, &[&factors[0], &factors[1]], &[&projections])?;
        let operands: Vec<&Array> = [&gates].into_iter().chain(inputs[2..].iter().copied()).collect();
        let arrays = submit(&self.kernel(RecurrentPart::States), &operands, std::slice::from_ref(&gates))?;
        let states = &arrays[1];

        let mut y = first_axis_slice(states, self.state_offsets().0, steps);
        if self.lengths {
            let lengths = Tensor::from(inputs[self.float_inputs()].clone());
            let step = view::unsqueeze(&create::indices(steps)?, 1)?;
            let inside = view::unsqueeze(&compare::lt(&step, &lengths)?, 2)?;
            y = arithmetic::where_(&inside, Tensor::from(y), 0.0)?.array().clone();
        }
        let end = if self.reverse { 0 } else { steps };
        let last = |array: &Array| array.view(array.layout().select(0, end)).copy();
        let mut outputs: Arrays = smallvec![y, last(states)?];
        if self.is_lstm() {
            outputs.push(last(&arrays[2])?);
        }
        (0..inputs.len()).for_each(|i| saves.input(i));
        // The states of a cell without gates are its activations.
        let is_plain = matches!(self.cell, RnnMode::Tanh | RnnMode::Relu);
        saves.array(if is_plain { first_axis_slice(states, self.state_offsets().0, steps) } else { gates });
        arrays.into_iter().skip(1).for_each(|array| saves.array(array));
        Ok(outputs)
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let inputs = saved.inputs_from(0)?;
        let incoming: Vec<Tensor> = (0..self.outputs()).map(|k| grads.get(k)).collect::<Result<_>>()?;
        let constants: Vec<Tensor> = (0..self.outputs()).map(|k| saved.array(k)).collect::<Result<_>>()?;
        let operands: Vec<&Tensor> = inputs.iter().chain(&incoming).chain(&constants).collect();
        let mut gradients = apply(RecurrentLayerGradient { layer: *self, needs }, &operands)?.into_iter();
        let gradient_of = |i: usize| if i < self.float_inputs() && needs.contains(i) { gradients.next() } else { None };
        Ok((0..inputs.len()).map(gradient_of).collect())
    }
}

/// Computes the gradients of the inputs that need one. The operands are the inputs of the layer, the gradients of its
/// outputs, and the saved gates, states and c.
struct RecurrentLayerGradient {
    layer: RecurrentLayer,
    needs: NeedsInputGrad,
}

impl RecurrentLayerGradient {
    fn needed_inputs(&self) -> impl Iterator<Item = usize> {
        let needs = self.needs;
        (0..self.layer.float_inputs()).filter(move |&i| needs.contains(i))
    }

    /// Computes Σ gradientsᵀ·states over all steps and sequences, `[G·H, P]`. The last gate of a GRU has a separate
    /// block of gradients for W_hh.
    fn weight_hh(&self, gates: &Tensor, before: &Tensor, hidden: usize) -> Result<Tensor> {
        let product = |first: usize, blocks: usize| {
            self.layer.product(&view::t(&view::narrow(gates, 1, first * hidden, blocks * hidden)?)?, before)
        };
        match self.layer.cell {
            RnnMode::Gru => concatenate(&[&product(0, 2)?, &product(3, 1)?], 0),
            cell => product(0, cell.gates()),
        }
    }
}

impl Operation for RecurrentLayerGradient {
    fn name(&self) -> &'static str {
        "recurrent_gradient"
    }

    /// The kernel computes the gradients of the gates for all steps. Matrix products then compute the gradients of
    /// inputs and weights.
    fn forward(&self, operands: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let layer = self.layer;
        let count = layer.float_inputs() + usize::from(layer.lengths);
        (0..count + layer.outputs()).for_each(|i| saves.input(i));
        let (inputs, rest) = operands.split_at(count);
        let (incoming, constants) = rest.split_at(layer.outputs());
        let mut from = vec![constants[0], constants[1], inputs[2], incoming[0], incoming[1]];
        if layer.is_lstm() {
            from.extend([constants[2], incoming[2]]);
        }
        from.extend(&inputs[5 + usize::from(layer.is_lstm())..]);
        let kernel_outputs = submit(&layer.kernel(RecurrentPart::Gradient), &from, &[])?;

        let &[steps, batch, input] = inputs[0].shape().dims() else {
            unreachable!("the input of a recurrent layer is always [T, N, I]")
        };
        let hidden = inputs[3].shape()[0] / layer.cell.blocks();
        let flat = |array: &Array| -> Result<Tensor> {
            let width = array.shape()[array.shape().rank() - 1];
            Ok(Tensor::from(array.reshape(&[steps * batch, width].into())?))
        };
        let factor = |array: &Array| flat(&layer.factor(array.clone())?);
        let before = || factor(&first_axis_slice(constants[1], layer.state_offsets().1, steps));
        let gates = factor(&kernel_outputs[0])?;
        let projections = view::narrow(&gates, 1, 0, layer.cell.gates() * hidden)?;
        let gradient = |i: usize| -> Result<Array> {
            let gradient = match i {
                0 => {
                    let shape: Shape = [steps, batch, input].into();
                    let weight = Tensor::from(layer.factor(inputs[1].clone())?);
                    view::reshape_to(&layer.product(&projections, &weight)?, &shape)?
                }
                1 => layer.product(&view::t(&projections)?, &factor(inputs[0])?)?,
                2 => self.weight_hh(&gates, &before()?, hidden)?,
                3 => reductions::sum(&flat(&kernel_outputs[0])?, 0)?,
                4 => Tensor::from(kernel_outputs[1].clone()),
                5 if layer.is_lstm() => Tensor::from(kernel_outputs[2].clone()),
                _ => {
                    let o = view::narrow(&flat(constants[0])?, 1, 3 * hidden, hidden)?;
                    let c = flat(&first_axis_slice(constants[2], layer.state_offsets().0, steps))?;
                    let unprojected = map(formula!(|o, c| o * c.tanh()), &[&o, &c], &[])?;
                    let unprojected = Tensor::from(layer.factor(unprojected.array().clone())?);
                    layer.product(&view::t(&factor(&kernel_outputs[3])?)?, &unprojected)?
                }
            };
            Ok(gradient.array().clone())
        };
        self.needed_inputs().map(gradient).collect()
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let layer = self.layer;
        let (floats, count) = (layer.float_inputs(), layer.float_inputs() + usize::from(layer.lengths));
        let saved_inputs: Vec<Tensor> = (0..count + layer.outputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let lengths = layer.lengths.then(|| &saved_inputs[floats]);
        let variables: Vec<&Tensor> = saved_inputs[..floats].iter().chain(&saved_inputs[count..]).collect();
        let incoming: Vec<Tensor> = (0..grads.len()).map(|k| grads.get(k)).collect::<Result<_>>()?;
        let first = |x: &[Tensor]| {
            let (inputs, gradients): (Vec<&Tensor>, Vec<&Tensor>) =
                (x[..floats].iter().collect(), x[floats..].iter().collect());
            let computed = via_definition(&inputs, &gradients, |x| definition(&layer, x, lengths))?;
            Ok(self.needed_inputs().map(|i| computed[i].clone()).collect())
        };
        let computed = via_definition(&variables, &incoming.iter().collect::<Vec<_>>(), first)?;
        let mut gradients: InputGradients = smallvec![None; saved.inputs()];
        let operands = (0..floats).chain(count..count + layer.outputs());
        operands.zip(computed).for_each(|(i, gradient)| gradients[i] = Some(gradient));
        Ok(gradients)
    }
}
