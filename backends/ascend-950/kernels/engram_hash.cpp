// Rows of the n-gram tables that each token looks up, in 64-bit integers, and the latest ids that each request keeps.
//
// Bytes: small; the time is that of one 64-bit remainder per number, which V does not have: all of it is S, and MTE3 writes what S has
// put into the UB. engram_hash: a block has a run of tokens and takes as many at a time as their numbers in a layer fill 8192 elements.
// It reads the histories and leaves out what is wrong. update_history reports what is wrong, and writes the histories: a block has a
// run of the tables, one of the tokens, and one of the requests.
#include "common/faults.h"
#include "common/requests.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct EngramHashTiling {
  int64_t tokens, vocabulary, requests, slots, layers;
  int64_t back, numbers;                                      // N - 1 ids that a request keeps, J numbers of a token
  int64_t history_stride, multipliers_stride, primes_stride, offsets_stride;
  int64_t layer_stride, token_stride; // of the result
  int32_t pad, has_mask;
};
static_assert(sizeof(EngramHashTiling) == 112, "as in src/ops/engram_hash.rs");

constexpr uint32_t OP = 24;
constexpr int32_t DEAD = -1;
// Places in the catalogue.
enum Argument : uint32_t { TOKEN_IDS, TOKEN_MAP, IMAGE_MASK, HISTORY, REQUEST_START, STATE_SLOT, PAD, MULTIPLIERS, PRIMES, OFFSETS };
enum Rule : uint32_t { TOKEN_HIGH, TOKEN_NEGATIVE, SLOT_RANGE, START_ORDER, PRIME_LOW, OFFSET_RANGE, SLOT_TAKEN };

template <class T> __aicore__ inline GlobalTensor<T> tensor_at(GM_ADDR address) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T *>(address));
  return tensor;
}

// The tokens of a call, and the compressed ids that they have.
class Tokens {
public:
  __aicore__ inline Tokens(GM_ADDR token_ids, GM_ADDR token_map, GM_ADDR image_mask, const EngramHashTiling &t)
      : ids_(tensor_at<int32_t>(token_ids)), map_(tensor_at<int32_t>(token_map)), mask_(tensor_at<uint8_t>(image_mask)), vocabulary_(t.vocabulary),
        has_mask_(t.has_mask != 0) {}

  __aicore__ inline int64_t id(int64_t token) const { return ids_.GetValue(token); }
  __aicore__ inline bool is_right(int64_t token) const { return is_image(token) || (id(token) >= 0 && id(token) < vocabulary_); }

  // Of a right token.
  __aicore__ inline int32_t compressed(int64_t token) const { return is_image(token) ? DEAD : map_.GetValue(id(token)); }

private:
  __aicore__ inline bool is_image(int64_t token) const { return has_mask_ && mask_.GetValue(token) != 0; }

  GlobalTensor<int32_t> ids_, map_;
  GlobalTensor<uint8_t> mask_;
  int64_t vocabulary_;
  bool has_mask_;
};

__aicore__ inline bool is_table(int64_t prime, int64_t offset) {
  constexpr int64_t MOST_ROWS = int64_t(1) << 31;
  return prime >= 1 && offset >= 0 && offset <= MOST_ROWS && prime <= MOST_ROWS - offset;
}

class Hash {
public:
  __aicore__ inline Hash(const EngramHashTiling &t, const Requests &requests, const Tokens &tokens) : t_(t), requests_(requests), tokens_(tokens) {}

  __aicore__ inline void init(GM_ADDR history, GM_ADDR multipliers, GM_ADDR primes, GM_ADDR offsets, GM_ADDR rows) {
    history_ = tensor_at<int32_t>(history);
    multipliers_ = tensor_at<int64_t>(multipliers);
    primes_ = tensor_at<int64_t>(primes);
    offsets_ = tensor_at<int64_t>(offsets);
    rows_ = tensor_at<int32_t>(rows);
    pipe_.InitBuffer(numbers_, KEPT * 4);
  }

  __aicore__ inline void run() {
    const Run run = run_of_block(t_.tokens);
    // Numbers of a token are as many lookbacks of `heads`; a token has its own blocks of 32 bytes.
    const int64_t pitch = (t_.numbers + 7) / 8 * 8, batch = KEPT / pitch;
    for (int64_t first = run.begin; first < run.end; first += batch) {
      const int64_t tokens = least(run.end - first, batch);
      for (int64_t layer = 0; layer < t_.layers; ++layer) {
        for (int64_t i = 0; i < tokens; ++i) hash(first + i, layer, static_cast<uint32_t>(i * pitch));
        order<HardEvent::S_MTE3>();
        DataCopyPad(rows_[layer * t_.layer_stride + first * t_.token_stride], numbers_.Get<int32_t>(),
                    DataCopyExtParams(static_cast<uint16_t>(tokens), static_cast<uint32_t>(t_.numbers) * 4, 0, (t_.token_stride - t_.numbers) * 4, 0));
        // S may write the numbers again.
        order<HardEvent::MTE3_S>();
      }
    }
  }

private:
  static constexpr int64_t KEPT = 8192;

  // The numbers of a token in a layer. What is wrong gets any: the other kernel reports it.
  __aicore__ inline void hash(int64_t token, int64_t layer, uint32_t to) {
    const LocalTensor<int32_t> numbers = numbers_.Get<int32_t>();
    const int64_t heads = t_.numbers / t_.back, q = requests_.of_row(token);
    const bool is_row = t_.requests > 0 && requests_.is_sound(q) && token >= requests_.start(q) && token < requests_.start(q + 1);
    const int64_t first = is_row ? requests_.start(q) : 0, kept = is_row ? requests_.slot(q) * t_.history_stride : 0;
    uint64_t hash = 0;
    bool is_crossed = false, is_wrong = !is_row;
    for (int64_t lookback = 0; lookback <= t_.back; ++lookback) {
      const int64_t at = token - lookback;
      is_wrong = is_wrong || (at >= first && !tokens_.is_right(at));
      const int32_t id = is_wrong ? 0 : at < first ? history_.GetValue(kept + t_.back - (first - at)) : tokens_.compressed(at);
      is_crossed = is_crossed || id < 0;
      // Products wrap, as those of two's complement do.
      const uint64_t multiplier = static_cast<uint64_t>(multipliers_.GetValue(layer * t_.multipliers_stride + lookback));
      hash ^= static_cast<uint64_t>(static_cast<int64_t>(is_crossed ? t_.pad : id)) * multiplier;
      if (lookback == 0) continue;
      for (int64_t j = (lookback - 1) * heads; j < lookback * heads; ++j) {
        const int64_t prime = primes_.GetValue(layer * t_.primes_stride + j), offset = offsets_.GetValue(layer * t_.offsets_stride + j);
        int64_t rest = 0;
        if (is_table(prime, offset)) {
          rest = static_cast<int64_t>(hash) % prime;
          if (rest < 0) rest += prime;
        }
        numbers.SetValue(to + static_cast<uint32_t>(j), static_cast<int32_t>(rest + offset));
      }
    }
  }

  const EngramHashTiling t_;
  const Requests requests_;
  const Tokens tokens_;
  TPipe pipe_;
  TBuf<TPosition::VECOUT> numbers_;
  GlobalTensor<int32_t> history_, rows_;
  GlobalTensor<int64_t> multipliers_, primes_, offsets_;
};

extern "C" __global__ __aicore__ void engram_hash(GM_ADDR token_ids, GM_ADDR token_map, GM_ADDR image_mask, GM_ADDR history, GM_ADDR request_start,
                                                  GM_ADDR state_slot, GM_ADDR multipliers, GM_ADDR primes, GM_ADDR offsets, GM_ADDR rows,
                                                  GM_ADDR tiling) {
  const EngramHashTiling t = read_tiling<EngramHashTiling>(tiling);
  Hash kernel(t, Requests(request_start, state_slot, t.requests, t.tokens, t.slots), Tokens(token_ids, token_map, image_mask, t));
  kernel.init(history, multipliers, primes, offsets, rows);
  kernel.run();
}

class UpdateHistory {
public:
  __aicore__ inline UpdateHistory(const EngramHashTiling &t, const Requests &requests, const Tokens &tokens)
      : t_(t), requests_(requests), tokens_(tokens) {}

  __aicore__ inline void init(GM_ADDR history, GM_ADDR primes, GM_ADDR offsets, GM_ADDR faults) {
    history_ = tensor_at<int32_t>(history);
    primes_ = tensor_at<int64_t>(primes);
    offsets_ = tensor_at<int64_t>(offsets);
    faults_ = faults;
    pipe_.InitBuffer(ids_, PIECE * 4);
    pipe_.InitBuffer(room_, 32);
  }

  __aicore__ inline void run() {
    const Run tables = run_of_block(t_.layers * t_.numbers), tokens = run_of_block(t_.tokens), requests = run_of_block(t_.requests + 1);
    for (int64_t i = tables.begin; i < tables.end; ++i) {
      const int64_t layer = i / t_.numbers, j = i - layer * t_.numbers;
      const int64_t prime = primes_.GetValue(layer * t_.primes_stride + j), offset = offsets_.GetValue(layer * t_.offsets_stride + j);
      if (prime < 1) report(PRIMES, PRIME_LOW);
      else if (!is_table(prime, offset)) report(OFFSETS, OFFSET_RANGE);
    }
    for (int64_t i = tokens.begin; i < tokens.end; ++i) {
      if (!tokens_.is_right(i)) report(TOKEN_IDS, tokens_.id(i) < 0 ? TOKEN_NEGATIVE : TOKEN_HIGH);
    }
    // One more place than requests: the last start is the end.
    for (int64_t q = requests.begin; q < requests.end; ++q) {
      if (requests_.is_out_of_order(q) || requests_.is_wrong_end(q)) report(REQUEST_START, START_ORDER);
      else if (q == requests_.count()) continue;
      else if (!requests_.is_slot(q)) report(STATE_SLOT, SLOT_RANGE);
      else if (!requests_.is_sound(q)) continue;
      else if (requests_.is_slot_taken(q)) report(STATE_SLOT, SLOT_TAKEN);
      else if (requests_.has_rows(q)) keep(q);
    }
  }

private:
  static constexpr int64_t PIECE = 2048;

  __aicore__ inline void report(uint32_t argument, uint32_t rule) { report_fault(room_.Get<int32_t>(), faults_, OP, argument, rule); }

  // The latest ids of a request that has rows. Places ascend, and each takes what stood further on.
  __aicore__ inline void keep(int64_t q) {
    const LocalTensor<int32_t> ids = ids_.Get<int32_t>();
    const int64_t first = requests_.start(q), count = requests_.start(q + 1) - first, kept = requests_.slot(q) * t_.history_stride;
    for (int64_t row = most(first, first + count - t_.back); row < first + count; ++row) {
      if (!tokens_.is_right(row)) return;
    }
    for (int64_t begin = 0; begin < t_.back; begin += PIECE) {
      const int64_t places = least(t_.back - begin, PIECE);
      for (int64_t i = 0; i < places; ++i) {
        const int64_t from = begin + i + count;
        ids.SetValue(static_cast<uint32_t>(i), from < t_.back ? history_.GetValue(kept + from) : tokens_.compressed(first + from - t_.back));
      }
      order<HardEvent::S_MTE3>();
      DataCopyPad(history_[kept + begin], ids, DataCopyExtParams(1, static_cast<uint32_t>(places) * 4, 0, 0, 0));
      // S may write the ids again.
      order<HardEvent::MTE3_S>();
    }
  }

  const EngramHashTiling t_;
  const Requests requests_;
  const Tokens tokens_;
  TPipe pipe_;
  TBuf<TPosition::VECOUT> ids_, room_;
  GlobalTensor<int32_t> history_;
  GlobalTensor<int64_t> primes_, offsets_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void update_history(GM_ADDR token_ids, GM_ADDR token_map, GM_ADDR image_mask, GM_ADDR history,
                                                     GM_ADDR request_start, GM_ADDR state_slot, GM_ADDR primes, GM_ADDR offsets, GM_ADDR faults,
                                                     GM_ADDR tiling) {
  const EngramHashTiling t = read_tiling<EngramHashTiling>(tiling);
  UpdateHistory kernel(t, Requests(request_start, state_slot, t.requests, t.tokens, t.slots), Tokens(token_ids, token_map, image_mask, t));
  kernel.init(history, primes, offsets, faults);
  kernel.run();
}
