// Groups of consecutive tokens pooled by the softmax of their gates, and the rings that keep the tokens of open groups.
//
// Bytes: score and latent of each member, a row written per group; then the latest rows of each request copied to its ring. The
// first kernel reads rings and the second writes them. A thread takes four channels, and adds the members in the order of positions,
// in F64.
#include "common/exponential.cuh"
#include "common/octet.cuh"
#include "common/requests.cuh"

constexpr int THREADS = 128;
constexpr uint32_t OP = 14;
// Places in the catalogue.
enum Argument : uint32_t { LATENT, SCORE, STATE, GROUP_ROW, POSITIONS, ROW_REQUEST, REQUEST_START, STATE_SLOT };
enum Rule : uint32_t { RATIO_LOW, RATIO_HIGH, SLOT_RANGE, START_END, START_ORDER, GROUP_RANGE, NOT_ITS_ROW, BEFORE_BEGINNING, SLOT_TAKEN };

struct Member {
  const float *score, *latent;
};

// Row of the state: 0 of the last index but one.
__device__ inline float *ring_row(const View &state, int64_t slot, uint32_t position) {
  return state.at<float>(slot * state.stride[0] + position % uint32_t(state.shape[1]) * state.stride[1]);
}

// e^x for x <= 0; the rare x beyond the normal results, and NaN, go to the library.
__device__ inline double weight_of(double x) { return x >= -700.0 ? exp_minus(-x) : exp(x); }

// The pooled channel of members whose score and latent `at` gives.
template <class At> __device__ inline float pool(uint32_t ratio, const At &at) {
  // The maximum drops a NaN, but the exponentials keep it.
  float largest = __uint_as_float(0xFF800000u);
  for (uint32_t k = 0; k < ratio; ++k) largest = fmaxf(largest, at(k).x);
  double weights = 0, sum = 0;
  for (uint32_t k = 0; k < ratio; ++k) {
    const float2 member = at(k);
    const double weight = weight_of(double(member.x) - double(largest));
    weights += weight;
    sum += weight * double(member.y);
  }
  // The largest weight is 1: `weights` is a normal number, or NaN.
  return float(sum * inverse_of(weights));
}

// Channels that a thread takes at once, if rows lie on 16 bytes.
constexpr int WIDE = 4;

__device__ inline float channel(const float4 &four, int i) { return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w; }

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
    // Positions ascend within a request: a member of this call is one of the latest `ratio` rows, and mostly that many rows back.
    const int64_t earliest = max(first, last + 1 - int64_t(ratio)), likely = last + 1 - ratio + k;
    int64_t t = likely;
    if (likely < earliest || position[likely] != wanted) {
      t = last;
      while (t >= earliest && position[t] != wanted) --t;
    }
    if (t >= earliest) {
      members[k] = {score.at<float>(t * score.stride[2]), latent.at<float>(t * latent.stride[2])};
    } else {
      const float *row = ring_row(state, requests.slot[q], uint32_t(wanted));
      members[k] = {row, row + state.stride[2]};
    }
  }
  __syncthreads();
  const int columns = int(out.columns());
  bool is_wide = columns % WIDE == 0;
  for (uint32_t k = 0; k < ratio; ++k) is_wide = is_wide && lies_on(members[k].score, 16) && lies_on(members[k].latent, 16);
  const auto write = [&](int d, float value) {
    if (out.format == F32) out.at<float>(group * out.stride[2])[d] = value;
    else out.at<uint16_t>(group * out.stride[2])[d] = uint16_t(narrow(value, 0.0f));
  };
  if (is_wide && ratio == 2) {
    for (int d = threadIdx.x * WIDE; d < columns; d += THREADS * WIDE) {
      float4 scores[2], latents[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        scores[k] = *reinterpret_cast<const float4 *>(members[k].score + d);
        latents[k] = *reinterpret_cast<const float4 *>(members[k].latent + d);
      }
      float pooled[WIDE];
#pragma unroll
      for (int i = 0; i < WIDE; ++i) pooled[i] = pool(2, [&](int k) { return make_float2(channel(scores[k], i), channel(latents[k], i)); });
      unsigned char *to = out.data + (group * out.stride[2] + d) * (out.format == F32 ? 4 : 2);
      if (out.format == BF16 && lies_on(to, 8)) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(narrow(pooled[0], pooled[1]), narrow(pooled[2], pooled[3]));
      } else {
#pragma unroll
        for (int i = 0; i < WIDE; ++i) write(d + i, pooled[i]);
      }
    }
    return;
  }
  for (int d = threadIdx.x; d < columns; d += THREADS) {
    write(d, pool(ratio, [&](int k) { return make_float2(members[k].score[d], members[k].latent[d]); }));
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
  // Whether an earlier request that has rows keeps its state here.
  bool is_taken = false;
  for (int64_t other = threadIdx.x; other < q; other += THREADS) is_taken |= requests.slot[other] == requests.slot[q] && requests.has_rows(other);
  if (__syncthreads_or(is_taken) && requests.has_rows(q)) return refuse(fault, OP, STATE_SLOT, SLOT_TAKEN);
  const int64_t end = requests.start[q + 1], begin = max(int64_t(requests.start[q]), end - ring);
  // A thread keeps to its channels, so that of two rows with one place the later stays.
  const int columns = int(latent.columns());
  const bool is_wide = columns % WIDE == 0 && has_whole_octets<F32>(state) && has_whole_octets<F32>(latent) && has_whole_octets<F32>(score);
  for (int64_t t = begin; t < end; ++t) {
    const int32_t position = positions.at<int32_t>()[t];
    if (position < 0) {
      refuse(fault, OP, POSITIONS, BEFORE_BEGINNING);
      continue;
    }
    float *to_score = ring_row(state, requests.slot[q], uint32_t(position)), *to_latent = to_score + state.stride[2];
    const float *from_score = score.at<float>(t * score.stride[2]), *from_latent = latent.at<float>(t * latent.stride[2]);
    if (is_wide) {
      for (int d = threadIdx.x * WIDE; d < columns; d += THREADS * WIDE) {
        const float4 gate = *reinterpret_cast<const float4 *>(from_score + d), value = *reinterpret_cast<const float4 *>(from_latent + d);
        *reinterpret_cast<float4 *>(to_score + d) = gate, *reinterpret_cast<float4 *>(to_latent + d) = value;
      }
    } else {
      for (int d = threadIdx.x; d < columns; d += THREADS) to_score[d] = from_score[d], to_latent[d] = from_latent[d];
    }
  }
}
