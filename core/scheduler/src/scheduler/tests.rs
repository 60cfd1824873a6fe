//! Tests of the whole scheduler: rules one by one, and random events against models.

mod device;
mod invariants;
mod random;
mod world;
