// Hopper's own instructions: barriers in shared memory, tensor copies, and matrix products of a warpgroup. All of it is for
// sm_90a; a caller guards with HAS_WGMMA.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

// A CUtensorMap, made by the host.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

#if HAS_WGMMA

__device__ inline uint32_t shared_address(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }

// ---- barriers ----

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }

// Arrives, and awaits `bytes` of copies as well.
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier that has this address in block `block` of the cluster.
__device__ inline void barrier_arrive(uint32_t barrier, uint32_t block) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block)
               : "memory");
}

// Waits until the phase of this parity is complete.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity)
               : "memory");
}

__device__ inline void cluster_sync() { asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline uint32_t block_of_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Barrier `name` (1 to 15) of 128 threads.
__device__ inline void warpgroup_sync(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

// ---- tensor copies ----

__device__ inline void prefetch_map(const TensorMap &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// A box that begins at (column, row, group).
__device__ inline void copy_box(const TensorMap &map, uint32_t to, uint32_t barrier, int column, int row, int group) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(&map), "r"(barrier), "r"(column),
               "r"(row), "r"(group)
               : "memory");
}

// The same box, for every block of the cluster in `blocks`, at the same place and counted by the barrier of the same address there.
__device__ inline void copy_box_to(const TensorMap &map, uint32_t to, uint32_t barrier, int column, int row, int group, uint16_t blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(&map),
               "r"(barrier), "r"(column), "r"(row), "r"(group), "h"(blocks)
               : "memory");
}

// A box out of shared memory, where what was written is published. What lies beyond the matrix is left out.
__device__ inline void store_box(const TensorMap &map, uint32_t from, int column, int row, int group) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\ncp.async.bulk.commit_group;" ::"l"(&map), "r"(from), "r"(column), "r"(row), "r"(group)
               : "memory");
}
// Until the boxes that this thread stored have been read from shared memory, or until they are written.
__device__ inline void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Ordinary stores to shared memory are seen by the copy engine after the barrier that follows.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- products ----

// Descriptor of a matrix whose rows are 128 bytes of K, swizzled as the tensor copy does it, in groups of eight rows.
__device__ inline uint64_t swizzled(uint32_t address) { return uint64_t(address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Four 8 x 8 matrices of 16-bit values: lane l has the address of a row of eight in matrix l / 8, and gets elements 2 (l % 4) and the
// next of row l / 4 of each.
__device__ inline void load_matrices(uint32_t at, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}

// Keeps the compiler from moving accumulators across this point.
template <int R> __device__ inline void pin(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define NAMES64                                                                                                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                                        \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES80 NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES96 NAMES80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

#define NAMES32                                                                                                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

// d (+)= a b over sixteen columns; a has 64 rows, b has N. `add` is 0 for a first product, which replaces d.
__device__ inline void wgmma(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
               : D32(0)
               : "l"(a), "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
               : D32(0), D32(32)
               : "l"(a), "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[80], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\nwgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" NAMES80 "}, %80, %81, p, 1, 1, 0, 0;\n}"
               : D32(0), D32(32), D8(64), D8(72)
               : "l"(a), "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[96], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\nwgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" NAMES96 "}, %96, %97, p, 1, 1, 0, 0;\n}"
               : D32(0), D32(32), D32(64)
               : "l"(a), "l"(b), "r"(add));
}

// The same with a in registers: a warp has sixteen of its rows, a thread rows t / 4 and t / 4 + 8, columns 2 (t % 4) and the next, then
// eight further on.
__device__ inline void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
               : D32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
               : D32(0), D32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[80], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %85, 0;\nwgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" NAMES80 "}, {%80, %81, %82, %83}, %84, p, 1, 1, 0;\n}"
               : D32(0), D32(32), D8(64), D8(72)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#undef D8
#undef D32
#undef NAMES32
#undef NAMES64
#undef NAMES80
#undef NAMES96

// Four 8 x 8 matrices of 16-bit values, transposed: lane l has the address of a row of eight in matrix l / 8.
__device__ inline void store_transposed(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <int R> __device__ inline void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R)); }
template <int R> __device__ inline void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R)); }

#endif
