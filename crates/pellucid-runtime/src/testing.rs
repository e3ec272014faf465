//! Tools for tests of kernels: memory between guard bytes, and reproducible choices and values.

use crate::buffer::CpuBuffer;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements in a block of the allocator, with its guards before the first and behind the last: a kernel that writes outside
/// of them fails its test when they are dropped. See [`crate::guard`].
#[derive(Debug)]
pub struct Guarded<T> {
    buffer: CpuBuffer,
    len: usize,
    element: PhantomData<T>,
}

impl<T: bytemuck::Pod> Guarded<T> {
    /// These elements.
    pub fn of(values: &[T]) -> Guarded<T> {
        let buffer = CpuBuffer::scratch(size_of_val(values)).unwrap();
        let mut guarded = Guarded { buffer, len: values.len(), element: PhantomData };
        guarded.copy_from_slice(values);
        guarded
    }

    /// `len` elements that no kernel has written: NaNs, or −1.
    pub fn unwritten(len: usize) -> Guarded<T> {
        let one: T = bytemuck::pod_read_unaligned(&[0xff; 16][..size_of::<T>()]);
        Guarded::of(&vec![one; len])
    }
}

impl<T: bytemuck::Pod> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the buffer has as many elements, all written by `of`; every pattern of bits is one.
        unsafe { std::slice::from_raw_parts(self.buffer.ensure().unwrap().as_ptr().cast(), self.len) }
    }
}

impl<T: bytemuck::Pod> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the buffer is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.ensure().unwrap().as_ptr().cast(), self.len) }
    }
}

impl<T: bytemuck::Pod> Clone for Guarded<T> {
    fn clone(&self) -> Guarded<T> {
        Guarded::of(self)
    }
}

/// A source of choices for sweeps: a linear congruential generator, the same every time.
pub struct Choices(Cell<u64>);

impl Choices {
    pub fn new(seed: u64) -> Choices {
        Choices(Cell::new(seed))
    }

    /// A number below `n`.
    pub fn below(&self, n: usize) -> usize {
        self.0.set(self.0.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        ((self.0.get() >> 33) as usize) % n
    }

    /// One of them.
    pub fn of<T: Copy>(&self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    /// A number of threads that kernels are swept with.
    pub fn threads(&self) -> usize {
        self.of(&[1, 2, 4])
    }
}

/// Whole numbers in `-range..=range`, always the same ones.
pub fn numbers(n: usize, range: i64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n).map(|_| (next() >> 20) as i64 % (2 * range + 1) - range).map(|v| v as f64).collect()
}
