//! Reductions over the invocations of a workgroup.

use super::program::{Accumulator, type_text};
use super::{ShaderBuilder, WORKGROUP};
use pellucid_ir::Compute;

/// Adds the lines that combine the results of an accumulator of all invocations, and returns the name of the combined
/// value. All invocations execute the lines; `shared` is an unused name of shared memory.
///
/// The values are combined by a binary tree: invocations at a distance of 1, then 2, 4, ... A subgroup exchanges values
/// without memory and barriers, so with `subgroups` the levels of the tree within a subgroup use a shuffle. The tree,
/// and thus every bit of the result, is the same for subgroups of all sizes and without them.
pub(crate) fn combine_in_workgroup(
    shader: &mut ShaderBuilder,
    accumulator: &Accumulator,
    shared: &str,
    subgroups: bool,
) -> String {
    let (compute, [own, stride]) = (accumulator.compute(), ["own", "stride"].map(|part| format!("{shared}_{part}")));
    let declaration = format!("var<workgroup> {shared}: array<{}, {WORKGROUP}>;\n", type_text(compute));
    shader.globals.push_str(&declaration);
    shader.line(format!("var {own} = {};", accumulator.result()));
    shader.line(format!("var {stride} = 1u;"));
    let next = format!("{stride} = {stride} << 1u");
    if subgroups {
        let size = shader.subgroup_size();
        shader.line(format!("for (; {stride} < min({size}, {WORKGROUP}u); {next}) {{"));
        let other = shader.define(match compute {
            Compute::Mask => format!("(subgroupShuffleXor(select(0u, 1u, {own}), {stride}) != 0u)"),
            _ => format!("subgroupShuffleXor({own}, {stride})"),
        });
        shader.line(format!("{own} = {};", accumulator.combined(&own, &other)));
        shader.line("}");
    }
    shader.line(format!("{shared}[local] = {own};"));
    shader.line("workgroupBarrier();");
    shader.line(format!("for (; {stride} < {WORKGROUP}u; {next}) {{"));
    shader.line(format!("if ((local & (2u * {stride} - 1u)) == 0u) {{"));
    let [x, y] = [format!("{shared}[local]"), format!("{shared}[local + {stride}]")];
    shader.line(format!("{x} = {};", accumulator.combined(&x, &y)));
    shader.line("}");
    shader.line("workgroupBarrier();");
    shader.line("}");
    shader.define(format!("{shared}[0]"))
}
