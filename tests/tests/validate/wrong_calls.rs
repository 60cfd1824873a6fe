//! Callers who break a rule: each learns which.

use std::path::Path;
use std::sync::Barrier;

use deepinfer_plugin_api::abi::*;

use crate::caller::{BYTES, Caller, Norm, call, start, taken};

/// A caller with a right call, and a way to spoil it.
fn with(options: &str, test: impl FnOnce(&Caller, Norm)) {
    let folder = tempfile::tempdir().expect("a folder");
    let caller = Caller::new(folder.path(), options);
    let norm = Norm::new(&caller);
    norm.run(&caller, caller.stream).expect("a right call");
    test(&caller, norm);
}

/// The one finding so far: its rule, and that the sentence has these parts.
#[track_caller]
fn assert_found(caller: &Caller, rule: &str, parts: &[&str]) {
    let found = caller.findings();
    assert_eq!(found.len(), 1, "{found:?}");
    let sentence = found[0]["sentence"].as_str().expect("a sentence");
    assert_eq!((&found[0]["rule"], &found[0]["by"]), (&rule.into(), &"core".into()), "{sentence}");
    parts.iter().for_each(|part| assert!(sentence.contains(part), "{part:?} is missing in: {sentence}"));
}

/// A spoiled call fails with the sentence that is in the report.
#[track_caller]
fn assert_refused(rule: &str, part: &str, spoil: impl FnOnce(&Caller, &mut Norm)) {
    with("check=1", |caller, mut norm| {
        spoil(caller, &mut norm);
        let message = norm.run(caller, caller.stream).expect_err("a finding is an error");
        assert!(message.contains(part), "{part:?} is missing in: {message}");
        assert_found(caller, rule, &[part, "the caller broke a rule in rms_norm (default), call 2: "]);
    });
}

#[test]
fn arguments_that_are_not_those_of_the_op() {
    assert_refused("struct", "struct_size 39, but their head alone has 40 bytes", |_, n| n.args.h.struct_size = 39);
    assert_refused("struct", "those of op 3 version 1, but this is op 2 version 1", |_, n| n.args.h.op_id = 3);
    assert_refused("struct", "op 2 version 9", |_, n| n.args.h.op_version = 9);
    assert_refused("shape", "out is absent, but the op needs it", |_, n| {
        n.args.h.struct_size = std::mem::offset_of!(deepinfer_plugin_api::generated::DiArgsRmsNormV1, out) as u32;
    });
    assert_refused("struct", "x has 5 dimensions; at most 4 are possible", |_, n| n.args.x.ndim = 5);
    assert_refused("struct", "x has dimensions but no shape or strides", |_, n| n.args.x.shape = std::ptr::null_mut());
    assert_refused("struct", "out has 2 lanes instead of 1", |_, n| n.args.out.lanes = 2);
}

#[test]
fn shapes_that_the_catalogue_does_not_have() {
    assert_refused("shape", "x has shape [2], but 2 dimensions are needed", |_, n| n.args.x.ndim = 1);
    assert_refused("shape", "x has the extent -2", |_, n| n.shape[0] = -2);
    assert_refused("shape", "x has the stride -4", |_, n| n.strides[0] = -4);
    assert_refused("shape", "x is of no format of the catalogue", |_, n| n.args.x.bits = 13);
}

#[test]
fn memory_that_is_not_the_callers() {
    assert_refused("nbytes", "x needs 32 bytes for shape [2, 4] and strides [4, 1], but nbytes is 31", |_, n| {
        n.args.x.nbytes = 31
    });
    assert_refused("memory", "x ends 8 bytes behind buffer #1 of 32 bytes", |_, n| n.args.x.byte_offset = 8);
    assert_refused("memory", "which was freed", |caller, n| {
        taken(call!(caller, stream_sync, caller.stream)).expect("a wait");
        call!(caller, free_, n.x);
    });
    assert_refused("memory", "which is in no allocation", |_, n| n.args.x.data = std::ptr::without_provenance_mut(64));
    assert_refused("memory", "x says device 1 of type 1", |_, n| n.args.x.device_id = 1);
    assert_refused("memory", "x lies in buffer #4 of device #2", |caller, n| {
        let other = caller.open();
        let (mut buffer, mut at) = (std::ptr::null_mut(), std::ptr::null_mut());
        taken(call!(caller, alloc, other, 0, BYTES, 64, &raw mut buffer, &raw mut at)).expect("memory");
        n.args.x.data = at;
    });
    assert_refused("read-only", "out is written by the op, but is marked as read-only", |_, n| {
        n.args.out.flags = DI_TF_READ_ONLY
    });
    assert_refused("overlap", "out is written and overlaps x", |_, n| n.args.out.data = n.args.x.data);
    assert_refused("overlap", "x overlaps the workspace", |_, n| {
        (n.args.h.workspace, n.args.h.workspace_bytes) = (n.args.x.data, 8);
    });
}

#[test]
fn objects_that_are_gone_or_of_somebody_else() {
    with("check=1", |caller, norm| {
        call!(caller, stream_destroy, caller.stream);
        let message = norm.run(caller, caller.stream).expect_err("a dead stream");
        assert!(message.ends_with("it was given stream #1, which was destroyed"), "{message}");
        assert_found(caller, "lifetime", &["rms_norm"]);
    });
    with("check=1", |caller, norm| {
        let wild = std::ptr::without_provenance_mut(0x7fff_0000_1000);
        let message = norm.run(caller, wild).expect_err("no stream");
        assert!(message.ends_with("it was given a stream 0x7fff00001000 that this backend never made"), "{message}");
    });
    with("check=1", |caller, norm| {
        taken(call!(caller, stream_sync, caller.stream)).expect("a wait");
        call!(caller, free_, norm.x);
        assert_eq!(caller.findings().len(), 0);
        call!(caller, free_, norm.x);
        assert_found(caller, "lifetime", &["free_", "buffer #1, which was destroyed"]);
    });
    with("check=1", |caller, _| {
        let mut event = std::ptr::null_mut();
        let other = caller.open();
        taken(call!(caller, event_create, other, 0, &raw mut event)).expect("an event");
        let message = taken(call!(caller, event_record, event, caller.stream)).expect_err("another device");
        assert!(message.ends_with("event #1 is of device #2, but stream #1 of device #1"), "{message}");
        assert_found(caller, "lifetime", &["event_record"]);
    });
    with("check=1", |caller, norm| {
        let plan = std::ptr::without_provenance_mut(21);
        let args = std::ptr::from_ref(&norm.args.h);
        let message = caller.run("rms_norm", plan, caller.stream, args).expect_err("no plan");
        assert!(message.ends_with("it was given a plan 0x15 that this backend never made"), "{message}");
    });
}

#[test]
fn copies_and_fills_outside_of_memory() {
    with("check=1", |caller, norm| {
        let bytes = [0_u8; 64];
        let (to, from) = (norm.args.x.data, bytes.as_ptr().cast());
        let message = taken(call!(caller, copy, caller.stream, to, from, 64, DI_COPY_H2D)).expect_err("too long");
        assert!(message.contains("64 bytes of the destination: the range ends 32 bytes behind buffer #1"), "{message}");
        assert_found(caller, "memory", &["copy"]);
    });
    with("check=1", |caller, norm| {
        let message = taken(call!(caller, fill, caller.stream, norm.args.x.data, 0, 4, 9)).expect_err("too long");
        assert!(message.contains("36 bytes of the destination: the range ends 4 bytes behind"), "{message}");
    });
}

#[test]
fn memory_that_is_freed_while_work_uses_it() {
    with("check=1", |caller, norm| {
        call!(caller, free_, norm.out);
        assert_found(
            caller,
            "lifetime",
            &["buffer #3 is freed, but work of stream #1 that uses it was not waited for"],
        );
    });
    with("check=1", |caller, norm| {
        taken(call!(caller, stream_sync, caller.stream)).expect("a wait");
        call!(caller, free_, norm.out);
        assert_eq!(caller.findings().len(), 0);
    });
}

#[test]
fn what_is_left_when_a_device_closes_is_named() {
    with("check=1", |caller, _| {
        call!(caller, device_close, caller.device);
        let left = "device #1 still has buffer #1 of 32 bytes, buffer #2 of 16 bytes, buffer #3 of 32 bytes, stream #1";
        assert_found(caller, "leak", &[left]);
    });
}

#[test]
fn two_threads_in_one_stream() {
    struct Shared<T>(T);
    // SAFETY: what is shared is used at once on purpose; the layer lets one thread through.
    unsafe impl<T> Sync for Shared<T> {}
    with("on=log", |caller, norm| {
        let shared = Shared((caller, &norm));
        let barrier = Barrier::new(2);
        let is_found = || caller.findings().iter().any(|finding| finding["rule"] == "thread");
        for _ in 0..2000 {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let Shared((caller, norm)) = &shared;
                        barrier.wait();
                        for _ in 0..50 {
                            // One of them may fail; the report tells.
                            let _ = norm.run(caller, caller.stream);
                        }
                    });
                }
            });
            if is_found() {
                return;
            }
        }
        panic!("two threads used a stream and were never there at once");
    });
}

#[test]
fn a_write_into_a_redzone_is_found_when_the_buffer_is_freed() {
    with("poison=1", |caller, norm| {
        taken(call!(caller, stream_sync, caller.stream)).expect("a wait");
        // On a processor anybody can write.
        // SAFETY: 256 bytes of redzone follow the buffer.
        unsafe { norm.args.out.data.byte_add(BYTES as usize + 3).cast::<u8>().write(7) };
        call!(caller, free_, norm.out);
        let found = caller.findings();
        assert_eq!((found.len(), &found[0]["rule"]), (1, &"out-of-bounds".into()));
        assert!(
            found[0]["sentence"].as_str().unwrap().ends_with("wrote 0x07 outside of buffer #3, 3 bytes behind its end")
        );
    });
}

#[test]
fn findings_that_are_only_logged_let_the_call_go_on() {
    with("on=log", |caller, mut norm| {
        norm.args.out.flags = DI_TF_READ_ONLY;
        norm.run(caller, caller.stream).expect("the backend does not mind");
        assert_found(caller, "read-only", &["out"]);
    });
}

#[test]
fn refusals_to_start() {
    let message = start("deepinfer_validate", "", std::ptr::null()).expect_err("nothing to wrap");
    assert!(message.contains("is a layer and needs a backend to wrap"), "{message}");
    let folder = Path::new("/nonexistent/folder/report");
    // SAFETY: zeros are a valid table, which lives for the call; it is refused before anything in it is called.
    let blank: DiBackendApi = unsafe { std::mem::zeroed() };
    let blank = DiBackendApi { struct_size: size_of::<DiBackendApi>() as u32, ..blank };
    let message =
        start("deepinfer_validate", &format!("report={}", folder.display()), &raw const blank).expect_err("no tables");
    assert!(message.contains("has no runtime table"), "{message}");
}
