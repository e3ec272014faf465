//! Matrix products of cuBLASLt.

use std::ffi::c_void;

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayoutAttribute_t as LayoutAttribute,
    cublasStatus_t as Status, cudaDataType_t as DataType,
};
use half::{bf16, f16};

use crate::capture::RELAXED;
use crate::harness::{Cuda, cuda, succeed};

/// A problem: D = activation(α·op(A)·op(B) + β·C + bias) in column-major order, m x k by k x n.
struct Problem {
    element: DataType,
    compute: Compute,
    scale: DataType,
    m: usize,
    n: usize,
    k: usize,
    transposes: [bool; 2],
    batches: usize,
    scalars: [f64; 2],
    epilogue: Epilogue,
}

impl Problem {
    fn new(element: DataType, m: usize, n: usize, k: usize) -> Self {
        let is_double = element == DataType::CUDA_R_64F;
        Self {
            element,
            compute: if is_double { Compute::CUBLAS_COMPUTE_64F } else { Compute::CUBLAS_COMPUTE_32F },
            scale: if is_double { DataType::CUDA_R_64F } else { DataType::CUDA_R_32F },
            m,
            n,
            k,
            transposes: [false; 2],
            batches: 1,
            scalars: [1.0, 0.0],
            epilogue: Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        }
    }

    /// The value of the problem in `f64`, from operands without padding.
    fn reference(&self, a: &[f64], b: &[f64], c: &[f64], bias: &[f64]) -> Vec<f64> {
        let (m, n, k) = (self.m, self.n, self.k);
        let mut result = vec![0.0; self.batches * m * n];
        for batch in 0..self.batches {
            for column in 0..n {
                for row in 0..m {
                    let a_at = |inner| if self.transposes[0] { row * k + inner } else { inner * m + row };
                    let b_at = |inner| if self.transposes[1] { inner * n + column } else { column * k + inner };
                    let terms = (0..k).map(|i| a[batch * m * k + a_at(i)] * b[batch * k * n + b_at(i)]);
                    let at = batch * m * n + column * m + row;
                    let value = self.scalars[0] * terms.sum::<f64>() + self.scalars[1] * c[at];
                    result[at] = self.activation(value, bias[row]);
                }
            }
        }
        result
    }

    fn activation(&self, value: f64, bias: f64) -> f64 {
        let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
        match self.epilogue {
            Epilogue::CUBLASLT_EPILOGUE_BIAS => value + bias,
            Epilogue::CUBLASLT_EPILOGUE_RELU => value.max(0.0),
            Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS => (value + bias).max(0.0),
            Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS => gelu(value + bias),
            _ => value,
        }
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// *Memory:* the addresses are matrices of the problem without padding, a bias of m elements, and a workspace.
    unsafe fn enqueue(
        &self,
        cuda: &Cuda,
        memory: [u64; 5],
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<(), Status> {
        // SAFETY: *Memory* is the caller's.
        unsafe { self.enqueue_after(cuda, memory, stream, || ()) }
    }

    /// Enqueues the product. Calls `begin` before, when the algorithm is chosen: a capture begins there, because the
    /// library may allocate memory until then.
    ///
    /// # Safety
    /// *Memory:* the addresses are matrices of the problem without padding, a bias of m elements, and a workspace.
    unsafe fn enqueue_after(
        &self,
        cuda: &Cuda,
        memory: [u64; 5],
        stream: cudarc::driver::sys::CUstream,
        begin: impl FnOnce(),
    ) -> Result<(), Status> {
        let [a, b, d, bias, workspace] = memory.map(|address| address as *mut c_void);
        // SAFETY: objects exist until they are destroyed; attributes have the sizes of their types; *Memory* is the
        // caller's.
        unsafe {
            let handle = lt::create_handle().map_err(|e| e.0)?;
            let description = lt::create_matmul_desc(self.compute, self.scale).map_err(|e| e.0)?;
            let set = |attribute, value: *const c_void, size| {
                lt::set_matmul_desc_attribute(description, attribute, value, size).expect("the attribute exists");
            };
            for (attribute, is_transposed) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, self.transposes[0]),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, self.transposes[1]),
            ] {
                let operation = i32::from(is_transposed);
                set(attribute, (&raw const operation).cast(), 4);
            }
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const self.epilogue).cast(), 4);
            set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), 8);
            let layouts = self.layouts();
            let preference = lt::create_matmul_pref().map_err(|e| e.0)?;
            let bytes = 1_usize << 20;
            let attribute = PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            lt::set_matmul_pref_attribute(preference, attribute, (&raw const bytes).cast(), 8).map_err(|e| e.0)?;
            let [a_layout, b_layout, d_layout] = layouts;
            let found =
                lt::get_matmul_algo_heuristic(handle, description, a_layout, b_layout, d_layout, d_layout, preference);
            let scalars = self.scalars.map(|x| x as f32);
            let is_double = self.scale == DataType::CUDA_R_64F;
            let scalar = |i: usize| -> *const c_void {
                if is_double { (&raw const self.scalars[i]).cast() } else { (&raw const scalars[i]).cast() }
            };
            let result = found.and_then(|found| {
                begin();
                lt::matmul(
                    handle,
                    description,
                    scalar(0),
                    scalar(1),
                    a,
                    a_layout,
                    b,
                    b_layout,
                    d,
                    d_layout,
                    d,
                    d_layout,
                    &found.algo,
                    workspace,
                    bytes,
                    stream.cast(),
                )
            });
            lt::destroy_matmul_pref(preference).expect("the object exists");
            layouts.into_iter().for_each(|layout| lt::destroy_matrix_layout(layout).expect("the object exists"));
            lt::destroy_matmul_desc(description).expect("the object exists");
            if stream.is_null() {
                succeed(cuda.synchronize());
            }
            lt::destroy_handle(handle).expect("the object exists");
            result.map_err(|e| e.0)
        }
    }

    fn layouts(&self) -> [sys::cublasLtMatrixLayout_t; 3] {
        let flip = |is_transposed, rows, columns| if is_transposed { (columns, rows) } else { (rows, columns) };
        let shapes =
            [flip(self.transposes[0], self.m, self.k), flip(self.transposes[1], self.k, self.n), (self.m, self.n)];
        shapes.map(|(rows, columns)| {
            let layout = lt::create_matrix_layout(self.element, rows as u64, columns as u64, rows as i64);
            let layout = layout.expect("the layout is valid");
            let (batches, offset) = (self.batches as i32, (rows * columns) as i64);
            // SAFETY: the layout exists, and the attributes have 4 and 8 bytes.
            unsafe {
                let set = |attribute, value, size| {
                    lt::set_matrix_layout_attribute(layout, attribute, value, size).expect("the attribute exists");
                };
                set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const batches).cast(), 4);
                set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const offset).cast(), 8);
            }
            layout
        })
    }
}

/// Numbers of both signs that every type represents.
fn numbers(length: usize, seed: usize) -> Vec<f64> {
    (0..length).map(|i| ((i * 37 + seed * 11) % 23) as f64 / 8.0 - 1.25).collect()
}

/// Computes a problem and compares it with the reference.
fn compare_with_reference<T: Copy + Default>(
    problem: &Problem,
    tolerance: f64,
    encode: fn(f64) -> T,
    decode: fn(T) -> f64,
) {
    let Some(cuda) = cuda() else { return };
    let (m, n, k, batches) = (problem.m, problem.n, problem.k, problem.batches);
    let (a, b) = (numbers(batches * m * k, 1), numbers(batches * k * n, 2));
    let (c, bias) = (numbers(batches * m * n, 3), numbers(m, 4));
    let upload = |values: &[f64]| cuda.upload(&values.iter().map(|&x| encode(x)).collect::<Vec<T>>());
    let memory = [upload(&a), upload(&b), upload(&c), upload(&bias), cuda.memory(1 << 20)];
    // SAFETY: the matrices have the sizes of the problem, and the workspace has 1 MiB.
    let result = unsafe { problem.enqueue(&cuda, memory, std::ptr::null_mut()) };
    assert_eq!(result, Ok(()));
    let found = cuda.download::<T>(memory[2], batches * m * n);
    for (index, expected) in problem.reference(&a, &b, &c, &bias).into_iter().enumerate() {
        let value = decode(found[index]);
        assert!((value - expected).abs() <= tolerance * expected.abs().max(1.0), "{index}: {value} {expected}");
    }
}

fn compare_f32(problem: &Problem) {
    compare_with_reference::<f32>(problem, 1e-5, |x| x as f32, f64::from);
}

#[test]
fn products_of_f32_have_all_transposes() {
    for transposes in [[false, false], [true, false], [false, true], [true, true]] {
        compare_f32(&Problem { transposes, ..Problem::new(DataType::CUDA_R_32F, 8, 12, 20) });
    }
}

#[test]
fn scalars_scale_the_product_and_c() {
    compare_f32(&Problem { scalars: [0.5, -2.0], ..Problem::new(DataType::CUDA_R_32F, 8, 4, 16) });
}

#[test]
fn batches_have_strides() {
    let transposes = [true, false];
    compare_f32(&Problem { batches: 3, transposes, ..Problem::new(DataType::CUDA_R_32F, 4, 8, 16) });
}

#[test]
fn epilogues_add_a_bias_and_apply_a_function() {
    for epilogue in
        [Epilogue::CUBLASLT_EPILOGUE_BIAS, Epilogue::CUBLASLT_EPILOGUE_RELU, Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS]
    {
        compare_f32(&Problem { epilogue, ..Problem::new(DataType::CUDA_R_32F, 16, 8, 8) });
    }
    // A GPU approximates the hyperbolic tangent.
    let epilogue = Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS;
    let problem = Problem { epilogue, ..Problem::new(DataType::CUDA_R_32F, 16, 8, 8) };
    compare_with_reference::<f32>(&problem, 1e-3, |x| x as f32, f64::from);
}

#[test]
fn products_of_f64_are_in_double_precision() {
    compare_with_reference::<f64>(&Problem::new(DataType::CUDA_R_64F, 8, 8, 24), 1e-14, |x| x, |x| x);
}

#[test]
fn products_of_half_precision_accumulate_in_f32() {
    compare_with_reference::<f16>(&Problem::new(DataType::CUDA_R_16F, 16, 8, 64), 1e-3, f16::from_f64, f16::to_f64);
    compare_with_reference::<bf16>(&Problem::new(DataType::CUDA_R_16BF, 16, 8, 64), 8e-3, bf16::from_f64, bf16::to_f64);
}

#[test]
fn tf32_keeps_the_values_of_short_factors() {
    let compute = Compute::CUBLAS_COMPUTE_32F_FAST_TF32;
    compare_f32(&Problem { compute, ..Problem::new(DataType::CUDA_R_32F, 16, 16, 16) });
}

#[test]
fn captured_product_runs_at_the_launch() {
    let Some(cuda) = cuda() else { return };
    let problem = Problem::new(DataType::CUDA_R_32F, 4, 4, 4);
    let (a, b) = (numbers(16, 1), numbers(16, 2));
    let upload = |values: &[f64]| cuda.upload(&values.iter().map(|&x| x as f32).collect::<Vec<f32>>());
    let memory = [upload(&a), upload(&b), upload(&[7.0; 16]), upload(&[0.0; 4]), cuda.memory(1 << 20)];
    let stream = cuda.stream();
    let begin = || succeed(cuda.begin(stream, RELAXED));
    // SAFETY: the matrices have the sizes of the problem, and the workspace has 1 MiB.
    let result = unsafe { problem.enqueue_after(&cuda, memory, stream, begin) };
    let graph = cuda.end(stream).expect("the capture is valid");
    assert_eq!(result, Ok(()));
    assert!(!cuda.nodes(graph).is_empty());
    assert_eq!(cuda.download::<f32>(memory[2], 16), [7.0; 16]);
    let exec = cuda.instantiate(graph);
    cuda.launch_graph(exec, stream);
    let found = cuda.download::<f32>(memory[2], 16);
    let expected = problem.reference(&a, &b, &[0.0; 16], &[0.0; 4]);
    assert!(found.iter().zip(&expected).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-5));
}
