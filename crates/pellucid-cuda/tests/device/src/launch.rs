//! A launch: its limits, its arguments, and its runs under the schedules.

use std::ffi::c_void;
use std::rc::Rc;

use crate::TestDevice;
use crate::fibers::{BlockRun, ThreadFault};
use crate::interface::Schedule;
use crate::memory::Lifetime;
use crate::memory::MemoryAccess;
use crate::modules::KernelCode;
use crate::reports::FaultKind;

/// Limits of the device.
pub(crate) const MAX_THREADS: u32 = 1024;
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub(crate) const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];

/// Results of launches whose writable allocations are larger are not compared under both schedules.
const MAX_COMPARED_BYTES: usize = 256 << 20;

/// Bytes after the dynamic shared memory that are checked.
const SHARED_MARGIN: usize = 256;
const SHARED_POISON: u8 = 0xff;

/// A kernel with its arguments.
pub(crate) struct KernelLaunch {
    pub(crate) code: Rc<KernelCode>,
    pub(crate) function: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic: usize,
    /// The values of the arguments, each padded to 16 bytes.
    pub(crate) arguments: Vec<u128>,
}

/// Returns the 16-byte units of a parameter.
pub(crate) fn argument_units(size: u32) -> usize {
    (size as usize).div_ceil(16).max(1)
}

impl KernelLaunch {
    /// Returns a description of the first limit that the launch exceeds.
    pub(crate) fn limit_fault(&self, max_dynamic: usize) -> Option<String> {
        let name = &self.code.name;
        for axis in 0..3 {
            let (block, grid) = (self.block[axis], self.grid[axis]);
            if block == 0 || grid == 0 {
                return Some(format!("kernel {name}: a dimension of 0 on axis {axis}"));
            }
            if block > MAX_BLOCK[axis] || grid > MAX_GRID[axis] {
                return Some(format!("kernel {name}: a block of {block} or a grid of {grid} on axis {axis}"));
            }
        }
        let threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        if threads > u64::from(MAX_THREADS) {
            return Some(format!("kernel {name}: {threads} threads in a block"));
        }
        (self.dynamic > max_dynamic)
            .then(|| format!("kernel {name}: {} bytes of dynamic shared memory, limit {max_dynamic}", self.dynamic))
    }

    /// Pointers to the values of the arguments.
    fn argument_pointers(&self) -> Vec<*mut c_void> {
        let mut unit = 0;
        let pointer = |parameter: &crate::modules::KernelParameter| {
            let value = &self.arguments[unit];
            unit += argument_units(parameter.size);
            std::ptr::from_ref(value).cast_mut().cast()
        };
        self.code.parameters.iter().map(pointer).collect()
    }

    /// Returns the values of the parameters that are pointers, and whether the kernel may write through them.
    pub(crate) fn pointers(&self) -> Vec<(usize, bool)> {
        let mut unit = 0;
        let mut found = Vec::new();
        for parameter in &self.code.parameters {
            if parameter.kind != 0 {
                found.push((self.arguments[unit] as u64 as usize, parameter.kind == 2));
            }
            unit += argument_units(parameter.size);
        }
        found
    }

    /// Returns the accesses that the pointers among the arguments name.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        let pointers = self.pointers().into_iter().filter(|(address, _)| *address != 0);
        pointers.map(|(address, is_write)| MemoryAccess { address, bytes: 0, is_write }).collect()
    }

    /// Runs all blocks.
    fn run_blocks(&self, device: &mut TestDevice, is_descending: bool) -> Result<(), ThreadFault> {
        let mut pointers = self.argument_pointers();
        let library = &self.code.library;
        // SAFETY: *Arguments*: `pointers` has one pointer for each parameter, to a value of its size. *Module*: the
        // launch holds the library.
        let run =
            unsafe { BlockRun::new(self.code.call, pointers.as_mut_ptr(), library.info, self.block, is_descending) };
        // SAFETY: the library is loaded, and only this thread uses its variables while the device is locked.
        let info = unsafe { &*library.info };
        // SAFETY: the pointers name variables of the module (`device.h`).
        unsafe {
            info.block_dimensions.write(self.block);
            info.grid_dimensions.write(self.grid);
        }
        let [width, height, depth] = self.grid.map(u64::from);
        let count = width * height * depth;
        for position in 0..count {
            let index = if is_descending { count - 1 - position } else { position };
            let block = [index % width, index / width % height, index / (width * height)].map(|i| i as u32);
            // SAFETY: the pointer names the module's `blockIdx`; the ranges are its shared memory, of which the
            // dynamic part is at least `dynamic` and the margin long (`limit_fault`).
            unsafe {
                info.block.write(block);
                let static_bytes = info.shared_stop as usize - info.shared_start as usize;
                info.shared_start.write_bytes(SHARED_POISON, static_bytes);
                if self.dynamic > 0 {
                    info.dynamic.write_bytes(SHARED_POISON, self.dynamic + SHARED_MARGIN);
                }
            }
            run.reset();
            run.run_block(&mut device.fibers)?;
            if self.dynamic > 0 {
                // SAFETY: the range was written above.
                let margin = unsafe { std::slice::from_raw_parts(info.dynamic.add(self.dynamic), SHARED_MARGIN) };
                if let Some(offset) = margin.iter().position(|&byte| byte != SHARED_POISON) {
                    let offset = self.dynamic + offset;
                    let text = format!("a write at offset {offset} of {} bytes of shared memory", self.dynamic);
                    return Err((FaultKind::OutOfBounds, text));
                }
            }
        }
        Ok(())
    }

    /// Returns the bases of the allocations that the kernel may write.
    fn writable_bases(&self, device: &TestDevice) -> Vec<usize> {
        let writable = self.pointers().into_iter().filter(|(_, is_write)| *is_write);
        let mut bases: Vec<usize> = writable
            .filter_map(|(address, _)| device.memory.find(address))
            .filter(|record| record.lifetime != Lifetime::Freed)
            .map(|record| record.base)
            .collect();
        bases.sort_unstable();
        bases.dedup();
        bases
    }

    fn is_one_thread(&self) -> bool {
        self.grid.iter().chain(&self.block).all(|&n| n == 1)
    }

    /// Runs the launch in descending order, restores the memory, runs it in ascending order and compares.
    fn run_twice(&self, device: &mut TestDevice, bases: &[usize]) -> Result<(), ThreadFault> {
        let snapshot = |device: &TestDevice| -> Vec<Vec<u8>> {
            let bytes = |base: &usize| device.memory.find(*base).map_or(Vec::new(), |r| r.bytes().to_vec());
            bases.iter().map(bytes).collect()
        };
        let before = snapshot(device);
        self.run_blocks(device, true)?;
        let descending = snapshot(device);
        for (base, bytes) in bases.iter().zip(&before) {
            if let Some(record) = device.memory.find_mut(*base) {
                record.write_all(bytes);
            }
        }
        self.run_blocks(device, false)?;
        for (base, other) in bases.iter().zip(&descending) {
            let Some(record) = device.memory.find(*base) else { continue };
            let differs = |(a, b): (&u8, &u8)| a != b;
            if let Some(offset) = record.bytes().iter().zip(other).position(differs) {
                let text = format!("the order of threads changes the byte at offset {offset} of {}", record.describe());
                return Err((FaultKind::Race, text));
            }
        }
        Ok(())
    }
}

impl TestDevice {
    /// Runs a launch under the schedule, and checks the margins of its allocations. Faults are reported.
    pub(crate) fn run_launch(&mut self, launch: &KernelLaunch) {
        self.reports.count("kernel runs");
        let bases = launch.writable_bases(self);
        let bytes: usize = bases.iter().filter_map(|base| Some(self.memory.find(*base)?.size)).sum();
        let result = match self.settings.schedule {
            Schedule::Ascending => launch.run_blocks(self, false),
            Schedule::Descending => launch.run_blocks(self, true),
            Schedule::Both if launch.is_one_thread() || bytes > MAX_COMPARED_BYTES => launch.run_blocks(self, false),
            Schedule::Both => launch.run_twice(self, &bases),
        };
        let name = &launch.code.name;
        if let Err((kind, text)) = result {
            self.reports.report(kind, format!("kernel {name}: {text}"));
        }
        for (address, _) in launch.pointers() {
            if let Some((kind, text)) = self.memory.margin_fault(address) {
                self.reports.report(kind, format!("kernel {name}: {text}"));
            }
        }
    }
}
