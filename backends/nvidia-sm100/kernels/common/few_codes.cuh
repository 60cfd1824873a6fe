// Few rows of FP8 x times weights that are codes, with F16 operands wherever they give the bits of BF16 ones.
//
// A warp makes 16 to 48 outputs of 8 to 64 rows over a segment of columns, and shares nothing with others until it is done. Its weights
// stream as they are stored through a ring of its own in shared memory, and so does x where the weights are FP8; with FP4 weights, whose
// lanes want eight neighbours, x comes from the caches a few steps of 32 columns ahead.
//
// Two E4M3 codes become F16 in one instruction, and exactly; E2M1 takes as many as for BF16. Where scales lie too far apart for F16
// (common/f16.cuh) the warp's products are of BF16 instead, with the same bits.
#pragma once

#include "exact.cuh"
#include "f16.cuh"
#include "matrix_unit.cuh"
#include "segments.cuh"
#include "widen.cuh"

// Bytes of an output in a panel.
constexpr int CODE_ROW_BYTES = 128;
// Columns of a panel.
template <int W> __host__ __device__ constexpr int code_panel() { return CODE_ROW_BYTES * 8 / bits_of<W>(); }
// A sum that must be made anew: a NaN that no product gives.
constexpr uint32_t ODD_SUM = 0xFFC00DD5u;

// d += a b over sixteen columns: sixteen rows of a, eight of b.
template <bool IS_F16> __device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (IS_F16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// What a warp multiplies: rows of x, `panels` of columns from `begin` on, which are x_column + begin and so forth in x, and outputs. There
// may be fewer than the warp has, but whole sixteens, if it has 48.
struct CodeTile {
  int row, rows, x_column, begin, panels, output, outputs;
};

// `M16` times sixteen outputs by `N8` times eight rows.
template <int W, int M16, int N8, int STAGES> struct FewCodes {
  static constexpr int OUTPUTS = 16 * M16, PANEL_BYTES = OUTPUTS * CODE_ROW_BYTES;
  static constexpr int STAGE_BYTES = PANEL_BYTES + (W == FP8_TILE32 ? N8 * 8 * CODE_ROW_BYTES : 0), BYTES = STAGES * STAGE_BYTES;
  static constexpr bool IS_TILED = W == FP8_TILE32;
  static constexpr int PANEL = code_panel<W>(), STEPS = PANEL / 32;
  // Rows of the weights whose scales a lane needs: of each sixteen, or every eighth.
  static constexpr int SCALED = IS_TILED ? M16 : 2 * M16;
  static constexpr __device__ int scaled(int t, int r) { return IS_TILED ? t : 2 * t + r; }
  // The largest scale becomes 2^W_TOP; with the power of two that the bits of E2M1 lack it must be a number.
  static constexpr int W_TOP = IS_TILED ? F16_TOP : 1, W_RANGE = IS_TILED ? F16_RANGE : 14;

  const Matrix &x, &w;
  const CodeTile &tile;
  unsigned char *const ring;
  const int lane = threadIdx.x % 32, of_eight = lane / 4, of_four = lane % 4;
  const unsigned char *codes, *x_codes[N8], *x_scales[N8], *w_scales[SCALED];
  int64_t codes_step;
  // Steps of x that are on their way.
  static constexpr int AHEAD = N8 == 1 ? 4 : 2;
  uint32_t x_words[N8][AHEAD][2];
  // Scales of sixteen steps, of which a lane has those of four, and of the next sixteen.
  uint32_t x_now[N8], w_now[SCALED], x_next[N8], w_next[SCALED];
  int x_top[N8], w_top[SCALED];

  __device__ FewCodes(const Matrix &x_matrix, const Matrix &w_matrix, const CodeTile &t, unsigned char *memory) : x(x_matrix), w(w_matrix), tile(t), ring(memory) {
    const int64_t stride = w.stride * bits_of<W>() / 8;
    codes = w.data + (tile.output + lane / 8) * stride + int64_t(tile.begin) * bits_of<W>() / 8 + lane % 8 * 16;
    codes_step = 4 * stride;
#pragma unroll
    for (int i = 0; i < SCALED; ++i) w_scales[i] = w.scale + (IS_TILED ? (tile.output + min(i * 16, tile.outputs - 1)) / 32 : tile.output + i * 8 + of_eight) * w.scale_stride + tile.begin / 32;
#pragma unroll
    for (int n = 0; n < N8; ++n) {
      const int64_t row = tile.row + min(n * 8 + of_eight, tile.rows - 1);
      x_codes[n] = x.data + (IS_TILED ? tile.row + n * 8 + lane / 8 : row) * x.stride + tile.x_column + tile.begin + (IS_TILED ? lane % 8 * 16 : of_four * 8);
      x_scales[n] = x.scale + row * x.scale_stride + (tile.x_column + tile.begin) / 32;
    }
  }

  // Panels come one after the other.
  __device__ void load_panel(int panel, int stage) {
    if (panel < tile.panels) {
      const uint32_t to = shared_offset(ring) + stage * STAGE_BYTES + unit_at(lane / 8, lane % 8);
#pragma unroll
      for (int i = 0; i < 4 * M16; ++i) {
        if (M16 == 3 && i % 4 == 0 && i * 4 >= tile.outputs) break;
        copy_async((to ^ i % 2 * 64) + i * (4 * CODE_ROW_BYTES), codes + i * codes_step);
      }
      if constexpr (IS_TILED) {
#pragma unroll
        for (int n = 0; n < N8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (n * 8 + i * 4 + lane / 8 < tile.rows) copy_async((to ^ i % 2 * 64) + PANEL_BYTES + (n * 8 + i * 4) * CODE_ROW_BYTES, x_codes[n] + i * 4 * x.stride + panel * CODE_ROW_BYTES);
          }
        }
      }
    }
    codes += CODE_ROW_BYTES;
    copy_commit();
  }

  // This lane's codes of 32 columns, `step` steps behind `x_codes`: eight neighbours.
  __device__ void load_x(uint32_t (&two)[2], int n, int step) const {
    const uint2 eight = __ldg(reinterpret_cast<const uint2 *>(x_codes[n] + step * 32));
    two[0] = eight.x, two[1] = eight.y;
  }

  __device__ int last_word() const { return tile.panels * STEPS / 4 - 1; }
  __device__ static uint32_t word_at(const unsigned char *scales, int i) { return __ldg(reinterpret_cast<const uint32_t *>(scales) + i); }
  __device__ void load_scales(int sixteen) {
    const int at = min(sixteen * 4 + of_four, last_word());
#pragma unroll
    for (int n = 0; n < N8; ++n) x_next[n] = word_at(x_scales[n], at);
#pragma unroll
    for (int i = 0; i < SCALED; ++i) w_next[i] = word_at(w_scales[i], at);
  }
  // Brings up the next sixteen steps where the first of them is `panel`'s.
  __device__ void advance_scales(int panel) {
    if (panel % (16 / STEPS) != 0) return;
#pragma unroll
    for (int n = 0; n < N8; ++n) x_now[n] = x_next[n];
#pragma unroll
    for (int i = 0; i < SCALED; ++i) w_now[i] = w_next[i];
    load_scales(panel / (16 / STEPS) + 1);
  }
  // The scales of the steps from `step` on.
  __device__ static uint32_t four_scales(uint32_t now, int step) { return __shfl_sync(0xFFFFFFFFu, now, step / 4 % 4, 4); }

  __device__ void begin() {
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) load_panel(i, i);
    if constexpr (!IS_TILED) {
#pragma unroll
      for (int n = 0; n < N8; ++n) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) load_x(x_words[n][i], n, i);
      }
    }
    load_scales(0);
  }

  // Whether F16 gives the same bits, for all elements of the warp.
  __device__ bool look_at_scales() {
    CodeRange of_x[N8], of_w[SCALED];
    const int last = last_word();
#pragma unroll 1
    for (int i = of_four; i <= last + of_four; i += 8) {
      // Two words of each at once: they come from far away.
      const int at = min(i, last), then = min(i + 4, last);
#pragma unroll
      for (int k = 0; k < SCALED; ++k) of_w[k].add(word_at(w_scales[k], at), word_at(w_scales[k], then));
#pragma unroll
      for (int n = 0; n < N8; ++n) of_x[n].add(word_at(x_scales[n], at), word_at(x_scales[n], then));
    }
    int least = 255, most = 0;
    bool is_near = true;
#pragma unroll
    for (int k = 0; k < SCALED; ++k) {
      const int2 range = range_of_quad(of_w[k]);
      w_top[k] = range.y;
      least = min(least, range.x), most = max(most, range.y);
      is_near &= range.y - range.x <= W_RANGE;
    }
    is_near &= is_ordinary_weight<W>(least) && is_ordinary_weight<W>(most);
#pragma unroll
    for (int n = 0; n < N8; ++n) {
      const int2 range = range_of_quad(of_x[n]);
      x_top[n] = range.y;
      is_near &= is_f16_enough(range.y, range.x, F16_RANGE, most, least);
    }
    return __all_sync(0xFFFFFFFFu, is_near);
  }

  // ---- F16 ----

  // Where this lane reads the weights of a stage, and of each sixteen columns of x four neighbours.
  __device__ uint32_t weights_at(int stage) const { return shared_offset(ring) + stage * STAGE_BYTES + unit_at(lane % 16, lane / 16); }
  __device__ uint32_t x_at(int stage) const { return shared_offset(ring) + stage * STAGE_BYTES + PANEL_BYTES + unit_at(lane % 8, lane / 8); }

  __device__ void multiply(float (&sums)[M16][N8][4]) {
    int stage = 0;
#pragma unroll 1
    for (int panel = 0; panel < tile.panels; ++panel) {
      copy_wait<STAGES - 1>();
      __syncwarp();
      advance_scales(panel);
      uint32_t m[M16][4], k[N8][4];
      F16Powers x_powers[N8], w_powers[SCALED];
#pragma unroll
      for (int c = 0; c < STEPS; ++c) {
        if (c % 4 == 0) {
          const int step = panel * STEPS + c;
#pragma unroll
          for (int i = 0; i < SCALED; ++i) w_powers[i] = F16Powers(four_scales(w_now[i], step), (IS_TILED ? 0 : 14) + W_TOP - w_top[i]);
#pragma unroll
          for (int n = 0; n < N8; ++n) {
            x_powers[n] = F16Powers(four_scales(x_now[n], step), F16_TOP - x_top[n]);
          }
        }
        if (!IS_TILED && c == STEPS - AHEAD) {
          // The x that is loaded from here on is the next panel's, if there is one.
#pragma unroll
          for (int n = 0; n < N8; ++n) x_codes[n] += panel + 1 < tile.panels ? PANEL : 0;
        }
        // Units of sixteen bytes come in pairs.
        if (IS_TILED || c % 2 == 0) {
          const uint32_t from = weights_at(stage) ^ (IS_TILED ? c : c / 2) * 32;
#pragma unroll
          for (int t = 0; t < M16; ++t) load_matrices(m[t], from + t * 16 * CODE_ROW_BYTES);
        }
        uint32_t b[N8][2][2];
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          if (IS_TILED && c % 2 == 0) load_matrices(k[n], (x_at(stage) ^ c / 2 * 64) + n * 8 * CODE_ROW_BYTES);
          const uint32_t(&words)[2] = x_words[n][c % AHEAD];
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            e4m3_to_f16(IS_TILED ? k[n][c % 2 * 2 + s] : __byte_perm(words[0], words[1], s == 0 ? 0x5140 : 0x7362), b[n][s][0], b[n][s][1]);
            b[n][s][0] = x_powers[n].times(b[n][s][0], c % 4), b[n][s][1] = x_powers[n].times(b[n][s][1], c % 4);
          }
          if (!IS_TILED) load_x(x_words[n][c % AHEAD], n, (c + AHEAD) % STEPS);
        }
#pragma unroll
        for (int t = 0; t < M16; ++t) {
          uint32_t a[2][4];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if constexpr (IS_TILED) {
#pragma unroll
              for (int s = 0; s < 2; ++s) {
                e4m3_to_f16(m[t][2 * s + r], a[s][r], a[s][2 + r]);
                a[s][r] = w_powers[scaled(t, r)].times(a[s][r], c % 4), a[s][2 + r] = w_powers[scaled(t, r)].times(a[s][2 + r], c % 4);
              }
            } else {
              uint32_t pairs[4];
              e2m1_to_f16(m[t][c % 2 * 2 + r], w_powers[scaled(t, r)], c % 4, pairs);
              a[0][r] = pairs[0], a[0][2 + r] = pairs[1], a[1][r] = pairs[2], a[1][2 + r] = pairs[3];
            }
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int n = 0; n < N8; ++n) multiply_add<true>(sums[t][n], a[s], b[n][s]);
          }
        }
      }
      __syncwarp();
      load_panel(panel + STAGES, stage);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
  }

  // ---- BF16, step by step ----

  // What was seen: scales that are not ordinary, of rows and of outputs, and the largest magnitudes of the outputs' elements.
  bool is_odd_x[N8] = {}, is_odd_w[SCALED] = {};
  uint32_t largest[M16][2] = {};

  // Four codes of x under a scale code: 0 and 2, and 1 and 3.
  __device__ static void widen_x(uint32_t codes, uint32_t scale, uint32_t (&pairs)[2]) {
    // Up to 2^7 a scale and the power of two that the bits lack are one factor, beyond they are two.
    const uint32_t factor = scale == 255 ? 0x7FC07FC0u : (min(scale, 134u) + 120u) * 0x00800080u, more = (max(min(scale, 254u), 134u) - 7u) * 0x00800080u;
    uint32_t unused = 0;
    widen_e4m3(codes, factor, pairs[0], pairs[1], unused);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      // All ones in each half that is NaN.
      const uint32_t nan = (codes >> 8 * odd & 0x007F007Fu) + 0x00010001u >> 7 & 0x00010001u;
      pairs[odd] = multiply_pairs(pairs[odd], more) | nan * 0x7FC0u;
    }
  }

  __device__ void multiply_any(float (&sums)[M16][N8][4]) {
    int stage = 0;
#pragma unroll 1
    for (int panel = 0; panel < tile.panels; ++panel) {
      copy_wait<STAGES - 1>();
      __syncwarp();
#pragma unroll 1
      for (int c = 0; c < STEPS; ++c) {
        const int step = panel * STEPS + c;
        uint32_t b[N8][2][2], factors[SCALED];
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          const uint32_t scale = x_scales[n][step];
          is_odd_x[n] |= !is_ordinary_x<FP8_ROW32>(int(scale));
          uint32_t words[2];
          if constexpr (IS_TILED) {
            uint32_t k[4];
            load_matrices(k, (x_at(stage) ^ c / 2 * 64) + n * 8 * CODE_ROW_BYTES);
            words[0] = c % 2 == 0 ? k[0] : k[2], words[1] = c % 2 == 0 ? k[1] : k[3];
          } else {
            uint32_t eight[2];
            load_x(eight, n, step);
            words[0] = __byte_perm(eight[0], eight[1], 0x5410), words[1] = __byte_perm(eight[0], eight[1], 0x7632);
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) widen_x(words[s], scale, b[n][s]);
        }
#pragma unroll
        for (int i = 0; i < SCALED; ++i) {
          const uint32_t scale = w_scales[i][step];
          is_odd_w[i] |= !is_ordinary_weight<W>(int(scale));
          factors[i] = factor_of<W>(scale, 0);
        }
        const uint32_t from = weights_at(stage) ^ (IS_TILED ? c : c / 2) * 32;
#pragma unroll
        for (int t = 0; t < M16; ++t) {
          uint32_t m[4], a[2][4];
          load_matrices(m, from + t * 16 * CODE_ROW_BYTES);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if constexpr (IS_TILED) {
#pragma unroll
              for (int s = 0; s < 2; ++s) widen_e4m3(m[2 * s + r], factors[scaled(t, r)], a[s][r], a[s][2 + r], largest[t][r]);
            } else {
              uint32_t pairs[4];
              widen_e2m1(c % 2 == 0 ? m[r] : m[2 + r], factors[scaled(t, r)], pairs);
              a[0][r] = pairs[0], a[0][2 + r] = pairs[1], a[1][r] = pairs[2], a[1][2 + r] = pairs[3];
            }
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int n = 0; n < N8; ++n) multiply_add<false>(sums[t][n], a[s], b[n][s]);
          }
        }
      }
      __syncwarp();
      load_panel(panel + STAGES, stage);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
  }

  // ---- sums ----

  // The sums, row after row, to the place of the ring.
  static constexpr int PITCH = OUTPUTS + 4;
  static_assert(N8 * 8 * PITCH * 4 <= BYTES);
  __device__ void finish(const float (&sums)[M16][N8][4], bool is_f16) {
    float *parts = reinterpret_cast<float *>(ring);
    copy_wait<0>();
    __syncwarp();
    bool is_odd[M16][2] = {};
    if (!is_f16) {
#pragma unroll
      for (int t = 0; t < M16; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) is_odd[t][r] = is_odd_w[scaled(t, r)] || (__ballot_sync(0xFFFFFFFFu, has_nan(largest[t][r])) >> (lane & ~3) & 15) != 0;
      }
    }
#pragma unroll
    for (int n = 0; n < N8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = of_four * 2 + h, top = __shfl_sync(0xFFFFFFFFu, x_top[n], row * 4);
        const bool is_row_odd = __shfl_sync(0xFFFFFFFFu, is_odd_x[n], row * 4);
#pragma unroll
        for (int t = 0; t < M16; ++t) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float sum = sums[t][n][2 * r + h];
            if (is_f16) sum = __fmul_rn(sum, f16_unscale(top + w_top[scaled(t, r)] - F16_TOP - W_TOP));
            else if (is_row_odd || is_odd[t][r]) sum = __uint_as_float(ODD_SUM);
            parts[(n * 8 + row) * PITCH + t * 16 + r * 8 + of_eight] = sum;
          }
        }
      }
    }
  }
};
