//! Operands of binary operations: tensors or scalars.

use crate::ops::formula::map_reusing;
use crate::ops::primitive::fill::full;
use crate::tensor::Tensor;
use pellucid_ir::formula::LazyFormula;
use pellucid_ir::{DType, Result, Scalar, bf16, f16};

/// An operand of a binary operation.
#[derive(Debug)]
pub enum TensorOrScalar<'a> {
    /// A tensor that the caller keeps. The result never reuses its storage.
    Borrowed(&'a Tensor),
    /// A tensor that the caller passes by value. If no other handle shares its storage, the result may reuse it.
    Owned(Tensor),
    /// A tensor that the result replaces, as in `+=`. If no other handle shares its storage, the result may reuse it.
    Replaced(&'a mut Tensor),
    /// A scalar, which the kernel reads as a parameter.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for TensorOrScalar<'a> {
    fn from(tensor: &'a Tensor) -> TensorOrScalar<'a> {
        TensorOrScalar::Borrowed(tensor)
    }
}

impl From<Tensor> for TensorOrScalar<'_> {
    fn from(tensor: Tensor) -> Self {
        TensorOrScalar::Owned(tensor)
    }
}

macro_rules! operand_from {
    ($($t:ty),*) => {$(
        impl From<$t> for TensorOrScalar<'_> {
            fn from(value: $t) -> Self {
                TensorOrScalar::Scalar(value.into())
            }
        }
    )*};
}
operand_from!(Scalar, f64, f32, f16, bf16, i64, i32, i16, i8, u8, usize, bool);

impl TensorOrScalar<'_> {
    /// Returns the tensor, or the result of `from_scalar`.
    pub(crate) fn tensor_or_else(self, from_scalar: impl FnOnce(Scalar) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            TensorOrScalar::Borrowed(tensor) => Ok(tensor.clone()),
            TensorOrScalar::Owned(tensor) => Ok(tensor),
            TensorOrScalar::Replaced(tensor) => Ok(tensor.clone()),
            TensorOrScalar::Scalar(number) => from_scalar(number),
        }
    }

    pub(super) fn tensor(&self) -> Option<&Tensor> {
        match self {
            TensorOrScalar::Borrowed(tensor) => Some(tensor),
            TensorOrScalar::Owned(tensor) => Some(tensor),
            TensorOrScalar::Replaced(tensor) => Some(tensor),
            TensorOrScalar::Scalar(_) => None,
        }
    }

    /// Returns the tensor of an operand that is not a scalar.
    pub(super) fn expect_tensor(&self) -> &Tensor {
        self.tensor().expect("the operand must be a tensor, not a scalar")
    }

    /// Returns true if the result may overwrite this operand.
    fn is_reusable(&self) -> bool {
        match self {
            TensorOrScalar::Owned(tensor) => tensor.is_unique(),
            TensorOrScalar::Replaced(tensor) => tensor.is_unique(),
            TensorOrScalar::Borrowed(_) | TensorOrScalar::Scalar(_) => false,
        }
    }
}

/// The variants of a binary formula: two tensors, a scalar on the right, a scalar on the left.
pub(super) struct BinaryForms {
    pub(super) tensors: LazyFormula,
    pub(super) right: LazyFormula,
    pub(super) left: LazyFormula,
    /// Simpler formulas of a float tensor for some values of a scalar on the right.
    pub(super) simple: &'static [(f64, LazyFormula)],
}

impl BinaryForms {
    /// Applies the operation to a tensor and a scalar on the right.
    fn apply_right(&'static self, x: &Tensor, scalar: Scalar, reuse: Option<usize>) -> Result<Tensor> {
        let value = x.dtype().is_float().then(|| scalar.to_f64());
        match self.simple.iter().find(|(of, _)| Some(*of) == value) {
            Some((_, formula)) => map_reusing(formula.get(), &[x], &[], reuse),
            None => map_reusing(self.right.get(), &[x], &[scalar], reuse),
        }
    }
}

/// Applies the variant that fits the operands. The function is not generic, so that it is compiled only once.
pub(super) fn apply_binary<'a>(
    a: TensorOrScalar<'a>,
    b: TensorOrScalar<'a>,
    forms: &'static BinaryForms,
) -> Result<Tensor> {
    let reusable = |x: &TensorOrScalar<'_>, i: usize| x.is_reusable().then_some(i);
    match (&a, &b) {
        (TensorOrScalar::Scalar(x), TensorOrScalar::Scalar(y)) => {
            let x = full((), *x, x.promote_into(DType::Bool))?;
            forms.apply_right(&x, *y, None)
        }
        (x, TensorOrScalar::Scalar(k)) => forms.apply_right(x.expect_tensor(), *k, reusable(x, 0)),
        (TensorOrScalar::Scalar(k), y) => map_reusing(forms.left.get(), &[y.expect_tensor()], &[*k], reusable(y, 0)),
        (x, y) => {
            let operands = [x.expect_tensor(), y.expect_tensor()];
            map_reusing(forms.tensors.get(), &operands, &[], reusable(x, 0).or(reusable(y, 1)))
        }
    }
}
