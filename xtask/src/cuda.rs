//! A CUDA compiler without a CUDA installation: the wheels that NVIDIA publishes, in `target/cuda`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// nvcc and what it needs, and the disassemblers for the checks of machine code. The version is that of the oldest driver
/// that the backend supports (580): a later compiler would do for it, too, as long as no intermediate code is shipped.
const WHEELS: [&str; 7] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cuobjdump==13.2.86",
    "nvidia-cuda-nvdisasm==13.2.86",
];

/// Fills `target/cuda/venv`.
pub(crate) fn fetch() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda/venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    run(Command::new(folder.join("bin/pip")).args(["install", "--quiet"]).args(WHEELS))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} does not run"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
