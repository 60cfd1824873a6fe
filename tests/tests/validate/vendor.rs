//! An op that no catalogue has: the layer knows it by the row that the backend brings along.

use std::mem::zeroed;

use deepinfer_plugin_api::abi::*;

use crate::c_plugin::plugin;
use crate::caller::{Caller, call, start_file, taken};

/// The op of `vendor_writer.c`.
const OP_SCALE: u32 = 0x8000_0001;

#[repr(C)]
struct ArgsScale {
    h: DiOpHeader,
    x: DiTensor,
    factor: f32,
    unused: u32,
}

#[test]
fn an_op_of_a_vendor_is_checked_and_watched() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = plugin(folder.path(), "vendor_writer.c", "libdeepinfer_c_writer.so", &[]) else { return };
    let api = start_file(&path, "", std::ptr::null()).expect("the backend starts");
    let caller = Caller::over(api, folder.path(), "poison=1&shadow=1/1");
    let (_, at) = caller.alloc(64);
    let (mut shape, mut strides) = ([4_i64], [1_i64]);
    // SAFETY: zeros are a valid argument struct.
    let mut args: ArgsScale = unsafe { zeroed() };
    args.h.struct_size = size_of::<ArgsScale>() as u32;
    (args.h.op_id, args.h.op_version) = (OP_SCALE, 3);
    (args.x.data, args.x.device_type, args.x.ndim, args.x.lanes) = (at, DI_DEVICE_CPU, 1, 1);
    (args.x.code, args.x.bits, args.x.nbytes) = (DI_CODE_FLOAT, 32, 16);
    (args.x.shape, args.x.strides) = (shape.as_mut_ptr(), strides.as_mut_ptr());
    taken(call!(caller, fill, caller.stream, at, 1.0_f32.to_bits(), 4, 16)).expect("a fill");
    let run = |args: &ArgsScale| caller.run_id(OP_SCALE, std::ptr::null_mut(), caller.stream, &raw const args.h);

    args.factor = 2.0;
    run(&args).expect("a right call");
    assert_eq!(caller.findings().len(), 0);

    args.factor = -2.0;
    let message = run(&args).expect_err("a write behind x");
    let part = "validate (out-of-bounds): the backend broke a rule in scale (plain), call 2: x was exceeded";
    assert!(message.contains(part) && message.contains("behind the end"), "{message}");

    args.x.nbytes = 12;
    let message = run(&args).expect_err("too few bytes");
    assert!(message.contains("x needs 16 bytes for shape [4] and strides [1], but nbytes is 12"), "{message}");
    assert_eq!(caller.findings().len(), 2);
}
