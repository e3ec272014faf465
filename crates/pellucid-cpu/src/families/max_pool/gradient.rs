//! The gradient of max pooling: the gradient of every maximum is added at its position.

use crate::dense::DenseArray;
use crate::element::{ComputeScalar, StorageElement};
use crate::operand::Operand;
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{GRAIN, parallel_ranges};

/// Computes the gradient for operands that the rule of the family accepts. Half precision accumulates in `f32`.
///
/// # Errors
/// Returns an error if memory cannot be allocated.
pub(super) fn compute_gradient(g: &Operand<'_>, positions: &Operand<'_>, out: &Operand<'_>) -> Result<()> {
    if out.shape().size() == 0 {
        return Ok(());
    }
    let wide = if out.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (g, positions) = (DenseArray::of_input(g, wide)?, DenseArray::of_input(positions, DType::I64)?);
    let sums = DenseArray::of_output(out, wide)?;
    match wide {
        DType::F64 => add_planes::<f64>(&g, &positions, &sums),
        _ => add_planes::<f32>(&g, &positions, &sums),
    }
    sums.store()
}

/// Computes the gradients of all planes. `T` is the type of the elements of `g` and `sums`.
fn add_planes<T: StorageElement<Compute = T> + ComputeScalar + Default>(
    g: &DenseArray<'_>,
    positions: &DenseArray<'_>,
    sums: &DenseArray<'_>,
) {
    let plane = |array: &DenseArray<'_>| array.operand().shape().iter().rev().take(3).product::<usize>();
    let (windows, elements) = (plane(g), plane(sums));
    let planes = sums.operand().shape().size() / elements;
    let (g, positions, sums) = (g.first::<T>(), positions.first::<i64>(), sums.first::<T>());
    let work = (windows + elements) * size_of::<T>();
    parallel_ranges(planes, GRAIN / work + 1, |range| {
        for p in range {
            // SAFETY: every array is contiguous and has `planes` planes of its length, and all its elements are in its
            // buffer: the rule of the family has compared the shapes. Plane p of the sums is written by this task
            // alone, the output overlaps no input, and no thread writes an input.
            let (g, positions, sums) = unsafe {
                (
                    std::slice::from_raw_parts(g.get().add(p * windows), windows),
                    std::slice::from_raw_parts(positions.get().add(p * windows), windows),
                    std::slice::from_raw_parts_mut(sums.get().add(p * elements), elements),
                )
            };
            sums.fill(T::default());
            for (g, &position) in g.iter().zip(positions) {
                let sum = usize::try_from(position).ok().and_then(|position| sums.get_mut(position));
                debug_assert!(sum.is_some(), "position {position} must be in a plane of {elements} elements");
                if let Some(sum) = sum {
                    *sum = sum.plus(*g);
                }
            }
        }
    });
}
