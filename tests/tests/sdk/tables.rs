//! Optional parts: absent unless offered, and what they give.

use std::ptr::{null, null_mut};

use deepinfer_plugin_api::abi::*;

use crate::npu::{Npu, Plain};
use crate::raw::{Plugin, blank, outcome, runtime};

#[test]
fn what_is_not_offered_is_absent() {
    let plain = Plugin::start::<Plain>("");
    // SAFETY: the table lives as long as the process.
    let runtime = unsafe { &*plain.api.runtime };
    assert!(runtime.device_link.is_none() && runtime.stream_native.is_none());
    assert!(runtime.event_elapsed.is_none() && runtime.copy_2d.is_none());
    assert!(plain.api.shutdown.is_none());
    // The kernels of this test are linked into both backends, hence the op of its own and the table for it.
    let table = plain.api.table.unwrap();
    for id in (0..10).filter(|&id| id != DI_TABLE_OPS) {
        // SAFETY: the backend is alive.
        assert!(unsafe { table(plain.api.backend, id) }.is_null(), "table {id}");
    }
    // A device without a list of spaces has the one that every device has.
    let mut space: DiSpaceInfo = blank();
    outcome(runtime!(plain, space_info, 0, 0, &raw mut space)).unwrap();
    assert_eq!((space.space_id, space.kind, space.total_bytes), (0, DI_SPACE_DEVICE, 4096));
    let error = outcome(runtime!(plain, space_info, 0, 1, &raw mut space)).unwrap_err();
    assert_eq!(error.to_string(), "plain/space_info: memory space 1 of device 0 does not exist; there are 1");
}

#[test]
fn devices_describe_themselves_and_their_memory() {
    let plugin = Plugin::start::<Npu>("");
    let mut info: DiDeviceInfo = blank();
    outcome(runtime!(plugin, device_info, 0, &raw mut info)).unwrap();
    assert_eq!((info.uuid, info.n_spaces, info.isolation, info.numa_node), ([7; 16], 2, 1, -1));
    let mut space: DiSpaceInfo = blank();
    outcome(runtime!(plugin, space_info, 0, 1, &raw mut space)).unwrap();
    assert_eq!((space.space_id, space.kind), (1, DI_SPACE_HOST_PINNED));
    assert_eq!((space.min_align, space.granularity), (64, 4096));
    let mut link: DiLinkInfo = blank();
    outcome(runtime!(plugin, device_link, 0, 1, &raw mut link)).unwrap();
    assert_eq!((link.link_class, link.flags, link.hops), (DI_LINK_PCIE, DI_LF_PEER_COPY, 2));
    assert_eq!((link.bytes_per_s, link.latency_ns), (64_000_000_000, 900));
}

#[test]
fn streams_events_and_rows() {
    let plugin = Plugin::start::<Npu>("");
    let mut native = null_mut();
    outcome(runtime!(plugin, stream_native, plugin.stream, &raw mut native)).unwrap();
    assert!(!native.is_null());

    let mut events = [null_mut(); 2];
    for event in &mut events {
        outcome(runtime!(plugin, event_create, plugin.device, 0, &raw mut *event)).unwrap();
    }
    let mut milliseconds = f32::NAN;
    let elapsed = |ms: &mut f32| outcome(runtime!(plugin, event_elapsed, events[0], events[1], &raw mut *ms));
    assert!(elapsed(&mut milliseconds).unwrap_err().message.contains("the first event was not recorded"));
    for event in events {
        outcome(runtime!(plugin, event_record, event, plugin.stream)).unwrap();
    }
    elapsed(&mut milliseconds).unwrap();
    assert!((0.0..10_000.0).contains(&milliseconds), "{milliseconds}");

    let (source, mut target) = ([1_u8, 2, 3, 4, 5, 6], [0_u8; 6]);
    let mut copy = |dst_pitch, src_pitch| {
        let (dst, src) = (target.as_mut_ptr().cast(), source.as_ptr().cast());
        outcome(runtime!(plugin, copy_2d, plugin.stream, dst, dst_pitch, src, src_pitch, 2, 2, DI_COPY_D2D))
    };
    copy(4, 3).unwrap();
    let error = copy(1, 3).unwrap_err();
    assert_eq!(error.message, "rows of 2 bytes overlap at pitches of 1 and 3");
    assert_eq!(target, [1, 2, 0, 0, 4, 5]);
}

#[test]
fn recorded_work_is_replayed() {
    let plugin = Plugin::start::<Npu>("");
    let (backend, stream) = (plugin.api.backend, plugin.stream);
    let mut bytes = [0_u8; 8];
    let address = bytes.as_mut_ptr();
    let fill = |at: usize, byte: u32| {
        let at = address.wrapping_add(at).cast();
        outcome(runtime!(plugin, fill, stream, at, byte, 1, 4)).unwrap();
    };
    let copy = || outcome(runtime!(plugin, copy, stream, null_mut(), null(), 0, DI_COPY_D2D));
    // SAFETY: the tables live as long as the process, and each object is used before it is destroyed.
    unsafe {
        let table = plugin.api.table.unwrap();
        assert!(!table(backend, DI_TABLE_PROFILE).is_null() && table(backend, DI_TABLE_VMM).is_null());
        let graphs = &*table(backend, DI_TABLE_GRAPH).cast::<DiGraphApi>();
        assert_eq!(graphs.struct_size as usize, size_of::<DiGraphApi>());
        let capture = |byte: u32| {
            outcome(graphs.begin.unwrap()(backend, stream)).unwrap();
            fill(0, byte);
            fill(2, byte + 1);
            let mut graph = null_mut();
            outcome(graphs.end.unwrap()(backend, stream, &raw mut graph)).unwrap();
            graph
        };
        let graph = capture(7);
        assert_eq!(address.read(), 0, "recorded work is not done");
        let mut executable = null_mut();
        outcome(graphs.instantiate.unwrap()(backend, graph, &raw mut executable)).unwrap();
        graphs.graph_destroy.unwrap()(backend, graph);
        let launch = || outcome(graphs.launch.unwrap()(backend, executable, stream)).unwrap();
        launch();
        assert_eq!(address.cast::<[u8; 8]>().read(), [7, 7, 8, 8, 8, 8, 0, 0]);

        // Another graph of the same form takes its place; one of another form does not.
        let (graph, mut updated) = (capture(20), 0);
        outcome(graphs.update.unwrap()(backend, executable, graph, &raw mut updated)).unwrap();
        launch();
        assert_eq!((updated, address.cast::<[u8; 4]>().read()), (1, [20, 20, 21, 21]));
        graphs.graph_destroy.unwrap()(backend, graph);
        outcome(graphs.begin.unwrap()(backend, stream)).unwrap();
        let error = outcome(graphs.begin.unwrap()(backend, stream)).unwrap_err();
        assert_eq!(error.to_string(), "npu/graph_begin: the stream is being captured already");
        assert_eq!(copy().unwrap_err().code, DI_E_NOT_CAPTURABLE);
        let mut empty = null_mut();
        outcome(graphs.end.unwrap()(backend, stream, &raw mut empty)).unwrap();
        outcome(graphs.update.unwrap()(backend, executable, empty, &raw mut updated)).unwrap();
        assert_eq!(updated, 0);
        graphs.graph_destroy.unwrap()(backend, empty);
        graphs.exec_destroy.unwrap()(backend, executable);
    }
}

#[test]
fn shutdown_reaches_the_backend() {
    let plugin = Plugin::start::<Npu>("");
    let (mut free, mut total) = (0, 0);
    let mut ask = || outcome(runtime!(plugin, device_mem_info, plugin.device, 0, &raw mut free, &raw mut total));
    ask().unwrap();
    // SAFETY: the backend is alive.
    outcome(unsafe { plugin.api.shutdown.unwrap()(plugin.api.backend) }).unwrap();
    assert_eq!(ask().unwrap_err().message, "the backend is shut down");
}
