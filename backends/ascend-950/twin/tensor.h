// Tensors in the unified buffer and in global memory, events and barriers.

#ifndef DEEPINFER_ASCEND_TWIN_TENSOR_H
#define DEEPINFER_ASCEND_TWIN_TENSOR_H

#include "core.h"
#include "types.h"

#define __aicore__
#define __global__ __attribute__((visibility("default")))
#define __gm__
#define __ubuf__
#define GM_ADDR __gm__ uint8_t *

enum pipe_t { PIPE_S = 0, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };
enum event_t { EVENT_ID0 = 0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

namespace AscendC {

using TEventID = int8_t;
constexpr int32_t ONE_BLK_SIZE = 32;
constexpr int32_t ONE_REPEAT_BYTE_SIZE = 256;
constexpr uint64_t MASK_PLACEHOLDER = 0;

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM = VECCALC, MAX };
using QuePosition = TPosition;

// From one pipe to another; as a pair of numbers of the twin.
enum class HardEvent : uint8_t {
  MTE2_V = di_twin::MTE2 * di_twin::PIPES + di_twin::V,
  V_MTE2 = di_twin::V * di_twin::PIPES + di_twin::MTE2,
  MTE3_V = di_twin::MTE3 * di_twin::PIPES + di_twin::V,
  V_MTE3 = di_twin::V * di_twin::PIPES + di_twin::MTE3,
  MTE3_MTE2 = di_twin::MTE3 * di_twin::PIPES + di_twin::MTE2,
  MTE2_MTE3 = di_twin::MTE2 * di_twin::PIPES + di_twin::MTE3,
  S_V = di_twin::S * di_twin::PIPES + di_twin::V,
  V_S = di_twin::V * di_twin::PIPES + di_twin::S,
  S_MTE2 = di_twin::S * di_twin::PIPES + di_twin::MTE2,
  MTE2_S = di_twin::MTE2 * di_twin::PIPES + di_twin::S,
  S_MTE3 = di_twin::S * di_twin::PIPES + di_twin::MTE3,
  MTE3_S = di_twin::MTE3 * di_twin::PIPES + di_twin::S,
};

inline int64_t GetBlockIdx() { return di_twin::Core::now().block(); }
inline int64_t GetBlockNum() { return di_twin::Core::now().blocks(); }
inline int64_t GetSubBlockIdx() { return 0; }
inline int64_t GetSubBlockNum() { return 1; }
inline int64_t GetTaskRation() { return 1; }

template <HardEvent event> inline void SetFlag(int32_t id) {
  constexpr auto from = di_twin::Pipe(uint8_t(event) / di_twin::PIPES);
  auto &core = di_twin::Core::now();
  core.set_flag(from, core.event_flag(uint8_t(event), uint32_t(id), "SetFlag"), "SetFlag");
}

template <HardEvent event> inline void WaitFlag(int32_t id) {
  constexpr auto to = di_twin::Pipe(uint8_t(event) % di_twin::PIPES);
  auto &core = di_twin::Core::now();
  core.wait_flag(to, core.event_flag(uint8_t(event), uint32_t(id), "WaitFlag"), "WaitFlag");
}

template <pipe_t pipe> inline void PipeBarrier() {
  static_assert(pipe == PIPE_V || pipe == PIPE_MTE2 || pipe == PIPE_MTE3 || pipe == PIPE_ALL, "this pipe has no barrier");
  auto &core = di_twin::Core::now();
  if (pipe == PIPE_ALL) core.barrier_all();
  else core.barrier(pipe == PIPE_V ? di_twin::V : pipe == PIPE_MTE2 ? di_twin::MTE2 : di_twin::MTE3);
}

// Bits of the control register, of which the twin has the one that casts to narrower floats heed. Nobody says whether an instruction
// that V has not done takes the old value or the new one.
template <int8_t start, int8_t end> inline void SetCtrlSpr(int64_t value) {
  static_assert(start == 48 && end == 48, "the twin has no other bit of the control register");
  di_twin::Core::now().set_infinities_stay(value & 1);
}
template <int8_t start, int8_t end> inline int64_t GetCtrlSpr() {
  static_assert(start == 48 && end == 48, "the twin has no other bit of the control register");
  return di_twin::Core::now().infinities_stay();
}

// A piece of the unified buffer. It may end before its buffer does, but it never reaches beyond.
template <class T> class LocalTensor {
public:
  using PrimType = T;

  LocalTensor() = default;
  LocalTensor(uint32_t buffer, uint32_t generation, uint32_t begin, uint32_t bytes)
      : buffer_(buffer), generation_(generation), begin_(begin), bytes_(bytes) {}

  T GetValue(uint32_t index) const {
    const uint32_t at = check(index, 1, "GetValue");
    di_twin::Core::now().scalar_ub(at, sizeof(T), false, "GetValue");
    T value;
    std::memcpy(&value, di_twin::Core::now().ub() + at, sizeof(T));
    return value;
  }
  template <class U> void SetValue(uint32_t index, U value) const {
    const uint32_t at = check(index, 1, "SetValue");
    di_twin::Core::now().scalar_ub(at, sizeof(T), true, "SetValue");
    const T stored = static_cast<T>(value);
    std::memcpy(di_twin::Core::now().ub() + at, &stored, sizeof(T));
  }
  LocalTensor operator[](uint32_t offset) const {
    LocalTensor part = *this;
    // Beyond the end it has no bytes; an access says so. The place does not wrap.
    const uint64_t begin = begin_ + offset * uint64_t(sizeof(T)), most = UINT32_MAX / 2;
    part.begin_ = uint32_t(begin < most ? begin : most);
    part.bytes_ = offset * uint64_t(sizeof(T)) < bytes_ ? bytes_ - offset * uint32_t(sizeof(T)) : 0;
    return part;
  }
  template <class U> LocalTensor<U> ReinterpretCast() const { return LocalTensor<U>(buffer_, generation_, begin_, bytes_); }
  uint32_t GetSize() const { return bytes_ / uint32_t(sizeof(T)); }
  void SetSize(uint32_t size) { bytes_ = size * uint32_t(sizeof(T)); }
  uint32_t GetLength() const { return bytes_; }

  // For the twin alone.
  uint32_t twin_begin() const { return begin_; }
  uint32_t twin_buffer() const { return buffer_; }
  uint32_t twin_generation() const { return generation_; }
  T *twin_data() const { return reinterpret_cast<T *>(di_twin::Core::now().ub() + begin_); }
  // Where `count` elements from `index` on lie, all of them in the buffer.
  uint32_t check(uint64_t index, uint64_t count, const char *name) const {
    const uint64_t begin = begin_ + index * sizeof(T);
    if (begin > UINT32_MAX) di_twin::wrong("block %u: %s at byte %llu of the unified buffer", di_twin::Core::now().block(), name, (unsigned long long)begin);
    di_twin::Core::now().check_tensor(buffer_, generation_, uint32_t(begin), count * sizeof(T), name);
    return uint32_t(begin);
  }

private:
  uint32_t buffer_ = ~0u, generation_ = 0, begin_ = 0, bytes_ = 0;
};

// A piece of global memory.
template <class T> class GlobalTensor {
public:
  using PrimType = T;

  void SetGlobalBuffer(__gm__ T *buffer) { SetGlobalBuffer(buffer, 0); }
  void SetGlobalBuffer(__gm__ T *buffer, uint64_t size) {
    data_ = buffer;
    size_ = size;
  }
  const __gm__ T *GetPhyAddr() const { return data_; }
  __gm__ T *GetPhyAddr(uint64_t offset) const { return data_ + offset; }
  T GetValue(uint64_t offset) const {
    di_twin::Core::now().scalar_global(address(offset), sizeof(T), false, "GetValue of global memory");
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }
  void SetValue(uint64_t offset, T value) {
    di_twin::Core::now().scalar_global(address(offset), sizeof(T), true, "SetValue of global memory");
    std::memcpy(data_ + offset, &value, sizeof(T));
  }
  uint64_t GetSize() const { return size_; }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor part = *this;
    part.data_ = data_ + offset;
    part.size_ = size_ > offset ? size_ - offset : 0;
    return part;
  }
  template <class U> GlobalTensor<U> ReinterpretCast() const {
    GlobalTensor<U> other;
    other.SetGlobalBuffer(reinterpret_cast<U *>(data_), size_ * sizeof(T) / sizeof(U));
    return other;
  }

  uint64_t address(uint64_t offset = 0) const { return reinterpret_cast<uint64_t>(data_ + offset); }

private:
  T *data_ = nullptr;
  uint64_t size_ = 0;
};

} // namespace AscendC

#endif
