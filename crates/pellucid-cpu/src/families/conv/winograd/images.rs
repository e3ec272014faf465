//! Images with channels innermost, and where tiles lie in them.

use super::room;
use pellucid_gemm::{Strided, TransformTiles};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::Range;

/// Images as the caller has them, `[image, group, channel, y, x]`.
pub(super) struct Images<T> {
    pub(super) data: SharedPtr<T>,
    pub(super) isa: Isa,
    pub(super) count: usize,
    pub(super) groups: usize,
    /// In a group.
    pub(super) channels: usize,
    pub(super) dims: [usize; 2],
}

/// Some of them with channels innermost, `[group, image, y, x, lane]`, and behind those of each group some spare rows.
pub(super) struct Turned<T> {
    data: SharedPtr<T>,
    /// From one group to the next, and from the first image of a group to its spare rows.
    group: usize,
    size: usize,
    lanes: usize,
    _room: CpuBuffer,
}

impl<T> Turned<T> {
    /// The first image of a group.
    pub(super) fn group(&self, group: usize) -> *mut T {
        self.data.at((group * self.group) as isize)
    }

    /// Where a spare row of a group lies, from its first image on.
    pub(super) fn spare(&self, row: usize) -> isize {
        (self.size + row * self.lanes) as isize
    }
}

/// Positions, and channels, that are turned at once: a cache line of the one is read, and rows that are a power of two
/// apart, which share the sets of a cache, are not too many to be written.
const POSITIONS: usize = 16;
const CHANNELS: usize = 8;

impl<T: Element> Images<T> {
    /// Elements of one channel.
    fn plane(&self) -> usize {
        self.dims[0] * self.dims[1]
    }

    /// Channels in whole vectors.
    pub(super) fn lanes(&self) -> usize {
        TransformTiles::<T>::padded(self.channels)
    }

    /// Tiles of 2 × 2 that cover an image, by rows and columns.
    pub(super) fn grid(&self) -> [usize; 2] {
        self.dims.map(|d| d.div_ceil(2))
    }

    /// How many they are.
    pub(super) fn tiles(&self) -> usize {
        self.grid()[0] * self.grid()[1]
    }

    /// Cuts the images so that both sorts, turned, need no more than so many bytes.
    pub(super) fn chunks(a: &Images<T>, b: &Images<T>, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let one = a.groups * (a.plane() * a.lanes() + b.plane() * b.lanes()) * size_of::<T>();
        let (count, step) = (a.count, (bytes / one.max(1)).max(1));
        (0..count).step_by(step).map(move |first| first..count.min(first + step))
    }

    /// Calls `take` with where the elements of squares of `side` lie in turned images, a square for each of these tiles of a grid: the
    /// first begins at `low`, the next two elements on. What lies outside its image is at `outside`.
    pub(super) fn squares(
        &self,
        tiles: Range<usize>,
        [rows, columns]: [usize; 2],
        side: usize,
        low: [isize; 2],
        outside: isize,
        mut take: impl FnMut(isize),
    ) {
        let [height, width] = self.dims;
        for tile in tiles {
            let image = tile / (rows * columns) * height;
            let top = low[0] + 2 * (tile / columns % rows) as isize;
            let left = low[1] + 2 * (tile % columns) as isize;
            // A negative position becomes one that is far beyond the end.
            for y in (0..side as isize).map(|i| (top + i) as usize) {
                for x in (0..side as isize).map(|j| (left + j) as usize) {
                    let inside = y < height && x < width;
                    take(if inside { (((image + y) * width + x) * self.lanes()) as isize } else { outside });
                }
            }
        }
    }

    /// Room for so many of the images, turned, with spare rows.
    pub(super) fn room(&self, count: usize, spare: usize) -> Result<Turned<T>> {
        let lanes = self.lanes();
        let size = count * self.plane() * lanes;
        let group = size + spare * lanes;
        let (data, _room) = room(self.groups * group)?;
        Ok(Turned { data, group, size, lanes, _room })
    }

    /// The images of a range, turned, with one spare row, of zeros.
    ///
    /// # Safety
    /// They are there; the machine has the instruction set.
    pub(super) unsafe fn turn(&self, range: Range<usize>) -> Result<Turned<T>> {
        let turned = self.room(range.len(), 1)?;
        let (plane, lanes) = (self.plane(), self.lanes());
        self.each(range, &turned, |from, to| {
            for p in (0..plane).step_by(POSITIONS) {
                let data = from.wrapping_add(p).cast_const();
                let from = Strided { data, lane: plane as isize, depth: 1 };
                let count = POSITIONS.min(plane - p);
                // SAFETY: these are positions of one image of one group.
                unsafe {
                    pellucid_gemm::transpose(self.isa, from, (self.channels, count), lanes, to.wrapping_add(p * lanes))
                }
            }
        });
        for group in 0..self.groups {
            let zeros = turned.group(group).wrapping_offset(turned.spare(0));
            // SAFETY: the spare row of the group.
            unsafe { std::slice::from_raw_parts_mut(zeros, lanes) }.fill(T::ZERO);
        }
        Ok(turned)
    }

    /// Brings turned images where they belong.
    ///
    /// # Safety
    /// They are there, and nobody else touches them; the machine has the instruction set.
    pub(super) unsafe fn turn_back(&self, range: Range<usize>, turned: &Turned<T>) {
        let (plane, lanes) = (self.plane(), self.lanes());
        self.each(range, turned, |to, from| {
            for c in (0..self.channels).step_by(CHANNELS) {
                let data = from.wrapping_add(c).cast_const();
                let from = Strided { data, lane: lanes as isize, depth: 1 };
                let count = CHANNELS.min(self.channels - c);
                // SAFETY: these are channels of one image of one group.
                unsafe { pellucid_gemm::transpose(self.isa, from, (plane, count), plane, to.wrapping_add(c * plane)) }
            }
        });
    }

    /// Calls `copy` with every group of each image: where the caller has it, and where it lies turned.
    fn each(&self, range: Range<usize>, turned: &Turned<T>, copy: impl Fn(*mut T, *mut T) + Sync) {
        let (whole, size, groups) = (self.plane() * self.channels, self.plane() * self.lanes(), self.groups);
        split(groups * range.len(), GRAIN / (whole * size_of::<T>()).max(1) + 1, |tasks| {
            for task in tasks {
                let (image, group) = (task / groups, task % groups);
                let at = ((range.start + image) * groups + group) * whole;
                copy(self.data.at(at as isize), turned.group(group).wrapping_add(image * size));
            }
        });
    }
}
