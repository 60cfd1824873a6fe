//! The self-tests of what the ascend backend is proved with: of the host twin (`backends/ascend-950/twin/selftest`: what its
//! instructions give, and that mistakes are noticed) and of the fake collectives (`fake/selftest`), which nothing calls yet.

#![forbid(unsafe_code)]

mod c_compiler;

use std::process::Command;

use c_compiler::{Language, compiler, repository, run};
use tempfile::TempDir;

/// A program of these files of the backend; `None`, with a line that says so, without a C++ compiler.
fn program(files: &[&str], switches: &[&str]) -> Option<(TempDir, Command)> {
    let mut compiler = compiler(Language::Cpp17)?;
    let (folder, root) = (tempfile::tempdir().unwrap(), repository().join("backends/ascend-950"));
    let path = folder.path().join("selftest");
    compiler.current_dir(&root).args(files).args(switches).args(["-ldl", "-pthread", "-o"]).arg(&path);
    run(&mut compiler);
    Some((folder, Command::new(path)))
}

/// It prints a line for each check, and fails if one does.
#[test]
fn the_twin_notices_mistakes_and_computes_what_is_stated() {
    let files = ["twin/selftest/main.cpp", "twin/core.cpp", "twin/global.cpp"];
    let switches = ["-ffp-contract=off", "-fno-strict-aliasing", "-I", "twin", "-I", "kernels"];
    let Some((_folder, mut program)) = program(&files, &switches) else { return };
    let said = run(&mut program);
    assert!(said.ends_with("\n0 failed\n") && said.lines().count() > 50, "{said}");
}

/// Each scenario is a run of its own, since settings are read once.
#[test]
fn ranks_that_come_agree_and_ranks_that_fail_are_told() {
    let files = ["fake/selftest/hccl.cpp", "fake/ascendcl.cpp", "fake/hccl.cpp", "fake/opapi.cpp"];
    let Some((_folder, mut program)) = program(&files, &[]) else { return };
    let path = program.get_program().to_owned();
    for (scenario, settings) in [
        ("results", "devices=3"),
        ("lost", "devices=3,lost=aclrtMemsetAsync:1"),
        ("late", "devices=3,hccl_ms=200"),
        ("different", "devices=3"),
        ("absent", "devices=3,hccl_ms=200"),
        ("memory", "devices=3,hbm=64K"),
    ] {
        program = Command::new(&path);
        let said = run(program.arg(scenario).env("DEEPINFER_FAKE_ACL", settings));
        assert_eq!(said, format!("{scenario}: right\n"));
    }
}
