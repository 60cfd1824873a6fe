//! Kernels, one file per op, named after it. Each registers itself; here it is only named.

mod gather;
