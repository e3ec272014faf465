//! Checkpoints: a resumed run continues bit-identically, and a checkpoint that does not match changes nothing.

mod killed;
mod processes;
mod rejected;
mod resume;
mod runs;
#[path = "../scratch/mod.rs"]
mod scratch;
