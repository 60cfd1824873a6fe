// Blocks of a cluster: who one is, the barrier of all, and words of another block's shared memory.
#pragma once

#include <cstdint>

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// What a block wrote before it arrives, the others see after they have waited.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The word that block `rank` has where this block has `mine`.
__device__ inline uint32_t load_of_rank(const uint32_t *mine, uint32_t rank) {
  uint32_t address, word;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(uint32_t(__cvta_generic_to_shared(mine))), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// Writes the word that block `rank` has where this block has `mine`.
__device__ inline void store_at_rank(uint32_t *mine, uint32_t rank, uint32_t word) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(uint32_t(__cvta_generic_to_shared(mine))), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
