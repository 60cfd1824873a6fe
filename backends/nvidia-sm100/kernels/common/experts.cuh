// The experts of `grouped_linear`: their matrices, and the rows that begin each.
#pragma once

#include "exact.cuh"

constexpr int MOST_MATRICES = 256;

// Matrices of a launch, among the kernel's parameters.
struct Matrices {
  Matrix of[MOST_MATRICES];
};

__device__ inline int32_t expert_begin(const View &expert_start, int64_t expert) { return *expert_start.at<int32_t>(expert * expert_start.stride[3]); }

// Whether the starts ascend from 0 to at most the rows of x; otherwise it says so. By all threads of the block.
template <int THREADS> __device__ bool are_starts_valid(const View &expert_start, const View &x, uint32_t *fault) {
  constexpr uint32_t OP = 5, EXPERT_START = 1;
  enum Rule : uint32_t { FIRST_NOT_ZERO, END_ABOVE, DESCENDS };
  const int64_t experts = expert_start.shape[3] - 1;
  bool is_wrong = false;
  for (int64_t e = threadIdx.x; e <= experts; e += THREADS) {
    const int64_t value = expert_begin(expert_start, e);
    const bool is_first_wrong = e == 0 && value != 0, is_above = value > x.shape[2], descends = e > 0 && value < expert_begin(expert_start, e - 1);
    if (is_first_wrong || is_above || descends) {
      is_wrong = true;
      refuse(fault, OP, EXPERT_START, is_first_wrong ? FIRST_NOT_ZERO : is_above ? END_ABOVE : DESCENDS);
    }
  }
  return !__syncthreads_or(is_wrong);
}
