//! Convolutions with windows of 3 × 3 by fewer multiplications.
//!
//! Winograd's F(2, 3) makes two neighbouring results of a window of three taps with four multiplications instead of
//! six ("Arithmetic Complexity of Computations", 1980): with d the four elements that they see and g the taps,
//!
//! ```text
//!                                ⎡1  0 −1  0⎤        ⎡1  0  0⎤
//! y = Aᵀ[(G·g) ⊙ (Bᵀ·d)]    Bᵀ = ⎢0  1  1  0⎥    G = ⎢½  ½  ½⎥    Aᵀ = ⎡1  1  1  0⎤
//!                                ⎢0 −1  1  0⎥        ⎢½ −½  ½⎥         ⎣0  1 −1 −1⎦
//!                                ⎣0  1  0 −1⎦        ⎣0  0  1⎦
//! ```
//!
//! and along both axes, a tile of 2 × 2 results with 16 instead of 36: `Y = Aᵀ[(G·g·Gᵀ) ⊙ (Bᵀ·d·B)]·A` (Lavin and Gray,
//! "Fast Algorithms for Convolutional Neural Networks", 2016). Sums over channels can be taken before the last map, so a
//! convolution is 16 matrix products, `[tiles, channels] · [channels, outputs]`, between maps of small squares.
//!
//! - The input's gradient is a convolution of the outputs' with the window turned around.
//! - The weights' gradient is a sum over tiles, F(3, 2): the 2 × 2 results of a tile are the window, and the three taps
//!   what it gives. `Bᵀ` is the same, and
//!
//! ```text
//!     ⎡1  0⎤
//! G = ⎢½  ½⎥         ⎡1  1  1  0⎤
//!     ⎢½ −½⎥    Aᵀ = ⎢0  1 −1  0⎥
//!     ⎣0  1⎦         ⎣0  1  1 −1⎦
//! ```
//!
//! **Layout.** Channels are turned innermost first (`images`), and every map (`matmul/transform.rs`) is sums and
//! differences of rows of channels; a place outside an image is a row of zeros. So neither the images' width nor their
//! padding matters to any vector.
//!
//! **Order.** Sums over channels are those of a matrix product. Sums over tiles are taken for a number of tiles that
//! follows from their count, block after block. Nothing depends on threads, layout or instruction set, and a result's
//! bits depend on its own image only.
//!
//! **Accuracy.** All constants are powers of two, so small integers stay exact. Otherwise rounding errors are relative
//! to the largest elements of the 4 × 4 patch, or of the sum, that a result is made from, not only of its own window.
//! Of elements of one size the sum of magnitudes |Aᵀ|·((|G|·|g|) ⊙ (|Bᵀ|·|d|)) is up to (8/3)² ≈ 7 times that of the
//! window, and 3² times in the sum over tiles; so much larger is the bound of the error. In the mean it is less than
//! twice that of the direct way.
//!
//! **What is not finite** would spoil all results of a tile, so those that are not finite are noticed, and then all are
//! computed directly. Every element and every product is part of some result of its tile, with a factor of ±1, so
//! looking at the results is enough. This is the only way in which images of a batch have to do with each other.

mod images;
#[cfg(test)]
mod tests;

use super::{Problem, Sizes, TASK, each, worker_ids};
use images::Images;
use pellucid_gemm::{Strided, TransformTiles, WinogradTransform};
use pellucid_ir::Result;
use pellucid_ir::kernel::ConvPart;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, split};
use pellucid_simd::Element;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements of a patch, each a matrix product of its own.
const PRODUCTS: usize = 16;

/// Elements of the patch that a tile sees, and of the tile.
const PATCH: usize = 16;
const TILE: usize = 4;

/// Bytes of turned images at a time, for every thread.
const STAGED: usize = 1 << 20;

/// Numbers of transformed tiles and of their products at a time: in a cache of 1 MiB, with one matrix of weights.
const BLOCK: usize = 192 << 10;

/// A block of tiles is some of these: whole register tiles of any instruction set, and so many that it is worth reading
/// all weights.
const STRIP: usize = 84;

/// Multiply-adds that take as long as moving a number does.
const MOVED: usize = TASK / (GRAIN / 4);

/// Tiles that a sum over tiles is taken for at once.
const DEPTH: usize = 128;

/// Fewer channels, or outputs, than this are not worth the maps.
const CHANNELS: usize = 16;

/// Fewer tiles than this are not worth the map of the weights, nor are fewer than one for so many pairs of channels.
const TILES: usize = 16;
const PAIRS: usize = 4096;

/// Whether this way fits, and is the faster one: a question of shapes alone.
pub(super) fn applies<T: Element>(problem: &Problem) -> bool {
    let Problem { window, images, x, y, .. } = problem;
    let flat = x.dims[0] == 1 && y.dims[0] == 1 && window.before[0] == 0;
    let fits = window.size == [1, 3, 3] && window.stride[1..] == [1, 1] && window.dilation[1..] == [1, 1];
    let (cin, cout) = problem.channels();
    let lanes = TransformTiles::<T>::padded(cin) + TransformTiles::<T>::padded(cout);
    let one = y.dims[1].div_ceil(2) * y.dims[2].div_ceil(2);
    let tiles = images * one;
    // Not much of what is computed is thrown away: tiles that reach out of images, and lanes without a channel.
    let full = 8 * one <= 3 * y.plane() && 5 * lanes <= 8 * (cin + cout);
    let worth = cin.min(cout) >= CHANNELS && tiles >= TILES.max(cin * cout / PAIRS);
    T::HALF.is_some() && flat && fits && full && worth
}

/// Computes one of the three arrays from the two others; false if some of it is not finite, and then none of it holds.
///
/// # Safety
/// The arrays have the shapes of the problem, row-major; nobody else touches the one that is computed.
pub(super) unsafe fn run<T: Element>(problem: &Problem, part: ConvPart, [x, w, y]: [SharedPtr<T>; 3]) -> Result<bool> {
    let Problem { isa, groups, images: count, window, .. } = *problem;
    let images = |data, Sizes { channels, dims: [_, height, width] }| Images {
        data,
        isa,
        count,
        groups,
        channels: channels / groups,
        dims: [height, width],
    };
    let (x, y) = (images(x, problem.x), images(y, problem.y));
    let low = [1, 2].map(|a| -(window.before[a] as isize));
    // SAFETY: the caller's.
    unsafe {
        match part {
            ConvPart::Output => correlate(&x, &Weights::new(w, &x, &y, false)?, low, &y),
            // Result q sees the outputs from q + before − 2 on, and the last tap first.
            ConvPart::Input => correlate(&y, &Weights::new(w, &x, &y, true)?, low.map(|l| -l - 2), &x),
            ConvPart::Weight => weight(&x, low, &y, w),
        }
    }
}

/// Uninitialised memory for so many numbers.
fn room<T>(count: usize) -> Result<(SharedPtr<T>, CpuBuffer)> {
    let room = CpuBuffer::scratch(count.saturating_mul(size_of::<T>()))?;
    Ok((SharedPtr(room.ensure()?.as_ptr().cast()), room))
}

/// Writes what it is given to a slice, from its beginning on.
fn into(to: &mut [isize]) -> impl FnMut(isize) {
    let mut places = to.iter_mut();
    move |place| *places.next().expect("as many places as elements") = place
}

/// Where such tiles lie in `[product, tile, lane]` for `count` tiles.
fn spectra<const N: usize>(tiles: Range<usize>, count: usize, lanes: usize) -> List<isize, N> {
    tiles.flat_map(|t| (0..PRODUCTS).map(move |k| ((k * count + t) * lanes) as isize)).collect()
}

/// The taps of all windows, transformed: `[group, product, depth, lane]`.
struct Weights<T> {
    data: SharedPtr<T>,
    /// From one product to the next.
    product: usize,
    _room: CpuBuffer,
}

impl<T: Element> Weights<T> {
    /// The weights `w`, `[group, outputs of y, channels of x, taps]`: x's channels are the depth and y's the lanes, or
    /// `back`, y's are the depth and x's the lanes, and the taps are turned around.
    ///
    /// # Safety
    /// There are so many weights.
    unsafe fn new(w: SharedPtr<T>, x: &Images<T>, y: &Images<T>, back: bool) -> Result<Weights<T>> {
        let steps = [x.channels * 9, 9].map(|step| step as isize);
        let (from, to, [lane, step]) = if back { (y, x, [steps[1], steps[0]]) } else { (x, y, steps) };
        let (isa, depth, lanes, whole) = (x.isa, from.channels, to.lanes(), x.channels * y.channels * 9);
        let product = depth * lanes;
        let (data, _room) = room::<T>(x.groups * PRODUCTS * product)?;
        let mut window = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|t| (t * lanes) as isize);
        if back {
            window.reverse();
        }
        let (tasks, cost) = (x.groups * depth, (9 + PRODUCTS) * lanes * MOVED);
        let (all_taps, _taps) = room::<T>(worker_ids(tasks, cost) * 9 * lanes)?;
        each(tasks, cost, |worker, task| {
            let (group, p) = (task / depth, task % depth);
            let taps = all_taps.at((worker * 9 * lanes) as isize);
            let from = w.at((group * whole) as isize + p as isize * step).cast_const();
            let to_group = data.at((group * PRODUCTS * product) as isize);
            let at = spectra::<PRODUCTS>(p..p + 1, depth, lanes);
            // SAFETY: the caller's; every task has its own part of the weights, and every worker of the taps.
            unsafe {
                pellucid_gemm::transpose(isa, Strided { data: from, lane, depth: 1 }, (to.channels, 9), lanes, taps);
                let work = TransformTiles {
                    map: WinogradTransform::Window,
                    data: taps,
                    from: &window,
                    to: to_group,
                    at: &at,
                    lanes,
                };
                pellucid_gemm::transform_tiles(isa, &work);
            }
            Ok(())
        })?;
        Ok(Weights { data, product, _room })
    }
}

/// Correlates the images of `from` with windows, the first of which begins at `low`.
///
/// # Safety
/// The images are there; nobody else touches those of `to`.
unsafe fn correlate<T: Element>(from: &Images<T>, w: &Weights<T>, low: [isize; 2], to: &Images<T>) -> Result<bool> {
    let Images { isa, groups, .. } = *from;
    let (depth, lanes) = (from.lanes(), to.lanes());
    let most = ((BLOCK / (PRODUCTS * (depth + lanes)) / STRIP).clamp(1, 4) * STRIP).min(to.count * to.tiles());
    let [patches_at, sums_at] = [depth, lanes].map(|lanes| spectra::<0>(0..most, most, lanes));
    let finite = AtomicBool::new(true);
    // How images are cut changes nothing: more threads get more of them.
    for range in Images::chunks(from, to, STAGED * threads::count()) {
        let tiles = range.len() * to.tiles();
        let blocks = tiles.div_ceil(most);
        // SAFETY: the caller's.
        let source = unsafe { from.turn(range.clone())? };
        let result = to.room(range.len(), blocks)?;
        // For each worker: patches, products, and where the elements of both are.
        let (tasks, cost) = (groups * blocks, PRODUCTS * most * depth * lanes);
        let sizes = [depth, lanes].map(|lanes| PRODUCTS * most * lanes);
        let worker_ids = worker_ids(tasks, cost);
        let [(all_patches, _patches), (all_sums, _sums)] =
            [room::<T>(worker_ids * sizes[0])?, room::<T>(worker_ids * sizes[1])?];
        let (places, _places) = room::<isize>(worker_ids * most * (PATCH + TILE))?;
        each(tasks, cost, |worker, task| {
            let (group, block) = (task / blocks, task % blocks);
            let tiles = block * most..tiles.min((block + 1) * most);
            let count = tiles.len();
            let patches = SharedPtr(all_patches.at((worker * sizes[0]) as isize));
            let sums = SharedPtr(all_sums.at((worker * sizes[1]) as isize));
            let start = places.at((worker * most * (PATCH + TILE)) as isize);
            // SAFETY: both have room in the worker's part.
            let (patch, tile) = unsafe {
                let patch = std::slice::from_raw_parts_mut(start, PATCH * count);
                let tile = std::slice::from_raw_parts_mut(start.add(PATCH * most), TILE * count);
                (patch, tile)
            };
            from.squares(tiles.clone(), to.grid(), 4, low, source.spare(0), into(patch));
            to.squares(tiles, to.grid(), 2, [0, 0], result.spare(block), into(tile));
            // SAFETY: all elements lie in the images and the rooms; the results of a tile are those of one task, and so
            // is a spare row.
            let good = unsafe {
                let (data, to, at) = (source.group(group), patches.get(), &patches_at[..PRODUCTS * count]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Patch, data, from: patch, to, at, lanes: depth },
                );
                for k in 0..PRODUCTS {
                    let a = patches.at((k * most * depth) as isize).cast_const();
                    let a = Strided { data: a, lane: depth as isize, depth: 1 };
                    let b = w.data.at(((group * PRODUCTS + k) * w.product) as isize).cast_const();
                    let b = Strided { data: b, lane: 1, depth: lanes as isize };
                    let c = sums.at((k * most * lanes) as isize);
                    pellucid_gemm::multiply(isa, &a, &b, (0..count, 0..lanes, from.channels), c, lanes as isize, false);
                }
                let (data, to, from) = (sums.get(), result.group(group), &sums_at[..PRODUCTS * count]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Results, data, from, to, at: tile, lanes },
                )
            };
            finite.fetch_and(good, Ordering::Relaxed);
            Ok(())
        })?;
        if !finite.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // SAFETY: the caller's.
        unsafe { to.turn_back(range, &result) }
    }
    Ok(true)
}

/// Sums x·y over all positions into w; the first window begins at `low`.
///
/// # Safety
/// The images are there, and so many weights; nobody else touches w.
unsafe fn weight<T: Element>(x: &Images<T>, low: [isize; 2], y: &Images<T>, w: SharedPtr<T>) -> Result<bool> {
    let Images { isa, groups, channels: rows, .. } = *x;
    let (depth, lanes) = (x.lanes(), y.lanes());
    let product = rows * lanes;
    let (sums, _sums) = room::<T>(groups * PRODUCTS * product)?;
    let (patches, _patches) = room::<T>(PRODUCTS * DEPTH * depth)?;
    let (results, _results) = room::<T>(PRODUCTS * DEPTH * lanes)?;
    let [patches_at, results_at] = [depth, lanes].map(|lanes| spectra::<0>(0..DEPTH, DEPTH, lanes));
    // The blocks of tiles hang on how images are cut.
    for range in Images::chunks(x, y, STAGED) {
        let (first, tiles) = (range.start == 0, range.len() * y.tiles());
        // SAFETY: the caller's.
        let (xs, ys) = unsafe { (x.turn(range.clone())?, y.turn(range)?) };
        for (group, start) in (0..groups).flat_map(|group| (0..tiles).step_by(DEPTH).map(move |start| (group, start))) {
            let count = DEPTH.min(tiles - start);
            let [mut patch, mut tile] = [PATCH, TILE].map(|size| List::<isize, 0>::with_capacity(size * count));
            x.squares(start..start + count, y.grid(), 4, low, xs.spare(0), |place| patch.push(place));
            y.squares(start..start + count, y.grid(), 2, [0, 0], ys.spare(0), |place| tile.push(place));
            split(count, GRAIN / (PRODUCTS * (depth + lanes) * size_of::<T>()) + 1, |part| {
                let (patch, tile) =
                    (&patch[PATCH * part.start..PATCH * part.end], &tile[TILE * part.start..TILE * part.end]);
                let part = PRODUCTS * part.start..PRODUCTS * part.end;
                // SAFETY: all elements lie in the images and the rooms; each part has tiles of its own.
                unsafe {
                    let (data, to, at) = (xs.group(group), patches.get(), &patches_at[part.clone()]);
                    pellucid_gemm::transform_tiles(
                        isa,
                        &TransformTiles { map: WinogradTransform::Patch, data, from: patch, to, at, lanes: depth },
                    );
                    let (data, to, at) = (ys.group(group), results.get(), &results_at[part]);
                    pellucid_gemm::transform_tiles(
                        isa,
                        &TransformTiles { map: WinogradTransform::Tile, data, from: tile, to, at, lanes },
                    );
                }
            });
            each(PRODUCTS, count * rows * lanes, |_, k| {
                let a = patches.at((k * DEPTH * depth) as isize).cast_const();
                let a = Strided { data: a, lane: 1, depth: depth as isize };
                let b = results.at((k * DEPTH * lanes) as isize).cast_const();
                let b = Strided { data: b, lane: 1, depth: lanes as isize };
                let c = sums.at(((group * PRODUCTS + k) * product) as isize);
                let add = !first || start > 0;
                // SAFETY: as above; every product has sums of its own.
                unsafe { pellucid_gemm::multiply(isa, &a, &b, (0..rows, 0..lanes, count), c, lanes as isize, add) }
                Ok(())
            })?;
        }
    }
    // The taps with y's channels innermost, then as they belong: so many rows at a time that both stay in a cache.
    let step = (BLOCK / (9 * (lanes + y.channels))).clamp(1, rows);
    let parts = rows.div_ceil(step);
    let from = spectra::<0>(0..rows, rows, lanes);
    let at: List<isize, 0> = (0..9 * step).map(|t| (t * lanes) as isize).collect();
    let (tasks, cost) = (groups * parts, (9 + PRODUCTS) * step * lanes * MOVED);
    let sizes = [lanes, y.channels].map(|lanes| 9 * step * lanes);
    let worker_ids = worker_ids(tasks, cost);
    let [(all_taps, _taps), (all_own, _own)] = [room::<T>(worker_ids * sizes[0])?, room::<T>(worker_ids * sizes[1])?];
    let finite = AtomicBool::new(true);
    each(tasks, cost, |worker, task| {
        let (group, first) = (task / parts, task % parts * step);
        let these = first..rows.min(first + step);
        let count = 9 * these.len();
        let (to, own) =
            (all_taps.at((worker * sizes[0]) as isize), SharedPtr(all_own.at((worker * sizes[1]) as isize)));
        let (from, at) = (&from[PRODUCTS * these.start..PRODUCTS * these.end], &at[..count]);
        let data = sums.at((group * PRODUCTS * product) as isize);
        // SAFETY: the rooms are as large as what is read and written, and every task has taps of its own in w.
        unsafe {
            let good = pellucid_gemm::transform_tiles(
                isa,
                &TransformTiles { map: WinogradTransform::Taps, data, from, to, at, lanes },
            );
            finite.fetch_and(good, Ordering::Relaxed);
            let taps = Strided { data: to.cast_const(), lane: lanes as isize, depth: 1 };
            pellucid_gemm::transpose(isa, taps, (count, y.channels), count, own.get());
            for channel in 0..y.channels {
                let to = w.at((((group * y.channels + channel) * rows + first) * 9) as isize);
                to.copy_from_nonoverlapping(own.at((channel * count) as isize), count);
            }
        }
        Ok(())
    })?;
    Ok(finite.into_inner())
}
