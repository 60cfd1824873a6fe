//! The fake collectives of the ascend backend (`backends/ascend-950/fake/hccl.cpp`), by their self-test: each scenario is a run of
//! its own, since settings are read once. Nothing calls them in the backend yet.

#![forbid(unsafe_code)]

mod c_compiler;

use std::process::Command;

use c_compiler::{Language, compiler, repository, run};

#[test]
fn ranks_that_come_agree_and_ranks_that_fail_are_told() {
    let Some(mut compiler) = compiler(Language::Cpp17) else { return };
    let fake = repository().join("backends/ascend-950/fake");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hccl");
    let parts = ["selftest/hccl.cpp", "ascendcl.cpp", "hccl.cpp", "opapi.cpp"].map(|part| fake.join(part));
    run(compiler.args(parts).args(["-ldl", "-pthread", "-o"]).arg(&program));
    for (scenario, settings) in [
        ("results", "devices=3"),
        ("lost", "devices=3,lost=aclrtMemsetAsync:1"),
        ("late", "devices=3,hccl_ms=200"),
        ("different", "devices=3"),
        ("absent", "devices=3,hccl_ms=200"),
        ("memory", "devices=3,hbm=64K"),
    ] {
        let said = run(Command::new(&program).arg(scenario).env("DEEPINFER_FAKE_ACL", settings));
        assert_eq!(said, format!("{scenario}: right\n"));
    }
}
