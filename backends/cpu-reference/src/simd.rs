//! One loop, compiled for several vector widths and chosen when it runs.
//!
//! The hot loops of this backend are written once, over a type `V` of eight F64 [`Lanes`]. [`multiversion!`] compiles such a
//! loop for the vector extensions below and picks the widest that the processor has. Every version gives the same bits:
//! the lanes do IEEE arithmetic, and a multiplication is fused with an addition only where the product is exact, so that
//! one rounding and two are the same.

#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Vector extensions, from the narrowest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

/// Eight F64 values. The types beside [`Plain`] are used only in functions that [`multiversion!`] compiled for their
/// level, and that it calls only when the processor has it.
pub(crate) trait Lanes: Copy {
    /// Eight times `x`.
    fn splat(x: f64) -> Self;
    /// Eight F32 values.
    fn widen(x: &[f32; LANES]) -> Self;
    /// Lane by lane, rounded.
    fn add(self, other: Self) -> Self;
    /// Lane by lane, rounded.
    fn mul(self, other: Self) -> Self;
    /// `self * b + c`, where `self * b` must be exact.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// The sum of the lanes: `((0+4) + (2+6)) + ((1+5) + (3+7))`.
    fn join(self) -> f64;
    /// The values.
    fn to_array(self) -> [f64; LANES];
}

/// Lanes without an extension.
#[derive(Clone, Copy)]
pub(crate) struct Plain(pub(crate) [f64; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    fn widen(x: &[f32; LANES]) -> Self {
        Self(x.map(f64::from))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        self.mul(b).add(c)
    }

    #[inline(always)]
    fn join(self) -> f64 {
        let l = self.0;
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }

    #[inline(always)]
    fn to_array(self) -> [f64; LANES] {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};

    /// [`Lanes::join`] of lanes 0 to 3 and 4 to 7: half onto half until one is left.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn join(low: __m256d, high: __m256d) -> f64 {
        // SAFETY: the caller's contract.
        unsafe {
            let four = _mm256_add_pd(low, high);
            let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
            _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
        }
    }

    /// Lanes in two AVX registers.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256d, __m256d);

    // SAFETY of every block below: the processor has AVX2 and FMA, see `Lanes`; loads stay within the array.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(x: f64) -> Self {
            unsafe { Self(_mm256_set1_pd(x), _mm256_set1_pd(x)) }
        }

        #[inline(always)]
        fn widen(x: &[f32; LANES]) -> Self {
            unsafe { Self(_mm256_cvtps_pd(_mm_loadu_ps(x.as_ptr())), _mm256_cvtps_pd(_mm_loadu_ps(x[4..].as_ptr()))) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            unsafe { Self(_mm256_add_pd(self.0, other.0), _mm256_add_pd(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            unsafe { Self(_mm256_mul_pd(self.0, other.0), _mm256_mul_pd(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm256_fmadd_pd(self.0, b.0, c.0), _mm256_fmadd_pd(self.1, b.1, c.1)) }
        }

        #[inline(always)]
        fn join(self) -> f64 {
            unsafe { join(self.0, self.1) }
        }

        #[inline(always)]
        fn to_array(self) -> [f64; LANES] {
            let mut out = [0.0; LANES];
            unsafe {
                _mm256_storeu_pd(out.as_mut_ptr(), self.0);
                _mm256_storeu_pd(out[4..].as_mut_ptr(), self.1);
            }
            out
        }
    }

    /// Lanes in one AVX-512 register.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512d);

    // SAFETY of every block below: the processor has AVX-512 F, see `Lanes`; loads stay within the array.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Lanes for Avx512 {
        #[inline(always)]
        fn splat(x: f64) -> Self {
            unsafe { Self(_mm512_set1_pd(x)) }
        }

        #[inline(always)]
        fn widen(x: &[f32; LANES]) -> Self {
            unsafe { Self(_mm512_cvtps_pd(_mm256_loadu_ps(x.as_ptr()))) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            unsafe { Self(_mm512_add_pd(self.0, other.0)) }
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            unsafe { Self(_mm512_mul_pd(self.0, other.0)) }
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm512_fmadd_pd(self.0, b.0, c.0)) }
        }

        #[inline(always)]
        fn join(self) -> f64 {
            unsafe { join(_mm512_castpd512_pd256(self.0), _mm512_extractf64x4_pd::<1>(self.0)) }
        }

        #[inline(always)]
        fn to_array(self) -> [f64; LANES] {
            let mut out = [0.0; LANES];
            unsafe { _mm512_storeu_pd(out.as_mut_ptr(), self.0) };
            out
        }
    }
}

/// Defines `$name(args)`, which runs `$body::<V>(args)` at the widest level, and `$at(level, args)`, which runs it at a
/// given one. `$body` is `#[inline(always)]` and generic over [`Lanes`].
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
                $body::<$crate::simd::Avx2>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::simd::Avx512>($($arg),*)
            }
            assert!(level <= $crate::simd::Level::best());
            match level {
                $crate::simd::Level::Plain => $body::<$crate::simd::Plain>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `level` is at most the best one, so the processor has the features.
                $crate::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::simd::Level::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use multiversion;
