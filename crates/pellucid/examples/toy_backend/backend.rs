//! A complete backend: buffers in host memory, copies, and kernels for `f32` arithmetic. All other kernels run on the
//! CPU.

use pellucid_ir::backend::{
    Backend, Buffer, CheckedKernel, DeviceKind, Driver, MemoryStats, OperandMeta, Readable, Storage, Support, View,
    Writable,
};
use pellucid_ir::formula::{Binary, InstructionOperand, Op, Program, UniformSource};
use pellucid_ir::kernel::{Kernel, Map};
use pellucid_ir::{DType, Error, Result, Scalar};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Opens the devices `toy:0`, `toy:1`, and so on. Devices with an odd index defer their kernels.
pub(crate) struct ToyDriver;

impl Driver for ToyDriver {
    fn name(&self) -> &'static str {
        "toy"
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }
    fn is_available(&self) -> bool {
        true
    }
    fn open(&self, index: usize) -> Result<Box<dyn Backend>> {
        Ok(Box::new(Toy { name: format!("toy:{index}"), is_deferred: index % 2 == 1, memory: Arc::default() }))
    }
}

/// A device.
struct Toy {
    name: String,
    is_deferred: bool,
    memory: Arc<Memory>,
}

/// The memory of a device.
struct Memory {
    /// The bytes of all allocated buffers.
    in_use: AtomicUsize,
    /// The limit of `in_use`.
    cap: AtomicUsize,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { in_use: AtomicUsize::new(0), cap: AtomicUsize::new(usize::MAX) }
    }
}

/// A buffer of the device. Its memory is allocated at the first write.
struct ToyBuffer {
    bytes: usize,
    contents: Mutex<Option<Vec<u8>>>,
    memory: Arc<Memory>,
}

impl Buffer for ToyBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn is_allocated(&self) -> bool {
        self.lock().is_some()
    }
    fn discard(&self, _: Writable<'_>) {
        self.release();
    }
}

impl Drop for ToyBuffer {
    fn drop(&mut self) {
        self.release();
    }
}

impl ToyBuffer {
    fn release(&self) {
        if self.lock().take().is_some() {
            self.memory.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.contents.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls `access` with the bytes of a storage of this backend, which are allocated if necessary.
    fn of<R>(storage: &Storage, access: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let buffer: &dyn Any = storage.buffer().as_any();
        let foreign = || Error::invalid("toy", "a storage belongs to another backend");
        let buffer: &ToyBuffer = buffer.downcast_ref().ok_or_else(foreign)?;
        let mut contents = buffer.lock();
        if let Some(contents) = &mut *contents {
            return Ok(access(contents));
        }
        let Memory { in_use, cap } = &*buffer.memory;
        let (requested, cap) = (buffer.bytes, cap.load(Ordering::Relaxed));
        let before = in_use.fetch_add(requested, Ordering::Relaxed);
        if requested > cap.saturating_sub(before) {
            in_use.fetch_sub(requested, Ordering::Relaxed);
            return Err(Error::OutOfMemory { op: "", shape: None, requested, in_use: before, cap });
        }
        Ok(access(contents.insert(vec![0; requested])))
    }
}

impl Backend for Toy {
    fn name(&self) -> &str {
        &self.name
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(ToyBuffer { bytes, contents: Mutex::new(None), memory: self.memory.clone() })))
    }

    fn support(&self, kernel: &Kernel, _: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> Support {
        match kernel {
            Kernel::Map(map) if is_arithmetic(&map.program) => Support::Native,
            _ => Support::Fallback,
        }
    }

    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()> {
        match (launch.kernel(), launch.outputs()) {
            (Kernel::Map(map), [output]) => run_map(map, launch.inputs(), output),
            (kernel, _) => Err(Error::invalid(kernel.name(), "this backend runs arithmetic only")),
        }
    }

    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> Result<()> {
        ToyBuffer::of(&to, |contents| contents[offset..offset + bytes.len()].copy_from_slice(bytes))
    }

    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        ToyBuffer::of(&from, |contents| into.copy_from_slice(&contents[offset..offset + into.len()]))
    }

    fn is_deferred(&self) -> bool {
        self.is_deferred
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn memory_stats(&self) -> MemoryStats {
        MemoryStats { in_use: self.memory.in_use.load(Ordering::Relaxed), ..MemoryStats::default() }
    }

    fn set_memory_cap(&self, bytes: usize) {
        self.memory.cap.store(bytes, Ordering::Relaxed);
    }

    fn trim(&self) {}
}

/// Returns true if a program consists of sums, differences, products and quotients of `f32`.
fn is_arithmetic(program: &Program) -> bool {
    let known = |op| matches!(op, Op::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div));
    !program.is_row()
        && program.outputs.len() == 1
        && program.inputs.iter().all(|input| input.storage == DType::F32)
        && program.outputs[0].storage == DType::F32
        && program.steps.iter().all(|step| known(step.op) && step.compute == DType::F32.compute())
}

/// Computes a map element by element.
fn run_map(map: &Map, inputs: &[View<'_>], output: &View<'_>) -> Result<()> {
    let program = &map.program;
    let values: Vec<Vec<f32>> = inputs.iter().map(|view| read(view, output)).collect::<Result<_>>()?;
    let uniform = |source: UniformSource| match source {
        UniformSource::Param(k) => map.params[k as usize],
        UniformSource::Literal(value) => value,
        UniformSource::RowLength => Scalar::Int(0),
    };
    let uniforms: Vec<f32> = program.uniforms.iter().map(|u| uniform(u.source).to_f64() as f32).collect();
    let mut registers = vec![0.0f32; program.registers.len()];
    let results = (0..output.layout.shape().size()).map(|i| {
        let operand = |registers: &[f32], operand: InstructionOperand| match operand {
            InstructionOperand::Input(k) => values[k as usize][i],
            InstructionOperand::Uniform(u) => uniforms[u as usize],
            InstructionOperand::Register(r) | InstructionOperand::Row(r) => registers[r as usize],
        };
        for step in &program.steps {
            let (a, b) = (operand(&registers, step.args[0]), operand(&registers, step.args[1]));
            let InstructionOperand::Register(into) = step.into else { continue };
            registers[into as usize] = match step.op {
                Op::Binary(Binary::Add) => a + b,
                Op::Binary(Binary::Sub) => a - b,
                Op::Binary(Binary::Mul) => a * b,
                _ => a / b,
            };
        }
        operand(&registers, program.outputs[0].value)
    });
    let results: Vec<f32> = results.collect();
    ToyBuffer::of(output.storage, |contents| {
        for (position, value) in output.layout.positions().zip(results) {
            contents[position * 4..position * 4 + 4].copy_from_slice(&value.to_ne_bytes());
        }
    })
}

/// Returns the elements of a view, broadcast to the shape of the output, in row-major order.
fn read(view: &View<'_>, output: &View<'_>) -> Result<Vec<f32>> {
    let layout = view.layout.broadcast_to(output.layout.shape());
    let layout = layout.ok_or_else(|| Error::invalid("toy", "the shapes do not broadcast"))?;
    ToyBuffer::of(view.storage, |contents| {
        let element = |position: usize| contents[position * 4..position * 4 + 4].try_into().map(f32::from_ne_bytes);
        layout.positions().map(|position| element(position).unwrap_or(f32::NAN)).collect()
    })
}
