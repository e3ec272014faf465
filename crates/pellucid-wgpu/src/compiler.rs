//! [`ShaderCompiler`]: compiled shaders, and their bind groups.
//!
//! Group 0 contains the parameters, at a dynamic offset, and the status buffer. All dispatches of a submission share
//! two such groups: one for shaders that read the status, and one for shaders that change it. Group 1 contains the
//! buffers of the operands.

use crate::cache::GenerationalCache;
use crate::device::GraphicsDevice;
use crate::shader::{ShaderBuilder, ShaderFeatures};
use pellucid_ir::{Result, lock};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

/// The maximum number of shaders in a generation of the cache.
const CACHED_SHADERS: usize = 1024;

/// The maximum number of layouts in a generation of the cache.
const CACHED_LAYOUTS: usize = 256;

/// A pipeline and the layout of its operands.
pub(crate) struct CompiledShader {
    pub(crate) pipeline: wgpu::ComputePipeline,
    /// The layout of group 1.
    pub(crate) operand_layout: wgpu::BindGroupLayout,
    /// Whether the shader changes the status buffer.
    pub(crate) is_check: bool,
}

/// Group 0 of a parameter buffer, for shaders that read the status buffer and for those that change it.
pub(crate) struct ParameterBindGroups {
    reads_status: wgpu::BindGroup,
    changes_status: wgpu::BindGroup,
}

impl ParameterBindGroups {
    /// Returns the group for a shader.
    pub(crate) fn group(&self, shader: &CompiledShader) -> &wgpu::BindGroup {
        if shader.is_check { &self.changes_status } else { &self.reads_status }
    }
}

/// The compiled shaders of a device by their source code.
pub(crate) struct ShaderCompiler {
    /// The layouts of group 0 of shaders that read the status buffer, and of shaders that change it.
    headers: [wgpu::BindGroupLayout; 2],
    /// The layouts of group 1. The key states for each buffer whether it is only read.
    operands: Mutex<GenerationalCache<Vec<bool>, wgpu::BindGroupLayout>>,
    shaders: Mutex<GenerationalCache<String, Arc<CompiledShader>>>,
}

fn storage_entry(binding: usize, read_only: bool, has_dynamic_offset: bool) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only },
            has_dynamic_offset,
            min_binding_size: None,
        },
        count: None,
    }
}

impl ShaderCompiler {
    /// Creates an empty cache of shaders.
    pub(crate) fn new(device: &wgpu::Device) -> ShaderCompiler {
        let headers = [true, false].map(|reads_status| {
            let entries = [storage_entry(0, true, true), storage_entry(1, reads_status, false)];
            device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some("header"), entries: &entries })
        });
        let (operands, shaders) = (GenerationalCache::new(CACHED_LAYOUTS), GenerationalCache::new(CACHED_SHADERS));
        ShaderCompiler { headers, operands: Mutex::new(operands), shaders: Mutex::new(shaders) }
    }

    /// Creates the bind groups of group 0 for the parameters in a buffer. A dispatch binds `window` bytes at its
    /// offset, which must be within the buffer. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn header_groups(
        &self,
        graphics: &GraphicsDevice,
        (parameters, window): (&wgpu::Buffer, usize),
        status: &wgpu::Buffer,
    ) -> ParameterBindGroups {
        let window = wgpu::BufferBinding { buffer: parameters, offset: 0, size: NonZeroU64::new(window as u64) };
        let entries = [
            wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(window) },
            wgpu::BindGroupEntry { binding: 1, resource: status.as_entire_binding() },
        ];
        let [reads_status, changes_status] = [0, 1].map(|k| {
            let (label, layout) = (Some("header"), &self.headers[k]);
            graphics.counters.bind_groups.add(1);
            graphics.device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries })
        });
        ParameterBindGroups { reads_status, changes_status }
    }

    /// Returns the compiled form of a shader. Compiled shaders are cached by their source code.
    ///
    /// # Errors
    /// Returns an error if the graphics API rejects the shader or, with the feature `check-translations`, if another
    /// graphics API would.
    pub(crate) fn compile(
        &self,
        graphics: &GraphicsDevice,
        op: &'static str,
        shader: &ShaderBuilder,
        features: ShaderFeatures,
    ) -> Result<Arc<CompiledShader>> {
        let source = shader.finish(features);
        if let Some(cached) = lock(&self.shaders).get(&source) {
            return Ok(cached.clone());
        }
        #[cfg(feature = "check-translations")]
        crate::shader::languages::check_translations(op, &source)?;
        let compiled = graphics.scoped(op, || {
            let header = self.headers[usize::from(shader.is_check())].clone();
            let layouts = [header, self.operand_layout(graphics, shader.read_only_bindings())];
            CompiledShader::new(&graphics.device, op, &source, layouts, shader.is_check())
        })?;
        graphics.counters.pipelines.add(1);
        let compiled = Arc::new(compiled);
        lock(&self.shaders).insert(source, compiled.clone());
        Ok(compiled)
    }

    /// Returns the layout of group 1 of a shader. `read_only` states for every buffer whether it is only read.
    fn operand_layout(&self, graphics: &GraphicsDevice, read_only: Vec<bool>) -> wgpu::BindGroupLayout {
        let mut cached = lock(&self.operands);
        if let Some(layout) = cached.get(&read_only) {
            return layout.clone();
        }
        let entries: Vec<wgpu::BindGroupLayoutEntry> =
            read_only.iter().enumerate().map(|(k, &read_only)| storage_entry(k, read_only, false)).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: Some("operands"), entries: &entries };
        let layout = graphics.device.create_bind_group_layout(&descriptor);
        cached.insert(read_only, layout.clone());
        layout
    }
}

/// Creates group 1 of a dispatch. The graphics API reports errors to the error scopes of the caller.
pub(crate) fn create_operand_group(
    graphics: &GraphicsDevice,
    layout: &wgpu::BindGroupLayout,
    buffers: &[wgpu::Buffer],
) -> wgpu::BindGroup {
    graphics.counters.bind_groups.add(1);
    let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
        .iter()
        .zip(0..)
        .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    graphics.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
}

impl CompiledShader {
    /// Compiles a shader. The graphics API reports errors to the error scopes of the caller.
    fn new(
        device: &wgpu::Device,
        op: &'static str,
        source: &str,
        [header, operand_layout]: [wgpu::BindGroupLayout; 2],
        is_check: bool,
    ) -> CompiledShader {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(op),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(op),
            bind_group_layouts: &[Some(&header), Some(&operand_layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(op),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        CompiledShader { pipeline, operand_layout, is_check }
    }
}
