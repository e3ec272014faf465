//! Convolutions with 3 × 3 windows, with fewer multiplications.
//!
//! Winograd's F(2, 3) computes two neighbouring results of a window of three taps with four multiplications instead of
//! six ("Arithmetic Complexity of Computations", 1980). With d the four elements that the results read and g the taps:
//!
//! ```text
//!                                ⎡1  0 −1  0⎤        ⎡1  0  0⎤
//! y = Aᵀ[(G·g) ⊙ (Bᵀ·d)]    Bᵀ = ⎢0  1  1  0⎥    G = ⎢½  ½  ½⎥    Aᵀ = ⎡1  1  1  0⎤
//!                                ⎢0 −1  1  0⎥        ⎢½ −½  ½⎥         ⎣0  1 −1 −1⎦
//!                                ⎣0  1  0 −1⎦        ⎣0  0  1⎦
//! ```
//!
//! Along both axes, a tile of 2 × 2 results needs 16 multiplications instead of 36: `Y = Aᵀ[(G·g·Gᵀ) ⊙ (Bᵀ·d·B)]·A`
//! (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). The sum over channels is taken before
//! the output transform. A convolution is therefore 16 matrix products, `[tiles, channels] · [channels, outputs]`,
//! between transforms of small squares.
//!
//! - The input gradient is a convolution of the output gradient with the window reversed along both axes.
//! - The weight gradient is a sum over tiles, F(3, 2): the 2 × 2 output gradients of a tile act as the window, and the
//!   results are the three taps per axis. `Bᵀ` is the same, and
//!
//! ```text
//!     ⎡1  0⎤
//! G = ⎢½  ½⎥         ⎡1  1  1  0⎤
//!     ⎢½ −½⎥    Aᵀ = ⎢0  1 −1  0⎥
//!     ⎣0  1⎦         ⎣0  1  1 −1⎦
//! ```
//!
//! **Layout.** Images are transposed to channels-last order (`images`), so every transform ([`WinogradTransform`])
//! adds, subtracts and halves vectors of channels. A pixel outside an image is a vector of zeros. Vector efficiency
//! therefore does not depend on the width of the images or on the padding.
//!
//! **Order.** Sums over channels have the order of a matrix product. Sums over tiles are accumulated block after block;
//! the block size is a function of the shapes. The bits of a result do not depend on threads, layout or instruction
//! set, and those of an output or an input gradient do not depend on the other images of the batch.
//!
//! **Accuracy.** All constants are powers of two, so small integers stay exact. Otherwise the rounding error of a
//! result is relative to the largest elements of the 4 × 4 patches from which it is computed, not only to the elements
//! of its own windows. For elements of equal magnitude, the sum of magnitudes |Aᵀ|·((|G|·|g|) ⊙ (|Bᵀ|·|d|)) is up to
//! (8/3)² ≈ 7 times the sum of the magnitudes of the direct products, or 3² = 9 times in a weight gradient; the error
//! bound grows by these factors. The mean error is less than twice the error of direct products.
//!
//! **Non-finite values** would affect all results of a tile. If a result of an image is not finite, all results of the
//! image (for a weight gradient, all results) are therefore recomputed by direct products. Every element and product
//! contributes to some result of its tile with a factor of ±1, so it is enough to check the results. The results of the
//! other images keep their bits.

mod images;
#[cfg(test)]
mod tests;

use super::problem::{ConvProblem, ImageSizes};
use super::tasks::{MIN_TASK_WORK, for_each_task, worker_count};
use images::{ChannelsLastImages, Images};
use pellucid_gemm::{Strided, TransformTiles, WinogradTransform};
use pellucid_ir::kernel::ConvPart;
use pellucid_ir::{Result, lock};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::Element;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of elements of a transformed patch. Each element index is a separate matrix product.
const PRODUCTS: usize = 16;

/// The number of elements of the patch that a tile reads.
const PATCH_LEN: usize = 16;
/// The number of elements of a tile.
const TILE_LEN: usize = 4;

/// The largest number of bytes of channels-last images that are processed at a time, unless one image needs more. It
/// applies per thread, but for a weight gradient to all threads together.
const CHUNK_BYTES: usize = 1 << 20;

/// The number of elements of the transformed tiles and products of one block. As `f32`, they fit a cache of 1 MiB
/// together with one matrix of weights.
const BLOCK_ELEMENTS: usize = 192 << 10;

/// The number of tiles of a block is a multiple of this constant, which is itself a multiple of the height of the
/// register tile of every instruction set, and large enough to amortize reading all weights.
const STRIP_TILES: usize = 84;

/// The number of multiply-adds that take as long as moving one element.
const MOVE_COST: usize = MIN_TASK_WORK / (GRAIN / 4);

/// The number of tiles over which one matrix product of a weight gradient sums.
const DEPTH_TILES: usize = 128;

/// The smallest number of channels and of outputs for which Winograd is faster than direct products.
const MIN_CHANNELS: usize = 16;

/// The smallest number of tiles for which Winograd is faster. The transform of the weights takes the same time for any
/// number of tiles.
const MIN_TILES: usize = 16;
/// The largest number of pairs (input channel, output channel) per tile for which Winograd is faster, despite the
/// transform of the weights.
const MAX_PAIRS_PER_TILE: usize = 4096;

/// Returns true if Winograd is applicable and faster than direct products. The answer depends on the shapes and the
/// dtype alone.
pub(super) fn is_applicable<T: Element>(problem: &ConvProblem) -> bool {
    let ConvProblem { window, images, x, y, .. } = problem;
    let is_planar = x.dims[0] == 1 && y.dims[0] == 1 && window.before[0] == 0;
    let has_window = window.size == [1, 3, 3] && window.stride[1..] == [1, 1] && window.dilation[1..] == [1, 1];
    let (cin, cout) = problem.group_channels();
    let lanes = TransformTiles::<T>::padded(cin) + TransformTiles::<T>::padded(cout);
    let image_tiles = y.dims[1].div_ceil(2) * y.dims[2].div_ceil(2);
    let tiles = images * image_tiles;
    // Tiles may extend beyond the images, and vectors of channels are padded. Only a limited part of the work may be
    // spent on this padding.
    let is_dense = 8 * image_tiles <= 3 * y.plane_len() && 5 * lanes <= 8 * (cin + cout);
    let is_worthwhile = cin.min(cout) >= MIN_CHANNELS && tiles >= MIN_TILES.max(cin * cout / MAX_PAIRS_PER_TILE);
    T::HALF.is_some() && is_planar && has_window && is_dense && is_worthwhile
}

/// Computes one [`ConvPart`] with Winograd. Returns the images whose results must be computed by direct products,
/// because some are not finite: for the weight gradient, all images or none.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds.
pub(super) unsafe fn compute<T: Element>(
    problem: &ConvProblem,
    part: ConvPart,
    [x, w, y]: [SharedPtr<T>; 3],
) -> Result<Vec<usize>> {
    let ConvProblem { isa, groups, images: count, window, .. } = *problem;
    let images = |data, ImageSizes { channels, dims: [_, height, width] }| Images {
        data,
        isa,
        count,
        groups,
        channels: channels / groups,
        dims: [height, width],
    };
    let (x, y) = (images(x, problem.x), images(y, problem.y));
    let low = [1, 2].map(|a| -(window.before[a] as isize));
    // SAFETY: `x`, `y` and `w` have the shapes of the problem, the computed one is exclusive to this call, and the
    // processor supports `isa`: clauses *shape*, *exclusive* and *isa* of the array contract, which is this function's
    // contract.
    unsafe {
        match part {
            ConvPart::Output => correlate(&x, &WinogradWeights::new(w, &x, &y, false)?, low, &y),
            // The gradient at coordinate q of the input reads the outputs starting at q + before − 2, with the taps in
            // reverse order.
            ConvPart::Input => correlate(&y, &WinogradWeights::new(w, &x, &y, true)?, low.map(|l| -l - 2), &x),
            ConvPart::Weight => {
                let is_finite = weight_gradient(&x, low, &y, w)?;
                Ok(if is_finite { Vec::new() } else { (0..count).collect() })
            }
        }
    }
}

/// Returns uninitialized memory for `count` elements, with the buffer that owns it.
///
/// # Errors
/// Returns an error if the memory cannot be allocated.
fn scratch<T>(count: usize) -> Result<(SharedPtr<T>, CpuBuffer)> {
    let buffer = CpuBuffer::scratch(count.saturating_mul(size_of::<T>()))?;
    Ok((SharedPtr(buffer.ensure()?.as_ptr().cast()), buffer))
}

/// Returns a function that writes its arguments to the elements of `to`, in order.
///
/// # Panics
/// The function panics if it is called more often than `to` has elements.
fn offset_writer(to: &mut [isize]) -> impl FnMut(isize) {
    let mut elements = to.iter_mut();
    move |offset| *elements.next().expect("there must be at most one offset per element") = offset
}

/// Returns the offsets of the pixels of `tiles` in an array `[product, tile, channel]` of `count` tiles and `lanes`
/// channels.
fn transformed_offsets<const N: usize>(tiles: Range<usize>, count: usize, lanes: usize) -> List<isize, N> {
    tiles.flat_map(|t| (0..PRODUCTS).map(move |k| ((k * count + t) * lanes) as isize)).collect()
}

/// The transformed taps of all windows: `[group, product, k index, column]`, the operands B of the products.
struct WinogradWeights<T> {
    data: SharedPtr<T>,
    /// The stride from one product to the next.
    product_stride: usize,
    /// The memory of `data`.
    _buffer: CpuBuffer,
}

impl<T: Element> WinogradWeights<T> {
    /// Transforms the weights `w`, `[group, outputs of y, channels of x, taps]`.
    ///
    /// The k index is a channel of x, and the columns are the channels of y. If `reversed`, the k index is a channel of
    /// y, the columns are the channels of x, and the taps are reversed.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    ///
    /// # Safety
    /// `w` is valid for reading the weights of all groups, and the processor supports `x.isa`.
    unsafe fn new(w: SharedPtr<T>, x: &Images<T>, y: &Images<T>, reversed: bool) -> Result<WinogradWeights<T>> {
        let steps = [x.channels * 9, 9].map(|step| step as isize);
        let (from, to, [lane, step]) = if reversed { (y, x, [steps[1], steps[0]]) } else { (x, y, steps) };
        let (isa, depth, lanes, group_weights) = (x.isa, from.channels, to.lanes(), x.channels * y.channels * 9);
        let product = depth * lanes;
        let (data, _buffer) = scratch::<T>(x.groups * PRODUCTS * product)?;
        let mut window = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|t| (t * lanes) as isize);
        if reversed {
            window.reverse();
        }
        let (tasks, cost) = (x.groups * depth, (9 + PRODUCTS) * lanes * MOVE_COST);
        let (all_taps, _taps) = scratch::<T>(worker_count(tasks, cost) * 9 * lanes)?;
        for_each_task(tasks, cost, |worker, task| {
            let (group, p) = (task / depth, task % depth);
            let taps = all_taps.offset((worker * 9 * lanes) as isize);
            let from = w.offset((group * group_weights) as isize + p as isize * step).cast_const();
            let to_group = data.offset((group * PRODUCTS * product) as isize);
            let at = transformed_offsets::<PRODUCTS>(p..p + 1, depth, lanes);
            // SAFETY: `from` has `to.channels` windows of 9 taps, and the processor supports `isa` (this function's
            // contract). Every task writes its own k index of `data`, and every worker its own part of `all_taps`.
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
        Ok(WinogradWeights { data, product_stride: product, _buffer })
    }
}

/// Correlates the images of `from` with the windows `w` and stores the result in the images of `to`. The first window
/// begins at `low`.
///
/// Returns the images with a result that is not finite.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// - *images*: the images of `from` are valid for reads, the images of `to` are valid for writes, and no other thread
///   accesses the images of `to`;
/// - *weights*: `w` was created for these images;
/// - *isa*: the processor supports `from.isa`.
unsafe fn correlate<T: Element>(
    from: &Images<T>,
    w: &WinogradWeights<T>,
    low: [isize; 2],
    to: &Images<T>,
) -> Result<Vec<usize>> {
    let Images { isa, groups, .. } = *from;
    let (depth, lanes) = (from.lanes(), to.lanes());
    let block_tiles = ((BLOCK_ELEMENTS / (PRODUCTS * (depth + lanes)) / STRIP_TILES).clamp(1, 4) * STRIP_TILES)
        .min(to.count * to.tiles());
    let [patches_at, sums_at] =
        [depth, lanes].map(|lanes| transformed_offsets::<0>(0..block_tiles, block_tiles, lanes));
    // The tiles of the blocks with a result that is not finite, with the first image of their chunk.
    let suspects = Mutex::new(Vec::new());
    // The chunk size does not affect the results, so it may depend on the number of threads.
    for range in Images::chunks(from, to, CHUNK_BYTES * threads::count()) {
        let tiles = range.len() * to.tiles();
        let blocks = tiles.div_ceil(block_tiles);
        // SAFETY: by this function's contract, the images of `from` are valid for reads (*images*), and the processor
        // supports the instruction set (*isa*).
        let source = unsafe { from.to_channels_last(range.clone())? };
        let result = to.allocate(range.len(), blocks)?;
        // Each worker has its own patches, its own products, and the offsets of the elements of both.
        let (tasks, cost) = (groups * blocks, PRODUCTS * block_tiles * depth * lanes);
        let sizes = [depth, lanes].map(|lanes| PRODUCTS * block_tiles * lanes);
        let workers = worker_count(tasks, cost);
        let [(all_patches, _patches), (all_sums, _sums)] =
            [scratch::<T>(workers * sizes[0])?, scratch::<T>(workers * sizes[1])?];
        let (offsets, _offsets) = scratch::<isize>(workers * block_tiles * (PATCH_LEN + TILE_LEN))?;
        for_each_task(tasks, cost, |worker, task| {
            let (group, block) = (task / blocks, task % blocks);
            let tiles = block * block_tiles..tiles.min((block + 1) * block_tiles);
            let count = tiles.len();
            let patches = SharedPtr(all_patches.offset((worker * sizes[0]) as isize));
            let sums = SharedPtr(all_sums.offset((worker * sizes[1]) as isize));
            let start = offsets.offset((worker * block_tiles * (PATCH_LEN + TILE_LEN)) as isize);
            // SAFETY: each worker has `block_tiles · (PATCH_LEN + TILE_LEN)` offsets; the patches use the first
            // `PATCH_LEN · block_tiles`. Calls of one worker never run concurrently.
            let (patch, tile) = unsafe {
                let patch = std::slice::from_raw_parts_mut(start, PATCH_LEN * count);
                let tile = std::slice::from_raw_parts_mut(start.add(PATCH_LEN * block_tiles), TILE_LEN * count);
                (patch, tile)
            };
            from.tile_offsets(tiles.clone(), to.grid(), 4, low, source.spare_row(0), offset_writer(patch));
            to.tile_offsets(tiles.clone(), to.grid(), 2, [0, 0], result.spare_row(block), offset_writer(tile));
            // SAFETY: by this function's contract, the offsets of `patch` are in the channels-last images and the
            // offsets of `tile` in `result`, and the patches and sums have `block_tiles` tiles. Each tile of the
            // result, and each spare pixel, is written by one task only, and each worker has its own patches and sums.
            // The weights fit the images (*weights*), and the processor supports `isa` (*isa*).
            let is_finite = unsafe {
                let (data, to, at) = (source.group_data(group), patches.get(), &patches_at[..PRODUCTS * count]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Patch, data, from: patch, to, at, lanes: depth },
                );
                for k in 0..PRODUCTS {
                    let a = patches.offset((k * block_tiles * depth) as isize).cast_const();
                    let a = Strided { data: a, lane: depth as isize, depth: 1 };
                    let b = w.data.offset(((group * PRODUCTS + k) * w.product_stride) as isize).cast_const();
                    let b = Strided { data: b, lane: 1, depth: lanes as isize };
                    let c = sums.offset((k * block_tiles * lanes) as isize);
                    pellucid_gemm::multiply(isa, &a, &b, (0..count, 0..lanes, from.channels), c, lanes as isize, false);
                }
                let (data, to, from) = (sums.get(), result.group_data(group), &sums_at[..PRODUCTS * count]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Results, data, from, to, at: tile, lanes },
                )
            };
            lock(&suspects).extend((!is_finite).then_some((range.start, tiles)));
            Ok(())
        })?;
        // SAFETY: by this function's contract, the images of `to` are valid for writes and exclusive to this call
        // (*images*); the processor supports the instruction set (*isa*).
        unsafe { to.store_channels_last(range, &result) }
    }
    // SAFETY: the images of `to` are exclusive to this call (*images*), which has written all their elements.
    Ok(unsafe { not_finite_images(&lock(&suspects), to) })
}

/// Returns the images with an element that is not finite, among the images of blocks of tiles. Each block consists of
/// the first image of its chunk and the range of its tiles in the chunk.
///
/// # Safety
/// The images of `to` are initialized, and no other thread writes them.
unsafe fn not_finite_images<T: Element>(blocks: &[(usize, Range<usize>)], to: &Images<T>) -> Vec<usize> {
    let images_of = |(first, tiles): &(usize, Range<usize>)| {
        first + tiles.start / to.tiles()..first + tiles.end.div_ceil(to.tiles())
    };
    let mut images: Vec<usize> = blocks.iter().flat_map(images_of).collect();
    images.sort_unstable();
    images.dedup();
    // SAFETY: the contract of `is_finite` is the contract of this function.
    images.retain(|&image| !unsafe { to.is_finite(image) });
    images
}

/// Computes the weight gradient: the sum of x·y over all positions. The first window begins at `low`.
///
/// Returns false if a result is not finite.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// - *images*: the images of `x` and `y` are valid for reads;
/// - *weights*: `w` is valid for writing the weights of all groups, and no other thread accesses them;
/// - *isa*: the processor supports `x.isa`.
unsafe fn weight_gradient<T: Element>(x: &Images<T>, low: [isize; 2], y: &Images<T>, w: SharedPtr<T>) -> Result<bool> {
    let (depth, lanes) = (x.lanes(), y.lanes());
    let (sums, _sums) = scratch::<T>(x.groups * PRODUCTS * x.channels * lanes)?;
    let (patches, _patches) = scratch::<T>(PRODUCTS * DEPTH_TILES * depth)?;
    let (results, _results) = scratch::<T>(PRODUCTS * DEPTH_TILES * lanes)?;
    let [patches_at, results_at] =
        [depth, lanes].map(|lanes| transformed_offsets::<0>(0..DEPTH_TILES, DEPTH_TILES, lanes));
    let tile_sums = TileSums { x, y, low, sums, patches, results, patches_at, results_at };
    // The order of summation depends on the chunk size, so the chunk size must not depend on the number of threads.
    for range in Images::chunks(x, y, CHUNK_BYTES) {
        // SAFETY: by this function's contract, the images are valid for reads (*images*), and the processor supports
        // the instruction set (*isa*).
        unsafe { tile_sums.add_images(range)? };
    }
    // SAFETY: all images have been added, and *weights* and *isa* are clauses of this function's contract.
    unsafe { tile_sums.store_taps(w) }
}

/// The transformed weight gradient: 16 sums over tiles for every pair of channels, `[group, product, row, column]`.
struct TileSums<'a, T> {
    /// The input, whose channels are the rows of the products.
    x: &'a Images<T>,
    /// The gradient of the output, whose channels are the columns of the products.
    y: &'a Images<T>,
    /// The coordinates of the first element of the first window.
    low: [isize; 2],
    /// The sums.
    sums: SharedPtr<T>,
    /// The memory for the transformed patches of `DEPTH_TILES` tiles.
    patches: SharedPtr<T>,
    /// The memory for the transformed gradients of `DEPTH_TILES` tiles.
    results: SharedPtr<T>,
    /// The offsets of the elements of `patches`.
    patches_at: List<isize, 0>,
    /// The offsets of the elements of `results`.
    results_at: List<isize, 0>,
}

impl<T: Element> TileSums<'_, T> {
    /// Adds the tiles of the images of a range. The first range initializes the sums.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// The images of the range are valid for reads, and the processor supports `x.isa`.
    unsafe fn add_images(&self, range: Range<usize>) -> Result<()> {
        let TileSums { x, y, sums, patches, results, .. } = self;
        let (rows, depth, lanes) = (x.channels, x.lanes(), y.lanes());
        let (is_first, tiles) = (range.start == 0, range.len() * y.tiles());
        // SAFETY: the images are valid for reads, and the processor supports the instruction set (this function's
        // contract).
        let (xs, ys) = unsafe { (x.to_channels_last(range.clone())?, y.to_channels_last(range)?) };
        for (group, start) in
            (0..x.groups).flat_map(|group| (0..tiles).step_by(DEPTH_TILES).map(move |start| (group, start)))
        {
            let block = start..tiles.min(start + DEPTH_TILES);
            let count = block.len();
            // SAFETY: `xs` and `ys` are copies of the images, and the processor supports the instruction set (this
            // function's contract).
            unsafe { self.transform_block(&xs, &ys, group, block) };
            for_each_task(PRODUCTS, count * rows * lanes, |_, k| {
                let a = patches.offset((k * DEPTH_TILES * depth) as isize).cast_const();
                let a = Strided { data: a, lane: 1, depth: depth as isize };
                let b = results.offset((k * DEPTH_TILES * lanes) as isize).cast_const();
                let b = Strided { data: b, lane: 1, depth: lanes as isize };
                let c = sums.offset(((group * PRODUCTS + k) * rows * lanes) as isize);
                let add = !is_first || start > 0;
                // SAFETY: the patches and results have `count` tiles, and every product has its own sums. The
                // processor supports the instruction set (this function's contract).
                unsafe { pellucid_gemm::multiply(x.isa, &a, &b, (0..rows, 0..lanes, count), c, lanes as isize, add) }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Transforms the patches and the gradients of a block of at most `DEPTH_TILES` tiles of a group.
    ///
    /// # Safety
    /// `xs` and `ys` are channels-last copies of images of `x` and `y`, which have the tiles of the block, and the
    /// processor supports `x.isa`.
    unsafe fn transform_block(
        &self,
        xs: &ChannelsLastImages<T>,
        ys: &ChannelsLastImages<T>,
        group: usize,
        block: Range<usize>,
    ) {
        let TileSums { x, y, .. } = self;
        let (isa, depth, lanes, count) = (x.isa, x.lanes(), y.lanes(), block.len());
        let [mut patch, mut tile] = [PATCH_LEN, TILE_LEN].map(|size| List::<isize, 0>::with_capacity(size * count));
        x.tile_offsets(block.clone(), y.grid(), 4, self.low, xs.spare_row(0), |offset| patch.push(offset));
        y.tile_offsets(block, y.grid(), 2, [0, 0], ys.spare_row(0), |offset| tile.push(offset));
        parallel_ranges(count, GRAIN / (PRODUCTS * (depth + lanes) * size_of::<T>()) + 1, |part| {
            let (patch, tile) = (
                &patch[PATCH_LEN * part.start..PATCH_LEN * part.end],
                &tile[TILE_LEN * part.start..TILE_LEN * part.end],
            );
            let part = PRODUCTS * part.start..PRODUCTS * part.end;
            // SAFETY: the offsets of `patch` and `tile` are in the channels-last images, `patches` and `results` have
            // `DEPTH_TILES` tiles, and each part has its own tiles. The processor supports the instruction set (this
            // function's contract).
            unsafe {
                let (data, to, at) = (xs.group_data(group), self.patches.get(), &self.patches_at[part.clone()]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Patch, data, from: patch, to, at, lanes: depth },
                );
                let (data, to, at) = (ys.group_data(group), self.results.get(), &self.results_at[part]);
                pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Tile, data, from: tile, to, at, lanes },
                );
            }
        });
    }

    /// Computes the taps from the sums, and writes them to the weights. Returns false if a tap is not finite.
    ///
    /// The taps are first computed with the channels of y innermost and then transposed.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// The sums are complete, `w` is valid for writing the weights of all groups, which no other thread accesses, and
    /// the processor supports `x.isa`.
    unsafe fn store_taps(&self, w: SharedPtr<T>) -> Result<bool> {
        let TileSums { x, y, sums, .. } = self;
        let (isa, groups, rows, lanes) = (x.isa, x.groups, x.channels, y.lanes());
        // The number of rows of a task is chosen so that both copies of the taps of these rows fit a cache.
        let step = (BLOCK_ELEMENTS / (9 * (lanes + y.channels))).clamp(1, rows);
        let parts = rows.div_ceil(step);
        let from = transformed_offsets::<0>(0..rows, rows, lanes);
        let at: List<isize, 0> = (0..9 * step).map(|t| (t * lanes) as isize).collect();
        let (tasks, cost) = (groups * parts, (9 + PRODUCTS) * step * lanes * MOVE_COST);
        let sizes = [lanes, y.channels].map(|lanes| 9 * step * lanes);
        let workers = worker_count(tasks, cost);
        let [(all_taps, _taps), (all_transposed, _transposed)] =
            [scratch::<T>(workers * sizes[0])?, scratch::<T>(workers * sizes[1])?];
        let finite = AtomicBool::new(true);
        for_each_task(tasks, cost, |worker, task| {
            let (group, first) = (task / parts, task % parts * step);
            let task_rows = first..rows.min(first + step);
            let count = 9 * task_rows.len();
            let (to, transposed) = (
                all_taps.offset((worker * sizes[0]) as isize),
                SharedPtr(all_transposed.offset((worker * sizes[1]) as isize)),
            );
            let (from, at) = (&from[PRODUCTS * task_rows.start..PRODUCTS * task_rows.end], &at[..count]);
            let data = sums.offset((group * PRODUCTS * rows * lanes) as isize);
            // SAFETY: each worker has scratch for `9 · step` rows of `lanes` elements and of `y.channels` elements,
            // `sums` has the products of all rows, and every task writes the taps of its own rows of `w`, which has the
            // weights of all groups. The processor supports the instruction set (this function's contract).
            unsafe {
                let is_finite = pellucid_gemm::transform_tiles(
                    isa,
                    &TransformTiles { map: WinogradTransform::Taps, data, from, to, at, lanes },
                );
                finite.fetch_and(is_finite, Ordering::Relaxed);
                let taps = Strided { data: to.cast_const(), lane: lanes as isize, depth: 1 };
                pellucid_gemm::transpose(isa, taps, (count, y.channels), count, transposed.get());
                for channel in 0..y.channels {
                    let to = w.offset((((group * y.channels + channel) * rows + first) * 9) as isize);
                    to.copy_from_nonoverlapping(transposed.offset((channel * count) as isize), count);
                }
            }
            Ok(())
        })?;
        Ok(finite.into_inner())
    }
}
