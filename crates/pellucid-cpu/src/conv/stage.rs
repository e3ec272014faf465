//! An image as windows read it: with its padding, and so that neighbouring windows are neighbours in memory.
//!
//! Along the last axis the elements that are a stride apart come together, residue class after residue class.
//! Element q then lies where its class begins, plus q divided by the stride, and a tap of neighbouring windows is
//! a row of neighbours for any stride. An image that is already so is used where it is.

use super::Sizes;
use crate::buffer::CpuBuffer;
use crate::matmul::Element;
use crate::threads::{GRAIN, Ptr, split};
use pellucid_ir::Result;

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
    _room: Option<CpuBuffer>,
}

impl<T: Element> Stage<T> {
    /// Stages `images` images of `sizes` that begin at `data`.
    ///
    /// # Safety
    ///
    /// The images are there, row-major.
    pub(super) unsafe fn new(data: *const T, images: usize, sizes: &Sizes, frame: &Frame) -> Result<Stage<T>> {
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
                _room: None,
            });
        }
        let class = frame.len[2].div_ceil(frame.classes);
        let row = class * frame.classes;
        let (rows, planes) = (frame.len[0].saturating_mul(frame.len[1]), images * channels);
        let bytes = [rows, row, planes, size_of::<T>()].into_iter().fold(1, usize::saturating_mul);
        let room = CpuBuffer::scratch(bytes)?;
        let (from, to) = (Ptr(data.cast_mut()), Ptr(room.ensure()?.as_ptr().cast::<T>()));
        let inner = Row::new(frame, w, class);
        split(planes, GRAIN / (rows * row * size_of::<T>()).max(1) + 1, |range| {
            for plane in range {
                // SAFETY: each plane has its own part of the room.
                unsafe { std::slice::from_raw_parts_mut(to.get().add(plane * rows * row), rows * row) }.fill(T::ZERO);
                for r in 0..rows {
                    let (z, y) =
                        (frame.low[0] + (r / frame.len[1]) as isize, frame.low[1] + (r % frame.len[1]) as isize);
                    let there = (0..dims[0] as isize).contains(&z) && (0..h as isize).contains(&y);
                    if there {
                        // SAFETY: as above; the row of the image exists.
                        unsafe {
                            let to = std::slice::from_raw_parts_mut(to.get().add((plane * rows + r) * row), row);
                            let from = from.get().add(plane * whole + (z as usize * h + y as usize) * w);
                            inner.copy(std::slice::from_raw_parts(from, w), to);
                        }
                    }
                }
            }
        });
        Ok(Stage {
            data: to.get(),
            image: (rows * row * channels) as isize,
            channel: (rows * row) as isize,
            steps: [(frame.len[1] * row) as isize, row as isize],
            class,
            classes: frame.classes,
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
    inside: Vec<(usize, usize)>,
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

    fn copy<T: Element>(&self, from: &[T], to: &mut [T]) {
        for (c, (&(start, end), to)) in self.inside.iter().zip(to.chunks_exact_mut(self.class.max(1))).enumerate() {
            if start >= end {
                continue;
            }
            let first = (self.low + (c + self.classes * start) as isize) as usize;
            if self.classes == 1 {
                to[start..end].copy_from_slice(&from[first..first + end - start]);
            } else {
                for (to, &from) in to[start..end].iter_mut().zip(from[first..].iter().step_by(self.classes)) {
                    *to = from;
                }
            }
        }
    }
}
