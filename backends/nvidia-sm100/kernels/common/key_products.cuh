// Products of keys in registers with a tile of queries in shared memory, over 128 channels: bfloat16 operands, F32 sums.
//
// A warp holds 16 keys in the fragments of `mma.m16n8k16`, two keys a lane; of a warpgroup that is the first operand of
// `wgmma.m64nNk16`. Of a lane's quarter of the channels of a key, pairs 2 s and 2 s + 1 belong to step s. The tile has
// a row of 128 channels per query and head in two halves of 64 channels, each row of 128 bytes, whose 16-byte pieces are permuted by
// the row (the 128-byte swizzle). Channels 16 s to 16 s + 15 are added in step s, whatever N is: a sum has the same bits in every N.
#pragma once

#include <cstdint>

// Steps of the sum, and bytes of a row of a half.
constexpr int STEPS = 8;
constexpr int PAIRS = 16;
constexpr uint32_t ROW_BYTES = 128;

// Byte at which 16-byte piece `piece` of row `row` of a half lies.
__device__ inline uint32_t tile_byte(uint32_t row, uint32_t piece) { return row * ROW_BYTES + ((piece ^ row % 8) << 4); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_step(float (&d)[16], const uint32_t (&x)[PAIRS], const uint32_t (&y)[PAIRS], int s, uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(x[2 * s]), "r"(y[2 * s]), "r"(x[2 * s + 1]), "r"(y[2 * s + 1]), "l"(b), "r"(s));
}

__device__ inline void wgmma_step(float (&d)[128], const uint32_t (&x)[PAIRS], const uint32_t (&y)[PAIRS], int s, uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0; }\n"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "r"(x[2 * s]), "r"(y[2 * s]), "r"(x[2 * s + 1]), "r"(y[2 * s + 1]), "l"(b), "r"(s));
}

// Where rows of the tile from the address on lie: 8 rows are 1024 bytes, the swizzle is that of 128 bytes.
__device__ inline uint64_t wgmma_tile(uint32_t address) { return uint64_t(address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// Starts the products with the N rows from shared address `tile` on, whose second halves lie `half` bytes further on, of keys x and y.
// The sums are not there before `finish_products`.
template <int N>
__device__ inline void start_products(float (&d)[N / 2], uint32_t (&x)[PAIRS], uint32_t (&y)[PAIRS], uint32_t tile, uint32_t half) {
  // Registers are written before the first step: none is moved between steps.
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) asm volatile("" : "+r"(x[p]), "+r"(y[p])::"memory");
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    wgmma_step(d, x, y, s, wgmma_tile(tile + s / 4 * half + s % 4 * 32));
    if (s == STEPS - 2 || s == STEPS - 1) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
}

// Returns when all steps but the last are done.
__device__ inline void nearly_finish_products() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

template <int N> __device__ inline void finish_products(float (&d)[N / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Two warpgroups have the tensor cores in turn: one takes them before its products and hands them on when those are nearly done.
__device__ inline void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ inline void give_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory"); }

#else

template <int N>
__device__ inline void start_products(float (&d)[N / 2], uint32_t (&x)[PAIRS], uint32_t (&y)[PAIRS], uint32_t tile, uint32_t half) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    float *sums = &d[4 * n];
    sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
      uint32_t b[4];
      const uint32_t from = tile + s / 4 * half + tile_byte(8 * n + lane % 8, s % 4 * 2 + lane / 8);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(from));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int p = 2 * (s + k);
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(x[p]), "r"(y[p]), "r"(x[p + 1]), "r"(y[p + 1]), "r"(b[2 * k]), "r"(b[2 * k + 1]));
      }
    }
  }
}

__device__ inline void nearly_finish_products() {}
template <int N> __device__ inline void finish_products(float (&)[N / 2]) {}
__device__ inline void take_turn(int) {}
__device__ inline void give_turn(int) {}

#endif
