//! Instruction sets: which one runs, and the kernels compiled for each.

use super::direct::{Direct, Dots};
use super::gemv::{Columns, Rows};
use super::pack::Panel;
use super::table::{Spread, Weave};
use super::tile::Tile;
use super::transform::Transform;
use crate::vector::Vector;
use std::marker::PhantomData;

/// An instruction set with kernels of its own. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Level {
    Portable,
    Avx2,
    Avx512,
}

impl Level {
    /// The best level of this machine.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            // Cached by the standard library: a load and a test.
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Every level that this machine can run, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::best();
        [Self::Avx512, Self::Avx2, Self::Portable].into_iter().filter(move |&level| level as u8 <= best as u8)
    }
}

type TileKernel<T> = unsafe fn(&Tile<T>);

/// The kernels of one instruction set for one type.
///
/// # Safety of the functions
///
/// The instruction set is available, and the pointers in the argument are valid as it describes.
pub(super) struct Kernels<T: 'static> {
    /// Most rows of a register tile.
    pub(super) rows: usize,
    /// Lanes of a vector; a register tile is one or two vectors wide.
    pub(super) lanes: usize,
    /// `tiles[v - 1][r - 1]` multiplies a register tile of `r` rows and `v` vectors.
    pub(super) tiles: [&'static [TileKernel<T>]; 2],
    /// Packs a panel whose lanes are contiguous in the source.
    pub(super) copy: unsafe fn(&Panel<T>),
    /// Packs a panel whose depth is contiguous in the source.
    pub(super) turn: unsafe fn(&Panel<T>),
    /// Packs a vector of lanes from many places.
    pub(super) weave: unsafe fn(&Weave<'_, T>),
    /// Packs runs of the depth from many places.
    pub(super) spread: unsafe fn(&Spread<'_, T>),
    /// One row of a product, from where its operand lies.
    pub(super) direct: unsafe fn(&Direct<'_, T>),
    /// Sums of products along runs.
    pub(super) dots: unsafe fn(&Dots<'_, T>),
    /// Transforms of small tiles; whether all results are finite.
    pub(super) transform: unsafe fn(&Transform<'_, T>) -> bool,
    /// Matrix times vector, rows contiguous.
    pub(super) by_rows: unsafe fn(&Rows<T>),
    /// Matrix times vector, columns contiguous.
    pub(super) by_columns: unsafe fn(&Columns<T>),
}

impl<T> Kernels<T> {
    /// Columns of a full register tile, and lanes of a packed panel of B.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        2 * self.lanes
    }
}

/// Compiles the generic kernels with the features of one instruction set.
macro_rules! level {
    ($(#[$doc:meta])* $level:ident, $($feature:literal)?, rows [$($r:literal)*], dots $dots:literal) => {
        $(#[$doc])*
        pub(super) struct $level<V>(PhantomData<V>);

        impl<V: Vector + 'static> $level<V> {
            pub(super) const KERNELS: Kernels<V::Scalar> = Kernels {
                rows: [$($r),*].len(),
                lanes: V::LANES,
                tiles: [&[$(Self::tile::<$r, 1>),*], &[$(Self::tile::<$r, 2>),*]],
                copy: Self::copy,
                turn: Self::turn,
                weave: Self::weave,
                spread: Self::spread,
                direct: Self::direct,
                dots: Self::dots,
                transform: Self::transform,
                by_rows: Self::by_rows,
                by_columns: Self::by_columns,
            };

            $(#[target_feature(enable = $feature)])?
            unsafe fn tile<const R: usize, const N: usize>(tile: &Tile<V::Scalar>) {
                // SAFETY: the instruction set is on here; the rest is the caller's.
                unsafe { tile.multiply::<V, R, N>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn copy(panel: &Panel<V::Scalar>) {
                // SAFETY: as above.
                unsafe { panel.copy::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn turn(panel: &Panel<V::Scalar>) {
                // SAFETY: as above.
                unsafe { panel.turn::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn weave(weave: &Weave<'_, V::Scalar>) {
                // SAFETY: as above.
                unsafe { weave.copy::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn spread(spread: &Spread<'_, V::Scalar>) {
                // SAFETY: as above.
                unsafe { spread.copy::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn direct(direct: &Direct<'_, V::Scalar>) {
                // SAFETY: as above.
                unsafe { direct.multiply::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn dots(dots: &Dots<'_, V::Scalar>) {
                // SAFETY: as above.
                unsafe { dots.add::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn transform(transform: &Transform<'_, V::Scalar>) -> bool {
                // SAFETY: as above.
                unsafe { transform.run::<V>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn by_rows(rows: &Rows<V::Scalar>) {
                // SAFETY: as above.
                unsafe { rows.multiply::<V, $dots>() }
            }

            $(#[target_feature(enable = $feature)])?
            unsafe fn by_columns(columns: &Columns<V::Scalar>) {
                // SAFETY: as above.
                unsafe { columns.multiply::<V>() }
            }
        }
    };
}

level! {
    /// No assumption about the machine: on AArch64 the baseline has NEON and a fused multiply-add.
    Portable, , rows [1 2 3 4 5 6], dots 4
}

// Of the 16 registers, a 6 × 2 tile takes 12 for sums, 2 for B and 1 for A.
#[cfg(target_arch = "x86_64")]
level! {
    /// 256-bit vectors.
    Avx2, "avx2,fma", rows [1 2 3 4 5 6], dots 4
}

// Of the 32 registers, a 14 × 2 tile takes 28 for sums, 2 for B and 1 for A.
#[cfg(target_arch = "x86_64")]
level! {
    /// 512-bit vectors.
    Avx512, "avx512f,avx2,fma", rows [1 2 3 4 5 6 7 8 9 10 11 12 13 14], dots 8
}
