//! Warnings for the users of a program.

use std::fmt;
use std::sync::Once;

/// Reports a warning: as a `tracing` event if the program has ever set a subscriber, otherwise as a line on standard
/// error.
#[cold]
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{message}");
    } else {
        eprintln!("pellucid: {message}");
    }
}

/// Warns once that `grad()` of a result is `None`.
#[cold]
pub(crate) fn warn_of_result_without_gradient(shape: &pellucid_ir::Shape) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        warn(format_args!(
            "grad() of a result of shape {shape} is None: a backward pass keeps the gradients of leaves only; call \
             retain_grad() on the result before backward()"
        ));
    });
}

/// Warns once, at the first kernel, that this build is not optimized.
#[cfg(pellucid_unoptimized)]
#[inline]
pub(crate) fn warn_of_unoptimized_build() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        warn(format_args!(
            "this debug build runs kernels without optimization, 30 to 100 times slower; build with --release, or add \
             these lines to Cargo.toml:\n[profile.dev.package.\"*\"]\nopt-level = 3"
        ));
    });
}
