/* DeepInfer plugin ABI: what crosses the boundary between the core and an accelerator backend.
 *
 * A plugin is a shared library that exports one symbol, deepinfer_backend_entry. Everything else is reached through the
 * tables in its reply. Rules:
 *  - fixed-width integers only; no C enums in structs, no bit fields, no bool;
 *  - a struct that may grow begins with struct_size, the bytes its writer knows. Read min(struct_size, your sizeof); a
 *    missing tail reads as zero, and zero means the old behaviour. Never test struct_size for equality;
 *  - a NULL DiError* is success; an error frees itself through its release function. What a call
 *    that fails has written to its out-pointers means nothing: the plugin frees what it had made;
 *  - pointers in requests are borrowed for the call; pointers in replies live as long as the backend;
 *  - no panic or exception may leave the plugin. */
#ifndef DEEPINFER_PLUGIN_H
#define DEEPINFER_PLUGIN_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DI_ABI_MAJOR 0u
#define DI_ABI_MINOR 2u
#define DI_ENTRY_SYMBOL "deepinfer_backend_entry"
/* Whether the writer of *p knew field f. */
#define DI_HAS_FIELD(p, T, f) ((p)->struct_size >= (uint32_t)(offsetof(T, f) + sizeof(((T *)0)->f)))

/* ---- objects of the plugin ---- */
typedef struct DiBackend DiBackend;
typedef struct DiDevice DiDevice;
typedef struct DiStream DiStream;
typedef struct DiEvent DiEvent;
typedef struct DiBuffer DiBuffer;
typedef struct DiPlan DiPlan;

typedef struct DiStr { const uint8_t *ptr; size_t len; } DiStr; /* UTF-8, not NUL-terminated */
typedef struct DiExt { uint32_t struct_size, ext_id; const struct DiExt *next; } DiExt;

/* ---- errors ---- */
#define DI_E_INVALID 1        /* the caller broke a rule of the call */
#define DI_E_UNSUPPORTED 2    /* the backend does not do this; nothing is broken */
#define DI_E_OOM 3
#define DI_E_WORKSPACE 4
#define DI_E_DEVICE_LOST 5
#define DI_E_ABI 6
#define DI_E_PANIC 7          /* caught inside the plugin */
#define DI_E_INTERNAL 8
#define DI_E_NOT_CAPTURABLE 9
#define DI_EF_STICKY 1u       /* unusable until the device is reopened */
#define DI_EF_RETRYABLE 2u
#define DI_EF_POISONED 4u     /* a panic left the backend in an unknown state */
typedef struct DiError DiError;
struct DiError {
  uint32_t struct_size;
  int32_t code;
  uint32_t flags;
  int32_t vendor_code;
  DiStr message;
  DiStr origin; /* "backend/op" */
  void (*release)(DiError *self);
};

/* ---- tensors: bytes 0..48 of DiTensor are exactly DLPack's DLTensor ---- */
#define DI_DEVICE_CPU 1
#define DI_DEVICE_CUDA 2
#define DI_DEVICE_ASCEND 0x10000
#define DI_CODE_INT 0u
#define DI_CODE_UINT 1u
#define DI_CODE_FLOAT 2u
#define DI_CODE_BFLOAT 4u
#define DI_CODE_E4M3FN 10u
#define DI_CODE_E8M0FNU 14u
#define DI_CODE_E2M1FN 17u
#define DI_TF_READ_ONLY 1u
typedef struct DiQuant DiQuant;
typedef struct DiTensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;  /* bits 4: packed, two to a byte, even element in the low nibble */
  uint16_t lanes;      /* 1 */
  int64_t *shape;      /* logical elements */
  int64_t *strides;    /* elements; both non-NULL when ndim > 0 */
  uint64_t byte_offset;
  const DiQuant *quant; /* NULL: values are plain */
  uint32_t layout;      /* 0: strided */
  uint32_t flags;
  uint64_t nbytes;      /* bytes that may be touched from data + byte_offset */
} DiTensor;             /* an absent optional tensor has data NULL, ndim 0, bits 0 */
typedef struct DiTensorList { const DiTensor *ptr; uint64_t len; } DiTensorList;
#define DI_QS_BLOCK 1u
#define DI_SL_ROW_MAJOR 0u
#define DI_QO_MULTIPLY 0u
struct DiQuant {
  uint32_t struct_size, scheme;
  int32_t block[4]; /* extent of a block per logical dimension; 0 = the whole dimension */
  uint32_t scale_layout, scale_op;
  const DiTensor *scale; /* one per block, over the block grid */
  const DiTensor *global_scale;
  const DiTensor *zero_point;
};

/* ---- op calls ---- */
#define DI_OPF_REQUIRE_DETERMINISTIC 1u
#define DI_OPF_REQUIRE_BATCH_INVARIANT 2u
typedef struct DiOpHeader {
  uint32_t struct_size, op_id, op_version, flags;
  void *workspace;
  uint64_t workspace_bytes;
  const DiExt *ext;
} DiOpHeader;
#define DI_PF_CAPTURABLE 1u
#define DI_PF_CONCURRENT 2u
#define DI_PF_BATCH_INVARIANT 4u
#define DI_PF_DETERMINISTIC 8u
typedef struct DiPlanInfo {
  uint32_t struct_size, flags;
  uint64_t workspace_bytes;
  uint32_t workspace_align, algo_id;
  uint64_t est_flops, est_bytes;
} DiPlanInfo;
#define DI_SUPPORT_NO 0u
#define DI_SUPPORT_YES 1u
#define DI_SUPPORT_AFTER_RELAYOUT 2u
typedef struct DiSupport {
  uint32_t struct_size, verdict, determinism, contract_id;
  DiStr reason;
  uint32_t want_layout[8];
} DiSupport;
/* proto is a call without content: data is NULL in every tensor and in every tensor of scales. args of run are whole: no
 * output and no in-place argument shares memory with another argument, and what is only read may not be written. */
typedef DiError *(*DiSupportsFn)(DiBackend *, DiDevice *, const DiOpHeader *proto, DiSupport *out);
typedef DiError *(*DiPlanFn)(DiBackend *, DiDevice *, const DiOpHeader *proto, DiPlan **out, DiPlanInfo *info);
typedef DiError *(*DiRunFn)(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *args);
typedef void (*DiPlanDestroyFn)(DiBackend *, DiPlan *);
typedef struct DiOpEntry {
  uint32_t struct_size, op_id, op_version, flags;
  DiStr name, impl_name;
  int32_t priority;
  uint32_t reserved0;
  DiSupportsFn supports; /* NULL: every shape of the catalogue */
  DiPlanFn plan;         /* NULL: no workspace, no state; run gets a NULL plan */
  DiRunFn run;
  DiPlanDestroyFn plan_destroy;
} DiOpEntry;

/* ---- devices, memory, streams, events ---- */
typedef struct DiDeviceInfo {
  uint32_t struct_size;
  int32_t device_type, ordinal;
  uint32_t pci_vendor;
  uint64_t caps, dtype_mask, layout_mask;
  DiStr name, arch;
  uint8_t uuid[16];
  uint64_t total_bytes;
  int32_t numa_node;
  uint32_t n_spaces, compute_units, isolation;
} DiDeviceInfo;
/* caps: a model of a device, on the host's processor; used only where a person names it */
#define DI_CAP_EMULATED 1u
#define DI_SPACE_DEVICE 0u
#define DI_SPACE_HOST_PINNED 1u   /* host memory that the device reads directly */
#define DI_SPACE_HOST_PAGEABLE 2u /* host memory that only copies reach */
typedef struct DiSpaceInfo {
  uint32_t struct_size, space_id, kind, flags;
  uint64_t min_align, granularity, total_bytes;
} DiSpaceInfo;
#define DI_LINK_SELF 0u
#define DI_LINK_DIRECT 1u /* a vendor's direct link */
#define DI_LINK_PCIE 2u   /* within one NUMA node */
#define DI_LINK_SYSTEM 3u /* across NUMA nodes */
#define DI_LF_PEER_COPY 1u
#define DI_LF_PEER_ACCESS 2u
typedef struct DiLinkInfo {
  uint32_t struct_size, link_class, flags, hops;
  uint64_t bytes_per_s, latency_ns; /* 0: unknown */
} DiLinkInfo;
#define DI_COPY_H2D 0u
#define DI_COPY_D2H 1u
#define DI_COPY_D2D 2u
#define DI_COPY_P2P 3u
/* Threads: any thread calls device_*, alloc, free, event_destroy and, of ops and graphs, supports, plan, plan_destroy and
   exec_destroy, several at once. A stream, with the work and events queued on it, belongs to one thread at a time. */
typedef struct DiRuntimeApi {
  uint32_t struct_size, reserved0;
  DiError *(*device_count)(DiBackend *, uint32_t *out); /* an error says why there is none */
  DiError *(*device_info)(DiBackend *, uint32_t i, DiDeviceInfo *out); /* creates no context */
  DiError *(*device_open)(DiBackend *, uint32_t i, const DiExt *, DiDevice **out);
  void (*device_close)(DiBackend *, DiDevice *);
  DiError *(*device_mem_info)(DiBackend *, DiDevice *, uint32_t space, uint64_t *free_b, uint64_t *total_b);
  DiError *(*alloc)(DiBackend *, DiDevice *, uint32_t space, uint64_t bytes, uint64_t align, DiBuffer **out, void **addr);
  void (*free_)(DiBackend *, DiBuffer *);
  DiError *(*stream_create)(DiBackend *, DiDevice *, int32_t priority, uint32_t flags, DiStream **out);
  void (*stream_destroy)(DiBackend *, DiStream *);
  DiError *(*stream_sync)(DiBackend *, DiStream *);
  DiError *(*event_create)(DiBackend *, DiDevice *, uint32_t flags, DiEvent **out);
  void (*event_destroy)(DiBackend *, DiEvent *);
  DiError *(*event_record)(DiBackend *, DiEvent *, DiStream *);
  DiError *(*event_wait)(DiBackend *, DiStream *, DiEvent *);
  DiError *(*event_query)(DiBackend *, DiEvent *, int32_t *done);
  DiError *(*event_sync)(DiBackend *, DiEvent *);
  DiError *(*copy)(DiBackend *, DiStream *, void *dst, const void *src, uint64_t bytes, uint32_t kind);
  DiError *(*fill)(DiBackend *, DiStream *, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count);
  /* From here on optional: NULL when the backend does not offer it. */
  DiError *(*space_info)(DiBackend *, uint32_t device, uint32_t i, DiSpaceInfo *out); /* creates no context */
  DiError *(*device_link)(DiBackend *, uint32_t a, uint32_t b, DiLinkInfo *out);      /* creates no context */
  DiError *(*stream_native)(DiBackend *, DiStream *, void **out); /* cudaStream_t, aclrtStream, ... */
  DiError *(*event_elapsed)(DiBackend *, DiEvent *from, DiEvent *to, float *ms);
  DiError *(*copy_2d)(DiBackend *, DiStream *, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch,
                      uint64_t width, uint64_t height, uint32_t kind);
} DiRuntimeApi;
/* ---- optional tables: what `table` of DiBackendApi is asked for ---- */
#define DI_TABLE_GRAPH 1u
#define DI_TABLE_COLLECTIVE 2u
#define DI_TABLE_PREPACK 3u
#define DI_TABLE_PROFILE 4u
#define DI_TABLE_VMM 5u
#define DI_TABLE_IPC 6u
#define DI_TABLE_OPS 7u /* reflection rows of the backend's own ops */
typedef struct DiGraph DiGraph;
typedef struct DiGraphExec DiGraphExec;
/* Capture of a stream's work and its replay. During capture nothing may allocate, synchronise or copy pageable memory:
 * such a call fails with DI_E_NOT_CAPTURABLE. */
typedef struct DiGraphApi {
  uint32_t struct_size, reserved0;
  DiError *(*begin)(DiBackend *, DiStream *);
  DiError *(*end)(DiBackend *, DiStream *, DiGraph **out);
  DiError *(*instantiate)(DiBackend *, DiGraph *, DiGraphExec **out);
  DiError *(*update)(DiBackend *, DiGraphExec *, DiGraph *, int32_t *updated);
  DiError *(*launch)(DiBackend *, DiGraphExec *, DiStream *);
  void (*graph_destroy)(DiBackend *, DiGraph *);
  void (*exec_destroy)(DiBackend *, DiGraphExec *);
} DiGraphApi;
/* Collectives among the ranks of a group, in stream order. Declared since 0.2. A group that was made with
 * DI_PF_DETERMINISTIC sums in the order of the ranks, whatever arrives first. */
typedef struct DiComm DiComm;
#define DI_REDUCE_SUM 0u
#define DI_REDUCE_MAX 1u
typedef struct DiCollectiveApi {
  uint32_t struct_size, reserved0;
  DiError *(*group_id)(DiBackend *, uint8_t *id, uint64_t *bytes); /* id NULL: only the length is written */
  DiError *(*comm_create)(DiBackend *, DiDevice *, const uint8_t *id, uint64_t bytes, uint32_t rank, uint32_t ranks,
                          uint32_t flags, DiComm **out); /* returns when all have joined */
  void (*comm_destroy)(DiBackend *, DiComm *);
  DiError *(*all_reduce)(DiBackend *, DiComm *, DiStream *, const DiTensor *in, const DiTensor *out, uint32_t reduce);
  DiError *(*all_gather)(DiBackend *, DiComm *, DiStream *, const DiTensor *in, const DiTensor *out);
  DiError *(*reduce_scatter)(DiBackend *, DiComm *, DiStream *, const DiTensor *in, const DiTensor *out, uint32_t reduce);
  DiError *(*all_to_all)(DiBackend *, DiComm *, DiStream *, const DiTensor *in, const uint64_t *rows_to,
                         const DiTensor *out, const uint64_t *rows_from); /* rows per rank, in host memory */
  DiError *(*send)(DiBackend *, DiComm *, DiStream *, const DiTensor *, uint32_t to);
  DiError *(*recv)(DiBackend *, DiComm *, DiStream *, const DiTensor *, uint32_t from);
} DiCollectiveApi;
/* Weights in the layout that a kernel wants, made once when they are loaded. Declared since 0.2. */
typedef struct DiPrepackInfo {
  uint32_t struct_size, layout; /* layout 0: the canonical one is as good, pack nothing */
  uint64_t bytes, align;
} DiPrepackInfo;
typedef struct DiPrepackApi {
  uint32_t struct_size, reserved0;
  DiError *(*query)(DiBackend *, DiDevice *, uint32_t op_id, uint32_t op_version, uint32_t arg,
                    const DiTensor *canonical, DiPrepackInfo *out); /* canonical has no data */
  DiError *(*pack)(DiBackend *, DiStream *, const DiTensor *canonical, uint32_t layout, void *dst, uint64_t bytes);
} DiPrepackApi;
/* Times of the work on a stream, from the device itself. Declared since 0.2. */
typedef struct DiProfileRecord {
  uint32_t struct_size, op_id; /* op 0: a copy or a fill */
  uint64_t begin_ns, end_ns, bytes;
  DiStr name;
} DiProfileRecord;
typedef struct DiProfileApi {
  uint32_t struct_size, reserved0;
  DiError *(*begin)(DiBackend *, DiStream *);
  DiError *(*end)(DiBackend *, DiStream *, uint64_t *records); /* waits for the work */
  DiError *(*record)(DiBackend *, DiStream *, uint64_t i, DiProfileRecord *out);
} DiProfileApi;
/* Addresses apart from memory, so that a cache grows without moving. Sizes are multiples of the space's granularity.
 * Declared since 0.2. */
typedef struct DiRange DiRange;
typedef struct DiPhysical DiPhysical;
typedef struct DiVmmApi {
  uint32_t struct_size, reserved0;
  DiError *(*reserve)(DiBackend *, DiDevice *, uint64_t bytes, DiRange **out, void **addr);
  void (*unreserve)(DiBackend *, DiRange *);
  DiError *(*create)(DiBackend *, DiDevice *, uint32_t space, uint64_t bytes, DiPhysical **out);
  void (*release)(DiBackend *, DiPhysical *);
  DiError *(*map)(DiBackend *, DiRange *, uint64_t offset, DiPhysical *);
  DiError *(*unmap)(DiBackend *, DiRange *, uint64_t offset, uint64_t bytes);
} DiVmmApi;
/* Device memory and events that another process of this machine uses. Declared since 0.2. */
typedef struct DiIpcApi {
  uint32_t struct_size, reserved0;
  DiError *(*export_buffer)(DiBackend *, DiBuffer *, uint8_t *handle, uint64_t *bytes); /* NULL: only the length */
  DiError *(*import_buffer)(DiBackend *, DiDevice *, const uint8_t *handle, uint64_t bytes, DiBuffer **out, void **addr);
  DiError *(*export_event)(DiBackend *, DiEvent *, uint8_t *handle, uint64_t *bytes);
  DiError *(*import_event)(DiBackend *, DiDevice *, const uint8_t *handle, uint64_t bytes, DiEvent **out);
} DiIpcApi;
/* A backend's own op: id from 0x80000000, version, and where its arguments lie, as layers and tools see them. */
#define DI_ARG_TENSOR 0u
#define DI_ARG_TENSOR_LIST 1u
#define DI_ARG_U32 2u
#define DI_ARG_I32 3u
#define DI_ARG_F32 4u
#define DI_ROLE_IN 0u
#define DI_ROLE_OUT 1u
#define DI_ROLE_INOUT 2u
#define DI_CONTRACT_EXACT 0u
#define DI_CONTRACT_ULP 1u
#define DI_CONTRACT_BOUND 2u
#define DI_CONTRACT_DIST 3u
typedef struct DiArgInfo {
  uint32_t struct_size, offset, kind, role, optional, reserved0;
  DiStr name;
} DiArgInfo;
typedef struct DiOpInfo {
  uint32_t struct_size, op_id, op_version, args_size, contract, reserved0;
  DiStr name;
  const DiArgInfo *args;
  size_t n_args, arg_stride;
  float ulps; /* since 0.2; of an ULP contract */
  uint32_t reserved1;
} DiOpInfo;
typedef struct DiOpsTable {
  uint32_t struct_size, reserved0;
  const DiOpInfo *ops;
  size_t n_ops, op_stride;
} DiOpsTable;
typedef struct DiBackendApi {
  uint32_t struct_size, flags;
  DiBackend *backend;
  const DiRuntimeApi *runtime;
  const DiOpEntry *ops;
  size_t n_ops, op_stride;
  const void *(*table)(DiBackend *, uint32_t table_id); /* optional tables; NULL when absent */
  DiError *(*shutdown)(DiBackend *);                    /* joins every thread of the plugin */
} DiBackendApi;

/* ---- the handshake ---- */
#define DI_LOG_ERROR 1
#define DI_LOG_WARN 2
#define DI_LOG_INFO 3
#define DI_LOG_DEBUG 4
typedef struct DiHostApi {
  uint32_t struct_size, reserved0;
  void *user;
  void (*log)(void *user, int32_t level, DiStr target, DiStr message);
  /* since 0.2: whether a line of this level and target would be written */
  int32_t (*log_enabled)(void *user, int32_t level, DiStr target);
} DiHostApi;
typedef struct DiEntryRequest {
  uint32_t struct_size;
  uint16_t min_major, max_major, minor, min_plugin_minor;
  uint32_t reserved0;
  const DiHostApi *host;
  const DiBackendApi *next; /* not NULL: act as a layer over this backend */
  DiStr options;            /* key=value&key=value */
  const DiExt *ext;
} DiEntryRequest;
#define DI_RF_CONTAINS_PANICS 1u
#define DI_RF_IS_LAYER 2u
typedef struct DiEntryReply {
  uint32_t struct_size; /* in: bytes known to the core */
  uint16_t major, minor, min_core_minor, reserved0;
  uint32_t flags;
  DiStr name, version, build;
  const DiBackendApi *api; /* when the entry returned 0 */
  DiError *error;          /* when it did not */
} DiEntryReply;
/* The only exported symbol: returns 0 or a DI_E_* code. Called once per process; that of a layer once per backend that it
 * wraps. */
typedef int32_t (*DiEntryFn)(const DiEntryRequest *, DiEntryReply *);
