//! What a request gets from the engine, bit for bit: whatever else runs, in whatever order, with whatever memory, it is what
//! the model alone gives, one request at a time and with the draw computed on the host.

#![forbid(unsafe_code)]

mod company;
mod completions;
mod faults;
mod graphs;
mod limits;
mod memory;
mod neighbours;
mod prefix;
mod reference;
mod requests;
mod stops;
mod tapped;
mod thread;
mod waits;
