//! What the test device reports. A GPU reports none of these faults, or not reliably.

use cudarc::driver::sys::{self, CUresult};

use crate::harness::{Cuda, Shape, kernel_text, line, result_of, succeed, test_device};

const LEGACY: sys::CUstream = std::ptr::null_mut();

/// Runs a kernel over `memory`, and expects an error of the wait and a report.
#[track_caller]
fn expect_fault(cuda: &Cuda, kernel: sys::CUfunction, shape: Shape, memory: u64, error: CUresult, report: &str) {
    cuda.launch(kernel, shape, LEGACY, &[&memory]);
    assert_eq!(cuda.synchronize(), error);
    // The error is sticky.
    // SAFETY: the range is inside the allocation.
    assert_eq!(unsafe { sys::cuMemsetD8Async(memory, 0, 1, LEGACY) }, error);
    cuda.expect_report(report);
    succeed(cuda.synchronize());
}

const FAILED: CUresult = CUresult::CUDA_ERROR_LAUNCH_FAILED;
const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

#[test]
fn blocks_that_race_are_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = blockIdx.x;");
    expect_fault(&cuda, kernel, line(4, 1), cuda.memory(4), FAILED, "race: kernel kernel: the order of threads");
}

#[test]
fn missing_barrier_is_a_race() {
    let Some(cuda) = test_device() else { return };
    let body = "__shared__ unsigned t[64];
        t[threadIdx.x] = a[threadIdx.x];
        a[threadIdx.x] = t[63 - threadIdx.x];";
    let kernel = cuda.kernel("unsigned *a", body);
    let memory = cuda.upload(&(0..64).collect::<Vec<u32>>());
    expect_fault(&cuda, kernel, line(1, 64), memory, FAILED, "race: kernel kernel");
}

#[test]
fn missing_second_barrier_is_a_race() {
    let Some(cuda) = test_device() else { return };
    // The next iteration overwrites what slower threads still read.
    let body = "__shared__ unsigned t[32];
        unsigned sum = 0;
        for (unsigned i = 0; i < 3; i++) {
            t[threadIdx.x] = a[i * 32 + threadIdx.x];
            __syncthreads();
            sum += t[(threadIdx.x + 1) % 32];
        }
        a[threadIdx.x] = sum;";
    let kernel = cuda.kernel("unsigned *a", body);
    let memory = cuda.upload(&(0..96).map(|i| i * i).collect::<Vec<u32>>());
    expect_fault(&cuda, kernel, line(1, 32), memory, FAILED, "race: kernel kernel");
}

#[test]
fn one_schedule_does_not_compare() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = blockIdx.x;");
    let memory = cuda.memory(4);
    for (schedule, last) in [("ascending", 3), ("descending", 0)] {
        cuda.symbols().set("schedule", schedule);
        cuda.launch(kernel, line(4, 1), LEGACY, &[&memory]);
        let found = cuda.download::<u32>(memory, 1);
        cuda.symbols().set("schedule", "both");
        assert_eq!(found, [last]);
    }
}

#[test]
fn barrier_after_an_exit_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "if (threadIdx.x >= 20) return; __syncthreads(); a[threadIdx.x] = 1;");
    let report = "barrier: kernel kernel: the barrier in line 2 is reached by 20 of 32 threads";
    expect_fault(&cuda, kernel, line(1, 32), cuda.memory(128), FAILED, report);
}

#[test]
fn barriers_in_two_branches_are_reported() {
    let Some(cuda) = test_device() else { return };
    let body = "if (threadIdx.x < 8) {\n__syncthreads();\n} else {\n__syncthreads();\n}\na[threadIdx.x] = 1;";
    let kernel = cuda.kernel("unsigned *a", body);
    let report = "barrier: kernel kernel: threads of one block wait at the barriers in lines 3 and 5";
    expect_fault(&cuda, kernel, line(1, 16), cuda.memory(64), FAILED, report);
}

#[test]
fn mask_without_the_lane_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[threadIdx.x] = __shfl_xor_sync(0xffffu, threadIdx.x, 1);");
    let report = "warp mask: kernel kernel: lane 16 of __shfl_xor_sync is not in its mask 0xffff";
    expect_fault(&cuda, kernel, line(1, 32), cuda.memory(128), FAILED, report);
}

#[test]
fn lane_that_does_not_arrive_is_reported() {
    let Some(cuda) = test_device() else { return };
    let body = "unsigned v = threadIdx.x;
        if (threadIdx.x < 16) v = __shfl_down_sync(0xffffffffu, v, 1);
        __syncthreads();
        a[threadIdx.x] = v;";
    let kernel = cuda.kernel("unsigned *a", body);
    let report = "warp mask: kernel kernel: thread 0 waits in __shfl_down_sync with the mask 0xffffffff";
    expect_fault(&cuda, kernel, line(1, 32), cuda.memory(128), FAILED, report);
}

#[test]
fn shuffle_from_an_exited_lane_is_reported() {
    let Some(cuda) = test_device() else { return };
    let body = "if (threadIdx.x == 31) return;
        a[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 31);";
    let kernel = cuda.kernel("unsigned *a", body);
    let report = "warp mask: kernel kernel: lane 0 of __shfl_sync reads lane 31";
    expect_fault(&cuda, kernel, line(1, 32), cuda.memory(128), FAILED, report);
}

#[test]
fn write_behind_an_allocation_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[threadIdx.x] = threadIdx.x;");
    let report = "out of bounds: kernel kernel: a write at offset 400 of allocation";
    expect_fault(&cuda, kernel, line(1, 101), cuda.memory(400), ILLEGAL, report);
}

#[test]
fn write_before_an_allocation_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[(int)threadIdx.x - 1] = threadIdx.x;");
    let report = "out of bounds: kernel kernel: a write at offset -4 of allocation";
    expect_fault(&cuda, kernel, line(1, 10), cuda.memory(400), ILLEGAL, report);
}

#[test]
fn read_behind_an_allocation_is_not_a_number() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("const float *a, float *b", "b[threadIdx.x] = a[threadIdx.x] + a[threadIdx.x + 1];");
    let (a, b) = (cuda.upload(&[1.0_f32; 8]), cuda.memory(32));
    cuda.launch(kernel, line(1, 8), LEGACY, &[&a, &b]);
    let values = cuda.download::<f32>(b, 8);
    assert!(values[..7].iter().all(|&x| x == 2.0) && values[7].is_nan());
}

#[test]
fn unwritten_memory_is_not_a_number() {
    let Some(cuda) = test_device() else { return };
    let memory = cuda.memory(64);
    assert!(cuda.download::<f32>(memory, 16).iter().all(|x| x.is_nan()));
    assert!(cuda.download::<f64>(memory, 8).iter().all(|x| x.is_nan()));
    assert!(cuda.download::<half::f16>(memory, 32).iter().all(|x| x.is_nan()));
    assert!(cuda.download::<half::bf16>(memory, 32).iter().all(|x| x.is_nan()));
}

#[test]
fn unwritten_shared_memory_is_not_a_number() {
    let Some(cuda) = test_device() else { return };
    let body = "__shared__ float t[4]; extern __shared__ float d[]; a[0] = t[1]; a[1] = d[1];";
    let kernel = cuda.kernel("float *a", body);
    let memory = cuda.memory(8);
    cuda.launch(kernel, Shape { shared: 16, ..line(1, 1) }, LEGACY, &[&memory]);
    assert!(cuda.download::<f32>(memory, 2).iter().all(|x| x.is_nan()));
}

#[test]
fn guard_pages_report_reads() {
    let Some(cuda) = test_device() else { return };
    cuda.symbols().set("memory", "guards");
    let memory = cuda.memory(256);
    cuda.symbols().set("memory", "margins");
    let kernel = cuda.kernel("unsigned *a", "if (a[threadIdx.x] == 5) a[0] = 1;");
    let report = "illegal address: kernel kernel: an access to address";
    // The schedule runs the last thread first.
    expect_fault(&cuda, kernel, line(1, 65), memory, ILLEGAL, report);
}

#[test]
fn null_pointer_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a, unsigned *b", "a[0] = b[threadIdx.x];");
    let memory = cuda.memory(4);
    cuda.launch(kernel, line(1, 1), LEGACY, &[&memory, &0_u64]);
    assert_eq!(cuda.synchronize(), ILLEGAL);
    cuda.expect_report("illegal address: kernel kernel: an access to address 0x0 in thread 0");
}

#[test]
fn pointer_outside_all_allocations_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    assert_eq!(cuda.try_launch(kernel, line(1, 1), LEGACY, &[&0x1000_u64]), ILLEGAL);
    cuda.expect_report("illegal address: kernel kernel: pointer argument 0: address 0x1000 is in no allocation");
}

#[test]
fn misaligned_access_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "((float4 *)(a + 1))[0].x = 1.0f;");
    let error = CUresult::CUDA_ERROR_MISALIGNED_ADDRESS;
    expect_fault(&cuda, kernel, line(1, 1), cuda.memory(64), error, "misaligned: kernel kernel");
}

#[test]
fn index_outside_a_shared_array_is_reported() {
    let Some(cuda) = test_device() else { return };
    let body = "__shared__ unsigned t[16]; t[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = t[threadIdx.x ^ 16];";
    let kernel = cuda.kernel("unsigned *a", body);
    let error = CUresult::CUDA_ERROR_MISALIGNED_ADDRESS;
    expect_fault(&cuda, kernel, line(1, 16), cuda.memory(64), error, "misaligned: kernel kernel");
}

#[test]
fn write_behind_dynamic_shared_memory_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "extern __shared__ unsigned t[]; t[threadIdx.x] = a[threadIdx.x];");
    let shape = Shape { shared: 64, ..line(1, 17) };
    let memory = cuda.upload(&[1_u32; 17]);
    let report = "out of bounds: kernel kernel: a write at offset 64 of 64 bytes of shared memory";
    expect_fault(&cuda, kernel, shape, memory, ILLEGAL, report);
}

#[test]
fn trap_is_reported_with_its_line() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[threadIdx.x] = 1;\nif (threadIdx.x == 3) __trap();");
    let report = "trap: kernel kernel: thread 3 trapped in line 3";
    expect_fault(&cuda, kernel, line(1, 8), cuda.memory(32), FAILED, report);
}

#[test]
fn kernel_on_freed_memory_is_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    let memory = cuda.memory(4);
    cuda.forget_memory(memory);
    // SAFETY: the memory is freed once.
    succeed(unsafe { sys::cuMemFree_v2(memory) });
    assert_eq!(cuda.try_launch(kernel, line(1, 1), LEGACY, &[&memory]), ILLEGAL);
    cuda.expect_report("use after free: kernel kernel: pointer argument 0: allocation");
}

#[test]
fn use_after_an_ordered_free_is_reported() {
    let Some(cuda) = test_device() else { return };
    let (stream, other) = (cuda.stream(), cuda.memory(4));
    // SAFETY: the device refuses the copy.
    unsafe {
        let memory = result_of(|pointer| sys::cuMemAllocAsync(pointer, 4, stream)).expect("memory");
        succeed(sys::cuMemFreeAsync(memory, stream));
        let result = sys::cuMemcpyDtoDAsync_v2(other, memory, 4, stream);
        assert_eq!(result, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    cuda.expect_report("use after free: a copy on the device");
}

#[test]
fn graph_on_freed_memory_is_reported() {
    let Some(cuda) = test_device() else { return };
    let memory = cuda.memory(4);
    let graph = cuda.graph();
    cuda.fill_node(graph, &[], memory, 1);
    let exec = cuda.instantiate(graph);
    cuda.forget_memory(memory);
    // SAFETY: the memory is freed once, and the handles exist.
    unsafe {
        succeed(sys::cuMemFree_v2(memory));
        assert_eq!(sys::cuGraphLaunch(exec, LEGACY), ILLEGAL);
    }
    cuda.expect_report("use after free: a graph");
}

#[test]
fn second_free_is_reported() {
    let Some(cuda) = test_device() else { return };
    let memory = cuda.memory(4);
    cuda.forget_memory(memory);
    // SAFETY: the device refuses the second call.
    unsafe {
        succeed(sys::cuMemFree_v2(memory));
        assert_eq!(sys::cuMemFree_v2(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    cuda.expect_report("use after free: cuMemFree of");
}

#[test]
fn allocation_in_a_capturing_stream_is_reported() {
    let Some(cuda) = test_device() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, crate::capture::GLOBAL));
    // SAFETY: the pointer is valid for writes.
    let pointer = result_of(|pointer| unsafe { sys::cuMemAllocAsync(pointer, 4, stream) });
    assert_eq!(pointer, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    let _ = cuda.end(stream);
    cuda.expect_report("capture allocation: cuMemAllocAsync in a capturing stream");
}

#[test]
fn streams_without_an_event_race() {
    let Some(cuda) = test_device() else { return };
    let (first, second, memory) = (cuda.stream(), cuda.stream(), cuda.memory(64));
    let (write, read) =
        (cuda.kernel("unsigned *a", "a[0] = 1;"), cuda.kernel("const unsigned *a", "if (a[0] == 7) return;"));
    cuda.launch(write, line(1, 1), first, &[&memory]);
    cuda.launch(read, line(1, 1), second, &[&memory]);
    assert_eq!(cuda.synchronize(), FAILED);
    cuda.expect_report("stream race: kernel kernel on stream");
}

#[test]
fn streams_that_only_read_do_not_race() {
    let Some(cuda) = test_device() else { return };
    let (first, second, memory) = (cuda.stream(), cuda.stream(), cuda.upload(&[1_u32]));
    let read = cuda.kernel("const unsigned *a", "if (a[0] == 7) return;");
    cuda.launch(read, line(1, 1), first, &[&memory]);
    cuda.launch(read, line(1, 1), second, &[&memory]);
    succeed(cuda.synchronize());
}

#[test]
fn wait_for_an_older_record_does_not_order_newer_work() {
    let Some(cuda) = test_device() else { return };
    let (first, second, event, memory) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.memory(4));
    // SAFETY: the handles exist, and the ranges are inside the allocation.
    unsafe {
        succeed(sys::cuEventRecord(event, first));
        succeed(sys::cuMemsetD32Async(memory, 1, 1, first));
        succeed(sys::cuStreamWaitEvent(second, event, 0));
        succeed(sys::cuMemsetD32Async(memory, 2, 1, second));
    }
    assert_eq!(cuda.synchronize(), FAILED);
    cuda.expect_report("stream race: a fill on stream");
}

#[test]
fn free_on_another_stream_races_with_a_use() {
    let Some(cuda) = test_device() else { return };
    let (first, second) = (cuda.stream(), cuda.stream());
    // SAFETY: the memory is freed once.
    unsafe {
        let memory = result_of(|pointer| sys::cuMemAllocAsync(pointer, 4, first)).expect("memory");
        succeed(sys::cuMemsetD32Async(memory, 1, 1, first));
        succeed(sys::cuMemFreeAsync(memory, second));
    }
    assert_eq!(cuda.synchronize(), FAILED);
    cuda.expect_report("stream race: a free on stream");
}

#[test]
fn missing_edge_of_a_graph_is_reported() {
    let Some(cuda) = test_device() else { return };
    let memory = cuda.memory(4);
    let graph = cuda.graph();
    let first = cuda.fill_node(graph, &[], memory, 1);
    let kernel = cuda.kernel("unsigned *a", "a[0] += 1;");
    let second = cuda.kernel_node(graph, &[first], kernel, &[&memory]);
    cuda.instantiate(graph);
    cuda.kernel_node(graph, &[first], kernel, &[&memory]);
    cuda.instantiate(graph);
    cuda.expect_report("node race: no path orders kernel kernel and kernel kernel, in allocation");
    assert_eq!(cuda.node_type(second), sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
}

#[test]
fn captured_streams_without_a_join_of_their_data_are_reported() {
    let Some(cuda) = test_device() else { return };
    let (first, second, memory) = (cuda.stream(), cuda.stream(), cuda.memory(4));
    let (fork, join) = (cuda.event(), cuda.event());
    succeed(cuda.begin(first, crate::capture::GLOBAL));
    // SAFETY: the handles exist, and the ranges are inside the allocation.
    unsafe {
        succeed(sys::cuEventRecord(fork, first));
        succeed(sys::cuStreamWaitEvent(second, fork, 0));
        succeed(sys::cuMemsetD32Async(memory, 1, 1, first));
        succeed(sys::cuMemsetD32Async(memory, 2, 1, second));
        succeed(sys::cuEventRecord(join, second));
        succeed(sys::cuStreamWaitEvent(first, join, 0));
    }
    let graph = cuda.end(first).expect("the streams are joined");
    cuda.instantiate(graph);
    cuda.expect_report("node race: no path orders a fill and a fill");
}

#[test]
fn result_is_not_there_before_the_wait() {
    let Some(cuda) = test_device() else { return };
    let (stream, memory, target) = (cuda.stream(), cuda.upload(&[5_u32]), cuda.pinned::<u32>(1));
    // SAFETY: the pinned memory lives until the stream is synchronised. No other thread writes it.
    unsafe {
        target.write(1);
        succeed(sys::cuMemcpyDtoHAsync_v2(target.cast(), memory, 4, stream));
        assert_eq!(target.read_volatile(), 1);
        succeed(sys::cuStreamSynchronize(stream));
        assert_eq!(target.read_volatile(), 5);
        // With eager streams, the copy runs in the call.
        cuda.symbols().set("streams", "eager");
        target.write(1);
        succeed(sys::cuMemcpyDtoHAsync_v2(target.cast(), memory, 4, stream));
        cuda.symbols().set("streams", "lazy");
        assert_eq!(target.read_volatile(), 5);
    }
}

#[test]
fn too_many_arguments_are_reported_with_a_terminated_list() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    let memory = cuda.memory(4);
    let mut list = [(&raw const memory).cast_mut().cast(), std::ptr::null_mut()];
    let launch = |list: &mut [*mut std::ffi::c_void]| {
        // SAFETY: the list has the argument of the kernel.
        unsafe { sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, LEGACY, list.as_mut_ptr(), std::ptr::null_mut()) }
    };
    cuda.symbols().set("arguments", "terminated");
    let right = launch(&mut list);
    list[1] = list[0];
    let wrong = launch(&mut list);
    cuda.symbols().set("arguments", "counted");
    assert_eq!((right, wrong), (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE));
    cuda.expect_report("arguments: kernel kernel: more than 1 arguments");
}

#[test]
fn too_few_arguments_are_reported() {
    let Some(cuda) = test_device() else { return };
    let kernel = cuda.kernel("unsigned *a, unsigned n", "a[0] = n;");
    let memory = cuda.memory(4);
    let mut list = [(&raw const memory).cast_mut().cast(), std::ptr::null_mut()];
    // SAFETY: the device refuses the null pointer.
    let result =
        unsafe { sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, LEGACY, list.as_mut_ptr(), std::ptr::null_mut()) };
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_VALUE);
    cuda.expect_report("arguments: kernel kernel: argument 1 of 2 cannot be read");
}

#[test]
fn destroyed_handles_are_reported() {
    let Some(cuda) = test_device() else { return };
    // SAFETY: the device refuses the second call.
    unsafe {
        let stream = result_of(|stream| sys::cuStreamCreate(stream, 0)).expect("a stream");
        succeed(sys::cuStreamDestroy_v2(stream));
        assert_eq!(sys::cuStreamSynchronize(stream), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    cuda.expect_report("invalid handle: stream");
}

#[test]
fn objects_that_outlive_the_context_are_reported() {
    let Some(cuda) = test_device() else { return };
    let module = cuda.compile(&kernel_text("kernel", "unsigned *a", "a[0] = 1;"), &[]).expect("the text is right");
    // SAFETY: the pointers are valid for writes, and the image ends with a zero byte. The reset destroys the objects.
    unsafe {
        result_of(|pointer| sys::cuMemAlloc_v2(pointer, 12)).expect("memory");
        result_of(|stream| sys::cuStreamCreate(stream, 0)).expect("a stream");
        result_of(|event| sys::cuEventCreate(event, 0)).expect("an event");
        result_of(|graph| sys::cuGraphCreate(graph, 0)).expect("a graph");
        result_of(|handle| sys::cuModuleLoadData(handle, module.as_ptr().cast())).expect("a module");
        succeed(sys::cuDevicePrimaryCtxReset_v2(0));
    }
    let reports = cuda.symbols().take_reports();
    for report in ["of 12 bytes", "leak: 1 streams", "leak: 1 events", "leak: 1 graphs", "leak: 1 modules"] {
        assert!(reports.contains(report), "{report} is missing in:\n{reports}");
    }
    let names = ["allocations", "streams", "events", "modules", "graphs", "executable graphs"];
    for name in names {
        assert_eq!(cuda.symbols().counter(&format!("live {name}")), 0, "{name}");
    }
}

#[test]
fn objects_of_kernels_are_kept() {
    let Some(cuda) = test_device() else { return };
    // A text that no earlier run has compiled.
    let number = std::process::id();
    let text = kernel_text("kernel", "unsigned *a", &format!("a[0] = {number};"));
    let before = cuda.symbols().counter("compilations");
    for _ in 0..3 {
        cuda.compile(&text, &[]).expect("the text is right");
    }
    assert_eq!(cuda.symbols().counter("compilations"), before + 1);
}
