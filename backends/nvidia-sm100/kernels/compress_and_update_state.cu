// Groups of consecutive tokens pooled by the softmax of their gates, and the rings that keep the tokens of open groups.
//
// Bytes: score and latent of each member, a row written per group; then the latest rows of each request copied to its ring. The
// first kernel reads rings and the second writes them. A thread takes a channel, and adds the members in the order of positions,
// in F64.
#include "common/requests.cuh"
#include "common/values.cuh"

constexpr int THREADS = 128;
constexpr uint32_t OP = 14;
// Places in the catalogue.
enum Argument : uint32_t { LATENT, SCORE, STATE, GROUP_ROW, POSITIONS, ROW_REQUEST, REQUEST_START, STATE_SLOT };
enum Rule : uint32_t { RATIO_LOW, RATIO_HIGH, SLOT_RANGE, START_END, START_ORDER, GROUP_RANGE, NOT_ITS_ROW, BEFORE_BEGINNING, SLOT_TAKEN };

struct Member {
  const float *score, *latent;
};

// Row of the state: 0 of the last index.
__device__ inline int64_t ring_row(const View &state, int64_t slot, int64_t position) {
  return (slot * state.shape[1] + position % state.shape[1]) * 2;
}

// A block for each group. Shared memory: `ratio` members.
extern "C" __global__ void __launch_bounds__(THREADS)
compress(View latent, View score, View state, View group_row, View positions, View row_request, View request_start, View state_slot,
         View out, uint32_t ratio, uint32_t *fault) {
  extern __shared__ Member members[];
  const int64_t rows = latent.rows(), group = blockIdx.x;
  const Requests requests(request_start, state_slot, rows, state.shape[0]);
  const int32_t *position = positions.at<int32_t>();
  // The same in every thread.
  const int64_t last = group_row.at<int32_t>()[group];
  if (last < 0 || last >= rows) return refuse(fault, OP, GROUP_ROW, GROUP_RANGE);
  const int64_t q = row_request.at<int32_t>()[last];
  if (q < 0 || q >= requests.count || last < requests.start[q] || last >= requests.start[q + 1]) {
    // If the starts are wrong, this is their fault, which the other kernel finds.
    if (threadIdx.x == 0 && requests.are_starts_right()) refuse(fault, OP, ROW_REQUEST, NOT_ITS_ROW);
    return;
  }
  if (!requests.is_sound(q)) return;
  const int64_t end = position[last];
  if (end + 1 < int64_t(ratio)) return refuse(fault, OP, GROUP_ROW, BEFORE_BEGINNING);

  for (int64_t k = threadIdx.x; k < ratio; k += THREADS) {
    const int64_t wanted = end + 1 - ratio + k, first = requests.start[q];
    // Positions ascend within a request: a member of this call is one of the latest `ratio` rows.
    int64_t t = last;
    const int64_t earliest = max(first, last + 1 - int64_t(ratio));
    while (t >= earliest && position[t] != wanted) --t;
    if (t >= earliest) {
      members[k] = {score.row<float>(t), latent.row<float>(t)};
    } else {
      const int64_t row = ring_row(state, requests.slot[q], wanted);
      members[k] = {state.row<float>(row), state.row<float>(row + 1)};
    }
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < out.columns(); d += THREADS) {
    // The maximum drops a NaN, but the exponentials keep it.
    double largest = __longlong_as_double(0xFFF0000000000000ll), weights = 0, sum = 0;
    for (uint32_t k = 0; k < ratio; ++k) largest = fmax(largest, double(members[k].score[d]));
    for (uint32_t k = 0; k < ratio; ++k) {
      const double weight = exp(double(members[k].score[d]) - largest);
      weights += weight;
      sum += weight * double(members[k].latent[d]);
    }
    store_float(out, group, d, float(sum / weights));
  }
}

// A block for each place of request_start.
extern "C" __global__ void __launch_bounds__(THREADS)
update_state(View latent, View score, View state, View positions, View request_start, View state_slot, uint32_t *fault) {
  const int64_t ring = state.shape[1], q = blockIdx.x;
  const Requests requests(request_start, state_slot, latent.rows(), state.shape[0]);
  // The same in every thread.
  if (requests.is_out_of_order(q)) return refuse(fault, OP, REQUEST_START, START_ORDER);
  if (requests.is_wrong_end(q)) return refuse(fault, OP, REQUEST_START, START_END);
  if (q == requests.count) return;
  if (requests.slot[q] < 0 || requests.slot[q] >= requests.slots) return refuse(fault, OP, STATE_SLOT, SLOT_RANGE);
  if (!requests.is_sound(q)) return;
  if (requests.is_slot_taken(q)) return refuse(fault, OP, STATE_SLOT, SLOT_TAKEN);
  const int64_t end = requests.start[q + 1], begin = max(int64_t(requests.start[q]), end - ring);
  // A thread keeps to its channels, so that of two rows with one place the later stays.
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = positions.at<int32_t>()[t];
    if (position < 0) {
      refuse(fault, OP, POSITIONS, BEFORE_BEGINNING);
      continue;
    }
    const int64_t row = ring_row(state, requests.slot[q], position);
    float *to_score = state.row<float>(row), *to_latent = state.row<float>(row + 1);
    const float *from_score = score.row<float>(t), *from_latent = latent.row<float>(t);
    for (int64_t d = threadIdx.x; d < latent.columns(); d += THREADS) to_score[d] = from_score[d], to_latent[d] = from_latent[d];
  }
}
