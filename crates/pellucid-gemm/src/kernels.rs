//! The kernels of each instruction set, and their selection.

use super::block_sizes::equal_part;
use super::gemv::{ColumnMatVec, RowMatVec};
use super::offset_dot::{OffsetDotRow, WeightGradDots};
use super::offsets::{PackLanes, PackRuns};
use super::pack::PackPanels;
use super::register_tile::RegisterTile;
use super::tile_unit::BLOCK_SIDE;
use super::winograd::TransformTiles;
use pellucid_simd::tiles::{NativeTiles, TileUnit};
use pellucid_simd::vector::Vector;
use pellucid_simd::{Element, InstructionSet, Isa, per_isa};

/// A micro-kernel for register tiles of one size.
pub(crate) type TileKernel<T> = unsafe fn(&RegisterTile<T>);

/// The kernels of one instruction set for one element type. The results of all instruction sets are bit-identical,
/// except for products of pairs of `bf16` with [`Isa::Amx`] or with subnormal factors or sums.
///
/// # Safety of the functions
///
/// - *Isa*: the processor has the instruction set. For [`BF16Pair`](pellucid_simd::vector::BF16Pair) and
///   [`Isa::Avx512`], it [has products of pairs](Isa::has_bf16_products); for
///   [`I8Quad`](pellucid_simd::vector::I8Quad), it [has products of quads](Isa::has_i8_products).
/// - *Registers*: a micro-kernel runs while the result of [`Kernels::configure`] exists.
/// - *Argument*: the contract of the argument's type holds.
pub struct Kernels<T: 'static> {
    /// The maximum number of rows of a register tile.
    pub(crate) rows: usize,
    /// The number of lanes of a vector. A register tile is one or two vectors wide.
    pub(crate) lanes: usize,
    /// `tiles[v - 1][r - 1]` multiplies a register tile of `r` rows and `v` vectors.
    pub(crate) tiles: [&'static [TileKernel<T>]; 2],
    /// `unmasked_tiles[r - 1]` multiplies a register tile of `r` rows and two vectors, and loads full vectors of B.
    pub(crate) unmasked_tiles: &'static [TileKernel<T>],
    /// The configuration of the tile registers, if the micro-kernels use them.
    pub(crate) tile_registers: Option<TileRegisters>,
    /// Packs panels from a source in which the elements of one row of a panel are contiguous.
    pub(crate) copy_panels: unsafe fn(&PackPanels<T>),
    /// Packs a panel from a source that is contiguous along k, by transposition.
    pub(crate) transpose_panel: unsafe fn(&PackPanels<T>),
    /// Packs vectors whose lanes are stored at a list of offsets.
    pub(crate) pack_lanes: unsafe fn(&PackLanes<'_, T>),
    /// Copies contiguous rows that are stored at a list of offsets.
    pub(crate) pack_runs: unsafe fn(&PackRuns<'_, T>),
    /// Computes one row of a product with an operand that is given by offset lists and not packed.
    pub(crate) offset_dot_row: unsafe fn(&OffsetDotRow<'_, T>),
    /// Computes dot products of a vector with rows that are given by offset lists, for the gradient of weights.
    pub(crate) weight_grad_dots: unsafe fn(&WeightGradDots<'_, T>),
    /// Transforms Winograd tiles. Returns true if all results are finite.
    pub(crate) transform_tiles: unsafe fn(&TransformTiles<'_, T>) -> bool,
    /// Multiplies a matrix with contiguous rows by a vector.
    pub(crate) row_matvec: unsafe fn(&RowMatVec<T>),
    /// Multiplies a matrix with contiguous columns by a vector.
    pub(crate) column_matvec: unsafe fn(&ColumnMatVec<T>),
}

/// Compiles a kernel for each instruction set: `name [constants] (argument) = method` calls the generic method of the
/// argument with the vector of the instruction set. `+ "feature"` is an additional feature for AVX-512.
macro_rules! kernels {
    ($($name:ident $([const $c:ident: $c_ty:ty])* $(+ $feature:literal)? ($t:ty) $(-> $r:ty)? = $method:ident;)*) => {$(
        per_isa! {
            fn $name [T: Element $(, const $c: $c_ty)*] [T $(, $c)*] <S> $(+ $feature)? (work: &$t) $(-> $r)? {
                // SAFETY: the caller guarantees *Argument* of `Kernels`, which is the contract of the type of `work`.
                // `per_isa!` enables the instruction set of the vector in this function.
                unsafe { work.$method::<S::Vector<T> $(, $c)*>() }
            }
        }
    )*};
}

kernels! {
    multiply_tile [const R: usize] [const N: usize] [const UNMASKED: bool] (RegisterTile<T>) = multiply;
    multiply_pair_tile [const R: usize] [const N: usize] [const UNMASKED: bool] + "avx512bf16"
        (RegisterTile<T>) = multiply;
    multiply_quad_tile [const R: usize] [const N: usize] [const UNMASKED: bool] + "avx512vnni"
        (RegisterTile<T>) = multiply;
    copy_panels (PackPanels<T>) = copy;
    transpose_panel (PackPanels<T>) = transpose;
    pack_lanes (PackLanes<'_, T>) = copy;
    pack_runs (PackRuns<'_, T>) = copy;
    offset_dot_row (OffsetDotRow<'_, T>) = multiply;
    weight_grad_dots (WeightGradDots<'_, T>) = accumulate;
    transform_tiles (TransformTiles<'_, T>) -> bool = transform;
    row_matvec [const ROWS: usize] (RowMatVec<T>) = multiply;
    column_matvec (ColumnMatVec<T>) = multiply;
}

per_isa! {
    /// Calls [`RegisterTile::multiply_in_tile_registers`].
    ///
    /// # Safety of the returned function pointer
    /// The contract of [`Kernels`] holds.
    fn multiply_in_tile_registers [T: Element, U: TileUnit, const UNMASKED: bool] [T, U, UNMASKED] <S> + "avx512bf16"
    (work: &RegisterTile<T>) {
        // SAFETY: the caller guarantees *Argument* and *Registers* of `Kernels`. `per_isa!` enables the instruction set
        // of the vector in this function.
        unsafe { work.multiply_in_tile_registers::<S::Vector<T>, U, UNMASKED>() }
    }
}

/// Returns the micro-kernel of a register tile of `R` rows and `N` vectors.
const fn tile_kernel<T: Element, const R: usize, const N: usize, const UNMASKED: bool>(isa: Isa) -> TileKernel<T> {
    match T::FACTORS {
        1 => multiply_tile::<T, R, N, UNMASKED>(isa),
        2 => multiply_pair_tile::<T, R, N, UNMASKED>(isa),
        _ => multiply_quad_tile::<T, R, N, UNMASKED>(isa),
    }
}

/// Builds the [`Kernels`] of an instruction set: register tiles with each of the listed numbers of rows, and
/// matrix-vector products of `dots` rows at a time. If `unmasked` is false, `unmasked_tiles` are the tiles that use
/// masks.
macro_rules! kernel_table {
    ($isa:ident, rows [$($r:literal)*], unmasked $unmasked:literal, dots $dots:literal) => {
        Kernels {
            rows: [$($r),*].len(),
            lanes: <<pellucid_simd::$isa as InstructionSet>::Vector<T> as Vector>::LANES,
            tiles: [
                &[$(tile_kernel::<T, $r, 1, false>(Isa::$isa)),*],
                &[$(tile_kernel::<T, $r, 2, false>(Isa::$isa)),*],
            ],
            unmasked_tiles: &[$(tile_kernel::<T, $r, 2, $unmasked>(Isa::$isa)),*],
            tile_registers: None,
            copy_panels: copy_panels::<T>(Isa::$isa),
            transpose_panel: transpose_panel::<T>(Isa::$isa),
            pack_lanes: pack_lanes::<T>(Isa::$isa),
            pack_runs: pack_runs::<T>(Isa::$isa),
            offset_dot_row: offset_dot_row::<T>(Isa::$isa),
            weight_grad_dots: weight_grad_dots::<T>(Isa::$isa),
            transform_tiles: transform_tiles::<T>(Isa::$isa),
            row_matvec: row_matvec::<T, $dots>(Isa::$isa),
            column_matvec: column_matvec::<T>(Isa::$isa),
        }
    };
}

/// Replaces the micro-kernels of [`Kernels`] with those of a [`TileUnit`], for pairs and quads.
macro_rules! with_tile_registers {
    ($unit:ty, $isa:ident, $kernels:expr) => {
        Kernels {
            rows: BLOCK_SIDE,
            tiles: [&[multiply_in_tile_registers::<T, $unit, false>(Isa::$isa); BLOCK_SIDE]; 2],
            unmasked_tiles: &[multiply_in_tile_registers::<T, $unit, true>(Isa::$isa); BLOCK_SIDE],
            tile_registers: Some(TileRegisters {
                configure: <$unit as TileUnit>::configure,
                release: <$unit as TileUnit>::release,
            }),
            ..$kernels
        }
    };
}

impl<T: Element> Kernels<T> {
    #[cfg(not(target_arch = "x86_64"))]
    const PORTABLE: Kernels<T> = kernel_table!(Portable, rows [1 2 3 4 5 6], unmasked false, dots 4);
    /// The kernels of types without vectors of the instruction set: integers, pairs of `bf16` without AVX-512, and
    /// floats without AVX2, where a multiply-add is a function call. Larger register tiles would not be faster.
    #[cfg(target_arch = "x86_64")]
    const PORTABLE: Kernels<T> = kernel_table!(Portable, rows [1 2 3 4], unmasked false, dots 1);
    /// A 6 × 2 tile uses 12 of the 16 registers for sums, 2 for B and 1 for A.
    #[cfg(target_arch = "x86_64")]
    const AVX2: Kernels<T> = match T::FACTORS {
        1 => kernel_table!(Avx2, rows [1 2 3 4 5 6], unmasked true, dots 4),
        // A product of quads needs 4 registers for B and 2 for A, whose bytes are extended to words.
        _ => kernel_table!(Avx2, rows [1 2 3 4], unmasked false, dots 1),
    };
    /// A 14 × 2 tile uses 28 of the 32 registers for sums, 2 for B and 1 for A.
    #[cfg(target_arch = "x86_64")]
    const AVX512: Kernels<T> = match T::FACTORS {
        1 | 2 => kernel_table!(Avx512, rows [1 2 3 4 5 6 7 8 9 10 11 12 13 14], unmasked true, dots 8),
        // A product of quads needs 3 registers for the biases and the constant that is added to A.
        _ => kernel_table!(Avx512, rows [1 2 3 4 5 6 7 8 9 10 11 12], unmasked false, dots 1),
    };

    /// The kernels of the widest vectors of this type.
    #[cfg(target_arch = "x86_64")]
    const WIDEST: Kernels<T> = if T::HAS_VECTOR512 { Self::AVX512 } else { Self::PORTABLE };
    #[cfg(not(target_arch = "x86_64"))]
    const WIDEST: Kernels<T> = Self::PORTABLE;
    /// The kernels of [`Isa::Amx`] for pairs and quads.
    const AMX: Kernels<T> = with_tile_registers!(NativeTiles, Amx, Self::WIDEST);

    /// The kernels of [`Isa::Amx`] with emulated tile registers. The processor must have AVX512-BF16.
    #[cfg(test)]
    pub(crate) const EMULATED_AMX: Kernels<T> =
        with_tile_registers!(pellucid_simd::tiles::EmulatedTiles, Amx, Self::WIDEST);

    /// Returns the kernels of an instruction set, or the portable ones if it has no vectors of this type.
    #[inline(always)]
    pub(crate) fn for_isa(isa: Isa) -> &'static Kernels<T> {
        match isa {
            Isa::Amx => const { if T::FACTORS > 1 { &Self::AMX } else { &Self::WIDEST } },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => const { &Self::WIDEST },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => const { if T::HAS_VECTOR256 { &Self::AVX2 } else { &Self::PORTABLE } },
            _ => const { &Self::PORTABLE },
        }
    }

    /// Returns the number of columns of a full register tile, which is the width of a packed panel of B.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        2 * self.lanes
    }

    /// Returns the number of rows of the strips of A into which `rows` rows are divided. The last strip may have fewer.
    #[inline]
    pub(crate) fn strip_height(&self, rows: usize) -> usize {
        match self.tile_registers {
            // The strips have equal heights, because a last strip of one row would be bound by latency.
            None => equal_part(rows, self.rows),
            // The micro-kernel uses registers of their full size, so it has no tiles of fewer rows.
            Some(_) => self.rows,
        }
    }

    /// Configures the tile registers of this thread, if the micro-kernels use them, until the result is dropped.
    ///
    /// # Safety
    ///
    /// - *Isa*: the processor has the instruction set of the kernels.
    /// - The thread has no other configuration.
    #[inline]
    pub(crate) unsafe fn configure(&self) -> ConfiguredTileRegisters {
        if let Some(registers) = &self.tile_registers {
            debug_assert_eq!(self.width(), BLOCK_SIDE, "panels of B must be as wide as the registers");
            // SAFETY: *Isa* implies the clause *processor* of `TileUnit`.
            unsafe { (registers.configure)() }
        }
        ConfiguredTileRegisters(self.tile_registers)
    }
}

/// The functions [`TileUnit::configure`] and [`TileUnit::release`] of a tile unit.
#[derive(Clone, Copy)]
pub(crate) struct TileRegisters {
    configure: unsafe fn(),
    release: unsafe fn(),
}

/// The configured tile registers of a thread, if any. Dropping this value releases them.
pub(crate) struct ConfiguredTileRegisters(Option<TileRegisters>);

impl Drop for ConfiguredTileRegisters {
    #[inline]
    fn drop(&mut self) {
        if let Some(registers) = &self.0 {
            // SAFETY: `Kernels::configure` created this value, so the clause *processor* of `TileUnit` holds.
            unsafe { (registers.release)() }
        }
    }
}
