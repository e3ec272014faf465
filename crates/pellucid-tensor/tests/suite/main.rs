//! Integration tests of `pellucid-tensor`. They share one binary, so that they link once.
//!
//! | module | contents |
//! | --- | --- |
//! | `invalid_arguments` | invalid sizes, axes, counts and shapes, in a child process with limited memory |
//! | `table` | one row for each operation, and the driver that runs the rows |
//! | `autograd` | the graph, backward passes, gradients of any order, errors |
//! | `pitfalls` | known defects of comparable libraries, one short test each |
//! | `engine` | eager, lazy and captured execution are bit-identical; the contract of `capture` |
//! | `tensor` | creation, indexing, printing, operators, promotion |
//! | `half_precision` | half precision: one rounding for each operation |
//! | `robustness` | long chains, threads |
//!
//! Tests that measure memory are in a separate binary, `tests/memory.rs`.

// A test binary has no public interface: `pub` means "for the other modules" here.
#![allow(unreachable_pub)]

mod autograd;
mod engine;
mod half_precision;
mod invalid_arguments;
mod pitfalls;
mod robustness;
mod support;
mod table;
mod tensor;
