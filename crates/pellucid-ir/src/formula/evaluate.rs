//! Evaluation of formulas in `f64`: the reference for all fast implementations.

use super::Formula;
use super::graph::{FormulaNode, ValueKind};
use super::primitive::RowOp;
use super::special;
use crate::dtype::{DType, Element, Scalar};

impl Formula {
    /// Evaluates the outputs for one row in `f64`; masks are 0 and 1, indices are integers.
    ///
    /// A per-element input has one value for each element of the row; a per-row input or output has a single value. A
    /// formula without rows is evaluated element by element.
    ///
    /// # Panics
    /// Panics if an input has the wrong length, or if the number of inputs or parameters is wrong.
    #[track_caller]
    pub fn evaluate(&self, inputs: &[&[f64]], params: &[f64]) -> Vec<Vec<f64>> {
        let per_element = self.inner.inputs.iter().zip(inputs).find(|(input, _)| !input.per_row);
        self.evaluate_row(inputs, params, per_element.map_or(1, |(_, values)| values.len()))
    }

    /// Evaluates the outputs for one row like [`evaluate`](Self::evaluate), for a row of `elements` elements. If all
    /// inputs are per row, as in the gradient of Σx, they do not determine this number.
    #[track_caller]
    pub fn evaluate_row(&self, inputs: &[&[f64]], params: &[f64], elements: usize) -> Vec<Vec<f64>> {
        let inner = &*self.inner;
        self.check_counts(inputs.len(), params.len());
        for (i, (input, values)) in inner.inputs.iter().zip(inputs).enumerate() {
            let (given, needed) = (values.len(), if input.per_row { 1 } else { elements });
            assert!(given == needed, "formula `{}`: input {i} must have {needed} elements, got {given}", inner.name);
        }
        let mut values: Vec<Vec<f64>> = Vec::with_capacity(inner.graph.len());
        for (id, node) in inner.graph.iter() {
            let ids = node.operands();
            let args: Vec<&[f64]> = ids.iter().map(|a| &values[a.index()][..]).collect();
            let integers = ids.first().is_some_and(|&a| inner.graph.node_info(a).kind == ValueKind::Index);
            let element = |a: usize, i: usize| args[a][i.min(args[a].len() - 1)];
            let count = if inner.graph.node_info(id).per_row { 1 } else { elements };
            let each = |f: &dyn Fn(usize) -> f64| (0..count).map(f).collect::<Vec<f64>>();
            let value = match node {
                FormulaNode::Input(i) => inputs[i as usize].to_vec(),
                FormulaNode::Param(k) => vec![params[k as usize]],
                FormulaNode::Literal(literal) => vec![literal.value.to_f64()],
                FormulaNode::RowLength => vec![elements as f64],
                FormulaNode::RowIndex => each(&|i| i as f64),
                FormulaNode::Unary(op, _) => match inner.graph.node_info(id).kind {
                    ValueKind::Index if op == super::Unary::Not => each(&|i| !(element(0, i) as i64) as f64),
                    _ => each(&|i| special::unary(op, element(0, i))),
                },
                FormulaNode::Binary(op, ..) if integers => {
                    each(&|i| special::binary_index(op, element(0, i), element(1, i)))
                }
                FormulaNode::Binary(op, ..) => each(&|i| special::binary(op, element(0, i), element(1, i))),
                FormulaNode::Select(..) => each(&|i| if element(0, i) != 0.0 { element(1, i) } else { element(2, i) }),
                FormulaNode::MulAdd(..) => each(&|i| element(0, i).mul_add(element(1, i), element(2, i))),
                FormulaNode::Cast(ValueKind::Number, _) => args[0].to_vec(),
                FormulaNode::Cast(ValueKind::Index, _) => each(&|i| element(0, i).trunc()),
                FormulaNode::Cast(ValueKind::Mask, _) => each(&|i| (element(0, i) != 0.0) as u8 as f64),
                FormulaNode::Round(dtype, _) => each(&|i| round(element(0, i), dtype)),
                FormulaNode::RowReduce(op, _) => vec![reduce(op, (0..elements).map(|i| element(0, i)))],
            };
            values.push(value);
        }
        let output = |o: &super::Output| {
            let value = &values[o.node.index()];
            let length = if o.per_row { 1 } else { elements };
            (0..length).map(|i| value[i.min(value.len() - 1)]).collect()
        };
        inner.outputs.iter().map(output).collect()
    }
}

fn reduce(op: RowOp, row: impl Iterator<Item = f64>) -> f64 {
    let extremum = |op| move |a: f64, b: f64| special::binary(op, a, b);
    match op {
        RowOp::Sum => row.sum(),
        RowOp::Max => row.fold(f64::NEG_INFINITY, extremum(super::Binary::Max)),
        RowOp::Min => row.fold(f64::INFINITY, extremum(super::Binary::Min)),
    }
}

/// Rounds x to `dtype` and back.
fn round(x: f64, dtype: DType) -> f64 {
    fn round_through<T: Element>(x: f64) -> f64 {
        T::from_scalar(Scalar::Float(x)).to_scalar().to_f64()
    }
    match dtype {
        DType::Bool => round_through::<bool>(x),
        DType::U8 => round_through::<u8>(x),
        DType::I8 => round_through::<i8>(x),
        DType::I16 => round_through::<i16>(x),
        DType::I32 => round_through::<i32>(x),
        DType::I64 => round_through::<i64>(x),
        DType::F16 => round_through::<half::f16>(x),
        DType::BF16 => round_through::<half::bf16>(x),
        DType::F32 => round_through::<f32>(x),
        DType::F64 => round_through::<f64>(x),
    }
}
