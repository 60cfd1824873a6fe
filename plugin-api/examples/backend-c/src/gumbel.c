/* Gumbel noise in integers: a counter-based generator, then two logarithms in fixed point. Nothing is rounded before the
 * last step, which rounds to F32. The definition, with vectors, is plugin-api/numerics/SAMPLING.md. */
#include "gumbel.h"

#if defined(__GNUC__)
__extension__ typedef unsigned __int128 Wide;
__extension__ typedef __int128 SignedWide;
#else
#error "128-bit integers are needed; this file spells them as GCC and Clang do"
#endif

/* 2^64 ln(2). */
#define LN2 0xb17217f7d1cf79acu

/* 2^64 ln(2^15 / c), to nearest, for c = 2^22 / (128 + i) rounded up. */
static const uint64_t table_ln[128] = {
    0x0000000000000000u, 0x01fdfaa6b126788fu, 0x03f7d51627807b25u, 0x05ed6ec2508c1368u,
    0x07dea6c59e0a156du, 0x09cd6fdeab24a67cu, 0x0bb9b47b358e7559u, 0x0da142b89080def2u,
    0x0f83f860aab0d9b1u, 0x1163d6ef957a0314u, 0x1340c796ac516a38u, 0x151ab33f13e03c65u,
    0x16ef528c056a2b9du, 0x18c2e9d642231d00u, 0x1a90fd3b535465ebu, 0x1c5de08f760f3b25u,
    0x1e2507702af03b43u, 0x1fead5335cf0fd7bu, 0x21acf4fbb139e7a6u, 0x236d99aaa3d71e86u,
    0x252a65f047ea4543u, 0x26e340407f3ec8c8u, 0x28980edc311647c6u, 0x2a4d6fc753f06b50u,
    0x2bfc40e3912474c1u, 0x2dab87ce60c4273eu, 0x2f56720453b1fd62u, 0x30fce4cd0a15c067u,
    0x32a3a53a792d0292u, 0x3445c84131e92c24u, 0x35e5aa9ed29d969cu, 0x37833ce9ff97b03cu,
    0x391e6f905533235au, 0x3ab732d72ff6bc5du, 0x3c4d76dc8305b9f7u, 0x3de12b97bd326c14u,
    0x3f6fb0dddc771fcfu, 0x40fe1255fd43b4f8u, 0x428c4b89d8638b98u, 0x44151fe749aaee08u,
    0x459b12b18093c0ecu, 0x4720b7070c2e5d2au, 0x48a35ff09d0412d8u, 0x4a22fc5268ddd151u,
    0x4ba22aec7673e49cu, 0x4d1e326b2efca65bu, 0x4e970158099429e8u, 0x500f421b3a9e6ef5u,
    0x51842f0a71785f4eu, 0x52f87a5661ea2a08u, 0x5469561da9dfd653u, 0x55d97c5d2769acd2u,
    0x574616fdc226f018u, 0x58b1e7cae9a65481u, 0x5a1a107afcd254b7u, 0x5b815aa910875506u,
    0x5ce4dfde0f3ae528u, 0x5e4a557f7d1e889bu, 0x5fa908f215d76336u, 0x61099f69d94ad973u,
    0x62663e1e4d83cf07u, 0x63c1c62080cc8891u, 0x651c3072c658b819u, 0x66757604c181f204u,
    0x67ca8fb4fe5e8524u, 0x691e6e46e9ae7273u, 0x6a710a6def3ae6f9u, 0x6bc25ccbb7fdb73bu,
    0x6d125df0523c6a34u, 0x6e61065a5ccbe970u, 0x6fab36789c6b4537u, 0x70f7129f41fd3393u,
    0x723e5f1f8a6766b2u, 0x73842c31604a121eu, 0x74cb99f815af5107u, 0x760e5496fadc45c7u,
    0x774f78156b8f05c7u, 0x788efc6ee02e451fu, 0x79d01187d23dd1fau, 0x7b0c434b64b7bb5bu,
    0x7c49fd7ec41bb178u, 0x7d82bbeb6c68a82cu, 0x7ebcfa3df8ec75aeu, 0x7ff22424b294ab1au,
    0x8128c52ed305fa1du, 0x825d8cee51b595b6u, 0x839072e206f8e274u, 0x84c16e7cd1ee2a00u,
    0x85f077260b49e9a2u, 0x8720e82f85eb7a3du, 0x884f5cf17264b69au, 0x897860b1a73b3f92u,
    0x8aa2be9d58a27cedu, 0x8bce79df2354cfd6u, 0x8cf4a5a686c5da93u, 0x8e1c24fcd567c232u,
    0x8f417af4a20561f1u, 0x90649e8f2f777791u, 0x91890ebe121a0b4du, 0x92a7b679c2d3dee6u,
    0x93c7a099c9fcb9dfu, 0x94e8cff686040ff3u, 0x9604176f52894042u, 0x972099bbb829f957u,
    0x983e599a8a85ec7eu, 0x995611cbc50621a4u, 0x9a6efcef812aa3adu, 0x9b8571afa979bc61u,
    0x9c9d169c91ce60acu, 0x9db23a51d0fec667u, 0x9ec4d358d2ac63e7u, 0x9fd8942925961dd1u,
    0xa0e9bf45fb8e8487u, 0xa1fc0f183ef2f584u, 0xa30bbe1114f5ff13u, 0xa418c2910eccd714u,
    0xa526e2ede3f59ee7u, 0xa6324d7f8770ad8du, 0xa73af894e0eb7fa8u, 0xa84892600b8b5a5cu,
    0xa94f8934a02b24f7u, 0xaa578f3e0b6b6de8u, 0xab5cbeb25013371au, 0xac62f9b16e0f5dd3u,
    0xad6652687968b14du, 0xae6ab2e7773b5985u, 0xaf6c2550e11f5273u, 0xb06e9ba6b045ea38u,
};

/* 2^64 / k, rounded down. */
static const uint64_t inverse[9] = {0,
                                    0,
                                    0x8000000000000000u,
                                    0x5555555555555555u,
                                    0x4000000000000000u,
                                    0x3333333333333333u,
                                    0x2aaaaaaaaaaaaaaau,
                                    0x2492492492492492u,
                                    0x2000000000000000u};

static uint64_t upper_half(uint64_t a, uint64_t b) { return (uint64_t)((Wide)a * b >> 64); }

/* Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011). */
static void philox(uint32_t words[4], uint32_t key0, uint32_t key1) {
  int round;
  for (round = 0; round < 10; ++round) {
    uint64_t first = (uint64_t)words[0] * 0xD2511F53u, second = (uint64_t)words[2] * 0xCD9E8D57u;
    uint32_t next0 = (uint32_t)(second >> 32) ^ words[1] ^ key0, next2 = (uint32_t)(first >> 32) ^ words[3] ^ key1;
    words[0] = next0;
    words[1] = (uint32_t)second;
    words[2] = next2;
    words[3] = (uint32_t)first;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/* ln(x / 2^fraction_bits) with 64 fraction bits, for x > 0. */
static SignedWide fixed_ln(Wide x, int fraction_bits) {
  int exponent = 127;
  uint64_t mantissa, z, series, c;
  unsigned i, k;
  while (x >> 127 == 0) {
    x <<= 1;
    --exponent;
  }
  mantissa = (uint64_t)(x >> 64);
  /* The seven bits after the leading one choose c, just above the inverse of the mantissa. */
  i = (unsigned)(mantissa >> 56) & 127u;
  c = ((1u << 22) + 127u + i) / (128u + i);
  z = (uint64_t)((Wide)mantissa * c >> 14);
  series = inverse[8];
  for (k = 7; k >= 2; --k) series = inverse[k] - upper_half(z, series);
  return (SignedWide)(exponent - fraction_bits) * (SignedWide)LN2 +
         (SignedWide)(table_ln[i] + (z - upper_half(z, upper_half(z, series))));
}

static float noise_of(uint32_t lane) {
  SignedWide exponential = -fixed_ln(((uint64_t)1 << 33) - 1 - 2 * (uint64_t)lane, 33);
  /* The conversion rounds once; the product with a power of two is exact. */
  return (float)-fixed_ln((Wide)exponential, 64) * 0x1p-64f;
}

float gumbel_noise(uint64_t seed, uint32_t position, uint32_t token, uint32_t child) {
  uint32_t words[4];
  words[0] = position;
  words[1] = token / 4;
  words[2] = 0;
  words[3] = child;
  philox(words, (uint32_t)seed, (uint32_t)(seed >> 32));
  return noise_of(words[token % 4]);
}
