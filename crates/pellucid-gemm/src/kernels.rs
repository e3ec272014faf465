//! The kernels of each instruction set, and their selection.

use super::gemv::{ColumnMatVec, RowMatVec};
use super::offset_dot::{OffsetDotRow, WeightGradDots};
use super::offsets::{PackLanes, PackRuns};
use super::pack::PackPanels;
use super::register_tile::RegisterTile;
use super::winograd::TransformTiles;
use pellucid_simd::vector::Vector;
use pellucid_simd::{Element, InstructionSet, Isa, per_isa};

/// A micro-kernel for register tiles of one size.
pub(crate) type TileKernel<T> = unsafe fn(&RegisterTile<T>);

/// The kernels of one instruction set for one element type. The results of all instruction sets are bit-identical.
///
/// # Safety of the functions
///
/// - *Isa*: the processor has the instruction set. For [`BF16Pair`](pellucid_simd::vector::BF16Pair) and
///   [`Isa::Avx512`], it [has products of pairs](Isa::has_bf16_products).
/// - *Argument*: the contract of the argument's type holds.
pub struct Kernels<T: 'static> {
    /// The maximal number of rows of a register tile.
    pub(crate) rows: usize,
    /// The number of lanes of a vector. A register tile is one or two vectors wide.
    pub(crate) lanes: usize,
    /// `tiles[v - 1][r - 1]` multiplies a register tile of `r` rows and `v` vectors.
    pub(crate) tiles: [&'static [TileKernel<T>]; 2],
    /// `unmasked_tiles[r - 1]` multiplies a register tile of `r` rows and two vectors, and loads full vectors of B.
    pub(crate) unmasked_tiles: &'static [TileKernel<T>],
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

/// Returns the micro-kernel of a register tile of `R` rows and `N` vectors.
const fn tile_kernel<T: Element, const R: usize, const N: usize, const UNMASKED: bool>(isa: Isa) -> TileKernel<T> {
    match T::FACTORS {
        1 => multiply_tile::<T, R, N, UNMASKED>(isa),
        _ => multiply_pair_tile::<T, R, N, UNMASKED>(isa),
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

impl<T: Element> Kernels<T> {
    #[cfg(not(target_arch = "x86_64"))]
    const PORTABLE: Kernels<T> = kernel_table!(Portable, rows [1 2 3 4 5 6], unmasked false, dots 4);
    /// These kernels compute products of integers, and of floats on processors without AVX2, where a multiply-add is a
    /// function call. Larger register tiles would not be faster.
    #[cfg(target_arch = "x86_64")]
    const PORTABLE: Kernels<T> = kernel_table!(Portable, rows [1 2 3 4], unmasked false, dots 1);
    /// Of the 16 registers, a 6 × 2 tile uses 12 for sums, 2 for B and 1 for A.
    #[cfg(target_arch = "x86_64")]
    const AVX2: Kernels<T> = kernel_table!(Avx2, rows [1 2 3 4 5 6], unmasked true, dots 4);
    /// Of the 32 registers, a 14 × 2 tile uses 28 for sums, 2 for B and 1 for A.
    #[cfg(target_arch = "x86_64")]
    const AVX512: Kernels<T> = kernel_table!(Avx512, rows [1 2 3 4 5 6 7 8 9 10 11 12 13 14], unmasked true, dots 8);

    /// Returns the kernels of an instruction set, or the portable ones if it has no vectors of this type.
    #[inline(always)]
    pub(crate) fn for_isa(isa: Isa) -> &'static Kernels<T> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => const { if T::HAS_VECTOR512 { &Self::AVX512 } else { &Self::PORTABLE } },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => const { if T::HAS_VECTOR512 && T::FACTORS == 1 { &Self::AVX2 } else { &Self::PORTABLE } },
            _ => const { &Self::PORTABLE },
        }
    }

    /// Returns the number of columns of a full register tile, which is the width of a packed panel of B.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        2 * self.lanes
    }
}
