// Biases, then penalties for tokens that have occurred, in place.
//
// Bytes: the lists of a row, and the logits that they name. A block takes a row; the tokens of a list differ, so that its
// entries may be taken in any order, and a thread has several on their way.
#include "common/view.cuh"

constexpr int THREADS = 512, AHEAD = 4;
constexpr uint32_t OP = 28;
// Places in the catalogue.
enum Argument : uint32_t { LOGITS, BIAS_RANGE, BIAS_TOKEN, BIAS_VALUE, REPETITION, INV_REPETITION, FREQUENCY, PRESENCE, SEEN_RANGE, SEEN_TOKEN, SEEN_COUNT };
enum Rule : uint32_t {
  BIAS_BEGIN_NEGATIVE, BIAS_END_ABOVE, SEEN_RANGE_WRONG, BIAS_TOKEN_RANGE, SEEN_TOKEN_RANGE, BIAS_TOKEN_ORDER,
  SEEN_TOKEN_ORDER, SEEN_COUNT_NEGATIVE, BIAS_VALUE_WRONG, REPETITION_WRONG, INV_REPETITION_WRONG, FREQUENCY_WRONG, PRESENCE_WRONG
};

__device__ inline bool is_finite(float v) { return (__float_as_uint(v) & 0x7FFFFFFFu) < 0x7F800000u; }
__device__ inline bool is_factor(float v) { return v > 0 && is_finite(v); }

struct List {
  int32_t begin, end;
};

__device__ inline List list_of(const View &range, int64_t row) {
  const int32_t *r = range.row<int32_t>(row);
  return {r[0], r[1]};
}

__device__ inline bool is_range(List list, int64_t entries) { return list.begin >= 0 && list.begin <= list.end && list.end <= entries; }

extern "C" __global__ void __launch_bounds__(THREADS)
adjust_logits(View logits, View bias_range, View bias_token, View bias_value, View repetition, View inv_repetition, View frequency,
              View presence, View seen_range, View seen_token, View seen_count, uint32_t *fault) {
  const int64_t row = blockIdx.x, vocabulary = logits.columns();
  const List biases = list_of(bias_range, row), seen = list_of(seen_range, row);
  const float times = *repetition.at<float>(row * repetition.stride[3]);
  const float inverse = *inv_repetition.at<float>(row * inv_repetition.stride[3]);
  const float per_count = *frequency.at<float>(row * frequency.stride[3]);
  const float once = *presence.at<float>(row * presence.stride[3]);
  const auto bias_id = [&](int64_t i) { return *bias_token.at<int32_t>(i * bias_token.stride[3]); };
  const auto seen_id = [&](int64_t i) { return *seen_token.at<int32_t>(i * seen_token.stride[3]); };

  // The same in every thread.
  uint32_t argument = 0, rule = 0;
  bool wrong = false;
  const auto check = [&](bool is_right, uint32_t a, uint32_t r) {
    if (!is_right && !wrong) argument = a, rule = r, wrong = true;
  };
  check(biases.begin >= 0, BIAS_RANGE, BIAS_BEGIN_NEGATIVE);
  check(is_range(biases, bias_token.shape[3]), BIAS_RANGE, BIAS_END_ABOVE);
  check(is_range(seen, seen_token.shape[3]), SEEN_RANGE, SEEN_RANGE_WRONG);
  check(is_factor(times), REPETITION, REPETITION_WRONG);
  check(is_factor(inverse), INV_REPETITION, INV_REPETITION_WRONG);
  check(is_finite(per_count), FREQUENCY, FREQUENCY_WRONG);
  check(is_finite(once), PRESENCE, PRESENCE_WRONG);
  if (!wrong) {
    for (int64_t i = biases.begin + threadIdx.x; i < biases.end; i += THREADS) {
      const int64_t token = bias_id(i);
      check(token >= 0 && token < vocabulary, BIAS_TOKEN, BIAS_TOKEN_RANGE);
      check(i == biases.begin || token > bias_id(i - 1), BIAS_TOKEN, BIAS_TOKEN_ORDER);
      check(*bias_value.at<float>(i * bias_value.stride[3]) < __uint_as_float(0x7F800000u), BIAS_VALUE, BIAS_VALUE_WRONG);
    }
    for (int64_t i = seen.begin + threadIdx.x; i < seen.end; i += THREADS) {
      const int64_t token = seen_id(i);
      check(token >= 0 && token < vocabulary, SEEN_TOKEN, SEEN_TOKEN_RANGE);
      check(i == seen.begin || token > seen_id(i - 1), SEEN_TOKEN, SEEN_TOKEN_ORDER);
      check(*seen_count.at<int32_t>(i * seen_count.stride[3]) >= 0, SEEN_COUNT, SEEN_COUNT_NEGATIVE);
    }
  }
  if (wrong) refuse(fault, OP, argument, rule);
  if (__syncthreads_or(wrong)) return;

  float *l = logits.at<float>(row * logits.stride[2]);
  for (int64_t first = biases.begin + threadIdx.x; first < biases.end; first += AHEAD * THREADS) {
    int32_t token[AHEAD];
    float logit[AHEAD], value[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) {
      const int64_t i = first + j * THREADS;
      token[j] = i < biases.end ? bias_id(i) : -1;
      value[j] = i < biases.end ? *bias_value.at<float>(i * bias_value.stride[3]) : 0;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) logit[j] = token[j] >= 0 ? l[token[j]] : 0;
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) if (token[j] >= 0) l[token[j]] = __fadd_rn(logit[j], value[j]);
  }
  __syncthreads();
  for (int64_t first = seen.begin + threadIdx.x; first < seen.end; first += AHEAD * THREADS) {
    int32_t token[AHEAD], count[AHEAD];
    float logit[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) {
      const int64_t i = first + j * THREADS;
      token[j] = i < seen.end ? seen_id(i) : -1;
      count[j] = i < seen.end ? *seen_count.at<int32_t>(i * seen_count.stride[3]) : 0;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) logit[j] = token[j] >= 0 ? l[token[j]] : 0;
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) {
      if (token[j] < 0) continue;
      float v = __fmul_rn(logit[j], logit[j] > 0 ? inverse : times);
      if (count[j] > 0) v = __fsub_rn(v, __fadd_rn(__fmul_rn(per_count, __int2float_rn(count[j])), once));
      l[token[j]] = v;
    }
  }
}
