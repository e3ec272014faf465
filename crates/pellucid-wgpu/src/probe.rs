//! Properties of an adapter that only a shader shows.

use crate::buffer::DeviceMemory;
use crate::device::{Gpu, lock};
use crate::dispatch_list::DispatchList;
use crate::operand::BufferRef;
use crate::shader::{BindingUse, ShaderBuilder};
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
        self.fused.get_or_init(|| fused);
        Ok(())
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
        let mut list = DispatchList::new(self);
        list.dispatch("probe", shader, parameters, &[BufferRef::Operand(0)], 1)?;
        let memory = DeviceMemory::allocate(self, cases.len() * 4)?;
        self.record_dispatches(&mut lock(&self.recorded), &Kernel::Copy, &list.finish(), &[memory.raw().clone()])?;
        let mut fused = true;
        self.read(memory.raw(), 0..cases.len() * 4, |bytes| {
            for (word, [a, b, c]) in bytes.chunks_exact(4).zip(cases) {
                let expected = a.mul_add(b, c).to_ne_bytes();
                fused &= word == expected;
            }
        })?;
        Ok(fused)
    }
}
