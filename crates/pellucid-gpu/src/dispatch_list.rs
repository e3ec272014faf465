//! [`DispatchList`]: the dispatches of a kernel while its family describes it.

use crate::api::{ComputeApi, DeviceLimits, LibraryProduct, PARAMETER_BYTES};
use crate::description::{DispatchDescription, KernelDescription};
use crate::operand::DeviceOperands;
use crate::shader::{BufferRef, KernelFeatures, KernelSource, Parameters, ShaderBuilder};
use crate::status::CheckedOperations;
use pellucid_ir::{Error, Result};
use std::sync::Arc;

/// The dispatches of a kernel while a family adds them. Their texts are not compiled yet, so no device is needed.
pub(crate) struct DispatchList<'a> {
    /// The properties of the device on which the text of kernels depends.
    pub(crate) features: KernelFeatures,
    operations: &'a CheckedOperations,
    /// The shaders with the names of their operations.
    shaders: Vec<(&'static str, ShaderBuilder)>,
    /// The products of libraries that replace shaders, with the buffers of A, B and C.
    products: Vec<(ShaderIndex, LibraryProduct, [BufferRef; 3])>,
    /// The shader and the parameters of every dispatch.
    dispatches: Vec<(ShaderIndex, Parameters)>,
    /// The sizes of the scratch buffers.
    scratch: Vec<usize>,
    checks: u32,
}

/// The index of a shader in a [`DispatchList`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShaderIndex(usize);

impl<'a> DispatchList<'a> {
    /// Creates an empty list. `operations` numbers the operations whose checks can fail.
    pub(crate) fn new(features: KernelFeatures, operations: &'a CheckedOperations) -> DispatchList<'a> {
        let (shaders, products, dispatches, scratch) = Default::default();
        DispatchList { features, operations, shaders, products, dispatches, scratch, checks: 0 }
    }

    /// Adds a scratch buffer of at least `bytes` bytes. Its contents are undefined before the first dispatch writes it.
    pub(crate) fn scratch(&mut self, bytes: usize) -> BufferRef {
        self.scratch.push(bytes);
        BufferRef::Scratch(self.scratch.len() - 1)
    }

    /// Adds a dispatch. Returns its shader, which [`repeat`](DispatchList::repeat) runs again.
    pub(crate) fn dispatch(&mut self, op: &'static str, shader: ShaderBuilder) -> ShaderIndex {
        let index = ShaderIndex(self.shaders.len());
        self.dispatches.push((index, shader.parameters.clone()));
        self.shaders.push((op, shader));
        index
    }

    /// Adds a product that a library computes, or else the shader. `buffers` are the buffers of A, B and C.
    pub(crate) fn dispatch_product(
        &mut self,
        op: &'static str,
        shader: ShaderBuilder,
        (product, buffers): (LibraryProduct, [BufferRef; 3]),
    ) {
        let index = self.dispatch(op, shader);
        self.products.push((index, product, buffers));
    }

    /// Adds a dispatch of a shader again, with other values of its parameters.
    pub(crate) fn repeat(&mut self, shader: ShaderIndex, parameters: Parameters) {
        self.dispatches.push((shader, parameters));
    }

    /// Returns the number of dispatches.
    #[cfg(test)]
    pub(crate) fn dispatch_count(&self) -> usize {
        self.dispatches.len()
    }

    /// Iterates over the dispatches: the operation, the shader and the parameters.
    #[cfg(test)]
    pub(crate) fn described(&self) -> impl Iterator<Item = (&'static str, &ShaderBuilder, &Parameters)> {
        self.dispatches.iter().map(|(ShaderIndex(index), parameters)| {
            let (op, shader) = &self.shaders[*index];
            (*op, shader, parameters)
        })
    }

    /// Returns the sizes of the scratch buffers in bytes.
    #[cfg(test)]
    pub(crate) fn scratch_sizes(&self) -> &[usize] {
        &self.scratch
    }

    /// Returns the number of checks.
    #[cfg(test)]
    pub(crate) fn check_count(&self) -> u32 {
        self.checks
    }

    /// Counts a check, whose dispatches may set the status word, and returns the number of its operation.
    pub(crate) fn count_check(&mut self, op: &'static str) -> u32 {
        self.checks += 1;
        self.operations.number(op)
    }

    /// Compiles the kernels and returns the description. `operands` are the operands of the kernel. `compile` returns
    /// the compiled form of a text, and `find_product` the work of a library and the size of its workspace.
    ///
    /// # Errors
    /// Returns an error if a text does not compile, or if a dispatch exceeds a limit of the device.
    pub(crate) fn compile<A: ComputeApi>(
        mut self,
        limits: DeviceLimits,
        operands: &DeviceOperands<'_>,
        compile: impl Fn(&'static str, &KernelSource<'_>) -> Result<Arc<A::Kernel>>,
        find_product: impl Fn(&'static str, &LibraryProduct) -> Result<Option<(A::Kernel, usize)>>,
    ) -> Result<KernelDescription<A>> {
        let axis = limits.groups;
        let compile = |op: &'static str, shader: &ShaderBuilder| {
            let (groups, parameters, buffers) = (shader.groups, shader.parameters.bytes(), shader.buffers().len());
            if groups.div_ceil(axis) > axis || parameters > PARAMETER_BYTES || buffers > limits.bindings {
                let reason = format!(
                    "{groups} workgroups with {parameters} bytes of parameters and {buffers} buffers exceed the limits \
                     of the device; run the operation on the CPU"
                );
                return Err(Error::invalid(op, reason));
            }
            compile(op, &shader.source(self.features))
        };
        let mut compiled = Vec::with_capacity(self.shaders.len());
        for (index, &(op, ref shader)) in self.shaders.iter().enumerate() {
            let product = self.products.iter().find(|(replaced, ..)| replaced.0 == index);
            let found = product.map(|(_, problem, _)| find_product(op, problem)).transpose()?.flatten();
            compiled.push(match (product, found) {
                (Some((_, _, [a, b, c])), Some((kernel, workspace))) => {
                    self.scratch.push(workspace);
                    (Arc::new(kernel), vec![*a, *b, *c, BufferRef::Scratch(self.scratch.len() - 1)])
                }
                _ => (compile(op, shader)?, shader.buffers()),
            });
        }
        let described = self.dispatches.into_iter().map(|(ShaderIndex(index), parameters)| {
            let (_, builder) = &self.shaders[index];
            let groups = [builder.groups.min(axis) as u32, builder.groups.div_ceil(axis) as u32];
            let (kernel, buffers) = compiled[index].clone();
            DispatchDescription { kernel, parameters, buffers, groups }
        });
        let dispatches: Vec<DispatchDescription<A>> = described.collect();
        let bytes = |buffer: &BufferRef| match *buffer {
            BufferRef::Operand(_) => operands.touched_bytes(*buffer),
            BufferRef::Scratch(k) => self.scratch[k],
        };
        let bytes = dispatches.iter().flat_map(|dispatch| &dispatch.buffers).map(bytes).sum();
        Ok(KernelDescription { dispatches, bytes, scratch: self.scratch, checks: self.checks })
    }
}
