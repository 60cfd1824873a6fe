/* What every backend in C needs beside deepinfer_plugin.h: error objects made from a format, texts, arguments read and
 * checked by the catalogue's rules, formats of tensors, rows of strided tensors, conversions of F32 and BF16.
 *
 * Header only, C11 and C++17, nothing but the C library. Functions that check return NULL when all is well and an error
 * that names op, argument, what it has and what it needs when it is not; return that error from the op:
 *
 *     DiArgsRstdV1 a;
 *     DiError *error = di_read_args(call, DI_OP_RSTD, 1, h, &a, sizeof a);
 *     if (error != NULL) return error; */
#ifndef DEEPINFER_PLUGIN_HELPERS_H
#define DEEPINFER_PLUGIN_HELPERS_H
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "deepinfer_plugin.h"
#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DI_EXPORT __attribute__((visibility("default"))) /* for deepinfer_backend_entry, under -fvisibility=hidden */
/* Of functions that make an error from a format: they always give one. */
#define DI_PRINTF(text, rest) __attribute__((format(printf, text, rest), returns_nonnull))
#else
#define DI_EXPORT
#define DI_PRINTF(text, rest)
#endif

/* ---- texts ---- */

/* A text that lives as long as `text` does: use it with literals. */
static inline DiStr di_str(const char *text) {
  DiStr out;
  out.ptr = (const uint8_t *)text;
  out.len = strlen(text);
  return out;
}

/* ---- errors ---- */

static inline void di_release_error(DiError *error) { free(error); }

static inline void di_keep_error(DiError *error) { (void)error; }

/* The error of a failed allocation needs no allocation. */
static inline DiError *di_out_of_memory(void) {
  static const char text[] = "the memory of the host is used up: there is none even for the text of an error";
  static DiError error = {sizeof(DiError), DI_E_OOM, DI_EF_RETRYABLE, 0, {(const uint8_t *)text, sizeof text - 1},
                          {NULL, 0}, di_keep_error};
  return &error;
}

/* An error with a sentence. `code` is DI_E_*, `flags` are DI_EF_*, `origin` is "backend/op". The object and both texts are
 * one allocation, which the receiver frees through `release`. */
static inline DiError *di_fail_with(int32_t code, uint32_t flags, const char *origin, const char *format, va_list rest) {
  va_list again;
  size_t origin_len = strlen(origin);
  int message_len;
  char *texts;
  DiError *error;
  va_copy(again, rest);
  message_len = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (message_len < 0) message_len = 0;
  error = (DiError *)malloc(sizeof *error + origin_len + (size_t)message_len + 1);
  if (error == NULL) return di_out_of_memory();
  texts = (char *)(error + 1);
  memcpy(texts, origin, origin_len);
  vsnprintf(texts + origin_len, (size_t)message_len + 1, format, rest);
  memset(error, 0, sizeof *error);
  error->struct_size = sizeof *error;
  error->code = code;
  error->flags = flags;
  error->origin.ptr = (const uint8_t *)texts;
  error->origin.len = origin_len;
  error->message.ptr = (const uint8_t *)texts + origin_len;
  error->message.len = (size_t)message_len;
  error->release = di_release_error;
  return error;
}

DI_PRINTF(4, 5)
static inline DiError *di_fail(int32_t code, uint32_t flags, const char *origin, const char *format, ...) {
  DiError *error;
  va_list rest;
  va_start(rest, format);
  error = di_fail_with(code, flags, origin, format, rest);
  va_end(rest);
  return error;
}

/* ---- structs of either size ---- */

/* Copies a struct that begins with struct_size from the other side: what the writer did not know becomes zero. */
static inline void di_read_struct(void *to, size_t size, const void *from) {
  uint32_t known;
  memcpy(&known, from, sizeof known);
  memset(to, 0, size);
  memcpy(to, from, known < size ? known : size);
}

/* Fills a struct of the other side, whose struct_size says how much of it there is; that field stays as it is. */
static inline void di_fill_struct(void *to, const void *from, size_t size) {
  uint32_t known;
  memcpy(&known, to, sizeof known);
  if (known < size) size = known;
  if (size > sizeof known)
    memcpy((char *)to + sizeof known, (const char *)from + sizeof known, size - sizeof known);
}

/* ---- calls ---- */

/* Where an error comes from: every check of a call begins with it. */
typedef struct DiCall {
  const char *backend, *op;
} DiCall;

static inline DiCall di_call(const char *backend, const char *op) {
  DiCall out;
  out.backend = backend;
  out.op = op;
  return out;
}

/* DI_E_INVALID with a sentence. Whoever prints it puts the origin, "backend/op", in front. */
DI_PRINTF(2, 3)
static inline DiError *di_refuse(DiCall call, const char *format, ...) {
  char origin[128];
  DiError *error;
  va_list rest;
  snprintf(origin, sizeof origin, "%s/%s", call.backend, call.op);
  va_start(rest, format);
  error = di_fail_with(DI_E_INVALID, 0, origin, format, rest);
  va_end(rest);
  return error;
}

/* Copies the arguments of op `id` into `args`, a DiArgs...V struct of `size` bytes. A shorter struct is an older caller's:
 * the arguments that it does not know read as zero. */
static inline DiError *di_read_args(DiCall call, uint32_t id, uint32_t version, const DiOpHeader *h, void *args, size_t size) {
  if (h == NULL || h->struct_size < sizeof *h) return di_refuse(call, "the arguments are missing");
  if (h->op_id != id || h->op_version != version)
    return di_refuse(call, "version %" PRIu32 " of op %" PRIu32 " was called with arguments of op %" PRIu32
                     " version %" PRIu32, version, id, h->op_id, h->op_version);
  di_read_struct(args, size, h);
  return NULL;
}

/* ---- formats of tensors ---- */

/* Formats as the catalogue names them; a set of them is their sum. */
#define DI_F32 1u
#define DI_BF16 2u
#define DI_I32 4u
#define DI_I64 8u
#define DI_U8 16u
#define DI_FP8_ROW32 32u
#define DI_FP8_TILE32 64u
#define DI_FP4_ROW32 128u
#define DI_FP4_ROW16 256u

static inline const char *di_format_name(uint32_t format) {
  switch (format) {
    case DI_F32: return "F32";
    case DI_BF16: return "BF16";
    case DI_I32: return "I32";
    case DI_I64: return "I64";
    case DI_U8: return "U8";
    case DI_FP8_ROW32: return "FP8_ROW32";
    case DI_FP8_TILE32: return "FP8_TILE32";
    case DI_FP4_ROW32: return "FP4_ROW32";
    case DI_FP4_ROW16: return "FP4_ROW16";
    default: return "an unknown format";
  }
}

/* The format of a tensor, or 0 if the catalogue has no such format. A block of the last two dimensions and the type of its
 * scale tell the quantised formats apart. */
static inline uint32_t di_format(const DiTensor *t) {
  int32_t rows, columns;
  uint8_t scale;
  if (t->layout != 0) return 0;
  if (t->quant == NULL) {
    if (t->code == DI_CODE_FLOAT && t->bits == 32) return DI_F32;
    if (t->code == DI_CODE_BFLOAT && t->bits == 16) return DI_BF16;
    if (t->code == DI_CODE_INT && t->bits == 32) return DI_I32;
    if (t->code == DI_CODE_INT && t->bits == 64) return DI_I64;
    if (t->code == DI_CODE_UINT && t->bits == 8) return DI_U8;
    return 0;
  }
  /* What a quant struct that ends before its scales describes is nothing that the catalogue has. */
  if (t->ndim < 2 || t->ndim > 4 || !DI_HAS_FIELD(t->quant, DiQuant, scale) || t->quant->scale == NULL ||
      t->quant->scheme != DI_QS_BLOCK || t->quant->scale_layout != DI_SL_ROW_MAJOR || t->quant->scale_op != DI_QO_MULTIPLY)
    return 0;
  rows = t->quant->block[t->ndim - 2];
  columns = t->quant->block[t->ndim - 1];
  scale = t->quant->scale->code;
  if (t->code == DI_CODE_E4M3FN && t->bits == 8 && scale == DI_CODE_E8M0FNU && columns == 32)
    return rows == 1 ? DI_FP8_ROW32 : rows == 32 ? DI_FP8_TILE32 : 0;
  if (t->code != DI_CODE_E2M1FN || t->bits != 4 || rows != 1) return 0;
  if (scale == DI_CODE_E8M0FNU && columns == 32) return DI_FP4_ROW32;
  if (scale == DI_CODE_E4M3FN && columns == 16) return DI_FP4_ROW16;
  return 0;
}

/* ---- tensors, checked ---- */

/* Whether an optional tensor is there. */
static inline int di_present(const DiTensor *t) { return t->bits != 0; }

/* Elements; 0 if an extent is. */
static inline int64_t di_elements(const DiTensor *t) {
  int64_t out = 1;
  int32_t dim;
  for (dim = 0; dim < t->ndim; ++dim) out *= t->shape[dim];
  return out;
}

/* The product, or the largest number if that is larger. */
static inline uint64_t di_mul(uint64_t a, uint64_t b) { return a != 0 && b > UINT64_MAX / a ? UINT64_MAX : a * b; }

/* First byte. */
static inline char *di_address(const DiTensor *t) { return (char *)t->data + t->byte_offset; }

/* Whether some extent is 0. */
static inline int di_is_empty(const DiTensor *t) {
  int32_t dim;
  for (dim = 0; dim < t->ndim; ++dim)
    if (t->shape[dim] == 0) return 1;
  return 0;
}

/* The tensor has `rank` dimensions and one of `formats`, its last dimension is contiguous, and all elements lie within
 * nbytes. Its memory is not looked at: this is the check of `supports` and `plan`, which see no data. After it, the shape and
 * the strides of all `rank` dimensions may be read. */
static inline DiError *di_check_shape(DiCall call, const char *name, const DiTensor *t, int32_t rank, uint32_t formats) {
  uint64_t last = 0;
  uint32_t format;
  int32_t dim;
  if (t->ndim != rank) return di_refuse(call, "%s has %" PRId32 " dimensions, but needs %" PRId32, name, t->ndim, rank);
  if (rank > 0 && (t->shape == NULL || t->strides == NULL)) return di_refuse(call, "%s has no shape or no strides", name);
  for (dim = 0; dim < rank; ++dim)
    if (t->shape[dim] < 0)
      return di_refuse(call, "%s has the negative extent %" PRId64 " in dimension %" PRId32, name, t->shape[dim], dim);
  format = di_format(t);
  if ((format & formats) == 0) {
    char list[128] = "";
    uint32_t one;
    for (one = 1; one <= DI_FP4_ROW16; one *= 2) {
      size_t used = strlen(list);
      if (one & formats) snprintf(list + used, sizeof list - used, "%s%s", used == 0 ? "" : " or ", di_format_name(one));
    }
    return di_refuse(call, "%s is %s, but must be %s", name, di_format_name(format), list);
  }
  if (di_is_empty(t)) return NULL;
  for (dim = 0; dim < rank; ++dim) {
    int64_t extent = t->shape[dim], stride = t->strides[dim];
    uint64_t reach;
    if (stride < 0 || (dim + 1 == rank && extent > 1 && stride != 1))
      return di_refuse(call, "%s has stride %" PRId64 " in dimension %" PRId32
                       "; none may be negative and the last must be 1", name, stride, dim);
    reach = di_mul((uint64_t)extent - 1, (uint64_t)stride);
    last = reach > UINT64_MAX - last ? UINT64_MAX : last + reach;
  }
  if (last >= UINT64_MAX / 64 || ((last + 1) * t->bits + 7) / 8 > t->nbytes)
    return di_refuse(call, "%s reaches to element %" PRIu64 " of %u bits, but has %" PRIu64 " bytes", name, last,
                     (unsigned)t->bits, t->nbytes);
  return NULL;
}

/* As di_check_shape, and the tensor has memory, aligned to its elements. After this, di_row gives addresses that may be
 * used. */
static inline DiError *di_check_tensor(DiCall call, const char *name, const DiTensor *t, int32_t rank, uint32_t formats) {
  DiError *error = di_check_shape(call, name, t, rank, formats);
  if (error != NULL || di_is_empty(t)) return error;
  if (t->data == NULL) return di_refuse(call, "%s has no memory", name);
  if (t->bits >= 8 && (uintptr_t)di_address(t) % (t->bits / 8u) != 0)
    return di_refuse(call, "%s lies at an address that is not a multiple of %u", name, t->bits / 8u);
  return NULL;
}

/* As di_check_tensor, if the tensor is there. */
static inline DiError *di_check_optional(DiCall call, const char *name, const DiTensor *t, int32_t rank, uint32_t formats) {
  return di_present(t) ? di_check_tensor(call, name, t, rank, formats) : NULL;
}

/* Dimension `dim` has the extent that `what` stands for. */
static inline DiError *di_check_extent(DiCall call, const char *name, const DiTensor *t, int32_t dim, int64_t wanted,
                                       const char *what) {
  if (t->shape[dim] == wanted) return NULL;
  return di_refuse(call, "%s has %" PRId64 " elements in dimension %" PRId32 ", but %s is %" PRId64, name, t->shape[dim], dim,
                   what, wanted);
}

/* Rows along the last dimension. */
static inline int64_t di_rows(const DiTensor *t) {
  int64_t out = 1;
  int32_t dim;
  for (dim = 0; dim + 1 < t->ndim; ++dim) out *= t->shape[dim];
  return out;
}

/* First byte of a row, counted over all dimensions but the last. A row of packed 4-bit elements begins at an even one. */
static inline char *di_row(const DiTensor *t, int64_t row) {
  int64_t elements = 0;
  int32_t dim;
  for (dim = t->ndim - 2; dim >= 0; --dim) {
    elements += row % t->shape[dim] * t->strides[dim];
    row /= t->shape[dim];
  }
  return di_address(t) + elements * t->bits / 8;
}

/* ---- numbers, by their bits: what is copied keeps the payload of a NaN ---- */

static inline uint32_t di_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float di_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The bits of an F32 rounded to the nearest BF16, ties to even. A NaN becomes quiet and keeps its sign. */
static inline uint16_t di_to_bf16(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/* The bits of a BF16 as those of the same F32; exact. */
static inline uint32_t di_from_bf16(uint16_t bits) { return (uint32_t)bits << 16; }

/* Element `column` of a row of F32 or BF16, as the bits of an F32. */
static inline uint32_t di_float_at(const char *row, uint32_t format, int64_t column) {
  uint32_t wide;
  uint16_t narrow;
  if (format == DI_F32) {
    memcpy(&wide, row + column * 4, sizeof wide);
    return wide;
  }
  memcpy(&narrow, row + column * 2, sizeof narrow);
  return di_from_bf16(narrow);
}

#ifdef __cplusplus
}
#endif
#endif /* DEEPINFER_PLUGIN_HELPERS_H */
