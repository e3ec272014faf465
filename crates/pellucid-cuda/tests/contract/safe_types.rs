//! The types of `cudarc` that call the driver, as a program uses them.

use cudarc::cublaslt::{CudaBlasLT, Matmul, MatmulConfig};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use crate::harness::{cuda, kernel_text};

#[test]
fn launch_builder_runs_a_kernel() {
    let Some(cuda) = cuda() else { return };
    let text = kernel_text("kernel", "float *y, const float *x, float a", "y[threadIdx.x] += a * x[threadIdx.x];");
    let image = cuda.compile(&text, &[]).expect("the text is right");
    let context = CudaContext::new(0).expect("the device exists");
    let stream = context.new_stream().expect("a stream");
    let x = stream.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0]).expect("memory");
    let mut y = stream.alloc_zeros::<f32>(4).expect("memory");
    let image = image.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    let image = Ptx::from_src(String::from_utf8(image).expect("PTX is UTF-8"));
    let module = context.load_module(image).expect("the module is valid");
    let kernel = module.load_function("kernel").expect("the kernel exists");
    for _ in 0..2 {
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut y).arg(&x).arg(&1.5_f32);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments match the parameters of the kernel, and four threads access four elements.
        unsafe { launch.launch(config) }.expect("the launch is valid");
    }
    assert_eq!(stream.clone_dtoh(&y).expect("memory"), [3.0, 6.0, 9.0, 12.0]);
}

#[test]
fn streams_of_a_context_are_ordered_by_its_events() {
    let Some(_cuda) = cuda() else { return };
    let context = CudaContext::new(0).expect("the device exists");
    let (first, second) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
    let a = first.clone_htod(&[1_u32, 2, 3]).expect("memory");
    // `cudarc` records an event at the copy to the device, and the second stream waits for it.
    let b = second.clone_dtod(&a).expect("memory");
    assert_eq!(second.clone_dtoh(&b).expect("memory"), [1, 2, 3]);
}

#[test]
fn captured_graph_of_a_stream_launches() {
    let Some(_cuda) = cuda() else { return };
    let context = CudaContext::new(0).expect("the device exists");
    let stream = context.new_stream().expect("a stream");
    // SAFETY: all work is in one stream.
    unsafe { context.disable_event_tracking() };
    let a = stream.clone_htod(&[1_u32, 2, 3]).expect("memory");
    let mut b = stream.alloc_zeros::<u32>(3).expect("memory");
    stream.synchronize().expect("the work is valid");
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("no capture");
    stream.memcpy_dtod(&a, &mut b).expect("the copy is captured");
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).expect("the capture is valid");
    let graph = graph.expect("the graph has a node");
    graph.launch().expect("the launch is valid");
    assert_eq!(stream.clone_dtoh(&b).expect("memory"), [1, 2, 3]);
}

#[test]
fn matrix_product_of_a_stream_is_right() {
    let Some(_cuda) = cuda() else { return };
    let context = CudaContext::new(0).expect("the device exists");
    let stream = context.new_stream().expect("a stream");
    let blas = CudaBlasLT::new(stream.clone()).expect("cuBLASLt");
    // Column-major: A is 2 x 2, B is 2 x 1.
    let a = stream.clone_htod(&[1.0_f32, 3.0, 2.0, 4.0]).expect("memory");
    let b = stream.clone_htod(&[5.0_f32, 6.0]).expect("memory");
    let mut c = stream.alloc_zeros::<f32>(2).expect("memory");
    let config = MatmulConfig {
        transa: false,
        transb: false,
        transc: false,
        m: 2,
        n: 1,
        k: 2,
        alpha: 1.0,
        lda: 2,
        ldb: 2,
        beta: 0.0,
        ldc: 2,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    };
    // SAFETY: the matrices have the sizes of the configuration.
    unsafe { blas.matmul(config, &a, &b, &mut c, None, None) }.expect("the product is valid");
    assert_eq!(stream.clone_dtoh(&c).expect("memory"), [17.0, 39.0]);
}
