//! Reductions over the invocations of a workgroup, or over groups of neighbouring invocations.

use super::template::{CollectLines, values};
use super::{ShaderBuilder, WORKGROUP};

/// The invocations that combine their values: groups of neighbouring invocations of a workgroup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CombinedLanes<'a> {
    /// The expression of the number of invocations of a group: a power of two, at most the size of a workgroup.
    pub(crate) count: &'a str,
    /// Whether the invocations of a subgroup exchange values.
    pub(crate) subgroups: bool,
}

/// An expression whose value differs between the invocations of a workgroup.
pub(crate) struct InvocationValue {
    pub(crate) type_name: &'static str,
    pub(crate) expr: String,
}

/// Combines the values of the invocations at a distance of `$stride`, starting at 1.
const COMBINE_VALUES: &str = "
    var $stride = 1u;
    $combine_in_subgroup
    $store
    workgroupBarrier();
    for (; $stride < $lanes; $stride = $stride << 1u) {
        if ((local & (2u * $stride - 1u)) == 0u) {
            $combine_stored
            $store
        }
        workgroupBarrier();
    }
";

/// The levels of the tree within a subgroup.
const COMBINE_IN_SUBGROUP: &str = "
    for (; $stride < min($subgroup_size, $lanes); $stride = $stride << 1u) {
        $combine_shuffled
    }
";

/// Adds the lines that combine the values of every group of `lanes`, and returns the names of the combined values. All
/// invocations execute the lines; `shared` is a name for shared memory that the shader does not use yet. `combine` adds
/// the lines that combine the variables of an invocation with the values of another invocation, in any order.
///
/// The values are combined by a binary tree: invocations at a distance of 1, then 2, 4, ... A subgroup exchanges values
/// without memory and barriers, so with `subgroups` the levels of the tree within a subgroup use a shuffle. The tree,
/// and thus every bit of the result, is the same for subgroups of all sizes and without them.
pub(crate) fn combine_values(
    shader: &mut ShaderBuilder,
    values: &[InvocationValue],
    shared: &str,
    CombinedLanes { count: lanes, subgroups }: CombinedLanes<'_>,
    combine: impl Fn(&mut ShaderBuilder, &[String], &[String]),
) -> Vec<String> {
    let stride = format!("{shared}_stride");
    let memory: Vec<String> = (0..values.len()).map(|k| format!("{shared}_{k}")).collect();
    let current: Vec<String> = memory.iter().map(|memory| format!("own_{memory}")).collect();
    for ((value, memory), current) in values.iter().zip(&memory).zip(&current) {
        shader.workgroup_array(memory, value.type_name, WORKGROUP as usize);
        shader.line(format!("var {current} = {};", value.expr));
    }
    let combine_with = |shader: &mut ShaderBuilder, other: &dyn Fn(usize) -> String| {
        let other: Vec<String> = (0..values.len()).map(|k| shader.define(other(k))).collect();
        combine(shader, &current, &other);
    };
    let combine_in_subgroup = if subgroups { COMBINE_IN_SUBGROUP } else { "" };
    let subgroup_size = if subgroups { shader.subgroup_size() } else { "" };
    let combine_shuffled = shader.collect_lines(|shader| {
        if subgroups {
            combine_with(shader, &|k| format!("subgroupShuffleXor({}, {stride})", current[k]));
        }
    });
    let combine_stored =
        shader.collect_lines(|shader| combine_with(shader, &|k| format!("{}[local + {stride}]", memory[k])));
    let stores = memory.iter().zip(&current).map(|(memory, current)| format!("{memory}[local] = {current};\n"));
    let store: String = stores.collect();
    let sizes = values![stride, lanes, subgroup_size];
    let lines = values![combine_in_subgroup, combine_shuffled, combine_stored, store];
    shader.template(COMBINE_VALUES, &[&sizes[..], lines].concat());
    memory.iter().map(|memory| shader.define(format!("{memory}[local & ~({lanes} - 1u)]"))).collect()
}
