//! Repository chores: `cargo xtask codegen [--check]`, `cargo xtask cuda`, `cargo xtask machine-code`,
//! `cargo xtask gpu-bundle [--out DIR]`.

mod bundle;
mod codegen;
mod cuda;
mod machine_code;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["codegen"] => codegen::run(codegen::Mode::Write),
        ["codegen", "--check"] => codegen::run(codegen::Mode::Check),
        ["cuda"] => cuda::fetch(),
        ["machine-code"] => machine_code::check(),
        ["gpu-bundle", rest @ ..] => bundle::run(rest),
        _ => bail!("usage: cargo xtask codegen [--check] | cuda | machine-code | gpu-bundle [--out DIR]"),
    }
}
