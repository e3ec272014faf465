//! [`Wgsl`]: kernels in WGSL.

use super::{BindingUse, ITEM_COUNT, KernelSource, Language, ROUND_F16, SELECT_LOADED, WORKGROUP};
use std::fmt::Write;

/// The language WGSL. The body and the library functions are printed unchanged, except for the name of
/// `select_loaded`.
///
/// Group 0 contains the parameters and the status buffer. Group 1 contains the buffers of the operands.
#[derive(Clone, Copy, Debug)]
pub enum Wgsl {}

impl Language for Wgsl {
    fn text(source: &KernelSource<'_>) -> String {
        let mut text = String::from("@group(0) @binding(0) var<storage, read> params: array<u32>;\n");
        let (access, element, status) = match source.is_check {
            true => ("read_write", "atomic<u32>", "atomicLoad(&status[0])"),
            false => ("read", "u32", "status[0]"),
        };
        let _ = writeln!(text, "@group(0) @binding(1) var<storage, {access}> status: array<{element}>;");
        for (k, usage) in source.bindings.iter().enumerate() {
            let (access, element) = match usage {
                BindingUse::Read => ("read", "u32"),
                BindingUse::ReadVectors => ("read", "vec4<u32>"),
                BindingUse::Write => ("read_write", "u32"),
                BindingUse::Atomic => ("read_write", "atomic<u32>"),
            };
            let b = k + 1;
            let _ = writeln!(text, "@group(1) @binding({k}) var<storage, {access}> b{b}: array<{element}>;");
        }
        // A zero that is known at run time only, for the library functions.
        text.push_str("var<private> zero: u32;\n");
        for array in source.workgroup_arrays {
            let _ = writeln!(text, "var<workgroup> {}: array<{}, {}>;", array.name, array.element_type, array.len);
        }
        text.extend(source.library(|_| false).into_iter().filter_map(|function| function.source));
        let subgroup_size = match source.has_subgroup_size {
            true => ", @builtin(subgroup_size) subgroup_size: u32",
            false => "",
        };
        let _ = write!(
            text,
            "@compute @workgroup_size({WORKGROUP})\n\
             fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,\n    \
                @builtin(local_invocation_index) local: u32{subgroup_size}) {{\n    \
                if ({status} != 0u) {{ return; }}\n    \
                zero = params[1];\n    \
                let group = group_id.y * groups.x + group_id.x;\n    \
                let thread = group * {WORKGROUP}u + local;\n"
        );
        if let Some(item) = source.item {
            let _ = writeln!(text, "    if ({item} >= {ITEM_COUNT}) {{ return; }}");
        }
        text.push_str(&source.body.replace(SELECT_LOADED, "select"));
        text.push_str("}\n");
        match text.contains(ROUND_F16) {
            true => format!("enable f16;\n{text}"),
            false => text,
        }
    }
}
