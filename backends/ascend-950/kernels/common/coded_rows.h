// Pieces of rows encoded and written: codes and scales as matrices of a scaled format have them.
#pragma once

#include "encode.h"

class CodedRows {
public:
  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(codes_, 2, CODED_COLUMNS);
    pipe.InitBuffer(scales_, 2, CODED_COLUMNS / 16);
    coder_.init(pipe);
  }

  // `count` columns, whole groups, to the bytes from `codes` and `scales` on. V must be done with whatever it puts into `values`;
  // behind it V may write there again.
  template <int32_t FORMAT>
  __aicore__ inline void store(GM_ADDR codes, GM_ADDR scales, const AscendC::LocalTensor<float> &values, uint32_t count) {
    using namespace AscendC;
    using Format = Scaled<FORMAT>;
    LocalTensor<uint8_t> code = codes_.AllocTensor<uint8_t>(), scale = scales_.AllocTensor<uint8_t>();
    coder_.encode<FORMAT>(code, scale, values, count);
    codes_.EnQue(code);
    scales_.EnQue(scale);
    code = codes_.DeQue<uint8_t>();
    scale = scales_.DeQue<uint8_t>();
    GlobalTensor<uint8_t> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(codes));
    DataCopyPad(to, code, DataCopyExtParams(1, count / Format::CODES_PER_BYTE, 0, 0, 0));
    to.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(scales));
    DataCopyPad(to, scale, DataCopyExtParams(1, count / Format::GROUP, 0, 0, 0));
    codes_.FreeTensor(code);
    scales_.FreeTensor(scale);
  }

private:
  Coder coder_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 2> codes_, scales_;
};
