//! The backend: views become addresses, checked against their buffers, and kernels find their family.

use crate::buffer::CpuBuffer;
use crate::operand::{self, Operand, Operands};
use crate::{check, index, pool, product, random, scan, sort, tile};
use pellucid_ir::backend::{Backend, Buffer, MemoryStats, Prepared, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{self, Plan};
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// The CPU of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::new(CpuBuffer::new(bytes)?)))
    }

    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
        let op = kernel.name();
        let (needed, made) = arity(kernel);
        if inputs.len() < needed || outputs.len() < made {
            let reason = format!("needs {needed} inputs and {made} outputs, got {} and {}", inputs.len(), outputs.len());
            return Err(Error::invalid(op, reason));
        }
        // Built in place: collecting results would move the whole array about, which costs ten
        // times what a small kernel does.
        let (mut x, mut y) = (Operands::new(), Operands::new());
        for view in inputs {
            let base = operand::input(op, view)?.as_ptr();
            x.push(Operand { base, layout: view.layout, dtype: view.dtype });
        }
        // What these two write first, they also read.
        let in_place = matches!(kernel, Kernel::Scatter(_) | Kernel::Random(_));
        for (i, view) in outputs.iter().enumerate() {
            let start = if in_place && i == 0 { operand::state(op, view) } else { operand::output(op, view) };
            let base = start?.as_ptr();
            y.push(Operand { base, layout: view.layout, dtype: view.dtype });
        }
        match kernel {
            Kernel::Map(k) => check::map(k, &x, &y).and_then(|()| tile::map(k, &x, &y)),
            Kernel::Reduce(k) => check::reduce(k, &x, &y[0]).and_then(|()| tile::reduce(k, &x, &y[0])),
            Kernel::Row(k) => check::row(k, &x, &y).and_then(|()| tile::row(k, &x, &y)),
            Kernel::MatMul(k) => product::matmul(k, &x, &y),
            Kernel::Copy => check::copy(&x[0], &y[0]).and_then(|()| tile::copy(&x[0], &y[0])),
            Kernel::Scan(k) => scan::scan(k, &x[0], &y),
            Kernel::Gather(k) => index::gather(k, &x[0], &x[1..], &y[0]),
            Kernel::Scatter(k) => index::scatter(k, &x[0], &x[1..], &y[0]),
            Kernel::Sort(k) => sort::sort(k, &x[0], &y[0], &y[1]),
            Kernel::Random(k) => random::random(k, &y[0], &y[1]),
        }
    }

    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()> {
        let buffer = operand::cpu_buffer("upload", to)?;
        if bytes.len() > buffer.bytes() {
            let reason = format!("{} bytes do not fit a buffer of {}", bytes.len(), buffer.bytes());
            return Err(Error::invalid("upload", reason));
        }
        let start = buffer.ensure()?;
        // SAFETY: the buffer has at least so many bytes, and nobody else uses them: the caller
        // holds the storage's borrow word. A slice of Rust cannot overlap memory of the pool.
        unsafe { start.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()> {
        let buffer = operand::cpu_buffer("download", from)?;
        if offset.checked_add(into.len()).is_none_or(|end| end > buffer.bytes()) {
            let reason = format!("bytes {offset}.. ({}) are not in a buffer of {}", into.len(), buffer.bytes());
            return Err(Error::invalid("download", reason));
        }
        if into.is_empty() {
            return Ok(());
        }
        let start = buffer.start().ok_or_else(|| operand::no_value("download"))?;
        // SAFETY: the bytes lie in the buffer, and nobody writes them meanwhile: the caller holds
        // the storage's borrow word.
        unsafe { start.add(offset).copy_to_nonoverlapping(std::ptr::NonNull::from(&mut *into).cast(), into.len()) };
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        let fits = |o: &plan::Operand| {
            plan.slots.get(o.slot).is_some_and(|&bytes| operand::fits(&o.layout, o.dtype.size(), bytes))
        };
        if plan.launches.iter().any(|l| !l.inputs.iter().chain(&l.outputs).all(fits)) {
            return Err(Error::invalid("prepare", "an operand of the plan lies outside its slot"));
        }
        Ok(Box::new(Sequence(plan.clone())))
    }

    fn memory_stats(&self) -> MemoryStats {
        pool::stats()
    }

    fn set_memory_cap(&self, bytes: usize) {
        pool::set_cap(bytes);
    }

    fn trim(&self) {
        pool::trim();
    }
}

/// The least number of inputs and outputs that a kernel has.
fn arity(kernel: &Kernel) -> (usize, usize) {
    match kernel {
        Kernel::Map(k) => (k.program.inputs.len(), k.program.outputs.len()),
        Kernel::Row(k) => (k.program.inputs.len(), k.program.outputs.len()),
        Kernel::Reduce(k) => (k.program.inputs.len(), 1),
        Kernel::Scan(_) | Kernel::Copy => (1, 1),
        Kernel::MatMul(_) | Kernel::Gather(_) | Kernel::Scatter(_) => (2, 1),
        Kernel::Sort(_) => (1, 2),
        Kernel::Random(_) => (0, 2),
    }
}

/// A plan on the CPU: its kernels, one after the other.
struct Sequence(Plan);

impl Prepared for Sequence {
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<()> {
        if slots.len() < self.0.slots.len() {
            let reason = format!("the plan has {} slots, got {}", self.0.slots.len(), slots.len());
            return Err(Error::invalid("launch", reason));
        }
        for launch in &self.0.launches {
            let inputs: SmallVec<[View<'_>; 8]> = launch.inputs.iter().map(|o| view(o, slots)).collect();
            let outputs: SmallVec<[View<'_>; 8]> = launch.outputs.iter().map(|o| view(o, slots)).collect();
            Cpu.run(&launch.kernel, &inputs, &outputs)?;
        }
        Ok(())
    }
}

fn view<'a>(operand: &'a plan::Operand, slots: &'a [Arc<Storage>]) -> View<'a> {
    View { storage: &slots[operand.slot], layout: &operand.layout, dtype: operand.dtype }
}
