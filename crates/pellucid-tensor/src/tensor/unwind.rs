//! Implements `UnwindSafe`: tensors may be used after a caught panic (`std::panic::catch_unwind`).
//!
//! A panic leaves no tensor in an invalid state. Elements change only in kernels, which hold a borrow of the storage
//! through a guard. The guard is dropped when the thread unwinds; any bits are valid elements. An operation checks its
//! operands before its first kernel. Graph nodes are immutable. Gradient slots, hooks and saved values are behind locks
//! or atomics, and a backward pass writes slots only after all its nodes have run. The types are `Sync`, so other
//! threads may read them during any call. The compiler does not derive these traits only because trait objects
//! (backends, operations, hooks) hide their fields.

use super::Tensor;
use crate::array::Array;
use crate::device::Device;
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Tensor {}
impl RefUnwindSafe for Tensor {}
impl UnwindSafe for Array {}
impl RefUnwindSafe for Array {}
impl UnwindSafe for Device {}
impl RefUnwindSafe for Device {}
