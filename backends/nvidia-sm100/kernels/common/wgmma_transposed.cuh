// Matrix products of a warpgroup whose second matrix lies in shared memory with its columns, not its rows, as neighbours.
#pragma once

#include "wgmma.cuh"

#if HAS_WGMMA

// Descriptor of such a matrix: boxes of 64 columns (128 bytes, swizzled as the tensor copy does it) by the rows, `box` bytes apart.
__device__ inline uint64_t swizzled_transposed(uint32_t address, uint32_t box) {
  return uint64_t(address >> 4 & 0x3FFF) | uint64_t(box >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define NAMES32                                                                                                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES64                                                                                                                                                                    \
  NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES128                                                                                                                                                                   \
  NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"                                     \
          "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d (+)= a b over sixteen rows of b; a has 64 rows, b 64, 128 or 256 columns. `add` is 0 for a first product, which replaces d.
__device__ inline void wgmma_transposed(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES32 "}, %32, %33, p, 1, 1, 0, 1;\n}"
               : D32(0)
               : "l"(a), "l"(b), "r"(add));
}
__device__ inline void wgmma_transposed(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES64 "}, %64, %65, p, 1, 1, 0, 1;\n}"
               : D32(0), D32(32)
               : "l"(a), "l"(b), "r"(add));
}
__device__ inline void wgmma_transposed(float (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NAMES128 "}, %128, %129, p, 1, 1, 0, 1;\n}"
               : D32(0), D32(32), D32(64), D32(96)
               : "l"(a), "l"(b), "r"(add));
}
#undef D8
#undef D32
#undef NAMES32
#undef NAMES64
#undef NAMES128

#endif
