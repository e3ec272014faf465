//! The kernel family [`MatMul`]: batched matrix products with an epilogue.

use super::family::flops_per_element;
use super::operand::{check_broadcast, dtype_error};
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas, Params, ReadOrder};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::shape::Shape;
use smallvec::smallvec;
use std::hash::Hash;
use std::sync::Arc;

/// `C[.., i, j] = Σₖ A[.., i, k]·B[.., k, j]`, then the epilogue.
///
/// A is `[batch.., m, k]` and B `[batch.., k, n]`, with any strides. The batch axes broadcast. A, B and the product
/// have the same dtype, except for an epilogue that reads the sums of the products of small factors
/// ([`product_dtype`](MatMul::product_dtype)). The order of accumulation depends on m, n and k alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct MatMul {
    /// A program that is applied to the finished accumulator. Its first input is the product; the remaining inputs are
    /// further inputs of the kernel, broadcast to the shape of the output.
    pub epilogue: Option<Arc<Program>>,
    /// The run-time parameters of the epilogue.
    pub params: Params,
}

impl MatMul {
    /// Returns everything except the values of the run-time parameters.
    pub(super) fn structure(&self) -> impl PartialEq + Hash + '_ {
        let MatMul { epilogue, params } = self;
        (epilogue, params.len())
    }

    /// Returns the dtype to which the product is rounded before the epilogue: the dtype of the factors. An epilogue
    /// whose first input is `f32` reads the product of `f16` or `bf16` factors in `f32`, as it was accumulated. In the
    /// same way, an epilogue whose first input is `i32` reads the product of `u8`, `i8` or `i16` factors in `i32`.
    pub fn product_dtype(&self, factors: DType) -> DType {
        let read = self.epilogue.as_ref().and_then(|program| program.inputs.first()).map(|input| input.storage);
        match (factors, read) {
            (DType::F16 | DType::BF16, Some(DType::F32)) => DType::F32,
            (DType::U8 | DType::I8 | DType::I16, Some(DType::I32)) => DType::I32,
            _ => factors,
        }
    }
}

impl Family for MatMul {
    const FAMILY: &'static str = "matmul";

    fn info(&self) -> FamilyInfo {
        // The first input of the epilogue is the product.
        let others = self.epilogue.as_ref().map_or(0, |program| program.inputs.len().saturating_sub(1));
        let outputs = self.epilogue.as_ref().map_or(1, |program| program.outputs.len());
        let reads = ReadOrder::Elementwise { from: 2 };
        FamilyInfo { reads, is_compute_bound: true, ..FamilyInfo::new(2 + others, outputs) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = matmul_shape(&inputs[0].shape, &inputs[1].shape)?;
        Ok(match &self.epilogue {
            None => smallvec![Meta { shape, dtype: inputs[0].dtype }],
            Some(program) => program.outputs.iter().map(|o| Meta { shape: shape.clone(), dtype: o.storage }).collect(),
        })
    }

    /// The epilogue is checked as a map of the product and the other inputs.
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
        let (x, y) = (a.shape(), b.shape());
        if matmul_shape(x, y).ok().as_ref() != Some(out.shape()) {
            let rule = "the product of factors [.., m, k] and [.., k, n] must have the shape [.., m, n]";
            return Err(Error::shapes("matmul", [x, y, out.shape()], rule));
        }
        if a.dtype() == DType::Bool {
            return Err(Error::dtypes("matmul", [a.dtype()], "convert booleans to a numeric dtype first"));
        }
        let mixed = |dtypes: &[DType]| {
            let help = "both factors and the product must have the same dtype";
            Err(Error::dtypes("matmul", dtypes.iter().copied(), help))
        };
        let dtypes = [a.dtype(), b.dtype(), out.dtype()];
        let Some(program) = &self.epilogue else {
            return if dtypes == [a.dtype(); 3] { Ok(()) } else { mixed(&dtypes) };
        };
        if a.dtype() != b.dtype() {
            return mixed(&dtypes[..2]);
        }
        // The first input of the epilogue is the product.
        let others = &inputs[2..];
        let product = [self.product_dtype(a.dtype())];
        let fits = others.len() + 1 == program.inputs.len()
            && outputs.len() == program.outputs.len()
            && product.into_iter().chain(others.iter().map(|o| o.dtype())).eq(program.inputs.iter().map(|l| l.storage))
            && outputs.iter().zip(&program.outputs).all(|(o, s)| o.dtype() == s.storage);
        if !fits {
            return Err(dtype_error(program, inputs, outputs));
        }
        check_broadcast(program.name, others, outputs)
    }

    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        let depth = inputs[0].shape.last().map_or(1, |&k| k as u64);
        let epilogue = self.epilogue.as_ref().map_or(0, |program| flops_per_element(program));
        outputs.first().map_or(0, Meta::elements) * (2 * depth + epilogue)
    }
}

/// Returns the shape of `[batch.., m, k]` times `[batch.., k, n]`.
fn matmul_shape(a: &Shape, b: &Shape) -> Result<Shape> {
    let mismatch = |help: String| Error::shapes("matmul", [a, b], help);
    let (Some(i), Some(j)) = (a.rank().checked_sub(2), b.rank().checked_sub(2)) else {
        return Err(mismatch("both factors must have at least two axes; unsqueeze() adds one".into()));
    };
    let (m, k, k2, n) = (a[i], a[i + 1], b[j], b[j + 1]);
    if k != k2 {
        return Err(mismatch(format!(
            "the last axis of the first operand ({k}) must equal the second-to-last axis of the second operand \
             ({k2}); transpose an operand"
        )));
    }
    let batch = Shape::from(&a[..i]).broadcast(&Shape::from(&b[..j]));
    let batch = batch.ok_or_else(|| {
        mismatch(
            "the batch axes (all but the last two) must have equal lengths or length 1; reshape() or index one operand"
                .into(),
        )
    })?;
    Ok(batch.iter().copied().chain([m, n]).collect())
}
