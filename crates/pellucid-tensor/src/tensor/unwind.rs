//! Why tensors may be used after a panic that was caught (`std::panic::catch_unwind`).
//!
//! A panic leaves no tensor in a state that its methods do not expect. Elements change only in kernels, which hold the
//! storage's borrow word through a guard that an unwinding thread drops, and a value of any bits is a valid element. A
//! call that is refused changes nothing before it panics. Graph nodes are immutable; gradient slots, hooks and saved
//! values are behind locks or atomics, and a slot is written when a pass has succeeded. The types below are `Sync`, so
//! another thread may see them at any moment of a call anyway; the standard library's auto traits do not hold only
//! because trait objects (backends, operations, hooks) hide their fields.

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
