/* gather: copies of table rows, by index. No arithmetic but the conversion between F32 and BF16.
 *
 * The contract is EXACT: bits are copied, so that NaN payloads survive. */
#include "../backend.h"

static void write_row(char *to, uint32_t to_format, const char *from, uint32_t from_format, int64_t columns) {
  int64_t c;
  if (from_format == to_format) {
    memcpy(to, from, (size_t)columns * (from_format == DI_U8 ? 1 : from_format == DI_BF16 ? 2 : 4));
    return;
  }
  for (c = 0; c < columns; ++c) {
    uint32_t wide = di_float_at(from, from_format, c);
    uint16_t narrow = di_to_bf16(wide);
    if (to_format == DI_F32) memcpy(to + c * 4, &wide, sizeof wide);
    else memcpy(to + c * 2, &narrow, sizeof narrow);
  }
}

DiError *gather(DiBackend *b, DiPlan *plan, DiStream *stream, const DiOpHeader *h) {
  const DiCall call = {BACKEND, "gather"};
  const uint32_t formats = DI_F32 | DI_BF16 | DI_I32 | DI_U8;
  DiArgsGatherV1 a;
  DiError *error;
  uint32_t from, to;
  int64_t m, columns, row_bytes;
  (void)b, (void)plan, (void)stream;
  if ((error = di_read_args(call, DI_OP_GATHER, 1, h, &a, sizeof a)) != NULL ||
      (error = di_check_tensor(call, "table", &a.table, 2, formats)) != NULL ||
      (error = di_check_tensor(call, "index", &a.index, 1, DI_I32)) != NULL ||
      (error = di_check_tensor(call, "out", &a.out, 3, formats)) != NULL ||
      (error = di_check_extent(call, "out", &a.out, 0, a.index.shape[0], "the length of index")) != NULL ||
      (error = di_check_extent(call, "out", &a.out, 1, a.repeat, "repeat")) != NULL ||
      (error = di_check_extent(call, "out", &a.out, 2, a.table.shape[1], "the row length of table")) != NULL)
    return error;
  from = di_format(&a.table);
  to = di_format(&a.out);
  if (from != to && ((from | to) & ~(DI_F32 | DI_BF16)) != 0)
    return di_refuse(call, "out is %s and table %s, but only F32 and BF16 are converted into each other",
                     di_format_name(to), di_format_name(from));
  if (di_elements(&a.out) == 0) return NULL;

  columns = a.table.shape[1];
  row_bytes = columns * a.out.bits / 8;
  for (m = 0; m < a.index.shape[0]; ++m) {
    int32_t row = ((const int32_t *)(const void *)di_address(&a.index))[m];
    int64_t r;
    for (r = 0; r < (int64_t)a.repeat; ++r) {
      char *out = di_row(&a.out, m * (int64_t)a.repeat + r);
      if (row >= 0 && row < a.table.shape[0]) write_row(out, to, di_row(&a.table, row), from, columns);
      else memset(out, 0, (size_t)row_bytes);
    }
  }
  return NULL;
}
