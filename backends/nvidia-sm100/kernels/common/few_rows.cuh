// Few rows of x times a tile of narrow weights, on the tensor cores: 64 or 128 outputs by at most 8, 16, 32 or 64 rows.
//
// The weights are the left operand, so that a product wastes nothing on rows that are not there. They stream as they are stored
// through a ring in shared memory, a panel of 128 bytes per output and stage, and are widened in registers; a warp loads and uses its
// own sixteen outputs of every 64, and waits for nobody. Rows of x are widened into two buffers of shared memory in turn, one barrier for each.
// The order of the sums is that of common/segments.cuh.
#pragma once

#include "exact.cuh"
#include "matrix_unit.cuh"
#include "segments.cuh"
#include "widen.cuh"

constexpr int FEW_THREADS = 128;

// Blocks that share a multiprocessor, where that was measured. Elsewhere a function has all registers.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FEW_BLOCKS(BLOCKS) BLOCKS
#else
#define FEW_BLOCKS(BLOCKS) 1
#endif

// The product that a block makes: rows of x, and columns from `begin` to `end` of `columns`, which are x_column + begin and so forth in x;
// and outputs, of which the first few may be another's. FP8 tiles begin at multiples of 32.
struct FewTile {
  int row, rows, x_column, columns, begin, end, output, first, outputs;
};

// `TILES` times 64 outputs; `STAGES` panels of weights in flight; two buffers of x of `X_BYTES` each.
template <int X, int W, int N, int TILES, int STAGES, int X_BYTES> struct FewRows {
  static constexpr int OUTPUTS = 64 * TILES, ROWS = N;
  static constexpr bool IS_TILED = W == FP8_TILE32;
  static constexpr int PANEL_BYTES = 128;
  static constexpr int PANEL = PANEL_BYTES * 8 / bits_of<W>();
  static constexpr int X_PANEL = X_BYTES / (2 * N);
  static constexpr int PIECE = PANEL < X_PANEL ? PANEL : X_PANEL;
  // Bytes of scales per output and panel.
  static constexpr int SCALES = W == FP8_TILE32 || W == FP4_ROW32 ? PANEL / 32 : 0;
  static constexpr int SCALE_WORDS = SCALES == 0 ? 1 : SCALES / 4;
  // Outputs of a lane in a tile that have scales of their own.
  static constexpr int SCALE_ROWS = W == FP4_ROW32 ? 2 : 1;
  // Words of raw x that a thread holds: 32 columns of a row.
  static constexpr int X_WORDS = bits_of<X>();
  static constexpr int SUM_PITCH = OUTPUTS + 4;
  static constexpr int TILE_BYTES = 64 * PANEL_BYTES;

  struct Shared {
    alignas(1024) unsigned char x[2][X_BYTES];
    alignas(16) unsigned char weights[STAGES][TILES * TILE_BYTES];
    // Outputs and rows that are not ordinary, and whether there is any.
    uint32_t is_odd_output[OUTPUTS];
    uint32_t is_odd_row[N];
    uint32_t is_any_odd;
    uint64_t barrier;
  };
  // Sums of the segment, row after row, in the place of what is no longer needed.
  static_assert(sizeof(float) * (N / 8 * 14) * SUM_PITCH <= sizeof(Shared::x) + sizeof(Shared::weights));

  const Matrix &x, &w;
  const FewTile &tile;
  Shared &shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int columns = tile.end - tile.begin;

  // ---- weights ----

  // The unit that this lane copies of every fourth output of its warp, and bytes from one such output to the next.
  const unsigned char *codes;
  int64_t codes_step;
  bool are_codes_wide, are_scales_wide;
  // Where the scales of outputs lane / 4 and 8 further on begin, in each tile.
  uint32_t scales_at[TILES][SCALE_ROWS];
  uint32_t next_scales[TILES][SCALE_ROWS][SCALE_WORDS];

  __device__ FewRows(const Matrix &x_matrix, const Matrix &w_matrix, const FewTile &t, Shared &s) : x(x_matrix), w(w_matrix), tile(t), shared(s) {
    const int64_t stride = w.stride * bits_of<W>() / 8;
    codes = w.data + (tile.output + warp * 16 + lane / 8) * stride + int64_t(tile.begin) * bits_of<W>() / 8 + lane % 8 * 16;
    codes_step = 4 * stride;
    are_codes_wide = (reinterpret_cast<uintptr_t>(codes) | uintptr_t(stride)) % 16 == 0 && tile.outputs == OUTPUTS;
    if constexpr (SCALES > 0) {
      are_scales_wide = (reinterpret_cast<uintptr_t>(w.scale) | uintptr_t(w.scale_stride)) % SCALES == 0 && tile.begin % PANEL == 0;
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int r = 0; r < SCALE_ROWS; ++r) {
          const int row = tile.output + min(i * 64 + warp * 16 + lane / 4 + 8 * r, tile.outputs - 1);
          scales_at[i][r] = uint32_t((W == FP8_TILE32 ? row / 32 : row) * w.scale_stride) + tile.begin / 32;
        }
      }
    }
  }

  // Starts the copies of a panel of this warp's outputs into a stage, zeros behind the columns. Panels come one after the other.
  __device__ void load_panel(int panel, int stage) {
    const int left = (columns - panel * PANEL) * bits_of<W>() / 8;
    if (are_codes_wide && left >= PANEL_BYTES) {
      const uint32_t first = shared_offset(shared.weights) + stage * (TILES * TILE_BYTES) + warp * (16 * PANEL_BYTES) + unit_at(lane / 8, lane % 8);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async((first ^ i % 2 * 64) + t * TILE_BYTES + i * (4 * PANEL_BYTES), codes + (16 * t + i) * codes_step);
      }
    } else if (left > 0) {
#pragma unroll 1
      for (int t = 0; t < TILES; ++t) load_ragged(shared.weights[stage] + t * TILE_BYTES, t * 64, panel, left);
    }
    codes += PANEL_BYTES;
    copy_commit();
  }

  // Byte by byte, where rows do not begin at multiples of 16 bytes, or the tile has fewer outputs or the panel fewer columns.
  __device__ void load_ragged(unsigned char *to, int first, int panel, int left) const {
    const int64_t stride = w.stride * bits_of<W>() / 8;
    const unsigned char *from = w.data + (tile.output + first) * stride + (int64_t(tile.begin) + panel * PANEL) * bits_of<W>() / 8;
    const int rows = tile.outputs - first, bytes = min(left, PANEL_BYTES);
    const bool is_wide = (reinterpret_cast<uintptr_t>(from) | uintptr_t(stride) | uintptr_t(bytes)) % 16 == 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + i * 4 + lane / 8, unit = lane % 8;
      unsigned char *there = to + unit_at(row, unit);
      if (is_wide && row < rows && unit * 16 < bytes) {
        copy_async(shared_offset(there), from + row * stride + unit * 16);
        continue;
      }
#pragma unroll 1
      for (int k = 0; k < 16; ++k) there[k] = row < rows && unit * 16 + k < bytes ? from[row * stride + unit * 16 + k] : 0;
    }
  }

  // The scales of a panel of this lane's outputs, ordinary ones behind the columns.
  __device__ void load_scales(int panel) {
    if constexpr (SCALES > 0) {
      const int some = (columns - panel * PANEL + 31) / 32;
      const unsigned char *scales = w.scale + panel * SCALES;
      const bool is_wide = are_scales_wide && some >= SCALES;
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int r = 0; r < SCALE_ROWS; ++r) {
#pragma unroll
          for (int i = 0; i < SCALE_WORDS; ++i) {
            if (is_wide) next_scales[t][r][i] = __ldg(reinterpret_cast<const uint32_t *>(scales + scales_at[t][r]) + i);
            else next_scales[t][r][i] = load_four_scales(scales + scales_at[t][r] + i * 4, some - i * 4);
          }
        }
      }
    }
  }

  __device__ static uint32_t load_four_scales(const unsigned char *from, int some) {
    uint32_t four = 0;
#pragma unroll 1
    for (int k = 0; k < 4; ++k) four |= (k < some ? uint32_t(from[k]) : 127u) << 8 * k;
    return four;
  }

  // ---- x ----

  // Row, and the 32 columns of a panel, that this thread widens.
  const int x_row = threadIdx.x % N, x_block = threadIdx.x / N;
  enum class Raw { NONE, WIDE, ANY };
  uint32_t raw[X_WORDS];
  uint32_t raw_scale = 0;
  Raw raw_is = Raw::NONE;
  bool is_odd_row = false;

  __device__ void load_x(int panel) {
    const int first = panel * X_PANEL + x_block * 32;
    raw_is = Raw::NONE;
    if (x_block * 32 >= X_PANEL || x_row >= tile.rows || first >= columns) return;
    const int column = tile.x_column + tile.begin + first;
    const int64_t at = (tile.row + x_row) * x.stride + column;
    const unsigned char *from = x.data + at * bits_of<X>() / 8;
    const bool is_wide = reinterpret_cast<uintptr_t>(from) % 16 == 0 && first + 32 <= columns && (X == BF16 || column % 32 == 0);
    raw_is = is_wide ? Raw::WIDE : Raw::ANY;
    if (!is_wide) return;
#pragma unroll
    for (int i = 0; i < X_WORDS / 4; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4 *>(from) + i);
      raw[4 * i] = four.x, raw[4 * i + 1] = four.y, raw[4 * i + 2] = four.z, raw[4 * i + 3] = four.w;
    }
    if (X == FP8_ROW32) raw_scale = x.scale[(tile.row + x_row) * x.scale_stride + column / 32];
  }

  // Where element `c` of 32 lies: a unit of 16 bytes, and an element in it.
  __device__ static int2 place_of(int c) {
    if (W == BF16) return make_int2(c / 8, c % 8);
    if (W == FP4_ROW32) return make_int2(c % 4, c / 8 * 2 + c % 8 / 4);
    return make_int2(c / 16 * 2 + c % 2, c % 16 / 4 * 2 + c % 4 / 2);
  }
  // The element that lies there.
  __device__ static constexpr int column_at(int unit, int element) {
    if (W == BF16) return unit * 8 + element;
    if (W == FP4_ROW32) return element / 2 * 8 + element % 2 * 4 + unit;
    return unit / 2 * 16 + element / 2 * 4 + element % 2 * 2 + unit % 2;
  }

  __device__ void store_x(int panel) {
    // What lies behind the last piece is not read.
    if (x_block * 32 >= X_PANEL || panel * X_PANEL + x_block * 32 >= (columns + PIECE - 1) / PIECE * PIECE) return;
    unsigned char *block = shared.x[panel % 2] + x_block / 2 * (N * 128);
    const int unit = x_block % 2 * 4;
    if (raw_is == Raw::ANY) {
      const int first = panel * X_PANEL + x_block * 32;
#pragma unroll 1
      for (int c = 0; c < 32; ++c) {
        const int column = tile.x_column + tile.begin + first + c;
        const bool is_there = first + c < columns;
        if (is_there && X == FP8_ROW32) note_scale(x.scale[(tile.row + x_row) * x.scale_stride + column / 32]);
        const float value = is_there ? element_of<X>(x, tile.row + x_row, column) : 0.0f;
        const int2 place = place_of(c);
        reinterpret_cast<uint16_t *>(block + unit_at(x_row, unit + place.x))[place.y] = f32_to_bf16(value);
      }
      return;
    }
    uint32_t pairs[16];
    if (raw_is == Raw::NONE) {
#pragma unroll
      for (int i = 0; i < 16; ++i) pairs[i] = 0;
    } else if constexpr (X == BF16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) pairs[i] = raw[i];
    } else {
      note_scale(raw_scale);
      // Up to 2^7 a scale and the power of two that the bits lack are one factor, beyond they are two.
      const uint32_t factor = raw_scale == 255 ? 0x7FC07FC0u : (min(raw_scale, 134u) + 120u) * 0x00800080u;
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) widen_e4m3(raw[i], factor, pairs[2 * i], pairs[2 * i + 1], largest);
      if (raw_scale > 134 || has_nan(largest)) {
        const uint32_t more = (max(min(raw_scale, 254u), 134u) - 7u) * 0x00800080u;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            // All ones in each half that is NaN.
            const uint32_t nan = (raw[i] >> 8 * odd & 0x007F007Fu) + 0x00010001u >> 7 & 0x00010001u;
            pairs[2 * i + odd] = multiply_pairs(pairs[2 * i + odd], more) | nan * 0x7FC0u;
          }
        }
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = pair_of(pairs, column_at(u, 2 * i), column_at(u, 2 * i + 1));
      *reinterpret_cast<uint4 *>(block + unit_at(x_row, unit + u)) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  // Columns a and b. FP8 pairs are columns 0 and 2, 1 and 3 of four, BF16 pairs are neighbours.
  __device__ static uint32_t pair_of(const uint32_t (&pairs)[16], int a, int b) {
    const auto word = [](int c) { return X == BF16 ? c / 2 : c / 4 * 2 + c % 2; };
    const auto half = [](int c) { return X == BF16 ? c % 2 : c % 4 / 2; };
    if (word(a) == word(b)) return pairs[word(a)];
    return __byte_perm(pairs[word(a)], pairs[word(b)], (half(a) ? 0x32 : 0x10) | (half(b) ? 0x7600 : 0x5400));
  }

  __device__ void note_scale(uint32_t code) { is_odd_row |= !is_ordinary_x<X>(int(code)); }

  // ---- sums ----

  // What was seen of the codes of this lane's outputs: scales that are not ordinary, and the largest magnitudes of elements.
  uint32_t odd_bits[TILES] = {}, largest[TILES][2] = {};

  // The sums of this segment: of outputs 64 t + 16 * warp + lane / 4 (0, 1) and 8 further on (2, 3), of rows 8 i + 2 (lane % 4) + {0, 1}.
  __device__ void multiply(float (&sums)[TILES][N / 2], int segments, int rank) {
    if (threadIdx.x < OUTPUTS) shared.is_odd_output[threadIdx.x] = 0;
    if (threadIdx.x < N) shared.is_odd_row[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      shared.is_any_odd = 0;
      if (segments > 1) await_bytes(shared_offset(&shared.barrier), rows_of(segments, rank) * segments * OUTPUTS * uint32_t(sizeof(float)));
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[t][i] = 0;
    }
    load_x(0);
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) load_panel(i, i);
    load_scales(0);
    // A panel of x is loaded while the one before the last is multiplied, and stored after it.
    int panel = 0, stage = 0;
#pragma unroll 1
    for (int x_panel = -1; x_panel * X_PANEL < columns; ++x_panel) {
      if (x_panel >= 0) {
        publish_stores();
        __syncthreads();
        const int some = columns - x_panel * X_PANEL;
#pragma unroll 1
        for (int piece = 0; piece < X_PANEL / PIECE && piece * PIECE < some; ++piece) {
          // Panels of x that share a panel of weights take their parts of it in turn.
          const int part = PIECE < PANEL ? x_panel & (PANEL / X_PANEL - 1) : 0;
          if (part == 0) {
            copy_wait<STAGES - 1>();
            __syncwarp();
          }
          multiply_piece(sums, stage, part, shared_offset(shared.x[0]) + (x_panel & 1) * X_BYTES + piece * (PIECE / 64 * N * 128));
          if (PIECE == PANEL || part == PANEL / X_PANEL - 1) {
            __syncwarp();
            load_panel(panel + STAGES, stage);
            load_scales(++panel);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
          }
        }
      }
      store_x(x_panel + 1);
      load_x(x_panel + 2);
    }
    if (is_odd_row) shared.is_odd_row[x_row] = shared.is_any_odd = 1;
    const int mine = warp * 16 + lane / 4;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      if (odd_bits[t] & 0x80808080u) shared.is_odd_output[t * 64 + mine + lane % 2 * 8] = shared.is_any_odd = 1;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (has_nan(largest[t][r])) shared.is_odd_output[t * 64 + mine + r * 8] = shared.is_any_odd = 1;
      }
    }
    copy_wait<0>();
    // What follows overwrites the buffers.
    __syncthreads();
  }

  // The columns of a part of a panel, against the blocks of x that begin at `x_at`.
  __device__ void multiply_piece(float (&sums)[TILES][N / 2], int stage, int part, uint32_t x_at) {
    constexpr int QUADS = PIECE * bits_of<W>() / 256;
    uint32_t m[TILES][QUADS][4];
    // The units that this lane reads of a row differ from the first by an exclusive or.
    const uint32_t first = shared_offset(shared.weights) + stage * (TILES * TILE_BYTES) + unit_at(warp * 16 + lane % 16, lane / 16) ^ part * (QUADS * 32);
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int q = 0; q < QUADS; ++q) load_matrices(m[t][q], (first ^ q * 32) + t * TILE_BYTES);
      if constexpr (SCALES > 0) {
        const auto &words = next_scales[t];
        if (part == 0) {
          uint32_t looked_at = lane & 1 ? words[SCALE_ROWS - 1][0] : words[0][0];
          if (SCALE_WORDS == 2 && lane & 2) looked_at = lane & 1 ? words[SCALE_ROWS - 1][SCALE_WORDS - 1] : words[0][SCALE_WORDS - 1];
          odd_bits[t] |= odd_scales(looked_at);
        }
      }
    }
    // The factor of output `r` of tile `t` for 32 columns.
    const auto factor = [&](int t, int r, int i) {
      const auto &words = next_scales[t][r];
      // Parts of a panel are halves or quarters of its scales.
      uint32_t four = PIECE == PANEL ? words[i / 4] : SCALE_WORDS == 2 && part >= (PIECE == 128 ? 1 : 2) ? words[SCALE_WORDS - 1] : words[0];
      if (PIECE < PANEL && PIECE == 64) four >>= part % 2 * 16;
      return factor_of<W>(four, i % 4);
    };
    const Blocks blocks(x_at);
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
#pragma unroll
    for (int c = 0; c < PIECE / 32; ++c) {
      uint32_t a[TILES][2][4];
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const uint32_t factors[2] = {factor(t, 0, c), factor(t, SCALE_ROWS - 1, c)};
        if constexpr (W == BF16) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[t][0][i] = m[t][2 * c][i], a[t][1][i] = m[t][2 * c + 1][i];
        } else if constexpr (W == FP8_TILE32) {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int r = 0; r < 2; ++r) widen_e4m3(m[t][c][2 * s + r], factors[r], a[t][s][r], a[t][s][2 + r], largest[t][r]);
          }
        } else {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            uint32_t pairs[4];
            widen_e2m1(m[t][c / 2][c % 2 * 2 + r], factors[r], pairs);
            a[t][0][r] = pairs[0], a[t][0][2 + r] = pairs[1], a[t][1][r] = pairs[2], a[t][1][2 + r] = pairs[3];
          }
        }
      }
      products_begin();
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) add_product(sums[t], a[t][s], blocks, c / 2 * (N * 128), c % 2 * 2 + s);
      }
      products_commit();
      // The most rows leave no registers for a second set of A.
      if (N < 64 && c + 1 < PIECE / 32) products_wait<1>();
      else products_wait<0>();
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) pin(sums[t]);
  }

  // Highest bits of bytes: those of scales that are not ordinary. Of four lanes with the same outputs each looks at another, and at
  // another word of scales where there are two.
  __device__ static uint32_t odd_scales(uint32_t codes) {
    constexpr uint32_t ABOVE = W == FP4_ROW32 ? 0x7F7F7F7Fu : 0x79797979u;
    const uint32_t low = codes & 0x7F7F7F7Fu;
    // Above: the highest bit and at least 7 (1) more. Below: neither it nor one of the next two.
    return ((low + ABOVE) & codes) | (~(codes | codes << 1 | codes << 2) & 0x80808080u);
  }

  // Adds the sums of the segments, in the order of their blocks in the cluster, and writes them. Of every eight rows a block does so for
  // those that are its rank modulo `segments`; the others send it theirs.
  __device__ void write(const float (&sums)[TILES][N / 2], int segments, int rank, const View &out) {
    float *parts = reinterpret_cast<float *>(&shared);
    const int of_eight = (7 + segments) / segments, each = N / 8 * of_eight, mine = warp * 16 + lane / 4;
    const bool is_any_odd = shared.is_any_odd;
    if (segments > 1) cluster_meet();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane % 4 * 2 + h, q = r / segments, to = r - q * segments, first = (rank * each + q) * SUM_PITCH + mine;
      const uint32_t there = offset_in_block(shared_offset(parts + first), to), barrier = offset_in_block(shared_offset(&shared.barrier), to);
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        const int n = i / 2 * 8 + r, o = i % 2 * 8, at = i / 2 * of_eight * SUM_PITCH + o;
        if (n >= tile.rows) break;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          uint32_t word = __float_as_uint(sums[t][i * 2 + h]);
          if (is_any_odd && (shared.is_odd_output[t * 64 + mine + o] | shared.is_odd_row[n])) word = ODD;
          if (segments == 1) parts[first + at + t * 64] = __uint_as_float(word);
          else send_word(there + 4 * (at + t * 64), barrier, word);
        }
      }
    }
    if (segments == 1) __syncthreads();
    else if (rank < tile.rows) wait_bytes(shared_offset(&shared.barrier));
#pragma unroll 1
    for (int e = threadIdx.x; e < each * OUTPUTS; e += FEW_THREADS) {
      const int place = e / OUTPUTS, o = e % OUTPUTS, q = place % of_eight * segments + rank, n = place / of_eight * 8 + q;
      if (q >= 8 || n >= tile.rows || o < tile.first || o >= tile.outputs) continue;
      const float *from = parts + place * SUM_PITCH + o;
      float sum = *from;
      bool is_odd = __float_as_uint(sum) == ODD;
#pragma unroll 1
      for (int s = 1; s < segments; ++s) {
        const float part = from[s * each * SUM_PITCH];
        is_odd |= __float_as_uint(part) == ODD;
        sum = __fadd_rn(sum, part);
      }
      if (is_odd) sum = exact_dot<X, W>(x, tile.row + n, tile.x_column, w, tile.output + o, tile.columns);
      store_float(out, tile.row + n, tile.output + o, sum);
    }
    // A block that goes on overwrites the sums.
    if (segments == 1) __syncthreads();
  }

  // A sum that must be made anew: a NaN that no product gives.
  static constexpr uint32_t ODD = 0xFFC00DD5u;

  // Rows that block `rank` adds up.
  __device__ int rows_of(int segments, int rank) const {
    int rows = 0;
    for (int q = rank; q < 8; q += segments) rows += (max(tile.rows - q, 0) + 7) / 8;
    return rows;
  }
};
