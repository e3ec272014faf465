//! The kernel families that this backend implements, one module each. `shared` contains code that several families use.
//! All other kernels are [`Support::Fallback`].

mod attention;
mod conv;
mod copy;
mod gather;
mod map;
mod matmul;
mod max_pool;
mod random;
mod recurrent;
mod reduce;
mod row;
mod scan;
mod scatter;
mod search;
mod shared;
mod sort;
mod sparse;
#[cfg(test)]
mod texts;

use crate::api::ComputeApi;
use crate::description::{KernelDescription, description_digest};
use crate::dispatch_list::DispatchList;
use crate::gpu::{DispatchLimits, Gpu};
use crate::operand::{DeviceArray, DeviceOperands, is_addressable};
use pellucid_ir::backend::{OperandMeta, Support};
use pellucid_ir::kernel::{Factorization, Kernel};
use pellucid_ir::{Error, Result, lock, with_family};
use std::sync::Arc;

/// The implementation of a kernel family.
pub(crate) trait GpuFamily {
    /// Returns true if shaders can compute the kernel.
    fn is_supported(&self) -> bool {
        true
    }

    /// Returns true if shaders can compute a supported kernel with these operands, which the rule of the family
    /// accepts.
    fn supports_operands(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let _ = (inputs, outputs);
        true
    }

    /// Returns the maximum number of scratch buffers that a dispatch binds in addition to all operands. A family that
    /// runs in several stages binds one.
    fn scratch_bindings(&self) -> usize {
        1
    }

    /// Returns an estimate of the loop iterations of one invocation, for families that do not divide all long loops.
    /// Zero means that no loop is long. The rule of the family must have accepted the operands.
    fn iterations(&self, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> usize {
        let _ = (inputs, outputs);
        0
    }

    /// Adds the dispatches of the kernel to a list. The rule of the family must have accepted the operands.
    ///
    /// The dispatches may depend on everything except the values of run-time parameters.
    fn describe(&self, list: &mut DispatchList<'_>, operands: &DeviceOperands<'_>) -> Result<()>;
}

/// The reason in the error of a kernel that has no shaders.
const NO_KERNEL: &str = "the device has no kernel for these operands; run the operation on the CPU";

/// The CPU computes all factorizations.
impl GpuFamily for Factorization {
    fn is_supported(&self) -> bool {
        false
    }

    fn describe(&self, _: &mut DispatchList<'_>, _: &DeviceOperands<'_>) -> Result<()> {
        Err(Error::invalid(self.name(), NO_KERNEL))
    }
}

/// Returns the implementation of a kernel's family.
fn implementation(kernel: &Kernel) -> &dyn GpuFamily {
    with_family!(kernel, family => family)
}

impl DispatchLimits {
    /// Returns true if shaders within these limits can compute a kernel with operands that the rule of its family
    /// accepts.
    pub(crate) fn are_met(self, kernel: &Kernel, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> bool {
        let family = implementation(kernel);
        family.is_supported()
            && inputs.len() + outputs.len() + family.scratch_bindings() <= self.bindings
            && inputs.iter().chain(outputs).all(|operand| is_addressable(operand.layout, operand.dtype))
            && family.supports_operands(inputs, outputs)
            && family.iterations(inputs, outputs) <= self.iterations
    }

    /// Returns how a device with these limits runs a kernel. The answer for operands that the rule of the family
    /// rejects depends on the kernel alone, so that running it returns the error of the rule.
    pub(crate) fn support(self, kernel: &Kernel, inputs: &[OperandMeta<'_>], outputs: &[OperandMeta<'_>]) -> Support {
        let is_native = match kernel.check(inputs, outputs) {
            Ok(()) => self.are_met(kernel, inputs, outputs),
            Err(_) => implementation(kernel).is_supported(),
        };
        if is_native { Support::Native } else { Support::Fallback }
    }
}

/// Returns the dispatches of a kernel that is not cached.
///
/// # Errors
/// Returns an error if the kernel is not [`Support::Native`], if the operands do not match the kernel, or if a shader
/// does not compile.
fn describe_new<'a, A: ComputeApi>(
    gpu: &Gpu<A>,
    kernel: &Kernel,
    operands: &DeviceOperands<'a>,
) -> Result<KernelDescription<A>> {
    let metas = |arrays: &[DeviceArray<'a>]| -> Vec<OperandMeta<'a>> {
        arrays.iter().map(|array| OperandMeta { layout: array.layout, dtype: array.dtype }).collect()
    };
    let (inputs, outputs) = (metas(&operands.inputs), metas(&operands.outputs));
    if !gpu.dispatch_limits().are_met(kernel, &inputs, &outputs) {
        return Err(Error::invalid(kernel.name(), NO_KERNEL));
    }
    let mut list = DispatchList::new(gpu.features(), &gpu.operations);
    implementation(kernel).describe(&mut list, operands)?;
    gpu.compile(list, operands)
}

/// Returns the dispatches of a kernel. Descriptions are cached.
///
/// # Errors
/// Returns an error if the kernel is not [`Support::Native`], if the operands do not match the kernel, or if a shader
/// does not compile.
pub(crate) fn describe_kernel<A: ComputeApi>(
    gpu: &Gpu<A>,
    kernel: &Kernel,
    operands: &DeviceOperands<'_>,
) -> Result<Arc<KernelDescription<A>>> {
    let digest = description_digest(kernel, operands);
    if let Some(cached) = lock(&gpu.descriptions).get(digest, kernel, operands) {
        return Ok(cached);
    }
    let description = Arc::new(describe_new(gpu, kernel, operands)?);
    lock(&gpu.descriptions).insert(digest, kernel, operands, description.clone());
    Ok(description)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand::UncheckedOperand;
    use crate::shader::{KernelFeatures, MAX_ITERATIONS};
    use crate::status::CheckedOperations;
    use pellucid_ir::formula::{Binary, InstructionOperand, Load, Op, Program, Step, Store};
    use pellucid_ir::kernel::{
        Attention, AttentionPart, AxisSet, Gather, Index, Map, Recurrent, RecurrentPart, Reduce, ReduceOp, RnnMode,
        Scan, ScanOp, Sort,
    };
    use pellucid_ir::{Compute, DType, Layout, Shape};

    /// Limits with the loop limit of a device that terminates long loops, such as llvmpipe.
    const LIMITS: DispatchLimits = DispatchLimits { bindings: 8, iterations: MAX_ITERATIONS };

    /// Describes a kernel without a device, for operands of `f32` that its rule may reject. Returns the error.
    fn describe_error(kernel: &Kernel, inputs: &[&[usize]], outputs: &[&[usize]]) -> String {
        let layouts: Vec<Layout> = inputs
            .iter()
            .chain(outputs)
            .map(|shape| Layout::contiguous(Shape::from_iter(shape.iter().copied())))
            .collect();
        let unchecked = layouts.iter().enumerate().map(|(identity, layout)| UncheckedOperand {
            identity,
            bytes: 4 * layout.shape().size(),
            layout,
            dtype: DType::F32,
        });
        let operands = DeviceOperands::new(kernel, &unchecked.collect::<Vec<_>>(), inputs.len()).unwrap();
        let operations = CheckedOperations::default();
        let mut list = DispatchList::new(KernelFeatures::default(), &operations);
        implementation(kernel).describe(&mut list, &operands).expect_err("the kernel must be rejected").to_string()
    }

    #[test]
    fn shapes_without_sizes_are_errors() {
        let attention =
            Attention { causal: false, masked: false, scale: 1.0, half_factors: None, part: AttentionPart::Result };
        let (three_heads, two_heads): (&[usize], &[usize]) = (&[1, 3, 4, 8], &[1, 2, 4, 8]);
        let inputs = [three_heads, two_heads, two_heads];
        let error = describe_error(&Kernel::Attention(attention), &inputs, &[three_heads, &[1, 3, 4]]);
        assert!(error.contains("attention") && error.contains("must be [N, H, L, E]"), "{error}");

        let recurrent = Recurrent {
            op: "rnn_tanh",
            cell: RnnMode::Tanh,
            reverse: false,
            projected: false,
            lengths: false,
            half_factors: None,
            part: RecurrentPart::States,
        };
        let inputs: [&[usize]; 4] = [&[2, 3, 4], &[4, 5], &[4], &[3, 4]];
        let error = describe_error(&Kernel::Recurrent(recurrent), &inputs, &[&[2, 3, 4], &[3, 3, 4]]);
        assert!(error.contains("rnn_tanh") && error.contains("do not match the cell"), "{error}");
    }

    /// Returns the program that adds two inputs of `f32`.
    fn sum_program() -> Program {
        let (compute, into) = (Compute::F32, InstructionOperand::Register(0));
        let load = Load { storage: DType::F32, compute, per_row: false };
        let args = (0..2).map(InstructionOperand::Input).collect();
        let step = Step { op: Op::Binary(Binary::Add), compute, into, args };
        let store = Store { value: into, compute, storage: DType::F32, per_row: false };
        Program::new("sum", vec![load; 2], vec![], vec![step], (vec![compute], vec![]), vec![store])
    }

    /// Returns the kernel that adds two matrices and sums all elements of the result.
    fn sum_of_sums() -> Kernel {
        Kernel::Reduce(Reduce {
            op: ReduceOp::Sum,
            axes: AxisSet::all(2),
            program: sum_program().into(),
            params: Default::default(),
            finish: None,
            finish_params: Default::default(),
            output: DType::F32,
        })
    }

    #[test]
    fn a_map_may_bind_all_buffers_of_a_dispatch_and_a_reduction_one_less() {
        let (matrix, one) = (Layout::contiguous([2, 3].into()), Layout::contiguous([1, 1].into()));
        let meta = |layout| OperandMeta { layout, dtype: DType::F32 };
        let map = Kernel::Map(Map { program: sum_program().into(), params: Default::default() });
        let is_native = |kernel: &Kernel, output, bindings| {
            let limits = DispatchLimits { bindings, ..LIMITS };
            limits.support(kernel, &[meta(&matrix), meta(&matrix)], &[meta(output)]) == Support::Native
        };
        assert_eq!([2, 3].map(|bindings| is_native(&map, &matrix, bindings)), [false, true]);
        assert_eq!([3, 4].map(|bindings| is_native(&sum_of_sums(), &one, bindings)), [false, true]);
    }

    #[test]
    fn kernels_whose_elements_shaders_cannot_count_have_no_shaders() {
        let sum_of_sums = sum_of_sums();
        let f32 = |shape: &[usize]| (Layout::contiguous(Shape::from_iter(shape.iter().copied())), DType::F32);
        let typed = |shape: &[usize], dtype| (f32(shape).0, dtype);
        let is_native = |kernel: &Kernel, inputs: &[(Layout, DType)], outputs: &[(Layout, DType)]| {
            let [inputs, outputs] = [inputs, outputs].map(|operands| {
                operands.iter().map(|(layout, dtype)| OperandMeta { layout, dtype: *dtype }).collect::<Vec<_>>()
            });
            kernel.check(&inputs, &outputs).expect("the rule must accept the operands");
            LIMITS.are_met(kernel, &inputs, &outputs)
        };
        let rows = |count| [f32(&[count, 1]), f32(&[1, 1 << 15])];
        assert!(is_native(&sum_of_sums, &rows(1 << 10), &[f32(&[1, 1])]));
        assert!(!is_native(&sum_of_sums, &rows(1 << 16), &[f32(&[1, 1])]));
        let sort = Kernel::Sort(Sort { axis: 0, k: 1, descending: false });
        let sorted = [typed(&[1], DType::U8), typed(&[1], DType::I64)];
        assert!(is_native(&sort, &[typed(&[1 << 30], DType::U8)], &sorted));
        assert!(!is_native(&sort, &[typed(&[(1 << 30) + 1], DType::U8)], &sorted));
        let copy = |len: usize| is_native(&Kernel::Copy, &[f32(&[len])], &[f32(&[len])]);
        assert_eq!([(1 << 31) - 1, 1 << 31].map(copy), [true, false]);
        // The error of an index contains the length of the axis, even if the array is empty.
        let index = Index::Axes([1].into_iter().collect());
        let gather = Kernel::Gather(Gather { op: "gather", from_end: true, index });
        let gathers = |len| is_native(&gather, &[f32(&[0, len]), typed(&[3], DType::I64)], &[f32(&[3, 0])]);
        assert_eq!([5, 1 << 40].map(gathers), [true, false]);
    }

    #[test]
    fn the_answer_without_operands_depends_on_the_kernel_alone() {
        let attention =
            Attention { causal: false, masked: false, scale: 1.0, half_factors: None, part: AttentionPart::Result };
        let scan = Scan { op: ScanOp::Sum, axis: 3, reverse: false };
        for kernel in [Kernel::Attention(attention), Kernel::Scan(scan)] {
            assert_eq!(LIMITS.support(&kernel, &[], &[]), Support::Native);
        }
    }
}
