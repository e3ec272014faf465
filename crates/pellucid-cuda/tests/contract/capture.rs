//! Stream capture: what becomes a graph.

use cudarc::driver::sys::{self, CUgraphNodeType, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::harness::{Cuda, cuda, line, result_of, succeed};

pub(crate) const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
pub(crate) const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

impl Cuda {
    /// Starts a capture.
    pub(crate) fn begin(&self, stream: sys::CUstream, mode: CUstreamCaptureMode) -> CUresult {
        // SAFETY: the stream exists.
        unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }
    }

    /// Ends a capture.
    pub(crate) fn end(&self, stream: sys::CUstream) -> Result<sys::CUgraph, CUresult> {
        // SAFETY: the pointer is valid for writes.
        let graph = result_of(|graph| unsafe { sys::cuStreamEndCapture(stream, graph) })?;
        Ok(self.keep_graph(graph))
    }

    /// The state of a capture.
    pub(crate) fn status(&self, stream: sys::CUstream) -> CUstreamCaptureStatus {
        // SAFETY: the pointer is valid for writes.
        result_of(|status| unsafe { sys::cuStreamIsCapturing(stream, status) }).expect("the stream exists")
    }

    /// Launches a graph.
    pub(crate) fn launch_graph(&self, exec: sys::CUgraphExec, stream: sys::CUstream) {
        // SAFETY: the handles exist.
        succeed(unsafe { sys::cuGraphLaunch(exec, stream) });
    }

    /// The nodes of a graph.
    pub(crate) fn nodes(&self, graph: sys::CUgraph) -> Vec<sys::CUgraphNode> {
        // SAFETY: the first call writes the count, the second one fills a list of this length.
        unsafe {
            let mut count = 0;
            succeed(sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count));
            let mut nodes = vec![std::ptr::null_mut(); count];
            succeed(sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
            nodes
        }
    }

    /// The type of a node.
    pub(crate) fn node_type(&self, node: sys::CUgraphNode) -> CUgraphNodeType {
        // SAFETY: the pointer is valid for writes.
        result_of(|kind| unsafe { sys::cuGraphNodeGetType(node, kind) }).expect("the node exists")
    }

    /// The number of edges of a graph.
    pub(crate) fn edge_count(&self, graph: sys::CUgraph) -> usize {
        let (mut count, null) = (0, std::ptr::null_mut());
        // SAFETY: without lists, only the count is written.
        succeed(unsafe { sys::cuGraphGetEdges_v2(graph, null, null, std::ptr::null_mut(), &mut count) });
        count
    }
}

#[test]
fn captured_work_runs_at_the_launch_only() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.upload(&[1_u32]));
    let increment = cuda.kernel("unsigned *a", "a[0] += 1;");
    succeed(cuda.begin(stream, GLOBAL));
    cuda.launch(increment, line(1, 1), stream, &[&memory]);
    cuda.launch(increment, line(1, 1), stream, &[&memory]);
    let graph = cuda.end(stream).expect("the capture is valid");
    assert_eq!(cuda.download::<u32>(memory, 1), [1]);
    let exec = cuda.instantiate(graph);
    for _ in 0..3 {
        cuda.launch_graph(exec, stream);
    }
    assert_eq!(cuda.download::<u32>(memory, 1), [7]);
}

#[test]
fn stream_has_a_status_while_it_captures() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    assert_eq!(cuda.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    succeed(cuda.begin(stream, GLOBAL));
    assert_eq!(cuda.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    let graph = cuda.end(stream).expect("the capture is valid");
    assert_eq!(cuda.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    assert!(cuda.nodes(graph).is_empty());
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
}

#[test]
fn copies_and_fills_are_captured_with_their_types() {
    let Some(cuda) = cuda() else { return };
    let (stream, a, b) = (cuda.stream(), cuda.upload(&[1_u32; 4]), cuda.upload(&[2_u32; 4]));
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the ranges are inside the allocations.
    unsafe {
        succeed(sys::cuMemsetD32Async(a, 9, 4, stream));
        succeed(sys::cuMemcpyDtoDAsync_v2(b, a, 16, stream));
    }
    let graph = cuda.end(stream).expect("the capture is valid");
    let types: Vec<_> = cuda.nodes(graph).into_iter().map(|node| cuda.node_type(node)).collect();
    assert!(types.contains(&CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET), "{types:?}");
    assert!(types.contains(&CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY), "{types:?}");
    assert_eq!(cuda.edge_count(graph), 1);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    assert_eq!(cuda.download::<u32>(b, 4), [9; 4]);
}

#[test]
fn events_fork_and_join_a_capture() {
    let Some(cuda) = cuda() else { return };
    let (first, second) = (cuda.stream(), cuda.stream());
    let (fork, join) = (cuda.event(), cuda.event());
    let (a, b, c) = (cuda.memory(4), cuda.memory(4), cuda.memory(4));
    let add = cuda.kernel("const unsigned *a, const unsigned *b, unsigned *c", "c[0] = a[0] + b[0];");
    succeed(cuda.begin(first, GLOBAL));
    // SAFETY: the handles exist, and the ranges are inside the allocations.
    unsafe {
        succeed(sys::cuEventRecord(fork, first));
        succeed(sys::cuStreamWaitEvent(second, fork, 0));
        assert_eq!(cuda.status(second), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        succeed(sys::cuMemsetD32Async(a, 3, 1, first));
        succeed(sys::cuMemsetD32Async(b, 4, 1, second));
        succeed(sys::cuEventRecord(join, second));
        succeed(sys::cuStreamWaitEvent(first, join, 0));
    }
    cuda.launch(add, line(1, 1), first, &[&a, &b, &c]);
    let graph = cuda.end(first).expect("the streams are joined");
    assert_eq!(cuda.status(second), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    assert_eq!((cuda.nodes(graph).len(), cuda.edge_count(graph)), (3, 2));
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, first);
    assert_eq!(cuda.download::<u32>(c, 1), [7]);
}

#[test]
fn relaxed_capture_permits_allocations() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, RELAXED));
    let mut mode = RELAXED;
    // SAFETY: the pointer is valid for reads and writes.
    succeed(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    assert_eq!(mode, GLOBAL);
    cuda.memory(16);
    // SAFETY: as above.
    succeed(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    cuda.end(stream).expect("the allocation is permitted");
}

#[test]
fn work_of_other_streams_runs_during_a_capture() {
    let Some(cuda) = cuda() else { return };
    let (capturing, other) = (cuda.stream(), cuda.stream());
    let (a, b) = (cuda.memory(4), cuda.pinned::<u32>(1));
    succeed(cuda.begin(capturing, GLOBAL));
    // SAFETY: the ranges are inside the allocations, and the host reads after the wait.
    let value = unsafe {
        succeed(sys::cuMemsetD32Async(a, 5, 1, other));
        succeed(sys::cuMemcpyDtoHAsync_v2(b.cast(), a, 4, other));
        succeed(sys::cuStreamSynchronize(other));
        *b
    };
    assert_eq!(value, 5);
    cuda.end(capturing).expect("the capture is valid");
}
