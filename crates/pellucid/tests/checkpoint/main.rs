//! Checkpoints: a resumed run continues bit for bit, and a checkpoint that does not fit changes nothing.

mod killed;
mod processes;
mod refused;
mod resume;
mod runs;
#[path = "../scratch/mod.rs"]
mod scratch;
