//! Tables of the fixed-point functions, as the numerics crate makes them.

use std::fmt::{Display, Write};

use deepinfer_numerics::{fixed_exp, fixed_log};

/// The header that kernels include.
pub(crate) const FILE: &str = "fixed_tables.cuh";

/// Its text.
pub(crate) fn text() -> String {
    let mut text = "// Written by the build from deepinfer-numerics.\n#pragma once\n#include <cstdint>\n".to_owned();
    table(&mut text, "uint64_t LN_TABLE", "ull", &fixed_log::table());
    table(&mut text, "uint32_t POWER_TABLE", "u", &fixed_exp::table());
    text
}

fn table<T: Display>(text: &mut String, name: &str, suffix: &str, values: &[T]) {
    write!(text, "__device__ const {name}[{}] = {{", values.len()).expect("a string grows");
    values.iter().for_each(|value| write!(text, "{value}{suffix}, ").expect("a string grows"));
    text.push_str("};\n");
}
