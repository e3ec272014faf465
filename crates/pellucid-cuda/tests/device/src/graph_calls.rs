//! Graphs and executable graphs.

use std::collections::BTreeSet;
use std::ffi::{c_uint, c_ulonglong};
use std::rc::Rc;

use cudarc::driver::sys::{
    CUgraphExecUpdateResult_enum as UpdateResult, CUgraphExecUpdateResultInfo_st, CUgraphNodeType, CUresult,
};

use crate::interface::{Out, Outcome, put};
use crate::work::{GraphBody, GraphNodeState};
use crate::{TestDevice, context_call};

impl TestDevice {
    /// Returns the nodes of a graph.
    ///
    /// # Errors
    /// An invalid handle, which is reported.
    pub(crate) fn graph(&mut self, handle: usize) -> Result<&mut GraphBody, CUresult> {
        if self.graphs.get(handle).is_none() {
            return Err(self.invalid_handle("graph", handle));
        }
        Ok(self.graphs.get_mut(handle).expect("the graph was found"))
    }

    /// Returns a node with its graph and position.
    ///
    /// # Errors
    /// An invalid handle, which is reported.
    pub(crate) fn node(&mut self, handle: usize) -> Result<(usize, usize, &mut GraphNodeState), CUresult> {
        let Some(&(graph, index)) = self.nodes.get(&handle) else {
            return Err(self.invalid_handle("graph node", handle));
        };
        let node = self.graph(graph)?.nodes[index].as_mut().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok((graph, index, node))
    }

    /// Returns the positions of nodes of one graph.
    ///
    /// # Errors
    /// An invalid value for a node of another graph.
    pub(crate) fn node_positions(&mut self, graph: usize, handles: &[usize]) -> Result<BTreeSet<usize>, CUresult> {
        let mut positions = BTreeSet::new();
        for &handle in handles {
            let (owner, index, _) = self.node(handle)?;
            if owner != graph {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            positions.insert(index);
        }
        Ok(positions)
    }
}

/// Returns the values at a pointer.
///
/// # Safety
/// *List:* `pointer` is valid for reads of `count` values during `'a`, or `count` is 0.
pub(crate) unsafe fn list_of<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], CUresult> {
    match (count, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        // SAFETY: the pointer is not null; the rest is the clause *List*.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// Writes handles: all that fit to `out`, and their count to `count`. Without `out`, only the count.
///
/// # Safety
/// *Buffer:* `out` is null or valid for writes of `*count` handles.
unsafe fn put_list(handles: &[usize], out: *mut usize, count: Option<&mut usize>) -> Outcome {
    let count = count.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if out.is_null() {
        *count = handles.len();
        return Ok(());
    }
    for index in 0..*count {
        // SAFETY: the clause *Buffer*. Positions beyond the list become null.
        unsafe { out.add(index).write(handles.get(index).copied().unwrap_or(0)) };
    }
    *count = handles.len().min(*count);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphCreate(graph: Out<'_, usize>, flags: c_uint) -> CUresult {
    context_call(|device| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(graph, device.insert_graph(GraphBody::default()))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphDestroy(graph: usize) -> CUresult {
    context_call(|device| {
        device.graph(graph)?;
        device.graphs.remove(graph);
        device.nodes.retain(|_, (owner, _)| *owner != graph);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphClone(clone: Out<'_, usize>, graph: usize) -> CUresult {
    context_call(|device| {
        let body = device.graph(graph)?.clone();
        put(clone, device.insert_graph(body))
    })
}

/// # Safety
/// *Buffer:* of [`put_list`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphGetNodes(
    graph: usize,
    nodes: *mut usize,
    count: Option<&mut usize>,
) -> CUresult {
    context_call(|device| {
        let handles: Vec<usize> = device.graph(graph)?.present().map(|(_, node)| node.handle).collect();
        // SAFETY: the clause *Buffer* is the caller's.
        unsafe { put_list(&handles, nodes, count) }
    })
}

/// # Safety
/// *Buffer:* of [`put_list`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphGetRootNodes(
    graph: usize,
    nodes: *mut usize,
    count: Option<&mut usize>,
) -> CUresult {
    context_call(|device| {
        let roots = device.graph(graph)?.present().filter(|(_, node)| node.dependencies.is_empty());
        let handles: Vec<usize> = roots.map(|(_, node)| node.handle).collect();
        // SAFETY: the clause *Buffer* is the caller's.
        unsafe { put_list(&handles, nodes, count) }
    })
}

/// # Safety
/// *Buffer:* of [`put_list`], for `from` and `to`. Edges have no data.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphGetEdges_v2(
    graph: usize,
    from: *mut usize,
    to: *mut usize,
    _data: usize,
    count: Option<&mut usize>,
) -> CUresult {
    context_call(|device| {
        let body = device.graph(graph)?;
        let handle_at = |index: usize| body.nodes[index].as_ref().map_or(0, |node| node.handle);
        let edges = body
            .present()
            .flat_map(|(_, node)| node.dependencies.iter().map(move |&before| (handle_at(before), node.handle)));
        let (starts, ends): (Vec<usize>, Vec<usize>) = edges.unzip();
        let count = count.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut capacity = *count;
        // SAFETY: the clause *Buffer* is the caller's, for both lists of the same length.
        unsafe {
            put_list(&starts, from, Some(&mut capacity))?;
            put_list(&ends, to, Some(count))
        }
    })
}

/// # Safety
/// *Buffer:* of [`put_list`]. Edges have no data.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: usize,
    dependencies: *mut usize,
    _data: usize,
    count: Option<&mut usize>,
) -> CUresult {
    context_call(|device| {
        let (graph, _, state) = device.node(node)?;
        let positions = state.dependencies.clone();
        let body = device.graph(graph)?;
        let handle_at = |index: usize| body.nodes[index].as_ref().map_or(0, |node| node.handle);
        let handles: Vec<usize> = positions.into_iter().map(handle_at).collect();
        // SAFETY: the clause *Buffer* is the caller's.
        unsafe { put_list(&handles, dependencies, count) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphNodeGetType(node: usize, kind: Out<'_, CUgraphNodeType>) -> CUresult {
    context_call(|device| put(kind, device.node(node)?.2.work.node_type()))
}

/// # Safety
/// *List:* of [`list_of`], for `from` and `to`. Edges have no data.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphAddDependencies_v2(
    graph: usize,
    from: *const usize,
    to: *const usize,
    _data: usize,
    count: usize,
) -> CUresult {
    context_call(|device| {
        // SAFETY: the clause *List* is the caller's.
        let (from, to) = unsafe { (list_of(from, count)?, list_of(to, count)?) };
        for (&before, &after) in from.iter().zip(to) {
            let before = device.node_positions(graph, &[before])?;
            let after = device.node_positions(graph, &[after])?;
            let (before, after) = (before.first(), after.first());
            let (Some(&before), Some(&after)) = (before, after) else { continue };
            let body = device.graph(graph)?;
            let node = body.nodes[after].as_mut().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            if before == after || !node.dependencies.insert(before) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    })
}

/// # Safety
/// *List:* of [`list_of`], for `from` and `to`. Edges have no data.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphRemoveDependencies_v2(
    graph: usize,
    from: *const usize,
    to: *const usize,
    _data: usize,
    count: usize,
) -> CUresult {
    context_call(|device| {
        // SAFETY: the clause *List* is the caller's.
        let (from, to) = unsafe { (list_of(from, count)?, list_of(to, count)?) };
        for (&before, &after) in from.iter().zip(to) {
            let (owner, before, _) = device.node(before)?;
            let (_, _, state) = device.node(after)?;
            if owner != graph || !state.dependencies.remove(&before) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphDestroyNode(node: usize) -> CUresult {
    context_call(|device| {
        let (graph, index, _) = device.node(node)?;
        let body = device.graph(graph)?;
        body.nodes[index] = None;
        for other in body.nodes.iter_mut().flatten() {
            other.dependencies.remove(&index);
        }
        device.nodes.remove(&node);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphInstantiateWithFlags(
    exec: Out<'_, usize>,
    graph: usize,
    _flags: c_ulonglong,
) -> CUresult {
    context_call(|device| {
        let handle = device.instantiate(graph)?;
        put(exec, handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphExecDestroy(exec: usize) -> CUresult {
    context_call(|device| match device.execs.remove(exec) {
        Some(_) => Ok(()),
        None => Err(device.invalid_handle("executable graph", exec)),
    })
}

/// Prepares a launch. It reads nothing and writes nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphUpload(exec: usize, stream: usize) -> CUresult {
    context_call(|device| {
        if device.execs.get(exec).is_none() {
            return Err(device.invalid_handle("executable graph", exec));
        }
        device.stream(stream).map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphLaunch(exec: usize, stream: usize) -> CUresult {
    context_call(|device| device.launch_graph(exec, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGraphExecUpdate_v2(
    exec: usize,
    graph: usize,
    info: Out<'_, CUgraphExecUpdateResultInfo_st>,
) -> CUresult {
    context_call(|device| {
        let new = Rc::new(device.graph(graph)?.clone());
        let Some(state) = device.execs.get_mut(exec) else {
            return Err(device.invalid_handle("executable graph", exec));
        };
        let (result, index) = state.body.update_result(&new);
        let is_success = result == UpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS;
        let error = index.and_then(|index| new.nodes[index].as_ref()).map_or(0, |node| node.handle);
        if is_success {
            state.body = new.clone();
            device.check_node_order(&new);
        }
        let details =
            CUgraphExecUpdateResultInfo_st { result, errorNode: error as *mut _, errorFromNode: std::ptr::null_mut() };
        put(info, details)?;
        if is_success { Ok(()) } else { Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) }
    })
}
