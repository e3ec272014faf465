//! Properties of an adapter that only a shader shows.

use crate::buffer::DeviceMemory;
use crate::device::{Gpu, lock};
use crate::dispatch_list::DispatchList;
use crate::operand::BufferRef;
use crate::shader::{BindingUse, ShaderBuilder, ShaderFeatures, WORKGROUP};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::sync::Arc;

impl Gpu {
    /// Finds the properties of the adapter. It must be called before the first kernel is described.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter cannot run a test shader.
    pub(crate) fn probe(self: &Arc<Gpu>) -> Result<()> {
        let unavailable = |e: Error| Error::DeviceUnavailable { device: self.name().into(), reason: e.to_string() };
        let fused = self.probe_fused_multiply_add().map_err(unavailable)?;
        let subgroups = self.probe_subgroups().map_err(unavailable)?;
        self.features.get_or_init(|| ShaderFeatures { fused, subgroups });
        Ok(())
    }

    /// Runs a shader with one buffer of `words` words, and returns the words that it stores.
    fn run_probe(self: &Arc<Gpu>, shader: ShaderBuilder, parameters: Vec<u32>, words: usize) -> Result<Vec<u32>> {
        let mut list = DispatchList::new(self);
        list.dispatch("probe", shader, parameters, &[BufferRef::Operand(0)], 1)?;
        let memory = DeviceMemory::allocate(self, words * 4)?;
        self.record_dispatches(&mut lock(&self.recorded), &Kernel::Copy, &list.finish(), &[memory.raw()])?;
        let mut stored = Vec::new();
        self.read(memory.raw(), 0..words * 4, |bytes| {
            stored.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        })?;
        Ok(stored)
    }

    /// Returns whether `fma` of the adapter rounds once, which a small shader shows.
    fn probe_fused_multiply_add(self: &Arc<Gpu>) -> Result<bool> {
        let cases = [(4097, 4097, -8193), (8191, 8193, -67_108_863), (12_345_677, 7_654_321, 1), (3, 5, -15)]
            .map(|(a, b, c)| [a as f32 / 4096.0, b as f32 / 4096.0, c as f32 / 4096.0]);
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BindingUse::Write);
        shader.line("if (thread >= params[0]) { return; }");
        let value = |k: usize| format!("bitcast<f32>(params[3u * thread + {}u])", k + 2);
        shader.line(format!("let y = fma({}, {}, {});", value(0), value(1), value(2)));
        let store = shader.store_word(output, "thread", "bitcast<u32>(y)");
        shader.line(store);
        let mut parameters = vec![cases.len() as u32, 0];
        parameters.extend(cases.iter().flatten().map(|x| x.to_bits()));
        let expected = cases.map(|[a, b, c]| a.mul_add(b, c).to_bits());
        Ok(self.run_probe(shader, parameters, cases.len())? == expected)
    }

    /// Returns whether the adapter has subgroups whose invocations have consecutive indices in the workgroup. WGSL
    /// leaves the indices to the adapter.
    fn probe_subgroups(self: &Arc<Gpu>) -> Result<bool> {
        if !self.device().features().contains(wgpu::Features::SUBGROUP) {
            return Ok(false);
        }
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BindingUse::Write);
        let size = shader.subgroup_size();
        shader.line(format!("var is_expected = countOneBits({size}) == 1u;"));
        shader.line(format!("for (var stride = 1u; stride < min({size}, {WORKGROUP}u); stride = stride << 1u) {{"));
        shader.line("let other = subgroupShuffleXor(local, stride);");
        shader.line("is_expected = is_expected && other == (local ^ stride);");
        shader.line("}");
        let store = shader.store_word(output, "local", "select(0u, 1u, is_expected)");
        shader.line(store);
        let words = self.run_probe(shader, vec![WORKGROUP, 0], WORKGROUP as usize)?;
        Ok(words.iter().all(|&is_expected| is_expected == 1))
    }
}
