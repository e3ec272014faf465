//! The kernel family [`Scan`]: cumulative reductions along one axis.

use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::{Compute, DType};
use crate::error::{Error, Result};
use smallvec::smallvec;

/// The operator of a [`Scan`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanOp {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Running maximum; a second output holds its indices (the last among equal elements, as in PyTorch).
    Max,
    /// Running minimum; a second output holds its indices (the last among equal elements, as in PyTorch).
    Min,
    /// Running ln Σ exp, numerically stable.
    LogSumExp,
}

impl ScanOp {
    /// Returns the compute type in which sums and products of values of type `value` accumulate.
    ///
    /// `f32` accumulates in `f64`, whose 29 additional bits represent the sum of 2²⁹ equal elements exactly. An `f32`
    /// sum of ones would not grow beyond 2²⁴.
    pub const fn accumulator(value: Compute) -> Compute {
        match value {
            Compute::F32 => Compute::F64,
            other => other,
        }
    }
}

/// `y[i] = op(x[0], .., x[i])` along one axis; with `reverse`, from the last element to the first. If the axis is long,
/// a backend may scan it in consecutive chunks and combine their results. Sums and products accumulate in the type that
/// [`ScanOp::accumulator`] returns; each element of the result is rounded to the dtype of the input once.
///
/// There is one input. The outputs have its shape: the values, in the dtype of the input, and for `Max` and `Min` also
/// the `i64` indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scan {
    /// The operation that is accumulated.
    pub op: ScanOp,
    /// The axis of the scan.
    pub axis: usize,
    /// Whether the scan runs from the last element to the first.
    pub reverse: bool,
}

impl Scan {
    fn has_indices(&self) -> bool {
        matches!(self.op, ScanOp::Max | ScanOp::Min)
    }
}

impl Family for Scan {
    const FAMILY: &'static str = "scan";

    fn info(&self) -> FamilyInfo {
        let outputs = 1 + usize::from(self.has_indices());
        FamilyInfo::new(1, outputs)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let x = inputs[0].clone();
        let indices = Meta { shape: x.shape.clone(), dtype: DType::I64 };
        Ok(if self.has_indices() { smallvec![x, indices] } else { smallvec![x] })
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let (x, y) = (&inputs[0], &outputs[0]);
        let required = 1 + usize::from(self.has_indices());
        if outputs.len() != required {
            return Err(Error::invalid("scan", format!("expected {required} outputs, got {}", outputs.len())));
        }
        if self.axis >= x.shape().rank() {
            return Err(Error::invalid("scan", format!("shape {} has no axis {}", x.shape(), self.axis)));
        }
        if outputs.iter().any(|o| o.shape() != x.shape()) {
            let shapes = [x].into_iter().chain(outputs).map(|o| o.shape());
            return Err(Error::shapes("scan", shapes, "values and indices must have the shape of the input"));
        }
        if y.dtype() != x.dtype() || outputs[1..].iter().any(|indices| indices.dtype() != DType::I64) {
            let dtypes = [x].into_iter().chain(outputs).map(|o| o.dtype());
            return Err(Error::dtypes("scan", dtypes, "values must have the input's dtype, and indices must be i64"));
        }
        let dtype_error = |help: &str| Err(Error::dtypes("scan", [x.dtype()], help));
        match (self.op, x.dtype()) {
            (ScanOp::Sum | ScanOp::Prod, DType::Bool) => dtype_error("convert booleans to integers first"),
            (ScanOp::LogSumExp, d) if !d.is_float() => dtype_error("logcumsumexp requires a floating-point dtype"),
            _ => Ok(()),
        }
    }

    fn flops(&self, _: &[Meta], outputs: &[Meta]) -> u64 {
        outputs.first().map_or(0, Meta::elements)
    }
}
