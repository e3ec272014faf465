//! Graphs: nodes with dependencies, executable copies, the order in which they run, and conflicts of unordered nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use cudarc::driver::sys::{CUgraphExecUpdateResult_enum as UpdateResult, CUgraphNodeType, CUresult};

use crate::device::{Outcome, Schedule, TestDevice};
use crate::reports::FaultKind;
use crate::work::{MemoryAccess, Work};

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

/// An executable graph.
pub(crate) struct GraphExecState {
    pub(crate) body: Rc<GraphBody>,
    /// The graph that it was instantiated from, whose node handles name its nodes.
    pub(crate) source: usize,
}

impl NodeWork {
    /// The type of the node. A matrix product is a kernel of the library.
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

    fn accesses(&self) -> Vec<MemoryAccess> {
        match self {
            Self::Plain(work) => work.accesses(),
            Self::Child(body) => body.accesses(),
            Self::RecordEvent(_) | Self::WaitEvent(_) => Vec::new(),
        }
    }

    fn describe(&self) -> String {
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

    /// The nodes with their positions.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &GraphNodeState)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.as_ref()?)))
    }

    /// The accesses of all nodes.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        self.present().flat_map(|(_, node)| node.work.accesses()).collect()
    }

    /// The nodes that some nodes depend on, and those nodes.
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

    /// The nodes in an order that satisfies the dependencies. Of the nodes that may run, the first or the last one
    /// runs. `None` for a cycle.
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

impl TestDevice {
    /// Gives a graph and its nodes handles, and returns the graph's.
    pub(crate) fn insert_graph(&mut self, body: GraphBody) -> usize {
        let graph = self.graphs.insert(body);
        let count = self.graphs.get(graph).map_or(0, |body| body.nodes.len());
        for index in 0..count {
            self.name_node(graph, index);
        }
        graph
    }

    /// Gives a node a handle and returns it.
    pub(crate) fn name_node(&mut self, graph: usize, index: usize) -> usize {
        // Node handles share the numbers of graphs: a reserved entry of the table is removed at once.
        let handle = self.graphs.insert(GraphBody::default());
        self.graphs.remove(handle);
        self.nodes.insert(handle, (graph, index));
        if let Some(Some(node)) = self.graphs.get_mut(graph).and_then(|body| body.nodes.get_mut(index)) {
            node.handle = handle;
        }
        handle
    }

    /// Makes a graph executable.
    ///
    /// # Errors
    /// An invalid graph; an invalid value for a cycle.
    pub(crate) fn instantiate(&mut self, graph: usize) -> Result<usize, CUresult> {
        let Some(body) = self.graphs.get(graph) else {
            return Err(self.invalid_handle("graph", graph));
        };
        let body = Rc::new(body.clone());
        body.order(false).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.check_node_order(&body);
        Ok(self.execs.insert(GraphExecState { body, source: graph }))
    }

    /// Reports nodes whose accesses conflict and that no path orders.
    pub(crate) fn check_node_order(&mut self, body: &GraphBody) {
        let Some(order) = body.order(false) else {
            return;
        };
        // The ancestors of each node as bits.
        let words = body.nodes.len().div_ceil(64);
        let mut ancestors = vec![vec![0_u64; words]; body.nodes.len()];
        let mut accesses: BTreeMap<usize, Vec<(usize, bool)>> = BTreeMap::new();
        for index in order {
            let Some(node) = &body.nodes[index] else { continue };
            if let NodeWork::Child(child) = &node.work {
                self.check_node_order(child);
            }
            let mut own = vec![0_u64; words];
            for &before in &node.dependencies {
                own[before / 64] |= 1 << (before % 64);
                for (word, other) in own.iter_mut().zip(&ancestors[before]) {
                    *word |= other;
                }
            }
            for access in node.work.accesses() {
                let Some(record) = self.memory.find(access.address) else { continue };
                let (base, text) = (record.base, record.describe());
                let earlier = accesses.entry(base).or_default();
                let is_conflict = |&&(other, is_write): &&(usize, bool)| {
                    let is_ordered = other == index || own[other / 64] >> (other % 64) & 1 == 1;
                    (is_write || access.is_write) && !is_ordered
                };
                if let Some(&(other, _)) = earlier.iter().find(is_conflict) {
                    let other = body.nodes[other].as_ref().map_or(String::new(), |n| n.work.describe());
                    let report = format!("no path orders {other} and {}, in {text}", node.work.describe());
                    self.reports.report(FaultKind::NodeRace, report);
                }
                earlier.push((index, access.is_write));
            }
            ancestors[index] = own;
        }
    }

    /// Enqueues an executable graph.
    ///
    /// # Errors
    /// Invalid handles; errors of captures.
    pub(crate) fn launch_graph(&mut self, exec: usize, stream: usize) -> Outcome {
        let Some(state) = self.execs.get(exec) else {
            return Err(self.invalid_handle("executable graph", exec));
        };
        let work = Work::Graph(state.body.clone());
        if let Some((kind, text)) = self.access_fault(&work, false) {
            return Err(self.reports.report(kind, text));
        }
        self.reports.count("graph launches");
        self.enqueue(stream, work)
    }

    /// Runs the nodes of a graph.
    pub(crate) fn run_graph(&mut self, body: &GraphBody) {
        let is_descending = self.settings.schedule != Schedule::Ascending;
        for index in body.order(is_descending).unwrap_or_default() {
            let Some(node) = &body.nodes[index] else { continue };
            match &node.work {
                NodeWork::Plain(work) => self.run_work(work),
                NodeWork::Child(child) => self.run_graph(child),
                NodeWork::RecordEvent(event) => {
                    if let Some(event) = self.events.get_mut(*event) {
                        event.time = Some(std::time::Instant::now());
                    }
                }
                NodeWork::WaitEvent(event) => {
                    if let Some(Some((stream, position))) = self.events.get(*event).map(|e| e.point) {
                        self.drain(stream, position);
                    }
                }
            }
        }
    }
}
