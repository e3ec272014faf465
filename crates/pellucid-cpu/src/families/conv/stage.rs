//! An image as windows read it: with its padding, and so that neighbouring windows are neighbours in memory.
//!
//! Along the last axis the elements that are a stride apart come together, residue class after residue class.
//! Element q then lies where its class begins, plus q divided by the stride, and a tap of neighbouring windows is
//! a row of neighbours for any stride. An image that is already so is used where it is.

use super::Sizes;
use pellucid_gemm::{OffsetList, PackRuns};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::Range;

/// Which part of an image windows read: from `low` to `low + len` along every axis, whose zero is the image's first
/// element. Some of it may lie outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) low: [isize; 3],
    pub(super) len: [usize; 3],
    /// Stride along the last axis.
    pub(super) classes: usize,
}

/// Some images of a batch, staged.
pub(super) struct Stage<T> {
    /// Element `low` of channel 0 of the first image.
    pub(super) data: *const T,
    /// From one image to the next, and from one channel to the next.
    pub(super) image: isize,
    pub(super) channel: isize,
    /// From one element to the next along the first two axes; along the last see [`Stage::along`].
    pub(super) steps: [isize; 2],
    /// The length of a residue class.
    class: usize,
    classes: usize,
    pub(super) valid: ValidPositions,
    _room: Option<CpuBuffer>,
}

/// The positions of a stage's elements, relative to its `data`.
pub(super) struct ValidPositions(Range<isize>);

impl ValidPositions {
    /// Whether all sums of a lane's and a depth's position, counted from `start` on, are among them.
    pub(super) fn cover(&self, start: isize, lanes: &OffsetList, depths: &OffsetList) -> bool {
        let (Some(lanes), Some(depths)) = (lanes.bounds(), depths.bounds()) else { return true };
        self.0.contains(&(start + lanes.0 + depths.0)) && self.0.contains(&(start + lanes.1 + depths.1))
    }
}

impl<T: Element> Stage<T> {
    /// Stages `images` images of `sizes` that begin at `data`.
    ///
    /// # Safety
    ///
    /// The images are there, row-major; the machine has the instruction set.
    pub(super) unsafe fn new(
        isa: Isa,
        data: *const T,
        images: usize,
        sizes: &Sizes,
        frame: &Frame,
    ) -> Result<Stage<T>> {
        debug_assert!(frame.classes >= 1 && frame.len.iter().all(|&len| len >= 1), "{frame:?}");
        let Sizes { channels, dims } = *sizes;
        let [_, h, w] = dims;
        let whole = dims.iter().product::<usize>();
        let inside = (0..3).all(|a| frame.low[a] >= 0 && frame.low[a] as usize + frame.len[a] <= dims[a]);
        if inside && frame.classes == 1 {
            let first = (frame.low[0] as usize * h + frame.low[1] as usize) * w + frame.low[2] as usize;
            return Ok(Stage {
                data: data.wrapping_add(first),
                image: (channels * whole) as isize,
                channel: whole as isize,
                steps: [(h * w) as isize, w as isize],
                class: w,
                classes: 1,
                valid: ValidPositions(-(first as isize)..(images * channels * whole) as isize - first as isize),
                _room: None,
            });
        }
        let class = frame.len[2].div_ceil(frame.classes);
        let row = class * frame.classes;
        let (rows, planes) = (frame.len[0].saturating_mul(frame.len[1]), images * channels);
        let bytes = [rows, row, planes, size_of::<T>()].into_iter().fold(1, usize::saturating_mul);
        let one = rows.saturating_mul(row);
        let room = CpuBuffer::scratch(bytes)?;
        let (from, to) = (SharedPtr(data.cast_mut()), SharedPtr(room.ensure()?.as_ptr().cast::<T>()));
        // The image's rows that are in the frame, and where they go.
        let inside = |a: usize| {
            let first = (-frame.low[a]).clamp(0, frame.len[a] as isize) as usize;
            let end = (dims[a] as isize - frame.low[a]).clamp(first as isize, frame.len[a] as isize) as usize;
            first..end
        };
        let (planes_inside, rows_inside) = (inside(0), inside(1));
        let sources: List<isize, 0> = rows_inside.clone().map(|y| (frame.low[1] + y as isize) * w as isize).collect();
        let inner = Row::new(frame, w, class);
        split(planes, GRAIN / (one * size_of::<T>()).max(1) + 1, |range| {
            for plane in range {
                // SAFETY: each plane has its own part of the room, and the rows of the image exist.
                unsafe {
                    let to = to.get().add(plane * one);
                    std::slice::from_raw_parts_mut(to, one).fill(T::ZERO);
                    for z in planes_inside.clone() {
                        let from = from.get().add(plane * whole + (frame.low[0] + z as isize) as usize * h * w);
                        let to = to.add((z * frame.len[1] + rows_inside.start) * row);
                        inner.copy(isa, from, &sources, to, row);
                    }
                }
            }
        });
        Ok(Stage {
            data: to.get(),
            image: (one * channels) as isize,
            channel: one as isize,
            steps: [(frame.len[1] * row) as isize, row as isize],
            class,
            classes: frame.classes,
            valid: ValidPositions(0..(planes * one) as isize),
            _room: Some(room),
        })
    }

    /// Where element q of the last axis lies in its row. Of two elements one of which is a multiple of the stride, the
    /// sum lies at the sum.
    pub(super) fn along(&self, q: isize) -> isize {
        let classes = self.classes as isize;
        q.rem_euclid(classes) * self.class as isize + q.div_euclid(classes)
    }
}

/// How one row is staged: the part of the image's row that is in the frame; around it are zeros.
struct Row {
    low: isize,
    class: usize,
    classes: usize,
    /// For every class the first and last places that lie inside the image.
    inside: List<(usize, usize), 4>,
}

impl Row {
    fn new(frame: &Frame, width: usize, class: usize) -> Row {
        let (low, classes) = (frame.low[2], frame.classes);
        // Place i of class c holds the image's element low + c + classes·i.
        let place = |c: usize, element: isize| {
            let i = (element - low - c as isize + classes as isize - 1).div_euclid(classes as isize);
            i.clamp(0, class as isize) as usize
        };
        let inside = (0..classes).map(|c| (place(c, 0), place(c, width as isize))).collect();
        Row { low, class, classes, inside }
    }

    /// Stages the rows that begin at `sources`, `step` apart.
    ///
    /// # Safety
    /// The rows are as wide as was said, and there is room for them; the machine has the instruction set.
    unsafe fn copy<T: Element>(&self, isa: Isa, from: *const T, sources: &[isize], to: *mut T, step: usize) {
        for (c, &(start, end)) in self.inside.iter().enumerate().filter(|(_, (start, end))| start < end) {
            let first = (self.low + (c + self.classes * start) as isize) as usize;
            // SAFETY: the caller's.
            unsafe {
                let (from, to) = (from.add(first), to.add(c * self.class + start));
                if self.classes == 1 {
                    let work = PackRuns { data: from, offsets: sources, len: end - start, to, step, slack: 0 };
                    pellucid_gemm::pack_runs(isa, &work);
                    continue;
                }
                for (k, &source) in sources.iter().enumerate() {
                    let (from, to) = (from.wrapping_offset(source), to.add(k * step));
                    for i in 0..end - start {
                        *to.add(i) = *from.add(i * self.classes);
                    }
                }
            }
        }
    }
}
