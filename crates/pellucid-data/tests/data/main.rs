//! Data sets, samplers, loaders, tables, images and the readers of files.

#[cfg(feature = "bundled")]
mod bundled;
#[cfg(feature = "csv")]
mod csv;
mod datasets;
#[cfg(feature = "image")]
mod image_reference;
#[cfg(feature = "image")]
mod images;
#[cfg(feature = "json")]
mod json;
mod loader;
mod preprocessing;
mod samplers;
#[cfg(any(feature = "csv", feature = "image", feature = "json"))]
#[path = "../../../pellucid/tests/scratch/mod.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod scratch;
mod streams;
mod tables;
mod text;
#[cfg(feature = "image")]
mod transforms;
