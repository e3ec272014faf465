//! Arrays on the CPU and on the device under test, and comparisons of results.

use crate::backend::{REQUIRED, TestBackend, open};
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, OperandMeta, Storage, Support, View};
use pellucid_ir::formula::{InstructionOperand, Load, Op, Program, Step, Store, Uniform, UniformSource};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::{Compute, DType, Element, Layout, Result, Scalar, Shape, bf16, f16};
use std::sync::{Arc, OnceLock};

/// Returns the device under test, or `None` if the machine has none and none is required.
pub(crate) fn device() -> Option<&'static TestBackend> {
    static DEVICE: OnceLock<Option<TestBackend>> = OnceLock::new();
    let opened = DEVICE.get_or_init(|| match open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
            assert!(!required, "{REQUIRED} is 1, but {error}");
            eprintln!("skipped: {error}");
            None
        }
    });
    opened.as_ref()
}

/// A linear congruential generator, so the tests are the same in every run.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// Returns a pseudorandom integer below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    /// Returns a number: often an integer or a special value.
    pub(crate) fn value(&mut self) -> Scalar {
        match self.below(16) {
            0 => Scalar::Int(0),
            1 => Scalar::Float(-0.0),
            2..5 => Scalar::Int(self.below(200) as i64 - 100),
            5 => Scalar::Float([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30, -70_000.5][self.below(5)]),
            6 => Scalar::Int((self.below(1 << 30) as i64) << self.below(33)),
            _ => Scalar::Float((self.below(2_000_001) as f64 - 1e6) / 3e5),
        }
    }

    /// Returns a finite number of small magnitude.
    pub(crate) fn finite(&mut self) -> Scalar {
        Scalar::Float((self.below(2_000_001) as f64 - 1e6) / 3e5)
    }
}

/// The memory layout of a [`PairedArray`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TestLayout {
    /// Row-major, from the start of the storage.
    Plain,
    /// Row-major, at an offset of five elements.
    Offset,
    /// Column-major.
    Transposed,
    /// Row-major with every axis reversed.
    Flipped,
    /// Every third element along the last axis of a row-major array.
    Gaps,
}

impl TestLayout {
    /// All layouts.
    pub(crate) const ALL: [TestLayout; 5] =
        [TestLayout::Plain, TestLayout::Offset, TestLayout::Transposed, TestLayout::Flipped, TestLayout::Gaps];

    fn layout(self, shape: &Shape) -> Layout {
        let plain = Layout::contiguous(shape.clone());
        let rank = shape.rank();
        match self {
            TestLayout::Plain => plain,
            TestLayout::Offset => Layout::contiguous_from(shape.clone(), 5),
            TestLayout::Transposed => {
                let reversed: Vec<usize> = (0..rank).rev().collect();
                Layout::contiguous(reversed.iter().map(|&a| shape[a]).collect()).permute(&reversed)
            }
            TestLayout::Flipped => {
                (0..rank).filter(|&a| shape[a] > 0).fold(plain, |l, a| l.slice(a, shape[a] - 1, -1, shape[a]))
            }
            TestLayout::Gaps if rank == 0 => plain,
            TestLayout::Gaps => {
                let wide = Layout::contiguous(shape.with_axis(rank - 1, shape[rank - 1] * 3));
                wide.slice(rank - 1, 0, 3, shape[rank - 1])
            }
        }
    }
}

/// An array with the same memory on the CPU and on the device.
#[derive(Clone)]
pub(crate) struct PairedArray {
    pub(crate) cpu: Arc<Storage>,
    pub(crate) gpu: Arc<Storage>,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

/// Returns the bytes of a scalar as `dtype`.
fn encode(value: Scalar, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(bool::from_scalar(value))],
        DType::U8 => u8::from_scalar(value).to_ne_bytes().into(),
        DType::I8 => i8::from_scalar(value).to_ne_bytes().into(),
        DType::I16 => i16::from_scalar(value).to_ne_bytes().into(),
        DType::I32 => i32::from_scalar(value).to_ne_bytes().into(),
        DType::I64 => i64::from_scalar(value).to_ne_bytes().into(),
        DType::F16 => f16::from_scalar(value).to_ne_bytes().into(),
        DType::BF16 => bf16::from_scalar(value).to_ne_bytes().into(),
        DType::F32 => f32::from_scalar(value).to_ne_bytes().into(),
        DType::F64 => f64::from_scalar(value).to_ne_bytes().into(),
    }
}

/// Returns the value of an element.
fn decode(bytes: &[u8], dtype: DType) -> Scalar {
    fn first<T: Element>(bytes: &[u8]) -> Scalar {
        T::from_bytes(bytes)[0].to_scalar()
    }
    match dtype {
        DType::Bool => first::<bool>(bytes),
        DType::U8 => first::<u8>(bytes),
        DType::I8 => first::<i8>(bytes),
        DType::I16 => first::<i16>(bytes),
        DType::I32 => first::<i32>(bytes),
        DType::I64 => first::<i64>(bytes),
        DType::F16 => first::<f16>(bytes),
        DType::BF16 => first::<bf16>(bytes),
        DType::F32 => first::<f32>(bytes),
        DType::F64 => first::<f64>(bytes),
    }
}

impl PairedArray {
    /// Creates an array whose memory, gaps included, contains the values that `value` returns.
    pub(crate) fn new(
        gpu: &TestBackend,
        shape: impl Into<Shape>,
        dtype: DType,
        layout: TestLayout,
        mut value: impl FnMut() -> Scalar,
    ) -> PairedArray {
        let layout = layout.layout(&shape.into());
        let elements = layout.extent().end.max(0) as usize + 3;
        let bytes: Vec<u8> = (0..elements).flat_map(|_| encode(value(), dtype)).collect();
        PairedArray::from_bytes(gpu, &bytes, layout, dtype)
    }

    /// Creates a row-major array of `values`.
    pub(crate) fn of<T: Element>(gpu: &TestBackend, shape: impl Into<Shape>, values: &[T]) -> PairedArray {
        let bytes: Vec<u8> = values.iter().flat_map(|v| encode(v.to_scalar(), T::DTYPE)).collect();
        PairedArray::from_bytes(gpu, &bytes, Layout::contiguous(shape.into()), T::DTYPE)
    }

    pub(crate) fn from_bytes(gpu: &TestBackend, bytes: &[u8], layout: Layout, dtype: DType) -> PairedArray {
        let (on_cpu, on_gpu) = (Cpu.storage(bytes.len()).unwrap(), gpu.storage(bytes.len()).unwrap());
        Cpu.upload(bytes, &on_cpu).unwrap();
        gpu.upload(bytes, &on_gpu).unwrap();
        PairedArray { cpu: on_cpu, gpu: on_gpu, layout, dtype }
    }

    /// Returns the array broadcast to `shape`.
    pub(crate) fn broadcast(&self, shape: impl Into<Shape>) -> PairedArray {
        PairedArray { layout: self.layout.broadcast_to(&shape.into()).unwrap(), ..self.clone() }
    }

    pub(crate) fn on_cpu(&self) -> View<'_> {
        View { storage: &self.cpu, layout: &self.layout, dtype: self.dtype }
    }

    pub(crate) fn on_gpu(&self) -> View<'_> {
        View { storage: &self.gpu, layout: &self.layout, dtype: self.dtype }
    }

    /// Returns all bytes of the storage on the CPU and on the device.
    pub(crate) fn bytes(&self, gpu: &TestBackend) -> [Vec<u8>; 2] {
        let size = self.cpu.buffer().bytes();
        let (mut a, mut b) = (vec![0; size], vec![0; size]);
        Cpu.download(&self.cpu, 0, &mut a).unwrap();
        gpu.download(&self.gpu, 0, &mut b).unwrap();
        [a, b]
    }

    /// Returns the elements of the entire storage on the device.
    pub(crate) fn device_values<T: Element>(&self, gpu: &TestBackend) -> Vec<T> {
        T::from_bytes(&self.bytes(gpu)[1])
    }

    /// Asserts that the storages agree, even in the elements that the array does not contain.
    #[track_caller]
    pub(crate) fn assert_same(&self, gpu: &TestBackend, tolerance: Tolerance, context: &str) {
        let size = self.dtype.size();
        let [cpu, device] = self.bytes(gpu);
        let worst = (0..cpu.len() / size).find(|&i| {
            let at = i * size..(i + 1) * size;
            cpu[at.clone()] != device[at.clone()]
                && !tolerance.accepts(decode(&cpu[at.clone()], self.dtype), decode(&device[at], self.dtype), self.dtype)
        });
        if let Some(i) = worst {
            let at = i * size..(i + 1) * size;
            panic!(
                "{context}: element {i} of the storage is {:?}, expected {:?} ({} {:?})",
                decode(&device[at.clone()], self.dtype),
                decode(&cpu[at], self.dtype),
                self.dtype,
                self.layout
            );
        }
    }
}

/// The allowed difference between the results of the device and the CPU. NaN equals NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tolerance {
    /// Bitwise equal. A subnormal `f32` may be flushed to zero.
    Bits,
    /// A relative error, and an absolute error for results near zero.
    Relative(f64, f64),
}

impl Tolerance {
    fn accepts(self, expected: Scalar, got: Scalar, dtype: DType) -> bool {
        if !dtype.is_float() {
            return false;
        }
        let (e, g) = (expected.to_f64(), got.to_f64());
        if e.is_nan() || g.is_nan() {
            return e.is_nan() && g.is_nan();
        }
        match self {
            Tolerance::Bits => dtype == DType::F32 && e.abs() < f64::from(f32::MIN_POSITIVE) && g == 0.0,
            Tolerance::Relative(relative, absolute) => (e - g).abs() <= relative * e.abs() + absolute || e == g,
        }
    }
}

/// Returns true if the device runs a map. The shapes of its operands make no difference.
pub(crate) fn is_native_map(gpu: &TestBackend, kernel: &Kernel) -> bool {
    let Kernel::Map(Map { program, .. }) = kernel else { panic!("{kernel:?} must be a map") };
    let layout = &Layout::contiguous([1].into());
    let inputs = program.inputs.iter().map(|input| OperandMeta { layout, dtype: input.storage });
    let outputs = program.outputs.iter().map(|output| OperandMeta { layout, dtype: output.storage });
    gpu.support(kernel, &inputs.collect::<Vec<_>>(), &outputs.collect::<Vec<_>>()) == Support::Native
}

/// Returns true if the device runs a kernel with these operands.
pub(crate) fn is_native(gpu: &TestBackend, kernel: &Kernel, inputs: &[&PairedArray], outputs: &[&PairedArray]) -> bool {
    let [inputs, outputs] = [inputs, outputs].map(|arrays| arrays.iter().map(|a| a.on_gpu()).collect::<Vec<_>>());
    let [inputs, outputs] = [&inputs, &outputs].map(|views| views.iter().map(OperandMeta::from).collect::<Vec<_>>());
    gpu.support(kernel, &inputs, &outputs) == Support::Native
}

/// Runs a kernel on both backends. Asserts that it is native.
pub(crate) fn run_both(
    gpu: &TestBackend,
    kernel: &Kernel,
    inputs: &[&PairedArray],
    outputs: &[&PairedArray],
) -> Result<()> {
    assert!(is_native(gpu, kernel, inputs, outputs), "{kernel:?} must be native");
    let cpu_inputs: Vec<View<'_>> = inputs.iter().map(|a| a.on_cpu()).collect();
    let cpu_outputs: Vec<View<'_>> = outputs.iter().map(|a| a.on_cpu()).collect();
    let expected = Cpu.run(kernel, &cpu_inputs, &cpu_outputs);
    let gpu_inputs: Vec<View<'_>> = inputs.iter().map(|a| a.on_gpu()).collect();
    let gpu_outputs: Vec<View<'_>> = outputs.iter().map(|a| a.on_gpu()).collect();
    let got = gpu.run(kernel, &gpu_inputs, &gpu_outputs);
    assert_eq!(expected.is_ok(), got.is_ok(), "{kernel:?}: {expected:?} on the CPU, {got:?} on the device");
    got
}

/// Builds programs instruction by instruction.
#[derive(Default)]
pub(crate) struct ProgramBuilder {
    inputs: Vec<Load>,
    uniforms: Vec<Uniform>,
    steps: Vec<Step>,
    registers: Vec<Compute>,
    rows: Vec<Compute>,
}

pub(crate) type Value = InstructionOperand;

impl ProgramBuilder {
    /// Adds an input that is loaded in the compute type of its dtype.
    pub(crate) fn x(&mut self, storage: DType) -> Value {
        self.input(storage, storage.compute(), false)
    }

    /// Adds an input.
    pub(crate) fn input(&mut self, storage: DType, compute: Compute, per_row: bool) -> Value {
        self.inputs.push(Load { storage, compute, per_row });
        Value::Input(self.inputs.len() as u8 - 1)
    }

    /// Adds a uniform.
    pub(crate) fn uniform(&mut self, source: UniformSource, compute: Compute) -> Value {
        self.uniforms.push(Uniform { source, compute });
        Value::Uniform(self.uniforms.len() as u16 - 1)
    }

    /// Adds an instruction with one result for each element.
    pub(crate) fn step(&mut self, op: Op, compute: Compute, result: Compute, args: &[Value]) -> Value {
        self.registers.push(result);
        let into = Value::Register(self.registers.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    /// Adds an instruction with one result for each row.
    pub(crate) fn row_step(&mut self, op: Op, compute: Compute, args: &[Value]) -> Value {
        self.rows.push(compute);
        let into = Value::Row(self.rows.len() as u16 - 1);
        self.steps.push(Step { op, compute, into, args: args.into() });
        into
    }

    /// Returns the program with outputs of (value, compute type, dtype, per row).
    pub(crate) fn build(self, outputs: &[(Value, Compute, DType, bool)]) -> Arc<Program> {
        let store = |&(value, compute, storage, per_row): &(Value, Compute, DType, bool)| Store {
            value,
            compute,
            storage,
            per_row,
        };
        let registers = (self.registers, self.rows);
        let outputs = outputs.iter().map(store).collect();
        Arc::new(Program::new("test", self.inputs, self.uniforms, self.steps, registers, outputs))
    }
}
