//! Tests of the whole scheduler: rules one by one, and random events against models.

mod completions;
mod device;
mod invariants;
mod prefix;
mod random;
mod rules;
mod world;
