//! Properties of a device that only a kernel can detect.

use crate::api::{ComputeApi, OptionalFeatures};
use crate::buffer::DeviceMemory;
use crate::dispatch_list::DispatchList;
use crate::gpu::Gpu;
use crate::operand::DeviceOperands;
use crate::shader::{BindingUse, BufferRef, KernelFeatures, ROUND_F16, ShaderBuilder, WORKGROUP, values};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result, lock};
use std::sync::Arc;

/// The buffer of a probe.
const MEMORY: BufferRef = BufferRef::Operand(0);

impl<A: ComputeApi> Gpu<A> {
    /// Finds whether the device terminates long loops early, as llvmpipe does without reporting an error. It must be
    /// called before the first kernel is described.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the device cannot run a test kernel.
    pub(crate) fn probe_loops(self: &Arc<Gpu<A>>) -> Result<()> {
        const ITERATIONS: usize = 70_000;
        let mut shader = ShaderBuilder::for_threads(1);
        let output = shader.binding(MEMORY, BindingUse::Write);
        let iterations = shader.declare_word(ITERATIONS);
        // A compiler cannot replace the loop by a formula.
        let source = "
            var x = params[1];
            for (var i = 0u; i < $iterations; i = i + 1u) {
                x = (x ^ (x >> 7u)) * 1664525u + 1013904223u;
            }";
        shader.template(source, values![iterations]);
        shader.store_word(output, "thread", "x");
        let expected =
            (0..ITERATIONS).fold(0u32, |x, _| (x ^ (x >> 7)).wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let stored = self.run_probe(shader, 1).map_err(|error| self.api.failure().unavailable(error))?;
        self.ends_long_loops.get_or_init(|| stored != [expected]);
        Ok(())
    }

    /// Finds the features of the device. It must be called before the first kernel is described.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the device cannot run a test kernel.
    pub(crate) fn probe(self: &Arc<Gpu<A>>) -> Result<()> {
        let unavailable = |error: Error| self.api.failure().unavailable(error);
        let fused = self.probe_fused_multiply_add().map_err(unavailable)?;
        let subgroups = self.probe_subgroups().map_err(unavailable)?;
        let native_f16 = self.probe_half_conversions().map_err(unavailable)?;
        let OptionalFeatures { matrix_units, library_products, large_shared_memory, .. } = self.api.optional_features();
        self.features.get_or_init(|| KernelFeatures {
            fused,
            subgroups,
            native_f16,
            matrix_units: subgroups && matrix_units,
            library_products,
            large_shared_memory,
        });
        Ok(())
    }

    /// Runs a kernel with one buffer of `words` words, and returns the words that it stores.
    fn run_probe(self: &Arc<Gpu<A>>, shader: ShaderBuilder, words: usize) -> Result<Vec<u32>> {
        let mut list = DispatchList::new(self.features(), &self.operations);
        list.dispatch("probe", shader);
        let description = self.compile(list, &DeviceOperands { inputs: vec![], outputs: vec![] })?;
        let memory = DeviceMemory::allocate(self, words * 4)?;
        let operands = [memory.raw().clone()];
        lock(&self.recorded).record(&self.api, &Kernel::Copy, &description, &operands)?;
        let mut stored = Vec::new();
        self.read(memory.raw(), 0..words * 4, |bytes| {
            stored.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        })?;
        Ok(stored)
    }

    /// Returns true if `fma` of the device rounds once, as a small kernel tests.
    fn probe_fused_multiply_add(self: &Arc<Gpu<A>>) -> Result<bool> {
        let cases = [(4097, 4097, -8193), (8191, 8193, -67_108_863), (12_345_677, 7_654_321, 1), (3, 5, -15)]
            .map(|(a, b, c)| [a as f32 / 4096.0, b as f32 / 4096.0, c as f32 / 4096.0]);
        let mut shader = ShaderBuilder::for_threads(cases.len());
        let output = shader.binding(MEMORY, BindingUse::Write);
        // The operands are the parameters after the first two words.
        let value = |k: usize| format!("bitcast<f32>(params[3u * thread + {}u])", k + 2);
        shader.line(format!("let y = fma({}, {}, {});", value(0), value(1), value(2)));
        shader.store_word(output, "thread", "bitcast<u32>(y)");
        for x in cases.iter().flatten() {
            shader.declare_word(x.to_bits() as usize);
        }
        let expected = cases.map(|[a, b, c]| a.mul_add(b, c).to_bits());
        Ok(self.run_probe(shader, cases.len())? == expected)
    }

    /// Returns true if the device has subgroups whose invocations have consecutive indices in the workgroup. WGSL
    /// leaves the indices to the device.
    fn probe_subgroups(self: &Arc<Gpu<A>>) -> Result<bool> {
        if !self.api.optional_features().subgroups {
            return Ok(false);
        }
        let mut shader = ShaderBuilder::with_groups(WORKGROUP as usize, 1);
        let size = shader.subgroup_size();
        let workgroup = format!("{WORKGROUP}u");
        let source = "
            var is_expected = countOneBits($size) == 1u;
            for (var stride = 1u; stride < min($size, $workgroup); stride = stride << 1u) {
                let other = subgroupShuffleXor(local, stride);
                is_expected = is_expected && other == (local ^ stride);
            }";
        shader.template(source, values![size, workgroup]);
        self.probe_all(shader)
    }

    /// Runs a kernel of one workgroup. Returns true if `is_expected` is true in all invocations.
    fn probe_all(self: &Arc<Gpu<A>>, mut shader: ShaderBuilder) -> Result<bool> {
        let output = shader.binding(MEMORY, BindingUse::Write);
        shader.store_word(output, "local", "select(0u, 1u, is_expected)");
        let words = self.run_probe(shader, WORKGROUP as usize)?;
        Ok(words.iter().all(|&is_expected| is_expected == 1))
    }

    /// Returns true if the device converts between `f16` and `f32` with instructions that are bit-identical to the
    /// integer arithmetic. WGSL leaves subnormal numbers, NaN, overflow and the direction of rounding to the device.
    ///
    /// The kernel compares all values of `f16`, and the roundings of 8 values of `f32` for each: itself, its neighbour,
    /// and the midpoints to the next normal and subnormal value of `f16` with their neighbours.
    fn probe_half_conversions(self: &Arc<Gpu<A>>) -> Result<bool> {
        if !self.api.optional_features().f16 {
            return Ok(false);
        }
        let mut shader = ShaderBuilder::with_groups(WORKGROUP as usize, 1);
        let (workgroup, round_f16) = (format!("{WORKGROUP}u"), ROUND_F16);
        let source = "
            var is_expected = true;
            for (var h = local; h < 65536u; h = h + $workgroup) {
                let value = h_to_f32_by_bits(h);
                let loaded = bitcast<u32>(unpack2x16float(h).x);
                let is_nan = f_is_nan(value) && f_is_nan(bitcast<f32>(loaded));
                is_expected = is_expected && (is_nan || loaded == bitcast<u32>(value));
                // 2.9802322387695312e-8 is 2^-25, half of the distance of subnormal numbers.
                let middle = bitcast<u32>(keep(value + f_copysign(2.9802322387695312e-8, value)));
                for (var k = 0u; k < 8u; k = k + 1u) {
                    let near = bitcast<u32>(value) + select(k, 0xffdu + k, k > 1u);
                    let x = bitcast<f32>(select(near, middle + k - 6u, k >= 5u));
                    let rounded = $round_f16;
                    let expected = h_from_f32_by_bits(x);
                    let is_nan = f_is_nan(x) && f_is_nan(rounded);
                    let is_value = bitcast<u32>(rounded) == bitcast<u32>(h_to_f32_by_bits(expected));
                    let stored = pack2x16float(vec2<f32>(rounded, 0.0));
                    let is_stored_nan = (stored & 0x7fffu) > 0x7c00u && stored < 0x10000u && is_nan;
                    let is_stored = stored == expected || is_stored_nan;
                    is_expected = is_expected && (is_nan || is_value) && is_stored;
                }
            }";
        shader.template(source, values![workgroup, round_f16]);
        self.probe_all(shader)
    }
}
