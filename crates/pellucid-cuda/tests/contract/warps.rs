//! Operations of a warp.

use crate::harness::{Cuda, cuda, line};

/// The results of 32 lanes, which `body` stores in `r`.
fn lanes(cuda: &Cuda, body: &str) -> Vec<i32> {
    let kernel = cuda.kernel("int *a", &format!("int lane = threadIdx.x, r = -1;\n{body}\na[lane] = r;"));
    let memory = cuda.memory(128);
    cuda.launch(kernel, line(1, 32), std::ptr::null_mut(), &[&memory]);
    cuda.download(memory, 32)
}

fn expected(value: impl Fn(i32) -> i32) -> Vec<i32> {
    (0..32).map(value).collect()
}

#[test]
fn shuffle_reads_the_lane_of_its_segment() {
    let Some(cuda) = cuda() else { return };
    let values = lanes(&cuda, "r = __shfl_sync(0xffffffffu, lane * 10, 3);");
    assert_eq!(values, [30; 32]);
    let values = lanes(&cuda, "r = __shfl_sync(0xffffffffu, lane * 10, lane + 1, 8);");
    assert_eq!(values, expected(|lane| (lane / 8 * 8 + (lane + 1) % 8) * 10));
}

#[test]
fn shuffle_up_and_down_keep_the_value_at_the_ends() {
    let Some(cuda) = cuda() else { return };
    let values = lanes(&cuda, "r = __shfl_up_sync(0xffffffffu, lane, 3);");
    assert_eq!(values, expected(|lane| if lane < 3 { lane } else { lane - 3 }));
    let values = lanes(&cuda, "r = __shfl_down_sync(0xffffffffu, lane, 5, 16);");
    assert_eq!(values, expected(|lane| if lane % 16 + 5 >= 16 { lane } else { lane + 5 }));
}

#[test]
fn shuffle_xor_sums_a_warp() {
    let Some(cuda) = cuda() else { return };
    let body = "float s = (float)lane;
        for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
        r = (int)s;";
    assert_eq!(lanes(&cuda, body), [496; 32]);
}

#[test]
fn shuffle_moves_64_bits() {
    let Some(cuda) = cuda() else { return };
    let body = "double d = __shfl_xor_sync(0xffffffffu, lane + 0.5, 1);
        long long l = __shfl_sync(0xffffffffu, (long long)lane << 40, lane ^ 2);
        r = (int)(d * 2.0) + (int)(l >> 40) * 1000;";
    assert_eq!(lanes(&cuda, body), expected(|lane| (lane ^ 1) * 2 + 1 + (lane ^ 2) * 1000));
}

#[test]
fn votes_see_all_lanes() {
    let Some(cuda) = cuda() else { return };
    let body = "unsigned b = __ballot_sync(0xffffffffu, lane % 4 == 1);
        r = (b == 0x22222222u) + 2 * (__any_sync(0xffffffffu, lane == 9) != 0)
            + 4 * (__all_sync(0xffffffffu, lane != 9) != 0);";
    assert_eq!(lanes(&cuda, body), [3; 32]);
}

#[test]
fn part_of_a_warp_has_its_own_mask() {
    let Some(cuda) = cuda() else { return };
    let body = "if (lane < 8) {
            r = __shfl_xor_sync(0x000000ffu, lane, 7);
            __syncwarp(0x000000ffu);
        } else {
            r = __ballot_sync(0xffffff00u, lane == 31) == 0x80000000u;
        }";
    assert_eq!(lanes(&cuda, body), expected(|lane| if lane < 8 { lane ^ 7 } else { 1 }));
}

#[test]
fn warps_and_barriers_alternate() {
    let Some(cuda) = cuda() else { return };
    let body = "__shared__ int t[4];
        int s = a[threadIdx.x];
        for (int d = 16; d > 0; d /= 2) s += __shfl_down_sync(0xffffffffu, s, d);
        if (threadIdx.x % 32 == 0) t[threadIdx.x / 32] = s;
        __syncthreads();
        if (threadIdx.x < 32) {
            s = threadIdx.x < 4 ? t[threadIdx.x] : 0;
            for (int d = 2; d > 0; d /= 2) s += __shfl_down_sync(0xffffffffu, s, d);
        }
        __syncthreads();
        if (threadIdx.x == 0) a[0] = s;";
    let kernel = cuda.kernel("int *a", body);
    let memory = cuda.upload(&(0..128).collect::<Vec<i32>>());
    cuda.launch(kernel, line(1, 128), std::ptr::null_mut(), &[&memory]);
    assert_eq!(cuda.download::<i32>(memory, 1), [8128]);
}

#[test]
fn last_warp_of_a_block_may_be_short() {
    let Some(cuda) = cuda() else { return };
    let body = "unsigned mask = threadIdx.x < 32 ? 0xffffffffu : 0xffu;
        a[threadIdx.x] = __popc(__ballot_sync(mask, 1));";
    let kernel = cuda.kernel("int *a", body);
    let memory = cuda.memory(160);
    cuda.launch(kernel, line(1, 40), std::ptr::null_mut(), &[&memory]);
    let values = cuda.download::<i32>(memory, 40);
    assert!(values[..32].iter().all(|&n| n == 32) && values[32..].iter().all(|&n| n == 8));
}
