// Rows of the n-gram tables that each token looks up, in 64-bit integers, and the latest ids that each request keeps.
//
// Bytes: small; the time is that of one 64-bit remainder per number. A thread takes a number of a token. The first kernel reads the
// histories and leaves out what is wrong; the second reports it, and writes the histories.
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

extern "C" __global__ void __launch_bounds__(THREADS)
engram_hash(View token_ids, View token_map, View image_mask, View history, View request_start, View state_slot, View multipliers,
            View primes, View offsets, View rows, int32_t pad, uint32_t *) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, numbers = primes.columns(), tokens = token_ids.columns();
  const int64_t j = item % numbers, t = item / numbers % tokens, layer = item / numbers / tokens;
  if (layer >= primes.rows()) return;
  const int64_t prime = primes.row<int64_t>(layer)[j], offset = offsets.row<int64_t>(layer)[j];
  const Requests requests(request_start, state_slot, tokens, history.rows());
  if (requests.count == 0 || !is_table(prime, offset)) return;
  const int64_t q = requests.of_row(t);
  if (!requests.is_sound(q) || t < requests.start[q] || t >= requests.start[q + 1]) return;

  const Tokens all = {token_ids, token_map, image_mask};
  const int64_t back = history.columns(), heads = numbers / back, lookback = j / heads + 1;
  const int32_t *kept = history.row<int32_t>(requests.slot[q]);
  const int64_t *multiplier = multipliers.row<int64_t>(layer);
  // Products wrap, as those of two's complement do.
  uint64_t hash = 0;
  bool is_crossed = false;
  for (int64_t i = 0; i <= lookback; ++i) {
    const int64_t at = t - i, first = requests.start[q];
    if (at >= first && !all.is_right(at)) return;
    const int32_t id = at >= first ? all.compressed(at) : kept[back - (first - at)];
    is_crossed |= id < 0;
    hash ^= uint64_t(int64_t(is_crossed ? pad : id)) * uint64_t(multiplier[i]);
  }
  const int64_t rest = int64_t(hash) % prime;
  rows.row<int32_t>(layer * tokens + t)[j] = int32_t((rest < 0 ? rest + prime : rest) + offset);
}

// A thread for each token, each place of request_start and each table, whatever there is most of.
extern "C" __global__ void __launch_bounds__(THREADS)
update_history(View token_ids, View token_map, View image_mask, View history, View request_start, View state_slot, View primes,
               View offsets, uint32_t *fault) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, tokens = token_ids.columns(), tables = primes.rows() * primes.columns();
  const Requests requests(request_start, state_slot, tokens, history.rows());
  const Tokens all = {token_ids, token_map, image_mask};
  if (item < tables) {
    const int64_t layer = item / primes.columns(), j = item % primes.columns();
    const int64_t prime = primes.row<int64_t>(layer)[j], offset = offsets.row<int64_t>(layer)[j];
    if (prime < 1) refuse(fault, OP, PRIMES, PRIME_LOW);
    else if (!is_table(prime, offset)) refuse(fault, OP, OFFSETS, OFFSET_RANGE);
  }
  if (item < tokens && !all.is_right(item)) refuse(fault, OP, TOKEN_IDS, all.token(item) < 0 ? TOKEN_NEGATIVE : TOKEN_HIGH);
  const int64_t q = item;
  if (q > requests.count) return;
  if (requests.is_out_of_order(q) || requests.is_wrong_end(q)) return refuse(fault, OP, REQUEST_START, START_ORDER);
  if (q == requests.count) return;
  if (requests.slot[q] < 0 || requests.slot[q] >= requests.slots) return refuse(fault, OP, STATE_SLOT, SLOT_RANGE);
  if (!requests.is_sound(q)) return;
  if (requests.is_slot_taken(q)) return refuse(fault, OP, STATE_SLOT, SLOT_TAKEN);

  const int64_t back = history.columns(), first = requests.start[q], count = requests.start[q + 1] - first;
  for (int64_t t = max(first, first + count - back); t < first + count; ++t) if (!all.is_right(t)) return;
  // Places ascend, and each takes what stood further on.
  int32_t *kept = history.row<int32_t>(requests.slot[q]);
  for (int64_t k = 0; k < back; ++k) {
    const int64_t from = k + count;
    kept[k] = from < back ? kept[from] : all.compressed(first + from - back);
  }
}
