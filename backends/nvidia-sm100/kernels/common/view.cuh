// A tensor as the host passes it; see `View` in plugin-api/src/sdk/tensor/view.rs.
#pragma once

#include <cstdint>

// Formats by their numbers in the catalogue.
enum Format : int32_t { F32 = 0, BF16 = 1, I32 = 2, I64 = 3, U8 = 4, FP8_ROW32 = 5, FP8_TILE32 = 6, FP4_ROW32 = 7, FP4_ROW16 = 8 };

// Extents and strides are right-aligned: [3] is the last dimension. Dimensions that are not there are 1 with stride 0.
struct View {
  unsigned char *data;
  unsigned char *scale;
  int64_t shape[4];
  int64_t stride[4];
  int64_t scale_stride[4];
  int32_t rank;
  int32_t format;

  __host__ __device__ bool is_absent() const { return rank == 0 && format < 0; }
  __host__ __device__ int64_t columns() const { return shape[3]; }
  __host__ __device__ int64_t rows() const { return shape[0] * shape[1] * shape[2]; }

  // Element at which row `row` begins, counted over the three leading dimensions.
  __host__ __device__ int64_t row_begin(int64_t row) const {
    const int64_t k = row % shape[2], rest = row / shape[2];
    return k * stride[2] + (rest % shape[1]) * stride[1] + (rest / shape[1]) * stride[0];
  }

  // Scale at which the scales of row `row` begin, where each row has scales of its own.
  __host__ __device__ int64_t scale_row_begin(int64_t row) const {
    const int64_t k = row % shape[2], rest = row / shape[2];
    return k * scale_stride[2] + (rest % shape[1]) * scale_stride[1] + (rest / shape[1]) * scale_stride[0];
  }

  template <class T> __device__ T *row(int64_t row) const { return reinterpret_cast<T *>(data) + row_begin(row); }
  template <class T> __device__ T *at(int64_t element = 0) const { return reinterpret_cast<T *>(data) + element; }
};

// A kernel that meets a wrong value says so here. What an earlier kernel of the stream has said stays; of what a kernel says at
// once any one does. The word is in host memory, where plain stores of it are whole but atomic operations need not work. `op` is the
// catalogue's id, `argument` the place among the op's arguments, `rule` that among its refusals.
__device__ inline void refuse(uint32_t *fault, uint32_t op, uint32_t argument, uint32_t rule) {
  volatile uint32_t *word = fault;
  if (*word == 0) *word = op | argument << 16 | (rule + 1) << 24;
}
