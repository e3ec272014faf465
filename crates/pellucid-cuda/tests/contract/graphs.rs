//! Graphs of explicit nodes.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUgraphNodeType, CUresult};

use crate::capture::GLOBAL;
use crate::harness::{Argument, Cuda, cuda, line, result_of, succeed};

impl Cuda {
    /// An empty graph.
    pub(crate) fn graph(&self) -> sys::CUgraph {
        // SAFETY: the pointer is valid for writes.
        let graph = result_of(|graph| unsafe { sys::cuGraphCreate(graph, 0) });
        self.keep_graph(graph.expect("a graph"))
    }

    /// Adds a kernel of one thread to a graph.
    pub(crate) fn kernel_node(
        &self,
        graph: sys::CUgraph,
        after: &[sys::CUgraphNode],
        kernel: sys::CUfunction,
        arguments: &[&dyn Argument],
    ) -> sys::CUgraphNode {
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(|argument| argument.pointer()).collect();
        let params = kernel_params(kernel, &mut pointers);
        // SAFETY: the lists have the lengths that are passed, and the kernel has these arguments.
        let node = result_of(|node| unsafe {
            sys::cuGraphAddKernelNode_v2(node, graph, after.as_ptr(), after.len(), &params)
        });
        node.expect("the node is valid")
    }

    /// Adds a fill of 32-bit values to a graph.
    pub(crate) fn fill_node(
        &self,
        graph: sys::CUgraph,
        after: &[sys::CUgraphNode],
        memory: u64,
        value: u32,
    ) -> sys::CUgraphNode {
        let params = fill_params(memory, value);
        // SAFETY: the list has the length that is passed.
        let node = result_of(|node| unsafe {
            let context = std::ptr::null_mut();
            let context = result_of(|current| sys::cuCtxGetCurrent(current)).unwrap_or(context);
            sys::cuGraphAddMemsetNode(node, graph, after.as_ptr(), after.len(), &params, context)
        });
        node.expect("the node is valid")
    }
}

/// The parameters of a kernel of one thread.
pub(crate) fn kernel_params(kernel: sys::CUfunction, pointers: &mut [*mut c_void]) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: kernel,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

/// The parameters of a fill of one 32-bit value.
pub(crate) fn fill_params(memory: u64, value: u32) -> sys::CUDA_MEMSET_NODE_PARAMS {
    sys::CUDA_MEMSET_NODE_PARAMS { dst: memory, pitch: 0, value, elementSize: 4, width: 1, height: 1 }
}

const DOUBLE: &str = "a[0] = a[0] * 2;";
const INCREMENT: &str = "a[0] = a[0] + 1;";

#[test]
fn nodes_run_in_the_order_of_their_edges() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    let graph = cuda.graph();
    // The positions of the nodes do not matter: the last one is added first.
    let last = cuda.kernel_node(graph, &[], double, &[&memory]);
    let first = cuda.fill_node(graph, &[], memory, 5);
    let middle = cuda.kernel_node(graph, &[first], increment, &[&memory]);
    // SAFETY: the lists have one node each.
    succeed(unsafe { sys::cuGraphAddDependencies_v2(graph, &middle, &last, std::ptr::null(), 1) });
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [12]);
}

#[test]
fn graph_lists_nodes_edges_and_roots() {
    let Some(cuda) = cuda() else { return };
    let (a, b) = (cuda.memory(4), cuda.memory(4));
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], a, 1);
    let second = cuda.fill_node(graph, &[], b, 2);
    let double = cuda.kernel("unsigned *a", DOUBLE);
    let third = cuda.kernel_node(graph, &[first, second], double, &[&a]);
    assert_eq!(cuda.nodes(graph).len(), 3);
    assert_eq!(cuda.edge_count(graph), 2);
    assert_eq!(cuda.node_type(third), CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    assert_eq!(cuda.node_type(first), CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET);
    let (mut roots, mut before) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: without lists, only the counts are written.
    unsafe {
        succeed(sys::cuGraphGetRootNodes(graph, null, &mut roots));
        succeed(sys::cuGraphNodeGetDependencies_v2(third, null, std::ptr::null_mut(), &mut before));
    }
    assert_eq!((roots, before), (2, 2));
}

#[test]
fn cycle_cannot_be_instantiated() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(4);
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, 1);
    let second = cuda.fill_node(graph, &[first], memory, 2);
    // SAFETY: the lists have one node each, and the pointer is valid for writes.
    let exec = unsafe {
        let added = sys::cuGraphAddDependencies_v2(graph, &second, &first, std::ptr::null(), 1);
        // A driver may refuse the edge or the graph.
        if added != CUresult::CUDA_SUCCESS {
            return;
        }
        result_of(|exec| sys::cuGraphInstantiateWithFlags(exec, graph, 0))
    };
    assert_eq!(exec, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn copy_node_moves_bytes() {
    let Some(cuda) = cuda() else { return };
    let (stream, a, b) = (cuda.stream(), cuda.upload(&[1_u32, 2, 3, 4]), cuda.upload(&[0_u32; 4]));
    let graph = cuda.graph();
    // SAFETY: all fields are numbers and pointers, for which zero is valid.
    let mut params: sys::CUDA_MEMCPY3D = unsafe {
        let mut params = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        let kinds = params.as_mut_ptr();
        (&raw mut (*kinds).srcMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        (&raw mut (*kinds).dstMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        params.assume_init()
    };
    (params.srcDevice, params.dstDevice) = (a, b);
    (params.srcXInBytes, params.dstXInBytes) = (4, 8);
    (params.WidthInBytes, params.Height, params.Depth) = (8, 1, 1);
    // SAFETY: the pointers are valid.
    let node = unsafe {
        let context = result_of(|current| sys::cuCtxGetCurrent(current)).expect("a context");
        result_of(|node| sys::cuGraphAddMemcpyNode(node, graph, std::ptr::null(), 0, &params, context))
    };
    assert_eq!(cuda.node_type(node.expect("a node")), CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(b, 4), [0, 0, 2, 3]);
}

#[test]
fn child_graph_is_one_node() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    succeed(cuda.begin(stream, GLOBAL));
    cuda.launch(increment, line(1, 1), stream, &[&memory]);
    cuda.launch(double, line(1, 1), stream, &[&memory]);
    let child = cuda.end(stream).expect("the capture is valid");
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, 4);
    // SAFETY: the list has one node, and the pointer is valid for writes.
    let node = result_of(|node| unsafe { sys::cuGraphAddChildGraphNode(node, graph, &first, 1, child) });
    let node = node.expect("a node");
    assert_eq!(cuda.node_type(node), CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH);
    cuda.kernel_node(graph, &[node], increment, &[&memory]);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [11]);
}

#[test]
fn captured_graph_launch_is_a_child_graph() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let inner = cuda.graph();
    cuda.fill_node(inner, &[], memory, 4);
    let inner = cuda.instantiate(inner);
    succeed(cuda.begin(stream, GLOBAL));
    cuda.launch_graph(inner, stream);
    let graph = cuda.end(stream).expect("the capture is valid");
    let nodes = cuda.nodes(graph);
    assert_eq!(nodes.len(), 1);
    assert_eq!(cuda.node_type(nodes[0]), CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [4]);
}

#[test]
fn event_nodes_measure_an_interval() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let (start, end) = (cuda.event(), cuda.event());
    let graph = cuda.graph();
    // SAFETY: the lists have the lengths that are passed, and the pointers are valid for writes.
    let time = unsafe {
        let first = result_of(|node| sys::cuGraphAddEventRecordNode(node, graph, std::ptr::null(), 0, start));
        let fill = cuda.fill_node(graph, &[first.expect("a node")], memory, 4);
        result_of(|node| sys::cuGraphAddEventRecordNode(node, graph, &fill, 1, end)).expect("a node");
        let exec = cuda.instantiate(graph);
        cuda.launch_graph(exec, stream);
        succeed(sys::cuStreamSynchronize(stream));
        result_of(|time| sys::cuEventElapsedTime_v2(time, start, end))
    };
    assert!(time.expect("both events have run") >= 0.0);
}

#[test]
fn empty_node_joins_branches() {
    let Some(cuda) = cuda() else { return };
    let (stream, a, b) = (cuda.stream(), cuda.memory(4), cuda.memory(4));
    let add = cuda.kernel("unsigned *a, const unsigned *b", "a[0] += b[0];");
    let graph = cuda.graph();
    let branches = [cuda.fill_node(graph, &[], a, 1), cuda.fill_node(graph, &[], b, 2)];
    // SAFETY: the list has two nodes, and the pointer is valid for writes.
    let join = result_of(|node| unsafe { sys::cuGraphAddEmptyNode(node, graph, branches.as_ptr(), 2) });
    cuda.kernel_node(graph, &[join.expect("a node")], add, &[&a, &b]);
    let exec = cuda.instantiate(graph);
    // SAFETY: the handles exist.
    succeed(unsafe { sys::cuGraphUpload(exec, stream) });
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(a, 1), [3]);
}

#[test]
fn executable_graph_outlives_its_graph() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    // SAFETY: the pointer is valid for writes, and the graph is destroyed once.
    let exec = unsafe {
        let graph = result_of(|graph| sys::cuGraphCreate(graph, 0)).expect("a graph");
        cuda.fill_node(graph, &[], memory, 8);
        let exec = cuda.instantiate(graph);
        succeed(sys::cuGraphDestroy(graph));
        exec
    };
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [8]);
}

#[test]
fn clone_has_the_same_nodes() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, 8);
    // SAFETY: the pointer is valid for writes.
    let clone = result_of(|clone| unsafe { sys::cuGraphClone(clone, graph) }).expect("a graph");
    let clone = cuda.keep_graph(clone);
    cuda.fill_node(graph, &[first], memory, 9);
    assert_eq!((cuda.nodes(clone).len(), cuda.nodes(graph).len()), (1, 2));
    let exec = cuda.instantiate(clone);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [8]);
}

#[test]
fn launches_of_a_graph_are_ordered_with_the_stream() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.upload(&[1_u32]));
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    let graph = cuda.graph();
    cuda.kernel_node(graph, &[], double, &[&memory]);
    let exec = cuda.instantiate(graph);
    cuda.launch(increment, line(1, 1), stream, &[&memory]);
    cuda.launch_graph(exec, stream);
    cuda.launch(increment, line(1, 1), stream, &[&memory]);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(memory, 1), [10]);
}

/// A launch of a graph is one call of the driver and allocates nothing.
#[test]
fn graph_launch_is_one_call_without_allocation() {
    let Some(cuda) = crate::harness::test_device() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(4));
    let increment = cuda.kernel("unsigned *a", INCREMENT);
    let graph = cuda.graph();
    let mut last = cuda.fill_node(graph, &[], memory, 0);
    for _ in 0..5 {
        last = cuda.kernel_node(graph, &[last], increment, &[&memory]);
    }
    let exec = cuda.instantiate(graph);
    let counters = ["driver calls", "graph launches", "allocations", "launches"];
    let before = counters.map(|name| cuda.symbols().counter(name));
    cuda.launch_graph(exec, stream);
    let after = counters.map(|name| cuda.symbols().counter(name));
    assert_eq!([0, 1, 2, 3].map(|index| after[index] - before[index]), [1, 1, 0, 0]);
    assert_eq!(cuda.download::<u32>(memory, 1), [5]);
}
