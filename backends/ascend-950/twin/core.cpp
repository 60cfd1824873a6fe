#include "core.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace di_twin {

namespace {

constexpr uint32_t PAIRS = PIPES * PIPES;
// So many instructions wait at most before the stepper goes on by itself.
constexpr uint32_t MOST_PENDING = 1024;
constexpr size_t MESSAGE = 512;

std::string text(const char *format, va_list arguments) {
  char line[MESSAGE];
  std::vsnprintf(line, sizeof line, format, arguments);
  return line;
}

int reader_of(Pipe pipe) { return pipe == V ? 0 : pipe == MTE3 ? 1 : 2; }
constexpr Pipe READERS[3] = {V, MTE3, S};

// Instructions of a stream before its numbers begin anew; they have 28 bits.
constexpr uint32_t MOST_NUMBERED = 1u << 26;

uint32_t packed(Pipe pipe, uint32_t number) { return uint32_t(pipe) << 28 | (number & 0x0FFFFFFFu); }

} // namespace

void wrong(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Fault fault{DI_TWIN_VECTOR_EXCEPTION, text(format, arguments)};
  va_end(arguments);
  throw fault;
}

void stuck(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Fault fault{DI_TWIN_VECTOR_TIMEOUT, text(format, arguments)};
  va_end(arguments);
  throw fault;
}

const char *name_of(Pipe pipe) {
  static const char *const NAMES[PIPES] = {"S", "S", "MTE2", "V", "MTE3"};
  return NAMES[pipe];
}

Core &Core::now() {
  // It is large: on the heap, one per thread that launches.
  static thread_local std::unique_ptr<Core> core(new Core);
  return *core;
}

// ---- streams

Instruction *Core::take() {
  if (free_.empty()) {
    pool_.emplace_back(new Instruction);
    return pool_.back().get();
  }
  Instruction *instruction = free_.back();
  free_.pop_back();
  return instruction;
}

void Core::push(Instruction &instruction) {
  Stream &stream = streams_[instruction.pipe];
  // S has waited for what it knows of, and only then issued this.
  if (instruction.global.count > 0 && instruction.global.is_write) flush_reads();
  instruction.issued = scalar_;
  instruction.issued.at[S] = ++time_;
  if (instruction.kind == Instruction::RUN) {
    instruction.number = ++stream.issued;
    names_[instruction.pipe].push_back(instruction.name);
  } else {
    instruction.number = stream.issued;
  }
  Instruction *kept = take();
  // Only what is used of it.
  std::memcpy(static_cast<void *>(kept), &instruction, offsetof(Instruction, span));
  std::copy_n(instruction.span, instruction.spans, kept->span);
  kept->global = instruction.global;
  kept->run = instruction.run;
  if (instruction.kind == Instruction::RUN) std::memcpy(kept->payload, instruction.payload, Instruction::PAYLOAD);
  stream.rest.push_back(kept);
  ++pending_;
  if (random_.below(8) < haste_) step_any();
  while (pending_ > MOST_PENDING) {
    if (!step_any()) stuck("the streams are full, and nothing in them can start: %s", waits().c_str());
  }
}

void Core::open_window(Stream &stream) {
  while (!stream.rest.empty() && stream.rest.front()->kind == Instruction::RUN) {
    stream.window.push_back(stream.rest.front());
    stream.rest.pop_front();
  }
}

bool Core::can_step(Pipe pipe) {
  Stream &stream = streams_[pipe];
  open_window(stream);
  if (!stream.window.empty()) return true;
  if (stream.rest.empty()) return false;
  const Instruction &next = *stream.rest.front();
  return next.kind != Instruction::WAIT || !flags_[next.flag].sets.empty();
}

void Core::step(Pipe pipe) {
  Stream &stream = streams_[pipe];
  if (!stream.window.empty()) {
    size_t chosen = 0; // the oldest
    if (order_ == 0) chosen = stream.window.size() - 1;
    else if (order_ == 1) chosen = random_.below(uint32_t(stream.window.size()));
    Instruction *instruction = stream.window[chosen];
    stream.window.erase(stream.window.begin() + std::ptrdiff_t(chosen));
    --pending_;
    free_.push_back(instruction);
    run_instruction(*instruction, stream);
    return;
  }
  Instruction *instruction = stream.rest.front();
  stream.rest.pop_front();
  --pending_;
  free_.push_back(instruction);
  stream.finished = instruction->number;
  stream.known.join(instruction->issued);
  switch (instruction->kind) {
  case Instruction::BARRIER: stream.known.at[pipe] = stream.finished; break;
  case Instruction::SET: {
    Clock done = stream.known;
    done.at[pipe] = stream.finished;
    flags_[instruction->flag].sets.push_back(done);
    break;
  }
  case Instruction::WAIT: {
    auto &sets = flags_[instruction->flag].sets;
    stream.known.join(sets.front());
    sets.erase(sets.begin());
    break;
  }
  default: {
    poison(instruction->span[0].begin, instruction->span[0].bytes);
  }
  }
}

void Core::poison(uint32_t begin, uint32_t bytes) {
  // As F32 a NaN, as an integer far from any index.
  const uint32_t word = 0xFFC00000u | uint32_t(random_.next() & 0x3FFFFF);
  uint32_t *words = reinterpret_cast<uint32_t *>(ub_ + begin);
  std::fill(words, words + bytes / 4, word);
}

bool Core::step_any() {
  Pipe ready[3];
  int count = 0;
  for (Pipe pipe : rank_) {
    if (can_step(pipe)) ready[count++] = pipe;
  }
  if (count == 0) return false;
  // Mostly the first by rank: the others lag as far as flags let them.
  const int chosen = random_.below(4) == 0 ? int(random_.below(uint32_t(count))) : 0;
  step(ready[chosen]);
  return true;
}

void Core::drain(const char *reason) {
  while (pending_ > 0) {
    if (!step_any()) stuck("%s: %s", reason, waits().c_str());
  }
}

std::string Core::waits() const {
  std::string all;
  for (Pipe pipe : {MTE2, V, MTE3}) {
    const Stream &stream = streams_[pipe];
    if (stream.rest.empty()) continue;
    all += all.empty() ? "" : ", ";
    all += std::string(name_of(pipe)) + " waits in " + stream.rest.front()->name;
  }
  return all.empty() ? "no other pipe has anything to do" : all;
}

void Core::set_flag(Pipe from, uint32_t flag, const char *name) {
  if (++flags_.at(flag).ahead > 1) wrong("block %u: %s of a flag that is set already: a wait is missing", block_, name);
  if (from == S) {
    Clock done = scalar_;
    done.at[S] = done.at[STORES] = ++time_;
    flags_[flag].sets.push_back(done);
    return;
  }
  Instruction instruction;
  instruction.name = name;
  instruction.pipe = from;
  instruction.kind = Instruction::SET;
  instruction.flag = flag;
  push(instruction);
}

void Core::wait_flag(Pipe pipe, uint32_t flag, const char *name) {
  --flags_.at(flag).ahead;
  if (pipe == S) {
    auto &sets = flags_[flag].sets;
    while (sets.empty()) {
      if (!step_any()) stuck("S waits in %s for a flag that nobody sets; %s", name, waits().c_str());
    }
    scalar_.join(sets.front());
    sets.erase(sets.begin());
    ++time_;
    return;
  }
  Instruction instruction;
  instruction.name = name;
  instruction.pipe = pipe;
  instruction.kind = Instruction::WAIT;
  instruction.flag = flag;
  push(instruction);
}

void Core::barrier(Pipe pipe) {
  Instruction instruction;
  instruction.name = "PipeBarrier";
  instruction.pipe = pipe;
  instruction.kind = Instruction::BARRIER;
  push(instruction);
}

void Core::barrier_all() {
  drain("PipeBarrier<PIPE_ALL> never ends");
  Clock all = scalar_;
  all.at[S] = all.at[STORES] = ++time_;
  for (Pipe pipe : {MTE2, V, MTE3}) all.at[pipe] = streams_[pipe].issued;
  scalar_ = all;
  for (Pipe pipe : {MTE2, V, MTE3}) streams_[pipe].known = all;
}

// ---- accesses

void Core::run_instruction(Instruction &instruction, Stream &stream) {
  Clock known = stream.known;
  known.join(instruction.issued);
  // Compared before anything is noted: an instruction may write what it reads.
  for (uint32_t i = 0; i < instruction.spans; ++i) compare(instruction, instruction.span[i], known);
  for (uint32_t i = 0; i < instruction.spans; ++i) note(instruction, instruction.span[i]);
  const GlobalSpan &global = instruction.global;
  for (uint32_t i = 0; i < global.count; ++i) {
    note_global(instruction.pipe, instruction.number, known, global.begin + uint64_t(int64_t(i) * global.stride), global.bytes,
                global.is_write, global.is_atomic, instruction.name);
  }
  instruction.run(instruction.payload);
}

namespace {

// f(first word, end) for each piece of a span.
template <class F> void for_pieces(const Span &span, const F &f) {
  if (span.bytes == 0) return;
  for (uint32_t r = 0; r < span.repeats; ++r) {
    for (uint32_t b = 0; b < span.blocks; ++b) {
      const uint32_t begin = span.begin + r * span.repeat_stride + b * span.block_stride;
      f(begin / 4, (begin + span.bytes - 1) / 4 + 1);
    }
  }
}

} // namespace

void Core::compare(const Instruction &instruction, const Span &span, const Clock &known) {
  const Pipe pipe = instruction.pipe;
  for_pieces(span, [&](uint32_t first, uint32_t end) {
    for (uint32_t word = first, before = ~0u; word < end; ++word) {
      const uint32_t last = written_[word];
      // Neighbours were mostly written by one instruction.
      if (last == before) continue;
      before = last;
      if ((last & 0x0FFFFFFFu) > known.at[last >> 28]) {
        wrong("block %u: %s of %s %s UB byte %u, which %s of %s wrote, and nothing orders the two", block_, instruction.name, name_of(pipe),
              span.is_write ? "overwrites" : "reads", word * 4, writer_name(word), name_of(Pipe(last >> 28)));
      }
    }
    if (!span.is_write) return;
    for (int i = 0; i < 3; ++i) {
      const uint32_t seen = known.at[READERS[i]];
      for (uint32_t word = first; word < end; ++word) {
        if (read_by_[i][word] <= seen) continue;
        wrong("block %u: %s of %s overwrites UB byte %u, which %s reads, and nothing orders the two", block_, instruction.name, name_of(pipe),
              word * 4, name_of(READERS[i]));
      }
    }
  });
}

void Core::note(const Instruction &instruction, const Span &span) {
  const Pipe pipe = instruction.pipe;
  if (span.is_write) {
    const uint32_t mine = packed(pipe == S ? STORES : pipe, instruction.number);
    for_pieces(span, [&](uint32_t first, uint32_t end) {
      std::fill(written_ + first, written_ + end, mine);
    });
    return;
  }
  uint32_t *reads = read_by_[reader_of(pipe)];
  for_pieces(span, [&](uint32_t first, uint32_t end) {
    for (uint32_t word = first; word < end; ++word) reads[word] = std::max(reads[word], instruction.number);
  });
}

const char *Core::writer_name(uint32_t word) const {
  const Pipe pipe = Pipe(written_[word] >> 28);
  const uint32_t number = (written_[word] & 0x0FFFFFFFu) - before_.at[pipe];
  return number > 0 && number <= names_[pipe].size() ? names_[pipe][number - 1] : "SetValue";
}

void Core::scalar_ub(uint32_t begin, uint32_t bytes, bool is_write, const char *name) {
  ++time_;
  for (uint32_t word = begin / 4; word <= (begin + bytes - 1) / 4; ++word) {
    const uint32_t last = written_[word], number = last & 0x0FFFFFFFu;
    const Pipe writer = Pipe(last >> 28);
    if (writer != STORES && number > scalar_.at[writer]) {
      wrong("block %u: %s of S %s UB byte %u, which %s of %s wrote, and nothing orders the two", block_, name, is_write ? "overwrites" : "reads",
            word * 4, writer_name(word), name_of(writer));
    }
    if (!is_write) {
      read_by_[reader_of(S)][word] = time_;
      continue;
    }
    for (int i = 0; i < 2; ++i) {
      if (read_by_[i][word] > scalar_.at[READERS[i]]) {
        wrong("block %u: %s of S overwrites UB byte %u, which %s reads, and nothing orders the two", block_, name, word * 4, name_of(READERS[i]));
      }
    }
    written_[word] = packed(STORES, time_);
  }
  if (haste_ > 0 && random_.below(16) < haste_) step_any();
}

// Reads of neighbours, one after another, are noted as one, before anything that writes global memory is issued.
void Core::flush_reads() {
  if (reads_.begin == reads_.end) return;
  Clock known = scalar_;
  known.at[S] = known.at[STORES] = time_;
  note_global(S, reads_.time, known, reads_.begin, reads_.end - reads_.begin, false, false, "GetValue of global memory");
  reads_.begin = reads_.end = 0;
}

void Core::scalar_global(uint64_t begin, uint32_t bytes, bool is_write, const char *name) {
  check_global(begin, bytes, name);
  if (begin % bytes != 0) wrong("block %u: %s at an address that is no multiple of %u", block_, name, bytes);
  ++time_;
  Clock known = scalar_;
  known.at[S] = known.at[STORES] = time_;
  if (is_write) {
    flush_reads();
    note_global(STORES, time_, known, begin, bytes, true, false, name);
    return;
  }
  for (auto next = overlapping(begin); next != global_.end() && next->first < begin + bytes; ++next) compare_writer(next->second, S, known, false, name);
  if (begin != reads_.end) {
    flush_reads();
    reads_.begin = begin;
  }
  reads_.end = begin + bytes;
  reads_.time = time_;
}

void Core::check_global(uint64_t begin, uint64_t bytes, const char *name) {
  if (bytes == 0) return;
  for (const auto &range : ranges_) {
    if (begin >= range.first && begin < range.second && bytes <= range.second - begin) return;
  }
  uint64_t first = 0, size = 0;
  if (launch_ == nullptr || launch_->find(launch_->context, begin, &first, &size) == 0) {
    wrong("block %u: %s touches address 0x%llx, where nothing is allocated", block_, name, (unsigned long long)begin);
  }
  if (begin < first || bytes > size - (begin - first)) {
    wrong("block %u: %s touches %llu bytes at 0x%llx, beyond the end of an allocation of %llu bytes", block_, name,
          (unsigned long long)bytes, (unsigned long long)begin, (unsigned long long)size);
  }
  // The latest in front.
  ranges_.insert(ranges_.begin(), {first, first + size});
}

std::map<uint64_t, GlobalState>::iterator Core::overlapping(uint64_t begin) {
  auto next = global_.upper_bound(begin);
  if (next != global_.begin() && std::prev(next)->second.end > begin) --next;
  return next;
}

void Core::compare_writer(const GlobalState &state, Pipe pipe, const Clock &known, bool is_write, const char *name) const {
  if (state.writer_block < 0) return;
  if (state.writer_block != int64_t(block_)) {
    wrong("%s of block %u %s global memory that block %lld wrote in the same launch", name, block_, is_write ? "overwrites" : "reads",
          (long long)state.writer_block);
  }
  if (state.written > known.at[state.writer]) {
    wrong("block %u: %s of %s %s global memory that %s wrote, and nothing orders the two", block_, name, name_of(pipe),
          is_write ? "overwrites" : "reads", name_of(state.writer));
  }
}

void Core::note_global(Pipe pipe, uint32_t number, const Clock &known, uint64_t begin, uint64_t bytes, bool is_write, bool is_atomic,
                       const char *name) {
  if (bytes == 0) return;
  const uint64_t end = begin + bytes;
  const int64_t block = block_;
  const auto split = [&](uint64_t at) {
    auto next = global_.upper_bound(at);
    if (next == global_.begin()) return;
    auto found = std::prev(next);
    if (found->first == at || found->second.end <= at) return;
    GlobalState upper = found->second;
    found->second.end = at;
    global_.emplace_hint(next, at, upper);
  };
  split(begin);
  split(end);
  const auto touch = [&](GlobalState &state) {
    if (!(is_write && is_atomic && state.is_atomic)) compare_writer(state, pipe, known, is_write, name);
    if (!is_write) {
      if (state.reader_block != block) {
        state.reader_block = state.reader_block == -1 ? block : -2;
        std::fill_n(state.read, PIPES, 0u);
      }
      state.read[pipe] = std::max(state.read[pipe], number);
      return;
    }
    if (state.reader_block == -2 || (state.reader_block >= 0 && state.reader_block != block)) {
      wrong("%s of block %u overwrites global memory that another block reads in the same launch", name, block_);
    }
    if (state.reader_block == block) {
      for (int i = 0; i < PIPES; ++i) {
        if (state.read[i] > known.at[i]) {
          wrong("block %u: %s of %s overwrites global memory that %s reads before, and nothing orders the two", block_, name,
                name_of(pipe), name_of(Pipe(i)));
        }
      }
    }
    state.writer_block = block;
    state.writer = pipe;
    state.written = number;
    state.is_atomic = is_atomic;
  };
  uint64_t at = begin;
  auto next = global_.lower_bound(begin);
  while (at < end) {
    if (next == global_.end() || next->first > at) {
      const uint64_t gap = next == global_.end() ? end : std::min(end, next->first);
      GlobalState fresh;
      fresh.end = gap;
      next = global_.emplace_hint(next, at, fresh);
    }
    touch(next->second);
    at = next->second.end;
    ++next;
  }
}

void Core::check_tensor(uint32_t buffer, uint32_t generation, uint32_t begin, uint64_t bytes, const char *name) const {
  if (buffer >= buffers_.size()) wrong("block %u: %s takes a tensor that no queue or buffer gave out", block_, name);
  const Buffer &owner = buffers_[buffer];
  if (owner.generation != generation) wrong("block %u: %s takes a tensor that was freed", block_, name);
  if (begin < owner.begin || begin + bytes > uint64_t(owner.begin) + owner.bytes) {
    wrong("block %u: %s touches bytes %lld to %lld of a buffer of %u bytes", block_, name, (long long)begin - (long long)owner.begin,
          (long long)(begin + bytes) - (long long)owner.begin, owner.bytes);
  }
}

// ---- buffers and queues

uint32_t Core::init_buffer(uint32_t bytes, Place place, bool is_queue, int queue) {
  if (bytes == 0) wrong("InitBuffer of no bytes");
  const uint32_t rounded = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
  if (bytes > UB_BYTES || rounded > UB_BYTES - used_) {
    wrong("InitBuffer of %u bytes: the unified buffer has %u bytes, %u of them are in use", bytes, UB_BYTES, used_);
  }
  if (buffers_.size() == MOST_BUFFERS) wrong("InitBuffer: more than %u buffers", MOST_BUFFERS);
  uint32_t in_queues = is_queue;
  for (const Buffer &buffer : buffers_) in_queues += buffer.is_queue;
  if (in_queues > MOST_QUEUE_BUFFERS) wrong("InitBuffer: more than %u buffers of queues", MOST_QUEUE_BUFFERS);
  Buffer buffer;
  buffer.begin = used_;
  buffer.bytes = rounded;
  buffer.place = place;
  buffer.is_queue = is_queue;
  buffer.queue = queue;
  used_ += rounded;
  poison(buffer.begin, rounded);
  buffers_.push_back(buffer);
  if (is_queue) {
    // Ready, and free: the latter is set from the beginning.
    Flag &is_free = flags_[PAIRS * FLAG_IDS + 2 * (buffers_.size() - 1) + 1];
    is_free.sets.emplace_back();
    is_free.ahead = 1;
  }
  return uint32_t(buffers_.size() - 1);
}

int Core::new_queue(Pipe producer, Pipe consumer, uint32_t depth) {
  QueueState queue;
  queue.producer = producer;
  queue.consumer = consumer;
  queue.depth = depth;
  queues_.push_back(queue);
  return int(queues_.size() - 1);
}

namespace {
uint32_t ready_flag(uint32_t buffer) { return PAIRS * FLAG_IDS + 2 * buffer; }
uint32_t free_flag(uint32_t buffer) { return ready_flag(buffer) + 1; }
} // namespace

uint32_t Core::allocate(int index) {
  QueueState &queue = queues_.at(size_t(index));
  for (uint32_t i = 0; i < queue.count; ++i) {
    const uint32_t buffer = queue.first + (queue.next + i) % queue.count;
    if (buffers_[buffer].is_allocated) continue;
    queue.next = (buffer - queue.first + 1) % queue.count;
    buffers_[buffer].is_allocated = true;
    buffers_[buffer].was_queued = false;
    if (queue.producer == queue.consumer) barrier(queue.producer);
    wait_flag(queue.producer, free_flag(buffer), "AllocTensor");
    return buffer;
  }
  wrong("block %u: AllocTensor: all %u buffers of the queue are in use; a tensor was not freed", block_, queue.count);
}

void Core::enqueue(int index, uint32_t buffer) {
  QueueState &queue = queues_.at(size_t(index));
  if (buffer < queue.first || buffer >= queue.first + queue.count || !buffers_[buffer].is_allocated) {
    wrong("block %u: EnQue of a tensor that is not of this queue", block_);
  }
  for (uint32_t waiting : queue.waiting) {
    if (waiting == buffer) wrong("block %u: EnQue of a tensor that is in the queue already", block_);
  }
  if (queue.waiting.size() >= queue.depth) wrong("block %u: EnQue: the queue has %u tensors, its depth, in it", block_, queue.depth);
  queue.waiting.push_back(buffer);
  set_flag(queue.producer, ready_flag(buffer), "EnQue");
}

uint32_t Core::dequeue(int index) {
  QueueState &queue = queues_.at(size_t(index));
  if (queue.waiting.empty()) wrong("block %u: DeQue of an empty queue: EnQue is missing", block_);
  const uint32_t buffer = queue.waiting.front();
  queue.waiting.pop_front();
  buffers_[buffer].was_queued = true;
  wait_flag(queue.consumer, ready_flag(buffer), "DeQue");
  if (queue.producer == queue.consumer) barrier(queue.consumer);
  return buffer;
}

void Core::free_tensor(int index, uint32_t buffer, uint32_t generation) {
  QueueState &queue = queues_.at(size_t(index));
  if (buffer < queue.first || buffer >= queue.first + queue.count || !buffers_[buffer].is_allocated ||
      buffers_[buffer].generation != generation) {
    wrong("block %u: FreeTensor of a tensor that this queue did not give out, or that was freed before", block_);
  }
  for (uint32_t waiting : queue.waiting) {
    if (waiting == buffer) wrong("block %u: FreeTensor of a tensor that is in the queue: DeQue is missing", block_);
  }
  if (queue.producer != queue.consumer && !buffers_[buffer].was_queued) {
    wrong("block %u: FreeTensor of a tensor that was not in the queue: EnQue and DeQue are missing", block_);
  }
  buffers_[buffer].is_allocated = false;
  ++buffers_[buffer].generation;
  Instruction poison;
  poison.name = "FreeTensor";
  poison.pipe = queue.consumer;
  poison.kind = Instruction::POISON;
  poison.spans = 1;
  poison.span[0] = Span{buffers_[buffer].begin, buffers_[buffer].bytes, true};
  push(poison);
  set_flag(queue.consumer, free_flag(buffer), "FreeTensor");
}

uint32_t Core::event_flag(uint32_t pair, uint32_t id, const char *name) const {
  if (id >= FLAG_IDS) wrong("block %u: %s with event %u: there are %u of each kind", block_, name, id, FLAG_IDS);
  return pair * FLAG_IDS + id;
}

uint32_t Core::allocate_event(uint32_t pair) {
  for (uint32_t id = 0; id < FLAG_IDS; ++id) {
    if (taken_[pair * FLAG_IDS + id]) continue;
    taken_[pair * FLAG_IDS + id] = 1;
    return id;
  }
  wrong("block %u: AllocEventID: all %u events of this kind are taken", block_, FLAG_IDS);
}

uint32_t Core::fetch_event(uint32_t pair) const {
  for (uint32_t id = 0; id < FLAG_IDS; ++id) {
    if (!taken_[pair * FLAG_IDS + id]) return id;
  }
  wrong("block %u: FetchEventID: all %u events of this kind are taken", block_, FLAG_IDS);
}

void Core::release_event(uint32_t pair, uint32_t id) { taken_.at(pair * FLAG_IDS + id) = 0; }

// ---- launches

void Core::begin_block(uint32_t block) {
  block_ = block;
  used_ = 0;
  pending_ = 0;
  reads_ = {};
  // Numbers go on from block to block: what earlier blocks did lies before all that this one may know, and nothing is cleared. It is
  // when the numbers come near to what a word holds.
  bool is_full = time_ > MOST_NUMBERED;
  for (const Stream &stream : streams_) is_full = is_full || stream.issued > MOST_NUMBERED;
  if (is_full) {
    time_ = 0;
    for (Stream &stream : streams_) stream.issued = 0;
    std::fill(std::begin(written_), std::end(written_), 0u);
    for (auto &reads : read_by_) std::fill(std::begin(reads), std::end(reads), 0u);
  }
  for (int i = 0; i < PIPES; ++i) {
    before_.at[i] = i == S || i == STORES ? time_ : streams_[i].issued;
    names_[i].clear();
  }
  scalar_ = before_;
  atomic = 0;
  infinities_stay = false;
  for (Stream &stream : streams_) {
    for (Instruction *instruction : stream.window) free_.push_back(instruction);
    for (Instruction *instruction : stream.rest) free_.push_back(instruction);
    stream.window.clear();
    stream.rest.clear();
    stream.finished = stream.issued;
    stream.known = before_;
  }
  flags_.resize(PAIRS * FLAG_IDS + 2 * MOST_BUFFERS);
  for (Flag &flag : flags_) {
    flag.sets.clear();
    flag.ahead = 0;
  }
  taken_.assign(PAIRS * FLAG_IDS, 0);
  buffers_.clear();
  queues_.clear();
  // Mostly the newest first and everybody late: what lacks an order comes out wrong.
  static const int ORDERS[4] = {0, 0, 1, 2};
  order_ = ORDERS[random_.below(4)];
  static const uint32_t HASTE[4] = {0, 0, 2, 8};
  haste_ = HASTE[random_.below(4)];
  for (uint32_t i = 2; i > 0; --i) std::swap(rank_[i], rank_[random_.below(i + 1)]);
}

void Core::end_block() {
  flush_reads();
  drain("the kernel has ended, but its streams have not");
  for (const QueueState &queue : queues_) {
    if (!queue.waiting.empty()) wrong("block %u: %zu tensors are left in a queue at the end", block_, queue.waiting.size());
  }
  if (infinities_stay) wrong("block %u: bit 48 of the control register is not as it was before the kernel", block_);
  for (const Buffer &buffer : buffers_) {
    if (buffer.is_allocated) wrong("block %u: a tensor of %u bytes was not freed", block_, buffer.bytes);
  }
  for (uint32_t i = 0; i < PAIRS * FLAG_IDS; ++i) {
    if (!flags_[i].sets.empty()) {
      wrong("block %u: event %u from %s to %s is left set at the end: a wait is missing", block_, i % FLAG_IDS,
            name_of(Pipe(i / FLAG_IDS / PIPES)), name_of(Pipe(i / FLAG_IDS % PIPES)));
    }
  }
}

namespace {

// Calls the kernel with as many addresses as it takes.
template <size_t... I> void call_with(void *kernel, const uint64_t *args, std::index_sequence<I...>) {
  using Function = void (*)(decltype(reinterpret_cast<uint8_t *>(args[I]))...);
  reinterpret_cast<Function>(kernel)(reinterpret_cast<uint8_t *>(args[I])...);
}

template <size_t N> void call(void *kernel, const uint64_t *args, uint32_t count) {
  if (count == N) return call_with(kernel, args, std::make_index_sequence<N>());
  if constexpr (N > 1) call<N - 1>(kernel, args, count);
}

} // namespace

int Core::launch(const DiTwinLaunch &launch, std::string &message) {
  launch_ = &launch;
  seed_ = launch.seed;
  blocks_ = launch.blocks;
  random_ = Random(launch.seed * 0x2545F4914F6CDD1Dull + 0x5DEECE66Dull);
  ranges_.clear();
  global_.clear();
  std::vector<uint32_t> order(launch.blocks);
  for (uint32_t i = 0; i < launch.blocks; ++i) order[i] = i;
  for (uint32_t i = launch.blocks; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  int code = DI_TWIN_OK;
  try {
    for (uint32_t block : order) {
      begin_block(block);
      call<DI_TWIN_MAX_ARGS>(launch.kernel, launch.args, launch.arg_count);
      end_block();
    }
  } catch (const Fault &fault) {
    code = fault.code;
    message = fault.message;
  }
  launch_ = nullptr;
  return code;
}

} // namespace di_twin

extern "C" __attribute__((visibility("default"))) int di_twin_launch(const DiTwinLaunch *launch) {
  std::string message;
  int code = DI_TWIN_VECTOR_EXCEPTION;
  if (launch == nullptr || launch->struct_size < sizeof(DiTwinLaunch)) return code;
  if (launch->kernel == nullptr || launch->find == nullptr || launch->blocks == 0 || launch->arg_count == 0 ||
      launch->arg_count > DI_TWIN_MAX_ARGS) {
    message = "a launch without a kernel, blocks or arguments";
  } else {
    try {
      code = di_twin::Core::now().launch(*launch, message);
    } catch (const std::exception &error) {
      message = std::string("the host twin failed: ") + error.what();
    }
  }
  if (code != DI_TWIN_OK && launch->message != nullptr && launch->message_bytes > 0) {
    std::snprintf(launch->message, launch->message_bytes, "%s", message.c_str());
  }
  return code;
}
