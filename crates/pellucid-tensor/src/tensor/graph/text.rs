//! The graph of a node as text.

use super::{Edge, GraphNode, Node, OutputMeta, address};
use crate::device::Device;
use crate::tensor::{Tensor, TensorId};
use pellucid_ir::kernel::Meta;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Weak};

impl Node {
    /// Returns the graph that leads to this node as text: one line for each leaf and each operation, inputs first.
    ///
    /// A leaf is printed with its shape and dtype, whether it has a gradient, and its name, if `names` contains the
    /// tensor. A number identifies a leaf or a result in all lines that use it. `Display` prints the same text without
    /// names.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let weight = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).requires_grad_(true);
    /// let y = (Tensor::from([[1.0f32, 1.0]]).matmul(&weight)).square();
    /// let node = y.creator().expect("y is a result");
    /// let text = node.graph_text([("weight", &weight)]);
    /// assert_eq!(
    ///     text,
    ///     "%0 = leaf `weight`: f32[2, 2], no gradient\n\
    ///      %1 = matmul(constant, %0): f32[1, 2]\n\
    ///      %2 = square(%1): f32[1, 2]\n"
    /// );
    /// ```
    pub fn graph_text<'a>(&self, names: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> String {
        let names = names.into_iter().map(|(name, tensor)| (tensor.id(), name)).collect();
        let mut text = String::new();
        GraphText { out: &mut text, names, numbers: HashMap::new() }
            .write_graph(&self.0)
            .expect("a String must accept text");
        text
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        GraphText { out: f, names: HashMap::new(), numbers: HashMap::new() }.write_graph(&self.0)
    }
}

/// A graph while it is written as text.
struct GraphText<'a> {
    out: &'a mut dyn Write,
    names: HashMap<TensorId, &'a str>,
    /// The numbers of the written nodes and leaves, by address.
    numbers: HashMap<*const (), usize>,
}

impl GraphText<'_> {
    /// Writes the node after all nodes and leaves on which it depends. The search has an explicit stack, because a
    /// chain may have a million nodes.
    fn write_graph(&mut self, node: &Arc<GraphNode>) -> fmt::Result {
        let mut stack = vec![(node, false)];
        while let Some((node, producers_done)) = stack.pop() {
            if self.numbers.contains_key(&address(node)) {
                continue;
            }
            if producers_done {
                self.write_node(node)?;
                continue;
            }
            stack.push((node, true));
            // The first input is on top of the stack, so the lines are in the order of the inputs.
            stack.extend(node.edges.iter().rev().filter_map(|edge| match edge {
                Edge::Node(producer, _) => Some((producer, false)),
                _ => None,
            }));
        }
        Ok(())
    }

    fn write_node(&mut self, node: &Arc<GraphNode>) -> fmt::Result {
        for edge in &node.edges {
            self.write_leaf(edge)?;
        }
        let inputs: Vec<String> = node.edges.iter().map(|edge| self.input(edge)).collect();
        let outputs: Vec<String> =
            node.outputs_meta.iter().map(|OutputMeta { meta, device }| format_meta(meta, *device)).collect();
        let outputs = if let [output] = &outputs[..] { output.clone() } else { format!("({})", outputs.join(", ")) };
        let number = self.add_number(address(node));
        writeln!(self.out, "%{number} = {}({}): {outputs}", node.derivative().name(), inputs.join(", "))
    }

    /// Writes the line of a leaf, unless it was written already.
    fn write_leaf(&mut self, edge: &Edge) -> fmt::Result {
        let Edge::Leaf(slot) = edge else { return Ok(()) };
        let key = Weak::as_ptr(slot).cast();
        if self.numbers.contains_key(&key) {
            return Ok(());
        }
        let number = self.add_number(key);
        let Some(slot) = slot.upgrade() else { return writeln!(self.out, "%{number} = leaf: dropped") };
        let name = slot.tensor().and_then(|leaf| self.names.get(&leaf.id()).map(|name| format!(" `{name}`")));
        let gradient = if slot.get_untracked().is_some() { "has a gradient" } else { "no gradient" };
        let typed = format_meta(slot.meta(), slot.device());
        writeln!(self.out, "%{number} = leaf{}: {typed}, {gradient}", name.unwrap_or_default())
    }

    /// Formats an input, whose producer was written.
    fn input(&self, edge: &Edge) -> String {
        match edge {
            Edge::None => "constant".into(),
            Edge::Leaf(slot) => format!("%{}", self.numbers[&Weak::as_ptr(slot).cast()]),
            Edge::Node(node, index) => match node.outputs_meta.len() {
                1 => format!("%{}", self.numbers[&address(node)]),
                _ => format!("%{}.{index}", self.numbers[&address(node)]),
            },
        }
    }

    fn add_number(&mut self, key: *const ()) -> usize {
        let number = self.numbers.len();
        self.numbers.insert(key, number);
        number
    }
}

/// Formats dtype and shape, and the device unless it is the CPU.
fn format_meta(meta: &Meta, device: Device) -> String {
    let formatted = format!("{}{}", meta.dtype, meta.shape);
    if device == Device::cpu() { formatted } else { format!("{formatted} on {device}") }
}
