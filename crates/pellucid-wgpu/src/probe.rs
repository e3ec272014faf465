//! Properties of an adapter that only a shader can detect.

use crate::buffer::DeviceMemory;
use crate::device::Gpu;
use crate::dispatch_list::DispatchList;
use crate::operand::BufferRef;
use crate::shader::{BindingUse, ROUND_F16, ShaderBuilder, ShaderFeatures, WORKGROUP};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result, lock};
use std::sync::Arc;

impl Gpu {
    /// Finds whether the adapter ends long loops, as llvmpipe does without an error. It must be called before the first
    /// kernel is described.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter cannot run a test shader.
    pub(crate) fn probe_loops(self: &Arc<Gpu>) -> Result<()> {
        const ITERATIONS: u32 = 70_000;
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BindingUse::Write);
        shader.line("if (thread >= params[0]) { return; }");
        // A compiler cannot replace the loop by a formula.
        shader.line("var x = params[1];");
        shader.line("for (var i = 0u; i < params[2]; i = i + 1u) {");
        shader.line("x = (x ^ (x >> 7u)) * 1664525u + 1013904223u;");
        shader.line("}");
        let store = shader.store_word(output, "thread", "x");
        shader.line(store);
        let expected =
            (0..ITERATIONS).fold(0u32, |x, _| (x ^ (x >> 7)).wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let stored = self.run_probe(shader, vec![1, 0, ITERATIONS], 1).map_err(|e| self.unavailable(&e))?;
        self.ends_long_loops.get_or_init(|| stored != [expected]);
        Ok(())
    }

    fn unavailable(&self, error: &Error) -> Error {
        Error::DeviceUnavailable { device: self.name().into(), reason: error.to_string() }
    }

    /// Finds the features of the adapter. It must be called before the first kernel is described.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter cannot run a test shader.
    pub(crate) fn probe(self: &Arc<Gpu>) -> Result<()> {
        let unavailable = |e: Error| self.unavailable(&e);
        let fused = self.probe_fused_multiply_add().map_err(unavailable)?;
        let subgroups = self.probe_subgroups().map_err(unavailable)?;
        let native_f16 = self.probe_half_conversions().map_err(unavailable)?;
        self.features.get_or_init(|| ShaderFeatures { fused, subgroups, native_f16 });
        Ok(())
    }

    /// Runs a shader with one buffer of `words` words, and returns the words that it stores.
    fn run_probe(self: &Arc<Gpu>, shader: ShaderBuilder, parameters: Vec<u32>, words: usize) -> Result<Vec<u32>> {
        let mut list = DispatchList::new(self);
        list.dispatch("probe", shader, parameters, &[BufferRef::Operand(0)], 1)?;
        let memory = DeviceMemory::allocate(self, words * 4)?;
        self.record_dispatches(&mut lock(&self.recorded), &Kernel::Copy, &list.finish(), &[memory.raw().clone()])?;
        let mut stored = Vec::new();
        self.read(memory.raw(), 0..words * 4, |bytes| {
            stored.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        })?;
        Ok(stored)
    }

    /// Returns whether `fma` of the adapter rounds once, as a small shader tests.
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

    /// Returns whether the adapter converts between `f16` and `f32` by instructions with the bits of the integer
    /// arithmetic. WGSL leaves subnormal numbers, NaN, overflow and the direction of rounding to the adapter.
    ///
    /// The shader compares all values of `f16`, and the roundings of 8 values of `f32` for each: itself, its neighbour,
    /// and the midpoints to the next normal and subnormal value of `f16` with their neighbours.
    fn probe_half_conversions(self: &Arc<Gpu>) -> Result<bool> {
        if !self.device().features().contains(wgpu::Features::SHADER_F16) {
            return Ok(false);
        }
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BindingUse::Write);
        shader.line("var is_expected = true;");
        shader.line(format!("for (var h = local; h < 65536u; h = h + {WORKGROUP}u) {{"));
        shader.line("let value = h_to_f32_by_bits(h);");
        shader.line("let loaded = bitcast<u32>(unpack2x16float(h).x);");
        shader.line("let is_nan = f_is_nan(value) && f_is_nan(bitcast<f32>(loaded));");
        shader.line("is_expected = is_expected && (is_nan || loaded == bitcast<u32>(value));");
        // 2.9802322387695312e-8 is 2^-25, half of the distance of subnormal numbers.
        shader.line("let middle = bitcast<u32>(keep(value + f_copysign(2.9802322387695312e-8, value)));");
        shader.line("for (var k = 0u; k < 8u; k = k + 1u) {");
        shader.line("let near = bitcast<u32>(value) + select(k, 0xffdu + k, k > 1u);");
        shader.line("let x = bitcast<f32>(select(near, middle + k - 6u, k >= 5u));");
        shader.line(format!("let rounded = {ROUND_F16};"));
        shader.line("let expected = h_from_f32_by_bits(x);");
        shader.line("let is_nan = f_is_nan(x) && f_is_nan(rounded);");
        shader.line("let is_value = bitcast<u32>(rounded) == bitcast<u32>(h_to_f32_by_bits(expected));");
        shader.line("let stored = pack2x16float(vec2<f32>(rounded, 0.0));");
        shader.line(
            "let is_stored = stored == expected || ((stored & 0x7fffu) > 0x7c00u && stored < 0x10000u && is_nan);",
        );
        shader.line("is_expected = is_expected && (is_nan || is_value) && is_stored;");
        shader.line("}");
        shader.line("}");
        let store = shader.store_word(output, "local", "select(0u, 1u, is_expected)");
        shader.line(store);
        let words = self.run_probe(shader, vec![WORKGROUP, 0], WORKGROUP as usize)?;
        Ok(words.iter().all(|&is_expected| is_expected == 1))
    }
}
