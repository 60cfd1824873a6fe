/* gather: copies of table rows, by index. No arithmetic but the conversion between F32 and BF16.
 *
 * The contract is EXACT: bits are copied, so that NaN payloads survive. */
#include <algorithm>
#include <cstring>

#include "../backend.hpp"

using deepinfer::Bf16;
using deepinfer::Call;
using deepinfer::Rows;
using deepinfer::Span;

namespace {

template <class From, class To, class Convert>
void copy_rows(const Call<DiArgsGatherV1> &call, Convert convert) {
  const Rows<const From> table(call.args.table);
  const Rows<To> out(call.args.out);
  const Span<const std::int32_t> index = call.elements<const std::int32_t>("index", call.args.index);
  for (std::size_t row = 0; row < out.count(); ++row) {
    const std::int32_t from = index[row / call.args.repeat];
    const Span<To> to = out[row];
    if (from < 0 || from >= call.args.table.shape[0]) {
      std::fill(to.begin(), to.end(), To{});
    } else {
      const Span<const From> source = table[static_cast<std::size_t>(from)];
      std::transform(source.begin(), source.end(), to.begin(), convert);
    }
  }
}

/* By their bits: a float that is moved through a register may lose the payload of a signalling NaN. */
template <class T>
void copy_bits(const Call<DiArgsGatherV1> &call) {
  copy_rows<T, T>(call, [](T value) { return value; });
}

}  // namespace

void gather(const Call<DiArgsGatherV1> &call) {
  const std::uint32_t formats = DI_F32 | DI_BF16 | DI_I32 | DI_U8;
  const auto &a = call.args;
  const std::uint32_t from = call.check("table", a.table, 2, formats), to = call.check("out", a.out, 3, formats);
  call.check("index", a.index, 1, DI_I32);
  call.check_extent("out", a.out, 0, a.index.shape[0], "the length of index");
  call.check_extent("out", a.out, 1, a.repeat, "repeat");
  call.check_extent("out", a.out, 2, a.table.shape[1], "the row length of table");
  if (di_elements(&a.out) == 0) return;

  if (from == to && (from == DI_F32 || from == DI_I32)) {
    copy_bits<std::int32_t>(call);
  } else if (from == to && from == DI_BF16) {
    copy_bits<Bf16>(call);
  } else if (from == to) {
    copy_bits<std::uint8_t>(call);
  } else if (from == DI_BF16 && to == DI_F32) {
    copy_rows<Bf16, std::int32_t>(call, [](Bf16 x) { return static_cast<std::int32_t>(di_from_bf16(x.bits)); });
  } else if (from == DI_F32 && to == DI_BF16) {
    copy_rows<std::int32_t, Bf16>(call, [](std::int32_t bits) { return Bf16{di_to_bf16(static_cast<std::uint32_t>(bits))}; });
  } else {
    throw std::invalid_argument(std::string("out is ") + di_format_name(to) + " and table " + di_format_name(from) +
                                ", but only F32 and BF16 are converted into each other");
  }
}
