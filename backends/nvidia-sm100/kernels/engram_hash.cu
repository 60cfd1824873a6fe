// Rows of the n-gram tables that each token looks up, in 64-bit integers, and the latest ids that each request keeps.
//
// Bytes: small; the time is that of one 64-bit remainder per number. A thread takes a number of a token. The first kernel reads the
// histories and leaves out what is wrong; the second reports it, and writes the histories, a warp for each request.
#include "common/requests.cuh"

constexpr int THREADS = 128;
constexpr uint32_t OP = 24;
constexpr int32_t DEAD = -1;
// Places in the catalogue.
enum Argument : uint32_t { TOKEN_IDS, TOKEN_MAP, IMAGE_MASK, HISTORY, REQUEST_START, STATE_SLOT, PAD, MULTIPLIERS, PRIMES, OFFSETS };
enum Rule : uint32_t { TOKEN_HIGH, TOKEN_NEGATIVE, SLOT_RANGE, START_ORDER, PRIME_LOW, OFFSET_RANGE, SLOT_TAKEN };

// The tokens of a call, and the compressed ids that they have.
struct Tokens {
  View token_ids, token_map, image_mask;

  __device__ bool is_image(int64_t t) const { return !image_mask.is_absent() && image_mask.at<uint8_t>()[t] != 0; }
  __device__ int64_t token(int64_t t) const { return token_ids.at<int32_t>()[t]; }
  __device__ bool is_right(int64_t t) const { return is_image(t) || (token(t) >= 0 && token(t) < token_map.columns()); }

  // Of a right token.
  __device__ int32_t compressed(int64_t t) const { return is_image(t) ? DEAD : token_map.at<int32_t>()[token(t)]; }
};

__device__ inline bool is_table(int64_t prime, int64_t offset) {
  constexpr int64_t MOST_ROWS = int64_t(1) << 31;
  return prime >= 1 && offset >= 0 && offset <= MOST_ROWS && prime <= MOST_ROWS - offset;
}

// hash mod prime, not negative, for primes up to 2^31: two quotients in F64, each exact but for its last places, and what they leave.
__device__ inline int64_t remainder_of(int64_t hash, int64_t prime) {
  const double inverse = 1.0 / double(prime);
  int64_t rest = int64_t(uint64_t(hash) - uint64_t(__double2ll_rd(double(hash) * inverse)) * uint64_t(prime));
  rest -= __double2ll_rd(double(rest) * inverse) * prime;
  if (rest < 0) rest += prime;
  if (rest >= prime) rest -= prime;
  return rest;
}

// A thread for each number of each token; a layer for each value of blockIdx.y.
extern "C" __global__ void __launch_bounds__(THREADS)
engram_hash(View token_ids, View token_map, View image_mask, View history, View request_start, View state_slot, View multipliers,
            View primes, View offsets, View rows, int32_t pad, uint32_t *) {
  const uint32_t item = blockIdx.x * THREADS + threadIdx.x, numbers = uint32_t(primes.columns()), t = item / numbers, j = item - t * numbers;
  const int64_t tokens = token_ids.columns(), layer = blockIdx.y;
  if (t >= tokens) return;
  const int64_t prime = primes.at<int64_t>(layer * primes.stride[2])[j], offset = offsets.at<int64_t>(layer * offsets.stride[2])[j];
  const Requests requests(request_start, state_slot, tokens, history.shape[2]);
  if (requests.count == 0 || !is_table(prime, offset)) return;
  const int64_t q = requests.of_row(t);
  if (!requests.is_sound(q) || t < requests.start[q] || t >= requests.start[q + 1]) return;

  const Tokens all = {token_ids, token_map, image_mask};
  const int back = int(history.columns()), lookback = int(j / (numbers / uint32_t(back))) + 1;
  const int64_t first = requests.start[q];
  const int32_t *kept = history.at<int32_t>(requests.slot[q] * history.stride[2]);
  const int64_t *multiplier = multipliers.at<int64_t>(layer * multipliers.stride[2]);
  // Products wrap, as those of two's complement do. Ids are read some at a time, whatever comes of the first.
  constexpr int BATCH = 4;
  uint64_t hash = 0;
  bool is_crossed = false;
  for (int begin = 0; begin <= lookback; begin += BATCH) {
    int32_t id[BATCH];
    bool is_wrong = false;
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int64_t at = int64_t(t) - begin - i;
      if (begin + i > lookback) continue;
      is_wrong |= at >= first && !all.is_right(at);
      id[i] = at < first ? kept[back - (first - at)] : is_wrong ? 0 : all.compressed(at);
    }
    if (is_wrong) return;
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (begin + i > lookback) continue;
      is_crossed |= id[i] < 0;
      hash ^= uint64_t(int64_t(is_crossed ? pad : id[i])) * uint64_t(multiplier[begin + i]);
    }
  }
  rows.at<int32_t>(layer * rows.stride[1] + t * rows.stride[2])[j] = int32_t(remainder_of(int64_t(hash), prime) + offset);
}

// A thread for each token and each table, a warp for each place of request_start, whatever takes most.
extern "C" __global__ void __launch_bounds__(THREADS)
update_history(View token_ids, View token_map, View image_mask, View history, View request_start, View state_slot, View primes,
               View offsets, uint32_t *fault) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, tokens = token_ids.columns(), tables = primes.rows() * primes.columns();
  const Requests requests(request_start, state_slot, tokens, history.shape[2]);
  const Tokens all = {token_ids, token_map, image_mask};
  if (item < tables) {
    const uint32_t layer = uint32_t(item) / uint32_t(primes.columns()), j = uint32_t(item) - layer * uint32_t(primes.columns());
    const int64_t prime = primes.at<int64_t>(layer * primes.stride[2])[j], offset = offsets.at<int64_t>(layer * offsets.stride[2])[j];
    if (prime < 1) refuse(fault, OP, PRIMES, PRIME_LOW);
    else if (!is_table(prime, offset)) refuse(fault, OP, OFFSETS, OFFSET_RANGE);
  }
  if (item < tokens && !all.is_right(item)) refuse(fault, OP, TOKEN_IDS, all.token(item) < 0 ? TOKEN_NEGATIVE : TOKEN_HIGH);
  const int lane = threadIdx.x % 32;
  const int64_t q = item / 32;
  if (q > requests.count) return;
  if (requests.is_out_of_order(q) || requests.is_wrong_end(q)) return refuse(fault, OP, REQUEST_START, START_ORDER);
  if (q == requests.count) return;
  if (requests.slot[q] < 0 || requests.slot[q] >= requests.slots) return refuse(fault, OP, STATE_SLOT, SLOT_RANGE);
  if (!requests.is_sound(q)) return;
  // Whether an earlier request that has rows keeps its ids here.
  bool is_taken = false;
  for (int64_t other = lane; other < q; other += 32) is_taken |= requests.slot[other] == requests.slot[q] && requests.has_rows(other);
  if (__any_sync(0xFFFFFFFFu, is_taken) && requests.has_rows(q)) return refuse(fault, OP, STATE_SLOT, SLOT_TAKEN);

  const int64_t back = history.columns(), first = requests.start[q], count = requests.start[q + 1] - first;
  bool is_wrong = false;
  for (int64_t t = max(first, first + count - back) + lane; t < first + count; t += 32) is_wrong |= !all.is_right(t);
  if (__any_sync(0xFFFFFFFFu, is_wrong)) return;
  // Places ascend, and each takes what stood further on.
  int32_t *kept = history.at<int32_t>(requests.slot[q] * history.stride[2]);
  for (int64_t begin = 0; begin < back; begin += 32) {
    const int64_t k = begin + lane, from = k + count;
    int32_t id = 0;
    if (k < back) id = from < back ? kept[from] : all.compressed(first + from - back);
    __syncwarp();
    if (k < back) kept[k] = id;
    __syncwarp();
  }
}
