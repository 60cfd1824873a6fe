// Work divided among the blocks of a launch: each has a run of neighbouring items, as even as can be. Which block has an item does
// not show in its result.
#pragma once

#include "kernel_operator.h"

struct Run {
  int64_t begin, end;
};

__aicore__ inline Run run_of_block(int64_t items) {
  const int64_t block = AscendC::GetBlockIdx(), blocks = AscendC::GetBlockNum();
  const int64_t share = items / blocks, rest = items % blocks;
  const int64_t begin = block * share + (block < rest ? block : rest);
  return {begin, begin + share + (block < rest ? 1 : 0)};
}
