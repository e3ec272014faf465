//! Why models may be used after a panic that was caught (`std::panic::catch_unwind`).
//!
//! Modules and optimizers hold tensors, numbers, atomics and locks, and inherit the property from them (see
//! `pellucid-tensor/src/tensor/unwind.rs`). Only the two types below hold trait objects, which hide it. A module and the
//! function of a lazy layer are `Sync`, so no shared reference to them writes without a lock or an atomic; the layer of a
//! lazy one is stored when it is complete. A layer of a user's own that keeps several values consistent under its own lock
//! sees that lock poisoned.

use crate::lazy::Lazy;
use crate::sequential::Sequential;
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Sequential {}
impl RefUnwindSafe for Sequential {}
impl<L: UnwindSafe> UnwindSafe for Lazy<L> {}
impl<L: UnwindSafe + RefUnwindSafe> RefUnwindSafe for Lazy<L> {}
