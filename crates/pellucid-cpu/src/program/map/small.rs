//! Small maps: a program over a few contiguous values, in one tile.
//!
//! The setup of the general path takes longer than the work itself. This path computes only the addresses of the slots.

use crate::program::evaluate::tile_capacity;
use crate::program::execute::{TileExtent, execute};
use crate::program::loader::fill;
use crate::program::map::dense_operand::DensePtr;
use crate::program::prepared::PreparedProgram;
use crate::program::slot::Granularity;
use pellucid_ir::kernel::Params;
use pellucid_runtime::scratch::{self, padded};
use std::mem::MaybeUninit;

/// The maximum number of slots. Programs with more slots use the general path.
const MAX_SLOTS: usize = 64;

/// The maximum number of elements of a small map.
pub(crate) const MAX_LEN: usize = 1024;

/// Runs `program` on `n` elements in one tile. Returns false, without writing anything, if `n` is 0, if the values or
/// slots are too many for this path, or if an output would overwrite an input before its last read.
///
/// # Safety
/// The clauses *Operands* and *Aliasing* of [`run_dense`](crate::program::map::dense::run_dense) hold.
pub(crate) unsafe fn run_one_tile(
    program: &PreparedProgram,
    params: &Params,
    n: usize,
    from: &[DensePtr],
    to: &[DensePtr],
) -> bool {
    let inputs = program.inputs.len();
    if n == 0 || n > MAX_LEN || program.sizes.len() > MAX_SLOTS {
        return false;
    }
    for (out, to) in program.outputs.iter().zip(to) {
        // In place, an input must not be read after its memory was written.
        let written = out.direct.unwrap_or(program.steps.len() + 1);
        if from.iter().zip(&program.inputs).any(|(f, i)| f.address == to.address && i.last_read > written) {
            return false;
        }
    }
    let schedule = program.schedule(&|k| if from[k].once { Granularity::Uniform } else { Granularity::PerElement });
    let slots = schedule.granularity.len();
    let tile = n.next_multiple_of(64) + 64;
    if slots > MAX_SLOTS || n > tile_capacity(schedule.buffer_width) {
        return false;
    }
    let cells = padded(slots * 8);
    scratch::with_buffer(cells + tile * schedule.buffer_width, |scratch: *mut u8| {
        let mut addresses = [const { MaybeUninit::<*mut u8>::uninit() }; MAX_SLOTS];
        let (mut cell, buffers) = (scratch, scratch.wrapping_add(cells));
        let granularities = schedule.granularity.iter().zip(&schedule.buffer_offset);
        for (address, (granularity, offset)) in addresses.iter_mut().zip(granularities) {
            let buffer = buffers.wrapping_add(offset * tile);
            address.write(if *granularity == Granularity::PerElement { buffer } else { cell });
            cell = cell.wrapping_add(8);
        }
        // SAFETY: the loop above initialized the first `slots` addresses, as `granularity` and `buffer_offset` both
        // have one element for each slot.
        let addresses = unsafe { &mut *(&raw mut addresses[..slots] as *mut [*mut u8]) };
        // SAFETY: every slot has a cell of eight bytes or a buffer of at least `n` values in the scratch. The operands
        // that replace them are valid by *Operands* of this function's contract, and the check above together with
        // *Aliasing* permits the direct outputs. `execute` gets one row, without streaming or reductions.
        unsafe {
            for (slot, uniform) in (inputs..).zip(&program.uniforms) {
                addresses[slot].cast::<u64>().write(program.uniform_value(uniform, params, 0));
            }
            for (k, input) in program.inputs.iter().enumerate() {
                match input.load {
                    Some(load) => load.run(addresses[k], from[k].address, if from[k].once { 1 } else { n }),
                    None => addresses[k] = from[k].address,
                }
            }
            for (out, to) in program.outputs.iter().zip(to) {
                if out.direct.is_some() && schedule.granularity[out.slot as usize] == Granularity::PerElement {
                    addresses[out.slot as usize] = to.address;
                }
            }
            execute(&schedule.instrs, addresses, &TileExtent::single_row(n));
            for (out, to) in program.outputs.iter().zip(to) {
                let (to, mut value) = (to.address, addresses[out.slot as usize]);
                if schedule.granularity[out.slot as usize] != Granularity::PerElement {
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
