//! Instruction sets: run-time detection, and the macro that compiles a function for each of them.

use crate::tiles;
use crate::vector::{Element, Float, FloatVector, Lanes, PORTABLE_LANES, Vector};
use std::sync::OnceLock;

/// A set of vector instructions for which kernels are compiled.
///
/// The variants are ordered: each includes the instructions of the previous ones. A kernel computes bit-identical
/// results with all of them, except for products of [pairs of `bf16`](crate::vector::BF16Pair) with [`Isa::Amx`] or
/// with subnormal factors or sums.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// The instructions that the compilation target guarantees: SSE2 on x86-64, NEON on AArch64.
    Portable,
    /// 256-bit vectors: AVX2 and FMA.
    Avx2,
    /// 512-bit vectors: AVX-512 F, VL, BW and DQ.
    Avx512,
    /// 512-bit vectors, AVX512-BF16, and the [tile registers](crate::tiles) of AMX-BF16 and AMX-INT8. Only products of
    /// pairs of `bf16` and of quads of `i8` use the tile registers.
    Amx,
}

impl Isa {
    /// Returns the widest instruction set that this processor supports, except [`Isa::Amx`], which
    /// [`has_amx`](Self::has_amx) detects. Detection runs once per process.
    #[inline]
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| *Isa::available().last().unwrap_or(&Isa::Portable))
    }

    /// Returns all instruction sets that this processor supports, except [`Isa::Amx`], in ascending order.
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

    /// Returns true if this processor has an instruction that multiplies [pairs of `bf16`](crate::vector::BF16Pair) in
    /// the vectors of this instruction set: AVX512-BF16.
    #[inline]
    pub fn has_bf16_products(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            self >= Isa::Avx512 && is_x86_feature_detected!("avx512bf16")
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns true if the vectors of this instruction set multiply [quads of `i8`](crate::vector::I8Quad). With
    /// AVX-512, this requires AVX512-VNNI; the portable vectors have no such instructions.
    #[inline]
    pub fn has_i8_products(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            self == Isa::Avx2 || self >= Isa::Avx512 && is_x86_feature_detected!("avx512vnni")
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns true if this process can use [`Isa::Amx`]. Detection runs once per process. It requests permission from
    /// the operating system, and compares a small product with its emulation.
    #[inline]
    pub fn has_amx() -> bool {
        static HAS_AMX: OnceLock<bool> = OnceLock::new();
        *HAS_AMX.get_or_init(|| Isa::best().has_bf16_products() && tiles::are_usable())
    }
}

/// An instruction set as a type, which selects the vector type for an element type.
pub trait InstructionSet {
    /// The vector type for an element type.
    type Vector<T: Element>: Vector<Scalar = T>;
    /// The vector type for a float type. It is the same type as [`Vector`](Self::Vector).
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
    type Vector<T: Element> = Lanes<T, PORTABLE_LANES>;
    type FloatVector<T: Float> = Lanes<T, PORTABLE_LANES>;
}

impl InstructionSet for Avx2 {
    type Vector<T: Element> = T::Vector256;
    type FloatVector<T: Float> = T::Vector256;
}

impl InstructionSet for Avx512 {
    type Vector<T: Element> = T::Vector512;
    type FloatVector<T: Float> = T::Vector512;
}

/// Compiles a function for every [`Isa`]. No other mechanism of the backend does this.
///
/// `fn name [T: Bound] [T] (args) { body }` expands to `const fn name<T: Bound>(isa) -> unsafe fn(args)`. The macro
/// inlines the body into one function per instruction set, which has the matching `#[target_feature]` attribute, so
/// that the compiler vectorizes the body with these instructions. All functions that the body calls must be
/// `#[inline(always)]`. With `<S>` before the arguments, the body can name the instruction set as a type `S:`
/// [`InstructionSet`].
///
/// With `<S> + "feature"`, the function for [`Isa::Avx512`] and [`Isa::Amx`] also enables this feature of x86-64.
///
/// If the function is called in a `const` block with a constant instruction set, the compiler generates code only for
/// this instruction set.
///
/// # Safety of the returned function pointer
/// - *Instruction set*: the processor supports the `isa` that selected the pointer and, from [`Isa::Avx512`] on, the
///   named feature, if any.
/// - *Body*: the caller upholds the contract that the function's documentation states for its body.
#[macro_export]
macro_rules! per_isa {
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident [$($param:tt)*] [$($generic:tt)*] <$S:ident> $(+ $feature:literal)?
        ($($arg:ident: $t:ty),* $(,)?) $(-> $r:ty)? $body:block
    ) => {
        $crate::per_isa! {
            @variants ($(#[$doc])* $vis) $name [$($param)*] [$($generic)*] ($($arg: $t),*) ($(-> $r)?) $body
            [$($feature)?] [$S: $crate::InstructionSet, $($param)*]
            [$crate::Portable, $($generic)*] [$crate::Avx2, $($generic)*] [$crate::Avx512, $($generic)*]
        }
    };
    (
        $(#[$doc:meta])* $vis:vis fn $name:ident [$($param:tt)*] [$($generic:tt)*]
        ($($arg:ident: $t:ty),* $(,)?) $(-> $r:ty)? $body:block
    ) => {
        $crate::per_isa! {
            @variants ($(#[$doc])* $vis) $name [$($param)*] [$($generic)*] ($($arg: $t),*) ($(-> $r)?) $body
            [] [$($param)*] [$($generic)*] [$($generic)*] [$($generic)*]
        }
    };
    // The last five lists are the additional feature of AVX-512, the generic parameters of the body, and its arguments
    // for each instruction set.
    (
        @variants ($($head:tt)*) $name:ident [$($param:tt)*] [$($generic:tt)*] ($($arg:ident: $t:ty),*) ($($r:tt)*)
        $body:block [$($feature:literal)?] [$($body_param:tt)*] [$($portable:tt)*] [$($avx2:tt)*] [$($avx512:tt)*]
    ) => {
        $($head)* const fn $name<$($param)*>(isa: $crate::Isa) -> unsafe fn($($t),*) $($r)* {
            /// # Safety
            /// The clause *body* of the returned function pointer holds, and the caller enables the instruction set of
            /// its vectors.
            #[inline(always)]
            unsafe fn kernel_body<$($body_param)*>($($arg: $t),*) $($r)* $body

            /// # Safety
            /// The clause *body* of the returned function pointer holds.
            unsafe fn portable<$($param)*>($($arg: $t),*) $($r)* {
                // SAFETY: the caller guarantees *body*; portable vectors need no enabled instruction set.
                unsafe { kernel_body::<$($portable)*>($($arg),*) }
            }

            /// # Safety
            /// The clauses *instruction set* and *body* of the returned function pointer hold.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<$($param)*>($($arg: $t),*) $($r)* {
                // SAFETY: the caller guarantees *body*; this function enables the instruction set of `Avx2`.
                unsafe { kernel_body::<$($avx2)*>($($arg),*) }
            }

            /// # Safety
            /// The clauses *instruction set* and *body* of the returned function pointer hold.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            $(#[target_feature(enable = $feature)])?
            unsafe fn avx512<$($param)*>($($arg: $t),*) $($r)* {
                // SAFETY: the caller guarantees *body*; this function enables the instruction set of `Avx512`.
                unsafe { kernel_body::<$($avx512)*>($($arg),*) }
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Amx => avx512::<$($generic)*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => avx2::<$($generic)*>,
                _ => portable::<$($generic)*>,
            }
        }
    };
}

/// Calls a function that [`per_isa!`] defines, for the narrower of the instruction set `$isa` and the constant
/// `$widest`.
///
/// Variants for instruction sets above `$widest` are not compiled. This macro is meant for kernels that rarely run, and
/// for kernels that are bound by memory or latency, so that wider vectors do not make them faster.
#[macro_export]
macro_rules! up_to {
    ($widest:expr, $isa:expr, $($function:tt)+) => {
        if const { matches!($widest, $crate::Isa::Avx512) } {
            $($function)+($isa)
        } else if const { matches!($widest, $crate::Isa::Portable) } {
            const { $($function)+($crate::Isa::Portable) }
        } else {
            match $isa {
                $crate::Isa::Portable => const { $($function)+($crate::Isa::Portable) },
                $crate::Isa::Avx2 | $crate::Isa::Avx512 | $crate::Isa::Amx => {
                    const { $($function)+($crate::Isa::Avx2) }
                }
            }
        }
    };
}

/// A computation that is written once, generic over the float vector type of the instruction set.
pub trait VectorWork<T: Float> {
    /// Runs the computation with vectors of type `V`.
    ///
    /// # Safety
    /// - *Work*: the contract that the implementation states for its computation holds.
    /// - *Instruction set*: the calling function has the instruction set of `V` enabled and inlines this call.
    unsafe fn run<V: FloatVector<Scalar = T>>(&self);
}

per_isa! {
    /// Returns the function that runs a [`VectorWork`] with the vectors of an instruction set.
    ///
    /// # Safety of the returned function pointer
    /// - *Instruction set*: the processor supports `isa`.
    /// - *Work*: the contract that the implementation of [`VectorWork::run`] states holds.
    pub fn vector_work [T: Float, W: VectorWork<T>] [T, W] <S> (work: &W) {
        // SAFETY: *work* is a clause of this function pointer; the function around this body enables the
        // *instruction set* of `S`.
        unsafe { work.run::<S::FloatVector<T>>() }
    }
}

/// A computation in safe code that the compiler vectorizes for each instruction set.
///
/// The results are bit-identical on all instruction sets, because the compiler does not reorder or fuse floating-point
/// operations.
pub trait AutoVectorized {
    /// The result of the computation.
    type Output;

    /// Runs the computation. Implementations must be `#[inline(always)]`, and so must all functions that they call.
    fn run(self) -> Self::Output;
}

/// Runs a computation, compiled for the widest instruction set of this processor.
pub fn run_vectorized<W: AutoVectorized>(work: W) -> W::Output {
    // SAFETY: the processor supports `Isa::best()`, and the body has no contract.
    unsafe { auto_vectorized::<W>(Isa::best())(work) }
}

per_isa! {
    /// Returns the function that runs an [`AutoVectorized`] computation for an instruction set.
    fn auto_vectorized [W: AutoVectorized] [W] (work: W) -> W::Output {
        work.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of products whose bits a fused multiply-add or another order would change.
    struct SumsOfProducts<'a>(&'a [f32], &'a [f32]);

    impl AutoVectorized for SumsOfProducts<'_> {
        type Output = (f32, Vec<f32>);

        #[inline(always)]
        fn run(self) -> (f32, Vec<f32>) {
            let products = self.0.iter().zip(self.1);
            (products.clone().map(|(x, y)| x * y).sum(), products.map(|(x, y)| x * y + x / y).collect())
        }
    }

    #[test]
    fn safe_code_has_equal_bits_on_all_instruction_sets() {
        let x: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 * 0.31 - 13.7).collect();
        let y: Vec<f32> = (0..1000).map(|i| (i * 53 % 97) as f32 * 0.17 + 0.1).collect();
        let expected = SumsOfProducts(&x, &y).run();
        assert_eq!(run_vectorized(SumsOfProducts(&x, &y)), expected);
        for &isa in Isa::available() {
            // SAFETY: the processor supports the instruction set, and the body has no contract.
            let result = unsafe { auto_vectorized::<SumsOfProducts<'_>>(isa)(SumsOfProducts(&x, &y)) };
            assert_eq!(result, expected, "{isa:?}");
        }
    }
}
