//! Shape rules: shape and dtype of the outputs of every kernel family.

use super::{Index, Kernel, Meta, ReduceOp, ScanOp};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use smallvec::{SmallVec, smallvec};

/// Shapes and dtypes of the outputs of a kernel, usually one.
pub type Metas = SmallVec<[Meta; 2]>;

impl Kernel {
    /// Returns shape and dtype of every output for these inputs.
    ///
    /// The caller chooses the shapes of the outputs of `Scatter`, `Random`, `Conv` and `Pool`; for these the list is
    /// empty.
    ///
    /// # Errors
    /// If shapes or dtypes of the inputs do not fit the family.
    pub fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let op = self.name();
        let one = |shape, dtype| -> Result<Metas> { Ok(smallvec![Meta { shape, dtype }]) };
        match self {
            Kernel::Map(k) => {
                let shape = broadcast(op, inputs)?;
                Ok(k.program.outputs.iter().map(|o| Meta { shape: shape.clone(), dtype: o.storage }).collect())
            }
            Kernel::Reduce(k) => {
                let shape = broadcast(op, inputs)?;
                let needs_one = matches!(k.op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin);
                if needs_one && k.axes.count(&shape) == 0 && k.axes.keepdims(&shape).size() != 0 {
                    return Err(Error::invalid(op, format!("no extremum over zero elements of shape {shape}")));
                }
                one(k.axes.keepdims(&shape), k.output)
            }
            Kernel::Row(k) => {
                let shape = broadcast(op, inputs)?;
                let of = |per_row| if per_row { k.axes.keepdims(&shape) } else { shape.clone() };
                Ok(k.program.outputs.iter().map(|o| Meta { shape: of(o.per_row), dtype: o.storage }).collect())
            }
            Kernel::Scan(k) => {
                let x = inputs[0].clone();
                let positions = Meta { shape: x.shape.clone(), dtype: DType::I64 };
                Ok(match k.op {
                    ScanOp::Max | ScanOp::Min => smallvec![x, positions],
                    _ => smallvec![x],
                })
            }
            Kernel::MatMul(k) => {
                let shape = matmul_shape(&inputs[0].shape, &inputs[1].shape)?;
                match &k.epilogue {
                    None => one(shape, inputs[0].dtype),
                    Some(program) => {
                        Ok(program.outputs.iter().map(|o| Meta { shape: shape.clone(), dtype: o.storage }).collect())
                    }
                }
            }
            Kernel::Gather(k) => one(k.index.shape(&inputs[0].shape, &inputs[1].shape), inputs[0].dtype),
            Kernel::Sort(k) => {
                let shape = inputs[0].shape.with_axis(k.axis, k.k);
                Ok(smallvec![Meta { shape: shape.clone(), dtype: inputs[0].dtype }, Meta { shape, dtype: DType::I64 }])
            }
            Kernel::Factor(k) => k.infer(inputs),
            Kernel::Recurrent(k) => k.infer(inputs),
            Kernel::Attention(k) => k.infer(inputs),
            Kernel::Copy => Ok(smallvec![inputs[0].clone()]),
            Kernel::Scatter(_) | Kernel::Random(_) | Kernel::Conv(_) | Kernel::Pool(_) => Ok(Metas::new()),
        }
    }
}

impl Index {
    /// Returns the shape of `x[index]` for x of shape `array` and index tensors of shape `index`.
    pub fn shape(&self, array: &Shape, index: &Shape) -> Shape {
        match self {
            Index::Axes(axes) => {
                let rest = (0..array.rank()).filter(|a| !axes.contains(a)).map(|a| array[a]);
                index.iter().copied().chain(rest).collect()
            }
            Index::Along(_) => index.clone(),
        }
    }
}

/// Returns the shape of `[batch.., m, k]` times `[batch.., k, n]`, both of rank 2 or more.
fn matmul_shape(a: &Shape, b: &Shape) -> Result<Shape> {
    let mismatch = |help: String| Error::shapes("matmul", [a, b], help);
    let (i, j) = (a.rank() - 2, b.rank() - 2);
    let (m, k, k2, n) = (a[i], a[i + 1], b[j], b[j + 1]);
    if k != k2 {
        return Err(mismatch(format!(
            "the last axis of the first ({k}) must equal the last but one of the second ({k2}); transpose one of them?"
        )));
    }
    let batch = Shape::from(&a[..i]).broadcast(&Shape::from(&b[..j]));
    let batch = batch.ok_or_else(|| mismatch("the axes before the last two must be equal or 1".into()))?;
    Ok(batch.iter().copied().chain([m, n]).collect())
}

pub(super) fn broadcast(op: &'static str, inputs: &[Meta]) -> Result<Shape> {
    let mut shape = inputs.first().map_or(Shape::scalar(), |m| m.shape.clone());
    for input in inputs.iter().skip(1) {
        shape = shape.broadcast(&input.shape).ok_or_else(|| {
            let help = "aligned at the last axis, lengths must be equal or 1; reshape or unsqueeze one of them";
            Error::shapes(op, inputs.iter().map(|m| &m.shape), help)
        })?;
    }
    Ok(shape)
}
