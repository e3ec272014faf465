//! Sequences of plane rotations of neighbouring rows, which the iterations for eigenvalues and singular values produce.

use crate::MatrixElement;
use crate::matrix::Matrix;
use pellucid_gemm::MatMut;
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The number of elements of each vector in a strip.
const STRIP: usize = 32;

/// The number of sweeps over all rows whose rotations are collected before they are applied.
const SWEEPS: usize = 32;

/// The vectors of a basis, and the plane rotations that are not yet applied to them.
///
/// The elements of the vectors are stored in strips: elements 32·s to 32·s + 31 of all vectors are adjacent. All
/// collected rotations are applied to a strip while it is in cache, and then to the next strip.
pub(crate) struct RotatedVectors<T> {
    count: usize,
    strips: Vec<[T; STRIP]>,
    /// The rotations (k, c, s) of vectors k and k + 1.
    rotations: Vec<(usize, T, T)>,
}

impl<T: MatrixElement> RotatedVectors<T> {
    /// Creates the vectors from the columns of a basis. Without a basis, rotations have no effect.
    pub(crate) fn new(basis: Option<&Matrix<T>>, count: usize) -> RotatedVectors<T> {
        let strips = basis.map_or(0, |basis| basis.rows().div_ceil(STRIP));
        let mut strips = vec![[T::zero(); STRIP]; strips * count];
        for i in 0..basis.map_or(0, Matrix::rows) {
            let row = basis.map_or(&[][..], |basis| basis.row(i));
            (0..count).for_each(|k| strips[i / STRIP * count + k][i % STRIP] = row[k]);
        }
        RotatedVectors { count, strips, rotations: Vec::new() }
    }

    /// Replaces vector k, x, by c·x + s·y, and vector k + 1, y, by c·y − s·x.
    #[inline(always)]
    pub(crate) fn rotate(&mut self, k: usize, c: T, s: T) {
        if !self.strips.is_empty() {
            self.rotations.push((k, c, s));
            if self.rotations.len() >= SWEEPS * self.count {
                self.apply_rotations();
            }
        }
    }

    fn apply_rotations(&mut self) {
        run_vectorized(ApplyRotations { vectors: self });
        self.rotations.clear();
    }

    /// Writes vector `order[k].0`, multiplied by `order[k].1`, to column k of a matrix, for all k.
    pub(crate) fn store(mut self, order: &[(usize, T)], mut to: MatMut<'_, T>) {
        self.apply_rotations();
        for i in 0..to.rows() {
            let strip = &self.strips[i / STRIP * self.count..][..self.count];
            for (k, &(from, sign)) in order.iter().enumerate() {
                to.set(i, k, sign * strip[from][i % STRIP]);
            }
        }
    }
}

/// The application of all collected rotations.
struct ApplyRotations<'a, T> {
    vectors: &'a mut RotatedVectors<T>,
}

impl<T: MatrixElement> AutoVectorized for ApplyRotations<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RotatedVectors { count, strips, rotations } = self.vectors;
        for strip in strips.chunks_exact_mut((*count).max(1)) {
            for &(k, c, s) in rotations.iter() {
                let [x, y] = &mut strip[k..k + 2] else { unreachable!("the slice contains two vectors") };
                for lane in 0..STRIP {
                    let (old_x, old_y) = (x[lane], y[lane]);
                    x[lane] = c * old_x + s * old_y;
                    y[lane] = c * old_y - s * old_x;
                }
            }
        }
    }
}
