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

    /// Returns the unit for factors that are rounded to the dtype `half`, if there is one and the device has the unit.
    pub(crate) fn for_rounded(features: KernelFeatures, half: Option<DType>) -> Option<MatrixUnit> {
        half.and_then(|half| MatrixUnit::for_factors(features, [half; 2]))
    }

    /// Returns the suffix of the library functions for the dtype.
    pub(crate) fn suffix(self) -> &'static str {
        if self.factors == DType::BF16 { "bf16" } else { "f16" }
    }
}
