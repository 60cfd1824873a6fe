/* store_kv_cache: rows encoded into the entries of a paged cache.
 *
 * Entry `slot` is number slot % entries_per_page of page slot / entries_per_page. Rows are stored one after the other, so
 * that of several rows with one slot the last stays. All slots are checked before anything is written. */
#include "../backend.h"
#include "../scaled.h"

/* Formats of entries, as the argument `format` numbers them. */
enum { ENTRY_F32, ENTRY_BF16, ENTRY_FP8, ENTRY_FP4_E4M3, ENTRY_FP4_UE8M0, ENTRY_FORMATS };

/* Where the values and scales of an entry lie. */
typedef struct Entries {
  uint32_t format;
  int64_t per_page, dim;
  int64_t value_bytes, scale_bytes; /* of one entry */
} Entries;

static int is_scaled(uint32_t format) { return format >= ENTRY_FP8; }

static ScaledFormat scaled_format(uint32_t format) {
  return format == ENTRY_FP8 ? FP8_UE8M0 : format == ENTRY_FP4_E4M3 ? FP4_E4M3 : FP4_UE8M0;
}

static DiError *read_layout(DiCall call, const DiArgsStoreKvCacheV1 *a, Entries *out) {
  int64_t dim = a->kv.shape[1], page_bytes = a->cache.shape[1];
  uint64_t needed;
  if (a->format >= ENTRY_FORMATS)
    return di_refuse(call, "format is %" PRIu32 "; 0 to %d are possible", a->format, ENTRY_FORMATS - 1);
  if (a->entries_per_page == 0) return di_refuse(call, "entries_per_page is 0; a page holds at least 1 entry");
  /* No entry takes less than half a byte per channel; this keeps the sums below within their type. */
  if (dim / 2 > page_bytes)
    return di_refuse(call, "entries of %" PRId64 " channels do not fit the pages of cache, of %" PRId64 " bytes", dim,
                     page_bytes);
  out->format = a->format;
  out->per_page = a->entries_per_page;
  out->dim = dim;
  if (is_scaled(a->format)) {
    int64_t group = scaled_group(scaled_format(a->format));
    if (dim % group != 0)
      return di_refuse(call, "kv has %" PRId64 " channels, but format %" PRIu32 " needs a multiple of %" PRId64, dim,
                       a->format, group);
    out->value_bytes = dim / group * scaled_code_bytes(scaled_format(a->format));
    out->scale_bytes = dim / group;
  } else {
    out->value_bytes = (int64_t)di_mul((uint64_t)dim, a->format == ENTRY_F32 ? 4 : 2);
    out->scale_bytes = 0;
  }
  needed = di_mul((uint64_t)out->value_bytes + (uint64_t)out->scale_bytes, a->entries_per_page);
  if (needed > (uint64_t)page_bytes)
    return di_refuse(call, "entries_per_page is %" PRIu32 ": entries of %" PRId64 " channels in format %" PRIu32
                     " then need %" PRIu64 " bytes, but the pages of cache have %" PRId64, a->entries_per_page, dim, a->format,
                     needed, page_bytes);
  return NULL;
}

static DiError *check_slots(DiCall call, const DiArgsStoreKvCacheV1 *a, const int32_t *slots) {
  uint64_t capacity = di_mul((uint64_t)a->cache.shape[0], a->entries_per_page);
  int64_t t;
  for (t = 0; t < a->slots.shape[0]; ++t)
    if (slots[t] >= 0 && (uint64_t)slots[t] >= capacity)
      return di_refuse(call, "slots[%" PRId64 "] is %" PRId32 ", but cache has %" PRIu64 " entries", t, slots[t], capacity);
  return NULL;
}

/* One value of a plain entry. Bits that are those of a BF16 stay as they are, a NaN too. */
static void encode_plain(const Entries *e, uint32_t bits, int64_t d, char *values) {
  uint16_t narrow = (bits & 0xFFFFu) == 0 ? (uint16_t)(bits >> 16) : di_to_bf16(bits);
  if (e->format == ENTRY_F32) memcpy(values + d * 4, &bits, sizeof bits);
  else memcpy(values + d * 2, &narrow, sizeof narrow);
}

static void write_value(char *row, uint32_t format, int64_t d, uint32_t bits) {
  uint16_t narrow = (bits & 0xFFFFu) == 0 ? (uint16_t)(bits >> 16) : di_to_bf16(bits);
  if (format == DI_F32) memcpy(row + d * 4, &bits, sizeof bits);
  else memcpy(row + d * 2, &narrow, sizeof narrow);
}

/* Encodes a row. `values` and `scales` are where its entry lies, NULL for a row without one; `rounded` takes what a reader
 * will see, unless it is NULL. */
static void store_row(const Entries *e, const char *row, uint32_t format, char *values, char *scales, char *rounded) {
  int64_t d = 0, i;
  while (d < e->dim) {
    uint32_t bits[MOST_IN_GROUP];
    if (is_scaled(e->format)) {
      ScaledFormat scaled = scaled_format(e->format);
      int64_t group = scaled_group(scaled), code_bytes = scaled_code_bytes(scaled);
      uint8_t codes[MOST_IN_GROUP], scale;
      float seen[MOST_IN_GROUP];
      for (i = 0; i < group; ++i) bits[i] = di_float_at(row, format, d + i);
      scale = scaled_encode(scaled, bits, codes);
      if (values != NULL) {
        memcpy(values + d / group * code_bytes, codes, (size_t)code_bytes);
        scales[d / group] = (char)scale;
      }
      if (rounded != NULL) {
        scaled_decode(scaled, codes, scale, seen);
        for (i = 0; i < group; ++i) write_value(rounded, format, d + i, di_bits(seen[i]));
      }
      d += group;
    } else {
      bits[0] = di_float_at(row, format, d);
      if (values != NULL) encode_plain(e, bits[0], d, values);
      if (rounded != NULL)
        write_value(rounded, format, d, e->format == ENTRY_F32 ? bits[0] : di_from_bf16(di_to_bf16(bits[0])));
      d += 1;
    }
  }
}

DiError *store_kv_cache(DiBackend *b, DiPlan *plan, DiStream *stream, const DiOpHeader *h) {
  const DiCall call = {BACKEND, "store_kv_cache"};
  DiArgsStoreKvCacheV1 a;
  DiError *error;
  Entries e;
  const int32_t *slots;
  uint32_t format;
  int64_t t;
  (void)b, (void)plan, (void)stream;
  if ((error = di_read_args(call, DI_OP_STORE_KV_CACHE, 1, h, &a, sizeof a)) != NULL ||
      (error = di_check_tensor(call, "kv", &a.kv, 2, DI_F32 | DI_BF16)) != NULL ||
      (error = di_check_tensor(call, "slots", &a.slots, 1, DI_I32)) != NULL ||
      (error = di_check_extent(call, "slots", &a.slots, 0, a.kv.shape[0], "the number of rows of kv")) != NULL ||
      (error = di_check_tensor(call, "cache", &a.cache, 2, DI_U8)) != NULL ||
      /* The same format as kv, which the catalogue calls `like`. */
      (error = di_check_optional(call, "rounded", &a.rounded, 2, di_format(&a.kv))) != NULL ||
      (error = read_layout(call, &a, &e)) != NULL)
    return error;
  if (di_present(&a.rounded) &&
      ((error = di_check_extent(call, "rounded", &a.rounded, 0, a.kv.shape[0], "the number of rows of kv")) != NULL ||
       (error = di_check_extent(call, "rounded", &a.rounded, 1, a.kv.shape[1], "the row length of kv")) != NULL))
    return error;
  slots = (const int32_t *)(const void *)di_address(&a.slots);
  if ((error = check_slots(call, &a, slots)) != NULL) return error;
  if (di_elements(&a.kv) == 0) return NULL;

  format = di_format(&a.kv);
  for (t = 0; t < a.kv.shape[0]; ++t) {
    char *values = NULL, *scales = NULL;
    char *rounded = di_present(&a.rounded) ? di_row(&a.rounded, t) : NULL;
    if (slots[t] >= 0) {
      char *page = di_row(&a.cache, slots[t] / e.per_page);
      int64_t entry = slots[t] % e.per_page;
      if (e.format == ENTRY_FP4_UE8M0) { /* all values of the page, then all scales */
        values = page + entry * e.value_bytes;
        scales = page + e.per_page * e.value_bytes + entry * e.scale_bytes;
      } else {
        values = page + entry * (e.value_bytes + e.scale_bytes);
        scales = values + e.value_bytes;
      }
    }
    store_row(&e, di_row(&a.kv, t), format, values, scales, rounded);
  }
  return NULL;
}
