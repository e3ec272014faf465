//! Progress of a schedule that a checkpoint restores through a shared reference.

use pellucid_tensor::lock;
use std::sync::{Mutex, PoisonError};

/// A value that is read and replaced atomically, even through a shared reference.
#[derive(Debug)]
pub(super) struct Restorable<T>(Mutex<T>);

impl<T: Clone> Restorable<T> {
    pub(super) fn new(value: T) -> Restorable<T> {
        Restorable(Mutex::new(value))
    }

    pub(super) fn get(&self) -> T {
        lock(&self.0).clone()
    }

    pub(super) fn set(&self, value: T) {
        *lock(&self.0) = value;
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Clone for Restorable<T> {
    fn clone(&self) -> Restorable<T> {
        Restorable::new(self.get())
    }
}
