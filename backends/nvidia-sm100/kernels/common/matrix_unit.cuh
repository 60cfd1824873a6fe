// What a warp asks of the memory and of the tensor cores for products of narrow operands, and of the blocks of its cluster.
//
// On Hopper the products are those of a warpgroup (wgmma); elsewhere each warp makes its sixteen rows with mma.sync. Both take A from
// registers, and B from shared memory in rows of 128 bytes whose 16-byte units are exchanged by the row.
#pragma once

#include <cstdint>

__device__ inline uint32_t shared_offset(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Stops where the host gave less dynamic shared memory than a kernel needs.
__device__ inline void expect_memory(uint32_t bytes) {
  uint32_t given;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(given));
  if (given < bytes) __trap();
}

// Copies 16 bytes to shared memory.
__device__ inline void copy_async(uint32_t to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `N` groups of copies of this thread are under way.
template <int N> __device__ inline void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8 x 8 matrices of 16-bit values: lane l has the address of a row of matrix l / 8, and gets of each the pair l % 4 of row l / 4.
__device__ inline void load_matrices(uint32_t (&m)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}

// Byte at which the 16-byte unit `unit` (0 to 7) of row `row` lies in a block of rows of 128 bytes.
__device__ inline uint32_t unit_at(uint32_t row, uint32_t unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }

// Keeps the compiler from moving sums across this point, as it must not while products are under way.
template <int R> __device__ inline void pin(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// ---- products: 64 rows of A, 16 to a warp, times N rows of B, over sixteen columns ----

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Before the first product after registers have changed.
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define A_AND_B "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

// Blocks of eight rows of B that begin at this byte.
struct Blocks {
  uint64_t descriptor;
  __device__ explicit Blocks(uint32_t at) : descriptor(uint64_t(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62) {}
};

// `step` counts sixteen columns of the block that begins `offset` bytes further on.
template <int R> __device__ inline void add_product(float (&d)[R], const uint32_t (&a)[4], const Blocks &blocks, int offset, int step) {
  const uint64_t b = blocks.descriptor + (offset + 32 * step) / 16;
  if constexpr (R == 4) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;" : D4(0) : A_AND_B);
  } else if constexpr (R == 8) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;" : D4(0), D4(4) : A_AND_B);
  } else if constexpr (R == 16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : D16(0)
                 : A_AND_B);
  } else {
    static_assert(R == 32);
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : D16(0), D16(16)
                 : A_AND_B);
  }
}

#undef D4
#undef D16
#undef A_AND_B

#else

__device__ inline void products_begin() {}
__device__ inline void products_commit() {}
template <int N> __device__ inline void products_wait() {}

struct Blocks {
  uint32_t at;
  __device__ explicit Blocks(uint32_t begin) : at(begin) {}
};

template <int R> __device__ inline void add_product(float (&d)[R], const uint32_t (&a)[4], const Blocks &blocks, int offset, int step) {
  const uint32_t block = blocks.at + offset;
  const int row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < R / 4; ++i) {
    uint32_t b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b[half]) : "r"(block + unit_at(8 * i + row, 2 * step + half) + 4 * pair) : "memory");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[4 * i]), "+f"(d[4 * i + 1]), "+f"(d[4 * i + 2]), "+f"(d[4 * i + 3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

#endif

// Ordinary stores to shared memory are seen by the products that follow the barrier after this.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters ----

// Every thread of the cluster has come here. It orders no accesses: only what was read before is free to be overwritten after.
__device__ inline void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier in shared memory that awaits so many bytes from blocks of the cluster; by one thread, before the blocks meet.
__device__ inline void await_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Where this offset of the shared memory of block `rank` lies in the window of the cluster.
__device__ inline uint32_t offset_in_block(uint32_t at, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}

// Writes a word there, and counts it at a barrier of the same block.
__device__ inline void send_word(uint32_t to, uint32_t barrier, uint32_t word) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(word), "r"(barrier) : "memory");
}

// Until all bytes have come.
__device__ inline void wait_bytes(uint32_t barrier) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier)
               : "memory");
}
