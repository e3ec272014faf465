//! Tools for tests of kernels: arrays between guard bytes, and reproducible pseudo-random choices and values.

use crate::buffer::CpuBuffer;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// An array in a block of the allocator, with guard bytes before its first and after its last element.
///
/// In builds with debug assertions, a test fails when the array is dropped if a kernel wrote outside the array. See the
/// module `guard`.
#[derive(Debug)]
pub struct Guarded<T> {
    buffer: CpuBuffer,
    len: usize,
    element: PhantomData<T>,
}

impl<T: bytemuck::Pod> Guarded<T> {
    /// Creates an array that contains copies of `values`.
    pub fn from_slice(values: &[T]) -> Guarded<T> {
        let buffer = CpuBuffer::scratch(size_of_val(values)).unwrap();
        let mut guarded = Guarded { buffer, len: values.len(), element: PhantomData };
        guarded.copy_from_slice(values);
        guarded
    }

    /// Creates an array of `len` elements with the value that marks unwritten memory: NaN for floats, −1 for signed
    /// integers.
    pub fn unwritten(len: usize) -> Guarded<T> {
        let unwritten: T = bytemuck::pod_read_unaligned(&[0xff; 16][..size_of::<T>()]);
        Guarded::from_slice(&vec![unwritten; len])
    }
}

impl<T: bytemuck::Pod> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the buffer has `len` elements, which the constructor `Guarded::from_slice` has initialized, and every
        // bit pattern is a valid `T: Pod`.
        unsafe { std::slice::from_raw_parts(self.buffer.ensure().unwrap().as_ptr().cast(), self.len) }
    }
}

impl<T: bytemuck::Pod> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the buffer has `len` elements, which the constructor `Guarded::from_slice` has initialized, and every
        // bit pattern is a valid `T: Pod`. The slice borrows the buffer exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.ensure().unwrap().as_ptr().cast(), self.len) }
    }
}

impl<T: bytemuck::Pod> Clone for Guarded<T> {
    fn clone(&self) -> Guarded<T> {
        Guarded::from_slice(self)
    }
}

/// A reproducible source of pseudo-random choices for parameter sweeps: a linear congruential generator.
pub struct Choices(Cell<u64>);

impl Choices {
    /// Creates a generator with a seed.
    pub fn new(seed: u64) -> Choices {
        Choices(Cell::new(seed))
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&self, n: usize) -> usize {
        self.0.set(self.0.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        ((self.0.get() >> 33) as usize) % n
    }

    /// Returns one of `values`, which must not be empty.
    pub fn of<T: Copy>(&self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Returns a thread count for a test of a kernel: 1, 2 or 4.
    pub fn threads(&self) -> usize {
        self.of(&[1, 2, 4])
    }
}

/// Returns `n` integers in `-range..=range` as floats, reproducible for each seed.
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
