//! Running reductions of the values of a sequence in one invocation.

use super::ShaderBuilder;
use super::access::{load_words, store_words};
use super::iterations::iterations;
use super::program::binary_expr;
use super::template::{CollectLines, values};
use super::types::{WgslFloat, float_prefix, i64_from_word, wgsl_type, words};
use super::workgroup::{CombinedLanes, InvocationValue, combine_values};
use pellucid_ir::Compute;
use pellucid_ir::formula::Binary;

/// The operation of an [`Accumulator`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum AccumulatorOp {
    /// Combines all values. Sums of `f32` are compensated (Neumaier 1974).
    Fold(Binary),
    /// Finds the largest value and its index, or the smallest value if `largest` is false. NaN is selected before all
    /// numbers.
    Arg { largest: bool, ties: TieRule },
}

/// The value that is selected if several values are equal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum TieRule {
    /// Selects the value that is accumulated first.
    Earlier,
    /// Selects the value that is accumulated last.
    Later,
    /// Selects the value with the lowest index.
    LowestIndex,
}

impl AccumulatorOp {
    /// Returns an estimate of the iterations of the loops that accumulate a value of type `compute`.
    pub(crate) fn iterations(self, compute: Compute) -> usize {
        iterations(&ShaderBuilder::default().collect_lines(|shader| {
            Accumulator::declare(shader, self, compute, "result").accumulate(shader, "value", "index");
        }))
    }

    /// Returns the number of words of a partial result: the value, and for [`AccumulatorOp::Arg`] its index.
    pub(crate) fn partial_words(self, compute: Compute) -> usize {
        words(compute) + usize::from(matches!(self, AccumulatorOp::Arg { .. }))
    }
}

/// The variables of a running reduction.
#[derive(Clone, Debug)]
pub(crate) struct Accumulator {
    reduction: AccumulatorOp,
    /// The type of the values.
    pub(crate) compute: Compute,
    /// The variable of the value. The index is in `{name}_index`, the rounding error in `{name}_error`.
    name: String,
}

/// The statements that replace the selected value.
const REPLACE_BEST: &str = "
    if ($replaces) {
        $best = $value;
        $best_index = $index;
    }
";

impl Accumulator {
    /// Declares the variables, which have accumulated no value yet.
    pub(crate) fn declare(
        shader: &mut ShaderBuilder,
        reduction: AccumulatorOp,
        compute: Compute,
        name: &str,
    ) -> Accumulator {
        let accumulator = Accumulator { reduction, compute, name: name.to_string() };
        let ty = wgsl_type(compute);
        match reduction {
            AccumulatorOp::Fold(op) => {
                shader.line(format!("var {name}: {ty} = {};", identity_expr(op, compute)));
                if accumulator.is_compensated() {
                    shader.line(format!("var {name}_error = 0.0;"));
                }
            }
            AccumulatorOp::Arg { .. } => {
                shader.line(format!("var {name}: {ty};"));
                shader.line(format!("var {name}_index = 0xffffffffu;"));
            }
        }
        accumulator
    }

    fn is_compensated(&self) -> bool {
        (self.reduction, self.compute) == (AccumulatorOp::Fold(Binary::Add), Compute::F32)
    }

    /// Returns the variable of the index of the selected value.
    pub(crate) fn index(&self) -> String {
        format!("{}_index", self.name)
    }

    /// Adds the lines that accumulate `value`, which has the index `index` in the sequence.
    pub(crate) fn accumulate(&self, shader: &mut ShaderBuilder, value: &str, index: &str) {
        let name = &self.name;
        match self.reduction {
            AccumulatorOp::Fold(_) if self.is_compensated() => {
                let sum = shader.define(format!("f_two_sum({name}, {value})"));
                shader.line(format!("{name} = {sum}.x;"));
                shader.line(format!("{name}_error = f_add({name}_error, {sum}.y);"));
            }
            AccumulatorOp::Fold(op) => shader.line(format!("{name} = {};", binary_expr(op, self.compute, name, value))),
            AccumulatorOp::Arg { .. } => {
                let (best, best_index) = (name, self.index());
                let is_preferred = self.is_preferred([value, index], [best, &best_index]);
                let replaces = format!("{best_index} == 0xffffffffu || {is_preferred}");
                shader.template(REPLACE_BEST, values![replaces, best, value, best_index, index]);
            }
        }
    }

    /// Returns the reduced value. The accumulated rounding errors are ignored if the sum is infinite or NaN.
    pub(crate) fn value(&self) -> String {
        let name = &self.name;
        match self.is_compensated() {
            true => format!("select({name}, f_add({name}, {name}_error), f_is_finite({name}))"),
            false => name.clone(),
        }
    }

    /// Returns the result: the reduced value, or the index of the selected value as an `i64`.
    pub(crate) fn result(&self) -> String {
        match self.reduction {
            AccumulatorOp::Fold(_) => self.value(),
            AccumulatorOp::Arg { .. } => i64_from_word(&self.index()),
        }
    }

    /// Returns the word of the index in the partial result at word `offset`.
    fn index_word(&self, offset: &str) -> String {
        format!("{offset} + {}u", words(self.compute))
    }

    /// Adds the lines that store the partial result in a buffer, starting at word `offset`.
    pub(crate) fn store_partial(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        let value = if self.is_compensated() { shader.define(self.value()) } else { self.value() };
        store_words(shader, binding, self.compute, &value, offset);
        if let AccumulatorOp::Arg { .. } = self.reduction {
            shader.store_word(binding, &self.index_word(offset), &self.index());
        }
    }

    /// Adds the lines that accumulate a [stored](Accumulator::store_partial) partial result.
    pub(crate) fn accumulate_partial(&self, shader: &mut ShaderBuilder, binding: usize, offset: &str) {
        let value = shader.define(load_words(shader, binding, self.compute, offset));
        let index = match self.reduction {
            AccumulatorOp::Fold(_) => String::new(),
            AccumulatorOp::Arg { .. } => shader.define(shader.word(binding, &self.index_word(offset))),
        };
        self.accumulate(shader, &value, &index);
    }

    /// Adds the lines that combine the results of all invocations in a workgroup, or in groups of `lanes` invocations,
    /// and returns the expression of the combined result. For [`AccumulatorOp::Arg`], every invocation must have
    /// accumulated a value. See [`combine_values`].
    pub(crate) fn combine_in_workgroup(
        &self,
        shader: &mut ShaderBuilder,
        shared: &str,
        lanes: CombinedLanes<'_>,
    ) -> String {
        match self.reduction {
            AccumulatorOp::Fold(op) => self.fold_in_workgroup(shader, op, shared, lanes),
            AccumulatorOp::Arg { .. } => {
                let value = |type_name, expr| InvocationValue { type_name, expr };
                let values = [value(wgsl_type(self.compute), self.value()), value("u32", self.index())];
                let combined = combine_values(shader, &values, shared, lanes, |shader, current, other| {
                    let ([best, best_index], [value, index]) = ([0, 1].map(|k| &current[k]), [0, 1].map(|k| &other[k]));
                    let replaces = self.is_preferred([value, index], [best, best_index]);
                    shader.template(REPLACE_BEST, values![replaces, best, value, best_index, index]);
                });
                i64_from_word(&combined[1])
            }
        }
    }

    fn fold_in_workgroup(
        &self,
        shader: &mut ShaderBuilder,
        op: Binary,
        shared: &str,
        lanes: CombinedLanes<'_>,
    ) -> String {
        // A shuffle exchanges numbers, so a mask is 0 or 1.
        let is_mask = self.compute == Compute::Mask;
        let as_number = |mask: String| if is_mask { format!("select(0u, 1u, {mask})") } else { mask };
        let as_value = |number: &String| if is_mask { format!("({number} != 0u)") } else { number.clone() };
        let type_name = if is_mask { "u32" } else { wgsl_type(self.compute) };
        let values = [InvocationValue { type_name, expr: as_number(self.value()) }];
        let combined = combine_values(shader, &values, shared, lanes, |shader, current, other| {
            let combined = binary_expr(op, self.compute, &as_value(&current[0]), &as_value(&other[0]));
            shader.line(format!("{} = {};", current[0], as_number(combined)));
        });
        if is_mask { shader.define(as_value(&combined[0])) } else { combined[0].clone() }
    }

    /// Returns the condition that an [`AccumulatorOp::Arg`] selects the value x rather than y. The value y was
    /// accumulated before x, and both have an index.
    fn is_preferred(&self, [x, x_index]: [&str; 2], [y, y_index]: [&str; 2]) -> String {
        let AccumulatorOp::Arg { largest, ties } = self.reduction else { return "true".into() };
        let precedes = |x, y| precedes_expr(self.compute, largest, x, y);
        match ties {
            TieRule::Earlier => precedes(x, y),
            TieRule::Later => format!("!{}", precedes(y, x)),
            TieRule::LowestIndex => format!("({} || (!{} && {x_index} < {y_index}))", precedes(x, y), precedes(y, x)),
        }
    }
}

/// Returns the condition that x is larger than y, or smaller if `largest` is false. In both orders NaN precedes all
/// numbers.
fn precedes_expr(compute: Compute, largest: bool, x: &str, y: &str) -> String {
    let (low, high) = if largest { (y, x) } else { (x, y) };
    match compute {
        Compute::Mask => format!("(!{low} && {high})"),
        Compute::I32 => format!("({low} < {high})"),
        Compute::I64 => format!("l_lt({low}, {high})"),
        Compute::F32 | Compute::F64 => {
            let p = float_prefix(compute);
            format!("(({p}_is_nan({x}) && !{p}_is_nan({y})) || {p}_lt({low}, {high}))")
        }
    }
}

/// Returns the identity of an operation.
fn identity_expr(op: Binary, compute: Compute) -> &'static str {
    let is_largest = matches!(op, Binary::Min | Binary::And);
    let float = WgslFloat(compute);
    match (op, compute) {
        (Binary::Mul, Compute::F32 | Compute::F64) => float.one(),
        (Binary::Mul, Compute::I64) => "vec2<u32>(1u, 0u)",
        (Binary::Mul, _) => "1",
        (_, Compute::Mask) if is_largest => "true",
        (_, Compute::Mask) => "false",
        (Binary::Add, Compute::F32 | Compute::F64) => float.zero(),
        (Binary::Add, Compute::I64) => "vec2<u32>(0u, 0u)",
        (Binary::Add, _) => "0",
        (_, Compute::F32 | Compute::F64) if is_largest => float.infinity(),
        (_, Compute::F32 | Compute::F64) => float.negative_infinity(),
        (_, Compute::I64) if is_largest => "vec2<u32>(0xffffffffu, 0x7fffffffu)",
        (_, Compute::I64) => "vec2<u32>(0u, 0x80000000u)",
        (_, Compute::I32) if is_largest => "2147483647",
        (_, Compute::I32) => "i32(-2147483648)",
    }
}
