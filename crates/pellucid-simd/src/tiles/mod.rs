//! Tile registers: matrices in registers, and the instruction that multiplies them.
//!
//! AMX (Advanced Matrix Extensions, Intel, since Sapphire Rapids) adds eight registers of 16 rows × 64 bytes to x86-64.
//! One instruction, `tdpbf16ps`, computes C + A·B of three registers with 8192 multiply-adds: A has 16 rows of 16
//! [pairs](crate::vector::BF16Pair) of `bf16`, B has 16 rows of 16 pairs (row k for pair k of A), and C has 16 × 16
//! sums in `f32`. `tdpbssd` does the same with [quads](crate::vector::I8Quad) of `i8` and sums in `i32`, that is with
//! 16384 multiply-adds.
//!
//! [`TileUnit`] declares the instructions. [`NativeTiles`] executes them, and [`EmulatedTiles`] emulates them on every
//! processor. With `--cfg pellucid_emulated_amx`, the emulation replaces the instructions in all products, so that
//! tests on any processor with AVX512-BF16 cover the code that selects and uses them.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2,
//! `TDPBF16PS` and `TDPBSSD`.

#![allow(unexpected_cfgs, reason = "`pellucid_emulated_amx` is set for tests only")]

#[cfg(all(target_arch = "x86_64", not(pellucid_emulated_amx)))]
mod amx;
mod emulated;

#[cfg(all(target_arch = "x86_64", not(pellucid_emulated_amx)))]
pub use amx::AmxTiles as NativeTiles;
pub use emulated::EmulatedTiles;
#[cfg(any(not(target_arch = "x86_64"), pellucid_emulated_amx))]
pub use emulated::EmulatedTiles as NativeTiles;

use crate::math::half::BF16;
use crate::vector::BF16Pair;
use std::time::Duration;

/// The number of rows of a tile register, and the number of 32-bit elements in each row.
pub const TILE_SIDE: usize = 16;

/// The eight tile registers of a thread. The const parameters of the methods are register numbers from 0 to 7.
///
/// All registers always have their full size. A product of smaller matrices pads them with zeros.
///
/// # Safety of the methods
///
/// - *Processor*: [`Isa::has_amx`](crate::Isa::has_amx) has returned true, or the implementation is [`EmulatedTiles`].
/// - *Configured*: the thread has called [`configure`](Self::configure), and not [`release`](Self::release) since then.
///   These two methods do not require this clause.
/// - *Tile validity*: 16 rows of 64 bytes each, the first at the pointer and `row_bytes` apart, are valid for reads or
///   writes. They need no alignment.
pub trait TileUnit {
    /// Configures the tile registers of this thread. Each configuration takes about 200 cycles.
    ///
    /// # Safety
    /// The clause *processor* of [`TileUnit`] holds.
    unsafe fn configure();

    /// Releases the tile registers of this thread, so that context switches need not save them.
    ///
    /// # Safety
    /// The clause *processor* of [`TileUnit`] holds.
    unsafe fn release();

    /// Returns the registers, with unspecified contents.
    fn new() -> Self;

    /// Sets register `R` to zero.
    ///
    /// # Safety
    /// The clauses *processor* and *configured* of [`TileUnit`] hold.
    unsafe fn zero<const R: usize>(&mut self);

    /// Loads register `R`.
    ///
    /// # Safety
    /// The contract of [`TileUnit`] holds, with *tile validity* for reads.
    unsafe fn load<const R: usize>(&mut self, from: *const u8, row_bytes: isize);

    /// Stores register `R`.
    ///
    /// # Safety
    /// The contract of [`TileUnit`] holds, with *tile validity* for writes.
    unsafe fn store<const R: usize>(&mut self, to: *mut u8, row_bytes: isize);

    /// Adds the product of the registers `A` and `B` to register `C`.
    ///
    /// For every element of C, the products of the first factors of the 16 pairs form one chain of fused multiply-adds,
    /// in ascending order from zero. The products of the second factors form another chain. Then `C ← C + (first +
    /// second)`. Each operation rounds to nearest, and replaces subnormal operands and results by zero.
    ///
    /// # Safety
    /// The clauses *processor* and *configured* of [`TileUnit`] hold.
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Adds the product of the registers `A` and `B`, which hold [quads](crate::vector::I8Quad) of `i8`, to register
    /// `C`, which holds sums in `i32`. The sums wrap.
    ///
    /// # Safety
    /// The clauses *processor* and *configured* of [`TileUnit`] hold.
    unsafe fn multiply_add_i8<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// Returns true if this process can use [`NativeTiles`] and their results are bit-identical to those of the emulation.
/// The processor must have AVX-512.
pub(crate) fn are_usable() -> bool {
    // SAFETY: the clause *processor*: the process has the permission to use the tile registers.
    is_permitted()
        && unsafe { multiply_sample::<NativeTiles>(PAUSE) == multiply_sample::<EmulatedTiles>(Duration::ZERO) }
}

#[cfg(all(target_arch = "x86_64", not(pellucid_emulated_amx)))]
use amx::is_permitted;

/// Returns true if the emulation replaces the instructions.
#[cfg(any(not(target_arch = "x86_64"), pellucid_emulated_amx))]
fn is_permitted() -> bool {
    cfg!(pellucid_emulated_amx)
}

/// The time for which a thread sleeps while its registers contain values, because some hypervisors lose the registers
/// of a sleeping thread.
const PAUSE: Duration = Duration::from_millis(1);

/// Computes two updates of a matrix C of 2 × 2 registers, which use all registers, with a pause after each of them.
///
/// # Safety
/// The clause *processor* of [`TileUnit`] holds.
unsafe fn multiply_sample<U: TileUnit>(pause: Duration) -> [[u32; TILE_SIDE * TILE_SIDE]; 4] {
    let matrix = |seed: u16| -> [BF16Pair; TILE_SIDE * TILE_SIDE] {
        // The factors have both signs, all fractions, and magnitudes from 2⁻¹⁵ to 2.
        let factor = |i: usize| BF16((i as u16).wrapping_mul(seed) & 0x87ff | 0x3800);
        std::array::from_fn(|i| BF16Pair::new(factor(2 * i), factor(2 * i + 1)))
    };
    let operands = [40503, 25717, 52429, 14563].map(matrix);
    let row_bytes = (TILE_SIDE * size_of::<BF16Pair>()) as isize;
    let mut sums = [[0; TILE_SIDE * TILE_SIDE]; 4];
    // SAFETY: the caller guarantees *processor*. The registers are configured until the end of the block. Every array
    // has 16 rows of 64 bytes, `row_bytes` apart (*tile validity*).
    unsafe {
        U::configure();
        let mut unit = U::new();
        unit.zero::<0>();
        unit.zero::<1>();
        unit.load::<2>(sums[2].as_ptr().cast(), row_bytes);
        unit.load::<3>(sums[3].as_ptr().cast(), row_bytes);
        unit.load::<4>(operands[0].as_ptr().cast(), row_bytes);
        unit.load::<5>(operands[1].as_ptr().cast(), row_bytes);
        unit.load::<6>(operands[2].as_ptr().cast(), row_bytes);
        unit.load::<7>(operands[3].as_ptr().cast(), row_bytes);
        for _ in 0..2 {
            unit.multiply_add::<0, 4, 6>();
            unit.multiply_add::<1, 4, 7>();
            unit.multiply_add::<2, 5, 6>();
            unit.multiply_add::<3, 5, 7>();
            std::thread::sleep(pause);
        }
        unit.store::<0>(sums[0].as_mut_ptr().cast(), row_bytes);
        unit.store::<1>(sums[1].as_mut_ptr().cast(), row_bytes);
        unit.store::<2>(sums[2].as_mut_ptr().cast(), row_bytes);
        unit.store::<3>(sums[3].as_mut_ptr().cast(), row_bytes);
        U::release();
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// The sample has different sums in all registers, so that it detects an exchange of registers.
    #[test]
    fn native_registers_have_the_bits_of_the_emulation() {
        // SAFETY: the emulation needs no processor.
        let emulated = unsafe { multiply_sample::<EmulatedTiles>(Duration::ZERO) };
        let sums = emulated.as_flattened();
        assert!(sums.iter().all(|&bits| f32::from_bits(bits).is_normal()));
        let mut distinct = sums.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > sums.len() * 9 / 10, "{} distinct sums", distinct.len());
        if !(Isa::best().has_bf16_products() && is_permitted()) {
            eprintln!("not tested: the process cannot use AMX");
            return;
        }
        // A hypervisor that loses the registers of threads that do not run can corrupt some results, but not all.
        // SAFETY: the clause *processor*: the process may use the registers.
        let is_equal = |_| unsafe { multiply_sample::<NativeTiles>(Duration::ZERO) } == emulated;
        assert!((0..20).any(is_equal), "{:x?}", emulated[3]);
    }
}
