//! Executable graphs: the order in which nodes run, and conflicts of unordered nodes.

use std::collections::BTreeMap;
use std::rc::Rc;

use cudarc::driver::sys::CUresult;

use crate::TestDevice;
use crate::interface::{Outcome, Schedule};
use crate::reports::FaultKind;
use crate::work::{GraphBody, NodeWork, Work};

/// An executable graph.
pub(crate) struct GraphExecState {
    pub(crate) body: Rc<GraphBody>,
    /// The graph that it was instantiated from, whose node handles name its nodes.
    pub(crate) source: usize,
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
    /// An invalid graph; an invalid value for a cycle; the errors of the settings `graphs` and `exhausted`.
    pub(crate) fn instantiate(&mut self, graph: usize) -> Result<usize, CUresult> {
        if !self.settings.has_graphs {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        self.settings.check_memory()?;
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
        self.settings.check_memory()?;
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
