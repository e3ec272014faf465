//! Work that is written once, over [`FloatVector`], and compiled for each instruction set.

#[cfg(target_arch = "x86_64")]
use super::{F32x8, F32x16, F64x4, F64x8};
use super::{FloatVector, Lanes};
use crate::math::Real;
use crate::matmul::{Element, Level};

/// A number for which there are vectors.
pub(crate) trait Number: Element + Real {
    /// The number nearest to `x`.
    fn of(x: f64) -> Self;

    /// Does some work with the vectors of an instruction set.
    ///
    /// # Safety
    /// That of the work; the machine has the instruction set.
    unsafe fn run(level: Level, work: &impl Work<Self>);
}

/// Something that is done with vectors.
pub(crate) trait Work<T> {
    /// # Safety
    /// The arrays have the rows and the widths that their fields speak of, nobody else writes them, and the instruction set of V
    /// is on.
    unsafe fn run<V: FloatVector<Scalar = T>>(&self);
}

macro_rules! number {
    ($t:ty, $wide:ident, $half:ident) => {
        impl Number for $t {
            fn of(x: f64) -> $t {
                x as $t
            }

            unsafe fn run(level: Level, work: &impl Work<$t>) {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx2,fma")]
                unsafe fn avx512<W: Work<$t>>(work: &W) {
                    // SAFETY: the instruction set is on here; the rest is the caller's.
                    unsafe { work.run::<$wide>() }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2<W: Work<$t>>(work: &W) {
                    // SAFETY: as above.
                    unsafe { work.run::<$half>() }
                }
                // SAFETY: the caller's.
                unsafe {
                    match level {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 => avx512(work),
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx2 => avx2(work),
                        _ => work.run::<Lanes<$t>>(),
                    }
                }
            }
        }
    };
}
number!(f32, F32x16, F32x8);
number!(f64, F64x8, F64x4);

/// The numbers of vectors, in order.
///
/// # Safety
/// Vectors are their numbers, one after the other.
#[inline(always)]
pub(crate) unsafe fn lanes<V: FloatVector, const R: usize>(v: &mut [V; R]) -> &mut [V::Scalar] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), R * V::LANES) }
}
