//! Kernels: indices, shared memory, atomics, arithmetic.

use cudarc::driver::sys::{self, CUfunction_attribute};

use crate::harness::{Shape, cuda, line, succeed, test_device};

#[test]
fn threads_have_indices_on_three_axes() {
    let Some(cuda) = cuda() else { return };
    let body = "unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
        a[i] = blockIdx.z * 100000 + blockIdx.x * 10000 + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x;";
    let kernel = cuda.kernel("unsigned *a", body);
    let memory = cuda.memory(4 * 288);
    let shape = Shape { grid: [2, 3, 2], block: [4, 3, 2], shared: 0 };
    cuda.launch(kernel, shape, std::ptr::null_mut(), &[&memory]);
    let values = cuda.download::<u32>(memory, 288);
    assert_eq!((values[0], values[24 + 23], values[287]), (0, 10_123, 110_123));
}

#[test]
fn barriers_order_shared_memory() {
    let Some(cuda) = cuda() else { return };
    let body = "__shared__ float t[256];
        t[threadIdx.x] = a[blockIdx.x * 256 + threadIdx.x];
        __syncthreads();
        for (unsigned w = 128; w > 0; w >>= 1) {
            if (threadIdx.x < w) t[threadIdx.x] += t[threadIdx.x + w];
            __syncthreads();
        }
        if (threadIdx.x == 0) b[blockIdx.x] = t[0];";
    let kernel = cuda.kernel("const float *a, float *b", body);
    let values: Vec<f32> = (0..768).map(|i| i as f32).collect();
    let (a, b) = (cuda.upload(&values), cuda.memory(12));
    cuda.launch(kernel, line(3, 256), std::ptr::null_mut(), &[&a, &b]);
    assert_eq!(cuda.download::<f32>(b, 3), [32_640.0, 98_176.0, 163_712.0]);
}

#[test]
fn dynamic_shared_memory_has_the_size_of_the_launch() {
    let Some(cuda) = cuda() else { return };
    let body = "extern __shared__ float t[];
        for (unsigned i = threadIdx.x; i < n; i += blockDim.x) t[i] = (float)i;
        __syncthreads();
        if (threadIdx.x == 0) a[0] = t[n - 1];";
    let kernel = cuda.kernel("float *a, unsigned n", body);
    let memory = cuda.memory(4);
    // 64 KiB need the permission of the function.
    let shape = Shape { shared: 64 << 10, ..line(1, 128) };
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function exists.
    succeed(unsafe { sys::cuFuncSetAttribute(kernel, attribute, 64 << 10) });
    cuda.launch(kernel, shape, std::ptr::null_mut(), &[&memory, &(16_u32 << 10)]);
    assert_eq!(cuda.download::<f32>(memory, 1), [16_383.0]);
}

#[test]
fn predicates_of_a_block_are_counted() {
    let Some(cuda) = cuda() else { return };
    let body = "int count = __syncthreads_count(threadIdx.x % 3 == 0);
        int all = __syncthreads_and(threadIdx.x < 100);
        int any = __syncthreads_or(threadIdx.x == 50);
        if (threadIdx.x == 7) { a[0] = count; a[1] = all; a[2] = any; }";
    let kernel = cuda.kernel("int *a", body);
    let memory = cuda.memory(12);
    cuda.launch(kernel, line(1, 100), std::ptr::null_mut(), &[&memory]);
    let values = cuda.download::<i32>(memory, 3);
    assert_eq!((values[0], values[1] != 0, values[2] != 0), (34, true, true));
}

#[test]
fn atomics_of_32_bits_are_exact() {
    let Some(cuda) = cuda() else { return };
    let body = "unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(a, i); atomicMax(a + 1, i); atomicMin(a + 2, i); atomicOr(a + 3, 1u << (i % 32));
        atomicAnd(a + 4, ~(1u << (i % 8))); atomicXor(a + 5, i); atomicAdd((int *)a + 6, -1);
        unsigned old = a[7];
        while (true) { unsigned seen = atomicCAS(a + 7, old, old + 2); if (seen == old) break; old = seen; }";
    let kernel = cuda.kernel("unsigned *a", body);
    let memory = cuda.upload(&[0, 0, u32::MAX, 0, u32::MAX, 0, 0, 0]);
    cuda.launch(kernel, line(4, 64), std::ptr::null_mut(), &[&memory]);
    let expected = [32_640, 255, 0, u32::MAX, 0xffff_ff00, 0, (-256_i32) as u32, 512];
    assert_eq!(cuda.download::<u32>(memory, 8), expected);
}

#[test]
fn atomics_of_64_bits_and_floats_are_exact() {
    let Some(cuda) = cuda() else { return };
    let body = "atomicAdd(a, 1ull << 33); atomicMax(a + 1, (unsigned long long)threadIdx.x << 32);
        atomicExch(a + 2, 7ull); atomicAdd(f, 0.5f); atomicAdd(d, 0.25);";
    let kernel = cuda.kernel("unsigned long long *a, float *f, double *d", body);
    let (a, f, d) = (cuda.upload(&[0_u64; 3]), cuda.upload(&[0_f32]), cuda.upload(&[0_f64]));
    cuda.launch(kernel, line(2, 32), std::ptr::null_mut(), &[&a, &f, &d]);
    assert_eq!(cuda.download::<u64>(a, 3), [64 << 33, 31 << 32, 7]);
    assert_eq!((cuda.download::<f32>(f, 1)[0], cuda.download::<f64>(d, 1)[0]), (32.0, 16.0));
}

#[test]
fn functions_of_bits_have_their_values() {
    let Some(cuda) = cuda() else { return };
    let body = "a[0] = __clz(0x00010000); a[1] = __popc(0xf0f0u); a[2] = __ffs(0x18); a[3] = __brev(1u);
        a[4] = __umulhi(0x80000000u, 6u); a[5] = __mulhi(-2, 3); a[6] = __float_as_uint(1.0f);
        a[7] = (unsigned)(__double_as_longlong(__hiloint2double(0x3ff00000, 5)) & 0xffffffff);
        a[8] = (unsigned)__mul64hi(-1ll, 2ll); a[9] = __clzll(1ll); a[10] = __byte_perm(0x33221100, 0x77665544, 0x7041);
        a[11] = (unsigned)__umul64hi(1ull << 63, 4ull); a[12] = __clz(0); a[13] = __float2int_rz(-1.5f);
        a[14] = __float2int_rz(3e9f); a[15] = __float2int_rn(2.5f);";
    let kernel = cuda.kernel("unsigned *a", body);
    let memory = cuda.memory(64);
    cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &[&memory]);
    let expected = [
        15,
        8,
        4,
        0x8000_0000,
        3,
        0xffff_ffff,
        0x3f80_0000,
        5,
        0xffff_ffff,
        63,
        0x7700_4411,
        2,
        32,
        0xffff_ffff,
        0x7fff_ffff,
        2,
    ];
    assert_eq!(cuda.download::<u32>(memory, 16), expected);
}

#[test]
fn products_and_sums_are_not_contracted() {
    let Some(cuda) = cuda() else { return };
    let body = "r[0] = a[0] * a[1] + a[2]; r[1] = fmaf(a[0], a[1], a[2]); r[2] = __fmaf_rn(a[0], a[1], a[2]);
        d[1] = d[0] * d[0] - 1.0; d[2] = fma(d[0], d[0], -1.0);";
    let kernel = cuda.kernel("const float *a, float *r, double *d", body);
    let x = 1.0 + f32::EPSILON;
    let y = 1.0 + f64::EPSILON;
    let (a, r, d) = (cuda.upload(&[x, x, -1.0]), cuda.memory(12), cuda.upload(&[y, 0.0, 0.0]));
    cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &[&a, &r, &d]);
    let fused = x.mul_add(x, -1.0);
    assert_eq!(cuda.download::<f32>(r, 3), [x * x - 1.0, fused, fused]);
    assert_eq!(cuda.download::<f64>(d, 3)[1..], [y * y - 1.0, y.mul_add(y, -1.0)]);
}

#[test]
fn vectors_are_loaded_and_stored() {
    let Some(cuda) = cuda() else { return };
    let body = "float4 v = a[threadIdx.x]; a[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);";
    let kernel = cuda.kernel("float4 *a", body);
    let memory = cuda.upload(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    cuda.launch(kernel, line(1, 2), std::ptr::null_mut(), &[&memory]);
    assert_eq!(cuda.download::<f32>(memory, 8), [4.0, 3.0, 2.0, 1.0, 8.0, 7.0, 6.0, 5.0]);
}

#[test]
fn arguments_of_all_sizes_arrive() {
    let Some(cuda) = cuda() else { return };
    let module = cuda.module(&format!(
        "struct Five {{ float x[5]; }};\n{}",
        crate::harness::kernel_text(
            "kernel",
            "double *r, int i, double d, Five five, float f, unsigned long long u",
            "r[0] = i; r[1] = d; r[2] = five.x[4]; r[3] = f; r[4] = (double)u;",
        )
    ));
    let kernel = cuda.function(module, "kernel").expect("the kernel exists");
    let memory = cuda.memory(40);
    let five = [1.0_f32, 2.0, 3.0, 4.0, 5.0];
    cuda.launch(
        kernel,
        line(1, 1),
        std::ptr::null_mut(),
        &[&memory, &-3_i32, &0.5_f64, &five, &2.5_f32, &(1_u64 << 40)],
    );
    assert_eq!(cuda.download::<f64>(memory, 5), [-3.0, 0.5, 5.0, 2.5, (1_u64 << 40) as f64]);
}

/// The conversions of half precision round as the crate `half` does. On a GPU the texts need NVIDIA's headers, which a
/// machine may lack, so this runs on the test device.
#[test]
fn half_precision_rounds_to_nearest_even() {
    let Some(cuda) = test_device() else { return };
    let text = crate::harness::kernel_text(
        "kernel",
        "const float *a, unsigned short *h, unsigned short *b, float *back, unsigned n",
        "unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        h[i] = __half_as_ushort(__float2half(a[i])); b[i] = __bfloat16_as_ushort(__float2bfloat16(a[i]));
        back[i] = __half2float(__ushort_as_half(h[i])) + __bfloat162float(__ushort_as_bfloat16(b[i]));",
    );
    let module = cuda.module(&format!("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n{text}"));
    let kernel = cuda.function(module, "kernel").expect("the kernel exists");
    // Bit patterns over the range of `f32`, with ties of both formats.
    let values: Vec<f32> = (0..65_536_u32)
        .flat_map(|high| [0, 0x1000, 0x8000, 0x8001].map(|low| f32::from_bits(high << 16 | low)))
        .filter(|value| !value.is_nan())
        .collect();
    let count = values.len();
    let a = cuda.upload(&values);
    let (h, b, back) = (cuda.memory(2 * count), cuda.memory(2 * count), cuda.memory(4 * count));
    let blocks = (count as u32).div_ceil(256);
    cuda.launch(kernel, line(blocks, 256), std::ptr::null_mut(), &[&a, &h, &b, &back, &(count as u32)]);
    let (halves, brains, sums) =
        (cuda.download::<u16>(h, count), cuda.download::<u16>(b, count), cuda.download::<f32>(back, count));
    for (index, &value) in values.iter().enumerate() {
        let (half, brain) = (half::f16::from_f32(value), half::bf16::from_f32(value));
        assert_eq!((halves[index], brains[index]), (half.to_bits(), brain.to_bits()), "{value:e}");
        let sum = half.to_f32() + brain.to_f32();
        assert!(sums[index] == sum || sum.is_nan(), "{value:e}");
    }
}
