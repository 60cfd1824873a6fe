// The expert outputs of each row and the shared expert's, added in F32: from +0, the rows of `y` in ascending order, the
// shared output last.
//
// Bytes: K rows of y and the shared row read, one row written. A warp takes 512 columns of a row and sorts its K places first: up to
// 32 with one in each lane, beyond that it looks for the next place in the list again and again. It asks for
// six BF16 rows or three F32 rows at a time.
#include "common/octet.cuh"

constexpr int THREADS = 128;
constexpr int OCTETS = 2;
constexpr int WARP_COLUMNS = OCTETS * 256;
constexpr uint32_t OP = 23, ROW_OF = 1;
enum Rule : uint32_t { NOT_BELOW };

// The places of a row that are not negative, ascending; of equal ones the earlier in the list first.
struct Places {
  const int32_t *list;
  int count;
  // Of the latest place that was found, above its index; and the sorted list, if there are no more than 32.
  int64_t latest;
  int32_t *sorted;
  int terms, given;

  // By a whole warp, which has 32 words of shared memory. Whether a place is too high.
  __device__ bool begin(const View &row_of, int64_t row, int64_t limit, int32_t *scratch) {
    const int lane = threadIdx.x % 32;
    list = row_of.at<int32_t>(row * row_of.stride[2]), count = int(row_of.columns()), latest = -1, sorted = scratch, given = 0;
    bool is_wrong = false;
    terms = 0;
    int32_t place = -1;
    for (int k = lane; k - lane < count; k += 32) {
      place = k < count ? list[k] : -1;
      is_wrong |= place >= limit;
      terms += __popc(__ballot_sync(0xFFFFFFFFu, place >= 0));
    }
    if (count > 32) return __any_sync(0xFFFFFFFFu, is_wrong);
    int rank = 0;
    for (int other = 0; other < count; ++other) {
      const int32_t against = __shfl_sync(0xFFFFFFFFu, place, other);
      rank += against >= 0 && (against < place || (against == place && other < lane));
    }
    if (place >= 0) sorted[rank] = place;
    return __any_sync(0xFFFFFFFFu, is_wrong);
  }

  __device__ int32_t next() {
    if (count <= 32) return sorted[given++];
    int64_t best = INT64_MAX;
    for (int k = threadIdx.x % 32; k < count; k += 32) {
      const int64_t key = int64_t(list[k]) << 32 | k;
      if (key > latest && key < best) best = key;
    }
    for (int width = 16; width > 0; width /= 2) best = min(best, __shfl_xor_sync(0xFFFFFFFFu, best, width));
    latest = best;
    return int32_t(best >> 32);
  }
};

template <int X, bool IS_WHOLE>
__device__ void combine(const View &y, const View &row_of, const View &shared, const View &out, int64_t row, int column, uint32_t *fault) {
  __shared__ int32_t scratch[THREADS];
  const int columns = int(out.columns());
  const auto read = [&](const View &x, int64_t from, int i) {
    const int at = column + i * 256;
    return read_octet<X, IS_WHOLE>(matrix_row<X>(x, from) + int64_t(at) * octet_bytes<X>() / 8, columns - at);
  };
  Octet<X> last[OCTETS] = {};
  if (!shared.is_absent()) {
#pragma unroll
    for (int i = 0; i < OCTETS; ++i) last[i] = read(shared, row, i);
  }
  Places places;
  const bool is_wrong = places.begin(row_of, row, y.shape[2], scratch + threadIdx.x / 32 * 32);
  if (is_wrong) return refuse(fault, OP, ROW_OF, NOT_BELOW);
  __syncwarp();
  constexpr int BATCH = !IS_WHOLE ? 1 : X == BF16 ? 6 : 3;
  float sum[OCTETS][8] = {};
  for (int first = 0; first < places.terms; first += BATCH) {
    Octet<X> octet[BATCH][OCTETS];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k >= places.terms) break;
      const int32_t place = places.next();
#pragma unroll
      for (int i = 0; i < OCTETS; ++i) octet[k][i] = read(y, place, i);
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k >= places.terms) break;
#pragma unroll
      for (int i = 0; i < OCTETS; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] = __fadd_rn(sum[i][j], octet[k][i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < OCTETS; ++i) {
    if (!shared.is_absent()) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] = __fadd_rn(sum[i][j], last[i][j]);
    }
    const int at = column + i * 256;
    write_octet<X, IS_WHOLE>(matrix_row<X>(out, row) + int64_t(at) * octet_bytes<X>() / 8, columns - at, octet_of<X>(sum[i]));
  }
}

template <int X>
__device__ void combine_as(const View &y, const View &row_of, const View &shared, const View &out, int64_t row, int column, uint32_t *fault) {
  if (has_whole_octets<X>(y) && has_whole_octets<X>(out) && (shared.is_absent() || has_whole_octets<X>(shared))) {
    return combine<X, true>(y, row_of, shared, out, row, column, fault);
  }
  combine<X, false>(y, row_of, shared, out, row, column, fault);
}

// A warp for each of `pieces` times 512 columns of each row; without columns there is one all the same, as a place can be wrong.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
moe_combine(View y, View row_of, View shared, View out, uint32_t pieces, uint32_t *fault) {
  const uint32_t piece = warp_of_grid(), row = piece / pieces;
  if (row >= out.shape[2]) return;
  const int column = int(piece - row * pieces) * WARP_COLUMNS + threadIdx.x % 32 * 8;
  if (out.format == BF16) return combine_as<BF16>(y, row_of, shared, out, row, column, fault);
  combine_as<F32>(y, row_of, shared, out, row, column, fault);
}
