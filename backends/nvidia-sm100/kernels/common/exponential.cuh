// Exponentials in F64 to 2^-29, a 32nd of the last place of an F32 result, for half the operations of the library's; and inverses
// with no more steps than are needed.
#pragma once

// 2^f for |f| <= 1/2, the polynomial of degree 6 with the smallest largest relative error, highest power first. An operand in constant
// memory costs nothing, one in the instruction two more instructions.
__constant__ double POWER_SERIES[7] = {0x1.41d37bce26015p-13, 0x1.5f456ac37bc57p-10, 0x1.3b2dbb553697ep-7, 0x1.c6aed4b9be43ap-5,
                                             0x1.ebfbdadd5278dp-3,  0x1.62e430c7e76cfp-1,  0x1.0000000260d45p+0};

// e^-(magnitude * SCALE), for 0 <= magnitude * SCALE <= 708; SCALE is a power of two.
__device__ inline double exp_minus(double magnitude, double scale = 1.0) {
  // 2^k * 2^f. The sum with 1.5 * 2^52 has k in its low bits.
  constexpr double MAGIC = 0x1.8p52;
  const double log2_e = 0x1.71547652b82fep+0 * scale, shifted = __fma_rn(-magnitude, log2_e, MAGIC);
  const double f = __fma_rn(-magnitude, log2_e, MAGIC - shifted);
  double series = POWER_SERIES[0];
#pragma unroll
  for (int i = 1; i < 7; ++i) series = __fma_rn(series, f, POWER_SERIES[i]);
  return __hiloint2double(__double2hiint(series) + (__double2loint(shifted) << 20), __double2loint(series));
}

// 1 / x of a normal x whose inverse is normal, to 2^-40: one step from an approximation to 2^-20.
__device__ inline double inverse_of(double x) {
  double inverse;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(x));
  return __fma_rn(__fma_rn(-x, inverse, 1.0), inverse, inverse);
}

// The same to the last places of F64.
__device__ inline double close_inverse_of(double x) {
  const double inverse = inverse_of(x);
  return __fma_rn(__fma_rn(-x, inverse, 1.0), inverse, inverse);
}

// 1 / sqrt(x) of a normal x, to the last places of F64: one step of third order from an approximation to 2^-20.
__device__ inline double inverse_root_of(double x) {
  double root;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(root) : "d"(x));
  const double error = __fma_rn(-(x * root), root, 1.0);
  return __fma_rn(root * error, __fma_rn(0.375, error, 0.5), root);
}
