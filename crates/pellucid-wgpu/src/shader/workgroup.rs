//! Reductions over the invocations of a workgroup.

use super::program::Accumulator;
use super::types::type_text;
use super::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Compute;

/// A value that every invocation of a workgroup has.
pub(crate) struct InvocationValue {
    /// The WGSL type.
    pub(crate) type_name: &'static str,
    /// The expression of the value.
    pub(crate) text: String,
}

/// Adds the lines that combine the results of an accumulator of all invocations, and returns the name of the combined
/// value. See [`combine_values`].
pub(crate) fn combine_in_workgroup(
    shader: &mut ShaderBuilder,
    accumulator: &Accumulator,
    shared: &str,
    subgroups: bool,
) -> String {
    let is_mask = accumulator.compute() == Compute::Mask;
    // A shuffle exchanges numbers.
    let (type_name, text) = match is_mask {
        true => ("u32", format!("select(0u, 1u, {})", accumulator.result())),
        false => (type_text(accumulator.compute()), accumulator.result()),
    };
    let values = [InvocationValue { type_name, text }];
    let combined = combine_values(shader, &values, shared, subgroups, |shader, own, other| {
        let text = match is_mask {
            true => {
                let combined = accumulator.combined(&format!("({} != 0u)", own[0]), &format!("({} != 0u)", other[0]));
                format!("select(0u, 1u, {combined})")
            }
            false => accumulator.combined(&own[0], &other[0]),
        };
        shader.line(format!("{} = {text};", own[0]));
    });
    match is_mask {
        true => shader.define(format!("({} != 0u)", combined[0])),
        false => combined[0].clone(),
    }
}

/// Adds the lines that combine the values of all invocations, and returns the names of the combined values. All
/// invocations execute the lines; `shared` is an unused name of shared memory. `combine` adds the lines that combine
/// the variables of an invocation with the values of another invocation, in any order.
///
/// The values are combined by a binary tree: invocations at a distance of 1, then 2, 4, ... A subgroup exchanges values
/// without memory and barriers, so with `subgroups` the levels of the tree within a subgroup use a shuffle. The tree,
/// and thus every bit of the result, is the same for subgroups of all sizes and without them.
pub(crate) fn combine_values(
    shader: &mut ShaderBuilder,
    values: &[InvocationValue],
    shared: &str,
    subgroups: bool,
    combine: impl Fn(&mut ShaderBuilder, &[String], &[String]),
) -> Vec<String> {
    let stride = format!("{shared}_stride");
    let memory: Vec<String> = (0..values.len()).map(|k| format!("{shared}_{k}")).collect();
    let own: Vec<String> = memory.iter().map(|memory| format!("own_{memory}")).collect();
    for ((value, memory), own) in values.iter().zip(&memory).zip(&own) {
        let declaration = format!("var<workgroup> {memory}: array<{}, {WORKGROUP}>;\n", value.type_name);
        shader.globals.push_str(&declaration);
        shader.line(format!("var {own} = {};", value.text));
    }
    shader.line(format!("var {stride} = 1u;"));
    let next = format!("{stride} = {stride} << 1u");
    if subgroups {
        let size = shader.subgroup_size();
        shader.line(format!("for (; {stride} < min({size}, {WORKGROUP}u); {next}) {{"));
        let other: Vec<String> =
            own.iter().map(|own| shader.define(format!("subgroupShuffleXor({own}, {stride})"))).collect();
        combine(shader, &own, &other);
        shader.line("}");
    }
    let store = |shader: &mut ShaderBuilder| {
        memory.iter().zip(&own).for_each(|(memory, own)| shader.line(format!("{memory}[local] = {own};")));
    };
    store(shader);
    shader.line("workgroupBarrier();");
    shader.line(format!("for (; {stride} < {WORKGROUP}u; {next}) {{"));
    shader.line(format!("if ((local & (2u * {stride} - 1u)) == 0u) {{"));
    let other: Vec<String> = memory.iter().map(|memory| shader.define(format!("{memory}[local + {stride}]"))).collect();
    combine(shader, &own, &other);
    store(shader);
    shader.line("}");
    shader.line("workgroupBarrier();");
    shader.line("}");
    memory.iter().map(|memory| shader.define(format!("{memory}[0]"))).collect()
}
