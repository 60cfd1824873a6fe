// The columns of the K largest scores, ascending: rows of any width and any K. `topk_select.cu` is for the sizes of models.
//
// Bytes: the scores once from memory and four times more from L2, K indices out. A block takes a row. A radix selection of
// 8 bits at a time over keys in the order of the scores finds the K-th largest key; a last pass emits what is above it, and of
// what equals it the lowest columns. Only integers are counted: no order of threads shows in the result.
#include "common/order.cuh"
#include "common/view.cuh"

constexpr int THREADS = 1024;
constexpr uint32_t MINUS_INFINITY_KEY = 0x007FFFFFu;

extern "C" __global__ void __launch_bounds__(THREADS) topk_select_any(View scores, View out, uint32_t *) {
  __shared__ int histogram[256];
  __shared__ int scratch[THREADS / 32];
  __shared__ int chosen_digit, left_over;
  const int64_t row = blockIdx.x;
  // Columns are I32.
  const uint32_t columns = uint32_t(scores.columns());
  const int64_t places = out.columns();
  const float *s = scores.at<float>(row * scores.stride[2]);
  int32_t *to = out.at<int32_t>(row * out.stride[2]);

  // The K-th largest key has the digits of `prefix` so far; `wanted` keys with those digits belong to the K.
  uint32_t prefix = 0;
  int64_t wanted = places;
  bool are_few = false;
  for (int shift = 24; shift >= 0 && !are_few; shift -= 8) {
    for (int d = threadIdx.x; d < 256; d += THREADS) histogram[d] = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < columns; c += THREADS) {
      const uint32_t key = order_of(s[c]);
      // In two steps: a shift by 32 is no shift.
      if (key > MINUS_INFINITY_KEY && (key >> shift >> 8) == (prefix >> shift >> 8)) atomicAdd(&histogram[key >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int64_t above = 0;
      int digit = 255;
      while (digit >= 0 && above + histogram[digit] < wanted) above += histogram[digit--];
      chosen_digit = digit;
      left_over = int(wanted - above);
    }
    __syncthreads();
    // With fewer than K scores every one is chosen; that shows at the first digit.
    are_few = chosen_digit < 0;
    if (!are_few) {
      prefix |= uint32_t(chosen_digit) << shift;
      wanted = left_over;
    }
    __syncthreads();
  }

  int64_t emitted = 0, equal = 0;
  for (uint32_t first = 0; first < columns && emitted < places; first += THREADS) {
    const uint32_t c = first + threadIdx.x;
    const uint32_t key = c < columns ? order_of(s[c]) : 0;
    const bool is_equal = !are_few && key == prefix;
    const Count ties = count_block<THREADS>(is_equal, scratch);
    const bool is_chosen = are_few ? key > MINUS_INFINITY_KEY : key > prefix || (is_equal && equal + ties.before < wanted);
    const Count chosen = count_block<THREADS>(is_chosen, scratch);
    if (is_chosen) to[emitted + chosen.before] = int32_t(c);
    emitted += chosen.all;
    equal += ties.all;
  }
  for (int64_t k = emitted + threadIdx.x; k < places; k += THREADS) to[k] = -1;
}
