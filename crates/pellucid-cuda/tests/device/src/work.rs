//! Work of a stream or of a graph node, and its accesses to memory; the nodes of graphs, which are work again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::rc::Rc;
use std::time::Instant;

use cudarc::driver::sys::{CUgraphExecUpdateResult_enum as UpdateResult, CUgraphNodeType};

use crate::TestDevice;

use crate::launch::KernelLaunch;
use crate::memory::{Lifetime, MemoryAccess};
use crate::products::ProductCall;
use crate::reports::FaultKind;

/// A function of the host with its argument.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A fill of rows with one value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FillCall {
    pub(crate) to: usize,
    pub(crate) value: u32,
    /// The bytes of an element: 1, 2 or 4.
    pub(crate) width: usize,
    pub(crate) count: usize,
    pub(crate) rows: usize,
    /// The bytes from row to row.
    pub(crate) pitch: usize,
}

/// A unit of work.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(Rc<KernelLaunch>),
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// A copy from pageable memory, whose bytes were read when it was enqueued.
    Staged {
        to: usize,
        data: Rc<[u8]>,
    },
    Fill(FillCall),
    Product(Rc<ProductCall>),
    Host {
        function: HostFunction,
        data: usize,
    },
    Graph(Rc<GraphBody>),
    /// Stores the time of an event if its record with this number is the last one.
    Record {
        event: usize,
        serial: u64,
    },
    /// Waits for a position of another stream.
    Wait {
        stream: usize,
        position: u64,
    },
    Free {
        base: usize,
    },
    /// Changes the used bytes of a block of a pool.
    Resize {
        base: usize,
        bytes: usize,
    },
    Nothing,
}

/// What a node does.
#[derive(Clone)]
pub(crate) enum NodeWork {
    Plain(Work),
    Child(Rc<GraphBody>),
    RecordEvent(usize),
    WaitEvent(usize),
}

/// A node.
#[derive(Clone)]
pub(crate) struct GraphNodeState {
    pub(crate) work: NodeWork,
    pub(crate) dependencies: BTreeSet<usize>,
    /// The handle, once the graph has one.
    pub(crate) handle: usize,
}

/// The nodes of a graph by their positions. A destroyed node leaves an empty position.
#[derive(Clone, Default)]
pub(crate) struct GraphBody {
    pub(crate) nodes: Vec<Option<GraphNodeState>>,
}

impl Work {
    /// Describes the work in a report.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Kernel(launch) => format!("kernel {}", launch.code.name),
            Self::Copy { bytes, .. } => format!("a copy of {bytes} bytes"),
            Self::Staged { data, .. } => format!("a copy of {} bytes", data.len()),
            Self::Fill(_) => "a fill".to_string(),
            Self::Product(_) => "a matrix product".to_string(),
            Self::Host { .. } => "a host function".to_string(),
            Self::Graph(_) => "a graph".to_string(),
            Self::Free { .. } => "a free".to_string(),
            Self::Resize { .. } => "a change of a pool".to_string(),
            Self::Record { .. } | Self::Wait { .. } | Self::Nothing => "an event".to_string(),
        }
    }

    /// Returns all accesses that are known before the work runs.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        let access = |address, bytes, is_write| MemoryAccess { address, bytes, is_write };
        match self {
            Self::Kernel(launch) => launch.accesses(),
            Self::Copy { to, from, bytes } => {
                vec![access(*from, *bytes, false), access(*to, *bytes, true)]
            }
            Self::Staged { to, data } => vec![access(*to, data.len(), true)],
            Self::Fill(fill) => {
                let bytes = (fill.rows - 1) * fill.pitch + fill.count * fill.width;
                vec![access(fill.to, bytes, true)]
            }
            Self::Product(product) => product.accesses(),
            Self::Graph(body) => body.accesses(),
            Self::Free { base } | Self::Resize { base, .. } => vec![access(*base, 0, true)],
            Self::Host { .. } | Self::Record { .. } | Self::Wait { .. } | Self::Nothing => Vec::new(),
        }
    }
}

impl NodeWork {
    /// Returns the type of the node. A matrix product is a kernel of the library.
    pub(crate) fn node_type(&self) -> CUgraphNodeType {
        match self {
            Self::Plain(Work::Copy { .. } | Work::Staged { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Plain(Work::Fill(_)) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Plain(Work::Kernel(_) | Work::Product(_)) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Plain(Work::Host { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
            Self::Plain(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
            Self::RecordEvent(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::WaitEvent(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        }
    }

    /// Returns the accesses to memory.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        match self {
            Self::Plain(work) => work.accesses(),
            Self::Child(body) => body.accesses(),
            Self::RecordEvent(_) | Self::WaitEvent(_) => Vec::new(),
        }
    }

    /// Describes the node in a report.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Plain(work) => work.describe(),
            Self::Child(_) => "a child graph".to_string(),
            Self::RecordEvent(_) | Self::WaitEvent(_) => "an event".to_string(),
        }
    }
}

impl GraphBody {
    /// Adds a node and returns its position.
    pub(crate) fn add(&mut self, work: NodeWork, dependencies: BTreeSet<usize>) -> usize {
        self.nodes.push(Some(GraphNodeState { work, dependencies, handle: 0 }));
        self.nodes.len() - 1
    }

    /// Returns the nodes with their positions.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &GraphNodeState)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.as_ref()?)))
    }

    /// Returns the accesses of all nodes.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        self.present().flat_map(|(_, node)| node.work.accesses()).collect()
    }

    /// Returns the nodes that some nodes depend on, and those nodes.
    pub(crate) fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open = of.to_vec();
        while let Some(index) = open.pop() {
            if found.insert(index)
                && let Some(node) = &self.nodes[index]
            {
                open.extend(&node.dependencies);
            }
        }
        found
    }

    /// Returns the nodes in an order that satisfies the dependencies. Of the nodes that may run, the first or the last
    /// one runs. `None` for a cycle.
    pub(crate) fn order(&self, is_descending: bool) -> Option<Vec<usize>> {
        let mut remaining: BTreeMap<usize, usize> = BTreeMap::new();
        let mut dependents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, node) in self.present() {
            remaining.insert(index, node.dependencies.len());
            for &before in &node.dependencies {
                dependents.entry(before).or_default().push(index);
            }
        }
        let is_ready = |(index, count): (&usize, &usize)| (*count == 0).then_some(*index);
        let mut ready: BTreeSet<usize> = remaining.iter().filter_map(is_ready).collect();
        let mut order = Vec::new();
        while let Some(index) = if is_descending { ready.pop_last() } else { ready.pop_first() } {
            order.push(index);
            for after in dependents.get(&index).into_iter().flatten() {
                let count = remaining.get_mut(after)?;
                *count -= 1;
                if *count == 0 {
                    ready.insert(*after);
                }
            }
        }
        (order.len() == remaining.len()).then_some(order)
    }

    /// Compares two graphs for an update of parameters.
    pub(crate) fn update_result(&self, new: &GraphBody) -> (UpdateResult, Option<usize>) {
        let same_positions = self.nodes.len() == new.nodes.len()
            && self.nodes.iter().zip(&new.nodes).all(|(a, b)| a.is_some() == b.is_some());
        if !same_positions {
            return (UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, None);
        }
        for ((index, old), (_, new)) in self.present().zip(new.present()) {
            if old.work.node_type() != new.work.node_type() {
                let result = UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
                return (result, Some(index));
            }
            if old.dependencies != new.dependencies {
                let result = UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
                return (result, Some(index));
            }
            if let (NodeWork::Child(old), NodeWork::Child(new)) = (&old.work, &new.work) {
                let (result, _) = old.update_result(new);
                if result != UpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS {
                    return (result, Some(index));
                }
            }
        }
        (UpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS, None)
    }
}

/// Copies bytes that may overlap.
fn copy_bytes(from: usize, to: usize, bytes: usize) {
    // SAFETY: both ranges were checked against the allocations (`check_accesses`), or are memory of the host that the
    // caller of the copy promises to be valid until the stream is synchronised.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

fn fill_rows(fill: &FillCall) {
    let bytes = fill.value.to_le_bytes();
    for row in 0..fill.rows {
        for element in 0..fill.count {
            let address = fill.to + row * fill.pitch + element * fill.width;
            copy_bytes(bytes.as_ptr() as usize, address, fill.width);
        }
    }
}

impl TestDevice {
    /// Checks that all accesses of some work are to live allocations. Addresses outside all allocations are memory of
    /// the host. Returns the first fault.
    pub(crate) fn access_fault(&self, work: &Work, is_running: bool) -> Option<(FaultKind, String)> {
        for access in work.accesses() {
            if self.memory.find(access.address).is_none() {
                continue;
            }
            if let Err((kind, text)) = self.memory.resolve(access.address, access.bytes, is_running) {
                // A pointer to the end of an allocation, of which nothing is read.
                let is_end = access.bytes == 0 && kind == FaultKind::OutOfBounds;
                if !is_end {
                    return Some((kind, format!("{}: {text}", work.describe())));
                }
            }
        }
        None
    }

    /// Runs some work now. Faults are reported.
    pub(crate) fn run_work(&mut self, work: &Work) {
        if let Work::Free { base } = work {
            self.free_now(*base);
            return;
        }
        if let Work::Resize { base, bytes } = work {
            if let Some((kind, text)) = self.memory.resize_running(*base, *bytes) {
                self.reports.report(kind, text);
            }
            return;
        }
        if self.reports.check().is_err() {
            return;
        }
        if let Some((kind, text)) = self.access_fault(work, true) {
            self.reports.report(kind, text);
            return;
        }
        match work {
            Work::Kernel(launch) => self.run_launch(launch),
            Work::Copy { to, from, bytes } => copy_bytes(*from, *to, *bytes),
            Work::Staged { to, data } => copy_bytes(data.as_ptr() as usize, *to, data.len()),
            Work::Fill(fill) => fill_rows(fill),
            Work::Product(product) => product.compute(),
            Work::Host { function, data } => {
                // SAFETY: the caller of `cuLaunchHostFunc` promises that the function may be called with this
                // argument. It must not call CUDA, which holds here because the device is locked.
                unsafe { function(*data as *mut c_void) };
            }
            Work::Graph(body) => self.run_graph(body),
            Work::Record { event, serial } => {
                if let Some(event) = self.events.get_mut(*event)
                    && event.serial == *serial
                {
                    event.time = Some(Instant::now());
                }
            }
            Work::Wait { stream, position } => self.drain(*stream, *position),
            Work::Free { .. } | Work::Resize { .. } | Work::Nothing => {}
        }
    }

    /// Frees an allocation and reports what it finds.
    pub(crate) fn free_now(&mut self, base: usize) {
        for (kind, text) in self.memory.free(base) {
            self.reports.report(kind, text);
        }
    }

    /// Marks an allocation as freed by work of a stream.
    pub(crate) fn mark_free_pending(&mut self, base: usize) {
        if let Some(record) = self.memory.find_base(base) {
            record.lifetime = Lifetime::FreePending;
        }
    }

    /// Reports the margins of all allocations that were changed.
    pub(crate) fn check_all_margins(&mut self) {
        for (kind, text) in self.memory.all_margin_faults() {
            self.reports.report(kind, text);
        }
    }
}
