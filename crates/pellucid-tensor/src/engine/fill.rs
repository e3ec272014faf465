//! Arrays filled with one value.

use super::{ExecutionMode, map_dense, mode, submit};
use crate::array::{Array, checked_size};
use crate::device::Device;
use pellucid_ir::kernel::{Kernel, Map, Params};
use pellucid_ir::{DType, Element, Result, Scalar, Shape, formula};

impl Array {
    /// Returns an array with every element equal to `value`.
    pub(crate) fn filled(device: Device, dtype: DType, shape: Shape, value: Scalar) -> Result<Array> {
        let eager = mode() == ExecutionMode::Eager;
        // A scalar is created without a kernel, because every backward pass starts with the scalar 1.
        if eager && !device.is_deferred() && shape.checked_size() == Some(1) {
            match dtype {
                DType::F32 => {
                    return Array::from_bytes(device, dtype, bytemuck::bytes_of(&f32::from_scalar(value)), shape);
                }
                DType::F64 => {
                    return Array::from_bytes(device, dtype, bytemuck::bytes_of(&f64::from_scalar(value)), shape);
                }
                _ => {}
            }
        }
        // The fill of a boolean array computes the mask value ≠ 0.
        let formula = match dtype {
            DType::Bool => formula! { static fill(; value) = value.ne(0); },
            _ => formula! { static fill(; value) = value; },
        };
        let value_dtype = if dtype == DType::Bool { DType::F32 } else { dtype };
        let (program, params) = (formula.uniform_program(value_dtype)?, Params::from([value]));
        if eager && device.is_cpu() {
            let storage = map_dense(device, program, &params, checked_size(&shape)?, &[], None);
            let storage = storage.map_err(|error| error.with_shape(&shape))?;
            return Ok(Array::dense(storage, 0, dtype, shape, device));
        }
        let out = Array::new(device, dtype, shape)?;
        submit(&Kernel::Map(Map { program: program.clone(), params }), &[], &[&out])?;
        Ok(out)
    }
}
