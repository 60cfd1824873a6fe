//! Captured work passes the layer, and is launched through it.

use std::rc::Rc;

use deepinfer_ops::args::{Gather, Rstd};
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format};
use deepinfer_tests::{Tensors, f32_bytes};
use serde_json::Value;

use crate::c_plugin::plugin;
use crate::{findings, open};

#[test]
fn a_captured_list_gives_the_bits_of_the_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = plugin(folder.path(), "graph.c", "libdeepinfer_graph.so", &[]) else { return };
    let device = Rc::new(open(folder.path(), &path, "", "poison,shadow=1/1"));
    let tensors = Tensors(device.clone());
    let x = tensors.f32(&[2, 8], &[0.5; 16]);
    let index = tensors.i32(&[2], &[1, 0]);
    let (chosen, out) = (tensors.poisoned(Format::F32, &[2, 1, 8]), tensors.poisoned(Format::F32, &[2]));
    let calls = || {
        device.gather(&Gather { table: &x, index: &index, repeat: 1, out: &chosen })?;
        device.rstd(&Rstd { x: &x, eps: 1e-6, out: &out })
    };
    calls().expect("direct calls");
    let list = device.record(calls).expect("a list");
    assert!(list.is_captured(), "{}", list.why_not_captured());
    for scale in [1.0, 2.0, 3.0] {
        let values: Vec<f32> = (0..16).map(|i| scale * (1.0 + i as f32)).collect();
        device.upload(&x, &f32_bytes(&values)).expect("an upload");
        device.launch(&list).expect("a launch");
        let rows = [&values[8..], &values[..8]].concat();
        assert_eq!(tensors.floats(&chosen), rows);
        assert!(tensors.floats(&out).iter().all(|v| (0.0..1.0).contains(v)));
    }
    drop((list, x, index, chosen, out, tensors, device));
    assert_eq!(findings(folder.path()), Vec::<Value>::new());
}
