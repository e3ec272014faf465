//! The linear maps before and after the products of a Winograd convolution (`crate::conv::winograd`).
//!
//! A tile is a small square of vectors: its elements are rows of neighbouring channels, so that a map is sums and
//! differences of whole vectors, whatever the tile's surroundings. A map of squares is one of rows and then of columns.

use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// The side of the tiles that are multiplied.
const SIDE: usize = 4;

/// A map of squares, by rows and then by columns. `conv::winograd` has the matrices.
#[derive(Clone, Copy, Debug)]
pub enum WinogradTransform {
    /// 4 → 4: the elements that a tile of results is made of.
    Patch,
    /// 3 → 4: the taps of a window.
    Window,
    /// 2 → 4: a tile of results, in the place of a window.
    Tile,
    /// 4 → 2: products to a tile of results.
    Results,
    /// 4 → 3: products to the taps of a window.
    Taps,
}

/// `to[at[B²·t + j] + l] = map(data[from[A²·t + i] + l])` for every tile t and lane l: A² vectors to B².
pub struct TransformTiles<'a, T> {
    pub map: WinogradTransform,
    pub data: *const T,
    pub from: &'a [isize],
    pub to: *mut T,
    pub at: &'a [isize],
    /// [Padded](TransformTiles::padded).
    pub lanes: usize,
}

impl<T: Element> TransformTiles<'_, T> {
    /// So many lanes, and more, so that they are whole vectors of every instruction set.
    pub fn padded(lanes: usize) -> usize {
        lanes.next_multiple_of(16)
    }

    /// Whether all results are finite.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]; there are so many lanes at every place.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Vector<Scalar = T>>(&self) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match self.map {
                WinogradTransform::Patch => self.tiles::<V, Patch, 4, SIDE>(),
                WinogradTransform::Window => self.tiles::<V, Window, 3, SIDE>(),
                WinogradTransform::Tile => self.tiles::<V, Tile, 2, SIDE>(),
                WinogradTransform::Results => self.tiles::<V, Results, SIDE, 2>(),
                WinogradTransform::Taps => self.tiles::<V, Taps, SIDE, 3>(),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn tiles<V: Vector<Scalar = T>, M: Line<A, B>, const A: usize, const B: usize>(&self) -> bool {
        debug_assert!(self.lanes.is_multiple_of(V::LANES), "{} lanes are not whole vectors", self.lanes);
        debug_assert_eq!((self.from.len() % (A * A), self.at.len() % (B * B)), (0, 0), "whole tiles");
        debug_assert_eq!(self.from.len() / (A * A), self.at.len() / (B * B), "as many tiles as results");
        // SAFETY: the places are the caller's; the rest is arithmetic.
        unsafe {
            let half = T::HALF.map_or(V::zero(), |half| V::splat(&half));
            // 0·x is 0, or NaN if x is not finite.
            let (nothing, mut check) = (V::zero(), V::zero());
            for (from, at) in self.from.chunks_exact(A * A).zip(self.at.chunks_exact(B * B)) {
                for lane in (0..self.lanes).step_by(V::LANES) {
                    let (data, to) = (self.data.wrapping_add(lane), self.to.wrapping_add(lane));
                    let mut rows = [[V::zero(); B]; A];
                    for i in 0..A {
                        let mut row = [V::zero(); A];
                        for j in 0..A {
                            row[j] = V::load(data.wrapping_offset(from[A * i + j]));
                        }
                        rows[i] = M::map(row, half);
                    }
                    for j in 0..B {
                        let mut column = [V::zero(); A];
                        for i in 0..A {
                            column[i] = rows[i][j];
                        }
                        let column = M::map(column, half);
                        for i in 0..B {
                            check = column[i].mul_add(nothing, check);
                            column[i].store(to.wrapping_offset(at[B * i + j]));
                        }
                    }
                }
            }
            check.fold() == T::ZERO
        }
    }
}

/// A map of A vectors to B.
trait Line<const A: usize, const B: usize> {
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn map<V: Vector>(v: [V; A], half: V) -> [V; B];
}

struct Patch;
struct Window;
struct Tile;
struct Results;
struct Taps;

impl Line<4, SIDE> for Patch {
    #[inline(always)]
    unsafe fn map<V: Vector>([a, b, c, d]: [V; 4], _: V) -> [V; SIDE] {
        // SAFETY: the caller's.
        unsafe { [a.sub(c), b.add(c), c.sub(b), b.sub(d)] }
    }
}

impl Line<3, SIDE> for Window {
    #[inline(always)]
    unsafe fn map<V: Vector>([a, b, c]: [V; 3], half: V) -> [V; SIDE] {
        // SAFETY: the caller's.
        unsafe {
            let ends = a.add(c);
            [a, ends.add(b).mul_add(half, V::zero()), ends.sub(b).mul_add(half, V::zero()), c]
        }
    }
}

impl Line<2, SIDE> for Tile {
    #[inline(always)]
    unsafe fn map<V: Vector>([a, b]: [V; 2], half: V) -> [V; SIDE] {
        // SAFETY: the caller's.
        unsafe { [a, a.add(b).mul_add(half, V::zero()), a.sub(b).mul_add(half, V::zero()), b] }
    }
}

impl Line<SIDE, 2> for Results {
    #[inline(always)]
    unsafe fn map<V: Vector>([a, b, c, d]: [V; SIDE], _: V) -> [V; 2] {
        // SAFETY: the caller's.
        unsafe { [a.add(b).add(c), b.sub(c).sub(d)] }
    }
}

impl Line<SIDE, 3> for Taps {
    #[inline(always)]
    unsafe fn map<V: Vector>([a, b, c, d]: [V; SIDE], _: V) -> [V; 3] {
        // SAFETY: the caller's.
        unsafe {
            let sum = b.add(c);
            [a.add(sum), b.sub(c), sum.sub(d)]
        }
    }
}
