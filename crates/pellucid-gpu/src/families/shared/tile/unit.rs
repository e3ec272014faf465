//! [`MatrixUnit`]: whether a product uses matrix units.

use crate::shader::KernelFeatures;
use pellucid_ir::DType;

/// The multiplication of factors of one half-precision dtype by matrix units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatrixUnit {
    factors: DType,
}

impl MatrixUnit {
    /// Returns the unit for factors of these dtypes, if the device has it.
    pub(crate) fn for_factors(features: KernelFeatures, factors: [DType; 2]) -> Option<MatrixUnit> {
        let is_half = matches!(factors[0], DType::F16 | DType::BF16);
        (features.matrix_units && is_half && factors[0] == factors[1]).then_some(MatrixUnit { factors: factors[0] })
    }

    /// Returns the unit for factors that are rounded to `bf16`, if the device has it.
    pub(crate) fn for_bf16(features: KernelFeatures, has_bf16_factors: bool) -> Option<MatrixUnit> {
        (features.matrix_units && has_bf16_factors).then_some(MatrixUnit { factors: DType::BF16 })
    }

    /// Returns the suffix of the library functions for the dtype.
    pub(crate) fn suffix(self) -> &'static str {
        if self.factors == DType::BF16 { "bf16" } else { "f16" }
    }
}
