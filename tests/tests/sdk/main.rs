//! A backend written with the Rust SDK, seen from the other side: through the C tables that a core sees.

#![allow(unsafe_code)]

mod npu;
mod plans;
mod queues;
mod raw;
mod tables;
