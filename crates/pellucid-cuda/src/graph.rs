//! [`PreparedGraph`]: the dispatches of a plan as one CUDA graph.
//!
//! Every kernel is a node with the node before it as its dependency, and every product of the library a child graph,
//! so the graph runs the plan in its order. A node after the last check copies the status to the host, which reads it
//! while the device runs the rest of the graph. The graph is instantiated and uploaded in the first launch. Every
//! other launch is one call of the driver, unless the memory of a slot has changed: the arguments of the nodes that
//! use the slot are then set again.
//!
//! Without graphs, a launch is a loop over the dispatches, with the same results.

use crate::compiler::CudaKernel;
use crate::context::Context;
use crate::launch::{CudaWork, KernelArguments, ParameterMemory, launch, node_parameters};
use crate::memory::CudaMemory;
use crate::product::LtProduct;
use crate::status::StatusMemory;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use pellucid_gpu::{PlanBuffer, PlannedDispatch, PlannedDispatches};
use pellucid_ir::{Error, Result};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// The dispatches of a plan and the graph that runs them.
pub struct PreparedGraph {
    /// The graph, which is dropped before the kernels and the memory of its nodes.
    graph: Option<ExecutableGraph>,
    /// Whether launches use a graph.
    uses_graph: bool,
    context: Arc<Context>,
    status: Arc<StatusMemory>,
    dispatches: Vec<PlannedDispatch<CudaWork>>,
    /// The number of dispatches up to the last check.
    checked: usize,
    /// The parameters of all dispatches on the host, and on the device if a kernel reads them there.
    parameters: Vec<u8>,
    parameter_memory: Option<CudaMemory>,
    scratch: Vec<CudaMemory>,
}

/// An instantiated graph.
struct ExecutableGraph {
    context: Arc<Context>,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    /// The node of every dispatch.
    nodes: Vec<sys::CUgraphNode>,
    /// The addresses of the slots in the arguments of the nodes.
    slots: Vec<Option<CUdeviceptr>>,
}

// SAFETY: the driver's calls are thread-safe, and the handles are valid until the graph is dropped.
unsafe impl Send for ExecutableGraph {}

impl PreparedGraph {
    /// Keeps the dispatches of a plan, and copies their parameters to the device if a kernel reads them there.
    pub(crate) fn new(
        context: &Arc<Context>,
        status: &Arc<StatusMemory>,
        plan: PlannedDispatches<CudaWork, CudaMemory>,
        write: impl FnOnce(&CudaMemory, &[u8]) -> Result<()>,
    ) -> Result<PreparedGraph> {
        let PlannedDispatches { dispatches, checked, mut parameters, window, scratch } = plan;
        parameters.resize(parameters.len() + window, 0);
        let parameter_memory = match dispatches.iter().all(|dispatch| dispatch.kernel.passes_values()) {
            true => None,
            false => Some(CudaMemory::allocate(context, parameters.len())?),
        };
        if let Some(memory) = &parameter_memory {
            write(memory, &parameters)?;
        }
        let (context, status) = (context.clone(), status.clone());
        let (graph, uses_graph) = (None, true);
        Ok(PreparedGraph {
            graph,
            uses_graph,
            context,
            status,
            dispatches,
            checked,
            parameters,
            parameter_memory,
            scratch,
        })
    }

    /// Makes launches run without a graph.
    pub(crate) fn without_graph(self) -> PreparedGraph {
        PreparedGraph { uses_graph: false, ..self }
    }

    /// Returns true if the plan has checks.
    pub(crate) fn has_checks(&self) -> bool {
        self.checked > 0
    }

    /// Returns the number of dispatches.
    pub(crate) fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Runs the dispatches with this memory of the slots. If the driver refuses to create the graph, this launch and
    /// later ones run without it, and the result is the refusal.
    pub(crate) fn launch(&mut self, slots: &[Option<CudaMemory>]) -> Result<Option<Error>> {
        if self.dispatches.is_empty() {
            return Ok(None);
        }
        let mut refusal = None;
        if self.uses_graph {
            match self.bind(slots) {
                Ok(()) => return self.launch_graph().map(|()| None),
                Err(refused @ Error::InvalidArgument { .. }) => refusal = Some(refused),
                Err(failed) => return Err(failed),
            }
            self.uses_graph = false;
        }
        self.launch_dispatches(slots).map(|()| refusal)
    }

    /// Launches the dispatches one by one.
    fn launch_dispatches(&self, slots: &[Option<CudaMemory>]) -> Result<()> {
        self.context.enter()?;
        let slots: Vec<Option<CUdeviceptr>> = slots.iter().map(|slot| slot.as_ref().map(CudaMemory::address)).collect();
        for (k, dispatch) in self.dispatches.iter().enumerate() {
            match &*dispatch.kernel {
                CudaWork::Kernel(kernel) => {
                    let arguments = self.arguments(dispatch, kernel, &slots);
                    // SAFETY: *Context*: it is current. *Arguments*: they were created for this kernel. The slots are
                    // allocated, and memory is freed in the order of the stream.
                    let call = || unsafe { launch(kernel, &arguments, dispatch.groups, self.context.stream()) };
                    self.context.submit("launch", call)?;
                }
                CudaWork::Product(product) => {
                    let memory = self.product_memory(dispatch, &slots);
                    // SAFETY: *Context*: it is current. *Memory*: these are the buffers of the product. The slots are
                    // allocated, and memory is freed in the order of the stream.
                    unsafe { product.enqueue(memory, self.context.stream())? };
                }
            }
            if k + 1 == self.checked {
                self.status.submit_copy()?;
            }
        }
        Ok(())
    }

    /// Creates the graph, or sets its arguments, so that it uses this memory of the slots.
    fn bind(&mut self, slots: &[Option<CudaMemory>]) -> Result<()> {
        let is_bound = |graph: &ExecutableGraph| {
            let addresses = slots.iter().map(|slot| slot.as_ref().map(CudaMemory::address));
            graph.slots.iter().copied().eq(addresses)
        };
        if !self.graph.as_ref().is_some_and(is_bound) {
            let slots: Vec<Option<CUdeviceptr>> =
                slots.iter().map(|slot| slot.as_ref().map(CudaMemory::address)).collect();
            match self.graph.take() {
                None => self.graph = Some(self.instantiate(slots)?),
                // A graph whose arguments could not be set is dropped.
                Some(graph) => self.graph = Some(self.rebind(graph, slots)?),
            }
        }
        Ok(())
    }

    /// Launches the graph, if there is one.
    fn launch_graph(&self) -> Result<()> {
        let Some(graph) = &self.graph else { return Ok(()) };
        if self.has_checks() {
            self.status.expect_copy();
        }
        // SAFETY: the graph and the stream belong to one context. The slots are allocated, and memory is freed in the
        // order of the stream.
        let launch = || unsafe { sys::cuGraphLaunch(graph.executable, self.context.stream()) };
        self.context.submit("launch", || match launch() {
            // Another context, or none, is current on this thread. A refused launch has submitted nothing.
            CUresult::CUDA_ERROR_INVALID_CONTEXT | CUresult::CUDA_ERROR_INVALID_HANDLE
                if self.context.enter().is_ok() =>
            {
                launch()
            }
            result => result,
        })
    }

    /// Returns the address of a buffer with the slots at these addresses.
    fn address(&self, buffer: PlanBuffer, slots: &[Option<CUdeviceptr>]) -> CUdeviceptr {
        match buffer {
            PlanBuffer::Slot(k) => slots[k].unwrap_or_default(),
            PlanBuffer::Scratch(k) => self.scratch[k].address(),
        }
    }

    /// Returns the arguments of the kernel of a dispatch with the slots at these addresses.
    fn arguments(
        &self,
        dispatch: &PlannedDispatch<CudaWork>,
        kernel: &CudaKernel,
        slots: &[Option<CUdeviceptr>],
    ) -> KernelArguments<'_> {
        let address = self.parameter_memory.as_ref().map_or(0, CudaMemory::address);
        let parameters = ParameterMemory { bytes: &self.parameters, address };
        let buffers = dispatch.buffers.iter().map(|&buffer| self.address(buffer, slots));
        KernelArguments::new(kernel, parameters, dispatch.offset, self.status.memory.address(), buffers)
    }

    /// Returns the addresses of the buffers of a product.
    ///
    /// # Panics
    /// If the product has not four buffers.
    fn product_memory(&self, dispatch: &PlannedDispatch<CudaWork>, slots: &[Option<CUdeviceptr>]) -> [CUdeviceptr; 4] {
        let addresses: Vec<CUdeviceptr> = dispatch.buffers.iter().map(|&buffer| self.address(buffer, slots)).collect();
        addresses.try_into().expect("a product must have the buffers of A, B, C and a workspace")
    }

    /// Builds the graph with the slots at these addresses, and uploads it.
    fn instantiate(&self, slots: Vec<Option<CUdeviceptr>>) -> Result<ExecutableGraph> {
        let context = &self.context;
        context.enter()?;
        let mut graph = ExecutableGraph::new(context)?;
        let mut previous = null_mut();
        for (k, dispatch) in self.dispatches.iter().enumerate() {
            let node = match &*dispatch.kernel {
                CudaWork::Kernel(kernel) => self.arguments(dispatch, kernel, &slots).with_pointers(|pointers| {
                    graph.add_kernel(previous, &node_parameters(kernel, dispatch.groups, pointers))
                })?,
                CudaWork::Product(product) => {
                    graph.add_product(previous, product, self.product_memory(dispatch, &slots))?
                }
            };
            graph.nodes.push(node);
            previous = node;
            if k + 1 == self.checked {
                previous = graph.add_status_copy(previous, &self.status)?;
            }
        }
        graph.slots = slots;
        graph.upload()?;
        Ok(graph)
    }

    /// Sets the arguments of the nodes whose slots have moved to other addresses. If a product uses one of them, builds
    /// the graph again.
    fn rebind(&self, mut graph: ExecutableGraph, slots: Vec<Option<CUdeviceptr>>) -> Result<ExecutableGraph> {
        self.context.enter()?;
        for (dispatch, &node) in self.dispatches.iter().zip(&graph.nodes) {
            let has_moved = |buffer: &PlanBuffer| match *buffer {
                PlanBuffer::Slot(k) => graph.slots[k] != slots[k],
                PlanBuffer::Scratch(_) => false,
            };
            if dispatch.buffers.iter().any(has_moved) {
                let CudaWork::Kernel(kernel) = &*dispatch.kernel else { return self.instantiate(slots) };
                self.arguments(dispatch, kernel, &slots).with_pointers(|pointers| {
                    let parameters = node_parameters(kernel, dispatch.groups, pointers);
                    // SAFETY: the node belongs to the graph, and the driver copies the parameters and the arguments.
                    // Launches that were submitted before keep their arguments.
                    let result = unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(graph.executable, node, &raw const parameters)
                    };
                    self.context.check("launch", result)
                })?;
            }
        }
        graph.slots = slots;
        Ok(graph)
    }
}

/// Returns the number of dependencies of a node that runs after `previous`, if it is not null.
fn dependency_count(previous: sys::CUgraphNode) -> usize {
    usize::from(!previous.is_null())
}

impl ExecutableGraph {
    /// Creates an empty graph.
    fn new(context: &Arc<Context>) -> Result<ExecutableGraph> {
        let mut graph = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        context.check("prepare", unsafe { sys::cuGraphCreate(&raw mut graph, 0) })?;
        let (executable, nodes, slots) = (null_mut(), Vec::new(), Vec::new());
        Ok(ExecutableGraph { context: context.clone(), graph, executable, nodes, slots })
    }

    /// Adds a kernel that runs after the node `previous`, if it is not null.
    fn add_kernel(
        &mut self,
        previous: sys::CUgraphNode,
        parameters: &sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<sys::CUgraphNode> {
        let mut node = null_mut();
        let count = dependency_count(previous);
        // SAFETY: the pointer to the result is valid for a write, and `previous` is a node of the graph. The driver
        // copies the parameters and the arguments to which they point.
        let result =
            unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, self.graph, &raw const previous, count, parameters) };
        self.context.check("prepare", result)?;
        Ok(node)
    }

    /// Adds a product of the library that runs after the node `previous`, if it is not null: a child graph with the
    /// nodes that the library enqueues.
    fn add_product(
        &mut self,
        previous: sys::CUgraphNode,
        product: &LtProduct,
        memory: [CUdeviceptr; 4],
    ) -> Result<sys::CUgraphNode> {
        let child = CapturedGraph::new(&self.context, |stream| {
            // SAFETY: *Context*: it is current. *Memory*: these are the buffers of the product; the graph runs in the
            // stream in whose order memory is freed.
            unsafe { product.enqueue(memory, stream) }
        })?;
        let mut node = null_mut();
        let count = dependency_count(previous);
        // SAFETY: the pointer to the result is valid for a write, `previous` is a node of the graph, and the driver
        // copies the child graph.
        let result = unsafe {
            sys::cuGraphAddChildGraphNode(&raw mut node, self.graph, &raw const previous, count, child.graph)
        };
        self.context.check("prepare", result)?;
        Ok(node)
    }

    /// Adds a copy of the status to the host after the node `previous`, and returns its node.
    fn add_status_copy(&mut self, previous: sys::CUgraphNode, status: &StatusMemory) -> Result<sys::CUgraphNode> {
        let copy = sys::CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: null(),
            srcDevice: status.memory.address(),
            srcArray: null_mut(),
            reserved0: null_mut(),
            srcPitch: 0,
            srcHeight: 0,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: status.copy.address(),
            dstDevice: 0,
            dstArray: null_mut(),
            reserved1: null_mut(),
            dstPitch: 0,
            dstHeight: 0,
            WidthInBytes: StatusMemory::BYTES,
            Height: 1,
            Depth: 1,
        };
        let (mut node, context) = (null_mut(), self.context.raw());
        // SAFETY: the pointer to the result is valid for a write, `previous` is a node of the graph, and the memory of
        // the status lives as long as the graph, which is owned by a `PreparedGraph`.
        let result = unsafe {
            sys::cuGraphAddMemcpyNode(&raw mut node, self.graph, &raw const previous, 1, &raw const copy, context)
        };
        self.context.check("prepare", result)?;
        Ok(node)
    }

    /// Instantiates the graph.
    fn instantiate(&mut self) -> Result<()> {
        let (context, executable) = (self.context.clone(), &raw mut self.executable);
        // SAFETY: the pointer to the result is valid for a write, and the graph is complete.
        context.submit("prepare", || unsafe { sys::cuGraphInstantiateWithFlags(executable, self.graph, 0) })
    }

    /// Instantiates the graph and uploads it to the device.
    fn upload(&mut self) -> Result<()> {
        self.instantiate()?;
        // SAFETY: the graph and the stream belong to the current context.
        self.context.check("prepare", unsafe { sys::cuGraphUpload(self.executable, self.context.stream()) })
    }
}

/// A graph of the work that a function enqueues.
struct CapturedGraph {
    graph: sys::CUgraph,
}

impl CapturedGraph {
    /// Captures the work that `enqueue` adds to a stream. The context must be current.
    fn new(context: &Context, enqueue: impl FnOnce(sys::CUstream) -> Result<()>) -> Result<CapturedGraph> {
        let (mut stream, mut graph) = (null_mut(), null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer to the result is valid for a write.
        context.check("prepare", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        // Other threads may allocate meanwhile, and the library may load its kernels at their first use.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was created and captures nothing.
        let begun = context.check("prepare", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
        let enqueued = begun.and_then(|()| {
            let enqueued = enqueue(stream);
            // SAFETY: the stream captures, and the pointer to the result is valid for a write.
            let ended = context.check("prepare", unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) });
            enqueued.and(ended)
        });
        // SAFETY: the stream is destroyed once.
        let destroyed = unsafe { sys::cuStreamDestroy_v2(stream) };
        let captured = CapturedGraph { graph };
        enqueued?;
        context.check("prepare", destroyed)?;
        Ok(captured)
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            // SAFETY: the graph is destroyed once, and no graph refers to it.
            let _ = unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}

/// Returns the reason why the driver cannot create graphs, or `None` if it can.
///
/// # Errors
/// The errors of the device, and [`Error::OutOfMemory`], after which the next call finds out.
pub(crate) fn reason_without_graphs(context: &Arc<Context>) -> Result<Option<String>> {
    context.enter()?;
    match ExecutableGraph::new(context).and_then(|mut graph| graph.instantiate()) {
        Ok(()) => Ok(None),
        Err(failed @ (Error::OutOfMemory { .. } | Error::DeviceUnavailable { .. })) => Err(failed),
        Err(rejected) => Ok(Some(rejected.to_string())),
    }
}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: both handles belong to this context and are destroyed once. The driver keeps what running launches
        // need.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}
