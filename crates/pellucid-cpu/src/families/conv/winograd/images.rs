//! Images in channels-last order, and the offsets of tiles in them.

use super::scratch;
use pellucid_gemm::{Strided, TransformTiles};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::Range;

/// The images of an operand, `[image, group, channel, y, x]`, row-major.
pub(super) struct Images<T> {
    /// The first element.
    pub(super) data: SharedPtr<T>,
    /// The instruction set that the copies use.
    pub(super) isa: Isa,
    /// The number of images.
    pub(super) count: usize,
    /// The number of groups.
    pub(super) groups: usize,
    /// The number of channels of a group.
    pub(super) channels: usize,
    /// The height and the width of an image.
    pub(super) dims: [usize; 2],
}

/// A copy of images in channels-last order, `[group, image, y, x, channel]`, with spare pixels after the images of each
/// group. A pixel is a contiguous vector of channels, padded to full SIMD vectors.
pub(super) struct ChannelsLastImages<T> {
    data: SharedPtr<T>,
    /// The stride from one group to the next.
    group_stride: usize,
    /// The number of elements of the images of a group; the spare pixels follow them.
    size: usize,
    /// The number of elements of a pixel: the channels, padded to full SIMD vectors.
    lanes: usize,
    /// The memory of `data`.
    _buffer: CpuBuffer,
}

impl<T> ChannelsLastImages<T> {
    /// Returns the address of the first image of a group.
    pub(super) fn group_data(&self, group: usize) -> *mut T {
        self.data.offset((group * self.group_stride) as isize)
    }

    /// Returns the offset of spare pixel `row` of a group from the first image of the group.
    pub(super) fn spare_row(&self, row: usize) -> isize {
        (self.size + row * self.lanes) as isize
    }
}

/// The number of pixels that are transposed together: one cache line of a source of type `f32`.
const TRANSPOSED_POSITIONS: usize = 16;
/// The number of channels that are transposed together when images are copied back. Their destination rows can be a
/// power of two apart and then share cache sets, so the number is small.
const TRANSPOSED_CHANNELS: usize = 8;

impl<T: Element> Images<T> {
    /// Returns true if all elements of an image are finite.
    ///
    /// # Safety
    /// The elements are initialized, and no other thread writes them.
    pub(super) unsafe fn is_finite(&self, image: usize) -> bool {
        let len = self.groups * self.channels * self.dims[0] * self.dims[1];
        // SAFETY: `data` has `count` images of this length, which no thread writes (this function's contract).
        let elements = unsafe { std::slice::from_raw_parts(self.data.offset((image * len) as isize), len) };
        elements.iter().all(|&x| x.sub(x) == T::ZERO)
    }

    /// Returns the number of elements of one channel of an image.
    fn plane_len(&self) -> usize {
        self.dims[0] * self.dims[1]
    }

    /// Returns the number of channels, padded to full vectors.
    pub(super) fn lanes(&self) -> usize {
        TransformTiles::<T>::padded(self.channels)
    }

    /// Returns the numbers of rows and columns of 2 × 2 tiles that cover an image.
    pub(super) fn grid(&self) -> [usize; 2] {
        self.dims.map(|d| d.div_ceil(2))
    }

    /// Returns the number of tiles that cover an image.
    pub(super) fn tiles(&self) -> usize {
        self.grid()[0] * self.grid()[1]
    }

    /// Returns ranges of images whose channels-last copies of `a` and `b` together need at most `bytes` bytes; a range
    /// has at least one image.
    pub(super) fn chunks(a: &Images<T>, b: &Images<T>, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let image_bytes = a.groups * (a.plane_len() * a.lanes() + b.plane_len() * b.lanes()) * size_of::<T>();
        let (count, step) = (a.count, (bytes / image_bytes.max(1)).max(1));
        (0..count).step_by(step).map(move |first| first..count.min(first + step))
    }

    /// Calls `visit` with the offset of each element of a square of `side × side` elements, in channels-last images,
    /// for each tile of a grid.
    ///
    /// The square of the first tile begins at `low`, and the squares of neighbouring tiles are two elements apart.
    /// Elements outside their image have the offset `outside`.
    pub(super) fn tile_offsets(
        &self,
        tiles: Range<usize>,
        [rows, columns]: [usize; 2],
        side: usize,
        low: [isize; 2],
        outside: isize,
        mut visit: impl FnMut(isize),
    ) {
        let [height, width] = self.dims;
        for tile in tiles {
            let image = tile / (rows * columns) * height;
            let top = low[0] + 2 * (tile / columns % rows) as isize;
            let left = low[1] + 2 * (tile % columns) as isize;
            // The cast converts a negative coordinate to a number far beyond the end.
            for y in (0..side as isize).map(|i| (top + i) as usize) {
                for x in (0..side as isize).map(|j| (left + j) as usize) {
                    let inside = y < height && x < width;
                    visit(if inside { (((image + y) * width + x) * self.lanes()) as isize } else { outside });
                }
            }
        }
    }

    /// Allocates channels-last memory for `count` images and `spare` spare pixels. Its contents are uninitialized.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be allocated.
    pub(super) fn allocate(&self, count: usize, spare: usize) -> Result<ChannelsLastImages<T>> {
        let lanes = self.lanes();
        let size = count * self.plane_len() * lanes;
        let group = size + spare * lanes;
        let (data, _buffer) = scratch(self.groups * group)?;
        Ok(ChannelsLastImages { data, group_stride: group, size, lanes, _buffer })
    }

    /// Returns a channels-last copy of the images of a range, with one spare pixel of zeros in each group.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be allocated.
    ///
    /// # Safety
    /// The images of the range are valid for reads, and the processor supports `self.isa`.
    pub(super) unsafe fn to_channels_last(&self, range: Range<usize>) -> Result<ChannelsLastImages<T>> {
        let channels_last = self.allocate(range.len(), 1)?;
        let (plane, lanes) = (self.plane_len(), self.lanes());
        self.for_each_group(range, &channels_last, |from, to| {
            for p in (0..plane).step_by(TRANSPOSED_POSITIONS) {
                let data = from.wrapping_add(p).cast_const();
                let from = Strided { data, lane: plane as isize, depth: 1 };
                let count = TRANSPOSED_POSITIONS.min(plane - p);
                // SAFETY: `from` and `to` are one group of one image of the range; positions `p..p + count` are inside
                // both (`from` by this function's contract).
                unsafe {
                    pellucid_gemm::transpose(self.isa, from, (self.channels, count), lanes, to.wrapping_add(p * lanes))
                }
            }
        });
        for group in 0..self.groups {
            let zeros = channels_last.group_data(group).wrapping_offset(channels_last.spare_row(0));
            // SAFETY: every group has one spare pixel of `lanes` elements, and only this thread accesses it here.
            unsafe { std::slice::from_raw_parts_mut(zeros, lanes) }.fill(T::ZERO);
        }
        Ok(channels_last)
    }

    /// Copies channels-last images to the images of a range.
    ///
    /// # Safety
    /// The images of the range are valid for writes, and no other thread accesses them; `channels_last` has as many
    /// images as the range; the processor supports `self.isa`.
    pub(super) unsafe fn store_channels_last(&self, range: Range<usize>, channels_last: &ChannelsLastImages<T>) {
        let (plane, lanes) = (self.plane_len(), self.lanes());
        self.for_each_group(range, channels_last, |to, from| {
            for c in (0..self.channels).step_by(TRANSPOSED_CHANNELS) {
                let data = from.wrapping_add(c).cast_const();
                let from = Strided { data, lane: lanes as isize, depth: 1 };
                let count = TRANSPOSED_CHANNELS.min(self.channels - c);
                // SAFETY: `from` and `to` are one group of one image of the range; channels `c..c + count` are inside
                // both (`to` by this function's contract).
                unsafe { pellucid_gemm::transpose(self.isa, from, (plane, count), plane, to.wrapping_add(c * plane)) }
            }
        });
    }

    /// Calls `copy` with the address of every group of each image: in the operand and in the channels-last copy.
    fn for_each_group(
        &self,
        range: Range<usize>,
        channels_last: &ChannelsLastImages<T>,
        copy: impl Fn(*mut T, *mut T) + Sync,
    ) {
        let (group_len, copy_len, groups) =
            (self.plane_len() * self.channels, self.plane_len() * self.lanes(), self.groups);
        parallel_ranges(groups * range.len(), GRAIN / (group_len * size_of::<T>()).max(1) + 1, |tasks| {
            for task in tasks {
                let (image, group) = (task / groups, task % groups);
                let offset = ((range.start + image) * groups + group) * group_len;
                copy(self.data.offset(offset as isize), channels_last.group_data(group).wrapping_add(image * copy_len));
            }
        });
    }
}
