//! The plugin boundary as Rust sees it: layouts of the structs and values of the constants, which C compilers, `bindgen` and
//! the snapshots of old versions must agree with.

use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};

use deepinfer_plugin_api::OpInfo;
use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::OPS;

/// A struct as Rust lays it out.
pub struct Layout {
    /// Name in the header.
    pub name: String,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// Names and offsets, in order.
    pub fields: Vec<(&'static str, usize)>,
}

impl Layout {
    /// Every size that ends between two fields, with the first field that is missing then: from the struct that has nothing
    /// but its size to the whole one.
    pub fn ends(&self) -> impl Iterator<Item = (usize, Option<&'static str>)> {
        let cut = self.fields.iter().skip(1).map(|&(field, offset)| (offset, Some(field)));
        cut.chain([(self.size, None)])
    }
}

/// Layouts of the named structs. A field that is left out does not compile: the pattern must name all of them.
macro_rules! layouts {
    ($($type:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            fn _names_every_field(value: &$type) {
                let $type { $($field: _),* } = value;
            }
            Layout {
                name: stringify!($type).to_owned(),
                size: size_of::<$type>(),
                align: align_of::<$type>(),
                fields: vec![$((stringify!($field), offset_of!($type, $field))),*],
            }
        }),*]
    };
}

macro_rules! constants {
    ($($name:ident)*) => { vec![$((stringify!($name).to_owned(), i64::from($name))),*] };
}

/// The structs that are written by hand, all fields.
pub fn fixed_structs() -> Vec<Layout> {
    layouts! {
        DiStr { ptr, len }
        DiExt { struct_size, ext_id, next }
        DiError { struct_size, code, flags, vendor_code, message, origin, release }
        DiTensor {
            data, device_type, device_id, ndim, code, bits, lanes, shape, strides, byte_offset, quant, layout, flags, nbytes,
        }
        DiTensorList { ptr, len }
        DiQuant { struct_size, scheme, block, scale_layout, scale_op, scale, global_scale, zero_point }
        DiOpHeader { struct_size, op_id, op_version, flags, workspace, workspace_bytes, ext }
        DiPlanInfo { struct_size, flags, workspace_bytes, workspace_align, algo_id, est_flops, est_bytes }
        DiSupport { struct_size, verdict, determinism, contract_id, reason, want_layout }
        DiOpEntry {
            struct_size, op_id, op_version, flags, name, impl_name, priority, reserved0, supports, plan, run, plan_destroy,
        }
        DiDeviceInfo {
            struct_size, device_type, ordinal, pci_vendor, caps, dtype_mask, layout_mask, name, arch, uuid, total_bytes,
            numa_node, n_spaces, compute_units, isolation,
        }
        DiRuntimeApi {
            struct_size, reserved0, device_count, device_info, device_open, device_close, device_mem_info, alloc, free_,
            stream_create, stream_destroy, stream_sync, event_create, event_destroy, event_record, event_wait,
            event_query, event_sync, copy, fill, space_info, device_link, stream_native, event_elapsed, copy_2d,
        }
        DiSpaceInfo { struct_size, space_id, kind, flags, min_align, granularity, total_bytes }
        DiLinkInfo { struct_size, link_class, flags, hops, bytes_per_s, latency_ns }
        DiGraphApi { struct_size, reserved0, begin, end, instantiate, update, launch, graph_destroy, exec_destroy }
        DiCollectiveApi {
            struct_size, reserved0, group_id, comm_create, comm_destroy, all_reduce, all_gather, reduce_scatter,
            all_to_all, send, recv,
        }
        DiPrepackInfo { struct_size, layout, bytes, align }
        DiPrepackApi { struct_size, reserved0, query, pack }
        DiProfileRecord { struct_size, op_id, begin_ns, end_ns, bytes, name }
        DiProfileApi { struct_size, reserved0, begin, end, record }
        DiVmmApi { struct_size, reserved0, reserve, unreserve, create, release, map, unmap }
        DiIpcApi { struct_size, reserved0, export_buffer, import_buffer, export_event, import_event }
        DiArgInfo { struct_size, offset, kind, role, optional, reserved0, name }
        DiOpInfo {
            struct_size, op_id, op_version, args_size, contract, reserved0, name, args, n_args, arg_stride, ulps, reserved1,
        }
        DiOpsTable { struct_size, reserved0, ops, n_ops, op_stride }
        DiBackendApi { struct_size, flags, backend, runtime, ops, n_ops, op_stride, table, shutdown }
        DiHostApi { struct_size, reserved0, user, log, log_enabled }
        DiEntryRequest {
            struct_size, min_major, max_major, minor, min_plugin_minor, reserved0, host, next, options, ext,
        }
        DiEntryReply {
            struct_size, major, minor, min_core_minor, reserved0, flags, name, version, build, api, error,
        }
    }
}

/// Argument structs, as the reflection rows describe them: layers and recorders trust these offsets.
pub fn argument_structs() -> Vec<Layout> {
    OPS.iter().map(|op| argument_struct(op)).collect()
}

/// The argument struct of an op.
pub fn argument_struct(op: &OpInfo) -> Layout {
    Layout {
        name: argument_struct_name(op),
        size: op.args_size,
        align: align_of::<DiOpHeader>(),
        fields: std::iter::once(("h", 0)).chain(op.args.iter().map(|a| (a.name, a.offset))).collect(),
    }
}

/// Name of the argument struct of an op.
pub fn argument_struct_name(op: &OpInfo) -> String {
    format!("DiArgs{}V{}", camel(op.name), op.version)
}

/// Every constant of the header that is a number.
pub fn constants() -> Vec<(String, i64)> {
    let mut all = constants! {
        DI_ABI_MAJOR DI_ABI_MINOR
        DI_E_INVALID DI_E_UNSUPPORTED DI_E_OOM DI_E_WORKSPACE DI_E_DEVICE_LOST DI_E_ABI DI_E_PANIC DI_E_INTERNAL
        DI_E_NOT_CAPTURABLE DI_EF_STICKY DI_EF_RETRYABLE DI_EF_POISONED
        DI_DEVICE_CPU DI_DEVICE_CUDA DI_DEVICE_ASCEND DI_CAP_EMULATED
        DI_CODE_INT DI_CODE_UINT DI_CODE_FLOAT DI_CODE_BFLOAT DI_CODE_E4M3FN DI_CODE_E8M0FNU DI_CODE_E2M1FN
        DI_TF_READ_ONLY DI_QS_BLOCK DI_SL_ROW_MAJOR DI_QO_MULTIPLY
        DI_OPF_REQUIRE_DETERMINISTIC DI_OPF_REQUIRE_BATCH_INVARIANT
        DI_PF_CAPTURABLE DI_PF_CONCURRENT DI_PF_BATCH_INVARIANT DI_PF_DETERMINISTIC
        DI_SUPPORT_NO DI_SUPPORT_YES DI_SUPPORT_AFTER_RELAYOUT DI_SPACE_DEVICE DI_SPACE_HOST_PINNED
        DI_SPACE_HOST_PAGEABLE DI_LINK_SELF DI_LINK_DIRECT DI_LINK_PCIE DI_LINK_SYSTEM DI_LF_PEER_COPY DI_LF_PEER_ACCESS
        DI_TABLE_GRAPH DI_TABLE_COLLECTIVE DI_TABLE_PREPACK DI_TABLE_PROFILE DI_TABLE_VMM DI_TABLE_IPC DI_TABLE_OPS
        DI_ARG_TENSOR DI_ARG_TENSOR_LIST DI_ARG_U32 DI_ARG_I32 DI_ARG_F32 DI_ROLE_IN DI_ROLE_OUT DI_ROLE_INOUT
        DI_CONTRACT_EXACT DI_CONTRACT_ULP DI_CONTRACT_BOUND DI_CONTRACT_DIST DI_REDUCE_SUM DI_REDUCE_MAX
        DI_COPY_H2D DI_COPY_D2H DI_COPY_D2D DI_COPY_P2P DI_LOG_ERROR DI_LOG_WARN DI_LOG_INFO DI_LOG_DEBUG
        DI_RF_CONTAINS_PANICS DI_RF_IS_LAYER
    };
    all.extend(OPS.iter().map(|op| (format!("DI_OP_{}", op.name.to_uppercase()), i64::from(op.id))));
    all
}

/// All of it as lines of text, of three kinds: `STRUCT size align`, `STRUCT.FIELD offset` and `CONSTANT value`. The last
/// line is the name of the entry.
pub fn lines() -> String {
    let mut text = String::new();
    for Layout { name, size, align, fields } in fixed_structs().into_iter().chain(argument_structs()) {
        writeln!(text, "{name} {size} {align}").expect("text grows");
        for (field, offset) in fields {
            writeln!(text, "{name}.{field} {offset}").expect("text grows");
        }
    }
    for (name, value) in constants() {
        writeln!(text, "{name} {value}").expect("text grows");
    }
    text + DI_ENTRY_SYMBOL + "\n"
}

fn camel(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}
