//! [`DispatchList`]: the dispatches of a kernel while its family describes it.

use crate::description::{DispatchDescription, KernelDescription};
use crate::gpu::Gpu;
use crate::operand::{BufferRef, DeviceOperands};
use crate::shader::parameters::Parameters;
use crate::shader::{ShaderBuilder, ShaderFeatures};
use crate::submission::PARAMETER_BYTES;
use pellucid_ir::{Error, Result};

/// The dispatches of a kernel while a family adds them.
pub(crate) struct DispatchList<'a> {
    gpu: &'a Gpu,
    description: KernelDescription,
}

impl<'a> DispatchList<'a> {
    /// Creates an empty list.
    pub(crate) fn new(gpu: &'a Gpu) -> DispatchList<'a> {
        DispatchList { gpu, description: KernelDescription::default() }
    }

    /// Returns the properties of the adapter that change the text of shaders.
    pub(crate) fn features(&self) -> ShaderFeatures {
        self.gpu.shader_features()
    }

    /// Adds a scratch buffer of at least `bytes` bytes. Its contents are undefined before the first dispatch writes it.
    pub(crate) fn scratch(&mut self, bytes: usize) -> BufferRef {
        self.description.scratch.push(bytes);
        BufferRef::Scratch(self.description.scratch.len() - 1)
    }

    /// Adds one dispatch of `groups` workgroups. The words 0 and 1 of the parameters are the number of work items and
    /// 0; the buffers are the shader's bindings, in order.
    ///
    /// # Errors
    /// If the shader does not compile, or the dispatch exceeds a limit of the adapter.
    pub(crate) fn dispatch(
        &mut self,
        op: &'static str,
        shader: ShaderBuilder,
        parameters: Parameters,
        buffers: &[BufferRef],
        groups: usize,
    ) -> Result<()> {
        let axis = self.gpu.graphics.max_groups();
        let [x, y] = [groups.min(axis), groups.div_ceil(axis)];
        let bytes = parameters.bytes();
        if y > axis || bytes > PARAMETER_BYTES {
            let reason =
                format!("{groups} workgroups with {bytes} bytes of parameters exceed the limits of the adapter");
            return Err(Error::invalid(op, reason));
        }
        let shader = self.gpu.compiler.compile(&self.gpu.graphics, op, shader, self.features())?;
        let (buffers, groups) = (buffers.to_vec(), [x as u32, y as u32]);
        self.description.dispatches.push(DispatchDescription { shader, parameters, buffers, groups });
        Ok(())
    }

    /// Returns the number of dispatches.
    pub(crate) fn len(&self) -> usize {
        self.description.dispatches.len()
    }

    /// Adds dispatch `index` again with other parameters.
    pub(crate) fn repeat(&mut self, index: usize, parameters: Parameters) {
        let dispatch = &self.description.dispatches[index];
        let (shader, buffers, groups) = (dispatch.shader.clone(), dispatch.buffers.clone(), dispatch.groups);
        self.description.dispatches.push(DispatchDescription { shader, parameters, buffers, groups });
    }

    /// Counts a check, whose dispatches may set the status word, and returns the number of its operation.
    pub(crate) fn count_check(&mut self, op: &'static str) -> u32 {
        self.description.checks += 1;
        self.gpu.status.operation_number(op)
    }

    /// Counts the bytes that the dispatches read and write. `operands` are the operands of the kernel.
    pub(crate) fn count_bytes(&mut self, operands: &DeviceOperands<'_>) {
        let operand_bytes = |buffer: BufferRef| -> usize {
            let bound = operands.all().filter(|array| array.buffer == buffer);
            bound.map(|array| array.layout.touched() * array.dtype.size()).sum()
        };
        let bytes = |buffer: &BufferRef| match *buffer {
            BufferRef::Operand(_) => operand_bytes(*buffer),
            BufferRef::Scratch(k) => self.description.scratch[k],
        };
        self.description.bytes = self.description.dispatches.iter().flat_map(|d| &d.buffers).map(bytes).sum();
    }

    /// Returns the description.
    pub(crate) fn finish(self) -> KernelDescription {
        self.description
    }
}
