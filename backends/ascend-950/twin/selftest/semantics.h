// What single instructions do, in kernels without a mistake: right on every seed.
#pragma once

#include "harness.h"

namespace selftest {

using namespace AscendC;

// S may read what V did, and V use what S did.
inline void after_vector() {
  SetFlag<HardEvent::V_S>(0);
  WaitFlag<HardEvent::V_S>(0);
}
inline void before_vector() {
  SetFlag<HardEvent::S_V>(0);
  WaitFlag<HardEvent::S_V>(0);
}

// Buffers for a kernel that S checks itself: `expect` counts what is not as it should be.
struct Bench {
  TPipe pipe;
  TBuf<TPosition::VECIN> buffer[6];
  __gm__ uint32_t *wrong;

  explicit Bench(GM_ADDR to) : wrong(reinterpret_cast<__gm__ uint32_t *>(to)) {
    for (auto &one : buffer) pipe.InitBuffer(one, 4096);
  }
  template <class T> LocalTensor<T> get(int i) { return buffer[i].Get<T>(); }
  template <class T> void fill(const LocalTensor<T> &to, const std::vector<T> &values) {
    for (uint32_t i = 0; i < values.size(); ++i) to.SetValue(i, values[i]);
    before_vector();
  }
  // Bit for bit.
  template <class T> void expect(const LocalTensor<T> &got, const std::vector<T> &want) {
    after_vector();
    for (uint32_t i = 0; i < want.size(); ++i) {
      const T value = got.GetValue(i);
      *wrong += std::memcmp(&value, &want[i], sizeof(T)) != 0;
    }
    before_vector();
  }
};

using Check = void(GM_ADDR, GM_ADDR);

struct Semantics {
  const char *name;
  Check *kernel;
  uint32_t blocks = 1;
};

inline float from_bits(uint32_t bits) { return di_twin::float_of(bits); }

inline std::vector<Semantics> semantics() {
  return {
      {"arithmetic of floats and integers",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         const float denormal = from_bits(3), inf = std::numeric_limits<float>::infinity();
         b.fill(b.get<float>(0), {1.0f, -2.5f, denormal, 3e38f});
         b.fill(b.get<float>(1), {0.5f, 4.0f, denormal, 3e38f});
         Add(b.get<float>(2), b.get<float>(0), b.get<float>(1), 4);
         Mul(b.get<float>(3), b.get<float>(0), b.get<float>(1), 4);
         Max(b.get<float>(4), b.get<float>(0), b.get<float>(1), 4);
         b.expect<float>(b.get<float>(2), {1.5f, 1.5f, from_bits(6), inf});
         b.expect<float>(b.get<float>(3), {0.5f, -10.0f, 0.0f, inf});
         b.expect<float>(b.get<float>(4), {1.0f, 4.0f, denormal, 3e38f});
         b.fill(b.get<int32_t>(0), {std::numeric_limits<int32_t>::max(), -7, 0x12345678});
         Adds(b.get<int32_t>(2), b.get<int32_t>(0), 1, 3);
         Muls(b.get<int32_t>(3), b.get<int32_t>(0), 3, 3);
         ShiftRight(b.get<int32_t>(4), b.get<int32_t>(0), 1, 3);
         ShiftRight(b.get<uint32_t>(5), b.get<uint32_t>(0), 28u, 3);
         b.expect<int32_t>(b.get<int32_t>(2), {std::numeric_limits<int32_t>::min(), -6, 0x12345679});
         b.expect<int32_t>(b.get<int32_t>(3), {std::numeric_limits<int32_t>::max() - 2, -21, int32_t(0x369D0368)});
         b.expect<int32_t>(b.get<int32_t>(4), {0x3FFFFFFF, -4, 0x091A2B3C});
         b.expect<uint32_t>(b.get<uint32_t>(5), {7, 15, 1});
       }},
      {"masks, repeats and strides",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         std::vector<float> values(256), want(256, 0.0f);
         for (uint32_t i = 0; i < 256; ++i) values[i] = float(i);
         b.fill(b.get<float>(0), values);
         Duplicate(b.get<float>(1), 0.0f, 256);
         Duplicate(b.get<float>(2), 2.0f, 64);
         PipeBarrier<PIPE_V>();
         // 16 of 64 elements, from repeats of 2 blocks, each times the first block of the second operand.
         Mul(b.get<float>(1), b.get<float>(0), b.get<float>(2), uint64_t(16), uint8_t(3), BinaryRepeatParams(1, 1, 0, 4, 2, 0));
         for (uint32_t r = 0; r < 3; ++r) {
           for (uint32_t i = 0; i < 16; ++i) want[r * 32 + i] = 2.0f * values[r * 16 + i];
         }
         b.expect<float>(b.get<float>(1), want);
         const uint64_t odd[2] = {0xAAAAAAAAAAAAAAAAull, 0};
         Duplicate(b.get<float>(1), 0.0f, 64);
         PipeBarrier<PIPE_V>();
         Adds(b.get<float>(1), b.get<float>(0), 1.0f, odd, uint8_t(1), UnaryRepeatParams());
         for (uint32_t i = 0; i < 64; ++i) want[i] = i % 2 == 1 ? values[i] + 1 : 0;
         want.resize(64);
         b.expect<float>(b.get<float>(1), want);
       }},
      {"casts round as they say",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         const std::vector<float> x = {2.5f, -2.5f, 3.7f, -0.2f, 1e20f, from_bits(0x3F808000), from_bits(0x3F818000), from_bits(0x7FC00000)};
         b.fill(b.get<float>(0), x);
         const auto to_int = [&](RoundMode mode, const std::vector<int32_t> &want) {
           Cast(b.get<int32_t>(1), b.get<float>(0), mode, 8);
           b.expect<int32_t>(b.get<int32_t>(1), want);
         };
         constexpr int32_t largest = std::numeric_limits<int32_t>::max();
         to_int(RoundMode::CAST_RINT, {2, -2, 4, 0, largest, 1, 1, 0});
         to_int(RoundMode::CAST_FLOOR, {2, -3, 3, -1, largest, 1, 1, 0});
         to_int(RoundMode::CAST_CEIL, {3, -2, 4, 0, largest, 2, 2, 0});
         to_int(RoundMode::CAST_ROUND, {3, -3, 4, 0, largest, 1, 1, 0});
         to_int(RoundMode::CAST_TRUNC, {2, -2, 3, 0, largest, 1, 1, 0});
         Cast(b.get<bfloat16_t>(1), b.get<float>(0), RoundMode::CAST_RINT, 7);
         b.expect<uint16_t>(b.get<uint16_t>(1), {0x4020, 0xC020, 0x406D, 0xBE4D, 0x60AD, 0x3F80, 0x3F82});
         PipeBarrier<PIPE_V>();
         Cast(b.get<float>(2), b.get<bfloat16_t>(1), RoundMode::CAST_NONE, 2);
         b.expect<float>(b.get<float>(2), {2.5f, -2.5f});
         b.fill(b.get<float>(0), {1.0f, 65519.0f, 65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f});
         Cast(b.get<half>(1), b.get<float>(0), RoundMode::CAST_RINT, 6);
         b.expect<uint16_t>(b.get<uint16_t>(1), {0x3C00, 0x7BFF, 0x7BFF, 1, 0, 2});
         // Infinities and NaNs, and what rounds to an infinity: as a kernel begins, and as it may have them.
         b.fill(b.get<float>(0), {from_bits(0xFF800000), from_bits(0x7F7FFFFF), from_bits(0x7FC00000)});
         Cast(b.get<bfloat16_t>(1), b.get<float>(0), RoundMode::CAST_RINT, 3);
         PipeBarrier<PIPE_ALL>();
         SetCtrlSpr<48, 48>(1);
         Cast(b.get<bfloat16_t>(2), b.get<float>(0), RoundMode::CAST_RINT, 3);
         PipeBarrier<PIPE_ALL>();
         SetCtrlSpr<48, 48>(0);
         b.expect<uint16_t>(b.get<uint16_t>(1), {0xFF7F, 0x7F7F, 0});
         b.expect<uint16_t>(b.get<uint16_t>(2), {0xFF80, 0x7F80, 0x7FC0});
         b.fill(b.get<float>(0), {448.0f, 1000.0f, 17.0f, 19.0f, 0x1p-10f, 0x1.8p-9f, -0.0f});
         Cast(b.get<fp8_e4m3fn_t>(1), b.get<float>(0), RoundMode::CAST_RINT, 7);
         b.expect<uint8_t>(b.get<uint8_t>(1), {0x7E, 0x7E, 0x58, 0x5A, 0, 2, 0x80});
         b.fill(b.get<int32_t>(0), {16777217, -5, 300});
         Cast(b.get<float>(1), b.get<int32_t>(0), RoundMode::CAST_RINT, 3);
         Cast(b.get<uint8_t>(2), b.get<int32_t>(0), RoundMode::CAST_NONE, 3);
         Cast(b.get<int64_t>(3), b.get<int32_t>(0), RoundMode::CAST_NONE, 3);
         b.expect<float>(b.get<float>(1), {16777216.0f, -5.0f, 300.0f});
         b.expect<uint8_t>(b.get<uint8_t>(2), {255, 0, 255});
         b.expect<int64_t>(b.get<int64_t>(3), {16777217, -5, 300});
       }},
      {"comparisons and selections",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         const float nan = from_bits(0x7FC00000);
         std::vector<float> left = {1, 2, 3, nan, -0.0f, 5, 6, 7, 8}, right = {2, 2, 2, 2, 0.0f, nan, 6, 1, 9};
         left.resize(64, nan), right.resize(64, 0.0f);
         b.fill(b.get<float>(0), left);
         b.fill(b.get<float>(1), right);
         Compare(b.get<uint8_t>(2), b.get<float>(0), b.get<float>(1), CMPMODE::LE, 64);
         Compares(b.get<uint8_t>(3), b.get<float>(0), 3.0f, CMPMODE::GE, 64);
         b.expect<uint8_t>(b.get<uint8_t>(2), {0x53, 1, 0, 0, 0, 0, 0, 0});
         b.expect<uint8_t>(b.get<uint8_t>(3), {0xE4, 1});
         PipeBarrier<PIPE_V>();
         Select(b.get<float>(4), b.get<uint8_t>(2), b.get<float>(0), b.get<float>(1), SELMODE::VSEL_TENSOR_TENSOR_MODE, 9);
         Select(b.get<float>(5), b.get<uint8_t>(3), b.get<float>(0), -1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 9);
         b.expect<float>(b.get<float>(4), {1, 2, 2, 2, -0.0f, nan, 6, 1, 8});
         b.expect<float>(b.get<float>(5), {-1, -1, 3, -1, -1, 5, 6, 7, 8});
       }},
      {"sums in the stated order, and extremes",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         // Neighbours cancel before anything small is lost.
         std::vector<float> values(64, 0.0f);
         values[0] = 1e8f, values[1] = -1e8f, values[2] = 1.0f;
         b.fill(b.get<float>(0), values);
         ReduceSum(b.get<float>(1), b.get<float>(0), b.get<float>(2), 64);
         b.expect<float>(b.get<float>(1), {1.0f});
         std::vector<float> many(1000);
         for (uint32_t i = 0; i < 1000; ++i) many[i] = float(i % 97) - 40.0f;
         b.fill(b.get<float>(0), many);
         float sum = 0;
         for (float value : many) sum += value;
         for (int32_t count : {1000}) ReduceSum(b.get<float>(1), b.get<float>(0), b.get<float>(2), count);
         WholeReduceSum(b.get<float>(3), b.get<float>(0), 32, 4, 1, 1, 4);
         BlockReduceMax(b.get<float>(4), b.get<float>(0), 1, 64, 1, 1, 8);
         b.expect<float>(b.get<float>(1), {sum});
         b.expect<float>(b.get<float>(3), {-784.0f, 240.0f, 1264.0f, -719.0f});
         b.expect<float>(b.get<float>(4), {-33, -25, -17, -9, -1, 7, 15, 23});
         b.fill(b.get<float>(0), {3, 9, 9, -2});
         ReduceMax(b.get<float>(1), b.get<float>(0), b.get<float>(2), 4, true);
         b.expect<float>(b.get<float>(1), {9.0f, from_bits(1)});
         const float inf = std::numeric_limits<float>::infinity();
         b.fill(b.get<float>(0), {-inf, -inf});
         ReduceMax(b.get<float>(1), b.get<float>(0), b.get<float>(2), 2);
         b.expect<float>(b.get<float>(1), {std::numeric_limits<float>::lowest()});
         b.fill(b.get<int32_t>(0), {5, -9, 40, 2, 7, 7, 1, 0, 3});
         WholeReduceMax(b.get<int32_t>(1), b.get<int32_t>(0), 8, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
         b.expect<int32_t>(b.get<int32_t>(1), {40});
       }},
      {"gather, scatter, spread and count",
       [](GM_ADDR to, GM_ADDR) {
         Bench b(to);
         CreateVecIndex(b.get<int32_t>(0), 10, 64);
         b.fill(b.get<uint32_t>(1), {0, 252, 8, 8});
         Duplicate(b.get<int32_t>(3), 0, 8);
         PipeBarrier<PIPE_V>();
         Gather(b.get<int32_t>(2), b.get<int32_t>(0), b.get<uint32_t>(1), 0, 4);
         b.expect<int32_t>(b.get<int32_t>(2), {10, 73, 12, 12});
         b.fill(b.get<uint32_t>(1), {20, 4, 0});
         Scatter(b.get<int32_t>(3), b.get<int32_t>(2), b.get<uint32_t>(1), 4, 3);
         b.expect<int32_t>(b.get<int32_t>(3), {0, 12, 73, 0, 0, 0, 10, 0});
         Brcb(b.get<int32_t>(4), b.get<int32_t>(0), 1, BrcbRepeatParams(1, 8));
         std::vector<int32_t> want(64);
         for (int32_t i = 0; i < 64; ++i) want[size_t(i)] = 10 + i / 8;
         b.expect<int32_t>(b.get<int32_t>(4), want);
       }},
      {"copies with gaps and padding",
       [](GM_ADDR to, GM_ADDR from) {
         Bench b(to);
         GlobalTensor<float> x;
         x.SetGlobalBuffer(reinterpret_cast<float *>(from));
         // Three pieces of 5 floats, 2 floats apart in global memory, one block apart in the UB, one float of 9 before and behind.
         DataCopyPad(b.get<float>(0), x, DataCopyExtParams(3, 20, 8, 1, 0), DataCopyPadExtParams<float>(true, 1, 1, 9.0f));
         SetFlag<HardEvent::MTE2_S>(0);
         WaitFlag<HardEvent::MTE2_S>(0);
         for (uint32_t i = 0; i < 3; ++i) {
           *b.wrong += b.get<float>(0).GetValue(i * 16) != 9.0f;
           for (uint32_t j = 0; j < 5; ++j) *b.wrong += b.get<float>(0).GetValue(i * 16 + 1 + j) != float(i * 7 + j);
           *b.wrong += b.get<float>(0).GetValue(i * 16 + 6) != 9.0f;
         }
         // Back: two pieces of 3 floats from blocks 0 and 2, 4 bytes between them.
         DataCopyPad(x[100], b.get<float>(0), DataCopyExtParams(2, 12, 1, 4, 0));
         SetFlag<HardEvent::MTE3_S>(0);
         WaitFlag<HardEvent::MTE3_S>(0);
         const float want[7] = {9, 0, 1, 103, 9, 7, 8};
         for (uint32_t i = 0; i < 7; ++i) *b.wrong += x.GetValue(100 + i) != want[i];
       }},
      {"a queue that MTE2 fills and MTE3 empties, and one of V alone",
       [](GM_ADDR to, GM_ADDR from) {
         Bench b(to);
         TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> through;
         TQue<TPosition::VECCALC, 1> calc;
         b.pipe.InitBuffer(through, 2, 64);
         b.pipe.InitBuffer(calc, 1, 64);
         GlobalTensor<float> x;
         x.SetGlobalBuffer(reinterpret_cast<float *>(from));
         for (uint32_t i = 0; i < 8; ++i) {
           auto piece = through.AllocTensor<float>();
           DataCopy(piece, x[i * 16], 16);
           through.EnQue(piece);
           piece = through.DeQue<float>();
           DataCopy(x[256 + i * 16], piece, 16);
           through.FreeTensor(piece);
         }
         for (int turn = 0; turn < 3; ++turn) {
           auto tensor = calc.AllocTensor<float>();
           Duplicate(tensor, float(turn), 16);
           calc.EnQue(tensor);
           tensor = calc.DeQue<float>();
           Adds(b.get<float>(turn), tensor, 1.0f, 16);
           calc.FreeTensor(tensor);
         }
         for (int turn = 0; turn < 3; ++turn) b.expect<float>(b.get<float>(turn), std::vector<float>(16, float(turn + 1)));
         PipeBarrier<PIPE_ALL>();
         for (uint32_t i = 0; i < 128; ++i) *b.wrong += x.GetValue(256 + i) != float(i);
       }},
      {"sums of several blocks by atomic copies",
       [](GM_ADDR, GM_ADDR from) {
         TPipe pipe;
         TBuf<TPosition::VECOUT> buffer;
         pipe.InitBuffer(buffer, 256);
         GlobalTensor<float> x;
         x.SetGlobalBuffer(reinterpret_cast<float *>(from));
         Duplicate(buffer.Get<float>(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         SetAtomicAdd<float>();
         DataCopy(x[512], buffer.Get<float>(), 64);
         SetAtomicNone();
       },
       5},
  };
}

inline void check_semantics() {
  for (const Semantics &one : semantics()) {
    uint64_t right = 0;
    std::string detail;
    for (uint64_t seed = 0; seed < SEEDS; ++seed) {
      Memory memory;
      std::vector<float> values(1024);
      for (uint32_t i = 0; i < 1024; ++i) values[i] = i < 512 ? float(i) : 0.0f;
      values[103] = 103.0f;
      uint32_t *wrong = memory.hold(std::vector<uint32_t>{0});
      float *x = memory.hold(values);
      const Outcome outcome = launch(memory, one.kernel, one.blocks, seed, wrong, x);
      const bool is_sum_right = one.blocks == 1 || x[512 + 63] == float(one.blocks);
      if (outcome.code == 0 && *wrong == 0 && is_sum_right) ++right;
      else detail = outcome.code != 0 ? outcome.message : std::to_string(*wrong) + " values";
    }
    check(one.name, right == SEEDS, detail);
  }
}

// Noise is a function of the seed, the instruction and the bits that go in, and stays within an ulp.
inline void check_noise() {
  Check *kernel = [](GM_ADDR to, GM_ADDR from) {
    TPipe pipe;
    TBuf<TPosition::VECIN> a;
    TBuf<TPosition::VECOUT> b;
    pipe.InitBuffer(a, 4096);
    pipe.InitBuffer(b, 4096);
    GlobalTensor<float> x, y;
    x.SetGlobalBuffer(reinterpret_cast<float *>(from));
    y.SetGlobalBuffer(reinterpret_cast<float *>(to));
    DataCopy(a.Get<float>(), x, 1024);
    SetFlag<HardEvent::MTE2_V>(0);
    WaitFlag<HardEvent::MTE2_V>(0);
    Sqrt(b.Get<float>(), a.Get<float>(), 1024);
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    DataCopy(y, b.Get<float>(), 1024);
  };
  std::vector<std::vector<float>> results;
  double worst = 0;
  bool is_pure = true;
  for (uint64_t seed = 0; seed < SEEDS; ++seed) {
    Memory memory;
    std::vector<float> values(1024);
    // Each value twice.
    for (uint32_t i = 0; i < 1024; ++i) values[i] = 0.37f * float(1 + i / 2);
    float *y = memory.allocate<float>(1024);
    launch(memory, kernel, 1, seed, y, memory.hold(values));
    for (uint32_t i = 0; i < 1024; ++i) worst = std::max(worst, ulps(y[i], std::sqrt(double(values[i]))));
    for (uint32_t i = 0; i < 1024; i += 2) is_pure = is_pure && y[i] == y[i + 1];
    results.emplace_back(y, y + 1024);
  }
  check("noise is the same for the same bits", is_pure);
  check("noise differs between seeds", results[0] != results[1]);
  check("noise stays within an ulp", worst <= 1.0 && worst > 0.6, std::to_string(worst) + " ulp at most");
}

} // namespace selftest
