/* What the backend uses of aclnn, CANN's ops in two phases (libopapi.so, libnnopbase.so): names, types and numbers, stated by us.
 *
 * Phase one plans a call over tensors of the host's making and says how much workspace it needs; phase two queues it. A plan (the
 * executor) is used once. Tensors, workspace and what they name live until the stream has passed the call.
 *
 * bindgen makes src/vendor/sys.rs of it, and the fake ops (fake/opapi.cpp) are compiled against it. */
#ifndef DEEPINFER_DI_ACLNN_H
#define DEEPINFER_DI_ACLNN_H

#include <stdbool.h>

#include "di_acl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t aclnnStatus;
typedef struct aclTensor aclTensor;
typedef struct aclTensorList aclTensorList;
typedef struct aclIntArray aclIntArray;
typedef struct aclOpExecutor aclOpExecutor;

static const aclnnStatus ACLNN_SUCCESS = 0;
static const aclnnStatus ACLNN_ERR_PARAM_NULLPTR = 161001;
static const aclnnStatus ACLNN_ERR_PARAM_INVALID = 161002;
static const aclnnStatus ACLNN_ERR_RUNTIME_ERROR = 361001;
static const aclnnStatus ACLNN_ERR_INNER = 561000;

typedef enum aclDataType {
  ACL_FLOAT = 0,
  ACL_INT64 = 9,
  ACL_BF16 = 27,
  ACL_FLOAT8_E4M3FN = 36,
  ACL_FLOAT8_E8M0 = 37,
  ACL_FLOAT4_E2M1 = 40,
} aclDataType;

typedef enum aclFormat { ACL_FORMAT_ND = 2 } aclFormat;

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride, int64_t offset,
                           aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
/* Tensors belong to the list that they were put into, and are destroyed with it. */
aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
aclnnStatus aclDestroyTensorList(const aclTensorList *array);

/* out = self x mat2. cubeMathType 0: products in the tensors' own type. */
aclnnStatus aclnnMatmulGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType,
                                        uint64_t *workspaceSize, aclOpExecutor **executor);
aclnnStatus aclnnMatmul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);

/* out = x1 x x2 of scaled elements. In the mode used here a scale (E8M0) belongs to a row and 32 columns of the sum. */
aclnnStatus aclnnQuantMatmulV5GetWorkspaceSize(const aclTensor *x1, const aclTensor *x2, const aclTensor *x1Scale,
                                               const aclTensor *x2Scale, const aclTensor *yScale, const aclTensor *x1Offset,
                                               const aclTensor *x2Offset, const aclTensor *yOffset, const aclTensor *bias,
                                               bool transposeX1, bool transposeX2, int64_t groupSize, aclTensor *out,
                                               uint64_t *workspaceSize, aclOpExecutor **executor);
aclnnStatus aclnnQuantMatmulV5(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);

/* Rows of x, each with the weights of its group. As used here: one x and one out (splitItem 3), rows in groups (groupType 0), a matrix
 * of weights for each group, the ends of the groups' rows as I64 of the device (groupListType 0), no activation (actType 0). */
aclnnStatus aclnnGroupedMatmulV5GetWorkspaceSize(
    const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional, const aclTensorList *scaleOptional,
    const aclTensorList *offsetOptional, const aclTensorList *antiquantScaleOptional, const aclTensorList *antiquantOffsetOptional,
    const aclTensorList *perTokenScaleOptional, const aclTensor *groupListOptional, const aclTensorList *activationInputOptional,
    const aclTensorList *activationQuantScaleOptional, const aclTensorList *activationQuantOffsetOptional, int64_t splitItem,
    int64_t groupType, int64_t groupListType, int64_t actType, aclIntArray *tuningConfigOptional, aclTensorList *out,
    aclTensorList *activationFeatureOutOptional, aclTensorList *dynQuantScaleOutOptional, uint64_t *workspaceSize,
    aclOpExecutor **executor);
aclnnStatus aclnnGroupedMatmulV5(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
