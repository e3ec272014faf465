//! Translates shaders to the shader languages of all graphics APIs.
//!
//! A machine has one or two graphics APIs, so its driver compiles shaders for these only. The translator is `naga`, in
//! the version of wgpu, and needs no adapter. This module belongs to the feature `check-translations`.

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use pellucid_ir::{Error, Result, lock};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex};

/// A shader language.
struct Target {
    name: &'static str,
    capabilities: fn() -> Capabilities,
    /// Translates a shader and drops the result.
    translate: fn(&naga::Module, &ModuleInfo) -> std::result::Result<(), String>,
}

const TARGETS: [Target; 3] = [
    Target { name: "SPIR-V (Vulkan)", capabilities: spv::supported_capabilities, translate: to_spirv },
    Target { name: "MSL (Metal)", capabilities: msl::supported_capabilities, translate: to_msl },
    Target { name: "HLSL (Direct3D 12)", capabilities: hlsl::supported_capabilities, translate: to_hlsl },
];

fn to_spirv(module: &naga::Module, info: &ModuleInfo) -> std::result::Result<(), String> {
    // The oldest version with subgroup operations.
    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    spv::write_vec(module, info, &options, None).map(drop).map_err(|e| e.to_string())
}

fn to_msl(module: &naga::Module, info: &ModuleInfo) -> std::result::Result<(), String> {
    // The oldest version with all subgroup operations.
    let options = msl::Options { lang_version: (2, 1), ..Default::default() };
    let (_, translation) = msl::write_string(module, info, &options, &Default::default()).map_err(|e| e.to_string())?;
    translation.entry_point_names.into_iter().try_for_each(|name| name.map(drop)).map_err(|e| e.to_string())
}

fn to_hlsl(module: &naga::Module, info: &ModuleInfo) -> std::result::Result<(), String> {
    // The oldest version with half precision.
    let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_2, ..Default::default() };
    let (pipeline, mut source) = (hlsl::PipelineOptions::default(), String::new());
    let translation =
        hlsl::Writer::new(&mut source, &options, &pipeline).write(module, info, None).map_err(|e| e.to_string())?;
    translation.entry_point_names.into_iter().try_for_each(|name| name.map(drop)).map_err(|e| e.to_string())
}

/// Checks that a shader translates to the languages of all graphics APIs. A process translates every shader once.
///
/// # Errors
/// [`Error::InvalidArgument`] if the shader is invalid, or if a language cannot express it. The error names the
/// language.
pub fn check_translations(op: &'static str, source: &str) -> Result<()> {
    // The digests of the shaders that have been translated.
    static TRANSLATED: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Default::default);
    static HASHER: LazyLock<RandomState> = LazyLock::new(Default::default);
    let translated = || lock(&TRANSLATED);
    let digest = HASHER.hash_one(source);
    if translated().contains(&digest) {
        return Ok(());
    }
    let invalid = |reason: String| Error::invalid(op, reason);
    let module = naga::front::wgsl::parse_str(source).map_err(|e| invalid(e.emit_to_string(source)))?;
    for Target { name, capabilities, translate } in TARGETS {
        let rejected = |reason: String| invalid(format!("the shader does not translate to {name}: {reason}"));
        let mut validator = Validator::new(ValidationFlags::all(), capabilities());
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
        let info = validator.validate(&module).map_err(|e| rejected(e.emit_to_string(source)))?;
        translate(&module, &info).map_err(rejected)?;
    }
    translated().insert(digest);
    Ok(())
}
