#include "core.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>

namespace di_twin {

namespace {

constexpr uint32_t PAIRS = PIPES * PIPES;
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

uint32_t Core::tick() {
  if (++time_ - before_.at[S] > most_steps) stuck("block %u: it does not come to an end within %u steps", block_, most_steps);
  return time_;
}

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
  instruction.issued.at[S] = tick();
  if (instruction.kind == Instruction::RUN) {
    instruction.number = ++stream.issued;
    names_[instruction.pipe].push_back(instruction.name);
  } else {
    instruction.number = stream.issued;
  }
  fresh_ = nullptr;
  stream.rest.push(&instruction);
  ++pending_;
  if (random_.below(8) < haste_) step_any();
  while (pending_ > MOST_PENDING) {
    if (!step_any()) stuck("the streams are full, and nothing in them can start: %s", waits().c_str());
  }
}

void Core::open_window(Stream &stream) {
  while (!stream.rest.empty() && stream.rest.front()->kind == Instruction::RUN) {
    stream.window.push_back(stream.rest.front());
    stream.rest.pop();
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

// Out of the window, which is not empty.
Instruction *Core::choose(Stream &stream) {
  auto &window = stream.window;
  Instruction *chosen;
  if (order_ == 0) {
    chosen = window.back();
    window.pop_back();
  } else if (order_ == 1) {
    const auto place = window.begin() + std::ptrdiff_t(stream.first + random_.below(uint32_t(window.size() - stream.first)));
    chosen = *place;
    window.erase(place);
  } else {
    chosen = window[stream.first++]; // the oldest
  }
  if (window.size() == stream.first) {
    window.clear();
    stream.first = 0;
  }
  return chosen;
}

void Core::step(Pipe pipe) {
  Stream &stream = streams_[pipe];
  if (!stream.window.empty()) {
    Instruction *instruction = choose(stream);
    --pending_;
    free_.push_back(instruction);
    run_instruction(*instruction, stream);
    return;
  }
  Instruction *instruction = stream.rest.front();
  stream.rest.pop();
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
  poison_.put(begin, bytes, 0xFFC00000u | uint32_t(random_.next() & 0x3FFFFF));
}

bool Core::step_any() {
  // Mostly the first by rank: the others lag as far as flags let them.
  int first = 0;
  while (first < 3 && !can_step(rank_[first])) ++first;
  if (first == 3) return false;
  Pipe ready[3] = {rank_[first]};
  int chosen = 0;
  if (random_.below(4) == 0) {
    uint32_t count = 1;
    for (int i = first + 1; i < 3; ++i) {
      if (can_step(rank_[i])) ready[count++] = rank_[i];
    }
    chosen = int(random_.below(count));
  }
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
    done.at[S] = done.at[STORES] = tick();
    flags_[flag].sets.push_back(done);
    return;
  }
  Instruction &instruction = fresh(name, from);
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
    tick();
    return;
  }
  Instruction &instruction = fresh(name, pipe);
  instruction.kind = Instruction::WAIT;
  instruction.flag = flag;
  push(instruction);
}

void Core::barrier(Pipe pipe) {
  Instruction &instruction = fresh("PipeBarrier", pipe);
  instruction.kind = Instruction::BARRIER;
  push(instruction);
}

void Core::barrier_all() {
  // A kernel that is given up does nothing any more.
  if (std::uncaught_exceptions() > 0) return;
  drain("PipeBarrier<PIPE_ALL> never ends");
  Clock all = scalar_;
  all.at[S] = all.at[STORES] = ++time_;
  for (Pipe pipe : {MTE2, V, MTE3}) all.at[pipe] = streams_[pipe].issued;
  scalar_ = all;
  for (Pipe pipe : {MTE2, V, MTE3}) streams_[pipe].known = all;
}

void Core::set_infinities_stay(bool value) {
  // A kernel that is given up does nothing any more.
  if (std::uncaught_exceptions() > 0) return;
  if (scalar_.at[V] < streams_[V].issued) wrong("block %u: SetCtrlSpr while V has something to do that S has not waited for", block_);
  infinities_stay_ = value;
}

// ---- accesses

void Core::run_instruction(Instruction &instruction, Stream &stream) {
  Clock known = stream.known;
  known.join(instruction.issued);
  // Compared before anything is noted: an instruction may write what it reads.
  for (uint32_t i = 0; i < instruction.spans; ++i) {
    Span &span = instruction.span[i];
    span.join();
    compare(instruction, span, known);
    if (!span.is_whole) poison_.settle(span.begin, span.end(), false);
  }
  for (uint32_t i = 0; i < instruction.spans; ++i) {
    const Span &span = instruction.span[i];
    note(instruction, span);
    if (span.is_whole) poison_.settle(span.begin, span.end(), span.is_one_piece());
  }
  const GlobalSpan &global = instruction.global;
  if (global.count > 0) touch_global(global, {instruction.pipe, instruction.number, block_, instruction.name}, known);
  instruction.run(instruction.payload);
}

namespace {

// f(first word, end) for each piece of a span.
template <class F> void for_pieces(const Span &span, const F &f) {
  for (uint32_t r = 0; r < span.repeats; ++r) {
    for (uint32_t b = 0; b < span.blocks; ++b) {
      const uint32_t begin = span.begin + r * span.repeat_stride + b * span.block_stride;
      f(begin / 4, (begin + span.bytes - 1) / 4 + 1);
    }
  }
}

// The same by whole blocks: f(pieces) until one is false; `false` if they are none.
template <class F> bool all_pieces(const Span &span, const F &f) {
  if ((span.begin | span.bytes | span.block_stride | span.repeat_stride) % BLOCK_BYTES != 0) return false;
  const uint32_t first = span.begin / BLOCK_BYTES, blocks = span.bytes / BLOCK_BYTES;
  if (span.blocks == 1) return f(BlockPieces{first, blocks, span.repeats, span.repeat_stride / BLOCK_BYTES});
  for (uint32_t r = 0; r < span.repeats; ++r) {
    if (!f(BlockPieces{first + r * (span.repeat_stride / BLOCK_BYTES), blocks, span.blocks, span.block_stride / BLOCK_BYTES})) return false;
  }
  return true;
}

// Whether a write lies before what somebody knows.
bool is_known(uint32_t write, const Clock &known) { return (write & 0x0FFFFFFFu) <= known.at[write >> 28]; }

// The writes of a pipe that somebody knows.
Range known_of(Pipe pipe, const Clock &known) { return {int32_t(packed(pipe, 0)), int32_t(packed(pipe, known.at[pipe]))}; }

} // namespace

void Core::compare(const Instruction &instruction, const Span &span, const Clock &known) {
  if (span.is_empty()) return;
  // Whose reads it may overwrite. What earlier blocks did is known to all.
  bool is_reader[3];
  for (int i = 0; i < 3; ++i) is_reader[i] = span.is_write && read_by_[i].may_have(span.begin / 4 * 4, span.end() + 3);
  const auto is_quickly_known = [&](const BlockPieces &pieces) {
    // All of what lies here was mostly written by one pipe.
    if (!written_.is_within(pieces, known_of(Pipe(written_.at(pieces.first * Shadow::WORDS) >> 28), known))) return false;
    for (int i = 0; i < 3; ++i) {
      if (is_reader[i] && !read_by_[i].is_within(pieces, {0, int32_t(known.at[READERS[i]])})) return false;
    }
    return true;
  };
  if (all_pieces(span, is_quickly_known)) return;
  for_pieces(span, [&](uint32_t first, uint32_t end) {
    bool is_ordered = written_.all(first, end, [&](uint32_t write) { return is_known(write, known); });
    for (int i = 0; i < 3; ++i) {
      is_ordered = is_ordered && (!is_reader[i] || read_by_[i].all(first, end, [&](uint32_t read) { return read <= known.at[READERS[i]]; }));
    }
    if (!is_ordered) report(instruction, span, first, end, known);
  });
}

// Which word of a piece it is, and what was done to it.
void Core::report(const Instruction &instruction, const Span &span, uint32_t first, uint32_t end, const Clock &known) const {
  for (uint32_t word = first; word < end; ++word) {
    const uint32_t last = written_.at(word);
    if (is_known(last, known)) continue;
    wrong("block %u: %s of %s %s UB byte %u, which %s of %s wrote, and nothing orders the two", block_, instruction.name,
          name_of(instruction.pipe), span.is_write ? "overwrites" : "reads", word * 4, writer_name(word), name_of(Pipe(last >> 28)));
  }
  for (int i = 0; i < 3; ++i) {
    for (uint32_t word = first; word < end; ++word) {
      if (read_by_[i].at(word) <= known.at[READERS[i]]) continue;
      wrong("block %u: %s of %s overwrites UB byte %u, which %s reads, and nothing orders the two", block_, instruction.name,
            name_of(instruction.pipe), word * 4, name_of(READERS[i]));
    }
  }
  wrong("block %u: %s: the twin contradicts itself", block_, instruction.name);
}

void Core::note(const Instruction &instruction, const Span &span) {
  if (span.is_empty()) return;
  const Pipe pipe = instruction.pipe;
  if (span.is_write) {
    const uint32_t mine = packed(pipe == S ? STORES : pipe, instruction.number);
    if (all_pieces(span, [&](const BlockPieces &pieces) { return written_.set(pieces, mine), true; })) return;
    for_pieces(span, [&](uint32_t first, uint32_t end) { written_.set(first, end, mine); });
    return;
  }
  Shadow &reads = read_by_[reader_of(pipe)];
  if (all_pieces(span, [&](const BlockPieces &pieces) { return reads.raise(pieces, instruction.number), true; })) return;
  for_pieces(span, [&](uint32_t first, uint32_t end) { reads.raise(first, end, instruction.number); });
}

const char *Core::writer_name(uint32_t word) const {
  const Pipe pipe = Pipe(written_.at(word) >> 28);
  const uint32_t number = (written_.at(word) & 0x0FFFFFFFu) - before_.at[pipe];
  return number > 0 && number <= names_[pipe].size() ? names_[pipe][number - 1] : "SetValue";
}

void Core::scalar_ub(uint32_t begin, uint32_t bytes, bool is_write, const char *name) {
  tick();
  poison_.settle(begin, begin + bytes, false);
  for (uint32_t word = begin / 4; word <= (begin + bytes - 1) / 4; ++word) {
    const uint32_t last = written_.at(word), number = last & 0x0FFFFFFFu;
    const Pipe writer = Pipe(last >> 28);
    if (writer != STORES && number > scalar_.at[writer]) {
      wrong("block %u: %s of S %s UB byte %u, which %s of %s wrote, and nothing orders the two", block_, name, is_write ? "overwrites" : "reads",
            word * 4, writer_name(word), name_of(writer));
    }
    if (!is_write) {
      read_by_[reader_of(S)].raise(word, word + 1, time_);
      continue;
    }
    for (int i = 0; i < 2; ++i) {
      if (read_by_[i].at(word) > scalar_.at[READERS[i]]) {
        wrong("block %u: %s of S overwrites UB byte %u, which %s reads, and nothing orders the two", block_, name, word * 4, name_of(READERS[i]));
      }
    }
    written_.set(word, word + 1, packed(STORES, time_));
  }
  if (haste_ > 0 && random_.below(16) < haste_) step_any();
}

void Core::check_global(const GlobalSpan &span, const char *name) {
  if (span.count == 0 || span.bytes == 0 || global_.find(span)) return;
  for (uint32_t i = 0; i < span.count; ++i) region(span.piece(i), span.bytes, name);
}

void Core::touch_global(const GlobalSpan &span, const Access &access, const Clock &known) {
  if (Region *all = global_.find(span)) return all->touch(span, access, known);
  GlobalSpan piece = span;
  piece.count = 1;
  for (uint32_t i = 0; i < span.count; ++i) {
    piece.begin = span.piece(i);
    if (span.bytes > 0) region(piece.begin, span.bytes, access.name).touch(piece, access, known);
  }
}

namespace {
GlobalSpan one_piece(uint64_t begin, uint64_t bytes, bool is_write) { return {begin, bytes, is_write, false, 1, 0}; }
} // namespace

// Reads of neighbours, one after another, are noted as one, before anything that writes global memory is issued.
void Core::flush_reads() {
  if (reads_.begin == reads_.end) return;
  Clock known = scalar_;
  known.at[S] = known.at[STORES] = time_;
  touch_global(one_piece(reads_.begin, reads_.end - reads_.begin, false), {S, reads_.time, block_, "GetValue of global memory"}, known);
  reads_.begin = reads_.end = 0;
}

void Core::scalar_global(uint64_t begin, uint32_t bytes, bool is_write, const char *name) {
  Region &touched = region(begin, bytes, name);
  if (begin % bytes != 0) wrong("block %u: %s at an address that is no multiple of %u", block_, name, bytes);
  tick();
  Clock known = scalar_;
  known.at[S] = known.at[STORES] = time_;
  if (is_write) {
    flush_reads();
    touched.touch(one_piece(begin, bytes, true), {STORES, time_, block_, name}, known);
    return;
  }
  touched.compare_read(begin, bytes, {S, time_, block_, name}, known);
  if (begin != reads_.end || !touched.has(reads_.begin, begin + bytes - reads_.begin)) {
    flush_reads();
    reads_.begin = begin;
  }
  reads_.end = begin + bytes;
  reads_.time = time_;
}

Region &Core::region(uint64_t begin, uint64_t bytes, const char *name) {
  if (Region *found = global_.find(begin, bytes)) return *found;
  uint64_t first = 0, size = 0;
  if (launch_ == nullptr || launch_->find(launch_->context, begin, &first, &size) == 0) {
    wrong("block %u: %s touches address 0x%llx, where nothing is allocated", block_, name, (unsigned long long)begin);
  }
  if (begin < first || bytes > size - (begin - first)) {
    wrong("block %u: %s touches %llu bytes at 0x%llx, beyond the end of an allocation of %llu bytes", block_, name,
          (unsigned long long)bytes, (unsigned long long)begin, (unsigned long long)size);
  }
  return global_.add(first, first + size);
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
  Instruction &poison = fresh("FreeTensor", queue.consumer);
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
    written_.clear();
    for (Shadow &reads : read_by_) reads.clear();
  }
  for (int i = 0; i < PIPES; ++i) {
    before_.at[i] = i == S || i == STORES ? time_ : streams_[i].issued;
    names_[i].clear();
  }
  for (Shadow &reads : read_by_) reads.begin();
  scalar_ = before_;
  atomic = 0;
  infinities_stay_ = false;
  for (Stream &stream : streams_) {
    free_.insert(free_.end(), stream.window.begin() + std::ptrdiff_t(stream.first), stream.window.end());
    for (; !stream.rest.empty(); stream.rest.pop()) free_.push_back(stream.rest.front());
    stream.window.clear();
    stream.first = 0;
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
  if (infinities_stay_) wrong("block %u: bit 48 of the control register is not as it was before the kernel", block_);
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
  global_.begin_launch();
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
      const char *what = error.what();
      message = std::string("the host twin failed: ") + (what != nullptr ? what : "an exception without a text");
    } catch (...) {
      message = "the host twin failed: the kernel threw what is no exception of the library";
    }
  }
  if (code != DI_TWIN_OK && launch->message != nullptr && launch->message_bytes > 0) {
    std::snprintf(launch->message, launch->message_bytes, "%s", message.c_str());
  }
  return code;
}
