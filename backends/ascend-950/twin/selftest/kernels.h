// The kernels whose arithmetic or bytes are compared here; the others are compared by the parity tests of the crate.
#pragma once

#include "harness.h"

#include "../../kernels/rstd.cpp"
#include "../../kernels/store_kv_cache.cpp"

#include "reference.h"

namespace selftest {

// rstd of single columns of any exponent, also denormals, without eps: the square of a number is its sum, which the kernel has exactly.
// So the one ulp that the contract gives the inverse root must be enough, without what it gives the sum.
inline void check_rstd(uint64_t count) {
  constexpr uint64_t ROWS = 4096;
  double worst = 0;
  uint64_t done = 0, exact = 0;
  std::string message;
  std::mt19937_64 random(7);
  for (uint64_t seed = 0; done < count && message.empty(); seed = (seed + 1) % SEEDS, done += ROWS) {
    Memory memory;
    std::vector<float> values(ROWS);
    for (uint64_t i = 0; i < ROWS; ++i) {
      uint32_t bits;
      // One in eight is denormal.
      do bits = uint32_t(random()) & (i % 8 == 0 ? 0x807FFFFFu : 0xFFFFFFFFu);
      while ((bits & 0x7FFFFFFFu) >= 0x7F800000u || (bits & 0x7FFFFFFFu) == 0);
      values[i] = di_twin::float_of(bits);
    }
    RstdTiling tiling = {int64_t(ROWS), 1, 1, 0.0f, F32};
    float *out = memory.allocate<float>(ROWS);
    const Outcome outcome = launch(memory, rstd, 2, seed, memory.hold(values), out, &tiling);
    if (outcome.code != 0) message = outcome.message;
    for (uint64_t i = 0; i < ROWS && message.empty(); ++i) {
      const double want = 1.0 / std::sqrt(double(values[i]) * double(values[i]));
      const double off = ulps(out[i], want);
      worst = std::max(worst, off);
      exact += off <= 0.5;
    }
  }
  char detail[160];
  std::snprintf(detail, sizeof detail, "%llu values, at most %.4f ulp off, %.2f %% rounded right", (unsigned long long)done, worst, 100.0 * double(exact) / double(done));
  check("rstd is within an ulp", message.empty() && worst <= 1.0, message.empty() ? detail : message);
}

// Groups of every kind: any bits, one exponent, ties, denormals, zeros, and what is not finite.
inline std::vector<float> values_of_all_kinds(uint32_t count, uint32_t group, std::mt19937 &random) {
  std::vector<float> values(count);
  for (uint32_t i = 0; i < count; ++i) {
    static uint32_t kind = 0;
    static int exponent = 0;
    if (i % group == 0) kind = random() % 6, exponent = int(random() % 250) - 125;
    const float small = float(int(random() % 4001) - 2000) / 512.0f;
    switch (kind) {
    case 0: values[i] = di_twin::float_of(uint32_t(random())); break;
    case 1: values[i] = std::ldexp(small, exponent); break;
    case 2: values[i] = float(int(random() % 97) - 48) / 8.0f; break;
    case 3: values[i] = std::ldexp(float(int(random() % 17) - 8), -int(random() % 150)); break;
    case 4: values[i] = random() % 3 ? 0.0f : -0.0f; break;
    default: values[i] = random() % 40 ? small : di_twin::float_of(uint32_t(random() % 2) << 31 | (random() % 2 ? 0x7F800000u : 0x7FC00001u));
    }
  }
  return values;
}

// The cache by its definition, and what a reader sees.
inline void reference_store(uint32_t format, const float *row, uint32_t columns, uint8_t *page, uint32_t entries, uint32_t place, float *seen) {
  if (format == CACHE_F32 || format == CACHE_BF16) {
    for (uint32_t i = 0; i < columns; ++i) {
      const uint32_t bits = di_twin::bits_of(row[i]);
      const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
      const uint16_t narrow = uint16_t(is_nan ? bits >> 16 | (bits & 0xFFFF ? 0x40 : 0) : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
      if (format == CACHE_F32) std::memcpy(page + (place * columns + i) * 4, &bits, 4);
      else std::memcpy(page + (place * columns + i) * 2, &narrow, 2);
      seen[i] = format == CACHE_F32 ? row[i] : di_twin::float_of(uint32_t(narrow) << 16);
    }
    return;
  }
  const int32_t coded = format == CACHE_FP8 ? FP8_ROW32 : format == CACHE_FP4_ROW16 ? FP4_ROW16 : FP4_ROW32;
  const uint32_t group = format == CACHE_FP4_ROW16 ? 16 : 32, bytes = format == CACHE_FP8 ? columns : columns / 2, scales = columns / group;
  uint8_t *codes = page + (format == CACHE_FP4_ROW32 ? place * bytes : place * (bytes + scales));
  uint8_t *scale = format == CACHE_FP4_ROW32 ? page + entries * bytes + place * scales : codes + bytes;
  std::vector<uint8_t> one(columns);
  for (uint32_t i = 0; i < columns; i += group) reference_group(coded, row + i, group, &one[i], scale[i / group], seen + i);
  for (uint32_t i = 0; i < bytes; ++i) codes[i] = format == CACHE_FP8 ? one[i] : uint8_t(one[2 * i] | one[2 * i + 1] << 4);
}

template <class X> void check_store(uint32_t format, const char *name) {
  constexpr bool is_f32 = sizeof(X) == 4;
  bool is_right = true;
  std::string detail;
  for (uint32_t columns : {64u, 2112u}) {
    const uint32_t rows = 12, entries = 3, pages = 4, page_bytes = entries * columns * 4 + 7, stride = columns + 5;
    std::mt19937 random(columns + format);
    std::vector<float> values = values_of_all_kinds(rows * columns, format == CACHE_FP4_ROW16 ? 16 : 32, random);
    const std::vector<int32_t> slots = {5, -1, 0, 7, 5, 11, 0, -1, 10, 5, 1, 2};
    std::vector<X> kv(rows * stride);
    for (uint32_t i = 0; i < rows * columns; ++i) {
      const uint32_t at = i / columns * stride + i % columns;
      if constexpr (is_f32) {
        kv[at] = di_twin::bits_of(values[i]);
      } else {
        kv[at] = uint16_t(di_twin::bits_of(values[i]) >> 16);
        values[i] = di_twin::float_of(uint32_t(kv[at]) << 16);
      }
    }
    std::vector<uint8_t> want(pages * page_bytes, 0xEE);
    std::vector<float> seen(rows * columns);
    for (uint32_t t = 0; t < rows; ++t) {
      std::vector<uint8_t> alone(columns * 8);
      const uint32_t slot = uint32_t(slots[t]);
      if (slots[t] < 0) reference_store(format, &values[t * columns], columns, alone.data(), 1, 0, &seen[t * columns]);
      else reference_store(format, &values[t * columns], columns, &want[slot / entries * page_bytes], entries, slot % entries, &seen[t * columns]);
    }
    for (uint64_t seed = 0; seed < SEEDS; ++seed) {
      Memory memory;
      uint8_t *cache = memory.hold(std::vector<uint8_t>(want.size(), 0xEE));
      X *rounded = memory.allocate<X>(rows * columns);
      const StoreKvCacheTiling tiling = {rows, columns, stride, columns, page_bytes, pages, entries, format, is_f32 ? F32 : BF16, 1};
      int32_t *faults = memory.hold(std::vector<int32_t>(16));
      const Outcome outcome = launch(memory, store_kv_cache, 3, seed, memory.hold(kv), memory.hold(slots), cache, rounded, faults, &tiling);
      uint32_t bytes = 0, elements = 0;
      for (size_t i = 0; i < want.size(); ++i) bytes += cache[i] != want[i];
      for (uint32_t i = 0; i < rows * columns; ++i) {
        const float got = di_twin::float_of(is_f32 ? uint32_t(rounded[i]) : uint32_t(rounded[i]) << 16);
        const float wanted = is_f32 ? seen[i] : di_twin::to_float(di_twin::to_bfloat16(seen[i]));
        elements += di_twin::bits_of(got) != di_twin::bits_of(wanted) && !(got != got && wanted != wanted);
      }
      if (outcome.code == 0 && bytes == 0 && elements == 0 && faults[0] == 0) continue;
      is_right = false;
      detail = outcome.message + " " + std::to_string(bytes) + " bytes of the cache, " + std::to_string(elements) + " rounded values";
    }
  }
  check(std::string("store_kv_cache gives the bytes of the definition: ") + name, is_right, detail);
}

inline void check_stores() {
  static const char *const names[5] = {"F32 entries", "BF16 entries", "FP8 entries", "FP4 entries with E4M3 scales", "FP4 entries with UE8M0 scales"};
  for (uint32_t format = 0; format < 5; ++format) {
    check_store<uint32_t>(format, (std::string(names[format]) + " of F32 rows").c_str());
    check_store<uint16_t>(format, (std::string(names[format]) + " of BF16 rows").c_str());
  }
}

} // namespace selftest
