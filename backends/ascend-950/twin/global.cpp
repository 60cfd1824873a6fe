#include "global.h"

namespace di_twin {

namespace {

// So many reads are listed at most.
constexpr size_t MOST_READS = 1 << 16;

void compare_writer(const GlobalState &state, const Access &access, const Clock &known, bool is_write) {
  if (state.writer_block < 0) return;
  if (state.writer_block != int64_t(access.block)) {
    wrong("%s of block %u %s global memory that block %lld wrote in the same launch", access.name, access.block,
          is_write ? "overwrites" : "reads", (long long)state.writer_block);
  }
  if (state.written > known.at[state.writer]) {
    wrong("block %u: %s of %s %s global memory that %s wrote, and nothing orders the two", access.block, access.name, name_of(access.pipe),
          is_write ? "overwrites" : "reads", name_of(state.writer));
  }
}

// A write against the reads before it.
void compare_readers(const GlobalState &state, const Access &access, const Clock &known) {
  if (state.reader_block == -2 || (state.reader_block >= 0 && state.reader_block != int64_t(access.block))) {
    wrong("%s of block %u overwrites global memory that another block reads in the same launch", access.name, access.block);
  }
  if (state.reader_block != int64_t(access.block)) return;
  for (int i = 0; i < PIPES; ++i) {
    if (state.read[i] <= known.at[i]) continue;
    wrong("block %u: %s of %s overwrites global memory that %s reads before, and nothing orders the two", access.block, access.name,
          name_of(access.pipe), name_of(Pipe(i)));
  }
}

} // namespace

void Region::begin_launch(uint64_t begin, uint64_t end) {
  begin_ = begin;
  end_ = end;
  is_written_ = false;
  reads_.clear();
  states_.clear();
  room_.release();
}

void Region::touch(const GlobalSpan &span, const Access &access, const Clock &known) {
  if (span.bytes == 0) return;
  if (!span.is_write && !is_written_) {
    if (reads_.size() == MOST_READS) make_up();
    reads_.push_back({span, access});
    return;
  }
  if (!is_written_) {
    make_up();
    is_written_ = true;
  }
  for (uint32_t i = 0; i < span.count; ++i) touch_piece(span.piece(i), span, access, known);
}

// Nobody had written when they were made: there is nothing to compare them with.
void Region::make_up() {
  for (const Read &read : reads_) {
    for (uint32_t i = 0; i < read.span.count; ++i) touch_piece(read.span.piece(i), read.span, read.access, Clock());
  }
  reads_.clear();
}

void Region::compare_read(uint64_t begin, uint64_t bytes, const Access &access, const Clock &known) {
  if (!is_written_) return;
  auto next = states_.upper_bound(begin);
  if (next != states_.begin() && std::prev(next)->second.end > begin) --next;
  for (; next != states_.end() && next->first < begin + bytes; ++next) compare_writer(next->second, access, known, false);
}

// The first state that ends behind a place; one that lies around it is cut in two there.
Region::States::iterator Region::cut(uint64_t at) {
  const auto next = states_.upper_bound(at);
  if (next == states_.begin()) return next;
  const auto found = std::prev(next);
  if (found->second.end <= at) return next;
  return found->first == at ? found : cut(found, at);
}

Region::States::iterator Region::cut(States::iterator around, uint64_t at) {
  const GlobalState upper = around->second;
  around->second.end = at;
  return states_.emplace_hint(std::next(around), at, upper);
}

void Region::touch_piece(uint64_t begin, const GlobalSpan &span, const Access &access, const Clock &known) {
  const uint64_t end = begin + span.bytes;
  const int64_t block = access.block;
  const auto touch = [&](GlobalState &state) {
    if (!(span.is_write && span.is_atomic && state.is_atomic)) compare_writer(state, access, known, span.is_write);
    if (!span.is_write) {
      if (state.reader_block != block) {
        state.reader_block = state.reader_block == -1 ? block : -2;
        std::fill_n(state.read, PIPES, 0u);
      }
      state.read[access.pipe] = std::max(state.read[access.pipe], access.number);
      return;
    }
    compare_readers(state, access, known);
    state.writer_block = block;
    state.writer = access.pipe;
    state.written = access.number;
    state.is_atomic = span.is_atomic;
  };
  uint64_t at = begin;
  auto next = cut(begin);
  while (at < end) {
    if (next == states_.end() || next->first > at) {
      GlobalState fresh;
      fresh.end = next == states_.end() ? end : std::min(end, next->first);
      next = states_.emplace_hint(next, at, fresh);
    }
    if (next->second.end > end) cut(next, end);
    touch(next->second);
    at = next->second.end;
    ++next;
  }
}

} // namespace di_twin
