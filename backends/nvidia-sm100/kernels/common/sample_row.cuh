// What fused_sample is told about a row, checked; and the order of scores and tokens.
#pragma once

#include "sampling.cuh"
#include "view.cuh"

constexpr uint32_t SAMPLE_OP = 27;
enum Argument : uint32_t { LOGITS, INV_TEMPERATURE, SEED, POSITION, TOKEN, CHILD, MIN_P_LOG, TOP_K, TOP_P };
enum Rule : uint32_t {
  POSITION_NEGATIVE, INV_TEMPERATURE_NEGATIVE, INV_TEMPERATURE_NOT_FINITE, CHILD_NEGATIVE, MIN_P_ABOVE, MIN_P_NAN, TOP_K_NEGATIVE,
  TOP_P_LOW, TOP_P_HIGH, TOP_P_NAN
};
constexpr float INFINITE = __builtin_huge_valf();

// Ordered as the floats are; both zeros are one.
__device__ inline uint32_t key_of(float v) {
  const uint32_t bits = v == 0 ? 0 : __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

// Larger is better: by value, then by lower id.
__device__ inline uint64_t rank_of(float value, uint32_t id) { return uint64_t(key_of(value)) << 32 | (0xFFFFFFFFu - id); }

// The largest value of a block of T threads, in all of them; `scratch` has T / 32 places.
template <int T, class V> __device__ inline V block_max(V value, V *scratch) {
  for (int width = 16; width > 0; width /= 2) {
    const V other = __shfl_xor_sync(0xFFFFFFFFu, value, width);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[threadIdx.x % (T / 32)];
  for (int width = 16; width > 0; width /= 2) {
    const V other = __shfl_xor_sync(0xFFFFFFFFu, value, width);
    value = other > value ? other : value;
  }
  __syncthreads();
  return value;
}

// The arguments of the op.
struct SampleViews {
  View logits, inv_temperature, seed, position, token, child, min_p_log, top_k, top_p;
};

// Those of a row.
struct Draw {
  uint64_t seed;
  uint32_t position, child;
  float scale, min_p_log, top_p;
  int32_t top_k;

  __device__ bool has_filters() const { return top_k > 0 || top_p < 1 || min_p_log > -INFINITE; }

  // The random integers of tokens 4 * block to 4 * block + 3.
  __device__ Lanes lanes(uint32_t block) const { return philox(seed, position, block, child); }
};

__device__ inline uint32_t word_of(const Lanes &lanes, int i) {
  return i == 0 ? lanes.word[0] : i == 1 ? lanes.word[1] : i == 2 ? lanes.word[2] : lanes.word[3];
}

// The arguments of row n as they are.
__device__ inline Draw load_draw(const SampleViews &a, int64_t n) {
  const auto float_of = [&](const View &x, float absent) { return x.is_absent() ? absent : *x.at<float>(n * x.stride[3]); };
  const auto int_of = [&](const View &x) { return x.is_absent() ? 0 : *x.at<int32_t>(n * x.stride[3]); };
  return {*a.seed.at<uint64_t>(n * a.seed.stride[3]), uint32_t(int_of(a.position)), uint32_t(int_of(a.child)),
          float_of(a.inv_temperature, 0), float_of(a.min_p_log, -INFINITE), float_of(a.top_p, 1), int_of(a.top_k)};
}

// Whether a row may be drawn; otherwise says what is wrong.
__device__ inline bool is_draw_right(const Draw &d, uint32_t *fault) {
  uint32_t argument = 0, rule = 0;
  bool wrong = false;
  const auto check = [&](bool is_right, uint32_t about, uint32_t r) {
    if (!is_right && !wrong) argument = about, rule = r, wrong = true;
  };
  check(int32_t(d.position) >= 0, POSITION, POSITION_NEGATIVE);
  check(d.scale == d.scale && d.scale < INFINITE, INV_TEMPERATURE, INV_TEMPERATURE_NOT_FINITE);
  check(d.scale >= 0, INV_TEMPERATURE, INV_TEMPERATURE_NEGATIVE);
  check(int32_t(d.child) >= 0, CHILD, CHILD_NEGATIVE);
  check(d.min_p_log == d.min_p_log, MIN_P_LOG, MIN_P_NAN);
  check(d.min_p_log <= 0, MIN_P_LOG, MIN_P_ABOVE);
  check(d.top_k >= 0, TOP_K, TOP_K_NEGATIVE);
  check(d.top_p == d.top_p, TOP_P, TOP_P_NAN);
  check(d.top_p > 0, TOP_P, TOP_P_LOW);
  check(d.top_p <= 1, TOP_P, TOP_P_HIGH);
  if (wrong) refuse(fault, SAMPLE_OP, argument, rule);
  return !wrong;
}
