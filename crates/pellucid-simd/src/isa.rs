//! Instruction sets: run-time detection, and the macro that compiles a function for each of them.

use crate::element::{Element, Float};
use crate::vector::{FloatVector, Lanes, Vector};
use std::sync::OnceLock;

/// A set of vector instructions for which kernels are compiled. Results have the same bits with all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// The instructions that the compilation target guarantees: SSE2 on x86-64, NEON on AArch64.
    Portable,
    /// 256-bit vectors: AVX2 and FMA.
    Avx2,
    /// 512-bit vectors: AVX-512 F, VL, BW and DQ.
    Avx512,
}

impl Isa {
    /// Returns the best instruction set of this processor.
    #[inline]
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| *Isa::available().last().unwrap_or(&Isa::Portable))
    }

    /// Returns all instruction sets of this processor, in ascending order.
    pub fn available() -> &'static [Isa] {
        #[cfg(target_arch = "x86_64")]
        {
            use Isa::*;
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq");
            match (avx2, avx512) {
                (true, true) => &[Portable, Avx2, Avx512],
                (true, false) => &[Portable, Avx2],
                _ => &[Portable],
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Isa::Portable]
    }
}

/// An instruction set as a type, which selects the vector type of an element type.
pub trait InstructionSet {
    /// The vector of an element type.
    type Vector<T: Element>: Vector<Scalar = T>;
    /// The same vector, for float types.
    type FloatVector<T: Float>: FloatVector<Scalar = T>;
}

/// [`Isa::Portable`] as a type.
#[derive(Clone, Copy, Debug)]
pub enum Portable {}

/// [`Isa::Avx2`] as a type.
#[derive(Clone, Copy, Debug)]
pub enum Avx2 {}

/// [`Isa::Avx512`] as a type.
#[derive(Clone, Copy, Debug)]
pub enum Avx512 {}

impl InstructionSet for Portable {
    type Vector<T: Element> = Lanes<T>;
    type FloatVector<T: Float> = Lanes<T>;
}

impl InstructionSet for Avx2 {
    type Vector<T: Element> = T::Vector256;
    type FloatVector<T: Float> = T::Vector256;
}

impl InstructionSet for Avx512 {
    type Vector<T: Element> = T::Vector512;
    type FloatVector<T: Float> = T::Vector512;
}

/// Compiles a function for every [`Isa`]: the only mechanism that does so.
///
/// `fn name [T: Bound] [T] (args) { body }` becomes `const fn name<T: Bound>(isa) -> unsafe fn(args)`. The body is
/// inlined into a function with the `#[target_feature]`s of the instruction set, and the compiler vectorises it with
/// them. All functions that the body calls must be `#[inline(always)]`. With `<S>` before the arguments, the body can
/// name the instruction set as a type `S:` [`InstructionSet`].
///
/// The pointer may be called only on a processor that has the instruction set. In a `const` block only the variants that
/// it names are compiled.
#[macro_export]
macro_rules! per_isa {
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident [$($param:tt)*] [$($use:tt)*] <$S:ident>
        ($($arg:ident: $t:ty),* $(,)?) $(-> $r:ty)? $body:block
    ) => {
        $(#[$doc])*
        $vis const fn $name<$($param)*>(isa: $crate::Isa) -> unsafe fn($($t),*) $(-> $r)? {
            #[inline(always)]
            unsafe fn body<$S: $crate::InstructionSet, $($param)*>($($arg: $t),*) $(-> $r)? $body

            unsafe fn portable<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the function.
                unsafe { body::<$crate::Portable, $($use)*>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the function; the instruction set is enabled here.
                unsafe { body::<$crate::Avx2, $($use)*>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            unsafe fn avx512<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the function; the instruction set is enabled here.
                unsafe { body::<$crate::Avx512, $($use)*>($($arg),*) }
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 => avx512::<$($use)*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => avx2::<$($use)*>,
                _ => portable::<$($use)*>,
            }
        }
    };
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident [$($param:tt)*] [$($use:tt)*]
        ($($arg:ident: $t:ty),* $(,)?) $(-> $r:ty)? $body:block
    ) => {
        $(#[$doc])*
        $vis const fn $name<$($param)*>(isa: $crate::Isa) -> unsafe fn($($t),*) $(-> $r)? {
            #[inline(always)]
            unsafe fn portable<$($param)*>($($arg: $t),*) $(-> $r)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the function.
                unsafe { portable::<$($use)*>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            unsafe fn avx512<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the function.
                unsafe { portable::<$($use)*>($($arg),*) }
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 => avx512::<$($use)*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => avx2::<$($use)*>,
                _ => portable::<$($use)*>,
            }
        }
    };
}

/// A computation that is written once, over the float vectors of any instruction set.
pub trait VectorWork<T: Float> {
    /// Runs the computation with vectors of type `V`.
    ///
    /// # Safety
    /// The contract of the work holds, and the instruction set of `V` is enabled.
    unsafe fn run<V: FloatVector<Scalar = T>>(&self);
}

per_isa! {
    /// Returns the function that runs a work with the vectors of an instruction set.
    ///
    /// # Safety of the function
    /// The contract of the work holds, and the processor has the instruction set.
    pub fn vector_work [T: Float, W: VectorWork<T>] [T, W] <S> (work: &W) {
        // SAFETY: the caller keeps the contract of the work; the instruction set of the vectors is enabled here.
        unsafe { work.run::<S::FloatVector<T>>() }
    }
}
