//! Higher-order gradients of row formulas, by composite operations.

use super::FormulaCall;
use crate::autograd::{InputGradients, NeedsInputGrad, OutputGradients, SavedTensors};
use crate::ops::call::axes::Axes;
use crate::ops::formula::broadcast;
use crate::ops::formula::kernel_reduction::by_kernel;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, create, fill, view};
use crate::tensor::Tensor;
use pellucid_ir::formula::{Input, Leaf, RowOp, UnrolledValue, ValueKind};
use pellucid_ir::kernel::{AxisSet, Params, ReduceOp};
use pellucid_ir::{DType, Result, Scalar, Shape};
use smallvec::SmallVec;

/// Computes the gradients of a row formula from its saved inputs, by differentiating its [`composite`] definition.
pub(super) fn backward(
    call: &FormulaCall,
    saved: &SavedTensors,
    grads: &OutputGradients,
    needs: NeedsInputGrad,
) -> Result<InputGradients> {
    let operands = saved.inputs_from(0)?;
    let needed: Vec<usize> = (0..saved.inputs()).filter(|&i| saved.needs_gradient(needs, i)).collect();
    let outputs: Vec<usize> = (0..grads.len()).filter(|&j| grads.try_get(j).is_some()).collect();
    let incoming: Vec<&Tensor> = outputs.iter().filter_map(|&j| grads.try_get(j)).collect();
    let inputs: Vec<&Tensor> = needed.iter().map(|&i| &operands[i]).collect();
    let computed = via_definition(&inputs, &incoming, |fresh| {
        let mut all_inputs = operands.clone();
        needed.iter().zip(fresh).for_each(|(&i, t)| all_inputs[i] = t.clone());
        let values = composite(call, &all_inputs)?;
        outputs.iter().zip(&incoming).map(|(&j, g)| copy::to_dtype(&values[j], g.dtype())).collect()
    })?;
    let mut gradients: InputGradients = SmallVec::from_elem(None, saved.inputs());
    needed.into_iter().zip(computed).for_each(|(i, g)| gradients[i] = Some(g));
    Ok(gradients)
}

/// Computes the outputs of a row formula by elementwise formulas and reductions.
fn composite(call: &FormulaCall, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let unrolled = call.formula.unrolled()?;
    let kinds = call.formula.inputs();
    // These intermediate values are stored, not kept in registers as in a row kernel, so half precision is widened.
    let wide = |(t, input): (&Tensor, &Input)| match (t.dtype(), call.compute_dtype) {
        _ if input.kind != ValueKind::Number => Ok(t.clone()),
        (DType::F16 | DType::BF16, _) => copy::to_dtype(t, DType::F32),
        (dtype, Some(compute_dtype)) if dtype != compute_dtype => copy::to_dtype(t, compute_dtype),
        _ => Ok(t.clone()),
    };
    let inputs: Vec<Tensor> = inputs.iter().zip(kinds).map(wide).collect::<Result<_>>()?;
    let length = call.rows.count(call.shape);
    let params: Vec<Scalar> = call.params.iter().copied().chain([Scalar::Float(length as f64)]).collect();
    let params = Params::from(&params[..]);
    let mut reduced: Vec<Tensor> = Vec::new();
    for reduction in &unrolled.reductions {
        let value = &reduction.operand;
        let result = match reduction.op {
            RowOp::Sum => evaluate(call, value, &inputs, &reduced, &params, Some(call.rows))?,
            RowOp::Max | RowOp::Min => {
                let elements = evaluate(call, value, &inputs, &reduced, &params, None)?;
                if length == 0 {
                    // The maximum of zero elements is −∞, and the minimum is ∞.
                    let empty_value = if reduction.op == RowOp::Max { f64::NEG_INFINITY } else { f64::INFINITY };
                    let shape = call.rows.keepdims(call.shape);
                    reduced.push(fill::full(shape, empty_value, elements.dtype())?);
                    continue;
                }
                let axes: Vec<isize> = call.rows.iter().map(|a| a as isize).collect();
                let keep = Axes::from(&axes[..]).keepdims();
                match reduction.op {
                    RowOp::Max => by_kernel("max", ReduceOp::Max, &elements, keep)?,
                    _ => by_kernel("min", ReduceOp::Min, &elements, keep)?,
                }
            }
        };
        reduced.push(result);
    }
    unrolled.outputs.iter().map(|value| evaluate(call, value, &inputs, &reduced, &params, None)).collect()
}

/// Evaluates one elementwise section of the formula, and sums it over `sum`.
fn evaluate(
    call: &FormulaCall,
    value: &UnrolledValue,
    inputs: &[Tensor],
    reduced: &[Tensor],
    params: &Params,
    sum: Option<AxisSet>,
) -> Result<Tensor> {
    let operand = |leaf: &Leaf| match *leaf {
        Leaf::Input(i) => Ok(inputs[i].clone()),
        Leaf::Reduced(r) => Ok(reduced[r].clone()),
        Leaf::RowIndex => row_positions(call),
    };
    let mut operands: Vec<Tensor> = value.leaves.iter().map(operand).collect::<Result<_>>()?;
    let shape = if value.per_row { call.rows.keepdims(call.shape) } else { call.shape.clone() };
    if sum.is_some()
        && let Some(first) = operands.first()
        && super::broadcast(call.formula.name(), &operands.iter().collect::<Vec<_>>())? != shape
    {
        // The sum extends over the broadcast shape of all inputs of the row formula, but this section reads only some
        // of them.
        operands[0] = broadcast::broadcast_to(first, &shape)?;
    }
    let part = FormulaCall {
        formula: &value.formula,
        params,
        shape: &shape,
        rows: AxisSet::default(),
        sum,
        compute_dtype: None,
    };
    let mut outputs = part.apply(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>(), None)?;
    Ok(outputs.pop().expect("a part of a row formula must have one output"))
}

/// Returns the position of every element within its row, in row-major order of the axes of the row.
fn row_positions(call: &FormulaCall) -> Result<Tensor> {
    let lengths = (0..call.shape.rank()).map(|a| if call.rows.contains(a) { call.shape[a] } else { 1 });
    let count = call.rows.count(call.shape);
    let shape: Shape = lengths.collect();
    view::reshape_to(&create::arange(0i64, count as i64, 1i64, DType::I64)?, &shape)
}
