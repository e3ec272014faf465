//! Data sets, samplers and loaders.

mod datasets;
mod loader;
mod samplers;
