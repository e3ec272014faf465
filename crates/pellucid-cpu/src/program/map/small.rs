//! Small maps: a program over a few contiguous values, in one tile.
//!
//! Setting up the general walk takes longer than the work; here nothing is set up but the addresses.

use crate::program::evaluate::tile_of;
use crate::program::loader::fill;
use crate::program::lower::Prepared;
use crate::program::map::dense::Dense;
use crate::program::schedule::{Extent, Granularity, execute};
use pellucid_ir::kernel::Params;
use pellucid_runtime::scratch::{self, padded};
use std::mem::MaybeUninit;

/// Programs of more values take the general path.
const SLOTS: usize = 64;

/// The most values that make a small map.
pub(crate) const MOST: usize = 1024;

/// Runs `program` on `n` values. False, and nothing written, if the program is not small enough.
///
/// # Safety
/// As [`crate::program::map::dense::run`].
pub(crate) unsafe fn run(program: &Prepared, params: &Params, n: usize, from: &[Dense], to: &[Dense]) -> bool {
    let inputs = program.inputs.len();
    if n == 0 || n > MOST || program.sizes.len() > SLOTS {
        return false;
    }
    for (out, to) in program.outputs.iter().zip(to) {
        // In place, an input must not be read after its memory was written.
        let written = out.direct.unwrap_or(program.steps.len() + 1);
        if from.iter().zip(&program.inputs).any(|(f, i)| f.at == to.at && i.last_read > written) {
            return false;
        }
    }
    let linked = program.link(|k| if from[k].once { Granularity::Uniform } else { Granularity::PerElement });
    let slots = linked.class.len();
    let tile = n.next_multiple_of(64) + 64;
    if slots > SLOTS || n > tile_of(linked.width) {
        return false;
    }
    let cells = padded(slots * 8);
    scratch::with(cells + tile * linked.width, |scratch: *mut u8| {
        let mut at = [const { MaybeUninit::<*mut u8>::uninit() }; SLOTS];
        let (mut cell, buffers) = (scratch, scratch.wrapping_add(cells));
        for ((at, class), place) in at.iter_mut().zip(&linked.class).zip(&linked.place) {
            at.write(if *class == Granularity::PerElement { buffers.wrapping_add(place * tile) } else { cell });
            cell = cell.wrapping_add(8);
        }
        // SAFETY: the first `slots` are written above: every slot has a class and a place.
        let at = unsafe { &mut *(&raw mut at[..slots] as *mut [*mut u8]) };
        // SAFETY: every slot has its cell or its buffer; operands are as the caller promises.
        unsafe {
            for (slot, uniform) in (inputs..).zip(&program.uniforms) {
                at[slot].cast::<u64>().write(program.uniform_value(uniform, params, 0));
            }
            for (k, input) in program.inputs.iter().enumerate() {
                match input.load {
                    Some(load) => load.run(at[k], from[k].at, if from[k].once { 1 } else { n }),
                    None => at[k] = from[k].at,
                }
            }
            for (out, to) in program.outputs.iter().zip(to) {
                if out.direct.is_some() && linked.class[out.slot as usize] == Granularity::PerElement {
                    at[out.slot as usize] = to.at;
                }
            }
            execute(&linked.code, at, &Extent::one(n));
            for (out, to) in program.outputs.iter().zip(to) {
                let (to, mut value) = (to.at, at[out.slot as usize]);
                if linked.class[out.slot as usize] != Granularity::PerElement {
                    let mut one = 0u64;
                    if let Some(store) = out.store {
                        store.run((&raw mut one).cast(), value, 1);
                        value = (&raw mut one).cast();
                    }
                    fill(to, value, out.size, n);
                } else if let Some(store) = out.store {
                    store.run(to, value, n);
                } else if to != value {
                    std::ptr::copy(value, to, n * out.size);
                }
            }
        }
    });
    true
}
