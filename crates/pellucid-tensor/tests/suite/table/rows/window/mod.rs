//! Windows over spatial axes, in files named after the files of `src/ops/nn/window`, and the helpers of their
//! references.

mod adaptive;
mod conv;
mod fold;
mod fractional;
mod grid;
mod pool;
mod resample;
mod shuffle;
mod unpool;

use crate::table::nd::{Nd, indices};
use crate::table::row::Row;
use pellucid_tensor::ops::FoldOptions;

pub(super) fn rows() -> Vec<Row> {
    let files: [fn() -> Vec<Row>; 9] = [
        adaptive::rows,
        conv::rows,
        fold::rows,
        fractional::rows,
        grid::rows,
        pool::rows,
        resample::rows,
        shuffle::rows,
        unpool::rows,
    ];
    files.iter().flat_map(|rows| rows()).collect()
}

/// The geometry of the windows along the spatial axes.
#[derive(Clone, Copy)]
struct WindowGeometry {
    size: &'static [usize],
    stride: &'static [usize],
    padding: &'static [usize],
    dilation: &'static [usize],
    ceil: bool,
}

impl WindowGeometry {
    /// Returns the same windows as options of `unfold` and `fold`.
    fn fold_options(&self) -> FoldOptions {
        FoldOptions {
            size: self.size.into(),
            dilation: self.dilation.into(),
            padding: self.padding.into(),
            stride: self.stride.into(),
        }
    }

    /// Returns the number of windows along axis `a` that end inside the padded axis. With `ceil`, one more window is
    /// included if elements remain and it starts before the padding at the end.
    fn outputs(&self, a: usize, len: usize) -> usize {
        let (stride, padding) = (self.stride[a], self.padding[a]);
        let reach = self.dilation[a] * (self.size[a] - 1) + 1;
        let padded = len + 2 * padding;
        let ends_inside = |o: usize| o * stride + reach <= padded;
        let left_over = |o: usize| o == 0 || (o - 1) * stride + reach < padded;
        let there = |o: &usize| if self.ceil { left_over(*o) && o * stride < len + padding } else { ends_inside(*o) };
        (0..).take_while(there).count()
    }

    /// Returns the shape of `[N, C, outputs..]` for x.
    fn shape(&self, x: &Nd) -> Vec<usize> {
        let outputs = (0..self.size.len()).map(|a| self.outputs(a, x.shape[2 + a]));
        x.shape[..2].iter().copied().chain(outputs).collect()
    }

    /// Returns the spatial index of every tap of the window at `o`, in row-major order; `None` in the padding.
    fn taps(&self, o: &[usize], dims: &[usize]) -> Vec<Option<Vec<usize>>> {
        let place = |tap: &Vec<usize>| {
            (0..dims.len())
                .map(|a| {
                    let place = o[a] * self.stride[a] + tap[a] * self.dilation[a];
                    place.checked_sub(self.padding[a]).filter(|&i| i < dims[a])
                })
                .collect()
        };
        indices(self.size).iter().map(place).collect()
    }

    /// Applies `f` to every window, given as the elements inside with their flat spatial positions.
    fn windows(&self, x: &Nd, f: impl Fn(&[usize], &[(usize, f64)]) -> f64) -> Nd {
        let dims = &x.shape[2..];
        Nd::from_fn(&self.shape(x), |ix| {
            let inside = self.taps(&ix[2..], dims).into_iter().flatten();
            let element = |place: Vec<usize>| {
                let flat = place.iter().zip(dims).fold(0, |flat, (&i, &len)| flat * len + i);
                (flat, x.at(&[&ix[..2], &place[..]].concat()))
            };
            f(&ix[2..], &inside.map(element).collect::<Vec<_>>())
        })
    }
}

/// Applies a function of batches to x, which may be one image without N.
fn batched(x: &Nd, spatial: usize, f: impl Fn(&Nd) -> Nd) -> Nd {
    if x.shape.len() == spatial + 2 {
        return f(x);
    }
    let y = f(&x.reshape(&[&[1], &x.shape[..]].concat()));
    y.reshape(&y.shape[1..])
}

/// Returns the first maximum and its position; NaN is larger than all numbers.
fn largest(elements: &[(usize, f64)]) -> (usize, f64) {
    let nan = elements.iter().find(|(_, v)| v.is_nan());
    let better = |best: (usize, f64), &next: &(usize, f64)| if next.1 > best.1 { next } else { best };
    nan.copied().unwrap_or_else(|| elements[1..].iter().fold(elements[0], better))
}
