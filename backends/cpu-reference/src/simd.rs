//! One loop, compiled for several vector widths and chosen when it runs.
//!
//! The loops of this backend are written once, in plain Rust that the compiler vectorises. [`multiversion!`] compiles
//! such a loop for the vector extensions below and picks the widest that the processor has. Every version must give the
//! same bits: the loop may fuse a multiplication and an addition only where the product is exact, and it asks
//! [`mul_add`] to do so.

use std::sync::OnceLock;

/// Vector extensions, from the narrowest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// What the target always has.
    Plain,
    /// AVX2 with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// All levels that this processor has, from the narrowest.
    pub(crate) fn available() -> &'static [Level] {
        static AVAILABLE: OnceLock<Vec<Level>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            #[allow(unused_mut)]
            let mut levels = vec![Level::Plain];
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    levels.push(Level::Avx2);
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                    {
                        levels.push(Level::Avx512);
                    }
                }
            }
            levels
        })
    }

    /// The widest level.
    pub(crate) fn best() -> Level {
        *Level::available().last().expect("the plain level is always there")
    }
}

/// `a * b + c` where `a * b` is exact, so that one rounding and two give the same bits. `FUSED` says that the
/// processor has the instruction; without it the fused form is a slow library call.
#[inline(always)]
pub(crate) fn mul_add<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Defines `$name(args)`, which runs `$body::<FUSED>(args)` at the widest level, and `$at(level, args)`, which runs it
/// at a given one. `$body` is `#[inline(always)]`.
macro_rules! multiversion {
    ($(#[$doc:meta])* fn $name:ident / $at:ident ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name($($arg: $ty),*) $(-> $ret)? {
            $at($crate::simd::Level::best(), $($arg),*)
        }

        /// As the function before it, at one of [`Level::available`](crate::simd::Level::available).
        #[allow(unsafe_code)]
        pub(crate) fn $at(level: $crate::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<true>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<true>($($arg),*)
            }
            debug_assert!($crate::simd::Level::available().contains(&level));
            match level {
                $crate::simd::Level::Plain => $body::<false>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `level` is one of the available levels, so the processor has the features.
                $crate::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::simd::Level::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use multiversion;
