// TPipe, which gives out the unified buffer, and the queues and plain buffers in it.
//
// A queue orders the pipe that fills its tensors against the one that uses them: EnQue and DeQue in one direction, FreeTensor and
// AllocTensor in the other. It does so for these two pipes and no other: S that reads a tensor of a queue needs a flag.

#ifndef DEEPINFER_ASCEND_TWIN_QUEUE_H
#define DEEPINFER_ASCEND_TWIN_QUEUE_H

#include "tensor.h"

namespace AscendC {

class TPipe;

namespace twin_detail {
// A buffer that MTE2 fills and MTE3 empties counts as one of input, from which both may copy.
constexpr di_twin::Place place_of(TPosition from, TPosition to) {
  return from == TPosition::VECIN ? di_twin::Place::IN : to == TPosition::VECOUT ? di_twin::Place::OUT : di_twin::Place::CALC;
}
} // namespace twin_detail

template <TPosition from, TPosition to, int32_t depth, auto mask = 0> class TQueBind {
public:
  template <class T> LocalTensor<T> AllocTensor() { return tensor<T>(core().allocate(queue())); }
  template <class T> void AllocTensor(LocalTensor<T> &tensor) { tensor = AllocTensor<T>(); }
  template <class T> bool EnQue(const LocalTensor<T> &tensor) {
    core().check_tensor(tensor.twin_buffer(), tensor.twin_generation(), tensor.twin_begin(), 0, "EnQue");
    core().enqueue(queue(), tensor.twin_buffer());
    return true;
  }
  template <class T> LocalTensor<T> DeQue() { return tensor<T>(core().dequeue(queue())); }
  template <class T> void DeQue(LocalTensor<T> &tensor) { tensor = DeQue<T>(); }
  template <class T> void FreeTensor(LocalTensor<T> &tensor) {
    core().free_tensor(queue(), tensor.twin_buffer(), tensor.twin_generation());
  }
  bool VacantInQue() { return core().queue(queue()).waiting.size() < core().queue(queue()).depth; }
  bool HasTensorInQue() { return !core().queue(queue()).waiting.empty(); }
  int32_t GetTensorCountInQue() { return int32_t(core().queue(queue()).waiting.size()); }
  bool HasIdleBuffer() {
    const auto &state = core().queue(queue());
    for (uint32_t i = 0; i < state.count; ++i) {
      if (!core().buffer(state.first + i).is_allocated) return true;
    }
    return false;
  }
  void FreeAllEvent() {}

private:
  friend class TPipe;
  static di_twin::Core &core() { return di_twin::Core::now(); }
  // Who fills and who uses a tensor.
  static constexpr di_twin::Pipe producer() { return from == TPosition::VECIN ? di_twin::MTE2 : di_twin::V; }
  static constexpr di_twin::Pipe consumer() { return to == TPosition::VECOUT ? di_twin::MTE3 : di_twin::V; }
  int queue() {
    if (queue_ < 0) di_twin::wrong("a queue is used before InitBuffer");
    return queue_;
  }
  template <class T> LocalTensor<T> tensor(uint32_t index) {
    const auto &buffer = core().buffer(index);
    return LocalTensor<T>(index, buffer.generation, buffer.begin, buffer.bytes);
  }
  void init(uint8_t count, uint32_t bytes) {
    if (queue_ >= 0) di_twin::wrong("InitBuffer of a queue that has its buffers");
    if (count == 0) di_twin::wrong("InitBuffer of a queue without buffers");
    queue_ = core().new_queue(producer(), consumer(), uint32_t(depth));
    for (uint8_t i = 0; i < count; ++i) {
      const uint32_t buffer = core().init_buffer(bytes, twin_detail::place_of(from, to), true, queue_);
      if (i == 0) core().queue(queue_).first = buffer;
    }
    core().queue(queue_).count = count;
  }

  int queue_ = -1;
};

namespace twin_detail {
constexpr TPosition first_of(TPosition position) { return position == TPosition::VECOUT ? TPosition::VECCALC : position; }
constexpr TPosition second_of(TPosition position) { return position == TPosition::VECIN ? TPosition::VECCALC : position; }
} // namespace twin_detail

template <TPosition position, int32_t depth, auto mask = 0>
class TQue : public TQueBind<twin_detail::first_of(position), twin_detail::second_of(position), depth, mask> {};

// A buffer that nobody synchronises.
template <TPosition position = TPosition::VECCALC> class TBuf {
public:
  template <class T> LocalTensor<T> Get() { return GetWithOffset<T>(bytes_ / uint32_t(sizeof(T)), 0); }
  template <class T> LocalTensor<T> Get(uint32_t size) { return GetWithOffset<T>(size, 0); }
  // `offset` in bytes.
  template <class T> LocalTensor<T> GetWithOffset(uint32_t size, uint32_t offset) {
    if (buffer_ < 0) di_twin::wrong("a TBuf is used before InitBuffer");
    const auto &buffer = di_twin::Core::now().buffer(uint32_t(buffer_));
    if (offset > buffer.bytes || size * uint64_t(sizeof(T)) > buffer.bytes - offset) di_twin::wrong("Get of more than a TBuf has");
    return LocalTensor<T>(uint32_t(buffer_), buffer.generation, buffer.begin + offset, size * uint32_t(sizeof(T)));
  }

private:
  friend class TPipe;
  int buffer_ = -1;
  uint32_t bytes_ = 0;
};

class TPipe {
public:
  TPipe() { current() = this; }
  TPipe(const TPipe &) = delete;
  ~TPipe() {
    if (current() == this) current() = nullptr;
  }

  template <class Queue> bool InitBuffer(Queue &queue, uint8_t count, uint32_t bytes) {
    queue.init(count, bytes);
    return true;
  }
  template <TPosition position> bool InitBuffer(TBuf<position> &buffer, uint32_t bytes) {
    if (buffer.buffer_ >= 0) di_twin::wrong("InitBuffer of a TBuf that has its buffer");
    buffer.buffer_ = int(di_twin::Core::now().init_buffer(bytes, twin_detail::place_of(position, position), false, -1));
    buffer.bytes_ = (bytes + 31) / 32 * 32;
    return true;
  }
  template <HardEvent event> TEventID AllocEventID() { return TEventID(di_twin::Core::now().allocate_event(uint8_t(event))); }
  template <HardEvent event> void ReleaseEventID(TEventID id) { di_twin::Core::now().release_event(uint8_t(event), uint32_t(id)); }
  template <HardEvent event> TEventID FetchEventID() { return FetchEventID(event); }
  TEventID FetchEventID(HardEvent event) { return TEventID(di_twin::Core::now().fetch_event(uint8_t(event))); }

  static TPipe *&current() {
    static thread_local TPipe *pipe = nullptr;
    return pipe;
  }
};

} // namespace AscendC

// Of no namespace, as on the device.
inline AscendC::TPipe *GetTPipePtr() { return AscendC::TPipe::current(); }

#endif
