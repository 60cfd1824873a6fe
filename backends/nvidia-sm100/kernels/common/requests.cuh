// Which rows of a call belong to which request, and where each request keeps its state. The numbers come from the caller: what is
// used of them is checked first.
#pragma once

#include "view.cuh"

struct Requests {
  const int32_t *start;
  const int32_t *slot;
  int64_t count, rows, slots;

  __device__ Requests(const View &request_start, const View &state_slot, int64_t all_rows, int64_t all_slots)
      : start(request_start.at<int32_t>()), slot(state_slot.at<int32_t>()), count(state_slot.columns()), rows(all_rows), slots(all_slots) {}

  // Whether the rows of request q, which exists, are rows of the call, and its slot is one.
  __device__ bool is_sound(int64_t q) const {
    return start[q] >= 0 && start[q] <= start[q + 1] && start[q + 1] <= rows && slot[q] >= 0 && slot[q] < slots;
  }

  __device__ bool has_rows(int64_t q) const { return start[q] < start[q + 1]; }

  // What is wrong with place q of `start`, 0 to `count`.
  __device__ bool is_out_of_order(int64_t q) const { return q == 0 ? start[0] != 0 : start[q] < start[q - 1]; }
  __device__ bool is_wrong_end(int64_t q) const { return q == count && start[q] != rows; }

  // Whether the starts are all right.
  __device__ bool are_starts_right() const {
    for (int64_t q = 0; q <= count; ++q) if (is_out_of_order(q) || is_wrong_end(q)) return false;
    return true;
  }

  // Whether an earlier request that has rows keeps its state where q does.
  __device__ bool is_slot_taken(int64_t q) const {
    for (int64_t other = 0; other < q; ++other) if (slot[other] == slot[q] && has_rows(other)) return has_rows(q);
    return false;
  }

  // The request that has `row`, if the starts ascend; otherwise any.
  __device__ int64_t of_row(int64_t row) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (start[middle] <= row) low = middle;
      else high = middle;
    }
    return low;
  }
};
