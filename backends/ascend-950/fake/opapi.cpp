// Fake vendor ops (libopapi.so), as part of the fake runtime: they compute in plain code, and check how they are called.
//
// What is checked: types, extents and lists; that an executor runs once; that the workspace is as large as was asked for and part of a
// live allocation; and, when the stream comes to the call, that its tensors, the workspace and the memory that they name are still
// there, and that the ends of groups ascend to no more than the rows.
// The workspace is overwritten, so that a second use of it at the same time shows. By default no op is there (settings.h).

#include "../include/di_aclnn.h"

#include <cmath>

#include "device.h"

struct aclTensor {
  aclDataType type;
  std::vector<int64_t> dims, strides;
  char *data;
  // Tensors are never given back to the C library: one that was destroyed is known as such.
  std::atomic<bool> is_alive{true};

  bool has_dims(std::vector<int64_t> wanted) const { return dims == wanted; }
};

// Never given back to the C library either.
struct aclTensorList {
  std::vector<const aclTensor *> tensors;
};

struct aclOpExecutor {
  const char *op;
  std::vector<const aclTensor *> tensors;
  uint64_t workspace;
  // Ends with a sentence if what the device's memory holds is wrong.
  std::function<std::string()> compute;
  std::atomic<bool> was_run{false};
};

namespace {

using fake::fail;

float of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float e4m3(uint8_t code) {
  const float sign = code & 0x80 ? -1.0f : 1.0f;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return NAN;
  return sign * (exponent ? std::ldexp(1.0f + float(mantissa) / 8, exponent - 7) : std::ldexp(float(mantissa), -9));
}

float e2m1(uint8_t code) {
  static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

// The element at an index, unscaled.
float element(const aclTensor &t, int64_t row, int64_t column) {
  const int64_t at = row * t.strides[0] + column * t.strides[1];
  switch (t.type) {
    case ACL_FLOAT: return reinterpret_cast<const float *>(t.data)[at];
    case ACL_BF16: return of_bits(uint32_t(reinterpret_cast<const uint16_t *>(t.data)[at]) << 16);
    case ACL_FLOAT8_E4M3FN: return e4m3(uint8_t(t.data[at]));
    case ACL_FLOAT4_E2M1: return e2m1(uint8_t(t.data[at / 2]) >> at % 2 * 4 & 15);
    case ACL_INT64:
    case ACL_FLOAT8_E8M0: break;
  }
  return NAN;
}

void store(const aclTensor &t, int64_t row, int64_t column, float value) {
  const int64_t at = row * t.strides[0] + column * t.strides[1];
  if (t.type == ACL_FLOAT) {
    reinterpret_cast<float *>(t.data)[at] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t rounded = value != value ? 0x7FC0 : uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  reinterpret_cast<uint16_t *>(t.data)[at] = rounded;
}

float scale(const aclTensor &t, int64_t row, int64_t group) {
  const uint8_t code = uint8_t(t.data[row * t.strides[0] + group / 2 * t.strides[1] + group % 2 * t.strides[2]]);
  return code == 255 ? NAN : std::ldexp(1.0f, code - 127);
}

// Whether all bytes between the first and the last element are in one allocation of a device.
bool is_in_memory(const aclTensor &t) {
  int64_t last = 0;
  for (size_t i = 0; i < t.dims.size(); ++i) {
    if (t.dims[i] == 0) return true;
    last += (t.dims[i] - 1) * t.strides[i];
  }
  const int bits = t.type == ACL_INT64 ? 64 : t.type == ACL_FLOAT ? 32 : t.type == ACL_BF16 ? 16 : t.type == ACL_FLOAT4_E2M1 ? 4 : 8;
  return fake::memory().holds(t.data, uint64_t((last + 1) * bits + 7) / 8, true);
}

// Some rows of a product.
void multiply(const aclTensor &x, const aclTensor &weight, const aclTensor &out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m)
    for (int64_t n = 0; n < weight.dims[1]; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < x.dims[1]; ++k) sum += element(x, m, k) * element(weight, k, n);
      store(out, m, n, sum);
    }
}

aclnnStatus invalid(const char *op, const std::string &text) { return fail(ACLNN_ERR_PARAM_INVALID, std::string(op) + ": " + text); }

// The first phase, after its own checks. Plans of settings.h are carried out here.
aclnnStatus plan(aclOpExecutor *made, uint64_t *workspace, aclOpExecutor **executor) {
  static auto &plans = *new std::map<std::string, uint64_t>;
  static auto &last = *new std::map<std::string, aclOpExecutor *>;
  static auto &lock = *new std::mutex;
  const std::string first_phase = std::string(made->op) + "GetWorkspaceSize";
  fake::Device *device = nullptr;
  if (int code = fake::begin(first_phase.c_str(), &device)) return code;
  for (const aclTensor *tensor : made->tensors) {
    if (!tensor->is_alive) return invalid(made->op, "a tensor that was destroyed");
    if (!is_in_memory(*tensor)) return invalid(made->op, "a tensor whose elements are in no allocation");
  }
  std::lock_guard<std::mutex> guard(lock);
  const uint64_t now = ++plans[made->op];
  const fake::Planned *said = fake::planned(fake::settings().workspaces, made->op, now);
  *workspace = said ? said->value : made->workspace;
  *executor = fake::planned(fake::settings().stales, made->op, now) ? last[made->op] : made;
  last[made->op] = made;
  return ACLNN_SUCCESS;
}

aclnnStatus run(const char *op, void *workspace, uint64_t bytes, aclOpExecutor *executor, aclrtStream stream) {
  fake::Device *device = nullptr;
  if (int code = fake::begin(op, &device)) return code;
  if (!executor || !stream) return fail(ACLNN_ERR_PARAM_NULLPTR, std::string(op) + ": no executor or no stream");
  if (std::string(executor->op) != op) return invalid(op, std::string("an executor of ") + executor->op);
  if (executor->was_run.exchange(true)) return fail(ACLNN_ERR_INNER, std::string(op) + ": the executor was used before");
  if (bytes < executor->workspace) return invalid(op, "a workspace smaller than the op needs");
  if (executor->workspace && !fake::memory().holds(workspace, executor->workspace, true)) return invalid(op, "a workspace in no allocation");
  auto *on = static_cast<fake::Stream *>(stream);
  if (on->device != device) return fail(ACL_ERROR_RT_STREAM_CONTEXT, "the stream is of another context");
  on->add({[=](std::string &text) {
             for (const aclTensor *tensor : executor->tensors) {
               if (!tensor->is_alive) text = "a tensor was destroyed before the stream came to the call";
               else if (!is_in_memory(*tensor)) text = "the memory of a tensor was freed before the stream came to the call";
             }
             if (executor->workspace && !fake::memory().holds(workspace, executor->workspace, true))
               text = "the workspace was freed before the stream came to the call";
             if (text.empty()) {
               std::memset(workspace, 0xA5, executor->workspace);
               text = executor->compute();
             }
             if (text.empty()) return 0;
             text = std::string(op) + ": " + text;
             return int(ACL_ERROR_RT_AICORE_EXCEPTION);
           },
           {}});
  return ACLNN_SUCCESS;
}

}  // namespace

extern "C" {

// Whether this installation has a function of the ops, or `libopapi.so` itself: of the twin alone, asked by src/vendor.rs.
int di_fake_has(const char *name) {
  const std::string all = fake::settings().opapi;
  if (std::strcmp(name, "libopapi.so") == 0) return all != "none";
  return all == "all" || (all.rfind("without:", 0) == 0 && all.substr(8) != name);
}

aclTensor *aclCreateTensor(const int64_t *dims, uint64_t rank, aclDataType type, const int64_t *strides, int64_t offset, aclFormat format,
                           const int64_t *, uint64_t, void *data) {
  if (format != ACL_FORMAT_ND || rank == 0 || rank > 8 || offset != 0) return nullptr;
  auto *tensor = new aclTensor;
  tensor->type = type;
  tensor->dims.assign(dims, dims + rank);
  tensor->strides.assign(strides, strides + rank);
  tensor->data = static_cast<char *>(data);
  return tensor;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor) {
  if (!const_cast<aclTensor *>(tensor)->is_alive.exchange(false)) return fail(ACLNN_ERR_PARAM_INVALID, "a tensor that was destroyed before");
  return ACLNN_SUCCESS;
}

aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size) {
  if (size == 0) return nullptr;
  return new aclTensorList{{value, value + size}};
}

aclnnStatus aclDestroyTensorList(const aclTensorList *list) {
  for (const aclTensor *tensor : list->tensors)
    if (const aclnnStatus code = aclDestroyTensor(tensor)) return code;
  return ACLNN_SUCCESS;
}

aclnnStatus aclnnMatmulGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t math, uint64_t *workspace,
                                        aclOpExecutor **executor) {
  const char *op = "aclnnMatmul";
  if (!self || !mat2 || !out) return fail(ACLNN_ERR_PARAM_NULLPTR, std::string(op) + ": a tensor is missing");
  if (self->type != mat2->type || self->type != out->type || (self->type != ACL_FLOAT && self->type != ACL_BF16) || math != 0)
    return invalid(op, "types that it does not take");
  if (self->dims.size() != 2 || mat2->dims.size() != 2 || self->dims[1] != mat2->dims[0] || !out->has_dims({self->dims[0], mat2->dims[1]}))
    return invalid(op, "extents that do not fit");
  auto compute = [=] {
    multiply(*self, *mat2, *out, 0, self->dims[0]);
    return std::string();
  };
  return plan(new aclOpExecutor{op, {self, mat2, out}, 512 + uint64_t(self->dims[0]) * 4, compute}, workspace, executor);
}

aclnnStatus aclnnMatmul(void *workspace, uint64_t bytes, aclOpExecutor *executor, aclrtStream stream) {
  return run("aclnnMatmul", workspace, bytes, executor, stream);
}

aclnnStatus aclnnQuantMatmulV5GetWorkspaceSize(const aclTensor *x1, const aclTensor *x2, const aclTensor *x1_scale, const aclTensor *x2_scale,
                                               const aclTensor *y_scale, const aclTensor *x1_offset, const aclTensor *x2_offset,
                                               const aclTensor *y_offset, const aclTensor *bias, bool transpose_x1, bool transpose_x2,
                                               int64_t group, aclTensor *out, uint64_t *workspace, aclOpExecutor **executor) {
  const char *op = "aclnnQuantMatmulV5";
  if (!x1 || !x2 || !x1_scale || !x2_scale || !out) return fail(ACLNN_ERR_PARAM_NULLPTR, std::string(op) + ": a tensor is missing");
  // The mode of a scale for a row and 32 columns; others are not needed.
  const bool is_fp4 = x2->type == ACL_FLOAT4_E2M1;
  if (y_scale || x1_offset || x2_offset || y_offset || bias || transpose_x1 || !transpose_x2) return invalid(op, "arguments of another mode");
  if (group != (int64_t(1) << 32 | int64_t(1) << 16 | 32)) return invalid(op, "a group size of another mode");
  if (x1->type != ACL_FLOAT8_E4M3FN || (x2->type != ACL_FLOAT8_E4M3FN && !is_fp4) || x1_scale->type != ACL_FLOAT8_E8M0 ||
      x2_scale->type != ACL_FLOAT8_E8M0 || (out->type != ACL_BF16 && (is_fp4 || out->type != ACL_FLOAT)))
    return invalid(op, "types that it does not take");
  if (x1->dims.size() != 2 || x2->dims.size() != 2 || x1->dims[1] != x2->dims[1]) return invalid(op, "extents that do not fit");
  const int64_t m_all = x1->dims[0], n_all = x2->dims[0], k_all = x1->dims[1], pairs = (k_all + 63) / 64;
  if (is_fp4 && k_all % 64) return invalid(op, "columns that are no multiple of 64");
  if (!x1_scale->has_dims({m_all, pairs, 2}) || !x2_scale->has_dims({n_all, pairs, 2}) || !out->has_dims({m_all, n_all}))
    return invalid(op, "extents that do not fit");
  auto compute = [=] {
    for (int64_t m = 0; m < m_all; ++m)
      for (int64_t n = 0; n < n_all; ++n) {
        float sum = 0;
        for (int64_t j = 0; j * 32 < k_all; ++j) {
          float part = 0;
          for (int64_t k = j * 32; k < std::min(k_all, j * 32 + 32); ++k) part += element(*x1, m, k) * element(*x2, n, k);
          sum += part * scale(*x1_scale, m, j) * scale(*x2_scale, n, j);
        }
        store(*out, m, n, sum);
      }
    return std::string();
  };
  return plan(new aclOpExecutor{op, {x1, x2, x1_scale, x2_scale, out}, 4096, compute}, workspace, executor);
}

aclnnStatus aclnnQuantMatmulV5(void *workspace, uint64_t bytes, aclOpExecutor *executor, aclrtStream stream) {
  return run("aclnnQuantMatmulV5", workspace, bytes, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV5GetWorkspaceSize(const aclTensorList *x, const aclTensorList *weight, const aclTensorList *bias,
                                                 const aclTensorList *scale, const aclTensorList *offset,
                                                 const aclTensorList *antiquant_scale, const aclTensorList *antiquant_offset,
                                                 const aclTensorList *per_token_scale, const aclTensor *group_list,
                                                 const aclTensorList *activation_input, const aclTensorList *activation_scale,
                                                 const aclTensorList *activation_offset, int64_t split_item, int64_t group_type,
                                                 int64_t group_list_type, int64_t activation, aclIntArray *tuning, aclTensorList *out,
                                                 aclTensorList *feature_out, aclTensorList *scale_out, uint64_t *workspace,
                                                 aclOpExecutor **executor) {
  const char *op = "aclnnGroupedMatmulV5";
  if (!x || !weight || !out) return fail(ACLNN_ERR_PARAM_NULLPTR, std::string(op) + ": a list is missing");
  // The mode of one x, a matrix for each group of its rows, and one out; others are not needed. With groups of rows their list must
  // be given.
  if (bias || scale || offset || antiquant_scale || antiquant_offset || per_token_scale || activation_input || activation_scale ||
      activation_offset || tuning || feature_out || scale_out || (split_item != 2 && split_item != 3) || group_type != 0 ||
      group_list_type != 0 || activation != 0 || !group_list)
    return invalid(op, "arguments of another mode");
  const size_t groups = weight->tensors.size();
  if (x->tensors.size() != 1 || out->tensors.size() != 1 || groups > 128) return invalid(op, "lists of a length that it does not take");
  const aclTensor *rows = x->tensors[0], *result = out->tensors[0];
  std::vector<const aclTensor *> tensors = {rows, result, group_list};
  tensors.insert(tensors.end(), weight->tensors.begin(), weight->tensors.end());
  if ((rows->type != ACL_FLOAT && rows->type != ACL_BF16) || result->type != rows->type || group_list->type != ACL_INT64)
    return invalid(op, "types that it does not take");
  if (rows->dims.size() != 2 || result->dims.size() != 2 || result->dims[0] != rows->dims[0] || !group_list->has_dims({int64_t(groups)}))
    return invalid(op, "extents that do not fit");
  for (const aclTensor *one : weight->tensors) {
    if (one->type != rows->type) return invalid(op, "types that it does not take");
    if (!one->has_dims({rows->dims[1], result->dims[1]})) return invalid(op, "extents that do not fit");
    if (one->strides != weight->tensors[0]->strides) return invalid(op, "matrices of which some are transposed");
  }
  const auto matrices = weight->tensors;
  auto compute = [=]() -> std::string {
    const auto *ends = reinterpret_cast<const int64_t *>(group_list->data);
    int64_t begin = 0;
    for (size_t g = 0; g < groups; begin = ends[g++])
      if (ends[g] < begin || ends[g] > rows->dims[0]) return "ends of groups that descend or lie beyond the rows";
    begin = 0;
    for (size_t g = 0; g < groups; begin = ends[g++]) multiply(*rows, *matrices[g], *result, begin, ends[g]);
    return "";
  };
  return plan(new aclOpExecutor{op, tensors, 1024 + uint64_t(groups) * 8, compute}, workspace, executor);
}

aclnnStatus aclnnGroupedMatmulV5(void *workspace, uint64_t bytes, aclOpExecutor *executor, aclrtStream stream) {
  return run("aclnnGroupedMatmulV5", workspace, bytes, executor, stream);
}

}  // extern "C"
