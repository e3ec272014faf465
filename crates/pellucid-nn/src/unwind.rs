//! Unwind safety: models may be used after a caught panic (`std::panic::catch_unwind`).
//!
//! Modules and optimizers hold tensors, numbers, atomics and locks, and inherit unwind safety from them (see
//! `pellucid-tensor/src/tensor/unwind.rs`). Only `Sequential` and `Lazy`, and optimizers with their rules, hold trait
//! objects, which do not inherit it. A module and the function of a lazy layer are `Sync`, so writes through a shared
//! reference use a lock or an atomic. A lazy layer stores its layer only when it is complete. If a user-defined layer
//! keeps several values consistent under its own lock, a panic under the lock poisons it.

use crate::lazy::Lazy;
use crate::sequential::Sequential;
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Sequential {}
impl RefUnwindSafe for Sequential {}
impl<L: UnwindSafe> UnwindSafe for Lazy<L> {}
impl<L: UnwindSafe + RefUnwindSafe> RefUnwindSafe for Lazy<L> {}
