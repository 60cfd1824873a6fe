// Reductions.
//
// Order of a float sum over a repeat of 256 bytes: neighbours first, then neighbouring pairs, and so forth, where absent elements
// count as +0. ReduceSum of up to four repeats adds those element by element first, the first two and the last two, then both; of more
// it sums each repeat and then the sums in the same way. The pairing is an assumption: nothing public states it.

#ifndef DEEPINFER_ASCEND_TWIN_REDUCE_H
#define DEEPINFER_ASCEND_TWIN_REDUCE_H

#include "compare.h"
#include "queue.h"

namespace AscendC {

enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };

} // namespace AscendC

namespace di_twin {

using AscendC::ReduceOrder;

inline float wide(float x) { return x; }
inline float wide(half x) { return to_float(x); }
template <class T> T narrow(float x) {
  if constexpr (std::is_same_v<T, half>) return to_half(x);
  else return x;
}

// All of 2, 4, 8 .. neighbours, level by level.
template <uint32_t width, class T> T whole_tree_sum(const T *value) {
  if constexpr (width == 1) {
    return value[0];
  } else {
    T sum[width / 2];
    for (uint32_t i = 0; i < width / 2; ++i) sum[i] = narrow<T>(wide(value[2 * i]) + wide(value[2 * i + 1]));
    return whole_tree_sum<width / 2>(sum);
  }
}

// By a tree over neighbours; `at(i)` for i < count, zeros up to `width`, a power of two.
template <class T, class F> T tree_sum(uint32_t count, uint32_t width, const F &at) {
  T value[128];
  for (uint32_t i = 0; i < width; ++i) value[i] = i < count ? at(i) : narrow<T>(0.0f);
  for (uint32_t left = width; left > 1; left /= 2) {
    for (uint32_t i = 0; i < left / 2; ++i) value[i] = narrow<T>(wide(value[2 * i]) + wide(value[2 * i + 1]));
  }
  return value[0];
}

template <class T> constexpr uint32_t per_repeat() { return REPEAT_BYTES / sizeof(T); }

template <class T> T sum_of(const T *from, uint32_t count) {
  constexpr uint32_t width = per_repeat<T>();
  if (count <= 4 * width) {
    T lane[width];
    // What lies beyond the end is not added.
    const auto plus = [&](T a, uint32_t at) { return at < count ? narrow<T>(wide(a) + wide(from[at])) : a; };
    for (uint32_t i = 0; i < width; ++i) {
      lane[i] = plus(i < count ? from[i] : narrow<T>(0.0f), width + i);
      if (count > 3 * width) lane[i] = narrow<T>(wide(plus(from[2 * width + i], 3 * width + i)) + wide(lane[i]));
      else lane[i] = plus(lane[i], 2 * width + i);
    }
    return tree_sum<T>(count < width ? count : width, width, [&](uint32_t i) { return lane[i]; });
  }
  std::vector<T> level;
  for (uint32_t at = 0; at < count; at += width) {
    level.push_back(tree_sum<T>(count - at < width ? count - at : width, width, [&](uint32_t i) { return from[at + i]; }));
  }
  while (level.size() > 1) {
    std::vector<T> next;
    for (size_t at = 0; at < level.size(); at += width) {
      const uint32_t left = uint32_t(level.size() - at);
      next.push_back(tree_sum<T>(left < width ? left : width, width, [&](uint32_t i) { return level[at + i]; }));
    }
    level = next;
  }
  return level[0];
}

template <class T> constexpr T extreme_start(bool is_max) {
  if constexpr (std::is_same_v<T, half>) return half{uint16_t(is_max ? 0xFBFF : 0x7BFF)};
  else return is_max ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
}

// The value and the first place of it. It starts from the lowest finite number: infinities of the other sign do not show.
template <class T, bool is_max> void extreme_of(const T *from, uint32_t count, T &best, uint32_t &place) {
  const Extreme<T, is_max> extreme;
  best = extreme_start<T>(is_max);
  place = 0;
  bool is_found = false;
  for (uint32_t i = 0; i < count; ++i) {
    const T next = extreme(best, from[i]);
    if (std::memcmp(&next, &best, sizeof(T)) != 0 || (!is_found && std::memcmp(&from[i], &best, sizeof(T)) == 0)) {
      best = next;
      place = i;
      is_found = true;
    }
  }
}

template <class T> void store_index(T *to, uint32_t index) {
  if constexpr (sizeof(T) == 2) {
    const uint16_t narrow_index = uint16_t(index);
    std::memcpy(to, &narrow_index, 2);
  } else if constexpr (sizeof(T) == 8) {
    const uint64_t wide_index = index;
    std::memcpy(to, &wide_index, 8);
  } else {
    std::memcpy(to, &index, 4);
  }
}

// What a reduction of repeats leaves in its workspace.
template <class T> void work_operand(Instruction &instruction, const LocalTensor<T> &work, uint32_t count) {
  const uint32_t repeats = (count + per_repeat<T>() - 1) / per_repeat<T>();
  operand(instruction, work, (repeats + BLOCK_BYTES / sizeof(T) - 1) / (BLOCK_BYTES / sizeof(T)) * (BLOCK_BYTES / sizeof(T)), true);
}

template <bool is_max, class T>
void reduce_extreme(const char *name, const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<T> &work, int32_t elements, bool with_index) {
  static_assert(is_any<T, float, half, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(), "the device has no such type");
  const uint32_t count = checked_count(elements, name);
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src, count, false);
  work_operand(instruction, work, count);
  operand(instruction, dst, with_index ? 2 : 1, true, sizeof(T));
  T *to = dst.twin_data();
  const T *from = src.twin_data();
  Core::now().issue(instruction, [=] {
    T best;
    uint32_t place;
    extreme_of<T, is_max>(from, count, best, place);
    to[0] = best;
    if (with_index) store_index(to + 1, place);
  });
}

struct SumRepeat {
  // What is not in is +0.
  template <class T> void operator()(T *to, const T *value, const bool *) const { to[0] = whole_tree_sum<per_repeat<T>()>(value); }
};

// One result per repeat.
template <class T, class M, class F>
void reduce_repeats(const char *name, const LocalTensor<T> &dst, const LocalTensor<T> &src, M masked, int32_t repeats, int32_t dst_stride,
                    int32_t block_stride, int32_t repeat_stride, uint32_t results, uint32_t width, const F &f) {
  static_assert(std::is_same_v<M, int32_t> || std::is_pointer_v<M>, "a count of 32 bits or an array of bits");
  if (repeats < 1 || repeats > 255) wrong("block %u: %s of %d repeats", Core::now().block(), name, repeats);
  constexpr uint32_t lanes = per_repeat<T>();
  const Mask mask = mask_of(masked, lanes, name);
  const Steps steps = steps_of<T>(uint32_t(block_stride), uint32_t(repeat_stride), BLOCK_BYTES / sizeof(T));
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src, steps, mask, lanes, uint32_t(repeats), false);
  const uint32_t step = uint32_t(dst_stride) * results;
  const uint32_t begin = dst.check(0, step * uint32_t(repeats - 1) + width, name);
  if (begin % sizeof(T) != 0) misaligned(name, begin);
  Span span{begin, uint32_t(width * sizeof(T)), true};
  span.repeats = uint32_t(repeats);
  span.repeat_stride = uint32_t(step * sizeof(T));
  instruction.span[instruction.spans++] = span;
  T *to = dst.twin_data();
  const T *from = src.twin_data();
  const uint32_t count = uint32_t(repeats);
  Core::now().issue(instruction, [=] {
    // Whole repeats where they lie.
    if constexpr (std::is_same_v<F, SumRepeat>) {
      if (mask.prefix == lanes && steps.block_step == steps.per_block) {
        for (uint32_t r = 0; r < count; ++r) to[r * step] = whole_tree_sum<lanes>(from + steps.block(r, 0));
        return;
      }
    }
    for (uint32_t r = 0; r < count; ++r) {
      T value[lanes];
      bool is_in[lanes];
      constexpr uint32_t unit = BLOCK_BYTES / sizeof(T);
      for (uint32_t begin = 0; begin < lanes; begin += unit) {
        const T *block = from + steps.block(r, begin / unit);
        if (begin + unit <= mask.prefix) {
          std::copy_n(block, unit, value + begin);
          std::fill_n(is_in + begin, unit, true);
          continue;
        }
        for (uint32_t i = begin; i < begin + unit; ++i) {
          is_in[i] = mask.has(i);
          value[i] = is_in[i] ? block[i - begin] : T{};
        }
      }
      f(to + r * step, value, is_in);
    }
  });
}

template <bool is_max> struct ExtremeRepeat {
  ReduceOrder order;
  template <class T> void operator()(T *to, const T *value, const bool *is_in) const {
    const Extreme<T, is_max> extreme;
    T best{};
    uint32_t place = 0;
    bool is_first = true;
    for (uint32_t i = 0; i < per_repeat<T>(); ++i) {
      if (!is_in[i]) continue;
      const T next = is_first ? value[i] : extreme(best, value[i]);
      if (is_first || std::memcmp(&next, &best, sizeof(T)) != 0) best = next, place = i;
      is_first = false;
    }
    if (order == ReduceOrder::ORDER_ONLY_VALUE) to[0] = best;
    else if (order == ReduceOrder::ORDER_ONLY_INDEX) store_index(to, place);
    else if (order == ReduceOrder::ORDER_VALUE_INDEX) to[0] = best, store_index(to + 1, place);
    else store_index(to, place), to[1] = best;
  }
};

// One result per block of 32 bytes.
template <int kind> struct BlockRepeat {
  template <class T> void operator()(T *to, const T *value, const bool *is_in) const {
    constexpr uint32_t lanes = BLOCK_BYTES / sizeof(T);
    const Extreme<T, kind == 1> extreme;
    for (uint32_t b = 0; b < 8; ++b) {
      const T *from = value + b * lanes;
      const bool *in = is_in + b * lanes;
      if (kind == 0) {
        to[b] = tree_sum<T>(lanes, lanes, [&](uint32_t i) { return in[i] ? from[i] : narrow<T>(0.0f); });
        continue;
      }
      T best = narrow<T>(0.0f);
      bool is_first = true;
      for (uint32_t i = 0; i < lanes; ++i) {
        if (!in[i]) continue;
        best = is_first ? from[i] : extreme(best, from[i]);
        is_first = false;
      }
      to[b] = best;
    }
  }
};

} // namespace di_twin

namespace AscendC {

// The sum of `count` numbers in dst[0]. Behind it S waits for V.
template <class T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<T> &work, const int32_t elements) {
  static_assert(di_twin::is_any<T, float, half>(), "ReduceSum: float or half here");
  const uint32_t count = di_twin::checked_count(elements, "ReduceSum");
  auto &instruction = di_twin::vector_instruction("ReduceSum");
  di_twin::operand(instruction, src, count, false);
  di_twin::work_operand(instruction, work, count);
  di_twin::operand(instruction, dst, 1, true, sizeof(T));
  T *to = dst.twin_data();
  const T *from = src.twin_data();
  di_twin::Core::now().issue(instruction, [=] { to[0] = di_twin::sum_of(from, count); });
  auto *pipe = GetTPipePtr();
  if (pipe == nullptr) di_twin::wrong("ReduceSum needs a TPipe");
  const TEventID event = pipe->AllocEventID<HardEvent::V_S>();
  SetFlag<HardEvent::V_S>(event);
  WaitFlag<HardEvent::V_S>(event);
  pipe->ReleaseEventID<HardEvent::V_S>(event);
}

template <class T>
void ReduceMax(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<T> &work, const int32_t count, bool calIndex = false) {
  di_twin::reduce_extreme<true>("ReduceMax", dst, src, work, count, calIndex);
}

template <class T>
void ReduceMin(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<T> &work, const int32_t count, bool calIndex = false) {
  di_twin::reduce_extreme<false>("ReduceMin", dst, src, work, count, calIndex);
}

// One sum per repeat, `dst_stride` elements apart.
template <class T, bool isSetMask = true, class M>
void WholeReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src, const M mask, const int32_t repeats, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride) {
  static_assert(di_twin::is_any<T, float, half>(), "WholeReduceSum: float or half");
  di_twin::reduce_repeats("WholeReduceSum", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, 1, 1, di_twin::SumRepeat{});
}

// One value, index or pair of both per repeat; dst_stride counts what is written per repeat.
template <class T, bool isSetMask = true, class M>
void WholeReduceMax(const LocalTensor<T> &dst, const LocalTensor<T> &src, const M mask, const int32_t repeats, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
  const uint32_t results = order == ReduceOrder::ORDER_VALUE_INDEX || order == ReduceOrder::ORDER_INDEX_VALUE ? 2 : 1;
  di_twin::reduce_repeats("WholeReduceMax", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, results, results,
                          di_twin::ExtremeRepeat<true>{order});
}

template <class T, bool isSetMask = true, class M>
void WholeReduceMin(const LocalTensor<T> &dst, const LocalTensor<T> &src, const M mask, const int32_t repeats, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {
  const uint32_t results = order == ReduceOrder::ORDER_VALUE_INDEX || order == ReduceOrder::ORDER_INDEX_VALUE ? 2 : 1;
  di_twin::reduce_repeats("WholeReduceMin", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, results, results,
                          di_twin::ExtremeRepeat<false>{order});
}

// Eight results per repeat, one of each block of 32 bytes; dst_stride counts eights.
template <class T, bool isSetMask = true, class M>
void BlockReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t repeats, const M mask, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride) {
  static_assert(di_twin::is_any<T, float, half>(), "BlockReduceSum: float or half");
  di_twin::reduce_repeats("BlockReduceSum", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, 8, 8, di_twin::BlockRepeat<0>{});
}

template <class T, bool isSetMask = true, class M>
void BlockReduceMax(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t repeats, const M mask, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride) {
  static_assert(di_twin::is_any<T, float, half>(), "BlockReduceMax: float or half");
  di_twin::reduce_repeats("BlockReduceMax", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, 8, 8, di_twin::BlockRepeat<1>{});
}

template <class T, bool isSetMask = true, class M>
void BlockReduceMin(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t repeats, const M mask, const int32_t dst_stride,
                    const int32_t block_stride, const int32_t repeat_stride) {
  static_assert(di_twin::is_any<T, float, half>(), "BlockReduceMin: float or half");
  di_twin::reduce_repeats("BlockReduceMin", dst, src, mask, repeats, dst_stride, block_stride, repeat_stride, 8, 8, di_twin::BlockRepeat<2>{});
}

} // namespace AscendC

#endif
