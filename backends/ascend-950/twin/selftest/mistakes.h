// Kernels with one mistake each. Every one is noticed on every seed, with the code that the device would report and a sentence.
#pragma once

#include "common/infinities.h"
#include "harness.h"

namespace selftest {

using namespace AscendC;

// What most of these kernels have: 64 floats of x, of y, and of buffers that MTE2 and MTE3 may use.
struct Parts {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> out;
  TBuf<TPosition::VECIN> buffer, other;
  GlobalTensor<float> x, y;
  static constexpr uint32_t COUNT = 64;

  Parts(GM_ADDR from, GM_ADDR to) {
    pipe.InitBuffer(in, 2, 256);
    pipe.InitBuffer(out, 2, 256);
    pipe.InitBuffer(buffer, 256);
    pipe.InitBuffer(other, 256);
    x.SetGlobalBuffer(reinterpret_cast<float *>(from));
    y.SetGlobalBuffer(reinterpret_cast<float *>(to));
  }
  LocalTensor<float> a() { return buffer.Get<float>(); }
  LocalTensor<float> b() { return other.Get<float>(); }
  LocalTensor<float> read() {
    auto tensor = in.AllocTensor<float>();
    DataCopy(tensor, x, COUNT);
    in.EnQue(tensor);
    return in.DeQue<float>();
  }
  void write(LocalTensor<float> tensor) {
    out.EnQue(tensor);
    tensor = out.DeQue<float>();
    DataCopy(y, tensor, COUNT);
    out.FreeTensor(tensor);
  }
};

using Kernel = void(GM_ADDR, GM_ADDR, GM_ADDR);

struct Mistake {
  const char *name;
  int code;
  const char *sentence; // a part of what is said
  Kernel *kernel;
  uint32_t blocks = 1;
};

inline std::vector<Mistake> mistakes() {
  constexpr int WRONG = DI_TWIN_VECTOR_EXCEPTION, STUCK = DI_TWIN_VECTOR_TIMEOUT;
  return {
      {"V reads what V wrote, without a barrier", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.read();
         auto out = p.out.AllocTensor<float>();
         Adds(p.a(), in, 1.0f, 64);
         Muls(out, p.a(), 2.0f, 64);
         p.in.FreeTensor(in);
         p.write(out);
       }},
      {"V overwrites what V reads, without a barrier", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.read();
         auto out = p.out.AllocTensor<float>();
         Adds(p.a(), in, 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Muls(out, p.a(), 2.0f, 64);
         Duplicate(p.a(), 0.0f, 64);
         p.in.FreeTensor(in);
         p.write(out);
       }},
      {"V overwrites in place what V reads, without a barrier", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Muls(p.b(), p.a(), 2.0f, 64);
         Adds(p.a(), p.a(), 2.0f, 64);
       }},
      {"EnQue and DeQue missing", WRONG, "block 0",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.in.AllocTensor<float>();
         DataCopy(in, p.x, 64);
         auto out = p.out.AllocTensor<float>();
         Adds(out, in, 1.0f, 64);
         p.in.FreeTensor(in);
         p.write(out);
       }},
      {"EnQue missing", WRONG, "EnQue is missing",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.in.AllocTensor<float>();
         DataCopy(in, p.x, 64);
         in = p.in.DeQue<float>();
         p.in.FreeTensor(in);
       }},
      {"S reads a tensor of a queue without MTE2_S", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.read();
         const float value = in.GetValue(0);
         auto out = p.out.AllocTensor<float>();
         Adds(out, in, value, 64);
         p.in.FreeTensor(in);
         p.write(out);
       }},
      {"S reads what V writes without V_S", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         Duplicate(p.b(), p.a().GetValue(0), 64);
       }},
      {"V reads what S wrote without S_V", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         for (uint32_t i = 0; i < 64; ++i) p.a().SetValue(i, float(i));
         Adds(p.b(), p.a(), 1.0f, 64);
       }},
      {"S overwrites what V reads without V_S", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_S>(0);
         WaitFlag<HardEvent::V_S>(0);
         Adds(p.b(), p.a(), 1.0f, 64);
         p.a().SetValue(0, 5.0f);
       }},
      {"MTE3 reads what V wrote without V_MTE3", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         DataCopy(p.y, p.a(), 64);
       }},
      {"V overwrites what MTE3 reads without MTE3_V", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         for (int turn = 0; turn < 2; ++turn) {
           Duplicate(p.a(), float(turn), 64);
           SetFlag<HardEvent::V_MTE3>(0);
           WaitFlag<HardEvent::V_MTE3>(0);
           DataCopy(p.y[turn * 64], p.a(), 64);
         }
       }},
      {"V reads what MTE2 wrote without MTE2_V", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x, 64);
         Adds(p.b(), p.a(), 1.0f, 64);
       }},
      {"MTE2 overwrites what V reads without V_MTE2", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         for (int turn = 0; turn < 2; ++turn) {
           DataCopy(p.a(), p.x[turn * 64], 64);
           SetFlag<HardEvent::MTE2_V>(0);
           WaitFlag<HardEvent::MTE2_V>(0);
           Adds(p.b(), p.a(), 1.0f, 64);
           PipeBarrier<PIPE_V>();
         }
       }},
      {"MTE2 reads global memory that MTE3 wrote without MTE3_MTE2", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.y, p.a(), 64);
         DataCopy(p.b(), p.y, 64);
       }},
      {"MTE3 overwrites global memory that MTE2 reads without MTE2_MTE3", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.b(), p.x, 64);
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.x, p.a(), 64);
       }},
      {"MTE3 reads what MTE2 wrote without MTE2_MTE3", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x, 64);
         DataCopy(p.y, p.a(), 64);
       }},
      {"a flag between other pipes than those that need it", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x, 64);
         SetFlag<HardEvent::MTE2_V>(0);
         WaitFlag<HardEvent::MTE2_V>(0);
         DataCopy(p.y, p.a(), 64);
       }},
      {"two copies of MTE3 to one place without a barrier", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         Duplicate(p.b(), 2.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.y, p.a(), 64);
         DataCopy(p.y, p.b(), 64);
       }},
      {"two copies of MTE2 to one block of the UB without a barrier", WRONG, "nothing orders",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         // The first fills up to byte 32 with anything.
         DataCopyPad(p.a(), p.x, DataCopyExtParams(1, 20, 0, 0, 0), DataCopyPadExtParams<float>());
         DataCopyPad(p.a(), p.x, DataCopyExtParams(1, 32, 0, 0, 0), DataCopyPadExtParams<float>());
       }},
      {"a flag set and never waited for", WRONG, "is left set",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(3);
       }},
      {"a flag set twice", WRONG, "set already",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         SetFlag<HardEvent::V_MTE3>(0);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
       }},
      {"S waits for a flag that nobody sets", STUCK, "nobody sets",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         WaitFlag<HardEvent::V_S>(0);
       }},
      {"V waits for a flag that nobody sets", STUCK, "V waits in WaitFlag",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         WaitFlag<HardEvent::MTE2_V>(0);
         Duplicate(p.a(), 1.0f, 64);
       }},
      {"set of one id, wait for another", STUCK, "waits in WaitFlag",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x, 64);
         SetFlag<HardEvent::MTE2_V>(0);
         WaitFlag<HardEvent::MTE2_V>(1);
         Adds(p.b(), p.a(), 1.0f, 64);
       }},
      {"two pipes that wait for each other", STUCK, "waits in WaitFlag",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         WaitFlag<HardEvent::MTE2_V>(0);
         WaitFlag<HardEvent::V_MTE2>(0);
         SetFlag<HardEvent::V_MTE2>(0);
         SetFlag<HardEvent::MTE2_V>(0);
       }},
      {"an event id that does not exist", WRONG, "with event 8", [](GM_ADDR, GM_ADDR, GM_ADDR) { SetFlag<HardEvent::V_S>(8); }},
      {"more than the unified buffer has", WRONG, "253952 bytes",
       [](GM_ADDR, GM_ADDR, GM_ADDR) {
         TPipe pipe;
         TBuf<TPosition::VECCALC> first, second;
         pipe.InitBuffer(first, 200 * 1024);
         pipe.InitBuffer(second, 48 * 1024 + 1);
       }},
      {"elements beyond a buffer", WRONG, "of a buffer of 256 bytes",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 65);
       }},
      {"an index whose bytes wrap", WRONG, "of the unified buffer",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         p.a().SetValue(1u << 30, 1.0f);
       }},
      {"a tensor that begins beyond all buffers", WRONG, "of a buffer of 256 bytes",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a()[1u << 30], 1.0f, 64);
       }},
      {"an endless wait that the last barrier meets", STUCK, "",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         const InfinitiesStay infinities_stay;
         WaitFlag<HardEvent::MTE2_V>(0);
         Duplicate(p.a(), 1.0f, 64);
       }},
      {"a repeat beyond a buffer", WRONG, "of a buffer of 256 bytes",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Adds(p.a(), p.a(), 1.0f, uint64_t(64), uint8_t(2), UnaryRepeatParams(1, 1, 8, 8));
       }},
      {"an operand inside a block of 32 bytes", WRONG, "no multiple of 32",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a()[4], 1.0f, 32);
       }},
      {"a copy into the middle of a block", WRONG, "no multiple of 32",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a()[1], p.x, 32);
       }},
      {"DataCopy of a part of a block", WRONG, "whole blocks of 32",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x, 63);
       }},
      {"a global address that is no element's", WRONG, "no multiple of 4",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x + 2, y);
         DataCopyPad(p.a(), p.x, DataCopyExtParams(1, 16, 0, 0, 0), DataCopyPadExtParams<float>());
       }},
      {"a wild pointer", WRONG, "nothing is allocated",
       [](GM_ADDR x, GM_ADDR, GM_ADDR) {
         Parts p(x, reinterpret_cast<GM_ADDR>(uint64_t(64)));
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.y, p.a(), 64);
       }},
      {"a last block that is not clipped", WRONG, "beyond the end of an allocation",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.a(), p.x[1000], 64);
       }},
      {"a negative row", WRONG, "touches",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         const int64_t row = -1;
         DataCopy(p.a(), p.x[row * 64], 64);
       }},
      {"S reads beyond an allocation", WRONG, "touches",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         if (p.x.GetValue(1024) == 1.0f) Duplicate(p.a(), 1.0f, 64);
       }},
      {"FreeTensor missing", WRONG, "not freed",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         for (int turn = 0; turn < 3; ++turn) {
           auto in = p.read();
           Adds(p.a(), in, 1.0f, 64);
           PipeBarrier<PIPE_V>();
         }
       }},
      {"FreeTensor missing, once", WRONG, "not freed",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Adds(p.a(), p.read(), 1.0f, 64);
       }},
      {"FreeTensor twice", WRONG, "freed before",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.read();
         p.in.FreeTensor(in);
         p.in.FreeTensor(in);
       }},
      {"a tensor used after it was freed", WRONG, "that was freed",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto in = p.read();
         p.in.FreeTensor(in);
         Adds(p.a(), in, 1.0f, 64);
       }},
      {"DeQue missing", WRONG, "block 0",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto out = p.out.AllocTensor<float>();
         Duplicate(out, 1.0f, 64);
         p.out.EnQue(out);
         DataCopy(p.y, out, 64);
         p.out.FreeTensor(out);
       }},
      {"a tensor left in a queue", WRONG, "left in a queue",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto out = p.out.AllocTensor<float>();
         Duplicate(out, 1.0f, 64);
         p.out.EnQue(out);
       }},
      {"a queue without its buffers", WRONG, "before InitBuffer",
       [](GM_ADDR, GM_ADDR, GM_ADDR) {
         TQue<TPosition::VECIN, 1> queue;
         queue.AllocTensor<float>();
       }},
      {"too many buffers", WRONG, "more than 63 buffers",
       [](GM_ADDR, GM_ADDR, GM_ADDR) {
         TPipe pipe;
         TBuf<TPosition::VECCALC> buffers[64];
         for (auto &buffer : buffers) pipe.InitBuffer(buffer, 32);
       }},
      {"too many buffers of queues", WRONG, "more than 28 buffers of queues",
       [](GM_ADDR, GM_ADDR, GM_ADDR) {
         TPipe pipe;
         TQue<TPosition::VECIN, 1> queue;
         pipe.InitBuffer(queue, 29, 32);
       }},
      {"a copy to global memory from a buffer of V alone", WRONG, "from a buffer of VECCALC",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         TBuf<TPosition::VECCALC> alone;
         p.pipe.InitBuffer(alone, 256);
         Duplicate(alone.Get<float>(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.y, alone.Get<float>(), 64);
       }},
      {"a copy from global memory to a buffer of output", WRONG, "to a buffer of VECOUT",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopy(p.out.AllocTensor<float>(), p.x, 64);
       }},
      {"a copy inside the UB between buffers of input", WRONG, "DataCopy inside the UB",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         DataCopy(p.b(), p.a(), 64);
       }},
      {"an instruction for no elements", WRONG, "promises nothing",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 0);
       }},
      {"repeats of no number", WRONG, "promises nothing",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Adds(p.a(), p.a(), 1.0f, uint64_t(64), uint8_t(0), UnaryRepeatParams());
       }},
      {"a comparison of a part of a repeat", WRONG, "no whole repeats",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Compares(p.b().ReinterpretCast<uint8_t>(), p.a(), 1.0f, CMPMODE::GT, 40);
       }},
      {"more pieces than a copy takes", WRONG, "of at most 4095",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopyPad(p.y, p.a(), DataCopyExtParams(4096, 4, 0, 0, 0));
       }},
      {"a piece that ends inside an element", WRONG, "of elements of 4",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         DataCopyPad(p.a(), p.x, DataCopyExtParams(1, 6, 0, 0, 0), DataCopyPadExtParams<float>());
       }},
      {"the control register left changed", WRONG, "bit 48 of the control register",
       [](GM_ADDR, GM_ADDR, GM_ADDR) { SetCtrlSpr<48, 48>(1); }},
      {"the control register changed under V", WRONG, "that S has not waited for",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         SetCtrlSpr<48, 48>(1);
         Duplicate(p.a(), 1.0f, 64);
         SetCtrlSpr<48, 48>(0);
       }},
      {"operands that overlap in part", WRONG, "overlap in part",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Adds(p.a()[8], p.a(), 1.0f, 56);
       }},
      {"a widening cast in place", WRONG, "overlap in part",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Cast(p.a(), p.a().ReinterpretCast<bfloat16_t>(), RoundMode::CAST_NONE, 64);
       }},
      {"a rounding cast without a mode", WRONG, "needs a mode",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         PipeBarrier<PIPE_V>();
         Cast(p.b().ReinterpretCast<bfloat16_t>(), p.a(), RoundMode::CAST_NONE, 64);
       }},
      {"Gather beyond its source", WRONG, "Gather at byte",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         Duplicate(p.a(), 1.0f, 64);
         Duplicate(p.b().ReinterpretCast<int32_t>(), int32_t(128), 32);
         PipeBarrier<PIPE_V>();
         Gather(p.b()[32], p.a().ReinterpretCast<float>()[32], p.b().ReinterpretCast<uint32_t>(), 0, 8);
       }},
      {"two blocks write one place", WRONG, "in the same launch",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         auto out = p.out.AllocTensor<float>();
         Duplicate(out, float(GetBlockIdx()), 64);
         p.write(out);
       },
       4},
      {"a block reads what another wrote", WRONG, "in the same launch",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         const int64_t block = GetBlockIdx(), next = (block + 1) % GetBlockNum();
         Duplicate(p.a(), 1.0f, 64);
         SetFlag<HardEvent::V_MTE3>(0);
         WaitFlag<HardEvent::V_MTE3>(0);
         DataCopy(p.y[block * 64], p.a(), 64);
         SetFlag<HardEvent::MTE3_MTE2>(0);
         WaitFlag<HardEvent::MTE3_MTE2>(0);
         DataCopy(p.b(), p.y[next * 64], 64);
       },
       2},
      {"a loop of instructions without an end", STUCK, "does not come to an end",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         for (;;) PipeBarrier<PIPE_V>();
       }},
      {"S waits without an end for a value", STUCK, "does not come to an end",
       [](GM_ADDR x, GM_ADDR y, GM_ADDR) {
         Parts p(x, y);
         while (p.x.GetValue(0) != 0.0f) {}
       }},
  };
}

inline void check_mistakes() {
  // What takes longer here is in a loop.
  di_twin::Core::now().most_steps = 100000;
  for (const Mistake &mistake : mistakes()) {
    uint64_t noticed = 0;
    Outcome other = {0, "it ran through"};
    for (uint64_t seed = 0; seed < SEEDS; ++seed) {
      Memory memory;
      std::vector<float> values(1024, 1.5f);
      const Outcome outcome = launch(memory, mistake.kernel, mistake.blocks, seed, memory.hold(values), memory.hold(values), memory.allocate<uint64_t>(1));
      if (outcome.code == mistake.code && outcome.message.find(mistake.sentence) != std::string::npos) ++noticed;
      else other = outcome;
    }
    const std::string count = std::to_string(noticed) + " of " + std::to_string(SEEDS) + " seeds";
    check(std::string("noticed: ") + mistake.name, noticed == SEEDS,
          noticed == SEEDS ? count : count + "; " + std::to_string(other.code) + " " + other.message);
  }
  di_twin::Core::now().most_steps = di_twin::MOST_STEPS;
}

} // namespace selftest
