//! [`ShaderCompiler`]: compiled shaders, and the layouts of their bind groups.

use crate::device::GraphicsDevice;
use pellucid_gpu::{GenerationalCache, KernelSource};
use pellucid_ir::{Result, lock};
use std::sync::Mutex;

/// The maximum number of layouts in a generation of the cache.
const CACHED_LAYOUTS: usize = 256;

/// A pipeline and the layout of its operands.
pub struct CompiledShader {
    pub(crate) pipeline: wgpu::ComputePipeline,
    /// The layout of group 1.
    pub(crate) operand_layout: wgpu::BindGroupLayout,
    /// Whether the shader changes the status buffer.
    pub(crate) is_check: bool,
}

/// Compiles the shaders of a device.
pub(crate) struct ShaderCompiler {
    /// The layouts of group 0 of shaders that read the status buffer, and of shaders that change it.
    headers: [wgpu::BindGroupLayout; 2],
    /// The layouts of group 1. The key states for each buffer whether it is only read.
    operands: Mutex<GenerationalCache<Vec<bool>, wgpu::BindGroupLayout>>,
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
    /// Creates the layouts of group 0.
    pub(crate) fn new(device: &wgpu::Device) -> ShaderCompiler {
        let headers = [true, false].map(|reads_status| {
            let entries = [storage_entry(0, true, true), storage_entry(1, reads_status, false)];
            device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some("header"), entries: &entries })
        });
        ShaderCompiler { headers, operands: Mutex::new(GenerationalCache::new(CACHED_LAYOUTS)) }
    }

    /// Returns the layout of group 0 of a shader.
    pub(crate) fn header_layout(&self, is_check: bool) -> &wgpu::BindGroupLayout {
        &self.headers[usize::from(is_check)]
    }

    /// Compiles a shader.
    ///
    /// # Errors
    /// Returns an error if the graphics API rejects the text.
    pub(crate) fn compile(
        &self,
        graphics: &GraphicsDevice,
        op: &'static str,
        text: &str,
        source: &KernelSource<'_>,
    ) -> Result<CompiledShader> {
        let compiled = graphics.scoped(op, || {
            let read_only = source.bindings.iter().map(|usage| usage.is_read_only()).collect();
            let layouts = [self.header_layout(source.is_check).clone(), self.operand_layout(graphics, read_only)];
            CompiledShader::new(&graphics.device, op, text, layouts, source.is_check)
        })?;
        graphics.counters.pipelines.add(1);
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
