//! Nodes of graphs and their parameters.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::sys::{
    CUDA_HOST_NODE_PARAMS_st, CUDA_KERNEL_NODE_PARAMS_v2_st as KernelNodeParams, CUDA_MEMCPY3D_st as CopyNodeParams,
    CUDA_MEMSET_NODE_PARAMS_st as FillNodeParams, CUmemorytype, CUresult,
};

use crate::graph_calls::list_of;
use crate::interface::{Out, Outcome, put};
use crate::launch::argument_units;
use crate::launch_calls::LaunchRequest;
use crate::work::{FillCall, NodeWork, Work};
use crate::{TestDevice, context_call};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

impl TestDevice {
    /// Adds a node.
    ///
    /// # Safety
    /// *List:* of [`list_of`], for `dependencies`.
    unsafe fn add_node(
        &mut self,
        out: Out<'_, usize>,
        graph: usize,
        dependencies: *const usize,
        count: usize,
        work: NodeWork,
    ) -> Outcome {
        // SAFETY: the clause *List* is the caller's.
        let dependencies = unsafe { list_of(dependencies, count)? };
        let positions = self.node_positions(graph, dependencies)?;
        if positions.len() != count {
            return Err(INVALID);
        }
        let index = self.graph(graph)?.add(work, positions);
        let handle = self.name_node(graph, index);
        put(out, handle)
    }

    fn kernel_work(&mut self, params: Option<&KernelNodeParams>) -> Result<NodeWork, CUresult> {
        let request = LaunchRequest::from_node(params.ok_or(INVALID)?);
        let launch = self.make_launch(&request)?;
        Ok(NodeWork::Plain(Work::Kernel(Rc::new(launch))))
    }

    /// Returns the work of a copy of one row or of contiguous rows.
    fn copy_work(&mut self, params: Option<&CopyNodeParams>) -> Result<NodeWork, CUresult> {
        let params = params.ok_or(INVALID)?;
        let is_contiguous =
            params.Height <= 1 || (params.srcPitch == params.WidthInBytes && params.dstPitch == params.WidthInBytes);
        if params.Depth > 1 || !is_contiguous {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let address = |kind: CUmemorytype, host: usize, device: u64, offset: usize| match kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => Ok(host + offset),
            CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED => Ok(device as usize + offset),
            CUmemorytype::CU_MEMORYTYPE_ARRAY => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        };
        let from = address(params.srcMemoryType, params.srcHost as usize, params.srcDevice, params.srcXInBytes)?;
        let to = address(params.dstMemoryType, params.dstHost as usize, params.dstDevice, params.dstXInBytes)?;
        let bytes = params.WidthInBytes * params.Height.max(1);
        self.checked_node(Work::Copy { to, from, bytes })
    }

    fn fill_work(&mut self, params: Option<&FillNodeParams>) -> Result<NodeWork, CUresult> {
        let params = params.ok_or(INVALID)?;
        let width = params.elementSize as usize;
        if ![1, 2, 4].contains(&width) || params.width == 0 || params.height == 0 {
            return Err(INVALID);
        }
        self.checked_node(Work::Fill(FillCall {
            to: params.dst as usize,
            value: params.value,
            width,
            count: params.width,
            rows: params.height,
            pitch: if params.height == 1 { width * params.width } else { params.pitch },
        }))
    }

    fn checked_node(&mut self, work: Work) -> Result<NodeWork, CUresult> {
        if let Some((kind, text)) = self.access_fault(&work, false) {
            self.reports.list(kind, text);
            return Err(INVALID);
        }
        Ok(NodeWork::Plain(work))
    }

    /// Replaces the work of a node of a graph.
    fn replace_work(&mut self, node: usize, work: NodeWork) -> Outcome {
        let (.., state) = self.node(node)?;
        if state.work.node_type() != work.node_type() {
            return Err(INVALID);
        }
        state.work = work;
        Ok(())
    }

    /// Replaces the work of a node of an executable graph. The node is one of the graph that it was made from.
    fn replace_exec_work(&mut self, exec: usize, node: usize, work: NodeWork) -> Outcome {
        let (graph, index, _) = self.node(node)?;
        let Some(state) = self.execs.get_mut(exec) else {
            return Err(self.invalid_handle("executable graph", exec));
        };
        if state.source != graph {
            return Err(INVALID);
        }
        // Launches that are enqueued keep the old parameters.
        let body = Rc::make_mut(&mut state.body);
        let found = body.nodes.get_mut(index).and_then(Option::as_mut).ok_or(INVALID)?;
        if found.work.node_type() != work.node_type() {
            return Err(INVALID);
        }
        found.work = work;
        Ok(())
    }
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`. *Arguments:* those of the node are as for `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddKernelNode_v2(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    params: Option<&KernelNodeParams>,
) -> CUresult {
    context_call(|device| {
        let work = device.kernel_work(params)?;
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, work) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddMemcpyNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    params: Option<&CopyNodeParams>,
    _context: usize,
) -> CUresult {
    context_call(|device| {
        let work = device.copy_work(params)?;
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, work) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddMemsetNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    params: Option<&FillNodeParams>,
    _context: usize,
) -> CUresult {
    context_call(|device| {
        let work = device.fill_work(params)?;
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, work) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`. *Function:* as for `cuLaunchHostFunc`, at every launch.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddHostNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    params: Option<&CUDA_HOST_NODE_PARAMS_st>,
) -> CUresult {
    context_call(|device| {
        let params = params.ok_or(INVALID)?;
        let function = params.fn_.ok_or(INVALID)?;
        let work = NodeWork::Plain(Work::Host { function, data: params.userData as usize });
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, work) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddEmptyNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
) -> CUresult {
    context_call(|device| {
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, NodeWork::Plain(Work::Nothing)) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddChildGraphNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    child: usize,
) -> CUresult {
    context_call(|device| {
        if child == graph {
            return Err(INVALID);
        }
        let work = NodeWork::Child(Rc::new(device.graph(child)?.clone()));
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, work) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddEventRecordNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    event: usize,
) -> CUresult {
    context_call(|device| {
        device.event(event)?;
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, NodeWork::RecordEvent(event)) }
    })
}

/// # Safety
/// *List:* of [`list_of`], for `dependencies`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddEventWaitNode(
    out: Out<'_, usize>,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    event: usize,
) -> CUresult {
    context_call(|device| {
        device.event(event)?;
        // SAFETY: the clause *List* is the caller's.
        unsafe { device.add_node(out, graph, dependencies, count, NodeWork::WaitEvent(event)) }
    })
}

/// Returns the parameters of a kernel node. The pointers to the arguments are valid until the node changes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphKernelNodeGetParams_v2(node: usize, params: Out<'_, KernelNodeParams>) -> CUresult {
    context_call(|device| {
        let NodeWork::Plain(Work::Kernel(launch)) = &device.node(node)?.2.work else {
            return Err(INVALID);
        };
        let mut unit = 0;
        let mut pointers: Vec<*mut c_void> = Vec::new();
        for parameter in &launch.code.parameters {
            pointers.push(std::ptr::from_ref(&launch.arguments[unit]).cast_mut().cast());
            unit += argument_units(parameter.size);
        }
        let [grid_x, grid_y, grid_z] = launch.grid;
        let [block_x, block_y, block_z] = launch.block;
        let result = KernelNodeParams {
            func: launch.function as *mut _,
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: launch.dynamic as u32,
            // The array is leaked: its owner, the driver, may free it when the node changes.
            kernelParams: pointers.leak().as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        put(params, result)
    })
}

/// # Safety
/// *Arguments:* those of the node are as for `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(
    node: usize,
    params: Option<&KernelNodeParams>,
) -> CUresult {
    context_call(|device| {
        let work = device.kernel_work(params)?;
        device.replace_work(node, work)
    })
}

/// # Safety
/// *Arguments:* those of the node are as for `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: usize,
    node: usize,
    params: Option<&KernelNodeParams>,
) -> CUresult {
    context_call(|device| {
        let work = device.kernel_work(params)?;
        device.replace_exec_work(exec, node, work)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphExecMemcpyNodeSetParams(
    exec: usize,
    node: usize,
    params: Option<&CopyNodeParams>,
    _context: usize,
) -> CUresult {
    context_call(|device| {
        let work = device.copy_work(params)?;
        device.replace_exec_work(exec, node, work)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphExecMemsetNodeSetParams(
    exec: usize,
    node: usize,
    params: Option<&FillNodeParams>,
    _context: usize,
) -> CUresult {
    context_call(|device| {
        let work = device.fill_work(params)?;
        device.replace_exec_work(exec, node, work)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphExecChildGraphNodeSetParams(exec: usize, node: usize, child: usize) -> CUresult {
    context_call(|device| {
        let work = NodeWork::Child(Rc::new(device.graph(child)?.clone()));
        device.replace_exec_work(exec, node, work)
    })
}
