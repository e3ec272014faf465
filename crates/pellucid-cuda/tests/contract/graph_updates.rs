//! Changes of parameters of executable graphs.

use cudarc::driver::sys::{self, CUgraphExecUpdateResult, CUresult};

use crate::graphs::{fill_params, kernel_params};
use crate::harness::{Argument, Cuda, cuda, succeed};

/// Updates an executable graph from a graph.
fn update(exec: sys::CUgraphExec, graph: sys::CUgraph) -> (CUresult, CUgraphExecUpdateResult) {
    let mut info = sys::CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
        errorNode: std::ptr::null_mut(),
        errorFromNode: std::ptr::null_mut(),
    };
    // SAFETY: the handles exist, and the pointer is valid for writes.
    let result = unsafe { sys::cuGraphExecUpdate_v2(exec, graph, &mut info) };
    (result, info.result)
}

/// A graph that fills memory and then adds a number.
fn fill_and_add(cuda: &Cuda, kernel: sys::CUfunction, memory: u64, fill: u32, add: u32) -> sys::CUgraph {
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, fill);
    cuda.kernel_node(graph, &[first], kernel, &[&memory, &add]);
    graph
}

const ADD: (&str, &str) = ("unsigned *a, unsigned n", "a[0] += n;");

#[test]
fn update_replaces_all_parameters() {
    let Some(cuda) = cuda() else { return };
    let (stream, a, b) = (cuda.stream(), cuda.upload(&[0_u32]), cuda.upload(&[0_u32]));
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let exec = cuda.instantiate(fill_and_add(&cuda, kernel, a, 10, 1));
    let (result, info) = update(exec, fill_and_add(&cuda, kernel, b, 20, 2));
    assert_eq!((result, info), (CUresult::CUDA_SUCCESS, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS));
    cuda.launch_graph(exec, stream);
    assert_eq!((cuda.download::<u32>(a, 1), cuda.download::<u32>(b, 1)), (vec![0], vec![22]));
}

#[test]
fn update_refuses_another_topology() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let exec = cuda.instantiate(fill_and_add(&cuda, kernel, memory, 10, 1));
    let longer = fill_and_add(&cuda, kernel, memory, 20, 2);
    let nodes = cuda.nodes(longer);
    cuda.kernel_node(longer, &nodes, kernel, &[&memory, &1_u32]);
    let (result, info) = update(exec, longer);
    assert_eq!(result, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_eq!(info, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    // The old parameters are still there.
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [11]);
}

#[test]
fn update_refuses_another_type_of_node() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(4);
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let exec = cuda.instantiate(fill_and_add(&cuda, kernel, memory, 10, 1));
    let other = cuda.graph();
    let first = cuda.fill_node(other, &[], memory, 10);
    cuda.fill_node(other, &[first], memory, 11);
    let (result, info) = update(exec, other);
    assert_eq!(result, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_eq!(info, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

#[test]
fn one_node_of_an_executable_graph_changes() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, 10);
    let second = cuda.kernel_node(graph, &[first], kernel, &[&memory, &1_u32]);
    let exec = cuda.instantiate(graph);
    let number = 5_u32;
    let mut pointers = [memory.pointer(), number.pointer()];
    let (params, fill) = (kernel_params(kernel, &mut pointers), fill_params(memory, 100));
    // SAFETY: the pointers are valid, and the kernel has these arguments.
    unsafe {
        succeed(sys::cuGraphExecKernelNodeSetParams_v2(exec, second, &params));
        let context = crate::harness::result_of(|current| sys::cuCtxGetCurrent(current)).expect("a context");
        succeed(sys::cuGraphExecMemsetNodeSetParams(exec, first, &fill, context));
    }
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [105]);
    // The graph keeps its parameters.
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [11]);
}

#[test]
fn kernel_node_returns_its_parameters() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(4);
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let graph = cuda.graph();
    let node = cuda.kernel_node(graph, &[], kernel, &[&memory, &9_u32]);
    // SAFETY: the pointers are valid; the driver returns pointers to the arguments, which the node owns.
    unsafe {
        let params = crate::harness::result_of(|params| sys::cuGraphKernelNodeGetParams_v2(node, params));
        let params = params.expect("the node is a kernel");
        assert_eq!((params.func, params.gridDimX, params.blockDimX), (kernel, 1, 1));
        assert_eq!((*params.kernelParams).cast::<u64>().read(), memory);
        assert_eq!((*params.kernelParams.add(1)).cast::<u32>().read(), 9);
    }
}

#[test]
fn update_of_a_running_graph_does_not_change_earlier_launches() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.upload(&[0_u32]));
    let kernel = cuda.kernel(ADD.0, ADD.1);
    let graph = cuda.graph();
    let node = cuda.kernel_node(graph, &[], kernel, &[&memory, &1_u32]);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    let number = 10_u32;
    let mut pointers = [memory.pointer(), number.pointer()];
    let params = kernel_params(kernel, &mut pointers);
    // SAFETY: the pointers are valid, and the kernel has these arguments.
    succeed(unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec, node, &params) });
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [11]);
}
