//! The summary of a model: a table of its layers, their outputs and their costs.

use crate::parameter::{Buffer, Parameter};
use crate::visit::{is_inside, label};
use pellucid_tensor::{KernelWork, Shape};
use std::fmt;

/// One call of a layer.
#[derive(Clone, Debug)]
pub struct SummaryRow {
    /// The layer's name; empty for the model itself, and for a layer whose address does not identify it.
    pub name: String,
    /// The name of the layer's type.
    pub class: &'static str,
    /// The number of enclosing calls.
    pub depth: usize,
    /// The shape of the output.
    pub output: Shape,
    /// The bytes of the output.
    pub bytes: usize,
    /// The work of the layer, including its inner layers.
    pub work: KernelWork,
}

/// The layers of a model in the order in which they are called; see [`Layer::summary`](crate::Layer::summary).
#[derive(Clone, Debug)]
pub struct Summary {
    /// One row for each call.
    pub rows: Vec<SummaryRow>,
    /// The number of values in parameters; shared parameters count once.
    pub parameters: usize,
    /// The number of these values that are not frozen.
    pub trainable: usize,
    /// The bytes of parameters and buffers.
    pub state_bytes: usize,
    /// The bytes of the outputs of innermost layers: an estimate of the memory that autograd keeps for a backward pass.
    pub activation_bytes: usize,
    /// The work of the forward pass.
    pub work: KernelWork,
    input: Shape,
    /// The names and sizes of all parameters.
    named: Vec<(String, usize)>,
}

impl Summary {
    pub(crate) fn new(
        rows: Vec<SummaryRow>,
        parameters: Vec<(String, Parameter)>,
        buffers: Vec<Buffer>,
        input: &[usize],
    ) -> Summary {
        let sum = |frozen: bool| {
            let counted = parameters.iter().filter(|(_, p)| frozen || p.requires_grad());
            counted.map(|(_, p)| p.size()).sum()
        };
        let parameter_bytes = parameters.iter().map(|(_, p)| p.size() * p.dtype().size());
        let buffer_bytes = buffers.iter().map(|b| b.size() * b.dtype().size());
        let innermost = |(k, row): (usize, &SummaryRow)| match rows.get(k + 1) {
            Some(next) if next.depth > row.depth => 0,
            _ => row.bytes,
        };
        Summary {
            parameters: sum(true),
            trainable: sum(false),
            state_bytes: parameter_bytes.chain(buffer_bytes).sum(),
            activation_bytes: rows.iter().enumerate().map(innermost).sum(),
            work: rows.first().map_or(KernelWork::default(), |row| row.work),
            input: Shape::from(input),
            named: parameters.into_iter().map(|(name, p)| (name, p.size())).collect(),
            rows,
        }
    }

    /// Returns the number of values in the parameters of a row's layer, including inner layers; 0 for a layer without a
    /// name.
    pub fn parameters_of(&self, row: &SummaryRow) -> usize {
        if row.depth == 0 {
            return self.parameters;
        }
        let named = !row.name.is_empty();
        self.named.iter().filter(|(name, _)| named && is_inside(name, &row.name)).map(|(_, size)| size).sum()
    }
}

/// Formats a number with thousands separators: 1234567 as `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with about three significant digits and a unit: `1.54 M`, `97.7 KiB`.
fn scaled(n: u64, step: f64, units: [&str; 5]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", units[unit])
}

fn bytes(n: usize) -> String {
    scaled(n as u64, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"])
}

fn flops(n: u64) -> String {
    scaled(n, 1000.0, ["", "k", "M", "G", "T"])
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["layer", "output", "parameters", "memory", "FLOPs"].map(String::from);
        let line = |row: &SummaryRow| {
            let indent = "  ".repeat(row.depth);
            let parameters = match self.parameters_of(row) {
                0 => String::new(),
                n => grouped(n as u64),
            };
            [
                indent + &label(&row.name, row.class),
                row.output.to_string(),
                parameters,
                bytes(row.bytes),
                flops(row.work.flops),
            ]
        };
        let table: Vec<[String; 5]> = std::iter::once(header).chain(self.rows.iter().map(line)).collect();
        let width = |column: usize| table.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for (k, [layer, output, parameters, memory, work]) in table.iter().enumerate() {
            let [a, b, c, d, e] = widths;
            writeln!(f, "{layer:a$}  {output:b$}  {parameters:>c$}  {memory:>d$}  {work:>e$}")?;
            if k == 0 {
                writeln!(f, "{}", "─".repeat(widths.iter().sum::<usize>() + 8))?;
            }
        }
        let (all, learnt) = (grouped(self.parameters as u64), grouped(self.trainable as u64));
        writeln!(f, "input {}; {all} parameters, {learnt} of them trainable", self.input)?;
        let (state, activations) = (bytes(self.state_bytes), bytes(self.activation_bytes));
        write!(f, "{state} of state, {activations} of activations, {} FLOPs forward", flops(self.work.flops))
    }
}
