//! A layer over any backend that tells who breaks which rule of the boundary.
//!
//! `DEEPINFER_LAYERS=validate:poison,shadow=1/64` puts it between the core and whatever backend is selected. It knows ops by
//! their reflection rows alone, those of the catalogue and those that a backend brings along; no op has a name here. It
//! hands out handles of its own, so that an object that was destroyed, or is of another backend, is recognised before it
//! does harm.
//!
//! Modes, each an option; without any there is `check`:
//!
//! - **check** is always on: sizes and descriptors, formats and extents, live memory and its bounds, overlaps, read-only
//!   memory, lifetimes, threads, plans and workspaces, capture, leaks; and of the backend: what `supports` promises, whole
//!   error objects, results that are written, and nothing behind them.
//! - **poison**: what a call only writes, and its workspace, hold NaN before it; new memory holds NaN and has redzones; up to
//!   256 bytes around each written tensor, and the gaps between its rows, are compared afterwards. Work is waited for.
//! - **shadow=1/N**: one call in N, and the first of each class of calls, is made again by its oracle in F64 and compared by
//!   contract. A difference that goes away when the workspace is zeroed is told apart.
//! - **jitter=SEED**: each stream gets a queue of its own that pauses at random, so that work ends as late, and in as many
//!   orders, as events allow. Every backend becomes asynchronous; a wait that the caller forgot shows.
//! - **record=DIR**: the first calls of each op become bundles for `deepinfer replay`.
//!
//! `ops=` restricts what is shadowed and recorded, `first=` is how many calls of an op are recorded, `seed=` decides what is
//! sampled. A finding is one sentence. With `on=error` the call that shows it fails; a call that cannot fail, such as
//! freeing, writes it to the log. With `on=log` everything goes on as far as it can. `report=FILE` gets a JSON object
//! per finding, one a line, behind those that are there: a new file that stays empty is a clean run. A wrong result also
//! becomes a bundle in `bundles=DIR`, the temporary folder unless it is given; `bundles=none` keeps none.
//!
//! What it cannot see: what a backend does within its own calls; memory that does not come from the backend's tables;
//! captured work, which is checked when it is recorded and not when it runs.

// A set of addresses is often one range.
#![cfg_attr(test, allow(clippy::single_range_in_vec_init))]

mod boundary;
mod call;
mod check;
mod clock;
mod entry;
mod finding;
mod handles;
mod lane;
mod layer;
mod next;
mod ops;
mod options;
mod ranges;
mod read;
mod reporter;
mod run;
mod runtime;
mod sample;
mod shadow;
mod tables;
mod watch;
mod world;

pub use entry::deepinfer_backend_entry;
