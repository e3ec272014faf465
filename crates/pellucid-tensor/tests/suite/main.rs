//! The tests of tensors, from outside. One binary, so that they link once.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `absurd` | absurd sizes, axes, counts and shapes, in a child process with little memory |
//! | `table` | every operation: a row each, and the driver that runs them |
//! | `autograd` | the graph, the pass, gradients of any order, what is refused |
//! | `by_name` | what such systems are known to get wrong, a short test each |
//! | `engine` | eager, lazy and captured: the same bits, and the contract of capture |
//! | `tensor` | creation, indexing, printing, operators, promotion |
//! | `precision` | half precision: one rounding an operation |
//! | `robust` | long chains, threads |
//!
//! What measures memory has a binary of its own, `tests/memory.rs`.

// A test binary has no public interface: `pub` means "for the other modules" here.
#![allow(unreachable_pub)]

mod absurd;
mod autograd;
mod by_name;
mod engine;
mod precision;
mod robust;
mod support;
mod table;
mod tensor;
