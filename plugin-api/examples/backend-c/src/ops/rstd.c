/* rstd: the reciprocal root mean square of rows.
 *
 * The squares are summed in double, one after the other: more than the contract asks for, and the same bits for a row
 * whatever stands beside it. A kernel that sums in parallel fixes the shape of its tree by the row's length alone. */
#include <math.h>

#include "../backend.h"

DiError *rstd(DiBackend *b, DiPlan *plan, DiStream *stream, const DiOpHeader *h) {
  const DiCall call = {BACKEND, "rstd"};
  DiArgsRstdV1 a;
  DiError *error;
  uint32_t format;
  int64_t t, n, columns;
  (void)b, (void)plan, (void)stream;
  if ((error = di_read_args(call, DI_OP_RSTD, 1, h, &a, sizeof a)) != NULL ||
      (error = di_check_tensor(call, "x", &a.x, 2, DI_F32 | DI_BF16)) != NULL ||
      (error = di_check_tensor(call, "out", &a.out, 1, DI_F32)) != NULL ||
      (error = di_check_extent(call, "out", &a.out, 0, a.x.shape[0], "the number of rows of x")) != NULL)
    return error;

  format = di_format(&a.x);
  columns = a.x.shape[1];
  for (t = 0; t < a.x.shape[0]; ++t) {
    /* A tensor without elements may have no memory. */
    const char *row = columns > 0 ? di_row(&a.x, t) : NULL;
    double squares = 0;
    for (n = 0; n < columns; ++n) {
      double x = di_float(di_float_at(row, format, n));
      squares += x * x;
    }
    ((float *)(void *)di_address(&a.out))[t] = (float)(1 / sqrt(squares / (double)columns + (double)a.eps));
  }
  return NULL;
}
