//! Which instruction set to use, found once at run time, and the macro that compiles a loop for each.

use std::sync::OnceLock;

/// A set of vector instructions that every loop is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Level {
    /// What the target guarantees: SSE2 on x86-64, NEON on AArch64.
    Portable,
    /// 256 bits: AVX2 and FMA.
    Avx2,
    /// 512 bits: AVX-512 F, VL, BW and DQ.
    Avx512,
}

impl Level {
    /// The best level this processor has.
    pub(crate) fn detect() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| *Level::available().last().unwrap_or(&Level::Portable))
    }

    /// Every level this processor has, the plainest first.
    pub(crate) fn available() -> &'static [Level] {
        #[cfg(target_arch = "x86_64")]
        {
            use Level::*;
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
        &[Level::Portable]
    }
}

/// Compiles one generic loop once per [`Level`].
///
/// `fn name[T: Bound][T](args) { body }` becomes `fn name<T: Bound>(level) -> unsafe fn(args)`. The body
/// is inlined into a function with the level's `#[target_feature]`s, where the vectoriser then has
/// them; whatever the body calls must be `#[inline(always)]`. The pointer may be called only on a
/// processor that has the level.
macro_rules! per_level {
    ($(#[$doc:meta])* $vis:vis fn $name:ident [$($param:tt)*] [$($use:tt)*] ($($arg:ident: $t:ty),*) $(-> $r:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name<$($param)*>(level: $crate::simd::Level) -> unsafe fn($($t),*) $(-> $r)? {
            #[inline(always)]
            unsafe fn portable<$($param)*>($($arg: $t),*) $(-> $r)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the loop.
                unsafe { portable::<$($use)*>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            unsafe fn avx512<$($param)*>($($arg: $t),*) $(-> $r)? {
                // SAFETY: the caller keeps the contract of the loop.
                unsafe { portable::<$($use)*>($($arg),*) }
            }

            match level {
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx512 => avx512::<$($use)*>,
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx2 => avx2::<$($use)*>,
                _ => portable::<$($use)*>,
            }
        }
    };
}
