//! The determinism harness: it finds nothing where nothing is, and what is put there by its name.

#![forbid(unsafe_code)]

mod bugs;
mod caught;
mod lab;
mod mutant;
