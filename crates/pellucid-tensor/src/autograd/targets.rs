//! The tensors whose gradients `grad` collects, and the nodes that lead to them.

use super::address_map::AddressMap;
use crate::tensor::{Edge, GraphNode, Tensor, address};
use smallvec::SmallVec;
use std::sync::Arc;

/// A tensor whose gradient is collected for [`grad`](super::grad), not added to a slot.
pub(crate) struct GradTarget {
    pub(crate) edge: Edge,
    pub(crate) gradient: Option<Tensor>,
    /// Whether the graph of an output leads to the tensor.
    pub(crate) is_reached: bool,
}

impl GradTarget {
    pub(crate) fn new(tensor: &Tensor) -> GradTarget {
        GradTarget { edge: tensor.edge(), gradient: None, is_reached: false }
    }
}

/// Marks the targets to which `edge` refers. Returns true if there are any.
fn mark_reached(targets: &mut [GradTarget], edge: &Edge) -> bool {
    let mut is_reached = false;
    if edge.is_tracked() {
        for target in targets.iter_mut().filter(|target| target.edge.is_same(edge)) {
            (target.is_reached, is_reached) = (true, true);
        }
    }
    is_reached
}

/// Computes for every node that the outputs depend on whether a target is reachable from it, and marks the targets that
/// are reachable from an output.
pub(crate) fn nodes_leading_to(targets: &mut [GradTarget], outputs: &[&Tensor]) -> AddressMap<bool> {
    let mut leads: AddressMap<bool> = AddressMap::default();
    // Depth-first search with an explicit stack: a node is resolved after its producers.
    let mut stack: Vec<(Arc<GraphNode>, bool)> = Vec::new();
    for output in outputs {
        let edge = output.edge();
        mark_reached(targets, &edge);
        if let Edge::Node(node, _) = edge {
            stack.push((node, false));
        }
    }
    while let Some((node, producers_done)) = stack.pop() {
        let key = address(&node) as usize;
        if producers_done {
            let mut leads_to_target = false;
            for edge in &node.edges {
                leads_to_target |= mark_reached(targets, edge)
                    || matches!(edge, Edge::Node(p, _) if leads.get(address(p) as usize).unwrap_or(false));
            }
            leads.insert(key, leads_to_target);
            continue;
        }
        if leads.get(key).is_some() {
            continue;
        }
        // This entry is a placeholder until the node's producers are resolved. The graph has no cycles, so the search
        // never reads the placeholder.
        leads.insert(key, false);
        let producers: SmallVec<[Arc<GraphNode>; 4]> = node
            .edges
            .iter()
            .filter_map(|e| match e {
                Edge::Node(p, _) if leads.get(address(p) as usize).is_none() => Some(p.clone()),
                _ => None,
            })
            .collect();
        stack.push((node, true));
        stack.extend(producers.into_iter().map(|p| (p, false)));
    }
    leads
}
