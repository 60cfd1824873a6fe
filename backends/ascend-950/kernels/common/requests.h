// Which rows of a call belong to which request, and where each request keeps its state. S reads the numbers, which come from the
// caller: what is used of them is checked first.
#pragma once

#include "kernel_operator.h"

class Requests {
public:
  // `rows` rows of the call, `slots` state slots.
  __aicore__ inline Requests(GM_ADDR request_start, GM_ADDR state_slot, int64_t count, int64_t rows, int64_t slots)
      : count_(count), rows_(rows), slots_(slots) {
    start_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(request_start));
    slot_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(state_slot));
  }

  __aicore__ inline int64_t count() const { return count_; }
  // Place q of the starts, 0 to count().
  __aicore__ inline int64_t start(int64_t q) const { return start_.GetValue(q); }
  __aicore__ inline int64_t slot(int64_t q) const { return slot_.GetValue(q); }
  __aicore__ inline bool is_slot(int64_t q) const { return slot(q) >= 0 && slot(q) < slots_; }
  __aicore__ inline bool has_rows(int64_t q) const { return start(q) < start(q + 1); }

  // Whether the rows of request q, which exists, are rows of the call, and its slot is one.
  __aicore__ inline bool is_sound(int64_t q) const {
    return start(q) >= 0 && start(q) <= start(q + 1) && start(q + 1) <= rows_ && is_slot(q);
  }

  // What is wrong with place q of the starts.
  __aicore__ inline bool is_out_of_order(int64_t q) const { return q == 0 ? start(0) != 0 : start(q) < start(q - 1); }
  __aicore__ inline bool is_wrong_end(int64_t q) const { return q == count_ && start(q) != rows_; }

  // Whether the starts are all right.
  __aicore__ inline bool are_starts_right() const {
    for (int64_t q = 0; q <= count_; ++q) {
      if (is_out_of_order(q) || is_wrong_end(q)) return false;
    }
    return true;
  }

  // Whether an earlier request that has rows keeps its state where q does, which has rows.
  __aicore__ inline bool is_slot_taken(int64_t q) const {
    if (!has_rows(q)) return false;
    for (int64_t other = 0; other < q; ++other) {
      if (slot(other) == slot(q) && has_rows(other)) return true;
    }
    return false;
  }

  // The request that has `row`, if the starts ascend; otherwise any.
  __aicore__ inline int64_t of_row(int64_t row) const {
    int64_t low = 0, high = count_;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (start(middle) <= row) low = middle;
      else high = middle;
    }
    return low;
  }

private:
  AscendC::GlobalTensor<int32_t> start_, slot_;
  int64_t count_, rows_, slots_;
};
