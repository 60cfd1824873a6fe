//! What a call may cost: no allocation once it is warm, and few instructions.
//!
//! Times are not measured here: see `tests/benches/dispatch.rs`.

#![allow(unsafe_code)]

mod c_compiler;
mod c_plugin;
mod null_backend;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::process::Command;

use deepinfer_ops::{Device, Dispatch, Format, OpCall, Tensor};
use deepinfer_runtime::{CommandList, OpenDevice};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: the system's allocator does the work; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the same contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(vec![0u8; 100]))), 1);
    assert_eq!(allocations(|| {}), 0);
}

#[test]
fn a_warm_call_allocates_nothing() {
    let Some((_folder, device)) = null_backend::open() else { return };
    let mut calls = null_backend::sixteen(&device);
    calls.push(Box::new(null_backend::planned(&device)));
    calls.iter().for_each(|call| device.dispatch(&**call).unwrap());
    for call in &calls {
        let found = allocations(|| (0..10_000).for_each(|_| device.dispatch(&**call).unwrap()));
        assert_eq!(found, 0, "{} in 10000 calls", call.info().name);
    }
}

#[test]
fn a_launch_allocates_nothing() {
    let Some((_folder, device)) = null_backend::open() else { return };
    let calls = null_backend::sixteen(&device);
    let list = device.record(|| calls.iter().try_for_each(|call| device.dispatch(&**call))).unwrap();
    assert_eq!(list.len(), 16);
    assert_eq!(allocations(|| (0..1000).for_each(|_| device.launch(&list).unwrap())), 0);
}

#[test]
fn staged_copies_use_their_memory_again() {
    let Some((_folder, device)) = null_backend::open() else { return };
    let tensor = Tensor::plain(&device.allocate(256).unwrap(), 0, Format::I32, &[64]);
    let round = || {
        device.upload_staged(&tensor, &[1; 256]).unwrap();
        device.upload_staged(&tensor, &[2; 100]).unwrap();
        device.download_later(&tensor).unwrap().wait().unwrap();
    };
    (0..10).for_each(|_| round());
    let found = allocations(|| (0..1000).for_each(|_| round()));
    assert_eq!(found, 1000, "one for the handle of each download, none for bytes and events");
}

/// Calls that are counted.
const COUNTED: u64 = 1000;
/// Instructions that are too many: of a call of four tensors, checks and plugin included, and of one op of a command list.
/// Measured on x86-64: 483 and 40; with debug assertions 539 and 40.
const MOST: (u64, u64) = if cfg!(debug_assertions) { (650, 60) } else { (580, 60) };

/// What valgrind counts. It goes by the name of the symbol, and a closure would have a name that contains it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
#[inline(never)]
fn deepinfer_counted_calls(device: &dyn Dispatch, call: &dyn OpCall) {
    for _ in 0..COUNTED {
        device.dispatch(black_box(call)).unwrap();
    }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
fn deepinfer_counted_launch(device: &OpenDevice, list: &CommandList) {
    device.launch(black_box(list)).unwrap();
}

/// Runs under valgrind, below.
#[test]
#[ignore = "part of a_call_takes_few_instructions"]
fn child_under_valgrind() {
    let Some((_folder, device)) = null_backend::open() else { return };
    let call = null_backend::four_tensors(&device);
    let list = device.record(|| (0..COUNTED).try_for_each(|_| device.dispatch(&call))).unwrap();
    deepinfer_counted_calls(&device, &call);
    deepinfer_counted_launch(&device, &list);
}

#[test]
fn a_call_takes_few_instructions() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: instructions are counted by valgrind, which is not installed");
        return;
    }
    let per_call = instructions("deepinfer_counted_calls") / COUNTED;
    let per_step = instructions("deepinfer_counted_launch") / COUNTED;
    eprintln!("{per_call} instructions per call of four tensors, {per_step} per op of a command list");
    assert!((1..=MOST.0).contains(&per_call), "{per_call} instructions per call; at most {}", MOST.0);
    assert!((1..=MOST.1).contains(&per_step), "{per_step} instructions per op; at most {}", MOST.1);
}

/// Instructions within a function of this program, with all that it calls.
fn instructions(function: &str) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_under_valgrind", "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected =
        text.lines().find_map(|line| line.split_once("Collected : ")).expect("valgrind says what it counted");
    collected.1.trim().parse().unwrap()
}
