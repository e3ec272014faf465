//! The linear transforms of small tiles before and after the products of a Winograd convolution.
//!
//! A tile is a small square of pixels, each stored as a contiguous vector of channels. A transform therefore consists
//! of sums and differences of full vectors, and of multiplications of them by ½, independent of the width and the
//! padding of the image. The transform of a square is a one-dimensional transform of its rows, and then of its columns.
//!
//! The convolution itself, with the derivation of the matrices, is in `families::conv::winograd` of the crate
//! `pellucid-cpu`.

use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// The side of the transformed tiles, whose elements are multiplied.
const SIDE: usize = 4;

/// A transform of square tiles: the same matrix applied to the rows and then to the columns.
///
/// In the formulas, d is the input, g the window and m the products. A, B and G are the matrices of the algorithm F(n,
/// r), which computes n outputs of a window of r taps.
#[derive(Clone, Copy, Debug)]
pub enum WinogradTransform {
    /// Transforms a 4 × 4 patch of the input, from which one tile of outputs is computed: Bᵀ·d·B, 4 × 4.
    Patch,
    /// Transforms a 3 × 3 window of weights: G·g·Gᵀ, 4 × 4.
    Window,
    /// Transforms a 2 × 2 tile of output gradients, which is the window of F(3, 2): G·g·Gᵀ, 4 × 4.
    Tile,
    /// Transforms 4 × 4 products to a 2 × 2 tile of outputs: Aᵀ·m·A.
    Results,
    /// Transforms 4 × 4 products to the gradient of a 3 × 3 window: Aᵀ·m·A with the A of F(3, 2).
    Taps,
}

/// A transform of many tiles of A × A pixels to tiles of B × B pixels:
/// `to[at[B²·t + j] + l] = transform(data[from[A²·t + i] + l])` for every tile t and channel l. A pixel is `lanes`
/// contiguous elements.
///
/// # Transform contract
///
/// - *Lanes*: `lanes` is a multiple of the length of a vector.
/// - *Reads*: `data` is valid for reads of `lanes` elements at every offset of `from`, and no thread writes them during
///   the call.
/// - *Writes*: `to` is valid for writes of `lanes` elements at every offset of `at`, and no other thread accesses them.
///   The written elements do not overlap the source.
/// - *Tiles*: `from` holds A² offsets and `at` holds B² offsets for each tile.
pub struct TransformTiles<'a, T> {
    /// The transform, which determines A and B.
    pub map: WinogradTransform,
    /// The origin of the source offsets.
    pub data: *const T,
    /// A² offsets for each tile, in row-major order.
    pub from: &'a [isize],
    /// The origin of the target offsets.
    pub to: *mut T,
    /// B² offsets for each tile, in row-major order.
    pub at: &'a [isize],
    /// The number of channels of each pixel, [padded](TransformTiles::padded).
    pub lanes: usize,
}

impl<T: Element> TransformTiles<'_, T> {
    /// Returns `lanes` rounded up to a multiple of the vector length of every instruction set.
    pub fn padded(lanes: usize) -> usize {
        lanes.next_multiple_of(16)
    }

    /// Transforms the tiles. Returns true if all results are finite.
    ///
    /// # Safety
    ///
    /// - The transform contract of [`TransformTiles`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn transform<V: Vector<Scalar = T>>(&self) -> bool {
        // SAFETY: the caller guarantees the contract of this function, and each branch passes the transform `self.map`
        // with its A and B to `transform_as`.
        unsafe {
            match self.map {
                WinogradTransform::Patch => self.transform_as::<V, PatchTransform, 4, SIDE>(),
                WinogradTransform::Window => self.transform_as::<V, WindowTransform, 3, SIDE>(),
                WinogradTransform::Tile => self.transform_as::<V, TileTransform, 2, SIDE>(),
                WinogradTransform::Results => self.transform_as::<V, ResultsTransform, SIDE, 2>(),
                WinogradTransform::Taps => self.transform_as::<V, TapsTransform, SIDE, 3>(),
            }
        }
    }

    /// Transforms the tiles by the one-dimensional transform `M`. Returns true if all results are finite.
    ///
    /// # Safety
    ///
    /// The contract of [`transform`](Self::transform) holds, and `M` is the transform `self.map`.
    #[inline(always)]
    unsafe fn transform_as<V: Vector<Scalar = T>, M: LineTransform<A, B>, const A: usize, const B: usize>(
        &self,
    ) -> bool {
        debug_assert!(
            self.lanes.is_multiple_of(V::LANES),
            "{} channels are not a multiple of a vector's length",
            self.lanes
        );
        debug_assert_eq!((self.from.len() % (A * A), self.at.len() % (B * B)), (0, 0), "the last tile is incomplete");
        debug_assert_eq!(
            self.from.len() / (A * A),
            self.at.len() / (B * B),
            "the source and the target have different numbers of tiles"
        );
        // SAFETY: by *Lanes* of the transform contract, every load is a full vector within the `lanes` elements at an
        // offset of `from` (*Reads*), and every store is a full vector within the `lanes` elements at an offset of `at`
        // (*Writes*). The other operations are arithmetic of `V`, whose contract the caller guarantees.
        unsafe {
            let half = T::HALF.map_or(V::zero(), |half| V::splat(&half));
            // 0·x is 0 if x is finite, and NaN otherwise.
            let (zero, mut check) = (V::zero(), V::zero());
            for (from, at) in self.from.chunks_exact(A * A).zip(self.at.chunks_exact(B * B)) {
                for lane in (0..self.lanes).step_by(V::LANES) {
                    let (data, to) = (self.data.wrapping_add(lane), self.to.wrapping_add(lane));
                    let mut rows = [[V::zero(); B]; A];
                    for i in 0..A {
                        let mut row = [V::zero(); A];
                        for j in 0..A {
                            row[j] = V::load(data.wrapping_offset(from[A * i + j]));
                        }
                        rows[i] = M::apply(row, half);
                    }
                    for j in 0..B {
                        let mut column = [V::zero(); A];
                        for i in 0..A {
                            column[i] = rows[i][j];
                        }
                        let column = M::apply(column, half);
                        for i in 0..B {
                            check = column[i].mul_add(zero, check);
                            column[i].store(to.wrapping_offset(at[B * i + j]));
                        }
                    }
                }
            }
            check.fold() == T::ZERO
        }
    }
}

/// A one-dimensional transform of `A` vectors to `B` vectors.
trait LineTransform<const A: usize, const B: usize> {
    /// Computes the transform. All lanes of `half` are ½, or 0 for types without the value ½.
    ///
    /// # Safety
    ///
    /// The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    unsafe fn apply<V: Vector>(v: [V; A], half: V) -> [V; B];
}

/// Bᵀ of F(2, 3) and F(3, 2).
struct PatchTransform;
/// G of F(2, 3).
struct WindowTransform;
/// G of F(3, 2).
struct TileTransform;
/// Aᵀ of F(2, 3).
struct ResultsTransform;
/// Aᵀ of F(3, 2).
struct TapsTransform;

impl LineTransform<4, SIDE> for PatchTransform {
    #[inline(always)]
    unsafe fn apply<V: Vector>([a, b, c, d]: [V; 4], _: V) -> [V; SIDE] {
        // SAFETY: the caller guarantees the contract of `Vector` (the contract of `LineTransform::apply`).
        unsafe { [a.sub(c), b.add(c), c.sub(b), b.sub(d)] }
    }
}

impl LineTransform<3, SIDE> for WindowTransform {
    #[inline(always)]
    unsafe fn apply<V: Vector>([a, b, c]: [V; 3], half: V) -> [V; SIDE] {
        // SAFETY: the caller guarantees the contract of `Vector` (the contract of `LineTransform::apply`).
        unsafe {
            let ends = a.add(c);
            [a, ends.add(b).mul_add(half, V::zero()), ends.sub(b).mul_add(half, V::zero()), c]
        }
    }
}

impl LineTransform<2, SIDE> for TileTransform {
    #[inline(always)]
    unsafe fn apply<V: Vector>([a, b]: [V; 2], half: V) -> [V; SIDE] {
        // SAFETY: the caller guarantees the contract of `Vector` (the contract of `LineTransform::apply`).
        unsafe { [a, a.add(b).mul_add(half, V::zero()), a.sub(b).mul_add(half, V::zero()), b] }
    }
}

impl LineTransform<SIDE, 2> for ResultsTransform {
    #[inline(always)]
    unsafe fn apply<V: Vector>([a, b, c, d]: [V; SIDE], _: V) -> [V; 2] {
        // SAFETY: the caller guarantees the contract of `Vector` (the contract of `LineTransform::apply`).
        unsafe { [a.add(b).add(c), b.sub(c).sub(d)] }
    }
}

impl LineTransform<SIDE, 3> for TapsTransform {
    #[inline(always)]
    unsafe fn apply<V: Vector>([a, b, c, d]: [V; SIDE], _: V) -> [V; 3] {
        // SAFETY: the caller guarantees the contract of `Vector` (the contract of `LineTransform::apply`).
        unsafe {
            let sum = b.add(c);
            [a.add(sum), b.sub(c), sum.sub(d)]
        }
    }
}
