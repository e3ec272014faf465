//! Lists of layers of one type, whose count the user chooses.

use pellucid_tensor::{Error, Result};

/// Makes `count` layers for a module of this name. If memory cannot hold the list, returns an error before the first
/// layer is created.
pub(crate) fn make_layers<L>(
    module: &'static str,
    count: usize,
    make: impl FnMut(usize) -> Result<L>,
) -> Result<Vec<L>> {
    let mut layers = Vec::new();
    if layers.try_reserve_exact(count).is_err() {
        let mut error = Error::out_of_memory(count.saturating_mul(size_of::<L>()));
        error.set_operation(module);
        return Err(error);
    }
    for layer in (0..count).map(make) {
        layers.push(layer?);
    }
    Ok(layers)
}
